/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.h: embedding, add, cast and column_sum, over a tier's vec.h and math.h (included before).
 *
 * Invariants
 *  1. embedding_grad: a thread owns columns and adds tokens in the order of their positions.
 *  2. column_sum: a thread owns columns; ISO_COLUMN_SUM_BLOCK rows in order in float32, such sums in order in float64.
 */
#ifndef ISO_KERNELS_VECTOR_ROWS_H
#define ISO_KERNELS_VECTOR_ROWS_H

#include <string.h>

/* ---- add, cast ---- */

VEC_INLINE void cast_span(const void *x, iso_dtype x_type, void *y, iso_dtype y_type, int64_t count) {
  int64_t i = 0;
  for (; i + VL <= count; i += VL) vec_store(y, y_type, i, VL, vec_load(x, x_type, i, VL));
  if (i < count) vec_store(y, y_type, i, (int)(count - i), vec_load(x, x_type, i, (int)(count - i)));
}

static void cast(const iso_cast_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->y, &args->x};
  iso_row_part part = iso_row_part_of(all, 2, worker);
  for (int64_t row = part.row; row < part.row_end; row++) {
    const void *x = iso_matrix_at(&args->x, row, part.column);
    void *y = iso_matrix_at(&args->y, row, part.column);
    cast_span(x, args->x.dtype, y, args->y.dtype, part.count);
  }
}

VEC_INLINE void add_step(const void *a, const void *b, void *y, const iso_dtype types[3], int64_t i, int n) {
  vec_store(y, types[2], i, n, vec_add(vec_load(a, types[0], i, n), vec_load(b, types[1], i, n)));
}

VEC_INLINE void add_span(const void *a, const void *b, void *y, const iso_dtype types[3], int64_t count) {
  int64_t i = 0;
  for (; i + VL <= count; i += VL) add_step(a, b, y, types, i, VL);
  if (i < count) add_step(a, b, y, types, i, (int)(count - i));
}

static void add(const iso_add_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->y, &args->a, &args->b};
  const iso_dtype types[3] = {args->a.dtype, args->b.dtype, args->y.dtype};
  static const iso_dtype floats[3] = {ISO_F32, ISO_F32, ISO_F32};
  bool plain = types[0] == ISO_F32 && types[1] == ISO_F32 && types[2] == ISO_F32;
  iso_row_part part = iso_row_part_of(all, 3, worker);
  for (int64_t row = part.row; row < part.row_end; row++) {
    const void *a = iso_matrix_at(&args->a, row, part.column), *b = iso_matrix_at(&args->b, row, part.column);
    void *y = iso_matrix_at(&args->y, row, part.column);
    if (plain)
      add_span(a, b, y, floats, part.count);
    else
      add_span(a, b, y, types, part.count);
  }
}

/* ---- embedding ---- */

static void embedding(const iso_embedding_args *args, const iso_worker *worker) {
  int64_t begin, end;
  iso_split(args->y.rows, 1, worker, &begin, &end);
  for (int64_t row = begin; row < end; row++) {
    const void *from = iso_matrix_at(&args->table, args->ids[row], 0);
    cast_span(from, ISO_F32, iso_matrix_at(&args->y, row, 0), args->y.dtype, args->y.cols);
  }
}

static void embedding_grad(const iso_embedding_grad_args *args, const iso_worker *worker) {
  int64_t begin, end;
  iso_split(args->dtable.cols, ISO_COLUMN_GRAIN, worker, &begin, &end);
  if (begin == end) return;
  if (!args->accumulate)
    for (int64_t row = 0; row < args->dtable.rows; row++)
      memset(iso_matrix_at(&args->dtable, row, begin), 0, (size_t)(end - begin) * sizeof(float));
  const iso_dtype types[3] = {ISO_F32, args->dy.dtype, ISO_F32};
  for (int64_t row = 0; row < args->dy.rows; row++) {
    void *sum = iso_matrix_at(&args->dtable, args->ids[row], begin);
    add_span(sum, iso_matrix_at(&args->dy, row, begin), sum, types, end - begin);
  }
}

