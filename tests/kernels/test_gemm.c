/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products of every tier against float64, with the bound of a chain of K float32 multiply-adds:
 * |c - exact| <= (K + 2) 2^-24 sum |a| |b| and the rounding of c's own type.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/guarded.h"

#include <math.h>

typedef struct problem {
  int64_t m, n, k;
  iso_dtype type, ctype;
  bool a_transposed, b_transposed, accumulate, bias;
  int64_t gap, shift;
  bool special; /* NaN, Inf and subnormals strewn in */
} problem;

static iso_tier tier;
static const iso_kernels *kernels;

static void call_gemm(const void *args, const iso_worker *worker) {
  kernels->gemm(args, worker);
}

static float special_value(void) {
  static const float values[] = {NAN, INFINITY, -INFINITY, 0x1p-130f, -0x1.8p-127f, 0.0f, -0.0f};
  return values[test_below(ISO_COUNT(values))];
}

static void strew_specials(guarded *g) {
  if (g->m.rows == 0 || g->m.cols == 0) return;
  for (int i = 0; i < 3; i++) matrix_set(&g->m, test_below(g->m.rows), test_below(g->m.cols), special_value());
  matrix_set(&g->m, g->m.rows - 1, g->m.cols - 1, special_value());
}

/* An operand's element as the tier takes it: vdpbf16ps reads subnormals as zero. */
static double operand(const problem *p, const iso_matrix *matrix, bool transposed, int64_t i, int64_t j) {
  float x = transposed ? matrix_get(matrix, j, i) : matrix_get(matrix, i, j);
  bool few_rows = p->m <= 4 && !p->a_transposed && p->b_transposed; /* widened to float32 in every tier */
  bool flushed = tier == ISO_TIER_AVX512BF16 && p->type == ISO_BF16 && !few_rows;
  return flushed && fabsf(x) < 0x1p-126f ? 0.0 : x;
}

/* One element against the exact sum. */
static void check_element(const problem *p, const iso_gemm_args *args, const iso_matrix *before, int64_t i, int64_t j) {
  double sum = 0.0, size = 0.0;
  for (int64_t k = 0; k < p->k; k++) {
    double a = operand(p, &args->a, p->a_transposed, i, k);
    double b = operand(p, &args->b, p->b_transposed, k, j);
    sum += a * b;
    size += fabs(a * b);
  }
  double extra = p->bias ? args->bias[j] : p->accumulate ? matrix_get(before, i, j) : 0.0;
  double exact = sum + extra, got = matrix_get(&args->c, i, j);
  double bound = (double)(p->k + 2) * 0x1p-24 * (size + fabs(extra)) + (double)(p->k + 2) * 0x1p-148;
  if (tier == ISO_TIER_AVX512BF16 && p->type == ISO_BF16) /* so are its results */
    bound += (double)(p->k + 2) * 0x1p-125;
  if (p->ctype == ISO_BF16) bound = bound * 1.01 + fabs(exact) * 0x1p-8 + 0x1p-134;
  bool good = isnan(exact) ? isnan(got) : isinf(exact) ? got == exact : fabs(got - exact) <= bound;
  if (!good)
    fail_msg("%s %s %ldx%ldx%ld ta %d tb %d acc %d bias %d: c[%ld][%ld] = %g, exact %g, bound %g", iso_tier_name(tier),
             iso_dtype_name(p->type), (long)p->m, (long)p->n, (long)p->k, p->a_transposed, p->b_transposed,
             p->accumulate, p->bias, (long)i, (long)j, got, exact, bound);
}

