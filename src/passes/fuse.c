/* SPDX-License-Identifier: Apache-2.0
 *
 * fuse: the fusion table, what was fused where and why not, and the pass for the fusions of neighbours on the typed
 * graph. Each of them gives the bits of what it replaces; joint products, which do not, are made before autodiff
 * (join.c) and chosen by config and shapes alone.
 *
 * Some fusions are ops from the start, since their unfused form would not fit in memory or has no use of its own; the
 * table lists them too.
 *
 * Invariants
 *  1. A fused node stands where the first node of its pattern stood, and its operands exist there.
 *  2. What a fused node no longer makes had no reader but the pattern.
 *  3. Every place where a pattern begins gets a note: fused, or the cause why not.
 */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

static const iso_fusion_info table[] = {
    [ISO_FUSION_JOINT] = {"joint_linear", "linears of one input with weights side by side: q|k|v, gate|up",
                          "linear_joint, the parts as views; one product for dx, one for dW",
                          "chosen by config and shapes (dx sums over the parts in one accumulation)", ISO_OP_NONE},
    [ISO_FUSION_ADD_NORM] = {"add_norm", "residual add, then the norm of the sum", "add_rmsnorm, add_layernorm",
                             ISO_FUSION_SAME_BITS, ISO_OP_NONE},
    [ISO_FUSION_NORM_GRAD_ADD] = {"norm_grad_add", "a norm's gradient, then the add of the skip gradient",
                                  "rmsnorm_grad_add, layernorm_grad_add", ISO_FUSION_SAME_BITS, ISO_OP_NONE},
    [ISO_FUSION_GRAD_CAST] = {"grad_cast", "the gradient that norm_grad_add makes, then its cast to the compute type",
                              "a second output of norm_grad_add", ISO_FUSION_SAME_BITS, ISO_OP_NONE},
    [ISO_FUSION_SWIGLU] = {"linear_swiglu", "gate|up as one product, then swiglu",
                           "linear_joint_swiglu: swiglu of each part of the product while it is in cache",
                           ISO_FUSION_SAME_BITS, ISO_OP_NONE},
    [ISO_FUSION_ROPE] = {"linear_rope", "product and bias of q|k|v or of q, k; norms of heads; rope",
                         "linear_joint_rope, linear_joint_norm_rope, linear_rope: likewise", ISO_FUSION_SAME_BITS,
                         ISO_OP_NONE},
    [ISO_FUSION_GELU] = {"linear_gelu", "product and bias, then gelu", "linear_gelu: likewise", ISO_FUSION_SAME_BITS,
                         ISO_OP_NONE},
    {"linear_loss", "lm_head, cross-entropy, and both gradients",
     "linear_cross_entropy in chunks of tokens; nothing recomputed", "built in", ISO_OP_LINEAR_CROSS_ENTROPY},
    {"attention", "q k', mask, softmax, product with v", "attention: online softmax, empty tiles skipped", "built in",
     ISO_OP_ATTENTION},
    {"attention_grad", "the same backwards, probabilities made again", "attention_grad", "built in",
     ISO_OP_ATTENTION_GRAD},
    {"round_norm", "gradient / tokens, rounding, sum of squares", "grad_round: partial sums in a fixed tree",
     "built in", ISO_OP_GRAD_ROUND},
    {"adamw_cast", "AdamW, then the cast of the weights", "adamw writes the compute copy", "built in", ISO_OP_ADAMW},
};

const iso_fusion_info *iso_fusion_get(int index) {
  return index >= 0 && (size_t)index < ISO_COUNT(table) ? &table[index] : NULL;
}

/* ---- notes ---- */

iso_status iso_fusion_note(iso_graph *graph, iso_fusion fusion, const char *place, const char *cause) {
  if (graph->note_count == graph->note_capacity) {
    const int capacity = graph->note_capacity * 2 + 32;
    iso_remark *larger = iso_arena_alloc(graph->arena, (size_t)capacity * sizeof *larger);
    if (larger == NULL) return iso_fail(ISO_ERR_MEMORY, "fuse: no memory");
    if (graph->note_count > 0) memcpy(larger, graph->notes, (size_t)graph->note_count * sizeof *larger);
    graph->notes = larger;
    graph->note_capacity = capacity;
  }
  graph->notes[graph->note_count++] = (iso_remark){fusion, place, cause};
  return ISO_OK;
}

