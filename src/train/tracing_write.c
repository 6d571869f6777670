/* SPDX-License-Identifier: Apache-2.0
 *
 * A trace's file, for Perfetto or chrome://tracing (Trace Event Format: "X" spans with ts and dur in microseconds, "C"
 * counters, "M" names), one event a line, so that `isotach trace` reads it line by line.
 *
 * A process of it is a rank; its threads: 1 the steps and their waits, 2 to 4 what goes on beside them (reductions, the
 * log, snapshots), 10 + i compute thread i. Each rank but 0 leaves its lines in RUN/trace-STEP.rank-R.part, which rank
 * 0 puts behind its own and removes. A part that does not come (of a host that does not see the run's folder, of a rank
 * that is gone) is missing, and the head says how many are.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "train/tracing.h"

enum { STEPS_THREAD = 1, STREAM_THREAD = 2, COMPUTE_THREAD = 10, PIECE = 1 << 16 };
enum { EVENT_BYTES = 360, STEP_EVENTS = 7 + 2 * ISO_STEP_WAITS }; /* the most that an event, a step's line, takes */
static const char *const stream_names[ISO_TRACE_STREAMS] = {"comm", "io: log", "io: snapshots"};
static const double NOTICED_S = 1e-5; /* what is left out for less is but the clock being read */
static const double PART_S = 10;      /* that the other ranks may take for theirs */

typedef struct writer {
  const iso_traced *traced;
  const iso_program *program;
  FILE *file;
} writer;

static double microseconds(const writer *w, double when_s) {
  const double at = 1e6 * (when_s - w->traced->base_s);
  return at > 0 ? at : 0;
}

static void put_name(const writer *w, int thread, const char *name, int number) {
  fprintf(w->file, ",\n{\"ph\": \"M\", \"pid\": %d, \"tid\": %d, \"name\": \"thread_name\", \"args\": {\"name\": \"%s",
          w->traced->rank, thread, name);
  if (number >= 0) fprintf(w->file, " %d", number);
  fprintf(w->file, "\"}}");
}

static void put_span(const writer *w, int thread, const char *name, const char *kind, double began_s, double ended_s) {
  fprintf(w->file,
          ",\n{\"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"name\": \"%s\", \"cat\": \"%s\", \"ts\": %.3f, \"dur\": %.3f",
          w->traced->rank, thread, name, kind, microseconds(w, began_s), 1e6 * (ended_s - began_s));
}

/* ---- steps ---- */

static const char *const wait_names[] = {[ISO_WAIT_REDUCE] = "reduce wait", [ISO_WAIT_STORAGE] = "storage wait"};

static void put_part(const writer *w, const char *name, const char *kind, const iso_step_times *s, double began_s,
                     double ended_s) {
  if (ended_s <= began_s) return;
  put_span(w, STEPS_THREAD, name, kind, began_s, ended_s);
  fprintf(w->file, ", \"args\": {\"step\": %lld}}", (long long)s->step);
}

static void put_counters(const writer *w, const iso_step_times *s) {
  const double at = microseconds(w, s->ended_s);
  fprintf(w->file,
          ",\n{\"ph\": \"C\", \"pid\": %d, \"name\": \"batches ready\", \"ts\": %.3f, \"args\": {\"slots\": %d}}",
          w->traced->rank, at, s->ring_depth);
  if (w->traced->rank == 0)
    fprintf(
        w->file,
        ",\n{\"ph\": \"C\", \"pid\": 0, \"name\": \"steps not durable\", \"ts\": %.3f, \"args\": {\"steps\": %lld}}",
        at, (long long)(s->step - s->durable));
}

