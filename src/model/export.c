/* SPDX-License-Identifier: Apache-2.0
 *
 * export.c: a Hugging Face folder out, which transformers 4 and 5 load.
 *
 * The config that came in goes out again with every key it had. Set anew: what says which model it is, the element type
 * under both of its names (`torch_dtype` was renamed `dtype`), the token ids, and the rotary keys in both styles, since
 * transformers 4 does not read `rope_parameters` and would fall back to its default base without a word.
 *
 * Invariants
 *  1. config.json is written last: a folder without it is no model, so an export that failed on the way into a new
 *     folder cannot be mistaken for a whole one.
 *  2. A tied head is not written, as transformers does it.
 */
#include "model/model.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* Sets or replaces; takes `value`. False when out of memory. */
static bool set(cJSON *object, const char *key, cJSON *value) {
  if (!value) return false;
  if (cJSON_HasObjectItem(object, key)) return cJSON_ReplaceItemInObjectCaseSensitive(object, key, value);
  return cJSON_AddItemToObject(object, key, value);
}

/* A number that stays a real one when it is whole: transformers tells 4 from 4.0 and complains. */
static cJSON *real(double value) {
  char text[40];
  snprintf(text, sizeof text, "%.15g", value);
  if (strtod(text, NULL) != value) snprintf(text, sizeof text, "%.17g", value);
  if (!strpbrk(text, ".e")) snprintf(text, sizeof text, "%.1f", value);
  return cJSON_CreateRaw(text);
}

/* The id as a number, or null; a list that begins with it stays. */
static bool set_token_id(cJSON *object, const char *key, int64_t id) {
  const cJSON *have = cJSON_GetObjectItemCaseSensitive(object, key);
  if (cJSON_IsArray(have) && have->child && have->child->valuedouble == (double)id) return true;
  return set(object, key, id < 0 ? cJSON_CreateNull() : cJSON_CreateNumber((double)id));
}

static bool set_rope(cJSON *object, const iso_model_config *config) {
  if (config->architecture->position_table) return true;
  static const char *const kinds[] = {
      [ISO_ROPE_DEFAULT] = "default", [ISO_ROPE_LINEAR] = "linear", [ISO_ROPE_LLAMA3] = "llama3"};
  cJSON *rope = cJSON_CreateObject();
  bool ok = rope && cJSON_AddStringToObject(rope, "rope_type", kinds[config->rope_kind]);
  if (config->rope_kind != ISO_ROPE_DEFAULT) ok = ok && set(rope, "factor", real(config->rope_factor));
  if (config->rope_kind == ISO_ROPE_LLAMA3) {
    ok = ok && set(rope, "low_freq_factor", real(config->rope_low_freq));
    ok = ok && set(rope, "high_freq_factor", real(config->rope_high_freq));
    ok = ok &&
         cJSON_AddNumberToObject(rope, "original_max_position_embeddings", (double)config->rope_original_positions);
  }
  ok = ok && set(object, "rope_theta", real(config->rope_theta));
  ok = ok && set(object, "rope_scaling",
                 config->rope_kind == ISO_ROPE_DEFAULT ? cJSON_CreateNull() : cJSON_Duplicate(rope, true));
  ok = ok && set(rope, "rope_theta", real(config->rope_theta));
  if (ok) return set(object, "rope_parameters", rope);
  cJSON_Delete(rope);
  return false;
}

static bool set_config(cJSON *object, const iso_model_config *config, iso_dtype dtype) {
  const char *type = dtype == ISO_BF16 ? "bfloat16" : "float32", *name = config->architecture->name;
  cJSON_DeleteItemFromObjectCaseSensitive(object, "architecture"); /* a run config's short form */
  cJSON_DeleteItemFromObjectCaseSensitive(object, "auto_map");     /* names code that does not come along */
  return set(object, "architectures", cJSON_CreateStringArray(&name, 1)) &&
         set(object, "model_type", cJSON_CreateString(config->architecture->model_type)) &&
         set(object, "dtype", cJSON_CreateString(type)) && set(object, "torch_dtype", cJSON_CreateString(type)) &&
         set(object, "tie_word_embeddings", cJSON_CreateBool(config->tied)) &&
         set_token_id(object, "bos_token_id", config->bos) && set_token_id(object, "eos_token_id", config->eos) &&
         set_rope(object, config);
}

