/* SPDX-License-Identifier: Apache-2.0
 *
 * The copies of a run's inputs that its folder holds, held against the digest that each start publishes: a reader that
 * trusts model.json without this could put the right weights into the wrong model.
 *
 * A start first writes its own copies beside those of the run so far, as NAME.next, then publishes its incarnation,
 * then renames them. Of the two sets (NAME; NAME.next where there is one, else NAME) one has the digest of the newest
 * incarnation, whenever the start is killed.
 *
 * The digest does not see keys that decide no bits, nor how a tokenizer's files are spelt. So inputs.json, a record,
 * also names the CRC-32C of each file of its set and of tokenizer/. The tokenizer's files are not written again while
 * they are what it names, so that at no moment they are another start's.
 */
#include <cjson/cJSON.h>
#include <errno.h>
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
    bool exists = false;
    if (next) ISO_TRY(iso_path_probe(later, &exists));
    if (!exists) continue;
    paths[i] = later;
    *any_next = true;
  }
  return ISO_OK;
}

iso_status iso_run_inputs_json(const char *path, iso_json **inputs) {
  iso_string faults = {0};
  bool sealed;
  iso_status status = iso_record_read_any(path, path, inputs, &sealed, &faults);
  if (status != ISO_OK)
    status = iso_fail(status, "%s; start the training command again, which writes it", iso_fault_first(&faults));
  iso_string_fini(&faults);
  return status;
}

