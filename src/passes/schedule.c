/* SPDX-License-Identifier: Apache-2.0
 *
 * schedule: an order of the nodes that keeps transient memory low.
 *
 * A list scheduler over the data dependencies: of the nodes that could run, one that frees at least as much as it
 * allocates runs at once (a weight gradient as soon as both operands are there), else the earliest of the given order.
 * The result replaces the given order only where its estimated peak is lower.
 *
 * Invariants
 *  1. Producers stay before readers, phases in order, EFFECT nodes in their given order among themselves.
 *  2. Deterministic: ties go to the earlier node.
 */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

typedef struct schedule {
  const iso_graph *graph;
  int *readers;   /* per tensor: nodes that still have to read it */
  int *waits;     /* per node: operands and effects not there yet */
  int64_t *bytes; /* per tensor, in the arena */
  bool *done;
} schedule;

/* Bytes a tensor takes in the arena. */
static int64_t arena_bytes(const schedule *s, iso_id id) {
  return id < 0 ? 0 : s->bytes[id];
}

/* Transients; in a graph that streams gradients also those, the first contribution of each for all of them. */
static void count_bytes(schedule *s) {
  const iso_graph *graph = s->graph;
  const bool streams = iso_graph_streams(graph);
  for (iso_id id = 0; id < graph->tensor_count; id++) {
    const iso_space space = graph->tensors[id].space;
    bool counts = space == ISO_SPACE_TRANSIENT || (streams && space == ISO_SPACE_GRAD);
    s->bytes[id] = counts ? iso_tensor_bytes(&graph->tensors[id]) : 0;
  }
  for (int n = 0; n < graph->node_count; n++) {
    const iso_node *node = &graph->nodes[n];
    if (node->op == ISO_OP_ADD && graph->tensors[node->outputs[0]].space == ISO_SPACE_GRAD) {
      s->bytes[node->inputs[1]] = 0;
    }
  }
}

static bool first_mention(const iso_node *node, int i) {
  for (int j = 0; j < i; j++) {
    if (node->inputs[j] == node->inputs[i]) return false;
  }
  return node->inputs[i] >= 0;
}

static void count_readers(const iso_graph *graph, int *readers) {
  memset(readers, 0, sizeof *readers * (size_t)graph->tensor_count);
  for (int n = 0; n < graph->node_count; n++) {
    const iso_node *node = &graph->nodes[n];
    for (int i = 0; i < node->input_count; i++) {
      if (first_mention(node, i)) readers[node->inputs[i]]++;
    }
  }
}

/* Bytes that are free after the node and were not before (made operands count against it). */
static int64_t relief(const schedule *s, const iso_node *node) {
  int64_t freed = 0;
  for (int i = 0; i < node->input_count; i++) {
    if (first_mention(node, i) && s->readers[node->inputs[i]] == 1) freed += arena_bytes(s, node->inputs[i]);
  }
  for (int i = 0; i < node->output_count; i++) freed -= arena_bytes(s, node->outputs[i]);
  return freed;
}

static bool is_effect(const iso_node *node) {
  return (iso_op_get(node->op)->flags & ISO_OP_FLAG_EFFECT) != 0;
}

/* Largest sum of live transients when nodes run in this order. */
static int64_t peak_of(schedule *s, const int *order) {
  const iso_graph *graph = s->graph;
  int64_t live = 0, peak = 0;
  int *readers = s->readers;
  count_readers(graph, readers);
  for (int k = 0; k < graph->node_count; k++) {
    const iso_node *node = &graph->nodes[order[k]];
    for (int i = 0; i < node->output_count; i++) live += arena_bytes(s, node->outputs[i]);
    if (live > peak) peak = live;
    for (int i = 0; i < node->output_count; i++) {
      if (node->outputs[i] >= 0 && readers[node->outputs[i]] == 0) live -= arena_bytes(s, node->outputs[i]);
    }
    for (int i = 0; i < node->input_count; i++) {
      if (first_mention(node, i) && --readers[node->inputs[i]] == 0) live -= arena_bytes(s, node->inputs[i]);
    }
  }
  return peak;
}

