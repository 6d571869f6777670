/* SPDX-License-Identifier: Apache-2.0
 *
 * activation.c (scalar): RoPE, SwiGLU and GELU and their gradients in plain C, formulas in float64.
 *
 * With s(x) = 1 / (1 + exp(-x)):
 *   silu'(x) = s(x) (1 + x (1 - s(x)))
 *   gelu erf:   x P(x), derivative P(x) + x p(x), with the normal distribution's P and density p
 *   gelu tanh:  x (1 + tanh u) / 2 = x s(2u), u = sqrt(2/pi) (x + 0.044715 x^3); derivative s + x s (1 - s) 2u'
 * Sigmoids are formed from exp(-|x|), so neither tail cancels.
 */
#include "kernels/scalar/scalar.h"

#define ROOT_2_OVER_PI  0.79788456080286535588
#define ROOT_1_OVER_2PI 0.39894228040143267794
#define GELU_CUBE       0.044715

static void rope(const iso_rope_args *args, const iso_worker *worker) {
  int64_t begin, end, half = args->head_dim / 2;
  iso_split(args->x.rows, 1, worker, &begin, &end);
  for (int64_t i = begin; i < end; i++) {
    const float *cosine = args->cos + args->positions[i] * half, *sine = args->sin + args->positions[i] * half;
    for (int64_t first = 0; first + 2 * half <= args->x.cols; first += 2 * half)
      for (int64_t j = 0; j < half; j++) {
        double c = cosine[j], s = args->inverse ? -sine[j] : sine[j];
        double low = iso_scalar_load(&args->x, i, first + j), high = iso_scalar_load(&args->x, i, first + half + j);
        iso_scalar_store(&args->y, i, first + j, low * c - high * s);
        iso_scalar_store(&args->y, i, first + half + j, high * c + low * s);
      }
  }
}

/* s(x), and 1 - s(x) in *rest. */
static double sigmoid(double x, double *rest) {
  double e = iso_exp(x < 0 ? x : -x), large = 1 / (1 + e), small = e / (1 + e);
  *rest = x < 0 ? large : small;
  return x < 0 ? small : large;
}

/* P(-t) exp(t^2 / 2) for t >= 0 as r * polynomial(1 - r), r = 8 / (t + 4): a Chebyshev interpolant over t in [0, 39]
 * with relative error 4e-16. Beyond, exp(-t^2 / 2) is zero. */
static double normal_tail_scaled(double t) {
  static const double c[] = {0.0944106413019689078,     -0.0759870802464860528,  0.0483921750927844395,
                             -0.0233152322450004514,    0.00754957186102788835,  -0.000942523619667710281,
                             -0.000434961539929205451,  0.000203852292908754489, 0.0000166679837601164863,
                             -0.0000288867732731127447, -2.38230215782176104e-7, 4.3927273551159313e-6,
                             8.85414790307197432e-8,    -7.39198973023510888e-7, -7.63851552600116994e-8,
                             1.26598892651648438e-7,    3.06249683490986627e-8,  -1.8658476627244069e-8,
                             -7.68725056543608778e-9,   1.64665411256502897e-9,  9.6049577843320271e-10};
  double r = 8 / (t + 4), q = 1 - r, sum = 0;
  for (int i = (int)ISO_COUNT(c) - 1; i >= 0; i--) sum = sum * q + c[i];
  return r * sum;
}

static double gelu_value(double x, iso_gelu_form form, double *derivative) {
  if (form == ISO_GELU_ERF) {
    double t = x < 0 ? -x : x, e = iso_exp(-0.5 * x * x);
    double tail = t < 39 ? normal_tail_scaled(t) * e : t >= 39 ? 0 : t;
    double p = x < 0 ? tail : 1 - tail;
    *derivative = p + (t < 39 ? x * e * ROOT_1_OVER_2PI : 0);
    return x * p;
  }
  double square = x * x, rest, s = sigmoid(2 * ROOT_2_OVER_PI * x * (1 + GELU_CUBE * square), &rest);
  double slope = 2 * ROOT_2_OVER_PI * (1 + 3 * GELU_CUBE * square);
  *derivative = s + (s > 0 && rest > 0 ? x * slope * s * rest : 0);
  return x * s;
}

static void swiglu(const iso_swiglu_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->y, &args->gate, &args->up};
  iso_row_part part = iso_row_part_of(all, 3, worker);
  for (int64_t i = part.row; i < part.row_end; i++)
    for (int64_t j = part.column; j < part.column + part.count; j++) {
      double gate = iso_scalar_load(&args->gate, i, j), rest;
      iso_scalar_store(&args->y, i, j, gate * sigmoid(gate, &rest) * iso_scalar_load(&args->up, i, j));
    }
}

static void swiglu_grad(const iso_swiglu_grad_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->dy, &args->gate, &args->up, &args->dgate, &args->dup};
  iso_row_part part = iso_row_part_of(all, 5, worker);
  for (int64_t i = part.row; i < part.row_end; i++)
    for (int64_t j = part.column; j < part.column + part.count; j++) {
      double dy = iso_scalar_load(&args->dy, i, j), up = iso_scalar_load(&args->up, i, j);
      double gate = iso_scalar_load(&args->gate, i, j), rest, s = sigmoid(gate, &rest);
      iso_scalar_store(&args->dgate, i, j, dy * up * s * (1 + gate * rest));
      iso_scalar_store(&args->dup, i, j, dy * gate * s);
    }
}

static void gelu(const iso_gelu_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->y, &args->x};
  iso_row_part part = iso_row_part_of(all, 2, worker);
  double derivative;
  for (int64_t i = part.row; i < part.row_end; i++)
    for (int64_t j = part.column; j < part.column + part.count; j++)
      iso_scalar_store(&args->y, i, j, gelu_value(iso_scalar_load(&args->x, i, j), args->form, &derivative));
}

static void gelu_grad(const iso_gelu_grad_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->dx, &args->dy, &args->x};
  iso_row_part part = iso_row_part_of(all, 3, worker);
  for (int64_t i = part.row; i < part.row_end; i++)
    for (int64_t j = part.column; j < part.column + part.count; j++) {
      double derivative;
      gelu_value(iso_scalar_load(&args->x, i, j), args->form, &derivative);
      iso_scalar_store(&args->dx, i, j, iso_scalar_load(&args->dy, i, j) * derivative);
    }
}

void iso_overlay_scalar_activation(iso_kernels *table) {
  table->rope = rope;
  table->swiglu = swiglu;
  table->swiglu_grad = swiglu_grad;
  table->gelu = gelu;
  table->gelu_grad = gelu_grad;
}
