/* SPDX-License-Identifier: Apache-2.0
 *
 * vec.h (avx512): the vector wrapper that the shared kernel bodies of src/kernels/vector are written over. See
 * avx2/vec.h for the other one; both offer the same functions.
 *
 * Invariants
 *  1. A load or store of n < VL lanes touches only those n elements; missing lanes load as zero.
 *  2. bfloat16 is rounded to nearest even with integer operations, as iso_bf16_from_f32 does it: NaNs stay NaNs
 * (quiet), subnormals are kept. (vcvtneps2bf16 would flush them.)
 *  3. Sums over lanes fold halves: lane l takes in l + VL/2, then l + VL/4, and so on.
 */
#ifndef ISO_KERNELS_AVX512_VEC_H
#define ISO_KERNELS_AVX512_VEC_H

#include <immintrin.h>

#include "kernels/rows.h"

#define VL         16 /* float32 lanes */
#define VEC_STEP   4  /* vectors that functions of several work through in step, at most */
#define VEC_INLINE static inline __attribute__((always_inline, unused))

typedef __m512 vec;   /* VL float32 */
typedef __m512d vecd; /* VL / 2 float64 */

VEC_INLINE vec vec_set(float x) {
  return _mm512_set1_ps(x);
}
VEC_INLINE vec vec_add(vec a, vec b) {
  return _mm512_add_ps(a, b);
}
VEC_INLINE vec vec_sub(vec a, vec b) {
  return _mm512_sub_ps(a, b);
}
VEC_INLINE vec vec_mul(vec a, vec b) {
  return _mm512_mul_ps(a, b);
}
VEC_INLINE vec vec_div(vec a, vec b) {
  return _mm512_div_ps(a, b);
}
VEC_INLINE vec vec_sqrt(vec a) {
  return _mm512_sqrt_ps(a);
}
/* a b + c */
VEC_INLINE vec vec_fma(vec a, vec b, vec c) {
  return _mm512_fmadd_ps(a, b, c);
}
/* c - a b */
VEC_INLINE vec vec_fnma(vec a, vec b, vec c) {
  return _mm512_fnmadd_ps(a, b, c);
}
/* The larger; b where either is NaN. */
VEC_INLINE vec vec_max(vec a, vec b) {
  return _mm512_max_ps(a, b);
}
/* The smaller; b where either is NaN. */
VEC_INLINE vec vec_min(vec a, vec b) {
  return _mm512_min_ps(a, b);
}
VEC_INLINE vec vec_abs(vec a) {
  return _mm512_abs_ps(a);
}
VEC_INLINE vec vec_negate(vec a) {
  return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
VEC_INLINE vec vec_round(vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a where x < 0, else b (also for NaN). */
VEC_INLINE vec vec_if_negative(vec x, vec a, vec b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), b, a);
}
/* a 2^n for whole n in [-252, 254], rounded once. */
VEC_INLINE vec vec_scale(vec a, vec n) {
  return _mm512_scalef_ps(a, n);
}
/* Lanes below n of a, the others of b. */
VEC_INLINE vec vec_first(vec a, vec b, int n) {
  return n == VL ? a : _mm512_mask_blend_ps((__mmask16)((1u << n) - 1), b, a);
}

VEC_INLINE float vec_sum(vec a) {
  __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
VEC_INLINE float vec_top(vec a) {
  __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

VEC_INLINE vecd vecd_zero(void) {
  return _mm512_setzero_pd();
}
VEC_INLINE vecd vecd_low(vec a) {
  return _mm512_cvtps_pd(_mm512_castps512_ps256(a));
}
VEC_INLINE vecd vecd_high(vec a) {
  return _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
}
VEC_INLINE vecd vecd_add(vecd a, vecd b) {
  return _mm512_add_pd(a, b);
}
VEC_INLINE vecd vecd_fma(vecd a, vecd b, vecd c) {
  return _mm512_fmadd_pd(a, b, c);
}
VEC_INLINE vec vec_from_double(vecd low, vecd high) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(low)), _mm512_cvtpd_ps(high), 1);
}
VEC_INLINE double vecd_sum(vecd a) {
  __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(a), _mm512_extractf64x4_pd(a, 1));
  __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/* Elements [i, i + n) of a float32 or bfloat16 array. */
VEC_INLINE vec vec_load(const void *data, iso_dtype dtype, int64_t i, int n) {
  if (dtype == ISO_F32) {
    const float *at = (const float *)data + i;
    return n == VL ? _mm512_loadu_ps(at) : _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), at);
  }
  const iso_bf16 *at = (const iso_bf16 *)data + i;
  __m256i half = n == VL ? _mm256_loadu_si256((const __m256i_u *)(const void *)at)
                         : _mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), at);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* The upper half of each float32, rounded, in the low half of its lane. */
VEC_INLINE __m512i vec_bf16_words(vec a) {
  __m512i bits = _mm512_castps_si512(a), upper = _mm512_srli_epi32(bits, 16);
  __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
  __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), rounded, quiet);
}
/* a rounded to bfloat16, as float32. */
VEC_INLINE vec vec_round_bf16(vec a) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(vec_bf16_words(a), 16));
}
VEC_INLINE __m256i vec_to_bf16(vec a) {
  return _mm512_cvtepi32_epi16(vec_bf16_words(a));
}

VEC_INLINE void vec_store(void *data, iso_dtype dtype, int64_t i, int n, vec a) {
  if (dtype == ISO_F32) {
    float *at = (float *)data + i;
    if (n == VL)
      _mm512_storeu_ps(at, a);
    else
      _mm512_mask_storeu_ps(at, (__mmask16)((1u << n) - 1), a);
    return;
  }
  iso_bf16 *at = (iso_bf16 *)data + i;
  if (n == VL)
    _mm256_storeu_si256((__m256i_u *)(void *)at, vec_to_bf16(a));
  else
    _mm256_mask_storeu_epi16(at, (__mmask16)((1u << n) - 1), vec_to_bf16(a));
}

/* As vec_store of what is not a NaN; a NaN may become any number. */
VEC_INLINE void vec_store_number(void *data, iso_dtype dtype, int64_t i, int n, vec a) {
  if (dtype == ISO_F32) {
    vec_store(data, dtype, i, n, a);
    return;
  }
  __m512i bits = _mm512_castps_si512(a);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
  iso_bf16 *at = (iso_bf16 *)data + i;
  if (n == VL)
    _mm256_storeu_si256((__m256i_u *)(void *)at, _mm512_cvtepi32_epi16(rounded));
  else
    _mm256_mask_storeu_epi16(at, (__mmask16)((1u << n) - 1), _mm512_cvtepi32_epi16(rounded));
}

#endif
