/* SPDX-License-Identifier: Apache-2.0
 *
 * When a run's snapshots are written, and what a step has to do with one that is under way.
 *
 * A snapshot of step S begins behind step S and is written by a thread while the next steps run (store's
 * snapshot_stream.c); the gate before the next update copies aside what is not written yet. It counts once it is
 * published: until then durable_step and snapshot_step stay where they are. Steps from S + 1 on go to a new segment of
 * the log, so that one that is published leads to the newest step, also if the log was suspended before.
 *
 * Invariants
 *  1. One attempt at a time. One that is given up, or fails for its storage, is said in a line and tried again.
 *  2. An attempt that staging is too small for is followed by one that the update waits for: a snapshot always comes.
 *  3. Whatever ends the loop waits for the one under way, and says so when that takes long.
 */
#include <string.h>

#include "train/train.h"

static const double RETRY_S = 20;    /* behind one that its storage failed */
static const double COST_SHARE = 30; /* auto: what steps wait for is at most one part in this many */
static const double WRITE_SHARE = 3; /* and writing them takes at most one part in this many of the time */
static const double MEMORY_SPEED =
    4e9; /* bytes/s, as long as none was measured: of one pass of the optimizer, of reading the log */
enum { LOG_SNAPSHOTS = 8, LOG_LEAST = 256000000 };
enum { PASS_BYTES = 26 };                               /* that AdamW reads and writes for an element */
static const int64_t STAGING_LEAST = INT64_C(64) << 20; /* auto: as much is had unmeasured */
static const int64_t MEMORY_FLOOR = INT64_C(256) << 20; /* below so much that is free, staging shrinks */

/* ---- opening ---- */

static void before_update(void *context, const iso_worker *worker) {
  iso_snapshots *s = context;
  const double began = worker->thread == 0 ? iso_clock_s() : 0;
  iso_streamer_gate(s->streamer, worker->thread, worker->threads, worker->team);
  if (worker->thread != 0) return;
  s->update_began_s = iso_clock_s();
  s->gate_s += s->update_began_s - began;
}

/* Bytes/s that the run's folder takes, from writing and syncing some of the state; 0: it does not. */
static double measure_storage(const iso_run *run) {
  const double began = iso_clock_s();
  const char *state = (const char *)run->state.master;
  const int64_t most = run->state.elements * (int64_t)sizeof(float), piece = ISO_SNAPSHOT_CHUNK;
  char attempt[33], path[4200];
  iso_sink sink;
  if (iso_attempt_id(attempt) != ISO_OK) return 0;
  snprintf(path, sizeof path, "%s/probe.%s.tmp", run->config.run, attempt);
  iso_status status = iso_sink_open_direct(&sink, path);
  if (status != ISO_OK) return 0;
  while (status == ISO_OK && sink.bytes + piece <= most && sink.bytes < STAGING_LEAST && iso_clock_s() - began < 0.2)
    status = iso_sink_write(&sink, state + sink.bytes, (size_t)piece);
  const int64_t bytes = sink.bytes;
  if (status == ISO_OK) status = iso_sink_commit(&sink);
  const double spent = iso_clock_s() - began;
  iso_sink_abandon(&sink);
  return status == ISO_OK ? (double)bytes / spent : 0;
}

/* auto: the whole state if memory is plenty, else what storage does not take in a third of the shortest time that a
 * step can take; as planned at most. */
static int64_t choose_staging(const iso_run *run, double least_step_s) {
  int64_t planned = run->engine.staging_bytes;
  if (run->config.checkpoint.staging_mb >= 0) return planned;
  const int64_t spare = iso_memory_available() / 2;
  if (planned > spare) planned = spare > 0 ? spare : 0;
  if (planned <= STAGING_LEAST || planned <= spare / 4) return planned;
  const double written = least_step_s / 3 * measure_storage(run);
  const int64_t needed = 12 * run->state.elements - (int64_t)(written < 1e18 ? written : 1e18);
  return needed < STAGING_LEAST ? STAGING_LEAST : needed < planned ? needed : planned;
}

