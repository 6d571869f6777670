/* SPDX-License-Identifier: Apache-2.0
 *
 * A record of which thread ran which instruction when. Each thread writes into memory of its own that was taken before,
 * so recording neither waits nor allocates; what does not fit is counted.
 */
#include <stdlib.h>

#include "exec/exec.h"

enum { LINE = 64 }; /* bytes of a cache line */

iso_status iso_exec_trace_create(int threads, int64_t capacity, iso_exec_trace **out) {
  *out = NULL;
  iso_exec_trace *trace = calloc(1, sizeof *trace);
  if (trace) {
    trace->threads = threads;
    trace->capacity = capacity;
    trace->tracks = aligned_alloc(LINE, sizeof(iso_exec_track) * (size_t)threads);
    trace->slab_bytes = sizeof(iso_exec_event) * (size_t)threads * (size_t)capacity;
  }
  iso_exec_event *events = trace && trace->tracks ? iso_slab_alloc(trace->slab_bytes, "a trace's events") : NULL;
  if (!events) {
    if (trace) free(trace->tracks);
    free(trace);
    return iso_fail(ISO_ERR_MEMORY, "trace: no memory for %lld events of %d threads", (long long)capacity, threads);
  }
  for (int i = 0; i < threads; i++) trace->tracks[i] = (iso_exec_track){.events = events + (int64_t)i * capacity};
  *out = trace;
  return ISO_OK;
}

void iso_exec_trace_destroy(iso_exec_trace **trace) {
  if (!trace || !*trace) return;
  iso_slab_free((*trace)->tracks[0].events, (*trace)->slab_bytes);
  free((*trace)->tracks);
  free(*trace);
  *trace = NULL;
}

void iso_exec_trace_add(iso_exec_trace *trace, int thread, int instruction, int64_t leaf, double began_s) {
  iso_exec_track *track = &trace->tracks[thread];
  if (track->count == trace->capacity) {
    track->lost++;
    return;
  }
  track->events[track->count++] = (iso_exec_event){began_s, iso_clock_s(), instruction, (int32_t)leaf};
}
