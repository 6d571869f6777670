/* SPDX-License-Identifier: Apache-2.0
 *
 * products: the part of the fuse pass for products whose result goes to a row kernel and, but for the backward pass,
 * nowhere else: gate|up and SwiGLU; q|k|v (or q and k, with biases), norms of heads and RoPE; a linear and GELU. The
 * fused op applies the row kernel to each part of the product as soon as it is complete, while it is in cache.
 *
 *   y = linear_joint(x, Wq, Wk, Wv); q, k, v = split(y); rope(q); rope(k)  ->  y = linear_joint_rope(...); split(y)
 *
 * Where the row kernel worked in place, it does so still (rope); where the backward pass reads what it worked on (gate,
 * up, GELU's input, q and k before their norms), that stays an output.
 *
 * Invariants
 *  1. Those of fuse.c.
 *  2. No value is changed under a reader: what is rotated in place has no reader but its rope.
 */
#include "passes/passes.h"

/* Columns of a packed panel in the widest tier: each of two halves of a product ends in a panel of its own. */
#define PANEL_COLS 32
/* Columns that so come to be multiplied for nothing, at most: one in so many. */
#define WASTE_SHARE 100

/* The parameter that a product multiplies with. */
static const char *place_of(const iso_graph *graph, const iso_node *product) {
  const iso_tensor *w = &graph->tensors[product->inputs[1]];
  const int at = iso_space_is_flat(w->space) ? iso_parameter_at(graph, w->offset) : graph->parameter_count;
  const bool found = at < graph->parameter_count && graph->parameters[at].offset == w->offset;
  return found ? graph->parameters[at].name : w->name;
}

static bool is_transient(const iso_graph *graph, iso_id id) {
  return graph->tensors[id].space == ISO_SPACE_TRANSIENT;
}

static void set_attribute(iso_node *node, iso_attribute key, double value) {
  node->has_attribute[key] = true;
  node->attributes[key] = value;
}

/* A node of this op, without attributes, in place of node `at`; operands are added by the caller. */
static iso_node node_at(const iso_graph *graph, int at, iso_op op) {
  iso_node node = {.op = op, .phase = graph->nodes[at].phase};
  node.input_count = iso_op_input_count(op);
  node.output_count = iso_op_output_count(op);
  for (int i = 0; i < node.input_count; i++) node.inputs[i] = -1;
  for (int i = 0; i < node.output_count; i++) node.outputs[i] = -1;
  return node;
}

static void put(iso_fuser *f, int at, const iso_node *node) {
  f->graph->nodes[at] = *node;
  for (int i = 0; i < node->output_count; i++) {
    if (node->outputs[i] >= 0) f->graph->tensors[node->outputs[i]].producer = at;
  }
}

/* ---- SwiGLU ---- */

/* gate and up are the halves of the product at p: why not fused with the swiglu at s, or NULL. */
static const char *swiglu_hindrance(iso_fuser *f, int p, int s) {
  iso_graph *graph = f->graph;
  const iso_node *product = &graph->nodes[p], *swiglu = &graph->nodes[s];
  if (product->op == ISO_OP_LINEAR_JOINT_SWIGLU) return "another swiglu of the same product is fused with it";
  if (product->op != ISO_OP_LINEAR_JOINT) return "gate and up are products of their own";
  if (product->inputs[3] >= 0) return "gate and up are not all of the product";
  if (product->phase != swiglu->phase) return "product and swiglu run in different phases";
  if (!is_transient(graph, product->outputs[0]) || !is_transient(graph, swiglu->outputs[0]))
    return "the result is kept elsewhere";
  const int64_t half = graph->tensors[swiglu->inputs[0]].shape[1];
  const int64_t own = 2 * ((half + PANEL_COLS - 1) / PANEL_COLS), joint = (2 * half + PANEL_COLS - 1) / PANEL_COLS;
  if ((own - joint) * WASTE_SHARE > joint)
    return iso_arena_printf(graph->arena, "halves of %lld columns fill %lld panels of %d, both together %lld",
                            (long long)half, (long long)own, PANEL_COLS, (long long)joint);
  return iso_fusion_declined(graph, ISO_FUSION_SWIGLU, product->outputs[0]);
}

