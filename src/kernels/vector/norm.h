/* SPDX-License-Identifier: Apache-2.0
 *
 * norm.h: RMSNorm, LayerNorm and their gradients, over a tier's vec.h (included before).
 *
 * With n = (x - mean) * rstd (mean = 0 for RMSNorm), g = dy * w, and < > the mean over the D elements of a group:
 *   RMSNorm    dx = rstd * (g - n <g n>)
 *   LayerNorm  dx = rstd * (g - <g> - n <g n>)
 *   dweight = sum over groups of dy * n,  dbias = sum over groups of dy.
 *
 * Invariants
 *  1. A sum over a group: vector k of the group goes to accumulator k mod 4 (those of the last, incomplete four to
 *     accumulator 0), accumulators are added as (0 + 1) + (2 + 3), lanes folded by halves.
 *  2. dweight, dbias: ISO_NORM_GRAD_BLOCK groups in order in float32, into scratch; then the blocks in order in
 * float64. A block belongs to one thread, and so does a column of the second sum.
 *  3. dx may have the storage of dy or x: a group is read before it is written.
 */
#ifndef ISO_KERNELS_VECTOR_NORM_H
#define ISO_KERNELS_VECTOR_NORM_H

/* What differs between the instances of the bodies below. Constant where a caller wants a specialised loop. */
typedef struct norm_types {
  iso_dtype x, y, dx; /* y: y of the forward pass, dy of the backward pass */
  bool layer, skip;   /* skip: dx is added to something (fused.h) */
} norm_types;

VEC_INLINE vec lanes4(const vec sums[4]) {
  return vec_add(vec_add(sums[0], sums[1]), vec_add(sums[2], sums[3]));
}

VEC_INLINE float norm_sum(const void *x, iso_dtype dtype, int64_t width) {
  vec sums[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
  int64_t i = 0;
  for (; i + 4 * VL <= width; i += 4 * VL)
    for (int k = 0; k < 4; k++) sums[k] = vec_add(sums[k], vec_load(x, dtype, i + k * VL, VL));
  for (; i + VL <= width; i += VL) sums[0] = vec_add(sums[0], vec_load(x, dtype, i, VL));
  if (i < width) sums[0] = vec_add(sums[0], vec_load(x, dtype, i, (int)(width - i)));
  return vec_sum(lanes4(sums));
}

VEC_INLINE vec norm_add_square(vec sum, const void *x, iso_dtype dtype, vec mean, int64_t i, int n) {
  vec centred = vec_first(vec_sub(vec_load(x, dtype, i, n), mean), vec_set(0), n);
  return vec_fma(centred, centred, sum);
}

/* Sum of (x - mean)^2. */
VEC_INLINE float norm_squares(const void *x, iso_dtype dtype, float mean, int64_t width) {
  vec sums[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)}, centre = vec_set(mean);
  int64_t i = 0;
  for (; i + 4 * VL <= width; i += 4 * VL)
    for (int k = 0; k < 4; k++) sums[k] = norm_add_square(sums[k], x, dtype, centre, i + k * VL, VL);
  for (; i + VL <= width; i += VL) sums[0] = norm_add_square(sums[0], x, dtype, centre, i, VL);
  if (i < width) sums[0] = norm_add_square(sums[0], x, dtype, centre, i, (int)(width - i));
  return vec_sum(lanes4(sums));
}

VEC_INLINE void norm_step(const iso_norm_args *args, const void *x, void *y, norm_types types, vec mean, vec rstd,
                          int64_t i, int n) {
  vec value = vec_load(x, types.x, i, n);
  if (types.layer) value = vec_sub(value, mean);
  value = vec_mul(vec_mul(value, rstd), vec_load(args->weight, ISO_F32, i, n));
  if (args->bias) value = vec_add(value, vec_load(args->bias, ISO_F32, i, n));
  vec_store(y, types.y, i, n, value);
}

/* A group with statistic `at`, when its first sum is known: of x for LayerNorm, of x^2 for RMSNorm. */
VEC_INLINE void norm_group_with(const iso_norm_args *args, int64_t at, const void *x, void *y, norm_types types,
                                float first) {
  int64_t width = args->width, i = 0;
  float mean = types.layer ? first / (float)width : 0;
  float variance = (types.layer ? norm_squares(x, types.x, mean, width) : first) / (float)width;
  float rstd = 1.0f / __builtin_sqrtf(variance + args->eps);
  vec means = vec_set(mean), rstds = vec_set(rstd);
  for (; i + VL <= width; i += VL) norm_step(args, x, y, types, means, rstds, i, VL);
  if (i < width) norm_step(args, x, y, types, means, rstds, i, (int)(width - i));
  if (args->rstd) args->rstd[at] = rstd;
  if (types.layer && args->mean) args->mean[at] = mean;
}

