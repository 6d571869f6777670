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

enum { AHEAD = 32 }; /* rows of k from a load to its prefetch */

#define INLINE static inline __attribute__((always_inline))

/* The lowest `count` bits of `bits`, clamped. */
INLINE uint32_t low_mask(int64_t count, int bits) {
  return count >= bits ? (uint32_t)((1ull << bits) - 1) : count <= 0 ? 0 : (1u << count) - 1;
}

INLINE __m512i widen_load(const iso_bf16 *source, __mmask16 mask) {
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, source));
}

/* ---- across ---- */

/* 16 columns of row k (and k + 1) as units. */
INLINE __m512i unit_row(source_form form, const void *source, int64_t ld, int64_t k, int64_t depth, int64_t column,
                        __mmask16 mask) {
  if (form == FORM_F32) return _mm512_maskz_loadu_epi32(mask, (const float *)source + k * ld + column);
  const iso_bf16 *row = (const iso_bf16 *)source + k * ld + column;
  __m512i first = widen_load(row, mask);
  if (form == FORM_WIDEN) return _mm512_slli_epi32(first, 16);
  if (k + 1 >= depth) return first;
  return _mm512_or_si512(first, _mm512_slli_epi32(widen_load(row + ld, mask), 16));
}

INLINE void pack_across(source_form form, int32_t *panel, int width, const void *source, int64_t ld, int64_t count,
                        int64_t depth) {
  const int step = form == FORM_PAIRS ? 2 : 1;
  __mmask16 from0 = (__mmask16)low_mask(count, 16), from1 = (__mmask16)low_mask(count - 16, 16);
  __mmask16 to0 = (__mmask16)low_mask(width, 16), to1 = (__mmask16)low_mask(width - 16, 16);
  const int64_t row_bytes = ld * (form == FORM_F32 ? 4 : 2);
  for (int64_t k = 0; k < depth; k += step, panel += width) {
    if (k + AHEAD + step <= depth) { /* long strides defeat the hardware's prefetching */
      const char *next = (const char *)source + (k + AHEAD) * row_bytes;
      _mm_prefetch(next, _MM_HINT_T0);
      if (form == FORM_F32 && width > 16) _mm_prefetch(next + 64, _MM_HINT_T0);
      if (form == FORM_PAIRS) _mm_prefetch(next + row_bytes, _MM_HINT_T0);
    }
    _mm512_mask_storeu_epi32(panel, to0, unit_row(form, source, ld, k, depth, 0, from0));
    if (width > 16) _mm512_mask_storeu_epi32(panel + 16, to1, unit_row(form, source, ld, k, depth, 16, from1));
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

/* Lines first .. first + 15 of the panel. */
INLINE void pack_lines(source_form form, int32_t *panel, int width, int first, const void *source, int64_t ld,
                       int64_t count, int64_t depth) {
  const int step = form == FORM_PAIRS ? 2 : 1;
  __mmask16 to = (__mmask16)low_mask(width - first, 16);
  int64_t lines = count - first < 16 ? count - first : 16, units = (depth + step - 1) / step;
  for (int64_t u = 0; u < units; u += 16) {
    __m512i block[16];
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
  if (across)
    pack_across(form, panel, width, source, ld, count, depth);
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
