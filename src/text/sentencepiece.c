/* SPDX-License-Identifier: Apache-2.0
 *
 * sentencepiece.c: text to pieces and back, for tokenizers whose merges begin with characters (SentencePiece BPE, and
 * tokenizer.json files made from it).
 *
 * For the reference a whole text is one input of the merge loop. Here it is cut first, wherever no merge can reach over
 * the cut: a merge joins the last character of its left half to the first of its right half, so between two characters
 * that no merge joins nothing can ever happen, and what lies on both sides is merged alone. Ordinary text falls into
 * words that way, which repeat and are remembered.
 *
 * Invariants
 *  1. A chunk's ids depend on the chunk alone; only unknown characters look back, at one flag.
 *  2. Time is O(n log n). Memory is that of the normalized text, the ids, and for the longest chunk what iso_bpe_merge
 *     takes for it.
 *  3. Nothing is dropped: a character without id becomes its bytes' ids, the unknown id, or an error.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

enum { CACHE_SLOTS = 1 << 15, CACHE_BYTES = 24, CACHE_IDS = 8, LONG_CHUNK = 16, MARK = 0x2581 };

typedef struct cached_chunk {
  uint64_t words[CACHE_BYTES / 8]; /* the chunk, padded with zeros */
  uint8_t length, count;           /* length 0: empty slot */
  int32_t ids[CACHE_IDS];
} cached_chunk;

struct iso_sentencepiece_encoder {
  const iso_tokenizer *tokenizer;
  const iso_sentencepiece *sp;
  cached_chunk *cache;
  int32_t *ids;
  size_t count, capacity;
  iso_bpe_scratch scratch;
  iso_string normal, late; /* a segment, normalized before and after the second look for added tokens */
  const char *text;
  size_t segment;     /* where the segment begins in `text` */
  bool parse_special; /* of this call */
  bool after_unknown; /* the last id stands for unknown characters */
};

iso_sentencepiece_encoder *iso_sentencepiece_encoder_create(const iso_tokenizer *tokenizer) {
  iso_sentencepiece_encoder *encoder = calloc(1, sizeof *encoder);
  if (encoder) encoder->cache = calloc(CACHE_SLOTS, sizeof *encoder->cache);
  if (!encoder || !encoder->cache) {
    iso_sentencepiece_encoder_destroy(&encoder);
    iso_fail(ISO_ERR_MEMORY, "out of memory for a tokenizer's encoder");
    return NULL;
  }
  encoder->tokenizer = tokenizer;
  encoder->sp = tokenizer->sentencepiece;
  return encoder;
}

void iso_sentencepiece_encoder_destroy(iso_sentencepiece_encoder **encoder) {
  if (!encoder || !*encoder) return;
  iso_sentencepiece_encoder *e = *encoder;
  free(e->cache);
  free(e->ids);
  free(e->scratch.memory);
  iso_string_fini(&e->normal);
  iso_string_fini(&e->late);
  free(e);
  *encoder = NULL;
}

/* ---- one chunk ---- */

static iso_status reserve_ids(iso_sentencepiece_encoder *e, size_t more) {
  if (e->capacity - e->count >= more) return ISO_OK;
  size_t capacity = e->capacity ? e->capacity : 1024;
  while (capacity - e->count < more) capacity += capacity / 2;
  int32_t *ids = realloc(e->ids, capacity * sizeof *ids);
  if (!ids) return iso_fail(ISO_ERR_MEMORY, "out of memory for %zu token ids", capacity);
  e->ids = ids;
  e->capacity = capacity;
  return ISO_OK;
}

static int32_t character_id(const iso_sentencepiece *sp, uint32_t code) {
  if (code < 128) return sp->ascii[code];
  const iso_pair *pair = iso_pairs_find(&sp->characters, (int32_t)code, 0);
  return pair ? pair->id : -1;
}

static bool can_join(const iso_sentencepiece *sp, uint32_t left, uint32_t right) {
  if (left < 128 && right < 128) return sp->ascii_joins[left][right >> 6] >> (right & 63) & 1;
  return iso_pairs_find(&sp->joins, (int32_t)left, (int32_t)right) != NULL;
}

