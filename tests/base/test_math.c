/* SPDX-License-Identifier: Apache-2.0
 *
 * math.c against the C library's long double functions: error bounds in ulp, special values, and fixed bits.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 200000 };

static double double_of(uint64_t bits) {
  double x;
  memcpy(&x, &bits, 8);
  return x;
}

static uint64_t bits_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, 8);
  return bits;
}

static double uniform(uint64_t i) {
  return iso_rng_uniform(11, ISO_RNG_TEST, 0, i);
}

/* |got - wanted| in units of the last place of the double nearest to wanted. */
static double ulps(double got, long double wanted) {
  double size = fabs((double)wanted);
  if (isinf(size)) return got == (double)wanted ? 0 : INFINITY;
  double ulp = size < 0x1p-1022 ? 0x1p-1074 : ldexp(1.0, ilogb(size) - 52);
  return (double)fabsl((got - wanted) / ulp);
}

static void check_worst(const char *name, double worst, double limit) {
  print_message("           %s: worst error %.3f ulp\n", name, worst);
  if (!(worst < limit)) fail_msg("%s: %.3f ulp, allowed %.2f", name, worst, limit);
}

static void exp_error(void **state) {
  double worst = 0;
  for (uint64_t i = 0; i < SAMPLES; i++) {
    double range = i % 3 == 0 ? 1455 : i % 3 == 1 ? 20 : 2;
    double x = i % 3 == 0 ? uniform(i) * range - 745.5 : uniform(i) * range - range / 2;
    worst = fmax(worst, ulps(iso_exp(x), expl(x)));
  }
  for (int k = -1070; k <= 1023; k++) { /* next to the borders of the reduction */
    double x = (k + 0.5) * 0.6931471805599453;
    worst = fmax(worst, ulps(iso_exp(x), expl(x)));
    x = k * 0.6931471805599453;
    worst = fmax(worst, ulps(iso_exp(x), expl(x)));
  }
  check_worst("exp", worst, 1.0);
}

static void log_error(void **state) {
  double worst = 0;
  for (uint64_t i = 0; i < SAMPLES; i++) {
    double x;
    if (i % 3 == 0)
      x = double_of(1 + (uint64_t)(uniform(i) * 0x1.ffbffffffffffp62)); /* any positive, subnormals too */
    else if (i % 3 == 1)
      x = 1 + (uniform(i) - 0.5) * ldexp(1, -(int)(i / 3 % 50));
    else
      x = uniform(i) * 10 + 1e-9;
    if (x == 1) continue;
    worst = fmax(worst, ulps(iso_log(x), logl(x)));
  }
  check_worst("log", worst, 1.0);
  assert_true(iso_log(1) == 0);
}

static void sin_cos_error(void **state) {
  double worst_sin = 0, worst_cos = 0;
  for (uint64_t i = 0; i < SAMPLES; i++) {
    double x;
    if (i % 4 == 0)
      x = (uniform(i) - 0.5) * 14;
    else if (i % 4 == 1)
      x = (uniform(i) - 0.5) * 0x1p31;
    else if (i % 4 == 2)
      x = nearbyint(uniform(i) * 6e8) * 1.5707963267948966; /* next to multiples of pi/2 */
    else
      x = ldexp(uniform(i) + 0.5, -(int)(i / 4 % 60));
    worst_sin = fmax(worst_sin, ulps(iso_sin(x), sinl(x)));
    worst_cos = fmax(worst_cos, ulps(iso_cos(x), cosl(x)));
  }
  check_worst("sin", worst_sin, 1.0);
  check_worst("cos", worst_cos, 1.0);
}

static void pow_error(void **state) {
  long double worst = 0;
  for (uint64_t i = 0; i < SAMPLES; i++) {
    double x, y;
    if (i % 2 == 0)
      x = uniform(2 * i) * 100 + 1e-6, y = (uniform(2 * i + 1) - 0.5) * 60;
    else
      x = 1 - uniform(2 * i) * 0.2, y = uniform(2 * i + 1) * 3000;
    long double wanted = powl(x, y);
    if (wanted < 0x1p-1022L) continue;
    long double error = fabsl((iso_pow(x, y) - wanted) / wanted);
    if (error > worst) worst = error;
  }
  print_message("           pow: worst relative error %.2Le\n", worst);
  assert_true(worst < 1e-15L);
  assert_true(iso_pow(0.9, 7) > 0.4782968 && iso_pow(0.9, 7) < 0.4782970);
  assert_true(iso_pow(500000, 2.0 / 128) > 1.2275 && iso_pow(500000, 2.0 / 128) < 1.2277); /* a RoPE base */
}

