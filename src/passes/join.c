/* SPDX-License-Identifier: Apache-2.0
 *
 * join: linears that read the same input become one product when their weights lie next to each other in the flat
 * state: then the stacked weight is there already, as one matrix, and costs nothing.
 *
 *   q = x Wq', k = x Wk', v = x Wv'   ->   y = linear_joint(x, Wq, Wk, Wv);  q, k, v = split(y)
 *
 * The parts of y are views. Runs before autodiff, which makes of it one product for dx (the sum over q, k and v in one
 * accumulation, so other bits than three products and two adds) and one for all dW (the bits of three).
 *
 * Invariants
 *  1. Whether a place is joined depends on the graph alone: config and shapes, never a clock.
 *  2. The outputs keep their tensors: nobody else notices.
 */
#include "passes/passes.h"

#include <stdlib.h>

#define MAX_PARTS 3

typedef struct group {
  int nodes[MAX_PARTS];
  int count;
} group;

/* The linears after `first` that read its input, itself included, as many as one op takes. */
static group collect(const iso_graph *graph, int first, const bool *taken) {
  group g = {.nodes = {first}, .count = 1};
  for (int n = first + 1; n < graph->node_count && g.count < MAX_PARTS; n++) {
    const iso_node *node = &graph->nodes[n];
    if (node->op == ISO_OP_LINEAR && !taken[n] && node->inputs[0] == graph->nodes[first].inputs[0]) {
      g.nodes[g.count++] = n;
    }
  }
  return g;
}

/* Why these linears cannot be one product; NULL: they can. */
static const char *hindrance(const iso_graph *graph, const group *g, const int *readers) {
  const iso_tensor *before = NULL;
  for (int i = 0; i < g->count; i++) {
    const iso_node *node = &graph->nodes[g->nodes[i]];
    const iso_tensor *w = &graph->tensors[node->inputs[1]];
    if (w->parameter < 0) return iso_arena_printf(graph->arena, "%s is no parameter", w->name);
    if (node->attributes[ISO_ATTR_TRANSPOSED] != 0)
      return iso_arena_printf(graph->arena, "%s is stored [in, out]", w->name);
    if (readers[node->inputs[1]] > 1) return iso_arena_printf(graph->arena, "%s has another reader", w->name);
    if (node->inputs[2] >= 0)
      return iso_arena_printf(graph->arena, "%s has a bias, which lies between the weights", w->name);
    if (before != NULL && w->offset != before->offset + iso_tensor_elements(before))
      return iso_arena_printf(graph->arena, "%s does not follow %s in the flat state", w->name, before->name);
    before = w;
  }
  return NULL;
}

/* linear_joint and split in the place of the group's first node. */
static iso_status join(iso_graph *graph, const iso_node *old, const group *g) {
  iso_node joint = {.op = ISO_OP_LINEAR_JOINT, .input_count = 4, .output_count = 1, .phase = old[g->nodes[0]].phase};
  iso_node split = {.op = ISO_OP_SPLIT, .input_count = 1, .output_count = MAX_PARTS, .phase = joint.phase};
  joint.inputs[0] = old[g->nodes[0]].inputs[0];
  for (int i = 0; i < MAX_PARTS; i++) {
    const iso_node *part = i < g->count ? &old[g->nodes[i]] : NULL;
    const iso_attribute width = (iso_attribute)(ISO_ATTR_WIDTH0 + i);
    joint.inputs[1 + i] = part ? part->inputs[1] : -1;
    split.outputs[i] = part ? part->outputs[0] : -1;
    split.has_attribute[width] = true;
    split.attributes[width] = part ? (double)graph->tensors[part->outputs[0]].shape[1] : 0;
  }
  iso_tensor shape[ISO_MAX_OUTPUTS];
  ISO_TRY(iso_shape_infer(graph, &joint, shape));
  joint.outputs[0] = iso_graph_tensor(graph, NULL, shape[0].dtype, shape[0].rank, shape[0].shape, ISO_SPACE_TRANSIENT);
  split.inputs[0] = joint.outputs[0];
  ISO_TRY(iso_graph_node_into(graph, &joint));
  return iso_graph_node_into(graph, &split);
}

/* Finds the groups (taken[n]: node n belongs to one; leads[n]: its group's place among `groups` + 1). */
static iso_status find_groups(iso_graph *graph, unsigned fusion_off, const int *readers, bool *taken, group *leads) {
  for (int n = 0; n < graph->node_count; n++) {
    if (graph->nodes[n].op != ISO_OP_LINEAR || taken[n]) continue;
    const group g = collect(graph, n, taken);
    if (g.count < 2) continue;
    const char *cause = hindrance(graph, &g, readers);
    if (cause == NULL && (fusion_off >> ISO_FUSION_JOINT & 1) != 0) cause = "switched off";
    ISO_TRY(iso_fusion_note(graph, ISO_FUSION_JOINT, graph->tensors[graph->nodes[n].inputs[1]].name, cause));
    for (int i = 0; i < g.count; i++) taken[g.nodes[i]] = true;
    if (cause != NULL) {
      for (int i = 0; i < g.count; i++) leads[g.nodes[i]].count = -1; /* stays as it is */
    } else {
      leads[n] = g;
    }
  }
  return ISO_OK;
}

iso_status iso_pass_join(iso_graph *graph, unsigned fusion_off) {
  const int count = graph->node_count;
  graph->fusion_off = fusion_off;
  int *readers = calloc((size_t)graph->tensor_count + 1, sizeof *readers);
  bool *taken = calloc((size_t)count + 1, sizeof *taken);
  group *leads = calloc((size_t)count + 1, sizeof *leads);
  iso_status status = ISO_OK;
  if (readers == NULL || taken == NULL || leads == NULL) {
    status = iso_fail(ISO_ERR_MEMORY, "join: no memory");
    goto done;
  }
  for (int n = 0; n < count; n++) {
    for (int i = 0; i < graph->nodes[n].input_count; i++) {
      if (graph->nodes[n].inputs[i] >= 0) readers[graph->nodes[n].inputs[i]]++;
    }
  }
  status = find_groups(graph, fusion_off, readers, taken, leads);
  const iso_node *old = graph->nodes;
  graph->nodes = NULL;
  graph->node_count = graph->node_capacity = 0;
  for (int n = 0; n < count && status == ISO_OK; n++) {
    if (leads[n].count > 0) {
      status = join(graph, old, &leads[n]);
    } else if (!taken[n] || leads[n].count < 0) {
      status = iso_graph_node_into(graph, &old[n]);
    }
  }
done:
  free(leads);
  free(taken);
  free(readers);
  return status;
}
