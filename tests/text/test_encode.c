/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding and decoding: the merge loop against a naive one, hostile lengths, invalid UTF-8, added tokens, NFC. */
#include "helper.h"

#include <utf8proc.h>

static iso_tokenizer *open_ok(const char *path, const char *pattern) {
  iso_tokenizer *tokenizer;
  assert_int_equal(iso_tokenizer_open(path, pattern, &tokenizer), ISO_OK);
  return tokenizer;
}

/* ids written as "1 2 3". */
static void encode(iso_encoder *encoder, const char *text, size_t length, bool special, iso_string *out) {
  const int32_t *ids;
  size_t count;
  assert_int_equal(iso_encode(encoder, text, length, special, true, &ids, &count), ISO_OK);
  if (out->data) out->length = 0;
  iso_string_append(out, "", 0);
  for (size_t i = 0; i < count; i++) iso_string_printf(out, i ? " %d" : "%d", ids[i]);
}

/* ---- merging ---- */

static size_t merge_naive(const iso_pairs *pairs, int32_t *ids, size_t count) {
  for (;;) {
    const iso_pair *best = NULL;
    size_t place = 0;
    for (size_t i = 0; i + 1 < count; i++) {
      const iso_pair *pair = iso_pairs_find(pairs, ids[i], ids[i + 1]);
      if (pair && (!best || pair->rank < best->rank)) best = pair, place = i;
    }
    if (!best) return count;
    ids[place] = best->id;
    memmove(ids + place + 1, ids + place + 2, (count - place - 2) * sizeof *ids);
    count--;
  }
}

static void test_merge_against_naive(void **state) {
  iso_tokenizer *tokenizer = open_ok(ISO_TEST_DATA "/text/gpt2", "");
  static const char *const alphabets[] = {"a", "ab", "the ", "etaoin shrdlu", "=-_^", "\xE3\x81\x82\x84"};
  uint64_t counter = 0;
  iso_bpe_scratch scratch = {0};
  for (int round = 0; round < 600; round++) {
    const char *alphabet = alphabets[pick(&counter, ISO_COUNT(alphabets))];
    size_t count = 1 + pick(&counter, 150);
    int32_t ids[150], expected[150];
    for (size_t i = 0; i < count; i++) {
      uint8_t byte = (uint8_t)alphabet[pick(&counter, (uint32_t)strlen(alphabet))];
      ids[i] = expected[i] = tokenizer->vocabulary.byte_ids[byte];
    }
    size_t naive = merge_naive(&tokenizer->pairs, expected, count);
    assert_int_equal(iso_bpe_merge(&tokenizer->pairs, ids, count, &scratch), naive);
    assert_memory_equal(ids, expected, naive * sizeof *ids);
  }
  free(scratch.memory);
  iso_tokenizer_close(&tokenizer);
}

static void test_hostile_lengths(void **state) {
  static const char *const files[] = {ISO_TEST_DATA "/text/gpt2", ISO_TEST_DATA "/text/cl100k_base"};
  enum { LENGTH = 1000000 };
  char *text = malloc(LENGTH);
  for (size_t f = 0; f < ISO_COUNT(files); f++) {
    iso_tokenizer *tokenizer = open_ok(files[f], "");
    iso_encoder *encoder = iso_encoder_create(tokenizer);
    iso_string decoded = {0};
    for (const char *c = "a^ -"; *c; c++) {
      const int32_t *ids;
      size_t count;
      memset(text, *c, LENGTH);
      double start = iso_clock_s();
      assert_int_equal(iso_encode(encoder, text, LENGTH, true, false, &ids, &count), ISO_OK);
      assert_true(iso_clock_s() - start < 10); /* 0.1 s; a quadratic loop takes minutes */
      if (decoded.data) decoded.length = 0;
      assert_int_equal(iso_decode(tokenizer, ids, count, &decoded), ISO_OK);
      assert_int_equal(decoded.length, LENGTH);
      assert_memory_equal(decoded.data, text, LENGTH);
    }
    iso_string_fini(&decoded);
    iso_encoder_destroy(&encoder);
    iso_tokenizer_close(&tokenizer);
  }
  free(text);
}

