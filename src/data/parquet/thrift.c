/* SPDX-License-Identifier: Apache-2.0
 *
 * thrift: Thrift's compact protocol, as much of it as Parquet's headers need.
 *
 *   struct   fields, then 0x00
 *   field    1 byte: id's distance from the last (0: the id follows, zigzag) << 4 | type; then the value
 *   whole    zigzag varint (I8: one byte); truth values are types
 *   binary   varint length, bytes
 *   list     1 byte: count (15: a varint follows) << 4 | type of the entries; then the entries
 *   map      varint count; unless 0, 1 byte: type of keys << 4 | type of values; then the pairs
 *
 * Invariants
 *  1. No byte beyond `end` is read, however wrong the input.
 *  2. Counts are at most the bytes that are left, since each entry has at least one; nesting at most MAX_DEPTH.
 */
#include "data/parquet/parquet.h"

#include <string.h>

enum { MAX_DEPTH = 24 };

static void fail(iso_thrift *t, bool short_of_bytes) {
  t->failed = true;
  t->short_of_bytes = short_of_bytes;
}

static uint8_t byte(iso_thrift *t) {
  if (t->failed) return 0;
  if (t->at == t->end) {
    fail(t, true);
    return 0;
  }
  return *t->at++;
}

uint64_t iso_thrift_varint(iso_thrift *t) {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    uint8_t b = byte(t);
    if (shift == 63 && b > 1) break;
    value |= (uint64_t)(b & 0x7F) << shift;
    if (!(b & 0x80)) return t->failed ? 0 : value;
  }
  fail(t, false);
  return 0;
}

static int64_t zigzag(uint64_t value) {
  return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

bool iso_thrift_next(iso_thrift *t, iso_thrift_field *field) {
  uint8_t head = byte(t);
  if (t->failed || head == ISO_THRIFT_STOP) return false;
  int64_t id = head >> 4 ? field->id + (head >> 4) : zigzag(iso_thrift_varint(t));
  field->type = head & 15;
  if (id < 0 || id > 32767 || field->type == ISO_THRIFT_STOP || field->type > ISO_THRIFT_UUID) fail(t, false);
  field->id = (int)id;
  return !t->failed;
}

int64_t iso_thrift_int(iso_thrift *t, int type) {
  if (type == ISO_THRIFT_I8) return (int8_t)byte(t);
  if (type != ISO_THRIFT_I16 && type != ISO_THRIFT_I32 && type != ISO_THRIFT_I64) {
    fail(t, false);
    return 0;
  }
  return zigzag(iso_thrift_varint(t));
}

int32_t iso_thrift_i32(iso_thrift *t, int type) {
  int64_t value = iso_thrift_int(t, type);
  if (value >= INT32_MIN && value <= INT32_MAX) return (int32_t)value;
  fail(t, false);
  return 0;
}

static const uint8_t *take(iso_thrift *t, uint64_t bytes) {
  if (t->failed) return NULL;
  if (bytes > (uint64_t)(t->end - t->at)) {
    fail(t, true);
    return NULL;
  }
  const uint8_t *from = t->at;
  t->at += bytes;
  return from;
}

const uint8_t *iso_thrift_binary(iso_thrift *t, int type, size_t *length) {
  *length = 0;
  if (type != ISO_THRIFT_BINARY) fail(t, false);
  uint64_t bytes = iso_thrift_varint(t);
  const uint8_t *from = take(t, bytes);
  if (from) *length = (size_t)bytes;
  return from;
}

static int64_t list_head(iso_thrift *t, int *element) {
  uint8_t head = byte(t);
  *element = head & 15;
  uint64_t count = head >> 4 == 15 ? iso_thrift_varint(t) : head >> 4;
  if (!t->failed && count > (uint64_t)(t->end - t->at)) fail(t, true);
  return t->failed ? 0 : (int64_t)count;
}

int64_t iso_thrift_list(iso_thrift *t, int type, int element) {
  int found;
  if (type != ISO_THRIFT_LIST) fail(t, false);
  int64_t count = list_head(t, &found);
  if (count > 0 && found != element) fail(t, false);
  return t->failed ? 0 : count;
}

static void skip(iso_thrift *t, int type, bool in_list, int depth);

static void skip_struct(iso_thrift *t, int depth) {
  iso_thrift_field field = {0};
  while (iso_thrift_next(t, &field)) skip(t, field.type, false, depth);
}

static void skip_map(iso_thrift *t, int depth) {
  uint64_t count = iso_thrift_varint(t);
  if (count == 0) return;
  uint8_t types = byte(t);
  for (; count > 0 && !t->failed; count--) {
    skip(t, types >> 4, true, depth);
    skip(t, types & 15, true, depth);
  }
}

/* In lists and maps a truth value is a byte; as a field it is in the type. */
static void skip(iso_thrift *t, int type, bool in_list, int depth) {
  int element;
  if (depth == MAX_DEPTH) fail(t, false);
  if (t->failed) return;
  switch (type) {
  case ISO_THRIFT_TRUE:
  case ISO_THRIFT_FALSE:
    if (in_list) byte(t);
    break;
  case ISO_THRIFT_I8:
    byte(t);
    break;
  case ISO_THRIFT_I16:
  case ISO_THRIFT_I32:
  case ISO_THRIFT_I64:
    iso_thrift_varint(t);
    break;
  case ISO_THRIFT_DOUBLE:
    take(t, 8);
    break;
  case ISO_THRIFT_UUID:
    take(t, 16);
    break;
  case ISO_THRIFT_BINARY:
    take(t, iso_thrift_varint(t));
    break;
  case ISO_THRIFT_LIST:
  case ISO_THRIFT_SET:
    for (int64_t count = list_head(t, &element); count > 0 && !t->failed; count--) skip(t, element, true, depth + 1);
    break;
  case ISO_THRIFT_MAP:
    skip_map(t, depth + 1);
    break;
  case ISO_THRIFT_STRUCT:
    skip_struct(t, depth + 1);
    break;
  default:
    fail(t, false);
  }
}

void iso_thrift_skip(iso_thrift *t, int type) {
  skip(t, type, false, 0);
}
