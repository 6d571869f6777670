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

#define ISO_TILE512_BODY
#include "kernels/avx512/tile512.h"

static void multiply(const void *left, const void *right, int64_t units, const iso_tile_out *out) {
  tile_any(1, ISO_TILE512_ROWS, left, right, units, out);
}

static void multiply_direct(const void *left, int64_t ld_bytes, const void *right, int64_t units,
                            const iso_tile_out *out) {
  tile_any_direct(left, ld_bytes, right, units, out);
}

static void multiply_rows(const void *left, const void *right, int64_t units, const iso_tile_out *out) {
  tile_any(ISO_SCORE_UNITS, 1, left, right, units, out);
}

const iso_tile_set iso_tile_bf16_avx512bf16 = {.rows = ISO_TILE512_ROWS,
                                               .cols = ISO_TILE512_COLS,
                                               .step = 2,
                                               .pack = iso_pack_pairs_avx512,
                                               .pack_two = iso_pack_two_pairs_avx512,
                                               .multiply = multiply,
                                               .few_rows = iso_few_rows_avx512,
                                               .multiply_rows = multiply_rows,
                                               .multiply_direct = multiply_direct};

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
