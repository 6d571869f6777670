/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing for the 512-bit tiers: one panel of 4-byte units, from float32 (a unit is an element), from bfloat16 widened
 * to float32, or from bfloat16 in pairs along k.
 *
 * Two directions. `across`: the lines of the panel are neighbours in memory, so a row of units is one load (two for a
 * pair). Else k is contiguous: 16 lines x 16 units are loaded and transposed in registers. Loads are masked at every
 * edge (what is outside the matrix is not read and becomes zero) and stores to the panel's width.
 */
#include "kernels/avx512/tile512.h"

typedef enum source_form { FORM_F32, FORM_WIDEN, FORM_PAIRS } source_form;

enum {
  AHEAD = 256,     /* bytes from a load to its prefetch, within a row of the matrix */
  AHEAD_UNITS = 16 /* units from a store to its prefetch: what the next call for this panel writes */
};

#define INLINE static inline __attribute__((always_inline))

/* The lowest `count` bits of `bits`, clamped. */
INLINE uint32_t low_mask(int64_t count, int bits) {
  return count >= bits ? (uint32_t)((1ull << bits) - 1) : count <= 0 ? 0 : (1u << count) - 1;
}

INLINE __m512i widen_load(const iso_bf16 *source, __mmask16 mask) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, source));
}

/* ---- across ---- */

/* Which words of two rows k and k + 1, of 32 columns each, make up the units 0 .. 15 or 16 .. 31. */
INLINE __m512i pair_order(int half) {
  static const uint16_t order[2][32] = {{0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
                                        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                         24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};
  return _mm512_loadu_si512(order[half]);
}

/* `whole`: `count` is 32 and so is the width. Else loads are masked, and stores where nothing is stored after them. */
INLINE void pack_across(source_form form, const bool whole, int32_t *panel, int width, const void *source, int64_t ld,
                        int64_t count, int64_t depth) {
  const int step = form == FORM_PAIRS ? 2 : 1;
  uint32_t from = whole ? ~0u : low_mask(count, 32);
  __mmask16 from0 = (__mmask16)from, from1 = (__mmask16)(from >> 16);
  __mmask16 to0 = (__mmask16)low_mask(width, 16), to1 = (__mmask16)low_mask(width - 16, 16);
  const int64_t row_bytes = ld * (form == FORM_F32 ? 4 : 2);
  const char *row = source;
  for (int64_t k = 0; k < depth; k += step, panel += width, row += step * row_bytes) {
    /* what other panels take from these rows: too many streams for the hardware's prefetching */
    _mm_prefetch(row + AHEAD, _MM_HINT_T1);
    if (form == FORM_F32 && width > 16) _mm_prefetch(row + AHEAD + 64, _MM_HINT_T1);
    if (form == FORM_PAIRS) _mm_prefetch(row + row_bytes + AHEAD, _MM_HINT_T1);
    _mm_prefetch(panel + AHEAD_UNITS * width, _MM_HINT_T1);
    if (width > 16) _mm_prefetch(panel + AHEAD_UNITS * width + 16, _MM_HINT_T1);
    __m512i unit0, unit1 = _mm512_setzero_si512();
    if (form == FORM_F32) {
      unit0 = _mm512_maskz_loadu_epi32(from0, row);
      if (width > 16) unit1 = _mm512_maskz_loadu_epi32(from1, row + 64);
    } else if (form == FORM_WIDEN) {
      unit0 = _mm512_slli_epi32(widen_load((const iso_bf16 *)(const void *)row, from0), 16);
      if (width > 16) unit1 = _mm512_slli_epi32(widen_load((const iso_bf16 *)(const void *)row + 16, from1), 16);
    } else {
      __m512i first = _mm512_maskz_loadu_epi16(from, row), second = _mm512_setzero_si512();
      if (k + 1 < depth) second = _mm512_maskz_loadu_epi16(from, row + row_bytes);
      unit0 = _mm512_permutex2var_epi16(first, pair_order(0), second);
      if (width > 16) unit1 = _mm512_permutex2var_epi16(first, pair_order(1), second);
    }
    if (whole || (width < 16 && k + step < depth)) {
      _mm512_storeu_si512(panel, unit0);
      if (whole) _mm512_storeu_si512(panel + 16, unit1);
    } else {
      _mm512_mask_storeu_epi32(panel, to0, unit0);
      if (width > 16) _mm512_mask_storeu_epi32(panel + 16, to1, unit1);
    }
  }
}

void iso_pack_two_pairs_avx512(void *panel, void *next_panel, int width, const void *source, int64_t ld, int64_t count,
                               int64_t next_count, int64_t depth) {
  const uint32_t from = low_mask(count + next_count, 32);
  const __mmask16 to = (__mmask16)low_mask(width, 16);
  const int64_t row_bytes = ld * 2;
  const __m512i order = pair_order(0), next_order = _mm512_add_epi16(order, _mm512_set1_epi16((short)count));
  const __m512i kept = _mm512_maskz_set1_epi32((__mmask16)low_mask(count, 16), -1);
  const char *row = source;
  int32_t *unit = panel, *next_unit = next_panel;
  for (int64_t k = 0; k < depth; k += 2, row += 2 * row_bytes, unit += width, next_unit += width) {
    _mm_prefetch(row + AHEAD, _MM_HINT_T1);
    _mm_prefetch(row + row_bytes + AHEAD, _MM_HINT_T1);
    _mm_prefetch(unit + AHEAD_UNITS * width, _MM_HINT_T1);
    _mm_prefetch(next_unit + AHEAD_UNITS * width, _MM_HINT_T1);
    __m512i first = _mm512_maskz_loadu_epi16(from, row), second = _mm512_setzero_si512();
    if (k + 1 < depth) second = _mm512_maskz_loadu_epi16(from, row + row_bytes);
    __m512i units = _mm512_and_si512(_mm512_permutex2var_epi16(first, order, second), kept);
    __m512i next_units = _mm512_permutex2var_epi16(first, next_order, second);
    if (k + 2 < depth) {
      _mm512_storeu_si512(unit, units);
      _mm512_storeu_si512(next_unit, next_units);
    } else {
      _mm512_mask_storeu_epi32(unit, to, units);
      _mm512_mask_storeu_epi32(next_unit, to, next_units);
    }
  }
}

/* ---- along ---- */

INLINE void transpose_16x16(__m512i x[16]) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  }
  /* x[4 g + j]: in each 128-bit lane l, unit 4 l + j of lines 4 g .. 4 g + 3 */
