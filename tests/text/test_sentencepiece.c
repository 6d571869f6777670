/* SPDX-License-Identifier: Apache-2.0
 *
 * SentencePiece models: what is refused, cut files, decoding, copies, and that cutting a text in chunks changes
 * nothing. */
#include "helper.h"

#define SAMPLES ISO_TEST_DATA "/text/sentencepiece/"
#define MARK    "\xE2\x96\x81"

/* ---- files made by hand ---- */

static void put_varint(iso_string *out, uint64_t value) {
  do {
    char byte = (char)((value & 0x7F) | (value > 0x7F ? 0x80 : 0));
    iso_string_append(out, &byte, 1);
    value >>= 7;
  } while (value);
}

static void put_field(iso_string *out, int number, const char *bytes, size_t length) {
  put_varint(out, (uint64_t)number << 3 | 2);
  put_varint(out, length);
  iso_string_append(out, bytes, length);
}

static void put_piece(iso_string *out, const char *text, float score, int type) {
  iso_string piece = {0};
  put_field(&piece, 1, text, strlen(text));
  put_varint(&piece, 2 << 3 | 5);
  iso_string_append(&piece, &score, sizeof score);
  put_varint(&piece, 3 << 3);
  put_varint(&piece, (uint64_t)type);
  put_field(out, 1, piece.data, piece.length);
  iso_string_fini(&piece);
}

/* A trainer's or normalizer's part with one varint field. */
static void put_switch(iso_string *out, int part, int number, uint64_t value) {
  iso_string body = {0};
  put_varint(&body, (uint64_t)number << 3);
  put_varint(&body, value);
  put_field(out, part, body.data, body.length);
  iso_string_fini(&body);
}

/* <unk>, </s>, a, b, c, the mark, ab, abc, bc: BPE, nothing trimmed. */
static void put_small(iso_string *out) {
  static const char *const letters[] = {"a", "b", "c", MARK};
  put_piece(out, "<unk>", 0, 2);
  put_piece(out, "</s>", 0, 3);
  for (size_t i = 0; i < ISO_COUNT(letters); i++) put_piece(out, letters[i], -9, 1);
  put_piece(out, "ab", -1, 1);
  put_piece(out, "abc", -2, 1);
  put_piece(out, "bc", -1, 1);
  put_switch(out, 2, 3, 2);
  put_switch(out, 3, 4, 0);
}

static iso_status open_bytes(const iso_string *file, iso_tokenizer **t) {
  char folder[64], path[128];
  make_folder(folder);
  write_file(folder, "tokenizer.model", file->data, file->length);
  snprintf(path, sizeof path, "%s/tokenizer.model", folder);
  iso_status status = iso_tokenizer_open(path, "", t);
  remove_folder(folder);
  return status;
}

static void expect_ids(const iso_tokenizer *t, const char *text, bool special, const int32_t *expected, size_t count) {
  const int32_t *ids;
  size_t n;
  iso_encoder *encoder = iso_encoder_create(t);
  assert_int_equal(iso_encode(encoder, text, strlen(text), special, false, &ids, &n), ISO_OK);
  assert_int_equal(n, count);
  for (size_t i = 0; i < n; i++) assert_int_equal(ids[i], expected[i]);
  iso_encoder_destroy(&encoder);
}

