/* SPDX-License-Identifier: Apache-2.0
 *
 * The step log of a running incarnation: every step's reduced gradient, in exactly the bits the optimizer consumes, and
 * a commit. A thread of its own writes from the gradient's memory (wal_output.c): ranges of it as the backward pass
 * completes them, then the commit, while the next step computes already. Up to ISO_WAL_DEPTH steps are in its hands,
 * and the caller asks before it writes over a buffer again.
 *
 * Invariants
 *  1. A step counts when its commit frame is written, with `disk` when a sync submitted after that has succeeded; the
 *     frames before it were written first.
 *  2. After a failed write or sync the file is not touched again: the step, still in its buffer, goes whole to a new
 *     segment. When that fails too, writing is suspended, loudly, until a snapshot closes the gap; a patient log tries
 *     again instead, with pauses, until the caller gives it up.
 *  3. Before a step counts, the thread looks for a newer incarnation: what a superseded process writes never counts.
 *  4. Nobody waits for the thread without an end but iso_wal_flush and iso_wal_close, and that says so.
 *  5. A step that was begun and will not be complete leaves nothing behind that counts: its frames have no commit, and
 *     are cut off.
 */
#include "store/wal_output.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const double FIRST_PAUSE_S = 0.05, LAST_PAUSE_S = 10, SAY_EVERY_S = 30;

typedef struct entry {
  int64_t step;
  iso_wal_record record;
  iso_cursor *cursors;
  const char *reduced;
  double step_s; /* what computing it took; 0: not known */
  bool open;     /* it is computed yet: its record is not known */
  bool lost;     /* open, and what comes of it is not waited for */
  iso_wal_span *ranges;
  _Atomic int64_t given; /* of ranges; only its caller adds to them */
} entry;

struct iso_wal {
  iso_wal_options options;
  char *folder;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  /* guarded: */
  entry queue[ISO_WAL_DEPTH];
  int queued; /* entries in hand, the oldest at `head` */
  int head;
  bool stop, roll, busy, ended;
  atomic_bool sleeps; /* the thread waits for ranges of the step at `head` */
  int64_t restart;    /* first step after a restart; 0: none asked for */
  int64_t first;      /* of the row of steps being written */
  int64_t next;       /* step that would continue it */
  bool broken;        /* something was not written and no restart was reached since: no row goes on */
  double answered_s;  /* when storage last answered, while busy */
  double waited_s;    /* for buffers, since the last step was handed over */
  double handed_s;    /* when that was */
  iso_wal_state state;
  /* the caller's: */
  entry *begun; /* NULL: none is */
  int64_t range_capacity;
  /* the thread's: */
  iso_wal_output output;
  iso_wal_choice choice;
};

/* ---- what counts: all with the lock ---- */

/* The row counts once it begins right behind a durable step. */
static void count_durable(iso_wal *log) {
#ifdef ISO_SABOTAGE_SKIP_CATCH_UP
  log->first = log->state.durable + 1;
#endif
  if (log->first <= log->state.durable + 1 && log->next - 1 > log->state.durable) log->state.durable = log->next - 1;
}

/* Here a row begins, unless the one before it comes so far. */
static void begin_row(iso_wal *log) {
  if (log->next != log->restart) log->first = log->next = log->restart;
  log->restart = 0;
  log->broken = false;
}

/* ---- the thread ---- */

/* With the lock. */
static void wait_until(iso_wal *log, double until) {
  (void)iso_condition_wait(&log->changed, &log->lock, until);
}

/* Before the next attempt; false: none is wanted any more. */
static bool pause_for(iso_wal *log, double seconds) {
  const double until = iso_clock_s() + seconds;
  pthread_mutex_lock(&log->lock);
  log->answered_s = iso_clock_s(); /* it fails, it does not hang */
  log->state.failing = true;
  while (!log->stop && !log->state.suspended && iso_clock_s() < until) wait_until(log, until);
  const bool again = !log->stop && !log->state.suspended;
  pthread_mutex_unlock(&log->lock);
  return again;
}

/* With the lock. */
static iso_wal_coming look(const iso_wal *log, int64_t i, iso_wal_span *range) {
  const entry *e = &log->queue[log->head];
  if (e->open && (e->lost || log->stop || log->state.suspended)) return ISO_WAL_GIVEN_UP;
  if (i < e->given) {
    *range = e->ranges[i];
    return ISO_WAL_RANGE;
  }
  return e->open ? ISO_WAL_NOTHING_YET : ISO_WAL_COMPLETE;
}

