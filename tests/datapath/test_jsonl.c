/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines of JSON: the scanner against cJSON on made and on mutated lines, causes with their bytes, and whole files.
 */
#include "datapath/fixture.h"

#include <cjson/cJSON.h>
#include <sys/wait.h>

static iso_jsonl_scratch scratch;

static iso_jsonl_line scan(const char *line, size_t length, const char *field) {
  iso_jsonl_line out;
  assert_int_equal(iso_jsonl_scan(line, length, field, &scratch, &out), ISO_OK);
  return out;
}

/* The text of a field, NULL when the line is bad. Until the next call. */
static const char *text_of(const char *line, const char *field) {
  static iso_string text;
  iso_string_fini(&text);
  iso_jsonl_line found = scan(line, strlen(line), field);
  if (!found.good) return NULL;
  assert_true(iso_jsonl_unescape(line + found.begin, found.length, &text));
  return text.data;
}

static void test_the_string_is_found(void **state) {
  (void)state;
  assert_string_equal(text_of("{\"text\": \"one\"}", "text"), "one");
  assert_string_equal(text_of(" { \"a\" : [1, {\"text\": 2}] , \"text\" : \"\" , \"z\": null } ", "text"), "");
  assert_string_equal(text_of("{\"text\":\"\\u00e9\\ud83d\\ude00\\n\\/\\\\\\\"\\b\\f\\r\\t\"}", "text"),
                      "\xc3\xa9\xf0\x9f\x98\x80\n/\\\"\b\f\r\t");
  assert_string_equal(text_of("{\"te\\u0078t\": \"key\"}", "text"), "key");
  assert_string_equal(text_of("{\"a\": {\"b\": {\"c\": \"deep\"}}, \"b\": 1}", "a.b.c"), "deep");
  assert_string_equal(text_of("{\"a.b\": \"dotted\", \"a\": {\"c\": \"x\"}}", "a.b"), "dotted");
  iso_jsonl_line nul = scan("{\"text\":\"a\\u0000b\"}", 19, "text");
  iso_string text = {0};
  assert_true(nul.good);
  assert_true(iso_jsonl_unescape("a\\u0000b", 8, &text));
  assert_int_equal(text.length, 3);
  assert_memory_equal(text.data, "a\0b", 3);
  iso_string_fini(&text);
}

static void test_bad_lines_say_why_and_where(void **state) {
  (void)state;
  static const struct {
    const char *line, *cause;
    size_t at;
  } cases[] = {
      {"[1]", "not a JSON object", 0},
      {"\"text\"", "not a JSON object", 0},
      {"{\"text\": \"a\"", "the line ends inside", 12},
      {"{\"text\": \"a\"} x", "behind the JSON object", 14},
      {"{\"text\": \"a", "does not end", 9},
      {"{\"text\": \"a\\", "does not end", 9},
      {"{\"text\": \"a\\x\"}", "no escape", 11},
      {"{\"text\": \"\\ud800\"}", "not a Unicode character", 10},
      {"{\"text\": \"\\udc00\"}", "not a Unicode character", 10},
      {"{\"text\": \"\\ud800\\u0041\"}", "not a Unicode character", 10},
      {"{\"text\": \"\\u12\"}", "not a Unicode character", 10},
      {"{\"text\": \"a\tb\"}", "control character", 11},
      {"{\"text\": \"\xff\"}", "not valid UTF-8", 10},
      {"{\"x\": \"\xff\", \"text\": \"a\"}", "not valid UTF-8", 7},
      {"{\"text\": null}", "is null, not a string", 9},
      {"{\"text\": 5}", "is a number", 9},
      {"{\"text\": [\"a\"]}", "is a list", 9},
      {"{\"text\": {}}", "is an object", 9},
      {"{\"text\": true}", "is a truth value", 9},
      {"{\"other\": \"a\"}", "no field \"text\", only \"other\"; set the source's field", 0},
      {" { \"n\" : 1 , \"b\\\"\":\"x\", \"m\": {\"body\": \"\"}, \"c\": \"\" } ",
       "no field \"text\", only \"b\\\"\", \"c\"; set the source's field", 0},
      {"{}", "no field \"text\", and no string at its top; set the source's field", 0},
      {"{\"text\": \"a\", \"text\": \"b\"}", "twice", 14},
      {"{\"text\": \"a\", \"\\u0074ext\": \"b\"}", "twice", 14},
      {"{\"text\": \"a\", \"x\": {\"k\": 1, \"j\": 2, \"k\": 3}}", "twice", 36},
      {"{\"text\": \"a\", \"x\": 01}", "not a JSON value", 19},
      {"{\"text\": \"a\", \"x\": 1.}", "not a JSON number", 19},
      {"{\"text\": \"a\", \"x\": +1}", "not a JSON value", 19},
      {"{\"text\": \"a\", \"x\": nul}", "not a JSON value", 19},
      {"{\"text\": \"a\",}", "expected a key", 13},
      {"{\"text\" \"a\"}", "expected a colon", 8},
      {"{\"text\": \"a\" \"b\": 1}", "expected a comma", 13},
      {"{'text': 'a'}", "expected a key", 1},
  };
  for (size_t i = 0; i < ISO_COUNT(cases); i++) {
    iso_jsonl_line found = scan(cases[i].line, strlen(cases[i].line), "text");
    if (found.good || !strstr(found.cause, cases[i].cause) || found.at != cases[i].at)
      fail_msg("%s: \"%s\" at %zu; expected \"%s\" at %zu", cases[i].line, found.cause, found.at, cases[i].cause,
               cases[i].at);
  }
  iso_string deep = {0};
  for (int i = 0; i < 300; i++) iso_string_printf(&deep, "{\"a\":");
  assert_non_null(strstr(scan(deep.data, deep.length, "text").cause, "nested deeper"));
  iso_string_fini(&deep);
}

