/* SPDX-License-Identifier: Apache-2.0
 *
 * What a survey finds in documents made for it, with any number of threads.
 */
#include "datapath/fixture.h"

static iso_survey survey_source(const iso_source_options *options, const iso_tokenizer *tokenizer, int threads) {
  iso_source *source;
  iso_survey survey;
  assert_int_equal(iso_source_open(options, &source), ISO_OK);
  assert_int_equal(iso_survey_take(source, tokenizer, threads, &survey), ISO_OK);
  iso_source_close(&source);
  return survey;
}

static iso_survey survey_of(const char *text, size_t length, const iso_tokenizer *tokenizer, int threads) {
  fixture_write("survey.txt", text, length);
  const iso_source_options options = fixture_source("survey.txt");
  return survey_source(&options, tokenizer, threads);
}

static void test_counts(void **state) {
  (void)state;
  static const char text[] = "the same\n\nother\n\nthe same\n\nb\xff"
                             "d\n\nthe longest document of all\n\nthe same";
  iso_survey s = survey_of(text, sizeof text - 1, fixture_tokenizer, 1);
  assert_int_equal(s.documents, 5);
  assert_int_equal(s.bytes, 3 * 8 + 5 + 27);
  assert_int_equal(s.characters, s.bytes);
  assert_int_equal(s.bad, 1);
  assert_int_equal(s.bad_causes, 1);
  assert_int_equal(s.causes[0].documents, 1);
  assert_int_equal(s.causes[0].first, 3);
  assert_int_equal(s.causes[0].byte, 28);
  assert_string_equal(s.causes[0].cause, "not valid UTF-8");
  assert_int_equal(s.longest, 4);
  assert_int_equal(s.longest_bytes, 27);
  assert_int_equal(s.duplicates, 2);
  assert_int_equal(s.first_duplicate, 2);
  assert_int_equal(s.duplicate_of, 0);
  assert_int_equal(s.changed.documents, 0);
  assert_int_equal(s.vocabulary, iso_tokenizer_vocabulary(fixture_tokenizer));
  int64_t sum = 0;
  for (int64_t id = 0; id < s.vocabulary; id++) sum += s.token_counts[id];
  assert_int_equal(sum, s.tokens);
  assert_int_equal(s.token_counts[iso_tokenizer_eos(fixture_tokenizer)], 5);
  iso_survey_fini(&s);
}

static void test_anomalies(void **state) {
  (void)state;
  static const char text[] = "\xEF\xBB\xBF"
                             "bom\n\n"                               /* U+FEFF */
                             "zero\xE2\x80\x8Bwidth\xE2\x80\x8B\n\n" /* U+200B twice */
                             "\xE2\x80\xAE"
                             "bidi\n\n"         /* U+202E */
                             "\xEF\xBF\xBD\n\n" /* U+FFFD */
                             "bell\x07\n\n"     /* a control */
                             "\xEE\x80\x80\n\n" /* U+E000 */
                             "\xEF\xBF\xBE\n\n" /* U+FFFE */
                             "a\xC2\xA0"
                             "b\n\n"                                      /* no-break space */
                             "e\xCC\x81t\n\n"                             /* e and an accent */
                             "\xEF\xBC\xA1\xEF\xBC\xA2 \xF0\x9F\x98\x80"; /* full-width A, B; a face */
  iso_survey s = survey_of(text, sizeof text - 1, NULL, 2);
  const int64_t times[ISO_ANOMALIES] = {1, 2, 1, 1, 1, 1, 1, 1, 1};
  for (int a = 0; a < ISO_ANOMALIES; a++) {
    assert_int_equal(s.anomalies[a].times, times[a]);
    assert_int_equal(s.anomalies[a].documents, 1);
    assert_int_equal(s.anomalies[a].first, a);
  }
  assert_int_equal(s.full_width, 2);
  assert_int_equal(s.emoji, 1);
  assert_int_equal(s.suspects[ISO_SUSPECT_DAMAGED].documents, 2);
  iso_survey_fini(&s);
}