static void check_problem(const problem *p) {
  guarded a =
      guarded_create(p->a_transposed ? p->k : p->m, p->a_transposed ? p->m : p->k, p->gap, p->shift, p->type, false);
  guarded b = guarded_create(p->b_transposed ? p->n : p->k, p->b_transposed ? p->k : p->n, 2 * p->gap, p->shift,
                             p->type, false);
  guarded c = guarded_create(p->m, p->n, p->gap, p->shift, p->ctype, true);
  guarded bias = guarded_create(1, p->n, 0, p->shift, ISO_F32, false);
  guarded_fill(&a, 1.0f);
  guarded_fill(&b, 1.0f);
  guarded_fill(&bias, 1.0f);
  if (p->accumulate) guarded_fill(&c, 3.0f); /* else full of NaNs: old values must not matter */
  if (p->special) {
    strew_specials(&a);
    strew_specials(&b);
  }
  guarded before = guarded_copy(&c);
  guarded first = {0};
  static const int team_sizes[] = {1, 2, 3, 5};
  for (size_t t = 0; t < ISO_COUNT(team_sizes); t++) {
    memcpy(c.block, before.block, c.bytes);
    iso_gemm_args args = {.a = a.m,
                          .b = b.m,
                          .c = c.m,
                          .a_transposed = p->a_transposed,
                          .b_transposed = p->b_transposed,
                          .accumulate = p->accumulate,
                          .bias = p->bias ? bias.m.data : NULL};
    size_t scratch = iso_gemm_scratch(p->m, p->n, p->k, p->type, team_sizes[t]);
    assert_true(kernel_run(call_gemm, &args, scratch, team_sizes[t]));
    assert_true(guarded_intact(&c));
    if (t == 0) {
      first = guarded_copy(&c);
      int64_t step = p->m * p->n * p->k > 2000000 ? 37 : 1; /* large ones: a sample, and the last element */
      for (int64_t at = 0; at < p->m * p->n; at += step) check_element(p, &args, &before.m, at / p->n, at % p->n);
      if (p->m * p->n > 0) check_element(p, &args, &before.m, p->m - 1, p->n - 1);
    } else {
      assert_true(guarded_same(&first, &c));
    }
  }
  guarded_destroy(&a);
  guarded_destroy(&b);
  guarded_destroy(&c);
  guarded_destroy(&bias);
  guarded_destroy(&before);
  guarded_destroy(&first);
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
  static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 47, 64, 65, 90};
  problem p = {.m = sizes[test_below(ISO_COUNT(sizes))],
               .n = sizes[test_below(ISO_COUNT(sizes))],
               .k = sizes[test_below(ISO_COUNT(sizes))],
               .type = test_below(2) ? ISO_BF16 : ISO_F32,
               .a_transposed = test_below(2),
               .b_transposed = test_below(2),
               .gap = test_below(3) ? 0 : test_below(20),
               .shift = test_below(2) ? 0 : test_below(16)};
  int64_t extra = test_below(4);
  p.accumulate = extra == 1;
  p.bias = extra == 2;
  p.ctype = p.accumulate || test_below(2) ? ISO_F32 : ISO_BF16;
  return p;
}

static void check_random(void) {
  for (int i = 0; i < 300; i++) {
    problem p = random_problem();
    check_problem(&p);
  }
}

static void check_special(void) {
  for (int i = 0; i < 150; i++) {
    problem p = random_problem();
    p.special = true;
    check_problem(&p);
  }
}

/* More than one block in each direction, in every combination of transposition. */
static void check_blocks(void) {
  static const int64_t shapes[][3] = {{1050, 40, 20}, {20, 2070, 24}, {33, 50, 2100}, {1, 70, 1500}, {3, 33, 1100}};
  for (size_t s = 0; s < ISO_COUNT(shapes); s++)
    for (int form = 0; form < 8; form++) {
      problem p = {.m = shapes[s][0],
                   .n = shapes[s][1],
                   .k = shapes[s][2],
                   .type = form & 1 ? ISO_BF16 : ISO_F32,
                   .a_transposed = form & 2,
                   .b_transposed = form & 4,
                   .gap = 1};
      p.ctype = p.type;
      if (form % 3 == 0) {
        p.ctype = ISO_F32;
        p.accumulate = true;
      }
      check_problem(&p);
    }
}

/* Rows that lie 4 KiB apart, where the left operand is read as it lies for few columns, else copied by tiles if a row
 * is whole lines, and packed if not; one block of k, and several. */
static void check_far_rows(void) {
  static const int64_t shapes[][3] = {{68, 70, 40},  {68, 600, 40},   {68, 600, 64},  {13, 300, 32},
                                      {41, 288, 96}, {28, 290, 2112}, {54, 288, 4224}};
  for (size_t s = 0; s < ISO_COUNT(shapes); s++)
    for (int form = 0; form < 4; form++) {
      problem p = {.m = shapes[s][0],
                   .n = shapes[s][1],
                   .k = shapes[s][2],
                   .type = form & 1 ? ISO_BF16 : ISO_F32,
                   .b_transposed = form & 2,
                   .special = s % 2};
      const int64_t row = form & 1 ? 2048 : 1024;
      p.ctype = p.type;
      p.gap = (p.k + row - 1) / row * row - p.k;
      check_problem(&p);
    }
}

/* Whole panels across both operands, which tiles pack on the way: an odd and an even number of tiles, of 12 to 14 rows,
 * a first tile alone, depths below and above the lead, several blocks of k, odd depths that do not pack on the way. */
