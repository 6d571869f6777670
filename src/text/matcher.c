/* SPDX-License-Identifier: Apache-2.0
 *
 * matcher.c: the ids that merging gives, found from left to right without merging.
 *
 * Merging is local: as long as no merge crosses the borders of a stretch, what happens inside is what would happen to
 * that stretch alone. So a token in a result is one whose own bytes merge to itself, always by the same last merge
 * (`left`, `right`); and a row of such tokens is the result if and only if no merge ever crosses a border between two
 * neighbours. When merges inside both happen in ascending rank, that can be told from the two tokens alone, by undoing
 * the later of the merges at the border step by step: see `fits`. The result is unique, so the row is found by taking
 * the longest token that fits and going back where none does. (The idea of exact encoding by compatible neighbours is
 * that of rust-gems' `bpe`; the argument for tables where a token has several merges is ours.)
 *
 * Tokens are renumbered: the 256 bytes, then by rank, so a smaller number is an earlier merge.
 *
 * Invariants
 *  1. Only merges that can happen are kept: one for each token whose bytes merge to it. All others never fire.
 *  2. A token with a half that is later than itself, or made of such a one, is never put into a row: where the result
 *     needs one, there is no row, and bpe.c does the work. Its merge still counts at borders, where it would happen as
 *     soon as it can.
 *  3. A place is entered at most once: the row that leads to it is the one encoding of what lies before, so when
 *     nothing fits behind it, it is dead for good. Work is bounded; beyond a budget bpe.c takes over.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
  BYTES = 256,
  NUMBER_BITS = 20, /* of a token: two and what they become are one word */
  NUMBER_MASK = (1 << NUMBER_BITS) - 1,
  CANDIDATES = 16,
  FEW = 15,
  BUDGET = 64
};
#define NONE UINT32_MAX

/* ---- lookups ---- */

static inline uint64_t mix(uint64_t key) {
  return key * 0x9E3779B97F4A7C15u;
}

static inline uint64_t pair_key(uint32_t left, uint32_t right) {
  return (uint64_t)left << NUMBER_BITS | right;
}

static inline uint64_t pair_hash(uint64_t key) {
  return mix(key ^ key >> 17);
}

/* The tokens that begin at a place, longest last; of many, the longest ones. */
typedef struct candidates {
  uint32_t tokens[CANDIDATES], lengths[CANDIDATES];
  uint32_t count, least; /* tokens [least, count) are kept, at their number mod CANDIDATES */
} candidates;

static inline void find_candidates(const iso_matcher *m, const uint8_t *text, size_t length, candidates *c) {
  c->tokens[0] = text[0];
  c->lengths[0] = 1;
  uint32_t count = 1;
  if (length >= 2) {
    iso_trie_slot slot = m->trie.starts[(uint32_t)text[0] << 8 | text[1]];
    for (size_t i = 2;; i++) {
      if (slot.number < m->count) {
        c->tokens[count % CANDIDATES] = slot.number;
        c->lengths[count % CANDIDATES] = (uint32_t)i;
        count++;
      }
      if (i >= length || !iso_trie_next(&m->trie, &slot, text[i])) break;
    }
  }
  c->count = count;
  c->least = count > CANDIDATES ? count - CANDIDATES : 0;
}

/* What a pair becomes; NONE when it does not merge. */
static inline uint32_t merge_of(const iso_matcher *m, uint32_t left, uint32_t right) {
  const uint64_t key = pair_key(left, right), hash = pair_hash(key), bit = hash >> m->filter_shift;
  if (!(m->filter[bit >> 6] >> (bit & 63) & 1)) return NONE;
  for (uint64_t slot = hash >> m->merge_shift;; slot = (slot + 1) & m->merge_mask) {
    const uint64_t merge = m->merges[slot];
    if (merge >> NUMBER_BITS == key) return merge & NUMBER_MASK;
    if (merge == UINT64_MAX) return NONE;
  }
}

/* Do `left` and `right` stay two tokens when they are neighbours? Their last merges are undone, latest first (of equal
 * ones the right token's, since the left one happens first): what stands at the border then was there until `limit`,
 * and must not merge before. */
static inline bool fits(const iso_matcher *m, uint32_t left, uint32_t right) {
  uint32_t limit = NONE;
  while ((left | right) >= BYTES) {
    if (merge_of(m, left, right) < limit) return false; /* NONE: no merge */
    if (left > right) {
      limit = left;
      left = m->halves[left].right;
    } else {
      limit = right + 1; /* the same merge further left comes first */
      right = m->halves[right].left;
    }
  }
  return m->byte_merges[left << 8 | right] >= limit;
}

/* ---- encoding ---- */

/* Short pieces are merged after all: the merges on the way are frequent ones, so their slots are in the cache, while
 * the trie's nodes for a rare word are not. Places are 1 .. length; what lies before and behind is a token that merges
 * with none. A key is what two neighbours become and where: the least one is merged next. */
