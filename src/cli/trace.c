/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach trace: sums up a trace that `isotach train --trace` wrote: where the time of its steps went, what was hidden
 * behind them, the critical path, and the instructions that it is made of.
 *
 * The critical path. Threads of a rank walk the same instructions and meet where one says so; between two meetings the
 * one that takes longest decides. Its instructions are on the path, the others' time until then is waiting. So the path
 * of a step is its waits, and of each stretch between meetings the longest thread. Of several ranks the one that
 * computes longest decides a step: the others wait for it. The rank that decides most steps is the one whose path is
 * shown.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trace.h"

static const char *const part_names[ISO_TRACE_PARTS] = {"data wait", "reduce wait", "storage wait",
                                                        "compute",   "rest",        "step"};

/* ---- summing up ---- */

static iso_status find_path(iso_trace_rank *r) {
  int groups = 1;
  for (int t = 0; t < r->threads; t++)
    if (r->groups[t] >= groups) groups = r->groups[t] + 1;
  const size_t threads = (size_t)(r->threads ? r->threads : 1);
  double *sums = calloc((size_t)groups * threads, sizeof *sums);
  int *longest = calloc((size_t)groups, sizeof *longest);
  if (sums && longest) {
    for (size_t i = 0; i < r->count; i++)
      sums[(size_t)r->events[i].group * threads + (size_t)r->events[i].thread] += (double)r->events[i].seconds;
    for (int g = 0; g < groups; g++) {
      const double *own = sums + (size_t)g * threads;
      for (int t = 1; t < r->threads; t++)
        if (own[t] > own[longest[g]]) longest[g] = t;
      for (int t = 0; t < r->threads; t++) r->waiting_s += own[longest[g]] - own[t];
      r->path_s += own[longest[g]];
    }
    for (size_t i = 0; i < r->count; i++)
      if (longest[r->events[i].group] == r->events[i].thread)
        r->ops[r->events[i].op].path_s += (double)r->events[i].seconds;
  }
  const bool good = sums && longest;
  free(sums);
  free(longest);
  return good ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "trace: no memory for its critical path");
}

/* Which rank computed longest, of each step that all have. Before the parts are sorted. */
static int find_critical(iso_trace_file *f) {
  int most = 0;
  int64_t at[ISO_MOST_RANKS] = {0};
  for (int64_t i = 0; i < f->ranks[0]->steps; i++) {
    int longest = 0;
    for (int r = 1; r < f->rank_count; r++) {
      const iso_trace_rank *rank = f->ranks[r], *best = f->ranks[longest];
      while (at[r] < rank->steps && rank->numbers[at[r]] < f->ranks[0]->numbers[i]) at[r]++;
      if (at[r] == rank->steps || rank->numbers[at[r]] != f->ranks[0]->numbers[i]) continue;
      const int64_t own = longest ? at[longest] : i;
      if (rank->parts[ISO_TRACE_COMPUTE][at[r]] > best->parts[ISO_TRACE_COMPUTE][own]) longest = r;
    }
    f->ranks[longest]->critical++;
  }
  for (int r = 1; r < f->rank_count; r++)
    if (f->ranks[r]->critical > f->ranks[most]->critical) most = r;
  return most;
}

static int by_path(const void *a, const void *b) {
  const iso_trace_op *x = a, *y = b;
  return (x->path_s < y->path_s) - (x->path_s > y->path_s);
}

static double sum_of(const iso_trace_rank *r, int p) {
  double sum = 0;
  for (int64_t i = 0; i < r->steps; i++) sum += r->parts[p][i];
  return sum;
}

static double mean_of(const iso_trace_rank *r, int p) {
  return r->steps ? sum_of(r, p) / (double)r->steps : 0;
}

static double quantile(const iso_trace_rank *r, int p, int percent) {
  return r->steps ? iso_quantile(r->parts[p], r->steps, percent) : 0; /* sorted by then */
}

/* Of the work beside each step, how much did not make it wait: a step that waits longer than its work takes hides
 * nothing, and takes nothing from what others hide. Before the parts are sorted. */
static void find_hidden(iso_trace_rank *r) {
  static const iso_trace_part waits[ISO_TRACE_WORKS] = {ISO_TRACE_DATA, ISO_TRACE_REDUCE, ISO_TRACE_STORAGE};
  for (int k = 0; k < ISO_TRACE_WORKS; k++) {
    double hidden_s = 0;
    for (int64_t i = 0; i < r->steps; i++) {
      r->work_s[k] += r->works[k][i];
      hidden_s += fmax(0, r->works[k][i] - r->parts[waits[k]][i]);
    }
    r->hidden[k] = r->work_s[k] > 0 ? hidden_s / r->work_s[k] : NAN;
  }
}

static double thread_share(const iso_trace_rank *r) {
  return r->path_s > 0 && r->threads ? r->waiting_s / (r->path_s * r->threads) : 0;
}

/* ---- as text ---- */

