/* SPDX-License-Identifier: Apache-2.0
 *
 * vocabulary.c: tokens by id, ids by bytes, and the byte-level alphabet.
 *
 * Byte-level vocabularies write each byte as one printable character: 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for
 * themselves, the other 68 bytes, ascending, for U+0100, U+0101, ... (the rule of GPT-2's encoder). A token that holds
 * any other character (an added token such as "a b") cannot be made by merging bytes: it is kept apart, as text.
 *
 * Invariants
 *  1. An id is used once; mapped tokens are unique as bytes, the others as text.
 *  2. Ids are 0 .. ISO_VOCABULARY_LIMIT - 1, so they fit int32_t and arrays by id stay bounded.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

/* ---- the alphabet ---- */

static bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

static uint32_t byte_character(int byte) {
  if (stands_for_itself(byte)) return (uint32_t)byte;
  if (byte <= 0x20) return 0x100 + (uint32_t)byte;
  if (byte <= 0xA0) return 0x100 + 0x21 + (uint32_t)(byte - 0x7F);
  return 0x100 + 0x21 + 0x22; /* 0xAD */
}

/* -1: no byte's character. */
static int character_byte(uint32_t code) {
  if (code < 0x100) return stands_for_itself((int)code) ? (int)code : -1;
  if (code <= 0x120) return (int)(code - 0x100);
  if (code <= 0x142) return (int)(code - 0x121 + 0x7F);
  return code == 0x143 ? 0xAD : -1;
}

bool iso_byte_level_decode(const char *text, size_t length, iso_string *out) {
  for (size_t at = 0, bytes; at < length; at += bytes) {
    int byte = character_byte(iso_utf8_decode((const uint8_t *)text + at, &bytes));
    if (byte < 0) return false;
    char c = (char)byte;
    iso_string_append(out, &c, 1);
  }
  return true;
}

void iso_byte_level_encode(const char *bytes, size_t length, iso_string *out) {
  for (size_t i = 0; i < length; i++) iso_utf8_append(out, byte_character((uint8_t)bytes[i]));
}

/* ---- the vocabulary ---- */

uint64_t iso_hash_bytes(const char *bytes, size_t length) {
  uint64_t hash = length * 0x9E3779B97F4A7C15u;
  for (; length >= 8; bytes += 8, length -= 8) {
    uint64_t word;
    memcpy(&word, bytes, 8);
    hash = (hash ^ word) * 0x9FB21C651E98DF25u;
    hash ^= hash >> 32;
  }
  uint64_t tail = 0;
  memcpy(&tail, bytes, length);
  hash = (hash ^ tail) * 0x9FB21C651E98DF25u;
  return hash ^ hash >> 29;
}

/* The slot of these bytes, or the empty one where they would be. */
static uint64_t find_slot(const iso_vocabulary *vocabulary, const char *bytes, size_t length, bool mapped) {
  uint64_t mask = vocabulary->slot_count - 1;
  for (uint64_t slot = (iso_hash_bytes(bytes, length) + mapped) & mask;; slot = (slot + 1) & mask) {
    int32_t id = vocabulary->slots[slot];
    if (id < 0) return slot;
    const iso_token *token = &vocabulary->tokens[id];
    if (token->length == length && token->mapped == mapped &&
        memcmp(vocabulary->bytes.data + token->offset, bytes, length) == 0)
      return slot;
  }
}

static bool grow_slots(iso_vocabulary *vocabulary) {
  if (2 * ((uint64_t)vocabulary->used + 1) <= vocabulary->slot_count) return true;
  uint64_t count = vocabulary->slot_count ? 2 * vocabulary->slot_count : 1024;
  int32_t *old = vocabulary->slots, *slots = malloc(count * sizeof *slots);
  if (!slots) return false;
  memset(slots, 0xFF, count * sizeof *slots);
  uint64_t old_count = vocabulary->slot_count;
  vocabulary->slots = slots;
  vocabulary->slot_count = count;
  for (uint64_t i = 0; i < old_count; i++) {
    if (old[i] < 0) continue;
    const iso_token *token = &vocabulary->tokens[old[i]];
    slots[find_slot(vocabulary, vocabulary->bytes.data + token->offset, token->length, token->mapped)] = old[i];
  }
  free(old);
  return true;
}

