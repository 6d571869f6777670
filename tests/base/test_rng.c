/* SPDX-License-Identifier: Apache-2.0
 *
 * Philox against its authors' known answers, the distributions, and the permutation as a bijection.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The philox4x32 10-round vectors of the Random123 distribution (zeros, ones, digits of pi). */
static void known_answers(void **state) {
  const struct {
    uint32_t counter[4], key[2], out[4];
  } rows[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    uint32_t out[4];
    iso_philox(rows[i].counter, (uint64_t)rows[i].key[1] << 32 | rows[i].key[0], out);
    assert_memory_equal(out, rows[i].out, sizeof out);
  }
}

static void packing(void **state) {
  uint32_t a[4], b[4];
  const uint32_t counter[4] = {0x55667788, 0x11223344, 0xDDEEFF00, 0x04AABBCC};
  iso_rng(0x0123456789ABCDEF, ISO_RNG_SAMPLE, 0xAABBCCDDEEFF00, 0x1122334455667788, a);
  iso_philox(counter, 0x0123456789ABCDEF, b);
  assert_memory_equal(a, b, sizeof a);
}

static void every_argument_matters(void **state) {
  double x = iso_rng_uniform(1, ISO_RNG_INIT, 2, 3);
  assert_true(x == iso_rng_uniform(1, ISO_RNG_INIT, 2, 3));
  assert_true(x != iso_rng_uniform(2, ISO_RNG_INIT, 2, 3));
  assert_true(x != iso_rng_uniform(1 + (1ull << 32), ISO_RNG_INIT, 2, 3));
  assert_true(x != iso_rng_uniform(1, ISO_RNG_SHUFFLE, 2, 3));
  assert_true(x != iso_rng_uniform(1, ISO_RNG_INIT, 3, 3));
  assert_true(x != iso_rng_uniform(1, ISO_RNG_INIT, 2 + (1ull << 33), 3));
  assert_true(x != iso_rng_uniform(1, ISO_RNG_INIT, 2, 4));
  assert_true(x != iso_rng_uniform(1, ISO_RNG_INIT, 2, 3 + (1ull << 40)));
}

static void uniform_moments(void **state) {
  enum { N = 200000 };
  double sum = 0, squares = 0, least = 1, most = 0;
  for (uint64_t i = 0; i < N; i++) {
    double u = iso_rng_uniform(7, ISO_RNG_TEST, 1, i);
    assert_true(u >= 0 && u < 1);
    sum += u;
    squares += u * u;
    least = fmin(least, u);
    most = fmax(most, u);
  }
  assert_true(fabs(sum / N - 0.5) < 5 * 0.2887 / sqrt(N));
  assert_true(fabs(squares / N - 1.0 / 3) < 5 * 0.2981 / sqrt(N));
  assert_true(least < 1e-4 && most > 1 - 1e-4);
}

static void normal_moments(void **state) {
  enum { N = 200000 };
  double sum[5] = {0};
  int beyond2 = 0;
  for (uint64_t i = 0; i < N; i++) {
    double x = iso_rng_normal(7, ISO_RNG_TEST, 2, i), p = x;
    assert_true(fabs(x) < 9);
    for (int k = 1; k <= 4; k++, p *= x) sum[k] += p;
    beyond2 += fabs(x) > 2;
  }
  assert_true(fabs(sum[1] / N) < 5 / sqrt(N));
  assert_true(fabs(sum[2] / N - 1) < 5 * sqrt(2.0 / N));
  assert_true(fabs(sum[3] / N) < 5 * sqrt(15.0 / N));
  assert_true(fabs(sum[4] / N - 3) < 5 * sqrt(96.0 / N));
  assert_true(fabs((double)beyond2 / N - 0.0455) < 0.003);
}

static void permute_is_a_bijection(void **state) {
  unsigned char seen[300];
  for (uint64_t count = 1; count <= 300; count++)
    for (uint64_t key = 0; key < 3; key++) {
      memset(seen, 0, sizeof seen);
      for (uint64_t i = 0; i < count; i++) {
        uint64_t image = iso_rng_permute(5, key << 40 | key, count, i);
        assert_true(image < count);
        assert_int_equal(seen[image]++, 0);
      }
    }
}

