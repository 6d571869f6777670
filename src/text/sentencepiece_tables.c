/* SPDX-License-Identifier: Apache-2.0
 *
 * sentencepiece_tables.c: what follows from a vocabulary and its merges: which id a character begins with, which
 * characters a merge can join, what an id decodes to.
 *
 * A stray is a character that is part of a piece but no piece itself. Merges may still take it, so it gets an id above
 * the vocabulary's, which never leaves the encoder.
 *
 * Invariants
 *  1. Two neighbouring characters that are not in `joins` are never parts of one merge.
 *  2. `shown` has an entry for every id below the vocabulary's count.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

iso_status iso_sentencepiece_new(iso_tokenizer *tokenizer) {
  iso_sentencepiece *sp = calloc(1, sizeof *sp);
  if (!sp) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", tokenizer->file);
  sp->unknown = -1;
  for (int i = 0; i < 256; i++) sp->bytes[i] = -1;
  for (int i = 0; i < 128; i++) sp->ascii[i] = -1;
  tokenizer->sentencepiece = sp;
  return ISO_OK;
}

void iso_sentencepiece_destroy(iso_sentencepiece **sp) {
  if (!sp || !*sp) return;
  iso_charsmap_fini(&(*sp)->charsmap);
  iso_added_fini(&(*sp)->fixed);
  iso_pairs_fini(&(*sp)->characters);
  iso_pairs_fini(&(*sp)->joins);
  free((*sp)->strays);
  free((*sp)->shown);
  iso_string_fini(&(*sp)->shown_bytes);
  free(*sp);
  *sp = NULL;
}

static iso_status add_pair(iso_pairs *pairs, uint32_t left, uint32_t right, int32_t id) {
  if (2 * (pairs->used + 1) > pairs->slot_count) ISO_TRY(iso_pairs_reserve(pairs, 2 * (pairs->used + 1)));
  (void)iso_pairs_add(pairs, (int32_t)left, (int32_t)right, 0, id);
  return ISO_OK;
}

/* The vocabulary's own characters; in a tokenizer.model pieces that stand for no text win, as in the reference. */
static iso_status add_characters(iso_tokenizer *t) {
  iso_sentencepiece *sp = t->sentencepiece;
  for (int mapped = sp->sentence ? 0 : 1; mapped < 2; mapped++)
    for (int64_t id = 0; id < t->vocabulary.count; id++) {
      const iso_token *token = &t->vocabulary.tokens[id];
      size_t bytes;
      if (!token->present || token->mapped != mapped || token->length > 4) continue;
      const char *text = t->vocabulary.bytes.data + token->offset;
      if (iso_utf8_span(text, token->length) != (int)token->length) continue;
      uint32_t code = iso_utf8_decode((const uint8_t *)text, &bytes);
      if (code < 128 && sp->ascii[code] < 0) sp->ascii[code] = (int32_t)id;
      ISO_TRY(add_pair(&sp->characters, code, 0, (int32_t)id));
    }
  return ISO_OK;
}

iso_status iso_sentencepiece_character(iso_tokenizer *tokenizer, uint32_t code, int32_t *id) {
  iso_sentencepiece *sp = tokenizer->sentencepiece;
  if (sp->characters.used == 0) ISO_TRY(add_characters(tokenizer));
  const iso_pair *known = iso_pairs_find(&sp->characters, (int32_t)code, 0);
  if (known) {
    *id = known->id;
    return ISO_OK;
  }
  size_t count = (size_t)sp->stray_count;
  if ((count & (count - 1)) == 0) { /* the array is full at powers of two */
    uint32_t *strays = realloc(sp->strays, (count ? 2 * count : 1) * sizeof *strays);
    if (!strays) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", tokenizer->file);
    sp->strays = strays;
  }
  sp->strays[count] = code;
  sp->stray_count++;
  *id = (int32_t)(tokenizer->vocabulary.count + (int64_t)count);
  if (code < 128) sp->ascii[code] = *id;
  return add_pair(&sp->characters, code, 0, *id);
}

/* First or last character of what an id stands for. */
static uint32_t edge(const iso_tokenizer *t, int32_t id, bool last) {
  size_t bytes;
  if (id >= t->vocabulary.count) return t->sentencepiece->strays[id - t->vocabulary.count];
  const iso_token *token = &t->vocabulary.tokens[id];
  const uint8_t *text = (const uint8_t *)t->vocabulary.bytes.data + token->offset;
  size_t at = last ? token->length - 1 : 0;
  while (at > 0 && iso_utf8_continues((uint8_t)text[at])) at--;
  return iso_utf8_decode(text + at, &bytes);
}

static iso_status add_joins(iso_tokenizer *t) {
  iso_sentencepiece *sp = t->sentencepiece;
  for (uint64_t i = 0; i < t->pairs.slot_count; i++) {
    uint64_t key = t->pairs.slots[i].key;
    if (key == UINT64_MAX) continue;
    uint32_t left = edge(t, (int32_t)(key >> 32), true), right = edge(t, (int32_t)(uint32_t)key, false);
    if (left < 128 && right < 128) sp->ascii_joins[left][right >> 6] |= (uint64_t)1 << (right & 63);
    ISO_TRY(add_pair(&sp->joins, left, right, 0));
  }
  return ISO_OK;
}

/* What a piece decodes to: U+2581 is a space again. */
static void append_shown(iso_string *out, const char *text, size_t length) {
  const char *end = text + length;
  for (const char *mark; (mark = memmem(text, (size_t)(end - text), "\xE2\x96\x81", 3)); text = mark + 3) {
    iso_string_append(out, text, (size_t)(mark - text));
    iso_string_append(out, " ", 1);
  }
  iso_string_append(out, text, (size_t)(end - text));
}

iso_status iso_sentencepiece_finish(iso_tokenizer *tokenizer, const char *unknown_surface) {
  iso_sentencepiece *sp = tokenizer->sentencepiece;
  const iso_vocabulary *v = &tokenizer->vocabulary;
  if (sp->characters.used == 0) ISO_TRY(add_characters(tokenizer));
  ISO_TRY(add_joins(tokenizer));
  sp->shown = calloc((size_t)v->count + 1, sizeof *sp->shown);
  if (!sp->shown) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", tokenizer->file);
  for (int64_t id = 0; id < v->count; id++) {
    iso_token *shown = &sp->shown[id];
    const iso_token *token = &v->tokens[id];
    shown->offset = sp->shown_bytes.length;
    shown->present = token->present;
    if (token->present && (token->mapped || !sp->sentence))
      append_shown(&sp->shown_bytes, v->bytes.data + token->offset, token->length);
    else if (token->present && id == sp->unknown)
      iso_string_append(&sp->shown_bytes, unknown_surface, strlen(unknown_surface));
    shown->length = (uint32_t)(sp->shown_bytes.length - shown->offset);
  }
  for (int byte = 0; byte < 256; byte++) {
    const char c = (char)byte;
    if (sp->bytes[byte] < 0) continue;
    iso_token *shown = &sp->shown[sp->bytes[byte]];
    shown->offset = sp->shown_bytes.length;
    shown->length = 1;
    iso_string_append(&sp->shown_bytes, &c, 1);
  }
  iso_string_append(&sp->shown_bytes, "", 0);
  if (!iso_string_failed(&sp->shown_bytes)) return ISO_OK;
  sp->shown_bytes.length = 0;
  return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", tokenizer->file);
}
