/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run says of itself at its end, of all its starts: whether it was level, how much of its time was useful, which
 * steps were taken twice, and where the rest of the time went (causes.c). metrics.jsonl has every step that counts; the
 * lines of those that a later start took again lie in aside/; what no line has, each start leaves in starts.json
 * (starts.c).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

static const double SPREAD_MOST = 1.05, SPEED_LEAST = 0.99;
static const double LISTED = 5e-4; /* of the whole time, from which on a cause is listed */
static const double MOST_S = 1e9;  /* that a step can take */
enum { SHOWN = 5 };

/* ---- steps that were taken again ---- */

typedef struct again { /* of one start */
  int64_t number, steps, newest_durable;
} again;

typedef struct again_lines {
  again *starts;
  size_t count;
  int64_t steps, durable;
  double seconds;
} again_lines;

static double number_in(const char *line, const char *end, const char *key) {
  const char *at = memmem(line, (size_t)(end - line), key, strlen(key));
  return at ? strtod(at + strlen(key), NULL) : NAN;
}

static again *again_of(again_lines *a, double number) {
  for (size_t i = 0; i < a->count; i++)
    if ((double)a->starts[i].number == number) return &a->starts[i];
  return NULL;
}

typedef void each_line(again_lines *a, const char *line, const char *end, int64_t last_step);

static void note_durable(again_lines *a, const char *line, const char *end, int64_t last_step) {
  (void)last_step;
  again *start = again_of(a, number_in(line, end, "\"incarnation\": "));
  const double durable = number_in(line, end, "\"durable_step\": ");
  if (start && durable > (double)start->newest_durable && durable < 9e15) start->newest_durable = (int64_t)durable;
}

static void note_again(again_lines *a, const char *line, const char *end, int64_t last_step) {
  again *start = again_of(a, number_in(line, end, "\"incarnation\": "));
  const double step = number_in(line, end, "{\"step\": "), wall = number_in(line, end, "\"wall_s\": ");
  if (!start || !(step <= (double)last_step)) return;
  start->steps++;
  a->steps++;
  if (step <= (double)start->newest_durable) a->durable++;
  if (wall > 0 && wall <= MOST_S) a->seconds += wall;
}

static void walk(again_lines *a, const char *text, size_t bytes, int64_t last_step, each_line *each) {
  char cause[96];
  for (const char *line = text, *end; (end = memchr(line, '\n', (size_t)(text + bytes - line))); line = end + 1)
    if (iso_record_check_line(line, (size_t)(end - line), cause) == ISO_SEAL_GOOD) each(a, line, end, last_step);
}

/* All lines of metrics that were cut off. */
static void walk_aside(again_lines *a, iso_arena *arena, const char *run, int64_t last_step, each_line *each) {
  const char *folder = iso_path_join(arena, run, "aside");
  char **names;
  size_t count, bytes;
  char *text;
  if (!folder || !iso_path_is_folder(folder) || iso_path_list(arena, folder, &names, &count) != ISO_OK) return;
  for (size_t i = 0; i < count; i++) {
    if (strncmp(names[i], "metrics-", 8) != 0) continue;
    const char *path = iso_path_join(arena, folder, names[i]);
    if (!path || iso_file_read(path, &text, &bytes) != ISO_OK) continue;
    walk(a, text, bytes, last_step, each);
    free(text);
  }
}

static void find_again(again_lines *a, iso_arena *arena, const iso_verdict_input *of, const iso_incarnation *list,
                       size_t count) {
  const iso_history *h = of->history;
  a->starts = count ? calloc(count, sizeof *a->starts) : NULL;
  if (!a->starts) return;
  a->count = count;
  for (size_t i = 0; i < count; i++) a->starts[i].number = list[i].number;
  if (h->text) walk(a, h->text, strlen(h->text), of->last_step, note_durable);
  walk_aside(a, arena, of->run, of->last_step, note_durable);
  walk_aside(a, arena, of->run, of->last_step, note_again);
}

/* ---- the verdict ---- */

typedef struct verdict {
  const iso_verdict_input *of;
  iso_incarnation *list;
  size_t count;
  again_lines again;
  iso_cause_item causes[ISO_CAUSES + 1];
  int cause_count;
  double wall_s, spread, speed, useful;
  double whole_s;    /* of steps, those that were run again, and the beginnings of starts, as far as they are known */
  const char *lacks; /* in words, what the whole time lacks; NULL: nothing */
  int64_t open_steps;
} verdict;

/* Whether a start took steps, of those that count or of those that were run again. */
static bool took_steps(const verdict *v, size_t i) {
  if (v->again.count && v->again.starts[i].steps > 0) return true;
  const double *of = iso_history_values(v->of->history, "incarnation");
  for (int64_t s = 0; s < v->of->history->steps; s++)
    if (of[s] == (double)v->list[i].number) return true;
  return false;
}

static void add_beginnings(verdict *v) {
  for (size_t i = 0; i < v->count; i++) {
    const iso_start_record *record = iso_starts_find(v->of->starts, v->list[i].number);
    if (record && isfinite(record->started_s))
      v->whole_s += record->started_s;
    else
      v->lacks = took_steps(v, i) ? "starts.json lacks a start" : v->lacks;
  }
}

