/* SPDX-License-Identifier: Apache-2.0
 *
 * encode.c: text to ids, ids to bytes.
 *
 * Order, as the reference has it: added tokens that are matched in raw text; normalization of what lies between;
 * added tokens matched in normalized text; the pre-tokenizer's steps, each cutting the pieces of the one before;
 * merges within each piece. Words repeat, so an encoder remembers what short pieces became.
 *
 * Invariants
 *  1. A piece's ids depend on the piece alone: the cache changes time, never ids.
 *  2. Memory of an encoder is bounded by the longest text it was given; the cache has a fixed size.
 *  3. A byte that the vocabulary lacks is an error with its position, never dropped.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM = 32 };           /* bytes that can be read behind a window */
enum { BLOCK_IDS = 1 << 16 }; /* ids that a sink takes at once, or a piece more */

struct iso_encoder {
  const iso_tokenizer *tokenizer;
  iso_sentencepiece_encoder *sentencepiece; /* does it all when there is one */
  iso_regex_match *matches[ISO_SPLIT_STEPS];
  iso_window_function window;
  iso_words words;
  int32_t *ids;
  size_t count, capacity;
  bool lacks; /* the vocabulary has no token for some byte: texts may be refused */
  iso_bpe_scratch scratch;
  iso_string valid, normal;   /* the text, repaired; a segment, normalized */
  const char *text;           /* what positions in errors count from */
  bool moved;                 /* the text being cut is not `text` itself */
  size_t segment;             /* position of the segment in `text` */
  const iso_ids_sink *sink;   /* NULL: ids stay until the text has ended */
  size_t drained;             /* ids that went to it */
  const char *piece, *whence; /* the piece being merged, maybe a copy; where its text has it */
};

iso_encoder *iso_encoder_create(const iso_tokenizer *tokenizer) {
  iso_encoder *encoder = calloc(1, sizeof *encoder);
  if (!encoder) goto failed;
  encoder->tokenizer = tokenizer;
  if (tokenizer->sentencepiece) {
    encoder->sentencepiece = iso_sentencepiece_encoder_create(tokenizer);
    if (!encoder->sentencepiece) goto failed;
    return encoder;
  }
  iso_tier tier;
  if (iso_cpu_tier(&tier) != ISO_OK) goto failed;
  encoder->window = iso_window_find(tier);
  for (int i = 0; i < 256; i++) encoder->lacks |= tokenizer->vocabulary.byte_ids[i] < 0;
  if (!iso_words_init(&encoder->words)) goto failed;
  for (int i = 0; i < tokenizer->step_count; i++) {
    if (tokenizer->steps[i].splitter != ISO_SPLIT_REGEX) continue;
    encoder->matches[i] = iso_regex_match_create(tokenizer->steps[i].regex);
    if (!encoder->matches[i]) goto failed;
  }
  return encoder;
failed:
  iso_encoder_destroy(&encoder);
  iso_fail(ISO_ERR_MEMORY, "out of memory for a tokenizer's encoder");
  return NULL;
}

void iso_encoder_destroy(iso_encoder **encoder) {
  if (!encoder || !*encoder) return;
  iso_encoder *e = *encoder;
  iso_sentencepiece_encoder_destroy(&e->sentencepiece);
  for (int i = 0; i < ISO_SPLIT_STEPS; i++) iso_regex_match_destroy(&e->matches[i]);
  iso_words_fini(&e->words);
  free(e->ids);
  free(e->scratch.memory);
  iso_string_fini(&e->valid);
  iso_string_fini(&e->normal);
  free(e);
  *encoder = NULL;
}

/* ---- one piece ---- */

static iso_status reserve_ids(iso_encoder *encoder, size_t more) {
  if (encoder->capacity - encoder->count >= more) return ISO_OK;
  size_t capacity = encoder->capacity ? encoder->capacity : 1024;
  while (capacity - encoder->count < more) capacity *= 2;
  int32_t *ids = realloc(encoder->ids, capacity * sizeof *ids);
  if (!ids) return iso_fail(ISO_ERR_MEMORY, "out of memory for %zu token ids", capacity);
  encoder->ids = ids;
  encoder->capacity = capacity;
  return ISO_OK;
}

