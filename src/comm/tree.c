/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over the complete binary tree of a run's virtual workers, from whatever aligned pieces of it are at hand.
 *
 * Strips of STRIP elements go through the whole tree at a time, so that inner nodes stay in the first cache; a node of
 * which there is a piece is read where it lies. Each piece is read once and each sum written once.
 *
 * Invariants
 *  1. Which pieces are at hand changes who adds, never what is added to what.
 *  2. The walk meets the pieces in ascending order, so it needs no search.
 */
#include "comm/comm.h"

#include <assert.h>
#include <string.h>

enum { STRIP = 2048 };
static_assert(ISO_TREE_SCRATCH == STRIP * 17, "a strip for each depth of the tree");

int iso_tree_parts(int first, int count, iso_part parts[ISO_MOST_PARTS]) {
  int made = 0;
  for (const int end = first + count; first < end;) {
    int size = first ? first & -first : ISO_MOST_LEAVES;
    while (size > end - first) size /= 2;
    parts[made++] = (iso_part){first, size, NULL};
    first += size;
  }
  return made;
}

typedef struct walk {
  const iso_part *parts, *next;
  int workers;
  int64_t at, strip;
  float *scratch;
} walk;

/* Sixteen at a time through a local array, so that a compiler makes vectors of it though `out` may be a or b. */
static void add(const float *a, const float *b, int64_t count, float *out) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    float sums[16];
    for (int j = 0; j < 16; j++) sums[j] = a[i + j] + b[i + j];
    memcpy(out + i, sums, sizeof sums);
  }
  for (; i < count; i++) out[i] = a[i] + b[i];
}

static const float *take(walk *w, int first, int count) {
  const iso_part *part = w->next;
  if (part->count < count) return NULL;
  assert(part->first == first && part->count == count);
  w->next++;
#ifdef ISO_SABOTAGE_SWAP_CHILDREN /* tests/comm: a right child and the left one of the next node change places */
  const bool right = part->first / part->count % 2;
  if (right && part->first + part->count < w->workers && part[1].count == part->count)
    part++;
  else if (!right && part > w->parts && part[-1].count == part->count)
    part--;
#endif
  return part->data + w->at;
}

/* Where the node's sum of the strip lies; inner nodes at `depth` are made in their strip of the scratch, or in `out`.
 */
static const float *node(walk *w, int first, int count, int depth, float *out) {
  const float *there = take(w, first, count);
  if (there) return there;
  float *left_out = w->scratch + (size_t)depth * STRIP; /* free again once this node is made */
  const float *left = node(w, first, count / 2, depth, left_out);
  const float *right = node(w, first + count / 2, count / 2, depth + 1, w->scratch + (size_t)(depth + 1) * STRIP);
  add(left, right, w->strip, out);
  return out;
}

void iso_tree_sum(const iso_part *parts, int workers, int64_t elements, float *out, float *scratch) {
  for (int64_t at = 0; at < elements; at += STRIP) {
    walk w = {parts, parts, workers, at, elements - at < STRIP ? elements - at : STRIP, scratch};
    const float *sum = node(&w, 0, workers, 0, out + at);
    if (sum != out + at) memcpy(out + at, sum, (size_t)w.strip * sizeof *out);
  }
}