/* The cache changes nothing: a fresh encoder and one that has seen much give the same ids; text comes back. */
static void test_cache_and_round_trip(void **state) {
  iso_tokenizer *tokenizer = open_ok(ISO_TEST_DATA "/text/cl100k_base", "");
  iso_encoder *old = iso_encoder_create(tokenizer);
  iso_string text = {0}, a = {0}, b = {0}, decoded = {0};
  uint64_t counter = 1000000;
  for (int round = 0; round < 300; round++) {
    random_text(&counter, pick(&counter, 200), &text);
    encode(old, text.data, text.length, false, &a);
    if (round % 10 == 0) {
      iso_encoder *fresh = iso_encoder_create(tokenizer);
      encode(fresh, text.data, text.length, false, &b);
      assert_string_equal(a.data, b.data);
      iso_encoder_destroy(&fresh);
    }
    const int32_t *ids;
    size_t count;
    assert_int_equal(iso_encode(old, text.data, text.length, true, false, &ids, &count), ISO_OK);
    if (decoded.data) decoded.length = 0;
    assert_int_equal(iso_decode(tokenizer, ids, count, &decoded), ISO_OK);
    assert_string_equal(decoded.data, text.data);
  }
  iso_string_fini(&text);
  iso_string_fini(&a);
  iso_string_fini(&b);
  iso_string_fini(&decoded);
  iso_encoder_destroy(&old);
  iso_tokenizer_close(&tokenizer);
}

typedef struct collected {
  int32_t *ids;
  size_t count, largest;
  int blocks, refuse_at; /* block that is refused, from 1; 0: none */
} collected;

static iso_status collect(void *context, const int32_t *ids, size_t count) {
  collected *c = context;
  if (++c->blocks == c->refuse_at) return ISO_ERR_BUSY;
  memcpy(c->ids + c->count, ids, count * sizeof *ids);
  c->count += count;
  if (count > c->largest) c->largest = count;
  return ISO_OK;
}

/* A sink gets the same ids, in blocks; when it refuses one, that is what the encoding returns, and nothing is left. */
static void test_sink(void **state) {
  static const char *const folders[] = {ISO_TEST_DATA "/text/cl100k_base", ISO_TEST_DATA "/text/mistral-v3"};
  uint64_t counter = 7;
  iso_string text = {0}, part = {0};
  while (text.length < 600000) {
    random_text(&counter, pick(&counter, 200), &part);
    iso_string_append(&text, part.data, part.length);
  }
  for (size_t f = 0; f < ISO_COUNT(folders); f++) {
    iso_tokenizer *tokenizer = open_ok(folders[f], "");
    iso_encoder *plain = iso_encoder_create(tokenizer), *encoder = iso_encoder_create(tokenizer);
    const int32_t *ids;
    size_t count, handed;
    assert_int_equal(iso_encode(plain, text.data, text.length, true, false, &ids, &count), ISO_OK);
    collected c = {.ids = malloc((text.length + 1) * sizeof *ids)};
    const iso_ids_sink sink = {collect, &c};
    for (int refuse_at = f == 0 ? 2 : 1; refuse_at >= 0; refuse_at -= f == 0 ? 2 : 1) {
      c = (collected){.ids = c.ids, .refuse_at = refuse_at};
      const iso_status status = iso_encode_to(encoder, text.data, text.length, true, &sink, &handed);
      assert_int_equal(status, refuse_at ? ISO_ERR_BUSY : ISO_OK);
    }
    assert_int_equal(handed, count);
    assert_int_equal(c.count, count);
    assert_memory_equal(c.ids, ids, count * sizeof *ids);
    if (f == 0) assert_true(count > 200000 && c.largest < 70000 && c.blocks > 2);
    assert_int_equal(iso_encode_to(encoder, "", 0, true, &sink, &handed), ISO_OK);
    assert_int_equal(handed, 0);
    free(c.ids);
    iso_encoder_destroy(&plain);
    iso_encoder_destroy(&encoder);
    iso_tokenizer_close(&tokenizer);
  }
  iso_string_fini(&text);
  iso_string_fini(&part);
}

