/* SPDX-License-Identifier: Apache-2.0
 *
 * few_rows.h: products of up to ISO_FEW_ROWS rows with a matrix stored N x K, over a tier's vec.h (included before).
 * One pass over B as it lies, since packing would cost more than the product: memory is the limit.
 *
 * Invariant: an element is VL float32 chains over k (element k goes to lane k mod VL), folded by vec_sum; both operands
 * are widened to float32, so subnormals count in every tier. The bits are not those of the tiled form.
 */
#ifndef ISO_KERNELS_VECTOR_FEW_ROWS_H
#define ISO_KERNELS_VECTOR_FEW_ROWS_H

#include "kernels/tile.h"

enum { FEW_COLS = 4 }; /* rows of B at once */

/* n <= VL elements of k for `rows` rows of A and FEW_COLS rows of B, which begin at the elements `at`. */
VEC_INLINE void few_rows_step(const int rows, const iso_matrix *a, const iso_matrix *b, const int64_t at[FEW_COLS],
                              int64_t k, int n, vec sums[][FEW_COLS]) {
  vec right[FEW_COLS];
#pragma GCC unroll 4
  for (int i = 0; i < FEW_COLS; i++) right[i] = vec_load(b->data, b->dtype, at[i] + k, n);
#pragma GCC unroll 4
  for (int r = 0; r < rows; r++) {
    vec left = vec_load(a->data, a->dtype, r * a->ld + k, n);
#pragma GCC unroll 4
    for (int i = 0; i < FEW_COLS; i++) sums[r][i] = vec_fma(left, right[i], sums[r][i]);
  }
}

/* c[0 .. rows)[j .. j + count) of the product. */
VEC_INLINE void few_rows_block(const int rows, const iso_gemm_args *args, iso_dtype dtype, int64_t j, int count) {
  iso_matrix a = args->a, b = args->b, c = args->c;
  a.dtype = b.dtype = dtype; /* known where this is inlined */
  vec sums[ISO_FEW_ROWS][FEW_COLS];
#pragma GCC unroll 4
  for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
    for (int i = 0; i < FEW_COLS; i++) sums[r][i] = vec_set(0.0f);
  int64_t at[FEW_COLS], k = 0; /* columns beyond the matrix repeat the last one */
  for (int i = 0; i < FEW_COLS; i++) at[i] = (j + (i < count ? i : count - 1)) * b.ld;
  for (; k + VL <= a.cols; k += VL) few_rows_step(rows, &a, &b, at, k, VL, sums);
  if (k < a.cols) few_rows_step(rows, &a, &b, at, k, (int)(a.cols - k), sums);
  for (int r = 0; r < rows; r++) {
    float line[VL] = {0};
    for (int i = 0; i < count; i++) line[i] = vec_sum(sums[r][i]);
    vec x = vec_load(line, ISO_F32, 0, VL);
    if (args->bias) x = vec_add(x, vec_load(args->bias, ISO_F32, j, count));
    if (args->accumulate) x = vec_add(vec_load(c.data, ISO_F32, r * c.ld + j, count), x);
    vec_store(c.data, c.dtype, r * c.ld + j, count, x);
  }
}

VEC_INLINE void few_rows_part(const int rows, const iso_gemm_args *args, int64_t j, int64_t end) {
  for (; j < end; j += FEW_COLS) {
    int count = end - j < FEW_COLS ? (int)(end - j) : FEW_COLS;
    if (args->a.dtype == ISO_BF16)
      few_rows_block(rows, args, ISO_BF16, j, count);
    else
      few_rows_block(rows, args, ISO_F32, j, count);
  }
}

static void few_rows(const iso_gemm_args *args, const iso_worker *worker) {
  int64_t j, end;
  iso_split(args->c.cols, 64, worker, &j, &end);
  switch (args->c.rows) {
  case 1:
    few_rows_part(1, args, j, end);
    break;
  case 2:
    few_rows_part(2, args, j, end);
    break;
  case 3:
    few_rows_part(3, args, j, end);
    break;
  case 4:
    few_rows_part(4, args, j, end);
    break;
  default: /* no rows */
    break;
  }
}

#endif
