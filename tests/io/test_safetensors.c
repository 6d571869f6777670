/* SPDX-License-Identifier: Apache-2.0
 *
 * Every rule of the format (docs/formats.md, "safetensors") is broken once here, and files that keep them all are read
 * back exactly.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/io.h"
#include "io/scratch.h"

#include <math.h>

static char folder[128];
static char path[256];

static int setup(void **state) {
  iso_log_quiet(true);
  scratch_make(folder);
  snprintf(path, sizeof path, "%s/t.safetensors", folder);
  return 0;
}

static int teardown(void **state) {
  scratch_remove(folder);
  return 0;
}

static void file_make(const char *header, size_t length, size_t data_bytes) {
  char *bytes = calloc(1, 8 + length + data_bytes + 1);
  for (int i = 0; i < 8; i++) bytes[i] = (char)((uint64_t)length >> 8 * i);
  memcpy(bytes + 8, header, length);
  scratch_write(path, bytes, 8 + length + data_bytes);
  free(bytes);
}

static void expect_refused(iso_status wanted, const char *message) {
  iso_safetensors *file = NULL;
  iso_status status = iso_safetensors_open(path, &file);
  if (status != wanted || !strstr(iso_last_error(), message)) {
    print_error("status %s, message: %s\nwanted: %s\n", iso_status_name(status), iso_last_error(), message);
  }
  assert_int_equal(status, wanted);
  assert_null(file);
  assert_non_null(strstr(iso_last_error(), message));
  assert_non_null(strstr(iso_last_error(), path));
}

/* ---- attacks ---------------------------------------------------------------------------------------------- */

#define T(shape, from, to) "{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" from "," to "]}"

