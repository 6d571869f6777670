/* SPDX-License-Identifier: Apache-2.0
 *
 * autodiff: reverse accumulation over the rule table (gradients.c). Turns "losses" into one gradient tensor per
 * parameter.
 *
 * Invariants
 *  1. The forward nodes stay as they are and where they are; gradient nodes follow in reverse order of their forward
 * nodes.
 *  2. Contributions to one tensor are summed by add nodes in the order in which they were made, last use first: the
 * order of floating-point sums is part of the result.
 *  3. Every parameter gets a gradient, or the pass fails with the name of the one that takes no part in the loss.
 *  4. Gradients are of the SUM of the losses; the update divides by the count of scored tokens.
 */
#include "passes/passes.h"

#include <string.h>

/* Gradient contributions to one tensor of the forward graph. */
typedef struct contribution {
  iso_id id;
  struct contribution *next;
} contribution;

typedef struct backward {
  iso_graph *graph;
  int tensors; /* of the forward graph */
  bool *needed;
  contribution **first, **last;
} backward;

static void contribute(backward *b, iso_id tensor, iso_id gradient) {
  if (tensor < 0 || !b->needed[tensor]) return;
  contribution *c = iso_arena_alloc(b->graph->arena, sizeof *c);
  c->id = gradient;
  if (b->last[tensor] == NULL) {
    b->first[tensor] = c;
  } else {
    b->last[tensor]->next = c;
  }
  b->last[tensor] = c;
}

/* The sum of a tensor's contributions; -1 when there are none. */
static iso_status total(backward *b, iso_id tensor, iso_id *out) {
  *out = -1;
  if (tensor < 0 || b->first[tensor] == NULL) return ISO_OK;
  iso_id sum = b->first[tensor]->id;
  for (contribution *c = b->first[tensor]->next; c != NULL; c = c->next) {
    const iso_id pair[2] = {sum, c->id};
    ISO_TRY(iso_graph_node(b->graph, ISO_OP_ADD, pair, 2, NULL, 0, &sum, 1));
  }
  b->first[tensor]->id = sum;
  b->first[tensor]->next = NULL;
  b->last[tensor] = b->first[tensor];
  *out = sum;
  return ISO_OK;
}

/* Tensors that depend on a parameter. */
static void mark_needed(backward *b) {
  const iso_graph *graph = b->graph;
  for (iso_id id = 0; id < graph->tensor_count; id++) b->needed[id] = graph->tensors[id].parameter >= 0;
  for (int n = 0; n < graph->node_count; n++) {
    const iso_node *node = &graph->nodes[n];
    bool any = false;
    for (int i = 0; i < node->input_count; i++) any = any || (node->inputs[i] >= 0 && b->needed[node->inputs[i]]);
    for (int i = 0; i < node->output_count; i++) {
      if (node->outputs[i] >= 0) b->needed[node->outputs[i]] = any;
    }
  }
}

/* Optional outputs that rules read (statistics, the loss's gradients) must exist. */
static iso_status complete_outputs(iso_graph *graph, int index) {
  iso_node *node = &graph->nodes[index];
  iso_tensor inferred[ISO_MAX_OUTPUTS];
  ISO_TRY(iso_shape_infer(graph, node, inferred));
  for (int i = 0; i < node->output_count; i++) {
    if (node->outputs[i] >= 0 || inferred[i].rank < 0) continue;
    const iso_tensor *t = &inferred[i];
    iso_id id = iso_graph_tensor(graph, NULL, t->dtype, t->rank, t->shape, ISO_SPACE_TRANSIENT);
    graph->tensors[id].producer = index;
    node->outputs[i] = id;
  }
  return ISO_OK;
}

/* Number in an operand word like "d0"; moves to the next word. */
static int operand(const char **at) {
  int number = (*at)[1] - '0';
  *at += 2;
  while (**at == ' ') (*at)++;
  return number;
}

static iso_status missing_part(const iso_node *node, int index, int part) {
  return iso_fail(ISO_ERR_UNSUPPORTED,
                  "autodiff: node %d (%s): output %d takes no part in the loss while another one does", index,
                  iso_op_get(node->op)->text, part);
}

/* True if some gradient word of the step leads to a tensor that needs it. */
static bool step_needed(const backward *b, const iso_node *node, const iso_gradient_step *step) {
  for (const char *at = step->outputs; *at != '\0';) {
    iso_id input = node->inputs[operand(&at)];
    if (input >= 0 && b->needed[input]) return true;
  }
  return false;
}

