/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON: what is accepted, what is refused and where the message points, typed access, quoting.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static iso_status parse(const char *text, iso_json **out) {
  return iso_json_parse(text, strlen(text), "t.json", out);
}

static int quiet(void **state) {
  iso_log_quiet(true);
  return 0;
}

static void good_texts(void **state) {
  const char *const texts[] = {"{}",
                               "[]",
                               " [ ] ",
                               "null",
                               "true",
                               "false",
                               "0",
                               "-0",
                               "12",
                               "-1.5e+10",
                               "1E5",
                               "0.25",
                               "\"\"",
                               "\"a\\n\\u00e9\\ud83d\\ude00\"",
                               "\"\xC3\xA9\xF0\x9F\x98\x80\"",
                               "{\"a\":{\"b\":[1,2,{\"c\":null}]}}",
                               "\r\n\t {\"a\" : 1 , \"A\" : 2}\n",
                               "\xEF\xBB\xBF{}",
                               "{\"\":1}",
                               "[[],[],{}]",
                               "\"\\/\\b\\f\\r\\t\\\"\\\\\""};
  for (size_t i = 0; i < ISO_COUNT(texts); i++) {
    iso_json *json = NULL;
    if (parse(texts[i], &json) != ISO_OK) fail_msg("refused %s: %s", texts[i], iso_last_error());
    assert_non_null(json);
    iso_json_destroy(&json);
    assert_null(json);
  }
  iso_json *none = NULL;
  iso_json_destroy(&none);
}

static void bad_texts_are_located(void **state) {
  const struct {
    const char *text, *place, *cause;
  } rows[] = {
      {"", "t.json:1:1:", "ends too early"},
      {"  \n ", "t.json:2:2:", "ends too early"},
      {"{", "t.json:1:2:", "ends too early"},
      {"{\"a\":1", "t.json:1:7:", "ends too early"},
      {"\"abc", "t.json:1:5:", "ends too early"},
      {"\"abc\\", "t.json:1:6:", "ends too early"},
      {"{} x", "t.json:1:4:", "more text after"},
      {"{}{}", "t.json:1:3:", "more text after"},
      {"{\n  \"a\": 1,\n}", "t.json:3:1:", "expected a key"},
      {"[1,]", "t.json:1:4:", "expected a value"},
      {"[1 2]", "t.json:1:4:", "expected ',' or ']'"},
      {"{\"a\" 1}", "t.json:1:6:", "expected ':'"},
      {"{\"a\":1 \"b\":2}", "t.json:1:8:", "expected ',' or '}'"},
      {"{a:1}", "t.json:1:2:", "expected a key"},
      {"{'a':1}", "t.json:1:2:", "expected a key"},
      {"[\n\n   nul]", "t.json:3:4:", "expected a value"},
      {"NaN", "t.json:1:1:", "no NaN"},
      {"[Infinity]", "t.json:1:2:", "no NaN, Infinity"},
      {"True", "t.json:1:1:", "expected a value"},
      {"01", "t.json:1:2:", "more text after"},
      {"[1.]", "t.json:1:4:", "expected a digit"},
      {"[-]", "t.json:1:3:", "expected a digit"},
      {"[1e]", "t.json:1:4:", "expected a digit"},
      {"[.5]", "t.json:1:2:", "expected a value"},
      {"+1", "t.json:1:1:", "expected a value"},
      {"0x10", "t.json:1:2:", "more text after"},
      {"\"a\nb\"", "t.json:1:3:", "control character"},
      {"\"\\x41\"", "t.json:1:3:", "unknown escape"},
      {"\"\\u12G4\"", "t.json:1:6:", "four hex digits"},
      {"\"\\ud83d\"", "t.json:1:2:", "surrogate"},
      {"\"\\ude00\"", "t.json:1:2:", "surrogate"},
      {"\"\\ud83d\\u0041\"", "t.json:1:2:", "surrogate"},
      {"\"a\\u0000b\"", "t.json:1:3:", "NUL character"},
      {"\"\xC3\xA9\xFF\"", "t.json:1:3:", "not UTF-8"},
      {"[1,\xC3\xA9]", "t.json:1:4:", "expected a value"},
      {"[1000000000000000000000000000000000000000000000000000000000000000]", "t.json:1:2:", "more than 63 characters"},
      {"{\"a\":1,\"b\":2,\"a\":3}", "t.json: ", "key \"a\" stands twice"},
      {"[{\"x\":{\"k\\u0065y\":1,\"key\":1}}]", "t.json: ", "key \"key\" stands twice"},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_json *json = NULL;
    iso_status status = parse(rows[i].text, &json);
    const char *message = iso_last_error();
    if (status != ISO_ERR_FORMAT || json || !strstr(message, rows[i].place) || !strstr(message, rows[i].cause))
      fail_msg("%s: status %d, message \"%s\", expected %s %s", rows[i].text, status, message, rows[i].place,
               rows[i].cause);
  }
  iso_json *json;
  assert_int_equal(iso_json_parse("[1]\0", 4, "t.json", &json), ISO_ERR_FORMAT);
  assert_int_equal(iso_json_parse("\"a\0b\"", 5, "t.json", &json), ISO_ERR_FORMAT);
  assert_int_equal(iso_json_parse("[1]garbage", 3, "t.json", &json), ISO_OK); /* the length counts */
  iso_json_destroy(&json);
}

