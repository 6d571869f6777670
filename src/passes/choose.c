/* SPDX-License-Identifier: Apache-2.0
 *
 * choose: which fusions pay on this machine, measured once at the start. Only rows whose fused form has the bits of the
 * unfused one are measured, so a choice changes time and memory, never a run.
 *
 * The graph is fused on a copy. Each new node there stands for some nodes of the graph as it was; these are cut out as
 * a small graph whose operands are inputs. It is fused and lowered twice, with the row and without it, and the two
 * programs run by turns (options->race). The verdict holds for all places of the row with a tensor of that type and
 * shape in their middle. This knows no row by name: whatever fuse.c does and asks iso_fusion_declined about is
 * measured.
 *
 * Invariants
 *  1. A fusion stays unless the other form is faster by a margin in time and in share, in a second race as well.
 *  2. What was not measured (no budget left, too large a pattern, mode `on`) is fused.
 */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

#define BUDGET_S     0.1  /* of all measurements; the least number of runs of one race may be added to it */
#define LEAST_SHARE  0.05 /* the unfused form must be faster by this share of its time */
#define LEAST_GAIN_S 2e-6 /* and by this time a place */
enum { MAX_NODES = 12, MAX_LEAVES = 32 };

/* ---- the list of choices ---- */

static bool is_like(const iso_choice *choice, int fusion, const iso_tensor *t) {
  if (choice->fusion != fusion || choice->dtype != t->dtype || choice->rank != t->rank) return false;
  return memcmp(choice->shape, t->shape, sizeof *t->shape * (size_t)t->rank) == 0;
}

static iso_choice *add_choice(iso_graph *graph, const iso_choice *choice) {
  if (graph->choice_count == graph->choice_capacity) {
    const int capacity = graph->choice_capacity * 2 + 8;
    iso_choice *larger = iso_arena_alloc(graph->arena, (size_t)capacity * sizeof *larger);
    if (larger == NULL) return NULL;
    if (graph->choice_count > 0) memcpy(larger, graph->choices, (size_t)graph->choice_count * sizeof *larger);
    graph->choices = larger;
    graph->choice_capacity = capacity;
  }
  graph->choices[graph->choice_count] = *choice;
  return &graph->choices[graph->choice_count++];
}

const char *iso_fusion_declined(iso_graph *graph, iso_fusion fusion, iso_id like) {
  const iso_tensor *t = &graph->tensors[like];
  if ((graph->fusion_off >> fusion & 1) != 0) return "switched off";
  for (int i = 0; i < graph->choice_count; i++) {
    if (is_like(&graph->choices[i], (int)fusion, t)) return graph->choices[i].cause;
  }
  iso_choice choice = {.fusion = (int)fusion, .dtype = t->dtype, .rank = t->rank};
  memcpy(choice.shape, t->shape, sizeof choice.shape);
  (void)add_choice(graph, &choice); /* without memory for it: fused, as what is not measured */
  return NULL;
}

void iso_choice_print(const iso_choice *choice, iso_string *out) {
  iso_string_printf(out, "%s[", iso_dtype_name(choice->dtype));
  for (int i = 0; i < choice->rank; i++) iso_string_printf(out, "%s%lld", i ? "," : "", (long long)choice->shape[i]);
  iso_string_printf(out, "]");
}

void iso_choices_print(const iso_graph *graph, iso_string *out) {
  int measured = 0, left_out = 0;
  for (int i = 0; i < graph->choice_count; i++) {
    const iso_choice *choice = &graph->choices[i];
    if (choice->fused_s <= 0) continue;
    iso_string_printf(out, "%s%s %.2fx at ", measured++ > 0 ? ", " : "", iso_fusion_get(choice->fusion)->name,
                      choice->unfused_s / choice->fused_s);
    iso_choice_print(choice, out);
    left_out += choice->cause != NULL;
  }
  if (measured == 0) {
    iso_string_printf(out, "nothing measured");
  } else if (left_out == 0) {
    iso_string_printf(out, " of unfused: all are kept");
  } else {
    iso_string_printf(out, " of unfused: %d of %d are left out", left_out, measured);
  }
}

