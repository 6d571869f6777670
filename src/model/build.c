/* SPDX-License-Identifier: Apache-2.0
 *
 * build.c: from a config to a graph: the entry, and the pieces that architectures share.
 *
 * A builder file reads like the model's formula, because the pieces carry the first failure themselves
 * (builder->status) and do nothing after it. One builder function serves all three modes: the mode decides only how
 * attention sees the past and what the head yields.
 *
 * Invariants
 *  1. A parameter is declared where it is first used, so the flat order is the order of the forward pass.
 *  2. Graphs of one config have the same parameters in every mode, at the same offsets.
 *  3. Every position that the options allow has a row in the tables.
 */
#include "model/model.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- names and parameters ---- */

void iso_builder_scope(iso_builder *builder, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(builder->scope, sizeof builder->scope, format, list);
  va_end(list);
}

iso_id iso_builder_parameter(iso_builder *builder, const char *name, int64_t rows, int64_t columns, iso_init init,
                             double std, iso_decay_class decay_class) {
  if (builder->status != ISO_OK) return -1;
  char full[128];
  snprintf(full, sizeof full, "%s%s", builder->scope, name);
  const int64_t shape[] = {rows, columns};
  return iso_graph_parameter(builder->graph, full, columns > 0 ? 2 : 1, shape, init, std, decay_class);
}

/* "<name>.weight" or "<name>.bias". */
static iso_id parameter_of(iso_builder *builder, const char *name, const char *part, int64_t rows, int64_t columns,
                           iso_init init, double std, iso_decay_class decay_class) {
  char full[64];
  snprintf(full, sizeof full, "%s.%s", name, part);
  return iso_builder_parameter(builder, full, rows, columns, init, std, decay_class);
}

/* ---- nodes ---- */

static void append(iso_builder *builder, iso_op op, const iso_id *inputs, int input_count, const iso_attr *attributes,
                   int attribute_count, iso_id *outputs, int output_count) {
  for (int i = 0; i < output_count; i++) outputs[i] = -1;
  if (builder->status != ISO_OK) return;
  builder->status =
      iso_graph_node(builder->graph, op, inputs, input_count, attributes, attribute_count, outputs, output_count);
}

iso_id iso_builder_node(iso_builder *builder, iso_op op, const iso_id *inputs, int input_count,
                        const iso_attr *attributes, int attribute_count) {
  iso_id output;
  append(builder, op, inputs, input_count, attributes, attribute_count, &output, 1);
  return output;
}

iso_id iso_builder_rmsnorm(iso_builder *builder, iso_id x, const char *name, int64_t width) {
  const iso_id weight = parameter_of(builder, name, "weight", width, 0, ISO_INIT_ONE, 0, ISO_DECAY_NORM);
  const iso_attr eps = {ISO_ATTR_EPS, builder->config->norm_eps};
  const iso_id inputs[] = {x, weight};
  return iso_builder_node(builder, ISO_OP_RMSNORM, inputs, 2, &eps, 1);
}

iso_id iso_builder_layernorm(iso_builder *builder, iso_id x, const char *name, int64_t width) {
  const iso_id weight = parameter_of(builder, name, "weight", width, 0, ISO_INIT_ONE, 0, ISO_DECAY_NORM);
  const iso_id bias = parameter_of(builder, name, "bias", width, 0, ISO_INIT_ZERO, 0, ISO_DECAY_NORM);
  const iso_attr eps = {ISO_ATTR_EPS, builder->config->norm_eps};
  const iso_id inputs[] = {x, weight, bias};
  return iso_builder_node(builder, ISO_OP_LAYERNORM, inputs, 3, &eps, 1);
}

iso_id iso_builder_linear(iso_builder *builder, iso_id x, const char *name, int64_t in, int64_t out, int flags) {
  const bool transposed = (flags & ISO_LINEAR_TRANSPOSED) != 0;
  double std = builder->config->init_std;
  if (flags & ISO_LINEAR_RESIDUAL) std /= sqrt(2 * (double)builder->config->layers);
  iso_id inputs[] = {x, -1, -1};
  inputs[1] = parameter_of(builder, name, "weight", transposed ? in : out, transposed ? out : in, ISO_INIT_NORMAL, std,
                           ISO_DECAY_MATRIX);
  if (flags & ISO_LINEAR_BIAS)
    inputs[2] = parameter_of(builder, name, "bias", out, 0, ISO_INIT_ZERO, 0, ISO_DECAY_BIAS);
  const iso_attr attribute = {ISO_ATTR_TRANSPOSED, transposed};
  return iso_builder_node(builder, ISO_OP_LINEAR, inputs, 3, &attribute, 1);
}

