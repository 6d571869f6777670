/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a trace that `isotach train --trace` wrote (train/tracing_write.c): one event a line, a process for each
 * rank.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trace.h"

enum { STEPS = 1, COMM = 2, FIRST_COMPUTE = 10 }; /* threads */
const char *const iso_trace_keys[ISO_TRACE_PARTS] = {"data_wait_s", "reduce_wait_s", "storage_wait_s",
                                                     "compute_s",   "rest_s",        "wall_s"};

static iso_status no_memory(void) {
  return iso_fail(ISO_ERR_MEMORY, "trace: no memory for its events");
}

static int find_op(iso_trace_rank *r, const char *name) {
  for (int i = 0; i < r->op_count; i++)
    if (strcmp(r->ops[i].name, name) == 0) return i;
  if (r->op_count == ISO_TRACE_OPS || strlen(name) >= sizeof r->ops[0].name) return -1;
  memcpy(r->ops[r->op_count].name, name, strlen(name) + 1);
  return r->op_count++;
}

static iso_status enlarge(double **values, int64_t count) {
  double *more = realloc(*values, (size_t)count * sizeof *more);
  if (!more) return no_memory();
  *values = more;
  return ISO_OK;
}

static iso_status make_room(iso_trace_rank *r) {
  if (r->steps < r->step_capacity) return ISO_OK;
  const int64_t capacity = r->step_capacity ? 2 * r->step_capacity : 1024;
  int64_t *numbers = realloc(r->numbers, (size_t)capacity * sizeof *numbers);
  if (!numbers) return no_memory();
  r->numbers = numbers;
  ISO_TRY(enlarge(&r->begins, capacity));
  ISO_TRY(enlarge(&r->ends, capacity));
  for (int p = 0; p < ISO_TRACE_PARTS; p++) ISO_TRY(enlarge(&r->parts[p], capacity));
  for (int k = 0; k < ISO_TRACE_WORKS; k++) ISO_TRY(enlarge(&r->works[k], capacity));
  r->step_capacity = capacity;
  return ISO_OK;
}

static iso_status take_step(iso_trace_rank *r, const iso_json *args, const char *where, double began_s,
                            double seconds) {
  ISO_TRY(make_room(r));
  if (r->steps && began_s < r->begins[r->steps - 1])
    return iso_fail(ISO_ERR_FORMAT, "%s: a step that began before the one above it; trace again", where);
  double value, rest;
  r->begins[r->steps] = began_s;
  r->ends[r->steps] = began_s + seconds;
  ISO_TRY(iso_json_double(args, where, "wall_s", seconds, &seconds)); /* without what is left out */
  rest = seconds;
  ISO_TRY(iso_json_int(args, where, "step", 0, &r->numbers[r->steps]));
  for (int p = 0; p < ISO_TRACE_REST; p++) {
    ISO_TRY(iso_json_double(args, where, iso_trace_keys[p], 0, &value));
    r->parts[p][r->steps] = value;
    rest -= value;
  }
  r->parts[ISO_TRACE_REST][r->steps] = fmax(0, rest);
  r->parts[ISO_TRACE_WALL][r->steps] = seconds;
  ISO_TRY(iso_json_double(args, where, "log_write_s", 0, &r->works[ISO_TRACE_STORAGE_WORK][r->steps]));
  ISO_TRY(iso_json_double(args, where, "data_cpu_s", 0, &r->works[ISO_TRACE_DATA_WORK][r->steps]));
  r->works[ISO_TRACE_REDUCE_WORK][r->steps++] = 0;
  return ISO_OK;
}

/* What goes on beside the steps stands behind them in the file: it belongs to the one in which it began. */
static void take_reduction(iso_trace_rank *r, double began_s, double seconds) {
  int64_t low = 0, high = r->steps; /* the first step that began later */
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (r->begins[middle] <= began_s)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == 0 || began_s >= r->ends[low - 1]) return; /* of a step that is lost */
  r->works[ISO_TRACE_REDUCE_WORK][low - 1] += seconds;
}

static iso_status take_event(iso_trace_rank *r, const iso_json *args, const char *where, const char *name, int thread,
                             double seconds) {
  if (r->count == r->capacity) {
    r->capacity = r->capacity ? 2 * r->capacity : 4096;
    iso_trace_event *more = realloc(r->events, r->capacity * sizeof *more);
    if (!more) return no_memory();
    r->events = more;
  }
  bool meets;
  double flop, bytes;
  ISO_TRY(iso_json_bool(args, where, "meets", false, &meets));
  ISO_TRY(iso_json_double(args, where, "flop", 0, &flop));
  ISO_TRY(iso_json_double(args, where, "bytes", 1, &bytes));
  const int op = find_op(r, name);
  if (op < 0)
    return iso_fail(ISO_ERR_FORMAT, "%s: more kinds of instructions than any program has: \"%s\"", where, name);
  if (thread >= r->threads) r->threads = thread + 1;
  if (meets) r->groups[thread]++;
  r->events[r->count++] = (iso_trace_event){op, thread, r->groups[thread], (float)seconds};
  r->ops[op].seconds += seconds;
  if (thread == 0) r->ops[op].calls += bytes > 0, r->ops[op].flop += flop;
  return ISO_OK;
}

