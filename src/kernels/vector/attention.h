/* SPDX-License-Identifier: Apache-2.0
 *
 * attention.h: the elementwise part of attention, over a tier's vec.h (included before). The includer also defines
 *   SCORE_TYPE                                       type of stored probabilities: ISO_F32, or ISO_BF16 for pairs
 *   score_store(void *row, int column, vec p)        VL probabilities
 *   vec score_round(vec p)                           p as score_store keeps it
 *   vec score_select(const int32_t *segments, int32_t segment, vec x, vec other)
 *                                                    x in lanes whose segment is `segment`, else other
 *
 * Unseen columns take part as score -inf and become probability zero; a row that sees nothing keeps high = -inf.
 * A NaN among a row's scores makes its probabilities, sum and output NaN. A row's sum is that of its probabilities as
 * stored, so that the weights which enter the second product add up to one: the rounding they share cancels.
 */
#ifndef ISO_KERNELS_VECTOR_ATTENTION_H
#define ISO_KERNELS_VECTOR_ATTENTION_H

#include "kernels/tile.h"
#include "kernels/vector/math.h"

#include <math.h>

enum { SCORE_COLS = SCORE_TYPE == ISO_BF16 ? 2 * ISO_SCORE_UNITS : ISO_SCORE_UNITS }; // NOLINT: by includer

/* Lane numbers, as float32. */
static const float score_lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* x where row r of the tile sees columns column .. column + VL - 1, else other. */
VEC_INLINE vec score_mask(const iso_score_tile *tile, int r, int column, vec x, vec other) {
  vec lane = vec_add(vec_load(score_lanes, ISO_F32, 0, VL), vec_set((float)column));
  x = vec_if_negative(vec_sub(lane, vec_set((float)tile->first[r])), other, x);
  x = vec_if_negative(vec_sub(lane, vec_set((float)tile->last[r])), x, other);
  return tile->segments ? score_select(tile->segments + column, tile->segment[r], x, other) : x;
}

VEC_INLINE bool sees_all(const iso_score_tile *tile, int r) {
  return !tile->segments && tile->first[r] <= tile->begin && tile->last[r] >= tile->end;
}

/* Scales and masks a row in place; returns its highest score. */
VEC_INLINE float scale_scores(const iso_score_tile *tile, int r) {
  float *row = tile->scores + r * SCORE_COLS;
  vec scale = vec_set(tile->scale), unseen = vec_set(-INFINITY), high = unseen;
  bool all = sees_all(tile, r);
  for (int c = tile->begin; c < tile->end; c += VL) {
    vec x = vec_mul(vec_load(row, ISO_F32, c, VL), scale);
    if (!all) x = score_mask(tile, r, c, x, unseen);
    vec_store(row, ISO_F32, c, VL, x);
    high = vec_max(x, high); /* a NaN leaves high as it was */
  }
  return vec_top(high);
}

/* `count` vectors of scores to probabilities, which are added to `sum` in order. */
VEC_INLINE vec softmax_step(const float *row, uint32_t *out, vec high, vec sum, int column, int count) {
  vec p[VEC_STEP];
  EACH(k, count) p[k] = vec_sub(vec_load(row, ISO_F32, column + k * VL, VL), high);
  vec_exp_below_each(p, count);
  EACH(k, count) {
    p[k] = score_round(p[k]);
    sum = vec_add(sum, p[k]);
    score_store(out, column + k * VL, p[k]);
  }
  return sum;
}

static void softmax_tile(const iso_score_tile *tile, iso_softmax_state *state) {
  float shift[16] = {0};
  for (int r = 0; r < tile->rows; r++) {
    float high = scale_scores(tile, r), before = state->high[r];
    if (!(high > before)) high = before;
    state->high[r] = high;
    state->factor[r] = high == before ? 0.0f : before - high;
    shift[r] = high == -INFINITY ? 0.0f : high; /* -inf - 0: nothing seen, all zero */
  }
  for (int r = 0; r < 16; r += VL)
    vec_store(state->factor, ISO_F32, r, VL, vec_exp(vec_load(state->factor, ISO_F32, r, VL)));
  for (int r = 0; r < tile->rows; r++) {
    const float *row = tile->scores + r * SCORE_COLS;
    uint32_t *out = (uint32_t *)tile->probabilities + r * ISO_SCORE_UNITS;
    vec high = vec_set(shift[r]), sum = vec_set(0.0f);
    int c = tile->begin;
    for (; c + VEC_STEP * VL <= tile->end; c += VEC_STEP * VL) sum = softmax_step(row, out, high, sum, c, VEC_STEP);
    for (; c < tile->end; c += VL) sum = softmax_step(row, out, high, sum, c, 1);
    state->sum[r] = state->sum[r] * state->factor[r] + vec_sum(sum);
  }
}

/* log(x) for normal x: x = 2^e m with m in [0.71, 1.42), log m = 2 atanh((m - 1) / (m + 1)) by its series (error below
 * 1e-8). Infinity and NaN give NaN. */
