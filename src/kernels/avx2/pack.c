/* SPDX-License-Identifier: Apache-2.0
 *
 * Packing for the avx2 tier: one panel of float32 units, from float32 or from bfloat16 widened. `across`: a row of
 * units is one or two loads. Else k is contiguous: 8 lines x 8 units are loaded and transposed in registers. Panels are
 * 16 units wide, or 6: then a row is stored as four units and two, since masked stores are slow on some machines.
 */
#include "kernels/avx2/tile256.h"
#include "kernels/avx2/vec.h"

VEC_INLINE int clamp_lanes(int64_t count) {
  return count >= VL ? VL : count <= 0 ? 0 : (int)count;
}

/* Units of one k: 8 of them at a 16-wide panel, 6 at a 6-wide one. */
VEC_INLINE void store_units(float *unit, int width, vec x) {
  if (width == ISO_TILE256_COLS) {
    _mm256_storeu_ps(unit, x);
  } else {
    _mm_storeu_ps(unit, _mm256_castps256_ps128(x));
    _mm_storel_pi((__m64 *)(void *)(unit + 4), _mm256_extractf128_ps(x, 1));
  }
}

VEC_INLINE void pack_across(iso_dtype dtype, float *panel, int width, const void *source, int64_t ld, int64_t count,
                            int64_t depth) {
  int first = clamp_lanes(count), second = clamp_lanes(count - VL);
  for (int64_t k = 0; k < depth; k++, panel += width) {
    store_units(panel, width, vec_load(source, dtype, k * ld, first));
    if (width > VL)
      store_units(panel + VL, width, second > 0 ? vec_load(source, dtype, k * ld + VL, second) : vec_set(0.0f));
  }
}

VEC_INLINE void transpose_8x8(vec x[8]) {
  vec y[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    y[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
    y[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int g = 0; g < 2; g++) { /* x[4 g + j]: in 128-bit lane l, unit 4 l + j of lines 4 g .. 4 g + 3 */
    x[4 * g] = _mm256_shuffle_ps(y[4 * g], y[4 * g + 2], 0x44);
    x[4 * g + 1] = _mm256_shuffle_ps(y[4 * g], y[4 * g + 2], 0xee);
    x[4 * g + 2] = _mm256_shuffle_ps(y[4 * g + 1], y[4 * g + 3], 0x44);
    x[4 * g + 3] = _mm256_shuffle_ps(y[4 * g + 1], y[4 * g + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    y[j] = _mm256_permute2f128_ps(x[j], x[4 + j], 0x20);
    y[4 + j] = _mm256_permute2f128_ps(x[j], x[4 + j], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) x[i] = y[i];
}

/* Lines first .. first + 7 of the panel. */
VEC_INLINE void pack_lines(iso_dtype dtype, float *panel, int width, int first, const void *source, int64_t ld,
                           int64_t count, int64_t depth) {
  int lines = clamp_lanes(count - first);
  for (int64_t k = 0; k < depth; k += VL) {
    int units = clamp_lanes(depth - k);
    vec block[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
      block[i] = i < lines ? vec_load(source, dtype, (first + i) * ld + k, units) : vec_set(0.0f);
    transpose_8x8(block);
    float *unit = panel + k * width + first;
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
      if (i < units) store_units(unit + i * width, width, block[i]);
  }
}

VEC_INLINE void pack(iso_dtype dtype, void *panel, int width, const void *source, int64_t ld, int64_t count,
                     int64_t depth, bool across) {
  if (across)
    pack_across(dtype, panel, width, source, ld, count, depth);
  else
    for (int first = 0; first < width; first += VL) pack_lines(dtype, panel, width, first, source, ld, count, depth);
}

void iso_pack_f32_avx2(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                       bool across) {
  pack(ISO_F32, panel, width, source, ld, count, depth, across);
}

void iso_pack_widen_avx2(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                         bool across) {
  pack(ISO_BF16, panel, width, source, ld, count, depth, across);
}
