/* SPDX-License-Identifier: Apache-2.0
 *
 * Pre-tokenizers: splits known from the references, and every scanner against PCRE2 with the scanner's own regular
 * expression on random text. */
#include "helper.h"

/* The pieces of `text`, joined with '|'. */
static void split(iso_splitter splitter, const char *text, iso_string *out) {
  size_t length = strlen(text);
  if (out->data) out->length = 0;
  for (size_t at = 0, stop; at < length; at = stop) {
    stop = iso_split_next(splitter, (const uint8_t *)text, at, length);
    assert_true(stop > at && stop <= length);
    if (at) iso_string_append(out, "|", 1);
    iso_string_append(out, text + at, stop - at);
  }
}

static void test_known_splits(void **state) {
  static const struct {
    iso_splitter splitter;
    const char *text, *pieces;
  } rows[] = {
      {ISO_SPLIT_GPT2, "Hello world's 123abc!!  x", "Hello| world|'s| 123|abc|!!| | x"},
      {ISO_SPLIT_GPT2, "a  \n b \n", "a|  \n| b| \n"},
      {ISO_SPLIT_GPT2, "don'T 're x\xCC\x81y", "don|'|T| '|re| x|\xCC\x81|y"},
      {ISO_SPLIT_GPT2,
       "a\xC2\x85\xE3\x80\x80"
       "b\x1C\xE2\x80\x8B",
       "a|\xC2\x85|\xE3\x80\x80|b|\x1C\xE2\x80\x8B"},
      {ISO_SPLIT_CL100K, "a  b", "a| | b"},
      {ISO_SPLIT_CL100K, "a \n b", "a| \n| b"},
      {ISO_SPLIT_CL100K, "x\r\n\r\ny", "x|\r\n\r\n|y"},
      {ISO_SPLIT_CL100K,
       "a'\xC5\xBF"
       "b 12345 it'LL",
       "a|'\xC5\xBF|b| |123|45| it|'LL"},
      {ISO_SPLIT_CL100K, "x\xCC\x81y !?\n\n.foo", "x|\xCC\x81y| !?\n\n|.foo"},
      {ISO_SPLIT_QWEN2, "12345 a7", "1|2|3|4|5| a|7"},
      {ISO_SPLIT_O200K, "HelloWORLD fooBar ABC's x1234", "Hello|WORLD| foo|Bar| ABC's| x|123|4"},
      {ISO_SPLIT_O200K, "//\n/a !\r/\n", "//\n/|a| !\r/\n"},
      {ISO_SPLIT_O200K,
       "\xCC\x81"
       "ABC",
       "\xCC\x81|ABC"},
      {ISO_SPLIT_DIGIT, "ab12\xD9\xA1 c", "ab|1|2|\xD9\xA1| c"},
      {ISO_SPLIT_DIGITS, "ab12\xD9\xA1 c", "ab|12\xD9\xA1| c"},
  };
  iso_string out = {0};
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    split(rows[i].splitter, rows[i].text, &out);
    assert_string_equal(out.data, rows[i].pieces);
  }
  iso_string_fini(&out);
}

static void compare_with_pcre(iso_splitter splitter, uint64_t seed) {
  iso_regex *regex;
  assert_int_equal(iso_regex_create(iso_splitter_regex(splitter), "test", &regex), ISO_OK);
  iso_regex_match *match = iso_regex_match_create(regex);
  assert_non_null(match);
  iso_string text = {0};
  uint64_t counter = seed << 32;
  for (int round = 0; round < 20000; round++) {
    random_text(&counter, 1 + pick(&counter, 12), &text);
    for (size_t at = 0, start, stop; at < text.length; at = stop) {
      assert_int_equal(iso_regex_next(regex, match, text.data, text.length, at, &start, &stop), ISO_OK);
      assert_int_equal(start, at); /* the expression covers everything */
      assert_int_equal(iso_split_next(splitter, (const uint8_t *)text.data, at, text.length), stop);
    }
  }
  iso_string_fini(&text);
  iso_regex_match_destroy(&match);
  iso_regex_destroy(&regex);
}

static void test_scanners_against_regex(void **state) {
  compare_with_pcre(ISO_SPLIT_GPT2, 1);
  compare_with_pcre(ISO_SPLIT_CL100K, 2);
  compare_with_pcre(ISO_SPLIT_QWEN2, 3);
  compare_with_pcre(ISO_SPLIT_O200K, 4);
}