/* Threads share a tokenizer, each with an encoder of its own. */
typedef struct shared_work {
  iso_tokenizer *tokenizer;
  const iso_string *text;
  int32_t *ids[4];
  size_t counts[4];
} shared_work;

static void encode_on_thread(void *argument, int thread) {
  shared_work *work = argument;
  iso_encoder *encoder = iso_encoder_create(work->tokenizer);
  const int32_t *ids;
  size_t count;
  if (iso_encode(encoder, work->text->data, work->text->length, true, true, &ids, &count) == ISO_OK) {
    work->ids[thread] = malloc(count * sizeof *ids);
    memcpy(work->ids[thread], ids, count * sizeof *ids);
    work->counts[thread] = count;
  }
  iso_encoder_destroy(&encoder);
}

static void test_threads(void **state) {
  static const char *const files[] = {ISO_TEST_DATA "/text/cl100k_base", ISO_TEST_DATA "/text/qwen3"};
  iso_string text = {0};
  uint64_t counter = 31000000;
  random_text(&counter, 20000, &text);
  iso_team *team = iso_team_create(4, false);
  for (size_t f = 0; f < ISO_COUNT(files); f++) {
    shared_work work = {.tokenizer = open_ok(files[f], ""), .text = &text};
    iso_team_run(team, encode_on_thread, &work);
    for (int thread = 0; thread < 4; thread++) {
      assert_true(work.counts[thread] > 0);
      assert_int_equal(work.counts[thread], work.counts[0]);
      assert_memory_equal(work.ids[thread], work.ids[0], work.counts[0] * sizeof **work.ids);
    }
    for (int thread = 0; thread < 4; thread++) free(work.ids[thread]);
    iso_tokenizer_close(&work.tokenizer);
  }
  iso_team_destroy(&team);
  iso_string_fini(&text);
}

/* ---- invalid text ---- */

static void test_invalid_utf8(void **state) {
  static const struct {
    const char *bytes, *repaired;
    size_t valid;
  } rows[] = {{"ab\x80"
               "c",
               "ab\xEF\xBF\xBD"
               "c",
               2},
              {"\xC3", "\xEF\xBF\xBD", 0},
              {"\xE2\x82"
               "A",
               "\xEF\xBF\xBD"
               "A",
               0},
              {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 0},
              {"\xF0\x9F\x98", "\xEF\xBF\xBD", 0},
              {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 0},
              {"\xC0\xAF", "\xEF\xBF\xBD\xEF\xBF\xBD", 0},
              {"abcdefgh\xF0\x9F\x98\x80\xFF", "abcdefgh\xF0\x9F\x98\x80\xEF\xBF\xBD", 12}};
  iso_tokenizer *tokenizer = open_ok(ISO_TEST_DATA "/text/gpt2", "");
  iso_encoder *encoder = iso_encoder_create(tokenizer);
  iso_string out = {0}, a = {0}, b = {0};
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    size_t length = strlen(rows[i].bytes);
    assert_int_equal(iso_utf8_valid_prefix(rows[i].bytes, length), rows[i].valid);
    if (out.data) out.length = 0;
    iso_utf8_replace(rows[i].bytes, length, &out);
    assert_string_equal(out.data, rows[i].repaired);
    encode(encoder, rows[i].bytes, length, false, &a);
    encode(encoder, rows[i].repaired, strlen(rows[i].repaired), false, &b);
    assert_string_equal(a.data, b.data);
    const int32_t *ids;
    size_t count;
    char expected[64];
    iso_log_quiet(true);
    assert_int_equal(iso_encode(encoder, rows[i].bytes, length, false, false, &ids, &count), ISO_ERR_FORMAT);
    iso_log_quiet(false);
    snprintf(expected, sizeof expected, "not valid UTF-8 at byte %zu", rows[i].valid);
    assert_non_null(strstr(iso_last_error(), expected));
  }
  iso_string_fini(&out);
  iso_string_fini(&a);
  iso_string_fini(&b);
  iso_encoder_destroy(&encoder);
  iso_tokenizer_close(&tokenizer);
}

