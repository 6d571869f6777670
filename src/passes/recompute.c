/* SPDX-License-Identifier: Apache-2.0
 *
 * recompute: activations that are made again in the backward pass instead of kept, so that the plan fits a limit.
 *
 * A value of the forward pass that the backward pass reads lives through everything between. Its node can run a second
 * time just before that reader: the same kernel on the same inputs, so the same bits. What the second run reads must
 * live (most of it does anyway) or be made again too; such a group of nodes is a candidate. Candidates are taken in
 * order of estimated time for each byte they save, cheapest first, and the fewest that fit are used.
 *
 * Invariants
 *  1. A plan that fits is left as it is; one that fits with k candidates has no more than these.
 *  2. Only ops whose inputs lead back to the residual stream in a few steps are made again (see may_repeat), and the
 *     residual stream itself is kept: chains do not run through layers.
 *  3. Deterministic: the estimate counts operations and bytes, ties go to the earlier node.
 *
 * What it does not do: it does not refuse. When all candidates are too few, all are used and the caller sees the plan.
 */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

#define AGAIN ".again" /* suffix of the names of values made again */

/* Operations that take the time of moving one byte: memory-bound ops cost by their bytes. */
#define FLOP_PER_BYTE 50

/* The arena is planned exactly only where this share of the limit is not enough to be sure. */
#define SURE 0.97

typedef struct repeat {
  iso_graph *graph;
  int root;    /* the last loss: nodes behind it are the backward pass */
  bool *read;  /* per tensor: the backward pass reads it, or a view of it */
  int *turn;   /* per node: candidate that takes it, from 1; 0: none */
  bool *group; /* per node: scratch of gather() */
  int candidates;
  int threads;         /* of the plan */
  unsigned fusion_off; /* of the passes that follow */
} repeat;

static bool may_repeat(iso_op op) {
  switch (op) {
  case ISO_OP_RMSNORM:
  case ISO_OP_LAYERNORM:
  case ISO_OP_LINEAR:
  case ISO_OP_LINEAR_JOINT:
  case ISO_OP_ROPE:
  case ISO_OP_ATTENTION:
  case ISO_OP_SWIGLU:
  case ISO_OP_GELU:
  case ISO_OP_CAST:
    return true;
  default:
    return false;
  }
}

/* The forward node that makes a transient, through splits; -1: none. */
static int maker(const repeat *r, iso_id id) {
  while (id >= 0 && r->graph->tensors[id].space == ISO_SPACE_TRANSIENT) {
    int producer = r->graph->tensors[id].producer;
    if (producer < 0 || producer >= r->root) return -1;
    if (r->graph->nodes[producer].op != ISO_OP_SPLIT) return producer;
    id = r->graph->nodes[producer].inputs[0];
  }
  return -1;
}

/* Statistics are small, and read by gradients: they are kept. */
static bool repeats_output(const iso_node *node, int i) {
  return node->outputs[i] >= 0 && !iso_op_output_optional(node->op, i);
}

static void mark_read(repeat *r) {
  const iso_graph *graph = r->graph;
  for (int n = graph->node_count - 1; n >= 0; n--) {
    const iso_node *node = &graph->nodes[n];
    bool reads = n > r->root;
    for (int i = 0; i < node->output_count && node->op == ISO_OP_SPLIT && !reads; i++) {
      reads = node->outputs[i] >= 0 && r->read[node->outputs[i]];
    }
    for (int i = 0; i < node->input_count; i++) {
      if (reads && node->inputs[i] >= 0) r->read[node->inputs[i]] = true;
    }
  }
}

/* Adds a node and what must run again for it to the group; bytes it frees less those it keeps alive, and its time. */
static void gather(repeat *r, int n, int64_t *saved, double *time) {
  const iso_graph *graph = r->graph;
  const iso_node *node = &graph->nodes[n];
  int64_t flop = 0, bytes = 0;
  if (r->group[n]) return;
  r->group[n] = true;
  iso_node_cost(graph, node, &flop, &bytes);
  *time += (double)flop + FLOP_PER_BYTE * (double)bytes;
  for (int i = 0; i < node->output_count; i++) {
    if (repeats_output(node, i) && r->read[node->outputs[i]])
      *saved += iso_tensor_bytes(&graph->tensors[node->outputs[i]]);
  }
  for (int i = 0; i < node->input_count; i++) {
    iso_id id = node->inputs[i];
    if (id < 0 || graph->tensors[id].space != ISO_SPACE_TRANSIENT || r->read[id]) continue;
    int from = maker(r, id);
    if (from >= 0 && r->turn[from] > 0) continue;
    if (from >= 0 && may_repeat(graph->nodes[from].op)) {
      gather(r, from, saved, time);
    } else {
      *saved -= iso_tensor_bytes(&graph->tensors[id]);
    }
  }
}

