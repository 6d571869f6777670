/* SPDX-License-Identifier: Apache-2.0
 *
 * math.c: exp, log, sin, cos and pow whose bits are the same on every machine.
 *
 * Each function reduces its argument exactly, or with an error far below a unit in the last place (ulp), evaluates a
 * Taylor series long enough for double on the small interval left, and adds the largest term last. Constants that
 * stand in several parts are cut so that their product with the whole number of the reduction is exact.
 *
 * Invariants
 *  1. Only + - * / and integer operations on the bit pattern; the compiler may not contract (-ffp-contract=off).
 *  2. exp, log, sin, cos: error below 1 ulp (measured in the tests against long double; they allow 2 at most).
 *  3. pow: the logarithm carries about 64 bits, so the relative error is below 1e-15 for |y log x| <= 700.
 *  4. NaN gives NaN; exp and pow overflow to infinity and underflow to zero through the subnormals; sin and cos are NaN
 *     outside |x| <= 2^30.
 */
#include "base/base.h"

#include <string.h>

static const double infinity = __builtin_inf();
static const double not_a_number = __builtin_nan("");

/* log 2: 38 bits, and the rest */
static const double ln2_high = 0x1.62e42fefa0000p-1;
static const double ln2_low = 0x1.cf79abc9e3b3ap-40;