/* Digest of a set of files, and the tokenizer that it names. */
static iso_status digest_set(const char *const paths[3], char tokenizer[65], char hex[65]) {
  iso_config config;
  iso_json *inputs = NULL;
  char *model = NULL;
  size_t bytes;
  const char *stated, *corpus;
  ISO_TRY(iso_config_read(paths[0], NULL, 0, &config));
  iso_status status = iso_run_inputs_json(paths[2], &inputs);
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

/* ---- the CRCs that inputs.json names ---- */

/* Of a whole file; FORMAT: damaged, a line in `faults`. */
static iso_status crc_of(const char *path, const char *name, uint32_t *crc, iso_string *faults) {
  iso_probe probe;
  char *data;
  ISO_TRY(iso_probe_open(&probe, path, name, faults));
  iso_status status = (data = malloc((size_t)probe.bytes + 1)) ? ISO_OK : ISO_ERR_MEMORY;
  if (status == ISO_OK) status = iso_probe_read(&probe, data, (size_t)probe.bytes, 0, faults);
  if (status == ISO_OK) *crc = iso_crc32c(0, data, (size_t)probe.bytes);
  free(data);
  iso_probe_close(&probe);
  return status;
}

static iso_status compare_file(const char *path, const iso_json *stated, iso_string *faults) {
  uint32_t crc;
  char own[9];
  ISO_TRY(crc_of(path, stated->string, &crc, faults));
  snprintf(own, sizeof own, "%08x", crc);
  if (cJSON_IsString(stated) && strcmp(stated->valuestring, own) == 0) return ISO_OK;
  iso_string_printf(faults, "%s: its CRC-32C is %s, inputs.json says %s: altered\n", stated->string, own,
                    cJSON_IsString(stated) ? stated->valuestring : "nothing");
  return ISO_ERR_FORMAT;
}

/* Compares all files that inputs.json names; with `only_set` none of tokenizer/. FORMAT when one of them is damaged. */
static iso_status compare_files(iso_arena *arena, const char *run, const char *const paths[3], bool only_set,
                                bool *listed, iso_string *faults) {
  iso_json *inputs;
  iso_status all = ISO_OK;
  ISO_TRY(iso_run_inputs_json(paths[2], &inputs));
  const iso_json *files = iso_json_get(inputs, "files"), *file = NULL;
  *listed = cJSON_IsObject(files);
  if (*listed) file = files->child;
  for (; file; file = file->next) {
    const bool own = strcmp(file->string, names[0]) == 0 || strcmp(file->string, names[1]) == 0;
    if (only_set && !own) continue;
    const char *path = own ? paths[strcmp(file->string, names[1]) == 0] : iso_path_join(arena, run, file->string);
    const iso_status one = path ? compare_file(path, file, faults) : ISO_ERR_MEMORY;
    if (one != ISO_OK && (all == ISO_OK || all == ISO_ERR_FORMAT)) all = one;
  }
  iso_json_destroy(&inputs);
  return all;
}

/* A set of which some files are another start's has the right digest too if only keys differ that decide nothing. */
static bool is_one_set(iso_arena *arena, const char *run, const char *const paths[3]) {
  bool listed;
  iso_string faults = {0};
  const iso_status status = compare_files(arena, run, paths, true, &listed, &faults);
  iso_string_fini(&faults);
  return status == ISO_OK;
}

iso_status iso_run_inputs_examine(const char *run, const iso_input_paths *paths, bool *listed, iso_string *faults) {
  const char *const set[3] = {paths->config, paths->model, paths->inputs};
  *listed = false;
  iso_arena *arena = iso_arena_create();
  const iso_status status = arena ? compare_files(arena, run, set, false, listed, faults) : ISO_ERR_MEMORY;
  iso_arena_destroy(&arena);
  return status;
}

iso_status iso_run_inputs_warn(const char *run, const iso_input_paths *paths) {
  bool listed;
  iso_string faults = {0};
  iso_status status = iso_run_inputs_examine(run, paths, &listed, &faults);
  if (status == ISO_ERR_FORMAT && faults.length) {
    iso_warn("%s/%s (keys that decide bits are as they were); put the right file back, or start the training command "
             "again, which writes it",
             run, iso_fault_first(&faults));
    status = ISO_OK;
  } else if (status != ISO_OK && faults.length) {
    status = iso_fail(status, "%s/%s", run, iso_fault_first(&faults));
  }
  iso_string_fini(&faults);
  return status;
}

/* ---- which set counts ---- */

static iso_status find_set(iso_arena *arena, const char *run, iso_input_paths *out) {
  const char *paths[3];
  char hex[65] = "";
  bool any_next;
  iso_incarnation newest;
  ISO_TRY(iso_incarnation_newest(run, &newest));
  if (newest.number == 0)
    return iso_fail(ISO_ERR_FORMAT,
                    "%s: has no incarnation: its first start was cut short, or incarnations/0001.json is missing", run);
  ISO_TRY(name_set(arena, run, true, paths, &any_next)); /* first, as it may be renamed meanwhile */
  if (any_next && digest_set(paths, out->tokenizer, hex) == ISO_OK && strcmp(hex, newest.config_digest) == 0 &&
      is_one_set(arena, run, paths)) {
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

/* ---- writing ---- */

/* Whether the folder's tokenizer files are this tokenizer's, as inputs.json names them. */
static bool keeps_tokenizer(iso_arena *arena, const char *run, const iso_tokenizer *tokenizer) {
  iso_json *inputs = NULL;
  iso_string faults = {0};
  const char *path = iso_path_join(arena, run, names[2]), *stated;
  bool listed = false, kept = false;
  if (!path || !iso_path_exists(path)) return false;
  const bool quiet = iso_log_quiet(true); /* what is damaged is made again */
  if (iso_run_inputs_json(path, &inputs) == ISO_OK &&
      iso_json_string(inputs, path, "tokenizer", "", &stated) == ISO_OK &&
      strcmp(stated, iso_tokenizer_fingerprint(tokenizer)) == 0) {
    const iso_json *files = iso_json_get(inputs, "files"), *file = NULL;
    if (cJSON_IsObject(files)) file = files->child;
    for (kept = true; file && kept; file = file->next) {
      if (strncmp(file->string, "tokenizer/", 10) != 0) continue;
      const char *copy = iso_path_join(arena, run, file->string);
      listed = true;
      kept = copy && compare_file(copy, file, &faults) == ISO_OK;
    }
  }
  iso_log_quiet(quiet);
  iso_string_fini(&faults);
  iso_json_destroy(&inputs);
  return kept && listed;
}

/* Appends "NAME": "CRC" of each of the tokenizer's files. */
static iso_status list_tokenizer(iso_arena *arena, const char *folder, iso_string *out) {
  char **files;
  size_t count;
  uint32_t crc;
  iso_string faults = {0};
  ISO_TRY(iso_path_list(arena, folder, &files, &count));
  iso_status status = ISO_OK;
  for (size_t i = 0; i < count && status == ISO_OK; i++) {
    const char *path = iso_path_join(arena, folder, files[i]);
    const char *name = iso_arena_printf(arena, "tokenizer/%s", files[i]);
    if (strstr(files[i], ".tmp-")) continue;
    status = path && name ? crc_of(path, name, &crc, &faults) : ISO_ERR_MEMORY;
    if (status != ISO_OK) break;
    iso_string_append(out, ", ", 2);
    iso_json_quote(out, name, strlen(name));
    iso_string_printf(out, ": \"%08x\"", crc);
  }
  if (status != ISO_OK && faults.length) status = iso_fail(status, "%s", iso_fault_first(&faults));
  iso_string_fini(&faults);
  return status;
}

static iso_status write_next(iso_arena *arena, const char *run, int which, const char *text, size_t bytes) {
  const char *path = iso_path_join(arena, run, iso_arena_printf(arena, "%s.next", names[which]));
  return path ? iso_file_replace(path, text, bytes) : ISO_ERR_MEMORY;
}

static iso_status write_all(iso_arena *arena, const char *run, const iso_run_inputs *in, iso_string *text) {
  const char *folder = iso_path_join(arena, run, "tokenizer");
  if (!folder) return ISO_ERR_MEMORY;
  ISO_TRY(iso_path_make(folder));
  if (!keeps_tokenizer(arena, run, in->tokenizer)) ISO_TRY(iso_tokenizer_copy(in->tokenizer, folder));
  iso_string_printf(text, "{\n  \"tokenizer\": \"%s\",\n  \"corpus\": \"%s\",\n  \"files\": {",
                    iso_tokenizer_fingerprint(in->tokenizer), in->corpus);
  iso_string_printf(text, "\"%s\": \"%08x\", \"%s\": \"%08x\"", names[0], iso_crc32c(0, in->config, strlen(in->config)),
                    names[1], iso_crc32c(0, in->model, strlen(in->model)));
  ISO_TRY(list_tokenizer(arena, folder, text));
  iso_string_append(text, "}", 1);
  iso_record_seal(text);
  if (iso_string_failed(text)) return ISO_ERR_MEMORY;
  ISO_TRY(write_next(arena, run, 0, in->config, strlen(in->config)));
  ISO_TRY(write_next(arena, run, 1, in->model, strlen(in->model)));
  return write_next(arena, run, 2, text->data, text->length);
}

iso_status iso_run_inputs_write(const char *run, const iso_run_inputs *inputs) {
  iso_string text = {0};
  iso_arena *arena = iso_arena_create();
  const iso_status status =
      arena ? write_all(arena, run, inputs, &text) : iso_fail(ISO_ERR_MEMORY, "%s: no memory for its inputs", run);
  iso_string_fini(&text);
  iso_arena_destroy(&arena);
  return status;
}

/* NAME.next becomes NAME. */
static iso_status settle(iso_arena *arena, const char *run) {
  for (int i = 0; i < 3; i++) {
    const char *path = iso_path_join(arena, run, names[i]);
    const char *next = path ? iso_arena_printf(arena, "%s.next", path) : NULL;
    if (!next) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for its inputs", run);
    if (iso_os.rename(next, path) != 0 && errno != ENOENT) return iso_os_fail("replace", path);
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