static void test_small(void **state) {
  iso_tokenizer *t;
  iso_string file = {0}, out = {0};
  put_small(&file);
  put_varint(&file, 200u << 3 | 1); /* a field that is not known, of each kind */
  iso_string_append(&file, "12345678", 8);
  put_field(&file, 201, "x", 1);
  put_varint(&file, 202u << 3);
  put_varint(&file, UINT64_MAX);
  assert_int_equal(open_bytes(&file, &t), ISO_OK);
  assert_int_equal(iso_tokenizer_vocabulary(t), 9);
  assert_int_equal(iso_tokenizer_eos(t), 1);
  expect_ids(t, "abc", false, (const int32_t[]){5, 7}, 2); /* ab and bc are equal: the left one first */
  expect_ids(t, "bc a", false, (const int32_t[]){5, 8, 5, 2}, 4);
  expect_ids(t, "xyz</s>", false, (const int32_t[]){5, 0}, 2); /* unknown neighbours are one */
  expect_ids(t, "a</s>b", true, (const int32_t[]){5, 2, 1, 3}, 4);
  expect_ids(t, "", false, NULL, 0);
  assert_int_equal(iso_decode(t, (const int32_t[]){5, 6, 1, 5, 0, 2}, 6, &out), ISO_OK);
  assert_string_equal(out.data, "ab  \xE2\x81\x87 a");
  iso_log_quiet(true);
  assert_int_equal(iso_decode(t, (const int32_t[]){9}, 1, &out), ISO_ERR_MISMATCH);
  iso_log_quiet(false);
  iso_string_fini(&out);
  iso_tokenizer_close(&t);
  for (size_t cut = 1; cut < file.length; cut++) { /* cut anywhere: opened or refused, nothing beyond the end is read */
    iso_string part = {0};
    iso_string_append(&part, file.data, cut);
    iso_log_quiet(true);
    if (open_bytes(&part, &t) == ISO_OK) iso_tokenizer_close(&t);
    iso_log_quiet(false);
    iso_string_fini(&part);
  }
  iso_string_fini(&file);
}

static void put_bad(iso_string *out, int which) {
  switch (which) {
  case 0:
    put_switch(out, 2, 3, 1);
    break;
  case 1:
    put_piece(out, "ab", -1, 1);
    break;
  case 2:
    put_piece(out, "x", 0, 5);
    break;
  case 3:
    put_piece(out, "x", 0, 7);
    break;
  case 4:
    put_piece(out, "<0x4>", 0, 6);
    break;
  case 5:
    put_piece(out, "<0x41>", 0, 6);
    break;
  case 6:
    put_piece(out, "?", 0, 2);
    break;
  case 7:
    put_piece(out, "", 0, 1);
    break;
  case 8:
    put_piece(out, "\xFF", 0, 1);
    break;
  case 9:
    put_switch(out, 2, 24, 1);
    break;
  case 10:
    put_switch(out, 2, 35, 1);
    break;
  case 11:
    put_field(out, 3, "\x12\x02xx", 4);
    break;
  case 12:
    put_field(out, 5, "\x12\x02xx", 4);
    break;
  case 13:
    put_field(out, 1, "\x0A\x7Fx", 3);
    break;
  case 14:
    put_varint(out, 9 << 3 | 3);
    break;
  case 15:
    put_field(out, 2, "\x1A\x01x", 3);
    break;
  default:
    put_piece(out, "x", strtof("nan", NULL), 1);
    break;
  }
}

static void test_refused(void **state) {
  static const struct {
    iso_status status;
    const char *says;
  } rows[] = {
      {ISO_ERR_UNSUPPORTED, "model type 1 (Unigram)"},
      {ISO_ERR_FORMAT, "tokens 6 and 9 are the same bytes"},
      {ISO_ERR_UNSUPPORTED, "piece 9 is of type UNUSED"},
      {ISO_ERR_FORMAT, "piece 9 has the unknown type 7"},
      {ISO_ERR_FORMAT, "byte piece 9 is not written"},
      {ISO_ERR_FORMAT, "1 byte pieces where byte_fallback is off"},
      {ISO_ERR_FORMAT, "pieces 0 and 9 both stand"},
      {ISO_ERR_FORMAT, "token 9 is empty"},
      {ISO_ERR_FORMAT, "not UTF-8"},
      {ISO_ERR_UNSUPPORTED, "treat_whitespace_as_suffix"},
      {ISO_ERR_FORMAT, "0 byte pieces where byte_fallback is on"},
      {ISO_ERR_FORMAT, "character map (2 bytes) is damaged"},
      {ISO_ERR_UNSUPPORTED, "denormalizer"},
      {ISO_ERR_FORMAT, "a piece is damaged"},
      {ISO_ERR_FORMAT, "the file is damaged"},
      {ISO_ERR_FORMAT, "model_type is damaged"},
      {ISO_ERR_FORMAT, "a score that is no number"},
  };
  iso_tokenizer *t;
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_string file = {0};
    put_small(&file);
    put_bad(&file, (int)i);
    iso_status status = open_bytes(&file, &t);
    if (status != rows[i].status || !strstr(iso_last_error(), rows[i].says))
      fail_msg("row %zu: status %d: %s", i, (int)status, iso_last_error());
    iso_string_fini(&file);
  }
  iso_string none = {0};
  put_piece(&none, "a", 0, 1);
  put_switch(&none, 2, 3, 2);
  assert_int_equal(open_bytes(&none, &t), ISO_ERR_FORMAT);
  assert_non_null(strstr(iso_last_error(), "no piece stands for what is unknown"));
  iso_string_fini(&none);
  iso_log_quiet(false);
}