/* ---- column_sum ---- */

enum {
  COLUMN_STRIP = 1024, /* columns at a time: their sums stay in the inner cache, and rows are read in long pieces */
  COLUMN_ROWS = 4      /* rows that a sum takes in while it is in a register */
};

/* sums[i, i + n) += row by row of x, whose rows lie `row_bytes` apart. */
VEC_INLINE void column_step(const char *x, iso_dtype dtype, int64_t row_bytes, int rows, float *sums, int64_t i,
                            int n) {
  vec sum = vec_load(sums, ISO_F32, i, VL);
  for (int r = 0; r < rows; r++) sum = vec_add(sum, vec_load(x + r * row_bytes, dtype, i, n));
  vec_store(sums, ISO_F32, i, VL, sum);
}

VEC_INLINE void column_rows(const char *x, iso_dtype dtype, int64_t row_bytes, int rows, float *sums, int64_t count) {
  int64_t i = 0;
  for (; i + VL <= count; i += VL) column_step(x, dtype, row_bytes, rows, sums, i, VL);
  if (i < count) column_step(x, dtype, row_bytes, rows, sums, i, (int)(count - i));
}

/* out[j, j + count), count <= COLUMN_STRIP. */
VEC_INLINE void column_strip(const iso_column_sum_args *args, iso_dtype dtype, int64_t j, int64_t count) {
  float sums[COLUMN_STRIP];
  vecd totals[COLUMN_STRIP / VL][2];
  const int64_t vectors = (count + VL - 1) / VL, row_bytes = args->x.ld * (int64_t)iso_dtype_size(dtype);
  for (int64_t v = 0; v < vectors; v++) totals[v][0] = totals[v][1] = vecd_zero();
  for (int64_t row = 0; row < args->x.rows; row += ISO_COLUMN_SUM_BLOCK) {
    const int64_t end = row + ISO_COLUMN_SUM_BLOCK < args->x.rows ? row + ISO_COLUMN_SUM_BLOCK : args->x.rows;
    const char *x = iso_matrix_at(&args->x, row, j);
    int64_t at = row;
    for (int64_t v = 0; v < vectors; v++) vec_store(sums, ISO_F32, v * VL, VL, vec_set(0));
    for (; at + COLUMN_ROWS <= end; at += COLUMN_ROWS, x += COLUMN_ROWS * row_bytes)
      column_rows(x, dtype, row_bytes, COLUMN_ROWS, sums, count);
    for (; at < end; at++, x += row_bytes) column_rows(x, dtype, row_bytes, 1, sums, count);
    for (int64_t v = 0; v < vectors; v++) {
      const vec sum = vec_load(sums, ISO_F32, v * VL, VL);
      totals[v][0] = vecd_add(totals[v][0], vecd_low(sum));
      totals[v][1] = vecd_add(totals[v][1], vecd_high(sum));
    }
  }
  for (int64_t v = 0; v < vectors; v++) {
    const int n = count - v * VL < VL ? (int)(count - v * VL) : VL;
    vec sum = vec_from_double(totals[v][0], totals[v][1]);
    if (args->accumulate) sum = vec_add(vec_load(args->out, ISO_F32, j + v * VL, n), sum);
    vec_store(args->out, ISO_F32, j + v * VL, n, sum);
  }
}

static void column_sum(const iso_column_sum_args *args, const iso_worker *worker) {
  int64_t j, end;
  iso_split(args->x.cols, ISO_COLUMN_GRAIN, worker, &j, &end);
  for (; j < end; j += COLUMN_STRIP) {
    const int64_t count = end - j < COLUMN_STRIP ? end - j : COLUMN_STRIP;
    if (args->x.dtype == ISO_F32)
      column_strip(args, ISO_F32, j, count);
    else
      column_strip(args, ISO_BF16, j, count);
  }
}

#endif
