/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach trace: sums up a trace that `isotach train --trace` wrote (train/tracing.c; one event a line).
 *
 * The critical path. Threads walk the same instructions and meet where one says so; between two meetings the one that
 * takes longest decides. Its instructions are on the path, the others' time until then is waiting. So the path of a
 * step is its waits, and of each stretch between meetings the longest thread.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { MOST_OPS = 128, FIRST_COMPUTE = 10, MOST_THREADS = 1024 };
typedef enum part { DATA, REDUCE, STORAGE, COMPUTE, WALL, PARTS } part;
static const char *const part_keys[PARTS] = {"data_wait_s", "reduce_wait_s", "storage_wait_s", "compute_s", NULL};
static const char *const part_names[PARTS] = {"data wait", "reduce wait", "storage wait", "compute", "step"};

typedef struct event {
  int op, thread, group; /* group: stretches between meetings, counted over the trace */
  float seconds;
} event;
typedef struct op_row {
  char name[40];
  int64_t calls; /* of thread 0 */
  double seconds /* of all threads */, path_s, flop;
} op_row;
typedef struct reading {
  const char *path;
  op_row ops[MOST_OPS];
  int op_count, threads, groups[MOST_THREADS];
  event *events;
  size_t count, capacity;
  double *parts[PARTS]; /* by step, seconds */
  int64_t steps, step_capacity, first_step, lost;
  double log_write_s, data_cpu_s, waiting_s /* of threads for each other */, path_s;
} reading;

static iso_status no_memory(const reading *r) {
  return iso_fail(ISO_ERR_MEMORY, "trace: %s: no memory for its events", r->path);
}

static int find_op(reading *r, const char *name) {
  for (int i = 0; i < r->op_count; i++)
    if (strcmp(r->ops[i].name, name) == 0) return i;
  if (r->op_count == MOST_OPS || strlen(name) >= sizeof r->ops[0].name) return -1;
  strcpy(r->ops[r->op_count].name, name);
  return r->op_count++;
}

static iso_status take_step(reading *r, const iso_json *args, const char *where, double seconds) {
  if (r->steps == r->step_capacity) {
    r->step_capacity = r->step_capacity ? 2 * r->step_capacity : 1024;
    for (int p = 0; p < PARTS; p++) {
      double *more = realloc(r->parts[p], (size_t)r->step_capacity * sizeof *more);
      if (!more) return no_memory(r);
      r->parts[p] = more;
    }
  }
  double value;
  for (int p = 0; p < WALL; p++) {
    ISO_TRY(iso_json_double(args, where, part_keys[p], 0, &value));
    r->parts[p][r->steps] = value;
  }
  r->parts[WALL][r->steps++] = seconds;
  ISO_TRY(iso_json_double(args, where, "log_write_s", 0, &value));
  r->log_write_s += value;
  ISO_TRY(iso_json_double(args, where, "data_cpu_s", 0, &value));
  r->data_cpu_s += value;
  return ISO_OK;
}

static iso_status take_event(reading *r, const iso_json *args, const char *where, const char *name, int thread,
                             double seconds) {
  if (r->count == r->capacity) {
    r->capacity = r->capacity ? 2 * r->capacity : 4096;
    event *more = realloc(r->events, r->capacity * sizeof *more);
    if (!more) return no_memory(r);
    r->events = more;
  }
  bool meets;
  double flop;
  ISO_TRY(iso_json_bool(args, where, "meets", false, &meets));
  ISO_TRY(iso_json_double(args, where, "flop", 0, &flop));
  const int op = find_op(r, name);
  if (op < 0)
    return iso_fail(ISO_ERR_FORMAT, "%s: more kinds of instructions than any program has: \"%s\"", where, name);
  if (thread >= r->threads) r->threads = thread + 1;
  if (meets) r->groups[thread]++;
  r->events[r->count++] = (event){op, thread, r->groups[thread], (float)seconds};
  r->ops[op].seconds += seconds;
  if (thread == 0) r->ops[op].calls++, r->ops[op].flop += flop;
  return ISO_OK;
}

static iso_status take_line(reading *r, const iso_json *json, const char *where) {
  const char *kind, *name;
  ISO_TRY(iso_json_string(json, where, "ph", "", &kind));
  if (strcmp(kind, "X") != 0) return ISO_OK;
  int64_t thread;
  double dur;
  ISO_TRY(iso_json_string(json, where, "name", "", &name));
  ISO_TRY(iso_json_int(json, where, "tid", 0, &thread));
  ISO_TRY(iso_json_double(json, where, "dur", -1, &dur));
  const iso_json *args = iso_json_get(json, "args");
  if (!args || !(dur >= 0) || thread < 0 || thread >= FIRST_COMPUTE + MOST_THREADS)
    return iso_fail(ISO_ERR_FORMAT, "%s: an event without args, with a wrong dur or tid; trace again", where);
  if (thread >= FIRST_COMPUTE) return take_event(r, args, where, name, (int)thread - FIRST_COMPUTE, 1e-6 * dur);
  return strcmp(name, "step") == 0 ? take_step(r, args, where, 1e-6 * dur) : ISO_OK;
}