static iso_status drain(iso_encoder *encoder) {
  const size_t count = encoder->count;
  encoder->count = 0;
  encoder->drained += count;
  return count == 0 ? ISO_OK : encoder->sink->put(encoder->sink->context, encoder->ids, count);
}

/* Between pieces: as reserve_ids, after the sink has taken a block. */
static iso_status reserve_or_drain(iso_encoder *encoder, size_t more) {
  if (encoder->count >= BLOCK_IDS && encoder->sink) ISO_TRY(drain(encoder));
  return reserve_ids(encoder, more);
}

static iso_status missing_byte(const iso_encoder *encoder, const char *at) {
  const bool moved = encoder->moved;
  const size_t position =
      moved ? encoder->segment : (size_t)(encoder->whence - encoder->text) + (size_t)(at - encoder->piece);
  return iso_fail(ISO_ERR_MISMATCH,
                  "cannot tokenize byte 0x%02X at %s%zu of the text: the vocabulary of '%s' has no token for it",
                  (uint8_t)*at, moved ? "or after byte " : "byte ", position, encoder->tokenizer->path);
}

/* Appends the ids that merging gives; room for them is reserved. */
static iso_status merge(iso_encoder *encoder, const char *piece, size_t length) {
  const iso_tokenizer *t = encoder->tokenizer;
  int32_t *ids = encoder->ids + encoder->count;
  if (t->matcher.usable) {
    const size_t count = iso_matcher_encode(&t->matcher, (const uint8_t *)piece, length, ids, &encoder->scratch);
    if (count != SIZE_MAX) {
      int32_t lowest = 0;
      for (size_t i = 0; i < count; i++) lowest |= ids[i];
      if (lowest >= 0) {
        encoder->count += count;
        return ISO_OK;
      }
    }
  }
  for (size_t i = 0; i < length; i++) {
    ids[i] = t->vocabulary.byte_ids[(uint8_t)piece[i]];
    if (ids[i] < 0) return missing_byte(encoder, piece + i);
  }
  size_t count = iso_bpe_merge(&t->pairs, ids, length, &encoder->scratch);
  if (count == SIZE_MAX) return ISO_ERR_MEMORY;
  encoder->count += count;
  return ISO_OK;
}

/* The ids of a word that was seen before, at `out`; 0 for one that was not. */
static inline uint32_t recall(const iso_encoder *encoder, const uint8_t *text, size_t length, int32_t *out) {
  uint64_t key[2];
  iso_word_key(text, length, key);
  const iso_word *word = iso_word_at(&encoder->words, key);
  if (word->key[0] != key[0] || word->key[1] != key[1]) {
    word++;
    if (word->key[0] != key[0] || word->key[1] != key[1]) return 0;
  }
  memcpy(out, word->ids, sizeof *out * (ISO_WORD_IDS + 1));
  return word->count;
}

/* Appends the ids of a stretch inside a piece. One with the bytes of a token that no merging makes is not remembered:
 * as a piece of its own it would be that token. */
static iso_status merge_stretch(iso_encoder *encoder, const char *stretch, size_t length) {
  if (length > ISO_WORD_BYTES || iso_matcher_may_be_whole(&encoder->tokenizer->matcher, stretch, length))
    return merge(encoder, stretch, length);
  uint8_t copy[32] = {0};
  memcpy(copy, stretch, length);
  const uint32_t known = recall(encoder, copy, length, encoder->ids + encoder->count);
  encoder->count += known;
  if (known) return ISO_OK;
  const size_t before = encoder->count;
  ISO_TRY(merge(encoder, stretch, length));
  uint64_t key[4];
  iso_phrase_key(copy, length, key);
  if (encoder->count - before <= ISO_WORD_IDS)
    iso_words_keep(&encoder->words, key, length, encoder->ids + before, encoder->count - before);
  return ISO_OK;
}

