/* SPDX-License-Identifier: Apache-2.0
 *
 * Sequences against a naive packer written from the definition, token by token; validation windows and their totals.
 */
#include "datapath/fixture.h"

enum { EOS = 999, MAX_TOKENS = 4096 };

/* A stream laid out whole: tokens, and whether each begins a document. */
typedef struct stream {
  int32_t tokens[MAX_TOKENS];
  bool begins[MAX_TOKENS];
  int64_t lengths[MAX_TOKENS]; /* of documents */
  int64_t count, documents;
} stream;

typedef struct stream_feed {
  const stream *from;
  int64_t document, at;
} stream_feed;

static iso_status next_of_stream(void *context, iso_feed *feed, bool *end) {
  stream_feed *s = context;
  *end = s->document == s->from->documents;
  feed->position = feed->count = 0;
  if (*end) return ISO_OK;
  feed->ids = s->from->tokens + s->at;
  feed->count = s->from->lengths[s->document++];
  s->at += feed->count;
  return ISO_OK;
}

static void add_document(stream *s, int64_t length) {
  for (int64_t i = 0; i < length; i++) {
    s->begins[s->count] = i == 0;
    s->tokens[s->count] = i == length - 1 ? EOS : (int32_t)(s->count % 900);
    s->count++;
  }
  s->lengths[s->documents++] = length;
}

/* The definition: window w is tokens wT.., targets are the next tokens; no document's first is a target under the mask.
 */
static void check_window(const stream *s, int64_t start, int64_t T, bool mask, iso_sequence got, int64_t valid,
                         int64_t scored) {
  int64_t expected_valid = s->count - 1 - start < T ? s->count - 1 - start : T, expected_scored = 0;
  if (expected_valid < 0) expected_valid = 0;
  assert_int_equal(valid, expected_valid);
  int32_t segment = 0, position = 0;
  for (int64_t t = 0; t < T; t++) {
    if (t >= valid) {
      assert_int_equal(got.tokens[t], EOS);
      assert_int_equal(got.labels[t], -100);
      continue;
    }
    int64_t i = start + t;
    if (t > 0 && s->begins[i]) segment++, position = 0;
    int32_t label = mask && s->begins[i + 1] ? -100 : s->tokens[i + 1];
    assert_int_equal(got.tokens[t], s->tokens[i]);
    assert_int_equal(got.labels[t], label);
    assert_int_equal(got.segments[t], mask ? segment : 0);
    assert_int_equal(got.positions[t], mask ? position : t);
    expected_scored += label != -100;
    position++;
  }
  assert_int_equal(scored, expected_scored);
}

/* Padded: each document from its own sequence on, T tokens at a time, the rest fill. */
static void check_padded(const stream *s, int64_t T, bool mask) {
  stream_feed from = {.from = s};
  iso_feed feed = {.next = next_of_stream, .context = &from};
  fixture_arrays arrays = fixture_arrays_create(T);
  const iso_sequence got = arrays.sequence;
  int64_t begin = 0;
  for (int64_t d = 0; d < s->documents; begin += s->lengths[d++]) {
    for (int64_t at = 0; at < s->lengths[d]; at += T) {
      int64_t scored, expected_scored = 0;
      assert_int_equal(iso_feed_pad(&feed, T, mask, EOS, got, &scored), ISO_OK);
      for (int64_t t = 0; t < T; t++) {
        const int64_t i = at + t, length = s->lengths[d];
        const bool in = i < length, goes_on = i + 1 < length;
        assert_int_equal(got.tokens[t], in ? s->tokens[begin + i] : EOS);
        assert_int_equal(got.labels[t], goes_on ? s->tokens[begin + i + 1] : -100);
        assert_int_equal(got.segments[t], mask && !in ? 1 : 0);
        assert_int_equal(got.positions[t], mask && !in ? i - length : t);
        expected_scored += goes_on;
      }
      assert_int_equal(scored, expected_scored);
    }
  }
  assert_int_equal(feed.position, feed.count); /* the stream's end */
  free(arrays.memory);
}

