/* SPDX-License-Identifier: Apache-2.0
 *
 * unicode.c: what a code point is, and UTF-8 that may be broken.
 *
 * The classes are kept as runs in unicode_tables.c and unfolded, once per process, to a byte per code point (1.1 MB,
 * of which a text touches a few pages), because scanners ask for every character.
 *
 * Invariants
 *  1. Classes are those of Unicode 16.0.0, whatever libraries are installed.
 *  2. Ill-formed text is cut as WHATWG and Unicode (chapter 3, "maximal subparts") say: a truncated sequence that could
 *     have been continued is one replacement, any other byte is one each.
 */
#include "text/text.h"

#include <string.h>

enum { CODE_POINTS = 0x110000 };

static uint8_t table[CODE_POINTS];

static void table_fill(void) {
  for (size_t i = 0; i < iso_unicode_run_count; i++) {
    uint32_t first = iso_unicode_runs[i] >> 8;
    uint32_t stop = i + 1 < iso_unicode_run_count ? iso_unicode_runs[i + 1] >> 8 : CODE_POINTS;
    memset(table + first, (int)(iso_unicode_runs[i] & 0xFF), stop - first);
  }
}

const uint8_t *iso_unicode_table(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, table_fill);
  return table;
}

bool iso_unicode_is_inert(uint32_t code) {
  size_t low = 0, high = iso_unicode_inert_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (code > iso_unicode_inert[middle][1])
      low = middle + 1;
    else
      high = middle;
  }
  return low < iso_unicode_inert_count && code >= iso_unicode_inert[low][0];
}

void iso_utf8_append(iso_string *out, uint32_t code) {
  char bytes[4];
  size_t length;
  if (code < 0x80) {
    bytes[0] = (char)code, length = 1;
  } else if (code < 0x800) {
    bytes[0] = (char)(0xC0 | code >> 6), bytes[1] = (char)(0x80 | (code & 0x3F)), length = 2;
  } else if (code < 0x10000) {
    bytes[0] = (char)(0xE0 | code >> 12), bytes[1] = (char)(0x80 | (code >> 6 & 0x3F));
    bytes[2] = (char)(0x80 | (code & 0x3F)), length = 3;
  } else {
    bytes[0] = (char)(0xF0 | code >> 18), bytes[1] = (char)(0x80 | (code >> 12 & 0x3F));
    bytes[2] = (char)(0x80 | (code >> 6 & 0x3F)), bytes[3] = (char)(0x80 | (code & 0x3F)), length = 4;
  }
  iso_string_append(out, bytes, length);
}

/* Length of the sequence at text[0..length): > 0 well-formed, < 0 ill-formed (its maximal subpart, negated). */
static int sequence(const uint8_t *text, size_t length) {
  uint8_t lead = text[0], low = 0x80, high = 0xBF;
  int needed;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return -1;
  if (lead < 0xE0) {
    needed = 1;
  } else if (lead < 0xF0) {
    needed = 2;
    if (lead == 0xE0) low = 0xA0;  /* overlong */
    if (lead == 0xED) high = 0x9F; /* surrogates */
  } else {
    needed = 3;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F; /* beyond U+10FFFF */
  }
  for (int i = 1; i <= needed; i++) {
    if ((size_t)i >= length || text[i] < low || text[i] > high) return -i;
    low = 0x80, high = 0xBF;
  }
  return needed + 1;
}

size_t iso_utf8_valid_prefix(const char *text, size_t length) {
  const uint8_t *bytes = (const uint8_t *)text;
  size_t at = 0;
  while (at < length) {
    uint64_t word, words[4];
    if (length - at >= sizeof words) {
      memcpy(words, bytes + at, sizeof words);
      if (((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080u) == 0) {
        at += sizeof words;
        continue;
      }
    }
    if (length - at < sizeof words && length >= sizeof words) { /* the end, with bytes before it once more */
      memcpy(words, bytes + length - sizeof words, sizeof words);
      if (((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080u) == 0) return length;
    }
    if (length - at >= sizeof word && (memcpy(&word, bytes + at, sizeof word), (word & 0x8080808080808080u) == 0)) {
      at += sizeof word;
      continue;
    }
    if (bytes[at] < 0x80) {
      at++;
      continue;
    }
    /* runs of characters of three bytes, but for the leads whose second byte is bounded more tightly */
    const size_t before = at;
    while (length - at >= 3 && (bytes[at] & 0xF0) == 0xE0 && bytes[at] != 0xE0 && bytes[at] != 0xED &&
           iso_utf8_continues((uint8_t)bytes[at + 1]) && iso_utf8_continues((uint8_t)bytes[at + 2]))
      at += 3;
    if (at > before) continue;
    int n = sequence(bytes + at, length - at);
    if (n < 0) break;
    at += (size_t)n;
  }
  return at;
}

void iso_utf8_replace(const char *text, size_t length, iso_string *out) {
  for (size_t at = 0; at < length;) {
    size_t valid = iso_utf8_valid_prefix(text + at, length - at);
    iso_string_append(out, text + at, valid);
    at += valid;
    if (at == length) break;
    at += (size_t)-sequence((const uint8_t *)text + at, length - at);
    iso_string_append(out, "\xEF\xBF\xBD", 3);
  }
}
