/* SPDX-License-Identifier: Apache-2.0
 *
 * Activations and RoPE, every tier: values and gradients against float64 formulas (C library functions), special
 * values, position independence, in-place use, threads, guards.
 *
 * Bounds: a chain of at most about 12 float32 roundings and an exponential of 1 ulp: 16 units of 2^-24 relative to the
 * largest term of the formula.
 */
#include "rows_check.h"

#define BOUND (16 * UNIT)

static double sigmoid(double x) {
  return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}
static double silu(double x) {
  return x * sigmoid(x);
}
static double gelu(double x, iso_gelu_form form) {
  if (form == ISO_GELU_ERF) return x * (0.5 * erfc(-x / sqrt(2)));
  double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
  return x * sigmoid(2 * u);
}
/* Derivatives by their formulas; test_reference_gradients checks these against central differences. */
static double silu_slope(double x) {
  return sigmoid(x) * (1 + (isinf(x) && x > 0 ? NAN : x * sigmoid(-x)));
}
static double gelu_slope(double x, iso_gelu_form form) {
  if (isinf(x)) return x > 0;
  if (form == ISO_GELU_ERF) return 0.5 * erfc(-x / sqrt(2)) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
  double c = sqrt(2 / M_PI), s = sigmoid(2 * c * (x + 0.044715 * x * x * x));
  double rest = sigmoid(-2 * c * (x + 0.044715 * x * x * x));
  return s + x * s * rest * 2 * c * (1 + 3 * 0.044715 * x * x);
}

static void test_reference_gradients(void **state) {
  (void)state;
  for (double x = -9; x < 9; x += 0.37) {
    double h = 1e-5;
    assert_true(fabs((silu(x + h) - silu(x - h)) / (2 * h) - silu_slope(x)) < 1e-9);
    for (int form = 0; form < 2; form++)
      assert_true(fabs((gelu(x + h, form) - gelu(x - h, form)) / (2 * h) - gelu_slope(x, form)) < 1e-9);
  }
}

static void swiglu_case(const iso_kernels *k, int64_t rows, int64_t cols, iso_dtype type, fill_kind kind) {
  buffer gate = buffer_new(rows, cols, random_below(2) * 3, type), up = buffer_new(rows, cols, random_below(2), type);
  buffer y = buffer_new(rows, cols, random_below(2) * 5, type), dy = buffer_new(rows, cols, 0, type);
  buffer dgate = buffer_new(rows, cols, random_below(2), type), dup = buffer_new(rows, cols, random_below(2), type);
  fill(&gate, kind, 3), fill(&up, FILL_NORMAL, 1), fill(&dy, FILL_NORMAL, 1);
  fill_nan(&y), fill_nan(&dgate), fill_nan(&dup);
  iso_swiglu_args forward = {gate.m, up.m, y.m};
  run_kernel(k, OP_SWIGLU, &forward, 0, (buffer *[]){&y}, 1);
  iso_swiglu_grad_args backward = {dy.m, gate.m, up.m, dgate.m, dup.m};
  run_kernel(k, OP_SWIGLU_GRAD, &backward, 0, (buffer *[]){&dgate, &dup}, 2);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      double g = get(&gate, i, j), u = get(&up, i, j), d = get(&dy, i, j);
      double value = silu(g) * u, dg = d * u * silu_slope(g), du = d * silu(g);
      double terms = fabs(d * u) * sigmoid(g) * (1 + fabs(g) * sigmoid(-g));
      assert_close(get(&y, i, j), value, BOUND * fabs(value) + 0x1p-125, type, i, j);
      assert_close(get(&dup, i, j), du, BOUND * fabs(du) + 0x1p-125, type, i, j);
      assert_close(get(&dgate, i, j), dg, BOUND * terms + 0x1p-120, type, i, j);
    }
  /* in place: y over up; dgate over gate and dup over dy */
  iso_swiglu_args over = {gate.m, up.m, up.m};
  buffer *up_only[] = {&up};
  run_kernel(k, OP_SWIGLU, &over, 0, up_only, 1);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      double a = get(&up, i, j), b = get(&y, i, j);
      assert_true(a == b || (isnan(a) && isnan(b)));
    }
  buffer *all[] = {&gate, &up, &y, &dy, &dgate, &dup};
  for (int i = 0; i < 6; i++) buffer_free(all[i]);
}