/* The head is {"displayTimeUnit": ..., "otherData": {...}, "traceEvents": [ on a line of its own. */
static iso_status take_head(reading *r, char *line, size_t length) {
  static const char tail[] = ", \"traceEvents\": [";
  iso_json *json;
  const size_t cut = length >= sizeof tail - 1 ? length - (sizeof tail - 1) : 0;
  if (cut == 0 || memcmp(line + cut, tail, sizeof tail - 1) != 0)
    return iso_fail(ISO_ERR_FORMAT, "%s is no trace of isotach train --trace", r->path);
  line[cut] = '}';
  ISO_TRY(iso_json_parse(line, cut + 1, r->path, &json));
  const iso_json *other = iso_json_get(json, "otherData");
  iso_status status = other ? ISO_OK : iso_fail(ISO_ERR_FORMAT, "%s: `otherData` is missing; trace again", r->path);
  if (status == ISO_OK) status = iso_json_int(other, r->path, "first_step", 0, &r->first_step);
  if (status == ISO_OK) status = iso_json_int(other, r->path, "lost", 0, &r->lost);
  iso_json_destroy(&json);
  return status;
}

static iso_status read_lines(reading *r, char *text, size_t bytes) {
  int64_t number = 0;
  bool closed = false;
  for (char *line = text, *end; line < text + bytes; line = end + 1) {
    end = memchr(line, '\n', (size_t)(text + bytes - line));
    if (!end) end = text + bytes;
    size_t length = (size_t)(end - line);
    if (number++ == 0) {
      ISO_TRY(take_head(r, line, length));
      continue;
    }
    closed = length == 2 && memcmp(line, "]}", 2) == 0;
    if (closed || length == 0) continue;
    if (line[length - 1] == ',') length--;
    char where[4200];
    snprintf(where, sizeof where, "%s, line %lld", r->path, (long long)number);
    iso_json *json;
    ISO_TRY(iso_json_parse(line, length, where, &json));
    const iso_status status = take_line(r, json, where);
    iso_json_destroy(&json);
    ISO_TRY(status);
  }
  if (!closed) return iso_fail(ISO_ERR_FORMAT, "%s ends before its last line: it is cut short; trace again", r->path);
  if (r->steps == 0) return iso_fail(ISO_ERR_FORMAT, "%s holds no step", r->path);
  return ISO_OK;
}

/* ---- what it says ---- */

static iso_status find_path(reading *r) {
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
  return good ? ISO_OK : no_memory(r);
}

static int by_path(const void *a, const void *b) {
  const op_row *x = a, *y = b;
  return (x->path_s < y->path_s) - (x->path_s > y->path_s);
}

static double sum_of(const reading *r, part p) {
  double sum = 0;
  for (int64_t i = 0; i < r->steps; i++) sum += r->parts[p][i];
  return sum;
}

static double quantile(const reading *r, part p, int percent) {
  return iso_quantile(r->parts[p], r->steps, percent); /* sorted by then */
}

/* Of work beside the steps, how much did not make them wait. */
static double hidden(double work_s, double waited_s) {
  return work_s > 0 ? fmax(0, 1 - waited_s / work_s) : 1;
}

static double thread_share(const reading *r) {
  return r->path_s > 0 && r->threads ? r->waiting_s / (r->path_s * r->threads) : 0;
}