static void check_packed_on_the_way(void) {
  static const int64_t shapes[][3] = {{24, 32, 2},  {26, 64, 30},   {39, 64, 34}, {41, 288, 70},
                                      {83, 96, 33}, {56, 32, 2100}, {68, 64, 258}};
  for (size_t s = 0; s < ISO_COUNT(shapes); s++)
    for (int form = 0; form < 8; form++) {
      problem p = {.m = shapes[s][0],
                   .n = shapes[s][1],
                   .k = shapes[s][2],
                   .type = form & 1 ? ISO_BF16 : ISO_F32,
                   .a_transposed = form & 2,
                   .gap = form & 2 ? 3 : 0,
                   .accumulate = form & 4,
                   .special = s % 2};
      p.ctype = form & 4 ? ISO_F32 : p.type;
      check_problem(&p);
    }
}

static void products_of_random_shapes(void **state) {
  for_each_tier(check_random);
}

static void products_with_special_values(void **state) {
  for_each_tier(check_special);
}

static void products_of_several_blocks(void **state) {
  for_each_tier(check_blocks);
}

static void products_of_far_rows(void **state) {
  for_each_tier(check_far_rows);
}

static void products_packed_on_the_way(void **state) {
  for_each_tier(check_packed_on_the_way);
}

/* A product says how long it packed when asked, whatever it computes; not asked, it does not touch the time. */
static void packing_is_counted(void **state) {
  guarded a = guarded_create(70, 300, 0, 0, ISO_F32, false), b = guarded_create(90, 300, 0, 0, ISO_F32, false);
  guarded c = guarded_create(70, 90, 0, 0, ISO_F32, true), again = guarded_create(70, 90, 0, 0, ISO_F32, true);
  guarded_fill(&a, 1.0f);
  guarded_fill(&b, 1.0f);
  for (int t = (int)ISO_TIER_SCALAR + 1; t <= (int)iso_cpu_best_tier(); t++) {
    kernels = iso_kernels_get((iso_tier)t);
    double packing[2] = {0.0, 0.0}, began = iso_clock_s();
    iso_gemm_args args = {.a = a.m, .b = b.m, .c = c.m, .b_transposed = true, .packing_s = packing};
    assert_true(kernel_run(call_gemm, &args, iso_gemm_scratch(70, 90, 300, ISO_F32, 2), 2));
    double took = iso_clock_s() - began;
    assert_true(packing[0] > 0.0 && packing[0] < took);
    assert_true(packing[1] > 0.0 && packing[1] < took);
    args.packing_s = NULL;
    args.c = again.m;
    assert_true(kernel_run(call_gemm, &args, iso_gemm_scratch(70, 90, 300, ISO_F32, 2), 2));
    assert_true(guarded_same(&c, &again));
  }
  guarded_destroy(&a);
  guarded_destroy(&b);
  guarded_destroy(&c);
  guarded_destroy(&again);
}

/* iso_split: parts are contiguous, cut at the grain, and differ by one grain at most. */
static void split_covers(void **state) {
  for (int64_t count = 0; count < 70; count++)
    for (int64_t grain = 1; grain <= 16; grain *= 4)
      for (int threads = 1; threads <= 5; threads++) {
        int64_t next = 0;
        for (int t = 0; t < threads; t++) {
          int64_t begin, end;
          iso_worker worker = {.thread = t, .threads = threads};
          iso_split(count, grain, &worker, &begin, &end);
          assert_int_equal(begin, next);
          assert_true(begin == count || begin % grain == 0);
          assert_true(end >= begin && end <= count);
          assert_true(end - begin <= ((count + grain - 1) / grain + threads - 1) / threads * grain);
          next = end;
        }
        assert_int_equal(next, count);
      }
}

static void peak_is_positive(void **state) {
  iso_team *team = iso_team_create(2, false);
  for (int t = 0; t <= (int)iso_cpu_best_tier(); t++) {
    assert_true(iso_peak_gflops(iso_kernels_get((iso_tier)t), NULL, ISO_F32) > 0.1);
    assert_true(iso_peak_gflops(iso_kernels_get((iso_tier)t), team, ISO_BF16) > 0.1);
  }
  iso_team_destroy(&team);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(products_of_random_shapes),
      cmocka_unit_test(products_with_special_values),
      cmocka_unit_test(products_of_several_blocks),
      cmocka_unit_test(products_of_far_rows),
      cmocka_unit_test(products_packed_on_the_way),
      cmocka_unit_test(packing_is_counted),
      cmocka_unit_test(split_covers),
      cmocka_unit_test(peak_is_positive),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
