/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention and its gradient, every tier against float64.
 *
 * Bounds follow the rounding steps: `unit` is 2^-8 where probabilities, their gradients or the saved output are
 * rounded to bfloat16, else that of float32 sums over D and T. It multiplies the sums of absolute values that the
 * reference forms beside each result.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/guarded.h"

#include <math.h>

typedef struct problem {
  int64_t batch, queries, keys, heads, kv_heads, width, window, offset, gap, shift;
  iso_dtype type, grad_type;
  int segments; /* 0: none, 1: runs, 2: arbitrary */
} problem;

/* Inputs, results and the float64 results with their error bounds. */
typedef struct fixture {
  problem p;
  guarded q, k, v, o, lse, dout, dq, dk, dv;
  int32_t *segments;
  double *ref_o, *ref_lse, *ref_dq, *ref_dk, *ref_dv;
  double *err_o, *err_dq, *err_dk, *err_dv;
} fixture;

static iso_tier tier;
static const iso_kernels *kernels;

static void call_attention(const void *args, const iso_worker *worker) {
  kernels->attention(args, worker);
}

static void call_attention_grad(const void *args, const iso_worker *worker) {
  kernels->attention_grad(args, worker);
}

static double *doubles(int64_t count) {
  return calloc((size_t)count + 1, sizeof(double));
}

static void fixture_init(fixture *f, const problem *p) {
  int64_t rows = p->batch * p->queries, keys = p->batch * p->keys;
  int64_t cols = p->heads * p->width, kv_cols = p->kv_heads * p->width;
  f->p = *p;
  f->q = guarded_create(rows, cols, p->gap, p->shift, p->type, false);
  f->k = guarded_create(keys, kv_cols, p->gap, p->shift, p->type, false);
  f->v = guarded_create(keys, kv_cols, 2 * p->gap, p->shift, p->type, false);
  f->dout = guarded_create(rows, cols, p->gap, p->shift, p->type, false);
  f->o = guarded_create(rows, cols, p->gap, p->shift, p->type, true);
  f->lse = guarded_create(rows, p->heads, 0, 0, ISO_F32, true);
  f->dq = guarded_create(rows, cols, p->gap, p->shift, p->grad_type, true);
  f->dk = guarded_create(keys, kv_cols, p->gap, p->shift, p->grad_type, true);
  f->dv = guarded_create(keys, kv_cols, 0, p->shift, p->grad_type, true);
  guarded_fill(&f->q, 2.0f);
  guarded_fill(&f->k, 2.0f);
  guarded_fill(&f->v, 1.0f);
  guarded_fill(&f->dout, 1.0f);
  f->segments = malloc((size_t)(rows > 0 ? rows : 1) * sizeof(int32_t));
  for (int64_t i = 0; i < rows; i++) {
    bool next = i % p->queries == 0 || test_below(9) == 0;
    f->segments[i] = p->segments == 2 ? (int32_t)test_below(3) - 1 : next ? (int32_t)i : f->segments[i - 1];
  }
  f->ref_o = doubles(rows * cols);
  f->err_o = doubles(rows * cols);
  f->ref_lse = doubles(rows * p->heads);
  f->ref_dq = doubles(rows * cols);
  f->err_dq = doubles(rows * cols);
  f->ref_dk = doubles(keys * kv_cols);
  f->err_dk = doubles(keys * kv_cols);
  f->ref_dv = doubles(keys * kv_cols);
  f->err_dv = doubles(keys * kv_cols);
}

static void fixture_fini(fixture *f) {
  guarded *all[] = {&f->q, &f->k, &f->v, &f->o, &f->lse, &f->dout, &f->dq, &f->dk, &f->dv};
  for (size_t i = 0; i < ISO_COUNT(all); i++) guarded_destroy(all[i]);
  double *arrays[] = {f->ref_o, f->ref_lse, f->ref_dq, f->ref_dk, f->ref_dv, f->err_o, f->err_dq, f->err_dk, f->err_dv};
  for (size_t i = 0; i < ISO_COUNT(arrays); i++) free(arrays[i]);
  free(f->segments);
}

static bool sees(const fixture *f, int64_t b, int64_t t, int64_t s) {
  const problem *p = &f->p;
  if (s > p->offset + t || (p->window > 0 && s <= p->offset + t - p->window)) return false;
  return !p->segments || f->segments[b * p->queries + t] == f->segments[b * p->queries + s];
}

