/* SPDX-License-Identifier: Apache-2.0
 *
 * crc32c.c: CRC-32C over ISA-L, which runs at memory speed.
 *
 * ISA-L's function is the bare register: it neither inverts on the way in nor on the way out. The inversion here makes
 * 0 the start value and makes the result continue: crc(crc(0, a), b) = crc(0, ab).
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
