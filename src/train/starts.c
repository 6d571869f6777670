/* SPDX-License-Identifier: Apache-2.0
 *
 * starts.json: what a start knows that no step's line says. How long its beginning took, what it replayed, the peak it
 * measured, and, once its steps are over, which cause took how long on the rank where that was longest; of the newest
 * start also what its ranks' steps and its log were like. What is said of all starts (verdict.c) can so be found again
 * when report.json is gone, and does not fall when another start ends.
 *
 * Invariants
 *  1. A record of all starts, replaced as a whole: when steps begin, and when they are over, before the last
 *     evaluation. A start that is killed leaves its beginning.
 *  2. No state is made from it and no run ends for it: one that is damaged or another run's goes to aside/ and begins
 *     anew, one that cannot be written is said.
 */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/health.h"
#include "train/vitals/vitals.h"

static const double MOST_S = 1e9, MOST_GFLOPS = 1e12;

/* ---- reading ---- */

/* A number of what is there, from 0 to `most`; NAN: none. */
static double number_of(const iso_json *object, const char *name, double most) {
  const iso_json *item = iso_json_get(object, name);
  return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= most ? item->valuedouble : NAN;
}

/* As it may be printed on a terminal, within a line. */
static void copy_line(const iso_json *json, const char *name, char *out, size_t capacity) {
  iso_json_copy_text(json, name, out, capacity);
  iso_text_tame(out, strlen(out));
  for (; *out; out++)
    if (*out == '\n') *out = '?';
}

static void read_cause(const iso_json *json, iso_start_record *record) {
  char name[32];
  iso_json_copy_text(json, "cause", name, sizeof name);
  for (int c = 0; c < ISO_CAUSES; c++) {
    iso_start_cause *cause = &record->causes[c];
    if (strcmp(name, iso_cause_names[c]) != 0) continue;
    const double seconds = number_of(json, "seconds", MOST_S), rank = number_of(json, "rank", ISO_MOST_RANKS);
    if (!isfinite(seconds) || !isfinite(rank)) return;
    cause->seconds = seconds;
    cause->rank = (int)rank;
    cause->held_up = cJSON_IsTrue(iso_json_get(json, "held_up"));
    copy_line(json, "host", cause->host, sizeof cause->host);
    copy_line(json, "detail", cause->detail, sizeof cause->detail);
  }
}

static bool read_start(const iso_json *json, iso_starts *starts) {
  const double number = number_of(json, "incarnation", 1e9);
  if (!(number >= 1) || iso_starts_find(starts, (int64_t)number)) return true;
  iso_start_record *record = iso_starts_add(starts, (int64_t)number);
  if (!record) return false;
  record->started_s = number_of(json, "started_s", MOST_S);
  record->replay_s = number_of(json, "replay_s", MOST_S);
  record->peak_gflops = number_of(json, "peak_gflops", MOST_GFLOPS);
  const double replayed = number_of(json, "replayed_steps", 9e15);
  record->replayed_steps = isfinite(replayed) ? (int64_t)replayed : 0;
  const iso_json *causes = iso_json_get(json, "causes");
  record->ended = cJSON_IsArray(causes);
  for (const iso_json *cause = record->ended ? causes->child : NULL; cause; cause = cause->next)
    read_cause(cause, record);
  return true;
}

static void put_item(const iso_json *item, iso_string *out) {
  char *text = item ? cJSON_PrintUnformatted(item) : NULL;
  if (text) iso_string_append(out, text, strlen(text));
  cJSON_free(text);
}

/* An object, or a list of objects with each on a line; what is neither is left out. The same text whether it was just
 * made or read again. */
static void keep(const iso_json *item, iso_string *out) {
  const iso_json *one;
  out->length = 0;
  if (cJSON_IsObject(item)) put_item(item, out);
  if (!cJSON_IsArray(item)) return;
  iso_string_append(out, "[", 1);
  cJSON_ArrayForEach(one, item) {
    if (!cJSON_IsObject(one)) continue;
    iso_string_printf(out, "%s\n    ", out->length > 1 ? "," : "");
    put_item(one, out);
  }
  iso_string_append(out, "]", 1);
}