static void print_ranks(const iso_trace_file *f, iso_string *out) {
  iso_string_printf(out, "\n%6s %8s %12s %12s %12s %12s %12s %10s\n", "rank", "steps", "compute ms", "data P95 ms",
                    "reduce P95", "storage P95", "reduce mean", "longest in");
  for (int i = 0; i < f->rank_count; i++) {
    const iso_trace_rank *r = f->ranks[i];
    iso_string_printf(out, "%6d %8lld %12.4f %12.4f %12.4f %12.4f %12.4f %10lld\n", i, (long long)r->steps,
                      1e3 * mean_of(r, ISO_TRACE_COMPUTE), 1e3 * quantile(r, ISO_TRACE_DATA, 95),
                      1e3 * quantile(r, ISO_TRACE_REDUCE, 95), 1e3 * quantile(r, ISO_TRACE_STORAGE, 95),
                      1e3 * mean_of(r, ISO_TRACE_REDUCE), (long long)r->critical);
  }
}

static void print_beside(const iso_trace_rank *r, iso_string *out) {
  static const char *const who[ISO_TRACE_WORKS] = {"data threads worked", "reductions took", "the log wrote"};
  iso_string_append(out, "\n", 1);
  for (int k = 0; k < ISO_TRACE_WORKS; k++)
    if (r->work_s[k] > 0)
      iso_string_printf(out, "%s %.4f ms a step beside it, %.1f%% of it hidden\n", who[k],
                        1e3 * r->work_s[k] / (double)r->steps, 100 * r->hidden[k]);
  iso_string_printf(out, "compute threads wait for each other: %.1f%% of their time\n", 100 * thread_share(r));
}

static void print_path(const iso_trace_rank *r, bool lost, int64_t top, iso_string *out) {
  const double steps = (double)r->steps;
  const double waits = sum_of(r, ISO_TRACE_DATA) + sum_of(r, ISO_TRACE_REDUCE) + sum_of(r, ISO_TRACE_STORAGE);
  const double between = fmax(0, sum_of(r, ISO_TRACE_COMPUTE) - r->path_s);
  iso_string_printf(out,
                    "\ncritical path of a step: %.4f ms in instructions, %.4f ms waiting\n"
                    "the other %.4f ms of computing lie between instructions: threads that meet, or that had no "
                    "processor (preempted)%s\n%-24s %10s %10s %8s %10s\n",
                    1e3 * r->path_s / steps, 1e3 * waits / steps, 1e3 * between / steps,
                    lost ? "; or in events that did not fit" : "", "op", "calls/step", "ms/step", "of path", "GFLOP/s");
  for (int i = 0; i < r->op_count && i < top; i++) {
    const iso_trace_op *op = &r->ops[i];
    iso_string_printf(out, "%-24s %10.1f %10.4f %7.2f%% %10.1f\n", op->name, (double)op->calls / steps,
                      1e3 * op->path_s / steps, r->path_s > 0 ? 100 * op->path_s / r->path_s : 0,
                      op->path_s > 0 ? op->flop / op->path_s * 1e-9 : 0);
  }
}

static iso_status print_text(const iso_trace_file *f, int shown, int64_t top) {
  iso_string out = {0};
  const iso_trace_rank *r = f->ranks[shown];
  iso_string_printf(&out, "steps %lld to %lld, ", (long long)r->numbers[0], (long long)r->numbers[r->steps - 1]);
  if (f->stated > 1)
    iso_string_printf(&out, "%lld ranks%s, rank %d: ", (long long)f->stated,
                      f->rank_count < f->stated ? " (some are missing)" : "", shown);
  iso_string_printf(&out, "%d compute thread%s%s\n\n%-14s %10s %10s %10s %8s\n", r->threads, iso_plural(r->threads),
                    f->lost ? "; not all events fitted" : "", "", "mean ms", "P50 ms", "P95 ms", "of wall");
  for (int p = 0; p < ISO_TRACE_PARTS; p++)
    iso_string_printf(&out, "%-14s %10.4f %10.4f %10.4f %7.2f%%\n", part_names[p], 1e3 * mean_of(r, p),
                      1e3 * quantile(r, p, 50), 1e3 * quantile(r, p, 95),
                      100 * sum_of(r, p) / sum_of(r, ISO_TRACE_WALL));
  if (f->rank_count > 1) print_ranks(f, &out);
  print_beside(r, &out);
  print_path(r, f->lost > 0, top, &out);
  return iso_table_print(&out);
}

/* ---- as JSON ---- */

static void put_parts(iso_string *out, const iso_trace_rank *r) {
  for (int p = 0; p < ISO_TRACE_PARTS; p++) {
    iso_json_open(out, iso_trace_keys[p], '{');
    iso_json_put_real(out, "mean", mean_of(r, p));
    iso_json_put_real(out, "p50", quantile(r, p, 50));
    iso_json_put_real(out, "p95", quantile(r, p, 95));
    iso_json_shut(out, '}');
  }
  iso_json_put_real(out, "storage_hidden", r->hidden[ISO_TRACE_STORAGE_WORK]);
  iso_json_put_real(out, "data_hidden", r->hidden[ISO_TRACE_DATA_WORK]);
  iso_json_put_real(out, "reduce_hidden", r->hidden[ISO_TRACE_REDUCE_WORK]);
  iso_json_put_real(out, "reduce_s_per_step", r->steps ? r->work_s[ISO_TRACE_REDUCE_WORK] / (double)r->steps : 0);
  iso_json_put_real(out, "thread_wait_share", thread_share(r));
  iso_json_put_real(out, "critical_path_s", r->steps ? r->path_s / (double)r->steps : 0);
}

