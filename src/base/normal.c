/* SPDX-License-Identifier: Apache-2.0
 *
 * normal.c: normal numbers in bulk, four from one Philox block: each from 32 random bits through the inverse of the
 * normal distribution (Wichura 1988, Algorithm AS 241, the 7-digit form PPND7), so only the outer 15% cost a logarithm.
 * The relative error of about 1e-7 is below float32's own rounding.
 *
 * Where the processor has AVX-512 eight numbers are made at a time, by the operations of the plain form in their order:
 * a batch of words first, then the middle of the distribution for all of them, then the outer ones, gathered.
 *
 * Invariants
 *  1. The bits are the same in both forms: + - * / and square root only, each rounded once, none contracted.
 *  2. Values are finite: |z| < 6.4.
 */
#include <math.h>

#include "base/base.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MIDDLE 0.425 /* |p - 1/2| up to which one rational function will do */

double iso_normal_from_bits(uint32_t bits) {
  const double p = ((double)bits + 0.5) / 4294967296.0, q = p - 0.5; /* q is exact and odd in the bits */
  if (fabs(q) <= MIDDLE) {
    const double r = 0.180625 - q * q;
    const double above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179;
    const double below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0;
    return q * above / below;
  }
  double z, r = sqrt(-iso_log(0.5 - fabs(q)));
  if (r <= 5) {
    r -= 1.6;
    z = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
        ((0.12021132975 * r + 0.73700164250) * r + 1.0);
  } else { /* never for 32 bits: 0.5 - |q| is 2^-33 at least, r 4.79 at most */
    r -= 5;
    z = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) /
        ((0.012258202635 * r + 0.24197894225) * r + 1.0);
  }
  return q < 0 ? -z : z;
}

static void fill_plain(uint64_t seed, iso_rng_purpose purpose, uint64_t step, int64_t begin, int64_t end, double std,
                       float *out) {
  for (int64_t i = begin; i < end; i += 4) {
    uint32_t bits[4];
    iso_rng(seed, purpose, step, (uint64_t)i / 4, bits);
    for (int64_t j = i; j < i + 4 && j < end; j++) out[j - begin] = (float)(std * iso_normal_from_bits(bits[j - i]));
  }
}

#if defined(__x86_64__)

#define WIDE static inline __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"), always_inline))
enum { LANES = 8, BATCH = 1024 /* numbers; their blocks' element words are equal above the low one */ };

/* One round for eight blocks; words are the low halves of lanes, the upper ones hold anything. */
WIDE void philox_round(__m512i c[4], uint32_t key0, uint32_t key1) {
  const __m512i product0 = _mm512_mul_epu32(c[0], _mm512_set1_epi64(0xD2511F53));
  const __m512i product1 = _mm512_mul_epu32(c[2], _mm512_set1_epi64(0xCD9E8D57));
  c[0] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), c[1], _mm512_set1_epi64(key0), 0x96);
  c[2] = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), c[3], _mm512_set1_epi64(key1), 0x96);
  c[1] = product1;
  c[3] = product0;
}

/* Word w of block b at out[4 b + w], b < 8. */
WIDE void store_blocks(const __m512i c[4], uint32_t *out) {
  const __m256i w0 = _mm512_cvtepi64_epi32(c[0]), w1 = _mm512_cvtepi64_epi32(c[1]);
  const __m256i w2 = _mm512_cvtepi64_epi32(c[2]), w3 = _mm512_cvtepi64_epi32(c[3]);
  const __m256i low01 = _mm256_unpacklo_epi32(w0, w1), high01 = _mm256_unpackhi_epi32(w0, w1);
  const __m256i low23 = _mm256_unpacklo_epi32(w2, w3), high23 = _mm256_unpackhi_epi32(w2, w3);
  const __m256i b04 = _mm256_unpacklo_epi64(low01, low23), b15 = _mm256_unpackhi_epi64(low01, low23);
  const __m256i b26 = _mm256_unpacklo_epi64(high01, high23), b37 = _mm256_unpackhi_epi64(high01, high23);
  _mm256_storeu_si256((__m256i *)(void *)out, _mm256_permute2x128_si256(b04, b15, 0x20));
  _mm256_storeu_si256((__m256i *)(void *)(out + 8), _mm256_permute2x128_si256(b26, b37, 0x20));
  _mm256_storeu_si256((__m256i *)(void *)(out + 16), _mm256_permute2x128_si256(b04, b15, 0x31));
  _mm256_storeu_si256((__m256i *)(void *)(out + 24), _mm256_permute2x128_si256(b26, b37, 0x31));
}

