/* SPDX-License-Identifier: Apache-2.0
 *
 * The fused row kernels, every tier: the bits of the ops they stand for, for both types, groups, gaps, special values,
 * threads, guards, and in place; and float64 values within a bound, so that a fault in both forms shows too.
 */
#include "rows_check.h"

typedef struct fused_case {
  int64_t rows, groups, width;
  iso_dtype a, b, y;
  bool layer, accumulate, copy;
  fill_kind kind;
} fused_case;

static void same_bits(const buffer *x, const buffer *y) {
  for (int64_t i = 0; i < x->m.rows; i++)
    for (int64_t j = 0; j < x->m.cols; j++) {
      const double one = get(x, i, j), other = get(y, i, j);
      if (memcmp(&one, &other, sizeof one) != 0 && !(isnan(one) && isnan(other)))
        fail_msg("at (%lld, %lld): %a fused, %a unfused", (long long)i, (long long)j, one, other);
    }
}

static buffer twin(const buffer *b) {
  buffer copy = buffer_new(b->m.rows, b->m.cols, b->m.ld - b->m.cols, b->m.dtype);
  memcpy(copy.map, b->map, b->size);
  return copy;
}

/* sum and y against float64; only for ordinary values. */
static void check_values(const fused_case *c, const buffer *a, const buffer *b, const buffer *sum, const buffer *y,
                         const float *w, const float *bias) {
  for (int64_t i = 0; i < c->rows; i++)
    for (int64_t g = 0; g < c->groups; g++) {
      double mean = 0, squares = 0;
      const int64_t first = g * c->width;
      for (int64_t j = first; j < first + c->width; j++) {
        assert_close(get(sum, i, j), get(a, i, j) + get(b, i, j), 0, ISO_F32, i, j);
        mean += get(sum, i, j) / (double)c->width;
      }
      if (!c->layer) mean = 0;
      for (int64_t j = first; j < first + c->width; j++) squares += pow(get(sum, i, j) - mean, 2) / (double)c->width;
      const double rstd = 1 / sqrt(squares + 1e-5);
      for (int64_t j = first; j < first + c->width; j++) {
        const double value = (get(sum, i, j) - mean) * rstd * w[j - first];
        const double shift = c->layer ? bias[j - first] : 0;
        assert_close(get(y, i, j), value + shift, 4e-6 * (fabs(value) + fabs(w[j - first]) * (1 + rstd) + fabs(shift)),
                     c->y, i, j);
      }
    }
}

static void forward_case(const iso_kernels *k, const fused_case *c) {
  const int64_t cols = c->groups * c->width;
  buffer a = buffer_new(c->rows, cols, random_below(3), c->a), b = buffer_new(c->rows, cols, random_below(3), c->b);
  buffer sum[2], y[2], mean[2], rstd[2];
  for (int i = 0; i < 2; i++) {
    sum[i] = buffer_new(c->rows, cols, i ? 0 : 3, ISO_F32), y[i] = buffer_new(c->rows, cols, i ? 2 : 0, c->y);
    mean[i] = buffer_new(1, c->rows * c->groups, 0, ISO_F32), rstd[i] = buffer_new(1, c->rows * c->groups, 0, ISO_F32);
    fill_nan(&sum[i]), fill_nan(&y[i]), fill_nan(&mean[i]), fill_nan(&rstd[i]);
  }
  buffer w = buffer_new(1, c->width, 0, ISO_F32), bias = buffer_new(1, c->width, 0, ISO_F32);
  fill(&a, c->kind, 1.5), fill(&b, c->kind, 1), fill(&w, FILL_NORMAL, 1), fill(&bias, FILL_NORMAL, 1);
  iso_norm_args norm[2];
  for (int i = 0; i < 2; i++)
    norm[i] =
        (iso_norm_args){sum[i].m,         y[i].m,   floats(&w), c->layer ? floats(&bias) : NULL, c->width, 1e-5f, NULL,
                        floats(&rstd[i]), c->layer, 0};
  for (int i = 0; i < 2; i++) norm[i].mean = c->layer ? floats(&mean[i]) : NULL;
  const iso_add_norm_args fused = {norm[0], a.m, b.m};
  run_kernel(k, OP_ADD_NORM, &fused, 0, (buffer *[]){&sum[0], &y[0], &mean[0], &rstd[0]}, 4);
  const iso_add_args add = {a.m, b.m, sum[1].m};
  run_kernel(k, OP_ADD, &add, 0, (buffer *[]){&sum[1]}, 1);
  run_kernel(k, OP_NORM, &norm[1], 0, (buffer *[]){&y[1], &mean[1], &rstd[1]}, 3);
  same_bits(&sum[0], &sum[1]), same_bits(&y[0], &y[1]), same_bits(&rstd[0], &rstd[1]);
  if (c->layer) same_bits(&mean[0], &mean[1]);
  if (c->kind == FILL_NORMAL) check_values(c, &a, &b, &sum[0], &y[0], floats(&w), floats(&bias));
  if (c->a == ISO_F32) { /* the sum in a's storage */
    iso_add_norm_args inplace = fused;
    inplace.norm.x = a.m;
    run_kernel(k, OP_ADD_NORM, &inplace, 0, (buffer *[]){&a, &y[0], &mean[0], &rstd[0]}, 4);
    same_bits(&a, &sum[1]), same_bits(&y[0], &y[1]);
  }
  for (int i = 0; i < 2; i++) buffer_free(&sum[i]), buffer_free(&y[i]), buffer_free(&mean[i]), buffer_free(&rstd[i]);
  buffer_free(&a), buffer_free(&b), buffer_free(&w), buffer_free(&bias);
}