static void test_empty_text(void **state) {
  iso_tokenizer *tokenizer = open_ok(ISO_TEST_DATA "/text/gpt2", "");
  iso_encoder *encoder = iso_encoder_create(tokenizer);
  const int32_t *ids;
  size_t count;
  assert_int_equal(iso_encode(encoder, "", 0, true, false, &ids, &count), ISO_OK);
  assert_int_equal(count, 0);
  assert_non_null(ids);
  assert_int_equal(iso_encode(encoder, "", 0, false, false, &ids, &count), ISO_OK);
  assert_int_equal(count, 0);
  iso_string out = {0};
  int32_t bad[] = {15496, 50257};
  iso_log_quiet(true);
  assert_int_equal(iso_decode(tokenizer, bad, 2, &out), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "id 50257 at place 1"));
  bad[1] = -1;
  assert_int_equal(iso_decode(tokenizer, bad, 2, &out), ISO_ERR_MISMATCH);
  iso_log_quiet(false);
  iso_string_fini(&out);
  iso_encoder_destroy(&encoder);
  iso_tokenizer_close(&tokenizer);
}

/* ---- variations of a small tokenizer.json ---- */

/* A small tokenizer with `from` replaced by `to` in its file. */
static iso_tokenizer *vary(const char *folder, const char *from, const char *to) {
  char path[128], *json = train_small(folder), *changed = replaced(json, from, to);
  write_file(folder, "tokenizer.json", changed, strlen(changed));
  free(json);
  free(changed);
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  return open_ok(path, "");
}

#define ADDED                                                                                                          \
  ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}"

static void check_pieces(iso_tokenizer *tokenizer, const char *text, const char *expected) {
  iso_encoder *encoder = iso_encoder_create(tokenizer);
  const int32_t *ids;
  size_t count;
  iso_string out = {0};
  assert_int_equal(iso_encode(encoder, text, strlen(text), true, false, &ids, &count), ISO_OK);
  for (size_t i = 0; i < count; i++) {
    size_t length;
    const char *bytes = iso_tokenizer_bytes(tokenizer, ids[i], &length);
    if (i) iso_string_append(&out, "|", 1);
    iso_string_append(&out, bytes, length);
  }
  assert_string_equal(out.data ? out.data : "", expected);
  iso_string_fini(&out);
  iso_encoder_destroy(&encoder);
}

/* Leftmost, then longest; raw tokens before normalized ones; white space swallowed on request. */
static void test_added_tokens(void **state) {
  char folder[64];
  make_folder(folder);
  iso_tokenizer *t =
      vary(folder, ADDED "\n",
           ADDED ",\n{\"id\": 300, \"content\": \"<|end\"" ADDED ",\n"
                 "{\"id\": 301, \"content\": \"[M]\", \"single_word\": false, \"lstrip\": true, \"rstrip\": true, "
                 "\"normalized\": false, \"special\": true},\n"
                 "{\"id\": 302, \"content\": \"x y\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                 "\"normalized\": true, \"special\": false},\n"
                 "{\"id\": 303, \"content\": \"y<\"" ADDED "\n");
  assert_int_equal(iso_tokenizer_vocabulary(t), 304);
  check_pieces(t, "<|endoftext|><|end<|endoftext", "<|endoftext|>|<|end|<|end|o|f|t|e|x|t");
  check_pieces(t, "Z \xC2\xA0[M] \n\xE3\x80\x80Z", "Z|[M]|Z");
  check_pieces(t, "[M]  [M]", "[M]|[M]");
  check_pieces(t, "Zx yZ", "Z|x y|Z");
  check_pieces(t, "x y<", "x| |y<"); /* the raw token wins though it begins later */
  iso_encoder *encoder = iso_encoder_create(t);
  const int32_t *ids;
  size_t count;
  assert_int_equal(iso_encode(encoder, "[M]", 3, false, false, &ids, &count), ISO_OK);
  assert_int_equal(count, 3); /* as text */
  iso_encoder_destroy(&encoder);
  iso_tokenizer_close(&t);
  remove_folder(folder);
}

