/* SPDX-License-Identifier: Apache-2.0
 *
 * llama.c: the pre-norm decoder with RMSNorm, rotary embedding, grouped heads and SwiGLU (Llama), and the variants that
 * differ from it by options: Mistral (sliding window), Qwen2 (biases of q, k, v), Qwen3 (norms of q and k per head).
 *
 * N = B*T rows, C width, H heads, K key-value heads, D head width, F inner width:
 *
 *   x = embed[tokens]                                       [N, C]
 *   a layer:  h = rmsnorm(x);  q = h Wq', k = h Wk', v = h Wv'   [N, H*D], [N, K*D], [N, K*D]
 *             [Qwen3: q, k = rmsnorm over D];  q, k = rope(q), rope(k)
 *             x = x + attention(q, k, v) Wo'
 *             h = rmsnorm(x);  x = x + (silu(h Wg') * (h Wu')) Wd'
 *   y = rmsnorm(x), then the head
 */
#include "model/model.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- keys ---- */

static iso_status parse_heads(const iso_architecture *architecture, const iso_config_reader *reader,
                              iso_model_config *config) {
  ISO_TRY(iso_config_required(reader, "num_attention_heads", ISO_WIDTH_LIMIT, &config->heads));
  const int64_t kv_heads = architecture->default_kv_heads ? architecture->default_kv_heads : config->heads;
  ISO_TRY(
      iso_config_int(reader, "num_key_value_heads", kv_heads, config->heads, 1, ISO_WIDTH_LIMIT, &config->kv_heads));
  const int64_t head_dim = architecture->default_head_dim;
  ISO_TRY(iso_config_int(reader, "head_dim", head_dim, 0, 1, 1 << 16, &config->head_dim));
  if (config->head_dim == 0) {
    if (config->width % config->heads != 0)
      return iso_fail(ISO_ERR_FORMAT,
                      "%s: hidden_size %" PRId64 " is no multiple of num_attention_heads %" PRId64
                      "; state head_dim, or change one of them",
                      reader->where, config->width, config->heads);
    config->head_dim = config->width / config->heads;
  }
  if (config->heads * config->head_dim > ISO_WIDTH_LIMIT)
    return iso_fail(ISO_ERR_FORMAT, "%s: num_attention_heads x head_dim = %" PRId64 " is above %d", reader->where,
                    config->heads * config->head_dim, ISO_WIDTH_LIMIT);
  if (config->head_dim % 2 != 0)
    return iso_fail(ISO_ERR_FORMAT, "%s: head_dim is %" PRId64 ", but rotary embeddings need an even one",
                    reader->where, config->head_dim);
  return ISO_OK;
}

/* "layer_types": a name for each layer. */
static iso_status parse_layer_types(const iso_config_reader *reader, iso_model_config *config, bool *any) {
  const iso_json *list = iso_json_get(reader->json, "layer_types");
  if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != config->layers)
    return iso_fail(ISO_ERR_FORMAT, "%s: layer_types must list one name for each of the %" PRId64 " layers",
                    reader->where, config->layers);
  const cJSON *item;
  bool *windowed = config->windowed;
  cJSON_ArrayForEach(item, list) {
    const char *name = cJSON_IsString(item) ? item->valuestring : "";
    *windowed = strcmp(name, "sliding_attention") == 0;
    if (!*windowed && strcmp(name, "full_attention") != 0)
      return iso_config_refuse(reader, "layer_types", item, "full_attention and sliding_attention are");
    *any |= *windowed++;
  }
  return ISO_OK;
}

/* Which layers use a window, and how wide it is. */
static iso_status parse_window(const iso_architecture *architecture, const iso_config_reader *reader,
                               iso_model_config *config) {
  if (architecture->window == ISO_WINDOW_NONE) return ISO_OK;
  bool use = architecture->window == ISO_WINDOW_ALL, any = false;
  int64_t window, first = 0;
  ISO_TRY(iso_config_int(reader, "sliding_window", architecture->default_window, 0, 0, INT32_MAX, &window));
  if (architecture->window == ISO_WINDOW_LAYERS) {
    ISO_TRY(iso_config_bool(reader, "use_sliding_window", false, &use));
    ISO_TRY(iso_config_int(reader, "max_window_layers", 28, 28, 0, INT32_MAX, &first));
  }
  if (use && window == 0 && iso_json_get(reader->json, "sliding_window"))
    return iso_fail(ISO_ERR_FORMAT, "%s: sliding_window is 0; write null for full attention", reader->where);
  config->windowed = calloc((size_t)config->layers, sizeof *config->windowed);
  if (!config->windowed) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for the config", reader->where);
  if (architecture->window == ISO_WINDOW_LAYERS && iso_json_get(reader->json, "layer_types")) {
    ISO_TRY(parse_layer_types(reader, config, &any));
    if (any && (!use || window == 0))
      return iso_fail(ISO_ERR_FORMAT, "%s: layer_types names sliding_attention, but %s", reader->where,
                      use ? "sliding_window is null" : "use_sliding_window is false");
  } else if (use && window > 0) {
    for (int64_t layer = first; layer < config->layers; layer++) any = config->windowed[layer] = true;
  }
  if (any) {
    config->window = window;
  } else {
    free(config->windowed);
    config->windowed = NULL;
  }
  return ISO_OK;
}

