/* SPDX-License-Identifier: Apache-2.0
 *
 * The trace against the batches themselves: the tokens of each piece decode to the bytes that it names.
 */
#include "datapath/recording.h"

/* Checks one sequence; adds the document tokens of the pieces to *tokens. */
static void check_sequence(const iso_corpus *corpus, const recording *r, int64_t step, int64_t lane,
                           const iso_trace_piece *pieces, int64_t count) {
  const int32_t eos = (int32_t)iso_tokenizer_eos(fixture_tokenizer);
  const int32_t *tokens = r->arrays[0] + step * r->batch * r->T + lane * r->T;
  iso_string text = {0}, stored = {0};
  int64_t t = 0;
  for (int64_t i = 0; i < count; i++) {
    const iso_trace_piece *p = &pieces[i];
    const iso_source *source = iso_corpus_source(corpus, p->source);
    const iso_document place = iso_source_document(source, p->document);
    int64_t own = p->end - p->first;
    assert_in_range(own, 1, r->T - t);
    assert_true(p->end <= p->of);
    assert_int_equal(tokens[t + own - 1] == eos, p->end == p->of);
    if (i > 0) assert_int_equal(p->first, 0);
    if (i + 1 < count) assert_int_equal(p->end, p->of);
    text.length = stored.length = 0;
    if (p->end == p->of) own--;
    iso_string_printf(&text, "%s", "");
    if (own > 0) assert_int_equal(iso_decode(fixture_tokenizer, tokens + t, (size_t)own, &text), ISO_OK);
    assert_int_equal(text.length, p->byte_end - p->byte);
    char *bytes = malloc((size_t)place.length);
    assert_int_equal(iso_source_read(source, place.file, place.offset, place.length, bytes), ISO_OK);
    const char *document = bytes;
    size_t length = (size_t)place.length;
    iso_bad bad;
    assert_int_equal(iso_source_text(source, p->document, bytes, length, &stored, &document, &length, &bad), ISO_OK);
    assert_true(p->byte >= 0 && p->byte_end <= (int64_t)length);
    assert_memory_equal(document + p->byte, text.data, text.length);
    if (p->end == p->of) assert_int_equal(p->byte_end, length);
    free(bytes);
    t += p->end - p->first;
  }
  if (iso_corpus_options(corpus)->pad) {
    assert_int_equal(count, 1);
    for (const int32_t *labels = r->arrays[1] + (tokens - r->arrays[0]); t < r->T; t++) {
      assert_int_equal(tokens[t], eos);
      assert_int_equal(labels[t], -100);
    }
  }
  assert_int_equal(t, r->T);
  iso_string_fini(&text);
  iso_string_fini(&stored);
}

static void check_trace(const iso_corpus *corpus, const recording *r, int64_t after) {
  iso_trace *trace;
  const iso_data_cursor *cursors = after ? r->cursors + (size_t)(after - 1) * r->cursor_count : NULL;
  assert_int_equal(iso_trace_open(corpus, cursors, &trace), ISO_OK);
  for (int64_t step = after; step < r->steps; step++)
    for (int64_t b = 0; b < r->batch; b++) {
      const iso_trace_piece *pieces;
      int64_t count;
      assert_int_equal(iso_trace_next(trace, b, &pieces, &count), ISO_OK);
      check_sequence(corpus, r, step, b, pieces, count);
    }
  iso_trace_close(&trace);
  assert_null(trace);
}

static void test_trace_names_what_batches_held(void **state) {
  (void)state;
  iso_source_options sources[3];
  iso_data_options options = three_sources(sources);
  for (int c = 0; c < 4; c++) {
    options.source_count = c % 2 ? 3 : 1;
    options.document_mask = c < 2;
    options.sequence = c == 3 ? 5 : 40;
    options.validation_every = c == 2 ? 7 : 0;
    options.threads = 1 + c;
    iso_corpus *corpus = open_corpus(&options);
    recording r = record(corpus, &options, 0, 80, NULL);
    for (int64_t after = 0; after < 80; after += 13) check_trace(corpus, &r, after);
    recording_free(&r);
    iso_corpus_close(&corpus);
  }
}

static void test_trace_of_padded_batches(void **state) {
  (void)state;
  iso_source_options sources[3];
  iso_data_options options = three_sources(sources);
  options.pad = true;
  for (int c = 0; c < 2; c++) {
    options.sequence = c ? 90 : 16;
    options.document_mask = c;
    iso_corpus *corpus = open_corpus(&options);
    recording r = record(corpus, &options, 0, 80, NULL);
    for (int64_t after = 0; after < 80; after += 7) { /* and a resume gives the same */
      check_trace(corpus, &r, after);
      if (after == 0) continue;
      recording part = record(corpus, &options, after, 6 < 80 - after ? 6 : 80 - after,
                              r.cursors + (size_t)(after - 1) * r.cursor_count);
      assert_continues(&r, after, &part);
      recording_free(&part);
    }
    recording_free(&r);
    iso_corpus_close(&corpus);
  }
}

static void test_trace_passes_over_what_was_left_out(void **state) {
  (void)state;
  write_with_bad_documents("trace-bad", 120, 10);
  iso_source_options source = fixture_source("trace-bad");
  iso_data_options options = fixture_options(&source, 1);
  options.skip_bad = true;
  iso_corpus *corpus = open_corpus(&options);
  recording r = record(corpus, &options, 0, 100, NULL);
  for (int64_t after = 0; after < 100; after += 9) check_trace(corpus, &r, after);
  recording_free(&r);
  iso_corpus_close(&corpus);
}

static void test_trace_of_json_lines(void **state) {
  (void)state;
  iso_string text = {0}, document = {0};
  for (int64_t i = 0; i < 200; i++) {
    document.length = 0;
    fixture_document(&document, 'a', i, 40);
    iso_string_printf(&document, "\n\"\\ tail");
    iso_string_printf(&text, "{\"id\": %lld, \"text\": ", (long long)i);
    iso_json_quote(&text, document.data, document.length);
    iso_string_printf(&text, "}\n");
  }
  fixture_write("trace.jsonl", text.data, text.length);
  iso_string_fini(&text);
  iso_string_fini(&document);
  iso_source_options source = fixture_source("trace.jsonl");
  source.separator = "";
  iso_data_options options = fixture_options(&source, 1);
  iso_corpus *corpus;
  const iso_status status = iso_corpus_open(&options, fixture_tokenizer, &corpus);
  assert_int_equal(status, ISO_OK);
  recording r = record(corpus, &options, 0, 60, NULL);
  for (int64_t after = 0; after < 60; after += 9) check_trace(corpus, &r, after);
  recording_free(&r);
  iso_corpus_close(&corpus);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_trace_names_what_batches_held),
      cmocka_unit_test(test_trace_of_padded_batches),
      cmocka_unit_test(test_trace_passes_over_what_was_left_out),
      cmocka_unit_test(test_trace_of_json_lines),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
