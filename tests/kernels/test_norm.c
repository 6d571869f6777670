/* SPDX-License-Identifier: Apache-2.0
 *
 * RMSNorm and LayerNorm, every tier: forward against float64, gradients against float64 formulas that are themselves
 * checked by central differences, both types, groups, gaps, special values, threads, guards.
 *
 * Bounds: a sum over D elements in 4 x VL lanes costs at most D / 32 + 8 roundings, of which the square root halves the
 * effect; typical errors are far smaller, and 1e-6 relative is what the kernels promise up to D = 4096.
 */
#include "rows_check.h"

typedef struct norm_case {
  int64_t rows, groups, width;
  iso_dtype x, y, dx;
  bool layer, bias, accumulate;
  fill_kind kind;
  double offset; /* added to x: a mean that is large against the deviation */
} norm_case;

typedef struct statistics {
  double mean, rstd, size; /* size: mean |x| */
} statistics;

static statistics group_statistics(const buffer *x, int64_t row, int64_t first, const norm_case *c, double eps) {
  double mean = 0, squares = 0, size = 0;
  for (int64_t j = 0; j < c->width; j++) mean += get(x, row, first + j), size += fabs(get(x, row, first + j));
  mean = c->layer ? mean / (double)c->width : 0;
  for (int64_t j = 0; j < c->width; j++) squares += pow(get(x, row, first + j) - mean, 2);
  return (statistics){mean, 1 / sqrt(squares / (double)c->width + eps), size / (double)c->width};
}

static void check_forward(const norm_case *c, const buffer *x, const buffer *y, const float *w, const float *b,
                          const float *mean, const float *rstd, float eps) {
  for (int64_t i = 0; i < c->rows; i++)
    for (int64_t g = 0; g < c->groups; g++) {
      statistics s = group_statistics(x, i, g * c->width, c, eps);
      double mean_error = isfinite(s.size) ? 6 * UNIT * s.size : 0; /* else everything is 0, infinite or a NaN */
      assert_close(rstd[i * c->groups + g], s.rstd, 1e-6 * s.rstd * (1 + s.rstd * mean_error), ISO_F32, i, g);
      if (c->layer) assert_close(mean[i * c->groups + g], s.mean, mean_error, ISO_F32, i, g);
      for (int64_t j = 0; j < c->width; j++) {
        double normal = (get(x, i, g * c->width + j) - s.mean) * s.rstd, value = normal * w[j];
        double bound = 1e-6 * fabs(value) + fabs(w[j]) * s.rstd * mean_error;
        if (b) value += b[j], bound += UNIT * fabs(value);
        assert_close(get(y, i, g * c->width + j), value, bound, c->y, i, g * c->width + j);
      }
    }
}

/* dy is in y's place. Statistics as the forward pass left them, so that only the backward pass is judged. */
static void check_backward(const norm_case *c, const iso_norm_grad_args *args, const buffer *dweight_before,
                           const buffer *dbias_before) {
  int64_t width = c->width;
  double *dw = calloc((size_t)width * 4 + 1, sizeof(double)), *db = dw + width, *dw_size = db + width,
         *db_size = dw_size + width;
  for (int64_t i = 0; i < c->rows; i++)
    for (int64_t g = 0; g < c->groups; g++) {
      double mean = c->layer ? args->mean[i * c->groups + g] : 0, rstd = args->rstd[i * c->groups + g];
      double sum_g = 0, sum_gn = 0, size_g = 0, size_gn = 0;
      for (int64_t j = 0; j < width; j++) {
        double d = matrix_get(&args->dy, i, g * width + j),
               normal = (matrix_get(&args->x, i, g * width + j) - mean) * rstd;
        sum_g += d * args->weight[j], size_g += fabs(d * args->weight[j]);
        sum_gn += d * args->weight[j] * normal, size_gn += fabs(d * args->weight[j] * normal);
        dw[j] += d * normal, dw_size[j] += fabs(d * normal);
        db[j] += d, db_size[j] += fabs(d);
      }
      double mean_g = c->layer ? sum_g / (double)width : 0, mean_gn = sum_gn / (double)width;
      for (int64_t j = 0; j < width; j++) {
        double d = matrix_get(&args->dy, i, g * width + j),
               normal = (matrix_get(&args->x, i, g * width + j) - mean) * rstd;
        double dx = rstd * (d * args->weight[j] - mean_g - normal * mean_gn);
        double size = fabs(rstd) * (fabs(d * args->weight[j]) + (c->layer ? size_g : 0) / (double)width +
                                    fabs(normal) * size_gn / (double)width);
        assert_close(matrix_get(&args->dx, i, g * width + j), dx, 1e-6 * size, c->dx, i, g * width + j);
      }
    }
  for (int64_t j = 0; j < width; j++) {
    double before_w = c->accumulate ? get(dweight_before, 0, j) : 0,
           before_b = c->accumulate ? get(dbias_before, 0, j) : 0;
    assert_close(args->dweight[j], before_w + dw[j], 1e-6 * (dw_size[j] + fabs(before_w)), ISO_F32, 0, j);
    if (args->dbias)
      assert_close(args->dbias[j], before_b + db[j], 1e-6 * (db_size[j] + fabs(before_b)), ISO_F32, 0, j);
  }
  free(dw);
}

