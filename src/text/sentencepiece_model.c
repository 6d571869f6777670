/* SPDX-License-Identifier: Apache-2.0
 *
 * sentencepiece_model.c: tokenizer.model, SentencePiece's file, BPE.
 *
 * The file is one protobuf message (proto2; fields as in google/sentencepiece, sentencepiece_model.proto):
 *   1 pieces, each {1 text, 2 score (float), 3 type}; 2 trainer {3 model type, 24 space as suffix, 35 byte fallback,
 *   44 what the unknown piece decodes to, 47 end-of-text piece}; 3 normalizer {2 character map, 3 dummy prefix,
 *   4 trim spaces, 5 escape spaces}; 5 denormalizer {2 character map}.
 * Other fields say how the model was trained, or are not known; both are passed over by their wire type, as protobuf
 * asks for.
 *
 * A merge makes any piece of two neighbours whose texts together are its text, highest score first: that is the table
 * of merges with one entry for each way to cut a piece in two pieces or characters, ranked by score.
 *
 * Invariants
 *  1. Nothing outside the file is read, whatever lengths it states; groups (wire types 3 and 4) are refused.
 *  2. What the reference would refuse is refused: no or two unknown pieces, a piece twice, bytes without their pieces.
 */
#include "text/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE_BYTES_LIMIT = 1024 };
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

/* ---- protobuf ---- */

typedef struct field {
  uint64_t number;
  int type;       /* wire type: 0 varint, 1 eight bytes, 2 bytes, 5 four bytes */
  uint64_t value; /* types 0, 1, 5 */
  const char *bytes;
  size_t length; /* type 2 */
} field;

typedef struct message {
  const char *bytes;
  size_t at, length;
} message;

