/* SPDX-License-Identifier: Apache-2.0
 *
 * Where a run goes on: the newest valid snapshot, or the beginning. What differs from the run so far is refused by name
 * unless --accept says otherwise; what can never be right (another tokenizer, other tensors) is refused always. Each
 * start publishes an incarnation before its first step.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

_Static_assert(sizeof(iso_cursor) == sizeof(iso_data_cursor), "a stored cursor is a lane's cursor");

static const char *in_run(iso_run *run, const char *name) {
  return iso_path_join(run->arena, run->config.run, name);
}

/* Config and model as of this start, and what their content is, beside the snapshots. */
static iso_status write_inputs(iso_run *run) {
  iso_string text = {0};
  iso_config_print(&run->config, &text);
  iso_status status = iso_file_replace(in_run(run, "config.yaml"), text.data, text.length);
  text.length = 0;
  iso_string_printf(&text, "%s\n", run->model.json);
  if (status == ISO_OK) status = iso_file_replace(in_run(run, "model.json"), text.data, text.length);
  text.length = 0;
  iso_string_printf(&text, "{\n  \"tokenizer\": \"%s\",\n  \"corpus\": \"%s\"\n}\n",
                    iso_tokenizer_fingerprint(run->tokenizer), run->corpus_info.digest);
  if (status == ISO_OK) status = iso_file_replace(in_run(run, "inputs.json"), text.data, text.length);
  text.length = 0;
  iso_fusion_record(iso_engine_graph(&run->engine), &text);
  iso_string_printf(&text, "\n");
  if (status == ISO_OK) status = iso_file_replace(in_run(run, "fusion.json"), text.data, text.length);
  iso_string_fini(&text);
  const char *tokenizer = in_run(run, "tokenizer");
  if (status == ISO_OK) status = iso_path_make(tokenizer);
  if (status == ISO_OK) status = iso_tokenizer_copy(run->tokenizer, tokenizer);
  return status;
}

/* Differences between the stored config and this one, by key; "" when none. */
static iso_status describe_difference(iso_run *run, iso_string *out) {
  const char *stored = in_run(run, "config.yaml");
  iso_config before;
  ISO_TRY(iso_config_read(stored, NULL, 0, &before));
  iso_config_difference(&before, &run->config, out);
  iso_config_fini(&before);
  iso_json *inputs;
  ISO_TRY(iso_json_read(in_run(run, "inputs.json"), &inputs));
  const char *corpus;
  iso_status status = iso_json_string(inputs, "inputs.json", "corpus", "", &corpus);
  if (status == ISO_OK && strcmp(corpus, run->corpus_info.digest) != 0)
    iso_string_printf(out, "%sthe corpus itself (files, sizes or documents)", out->length ? "; " : "");
  iso_json_destroy(&inputs);
  if (status != ISO_OK) return status;
  char *model;
  size_t bytes;
  ISO_TRY(iso_file_read(in_run(run, "model.json"), &model, &bytes));
  if (bytes && model[bytes - 1] == '\n') model[bytes - 1] = 0;
  if (strcmp(model, run->model.json) != 0) iso_string_printf(out, "%sthe model's config", out->length ? "; " : "");
  free(model);
  return ISO_OK;
}

