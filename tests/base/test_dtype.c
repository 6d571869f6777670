/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions, exhaustively over all 65,536 upper halves with every kind of lower half.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

static float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

/* The nearest of the two bfloat16 neighbours by exact distance in double, ties to the even pattern. */
static uint16_t nearest_even(uint32_t bits) {
  uint16_t down = (uint16_t)(bits >> 16);
  double x = float_of(bits), low = float_of((uint32_t)down << 16);
  uint32_t up_bits = ((uint32_t)down + 1) << 16;
  double high = (up_bits & 0x7FFFFFFF) == 0x7F800000 ? copysign(0x1p128, x) : float_of(up_bits);
  double to_low = fabs(x - low), to_high = fabs(high - x);
  if (to_low != to_high) return to_low < to_high ? down : (uint16_t)(down + 1);
  return down & 1 ? (uint16_t)(down + 1) : down;
}

static void bf16_rounds_to_nearest_even(void **state) {
  const uint32_t lower[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x4000, 0xC123};
  for (uint32_t upper = 0; upper < 0x10000; upper++) {
    for (size_t i = 0; i < ISO_COUNT(lower); i++) {
      uint32_t bits = upper << 16 | lower[i];
      uint16_t got = iso_bf16_from_f32(float_of(bits));
      uint16_t wanted;
      if ((bits & 0x7FFFFFFF) > 0x7F800000)
        wanted = (uint16_t)(upper | 0x40); /* quiet NaN */
      else if ((bits & 0x7FFFFFFF) == 0x7F800000)
        wanted = (uint16_t)upper;
      else
        wanted = nearest_even(bits);
      if (got != wanted) fail_msg("%08x: got %04x, expected %04x", (unsigned)bits, got, wanted);
    }
  }
}

static void bf16_round_trip(void **state) {
  for (uint32_t x = 0; x < 0x10000; x++) {
    uint32_t bits = bits_of(iso_bf16_to_f32((iso_bf16)x));
    assert_int_equal(bits, x << 16);
    bool nan = (x & 0x7FFF) > 0x7F80;
    assert_int_equal(iso_bf16_from_f32(float_of(bits)), nan ? x | 0x40 : x);
  }
}

static void f16_values(void **state) {
  for (uint32_t x = 0; x < 0x10000; x++) {
    int exponent = (int)(x >> 10 & 31), fraction = (int)(x & 1023);
    double magnitude = exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);
    float got = iso_f16_to_f32((uint16_t)x);
    if (exponent == 31) {
      if (fraction == 0)
        assert_int_equal(bits_of(got), (x & 0x8000) << 16 | 0x7F800000);
      else
        assert_int_equal(bits_of(got), (x & 0x8000) << 16 | 0x7FC00000 | (uint32_t)fraction << 13);
    } else {
      assert_true((double)got == (x & 0x8000 ? -magnitude : magnitude));
      assert_int_equal(bits_of(got) >> 31, x >> 15);
    }
  }
}

static void names_and_sizes(void **state) {
  assert_int_equal(iso_dtype_size(ISO_F32), 4);
  assert_int_equal(iso_dtype_size(ISO_BF16), 2);
  assert_int_equal(iso_dtype_size(ISO_I32), 4);
  assert_int_equal(iso_dtype_size(ISO_F16), 2);
  assert_int_equal(iso_dtype_size(ISO_F64), 8);
  assert_int_equal(iso_dtype_size(ISO_I64), 8);
  assert_int_equal(iso_dtype_size(ISO_U8), 1);
  assert_int_equal(iso_dtype_size((iso_dtype)77), 0);
  assert_string_equal(iso_dtype_name(ISO_F32), "f32");
  assert_string_equal(iso_dtype_name(ISO_BF16), "bf16");
  assert_string_equal(iso_dtype_name(ISO_I32), "i32");
  assert_string_equal(iso_dtype_name(ISO_F16), "f16");
  assert_string_equal(iso_dtype_name(ISO_F64), "f64");
  assert_string_equal(iso_dtype_name(ISO_I64), "i64");
  assert_string_equal(iso_dtype_name(ISO_U8), "u8");
  assert_string_equal(iso_dtype_name((iso_dtype)77), "unknown");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bf16_rounds_to_nearest_even),
      cmocka_unit_test(bf16_round_trip),
      cmocka_unit_test(f16_values),
      cmocka_unit_test(names_and_sizes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
