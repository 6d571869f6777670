/* SPDX-License-Identifier: Apache-2.0
 *
 * models: GPT-2-like and Llama-like graphs for the tests of passes (src/model is not linked here). Header-only: the
 * functions are small and each test program uses them in its own way.
 */
#ifndef ISO_TESTS_PASSES_MODELS_H
#define ISO_TESTS_PASSES_MODELS_H

#include "passes/passes.h"

#include <math.h>

typedef struct shape {
  int64_t layers, width, inner, heads, kv_heads, vocabulary, batch, sequence;
  bool tied, qk_norm, segments;
} shape;

enum { MODE_LOSS, MODE_LOGITS, MODE_CACHED };

/* Set when a builder call failed; the tests assert that it did not. */
static iso_status models_status;

static void must(iso_status status) {
  if (status != ISO_OK) models_status = status;
}

static iso_id weight(iso_graph *g, const char *layer, const char *name, int64_t rows, int64_t cols, iso_init init,
                     iso_decay_class decay_class) {
  const int64_t dims[2] = {rows, cols};
  return iso_graph_parameter(g, iso_arena_printf(g->arena, "%s%s", layer, name), cols > 0 ? 2 : 1, dims, init, 0.02,
                             decay_class);
}

static iso_id one(iso_graph *g, iso_op op, const iso_id *in, int count, const iso_attr *attr, int attrs) {
  iso_id out = -1;
  must(iso_graph_node(g, op, in, count, attr, attrs, &out, 1));
  return out;
}

static iso_id linear(iso_graph *g, iso_id x, iso_id w, iso_id b, bool transposed) {
  const iso_id in[3] = {x, w, b};
  const iso_attr attr = {ISO_ATTR_TRANSPOSED, transposed};
  return one(g, ISO_OP_LINEAR, in, 3, &attr, 1);
}

static iso_id add(iso_graph *g, iso_id a, iso_id b) {
  const iso_id in[2] = {a, b};
  return one(g, ISO_OP_ADD, in, 2, NULL, 0);
}

static iso_id embedding(iso_graph *g, iso_id table, iso_id ids) {
  const iso_id in[2] = {table, ids};
  return one(g, ISO_OP_EMBEDDING, in, 2, NULL, 0);
}

static iso_id rmsnorm(iso_graph *g, iso_id x, iso_id w) {
  const iso_id in[2] = {x, w};
  const iso_attr eps = {ISO_ATTR_EPS, 1e-5};
  return one(g, ISO_OP_RMSNORM, in, 2, &eps, 1);
}

static iso_id layernorm(iso_graph *g, const char *layer, const char *name, iso_id x, int64_t width) {
  iso_id w = weight(g, layer, iso_arena_printf(g->arena, "%s.weight", name), width, 0, ISO_INIT_ONE, ISO_DECAY_NORM);
  iso_id b = weight(g, layer, iso_arena_printf(g->arena, "%s.bias", name), width, 0, ISO_INIT_ZERO, ISO_DECAY_BIAS);
  const iso_id in[3] = {x, w, b};
  const iso_attr eps = {ISO_ATTR_EPS, 1e-5};
  return one(g, ISO_OP_LAYERNORM, in, 3, &eps, 1);
}

static iso_id attention(iso_graph *g, const shape *s, iso_id q, iso_id k, iso_id v, iso_id segments, int mode,
                        int layer) {
  int64_t width = s->width / s->heads;
  const iso_attr attr[5] = {{ISO_ATTR_HEADS, (double)s->heads},
                            {ISO_ATTR_KV_HEADS, (double)s->kv_heads},
                            {ISO_ATTR_SCALE, 1 / sqrt((double)width)},
                            {ISO_ATTR_WINDOW, 0},
                            {ISO_ATTR_BATCH, (double)s->batch}};
  if (mode == MODE_CACHED) {
    const int64_t dims[2] = {s->sequence * 4, s->kv_heads * width};
    iso_id ck = iso_graph_cache(g, iso_arena_printf(g->arena, "cache.%d.k", layer), ISO_F32, 2, dims);
    iso_id cv = iso_graph_cache(g, iso_arena_printf(g->arena, "cache.%d.v", layer), ISO_F32, 2, dims);
    const iso_id in[5] = {q, k, v, ck, cv};
    return one(g, ISO_OP_ATTENTION_CACHED, in, 5, attr, 4);
  }
  const iso_id in[4] = {q, k, v, segments};
  return one(g, ISO_OP_ATTENTION, in, 4, attr, 5);
}

