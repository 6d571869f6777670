/* SPDX-License-Identifier: Apache-2.0
 *
 * stretch.c: a long piece cut where no token can reach over the cut.
 *
 * A merge makes a token out of the bytes it covers. So where no token that merging can make occurs in the text across a
 * border, no merge ever crosses it, in whatever order merges happen, and both sides merge as if they stood alone.
 * Scripts without spaces need this: a sentence of Chinese is one piece, yet most of its characters are joined to
 * neither neighbour in the vocabulary. From each place the longest token that occurs there is looked up; the text is
 * cut where none reaches over, and a stretch that is one token itself needs no merging at all.
 *
 * Invariants
 *  1. Cuts stand before bytes that begin a character only; every token that begins before a cut and occurs there ends
 * at or before it. Tokens that no merging makes do not count: callers look for those in whole pieces first.
 *  2. Each place is looked at once. Beyond a budget of steps linear in the text, all the rest is one stretch.
 */
#include "text/text.h"

enum { BUDGET = 64 };
#define NONE UINT32_MAX

/* Length and number of the longest token of two bytes or more at `text`; 1 and NONE when there is none. */
static inline size_t longest(const iso_trie *trie, const uint8_t *text, size_t left, uint32_t *number, size_t *steps) {
  size_t length = 1, at = 2;
  *number = NONE;
  if (left < 2) return 1;
  iso_trie_slot slot = trie->starts[(uint32_t)text[0] << 8 | text[1]];
  for (;; at++) {
    if (slot.number != NONE) *number = slot.number, length = at;
    if (at >= left || !iso_trie_next(trie, &slot, text[at])) break;
  }
  *steps += at;
  return length;
}

int32_t iso_stretch_next(iso_stretch *s) {
  const iso_matcher *m = s->matcher;
  const uint8_t *text = s->text;
  const size_t start = s->at;
  uint32_t first, number;
  size_t reach = start + longest(&m->trie, text + start, s->length - start, &first, &s->steps), at = start + 1;
  const size_t first_end = reach;
  for (; at < s->length; at++) {
    if (!iso_utf8_continues(text[at])) {
      if (reach <= at) break;
    } else if (at + 1 < s->length) { /* rarely does a token that begins inside a character leave it */
      const uint32_t two = (uint32_t)text[at] << 8 | text[at + 1];
      if (!(m->leaving[two >> 6] >> (two & 63) & 1)) continue;
    }
    if (s->steps > BUDGET * s->length + 1024) {
      at = s->length;
      break;
    }
    const size_t end = at + longest(&m->trie, text + at, s->length - at, &number, &s->steps);
    if (end > reach) reach = end;
  }
  s->at = at;
  return first != NONE && first_end == at ? m->ids[first & ISO_MATCHER_NUMBER] : -1;
}
