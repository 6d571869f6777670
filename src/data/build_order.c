/* SPDX-License-Identifier: Apache-2.0
 *
 * build order: chunks of documents go out to threads, and what became of them comes back in their order.
 *
 * A chunk has a number. Threads take numbers one after the other and give batches of ids, which are written by number.
 * Whoever gives the batch that is due writes it, and what lies ready behind it, while the others go on: most batches
 * are then written by the core that has them in its cache. A chunk with one long document may come in several batches:
 * while it is due, what is there can be given at once and need not be held.
 *
 * Invariants
 *  1. Batches are written by number, those of one number in the order they were given, one at a time.
 *  2. Taken and not yet written are at most `window` chunks; no more are taken while more than HELD_BYTES wait. The
 *     chunk that is due has been taken, so the wait ends.
 *  3. A batch belongs to the thread that got it until it is given, then to the one that writes it.
 *  4. A thread that has given a batch looks for one to write before it does anything else, so none lies.
 */
#include "data/build.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WINDOW = 512, HELD_BYTES = 64 << 20, KEPT_BYTES = 4 << 20, WAIT_NS = 1000000 };

iso_status iso_build_order_init(iso_build_order *o, int64_t chunks) {
  *o = (iso_build_order){.chunks = chunks, .window = WINDOW};
  o->ready = calloc(WINDOW, sizeof *o->ready);
  pthread_condattr_t steady;
  pthread_condattr_init(&steady);
  pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
  pthread_mutex_init(&o->mutex, NULL);
  pthread_cond_init(&o->written, &steady);
  pthread_condattr_destroy(&steady);
  return o->ready ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "data build: no memory for the order of chunks");
}

static void destroy_batch(iso_build_batch *batch) {
  if (!batch) return;
  free(batch->ids);
  free(batch->lengths);
  free(batch->bad);
  iso_string_fini(&batch->error);
  free(batch);
}

void iso_build_order_fini(iso_build_order *o) {
  for (int64_t i = 0; o->ready && i < o->window; i++) destroy_batch(o->ready[i]);
  while (o->idle) {
    iso_build_batch *batch = o->idle;
    o->idle = batch->after;
    destroy_batch(batch);
  }
  free(o->ready);
  pthread_cond_destroy(&o->written);
  pthread_mutex_destroy(&o->mutex);
}

static bool is_over(const iso_build_order *o) {
  return o->stopped || o->ended || o->next == o->chunks;
}

static bool is_full(const iso_build_order *o) {
  return o->next - o->head >= o->window || o->held > HELD_BYTES;
}

int64_t iso_build_order_take(iso_build_order *o) {
  pthread_mutex_lock(&o->mutex);
  if (!is_over(o) && is_full(o)) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += WAIT_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&o->written, &o->mutex, &until);
  }
  const int64_t number = is_over(o) ? ISO_BUILD_OVER : is_full(o) ? ISO_BUILD_FULL : o->next++;
  pthread_mutex_unlock(&o->mutex);
  return number;
}

iso_build_batch *iso_build_order_batch(iso_build_order *o, int64_t number) {
  pthread_mutex_lock(&o->mutex);
  iso_build_batch *batch = o->idle;
  if (batch) o->idle = batch->after;
  pthread_mutex_unlock(&o->mutex);
  if (!batch) batch = calloc(1, sizeof *batch);
  if (!batch) {
    iso_fail(ISO_ERR_MEMORY, "data build: no memory for a batch of tokens");
    return NULL;
  }
  batch->number = number;
  batch->more = batch->takes_back = false;
  batch->used = batch->documents = batch->bad_count = 0;
  batch->bytes = 0;
  batch->status = ISO_OK;
  return batch;
}

/* With the lock. What a long document needed is not kept. */
static void put_back(iso_build_order *o, iso_build_batch *batch) {
  if (batch->capacity > KEPT_BYTES) {
    free(batch->ids);
    batch->ids = NULL;
    batch->capacity = 0;
  }
  batch->after = o->idle;
  o->idle = batch;
}

