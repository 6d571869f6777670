/* SPDX-License-Identifier: Apache-2.0
 *
 * matcher.c: the ids that merging gives, found from left to right without merging.
 *
 * Merging is local: as long as no merge crosses the borders of a stretch, what happens inside is what would happen to
 * that stretch alone. So a token in a result is one whose own bytes merge to itself, always by the same last merge
 * (`left`, `right`); and a row of such tokens is the result if and only if no merge ever crosses a border between two
 * neighbours. When merges happen in ascending rank, that can be told from the two tokens alone, by undoing the later
 * of the merges at the border step by step: see `fits`. The result is unique, so the row is found by taking the
 * longest token that fits and going back where none does. (The idea of exact encoding by compatible neighbours is
 * that of rust-gems' `bpe`; the argument for tables where a token has several merges is ours.)
 *
 * Tokens are renumbered: the 256 bytes, then by rank, so a smaller number is an earlier merge.
 *
 * Invariants
 *  1. Only merges that can happen are kept: one for each token whose bytes merge to it. All others never fire.
 *  2. `usable` only when a token's halves are earlier than itself; else merges do not happen in ascending rank, and
 *     bpe.c does the work.
 *  3. A place is entered at most once: the row that leads to it is the one encoding of what lies before, so when
 *     nothing fits behind it, it is dead for good. Work is bounded; beyond a budget bpe.c takes over.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, NODE_LIMIT = 1 << 23, BUDGET = 64, LOCAL_WORDS = 4 };
#define NONE UINT32_MAX
#define LEAF (1u << 31) /* in a cell's node: nothing goes on from it */

/* ---- lookups ---- */

static inline uint64_t mix(uint64_t key) {
  return key * 0x9E3779B97F4A7C15u;
}

/* Node that `byte` leads to from `node`, with LEAF; NONE when it leads nowhere. */
static inline uint32_t step(const iso_matcher *m, uint32_t node, uint8_t byte) {
  const uint32_t key = node << 8 | byte;
  for (uint64_t slot = mix(key) >> m->cell_shift;; slot = (slot + 1) & m->cell_mask) {
    const iso_matcher_cell *cell = &m->cells[slot];
    if (cell->key == key) return cell->node;
    if (cell->node == NONE) return NONE;
  }
}

/* Longest token at text[at]. */
static inline uint32_t longest(const iso_matcher *m, const uint8_t *text, size_t at, size_t length) {
  uint32_t best = text[at];
  if (length - at < 2) return best;
  uint32_t node = m->pairs[text[at] | (uint32_t)text[at + 1] << 8];
  for (size_t i = at + 2; node != NONE; i++) {
    const uint32_t number = node & ~LEAF;
    if (number < m->count) best = number;
    if (node & LEAF || i >= length) break;
    node = step(m, number, text[i]);
  }
  return best;
}

/* What a pair becomes; NONE when it does not merge. */
static inline uint32_t merge_of(const iso_matcher *m, uint32_t left, uint32_t right) {
  const uint64_t key = (uint64_t)left << 32 | right, hash = mix(key ^ key >> 29);
  const uint64_t bit = hash >> m->filter_shift;
  if (!(m->filter[bit >> 6] >> (bit & 63) & 1)) return NONE;
  for (uint64_t slot = hash >> m->merge_shift;; slot = (slot + 1) & m->merge_mask) {
    const uint32_t token = m->merges[slot];
    if (token == NONE) return NONE;
    if (m->tokens[token].left == left && m->tokens[token].right == right) return token;
  }
}

/* Do `left` and `right` stay two tokens when they are neighbours? Their last merges are undone, latest first (of equal
 * ones the right token's, since the left one happens first): what stands at the border then was there until `limit`,
 * and must not merge before. */
static inline bool fits(const iso_matcher *m, uint32_t left, uint32_t right) {
  uint32_t limit = NONE;
  for (;;) {
    const uint32_t merged = merge_of(m, left, right);
    if (merged < limit) return false; /* NONE: no merge */
    if (left > right) {
      if (left < BYTES) return true;
      limit = left;
      left = m->tokens[left].right;
    } else {
      if (right < BYTES) return true;
      limit = right + 1; /* the same merge further left comes first */
      right = m->tokens[right].left;
    }
  }
}