/* The ids that `length` bytes of characters begin with; at most one for each byte. Room is reserved. */
static iso_status first_ids(iso_sentencepiece_encoder *e, const char *text, size_t length, int32_t *ids,
                            size_t *count) {
  const iso_sentencepiece *sp = e->sp;
  size_t n = 0;
  for (size_t at = 0, bytes; at < length; at += bytes) {
    uint32_t code = iso_utf8_decode((const uint8_t *)text + at, &bytes);
    int32_t id = character_id(sp, code);
    bool unknown = id < 0 && !sp->byte_fallback;
    if (id >= 0) {
      ids[n++] = id;
    } else if (sp->byte_fallback) {
      for (size_t i = 0; i < bytes; i++) ids[n++] = sp->bytes[(uint8_t)text[at + i]];
    } else if (sp->unknown < 0) {
      return iso_fail(ISO_ERR_MISMATCH,
                      "cannot tokenize U+%04X at or after byte %zu of the text: the vocabulary of '%s' has neither it "
                      "nor its bytes nor a token for what is unknown",
                      (unsigned)code, e->segment, e->tokenizer->path);
    } else if (!e->after_unknown || !sp->fuse_unknown) {
      ids[n++] = sp->unknown;
    }
    e->after_unknown = unknown;
  }
  *count = n;
  return ISO_OK;
}

/* Strays that no merge took become their bytes, or unknown. `after`: an unknown id stands before. */
static size_t replace_strays(const iso_tokenizer *t, int32_t *ids, size_t count, bool after) {
  static const uint8_t lead[4] = {0, 0xC0, 0xE0, 0xF0};
  const iso_sentencepiece *sp = t->sentencepiece;
  const int32_t known = (int32_t)t->vocabulary.count;
  if (!sp->byte_fallback) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
      int32_t id = ids[i] < known ? ids[i] : sp->unknown;
      if (id != sp->unknown || !after || !sp->fuse_unknown) ids[kept++] = id;
      after = id == sp->unknown;
    }
    return kept;
  }
  size_t total = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t code = ids[i] < known ? 0 : sp->strays[ids[i] - known];
    total += 1u + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF);
  }
  for (size_t i = count, to = total; i-- > 0;) { /* from the end: each id moves right or stays */
    if (ids[i] < known) {
      ids[--to] = ids[i];
      continue;
    }
    uint32_t code = sp->strays[ids[i] - known];
    int more = (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF);
    for (int k = 0; k < more; k++) ids[--to] = sp->bytes[0x80 | (code >> 6 * k & 0x3F)];
    ids[--to] = sp->bytes[lead[more] | code >> 6 * more];
  }
  return total;
}

static iso_status merge_chunk(iso_sentencepiece_encoder *e, const char *text, size_t length) {
  const iso_tokenizer *t = e->tokenizer;
  bool after = e->after_unknown;
  ISO_TRY(reserve_ids(e, length));
  int32_t *ids = e->ids + e->count;
  size_t count = 0;
  ISO_TRY(first_ids(e, text, length, ids, &count));
  if (count > 1) count = iso_bpe_merge(&t->pairs, ids, count, &e->scratch);
  if (count == SIZE_MAX) return ISO_ERR_MEMORY;
  if (e->sp->stray_count > 0) {
    count = replace_strays(t, ids, count, after);
    e->after_unknown = count == 0 ? after : !e->sp->byte_fallback && ids[count - 1] == e->sp->unknown;
  }
  e->count += count;
  return ISO_OK;
}

static iso_status encode_chunk(iso_sentencepiece_encoder *e, const char *text, size_t length) {
  if (length > CACHE_BYTES) return merge_chunk(e, text, length);
  uint64_t words[CACHE_BYTES / 8] = {0};
  memcpy(words, text, length);
  uint64_t hash = (words[0] ^ length) * 0x9E3779B97F4A7C15u;
  hash = (hash ^ hash >> 32 ^ words[1]) * 0x9FB21C651E98DF25u;
  hash = (hash ^ hash >> 29 ^ words[2]) * 0xD6E8FEB86659FD93u;
  cached_chunk *entry = &e->cache[hash >> 32 & (CACHE_SLOTS - 1)];
  if (entry->length == length && memcmp(entry->words, words, sizeof words) == 0) {
    ISO_TRY(reserve_ids(e, CACHE_IDS));
    memcpy(e->ids + e->count, entry->ids, sizeof entry->ids);
    e->count += entry->count;
    e->after_unknown = false;
    return ISO_OK;
  }
  size_t before = e->count;
  bool unknown = e->after_unknown; /* then an unknown id of this chunk may be left out: not to be remembered */
  ISO_TRY(merge_chunk(e, text, length));
  size_t count = e->count - before;
  for (size_t i = before; i < e->count; i++) unknown |= e->ids[i] == e->sp->unknown;
  if (count > CACHE_IDS || unknown) return ISO_OK;
  memcpy(entry->words, words, sizeof words);
  entry->length = (uint8_t)length;
  entry->count = (uint8_t)count;
  memcpy(entry->ids, e->ids + before, count * sizeof *entry->ids);
  return ISO_OK;
}