static buffer copy_of(const buffer *b) {
  buffer copy = buffer_new(b->m.rows, b->m.cols, b->m.ld - b->m.cols, b->m.dtype);
  memcpy(copy.map, b->map, b->size);
  return copy;
}

static void run_case(const iso_kernels *k, const norm_case *c) {
  int64_t cols = c->groups * c->width;
  float eps = 1e-5f;
  buffer x = buffer_new(c->rows, cols, random_below(2) * 3, c->x), y = buffer_new(c->rows, cols, random_below(2), c->y);
  buffer dx = buffer_new(c->rows, cols, random_below(2) * 5, c->dx);
  buffer weight = buffer_new(1, c->width, 0, ISO_F32), bias = buffer_new(1, c->width, 0, ISO_F32);
  buffer mean = buffer_new(1, c->rows * c->groups, 0, ISO_F32), rstd = buffer_new(1, c->rows * c->groups, 0, ISO_F32);
  buffer dweight = buffer_new(1, c->width, 0, ISO_F32), dbias = buffer_new(1, c->width, 0, ISO_F32);
  fill(&x, c->kind, 1.5), fill(&weight, FILL_NORMAL, 1), fill(&bias, FILL_NORMAL, 1);
  for (int64_t i = 0; i < c->rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      double value = get(&x, i, j);
      if (fabs(value) > 1e30 && !isinf(value)) value = 1; /* squares that overflow are no use to anyone */
      set(&x, i, j, value + c->offset);
    }
  fill_nan(&y), fill_nan(&mean), fill_nan(&rstd), fill_nan(&dx);
  fill(&dweight, FILL_NORMAL, c->accumulate ? 1 : 0), fill(&dbias, FILL_NORMAL, 1);
  if (!c->accumulate) fill_nan(&dweight), fill_nan(&dbias);
  iso_norm_args forward = {x.m,
                           y.m,
                           floats(&weight),
                           c->bias ? floats(&bias) : NULL,
                           c->width,
                           eps,
                           c->layer ? floats(&mean) : NULL,
                           floats(&rstd),
                           c->layer,
                           0};
  run_kernel(k, OP_NORM, &forward, 0, (buffer *[]){&y, &mean, &rstd}, 3);
  check_forward(c, &x, &y, floats(&weight), c->bias ? floats(&bias) : NULL, floats(&mean), floats(&rstd), eps);
  fill(&y, FILL_NORMAL, 1); /* dy from here on */
  buffer dweight_before = copy_of(&dweight), dbias_before = copy_of(&dbias);
  iso_norm_grad_args backward = {y.m,
                                 x.m,
                                 dx.m,
                                 floats(&weight),
                                 c->layer ? floats(&mean) : NULL,
                                 floats(&rstd),
                                 c->width,
                                 floats(&dweight),
                                 c->bias ? floats(&dbias) : NULL,
                                 c->layer,
                                 c->accumulate};
  size_t scratch = iso_norm_grad_scratch(c->rows, cols, c->width, 5);
  run_kernel(k, OP_NORM_GRAD, &backward, scratch, (buffer *[]){&dx, &dweight, &dbias}, 3);
  if (c->kind == FILL_NORMAL) check_backward(c, &backward, &dweight_before, &dbias_before);
  buffer *all[] = {&x, &y, &dx, &weight, &bias, &mean, &rstd, &dweight, &dbias, &dweight_before, &dbias_before};
  for (int i = 0; i < 11; i++) buffer_free(all[i]);
}

