/* SPDX-License-Identifier: Apache-2.0
 *
 * flat_add, grad_round and adamw: the same bits in every tier (replaying a log must not depend on the machine's width),
 * against a float32 loop written here and, for adamw, within bounds of float64.
 */
#include "rows_check.h"

static void test_flat_add(void **state) {
  (void)state;
  for_each_tier(k) for (int round = 0; round < 40; round++) {
    int64_t count = random_below(600), begin = random_below(count + 1), end = begin + random_below(count - begin + 1);
    buffer dst = buffer_new(1, count, 0, ISO_F32), src = buffer_new(1, count, 0, ISO_F32),
           before = buffer_new(1, count, 0, ISO_F32);
    fill(&dst, FILL_SPECIAL, 1), fill(&src, FILL_SPECIAL, 1);
    memcpy(before.m.data, dst.m.data, dst.bytes);
    iso_flat_add_args args = {floats(&dst), floats(&src), begin, end};
    run_kernel(k, OP_FLAT_ADD, &args, 0, (buffer *[]){&dst}, 1);
    for (int64_t i = 0; i < count; i++) {
      float expected = floats(&before)[i];
      if (i >= begin && i < end) expected += floats(&src)[i];
      assert_true(floats(&dst)[i] == expected || (isnan(floats(&dst)[i]) && isnan(expected)));
    }
    buffer_free(&dst), buffer_free(&src), buffer_free(&before);
  }
}

/* One range of blocks, a last block that ends anywhere. */
static void grad_round_case(int64_t begin, int64_t end, iso_dtype type, fill_kind kind, float count) {
  buffer sum = buffer_new(1, end, 0, ISO_F32), reduced = buffer_new(1, end, 0, type);
  int64_t blocks = (end + ISO_NORM_BLOCK - 1) / ISO_NORM_BLOCK;
  buffer squares = buffer_new(1, blocks * 2, 0, ISO_F32), first_reduced = buffer_new(1, end, 0, type);
  unsigned char first_squares[64];
  fill(&sum, kind, 3), fill_nan(&reduced), fill_nan(&squares);
  assert_true(squares.bytes <= sizeof first_squares);
  for_each_tier(k) {
    iso_grad_round_args args = {floats(&sum), reduced.m.data, type, (double *)squares.m.data, count, begin, end};
    run_kernel(k, OP_GRAD_ROUND, &args, 0, (buffer *[]){&reduced, &squares}, 2);
    if (tier_ == 0) {
      memcpy(first_reduced.m.data, reduced.m.data, reduced.bytes), memcpy(first_squares, squares.m.data, squares.bytes);
      for (int64_t b = 0; b < blocks; b++) {
        double total = 0, value = ((double *)squares.m.data)[b];
        int64_t last = (b + 1) * ISO_NORM_BLOCK < end ? (b + 1) * ISO_NORM_BLOCK : end;
        for (int64_t i = b * ISO_NORM_BLOCK; i < last; i++) {
          float quotient = floats(&sum)[i] / count;
          double expected = type == ISO_BF16 ? iso_bf16_to_f32(iso_bf16_from_f32(quotient)) : quotient;
          if (i >= begin)
            assert_true(get(&reduced, 0, i) == expected || (isnan(expected) && isnan(get(&reduced, 0, i))));
          total += expected * expected;
        }
        if (b * ISO_NORM_BLOCK >= begin)
          assert_true((isnan(total) && isnan(value)) || total == value || fabs(total / value - 1) < 1e-12);
      }
    } else if (kind == FILL_NORMAL && count > 0) {
      assert_memory_equal(first_reduced.m.data, reduced.m.data, reduced.bytes);
      assert_memory_equal(first_squares, squares.m.data, squares.bytes);
    } else { /* NaNs: that they are NaNs */
      for (int64_t i = 0; i < end; i++)
        assert_true(get(&reduced, 0, i) == get(&first_reduced, 0, i) ||
                    (isnan(get(&reduced, 0, i)) && isnan(get(&first_reduced, 0, i))));
      for (int64_t b = begin / ISO_NORM_BLOCK; b < blocks; b++) {
        double value, first;
        memcpy(&value, (double *)squares.m.data + b, sizeof value);
        memcpy(&first, first_squares + b * (int64_t)sizeof first, sizeof first);
        assert_true(value == first || (isnan(value) && isnan(first)));
      }
    }
  }
  buffer_free(&sum), buffer_free(&reduced), buffer_free(&squares), buffer_free(&first_reduced);
}