/* Words of `blocks` blocks (a multiple of 16) from `first` on; none of them carries into the element's upper word. */
WIDE void make_words(uint64_t seed, const uint32_t counter[4], int64_t blocks, uint32_t *out) {
  const __m512i lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
  for (int64_t b = 0; b < blocks; b += 2 * LANES) {
    __m512i x[4], y[4]; /* two groups, so that one's products hide the other's */
    x[0] = _mm512_add_epi64(_mm512_set1_epi64((int64_t)counter[0] + b), lanes);
    y[0] = _mm512_add_epi64(x[0], _mm512_set1_epi64(LANES));
    for (int w = 1; w < 4; w++) x[w] = y[w] = _mm512_set1_epi64(counter[w]);
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
      philox_round(x, key0, key1);
      philox_round(y, key0, key1);
      key0 += 0x9E3779B9U;
      key1 += 0xBB67AE85U;
    }
    store_blocks(x, out + 4 * b);
    store_blocks(y, out + 4 * (b + LANES));
  }
}

#define SET(x) _mm512_set1_pd(x)
/* a x + b, rounded twice */
WIDE __m512d next_term(__m512d a, __m512d x, double b) {
  return _mm512_add_pd(_mm512_mul_pd(a, x), SET(b));
}

/* iso_log for positive normal numbers. */
WIDE __m512d log_wide(__m512d x) {
  const __m512i bits = _mm512_castpd_si512(x);
  const __m512i fraction = _mm512_and_si512(bits, _mm512_set1_epi64(0xFFFFFFFFFFFFF));
  const __mmask8 upper = _mm512_cmpge_epi64_mask(fraction, _mm512_set1_epi64(0x6A09E667F3BCD));
  __m512i exponent = _mm512_sub_epi64(_mm512_srli_epi64(bits, 52), _mm512_set1_epi64(1023));
  exponent = _mm512_mask_add_epi64(exponent, upper, exponent, _mm512_set1_epi64(1));
  const __m512i scale =
      _mm512_mask_blend_epi64(upper, _mm512_set1_epi64((int64_t)1023 << 52), _mm512_set1_epi64((int64_t)1022 << 52));
  const __m512d k = _mm512_cvtepi64_pd(exponent);
  const __m512d f = _mm512_sub_pd(_mm512_castsi512_pd(_mm512_or_si512(fraction, scale)), SET(1.0));
  const __m512d s = _mm512_div_pd(f, _mm512_add_pd(SET(2.0), f)), z = _mm512_mul_pd(s, s);
  __m512d p = SET(2.0 / 23);
  p = next_term(p, z, 2.0 / 21);
  p = next_term(p, z, 2.0 / 19);
  p = next_term(p, z, 2.0 / 17);
  p = next_term(p, z, 2.0 / 15);
  p = next_term(p, z, 2.0 / 13);
  p = next_term(p, z, 2.0 / 11);
  p = next_term(p, z, 2.0 / 9);
  p = next_term(p, z, 2.0 / 7);
  p = next_term(p, z, 2.0 / 5);
  p = next_term(p, z, 2.0 / 3);
  const __m512d h = _mm512_mul_pd(_mm512_mul_pd(SET(0.5), f), f);
  const __m512d inner = _mm512_mul_pd(s, _mm512_add_pd(h, _mm512_mul_pd(p, z)));
  const __m512d low = _mm512_add_pd(inner, _mm512_mul_pd(k, SET(0x1.cf79abc9e3b3ap-40)));
  const __m512d rest = _mm512_sub_pd(f, _mm512_sub_pd(h, low));
  return _mm512_add_pd(_mm512_mul_pd(k, SET(0x1.62e42fefa0000p-1)), rest);
}

WIDE __m512d middle_wide(__m512d q) {
  const __m512d r = _mm512_sub_pd(SET(0.180625), _mm512_mul_pd(q, q));
  const __m512d above =
      next_term(next_term(next_term(SET(59.109374720), r, 159.29113202), r, 50.434271938), r, 3.3871327179);
  const __m512d below = next_term(next_term(next_term(SET(67.187563600), r, 78.757757664), r, 17.895169469), r, 1.0);
  return _mm512_div_pd(_mm512_mul_pd(q, above), below);
}