/* A start that is killed may leave a step or two that are durable and have no line. */
static void look_for_gaps(verdict *v) {
  const int64_t steps = v->of->history->steps, last = v->of->last_step;
  const double few = 0.01 * (double)last + 2 * (double)v->count;
  if ((double)(last - steps) > few) v->lacks = "metrics.jsonl lacks steps";
}

/* Steps of start i that count: up to where a later one began, which may lie before it. */
static int64_t steps_of(const verdict *v, size_t i) {
  int64_t until = v->of->last_step;
  for (size_t k = i + 1; k < v->count; k++)
    if (v->list[k].begins_after < until) until = v->list[k].begins_after;
  return until > v->list[i].begins_after ? until - v->list[i].begins_after : 0;
}

static double share_of(const verdict *v, double seconds) {
  return v->whole_s > 0 && !v->lacks ? seconds / v->whole_s : NAN;
}

static void judge(verdict *v) {
  const iso_history *h = v->of->history;
  const iso_vital_spread wall = iso_history_spread(h, "wall_s");
  const double *walls = iso_history_values(h, "wall_s"), *rest = iso_history_values(h, "unaccounted_s");
  v->wall_s = wall.sum;
  v->spread = wall.p50 > 0 ? wall.p99 / wall.p50 : NAN;
  v->speed = iso_history_last_over_first(h);
  for (int64_t i = 0; i < h->steps; i++) v->open_steps += fabs(rest[i]) > 0.01 * walls[i];
  const double useful_s = iso_history_spread(h, "compute_s").sum - iso_history_spread(h, "preempted_s").sum;
  v->whole_s = v->wall_s + v->again.seconds;
  add_beginnings(v);
  look_for_gaps(v);
  v->useful = share_of(v, useful_s);
  if (!(v->useful >= 0 && v->useful <= 1)) v->useful = NAN; /* lines that no run writes */
  v->cause_count = iso_causes_list(h, v->of->starts, v->again.steps, v->again.seconds, v->causes);
}

static bool is_level(const verdict *v) {
  return v->spread <= SPREAD_MOST && !(v->speed < SPEED_LEAST);
}

static void put_number(iso_string *out, const char *name, double value) {
  iso_string_printf(out, "\"%s\": ", name);
  iso_json_number(out, value, 9);
}

static void put_budget(const verdict *v, iso_string *out) {
  iso_string_printf(out, ",\n  \"budget\": {");
  for (int p = 0; p < ISO_PARTS; p++) {
    const iso_vital_spread s = iso_history_spread(v->of->history, iso_budget_names[p]);
    iso_string_printf(out, "%s\n    \"%s\": {\"sum\": %.9g, ", p ? "," : "", iso_budget_names[p], s.sum);
    put_number(out, "share", v->wall_s > 0 ? s.sum / v->wall_s : NAN);
    iso_string_printf(out, ", \"p50\": %.9g, \"p95\": %.9g, \"p99\": %.9g, ", s.p50, s.p95, s.p99);
    iso_string_printf(out, "\"mean\": %.9g, \"std\": %.9g, \"most\": %.9g}", s.mean, s.std, s.most);
  }
  iso_string_printf(out, "},\n  \"open_steps\": %lld", (long long)v->open_steps);
}

/* What the newest start knew of its ranks; nothing when it did not live to say it. */
static void put_ranks(const verdict *v, iso_string *out) {
  const iso_starts *starts = v->of->starts;
  if (starts->last_step != v->of->last_step || !starts->ranks.length) return;
  iso_string_printf(out, ",\n  \"ranks\": %s", starts->ranks.data);
}

static bool is_listed(const verdict *v, const iso_cause_item *one) {
  return one->seconds > 0 && one->seconds >= LISTED * v->whole_s;
}

static void put_causes(const verdict *v, iso_string *out) {
  int listed = 0;
  iso_string_printf(out, ",\n  \"causes\": [");
  for (int i = 0; i < v->cause_count; i++) {
    const iso_cause_item *one = &v->causes[i];
    if (!is_listed(v, one)) continue;
    iso_string_printf(out, "%s\n    {\"cause\": \"%s\", \"seconds\": %.6f, ", listed++ ? "," : "", one->name,
                      one->seconds);
    iso_string_printf(out, "\"share\": ");
    iso_json_number(out, share_of(v, one->seconds), 6);
    iso_string_printf(out, ", \"rank\": ");
    iso_json_number(out, one->rank < 0 ? NAN : one->rank, 9);
    iso_string_printf(out, ", \"host\": ");
    if (one->host[0])
      iso_json_quote(out, one->host, strlen(one->host));
    else
      iso_string_printf(out, "null");
    iso_string_printf(out, ", \"detail\": ");
    iso_json_quote(out, one->detail, strlen(one->detail));
    iso_string_append(out, "}", 1);
  }
  iso_string_append(out, "]", 1);
}