static void test_grad_round(void **state) {
  (void)state;
  for (int type = 0; type < 2; type++) {
    grad_round_case(0, 0, compute_types[type], FILL_NORMAL, 1);
    grad_round_case(0, 1, compute_types[type], FILL_NORMAL, 7);
    grad_round_case(0, 13, compute_types[type], FILL_NORMAL, 3);
    grad_round_case(0, ISO_NORM_BLOCK + 29, compute_types[type], FILL_NORMAL, 1023);
    grad_round_case(ISO_NORM_BLOCK, 3 * ISO_NORM_BLOCK + 7, compute_types[type], FILL_NORMAL, 77);
    grad_round_case(0, 1000, compute_types[type], FILL_SPECIAL, 77);
    grad_round_case(0, 21, compute_types[type], FILL_NORMAL, 0);
  }
}

typedef struct adamw_case {
  int64_t count, begin, end;
  iso_dtype type;
  bool compute, refused;
  int64_t ranges;
} adamw_case;

static int compare_numbers(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

/* float64 with the same float32 hyperparameters; a step's error is a few units of each term. */
static void check_adamw(const iso_adamw_args *a, const buffer *w0, const buffer *m0, const buffer *v0, const buffer *g0,
                        int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    double w = get(w0, 0, i), m = get(m0, 0, i), v = get(v0, 0, i), g = get(g0, 0, i) * (double)a->clip;
    if (i >= a->begin && i < a->end && !a->refused) {
      bool decay = false;
      for (int64_t k = 0; k < a->decay_count; k++)
        decay = decay || (i >= a->decay_ranges[2 * k] && i < a->decay_ranges[2 * k + 1]);
      if (decay) w -= (double)a->lr * a->weight_decay * w;
      double kept = fabs(a->beta1 * m);
      m = a->beta1 * m + (1 - (double)a->beta1) * g;
      v = a->beta2 * v + (1 - (double)a->beta2) * g * g;
      double update = (double)a->lr / a->bias1 * m / (sqrt(v) / sqrt((double)a->bias2) + a->eps);
      assert_close(a->moment1[i], m, 4 * UNIT * (kept + fabs(m - kept)) + 4 * UNIT * fabs(g), ISO_F32, 0, i);
      assert_close(a->moment2[i], v, 6 * UNIT * v, ISO_F32, 0, i);
      double spread = (kept + fabs(g)) / (fabs(m) + 1e-30) + 1;
      assert_close(a->master[i], w - update, 4 * UNIT * fabs(w) + 12 * UNIT * fabs(update) * spread, ISO_F32, 0, i);
      if (a->compute) assert_int_equal(a->compute[i], iso_bf16_from_f32(a->master[i]));
    } else {
      assert_true(a->master[i] == (float)w && a->moment1[i] == (float)m && a->moment2[i] == (float)v);
    }
  }
}