/* Of the step at `head`, which stays there while it is written. */
static iso_wal_coming next_range(void *self, int64_t i, bool wait, iso_wal_span *range) {
  iso_wal *log = self;
  pthread_mutex_lock(&log->lock);
  iso_wal_coming came = look(log, i, range);
  if (wait && came == ISO_WAL_NOTHING_YET) {
    log->sleeps = true;
    while ((came = look(log, i, range)) == ISO_WAL_NOTHING_YET) pthread_cond_wait(&log->changed, &log->lock);
    log->sleeps = false;
    log->answered_s = iso_clock_s();
  }
  pthread_mutex_unlock(&log->lock);
  return came;
}

/* A step that could not be written goes to a new segment: once, or with patience as often as it takes. */
static iso_status write_entry(iso_wal *log, const entry *e, iso_wal_way way, bool *given_up, iso_wal_spent *spent) {
  const iso_wal_source source = {log, e->step, e->reduced, &e->record, next_range};
  const double began = iso_clock_s();
  double pause_s = FIRST_PAUSE_S, said_s = began;
  bool written = false;
  for (int attempt = 0;; attempt++) {
    iso_status status = written ? ISO_OK : iso_wal_output_step(&log->output, &source, way, given_up, spent);
    if (status != ISO_OK || *given_up) iso_wal_output_abandon(&log->output);
    if (*given_up) return ISO_OK;
    written = status == ISO_OK;
    if (written) status = iso_incarnation_check(log->options.run, log->options.incarnation);
    if (status == ISO_OK) {
      if (attempt > 1)
        iso_warn("log: step %lld is written, after %d attempts in %.1f s", (long long)e->step, attempt + 1,
                 iso_clock_s() - began);
      return ISO_OK;
    }
    const bool storage = status == ISO_ERR_IO || status == ISO_ERR_SPACE || status == ISO_ERR_NOT_FOUND;
    if (attempt == 0 && !written) {
      iso_warn("log: step %lld could not be written (%s); trying a new segment", (long long)e->step, iso_last_error());
      continue;
    }
    if (!storage || !log->options.patient) return status;
    if (attempt <= 1 || iso_clock_s() - said_s > SAY_EVERY_S) {
      said_s = iso_clock_s();
      iso_warn("log: step %lld is not written since %.0f s (%s); trying again, the run waits (log.when_slow: wait)",
               (long long)e->step, said_s - began, iso_last_error());
    }
    if (!pause_for(log, pause_s)) return status;
    pause_s = 2 * pause_s < LAST_PAUSE_S ? 2 * pause_s : LAST_PAUSE_S;
  }
}

static void suspend(iso_wal *log, int64_t step, iso_status status) {
  pthread_mutex_lock(&log->lock);
  log->state.suspended = log->broken = true;
  log->state.status = status;
  snprintf(log->state.cause, sizeof log->state.cause, "step %lld: %.200s", (long long)step, iso_last_error());
  pthread_mutex_unlock(&log->lock);
}

/* The step was written, so its gradient is there. */
static void learn(iso_wal *log, const entry *e, iso_wal_way way, bool try, const iso_wal_spent *spent) {
  if (e->record.refused) return;
  if (try) {
    double pack_s, share;
    iso_wal_output_try(&log->output, e->reduced, &pack_s, &share);
    iso_wal_choice_tried(&log->choice, pack_s, share);
  }
  iso_wal_choice_learn(&log->choice, way, spent->write_s + spent->sync_s, e->step_s);
}

/* With the lock. */
static void count_written(iso_wal *log, const entry *e, iso_wal_way way, const iso_wal_spent *spent) {
  iso_wal_state *s = &log->state;
  if (e->step == log->next) {
    log->next++;
    count_durable(log);
  }
  s->segments = log->output.segments;
  s->bytes += spent->bytes;
  s->write_s += spent->write_s;
  s->sync_s += spent->sync_s;
  s->crc_s += spent->crc_s;
  s->pack_s += spent->pack_s;
  s->packed = log->choice.way.packed;
  s->several = log->choice.way.several;
  s->failing = false;
  memcpy(s->why, log->choice.why, sizeof s->why);
  if (e->record.refused) return;
  s->raw_bytes += log->options.elements * (int64_t)iso_dtype_size(log->options.gradient);
  s->packed_steps += way.packed;
}