static void test_swiglu(void **state) {
  (void)state;
  for_each_tier(k) for (int round = 0; round < 60; round++)
      swiglu_case(k, random_below(6), random_width(), compute_types[round % 2], round % 3 ? FILL_NORMAL : FILL_SPECIAL);
}

static void gelu_case(const iso_kernels *k, int64_t rows, int64_t cols, iso_dtype type, iso_gelu_form form,
                      fill_kind kind) {
  buffer x = buffer_new(rows, cols, random_below(2) * 3, type), y = buffer_new(rows, cols, random_below(2), type);
  buffer dy = buffer_new(rows, cols, random_below(2), type), dx = buffer_new(rows, cols, random_below(2) * 2, type);
  fill(&x, kind, 3), fill(&dy, FILL_NORMAL, 1);
  fill_nan(&y), fill_nan(&dx);
  iso_gelu_args forward = {x.m, y.m, form};
  run_kernel(k, OP_GELU, &forward, 0, (buffer *[]){&y}, 1);
  iso_gelu_grad_args backward = {dy.m, x.m, dx.m, form};
  run_kernel(k, OP_GELU_GRAD, &backward, 0, (buffer *[]){&dx}, 1);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      double at = get(&x, i, j), d = get(&dy, i, j), value = gelu(at, form), slope = gelu_slope(at, form);
      /* the exponent x^2 / 2 (erf) or 2u (tanh) is up to 88 where the result is still normal: its rounding counts */
      double exponent = form == ISO_GELU_TANH ? fmin(fabs(1.6 * at * (1 + 0.045 * at * at)), 104) : 0;
      double factor = BOUND + 4 * UNIT * exponent;
      double terms = fabs(at) < 30 ? fabs(gelu_slope(-fabs(at), form)) + (at > 0) : 1;
      assert_close(get(&y, i, j), value, factor * fabs(value) + 0x1p-120, type, i, j);
      assert_close(get(&dx, i, j), d * slope, factor * fabs(d) * (terms + 0.5 * exp(-at * at / 2)) + 0x1p-115, type, i,
                   j);
    }
  buffer *all[] = {&x, &y, &dy, &dx};
  for (int i = 0; i < 4; i++) buffer_free(all[i]);
}

static void test_gelu(void **state) {
  (void)state;
  for_each_tier(k) for (int round = 0; round < 60; round++)
      gelu_case(k, random_below(6), random_width(), compute_types[round % 2], (iso_gelu_form)(round / 2 % 2),
                round % 3 ? FILL_NORMAL : FILL_SPECIAL);
}

/* The vector exponential and normal distribution over their whole range, through the kernels that use them. */
static void test_dense_range(void **state) {
  (void)state;
  int64_t count = 20011;
  buffer x = buffer_new(1, count, 0, ISO_F32), up = buffer_new(1, count, 0, ISO_F32),
         y = buffer_new(1, count, 0, ISO_F32);
  for (int64_t j = 0; j < count; j++) set(&x, 0, j, (double)j / (double)count * 120 - 100), set(&up, 0, j, 1);
  for_each_tier(k) {
    iso_swiglu_args silu_args = {x.m, up.m, y.m};
    run_kernel(k, OP_SWIGLU, &silu_args, 0, (buffer *[]){&y}, 1);
    for (int64_t j = 0; j < count; j++) {
      double expected = silu(get(&x, 0, j));
      assert_close(get(&y, 0, j), expected, 4 * UNIT * fabs(expected) + 100 * 0x1p-149, ISO_F32, 0, j);
    }
    iso_gelu_args gelu_args = {x.m, y.m, ISO_GELU_ERF};
    run_kernel(k, OP_GELU, &gelu_args, 0, (buffer *[]){&y}, 1);
    for (int64_t j = 0; j < count; j++) {
      double expected = gelu(get(&x, 0, j), ISO_GELU_ERF);
      assert_close(get(&y, 0, j), expected, 10 * UNIT * fabs(expected) + 100 * 0x1p-149, ISO_F32, 0, j);
    }
  }
  buffer_free(&x), buffer_free(&up), buffer_free(&y);
}

/* One value at every place of a row with a tail: the same bits everywhere, specials included (of a NaN, only that it is
 * one: its sign and payload follow operand order, which is the compiler's). */