static double unit_of(const problem *p) {
  return p->type == ISO_BF16 ? 0x1p-8 : 4.0 * (double)(p->width + p->keys + 32) * 0x1p-24;
}

/* Forward and backward of one query row, into the reference arrays. */
static void reference_row(fixture *f, int64_t b, int64_t h, int64_t t) {
  const problem *p = &f->p;
  int64_t width = p->width, kv = h / (p->heads / p->kv_heads), row = b * p->queries + t, cols = p->heads * width;
  int64_t kv_cols = p->kv_heads * width;
  double scale = 1.0 / sqrt((double)width), unit = unit_of(p), high = -INFINITY, sum = 0.0, delta = 0.0, size = 0.0;
  double *prob = doubles(p->keys);
  for (int64_t s = 0; s < p->keys; s++) {
    if (!sees(f, b, t, s)) continue;
    for (int64_t d = 0; d < width; d++)
      prob[s] += (double)matrix_get(&f->q.m, row, h * width + d) * matrix_get(&f->k.m, b * p->keys + s, kv * width + d);
    prob[s] *= scale;
    high = fmax(high, prob[s]);
  }
  for (int64_t s = 0; s < p->keys; s++) {
    prob[s] = sees(f, b, t, s) ? exp(prob[s] - high) : 0.0;
    sum += prob[s];
  }
  f->ref_lse[row * p->heads + h] = high + log(sum);
  for (int64_t s = 0; s < p->keys; s++) {
    if (sum > 0.0) prob[s] /= sum;
    for (int64_t d = 0; d < width && prob[s] != 0.0; d++) {
      double v = matrix_get(&f->v.m, b * p->keys + s, kv * width + d);
      f->ref_o[row * cols + h * width + d] += prob[s] * v;
      f->err_o[row * cols + h * width + d] += 2.0 * unit * prob[s] * fabs(v);
    }
  }
  for (int64_t d = 0; d < width; d++) {
    double product = matrix_get(&f->dout.m, row, h * width + d) * f->ref_o[row * cols + h * width + d];
    delta += product;
    size += fabs(product);
  }
  for (int64_t s = 0; s < p->keys; s++) {
    if (prob[s] == 0.0) continue;
    int64_t key = b * p->keys + s, at = key * kv_cols + kv * width;
    double dp = 0.0, dp_size = 0.0;
    for (int64_t d = 0; d < width; d++) {
      double product = (double)matrix_get(&f->dout.m, row, h * width + d) * matrix_get(&f->v.m, key, kv * width + d);
      dp += product;
      dp_size += fabs(product);
    }
    double ds = prob[s] * (dp - delta) * scale, ds_error = unit * (2.0 * fabs(ds) + prob[s] * scale * (size + dp_size));
    for (int64_t d = 0; d < width; d++) {
      double dout = matrix_get(&f->dout.m, row, h * width + d), q = matrix_get(&f->q.m, row, h * width + d);
      double k = matrix_get(&f->k.m, key, kv * width + d);
      f->ref_dv[at + d] += prob[s] * dout;
      f->err_dv[at + d] += 2.0 * unit * prob[s] * fabs(dout);
      f->ref_dk[at + d] += ds * q;
      f->err_dk[at + d] += ds_error * fabs(q);
      f->ref_dq[row * cols + h * width + d] += ds * k;
      f->err_dq[row * cols + h * width + d] += ds_error * fabs(k);
    }
  }
  free(prob);
}

static void check_matrix(const fixture *f, const char *name, const iso_matrix *m, const double *reference,
                         const double *error) {
  for (int64_t i = 0; i < m->rows; i++)
    for (int64_t j = 0; j < m->cols; j++) {
      double exact = reference[i * m->cols + j], got = matrix_get(m, i, j);
      double bound = error[i * m->cols + j] + 0x1p-100 + (m->dtype == ISO_BF16 ? fabs(exact) * 0x1p-8 * 1.01 : 0.0);
      const problem *p = &f->p;
      if (!(fabs(got - exact) <= bound))
        fail_msg("%s %s %s B%ld T%ld S%ld H%ld/%ld D%ld window %ld offset %ld segments %d: [%ld][%ld] = %g, exact %g, "
                 "bound %g",
                 iso_tier_name(tier), iso_dtype_name(p->type), name, (long)p->batch, (long)p->queries, (long)p->keys,
                 (long)p->heads, (long)p->kv_heads, (long)p->width, (long)p->window, (long)p->offset, p->segments,
                 (long)i, (long)j, got, exact, bound);
    }
}

