/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a run: every input is read and checked, the plan is held against memory and disk, and only then is anything
 * large allocated or written.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

/* A run's weights stand among moments, under a manifest; a Hugging Face folder is made of them by exporting. */
static iso_status check_init_from(const iso_config *config) {
  const char *from = config->model.init_from;
  if (!from[0] || !iso_path_exists(iso_path_join(config->arena, from, "run.json"))) return ISO_OK;
  return iso_fail(ISO_ERR_CONFIG,
                  "%s: `model.init_from`: '%s' is a run folder; make a Hugging Face folder of it first: isotach export "
                  "%s DIR, then model.init_from=DIR",
                  config->source, from, from);
}

iso_status iso_run_model(const iso_config *config, iso_model_config *model) {
  memset(model, 0, sizeof *model);
  ISO_TRY(check_init_from(config));
  if (config->model.inline_json) {
    const char *where = iso_arena_printf(config->arena, "%s: model.config", config->source);
    iso_json *json;
    ISO_TRY(iso_json_parse(config->model.inline_json, strlen(config->model.inline_json), where, &json));
    const iso_status status = iso_model_config_parse(json, where, model);
    iso_json_destroy(&json);
    return status;
  }
  if (config->model.config[0]) return iso_model_config_read(config->model.config, model);
  if (config->model.init_from[0]) return iso_model_config_read(config->model.init_from, model);
  return iso_fail(ISO_ERR_CONFIG, "%s: `model.config` is missing; name a config.json or write its keys",
                  config->source);
}

void iso_run_data_options(const iso_config *config, iso_source_options sources[ISO_MAX_SOURCES],
                          iso_data_options *out) {
  for (int i = 0; i < config->data.source_count; i++) {
    const iso_source_config *source = &config->data.sources[i];
    sources[i] = (iso_source_options){.path = source->path,
                                      .format = source->format,
                                      .weight = source->weight,
                                      .separator = source->separator,
                                      .parse_special = source->parse_special,
                                      .field = source->field,
                                      .token_type = source->token_type,
                                      .skip_by = "data.on_bad: skip (in a run that has begun, with --accept)",
                                      .cache = config->data.cache};
  }
  *out = (iso_data_options){.sources = sources,
                            .source_count = (size_t)config->data.source_count,
                            .sequence = config->data.sequence,
                            .batch = config->batch.sequences,
                            .seed = (uint64_t)config->seed,
                            .document_mask = config->data.document_mask,
                            .pad = config->data.pad,
                            .block_bytes = config->data.block_bytes,
                            .slots = (int)config->data.slots,
                            .threads = (int)config->data.threads,
                            .prefetch = (int)config->data.prefetch,
                            .on_demand = config->data.on_demand,
                            .skip_bad = strcmp(config->data.on_bad, "skip") == 0,
                            .max_bad_documents = config->data.max_bad_documents,
                            .validation_every = config->data.validation.every,
                            .validation_offset = config->data.validation.offset,
                            .validation_path = config->data.validation.path};
  out->slots = iso_ring_slots(out);
}

void iso_run_engine_options(const iso_config *config, const iso_model_config *model, int64_t workers,
                            iso_engine_options *out) {
  iso_source_options sources[ISO_MAX_SOURCES];
  iso_data_options data;
  iso_run_data_options(config, sources, &data);
  bool remote = false;
  for (size_t i = 0; i < data.source_count; i++) remote = remote || iso_blob_is_remote(sources[i].path);
  iso_ring_plan ring;
  iso_ring_plan_get(&data, remote, &ring);
  const bool validates = config->data.validation.every > 0 || config->data.validation.path[0];
  const int64_t micro = iso_config_micro(config, workers);
  iso_wal_options log = {0};
  iso_config_log(config, &log);
  *out =
      (iso_engine_options){.model = model,
                           .compute = iso_config_compute(config),
                           .gradient = iso_config_gradient(config),
                           .workers = workers,
                           .micro = micro,
                           .micros = config->batch.sequences / workers / micro,
                           .sequence = config->data.sequence,
                           .evaluate_batch = validates ? micro : 0,
                           .fusion = iso_config_fusion(config),
                           .train = true,
                           .log = config->log.enabled,
                           .log_how = log,
                           .staging = config->checkpoint.staging_mb < 0 ? -1 : config->checkpoint.staging_mb * 1000000,
                           .segments = config->data.document_mask,
                           .memory_limit_gb = config->memory.limit_gb,
                           .keep_activations = strcmp(config->memory.recompute, "off") == 0,
                           .data = ring};
}