static const struct {
  const char *header;
  size_t data_bytes;
  const char *message;
} attacks[] = {
    /* rule 2: UTF-8, '{', JSON, spaces */
    {"{\"a\xff\":" T("1", "0", "4") "}", 4, "not UTF-8"},
    {"{\"a\xc0\xaf\":" T("1", "0", "4") "}", 4, "not UTF-8"},
    {"{\"a\xed\xa0\x80\":" T("1", "0", "4") "}", 4, "not UTF-8"},
    {"{\"a\":" T("1", "0", "4") "}\xe2\x82", 4, "not UTF-8"},
    {"", 0, "the first byte is not '{'"},
    {" {}", 0, "the first byte is not '{'"},
    {"[]", 0, "the first byte is not '{'"},
    {"{", 0, "expected a string"},
    {"{\"a\":" T("1", "0", "4"), 4, "expected ',' or '}'"},
    {"{\"a\":" T("1", "0", "4") ",}", 4, "expected a string"},
    {"{\"a\" " T("1", "0", "4") "}", 4, "expected ':'"},
    {"{\"a\":" T("1", "0", "4") "}x", 4, "padding after the JSON is not spaces"},
    {"{\"a\":" T("1", "0", "4") "}\n", 4, "padding after the JSON is not spaces"},
    {"{\"a\":" T("1", "0", "4") "}{}", 4, "padding after the JSON is not spaces"},
    {"{\"a\n\":" T("1", "0", "4") "}", 4, "a control character inside a string"},
    {"{\"a\\u0000b\":" T("1", "0", "4") "}", 4, "a string holds NUL"},
    {"{\"a\\ud800\":" T("1", "0", "4") "}", 4, "a high surrogate without its low one"},
    {"{\"a\\udc00\":" T("1", "0", "4") "}", 4, "a low surrogate without its high one"},
    {"{\"a\\x\":" T("1", "0", "4") "}", 4, "an unknown escape"},
    {"{\"a\\u12g4\":" T("1", "0", "4") "}", 4, "four hex digits"},
    {"{\"a", 0, "a string without its end"},
    {"{\"a\\", 0, "a string without its end"},
    {"{\"a\":7}", 0, "a tensor's entry is not an object"},
    {"{\"a\":{}}", 0, "a tensor without dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "a tensor without shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "a tensor without data_offsets"},
    {"{\"a\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "an unknown dtype"},
    {"{\"a\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "an unknown dtype"},
    {"{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "expected a string"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "comes twice"},
    {"{\"a\":" T("-1", "0", "4") "}", 4, "expected a whole number"},
    {"{\"a\":" T("1.0", "0", "4") "}", 4, "not whole"},
    {"{\"a\":" T("1e0", "0", "4") "}", 4, "not whole"},
    {"{\"a\":" T("01", "0", "4") "}", 4, "leading zero"},
    {"{\"a\":" T("\"1\"", "0", "4") "}", 4, "expected a whole number"},
    {"{\"a\":" T("1,", "0", "4") "}", 4, "expected a whole number"},
    {"{\"a\":" T("9223372036854775808", "0", "4") "}", 4, "overflows 63 bits"},
    {"{\"a\":" T("99999999999999999999999", "0", "4") "}", 4, "overflows 63 bits"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "shape is not a list"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "data_offsets is not two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4, "data_offsets is not two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":tru}}", 4, "expected a JSON value"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1.}}", 4, "digits after its point"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":[1 2]}}", 4, "closing bracket"},
    /* rule 3: no holes, no overlaps, in order */
    {"{\"a\":" T("1", "4", "8") "}", 8, "does not begin at 0"},
    {"{\"a\":" T("1", "0", "4") ",\"b\":" T("1", "8", "12") "}", 12, "a hole"},
    {"{\"a\":" T("2", "0", "8") ",\"b\":" T("1", "4", "8") "}", 8, "overlaps"},
    {"{\"a\":" T("1", "0", "4") ",\"b\":" T("1", "0", "4") "}", 4, "overlaps"},
    {"{\"a\":" T("1", "0", "4") ",\"b\":" T("1", "4", "0") "}", 4, "end before they begin"},
    /* rule 4: sizes */
    {"{\"a\":" T("4294967296,4294967296", "0", "4") "}", 4, "the product of its shape overflows"},
    {"{\"a\":" T("9223372036854775807,3", "0", "4") "}", 4, "the product of its shape overflows"},
    {"{\"a\":" T("1152921504606846976", "0", "4") "}", 4, "its size in bits overflows"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2, "do not fill whole bytes"},
    {"{\"a\":{\"dtype\":\"F6_E2M3\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, "do not fill whole bytes"},
    {"{\"a\":" T("2", "0", "4") "}", 4, "need 8 bytes, its data_offsets hold 4"},
    {"{\"a\":" T("", "0", "0") "}", 0, "need 4 bytes, its data_offsets hold 0"},
    {"{\"a\":" T("0", "0", "4") "}", 4, "need 0 bytes, its data_offsets hold 4"},
    /* rule 5: the end */
    {"{\"a\":" T("1", "0", "4") "}", 3, "cut short"},
    {"{\"a\":" T("1", "0", "4") "}", 5, "bytes too many"},
    {"{}", 1, "bytes too many"},
    /* rule 6: names */
    {"{\"a\":" T("1", "0", "4") ",\"a\":" T("1", "4", "8") "}", 8, "its name comes twice"},
    {"{\"a\":" T("1", "0", "4") ",\"\\u0061\":" T("1", "4", "8") "}", 8, "its name comes twice"},
    {"{\"a\":" T("0", "0", "0") ",\"a\":" T("0", "0", "0") "}", 0, "its name comes twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ comes twice"},
    /* rule 7: metadata */
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":null}", 0, "__metadata__ is not an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, "metadata 'k' is not a string"},
    {"{\"__metadata__\":{\"k\":{\"x\":\"y\"}}}", 0, "metadata 'k' is not a string"},
    {"{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "metadata 'k' comes twice"},
    /* order: an earlier rule is reported first */
    {"{\"a\":" T("1", "0", "4") ",\"a\":" T("1", "8", "12") ",\"__metadata__\":{\"k\":1}}", 12, "a hole"},
};

static void attacks_are_refused(void **state) {
  for (size_t i = 0; i < ISO_COUNT(attacks); i++) {
    file_make(attacks[i].header, strlen(attacks[i].header), attacks[i].data_bytes);
    expect_refused(ISO_ERR_FORMAT, attacks[i].message);
  }
  char with_nul[] = "{\"a_b\":{}}";
  with_nul[3] = 0;
  file_make(with_nul, sizeof with_nul - 1, 0);
  expect_refused(ISO_ERR_FORMAT, "a control character inside a string");
}

/* Rule 1: the length of the header. */
static void header_length_is_checked(void **state) {
  scratch_write(path, "", 0);
  expect_refused(ISO_ERR_FORMAT, "0 bytes are too few");
  scratch_write(path, "\2\0\0\0\0\0\0", 7);
  expect_refused(ISO_ERR_FORMAT, "7 bytes are too few");
  scratch_write(path, "\3\0\0\0\0\0\0\0{}", 10);
  expect_refused(ISO_ERR_FORMAT, "passes the end");
  scratch_write(path, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
  expect_refused(ISO_ERR_FORMAT, "above the limit");
  scratch_write(path, "\x01\xe1\xf5\x05\0\0\0\0{}", 10); /* 100,000,001 */
  expect_refused(ISO_ERR_FORMAT, "above the limit");
  scratch_write(path, "\x00\xe1\xf5\x05\0\0\0\0{}", 10); /* 100,000,000 */
  expect_refused(ISO_ERR_FORMAT, "passes the end");
}

static void deep_nesting_is_refused(void **state) {
  iso_string header = {0};
  iso_string_printf(&header, "{\"a\":{\"x\":");
  for (int i = 0; i < 100000; i++) iso_string_append(&header, "[", 1);
  file_make(header.data, header.length, 0);
  expect_refused(ISO_ERR_FORMAT, "nested deeper than 64");
  iso_string_fini(&header);
  const char *nine = "{\"a\":" T("1,1,1,1,1,1,1,1,1", "0", "4") "}";
  file_make(nine, strlen(nine), 4);
  expect_refused(ISO_ERR_UNSUPPORTED, "more than 8 dimensions");
}

static void not_a_file_is_refused(void **state) {
  iso_safetensors *file;
  assert_int_equal(iso_safetensors_open("/nonexistent/x.safetensors", &file), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_safetensors_open(folder, &file), ISO_ERR_NOT_FOUND);
  assert_non_null(strstr(iso_last_error(), "neither model.safetensors nor"));
  assert_int_equal(iso_safetensors_open("/dev/null", &file), ISO_ERR_FORMAT);
}

/* ---- what the format allows -------------------------------------------------------------------------------- */

static void legal_oddities_are_read(void **state) {
  const char *header =
      "{ \"\\u00e9\\ud83d\\ude00/\\n\" : { \"shape\":[ ], \"x\":{\"y\":[1,-2.5e3,null,true,\"z\"]},\n"
      "\"dtype\":\"U8\",\"data_offsets\":[0,1]},\"none\":{\"dtype\":\"F32\",\"shape\":[3,0,4611686018427387904],"
      "\"data_offsets\":[1,1]},"
      "\"half\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[1,4]},\"__metadata__\":{\"k\":\"v\\t\",\"\":\"\"}} "
      " ";
  file_make(header, strlen(header), 4);
  iso_safetensors *file = NULL;
  assert_int_equal(iso_safetensors_open(path, &file), ISO_OK);
  assert_int_equal(iso_safetensors_count(file), 3);
  const iso_safetensor *scalar = iso_safetensors_find(file, "\xc3\xa9\xf0\x9f\x98\x80/\n");
  assert_non_null(scalar);
  assert_int_equal(scalar->rank, 0);
  assert_int_equal(scalar->elements, 1);
  const iso_safetensor *none = iso_safetensors_find(file, "none");
  assert_non_null(none);
  assert_int_equal(none->elements, 0);
  assert_null(none->data);
  assert_int_equal(iso_safetensor_to_f32(none, NULL), ISO_OK);
  assert_int_equal(iso_safetensors_find(file, "half")->bytes, 3);
  assert_string_equal(iso_safetensors_metadata(file, "k"), "v\t");
  assert_string_equal(iso_safetensors_metadata(file, ""), "");
  assert_null(iso_safetensors_metadata(file, "other"));
  assert_null(iso_safetensors_find(file, "other"));
  assert_null(iso_safetensors_at(file, 3));
  float value;
  assert_int_equal(iso_safetensor_to_f32(scalar, &value), ISO_ERR_UNSUPPORTED);
  assert_non_null(strstr(iso_last_error(), "U8"));
  iso_safetensors_close(&file);
  assert_null(file);
  file_make("{}", 2, 0);
  assert_int_equal(iso_safetensors_open(path, &file), ISO_OK);
  assert_int_equal(iso_safetensors_count(file), 0);
  assert_null(iso_safetensors_find(file, "a"));
  iso_safetensors_close(&file);
}

static void all_types_make_the_round_trip(void **state) {
  float f32[6] = {0.0f, -0.0f, 1.5f, INFINITY, -3e-45f, 7};
  uint16_t bf16[3] = {0x3f80, 0x8001, 0x7fc0}, f16[5] = {0x3c00, 0x0001, 0x7c00, 0xfbff, 0x3555};
  int32_t i32[2] = {INT32_MIN, 5};
  double f64[2] = {1e300, 0.1};
  int64_t i64[3] = {-1, INT32_MAX, INT32_MIN};
  uint8_t u8[1] = {200};
  const iso_tensor_out tensors[] = {
      {"u8", ISO_U8, 1, {1}, u8},          {"f32", ISO_F32, 2, {2, 3}, f32}, {"bf16", ISO_BF16, 1, {3}, bf16},
      {"i32", ISO_I32, 1, {2}, i32},       {"f16", ISO_F16, 1, {5}, f16},    {"f64", ISO_F64, 2, {1, 2}, f64},
      {"i64", ISO_I64, 3, {1, 3, 1}, i64}, {"empty", ISO_F32, 1, {0}, NULL},
  };
  const char *metadata[] = {"format", "pt", "quote\"\\\n", "\xc3\xa9", NULL};
  uint32_t crc;
  int64_t bytes;
  assert_int_equal(iso_safetensors_write(path, tensors, ISO_COUNT(tensors), metadata, &crc, &bytes), ISO_OK);
  char *whole;
  size_t length;
  assert_int_equal(iso_file_read(path, &whole, &length), ISO_OK);
  assert_int_equal(length, bytes);
  assert_int_equal(iso_crc32c(0, whole, length), crc);
  assert_int_equal((whole[0] & 255) % 8, 0);
  free(whole);

  iso_safetensors *file;
  assert_int_equal(iso_safetensors_open(path, &file), ISO_OK);
  assert_int_equal(iso_safetensors_count(file), ISO_COUNT(tensors));
  for (size_t i = 0; i < ISO_COUNT(tensors); i++) {
    const iso_safetensor *t = iso_safetensors_find(file, tensors[i].name);
    assert_non_null(t);
    assert_int_equal(t->rank, tensors[i].rank);
    for (int d = 0; d < t->rank; d++) assert_int_equal(t->shape[d], tensors[i].shape[d]);
    if (t->bytes) assert_memory_equal(t->data, tensors[i].data, (size_t)t->bytes);
    assert_string_equal(t->file, path);
    if (i) assert_true(strcmp(iso_safetensors_at(file, i - 1)->name, iso_safetensors_at(file, i)->name) < 0);
  }
  assert_string_equal(iso_safetensors_metadata(file, "quote\"\\\n"), "\xc3\xa9");

  float out[6];
  assert_int_equal(iso_safetensor_to_f32(iso_safetensors_find(file, "f32"), out), ISO_OK);
  assert_memory_equal(out, f32, sizeof f32);
  assert_int_equal(iso_safetensor_to_f32(iso_safetensors_find(file, "bf16"), out), ISO_OK);
  assert_true(out[0] == 1.0f && out[1] == -0x1p-133f && isnan(out[2]));
  assert_int_equal(iso_safetensor_to_f32(iso_safetensors_find(file, "f16"), out), ISO_OK);
  assert_true(out[0] == 1.0f && out[1] == 0x1p-24f && isinf(out[2]) && out[3] == -65504.0f && out[4] == 0x1.554p-2f);
  assert_int_equal(iso_safetensor_to_f32(iso_safetensors_find(file, "f64"), out), ISO_OK);
  assert_true(isinf(out[0]) && out[1] == 0.1f);
  assert_int_equal(iso_safetensor_to_f32(iso_safetensors_find(file, "i32"), out), ISO_ERR_UNSUPPORTED);
  int32_t whole_numbers[3];
  assert_int_equal(iso_safetensor_to_i32(iso_safetensors_find(file, "i32"), whole_numbers), ISO_OK);
  assert_memory_equal(whole_numbers, i32, sizeof i32);
  assert_int_equal(iso_safetensor_to_i32(iso_safetensors_find(file, "i64"), whole_numbers), ISO_OK);
  assert_true(whole_numbers[0] == -1 && whole_numbers[1] == INT32_MAX && whole_numbers[2] == INT32_MIN);
  assert_int_equal(iso_safetensor_to_i32(iso_safetensors_find(file, "f32"), whole_numbers), ISO_ERR_UNSUPPORTED);
  iso_safetensors_close(&file);

  i64[1] = (int64_t)INT32_MAX + 1;
  assert_int_equal(iso_safetensors_write(path, &tensors[6], 1, NULL, NULL, NULL), ISO_OK);
  assert_int_equal(iso_safetensors_open(path, &file), ISO_OK);
  assert_int_equal(iso_safetensor_to_i32(iso_safetensors_at(file, 0), whole_numbers), ISO_ERR_MISMATCH);
  iso_safetensors_close(&file);
}

static void every_dtype_of_the_format_is_known(void **state) {
  static const struct {
    const char *name;
    int bits;
  } rows[] = {{"BOOL", 8},        {"U8", 8},          {"I8", 8},      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
              {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
              {"I32", 32},        {"U32", 32},        {"F32", 32},    {"C64", 64},    {"F64", 64},    {"I64", 64},
              {"U64", 64},        {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}};
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    char header[128];
    assert_int_equal(iso_safetensors_dtype_bits(rows[i].name), rows[i].bits);
    snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[4],\"data_offsets\":[0,%d]}}", rows[i].name,
             rows[i].bits / 2);
    file_make(header, strlen(header), (size_t)rows[i].bits / 2);
    iso_safetensors *file;
    assert_int_equal(iso_safetensors_open(path, &file), ISO_OK);
    assert_string_equal(iso_safetensors_at(file, 0)->dtype, rows[i].name);
    iso_safetensors_close(&file);
  }
  assert_int_equal(iso_safetensors_dtype_bits("F128"), 0);
}

/* tests/data/io/reference.safetensors was written by the format's own Python library (safetensors 0.8.0, numpy). */
static void a_file_of_the_reference_library_is_read(void **state) {
  iso_safetensors *file;
  assert_int_equal(iso_safetensors_open(ISO_TEST_DATA "/io/reference.safetensors", &file), ISO_OK);
  assert_int_equal(iso_safetensors_count(file), 8);
  assert_string_equal(iso_safetensors_metadata(file, "note"), "\"\xc3\xa9\"");
  float f32[6];
  int32_t i32[4];
  assert_int_equal(iso_safetensor_to_f32(iso_safetensors_find(file, "a.f32"), f32), ISO_OK);
  assert_true(f32[0] == 1.5f && f32[1] == -2 && f32[2] == 3 && f32[3] == 4 && f32[4] == 5 && f32[5] == 1e-40f);
  assert_int_equal(iso_safetensor_to_f32(iso_safetensors_find(file, "b.f16"), f32), ISO_OK);
  assert_true(f32[0] == 1 && f32[1] == 0x1.55p-2f && f32[2] == 65504);
  assert_int_equal(iso_safetensor_to_f32(iso_safetensors_find(file, "f.scalar"), f32), ISO_OK);
  assert_true(f32[0] == 2.25f);
  assert_int_equal(iso_safetensor_to_i32(iso_safetensors_find(file, "c.i64"), i32), ISO_OK);
  assert_true(i32[0] == -1 && i32[1] == 0 && i32[2] == 1 && i32[3] == 2);
  assert_int_equal(iso_safetensor_to_i32(iso_safetensors_find(file, "d.i32"), i32), ISO_OK);
  assert_int_equal(i32[0], -5);
  assert_int_equal(iso_safetensors_find(file, "g.empty")->elements, 0);
  assert_memory_equal(iso_safetensors_find(file, "h.bool")->data, "\1\0", 2);
  iso_safetensors_close(&file);
}

/* ---- property: whatever the writer accepts comes back ------------------------------------------------------ */

static uint32_t draw(uint64_t round, uint64_t element, uint32_t below) {
  uint32_t bits[4];
  iso_rng(11, ISO_RNG_TEST, round, element, bits);
  return bits[0] % below;
}

static void random_text(uint64_t round, uint64_t element, uint32_t unique, char out[64]) {
  static const char *const pieces[] = {"a",    ".",        "weight",           "\"", "\\", "\n",          "\x01",
                                       "\x7f", "\xc3\xa9", "\xf0\x9f\x98\x80", "/",  " ",  "\xe2\x80\xa8"};
  int used = snprintf(out, 64, "%u", unique);
  for (uint32_t i = draw(round, element, 6); i > 0; i--) {
    const char *piece = pieces[draw(round, element * 8 + i, ISO_COUNT(pieces))];
    used += snprintf(out + used, 64 - (size_t)used, "%s", piece);
  }
}

static void random_files_make_the_round_trip(void **state) {
  enum { ROUNDS = 200, TENSORS = 12, PAIRS = 5 };
  static const iso_dtype types[] = {ISO_F32, ISO_BF16, ISO_I32, ISO_F16, ISO_F64, ISO_I64, ISO_U8};
  static uint8_t data[8 * 4 * 4 * 4 * 4 + 64];
  for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 37);
  for (uint64_t round = 0; round < ROUNDS; round++) {
    iso_tensor_out tensors[TENSORS];
    char names[TENSORS][64], texts[2 * PAIRS][64];
    const char *metadata[2 * PAIRS + 1] = {0};
    size_t count = draw(round, 1, TENSORS + 1), pairs = draw(round, 2, PAIRS + 1);
    for (size_t i = 0; i < count; i++) {
      random_text(round, 100 + i, (uint32_t)i, names[i]);
      iso_tensor_out *t = &tensors[i];
      *t = (iso_tensor_out){
          names[i], types[draw(round, 200 + i, 7)], (int)draw(round, 300 + i, 5), {0}, data + draw(round, 500 + i, 64)};
      for (int d = 0; d < t->rank; d++) t->shape[d] = draw(round, 400 + i * 8 + (uint64_t)d, 5);
    }
    for (size_t i = 0; i < 2 * pairs; i++) {
      random_text(round, 1000 + i, (uint32_t)i, texts[i]);
      metadata[i] = texts[i];
    }
    assert_int_equal(iso_safetensors_write(path, tensors, count, metadata, NULL, NULL), ISO_OK);
    iso_safetensors *file;
    assert_int_equal(iso_safetensors_open(path, &file), ISO_OK);
    assert_int_equal(iso_safetensors_count(file), count);
    for (size_t i = 0; i < count; i++) {
      const iso_safetensor *t = iso_safetensors_find(file, names[i]);
      assert_non_null(t);
      assert_int_equal(t->rank, tensors[i].rank);
      assert_int_equal(t->bytes,
                       iso_shape_elements(t->rank, tensors[i].shape) * (int64_t)iso_dtype_size(tensors[i].dtype));
      if (t->bytes) assert_memory_equal(t->data, tensors[i].data, (size_t)t->bytes);
    }
    for (size_t i = 0; i < pairs; i++)
      assert_string_equal(iso_safetensors_metadata(file, texts[2 * i]), texts[2 * i + 1]);
    iso_safetensors_close(&file);
  }
}

/* Any change of one byte of a header either is refused or leaves a file whose tensors lie inside it. */
static void changed_headers_never_lead_outside(void **state) {
  const char *header = "{\"__metadata__\":{\"k\":\"v\"},\"a\":" T("2,2", "0", "16") ",\"b\":" T("1", "16", "20") "}   ";
  size_t length = strlen(header), refused = 0, total = 0;
  char changed[256];
  for (size_t at = 0; at < length; at++) {
    for (int byte = 0; byte < 256; byte += 3) {
      iso_safetensors_table table;
      memcpy(changed, header, length);
      changed[at] = (char)byte;
      total++;
      if (iso_safetensors_table_init(&table, "x", (int64_t)(8 + length + 20), changed, length) != ISO_OK) {
        refused++;
        continue;
      }
      for (size_t i = 0; i < table.count; i++) {
        assert_true(table.tensors[i].offset >= (int64_t)(8 + length));
        assert_true(table.tensors[i].offset + table.tensors[i].bytes <= (int64_t)(8 + length + 20));
      }
      iso_safetensors_table_fini(&table);
    }
  }
  assert_true(refused > total / 2 && refused < total);
}

/* ---- the writer ---------------------------------------------------------------------------------------------- */

static void writer_refuses_what_no_reader_takes(void **state) {
  float x[4] = {0};
  iso_string header = {0};
  const iso_tensor_out twice[] = {{"a", ISO_F32, 1, {1}, x}, {"b", ISO_F32, 1, {1}, x}, {"a", ISO_F32, 1, {1}, x}};
  assert_int_equal(iso_safetensors_header(twice, 3, NULL, 8, &header), ISO_ERR_FORMAT);
  assert_non_null(strstr(iso_last_error(), "'a' comes twice"));
  const iso_tensor_out odd[] = {
      {"a\xff", ISO_F32, 1, {1}, x}, {"__metadata__", ISO_F32, 1, {1}, x}, {"a", ISO_F32, 9, {1}, x},
      {"a", ISO_F32, 1, {-1}, x},    {"a", ISO_F32, 2, {INT64_MAX, 2}, x}, {"a", ISO_F32, 1, {INT64_MAX}, x}};
  for (size_t i = 0; i < ISO_COUNT(odd); i++) {
    assert_int_equal(iso_safetensors_header(&odd[i], 1, NULL, 8, &header), ISO_ERR_FORMAT);
    assert_int_equal(iso_safetensors_write(path, &odd[i], 1, NULL, NULL, NULL), ISO_ERR_FORMAT);
    assert_false(iso_path_exists(path));
  }
  const char *keys_twice[] = {"k", "1", "k", "2", NULL}, *bad_value[] = {"k", "\xff", NULL};
  assert_int_equal(iso_safetensors_header(twice, 2, keys_twice, 8, &header), ISO_ERR_FORMAT);
  assert_int_equal(iso_safetensors_header(twice, 2, bad_value, 8, &header), ISO_ERR_FORMAT);
  assert_int_equal(iso_safetensors_header(twice, 2, NULL, 12, &header), ISO_ERR_INTERNAL);
  iso_string_fini(&header);
  for (size_t align = 8; align <= 4096; align *= 2) {
    assert_int_equal(iso_safetensors_header(twice, 2, NULL, align, &header), ISO_OK);
    assert_int_equal(header.length % align, 0);
    iso_string_fini(&header);
  }
}

static void shard_make(const char *name, const char *first, const char *second) {
  static float x[2] = {1, 2};
  char shard[300];
  const iso_tensor_out tensors[] = {{first, ISO_F32, 1, {1}, &x[0]}, {second, ISO_F32, 1, {1}, &x[1]}};
  snprintf(shard, sizeof shard, "%s/%s", folder, name);
  assert_int_equal(iso_safetensors_write(shard, tensors, second ? 2 : 1, NULL, NULL, NULL), ISO_OK);
}

static void index_make(const char *text) {
  char index[300];
  snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
  scratch_write(index, text, strlen(text));
}

static void shards_open_as_one_model(void **state) {
  shard_make("m-1.safetensors", "a", "d");
  shard_make("m-2.safetensors", "c", "b");
  index_make("{\"metadata\":{\"total_size\":999},\"weight_map\":{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\","
             "\"c\":\"m-2.safetensors\",\"d\":\"m-1.safetensors\"}}");
  iso_safetensors *file;
  assert_int_equal(iso_safetensors_open(folder, &file), ISO_OK);
  assert_int_equal(iso_safetensors_count(file), 4);
  for (int i = 0; i < 4; i++) {
    float value;
    const iso_safetensor *t = iso_safetensors_at(file, (size_t)i);
    assert_int_equal(t->name[0], 'a' + i);
    assert_int_equal(iso_safetensor_to_f32(t, &value), ISO_OK);
    assert_true(value == (i == 0 || i == 2 ? 1.0f : 2.0f));
  }
  iso_safetensors_close(&file);
}

static void indexes_that_lie_are_refused(void **state) {
  static const struct {
    const char *map, *message;
  } rows[] = {
      {"{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\"}", "'c' of shard"},
      {"{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-2.safetensors\",\"z\":\"m-1.safetensors\"}",
       "'z' is not in its shard 'm-1.safetensors'"},
      {"{\"a\":\"m-2.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-1.safetensors\"}",
       "'a' is in 'm-1.safetensors', not in"},
      {"{\"a\":\"m-1.safetensors\",\"b\":\"m-2.safetensors\",\"c\":\"m-2.safetensors\",\"d\":\"m-3.safetensors\"}",
       "in two shards"},
      {"{\"a\":\"../m-1.safetensors\"}", "no plain file name"},
      {"{\"a\":\"sub/m-1.safetensors\"}", "no plain file name"},
      {"{\"a\":\"/etc/passwd\"}", "no plain file name"},
      {"{\"a\":\"..\"}", "no plain file name"},
      {"{\"a\":\"\"}", "no plain file name"},
      {"{\"a\":7}", "is not a string"},
      {"{\"a\":\"m-1.safetensors\",\"a\":\"m-2.safetensors\"}", "stands twice"},
      {"{}", "weight_map is empty"},
      {"[]", "no weight_map"},
  };
  shard_make("m-1.safetensors", "a", NULL);
  shard_make("m-2.safetensors", "c", "b");
  shard_make("m-3.safetensors", "d", "a");
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    char text[512];
    iso_safetensors *file;
    snprintf(text, sizeof text, "{\"weight_map\":%s}", rows[i].map);
    index_make(text);
    assert_int_equal(iso_safetensors_open(folder, &file), ISO_ERR_FORMAT);
    if (!strstr(iso_last_error(), rows[i].message)) print_error("%s\n", iso_last_error());
    assert_non_null(strstr(iso_last_error(), rows[i].message));
  }
  index_make("{\"weight_map\":{\"a\":\"missing.safetensors\"}}");
  iso_safetensors *file;
  assert_int_equal(iso_safetensors_open(folder, &file), ISO_ERR_NOT_FOUND);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(attacks_are_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(header_length_is_checked, setup, teardown),
      cmocka_unit_test_setup_teardown(deep_nesting_is_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(not_a_file_is_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(legal_oddities_are_read, setup, teardown),
      cmocka_unit_test_setup_teardown(all_types_make_the_round_trip, setup, teardown),
      cmocka_unit_test_setup_teardown(a_file_of_the_reference_library_is_read, setup, teardown),
      cmocka_unit_test_setup_teardown(every_dtype_of_the_format_is_known, setup, teardown),
      cmocka_unit_test_setup_teardown(random_files_make_the_round_trip, setup, teardown),
      cmocka_unit_test_setup_teardown(changed_headers_never_lead_outside, setup, teardown),
      cmocka_unit_test_setup_teardown(writer_refuses_what_no_reader_takes, setup, teardown),
      cmocka_unit_test_setup_teardown(shards_open_as_one_model, setup, teardown),
      cmocka_unit_test_setup_teardown(indexes_that_lie_are_refused, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