static iso_attention_args forward_args(const fixture *f) {
  const problem *p = &f->p;
  return (iso_attention_args){.q = f->q.m,
                              .k = f->k.m,
                              .v = f->v.m,
                              .o = f->o.m,
                              .lse = f->lse.m.data,
                              .segments = p->segments ? f->segments : NULL,
                              .batch = p->batch,
                              .queries = p->queries,
                              .keys = p->keys,
                              .heads = p->heads,
                              .kv_heads = p->kv_heads,
                              .head_dim = p->width,
                              .window = p->window,
                              .offset = p->offset,
                              .scale = (float)(1.0 / sqrt((double)p->width))};
}

static void run_forward(const fixture *f, int threads) {
  iso_attention_args args = forward_args(f);
  assert_true(
      kernel_run(call_attention, &args, iso_attention_scratch(f->p.queries, f->p.keys, f->p.width, threads), threads));
  assert_true(guarded_intact(&f->o) && guarded_intact(&f->lse));
}

static void run_backward(const fixture *f, int threads) {
  const problem *p = &f->p;
  iso_attention_grad_args args = {forward_args(f), f->dout.m, f->dq.m, f->dk.m, f->dv.m};
  size_t scratch = iso_attention_grad_scratch(p->batch, p->queries, p->heads, p->kv_heads, p->width, threads);
  assert_true(kernel_run(call_attention_grad, &args, scratch, threads));
  assert_true(guarded_intact(&f->dq) && guarded_intact(&f->dk) && guarded_intact(&f->dv));
}

/* Runs on other team sizes and compares bits. */
static void check_threads(fixture *f, bool backward) {
  guarded *outputs[] = {&f->o, &f->lse, &f->dq, &f->dk, &f->dv};
  guarded first[ISO_COUNT(outputs)];
  for (size_t i = 0; i < ISO_COUNT(outputs); i++) first[i] = guarded_copy(outputs[i]);
  static const int team_sizes[] = {2, 3, 5};
  for (size_t t = 0; t < ISO_COUNT(team_sizes); t++) {
    run_forward(f, team_sizes[t]);
    if (backward) run_backward(f, team_sizes[t]);
    for (size_t i = 0; i < ISO_COUNT(outputs); i++) assert_true(guarded_same(&first[i], outputs[i]));
  }
  for (size_t i = 0; i < ISO_COUNT(outputs); i++) guarded_destroy(&first[i]);
}

static void check_problem(const problem *p) {
  fixture f;
  fixture_init(&f, p);
  bool backward = p->offset == 0 && p->keys == p->queries;
  for (int64_t b = 0; b < p->batch; b++)
    for (int64_t h = 0; h < p->heads; h++)
      for (int64_t t = 0; t < p->queries; t++) reference_row(&f, b, h, t);
  run_forward(&f, 1);
  check_matrix(&f, "o", &f.o.m, f.ref_o, f.err_o);
  /* the logarithm of a sum of probabilities that are rounded to bfloat16 there */
  double rounded = tier == ISO_TIER_AVX512BF16 && p->type == ISO_BF16 ? 0x1p-8 : 0;
  for (int64_t i = 0; i < p->batch * p->queries * p->heads; i++) {
    double got = ((const float *)f.lse.m.data)[i], exact = f.ref_lse[i];
    if (isinf(exact))
      assert_true(got == exact);
    else
      assert_true(fabs(got - exact) <= (double)(p->width + p->keys + 32) * 0x1p-22 + rounded);
  }
  if (backward) {
    run_backward(&f, 1);
    check_matrix(&f, "dv", &f.dv.m, f.ref_dv, f.err_dv);
    check_matrix(&f, "dq", &f.dq.m, f.ref_dq, f.err_dq);
    check_matrix(&f, "dk", &f.dk.m, f.ref_dk, f.err_dk);
  }
  check_threads(&f, backward);
  fixture_fini(&f);
}

static void for_each_tier(void (*check)(void)) {
  for (int t = 0; t <= (int)iso_cpu_best_tier(); t++) {
    tier = (iso_tier)t;
    kernels = iso_kernels_get(tier);
    test_state = 0x9E3779B97F4A7C15u;
    check();
  }
}