static void test_many_keys(void **state) {
  (void)state;
  iso_string line = {0};
  iso_string_printf(&line, "{\"text\": \"a\"");
  for (int i = 0; i < 20000; i++) iso_string_printf(&line, ", \"key%d\": %d", i, i);
  iso_string_append(&line, "}", 1);
  assert_true(scan(line.data, line.length, "text").good);
  line.length--;
  iso_string_printf(&line, ", \"key77\": 0}");
  assert_non_null(strstr(scan(line.data, line.length, "text").cause, "twice"));
  iso_string_fini(&line);
}

/* ---- against cJSON ---- */

static uint32_t random_below(uint64_t *at, uint32_t limit) {
  uint32_t bits[4];
  iso_rng(11, ISO_RNG_TEST, 1, (*at)++, bits);
  return bits[0] % limit;
}

static void put_string(iso_string *out, uint64_t *at) {
  static const char *const parts[] = {"a",    "text", "\\n",          "\\u00e9", "\xc3\xa9", "\\ud83d\\ude00",
                                      "\\\"", " ",    "\\\\",         "word",    "{",        "}",
                                      ",",    ":",    "\xe4\xb8\xad", "0"};
  iso_string_append(out, "\"", 1);
  for (uint32_t n = random_below(at, 6); n > 0; n--) {
    const char *part = parts[random_below(at, ISO_COUNT(parts))];
    iso_string_append(out, part, strlen(part));
  }
  iso_string_append(out, "\"", 1);
}

static void put_value(iso_string *out, uint64_t *at, int depth) {
  static const char *const plain[] = {"0", "-1", "12.5", "1e3", "2E-2", "true", "false", "null", "-0", "-0.0e+1"};
  uint32_t kind = random_below(at, depth > 3 ? 2 : 4);
  if (kind == 0) {
    const char *word = plain[random_below(at, ISO_COUNT(plain))];
    iso_string_append(out, word, strlen(word));
  } else if (kind == 1) {
    put_string(out, at);
  } else {
    iso_string_append(out, kind == 2 ? "[" : "{", 1);
    for (uint32_t n = random_below(at, 4), i = 0; i < n; i++) {
      if (i) iso_string_append(out, ", ", random_below(at, 2) + 1);
      if (kind == 3) {
        put_string(out, at);
        iso_string_append(out, ":", 1);
      }
      put_value(out, at, depth + 1);
    }
    iso_string_append(out, kind == 2 ? "]" : "}", 1);
  }
}

/* What iso_json_parse, which is cJSON with checks, makes of the line. */
static char *reference(const char *line, size_t length) {
  iso_json *json = NULL;
  if (iso_json_parse(line, length, "line", &json) != ISO_OK) return NULL;
  cJSON *field = cJSON_IsObject(json) ? cJSON_GetObjectItemCaseSensitive(json, "text") : NULL;
  char *text = cJSON_IsString(field) ? strdup(field->valuestring) : NULL;
  iso_json_destroy(&json);
  return text;
}

