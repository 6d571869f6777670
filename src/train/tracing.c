/* SPDX-License-Identifier: Apache-2.0
 *
 * What a stretch of steps did, as a file for Perfetto or chrome://tracing (Trace Event Format: "X" spans with ts and
 * dur in microseconds, "C" counters, "M" names), one event a line, so that `isotach trace` reads it line by line.
 *
 * Events are kept in memory of a fixed size while steps are taken and written when the stretch is over; what did not
 * fit is counted in the file's head. Process 0 is rank 0; its threads: 1 the steps and their waits, 10 + i compute
 * thread i.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

enum { STEPS_THREAD = 1, COMPUTE_THREAD = 10, EVENTS = 1 << 20, STEPS = 1 << 16 };

struct iso_tracing {
  iso_run *run;
  iso_exec_trace *trace;
  iso_step_times *steps;
  int64_t count, lost; /* steps */
  double end_s;
  double write_s, data_s; /* of threads beside the steps, so far */
  bool counted;
};

iso_status iso_tracing_begin(iso_run *run, double seconds, iso_tracing **out) {
  iso_tracing *t = calloc(1, sizeof *t);
  *out = NULL;
  if (t) t->steps = malloc(STEPS * sizeof *t->steps);
  if (!t || !t->steps) {
    free(t);
    return iso_fail(ISO_ERR_MEMORY, "%s: no memory for a trace", run->config.run);
  }
  const int threads = iso_device_threads(run->device);
  const iso_status status = iso_exec_trace_create(threads, EVENTS / threads, &t->trace);
  if (status != ISO_OK) {
    free(t->steps);
    free(t);
    return status;
  }
  iso_exec_trace_set(run->engine.exec, t->trace);
  t->run = run;
  t->end_s = iso_clock_s() + seconds;
  *out = t;
  return ISO_OK;
}

bool iso_tracing_step(iso_tracing *t, const iso_step_times *given, const iso_ring *ring) {
  iso_step_times kept = *given, *times = &kept;
  iso_run *run = t->run;
  iso_wal_state log = {0};
  if (run->wal) iso_wal_state_get(run->wal, &log);
  const double write_s = log.write_s + log.sync_s, data_s = iso_ring_cpu_s(ring);
  kept.step = run->at.step;
  kept.durable = run->durable_step;
  kept.ring_depth = iso_ring_depth(ring);
  kept.log_write_s = t->counted ? write_s - t->write_s : 0;
  kept.data_cpu_s = t->counted ? data_s - t->data_s : 0;
  t->write_s = write_s;
  t->data_s = data_s;
  t->counted = true;
  if (t->count == STEPS)
    t->lost++;
  else
    t->steps[t->count++] = kept;
  return times->ended_s >= t->end_s || t->trace->tracks[0].lost > 0;
}

/* ---- the file ---- */

typedef struct writer {
  const iso_tracing *tracing;
  const iso_program *program;
  FILE *file;
} writer;

static double microseconds(const writer *w, double when_s) {
  return 1e6 * (when_s - w->tracing->steps[0].began_s);
}

static void put_name(const writer *w, int thread, const char *name, int number) {
  fprintf(w->file, ",\n{\"ph\": \"M\", \"pid\": 0, \"tid\": %d, \"name\": \"thread_name\", \"args\": {\"name\": \"%s",
          thread, name);
  if (number >= 0) fprintf(w->file, " %d", number);
  fprintf(w->file, "\"}}");
}

static void put_span(const writer *w, int thread, const char *name, const char *kind, double began_s, double ended_s) {
  fprintf(w->file,
          ",\n{\"ph\": \"X\", \"pid\": 0, \"tid\": %d, \"name\": \"%s\", \"cat\": \"%s\", \"ts\": %.3f, \"dur\": %.3f",
          thread, name, kind, microseconds(w, began_s), 1e6 * (ended_s - began_s));
}

static void put_wait(const writer *w, const char *name, const iso_step_times *s, double began_s, double ended_s) {
  if (ended_s <= began_s) return;
  put_span(w, STEPS_THREAD, name, "wait", began_s, ended_s);
  fprintf(w->file, ", \"args\": {\"step\": %lld}}", (long long)s->step);
}

