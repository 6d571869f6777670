/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a trained model: a Hugging Face folder, or a run folder (after its newest step, or after @STEP). Weights
 * become one flat float32 array in the model's order.
 */
#include <stdlib.h>
#include <string.h>

#include "infer/infer.h"

/* The parameters' description; no pass runs on this graph. */
static iso_status describe(iso_lm *lm) {
  const iso_build_options build = {ISO_BUILD_LOGITS, 1, 1, 0, false};
  iso_graph *graph;
  ISO_TRY(iso_model_build(&lm->model, &build, lm->arena, &graph));
  lm->graph = graph;
  lm->master_bytes = (size_t)graph->flat_elements * sizeof(float);
  lm->master = iso_slab_alloc(lm->master_bytes, "model weights");
  return lm->master ? ISO_OK : ISO_ERR_MEMORY;
}

static iso_status open_tokenizer(iso_lm *lm, const char *path) {
  snprintf(lm->tokenizer_path, sizeof lm->tokenizer_path, "%s", path);
  ISO_TRY(iso_tokenizer_open(path, "", &lm->tokenizer));
  if (iso_tokenizer_vocabulary(lm->tokenizer) <= lm->model.vocabulary) return ISO_OK;
  return iso_fail(
      ISO_ERR_MISMATCH,
      "%s: the tokenizer has %lld ids but the model's vocab_size is %lld; use the tokenizer it was trained with", path,
      (long long)iso_tokenizer_vocabulary(lm->tokenizer), (long long)lm->model.vocabulary);
}

static iso_status open_folder(iso_lm *lm) {
  ISO_TRY(iso_model_config_read(lm->path, &lm->model));
  ISO_TRY(describe(lm));
  ISO_TRY(iso_model_import(&lm->model, lm->graph, lm->path, lm->master));
  return iso_tokenizer_is_in(lm->path) ? open_tokenizer(lm, lm->path) : ISO_OK;
}

/* The log's steps need the moments too, which are let go of again. */
static iso_status load_state(iso_lm *lm, int64_t at_step) {
  iso_stored stored;
  ISO_TRY(iso_stored_open(lm->path, at_step, &stored));
  memcpy(lm->master, stored.state.master, lm->master_bytes);
  lm->step = stored.info.step;
  iso_stored_close(&stored);
  return ISO_OK;
}

static iso_status open_run(iso_lm *lm, int64_t at_step) {
  iso_input_paths inputs;
  iso_config config;
  ISO_TRY(iso_run_inputs_find(lm->arena, lm->path, &inputs));
  ISO_TRY(iso_model_config_read(inputs.model, &lm->model));
  ISO_TRY(describe(lm));
  ISO_TRY(load_state(lm, at_step));
  ISO_TRY(iso_config_read(inputs.config, NULL, 0, &config));
  lm->trained_sequence = config.data.sequence;
  lm->document_mask = config.data.document_mask;
  if (config.data.source_count) lm->separator = iso_arena_strdup(lm->arena, config.data.sources[0].separator);
  iso_config_fini(&config);
  const char *tokenizer = iso_path_join(lm->arena, lm->path, "tokenizer");
  ISO_TRY(open_tokenizer(lm, tokenizer));
  if (strcmp(inputs.tokenizer, iso_tokenizer_fingerprint(lm->tokenizer)) == 0) return ISO_OK;
  return iso_fail(ISO_ERR_MISMATCH,
                  "%s: is not the tokenizer that the run was trained with (fingerprint %.12s, not %.12s)", tokenizer,
                  iso_tokenizer_fingerprint(lm->tokenizer), inputs.tokenizer);
}

iso_status iso_lm_open(const char *path, int threads, iso_lm *lm) {
  memset(lm, 0, sizeof *lm);
  lm->step = -1;
  lm->document_mask = true;
  lm->separator = "";
  int64_t at_step;
  ISO_TRY(iso_run_path_split(path, lm->path, sizeof lm->path, &at_step));
  lm->arena = iso_arena_create();
  if (!lm->arena) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to open it", path);
  iso_status status = iso_device_create(threads, &lm->device);
  if (status == ISO_OK) {
    if (iso_path_exists(iso_path_join(lm->arena, lm->path, "run.json"))) {
      status = open_run(lm, at_step);
    } else if (at_step >= 0) {
      status = iso_fail(ISO_ERR_NOT_FOUND, "%s: is no run folder (no run.json), so it has no step %lld", lm->path,
                        (long long)at_step);
    } else if (iso_path_is_folder(lm->path)) {
      status = open_folder(lm);
    } else {
      status = iso_fail(ISO_ERR_NOT_FOUND, "%s: is no folder; name a Hugging Face folder or a run folder", lm->path);
    }
  }
  if (status != ISO_OK) iso_lm_close(lm);
  return status;
}

void iso_lm_close(iso_lm *lm) {
  iso_slab_free(lm->master, lm->master_bytes);
  iso_tokenizer_close(&lm->tokenizer);
  iso_model_config_fini(&lm->model);
  iso_device_destroy(&lm->device);
  iso_arena_destroy(&lm->arena);
  memset(lm, 0, sizeof *lm);
}