static void test_names(void **state) {
  assert_int_equal(iso_splitter_find("gpt2"), ISO_SPLIT_GPT2);
  assert_int_equal(iso_splitter_find("llama3"), ISO_SPLIT_CL100K);
  assert_int_equal(iso_splitter_find(iso_splitter_regex(ISO_SPLIT_QWEN2)), ISO_SPLIT_QWEN2);
  assert_int_equal(iso_splitter_find(iso_splitter_regex(ISO_SPLIT_O200K)), ISO_SPLIT_O200K);
  assert_int_equal(iso_splitter_find("\\p{L}+"), ISO_SPLIT_REGEX);
}

/* Classes are those of Unicode 16, whatever is installed. */
static void test_unicode_16(void **state) {
  const uint8_t *table = iso_unicode_table();
  static const uint32_t letters[] = {0x1C89, 0x10D4A, 0x31350, 0x1F32, 0x2EBF0};
  static const uint32_t numbers[] = {0x10D40, 0x1E4F0, 0x116D0};
  static const uint32_t unknown[] = {0x323B0, 0x16EA0, 0x1FAE8, 0xE000, 0x10FFFF};
  for (size_t i = 0; i < ISO_COUNT(letters); i++) {
    int class = table[letters[i]] & ISO_CLASS_MASK;
    assert_true(class >= ISO_CLASS_LU && class <= ISO_CLASS_LO);
  }
  for (size_t i = 0; i < ISO_COUNT(numbers); i++)
    assert_int_equal(table[numbers[i]] & ISO_CLASS_MASK, ISO_CLASS_NUMBER);
  for (size_t i = 0; i < ISO_COUNT(unknown); i++) assert_int_equal(table[unknown[i]] & ISO_CLASS_MASK, ISO_CLASS_OTHER);
}

/* Time is linear: a million characters of each hostile kind within a second or two even under sanitizers. */
static void test_linear(void **state) {
  static const char *const units[] = {
      "a", " ", "\n", "A\xE0\xB8\x81", "\xCC\x81", "'s", " \xCC\x81", "\xE0\xB8\x81\x41", "/\n"};
  static const iso_splitter all[] = {ISO_SPLIT_GPT2, ISO_SPLIT_CL100K, ISO_SPLIT_QWEN2, ISO_SPLIT_O200K};
  iso_string text = {0};
  double start = iso_clock_s();
  for (size_t u = 0; u < ISO_COUNT(units); u++) {
    if (text.data) text.length = 0;
    for (int i = 0; i < 300000; i++) iso_string_append(&text, units[u], strlen(units[u]));
    for (size_t s = 0; s < ISO_COUNT(all); s++)
      for (size_t at = 0; at < text.length;) at = iso_split_next(all[s], (const uint8_t *)text.data, at, text.length);
  }
  iso_string_fini(&text);
  assert_true(iso_clock_s() - start < 30);
}

static void test_regex_errors(void **state) {
  iso_regex *regex;
  iso_log_quiet(true);
  assert_int_equal(iso_regex_create("(", "file", &regex), ISO_ERR_UNSUPPORTED);
  assert_non_null(strstr(iso_last_error(), "file: the pre-tokenizer's regular expression is not understood at byte 1"));
  assert_int_equal(iso_regex_create("", "file", &regex), ISO_ERR_FORMAT);
  /* one that backtracks without end is an error, not a hang */
  assert_int_equal(iso_regex_create("(?:a+)+$", "file", &regex), ISO_OK);
  iso_regex_match *match = iso_regex_match_create(regex);
  char text[64];
  memset(text, 'a', sizeof text);
  text[63] = 'b';
  size_t start, stop;
  assert_int_equal(iso_regex_next(regex, match, text, sizeof text, 0, &start, &stop), ISO_ERR_UNSUPPORTED);
  iso_log_quiet(false);
  iso_regex_match_destroy(&match);
  iso_regex_destroy(&regex);
  /* empty matches are passed over */
  assert_int_equal(iso_regex_create("x*", "file", &regex), ISO_OK);
  match = iso_regex_match_create(regex);
  assert_int_equal(iso_regex_next(regex, match, "\xC3\xA9xx", 4, 0, &start, &stop), ISO_OK);
  assert_int_equal(start, 2);
  assert_int_equal(stop, 4);
  assert_int_equal(iso_regex_next(regex, match, "\xC3\xA9", 2, 0, &start, &stop), ISO_OK);
  assert_int_equal(start, 2);
  iso_regex_match_destroy(&match);
  iso_regex_destroy(&regex);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_known_splits), cmocka_unit_test(test_scanners_against_regex),
      cmocka_unit_test(test_names),        cmocka_unit_test(test_unicode_16),
      cmocka_unit_test(test_linear),       cmocka_unit_test(test_regex_errors),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