/* ---- encoding ---- */

size_t iso_matcher_encode(const iso_matcher *m, const uint8_t *text, size_t length, int32_t *ids,
                          iso_bpe_scratch *scratch) {
  uint64_t local[LOCAL_WORDS], *dead = local;
  const size_t words = length / 64 + 1;
  if (words > LOCAL_WORDS) {
    if (!iso_bpe_reserve(scratch, words * sizeof *dead)) return SIZE_MAX;
    dead = scratch->memory;
  }
  memset(dead, 0, words * sizeof *dead);
  uint32_t *row = (uint32_t *)ids, token = longest(m, text, 0, length);
  size_t at = 0, count = 0;
  for (uint64_t budget = BUDGET * (uint64_t)length + 1024; budget > 0; budget--) {
    const size_t end = at + m->tokens[token].length;
    if (!(dead[end >> 6] >> (end & 63) & 1) && (count == 0 || fits(m, row[count - 1], token))) {
      row[count++] = token;
      at = end;
      if (at < length) {
        token = longest(m, text, at, length);
        continue;
      }
      for (size_t i = 0; i < count; i++) ids[i] = m->tokens[row[i]].id;
      return count;
    }
    while ((token = m->tokens[token].shorter) == NONE) {
      if (count == 0) return SIZE_MAX;
      dead[at >> 6] |= 1ull << (at & 63);
      token = row[--count];
      at -= m->tokens[token].length;
    }
  }
  return SIZE_MAX;
}

/* ---- building ---- */

typedef struct builder {
  iso_matcher *m;
  const iso_vocabulary *vocabulary;
  const iso_pairs *pairs;
  struct found {
    int32_t rank, id, left, right;
  } * found;
  uint32_t *numbers; /* by id: its number, NONE when it is not one of ours */
  iso_bpe_scratch scratch;
  int32_t *ids; /* of one token's bytes */
  size_t ids_capacity;
} builder;

/* The last merge of a token's own bytes; false when they do not merge to it. */
static bool last_merge(builder *b, int32_t id, struct found *found) {
  const iso_token *token = &b->vocabulary->tokens[id];
  const uint8_t *bytes = (const uint8_t *)b->vocabulary->bytes.data + token->offset;
  for (uint32_t i = 0; i < token->length; i++)
    if ((b->ids[i] = b->vocabulary->byte_ids[bytes[i]]) < 0) return false;
  if (iso_bpe_merge_to(b->pairs, b->ids, token->length, 2, &b->scratch) != 2) return false;
  const iso_pair *pair = iso_pairs_find(b->pairs, b->ids[0], b->ids[1]);
  if (!pair || pair->id != id) return false;
  *found = (struct found){pair->rank, id, b->ids[0], b->ids[1]};
  return true;
}