static iso_status check_same_run(iso_run *run, const iso_incarnation *newest, bool *changed) {
  const iso_config *config = &run->config;
  if (strcmp(run->at.tokenizer_fingerprint, iso_tokenizer_fingerprint(run->tokenizer)) != 0)
    return iso_fail(
        ISO_ERR_MISMATCH,
        "%s: was trained with another tokenizer (fingerprint %.12s, now %.12s); use the one in %s/tokenizer",
        config->run, run->at.tokenizer_fingerprint, iso_tokenizer_fingerprint(run->tokenizer), config->run);
  const char *tier = iso_tier_name(iso_device_kernels(run->device)->tier);
  iso_string what = {0};
  iso_status status = ISO_OK;
  if (strcmp(newest->config_digest, run->digest) != 0) {
    status = describe_difference(run, &what);
    if (status == ISO_OK && !what.length)
      iso_string_printf(&what, "the program (its kernels or passes give other bits than the version that ran before)");
  }
  if (status == ISO_OK && strcmp(newest->tier, tier) != 0)
    iso_string_printf(&what, "%sISA tier: %s -> %s", what.length ? "; " : "", newest->tier, tier);
  if (status == ISO_OK && newest->optimizer_version != ISO_OPTIMIZER_VERSION)
    iso_string_printf(&what, "%soptimizer kernel version: %d -> %d", what.length ? "; " : "", newest->optimizer_version,
                      ISO_OPTIMIZER_VERSION);
  *changed = what.length > 0;
  if (status == ISO_OK && *changed && !run->options.accept)
    status = iso_fail(ISO_ERR_MISMATCH,
                      "%s: a resume would change the run: %s; use the old settings, another `run`, or --accept",
                      config->run, what.data);
  if (status == ISO_OK && *changed) iso_warn("%s: resuming with accepted changes: %s", config->run, what.data);
  iso_string_fini(&what);
  return status;
}

/* As the settings say, which need not be the run's own. */
static iso_status make_weights(iso_run *run, const iso_config *settings) {
  const iso_graph *graph = iso_engine_graph(&run->engine);
  const char *from = settings->model.init_from;
  if (from[0]) return iso_model_import(&run->model, graph, from, run->engine.flat.master);
  iso_model_init(graph, (uint64_t)settings->seed, run->engine.flat.master, iso_device_team(run->device));
  return ISO_OK;
}

iso_status iso_run_start_afresh(iso_run *run) {
  ISO_TRY(make_weights(run, &run->config));
  iso_snapshot_info_fini(&run->at);
  run->at.cursor_count = iso_data_cursor_count(&run->data);
  run->at.cursors = calloc(run->at.cursor_count + 1, sizeof *run->at.cursors);
  if (!run->at.cursors)
    return iso_fail(ISO_ERR_MEMORY, "%s: no memory for %zu cursors", run->config.run, run->at.cursor_count);
  return ISO_OK;
}

/* An earlier start acknowledged steps that are not there any more: going on would lose them in silence. */
static iso_status check_nothing_lost(iso_run *run, int64_t acknowledged) {
  int64_t durable;
  ISO_TRY(iso_status_durable(run->config.run, &durable));
  if (acknowledged > durable) durable = acknowledged;
  bool this_boot;
  const int64_t shown = iso_metrics_durable(run->config.run, &this_boot);
  if (shown > durable && shown > run->at.step && !this_boot)
    iso_note("%s: step %lld was durable before this machine started anew, step %lld is the last that can be restored",
             run->config.run, (long long)shown, (long long)run->at.step);
  else if (shown > durable)
    durable = shown;
  if (durable <= run->at.step) return ISO_OK;
  if (run->options.accept) {
    iso_warn("%s: step %lld was durable, step %lld is the last that can be restored: the steps between are lost",
             run->config.run, (long long)durable, (long long)run->at.step);
    return ISO_OK;
  }
  return iso_fail(ISO_ERR_FORMAT,
                  "%s: step %lld was durable, but snapshots and log lead to step %lld only (isotach verify names the "
                  "damage); look into aside/, choose another `run`, or go on from there with --accept",
                  run->config.run, (long long)durable, (long long)run->at.step);
}

static iso_status load_snapshot(iso_run *run, const iso_incarnation *newest, bool *changed) {
  ISO_TRY(check_same_run(run, newest, changed));
  if (run->at.cursor_count != iso_data_cursor_count(&run->data))
    return iso_fail(
        ISO_ERR_MISMATCH,
        "%s: the snapshot has %zu data cursors, this config needs %zu; keep batch.sequences and data.sources",
        run->snapshot, run->at.cursor_count, iso_data_cursor_count(&run->data));
  return iso_snapshot_load(run->snapshot, &run->state);
}