static void test_position_independence(void **state) {
  (void)state;
  static const double values[] = {0.3, -0.0, -1e-40, 0x1p-149, INFINITY, -INFINITY, NAN, -90, 100, 3e38, -3e38};
  for_each_tier(k) for (int type = 0; type < 2; type++) for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
    int64_t count = 37;
    buffer x = buffer_new(1, count, 0, compute_types[type]), y = buffer_new(1, count, 0, compute_types[type]);
    buffer d = buffer_new(1, count, 0, compute_types[type]);
    for (int64_t j = 0; j < count; j++) set(&x, 0, j, values[v]), set(&d, 0, j, 0.7);
    iso_gelu_args g = {x.m, y.m, ISO_GELU_ERF}, t = {x.m, y.m, ISO_GELU_TANH};
    iso_swiglu_args s = {x.m, d.m, y.m};
    iso_gelu_grad_args gg = {d.m, x.m, y.m, ISO_GELU_ERF};
    const struct {
      kernel_op op;
      const void *args;
    } runs[] = {{OP_GELU, &g}, {OP_GELU, &t}, {OP_SWIGLU, &s}, {OP_GELU_GRAD, &gg}};
    for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
      run_kernel(k, runs[r].op, runs[r].args, 0, (buffer *[]){&y}, 1);
      size_t size = element_size(y.m.dtype);
      for (int64_t j = 1; j < count; j++) {
        if (isnan(get(&y, 0, 0)))
          assert_true(isnan(get(&y, 0, j)));
        else
          assert_memory_equal(y.m.data, (char *)y.m.data + (size_t)j * size, size);
      }
    }
    buffer_free(&x), buffer_free(&y), buffer_free(&d);
  }
}

static void rope_case(const iso_kernels *k, int64_t rows, int64_t heads, int64_t half, iso_dtype type, bool inverse) {
  int64_t table = 11;
  buffer x = buffer_new(rows, heads * 2 * half, random_below(2) * 3, type);
  buffer y = buffer_new(rows, heads * 2 * half, random_below(2), type);
  buffer cosine = buffer_new(table, half, 0, ISO_F32), sine = buffer_new(table, half, 0, ISO_F32);
  int32_t *positions = malloc(sizeof(int32_t) * (size_t)(rows + 1));
  for (int64_t i = 0; i < rows; i++) positions[i] = (int32_t)random_below(table);
  fill(&x, FILL_NORMAL, 2), fill_nan(&y);
  for (int64_t p = 0; p < table; p++)
    for (int64_t j = 0; j < half; j++)
      set(&cosine, p, j, cos((double)(p * (j + 1)))), set(&sine, p, j, sin((double)(p * (j + 1))));
  iso_rope_args args = {x.m, y.m, positions, floats(&cosine), floats(&sine), 2 * half, inverse};
  run_kernel(k, OP_ROPE, &args, 0, (buffer *[]){&y}, 1);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t j = 0; j < half; j++) {
        int64_t low = h * 2 * half + j, high = low + half;
        double c = get(&cosine, positions[i], j), s = get(&sine, positions[i], j) * (inverse ? -1 : 1);
        double a = get(&x, i, low), b = get(&x, i, high);
        assert_close(get(&y, i, low), a * c - b * s, 2 * UNIT * (fabs(a * c) + fabs(b * s)), type, i, low);
        assert_close(get(&y, i, high), b * c + a * s, 2 * UNIT * (fabs(b * c) + fabs(a * s)), type, i, high);
      }
  args.y = x.m; /* in place */
  run_kernel(k, OP_ROPE, &args, 0, (buffer *[]){&x}, 1);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < x.m.cols; j++) assert_true(get(&x, i, j) == get(&y, i, j));
  free(positions);
  buffer_free(&x), buffer_free(&y), buffer_free(&cosine), buffer_free(&sine);
}

static void test_rope(void **state) {
  (void)state;
  static const int64_t halves[] = {1, 2, 5, 8, 12, 16, 24, 32, 48, 64};
  for_each_tier(k) for (int round = 0; round < 40; round++) rope_case(
      k, random_below(8), 1 + random_below(4), halves[random_below(10)], compute_types[round % 2], round / 2 % 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reference_gradients),
      cmocka_unit_test(test_swiglu),
      cmocka_unit_test(test_gelu),
      cmocka_unit_test(test_dense_range),
      cmocka_unit_test(test_position_independence),
      cmocka_unit_test(test_rope),
  };
  return cmocka_run_group_tests(tests, setup_teams, teardown_teams);
}