/* ---- cutting ---- */

/* End of the chunk that begins at `at`. Short of LONG_CHUNK bytes, only places before a U+2581 are looked at. */
static size_t chunk_end(const iso_sentencepiece *sp, const char *text, size_t at, size_t length) {
  size_t bytes;
  uint32_t previous = iso_utf8_decode((const uint8_t *)text + at, &bytes);
  for (size_t i = at + bytes; i < length; i += bytes) {
    uint32_t code = iso_utf8_decode((const uint8_t *)text + i, &bytes);
    bool look = (code == MARK && previous != MARK) || i - at >= LONG_CHUNK;
    if (look && !can_join(sp, previous, code)) return i;
    previous = code;
  }
  return length;
}

/* What is one input of the reference's merge loop. */
static iso_status encode_word(iso_sentencepiece_encoder *e, const char *text, size_t length) {
  e->after_unknown = false;
  if (e->tokenizer->whole_first) {
    int32_t id = iso_vocabulary_find(&e->tokenizer->vocabulary, text, length, true);
    if (id >= 0) {
      ISO_TRY(reserve_ids(e, 1));
      e->ids[e->count++] = id;
      return ISO_OK;
    }
  }
  for (size_t at = 0, stop; at < length; at = stop) {
    stop = chunk_end(e->sp, text, at, length);
    ISO_TRY(encode_chunk(e, text + at, stop - at));
  }
  return ISO_OK;
}

static iso_status encode_words(iso_sentencepiece_encoder *e, const char *text, size_t length) {
  if (!e->sp->each_mark) return length > 0 ? encode_word(e, text, length) : ISO_OK;
  for (size_t at = 0, stop; at < length; at = stop) {
    const char *mark = memmem(text + at + 1, length - at - 1, "\xE2\x96\x81", 3);
    stop = mark ? (size_t)(mark - text) : length;
    ISO_TRY(encode_word(e, text + at, stop - at));
  }
  return ISO_OK;
}

/* User-defined pieces first: they are never merged, so they part the text. */
static iso_status encode_segment(iso_sentencepiece_encoder *e, const char *text, size_t length) {
  size_t at = 0, start, stop;
  const iso_added_token *fixed;
  while ((fixed = iso_added_next(&e->sp->fixed, 0, text, at, length, &start, &stop))) {
    ISO_TRY(encode_words(e, text + at, start - at));
    ISO_TRY(reserve_ids(e, 1));
    e->ids[e->count++] = fixed->id;
    at = stop;
  }
  return encode_words(e, text + at, length - at);
}

/* ---- added tokens and normalization ---- */

static iso_status normalize(const iso_sentencepiece_encoder *e, const char *text, size_t length, iso_text_place place,
                            iso_string *out) {
  if (out->data) out->length = 0;
  iso_string_append(out, "", 0);
  iso_sentencepiece_normalize(e->sp, text, length, place, out);
  if (!iso_string_failed(out)) return ISO_OK;
  return iso_fail(ISO_ERR_MEMORY, "out of memory for a text of %zu bytes", length);
}

static iso_status encode_late(iso_sentencepiece_encoder *e, const char *text, size_t length, iso_text_place place) {
  if (!e->sp->late) return encode_segment(e, text, length);
  ISO_TRY(normalize(e, text, length, place, &e->late));
  return encode_segment(e, e->late.data, e->late.length);
}

typedef iso_status (*segment_function)(iso_sentencepiece_encoder *e, const char *text, size_t length,
                                       iso_text_place place);

/* Emits the added tokens of set `which`, and hands what lies between to `rest`. */
static iso_status split_added(iso_sentencepiece_encoder *e, int which, const char *text, size_t length,
                              iso_text_place place, segment_function rest) {
  iso_added_walk walk = {&e->tokenizer->added, which, text, length, 0, 0};
  if (!e->parse_special) return length > 0 ? rest(e, text, length, place) : ISO_OK;
  for (;;) {
    size_t start, stop;
    const iso_added_token *token = iso_added_walk_next(&walk, &start, &stop);
    if (start < stop) ISO_TRY(rest(e, text + start, stop - start, start == 0 ? place : ISO_TEXT_BEHIND));
    if (!token) return ISO_OK;
    ISO_TRY(reserve_ids(e, 1));
    e->ids[e->count++] = token->id;
  }
}

