/* SPDX-License-Identifier: Apache-2.0
 *
 * config.c: config.json in. Finds the architecture's row, lets it read its keys, and checks what all have in common.
 *
 * Invariants
 *  1. A config that was accepted describes a model whose element counts fit all later arithmetic: every dimension is
 *     positive and bounded, and the parameters together stay below 2^46.
 *  2. heads is a multiple of kv_heads; head_dim is even where rotary embeddings are used (checked by the row).
 *  3. The same JSON gives the same config, whether it came from a file or from a run config.
 */
#include "model/model.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- which architecture ---- */

static iso_status refuse_architecture(const char *where, const char *name) {
  iso_string list = {0};
  iso_architecture_list(&list);
  iso_status status = iso_fail(ISO_ERR_UNSUPPORTED, "%s: architecture %.80s is not supported; these are: %s", where,
                               name, list.data ? list.data : "");
  iso_string_fini(&list);
  return status;
}

/* "architectures": ["X"], or "architecture": "X" (a run config's short form); NULL when neither is there. */
static iso_status stated_name(const iso_json *json, const char *where, const char **name) {
  ISO_TRY(iso_json_string(json, where, "architecture", NULL, name));
  const iso_json *list = iso_json_get(json, "architectures");
  if (!list) return ISO_OK;
  if (cJSON_IsString(list)) {
    *name = list->valuestring;
    return ISO_OK;
  }
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != 1 || !cJSON_IsString(list->child))
    return iso_fail(ISO_ERR_FORMAT, "%s: architectures must be a list of one name", where);
  *name = list->child->valuestring;
  return ISO_OK;
}

static iso_status find_architecture(const iso_json *json, const char *where, const iso_architecture **out) {
  const char *name = NULL, *type = NULL;
  ISO_TRY(stated_name(json, where, &name));
  ISO_TRY(iso_json_string(json, where, "model_type", NULL, &type));
  if (!name && !type)
    return iso_fail(ISO_ERR_FORMAT, "%s: neither architectures nor model_type says what the model is", where);
  *out = name ? iso_architecture_find(name) : iso_architecture_of_type(type);
  if (!*out) return refuse_architecture(where, name ? name : type);
  if (type && strcmp(type, (*out)->model_type) != 0)
    return iso_fail(ISO_ERR_FORMAT, "%s: model_type %.80s contradicts architecture %s, whose model_type is %s", where,
                    type, (*out)->name, (*out)->model_type);
  return ISO_OK;
}

/* ---- what all have in common ---- */

/* Whole number, first of a list, or -1. */
static iso_status parse_token_id(const iso_config_reader *reader, const char *key, int64_t *out) {
  const iso_json *value = iso_json_get(reader->json, key);
  *out = -1;
  if (!cJSON_IsArray(value)) return iso_config_int(reader, key, -1, -1, -1, INT32_MAX, out);
  const cJSON *item;
  cJSON_ArrayForEach(item, value) {
    double id = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (id < 0 || id > INT32_MAX || id != (double)(int32_t)id)
      return iso_fail(ISO_ERR_FORMAT, "%s: %s must hold token ids only", reader->where, key);
    if (*out < 0) *out = (int64_t)id;
  }
  return ISO_OK;
}

static iso_status check_sizes(const iso_config_reader *reader, const iso_model_config *config) {
  const double limit = 70368744177664.0; /* 2^46, the graph's limit for one tensor */
  const double width = (double)config->width, layers = (double)config->layers;
  const double attention = width * (double)(config->heads + config->kv_heads) * (double)config->head_dim * 2;
  const double most = layers * (attention + 3 * width * (double)config->inner + 16 * width) +
                      2 * (double)config->vocabulary * width + (double)config->positions * width;
  if (most > limit)
    return iso_fail(ISO_ERR_FORMAT, "%s: these sizes make a model of more than 2^46 parameters", reader->where);
  if (config->heads % config->kv_heads != 0)
    return iso_fail(ISO_ERR_FORMAT, "%s: %" PRId64 " attention heads are no multiple of %" PRId64 " key-value heads",
                    reader->where, config->heads, config->kv_heads);
  return ISO_OK;
}

