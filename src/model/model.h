/* SPDX-License-Identifier: Apache-2.0
 *
 * model: architectures as graph builders, one file each, and the Hugging Face folder (config.json, *.safetensors) in
 * and out.
 *
 * Invariants
 *  1. A key of config.json that changes the mathematics is either implemented or refused by name and value; keys that
 *     do not are listed in config_keys.c; a key that nobody knows is named in a warning.
 *  2. Flat order = order in which the builder declares parameters: embeddings, layers from first to last, final norm,
 *     head.
 *  3. Training and inference programs come from the same builder function.
 *  4. A key that is absent has the value that transformers gives it for that architecture.
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
  /* positions: max_position_embeddings, n_positions (rows of GPT-2's position table) */
  int64_t vocabulary, width, inner, layers, heads, kv_heads, head_dim, positions;
  double norm_eps, init_std;
  bool tied, attention_bias /* of q, k, v */, output_bias /* of o_proj */, mlp_bias, qk_norm;
  int64_t window; /* sliding window in tokens, 0: none */
  bool *windowed; /* [layers] which layers use it; heap; NULL when window is 0 */
  int gelu_form;  /* gpt2: 0 erf, 1 tanh */
  iso_rope_kind rope_kind;
  double rope_theta, rope_factor, rope_low_freq, rope_high_freq;
  int64_t rope_original_positions;
  int64_t eos, bos; /* token ids, the first where the file lists several; -1: not stated */
  double dropout;   /* largest dropout in the file; reported, not applied */
  char *json;       /* the config as text, for export; heap */
} iso_model_config;

/* `path`: a config.json or a folder holding one. Keys as of transformers 4 and 5. UNSUPPORTED names architecture, key
 * and value; FORMAT a malformed value. On failure nothing is left to free. */
iso_status iso_model_config_read(const char *path, iso_model_config *config) ISO_MUST_CHECK;
/* The same keys from JSON (or YAML) parsed already. `where` names the source in errors. */
iso_status iso_model_config_parse(const iso_json *json, const char *where, iso_model_config *config) ISO_MUST_CHECK;
/* Named configurations for benches: "gpt2-124m", "llama-110m", "llama-30m". USAGE lists them when the name is unknown. */
iso_status iso_model_config_preset(const char *name, iso_model_config *config) ISO_MUST_CHECK;
/* A file's (a name with '/' or ".json", or one that is there), else the preset of that name. */
iso_status iso_model_config_open(const char *name, iso_model_config *config) ISO_MUST_CHECK;
void iso_model_config_fini(iso_model_config *config);

/* ---- config_read.c: typed keys with a range ------------------------------------------------------- */

typedef struct iso_config_reader {
  const iso_json *json;
  const char *where;        /* names the source in errors */
  const char *architecture; /* the same */
} iso_config_reader;
/* False for an absent key, true for a null. */
bool iso_config_has(const iso_config_reader *reader, const char *key);
/* Whole number in [minimum, maximum]; `absent` when the key is absent, `null` when it is null. */
iso_status iso_config_int(const iso_config_reader *reader, const char *key, int64_t absent, int64_t null,
                          int64_t minimum, int64_t maximum, int64_t *out) ISO_MUST_CHECK;
/* As above, but the key must be there. */
iso_status iso_config_required(const iso_config_reader *reader, const char *key, int64_t maximum,
                               int64_t *out) ISO_MUST_CHECK;
/* Number in [minimum, maximum]. */
iso_status iso_config_double(const iso_config_reader *reader, const char *key, double fallback, double minimum,
                             double maximum, double *out) ISO_MUST_CHECK;
iso_status iso_config_bool(const iso_config_reader *reader, const char *key, bool fallback, bool *out) ISO_MUST_CHECK;
/* "<where>: <architecture> with <key> <value> is not supported: <what is>". */
iso_status iso_config_refuse(const iso_config_reader *reader, const char *key, const iso_json *value,
                             const char *what_is) ISO_MUST_CHECK;
/* Largest of the dropouts under these NULL-terminated keys goes to config->dropout. */
iso_status iso_config_dropout(const iso_config_reader *reader, const char *const *keys,
                              iso_model_config *config) ISO_MUST_CHECK;

/* ---- config_keys.c: every key that is not read ----------------------------------------------------- */

