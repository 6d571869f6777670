/* SPDX-License-Identifier: Apache-2.0
 *
 * bpe.c: the merge loop, and the table of merges that both file formats become.
 *
 * A merge is (left id, right id) -> (rank, new id). tokenizer.json lists merges: rank = place in the list. A rank file
 * merges two neighbours when their bytes together are a token, lowest id first: that is the same table with one entry
 * for each way to cut a token in two tokens, ranked by its id.
 *
 * Short pieces (words) are merged by looking for the lowest rank again and again over two small arrays, which is
 * fastest for them. Long ones use a linked list and a heap of (rank, position).
 *
 * Invariants
 *  1. Order: lowest rank first, leftmost first among equal ranks; both loops give the same ids.
 *  2. O(n log n) in time and O(n) in memory for n ids, whatever they are; nothing recurses.
 *  3. An entry of the heap is acted on only if the pair at its position still has that rank.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT_PIECE = 48 };

/* ---- the table ---- */

static uint64_t pair_hash(uint64_t key) {
  key = (key ^ key >> 32) * 0x9E3779B97F4A7C15u;
  return key ^ key >> 32;
}

static uint64_t pair_key(int32_t left, int32_t right) {
  return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

iso_status iso_pairs_reserve(iso_pairs *pairs, uint64_t count) {
  uint64_t slots = 64;
  while (slots < 2 * count) slots *= 2;
  if (slots <= pairs->slot_count) return ISO_OK;
  iso_pairs old = *pairs;
  pairs->slots = malloc(slots * sizeof *pairs->slots);
  if (!pairs->slots) {
    *pairs = old;
    return iso_fail(ISO_ERR_MEMORY, "out of memory for a table of %llu merges", (unsigned long long)count);
  }
  memset(pairs->slots, 0xFF, slots * sizeof *pairs->slots);
  pairs->slot_count = slots;
  pairs->used = 0;
  for (uint64_t i = 0; i < old.slot_count; i++) {
    const iso_pair *pair = &old.slots[i];
    if (pair->key != UINT64_MAX)
      (void)iso_pairs_add(pairs, (int32_t)(pair->key >> 32), (int32_t)(uint32_t)pair->key, pair->rank, pair->id);
  }
  free(old.slots);
  return ISO_OK;
}

bool iso_pairs_add(iso_pairs *pairs, int32_t left, int32_t right, int32_t rank, int32_t id) {
  uint64_t key = pair_key(left, right), mask = pairs->slot_count - 1, slot = pair_hash(key) & mask;
  while (pairs->slots[slot].key != UINT64_MAX) {
    if (pairs->slots[slot].key == key) return false;
    slot = (slot + 1) & mask;
  }
  pairs->slots[slot] = (iso_pair){key, rank, id};
  pairs->used++;
  return true;
}

const iso_pair *iso_pairs_find(const iso_pairs *pairs, int32_t left, int32_t right) {
  if (pairs->slot_count == 0) return NULL;
  uint64_t key = pair_key(left, right), mask = pairs->slot_count - 1;
  for (uint64_t slot = pair_hash(key) & mask;; slot = (slot + 1) & mask) {
    const iso_pair *pair = &pairs->slots[slot];
    if (pair->key == key) return pair;
    if (pair->key == UINT64_MAX) return NULL;
  }
}

void iso_pairs_fini(iso_pairs *pairs) {
  free(pairs->slots);
  *pairs = (iso_pairs){0};
}

iso_status iso_pairs_from_ranks(iso_pairs *pairs, const iso_vocabulary *vocabulary) {
  for (int64_t id = 0; id < vocabulary->count; id++) {
    const iso_token *token = &vocabulary->tokens[id];
    if (!token->present) continue;
    const char *bytes = vocabulary->bytes.data + token->offset;
    for (uint32_t cut = 1; cut < token->length; cut++) {
      int32_t left = iso_vocabulary_find(vocabulary, bytes, cut, true);
      int32_t right = left < 0 ? -1 : iso_vocabulary_find(vocabulary, bytes + cut, token->length - cut, true);
      if (right < 0) continue;
      if (2 * (pairs->used + 1) > pairs->slot_count) ISO_TRY(iso_pairs_reserve(pairs, pairs->used + 1));
      (void)iso_pairs_add(pairs, left, right, (int32_t)id, (int32_t)id);
    }
  }
  return ISO_OK;
}

/* ---- merging ---- */

static size_t merge_short(const iso_pairs *pairs, int32_t *ids, size_t count, size_t stop) {
  int32_t ranks[SHORT_PIECE], merged[SHORT_PIECE]; /* of the pair that begins at each place */
  for (size_t i = 0; i + 1 < count; i++) {
    const iso_pair *pair = iso_pairs_find(pairs, ids[i], ids[i + 1]);
    ranks[i] = pair ? pair->rank : ISO_NO_RANK;
    merged[i] = pair ? pair->id : 0;
  }
  while (count > stop) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; i++)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == ISO_NO_RANK) break;
    ids[best] = merged[best];
    count--;
    for (size_t i = best + 1; i < count; i++) ids[i] = ids[i + 1];
    for (size_t i = best + 1; i + 1 < count; i++) {
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < count; i++) {
      const iso_pair *pair = iso_pairs_find(pairs, ids[i], ids[i + 1]);
      ranks[i] = pair ? pair->rank : ISO_NO_RANK;
      merged[i] = pair ? pair->id : 0;
    }
  }
  return count;
}