void iso_fusion_record(const iso_graph *graph, iso_string *out) {
  iso_string_printf(out, "{\"measure_s\": %.4f, \"rows\": {", graph->choose_s);
  for (int row = 0; row < ISO_FUSION_COUNT; row++) {
    iso_string_printf(out, "%s\"%s\": {\"places\": %d, \"fused\": %d}", row > 0 ? ", " : "", iso_fusion_get(row)->name,
                      iso_fusion_places(graph, row, false), iso_fusion_places(graph, row, true));
  }
  iso_string_printf(out, "}, \"measured\": [");
  for (int i = 0, written = 0; i < graph->choice_count; i++) {
    const iso_choice *choice = &graph->choices[i];
    if (choice->fused_s <= 0) continue;
    iso_string_printf(out, "%s{\"fusion\": \"%s\", \"at\": \"", written++ > 0 ? ", " : "",
                      iso_fusion_get(choice->fusion)->name);
    iso_choice_print(choice, out);
    iso_string_printf(out, "\", \"fused_s\": %.3e, \"unfused_s\": %.3e, \"fused\": %s}", choice->fused_s,
                      choice->unfused_s, choice->cause == NULL ? "true" : "false");
  }
  iso_string_printf(out, "]}");
}

/* ---- a place cut out of its graph ---- */

typedef struct cutter {
  const iso_graph *from;
  iso_graph *piece;
  iso_id *mapped;        /* per tensor: its id in the piece + 1 */
  bool *mine;            /* per node: belongs to the piece */
  int nodes, leaf_count; /* nodes > MAX_NODES: too large */
  iso_id leaves[MAX_LEAVES];
} cutter;

static bool reads(const iso_node *node, iso_id id) {
  for (int i = 0; i < node->input_count; i++) {
    if (node->inputs[i] == id) return true;
  }
  return false;
}

/* Marks the nodes that make a tensor from the inputs of the fused node. */
static void mark(cutter *c, const iso_node *fused, iso_id id) {
  const int producer = id < 0 ? -1 : c->from->tensors[id].producer;
  if (producer < 0 || c->mine[producer] || reads(fused, id) || c->nodes > MAX_NODES) return;
  c->mine[producer] = true;
  c->nodes++;
  const iso_node *node = &c->from->nodes[producer];
  for (int i = 0; i < node->input_count; i++) mark(c, fused, node->inputs[i]);
}

/* By space, then place. */
static bool stands_before(const iso_graph *graph, iso_id a, iso_id b) {
  const iso_tensor *x = &graph->tensors[a], *y = &graph->tensors[b];
  return x->space != y->space ? x->space < y->space : x->offset < y->offset;
}

static bool collect_leaf(cutter *c, iso_id id) {
  const int producer = c->from->tensors[id].producer;
  if (producer >= 0 && c->mine[producer]) return true;
  for (int i = 0; i < c->leaf_count; i++) {
    if (c->leaves[i] == id) return true;
  }
  if (c->leaf_count == MAX_LEAVES) return false;
  int at = c->leaf_count++;
  for (; at > 0 && stands_before(c->from, id, c->leaves[at - 1]); at--) c->leaves[at] = c->leaves[at - 1];
  c->leaves[at] = id;
  return true;
}