iso_status iso_run_snapshots_open(iso_run *run, double least_step_s) {
  iso_snapshots *s = &run->snapshots;
  s->staging_bytes = choose_staging(run, least_step_s);
  /* With staging for all of it nothing waits for the thread: it takes what the compute team leaves, which keeps the
   * steps beside it about as long as the others. */
  const bool relaxed = s->staging_bytes >= iso_streamer_whole(run->state.elements);
  const iso_streamer_options options = {.run = run->config.run,
                                        .state = &run->state,
                                        .cursors = run->at.cursor_count,
                                        .staging_bytes = s->staging_bytes,
                                        .stuck_s = run->config.log.max_wait_s,
                                        .keep_last = (int)run->config.checkpoint.keep_last,
                                        .keep_every = run->config.checkpoint.keep_every,
                                        .log = run->wal != NULL,
                                        .settle = relaxed ? iso_data_thread_settle : iso_data_thread_spread};
  s->last_s = iso_clock_s();
  ISO_TRY(iso_streamer_open(&options, &s->streamer));
  iso_exec_gate_set(run->engine.exec, before_update, s);
  return ISO_OK;
}

void iso_run_snapshots_close(iso_run *run) {
  if (run->snapshots.streamer && run->engine.exec) iso_exec_gate_set(run->engine.exec, NULL, NULL);
  iso_streamer_close(&run->snapshots.streamer);
}

double iso_run_snapshots_waited(iso_run *run) {
  iso_snapshots *s = &run->snapshots;
  const double waited = s->gate_s;
  s->cost_s += waited;
  s->gate_s = 0;
  const double update_s = iso_clock_s() - s->update_began_s;
  if (s->update_began_s > 0) s->update_s = s->update_s > 0 ? 0.9 * s->update_s + 0.1 * update_s : update_s;
  return waited;
}

/* ---- what has become of one ---- */

static void count_published(iso_run *run, int64_t step) {
  if (step <= run->snapshot_step) return;
  run->snapshot_step = step;
  iso_run_has(run, step);
  snprintf(run->at.parent, sizeof run->at.parent, "step-%08lld-%04d", (long long)step, run->at.incarnation);
  if (run->wal) iso_wal_covered(run->wal, step);
}

static bool stops_when_slow(const iso_run *run) {
  return strcmp(run->config.log.when_slow, "stop") == 0;
}

/* Storage that fails ends a run only if log.when_slow is stop: an older durable state exists, and it is said. */
static iso_status forgive(iso_run *run, iso_status status, int64_t step) {
  iso_snapshots *s = &run->snapshots;
  if ((status != ISO_ERR_IO && status != ISO_ERR_SPACE) || stops_when_slow(run)) return status;
  s->not_before_s = iso_clock_s() + RETRY_S;
  s->retry = run->snapshot_step < step;
  iso_warn("%s: %s after step %lld (see above); training goes on, durable is step %lld; trying again in %.0f s",
           run->config.run, s->retry ? "no snapshot" : "old snapshots are not deleted", (long long)step,
           (long long)run->durable_step, RETRY_S);
  return ISO_OK;
}

/* Once for each attempt: that it was given up, or that its storage does not answer. */
static iso_status say_trouble(iso_run *run, const iso_streamer_state *state) {
  iso_snapshots *s = &run->snapshots;
  const bool hangs = state->active && state->idle_s > run->config.log.max_wait_s;
  if (s->said == state->step || (!state->given_up && !hangs)) return ISO_OK;
  s->said = state->step;
  if (stops_when_slow(run) && (hangs || state->stuck))
    return iso_fail(
        ISO_ERR_IO,
        "%s: the snapshot of step %lld stands still (%s; log.max_wait_s is %g s), and log.when_slow is stop",
        run->config.run, (long long)state->step, state->stuck ? state->cause : state->doing,
        run->config.log.max_wait_s);
  if (state->stuck || !state->given_up) {
    iso_warn("%s: the snapshot of step %lld %s (%s); training goes on, durable is step %lld", run->config.run,
             (long long)state->step, state->stuck ? "is given up" : "stands still",
             state->stuck ? state->cause : state->doing, (long long)run->durable_step);
  } else {
    iso_warn("%s: the snapshot of step %lld is given up: %s; the next one is waited for", run->config.run,
             (long long)state->step, state->cause);
  }
  return ISO_OK;
}