static void test_cjson_agrees(void **state) {
  (void)state;
  uint64_t at = 0;
  int good = 0, bad = 0;
  for (int round = 0; round < 30000; round++) {
    iso_string line = {0};
    iso_string_append(&line, "{", 1);
    for (uint32_t n = random_below(&at, 4), i = 0; i < n; i++) {
      put_string(&line, &at);
      iso_string_append(&line, ": ", 2);
      put_value(&line, &at, 0);
      iso_string_append(&line, ",", 1);
    }
    iso_string_printf(&line, "\"text\":");
    put_string(&line, &at);
    iso_string_append(&line, "}", 1);
    for (uint32_t n = random_below(&at, 3); n > 0; n--) { /* and damaged */
      static const char bytes[] = "\"\\{}[],: u0en1-.dt\t";
      size_t place = random_below(&at, (uint32_t)line.length);
      line.data[place] = bytes[random_below(&at, sizeof bytes - 1)];
    }
    if (iso_utf8_valid_prefix(line.data, line.length) == line.length && !strstr(line.data, "\\u0000")) {
      char *expected = reference(line.data, line.length);
      const char *text = text_of(line.data, "text");
      if (!expected != !text || (text && strcmp(text, expected) != 0))
        fail_msg("%s: \"%s\", cJSON \"%s\" (%s)", line.data, text ? text : "(bad)", expected ? expected : "(bad)",
                 iso_last_error());
      good += text != NULL;
      bad += text == NULL;
      free(expected);
    }
    iso_string_fini(&line);
  }
  assert_true(good > 5000 && bad > 5000);
}

/* ---- files ---- */

typedef struct expected {
  const char *text; /* NULL: bad */
  const char *cause;
  int64_t byte;
} expected;

static void check_source(const iso_source_options *options, const expected *documents, int64_t count) {
  iso_source *source;
  assert_int_equal(iso_source_open(options, &source), ISO_OK);
  assert_int_equal(iso_source_content(source), ISO_CONTENT_TEXT);
  assert_int_equal(iso_source_documents(source), count);
  iso_string space = {0};
  for (int64_t i = 0; i < count; i++) {
    iso_document place = iso_source_document(source, i);
    char *stored = malloc((size_t)place.length);
    const char *text;
    size_t bytes;
    iso_bad bad;
    assert_int_equal(iso_source_read(source, place.file, place.offset, place.length, stored), ISO_OK);
    assert_int_equal(iso_source_text(source, i, stored, (size_t)place.length, &space, &text, &bytes, &bad), ISO_OK);
    assert_int_equal(bad.is, documents[i].text == NULL);
    if (bad.is) {
      assert_non_null(strstr(bad.cause, documents[i].cause));
      assert_int_equal(bad.byte, documents[i].byte);
    } else {
      assert_int_equal(bytes, strlen(documents[i].text));
      assert_memory_equal(text, documents[i].text, bytes);
    }
    free(stored);
  }
  iso_string_fini(&space);
  iso_source_close(&source);
}

static void test_lines_are_documents(void **state) {
  (void)state;
  const char file[] =
      "\xEF\xBB\xBF{\"text\": \"one\"}\r\n\r\n  \n{\"text\": \"t\\u0077o\"}\nnot json\n{\"text\": \"\"}\n"
      "\"three\"\n{\"text\": 3}\n{\"text\": \"last\"}";
  fixture_write("rows.jsonl", file, sizeof file - 1);
  iso_source_options options = {.path = fixture_path("rows.jsonl"), .format = "auto", .weight = 1};
  const expected documents[] = {
      {"one", NULL, 0},
      {"two", NULL, 0},
      {NULL, "not a JSON object", strstr(file, "not") - file},
      {NULL, "not a JSON object", strstr(file, "\"three") - file},
      {NULL, "field \"text\" is a number, not a string (its line begins at byte 76)", strstr(file, "3}") - file},
      {"last", NULL, 0}};
  check_source(&options, documents, ISO_COUNT(documents));
  fixture_write("other.ndjson", "{\"a\": {\"b\": \"x\"}}\n", 18);
  options = (iso_source_options){.path = fixture_path("other.ndjson"), .format = "auto", .weight = 1, .field = "a.b"};
  check_source(&options, (const expected[]){{"x", NULL, 0}}, 1);
  fixture_write("empty.jsonl", "", 0);
  options = (iso_source_options){.path = fixture_path("empty.jsonl"), .format = "auto", .weight = 1};
  check_source(&options, NULL, 0);
}

