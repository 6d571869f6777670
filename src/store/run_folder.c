/* SPDX-License-Identifier: Apache-2.0
 *
 * Who a run is: run.json with its uuid, and one record per start under incarnations/.
 *
 * Invariants
 *  1. run.json and incarnations are published once, by no-replace rename, and never changed.
 *  2. Incarnation numbers only grow: a number is published only when no equal or higher one is there.
 *  3. "Cannot be read" is never taken for "is not there": a folder that cannot be listed stops the start.
 *  4. A folder that holds snapshots or incarnations but no run.json gets no new identity: all of them would turn
 * foreign.
 */
#include "store/store.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

iso_status iso_path_probe(const char *path, bool *exists) {
  struct stat info;
  *exists = iso_os.stat(path, &info) == 0;
  return *exists || errno == ENOENT ? ISO_OK : iso_os_fail("look at", path);
}

/* Creates run/name when missing, and makes the new entry durable. */
static iso_status make_folder(const char *run, const char *path) {
  if (iso_os.mkdir(path, 0777) == 0) return iso_path_sync(run);
  return errno == EEXIST ? ISO_OK : iso_os_fail("create folder", path);
}

/* ---- leftovers ----------------------------------------------------------------------------------------- */

/* NAME.tmp-<pid>-<number> (iso_file_replace) or NAME.<attempt>.tmp (publishing), and not what takes a place yet. */
static bool is_unfinished(const char *name) {
  if (iso_run_replace_is_ready(name)) return false;
  const char *at = strstr(name, ".tmp-");
  if (at && at != name) {
    size_t digits = strspn(at + 5, "0123456789");
    const char *dash = at + 5 + digits;
    size_t more = *dash == '-' ? strspn(dash + 1, "0123456789") : 0;
    if (digits && more && !dash[1 + more]) return true;
  }
  const size_t length = strlen(name), tail = 1 + 32 + 4; /* .<32 hex digits>.tmp */
  if (length <= tail || strcmp(name + length - 4, ".tmp") != 0 || name[length - tail] != '.') return false;
  return strspn(name + length - tail + 1, "0123456789abcdef") == 32;
}

static bool ends_in(const char *name, const char *end) {
  const size_t length = strlen(name), tail = strlen(end);
  return length > tail && strcmp(name + length - tail, end) == 0;
}

/* Of what a run says of itself, and the next start says anew or never: vitals.json, and traces with the parts of their
 * ranks. Those of config.yaml and the like wait for a decision (inputs.c). */
static bool is_unsaid(const char *path, const char *name) {
  struct stat info;
  const bool trace = strncmp(name, "trace-", 6) == 0 && (ends_in(name, ".next") || ends_in(name, ".part"));
  if (!trace && strcmp(name, "vitals.json.next") != 0) return false;
  return lstat(path, &info) == 0 && S_ISREG(info.st_mode);
}

void iso_run_folder_sweep(const char *run) {
  static const char *const folders[] = {"", "incarnations", "tokenizer"};
  iso_arena *arena = iso_arena_create();
  for (size_t i = 0; arena && i < ISO_COUNT(folders); i++) {
    const char *folder = iso_path_join(arena, run, folders[i]);
    char **names;
    size_t count;
    if (!folder || !iso_path_is_folder(folder) || iso_path_list(arena, folder, &names, &count) != ISO_OK) continue;
    for (size_t k = 0; k < count; k++) {
      const char *path = iso_path_join(arena, folder, names[k]);
      if (path && (is_unfinished(names[k]) || (i == 0 && is_unsaid(path, names[k]))))
        (void)iso_os.unlink(path); /* one that stays counts for nothing, as before */
    }
  }
  iso_arena_destroy(&arena);
}

/* ---- identity ------------------------------------------------------------------------------------------ */

