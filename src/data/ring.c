/* SPDX-License-Identifier: Apache-2.0
 *
 * ring: batch slots, filled ahead of the step by data threads.
 *
 * K slots hold the batches of K consecutive steps. Thread n of N owns lanes n, n+N, n+2N, ... and fills their rows step
 * by step; a slot is full when every thread has done its rows. Threads wait only for slots, never for each other, and a
 * lane is one thread's for the ring's whole life, so what a row holds depends on its lane alone.
 *
 * A slot changes hands by two numbers: `expects`, the step it may be filled for, and `ready`, the step it is filled
 * with. Taking a filled slot and releasing one take no lock; the lock is for those who sleep. A thread that found no
 * free slot sleeps until a few of them are free (or the step waits), so that it is woken once for several batches.
 *
 * A data thread gets a core only some milliseconds after it was woken when the compute team holds them all (threads.c).
 * The slots that are still filled then have to last so long, so short steps need more of them: iso_ring_slots.
 *
 * A step is starved when it finds no filled slot, however short the wait.
 *
 * Invariants
 *  1. Slots come out in step order, each once, and hold the same bits for any K and N, and on demand.
 *  2. A slot is written only between its release and its being ready; the taker owns it from take to release.
 *  3. An error belongs to a step: earlier batches still come out, that one and later ones never do.
 *  4. Stopping waits for at most one document's tokenisation, or one local read, per thread; remote ones are broken
 * off.
 *  5. The taker's thread allocates nothing in take and release, unless it is to tokenise on demand.
 *  6. No lost wake-up: who sleeps announces itself before it looks for the last time, who changes something does so
 *     before it looks at the announcement; all four are sequentially consistent.
 *  7. Every starved take names a stage and a source.
 */
#include "data/data.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALIGN_BYTES    64
#define MIN_SLOTS      2
#define MAX_SLOTS      64
#define WAKE_SLOTS     4             /* free ones that a sleeping data thread is woken for, if not half of them */
#define SMALL_RING     (512LL << 10) /* bytes: a ring of so many costs nothing */
#define MAX_THREADS    1024
#define NO_ERROR       INT64_MAX
#define LOOK_EVERY_S   5e-3         /* while waiting: at what the data threads do */
#define FIRST_LOOK_S   1e-4         /* and the first time; twice as long from one to the next */
#define FETCH_THREADS  16           /* data.prefetch: auto */
#define PLANNED_BYTES  (32LL << 10) /* of a document that the memory plan counts on */
#define PLANNED_FACTOR 7            /* its tokens, at most one a byte, with room to grow: 5; its unescaped text: 2 */

typedef struct slot_state {
  iso_slot slot;
  int64_t *bad;             /* [B]: distinct bad documents of each lane so far */
  int64_t skipped_capacity; /* of slot.skipped, which the lock guards while it is filled */
  _Atomic int64_t expects;  /* the step it may be filled for */
  _Atomic int64_t ready;    /* the step it is filled with; -1: none */
  _Atomic int done;         /* threads that have filled their rows */
  bool taken;               /* the taker's own */
} slot_state;

typedef struct worker {
  iso_ring *ring;
  int number;
  pthread_t thread;
  iso_encoder *encoder;
  _Atomic int64_t lane, step; /* being filled now */
  double slowest_s;           /* on demand: what the lane took that took longest */
  int64_t slowest;
  double read_s; /* of all lanes, for reading */
} worker;

struct iso_ring {
  iso_data_options options; /* batch, sequence, source_count, slots, threads, prefetch, on_demand are used */
  int64_t first_step;
  iso_lane **lanes; /* [B] */
  iso_prefetch *prefetch;
  iso_whole *whole;
  worker *workers;
  int worker_count, started;
  char *slab;
  size_t slab_bytes;
  slot_state *slots; /* [K]; step s is in slot s mod K */

  int64_t next_step; /* to be taken: the taker's own, as is: */
  iso_ring_waits waits;

