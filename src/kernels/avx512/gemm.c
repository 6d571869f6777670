/* SPDX-License-Identifier: Apache-2.0
 *
 * float32 products with fused multiply-adds; bfloat16 operands are widened while they are packed, which is exact.
 */
#include "kernels/avx512/vec.h"
#include "kernels/vector/few_rows.h"

static inline __m512 tile_step(__m512 sum, __m512i left, __m512i right) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right), sum);
}

static inline __m256i tile_round(__m512 x) {
  return vec_to_bf16(x);
}

static inline __m512i tile_round_pair(__m512 low, __m512 high) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(vec_to_bf16(low)), vec_to_bf16(high), 1);
}

#define TILE_STEP 1

static inline void tile_cross_unit(const char *row, int64_t row_bytes, __m512i *low, __m512i *high) {
  (void)row_bytes;
  *low = _mm512_loadu_si512(row);
  *high = _mm512_loadu_si512(row + 64);
}

static inline void tile_cross_pair(const iso_tile_pair *from, const char *row, __m512i *unit, __m512i *next_unit) {
  *unit = _mm512_maskz_loadu_epi32((__mmask16)((1 << from->count) - 1), row);
  *next_unit = _mm512_maskz_loadu_epi32((__mmask16)((1 << from->next_count) - 1), row + 4 * from->count);
}

#define ISO_TILE512_BODY
#include "kernels/avx512/tile512.h"

void iso_few_rows_avx512(const iso_gemm_args *args, const iso_worker *worker) {
  few_rows(args, worker);
}

const iso_tile_set iso_tile_f32_avx512 = {.rows = ISO_TILE512_ROWS,
                                          .cols = ISO_TILE512_COLS,
                                          .step = 1,
                                          .pack = iso_pack_f32_avx512,
                                          .multiply = multiply,
                                          .few_rows = iso_few_rows_avx512,
                                          .multiply_rows = multiply_rows,
                                          .multiply_direct = multiply_direct,
                                          .multiply_packing = multiply_packing,
                                          .multiply_pair = multiply_pair,
                                          .multiply_copying = multiply_copying};
const iso_tile_set iso_tile_bf16_avx512 = {.rows = ISO_TILE512_ROWS,
                                           .cols = ISO_TILE512_COLS,
                                           .step = 1,
                                           .pack = iso_pack_widen_avx512,
                                           .multiply = multiply,
                                           .few_rows = iso_few_rows_avx512,
                                           .multiply_rows = multiply_rows};

static void gemm_avx512(const iso_gemm_args *args, const iso_worker *worker) {
  iso_gemm_run(args->a.dtype == ISO_BF16 ? &iso_tile_bf16_avx512 : &iso_tile_f32_avx512, args, worker);
}

double iso_peak_f32_avx512(int64_t iterations) {
  return tile_peak(32.0, iterations);
}

static double peak_avx512(iso_dtype type, int64_t iterations) {
  return iso_peak_f32_avx512(iterations);
}

void iso_overlay_avx512_gemm(iso_kernels *table) {
  table->gemm = gemm_avx512;
  table->peak = peak_avx512;
}