static void test_suspects(void **state) {
  (void)state;
  iso_string text = {0};
  for (int i = 0; i < 2500; i++) iso_string_printf(&text, "word "); /* 0: a long line */
  iso_string_printf(&text, "\n\n");
  for (int i = 0; i < 201; i++) iso_string_printf(&text, "-");         /* 1: repeats, symbols */
  iso_string_printf(&text, "\n\n0123456789012345678901234567890\n\n"); /* 2: short by one byte */
  iso_string_printf(&text, "01234567890123456789012345678901");        /* 3: not short */
  iso_survey s = survey_of(text.data, text.length, fixture_tokenizer, 1);
  const int64_t first[ISO_SUSPECTS] = {2, 0, 1, 1, -1, 1};
  for (int i = 0; i < ISO_SUSPECTS; i++) {
    if (i != ISO_SUSPECT_DENSE) assert_int_equal(s.suspects[i].first, first[i]);
    if (i != ISO_SUSPECT_DENSE) assert_int_equal(s.suspects[i].documents, first[i] >= 0);
  }
  assert_true(s.suspects[ISO_SUSPECT_DENSE].documents >= 2); /* digits are one token each in this vocabulary */
  iso_survey_fini(&s);
  iso_string_fini(&text);
}

static void test_threads_agree(void **state) {
  (void)state;
  iso_string text = {0};
  for (int64_t i = 0; i < 1000; i++) {
    if (i % 97 == 5) iso_string_printf(&text, "\xff");
    fixture_document(&text, 'a', i % 400, 30);
    iso_string_append(&text, "\n\n", 2);
  }
  iso_survey one = survey_of(text.data, text.length, fixture_tokenizer, 1);
  iso_survey four = survey_of(text.data, text.length, fixture_tokenizer, 4);
  assert_memory_equal(one.token_counts, four.token_counts, (size_t)one.vocabulary * sizeof *one.token_counts);
  free(one.token_counts);
  free(four.token_counts);
  free(one.is_fragment);
  free(four.is_fragment);
  one.token_counts = four.token_counts = NULL;
  one.is_fragment = four.is_fragment = NULL;
  assert_memory_equal(&one, &four, sizeof one);
  assert_true(one.duplicates > 500 && one.bad == 11);
  iso_string_fini(&text);
}

/* Causes in the order of their first documents, whatever their digests and threads are. */
static void test_causes(void **state) {
  (void)state;
  static const char *const lines[] = {"{\"text\": \"good\"}", "[1]", "{\"text\": 7}",
                                      "{\"text\": \"x\", \"text\": \"y\"}", "{\"text\": null}"};
  iso_string text = {0};
  for (int i = 0; i < 1000; i++) iso_string_printf(&text, "%s\n", lines[i < 7 ? 0 : i % 5]);
  fixture_write("causes.jsonl", text.data, text.length);
  const iso_source_options options = fixture_source("causes.jsonl");
  for (int threads = 1; threads <= 4; threads++) {
    iso_survey s = survey_source(&options, fixture_tokenizer, threads);
    assert_int_equal(s.documents, 205);
    assert_int_equal(s.bad, 795);
    assert_int_equal(s.bad_causes, 4);
    for (int i = 0; i < ISO_BAD_CAUSES; i++) assert_int_equal(s.causes[i].first, 7 + i);
    assert_int_equal(s.causes[0].documents, 199);
    assert_string_equal(s.causes[0].cause, "field \"text\" is a number, not a string (its line begins at byte 119)");
    assert_int_equal(s.causes[0].byte, 7 * 17 + 9);
    assert_int_equal(s.causes[2].documents, 199);
    assert_non_null(strstr(s.causes[2].cause, "null"));
    iso_survey_fini(&s);
  }
  iso_string_fini(&text);
}

/* The same cause with other numbers in it is the same. */
static void test_causes_with_numbers(void **state) {
  (void)state;
  const uint16_t vocabulary = (uint16_t)iso_tokenizer_vocabulary(fixture_tokenizer);
  const uint16_t eos = (uint16_t)iso_tokenizer_eos(fixture_tokenizer);
  const uint16_t ids[] = {1, eos, 2, (uint16_t)(vocabulary + 10), eos, (uint16_t)(vocabulary + 234), eos};
  fixture_write("causes.bin", ids, sizeof ids);
  iso_source_options options = fixture_source("causes.bin");
  options.token_type = "uint16";
  options.tokenizer = fixture_tokenizer;
  iso_survey s = survey_source(&options, fixture_tokenizer, 1);
  assert_int_equal(s.bad, 2);
  assert_int_equal(s.bad_causes, 1);
  assert_int_equal(s.causes[0].documents, 2);
  assert_int_equal(s.causes[0].first, 1);
  assert_int_equal(s.causes[0].byte, 6);
  iso_survey_fini(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_counts),   cmocka_unit_test(test_anomalies),
      cmocka_unit_test(test_suspects), cmocka_unit_test(test_threads_agree),
      cmocka_unit_test(test_causes),   cmocka_unit_test(test_causes_with_numbers),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