/* Is it likely that a piece has many stretches? Chinese, Japanese or Korean, behind a punctuation mark or not. */
static bool is_unspaced(const char *piece, size_t length) {
  return length > 3 && ((uint8_t)piece[0] >= 0xE2 || (uint8_t)piece[1] >= 0xE2);
}

/* Appends the ids of a piece. */
static iso_status merge_piece(iso_encoder *encoder, const char *piece, size_t length) {
  const iso_tokenizer *t = encoder->tokenizer;
  ISO_TRY(reserve_ids(encoder, length + ISO_WORD_IDS + 1));
  if (t->whole_first && !(t->matcher.usable && !iso_matcher_may_be_whole(&t->matcher, piece, length))) {
    int32_t id = iso_vocabulary_find(&t->vocabulary, piece, length, true);
    if (id >= 0) {
      encoder->ids[encoder->count++] = id;
      return ISO_OK;
    }
  }
  if (!t->matcher.usable || !is_unspaced(piece, length)) return merge(encoder, piece, length);
  iso_stretch walk = {.matcher = &t->matcher, .text = (const uint8_t *)piece, .length = length};
  while (walk.at < length) {
    const size_t from = walk.at;
    const int32_t id = iso_stretch_next(&walk);
    if (id >= 0)
      encoder->ids[encoder->count++] = id;
    else
      ISO_TRY(merge_stretch(encoder, piece + from, walk.at - from));
  }
  return ISO_OK;
}

/* Appends the ids of a piece that the text has at `whence`; 32 bytes can be read at `piece` when it is short. */
static iso_status encode_near(iso_encoder *encoder, const char *piece, size_t length, const char *whence) {
  encoder->piece = piece;
  encoder->whence = whence;
  if (length > ISO_PHRASE_BYTES) return merge_piece(encoder, piece, length);
  uint64_t key[4];
  iso_phrase_key((const uint8_t *)piece, length, key);
  const iso_phrase *phrase = iso_phrase_at(&encoder->words, key);
  if (memcmp(phrase->key, key, sizeof key) == 0) {
    ISO_TRY(reserve_ids(encoder, ISO_PHRASE_IDS));
    memcpy(encoder->ids + encoder->count, phrase->ids, sizeof phrase->ids);
    encoder->count += phrase->count;
    return ISO_OK;
  }
  const size_t before = encoder->count;
  ISO_TRY(merge_piece(encoder, piece, length));
  iso_words_keep(&encoder->words, key, length, encoder->ids + before, encoder->count - before);
  return ISO_OK;
}

/* 32 bytes can be read at `piece` when it is short. */
static iso_status encode_readable(iso_encoder *encoder, const char *piece, size_t length, const char *whence) {
  ISO_TRY(reserve_or_drain(encoder, ISO_WORD_IDS + 1));
  if (length <= ISO_WORD_BYTES) {
    const uint32_t count = recall(encoder, (const uint8_t *)piece, length, encoder->ids + encoder->count);
    encoder->count += count;
    if (count) return ISO_OK;
  }
  return encode_near(encoder, piece, length, whence);
}

static iso_status encode_piece(iso_encoder *encoder, const char *piece, size_t length, const char *whence) {
  char copy[ISO_PHRASE_BYTES + 1] = {0};
  if (length > ISO_PHRASE_BYTES) return encode_readable(encoder, piece, length, whence);
  memcpy(copy, piece, length);
  return encode_readable(encoder, copy, length, whence);
}

/* ---- pre-tokenizer ---- */

/* The pieces that begin at `base` (`whence` in the text) and end at the bits of `stops`. Room for 64 + ISO_WORD_IDS ids
 * is reserved. */
