/* SPDX-License-Identifier: Apache-2.0
 *
 * rows_plan.c: how row kernels cut their work, and the scratch they need. Pure functions of shapes and thread number.
 */
#include "kernels/rows.h"

static bool has_gaps(const iso_matrix *matrix) {
  return matrix->rows > 1 && matrix->ld != matrix->cols;
}

iso_row_part iso_row_part_of(const iso_matrix *const *matrices, int count, const iso_worker *worker) {
  int64_t rows = matrices[0]->rows, cols = matrices[0]->cols;
  iso_row_part part = {0, rows, 0, cols};
  bool gaps = false;
  for (int i = 0; i < count; i++) gaps = gaps || has_gaps(matrices[i]);
  if (gaps) {
    iso_split(rows, 1, worker, &part.row, &part.row_end);
    return part;
  }
  int64_t begin, end;
  iso_split(rows * cols, ISO_FLAT_GRAIN, worker, &begin, &end);
  part = (iso_row_part){0, end > begin ? 1 : 0, begin, end - begin};
  return part;
}

int64_t iso_norm_grad_blocks(int64_t rows, int64_t cols, int64_t width) {
  int64_t groups = width > 0 ? rows * (cols / width) : 0;
  return (groups + ISO_NORM_GRAD_BLOCK - 1) / ISO_NORM_GRAD_BLOCK;
}

/* Two float32 rows of D (dweight, dbias) for each block, whatever the number of threads. */
size_t iso_norm_grad_scratch(int64_t rows, int64_t cols, int64_t width, int threads) {
  (void)threads;
  return (size_t)(iso_norm_grad_blocks(rows, cols, width) * width) * 2 * sizeof(float);
}

/* Threads split columns, and a thread's sums stay in registers. */
size_t iso_column_sum_scratch(int64_t rows, int64_t cols, int threads) {
  (void)rows;
  (void)cols;
  (void)threads;
  return 0;
}