/* The program's time is cut where it waited: what is called computing is nothing else. */
static void put_step(const writer *w, const iso_step_times *s) {
  put_span(w, STEPS_THREAD, "step", "step", s->began_s, s->ended_s);
  fprintf(w->file,
          ", \"args\": {\"step\": %lld, \"wall_s\": %.9f, \"data_wait_s\": %.9f, \"storage_wait_s\": %.9f, "
          "\"reduce_wait_s\": %.9f, "
          "\"compute_s\": %.9f, \"log_write_s\": %.9f, \"data_cpu_s\": %.9f}}",
          (long long)s->step, s->wall_s, s->taken_s - s->take_s, s->storage_wait_s, s->reduce_wait_s, s->compute_s,
          s->log_write_s, s->data_cpu_s);
  if (s->left_ended_s - s->left_began_s > NOTICED_S)
    put_part(w, "left out", "left out", s, s->left_began_s, s->left_ended_s);
  put_part(w, "data wait", "wait", s, s->take_s, s->taken_s);
  double at = s->begin_s;
  for (int i = 0; i < s->wait_count; i++) {
    const iso_wait *wait = &s->waits[i];
    if (wait->began_s >= s->begin_s) {
      put_part(w, "compute", "compute", s, at, wait->began_s);
      at = wait->ended_s;
    }
    put_part(w, wait_names[wait->kind], "wait", s, wait->began_s, wait->ended_s);
  }
  put_part(w, "compute", "compute", s, at, s->computed_s);
  put_part(w, "account", "account", s, s->computed_s, s->ended_s);
  put_counters(w, s);
}

/* ---- instructions ---- */

static void put_shape(const writer *w, const iso_operand *operand) {
  fprintf(w->file, ", \"shape\": \"%s [", iso_dtype_name(operand->dtype));
  for (int i = 0; i < operand->rank; i++) fprintf(w->file, "%s%lld", i ? ", " : "", (long long)operand->shape[i]);
  fprintf(w->file, "]\"");
}

/* An instruction takes as long as the slowest of its threads: all walk the same list, so that the event of each stands
 * at the same place in its track. */
static double slowest_s(const writer *w, int64_t at, const iso_exec_event *e) {
  const iso_exec_trace *trace = w->traced->trace;
  double slowest = e->ended_s - e->began_s;
  for (int i = 0; i < trace->threads; i++) {
    if (at >= trace->tracks[i].count) continue;
    const iso_exec_event *other = &trace->tracks[i].events[at];
    const bool same = other->instruction == e->instruction && other->leaf == e->leaf;
    if (same && other->ended_s - other->began_s > slowest) slowest = other->ended_s - other->began_s;
  }
  return slowest;
}

/* What was done: nothing, where an instruction is another pass's or another rank's to do. */
static void put_work(const writer *w, int64_t at, const iso_exec_event *e) {
  const double seconds = slowest_s(w, at, e);
  fprintf(w->file, ", \"flop\": %lld, \"bytes\": %lld, \"gflops\": %.1f}}", (long long)e->work.flop,
          (long long)e->work.bytes, seconds > 0 ? (double)e->work.flop / seconds * 1e-9 : 0);
}

static void put_event(const writer *w, int thread, int64_t at, int64_t step) {
  const iso_exec_event *e = &w->traced->trace->tracks[thread].events[at];
  if (e->instruction == ISO_EVENT_FOLD) {
    put_span(w, COMPUTE_THREAD + thread, "fold", "update", e->began_s, e->ended_s);
    fprintf(w->file, ", \"args\": {\"step\": %lld, \"meets\": true", (long long)step);
    put_work(w, at, e);
    return;
  }
  const iso_instruction *in = &w->program->instructions[e->instruction];
  put_span(w, COMPUTE_THREAD + thread, iso_op_get(in->op)->text, in->phase == ISO_PHASE_MICRO ? "micro" : "update",
           e->began_s, e->ended_s);
  fprintf(w->file, ", \"args\": {\"step\": %lld, \"instruction\": %d, \"leaf\": %d, \"meets\": %s", (long long)step,
          e->instruction, e->leaf, in->barrier ? "true" : "false");
  for (int i = 0; i < in->output_count; i++) {
    if (!in->outputs[i].present) continue;
    put_shape(w, &in->outputs[i]);
    break;
  }
  put_work(w, at, e);
}