static void handle(iso_wal *log, const entry *e) {
  iso_wal_spent spent = {0};
  pthread_mutex_lock(&log->lock);
  const bool roll = log->roll, skip = log->state.suspended;
  log->roll = false;
  pthread_mutex_unlock(&log->lock);
  if (skip) return;
  iso_status status = ISO_OK;
  if (roll || log->output.offset >= log->options.segment_bytes) status = iso_wal_output_close(&log->output);
  if (status != ISO_OK) iso_warn("log: %s", iso_last_error());
  bool try, given_up;
  const iso_wal_way way = iso_wal_choice_next(&log->choice, &try);
  status = write_entry(log, e, way, &given_up, &spent);
  if (status != ISO_OK) suspend(log, e->step, status);
  if (status != ISO_OK || given_up) return;
  learn(log, e, way, try, &spent);
  pthread_mutex_lock(&log->lock);
  count_written(log, e, way, &spent);
  pthread_mutex_unlock(&log->lock);
}

static void *run_thread(void *argument) {
  iso_wal *log = argument;
  pthread_mutex_lock(&log->lock);
  while (true) {
    while (log->queued == 0 && !log->stop) pthread_cond_wait(&log->changed, &log->lock);
    if (log->queued == 0) break;
    entry *e = &log->queue[log->head];
    if (log->restart && e->step >= log->restart && !log->state.suspended) begin_row(log);
    log->busy = true;
    log->answered_s = iso_clock_s();
    pthread_mutex_unlock(&log->lock);
    handle(log, e);
    pthread_mutex_lock(&log->lock);
    log->busy = false;
    e->lost = true; /* if it is open */
    log->head = (log->head + 1) % ISO_WAL_DEPTH;
    log->queued--; /* this one: iso_wal_suspend leaves it */
    pthread_cond_broadcast(&log->changed);
  }
  pthread_mutex_unlock(&log->lock);
  const iso_status closed = iso_wal_output_close(&log->output);
  if (closed != ISO_OK) suspend(log, log->next - 1, closed);
  pthread_mutex_lock(&log->lock);
  log->ended = true;
  pthread_cond_broadcast(&log->changed);
  pthread_mutex_unlock(&log->lock);
  return NULL;
}

/* ---- the caller's side ---- */

static void destroy(iso_wal *log) {
  for (int i = 0; i < ISO_WAL_DEPTH; i++) {
    free(log->queue[i].cursors);
    free(log->queue[i].ranges);
  }
  iso_wal_output_fini(&log->output);
  pthread_cond_destroy(&log->changed);
  pthread_mutex_destroy(&log->lock);
  free(log);
}

static iso_status prepare(iso_wal *log) {
  const iso_wal_options *o = &log->options;
  ISO_TRY(iso_wal_output_init(&log->output, o));
  iso_wal_choice_init(&log->choice, o, iso_writes_use(log->output.writes, true));
  log->state.packed = log->choice.way.packed;
  log->state.several = log->choice.way.several;
  memcpy(log->state.why, log->choice.why, sizeof log->state.why);
  log->range_capacity = o->elements / ISO_NORM_BLOCK + ISO_WAL_RANGES;
  for (int i = 0; i < ISO_WAL_DEPTH; i++) {
    entry *e = &log->queue[i];
    e->cursors = calloc((size_t)o->cursors + 1, sizeof *e->cursors);
    e->ranges = calloc((size_t)log->range_capacity, sizeof *e->ranges);
    if (!e->cursors || !e->ranges) return iso_fail(ISO_ERR_MEMORY, "log: no memory for the step log of '%s'", o->run);
  }
  return ISO_OK;
}

