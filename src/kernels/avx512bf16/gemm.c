/* SPDX-License-Identifier: Apache-2.0
 *
 * bfloat16 products with the dot-product instruction vdpbf16ps; float32 ones stay with the avx512 tier.
 *
 * vdpbf16ps adds the two products of a pair in a fixed order, rounds to nearest even and takes subnormal inputs and
 * results as zero; so does the conversion of results to bfloat16. Here, and only here, subnormals vanish.
 */
#include "kernels/tile.h"

#include <immintrin.h>

static inline __m512 tile_step(__m512 sum, __m512i left, __m512i right) {
  return _mm512_dpbf16_ps(sum, (__m512bh)left, (__m512bh)right);
}

static inline __m256i tile_round(__m512 x) {
  return (__m256i)_mm512_cvtneps_pbh(x);
}

static inline __m512i tile_round_pair(__m512 low, __m512 high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

#define TILE_STEP 2

/* Words of two rows, of 32 columns each, that make up the units 0 .. 15 or 16 .. 31. Read each time: no register is
 * left to keep them in. */
static const uint16_t pair_order[2][32]
    __attribute__((aligned(64))) = {{0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                     8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
                                    {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                     24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63}};

static inline __attribute__((always_inline)) void tile_cross_unit(const char *row, int64_t row_bytes, __m512i *low,
                                                                  __m512i *high) {
  const uint16_t(*order)[32] = pair_order;
  __asm__("" : "+r"(order));
  __m512i first = _mm512_loadu_si512(row), second = _mm512_loadu_si512(row + row_bytes);
  *low = _mm512_permutex2var_epi16(first, _mm512_load_si512(order[0]), second);
  *high = _mm512_permutex2var_epi16(first, _mm512_load_si512(order[1]), second);
}

static inline __attribute__((always_inline)) void tile_cross_pair(const iso_tile_pair *from, const char *row,
                                                                  __m512i *unit, __m512i *next_unit) {
  const uint16_t(*order)[32] = pair_order;
  __asm__("" : "+r"(order));
  const __mmask32 mask = (__mmask32)((1ull << (from->count + from->next_count)) - 1);
  __m512i first = _mm512_maskz_loadu_epi16(mask, row), second = _mm512_maskz_loadu_epi16(mask, row + from->row_bytes);
  __m512i words = _mm512_load_si512(order[0]);
  *unit = _mm512_permutex2var_epi16(first, words, second);
  words = _mm512_add_epi16(words, _mm512_set1_epi16((short)from->count));
  *next_unit = _mm512_permutex2var_epi16(first, words, second);
}

#define ISO_TILE512_BODY
#include "kernels/avx512/tile512.h"

const iso_tile_set iso_tile_bf16_avx512bf16 = {.rows = ISO_TILE512_ROWS,
                                               .cols = ISO_TILE512_COLS,
                                               .step = 2,
                                               .pack = iso_pack_pairs_avx512,
                                               .pack_two = iso_pack_two_pairs_avx512,
                                               .multiply = multiply,
                                               .few_rows = iso_few_rows_avx512,
                                               .multiply_rows = multiply_rows,
                                               .multiply_direct = multiply_direct,
                                               .multiply_packing = multiply_packing,
                                               .multiply_pair = multiply_pair,
                                               .multiply_copying = multiply_copying};

static void gemm_avx512bf16(const iso_gemm_args *args, const iso_worker *worker) {
  iso_gemm_run(args->a.dtype == ISO_BF16 ? &iso_tile_bf16_avx512bf16 : &iso_tile_f32_avx512, args, worker);
}

static double peak_avx512bf16(iso_dtype type, int64_t iterations) {
  return type == ISO_BF16 ? tile_peak(64.0, iterations) : iso_peak_f32_avx512(iterations);
}

void iso_overlay_avx512bf16_gemm(iso_kernels *table) {
  table->gemm = gemm_avx512bf16;
  table->peak = peak_avx512bf16;
}