int iso_fusion_places(const iso_graph *graph, int index, bool fused) {
  int count = 0;
  const iso_op op = table[index].built_in;
  if (op != ISO_OP_NONE) {
    for (int n = 0; n < graph->node_count; n++) {
      const iso_op have = graph->nodes[n].op;
      count += have == op || (op == ISO_OP_GRAD_ROUND && have == ISO_OP_GRAD_ROUND_PART);
    }
    return count;
  }
  for (int i = 0; i < graph->note_count; i++) {
    count += graph->notes[i].fusion == index && (!fused || graph->notes[i].cause == NULL);
  }
  return count;
}

void iso_fusion_verdict(const iso_graph *graph, iso_string *out) {
  int fused = 0;
  if (graph->fusion_off == ISO_FUSION_ALL) {
    iso_string_printf(out, "fusion is off: 0 of %d places fused", graph->note_count);
    return;
  }
  for (int row = 0; row < ISO_FUSION_COUNT; row++) fused += iso_fusion_places(graph, row, true);
  iso_string_printf(out, "%d of %d places fused", fused, graph->note_count);
  for (int row = 0; row < ISO_FUSION_COUNT; row++) {
    iso_string_printf(out, "%s %s %d", row == 0 ? ":" : ",", table[row].name, iso_fusion_places(graph, row, true));
  }
}

void iso_fusion_print(const iso_graph *graph, iso_string *out) {
  for (int row = 0; table + row < table + ISO_COUNT(table); row++) {
    const iso_fusion_info *info = &table[row];
    const int all = iso_fusion_places(graph, row, false);
    iso_string_printf(out, "%-15s %s\n", info->name, info->pattern);
    iso_string_printf(out, "%-15s -> %s\n", "", info->form);
    iso_string_printf(out, "%-15s bits: %s\n", "", info->bits);
    if (info->built_in != ISO_OP_NONE) {
      iso_string_printf(out, "%-15s %d place%s\n", "", all, iso_plural(all));
      continue;
    }
    iso_string_printf(out, "%-15s %d of %d place%s fused\n", "", iso_fusion_places(graph, row, true), all,
                      iso_plural(all));
    for (int i = 0; i < graph->note_count; i++) {
      const iso_remark *note = &graph->notes[i];
      if (note->fusion == row && note->cause != NULL)
        iso_string_printf(out, "%-15s not at %s: %s\n", "", note->place, note->cause);
    }
    for (int i = 0; i < graph->choice_count; i++) {
      const iso_choice *choice = &graph->choices[i];
      if (choice->fusion != row || choice->fused_s <= 0) continue;
      iso_string_printf(out, "%-15s measured at ", "");
      iso_choice_print(choice, out);
      iso_string_printf(out, ": %.1f us, unfused %.1f us\n", 1e6 * choice->fused_s, 1e6 * choice->unfused_s);
    }
  }
  iso_fusion_verdict(graph, out);
  iso_string_printf(out, "\n");
}

/* ---- the pass ---- */

static bool is_norm(iso_op op) {
  return op == ISO_OP_RMSNORM || op == ISO_OP_LAYERNORM;
}

static bool is_norm_grad(iso_op op) {
  return op == ISO_OP_RMSNORM_GRAD || op == ISO_OP_LAYERNORM_GRAD;
}

static iso_node form_of(const iso_node *from, iso_op op) {
  iso_node node = *from;
  node.op = op;
  node.input_count = iso_op_input_count(op);
  node.output_count = iso_op_output_count(op);
  return node;
}