/* Events of a thread belong to the step that was under way. */
static void put_track(const writer *w, int thread) {
  const iso_traced *t = w->traced;
  const iso_exec_track *track = &t->trace->tracks[thread];
  int64_t s = 0;
  for (int64_t i = 0; i < track->count; i++) {
    const iso_exec_event *e = &track->events[i];
    while (s + 1 < t->count && e->began_s >= t->steps[s].ended_s) s++;
    put_event(w, thread, i, t->steps[s].step);
  }
}

static void put_stream(const writer *w, int stream) {
  const iso_traced *t = w->traced;
  for (int64_t i = 0; i < t->span_counts[stream]; i++) {
    const iso_busy_span *span = &t->spans[stream][i];
    const double seconds = span->ended_s - span->began_s;
    put_span(w, STREAM_THREAD + stream, span->name, stream == ISO_STREAM_COMM ? "comm" : "io", span->began_s,
             span->ended_s);
    fprintf(w->file, ", \"args\": {\"number\": %lld, \"bytes\": %lld, \"gb_per_s\": %.3f}}", (long long)span->number,
            (long long)span->bytes, seconds > 0 ? (double)span->bytes / seconds * 1e-9 : 0);
  }
}

static void put_rank(const writer *w) {
  const iso_traced *t = w->traced;
  fprintf(w->file, "%s{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_name\", \"args\": {\"name\": \"rank %d on ",
          t->rank ? ",\n" : "", t->rank, t->rank);
  for (const char *c = t->host; *c; c++) fputc(*c == '"' || *c == '\\' || (unsigned char)*c < ' ' ? '_' : *c, w->file);
  fprintf(w->file,
          "\"}},\n{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_sort_index\", \"args\": {\"sort_index\": %d}}",
          t->rank, t->rank);
  put_name(w, STEPS_THREAD, "steps", -1);
  for (int s = 0; s < ISO_TRACE_STREAMS; s++)
    if (t->span_counts[s]) put_name(w, STREAM_THREAD + s, stream_names[s], -1);
  for (int i = 0; i < t->trace->threads; i++) put_name(w, COMPUTE_THREAD + i, "compute thread", i);
  for (int64_t i = 0; i < t->count; i++) put_step(w, &t->steps[i]);
  for (int i = 0; i < t->trace->threads; i++) put_track(w, i);
  for (int s = 0; s < ISO_TRACE_STREAMS; s++) put_stream(w, s);
}

/* ---- files ---- */

static void part_path(const iso_traced *t, int rank, char path[4200]) {
  snprintf(path, 4200, "%s/trace-%08lld.rank-%d.part", t->run->config.run, (long long)t->number, rank);
}

/* `path` becomes `name` once it is whole; else it goes, as nobody could read it. */
static iso_status finish(FILE *file, const char *path, const char *name) {
  const bool failed = ferror(file) != 0;
  iso_status status = fclose(file) != 0 || failed ? iso_os_fail("write", path) : ISO_OK;
  if (status == ISO_OK && iso_os.rename(path, name) != 0) status = iso_os_fail("rename", path);
  if (status != ISO_OK) (void)iso_os.unlink(path);
  return status;
}