static iso_status print_json(const iso_trace_file *f, int shown) {
  iso_string out = {0};
  const iso_trace_rank *r = f->ranks[shown];
  const double steps = (double)r->steps;
  iso_json_open(&out, NULL, '{');
  iso_json_put_int(&out, "first_step", r->numbers[0]);
  iso_json_put_int(&out, "steps", r->steps);
  iso_json_put_int(&out, "rank", shown);
  iso_json_put_int(&out, "threads", r->threads);
  iso_json_put_int(&out, "lost_events", f->lost);
  put_parts(&out, r);
  iso_json_open(&out, "ops", '[');
  for (int i = 0; i < r->op_count; i++) {
    const iso_trace_op *op = &r->ops[i];
    iso_json_open(&out, NULL, '{');
    iso_json_put_text(&out, "op", op->name);
    iso_json_put_real(&out, "calls_per_step", (double)op->calls / steps);
    iso_json_put_real(&out, "thread_seconds_per_step", op->seconds / steps);
    iso_json_put_real(&out, "critical_seconds_per_step", op->path_s / steps);
    iso_json_put_real(&out, "gflops", op->path_s > 0 ? op->flop / op->path_s * 1e-9 : 0);
    iso_json_shut(&out, '}');
  }
  iso_json_shut(&out, ']');
  iso_json_put_int(&out, "ranks_of_the_run", f->stated);
  iso_json_open(&out, "ranks", '[');
  for (int i = 0; i < f->rank_count; i++) {
    iso_json_open(&out, NULL, '{');
    iso_json_put_int(&out, "rank", i);
    iso_json_put_int(&out, "steps", f->ranks[i]->steps);
    iso_json_put_int(&out, "critical_steps", f->ranks[i]->critical);
    put_parts(&out, f->ranks[i]);
    iso_json_shut(&out, '}');
  }
  iso_json_shut(&out, ']');
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

/* ---- the verb ---- */

static iso_status sum_up(iso_trace_file *f, bool json, int64_t rank, int64_t top) {
  int shown = find_critical(f);
  if (rank >= f->rank_count || (rank >= 0 && f->ranks[rank]->steps == 0))
    return iso_fail(ISO_ERR_USAGE, "trace: %s has no steps of rank %lld", f->path, (long long)rank);
  if (rank >= 0) shown = (int)rank;
  for (int i = 0; i < f->rank_count; i++) {
    iso_trace_rank *r = f->ranks[i];
    find_hidden(r);
    for (int p = 0; p < ISO_TRACE_PARTS; p++) iso_sort(r->parts[p], r->steps);
    ISO_TRY(find_path(r));
    qsort(r->ops, (size_t)r->op_count, sizeof *r->ops, by_path);
  }
  return json ? print_json(f, shown) : print_text(f, shown, top);
}

/* The trace that is asked for: the newest one of a run folder, by its first step. */
static iso_status find_trace(iso_arena *arena, const char *given, const char **path) {
  char **names;
  size_t count;
  *path = given;
  if (!iso_path_is_folder(given)) return ISO_OK;
  if (!arena) return iso_fail(ISO_ERR_MEMORY, "trace: out of memory");
  ISO_TRY(iso_path_list(arena, given, &names, &count));
  while (count > 0) { /* sorted by name */
    const char *name = names[--count], *end = strrchr(name, '.');
    if (strncmp(name, "trace-", 6) != 0 || !end || strcmp(end, ".json") != 0) continue;
    *path = iso_path_join(arena, given, name);
    return *path ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "trace: out of memory");
  }
  return iso_fail(ISO_ERR_NOT_FOUND,
                  "trace: '%s' holds no trace-*.json; record one with train --trace 10s or SIGUSR2, and wait until the "
                  "run names it",
                  given);
}

iso_status iso_verb_trace(iso_args *args) {
  bool json = false;
  int64_t top = 12, rank = -1;
  const iso_flag flags[] = {{"top", ISO_FLAG_INT, &top, "ops that are listed (12)", 1, ISO_TRACE_OPS},
                            {"rank", ISO_FLAG_INT, &rank,
                             "whose path is shown (the one that computes longest in most steps)", 0,
                             ISO_MOST_RANKS - 1},
                            {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0}};
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  iso_trace_file file;
  const char *path;
  iso_arena *arena = iso_arena_create();
  iso_status status = find_trace(arena, args->words[0], &path);
  if (status == ISO_OK) {
    status = iso_trace_read(path, &file);
    if (status == ISO_OK) status = sum_up(&file, json, rank, top);
    iso_trace_fini(&file);
  }
  iso_arena_destroy(&arena);
  return status;
}