static void keep_text(const iso_string *text, iso_string *out) {
  iso_json *json = NULL;
  out->length = 0;
  if (text->length && iso_json_parse(text->data, text->length, "starts.json", &json) == ISO_OK) keep(json, out);
  iso_json_destroy(&json);
}

/* NULL where there is none. FORMAT with its line in `faults`: it is damaged, has no CRC, or is another run's. */
static iso_status open_record(const char *run, const char *uuid, iso_json **json, iso_string *faults) {
  iso_string path = {0};
  bool exists = false;
  char of[37] = "";
  *json = NULL;
  iso_string_printf(&path, "%s/starts.json", run);
  iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : iso_path_probe(path.data, &exists);
  if (status == ISO_OK && exists) status = iso_record_read(path.data, "starts.json", json, faults);
  if (*json && (!iso_record_text(*json, "run", of, sizeof of) || strcmp(of, uuid) != 0)) {
    iso_string_printf(faults, "starts.json: it is of run '%s', not of '%s'\n", of, uuid);
    iso_json_destroy(json);
    status = ISO_ERR_FORMAT;
  }
  iso_string_fini(&path);
  return status;
}

iso_status iso_starts_verify(const char *run, const char *uuid, iso_string *faults) {
  iso_json *json;
  const iso_status status = open_record(run, uuid, &json, faults);
  iso_json_destroy(&json);
  return status;
}

iso_status iso_starts_read(const char *run, const char *uuid, iso_starts *starts) {
  iso_string faults = {0};
  iso_json *json;
  char moved_to[256];
  *starts = (iso_starts){.last_step = -1};
  iso_status status = open_record(run, uuid, &json, &faults);
  if (status == ISO_ERR_FORMAT) {
    status = iso_run_set_aside(run, "starts.json", moved_to);
    iso_warn("%s/%s; it is set aside: how long earlier starts took to begin is not known, their causes are those of "
             "rank 0's lines",
             run, iso_fault_first(&faults));
  } else if (status != ISO_OK) {
    iso_warn("%s/starts.json cannot be read (%s); it stays as it is, and what this start knows is not added", run,
             faults.length ? iso_fault_first(&faults) : iso_last_error());
  }
  starts->unread = status != ISO_OK;
  const iso_json *list = iso_json_get(json, "starts");
  for (const iso_json *one = list ? list->child : NULL; one && status == ISO_OK; one = one->next)
    if (!read_start(one, starts)) status = ISO_ERR_MEMORY;
  const double step = number_of(json, "last_step", 9e15);
  if (isfinite(step)) starts->last_step = (int64_t)step;
  keep(iso_json_get(json, "ranks"), &starts->ranks);
  keep(iso_json_get(json, "log"), &starts->log);
  iso_json_destroy(&json);
  iso_string_fini(&faults);
  return status;
}

void iso_starts_fini(iso_starts *starts) {
  free(starts->list);
  iso_string_fini(&starts->ranks);
  iso_string_fini(&starts->log);
  *starts = (iso_starts){.last_step = -1};
}

const iso_start_record *iso_starts_find(const iso_starts *starts, int64_t number) {
  for (size_t i = starts->count; i-- > 0;)
    if (starts->list[i].number == number) return &starts->list[i];
  return NULL;
}

iso_start_record *iso_starts_add(iso_starts *starts, int64_t number) {
  iso_start_record *list = realloc(starts->list, (starts->count + 1) * sizeof *list);
  if (!list) return NULL;
  starts->list = list;
  list[starts->count] = (iso_start_record){.number = number, .started_s = NAN, .replay_s = NAN, .peak_gflops = NAN};
  return &list[starts->count++];
}

/* ---- writing ---- */

static void put_number(iso_string *out, const char *name, double value) {
  iso_string_printf(out, ", \"%s\": ", name);
  iso_json_number(out, value, 9);
}