#pragma GCC unroll 4
  for (int g = 0; g < 4; g++) {
    x[4 * g] = _mm512_unpacklo_epi64(y[4 * g], y[4 * g + 2]);
    x[4 * g + 1] = _mm512_unpackhi_epi64(y[4 * g], y[4 * g + 2]);
    x[4 * g + 2] = _mm512_unpacklo_epi64(y[4 * g + 1], y[4 * g + 3]);
    x[4 * g + 3] = _mm512_unpackhi_epi64(y[4 * g + 1], y[4 * g + 3]);
  }
  /* then a 4 x 4 transpose of whole lanes, for each j */
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    __m512i a = _mm512_shuffle_i32x4(x[j], x[4 + j], 0x88), b = _mm512_shuffle_i32x4(x[j], x[4 + j], 0xdd);
    __m512i c = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0x88), d = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0xdd);
    y[j] = _mm512_shuffle_i32x4(a, c, 0x88);
    y[8 + j] = _mm512_shuffle_i32x4(a, c, 0xdd);
    y[4 + j] = _mm512_shuffle_i32x4(b, d, 0x88);
    y[12 + j] = _mm512_shuffle_i32x4(b, d, 0xdd);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) x[i] = y[i];
}

/* 16 units of a line from k on. */
INLINE __m512i unit_line(source_form form, const void *source, int64_t at, int64_t left) {
  if (form == FORM_F32) return _mm512_maskz_loadu_epi32((__mmask16)low_mask(left, 16), (const float *)source + at);
  const iso_bf16 *line = (const iso_bf16 *)source + at;
  if (form == FORM_WIDEN) return _mm512_slli_epi32(widen_load(line, (__mmask16)low_mask(left, 16)), 16);
  return _mm512_maskz_loadu_epi16(low_mask(left, 32), line);
}

/* 16 bytes of each of the lines first, first + 4, first + 8 and first + 12, of those below `lines`. */
INLINE __m512i lanes_of(const char *const group[4], int64_t ld_bytes, int first, const int lines, int64_t at) {
  const int64_t offset = first * ld_bytes + at;
#define LANE(g) _mm_loadu_si128((const __m128i_u *)(const void *)(group[g] + offset))
  __m512i x = _mm512_broadcast_i32x4(LANE(0));
  x = _mm512_mask_broadcast_i32x4(x, 0x00f0, LANE(1));
  x = _mm512_mask_broadcast_i32x4(x, 0x0f00, LANE(2));
  if (first + 12 < lines) x = _mm512_mask_broadcast_i32x4(x, 0xf000, LANE(3));
#undef LANE
  return x;
}

/* A block of 16 units of `lines` (13, 14 or 16) whole lines. Loads put the lanes where they belong, so that what is
 * left of the transposition is 4 x 4 units within lanes. Stores are whole registers where the next unit's come after
 * them. */