static void put_step(const writer *w, const iso_step_times *s) {
  put_span(w, STEPS_THREAD, "step", "step", s->began_s, s->ended_s);
  fprintf(w->file,
          ", \"args\": {\"step\": %lld, \"data_wait_s\": %.9f, \"storage_wait_s\": %.9f, \"reduce_wait_s\": %.9f, "
          "\"compute_s\": %.9f, \"log_write_s\": %.9f, \"data_cpu_s\": %.9f}}",
          (long long)s->step, s->taken_s - s->take_s, s->storage_wait_s, s->reduce_wait_s, s->compute_s, s->log_write_s,
          s->data_cpu_s);
  put_wait(w, "data wait", s, s->take_s, s->taken_s);
  put_wait(w, "storage wait", s, s->taken_s, s->begin_s);
  put_wait(w, "compute", s, s->begin_s, s->computed_s);
  put_wait(w, "account", s, s->computed_s, s->ended_s);
  const double at = microseconds(w, s->ended_s);
  fprintf(w->file,
          ",\n{\"ph\": \"C\", \"pid\": 0, \"name\": \"batches ready\", \"ts\": %.3f, \"args\": {\"slots\": %d}}", at,
          s->ring_depth);
  fprintf(w->file,
          ",\n{\"ph\": \"C\", \"pid\": 0, \"name\": \"steps not durable\", \"ts\": %.3f, \"args\": {\"steps\": %lld}}",
          at, (long long)(s->step - s->durable));
}

static void put_shape(const writer *w, const iso_operand *operand) {
  fprintf(w->file, ", \"shape\": \"%s [", iso_dtype_name(operand->dtype));
  for (int i = 0; i < operand->rank; i++) fprintf(w->file, "%s%lld", i ? ", " : "", (long long)operand->shape[i]);
  fprintf(w->file, "]\"");
}

static void put_event(const writer *w, int thread, const iso_exec_event *e, int64_t step) {
  if (e->instruction == ISO_EVENT_FOLD) {
    put_span(w, COMPUTE_THREAD + thread, "fold", "update", e->began_s, e->ended_s);
    fprintf(w->file, ", \"args\": {\"step\": %lld, \"meets\": true}}", (long long)step);
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
  const double seconds = e->ended_s - e->began_s;
  fprintf(w->file, ", \"flop\": %lld, \"bytes\": %lld, \"gflops\": %.1f}}", (long long)in->flop, (long long)in->bytes,
          seconds > 0 ? (double)in->flop / seconds * 1e-9 : 0);
}

static void put_head(const writer *w, const iso_run *run) {
  const iso_tracing *t = w->tracing;
  int64_t lost = t->lost;
  for (int i = 0; i < t->trace->threads; i++) lost += t->trace->tracks[i].lost;
  fprintf(w->file,
          "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"program\": \"isotach %s\", \"first_step\": %lld, \"steps\": "
          "%lld, "
          "\"threads\": %d, \"tokens_a_step\": %lld, \"lost\": %lld}, \"traceEvents\": [\n",
          ISO_VERSION, (long long)t->steps[0].step, (long long)t->count, t->trace->threads,
          (long long)(run->config.batch.sequences * run->config.data.sequence), (long long)lost);
  fprintf(w->file, "{\"ph\": \"M\", \"pid\": 0, \"name\": \"process_name\", \"args\": {\"name\": \"rank 0\"}}");
  put_name(w, STEPS_THREAD, "steps", -1);
  for (int i = 0; i < t->trace->threads; i++) put_name(w, COMPUTE_THREAD + i, "compute thread", i);
}

/* Events of a thread belong to the step that was under way. */
static void put_track(const writer *w, int thread) {
  const iso_tracing *t = w->tracing;
  const iso_exec_track *track = &t->trace->tracks[thread];
  int64_t s = 0;
  for (int64_t i = 0; i < track->count; i++) {
    const iso_exec_event *e = &track->events[i];
    while (s + 1 < t->count && e->began_s >= t->steps[s].ended_s) s++;
    put_event(w, thread, e, t->steps[s].step);
  }
}

static iso_status write_file(const iso_run *run, const iso_tracing *t, const char *path) {
  writer w = {t, run->engine.program, fopen(path, "we")};
  if (!w.file) return iso_os_fail("create", path);
  put_head(&w, run);
  for (int64_t i = 0; i < t->count; i++) put_step(&w, &t->steps[i]);
  for (int i = 0; i < t->trace->threads; i++) put_track(&w, i);
  fprintf(w.file, "\n]}\n");
  const bool failed = ferror(w.file) != 0;
  return fclose(w.file) != 0 || failed ? iso_os_fail("write", path) : ISO_OK;
}

void iso_tracing_end(iso_tracing **tracing) {
  iso_tracing *t = *tracing;
  if (!t) return;
  iso_run *run = t->run;
  *tracing = NULL;
  iso_exec_trace_set(run->engine.exec, NULL);
  if (t->count) {
    char path[4096];
    const long long first = (long long)t->steps[0].step, last = (long long)t->steps[t->count - 1].step;
    snprintf(path, sizeof path, "%s/trace-%08lld.json", run->config.run, first);
    if (write_file(run, t, path) == ISO_OK) /* training goes on in any case */
      iso_note("%s: steps %lld to %lld; isotach trace sums it up, ui.perfetto.dev draws it", path, first, last);
  }
  iso_exec_trace_destroy(&t->trace);
  free(t->steps);
  free(t);
}
