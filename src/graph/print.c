/* SPDX-License-Identifier: Apache-2.0
 *
 * print: a graph as text, one line a declaration and one line a node. parse.c reads it back.
 *
 *   graph train compute=bf16 gradient=bf16 tokens=1024
 *   input tokens i32[1024] @0
 *   parameter model.norm.weight f32[768] @0 init=one std=0 class=norm gradient=%90
 *   phase micro
 *   %12 bf16[1024,768], %13 f32[1024] = rmsnorm %11, model.norm.weight {eps=1e-05}
 *
 * Invariants
 *  1. The same graph gives the same text: no addresses, no tensor numbers, floats in their shortest exact form.
 *  2. Tensors that no node makes are declared at the top, in the order of their birth; others at the node that makes
 * them.
 *  3. Tensors that nothing makes and nothing reads any more are left out.
 */
#include "graph/graph.h"

#include <stdlib.h>

const char *iso_init_name(iso_init init) {
  static const char *const names[ISO_INIT_COUNT] = {"normal", "zero", "one"};
  return names[init];
}

const char *iso_decay_class_name(iso_decay_class decay_class) {
  static const char *const names[ISO_DECAY_COUNT] = {"matrix", "embedding", "norm", "bias"};
  return names[decay_class];
}

/* Fewest digits that read back as the same double. */
static void print_double(iso_string *out, double value) {
  char text[40];
  for (int digits = 1; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
  iso_string_printf(out, "%s", text);
}

static void print_type(const iso_tensor *tensor, iso_string *out) {
  iso_string_printf(out, " %s[", iso_dtype_name(tensor->dtype));
  for (int i = 0; i < tensor->rank; i++) {
    iso_string_printf(out, "%s%lld", i > 0 ? "," : "", (long long)tensor->shape[i]);
  }
  iso_string_printf(out, "]");
}

static void print_declaration(const iso_graph *graph, const iso_tensor *tensor, iso_string *out) {
  bool parameter = tensor->parameter >= 0;
  iso_string_printf(out, "%s %s", parameter ? "parameter" : iso_space_name(tensor->space), tensor->name);
  print_type(tensor, out);
  iso_string_printf(out, " @%lld", (long long)tensor->offset);
  if (parameter) {
    const iso_parameter *p = &graph->parameters[tensor->parameter];
    iso_string_printf(out, " init=%s std=", iso_init_name(p->init));
    print_double(out, p->init_std);
    iso_string_printf(out, " class=%s", iso_decay_class_name(p->decay_class));
    if (p->gradient >= 0) iso_string_printf(out, " gradient=%s", graph->tensors[p->gradient].name);
  }
  iso_string_printf(out, "\n");
}

static void print_output(const iso_graph *graph, iso_id id, iso_string *out) {
  if (id < 0) {
    iso_string_printf(out, "-");
    return;
  }
  const iso_tensor *tensor = &graph->tensors[id];
  iso_string_printf(out, "%s", tensor->name);
  if (iso_space_is_state(tensor->space)) return;
  print_type(tensor, out);
  if (tensor->space != ISO_SPACE_TRANSIENT) {
    iso_string_printf(out, " @%s:%lld", iso_space_name(tensor->space), (long long)tensor->offset);
  }
}

void iso_attributes_print(const double *attributes, const bool *present, iso_string *out) {
  const char *before = " {";
  for (int key = 0; key < ISO_ATTR_COUNT; key++) {
    if (!present[key]) continue;
    iso_string_printf(out, "%s%s=", before, iso_attribute_text(key));
    if (iso_attribute_kind(key) == 'i') {
      iso_string_printf(out, "%lld", (long long)attributes[key]);
    } else {
      print_double(out, attributes[key]);
    }
    before = ", ";
  }
  if (before[0] == ',') iso_string_printf(out, "}");
}

static void print_node(const iso_graph *graph, const iso_node *node, iso_string *out) {
  iso_string_printf(out, "  ");
  for (int i = 0; i < node->output_count; i++) {
    if (i > 0) iso_string_printf(out, ", ");
    print_output(graph, node->outputs[i], out);
  }
  iso_string_printf(out, " = %s", iso_op_get(node->op)->text);
  for (int i = 0; i < node->input_count; i++) {
    iso_id id = node->inputs[i];
    iso_string_printf(out, "%s%s", i > 0 ? ", " : " ", id < 0 ? "-" : graph->tensors[id].name);
  }
  iso_attributes_print(node->attributes, node->has_attribute, out);
  iso_string_printf(out, "\n");
}

void iso_graph_print(const iso_graph *graph, iso_string *out) {
  static const char *const phases[ISO_PHASE_COUNT] = {"micro", "update"};
  iso_string_printf(out, "graph %s compute=%s gradient=%s tokens=%lld\n", graph->name, iso_dtype_name(graph->compute),
                    iso_dtype_name(graph->gradient), (long long)graph->tokens);
  for (iso_id id = 0; id < graph->tensor_count; id++) {
    const iso_tensor *tensor = &graph->tensors[id];
    bool made = tensor->space == ISO_SPACE_TRANSIENT || tensor->space == ISO_SPACE_OUTPUT;
    if (!made && tensor->producer < 0) print_declaration(graph, tensor, out);
  }
  int phase = -1;
  for (int i = 0; i < graph->node_count; i++) {
    if (graph->nodes[i].phase != phase) {
      phase = graph->nodes[i].phase;
      iso_string_printf(out, "phase %s\n", phases[phase]);
    }
    print_node(graph, &graph->nodes[i], out);
  }
}
