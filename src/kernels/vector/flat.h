/* SPDX-License-Identifier: Apache-2.0
 *
 * flat.h: kernels of the flat state, over a tier's vec.h (included before).
 *
 * Invariants
 *  1. All three have the bits of the plain-C forms (scalar/flat.c), in every tier: float32 +, -, *, / and sqrt in the
 *     same order, never fused.
 *  2. squares[b]: element i of the block goes to float64 lane i mod ISO_SQUARE_LANES; then lane l takes in lane l + 8,
 *     l + 4, l + 2, l + 1. A float32 squared is exact in float64, so fusing changes nothing there.
 */
#ifndef ISO_KERNELS_VECTOR_FLAT_H
#define ISO_KERNELS_VECTOR_FLAT_H

static void flat_add(const iso_flat_add_args *args, const iso_worker *worker) {
  int64_t i, end;
  iso_split(args->end - args->begin, ISO_COLUMN_GRAIN, worker, &i, &end);
  float *dst = args->dst + args->begin;
  const float *src = args->src + args->begin;
  for (; i + VL <= end; i += VL)
    vec_store(dst, ISO_F32, i, VL, vec_add(vec_load(dst, ISO_F32, i, VL), vec_load(src, ISO_F32, i, VL)));
  int n = (int)(end - i);
  if (n > 0) vec_store(dst, ISO_F32, i, n, vec_add(vec_load(dst, ISO_F32, i, n), vec_load(src, ISO_F32, i, n)));
}

#define SQUARE_VECTORS (ISO_SQUARE_LANES / VL)

VEC_INLINE void grad_round_step(const iso_grad_round_args *args, iso_dtype dtype, vec count, vecd sums[], int64_t i,
                                int n) {
  vec value = vec_first(vec_div(vec_load(args->sum, ISO_F32, i, n), count), vec_set(0), n);
  if (dtype == ISO_BF16) value = vec_round_bf16(value);
  vec_store(args->reduced, dtype, i, n, value);
  vecd low = vecd_low(value), high = vecd_high(value);
  sums[0] = vecd_fma(low, low, sums[0]);
  sums[1] = vecd_fma(high, high, sums[1]);
}

VEC_INLINE double grad_round_block(const iso_grad_round_args *args, iso_dtype dtype, int64_t i, int64_t end) {
  vec count = vec_set(args->count);
  vecd sums[2 * SQUARE_VECTORS];
  for (int k = 0; k < 2 * SQUARE_VECTORS; k++) sums[k] = vecd_zero();
  for (; i + ISO_SQUARE_LANES <= end; i += ISO_SQUARE_LANES)
    for (int k = 0; k < SQUARE_VECTORS; k++) grad_round_step(args, dtype, count, sums + 2 * k, i + k * VL, VL);
  for (int k = 0; k < SQUARE_VECTORS && i < end; k++, i += VL)
    grad_round_step(args, dtype, count, sums + 2 * k, i, end - i < VL ? (int)(end - i) : VL);
  for (int half = SQUARE_VECTORS; half > 0; half /= 2)
    for (int k = 0; k < half; k++) sums[k] = vecd_add(sums[k], sums[k + half]);
  return vecd_sum(sums[0]);
}

static void grad_round(const iso_grad_round_args *args, const iso_worker *worker) {
  int64_t block, block_end;
  iso_split((args->end - args->begin + ISO_NORM_BLOCK - 1) / ISO_NORM_BLOCK, 1, worker, &block, &block_end);
  for (; block < block_end; block++) {
    int64_t first = args->begin + block * ISO_NORM_BLOCK;
    int64_t last = first + ISO_NORM_BLOCK < args->end ? first + ISO_NORM_BLOCK : args->end;
    args->squares[first / ISO_NORM_BLOCK] = args->reduced_type == ISO_F32
                                                ? grad_round_block(args, ISO_F32, first, last)
                                                : grad_round_block(args, ISO_BF16, first, last);
  }
}

/* What adamw computes once for all elements. */
typedef struct adamw_rates {
  vec beta1, beta2, keep1, keep2, decay, rate, root_bias2, eps, clip;
} adamw_rates;

VEC_INLINE void adamw_step(const iso_adamw_args *args, const adamw_rates *rates, iso_dtype dtype, bool decay, int64_t i,
                           int n) {
  vec g = vec_mul(vec_load(args->reduced, dtype, i, n), rates->clip);
  vec w = vec_load(args->master, ISO_F32, i, n);
  if (decay) w = vec_sub(w, vec_mul(rates->decay, w));
  vec m = vec_load(args->moment1, ISO_F32, i, n), v = vec_load(args->moment2, ISO_F32, i, n);
  m = vec_add(vec_mul(rates->beta1, m), vec_mul(rates->keep1, g));
  v = vec_add(vec_mul(rates->beta2, v), vec_mul(rates->keep2, vec_mul(g, g)));
  vec scale = vec_add(vec_div(vec_sqrt(v), rates->root_bias2), rates->eps);
  w = vec_sub(w, vec_div(vec_mul(rates->rate, m), scale));
  vec_store(args->moment1, ISO_F32, i, n, m);
  vec_store(args->moment2, ISO_F32, i, n, v);
  vec_store(args->master, ISO_F32, i, n, w);
  if (args->compute) vec_store(args->compute, ISO_BF16, i, n, w);
}

VEC_INLINE void adamw_range(const iso_adamw_args *args, const adamw_rates *rates, iso_dtype dtype, bool decay,
                            int64_t i, int64_t end) {
  for (; i + VL <= end; i += VL) adamw_step(args, rates, dtype, decay, i, VL);
  if (i < end) adamw_step(args, rates, dtype, decay, i, (int)(end - i));
}

static void adamw(const iso_adamw_args *args, const iso_worker *worker) {
  if (args->refused) return;
  const adamw_rates rates = {
      .beta1 = vec_set(args->beta1),
      .beta2 = vec_set(args->beta2),
      .keep1 = vec_set(1.0f - args->beta1),
      .keep2 = vec_set(1.0f - args->beta2),
      .decay = vec_set(args->lr * args->weight_decay),
      .rate = vec_set(args->lr / args->bias1),
      .root_bias2 = vec_set(__builtin_sqrtf(args->bias2)),
      .eps = vec_set(args->eps),
      .clip = vec_set(args->clip),
  };
  iso_adamw_piece piece;
  for (iso_adamw_piece_first(args, worker, &piece); piece.begin < piece.limit; iso_adamw_piece_next(args, &piece)) {
    if (args->reduced_type == ISO_F32)
      adamw_range(args, &rates, ISO_F32, piece.decay, piece.begin, piece.end);
    else
      adamw_range(args, &rates, ISO_BF16, piece.decay, piece.begin, piece.end);
  }
}

#endif
