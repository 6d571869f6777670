/* SPDX-License-Identifier: Apache-2.0
 *
 * math.h: exp, the sigmoid and the normal distribution for the kernel bodies, over a tier's vec.h (included before).
 *
 * Invariants
 *  1. vec_exp: within 1.2 ulp (measured over the range); -inf gives 0, overflow +inf, NaN NaN; results below 2^-126
 *     become subnormal, rounded once, not flushed. Same bits in every vector tier.
 *  2. Nothing here cancels in a tail: sigmoids (within 3 ulp) come from exp(-|x|), the normal distribution (within
 *     7 ulp) from its scaled tail.
 */
#ifndef ISO_KERNELS_VECTOR_MATH_H
#define ISO_KERNELS_VECTOR_MATH_H

/* Functions of several vectors work through them in step: an exponential is one long chain, and the processor does not
 * look far enough ahead to overlap many of them by itself. */
#define EACH(k, count) _Pragma("GCC unroll 8") for (int k = 0; k < (count); k++)

/* exp(x) = 2^n exp(r), r = x - n ln 2 in [-0.347, 0.347] with ln 2 in two parts; exp(r) = 1 + r + r^2 p(r), p a
 * Chebyshev interpolant of degree 4 (relative error of exp(r): 1e-8). */
VEC_INLINE void vec_exp_within_each(vec *x, int count) {
  vec n[VEC_STEP], r[VEC_STEP], p[VEC_STEP];
  EACH(k, count) n[k] = vec_round(vec_mul(x[k], vec_set(0x1.715476p+0f)));
  EACH(k, count) r[k] = vec_fnma(n[k], vec_set(0x1.62e400p-1f), x[k]);
  EACH(k, count) r[k] = vec_fnma(n[k], vec_set(0x1.7f7d1cp-20f), r[k]);
  EACH(k, count) p[k] = vec_fma(vec_set(0.001392618359f), r[k], vec_set(0.008363179053f));
  EACH(k, count) p[k] = vec_fma(p[k], r[k], vec_set(0.04166655462f));
  EACH(k, count) p[k] = vec_fma(p[k], r[k], vec_set(0.1666657699f));
  EACH(k, count) p[k] = vec_fma(p[k], r[k], vec_set(0.5f));
  EACH(k, count) p[k] = vec_add(vec_fma(p[k], vec_mul(r[k], r[k]), r[k]), vec_set(1.0f));
  EACH(k, count) x[k] = vec_scale(p[k], n[k]);
}
/* Beyond the bounds: inf and 0 all the same; NaN passes. */
VEC_INLINE vec vec_exp(vec x) {
  x = vec_min(vec_set(89.0f), vec_max(vec_set(-104.0f), x));
  vec_exp_within_each(&x, 1);
  return x;
}
/* The same for x <= 0. */
VEC_INLINE void vec_exp_below_each(vec *x, int count) {
  EACH(k, count) x[k] = vec_max(vec_set(-104.0f), x[k]);
  vec_exp_within_each(x, count);
}
VEC_INLINE vec vec_exp_below(vec x) {
  vec_exp_below_each(&x, 1);
  return x;
}

/* x becomes 1 / (1 + exp(-x)); one minus that in rest. */
VEC_INLINE void vec_sigmoid_each(vec *x, vec *rest, int count) {
  vec e[VEC_STEP], large[VEC_STEP];
  EACH(k, count) e[k] = vec_negate(vec_abs(x[k]));
  vec_exp_below_each(e, count);
  EACH(k, count) large[k] = vec_div(vec_set(1.0f), vec_add(vec_set(1.0f), e[k]));
  EACH(k, count) e[k] = vec_mul(e[k], large[k]);
  EACH(k, count) rest[k] = vec_if_negative(x[k], large[k], e[k]);
  EACH(k, count) x[k] = vec_if_negative(x[k], e[k], large[k]);
}

/* x within [-bound, bound]; NaN stays. */
VEC_INLINE vec vec_clamp(vec x, float bound) {
  return vec_min(vec_set(bound), vec_max(vec_set(-bound), x));
}

/* The normal distribution P(x); exp(-x^2 / 2) in *bell.
 * With t = |x|: P(-t) = exp(-t^2 / 2) r q(1 - r), r = 8 / (t + 4), q a Chebyshev interpolant of degree 9 over t in
 * [0, 15] (relative error 1.4e-8); beyond 15 the exponential is zero. The rounding error of x^2, which the exponential
 * would blow up, is carried along. */
VEC_INLINE vec vec_normal(vec x, vec *bell) {
  x = vec_clamp(x, 15.0f);
  vec t = vec_abs(x), square = vec_mul(x, x), lost = vec_fma(x, x, vec_negate(square));
  vec e = vec_exp(vec_mul(square, vec_set(-0.5f)));
  e = vec_fma(vec_mul(lost, vec_set(-0.5f)), e, e);
  vec r = vec_div(vec_set(8.0f), vec_add(t, vec_set(4.0f))), s = vec_sub(vec_set(1.0f), r);
  vec q = vec_fma(vec_set(-1.56947982e-5f), s, vec_set(2.362456493e-5f));
  q = vec_fma(q, s, vec_set(0.000195860211f));
  q = vec_fma(q, s, vec_set(-0.000440121603f));
  q = vec_fma(q, s, vec_set(-0.0009406753023f));
  q = vec_fma(q, s, vec_set(0.007550773189f));
  q = vec_fma(q, s, vec_set(-0.02331541334f));
  q = vec_fma(q, s, vec_set(0.04839208538f));
  q = vec_fma(q, s, vec_set(-0.07598707427f));
  q = vec_fma(q, s, vec_set(0.09441064232f));
  vec tail = vec_mul(vec_mul(r, q), e);
  *bell = e;
  return vec_if_negative(x, tail, vec_sub(vec_set(1.0f), tail));
}

#endif