static void check_stream(const stream *s, int64_t T, bool mask) {
  stream_feed from = {.from = s};
  iso_feed feed = {.next = next_of_stream, .context = &from};
  fixture_arrays arrays = fixture_arrays_create(T);
  int64_t start = 0, valid, scored, targets = 0;
  do {
    assert_int_equal(iso_feed_pack(&feed, T, mask, EOS, arrays.sequence, &valid, &scored), ISO_OK);
    check_window(s, start, T, mask, arrays.sequence, valid, scored);
    start += T;
    targets += scored;
  } while (valid > 0);
  assert_int_equal(targets, s->count - (mask ? s->documents : s->count > 0)); /* each token once */
  assert_int_equal(iso_feed_pack(&feed, T, mask, EOS, arrays.sequence, &valid, &scored), ISO_OK);
  assert_int_equal(valid, 0);
  free(arrays.memory);
}

static void test_sequences_equal_the_naive_ones(void **state) {
  (void)state;
  stream *s = malloc(sizeof *s);
  for (uint64_t round = 0; round < 60; round++) {
    memset(s, 0, sizeof *s);
    int64_t documents = 1 + (int64_t)(round % 13);
    for (int64_t d = 0; d < documents; d++) {
      uint32_t bits[4];
      iso_rng(1, ISO_RNG_TEST, round, (uint64_t)d, bits);
      static const uint32_t longest[] = {1, 3, 20, 200};
      add_document(s, 1 + bits[0] % longest[bits[1] % 4]);
    }
    static const int64_t lengths[] = {1, 2, 7, 16, 64, 1000};
    for (size_t i = 0; i < ISO_COUNT(lengths); i++) {
      check_stream(s, lengths[i], true);
      check_stream(s, lengths[i], false);
    }
  }
  free(s);
}

static void test_edges_of_the_stream(void **state) {
  (void)state;
  stream *s = calloc(1, sizeof *s);
  check_stream(s, 4, true); /* nothing at all */
  add_document(s, 1);       /* one token: nothing to predict */
  check_stream(s, 4, true);
  check_stream(s, 4, false);
  add_document(s, 1);
  add_document(s, 1);
  check_stream(s, 4, true); /* one-token documents only: nothing is scored */
  check_stream(s, 2, false);
  add_document(s, 6); /* 9 tokens: the last window of 4 holds only the last token */
  check_stream(s, 4, true);
  check_stream(s, 4, false);
  free(s);
}

/* ---- validation ---- */

typedef struct read_out {
  int64_t windows, scored, bytes, tokens, unpredicted;
  iso_string text; /* the inputs and the last target, decoded; EOS as "<|endoftext|>" */
} read_out;

static void read_all(iso_validation *validation, int64_t T, read_out *out) {
  fixture_arrays arrays = fixture_arrays_create(T);
  int32_t eos = (int32_t)iso_tokenizer_eos(fixture_tokenizer);
  int64_t valid = 0, last;
  *out = (read_out){0};
  for (;; out->windows++) {
    last = valid;
    int32_t last_label = last ? arrays.sequence.labels[last - 1] : -100;
    assert_int_equal(iso_validation_next(validation, arrays.sequence, &valid), ISO_OK);
    if (valid == 0) {
      if (last_label != -100) assert_int_equal(last_label, eos);
      break;
    }
    if (out->windows) assert_int_equal(last, T);
    for (int64_t t = 0; t < T; t++) out->scored += arrays.sequence.labels[t] != -100;
    for (int64_t t = 0; t < valid; t++) {
      if (arrays.sequence.tokens[t] == eos)
        iso_string_printf(&out->text, "\n\n");
      else
        assert_int_equal(iso_decode(fixture_tokenizer, arrays.sequence.tokens + t, 1, &out->text), ISO_OK);
    }
  }
  iso_validation_totals(validation, &out->bytes, &out->tokens, &out->unpredicted);
  free(arrays.memory);
}

