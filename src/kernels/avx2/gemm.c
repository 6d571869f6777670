/* SPDX-License-Identifier: Apache-2.0
 *
 * float32 products with 256-bit fused multiply-adds; bfloat16 operands are widened while they are packed, which is
 * exact.
 */
#include "kernels/avx2/tile256.h"
#include "kernels/avx2/vec.h"
#include "kernels/vector/few_rows.h"

#define UNROLL _Pragma("GCC unroll 6")

/* Accumulators of the tile to c: bias or old values added, nothing beyond the matrix touched. */
VEC_INLINE void tile_finish(const int rows, const iso_tile_out *out, vec (*sums)[2]) {
  int first = out->count_cols < VL ? out->count_cols : VL, second = out->count_cols - first;
  vec bias0 = vec_set(0.0f), bias1 = bias0;
  if (out->bias) {
    bias0 = vec_load(out->bias, ISO_F32, 0, first);
    if (second > 0) bias1 = vec_load(out->bias, ISO_F32, VL, second);
  }
  UNROLL for (int r = 0; r < rows; r++) {
    if (r >= out->count_rows) break;
    int64_t at = r * out->ld;
    vec low = sums[r][0], high = sums[r][1];
    if (out->bias) {
      low = vec_add(low, bias0);
      high = vec_add(high, bias1);
    }
    if (out->accumulate) {
      low = vec_add(vec_load(out->c, ISO_F32, at, first), low);
      if (second > 0) high = vec_add(vec_load(out->c, ISO_F32, at + VL, second), high);
    }
    vec_store(out->c, out->dtype, at, first, low);
    if (second > 0) vec_store(out->c, out->dtype, at + VL, second, high);
  }
}

/* Unit u of row r of the left operand lies at left[r * row_units + u * depth_units]. */
VEC_INLINE void tile_body(const int rows, const int row_units, const int depth_units, const void *left_panel,
                          const void *right_panel, int64_t units, const iso_tile_out *out) {
  const float *left = left_panel, *right = right_panel;
  vec sums[ISO_TILE256_ROWS][2];
  UNROLL for (int r = 0; r < rows; r++) {
    sums[r][0] = out->load ? _mm256_load_ps(out->sums + r * out->sums_ld) : vec_set(0.0f);
    sums[r][1] = out->load ? _mm256_load_ps(out->sums + r * out->sums_ld + VL) : vec_set(0.0f);
  }
  for (int64_t u = 0; u < units; u++) {
    vec right0 = _mm256_load_ps(right), right1 = _mm256_load_ps(right + VL);
    UNROLL for (int r = 0; r < rows; r++) {
      vec value = _mm256_broadcast_ss(left + r * row_units);
      sums[r][0] = vec_fma(value, right0, sums[r][0]);
      sums[r][1] = vec_fma(value, right1, sums[r][1]);
    }
    left += depth_units;
    right += ISO_TILE256_COLS;
  }
  if (!out->keep) {
    tile_finish(rows, out, sums);
    return;
  }
  UNROLL for (int r = 0; r < rows; r++) {
    _mm256_store_ps(out->sums + r * out->sums_ld, sums[r][0]);
    _mm256_store_ps(out->sums + r * out->sums_ld + VL, sums[r][1]);
  }
}

/* Few rows take a body with few accumulators; the rows a body computes beyond count_rows are zeros of the panel. */
VEC_INLINE void tile_any(const int row_units, const int depth_units, const void *left, const void *right, int64_t units,
                         const iso_tile_out *out) {
  if (out->count_rows > 5)
    tile_body(6, row_units, depth_units, left, right, units, out);
  else if (out->count_rows > 4)
    tile_body(5, row_units, depth_units, left, right, units, out);
  else if (out->count_rows > 2)
    tile_body(4, row_units, depth_units, left, right, units, out);
  else if (out->count_rows > 1)
    tile_body(2, row_units, depth_units, left, right, units, out);
  else
    tile_body(1, row_units, depth_units, left, right, units, out);
}

static void multiply(const void *left, const void *right, int64_t units, const iso_tile_out *out) {
  tile_any(1, ISO_TILE256_ROWS, left, right, units, out);
}

static void multiply_rows(const void *left, const void *right, int64_t units, const iso_tile_out *out) {
  tile_any(ISO_SCORE_UNITS, 1, left, right, units, out);
}

const iso_tile_set iso_tile_f32_avx2 = {.rows = ISO_TILE256_ROWS,
                                        .cols = ISO_TILE256_COLS,
                                        .step = 1,
                                        .pack = iso_pack_f32_avx2,
                                        .multiply = multiply,
                                        .few_rows = few_rows,
                                        .multiply_rows = multiply_rows};
const iso_tile_set iso_tile_bf16_avx2 = {.rows = ISO_TILE256_ROWS,
                                         .cols = ISO_TILE256_COLS,
                                         .step = 1,
                                         .pack = iso_pack_widen_avx2,
                                         .multiply = multiply,
                                         .few_rows = few_rows,
                                         .multiply_rows = multiply_rows};

static void gemm_avx2(const iso_gemm_args *args, const iso_worker *worker) {
  iso_gemm_run(args->a.dtype == ISO_BF16 ? &iso_tile_bf16_avx2 : &iso_tile_f32_avx2, args, worker);
}

/* 12 independent chains; both types are multiplied in float32. */
static double peak_avx2(iso_dtype type, int64_t iterations) {
  vec sums[12], factor = vec_set(1.0f);
  for (int j = 0; j < 12; j++) sums[j] = vec_set(0.0f);
  for (int64_t i = 0; i < iterations; i++) {
    _Pragma("GCC unroll 12") for (int j = 0; j < 12; j++) sums[j] = vec_fma(sums[j], factor, factor);
  }
  vec total = sums[0];
  for (int j = 1; j < 12; j++) total = vec_add(total, sums[j]);
  volatile float sink = vec_sum(total); /* keeps the chains alive */
  (void)sink;
  return 16.0 * 12.0 * (double)iterations;
}

void iso_overlay_avx2_gemm(iso_kernels *table) {
  table->gemm = gemm_avx2;
  table->peak = peak_avx2;
}
