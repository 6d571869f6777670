/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach export: a run's weights, or those of a Hugging Face folder, as a Hugging Face folder with its tokenizer.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

iso_status iso_output_check(const char *verb, const char *folder, bool force) {
  char **names = NULL;
  size_t count = 0;
  if (force || !iso_path_is_folder(folder)) return ISO_OK;
  iso_arena *arena = iso_arena_create();
  if (!arena) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to look into '%s'", verb, folder);
  iso_status status = iso_path_list(arena, folder, &names, &count);
  if (status == ISO_OK && count)
    status = iso_fail(ISO_ERR_USAGE, "%s: '%s' is not empty (%s ...); name another folder, or say --force", verb,
                      folder, names[0]);
  iso_arena_destroy(&arena);
  return status;
}

/* A target that is the source, or a run, would be damaged. */
static iso_status check_target(const iso_lm *lm, const char *target) {
  char from[PATH_MAX], to[PATH_MAX];
  if (realpath(lm->path, from) && realpath(target, to) && strcmp(from, to) == 0)
    return iso_fail(ISO_ERR_USAGE, "export: '%s' is the source itself; name another folder", target);
  if (iso_path_exists(iso_path_join(lm->arena, target, "run.json")))
    return iso_fail(ISO_ERR_USAGE, "export: '%s' is a run folder; name another folder", target);
  if (iso_path_exists(target) && !iso_path_is_folder(target))
    return iso_fail(ISO_ERR_USAGE, "export: '%s' is a file; name a folder", target);
  return ISO_OK;
}

static iso_status export_model(iso_lm *lm, const char *target, iso_dtype dtype) {
  ISO_TRY(check_target(lm, target));
  const int64_t eos = lm->tokenizer ? iso_tokenizer_eos(lm->tokenizer) : -1;
  if (eos >= 0) lm->model.eos = eos;
  ISO_TRY(iso_path_make(target));
  if (lm->tokenizer) ISO_TRY(iso_tokenizer_copy(lm->tokenizer, target));
  return iso_model_export(&lm->model, lm->graph, lm->master, dtype, target);
}

iso_status iso_verb_export(iso_args *args) {
  bool json = false, force = false;
  iso_dtype dtype = ISO_F32;
  const iso_flag flags[] = {
      {"force", ISO_FLAG_BOOL, &force, "write into a folder that is not empty", 0, 0},
      {"dtype", ISO_FLAG_DTYPE, &dtype, "of the stored weights (float32)", 0, 0},
      {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 2, 2));
  if (args->help) return ISO_OK;
  const char *target = args->words[1];
  iso_lm lm;
  ISO_TRY(iso_output_check("export", target, force));
  ISO_TRY(iso_args_bring_run(args));
  ISO_TRY(iso_lm_open(args->words[0], 1, &lm));
  iso_status status = export_model(&lm, target, dtype);
  if (status == ISO_OK && json) {
    iso_string out = {0};
    iso_json_open(&out, NULL, '{');
    iso_json_put_text(&out, "folder", target);
    iso_json_put_text(&out, "architecture", iso_architecture_name(lm.model.architecture));
    iso_json_put_int(&out, "parameters", lm.graph->flat_elements);
    iso_json_put_text(&out, "dtype", dtype == ISO_F32 ? "float32" : "bfloat16");
    iso_json_put_bool(&out, "tokenizer", lm.tokenizer != NULL);
    if (lm.step >= 0) iso_json_put_int(&out, "step", lm.step);
    iso_json_shut(&out, '}');
    status = iso_json_print(&out);
  } else if (status == ISO_OK) {
    printf("%s: %s, %lld parameters, %s%s\n", target, iso_architecture_name(lm.model.architecture),
           (long long)lm.graph->flat_elements, dtype == ISO_F32 ? "float32" : "bfloat16",
           lm.tokenizer ? "" : ", no tokenizer");
  }
  iso_lm_close(&lm);
  return status;
}
