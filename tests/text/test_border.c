/* SPDX-License-Identifier: Apache-2.0
 *
 * Borders and crews: a text cut at certain borders gives the ids of the whole, for every family of tokenizers, with
 * tokens that reach over spaces, take them, or need normalized text. */
#include "helper.h"

#include <pthread.h>

typedef struct ids {
  int32_t *at;
  size_t count, capacity;
} ids;

static iso_status append(void *context, const int32_t *from, size_t count) {
  ids *list = context;
  if (list->count + count > list->capacity) {
    list->capacity = 2 * (list->count + count) + 64;
    list->at = realloc(list->at, list->capacity * sizeof *list->at);
    assert_non_null(list->at);
  }
  if (count) memcpy(list->at + list->count, from, count * sizeof *from);
  list->count += count;
  return ISO_OK;
}

static void assert_same(const ids *cut, const int32_t *whole, size_t count, const char *what) {
  for (size_t i = 0; i < count && i < cut->count; i++)
    if (cut->at[i] != whole[i]) fail_msg("%s: id %zu is %d, not %d", what, i, cut->at[i], whole[i]);
  if (cut->count != count) fail_msg("%s: %zu ids, not %zu", what, cut->count, count);
}

/* Cuts at each border, or at some by chance, and compares. Returns how many were cut at. */
static size_t check_cuts(iso_encoder *encoder, const iso_tokenizer *t, const char *text, size_t length, bool special,
                         uint32_t one_in, uint64_t *counter, const char *what) {
  static ids cut;
  static int32_t *part;
  static size_t capacity;
  size_t cuts = 0;
  cut.count = 0;
  for (size_t at = 0; at < length;) {
    size_t stop = at, count;
    do stop = iso_text_border(t, text, stop + 1, length, special);
    while (stop < length && pick(counter, one_in) != 0);
    assert_true(stop > at && stop <= length);
    assert_int_equal(iso_encode_part(encoder, text + at, stop - at, special, at == 0, &part, &capacity, &count),
                     ISO_OK);
    assert_int_equal(append(&cut, part, count), ISO_OK);
    cuts += stop < length;
    at = stop;
  }
  const int32_t *whole;
  size_t count;
  assert_int_equal(iso_encode(encoder, text, length, special, false, &whole, &count), ISO_OK);
  assert_same(&cut, whole, count, what);
  return cuts;
}

/* What trips tokenizers beside what append_random gives: added tokens of the tests' tokenizers, whole and in part. */
static void append_hostile(uint64_t *counter, iso_string *out) {
  static const char *const pieces[] = {"<a b>",
                                       "<a",
                                       " b>",
                                       "ab cd",
                                       "ab",
                                       " cd",
                                       "x y z",
                                       "x y",
                                       " y z",
                                       "<strip>",
                                       "<left>",
                                       "<end>",
                                       "<|endoftext|>",
                                       "</s>",
                                       "<s>",
                                       "  <end>",
                                       "\xE2\x96\x81",
                                       "\xE2\x96\x81\xE2\x96\x81",
                                       "e\xCC\x81",
                                       " \xCC\x81",
                                       "\xCC\x81",
                                       "\xEA\xB0\x80\xE1\x86\xA8",
                                       "\xE2\x84\xAA",
                                       "\xE2\x80\x80",
                                       "\xCD\xBE",
                                       "'s ",
                                       "'ll ",
                                       "'l l",
                                       "'",
                                       "\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C",
                                       "\xE3\x80\x82",
                                       "123456",
                                       " 12",
                                       "1 2",
                                       "a\n",
                                       ".\n",
                                       "\n\n",
                                       " \n",
                                       "\t",
                                       "word ",
                                       "the cat ",
                                       "and, ",
                                       "don't ",
                                       "I'LL ",
                                       "\xC3\xA9 ",
                                       "\xE1\x9A\x80",
                                       "\xE0\xA5\x98 ",
                                       "\xE0\xA5\x98,",
                                       "\xE0\xA5\x98,.",
                                       "sume\xCC\x81"};
  if (pick(counter, 2)) {
    append_random(counter, out);
    return;
  }
  const char *piece = pieces[pick(counter, ISO_COUNT(pieces))];
  iso_string_append(out, piece, strlen(piece));
}

