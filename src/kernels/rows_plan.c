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

/* Cuts the piece that begins at piece->begin. Ranges are sorted and disjoint, so the cursor only moves forward. */
static void cut_piece(const iso_adamw_args *args, iso_adamw_piece *piece) {
  const int64_t *ranges = args->decay_ranges;
  while (piece->range < args->decay_count && ranges[2 * piece->range + 1] <= piece->begin) piece->range++;
  piece->decay = piece->range < args->decay_count && ranges[2 * piece->range] <= piece->begin;
  piece->end = piece->limit;
  if (piece->range == args->decay_count) return;
  int64_t border = ranges[2 * piece->range + (piece->decay ? 1 : 0)];
  if (border < piece->limit) piece->end = border;
}

void iso_adamw_piece_first(const iso_adamw_args *args, const iso_worker *worker, iso_adamw_piece *piece) {
  int64_t begin, end;
  iso_split(args->end - args->begin, ISO_COLUMN_GRAIN, worker, &begin, &end);
  *piece = (iso_adamw_piece){.begin = args->begin + begin, .limit = args->begin + end};
  cut_piece(args, piece);
}

void iso_adamw_piece_next(const iso_adamw_args *args, iso_adamw_piece *piece) {
  piece->begin = piece->end;
  cut_piece(args, piece);
}