typedef struct few {
  uint32_t tokens[FEW + 2];
  uint32_t alive; /* places where a token begins, and the one behind the last */
} few;

static inline uint32_t few_key(uint32_t merged, uint32_t at) {
  return merged == NONE ? NONE : merged << 8 | at;
}

static inline void few_start(const iso_matcher *m, const uint8_t *text, uint32_t length, few *f, uint32_t keys[16]) {
  for (uint32_t i = 0; i < 16; i++) keys[i] = NONE;
  f->tokens[0] = f->tokens[length + 1] = NUMBER_MASK;
  f->alive = (uint32_t)((1ull << (length + 2)) - 1);
  for (uint32_t i = 0; i < length; i++) f->tokens[i + 1] = text[i];
  for (uint32_t i = 1; i < length; i++) keys[i] = few_key(m->byte_merges[(uint32_t)text[i - 1] << 8 | text[i]], i);
}

/* Merges at a key; the places whose keys change then: *at, *gone (to NONE), *left. */
static inline void few_merge(few *f, uint32_t key, uint32_t *at, uint32_t *gone, uint32_t *left, uint32_t *right) {
  *at = key & 0xFF;
  const uint32_t bit = 1u << *at, behind = f->alive & ~(bit | (bit - 1)), rest = behind & (behind - 1);
  *gone = (uint32_t)__builtin_ctz(behind);
  *right = (uint32_t)__builtin_ctz(rest);
  *left = 31 - (uint32_t)__builtin_clz(f->alive & (bit - 1));
  f->alive &= ~(1u << *gone);
  f->tokens[*at] = key >> 8;
}

static inline size_t few_finish(const iso_matcher *m, const few *f, uint32_t length, int32_t *ids) {
  size_t count = 0;
  for (uint32_t left = f->alive & ((2u << length) - 2); left; left &= left - 1)
    ids[count++] = m->ids[f->tokens[__builtin_ctz(left)]];
  return count;
}

static size_t few_scalar(const iso_matcher *m, const uint8_t *text, uint32_t length, int32_t *ids) {
  few f;
  uint32_t keys[16], at, gone, left, right;
  few_start(m, text, length, &f, keys);
  for (;;) {
    uint32_t best = NONE;
    for (uint32_t i = 1; i < 16; i++) best = keys[i] < best ? keys[i] : best;
    if (best == NONE) return few_finish(m, &f, length, ids);
    few_merge(&f, best, &at, &gone, &left, &right);
    keys[gone] = NONE;
    keys[at] = few_key(merge_of(m, best >> 8, f.tokens[right]), at);
    keys[left] = few_key(merge_of(m, f.tokens[left], best >> 8), left);
  }
}

#if defined(__x86_64__)
/* The keys stay in one register. */
__attribute__((target("avx512f"))) static size_t few_avx512(const iso_matcher *m, const uint8_t *text, uint32_t length,
                                                            int32_t *ids) {
  few f;
  uint32_t start[16], at, gone, left, right;
  few_start(m, text, length, &f, start);
  __m512i keys = _mm512_loadu_si512(start);
  for (;;) {
    const uint32_t best = _mm512_reduce_min_epu32(keys);
    if (best == NONE) return few_finish(m, &f, length, ids);
    few_merge(&f, best, &at, &gone, &left, &right);
    const uint32_t with_right = few_key(merge_of(m, best >> 8, f.tokens[right]), at);
    const uint32_t with_left = few_key(merge_of(m, f.tokens[left], best >> 8), left);
    keys = _mm512_mask_set1_epi32(keys, (__mmask16)(1u << gone), (int)NONE);
    keys = _mm512_mask_set1_epi32(keys, (__mmask16)(1u << at), (int)with_right);
    keys = _mm512_mask_set1_epi32(keys, (__mmask16)(1u << left), (int)with_left);
  }
}
#endif

static size_t encode_few(const iso_matcher *m, const uint8_t *text, uint32_t length, int32_t *ids) {
#if defined(__x86_64__)
  if (m->wide) return few_avx512(m, text, length, ids);
#endif
  return few_scalar(m, text, length, ids);
}