static void check_open(const iso_tokenizer *t, bool has_borders, const char *what) {
  iso_encoder *encoder = iso_encoder_create(t);
  assert_non_null(encoder);
  uint64_t counter = 1;
  size_t cuts = 0;
  iso_string text = {0};
  for (int round = 0; round < 1000; round++) {
    if (text.data) text.length = 0;
    const uint32_t characters = 1 + pick(&counter, 120);
    for (uint32_t i = 0; i < characters; i++) append_hostile(&counter, &text);
    for (int special = 0; special < 2; special++)
      cuts += check_cuts(encoder, t, text.data, text.length, special, 1 + pick(&counter, 3), &counter, what);
  }
  assert_int_equal(iso_tokenizer_has_borders(t), has_borders);
  if (has_borders ? cuts < 3000 : cuts > 0) fail_msg("%s: %zu borders in random text", what, cuts);
  static const char english[] = "It was the best of times, it was the worst of times\n";
  const size_t length = sizeof english - 1;
  cuts = check_cuts(encoder, t, english, length, true, 1, &counter, what);
  if (has_borders && cuts < 4) fail_msg("%s: %zu borders in a line of English", what, cuts);
  iso_string_fini(&text);
  iso_encoder_destroy(&encoder);
}

static void check_tokenizer(const char *path, bool has_borders, const char *what) {
  iso_tokenizer *t;
  assert_int_equal(iso_tokenizer_open(path, "", &t), ISO_OK);
  check_open(t, has_borders, what);
  iso_tokenizer_close(&t);
}

/* User-defined pieces are found in text whose spaces are U+2581 already. */
static void test_fixed_pieces(void **state) {
  (void)state;
  iso_tokenizer *t;
  assert_int_equal(iso_tokenizer_open(ISO_TEST_DATA "/text/mistral-v3/tokenizer.model", "", &t), ISO_OK);
  char *pieces[] = {"ab\xE2\x96\x81"
                    "cd",
                    "y\xE2\x96\x81",
                    "the\xE2\x96\x81"
                    "cat"};
  for (size_t i = 0; i < ISO_COUNT(pieces); i++) {
    const iso_added_token token = {.content = pieces[i], .length = strlen(pieces[i]), .id = 7 + (int32_t)i};
    assert_int_equal(iso_added_add(&t->sentencepiece->fixed, &token), ISO_OK);
  }
  assert_int_equal(iso_added_finish(&t->sentencepiece->fixed, t), ISO_OK);
  check_open(t, true, "mistral with user-defined pieces");
  iso_tokenizer_close(&t);
}

static void test_known_families(void **state) {
  (void)state;
  check_tokenizer(ISO_TEST_DATA "/text/gpt2", true, "gpt2");
  check_tokenizer(ISO_TEST_DATA "/text/cl100k_base", true, "cl100k");
  check_tokenizer(ISO_TEST_DATA "/text/o200k_base", true, "o200k");
  check_tokenizer(ISO_TEST_DATA "/text/qwen3", true, "qwen3");
  check_tokenizer(ISO_TEST_DATA "/text/mistral-v3/tokenizer.json", true, "mistral, json");
  check_tokenizer(ISO_TEST_DATA "/text/mistral-v3/tokenizer.model", true, "mistral, model");
  check_tokenizer(ISO_TEST_DATA "/text/sentencepiece/legacy.json", true, "legacy.json");
  check_tokenizer(ISO_TEST_DATA "/text/sentencepiece/split.json", true, "split.json");
  check_tokenizer(ISO_TEST_DATA "/text/sentencepiece/nfkc.model", false, "nfkc.model");
  check_tokenizer(ISO_TEST_DATA "/text/sentencepiece/ties.model", true, "ties.model");
}