static iso_status is_logged(iso_run *run, bool *logged) {
  iso_wal_index index;
  iso_string faults = {0};
  const iso_status status = iso_wal_index_read(run->config.run, run->uuid, false, 0, &index, &faults);
  *logged = status == ISO_OK && iso_wal_index_find(&index, 1);
  if (status == ISO_OK) iso_wal_index_fini(&index);
  iso_string_fini(&faults); /* the replay tells them */
  return status;
}

/* The weights that the steps of the log go on from: those of the settings that the run had so far. */
static iso_status remake_weights(iso_run *run) {
  char *model;
  size_t bytes;
  iso_config before;
  ISO_TRY(iso_file_read(in_run(run, "model.json"), &model, &bytes));
  if (bytes && model[bytes - 1] == '\n') model[bytes - 1] = 0;
  const bool same = strcmp(model, run->model.json) == 0;
  free(model);
  if (!same)
    return iso_fail(ISO_ERR_MISMATCH,
                    "%s: its log goes on from the first weights, which the model's config makes: it cannot change "
                    "before the first snapshot, not with --accept either; use the old one, or another `run`",
                    run->config.run);
  ISO_TRY(iso_config_read(in_run(run, "config.yaml"), NULL, 0, &before));
  const iso_status status = make_weights(run, &before);
  iso_config_fini(&before);
  return status;
}

/* No snapshot: the first weights, and the log behind them if there is one. Then the settings may not differ here
 * either.
 */
static iso_status start_at_first(iso_run *run, const iso_incarnation *newest, bool *changed) {
  bool logged, known;
  run->snapshot[0] = 0;
  ISO_TRY(iso_run_start_afresh(run));
  if (newest->number == 0) return ISO_OK;
  ISO_TRY(is_logged(run, &logged));
  if (!logged) return ISO_OK;
  ISO_TRY(iso_incarnation_first_known(run->config.run, &known));
  if (!known)
    return iso_fail(ISO_ERR_FORMAT,
                    "%s: has no valid snapshot, and its settings have changed since the first weights, so they cannot "
                    "be made again; look into aside/, or choose another `run`",
                    run->config.run);
  iso_json *inputs;
  const char *tokenizer;
  ISO_TRY(iso_json_read(in_run(run, "inputs.json"), &inputs));
  const iso_status status = iso_json_string(inputs, "inputs.json", "tokenizer", "", &tokenizer);
  if (status == ISO_OK) snprintf(run->at.tokenizer_fingerprint, sizeof run->at.tokenizer_fingerprint, "%s", tokenizer);
  iso_json_destroy(&inputs);
  ISO_TRY(status);
  ISO_TRY(check_same_run(run, newest, changed));
  return *changed ? remake_weights(run) : ISO_OK;
}

/* Settings change before the first snapshot: one in the name of the start that took the steps, so that nothing depends
 * on the old settings any more. */
static iso_status seal_first_steps(iso_run *run, const iso_incarnation *newest, bool *changed) {
  if (run->at.step == 0) { /* none could be replayed after all */
    *changed = false;
    return iso_run_start_afresh(run);
  }
  snprintf(run->at.config_digest, sizeof run->at.config_digest, "%s", newest->config_digest);
  snprintf(run->at.tier, sizeof run->at.tier, "%s", newest->tier);
  run->at.incarnation = newest->number;
  return iso_run_snapshot(run);
}

static void fill_identity(iso_run *run) {
  snprintf(run->at.config_digest, sizeof run->at.config_digest, "%s", run->digest);
  snprintf(run->at.tokenizer_fingerprint, sizeof run->at.tokenizer_fingerprint, "%s",
           iso_tokenizer_fingerprint(run->tokenizer));
  snprintf(run->at.tier, sizeof run->at.tier, "%s", iso_tier_name(iso_device_kernels(run->device)->tier));
  run->at.incarnation = run->incarnation.number;
}

