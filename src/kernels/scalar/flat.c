/* SPDX-License-Identifier: Apache-2.0
 *
 * flat.c (scalar): kernels of the flat state in plain C.
 *
 * Invariants
 *  1. All three have the same bits in every tier: float32 +, -, *, / and sqrt in the order written here, never fused.
 *  2. squares[b]: element i of the block goes to float64 lane i mod ISO_SQUARE_LANES; then lane l takes in lane l + 8,
 *     l + 4, l + 2, l + 1. A float32 squared is exact in float64.
 *  3. Elements split over threads at multiples of 16, blocks whole.
 */
#include "kernels/scalar/scalar.h"

static void flat_add(const iso_flat_add_args *args, const iso_worker *worker) {
  int64_t begin, end;
  iso_split(args->end - args->begin, ISO_COLUMN_GRAIN, worker, &begin, &end);
  for (int64_t i = args->begin + begin; i < args->begin + end; i++) args->dst[i] += args->src[i];
}

static void grad_round(const iso_grad_round_args *args, const iso_worker *worker) {
  int64_t block, block_end;
  iso_split((args->end - args->begin + ISO_NORM_BLOCK - 1) / ISO_NORM_BLOCK, 1, worker, &block, &block_end);
  for (; block < block_end; block++) {
    int64_t first = args->begin + block * ISO_NORM_BLOCK, last = first + ISO_NORM_BLOCK;
    if (last > args->end) last = args->end;
    double lanes[ISO_SQUARE_LANES] = {0};
    for (int64_t i = first; i < last; i++) {
      float value = args->sum[i] / args->count;
      if (args->reduced_type == ISO_BF16) {
        iso_bf16 rounded = iso_bf16_from_f32(value);
        ((iso_bf16 *)args->reduced)[i] = rounded;
        value = iso_bf16_to_f32(rounded);
      } else {
        ((float *)args->reduced)[i] = value;
      }
      lanes[(i - first) % ISO_SQUARE_LANES] += (double)value * (double)value;
    }
    for (int half = ISO_SQUARE_LANES / 2; half > 0; half /= 2)
      for (int lane = 0; lane < half; lane++) lanes[lane] += lanes[lane + half];
    args->squares[first / ISO_NORM_BLOCK] = lanes[0];
  }
}

static void adamw_range(const iso_adamw_args *args, int64_t begin, int64_t end, bool decay) {
  float keep1 = 1.0f - args->beta1, keep2 = 1.0f - args->beta2;
  float decay_rate = args->lr * args->weight_decay, rate = args->lr / args->bias1;
  float root_bias2 = __builtin_sqrtf(args->bias2);
  for (int64_t i = begin; i < end; i++) {
    float g = args->reduced_type == ISO_F32 ? ((const float *)args->reduced)[i]
                                            : iso_bf16_to_f32(((const iso_bf16 *)args->reduced)[i]);
    g *= args->clip;
    float w = args->master[i];
    if (decay) w -= decay_rate * w;
    float m = args->beta1 * args->moment1[i] + keep1 * g;
    float v = args->beta2 * args->moment2[i] + keep2 * (g * g);
    w -= rate * m / (__builtin_sqrtf(v) / root_bias2 + args->eps);
    args->moment1[i] = m;
    args->moment2[i] = v;
    args->master[i] = w;
    if (args->compute) args->compute[i] = iso_bf16_from_f32(w);
  }
}

static void adamw(const iso_adamw_args *args, const iso_worker *worker) {
  if (args->refused) return;
  iso_adamw_piece piece;
  for (iso_adamw_piece_first(args, worker, &piece); piece.begin < piece.limit; iso_adamw_piece_next(args, &piece))
    adamw_range(args, piece.begin, piece.end, piece.decay);
}

void iso_overlay_scalar_flat(iso_kernels *table) {
  table->flat_add = flat_add;
  table->grad_round = grad_round;
  table->adamw = adamw;
}
