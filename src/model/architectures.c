/* SPDX-License-Identifier: Apache-2.0
 *
 * architectures.c: the table. A row says which config.json it answers to, what transformers assumes for keys that are
 * absent (from the configuration_*.py of transformers 5.24), which variants its decoder has, and who builds it.
 *
 * Llama, Mistral, Qwen2 and Qwen3 are one decoder with four sets of options, so they share llama.c.
 */
#include "model/model.h"

#include <string.h>

static const char *const llama_ignored[] = {".rotary_emb.inv_freq", NULL};
static const char *const gpt2_ignored[] = {".attn.bias", ".attn.masked_bias", NULL}; /* causal masks of old files */

#define DECODER_KEYS                                                                                                   \
  "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", \
      "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "initializer_range", "tie_word_embeddings", \
      "rope_theta", "rope_scaling", "rope_parameters", "attention_dropout"

static const char *const llama_keys[] = {DECODER_KEYS, "attention_bias", "mlp_bias", NULL};
static const char *const mistral_keys[] = {DECODER_KEYS, "sliding_window", NULL};
static const char *const qwen2_keys[] = {
    DECODER_KEYS, "attention_bias", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types", NULL};
static const char *const gpt2_keys[] = {"vocab_size",
                                        "n_embd",
                                        "n_layer",
                                        "n_head",
                                        "n_positions",
                                        "n_inner",
                                        "hidden_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "max_position_embeddings",
                                        "activation_function",
                                        "layer_norm_epsilon",
                                        "initializer_range",
                                        "tie_word_embeddings",
                                        "resid_pdrop",
                                        "embd_pdrop",
                                        "attn_pdrop",
                                        "scale_attn_weights",
                                        "scale_attn_by_inverse_layer_idx",
                                        "reorder_and_upcast_attn",
                                        NULL};

static const iso_architecture table[] = {
    {.name = "LlamaForCausalLM",
     .model_type = "llama",
     .parse = iso_llama_parse,
     .build = iso_llama_build,
     .prefix = "model.",
     .ignored = llama_ignored,
     .keys = llama_keys,
     .default_positions = 2048,
     .bias = ISO_BIAS_KEY,
     .mlp_bias_key = true},
    {.name = "MistralForCausalLM",
     .model_type = "mistral",
     .parse = iso_llama_parse,
     .build = iso_llama_build,
     .prefix = "model.",
     .ignored = llama_ignored,
     .keys = mistral_keys,
     .default_kv_heads = 8,
     .default_positions = 131072,
     .default_window = 4096,
     .window = ISO_WINDOW_ALL},
    {.name = "Qwen2ForCausalLM",
     .model_type = "qwen2",
     .parse = iso_llama_parse,
     .build = iso_llama_build,
     .prefix = "model.",
     .ignored = llama_ignored,
     .keys = qwen2_keys,
     .default_kv_heads = 32,
     .default_positions = 32768,
     .default_window = 4096,
     .bias = ISO_BIAS_QKV,
     .window = ISO_WINDOW_LAYERS},
    {.name = "Qwen3ForCausalLM",
     .model_type = "qwen3",
     .parse = iso_llama_parse,
     .build = iso_llama_build,
     .prefix = "model.",
     .ignored = llama_ignored,
     .keys = qwen2_keys,
     .default_kv_heads = 32,
     .default_head_dim = 128,
     .default_positions = 32768,
     .default_window = 4096,
     .bias = ISO_BIAS_KEY,
     .window = ISO_WINDOW_LAYERS,
     .qk_norm = true},
    {.name = "GPT2LMHeadModel",
     .model_type = "gpt2",
     .parse = iso_gpt2_parse,
     .build = iso_gpt2_build,
     .prefix = "transformer.",
     .ignored = gpt2_ignored,
     .keys = gpt2_keys,
     .default_positions = 1024,
     .default_tied = true,
     .position_table = true},
};

const iso_architecture *iso_architecture_find(const char *name) {
  for (size_t i = 0; i < ISO_COUNT(table); i++)
    if (strcmp(table[i].name, name) == 0) return &table[i];
  return NULL;
}

const iso_architecture *iso_architecture_of_type(const char *model_type) {
  for (size_t i = 0; i < ISO_COUNT(table); i++)
    if (strcmp(table[i].model_type, model_type) == 0) return &table[i];
  return NULL;
}

const char *iso_architecture_name(const iso_architecture *architecture) {
  return architecture->name;
}

void iso_architecture_list(iso_string *out) {
  for (size_t i = 0; i < ISO_COUNT(table); i++) iso_string_printf(out, "%s%s", i ? ", " : "", table[i].name);
}
