/* SPDX-License-Identifier: Apache-2.0
 *
 * What threads beside the steps do, and when, for a trace: one thread for each stream says so as it goes, while
 * somebody wants to know.
 *
 * Invariants
 *  1. A stream has one writer. It waits for nobody and takes no memory; while nobody records, it reads one flag.
 *  2. What was added is never moved: the newest CAPACITY spans of a stream can be copied at any time, those before are
 *     lost, and counted by who copies.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { CAPACITY = 1 << 15 };

static struct {
  iso_busy_span *spans; /* [CAPACITY], a ring; stays once it is there */
  _Atomic int64_t count;
} streams[ISO_STREAMS];
static _Atomic bool recording;

iso_status iso_spans_record(bool on) {
  for (int i = 0; i < ISO_STREAMS && on; i++) {
    if (!streams[i].spans) streams[i].spans = malloc(CAPACITY * sizeof(iso_busy_span));
    if (!streams[i].spans) return iso_fail(ISO_ERR_MEMORY, "trace: no memory for %d spans", CAPACITY);
  }
  atomic_store(&recording, on);
  return ISO_OK;
}

double iso_span_begin(void) {
  return atomic_load_explicit(&recording, memory_order_acquire) ? iso_clock_s() : 0;
}

void iso_span_end(iso_stream_kind stream, double began_s, const char *name, int64_t number, int64_t bytes) {
  if (began_s == 0) return;
  const int64_t at = atomic_load_explicit(&streams[stream].count, memory_order_relaxed);
  streams[stream].spans[at % CAPACITY] = (iso_busy_span){began_s, iso_clock_s(), name, number, bytes};
  atomic_store_explicit(&streams[stream].count, at + 1, memory_order_release);
}

int64_t iso_spans_count(iso_stream_kind stream) {
  return atomic_load_explicit(&streams[stream].count, memory_order_acquire);
}

int64_t iso_spans_copy(iso_stream_kind stream, int64_t from, iso_busy_span **out, int64_t *lost) {
  const int64_t end = iso_spans_count(stream);
  *out = NULL;
  *lost = end - from > CAPACITY / 2 ? end - from - CAPACITY / 2 : 0; /* the writer may be at work behind */
  const int64_t first = from + *lost, count = end - first;
  if (count <= 0 || !(*out = malloc((size_t)count * sizeof **out))) return 0;
  for (int64_t i = 0; i < count; i++) (*out)[i] = streams[stream].spans[(first + i) % CAPACITY];
  return count;
}