static iso_status end_attempt(iso_run *run, const iso_streamer_state *state) {
  iso_snapshots *s = &run->snapshots;
  s->last_s = iso_clock_s();
  if (state->published) s->write_s = state->write_s;
  if (state->status != ISO_STOPPED) {
    if (state->published && s->begun_for_user && !run->options.quiet)
      iso_note("%s: the snapshot of step %lld is written", run->config.run, (long long)state->step);
    return state->status;
  }
  s->retry = true;
  s->patient = s->patient || !state->stuck;
  if (state->stuck) s->not_before_s = s->last_s + RETRY_S;
  return ISO_OK;
}

/* forgiven: a failure of storage is only said. */
static iso_status poll_attempt(iso_run *run, bool forgiven) {
  iso_snapshots *s = &run->snapshots;
  iso_streamer_state state;
  iso_streamer_state_get(s->streamer, &state);
  if (state.published) count_published(run, state.step);
  const bool ended = iso_streamer_ended(s->streamer, &state);
  if (state.published) count_published(run, state.step); /* it may have come to its end in between */
  ISO_TRY(say_trouble(run, &state));
  if (!ended) return ISO_OK;
  const iso_status status = end_attempt(run, &state);
  return status == ISO_OK || !forgiven ? status : forgive(run, status, state.step);
}

/* ---- when one is due ---- */

/* Seconds that replaying a step of the log takes: as it took at this start, else what its parts take. */
static double replay_step_s(const iso_run *run) {
  if (run->replayed_steps >= 5 && run->replay_s > 0) return run->replay_s / (double)run->replayed_steps;
  const double elements = (double)run->state.elements;
  const double bytes = elements * (double)iso_dtype_size(run->engine.options.gradient);
  iso_wal_state log;
  iso_wal_state_get(run->wal, &log);
  const double read_s =
      log.write_s > 0 && log.bytes > 0 ? bytes * log.write_s / (double)log.bytes : bytes / MEMORY_SPEED;
  return read_s + (run->snapshots.update_s > 0 ? run->snapshots.update_s : elements * PASS_BYTES / MEMORY_SPEED);
}

/* auto: as soon as a start would replay the log behind the last one for replay_target_s (without a log: would train
 * again for so long), but rarely enough that it costs little; and when the log has grown large. */
static bool due_by_itself(const iso_run *run) {
  const iso_snapshots *s = &run->snapshots;
  const int64_t newest = s->begun_step > run->snapshot_step ? s->begun_step : run->snapshot_step;
  const int64_t steps = run->at.step - (newest < 0 ? 0 : newest);
  const double since = iso_clock_s() - s->last_s, target = run->config.checkpoint.replay_target_s;
  if (run->wal) {
    const int64_t logged = steps * run->state.elements * (int64_t)iso_dtype_size(run->engine.options.gradient);
    const int64_t most = LOG_SNAPSHOTS * 12 * run->state.elements;
    if (logged >= (most > LOG_LEAST ? most : LOG_LEAST)) return true;
  }
  if (since < COST_SHARE * s->cost_s || since < WRITE_SHARE * s->write_s) return false;
  return run->wal ? (double)(steps + 1) * replay_step_s(run) >= target : since >= target;
}

static bool due(const iso_run *run) {
  const int64_t every = run->config.checkpoint.snapshot_every;
  return every > 0 ? run->at.step % every == 0 : every < 0 && due_by_itself(run);
}

