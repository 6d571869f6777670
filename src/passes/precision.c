/* SPDX-License-Identifier: Apache-2.0
 *
 * precision: decides each tensor's element type from ops.def's letters and the compute type.
 *
 * bf16 compute: a 't' operand that is a float32 transient gets one cast, shared by all its readers; a 't' operand that
 * is a parameter becomes the bfloat16 copy at the same place of the flat state (WEIGHT), which the optimizer writes.
 * 'f' operands stay float32 masters: norm weights, biases, the embedding table where it is gathered. f32 compute:
 * nothing is inserted.
 *
 * Invariants
 *  1. Afterwards every operand has the type of its letter (iso_graph_verify with typed).
 *  2. The residual stream and all sums of gradients are float32 (the letters of embedding and add).
 *  3. Caches have the compute type.
 *  4. A 'w' output is float32 if and only if all its readers are add, rope or the dy of a norm's gradient.
 */
#include "passes/passes.h"

#include <stdlib.h>

typedef struct precision {
  iso_graph *graph;
  iso_id *typed; /* per old tensor: its cast or weight copy, -1: none yet */
  bool *narrow;  /* per old tensor: some reader wants the compute type, or nobody reads it */
  int phase;
} precision;

/* Caches change type, so their places are given out again. */
static void retype_caches(iso_graph *graph, iso_dtype compute) {
  int64_t used = 0;
  for (iso_id id = 0; id < graph->tensor_count; id++) {
    iso_tensor *tensor = &graph->tensors[id];
    if (tensor->space != ISO_SPACE_CACHE) continue;
    tensor->dtype = compute;
    tensor->offset = used;
    used += (iso_tensor_bytes(tensor) + 63) / 64 * 64;
  }
  graph->space_bytes[ISO_SPACE_CACHE] = used;
}

/* The compute-typed form of a float32 tensor: made at its first use. */
static iso_status typed_form(precision *p, iso_id id, iso_id *out) {
  iso_graph *graph = p->graph;
  if (p->typed[id] < 0) {
    const iso_tensor tensor = graph->tensors[id];
    if (tensor.parameter >= 0) {
      const char *name = iso_arena_printf(graph->arena, "%s:weight", tensor.name);
      p->typed[id] = iso_graph_tensor(graph, name, graph->compute, tensor.rank, tensor.shape, ISO_SPACE_WEIGHT);
      graph->tensors[p->typed[id]].offset = tensor.offset;
    } else {
      iso_node cast = {.op = ISO_OP_CAST, .input_count = 1, .output_count = 1, .inputs = {id}, .phase = p->phase};
      cast.outputs[0] = iso_graph_tensor(graph, NULL, graph->compute, tensor.rank, tensor.shape, ISO_SPACE_TRANSIENT);
      p->typed[id] = cast.outputs[0];
      ISO_TRY(iso_graph_node_into(graph, &cast));
    }
  }
  *out = p->typed[id];
  return ISO_OK;
}

static bool takes_wide(iso_op op, int input) {
  if (op == ISO_OP_ADD || (op == ISO_OP_ROPE && input == 0)) return true;
  return input == 0 && (op == ISO_OP_RMSNORM_GRAD || op == ISO_OP_LAYERNORM_GRAD);
}

static void find_narrow(precision *p, const iso_node *nodes, int count) {
  const iso_graph *graph = p->graph;
  for (iso_id id = 0; id < graph->tensor_count; id++) p->narrow[id] = graph->tensors[id].space != ISO_SPACE_TRANSIENT;
  bool *read = p->narrow + graph->tensor_count;
  for (int n = 0; n < count; n++) {
    for (int i = 0; i < nodes[n].input_count; i++) {
      const iso_id id = nodes[n].inputs[i];
      if (id < 0) continue;
      read[id] = true;
      if (!takes_wide(nodes[n].op, i)) p->narrow[id] = true;
    }
  }
  for (iso_id id = 0; id < graph->tensor_count; id++) p->narrow[id] |= !read[id];
}

static iso_status convert(precision *p, iso_node node) {
  const char *letters = iso_op_get(node.op)->inputs, *out_letters = iso_op_get(node.op)->outputs;
  iso_graph *graph = p->graph;
  p->phase = node.phase;
  for (int i = 0; i < node.input_count; i++) {
    bool typed = letters[i] == 't' || letters[i] == 'T';
    if (node.inputs[i] < 0 || !typed || graph->tensors[node.inputs[i]].dtype == graph->compute) continue;
    ISO_TRY(typed_form(p, node.inputs[i], &node.inputs[i]));
  }
  iso_tensor inferred[ISO_MAX_OUTPUTS];
  ISO_TRY(iso_shape_infer(graph, &node, inferred));
  for (int i = 0; i < node.output_count; i++) {
    if (node.outputs[i] < 0) continue;
    const bool wide = (out_letters[i] == 'w' || out_letters[i] == 'W') && !p->narrow[node.outputs[i]];
    graph->tensors[node.outputs[i]].dtype = wide ? ISO_F32 : inferred[i].dtype;
  }
  return iso_graph_node_into(graph, &node);
}

iso_status iso_pass_precision(iso_graph *graph, iso_dtype compute) {
  if (compute != ISO_F32 && compute != ISO_BF16) {
    return iso_fail(ISO_ERR_UNSUPPORTED, "precision: compute type %s, only f32 and bf16 are supported",
                    iso_dtype_name(compute));
  }
  graph->compute = compute;
  retype_caches(graph, compute);
  if (compute == ISO_F32) return ISO_OK;
  precision p = {.graph = graph, .typed = malloc(sizeof *p.typed * ((size_t)graph->tensor_count + 1))};
  p.narrow = calloc(2 * (size_t)graph->tensor_count + 1, sizeof *p.narrow);
  if (p.typed == NULL || p.narrow == NULL) {
    free(p.typed);
    free(p.narrow);
    return iso_fail(ISO_ERR_MEMORY, "precision: no memory");
  }
  for (iso_id id = 0; id < graph->tensor_count; id++) p.typed[id] = -1;
  const iso_node *nodes = graph->nodes;
  int count = graph->node_count;
  graph->nodes = NULL;
  graph->node_count = graph->node_capacity = 0;
  find_narrow(&p, nodes, count);
  iso_status status = ISO_OK;
  for (int n = 0; n < count && status == ISO_OK; n++) status = convert(&p, nodes[n]);
  free(p.typed);
  free(p.narrow);
  return status;
}