WIDE __m512d outer_wide(__m512d q) {
  const __m512d sign = _mm512_set1_pd(-0.0),
                minus_log = _mm512_xor_pd(log_wide(_mm512_sub_pd(SET(0.5), _mm512_abs_pd(q))), sign);
  const __m512d r = _mm512_sub_pd(_mm512_sqrt_pd(minus_log), SET(1.6));
  const __m512d above =
      next_term(next_term(next_term(SET(0.17023821103), r, 1.3067284816), r, 2.7568153900), r, 1.4234372777);
  const __m512d below = next_term(next_term(SET(0.12021132975), r, 0.73700164250), r, 1.0);
  return _mm512_xor_pd(_mm512_div_pd(above, below), _mm512_and_pd(q, sign));
}

/* Up to BATCH numbers, a multiple of 64, of blocks from counter[0] on. */
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) static void
fill_batch(uint64_t seed, const uint32_t counter[4], int64_t count, double std, float *out) {
  uint32_t words[BATCH];
  double outer[BATCH + LANES];
  int32_t places[BATCH + LANES];
  int64_t outers = 0;
  make_words(seed, counter, count / 4, words);
  for (int64_t i = 0; i < count; i += LANES) {
    const __m512d whole = _mm512_cvtepu32_pd(_mm256_loadu_si256((const __m256i *)(const void *)(words + i)));
    const __m512d p = _mm512_mul_pd(_mm512_add_pd(whole, SET(0.5)), SET(0x1p-32));
    const __m512d q = _mm512_sub_pd(p, SET(0.5));
    const __mmask8 far = _mm512_cmp_pd_mask(_mm512_abs_pd(q), SET(MIDDLE), _CMP_GT_OQ);
    _mm256_storeu_ps(out + i, _mm512_cvtpd_ps(_mm512_mul_pd(SET(std), middle_wide(q))));
    _mm512_mask_compressstoreu_pd(outer + outers, far, q);
    const __m256i place = _mm256_add_epi32(_mm256_set1_epi32((int32_t)i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    _mm256_mask_compressstoreu_epi32(places + outers, far, place);
    outers += __builtin_popcount(far);
  }
  _mm512_storeu_pd(outer + outers, SET(0.45)); /* what fills the last eight is not used */
  for (int64_t i = 0; i < outers; i += LANES) {
    float z[LANES];
    _mm256_storeu_ps(z, _mm512_cvtpd_ps(_mm512_mul_pd(SET(std), outer_wide(_mm512_loadu_pd(outer + i)))));
    for (int64_t j = 0; j < LANES && i + j < outers; j++) out[places[i + j]] = z[j];
  }
}

/* As many of the numbers as make whole groups of 64 within one upper word; how many. */
static int64_t fill_wide(uint64_t seed, iso_rng_purpose purpose, uint64_t step, int64_t begin, int64_t end, double std,
                         float *out) {
  int64_t at = begin;
  while (end - at >= 64) {
    const uint64_t block = (uint64_t)at / 4;
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)step,
                                 (uint32_t)(step >> 32) ^ (uint32_t)purpose << 24};
    const int64_t count = end - at < BATCH ? (end - at) / 64 * 64 : BATCH;
    if (counter[0] > UINT32_MAX - BATCH) break;
    fill_batch(seed, counter, count, std, out + (at - begin));
    at += count;
  }
  return at - begin;
}

#else

static int64_t fill_wide(uint64_t seed, iso_rng_purpose purpose, uint64_t step, int64_t begin, int64_t end, double std,
                         float *out) {
  (void)seed, (void)purpose, (void)step, (void)begin, (void)end, (void)std, (void)out;
  return 0;
}

#endif

void iso_rng_normals(iso_tier tier, uint64_t seed, iso_rng_purpose purpose, uint64_t step, int64_t begin, int64_t end,
                     double std, float *out) {
  int64_t done = 0;
  if (tier >= ISO_TIER_AVX512) done = fill_wide(seed, purpose, step, begin, end, std, out);
  fill_plain(seed, purpose, step, begin + done, end, std, out + done);
}