/* ---- chunks ---- */

/* A text's ids are those of merging it whole, wherever it could be cut. Of a model without trimming and character map;
 * unknown characters and user-defined pieces are left out of the text. */
static void test_chunks_change_nothing(void **state) {
  iso_tokenizer *t;
  assert_int_equal(iso_tokenizer_open(ISO_TEST_DATA "/text/mistral-v3/tokenizer.model", "", &t), ISO_OK);
  iso_encoder *encoder = iso_encoder_create(t);
  iso_bpe_scratch scratch = {0};
  uint64_t counter = 0;
  for (int round = 0; round < 60; round++) {
    iso_string text = {0}, whole = {0};
    iso_string_append(&text, "", 0);
    for (uint32_t n = pick(&counter, 800); n > 0; n--) {
      if (pick(&counter, 3) == 0)
        iso_string_append(&text,
                          "the internationalization of "
                          "\xE4\xBD\xA0\xE5\xA5\xBD\xE4\xB8\x96\xE7\x95\x8C" +
                              pick(&counter, 27),
                          3);
      else
        append_random(&counter, &text);
    }
    iso_string repaired = {0};
    iso_utf8_replace(text.data, text.length, &repaired);
    iso_string_append(&repaired, "a", 1);
    iso_sentencepiece_normalize(t->sentencepiece, repaired.data, repaired.length, ISO_TEXT_START, &whole);
    int32_t *expected = malloc((whole.length + 1) * sizeof *expected);
    size_t count = 0, n, bytes;
    for (size_t at = 0; at < whole.length; at += bytes) {
      uint32_t code = iso_utf8_decode((const uint8_t *)whole.data + at, &bytes);
      const iso_pair *known = iso_pairs_find(&t->sentencepiece->characters, (int32_t)code, 0);
      if (known) expected[count++] = known->id;
      for (size_t i = 0; !known && i < bytes; i++)
        expected[count++] = t->sentencepiece->bytes[(uint8_t)whole.data[at + i]];
    }
    count = iso_bpe_merge(&t->pairs, expected, count, &scratch);
    const int32_t *ids;
    assert_int_equal(iso_encode(encoder, repaired.data, repaired.length, false, false, &ids, &n), ISO_OK);
    assert_int_equal(n, count);
    assert_memory_equal(ids, expected, n * sizeof *ids);
    free(expected);
    iso_string_fini(&text);
    iso_string_fini(&whole);
    iso_string_fini(&repaired);
  }
  free(scratch.memory);
  iso_encoder_destroy(&encoder);
  iso_tokenizer_close(&t);
}

/* Half a million letters without a space, of one kind and of many: no quadratic loop. */
static void test_long_texts(void **state) {
  enum { LENGTH = 500000 };
  iso_tokenizer *t;
  assert_int_equal(iso_tokenizer_open(ISO_TEST_DATA "/text/mistral-v3/tokenizer.model", "", &t), ISO_OK);
  iso_encoder *encoder = iso_encoder_create(t);
  char *text = malloc(LENGTH);
  uint64_t counter = 0;
  iso_string out = {0};
  for (int many = 0; many < 2; many++) {
    const int32_t *ids;
    size_t count;
    for (size_t i = 0; i < LENGTH; i++) text[i] = many ? (char)('a' + pick(&counter, 26)) : 'a';
    assert_int_equal(iso_encode(encoder, text, LENGTH, false, false, &ids, &count), ISO_OK);
    if (out.data) out.length = 0;
    assert_int_equal(iso_decode(t, ids, count, &out), ISO_OK);
    assert_int_equal(out.length, LENGTH);
    assert_memory_equal(out.data, text, LENGTH);
  }
  iso_string_fini(&out);
  free(text);
  iso_encoder_destroy(&encoder);
  iso_tokenizer_close(&t);
}

