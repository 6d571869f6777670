/* SPDX-License-Identifier: Apache-2.0
 *
 * split.c: the pre-tokenizers of GPT-2, cl100k (Llama-3), Qwen2 and o200k, as scanners written out by hand.
 *
 * Each scanner takes the alternatives of its regular expression in order, leftmost first, and answers where the piece
 * that begins here ends. The expressions stand below; every character falls under some alternative, so pieces cover
 * the text. `\s+(?!\S)` means: a run of white space gives back its last character when text follows.
 *
 * Invariants
 *  1. A piece is never empty and ends between characters.
 *  2. Only the piece's own text and the character after it decide; `end` is the end of the subject for look-ahead.
 *  3. Each character is looked at a bounded number of times.
 */
#include "text/text.h"

#include <string.h>

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define SPACES_TAIL  "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
  iso_splitter splitter;
  const char *names[4];
  const char *regex;
} known[] = {
    {ISO_SPLIT_GPT2,
     {"gpt2", "r50k_base", "p50k_base", "p50k_edit"},
     CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {ISO_SPLIT_CL100K,
     {"cl100k", "cl100k_base", "llama3", "llama-3"},
     "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES_TAIL},
    {ISO_SPLIT_QWEN2,
     {"qwen2", "qwen2.5", "qwen3", "qwen"},
     "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES_TAIL},
    {ISO_SPLIT_O200K,
     {"o200k", "o200k_base", "o200k_harmony", "gpt-4o"},
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:" CONTRACTIONS ")?|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:" CONTRACTIONS ")?|"
     "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES_TAIL},
};

iso_splitter iso_splitter_find(const char *name_or_regex) {
  for (size_t i = 0; i < ISO_COUNT(known); i++) {
    if (strcmp(name_or_regex, known[i].regex) == 0) return known[i].splitter;
    for (size_t n = 0; n < ISO_COUNT(known[i].names); n++)
      if (strcmp(name_or_regex, known[i].names[n]) == 0) return known[i].splitter;
  }
  return ISO_SPLIT_REGEX;
}

const char *iso_splitter_regex(iso_splitter splitter) {
  for (size_t i = 0; i < ISO_COUNT(known); i++)
    if (known[i].splitter == splitter) return known[i].regex;
  return NULL;
}

/* ---- sets of classes ---- */

#define BIT(class) (1u << (class))
enum {
  LETTER = BIT(ISO_CLASS_LU) | BIT(ISO_CLASS_LT) | BIT(ISO_CLASS_LL) | BIT(ISO_CLASS_LM) | BIT(ISO_CLASS_LO),
  NUMBER = BIT(ISO_CLASS_NUMBER),
  NEWLINE = BIT(ISO_CLASS_NEWLINE),
  SPACE = BIT(ISO_CLASS_SPACE) | NEWLINE,
  SYMBOL = BIT(ISO_CLASS_OTHER) | BIT(ISO_CLASS_MARK),                /* [^\s\p{L}\p{N}] */
  PREFIX = SYMBOL | BIT(ISO_CLASS_SPACE),                             /* [^\r\n\p{L}\p{N}] */
  BOTH = BIT(ISO_CLASS_LM) | BIT(ISO_CLASS_LO) | BIT(ISO_CLASS_MARK), /* upper and lower part of o200k */
  UPPER = BIT(ISO_CLASS_LU) | BIT(ISO_CLASS_LT) | BOTH,
  LOWER = BIT(ISO_CLASS_LL) | BOTH
};

typedef struct subject {
  const uint8_t *text, *table;
  size_t end;
} subject;

/* Class bit of the character at `at`, and in *next where the following one begins; 0 at the end. */
static inline unsigned class_at(const subject *s, size_t at, size_t *next) {
  if (at >= s->end) {
    *next = at;
    return 0;
  }
  uint8_t byte = s->text[at];
  if (byte < 0x80) {
    *next = at + 1;
    return BIT(s->table[byte] & ISO_CLASS_MASK);
  }
  size_t bytes;
  uint32_t code = iso_utf8_decode(s->text + at, &bytes);
  *next = at + bytes;
  return BIT(s->table[code] & ISO_CLASS_MASK);
}

/* End of the run of characters in `set` that begins at `at`. */
static inline size_t run(const subject *s, size_t at, unsigned set) {
  size_t next;
  while (class_at(s, at, &next) & set) at = next;
  return at;
}

/* Up to `most` numbers, from `at`, which is one. */
static size_t numbers(const subject *s, size_t at, int most) {
  size_t next;
  for (int i = 0; i < most && (class_at(s, at, &next) & NUMBER); i++) at = next;
  return at;
}

/* End of an apostrophe's contraction at `at`, or `at` when there is none. Without case: long s (U+017F) folds to s. */
static size_t contraction(const subject *s, size_t at, bool any_case) {
  size_t left = s->end - at;
  if (left < 2 || s->text[at] != '\'') return at;
  uint8_t a = s->text[at + 1], b = left > 2 ? s->text[at + 2] : 0;
  if (any_case) {
    if (a == 0xC5 && b == 0xBF) return at + 3;
    if (a >= 'A' && a <= 'Z') a |= 0x20;
    if (b >= 'A' && b <= 'Z') b |= 0x20;
  }
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return at + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return at + 3;
  return at;
}

/* White space from `at`: with `lines`, through the run's last line end if it has one; else without the last character
 * when text follows, unless that is all there is. */
static size_t spaces(const subject *s, size_t at, bool lines) {
  size_t last = at, next, line_end = at, stop = at;
  unsigned class;
  while ((class = class_at(s, stop, &next)) & SPACE) {
    last = stop;
    stop = next;
    if (class & NEWLINE) line_end = next;
  }
  if (lines && line_end > at) return line_end;
  return stop < s->end && last > at ? last : stop;
}

/* ---- scanners ---- */

static size_t next_gpt2(const subject *s, size_t at) {
  size_t next, after = contraction(s, at, false);
  if (after > at) return after;
  unsigned class = class_at(s, at, &next);
  size_t body = at;
  if (s->text[at] == ' ') {
    body = next;
    class = class_at(s, body, &next);
  }
  if (class & LETTER) return run(s, next, LETTER);
  if (class & NUMBER) return run(s, next, NUMBER);
  if (class & SYMBOL) return run(s, next, SYMBOL);
  return spaces(s, at, false);
}

static size_t next_cl100k(const subject *s, size_t at, int digits) {
  size_t next, after = contraction(s, at, true);
  if (after > at) return after;
  unsigned class = class_at(s, at, &next);
  if (class & LETTER) return run(s, next, LETTER);
  if (class & NUMBER) return numbers(s, at, digits);
  size_t second;
  unsigned following = class_at(s, next, &second);
  if ((class & PREFIX) && (following & LETTER)) return run(s, second, LETTER);
  if (s->text[at] == ' ' && (following & SYMBOL)) return run(s, run(s, second, SYMBOL), NEWLINE);
  if (class & SYMBOL) return run(s, run(s, next, SYMBOL), NEWLINE);
  return spaces(s, at, true);
}

/* o200k's first alternative from `at`, its optional first character already taken: [UPPER]*[LOWER]+. Returns `at` when
 * it does not match; *upper_end is the end of [UPPER]* taken greedily. */
static size_t capitalized(const subject *s, size_t at, size_t *upper_end) {
  size_t next, stop = at, both_end = at;
  unsigned class;
  while ((class = class_at(s, stop, &next)) & UPPER) {
    stop = next;
    if (class & BOTH) both_end = next; /* [LOWER]+ could take this one, if nothing better comes */
  }
  *upper_end = stop;
  if (class & LOWER) return run(s, next, LOWER);
  return both_end;
}

static size_t next_o200k(const subject *s, size_t at) {
  size_t next, upper_end, upper_end_prefixed = at, stop;
  unsigned class = class_at(s, at, &next);
  if (class & PREFIX) {
    stop = capitalized(s, next, &upper_end_prefixed);
    if (stop > next) return contraction(s, stop, true);
    if (upper_end_prefixed == next) upper_end_prefixed = at;
  }
  if (class & (LETTER | BIT(ISO_CLASS_MARK))) {
    stop = capitalized(s, at, &upper_end);
    if (stop > at) return contraction(s, stop, true);
    if (upper_end > at && upper_end_prefixed == at) upper_end_prefixed = upper_end;
  }
  if (upper_end_prefixed > at) return contraction(s, upper_end_prefixed, true);
  if (class & NUMBER) return numbers(s, at, 3);
  size_t second;
  bool spaced = s->text[at] == ' ' && (class_at(s, next, &second) & SYMBOL);
  if (!spaced && !(class & SYMBOL)) return spaces(s, at, true);
  stop = run(s, spaced ? second : next, SYMBOL);
  while (stop < s->end && (s->text[stop] == '\r' || s->text[stop] == '\n' || s->text[stop] == '/')) stop++;
  return stop;
}

size_t iso_split_next(iso_splitter splitter, const uint8_t *text, size_t at, size_t end) {
  subject s = {text, iso_unicode_table(), end};
  size_t next;
  switch (splitter) {
  case ISO_SPLIT_GPT2:
    return next_gpt2(&s, at);
  case ISO_SPLIT_CL100K:
    return next_cl100k(&s, at, 3);
  case ISO_SPLIT_QWEN2:
    return next_cl100k(&s, at, 1);
  case ISO_SPLIT_O200K:
    return next_o200k(&s, at);
  case ISO_SPLIT_DIGIT:
    if (class_at(&s, at, &next) & NUMBER) return next;
    return run(&s, at, ~NUMBER & 0xFFFFu);
  case ISO_SPLIT_DIGITS:
    if (class_at(&s, at, &next) & NUMBER) return run(&s, next, NUMBER);
    return run(&s, at, ~NUMBER & 0xFFFFu);
  case ISO_SPLIT_REGEX:
  case ISO_SPLIT_NONE:
    break;
  }
  return end;
}
