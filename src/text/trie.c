/* SPDX-License-Identifier: Apache-2.0
 *
 * trie.c: the tokens that begin at a place of a text, as a double array: a node's children stand at its base plus their
 * byte. Each base is one node's alone, so that the byte alone tells whether a slot is that node's child; children of a
 * node lie together, in few cache lines, and 8 bytes a node on huge pages keep a large vocabulary near.
 *
 * Invariants
 *  1. base + byte is inside `slots` for every base and byte.
 *  2. A slot that is nobody's, or is reached by a byte that leads nowhere, has no number and no children.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES = 256, LOOKED_AT = 1024 /* slots, before the end is taken */, SLOTS = 1 << 24 };
#define NONE UINT32_MAX

typedef struct range { /* words that go through a node */
  uint32_t first, end;
  uint32_t length; /* bytes on the way to it */
  uint32_t slot;   /* of the node; NONE: it stands in `starts` */
  uint32_t start;
} range;

typedef struct builder {
  iso_trie *trie;
  const iso_trie_word *words; /* sorted */
  uint8_t *taken;             /* by slot: 1 a node, 2 somebody's base, 3 both */
  uint32_t capacity, end;     /* slots; behind the last one taken */
  uint32_t low;               /* where searches begin */
  range *queue;
  size_t head, tail;
} builder;

static bool fits_at(const builder *b, uint32_t base, const uint8_t *children, uint32_t count) {
  if (base + BYTES >= b->capacity || b->taken[base] & 2) return false;
  for (uint32_t i = 0; i < count; i++)
    if (b->taken[base + children[i]] & 1) return false;
  return true;
}

/* A base for these children; 0: the table is full. Where slots are looked at in vain the next search begins later. */
static uint32_t find_base(builder *b, const uint8_t *children, uint32_t count) {
  while (b->low < b->end && b->taken[b->low] & 1) b->low++;
  uint32_t slot = b->low > children[0] ? b->low : children[0] + 1u;
  const uint32_t first = slot;
  while (slot < b->end + BYTES && slot - first < LOOKED_AT && !fits_at(b, slot - children[0], children, count)) slot++;
  if (slot - first == LOOKED_AT) {
    b->low += LOOKED_AT / 4;
    if (slot < b->end) slot = b->end; /* all is free there but for bases */
  }
  while (slot - children[0] + BYTES < b->capacity && !fits_at(b, slot - children[0], children, count)) slot++;
  return slot - children[0] + BYTES < b->capacity ? slot - children[0] : 0;
}

/* Places the children of a node and queues them. */
static bool place(builder *b, const range *node) {
  uint8_t children[BYTES];
  uint32_t firsts[BYTES + 1], count = 0, at = node->first;
  if (at < node->end && b->words[at].length == node->length) at++; /* the node's own word */
  for (; at < node->end; at++) {
    const uint8_t byte = b->words[at].bytes[node->length];
    if (count && children[count - 1] == byte) continue;
    children[count] = byte;
    firsts[count++] = at;
  }
  if (count == 0) return true;
  firsts[count] = node->end;
  const uint32_t base = find_base(b, children, count);
  if (base == 0) return false;
  b->taken[base] |= 2;
  iso_trie_slot *own = node->slot == NONE ? &b->trie->starts[node->start] : &b->trie->slots[node->slot];
  own->link |= base << 8;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t slot = base + children[i], length = node->length + 1;
    const iso_trie_word *first = &b->words[firsts[i]];
    b->taken[slot] |= 1;
    if (slot >= b->end) b->end = slot + 1;
    b->trie->slots[slot] = (iso_trie_slot){children[i], first->length == length ? first->number : NONE};
    b->queue[b->tail++] = (range){firsts[i], firsts[i + 1], length, slot, 0};
  }
  return true;
}

/* The first two bytes are one step. */
static void queue_starts(builder *b, uint32_t count) {
  for (uint32_t at = 0, end; at < count; at = end) {
    const uint8_t *bytes = b->words[at].bytes;
    for (end = at + 1; end < count && memcmp(b->words[end].bytes, bytes, 2) == 0; end++) continue;
    const uint32_t start = (uint32_t)bytes[0] << 8 | bytes[1];
    b->trie->starts[start].number = b->words[at].length == 2 ? b->words[at].number : NONE;
    b->queue[b->tail++] = (range){at, end, 2, NONE, start};
  }
}

static int compare_words(const void *a, const void *b) {
  const iso_trie_word *x = a, *y = b;
  const int order = memcmp(x->bytes, y->bytes, x->length < y->length ? x->length : y->length);
  return order ? order : (x->length > y->length) - (x->length < y->length);
}

void iso_trie_sort(iso_trie_word *words, uint32_t count) {
  qsort(words, count, sizeof *words, compare_words);
}

bool iso_trie_build(iso_trie *trie, const iso_trie_word *words, uint32_t count) {
  uint64_t nodes = BYTES;
  for (uint32_t i = 0; i < count; i++) nodes += words[i].length;
  if (nodes * 2 + 4 * BYTES > SLOTS) return false;
  builder b = {.trie = trie, .words = words, .capacity = (uint32_t)(nodes * 2 + 4 * BYTES), .end = 1, .low = 1};
  b.taken = calloc(b.capacity, 1);
  b.queue = malloc(nodes * sizeof *b.queue);
  trie->starts = iso_huge_alloc((size_t)BYTES * BYTES * sizeof *trie->starts);
  trie->slots = iso_huge_alloc(b.capacity * sizeof *trie->slots);
  bool done = b.taken && b.queue && trie->starts && trie->slots;
  if (done) {
    for (uint32_t i = 0; i < BYTES * BYTES; i++) trie->starts[i] = (iso_trie_slot){0, NONE};
    for (uint32_t i = 0; i < b.capacity; i++) trie->slots[i] = (iso_trie_slot){0, NONE};
    queue_starts(&b, count);
    while (done && b.head < b.tail) done = place(&b, &b.queue[b.head++]);
  }
  free(b.taken);
  free(b.queue);
  if (!done) iso_trie_fini(trie);
  return done;
}

void iso_trie_fini(iso_trie *trie) {
  free(trie->starts);
  free(trie->slots);
  *trie = (iso_trie){0};
}
