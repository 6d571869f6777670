/* SPDX-License-Identifier: Apache-2.0
 *
 * add, cast, column_sum and cross-entropy, every tier. add and cast are exact: one float32 addition, one rounding.
 */
#include "rows_check.h"

static double round_to(double value, iso_dtype dtype) {
  return dtype == ISO_BF16 ? iso_bf16_to_f32(iso_bf16_from_f32((float)value)) : (float)value;
}

static void assert_same(double value, double expected) {
  if (isnan(expected)) {
    assert_true(isnan(value));
    return;
  }
  assert_true(value == expected && signbit(value) == signbit(expected));
}

static void test_add(void **state) {
  (void)state;
  for_each_tier(k) for (int round = 0; round < 80; round++) {
    int64_t rows = random_below(7), cols = random_width();
    buffer a = buffer_new(rows, cols, random_below(2) * 3, random_type()),
           b = buffer_new(rows, cols, random_below(2), random_type());
    buffer y = buffer_new(rows, cols, random_below(2), random_type());
    fill(&a, FILL_SPECIAL, 1), fill(&b, FILL_SPECIAL, 1), fill_nan(&y);
    iso_add_args args = {a.m, b.m, y.m};
    run_kernel(k, OP_ADD, &args, 0, (buffer *[]){&y}, 1);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < cols; j++)
        assert_same(get(&y, i, j), round_to((float)get(&a, i, j) + (float)get(&b, i, j), y.m.dtype));
    iso_add_args over = {a.m, b.m, round % 2 ? a.m : b.m};
    buffer *target = round % 2 ? &a : &b;
    if (target->m.dtype == y.m.dtype) {
      run_kernel(k, OP_ADD, &over, 0, &target, 1);
      for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) assert_same(get(target, i, j), get(&y, i, j));
    }
    buffer_free(&a), buffer_free(&b), buffer_free(&y);
  }
}

static void test_cast(void **state) {
  (void)state;
  for_each_tier(k) for (int round = 0; round < 80; round++) {
    int64_t rows = random_below(7), cols = random_width();
    buffer x = buffer_new(rows, cols, random_below(2) * 3, random_type()),
           y = buffer_new(rows, cols, random_below(2), random_type());
    fill(&x, FILL_SPECIAL, 1), fill_nan(&y);
    iso_cast_args args = {x.m, y.m};
    run_kernel(k, OP_CAST, &args, 0, (buffer *[]){&y}, 1);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t j = 0; j < cols; j++) assert_same(get(&y, i, j), round_to(get(&x, i, j), y.m.dtype));
    buffer_free(&x), buffer_free(&y);
  }
}

/* Every upper half of a float32 with lower halves around the rounding borders: the bits of iso_bf16_from_f32, in bodies
 * and in tails. */
