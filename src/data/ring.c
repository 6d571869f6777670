/* SPDX-License-Identifier: Apache-2.0
 *
 * ring: batch slots, filled ahead of the step by data threads.
 *
 * K slots hold the batches of K consecutive steps. Thread n of N owns lanes n, n+N, n+2N, ... and fills their rows step
 * by step; a slot is full when every thread has done its rows. Threads wait only for slots, never for each other, and a
 * lane is one thread's for the ring's whole life, so what a row holds depends on its lane alone.
 *
 * Invariants
 *  1. Slots come out in step order, each once, and hold the same bits for any K and N.
 *  2. A slot is written only between its release and its being full; the taker owns it from take to release.
 *  3. An error belongs to a step: earlier batches still come out, that one and later ones never do.
 *  4. Stopping waits for at most one document's tokenisation per thread.
 *  5. The taker's thread allocates nothing in take and release.
 *
 * A slot being free for step s is "expects == s and not full"; everything in struct iso_ring below `lock` is guarded by
 * it, except the batch memory, which changes hands through it.
 */
#include "data/data.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALIGN_BYTES   64
#define MIN_SLOTS     2
#define MAX_SLOTS     8
#define MAX_THREADS   1024
#define NO_ERROR      INT64_MAX
#define LOOK_EVERY_NS 5000000 /* while waiting: at what the data threads do */

typedef struct slot_state {
  iso_slot slot;
  int64_t *bad;    /* [B]: distinct bad documents of each lane so far */
  int64_t expects; /* the step it is for */
  int done;        /* threads that have filled their rows */
  bool full, taken;
} slot_state;

typedef struct worker {
  iso_ring *ring;
  int number;
  pthread_t thread;
  iso_encoder *encoder;
  int64_t lane, step; /* being filled now (guarded; the lane only roughly) */
} worker;

struct iso_ring {
  iso_data_options options; /* batch, sequence, source_count, slots, threads are used */
  int64_t first_step;
  iso_lane **lanes; /* [B] */
  worker *workers;
  int worker_count, started;
  char *slab;
  size_t slab_bytes;

  pthread_mutex_t lock;
  pthread_cond_t freed, filled;
  slot_state *slots; /* [K]; step s is in slot s mod K */
  int64_t next_step; /* to be taken */
  bool stop;
  int64_t error_step; /* NO_ERROR, or the first step that cannot be had */
  iso_status error;
  char error_text[512];
  iso_ring_waits waits;
};

/* ---- memory ---- */

