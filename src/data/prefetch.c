/* SPDX-License-Identifier: Apache-2.0
 *
 * prefetch: text of slow sources, read before its lane needs it.
 *
 * Where a lane goes next is known without reading (walk.c), so a pool of fetch threads reads the lanes' next spans side
 * by side, always for the lane that has least ahead. The lane takes its spans in order; a wait happens only when the
 * pool as a whole is slower than the step.
 *
 * Invariants
 *  1. A lane gets its spans in the order of its walk, each once: what it makes of them does not depend on timing.
 *  2. Bytes read ahead and not yet taken are at most iso_prefetch_limit() a lane, plus one span.
 *  3. A read that failed is kept as such: the lane reads that span again itself when it comes to it, so that the error,
 *     if it stays, belongs to the step that needs the bytes. Beyond it nothing more is read for that lane.
 *  4. Stopping waits for the reads under way, no longer (iso_ring_stop breaks them off).
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

#define ALL_LANES_BYTES (16LL << 20) /* of text ahead, over all lanes */
#define LANE_LEAST      (64LL << 10)
#define LANE_MOST       (512LL << 10)
#define MAX_SPANS       32 /* of a lane, read ahead or being read */

typedef enum span_state { SPAN_READING, SPAN_READ, SPAN_FAILED } span_state;

typedef struct fetched {
  iso_span span;
  char *bytes;
  span_state state;
} fetched;

typedef struct lane_ahead {
  iso_walk walk; /* of the next span to read: document `walk.next` */
  fetched spans[MAX_SPANS];
  int first, count; /* in `spans`, as a ring */
  int64_t bytes;
  bool failed; /* nothing more is read */
} lane_ahead;

struct iso_prefetch {
  const iso_corpus *corpus;
  int64_t lane_count, limit;
  lane_ahead *lanes;
  pthread_t *threads;
  int thread_count, started;
  pthread_mutex_t lock; /* guards everything below, and the lanes */
  pthread_cond_t room, arrived;
  bool stop;
  int64_t bytes, most_bytes;
};

int64_t iso_prefetch_limit(int64_t lanes) {
  const int64_t share = ALL_LANES_BYTES / lanes;
  return share < LANE_LEAST ? LANE_LEAST : share > LANE_MOST ? LANE_MOST : share;
}

/* With the lock held: the lane that has least ahead, of those that may have more; NULL when all have enough. */
static lane_ahead *neediest(iso_prefetch *p) {
  lane_ahead *best = NULL;
  for (int64_t b = 0; b < p->lane_count; b++) {
    lane_ahead *lane = &p->lanes[b];
    if (lane->failed || lane->count == MAX_SPANS || lane->bytes >= p->limit) continue;
    if (!best || lane->bytes < best->bytes) best = lane;
    if (best->bytes == 0) break;
  }
  return best;
}

/* With the lock held: the lane's next span, as one that is being read. */
static fetched *begin_span(iso_prefetch *p, lane_ahead *lane) {
  while (lane->walk.next == lane->walk.end) iso_walk_next_block(&lane->walk);
  fetched *f = &lane->spans[(lane->first + lane->count++) % MAX_SPANS];
  iso_walk_span(&lane->walk, lane->walk.next, p->limit / 2, &f->span);
  f->state = SPAN_READING;
  f->bytes = NULL;
  lane->walk.next = f->span.end;
  lane->bytes += f->span.bytes;
  p->bytes += f->span.bytes;
  if (p->bytes > p->most_bytes) p->most_bytes = p->bytes;
  return f;
}