static void backward_case(const iso_kernels *k, const fused_case *c) {
  const int64_t cols = c->groups * c->width, groups = c->rows * c->groups;
  buffer x = buffer_new(c->rows, cols, random_below(3), c->a), dy = buffer_new(c->rows, cols, random_below(3), c->b);
  buffer skip = buffer_new(c->rows, cols, random_below(2), ISO_F32), w = buffer_new(1, c->width, 0, ISO_F32);
  buffer mean = buffer_new(1, groups, 0, ISO_F32), rstd = buffer_new(1, groups, 0, ISO_F32);
  buffer dx[2], copy[2], dw[2], db[2];
  fill(&x, c->kind, 1), fill(&dy, c->kind, 1), fill(&skip, c->kind, 1), fill(&w, FILL_NORMAL, 1);
  fill(&mean, FILL_NORMAL, 0.1), fill(&rstd, FILL_NORMAL, 1);
  dw[0] = buffer_new(1, c->width, 0, ISO_F32), db[0] = buffer_new(1, c->width, 0, ISO_F32);
  fill(&dw[0], FILL_NORMAL, 1), fill(&db[0], FILL_NORMAL, 1);
  dw[1] = twin(&dw[0]), db[1] = twin(&db[0]);
  for (int i = 0; i < 2; i++) {
    dx[i] = buffer_new(c->rows, cols, i, ISO_F32), copy[i] = buffer_new(c->rows, cols, 1 - i, ISO_BF16);
    fill_nan(&dx[i]), fill_nan(&copy[i]);
  }
  iso_norm_grad_args grad[2];
  for (int i = 0; i < 2; i++) {
    grad[i] = (iso_norm_grad_args){.dy = dy.m, .x = x.m, .dx = dx[i].m, .weight = floats(&w), .width = c->width};
    grad[i].mean = c->layer ? floats(&mean) : NULL;
    grad[i].rstd = floats(&rstd);
    grad[i].dweight = floats(&dw[i]);
    grad[i].dbias = c->layer ? floats(&db[i]) : NULL;
    grad[i].layer = c->layer;
    grad[i].accumulate = c->accumulate;
  }
  const size_t scratch = iso_norm_grad_scratch(c->rows, cols, c->width, 5);
  iso_norm_grad_add_args fused = {grad[0], skip.m, {0}};
  if (c->copy) fused.copy = copy[0].m;
  run_kernel(k, OP_NORM_GRAD_ADD, &fused, scratch, (buffer *[]){&dx[0], &dw[0], &db[0], &copy[0]}, 4);
  run_kernel(k, OP_NORM_GRAD, &grad[1], scratch, (buffer *[]){&dx[1], &dw[1], &db[1]}, 3);
  const iso_add_args add = {skip.m, dx[1].m, dx[1].m};
  run_kernel(k, OP_ADD, &add, 0, (buffer *[]){&dx[1]}, 1);
  const iso_cast_args cast = {dx[1].m, copy[1].m};
  if (c->copy) run_kernel(k, OP_CAST, &cast, 0, (buffer *[]){&copy[1]}, 1);
  same_bits(&dx[0], &dx[1]), same_bits(&dw[0], &dw[1]), same_bits(&db[0], &db[1]), same_bits(&copy[0], &copy[1]);
  buffer again = twin(&dw[0]);
  fused.grad.dx = skip.m; /* in place */
  fused.grad.accumulate = false;
  fused.grad.dweight = floats(&again);
  run_kernel(k, OP_NORM_GRAD_ADD, &fused, scratch, (buffer *[]){&skip, &again, &db[0], &copy[0]}, 4);
  same_bits(&skip, &dx[1]);
  buffer *all[] = {&x,       &dy,      &skip,  &w,     &mean,  &rstd,  &dx[0], &dx[1],
                   &copy[0], &copy[1], &dw[0], &dw[1], &db[0], &db[1], &again};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) buffer_free(all[i]);
}

static fused_case random_case(int round) {
  const int64_t width = random_width();
  fused_case c = {.rows = random_below(3) ? random_below(9) : random_below(90), .width = width ? width : 1};
  c.layer = random_below(2);
  c.groups = c.layer ? 1 : 1 + random_below(3);
  c.a = random_type(), c.b = random_type(), c.y = random_type();
  c.accumulate = random_below(2), c.copy = random_below(2);
  c.kind = round % 4 ? FILL_NORMAL : FILL_SPECIAL;
  return c;
}

static void test_add_norm(void **state) {
  (void)state;
  for_each_tier(k) for (int round = 0; round < 60; round++) {
    const fused_case c = random_case(round);
    forward_case(k, &c);
  }
}

static void test_norm_grad_add(void **state) {
  (void)state;
  for_each_tier(k) for (int round = 0; round < 60; round++) {
    const fused_case c = random_case(round);
    backward_case(k, &c);
  }
}

/* The types of a training step, at a width of whole vectors and one with a tail. */
static void test_training_types(void **state) {
  (void)state;
  for_each_tier(k) for (int which = 0; which < 8; which++) {
    const iso_dtype compute = which & 1 ? ISO_BF16 : ISO_F32;
    const fused_case c = {.rows = 70,
                          .groups = 1,
                          .width = which & 2 ? 128 : 77,
                          .a = ISO_F32,
                          .b = compute,
                          .y = compute,
                          .layer = which & 4,
                          .copy = compute == ISO_BF16};
    forward_case(k, &c);
    backward_case(k, &c);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_add_norm),
      cmocka_unit_test(test_norm_grad_add),
      cmocka_unit_test(test_training_types),
  };
  return cmocka_run_group_tests(tests, setup_teams, teardown_teams);
}
