/* SPDX-License-Identifier: Apache-2.0
 *
 * window.c: pre-tokenizers on 64 bytes of ASCII at once.
 *
 * A window begins where a piece begins. Vector comparisons make one bit per byte for each class; the beginnings of
 * pieces then follow from bit operations over whole words, which restate split.c's scanners (the rule is beside each
 * step). Only beginnings that bytes inside the window decide are returned: the caller goes on with a window at the last
 * of them, so nothing is carried from one window to the next. Where a window decides nothing (text that is not ASCII,
 * pieces of 64 bytes) it returns 0 and split.c cuts one piece.
 *
 * Invariants
 *  1. Every beginning returned is one that iso_split_next gives, and none between them is left out.
 *  2. All tiers return the same bits; ISOTACH_CPU does not matter to the result.
 */
#include "text/text.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

/* A bit for each byte of the window. */
typedef struct classes {
  uint64_t letter, digit, space, newline, tab, quote, high;
} classes; /* space: ' '; newline: CR, LF; tab: other white space; quote: '\''; high: not ASCII */

/* ---- classes of 64 bytes ---- */

static void classify_scalar(const uint8_t *text, classes *c) {
  *c = (classes){0};
  for (int i = 0; i < 64; i++) {
    const uint8_t byte = text[i];
    const uint64_t bit = 1ull << i;
    if ((uint8_t)((byte | 0x20) - 'a') < 26)
      c->letter |= bit;
    else if ((uint8_t)(byte - '0') < 10)
      c->digit |= bit;
    else if (byte == ' ')
      c->space |= bit;
    else if (byte == '\n' || byte == '\r')
      c->newline |= bit;
    else if (byte >= '\t' && byte <= '\f')
      c->tab |= bit;
    else if (byte == '\'')
      c->quote |= bit;
    else if (byte >= 0x80)
      c->high |= bit;
  }
}

#if defined(__x86_64__)

#define AVX2 __attribute__((target("avx2")))

AVX2 static ALWAYS_INLINE uint64_t mask_avx2(__m256i low, __m256i high) {
  return (uint32_t)_mm256_movemask_epi8(low) | (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32;
}

/* Bytes in first .. first + count - 1: a saturating subtraction leaves 0 only for those. */
AVX2 static ALWAYS_INLINE __m256i within_avx2(__m256i bytes, char first, char count) {
  const __m256i moved = _mm256_sub_epi8(bytes, _mm256_set1_epi8(first));
  return _mm256_cmpeq_epi8(_mm256_subs_epu8(moved, _mm256_set1_epi8((char)(count - 1))), _mm256_setzero_si256());
}

AVX2 static ALWAYS_INLINE uint64_t equal_avx2(__m256i low, __m256i high, char byte) {
  const __m256i wanted = _mm256_set1_epi8(byte);
  return mask_avx2(_mm256_cmpeq_epi8(low, wanted), _mm256_cmpeq_epi8(high, wanted));
}

AVX2 static ALWAYS_INLINE void classify_avx2(const uint8_t *text, classes *c) {
  const __m256i low = _mm256_loadu_si256((const void *)text), high = _mm256_loadu_si256((const void *)(text + 32));
  const __m256i lower = _mm256_set1_epi8(0x20);
  c->letter =
      mask_avx2(within_avx2(_mm256_or_si256(low, lower), 'a', 26), within_avx2(_mm256_or_si256(high, lower), 'a', 26));
  c->digit = mask_avx2(within_avx2(low, '0', 10), within_avx2(high, '0', 10));
  c->space = equal_avx2(low, high, ' ');
  c->newline = equal_avx2(low, high, '\n') | equal_avx2(low, high, '\r');
  c->tab = mask_avx2(within_avx2(low, '\t', 5), within_avx2(high, '\t', 5)) & ~c->newline;
  c->quote = equal_avx2(low, high, '\'');
  c->high = mask_avx2(low, high);
}

#define AVX512 __attribute__((target("avx512f,avx512bw")))

AVX512 static ALWAYS_INLINE uint64_t within_avx512(__m512i bytes, char first, char count) {
  return _mm512_cmplt_epu8_mask(_mm512_sub_epi8(bytes, _mm512_set1_epi8(first)), _mm512_set1_epi8(count));
}

AVX512 static ALWAYS_INLINE uint64_t equal_avx512(__m512i bytes, char byte) {
  return _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(byte));
}

AVX512 static ALWAYS_INLINE void classify_avx512(const uint8_t *text, classes *c) {
  const __m512i bytes = _mm512_loadu_si512(text);
  c->letter = within_avx512(_mm512_or_si512(bytes, _mm512_set1_epi8(0x20)), 'a', 26);
  c->digit = within_avx512(bytes, '0', 10);
  c->space = equal_avx512(bytes, ' ');
  c->newline = equal_avx512(bytes, '\n') | equal_avx512(bytes, '\r');
  c->tab = within_avx512(bytes, '\t', 5) & ~c->newline;
  c->quote = equal_avx512(bytes, '\'');
  c->high = _mm512_movepi8_mask(bytes);
}

#endif

/* ---- bits ---- */

/* Bits below `bit`. */
static ALWAYS_INLINE uint64_t below(int bit) {
  return (1ull << bit) - 1;
}

/* Where the set and its complement meet: first bits of runs of either; bit 0 only for a run of the set. */
static ALWAYS_INLINE uint64_t changes(uint64_t set) {
  return set ^ set << 1;
}