iso_status iso_wal_open(const iso_wal_options *options, int64_t first_step, iso_wal **out) {
  *out = NULL;
  iso_wal *log = calloc(1, sizeof *log);
  if (!log) return iso_fail(ISO_ERR_MEMORY, "log: no memory for the step log of '%s'", options->run);
  log->options = *options;
  if (log->options.max_wait_s <= 0) log->options.max_wait_s = 30;
  log->first = log->next = first_step;
  log->state.durable = first_step - 1;
  pthread_mutex_init(&log->lock, NULL);
  iso_condition_init(&log->changed);
  iso_status status = prepare(log);
  int error = status == ISO_OK ? pthread_create(&log->thread, NULL, run_thread, log) : 0;
  if (error) status = iso_fail(ISO_ERR_MEMORY, "log: cannot start the thread that writes: %s", strerror(error));
  if (status != ISO_OK) {
    destroy(log);
    return status;
  }
  *out = log;
  return ISO_OK;
}

/* A place behind all that is in hand. With the lock. */
static entry *place(iso_wal *log, int64_t step, const void *reduced) {
  entry *e = &log->queue[(log->head + log->queued) % ISO_WAL_DEPTH];
  e->step = step;
  e->reduced = reduced;
  e->step_s = 0;
  e->open = true;
  e->lost = false;
  e->given = 0;
  log->queued++;
  return e;
}

void iso_wal_begin(iso_wal *log, int64_t step, const void *reduced) {
  pthread_mutex_lock(&log->lock);
  if (log->begun) log->begun->lost = true; /* it came to nothing */
  const bool taken = !log->state.suspended && log->queued < ISO_WAL_DEPTH;
  log->begun = taken ? place(log, step, reduced) : NULL;
  pthread_cond_broadcast(&log->changed);
  pthread_mutex_unlock(&log->lock);
}

void iso_wal_range(iso_wal *log, int64_t begin, int64_t end) {
  entry *e = log->begun;
  if (!e || e->given == log->range_capacity) return;
  e->ranges[e->given] = (iso_wal_span){begin, end};
  e->given++;
  if (!log->sleeps) return;
  pthread_mutex_lock(&log->lock);
  pthread_cond_broadcast(&log->changed);
  pthread_mutex_unlock(&log->lock);
}

/* The ranges that were handed over are the whole gradient. */
static bool all_given(const iso_wal *log, const entry *e) {
  int64_t elements = 0;
  for (int64_t i = 0; i < e->given; i++) elements += e->ranges[i].end - e->ranges[i].begin;
  return elements == log->options.elements;
}

/* The step becomes complete. With the lock. */
static void complete(iso_wal *log, entry *e, const iso_wal_record *record, double step_s) {
  if (e->given == 0 && !record->refused) {
    e->ranges[0] = (iso_wal_span){0, log->options.elements};
    e->given = 1;
  }
  e->record = *record;
  if (record->cursor_count) memcpy(e->cursors, record->cursors, record->cursor_count * sizeof *e->cursors);
  e->record.cursors = e->cursors;
  e->record.durable = log->state.durable;
  e->step_s = step_s;
  e->open = false;
}

iso_status iso_wal_append(iso_wal *log, const iso_wal_record *record, const void *reduced) {
  if (record->cursor_count != (size_t)log->options.cursors)
    return iso_fail(ISO_ERR_INTERNAL, "log: a step with %zu cursors, not %lld", record->cursor_count,
                    (long long)log->options.cursors);
  const double now = iso_clock_s();
  pthread_mutex_lock(&log->lock);
  const double step_s = log->handed_s > 0 ? now - log->handed_s - log->waited_s : 0;
  log->handed_s = now;
  log->waited_s = 0;
  entry *e = log->begun;
  log->begun = NULL;
  if (e && e->lost) e = NULL;
  if (e && e->given && !all_given(log, e) && !log->state.suspended) {
    e->lost = true;
    pthread_cond_broadcast(&log->changed);
    pthread_mutex_unlock(&log->lock);
    return iso_fail(ISO_ERR_INTERNAL, "log: of step %lld not all ranges were handed over", (long long)record->step);
  }
  while (!e && log->queued == ISO_WAL_DEPTH && !log->state.suspended) pthread_cond_wait(&log->changed, &log->lock);
  if (log->state.suspended) { /* nothing is written, and what hangs may hang on */
#ifdef ISO_SABOTAGE_COUNT_SUSPENDED
    log->state.durable = record->step;
#endif
    if (e) e->lost = true;
    pthread_cond_broadcast(&log->changed);
    pthread_mutex_unlock(&log->lock);
    return ISO_OK;
  }
  complete(log, e ? e : place(log, record->step, reduced), record, step_s);
#ifdef ISO_SABOTAGE_ACK_EARLY
  if (record->step == log->next) log->next++;
  count_durable(log);
#endif
  pthread_cond_broadcast(&log->changed);
  pthread_mutex_unlock(&log->lock);
  return ISO_OK;
}