INLINE void pack_block(const int lines, const char *const group[4], int64_t ld_bytes, int64_t at, int32_t *unit,
                       const int width, bool last) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++, unit += 4 * width) {
    __m512i x0 = lanes_of(group, ld_bytes, 0, lines, at + 16 * j),
            x1 = lanes_of(group, ld_bytes, 1, lines, at + 16 * j);
    __m512i x2 = lanes_of(group, ld_bytes, 2, lines, at + 16 * j),
            x3 = lanes_of(group, ld_bytes, 3, lines, at + 16 * j);
    __m512i a = _mm512_unpacklo_epi32(x0, x1), b = _mm512_unpackhi_epi32(x0, x1);
    __m512i c = _mm512_unpacklo_epi32(x2, x3), d = _mm512_unpackhi_epi32(x2, x3);
    _mm512_storeu_si512(unit, _mm512_unpacklo_epi64(a, c));
    _mm512_storeu_si512(unit + width, _mm512_unpackhi_epi64(a, c));
    _mm512_storeu_si512(unit + 2 * width, _mm512_unpacklo_epi64(b, d));
    if (width < 16 && j == 3 && last)
      _mm512_mask_storeu_epi32(unit + 3 * width, (__mmask16)low_mask(width, 16), _mm512_unpackhi_epi64(b, d));
    else
      _mm512_storeu_si512(unit + 3 * width, _mm512_unpackhi_epi64(b, d));
  }
}

/* The lines that are packed after these, at the same k. */
INLINE void fetch_lines(const char *next, int64_t ld_bytes, int64_t count) {
  for (int64_t i = 0; i < count; i++) _mm_prefetch(next + i * ld_bytes, _MM_HINT_T0);
}

/* Whole blocks of units of whole lines; returns the units packed. */
INLINE int64_t pack_blocks(source_form form, const int lines, int32_t *panel, const int width, int first,
                           const void *source, int64_t ld, int64_t units) {
  const int64_t ld_bytes = ld * (form == FORM_F32 ? 4 : 2);
  const char *line = (const char *)source + first * ld_bytes;
  const char *const group[4] = {line, line + 4 * ld_bytes, line + 8 * ld_bytes, line + 12 * ld_bytes};
  int64_t u = 0;
  for (; u + 16 <= units; u += 16) {
    fetch_lines(line + lines * ld_bytes + u * 4, ld_bytes, lines);
    pack_block(lines, group, ld_bytes, u * 4, panel + u * width + first, width, u + 32 > units);
  }
  return u;
}

/* Lines first .. first + 15 of the panel. */
INLINE void pack_lines(source_form form, int32_t *panel, int width, int first, const void *source, int64_t ld,
                       int64_t count, int64_t depth) {
  const int step = form == FORM_PAIRS ? 2 : 1;
  __mmask16 to = (__mmask16)low_mask(width - first, 16);
  int64_t lines = count - first < 16 ? count - first : 16, units = (depth + step - 1) / step, u = 0;
  /* Lines 2 or 4 KiB apart fall into one or two sets of the inner cache: each is read once, not a quarter at a time. */
  const int64_t ld_bytes = ld * (form == FORM_F32 ? 4 : 2);
  bool meet = ld_bytes % 2048 == 0 && ld_bytes % 8192 != 0;
  if (form != FORM_WIDEN && !meet) {
    if (width == 32 && lines == 16) u = pack_blocks(form, 16, panel, 32, first, source, ld, depth / step);
    if (width == 14 && lines == 14) u = pack_blocks(form, 14, panel, 14, 0, source, ld, depth / step);
    if (width == 14 && lines == 13) u = pack_blocks(form, 13, panel, 14, 0, source, ld, depth / step);
  }
  for (; u < units; u += 16) {
    __m512i block[16];
    if (meet && form != FORM_WIDEN && lines >= 13) /* towards the outer cache: the inner one would lose them again */
      for (int i = 0; i < lines; i++)
        _mm_prefetch((const char *)source + (first + lines + i) * ld_bytes + u * 4, _MM_HINT_T1);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
      block[i] =
          i < lines ? unit_line(form, source, (first + i) * ld + u * step, depth - u * step) : _mm512_setzero_si512();
    transpose_16x16(block);
    int32_t *unit = panel + u * width + first;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
      if (u + i < units) _mm512_mask_storeu_epi32(unit + i * width, to, block[i]);
  }
}

/* width is at most 32 */
INLINE void pack(source_form form, void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                 bool across) {
  if (across && width == 32 && count == 32)
    pack_across(form, true, panel, 32, source, ld, 32, depth);
  else if (across)
    pack_across(form, false, panel, width, source, ld, count, depth);
  else
    for (int first = 0; first < width; first += 16) pack_lines(form, panel, width, first, source, ld, count, depth);
}

void iso_pack_f32_avx512(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                         bool across) {
  pack(FORM_F32, panel, width, source, ld, count, depth, across);
}

void iso_pack_widen_avx512(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                           bool across) {
  pack(FORM_WIDEN, panel, width, source, ld, count, depth, across);
}

void iso_pack_pairs_avx512(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                           bool across) {
  pack(FORM_PAIRS, panel, width, source, ld, count, depth, across);
}