static size_t aligned(size_t bytes) {
  return (bytes + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
}

static size_t slot_bytes(const iso_data_options *o) {
  size_t batch = (size_t)o->batch;
  return 4 * aligned(batch * (size_t)o->sequence * sizeof(int32_t)) + 2 * aligned(batch * sizeof(int64_t)) +
         aligned(iso_data_cursor_count(o) * sizeof(iso_data_cursor));
}

size_t iso_ring_bytes(const iso_data_options *options) {
  return slot_bytes(options) * (size_t)options->slots;
}

static void *carve(char **at, size_t bytes) {
  void *piece = *at;
  *at += aligned(bytes);
  return piece;
}

static void lay_out_slot(const iso_data_options *o, char *at, slot_state *state) {
  size_t batch = (size_t)o->batch, ids = batch * (size_t)o->sequence * sizeof(int32_t);
  state->slot.tokens = carve(&at, ids);
  state->slot.labels = carve(&at, ids);
  state->slot.positions = carve(&at, ids);
  state->slot.segments = carve(&at, ids);
  state->slot.scored = carve(&at, batch * sizeof(int64_t));
  state->bad = carve(&at, batch * sizeof(int64_t));
  state->slot.cursors = carve(&at, iso_data_cursor_count(o) * sizeof(iso_data_cursor));
}

/* ---- data threads ---- */

static slot_state *slot_of(iso_ring *ring, int64_t step) {
  return &ring->slots[step % ring->options.slots];
}

static iso_status fill_rows(worker *me, slot_state *state) {
  iso_ring *ring = me->ring;
  int64_t T = ring->options.sequence;
  size_t cursors = iso_data_cursor_count(&ring->options) / (size_t)ring->options.batch;
  const iso_slot *slot = &state->slot;
  for (int64_t b = me->number; b < ring->options.batch; b += ring->worker_count) {
    pthread_mutex_lock(&ring->lock);
    me->lane = b;
    bool stop = ring->stop;
    pthread_mutex_unlock(&ring->lock);
    if (stop) return ISO_STOPPED;
    iso_sequence row = {slot->tokens + b * T, slot->labels + b * T, slot->positions + b * T, slot->segments + b * T};
    ISO_TRY(iso_lane_fill(ring->lanes[b], me->encoder, row, &slot->scored[b], slot->cursors + (size_t)b * cursors,
                          &state->bad[b]));
  }
  return ISO_OK;
}

/* With the lock held. */
static void note_error(iso_ring *ring, int64_t step, iso_status status) {
  if (step < ring->error_step) {
    ring->error_step = step;
    ring->error = status;
    snprintf(ring->error_text, sizeof ring->error_text, "%s", iso_last_error());
  }
  pthread_cond_broadcast(&ring->filled);
  pthread_cond_broadcast(&ring->freed);
}

static void *worker_run(void *argument) {
  worker *me = argument;
  iso_ring *ring = me->ring;
  for (int64_t step = ring->first_step;; step++) {
    slot_state *state = slot_of(ring, step);
    pthread_mutex_lock(&ring->lock);
    me->step = step;
    while (!ring->stop && ring->error_step > step && state->expects != step)
      pthread_cond_wait(&ring->freed, &ring->lock);
    bool leave = ring->stop || ring->error_step <= step;
    pthread_mutex_unlock(&ring->lock);
    if (leave) return NULL;
    iso_status status = fill_rows(me, state);
    if (status == ISO_STOPPED) return NULL;
    pthread_mutex_lock(&ring->lock);
    if (status != ISO_OK) {
      note_error(ring, step, status);
    } else if (++state->done == ring->worker_count) {
      state->full = true;
      pthread_cond_broadcast(&ring->filled);
    }
    pthread_mutex_unlock(&ring->lock);
    if (status != ISO_OK) return NULL;
  }
}

/* Signals are the main thread's business. */
static iso_status start_workers(iso_ring *ring) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int error = 0;
  for (int n = 0; n < ring->worker_count && error == 0; n++) {
    error = pthread_create(&ring->workers[n].thread, NULL, worker_run, &ring->workers[n]);
    ring->started += error == 0;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (error)
    return iso_fail(ISO_ERR_MEMORY, "data: cannot start data thread %d of %d: %s; lower data.threads",
                    ring->started + 1, ring->worker_count, strerror(error));
  return ISO_OK;
}

/* ---- starting and stopping ---- */

static iso_status check_options(const iso_data_options *o, const iso_data_options *corpus, int64_t first_step) {
  if (o->slots < MIN_SLOTS || o->slots > MAX_SLOTS)
    return iso_fail(ISO_ERR_CONFIG, "data.slots is %d; it must be %d to %d", o->slots, MIN_SLOTS, MAX_SLOTS);
  if (o->threads < 1 || o->threads > MAX_THREADS)
    return iso_fail(ISO_ERR_CONFIG, "data.threads is %d; it must be 1 to %d", o->threads, MAX_THREADS);
  if (o->batch != corpus->batch || o->sequence != corpus->sequence || o->source_count != corpus->source_count ||
      first_step < 0)
    return iso_fail(ISO_ERR_INTERNAL, "data: ring and corpus were given different options");
  return ISO_OK;
}

static iso_status prepare(iso_ring *ring, const iso_corpus *corpus, const iso_data_cursor *cursors) {
  const iso_data_options *o = &ring->options;
  size_t per_lane = iso_data_cursor_count(o) / (size_t)o->batch;
  ring->lanes = calloc((size_t)o->batch, sizeof *ring->lanes);
  ring->workers = calloc((size_t)ring->worker_count, sizeof *ring->workers);
  ring->slots = calloc((size_t)o->slots, sizeof *ring->slots);
  if (!ring->lanes || !ring->workers || !ring->slots)
    return iso_fail(ISO_ERR_MEMORY, "data: no memory for the batch ring of %lld lanes", (long long)o->batch);
  ring->slab_bytes = iso_ring_bytes(o);
  ring->slab = iso_slab_alloc(ring->slab_bytes, "batch ring");
  if (!ring->slab) return ISO_ERR_MEMORY;
  for (int64_t step = ring->first_step; step < ring->first_step + o->slots; step++) {
    slot_state *state = slot_of(ring, step);
    lay_out_slot(o, ring->slab + (size_t)(step % o->slots) * slot_bytes(o), state);
    state->expects = state->slot.step = step;
  }
  for (int64_t b = 0; b < o->batch; b++)
    ISO_TRY(iso_lane_create(corpus, b, cursors ? cursors + (size_t)b * per_lane : NULL, &ring->lanes[b]));
  for (int n = 0; n < ring->worker_count; n++) {
    worker *w = &ring->workers[n];
    *w = (worker){.ring = ring, .number = n, .lane = n, .step = ring->first_step};
    w->encoder = iso_encoder_create(iso_corpus_tokenizer(corpus));
    if (!w->encoder) return iso_fail(ISO_ERR_MEMORY, "data: no memory for data thread %d", n);
  }
  return ISO_OK;
}

iso_status iso_ring_start(const iso_corpus *corpus, const iso_data_options *options, int64_t first_step,
                          const iso_data_cursor *cursors, iso_ring **out) {
  *out = NULL;
  const iso_data_options *fixed = iso_corpus_options(corpus);
  ISO_TRY(check_options(options, fixed, first_step));
  iso_ring *ring = calloc(1, sizeof *ring);
  if (!ring) return iso_fail(ISO_ERR_MEMORY, "data: no memory for the batch ring");
  ring->options = *fixed;
  ring->options.slots = options->slots;
  ring->options.threads = options->threads;
  ring->worker_count = options->threads < options->batch ? options->threads : (int)options->batch;
  ring->first_step = ring->next_step = first_step;
  ring->error_step = NO_ERROR;
  ring->waits.stage = ring->waits.source = "";
  pthread_mutex_init(&ring->lock, NULL);
  pthread_cond_init(&ring->freed, NULL);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&ring->filled, &monotonic);
  pthread_condattr_destroy(&monotonic);
  iso_status status = prepare(ring, corpus, cursors);
  if (status == ISO_OK) status = start_workers(ring);
  if (status != ISO_OK) {
    iso_ring_stop(&ring);
    return status;
  }
  *out = ring;
  return ISO_OK;
}

