/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run says of itself at its end, of all its starts: whether it was level, how much of its time was useful, which
 * steps were taken twice, and where the rest of the time went. metrics.jsonl has every step that counts; the lines of
 * those that a later start took again lie in aside/; causes that only the machine knows are of this start.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

static const double SPREAD_MOST = 1.05, SPEED_LEAST = 0.99;
static const double LISTED = 5e-4; /* of the wall time, from which on a cause is listed */
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
    if (a->starts[i].number == (int64_t)number) return &a->starts[i];
  return NULL;
}

typedef void each_line(again_lines *a, const char *line, const char *end, int64_t last_step);

static void note_durable(again_lines *a, const char *line, const char *end, int64_t last_step) {
  (void)last_step;
  again *start = again_of(a, number_in(line, end, "\"incarnation\": "));
  const double durable = number_in(line, end, "\"durable_step\": ");
  if (start && durable > (double)start->newest_durable) start->newest_durable = (int64_t)durable;
}

static void note_again(again_lines *a, const char *line, const char *end, int64_t last_step) {
  again *start = again_of(a, number_in(line, end, "\"incarnation\": "));
  const double step = number_in(line, end, "{\"step\": "), wall = number_in(line, end, "\"wall_s\": ");
  if (!start || !(step <= (double)last_step)) return;
  start->steps++;
  a->steps++;
  if (step <= (double)start->newest_durable) a->durable++;
  if (wall > 0) a->seconds += wall;
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

/* ---- causes ---- */

typedef struct item {
  const char *name;
  double seconds;
  int rank;
  bool held_up; /* others waited for that rank */
  char detail[256];
} item;

static int compare(const void *a, const void *b) {
  const item *x = a, *y = b;
  return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

/* What the lines of all starts say of a cause that is a part of the budget. */
static const char *part_of(iso_cause cause) {
  switch (cause) {
  case ISO_CAUSE_SOURCE:
    return "data_wait_s";
  case ISO_CAUSE_PREEMPTED:
    return "preempted_s";
  case ISO_CAUSE_DISK:
    return "storage_wait_s";
  case ISO_CAUSE_OTHER:
    return "other_s";
  case ISO_CAUSE_RANK:
    return "reduce_wait_s";
  default:
    return NULL;
  }
}

static void name_source(const iso_history *h, item *out) {
  const iso_starved *worst = &h->starved[0];
  for (int i = 1; i < ISO_HISTORY_STARVED; i++)
    if (h->starved[i].seconds > worst->seconds) worst = &h->starved[i];
  if (worst->steps == 0) return;
  snprintf(out->detail, sizeof out->detail, "%lld batches came late, %.3f s of it at %.*s of %.*s",
           (long long)h->starved_steps, worst->seconds, (int)worst->stage_bytes - 2, worst->stage + 1,
           (int)(worst->source_bytes < 150 ? worst->source_bytes : 150), worst->source);
}

/* Of waiting for other ranks: who waited, and for whom. The rank is the one that is waited for. */
static void name_rank(const iso_verdict_input *of, item *out) {
  const int victim = out->rank, by = of->health ? iso_watch_held_up_by(iso_health_watch(of->health)) : -1;
  const size_t length = (size_t)snprintf(out->detail, sizeof out->detail, "rank %d waited for other ranks", victim);
  if (by < 0) return;
  out->rank = by;
  out->held_up = true;
  snprintf(out->detail + length, sizeof out->detail - length, "%s for rank %d on host %.128s",
           by == victim ? "; in this start others waited most" : ", in this start most", by,
           iso_health_host(of->health, by));
}

static int list_causes(const iso_verdict_input *of, const again_lines *a, item out[ISO_CAUSES + 1]) {
  const iso_health *health = of->health;
  const iso_history *h = of->history;
  int count = 0;
  for (int c = 0; c < ISO_CAUSE_UNKNOWN; c++) {
    item one = {.name = iso_cause_names[c]};
    const iso_cause_total *total = health ? iso_watch_cause(iso_health_watch(health), (iso_cause)c) : NULL;
    if (total) {
      one.seconds = total->seconds;
      one.rank = total->rank;
      snprintf(one.detail, sizeof one.detail, "%s", total->detail);
    }
    const char *part = part_of((iso_cause)c);
    const double whole = part ? iso_history_spread(h, part).sum : 0;
    if (whole > one.seconds) {
      one.seconds = whole;
      one.rank = 0;
    }
    if (c == ISO_CAUSE_SOURCE) name_source(h, &one);
    if (c == ISO_CAUSE_RANK) name_rank(of, &one);
    if (c == ISO_CAUSE_OTHER) snprintf(one.detail, sizeof one.detail, "host work: lines, locks, handing over");
    out[count++] = one;
  }
  item restart = {.name = "restart", .seconds = a->seconds + of->replay_s};
  snprintf(restart.detail, sizeof restart.detail,
           "%lld steps were run again for %.3f s; this start replayed %lld steps in %.3f s", (long long)a->steps,
           a->seconds, (long long)of->replayed_steps, of->replay_s);
  out[count++] = restart;
  qsort(out, (size_t)count, sizeof *out, compare);
  return count;
}

/* ---- the verdict ---- */

typedef struct verdict {
  const iso_verdict_input *of;
  iso_incarnation *list;
  size_t count;
  again_lines again;
  item causes[ISO_CAUSES + 1];
  int cause_count;
  double wall_s, spread, speed, useful;
  int64_t open_steps;
} verdict;

static double *row_of(const iso_history *h, const char *name) {
  return h->all + (size_t)(iso_vital_find(name) - iso_vitals) * (size_t)h->steps;
}

static void judge(verdict *v) {
  const iso_history *h = v->of->history;
  const iso_vital_spread wall = iso_history_spread(h, "wall_s");
  const double *walls = row_of(h, "wall_s"), *rest = row_of(h, "unaccounted_s");
  v->wall_s = wall.sum;
  v->spread = wall.p50 > 0 ? wall.p99 / wall.p50 : NAN;
  v->speed = iso_history_last_over_first(h);
  for (int64_t i = 0; i < h->steps; i++) v->open_steps += fabs(rest[i]) > 0.01 * walls[i];
  const double useful_s = iso_history_spread(h, "compute_s").sum - iso_history_spread(h, "preempted_s").sum;
  const double all_s = v->wall_s + v->again.seconds + v->of->started_s;
  v->useful = all_s > 0 ? useful_s / all_s : NAN;
  v->cause_count = list_causes(v->of, &v->again, v->causes);
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

static void put_host(const verdict *v, int rank, iso_string *out) {
  const char *host = v->of->health ? iso_health_host(v->of->health, rank) : "";
  iso_string_printf(out, "\"rank\": %d, \"host\": ", rank);
  iso_json_quote(out, host, strlen(host));
}

static void put_ranks(const verdict *v, iso_string *out) {
  if (!v->of->health) return;
  const iso_watch *watch = iso_health_watch(v->of->health);
  iso_string_printf(out, ",\n  \"ranks\": [");
  for (int r = 0; r < iso_health_ranks(v->of->health); r++) {
    iso_string_printf(out, "%s\n    {", r ? "," : "");
    put_host(v, r, out);
    iso_string_printf(out, ", \"steps\": %lld", (long long)iso_watch_tally(watch, r, ISO_PART_WALL)->count);
    for (int p = 0; p < ISO_PARTS; p++) {
      iso_string_printf(out, ",\n     \"%s\": ", iso_budget_names[p]);
      iso_tally_print(iso_watch_tally(watch, r, (iso_budget_part)p), out);
    }
    iso_string_append(out, "}", 1);
  }
  iso_string_append(out, "]", 1);
}

static void put_causes(const verdict *v, iso_string *out) {
  int listed = 0;
  iso_string_printf(out, ",\n  \"causes\": [");
  for (int i = 0; i < v->cause_count; i++) {
    const item *one = &v->causes[i];
    if (one->seconds < LISTED * v->wall_s || one->seconds <= 0) continue;
    iso_string_printf(out, "%s\n    {\"cause\": \"%s\", \"seconds\": %.6f, \"share\": %.6f, ", listed++ ? "," : "",
                      one->name, one->seconds, one->seconds / v->wall_s);
    put_host(v, one->rank, out);
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
    int64_t steps = 0;
    for (size_t s = 0; s < v->of->history->start_count; s++)
      if (v->of->history->starts[s].number == v->list[i].number) steps = v->of->history->starts[s].steps;
    iso_string_printf(
        out, "%s\n    {\"incarnation\": %d, \"begins_after\": %lld, \"steps\": %lld, \"steps_run_again\": %lld}",
        i ? "," : "", v->list[i].number, (long long)v->list[i].begins_after, (long long)steps,
        (long long)(v->again.count ? v->again.starts[i].steps : 0));
  }
  iso_string_printf(out, "],\n  \"steps_run_again\": %lld,\n  \"durable_steps_run_again\": %lld",
                    (long long)v->again.steps, (long long)v->again.durable);
}

static void put_lines(const verdict *v, iso_string *out) {
  int shown = 0;
  iso_string_printf(out, "# %s: P99 of the steps is %.3f times the median (bound: %.2f)",
                    is_level(v) ? "level" : "not level", v->spread, SPREAD_MOST);
  if (isfinite(v->speed))
    iso_string_printf(out, ", the last tenth runs at %.3f of the first's speed (bound: %.2f)", v->speed, SPEED_LEAST);
  iso_string_printf(out, "; %.1f%% of the time was useful compute, %lld step%s run again\n", 100 * v->useful,
                    (long long)v->again.steps, v->again.steps == 1 ? " was" : "s were");
  for (int i = 0; i < v->cause_count && shown < SHOWN; i++) {
    const item *one = &v->causes[i];
    if (one->seconds < LISTED * v->wall_s || one->seconds <= 0) continue;
    iso_string_printf(out, "%s%s %.2f s (%.1f%%", shown++ ? ", " : "# where the rest went: ", one->name, one->seconds,
                      100 * one->seconds / v->wall_s);
    if ((one->held_up || one->rank) && v->of->health)
      iso_string_printf(out, ", %srank %d on %s", one->held_up ? "waiting for " : "", one->rank,
                        iso_health_host(v->of->health, one->rank));
    iso_string_printf(out, ")");
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