/* Clips all classes to the ASCII bytes before the first that is not; returns their number. */
static ALWAYS_INLINE int clip(classes *c, uint64_t *symbol) {
  const int count = c->high ? __builtin_ctzll(c->high) : 64;
  const uint64_t known = count == 64 ? ~0ull : below(count);
  c->letter &= known;
  c->digit &= known;
  c->space &= known;
  c->newline &= known;
  c->tab &= known;
  c->quote &= known;
  *symbol = known & ~(c->letter | c->digit | c->space | c->newline | c->tab);
  return count;
}

/* Bits 1 .. last, none when last < 1: bit 0 is the beginning that the caller knows. */
static ALWAYS_INLINE uint64_t one_to(int last) {
  return last < 1 ? 0 : below(last + 1) & ~1ull;
}

/* Length of the contraction at an apostrophe, 0 for none. Two more bytes are there. */
static ALWAYS_INLINE int contraction(const uint8_t *text, uint8_t fold) {
  const uint8_t a = text[1] | fold, b = text[2] | fold;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* A contraction at an apostrophe that begins a piece comes before all other rules. *last moves back to an apostrophe
 * that is too near to the window's end to tell. */
static ALWAYS_INLINE uint64_t cut_contractions(const uint8_t *text, uint64_t quotes, uint64_t starts, int count,
                                               uint8_t fold, int *last) {
  for (uint64_t left = quotes & (starts | 1); left; left &= left - 1) {
    const int at = __builtin_ctzll(left);
    if (at > count - 4) {
      if (at < *last) *last = at;
      break;
    }
    const int length = contraction(text + at, fold);
    if (length == 0) continue;
    starts &= ~(2ull << at);
    starts |= 1ull << (at + length);
  }
  return starts;
}

/* ---- the rules ---- */

static ALWAYS_INLINE uint64_t starts_gpt2(const uint8_t *text, classes *c) {
  uint64_t symbol;
  const int count = clip(c, &symbol);
  const uint64_t white = c->space | c->newline | c->tab, last_white = white & ~(white >> 1);
  /* runs of one class; white space before something else leaves its last character, which a space gives away */
  uint64_t starts = changes(c->letter) | changes(c->digit) | changes(white) | last_white;
  starts &= ~((last_white & c->space) << 1);
  int last = count - 2;
  if (c->quote) starts = cut_contractions(text, c->quote, starts, count, 0, &last);
  return starts & one_to(last);
}

static ALWAYS_INLINE uint64_t starts_cl100k(const uint8_t *text, classes *c, int digits) {
  uint64_t symbol;
  const int count = clip(c, &symbol);
  /* line ends right behind symbols belong to them */
  const uint64_t taken = c->newline & ~(c->newline + (symbol << 1 & c->newline));
  const uint64_t line = c->newline & ~taken, blank = c->space | c->tab, white = blank | line;
  const uint64_t last_blank = blank & ~(white >> 1);
  uint64_t starts = changes(c->letter) | changes(c->digit) | changes(white) | last_blank | (taken << 1 & symbol);
  /* white space is cut behind its last line end: where blanks behind a line end do not lead to another one */
  uint64_t after_line = blank & ~(blank << 1) & line << 1;
  int last = count - 2;
  if (after_line) {
    for (uint64_t left = blank & c->newline >> 1; left; left &= left - 1) {
      const uint64_t gaps = ~blank & below(__builtin_ctzll(left));
      after_line &= ~(gaps ? 1ull << (64 - __builtin_clzll(gaps)) : 1ull);
    }
    if (count > 0 && blank >> (count - 1) & 1) { /* blanks up to the window's end: they may */
      const uint64_t gaps = ~blank & below(count - 1);
      const int first = gaps ? 64 - __builtin_clzll(gaps) : 0;
      if (after_line >> first & 1) last = first - 1;
    }
    starts |= after_line;
  }
  /* the last blank goes with letters, a space with symbols too */
  starts &= ~(last_blank << 1 & c->letter);
  starts &= ~((last_blank & c->space) << 1 & symbol);
  /* so does one symbol that begins a piece */
  starts &= ~(((starts | 1) & symbol) << 1 & c->letter);
  if (c->digit) {
    uint64_t group = c->digit & ~(c->digit << 1);
    if (digits == 1) starts |= c->digit;
    while (digits == 3 && (group = group << 3 & c->digit & c->digit << 1 & c->digit << 2)) starts |= group;
  }
  if (c->quote) starts = cut_contractions(text, c->quote, starts, count, 0x20, &last);
  return starts & one_to(last);
}

/* ---- tiers ---- */

static ALWAYS_INLINE uint64_t starts_of(iso_splitter splitter, const uint8_t *text, classes *c) {
  switch (splitter) {
  case ISO_SPLIT_GPT2:
    return starts_gpt2(text, c);
  case ISO_SPLIT_CL100K:
    return starts_cl100k(text, c, 3);
  case ISO_SPLIT_QWEN2:
    return starts_cl100k(text, c, 1);
  default:
    return 0;
  }
}

static uint64_t window_scalar(iso_splitter splitter, const uint8_t *text) {
  classes c;
  classify_scalar(text, &c);
  return starts_of(splitter, text, &c);
}

#if defined(__x86_64__)
AVX2 static uint64_t window_avx2(iso_splitter splitter, const uint8_t *text) {
  classes c;
  classify_avx2(text, &c);
  return starts_of(splitter, text, &c);
}

AVX512 static uint64_t window_avx512(iso_splitter splitter, const uint8_t *text) {
  classes c;
  classify_avx512(text, &c);
  return starts_of(splitter, text, &c);
}
#endif

iso_window_function iso_window_find(iso_tier tier) {
#if defined(__x86_64__)
  if (tier >= ISO_TIER_AVX512) return window_avx512;
  if (tier >= ISO_TIER_AVX2) return window_avx2;
#endif
  return window_scalar;
}