bool iso_build_order_is_awaited(iso_build_order *o, int64_t number, bool wait) {
  pthread_mutex_lock(&o->mutex);
  while (wait && !o->stopped && o->head != number) pthread_cond_wait(&o->written, &o->mutex);
  const bool is = o->head == number;
  pthread_mutex_unlock(&o->mutex);
  return is;
}

bool iso_build_order_is_stopped(iso_build_order *o) {
  pthread_mutex_lock(&o->mutex);
  const bool is = o->stopped;
  pthread_mutex_unlock(&o->mutex);
  return is;
}

void iso_build_order_give(iso_build_order *o, iso_build_batch *batch) {
  pthread_mutex_lock(&o->mutex);
  iso_build_batch **place = &o->ready[batch->number % o->window];
  while (!o->stopped && *place) pthread_cond_wait(&o->written, &o->mutex);
  if (batch->status != ISO_OK) o->ended = true;
  if (o->stopped) {
    put_back(o, batch);
  } else {
    *place = batch;
    o->held += (int64_t)batch->used;
  }
  pthread_mutex_unlock(&o->mutex);
}

iso_build_batch *iso_build_order_next(iso_build_order *o) {
  pthread_mutex_lock(&o->mutex);
  iso_build_batch **place = &o->ready[o->head % o->window], *batch = o->stopped || o->writing ? NULL : *place;
  if (batch) {
    *place = NULL;
    o->writing = true;
  }
  pthread_mutex_unlock(&o->mutex);
  return batch;
}

void iso_build_order_done(iso_build_order *o, iso_build_batch *batch) {
  pthread_mutex_lock(&o->mutex);
  o->writing = false;
  o->held -= (int64_t)batch->used;
  if (!batch->more) o->head++;
  put_back(o, batch);
  pthread_cond_broadcast(&o->written);
  pthread_mutex_unlock(&o->mutex);
}

static void set(iso_build_order *o, bool *flag) {
  pthread_mutex_lock(&o->mutex);
  *flag = true;
  pthread_cond_broadcast(&o->written);
  pthread_mutex_unlock(&o->mutex);
}

void iso_build_order_end(iso_build_order *o) {
  set(o, &o->ended);
}

void iso_build_order_stop(iso_build_order *o) {
  set(o, &o->stopped);
}

/* ---- a batch's content ---- */

/* The items, or NULL (logged), with room for `more` behind `used` of them. */
static void *with_room(void *items, size_t size, size_t used, size_t more, size_t least, size_t *capacity) {
  if (*capacity - used >= more) return items;
  size_t wanted = *capacity + *capacity / 2;
  if (wanted < used + more) wanted = used + more;
  if (wanted < least) wanted = least;
  void *grown = realloc(items, wanted * size);
  if (grown)
    *capacity = wanted;
  else
    iso_fail(ISO_ERR_MEMORY, "data build: no memory for %zu more bytes of a batch", more * size);
  return grown;
}

iso_status iso_build_batch_reserve(iso_build_batch *b, size_t bytes) {
  enum { LEAST_BYTES = 1 << 18 };
  char *ids = with_room(b->ids, 1, b->used, bytes, LEAST_BYTES, &b->capacity);
  if (!ids) return ISO_ERR_MEMORY;
  b->ids = ids;
  return ISO_OK;
}

iso_status iso_build_batch_count(iso_build_batch *b, int32_t tokens) {
  enum { LEAST = 1024 };
  int32_t *lengths = with_room(b->lengths, sizeof *lengths, b->documents, 1, LEAST, &b->length_capacity);
  if (!lengths) return ISO_ERR_MEMORY;
  b->lengths = lengths;
  lengths[b->documents++] = tokens;
  return ISO_OK;
}

iso_status iso_build_batch_leave_out(iso_build_batch *b, int64_t document, const iso_bad *why) {
  enum { LEAST = 8 };
  iso_build_bad *bad = with_room(b->bad, sizeof *bad, b->bad_count, 1, LEAST, &b->bad_capacity);
  if (!bad) return ISO_ERR_MEMORY;
  b->bad = bad;
  bad[b->bad_count++] = (iso_build_bad){document, *why};
  return ISO_OK;
}