static int compare_found(const void *a, const void *b) {
  const struct found *x = a, *y = b;
  return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Bits of the smallest power of two >= count. */
static int bits_for(uint64_t count) {
  int bits = 6;
  while (1ull << bits < count) bits++;
  return bits;
}

/* Tokens by number, with their halves. False: out of memory, or not `usable`. */
static bool number_tokens(builder *b) {
  const iso_vocabulary *v = b->vocabulary;
  iso_matcher *m = b->m;
  size_t count = 0, mapped = 0;
  for (int64_t id = 0; id < v->count; id++) {
    const iso_token *token = &v->tokens[id];
    if (!token->present || !token->mapped || token->length < 2) continue;
    mapped++;
    if (last_merge(b, (int32_t)id, &b->found[count])) count++;
  }
  m->complete = count == mapped;
  qsort(b->found, count, sizeof *b->found, compare_found);
  m->count = (uint32_t)count + BYTES;
  m->tokens = calloc(m->count, sizeof *m->tokens);
  if (!m->tokens) return false;
  for (uint32_t byte = 0; byte < BYTES; byte++) {
    m->tokens[byte] = (iso_matcher_token){.id = v->byte_ids[byte], .length = 1, .shorter = NONE};
    if (v->byte_ids[byte] >= 0) b->numbers[v->byte_ids[byte]] = byte;
  }
  for (uint32_t i = 0; i < count; i++) {
    const struct found *f = &b->found[i];
    const uint32_t left = b->numbers[f->left], right = b->numbers[f->right];
    if (left == NONE || right == NONE || (i > 0 && f->rank == f[-1].rank)) return false; /* a later half: NONE yet */
    b->numbers[f->id] = BYTES + i;
    m->tokens[BYTES + i] =
        (iso_matcher_token){.id = f->id, .left = left, .right = right, .length = v->tokens[f->id].length};
  }
  return true;
}

static bool hash_merges(iso_matcher *m) {
  const int bits = bits_for(2ull * m->count), filter_bits = bits_for(16ull * m->count);
  m->merge_shift = 64 - bits;
  m->merge_mask = (1ull << bits) - 1;
  m->filter_shift = 64 - filter_bits;
  m->merges = malloc(sizeof *m->merges << bits);
  m->filter = calloc((1ull << filter_bits) / 64, sizeof *m->filter);
  if (!m->merges || !m->filter) return false;
  memset(m->merges, 0xFF, sizeof *m->merges << bits);
  for (uint32_t token = BYTES; token < m->count; token++) {
    const uint64_t key = (uint64_t)m->tokens[token].left << 32 | m->tokens[token].right, hash = mix(key ^ key >> 29);
    const uint64_t bit = hash >> m->filter_shift;
    m->filter[bit >> 6] |= 1ull << (bit & 63);
    uint64_t slot = hash >> m->merge_shift;
    while (m->merges[slot] != NONE) slot = (slot + 1) & m->merge_mask;
    m->merges[slot] = token;
  }
  return true;
}

static bool make_cells(iso_matcher *m, uint64_t nodes) {
  const int bits = bits_for(2 * nodes);
  m->cell_shift = 64 - bits;
  m->cell_mask = (1ull << bits) - 1;
  m->cells = malloc(sizeof *m->cells << bits);
  if (m->cells) memset(m->cells, 0xFF, sizeof *m->cells << bits);
  return m->cells;
}

/* The cell of a key, or the empty one where it belongs. */
static iso_matcher_cell *cell_of(iso_matcher *m, uint32_t key) {
  uint64_t slot = mix(key) >> m->cell_shift;
  while (m->cells[slot].node != NONE && m->cells[slot].key != key) slot = (slot + 1) & m->cell_mask;
  return &m->cells[slot];
}

typedef struct trie {
  uint32_t *labels; /* by node as first made: its token's number, later its final label */
  bool *inner;      /* something goes on from it */
  uint32_t nodes;
} trie;

/* Makes the nodes of all tokens, numbered as they come; the 256 bytes are nodes 0..255. */
static bool plant(builder *b, trie *t, uint64_t capacity) {
  iso_matcher *m = b->m;
  t->nodes = BYTES;
  for (uint32_t token = 0; token < m->count; token++) {
    if (token < BYTES) {
      t->labels[token] = token;
      continue;
    }
    const iso_token *v = &b->vocabulary->tokens[m->tokens[token].id];
    const uint8_t *bytes = (const uint8_t *)b->vocabulary->bytes.data + v->offset;
    uint32_t node = bytes[0];
    for (uint32_t i = 1; i < v->length; i++) {
      const uint32_t key = node << 8 | bytes[i];
      iso_matcher_cell *cell = cell_of(m, key);
      t->inner[node] = true;
      if (cell->node == NONE) {
        if (t->nodes == capacity) return false;
        *cell = (iso_matcher_cell){key, t->nodes};
        t->labels[t->nodes++] = NONE;
      }
      node = cell->node;
    }
    t->labels[node] = token;
  }
  return true;
}

/* Longest token that is a shorter beginning of each token. */
static void find_shorter(builder *b, const trie *t) {
  iso_matcher *m = b->m;
  for (uint32_t token = BYTES; token < m->count; token++) {
    const iso_token *v = &b->vocabulary->tokens[m->tokens[token].id];
    const uint8_t *bytes = (const uint8_t *)b->vocabulary->bytes.data + v->offset;
    uint32_t node = bytes[0], best = node;
    for (uint32_t i = 1; i + 1 < v->length; i++) {
      node = cell_of(m, node << 8 | bytes[i])->node;
      if (t->labels[node] != NONE) best = t->labels[node];
    }
    m->tokens[token].shorter = best;
  }
}

/* Renames nodes so that a token's node is its number and the others come behind, marks leaves, and takes the first two
 * bytes at once. */
static bool relabel(iso_matcher *m, trie *t) {
  iso_matcher_cell *old = m->cells;
  const uint64_t old_count = m->cell_mask + 1;
  uint32_t next = m->count;
  for (uint32_t node = 0; node < t->nodes; node++)
    if (t->labels[node] == NONE) t->labels[node] = next++;
  m->pairs = malloc((1u << 16) * sizeof *m->pairs);
  if (!m->pairs || next > NODE_LIMIT || !make_cells(m, t->nodes)) {
    if (m->cells != old) free(old);
    return false;
  }
  memset(m->pairs, 0xFF, (1u << 16) * sizeof *m->pairs);
  for (uint64_t i = 0; i < old_count; i++) {
    if (old[i].node == NONE) continue;
    const uint32_t from = old[i].key >> 8, byte = old[i].key & 0xFF;
    const uint32_t to = t->labels[old[i].node] | (t->inner[old[i].node] ? 0 : LEAF);
    if (from < BYTES) {
      m->pairs[from | byte << 8] = to;
      continue;
    }
    const uint32_t key = t->labels[from] << 8 | byte;
    *cell_of(m, key) = (iso_matcher_cell){key, to};
  }
  free(old);
  return true;
}

static bool build_trie(builder *b) {
  uint64_t capacity = BYTES;
  for (uint32_t token = BYTES; token < b->m->count; token++) capacity += b->m->tokens[token].length - 1;
  if (capacity > NODE_LIMIT) return false;
  trie t = {malloc(capacity * sizeof *t.labels), calloc(capacity, sizeof *t.inner), 0};
  bool done = t.labels && t.inner && make_cells(b->m, capacity) && plant(b, &t, capacity);
  if (done) find_shorter(b, &t);
  done = done && relabel(b->m, &t);
  free(t.labels);
  free(t.inner);
  return done;
}

void iso_matcher_build(iso_matcher *matcher, const iso_vocabulary *vocabulary, const iso_pairs *pairs) {
  builder b = {.m = matcher, .vocabulary = vocabulary, .pairs = pairs};
  const size_t count = (size_t)vocabulary->count;
  size_t longest_token = 1;
  for (size_t id = 0; id < count; id++)
    if (vocabulary->tokens[id].length > longest_token) longest_token = vocabulary->tokens[id].length;
  b.found = malloc((count + 1) * sizeof *b.found);
  b.numbers = malloc((count + 1) * sizeof *b.numbers);
  b.ids = malloc(longest_token * sizeof *b.ids);
  if (b.found && b.numbers && b.ids) {
    memset(b.numbers, 0xFF, (count + 1) * sizeof *b.numbers);
    matcher->usable = number_tokens(&b) && hash_merges(matcher) && build_trie(&b);
  }
  free(b.found);
  free(b.numbers);
  free(b.ids);
  free(b.scratch.memory);
  if (!matcher->usable) iso_matcher_fini(matcher);
}

void iso_matcher_fini(iso_matcher *matcher) {
  free(matcher->tokens);
  free(matcher->pairs);
  free(matcher->cells);
  free(matcher->merges);
  free(matcher->filter);
  *matcher = (iso_matcher){0};
}
