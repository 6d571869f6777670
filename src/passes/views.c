/* SPDX-License-Identifier: Apache-2.0
 *
 * views: decides which tensors share storage, so that split, concat and in-place ops move no bytes.
 *
 *   split    every part is a range of columns of its input; kernels read it with the input's row stride
 *   concat   a part is written by its producer straight into its columns of the result
 *   in-place the output takes the storage of an input that dies at this node
 *
 * Invariants
 *  1. Only transients move into other storage; their element type is that of the storage.
 *  2. A tensor moves once; a part that is already elsewhere (or stands twice) is copied by the lowered program instead.
 *  3. In-place: nothing that overlaps the taken columns is read after this node, and no other operand of it overlaps
 * them.
 */
#include "passes/passes.h"

#include <stdlib.h>

iso_id iso_place_root(const iso_place *places, iso_id id, int64_t *column) {
  int64_t at = 0;
  for (; places[id].parent >= 0; id = places[id].parent) at += places[id].column;
  if (column != NULL) *column = at;
  return id;
}

static void place_split(const iso_graph *graph, const iso_node *node, iso_place *places) {
  int64_t column = 0;
  for (int i = 0; i < node->output_count; i++) {
    iso_id part = node->outputs[i];
    if (part < 0) continue;
    if (graph->tensors[part].space == ISO_SPACE_TRANSIENT) places[part] = (iso_place){node->inputs[0], column};
    column += graph->tensors[part].shape[1];
  }
}

static void place_concat(const iso_graph *graph, const iso_node *node, iso_place *places) {
  const iso_tensor *whole = &graph->tensors[node->outputs[0]];
  int64_t column = 0;
  for (int i = 0; i < node->input_count; i++) {
    iso_id id = node->inputs[i];
    if (id < 0) continue;
    const iso_tensor *part = &graph->tensors[id];
    bool free_to_move = part->space == ISO_SPACE_TRANSIENT && whole->space == ISO_SPACE_TRANSIENT &&
                        part->dtype == whole->dtype && places[id].parent < 0;
    if (free_to_move) places[id] = (iso_place){node->outputs[0], column};
    column += part->shape[1];
  }
}

/* Tensors by the root of their storage, as linked lists. */
typedef struct sharing {
  const iso_graph *graph;
  iso_place *places;
  int *last_read; /* per tensor: last node with an instruction that reads it */
  iso_id *head;   /* per root: first member */
  iso_id *tail;   /* per root: last member */
  iso_id *next;   /* per tensor: next member, -1 */
} sharing;

static bool columns_overlap(const sharing *s, iso_id a, iso_id b) {
  int64_t at_a = 0, at_b = 0;
  if (iso_place_root(s->places, a, &at_a) != iso_place_root(s->places, b, &at_b)) return false;
  const iso_tensor *ta = &s->graph->tensors[a], *tb = &s->graph->tensors[b];
  if (ta->rank != 2 || tb->rank != 2) return true;
  return at_a < at_b + tb->shape[1] && at_b < at_a + ta->shape[1];
}

/* True if output 0 of node n may take the storage of its input i. */
static bool may_take(const sharing *s, int n, int i) {
  const iso_node *node = &s->graph->nodes[n];
  iso_id in = node->inputs[i], out = node->outputs[0];
  if (in < 0 || out < 0 || s->places[out].parent >= 0) return false;
  const iso_tensor *from = &s->graph->tensors[in], *to = &s->graph->tensors[out];
  if (from->space != ISO_SPACE_TRANSIENT || to->space != ISO_SPACE_TRANSIENT || from->dtype != to->dtype) return false;
  iso_id root = iso_place_root(s->places, in, NULL);
  if (s->graph->tensors[root].space != ISO_SPACE_TRANSIENT) return false;
  for (int j = 0; j < node->input_count; j++) {
    if (j != i && node->inputs[j] >= 0 && columns_overlap(s, in, node->inputs[j])) return false;
  }
  for (iso_id m = s->head[root]; m >= 0; m = s->next[m]) {
    if (s->last_read[m] > n && columns_overlap(s, in, m)) return false;
  }
  return true;
}

/* True if a split or concat node moves no bytes for operand `part`, so does not read `whole`. */
static bool elided(const iso_graph *graph, const iso_place *places, const iso_node *node) {
  if (node->op == ISO_OP_SPLIT) {
    for (int i = 0; i < node->output_count; i++) {
      if (node->outputs[i] >= 0 && places[node->outputs[i]].parent != node->inputs[0]) return false;
    }
    return true;
  }
  return node->op == ISO_OP_ADD && graph->tensors[node->outputs[0]].space == ISO_SPACE_GRAD;
}

static void note_reads(sharing *s) {
  for (iso_id id = 0; id < s->graph->tensor_count; id++) s->last_read[id] = -1;
  for (int n = 0; n < s->graph->node_count; n++) {
    const iso_node *node = &s->graph->nodes[n];
    if (elided(s->graph, s->places, node)) continue;
    for (int i = 0; i < node->input_count; i++) {
      if (node->inputs[i] >= 0)
        s->last_read[node->inputs[i]] = n; /* a concat's parts: it is their reader in any case */
    }
  }
}

static void join(sharing *s, iso_id root, iso_id other) {
  s->next[s->tail[root]] = s->head[other];
  s->tail[root] = s->tail[other];
}

static void place_inplace(sharing *s) {
  for (int n = 0; n < s->graph->node_count; n++) {
    const iso_node *node = &s->graph->nodes[n];
    int flags = iso_op_get(node->op)->flags;
    for (int i = 0; i < 2; i++) {
      if ((flags & (i == 0 ? ISO_OP_FLAG_INPLACE : ISO_OP_FLAG_INPLACE1)) == 0 || !may_take(s, n, i)) continue;
      join(s, iso_place_root(s->places, node->inputs[i], NULL), node->outputs[0]);
      s->places[node->outputs[0]] = (iso_place){node->inputs[i], 0};
      break;
    }
  }
}

iso_status iso_views_resolve(const iso_graph *graph, iso_place *places) {
  size_t bytes = sizeof(int) * ((size_t)graph->tensor_count + 1);
  sharing s = {graph, places, malloc(bytes), malloc(bytes), malloc(bytes), malloc(bytes)};
  iso_status status = ISO_OK;
  if (s.last_read == NULL || s.head == NULL || s.tail == NULL || s.next == NULL) {
    status = iso_fail(ISO_ERR_MEMORY, "lower: no memory");
    goto done;
  }
  for (iso_id id = 0; id < graph->tensor_count; id++) places[id] = (iso_place){-1, 0};
  for (int n = 0; n < graph->node_count; n++) {
    const iso_node *node = &graph->nodes[n];
    if (node->op == ISO_OP_SPLIT) place_split(graph, node, places);
    if (node->op == ISO_OP_CONCAT) place_concat(graph, node, places);
  }
  note_reads(&s);
  for (iso_id id = 0; id < graph->tensor_count; id++) {
    s.head[id] = s.tail[id] = id;
    s.next[id] = -1;
  }
  for (iso_id id = 0; id < graph->tensor_count; id++) {
    if (places[id].parent >= 0) join(&s, iso_place_root(places, id, NULL), id);
  }
  place_inplace(&s);
done:
  free(s.next);
  free(s.tail);
  free(s.head);
  free(s.last_read);
  return status;
}
