/* SPDX-License-Identifier: Apache-2.0
 *
 * Other places of a run: checkpoint.target, which the run's durable state lives in, and checkpoint.mirror, a copy
 * behind the run. What is gone or damaged in the run folder comes back from them before the run starts, and a thread
 * each copies what is new as the run goes.
 *
 * With a target the run folder is where the work is done: log and snapshots are written here first, and a step is
 * durable when the target alone leads to it. One that the target lacks for longer than log.max_wait_s makes
 * log.when_slow act: by default that is said, training goes on, and the next snapshot brings the target to the newest
 * steps at once.
 *
 * An outage of either never ends a run: it is said, and they catch up. Only a start needs an answer: from a target, to
 * own it; from a mirror where the folder holds no run, since the mirror may hold this one.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

enum { RESTORE_TRIES = 4 };

static const double START_S = 20;                                               /* for an answer before a start */
static const double DONE_S = 1e9, STOPPED_S = 10, FAILED_S = 20, OUTAGE_S = 10; /* to wait at the end */
static const double RETRY_S = 20; /* between snapshots that are to bring a target on */

static bool is_first(const iso_run *run, const iso_copy *place) {
  return place == &run->target;
}

static const char *where_is(const iso_run *run, const iso_copy *place) {
  return is_first(run, place) ? run->config.checkpoint.target : run->config.checkpoint.mirror;
}

static const char *key_of(const iso_run *run, const iso_copy *place) {
  return is_first(run, place) ? "checkpoint.target" : "checkpoint.mirror";
}

/* ---- where they are ---- */

static bool one_holds_the_other(const char *a, const char *b) {
  const char *longer = strlen(a) > strlen(b) ? a : b, *shorter = longer == a ? b : a;
  const size_t n = strlen(shorter);
  return strncmp(longer, shorter, n) == 0 && (longer[n] == 0 || longer[n] == '/');
}

/* One that is the run folder, lies in it, or holds it, is no other place. */
static iso_status check_place(const iso_run *run, const iso_copy *place, const char *where) {
  char *here = realpath(run->config.run, NULL), *there = realpath(where, NULL);
  const bool same = here && there && one_holds_the_other(here, there);
  free(here);
  free(there);
  if (!same) return ISO_OK;
  return iso_fail(ISO_ERR_CONFIG, "%s: '%s' is the run folder, lies in it, or holds it; name another place",
                  key_of(run, place), where);
}

/* By a path that holds wherever the process runs. */
static iso_status open_target(iso_run *run, iso_copy *place) {
  const char *where = where_is(run, place);
  if (!iso_blob_is_remote(where)) {
    ISO_TRY(iso_path_make(where));
    ISO_TRY(check_place(run, place, where));
    char *there = realpath(where, NULL);
    if (!there) return iso_os_fail("look at", where);
    where = iso_arena_strdup(run->arena, there);
    free(there);
    if (!where) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for %s", run->config.run, key_of(run, place));
  }
  ISO_TRY(iso_target_open(where, &place->target));
  place->target->first = is_first(run, place);
  const iso_target *first = run->target.target, *second = run->mirror.target;
  if (first && second && one_holds_the_other(first->root, second->root))
    return iso_fail(ISO_ERR_CONFIG,
                    "checkpoint.mirror: '%s' and checkpoint.target are one place, or one holds the "
                    "other; name another place",
                    where);
  return ISO_OK;
}

/* ---- before a start ---- */

static void print_report(const iso_run *run, const iso_target *target, iso_restore_report *report, double seconds) {
  const char *role = iso_target_role(target);
  for (const char *at = report->text.length ? report->text.data : ""; *at;) {
    const int length = (int)strcspn(at, "\n");
    iso_warn("%s: %.*s", run->config.run, length, at);
    at += length + (at[length] == '\n');
  }
  if (report->whole)
    iso_warn("%s: there was no run here; %s '%s' holds it: restored %lld files, %.1f MB in %.2f s", run->config.run,
             role, target->where, (long long)report->files, (double)report->bytes * 1e-6, seconds);
  else if (report->files)
    iso_warn("%s: %lld files, %.1f MB were brought back from %s '%s' in %.2f s", run->config.run,
             (long long)report->files, (double)report->bytes * 1e-6, role, target->where, seconds);
}

