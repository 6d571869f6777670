/* SPDX-License-Identifier: Apache-2.0
 *
 * vec.h (avx2): the vector wrapper that the shared kernel bodies of src/kernels/vector are written over. See
 * avx512/vec.h for the other one; both offer the same functions.
 *
 * Invariants
 *  1. A load or store of n < VL lanes touches only those n elements; missing lanes load as zero.
 *  2. bfloat16 is rounded to nearest even with integer operations, as iso_bf16_from_f32 does it: NaNs stay NaNs
 * (quiet), subnormals are kept.
 *  3. Sums over lanes fold halves: lane l takes in l + VL/2, then l + VL/4, and so on.
 */
#ifndef ISO_KERNELS_AVX2_VEC_H
#define ISO_KERNELS_AVX2_VEC_H

#include <immintrin.h>

#include "kernels/rows.h"

#define VL         8 /* float32 lanes */
#define VEC_STEP   2 /* vectors that functions of several work through in step, at most */
#define VEC_INLINE static inline __attribute__((always_inline, unused))

typedef __m256 vec;   /* VL float32 */
typedef __m256d vecd; /* VL / 2 float64 */

/* All ones in lanes below n. */
VEC_INLINE __m256i vec_mask(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

VEC_INLINE vec vec_set(float x) {
  return _mm256_set1_ps(x);
}
VEC_INLINE vec vec_add(vec a, vec b) {
  return _mm256_add_ps(a, b);
}
VEC_INLINE vec vec_sub(vec a, vec b) {
  return _mm256_sub_ps(a, b);
}
VEC_INLINE vec vec_mul(vec a, vec b) {
  return _mm256_mul_ps(a, b);
}
VEC_INLINE vec vec_div(vec a, vec b) {
  return _mm256_div_ps(a, b);
}
VEC_INLINE vec vec_sqrt(vec a) {
  return _mm256_sqrt_ps(a);
}
/* a b + c */
VEC_INLINE vec vec_fma(vec a, vec b, vec c) {
  return _mm256_fmadd_ps(a, b, c);
}
/* c - a b */
VEC_INLINE vec vec_fnma(vec a, vec b, vec c) {
  return _mm256_fnmadd_ps(a, b, c);
}
/* The larger; b where either is NaN. */
VEC_INLINE vec vec_max(vec a, vec b) {
  return _mm256_max_ps(a, b);
}
/* The smaller; b where either is NaN. */
VEC_INLINE vec vec_min(vec a, vec b) {
  return _mm256_min_ps(a, b);
}
VEC_INLINE vec vec_abs(vec a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
VEC_INLINE vec vec_negate(vec a) {
  return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}
VEC_INLINE vec vec_round(vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* a where x < 0, else b (also for NaN). */
VEC_INLINE vec vec_if_negative(vec x, vec a, vec b) {
  return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
}
/* a 2^n for whole n in [-252, 254], rounded once: the first half of n is applied exactly when a is near one. */
VEC_INLINE vec vec_scale(vec a, vec n) {
  __m256i whole = _mm256_cvtps_epi32(n), first = _mm256_srai_epi32(whole, 1), second = _mm256_sub_epi32(whole, first);
  __m256i bias = _mm256_set1_epi32(127);
  a = _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23)));
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23)));
}
/* Lanes below n of a, the others of b. */
VEC_INLINE vec vec_first(vec a, vec b, int n) {
  return n == VL ? a : _mm256_blendv_ps(b, a, _mm256_castsi256_ps(vec_mask(n)));
}

VEC_INLINE float vec_sum(vec a) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
VEC_INLINE float vec_top(vec a) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

VEC_INLINE vecd vecd_zero(void) {
  return _mm256_setzero_pd();
}
VEC_INLINE vecd vecd_low(vec a) {
  return _mm256_cvtps_pd(_mm256_castps256_ps128(a));
}
VEC_INLINE vecd vecd_high(vec a) {
  return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
}
VEC_INLINE vecd vecd_add(vecd a, vecd b) {
  return _mm256_add_pd(a, b);
}
VEC_INLINE vecd vecd_fma(vecd a, vecd b, vecd c) {
  return _mm256_fmadd_pd(a, b, c);
}
VEC_INLINE vec vec_from_double(vecd low, vecd high) {
  return _mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low));
}
VEC_INLINE double vecd_sum(vecd a) {
  __m128d two = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/* Elements [i, i + n) of a float32 or bfloat16 array. bfloat16 tails are staged: avx2 has no 16-bit masks. */
VEC_INLINE vec vec_load(const void *data, iso_dtype dtype, int64_t i, int n) {
  if (dtype == ISO_F32) {
    const float *at = (const float *)data + i;
    return n == VL ? _mm256_loadu_ps(at) : _mm256_maskload_ps(at, vec_mask(n));
  }
  const iso_bf16 *at = (const iso_bf16 *)data + i;
  iso_bf16 staged[VL] = {0};
  if (n < VL) {
    for (int lane = 0; lane < n; lane++) staged[lane] = at[lane];
    at = staged;
  }
  __m128i half = _mm_loadu_si128((const __m128i_u *)(const void *)at);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* The upper half of each float32, rounded, in the low half of its lane. */
VEC_INLINE __m256i vec_bf16_words(vec a) {
  __m256i bits = _mm256_castps_si256(a), upper = _mm256_srli_epi32(bits, 16);
  __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
  __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
/* a rounded to bfloat16, as float32. */
VEC_INLINE vec vec_round_bf16(vec a) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(vec_bf16_words(a), 16));
}
VEC_INLINE __m128i vec_to_bf16(vec a) {
  __m256i words = vec_bf16_words(a);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

VEC_INLINE void vec_store(void *data, iso_dtype dtype, int64_t i, int n, vec a) {
  if (dtype == ISO_F32) {
    float *at = (float *)data + i;
    if (n == VL)
      _mm256_storeu_ps(at, a);
    else
      _mm256_maskstore_ps(at, vec_mask(n), a);
    return;
  }
  iso_bf16 *at = (iso_bf16 *)data + i;
  if (n == VL) {
    _mm_storeu_si128((__m128i_u *)(void *)at, vec_to_bf16(a));
    return;
  }
  iso_bf16 staged[VL];
  _mm_storeu_si128((__m128i_u *)(void *)staged, vec_to_bf16(a));
  for (int lane = 0; lane < n; lane++) at[lane] = staged[lane];
}

/* As vec_store of what is not a NaN; a NaN may become any number. */
VEC_INLINE void vec_store_number(void *data, iso_dtype dtype, int64_t i, int n, vec a) {
  vec_store(data, dtype, i, n, a);
}

#endif