static int64_t vocabulary_of(const char *folder) {
  iso_tokenizer *t;
  assert_int_equal(iso_tokenizer_open(folder, "", &t), ISO_OK);
  const int64_t count = iso_tokenizer_vocabulary(t);
  iso_tokenizer_close(&t);
  return count;
}

/* Replaces in *text, which is malloc'd. */
static void edit(char **text, const char *from, const char *to) {
  char *edited = replaced(*text, from, to);
  free(*text);
  *text = edited;
}

/* A small one with added tokens that hold, take or border on spaces; with NFC; with digits cut first. */
static void make_tokenizer(const char *folder, const char *pattern, bool nfc, bool digits) {
  static const struct {
    const char *content, *lstrip, *rstrip, *normalized;
  } tokens[] = {
      {"<a b>", "false", "false", "false"},           {"ab cd", "false", "false", "true"},
      {"<strip>", "true", "true", "false"},           {"<left>", "true", "false", "true"},
      {"  <end>", "false", "true", "false"},          {"x y z", "false", "true", "true"},
      {"\xE2\x84\xAA and", "false", "false", "true"},
  };
  static const char sample[] =
      "the cat and the hat and the bat sat on the mat; that's it, we'll see 123 times, re\xCC\x81sume\xCC\x81, "
      "re\xCC\x81sume\xCC\x81,. \xE0\xA4\x95\xE0\xA4\xBC,. \xE0\xA4\x95\xE0\xA4\xBC,.\n";
  const char *texts[1] = {sample};
  size_t lengths[1] = {sizeof sample - 1}, length;
  char path[96], *json;
  iso_bpe_options options = {290, pattern, "<|endoftext|>"};
  assert_int_equal(iso_bpe_train(&options, texts, lengths, 1, folder), ISO_OK);
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  assert_int_equal(iso_file_read(path, &json, &length), ISO_OK);
  int64_t next = vocabulary_of(folder);
  iso_string more = {0};
  iso_string_printf(&more, "\"special\": true}");
  for (size_t i = 0; i < ISO_COUNT(tokens); i++)
    iso_string_printf(&more,
                      ",\n{\"id\": %lld, \"content\": \"%s\", \"single_word\": false, \"lstrip\": %s, \"rstrip\": %s, "
                      "\"normalized\": %s, \"special\": false}",
                      (long long)next++, tokens[i].content, tokens[i].lstrip, tokens[i].rstrip, tokens[i].normalized);
  edit(&json, "\"special\": true}", more.data);
  if (nfc) edit(&json, "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}");
  if (digits && !strstr(json, "\"pretokenizers\": [")) {
    edit(&json, "\"pre_tokenizer\": {", "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{");
    edit(&json, ",\n  \"post_processor\"", "]},\n  \"post_processor\"");
  }
  if (digits)
    edit(&json, "\"pretokenizers\": [", "\"pretokenizers\": [{\"type\": \"Digits\", \"individual_digits\": true}, ");
  write_file(folder, "tokenizer.json", json, strlen(json));
  iso_string_fini(&more);
  free(json);
}

static void test_added_tokens(void **state) {
  (void)state;
  static const char *const patterns[] = {"gpt2", "cl100k", "qwen2", "o200k"};
  for (size_t i = 0; i < ISO_COUNT(patterns); i++)
    for (int variant = 0; variant < 3; variant++) {
      char folder[64], what[64];
      snprintf(what, sizeof what, "%s with added tokens, variant %d", patterns[i], variant);
      make_folder(folder);
      make_tokenizer(folder, patterns[i], variant > 0, variant > 1);
      check_tokenizer(folder, true, what);
      remove_folder(folder);
    }
}

/* Text behind an added token is given a U+2581 of its own by some vocabularies, also before a space: no place to cut.
 */