/* Lines across the borders of the indexer's chunks. */
static void test_long_lines(void **state) {
  (void)state;
  iso_string file = {0};
  static const int64_t lengths[] = {10, 4194304 - 40, 5, 9000000, 4194304, 3};
  for (size_t i = 0; i < ISO_COUNT(lengths); i++) {
    iso_string_printf(&file, "{\"text\": \"");
    for (int64_t n = 0; n < lengths[i]; n++) iso_string_append(&file, n % 61 ? "x" : "y", 1);
    iso_string_printf(&file, "\"}\n");
  }
  fixture_write("long.jsonl", file.data, file.length);
  iso_source_options options = {.path = fixture_path("long.jsonl"), .format = "auto", .weight = 1};
  iso_source *source;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  assert_int_equal(iso_source_documents(source), ISO_COUNT(lengths));
  int64_t line = 0;
  for (int64_t i = 0; i < (int64_t)ISO_COUNT(lengths); i++) {
    iso_document place = iso_source_document(source, i);
    assert_int_equal(place.length, lengths[i]);
    assert_int_equal(place.offset, line + 10);
    line += lengths[i] + 13;
  }
  assert_int_equal(iso_source_file(source, 0)->crc32c, iso_crc32c(0, file.data, file.length));
  iso_source_close(&source);
  iso_string_fini(&file);
}

/* One byte after the other. */
static bool unescape_slowly(const char *raw, size_t length, iso_string *out) {
  static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
  out->length = 0;
  iso_string_append(out, "", 0);
  for (size_t at = 0; at < length; at++) {
    if (raw[at] != '\\') {
      iso_string_append(out, raw + at, 1);
      continue;
    }
    const char *letter = at + 1 < length && raw[at + 1] ? strchr(letters, raw[at + 1]) : NULL;
    if (letter) {
      iso_string_append(out, meant + (letter - letters), 1);
      at++;
      continue;
    }
    char digits[5] = "";
    if (length - at < 6 || raw[at + 1] != 'u') return false;
    memcpy(digits, raw + at + 2, 4);
    if (strspn(digits, "0123456789abcdef") != 4) return false;
    iso_utf8_append(out, (uint32_t)strtoul(digits, NULL, 16)); /* none is a surrogate */
    at += 5;
  }
  return true;
}

static void check_escapes(void) {
  static const char *const parts[] = {"\\n",
                                      "\\\"",
                                      "\\\\",
                                      "\\t",
                                      "\\/",
                                      "\\u00e9",
                                      "\\u4e2d",
                                      "plain",
                                      "\xc3\xa9\xe4\xb8\xad",
                                      "x",
                                      "thirty bytes, thirty bytes...",
                                      "\\b\\f\\r"};
  iso_string raw = {0}, fast = {0}, slow = {0};
  for (uint64_t i = 0; i < 20000; i++) {
    uint32_t bits[4];
    iso_rng(11, ISO_RNG_TEST, 1, i, bits);
    const uint32_t kinds = 1 + bits[1] % (uint32_t)ISO_COUNT(parts), count = bits[0] % 60;
    raw.length = 0;
    iso_string_append(&raw, "", 0);
    for (uint32_t k = 0; k < count; k++) {
      iso_rng(12 + i, ISO_RNG_TEST, 2, k, bits);
      const char *part = parts[(bits[0] % kinds + i) % ISO_COUNT(parts)];
      iso_string_append(&raw, part, strlen(part));
    }
    if (i % 8 == 0 && raw.length) { /* cut anywhere, or spoilt */
      raw.length = bits[2] % raw.length;
      if (i % 16 == 0 && raw.length) raw.data[bits[3] % raw.length] = "\\x\0\xff"[i / 16 % 4];
    }
    char *alone = malloc(raw.length + 1); /* so that reading behind it is seen */
    assert_non_null(alone);
    memcpy(alone, raw.data, raw.length);
    alone = realloc(alone, raw.length ? raw.length : 1);
    const bool good = unescape_slowly(alone, raw.length, &slow);
    assert_int_equal(iso_jsonl_unescape(alone, raw.length, &fast), good);
    if (good) {
      assert_int_equal(fast.length, slow.length);
      assert_memory_equal(fast.data, slow.data, slow.length + 1);
    }
    free(alone);
  }
  iso_string_fini(&raw);
  iso_string_fini(&fast);
  iso_string_fini(&slow);
}

/* In this process, and in one that has no vectors but those of every machine. */
static void test_escapes(void **state) {
  (void)state;
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    setenv("ISOTACH_CPU", "scalar", 1);
    check_escapes();
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  check_escapes();
}

static int teardown(void **state) {
  iso_jsonl_scratch_fini(&scratch);
  text_of("{}", "text");
  iso_jsonl_scratch_fini(&scratch);
  return fixture_teardown(state);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_escapes), /* the first one: what the machine has is looked up once */
      cmocka_unit_test(test_the_string_is_found),
      cmocka_unit_test(test_bad_lines_say_why_and_where),
      cmocka_unit_test(test_many_keys),
      cmocka_unit_test(test_cjson_agrees),
      cmocka_unit_test(test_lines_are_documents),
      cmocka_unit_test(test_long_lines),
  };
  return cmocka_run_group_tests(tests, fixture_setup, teardown);
}
