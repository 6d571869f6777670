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

/* Config, model and tokenizer as of this start, and what their content is: they take their places once the start
 * counts. */
static iso_status write_inputs(iso_run *run) {
  iso_string config = {0}, model = {0};
  iso_config_print(&run->config, &config);
  iso_string_printf(&model, "%s\n", run->model.json);
  const bool failed = iso_string_failed(&config) || iso_string_failed(&model);
  const iso_run_inputs inputs = {
      .config = config.data, .model = model.data, .corpus = run->corpus_info.digest, .tokenizer = run->tokenizer};
  const iso_status status = failed ? ISO_ERR_MEMORY : iso_run_inputs_write(run->config.run, &inputs);
  iso_string_fini(&config);
  iso_string_fini(&model);
  return status;
}

static iso_status write_fusion(iso_run *run) {
  iso_string text = {0};
  iso_fusion_record(iso_engine_graph(&run->engine), &text);
  if (text.length) text.length--; /* its closing brace */
  iso_record_seal(&text);
  const iso_status status =
      iso_string_failed(&text) ? ISO_ERR_MEMORY : iso_file_replace(in_run(run, "fusion.json"), text.data, text.length);
  iso_string_fini(&text);
  return status;
}

/* What differs between the run so far and this start, in words; "" when nothing does. */
typedef struct changes {
  iso_string text;
  bool seed; /* is one of them */
} changes;