#define BYTE_LEVEL                                                                                                     \
  "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": "  \
  "true}"

static void test_digits_and_regex_steps(void **state) {
  char folder[64];
  make_folder(folder);
  iso_tokenizer *t = vary(
      folder, BYTE_LEVEL,
      "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", "
      "\"individual_digits\": true}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true}]}");
  check_pieces(t, "at 12", "at| |1|2");
  iso_tokenizer_close(&t);
  t = vary(
      folder, BYTE_LEVEL,
      "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
      "\"h|ca\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": "
      "false, "
      "\"trim_offsets\": true, \"use_regex\": false}]}");
  check_pieces(t, "the hat", "t|h|e| |h|at");
  iso_tokenizer_close(&t);
  t = vary(folder, "\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}");
  check_pieces(t, "e\xCC\x81", "\xC3|\xA9");
  check_pieces(t, "<|endoftext|>\xCC\x81", "<|endoftext|>|\xCC|\x81");
  iso_tokenizer_close(&t);
  remove_folder(folder);
}

/* A byte that the vocabulary lacks is an error that says where. */
static void test_missing_byte(void **state) {
  char folder[64];
  make_folder(folder);
  iso_tokenizer *t = vary(folder, "\"Z\": 90", "\"not made of bytes\": 90");
  iso_encoder *encoder = iso_encoder_create(t);
  const int32_t *ids;
  size_t count;
  iso_log_quiet(true);
  assert_int_equal(iso_encode(encoder, "the Zoo", 7, true, false, &ids, &count), ISO_ERR_MISMATCH);
  iso_log_quiet(false);
  assert_non_null(strstr(iso_last_error(), "byte 0x5A at byte 4 of"));
  char text[300]; /* windows, their tail, pieces of every length */
  for (size_t at = 0; at < sizeof text - 40; at++) {
    char cause[64];
    for (size_t i = 0; i < sizeof text; i++) text[i] = i % 5 == 4 ? ' ' : 'z';
    memset(text + at, 'z', at % 37);
    text[at + at % 37] = 'Z';
    snprintf(cause, sizeof cause, "byte 0x5A at byte %zu of", at + at % 37);
    iso_log_quiet(true);
    assert_int_equal(iso_encode(encoder, text, sizeof text, true, false, &ids, &count), ISO_ERR_MISMATCH);
    iso_log_quiet(false);
    if (!strstr(iso_last_error(), cause)) fail_msg("'%s' is not in '%s'", cause, iso_last_error());
  }
  assert_int_equal(iso_encode(encoder, "the zoo", 7, true, false, &ids, &count), ISO_OK);
  iso_encoder_destroy(&encoder);
  iso_tokenizer_close(&t);
  remove_folder(folder);
}

/* ---- NFC ---- */

static void check_nfc(const char *text, const char *expected) {
  iso_string out = {0};
  bool changed;
  assert_int_equal(iso_nfc(text, strlen(text), &out, &changed), ISO_OK);
  assert_string_equal(changed ? out.data : text, expected);
  iso_string_fini(&out);
}

