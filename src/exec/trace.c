/* SPDX-License-Identifier: Apache-2.0
 *
 * A record of which thread ran which instruction when. Each thread writes into memory of its own that was taken before,
 * so recording neither waits nor allocates; what does not fit is counted. Who wants only what each instruction takes
 * has sums in place of events, which always fit.
 */
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"

enum { LINE = 64 }; /* bytes of a cache line */

/* Tracks, with so many bytes for each of them in one slab. */
static iso_status create(int threads, int64_t capacity, size_t track_bytes, iso_exec_trace **out) {
  *out = NULL;
  iso_exec_trace *trace = calloc(1, sizeof *trace);
  if (trace) {
    trace->threads = threads;
    trace->capacity = capacity;
    trace->tracks = aligned_alloc(LINE, sizeof(iso_exec_track) * (size_t)threads);
    trace->slab_bytes = track_bytes * (size_t)threads;
  }
  char *slab = trace && trace->tracks ? iso_slab_alloc(trace->slab_bytes, "a trace's events") : NULL;
  if (!slab) {
    if (trace) free(trace->tracks);
    free(trace);
    return iso_fail(ISO_ERR_MEMORY, "trace: no memory for %lld events of %d threads", (long long)capacity, threads);
  }
  for (int i = 0; i < threads; i++) trace->tracks[i] = (iso_exec_track){0};
  trace->slab = slab;
  *out = trace;
  return ISO_OK;
}

iso_status iso_exec_trace_create(int threads, int64_t capacity, iso_exec_trace **out) {
  ISO_TRY(create(threads, capacity, sizeof(iso_exec_event) * (size_t)capacity, out));
  for (int i = 0; i < threads; i++) (*out)->tracks[i].events = (iso_exec_event *)(*out)->slab + (int64_t)i * capacity;
  return ISO_OK;
}

iso_status iso_exec_trace_create_sums(int threads, int instructions, iso_exec_trace **out) {
  const int64_t capacity = (int64_t)instructions + 1;
  const size_t bytes = (sizeof(iso_exec_sum) * (size_t)capacity + LINE - 1) / LINE * LINE;
  ISO_TRY(create(threads, capacity, bytes, out));
  for (int i = 0; i < threads; i++)
    (*out)->tracks[i].sums = (iso_exec_sum *)(void *)((char *)(*out)->slab + (size_t)i * bytes);
  iso_exec_trace_clear(*out);
  return ISO_OK;
}

void iso_exec_trace_clear(iso_exec_trace *trace) {
  for (int i = 0; i < trace->threads; i++) {
    iso_exec_track *track = &trace->tracks[i];
    track->count = track->lost = 0;
    if (track->sums) memset(track->sums, 0, sizeof *track->sums * (size_t)trace->capacity);
  }
}

void iso_exec_trace_destroy(iso_exec_trace **trace) {
  if (!trace || !*trace) return;
  iso_slab_free((*trace)->slab, (*trace)->slab_bytes);
  free((*trace)->tracks);
  free(*trace);
  *trace = NULL;
}

void iso_exec_trace_add(iso_exec_trace *trace, int thread, int instruction, int64_t leaf, iso_work work,
                        double began_s) {
  iso_exec_track *track = &trace->tracks[thread];
  if (track->sums) {
    iso_exec_sum *sum = &track->sums[instruction >= 0 ? instruction : trace->capacity - 1];
    sum->seconds += iso_clock_s() - began_s;
    sum->calls += work.bytes > 0;
    sum->work.flop += work.flop;
    sum->work.bytes += work.bytes;
    return;
  }
  if (track->count == trace->capacity) {
    track->lost++;
    return;
  }
  track->events[track->count++] = (iso_exec_event){began_s, iso_clock_s(), work, instruction, (int32_t)leaf};
}