static iso_status parse_biases(const iso_architecture *architecture, const iso_config_reader *reader,
                               iso_model_config *config) {
  config->attention_bias = architecture->bias == ISO_BIAS_QKV;
  if (architecture->bias != ISO_BIAS_NONE)
    ISO_TRY(iso_config_bool(reader, "attention_bias", config->attention_bias, &config->attention_bias));
  if (architecture->bias == ISO_BIAS_QKV && !config->attention_bias)
    return iso_config_refuse(reader, "attention_bias", iso_json_get(reader->json, "attention_bias"),
                             "its q, k and v always have biases");
  config->output_bias = architecture->bias == ISO_BIAS_KEY && config->attention_bias;
  if (architecture->mlp_bias_key) ISO_TRY(iso_config_bool(reader, "mlp_bias", false, &config->mlp_bias));
  config->qk_norm = architecture->qk_norm;
  return ISO_OK;
}

iso_status iso_llama_parse(const iso_architecture *architecture, const iso_config_reader *reader,
                           iso_model_config *config) {
  static const char *const dropouts[] = {"attention_dropout", NULL};
  ISO_TRY(iso_config_required(reader, "hidden_size", ISO_WIDTH_LIMIT, &config->width));
  ISO_TRY(iso_config_required(reader, "intermediate_size", ISO_INNER_LIMIT, &config->inner));
  ISO_TRY(iso_config_required(reader, "num_hidden_layers", ISO_LAYER_LIMIT, &config->layers));
  const int64_t positions = architecture->default_positions;
  ISO_TRY(iso_config_int(reader, "max_position_embeddings", positions, positions, 1, INT32_MAX, &config->positions));
  ISO_TRY(parse_heads(architecture, reader, config));
  ISO_TRY(iso_config_double(reader, "rms_norm_eps", 1e-6, 0, 1, &config->norm_eps));
  const char *activation;
  ISO_TRY(iso_json_string(reader->json, reader->where, "hidden_act", "silu", &activation));
  if (strcmp(activation, "silu") != 0 && strcmp(activation, "swish") != 0)
    return iso_config_refuse(reader, "hidden_act", iso_json_get(reader->json, "hidden_act"), "only silu is");
  ISO_TRY(parse_biases(architecture, reader, config));
  ISO_TRY(parse_window(architecture, reader, config));
  ISO_TRY(iso_rope_parse(reader, config));
  return iso_config_dropout(reader, dropouts, config);
}

/* ---- graph ---- */

static iso_id build_attention(iso_builder *b, int64_t layer, iso_id x) {
  const iso_model_config *c = b->config;
  const int64_t q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
  const int bias = c->attention_bias ? ISO_LINEAR_BIAS : 0;
  const int output = ISO_LINEAR_RESIDUAL | (c->output_bias ? ISO_LINEAR_BIAS : 0);
  iso_id q = iso_builder_linear(b, x, "self_attn.q_proj", c->width, q_width, bias);
  iso_id k = iso_builder_linear(b, x, "self_attn.k_proj", c->width, kv_width, bias);
  iso_id v = iso_builder_linear(b, x, "self_attn.v_proj", c->width, kv_width, bias);
  if (c->qk_norm) {
    q = iso_builder_rmsnorm(b, q, "self_attn.q_norm", c->head_dim);
    k = iso_builder_rmsnorm(b, k, "self_attn.k_norm", c->head_dim);
  }
  q = iso_builder_rope(b, q);
  k = iso_builder_rope(b, k);
  iso_id mixed = iso_builder_attention(b, layer, q, k, v);
  return iso_builder_linear(b, mixed, "self_attn.o_proj", q_width, c->width, output);
}

static iso_id build_mlp(iso_builder *b, iso_id x) {
  const iso_model_config *c = b->config;
  const int bias = c->mlp_bias ? ISO_LINEAR_BIAS : 0;
  iso_id gate = iso_builder_linear(b, x, "mlp.gate_proj", c->width, c->inner, bias);
  iso_id up = iso_builder_linear(b, x, "mlp.up_proj", c->width, c->inner, bias);
  const iso_id pair[] = {gate, up};
  iso_id product = iso_builder_node(b, ISO_OP_SWIGLU, pair, 2, NULL, 0);
  return iso_builder_linear(b, product, "mlp.down_proj", c->inner, c->width, bias | ISO_LINEAR_RESIDUAL);
}

void iso_llama_build(iso_builder *b) {
  const iso_model_config *c = b->config;
  iso_builder_scope(b, "model.");
  iso_id embedding = iso_builder_parameter(b, "embed_tokens.weight", c->vocabulary, c->width, ISO_INIT_NORMAL,
                                           c->init_std, ISO_DECAY_EMBEDDING);
  const iso_id gather[] = {embedding, b->tokens};
  iso_id x = iso_builder_node(b, ISO_OP_EMBEDDING, gather, 2, NULL, 0);
  for (int64_t layer = 0; layer < c->layers && b->status == ISO_OK; layer++) {
    iso_builder_scope(b, "model.layers.%" PRId64 ".", layer);
    iso_id normed = iso_builder_rmsnorm(b, x, "input_layernorm", c->width);
    x = iso_builder_add(b, x, build_attention(b, layer, normed));
    normed = iso_builder_rmsnorm(b, x, "post_attention_layernorm", c->width);
    x = iso_builder_add(b, x, build_mlp(b, normed));
  }
  iso_builder_scope(b, "model.");
  iso_builder_head(b, iso_builder_rmsnorm(b, x, "norm", c->width), embedding);
}