static iso_status uuid_make(char uuid[37]) {
  char hex[33];
  ISO_TRY(iso_attempt_id(hex));
  hex[12] = '4';                         /* version 4: random */
  hex[16] = "89ab"[(hex[16] - '0') & 3]; /* variant of RFC 9562 */
  snprintf(uuid, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
  return ISO_OK;
}

static bool uuid_is_well_formed(const char *uuid) {
  for (int i = 0; i < 36; i++) {
    bool dash = i == 8 || i == 13 || i == 18 || i == 23;
    if (dash ? uuid[i] != '-' : !strchr("0123456789abcdef", uuid[i]) || !uuid[i]) return false;
  }
  return uuid[36] == 0;
}

static iso_status run_read(const char *path, char uuid[37]) {
  iso_json *json;
  iso_string faults = {0};
  int64_t format;
  iso_status status = iso_record_read(path, "run.json", &json, &faults);
  if (status != ISO_OK) {
    status = iso_fail(status, "'%s' cannot be used: %s; restore it from a copy, the run's snapshots are bound to it",
                      path, iso_fault_first(&faults));
  } else if (!iso_record_int(json, "format", 1, &format) || !iso_record_text(json, "uuid", uuid, 37) ||
             !uuid_is_well_formed(uuid)) {
    status =
        iso_fail(ISO_ERR_FORMAT, "'%s' has no well-formed format and uuid; it was not written by this program", path);
  } else if (format != 1) {
    status = iso_fail(ISO_ERR_UNSUPPORTED, "'%s' has format %lld, this build reads 1; use a newer build", path,
                      (long long)format);
  }
  iso_string_fini(&faults);
  iso_json_destroy(&json);
  return status;
}

static iso_status run_publish(const char *path, bool *taken) {
  char uuid[37], created[32];
  iso_string text = {0};
  time_t now = time(NULL);
  struct tm utc;
  ISO_TRY(uuid_make(uuid));
  strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  iso_string_printf(&text, "{\n  \"format\": 1,\n  \"uuid\": \"%s\",\n  \"created\": \"%s\"", uuid, created);
  iso_record_seal(&text);
  iso_status status = iso_string_failed(&text) ? ISO_ERR_MEMORY : iso_file_publish(path, text.data, text.length, taken);
  iso_string_fini(&text);
  return status;
}

static iso_status folder_read(iso_arena *arena, const char *run, char uuid[37], bool *exists) {
  static const char *const traces[] = {"snapshots", "incarnations"};
  bool there;
  const char *path = iso_path_join(arena, run, "run.json");
  if (!path) return ISO_ERR_MEMORY;
  ISO_TRY(iso_path_probe(path, exists));
  if (*exists) return run_read(path, uuid);
  for (size_t i = 0; i < ISO_COUNT(traces); i++) {
    const char *trace = iso_path_join(arena, run, traces[i]);
    if (!trace) return ISO_ERR_MEMORY;
    ISO_TRY(iso_path_probe(trace, &there));
    if (there) {
      return iso_fail(ISO_ERR_FORMAT,
                      "run folder '%s' holds %s but no run.json; restore it from a copy, or use another folder", run,
                      traces[i]);
    }
  }
  return ISO_OK;
}

iso_status iso_run_folder_read(const char *run, char uuid[37], bool *exists) {
  iso_arena *arena = iso_arena_create();
  *exists = false;
  iso_status status = arena ? folder_read(arena, run, uuid, exists) : ISO_ERR_MEMORY;
  iso_arena_destroy(&arena);
  return status;
}

static iso_status folder_open(iso_arena *arena, const char *run, char uuid[37]) {
  bool exists, taken;
  const char *path = iso_path_join(arena, run, "run.json");
  if (!path) return ISO_ERR_MEMORY;
  ISO_TRY(iso_path_probe(run, &exists));
  if (!exists) {
    ISO_TRY(iso_path_make(run));
    ISO_TRY(iso_parent_sync(run));
  }
  ISO_TRY(iso_run_replace_finish(run));
  ISO_TRY(folder_read(arena, run, uuid, &exists));
  if (exists) return ISO_OK;
  ISO_TRY(run_publish(path, &taken)); /* taken: another process was faster, its identity counts */
  return run_read(path, uuid);
}

iso_status iso_run_folder_open(const char *run, char uuid[37]) {
  const size_t most = ISO_SNAPSHOT_PATH - sizeof "/snapshots/step-9007199254740992-2147483647";
  if (strlen(run) > most) /* else it would be trained, and its snapshots could not be read again */
    return iso_fail(ISO_ERR_CONFIG,
                    "run folder '%.60s...': the path has %zu bytes, at most %zu are possible; shorten it", run,
                    strlen(run), most);
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? folder_open(arena, run, uuid) : ISO_ERR_MEMORY;
  iso_arena_destroy(&arena);
  return status;
}

static iso_status set_aside(iso_arena *arena, const char *run, const char *relative, char moved_to[256]) {
  char attempt[33];
  const char *base = strrchr(relative, '/');
  const char *folder = iso_path_join(arena, run, "aside"), *from = iso_path_join(arena, run, relative);
  if (!folder || !from) return ISO_ERR_MEMORY;
  ISO_TRY(make_folder(run, folder));
  ISO_TRY(iso_attempt_id(attempt));
  snprintf(moved_to, 256, "aside/%.200s-%.16s", base ? base + 1 : relative, attempt);
  const char *to = iso_path_join(arena, run, moved_to);
  if (!to) return ISO_ERR_MEMORY;
  /* A folder cannot be linked, so where the file system has no no-replace rename the 64 random bits must do. */
  bool moved = iso_os.rename_noreplace(from, to) == 0;
  if (!moved && (errno == EPERM || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP)) {
    moved = iso_os.rename(from, to) == 0;
  }
  if (!moved) return iso_os_fail("set aside", from);
  ISO_TRY(iso_path_sync(folder));
  return iso_parent_sync(from);
}

iso_status iso_run_set_aside(const char *run, const char *relative, char moved_to[256]) {
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? set_aside(arena, run, relative, moved_to) : ISO_ERR_MEMORY;
  iso_arena_destroy(&arena);
  return status;
}

/* ---- incarnations --------------------------------------------------------------------------------------- */

/* Number of "%04d.json"; 0 for any other name. */
static int incarnation_number(const char *name) {
  char again[32];
  int number = atoi(name);
  snprintf(again, sizeof again, "%04d.json", number);
  return number >= 1 && strcmp(again, name) == 0 ? number : 0;
}

/* Numbers that are published, ascending. */
static iso_status list_numbers(iso_arena *arena, const char *run, int **numbers, size_t *count) {
  char **names;
  size_t name_count;
  bool exists;
  *count = 0;
  const char *folder = iso_path_join(arena, run, "incarnations");
  if (!folder) return ISO_ERR_MEMORY;
  ISO_TRY(iso_path_probe(folder, &exists));
  if (!exists) return ISO_OK;
  ISO_TRY(iso_path_list(arena, folder, &names, &name_count));
  *numbers = iso_arena_alloc(arena, (name_count + 1) * sizeof **numbers);
  if (!*numbers) return ISO_ERR_MEMORY;
  for (size_t i = 0; i < name_count; i++) {
    int number = incarnation_number(names[i]);
    if (!number) continue;
    size_t at = (*count)++;
    for (; at > 0 && (*numbers)[at - 1] > number; at--) (*numbers)[at] = (*numbers)[at - 1];
    (*numbers)[at] = number;
  }
  return ISO_OK;
}

static bool parse_incarnation(const iso_json *json, int number, iso_incarnation *out) {
  int64_t format, own, optimizer;
  bool good = iso_record_int(json, "format", 1, &format) && format == 1 && iso_record_int(json, "number", 1, &own) &&
              own == number && iso_record_int(json, "begins_after", 0, &out->begins_after) &&
              iso_record_text(json, "config_digest", out->config_digest, sizeof out->config_digest) &&
              iso_record_text(json, "tier", out->tier, sizeof out->tier) &&
              iso_record_text(json, "build", out->build, sizeof out->build) &&
              iso_record_int(json, "optimizer_version", 0, &optimizer) && optimizer <= INT32_MAX &&
              iso_record_int(json, "virtual_workers", 0, &out->virtual_workers) &&
              iso_record_int(json, "ranks", 0, &out->ranks);
  out->number = number;
  out->optimizer_version = good ? (int)optimizer : 0;
  out->hosts = NULL;
  return good;
}

/* Versions before it do not write the member. */
static iso_status keep_hosts(iso_arena *arena, const iso_json *hosts, iso_incarnation *out) {
  if (!cJSON_IsObject(hosts)) return ISO_OK;
  char *text = cJSON_PrintUnformatted(hosts);
  out->hosts = text ? iso_arena_strdup(arena, text) : NULL;
  cJSON_free(text);
  return out->hosts ? ISO_OK : ISO_ERR_MEMORY;
}

/* Quiet: `faults` says what is wrong. */
static iso_status read_incarnation(iso_arena *arena, const char *run, int number, iso_incarnation *out,
                                   iso_string *faults) {
  iso_json *json;
  char name[48];
  snprintf(name, sizeof name, "incarnations/%04d.json", number);
  const char *path = iso_path_join(arena, run, name);
  if (!path) return ISO_ERR_MEMORY;
  iso_status status = iso_record_read(path, name, &json, faults);
  if (status == ISO_OK && !parse_incarnation(json, number, out)) {
    iso_string_printf(faults, "%s: a member is missing or malformed\n", name);
    status = ISO_ERR_FORMAT;
  }
  if (status == ISO_OK) status = keep_hosts(arena, iso_json_get(json, "hosts"), out);
  iso_json_destroy(&json);
  return status;
}

static iso_status refuse_incarnation(const char *run, iso_status status, iso_string *faults) {
  return iso_fail(status,
                  "run folder '%s': %s; restore it from a copy: without it nobody can say which snapshots are void",
                  run, iso_fault_first(faults));
}

iso_status iso_incarnation_examine(iso_arena *arena, const char *run, iso_incarnation **list, size_t *count,
                                   iso_string *faults) {
  int *numbers = NULL;
  size_t number_count;
  iso_status all = ISO_OK;
  *count = 0;
  ISO_TRY(list_numbers(arena, run, &numbers, &number_count));
  *list = iso_arena_alloc(arena, (number_count + 1) * sizeof **list);
  if (!*list) return ISO_ERR_MEMORY;
  for (size_t i = 0; i < number_count; i++) {
    iso_status one = read_incarnation(arena, run, numbers[i], &(*list)[*count], faults);
    if (one == ISO_OK) {
      ++*count;
    } else if (all == ISO_OK || one != ISO_ERR_FORMAT) {
      all = one;
    }
  }
  return all;
}

iso_status iso_incarnation_list(iso_arena *arena, const char *run, iso_incarnation **list, size_t *count) {
  iso_string faults = {0};
  iso_status status = iso_incarnation_examine(arena, run, list, count, &faults);
  if (status != ISO_OK && faults.length) status = refuse_incarnation(run, status, &faults);
  iso_string_fini(&faults);
  return status;
}

iso_status iso_incarnation_newest(const char *run, iso_incarnation *out) {
  int *numbers = NULL;
  size_t count = 0;
  iso_string faults = {0};
  iso_arena *arena = iso_arena_create();
  memset(out, 0, sizeof *out);
  iso_status status = arena ? list_numbers(arena, run, &numbers, &count) : ISO_ERR_MEMORY;
  if (status == ISO_OK && count) status = read_incarnation(arena, run, numbers[count - 1], out, &faults);
  if (status != ISO_OK && faults.length) status = refuse_incarnation(run, status, &faults);
  out->hosts = NULL; /* goes with the arena */
  iso_string_fini(&faults);
  iso_arena_destroy(&arena);
  return status;
}

int64_t iso_incarnation_counts_until(const iso_incarnation *list, size_t count, int64_t number) {
  int64_t last = INT64_MAX;
  for (size_t i = 0; i < count; i++)
    if (list[i].number > number && list[i].begins_after < last) last = list[i].begins_after;
  return last;
}

iso_status iso_incarnation_first_known(const char *run, bool *known) {
  iso_incarnation *list;
  size_t count = 0;
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? iso_incarnation_list(arena, run, &list, &count) : ISO_ERR_MEMORY;
  *known = status == ISO_OK;
  for (size_t i = count; i-- > 0 && *known;) {
    *known = strcmp(list[i].config_digest, list[count - 1].config_digest) == 0;
    if (list[i].begins_after == 0) break;
  }
  iso_arena_destroy(&arena);
  return status;
}

iso_status iso_incarnation_check(const char *run, int number) {
  int *numbers = NULL;
  size_t count = 0;
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? list_numbers(arena, run, &numbers, &count) : ISO_ERR_MEMORY;
  if (status == ISO_OK && count && numbers[count - 1] > number) {
    status =
        iso_fail(ISO_ERR_BUSY,
                 "run '%s': incarnation %d has begun, so incarnation %d must not write any more; stop this process",
                 run, numbers[count - 1], number);
  }
  iso_arena_destroy(&arena);
  return status;
}

/* `attempt`: of this start; two starts of one number on two hosts have different records. */
static void render_incarnation(const iso_incarnation *in, const char *attempt, iso_string *text) {
  const struct {
    const char *key, *value;
  } texts[] = {{"config_digest", in->config_digest}, {"tier", in->tier}, {"build", in->build}, {"attempt", attempt}};
  iso_string_printf(text, "{\n  \"format\": 1,\n  \"number\": %d,\n  \"begins_after\": %lld", in->number,
                    (long long)in->begins_after);
  for (size_t i = 0; i < ISO_COUNT(texts); i++) {
    iso_string_printf(text, ",\n  \"%s\": ", texts[i].key);
    iso_json_quote(text, texts[i].value, strlen(texts[i].value));
  }
  iso_string_printf(text, ",\n  \"optimizer_version\": %d,\n  \"virtual_workers\": %lld,\n  \"ranks\": %lld",
                    in->optimizer_version, (long long)in->virtual_workers, (long long)in->ranks);
  if (in->hosts) iso_string_printf(text, ",\n  \"hosts\": %s", in->hosts);
  iso_record_seal(text);
}

static iso_status publish(iso_arena *arena, const char *run, const iso_incarnation *in) {
  char name[32], attempt[33];
  bool taken;
  iso_string text = {0};
  int *numbers = NULL;
  size_t count;
  if (in->number < 1 || in->begins_after < 0) {
    return iso_fail(ISO_ERR_INTERNAL, "incarnation %d after step %lld of '%s' cannot be", in->number,
                    (long long)in->begins_after, run);
  }
  const char *folder = iso_path_join(arena, run, "incarnations");
  if (!folder) return ISO_ERR_MEMORY;
  ISO_TRY(make_folder(run, folder));
  ISO_TRY(list_numbers(arena, run, &numbers, &count));
  snprintf(name, sizeof name, "%04d.json", in->number);
  const char *path = iso_path_join(arena, folder, name);
  if (!path) return ISO_ERR_MEMORY;
  ISO_TRY(iso_attempt_id(attempt));
  render_incarnation(in, attempt, &text);
  iso_status status = iso_string_failed(&text) ? ISO_ERR_MEMORY : ISO_OK;
  taken = count && numbers[count - 1] >= in->number;
  if (status == ISO_OK && !taken) status = iso_file_publish(path, text.data, text.length, &taken);
  if (status == ISO_OK && taken) {
    status = iso_fail(ISO_ERR_BUSY,
                      "run '%s': incarnation %d or a newer one was begun by another process; stop that one first", run,
                      in->number);
  }
  iso_string_fini(&text);
  return status;
}

iso_status iso_incarnation_publish(const char *run, const iso_incarnation *in) {
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? publish(arena, run, in) : ISO_ERR_MEMORY;
  iso_arena_destroy(&arena);
  return status;
}
