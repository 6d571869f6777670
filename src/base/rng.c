/* SPDX-License-Identifier: Apache-2.0
 *
 * rng.c: random numbers as pure functions, from Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
 * as easy as 1, 2, 3", 2011), checked in the tests against the known answers that its authors published.
 *
 * Philox maps a 128-bit counter under a 64-bit key to 128 random bits, bijectively. The packing here:
 *
 *   key      word 0, 1: seed, low word first
 *   counter  word 0, 1: element, low word first
 *            word 2, 3: step, low word first, with the purpose exclusive-ored into the top byte
 *
 * Invariants
 *  1. Different (purpose, step, element) have different counters as long as step < 2^56.
 *  2. iso_rng_permute uses counters whose word 1 is at least 0xFE000000: elements below 2^63 never share one with it.
 *  3. Every result's bits depend on nothing but the arguments (integers, and the functions of math.c).
 */
#include "base/base.h"

static uint32_t multiply_high_low(uint32_t a, uint32_t b, uint32_t *low) {
  uint64_t product = (uint64_t)a * b;
  *low = (uint32_t)product;
  return (uint32_t)(product >> 32);
}

void iso_philox(const uint32_t counter[4], uint64_t key, uint32_t out[4]) {
  uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  for (int round = 0; round < 10; round++) {
    uint32_t low0, low1;
    uint32_t high0 = multiply_high_low(0xD2511F53u, c0, &low0);
    uint32_t high1 = multiply_high_low(0xCD9E8D57u, c2, &low1);
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += 0x9E3779B9u; /* golden ratio */
    key1 += 0xBB67AE85u; /* sqrt(3) - 1 */
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

void iso_rng(uint64_t seed, iso_rng_purpose purpose, uint64_t step, uint64_t element, uint32_t out[4]) {
  const uint32_t counter[4] = {(uint32_t)element, (uint32_t)(element >> 32), (uint32_t)step,
                               (uint32_t)(step >> 32) ^ (uint32_t)purpose << 24};
  iso_philox(counter, seed, out);
}

/* The 53 upper bits of two words, as an integer. */
static uint64_t bits53(uint32_t low, uint32_t high) {
  return ((uint64_t)high << 32 | low) >> 11;
}

double iso_rng_uniform(uint64_t seed, iso_rng_purpose purpose, uint64_t step, uint64_t element) {
  uint32_t bits[4];
  iso_rng(seed, purpose, step, element, bits);
  return (double)bits53(bits[0], bits[1]) * 0x1p-53;
}

double iso_rng_normal(uint64_t seed, iso_rng_purpose purpose, uint64_t step, uint64_t element) {
  const double two_pi = 6.283185307179586;
  uint32_t bits[4];
  iso_rng(seed, purpose, step, element, bits);
  double radius_uniform = (double)(bits53(bits[0], bits[1]) + 1) * 0x1p-53; /* (0, 1]: the logarithm is finite */
  double angle_uniform = (double)bits53(bits[2], bits[3]) * 0x1p-53;
  return __builtin_sqrt(-2.0 * iso_log(radius_uniform)) * iso_cos(two_pi * angle_uniform);
}

uint64_t iso_rng_permute(uint64_t seed, uint64_t key, uint64_t count, uint64_t index) {
  if (count <= 1) return 0;
  /* The Feistel network permutes [0, 4^half), the smallest such range that holds count values, less than 4 * count.
   * Values outside [0, count) are fed back until one is inside: following a cycle keeps the map a bijection. */
  int bits = 64 - __builtin_clzll(count - 1);
  int half = (bits + 1) / 2;
  uint32_t mask = (uint32_t)(((uint64_t)1 << half) - 1);
  uint32_t rounds = half < 6 ? 12 : 4; /* four rounds leave a bias of a few percent in ranges this small */
  uint64_t value = index;
  do {
    uint32_t left = (uint32_t)(value >> half) & mask, right = (uint32_t)value & mask;
    for (uint32_t round = 0; round < rounds; round++) {
      const uint32_t counter[4] = {right, 0xFE000000u + round, (uint32_t)key, (uint32_t)(key >> 32)};
      uint32_t random[4];
      iso_philox(counter, seed, random);
      uint32_t mixed = left ^ (random[0] & mask);
      left = right;
      right = mixed;
    }
    value = (uint64_t)left << half | right;
  } while (value >= count);
  return value;
}