static void *fetch_run(void *argument) {
  iso_prefetch *p = argument;
  iso_data_thread_settle();
  pthread_mutex_lock(&p->lock);
  while (!p->stop) {
    lane_ahead *lane = neediest(p);
    if (!lane) {
      pthread_cond_wait(&p->room, &p->lock);
      continue;
    }
    fetched *f = begin_span(p, lane); /* its place in the ring stays: the lane takes it only when it is read */
    const iso_span span = f->span;
    pthread_mutex_unlock(&p->lock);
    char *bytes = malloc((size_t)span.bytes);
    const bool read = bytes && iso_source_read(iso_corpus_source(p->corpus, span.source), span.file, span.offset,
                                               span.bytes, bytes) == ISO_OK;
    pthread_mutex_lock(&p->lock);
    f->state = read ? SPAN_READ : SPAN_FAILED;
    if (read) {
      f->bytes = bytes;
    } else {
      free(bytes);
      lane->failed = true;
    }
    pthread_cond_broadcast(&p->arrived);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

iso_status iso_prefetch_start(const iso_corpus *corpus, int threads, iso_prefetch **out) {
  *out = NULL;
  iso_prefetch *p = calloc(1, sizeof *p);
  if (!p) return iso_fail(ISO_ERR_MEMORY, "data: no memory to read ahead");
  p->corpus = corpus;
  p->lane_count = iso_corpus_options(corpus)->batch;
  p->limit = iso_prefetch_limit(p->lane_count);
  p->thread_count = threads;
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->room, NULL);
  pthread_cond_init(&p->arrived, NULL);
  p->lanes = calloc((size_t)p->lane_count, sizeof *p->lanes);
  p->threads = calloc((size_t)threads, sizeof *p->threads);
  if (p->lanes && p->threads) {
    for (int64_t b = 0; b < p->lane_count; b++) p->lanes[b].failed = true; /* until a lane begins */
    *out = p;
    return ISO_OK;
  }
  iso_prefetch_stop(&p);
  return iso_fail(ISO_ERR_MEMORY, "data: no memory to read ahead for %lld lanes",
                  (long long)iso_corpus_options(corpus)->batch);
}

iso_status iso_prefetch_begin(iso_prefetch *p, const iso_walk *walk) {
  lane_ahead *lane = &p->lanes[walk->lane];
  ISO_TRY(iso_walk_copy(&lane->walk, walk));
  lane->failed = false;
  return ISO_OK;
}

iso_status iso_prefetch_run(iso_prefetch *p) {
  for (; p->started < p->thread_count; p->started++) {
    const int error = iso_thread_start(&p->threads[p->started], fetch_run, p);
    if (error)
      return iso_fail(ISO_ERR_MEMORY, "data: cannot start fetch thread %d of %d: %s; lower data.prefetch",
                      p->started + 1, p->thread_count, strerror(error));
  }
  return ISO_OK;
}

void iso_prefetch_interrupt(iso_prefetch *p) {
  if (!p) return;
  pthread_mutex_lock(&p->lock);
  p->stop = true;
  pthread_cond_broadcast(&p->room);
  pthread_cond_broadcast(&p->arrived);
  pthread_mutex_unlock(&p->lock);
}

void iso_prefetch_stop(iso_prefetch **address) {
  iso_prefetch *p = *address;
  if (!p) return;
  iso_prefetch_interrupt(p);
  for (int n = 0; n < p->started; n++) pthread_join(p->threads[n], NULL);
  for (int64_t b = 0; p->lanes && b < p->lane_count; b++) {
    lane_ahead *lane = &p->lanes[b];
    for (int i = 0; i < lane->count; i++) free(lane->spans[(lane->first + i) % MAX_SPANS].bytes);
    iso_walk_fini(&lane->walk);
  }
  free(p->lanes);
  free(p->threads);
  pthread_cond_destroy(&p->arrived);
  pthread_cond_destroy(&p->room);
  pthread_mutex_destroy(&p->lock);
  free(p);
  *address = NULL;
}

iso_status iso_prefetch_take(iso_prefetch *p, int64_t lane_index, iso_span *span, char **bytes) {
  lane_ahead *lane = &p->lanes[lane_index];
  *bytes = NULL;
  pthread_mutex_lock(&p->lock);
  while (!p->stop && (lane->count == 0 ? !lane->failed : lane->spans[lane->first].state == SPAN_READING))
    pthread_cond_wait(&p->arrived, &p->lock);
  iso_status status = p->stop ? ISO_STOPPED : ISO_OK;
  if (status == ISO_OK && lane->count == 0)
    status = iso_fail(ISO_ERR_INTERNAL, "data: lane %lld reads on after a failed read", (long long)lane_index);
  if (status == ISO_OK) {
    fetched *f = &lane->spans[lane->first];
    *span = f->span;
    *bytes = f->bytes; /* NULL: the read failed */
    f->bytes = NULL;
    lane->first = (lane->first + 1) % MAX_SPANS;
    lane->count--;
    lane->bytes -= span->bytes;
    p->bytes -= span->bytes;
    if (!*bytes) lane->failed = false; /* the lane reads it itself; if it can, all goes on */
    pthread_cond_signal(&p->room);
  }
  pthread_mutex_unlock(&p->lock);
  return status;
}

int64_t iso_prefetch_most_bytes(iso_prefetch *p) {
  pthread_mutex_lock(&p->lock);
  const int64_t most = p->most_bytes;
  pthread_mutex_unlock(&p->lock);
  return most;
}