static void test_random_shapes(void **state) {
  (void)state;
  for_each_tier(k) for (int round = 0; round < 60; round++) {
    int64_t width = random_width();
    norm_case c = {.rows = random_below(3) ? random_below(9) : random_below(90), .groups = 1 + random_below(3)};
    c.width = width ? width : 1;
    c.x = random_type(), c.y = random_type(), c.dx = random_type();
    c.layer = random_below(2), c.bias = c.layer && random_below(2), c.accumulate = random_below(2);
    c.kind = round % 4 ? FILL_NORMAL : FILL_SPECIAL;
    run_case(k, &c);
  }
}

/* Every pair of types that a training step has, at a width of whole vectors and one with a tail. */
static void test_types(void **state) {
  (void)state;
  for_each_tier(k) for (int types = 0; types < 8; types++) for (int layer = 0; layer < 2; layer++) {
    norm_case c = {.rows = 40, .groups = 1, .width = types % 2 ? 64 : 77, .layer = layer, .bias = layer};
    c.x = compute_types[types & 1], c.y = compute_types[types >> 1 & 1], c.dx = compute_types[types >> 2];
    run_case(k, &c);
  }
}

/* dweight over 2,048 rows keeps 1e-6; so does y at D = 4096; a mean 100 times the deviation costs what it must. */
static void test_accuracy(void **state) {
  (void)state;
  for_each_tier(k) {
    norm_case rows = {.rows = 2048, .groups = 1, .width = 24, .layer = true, .bias = true};
    run_case(k, &rows);
    norm_case heads = {.rows = 300, .groups = 5, .width = 16};
    run_case(k, &heads);
    norm_case wide = {.rows = 4, .groups = 1, .width = 4096, .layer = true, .bias = true};
    run_case(k, &wide);
    norm_case off = {.rows = 4, .groups = 1, .width = 200, .layer = true, .offset = 100};
    run_case(k, &off);
  }
}

/* dx in the storage of dy. */
static void test_in_place(void **state) {
  (void)state;
  for_each_tier(k) for (int layer = 0; layer < 2; layer++) {
    int64_t n = 37, width = 45;
    buffer x = buffer_new(n, width, 2, ISO_F32), dy = buffer_new(n, width, 3, ISO_F32),
           dx = buffer_new(n, width, 0, ISO_F32);
    buffer w = buffer_new(1, width, 0, ISO_F32), mean = buffer_new(1, n, 0, ISO_F32),
           rstd = buffer_new(1, n, 0, ISO_F32);
    buffer dw = buffer_new(1, width, 0, ISO_F32);
    fill(&x, FILL_NORMAL, 1), fill(&dy, FILL_NORMAL, 1), fill(&w, FILL_NORMAL, 1), fill(&mean, FILL_NORMAL, 1);
    fill(&rstd, FILL_NORMAL, 1);
    iso_norm_grad_args args = {dy.m,  x.m,         dx.m, floats(&w), floats(&mean), floats(&rstd),
                               width, floats(&dw), NULL, layer,      false};
    size_t scratch = iso_norm_grad_scratch(n, width, width, 5);
    run_kernel(k, OP_NORM_GRAD, &args, scratch, (buffer *[]){&dx, &dw}, 2);
    args.dx = dy.m;
    run_kernel(k, OP_NORM_GRAD, &args, scratch, (buffer *[]){&dy, &dw}, 2);
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < width; j++) assert_true(get(&dx, i, j) == get(&dy, i, j));
    buffer *all[] = {&x, &dy, &dx, &w, &mean, &rstd, &dw};
    for (int i = 0; i < 7; i++) buffer_free(all[i]);
  }
}

static double loss_of(const double *x, const double *w, const double *b, const double *dy, int64_t width, bool layer,
                      double eps) {
  double mean = 0, squares = 0, loss = 0;
  for (int64_t j = 0; layer && j < width; j++) mean += x[j] / (double)width;
  for (int64_t j = 0; j < width; j++) squares += (x[j] - mean) * (x[j] - mean) / (double)width;
  for (int64_t j = 0; j < width; j++) loss += dy[j] * ((x[j] - mean) / sqrt(squares + eps) * w[j] + b[j]);
  return loss;
}

