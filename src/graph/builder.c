/* SPDX-License-Identifier: Apache-2.0
 *
 * builder: graphs grow here, by model builders, by passes and by the parser.
 *
 * Invariants
 *  1. A node that iso_graph_node or iso_graph_node_into accepted satisfies its row in ops.def (shape.c decides).
 *  2. INPUT, CONST, CACHE and OUTPUT tensors get 64-byte aligned places in their space, in the order of their
 * declaration; parameters follow each other in the flat state without gaps.
 *  3. Everything lives in the graph's arena.
 *
 * It does not check that names are unique or well formed: the verifier does.
 */
#include "graph/graph.h"

#include <string.h>

#define ALIGNMENT 64

/* Room for one more item: the arena keeps the smaller arrays until its end (twice the final size at most). */
static void *grow(iso_arena *arena, void *items, int count, int *capacity, size_t item_bytes) {
  if (count < *capacity) return items;
  int larger = *capacity < 64 ? 64 : *capacity * 2;
  void *copy = iso_arena_alloc(arena, (size_t)larger * item_bytes);
  if (copy == NULL) return NULL;
  if (count > 0) memcpy(copy, items, (size_t)count * item_bytes);
  *capacity = larger;
  return copy;
}

iso_graph *iso_graph_new(iso_arena *arena, const char *name) {
  iso_graph *graph = iso_arena_alloc(arena, sizeof *graph);
  if (graph == NULL) return NULL;
  graph->arena = arena;
  graph->name = iso_arena_strdup(arena, name);
  graph->compute = ISO_F32;
  graph->gradient = ISO_F32;
  return graph;
}

int64_t iso_tensor_elements(const iso_tensor *tensor) {
  int64_t elements = 1;
  for (int i = 0; i < tensor->rank; i++) elements *= tensor->shape[i];
  return elements;
}

int64_t iso_tensor_bytes(const iso_tensor *tensor) {
  return iso_tensor_elements(tensor) * (int64_t)iso_dtype_size(tensor->dtype);
}

double iso_node_attribute(const iso_node *node, iso_attribute key) {
  return node->has_attribute[key] ? node->attributes[key] : 0;
}

iso_id iso_graph_tensor(iso_graph *graph, const char *name, iso_dtype dtype, int rank, const int64_t *shape,
                        iso_space space) {
  graph->tensors =
      grow(graph->arena, graph->tensors, graph->tensor_count, &graph->tensor_capacity, sizeof *graph->tensors);
  iso_id id = graph->tensor_count++;
  iso_tensor *tensor = &graph->tensors[id];
  tensor->name = name != NULL ? iso_arena_strdup(graph->arena, name)
                              : iso_arena_printf(graph->arena, "%%%d", graph->next_number++);
  tensor->dtype = dtype;
  tensor->rank = rank;
  for (int i = 0; i < rank; i++) tensor->shape[i] = shape[i];
  tensor->space = space;
  tensor->producer = -1;
  tensor->parameter = -1;
  return id;
}