static iso_status fuse_swiglu(iso_fuser *f, int s) {
  iso_graph *graph = f->graph;
  const iso_node swiglu = graph->nodes[s];
  int p = graph->tensors[swiglu.inputs[0]].producer;
  if (p < 0) return ISO_OK;
  if (graph->nodes[p].op == ISO_OP_SPLIT) {
    const iso_node *split = &graph->nodes[p];
    if (split->outputs[0] != swiglu.inputs[0] || split->outputs[1] != swiglu.inputs[1]) return ISO_OK;
    p = graph->tensors[split->inputs[0]].producer;
    if (p < 0) return ISO_OK;
  }
  const iso_node product = graph->nodes[p];
  if (product.op != ISO_OP_LINEAR && product.op != ISO_OP_LINEAR_JOINT && product.op != ISO_OP_LINEAR_JOINT_SWIGLU)
    return ISO_OK;
  const char *cause = swiglu_hindrance(f, p, s);
  ISO_TRY(iso_fusion_note(graph, ISO_FUSION_SWIGLU, place_of(graph, &product), cause));
  if (cause != NULL) return ISO_OK;
  iso_node node = node_at(graph, p, ISO_OP_LINEAR_JOINT_SWIGLU);
  for (int i = 0; i < 3; i++) node.inputs[i] = product.inputs[i];
  node.outputs[0] = swiglu.outputs[0];
  node.outputs[1] = product.outputs[0];
  put(f, p, &node);
  f->gone[s] = true;
  return ISO_OK;
}

/* ---- GELU ---- */

static const char *gelu_hindrance(iso_fuser *f, int p, int g) {
  iso_graph *graph = f->graph;
  const iso_node *product = &graph->nodes[p], *gelu = &graph->nodes[g];
  if (product->op == ISO_OP_LINEAR_GELU) return "another gelu of the same product is fused with it";
  if (product->phase != gelu->phase) return "product and gelu run in different phases";
  if (!is_transient(graph, product->outputs[0]) || !is_transient(graph, gelu->outputs[0]))
    return "the result is kept elsewhere";
  return iso_fusion_declined(graph, ISO_FUSION_GELU, product->outputs[0]);
}

static iso_status fuse_gelu(iso_fuser *f, int g) {
  iso_graph *graph = f->graph;
  const iso_node gelu = graph->nodes[g];
  const iso_id y = gelu.inputs[0];
  const int p = graph->tensors[y].producer;
  if (p < 0 || (graph->nodes[p].op != ISO_OP_LINEAR && graph->nodes[p].op != ISO_OP_LINEAR_GELU)) return ISO_OK;
  const iso_node product = graph->nodes[p];
  const char *cause = gelu_hindrance(f, p, g);
  ISO_TRY(iso_fusion_note(graph, ISO_FUSION_GELU, place_of(graph, &product), cause));
  if (cause != NULL) return ISO_OK;
  iso_node node = node_at(graph, p, ISO_OP_LINEAR_GELU);
  for (int i = 0; i < 3; i++) node.inputs[i] = product.inputs[i];
  set_attribute(&node, ISO_ATTR_TRANSPOSED, product.attributes[ISO_ATTR_TRANSPOSED]);
  set_attribute(&node, ISO_ATTR_FORM, gelu.attributes[ISO_ATTR_FORM]);
  node.outputs[0] = gelu.outputs[0];
  if (f->readers[y] > 1) {
    node.outputs[1] = y;
  } else {
    graph->tensors[y].producer = -1;
  }
  put(f, p, &node);
  f->gone[g] = true;
  return ISO_OK;
}

/* ---- RoPE ---- */

/* How one part of a product is rotated: split or linear -> [norm ->] rope. */
typedef struct rotated {
  iso_id raw;     /* what the product made */
  int norm, rope; /* nodes; -1: none */
} rotated;

/* The first node of this op that reads id as its input 0, if that is a forward one; -1: none. */
static int reader(const iso_fuser *f, iso_id id, iso_op op) {
  const iso_graph *graph = f->graph;
  for (int n = graph->tensors[id].producer + 1; n < graph->node_count; n++) {
    const iso_node *node = &graph->nodes[n];
    if (node->op == op && node->inputs[0] == id && !f->gone[n] && node->attributes[ISO_ATTR_INVERSE] == 0) return n;
  }
  return -1;
}