static void head(iso_graph *g, iso_id x, iso_id w, iso_id labels, int mode) {
  const iso_id in[3] = {x, w, labels};
  iso_id out =
      one(g, mode == MODE_LOSS ? ISO_OP_LINEAR_CROSS_ENTROPY : ISO_OP_LM_HEAD, in, mode == MODE_LOSS ? 3 : 2, NULL, 0);
  iso_graph_rename(g, out, mode == MODE_LOSS ? "losses" : "logits");
  iso_graph_output(g, out);
}

static iso_graph *build_gpt2(iso_arena *arena, const shape *s, int mode) {
  iso_graph *g = iso_graph_new(arena, "gpt2");
  int64_t n = s->batch * s->sequence, c = s->width;
  g->tokens = n;
  iso_id tokens = iso_graph_input(g, "tokens", ISO_I32, 1, &n);
  iso_id positions = iso_graph_input(g, "positions", ISO_I32, 1, &n);
  iso_id segments = s->segments ? iso_graph_input(g, "segments", ISO_I32, 1, &n) : -1;
  iso_id labels = mode == MODE_LOSS ? iso_graph_input(g, "labels", ISO_I32, 1, &n) : -1;
  iso_id wte = weight(g, "", "wte.weight", s->vocabulary, c, ISO_INIT_NORMAL, ISO_DECAY_EMBEDDING);
  iso_id wpe = weight(g, "", "wpe.weight", s->sequence, c, ISO_INIT_NORMAL, ISO_DECAY_EMBEDDING);
  iso_id x = add(g, embedding(g, wte, tokens), embedding(g, wpe, positions));
  for (int i = 0; i < s->layers; i++) {
    const char *l = iso_arena_printf(arena, "h.%d.", i);
    iso_id h = layernorm(g, l, "ln_1", x, c), part[3] = {-1, -1, -1};
    iso_id w = weight(g, l, "attn.c_attn.weight", c, 3 * c, ISO_INIT_NORMAL, ISO_DECAY_MATRIX);
    iso_id b = weight(g, l, "attn.c_attn.bias", 3 * c, 0, ISO_INIT_ZERO, ISO_DECAY_BIAS);
    iso_id qkv = linear(g, h, w, b, true);
    const iso_attr widths[3] = {
        {ISO_ATTR_WIDTH0, (double)c}, {ISO_ATTR_WIDTH1, (double)c}, {ISO_ATTR_WIDTH2, (double)c}};
    must(iso_graph_node(g, ISO_OP_SPLIT, &qkv, 1, widths, 3, part, 3));
    iso_id o = attention(g, s, part[0], part[1], part[2], segments, mode, i);
    w = weight(g, l, "attn.c_proj.weight", c, c, ISO_INIT_NORMAL, ISO_DECAY_MATRIX);
    b = weight(g, l, "attn.c_proj.bias", c, 0, ISO_INIT_ZERO, ISO_DECAY_BIAS);
    x = add(g, x, linear(g, o, w, b, true));
    h = layernorm(g, l, "ln_2", x, c);
    w = weight(g, l, "mlp.c_fc.weight", c, s->inner, ISO_INIT_NORMAL, ISO_DECAY_MATRIX);
    b = weight(g, l, "mlp.c_fc.bias", s->inner, 0, ISO_INIT_ZERO, ISO_DECAY_BIAS);
    h = linear(g, h, w, b, true);
    const iso_attr form = {ISO_ATTR_FORM, 1};
    h = one(g, ISO_OP_GELU, &h, 1, &form, 1);
    w = weight(g, l, "mlp.c_proj.weight", s->inner, c, ISO_INIT_NORMAL, ISO_DECAY_MATRIX);
    b = weight(g, l, "mlp.c_proj.bias", c, 0, ISO_INIT_ZERO, ISO_DECAY_BIAS);
    x = add(g, x, linear(g, h, w, b, true));
  }
  head(g, layernorm(g, "", "ln_f", x, c), wte, labels, mode);
  return g;
}