/* add at p, norm at n: why not, or NULL. */
static const char *add_norm_hindrance(iso_fuser *f, int p, int n) {
  const iso_graph *graph = f->graph;
  const iso_node *add = &graph->nodes[p], *norm = &graph->nodes[n];
  const iso_tensor *sum = &graph->tensors[norm->inputs[0]];
  if (add->op != ISO_OP_ADD) return "another norm of the same sum is fused with the add";
  if (add->phase != norm->phase) return "add and norm run in different phases";
  if (sum->space != ISO_SPACE_TRANSIENT || f->gradient[norm->inputs[0]]) return "the sum is kept elsewhere";
  if (sum->dtype != ISO_F32 || sum->rank != 2) return "the sum is no float32 matrix";
  return iso_fusion_declined(f->graph, ISO_FUSION_ADD_NORM, norm->inputs[0]);
}

static iso_status fuse_add_norm(iso_fuser *f, int n) {
  iso_graph *graph = f->graph;
  const iso_node norm = graph->nodes[n];
  const int p = graph->tensors[norm.inputs[0]].producer;
  if (p < 0) return ISO_OK;
  iso_node *add = &graph->nodes[p];
  const bool fused = add->op == ISO_OP_ADD_RMSNORM || add->op == ISO_OP_ADD_LAYERNORM;
  if (add->op != ISO_OP_ADD && !fused) return ISO_OK;
  const char *cause = add_norm_hindrance(f, p, n);
  ISO_TRY(iso_fusion_note(graph, ISO_FUSION_ADD_NORM, graph->tensors[norm.inputs[1]].name, cause));
  if (cause != NULL) return ISO_OK;
  iso_node node = form_of(&norm, norm.op == ISO_OP_RMSNORM ? ISO_OP_ADD_RMSNORM : ISO_OP_ADD_LAYERNORM);
  node.inputs[0] = add->inputs[0];
  node.inputs[1] = add->inputs[1];
  for (int i = 1; i < norm.input_count; i++) node.inputs[1 + i] = norm.inputs[i];
  node.outputs[0] = add->outputs[0];
  for (int i = 0; i < norm.output_count; i++) node.outputs[1 + i] = norm.outputs[i];
  *add = node;
  f->gone[n] = true;
  return ISO_OK;
}

/* norm gradient at n, of which add a takes input i (dx) and the other one (skip): why not, or NULL. */
static const char *norm_grad_hindrance(iso_fuser *f, int n, int a, int i) {
  const iso_graph *graph = f->graph;
  const iso_node *add = &graph->nodes[a], *grad = &graph->nodes[n];
  const iso_id dx = add->inputs[i], skip = add->inputs[1 - i];
  if (f->readers[dx] > 1) return "the norm's gradient has another reader";
  if (add->phase != grad->phase) return "gradient and add run in different phases";
  if (graph->tensors[skip].producer >= n) return "the skip gradient is made later";
  if (graph->tensors[dx].space != ISO_SPACE_TRANSIENT || f->gradient[dx] || f->gradient[add->outputs[0]])
    return "the sum is a parameter's gradient";
  if (graph->tensors[dx].dtype != ISO_F32 || graph->tensors[skip].dtype != ISO_F32)
    return "the gradients are not float32";
  return iso_fusion_declined(f->graph, ISO_FUSION_NORM_GRAD_ADD, dx);
}

/* Which input of the add at a is a norm's gradient, the later one of two; -1: none. */
static int norm_grad_input(const iso_graph *graph, const iso_node *add) {
  int found = -1, latest = -1;
  for (int i = 0; i < 2; i++) {
    const int n = graph->tensors[add->inputs[i]].producer;
    if (n <= latest || !is_norm_grad(graph->nodes[n].op) || graph->nodes[n].outputs[0] != add->inputs[i]) continue;
    found = i;
    latest = n;
  }
  return found;
}