static bool in_hand(const iso_wal *log, const void *reduced) {
  for (int i = 0; i < log->queued; i++)
    if (log->queue[(log->head + i) % ISO_WAL_DEPTH].reduced == reduced) return true;
  return false;
}

bool iso_wal_release(iso_wal *log, const void *reduced, double max_s) {
#ifdef ISO_SABOTAGE_REUSE_BUFFER
  return true;
#endif
  const double began = iso_clock_s(), until = began + (max_s < 1e6 ? max_s : 1e6);
  pthread_mutex_lock(&log->lock);
  while (in_hand(log, reduced) && iso_clock_s() < until) wait_until(log, until);
  const bool released = !in_hand(log, reduced);
  log->waited_s += iso_clock_s() - began;
  pthread_mutex_unlock(&log->lock);
  return released;
}

void iso_wal_suspend(iso_wal *log, const char *cause) {
  pthread_mutex_lock(&log->lock);
  if (!log->state.suspended) {
    snprintf(log->state.cause, sizeof log->state.cause, "%s", cause);
    log->state.status = ISO_ERR_IO;
  }
  log->state.suspended = log->broken = true;
  for (int i = 0; i < log->queued; i++) log->queue[(log->head + i) % ISO_WAL_DEPTH].lost = true; /* if open */
  log->queued = log->busy;
  pthread_cond_broadcast(&log->changed);
  pthread_mutex_unlock(&log->lock);
}

/* Nothing but a step that is computed yet is in hand. With the lock. */
static bool settled(const iso_wal *log) {
  return log->queued == 0 || (log->queued == 1 && log->queue[log->head].open);
}

void iso_wal_flush(iso_wal *log) {
  pthread_mutex_lock(&log->lock);
  while (!settled(log)) pthread_cond_wait(&log->changed, &log->lock);
  pthread_mutex_unlock(&log->lock);
}

bool iso_wal_flush_for(iso_wal *log, double max_s) {
  const double until = iso_clock_s() + (max_s < 1e6 ? max_s : 1e6);
  pthread_mutex_lock(&log->lock);
  while (!settled(log) && iso_clock_s() < until) wait_until(log, until);
  const bool flushed = settled(log);
  pthread_mutex_unlock(&log->lock);
  return flushed;
}

void iso_wal_restart(iso_wal *log, int64_t first_step) {
  pthread_mutex_lock(&log->lock);
  log->restart = first_step;
  log->roll = true;
  log->state.suspended = false;
  log->state.cause[0] = 0;
  pthread_mutex_unlock(&log->lock);
}

void iso_wal_covered(iso_wal *log, int64_t step) {
  pthread_mutex_lock(&log->lock);
  if (log->state.durable < step) log->state.durable = step;
  count_durable(log);
  pthread_mutex_unlock(&log->lock);
}

void iso_wal_state_get(iso_wal *log, iso_wal_state *state) {
  pthread_mutex_lock(&log->lock);
  *state = log->state;
  state->hangs_s = log->busy && !log->sleeps ? iso_clock_s() - log->answered_s : 0;
  state->gap = log->broken || log->state.suspended || log->first > log->state.durable + 1;
  pthread_mutex_unlock(&log->lock);
}

void iso_wal_close(iso_wal **log_address) {
  iso_wal *log = *log_address;
  if (!log) return;
  pthread_mutex_lock(&log->lock);
  log->stop = true;
  pthread_cond_broadcast(&log->changed);
  double say_s = iso_clock_s() + log->options.max_wait_s;
  while (!log->ended) {
    wait_until(log, say_s);
    if (log->ended || iso_clock_s() < say_s) continue;
    say_s = iso_clock_s() + log->options.max_wait_s;
    iso_warn("%s: the end of the run waits for the log's storage, which has not answered for %.0f s; a signal ends it "
             "at once, durable is step %lld",
             log->options.run, iso_clock_s() - log->answered_s, (long long)log->state.durable);
  }
  pthread_mutex_unlock(&log->lock);
  pthread_join(log->thread, NULL);
  destroy(log);
  *log_address = NULL;
}