void iso_ring_stop(iso_ring **ring_address) {
  iso_ring *ring = *ring_address;
  if (!ring) return;
  pthread_mutex_lock(&ring->lock);
  ring->stop = true;
  pthread_cond_broadcast(&ring->freed);
  pthread_mutex_unlock(&ring->lock);
  for (int n = 0; n < ring->started; n++) pthread_join(ring->workers[n].thread, NULL);
  for (int n = 0; ring->workers && n < ring->worker_count; n++) iso_encoder_destroy(&ring->workers[n].encoder);
  for (int64_t b = 0; ring->lanes && b < ring->options.batch; b++) iso_lane_destroy(&ring->lanes[b]);
  iso_slab_free(ring->slab, ring->slab_bytes);
  free(ring->slots);
  free(ring->workers);
  free(ring->lanes);
  pthread_cond_destroy(&ring->filled);
  pthread_cond_destroy(&ring->freed);
  pthread_mutex_destroy(&ring->lock);
  free(ring);
  *ring_address = NULL;
}

/* ---- the step's side ---- */

/* With the lock held: the lane that the thread furthest behind is filling. */
static const iso_lane *late_lane(const iso_ring *ring) {
  const worker *late = &ring->workers[0];
  for (int n = 1; n < ring->worker_count; n++)
    if (ring->workers[n].step < late->step) late = &ring->workers[n];
  return ring->lanes[late->lane];
}

