/* SPDX-License-Identifier: Apache-2.0
 *
 * activation.h: RoPE, SwiGLU, GELU and their gradients, over a tier's vec.h and math.h (included before).
 *
 * With s(x) = 1 / (1 + exp(-x)):
 *   silu'(x) = s(x) (1 + x (1 - s(x)))
 *   gelu erf:   x P(x), derivative P(x) + x p(x), with the normal distribution's P and density p
 *   gelu tanh:  x (1 + tanh u) / 2 = x s(2u), u = sqrt(2/pi) (x + 0.044715 x^3); derivative s + x s (1 - s) 2u'
 *
 * Elements do not meet: the result of one is the same wherever it stands. All outputs may have the storage of any
 * input.
 */
#ifndef ISO_KERNELS_VECTOR_ACTIVATION_H
#define ISO_KERNELS_VECTOR_ACTIVATION_H

#define ROOT_2_OVER_PI  0.79788456f
#define ROOT_1_OVER_2PI 0.39894228f
#define GELU_CUBE       0.044715f

/* ---- rope ---- */

VEC_INLINE void rope_step(const void *x, iso_dtype x_type, void *y, iso_dtype y_type, const float *cosine,
                          const float *sine, bool inverse, int64_t half, int64_t i, int n) {
  vec c = vec_load(cosine, ISO_F32, i, n), s = vec_load(sine, ISO_F32, i, n);
  if (inverse) s = vec_negate(s);
  vec low = vec_load(x, x_type, i, n), high = vec_load(x, x_type, half + i, n);
  vec_store(y, y_type, i, n, vec_fnma(high, s, vec_mul(low, c)));
  vec_store(y, y_type, half + i, n, vec_fma(low, s, vec_mul(high, c)));
}

VEC_INLINE void rope_rows(const iso_rope_args *args, int64_t begin, int64_t end, iso_dtype x_type, iso_dtype y_type) {
  int64_t half = args->head_dim / 2;
  for (int64_t row = begin; row < end; row++) {
    const float *cosine = args->cos + args->positions[row] * half, *sine = args->sin + args->positions[row] * half;
    for (int64_t first = 0; first + 2 * half <= args->x.cols; first += 2 * half) {
      const void *x = iso_matrix_at(&args->x, row, first);
      void *y = iso_matrix_at(&args->y, row, first);
      int64_t i = 0;
      for (; i + VL <= half; i += VL) rope_step(x, x_type, y, y_type, cosine, sine, args->inverse, half, i, VL);
      if (i < half) rope_step(x, x_type, y, y_type, cosine, sine, args->inverse, half, i, (int)(half - i));
    }
  }
}

static void rope(const iso_rope_args *args, const iso_worker *worker) {
  if (args->head_dim < 2) return;
  int64_t begin, end;
  iso_split(args->x.rows, 1, worker, &begin, &end);
  if (args->x.dtype == ISO_F32 && args->y.dtype == ISO_F32)
    rope_rows(args, begin, end, ISO_F32, ISO_F32);
  else if (args->x.dtype == ISO_F32)
    rope_rows(args, begin, end, ISO_F32, ISO_BF16);
  else if (args->y.dtype == ISO_F32)
    rope_rows(args, begin, end, ISO_BF16, ISO_F32);
  else
    rope_rows(args, begin, end, ISO_BF16, ISO_BF16);
}

/* ---- swiglu ---- */

/* Steps take `count` vectors of n elements; n < VL only with one. */
VEC_INLINE void swiglu_step(const void *gate, const void *up, void *y, iso_dtype dtype, int64_t i, int count, int n) {
  vec g[VEC_STEP], s[VEC_STEP], rest[VEC_STEP];
  EACH(k, count) s[k] = g[k] = vec_load(gate, dtype, i + k * VL, n);
  vec_sigmoid_each(s, rest, count);
  EACH(k, count)
  vec_store(y, dtype, i + k * VL, n, vec_mul(vec_mul(g[k], s[k]), vec_load(up, dtype, i + k * VL, n)));
}

