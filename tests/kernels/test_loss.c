/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layer with cross-entropy, every tier against float64: loss per row, dx and dweight. `unit` is what the logits'
 * gradient loses in the compute type (2^-8 for bfloat16, twice: exponentials are rounded, then the gradient) or in
 * float32 sums; it multiplies sums of absolute values that the reference forms beside each result.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/guarded.h"

#include <math.h>

typedef struct problem {
  int64_t rows, width, vocabulary, gap;
  iso_dtype type, dx_type;
  bool gradient, accumulate;
} problem;

static iso_tier tier;
static const iso_kernels *kernels;

static void call_loss(const void *args, const iso_worker *worker) {
  iso_linear_cross_entropy(kernels, args, worker);
}

typedef struct fixture {
  problem p;
  guarded x, weight, dx, dweight, loss, before;
  int32_t *labels;
  double *ref_dx, *err_dx, *ref_dweight, *err_dweight, *ref_loss;
} fixture;

static double *doubles(int64_t count) {
  return calloc((size_t)count + 1, sizeof(double));
}

static void fixture_init(fixture *f, const problem *p) {
  f->p = *p;
  f->x = guarded_create(p->rows, p->width, p->gap, 0, p->type, false);
  f->weight = guarded_create(p->vocabulary, p->width, 0, 1, p->type, false);
  f->dx = guarded_create(p->rows, p->width, p->gap, 3, p->dx_type, true);
  f->dweight = guarded_create(p->vocabulary, p->width, p->gap, 0, ISO_F32, true);
  f->loss = guarded_create(1, p->rows, 0, 0, ISO_F32, true);
  guarded_fill(&f->x, 2.0f);
  guarded_fill(&f->weight, 1.0f);
  if (p->accumulate) guarded_fill(&f->dweight, 1.0f);
  f->before = guarded_copy(&f->dweight);
  f->labels = malloc((size_t)(p->rows + 1) * sizeof(int32_t));
  for (int64_t i = 0; i < p->rows; i++) f->labels[i] = test_below(7) == 0 ? -100 : (int32_t)test_below(p->vocabulary);
  f->ref_dx = doubles(p->rows * p->width);
  f->err_dx = doubles(p->rows * p->width);
  f->ref_dweight = doubles(p->vocabulary * p->width);
  f->err_dweight = doubles(p->vocabulary * p->width);
  f->ref_loss = doubles(p->rows);
}

static void fixture_fini(fixture *f) {
  guarded *all[] = {&f->x, &f->weight, &f->dx, &f->dweight, &f->loss, &f->before};
  for (size_t i = 0; i < ISO_COUNT(all); i++) guarded_destroy(all[i]);
  double *arrays[] = {f->ref_dx, f->err_dx, f->ref_dweight, f->err_dweight, f->ref_loss};
  for (size_t i = 0; i < ISO_COUNT(arrays); i++) free(arrays[i]);
  free(f->labels);
}

static void reference_row(fixture *f, int64_t i) {
  const problem *p = &f->p;
  double float_unit = (double)(p->width + 32) * 0x1p-22, unit = p->type == ISO_BF16 ? 0x1.02p-7 : float_unit;
  double *z = doubles(p->vocabulary), high = -INFINITY, sum = 0.0;
  for (int64_t v = 0; v < p->vocabulary; v++) {
    for (int64_t c = 0; c < p->width; c++) z[v] += (double)matrix_get(&f->x.m, i, c) * matrix_get(&f->weight.m, v, c);
    high = fmax(high, z[v]);
  }
  for (int64_t v = 0; v < p->vocabulary; v++) sum += exp(z[v] - high);
  if (f->labels[i] < 0) {
    free(z);
    return;
  }
  f->ref_loss[i] = high + log(sum) - z[f->labels[i]];
  for (int64_t v = 0; v < p->vocabulary; v++) {
    double prob = exp(z[v] - high) / sum, dz = prob - (v == f->labels[i] ? 1.0 : 0.0);
    double error = unit * fabs(dz) + float_unit * (prob + fabs(dz));
    for (int64_t c = 0; c < p->width; c++) {
      double x = matrix_get(&f->x.m, i, c), w = matrix_get(&f->weight.m, v, c);
      f->ref_dx[i * p->width + c] += dz * w;
      f->err_dx[i * p->width + c] += (error + (double)p->vocabulary * 0x1p-24 * fabs(dz)) * fabs(w);
      f->ref_dweight[v * p->width + c] += dz * x;
      f->err_dweight[v * p->width + c] += (error + (double)p->rows * 0x1p-24 * fabs(dz)) * fabs(x);
    }
  }
  free(z);
}