static iso_status open_inputs(iso_run *run) {
  const iso_config *config = &run->config;
  ISO_TRY(iso_run_model(config, &run->model));
  if (run->model.dropout > 0)
    iso_warn("%s: dropout %g is not applied: pretraining runs without it", config->source, run->model.dropout);
  if (config->data.source_count == 0)
    return iso_fail(ISO_ERR_CONFIG, "%s: `data.sources` is empty; name a file or folder to train on", config->source);
  if (!config->tokenizer.path[0])
    return iso_fail(ISO_ERR_CONFIG,
                    "%s: `tokenizer.path` is missing; name a tokenizer.json (isotach tokenizer train makes one)",
                    config->source);
  ISO_TRY(iso_tokenizer_open(config->tokenizer.path, config->tokenizer.pattern, &run->tokenizer));
  const int64_t ids = iso_tokenizer_vocabulary(run->tokenizer);
  if (ids > run->model.vocabulary)
    return iso_fail(
        ISO_ERR_MISMATCH,
        "%s: the tokenizer has %lld ids but the model's vocab_size is %lld; raise vocab_size to at least %lld",
        config->tokenizer.path, (long long)ids, (long long)run->model.vocabulary, (long long)ids);
  iso_run_data_options(config, run->sources, &run->data);
  ISO_TRY(iso_corpus_open(&run->data, run->tokenizer, &run->corpus));
  iso_corpus_info_get(run->corpus, &run->corpus_info);
  /* Held-out text is read at the end: what is wrong with it is said at the beginning. */
  return run->data.skip_bad ? ISO_OK : iso_corpus_check_validation(run->corpus);
}

/* The flat state as the store sees it. */
static iso_status describe_state(iso_run *run) {
  ISO_TRY(iso_state_describe(iso_engine_graph(&run->engine), run->arena, &run->state));
  run->state.master = run->engine.flat.master;
  run->state.moment1 = run->engine.flat.moment1;
  run->state.moment2 = run->engine.flat.moment2;
  return ISO_OK;
}

static iso_status check_disk(const iso_run *run) {
  const int64_t each = iso_snapshot_bytes(&run->state);
  const int64_t copies = run->config.checkpoint.keep_last + 1; /* the new one stands before an old one goes */
  const int64_t available = iso_disk_free(run->config.run);
  if (available < 0 || available >= each) {
    if (available >= 0 && available < each * copies)
      iso_warn("%s: %.1f MB free; %lld snapshots of %.1f MB will not all fit", run->config.run,
               (double)available * 1e-6, (long long)copies, (double)each * 1e-6);
    return ISO_OK;
  }
  return iso_fail(ISO_ERR_SPACE,
                  "%s: a snapshot takes %.1f MB but %.1f MB are free; free space or choose another `run` folder",
                  run->config.run, (double)each * 1e-6, (double)available * 1e-6);
}

static iso_status own_folder(iso_run *run) {
  if (iso_path_is_root(run->config.run))
    return iso_fail(ISO_ERR_CONFIG, "`run` = %s is the root of the file system; give a folder of the run's own",
                    run->config.run);
  ISO_TRY(iso_path_make(run->config.run));
  ISO_TRY(iso_lock_acquire(run->config.run, run->options.take_over, &run->lock));
  ISO_TRY(iso_run_mirror_restore(run));
  return iso_run_folder_open(run->config.run, run->uuid);
}

/* What is damaged beyond what the folder itself makes good may be whole elsewhere. */
static iso_status resume(iso_run *run) {
  bool repaired = false;
  iso_status status = iso_run_resume(run);
  if (status == ISO_ERR_FORMAT && (run->target.target || run->mirror.target)) {
    const iso_status tried = iso_run_mirror_repair(run, &repaired);
    if (tried == ISO_OK && repaired) {
      iso_snapshot_info_fini(&run->at);
      status = iso_run_resume(run);
    }
  }
  return status == ISO_OK ? iso_run_mirror_open(run) : status;
}

