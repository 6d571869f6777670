/* SPDX-License-Identifier: Apache-2.0
 *
 * config_keys.c: the keys of a config.json that no parse function reads, sorted by what they do.
 *
 * Real files hold dozens of keys that change nothing (token ids, generation settings, bookkeeping of the program that
 * wrote them); refusing them would refuse the world. Keys that some architecture gives a meaning which this build does
 * not implement are accepted at the value that switches the meaning off, and refused at any other. What remains is
 * named in one warning, unless it is null, false, zero or empty.
 *
 * Invariants
 *  1. A key is in one list only.
 *  2. A value that changes what the model computes never passes in silence.
 */
#include "model/model.h"

#include <cjson/cJSON.h>
#include <string.h>

/* Change nothing that the model computes. */
static const char *const harmless[] = {
    /* bookkeeping */
    "_name_or_path", "name_or_path", "_commit_hash", "_attn_implementation_autoset", "_attn_implementation",
    "attn_implementation", "transformers_version", "torch_dtype", "dtype", "architectures", "architecture",
    "model_type", "tokenizer_class", "task_specific_params", "finetuning_task", "problem_type", "id2label", "label2id",
    "num_labels", "prefix", "transformers.js_config", "unsloth_version", "unsloth_fixed", "use_bfloat16", "torchscript",
    "gradient_checkpointing", "mlx_version", "license",
    /* only how it is computed */
    "use_cache", "pretraining_tp", "chunk_size_feed_forward", "return_dict", "output_attentions",
    "output_hidden_states", "tie_last_hidden_states", "use_return_dict", "keys_to_ignore_at_inference",
    /* token ids */
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id", "unk_token_id",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id",
    /* generation settings kept by old files */
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
    "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores", "suppress_tokens",
    "begin_suppress_tokens", "exponential_decay_length_penalty", "remove_invalid_values", "return_dict_in_generate",
    "tf_legacy_loss",
    /* GPT-2's classification heads; n_ctx repeats n_positions in old files */
    "summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout",
    "n_ctx", NULL};

/* Change what the model computes unless they have this value. */
typedef enum off_value { OFF_EMPTY /* null, false, 0, "" or an empty list */, OFF_ONE, OFF_TRUE } off_value;
static const struct {
  const char *key;
  off_value off;
} meaningful[] = {
    {"quantization_config", OFF_EMPTY},
    {"partial_rotary_factor", OFF_ONE},
    {"rotary_pct", OFF_ONE},
    {"rope_interleaved", OFF_EMPTY},
    {"use_mrope", OFF_EMPTY},
    {"alibi", OFF_EMPTY},
    {"no_rope_layers", OFF_EMPTY},
    {"no_rope_layer_interval", OFF_EMPTY},
    {"attn_logit_softcapping", OFF_EMPTY},
    {"final_logit_softcapping", OFF_EMPTY},
    {"query_pre_attn_scalar", OFF_EMPTY},
    {"attention_multiplier", OFF_ONE},
    {"embedding_multiplier", OFF_ONE},
    {"residual_multiplier", OFF_ONE},
    {"logits_scaling", OFF_ONE},
    {"scale_emb", OFF_ONE},
    {"scale_depth", OFF_ONE},
    {"use_qk_norm", OFF_EMPTY},
    {"qk_norm", OFF_EMPTY},
    {"qk_layernorm", OFF_EMPTY},
    {"use_parallel_residual", OFF_EMPTY},
    {"num_experts", OFF_EMPTY},
    {"num_local_experts", OFF_EMPTY},
    {"n_routed_experts", OFF_EMPTY},
    {"num_experts_per_tok", OFF_EMPTY},
    {"attention_chunk_size", OFF_EMPTY},
    {"use_bidirectional_attention", OFF_EMPTY},
    {"is_causal", OFF_TRUE},
    {"is_encoder_decoder", OFF_EMPTY},
    {"add_cross_attention", OFF_EMPTY},
    {"cross_attention_hidden_size", OFF_EMPTY},
    {"pruned_heads", OFF_EMPTY},
    {"per_layer_config", OFF_EMPTY},
    {"layer_types", OFF_EMPTY},
    {"attention_bias", OFF_EMPTY},
    {"mlp_bias", OFF_EMPTY},
    {"use_bias", OFF_EMPTY},
    {"num_nextn_predict_layers", OFF_EMPTY},
};

static bool listed(const char *const *keys, const char *key) {
  for (; *keys; keys++)
    if (strcmp(*keys, key) == 0) return true;
  return false;
}

static bool is_empty(const cJSON *value) {
  return cJSON_IsNull(value) || cJSON_IsFalse(value) || (cJSON_IsNumber(value) && value->valuedouble == 0) ||
         (cJSON_IsString(value) && value->valuestring[0] == 0) ||
         ((cJSON_IsArray(value) || cJSON_IsObject(value)) && value->child == NULL);
}

static bool is_off(const cJSON *value, off_value off) {
  if (is_empty(value)) return off == OFF_EMPTY || cJSON_IsNull(value);
  if (off == OFF_ONE) return cJSON_IsNumber(value) && value->valuedouble == 1;
  return off == OFF_TRUE && cJSON_IsTrue(value);
}

iso_status iso_config_check_keys(const iso_config_reader *reader, const char *const *read) {
  static const char *const means[] = {
      [OFF_EMPTY] = "leave it out", [OFF_ONE] = "only 1 is", [OFF_TRUE] = "only true is"};
  iso_string unknown = {0};
  iso_status status = ISO_OK;
  const cJSON *item;
  cJSON_ArrayForEach(item, reader->json) {
    const char *key = item->string;
    if (listed(read, key) || listed(harmless, key)) continue;
    size_t row = 0;
    while (row < ISO_COUNT(meaningful) && strcmp(meaningful[row].key, key) != 0) row++;
    if (row < ISO_COUNT(meaningful)) {
      if (is_off(item, meaningful[row].off)) continue;
      status = iso_config_refuse(reader, key, item, means[meaningful[row].off]);
      break;
    }
    if (!is_empty(item)) iso_string_printf(&unknown, "%s%s", unknown.length ? ", " : "", key);
  }
  if (status == ISO_OK && unknown.length)
    iso_warn("%s: keys that %s does not know are ignored: %s", reader->where, reader->architecture, unknown.data);
  iso_string_fini(&unknown);
  return status;
}