static uint64_t bits_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static double double_of(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* 2^k for -1022 <= k <= 1023. */
static double power_of_two(int k) {
  return double_of((uint64_t)(k + 1023) << 52);
}

/* Nearest whole number, halves away from zero; |x| < 2^31. */
static int64_t nearest(double x) {
  return (int64_t)(x < 0 ? x - 0.5 : x + 0.5);
}

/* ---- pairs: unevaluated sums high + low, |low| about an ulp of high at most ---- */

typedef struct pair {
  double high, low;
} pair;

/* a + b without error (Knuth). */
static pair sum_exact(double a, double b) {
  double high = a + b;
  double b_part = high - a;
  return (pair){high, (a - (high - b_part)) + (b - b_part)};
}

/* a + b without error when |a| >= |b| or a = 0 (Dekker). */
static pair sum_ordered(double a, double b) {
  double high = a + b;
  return (pair){high, b - (high - a)};
}

/* a * b without error (Veltkamp's split, Dekker's product); |a|, |b| < 2^990 and no underflow. */
static pair product_exact(double a, double b) {
  const double split = 134217729.0; /* 2^27 + 1 */
  double a_wide = a * split, b_wide = b * split;
  double a_high = a_wide - (a_wide - a), b_high = b_wide - (b_wide - b);
  double a_low = a - a_high, b_low = b - b_high;
  double high = a * b;
  return (pair){high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low};
}

static pair pair_multiply(pair a, pair b) {
  pair p = product_exact(a.high, b.high);
  return sum_ordered(p.high, p.low + (a.high * b.low + a.low * b.high));
}

static pair pair_add(pair a, pair b) {
  pair s = sum_exact(a.high, b.high);
  return sum_ordered(s.high, s.low + (a.low + b.low));
}

/* ---- exp ---- */

/* exp(high + low), |low| small beside 1. */
static double exp_of_pair(double high, double low) {
  if (high != high) return high;
  if (high > 709.8) return infinity;
  if (high < -745.2) return 0.0;
  int k = (int)nearest(high * 0x1.71547652b82fep+0); /* log2(e) */
  double r_high = high - k * ln2_high;               /* exact */
  double r_low = low - k * ln2_low;
  double r = r_high + r_low; /* |r| <= log(2) / 2 and a little */
  double rest = (r_high - r) + r_low;
  /* exp(r) - 1 - r = r^2 (1/2! + r/3! + ...); the term r^14/14! is below 2^-57 */
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 1.0 / 2;
  pair one_r = sum_ordered(1.0, r);
  double y = one_r.high + (one_r.low + (p * (r * r) + rest));
  int half = k / 2; /* two factors: 2^k itself may be no normal number; only the second may round */
  return y * power_of_two(half) * power_of_two(k - half);
}

double iso_exp(double x) {
  return exp_of_pair(x, 0.0);
}

/* ---- log ---- */

/* x = 2^k m with m in [sqrt(1/2), sqrt(2)); x positive and finite. Returns m. */
static double log_split(double x, int *k) {
  int shift = 0;
  if (x < 0x1p-1022) { /* subnormal */
    x *= 0x1p54;
    shift = 54;
  }
  uint64_t bits = bits_of(x);
  uint64_t fraction = bits & 0xFFFFFFFFFFFFFu;
  int exponent = (int)(bits >> 52) - 1023 - shift;
  bool upper = fraction >= 0x6A09E667F3BCDu; /* m >= sqrt(2): halve it */
  *k = exponent + upper;
  return double_of(fraction | (uint64_t)(upper ? 1022 : 1023) << 52);
}

/* The values of log at 0, negatives, infinity and NaN; true when x is one of them. */
static bool log_special(double x, double *result) {
  if (x != x)
    *result = x;
  else if (x == 0)
    *result = -infinity;
  else if (x < 0)
    *result = not_a_number;
  else if (x == infinity)
    *result = infinity;
  else
    return false;
  return true;
}

/* With m = 1 + f and s = f / (2 + f): log(m) = 2 atanh(s) = 2 (s + s^3/3 + s^5/5 + ...), |s| <= 0.1716. */
double iso_log(double x) {
  double special;
  if (log_special(x, &special)) return special;
  int k;
  double f = log_split(x, &k) - 1.0; /* exact */
  double s = f / (2.0 + f);
  double z = s * s;
  double p = 2.0 / 23; /* 2 (1/3 + z/5 + ...); the next term is below 2^-58 of the sum */
  p = p * z + 2.0 / 21;
  p = p * z + 2.0 / 19;
  p = p * z + 2.0 / 17;
  p = p * z + 2.0 / 15;
  p = p * z + 2.0 / 13;
  p = p * z + 2.0 / 11;
  p = p * z + 2.0 / 9;
  p = p * z + 2.0 / 7;
  p = p * z + 2.0 / 5;
  p = p * z + 2.0 / 3;
  /* 2 s = f - h + s h with h = f^2/2, so the exact f can be added last */
  double h = 0.5 * f * f;
  return k * ln2_high + (f - (h - (s * (h + p * z) + k * ln2_low)));
}

/* log x as a pair, for positive finite x; relative error about 2^-64. */
static pair log_pair(double x) {
  int k;
  double f = log_split(x, &k) - 1.0;
  pair divisor = sum_exact(2.0, f);
  double quotient = f / divisor.high;
  pair back = product_exact(quotient, divisor.high);
  double remainder = (f - back.high) - back.low - quotient * divisor.low;
  pair s = sum_ordered(quotient, remainder / divisor.high);
  pair z = pair_multiply(s, s);
  double p = 2.0 / 25;
  p = p * z.high + 2.0 / 23;
  p = p * z.high + 2.0 / 21;
  p = p * z.high + 2.0 / 19;
  p = p * z.high + 2.0 / 17;
  p = p * z.high + 2.0 / 15;
  p = p * z.high + 2.0 / 13;
  p = p * z.high + 2.0 / 11;
  p = p * z.high + 2.0 / 9;
  p = p * z.high + 2.0 / 7;
  p = p * z.high + 2.0 / 5;
  const pair two_thirds = {0x1.5555555555555p-1, 0x1.5555555555555p-55};
  pair factor = pair_add(two_thirds, sum_exact(p * z.high, p * z.low));
  pair cube = pair_multiply(s, pair_multiply(z, factor));
  pair result = pair_add((pair){2 * s.high, 2 * s.low}, cube);
  return pair_add((pair){k * ln2_high, 0.0}, pair_add((pair){k * ln2_low, 0.0}, result));
}

/* ---- pow ---- */

double iso_pow(double x, double y) {
  if (y == 0 || x == 1) return 1.0;
  if (x != x || y != y || x < 0) return not_a_number;
  if (x == 0 || x == infinity) return (x == 0) == (y > 0) ? 0.0 : infinity;
  /* |log x| is at least 2^-53, so such a y leaves the range whatever x is (also keeps products exact) */
  if (y > 0x1p65 || y < -0x1p65) return (x > 1) == (y > 0) ? infinity : 0.0;
  pair logarithm = log_pair(x);
  if (y < 0x1p-200 && y > -0x1p-200) return 1.0; /* |y log x| < 2^-190; the product below could underflow */
  pair exponent = product_exact(logarithm.high, y);
  return exp_of_pair(exponent.high, exponent.low + logarithm.low * y);
}

double iso_pow_int(double x, int64_t n) {
  uint64_t rest = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
  double result = 1.0;
  for (double power = x; rest > 0; rest >>= 1, power *= power)
    if (rest & 1) result *= power;
  return n < 0 ? 1.0 / result : result;
}

/* ---- sin and cos ---- */

/* pi/2 in four parts of 23 bits and a rest: n * part is exact for n < 2^30. */
static const double half_pi[5] = {0x1.921fb40000000p+0, 0x1.4442d00000000p-24, 0x1.8469880000000p-48,
                                  0x1.8cc5140000000p-72, 0x1.80dc1cd129025p-95};

/* x - n pi/2 as a pair in [-pi/4, pi/4] and a little; returns n modulo 4. */
static int angle_reduce(double x, pair *r) {
  int64_t n = nearest(x * 0x1.45f306dc9c883p-1); /* 2/pi */
  double m = (double)n;
  double a = (x - m * half_pi[0]) - m * half_pi[1]; /* both differences are exact */
  pair b = sum_exact(a, -(m * half_pi[2]));
  pair c = sum_exact(b.high, -(m * half_pi[3]));
  *r = sum_exact(c.high, (b.low + c.low) - m * half_pi[4]);
  return (int)(n & 3);
}

static double sin_small(pair r) {
  double x = r.high, z = x * x;
  double p = 1.0 / 355687428096000;
  p = p * z - 1.0 / 1307674368000;
  p = p * z + 1.0 / 6227020800;
  p = p * z - 1.0 / 39916800;
  p = p * z + 1.0 / 362880;
  p = p * z - 1.0 / 5040;
  p = p * z + 1.0 / 120;
  p = p * z - 1.0 / 6;
  return x + (p * (z * x) + r.low * (1.0 - 0.5 * z));
}

static double cos_small(pair r) {
  double x = r.high, z = x * x;
  double p = 1.0 / 20922789888000;
  p = p * z - 1.0 / 87178291200;
  p = p * z + 1.0 / 479001600;
  p = p * z - 1.0 / 3628800;
  p = p * z + 1.0 / 40320;
  p = p * z - 1.0 / 720;
  p = p * z + 1.0 / 24;
  double h = 0.5 * z;
  pair one_h = sum_ordered(1.0, -h);
  return one_h.high + (one_h.low + (p * (z * z) - x * r.low));
}

/* sin(x + quarter turns). */
static double sin_turned(double x, int quarters) {
  if (!(x >= -0x1p30 && x <= 0x1p30)) return not_a_number;
  pair r;
  int quadrant = (angle_reduce(x, &r) + quarters) & 3;
  double value = quadrant & 1 ? cos_small(r) : sin_small(r);
  return quadrant & 2 ? -value : value;
}

double iso_sin(double x) {
  return x == 0 ? x : sin_turned(x, 0); /* keeps the sign of zero */
}

double iso_cos(double x) {
  return sin_turned(x, 1);
}