/* The inputs, and the shape of a step. */
static iso_status begin_run(iso_run *run, const iso_config *given) {
  memset(run, 0, sizeof *run);
  run->config = *given; /* strings stay with the caller's config */
  iso_config *config = &run->config;
  config->parallel.virtual_workers = iso_config_workers(config, 1);
  ISO_TRY(iso_config_workers_check(config));
  run->workers = config->parallel.virtual_workers;
  run->micro = iso_config_micro(config, run->workers);
  run->micros = config->batch.sequences / run->workers / run->micro;
  run->arena = iso_arena_create();
  if (!run->arena) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to open the run", config->run);
  ISO_TRY(open_inputs(run));
  iso_run_digest(config, run->model.json, iso_tokenizer_fingerprint(run->tokenizer), run->corpus_info.digest,
                 run->digest);
  return ISO_OK;
}

/* Rank 0 owns log, snapshots and evaluation. */
static void share_engine(const iso_ranks *ranks, iso_engine_options *engine) {
  engine->shared = iso_ranks_flat(ranks);
  engine->share_bytes = iso_ranks_plan_get(ranks)->share_bytes;
  if (iso_ranks_number(ranks) == 0) return;
  engine->log = false;
  engine->staging = engine->evaluate_batch = 0;
}

static iso_status open_engine(iso_run *run) {
  iso_data_threads_place(); /* before the team pins this thread */
  ISO_TRY(iso_device_create((int)run->config.threads, &run->device));
  iso_engine_options engine;
  iso_run_engine_options(&run->config, &run->model, run->workers, &engine);
  if (run->options.ranks) share_engine(run->options.ranks, &engine);
  ISO_TRY(iso_engine_init(run->device, &engine, &run->engine));
  iso_decay_ranges(&run->config, iso_engine_graph(&run->engine), run->arena, &run->decay_ranges, &run->decay_count);
  return ISO_OK;
}

static iso_status open_run(iso_run *run) {
  /* A folder in use is refused first; a new one is made only when the run can start. */
  const bool there = iso_path_exists(run->config.run);
  if (run->options.go_back) ISO_TRY(iso_run_folder_check(run->config.run));
  if (there) ISO_TRY(own_folder(run));
  ISO_TRY(open_engine(run));
  if (!there) ISO_TRY(own_folder(run));
  ISO_TRY(describe_state(run));
  ISO_TRY(check_disk(run));
  return resume(run);
}

static iso_status closed_unless(iso_status status, iso_run *run) {
  if (status != ISO_OK) iso_run_close(run);
  return status;
}

iso_status iso_run_open(const iso_config *config, const iso_train_options *options, iso_run *run) {
  iso_status status = begin_run(run, config);
  run->options = *options;
  if (status == ISO_OK) status = open_run(run);
  return closed_unless(status, run);
}

iso_status iso_run_open_inputs(const iso_config *config, iso_run *run) {
  return closed_unless(begin_run(run, config), run);
}

iso_status iso_run_open_dry(const iso_config *config, iso_run *run) {
  iso_status status = begin_run(run, config);
  if (status == ISO_OK) status = open_engine(run);
  if (status == ISO_OK) status = iso_run_start_afresh(run);
  if (status == ISO_OK) iso_flat_refresh(&run->engine.flat, run->device);
  return closed_unless(status, run);
}

iso_status iso_run_open_follower(const iso_config *config, iso_ranks *ranks, iso_run *run) {
  iso_status status = begin_run(run, config);
  run->options.ranks = ranks;
  run->data.max_bad_documents = INT64_MAX; /* rank 0 counts them */
  if (status == ISO_OK) status = open_engine(run);
  if (status == ISO_OK) {
    run->at.cursor_count = iso_data_cursor_count(&run->data);
    run->at.cursors = calloc(run->at.cursor_count + 1, sizeof *run->at.cursors);
    if (!run->at.cursors)
      status = iso_fail(ISO_ERR_MEMORY, "%s: no memory for %zu cursors", run->config.run, run->at.cursor_count);
  }
  return closed_unless(status, run);
}

void iso_run_close(iso_run *run) {
  iso_run_snapshots_close(run);
  iso_run_log_close(run);
  iso_run_mirror_close(run, ISO_ERR_INTERNAL);
  iso_snapshot_info_fini(&run->at);
  iso_engine_fini(&run->engine);
  iso_device_destroy(&run->device);
  iso_corpus_close(&run->corpus);
  iso_tokenizer_close(&run->tokenizer);
  iso_model_config_fini(&run->model);
  iso_lock_release(&run->lock);
  iso_arena_destroy(&run->arena);
  memset(run, 0, sizeof *run);
}