static bool read_varint(message *m, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (m->at == m->length) return false;
    uint8_t byte = (uint8_t)m->bytes[m->at++];
    if (shift == 63 && byte > 1) return false;
    *value |= (uint64_t)(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

/* 1: a field; 0: the message ends; -1: it is damaged. */
static int next_field(message *m, field *out) {
  uint64_t tag;
  if (m->at == m->length) return 0;
  if (!read_varint(m, &tag)) return -1;
  *out = (field){.number = tag >> 3, .type = (int)(tag & 7)};
  if (out->number == 0 || out->number > (1u << 29) - 1) return -1;
  if (out->type == 0) return read_varint(m, &out->value) ? 1 : -1;
  uint64_t length = out->type == 1 ? 8 : 4;
  if (out->type == 2 ? !read_varint(m, &length) : out->type != 1 && out->type != 5) return -1;
  if (length > m->length - m->at) return -1;
  out->bytes = m->bytes + m->at;
  out->length = (size_t)length;
  m->at += out->length;
  for (size_t i = 0; i < length && out->type != 2; i++) out->value |= (uint64_t)(uint8_t)out->bytes[i] << 8 * i;
  return 1;
}

/* ---- the model ---- */

typedef struct loader {
  iso_tokenizer *tokenizer;
  const char *where;
  float *scores; /* by id, of pieces that merges can make */
  int64_t count, capacity;
  int64_t model_type, suffix, byte_fallback, prefix, trim, escape;
  int64_t byte_pieces;
  iso_string surface, eos; /* trainer's */
  field charsmap, denormalizer;
} loader;

static iso_status damaged(const loader *l, const char *what) {
  return iso_fail(ISO_ERR_FORMAT, "%s: is not a SentencePiece model: %s is damaged", l->where, what);
}

static iso_status expect(const loader *l, const field *f, int type, const char *what) {
  return f->type == type ? ISO_OK : damaged(l, what);
}

static iso_status take_number(const loader *l, const field *f, const char *what, int64_t *out) {
  ISO_TRY(expect(l, f, 0, what));
  *out = (int64_t)f->value;
  return ISO_OK;
}

static iso_status take_text(const loader *l, const field *f, const char *what, iso_string *out) {
  ISO_TRY(expect(l, f, 2, what));
  if (memchr(f->bytes, '\0', f->length)) return damaged(l, what);
  if (out->data) out->length = 0;
  iso_string_append(out, f->bytes, f->length);
  return iso_string_failed(out) ? iso_fail(ISO_ERR_MEMORY, "%s: out of memory", l->where) : ISO_OK;
}

static iso_status read_trainer(loader *l, const field *whole) {
  message m = {whole->bytes, 0, whole->length};
  field f;
  int more;
  ISO_TRY(expect(l, whole, 2, "the trainer's part"));
  while ((more = next_field(&m, &f)) > 0) {
    if (f.number == 3) ISO_TRY(take_number(l, &f, "model_type", &l->model_type));
    if (f.number == 24) ISO_TRY(take_number(l, &f, "treat_whitespace_as_suffix", &l->suffix));
    if (f.number == 35) ISO_TRY(take_number(l, &f, "byte_fallback", &l->byte_fallback));
    if (f.number == 44) ISO_TRY(take_text(l, &f, "unk_surface", &l->surface));
    if (f.number == 47) ISO_TRY(take_text(l, &f, "eos_piece", &l->eos));
  }
  return more < 0 ? damaged(l, "the trainer's part") : ISO_OK;
}

/* Of the normalizer, or of the denormalizer (whose switches mean nothing). */
static iso_status read_normalizer(loader *l, const field *whole, bool forward) {
  message m = {whole->bytes, 0, whole->length};
  field f;
  int more;
  ISO_TRY(expect(l, whole, 2, "the normalizer's part"));
  while ((more = next_field(&m, &f)) > 0) {
    if (f.number == 2) {
      ISO_TRY(expect(l, &f, 2, "precompiled_charsmap"));
      *(forward ? &l->charsmap : &l->denormalizer) = f;
    }
    if (!forward) continue;
    if (f.number == 3) ISO_TRY(take_number(l, &f, "add_dummy_prefix", &l->prefix));
    if (f.number == 4) ISO_TRY(take_number(l, &f, "remove_extra_whitespaces", &l->trim));
    if (f.number == 5) ISO_TRY(take_number(l, &f, "escape_whitespaces", &l->escape));
  }
  return more < 0 ? damaged(l, "the normalizer's part") : ISO_OK;
}

/* ---- pieces ---- */

/* The byte of "<0x41>"; -1: it is no such text. */
static int byte_of_piece(const char *text, size_t length) {
  static const char digits[] = "0123456789ABCDEF";
  if (length != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
  const char *high = memchr(digits, text[3], 16), *low = memchr(digits, text[4], 16);
  return high && low ? (int)(16 * (high - digits) + (low - digits)) : -1;
}

static iso_status keep_score(loader *l, float score) {
  if (l->count == l->capacity) {
    int64_t capacity = l->capacity ? 2 * l->capacity : 1024;
    float *scores = realloc(l->scores, (size_t)capacity * sizeof *scores);
    if (!scores) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", l->where);
    l->scores = scores;
    l->capacity = capacity;
  }
  l->scores[l->count++] = score;
  return ISO_OK;
}

/* What a piece's type asks for besides its place in the vocabulary. */
static iso_status place_piece(loader *l, int64_t id, int64_t type, const char *text, size_t length) {
  iso_tokenizer *t = l->tokenizer;
  iso_sentencepiece *sp = t->sentencepiece;
  iso_added_token token = {
      .content = (char *)(uintptr_t)text, .length = length, .id = (int32_t)id, .special = type != USER_DEFINED};
  int byte;
  switch (type) {
  case NORMAL:
    return ISO_OK;
  case UNKNOWN:
    if (sp->unknown >= 0)
      return iso_fail(ISO_ERR_FORMAT, "%s: pieces %d and %lld both stand for what is unknown", l->where, sp->unknown,
                      (long long)id);
    sp->unknown = (int32_t)id;
    return iso_added_add(&t->added, &token);
  case CONTROL:
    return iso_added_add(&t->added, &token);
  case USER_DEFINED:
    return iso_added_add(&sp->fixed, &token);
  case BYTE:
    byte = byte_of_piece(text, length);
    if (byte < 0)
      return iso_fail(ISO_ERR_FORMAT, "%s: byte piece %lld is not written as \"<0x41>\"", l->where, (long long)id);
    sp->bytes[byte] = (int32_t)id; /* once: the vocabulary refuses the second */
    l->byte_pieces++;
    return ISO_OK;
  case UNUSED:
    return iso_fail(ISO_ERR_UNSUPPORTED, "%s: piece %lld is of type UNUSED, which is not supported", l->where,
                    (long long)id);
  default:
    return iso_fail(ISO_ERR_FORMAT, "%s: piece %lld has the unknown type %lld", l->where, (long long)id,
                    (long long)type);
  }
}

static iso_status read_piece(loader *l, const field *whole) {
  message m = {whole->bytes, 0, whole->length};
  field f, text = {0};
  int more;
  int64_t type = NORMAL, id = l->count;
  float score = 0;
  ISO_TRY(expect(l, whole, 2, "a piece"));
  while ((more = next_field(&m, &f)) > 0) {
    if (f.number == 1) {
      ISO_TRY(expect(l, &f, 2, "a piece's text"));
      text = f;
    }
    if (f.number == 2) {
      ISO_TRY(expect(l, &f, 5, "a piece's score"));
      uint32_t bits = (uint32_t)f.value;
      memcpy(&score, &bits, sizeof score);
    }
    if (f.number == 3) ISO_TRY(take_number(l, &f, "a piece's type", &type));
  }
  if (more < 0) return damaged(l, "a piece");
  if (text.length > PIECE_BYTES_LIMIT)
    return iso_fail(ISO_ERR_FORMAT, "%s: piece %lld has %zu bytes, more than %d", l->where, (long long)id, text.length,
                    PIECE_BYTES_LIMIT);
  if (isnan(score) || iso_utf8_valid_prefix(text.bytes, text.length) < text.length)
    return iso_fail(ISO_ERR_FORMAT, "%s: piece %lld has a score that is no number, or a text that is not UTF-8",
                    l->where, (long long)id);
  bool mergeable = type == NORMAL || type == USER_DEFINED;
  ISO_TRY(iso_vocabulary_add(&l->tokenizer->vocabulary, l->where, id, text.bytes, text.length, mergeable));
  ISO_TRY(place_piece(l, id, type, text.bytes, text.length));
  return keep_score(l, score);
}

/* ---- merges ---- */

static int descending(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return x > y ? -1 : x < y;
}

/* Place of a score among the distinct ones, highest first. */
static int32_t rank_of(const float *sorted, int64_t count, float score) {
  int64_t low = 0, high = count;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (sorted[middle] > score)
      low = middle + 1;
    else
      high = middle;
  }
  return (int32_t)low;
}

/* Id of the half text[0, length): a piece or a single character. -1: neither. */
static iso_status half_id(iso_tokenizer *t, const char *text, size_t length, int32_t *id) {
  if (iso_utf8_span(text, length) != (int)length) {
    *id = iso_vocabulary_find(&t->vocabulary, text, length, true);
    return ISO_OK;
  }
  size_t bytes;
  return iso_sentencepiece_character(t, iso_utf8_decode((const uint8_t *)text, &bytes), id);
}

static iso_status add_merges(loader *l, const float *sorted) {
  iso_tokenizer *t = l->tokenizer;
  iso_pairs *pairs = &t->pairs;
  for (int64_t id = 0; id < l->count; id++) {
    const iso_token *token = &t->vocabulary.tokens[id];
    const char *text = t->vocabulary.bytes.data + token->offset;
    if (!token->mapped) continue;
    int32_t rank = rank_of(sorted, l->count, l->scores[id]);
    for (uint32_t cut = 1; cut < token->length; cut++) {
      int32_t left, right;
      if (iso_utf8_continues((uint8_t)text[cut])) continue;
      ISO_TRY(half_id(t, text, cut, &left));
      if (left < 0) continue;
      ISO_TRY(half_id(t, text + cut, token->length - cut, &right));
      if (right < 0) continue;
      if (2 * (pairs->used + 1) > pairs->slot_count) ISO_TRY(iso_pairs_reserve(pairs, 2 * (pairs->used + 1)));
      (void)iso_pairs_add(pairs, left, right, rank, (int32_t)id);
    }
  }
  return ISO_OK;
}

/* ---- the whole ---- */

static iso_status check_switches(const loader *l) {
  static const char *const names[] = {"", "Unigram", "BPE", "word", "character"};
  if (l->model_type != 2)
    return iso_fail(ISO_ERR_UNSUPPORTED, "%s: SentencePiece model type %lld (%s) is not supported (BPE is)", l->where,
                    (long long)l->model_type, l->model_type >= 1 && l->model_type <= 4 ? names[l->model_type] : "?");
  if (l->suffix) return iso_fail(ISO_ERR_UNSUPPORTED, "%s: treat_whitespace_as_suffix is not supported", l->where);
  if (l->denormalizer.length > 0)
    return iso_fail(ISO_ERR_UNSUPPORTED, "%s: a denormalizer's character map is not supported", l->where);
  if (l->tokenizer->sentencepiece->unknown < 0)
    return iso_fail(ISO_ERR_FORMAT, "%s: no piece stands for what is unknown", l->where);
  if (l->byte_pieces != (l->byte_fallback ? 256 : 0))
    return iso_fail(ISO_ERR_FORMAT, "%s: %lld byte pieces where byte_fallback is %s", l->where,
                    (long long)l->byte_pieces, l->byte_fallback ? "on" : "off");
  return ISO_OK;
}

static iso_status load(loader *l, const char *text, size_t length) {
  iso_tokenizer *t = l->tokenizer;
  message m = {text, 0, length};
  field f;
  int more;
  while ((more = next_field(&m, &f)) > 0) {
    if (f.number == 1) ISO_TRY(read_piece(l, &f));
    if (f.number == 2) ISO_TRY(read_trainer(l, &f));
    if (f.number == 3) ISO_TRY(read_normalizer(l, &f, true));
    if (f.number == 5) ISO_TRY(read_normalizer(l, &f, false));
  }
  if (more < 0) return damaged(l, "the file");
  ISO_TRY(check_switches(l));
  iso_vocabulary_finish(&t->vocabulary);
  iso_sentencepiece *sp = t->sentencepiece;
  sp->sentence = sp->fuse_unknown = true;
  sp->byte_fallback = l->byte_fallback != 0;
  sp->prefix = l->prefix ? ISO_PREFIX_START : ISO_PREFIX_NONE;
  sp->trim = l->trim != 0;
  sp->escape = l->escape != 0;
  if (l->charsmap.length > 0)
    ISO_TRY(iso_charsmap_init(&sp->charsmap, l->where, l->charsmap.bytes, l->charsmap.length));
  float *sorted = malloc((size_t)l->count * sizeof *sorted);
  if (!sorted) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", l->where);
  memcpy(sorted, l->scores, (size_t)l->count * sizeof *sorted);
  qsort(sorted, (size_t)l->count, sizeof *sorted, descending);
  iso_status status = add_merges(l, sorted);
  free(sorted);
  ISO_TRY(status);
  ISO_TRY(iso_sentencepiece_finish(t, l->surface.data ? l->surface.data : " \xE2\x81\x87 "));
  ISO_TRY(iso_added_finish(&sp->fixed, t));
  ISO_TRY(iso_added_finish(&t->added, t));
  const char *eos = l->eos.data ? l->eos.data : "</s>";
  t->eos = iso_vocabulary_find(&t->vocabulary, eos, strlen(eos), false);
  return ISO_OK;
}

iso_status iso_sentencepiece_load(iso_tokenizer *tokenizer, const char *text, size_t length) {
  loader l = {.tokenizer = tokenizer, .where = tokenizer->file, .model_type = 1, .prefix = 1, .trim = 1, .escape = 1};
  iso_status status = iso_sentencepiece_new(tokenizer);
  if (status == ISO_OK) status = load(&l, text, length);
  free(l.scores);
  iso_string_fini(&l.surface);
  iso_string_fini(&l.eos);
  return status;
}
