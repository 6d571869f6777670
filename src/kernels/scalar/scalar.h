/* SPDX-License-Identifier: Apache-2.0
 *
 * scalar.h: element access for the plain-C kernels. An element is loaded as float32, worked on in float64 where a
 * formula has more than one step, and rounded once when it is stored.
 */
#ifndef ISO_KERNELS_SCALAR_H
#define ISO_KERNELS_SCALAR_H

#include "kernels/rows.h"

static inline float iso_scalar_load(const iso_matrix *matrix, int64_t row, int64_t column) {
  int64_t at = row * matrix->ld + column;
  return matrix->dtype == ISO_F32 ? ((const float *)matrix->data)[at]
                                  : iso_bf16_to_f32(((const iso_bf16 *)matrix->data)[at]);
}

static inline void iso_scalar_store(const iso_matrix *matrix, int64_t row, int64_t column, double value) {
  int64_t at = row * matrix->ld + column;
  if (matrix->dtype == ISO_F32)
    ((float *)matrix->data)[at] = (float)value;
  else
    ((iso_bf16 *)matrix->data)[at] = iso_bf16_from_f32((float)value);
}

#endif