/* Leaves of flat spaces stay there, neighbours as neighbours; all others become inputs. */
static void declare_leaves(cutter *c) {
  int64_t end = 0;
  for (int i = 0; i < c->leaf_count; i++) {
    const iso_tensor *t = &c->from->tensors[c->leaves[i]];
    iso_id id;
    if (iso_space_is_flat(t->space) && t->space != ISO_SPACE_GRAD) {
      const iso_tensor *before = i > 0 ? &c->from->tensors[c->leaves[i - 1]] : NULL;
      const bool follows =
          before != NULL && before->space == t->space && t->offset == before->offset + iso_tensor_elements(before);
      if (!follows) end = (end + 63) / 64 * 64;
      id = iso_graph_tensor(c->piece, t->name, t->dtype, t->rank, t->shape, t->space);
      c->piece->tensors[id].offset = end;
      end += iso_tensor_elements(t);
      if (end > c->piece->flat_elements) c->piece->flat_elements = end;
    } else {
      id = iso_graph_input(c->piece, t->name, t->dtype, t->rank, t->shape);
    }
    c->mapped[c->leaves[i]] = id + 1;
  }
}

static iso_status copy_nodes(cutter *c) {
  for (int n = 0; n < c->from->node_count; n++) {
    if (!c->mine[n]) continue;
    iso_node node = c->from->nodes[n];
    node.phase = ISO_PHASE_MICRO;
    for (int i = 0; i < node.input_count; i++) {
      if (node.inputs[i] >= 0) node.inputs[i] = c->mapped[node.inputs[i]] - 1;
    }
    for (int i = 0; i < node.output_count; i++) {
      if (node.outputs[i] < 0) continue;
      const iso_tensor *t = &c->from->tensors[node.outputs[i]];
      const iso_id id = iso_graph_tensor(c->piece, t->name, t->dtype, t->rank, t->shape, ISO_SPACE_TRANSIENT);
      c->mapped[node.outputs[i]] = id + 1;
      node.outputs[i] = id;
    }
    ISO_TRY(iso_graph_node_into(c->piece, &node));
  }
  return ISO_OK;
}

/* What makes the outputs of `fused`, or of `view` of its result. *piece NULL: too large to be taken for one place. */
static iso_status cut(const iso_graph *from, const iso_node *fused, const iso_node *view, iso_arena *arena,
                      iso_graph **piece) {
  cutter c = {.from = from, .piece = iso_graph_new(arena, "piece")};
  c.mapped = iso_arena_alloc(arena, sizeof *c.mapped * ((size_t)from->tensor_count + 1));
  c.mine = iso_arena_alloc(arena, sizeof *c.mine * ((size_t)from->node_count + 1));
  *piece = NULL;
  if (c.piece == NULL || c.mapped == NULL || c.mine == NULL) return iso_fail(ISO_ERR_MEMORY, "choose: no memory");
  for (int i = 0; i < view->output_count; i++) mark(&c, fused, view->outputs[i]);
  bool fits = c.nodes > 0 && c.nodes <= MAX_NODES;
  for (int n = 0; n < from->node_count && fits; n++) {
    for (int i = 0; c.mine[n] && i < from->nodes[n].input_count && fits; i++) {
      if (from->nodes[n].inputs[i] >= 0) fits = collect_leaf(&c, from->nodes[n].inputs[i]);
    }
  }
  if (!fits) return ISO_OK;
  c.piece->compute = from->compute;
  c.piece->gradient = from->gradient;
  c.piece->tokens = from->tokens;
  declare_leaves(&c);
  ISO_TRY(copy_nodes(&c));
  *piece = c.piece;
  return ISO_OK;
}

/* ---- two forms of it ---- */

typedef struct chooser {
  iso_graph *graph; /* gets the choices */
  const iso_compile_options *options;
  iso_arena *arena;
  double ends_s;
} chooser;

/* The piece fused under the choices so far; `without`: but for this one. */
static iso_status form(const chooser *c, const iso_graph *piece, const iso_choice *without, iso_graph **fused,
                       iso_program **program) {
  iso_graph *graph = iso_graph_copy(c->arena, piece);
  if (graph == NULL) return iso_fail(ISO_ERR_MEMORY, "choose: no memory");
  graph->choice_count = 0;
  for (int i = 0; i < c->graph->choice_count; i++) (void)add_choice(graph, &c->graph->choices[i]);
  if (without != NULL) {
    iso_choice trial = *without;
    trial.cause = "left out on trial";
    (void)add_choice(graph, &trial);
  }
  ISO_TRY(iso_pass_fuse(graph, c->options->fusion_off));
  *fused = graph;
  if (program == NULL) return ISO_OK;
  ISO_TRY(iso_pass_lower(graph, c->options->threads, program));
  ISO_TRY(iso_pass_memplan(*program));
  return iso_pass_barriers(*program);
}