static void test_prepended_marks(void **state) {
  (void)state;
  static const char *const normalizers[][2] = {
      {"{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},{\"type\":"
       "\"Replace\","
       "\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}]}",
       "null"},
      {"null",
       "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"always\",\"split\":false}"}};
  for (size_t i = 0; i < ISO_COUNT(normalizers); i++) {
    char folder[64], path[96], before[160], *json;
    size_t length;
    uint64_t counter = 5;
    iso_tokenizer *t;
    make_folder(folder);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(iso_file_read(ISO_TEST_DATA "/text/mistral-v3/tokenizer.json", &json, &length), ISO_OK);
    snprintf(before, sizeof before, "\"pre_tokenizer\":%s", normalizers[1][1]);
    char *scheme = strstr(before, "always");
    memcpy(scheme, "first\"", 6); /* as the file has it: one letter less */
    memmove(scheme + 6, scheme + 7, strlen(scheme + 7) + 1);
    iso_string normalizer = {0}, splitter = {0};
    iso_string_printf(&normalizer, "\"normalizer\":%s", normalizers[i][0]);
    iso_string_printf(&splitter, "\"pre_tokenizer\":%s", normalizers[i][1]);
    edit(&json, before, splitter.data);
    edit(&json, "\"normalizer\":null", normalizer.data);
    write_file(folder, "tokenizer.json", json, strlen(json));
    assert_int_equal(iso_tokenizer_open(path, "", &t), ISO_OK);
    iso_encoder *encoder = iso_encoder_create(t);
    static const char text[] = "[INST] x[INST] x</s> y [INST]z [/INST] a b</s>\n c [INST] x";
    size_t cuts = 0;
    for (int round = 0; round < 100; round++)
      cuts += check_cuts(encoder, t, text, sizeof text - 1, true, 1 + pick(&counter, 3), &counter, "marks in front");
    assert_true(cuts >= 100);
    iso_encoder_destroy(&encoder);
    check_open(t, true, "marks in front");
    iso_tokenizer_close(&t);
    iso_string_fini(&normalizer);
    iso_string_fini(&splitter);
    free(json);
    remove_folder(folder);
  }
}