static rotated rotation_of(const iso_fuser *f, iso_id raw) {
  rotated r = {.raw = raw, .norm = -1, .rope = reader(f, raw, ISO_OP_ROPE)};
  if (r.rope >= 0) return r;
  r.norm = reader(f, raw, ISO_OP_RMSNORM);
  if (r.norm >= 0) r.rope = reader(f, f->graph->nodes[r.norm].outputs[0], ISO_OP_ROPE);
  return r;
}

/* Why a part cannot be rotated where the product at p is made, or NULL. */
static const char *part_hindrance(const iso_fuser *f, int p, const rotated *r) {
  const iso_graph *graph = f->graph;
  const iso_node *rope = &graph->nodes[r->rope];
  if (rope->phase != graph->nodes[p].phase) return "product and rope run in different phases";
  if (!is_transient(graph, r->raw) || !is_transient(graph, rope->outputs[0])) return "the result is kept elsewhere";
  if (f->readers[rope->inputs[0]] > 1) return "what is rotated has another reader";
  if (r->norm < 0) return NULL;
  const iso_node *norm = &graph->nodes[r->norm];
  if (norm->phase != rope->phase || !is_transient(graph, norm->outputs[0]))
    return "the norm's result is kept elsewhere";
  if (graph->tensors[norm->inputs[1]].shape[0] != (int64_t)rope->attributes[ISO_ATTR_HEAD_DIM])
    return "the norm is not one of heads";
  return NULL;
}

static const char *joint_hindrance(iso_fuser *f, int p, const rotated *q, const rotated *k) {
  iso_graph *graph = f->graph;
  const iso_node *product = &graph->nodes[p];
  if (f->readers[product->outputs[0]] > 1) return "the product has another reader";
  if (k->rope < 0) return "the product's second part is not rotated";
  const char *cause = part_hindrance(f, p, q);
  if (cause == NULL) cause = part_hindrance(f, p, k);
  if (cause != NULL) return cause;
  const iso_node *one = &graph->nodes[q->rope], *other = &graph->nodes[k->rope];
  bool same = one->attributes[ISO_ATTR_HEAD_DIM] == other->attributes[ISO_ATTR_HEAD_DIM];
  for (int i = 1; i < 4; i++) same = same && one->inputs[i] == other->inputs[i];
  if (!same) return "q and k are rotated in different ways";
  if ((q->norm < 0) != (k->norm < 0)) return "one of q and k is normalised, the other is not";
  if (q->norm >= 0 && graph->nodes[q->norm].attributes[ISO_ATTR_EPS] != graph->nodes[k->norm].attributes[ISO_ATTR_EPS])
    return "the norms of q and k differ in eps";
  return iso_fusion_declined(graph, ISO_FUSION_ROPE, product->outputs[0]);
}

/* The whole of y stays in its place, and its parts are rotated there. */
static void rotate_joint(iso_fuser *f, int p, int s, const rotated *q, const rotated *k) {
  iso_graph *graph = f->graph;
  const iso_node product = graph->nodes[p], one = graph->nodes[q->rope], other = graph->nodes[k->rope];
  iso_node node = node_at(graph, p, ISO_OP_LINEAR_JOINT_ROPE), split = graph->nodes[s];
  for (int i = 0; i < 4; i++) node.inputs[i] = product.inputs[i];
  for (int i = 1; i < 4; i++) node.inputs[3 + i] = one.inputs[i];
  set_attribute(&node, ISO_ATTR_HEAD_DIM, one.attributes[ISO_ATTR_HEAD_DIM]);
  node.outputs[0] = product.outputs[0];
  split.outputs[0] = one.outputs[0];
  split.outputs[1] = other.outputs[0];
  put(f, p, &node);
  put(f, s, &split);
  graph->tensors[q->raw].producer = graph->tensors[k->raw].producer = -1;
}