static void test_nfc(void **state) {
  check_nfc("e\xCC\x81"
            "A\xCC\x8A",
            "\xC3\xA9\xC3\x85");
  check_nfc("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C"); /* Hangul */
  check_nfc("\xE2\x84\xAB \xE2\x84\xA6", "\xC3\x85 \xCE\xA9");       /* singletons */
  check_nfc("a\xCC\x80\xCC\xA3", "\xE1\xBA\xA1\xCC\x80");            /* marks change places, then one composes */
  check_nfc("\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC");             /* excluded from composition */
  /* As the reference has it, characters after Unicode 9 neither move nor compose: */
  check_nfc("a\xE0\xB4\xBB\xCC\xB4", "a\xE0\xB4\xBB\xCC\xB4");                       /* U+0D3B, Unicode 10 */
  check_nfc("\xE1\xAA\xBF\xCC\xB4", "\xE1\xAA\xBF\xCC\xB4");                         /* U+1ABF, 13 */
  check_nfc("\xF0\x90\x97\x92\xCC\x87", "\xF0\x90\x97\x92\xCC\x87");                 /* U+105D2, 16 */
  check_nfc("\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0", "\xF0\x91\xA4\xB5\xF0\x91\xA4\xB0"); /* U+11935 U+11930, 13 */
}

static void test_nfc_against_utf8proc(void **state) {
  static const uint32_t ranges[][2] = {{0x41, 0x5A},     {0xC0, 0xFF},     {0x300, 0x345},   {0x386, 0x3CE},
                                       {0x591, 0x5BD},   {0x915, 0x95F},   {0x9BE, 0x9DF},   {0xE34, 0xE4E},
                                       {0x1100, 0x1112}, {0x1161, 0x1175}, {0x11A8, 0x11C2}, {0xAC00, 0xAC40},
                                       {0x1F00, 0x1FFE}, {0x2126, 0x212B}, {0xF900, 0xF910}, {0x1D15E, 0x1D169}};
  iso_string text = {0}, out = {0};
  uint64_t counter = 5000000;
  for (int round = 0; round < 20000; round++) {
    if (text.data) text.length = 0;
    for (uint32_t i = 0, n = 1 + pick(&counter, 10); i < n; i++) {
      const uint32_t *range = ranges[pick(&counter, 3) ? pick(&counter, ISO_COUNT(ranges)) : 2];
      iso_utf8_append(&text, range[0] + pick(&counter, range[1] - range[0] + 1));
    }
    bool changed;
    assert_int_equal(iso_nfc(text.data, text.length, &out, &changed), ISO_OK);
    uint8_t *expected = utf8proc_NFC((const uint8_t *)text.data);
    assert_string_equal(changed ? out.data : text.data, (char *)expected);
    free(expected);
  }
  iso_string_fini(&text);
  iso_string_fini(&out);
}

static void test_nfc_linear(void **state) {
  iso_string text = {0}, out = {0};
  bool changed;
  iso_string_append(&text, "a", 1);
  for (int i = 0; i < 200000; i++) iso_string_append(&text, i % 2 ? "\xCC\xA3" : "\xCC\x80", 2);
  double start = iso_clock_s();
  assert_int_equal(iso_nfc(text.data, text.length, &out, &changed), ISO_OK);
  assert_true(iso_clock_s() - start < 5);
  assert_true(changed);
  iso_string_fini(&text);
  iso_string_fini(&out);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_merge_against_naive),
      cmocka_unit_test(test_hostile_lengths),
      cmocka_unit_test(test_cache_and_round_trip),
      cmocka_unit_test(test_threads),
      cmocka_unit_test(test_invalid_utf8),
      cmocka_unit_test(test_empty_text),
      cmocka_unit_test(test_added_tokens),
      cmocka_unit_test(test_digits_and_regex_steps),
      cmocka_unit_test(test_missing_byte),
      cmocka_unit_test(test_nfc),
      cmocka_unit_test(test_nfc_against_utf8proc),
      cmocka_unit_test(test_nfc_linear),
      cmocka_unit_test(test_sink),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
