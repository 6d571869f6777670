/* SPDX-License-Identifier: Apache-2.0
 *
 * softmax.h: softmax with cross-entropy in two steps, over a tier's vec.h and math.h (included before): exponentials of
 * a block of columns while its logits are in cache, each row relative to its own top in that block; then what brings
 * the blocks of a row together.
 *
 * Invariants
 *  1. Within a block vector k goes into accumulator k mod 4, the accumulators add up as (0 + 1) + (2 + 3), lanes fold
 * by halves, all in float32. A block's sum times exp(its top - the row's top) is rounded to float32; lane l of such
 *     vectors adds up in order in float64, then the lower half of the lanes + the upper one, folded by halves.
 *  2. A row with a NaN or +infinity has a NaN loss and gradient; -infinity is a probability of zero, also in a block
 *     that has nothing else. An exponential that is NaN may be stored as any number: its row's sum is NaN.
 */
#ifndef ISO_KERNELS_VECTOR_SOFTMAX_H
#define ISO_KERNELS_VECTOR_SOFTMAX_H

#include <string.h>

enum { SOFTMAX_VECTORS = ISO_SOFTMAX_BLOCK / VL };

VEC_INLINE float softmax_top(const float *z, int64_t columns) {
  const vec lowest = vec_set(-__builtin_inff());
  vec top = lowest;
  for (int64_t i = 0; i < columns; i += VL) {
    int n = columns - i < VL ? (int)(columns - i) : VL;
    top = vec_max(vec_first(vec_load(z, ISO_F32, i, n), lowest, n), top);
  }
  return vec_top(top);
}

/* What is subtracted before exponentials are taken: a top of -infinity would make NaNs of its own kind. */
VEC_INLINE vec softmax_origin(float top) {
  return vec_set(top == -__builtin_inff() ? 0.0f : top);
}

VEC_INLINE void softmax_part_row(const float *z, void *e, iso_dtype dtype, int64_t columns, float *top, float *sum) {
  vec sums[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
  *top = softmax_top(z, columns);
  const vec origin = softmax_origin(*top);
  for (int64_t i = 0; i < columns; i += VL) {
    int n = columns - i < VL ? (int)(columns - i) : VL;
    vec value = vec_exp_below(vec_sub(vec_load(z, ISO_F32, i, n), origin));
    if (e) vec_store_number(e, dtype, i, n, value);
    sums[i / VL % 4] = vec_add(sums[i / VL % 4], vec_first(value, vec_set(0), n));
  }
  *sum = vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
}

/* The same for a whole block. Its top comes from the caller, who asks for the next row's meanwhile: folding lanes takes
 * long, and nothing else can begin without it. */
VEC_INLINE float softmax_top_whole(const float *z) {
  vec tops[4];
  for (int k = 0; k < 4; k++) tops[k] = vec_max(vec_load(z, ISO_F32, k * VL, VL), vec_set(-__builtin_inff()));
#pragma GCC unroll 32
  for (int k = 4; k < SOFTMAX_VECTORS; k++) tops[k % 4] = vec_max(vec_load(z, ISO_F32, k * VL, VL), tops[k % 4]);
  return vec_top(vec_max(vec_max(tops[0], tops[1]), vec_max(tops[2], tops[3])));
}

VEC_INLINE void softmax_part_whole(const float *z, void *e, iso_dtype dtype, bool want, float top, float *sum) {
  const vec origin = softmax_origin(top);
  vec sums[4];
  for (int k = 0; k < 4; k++) sums[k] = vec_set(0);
#pragma GCC unroll 32
  for (int first = 0; first < SOFTMAX_VECTORS; first += VEC_STEP) {
    vec value[VEC_STEP];
    EACH(k, VEC_STEP) value[k] = vec_sub(vec_load(z, ISO_F32, (first + k) * VL, VL), origin);
    vec_exp_below_each(value, VEC_STEP);
    EACH(k, VEC_STEP) {
      if (want) vec_store_number(e, dtype, (first + k) * VL, VL, value[k]);
      sums[(first + k) % 4] = vec_add(sums[(first + k) % 4], value[k]);
    }
  }
  *sum = vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3])));
}

VEC_INLINE void softmax_part_rows(const iso_softmax_part_args *args, int64_t row, int64_t end, iso_dtype dtype,
                                  bool want) {
  float next = row < end ? softmax_top_whole(iso_matrix_at(&args->logits, row, 0)) : 0;
  for (; row < end; row++) {
    const float top = next;
    void *e = want ? iso_matrix_at(&args->exponentials, row, 0) : NULL;
    if (row + 1 < end) next = softmax_top_whole(iso_matrix_at(&args->logits, row + 1, 0));
    args->tops[row * args->blocks] = top;
    softmax_part_whole(iso_matrix_at(&args->logits, row, 0), e, dtype, want, top, args->sums + row * args->blocks);
  }
}