static void test_bf16_bits(void **state) {
  (void)state;
  static const uint32_t lower[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
  enum { COUNT = 65536 };
  uint32_t *bits = malloc(COUNT * sizeof *bits);
  iso_bf16 *out = malloc(COUNT * sizeof *out);
  iso_worker worker = {0, 1, NULL, NULL};
  for_each_tier(k) for (size_t l = 0; l < sizeof lower / sizeof *lower; l++) for (int tail = 0; tail < 2; tail++) {
    for (uint32_t i = 0; i < COUNT; i++) bits[i] = i << 16 | lower[l];
    iso_cast_args args = {{bits, 1, COUNT, COUNT, ISO_F32}, {out, 1, COUNT, COUNT, ISO_BF16}};
    if (tail) { /* rows of 5: all elements are in tails; the last one alone in its row */
      args.x = (iso_matrix){bits, COUNT / 5, 5, 6, ISO_F32}, args.y = (iso_matrix){out, COUNT / 5, 5, 6, ISO_BF16};
      args.x.rows = args.y.rows = COUNT / 6;
    }
    k->cast(&args, &worker);
    for (int64_t i = 0; i < args.x.rows; i++)
      for (int64_t j = 0; j < args.x.cols; j++) {
        int64_t at = i * args.x.ld + j;
        float x;
        memcpy(&x, &bits[at], sizeof x);
        assert_int_equal(out[at], iso_bf16_from_f32(x));
      }
  }
  free(bits), free(out);
}

static void test_column_sum(void **state) {
  (void)state;
  for_each_tier(k) for (int round = 0; round < 60; round++) {
    int64_t rows = round % 6 == 5 ? 2048 : random_below(round % 3 ? 5 : 200),
            cols = round % 6 == 5 ? 40 : random_width();
    buffer x = buffer_new(rows, cols, random_below(2) * 3, random_type()), out = buffer_new(1, cols, 0, ISO_F32);
    bool accumulate = round % 2;
    fill(&x, FILL_NORMAL, 1), fill(&out, FILL_NORMAL, 1);
    buffer before = buffer_new(1, cols, 0, ISO_F32);
    memcpy(before.m.data, out.m.data, out.bytes);
    if (!accumulate) fill_nan(&out);
    iso_column_sum_args args = {x.m, floats(&out), accumulate};
    run_kernel(k, OP_COLUMN_SUM, &args, iso_column_sum_scratch(rows, cols, 5), (buffer *[]){&out}, 1);
    for (int64_t j = 0; j < cols; j++) {
      double sum = accumulate ? get(&before, 0, j) : 0, size = fabs(sum);
      for (int64_t i = 0; i < rows; i++) sum += get(&x, i, j), size += fabs(get(&x, i, j));
      assert_close(get(&out, 0, j), sum, 1e-6 * size, ISO_F32, 0, j);
    }
    buffer_free(&x), buffer_free(&out), buffer_free(&before);
  }
}

/* Columns [first, first + count) of m. */
static iso_matrix columns_of(iso_matrix m, int64_t first, int64_t count) {
  m.data = (char *)m.data + (size_t)first * iso_dtype_size(m.dtype);
  m.cols = count;
  return m;
}

/* Exponentials by blocks into dz, then what brings them together. */
static void run_cross_entropy(const iso_kernels *k, const buffer *z, buffer *dz, buffer *loss, const int32_t *labels,
                              bool want) {
  const int64_t rows = z->m.rows, columns = z->m.cols, blocks = (columns + ISO_SOFTMAX_BLOCK - 1) / ISO_SOFTMAX_BLOCK;
  buffer tops = buffer_new(rows, blocks, 0, ISO_F32), sums = buffer_new(rows, blocks, 0, ISO_F32);
  buffer at_label = buffer_new(1, rows, 0, ISO_F32);
  fill_nan(&tops), fill_nan(&sums), fill_nan(&at_label);
  for (int64_t b = 0; b < blocks; b++) {
    const int64_t first = b * ISO_SOFTMAX_BLOCK;
    const int64_t count = columns - first < ISO_SOFTMAX_BLOCK ? columns - first : ISO_SOFTMAX_BLOCK;
    iso_softmax_part_args part = {columns_of(z->m, first, count), columns_of(dz->m, first, count), floats(&tops) + b,
                                  floats(&sums) + b, blocks};
    if (!want) part.exponentials.data = NULL;
    run_kernel(k, OP_SOFTMAX_PART, &part, 0, (buffer *[]){dz, &tops, &sums}, 3);
  }
  for (int64_t i = 0; i < rows; i++)
    if (labels[i] >= 0) set(&at_label, 0, i, get(z, i, labels[i]));
  iso_softmax_finish_args finish = {dz->m, floats(&tops), floats(&sums), floats(&at_label), labels, floats(loss)};
  if (!want) finish.dlogits.data = NULL;
  run_kernel(k, OP_SOFTMAX_FINISH, &finish, 0, (buffer *[]){dz, &sums, loss}, 3);
  buffer_free(&tops), buffer_free(&sums), buffer_free(&at_label);
}

static void cross_entropy_case(const iso_kernels *k, int64_t rows, int64_t columns, iso_dtype type, double scale,
                               fill_kind kind, bool want, double offset) {
  buffer z = buffer_new(rows, columns, random_below(2) * 3, ISO_F32),
         dz = buffer_new(rows, columns, random_below(2), type);
  buffer loss = buffer_new(1, rows, 0, ISO_F32);
  int32_t *labels = malloc(sizeof(int32_t) * (size_t)(rows + 1));
  fill(&z, kind, scale), fill_nan(&dz), fill_nan(&loss);
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) set(&z, i, j, get(&z, i, j) + offset);
  for (int64_t i = 0; i < rows; i++) labels[i] = random_below(5) == 0 ? -100 : (int32_t)random_below(columns);
  run_cross_entropy(k, &z, &dz, &loss, labels, want);
  for (int64_t i = 0; i < rows; i++) {
    double top = -INFINITY, sum = 0;
    bool broken = false, ignored = labels[i] < 0;
    for (int64_t j = 0; j < columns; j++) {
      broken = broken || isnan(get(&z, i, j)) || get(&z, i, j) == INFINITY;
      if (get(&z, i, j) > top) top = get(&z, i, j);
    }
    broken = broken || top == -INFINITY;
    for (int64_t j = 0; j < columns; j++) sum += exp(get(&z, i, j) - top);
    double expected = ignored ? 0 : broken ? NAN : log(sum) + (top - get(&z, i, labels[i]));
    /* 1e-6 of the loss, or of the terms it is the difference of when it is nearly zero */
    assert_close(get(&loss, 0, i), expected, 1e-6 * fabs(expected) + 2e-7 * fmin(log(sum) + 1, 1), ISO_F32, i, 0);
    for (int64_t j = 0; want && j < columns; j++) {
      double p = ignored ? 0 : broken ? NAN : exp(get(&z, i, j) - top) / sum;
      double bound = 1e-6 * p + UNIT * (top - get(&z, i, j) < 104 ? top - get(&z, i, j) : 104) * p + 0x1p-148;
      if (type == ISO_BF16) bound += 0x1.02p-8 * p + 0x1p-134; /* exponentials are rounded, and then probabilities */
      if (j == labels[i] && !isnan(p)) bound += 2 * UNIT, p -= 1;
      assert_close(get(&dz, i, j), p, bound, type, i, j);
    }
  }
  free(labels);
  buffer_free(&z), buffer_free(&dz), buffer_free(&loss);
}

