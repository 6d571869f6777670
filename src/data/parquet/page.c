/* SPDX-License-Identifier: Apache-2.0
 *
 * page: what a page says of itself, its compression, and its runs of small numbers.
 *
 *   runs    varint head; head odd: head/2 groups of 8 numbers of `width` bits, packed from the lowest bit;
 *           head even: head/2 repetitions of the number in the next (width + 7)/8 bytes
 *
 * Invariants
 *  1. No byte beyond the given ones is read.
 *  2. A header's numbers are not negative.
 */
#include "data/parquet/parquet.h"
#include "io/io.h"

#include <snappy-c.h>
#include <string.h>

/* ---- header ---- */

static void read_data(iso_thrift *t, iso_parquet_page *p, bool second) {
  iso_thrift_field field = {0};
  p->level_encoding = second ? 3 : 0; /* RLE; else 0 until it is said */
  while (iso_thrift_next(t, &field)) {
    if (field.id == 1)
      p->values = iso_thrift_i32(t, field.type);
    else if (field.id == (second ? 4 : 2))
      p->encoding = iso_thrift_i32(t, field.type);
    else if (!second && field.id == 3)
      p->level_encoding = iso_thrift_i32(t, field.type);
    else if (second && field.id == 2)
      p->nulls = iso_thrift_i32(t, field.type);
    else if (second && field.id == 3)
      p->rows = iso_thrift_i32(t, field.type);
    else if (second && field.id == 5)
      p->definition_bytes = iso_thrift_i32(t, field.type);
    else if (second && field.id == 6)
      p->repetition_bytes = iso_thrift_i32(t, field.type);
    else if (second && field.id == 7)
      p->compressed = field.type == ISO_THRIFT_TRUE;
    else
      iso_thrift_skip(t, field.type);
  }
}

static void read_dictionary(iso_thrift *t, iso_parquet_page *p) {
  iso_thrift_field field = {0};
  while (iso_thrift_next(t, &field)) {
    if (field.id == 1)
      p->values = iso_thrift_i32(t, field.type);
    else if (field.id == 2)
      p->encoding = iso_thrift_i32(t, field.type);
    else
      iso_thrift_skip(t, field.type);
  }
}

bool iso_parquet_page_parse(const uint8_t *from, size_t bytes, iso_parquet_page *out, size_t *header_bytes,
                            bool *more) {
  iso_thrift t = {.at = from, .end = from + bytes};
  iso_thrift_field field = {0};
  int body = -1; /* type that its own header is of */
  *out = (iso_parquet_page){.type = -1, .bytes = -1, .stored_bytes = -1, .compressed = true};
  *more = false;
  while (iso_thrift_next(&t, &field)) {
    if (field.id == 1) {
      out->type = iso_thrift_i32(&t, field.type);
    } else if (field.id == 2) {
      out->bytes = iso_thrift_i32(&t, field.type);
    } else if (field.id == 3) {
      out->stored_bytes = iso_thrift_i32(&t, field.type);
    } else if (field.id == 4) {
      out->crc = (uint32_t)iso_thrift_i32(&t, field.type);
      out->has_crc = true;
    } else if (field.type == ISO_THRIFT_STRUCT && (field.id == 5 || field.id == 8)) {
      body = field.id == 5 ? ISO_PARQUET_DATA : ISO_PARQUET_DATA_V2;
      read_data(&t, out, field.id == 8);
    } else if (field.type == ISO_THRIFT_STRUCT && field.id == 7) {
      body = ISO_PARQUET_DICTIONARY;
      read_dictionary(&t, out);
    } else {
      iso_thrift_skip(&t, field.type);
    }
  }
  *more = t.short_of_bytes;
  *header_bytes = (size_t)(t.at - from);
  if (t.failed || out->bytes < 0 || out->stored_bytes < 0) return false;
  if (out->type == ISO_PARQUET_INDEX) return true;
  return body == out->type && out->values >= 0 && out->nulls >= 0 && out->rows >= 0 && out->definition_bytes >= 0 &&
         out->repetition_bytes >= 0;
}

/* ---- compression ---- */

enum { PLAIN = 0, SNAPPY = 1, GZIP = 2, ZSTD = 6 };

const char *iso_parquet_codec_name(int codec) {
  static const char *const names[] = {"none", "Snappy", "gzip", "LZO", "Brotli", "LZ4", "Zstandard", "LZ4 (raw)"};
  return codec >= 0 && (size_t)codec < ISO_COUNT(names) ? names[codec] : NULL;
}

iso_status iso_parquet_decompress(const char *what, int codec, const uint8_t *stored, size_t bytes, uint8_t *to,
                                  size_t to_bytes) {
  size_t length = 0;
  switch (codec) {
  case PLAIN:
    if (bytes != to_bytes) return iso_fail(ISO_ERR_FORMAT, "%s: it has %zu bytes and says %zu", what, bytes, to_bytes);
    memcpy(to, stored, bytes);
    return ISO_OK;
  case SNAPPY:
    if (snappy_uncompressed_length((const char *)stored, bytes, &length) != SNAPPY_OK || length != to_bytes ||
        snappy_uncompress((const char *)stored, bytes, (char *)to, &length) != SNAPPY_OK || length != to_bytes)
      return iso_fail(ISO_ERR_FORMAT, "%s: its Snappy data is damaged", what);
    return ISO_OK;
  case GZIP:
    return iso_decompress_block(what, ISO_GZIP, stored, bytes, to, to_bytes);
  case ZSTD:
    return iso_decompress_block(what, ISO_ZSTD, stored, bytes, to, to_bytes);
  default:
    return iso_fail(ISO_ERR_UNSUPPORTED,
                    "%s: it is compressed with %s, which is not read; write it with zstd or snappy", what,
                    iso_parquet_codec_name(codec));
  }
}

/* ---- runs ---- */

static bool next_stretch(iso_parquet_runs *r) {
  iso_thrift t = {.at = r->at, .end = r->end};
  uint64_t head = iso_thrift_varint(&t);
  if (t.failed || head >> 1 == 0) return false;
  r->at = t.at;
  r->bit = 0;
  if (head & 1) {
    if (head >> 1 > UINT64_MAX / 8) return false;
    r->packed_left = (head >> 1) * 8;
    return true;
  }
  const int bytes = (r->width + 7) / 8;
  if (r->end - r->at < bytes) return false;
  r->value = 0;
  for (int i = 0; i < bytes; i++) r->value |= (uint32_t)*r->at++ << (8 * i);
  r->run_left = head >> 1;
  return r->width == 32 || r->value >> r->width == 0;
}

bool iso_parquet_runs_next(iso_parquet_runs *r, uint32_t *out) {
  while (r->run_left == 0 && r->packed_left == 0)
    if (!next_stretch(r)) return false;
  if (r->run_left) {
    r->run_left--;
    *out = r->value;
    return true;
  }
  if (r->end - r->at < (r->bit + r->width + 7) / 8) return false;
  uint64_t bits = 0;
  for (int i = 0, n = (r->bit + r->width + 7) / 8; i < n; i++) bits |= (uint64_t)r->at[i] << (8 * i);
  *out = (uint32_t)(bits >> r->bit & (((uint64_t)1 << r->width) - 1));
  r->bit += r->width;
  r->at += r->bit / 8;
  r->bit %= 8;
  if (--r->packed_left == 0 && r->bit) r->at++; /* cannot be: groups of 8 end with a byte */
  return true;
}
