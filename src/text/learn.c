/* SPDX-License-Identifier: Apache-2.0
 *
 * learn.c: which pairs to merge, most frequent first.
 *
 * All distinct pieces lie in one array of symbols, linked within each piece. A pair knows its count and the places
 * where it stood when it came up; merging it visits these places only and corrects the counts of their neighbours. A
 * heap gives the most frequent pair; its entries may be too high, never too low, and are corrected when they surface.
 *
 * Invariants
 *  1. A pair's count is at all times the sum, over places where the pair stands now, of the piece's count.
 *  2. Every pair with a count above 0 has an entry in the heap that is at least its count.
 *  3. Order: count, then left bytes, then right bytes; overlapping places are merged from the left. Nothing depends on
 *     hash order or on time.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

typedef struct pair {
  int64_t count;
  int32_t left, right;
  int32_t *places; /* position of the left symbol; may be stale */
  uint32_t used, capacity;
  bool touched; /* in learner.touched */
} pair;

typedef struct entry {
  int64_t count;
  uint32_t pair; /* index */
} entry;

typedef struct learner {
  iso_vocabulary *vocabulary;
  int32_t *symbols, *next, *previous, *owner; /* by position: id (-1: merged away), links (-1: none), piece */
  const iso_piece *pieces;
  pair *pairs;
  uint32_t pair_count, pair_capacity;
  uint32_t *slots; /* index + 1 of a pair by (left, right); 0 empty */
  uint64_t slot_count;
  entry *heap;
  size_t heap_count, heap_capacity;
  uint32_t *touched; /* pairs whose count grew since they were last pushed */
  size_t touched_count, touched_capacity;
} learner;

/* Makes room for one more item. */
static bool grow(void *array, size_t *capacity, size_t used, size_t size) {
  if (used < *capacity) return true;
  size_t more = *capacity ? 2 * *capacity : 256;
  void *grown = realloc(*(void **)array, more * size);
  if (!grown) return false;
  *(void **)array = grown;
  *capacity = more;
  return true;
}

/* ---- heap ---- */

static int compare_bytes(const learner *l, int32_t a, int32_t b) {
  const iso_token *x = &l->vocabulary->tokens[a], *y = &l->vocabulary->tokens[b];
  const char *bytes = l->vocabulary->bytes.data;
  int order = memcmp(bytes + x->offset, bytes + y->offset, x->length < y->length ? x->length : y->length);
  return order ? order : (x->length > y->length) - (x->length < y->length);
}

static bool comes_first(const learner *l, entry a, entry b) {
  if (a.count != b.count) return a.count > b.count;
  const pair *x = &l->pairs[a.pair], *y = &l->pairs[b.pair];
  int order = x->left == y->left ? 0 : compare_bytes(l, x->left, y->left);
  return (order ? order : compare_bytes(l, x->right, y->right)) < 0;
}

static bool heap_push(learner *l, entry item) {
  if (!grow(&l->heap, &l->heap_capacity, l->heap_count, sizeof *l->heap)) return false;
  size_t at = l->heap_count++;
  for (; at > 0 && comes_first(l, item, l->heap[(at - 1) / 2]); at = (at - 1) / 2) l->heap[at] = l->heap[(at - 1) / 2];
  l->heap[at] = item;
  return true;
}

static entry heap_pop(learner *l) {
  entry top = l->heap[0], item = l->heap[--l->heap_count];
  size_t at = 0;
  for (size_t child; (child = 2 * at + 1) < l->heap_count; at = child) {
    if (child + 1 < l->heap_count && comes_first(l, l->heap[child + 1], l->heap[child])) child++;
    if (!comes_first(l, l->heap[child], item)) break;
    l->heap[at] = l->heap[child];
  }
  l->heap[at] = item;
  return top;
}

/* ---- pairs ---- */

static uint64_t pair_slot(const learner *l, int32_t left, int32_t right) {
  uint64_t hash = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
  uint64_t mask = l->slot_count - 1, slot = (hash ^ hash >> 32) & mask;
  while (l->slots[slot]) {
    const pair *p = &l->pairs[l->slots[slot] - 1];
    if (p->left == left && p->right == right) break;
    slot = (slot + 1) & mask;
  }
  return slot;
}

static bool grow_slots(learner *l) {
  if (2 * ((uint64_t)l->pair_count + 1) <= l->slot_count) return true;
  uint64_t count = l->slot_count ? 2 * l->slot_count : 1024;
  uint32_t *slots = calloc(count, sizeof *slots);
  if (!slots) return false;
  free(l->slots);
  l->slots = slots;
  l->slot_count = count;
  for (uint32_t i = 0; i < l->pair_count; i++) slots[pair_slot(l, l->pairs[i].left, l->pairs[i].right)] = i + 1;
  return true;
}