static void test_validation_reads_the_held_out_documents(void **state) {
  (void)state;
  fixture_corpus("valid", 'v', 0, 100, 60);
  iso_source_options source = fixture_source("valid");
  for (int mask = 0; mask < 2; mask++) {
    iso_data_options options = fixture_options(&source, 1);
    options.validation_every = 9;
    options.validation_offset = 4;
    options.document_mask = mask;
    iso_corpus *corpus;
    assert_int_equal(iso_corpus_open(&options, fixture_tokenizer, &corpus), ISO_OK);
    iso_corpus_info info;
    iso_corpus_info_get(corpus, &info);
    iso_string expected = {0};
    for (int64_t i = 4; i < 100; i += 9) {
      if (i > 4) iso_string_append(&expected, "\n\n", 2);
      fixture_document(&expected, 'v', i, 60);
    }
    iso_validation *validation;
    int64_t told = 0;
    assert_int_equal(iso_validation_open(corpus, 0, &told, &validation), ISO_OK);
    read_out got;
    read_all(validation, options.sequence, &got);
    assert_string_equal(got.text.data, expected.data);
    assert_int_equal(got.bytes, info.validation_bytes);
    assert_int_equal(got.unpredicted, mask ? info.validation_documents : 1);
    assert_int_equal(got.scored + got.unpredicted, got.tokens);
    assert_int_equal(got.windows, (got.tokens - 1 + options.sequence - 1) / options.sequence);
    iso_string_fini(&got.text);
    iso_string_fini(&expected);
    iso_validation_close(&validation);
    iso_corpus_close(&corpus);
  }
}

static void test_validation_stops_after_whole_documents(void **state) {
  (void)state;
  fixture_corpus("limit", 'v', 0, 100, 60);
  iso_source_options source = fixture_source("limit");
  iso_data_options options = fixture_options(&source, 1);
  options.validation_every = 2;
  iso_corpus *corpus;
  assert_int_equal(iso_corpus_open(&options, fixture_tokenizer, &corpus), ISO_OK);
  int64_t whole = 0;
  for (int64_t max_bytes = 1; max_bytes < 1500; max_bytes += 250) {
    iso_validation *validation;
    int64_t told = 0;
    assert_int_equal(iso_validation_open(corpus, max_bytes, &told, &validation), ISO_OK);
    read_out got;
    read_all(validation, options.sequence, &got);
    int64_t bytes = 0, documents = 0;
    while (bytes < max_bytes) {
      const char *text;
      size_t length;
      assert_int_equal(iso_corpus_document(corpus, true, documents++, &text, &length), ISO_OK);
      bytes += (int64_t)length;
    }
    assert_int_equal(got.bytes, bytes);
    assert_int_equal(got.unpredicted, documents);
    whole += documents;
    iso_string_fini(&got.text);
    iso_validation_close(&validation);
  }
  assert_true(whole > 6);
  iso_corpus_close(&corpus);
}

static void test_validation_of_a_text_given_whole(void **state) {
  (void)state;
  static const char text[] = "\n\nlight and day\n\n\n\nthe waters\n\n";
  for (int64_t T = 1; T < 40; T += 3) {
    iso_validation *validation;
    assert_int_equal(
        iso_validation_open_text(fixture_tokenizer, "given", text, strlen(text), "\n\n", T, true, false, &validation),
        ISO_OK);
    read_out got;
    read_all(validation, T, &got);
    assert_string_equal(got.text.data, "light and day\n\nthe waters");
    assert_int_equal(got.bytes, 23);
    assert_int_equal(got.unpredicted, 2);
    assert_int_equal(got.scored, got.tokens - 2);
    iso_string_fini(&got.text);
    iso_validation_close(&validation);
  }
  iso_validation *validation;
  assert_int_equal(iso_validation_open_text(fixture_tokenizer, "given", text, 0, "", 8, true, false, &validation),
                   ISO_OK);
  read_out got;
  read_all(validation, 8, &got);
  assert_int_equal(got.windows + got.bytes + got.tokens + got.unpredicted, 0);
  iso_validation_close(&validation);
}