/* How many things each node waits for: made operands, and the EFFECT node before it. */
static void count_waits(schedule *s) {
  bool effect = false;
  for (int n = 0; n < s->graph->node_count; n++) {
    const iso_node *node = &s->graph->nodes[n];
    for (int i = 0; i < node->input_count; i++) {
      s->waits[n] += first_mention(node, i) && s->graph->tensors[node->inputs[i]].producer >= 0;
    }
    if (is_effect(node)) {
      s->waits[n] += effect;
      effect = true;
    }
  }
}

/* Node n has run: its readers among the nodes before `end` wait for less. */
static void retire(schedule *s, int n, int end) {
  const iso_graph *graph = s->graph;
  const iso_node *node = &graph->nodes[n];
  s->done[n] = true;
  for (int i = 0; i < node->input_count; i++) {
    if (first_mention(node, i)) s->readers[node->inputs[i]]--;
  }
  bool effect = is_effect(node);
  for (int m = n + 1; m < end; m++) {
    const iso_node *later = &graph->nodes[m];
    for (int i = 0; i < later->input_count; i++) {
      s->waits[m] -= first_mention(later, i) && graph->tensors[later->inputs[i]].producer == n;
    }
    if (effect && is_effect(later)) { /* the next one only */
      s->waits[m]--;
      effect = false;
    }
  }
}

static int pick(const schedule *s, int begin, int end) {
  int earliest = -1, best = -1;
  int64_t best_relief = -1;
  for (int n = begin; n < end; n++) {
    if (s->done[n] || s->waits[n] > 0) continue;
    if (earliest < 0) earliest = n;
    int64_t freed = relief(s, &s->graph->nodes[n]);
    if (freed > best_relief) {
      best_relief = freed;
      best = n;
    }
  }
  return best >= 0 ? best : earliest;
}

/* Orders the MICRO nodes [0, end); the rest keeps its order. */
static void list_schedule(schedule *s, int end, int *order) {
  count_readers(s->graph, s->readers);
  count_waits(s);
  for (int k = 0; k < end; k++) {
    order[k] = pick(s, 0, end);
    retire(s, order[k], end);
  }
  for (int k = end; k < s->graph->node_count; k++) order[k] = k;
}

static iso_status apply(iso_graph *graph, const int *order) {
  iso_node *old = graph->nodes;
  int count = graph->node_count;
  graph->nodes = NULL;
  graph->node_count = graph->node_capacity = 0;
  for (int k = 0; k < count; k++) ISO_TRY(iso_graph_node_into(graph, &old[order[k]]));
  return ISO_OK;
}

iso_status iso_pass_schedule(iso_graph *graph) {
  size_t nodes = (size_t)graph->node_count + 1, tensors = (size_t)graph->tensor_count + 1;
  schedule s = {.graph = graph,
                .readers = calloc(tensors, sizeof *s.readers),
                .waits = calloc(nodes, sizeof *s.waits),
                .bytes = calloc(tensors, sizeof *s.bytes),
                .done = calloc(nodes, sizeof *s.done)};
  int *order = calloc(nodes, sizeof *order), *given = calloc(nodes, sizeof *given), end = 0;
  iso_status status = ISO_OK;
  if (s.readers == NULL || s.waits == NULL || s.bytes == NULL || s.done == NULL || order == NULL || given == NULL) {
    status = iso_fail(ISO_ERR_MEMORY, "schedule: no memory");
    goto done;
  }
  while (end < graph->node_count && graph->nodes[end].phase == ISO_PHASE_MICRO) end++;
  for (int n = 0; n < graph->node_count; n++) given[n] = n;
  count_bytes(&s);
  list_schedule(&s, end, order);
  if (peak_of(&s, order) < peak_of(&s, given)) status = apply(graph, order);
done:
  free(given);
  free(order);
  free(s.done);
  free(s.bytes);
  free(s.waits);
  free(s.readers);
  return status;
}