VEC_INLINE void swiglu_rows(const iso_swiglu_args *args, iso_row_part part, iso_dtype dtype) {
  for (int64_t row = part.row; row < part.row_end; row++) {
    const void *gate = iso_matrix_at(&args->gate, row, part.column), *up = iso_matrix_at(&args->up, row, part.column);
    void *y = iso_matrix_at(&args->y, row, part.column);
    int64_t i = 0;
    for (; i + VEC_STEP * VL <= part.count; i += VEC_STEP * VL) swiglu_step(gate, up, y, dtype, i, VEC_STEP, VL);
    for (; i + VL <= part.count; i += VL) swiglu_step(gate, up, y, dtype, i, 1, VL);
    if (i < part.count) swiglu_step(gate, up, y, dtype, i, 1, (int)(part.count - i));
  }
}

static void swiglu(const iso_swiglu_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->y, &args->gate, &args->up};
  iso_row_part part = iso_row_part_of(all, 3, worker);
  if (args->y.dtype == ISO_F32)
    swiglu_rows(args, part, ISO_F32);
  else
    swiglu_rows(args, part, ISO_BF16);
}

VEC_INLINE void swiglu_grad_step(const void *dy, const void *gate, const void *up, void *dgate, void *dup,
                                 iso_dtype dtype, int64_t i, int count, int n) {
  vec g[VEC_STEP], s[VEC_STEP], rest[VEC_STEP];
  EACH(k, count) s[k] = g[k] = vec_load(gate, dtype, i + k * VL, n);
  vec_sigmoid_each(s, rest, count);
  EACH(k, count) {
    const int64_t at = i + k * VL;
    vec d = vec_load(dy, dtype, at, n), u = vec_load(up, dtype, at, n);
    vec slope = vec_mul(s[k], vec_fma(g[k], rest[k], vec_set(1.0f)));
    vec_store(dgate, dtype, at, n, vec_mul(vec_mul(d, u), slope));
    vec_store(dup, dtype, at, n, vec_mul(d, vec_mul(g[k], s[k])));
  }
}

VEC_INLINE void swiglu_grad_rows(const iso_swiglu_grad_args *args, iso_row_part part, iso_dtype dtype) {
  for (int64_t row = part.row; row < part.row_end; row++) {
    const void *gate = iso_matrix_at(&args->gate, row, part.column), *up = iso_matrix_at(&args->up, row, part.column);
    const void *dy = iso_matrix_at(&args->dy, row, part.column);
    void *dgate = iso_matrix_at(&args->dgate, row, part.column), *dup = iso_matrix_at(&args->dup, row, part.column);
    int64_t i = 0;
    for (; i + VEC_STEP * VL <= part.count; i += VEC_STEP * VL)
      swiglu_grad_step(dy, gate, up, dgate, dup, dtype, i, VEC_STEP, VL);
    for (; i + VL <= part.count; i += VL) swiglu_grad_step(dy, gate, up, dgate, dup, dtype, i, 1, VL);
    if (i < part.count) swiglu_grad_step(dy, gate, up, dgate, dup, dtype, i, 1, (int)(part.count - i));
  }
}

static void swiglu_grad(const iso_swiglu_grad_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->dy, &args->gate, &args->up, &args->dgate, &args->dup};
  iso_row_part part = iso_row_part_of(all, 5, worker);
  if (args->dy.dtype == ISO_F32)
    swiglu_grad_rows(args, part, ISO_F32);
  else
    swiglu_grad_rows(args, part, ISO_BF16);
}

/* ---- gelu ---- */

/* x becomes the factor of x in gelu(x); the derivative where it is wanted. */
VEC_INLINE void gelu_factor_each(vec *x, iso_gelu_form form, vec *derivative, int count) {
  vec square[VEC_STEP], scaled[VEC_STEP], rest[VEC_STEP];
  if (form == ISO_GELU_ERF) {
    EACH(k, count) {
      vec bell, p = vec_normal(x[k], &bell);
      if (derivative) derivative[k] = vec_fma(vec_clamp(x[k], 15.0f), vec_mul(bell, vec_set(ROOT_1_OVER_2PI)), p);
      x[k] = p;
    }
    return;
  }
  EACH(k, count) x[k] = vec_clamp(x[k], 15.0f); /* 1 - s(2u) is zero there already, and nothing overflows below */
  EACH(k, count) square[k] = vec_mul(x[k], x[k]);
  EACH(k, count) scaled[k] = vec_mul(x[k], vec_set(2 * ROOT_2_OVER_PI));
  EACH(k, count) x[k] = vec_mul(scaled[k], vec_fma(square[k], vec_set(GELU_CUBE), vec_set(1.0f)));
  vec_sigmoid_each(x, rest, count);
  if (!derivative) return;
  EACH(k, count) {
    vec slope = vec_mul(scaled[k], vec_fma(square[k], vec_set(3 * GELU_CUBE), vec_set(1.0f)));
    derivative[k] = vec_fma(vec_mul(slope, rest[k]), x[k], x[k]);
  }
}

