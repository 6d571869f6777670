/* SPDX-License-Identifier: Apache-2.0
 *
 * verify: every invariant of graph.h, checked from nothing. Runs between all passes.
 *
 * Checked, in this order
 *  1. tensors: names well formed and unique, type, shape and space sane, byte places inside their space;
 *  2. parameters: they follow each other in the flat state, tensor and gradient have their shape;
 *  3. nodes: phases in order, row of ops.def, each operand defined before, one producer each, shapes as inferred;
 *  4. `typed`: element types to the letter.
 */
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ELEMENTS ((int64_t)1 << 46)

/* The cause that broken() leaves for iso_graph_explain's caller. */
static _Thread_local char verdict[640];

ISO_PRINTF(2, 3) static iso_status broken(const iso_graph *graph, const char *format, ...) {
  int used = snprintf(verdict, sizeof verdict, "graph %.200s: ", graph->name);
  va_list list;
  va_start(list, format);
  vsnprintf(verdict + used, sizeof verdict - (size_t)used, format, list);
  va_end(list);
  return ISO_ERR_INTERNAL;
}

static bool name_fits(const char *name) {
  if (name == NULL || name[0] == '\0' || strlen(name) > 255) return false;
  size_t rest =
      strspn(name[0] == '%' ? name + 1 : name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:/-");
  return rest > 0 && rest == strlen(name) - (name[0] == '%' ? 1 : 0);
}

static iso_status verify_names(const iso_graph *graph) {
  size_t slots = 16;
  while (slots < (size_t)graph->tensor_count * 2) slots *= 2;
  int *table = calloc(slots, sizeof *table);
  if (table == NULL) return broken(graph, "no memory to verify it");
  iso_status status = ISO_OK;
  for (iso_id id = 0; id < graph->tensor_count && status == ISO_OK; id++) {
    const char *name = graph->tensors[id].name;
    if (!name_fits(name)) {
      status = broken(graph, "tensor %d: its name is empty, too long or has characters that no name may have", id);
      break;
    }
    size_t at = iso_crc32c(0, name, strlen(name)) & (slots - 1);
    for (; table[at] != 0 && status == ISO_OK; at = (at + 1) & (slots - 1)) {
      if (strcmp(graph->tensors[table[at] - 1].name, name) == 0) {
        status = broken(graph, "tensors %d and %d are both named %s", table[at] - 1, id, name);
      }
    }
    table[at] = id + 1;
  }
  free(table);
  return status;
}

static iso_status verify_tensor(const iso_graph *graph, iso_id id) {
  const iso_tensor *t = &graph->tensors[id];
  if ((unsigned)t->space >= ISO_SPACE_COUNT) return broken(graph, "tensor %s: unknown space", t->name);
  if ((unsigned)t->dtype > ISO_U8) return broken(graph, "tensor %s: unknown element type", t->name);
  if (t->rank < 1 || t->rank > ISO_MAX_RANK) return broken(graph, "tensor %s: rank %d", t->name, t->rank);
  int64_t elements = 1;
  for (int i = 0; i < t->rank; i++) {
    if (t->shape[i] < 1 || t->shape[i] > MAX_ELEMENTS / elements) {
      return broken(graph, "tensor %s: dimension %d is %lld", t->name, i, (long long)t->shape[i]);
    }
    elements *= t->shape[i];
  }
  int64_t limit = INT64_MAX;
  bool flat = iso_space_is_flat(t->space);
  if (t->space == ISO_SPACE_SQUARES) {
    limit = (graph->flat_elements + ISO_SQUARES_BLOCK - 1) / ISO_SQUARES_BLOCK;
  } else if (t->space == ISO_SPACE_SCALAR) {
    limit = ISO_SCALAR_COUNT;
  } else if (flat) {
    limit = graph->flat_elements;
  } else if (t->space != ISO_SPACE_TRANSIENT) {
    limit = graph->space_bytes[t->space];
  }
  int64_t extent = flat ? elements : iso_tensor_bytes(t);
  if (t->offset < 0 || extent > limit || t->offset > limit - extent) {
    return broken(graph, "tensor %s: it lies outside its space %s (offset %lld, %lld of %lld)", t->name,
                  iso_space_name(t->space), (long long)t->offset, (long long)extent, (long long)limit);
  }
  if (t->parameter < -1 || t->parameter >= graph->parameter_count) {
    return broken(graph, "tensor %s: it belongs to parameter %d, which does not exist", t->name, t->parameter);
  }
  return ISO_OK;
}

static bool shape_is(const iso_tensor *t, int rank, const int64_t *shape) {
  return t->rank == rank && memcmp(t->shape, shape, sizeof(int64_t) * (size_t)rank) == 0;
}

static iso_status verify_parameters(const iso_graph *graph) {
  int64_t offset = 0;
  for (int i = 0; i < graph->parameter_count; i++) {
    const iso_parameter *p = &graph->parameters[i];
    if (p->tensor < 0 || p->tensor >= graph->tensor_count || graph->tensors[p->tensor].parameter != i) {
      return broken(graph, "parameter %s: its tensor does not point back", p->name);
    }
    const iso_tensor *t = &graph->tensors[p->tensor];
    if (t->space != ISO_SPACE_MASTER || t->dtype != ISO_F32 || !shape_is(t, p->rank, p->shape)) {
      return broken(graph, "parameter %s: its tensor differs in space, type or shape", p->name);
    }
    if (p->offset != offset || t->offset != offset || p->elements != iso_tensor_elements(t)) {
      return broken(graph, "parameter %s: it lies at element %lld of the flat state, not at %lld", p->name,
                    (long long)p->offset, (long long)offset);
    }
    offset += p->elements;
    if (p->gradient < -1 || p->gradient >= graph->tensor_count) {
      return broken(graph, "parameter %s: its gradient is tensor %d, which does not exist", p->name, p->gradient);
    }
    if (p->gradient < 0) continue;
    const iso_tensor *g = &graph->tensors[p->gradient];
    if (g->dtype != ISO_F32 || !shape_is(g, p->rank, p->shape) || g->producer < 0) {
      return broken(graph, "parameter %s: its gradient %s has another shape or type, or no producer", p->name, g->name);
    }
  }
  if (offset != graph->flat_elements) {
    return broken(graph, "the flat state has %lld elements, its parameters have %lld", (long long)graph->flat_elements,
                  (long long)offset);
  }
  return ISO_OK;
}

/* Type that a letter demands of an operand; *any when it takes what is there. */
static iso_dtype letter_dtype(const iso_graph *graph, char letter, bool *any) {
  *any = letter == 'a' || letter == 'A';
  switch (letter) {
  case 't':
  case 'T':
    return graph->compute;
  case 'i':
  case 'I':
    return ISO_I32;
  case 'd':
  case 'D':
    return ISO_F64;
  case 'g':
    return graph->gradient;
  default:
    return ISO_F32;
  }
}

static iso_status verify_input(const iso_graph *graph, int index, int i, bool typed) {
  const iso_node *node = &graph->nodes[index];
  const char *op = iso_op_get(node->op)->text;
  if (node->inputs[i] < 0) return ISO_OK;
  const iso_tensor *t = &graph->tensors[node->inputs[i]];
  bool made = t->space == ISO_SPACE_TRANSIENT || t->space == ISO_SPACE_OUTPUT;
  if ((made || t->producer >= 0) && (t->producer < 0 || t->producer >= index)) {
    return broken(graph, "node %d (%s): input %d (%s) is read before it is made", index, op, i, t->name);
  }
  if (((iso_op_get(node->op)->flags / ISO_OP_FLAG_WRITES0) >> i & 1) != 0 && !iso_space_is_state(t->space)) {
    return broken(graph, "node %d (%s): input %d (%s) is written but is no state", index, op, i, t->name);
  }
  bool any = false;
  iso_dtype dtype = letter_dtype(graph, iso_op_get(node->op)->inputs[i], &any);
  if (typed && !any && t->dtype != dtype) {
    return broken(graph, "node %d (%s): input %d (%s) is %s, it must be %s", index, op, i, t->name,
                  iso_dtype_name(t->dtype), iso_dtype_name(dtype));
  }
  return ISO_OK;
}

static iso_status verify_output(const iso_graph *graph, int index, int i, const iso_tensor *rule, bool typed) {
  const iso_node *node = &graph->nodes[index];
  const char *op = iso_op_get(node->op)->text;
  iso_id id = node->outputs[i];
  if (id < -1 || id >= graph->tensor_count) {
    return broken(graph, "node %d (%s): output %d is tensor %d, which does not exist", index, op, i, id);
  }
  if (id < 0) {
    if (rule->rank < 0 || iso_op_output_optional(node->op, i)) return ISO_OK;
    return broken(graph, "node %d (%s): output %d is missing", index, op, i);
  }
  const iso_tensor *t = &graph->tensors[id];
  if (rule->rank < 0) return broken(graph, "node %d (%s): it has no output %d here (%s)", index, op, i, t->name);
  if (!shape_is(t, rule->rank, rule->shape)) {
    return broken(graph, "node %d (%s): output %d (%s) has another shape than its rule gives", index, op, i, t->name);
  }
  const char letter = iso_op_get(node->op)->outputs[i];
  const bool wide = (letter == 'w' || letter == 'W') && t->dtype == ISO_F32;
  if (typed ? t->dtype != rule->dtype && !wide : (t->dtype == ISO_I32 || t->dtype == ISO_I64 || t->dtype == ISO_U8)) {
    return broken(graph, "node %d (%s): output %d (%s) is %s, its rule gives %s", index, op, i, t->name,
                  iso_dtype_name(t->dtype), iso_dtype_name(rule->dtype));
  }
  if (iso_space_is_state(t->space)) {
    bool effect = (iso_op_get(node->op)->flags & ISO_OP_FLAG_EFFECT) != 0;
    if (effect && t->producer < 0) return ISO_OK;
    return broken(graph, "node %d (%s): output %d (%s) is state, which it may not write", index, op, i, t->name);
  }
  if (t->space == ISO_SPACE_INPUT || t->space == ISO_SPACE_CONST) {
    return broken(graph, "node %d (%s): output %d (%s) is an input or a constant", index, op, i, t->name);
  }
  for (int j = 0; j < i; j++) {
    if (node->outputs[j] == id) return broken(graph, "node %d (%s): output %s stands twice", index, op, t->name);
  }
  if (t->producer != index) {
    return broken(graph, "node %d (%s): output %d (%s) is also made by node %d", index, op, i, t->name, t->producer);
  }
  return ISO_OK;
}

static iso_status verify_node(const iso_graph *graph, int index, bool typed) {
  const iso_node *node = &graph->nodes[index];
  iso_tensor rule[ISO_MAX_OUTPUTS];
  char cause[320];
  if ((unsigned)node->phase >= ISO_PHASE_COUNT || (index > 0 && node->phase < graph->nodes[index - 1].phase)) {
    return broken(graph, "node %d (%s): its phase is out of order", index, iso_op_get(node->op)->text);
  }
  if (!iso_shape_explain(graph, node, rule, cause, sizeof cause)) {
    return broken(graph, "node %d (%s): %s", index, iso_op_get(node->op)->text, cause);
  }
  for (int i = 0; i < node->input_count; i++) ISO_TRY(verify_input(graph, index, i, typed));
  for (int i = 0; i < node->output_count; i++) ISO_TRY(verify_output(graph, index, i, &rule[i], typed));
  if (node->op == ISO_OP_LINEAR_CROSS_ENTROPY && (node->outputs[1] < 0) != (node->outputs[2] < 0)) {
    return broken(graph, "node %d (%s): one of its gradients is wanted and the other is not", index,
                  iso_op_get(node->op)->text);
  }
  return ISO_OK;
}

static iso_status verify(const iso_graph *graph, bool typed) {
  ISO_TRY(verify_names(graph));
  for (iso_id id = 0; id < graph->tensor_count; id++) ISO_TRY(verify_tensor(graph, id));
  ISO_TRY(verify_parameters(graph));
  for (int i = 0; i < graph->node_count; i++) ISO_TRY(verify_node(graph, i, typed));
  return ISO_OK;
}

const char *iso_graph_explain(const iso_graph *graph, bool typed) {
  return verify(graph, typed) == ISO_OK ? NULL : verdict;
}

iso_status iso_graph_verify(const iso_graph *graph, bool typed) {
  const char *cause = iso_graph_explain(graph, typed);
  return cause == NULL ? ISO_OK : iso_fail(ISO_ERR_INTERNAL, "%s", cause);
}
