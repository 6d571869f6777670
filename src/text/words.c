/* SPDX-License-Identifier: Apache-2.0
 *
 * words.c: an encoder's memory of short pieces and their ids.
 *
 * Words repeat, so most pieces of a text were seen before. A word (up to 15 bytes, up to 3 ids) is half a cache line
 * and stands in one of two places that its hash names, so a look costs one line and two comparisons; longer pieces or
 * such with more ids take a line each. A new one displaces the older of the two. Nothing is ever searched for.
 *
 * Invariants
 *  1. Whole keys are compared: a hit is the same piece.
 *  2. The size is fixed (5 MB).
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

enum { WORD_SETS = 1 << ISO_WORD_BITS, PHRASE_BITS = 14, PHRASES = 1 << PHRASE_BITS };

#define FIRST(n) ((1ull << 8 * (n)) - 1)
#define ALL      (~0ull)
const uint64_t iso_word_masks[ISO_WORD_BYTES + 1][2] = {
    {0, 0},          {FIRST(1), 0},   {FIRST(2), 0},   {FIRST(3), 0},   {FIRST(4), 0},   {FIRST(5), 0},
    {FIRST(6), 0},   {FIRST(7), 0},   {ALL, 0},        {ALL, FIRST(1)}, {ALL, FIRST(2)}, {ALL, FIRST(3)},
    {ALL, FIRST(4)}, {ALL, FIRST(5)}, {ALL, FIRST(6)}, {ALL, FIRST(7)}};

bool iso_words_init(iso_words *words) {
  const size_t word_bytes = WORD_SETS * sizeof *words->words, phrase_bytes = PHRASES * sizeof *words->phrases;
  words->memory = iso_huge_alloc(word_bytes + phrase_bytes);
  if (!words->memory) return false;
  memset(words->memory, 0, word_bytes + phrase_bytes);
  words->words = words->memory;
  words->phrases = (void *)((char *)words->memory + word_bytes);
  return true;
}

void iso_words_fini(iso_words *words) {
  free(words->memory);
  *words = (iso_words){0};
}

void iso_phrase_key(const uint8_t *text, size_t length, uint64_t key[4]) {
  memcpy(key, text, 32);
  for (size_t i = 0; i < 4; i++) {
    const size_t before = 8 * i;
    if (length < before + 8) key[i] &= length > before ? FIRST(length - before) : 0;
  }
  key[3] |= (uint64_t)length << 56;
}

iso_phrase *iso_phrase_at(const iso_words *words, const uint64_t key[4]) {
  uint64_t hash = 0;
  for (int i = 0; i < 4; i++) {
    hash = (hash ^ key[i]) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 31;
  }
  return &words->phrases[hash * 0xD6E8FEB86659FD93u >> (64 - PHRASE_BITS)];
}

void iso_words_keep(iso_words *words, const uint64_t key[4], size_t length, const int32_t *ids, size_t count) {
  if (length <= ISO_WORD_BYTES && count <= ISO_WORD_IDS) {
    iso_word new = {.key = {key[0], key[1] | (uint64_t)length << 56}, .count = (uint32_t)count};
    memcpy(new.ids, ids, count * sizeof *ids);
    iso_word *set = iso_word_at(words, new.key);
    set[1] = set[0];
    set[0] = new;
  } else if (length <= ISO_PHRASE_BYTES && count <= ISO_PHRASE_IDS) {
    iso_phrase *phrase = iso_phrase_at(words, key);
    memcpy(phrase->key, key, sizeof phrase->key);
    memcpy(phrase->ids, ids, count * sizeof *ids);
    phrase->count = (uint32_t)count;
  }
}
