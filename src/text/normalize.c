/* SPDX-License-Identifier: Apache-2.0
 *
 * normalize.c: NFC, as frozen in the reference tokenizer.
 *
 * Text is cut at characters that nothing before them can join (quick check "yes" and combining class 0). Nearly every
 * character is one, so the rare stretch that is not, with the character before it, goes to utf8proc alone and all
 * other text is copied.
 *
 * Invariants
 *  1. Characters that the reference does not know (iso_unicode_inert) have no flags in the table, so they never reach
 *     utf8proc: a stretch ends before one and may not begin with one.
 *  2. Text in NFC is not copied.
 *  3. Time is linear but for sorting within one run of combining marks (utf8proc sorts it by insertion), and so runs
 *     are put in order here first, by counting.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static bool is_boundary(const uint8_t *table, uint32_t code) {
  return (table[code] & (ISO_NFC_CHECK | ISO_NFC_COMBINING)) == 0;
}

/* Byte offset of the first character in text[from, length) that is no boundary; *before is the one before it. */
static size_t find_stretch(const uint8_t *text, size_t from, size_t length, size_t *before) {
  const uint8_t *table = iso_unicode_table();
  size_t previous = from;
  for (size_t at = from, bytes; at < length; at += bytes) {
    uint64_t word;
    if (length - at >= sizeof word && (memcpy(&word, text + at, sizeof word), (word & 0x8080808080808080u) == 0)) {
      previous = at + sizeof word - 1;
      bytes = sizeof word;
      continue;
    }
    if (text[at] < 0xCC) { /* below U+0300 all are boundaries */
      bytes = text[at] < 0x80 ? 1 : 2;
    } else {
      uint32_t code = iso_utf8_decode(text + at, &bytes);
      if (!is_boundary(table, code)) {
        *before = previous;
        return at;
      }
    }
    previous = at;
  }
  return length;
}

static size_t stretch_end(const uint8_t *text, size_t at, size_t length) {
  const uint8_t *table = iso_unicode_table();
  size_t bytes;
  while (at < length && !is_boundary(table, iso_utf8_decode(text + at, &bytes))) at += bytes;
  return at;
}

/* Only marks in order and nothing that composes: already NFC. */
static bool is_ordered(const uint8_t *text, size_t length) {
  const uint8_t *table = iso_unicode_table();
  int last = 0;
  for (size_t at = 0, bytes; at < length; at += bytes) {
    uint32_t code = iso_utf8_decode(text + at, &bytes);
    if (table[code] & ISO_NFC_CHECK) return false;
    int class = table[code] & ISO_NFC_COMBINING ? utf8proc_get_property((utf8proc_int32_t)code)->combining_class : 0;
    if (class != 0 && class < last) return false;
    last = class;
  }
  return true;
}

/* Stable sort of each run of marks by combining class. */
static bool order_marks(int32_t *codes, size_t count) {
  int32_t *copy = NULL;
  for (size_t start = 0; start < count;) {
    size_t stop = start, counts[257] = {0};
    for (; stop < count; stop++) {
      int class = utf8proc_get_property(codes[stop])->combining_class;
      if (class == 0) break;
      counts[class + 1]++;
    }
    if (stop - start > 1) {
      if (!copy && !(copy = malloc(count * sizeof *copy))) return false;
      memcpy(copy, codes + start, (stop - start) * sizeof *copy);
      for (int c = 1; c < 257; c++) counts[c] += counts[c - 1];
      for (size_t i = 0; i < stop - start; i++)
        codes[start + counts[utf8proc_get_property(copy[i])->combining_class]++] = copy[i];
    }
    start = stop + 1;
  }
  free(copy);
  return true;
}

static iso_status normalize_stretch(const uint8_t *text, size_t length, iso_string *out) {
  enum { SMALL = 64 };
  int32_t small[SMALL];
  /* No canonical decomposition is longer than 4 code points; every code point here takes 1 byte or more. */
  size_t capacity = 4 * length, count = 0;
  int32_t *codes = capacity <= SMALL ? small : malloc(capacity * sizeof *codes);
  if (!codes) return iso_fail(ISO_ERR_MEMORY, "out of memory while normalizing %zu bytes of text", length);
  iso_status status = ISO_OK;
  for (size_t at = 0, bytes; at < length; at += bytes) {
    int class = 0;
    int32_t code = (int32_t)iso_utf8_decode(text + at, &bytes);
    utf8proc_ssize_t n = utf8proc_decompose_char(code, codes + count, (utf8proc_ssize_t)(capacity - count),
                                                 UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &class);
    if (n < 0 || (size_t)n > capacity - count) {
      status = iso_fail(ISO_ERR_INTERNAL, "cannot decompose U+%04X: %s", (unsigned)code, utf8proc_errmsg(n));
      break;
    }
    count += (size_t)n;
  }
  if (status == ISO_OK && !order_marks(codes, count))
    status = iso_fail(ISO_ERR_MEMORY, "out of memory while normalizing %zu bytes of text", length);
  if (status == ISO_OK) {
    utf8proc_ssize_t n = utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < n; i++) iso_utf8_append(out, (uint32_t)codes[i]);
  }
  if (codes != small) free(codes);
  return status;
}

iso_status iso_nfc(const char *text, size_t length, iso_string *out, bool *changed) {
  const uint8_t *bytes = (const uint8_t *)text;
  size_t copied = 0; /* text[0, copied) is in `out`, once something changed */
  *changed = false;
  for (size_t at = 0; at < length;) {
    size_t before = at, start = find_stretch(bytes, at, length, &before);
    if (start == length) break;
    size_t stop = stretch_end(bytes, start, length), unused;
    if (before < start && iso_unicode_is_inert(iso_utf8_decode(bytes + before, &unused))) before = start;
    at = stop;
    if (is_ordered(bytes + before, stop - before)) continue;
    if (!*changed) {
      *changed = true;
      if (out->data) out->length = 0;
    }
    iso_string_append(out, text + copied, before - copied);
    ISO_TRY(normalize_stretch(bytes + before, stop - before, out));
    copied = stop;
  }
  if (!*changed) return ISO_OK;
  iso_string_append(out, text + copied, length - copied);
  if (iso_string_failed(out)) return iso_fail(ISO_ERR_MEMORY, "out of memory while normalizing %zu bytes", length);
  return ISO_OK;
}