/* Steps that last come before a picture of them: behind a trace there stays room for two snapshots. */
static iso_status check_room(const iso_traced *t) {
  const char *run = t->run->config.run;
  int64_t events = t->count * STEP_EVENTS;
  for (int i = 0; i < t->trace->threads; i++) events += t->trace->tracks[i].count;
  for (int s = 0; s < ISO_TRACE_STREAMS; s++) events += t->span_counts[s];
  const int64_t bytes = events * EVENT_BYTES * (t->rank == 0 ? t->ranks : 1);
  const int64_t kept = 2 * iso_snapshot_bytes(&t->run->state), left = iso_disk_free(run);
  if (left < 0 || left >= bytes + kept) return ISO_OK;
  return iso_fail(ISO_ERR_SPACE,
                  "%s/trace-%08lld.json: no trace, training goes on: it takes up to %.1f MB and is to "
                  "leave room for two snapshots, of %.1f MB, but %.1f MB are free; free some space",
                  run, (long long)t->number, 1e-6 * (double)bytes, 1e-6 * (double)kept, 1e-6 * (double)left);
}

/* A new file, whatever stands under the name: no link is followed, no pipe waited for. */
static FILE *create(const char *path) {
  (void)iso_os.unlink(path);
  return fopen(path, "wxe");
}

/* Under its name it is whole. */
static iso_status write_part(const iso_traced *t) {
  char path[4200], next[4300];
  part_path(t, t->rank, path);
  snprintf(next, sizeof next, "%s.next", path);
  ISO_TRY(check_room(t));
  const writer w = {t, t->run->engine.program, create(next)};
  if (!w.file) return iso_os_fail("create", next);
  put_rank(&w);
  return finish(w.file, next, path);
}

static bool await_part(const char *path, double until_s) {
  while (!iso_path_exists(path)) {
    if (iso_clock_s() >= until_s) return false;
    nanosleep(&(struct timespec){0, 20000000}, NULL);
  }
  return true;
}

static bool append_part(const writer *w, const char *path) {
  char *piece = malloc(PIECE);
  FILE *part = piece ? fopen(path, "re") : NULL;
  size_t got = 0;
  while (part && (got = fread(piece, 1, PIECE, part)) > 0) fwrite(piece, 1, got, w->file);
  const bool good = part && !ferror(part);
  if (part) (void)fclose(part);
  free(piece);
  return good;
}

/* The other ranks' lines, as they come. Returns how many are missing. */
static int put_others(const writer *w) {
  const iso_traced *t = w->traced;
  const double until_s = iso_clock_s() + (t->alone ? 0 : PART_S);
  int missing = 0;
  for (int r = 1; r < t->ranks; r++) {
    char path[4200];
    part_path(t, r, path);
    const bool there = await_part(path, until_s) && append_part(w, path);
    missing += !there;
    (void)iso_os.unlink(path);
  }
  return missing;
}

static void put_head(const writer *w) {
  const iso_traced *t = w->traced;
  const iso_run *run = t->run;
  int64_t lost = t->lost;
  for (int i = 0; i < t->trace->threads; i++) lost += t->trace->tracks[i].lost;
  fprintf(w->file,
          "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"program\": \"isotach %s\", \"first_step\": %lld, \"steps\": "
          "%lld, \"ranks\": %d, \"threads\": %d, \"tokens_a_step\": %lld, \"lost\": %lld}, \"traceEvents\": [\n",
          ISO_VERSION, (long long)t->steps[0].step, (long long)t->count, t->ranks, t->trace->threads,
          (long long)(run->config.batch.sequences * run->config.data.sequence), (long long)lost);
}

iso_status iso_traced_write(const iso_traced *t) {
  if (t->rank != 0) return t->count ? write_part(t) : ISO_OK;
  char path[4200], next[4300];
  snprintf(path, sizeof path, "%s/trace-%08lld.json", t->run->config.run, (long long)t->number);
  snprintf(next, sizeof next, "%s.next", path);
  ISO_TRY(check_room(t));
  const writer w = {t, t->run->engine.program, create(next)};
  if (!w.file) return iso_os_fail("create", next);
  put_head(&w);
  put_rank(&w);
  const int missing = put_others(&w);
  fprintf(w.file, "\n]}\n");
  ISO_TRY(finish(w.file, next, path));
  if (missing) iso_warn("%s: what %d of %d ranks did is missing", path, missing, t->ranks);
  return ISO_OK;
}