size_t iso_matcher_encode(const iso_matcher *m, const uint8_t *text, size_t length, int32_t *ids,
                          iso_bpe_scratch *scratch) {
  if (length <= FEW) return encode_few(m, text, (uint32_t)length, ids);
  uint64_t local = 0, *dead = &local;
  if (length >= 64) {
    const size_t bytes = (length / 64 + 1) * sizeof *dead;
    if (!iso_bpe_reserve(scratch, bytes)) return SIZE_MAX;
    dead = scratch->memory;
    memset(dead, 0, bytes);
  }
  uint32_t *row = (uint32_t *)ids;
  size_t at = 0, count = 0;
  uint64_t budget = BUDGET * (uint64_t)length + 1024;
  while (at < length) {
    candidates c;
    find_candidates(m, text + at, length - at, &c);
    uint32_t token = NONE, tried = c.count;
    while (tried > c.least) {
      const uint32_t i = --tried % CANDIDATES;
      const size_t end = at + c.lengths[i];
      if (dead[end >> 6] >> (end & 63) & 1 || (count > 0 && !fits(m, row[count - 1], c.tokens[i]))) continue;
      token = c.tokens[i];
      row[count++] = token;
      at = end;
      break;
    }
    if (budget < c.count) return SIZE_MAX;
    budget -= c.count;
    if (token != NONE) continue;
    /* none of those fits: shorter ones, here and then further back */
    for (token = m->tokens[c.tokens[c.least % CANDIDATES]].shorter;; token = m->tokens[token].shorter) {
      while (token == NONE) {
        if (count == 0) return SIZE_MAX;
        dead[at >> 6] |= 1ull << (at & 63);
        token = row[--count];
        at -= m->tokens[token].length;
        token = m->tokens[token].shorter;
      }
      if (budget-- == 0) return SIZE_MAX;
      const size_t end = at + m->tokens[token].length;
      if (dead[end >> 6] >> (end & 63) & 1 || (count > 0 && !fits(m, row[count - 1], token))) continue;
      row[count++] = token;
      at = end;
      break;
    }
  }
  for (size_t i = 0; i < count; i++) ids[i] = m->ids[row[i]];
  return count;
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
  bool *unordered; /* by number: see mark_unordered */
  int32_t *ids;    /* of one token's bytes */
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
  if (count + BYTES >= NUMBER_MASK) return false;
  m->count = (uint32_t)count + BYTES;
  m->tokens = calloc(m->count, sizeof *m->tokens);
  m->halves = iso_huge_alloc(m->count * sizeof *m->halves);
  m->ids = malloc(m->count * sizeof *m->ids);
  if (!m->tokens || !m->halves || !m->ids) return false;
  for (uint32_t byte = 0; byte < BYTES; byte++) {
    m->halves[byte] = (iso_matcher_halves){0, 0};
    m->tokens[byte] = (iso_matcher_token){.length = 1, .shorter = NONE};
    m->ids[byte] = v->byte_ids[byte];
    if (v->byte_ids[byte] >= 0) b->numbers[v->byte_ids[byte]] = byte;
  }
  for (uint32_t i = 0; i < count; i++) {
    if (i > 0 && b->found[i].rank == b->found[i - 1].rank) return false;
    b->numbers[b->found[i].id] = BYTES + i;
    m->ids[BYTES + i] = b->found[i].id;
  }
  for (uint32_t i = 0; i < count; i++) {
    const struct found *f = &b->found[i];
    const uint32_t left = b->numbers[f->left], right = b->numbers[f->right];
    if (left == NONE || right == NONE) return false;
    m->tokens[BYTES + i] = (iso_matcher_token){v->tokens[f->id].length, NONE};
    m->halves[BYTES + i] = (iso_matcher_halves){left, right};
  }
  return true;
}

/* Tokens that are made, at some step, of a half that is later than what it becomes: few, in vocabularies that were
 * extended. */
static bool mark_unordered(builder *b) {
  const iso_matcher *m = b->m;
  b->unordered = calloc(m->count, sizeof *b->unordered);
  if (!b->unordered) return false;
  for (bool more = true; more;) { /* until it has spread to all that are made of them */
    more = false;
    for (uint32_t token = BYTES; token < m->count; token++) {
      const uint32_t left = m->halves[token].left, right = m->halves[token].right;
      const bool now = left >= token || right >= token || b->unordered[left] || b->unordered[right];
      more = more || (now && !b->unordered[token]);
      b->unordered[token] = now;
    }
  }
  return true;
}

static bool hash_merges(iso_matcher *m) {
  const int bits = bits_for(2ull * m->count), filter_bits = bits_for(16ull * m->count);
  m->merge_shift = 64 - bits;
  m->merge_mask = (1ull << bits) - 1;
  m->filter_shift = 64 - filter_bits;
  m->merges = iso_huge_alloc(sizeof *m->merges << bits);
  m->filter = calloc((1ull << filter_bits) / 64, sizeof *m->filter);
  m->byte_merges = malloc((1u << 16) * sizeof *m->byte_merges);
  if (!m->merges || !m->filter || !m->byte_merges) return false;
  memset(m->merges, 0xFF, sizeof *m->merges << bits);
  memset(m->byte_merges, 0xFF, (1u << 16) * sizeof *m->byte_merges);
  for (uint32_t token = BYTES; token < m->count; token++) {
    const uint32_t left = m->halves[token].left, right = m->halves[token].right;
    if ((left | right) < BYTES) {
      m->byte_merges[left << 8 | right] = token;
      continue;
    }
    const uint64_t key = pair_key(left, right), hash = pair_hash(key), bit = hash >> m->filter_shift;
    m->filter[bit >> 6] |= 1ull << (bit & 63);
    uint64_t slot = hash >> m->merge_shift;
    while (m->merges[slot] != UINT64_MAX) slot = (slot + 1) & m->merge_mask;
    m->merges[slot] = key << NUMBER_BITS | token;
  }
  return true;
}