static iso_status fuse_norm_grad_add(iso_fuser *f, int a) {
  iso_graph *graph = f->graph;
  const iso_node add = graph->nodes[a];
  const int i = norm_grad_input(graph, &add);
  if (i < 0) return ISO_OK;
  const int n = graph->tensors[add.inputs[i]].producer;
  const iso_node grad = graph->nodes[n];
  const char *cause = norm_grad_hindrance(f, n, a, i);
  ISO_TRY(iso_fusion_note(graph, ISO_FUSION_NORM_GRAD_ADD, graph->tensors[grad.inputs[2]].name, cause));
  if (cause != NULL) return ISO_OK;
  const iso_op op = grad.op == ISO_OP_RMSNORM_GRAD ? ISO_OP_RMSNORM_GRAD_ADD : ISO_OP_LAYERNORM_GRAD_ADD;
  iso_node node = form_of(&grad, op);
  node.inputs[0] = add.inputs[1 - i];
  for (int k = 0; k < grad.input_count; k++) node.inputs[1 + k] = grad.inputs[k];
  node.outputs[0] = add.outputs[0];
  node.outputs[node.output_count - 1] = -1;
  graph->nodes[n] = node;
  graph->tensors[add.inputs[i]].producer = -1;
  graph->tensors[add.outputs[0]].producer = n;
  f->gone[a] = true;
  return ISO_OK;
}

static iso_status fuse_grad_cast(iso_fuser *f, int c) {
  iso_graph *graph = f->graph;
  const iso_node cast = graph->nodes[c];
  const int n = graph->tensors[cast.inputs[0]].producer;
  if (n < 0) return ISO_OK;
  iso_node *grad = &graph->nodes[n];
  const bool fits = (grad->op == ISO_OP_RMSNORM_GRAD_ADD || grad->op == ISO_OP_LAYERNORM_GRAD_ADD) &&
                    grad->outputs[0] == cast.inputs[0];
  if (!fits) return ISO_OK;
  const char *cause = iso_fusion_declined(graph, ISO_FUSION_GRAD_CAST, cast.outputs[0]);
  ISO_TRY(iso_fusion_note(graph, ISO_FUSION_GRAD_CAST, graph->tensors[grad->inputs[3]].name, cause));
  if (cause != NULL) return ISO_OK;
  grad->outputs[grad->output_count - 1] = cast.outputs[0];
  f->gone[c] = true;
  return ISO_OK;
}

static iso_status fuse_all(iso_fuser *f) {
  iso_graph *graph = f->graph;
  for (int n = 0; n < graph->node_count; n++) {
    const iso_node *node = &graph->nodes[n];
    for (int i = 0; i < node->input_count; i++) {
      if (node->inputs[i] >= 0) f->readers[node->inputs[i]]++;
    }
  }
  for (int i = 0; i < graph->parameter_count; i++) {
    if (graph->parameters[i].gradient >= 0) f->gradient[graph->parameters[i].gradient] = true;
  }
  for (int n = 0; n < graph->node_count; n++) {
    if (f->gone[n]) continue;
    if (is_norm(graph->nodes[n].op)) ISO_TRY(fuse_add_norm(f, n));
    if (graph->nodes[n].op == ISO_OP_ADD) ISO_TRY(fuse_norm_grad_add(f, n));
    if (graph->nodes[n].op == ISO_OP_CAST) ISO_TRY(fuse_grad_cast(f, n));
    ISO_TRY(iso_fuse_products(f, n));
  }
  const iso_node *old = graph->nodes;
  const int count = graph->node_count;
  graph->nodes = NULL;
  graph->node_count = graph->node_capacity = 0;
  for (int n = 0; n < count; n++) {
    if (!f->gone[n]) ISO_TRY(iso_graph_node_into(graph, &old[n]));
  }
  return ISO_OK;
}

iso_status iso_pass_fuse(iso_graph *graph, unsigned fusion_off) {
  const size_t tensors = (size_t)graph->tensor_count + 1, nodes = (size_t)graph->node_count + 1;
  iso_fuser f = {.graph = graph};
  graph->fusion_off = fusion_off;
  f.readers = calloc(tensors, sizeof *f.readers);
  f.gradient = calloc(tensors, sizeof *f.gradient);
  f.gone = calloc(nodes, sizeof *f.gone);
  iso_status status = ISO_OK;
  if (f.readers == NULL || f.gradient == NULL || f.gone == NULL) {
    status = iso_fail(ISO_ERR_MEMORY, "fuse: no memory");
  } else {
    status = fuse_all(&f);
  }
  free(f.gone);
  free(f.gradient);
  free(f.readers);
  return status;
}