VEC_INLINE void gelu_step(const void *x, void *y, iso_dtype dtype, iso_gelu_form form, int64_t i, int count, int n) {
  vec value[VEC_STEP], factor[VEC_STEP];
  EACH(k, count) factor[k] = value[k] = vec_load(x, dtype, i + k * VL, n);
  gelu_factor_each(factor, form, NULL, count);
  EACH(k, count) vec_store(y, dtype, i + k * VL, n, vec_mul(value[k], factor[k]));
}

VEC_INLINE void gelu_rows(const iso_gelu_args *args, iso_row_part part, iso_dtype dtype, iso_gelu_form form) {
  for (int64_t row = part.row; row < part.row_end; row++) {
    const void *x = iso_matrix_at(&args->x, row, part.column);
    void *y = iso_matrix_at(&args->y, row, part.column);
    int64_t i = 0;
    for (; i + VEC_STEP * VL <= part.count; i += VEC_STEP * VL) gelu_step(x, y, dtype, form, i, VEC_STEP, VL);
    for (; i + VL <= part.count; i += VL) gelu_step(x, y, dtype, form, i, 1, VL);
    if (i < part.count) gelu_step(x, y, dtype, form, i, 1, (int)(part.count - i));
  }
}

static void gelu(const iso_gelu_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->y, &args->x};
  iso_row_part part = iso_row_part_of(all, 2, worker);
  if (args->form == ISO_GELU_ERF)
    gelu_rows(args, part, args->y.dtype, ISO_GELU_ERF);
  else
    gelu_rows(args, part, args->y.dtype, ISO_GELU_TANH);
}

VEC_INLINE void gelu_grad_step(const void *dy, const void *x, void *dx, iso_dtype dtype, iso_gelu_form form, int64_t i,
                               int count, int n) {
  vec value[VEC_STEP], derivative[VEC_STEP];
  EACH(k, count) value[k] = vec_load(x, dtype, i + k * VL, n);
  gelu_factor_each(value, form, derivative, count);
  EACH(k, count)
  vec_store(dx, dtype, i + k * VL, n, vec_mul(vec_load(dy, dtype, i + k * VL, n), derivative[k]));
}

VEC_INLINE void gelu_grad_rows(const iso_gelu_grad_args *args, iso_row_part part, iso_dtype dtype, iso_gelu_form form) {
  for (int64_t row = part.row; row < part.row_end; row++) {
    const void *dy = iso_matrix_at(&args->dy, row, part.column), *x = iso_matrix_at(&args->x, row, part.column);
    void *dx = iso_matrix_at(&args->dx, row, part.column);
    int64_t i = 0;
    for (; i + VEC_STEP * VL <= part.count; i += VEC_STEP * VL) gelu_grad_step(dy, x, dx, dtype, form, i, VEC_STEP, VL);
    for (; i + VL <= part.count; i += VL) gelu_grad_step(dy, x, dx, dtype, form, i, 1, VL);
    if (i < part.count) gelu_grad_step(dy, x, dx, dtype, form, i, 1, (int)(part.count - i));
  }
}

static void gelu_grad(const iso_gelu_grad_args *args, const iso_worker *worker) {
  const iso_matrix *all[] = {&args->dx, &args->dy, &args->x};
  iso_row_part part = iso_row_part_of(all, 3, worker);
  if (args->form == ISO_GELU_ERF)
    gelu_grad_rows(args, part, args->dx.dtype, ISO_GELU_ERF);
  else
    gelu_grad_rows(args, part, args->dx.dtype, ISO_GELU_TANH);
}

#endif
