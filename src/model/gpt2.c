/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt2.c: GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases everywhere, GELU, weights stored [in, out].
 *
 * N = B*T rows, C width, F inner width:
 *
 *   x = wte[tokens] + wpe[positions]                        [N, C]
 *   a layer:  h = layernorm(x);  q, k, v = split(h Wqkv + b)    [N, C] each
 *             x = x + attention(q, k, v) Wo + b
 *             h = layernorm(x);  x = x + gelu(h Wfc + b) Wproj + b
 *   y = layernorm(x), then the head (tied to wte)
 */
#include "model/model.h"

#include <inttypes.h>
#include <string.h>

/* GPT-2's own name of a size, or the common one. */
static iso_status parse_size(const iso_config_reader *reader, const char *key, const char *common, int64_t maximum,
                             int64_t *out) {
  return iso_config_required(
      reader, iso_json_get(reader->json, key) || !iso_json_get(reader->json, common) ? key : common, maximum, out);
}

static iso_status parse_activation(const iso_config_reader *reader, iso_model_config *config) {
  const char *name;
  ISO_TRY(iso_json_string(reader->json, reader->where, "activation_function", "gelu_new", &name));
  if (strcmp(name, "gelu") == 0)
    config->gelu_form = 0;
  else if (strcmp(name, "gelu_new") == 0 || strcmp(name, "gelu_pytorch_tanh") == 0)
    config->gelu_form = 1;
  else
    return iso_config_refuse(reader, "activation_function", iso_json_get(reader->json, "activation_function"),
                             "gelu, gelu_new and gelu_pytorch_tanh are");
  return ISO_OK;
}

/* Switches that change attention. */
static iso_status parse_switches(const iso_config_reader *reader) {
  static const struct {
    const char *key;
    bool only;
  } switches[] = {
      {"scale_attn_weights", true}, {"scale_attn_by_inverse_layer_idx", false}, {"reorder_and_upcast_attn", false}};
  for (size_t i = 0; i < ISO_COUNT(switches); i++) {
    bool value;
    ISO_TRY(iso_config_bool(reader, switches[i].key, switches[i].only, &value));
    if (value != switches[i].only)
      return iso_config_refuse(reader, switches[i].key, iso_json_get(reader->json, switches[i].key),
                               switches[i].only ? "only true is" : "only false is");
  }
  return ISO_OK;
}

iso_status iso_gpt2_parse(const iso_architecture *architecture, const iso_config_reader *reader,
                          iso_model_config *config) {
  static const char *const dropouts[] = {"resid_pdrop", "embd_pdrop", "attn_pdrop", NULL};
  ISO_TRY(parse_size(reader, "n_embd", "hidden_size", ISO_WIDTH_LIMIT, &config->width));
  ISO_TRY(parse_size(reader, "n_layer", "num_hidden_layers", ISO_LAYER_LIMIT, &config->layers));
  ISO_TRY(parse_size(reader, "n_head", "num_attention_heads", ISO_WIDTH_LIMIT, &config->heads));
  const char *positions_key = iso_config_has(reader, "n_positions") ? "n_positions" : "max_position_embeddings";
  const int64_t positions = architecture->default_positions;
  ISO_TRY(iso_config_int(reader, positions_key, positions, positions, 1, INT32_MAX, &config->positions));
  ISO_TRY(iso_config_int(reader, "n_inner", 4 * config->width, 4 * config->width, 1, ISO_INNER_LIMIT, &config->inner));
  if (config->width % config->heads != 0)
    return iso_fail(ISO_ERR_FORMAT, "%s: n_embd %" PRId64 " is no multiple of n_head %" PRId64, reader->where,
                    config->width, config->heads);
  config->kv_heads = config->heads;
  config->head_dim = config->width / config->heads;
  ISO_TRY(iso_config_double(reader, "layer_norm_epsilon", 1e-5, 0, 1, &config->norm_eps));
  config->attention_bias = config->output_bias = config->mlp_bias = true;
  ISO_TRY(parse_activation(reader, config));
  ISO_TRY(parse_switches(reader));
  return iso_config_dropout(reader, dropouts, config);
}

/* ---- graph ---- */

static iso_id build_attention(iso_builder *b, int64_t layer, iso_id x) {
  const int64_t width = b->config->width;
  const int stored = ISO_LINEAR_BIAS | ISO_LINEAR_TRANSPOSED;
  iso_id joint = iso_builder_linear(b, x, "attn.c_attn", width, 3 * width, stored);
  iso_id parts[3];
  iso_builder_split3(b, joint, width, parts);
  iso_id mixed = iso_builder_attention(b, layer, parts[0], parts[1], parts[2]);
  return iso_builder_linear(b, mixed, "attn.c_proj", width, width, stored | ISO_LINEAR_RESIDUAL);
}

static iso_id build_mlp(iso_builder *b, iso_id x) {
  const iso_model_config *c = b->config;
  const int stored = ISO_LINEAR_BIAS | ISO_LINEAR_TRANSPOSED;
  const iso_attr form = {ISO_ATTR_FORM, c->gelu_form};
  iso_id inner = iso_builder_linear(b, x, "mlp.c_fc", c->width, c->inner, stored);
  inner = iso_builder_node(b, ISO_OP_GELU, &inner, 1, &form, 1);
  return iso_builder_linear(b, inner, "mlp.c_proj", c->inner, c->width, stored | ISO_LINEAR_RESIDUAL);
}

void iso_gpt2_build(iso_builder *b) {
  const iso_model_config *c = b->config;
  iso_builder_scope(b, "transformer.");
  iso_id wte = iso_builder_parameter(b, "wte.weight", c->vocabulary, c->width, ISO_INIT_NORMAL, c->init_std,
                                     ISO_DECAY_EMBEDDING);
  iso_id wpe =
      iso_builder_parameter(b, "wpe.weight", c->positions, c->width, ISO_INIT_NORMAL, c->init_std, ISO_DECAY_EMBEDDING);
  const iso_id word[] = {wte, b->tokens}, place[] = {wpe, b->positions};
  iso_id words = iso_builder_node(b, ISO_OP_EMBEDDING, word, 2, NULL, 0);
  iso_id x = iso_builder_add(b, words, iso_builder_node(b, ISO_OP_EMBEDDING, place, 2, NULL, 0));
  for (int64_t layer = 0; layer < c->layers && b->status == ISO_OK; layer++) {
    iso_builder_scope(b, "transformer.h.%" PRId64 ".", layer);
    iso_id normed = iso_builder_layernorm(b, x, "ln_1", c->width);
    x = iso_builder_add(b, x, build_attention(b, layer, normed));
    normed = iso_builder_layernorm(b, x, "ln_2", c->width);
    x = iso_builder_add(b, x, build_mlp(b, normed));
  }
  iso_builder_scope(b, "transformer.");
  iso_builder_head(b, iso_builder_layernorm(b, x, "ln_f", c->width), wte);
}