/* The gradients against central differences of the float64 forward pass. */
static void test_central_differences(void **state) {
  (void)state;
  enum { WIDTH = 21 };
  for_each_tier(k) for (int layer = 0; layer < 2; layer++) {
    buffer x = buffer_new(1, WIDTH, 0, ISO_F32), y = buffer_new(1, WIDTH, 0, ISO_F32),
           dx = buffer_new(1, WIDTH, 0, ISO_F32);
    float w[WIDTH], b[WIDTH], dw[WIDTH], db[WIDTH], mean, rstd, eps = 1e-5f;
    double in[WIDTH], weight[WIDTH], bias[WIDTH], dy[WIDTH], h = 1e-5;
    fill(&x, FILL_NORMAL, 1);
    for (int j = 0; j < WIDTH; j++) {
      in[j] = get(&x, 0, j), w[j] = (float)random_normal(), b[j] = (float)random_normal();
      weight[j] = w[j], bias[j] = b[j];
    }
    iso_worker worker = {0, 1, NULL, aligned_alloc(64, 4096)};
    iso_norm_args forward = {x.m, y.m, w, layer ? b : NULL, WIDTH, eps, layer ? &mean : NULL, &rstd, layer, 0};
    k->norm(&forward, &worker);
    fill(&y, FILL_NORMAL, 1);
    for (int j = 0; j < WIDTH; j++) dy[j] = get(&y, 0, j);
    iso_norm_grad_args backward = {y.m,   x.m,  dx.m, w, layer ? &mean : NULL, &rstd, WIDTH, dw, layer ? db : NULL,
                                   layer, false};
    assert_true(iso_norm_grad_scratch(1, WIDTH, WIDTH, 1) <= 4096);
    k->norm_grad(&backward, &worker);
    double *parts[] = {in, weight, bias};
    for (int part = 0; part < (layer ? 3 : 2); part++)
      for (int j = 0; j < WIDTH; j++) {
        double keep = parts[part][j];
        parts[part][j] = keep + h;
        double up = loss_of(in, weight, bias, dy, WIDTH, layer, eps);
        parts[part][j] = keep - h;
        double down = loss_of(in, weight, bias, dy, WIDTH, layer, eps);
        parts[part][j] = keep;
        double value = part == 0 ? get(&dx, 0, j) : part == 1 ? dw[j] : db[j];
        assert_close(value, (up - down) / (2 * h), 4e-6, ISO_F32, part, j);
      }
    free(worker.scratch);
    buffer_free(&x), buffer_free(&y), buffer_free(&dx);
  }
}

/* Inference: no statistics wanted. */
static void test_no_statistics(void **state) {
  (void)state;
  for_each_tier(k) for (int layer = 0; layer < 2; layer++) {
    buffer x = buffer_new(3, 40, 0, ISO_F32), y = buffer_new(3, 40, 0, ISO_F32), z = buffer_new(3, 40, 0, ISO_F32);
    float w[40], mean[3], rstd[3];
    fill(&x, FILL_NORMAL, 1);
    for (int j = 0; j < 40; j++) w[j] = (float)random_normal();
    iso_norm_args with = {x.m, y.m, w, NULL, 40, 1e-6f, mean, rstd, layer, 0},
                  without = {x.m, z.m, w, NULL, 40, 1e-6f, NULL, NULL, layer, 0};
    run_kernel(k, OP_NORM, &with, 0, (buffer *[]){&y}, 1);
    run_kernel(k, OP_NORM, &without, 0, (buffer *[]){&z}, 1);
    assert_memory_equal(y.m.data, z.m.data, y.bytes);
    buffer_free(&x), buffer_free(&y), buffer_free(&z);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_shapes),
      cmocka_unit_test(test_types),
      cmocka_unit_test(test_accuracy),
      cmocka_unit_test(test_in_place),
      cmocka_unit_test(test_central_differences),
      cmocka_unit_test(test_no_statistics),
  };
  return cmocka_run_group_tests(tests, setup_teams, teardown_teams);
}