/* y stays as it is, for the norms' gradients and for v. */
static void rotate_normalised(iso_fuser *f, int p, const rotated *q, const rotated *k) {
  iso_graph *graph = f->graph;
  const iso_node product = graph->nodes[p];
  const rotated *parts[2] = {q, k};
  iso_node node = node_at(graph, p, ISO_OP_LINEAR_JOINT_NORM_ROPE);
  for (int i = 0; i < 4; i++) node.inputs[i] = product.inputs[i];
  for (int i = 1; i < 4; i++) node.inputs[5 + i] = graph->nodes[q->rope].inputs[i];
  node.outputs[0] = product.outputs[0];
  for (int i = 0; i < 2; i++) {
    const iso_node *norm = &graph->nodes[parts[i]->norm];
    set_attribute(&node, ISO_ATTR_EPS, norm->attributes[ISO_ATTR_EPS]);
    node.inputs[4 + i] = norm->inputs[1];
    node.outputs[1 + i] = graph->nodes[parts[i]->rope].outputs[0];
    node.outputs[3 + i] = norm->outputs[1];
    graph->tensors[norm->outputs[0]].producer = -1;
    f->gone[parts[i]->norm] = true;
  }
  put(f, p, &node);
}

/* The split at s of a joint product, of which the first part is rotated. */
static iso_status fuse_joint_rope(iso_fuser *f, int s) {
  iso_graph *graph = f->graph;
  const iso_node *split = &graph->nodes[s];
  const int p = graph->tensors[split->inputs[0]].producer;
  if (p < 0 || graph->nodes[p].op != ISO_OP_LINEAR_JOINT || split->outputs[0] < 0 || split->outputs[1] < 0)
    return ISO_OK;
  const rotated q = rotation_of(f, split->outputs[0]), k = rotation_of(f, split->outputs[1]);
  if (q.rope < 0) return ISO_OK;
  const char *cause = joint_hindrance(f, p, &q, &k);
  ISO_TRY(iso_fusion_note(graph, ISO_FUSION_ROPE, place_of(graph, &graph->nodes[p]), cause));
  if (cause != NULL) return ISO_OK;
  f->gone[q.rope] = f->gone[k.rope] = true;
  if (q.norm < 0) {
    rotate_joint(f, p, s, &q, &k);
  } else {
    rotate_normalised(f, p, &q, &k);
  }
  return ISO_OK;
}

/* A product of its own, which is rotated. */
static iso_status fuse_rope(iso_fuser *f, int p) {
  iso_graph *graph = f->graph;
  const iso_node product = graph->nodes[p];
  const rotated r = rotation_of(f, product.outputs[0]);
  if (r.rope < 0) return ISO_OK;
  const char *cause = part_hindrance(f, p, &r);
  if (cause == NULL && r.norm >= 0) cause = "it is normalised before, and a product of its own";
  if (cause == NULL) cause = iso_fusion_declined(graph, ISO_FUSION_ROPE, r.raw);
  ISO_TRY(iso_fusion_note(graph, ISO_FUSION_ROPE, place_of(graph, &product), cause));
  if (cause != NULL) return ISO_OK;
  const iso_node rope = graph->nodes[r.rope];
  iso_node node = node_at(graph, p, ISO_OP_LINEAR_ROPE);
  for (int i = 0; i < 3; i++) node.inputs[i] = product.inputs[i];
  for (int i = 1; i < 4; i++) node.inputs[2 + i] = rope.inputs[i];
  set_attribute(&node, ISO_ATTR_TRANSPOSED, product.attributes[ISO_ATTR_TRANSPOSED]);
  set_attribute(&node, ISO_ATTR_HEAD_DIM, rope.attributes[ISO_ATTR_HEAD_DIM]);
  node.outputs[0] = rope.outputs[0];
  graph->tensors[r.raw].producer = -1;
  put(f, p, &node);
  f->gone[r.rope] = true;
  return ISO_OK;
}

iso_status iso_fuse_products(iso_fuser *f, int n) {
  switch (f->graph->nodes[n].op) {
  case ISO_OP_SWIGLU:
    return fuse_swiglu(f, n);
  case ISO_OP_GELU:
    return fuse_gelu(f, n);
  case ISO_OP_SPLIT:
    return fuse_joint_rope(f, n);
  case ISO_OP_LINEAR:
    return fuse_rope(f, n);
  default:
    return ISO_OK;
  }
}