/* Takes candidates one by one, the cheapest for each byte first, until none saves anything. */
static void choose(repeat *r) {
  const size_t bytes = (size_t)r->root * sizeof *r->group;
  for (;;) {
    int best = -1;
    double best_price = 0;
    for (int n = 0; n < r->root; n++) {
      const iso_node *node = &r->graph->nodes[n];
      if (r->turn[n] > 0 || !may_repeat(node->op) || node->phase != ISO_PHASE_MICRO) continue;
      int64_t saved = 0;
      double time = 0;
      memset(r->group, 0, bytes);
      gather(r, n, &saved, &time);
      if (saved <= 0 || (best >= 0 && time / (double)saved >= best_price)) continue;
      best = n;
      best_price = time / (double)saved;
    }
    if (best < 0) return;
    int64_t saved = 0;
    double time = 0;
    memset(r->group, 0, bytes);
    gather(r, best, &saved, &time);
    r->candidates++;
    for (int n = 0; n < r->root; n++) {
      if (r->group[n]) r->turn[n] = r->candidates;
    }
  }
}

/* ---- the graph with the first `count` candidates made again ---- */

typedef struct rewrite {
  const repeat *r;
  iso_graph *graph;
  const iso_node *old;
  iso_id *again; /* per tensor of the old graph: its second making, -1: none yet */
  int count;
} rewrite;

static iso_status use(rewrite *w, iso_id *id);

static iso_status emit(rewrite *w, int n) {
  iso_node node = w->old[n];
  for (int i = 0; i < node.input_count; i++) ISO_TRY(use(w, &node.inputs[i]));
  for (int i = 0; i < node.output_count; i++) {
    iso_id from = node.outputs[i];
    bool wanted = node.op == ISO_OP_SPLIT ? from >= 0 : repeats_output(&node, i);
    node.outputs[i] = -1;
    if (!wanted) continue;
    const iso_tensor t = w->graph->tensors[from];
    const char *name = iso_arena_printf(w->graph->arena, "%s" AGAIN, t.name);
    node.outputs[i] = iso_graph_tensor(w->graph, name, t.dtype, t.rank, t.shape, ISO_SPACE_TRANSIENT);
    w->again[from] = node.outputs[i];
  }
  return iso_graph_node_into(w->graph, &node);
}

/* Replaces a value by its second making where it has one, which is emitted first. */
static iso_status use(rewrite *w, iso_id *id) {
  int from = *id < 0 ? -1 : maker(w->r, *id);
  if (from < 0 || w->r->turn[from] == 0 || w->r->turn[from] > w->count) return ISO_OK;
  int producer = w->r->graph->tensors[*id].producer;
  const iso_node *node = &w->old[producer];
  for (int i = 0; i < node->output_count && node->op != ISO_OP_SPLIT; i++) {
    if (node->outputs[i] == *id && !repeats_output(node, i)) return ISO_OK;
  }
  if (w->again[*id] < 0) ISO_TRY(emit(w, producer));
  *id = w->again[*id];
  return ISO_OK;
}

/* Makes `graph`, which is what r->graph was copied from or another copy of it, the one with `count` candidates. */
static iso_status apply(const repeat *r, iso_graph *graph, int count) {
  rewrite w = {.r = r, .graph = graph, .old = r->graph->nodes, .count = count};
  w.again = malloc(sizeof *w.again * ((size_t)r->graph->tensor_count + 1));
  if (w.again == NULL) return iso_fail(ISO_ERR_MEMORY, "recompute: no memory");
  for (iso_id id = 0; id < r->graph->tensor_count; id++) w.again[id] = -1;
  graph->nodes = NULL;
  graph->node_count = graph->node_capacity = 0;
  iso_status status = ISO_OK;
  for (int n = 0; n < r->graph->node_count && status == ISO_OK; n++) {
    iso_node node = w.old[n];
    for (int i = 0; i < node.input_count && n > r->root && status == ISO_OK; i++) status = use(&w, &node.inputs[i]);
    if (status == ISO_OK) status = iso_graph_node_into(graph, &node);
  }
  free(w.again);
  return status;
}

/* What the plan with `count` candidates needs: its live bytes, or where these leave a doubt the arena itself. */
static iso_status measure(const repeat *r, int count, int64_t limit, int64_t *bytes) {
  iso_arena *arena = iso_arena_create();
  iso_program *program = NULL;
  iso_graph *trial = arena != NULL ? iso_graph_copy(arena, r->graph) : NULL;
  iso_status status = trial != NULL ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "recompute: no memory");
  if (status == ISO_OK) status = apply(r, trial, count);
  if (status == ISO_OK) status = iso_pass_fuse(trial, r->fusion_off);
  if (status == ISO_OK) status = iso_pass_schedule(trial);
  if (status == ISO_OK) status = iso_pass_lower(trial, r->threads, &program);
  if (status == ISO_OK) {
    iso_program_peak(program, bytes);
    if (*bytes <= limit && (double)*bytes > SURE * (double)limit) {
      status = iso_pass_memplan(program);
      *bytes = program->arena_bytes;
    }
  }
  iso_arena_destroy(&arena);
  return status;
}