/* A pattern that nobody knows has none, and texts are cut nowhere between the letters of a script without spaces. */
static void test_no_borders(void **state) {
  (void)state;
  iso_tokenizer *t;
  char folder[64], path[96];
  make_folder(folder);
  char *json = train_small(folder);
  free(json);
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  assert_int_equal(iso_tokenizer_open(path, "", &t), ISO_OK);
  static const char no_space[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaa'tbbbbbbb''''\xE4\xBD\xA0\xE5\xA5\xBD";
  assert_int_equal(iso_text_border(t, no_space, 0, sizeof no_space - 1, false), sizeof no_space - 1);
  assert_int_equal(iso_text_border(t, "", 0, 0, false), 0);
  /* Ill-formed bytes are no characters: no place beside one. */
  assert_int_equal(iso_text_border(t, "\xE3\x80 \xC1\x81,a \xF5", 0, 9, false), 7);
  assert_int_equal(iso_text_border(t, "a\xE3\x80", 0, 3, false), 3);
  iso_tokenizer_close(&t);
  size_t length;
  assert_int_equal(iso_file_read(ISO_TEST_DATA "/text/cl100k_base/cl100k_base.tiktoken", &json, &length), ISO_OK);
  write_file(folder, "own.tiktoken", json, length);
  free(json);
  snprintf(path, sizeof path, "%s/own.tiktoken", folder);
  assert_int_equal(iso_tokenizer_open(path, "\\w+|\\s+|[^\\w\\s]+", &t), ISO_OK);
  assert_false(iso_tokenizer_has_borders(t));
  assert_int_equal(iso_text_border(t, "a b c", 0, 5, false), 5);
  iso_tokenizer_close(&t);
  remove_folder(folder);
}

/* ---- crews ---- */

typedef struct helper {
  iso_crew *crew;
  const iso_tokenizer *tokenizer;
} helper;

static void *help(void *argument) {
  helper *h = argument;
  iso_encoder *encoder = iso_encoder_create(h->tokenizer);
  iso_crew_leave(h->crew);
  if (encoder) iso_crew_help(h->crew, encoder);
  iso_encoder_destroy(&encoder);
  return NULL;
}

typedef struct source {
  const char *text;
  size_t next, reads, fail_at;
} source;

static iso_status read_source(void *context, size_t offset, size_t bytes, char *to) {
  source *s = context;
  if (offset != s->next) return iso_fail(ISO_ERR_INTERNAL, "read at %zu, not %zu", offset, s->next);
  if (offset + bytes > s->fail_at) return ISO_ERR_IO;
  memcpy(to, s->text + offset, bytes);
  s->next = offset + bytes;
  s->reads++;
  return ISO_OK;
}

/* Status of encoding the text by so many threads. */
static iso_status run_crew(const iso_tokenizer *t, int threads, const iso_long_text *text, ids *out, size_t *valid) {
  pthread_t started[8];
  size_t count;
  helper h = {iso_crew_create(t, threads), t};
  iso_encoder *encoder = iso_encoder_create(t);
  assert_non_null(h.crew);
  assert_non_null(encoder);
  for (int i = 1; i < threads; i++) assert_int_equal(pthread_create(&started[i], NULL, help, &h), 0);
  out->count = 0;
  const iso_ids_sink sink = {append, out};
  const iso_status status = iso_crew_encode(h.crew, encoder, text, false, &sink, &count, valid);
  if (status == ISO_OK && *valid == text->length) assert_int_equal(count, out->count);
  iso_crew_leave(h.crew);
  iso_crew_help(h.crew, encoder);
  for (int i = 1; i < threads; i++) pthread_join(started[i], NULL);
  iso_encoder_destroy(&encoder);
  iso_crew_destroy(&h.crew);
  return status;
}

static void check_crew(const iso_tokenizer *t, const char *text, size_t length, const char *what) {
  iso_encoder *encoder = iso_encoder_create(t);
  assert_non_null(encoder);
  const int32_t *whole;
  size_t count, valid;
  ids out = {0};
  assert_int_equal(iso_encode(encoder, text, length, false, false, &whole, &count), ISO_OK);
  for (int threads = 1; threads <= 4; threads += threads) {
    source from = {text, 0, 0, SIZE_MAX};
    const iso_long_text held = {.text = text, .length = length};
    const iso_long_text read = {.length = length, .read = read_source, .context = &from};
    assert_int_equal(run_crew(t, threads, &held, &out, &valid), ISO_OK);
    assert_int_equal(valid, length);
    assert_same(&out, whole, count, what);
    assert_int_equal(run_crew(t, threads, &read, &out, &valid), ISO_OK);
    assert_int_equal(valid, length);
    assert_int_equal(from.next, length);
    assert_same(&out, whole, count, what);
  }
  free(out.at);
  iso_encoder_destroy(&encoder);
}

/* English with Chinese and numbers in it, from `from` on without a place to cut at for `gap` bytes. */
static void make_text(iso_string *out, size_t length, size_t from, size_t gap) {
  uint64_t counter = 3;
  if (out->data) out->length = 0;
  while (out->length < length) {
    if (out->length >= from && gap > 0) {
      for (size_t i = 0; i < gap; i++) iso_string_append(out, &"abcdefghij"[pick(&counter, 10)], 1);
      gap = 0;
    }
    append_hostile(&counter, out);
    if (pick(&counter, 4) == 0) iso_string_append(out, " the end", 8);
  }
}

static void test_crew(void **state) {
  (void)state;
  static const char *const tokenizers[] = {"/text/gpt2", "/text/qwen3", "/text/mistral-v3/tokenizer.model",
                                           "/text/sentencepiece/nfkc.model"};
  iso_string text = {0};
  for (size_t i = 0; i < ISO_COUNT(tokenizers); i++) {
    char path[512];
    iso_tokenizer *t;
    snprintf(path, sizeof path, "%s%s", ISO_TEST_DATA, tokenizers[i]);
    assert_int_equal(iso_tokenizer_open(path, "", &t), ISO_OK);
    static const struct {
      size_t length, from, gap;
    } texts[] = {{1, SIZE_MAX, 0},
                 {1100000, SIZE_MAX, 0},
                 {1000000, 300000, 500000},
                 {500000, 0, 500000},
                 {700000, 400000, 1 << 17}};
    for (size_t k = 0; k < ISO_COUNT(texts); k++) {
      make_text(&text, texts[k].length, texts[k].from, texts[k].gap);
      check_crew(t, text.data, text.length, tokenizers[i]);
    }
    iso_tokenizer_close(&t);
  }
  iso_string_fini(&text);
}

/* A part larger than any that is held: 20 MB without a place to cut at, with text before and behind. */
static void test_crew_without_borders(void **state) {
  (void)state;
  iso_tokenizer *t;
  iso_string text = {0};
  assert_int_equal(iso_tokenizer_open(ISO_TEST_DATA "/text/gpt2", "", &t), ISO_OK);
  make_text(&text, 400000, SIZE_MAX, 0);
  const size_t gap = 9 << 20;
  char *letters = malloc(gap);
  assert_non_null(letters);
  memset(letters, 'a', gap);
  iso_string_append(&text, letters, gap);
  iso_string_append(&text, " and, ", 6);
  const size_t whole = iso_text_border(t, text.data, 300000, 400000, false);
  assert_true(whole < 400000);
  iso_string_append(&text, text.data, whole);
  check_crew(t, text.data, text.length, "gpt2, a gap");
  free(letters);
  iso_string_fini(&text);
  iso_tokenizer_close(&t);
}

static void test_crew_failures(void **state) {
  (void)state;
  iso_tokenizer *t;
  iso_string text = {0};
  ids out = {0};
  size_t valid;
  assert_int_equal(iso_tokenizer_open(ISO_TEST_DATA "/text/gpt2", "", &t), ISO_OK);
  make_text(&text, 900000, SIZE_MAX, 0);
  const char *bad[] = {"\xFF", "\xE3\x80x", "\xC1\x81"};
  static const size_t places[] = {0, 5, 131072, 131073, 899990};
  for (size_t i = 0; i < ISO_COUNT(places); i++)
    for (size_t k = 0; k < ISO_COUNT(bad); k++)
      for (int threads = 1; threads <= 3; threads += 2) {
        char *copy = malloc(text.length);
        assert_non_null(copy);
        memcpy(copy, text.data, text.length);
        memcpy(copy + places[i], bad[k], strlen(bad[k]));
        source from = {copy, 0, 0, SIZE_MAX};
        const iso_long_text read = {.length = text.length, .read = read_source, .context = &from};
        assert_int_equal(run_crew(t, threads, &read, &out, &valid), ISO_OK);
        assert_int_equal(valid, iso_utf8_valid_prefix(copy, text.length));
        assert_true(valid < text.length);
        free(copy);
      }
  source from = {text.data, 0, 0, 600000};
  const iso_long_text read = {.length = text.length, .read = read_source, .context = &from};
  for (int threads = 1; threads <= 3; threads++) {
    from.next = 0;
    assert_int_equal(run_crew(t, threads, &read, &out, &valid), ISO_ERR_IO);
  }
  free(out.at);
  iso_string_fini(&text);
  iso_tokenizer_close(&t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_known_families),       cmocka_unit_test(test_added_tokens),
      cmocka_unit_test(test_prepended_marks),      cmocka_unit_test(test_fixed_pieces),
      cmocka_unit_test(test_no_borders),           cmocka_unit_test(test_crew),
      cmocka_unit_test(test_crew_without_borders), cmocka_unit_test(test_crew_failures),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
