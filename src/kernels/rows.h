/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.h: what the row kernels of all tiers agree on: how work is cut into parts and blocks, and how the files of a
 * tier folder register with that tier's overlay function. Private to src/kernels.
 *
 * Invariants
 *  1. Block sizes are constants: where a reduction is cut depends on shapes, never on the number of threads.
 *  2. Matrices without gaps between rows are one long row, so threads can share even a single row.
 */
#ifndef ISO_KERNELS_ROWS_H
#define ISO_KERNELS_ROWS_H

#include "kernels/kernels.h"

/* Threads share flat ranges and columns at multiples of this many elements (a cache line of float32, two of them here
 * would be one of bfloat16: elementwise kernels use the larger grain). */
#define ISO_COLUMN_GRAIN 16
#define ISO_FLAT_GRAIN   64
/* norm_grad sums dweight and dbias over this many groups of D elements in float32, then over such blocks in float64. */
#define ISO_NORM_GRAD_BLOCK 32
/* column_sum adds this many rows in float32, then such sums in float64. */
#define ISO_COLUMN_SUM_BLOCK 64
/* float64 partial sums of squares of a norm block: element i goes to lane i mod 16, in every tier. */
#define ISO_SQUARE_LANES 16

/* Address of element (row, column). */
static inline void *iso_matrix_at(const iso_matrix *matrix, int64_t row, int64_t column) {
  size_t size = matrix->dtype == ISO_F32 ? 4 : 2;
  return (char *)matrix->data + (size_t)(row * matrix->ld + column) * size;
}

/* The part of an elementwise kernel that one thread does: columns [column, column + count) of rows [row, row_end). */
typedef struct iso_row_part {
  int64_t row, row_end, column, count;
} iso_row_part;

/* ---- rows_plan.c ---- */
/* Cuts the common shape of `count` matrices: rows when one of them has gaps, else one long row. */
iso_row_part iso_row_part_of(const iso_matrix *const *matrices, int count, const iso_worker *worker);
/* Blocks of ISO_NORM_GRAD_BLOCK groups in a matrix of rows x cols. */
int64_t iso_norm_grad_blocks(int64_t rows, int64_t cols, int64_t width);

/* A run of elements [begin, end) of one thread's part of adamw, all inside one decay range or all outside. The thread's
 * part ends at `limit`; it is done when begin = limit. */
typedef struct iso_adamw_piece {
  int64_t begin, end, limit, range;
  bool decay;
} iso_adamw_piece;
void iso_adamw_piece_first(const iso_adamw_args *args, const iso_worker *worker, iso_adamw_piece *piece);
void iso_adamw_piece_next(const iso_adamw_args *args, iso_adamw_piece *piece);

/* ---- the files of a tier folder; called by iso_overlay_<tier>_rows ---- */
void iso_overlay_scalar_norm(iso_kernels *table);
void iso_overlay_scalar_activation(iso_kernels *table);
void iso_overlay_scalar_embedding(iso_kernels *table);
void iso_overlay_scalar_softmax(iso_kernels *table);
void iso_overlay_avx2_norm(iso_kernels *table);
void iso_overlay_avx2_activation(iso_kernels *table);
void iso_overlay_avx512_norm(iso_kernels *table);
void iso_overlay_avx512_activation(iso_kernels *table);

#endif