/* The fewest candidates that fit; all of them when none do. */
static iso_status fewest(const repeat *r, int64_t limit, int *count) {
  int low = 0, high = r->candidates; /* `low` does not fit */
  while (high - low > 1) {
    int middle = low + (high - low) / 2;
    int64_t bytes = 0;
    ISO_TRY(measure(r, middle, limit, &bytes));
    if (bytes <= limit) {
      high = middle;
    } else {
      low = middle;
    }
  }
  *count = high;
  return ISO_OK;
}

static iso_status recompute(repeat *r, iso_graph *graph, int64_t limit) {
  int64_t before = 0, after = 0;
  int count = 0;
  ISO_TRY(measure(r, 0, limit, &before));
  if (before <= limit) return ISO_OK;
  mark_read(r);
  choose(r);
  if (r->candidates == 0) return ISO_OK;
  ISO_TRY(fewest(r, limit, &count));
  ISO_TRY(measure(r, count, INT64_MAX, &after));
  ISO_TRY(measure(r, 0, INT64_MAX, &before));
  graph->saved_bytes = before - after;
  return apply(r, graph, count);
}

iso_status iso_pass_recompute(iso_graph *graph, int threads, unsigned fusion_off, int64_t limit) {
  repeat r = {.threads = threads, .fusion_off = fusion_off, .root = -1};
  for (int n = 0; n < graph->node_count; n++) {
    if (graph->nodes[n].op == ISO_OP_LINEAR_CROSS_ENTROPY) r.root = n;
  }
  if (limit <= 0 || r.root < 0) return ISO_OK;
  iso_status status = ISO_OK;
  iso_arena *arena = iso_arena_create();
  r.graph = arena != NULL ? iso_graph_copy(arena, graph) : NULL;
  r.read = calloc((size_t)graph->tensor_count + 1, sizeof *r.read);
  r.turn = calloc((size_t)graph->node_count + 1, sizeof *r.turn);
  r.group = calloc((size_t)graph->node_count + 1, sizeof *r.group);
  if (r.graph == NULL || r.read == NULL || r.turn == NULL || r.group == NULL) {
    status = iso_fail(ISO_ERR_MEMORY, "recompute: no memory");
  } else {
    status = recompute(&r, graph, limit);
  }
  free(r.group);
  free(r.turn);
  free(r.read);
  iso_arena_destroy(&arena);
  return status;
}

/* ---- the report ---- */

static bool is_again(const iso_graph *graph, const iso_node *node) {
  const size_t suffix = strlen(AGAIN);
  for (int i = 0; i < node->output_count; i++) {
    const char *name = node->outputs[i] >= 0 ? graph->tensors[node->outputs[i]].name : "";
    const size_t length = strlen(name);
    if (length > suffix && strcmp(name + length - suffix, AGAIN) == 0) return true;
  }
  return false;
}

void iso_recompute_print(const iso_graph *graph, iso_string *out) {
  int64_t calls[ISO_OP_COUNT] = {0}, made[ISO_OP_COUNT] = {0}, total = 0, again = 0, values = 0;
  for (int n = 0; n < graph->node_count; n++) {
    const iso_node *node = &graph->nodes[n];
    int64_t flop = 0, bytes = 0;
    iso_node_cost(graph, node, &flop, &bytes);
    total += flop;
    if (node->op == ISO_OP_SPLIT || !is_again(graph, node)) continue;
    again += flop;
    values++;
    calls[node->op]++;
    for (int i = 0; i < node->output_count; i++) {
      if (node->outputs[i] >= 0) made[node->op] += iso_tensor_bytes(&graph->tensors[node->outputs[i]]);
    }
  }
  if (values == 0) {
    iso_string_printf(out, "recompute: nothing, every activation is kept for the backward pass\n");
    return;
  }
  iso_string_printf(out,
                    "recompute: %lld activations are made again, saves %lld bytes of arena, costs %.2f%% more FLOP\n",
                    (long long)values, (long long)graph->saved_bytes, 100.0 * (double)again / (double)(total - again));
  for (int op = 1; op < ISO_OP_COUNT; op++) {
    if (calls[op] == 0) continue;
    iso_string_printf(out, "%16lld  bytes of %lld %s\n", (long long)made[op], (long long)calls[op],
                      iso_op_get((iso_op)op)->text);
  }
}