static iso_status publish_incarnation(iso_run *run, int number) {
  iso_incarnation *in = &run->incarnation;
  in->number = number;
  in->begins_after = run->at.step;
  snprintf(in->config_digest, sizeof in->config_digest, "%s", run->digest);
  snprintf(in->tier, sizeof in->tier, "%s", iso_tier_name(iso_device_kernels(run->device)->tier));
  snprintf(in->build, sizeof in->build, "%s", ISO_VERSION);
  in->optimizer_version = ISO_OPTIMIZER_VERSION;
  in->virtual_workers = run->workers;
  in->ranks = 1;
  return iso_incarnation_publish(run->config.run, in);
}

/* The log behind the snapshot, or behind the first weights, which the config makes again. */
static iso_status replay(iso_run *run, int incarnation) {
  if (incarnation == 0) return ISO_OK;
  const int64_t from = run->at.step;
  iso_replay_report report;
  ISO_TRY(iso_log_replay(run->config.run, run->uuid, run->device, iso_engine_graph(&run->engine), &run->state,
                         INT64_MAX, &run->at, &report));
  ISO_TRY(check_nothing_lost(run, report.acknowledged));
  run->replayed_steps = report.steps;
  run->replay_s = report.seconds;
  if (report.steps)
    iso_note("%s: replayed steps %lld to %lld of the log in %.2f s (%.2f GB/s)", run->config.run, (long long)from + 1,
             (long long)run->at.step, report.seconds,
             report.seconds > 0 ? (double)report.bytes * 1e-9 / report.seconds : 0.0);
  return ISO_OK;
}

iso_status iso_run_resume(iso_run *run) {
  iso_incarnation newest;
  ISO_TRY(iso_incarnation_newest(run->config.run, &newest));
  bool found = false, changed = false;
  ISO_TRY(iso_snapshot_find(run->config.run, -1, true, run->snapshot, &run->at, &found));
  if (found) {
    ISO_TRY(load_snapshot(run, &newest, &changed));
  } else {
    ISO_TRY(start_at_first(run, &newest, &changed));
  }
  run->snapshot_step = found ? run->at.step : -1;
  ISO_TRY(replay(run, newest.number));
  if (!found && changed) ISO_TRY(seal_first_steps(run, &newest, &changed));
  iso_flat_refresh(&run->engine.flat, run->device);
  const bool finished =
      found && !changed &&
      (run->at.step >= run->config.steps || (run->config.stop_at && run->at.step >= run->config.stop_at));
  run->incarnation = newest;
  run->durable_step = run->at.step;
  if (finished) return ISO_OK; /* nothing to train: no new incarnation */
  ISO_TRY(publish_incarnation(run, newest.number + 1));
  ISO_TRY(write_inputs(run));
  fill_identity(run);
  if (changed) ISO_TRY(iso_run_snapshot(run));
  return iso_run_log_open(run);
}

iso_status iso_run_snapshot(iso_run *run) {
  ISO_TRY(iso_snapshot_write(run->config.run, &run->state, &run->at));
  snprintf(run->at.parent, sizeof run->at.parent, "step-%08lld-%04d", (long long)run->at.step, run->at.incarnation);
  run->durable_step = run->snapshot_step = run->at.step;
  ISO_TRY(
      iso_snapshot_prune(run->config.run, (int)run->config.checkpoint.keep_last, run->config.checkpoint.keep_every));
  if (!run->wal) return ISO_OK;
  iso_wal_restart(run->wal, run->at.step + 1);
  iso_wal_roll(run->wal);
  int64_t oldest, newest;
  ISO_TRY(iso_snapshot_range(run->config.run, &oldest, &newest));
  return oldest < 0 ? ISO_OK : iso_wal_prune(run->config.run, oldest);
}