/* Longest token that is a shorter beginning of each token: of sorted words it stands before, and all between begin with
 * it too. */
static bool find_shorter(iso_matcher *m, const iso_trie_word *words, uint32_t count) {
  uint32_t *open = malloc((count + 1) * sizeof *open), depth = 0;
  if (!open) return false;
  for (uint32_t i = 0; i < count; i++) {
    const iso_trie_word *word = &words[i];
    while (depth > 0 && (words[open[depth - 1]].length >= word->length ||
                         memcmp(words[open[depth - 1]].bytes, word->bytes, words[open[depth - 1]].length) != 0))
      depth--;
    m->tokens[word->number].shorter = depth > 0 ? words[open[depth - 1]].number : word->bytes[0];
    open[depth++] = i;
  }
  free(open);
  return true;
}

/* Pairs of bytes that begin tokens which begin inside a character and go on behind it. */
static bool mark_leaving(iso_matcher *m, const iso_trie_word *words, uint32_t count) {
  m->leaving = calloc(BYTES * BYTES / 64, sizeof *m->leaving);
  if (!m->leaving) return false;
  for (uint32_t i = 0; i < count; i++) {
    const uint8_t *bytes = words[i].bytes;
    uint32_t at = 0;
    while (at < words[i].length && iso_utf8_continues(bytes[at])) at++;
    if (at == 0 || at == words[i].length) continue;
    const uint32_t two = (uint32_t)bytes[0] << 8 | bytes[1];
    m->leaving[two >> 6] |= 1ull << (two & 63);
  }
  return true;
}

static bool build_trie(builder *b) {
  iso_matcher *m = b->m;
  uint32_t count = 0;
  iso_trie_word *words = malloc((m->count + 1) * sizeof *words);
  if (!words) return false;
  bool done = true;
  for (int unordered = 0; done && unordered < 2; unordered++) {
    for (uint32_t token = BYTES; token < m->count; token++) {
      if (b->unordered[token] != unordered) continue;
      const iso_token *v = &b->vocabulary->tokens[m->ids[token]];
      words[count++] = (iso_trie_word){(const uint8_t *)b->vocabulary->bytes.data + v->offset, v->length,
                                       token | (unordered ? ISO_MATCHER_UNORDERED : 0)};
    }
    iso_trie_sort(words, count);
    if (!unordered) done = find_shorter(m, words, count); /* a row holds none of the others */
  }
  done = done && mark_leaving(m, words, count) && iso_trie_build(&m->trie, words, count);
  free(words);
  return done;
}

static bool mark_whole(builder *b) {
  iso_matcher *m = b->m;
  const iso_vocabulary *v = b->vocabulary;
  m->whole = calloc(256, sizeof *m->whole);
  if (!m->whole) return false;
  for (int64_t id = 0; id < v->count; id++) {
    const iso_token *token = &v->tokens[id];
    if (!token->present || !token->mapped || token->length < 2 || b->numbers[id] != NONE) continue;
    const uint32_t mark = iso_matcher_mark((const uint8_t *)v->bytes.data + token->offset, token->length);
    m->whole[mark >> 6] |= 1ull << (mark & 63);
  }
  return true;
}

void iso_matcher_build(iso_matcher *matcher, const iso_vocabulary *vocabulary, const iso_pairs *pairs) {
  iso_tier tier;
  matcher->wide = iso_cpu_tier(&tier) == ISO_OK && tier >= ISO_TIER_AVX512;
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
    matcher->usable =
        number_tokens(&b) && mark_unordered(&b) && hash_merges(matcher) && build_trie(&b) && mark_whole(&b);
  }
  free(b.found);
  free(b.numbers);
  free(b.ids);
  free(b.unordered);
  free(b.scratch.memory);
  if (!matcher->usable) iso_matcher_fini(matcher);
}

void iso_matcher_fini(iso_matcher *matcher) {
  free(matcher->tokens);
  free(matcher->halves);
  free(matcher->ids);
  free(matcher->byte_merges);
  free(matcher->whole);
  iso_trie_fini(&matcher->trie);
  free(matcher->merges);
  free(matcher->filter);
  free(matcher->leaving);
  *matcher = (iso_matcher){0};
}