static iso_status encode_window(iso_encoder *encoder, const uint8_t *base, uint64_t stops, const char *whence) {
  int32_t *out = encoder->ids + encoder->count;
  for (size_t from = 0, stop; stops; stops &= stops - 1, from = stop) {
    stop = (size_t)__builtin_ctzll(stops);
    const size_t length = stop - from;
    if (length <= ISO_WORD_BYTES) {
      const uint32_t count = recall(encoder, base + from, length, out);
      out += count;
      if (count) continue;
    }
    encoder->count = (size_t)(out - encoder->ids);
    ISO_TRY(encode_near(encoder, (const char *)base + from, length, whence + from));
    ISO_TRY(reserve_ids(encoder, ISO_WINDOW + ISO_WORD_IDS));
    out = encoder->ids + encoder->count;
  }
  encoder->count = (size_t)(out - encoder->ids);
  return ISO_OK;
}

/* A subject of cut_windows: its bytes, and where the text has them. A window and ROOM more can be read behind `last`,
 * the last place where a window begins. Bytes from `length` on are not ASCII, so that no window decides by them. */
typedef struct subject {
  const uint8_t *bytes;
  const char *whence;
  size_t length, last;
} subject;

/* Cuts and encodes with one of our scanners, window by window; *at goes behind `last`. */
static iso_status cut_windows(iso_encoder *encoder, iso_splitter splitter, const subject *s, size_t *at) {
  while (*at <= s->last) {
    const uint8_t *here = s->bytes + *at;
    const uint64_t stops = *here < 0x80 ? encoder->window(splitter, here) : 0;
    if (stops) {
      ISO_TRY(reserve_or_drain(encoder, ISO_WINDOW + ISO_WORD_IDS));
      ISO_TRY(encode_window(encoder, here, stops, s->whence + *at));
      *at += 63 - (size_t)__builtin_clzll(stops);
      continue;
    }
    const size_t stop = iso_split_next(splitter, s->bytes, *at, s->length);
    ISO_TRY(encode_readable(encoder, (const char *)here, stop - *at, s->whence + *at));
    *at = stop;
  }
  return ISO_OK;
}

/* The last bytes of a text are cut in a copy with room behind it. */
static iso_status cut_pieces(iso_encoder *encoder, iso_splitter splitter, const char *text, size_t length) {
  enum { REACH = ISO_WINDOW + ROOM };
  uint8_t end[2 * REACH];
  size_t at = 0;
  memset(end + REACH, 0xFF, REACH);
  if (length < REACH) {
    memset(end, 0xFF, REACH);
    memcpy(end, text, length);
    const subject all = {.bytes = end, .whence = text, .length = length, .last = length - 1};
    return cut_windows(encoder, splitter, &all, &at);
  }
  const subject most = {.bytes = (const uint8_t *)text, .whence = text, .length = length, .last = length - REACH};
  ISO_TRY(cut_windows(encoder, splitter, &most, &at));
  if (at == length) return ISO_OK;
  memcpy(end, text + length - REACH, REACH);
  const subject rest = {.bytes = end, .whence = text + length - REACH, .length = REACH, .last = REACH - 1};
  at -= length - REACH;
  return cut_windows(encoder, splitter, &rest, &at);
}

/* Cuts by step `step` and those after it. Recursion is bounded by ISO_SPLIT_STEPS. */
static iso_status cut(iso_encoder *encoder, int step, const char *text, size_t length) {
  const iso_tokenizer *t = encoder->tokenizer;
  if (length == 0) return ISO_OK;
  if (step == t->step_count) return encode_piece(encoder, text, length, text);
  const iso_split_step *s = &t->steps[step];
  if (s->splitter != ISO_SPLIT_REGEX) {
    if (step + 1 == t->step_count) return cut_pieces(encoder, s->splitter, text, length);
    for (size_t at = 0, stop; at < length; at = stop) {
      stop = iso_split_next(s->splitter, (const uint8_t *)text, at, length);
      ISO_TRY(cut(encoder, step + 1, text + at, stop - at));
    }
    return ISO_OK;
  }
  for (size_t at = 0; at < length;) {
    size_t start, stop;
    ISO_TRY(iso_regex_next(s->regex, encoder->matches[step], text, length, at, &start, &stop));
    ISO_TRY(cut(encoder, step + 1, text + at, start - at));
    ISO_TRY(cut(encoder, step + 1, text + start, stop - start));
    at = stop;
  }
  return ISO_OK;
}