static void put_breaches(const verdict *v, iso_string *out) {
  char *text = NULL;
  size_t bytes = 0;
  int64_t counts[ISO_SIGNS] = {0};
  if (iso_lines_read(v->of->run, "breaches", &text, &bytes, NULL) != ISO_OK) text = NULL;
  for (const char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1)
    for (int i = 0; i < ISO_SIGNS; i++) {
      char key[64];
      snprintf(key, sizeof key, "\"event\": \"begin\", \"sign\": \"%s\"", iso_sign_names[i]);
      counts[i] += memmem(line, (size_t)(end - line), key, strlen(key)) != NULL;
    }
  free(text);
  iso_string_printf(out, ",\n  \"breaches\": {");
  for (int i = 0; i < ISO_SIGNS; i++)
    iso_string_printf(out, "%s\"%s\": %lld", i ? ", " : "", iso_sign_names[i], (long long)counts[i]);
  iso_string_append(out, "}", 1);
}

static void put_starts(const verdict *v, iso_string *out) {
  iso_string_printf(out, ",\n  \"starts\": [");
  for (size_t i = 0; i < v->count; i++) {
    iso_string_printf(
        out, "%s\n    {\"incarnation\": %d, \"begins_after\": %lld, \"steps\": %lld, \"steps_run_again\": %lld}",
        i ? "," : "", v->list[i].number, (long long)v->list[i].begins_after, (long long)steps_of(v, i),
        (long long)(v->again.count ? v->again.starts[i].steps : 0));
  }
  iso_string_printf(out, "],\n  \"steps_run_again\": %lld,\n  \"durable_steps_run_again\": %lld",
                    (long long)v->again.steps, (long long)v->again.durable);
}

static void put_cause_words(const verdict *v, const iso_cause_item *one, bool first, iso_string *out) {
  const char *between = " (";
  iso_string_printf(out, "%s%s %.2f s", first ? "# where the rest went: " : ", ", one->name, one->seconds);
  if (!v->lacks) {
    iso_string_printf(out, " (%.1f%%", 100 * share_of(v, one->seconds));
    between = ", ";
  }
  const bool placed = (one->held_up || one->rank) && one->host[0];
  if (placed)
    iso_string_printf(out, "%s%srank %d on %s", between, one->held_up ? "waiting for " : "", one->rank, one->host);
  if (placed || !v->lacks) iso_string_append(out, ")", 1);
}

static void put_lines(const verdict *v, iso_string *out) {
  int shown = 0;
  iso_string_printf(out, "# %s: P99 of the steps is %.3f times the median (bound: %.2f)",
                    is_level(v) ? "level" : "not level", v->spread, SPREAD_MOST);
  if (isfinite(v->speed))
    iso_string_printf(out, ", the last tenth runs at %.3f of the first's speed (bound: %.2f)", v->speed, SPEED_LEAST);
  if (isfinite(v->useful)) iso_string_printf(out, "; %.1f%% of the time was useful compute", 100 * v->useful);
  if (v->lacks) iso_string_printf(out, "; %s, shares of the whole time are not known", v->lacks);
  iso_string_printf(out, "%s %lld step%s run again\n", isfinite(v->useful) ? "," : ";", (long long)v->again.steps,
                    v->again.steps == 1 ? " was" : "s were");
  for (int i = 0; i < v->cause_count && shown < SHOWN; i++) {
    const iso_cause_item *one = &v->causes[i];
    if (!is_listed(v, one)) continue;
    put_cause_words(v, one, shown++ == 0, out);
  }
  if (shown) iso_string_printf(out, "\n");
}

iso_status iso_verdict_find(const iso_verdict_input *of, iso_verdict *out) {
  verdict v = {.of = of};
  *out = (iso_verdict){0};
  if (of->history->steps == 0) return ISO_OK;
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? iso_incarnation_list(arena, of->run, &v.list, &v.count) : ISO_ERR_MEMORY;
  if (status == ISO_OK) {
    iso_string *members = &out->members;
    find_again(&v.again, arena, of, v.list, v.count);
    judge(&v);
    iso_string_printf(members, ",\n  \"level\": %s,\n  \"flatness\": {", is_level(&v) ? "true" : "false");
    put_number(members, "p99_over_median", v.spread);
    iso_string_printf(members, ", ");
    put_number(members, "last_over_first_tenth", v.speed);
    iso_string_printf(members, ", \"steps\": %lld},\n  ", (long long)of->history->steps);
    put_number(members, "effective_training_share", v.useful);
    put_budget(&v, members);
    put_ranks(&v, members);
    put_causes(&v, members);
    put_breaches(&v, members);
    put_starts(&v, members);
    put_lines(&v, &out->lines);
    if (iso_string_failed(members) || iso_string_failed(&out->lines)) status = ISO_ERR_MEMORY;
  }
  free(v.again.starts);
  iso_arena_destroy(&arena);
  return status;
}

void iso_verdict_fini(iso_verdict *v) {
  iso_string_fini(&v->members);
  iso_string_fini(&v->lines);
}