static void put_cause(const iso_start_cause *cause, const char *name, bool first, iso_string *out) {
  iso_string_printf(out, "%s\n      {\"cause\": \"%s\"", first ? "" : ",", name);
  put_number(out, "seconds", cause->seconds);
  iso_string_printf(out, ", \"rank\": %d, \"held_up\": %s, \"host\": ", cause->rank, cause->held_up ? "true" : "false");
  iso_json_quote(out, cause->host, strlen(cause->host));
  iso_string_printf(out, ", \"detail\": ");
  iso_json_quote(out, cause->detail, strlen(cause->detail));
  iso_string_append(out, "}", 1);
}

static void put_start(const iso_start_record *record, iso_string *out) {
  bool first = true;
  iso_string_printf(out, "    {\"incarnation\": %lld", (long long)record->number);
  put_number(out, "started_s", record->started_s);
  iso_string_printf(out, ", \"replayed_steps\": %lld", (long long)record->replayed_steps);
  put_number(out, "replay_s", record->replay_s);
  put_number(out, "peak_gflops", record->peak_gflops);
  iso_string_printf(out, ", \"causes\": %s", record->ended ? "[" : "null");
  for (int c = 0; record->ended && c < ISO_CAUSES; c++) {
    if (!(record->causes[c].seconds > 0)) continue;
    put_cause(&record->causes[c], iso_cause_names[c], first, out);
    first = false;
  }
  iso_string_printf(out, record->ended ? "]}" : "}");
}

static void write_record(const iso_run *of, const iso_starts *starts) {
  const char *run = of->config.run;
  if (starts->unread || iso_incarnation_check(run, of->incarnation.number) != ISO_OK) return; /* another process's */
  iso_string text = {0}, path = {0};
  iso_string_printf(&path, "%s/starts.json", run);
  iso_string_printf(&text, "{\n  \"run\": \"%s\",\n  \"starts\": [\n", of->uuid);
  for (size_t i = 0; i < starts->count; i++) {
    if (i) iso_string_printf(&text, ",\n");
    put_start(&starts->list[i], &text);
  }
  iso_string_printf(&text, "]");
  if (starts->last_step >= 0) iso_string_printf(&text, ",\n  \"last_step\": %lld", (long long)starts->last_step);
  if (starts->log.length) iso_string_printf(&text, ",\n  \"log\": %s", starts->log.data);
  if (starts->ranks.length) iso_string_printf(&text, ",\n  \"ranks\": %s", starts->ranks.data);
  iso_record_seal(&text);
  const bool memory = iso_string_failed(&text) || iso_string_failed(&path);
  if (memory || iso_file_replace(path.data, text.data, text.length) != ISO_OK)
    iso_warn("%s: starts.json is not written%s; what this start knows of causes is in its report only", run,
             memory ? ": no memory" : "");
  iso_string_fini(&text);
  iso_string_fini(&path);
}

/* ---- what a start says at its end ---- */

/* Of its own lines the sum of a part, which are rank 0's. */
static double sum_of(const iso_history *h, int64_t number, const char *part) {
  const double *of = iso_history_values(h, "incarnation"), *values = iso_history_values(h, part);
  double sum = 0;
  for (int64_t i = 0; i < h->steps; i++)
    if (of[i] == (double)number && isfinite(values[i])) sum += values[i];
  return sum;
}

const iso_budget_part iso_cause_parts[ISO_CAUSES] = {[ISO_CAUSE_SOURCE] = ISO_PART_DATA,
                                                     [ISO_CAUSE_PREEMPTED] = ISO_PART_PREEMPTED,
                                                     [ISO_CAUSE_DISK] = ISO_PART_STORAGE,
                                                     [ISO_CAUSE_OTHER] = ISO_PART_OTHER,
                                                     [ISO_CAUSE_RANK] = ISO_PART_REDUCE};