/* No prefix of a valid text is accepted, and each is parsed from a buffer that ends exactly there. */
static void every_prefix_is_refused(void **state) {
  const char text[] = "{\"a\":[1,-2.5e3,true,false,null,\"x\\u00e9\\ud83d\\ude00\xE2\x82\xAC\"],\"b\":{\"c\":{}}}";
  iso_json *json;
  for (size_t length = 0; length < strlen(text); length++) {
    char *exact = malloc(length ? length : 1);
    memcpy(exact, text, length);
    assert_int_equal(iso_json_parse(exact, length, "t", &json), ISO_ERR_FORMAT);
    free(exact);
  }
  assert_int_equal(parse(text, &json), ISO_OK);
  iso_json_destroy(&json);
}

static void depth_is_limited(void **state) {
  char text[300];
  iso_json *json;
  for (int depth = 63; depth <= 66; depth++) {
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    text[2 * depth] = '\0';
    assert_int_equal(parse(text, &json), depth <= 64 ? ISO_OK : ISO_ERR_FORMAT);
    iso_json_destroy(&json);
  }
  assert_non_null(strstr(iso_last_error(), "64 deep"));
  size_t many = 10000000; /* would end a recursion that is not bounded */
  char *deep = malloc(many);
  memset(deep, '[', many);
  assert_int_equal(iso_json_parse(deep, many, "t", &json), ISO_ERR_FORMAT);
  free(deep);
}

static void many_keys(void **state) {
  iso_string text = {0};
  iso_string_append(&text, "{", 1);
  for (int i = 0; i < 200000; i++) iso_string_printf(&text, "%s\"key%d\":%d", i ? "," : "", i, i);
  iso_json *json;
  size_t open_end = text.length;
  iso_string_append(&text, "}", 1);
  double start = iso_clock_s();
  assert_int_equal(iso_json_parse(text.data, text.length, "t", &json), ISO_OK);
  assert_true(iso_clock_s() - start < 5);
  int64_t value;
  assert_int_equal(iso_json_int(json, "t", "key199999", 0, &value), ISO_OK);
  assert_int_equal(value, 199999);
  iso_json_destroy(&json);
  text.length = open_end;
  iso_string_printf(&text, ",\"key77777\":0}");
  assert_int_equal(iso_json_parse(text.data, text.length, "t", &json), ISO_ERR_FORMAT);
  assert_non_null(strstr(iso_last_error(), "\"key77777\" stands twice"));
  iso_string_fini(&text);
}

