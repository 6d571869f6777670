/* SPDX-License-Identifier: Apache-2.0
 *
 * Snapshots that stream out of the live arrays while later steps run forward and backward, which do not write them. A
 * thread of its own goes through the chunks in order with snapshot.c's writer; the gate stands before each update,
 * where what has not been submitted yet is copied aside.
 *
 * A chunk is LIVE until it is taken, then in flight; what is live when the gate is reached goes to staging, all of it
 * at once, so that only the first update after the beginning has anything to do with a snapshot.
 *
 * Invariants
 *  1. Between an update's gate and its end the thread reads no live array, unless the attempt was given up: such an
 *     attempt never publishes.
 *  2. Staging is allocated and touched before the first step. What it cannot hold makes the attempt give up, or, when
 *     that is asked for, the update wait until the rest fits.
 *  3. Nothing waits longer than stuck_s for storage that makes no progress: the attempt is given up, aloud.
 *  4. Old snapshots and log segments are deleted behind the new one by the same thread: no step waits for that.
 *
 * It does not decide when a snapshot is due (train/snapshots.c).
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

struct iso_streamer {
  iso_streamer_options options;
  int64_t chunk_bytes, chunks;
  char *staging;
  size_t staging_bytes;
  int64_t slots; /* chunks that staging holds */
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  /* guarded: */
  bool stop, wanted; /* wanted: an attempt waits for the thread or is in its hands */
  bool patient;      /* the update waits rather than that the attempt is given up */
  bool ended;        /* the report is there */
  bool shut;         /* the gate: no live chunk may be taken */
  bool given_up, in_flight;
  int64_t needed;          /* step that snapshots and log must go on leading to; -1: none */
  int64_t next;            /* chunk to be taken */
  int64_t staged_from;     /* chunks from here on are in staging; -1: none is */
  int64_t copy, copy_from; /* the gate's: chunks being copied, and the first of them */
  double progress_s;       /* when something was last done with */
  iso_streamer_state state;
  iso_snapshot_info info; /* of the attempt; cursors are ours */
};

int64_t iso_streamer_whole(int64_t elements) {
  const int64_t array = elements * (int64_t)sizeof(float);
  const int64_t chunk = iso_streamer_chunk(elements);
  return 3 * ((array + chunk - 1) / chunk) * chunk;
}

int64_t iso_streamer_chunk(int64_t elements) {
  const int64_t array = (elements * (int64_t)sizeof(float) + 4095) / 4096 * 4096;
  return array < ISO_SNAPSHOT_CHUNK ? (array ? array : 4096) : ISO_SNAPSHOT_CHUNK;
}

/* ---- the writer's side: with the lock held only inside ---- */

static void progressed(iso_streamer *s) {
  s->progress_s = iso_clock_s();
  pthread_cond_broadcast(&s->changed);
}

static char *slot(const iso_streamer *s, int64_t chunk) {
  return s->staging + (chunk - s->staged_from) * s->chunk_bytes;
}

static const void *take(void *context, int64_t index) {
  iso_streamer *s = context;
  const void *from = NULL;
  pthread_mutex_lock(&s->lock);
  while (s->shut && !s->given_up) pthread_cond_wait(&s->changed, &s->lock);
  if (!s->given_up) {
    const bool staged = s->staged_from >= 0;
    from = staged ? slot(s, index) : iso_snapshot_chunk(s->options.state, s->chunk_bytes, index).data;
    s->in_flight = !staged;
    s->next = index + 1;
  }
  progressed(s);
  pthread_mutex_unlock(&s->lock);
  return from;
}

static void put(void *context, int64_t index) {
  iso_streamer *s = context;
  pthread_mutex_lock(&s->lock);
  s->in_flight = false;
  s->state.bytes += (int64_t)iso_snapshot_chunk(s->options.state, s->chunk_bytes, index).bytes;
  progressed(s);
  pthread_mutex_unlock(&s->lock);
}

static void now(void *context, const char *doing) {
  iso_streamer *s = context;
  pthread_mutex_lock(&s->lock);
  s->state.doing = doing;
  progressed(s);
  pthread_mutex_unlock(&s->lock);
}

/* ---- the thread ---- */

static iso_status delete_old(iso_streamer *s) {
  const iso_streamer_options *o = &s->options;
  int64_t oldest, newest;
  now(s, "deleting older ones");
  pthread_mutex_lock(&s->lock);
  const int64_t needed = s->needed;
  pthread_mutex_unlock(&s->lock);
  ISO_TRY(iso_snapshot_prune_but(o->run, s->info.incarnation, o->keep_last, o->keep_every, needed));
  if (!o->log) return ISO_OK;
  ISO_TRY(iso_snapshot_range(o->run, &oldest, &newest));
  if (needed >= 0 && oldest > needed) return ISO_OK; /* the log from the first weights on leads there */
  return oldest < 0 ? ISO_OK : iso_wal_prune_by(o->run, s->info.incarnation, oldest);
}