static iso_status print_text(const reading *r, const double sums[PARTS], int64_t top) {
  iso_string out = {0};
  const double steps = (double)r->steps, wall = sums[WALL];
  iso_string_printf(&out, "steps %lld to %lld, %d compute thread%s%s\n\n%-14s %10s %10s %10s %8s\n",
                    (long long)r->first_step, (long long)(r->first_step + r->steps - 1), r->threads,
                    iso_plural(r->threads), r->lost ? "; not all events fitted" : "", "", "mean ms", "P50 ms", "P95 ms",
                    "of wall");
  for (int p = 0; p < PARTS; p++)
    iso_string_printf(&out, "%-14s %10.4f %10.4f %10.4f %7.2f%%\n", part_names[p], 1e3 * sums[p] / steps,
                      1e3 * quantile(r, (part)p, 50), 1e3 * quantile(r, (part)p, 95), 100 * sums[p] / wall);
  iso_string_printf(
      &out,
      "\nbeside the steps: the log wrote %.4f ms a step, %.1f%% of it hidden; data threads worked %.4f ms "
      "a step, %.1f%% hidden\ncompute threads wait for each other: %.1f%% of their time\n",
      1e3 * r->log_write_s / steps, 100 * hidden(r->log_write_s, sums[STORAGE]), 1e3 * r->data_cpu_s / steps,
      100 * hidden(r->data_cpu_s, sums[DATA]), 100 * thread_share(r));
  iso_string_printf(&out,
                    "\ncritical path of a step: %.4f ms in instructions, %.4f ms waiting\n%-24s %10s %10s %8s %10s\n",
                    1e3 * r->path_s / steps, 1e3 * (sums[DATA] + sums[REDUCE] + sums[STORAGE]) / steps, "op",
                    "calls/step", "ms/step", "of path", "GFLOP/s");
  for (int i = 0; i < r->op_count && i < top; i++) {
    const op_row *op = &r->ops[i];
    iso_string_printf(&out, "%-24s %10.1f %10.4f %7.2f%% %10.1f\n", op->name, (double)op->calls / steps,
                      1e3 * op->path_s / steps, r->path_s > 0 ? 100 * op->path_s / r->path_s : 0,
                      op->path_s > 0 ? op->flop / op->path_s * 1e-9 : 0);
  }
  return iso_text_print(&out);
}

static iso_status print_json(const reading *r, const double sums[PARTS]) {
  iso_string out = {0};
  const double steps = (double)r->steps;
  iso_json_open(&out, NULL, '{');
  iso_json_put_int(&out, "first_step", r->first_step);
  iso_json_put_int(&out, "steps", r->steps);
  iso_json_put_int(&out, "threads", r->threads);
  iso_json_put_int(&out, "lost_events", r->lost);
  for (int p = 0; p < PARTS; p++) {
    iso_json_open(&out, p == WALL ? "wall_s" : part_keys[p], '{');
    iso_json_put_real(&out, "mean", sums[p] / steps);
    iso_json_put_real(&out, "p50", quantile(r, (part)p, 50));
    iso_json_put_real(&out, "p95", quantile(r, (part)p, 95));
    iso_json_shut(&out, '}');
  }
  iso_json_put_real(&out, "storage_hidden", hidden(r->log_write_s, sums[STORAGE]));
  iso_json_put_real(&out, "data_hidden", hidden(r->data_cpu_s, sums[DATA]));
  iso_json_put_real(&out, "thread_wait_share", thread_share(r));
  iso_json_put_real(&out, "critical_path_s", r->path_s / steps);
  iso_json_open(&out, "ops", '[');
  for (int i = 0; i < r->op_count; i++) {
    const op_row *op = &r->ops[i];
    iso_json_open(&out, NULL, '{');
    iso_json_put_text(&out, "op", op->name);
    iso_json_put_real(&out, "calls_per_step", (double)op->calls / steps);
    iso_json_put_real(&out, "thread_seconds_per_step", op->seconds / steps);
    iso_json_put_real(&out, "critical_seconds_per_step", op->path_s / steps);
    iso_json_put_real(&out, "gflops", op->path_s > 0 ? op->flop / op->path_s * 1e-9 : 0);
    iso_json_shut(&out, '}');
  }
  iso_json_shut(&out, ']');
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status sum_up(reading *r, bool json, int64_t top) {
  double sums[PARTS];
  for (int p = 0; p < PARTS; p++) {
    sums[p] = sum_of(r, (part)p);
    iso_sort(r->parts[p], r->steps);
  }
  ISO_TRY(find_path(r));
  qsort(r->ops, (size_t)r->op_count, sizeof *r->ops, by_path);
  return json ? print_json(r, sums) : print_text(r, sums, top);
}

iso_status iso_verb_trace(iso_args *args) {
  bool json = false;
  int64_t top = 12;
  const iso_flag flags[] = {{"top", ISO_FLAG_INT, &top, "ops that are listed (12)", 1, MOST_OPS},
                            {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0}};
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  reading *r = calloc(1, sizeof *r);
  if (!r) return iso_fail(ISO_ERR_MEMORY, "trace: no memory");
  r->path = args->words[0];
  char *text = NULL;
  size_t bytes;
  iso_status status = iso_file_read(r->path, &text, &bytes);
  if (status == ISO_OK) status = read_lines(r, text, bytes);
  free(text);
  if (status == ISO_OK) status = sum_up(r, json, top);
  for (int p = 0; p < PARTS; p++) free(r->parts[p]);
  free(r->events);
  free(r);
  return status;
}
