/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32c.c: CRC-32C over ISA-L, which runs at memory speed.
 *
 * ISA-L's function is the bare register: it neither inverts on the way in nor on the way out. The inversion here makes
 * 0 the start value and makes the result continue: crc(crc(0, a), b) = crc(0, ab).
 *
 * Joining: a CRC is a polynomial over GF(2) modulo P, and appending n zero bits multiplies it by x^n. The inversions of
 * both ends cancel, so crc(ab) = crc(a) x^(8 |b|) + crc(b).
 */
#include "base/base.h"

#include <isa-l/crc.h>

uint32_t iso_crc32c(uint32_t crc, const void *data, size_t bytes) {
  const size_t largest = (size_t)1 << 30; /* ISA-L takes an int length */
  unsigned char *at = (unsigned char *)(uintptr_t)data;
  crc = ~crc;
  while (bytes > 0) {
    size_t now = bytes < largest ? bytes : largest;
    crc = crc32_iscsi(at, (int)now, crc);
    at += now;
    bytes -= now;
  }
  return ~crc;
}

/* a b mod P; bit 31 is the coefficient of x^0, as the register has it. */
static uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a; a <<= 1) {
    if (a & 0x80000000u) product ^= b;
    b = b >> 1 ^ (b & 1 ? 0x82f63b78u : 0);
  }
  return product;
}

uint32_t iso_crc32c_join(uint32_t first, uint32_t second, uint64_t bytes) {
  uint32_t power = 0x00800000u; /* x^8 */
  for (; bytes; bytes >>= 1) {
    if (bytes & 1) first = multiply(first, power);
    power = multiply(power, power);
  }
  return first ^ second;
}