/* True if the unfused form is faster by the margins. Half the speed is no kernel's doing: the machine was busy. */
static bool is_slower(const iso_choice *choice) {
  const double gain_s = choice->fused_s - choice->unfused_s;
  return gain_s > LEAST_GAIN_S && gain_s > LEAST_SHARE * choice->unfused_s && gain_s < choice->unfused_s;
}

/* Races the two forms; the fastest runs so far count. */
static iso_status measure(const chooser *c, const iso_graph *piece, iso_choice *choice) {
  const double left_s = c->ends_s - iso_clock_s();
  iso_program *programs[2];
  iso_graph *graph;
  double seconds[2] = {0};
  if (left_s <= 0) return ISO_OK;
  ISO_TRY(form(c, piece, NULL, &graph, &programs[0]));
  ISO_TRY(form(c, piece, choice, &graph, &programs[1]));
  ISO_TRY(c->options->race(c->options->race_context, programs, 2, left_s, seconds));
  if (choice->fused_s <= 0 || (seconds[0] > 0 && seconds[0] < choice->fused_s)) choice->fused_s = seconds[0];
  if (choice->unfused_s <= 0 || (seconds[1] > 0 && seconds[1] < choice->unfused_s)) choice->unfused_s = seconds[1];
  return ISO_OK;
}

/* A fusion is left out only where a second race says so, too. */
static iso_status settle(const chooser *c, const iso_graph *piece, iso_choice choice) {
  const bool wanted = (c->options->fusion_measure >> choice.fusion & 1) != 0 && iso_fusion_keeps_bits(choice.fusion);
  if (wanted) ISO_TRY(measure(c, piece, &choice));
  const bool doubtful = is_slower(&choice) && c->ends_s > iso_clock_s();
  if (doubtful) ISO_TRY(measure(c, piece, &choice));
  if (doubtful && is_slower(&choice)) {
    iso_string shape = {0};
    iso_choice_print(&choice, &shape);
    choice.cause = iso_arena_printf(c->graph->arena, "measured: %.2fx of unfused at %s",
                                    choice.unfused_s / choice.fused_s, shape.data ? shape.data : "");
    iso_string_fini(&shape);
  }
  if (add_choice(c->graph, &choice) == NULL) return iso_fail(ISO_ERR_MEMORY, "choose: no memory");
  return ISO_OK;
}

/* Every choice that fusing this place asks for and that has not been made yet. */
static iso_status choose_at(const chooser *c, const iso_graph *before, const iso_node *fused, const iso_node *view) {
  iso_graph *piece, *graph;
  ISO_TRY(cut(before, fused, view, c->arena, &piece));
  if (piece == NULL) return ISO_OK;
  for (;;) {
    const int known = c->graph->choice_count;
    ISO_TRY(form(c, piece, NULL, &graph, NULL));
    if (graph->choice_count <= known) return ISO_OK;
    ISO_TRY(settle(c, piece, graph->choices[known]));
  }
}

/* True if the node is in the graph as it was. */
static bool unchanged(const iso_graph *before, const iso_node *node) {
  int producer = -1;
  for (int i = 0; i < node->output_count && producer < 0; i++) {
    if (node->outputs[i] >= 0) producer = before->tensors[node->outputs[i]].producer;
  }
  if (producer < 0) return true; /* it writes state only */
  const iso_node *old = &before->nodes[producer];
  const size_t outputs = sizeof *node->outputs * (size_t)node->output_count;
  return old->op == node->op && old->output_count == node->output_count &&
         memcmp(old->outputs, node->outputs, outputs) == 0;
}