VEC_INLINE void norm_rows(const iso_norm_args *args, int64_t begin, int64_t end, norm_types types) {
  int64_t width = args->width, groups = args->x.cols / width, each = args->stats_ld ? args->stats_ld : groups;
  for (int64_t row = begin; row < end; row++)
    for (int64_t group = 0; group < groups; group++) {
      const void *x = iso_matrix_at(&args->x, row, group * width);
      void *y = iso_matrix_at(&args->y, row, group * width);
      norm_group_with(args, row * each + group, x, y, types,
                      types.layer ? norm_sum(x, types.x, width) : norm_squares(x, types.x, 0, width));
    }
}

static void norm(const iso_norm_args *args, const iso_worker *worker) {
  if (args->width <= 0) return;
  int64_t begin, end;
  iso_split(args->x.rows, 1, worker, &begin, &end);
  iso_dtype x = args->x.dtype, y = args->y.dtype;
  if (x == ISO_F32 && y == ISO_F32)
    norm_rows(args, begin, end, (norm_types){ISO_F32, ISO_F32, ISO_F32, args->layer, false});
  else if (x == ISO_BF16 && y == ISO_BF16)
    norm_rows(args, begin, end, (norm_types){ISO_BF16, ISO_BF16, ISO_BF16, args->layer, false});
  else
    norm_rows(args, begin, end, (norm_types){x, y, x, args->layer, false});
}

/* One group of the backward pass: pointers to its elements and its statistics. */
typedef struct norm_group {
  const void *x, *dy, *skip;
  void *dx, *copy;        /* copy: dx in bfloat16, or NULL; only with skip */
  float *dweight, *dbias; /* partial sums of the block, in scratch */
  vec mean, rstd;
} norm_group;

VEC_INLINE void norm_grad_add(const iso_norm_grad_args *args, const norm_group *group, norm_types types, vec *sum_g,
                              vec *sum_gn, int64_t i, int n) {
  vec dy = vec_load(group->dy, types.y, i, n), x = vec_load(group->x, types.x, i, n);
  vec normal = vec_mul(types.layer ? vec_sub(x, group->mean) : x, group->rstd);
  vec g = vec_mul(dy, vec_load(args->weight, ISO_F32, i, n)); /* zero in missing lanes */
  if (types.layer) *sum_g = vec_add(*sum_g, g);
  *sum_gn = vec_fma(g, normal, *sum_gn);
  vec_store(group->dweight, ISO_F32, i, n, vec_fma(dy, normal, vec_load(group->dweight, ISO_F32, i, n)));
  if (args->dbias) vec_store(group->dbias, ISO_F32, i, n, vec_add(dy, vec_load(group->dbias, ISO_F32, i, n)));
}

VEC_INLINE void norm_grad_step(const iso_norm_grad_args *args, const norm_group *group, norm_types types, vec mean_g,
                               vec mean_gn, int64_t i, int n) {
  vec dy = vec_load(group->dy, types.y, i, n), x = vec_load(group->x, types.x, i, n);
  vec normal = vec_mul(types.layer ? vec_sub(x, group->mean) : x, group->rstd);
  vec g = vec_mul(dy, vec_load(args->weight, ISO_F32, i, n));
  if (types.layer) g = vec_sub(g, mean_g);
  vec dx = vec_mul(group->rstd, vec_fnma(normal, mean_gn, g));
  if (types.skip) {
    dx = vec_add(vec_load(group->skip, ISO_F32, i, n), dx);
    if (group->copy) vec_store(group->copy, ISO_BF16, i, n, dx);
  }
  vec_store(group->dx, types.dx, i, n, dx);
}

