/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention and its gradient in plain C: one query row at a time, two passes over its keys, no tiles. The tier
 * that runs anywhere and the oracle of the others.
 *
 * Invariants
 *  1. A query that may attend no key gives a row of zeros, lse = -inf, and no gradient.
 *  2. Forward: one task is one (sequence, head, query). Backward: one task is one (sequence, kv head) with all its
 *     query heads in order, so dk and dv are summed by one thread, queries ascending.
 *  3. Probabilities stay in float32; the vector tiers with bfloat16 products round them.
 */
#include "kernels/kernels.h"

#include <math.h>

static inline float load(const iso_matrix *m, int64_t row, int64_t col) {
  int64_t at = row * m->ld + col;
  return m->dtype == ISO_BF16 ? iso_bf16_to_f32(((const iso_bf16 *)m->data)[at]) : ((const float *)m->data)[at];
}

static inline void store(const iso_matrix *m, int64_t row, int64_t col, float value) {
  int64_t at = row * m->ld + col;
  if (m->dtype == ISO_BF16)
    ((iso_bf16 *)m->data)[at] = iso_bf16_from_f32(value);
  else
    ((float *)m->data)[at] = value;
}

/* Keys [*first, *last) that query t may see by order and window; segments are looked at key by key. */
static void key_range(const iso_attention_args *args, int64_t t, int64_t *first, int64_t *last) {
  int64_t end = args->offset + t + 1;
  *last = end < args->keys ? end : args->keys;
  int64_t begin = args->window > 0 ? args->offset + t - args->window + 1 : 0;
  *first = begin > 0 ? begin : 0;
  if (*last < *first) *last = *first;
}

static inline bool same_segment(const iso_attention_args *args, int64_t b, int64_t t, int64_t s) {
  return !args->segments || args->segments[b * args->queries + t] == args->segments[b * args->queries + s];
}

static float dot(const iso_matrix *x, int64_t xrow, int64_t xcol, const iso_matrix *y, int64_t yrow, int64_t ycol,
                 int64_t count) {
  float sum = 0.0f;
  for (int64_t d = 0; d < count; d++) sum += load(x, xrow, xcol + d) * load(y, yrow, ycol + d);
  return sum;
}

static void attend_row(const iso_attention_args *args, int64_t b, int64_t h, int64_t t, float *scores) {
  int64_t width = args->head_dim, kv = h / (args->heads / args->kv_heads);
  int64_t first, last, query = b * args->queries + t;
  key_range(args, t, &first, &last);
  float high = -INFINITY;
  for (int64_t s = first; s < last; s++) {
    float score = -INFINITY;
    if (same_segment(args, b, t, s))
      score = dot(&args->q, query, h * width, &args->k, b * args->keys + s, kv * width, width) * args->scale;
    scores[s] = score;
    if (score > high) high = score;
  }
  float sum = 0.0f;
  for (int64_t s = first; s < last; s++) {
    bool seen = same_segment(args, b, t, s);
    scores[s] = seen ? (float)iso_exp((double)(scores[s] - high)) : 0.0f;
    sum += scores[s];
  }
  for (int64_t d = 0; d < width; d++) {
    float value = 0.0f;
    for (int64_t s = first; s < last; s++)
      if (same_segment(args, b, t, s)) value += scores[s] * load(&args->v, b * args->keys + s, kv * width + d);
    store(&args->o, query, h * width + d, sum == 0.0f ? 0.0f : value / sum);
  }
  if (args->lse) args->lse[query * args->heads + h] = sum == 0.0f ? -INFINITY : high + (float)iso_log((double)sum);
}

static void attention_scalar(const iso_attention_args *args, const iso_worker *worker) {
  float *scores = (float *)worker->scratch + worker->thread * args->keys;
  int64_t task, end;
  iso_split(args->batch * args->heads * args->queries, 1, worker, &task, &end);
  for (; task < end; task++) {
    int64_t t = task % args->queries, rest = task / args->queries;
    attend_row(args, rest / args->heads, rest % args->heads, t, scores);
  }
}

/* Adds the share of one query row of head h to dk and dv (float32, [keys][head_dim]) and writes its dq. */
static void attend_row_grad(const iso_attention_grad_args *args, int64_t b, int64_t h, int64_t t, float *dk, float *dv,
                            float *dq) {
  const iso_attention_args *f = &args->forward;
  int64_t width = f->head_dim, kv = h / (f->heads / f->kv_heads);
  int64_t first, last, query = b * f->queries + t;
  key_range(f, t, &first, &last);
  float lse = f->lse[query * f->heads + h];
  float delta = dot(&args->dout, query, h * width, &f->o, query, h * width, width);
  for (int64_t d = 0; d < width; d++) dq[d] = 0.0f;
  for (int64_t s = first; s < last; s++) {
    if (!same_segment(f, b, t, s)) continue;
    int64_t key = b * f->keys + s;
    float score = dot(&f->q, query, h * width, &f->k, key, kv * width, width) * f->scale;
    float p = (float)iso_exp((double)(score - lse));
    float dp = dot(&args->dout, query, h * width, &f->v, key, kv * width, width);
    float ds = p * (dp - delta) * f->scale;
    for (int64_t d = 0; d < width; d++) {
      dv[s * width + d] += p * load(&args->dout, query, h * width + d);
      dk[s * width + d] += ds * load(&f->q, query, h * width + d);
      dq[d] += ds * load(&f->k, key, kv * width + d);
    }
  }
  for (int64_t d = 0; d < width; d++) store(&args->dq, query, h * width + d, dq[d]);
}

static void attention_grad_scalar(const iso_attention_grad_args *args, const iso_worker *worker) {
  const iso_attention_args *f = &args->forward;
  int64_t width = f->head_dim, group = f->heads / f->kv_heads, size = f->keys * width;
  float *dk = (float *)worker->scratch + worker->thread * (2 * size + width), *dv = dk + size, *dq = dv + size;
  int64_t task, end;
  iso_split(f->batch * f->kv_heads, 1, worker, &task, &end);
  for (; task < end; task++) {
    int64_t b = task / f->kv_heads, kv = task % f->kv_heads;
    for (int64_t i = 0; i < 2 * size; i++) dk[i] = 0.0f;
    for (int64_t h = kv * group; h < (kv + 1) * group; h++)
      for (int64_t t = 0; t < f->queries; t++) attend_row_grad(args, b, h, t, dk, dv, dq);
    for (int64_t s = 0; s < f->keys; s++)
      for (int64_t d = 0; d < width; d++) {
        store(&args->dk, b * f->keys + s, kv * width + d, dk[s * width + d]);
        store(&args->dv, b * f->keys + s, kv * width + d, dv[s * width + d]);
      }
  }
}

void iso_overlay_scalar_attention(iso_kernels *table) {
  table->attention = attention_scalar;
  table->attention_grad = attention_grad_scalar;
}