/* ---- files ---- */

static void test_copy_and_fingerprint(void **state) {
  iso_tokenizer *t, *copy, *other;
  char folder[64], path[128];
  make_folder(folder);
  assert_false(iso_tokenizer_is_in(folder));
  assert_int_equal(iso_tokenizer_open(SAMPLES "ties.model", "", &t), ISO_OK);
  assert_int_equal(iso_tokenizer_copy(t, folder), ISO_OK);
  assert_true(iso_tokenizer_is_in(folder));
  snprintf(path, sizeof path, "%s/tokenizer.model", folder);
  assert_true(iso_path_exists(path));
  assert_int_equal(iso_tokenizer_open(folder, "", &copy), ISO_OK);
  assert_string_equal(iso_tokenizer_fingerprint(t), iso_tokenizer_fingerprint(copy));
  iso_tokenizer_close(&copy);
  write_file(folder, "tokenizer_config.json", "{\"eos_token\": \"<s>\"}", 20);
  assert_int_equal(iso_tokenizer_open(folder, "", &copy), ISO_OK);
  assert_int_equal(iso_tokenizer_eos(t), 2);
  assert_int_equal(iso_tokenizer_eos(copy), 1);
  iso_tokenizer_close(&copy);
  assert_int_equal(iso_tokenizer_open(SAMPLES "legacy.json", "", &other), ISO_OK);
  assert_string_not_equal(iso_tokenizer_fingerprint(t), iso_tokenizer_fingerprint(other));
  iso_tokenizer_close(&other);
  iso_tokenizer_close(&t);
  remove_folder(folder);
}

/* What of a tokenizer.json in SentencePiece's shape is refused. */
static void test_refused_json(void **state) {
  static const struct {
    const char *from, *to, *says;
  } rows[] = {
      {"{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"}", "{\"type\":\"Prepend\",\"prepend\":\"x\"}", "Prepend of"},
      {",{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}", "", "Prepend without"},
      {"{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"}", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" \"}",
       "Regex"},
      {"{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"}", "{\"type\":\"NFC\"}", "NFC"},
      {"\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\"}",
       "beside a normalizer"},
      {"\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Whitespace\"}", "Whitespace"},
      {"{\"type\":\"ByteFallback\"},", "", "ByteFallback"},
      {"{\"type\":\"Fuse\"},", "", "Fuse"},
      {"\"start\":1", "\"start\":-1", "Strip"},
      {"\"unk_token\":\"<unk>\"", "\"unk_token\":\"<UNK>\"", "lacks unk_token"},
      {"\"<0x41>\":", "\"<0xxx>\":", "without the token <0x41>"},
      {"\"merges\":[", "\"merges\":[[\"<0x41>\",\"a\"],", "stands for other text"},
  };
  char folder[64], path[128], *json;
  size_t length;
  iso_tokenizer *t;
  make_folder(folder);
  assert_int_equal(iso_file_read(SAMPLES "legacy.json", &json, &length), ISO_OK);
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    char *changed = replaced(json, rows[i].from, rows[i].to);
    write_file(folder, "tokenizer.json", changed, strlen(changed));
    iso_status status = iso_tokenizer_open(path, "", &t);
    if (status == ISO_OK || !strstr(iso_last_error(), rows[i].says))
      fail_msg("row %zu: status %d: %s", i, (int)status, iso_last_error());
    free(changed);
  }
  iso_log_quiet(false);
  free(json);
  remove_folder(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_small),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_chunks_change_nothing),
      cmocka_unit_test(test_long_texts),
      cmocka_unit_test(test_copy_and_fingerprint),
      cmocka_unit_test(test_refused_json),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