void iso_builder_split3(iso_builder *builder, iso_id x, int64_t width, iso_id parts[3]) {
  const double w = (double)width;
  const iso_attr widths[] = {{ISO_ATTR_WIDTH0, w}, {ISO_ATTR_WIDTH1, w}, {ISO_ATTR_WIDTH2, w}};
  append(builder, ISO_OP_SPLIT, &x, 1, widths, 3, parts, 3);
}

iso_id iso_builder_add(iso_builder *builder, iso_id a, iso_id b) {
  const iso_id inputs[] = {a, b};
  return iso_builder_node(builder, ISO_OP_ADD, inputs, 2, NULL, 0);
}

/* ---- position and attention ---- */

static void declare_rope_tables(iso_builder *builder) {
  const iso_model_config *config = builder->config;
  const int64_t half = config->head_dim / 2;
  const int64_t rows =
      builder->options->mode == ISO_BUILD_CACHED ? builder->options->cache : builder->options->sequence;
  const size_t bytes = (size_t)rows * (size_t)half * sizeof(float);
  float *cos_table = iso_arena_alloc(builder->graph->arena, bytes);
  float *sin_table = iso_arena_alloc(builder->graph->arena, bytes);
  if (!cos_table || !sin_table) {
    builder->status = iso_fail(ISO_ERR_MEMORY, "no memory for rotary tables of %" PRId64 " positions", rows);
    return;
  }
  iso_rope_tables(config, rows, cos_table, sin_table);
  const int64_t shape[] = {rows, half};
  builder->cos_table = iso_graph_const(builder->graph, "rope.cos", ISO_F32, 2, shape, cos_table);
  builder->sin_table = iso_graph_const(builder->graph, "rope.sin", ISO_F32, 2, shape, sin_table);
}

iso_id iso_builder_rope(iso_builder *builder, iso_id x) {
  if (builder->status == ISO_OK && builder->cos_table < 0) declare_rope_tables(builder);
  const iso_attr attributes[] = {{ISO_ATTR_HEAD_DIM, (double)builder->config->head_dim}, {ISO_ATTR_INVERSE, 0}};
  const iso_id inputs[] = {x, builder->positions, builder->cos_table, builder->sin_table};
  return iso_builder_node(builder, ISO_OP_ROPE, inputs, 4, attributes, 2);
}

static iso_id declare_cache(iso_builder *builder, const char *which, int64_t layer) {
  if (builder->status != ISO_OK) return -1;
  char name[64];
  snprintf(name, sizeof name, "cache.%" PRId64 ".%s", layer, which);
  const int64_t shape[] = {builder->options->cache, builder->config->kv_heads * builder->config->head_dim};
  return iso_graph_cache(builder->graph, name, ISO_F32, 2, shape);
}

iso_id iso_builder_attention(iso_builder *builder, int64_t layer, iso_id q, iso_id k, iso_id v) {
  const iso_model_config *config = builder->config;
  const bool windowed = config->windowed && config->windowed[layer];
  const iso_attr attributes[] = {{ISO_ATTR_HEADS, (double)config->heads},
                                 {ISO_ATTR_KV_HEADS, (double)config->kv_heads},
                                 {ISO_ATTR_SCALE, 1 / sqrt((double)config->head_dim)},
                                 {ISO_ATTR_WINDOW, windowed ? (double)config->window : 0},
                                 {ISO_ATTR_BATCH, (double)builder->options->batch}};
  if (builder->options->mode == ISO_BUILD_CACHED) {
    const iso_id cache_k = declare_cache(builder, "k", layer), cache_v = declare_cache(builder, "v", layer);
    const iso_id inputs[] = {q, k, v, cache_k, cache_v};
    return iso_builder_node(builder, ISO_OP_ATTENTION_CACHED, inputs, 5, attributes, 4);
  }
  const iso_id inputs[] = {q, k, v, builder->segments};
  return iso_builder_node(builder, ISO_OP_ATTENTION, inputs, 4, attributes, 5);
}

/* ---- head ---- */

void iso_builder_head(iso_builder *builder, iso_id x, iso_id embedding) {
  const iso_model_config *config = builder->config;
  iso_id weight = embedding;
  if (!config->tied) {
    iso_builder_scope(builder, "%s", "");
    weight = iso_builder_parameter(builder, "lm_head.weight", config->vocabulary, config->width, ISO_INIT_NORMAL,
                                   config->init_std, ISO_DECAY_MATRIX);
  }
  const bool loss = builder->options->mode == ISO_BUILD_LOSS;
  const iso_attr stored = {ISO_ATTR_TRANSPOSED, 0};
  const iso_id inputs[] = {x, weight, builder->labels};
  iso_id output = loss ? iso_builder_node(builder, ISO_OP_LINEAR_CROSS_ENTROPY, inputs, 3, NULL, 0)
                       : iso_builder_node(builder, ISO_OP_LM_HEAD, inputs, 2, &stored, 1);
  if (builder->status != ISO_OK) return;
  iso_graph_rename(builder->graph, output, loss ? "losses" : "logits");
  iso_graph_output(builder->graph, output);
}

