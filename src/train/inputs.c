/* SPDX-License-Identifier: Apache-2.0
 *
 * The copies of a run's inputs that its folder holds, held against the digest that each start publishes: a reader that
 * trusts model.json without this could put the right weights into the wrong model.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

void iso_run_digest(const iso_config *config, const char *model_json, const char *tokenizer, const char *corpus,
                    char hex[65]) {
  const int64_t workers = config->parallel.virtual_workers < 1 ? 1 : config->parallel.virtual_workers;
  iso_string extra = {0};
  iso_string_printf(&extra, "model %s\ntokenizer %s\ncorpus %s\nmicro %lld\nbits %d", model_json, tokenizer, corpus,
                    (long long)iso_config_micro(config, workers), ISO_BITS_VERSION);
  iso_config_digest(config, extra.data, hex);
  iso_string_fini(&extra);
}

static iso_status check(iso_arena *arena, const char *run, iso_config *config, const iso_json *inputs,
                        char tokenizer[65]) {
  const char *stated, *corpus;
  ISO_TRY(iso_json_string(inputs, iso_path_join(arena, run, "inputs.json"), "tokenizer", "", &stated));
  ISO_TRY(iso_json_string(inputs, iso_path_join(arena, run, "inputs.json"), "corpus", "", &corpus));
  if (tokenizer) snprintf(tokenizer, 65, "%s", stated);
  iso_incarnation newest;
  ISO_TRY(iso_incarnation_newest(run, &newest));
  char *model;
  size_t bytes;
  ISO_TRY(iso_file_read(iso_path_join(arena, run, "model.json"), &model, &bytes));
  if (bytes && model[bytes - 1] == '\n') model[bytes - 1] = 0;
  char hex[65];
  iso_run_digest(config, model, stated, corpus, hex);
  free(model);
  if (strcmp(hex, newest.config_digest) == 0) return ISO_OK;
  return iso_fail(
      ISO_ERR_FORMAT,
      "%s: config.yaml, model.json or inputs.json is not what the run was started with; put the right files back, or "
      "start the training command again, which writes them",
      run);
}

iso_status iso_run_inputs_check(const char *run, char tokenizer[65]) {
  iso_arena *arena = iso_arena_create();
  if (!arena) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to check its inputs", run);
  iso_config config = {0};
  iso_json *inputs = NULL;
  iso_status status = iso_config_read(iso_path_join(arena, run, "config.yaml"), NULL, 0, &config);
  if (status == ISO_OK) status = iso_json_read(iso_path_join(arena, run, "inputs.json"), &inputs);
  if (status == ISO_OK) status = check(arena, run, &config, inputs, tokenizer);
  iso_json_destroy(&inputs);
  iso_config_fini(&config);
  iso_arena_destroy(&arena);
  return status;
}
