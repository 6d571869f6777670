/* SPDX-License-Identifier: Apache-2.0
 *
 * fused.h: two row kernels in one pass, over a tier's vec.h and norm.h (included before). What the pair would send
 * through memory stays in the inner cache, and the team meets once less.
 *
 * Invariants
 *  1. The bits are those of the unfused ops: add, then norm; norm_grad with dx in float32, then add, then cast.
 *  2. The sum may have the storage of a or b, and dx that of skip: an element is read before it is written.
 */
#ifndef ISO_KERNELS_VECTOR_FUSED_H
#define ISO_KERNELS_VECTOR_FUSED_H

/* sum = a + b, elements [i, i + n); its share of the norm's first sum. */
VEC_INLINE vec add_norm_step(const void *a, iso_dtype a_type, const void *b, iso_dtype b_type, float *sum, bool layer,
                             vec total, int64_t i, int n) {
  vec x = vec_add(vec_load(a, a_type, i, n), vec_load(b, b_type, i, n)); /* zero in missing lanes */
  vec_store(sum, ISO_F32, i, n, x);
  return layer ? vec_add(total, x) : vec_fma(x, x, total);
}

/* Adds a group; what norm_sum (LayerNorm) or norm_squares (RMSNorm) would find in the sum, in the same order. */
VEC_INLINE float add_norm_first(const void *a, iso_dtype a_type, const void *b, iso_dtype b_type, float *sum,
                                bool layer, int64_t width) {
  vec totals[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
  int64_t i = 0;
  for (; i + 4 * VL <= width; i += 4 * VL)
    for (int k = 0; k < 4; k++) totals[k] = add_norm_step(a, a_type, b, b_type, sum, layer, totals[k], i + k * VL, VL);
  for (; i + VL <= width; i += VL) totals[0] = add_norm_step(a, a_type, b, b_type, sum, layer, totals[0], i, VL);
  if (i < width) totals[0] = add_norm_step(a, a_type, b, b_type, sum, layer, totals[0], i, (int)(width - i));
  return vec_sum(lanes4(totals));
}

VEC_INLINE void add_norm_rows(const iso_add_norm_args *args, int64_t begin, int64_t end, iso_dtype a_type,
                              iso_dtype b_type, norm_types types) {
  int64_t width = args->norm.width, groups = args->norm.x.cols / width;
  for (int64_t at = begin * groups; at < end * groups; at++) {
    int64_t row = at / groups, column = at % groups * width;
    const void *a = iso_matrix_at(&args->a, row, column), *b = iso_matrix_at(&args->b, row, column);
    float *sum = iso_matrix_at(&args->norm.x, row, column);
    float first = add_norm_first(a, a_type, b, b_type, sum, types.layer, width);
    norm_group_with(&args->norm, at, sum, iso_matrix_at(&args->norm.y, row, column), types, first);
  }
}

static void add_norm(const iso_add_norm_args *args, const iso_worker *worker) {
  if (args->norm.width <= 0) return;
  int64_t begin, end;
  iso_split(args->norm.x.rows, 1, worker, &begin, &end);
  const bool layer = args->norm.layer;
  iso_dtype a = args->a.dtype, b = args->b.dtype, y = args->norm.y.dtype;
  if (a == ISO_F32 && b == ISO_F32 && y == ISO_F32)
    add_norm_rows(args, begin, end, ISO_F32, ISO_F32, (norm_types){ISO_F32, ISO_F32, ISO_F32, layer, false});
  else if (a == ISO_F32 && b == ISO_BF16 && y == ISO_BF16)
    add_norm_rows(args, begin, end, ISO_F32, ISO_BF16, (norm_types){ISO_F32, ISO_BF16, ISO_F32, layer, false});
  else
    add_norm_rows(args, begin, end, a, b, (norm_types){ISO_F32, y, ISO_F32, layer, false});
}

static void norm_grad_add_all(const iso_norm_grad_add_args *args, const iso_worker *worker) {
  const iso_norm_grad_args *grad = &args->grad;
  if (grad->width <= 0) return;
  int64_t begin, end;
  float *partial = worker->scratch;
  iso_split(iso_norm_grad_blocks(grad->x.rows, grad->x.cols, grad->width), 1, worker, &begin, &end);
  iso_dtype x = grad->x.dtype, dy = grad->dy.dtype;
  if (x == ISO_F32 && dy == ISO_F32)
    norm_grad_blocks(grad, args, partial, begin, end, (norm_types){ISO_F32, ISO_F32, ISO_F32, grad->layer, true});
  else
    norm_grad_blocks(grad, args, partial, begin, end, (norm_types){x, dy, ISO_F32, grad->layer, true});
  norm_grad_finish(grad, partial, worker);
}

#endif