static bool grow_tokens(iso_vocabulary *vocabulary, int64_t id) {
  if (id < vocabulary->capacity) return true;
  int64_t capacity = vocabulary->capacity ? vocabulary->capacity : 512;
  while (capacity <= id) capacity *= 2;
  iso_token *tokens = realloc(vocabulary->tokens, (size_t)capacity * sizeof *tokens);
  if (!tokens) return false;
  memset(tokens + vocabulary->capacity, 0, (size_t)(capacity - vocabulary->capacity) * sizeof *tokens);
  vocabulary->tokens = tokens;
  vocabulary->capacity = capacity;
  return true;
}

iso_status iso_vocabulary_add(iso_vocabulary *vocabulary, const char *where, int64_t id, const char *bytes,
                              size_t length, bool mapped) {
  if (id < 0 || id >= ISO_VOCABULARY_LIMIT)
    return iso_fail(ISO_ERR_FORMAT, "%s: token id %lld is outside 0..%d", where, (long long)id,
                    ISO_VOCABULARY_LIMIT - 1);
  if (length == 0) return iso_fail(ISO_ERR_FORMAT, "%s: token %lld is empty", where, (long long)id);
  if (length > ISO_TOKEN_BYTES_LIMIT)
    return iso_fail(ISO_ERR_FORMAT, "%s: token %lld has %zu bytes, more than %d", where, (long long)id, length,
                    ISO_TOKEN_BYTES_LIMIT);
  if (!grow_tokens(vocabulary, id) || !grow_slots(vocabulary))
    return iso_fail(ISO_ERR_MEMORY, "%s: out of memory for the vocabulary", where);
  if (vocabulary->tokens[id].present)
    return iso_fail(ISO_ERR_FORMAT, "%s: two tokens have the id %lld", where, (long long)id);
  uint64_t slot = find_slot(vocabulary, bytes, length, mapped);
  if (vocabulary->slots[slot] >= 0)
    return iso_fail(ISO_ERR_FORMAT, "%s: tokens %d and %lld are the same bytes", where, vocabulary->slots[slot],
                    (long long)id);
  iso_token *token = &vocabulary->tokens[id];
  *token = (iso_token){vocabulary->bytes.length, (uint32_t)length, true, mapped};
  iso_string_append(&vocabulary->bytes, bytes, length);
  if (iso_string_failed(&vocabulary->bytes)) {
    vocabulary->slot_count = 0; /* the bytes are gone: nothing may be looked up any more */
    return iso_fail(ISO_ERR_MEMORY, "%s: out of memory for the vocabulary", where);
  }
  vocabulary->slots[slot] = (int32_t)id;
  if (id >= vocabulary->count) vocabulary->count = id + 1;
  vocabulary->used++;
  return ISO_OK;
}

int32_t iso_vocabulary_find(const iso_vocabulary *vocabulary, const char *bytes, size_t length, bool mapped) {
  if (vocabulary->slot_count == 0) return -1;
  return vocabulary->slots[find_slot(vocabulary, bytes, length, mapped)];
}

void iso_vocabulary_finish(iso_vocabulary *vocabulary) {
  for (int byte = 0; byte < 256; byte++) {
    char c = (char)byte;
    vocabulary->byte_ids[byte] = iso_vocabulary_find(vocabulary, &c, 1, true);
  }
}

void iso_vocabulary_fini(iso_vocabulary *vocabulary) {
  iso_string_fini(&vocabulary->bytes);
  free(vocabulary->tokens);
  free(vocabulary->slots);
  *vocabulary = (iso_vocabulary){0};
}