/* Of waiting for other ranks: who waited, and for whom. The rank is the one that is waited for. */
static void name_rank(const iso_health *health, iso_start_cause *cause) {
  const int by = iso_watch_held_up_by(iso_health_watch(health));
  const int length = snprintf(cause->detail, sizeof cause->detail, "rank %d waited for other ranks", cause->rank);
  if (by < 0) return;
  cause->held_up = true;
  snprintf(cause->detail + length, sizeof cause->detail - (size_t)length, "%s rank %d on host %.128s",
           by == cause->rank ? "; others waited most, for" : ", most for", by, iso_health_host(health, by));
  cause->rank = by;
}

/* Windows begin behind the first step, which only the lines have; and where the machine says why rank 0 waited, that
 * cause has these seconds, not the part. */
void iso_start_cause_find(const iso_watch *watch, iso_cause c, double lines_s, iso_start_cause *out) {
  const iso_cause_total *total = iso_watch_cause(watch, c);
  const iso_budget_part part = iso_cause_parts[c];
  *out = (iso_start_cause){.seconds = total->seconds, .rank = total->rank};
  snprintf(out->detail, sizeof out->detail, "%s", total->detail);
  if (part == ISO_PART_WALL) return;
  if (c == ISO_CAUSE_OTHER || c == ISO_CAUSE_RANK) {
    if (lines_s > out->seconds) out->seconds = lines_s, out->rank = 0;
  } else if (out->rank == 0) {
    const double missed = lines_s - iso_watch_tally(watch, 0, part)->sum;
    if (missed > 0) out->seconds += missed;
  }
}

static void put_ranks(const iso_health *health, iso_string *out) {
  const iso_watch *watch = iso_health_watch(health);
  iso_string_append(out, "[", 1);
  for (int r = 0; r < iso_health_ranks(health); r++) {
    iso_string_printf(out, "%s\n    {", r ? "," : "");
    iso_health_put_rank(health, r, out);
    iso_string_printf(out, ", \"steps\": %lld", (long long)iso_watch_tally(watch, r, ISO_PART_WALL)->count);
    for (int p = 0; p < ISO_PARTS; p++) {
      iso_string_printf(out, ",\n     \"%s\": ", iso_budget_names[p]);
      iso_tally_print(iso_watch_tally(watch, r, (iso_budget_part)p), out);
    }
    iso_string_append(out, "}", 1);
  }
  iso_string_append(out, "]", 1);
}

void iso_starts_begin(iso_starts *starts, const iso_run *run, double started_s, double peak_gflops) {
  iso_start_record *record = iso_starts_add(starts, run->incarnation.number);
  if (!record) return;
  record->started_s = started_s;
  record->replay_s = run->replay_s;
  record->replayed_steps = run->replayed_steps;
  record->peak_gflops = peak_gflops;
  starts->last_step = -1;
  starts->ranks.length = starts->log.length = 0;
  write_record(run, starts);
}

void iso_starts_end(iso_starts *starts, const iso_run *run, const iso_health *health, const iso_history *history,
                    double peak_gflops) {
  const int64_t number = run->incarnation.number;
  iso_start_record *record = starts->count ? &starts->list[starts->count - 1] : NULL;
  iso_string ranks = {0}, log = {0};
  if (!record || record->number != number) return; /* it never came to a step */
  record->ended = true;
  record->peak_gflops = peak_gflops;
  for (int c = 0; c < ISO_CAUSE_UNKNOWN; c++) {
    iso_start_cause *cause = &record->causes[c];
    const iso_budget_part part = iso_cause_parts[c];
    const double lines_s = part == ISO_PART_WALL ? 0 : sum_of(history, number, iso_budget_names[part]);
    iso_start_cause_find(iso_health_watch(health), (iso_cause)c, lines_s, cause);
    if (c == ISO_CAUSE_RANK && cause->seconds > 0) name_rank(health, cause);
    snprintf(cause->host, sizeof cause->host, "%s", iso_health_host(health, cause->rank));
  }
  starts->last_step = run->at.step;
  put_ranks(health, &ranks);
  keep_text(&ranks, &starts->ranks);
  iso_run_log_record(run, &log);
  keep_text(&log, &starts->log);
  iso_string_fini(&ranks);
  iso_string_fini(&log);
  write_record(run, starts);
}
