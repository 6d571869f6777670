/* SPDX-License-Identifier: Apache-2.0
 *
 * simplify: merges nodes that compute the same, drops nodes that nobody needs and optional outputs that nobody reads.
 *
 * Invariants
 *  1. EFFECT nodes, and nodes whose outputs the caller reads (OUTPUT, gradients of parameters), are roots: never merged
 * away.
 *  2. Node order is kept; the first of equal nodes stays, so each input still stands before its reader.
 *  3. No value changes: merging is by op, inputs (after merging), attributes and phase, exactly.
 */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

static bool is_root(const iso_graph *graph, const bool *gradient, const iso_node *node) {
  if ((iso_op_get(node->op)->flags & ISO_OP_FLAG_EFFECT) != 0) return true;
  for (int i = 0; i < node->output_count; i++) {
    iso_id id = node->outputs[i];
    if (id >= 0 && (gradient[id] || graph->tensors[id].space != ISO_SPACE_TRANSIENT)) return true;
  }
  return false;
}

static uint32_t hash_node(const iso_node *node) {
  uint32_t hash = iso_crc32c((uint32_t)node->op, node->inputs, sizeof node->inputs[0] * (size_t)node->input_count);
  return iso_crc32c(hash, node->attributes, sizeof node->attributes);
}

static bool equal_attributes(const iso_node *a, const iso_node *b) {
  for (int key = 0; key < ISO_ATTR_COUNT; key++) {
    if (a->attributes[key] != b->attributes[key]) return false;
  }
  return true;
}

static bool equal_nodes(const iso_node *a, const iso_node *b) {
  return a->op == b->op && a->phase == b->phase && a->input_count == b->input_count &&
         memcmp(a->inputs, b->inputs, sizeof a->inputs[0] * (size_t)a->input_count) == 0 && equal_attributes(a, b);
}

/* An optional output that `from` has and `into` dropped moves over. */
static void redirect(iso_graph *graph, int into, const iso_node *from, iso_id *alias) {
  iso_node *node = &graph->nodes[into];
  for (int i = 0; i < from->output_count; i++) {
    if (from->outputs[i] < 0) continue;
    if (node->outputs[i] < 0) {
      node->outputs[i] = from->outputs[i];
      graph->tensors[from->outputs[i]].producer = into;
    } else {
      alias[from->outputs[i]] = node->outputs[i];
    }
  }
}

/* Marks in `dead` the nodes whose work an earlier equal node does, and redirects their readers. */
static iso_status merge_equal(iso_graph *graph, const bool *gradient, bool *dead) {
  size_t slots = 64;
  while (slots < (size_t)graph->node_count * 2) slots *= 2;
  int *table = calloc(slots, sizeof *table);
  iso_id *alias = calloc((size_t)graph->tensor_count + 1, sizeof *alias);
  if (table == NULL || alias == NULL) {
    free(table);
    free(alias);
    return iso_fail(ISO_ERR_MEMORY, "simplify: no memory");
  }
  for (iso_id id = 0; id < graph->tensor_count; id++) alias[id] = id;
  for (int n = 0; n < graph->node_count; n++) {
    iso_node *node = &graph->nodes[n];
    for (int i = 0; i < node->input_count; i++) {
      if (node->inputs[i] >= 0) node->inputs[i] = alias[node->inputs[i]];
    }
    if (is_root(graph, gradient, node)) continue;
    size_t at = hash_node(node) & (slots - 1);
    while (table[at] != 0 && !equal_nodes(&graph->nodes[table[at] - 1], node)) at = (at + 1) & (slots - 1);
    if (table[at] == 0) {
      table[at] = n + 1;
    } else {
      redirect(graph, table[at] - 1, node, alias);
      dead[n] = true;
    }
  }
  free(table);
  free(alias);
  return ISO_OK;
}

/* Marks nodes that no root depends on; drops optional outputs without readers. */
static void drop_unread(iso_graph *graph, const bool *gradient, bool *read, bool *dead) {
  for (int n = graph->node_count - 1; n >= 0; n--) {
    iso_node *node = &graph->nodes[n];
    if (dead[n]) continue;
    bool used = is_root(graph, gradient, node);
    for (int i = 0; i < node->output_count; i++) used = used || (node->outputs[i] >= 0 && read[node->outputs[i]]);
    dead[n] = !used;
    if (!used) continue;
    for (int i = 0; i < node->input_count; i++) {
      if (node->inputs[i] >= 0) read[node->inputs[i]] = true;
    }
    bool gradients = node->op == ISO_OP_LINEAR_CROSS_ENTROPY; /* both or none */
    for (int i = 1; gradients && i < 3; i++) {
      iso_id id = node->outputs[i];
      if (id >= 0 && (read[id] || gradient[id])) gradients = false;
    }
    for (int i = 0; i < node->output_count; i++) {
      iso_id id = node->outputs[i];
      if (id < 0 || read[id] || gradient[id] || graph->tensors[id].space != ISO_SPACE_TRANSIENT) continue;
      if (!iso_op_output_optional(node->op, i)) continue;
      if (node->op == ISO_OP_LINEAR_CROSS_ENTROPY && !gradients) continue;
      node->outputs[i] = -1;
      graph->tensors[id].producer = -1;
    }
  }
}

static void compact(iso_graph *graph, const bool *dead) {
  int kept = 0;
  for (int n = 0; n < graph->node_count; n++) {
    const iso_node node = graph->nodes[n];
    for (int i = 0; i < node.output_count; i++) {
      iso_id id = node.outputs[i];
      if (id < 0 || graph->tensors[id].producer != n) continue;
      graph->tensors[id].producer = dead[n] ? -1 : kept;
    }
    if (!dead[n]) graph->nodes[kept++] = node;
  }
  graph->node_count = kept;
}

iso_status iso_pass_simplify(iso_graph *graph) {
  size_t tensors = (size_t)graph->tensor_count + 1;
  bool *gradient = calloc(tensors, 1), *read = calloc(tensors, 1), *dead = calloc((size_t)graph->node_count + 1, 1);
  iso_status status = ISO_OK;
  if (gradient == NULL || read == NULL || dead == NULL) {
    status = iso_fail(ISO_ERR_MEMORY, "simplify: no memory");
    goto done;
  }
  for (int i = 0; i < graph->parameter_count; i++) {
    if (graph->parameters[i].gradient >= 0) gradient[graph->parameters[i].gradient] = true;
  }
  status = merge_equal(graph, gradient, dead);
  if (status != ISO_OK) goto done;
  drop_unread(graph, gradient, read, dead);
  compact(graph, dead);
done:
  free(dead);
  free(read);
  free(gradient);
  return status;
}
