/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products in plain C: the tier that runs anywhere and the oracle of the others.
 *
 * Each output row is formed in strips of STRIP columns: k outermost, so that every element is one chain of float32
 * additions in the order of k. Nothing is packed; operands are read through strides, so one loop serves all four
 * combinations of transposition.
 */
#include "kernels/tile.h"

enum { STRIP = 64 };

/* An operand seen as element (i, j) at data[i * down + j * right]. */
typedef struct view {
  const void *data;
  int64_t down, right;
  bool half;
} view;

static view view_of(const iso_matrix *matrix, bool transposed) {
  return (view){matrix->data, transposed ? 1 : matrix->ld, transposed ? matrix->ld : 1, matrix->dtype == ISO_BF16};
}

static inline float bf16_value(iso_bf16 x) {
  union {
    uint32_t bits;
    float value;
  } u = {(uint32_t)x << 16};
  return u.value;
}

static inline float view_at(view v, int64_t i, int64_t j) {
  int64_t at = i * v.down + j * v.right;
  return v.half ? bf16_value(((const iso_bf16 *)v.data)[at]) : ((const float *)v.data)[at];
}

/* sums[j] = (A B)(i, j0 + j), j < count. */
static void row_strip(view a, view b, int64_t depth, int64_t i, int64_t j0, int64_t count, float sums[STRIP]) {
  for (int64_t j = 0; j < count; j++) sums[j] = 0.0f;
  for (int64_t k = 0; k < depth; k++) {
    float x = view_at(a, i, k);
    if (b.half) {
      const iso_bf16 *row = (const iso_bf16 *)b.data + k * b.down + j0 * b.right;
      for (int64_t j = 0; j < count; j++) sums[j] += x * bf16_value(row[j * b.right]);
    } else {
      const float *row = (const float *)b.data + k * b.down + j0 * b.right;
      for (int64_t j = 0; j < count; j++) sums[j] += x * row[j * b.right];
    }
  }
}

static void store_strip(const iso_gemm_args *args, int64_t i, int64_t j0, int64_t count, const float *sums) {
  int64_t at = i * args->c.ld + j0;
  for (int64_t j = 0; j < count; j++) {
    float value = args->bias ? sums[j] + args->bias[j0 + j] : sums[j];
    if (args->c.dtype == ISO_BF16) {
      ((iso_bf16 *)args->c.data)[at + j] = iso_bf16_from_f32(value);
    } else {
      float *c = (float *)args->c.data + at + j;
      *c = args->accumulate ? *c + value : value;
    }
  }
}

static void gemm_scalar(const iso_gemm_args *args, const iso_worker *worker) {
  if (args->epilogue) {
    iso_gemm_by_rectangle(gemm_scalar, args, STRIP, args->c.rows >= worker->threads, worker);
    return;
  }
  int64_t depth = args->a_transposed ? args->a.rows : args->a.cols;
  view a = view_of(&args->a, args->a_transposed), b = view_of(&args->b, args->b_transposed);
  int64_t row = 0, row_end = args->c.rows, col = 0, col_end = args->c.cols;
  if (row_end >= worker->threads)
    iso_split(args->c.rows, 1, worker, &row, &row_end);
  else
    iso_split(args->c.cols, STRIP, worker, &col, &col_end);
  float sums[STRIP];
  for (int64_t i = row; i < row_end; i++)
    for (int64_t j = col; j < col_end; j += STRIP) {
      int64_t count = col_end - j < STRIP ? col_end - j : STRIP;
      row_strip(a, b, depth, i, j, count, sums);
      store_strip(args, i, j, count, sums);
    }
}

/* Eight independent chains of multiply and add. */
static double peak_scalar(iso_dtype type, int64_t iterations) {
  float chains[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  volatile float factor = 0.5f, addend = 1.0f;
  float f = factor, a = addend;
  for (int64_t i = 0; i < iterations; i++)
    for (int j = 0; j < 8; j++) chains[j] = chains[j] * f + a;
  float total = 0.0f;
  for (int j = 0; j < 8; j++) total += chains[j];
  factor = total;
  return 16.0 * (double)iterations;
}

void iso_overlay_scalar_gemm(iso_kernels *table) {
  table->gemm = gemm_scalar;
  table->peak = peak_scalar;
}
