/* SPDX-License-Identifier: Apache-2.0
 *
 * Recording what a stretch of steps does: who ran which instruction when (exec/trace.c), what each step waited for, and
 * what the threads beside it did (base/span.c). tracing_write.c makes a file of it.
 *
 * Invariants
 *  1. Events are kept in memory of a fixed size while steps are taken; what does not fit is counted.
 *  2. The file is written by a thread of its own, from what nobody changes any more: no step waits for it.
 *  3. All ranks trace when rank 0 does, from the step after it began to the one after it ended.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "train/tracing.h"

enum { EVENTS = 1 << 20, STEPS = 1 << 16 };

struct iso_tracing {
  iso_run *run;
  iso_ranks *ranks; /* NULL: this is the only one */
  iso_exec_trace *trace;
  iso_step_times *steps;
  int64_t count, lost; /* steps */
  int64_t number;      /* the first step that rank 0 traces */
  double base_s, end_s;
  double write_s, data_s; /* of threads beside the steps, so far */
  bool counted, ended;
  int64_t span_from[ISO_STREAMS], span_counts[ISO_STREAMS];
  iso_busy_span *spans[ISO_STREAMS];
  bool alone; /* no other rank is waited for */
  pthread_t writer;
  bool writes;          /* there is one */
  _Atomic bool written; /* and it is done, with: */
  iso_status status;
};

static void add_wait(iso_step_times *times, iso_wait wait) {
  if (times->wait_count < ISO_STEP_WAITS && wait.ended_s > wait.began_s) times->waits[times->wait_count++] = wait;
}

void iso_step_times_wait(iso_step_times *times, iso_wait_kind why, double seconds, double ended_s) {
  add_wait(times, (iso_wait){why, ended_s - seconds, ended_s});
}

void iso_step_times_computed(iso_step_times *times, const iso_step *step, double computed_s) {
  for (int i = 0; i < step->wait_count; i++) add_wait(times, step->waits[i]);
  times->computed_s = computed_s;
}

static void destroy(iso_tracing *t) {
  for (int s = 0; s < ISO_STREAMS; s++) free(t->spans[s]);
  iso_exec_trace_destroy(&t->trace);
  free(t->steps);
  free(t);
}

static iso_status begin(iso_run *run, int64_t number, double base_s, double end_s, iso_tracing **out) {
  iso_tracing *t = calloc(1, sizeof *t);
  *out = NULL;
  if (t) t->steps = malloc(STEPS * sizeof *t->steps);
  if (!t || !t->steps) {
    free(t);
    return iso_fail(ISO_ERR_MEMORY, "%s: no memory for a trace", run->config.run);
  }
  const int threads = iso_device_threads(run->device);
  iso_status status = iso_exec_trace_create(threads, EVENTS / threads, &t->trace);
  if (status == ISO_OK) status = iso_spans_record(true);
  if (status != ISO_OK) {
    destroy(t);
    return status;
  }
  for (int s = 0; s < ISO_STREAMS; s++) t->span_from[s] = iso_spans_count((iso_stream_kind)s);
  iso_exec_trace_set(run->engine.exec, t->trace);
  t->run = run;
  t->ranks = run->options.ranks;
  t->number = number;
  t->base_s = base_s;
  t->end_s = end_s;
  *out = t;
  return ISO_OK;
}

/* Those of a start that was killed. */
static void remove_parts(const iso_run *run, int64_t number, int ranks) {
  for (int r = 1; r < ranks; r++) {
    char path[4200];
    snprintf(path, sizeof path, "%s/trace-%08lld.rank-%d.part", run->config.run, (long long)number, r);
    (void)iso_os.unlink(path);
  }
}

iso_status iso_tracing_begin(iso_run *run, double seconds, double from_s, iso_tracing **out) {
  const int64_t number = run->at.step + 1;
  ISO_TRY(begin(run, number, from_s, iso_clock_s() + seconds, out));
  if (!run->options.ranks) return ISO_OK;
  remove_parts(run, number, iso_ranks_plan_get(run->options.ranks)->count);
  iso_ranks_trace_set(run->options.ranks, number, from_s);
  return ISO_OK;
}

bool iso_tracing_step(iso_tracing *t, const iso_step_times *given, const iso_ring *ring) {
  iso_step_times kept = *given;
  iso_run *run = t->run;
  iso_wal_state log = {0};
  if (t->ended) return false;
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
  return given->ended_s >= t->end_s || t->trace->tracks[0].lost > 0;
}

void iso_tracing_follow(iso_run *run, const iso_step_times *times, const iso_ring *ring, iso_tracing **tracing) {
  double base_s;
  const int64_t wanted = iso_ranks_trace_get(run->options.ranks, &base_s);
  if (*tracing) (void)iso_tracing_step(*tracing, times, ring);
  if (*tracing && wanted != (*tracing)->number) iso_tracing_end(*tracing);
  if (iso_tracing_is_written(*tracing)) iso_tracing_close(tracing);
  if (wanted && !*tracing) (void)!begin(run, wanted, base_s, 1e18, tracing); /* else rank 0 goes without */
}

/* ---- its end ---- */

static void *write_file(void *argument) {
  iso_tracing *t = argument;
  char host[256] = "unknown";
  iso_owner me;
  iso_owner_self(&me);
  snprintf(host, sizeof host, "%s", me.host);
  iso_traced traced = {.run = t->run,
                       .rank = iso_ranks_number(t->ranks),
                       .ranks = t->ranks ? iso_ranks_plan_get(t->ranks)->count : 1,
                       .host = host,
                       .trace = t->trace,
                       .steps = t->steps,
                       .count = t->count,
                       .lost = t->lost,
                       .base_s = t->base_s,
                       .number = t->number,
                       .alone = t->alone};
  for (int s = 0; s < ISO_STREAMS; s++) {
    traced.spans[s] = t->spans[s];
    traced.span_counts[s] = t->span_counts[s];
  }
  t->status = iso_traced_write(&traced);
  atomic_store(&t->written, true);
  return NULL;
}

void iso_tracing_end(iso_tracing *t) {
  if (!t || t->ended) return;
  t->ended = true;
  iso_exec_trace_set(t->run->engine.exec, NULL);
  (void)!iso_spans_record(false);
  for (int s = 0; s < ISO_STREAMS; s++) {
    int64_t lost;
    t->span_counts[s] = iso_spans_copy((iso_stream_kind)s, t->span_from[s], &t->spans[s], &lost);
    t->lost += lost;
  }
  if (t->ranks && iso_ranks_number(t->ranks) == 0) iso_ranks_trace_set(t->ranks, 0, 0);
  t->alone = iso_ranks_lost(t->ranks);
  if (t->count == 0)
    atomic_store(&t->written, true); /* there is nothing to write */
  else if (iso_thread_start(&t->writer, write_file, t) == 0)
    t->writes = true;
  else
    (void)write_file(t);
}

bool iso_tracing_is_written(const iso_tracing *t) {
  return t && t->ended && atomic_load(&t->written);
}

void iso_tracing_close(iso_tracing **tracing) {
  iso_tracing *t = *tracing;
  if (!t) return;
  *tracing = NULL;
  iso_tracing_end(t);
  if (t->writes) (void)pthread_join(t->writer, NULL);
  if (t->count && t->status == ISO_OK && iso_ranks_number(t->ranks) == 0)
    iso_note("%s/trace-%08lld.json: steps %lld to %lld; isotach trace sums it up, ui.perfetto.dev draws it",
             t->run->config.run, (long long)t->number, (long long)t->steps[0].step,
             (long long)t->steps[t->count - 1].step);
  destroy(t);
}