static void test_cross_entropy(void **state) {
  (void)state;
  for_each_tier(k) {
    for (int round = 0; round < 60; round++) {
      int64_t columns = random_width();
      cross_entropy_case(k, random_below(7), columns ? columns : 1, compute_types[round % 2], round % 5 ? 3 : 30,
                         round % 3 ? FILL_NORMAL : FILL_SPECIAL, round % 7 != 0, 0);
    }
    cross_entropy_case(k, 6, 50257, ISO_BF16, 2, FILL_NORMAL, true, 0);
    for (int64_t columns = 1; columns < 40;
         columns += 3) /* all far below zero: a missing lane must not be the maximum */
      cross_entropy_case(k, 3, columns, ISO_F32, 1, FILL_NORMAL, true, -1000);
    for (int64_t i = -1; i < 2; i++)
      cross_entropy_case(k, 5, ISO_SOFTMAX_BLOCK * 2 + i, compute_types[i & 1], 3, FILL_NORMAL, true, 0);
    cross_entropy_case(k, 2, 5000, ISO_F32, 0, FILL_NORMAL, true, 0); /* all equal: log(5000) */
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_add),        cmocka_unit_test(test_cast),          cmocka_unit_test(test_bf16_bits),
      cmocka_unit_test(test_column_sum), cmocka_unit_test(test_cross_entropy),
  };
  return cmocka_run_group_tests(tests, setup_teams, teardown_teams);
}
