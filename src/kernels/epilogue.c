/* SPDX-License-Identifier: Apache-2.0
 *
 * Products whose result goes through a row kernel part by part, as gemm completes it: the part is still in the cache of
 * the thread that made it, and the team does not meet in between. Written over the kernel table, so every tier has it.
 *
 * Invariants
 *  1. The bits are those of the product, then the row kernel over all of it: row kernels give an element (RMSNorm: a
 *     head) the same bits wherever it stands.
 *  2. Each call touches only rows and columns that are its own.
 */
#include "kernels/rows.h"

static const iso_worker alone = {.threads = 1};

static iso_matrix part_of(const iso_matrix *m, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  return (iso_matrix){iso_matrix_at(m, row, col), rows, cols, m->ld, m->dtype};
}

static void multiply_with(const iso_kernels *kernels, const iso_gemm_args *product, const iso_epilogue *epilogue,
                          const iso_worker *worker) {
  iso_gemm_args args = *product;
  args.epilogue = epilogue;
  kernels->gemm(&args, worker);
}

typedef struct swiglu_epilogue {
  iso_epilogue base;
  const iso_kernels *kernels;
  const iso_linear_swiglu_args *args;
} swiglu_epilogue;

static void swiglu_part(const iso_epilogue *base, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  const swiglu_epilogue *self = (const swiglu_epilogue *)base;
  const iso_linear_swiglu_args *args = self->args;
  const iso_matrix *c = &args->product.c;
  const iso_swiglu_args part = {part_of(c, row, rows, col, cols), part_of(c, row, rows, args->y.cols + col, cols),
                                part_of(&args->y, row, rows, col, cols)};
  self->kernels->swiglu(&part, &alone);
}

void iso_linear_swiglu(const iso_kernels *kernels, const iso_linear_swiglu_args *args, const iso_worker *worker) {
  const swiglu_epilogue epilogue = {{swiglu_part, 1, true, args->y.cols}, kernels, args};
  multiply_with(kernels, &args->product, &epilogue.base, worker);
}

typedef struct gelu_epilogue {
  iso_epilogue base;
  const iso_kernels *kernels;
  const iso_linear_gelu_args *args;
} gelu_epilogue;

static void gelu_part(const iso_epilogue *base, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  const gelu_epilogue *self = (const gelu_epilogue *)base;
  const iso_linear_gelu_args *args = self->args;
  const iso_gelu_args part = {part_of(&args->product.c, row, rows, col, cols), part_of(&args->y, row, rows, col, cols),
                              args->form};
  self->kernels->gelu(&part, &alone);
}

void iso_linear_gelu(const iso_kernels *kernels, const iso_linear_gelu_args *args, const iso_worker *worker) {
  const gelu_epilogue epilogue = {{gelu_part, 1, false, args->y.cols}, kernels, args};
  multiply_with(kernels, &args->product, &epilogue.base, worker);
}

typedef struct rope_epilogue {
  iso_epilogue base;
  const iso_kernels *kernels;
  const iso_linear_rope_args *args;
} rope_epilogue;

static int64_t lesser(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

/* Of columns [col, col + cols) of C those that belong to `y`, whose first one is column `first` of C. */
static void norm_rope_part(const rope_epilogue *self, int64_t row, int64_t rows, int64_t col, int64_t cols,
                           int64_t first, const iso_matrix *y, const float *weight, float *rstd) {
  const iso_linear_rope_args *args = self->args;
  const int64_t begin = larger(col, first), end = lesser(col + cols, first + y->cols), head = args->rope.head_dim;
  if (begin >= end) return;
  const iso_matrix part = part_of(y, row, rows, begin - first, end - begin);
  const iso_norm_args norm = {.x = part_of(&args->product.c, row, rows, begin, end - begin),
                              .y = part,
                              .weight = weight,
                              .width = head,
                              .eps = args->eps,
                              .rstd = rstd ? rstd + row * (y->cols / head) + (begin - first) / head : NULL,
                              .stats_ld = y->cols / head};
  iso_rope_args rope = args->rope;
  rope.x = rope.y = part;
  rope.positions += row;
  self->kernels->norm(&norm, &alone);
  self->kernels->rope(&rope, &alone);
}

static void rope_part(const iso_epilogue *base, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  const rope_epilogue *self = (const rope_epilogue *)base;
  const iso_linear_rope_args *args = self->args;
  if (args->q.data) {
    norm_rope_part(self, row, rows, col, cols, 0, &args->q, args->q_weight, args->q_rstd);
    norm_rope_part(self, row, rows, col, cols, args->q.cols, &args->k, args->k_weight, args->k_rstd);
    return;
  }
  const int64_t end = lesser(col + cols, args->rotated);
  if (col >= end) return;
  iso_rope_args rope = args->rope;
  rope.x = rope.y = part_of(&args->product.c, row, rows, col, end - col);
  rope.positions += row;
  self->kernels->rope(&rope, &alone);
}

void iso_linear_rope(const iso_kernels *kernels, const iso_linear_rope_args *args, const iso_worker *worker) {
  const rope_epilogue epilogue = {{rope_part, args->rope.head_dim, false, args->rotated}, kernels, args};
  multiply_with(kernels, &args->product, &epilogue.base, worker);
}