/* The rank of that number; made when it is new. */
static iso_status find_rank(iso_trace_file *f, int64_t pid, const char *where, iso_trace_rank **out) {
  if (pid < 0 || pid >= ISO_MOST_RANKS)
    return iso_fail(ISO_ERR_FORMAT, "%s: an event with a wrong pid; trace again", where);
  while (f->rank_count <= pid) {
    iso_trace_rank **more = realloc(f->ranks, (size_t)(f->rank_count + 1) * sizeof(*more));
    if (!more) return no_memory();
    f->ranks = more;
    f->ranks[f->rank_count] = calloc(1, sizeof **more);
    if (!f->ranks[f->rank_count++]) return no_memory();
  }
  *out = f->ranks[pid];
  return ISO_OK;
}

static iso_status take_line(iso_trace_file *f, const iso_json *json, const char *where) {
  const char *kind, *name;
  ISO_TRY(iso_json_string(json, where, "ph", "", &kind));
  if (strcmp(kind, "X") != 0) return ISO_OK;
  int64_t thread, pid;
  double ts, dur;
  iso_trace_rank *r = NULL;
  ISO_TRY(iso_json_string(json, where, "name", "", &name));
  ISO_TRY(iso_json_int(json, where, "pid", -1, &pid));
  ISO_TRY(iso_json_int(json, where, "tid", -1, &thread));
  ISO_TRY(iso_json_double(json, where, "ts", -1, &ts));
  ISO_TRY(iso_json_double(json, where, "dur", -1, &dur));
  const iso_json *args = iso_json_get(json, "args");
  static const double MOST_US = 1e15; /* decades */
  if (!args || !(ts >= 0 && ts <= MOST_US) || !(dur >= 0 && dur <= MOST_US) || thread < 0 ||
      thread >= FIRST_COMPUTE + ISO_TRACE_THREADS)
    return iso_fail(ISO_ERR_FORMAT, "%s: an event without args, with a wrong ts, dur or tid; trace again", where);
  ISO_TRY(find_rank(f, pid, where, &r));
  if (thread >= FIRST_COMPUTE) return take_event(r, args, where, name, (int)thread - FIRST_COMPUTE, 1e-6 * dur);
  if (thread == COMM && strcmp(name, "agree") != 0) take_reduction(r, 1e-6 * ts, 1e-6 * dur);
  return thread == STEPS && strcmp(name, "step") == 0 ? take_step(r, args, where, 1e-6 * ts, 1e-6 * dur) : ISO_OK;
}

/* The head is {"displayTimeUnit": ..., "otherData": {...}, "traceEvents": [ on a line of its own. */
static iso_status take_head(iso_trace_file *f, char *line, size_t length) {
  static const char tail[] = ", \"traceEvents\": [";
  iso_json *json;
  const size_t cut = length >= sizeof tail - 1 ? length - (sizeof tail - 1) : 0;
  if (cut == 0 || memcmp(line + cut, tail, sizeof tail - 1) != 0)
    return iso_fail(ISO_ERR_FORMAT, "%s is no trace of isotach train --trace", f->path);
  line[cut] = '}';
  ISO_TRY(iso_json_parse(line, cut + 1, f->path, &json));
  const iso_json *other = iso_json_get(json, "otherData");
  iso_status status = other ? ISO_OK : iso_fail(ISO_ERR_FORMAT, "%s: `otherData` is missing; trace again", f->path);
  if (status == ISO_OK) status = iso_json_int(other, f->path, "lost", 0, &f->lost);
  if (status == ISO_OK) status = iso_json_int(other, f->path, "ranks", 1, &f->stated);
  iso_json_destroy(&json);
  return status;
}

static iso_status read_lines(iso_trace_file *f, char *text, size_t bytes) {
  int64_t number = 0;
  bool closed = false;
  for (char *line = text, *end; line < text + bytes; line = end + 1) {
    end = memchr(line, '\n', (size_t)(text + bytes - line));
    if (!end) end = text + bytes;
    size_t length = (size_t)(end - line);
    if (number++ == 0) {
      ISO_TRY(take_head(f, line, length));
      continue;
    }
    closed = length == 2 && memcmp(line, "]}", 2) == 0;
    if (closed || length == 0) continue;
    if (line[length - 1] == ',') length--;
    char where[4200];
    snprintf(where, sizeof where, "%s, line %lld", f->path, (long long)number);
    iso_json *json;
    ISO_TRY(iso_json_parse(line, length, where, &json));
    const iso_status status = take_line(f, json, where);
    iso_json_destroy(&json);
    ISO_TRY(status);
  }
  if (!closed) return iso_fail(ISO_ERR_FORMAT, "%s ends before its last line: it is cut short; trace again", f->path);
  if (!f->rank_count || f->ranks[0]->steps == 0) return iso_fail(ISO_ERR_FORMAT, "%s holds no step", f->path);
  return ISO_OK;
}

iso_status iso_trace_read(const char *path, iso_trace_file *out) {
  char *text = NULL;
  size_t bytes;
  *out = (iso_trace_file){.path = path};
  iso_status status = iso_file_read(path, &text, &bytes);
  if (status == ISO_OK) status = read_lines(out, text, bytes);
  free(text);
  return status;
}

void iso_trace_fini(iso_trace_file *file) {
  for (int i = 0; i < file->rank_count; i++) {
    iso_trace_rank *r = file->ranks[i];
    if (!r) continue;
    for (int p = 0; p < ISO_TRACE_PARTS; p++) free(r->parts[p]);
    for (int k = 0; k < ISO_TRACE_WORKS; k++) free(r->works[k]);
    free(r->begins);
    free(r->ends);
    free(r->numbers);
    free(r->events);
    free(r);
  }
  free(file->ranks);
  *file = (iso_trace_file){0};
}