static iso_graph *build_llama(iso_arena *arena, const shape *s, int mode) {
  iso_graph *g = iso_graph_new(arena, "llama");
  int64_t n = s->batch * s->sequence, c = s->width, d = c / s->heads, kv = s->kv_heads * d;
  g->tokens = n;
  iso_id tokens = iso_graph_input(g, "tokens", ISO_I32, 1, &n);
  iso_id positions = iso_graph_input(g, "positions", ISO_I32, 1, &n);
  iso_id segments = s->segments ? iso_graph_input(g, "segments", ISO_I32, 1, &n) : -1;
  iso_id labels = mode == MODE_LOSS ? iso_graph_input(g, "labels", ISO_I32, 1, &n) : -1;
  const int64_t table[2] = {s->sequence * 4, d / 2};
  iso_id cos_table = iso_graph_const(g, "rope.cos", ISO_F32, 2, table, NULL);
  iso_id sin_table = iso_graph_const(g, "rope.sin", ISO_F32, 2, table, NULL);
  iso_id wte = weight(g, "", "embed_tokens.weight", s->vocabulary, c, ISO_INIT_NORMAL, ISO_DECAY_EMBEDDING);
  iso_id x = embedding(g, wte, tokens);
  const iso_attr rope[2] = {{ISO_ATTR_HEAD_DIM, (double)d}, {ISO_ATTR_INVERSE, 0}};
  for (int i = 0; i < s->layers; i++) {
    const char *l = iso_arena_printf(arena, "layers.%d.", i);
    iso_id h = rmsnorm(g, x, weight(g, l, "input_layernorm.weight", c, 0, ISO_INIT_ONE, ISO_DECAY_NORM));
    iso_id q = linear(g, h, weight(g, l, "q_proj.weight", c, c, ISO_INIT_NORMAL, ISO_DECAY_MATRIX), -1, false);
    iso_id k = linear(g, h, weight(g, l, "k_proj.weight", kv, c, ISO_INIT_NORMAL, ISO_DECAY_MATRIX), -1, false);
    iso_id v = linear(g, h, weight(g, l, "v_proj.weight", kv, c, ISO_INIT_NORMAL, ISO_DECAY_MATRIX), -1, false);
    if (s->qk_norm) {
      q = rmsnorm(g, q, weight(g, l, "q_norm.weight", d, 0, ISO_INIT_ONE, ISO_DECAY_NORM));
      k = rmsnorm(g, k, weight(g, l, "k_norm.weight", d, 0, ISO_INIT_ONE, ISO_DECAY_NORM));
    }
    const iso_id rq[4] = {q, positions, cos_table, sin_table}, rk[4] = {k, positions, cos_table, sin_table};
    q = one(g, ISO_OP_ROPE, rq, 4, rope, 2);
    k = one(g, ISO_OP_ROPE, rk, 4, rope, 2);
    iso_id o = attention(g, s, q, k, v, segments, mode, i);
    x = add(g, x, linear(g, o, weight(g, l, "o_proj.weight", c, c, ISO_INIT_NORMAL, ISO_DECAY_MATRIX), -1, false));
    h = rmsnorm(g, x, weight(g, l, "post_attention_layernorm.weight", c, 0, ISO_INIT_ONE, ISO_DECAY_NORM));
    iso_id gate =
        linear(g, h, weight(g, l, "gate_proj.weight", s->inner, c, ISO_INIT_NORMAL, ISO_DECAY_MATRIX), -1, false);
    iso_id up = linear(g, h, weight(g, l, "up_proj.weight", s->inner, c, ISO_INIT_NORMAL, ISO_DECAY_MATRIX), -1, false);
    const iso_id pair[2] = {gate, up};
    h = one(g, ISO_OP_SWIGLU, pair, 2, NULL, 0);
    x = add(g, x,
            linear(g, h, weight(g, l, "down_proj.weight", c, s->inner, ISO_INIT_NORMAL, ISO_DECAY_MATRIX), -1, false));
  }
  iso_id h = rmsnorm(g, x, weight(g, "", "norm.weight", c, 0, ISO_INIT_ONE, ISO_DECAY_NORM));
  iso_id w = s->tied ? wte : weight(g, "", "lm_head.weight", s->vocabulary, c, ISO_INIT_NORMAL, ISO_DECAY_MATRIX);
  head(g, h, w, labels, mode);
  return g;
}

#endif