/* ---- added tokens and normalization ---- */

typedef iso_status (*segment_function)(iso_encoder *encoder, const char *text, size_t length);

/* Emits the added tokens of set `which`, and hands what lies between to `rest`. */
static iso_status split_added(iso_encoder *encoder, int which, const char *text, size_t length, segment_function rest) {
  iso_added_walk walk = {&encoder->tokenizer->added, which, text, length, 0, 0};
  for (;;) {
    size_t start, stop;
    const iso_added_token *token = iso_added_walk_next(&walk, &start, &stop);
    if (start < stop) ISO_TRY(rest(encoder, text + start, stop - start));
    if (!token) return ISO_OK;
    ISO_TRY(reserve_ids(encoder, 1));
    encoder->ids[encoder->count++] = token->id;
  }
}

static iso_status cut_all(iso_encoder *encoder, const char *text, size_t length) {
  return cut(encoder, 0, text, length);
}

static iso_status split_normalized(iso_encoder *encoder, const char *text, size_t length) {
  return split_added(encoder, 1, text, length, cut_all);
}

/* Normalizes a segment of the text and hands it to `rest`. */
static iso_status normalize(iso_encoder *encoder, const char *text, size_t length, segment_function rest) {
  if (!encoder->tokenizer->nfc) return rest(encoder, text, length);
  bool changed, moved = encoder->moved;
  ISO_TRY(iso_nfc(text, length, &encoder->normal, &changed));
  if (!changed) return rest(encoder, text, length);
  if (!moved) encoder->segment = (size_t)(text - encoder->text);
  encoder->moved = true;
  iso_status status = rest(encoder, encoder->normal.data, encoder->normal.length);
  encoder->moved = moved;
  return status;
}

static iso_status normalize_then_split(iso_encoder *encoder, const char *text, size_t length) {
  return normalize(encoder, text, length, split_normalized);
}

/* Encodes valid UTF-8 with the pre-tokenizer and merges. */
static iso_status encode_valid(iso_encoder *encoder, const char *text, size_t length, bool parse_special) {
  encoder->count = encoder->segment = 0;
  if (parse_special)
    ISO_TRY(split_added(encoder, 0, text, length, normalize_then_split));
  else if (length > 0)
    ISO_TRY(normalize(encoder, text, length, cut_all));
  return ISO_OK;
}

iso_status iso_encode(iso_encoder *encoder, const char *text, size_t length, bool parse_special, bool replace_invalid,
                      const int32_t **ids, size_t *count) {
  *ids = NULL;
  *count = 0;
  encoder->text = text;
  encoder->moved = false;
  const size_t valid = iso_utf8_valid_prefix(text, length);
  if (valid < length) {
    if (!replace_invalid)
      return iso_fail(ISO_ERR_FORMAT, "text is not valid UTF-8 at byte %zu (0x%02X)", valid, (uint8_t)text[valid]);
    if (encoder->valid.data) encoder->valid.length = 0;
    iso_utf8_replace(text, length, &encoder->valid);
    if (iso_string_failed(&encoder->valid))
      return iso_fail(ISO_ERR_MEMORY, "out of memory for a text of %zu bytes", length);
    encoder->moved = true;
    text = encoder->valid.data;
    length = encoder->valid.length;
  }
  if (encoder->sentencepiece)
    return iso_sentencepiece_encode(encoder->sentencepiece, text, length, parse_special, true, ids, count);
  ISO_TRY(encode_valid(encoder, text, length, parse_special));
  ISO_TRY(reserve_ids(encoder, 1)); /* *ids is never NULL on success */
  *ids = encoder->ids;
  *count = encoder->count;
  return ISO_OK;
}

