/* SPDX-License-Identifier: Apache-2.0
 *
 * cost: floating-point operations and bytes of a node, for reports and for choosing among equal forms.
 *
 * A multiply-add counts 2. Matrix products are exact; attention counts the causal part of the scores only (and the
 * window); row-wise ops count a fixed number of operations an element. Bytes are each operand once, read or written.
 */
#include "graph/graph.h"

/* Score elements of causal attention: a query at place t of its sequence sees min(t + 1, window) keys. */
static int64_t score_elements(const iso_node *node, int64_t rows, int64_t keys) {
  int64_t batch = (int64_t)iso_node_attribute(node, ISO_ATTR_BATCH), heads = (int64_t)node->attributes[ISO_ATTR_HEADS];
  int64_t window = (int64_t)node->attributes[ISO_ATTR_WINDOW];
  if (node->op == ISO_OP_ATTENTION_CACHED) {
    return rows * (window > 0 && window < keys ? window : keys) * heads;
  }
  int64_t length = rows / (batch > 0 ? batch : 1), seen = length * (length + 1) / 2;
  if (window > 0 && window < length) seen = window * (window + 1) / 2 + (length - window) * window;
  return batch * heads * seen;
}

/* Matrix products, alone or inside; -1: the op has none. */
static int64_t product_flop(const iso_node *node, const iso_tensor *const in[ISO_MAX_INPUTS]) {
  int64_t first = iso_tensor_elements(in[0]);
  switch (node->op) {
  case ISO_OP_LINEAR:
  case ISO_OP_LM_HEAD:
  case ISO_OP_LINEAR_DX:
    return 2 * in[0]->shape[0] * iso_tensor_elements(in[1]);
  case ISO_OP_LINEAR_JOINT:
  case ISO_OP_LINEAR_JOINT_DX: {
    int64_t elements = iso_tensor_elements(in[1]) + iso_tensor_elements(in[2]);
    if (node->inputs[3] >= 0) elements += iso_tensor_elements(in[3]);
    return 2 * in[0]->shape[0] * elements;
  }
  case ISO_OP_LINEAR_JOINT_SWIGLU: /* and the row kernels of the unfused form */
    return 2 * in[0]->shape[0] * 2 * iso_tensor_elements(in[1]) + 10 * in[0]->shape[0] * in[1]->shape[0];
  case ISO_OP_LINEAR_GELU: {
    int64_t outer = in[1]->shape[node->attributes[ISO_ATTR_TRANSPOSED] != 0 ? 1 : 0];
    return 2 * in[0]->shape[0] * iso_tensor_elements(in[1]) + 10 * in[0]->shape[0] * outer;
  }
  case ISO_OP_LINEAR_ROPE: {
    int64_t outer = in[1]->shape[node->attributes[ISO_ATTR_TRANSPOSED] != 0 ? 1 : 0];
    return 2 * in[0]->shape[0] * iso_tensor_elements(in[1]) + 6 * in[0]->shape[0] * outer;
  }
  case ISO_OP_LINEAR_JOINT_ROPE:
  case ISO_OP_LINEAR_JOINT_NORM_ROPE: {
    int64_t elements = iso_tensor_elements(in[1]) + iso_tensor_elements(in[2]);
    int64_t rotated = in[1]->shape[0] + in[2]->shape[0], each = node->op == ISO_OP_LINEAR_JOINT_ROPE ? 6 : 10;
    if (node->inputs[3] >= 0) elements += iso_tensor_elements(in[3]);
    return in[0]->shape[0] * (2 * elements + each * rotated);
  }
  case ISO_OP_LINEAR_JOINT_DW:
  case ISO_OP_LINEAR_DW:
    return 2 * first * in[1]->shape[1];
  case ISO_OP_LINEAR_CROSS_ENTROPY: {
    int64_t product = 2 * in[0]->shape[0] * iso_tensor_elements(in[1]);
    return (node->outputs[1] >= 0 ? 3 : 1) * product + 6 * in[0]->shape[0] * in[1]->shape[0];
  }
  case ISO_OP_ATTENTION:
  case ISO_OP_ATTENTION_CACHED: {
    int64_t width = in[0]->shape[1] / (int64_t)node->attributes[ISO_ATTR_HEADS];
    return (4 * width + 6) * score_elements(node, in[0]->shape[0], in[node->op == ISO_OP_ATTENTION ? 1 : 3]->shape[0]);
  }
  case ISO_OP_ATTENTION_GRAD: {
    int64_t width = in[1]->shape[1] / (int64_t)node->attributes[ISO_ATTR_HEADS];
    return (10 * width + 10) * score_elements(node, in[1]->shape[0], in[1]->shape[0]);
  }
  default:
    return -1;
  }
}