/* Memory that others need is given back. */
static void shrink_staging(iso_run *run) {
  iso_snapshots *s = &run->snapshots;
  const int64_t available = iso_memory_available();
  if (s->staging_bytes == 0 || available >= MEMORY_FLOOR) return;
  const int64_t before = s->staging_bytes;
  s->staging_bytes = before > ISO_SNAPSHOT_CHUNK ? before / 2 : 0;
  if (iso_streamer_stage(s->streamer, s->staging_bytes) != ISO_OK) s->staging_bytes = 0;
  iso_warn("%s: %.0f MB of memory are free: snapshot staging shrinks from %.1f to %.1f MB", run->config.run,
           (double)available * 1e-6, (double)before * 1e-6, (double)s->staging_bytes * 1e-6);
}

static iso_status begin(iso_run *run) {
  iso_snapshots *s = &run->snapshots;
  shrink_staging(run);
  iso_streamer_need(s->streamer, iso_ranks_checked(run->options.ranks));
  ISO_TRY(iso_streamer_begin(s->streamer, &run->at, s->patient));
  if (run->wal) {
    iso_wal_restart(run->wal, run->at.step + 1);
    run->suspended = false;
  }
  s->begun_step = run->at.step;
  s->begun_for_user = s->asked;
  s->asked = s->retry = false;
  s->cost_s = 0;
  return ISO_OK;
}

/* One that is due at this very step waits for the one before it, while that gets on. */
static iso_status await_earlier(iso_run *run, double *wait_s) {
  iso_snapshots *s = &run->snapshots;
  const double began = iso_clock_s();
  iso_streamer_state state = {0};
  do {
    iso_streamer_state_get(s->streamer, &state);
  } while (state.active && !state.stuck && state.idle_s < run->config.log.max_wait_s &&
           !iso_streamer_wait(s->streamer, 0.1));
  *wait_s += iso_clock_s() - began;
  s->cost_s += iso_clock_s() - began;
  return poll_attempt(run, true);
}

iso_status iso_run_snapshots_step(iso_run *run, bool wanted, double *wait_s) {
  iso_snapshots *s = &run->snapshots;
  ISO_TRY(poll_attempt(run, true));
  const bool is_due = due(run), by_count = is_due && run->config.checkpoint.snapshot_every > 0;
  if (!s->asked && !wanted && !s->retry && !is_due) return ISO_OK;
  if (iso_clock_s() < s->not_before_s || run->snapshot_step == run->at.step) return ISO_OK;
  iso_streamer_state state;
  iso_streamer_state_get(s->streamer, &state);
  if (state.active && by_count) {
    ISO_TRY(await_earlier(run, wait_s));
    iso_streamer_state_get(s->streamer, &state);
  }
  return state.active ? ISO_OK : begin(run);
}

/* ---- the end ---- */

/* However long it takes: a signal ends the process at once. */
static void await(iso_run *run, const char *what) {
  const double patience = run->config.log.max_wait_s > 1 ? run->config.log.max_wait_s : 1;
  while (!iso_streamer_wait(run->snapshots.streamer, patience)) {
    iso_streamer_state state;
    iso_streamer_state_get(run->snapshots.streamer, &state);
    if (state.idle_s >= patience)
      iso_warn("%s: %s waits for the snapshot of step %lld, whose storage has not answered for %.0f s (%s); a signal "
               "ends it at once, durable is step %lld",
               run->config.run, what, (long long)state.step, state.idle_s, state.doing, (long long)run->durable_step);
  }
}

iso_status iso_run_snapshots_finish(iso_run *run) {
  if (!run->snapshots.streamer) return ISO_OK;
  await(run, "the end of the run");
  return poll_attempt(run, true);
}

iso_status iso_run_snapshots_last(iso_run *run) {
  ISO_TRY(begin(run));
  await(run, "the end of the run");
  return poll_attempt(run, false);
}

iso_status iso_run_snapshot(iso_run *run) {
  ISO_TRY(iso_snapshot_write(run->config.run, &run->state, &run->at));
  count_published(run, run->at.step);
  return iso_snapshot_prune(run->config.run, run->incarnation.number, (int)run->config.checkpoint.keep_last,
                            run->config.checkpoint.keep_every);
}
