/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32C against its check value and a bitwise form; SHA-256 against the standard's examples.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <string.h>

static uint32_t crc_bitwise(const unsigned char *data, size_t bytes) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < bytes; i++) {
    crc ^= data[i];
    for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  return ~crc;
}

static void crc_values(void **state) {
  assert_int_equal(iso_crc32c(0, "123456789", 9), 0xE3069283);
  assert_int_equal(iso_crc32c(0, "", 0), 0);
  assert_int_equal(iso_crc32c(0x12345678, NULL, 0), 0x12345678);
  const unsigned char zeros[32] = {0}; /* RFC 3720, B.4 */
  assert_int_equal(iso_crc32c(0, zeros, 32), 0x8A9136AA);
}

static void crc_continues(void **state) {
  unsigned char data[777];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 131 + (i >> 3));
  for (size_t bytes = 0; bytes <= sizeof data; bytes += 1 + bytes / 9) {
    uint32_t whole = crc_bitwise(data, bytes);
    assert_int_equal(iso_crc32c(0, data, bytes), whole);
    for (size_t cut = 0; cut <= bytes; cut += 1 + cut / 5)
      assert_int_equal(iso_crc32c(iso_crc32c(0, data, cut), data + cut, bytes - cut), whole);
  }
}

static void crc_joins(void **state) {
  unsigned char data[777];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 37 + (i >> 2));
  for (size_t bytes = 0; bytes <= sizeof data; bytes += 1 + bytes / 9)
    for (size_t cut = 0; cut <= bytes; cut += 1 + cut / 5)
      assert_int_equal(iso_crc32c_join(iso_crc32c(0, data, cut), iso_crc32c(0, data + cut, bytes - cut), bytes - cut),
                       iso_crc32c(0, data, bytes));
}

static void sha_values(void **state) {
  const struct {
    const char *text, *hex;
  } rows[] = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++)
    for (size_t piece = 1; piece < 60; piece += 13) {
      iso_sha256 *hash = iso_sha256_create();
      size_t length = strlen(rows[i].text);
      for (size_t at = 0; at < length; at += piece)
        iso_sha256_update(hash, rows[i].text + at, piece < length - at ? piece : length - at);
      char hex[65];
      iso_sha256_finish(&hash, hex);
      assert_string_equal(hex, rows[i].hex);
      assert_null(hash);
    }
}

static void sha_of_nothing_allocated(void **state) {
  iso_sha256 *hash = NULL;
  char hex[65] = "x";
  iso_sha256_update(hash, "abc", 3);
  iso_sha256_finish(&hash, hex);
  assert_string_equal(hex, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(crc_values),
      cmocka_unit_test(crc_continues),
      cmocka_unit_test(crc_joins),
      cmocka_unit_test(sha_values),
      cmocka_unit_test(sha_of_nothing_allocated),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