/* The pair, made when it is new; NULL when memory is short. */
static pair *get_pair(learner *l, int32_t left, int32_t right) {
  if (!grow_slots(l)) return NULL;
  uint64_t slot = pair_slot(l, left, right);
  if (!l->slots[slot]) {
    size_t capacity = l->pair_capacity;
    if (!grow(&l->pairs, &capacity, l->pair_count, sizeof *l->pairs) || capacity > UINT32_MAX) return NULL;
    l->pair_capacity = (uint32_t)capacity;
    l->pairs[l->pair_count] = (pair){.left = left, .right = right};
    l->slots[slot] = ++l->pair_count;
  }
  return &l->pairs[l->slots[slot] - 1];
}

/* The pair that begins at `place` came up. */
static bool count_up(learner *l, int32_t place) {
  pair *p = get_pair(l, l->symbols[place], l->symbols[l->next[place]]);
  if (!p) return false;
  size_t capacity = p->capacity;
  if (!grow(&p->places, &capacity, p->used, sizeof *p->places)) return false;
  p->capacity = (uint32_t)capacity;
  p->places[p->used++] = place;
  p->count += l->pieces[l->owner[place]].count;
  if (p->touched) return true;
  if (!grow(&l->touched, &l->touched_capacity, l->touched_count, sizeof *l->touched)) return false;
  p->touched = true;
  l->touched[l->touched_count++] = (uint32_t)(p - l->pairs);
  return true;
}

/* The pair that begins at `place` goes away. */
static void count_down(learner *l, int32_t place) {
  uint64_t slot = pair_slot(l, l->symbols[place], l->symbols[l->next[place]]);
  l->pairs[l->slots[slot] - 1].count -= l->pieces[l->owner[place]].count;
}

static bool push_touched(learner *l) {
  for (size_t i = 0; i < l->touched_count; i++) {
    pair *p = &l->pairs[l->touched[i]];
    p->touched = false;
    if (p->count > 0 && !heap_push(l, (entry){p->count, l->touched[i]})) return false;
  }
  l->touched_count = 0;
  return true;
}

/* ---- learning ---- */

static iso_status lay_out(learner *l, size_t count) {
  size_t total = 0, at = 0;
  for (size_t i = 0; i < count; i++) total += l->pieces[i].length;
  if (total >= INT32_MAX || count >= INT32_MAX)
    return iso_fail(ISO_ERR_UNSUPPORTED, "the distinct words of the training text take %zu bytes, more than 2 GiB",
                    total);
  l->symbols = malloc((total + 1) * sizeof *l->symbols);
  l->next = malloc((total + 1) * sizeof *l->next);
  l->previous = malloc((total + 1) * sizeof *l->previous);
  l->owner = malloc((total + 1) * sizeof *l->owner);
  if (!l->symbols || !l->next || !l->previous || !l->owner)
    return iso_fail(ISO_ERR_MEMORY, "out of memory for %zu bytes of distinct words", total);
  for (size_t i = 0; i < count; i++) {
    for (size_t k = 0; k < l->pieces[i].length; k++, at++) {
      l->symbols[at] = (uint8_t)l->pieces[i].bytes[k];
      l->previous[at] = k ? (int32_t)at - 1 : -1;
      l->next[at] = k + 1 < l->pieces[i].length ? (int32_t)at + 1 : -1;
      l->owner[at] = (int32_t)i;
    }
  }
  for (size_t place = 0; place < total; place++)
    if (l->next[place] >= 0 && !count_up(l, (int32_t)place)) return iso_fail(ISO_ERR_MEMORY, "out of memory for pairs");
  return push_touched(l) ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "out of memory for pairs");
}

static int compare_places(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return (x > y) - (x < y);
}