static void attempt(iso_streamer *s) {
  const iso_snapshot_source source = {
      .context = s, .chunk_bytes = s->chunk_bytes, .take = take, .put = put, .now = now};
  const double began = iso_clock_s(), span = iso_span_begin();
  iso_status status = iso_snapshot_write_from(s->options.run, s->options.state, &s->info, &source);
  iso_span_end(ISO_STREAM_SNAPSHOT, span, "snapshot", s->info.step, iso_snapshot_bytes(s->options.state));
  pthread_mutex_lock(&s->lock);
  /* Nothing is read any more, whatever came of it: no update need wait. */
  s->next = s->chunks;
  s->state.published = status == ISO_OK;
  s->state.write_s = iso_clock_s() - began;
  progressed(s);
  pthread_mutex_unlock(&s->lock);
  if (status == ISO_OK) status = delete_old(s);
  pthread_mutex_lock(&s->lock);
  s->state.status = status;
  s->state.given_up = s->given_up;
  s->state.doing = "";
  s->wanted = false;
  s->ended = true;
  progressed(s);
  pthread_mutex_unlock(&s->lock);
}

static void *run_thread(void *argument) {
  iso_streamer *s = argument;
  if (s->options.settle) s->options.settle();
  pthread_mutex_lock(&s->lock);
  while (true) {
    while (!s->wanted && !s->stop) pthread_cond_wait(&s->changed, &s->lock);
    if (!s->wanted) break;
    pthread_mutex_unlock(&s->lock);
    attempt(s);
    pthread_mutex_lock(&s->lock);
  }
  pthread_mutex_unlock(&s->lock);
  return NULL;
}

/* ---- the gate ---- */

static bool wait_until(iso_streamer *s, double until) {
  return iso_clock_s() < until && iso_condition_wait(&s->changed, &s->lock, until);
}

/* Waits for a change; false: storage has made no progress for stuck_s. */
static bool wait_for_progress(iso_streamer *s) {
  return wait_until(s, s->progress_s + s->options.stuck_s) || iso_clock_s() < s->progress_s + s->options.stuck_s;
}

static void give_up(iso_streamer *s) {
  s->given_up = true;
  pthread_cond_broadcast(&s->changed); /* the writer may be waiting at the gate */
}

static void staging_is_full(iso_streamer *s) {
  snprintf(s->state.cause, sizeof s->state.cause,
           "%.1f MB are not written when the update begins, checkpoint.staging_mb holds %.1f MB",
           (double)((s->chunks - s->next) * s->chunk_bytes) * 1e-6, (double)s->staging_bytes * 1e-6);
  give_up(s);
}

/* With the lock: afterwards no live chunk is in flight, and none will be taken until the gate is open again. Returns
 * how many chunks are to be copied. */
static int64_t shut_gate(iso_streamer *s) {
  while (s->wanted && !s->given_up && s->staged_from < 0) {
    const int64_t left = s->chunks - s->next;
    s->shut = left <= s->slots;
    if (s->shut && !s->in_flight) return left;
    if (!s->shut && !s->patient) {
      staging_is_full(s);
    } else if (!wait_for_progress(s)) {
      snprintf(s->state.cause, sizeof s->state.cause, "its storage made no progress for %g s (%s)", s->options.stuck_s,
               s->state.doing);
      s->state.stuck = true;
      give_up(s);
    }
  }
  while (s->in_flight && wait_for_progress(s)) continue; /* it is read yet, if storage is not stuck */
  return 0;
}

void iso_streamer_gate(iso_streamer *s, int thread, int threads, iso_team *team) {
  if (thread == 0) {
    pthread_mutex_lock(&s->lock);
    s->copy = shut_gate(s);
    s->copy_from = s->next;
    if (s->copy == 0) s->shut = false;
    pthread_mutex_unlock(&s->lock);
  }
  iso_team_barrier(team);
  if (s->copy == 0) return; /* set again by this thread 0 only, behind a barrier of the update */
  for (int64_t i = 0; i < s->copy; i++) {
    const iso_snapshot_part live = iso_snapshot_chunk(s->options.state, s->chunk_bytes, s->copy_from + i);
    const size_t begin = live.bytes * (size_t)thread / (size_t)threads / 64 * 64;
    const size_t end =
        thread + 1 == threads ? live.bytes : live.bytes * (size_t)(thread + 1) / (size_t)threads / 64 * 64;
    memcpy(s->staging + i * s->chunk_bytes + begin, live.data + begin, end - begin);
  }
  iso_team_barrier(team);
  if (thread != 0) return;
  pthread_mutex_lock(&s->lock);
  s->staged_from = s->copy_from;
  s->state.copied += s->copy * s->chunk_bytes;
  s->shut = false;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
}

/* ---- the caller's side ---- */

