/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's step log: each step's gradient is handed to it in parts, as the backward pass completes them, and counts with
 * the commit that follows once the step is taken. (With ranks, as all have reduced them.)
 *
 * There are two reduced gradients. The log's thread reads one while the step makes the other; the next step takes
 * whichever the log no longer reads, and waits, counted, when that is none. Storage that stays too slow or fails is
 * dealt with as log.when_slow says; by default the log is suspended, aloud, and the next snapshot closes the gap.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

static const int64_t SEGMENT_BYTES = INT64_C(1) << 30;
static const double RETRY_S = 20; /* between snapshots that are to end a suspension */

static uint32_t decay_flags(const iso_config *config) {
  return (uint32_t)(config->optimizer.decay_embeddings ? 1 : 0) | (config->optimizer.decay_norms ? 2 : 0);
}

bool iso_run_is_power_safe(const iso_run *run) {
  return !run->config.log.enabled || strcmp(run->config.log.durability, "disk") == 0 ||
         run->config.checkpoint.target[0];
}

static iso_wal_use use_of(const char *word, const char *on) {
  return strcmp(word, "auto") == 0 ? ISO_WAL_AUTO : strcmp(word, on) == 0 ? ISO_WAL_ON : ISO_WAL_OFF;
}

void iso_config_log(const iso_config *config, iso_wal_options *options) {
  options->disk = strcmp(config->log.durability, "disk") == 0;
  options->packed = use_of(config->log.compress, "on");
  options->several = use_of(config->log.io, "uring");
  options->patient = strcmp(config->log.when_slow, "wait") == 0;
  options->max_wait_s = config->log.max_wait_s;
}

static void hand_over(void *log, int64_t begin, int64_t end) {
  iso_wal_range(log, begin, end);
}

iso_status iso_run_log_open(iso_run *run) {
  if (!run->config.log.enabled) return ISO_OK;
  iso_wal_options options = {.run = run->config.run,
                             .uuid = run->uuid,
                             .incarnation = run->incarnation.number,
                             .elements = run->state.elements,
                             .gradient = run->engine.options.gradient,
                             .optimizer_version = ISO_OPTIMIZER_VERSION,
                             .segment_bytes = run->options.segment_bytes ? run->options.segment_bytes : SEGMENT_BYTES,
                             .idle_core = iso_device_threads(run->device) < iso_cpu_count(),
                             .cursors = (int64_t)run->at.cursor_count};
  iso_config_log(&run->config, &options);
  ISO_TRY(iso_wal_open(&options, run->at.step + 1, &run->wal));
  if (run->options.ranks)
    iso_ranks_handover_set(run->options.ranks, hand_over, run->wal);
  else
    iso_exec_handover_set(run->engine.exec, hand_over, run->wal);
  return ISO_OK;
}

static bool free_reduction(iso_run *run, double wait_s) {
  iso_flat *flat = &run->engine.flat;
  const int64_t wanted = (run->at.step + 1) & 1;
  for (int i = 0; i < 2; i++) {
    iso_flat_reduction_use(flat, wanted ^ i);
    if (iso_wal_release(run->wal, flat->reduced, 0)) return true;
  }
  iso_flat_reduction_use(flat, wanted);
  return iso_wal_release(run->wal, flat->reduced, wait_s);
}

iso_status iso_run_log_begin(iso_run *run, double *wait_s) {
  if (!run->wal) return ISO_OK;
  const double began = iso_clock_s(), most = run->config.log.max_wait_s;
  const char *policy = run->config.log.when_slow;
  double told_s = 0;
  while (!free_reduction(run, most)) {
    if (strcmp(policy, "stop") == 0)
      return iso_fail(ISO_ERR_IO,
                      "%s: the log's storage did not take step %lld within log.max_wait_s (%g s), and log.when_slow is "
                      "stop; the run can be resumed after step %lld",
                      run->config.run, (long long)run->at.step, most, (long long)run->durable_step);
    if (strcmp(policy, "wait_then_suspend") == 0) iso_wal_suspend(run->wal, "storage is too slow (log.max_wait_s)");
    if (strcmp(policy, "wait") == 0 && iso_clock_s() - told_s >= 1) {
      told_s = iso_clock_s();
      iso_warn("%s: waiting for the log's storage since %.0f s behind step %lld, durable is step %lld (log.when_slow: "
               "wait)",
               run->config.run, told_s - began, (long long)run->at.step, (long long)run->durable_step);
    }
  }
  *wait_s += iso_clock_s() - began;
  iso_wal_begin(run->wal, run->at.step + 1, run->engine.flat.reduced);
  return ISO_OK;
}

