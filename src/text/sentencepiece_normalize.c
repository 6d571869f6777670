/* SPDX-License-Identifier: Apache-2.0
 *
 * sentencepiece_normalize.c: what text becomes before pieces are looked for: replacements of a model's character map,
 * spaces trimmed, a dummy space in front, spaces written as U+2581.
 *
 * The character map is a blob: bytes of the trie (uint32), the trie, texts that end in NUL. The trie is a double array
 * of uint32 units; from unit u one goes to unit (position of u) ^ offset(u) ^ byte, which holds that byte as label, and
 * a leaf's value is the place of the new text. Layouts: google/sentencepiece (normalizer.cc), s-yata/darts-clone.
 *
 * Invariants
 *  1. A blob is checked at every step, not once: no unit and no text outside it is ever read.
 *  2. The longest replacement wins; a user-defined piece wins over every replacement and stays as it is.
 *  3. Linear in time: a key has at most KEY_BYTES bytes.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

#define MARK "\xE2\x96\x81" /* U+2581 */

enum {
  MATCHES_LIMIT = 32, /* the reference looks at no more prefixes than that */
  KEY_BYTES = 256     /* real keys have some 20; a damaged trie may go in a circle */
};

iso_status iso_charsmap_init(iso_charsmap *map, const char *where, const char *bytes, size_t length) {
  uint32_t trie = 0;
  *map = (iso_charsmap){0};
  for (size_t i = 0; i < 4 && length >= 4; i++) trie |= (uint32_t)(uint8_t)bytes[i] << 8 * i;
  if (length < 4 || trie < 4 || trie % 4 != 0 || trie >= length - 4 || bytes[length - 1] != '\0')
    return iso_fail(ISO_ERR_FORMAT, "%s: the precompiled character map (%zu bytes) is damaged", where, length);
  map->bytes = malloc(length);
  if (!map->bytes) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", where);
  memcpy(map->bytes, bytes, length);
  map->length = length;
  map->unit_count = trie / 4;
  map->texts = map->bytes + 4 + trie;
  map->texts_length = length - 4 - trie;
  return ISO_OK;
}

void iso_charsmap_fini(iso_charsmap *map) {
  free(map->bytes);
  *map = (iso_charsmap){0};
}

/* Unit `index`, 0 beyond the end: a unit without label, leaf or offset. */
static uint32_t unit_at(const iso_charsmap *map, size_t index) {
  uint32_t unit = 0;
  const uint8_t *at = (const uint8_t *)map->bytes + 4 + 4 * index;
  if (index < map->unit_count) unit = at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
  return unit;
}

static uint32_t unit_offset(uint32_t unit) {
  return unit >> 10 << ((unit & 1u << 9) >> 6);
}

/* Bytes of the longest key that `text` begins with, and what replaces it; 0: none. */
static size_t find_replacement(const iso_charsmap *map, const char *text, size_t length, const char **replacement) {
  size_t node = 0, found = 0;
  int matches = 0;
  node ^= unit_offset(unit_at(map, 0));
  for (size_t i = 0; i < length && i < KEY_BYTES && matches < MATCHES_LIMIT; i++) {
    uint8_t byte = (uint8_t)text[i];
    node ^= byte;
    uint32_t unit = unit_at(map, node);
    if (node >= map->unit_count || (unit & (1u << 31 | 0xFF)) != byte) break;
    node ^= unit_offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    size_t value = unit_at(map, node) & ~(1u << 31);
    matches++;
    if (value >= map->texts_length) continue;
    *replacement = map->texts + value;
    found = i + 1;
  }
  return found;
}

/* What the text at `at` becomes; *step is how much of it that was. */
static const char *next_part(const iso_sentencepiece *sp, const char *text, size_t at, size_t length, size_t *step,
                             size_t *part_length) {
  size_t stop;
  if (iso_added_match(&sp->fixed, 0, text, at, length, &stop)) {
    *step = *part_length = stop - at;
    return text + at;
  }
  const char *replacement;
  *step = sp->charsmap.bytes ? find_replacement(&sp->charsmap, text + at, length - at, &replacement) : 0;
  if (*step > 0) {
    *part_length = strlen(replacement);
    return replacement;
  }
  size_t bytes;
  (void)iso_utf8_decode((const uint8_t *)text + at, &bytes);
  *step = *part_length = bytes;
  return text + at;
}

static void append_escaped(bool escape, const char *text, size_t length, iso_string *out) {
  while (escape && length > 0) {
    const char *space = memchr(text, ' ', length);
    if (!space) break;
    iso_string_append(out, text, (size_t)(space - text));
    iso_string_append(out, MARK, 3);
    length -= (size_t)(space - text) + 1;
    text = space + 1;
  }
  iso_string_append(out, text, length);
}

/* Part by part: needed when there are replacements, user-defined pieces or spaces to trim. */
static void append_parts(const iso_sentencepiece *sp, const char *text, size_t at, size_t length, iso_string *out) {
  bool after_space = sp->trim;
  for (size_t step, part_length; at < length; at += step) {
    const char *part = next_part(sp, text, at, length, &step, &part_length);
    while (after_space && part_length > 0 && *part == ' ') part++, part_length--;
    if (part_length == 0) continue;
    append_escaped(sp->escape, part, part_length, out);
    after_space = sp->trim && part[part_length - 1] == ' ';
  }
}

static bool ends_with(const iso_string *text, size_t from, const char *end, size_t length) {
  return text->length - from >= length && memcmp(text->data + text->length - length, end, length) == 0;
}

void iso_sentencepiece_normalize(const iso_sentencepiece *sp, const char *text, size_t length, iso_text_place place,
                                 iso_string *out) {
  size_t at = 0, before = out->length;
  for (size_t step, part_length; sp->trim && at < length; at += step) {
    const char *part = next_part(sp, text, at, length, &step, &part_length);
    if (part_length != 1 || *part != ' ') break;
  }
  if (at == length) return; /* nothing but space: nothing, without a prefix too */
  const bool every = sp->prefix == ISO_PREFIX_EVERY || sp->prefix == ISO_PREFIX_EVERY_UNLESS;
  bool prefix = sp->prefix != ISO_PREFIX_NONE && (place == ISO_TEXT_START || (every && place == ISO_TEXT_BEHIND));
  bool unless = sp->prefix == ISO_PREFIX_START_UNLESS || sp->prefix == ISO_PREFIX_EVERY_UNLESS;
  if (unless && (text[at] == ' ' || (length - at >= 3 && memcmp(text + at, MARK, 3) == 0))) prefix = false;
  const char *space = sp->escape ? MARK : " ";
  if (prefix) iso_string_append(out, space, strlen(space));
  if (sp->charsmap.bytes || sp->trim)
    append_parts(sp, text, at, length, out);
  else
    append_escaped(sp->escape, text + at, length - at, out);
  if (!sp->trim || !out->data) return;
  while (ends_with(out, before, space, strlen(space))) out->length -= strlen(space);
  out->data[out->length] = '\0';
}