/* Refuses keys with a meaning that this build lacks, warns once about keys that nobody knows. `read`: keys that the
 * architecture reads, NULL-terminated. */
iso_status iso_config_check_keys(const iso_config_reader *reader, const char *const *read) ISO_MUST_CHECK;

/* ---- rope.c ------------------------------------------------------------------------------------------ */

/* rope_theta + rope_scaling, or rope_parameters. */
iso_status iso_rope_parse(const iso_config_reader *reader, iso_model_config *config) ISO_MUST_CHECK;
/* Inverse frequencies [head_dim/2] and tables [rows, head_dim/2], with the roundings of transformers. */
void iso_rope_frequencies(const iso_model_config *config, float *frequencies);
void iso_rope_tables(const iso_model_config *config, int64_t rows, float *cos_table, float *sin_table);

/* ---- build.c: entry and shared pieces ---------------------------------------------------------------- */

typedef enum iso_build_mode {
  ISO_BUILD_LOSS,   /* inputs tokens, positions, [segments,] labels [batch*sequence] -> OUTPUT "losses" */
  ISO_BUILD_LOGITS, /* inputs tokens, positions [, segments] -> OUTPUT "logits" [batch*sequence, V] */
  ISO_BUILD_CACHED  /* inputs tokens, positions [sequence]; caches of `cache` rows -> OUTPUT "logits" [sequence, V];
                     * batch 1 */
} iso_build_mode;

typedef struct iso_build_options {
  iso_build_mode mode;
  int64_t batch, sequence, cache;
  bool segments; /* LOSS, LOGITS: a document mask is used, by an input "segments" */
} iso_build_options;

/* Inputs are int32 tensors named "tokens", "positions", "segments", "labels". Positions must be below `sequence`
 * (CACHED: below `cache`), for tables have that many rows. CONFIG when there are more positions than the model's table
 * has. */
iso_status iso_model_build(const iso_model_config *config, const iso_build_options *options, iso_arena *arena,
                           iso_graph **out) ISO_MUST_CHECK;
/* Parameters: total, and N of the MFU formula (without position embeddings and without an input embedding that is only
 * gathered). -1 when out of memory. */
int64_t iso_model_parameters(const iso_model_config *config);
int64_t iso_model_mfu_parameters(const iso_model_config *config);
/* (6 N + 6 L T C) FLOP per token, C = heads * head_dim. */
double iso_model_flop_per_token(const iso_model_config *config, int64_t sequence);

/* A graph being built. After the first failure every call does nothing and returns -1, so builders need no checks. */
typedef struct iso_builder {
  const iso_model_config *config;
  const iso_build_options *options;
  iso_graph *graph;
  iso_status status;
  int64_t rows;                               /* N = batch * sequence */
  iso_id tokens, positions, segments, labels; /* inputs; -1: not in this mode */
  iso_id cos_table, sin_table;                /* set by the first rope; -1 before */
  char scope[64];                             /* prefix of parameter names */
} iso_builder;

/* Names of parameters declared from here on begin with this. */
void iso_builder_scope(iso_builder *builder, const char *format, ...) ISO_PRINTF(2, 3);
/* Declares "<scope><name>"; columns 0: a vector. */
iso_id iso_builder_parameter(iso_builder *builder, const char *name, int64_t rows, int64_t columns, iso_init init,
                             double std, iso_decay_class decay_class);
/* Appends a node, returns its first output. */
iso_id iso_builder_node(iso_builder *builder, iso_op op, const iso_id *inputs, int input_count,
                        const iso_attr *attributes, int attribute_count);
/* Declares "<name>.weight" [C] (and .bias) and normalises groups of `width` columns of x. */
iso_id iso_builder_rmsnorm(iso_builder *builder, iso_id x, const char *name, int64_t width);
iso_id iso_builder_layernorm(iso_builder *builder, iso_id x, const char *name, int64_t width);