static iso_status parse(const iso_json *json, const char *where, iso_model_config *config) {
  if (!cJSON_IsObject(json)) return iso_fail(ISO_ERR_FORMAT, "%s: a model config must be an object", where);
  ISO_TRY(find_architecture(json, where, &config->architecture));
  const iso_config_reader reader = {json, where, config->architecture->name};
  ISO_TRY(iso_config_check_keys(&reader, config->architecture->keys));
  ISO_TRY(iso_config_required(&reader, "vocab_size", INT32_MAX, &config->vocabulary));
  ISO_TRY(iso_config_double(&reader, "initializer_range", 0.02, 0, 100, &config->init_std));
  ISO_TRY(iso_config_bool(&reader, "tie_word_embeddings", config->architecture->default_tied, &config->tied));
  ISO_TRY(parse_token_id(&reader, "bos_token_id", &config->bos));
  ISO_TRY(parse_token_id(&reader, "eos_token_id", &config->eos));
  ISO_TRY(config->architecture->parse(config->architecture, &reader, config));
  ISO_TRY(check_sizes(&reader, config));
  config->json = cJSON_Print(json);
  if (!config->json) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for the model config", where);
  return ISO_OK;
}

/* ---- entries ---- */

iso_status iso_model_config_parse(const iso_json *json, const char *where, iso_model_config *config) {
  memset(config, 0, sizeof *config);
  iso_status status = parse(json, where, config);
  if (status != ISO_OK) iso_model_config_fini(config);
  return status;
}

iso_status iso_model_config_read(const char *path, iso_model_config *config) {
  memset(config, 0, sizeof *config);
  iso_arena *arena = iso_arena_create();
  iso_json *json = NULL;
  const char *file = arena && iso_path_is_folder(path) ? iso_path_join(arena, path, "config.json") : path;
  iso_status status = arena && file ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "%s: no memory to read the config", path);
  if (status == ISO_OK) status = iso_json_read(file, &json);
  if (status == ISO_OK) status = iso_model_config_parse(json, file, config);
  iso_json_destroy(&json);
  iso_arena_destroy(&arena);
  return status;
}

iso_status iso_model_config_preset(const char *name, iso_model_config *config) {
  static const struct {
    const char *name, *json;
  } presets[] = {
      {"gpt2-124m", "{\"architectures\":[\"GPT2LMHeadModel\"],\"model_type\":\"gpt2\",\"vocab_size\":50257,"
                    "\"n_positions\":1024,\"n_embd\":768,\"n_layer\":12,\"n_head\":12,"
                    "\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05,\"initializer_range\":0.02}"},
      {"llama-110m", "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":32000,"
                     "\"max_position_embeddings\":1024,\"hidden_size\":768,\"intermediate_size\":2048,"
                     "\"num_hidden_layers\":12,\"num_attention_heads\":12,\"hidden_act\":\"silu\","
                     "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"initializer_range\":0.02,"
                     "\"tie_word_embeddings\":true}"},
      {"llama-30m", "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":8192,"
                    "\"max_position_embeddings\":1024,\"hidden_size\":512,\"intermediate_size\":1408,"
                    "\"num_hidden_layers\":8,\"num_attention_heads\":8,\"hidden_act\":\"silu\","
                    "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"initializer_range\":0.02,"
                    "\"tie_word_embeddings\":true}"},
  };
  memset(config, 0, sizeof *config);
  for (size_t i = 0; i < ISO_COUNT(presets); i++) {
    if (strcmp(name, presets[i].name) != 0) continue;
    iso_json *json = NULL;
    ISO_TRY(iso_json_parse(presets[i].json, strlen(presets[i].json), name, &json));
    iso_status status = iso_model_config_parse(json, name, config);
    iso_json_destroy(&json);
    return status;
  }
  return iso_fail(ISO_ERR_USAGE, "no model is called %.80s; there are gpt2-124m, llama-110m and llama-30m", name);
}

iso_status iso_model_config_open(const char *name, iso_model_config *config) {
  if (strchr(name, '/') || strstr(name, ".json") || iso_path_exists(name)) return iso_model_config_read(name, config);
  return iso_model_config_preset(name, config);
}

void iso_model_config_fini(iso_model_config *config) {
  free(config->json);
  free(config->windowed);
  memset(config, 0, sizeof *config);
}