static void test_bad_validation_text(void **state) {
  (void)state;
  fixture_write("badval", "good\n\nb\xff\x64\n\nfine\n\nlast", 21);
  iso_validation *validation;
  fixture_arrays arrays = fixture_arrays_create(32);
  int64_t valid;
  assert_int_equal(
      iso_validation_open_text(fixture_tokenizer, "given", "ok|b\xc3", 5, "|", 32, true, false, &validation), ISO_OK);
  assert_error(iso_validation_next(validation, arrays.sequence, &valid), ISO_ERR_FORMAT,
               "\"given\", document 1 (byte 4 of the file): not valid UTF-8");
  iso_validation_close(&validation);
  fixture_corpus("fineenough", 't', 0, 20, 10);
  iso_source_options source = fixture_source("fineenough");
  iso_data_options options = fixture_options(&source, 1);
  options.validation_path = fixture_path("badval");
  for (int limit = -1; limit < 2; limit++) { /* error; skip, none allowed; skip, one allowed */
    options.skip_bad = limit >= 0;
    options.max_bad_documents = limit < 0 ? 100 : limit;
    iso_corpus *corpus;
    int64_t told = 0;
    assert_int_equal(iso_corpus_open(&options, fixture_tokenizer, &corpus), ISO_OK);
    assert_int_equal(iso_validation_open(corpus, 0, &told, &validation), ISO_OK);
    iso_status status = iso_validation_next(validation, arrays.sequence, &valid);
    if (limit < 0) assert_error(status, ISO_ERR_FORMAT, "badval\", document 1 (byte 7 of the file)");
    if (limit == 0) assert_error(status, ISO_ERR_FORMAT, "more than 0 bad validation documents");
    if (limit == 1) {
      int64_t bytes, tokens, unpredicted;
      assert_int_equal(status, ISO_OK);
      iso_validation_totals(validation, &bytes, &tokens, &unpredicted);
      assert_int_equal(bytes, 12);
      assert_int_equal(unpredicted, 3);
      assert_int_equal(told, 4);
    }
    iso_validation_close(&validation);
    iso_corpus_close(&corpus);
  }
  free(arrays.memory);
}

static void test_utf8(void **state) {
  (void)state;
  static const struct {
    const char *text;
    int64_t bad;
  } rows[] = {{"", -1},
              {"plain ascii text that is longer", -1},
              {"\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", -1},
              {"\xed\x9f\xbf\xee\x80\x80", -1},
              {"12345678\x80", 8},
              {"a\xc0\xaf", 1},
              {"ab\xc1\xbf", 2},
              {"\xe0\x9f\xbf", 0},
              {"\xed\xa0\x80", 0},
              {"\xf0\x8f\xbf\xbf", 0},
              {"\xf4\x90\x80\x80", 0},
              {"\xf5\x80\x80\x80", 0},
              {"abc\xe2\x82", 3},
              {"abc\xe2\x28\xa1", 3},
              {"\xff", 0}};
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    const size_t length = strlen(rows[i].text), valid = iso_utf8_valid_prefix(rows[i].text, length);
    assert_int_equal(valid == length ? -1 : (int)valid, rows[i].bad);
  }
}

static void test_padded_sequences_hold_one_document(void **state) {
  (void)state;
  static const int64_t lengths[] = {1, 2, 7, 8, 9, 16, 17, 30, 1, 1, 5};
  stream *s = calloc(1, sizeof *s);
  assert_non_null(s);
  for (size_t i = 0; i < ISO_COUNT(lengths); i++) add_document(s, lengths[i]);
  for (int64_t T = 1; T < 20; T++)
    for (int mask = 0; mask < 2; mask++) check_padded(s, T, mask);
  free(s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sequences_equal_the_naive_ones),
      cmocka_unit_test(test_edges_of_the_stream),
      cmocka_unit_test(test_padded_sequences_hold_one_document),
      cmocka_unit_test(test_validation_reads_the_held_out_documents),
      cmocka_unit_test(test_validation_stops_after_whole_documents),
      cmocka_unit_test(test_validation_of_a_text_given_whole),
      cmocka_unit_test(test_bad_validation_text),
      cmocka_unit_test(test_utf8),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
