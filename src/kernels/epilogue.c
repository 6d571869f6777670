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
  const swiglu_epilogue epilogue = {{swiglu_part, 1, true}, kernels, args};
  iso_gemm_args product = args->product;
  product.epilogue = &epilogue.base;
  kernels->gemm(&product, worker);
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
  const gelu_epilogue epilogue = {{gelu_part, 1, false}, kernels, args};
  iso_gemm_args product = args->product;
  product.epilogue = &epilogue.base;
  kernels->gemm(&product, worker);
}

typedef struct rope_epilogue {
  iso_epilogue base;
  const iso_kernels *kernels;
  const iso_linear_rope_args *args;
} rope_epilogue;

/* Norms of the heads in columns [col, end), which have one weight, row by row since statistics of a row lie together:
 * `first` is the column of the first head that has this weight, `width` columns have it. */
static void norm_heads(const rope_epilogue *self, int64_t row, int64_t rows, int64_t col, int64_t end, int64_t first,
                       int64_t width, const float *weight, float *rstd) {
  const iso_linear_rope_args *args = self->args;
  const int64_t head = args->rope.head_dim;
  for (int64_t i = row; i < row + rows && col < end; i++) {
    const iso_norm_args norm = {.x = part_of(&args->product.c, i, 1, col, end - col),
                                .y = part_of(&args->y, i, 1, col, end - col),
                                .weight = weight,
                                .width = head,
                                .eps = args->eps,
                                .rstd = rstd ? rstd + i * (width / head) + (col - first) / head : NULL};
    self->kernels->norm(&norm, &alone);
  }
}

static int64_t lesser(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
  return a > b ? a : b;
}

static void rope_part(const iso_epilogue *base, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  const rope_epilogue *self = (const rope_epilogue *)base;
  const iso_linear_rope_args *args = self->args;
  const int64_t end = lesser(col + cols, args->rotated), q = args->q_width;
  if (col >= end) return;
  const bool norms = args->y.data != NULL;
  if (norms) {
    norm_heads(self, row, rows, col, lesser(end, q), 0, q, args->q_weight, args->q_rstd);
    norm_heads(self, row, rows, larger(col, q), end, q, args->rotated - q, args->k_weight, args->k_rstd);
  }
  iso_rope_args rope = args->rope;
  rope.x = rope.y = part_of(norms ? &args->y : &args->product.c, row, rows, col, end - col);
  rope.positions += row;
  self->kernels->rope(&rope, &alone);
}

void iso_linear_rope(const iso_kernels *kernels, const iso_linear_rope_args *args, const iso_worker *worker) {
  const rope_epilogue epilogue = {{rope_part, args->rope.head_dim, false}, kernels, args};
  iso_gemm_args product = args->product;
  product.epilogue = &epilogue.base;
  kernels->gemm(&product, worker);
}