/* ---- entry ---- */

static iso_status check_options(const iso_model_config *config, const iso_build_options *options) {
  const int64_t sequence = options->sequence, batch = options->batch, cache = options->cache;
  const bool cached = options->mode == ISO_BUILD_CACHED;
  const int64_t limit = INT32_MAX; /* positions and rows are int32 */
  if (sequence < 1 || sequence > limit || batch < 1 || batch > limit || batch * sequence > limit)
    return iso_fail(ISO_ERR_CONFIG, "cannot build a model for %" PRId64 " sequences of %" PRId64 " tokens", batch,
                    sequence);
  if (cached && (batch != 1 || options->segments || cache < sequence || cache > limit))
    return iso_fail(ISO_ERR_CONFIG,
                    "cannot build a cached model: batch %" PRId64 " (must be 1), cache of %" PRId64
                    " rows for runs of %" PRId64 " tokens%s",
                    batch, cache, sequence, options->segments ? ", segments asked for" : "");
  const int64_t asked = cached ? cache : sequence;
  if (config->architecture->position_table && asked > config->positions)
    return iso_fail(ISO_ERR_CONFIG,
                    "%s has a table of %" PRId64 " positions, but %" PRId64
                    " are asked for; shorten the sequence or raise n_positions",
                    config->architecture->name, config->positions, asked);
  int64_t widest = config->vocabulary;
  if (config->inner > widest) widest = config->inner;
  if (3 * config->heads * config->head_dim > widest) widest = 3 * config->heads * config->head_dim;
  if ((double)widest * (double)(batch * sequence) > 70368744177664.0 /* 2^46, the graph's limit */)
    return iso_fail(ISO_ERR_CONFIG, "one tensor of %" PRId64 " rows and %" PRId64 " columns is too large",
                    batch * sequence, widest);
  return ISO_OK;
}

static void declare_inputs(iso_builder *builder) {
  const iso_build_options *options = builder->options;
  const int64_t shape[] = {builder->rows};
  builder->tokens = iso_graph_input(builder->graph, "tokens", ISO_I32, 1, shape);
  builder->positions = iso_graph_input(builder->graph, "positions", ISO_I32, 1, shape);
  if (options->segments) builder->segments = iso_graph_input(builder->graph, "segments", ISO_I32, 1, shape);
  if (options->mode == ISO_BUILD_LOSS) builder->labels = iso_graph_input(builder->graph, "labels", ISO_I32, 1, shape);
}

iso_status iso_model_build(const iso_model_config *config, const iso_build_options *options, iso_arena *arena,
                           iso_graph **out) {
  static const char *const names[] = {
      [ISO_BUILD_LOSS] = "loss", [ISO_BUILD_LOGITS] = "logits", [ISO_BUILD_CACHED] = "cached"};
  ISO_TRY(check_options(config, options));
  iso_builder builder = {.config = config,
                         .options = options,
                         .graph = iso_graph_new(arena, names[options->mode]),
                         .rows = options->batch * options->sequence,
                         .segments = -1,
                         .labels = -1,
                         .cos_table = -1,
                         .sin_table = -1};
  if (!builder.graph) return iso_fail(ISO_ERR_MEMORY, "no memory for the graph of %s", config->architecture->name);
  builder.graph->tokens = builder.rows;
  declare_inputs(&builder);
  config->architecture->build(&builder);
  ISO_TRY(builder.status);
  *out = builder.graph;
  return ISO_OK;
}

/* ---- counts ---- */

/* Sum over the parameters, embeddings weighted 0 or 1. */
static int64_t count(const iso_model_config *config, bool embeddings) {
  const iso_build_options options = {.mode = ISO_BUILD_LOSS, .batch = 1, .sequence = 1};
  int64_t sum = -1;
  iso_graph *graph;
  iso_arena *arena = iso_arena_create();
  if (arena && iso_model_build(config, &options, arena, &graph) == ISO_OK) {
    sum = 0;
    for (int i = 0; i < graph->parameter_count; i++)
      if (embeddings || graph->parameters[i].decay_class != ISO_DECAY_EMBEDDING) sum += graph->parameters[i].elements;
  }
  iso_arena_destroy(&arena);
  return sum;
}

int64_t iso_model_parameters(const iso_model_config *config) {
  return count(config, true);
}

int64_t iso_model_mfu_parameters(const iso_model_config *config) {
  int64_t sum = count(config, false);
  return sum < 0 || !config->tied ? sum : sum + config->vocabulary * config->width;
}

double iso_model_flop_per_token(const iso_model_config *config, int64_t sequence) {
  const double attention = (double)config->layers * (double)sequence * (double)(config->heads * config->head_dim);
  return 6 * (double)iso_model_mfu_parameters(config) + 6 * attention;
}