static int64_t node_flop(const iso_graph *graph, const iso_node *node) {
  static const iso_tensor absent = {.rank = 0};
  const iso_tensor *in[ISO_MAX_INPUTS];
  for (int i = 0; i < ISO_MAX_INPUTS; i++) {
    in[i] = i < node->input_count && node->inputs[i] >= 0 ? &graph->tensors[node->inputs[i]] : &absent;
  }
  const int64_t product = product_flop(node, in);
  if (product >= 0) return product;
  int64_t first = iso_tensor_elements(in[0]);
  switch (node->op) {
  case ISO_OP_RMSNORM:
    return 4 * first;
  case ISO_OP_ADD_RMSNORM:
    return 5 * first;
  case ISO_OP_ADD_LAYERNORM:
    return 7 * first;
  case ISO_OP_LAYERNORM:
  case ISO_OP_ROPE:
    return 6 * first;
  case ISO_OP_RMSNORM_GRAD:
  case ISO_OP_LAYERNORM_GRAD:
    return 12 * first;
  case ISO_OP_RMSNORM_GRAD_ADD:
  case ISO_OP_LAYERNORM_GRAD_ADD:
    return 13 * first;
  case ISO_OP_SWIGLU:
  case ISO_OP_GELU:
    return 10 * first;
  case ISO_OP_SWIGLU_GRAD:
  case ISO_OP_GELU_GRAD:
    return 20 * first;
  case ISO_OP_ADD:
  case ISO_OP_EMBEDDING_GRAD:
  case ISO_OP_BIAS_GRAD:
  case ISO_OP_CLIP:
    return first;
  case ISO_OP_GRAD_ROUND:
  case ISO_OP_GRAD_ROUND_PART:
  case ISO_OP_GRAD_SQUARES:
  case ISO_OP_ADAMW: {
    int64_t elements = (int64_t)(node->attributes[ISO_ATTR_END] - node->attributes[ISO_ATTR_BEGIN]);
    return (node->op == ISO_OP_ADAMW ? 14 : 3) * elements;
  }
  default:
    return 0;
  }
}

/* Bytes of one operand; ops over a range of the flat state touch that share of it. */
static int64_t operand_bytes(const iso_node *node, const iso_tensor *tensor) {
  int64_t bytes = iso_tensor_bytes(tensor);
  if (!node->has_attribute[ISO_ATTR_BEGIN] || tensor->space == ISO_SPACE_SCALAR) return bytes;
  double range = node->attributes[ISO_ATTR_END] - node->attributes[ISO_ATTR_BEGIN];
  if (tensor->space == ISO_SPACE_SQUARES) return (int64_t)(range / ISO_SQUARES_BLOCK + 1) * 8;
  return (int64_t)range * (int64_t)iso_dtype_size(tensor->dtype);
}

void iso_node_cost(const iso_graph *graph, const iso_node *node, int64_t *flop, int64_t *bytes) {
  *flop = node_flop(graph, node);
  *bytes = 0;
  int written = iso_op_get(node->op)->flags / ISO_OP_FLAG_WRITES0;
  for (int i = 0; i < node->input_count; i++) {
    if (node->inputs[i] < 0) continue;
    const iso_tensor *tensor = &graph->tensors[node->inputs[i]];
    int64_t touched = operand_bytes(node, tensor);
    if (node->op == ISO_OP_EMBEDDING && i == 0) touched = iso_tensor_bytes(&graph->tensors[node->outputs[0]]);
    *bytes += (written >> i & 1) != 0 ? 2 * touched : touched;
  }
  for (int i = 0; i < node->output_count; i++) {
    if (node->outputs[i] >= 0) *bytes += operand_bytes(node, &graph->tensors[node->outputs[i]]);
  }
}
