/* SPDX-License-Identifier: Apache-2.0
 *
 * The copies of a run's inputs that its folder holds, held against the digest that each start publishes: a reader that
 * trusts model.json without this could put the right weights into the wrong model.
 *
 * A start first writes its own copies beside those of the run so far, as NAME.next, then publishes its incarnation,
 * then renames them. Of the two sets (NAME; NAME.next where there is one, else NAME) one has the digest of the newest
 * incarnation, whenever the start is killed.
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

static const char *const names[] = {"config.yaml", "model.json", "inputs.json"};

/* The three files of one set, in the order of `names`. `any_next`: one of them is a NAME.next. */
static iso_status name_set(iso_arena *arena, const char *run, bool next, const char *paths[3], bool *any_next) {
  *any_next = false;
  for (int i = 0; i < 3; i++) {
    paths[i] = iso_path_join(arena, run, names[i]);
    const char *later = paths[i] ? iso_arena_printf(arena, "%s.next", paths[i]) : NULL;
    if (!later) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to check its inputs", run);
    if (!next || !iso_path_exists(later)) continue;
    paths[i] = later;
    *any_next = true;
  }
  return ISO_OK;
}

/* Digest of a set of files, and the tokenizer that it names. */
static iso_status digest_set(const char *const paths[3], char tokenizer[65], char hex[65]) {
  iso_config config;
  iso_json *inputs = NULL;
  char *model = NULL;
  size_t bytes;
  const char *stated, *corpus;
  ISO_TRY(iso_config_read(paths[0], NULL, 0, &config));
  iso_status status = iso_json_read(paths[2], &inputs);
  if (status == ISO_OK) status = iso_json_string(inputs, paths[2], "tokenizer", "", &stated);
  if (status == ISO_OK) status = iso_json_string(inputs, paths[2], "corpus", "", &corpus);
  if (status == ISO_OK) status = iso_file_read(paths[1], &model, &bytes);
  if (status == ISO_OK) {
    if (bytes && model[bytes - 1] == '\n') model[bytes - 1] = 0;
    iso_run_digest(&config, model, stated, corpus, hex);
    snprintf(tokenizer, 65, "%s", stated);
  }
  free(model);
  iso_json_destroy(&inputs);
  iso_config_fini(&config);
  return status;
}

static iso_status find_set(iso_arena *arena, const char *run, iso_input_paths *out) {
  const char *paths[3];
  char hex[65] = "";
  bool any_next;
  iso_incarnation newest;
  ISO_TRY(iso_incarnation_newest(run, &newest));
  ISO_TRY(name_set(arena, run, true, paths, &any_next)); /* first, as it may be renamed meanwhile */
  if (any_next && digest_set(paths, out->tokenizer, hex) == ISO_OK && strcmp(hex, newest.config_digest) == 0) {
    *out = (iso_input_paths){.config = paths[0], .model = paths[1], .inputs = paths[2], .is_next = true};
    return digest_set(paths, out->tokenizer, hex);
  }
  ISO_TRY(name_set(arena, run, false, paths, &any_next));
  *out = (iso_input_paths){.config = paths[0], .model = paths[1], .inputs = paths[2]};
  ISO_TRY(digest_set(paths, out->tokenizer, hex));
  if (strcmp(hex, newest.config_digest) == 0) return ISO_OK;
  return iso_fail(
      ISO_ERR_FORMAT,
      "%s: config.yaml, model.json or inputs.json is not what the run was started with; put the right files back, or "
      "start the training command again, which writes them",
      run);
}

iso_status iso_run_inputs_find(iso_arena *arena, const char *run, iso_input_paths *paths) {
  *paths = (iso_input_paths){0};
  return find_set(arena, run, paths);
}

iso_status iso_run_inputs_check(const char *run, char tokenizer[65]) {
  iso_input_paths paths;
  iso_arena *arena = iso_arena_create();
  if (!arena) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to check its inputs", run);
  const iso_status status = find_set(arena, run, &paths);
  if (status == ISO_OK && tokenizer) memcpy(tokenizer, paths.tokenizer, sizeof paths.tokenizer);
  iso_arena_destroy(&arena);
  return status;
}

iso_status iso_run_inputs_write(const char *run, const char *const texts[3]) {
  iso_string path = {0};
  iso_status status = ISO_OK;
  for (int i = 0; i < 3 && status == ISO_OK; i++) {
    path.length = 0;
    iso_string_printf(&path, "%s/%s.next", run, names[i]);
    status = iso_string_failed(&path) ? ISO_ERR_MEMORY : iso_file_replace(path.data, texts[i], strlen(texts[i]));
  }
  iso_string_fini(&path);
  return status;
}

/* NAME.next becomes NAME. */
static iso_status settle(iso_arena *arena, const char *run) {
  for (int i = 0; i < 3; i++) {
    const char *path = iso_path_join(arena, run, names[i]);
    const char *next = path ? iso_arena_printf(arena, "%s.next", path) : NULL;
    if (!next) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for its inputs", run);
    if (iso_path_exists(next) && iso_os.rename(next, path) != 0) return iso_os_fail("replace", path);
  }
  return iso_path_sync(run);
}

iso_status iso_run_inputs_settle(const char *run) {
  iso_input_paths paths;
  iso_arena *arena = iso_arena_create();
  if (!arena) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for its inputs", run);
  const bool quiet = iso_log_quiet(true); /* what is wrong with them is told by who needs them */
  iso_status status = find_set(arena, run, &paths);
  iso_log_quiet(quiet);
  status = status == ISO_OK && paths.is_next ? settle(arena, run) : ISO_OK;
  iso_arena_destroy(&arena);
  return status;
}