  _Atomic bool stop;
  _Atomic int64_t error_step; /* NO_ERROR, or the first step that cannot be had */
  _Atomic int sleepers;       /* data threads that wait for slots */
  _Atomic bool taker_waits, paused;
  pthread_mutex_t lock; /* of sleeping, and of the next two */
  pthread_cond_t freed, filled;
  iso_status error;
  char error_text[512];
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

int iso_ring_slots(const iso_data_options *options) {
  if (options->on_demand) return options->slots;
  const int64_t fit = SMALL_RING / (int64_t)slot_bytes(options);
  return fit > MAX_SLOTS ? MAX_SLOTS : fit > options->slots ? (int)fit : options->slots;
}

static int fetch_threads(const iso_data_options *o, bool remote) {
  if (o->on_demand) return 0;
  return o->prefetch >= 0 ? o->prefetch : remote ? FETCH_THREADS : 0;
}

void iso_ring_plan_get(const iso_data_options *options, bool remote, iso_ring_plan *plan) {
  const size_t batch = (size_t)options->batch, ahead = (size_t)iso_prefetch_limit(options->batch);
  const bool fetches = fetch_threads(options, remote) > 0;
  const size_t text = fetches && ahead / 2 > ISO_LANE_TEXT_BYTES ? ahead / 2 : ISO_LANE_TEXT_BYTES;
  *plan = (iso_ring_plan){.slots = iso_ring_bytes(options),
                          .lanes = batch * (text + PLANNED_FACTOR * PLANNED_BYTES),
                          .prefetch = fetches ? batch * (ahead + ahead / 2) : 0};
}

size_t iso_ring_held(const iso_ring *ring) {
  size_t bytes = iso_whole_bytes(ring->whole);
  if (ring->prefetch) bytes += (size_t)iso_prefetch_most_bytes(ring->prefetch);
  for (int64_t b = 0; b < ring->options.batch; b++) bytes += iso_lane_bytes(ring->lanes[b]);
  return bytes;
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

/* ---- filling ---- */

static slot_state *slot_of(const iso_ring *ring, int64_t step) {
  return &ring->slots[step % ring->options.slots];
}

/* What the lane has left out in this fill goes into the slot. */
static iso_status keep_skipped(iso_ring *ring, const iso_lane *lane, slot_state *state) {
  const iso_skipped *skipped;
  const int64_t count = iso_lane_skipped(lane, &skipped);
  if (count == 0) return ISO_OK;
  iso_slot *slot = &state->slot;
  pthread_mutex_lock(&ring->lock);
  if (slot->skipped_count + count > state->skipped_capacity) {
    const int64_t wanted = 2 * (slot->skipped_count + count);
    iso_skipped *grown = realloc(slot->skipped, (size_t)wanted * sizeof *grown);
    if (grown) slot->skipped = grown, state->skipped_capacity = wanted;
  }
  const bool room = slot->skipped_count + count <= state->skipped_capacity;
  if (room) {
    memcpy(slot->skipped + slot->skipped_count, skipped, (size_t)count * sizeof *skipped);
    slot->skipped_count += count;
  }
  pthread_mutex_unlock(&ring->lock);
  return room ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "data: no memory to list bad documents");
}

static iso_status fill_rows(worker *me, slot_state *state) {
  iso_ring *ring = me->ring;
  int64_t T = ring->options.sequence;
  size_t cursors = iso_data_cursor_count(&ring->options) / (size_t)ring->options.batch;
  const iso_slot *slot = &state->slot;
  if (me->number == 0) iso_whole_next_round(ring->whole);
  for (int64_t b = me->number; b < ring->options.batch; b += ring->worker_count) {
    atomic_store_explicit(&me->lane, b, memory_order_relaxed);
    if (atomic_load_explicit(&ring->stop, memory_order_relaxed)) return ISO_STOPPED;
    const double began = ring->options.on_demand ? iso_clock_s() : 0;
    iso_sequence row = {slot->tokens + b * T, slot->labels + b * T, slot->positions + b * T, slot->segments + b * T};
    ISO_TRY(iso_lane_fill(ring->lanes[b], me->encoder, row, &slot->scored[b], slot->cursors + (size_t)b * cursors,
                          &state->bad[b]));
    ISO_TRY(keep_skipped(ring, ring->lanes[b], state));
    const double took_s = ring->options.on_demand ? iso_clock_s() - began : 0;
    if (took_s > me->slowest_s) me->slowest_s = took_s, me->slowest = b;
  }
  return ISO_OK;
}

static void note_error(iso_ring *ring, int64_t step, iso_status status) {
  pthread_mutex_lock(&ring->lock);
  if (step < atomic_load(&ring->error_step)) {
    ring->error = status;
    snprintf(ring->error_text, sizeof ring->error_text, "%s", iso_last_error());
    atomic_store(&ring->error_step, step);
  }
  pthread_cond_broadcast(&ring->filled);
  pthread_cond_broadcast(&ring->freed);
  pthread_mutex_unlock(&ring->lock);
}

/* ---- data threads ---- */

/* Slots that a thread that slept wants to find free. */
static int64_t wanted_slots(const iso_ring *ring) {
  return ring->options.slots / 2 < WAKE_SLOTS ? ring->options.slots / 2 : WAKE_SLOTS;
}

static bool over(const iso_ring *ring, int64_t step) {
  return atomic_load(&ring->stop) || atomic_load(&ring->error_step) <= step;
}

/* Waits until the slot may be filled for `step`; false: there is nothing more to do. */
static bool wait_until_free(iso_ring *ring, slot_state *state, int64_t step) {
  if (atomic_load(&state->expects) == step && !atomic_load(&ring->paused)) return !over(ring, step);
  const int64_t further = step + wanted_slots(ring) - 1;
  pthread_mutex_lock(&ring->lock);
  atomic_fetch_add(&ring->sleepers, 1);
  pthread_cond_broadcast(&ring->filled); /* for who pauses */
  for (;;) {
    if (over(ring, step)) break;
    const bool is_free = atomic_load(&state->expects) == step && !atomic_load(&ring->paused);
    if (is_free && (atomic_load(&ring->taker_waits) || atomic_load(&slot_of(ring, further)->expects) == further)) break;
    pthread_cond_wait(&ring->freed, &ring->lock);
  }
  atomic_fetch_sub(&ring->sleepers, 1);
  pthread_mutex_unlock(&ring->lock);
  return !over(ring, step);
}

static void make_ready(iso_ring *ring, slot_state *state, int64_t step) {
  atomic_store(&state->ready, step);
  if (!atomic_load(&ring->taker_waits)) return;
  pthread_mutex_lock(&ring->lock);
  pthread_cond_broadcast(&ring->filled);
  pthread_mutex_unlock(&ring->lock);
}

static void *worker_run(void *argument) {
  worker *me = argument;
  iso_ring *ring = me->ring;
  iso_data_thread_settle();
  for (int64_t step = ring->first_step;; step++) {
    slot_state *state = slot_of(ring, step);
    atomic_store_explicit(&me->step, step, memory_order_relaxed);
    if (!wait_until_free(ring, state, step)) return NULL;
    const iso_status status = fill_rows(me, state);
    if (status == ISO_STOPPED && atomic_load(&ring->stop)) return NULL;
    if (status != ISO_OK) {
      note_error(ring, step, status);
      return NULL;
    }
    if (atomic_fetch_add(&state->done, 1) + 1 == ring->worker_count) make_ready(ring, state, step);
  }
}

static iso_status start_workers(iso_ring *ring) {
  if (ring->prefetch) ISO_TRY(iso_prefetch_run(ring->prefetch));
  for (; !ring->options.on_demand && ring->started < ring->worker_count; ring->started++) {
    worker *w = &ring->workers[ring->started];
    const int error = iso_thread_start(&w->thread, worker_run, w);
    if (error)
      return iso_fail(ISO_ERR_MEMORY, "data: cannot start data thread %d of %d: %s; lower data.threads",
                      ring->started + 1, ring->worker_count, strerror(error));
  }
  return ISO_OK;
}

/* ---- starting and stopping ---- */

static iso_status check_options(const iso_data_options *o, const iso_data_options *corpus, int64_t first_step) {
  if (o->slots < MIN_SLOTS || o->slots > MAX_SLOTS)
    return iso_fail(ISO_ERR_CONFIG, "data.slots is %d; it must be %d to %d", o->slots, MIN_SLOTS, MAX_SLOTS);
  if (o->threads < 1 || o->threads > MAX_THREADS)
    return iso_fail(ISO_ERR_CONFIG, "data.threads is %d; it must be 1 to %d", o->threads, MAX_THREADS);
  if (o->prefetch < -1 || o->prefetch > MAX_THREADS)
    return iso_fail(ISO_ERR_CONFIG, "data.prefetch is %d; it must be 0 to %d, or auto", o->prefetch, MAX_THREADS);
  if (o->batch != corpus->batch || o->sequence != corpus->sequence || o->source_count != corpus->source_count ||
      first_step < 0)
    return iso_fail(ISO_ERR_INTERNAL, "data: ring and corpus were given different options");
  return ISO_OK;
}

static bool any_remote(const iso_corpus *corpus) {
  for (size_t s = 0; s < iso_corpus_options(corpus)->source_count; s++)
    if (iso_source_remote(iso_corpus_source(corpus, (int64_t)s))) return true;
  return false;
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
    state->slot.step = step;
    atomic_init(&state->expects, step);
    atomic_init(&state->ready, -1);
  }
  const int fetchers = fetch_threads(o, any_remote(corpus));
  if (fetchers) ISO_TRY(iso_prefetch_start(corpus, fetchers, &ring->prefetch));
  ISO_TRY(iso_whole_create(corpus, o->batch * ISO_LANE_TEXT_BYTES, !o->on_demand, &ring->whole));
  for (int64_t b = 0; b < o->batch; b++) {
    ISO_TRY(iso_lane_create(corpus, b, cursors ? cursors + (size_t)b * per_lane : NULL, &ring->lanes[b]));
    iso_lane_share(ring->lanes[b], ring->whole);
    if (o->on_demand) iso_lane_time_reads(ring->lanes[b], &ring->workers[0].read_s);
    if (ring->prefetch) ISO_TRY(iso_lane_read_ahead(ring->lanes[b], ring->prefetch));
  }
  for (int64_t i = 0; i < o->known_count; i++) {
    const iso_skipped *known = &o->known[i];
    if (known->lane < 0 || known->lane >= o->batch)
      return iso_fail(ISO_ERR_MISMATCH, "data: a left-out document is listed of lane %lld, but there are %lld lanes",
                      (long long)known->lane, (long long)o->batch);
    ISO_TRY(iso_lane_know(ring->lanes[known->lane], known->source, known->document));
  }
  for (int n = 0; n < ring->worker_count; n++) {
    worker *w = &ring->workers[n];
    w->ring = ring;
    w->number = n;
    atomic_init(&w->lane, n);
    atomic_init(&w->step, ring->first_step);
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
  ring->options.prefetch = options->prefetch;
  ring->options.on_demand = options->on_demand;
  ring->options.known = options->known;
  ring->options.known_count = options->known_count;
  ring->worker_count = options->threads < options->batch ? options->threads : (int)options->batch;
  if (options->on_demand) ring->worker_count = 1;
  ring->first_step = ring->next_step = first_step;
  atomic_init(&ring->error_step, NO_ERROR);
  ring->waits.stage = ring->waits.source = ring->waits.last_stage = ring->waits.last_source = "";
  pthread_mutex_init(&ring->lock, NULL);
  pthread_cond_init(&ring->freed, NULL);
  iso_condition_init(&ring->filled);
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
  atomic_store(&ring->stop, true);
  pthread_cond_broadcast(&ring->freed);
  pthread_mutex_unlock(&ring->lock);
  iso_prefetch_interrupt(ring->prefetch);
  iso_blob_interrupt(true);
  for (int n = 0; n < ring->started; n++) pthread_join(ring->workers[n].thread, NULL);
  for (int n = 0; ring->workers && n < ring->worker_count; n++) iso_encoder_destroy(&ring->workers[n].encoder);
  for (int64_t b = 0; ring->lanes && b < ring->options.batch; b++) iso_lane_destroy(&ring->lanes[b]);
  iso_prefetch_stop(&ring->prefetch);
  iso_whole_destroy(&ring->whole);
  iso_blob_interrupt(false);
  for (int k = 0; ring->slots && k < ring->options.slots; k++) free(ring->slots[k].slot.skipped);
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

/* What the thread furthest behind is at, and in which source. */
static iso_lane_stage look(const iso_ring *ring, int64_t *source) {
  const worker *late = &ring->workers[0];
  for (int n = 1; n < ring->worker_count; n++)
    if (atomic_load(&ring->workers[n].step) < atomic_load(&late->step)) late = &ring->workers[n];
  return iso_lane_stage_get(ring->lanes[atomic_load(&late->lane)], source);
}

static void note_wait(iso_ring *ring, double waited_s, iso_lane_stage stage, int64_t source) {
  static const char *const names[] = {"schedule", "read", "tokenize", "pack"}; /* in the order of iso_lane_stage */
  iso_ring_waits *waits = &ring->waits;
  waits->dry++;
  waits->last_wait_s = waited_s;
  waits->last_stage = names[stage];
  waits->last_source = ring->options.sources[source].path;
  if (waited_s <= waits->longest_wait_s) return;
  waits->longest_wait_s = waited_s;
  waits->stage = waits->last_stage;
  waits->source = waits->last_source;
}

static bool is_there(const iso_ring *ring, const slot_state *state, int64_t step) {
  return atomic_load(&state->ready) == step || atomic_load(&ring->error_step) <= step;
}

/* Waits until the slot is full or cannot be had. What it waited for is the stage that took most of that time, by looks
 * that come the more often the shorter the wait. */
static void wait_for_slot(iso_ring *ring, slot_state *state, int64_t step, double begin) {
  double spent_s[ISO_LANE_PACK + 1] = {0}, pause_s = FIRST_LOOK_S, now = begin;
  int64_t sources[ISO_LANE_PACK + 1] = {0}, source;
  iso_lane_stage stage = look(ring, &source), most = stage;
  sources[stage] = source;
  pthread_mutex_lock(&ring->lock);
  atomic_store(&ring->taker_waits, true);
  pthread_cond_broadcast(&ring->freed);
  while (!is_there(ring, state, step)) {
    (void)iso_condition_wait(&ring->filled, &ring->lock, now + pause_s);
    const double then = now;
    now = iso_clock_s();
    spent_s[stage] += now - then;
    pause_s = 2 * pause_s < LOOK_EVERY_S ? 2 * pause_s : LOOK_EVERY_S;
    if (is_there(ring, state, step)) break;
    stage = look(ring, &source);
    sources[stage] = source;
  }
  atomic_store(&ring->taker_waits, false);
  pthread_mutex_unlock(&ring->lock);
  for (iso_lane_stage i = ISO_LANE_IDLE; i <= ISO_LANE_PACK; i++)
    if (spent_s[i] > spent_s[most]) most = i;
  note_wait(ring, iso_clock_s() - begin, most, sources[most]);
}

static void fill_on_demand(iso_ring *ring, slot_state *state, int64_t step, double begin) {
  worker *me = &ring->workers[0];
  me->slowest_s = me->read_s = 0;
  const iso_status status = fill_rows(me, state);
  const double took_s = iso_clock_s() - begin;
  if (status == ISO_OK)
    atomic_store(&state->ready, step);
  else
    note_error(ring, step, status);
  int64_t source;
  iso_lane_stage_get(ring->lanes[me->slowest], &source);
  note_wait(ring, took_s, me->read_s > took_s / 2 ? ISO_LANE_READ : ISO_LANE_TOKENIZE, source);
}

static int by_lane(const void *a, const void *b) {
  const iso_skipped *x = a, *y = b;
  if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
  if (x->source != y->source) return x->source < y->source ? -1 : 1;
  return (x->document > y->document) - (x->document < y->document);
}

/* Bad documents of all lanes; more than are allowed are an error of this step. */
static iso_status count_bad(iso_ring *ring, slot_state *state, int64_t step) {
  int64_t bad = 0;
  for (int64_t b = 0; b < ring->options.batch; b++) bad += state->bad[b];
  state->slot.bad_documents = bad;
  if (state->slot.skipped_count > 1)
    qsort(state->slot.skipped, (size_t)state->slot.skipped_count, sizeof(iso_skipped), by_lane);
  if (bad <= ring->options.max_bad_documents) return ISO_OK;
  const iso_status status =
      iso_fail(ISO_ERR_FORMAT,
               "data: %lld bad documents by step %lld, more than data.max_bad_documents (%lld); correct them or raise "
               "the limit",
               (long long)bad, (long long)step, (long long)ring->options.max_bad_documents);
  note_error(ring, step, status);
  return status;
}

iso_status iso_ring_take(iso_ring *ring, iso_slot **slot, double *wait_s) {
  const double begin = iso_clock_s();
  const int64_t step = ring->next_step;
  slot_state *state = slot_of(ring, step);
  *slot = NULL;
  *wait_s = 0;
  if (state->taken)
    return iso_fail(ISO_ERR_INTERNAL, "data: all %d slots are taken; release one first", ring->options.slots);
  if (!is_there(ring, state, step)) {
    if (ring->options.on_demand)
      fill_on_demand(ring, state, step, begin);
    else
      wait_for_slot(ring, state, step, begin);
  }
  iso_status status = ISO_OK;
  if (atomic_load(&state->ready) == step && atomic_load(&ring->error_step) > step) {
    status = count_bad(ring, state, step);
  } else {
    pthread_mutex_lock(&ring->lock);
    status = ring->error;
    pthread_mutex_unlock(&ring->lock);
  }
  *wait_s = iso_clock_s() - begin;
  ring->waits.takes++;
  ring->waits.wait_s += *wait_s;
  if (status != ISO_OK) return status;
  state->taken = true;
  ring->next_step++;
  *slot = &state->slot;
  return ISO_OK;
}

void iso_ring_release(iso_ring *ring, iso_slot *slot) {
  slot_state *state = slot_of(ring, slot->step);
  int64_t free_slots = 0;
  state->taken = false;
  slot->skipped_count = 0;
  slot->step += ring->options.slots;
  atomic_store(&state->done, 0);
  atomic_store(&state->ready, -1);
  atomic_store(&state->expects, slot->step);
  if (atomic_load(&ring->sleepers) == 0) return;
  for (int k = 0; k < ring->options.slots; k++)
    free_slots += !ring->slots[k].taken && atomic_load(&ring->slots[k].ready) < 0;
  if (free_slots < wanted_slots(ring)) return;
  pthread_mutex_lock(&ring->lock);
  pthread_cond_broadcast(&ring->freed);
  pthread_mutex_unlock(&ring->lock);
}

int iso_ring_depth(const iso_ring *ring) {
  int depth = 0;
  for (int k = 0; k < ring->options.slots; k++)
    depth += !ring->slots[k].taken && atomic_load(&ring->slots[k].ready) >= 0;
  return depth;
}

void iso_ring_settle(iso_ring *ring, int slots, double most_s) {
  if (ring->options.on_demand) return;
  const double until_s = iso_clock_s() + most_s;
  pthread_mutex_lock(&ring->lock);
  atomic_store(&ring->taker_waits, true);
  pthread_cond_broadcast(&ring->freed);
  while (iso_ring_depth(ring) < slots && atomic_load(&ring->error_step) == NO_ERROR && iso_clock_s() < until_s)
    (void)iso_condition_wait(&ring->filled, &ring->lock, iso_clock_s() + LOOK_EVERY_S);
  atomic_store(&ring->taker_waits, false);
  pthread_mutex_unlock(&ring->lock);
}

void iso_ring_pause(iso_ring *ring, bool on) {
  if (ring->options.on_demand) return;
  pthread_mutex_lock(&ring->lock);
  atomic_store(&ring->paused, on);
  pthread_cond_broadcast(&ring->freed);
  while (on && atomic_load(&ring->sleepers) < ring->started && atomic_load(&ring->error_step) == NO_ERROR)
    (void)iso_condition_wait(&ring->filled, &ring->lock, iso_clock_s() + LOOK_EVERY_S);
  pthread_mutex_unlock(&ring->lock);
}

const char *iso_ring_error(const iso_ring *ring) {
  return atomic_load(&ring->error_step) == NO_ERROR ? "" : ring->error_text;
}

double iso_ring_cpu_s(const iso_ring *ring) {
  double seconds = 0;
  for (int n = 0; n < ring->started; n++) {
    clockid_t clock;
    struct timespec time;
    if (pthread_getcpuclockid(ring->workers[n].thread, &clock) == 0 && clock_gettime(clock, &time) == 0)
      seconds += (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
  }
  return seconds;
}

void iso_ring_waits_get(const iso_ring *ring, iso_ring_waits *waits) {
  *waits = ring->waits;
}