/* Without an answer from a mirror a run that is here goes on; whether one is there cannot be told. */
static iso_status without_answer(const iso_run *run, const iso_copy *place, iso_status status) {
  char *cause = strdup(iso_last_error());
  bool here;
  const char *path = iso_path_join(run->arena, run->config.run, "run.json");
  const iso_status looked = path ? iso_path_probe(path, &here) : ISO_ERR_MEMORY;
  const bool passing = status == ISO_ERR_IO || status == ISO_ERR_NOT_FOUND || status == ISO_ERR_SPACE;
  if (passing && is_first(run, place)) {
    status = iso_fail(status, "%s: its target '%s' does not answer, so that nothing could be durable: %s",
                      run->config.run, where_is(run, place), cause ? cause : "");
  } else if (looked == ISO_OK && passing && here) {
    iso_warn("%s: its mirror cannot be read (%s); going on with what is here", run->config.run, cause ? cause : "");
    status = ISO_OK;
  } else if (looked == ISO_OK && passing) {
    status = iso_fail(status, "%s: whether mirror '%s' holds this run cannot be told: %s", run->config.run,
                      where_is(run, place), cause ? cause : "");
  } else {
    status = iso_fail(status, "%s", cause ? cause : "out of memory");
  }
  free(cause);
  return looked == ISO_OK ? status : looked;
}

/* From a target that this process owns what others went on with is taken over. */
static iso_status restore_once(iso_run *run, iso_copy *place, iso_restore_report *report) {
  const bool adopt = run->options.take_over || place->owned;
  return iso_mirror_restore(run->config.run, place->target, adopt, report);
}

static iso_status restore(iso_run *run, iso_copy *place) {
  iso_restore_report report = {0};
  const double began = iso_clock_s();
  if (!where_is(run, place)[0]) return ISO_OK;
  ISO_TRY(open_target(run, place));
  iso_s3_patience_of_thread(START_S);
  iso_status status = ISO_OK;
  if (is_first(run, place)) status = iso_target_lock_acquire(place->target, run->options.take_over, &place->owned);
  iso_log_mute(true);
  if (status == ISO_OK) status = restore_once(run, place, &report);
  /* What another process still writes there may be deleted between its listing and its reading. */
  for (int tries = 1; status == ISO_ERR_NOT_FOUND && tries < RESTORE_TRIES; tries++) {
    iso_string_fini(&report.text);
    status = restore_once(run, place, &report);
  }
  iso_log_mute(false);
  iso_s3_patience_of_thread(0);
  if (status != ISO_OK && status != ISO_STOPPED && (place->owned || !is_first(run, place)))
    status = without_answer(run, place, status);
  print_report(run, place->target, &report, iso_clock_s() - began);
  iso_string_fini(&report.text);
  return status;
}

iso_status iso_run_mirror_restore(iso_run *run) {
  ISO_TRY(restore(run, &run->target));
  return restore(run, &run->mirror);
}

static iso_status repair(iso_run *run, const iso_copy *place, bool *repaired) {
  iso_restore_report report;
  const double began = iso_clock_s();
  if (!place->target) return ISO_OK;
  iso_note("%s: comparing with %s '%s', byte by byte", run->config.run, iso_target_role(place->target),
           place->target->where);
  const iso_status status = iso_mirror_repair(run->config.run, place->target, &report);
  if (status == ISO_OK) print_report(run, place->target, &report, iso_clock_s() - began);
  *repaired = *repaired || (status == ISO_OK && report.files > 0);
  iso_string_fini(&report.text);
  return status;
}

iso_status iso_run_mirror_repair(iso_run *run, bool *repaired) {
  *repaired = false;
  ISO_TRY(repair(run, &run->target, repaired));
  return repair(run, &run->mirror, repaired);
}

static iso_status open_place(iso_run *run, iso_copy *place) {
  if (!place->target || run->incarnation.number == 0) return ISO_OK;
  ISO_TRY(iso_mirror_open(run->config.run, run->uuid, run->incarnation.number, run->here_step, place->target,
                          place->owned, iso_data_thread_settle, &place->mirror));
  place->target = NULL; /* kept by the mirror */
  place->owned = NULL;
  return ISO_OK;
}

iso_status iso_run_mirror_open(iso_run *run) {
  ISO_TRY(open_place(run, &run->target));
  return open_place(run, &run->mirror);
}

/* ---- as the run goes ---- */

void iso_run_has(iso_run *run, int64_t step) {
  if (step > run->here_step) run->here_step = step;
  if (!run->config.checkpoint.target[0] && step > run->durable_step) run->durable_step = step;
}

static iso_status poll(iso_run *run, iso_copy *place, iso_mirror_state *state) {
  iso_mirror_tell(place->mirror, run->here_step);
  iso_mirror_state_get(place->mirror, state);
  if (is_first(run, place) && state->step > run->durable_step) run->durable_step = state->step;
  return state->lost ? iso_fail(state->lost, "%s", state->cause) : ISO_OK;
}

/* Seconds that the target has lacked a step that the folder leads to; those of the oldest such step, or less. */
static double lag_s(iso_run *run) {
  iso_copy *place = &run->target;
  const double now = iso_clock_s();
  if (run->durable_step >= place->mark) {
    place->mark = run->durable_step < run->here_step ? run->here_step : 0;
    place->mark_s = now;
  }
  return place->mark ? now - place->mark_s : 0;
}

