/* SPDX-License-Identifier: Apache-2.0
 *
 * gradients: how each op hands its gradient back, one rule an op, as data. autodiff.c runs the rules.
 *
 * The chain rule of y = f(x): given d0, the gradient of the loss by y, a rule names the nodes that make g<i>, the
 * gradients by f's inputs. Two ops are special: linear_cross_entropy is the root (its upstream is 1 and its outputs 1
 * and 2 already are the gradients), and add hands its upstream on as it is. Where the mathematics of a gradient op
 * stands: kernels.h.
 */
#include "passes/passes.h"

typedef struct rule {
  iso_op op;
  iso_gradient_step steps[ISO_MAX_GRADIENT_STEPS];
} rule;

static const rule rules[] = {
    {ISO_OP_EMBEDDING, {{ISO_OP_EMBEDDING_GRAD, "d0 i1", "g0"}}},
    {ISO_OP_RMSNORM, {{ISO_OP_RMSNORM_GRAD, "d0 i0 i1 o1", "g0 g1"}}},
    {ISO_OP_LAYERNORM, {{ISO_OP_LAYERNORM_GRAD, "d0 i0 i1 o1 o2", "g0 g1 g2"}}},
    /* the bias first: what it reads has just been written, and is still in cache */
    {ISO_OP_LINEAR,
     {{ISO_OP_BIAS_GRAD, "d0", "g2"}, {ISO_OP_LINEAR_DW, "d0 i0", "g1"}, {ISO_OP_LINEAR_DX, "d0 i1", "g0"}}},
    {ISO_OP_LINEAR_JOINT,
     {{ISO_OP_LINEAR_JOINT_DW, "d0 i0", "g1 g2 g3"}, {ISO_OP_LINEAR_JOINT_DX, "d0 i1 i2 i3", "g0"}}},
    {ISO_OP_ROPE, {{ISO_OP_ROPE, "d0 i1 i2 i3", "g0"}}},
    {ISO_OP_ATTENTION, {{ISO_OP_ATTENTION_GRAD, "d0 i0 i1 i2 o0 o1 i3", "g0 g1 g2"}}},
    {ISO_OP_SWIGLU, {{ISO_OP_SWIGLU_GRAD, "d0 i0 i1", "g0 g1"}}},
    {ISO_OP_GELU, {{ISO_OP_GELU_GRAD, "d0 i0", "g0"}}},
    {ISO_OP_ADD, {{ISO_OP_NONE, "d0", "g0 g1"}}},
    {ISO_OP_SPLIT, {{ISO_OP_CONCAT, "d0 d1 d2", "g0"}}},
    {ISO_OP_CONCAT, {{ISO_OP_SPLIT, "d0", "g0 g1 g2"}}},
    {ISO_OP_LINEAR_CROSS_ENTROPY, {{ISO_OP_NONE, "o1", "g0"}, {ISO_OP_NONE, "o2", "g1"}}},
};

int iso_gradient_steps(iso_op op, const iso_gradient_step **steps) {
  for (size_t i = 0; i < ISO_COUNT(rules); i++) {
    if (rules[i].op != op) continue;
    int count = 0;
    while (count < ISO_MAX_GRADIENT_STEPS && rules[i].steps[count].outputs != NULL) count++;
    *steps = rules[i].steps;
    return count;
  }
  *steps = NULL;
  return 0;
}

bool iso_gradient_exempt(iso_op op) {
  switch (op) {
  case ISO_OP_LM_HEAD: /* inference */
  case ISO_OP_ATTENTION_CACHED:
  case ISO_OP_CAST: /* inserted later */
  case ISO_OP_EMBEDDING_GRAD:
  case ISO_OP_RMSNORM_GRAD:
  case ISO_OP_LAYERNORM_GRAD:
  case ISO_OP_LINEAR_DX:
  case ISO_OP_LINEAR_DW:
  case ISO_OP_LINEAR_JOINT_DX:
  case ISO_OP_LINEAR_JOINT_DW:
  case ISO_OP_BIAS_GRAD:
  case ISO_OP_ATTENTION_GRAD:
  case ISO_OP_SWIGLU_GRAD:
  case ISO_OP_GELU_GRAD:
  case ISO_OP_ADD_RMSNORM: /* inserted later, too */
  case ISO_OP_ADD_LAYERNORM:
  case ISO_OP_RMSNORM_GRAD_ADD:
  case ISO_OP_LAYERNORM_GRAD_ADD:
  case ISO_OP_LINEAR_JOINT_SWIGLU:
  case ISO_OP_LINEAR_GELU:
  case ISO_OP_LINEAR_ROPE:
  case ISO_OP_LINEAR_JOINT_ROPE:
  case ISO_OP_LINEAR_JOINT_NORM_ROPE:
    return true;
  default:
    return (iso_op_get(op)->flags & ISO_OP_FLAG_EFFECT) != 0;
  }
}

/* Columns of a concat's part, rows of a joint product's; 0: absent. */
static double part_width(const iso_graph *graph, const iso_node *forward, int part) {
  if (forward->op == ISO_OP_LINEAR_JOINT)
    return forward->inputs[1 + part] < 0 ? 0 : (double)graph->tensors[forward->inputs[1 + part]].shape[0];
  return forward->inputs[part] < 0 ? 0 : (double)graph->tensors[forward->inputs[part]].shape[1];
}

double iso_gradient_attribute(const iso_graph *graph, const iso_node *forward, iso_attribute key) {
  switch (key) {
  case ISO_ATTR_ROWS: /* of the embedding table */
    return (double)graph->tensors[forward->inputs[0]].shape[0];
  case ISO_ATTR_INVERSE: /* a rotation's gradient turns back */
    return 1 - forward->attributes[ISO_ATTR_INVERSE];
  case ISO_ATTR_WIDTH0:
  case ISO_ATTR_WIDTH1:
  case ISO_ATTR_WIDTH2:
    return part_width(graph, forward, (int)(key - ISO_ATTR_WIDTH0));
  default:
    return forward->attributes[key];
  }
}