static void exp_special(void **state) {
  assert_true(isnan(iso_exp(NAN)));
  assert_true(iso_exp(INFINITY) == INFINITY);
  assert_true(iso_exp(-INFINITY) == 0);
  assert_true(iso_exp(0) == 1 && iso_exp(-0.0) == 1);
  assert_true(iso_exp(0x1p-1074) == 1);
  assert_true(iso_exp(709.782712893384) < INFINITY && iso_exp(709.782712893384) > 1.79e308);
  assert_true(iso_exp(709.7827128933841) == INFINITY);
  assert_true(iso_exp(1e300) == INFINITY && iso_exp(-1e300) == 0);
  assert_true(iso_exp(-745.1332191019411) == 0x1p-1074);
  assert_true(iso_exp(-745.1332191019412) == 0);
  assert_true(iso_exp(-708.5) > 0 && iso_exp(-708.5) < 0x1p-1022);
}

static void log_special(void **state) {
  assert_true(isnan(iso_log(NAN)) && isnan(iso_log(-1)) && isnan(iso_log(-INFINITY)));
  assert_true(iso_log(0) == -INFINITY && iso_log(-0.0) == -INFINITY);
  assert_true(iso_log(INFINITY) == INFINITY);
  assert_true(iso_log(0x1p-1074) == (double)logl(0x1p-1074L));
}

static void sin_cos_special(void **state) {
  const double bad[] = {NAN, INFINITY, -INFINITY, 0x1.0000001p30, 1e300};
  for (size_t i = 0; i < ISO_COUNT(bad); i++) assert_true(isnan(iso_sin(bad[i])) && isnan(iso_cos(bad[i])));
  assert_true(iso_sin(0) == 0 && !signbit(iso_sin(0.0)) && signbit(iso_sin(-0.0)));
  assert_true(iso_cos(0) == 1);
  assert_true(iso_sin(0x1p-1074) == 0x1p-1074);
  assert_true(iso_sin(0x1p30) == (double)sinl(0x1p30L) && iso_cos(-0x1p30) == (double)cosl(0x1p30L));
  for (int i = 0; i < 100; i++)
    assert_true(iso_sin(-i * 0.37) == -iso_sin(i * 0.37) && iso_cos(-i * 0.37) == iso_cos(i * 0.37));
}

static void pow_special(void **state) {
  assert_true(iso_pow(NAN, 0) == 1 && iso_pow(1, NAN) == 1);
  assert_true(isnan(iso_pow(NAN, 1)) && isnan(iso_pow(2, NAN)) && isnan(iso_pow(-2, 2)));
  assert_true(iso_pow(0, 2) == 0 && iso_pow(0, -2) == INFINITY);
  assert_true(iso_pow(INFINITY, 2) == INFINITY && iso_pow(INFINITY, -2) == 0);
  assert_true(iso_pow(2, INFINITY) == INFINITY && iso_pow(2, -INFINITY) == 0);
  assert_true(iso_pow(0.5, INFINITY) == 0 && iso_pow(0.5, -INFINITY) == INFINITY);
  assert_true(iso_pow(2, 2000) == INFINITY && iso_pow(2, -2000) == 0);
  assert_true(iso_pow(2, 1e300) == INFINITY && iso_pow(0.999, 1e300) == 0);
  assert_true(iso_pow(2, 1e-300) == 1);
  for (int k = -1074; k <= 1023; k++) assert_true(iso_pow(2, k) == ldexp(1, k));
}

static void pow_int(void **state) {
  assert_true(iso_pow_int(3, 0) == 1 && iso_pow_int(0, 0) == 1);
  assert_true(iso_pow_int(3, 5) == 243 && iso_pow_int(-2, 3) == -8 && iso_pow_int(2, -3) == 0.125);
  assert_true(iso_pow_int(2, 1023) == 0x1p1023 && iso_pow_int(2, 1024) == INFINITY);
  assert_true(iso_pow_int(2, INT64_MIN) == 0);
  for (int n = 1; n < 3000; n += 7) {
    long double wanted = powl(0.95, n);
    if (wanted > 1e-300L) assert_true(fabsl(iso_pow_int(0.95, n) - wanted) / wanted < n * 2e-16L);
  }
}

/* The bits of some results, so that a change of compiler, flags or code that moves them is seen. */
static void bits_are_fixed(void **state) {
  uint32_t crc = 0;
  for (uint64_t i = 0; i < 20000; i++) {
    double u = uniform(i);
    uint64_t bits[5] = {bits_of(iso_exp(u * 40 - 20)), bits_of(iso_log(u + 0x1p-60)), bits_of(iso_sin(u * 1000)),
                        bits_of(iso_cos(u * 1000)), bits_of(iso_pow(u + 0.01, u * 9))};
    crc = iso_crc32c(crc, bits, sizeof bits);
  }
  assert_int_equal(crc, 0x6e5d3b63);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exp_error),       cmocka_unit_test(log_error),   cmocka_unit_test(sin_cos_error),
      cmocka_unit_test(pow_error),       cmocka_unit_test(exp_special), cmocka_unit_test(log_special),
      cmocka_unit_test(sin_cos_special), cmocka_unit_test(pow_special), cmocka_unit_test(pow_int),
      cmocka_unit_test(bits_are_fixed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