VEC_INLINE void norm_grad_group(const iso_norm_grad_args *args, const norm_group *group, norm_types types) {
  int64_t width = args->width, i = 0;
  vec sum_g[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
  vec sum_gn[4] = {vec_set(0), vec_set(0), vec_set(0), vec_set(0)};
  for (; i + 4 * VL <= width; i += 4 * VL)
    for (int k = 0; k < 4; k++) norm_grad_add(args, group, types, &sum_g[k], &sum_gn[k], i + k * VL, VL);
  for (; i + VL <= width; i += VL) norm_grad_add(args, group, types, &sum_g[0], &sum_gn[0], i, VL);
  if (i < width) norm_grad_add(args, group, types, &sum_g[0], &sum_gn[0], i, (int)(width - i));
  vec mean_g = vec_set(vec_sum(lanes4(sum_g)) / (float)width);
  vec mean_gn = vec_set(vec_sum(lanes4(sum_gn)) / (float)width);
  for (i = 0; i + VL <= width; i += VL) norm_grad_step(args, group, types, mean_g, mean_gn, i, VL);
  if (i < width) norm_grad_step(args, group, types, mean_g, mean_gn, i, (int)(width - i));
}

/* Blocks [block, block_end): dx (where types say so plus skip, then also as `copy`), and the blocks' partial sums. */
VEC_INLINE void norm_grad_blocks(const iso_norm_grad_args *args, const iso_norm_grad_add_args *fused, float *partial,
                                 int64_t block, int64_t block_end, norm_types types) {
  int64_t width = args->width, groups = args->x.cols / width, count = args->x.rows * groups;
  for (; block < block_end; block++) {
    norm_group group = {.dweight = partial + block * 2 * width, .dbias = partial + (block * 2 + 1) * width};
    for (int64_t i = 0; i < 2 * width; i++) group.dweight[i] = 0;
    int64_t last = (block + 1) * ISO_NORM_GRAD_BLOCK;
    for (int64_t at = block * ISO_NORM_GRAD_BLOCK; at < last && at < count; at++) {
      int64_t row = at / groups, column = at % groups * width;
      group.x = iso_matrix_at(&args->x, row, column);
      group.dy = iso_matrix_at(&args->dy, row, column);
      group.dx = iso_matrix_at(&args->dx, row, column);
      if (types.skip) {
        group.skip = iso_matrix_at(&fused->skip, row, column);
        if (fused->copy.data) group.copy = iso_matrix_at(&fused->copy, row, column);
      }
      group.mean = vec_set(types.layer ? args->mean[at] : 0);
      group.rstd = vec_set(args->rstd[at]);
      norm_grad_group(args, &group, types);
    }
  }
}

/* out[i, i + n) (+)= the blocks' partial sums, in order. */
VEC_INLINE void norm_grad_reduce(const float *partial, int64_t blocks, int64_t stride, float *out, bool accumulate,
                                 int64_t i, int n) {
  vecd low = vecd_zero(), high = vecd_zero();
  for (int64_t block = 0; block < blocks; block++) {
    vec part = vec_load(partial + block * stride, ISO_F32, i, n);
    low = vecd_add(low, vecd_low(part));
    high = vecd_add(high, vecd_high(part));
  }
  vec sum = vec_from_double(low, high);
  if (accumulate) sum = vec_add(vec_load(out, ISO_F32, i, n), sum);
  vec_store(out, ISO_F32, i, n, sum);
}

/* After norm_grad_blocks on all threads: dweight and dbias. */
VEC_INLINE void norm_grad_finish(const iso_norm_grad_args *args, const float *partial, const iso_worker *worker) {
  int64_t width = args->width, blocks = iso_norm_grad_blocks(args->x.rows, args->x.cols, width), begin, end;
  iso_team_barrier(worker->team);
  iso_split(width, ISO_COLUMN_GRAIN, worker, &begin, &end);
  for (int64_t i = begin; i < end; i += VL) {
    int n = end - i < VL ? (int)(end - i) : VL;
    norm_grad_reduce(partial, blocks, 2 * width, args->dweight, args->accumulate, i, n);
    if (args->dbias) norm_grad_reduce(partial + width, blocks, 2 * width, args->dbias, args->accumulate, i, n);
  }
}

static void norm_grad(const iso_norm_grad_args *args, const iso_worker *worker) {
  if (args->width <= 0) return;
  int64_t begin, end;
  float *partial = worker->scratch;
  iso_split(iso_norm_grad_blocks(args->x.rows, args->x.cols, args->width), 1, worker, &begin, &end);
  iso_dtype x = args->x.dtype, dy = args->dy.dtype, dx = args->dx.dtype;
  if (x == ISO_F32 && dy == ISO_F32 && dx == ISO_F32)
    norm_grad_blocks(args, NULL, partial, begin, end, (norm_types){ISO_F32, ISO_F32, ISO_F32, args->layer, false});
  else if (x == ISO_BF16 && dy == ISO_BF16 && dx == ISO_BF16)
    norm_grad_blocks(args, NULL, partial, begin, end, (norm_types){ISO_BF16, ISO_BF16, ISO_BF16, args->layer, false});
  else
    norm_grad_blocks(args, NULL, partial, begin, end, (norm_types){x, dy, dx, args->layer, false});
  norm_grad_finish(args, partial, worker);
}

#endif
