/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing protocol buffers by hand (protobuf.dev, "Encoding"): a field is its number and wire type as one varint, then
 * its value. Nested messages are made first, in a string of their own.
 */
#include <string.h>

#include "train/vitals/vitals.h"

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_varint(iso_string *out, uint64_t value) {
  unsigned char bytes[10];
  size_t count = 0;
  do {
    bytes[count] = (unsigned char)((value & 127) | (value > 127 ? 128 : 0));
    value >>= 7;
    count++;
  } while (value);
  iso_string_append(out, bytes, count);
}

static void put_tag(iso_string *out, int field, int wire) {
  put_varint(out, (uint64_t)field << 3 | (uint64_t)wire);
}

void iso_protobuf_int(iso_string *out, int field, int64_t value) {
  put_tag(out, field, WIRE_VARINT);
  put_varint(out, (uint64_t)value);
}

void iso_protobuf_float(iso_string *out, int field, float value) {
  put_tag(out, field, WIRE_32);
  iso_string_append(out, &value, sizeof value); /* little-endian, as this machine is */
}

void iso_protobuf_double(iso_string *out, int field, double value) {
  put_tag(out, field, WIRE_64);
  iso_string_append(out, &value, sizeof value);
}

void iso_protobuf_bytes(iso_string *out, int field, const void *bytes, size_t count) {
  put_tag(out, field, WIRE_BYTES);
  put_varint(out, count);
  iso_string_append(out, bytes, count);
}

void iso_protobuf_text(iso_string *out, int field, const char *text) {
  iso_protobuf_bytes(out, field, text, strlen(text));
}

void iso_protobuf_message(iso_string *out, int field, iso_string *message) {
  iso_protobuf_bytes(out, field, message->length ? message->data : "", message->length);
  message->length = 0;
}