static void softmax_finish(const iso_softmax_state *state, float lse[16]) {
  float mantissa[16], exponent[16];
  for (int r = 0; r < 16; r++) {
    union {
      float value;
      uint32_t bits;
    } x = {state->sum[r]};
    int32_t e = (int32_t)(x.bits - 0x3F350000u) >> 23; /* floor(log2(x / 0.707)) */
    x.bits -= (uint32_t)e << 23;
    mantissa[r] = x.value;
    exponent[r] = (float)e;
  }
  for (int r = 0; r < 16; r += VL) {
    vec m = vec_load(mantissa, ISO_F32, r, VL), e = vec_load(exponent, ISO_F32, r, VL), one = vec_set(1.0f);
    vec f = vec_div(vec_sub(m, one), vec_add(m, one)), square = vec_mul(f, f);
    vec series = vec_fma(square, vec_set(1.0f / 9.0f), vec_set(1.0f / 7.0f));
    series = vec_fma(series, square, vec_set(0.2f));
    series = vec_fma(series, square, vec_set(1.0f / 3.0f));
    vec twice = vec_add(f, f);
    vec log_m = vec_fma(vec_mul(twice, square), series, twice);
    vec log_x = vec_fma(e, vec_set(0x1.62e400p-1f), vec_fma(e, vec_set(0x1.7f7d1cp-20f), log_m));
    vec sum = vec_load(state->sum, ISO_F32, r, VL);
    log_x = vec_add(log_x, vec_sub(sum, sum)); /* NaN for NaN and infinity */
    vec_store(lse, ISO_F32, r, VL, vec_add(vec_load(state->high, ISO_F32, r, VL), log_x));
  }
}

/* What a step of a row's gradient reads and writes. */
typedef struct score_grad_row {
  const float *scores, *products, *lse, *delta;
  uint32_t *out, *gradient;
  int row;
  bool all; /* sees all columns */
} score_grad_row;

VEC_INLINE void softmax_grad_step(const iso_score_tile *tile, const score_grad_row *row, int column, int count) {
  const vec scale = vec_set(tile->scale), zero = vec_set(0.0f);
  vec p[VEC_STEP], ds[VEC_STEP];
  EACH(k, count) {
    const int c = column + k * VL;
    p[k] = vec_sub(vec_mul(vec_load(row->scores, ISO_F32, c, VL), scale), vec_load(row->lse, ISO_F32, c, VL));
    p[k] = vec_min(vec_set(89.0f), p[k]);
  }
  vec_exp_below_each(p, count);
  EACH(k, count) {
    const int c = column + k * VL;
    ds[k] = vec_sub(vec_load(row->products, ISO_F32, c, VL), vec_load(row->delta, ISO_F32, c, VL));
    ds[k] = vec_mul(vec_mul(p[k], ds[k]), scale);
    if (!row->all) {
      p[k] = score_mask(tile, row->row, c, p[k], zero);
      ds[k] = score_mask(tile, row->row, c, ds[k], zero);
    }
    score_store(row->out, c, p[k]);
    score_store(row->gradient, c, ds[k]);
  }
}

static void softmax_grad_tile(const iso_score_tile *tile, const float *products, const float *lse, const float *delta,
                              void *gradients) {
  for (int r = 0; r < tile->rows; r++) {
    const score_grad_row row = {.scores = tile->scores + r * SCORE_COLS,
                                .products = products + r * SCORE_COLS,
                                .lse = lse,
                                .delta = delta,
                                .out = (uint32_t *)tile->probabilities + r * ISO_SCORE_UNITS,
                                .gradient = (uint32_t *)gradients + r * ISO_SCORE_UNITS,
                                .row = r,
                                .all = sees_all(tile, r)};
    int c = tile->begin;
    for (; c + VEC_STEP * VL <= tile->end; c += VEC_STEP * VL) softmax_grad_step(tile, &row, c, VEC_STEP);
    for (; c < tile->end; c += VL) softmax_grad_step(tile, &row, c, 1);
  }
}

static void scale_row(float *row, float factor, int64_t count) {
  for (int64_t i = 0; i < count; i += VL) {
    int n = count - i < VL ? (int)(count - i) : VL;
    vec_store(row, ISO_F32, i, n, vec_mul(vec_load(row, ISO_F32, i, n), vec_set(factor)));
  }
}

static void store_row(void *target, iso_dtype dtype, const float *row, float factor, int64_t count) {
  for (int64_t i = 0; i < count; i += VL) {
    int n = count - i < VL ? (int)(count - i) : VL;
    vec_store(target, dtype, i, n, vec_mul(vec_load(row, ISO_F32, i, n), vec_set(factor)));
  }
}

static float dot_row(const void *a, const void *b, iso_dtype dtype, int64_t count) {
  vec sum = vec_set(0.0f);
  for (int64_t i = 0; i < count; i += VL) {
    int n = count - i < VL ? (int)(count - i) : VL;
    sum = vec_fma(vec_load(a, dtype, i, n), vec_load(b, dtype, i, n), sum);
  }
  return vec_sum(sum);
}

#endif