/* With the lock held: waits until the slot is full or cannot be had; looks every few ms at what keeps it. */
static void wait_for_slot(iso_ring *ring, const slot_state *state, int64_t step, double begin) {
  static const char *const names[] = {"", "read", "tokenize", "pack"}; /* in the order of iso_lane_stage */
  int64_t seen[ISO_COUNT(names)] = {0}, sources[ISO_COUNT(names)] = {0};
  while (!state->full && ring->error_step > step) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_EVERY_NS;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    int64_t source;
    iso_lane_stage stage = iso_lane_stage_get(late_lane(ring), &source);
    seen[stage]++;
    sources[stage] = source;
    pthread_cond_timedwait(&ring->filled, &ring->lock, &until);
  }
  size_t most = ISO_LANE_READ;
  for (size_t i = most + 1; i < ISO_COUNT(names); i++)
    if (seen[i] > seen[most]) most = i;
  if (seen[most] == 0) most = ISO_LANE_IDLE;
  double waited_s = iso_clock_s() - begin;
  ring->waits.dry++;
  if (waited_s <= ring->waits.longest_wait_s) return;
  ring->waits.longest_wait_s = waited_s;
  ring->waits.stage = names[most];
  ring->waits.source = most == ISO_LANE_IDLE ? "" : ring->options.sources[sources[most]].path;
}

iso_status iso_ring_take(iso_ring *ring, iso_slot **slot, double *wait_s) {
  *slot = NULL;
  double begin = iso_clock_s();
  *wait_s = 0;
  pthread_mutex_lock(&ring->lock);
  int64_t step = ring->next_step;
  slot_state *state = slot_of(ring, step);
  iso_status status = ISO_OK;
  if (state->taken) {
    status = iso_fail(ISO_ERR_INTERNAL, "data: all %d slots are taken; release one first", ring->options.slots);
  } else {
    if (!state->full && ring->error_step > step) wait_for_slot(ring, state, step, begin);
    *wait_s = iso_clock_s() - begin;
    ring->waits.takes++;
    ring->waits.wait_s += *wait_s;
    if (!state->full) status = ring->error;
  }
  int64_t bad = 0;
  for (int64_t b = 0; status == ISO_OK && b < ring->options.batch; b++) bad += state->bad[b];
  if (bad > ring->options.max_bad_documents)
    status =
        iso_fail(ISO_ERR_FORMAT,
                 "data: %lld bad documents by step %lld, more than data.max_bad_documents (%lld); correct them (the "
                 "warnings name them) or raise the limit",
                 (long long)bad, (long long)step, (long long)ring->options.max_bad_documents);
  if (bad > ring->options.max_bad_documents) note_error(ring, step, status);
  if (status == ISO_OK) {
    state->taken = true;
    state->slot.bad_documents = bad;
    ring->next_step++;
    *slot = &state->slot;
  }
  pthread_mutex_unlock(&ring->lock);
  return status;
}

void iso_ring_release(iso_ring *ring, iso_slot *slot) {
  pthread_mutex_lock(&ring->lock);
  slot_state *state = slot_of(ring, slot->step);
  state->taken = state->full = false;
  state->done = 0;
  state->expects += ring->options.slots;
  state->slot.step = state->expects;
  pthread_cond_broadcast(&ring->freed);
  pthread_mutex_unlock(&ring->lock);
}

int iso_ring_depth(const iso_ring *ring) {
  iso_ring *mutable_ring = (iso_ring *)ring; /* for its lock only */
  int depth = 0;
  pthread_mutex_lock(&mutable_ring->lock);
  for (int k = 0; k < ring->options.slots; k++) depth += ring->slots[k].full && !ring->slots[k].taken;
  pthread_mutex_unlock(&mutable_ring->lock);
  return depth;
}

const char *iso_ring_error(const iso_ring *ring) {
  iso_ring *mutable_ring = (iso_ring *)ring;
  pthread_mutex_lock(&mutable_ring->lock);
  bool met = ring->error_step != NO_ERROR;
  pthread_mutex_unlock(&mutable_ring->lock);
  return met ? ring->error_text : "";
}

void iso_ring_waits_get(const iso_ring *ring, iso_ring_waits *waits) {
  iso_ring *mutable_ring = (iso_ring *)ring;
  pthread_mutex_lock(&mutable_ring->lock);
  *waits = ring->waits;
  pthread_mutex_unlock(&mutable_ring->lock);
}