iso_status iso_run_log_append(iso_run *run, const iso_step *step) {
  if (!run->wal) return ISO_OK;
  const iso_wal_record record = {.step = run->at.step,
                                 .adam_step = run->at.adam_step,
                                 .tokens = run->at.tokens,
                                 .refused_total = run->at.refused,
                                 .scored = step->scored,
                                 .norm = step->norm,
                                 .loss_sum = step->loss_sum,
                                 .lr = step->lr,
                                 .beta1 = step->beta1,
                                 .beta2 = step->beta2,
                                 .eps = step->eps,
                                 .weight_decay = step->weight_decay,
                                 .clip = step->clip,
                                 .bias1 = step->bias1,
                                 .bias2 = step->bias2,
                                 .refused = step->refused,
                                 .decay = decay_flags(&run->config),
                                 .cursors = run->at.cursors,
                                 .cursor_count = run->at.cursor_count};
  return iso_wal_append(run->wal, &record, run->engine.flat.reduced);
}

/* That the log is packed from now on (the first time; later changes stand in report.json), and storage that does not
 * answer. */
static void say_changes(iso_run *run, const iso_wal_state *state) {
  if (state->packed && !run->packed && strcmp(run->config.log.compress, "auto") == 0)
    iso_note("%s: from about step %lld on gradients are logged %s", run->config.run, (long long)run->at.step,
             state->why);
  run->packed = run->packed || state->packed;
  const bool hangs = state->hangs_s > run->config.log.max_wait_s && state->hangs_s > 1;
  if (hangs && !run->hangs)
    iso_warn("%s: the log's storage has not answered for %.0f s; durable is step %lld", run->config.run, state->hangs_s,
             (long long)run->durable_step);
  if (!hangs && run->hangs)
    iso_note("%s: the log's storage answers again, durable is step %lld", run->config.run,
             (long long)run->durable_step);
  run->hangs = hangs;
}

iso_status iso_run_log_poll(iso_run *run, bool *snapshot_wanted) {
  *snapshot_wanted = false;
  if (!run->wal) return ISO_OK;
  iso_wal_state state;
  iso_wal_state_get(run->wal, &state);
  iso_run_has(run, state.durable);
  say_changes(run, &state);
  if (!state.gap) {
    if (run->gap)
      iso_note("%s: the log is whole again, durable is step %lld", run->config.run, (long long)run->durable_step);
    run->gap = run->suspended = false;
    return ISO_OK;
  }
  *snapshot_wanted = iso_clock_s() - run->suspended_since_s > RETRY_S;
  if (*snapshot_wanted) run->suspended_since_s = iso_clock_s();
  if (!state.suspended) return ISO_OK; /* written again, behind a gap that a snapshot is to cover */
  ISO_TRY(iso_incarnation_check(run->config.run, run->incarnation.number)); /* superseded: nothing counts any more */
  if (strcmp(run->config.log.when_slow, "stop") == 0)
    return iso_fail(state.status, "%s: the log cannot be written (%s), and log.when_slow is stop", run->config.run,
                    state.cause);
  if (!run->suspended) {
    iso_warn("%s: the log is suspended (%s); training goes on, durable stays at step %lld until a snapshot is written",
             run->config.run, state.cause, (long long)run->durable_step);
    run->suspended_since_s = iso_clock_s();
    *snapshot_wanted = true;
  }
  run->gap = run->suspended = true;
  return ISO_OK;
}

bool iso_run_log_flush(iso_run *run) {
  const double most = run->config.log.max_wait_s > 5 ? run->config.log.max_wait_s : 5;
  if (iso_wal_flush_for(run->wal, most)) return true;
  iso_wal_suspend(run->wal, "storage did not take the last steps (log.max_wait_s)");
  return false;
}

void iso_run_log_record(const iso_run *run, iso_string *out) {
  if (!run->wal) return;
  iso_wal_state state;
  iso_wal_state_get(run->wal, &state);
  iso_string_printf(out,
                    "{\"bytes\": %lld, \"gradient_bytes\": %lld, \"packed_steps\": %lld, \"written\": \"%s\", "
                    "\"io\": \"%s\", \"write_s\": %.3f, \"sync_s\": %.3f, \"crc_s\": %.4f, \"pack_s\": %.3f}",
                    (long long)state.bytes, (long long)state.raw_bytes, (long long)state.packed_steps, state.why,
                    state.several ? "uring" : "thread", state.write_s, state.sync_s, state.crc_s, state.pack_s);
}

void iso_run_log_close(iso_run *run) {
  if (run->wal) iso_exec_handover_set(run->engine.exec, NULL, NULL);
  iso_wal_close(&run->wal);
}