static void destroy(iso_streamer *s) {
  iso_slab_free(s->staging, s->staging_bytes);
  iso_snapshot_info_fini(&s->info);
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->lock);
  free(s);
}

iso_status iso_streamer_stage(iso_streamer *s, int64_t bytes) {
  iso_slab_free(s->staging, s->staging_bytes);
  s->staging = NULL;
  s->staging_bytes = 0;
  s->slots = 0;
  const int64_t wanted = bytes / s->chunk_bytes, slots = wanted < s->chunks ? wanted : s->chunks;
  if (slots == 0) return ISO_OK;
  s->staging = iso_slab_alloc((size_t)(slots * s->chunk_bytes), "snapshot staging");
  if (!s->staging) return ISO_ERR_MEMORY;
  s->slots = slots;
  s->staging_bytes = (size_t)(slots * s->chunk_bytes);
  memset(s->staging, 0, s->staging_bytes); /* its pages are there before a step waits for them */
  return ISO_OK;
}

static iso_status prepare(iso_streamer *s) {
  s->info.cursors = calloc(s->options.cursors + 1, sizeof *s->info.cursors);
  if (!s->info.cursors) return iso_fail(ISO_ERR_MEMORY, "snapshots: no memory for %zu cursors", s->options.cursors);
  return iso_streamer_stage(s, s->options.staging_bytes);
}

iso_status iso_streamer_open(const iso_streamer_options *options, iso_streamer **out) {
  *out = NULL;
  iso_streamer *s = calloc(1, sizeof *s);
  if (!s) return iso_fail(ISO_ERR_MEMORY, "snapshots: no memory for the thread that writes them");
  s->options = *options;
  s->chunk_bytes = options->chunk_bytes ? options->chunk_bytes : iso_streamer_chunk(options->state->elements);
  s->chunks = iso_snapshot_chunks(options->state, s->chunk_bytes);
  s->staged_from = s->needed = -1;
  s->state.doing = "";
  pthread_mutex_init(&s->lock, NULL);
  iso_condition_init(&s->changed);
  iso_status status = prepare(s);
  const int error = status == ISO_OK ? iso_thread_start(&s->thread, run_thread, s) : 0;
  if (error)
    status = iso_fail(ISO_ERR_MEMORY, "snapshots: cannot start the thread that writes them: %s", strerror(error));
  if (status != ISO_OK) {
    destroy(s);
    return status;
  }
  *out = s;
  return ISO_OK;
}

iso_status iso_streamer_begin(iso_streamer *s, const iso_snapshot_info *info, bool patient) {
  pthread_mutex_lock(&s->lock);
  iso_status status = ISO_OK;
  if (s->wanted || s->ended || info->cursor_count != s->options.cursors) {
    status = iso_fail(ISO_ERR_INTERNAL, "snapshot of step %lld: %s", (long long)info->step,
                      s->wanted || s->ended ? "another one is under way" : "its number of cursors has changed");
  } else {
    iso_cursor *cursors = s->info.cursors;
    s->info = *info;
    s->info.cursors = cursors;
    if (info->cursor_count) memcpy(cursors, info->cursors, info->cursor_count * sizeof *cursors);
    s->wanted = true;
    s->patient = patient;
    s->shut = s->given_up = s->in_flight = false;
    s->next = 0;
    s->staged_from = -1;
    s->state = (iso_streamer_state){.step = info->step, .doing = "beginning"};
    progressed(s);
  }
  pthread_mutex_unlock(&s->lock);
  return status;
}

void iso_streamer_need(iso_streamer *s, int64_t step) {
  pthread_mutex_lock(&s->lock);
  s->needed = step;
  pthread_mutex_unlock(&s->lock);
}

void iso_streamer_state_get(iso_streamer *s, iso_streamer_state *state) {
  pthread_mutex_lock(&s->lock);
  *state = s->state;
  state->active = s->wanted || s->ended;
  state->idle_s = s->wanted ? iso_clock_s() - s->progress_s : 0;
  state->given_up = s->given_up;
  pthread_mutex_unlock(&s->lock);
}

bool iso_streamer_ended(iso_streamer *s, iso_streamer_state *state) {
  pthread_mutex_lock(&s->lock);
  const bool ended = s->ended;
  s->ended = false;
  if (ended) *state = s->state;
  pthread_mutex_unlock(&s->lock);
  return ended;
}

bool iso_streamer_wait(iso_streamer *s, double max_s) {
  const double until = iso_clock_s() + (max_s < 1e6 ? max_s : 1e6);
  pthread_mutex_lock(&s->lock);
  while (s->wanted && (wait_until(s, until) || iso_clock_s() < until)) continue;
  const bool ended = !s->wanted;
  pthread_mutex_unlock(&s->lock);
  return ended;
}

void iso_streamer_close(iso_streamer **address) {
  iso_streamer *s = *address;
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  s->stop = true;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  destroy(s);
  *address = NULL;
}