/* log.when_slow: wait. A signal ends it. */
static iso_status wait_for_target(iso_run *run, double *wait_s) {
  iso_copy *place = &run->target;
  const double began = iso_clock_s();
  iso_mirror_state state;
  while (lag_s(run) > run->config.log.max_wait_s && !iso_http_stopping()) {
    if (iso_clock_s() - place->told_s >= run->config.log.max_wait_s && iso_clock_s() - place->told_s >= 1) {
      place->told_s = iso_clock_s();
      iso_warn("%s: waiting behind step %lld for its target, durable is step %lld (log.when_slow: wait)",
               run->config.run, (long long)run->at.step, (long long)run->durable_step);
    }
    nanosleep(&(struct timespec){0, 5000000}, NULL);
    ISO_TRY(poll(run, place, &state));
  }
  *wait_s += iso_clock_s() - began;
  return ISO_OK;
}

/* It lacks steps for too long: a snapshot, which it gets first, is wanted now, and once it can be written again. */
static void fall_behind(iso_run *run, const iso_mirror_state *state, bool *snapshot_wanted) {
  iso_copy *place = &run->target;
  const bool begins = !place->behind, back = place->outage && !state->outage;
  place->behind = true;
  place->outage = state->outage;
  if (begins)
    iso_warn("%s: its target has lacked step %lld for %.0f s (log.max_wait_s)%s%s; training goes on, durable is step "
             "%lld until a snapshot is there",
             run->config.run, (long long)place->mark, iso_clock_s() - place->mark_s, state->outage ? ": " : "",
             state->outage ? state->cause : "", (long long)run->durable_step);
  if (!begins && !back && iso_clock_s() - place->told_s < RETRY_S) return;
  place->told_s = iso_clock_s();
  *snapshot_wanted = *snapshot_wanted || (!state->outage && run->snapshot_step <= run->durable_step);
  iso_mirror_leap(place->mirror, true);
}

static void catch_up(iso_run *run) {
  iso_copy *place = &run->target;
  if (!place->behind) return;
  place->behind = place->outage = false;
  iso_mirror_leap(place->mirror, false);
  iso_note("%s: its target has caught up, durable is step %lld", run->config.run, (long long)run->durable_step);
}

static iso_status poll_target(iso_run *run, bool *snapshot_wanted, double *wait_s) {
  iso_mirror_state state;
  const char *policy = run->config.log.when_slow;
  const double most = run->config.log.max_wait_s;
  ISO_TRY(poll(run, &run->target, &state));
  const double lag = lag_s(run);
  if (lag <= most) {
    catch_up(run);
    return ISO_OK;
  }
  if (strcmp(policy, "stop") == 0)
    return iso_fail(
        ISO_ERR_IO,
        "%s: its target did not take step %lld within log.max_wait_s (%g s), and log.when_slow is stop%s%s; "
        "the run can be resumed after step %lld",
        run->config.run, (long long)run->target.mark, most, state.outage ? " (" : "", state.outage ? state.cause : "",
        (long long)run->durable_step);
  if (strcmp(policy, "wait") == 0) return wait_for_target(run, wait_s);
  fall_behind(run, &state, snapshot_wanted);
  return ISO_OK;
}

iso_status iso_run_mirror_poll(iso_run *run, bool *snapshot_wanted, double *wait_s) {
  iso_mirror_state state;
  if (run->target.mirror) ISO_TRY(poll_target(run, snapshot_wanted, wait_s));
  return run->mirror.mirror ? poll(run, &run->mirror, &state) : ISO_OK;
}

/* ---- the end ---- */

static void close_place(iso_run *run, iso_copy *place, iso_status status) {
  const bool first = is_first(run, place);
  const double patience = run->config.log.max_wait_s;
  double most = status == ISO_OK ? DONE_S : status == ISO_STOPPED ? STOPPED_S : FAILED_S, outage = OUTAGE_S;
  if (first && most < patience) most = patience;
  if (first) outage = patience;
  if (place->mirror) {
    iso_mirror_state last;
    const bool differed = status == ISO_ERR_MISMATCH && iso_differed_pending(run->config.run) > 0; /* goes there, too */
    iso_mirror_tell(place->mirror, run->here_step);
    iso_mirror_close(&place->mirror, most, outage, first && status != ISO_OK && !differed ? run->here_step : INT64_MAX,
                     &last);
    if (first && last.step > run->durable_step) run->durable_step = last.step;
    place->behind = !last.complete;
  }
  iso_target_lock_release(&place->owned);
  iso_target_close(&place->target);
}

void iso_run_mirror_close(iso_run *run, iso_status status) {
  close_place(run, &run->target, status);
  close_place(run, &run->mirror, status);
}

bool iso_run_mirror_lacks(const iso_run *run) {
  return run->config.checkpoint.target[0] && (run->durable_step < run->at.step || run->target.behind);
}