/* generation_config.json: the token ids of the finished config. */
static bool set_generation(cJSON *object, const cJSON *config) {
  static const char *const ids[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
  bool ok = cJSON_AddBoolToObject(object, "_from_model_config", true) != NULL;
  for (size_t i = 0; i < ISO_COUNT(ids); i++) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(config, ids[i]);
    if (value && !cJSON_IsNull(value)) ok = ok && set(object, ids[i], cJSON_Duplicate(value, true));
  }
  return ok;
}

static iso_status write_json(const cJSON *object, const char *path) {
  char *text = cJSON_Print(object);
  iso_string line = {0};
  if (text) iso_string_printf(&line, "%s\n", text);
  iso_status status = line.data ? iso_file_replace(path, line.data, line.length)
                                : iso_fail(ISO_ERR_MEMORY, "%s: no memory to write it", path);
  iso_string_fini(&line);
  free(text);
  return status;
}

static iso_status write_weights(const iso_graph *graph, const float *master, iso_dtype dtype, const char *path) {
  static const char *const metadata[] = {"format", "pt", NULL};
  const size_t count = (size_t)graph->parameter_count, elements = (size_t)graph->flat_elements;
  iso_tensor_out *tensors = calloc(count, sizeof *tensors);
  iso_bf16 *small = dtype == ISO_BF16 ? malloc(elements * sizeof *small) : NULL;
  if (!tensors || (dtype == ISO_BF16 && !small)) {
    free(tensors);
    free(small);
    return iso_fail(ISO_ERR_MEMORY, "%s: no memory to write it", path);
  }
  if (small)
    for (size_t i = 0; i < elements; i++) small[i] = iso_bf16_from_f32(master[i]);
  for (size_t i = 0; i < count; i++) {
    const iso_parameter *p = &graph->parameters[i];
    tensors[i] = (iso_tensor_out){.name = p->name, .dtype = dtype, .rank = p->rank};
    tensors[i].data = small ? (const void *)(small + p->offset) : (const void *)(master + p->offset);
    memcpy(tensors[i].shape, p->shape, (size_t)p->rank * sizeof *p->shape);
  }
  iso_status status = iso_safetensors_write(path, tensors, count, metadata, NULL, NULL);
  free(small);
  free(tensors);
  return status;
}

static iso_status export_into(const iso_model_config *config, const iso_graph *graph, const float *master,
                              iso_dtype dtype, const char *folder, iso_arena *arena, cJSON *json, cJSON *generation) {
  const char *index = iso_path_join(arena, folder, "model.safetensors.index.json");
  const char *weights = iso_path_join(arena, folder, "model.safetensors");
  const char *settings = iso_path_join(arena, folder, "generation_config.json");
  const char *main_file = iso_path_join(arena, folder, "config.json");
  if (!index || !weights || !settings || !main_file || !generation || !set_config(json, config, dtype) ||
      !set_generation(generation, json))
    return iso_fail(ISO_ERR_MEMORY, "%s: no memory to export a model", folder);
  ISO_TRY(iso_path_make(folder));
  if (iso_path_exists(index))
    return iso_fail(ISO_ERR_USAGE, "%s is there: the folder holds a sharded model; export into another one", index);
  ISO_TRY(write_weights(graph, master, dtype, weights));
  ISO_TRY(write_json(generation, settings));
  return write_json(json, main_file);
}

iso_status iso_model_export(const iso_model_config *config, const iso_graph *graph, const float *master,
                            iso_dtype dtype, const char *folder) {
  if (dtype != ISO_F32 && dtype != ISO_BF16)
    return iso_fail(ISO_ERR_UNSUPPORTED, "cannot export weights as %s; f32 and bf16 are possible",
                    iso_dtype_name(dtype));
  iso_json *json = NULL;
  ISO_TRY(iso_json_parse(config->json, strlen(config->json), "the model's config", &json));
  iso_arena *arena = iso_arena_create();
  cJSON *generation = cJSON_CreateObject();
  iso_status status = arena ? export_into(config, graph, master, dtype, folder, arena, json, generation)
                            : iso_fail(ISO_ERR_MEMORY, "%s: no memory to export a model", folder);
  cJSON_Delete(generation);
  iso_arena_destroy(&arena);
  iso_json_destroy(&json);
  return status;
}