enum {
  ISO_LINEAR_BIAS = 1,
  ISO_LINEAR_TRANSPOSED = 2 /* stored [in, out] */,
  ISO_LINEAR_RESIDUAL = 4 /* smaller init */
};
/* Declares "<name>.weight" (and .bias): x [N, in] -> [N, out]. */
iso_id iso_builder_linear(iso_builder *builder, iso_id x, const char *name, int64_t in, int64_t out, int flags);
/* Three parts of `width` columns each. */
void iso_builder_split3(iso_builder *builder, iso_id x, int64_t width, iso_id parts[3]);
/* Rotates every head of x. */
iso_id iso_builder_rope(iso_builder *builder, iso_id x);
/* Causal attention of one layer, with that layer's window, over the caches in CACHED mode. */
iso_id iso_builder_attention(iso_builder *builder, int64_t layer, iso_id q, iso_id k, iso_id v);
iso_id iso_builder_add(iso_builder *builder, iso_id a, iso_id b);
/* Ends the graph: loss or logits. `embedding`: the head's weight when the model is tied, else "lm_head.weight" is
 * declared. */
void iso_builder_head(iso_builder *builder, iso_id x, iso_id embedding);

/* ---- architectures.c: the table ---------------------------------------------------------------------- */

/* A row. What a parse function reads, its build function honours; a new architecture is a row and a builder file. */
struct iso_architecture {
  const char *name;       /* "LlamaForCausalLM" */
  const char *model_type; /* "llama" */
  iso_status (*parse)(const iso_architecture *architecture, const iso_config_reader *reader, iso_model_config *config);
  void (*build)(iso_builder *builder);
  const char *prefix;         /* of all parameters but the head's; files may lack it */
  const char *const *ignored; /* endings of stored tensors that are not parameters, NULL-terminated */
  const char *const *keys;    /* keys that parse reads, NULL-terminated */
  /* transformers' value of keys that are absent; 0: derived (heads, width / heads) */
  int64_t default_kv_heads, default_head_dim, default_positions, default_window;
  bool default_tied;
  bool position_table; /* learned positions: no position beyond the table */
  /* the decoder's variants */
  enum { ISO_BIAS_NONE, ISO_BIAS_KEY /* attention_bias: q, k, v, o */, ISO_BIAS_QKV /* always q, k, v */ } bias;
  enum { ISO_WINDOW_NONE, ISO_WINDOW_ALL, ISO_WINDOW_LAYERS } window;
  bool mlp_bias_key, qk_norm;
};
const iso_architecture *iso_architecture_find(const char *name);          /* NULL: unknown */
const iso_architecture *iso_architecture_of_type(const char *model_type); /* the same, by model_type */
const char *iso_architecture_name(const iso_architecture *architecture);
/* Appends the names of all rows, separated by commas. */
void iso_architecture_list(iso_string *out);

/* llama.c, gpt2.c */
enum { ISO_WIDTH_LIMIT = 1 << 24, ISO_INNER_LIMIT = 1 << 26, ISO_LAYER_LIMIT = 10000 };
iso_status iso_llama_parse(const iso_architecture *architecture, const iso_config_reader *reader,
                           iso_model_config *config) ISO_MUST_CHECK;
void iso_llama_build(iso_builder *builder);
iso_status iso_gpt2_parse(const iso_architecture *architecture, const iso_config_reader *reader,
                          iso_model_config *config) ISO_MUST_CHECK;
void iso_gpt2_build(iso_builder *builder);

/* ---- init.c, weights.c, export.c ----------------------------------------------------------------------- */

/* Fills the flat master array: normal / zero / one from (seed, parameter index, element), on a team or (NULL) alone. */
void iso_model_init(const iso_graph *graph, uint64_t seed, float *master, iso_team *team);
/* Reads *.safetensors of a Hugging Face folder into the flat master array, checking names and shapes (missing,
 * unexpected: one line with the first name and the count) and that every value is finite. Known harmless extras (rotary
 * inv_freq, GPT-2 attention masks, lm_head.weight equal to a tied embedding) are accepted; the architecture's prefix
 * ("transformer.", "model.") may be absent. MISMATCH, FORMAT. */
iso_status iso_model_import(const iso_model_config *config, const iso_graph *graph, const char *path,
                            float *master) ISO_MUST_CHECK;
/* Writes model.safetensors (float32 or bfloat16), generation_config.json and config.json, in this order, into `folder`
 * (created). config->eos and config->bos are written as they are then. Loads in transformers 4 and 5. */
iso_status iso_model_export(const iso_model_config *config, const iso_graph *graph, const float *master,
                            iso_dtype dtype, const char *folder) ISO_MUST_CHECK;

#endif
