/* SPDX-License-Identifier: Apache-2.0
 *
 * dtype.c: element types, and the scalar conversions that every vector form is tested against.
 *
 * Invariants
 *  1. Conversions work on bit patterns with integer operations only: no rounding mode or flush-to-zero setting of the
 *     processor changes a result.
 *  2. A NaN stays a NaN (made quiet, sign and upper payload kept); infinities and signed zeros stay what they are.
 */
#include "base/base.h"

#include <string.h>

static const struct {
  const char *name;
  size_t size; /* bytes */
} dtypes[] = {
    [ISO_F32] = {"f32", 4}, [ISO_BF16] = {"bf16", 2}, [ISO_I32] = {"i32", 4}, [ISO_F16] = {"f16", 2},
    [ISO_F64] = {"f64", 8}, [ISO_I64] = {"i64", 8},   [ISO_U8] = {"u8", 1},
};

size_t iso_dtype_size(iso_dtype dtype) {
  return (size_t)dtype < ISO_COUNT(dtypes) ? dtypes[dtype].size : 0;
}

const char *iso_dtype_name(iso_dtype dtype) {
  return (size_t)dtype < ISO_COUNT(dtypes) ? dtypes[dtype].name : "unknown";
}

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

iso_bf16 iso_bf16_from_f32(float x) {
  uint32_t bits = bits_of(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (iso_bf16)(bits >> 16 | 0x40u);
  /* Adding just under a half, and one more when the kept part is odd, carries exactly when nearest-even rounds up. */
  return (iso_bf16)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

float iso_bf16_to_f32(iso_bf16 x) {
  return float_of((uint32_t)x << 16);
}

float iso_f16_to_f32(uint16_t x) {
  uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
  uint32_t exponent = x >> 10 & 31u;
  uint32_t fraction = x & 0x3FFu;
  if (exponent == 31) /* infinity, or a NaN made quiet */
    return float_of(sign | 0x7F800000u | (fraction ? fraction << 13 | 0x400000u : 0));
  if (exponent == 0) {
    if (fraction == 0) return float_of(sign);
    exponent = 1; /* subnormal: shift the leading one into its hidden place */
    while (!(fraction & 0x400u)) {
      fraction <<= 1;
      exponent--; /* wraps below zero; the bias added next brings it back */
    }
    fraction &= 0x3FFu;
  }
  return float_of(sign | (exponent + 112u) << 23 | fraction << 13);
}
