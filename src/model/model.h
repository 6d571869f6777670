/* SPDX-License-Identifier: Apache-2.0
 *
 * model: architectures as graph builders, one file each, and the Hugging Face folder (config.json, *.safetensors) in and out.
 *
 * Invariants
 *  1. A key of config.json that changes the mathematics is either implemented or refused by name and value; keys that do not (token ids, dropout at 0, cache flags) are listed in config.c.
 *  2. Flat order = order in which the builder declares parameters: embeddings, layers from first to last, final norm, head.
 *  3. Training and inference programs come from the same builder function.
 */
#ifndef ISO_MODEL_H
#define ISO_MODEL_H

#include "graph/graph.h"
#include "io/io.h"

/* ---- config.c ------------------------------------------------------------------------------------ */

typedef enum iso_rope_kind { ISO_ROPE_DEFAULT, ISO_ROPE_LINEAR, ISO_ROPE_LLAMA3 } iso_rope_kind;
typedef struct iso_architecture iso_architecture;

typedef struct iso_model_config {
  const iso_architecture *architecture;
  int64_t vocabulary, width, inner, layers, heads, kv_heads, head_dim, positions; /* positions: max_position_embeddings */
  double norm_eps, init_std;
  bool tied, attention_bias, output_bias /* of o_proj */, mlp_bias, qk_norm;
  int64_t window; /* 0: none */
  int64_t window_from_layer; /* Qwen2: layers >= max_window_layers use the window */
  int gelu_form;  /* gpt2 */
  double rope_theta, rope_factor, rope_low_freq, rope_high_freq;
  int64_t rope_original_positions;
  iso_rope_kind rope_kind;
  int64_t eos, bos; /* token ids, -1: not stated */
  double dropout;   /* largest dropout in the file; reported, not applied */
  char *json;       /* the config as text, for export; heap */
} iso_model_config;

/* `source`: a config.json, a folder holding one, or NULL with `json` given. Keys as of transformers 4 and 5. UNSUPPORTED names architecture, key and value. */
iso_status iso_model_config_read(const char *path, iso_model_config *config) ISO_MUST_CHECK;
iso_status iso_model_config_parse(const iso_json *json, const char *where, iso_model_config *config) ISO_MUST_CHECK;
void iso_model_config_fini(iso_model_config *config);
const char *iso_architecture_name(const iso_architecture *architecture); /* "LlamaForCausalLM" */

/* ---- build.c: shared pieces and entry ------------------------------------------------------------- */

typedef enum iso_build_mode {
  ISO_BUILD_LOSS,   /* inputs tokens, positions, segments, labels [batch*sequence] -> OUTPUT "losses" */
  ISO_BUILD_LOGITS, /* inputs tokens, positions, segments -> OUTPUT "logits" [batch*sequence, V] */
  ISO_BUILD_CACHED  /* inputs tokens, positions [sequence]; caches of `cache` rows -> OUTPUT "logits" [sequence, V]; batch 1 */
} iso_build_mode;

typedef struct iso_build_options {
  iso_build_mode mode;
  int64_t batch, sequence, cache;
  bool segments; /* LOSS, LOGITS: a document mask is used */
} iso_build_options;

/* Inputs are int32 tensors named "tokens", "positions", "segments", "labels". */
iso_status iso_model_build(const iso_model_config *config, const iso_build_options *options, iso_arena *arena, iso_graph **out) ISO_MUST_CHECK;
/* Parameters: total, and N of the MFU formula (without position embeddings and without an input embedding that is only gathered). */
int64_t iso_model_parameters(const iso_model_config *config);
int64_t iso_model_mfu_parameters(const iso_model_config *config);
/* (6 N + 6 L T C) FLOP per token. */
double iso_model_flop_per_token(const iso_model_config *config, int64_t sequence);

/* ---- weights.c -------------------------------------------------------------------------------------- */

/* Fills the flat master array: normal / zero / one from (seed, parameter index, element). */
void iso_model_init(const iso_graph *graph, uint64_t seed, float *master);
/* Reads *.safetensors of a Hugging Face folder into the flat master array, checking names and shapes (missing, unexpected: one line with the first name and the count). Known harmless extras
 * (rotary inv_freq, GPT-2 attention masks, lm_head.weight equal to tied embedding) are accepted; a "transformer."/"model." prefix may be absent. */
iso_status iso_model_import(const iso_model_config *config, const iso_graph *graph, const char *path, float *master) ISO_MUST_CHECK;
/* Writes config.json, generation_config.json and model.safetensors (float32, or bfloat16 when `dtype` says so) into `folder` (created). Loads in transformers. */
iso_status iso_model_export(const iso_model_config *config, const iso_graph *graph, const float *master, iso_dtype dtype, const char *folder) ISO_MUST_CHECK;

#endif