/* Differences between the stored config and this one, by key. */
static iso_status describe_difference(iso_run *run, changes *what) {
  iso_string *out = &what->text;
  const char *stored = in_run(run, "config.yaml");
  iso_config before;
  ISO_TRY(iso_config_read(stored, NULL, 0, &before));
  iso_config_difference(&before, &run->config, out);
  what->seed = before.seed != run->config.seed;
  iso_config_fini(&before);
  iso_json *inputs;
  ISO_TRY(iso_run_inputs_json(in_run(run, "inputs.json"), &inputs));
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

static iso_status check_same_run(iso_run *run, const iso_incarnation *newest, changes *what) {
  const iso_config *config = &run->config;
  if (strcmp(run->at.tokenizer_fingerprint, iso_tokenizer_fingerprint(run->tokenizer)) != 0)
    return iso_fail(
        ISO_ERR_MISMATCH,
        "%s: was trained with another tokenizer (fingerprint %.12s, now %.12s); use the one in %s/tokenizer",
        config->run, run->at.tokenizer_fingerprint, iso_tokenizer_fingerprint(run->tokenizer), config->run);
  const char *tier = iso_tier_name(iso_device_kernels(run->device)->tier);
  iso_status status = ISO_OK;
  iso_string *text = &what->text;
  if (strcmp(newest->config_digest, run->digest) != 0) {
    status = describe_difference(run, what);
    if (status == ISO_OK && !text->length)
      iso_string_printf(text, "the program (its kernels or passes give other bits than the version that ran before)");
  }
  if (status == ISO_OK && strcmp(newest->tier, tier) != 0)
    iso_string_printf(text, "%sISA tier: %s -> %s (products and sums round differently from here on)",
                      text->length ? "; " : "", newest->tier, tier);
  if (status == ISO_OK && newest->optimizer_version != ISO_OPTIMIZER_VERSION)
    iso_string_printf(text,
                      "%soptimizer kernel version: %d -> %d (weights and moments of the steps that are replayed from "
                      "the log, and of those to come, may differ in their last bits)",
                      text->length ? "; " : "", newest->optimizer_version, ISO_OPTIMIZER_VERSION);
  if (status == ISO_OK && text->length && !run->options.accept)
    status = iso_fail(ISO_ERR_MISMATCH,
                      "%s: a resume would change the run: %s; use the old settings, another `run`, or --accept",
                      config->run, text->data);
  if (status == ISO_OK && text->length) iso_warn("%s: resuming with accepted changes: %s", config->run, text->data);
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

/* Why not more can be restored, as a beginning of what to do; "" when nothing is known. */
static void name_causes(const iso_string *damaged, iso_recovery *recovery, iso_string *out) {
  if (damaged->length)
    iso_string_printf(out, "snapshot %.*s cannot be read (see above); ", (int)strcspn(damaged->data, "\n"),
                      damaged->data);
  if (recovery->faults.length) iso_string_printf(out, "%s; ", iso_fault_first(&recovery->faults));
}

/* What a disk does not read today it may read tomorrow, and nobody may be left who says what it holds: a power cut
 * takes the newest lines of metrics.jsonl. A snapshot that was published counts as one that was acknowledged. */
static iso_status check_all_read(const iso_run *run, const iso_string *damaged, iso_recovery *recovery) {
  int64_t step = -1;
  int incarnation;
  char name[64];
  iso_string cause = {0};
  snprintf(name, sizeof name, "%.*s", damaged->length ? (int)strcspn(damaged->data, "\n") : 0,
           damaged->length ? damaged->data : "");
  const bool ahead = iso_snapshot_name_parse(name, &step, &incarnation) && step > run->at.step;
  if ((!recovery->unread && !ahead) || run->options.accept) return ISO_OK;
  name_causes(damaged, recovery, &cause);
  const iso_status status =
      iso_fail(ISO_ERR_FORMAT,
               "%s: steps behind %lld may have been durable, but what holds them cannot be read (%sisotach verify "
               "names all); try again when the disk reads it, or go on from there with --accept",
               run->config.run, (long long)run->at.step, cause.length ? cause.data : "");
  iso_string_fini(&cause);
  return status;
}

/* An earlier start acknowledged steps that are not there any more: going on would lose them in silence. */
static iso_status check_nothing_lost(iso_run *run, const iso_string *damaged, iso_recovery *recovery) {
  iso_acknowledged said;
  ISO_TRY(iso_acknowledged_read(run->config.run, &said));
  int64_t durable = said.stated;
  if (recovery->report.acknowledged > durable) durable = recovery->report.acknowledged;
  if (said.before_boot && durable > run->at.step) {
    iso_note("%s: step %lld was durable against kills (log.durability) before this machine started anew, step %lld is "
             "the last that can be restored",
             run->config.run, (long long)durable, (long long)run->at.step);
    return ISO_OK;
  }
  if (said.shown > durable && said.shown > run->at.step && !said.shown_this_boot)
    iso_note("%s: step %lld was durable before this machine started anew, step %lld is the last that can be restored",
             run->config.run, (long long)said.shown, (long long)run->at.step);
  else if (said.shown > durable)
    durable = said.shown;
  if (durable <= run->at.step) return check_all_read(run, damaged, recovery);
  if (run->options.accept) {
    iso_warn("%s: step %lld was durable, step %lld is the last that can be restored: the steps between are lost",
             run->config.run, (long long)durable, (long long)run->at.step);
    return ISO_OK;
  }
  iso_string cause = {0};
  name_causes(damaged, recovery, &cause);
  const iso_status status =
      iso_fail(ISO_ERR_FORMAT,
               "%s: step %lld was durable, but snapshots and log lead to step %lld only (%sisotach verify names all); "
               "look into aside/, choose another `run`, or go on from there with --accept",
               run->config.run, (long long)durable, (long long)run->at.step, cause.length ? cause.data : "");
  iso_string_fini(&cause);
  return status;
}

static iso_status load_snapshot(iso_run *run, const iso_incarnation *newest, changes *what) {
  ISO_TRY(check_same_run(run, newest, what));
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
static iso_status start_at_first(iso_run *run, const iso_incarnation *newest, changes *what) {
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
  ISO_TRY(iso_run_inputs_json(in_run(run, "inputs.json"), &inputs));
  const iso_status status = iso_json_string(inputs, "inputs.json", "tokenizer", "", &tokenizer);
  if (status == ISO_OK) snprintf(run->at.tokenizer_fingerprint, sizeof run->at.tokenizer_fingerprint, "%s", tokenizer);
  iso_json_destroy(&inputs);
  ISO_TRY(status);
  ISO_TRY(check_same_run(run, newest, what));
  return what->text.length ? remake_weights(run) : ISO_OK;
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
  ISO_TRY(iso_snapshot_write(run->config.run, &run->state, &run->at)); /* nothing is pruned before the start counts */
  snprintf(run->at.parent, sizeof run->at.parent, "step-%08lld-%04d", (long long)run->at.step, newest->number);
  return ISO_OK;
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
  in->ranks = run->options.ranks ? iso_ranks_plan_get(run->options.ranks)->count : 1;
  const iso_world *world = run->options.ranks ? iso_ranks_plan_get(run->options.ranks)->world : NULL;
  iso_string hosts = {0};
  if (world && iso_world_order(world)) iso_order_put(iso_world_order(world), &hosts);
  in->hosts = hosts.length ? hosts.data : NULL;
  const iso_status status = iso_incarnation_publish(run->config.run, in);
  in->hosts = NULL;
  iso_string_fini(&hosts);
  return status;
}

/* The state that the replay begins with, once more. */
static iso_status restore(const iso_replay *with) {
  iso_run *run = with->context;
  const iso_state *state = &run->state;
  if (run->snapshot[0]) return iso_snapshot_load(run->snapshot, &run->state);
  memset(state->moment1, 0, (size_t)state->elements * sizeof(float));
  memset(state->moment2, 0, (size_t)state->elements * sizeof(float));
  return remake_weights(run);
}

/* The log behind the snapshot, or behind the first weights, which the config makes again. */
static iso_status replay(iso_run *run, int incarnation, const iso_string *damaged, iso_recovery *recovery) {
  *recovery = (iso_recovery){0};
  if (incarnation == 0) return ISO_OK;
  const iso_train_options *options = &run->options;
  iso_replay with;
  iso_replay_init(run->device, iso_engine_graph(&run->engine), &run->state, run->arena, &with);
  with.any_version = options->accept;
  with.restore = restore;
  with.context = run;
  iso_status status = iso_log_replay(run->config.run, run->uuid, &with,
                                     options->go_back ? options->from_step : INT64_MAX, &run->at, recovery);
  if (status == ISO_OK && !options->go_back) status = check_nothing_lost(run, damaged, recovery);
  run->replayed_steps = recovery->report.steps;
  run->replay_s = recovery->report.seconds;
  return status;
}

/* The weights of the last start's ranks differed: behind the last step at which they were the same, by itself, unless
 * the user says where to. */
static iso_status heed_differed(iso_run *run, const iso_incarnation *newest) {
  bool found;
  iso_differed differed;
  if (run->options.go_back || newest->number == 0) return ISO_OK;
  ISO_TRY(iso_differed_find(run->config.run, run->uuid, newest->number, &differed, &found));
  if (!found) return ISO_OK;
  run->differed = differed;
  run->options.go_back = true;
  run->options.from_step = differed.same_step;
  return ISO_OK;
}

/* The step to go back to is reached, or the start ends before anything is changed. */
static iso_status check_reached(const iso_run *run) {
  const iso_train_options *options = &run->options;
  const iso_differed *differed = run->differed.incarnation ? &run->differed : NULL;
  bool known;
  if (!options->go_back || run->at.step == options->from_step) return ISO_OK;
  if (differed && !differed->logged) return ISO_OK; /* no more is kept than the snapshot before it */
  ISO_TRY(iso_incarnation_first_known(run->config.run, &known));
  return iso_step_unreachable(run->config.run, run->uuid, options->from_step, known, differed);
}

/* The next sequence of every lane can be read from where it is. */
static iso_status try_lanes(const iso_run *run) {
  iso_trace *trace;
  const iso_trace_piece *pieces;
  int64_t count;
  ISO_TRY(iso_trace_open(run->corpus, (const iso_data_cursor *)(const void *)run->at.cursors, &trace));
  iso_status status = ISO_OK;
  for (int64_t lane = 0; lane < run->config.batch.sequences && status == ISO_OK; lane++)
    status = iso_trace_next(trace, lane, &pieces, &count);
  iso_trace_close(&trace);
  return status;
}

/* Changed data settings may leave the lanes at places that are none: said by the settings' names, and before anything
 * is written. */
static iso_status check_position(const iso_run *run, const changes *what) {
  if (run->at.step == 0 || !what->text.length) return ISO_OK;
  iso_status status = ISO_ERR_MISMATCH;
  if (!what->seed) { /* which decides what every block is */
    const bool quiet = iso_log_quiet(true);
    status = try_lanes(run);
    iso_log_quiet(quiet);
  }
  if (status != ISO_ERR_MISMATCH) return ISO_OK; /* what else is wrong is said by who reads it next */
  return iso_fail(status,
                  "%s: cannot go on behind step %lld with other settings (%s), not with --accept either: the places in "
                  "the corpus that its lanes are at do not exist then; keep seed, batch and data as they were, or "
                  "begin another `run` with these weights (isotach export %s DIR, then model.init_from=DIR)",
                  run->config.run, (long long)run->at.step, what->text.data, run->config.run);
}

/* Whether the state comes from other settings, another ISA tier or another optimizer kernel than this start's: of the
 * snapshot, or of any start since. A start that was killed before its first snapshot makes the next one see it too. */
static iso_status comes_from_others(iso_run *run, bool found, bool *others) {
  iso_incarnation *list;
  size_t count;
  const char *tier = iso_tier_name(iso_device_kernels(run->device)->tier);
  ISO_TRY(iso_incarnation_list(run->arena, run->config.run, &list, &count));
  *others = found && (strcmp(run->at.config_digest, run->digest) != 0 || strcmp(run->at.tier, tier) != 0);
  for (size_t i = count; i-- > 0 && !*others;) {
    if (found && list[i].number < run->at.incarnation) break;
    *others = strcmp(list[i].config_digest, run->digest) != 0 || strcmp(list[i].tier, tier) != 0 ||
              list[i].optimizer_version != ISO_OPTIMIZER_VERSION;
    if (!found && list[i].begins_after == 0) break;
  }
  return ISO_OK;
}

/* What this start has left behind by going back, and what an earlier one that was killed did not get to. None of it
 * counts any more, whether it is moved or not. */
static iso_status leave_behind(iso_run *run) {
  int64_t snapshots = 0, segments = 0;
  const char *folder = run->config.run;
  iso_lines *lines = NULL;
  static const char *const names[] = {"metrics", "skipped", "breaches"};
  if (iso_snapshot_set_void_aside(folder, &snapshots) != ISO_OK || iso_wal_set_void_aside(folder, &segments) != ISO_OK)
    iso_warn("%s: what was left behind could not be moved to aside/ (see above); it does not count all the same",
             folder);
  if (!run->options.go_back) return ISO_OK;
  for (size_t i = 0; i < ISO_COUNT(names); i++) {
    bool exists;
    ISO_TRY(iso_path_probe(in_run(run, iso_arena_printf(run->arena, "%s.jsonl", names[i])), &exists));
    if (!exists) continue;
    ISO_TRY(iso_lines_open(folder, names[i], run->at.step, &lines));
    ISO_TRY(iso_lines_close(&lines));
  }
  const iso_differed *d = &run->differed;
  iso_string why = {0};
  if (d->incarnation)
    iso_string_printf(&why,
                      ", since the weights of rank %lld differed in step %lld and were last the same behind step "
                      "%lld",
                      (long long)d->rank, (long long)d->step, (long long)d->same_step);
  iso_note("%s: begins anew after step %lld as incarnation %d%s; later steps of before do not count any more (%lld "
           "snapshots and %lld log segments are in aside/)",
           folder, (long long)run->at.step, run->incarnation.number, why.length ? why.data : "", (long long)snapshots,
           (long long)segments);
  iso_string_fini(&why);
  return iso_status_write(folder, "running", -1, run->at.step, run->at.step, run->incarnation.number,
                          iso_run_is_power_safe(run));
}

/* What the run goes on from is made to last; what could not be used for damage goes to aside/ only then, since it may
 * be the only copy of what follows. */
static iso_status keep_state(const iso_run *run, bool found, const iso_string *damaged) {
  const bool needed = run->at.step > 0 && (iso_run_is_power_safe(run) || damaged->length > 0);
  if (needed) ISO_TRY(iso_run_settle(run->config.run, found ? run->snapshot : ""));
  return iso_snapshot_set_damaged_aside(run->config.run, damaged);
}

/* Loads the state that the run goes on from. *what: which settings differ, in words, "" when none do. */
static iso_status load_state(iso_run *run, const iso_incarnation *newest, iso_string *damaged, bool *found,
                             changes *what) {
  const double began = iso_clock_s();
  const iso_train_options *options = &run->options;
  ISO_TRY(iso_snapshot_find(run->config.run, options->go_back ? options->from_step : -1, damaged, run->snapshot,
                            &run->at, found));
#ifdef ISO_SABOTAGE_ASIDE_EARLY
  ISO_TRY(iso_snapshot_set_damaged_aside(run->config.run, damaged));
  damaged->length = 0;
#endif
  ISO_TRY(*found ? load_snapshot(run, newest, what) : start_at_first(run, newest, what));
  run->snapshot_step = *found ? run->at.step : -1;
  if (*found) snprintf(run->at.parent, sizeof run->at.parent, "%.60s", strrchr(run->snapshot, '/') + 1);
  const double loaded_s = iso_clock_s() - began;
  iso_recovery recovery;
  iso_status status = replay(run, newest->number, damaged, &recovery);
  if (status == ISO_OK) status = check_reached(run);
  if (status == ISO_OK) status = check_position(run, what);
  if (status == ISO_OK && what->text.length)
    iso_warn("%s: resuming with accepted changes: %s", run->config.run, what->text.data);
  if (status == ISO_OK && *found)
    iso_note("%s: used snapshot %s, read and checked in %.2f s", run->config.run, strrchr(run->snapshot, '/') + 1,
             loaded_s);
  if (status == ISO_OK) iso_recovery_print(&recovery, run->config.run);
  iso_recovery_fini(&recovery);
  return status == ISO_OK ? keep_state(run, *found, damaged) : status;
}

iso_status iso_run_resume(iso_run *run) {
  iso_incarnation newest;
  changes what = {0};
  iso_string damaged = {0};
  bool found = false, others = false;
  ISO_TRY(iso_incarnation_newest(run->config.run, &newest));
  if (newest.number) ISO_TRY(iso_run_inputs_settle(run->config.run));
  ISO_TRY(heed_differed(run, &newest));
  iso_status status = load_state(run, &newest, &damaged, &found, &what);
  bool changed = what.text.length > 0;
  iso_string_fini(&what.text);
  iso_string_fini(&damaged);
  ISO_TRY(status);
  if (!found && changed) ISO_TRY(seal_first_steps(run, &newest, &changed));
  ISO_TRY(comes_from_others(run, found, &others));
  iso_flat_refresh(&run->engine.flat, run->device);
  const bool finished =
      found && !changed && !run->options.go_back &&
      (run->at.step >= run->config.steps || (run->config.stop_at && run->at.step >= run->config.stop_at));
  run->incarnation = newest;
  run->here_step = run->durable_step = 0;
  iso_run_has(run, run->at.step);
  if (finished) return ISO_OK; /* nothing to train: no new incarnation */
  ISO_TRY(write_inputs(run));
  ISO_TRY(publish_incarnation(run, newest.number + 1));
  ISO_TRY(iso_run_inputs_settle(run->config.run));
  ISO_TRY(write_fusion(run));
  ISO_TRY(iso_run_status_settle(run->config.run));
  fill_identity(run);
  ISO_TRY(leave_behind(run));
  if ((changed || others) && run->at.step > 0) ISO_TRY(iso_run_snapshot(run));
  return iso_run_log_open(run);
}
