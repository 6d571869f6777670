/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients packed without loss (ISO_WAL_PLANES). Of a floating-point number only the exponent compresses: sign and
 * mantissa are noise. Each value is rotated left by one bit, so that its exponent is its first byte, and bytes of a
 * kind are put together in planes, first bytes first. Zstandard packs each plane, or it stands as it is.
 *
 * Content of a packed frame
 *   0   CRC-32C of the values' own bytes (u32)
 *   4   planes: bytes of a value (u32)
 *   8   bytes of each plane as stored (4 x u32; those that are not there 0). As many as values: stored as it is
 *   24  0 (2 x u32)
 *   32  the planes
 *
 * Invariants
 *  1. What is decoded has the CRC that the values had before they were packed, or it is a fault: neither library nor
 *     this file is trusted with bits.
 *  2. A packed frame has at most ISO_WAL_PACKED values, so what a decoder allocates is bounded, whatever a file says.
 *
 * The parameters of Zstandard: matches are nearly all runs of zeros (rows of an embedding that no token of the batch
 * is), so a table of 64 entries in a small window finds them; the entropy coder does the rest, at twice the speed of
 * level 1 as it comes.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>
#include <zstd.h>

enum { HEAD = 32, PLANES = 4 };

struct iso_wal_coder {
  iso_dtype type;
  int64_t most; /* values of a frame */
  ZSTD_CCtx *pack;
  ZSTD_DCtx *unpack;
  unsigned char *planes; /* `most` of each */
};

typedef struct packed_head {
  uint32_t crc, planes, stored[PLANES], zero[2];
} packed_head;
_Static_assert(sizeof(packed_head) == HEAD, "layout of a packed frame's content");

size_t iso_wal_packed_bound(iso_dtype type, int64_t count) {
  return HEAD + (size_t)count * iso_dtype_size(type);
}

size_t iso_wal_coder_bytes(iso_dtype type, int64_t most) {
  return (size_t)most * iso_dtype_size(type) + ((size_t)1 << 20); /* planes, and the library's contexts */
}

iso_status iso_wal_coder_create(iso_dtype type, int64_t most, iso_wal_coder **out) {
  iso_wal_coder *c = calloc(1, sizeof *c);
  *out = c;
  if (c) {
    c->type = type;
    c->most = most;
    c->pack = ZSTD_createCCtx();
    c->unpack = ZSTD_createDCtx();
    c->planes = malloc((size_t)most * iso_dtype_size(type));
  }
  if (c && c->pack && c->unpack && c->planes) {
    const struct {
      ZSTD_cParameter name;
      int value;
    } settings[] = {{ZSTD_c_compressionLevel, 1}, {ZSTD_c_strategy, ZSTD_fast}, {ZSTD_c_windowLog, 17},
                    {ZSTD_c_hashLog, 6},          {ZSTD_c_minMatch, 7},         {ZSTD_c_checksumFlag, 0}};
    bool taken = true;
    for (size_t i = 0; i < ISO_COUNT(settings); i++)
      taken = taken && !ZSTD_isError(ZSTD_CCtx_setParameter(c->pack, settings[i].name, settings[i].value));
    if (taken) return ISO_OK;
  }
  iso_wal_coder_destroy(out);
  return iso_fail(ISO_ERR_MEMORY, "log: no memory to pack gradients");
}

void iso_wal_coder_destroy(iso_wal_coder **coder) {
  iso_wal_coder *c = *coder;
  if (!c) return;
  ZSTD_freeCCtx(c->pack);
  ZSTD_freeDCtx(c->unpack);
  free(c->planes);
  free(c);
  *coder = NULL;
}

static void split16(const void *values, size_t count, unsigned char *planes) {
  const uint16_t *from = values;
  unsigned char *high = planes, *low = planes + count;
  for (size_t i = 0; i < count; i++) {
    const uint16_t v = (uint16_t)(from[i] << 1 | from[i] >> 15);
    high[i] = (unsigned char)(v >> 8);
    low[i] = (unsigned char)v;
  }
}

static void join16(const unsigned char *planes, size_t count, void *values) {
  uint16_t *to = values;
  const unsigned char *high = planes, *low = planes + count;
  for (size_t i = 0; i < count; i++) {
    const uint16_t v = (uint16_t)(high[i] << 8 | low[i]);
    to[i] = (uint16_t)(v >> 1 | v << 15);
  }
}

static void split32(const void *values, size_t count, unsigned char *planes) {
  const uint32_t *from = values;
  for (size_t i = 0; i < count; i++) {
    const uint32_t v = from[i] << 1 | from[i] >> 31;
    planes[i] = (unsigned char)(v >> 24);
    planes[count + i] = (unsigned char)(v >> 16);
    planes[2 * count + i] = (unsigned char)(v >> 8);
    planes[3 * count + i] = (unsigned char)v;
  }
}

static void join32(const unsigned char *planes, size_t count, void *values) {
  uint32_t *to = values;
  for (size_t i = 0; i < count; i++) {
    const uint32_t v = (uint32_t)planes[i] << 24 | (uint32_t)planes[count + i] << 16 |
                       (uint32_t)planes[2 * count + i] << 8 | planes[3 * count + i];
    to[i] = v >> 1 | v << 31;
  }
}

size_t iso_wal_pack(iso_wal_coder *c, const void *values, int64_t count, void *content) {
  const size_t n = (size_t)count, size = iso_dtype_size(c->type);
  packed_head head = {.crc = iso_crc32c(0, values, n * size), .planes = (uint32_t)size};
  if (size == 2)
    split16(values, n, c->planes);
  else
    split32(values, n, c->planes);
  char *at = (char *)content + HEAD;
  for (size_t p = 0; p < size; p++) {
    /* No more room than the plane itself takes: what does not shrink is an error, and stands as it is. */
    const size_t stored = ZSTD_compress2(c->pack, at, n - 1, c->planes + p * n, n);
    const bool shrunk = n > 1 && !ZSTD_isError(stored);
    if (!shrunk) memcpy(at, c->planes + p * n, n);
    head.stored[p] = (uint32_t)(shrunk ? stored : n);
    at += head.stored[p];
  }
  memcpy(content, &head, sizeof head);
  return (size_t)(at - (char *)content);
}

const char *iso_wal_unpack(iso_wal_coder *c, const void *content, size_t bytes, int64_t count, void *values) {
  const size_t n = (size_t)count, size = iso_dtype_size(c->type);
  packed_head head;
  if (count < 1 || count > c->most || bytes < HEAD) return "a packed gradient has an impossible size";
  memcpy(&head, content, sizeof head);
  size_t left = bytes - HEAD;
  bool possible = head.planes == size && head.zero[0] == 0 && head.zero[1] == 0;
  for (size_t p = 0; p < PLANES && possible; p++) {
    possible = p < size ? head.stored[p] >= 1 && head.stored[p] <= n && head.stored[p] <= left : head.stored[p] == 0;
    left -= possible ? head.stored[p] : 0;
  }
  if (!possible || left) return "a packed gradient has an impossible head";
  const char *at = (const char *)content + HEAD;
  for (size_t p = 0; p < size; at += head.stored[p++]) {
    if (head.stored[p] == n)
      memcpy(c->planes + p * n, at, n);
    else if (ZSTD_decompressDCtx(c->unpack, c->planes + p * n, n, at, head.stored[p]) != n)
      return "a packed gradient cannot be unpacked";
  }
  if (size == 2)
    join16(c->planes, n, values);
  else
    join32(c->planes, n, values);
  return iso_crc32c(0, values, n * size) == head.crc ? NULL
                                                     : "a packed gradient does not unpack to the values it was made of";
}