static iso_status run_step(backward *b, const iso_node *node, int index, const iso_gradient_step *step,
                           const iso_id *upstream) {
  iso_id inputs[ISO_MAX_INPUTS] = {-1}, made[ISO_MAX_OUTPUTS];
  int input_count = 0, attribute_count = 0;
  if (!step_needed(b, node, step)) return ISO_OK;
  for (const char *at = step->inputs; *at != '\0';) {
    char kind = *at;
    int k = operand(&at);
    iso_id id = kind == 'i' ? node->inputs[k] : kind == 'o' ? node->outputs[k] : upstream[k];
    if (kind == 'd' && id < 0 && node->outputs[k] >= 0) return missing_part(node, index, k);
    inputs[input_count++] = id;
  }
  if (step->op == ISO_OP_NONE) {
    for (const char *at = step->outputs; *at != '\0';) contribute(b, node->inputs[operand(&at)], inputs[0]);
    return ISO_OK;
  }
  iso_attr attributes[ISO_ATTR_COUNT];
  for (int key = 0; key < ISO_ATTR_COUNT; key++) {
    if (!iso_op_has_attribute(step->op, (iso_attribute)key)) continue;
    attributes[attribute_count++] =
        (iso_attr){(iso_attribute)key, iso_gradient_attribute(b->graph, node, (iso_attribute)key)};
  }
  ISO_TRY(iso_graph_node(b->graph, step->op, inputs, input_count, attributes, attribute_count, made, ISO_MAX_OUTPUTS));
  int k = 0;
  for (const char *at = step->outputs; *at != '\0'; k++) contribute(b, node->inputs[operand(&at)], made[k]);
  return ISO_OK;
}

static iso_status differentiate(backward *b, int index) {
  const iso_gradient_step *steps = NULL;
  iso_op op = b->graph->nodes[index].op;
  bool root = op == ISO_OP_LINEAR_CROSS_ENTROPY, reached = root, wanted = false;
  iso_id upstream[ISO_MAX_OUTPUTS] = {-1, -1, -1, -1, -1};
  iso_node node = b->graph->nodes[index];
  for (int i = 0; i < node.input_count; i++) wanted = wanted || (node.inputs[i] >= 0 && b->needed[node.inputs[i]]);
  for (int i = 0; i < node.output_count; i++) {
    ISO_TRY(total(b, node.outputs[i], &upstream[i]));
    reached = reached || upstream[i] >= 0;
  }
  if (!reached || !wanted) return ISO_OK;
  if (root && upstream[0] >= 0) {
    return iso_fail(ISO_ERR_UNSUPPORTED,
                    "autodiff: node %d (%s): its losses are computed with further; they must be outputs", index,
                    iso_op_get(op)->text);
  }
  int count = iso_gradient_steps(op, &steps);
  if (count == 0) {
    return iso_fail(ISO_ERR_UNSUPPORTED, "autodiff: node %d (%s): the op has no gradient rule", index,
                    iso_op_get(op)->text);
  }
  ISO_TRY(complete_outputs(b->graph, index));
  node = b->graph->nodes[index];
  for (int s = 0; s < count; s++) ISO_TRY(run_step(b, &node, index, &steps[s], upstream));
  return ISO_OK;
}

iso_status iso_pass_autodiff(iso_graph *graph) {
  size_t tensors = (size_t)graph->tensor_count;
  int nodes = graph->node_count;
  backward b = {.graph = graph, .tensors = graph->tensor_count};
  b.needed = iso_arena_alloc(graph->arena, tensors + 1);
  b.first = iso_arena_alloc(graph->arena, (tensors + 1) * sizeof *b.first);
  b.last = iso_arena_alloc(graph->arena, (tensors + 1) * sizeof *b.last);
  if (b.needed == NULL || b.first == NULL || b.last == NULL) return iso_fail(ISO_ERR_MEMORY, "autodiff: no memory");
  bool root = false;
  for (int n = 0; n < nodes; n++) root = root || graph->nodes[n].op == ISO_OP_LINEAR_CROSS_ENTROPY;
  if (!root)
    return iso_fail(ISO_ERR_UNSUPPORTED, "autodiff: graph %s: it has no linear_cross_entropy node, so no loss",
                    graph->name);
  mark_needed(&b);
  for (int n = nodes - 1; n >= 0; n--) ISO_TRY(differentiate(&b, n));
  for (int i = 0; i < graph->parameter_count; i++) {
    iso_parameter *parameter = &graph->parameters[i];
    ISO_TRY(total(&b, parameter->tensor, &parameter->gradient));
    if (parameter->gradient < 0) {
      return iso_fail(ISO_ERR_UNSUPPORTED, "autodiff: parameter %s: it takes no part in the loss", parameter->name);
    }
  }
  return ISO_OK;
}