static void run_adamw(const adamw_case *c) {
  int64_t count = c->count, ranges[16];
  buffer start[4] = {buffer_new(1, count, 0, ISO_F32), buffer_new(1, count, 0, ISO_F32),
                     buffer_new(1, count, 0, ISO_F32), buffer_new(1, count, 0, c->type)};
  buffer w = buffer_new(1, count, 0, ISO_F32), m = buffer_new(1, count, 0, ISO_F32),
         v = buffer_new(1, count, 0, ISO_F32);
  buffer compute = buffer_new(1, count, 0, ISO_BF16);
  buffer *outputs[] = {&w, &m, &v, &compute};
  unsigned char *first[4] = {NULL};
  for (int i = 0; i < 4; i++) fill(&start[i], FILL_NORMAL, i == 1 ? 0.1 : 1);
  for (int64_t i = 0; i < count; i++) set(&start[2], 0, i, fabs(get(&start[2], 0, i)) * 0.01);
  fill_nan(&compute);
  save(&compute);
  for (int64_t i = 0; i < 2 * c->ranges; i++) ranges[i] = random_below(count + 40);
  qsort(ranges, (size_t)(2 * c->ranges), sizeof *ranges, compare_numbers);
  iso_adamw_args args = {.master = floats(&w),
                         .moment1 = floats(&m),
                         .moment2 = floats(&v),
                         .reduced = start[3].m.data,
                         .reduced_type = c->type,
                         .compute = c->compute ? compute.m.data : NULL,
                         .decay_ranges = ranges,
                         .decay_count = c->ranges,
                         .begin = c->begin,
                         .end = c->end,
                         .lr = 0.05f, /* large, so that a fused multiply-add would show in the bits */
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.9f,
                         .clip = 0.37f,
                         .bias1 = 0.271f,
                         .bias2 = 0.142625f,
                         .refused = c->refused};
  for_each_tier(k) {
    for (int i = 0; i < 3; i++) memcpy(outputs[i]->m.data, start[i].m.data, start[i].bytes);
    restore(&compute);
    run_kernel(k, OP_ADAMW, &args, 0, outputs, 4);
    check_adamw(&args, &start[0], &start[1], &start[2], &start[3], count);
    for (int i = 0; i < 4; i++) {
      if (tier_ == 0) {
        first[i] = malloc(outputs[i]->bytes + 1);
        assert_non_null(first[i]);
        memcpy(first[i], outputs[i]->m.data, outputs[i]->bytes);
      } else {
        assert_memory_equal(first[i], outputs[i]->m.data, outputs[i]->bytes);
      }
    }
  }
  for (int i = 0; i < 4; i++) buffer_free(&start[i]), buffer_free(outputs[i]), free(first[i]);
}

static void test_adamw(void **state) {
  (void)state;
  for (int round = 0; round < 60; round++) {
    adamw_case c = {.count = random_below(round % 4 ? 200 : 3000)};
    c.begin = random_below(2) ? 0 : random_below(c.count + 1);
    c.end = random_below(2) ? c.count : c.begin + random_below(c.count - c.begin + 1);
    c.type = compute_types[round % 2], c.compute = round / 2 % 2, c.ranges = random_below(9),
    c.refused = round % 10 == 9;
    run_adamw(&c);
  }
}

/* A gradient of zeros on fresh moments divides by eps alone; subnormal moments stay exact. */
static void test_adamw_extremes(void **state) {
  (void)state;
  for_each_tier(k) {
    float w[19], m[19], v[19], g[19];
    for (int i = 0; i < 19; i++)
      w[i] = 1, m[i] = i % 3 ? 0 : 0x1p-140f, v[i] = i % 2 ? 0 : 0x1p-145f, g[i] = i % 5 ? 0 : 0x1p-120f;
    iso_adamw_args args = {.master = w,
                           .moment1 = m,
                           .moment2 = v,
                           .reduced = g,
                           .reduced_type = ISO_F32,
                           .end = 19,
                           .lr = 1e-3f,
                           .beta1 = 0.5f,
                           .beta2 = 0.5f,
                           .eps = 1e-8f,
                           .clip = 1,
                           .bias1 = 0.5f,
                           .bias2 = 0.5f};
    iso_worker worker = {0, 1, NULL, NULL};
    k->adamw(&args, &worker);
    for (int i = 0; i < 19; i++) {
      assert_true(m[i] == (i % 3 ? 0 : 0x1p-141f) + (i % 5 ? 0 : 0x1p-121f));
      assert_true(v[i] == (i % 2 ? 0 : 0x1p-146f));
      assert_true(w[i] <= 1 && w[i] > 0.99f);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_flat_add),
      cmocka_unit_test(test_grad_round),
      cmocka_unit_test(test_adamw),
      cmocka_unit_test(test_adamw_extremes),
  };
  return cmocka_run_group_tests(tests, setup_teams, teardown_teams);
}