bool iso_encoder_refuses(const iso_encoder *encoder) {
  const iso_sentencepiece *sp = encoder->tokenizer->sentencepiece;
  return sp ? iso_sentencepiece_refuses(sp) : encoder->lacks;
}

/* All ids at once, which the encoder keeps. */
static iso_status encode_held(iso_encoder *encoder, const char *text, size_t length, bool parse_special, bool beginning,
                              const int32_t **ids, size_t *count) {
  encoder->text = text;
  encoder->moved = false;
  if (encoder->sentencepiece)
    return iso_sentencepiece_encode(encoder->sentencepiece, text, length, parse_special, beginning, ids, count);
  ISO_TRY(encode_valid(encoder, text, length, parse_special));
  *ids = encoder->ids;
  *count = encoder->count;
  return ISO_OK;
}

iso_status iso_encode_part(iso_encoder *encoder, const char *text, size_t length, bool parse_special, bool beginning,
                           int32_t **ids, size_t *capacity, size_t *count) {
  const int32_t *own;
  ISO_TRY(encode_held(encoder, text, length, parse_special, beginning, &own, count));
  if (encoder->sentencepiece) {
    iso_sentencepiece_swap(encoder->sentencepiece, ids, capacity);
    return ISO_OK;
  }
  const size_t room = encoder->capacity;
  int32_t *taken = encoder->ids;
  encoder->ids = *ids;
  encoder->capacity = *capacity;
  *ids = taken;
  *capacity = room;
  return ISO_OK;
}

/* The same of a text that may be refused, without a line on the log when it is. */
static iso_status encode_quietly(iso_encoder *encoder, const char *text, size_t length, bool parse_special,
                                 bool beginning, const int32_t **ids, size_t *count) {
  const bool muted = iso_log_mute(true);
  const iso_status status = encode_held(encoder, text, length, parse_special, beginning, ids, count);
  iso_log_mute(muted);
  return status == ISO_OK || status == ISO_ERR_MISMATCH ? status : iso_fail(status, "%s", iso_last_error());
}

iso_status iso_encode_part_to(iso_encoder *encoder, const char *text, size_t length, bool parse_special, bool beginning,
                              const iso_ids_sink *sink, size_t *count) {
  *count = 0;
  if (encoder->sentencepiece || encoder->lacks) {
    const int32_t *ids;
    ISO_TRY(encode_quietly(encoder, text, length, parse_special, beginning, &ids, count));
    return *count ? sink->put(sink->context, ids, *count) : ISO_OK;
  }
  encoder->text = text;
  encoder->moved = false;
  encoder->sink = sink;
  encoder->drained = 0;
  iso_status status = encode_valid(encoder, text, length, parse_special);
  if (status == ISO_OK) status = drain(encoder);
  encoder->sink = NULL;
  *count = encoder->drained;
  return status;
}

iso_status iso_encode_to(iso_encoder *encoder, const char *text, size_t length, bool parse_special,
                         const iso_ids_sink *sink, size_t *count) {
  return iso_encode_part_to(encoder, text, length, parse_special, true, sink, count);
}

iso_status iso_decode(const iso_tokenizer *tokenizer, const int32_t *ids, size_t count, iso_string *out) {
  if (tokenizer->sentencepiece) return iso_sentencepiece_decode(tokenizer, ids, count, out);
  for (size_t i = 0; i < count; i++) {
    size_t length;
    const char *bytes = iso_tokenizer_bytes(tokenizer, ids[i], &length);
    if (!bytes)
      return iso_fail(ISO_ERR_MISMATCH, "cannot decode id %d at place %zu: the vocabulary of '%s' has no such id",
                      ids[i], i, tokenizer->path);
    iso_string_append(out, bytes, length);
  }
  iso_string_append(out, "", 0);
  if (iso_string_failed(out)) return iso_fail(ISO_ERR_MEMORY, "out of memory while decoding %zu ids", count);
  return ISO_OK;
}