static problem random_problem(void) {
  static const int64_t lengths[] = {1, 2, 5, 6, 13, 14, 15, 31, 33, 64, 65, 100};
  static const int64_t widths[] = {1, 3, 8, 16, 17, 31, 32, 40, 64, 80, 96};
  static const int64_t heads[][2] = {{1, 1}, {2, 1}, {4, 2}, {3, 3}, {6, 2}};
  static const int64_t windows[] = {0, 0, 0, 1, 3, 20, 70};
  size_t pair = (size_t)test_below(ISO_COUNT(heads));
  problem p = {.batch = 1 + test_below(2),
               .queries = lengths[test_below(ISO_COUNT(lengths))],
               .heads = heads[pair][0],
               .kv_heads = heads[pair][1],
               .width = widths[test_below(ISO_COUNT(widths))],
               .window = windows[test_below(ISO_COUNT(windows))],
               .gap = test_below(3) ? 0 : test_below(9),
               .shift = test_below(2) ? 0 : test_below(16),
               .type = test_below(2) ? ISO_BF16 : ISO_F32,
               .segments = (int)test_below(3)};
  p.keys = p.queries;
  p.grad_type = test_below(3) ? p.type : ISO_F32;
  return p;
}

static void check_training(void) {
  for (int i = 0; i < 40; i++) {
    problem p = random_problem();
    check_problem(&p);
  }
}

static void check_long(void) {
  for (int form = 0; form < 6; form++) {
    problem p = {.batch = 1,
                 .queries = 300,
                 .keys = 300,
                 .heads = 2,
                 .kv_heads = 1,
                 .width = form == 2 ? 256 : 20,
                 .window = form == 3 ? 150 : 0,
                 .type = form & 1 ? ISO_BF16 : ISO_F32,
                 .segments = form / 2};
    p.grad_type = p.type;
    check_problem(&p);
  }
}

/* One kv head, or three for two threads: the gradient's threads share each task, in the same bits. */
static void check_shared(void) {
  for (int form = 0; form < 8; form++) {
    problem p = {.batch = 1,
                 .queries = 520 + form,
                 .heads = form & 2 ? 3 : 2,
                 .kv_heads = form & 2 ? 3 : 1,
                 .width = 8,
                 .window = form & 4 ? 130 : 0,
                 .type = form & 1 ? ISO_BF16 : ISO_F32,
                 .segments = form / 3};
    p.keys = p.queries;
    p.grad_type = p.type;
    check_problem(&p);
  }
}

/* New queries after cached keys, as generation makes them; windows that leave a row nothing to see. */
static void check_inference(void) {
  for (int i = 0; i < 40; i++) {
    problem p = random_problem();
    p.segments = 0;
    p.queries = 1 + test_below(20);
    p.offset = test_below(200);
    p.keys = p.offset + p.queries;
    if (i % 5 == 0) {
      p.keys = 1 + test_below(30);
      p.window = 2;
    }
    check_problem(&p);
  }
}

/* A NaN in one query row spoils that row's head and nothing else. */
static void check_nan(void) {
  for (int type = 0; type < 2; type++) {
    problem p = {.batch = 1,
                 .queries = 40,
                 .keys = 40,
                 .heads = 2,
                 .kv_heads = 2,
                 .width = 24,
                 .type = type ? ISO_BF16 : ISO_F32};
    fixture f;
    fixture_init(&f, &p);
    run_forward(&f, 1);
    guarded clean = guarded_copy(&f.o);
    matrix_set(&f.q.m, 17, 24 + 23, NAN);
    run_forward(&f, 1);
    for (int64_t t = 0; t < 40; t++)
      for (int64_t j = 0; j < 48; j++) {
        float got = matrix_get(&f.o.m, t, j);
        if (t == 17 && j >= 24)
          assert_true(isnan(got));
        else
          assert_true(got == matrix_get(&clean.m, t, j));
      }
    assert_true(isnan(((const float *)f.lse.m.data)[17 * 2 + 1]));
    guarded_destroy(&clean);
    fixture_fini(&f);
  }
}

static void training_shapes(void **state) {
  for_each_tier(check_training);
}

static void several_blocks(void **state) {
  for_each_tier(check_long);
}

static void shared_tasks(void **state) {
  for_each_tier(check_shared);
}

static void inference_shapes(void **state) {
  for_each_tier(check_inference);
}

static void nan_stays_in_its_row(void **state) {
  for_each_tier(check_nan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(training_shapes),
      cmocka_unit_test(several_blocks),
      cmocka_unit_test(shared_tasks),
      cmocka_unit_test(inference_shapes),
      cmocka_unit_test(nan_stays_in_its_row),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