static void softmax_part(const iso_softmax_part_args *args, const iso_worker *worker) {
  const iso_matrix *z = &args->logits, *e = &args->exponentials;
  int64_t row, end;
  iso_split(z->rows, 1, worker, &row, &end);
  if (z->cols == ISO_SOFTMAX_BLOCK && !e->data) {
    softmax_part_rows(args, row, end, ISO_F32, false);
  } else if (z->cols == ISO_SOFTMAX_BLOCK && e->dtype == ISO_F32) {
    softmax_part_rows(args, row, end, ISO_F32, true);
  } else if (z->cols == ISO_SOFTMAX_BLOCK) {
    softmax_part_rows(args, row, end, ISO_BF16, true);
  } else {
    for (; row < end; row++)
      softmax_part_row(iso_matrix_at(z, row, 0), e->data ? iso_matrix_at(e, row, 0) : NULL, e->dtype, z->cols,
                       args->tops + row * args->blocks, args->sums + row * args->blocks);
  }
}

/* sums[b] becomes what brings block b to the row's top; the row's sum is returned. */
VEC_INLINE double softmax_join(const float *tops, float *sums, int64_t blocks, vec top) {
  vecd low = vecd_zero(), high = vecd_zero();
  for (int64_t i = 0; i < blocks; i += VL) {
    int n = blocks - i < VL ? (int)(blocks - i) : VL;
    vec factor = vec_exp_below(vec_sub(vec_load(tops, ISO_F32, i, n), top));
    vec sum = vec_first(vec_mul(vec_load(sums, ISO_F32, i, n), factor), vec_set(0), n);
    low = vecd_add(low, vecd_low(sum));
    high = vecd_add(high, vecd_high(sum));
    vec_store(sums, ISO_F32, i, n, factor);
  }
  return vecd_sum(vecd_add(low, high));
}

VEC_INLINE void softmax_scale(void *row, iso_dtype dtype, int64_t columns, const float *factors, float scale) {
  for (int64_t first = 0; first < columns; first += ISO_SOFTMAX_BLOCK) {
    const vec factor = vec_set(*factors++ * scale);
    int64_t last = columns - first < ISO_SOFTMAX_BLOCK ? columns : first + ISO_SOFTMAX_BLOCK, i = first;
    for (; i + VL <= last; i += VL) vec_store(row, dtype, i, VL, vec_mul(vec_load(row, dtype, i, VL), factor));
    if (i < last) vec_store(row, dtype, i, (int)(last - i), vec_mul(vec_load(row, dtype, i, (int)(last - i)), factor));
  }
}

static void softmax_finish_row(const iso_softmax_finish_args *args, int64_t row) {
  const iso_matrix *dz = &args->dlogits;
  const int64_t columns = dz->cols, blocks = (columns + ISO_SOFTMAX_BLOCK - 1) / ISO_SOFTMAX_BLOCK;
  const float *tops = args->tops + row * blocks;
  float *sums = args->sums + row * blocks;
  void *to = dz->data ? iso_matrix_at(dz, row, 0) : NULL;
  const int32_t label = args->labels[row];
  if (label < 0) {
    args->loss[row] = 0;
    if (to) memset(to, 0, (size_t)columns * iso_dtype_size(dz->dtype));
    return;
  }
  const float top = softmax_top(tops, blocks), at_label = args->at_label[row];
  const double sum = softmax_join(tops, sums, blocks, vec_set(top));
  args->loss[row] = (float)(iso_log(sum) + ((double)top - at_label));
  if (!to) return;
  const float scale = (float)(1.0 / sum);
  if (dz->dtype == ISO_F32)
    softmax_scale(to, ISO_F32, columns, sums, scale);
  else
    softmax_scale(to, ISO_BF16, columns, sums, scale);
  vec p = vec_mul(vec_exp_below(vec_sub(vec_set(at_label), vec_set(top))), vec_set(scale));
  vec_store(to, dz->dtype, label, 1, vec_sub(p, vec_set(1.0f)));
}

static void softmax_finish(const iso_softmax_finish_args *args, const iso_worker *worker) {
  int64_t row, end;
  iso_split(args->dlogits.rows, 1, worker, &row, &end);
  for (; row < end; row++) softmax_finish_row(args, row);
}

#endif