static iso_status encode_early(iso_sentencepiece_encoder *e, const char *text, size_t length, iso_text_place place) {
  e->segment = (size_t)(text - e->text);
  if (e->sp->late) return split_added(e, 1, text, length, place, encode_late);
  ISO_TRY(normalize(e, text, length, place, &e->normal));
  return split_added(e, 1, e->normal.data, e->normal.length, place, encode_late);
}

iso_status iso_sentencepiece_encode(iso_sentencepiece_encoder *encoder, const char *text, size_t length,
                                    bool parse_special, bool beginning, const int32_t **ids, size_t *count) {
  *ids = NULL;
  *count = encoder->count = 0;
  encoder->text = text;
  encoder->parse_special = parse_special;
  ISO_TRY(split_added(encoder, 0, text, length, beginning ? ISO_TEXT_START : ISO_TEXT_WITHIN, encode_early));
  ISO_TRY(reserve_ids(encoder, 1)); /* *ids is never NULL on success */
  *ids = encoder->ids;
  *count = encoder->count;
  return ISO_OK;
}

void iso_sentencepiece_swap(iso_sentencepiece_encoder *encoder, int32_t **ids, size_t *capacity) {
  int32_t *own = encoder->ids;
  const size_t room = encoder->capacity;
  encoder->ids = *ids;
  encoder->capacity = *capacity;
  *ids = own;
  *capacity = room;
}

bool iso_sentencepiece_joins_space(const iso_sentencepiece *sp, uint32_t code) {
  return can_join(sp, code, MARK);
}

/* Spaces must become U+2581 one by one, and no part may be looked for whole in the vocabulary but one that the whole
 * text has too: the reference's words, where each mark begins one. U+2581 must have an id of its own: a flag for
 * unknown characters goes no further. */
bool iso_sentencepiece_parts_at_space(const iso_tokenizer *tokenizer) {
  const iso_sentencepiece *sp = tokenizer->sentencepiece;
  const int32_t mark = character_id(sp, MARK);
  if (!sp->escape || sp->trim || sp->charsmap.bytes || (tokenizer->whole_first && !sp->each_mark)) return false;
  return mark >= 0 && mark < tokenizer->vocabulary.count && mark != sp->unknown;
}

bool iso_sentencepiece_refuses(const iso_sentencepiece *sp) {
  return !sp->byte_fallback && sp->unknown < 0;
}

/* ---- decoding ---- */

/* tokenizer.model: the dummy space is the one that the first piece begins with (as the reference tells). */
static bool drops_space(const iso_tokenizer *t, int32_t id, bool at_start) {
  const iso_token *token = &t->vocabulary.tokens[id];
  bool added = t->sentencepiece->prefix != ISO_PREFIX_NONE || t->sentencepiece->trim;
  return added && at_start && token->mapped && token->length >= 3 &&
         memcmp(t->vocabulary.bytes.data + token->offset, "\xE2\x96\x81", 3) == 0;
}

iso_status iso_sentencepiece_decode(const iso_tokenizer *tokenizer, const int32_t *ids, size_t count, iso_string *out) {
  const iso_sentencepiece *sp = tokenizer->sentencepiece;
  bool at_start = true, dropped = false;
  int strip = sp->sentence ? 0 : sp->strip;
  iso_string_append(out, "", 0);
  const size_t begin = out->length;
  for (size_t i = 0; i < count; i++) {
    size_t length, skip = 0;
    const char *bytes = iso_tokenizer_bytes(tokenizer, ids[i], &length);
    if (!bytes)
      return iso_fail(ISO_ERR_MISMATCH, "cannot decode id %d at place %zu: the vocabulary of '%s' has no such id",
                      ids[i], i, tokenizer->path);
    if (sp->sentence && ids[i] != sp->bytes[(uint8_t)bytes[0]]) {
      if (dropped || out->length > begin) at_start = false;
      dropped = drops_space(tokenizer, ids[i], at_start);
      skip = dropped ? 1 : 0;
      if (sp->trim) dropped = false;
    }
    for (; !sp->sentence && strip > 0 && skip < length && out->length == begin && bytes[skip] == ' '; strip--) skip++;
    iso_string_append(out, bytes + skip, length - skip);
  }
  if (iso_string_failed(out)) return iso_fail(ISO_ERR_MEMORY, "out of memory while decoding %zu ids", count);
  return ISO_OK;
}