/* Gives a tensor the next aligned place of its space. */
static void place(iso_graph *graph, iso_tensor *tensor) {
  int64_t *used = &graph->space_bytes[tensor->space];
  tensor->offset = *used;
  *used += (iso_tensor_bytes(tensor) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static iso_id declare(iso_graph *graph, const char *name, iso_dtype dtype, int rank, const int64_t *shape,
                      iso_space space) {
  iso_id id = iso_graph_tensor(graph, name, dtype, rank, shape, space);
  place(graph, &graph->tensors[id]);
  return id;
}

iso_id iso_graph_input(iso_graph *graph, const char *name, iso_dtype dtype, int rank, const int64_t *shape) {
  return declare(graph, name, dtype, rank, shape, ISO_SPACE_INPUT);
}

iso_id iso_graph_const(iso_graph *graph, const char *name, iso_dtype dtype, int rank, const int64_t *shape,
                       const void *content) {
  iso_id id = declare(graph, name, dtype, rank, shape, ISO_SPACE_CONST);
  graph->tensors[id].content = content;
  return id;
}

iso_id iso_graph_cache(iso_graph *graph, const char *name, iso_dtype dtype, int rank, const int64_t *shape) {
  return declare(graph, name, dtype, rank, shape, ISO_SPACE_CACHE);
}

iso_id iso_graph_parameter(iso_graph *graph, const char *name, int rank, const int64_t *shape, iso_init init,
                           double init_std, iso_decay_class decay_class) {
  iso_id id = iso_graph_tensor(graph, name, ISO_F32, rank, shape, ISO_SPACE_MASTER);
  iso_tensor *tensor = &graph->tensors[id];
  graph->parameters = grow(graph->arena, graph->parameters, graph->parameter_count, &graph->parameter_capacity,
                           sizeof *graph->parameters);
  tensor->parameter = graph->parameter_count++;
  tensor->offset = graph->flat_elements;
  iso_parameter *parameter = &graph->parameters[tensor->parameter];
  *parameter = (iso_parameter){.name = tensor->name,
                               .rank = rank,
                               .elements = iso_tensor_elements(tensor),
                               .offset = tensor->offset,
                               .init = init,
                               .init_std = init_std,
                               .decay_class = decay_class,
                               .tensor = id,
                               .gradient = -1};
  for (int i = 0; i < rank; i++) parameter->shape[i] = shape[i];
  graph->flat_elements += parameter->elements;
  return id;
}

void iso_graph_output(iso_graph *graph, iso_id id) {
  iso_tensor *tensor = &graph->tensors[id];
  if (tensor->space == ISO_SPACE_OUTPUT) return;
  tensor->space = ISO_SPACE_OUTPUT;
  place(graph, tensor);
}

void iso_graph_rename(iso_graph *graph, iso_id id, const char *name) {
  graph->tensors[id].name = iso_arena_strdup(graph->arena, name);
}

iso_id iso_graph_find(const iso_graph *graph, const char *name) {
  for (iso_id id = 0; id < graph->tensor_count; id++) {
    if (strcmp(graph->tensors[id].name, name) == 0) return id;
  }
  return -1;
}

static void append(iso_graph *graph, const iso_node *node) {
  graph->nodes = grow(graph->arena, graph->nodes, graph->node_count, &graph->node_capacity, sizeof *graph->nodes);
  int index = graph->node_count++;
  graph->nodes[index] = *node;
  for (int i = 0; i < node->output_count; i++) {
    iso_id id = node->outputs[i];
    if (id >= 0 && !iso_space_is_state(graph->tensors[id].space)) graph->tensors[id].producer = index;
  }
}

iso_status iso_graph_node(iso_graph *graph, iso_op op, const iso_id *inputs, int input_count,
                          const iso_attr *attributes, int attribute_count, iso_id *outputs, int output_count) {
  iso_node node = {.op = op, .input_count = iso_op_input_count(op), .output_count = iso_op_output_count(op)};
  if (input_count > node.input_count) {
    return iso_fail(ISO_ERR_INTERNAL, "graph %s: node %d (%s): %d inputs given, it takes %d", graph->name,
                    graph->node_count, iso_op_get(op)->text, input_count, node.input_count);
  }
  for (int i = 0; i < node.input_count; i++) node.inputs[i] = i < input_count ? inputs[i] : -1;
  for (int key = 0; key < ISO_ATTR_COUNT; key++) node.has_attribute[key] = iso_op_has_attribute(op, key);
  for (int i = 0; i < attribute_count; i++) {
    if (!node.has_attribute[attributes[i].key]) {
      return iso_fail(ISO_ERR_INTERNAL, "graph %s: node %d (%s): it has no attribute %s", graph->name,
                      graph->node_count, iso_op_get(op)->text, iso_attribute_text(attributes[i].key));
    }
    node.attributes[attributes[i].key] = attributes[i].value;
  }
  iso_tensor inferred[ISO_MAX_OUTPUTS];
  ISO_TRY(iso_shape_infer(graph, &node, inferred));
  for (int i = 0; i < node.output_count; i++) {
    const iso_tensor *shape = &inferred[i];
    node.outputs[i] = shape->rank < 0
                          ? -1
                          : iso_graph_tensor(graph, NULL, shape->dtype, shape->rank, shape->shape, ISO_SPACE_TRANSIENT);
  }
  append(graph, &node);
  for (int i = 0; i < output_count; i++) outputs[i] = i < node.output_count ? node.outputs[i] : -1;
  return ISO_OK;
}

iso_status iso_graph_node_into(iso_graph *graph, const iso_node *node) {
  iso_tensor inferred[ISO_MAX_OUTPUTS];
  ISO_TRY(iso_shape_infer(graph, node, inferred));
  for (int i = 0; i < node->output_count; i++) {
    if (node->outputs[i] < 0) continue;
    const iso_tensor *have = &graph->tensors[node->outputs[i]], *want = &inferred[i];
    bool same = have->rank == want->rank;
    for (int d = 0; same && d < have->rank; d++) same = have->shape[d] == want->shape[d];
    if (!same) {
      return iso_fail(ISO_ERR_INTERNAL, "graph %s: node %d (%s): output %d (%s) has another shape than its rule gives",
                      graph->name, graph->node_count, iso_op_get(node->op)->text, i, have->name);
    }
  }
  append(graph, node);
  return ISO_OK;
}

iso_graph *iso_graph_copy(iso_arena *arena, const iso_graph *graph) {
  iso_graph *other = iso_arena_alloc(arena, sizeof *other);
  if (other == NULL) return NULL;
  *other = *graph;
  other->arena = arena;
  other->nodes = iso_arena_alloc(arena, sizeof *other->nodes * ((size_t)graph->node_count + 1));
  other->tensors = iso_arena_alloc(arena, sizeof *other->tensors * ((size_t)graph->tensor_count + 1));
  other->choices = iso_arena_alloc(arena, sizeof *other->choices * ((size_t)graph->choice_count + 1));
  if (other->nodes == NULL || other->tensors == NULL || other->choices == NULL) return NULL;
  if (graph->node_count > 0) memcpy(other->nodes, graph->nodes, sizeof *other->nodes * (size_t)graph->node_count);
  if (graph->tensor_count > 0)
    memcpy(other->tensors, graph->tensors, sizeof *other->tensors * (size_t)graph->tensor_count);
  if (graph->choice_count > 0)
    memcpy(other->choices, graph->choices, sizeof *other->choices * (size_t)graph->choice_count);
  other->node_capacity = graph->node_count;
  other->tensor_capacity = graph->tensor_count;
  other->choice_capacity = graph->choice_count;
  other->notes = NULL;
  other->note_count = other->note_capacity = 0;
  return other;
}