static void check_close(const fixture *f, const char *name, double got, double exact, double bound) {
  const problem *p = &f->p;
  if (!(fabs(got - exact) <= bound))
    fail_msg("%s %s %s N%ld C%ld V%ld: %g, exact %g, bound %g", iso_tier_name(tier), iso_dtype_name(p->type), name,
             (long)p->rows, (long)p->width, (long)p->vocabulary, got, exact, bound);
}

static void check_results(const fixture *f) {
  const problem *p = &f->p;
  for (int64_t i = 0; i < p->rows; i++)
    check_close(f, "loss", matrix_get(&f->loss.m, 0, i), f->ref_loss[i], (double)(p->width + 32) * 0x1p-20);
  if (!p->gradient) return;
  for (int64_t i = 0; i < p->rows * p->width; i++) {
    double exact = f->ref_dx[i], rounding = p->dx_type == ISO_BF16 ? fabs(exact) * 0x1.02p-8 : 0.0;
    check_close(f, "dx", matrix_get(&f->dx.m, i / p->width, i % p->width), exact, f->err_dx[i] + rounding + 0x1p-100);
  }
  for (int64_t i = 0; i < p->vocabulary * p->width; i++) {
    double old = p->accumulate ? matrix_get(&f->before.m, i / p->width, i % p->width) : 0.0;
    double exact = f->ref_dweight[i] + old;
    check_close(f, "dweight", matrix_get(&f->dweight.m, i / p->width, i % p->width), exact,
                f->err_dweight[i] + (fabs(exact) + fabs(old)) * 0x1p-22 + 0x1p-100);
  }
}

static void check_problem(const problem *p) {
  fixture f;
  fixture_init(&f, p);
  for (int64_t i = 0; i < p->rows; i++) reference_row(&f, i);
  static const int team_sizes[] = {1, 2, 3, 5};
  guarded first[3];
  for (size_t t = 0; t < ISO_COUNT(team_sizes); t++) {
    memcpy(f.dweight.block, f.before.block, f.dweight.bytes);
    iso_linear_cross_entropy_args args = {.x = f.x.m,
                                          .weight = f.weight.m,
                                          .dx = f.dx.m,
                                          .dweight = f.dweight.m,
                                          .labels = f.labels,
                                          .loss = f.loss.m.data,
                                          .accumulate = p->accumulate};
    if (!p->gradient) args.dx.data = args.dweight.data = NULL;
    size_t scratch = iso_linear_cross_entropy_scratch(p->rows, p->width, p->vocabulary, p->type, team_sizes[t]);
    assert_true(kernel_run(call_loss, &args, scratch, team_sizes[t]));
    guarded *outputs[] = {&f.loss, &f.dx, &f.dweight};
    for (size_t i = 0; i < ISO_COUNT(outputs); i++) {
      assert_true(guarded_intact(outputs[i]));
      if (t == 0)
        first[i] = guarded_copy(outputs[i]);
      else
        assert_true(guarded_same(&first[i], outputs[i]));
    }
    if (t == 0) check_results(&f);
  }
  for (size_t i = 0; i < ISO_COUNT(first); i++) guarded_destroy(&first[i]);
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

static void check_random(void) {
  static const int64_t rows[] = {0, 1, 2, 15, 33, 70}, widths[] = {1, 7, 16, 33, 64},
                       sizes[] = {1, 2, 17, 64, 130, 301};
  for (int i = 0; i < 40; i++) {
    problem p = {.rows = rows[test_below(ISO_COUNT(rows))],
                 .width = widths[test_below(ISO_COUNT(widths))],
                 .vocabulary = sizes[test_below(ISO_COUNT(sizes))],
                 .gap = test_below(3),
                 .type = test_below(2) ? ISO_BF16 : ISO_F32,
                 .gradient = test_below(4) != 0,
                 .accumulate = test_below(2)};
    p.dx_type = test_below(3) ? p.type : ISO_F32;
    check_problem(&p);
  }
}

static void check_chunks(void) {
  for (int form = 0; form < 4; form++) {
    problem p = {.rows = 2 * ISO_LOSS_CHUNK + 3,
                 .width = 9,
                 .vocabulary = 37,
                 .type = form & 1 ? ISO_BF16 : ISO_F32,
                 .gradient = true,
                 .accumulate = form & 2};
    p.dx_type = p.type;
    check_problem(&p);
  }
}

static void random_shapes(void **state) {
  for_each_tier(check_random);
}

static void several_chunks(void **state) {
  for_each_tier(check_chunks);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(random_shapes), cmocka_unit_test(several_chunks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