/* A binary heap of rank << 32 | position. Each position has at most as many entries as pairs began there. */
typedef struct heap {
  uint64_t *items;
  size_t count;
} heap;

static void heap_push(heap *h, uint64_t item) {
  size_t at = h->count++;
  for (; at > 0 && h->items[(at - 1) / 2] > item; at = (at - 1) / 2) h->items[at] = h->items[(at - 1) / 2];
  h->items[at] = item;
}

static uint64_t heap_pop(heap *h) {
  uint64_t top = h->items[0], item = h->items[--h->count];
  size_t at = 0;
  for (size_t child; (child = 2 * at + 1) < h->count; at = child) {
    if (child + 1 < h->count && h->items[child + 1] < h->items[child]) child++;
    if (h->items[child] >= item) break;
    h->items[at] = h->items[child];
  }
  h->items[at] = item;
  return top;
}

static void push_pair(heap *h, const iso_pairs *pairs, const int32_t *ids, int64_t left, int64_t right) {
  const iso_pair *pair = iso_pairs_find(pairs, ids[left], ids[right]);
  if (pair) heap_push(h, (uint64_t)(uint32_t)pair->rank << 32 | (uint64_t)left);
}

bool iso_bpe_reserve(iso_bpe_scratch *scratch, size_t bytes) {
  if (bytes <= scratch->bytes) return true;
  void *memory = malloc(bytes);
  if (!memory) return false;
  free(scratch->memory);
  scratch->memory = memory;
  scratch->bytes = bytes;
  return true;
}

static size_t merge_long(const iso_pairs *pairs, int32_t *ids, size_t count, size_t stop, iso_bpe_scratch *scratch) {
  heap h = {.items = scratch->memory};
  int32_t *next = (int32_t *)(h.items + 3 * count), *previous = next + count; /* -1: none; next -2: merged away */
  for (size_t i = 0; i < count; i++) {
    next[i] = i + 1 < count ? (int32_t)(i + 1) : -1;
    previous[i] = (int32_t)i - 1;
    if (i + 1 < count) push_pair(&h, pairs, ids, (int64_t)i, (int64_t)i + 1);
  }
  for (size_t left = count; h.count > 0 && left > stop;) {
    uint64_t top = heap_pop(&h);
    int32_t at = (int32_t)(uint32_t)top, right = next[at];
    if (right < 0) continue;
    const iso_pair *pair = iso_pairs_find(pairs, ids[at], ids[right]);
    if (!pair || pair->rank != (int32_t)(top >> 32)) continue;
    ids[at] = pair->id;
    next[at] = next[right];
    if (next[right] >= 0) previous[next[right]] = at;
    next[right] = -2;
    left--;
    if (previous[at] >= 0) push_pair(&h, pairs, ids, previous[at], at);
    if (next[at] >= 0) push_pair(&h, pairs, ids, at, next[at]);
  }
  size_t kept = 0;
  for (int32_t at = 0; at >= 0; at = next[at]) ids[kept++] = ids[at];
  return kept;
}

size_t iso_bpe_merge_to(const iso_pairs *pairs, int32_t *ids, size_t count, size_t stop, iso_bpe_scratch *scratch) {
  if (count <= SHORT_PIECE) return merge_short(pairs, ids, count, stop);
  /* Links both ways and a heap. Each merge removes an id and pushes at most two entries. */
  if (count >= INT32_MAX || !iso_bpe_reserve(scratch, count * (2 * sizeof(int32_t) + 3 * sizeof(uint64_t)) + 64)) {
    iso_fail(ISO_ERR_MEMORY, "cannot tokenize one piece of text of %zu bytes: out of memory", count);
    return SIZE_MAX;
  }
  return merge_long(pairs, ids, count, stop, scratch);
}

size_t iso_bpe_merge(const iso_pairs *pairs, int32_t *ids, size_t count, iso_bpe_scratch *scratch) {
  return iso_bpe_merge_to(pairs, ids, count, 1, scratch);
}
