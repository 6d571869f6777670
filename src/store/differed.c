/* SPDX-License-Identifier: Apache-2.0
 *
 * differed-%04d.json: incarnation %04d ended since the weights of its ranks were not the same. It says behind which
 * step they last were, so that the next start goes back there by itself.
 *
 * Invariants
 *  1. A record per incarnation, published once without replacing: whoever comes second, or late, changes nothing.
 *  2. It counts while its incarnation is the newest. The start that goes back publishes the next one, and that is what
 *     makes it count no more: a start that is killed before goes back again, one behind it does not.
 *  3. A full disk does not keep it from being written: its block is reserved before the first step. A reserve that a
 *     kill leaves is an unfinished write as any other.
 *  4. One that is damaged is not passed over: nobody can say then which steps are sound.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RESERVE_BYTES = 4096 };

void iso_differed_name(int incarnation, char name[32]) {
  snprintf(name, 32, "differed-%04d.json", incarnation);
}

/* 0: it is no such record's name. */
static int number_in(const char *name) {
  char again[32];
  if (strncmp(name, "differed-", 9) != 0) return 0;
  const int number = atoi(name + 9);
  iso_differed_name(number, again);
  return number >= 1 && strcmp(again, name) == 0 ? number : 0;
}

/* ---- writing ---- */

static void render(const char *uuid, const iso_differed *d, iso_string *text) {
  iso_string_printf(text,
                    "{\n  \"format\": 1,\n  \"uuid\": \"%s\",\n  \"incarnation\": %d,\n  \"step\": %lld,\n  \"rank\": "
                    "%lld,\n  \"same_step\": %lld,\n  \"logged\": %s",
                    uuid, d->incarnation, (long long)d->step, (long long)d->rank, (long long)d->same_step,
                    d->logged ? "true" : "false");
  iso_record_seal(text);
}

iso_status iso_differed_reserve(const char *run, int incarnation, char path[ISO_SNAPSHOT_PATH]) {
  char attempt[33], name[32], blank[RESERVE_BYTES];
  iso_sink sink;
  iso_differed_name(incarnation, name);
  ISO_TRY(iso_attempt_id(attempt));
  const int length = snprintf(path, ISO_SNAPSHOT_PATH, "%s/%s.%s.tmp", run, name, attempt);
  if (length >= ISO_SNAPSHOT_PATH) {
    path[0] = 0; /* what it is for may still be written */
    return ISO_OK;
  }
  memset(blank, ' ', sizeof blank);
  iso_status status = iso_sink_open(&sink, path);
  if (status == ISO_OK) {
    status = iso_sink_write(&sink, blank, sizeof blank);
    if (status == ISO_OK) status = iso_sink_commit(&sink);
    if (status != ISO_OK) iso_sink_abandon(&sink);
  }
  if (status != ISO_OK) path[0] = 0;
  return status;
}

void iso_differed_release(char path[ISO_SNAPSHOT_PATH]) {
  if (path[0]) (void)iso_os.unlink(path);
  path[0] = 0;
}

/* Into the blocks that are there, which then take the record's name. */
static iso_status use_reserve(const char *reserve, const char *path, const iso_string *text) {
  int fd;
  do fd = iso_os.open(reserve, O_WRONLY | O_CLOEXEC, 0);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return iso_os_fail("open", reserve);
  iso_status status = iso_file_pwrite(fd, reserve, text->data, text->length, 0);
  if (status == ISO_OK && iso_os.ftruncate(fd, (int64_t)text->length) != 0) status = iso_os_fail("cut", reserve);
  if (status == ISO_OK && iso_os.fsync(fd) != 0) status = iso_os_fail("sync", reserve);
  (void)iso_os.close(fd);
  if (status != ISO_OK) return status;
  if (iso_os.rename_noreplace(reserve, path) != 0 && errno != EEXIST) return iso_os_fail("publish", path);
  return iso_parent_sync(path);
}

iso_status iso_differed_write(const char *run, const char *uuid, const iso_differed *d,
                              char reserve[ISO_SNAPSHOT_PATH]) {
  char name[32];
  bool taken;
  iso_string text = {0}, path = {0};
  iso_differed_name(d->incarnation, name);
  iso_string_printf(&path, "%s/%s", run, name);
  render(uuid, d, &text);
  iso_status status = iso_string_failed(&text) || iso_string_failed(&path) ? ISO_ERR_MEMORY : ISO_ERR_SPACE;
  if (status != ISO_ERR_MEMORY && reserve[0]) status = use_reserve(reserve, path.data, &text);
  if (status != ISO_OK && status != ISO_ERR_MEMORY)
    status = iso_file_publish(path.data, text.data, text.length, &taken);
  iso_differed_release(reserve);
  iso_string_fini(&text);
  iso_string_fini(&path);
  return status;
}