static void get_is_exact(void **state) {
  iso_json *json;
  assert_int_equal(parse("{\"Key\":1,\"key\":2,\"none\":null,\"list\":[{\"key\":3}]}", &json), ISO_OK);
  assert_true(iso_json_get(json, "key")->valuedouble == 2);
  assert_true(iso_json_get(json, "Key")->valuedouble == 1);
  assert_null(iso_json_get(json, "KEY"));
  assert_null(iso_json_get(json, "none"));
  assert_null(iso_json_get(iso_json_get(json, "list"), "key"));
  assert_null(iso_json_get(iso_json_get(json, "key"), "key"));
  assert_null(iso_json_get(NULL, "key"));
  iso_json_destroy(&json);
}

static void typed_access(void **state) {
  iso_json *json;
  assert_int_equal(
      parse("{\"i\":-42,\"e\":1e3,\"h\":1.5,\"m\":9007199254740992,\"n\":9007199254740994,\"x\":1e999,\"s\":\"v\","
            "\"t\":true,\"f\":false,\"z\":null,\"a\":[],\"o\":{}}",
            &json),
      ISO_OK);
  int64_t i = 0;
  assert_int_equal(iso_json_int(json, "w", "i", 7, &i), ISO_OK);
  assert_int_equal(i, -42);
  assert_int_equal(iso_json_int(json, "w", "e", 7, &i), ISO_OK);
  assert_int_equal(i, 1000);
  assert_int_equal(iso_json_int(json, "w", "m", 7, &i), ISO_OK);
  assert_int_equal(i, 9007199254740992);
  assert_int_equal(iso_json_int(json, "w", "missing", 7, &i), ISO_OK);
  assert_int_equal(i, 7);
  assert_int_equal(iso_json_int(json, "w", "z", 8, &i), ISO_OK);
  assert_int_equal(i, 8);
  assert_int_equal(iso_json_int(NULL, "w", "z", 9, &i), ISO_OK);
  assert_int_equal(i, 9);
  const char *const not_int[] = {"h", "n", "x", "s", "t", "a", "o"};
  for (size_t k = 0; k < ISO_COUNT(not_int); k++) {
    assert_int_equal(iso_json_int(json, "where", not_int[k], 7, &i), ISO_ERR_FORMAT);
    assert_int_equal(strncmp(iso_last_error(), "where: \"", 8), 0);
    assert_int_equal(iso_last_error()[8], not_int[k][0]);
  }
  double d = 0;
  assert_int_equal(iso_json_double(json, "w", "h", 7, &d), ISO_OK);
  assert_true(d == 1.5);
  assert_int_equal(iso_json_double(json, "w", "z", 0.1, &d), ISO_OK);
  assert_true(d == 0.1);
  assert_int_equal(iso_json_double(json, "w", "x", 7, &d), ISO_ERR_FORMAT);
  assert_int_equal(iso_json_double(json, "w", "s", 7, &d), ISO_ERR_FORMAT);
  bool b = false;
  assert_int_equal(iso_json_bool(json, "w", "t", false, &b), ISO_OK);
  assert_true(b);
  assert_int_equal(iso_json_bool(json, "w", "f", true, &b), ISO_OK);
  assert_false(b);
  assert_int_equal(iso_json_bool(json, "w", "z", true, &b), ISO_OK);
  assert_true(b);
  assert_int_equal(iso_json_bool(json, "w", "i", true, &b), ISO_ERR_FORMAT);
  const char *s = NULL;
  assert_int_equal(iso_json_string(json, "w", "s", "d", &s), ISO_OK);
  assert_string_equal(s, "v");
  assert_int_equal(iso_json_string(json, "w", "missing", "d", &s), ISO_OK);
  assert_string_equal(s, "d");
  assert_int_equal(iso_json_string(json, "w", "missing", NULL, &s), ISO_OK);
  assert_null(s);
  assert_int_equal(iso_json_string(json, "w", "i", "d", &s), ISO_ERR_FORMAT);
  iso_json_destroy(&json);
}