/* True if another node has the op and the operands' shapes: it was looked at for all of its kind. */
static bool same_kind(const iso_graph *graph, const iso_node *a, const iso_node *b) {
  if (a->op != b->op) return false;
  for (int i = 0; i < a->input_count + a->output_count; i++) {
    const iso_id x = i < a->input_count ? a->inputs[i] : a->outputs[i - a->input_count];
    const iso_id y = i < a->input_count ? b->inputs[i] : b->outputs[i - a->input_count];
    if ((x < 0) != (y < 0)) return false;
    if (x < 0) continue;
    const iso_tensor *s = &graph->tensors[x], *t = &graph->tensors[y];
    if (s->dtype != t->dtype || s->rank != t->rank) return false;
    if (memcmp(s->shape, t->shape, sizeof *s->shape * (size_t)s->rank) != 0) return false;
  }
  return true;
}

/* Where parts of a product are others now, so is the product. */
static int maker(const iso_graph *graph, int n) {
  const iso_node *node = &graph->nodes[n];
  return node->op == ISO_OP_SPLIT ? graph->tensors[node->inputs[0]].producer : n;
}

/* Of a node in operations, a byte counted as the 50 that take its time. */
static double cost(const iso_graph *graph, int n) {
  int64_t flop = 0, bytes = 0;
  if (n >= 0) iso_node_cost(graph, &graph->nodes[n], &flop, &bytes);
  return (double)flop + 50.0 * (double)bytes;
}

/* Every kind of place once, the cheapest first, so that the budget serves most of them. */
static iso_status choose_all(const chooser *c) {
  iso_graph *fused = iso_graph_copy(c->arena, c->graph);
  const iso_graph *before = iso_graph_copy(c->arena, c->graph);
  if (fused == NULL || before == NULL) return iso_fail(ISO_ERR_MEMORY, "choose: no memory");
  ISO_TRY(iso_pass_fuse(fused, c->options->fusion_off));
  int *kinds = iso_arena_alloc(c->arena, sizeof *kinds * ((size_t)fused->node_count + 1)), kind_count = 0;
  if (kinds == NULL) return iso_fail(ISO_ERR_MEMORY, "choose: no memory");
  for (int n = 0; n < fused->node_count; n++) {
    const iso_node *node = &fused->nodes[n];
    bool known = unchanged(before, node);
    for (int k = 0; k < kind_count && !known; k++) known = same_kind(fused, &fused->nodes[kinds[k]], node);
    if (known) continue;
    int at = kind_count++;
    for (; at > 0 && cost(fused, maker(fused, n)) < cost(fused, maker(fused, kinds[at - 1])); at--)
      kinds[at] = kinds[at - 1];
    kinds[at] = n;
  }
  for (int k = 0; k < kind_count; k++) {
    const int made_by = maker(fused, kinds[k]);
    if (made_by >= 0) ISO_TRY(choose_at(c, before, &fused->nodes[made_by], &fused->nodes[kinds[k]]));
  }
  return ISO_OK;
}

iso_status iso_pass_choose(iso_graph *graph, const iso_compile_options *options) {
  const iso_graph *other = options->choices_of;
  for (int i = 0; other != NULL && i < other->choice_count; i++) {
    if (add_choice(graph, &other->choices[i]) == NULL) return iso_fail(ISO_ERR_MEMORY, "choose: no memory");
  }
  if (options->race == NULL || options->fusion_measure == 0) return ISO_OK;
  const double began = iso_clock_s();
  chooser c = {.graph = graph, .options = options, .arena = iso_arena_create(), .ends_s = began + BUDGET_S};
  if (c.arena == NULL) return iso_fail(ISO_ERR_MEMORY, "choose: no memory");
  const iso_status status = choose_all(&c);
  iso_arena_destroy(&c.arena);
  graph->choose_s = iso_clock_s() - began;
  return status;
}