/* ---- reading ---- */

static bool parse(const iso_json *json, int incarnation, iso_differed *out) {
  int64_t format, own;
  const bool good = iso_record_int(json, "format", 1, &format) && format == 1 &&
                    iso_record_int(json, "incarnation", 1, &own) && own == incarnation &&
                    iso_record_int(json, "step", 1, &out->step) && iso_record_int(json, "rank", 0, &out->rank) &&
                    iso_record_int(json, "same_step", 0, &out->same_step) && out->same_step < out->step &&
                    iso_json_bool(json, "differed", "logged", true, &out->logged) == ISO_OK;
  out->incarnation = incarnation;
  return good;
}

/* Quiet: `faults` says what is wrong. foreign: it is another run's. */
static iso_status read_one(const char *run, const char *uuid, int incarnation, iso_differed *out, bool *foreign,
                           iso_string *faults) {
  char name[32], of[37];
  iso_string path = {0};
  iso_json *json = NULL;
  iso_differed_name(incarnation, name);
  iso_string_printf(&path, "%s/%s", run, name);
  *foreign = false;
  iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : iso_record_read(path.data, name, &json, faults);
  if (status == ISO_OK && iso_record_text(json, "uuid", of, sizeof of) && strcmp(of, uuid) != 0) {
    iso_string_printf(faults, "%s: it is of run '%s', not of '%s'\n", name, of, uuid);
    *foreign = true;
    status = ISO_ERR_FORMAT;
  } else if (status == ISO_OK && !parse(json, incarnation, out)) {
    iso_string_printf(faults, "%s: a member is missing or malformed\n", name);
    status = ISO_ERR_FORMAT;
  }
  iso_json_destroy(&json);
  iso_string_fini(&path);
  return status;
}

iso_status iso_differed_find(const char *run, const char *uuid, int newest, iso_differed *out, bool *found) {
  char name[32];
  bool foreign;
  iso_string path = {0}, faults = {0};
  *found = false;
  iso_differed_name(newest, name);
  iso_string_printf(&path, "%s/%s", run, name);
  iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : iso_path_probe(path.data, found);
  iso_string_fini(&path);
  if (status != ISO_OK || !*found) return status;
  status = read_one(run, uuid, newest, out, &foreign, &faults);
  *found = status == ISO_OK;
  if (foreign) {
    iso_warn("%s/%s; it does not count", run, iso_fault_first(&faults));
    status = ISO_OK;
  } else if (status != ISO_OK) {
    status =
        iso_fail(status,
                 "%s/%s; the weights of ranks differed, and it said behind which step they were last the same: say "
                 "it with --from-step S (the error that ended the last start names it)",
                 run, iso_fault_first(&faults));
  }
  iso_string_fini(&faults);
  return status;
}

iso_status iso_differed_list(iso_arena *arena, const char *run, const char *uuid, iso_differed **list, size_t *count,
                             iso_string *faults) {
  char **names;
  size_t name_count;
  iso_status all = ISO_OK;
  *count = 0;
  ISO_TRY(iso_path_list(arena, run, &names, &name_count));
  *list = iso_arena_alloc(arena, (name_count + 1) * sizeof **list);
  if (!*list) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to list what differed", run);
  for (size_t i = 0; i < name_count; i++) {
    const int number = number_in(names[i]);
    bool foreign;
    if (!number) continue;
    const iso_status one = read_one(run, uuid, number, &(*list)[*count], &foreign, faults);
    *count += one == ISO_OK;
    if (one != ISO_OK) all = one;
  }
  return all;
}

int iso_differed_pending(const char *run) {
  char uuid[37];
  bool exists = false, found = false;
  iso_incarnation newest;
  iso_differed d;
  const bool quiet = iso_log_quiet(true); /* what is wrong is said by the start that comes */
  if (iso_run_folder_read(run, uuid, &exists) == ISO_OK && exists && iso_incarnation_newest(run, &newest) == ISO_OK &&
      newest.number && iso_differed_find(run, uuid, newest.number, &d, &found) != ISO_OK)
    found = false;
  iso_log_quiet(quiet);
  return found ? newest.number : 0;
}