static void reading_files(void **state) {
  char path[] = "/tmp/iso-json-XXXXXX";
  close(mkstemp(path));
  assert_int_equal(iso_file_replace(path, "{\"a\":\n 5,}", 10), ISO_OK);
  iso_json *json;
  assert_int_equal(iso_json_read(path, &json), ISO_ERR_FORMAT);
  assert_null(json);
  assert_non_null(strstr(iso_last_error(), path));
  assert_non_null(strstr(iso_last_error(), ":2:4: "));
  assert_int_equal(iso_file_replace(path, "{\"a\": 5}", 8), ISO_OK);
  assert_int_equal(iso_json_read(path, &json), ISO_OK);
  iso_json_destroy(&json);
  unlink(path);
  assert_int_equal(iso_json_read(path, &json), ISO_ERR_NOT_FOUND);
}

static void quoting(void **state) {
  iso_string out = {0};
  const char text[] = "a\"b\\c\n\t\r\x01\x1f\x7f/\xC3\xA9\xF0\x9F\x98\x80\0z\xFFq\xE2\x82";
  iso_json_quote(&out, text, sizeof text - 1);
  assert_string_equal(
      out.data, "\"a\\\"b\\\\c\\n\\t\\r\\u0001\\u001f\x7f/\xC3\xA9\xF0\x9F\x98\x80\\u0000z\\ufffdq\\ufffd\\ufffd\"");
  iso_string_fini(&out);
  iso_json_quote(&out, "", 0);
  assert_string_equal(out.data, "\"\"");
  iso_string_fini(&out);
  char all[2 * 255 + 1]; /* every character but NUL comes back */
  size_t length = 0;
  for (int c = 1; c < 256; c++) {
    if (c >= 0x80) all[length++] = (char)(0xC0 | c >> 6);
    all[length++] = (char)(c >= 0x80 ? 0x80 | (c & 63) : c);
  }
  all[length] = '\0';
  iso_json_quote(&out, all, length);
  iso_json *json;
  assert_int_equal(iso_json_parse(out.data, out.length, "q", &json), ISO_OK);
  assert_string_equal(json->valuestring, all);
  iso_json_destroy(&json);
  iso_string_fini(&out);
}

/* Random damage to a valid text never crashes or reads outside (sanitizers watch), and what is accepted is sane. */
static void damaged_texts(void **state) {
  const char text[] = "{\"model\":{\"vocab\":{\"a\":0,\"\xC4\xA0t\":1},\"merges\":[[\"a\",\"b\"],[\"\\u0120\",\"t\"]]},"
                      "\"v\":-1.25e-3,\"n\":null}";
  size_t length = sizeof text - 1;
  char *copy = malloc(length);
  for (uint64_t i = 0; i < 20000; i++) {
    memcpy(copy, text, length);
    uint32_t r[4];
    iso_rng(1, ISO_RNG_TEST, 9, i, r);
    for (uint32_t k = 0; k < 1 + r[0] % 3; k++)
      copy[r[k + 1] % length] =
          (char)(r[0] & 64 ? r[k + 1] >> 20 : (unsigned char)"\"\\{}[]:,0-eu \xFF\xE2n"[r[k + 1] >> 16 & 15]);
    iso_json *json;
    size_t cut = length - (r[0] >> 8) % 5;
    if (iso_json_parse(copy, cut, "d", &json) == ISO_OK) {
      assert_non_null(json);
      iso_json_destroy(&json);
    } else {
      assert_null(json);
    }
  }
  free(copy);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(good_texts),
      cmocka_unit_test(bad_texts_are_located),
      cmocka_unit_test(every_prefix_is_refused),
      cmocka_unit_test(depth_is_limited),
      cmocka_unit_test(many_keys),
      cmocka_unit_test(get_is_exact),
      cmocka_unit_test(typed_access),
      cmocka_unit_test(reading_files),
      cmocka_unit_test(quoting),
      cmocka_unit_test(damaged_texts),
  };
  return cmocka_run_group_tests(tests, quiet, NULL);
}