/* Turns every occurrence of the pair into `id`. */
static bool apply(learner *l, uint32_t index, int32_t id) {
  pair taken = l->pairs[index];
  l->pairs[index].places = NULL; /* `taken` owns them: the array of pairs may move below */
  l->pairs[index].used = l->pairs[index].capacity = 0;
  bool good = true;
  for (uint32_t i = 1; i < taken.used; i++) {
    if (taken.places[i] > taken.places[i - 1]) continue;
    qsort(taken.places, taken.used, sizeof *taken.places, compare_places);
    break;
  }
  for (uint32_t i = 0; i < taken.used && good; i++) {
    int32_t at = taken.places[i], right = l->next[at];
    if (l->symbols[at] != taken.left || right < 0 || l->symbols[right] != taken.right) continue;
    int32_t before = l->previous[at], after = l->next[right];
    if (before >= 0) count_down(l, before);
    count_down(l, at);
    if (after >= 0) count_down(l, right);
    l->symbols[at] = id;
    l->symbols[right] = -1;
    l->next[at] = after;
    l->next[right] = -1;
    if (after >= 0) l->previous[after] = at;
    good = (before < 0 || count_up(l, before)) && (after < 0 || count_up(l, at));
  }
  free(taken.places);
  return good && push_touched(l);
}

/* The pair to merge next; its index, or UINT32_MAX when none is left. */
static uint32_t best_pair(learner *l) {
  while (l->heap_count > 0) {
    entry top = heap_pop(l);
    int64_t count = l->pairs[top.pair].count;
    if (count == top.count && count > 0) return top.pair;
    if (count > 0 && count < top.count && !heap_push(l, (entry){count, top.pair})) break;
  }
  return UINT32_MAX;
}

/* Id of the two tokens' bytes together: a new one, or an old one when another merge made the same bytes. */
static iso_status token_of(iso_vocabulary *v, const pair *p, iso_string *bytes, int32_t *id) {
  const iso_token *left = &v->tokens[p->left], *right = &v->tokens[p->right];
  if (bytes->data) bytes->length = 0;
  iso_string_append(bytes, v->bytes.data + left->offset, left->length);
  iso_string_append(bytes, v->bytes.data + right->offset, right->length);
  if (iso_string_failed(bytes)) return iso_fail(ISO_ERR_MEMORY, "out of memory for the vocabulary");
  *id = iso_vocabulary_find(v, bytes->data, bytes->length, true);
  if (*id >= 0) return ISO_OK;
  *id = (int32_t)v->count;
  return iso_vocabulary_add(v, "the training text", v->count, bytes->data, bytes->length, true);
}

static bool is_forbidden(const learner *l, const pair *p, const char *bytes, size_t length) {
  const iso_vocabulary *v = l->vocabulary;
  const iso_token *left = &v->tokens[p->left], *right = &v->tokens[p->right];
  if ((size_t)left->length + right->length > ISO_TOKEN_BYTES_LIMIT) return true;
  return (size_t)left->length + right->length == length &&
         memcmp(v->bytes.data + left->offset, bytes, left->length) == 0 &&
         memcmp(v->bytes.data + right->offset, bytes + left->length, right->length) == 0;
}

static void learner_fini(learner *l) {
  for (uint32_t i = 0; i < l->pair_count; i++) free(l->pairs[i].places);
  free(l->pairs);
  free(l->slots);
  free(l->heap);
  free(l->touched);
  free(l->symbols);
  free(l->next);
  free(l->previous);
  free(l->owner);
}

iso_status iso_bpe_learn(const iso_piece *pieces, size_t count, int64_t tokens, const char *forbidden,
                         size_t forbidden_length, iso_vocabulary *vocabulary, iso_merge **merges, size_t *merge_count) {
  learner l = {.vocabulary = vocabulary, .pieces = pieces};
  iso_string bytes = {0};
  size_t capacity = 0;
  *merges = NULL;
  *merge_count = 0;
  iso_status status = ISO_OK;
  for (int byte = 0; byte < 256 && status == ISO_OK; byte++) {
    char c = (char)byte;
    status = iso_vocabulary_add(vocabulary, "the training text", byte, &c, 1, true);
  }
  if (status == ISO_OK) status = lay_out(&l, count);
  while (status == ISO_OK && vocabulary->count < tokens) {
    int32_t id = -1;
    uint32_t index = best_pair(&l);
    if (index == UINT32_MAX) break;
    pair *p = &l.pairs[index];
    if (is_forbidden(&l, p, forbidden, forbidden_length)) continue; /* no entry any more: it never comes up again */
    status = token_of(vocabulary, p, &bytes, &id);
    if (status != ISO_OK) break;
    if (!grow(merges, &capacity, *merge_count, sizeof **merges)) {
      status = iso_fail(ISO_ERR_MEMORY, "out of memory for merges");
      break;
    }
    (*merges)[(*merge_count)++] = (iso_merge){p->left, p->right};
    if (!apply(&l, index, id)) status = iso_fail(ISO_ERR_MEMORY, "out of memory for pairs");
  }
  iso_string_fini(&bytes);
  learner_fini(&l);
  return status;
}