static int u64_compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static void permute_large_counts(void **state) {
  enum { N = 4000 };
  static uint64_t images[N];
  const uint64_t counts[] = {65536,          65537,      1000000007,       1ull << 32, (1ull << 32) + 1,
                             1000000000000u, 1ull << 62, (1ull << 63) + 5, UINT64_MAX};
  for (size_t c = 0; c < ISO_COUNT(counts); c++) {
    double mean = 0;
    for (uint64_t i = 0; i < N; i++) {
      images[i] = iso_rng_permute(9, 77, counts[c], i % 2 ? counts[c] - 1 - i : i);
      assert_true(images[i] < counts[c]);
      mean += (double)images[i] / (double)counts[c] / N;
    }
    assert_true(fabs(mean - 0.5) < 5 * 0.2887 / sqrt(N));
    qsort(images, N, sizeof images[0], u64_compare);
    for (size_t i = 1; i < N; i++) assert_true(images[i] != images[i - 1]);
  }
}

/* Over many keys every index reaches every place about equally often, for small counts too. */
static void permute_spreads(void **state) {
  enum { KEYS = 6000 };
  const uint64_t counts[] = {2, 3, 4, 5, 7, 16, 17};
  for (size_t c = 0; c < ISO_COUNT(counts); c++) {
    uint64_t count = counts[c];
    for (uint64_t index = 0; index < count; index++) {
      int hits[17] = {0};
      for (uint64_t key = 0; key < KEYS; key++) hits[iso_rng_permute(3, key, count, index)]++;
      double chi = 0, wanted = (double)KEYS / (double)count;
      for (uint64_t i = 0; i < count; i++) chi += (hits[i] - wanted) * (hits[i] - wanted) / wanted;
      double freedom = (double)count - 1;
      if (chi > freedom + 6 * sqrt(2 * freedom) + 6)
        fail_msg("count %d index %d: chi2 %.1f", (int)count, (int)index, chi);
    }
  }
}

static void bits_are_fixed(void **state) {
  uint32_t crc = 0;
  for (uint64_t i = 0; i < 5000; i++) {
    double x = iso_rng_normal(1234, ISO_RNG_INIT, 17, i);
    uint64_t image = iso_rng_permute(1234, i, 1000 + i, i);
    crc = iso_crc32c(iso_crc32c(crc, &x, 8), &image, 8);
  }
  assert_int_equal(crc, 0xa33cd002);
}

/* In bulk and one by one, on every tier of this machine, over the place where an element's upper word changes. */
static void normals_in_bulk(void **state) {
  static const struct {
    int64_t begin, count;
  } ranges[] = {{0, 1},         {0, 63},        {0, 64},
                {0, 65},        {4, 1027},      {8, 5000},
                {65536, 65536}, {1 << 20, 130}, {((int64_t)1 << 34) - 8192, 16384}};
  static float one[65536], bulk[65537];
  for (int tier = 0; tier <= (int)iso_cpu_best_tier(); tier++) {
    for (size_t r = 0; r < ISO_COUNT(ranges); r++) {
      const int64_t begin = ranges[r].begin, count = ranges[r].count;
      for (int64_t i = 0; i < count; i++) {
        uint32_t bits[4];
        iso_rng(99 + r, ISO_RNG_INIT, 3, (uint64_t)(begin + i) / 4, bits);
        one[i] = (float)(0.02 * iso_normal_from_bits(bits[i % 4]));
      }
      bulk[count] = -1;
      iso_rng_normals((iso_tier)tier, 99 + r, ISO_RNG_INIT, 3, begin, begin + count, 0.02, bulk);
      assert_memory_equal(one, bulk, (size_t)count * sizeof *one);
      assert_true(bulk[count] == -1);
    }
  }
  iso_rng_normals(iso_cpu_best_tier(), 1, ISO_RNG_INIT, 0, 0, 65536, 0.02, bulk);
  assert_true(iso_crc32c(0, bulk, 65536 * sizeof *bulk) == 0xbf0cba83);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_answers),          cmocka_unit_test(packing),
      cmocka_unit_test(every_argument_matters), cmocka_unit_test(uniform_moments),
      cmocka_unit_test(normal_moments),         cmocka_unit_test(permute_is_a_bijection),
      cmocka_unit_test(permute_large_counts),   cmocka_unit_test(permute_spreads),
      cmocka_unit_test(bits_are_fixed),         cmocka_unit_test(normals_in_bulk),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
