/* SPDX-License-Identifier: Apache-2.0
 *
 * border.c: places where a text may be cut, and both sides encoded as if they stood alone.
 *
 * A place is certain when two things hold, which are decided by the characters on both sides of it alone:
 *
 * - Nothing that is looked for in the text before pieces are cut can reach over it. Added tokens (and user-defined
 *   pieces) could, so the two bytes at the place must not stand next to each other inside any of them. A token that
 *   takes the white space behind it must not be able to end there; the space that one takes before it ends at the
 *   place at the latest, since the character before the place is none. NFC joins nothing over the place, nor changes
 *   the two characters, since neither can be joined to what stands before it (quick check "yes", class 0).
 * - A piece begins there, whatever stands before and behind. For the patterns that split.c knows:
 *     a. before U+0020 when the character before it is no white space. In all of them a space is the first character
 *        of a piece or stands in a run of white space, so none goes on from another character to a space;
 *     b. before white space or a symbol (no mark, no apostrophe) when the character before it is a letter or a
 *        number. A letter is followed in its piece by letters, marks or (o200k) a contraction, which begins with an
 *        apostrophe; a number by numbers; a symbol may begin the next piece but not go on with this one.
 *   The piece before ends there by itself: what its pattern asks of the next character (no letter, no number, no
 *   second character of a contraction) holds at the end of a text as well, and `\s+(?!\S)` asks only behind white
 *   space. Where digits are cut first, such a place lies inside a run or between two: the run's halves are cut as
 *   before.
 *   Merges of SentencePiece's kind have no pieces: there a space becomes U+2581, and the place before it is certain
 *   when no merge joins the character before to it (sentencepiece.c cuts there too) and U+2581 is known, so that a
 *   run of unknown characters ends there. Directly behind an added token it is not: text that begins there may be
 *   given a U+2581 in front.
 *
 * It does not find all such places: between letters that no token joins, say, or in runs of white space.
 */
#include "text/text.h"

#include <string.h>

#define BIT(class) (1u << (class))
enum {
  WORD = BIT(ISO_CLASS_LU) | BIT(ISO_CLASS_LT) | BIT(ISO_CLASS_LL) | BIT(ISO_CLASS_LM) | BIT(ISO_CLASS_LO) |
         BIT(ISO_CLASS_NUMBER),
  WHITE = BIT(ISO_CLASS_SPACE) | BIT(ISO_CLASS_NEWLINE),
  BEHIND = WHITE | BIT(ISO_CLASS_OTHER)
};

typedef struct finder {
  const iso_tokenizer *tokenizer;
  const uint8_t *text, *table;
  size_t length;
  bool special;
} finder;

/* One well-formed character. */
typedef struct character {
  uint32_t code;
  unsigned class; /* its bit */
  bool joins;     /* NFC may join or move it */
} character;

static bool decode(const finder *f, size_t at, size_t bytes, character *out) {
  size_t used;
  if (iso_utf8_valid_prefix((const char *)f->text + at, bytes) != bytes) return false;
  out->code = iso_utf8_decode(f->text + at, &used);
  if (used != bytes) return false;
  const uint8_t value = f->table[out->code];
  out->class = BIT(value & ISO_CLASS_MASK);
  out->joins = value & (ISO_NFC_CHECK | ISO_NFC_COMBINING);
  return true;
}

/* The character before and the one behind; false when one is not whole. */
static bool look(const finder *f, size_t at, character *before, character *behind) {
  const uint8_t byte = f->text[at];
  const size_t bytes = byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  size_t from = at - 1;
  while (from > 0 && at - from < 4 && iso_utf8_continues(f->text[from])) from--;
  return bytes <= f->length - at && decode(f, from, at - from, before) && decode(f, at, bytes, behind);
}

static bool is_inside(const iso_added_set *set, uint8_t left, uint8_t right) {
  return set->inside[left][right >> 6] >> (right & 63) & 1;
}

/* May a token that is found in the text as it is, or as it is normalized, reach over the place? */
static bool is_covered(const finder *f, size_t at, bool white) {
  static const uint8_t mark = 0xE2; /* U+2581's first byte */
  const iso_tokenizer *t = f->tokenizer;
  const uint8_t left = f->text[at - 1], right = f->text[at];
  if (t->sentencepiece && is_inside(&t->sentencepiece->fixed, left, mark)) return true;
  if (!f->special) return false;
  /* What stands behind an added token may get a U+2581 of its own in front, which it would not get behind a cut. */
  if (t->sentencepiece && (t->added.ends[left] || is_inside(&t->added, left, mark))) return true;
  return is_inside(&t->added, left, right) || (white && t->added.strips[left]);
}

static bool is_border(const finder *f, size_t at) {
  const iso_tokenizer *t = f->tokenizer;
  character before, behind;
  if (!look(f, at, &before, &behind)) return false;
  const bool space = f->text[at] == ' ' && !(before.class & WHITE);
  const bool word = before.class & WORD && behind.class & BEHIND && f->text[at] != '\'';
  if (t->sentencepiece ? !space || iso_sentencepiece_joins_space(t->sentencepiece, before.code) : !space && !word)
    return false;
  if (t->nfc && (before.joins || behind.joins)) return false;
  return !is_covered(f, at, behind.class & WHITE);
}

bool iso_tokenizer_has_borders(const iso_tokenizer *t) {
  bool known = false;
  if (t->sentencepiece) return iso_sentencepiece_parts_at_space(t);
  for (int i = 0; i < t->step_count; i++) switch (t->steps[i].splitter) {
    case ISO_SPLIT_GPT2:
    case ISO_SPLIT_CL100K:
    case ISO_SPLIT_QWEN2:
    case ISO_SPLIT_O200K:
      known = true;
      break;
    case ISO_SPLIT_DIGIT:
    case ISO_SPLIT_DIGITS:
      break;
    case ISO_SPLIT_REGEX:
    case ISO_SPLIT_NONE:
      return false;
    }
  return known;
}

size_t iso_text_border(const iso_tokenizer *tokenizer, const char *text, size_t from, size_t length,
                       bool parse_special) {
  const finder f = {tokenizer, (const uint8_t *)text, iso_unicode_table(), length, parse_special};
  if (!iso_tokenizer_has_borders(tokenizer)) return length;
  for (size_t at = from ? from : 1; at < length; at++) {
    const uint8_t byte = f.text[at];
    if (byte < 0x80 ? !(BIT(f.table[byte] & ISO_CLASS_MASK) & BEHIND) : byte < 0xC2) continue;
    if (is_border(&f, at)) return at;
  }
  return length;
}
