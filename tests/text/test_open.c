/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening: what is refused and how it is said; fingerprint, end of text, copy. */
#include "helper.h"

static iso_status open_text(const char *folder, const char *name, const char *text, const char *pattern) {
  char path[256];
  iso_tokenizer *tokenizer;
  write_file(folder, name, text, strlen(text));
  snprintf(path, sizeof path, "%s/%s", folder, name);
  iso_status status = iso_tokenizer_open(path, pattern, &tokenizer);
  assert_true((status == ISO_OK) == (tokenizer != NULL));
  iso_tokenizer_close(&tokenizer);
  return status;
}

#define BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}"
#define PRE        "\"pre_tokenizer\": " BYTE_LEVEL

static void test_refused_json(void **state) {
  static const struct {
    const char *from, *to;
    iso_status status;
    const char *says;
  } rows[] = {
      {"\"truncation\"", "\"trunc\"", ISO_ERR_UNSUPPORTED, "option \"trunc\" that is not known"},
      {"\"version\": \"1.0\"", "\"version\": \"2.0\"", ISO_ERR_UNSUPPORTED, "version \"2.0\""},
      {"\"type\": \"BPE\"", "\"type\": \"Unigram\"", ISO_ERR_UNSUPPORTED, "model \"Unigram\" is not supported yet"},
      {"\"type\": \"BPE\"", "\"typ\": \"BPE\"", ISO_ERR_FORMAT, "model has no \"type\""},
      {"\"fuse_unk\"", "\"fuse_unc\"", ISO_ERR_UNSUPPORTED, "\"fuse_unc\""},
      {"\"dropout\": null", "\"dropout\": 0.1", ISO_ERR_UNSUPPORTED, "dropout"},
      {"\"byte_fallback\": false", "\"byte_fallback\": true", ISO_ERR_UNSUPPORTED, "byte_fallback"},
      {"\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"##\"", ISO_ERR_UNSUPPORTED, "##"},
      {"\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"", ISO_ERR_UNSUPPORTED, "</w>"},
      {"\"ignore_merges\": false", "\"ignore_merges\": 1", ISO_ERR_FORMAT, "ignore_merges"},
      {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFKC\"}", ISO_ERR_UNSUPPORTED, "normalizer \"NFKC\""},
      {PRE, "\"pre_tokenizer\": null", ISO_ERR_UNSUPPORTED, "pre_tokenizer is null"},
      {PRE, "\"pre_tokenizer\": {\"type\": \"Metaspace\"}", ISO_ERR_UNSUPPORTED, "Metaspace"},
      {PRE, "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": []}", ISO_ERR_UNSUPPORTED,
       "without ByteLevel"},
      {PRE, "\"pre_tokenizer\": {\"type\": \"ByteLevel\"}", ISO_ERR_UNSUPPORTED, "add_prefix_space"},
      {PRE, "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [" BYTE_LEVEL "," BYTE_LEVEL "]}",
       ISO_ERR_UNSUPPORTED, "after ByteLevel"},
      {PRE, "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Removed\"}",
       ISO_ERR_UNSUPPORTED, "behavior \"Removed\""},
      {PRE, "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Isolated\"}",
       ISO_ERR_UNSUPPORTED, "String"},
      {PRE, "\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\"}",
       ISO_ERR_UNSUPPORTED, "not understood at byte 1"},
      {"\"post_processor\": null", "\"post_processor\": {\"type\": \"X\"}", ISO_ERR_UNSUPPORTED,
       "post_processor \"X\""},
      {"\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"Metaspace\"", ISO_ERR_UNSUPPORTED,
       "decoder"},
      {"\"id\": 299", "\"id\": 298", ISO_ERR_FORMAT, "the next free id is 299"},
      {"\"id\": 299", "\"id\": -1", ISO_ERR_FORMAT, "id -1"},
      {"\"id\": 299", "\"id\": 10000000", ISO_ERR_FORMAT, "id 10000000"},
      {"\"id\": 299, \"content\": \"<|endoftext|>\"", "\"id\": 65, \"content\": \"B\"", ISO_ERR_FORMAT, "has it as 66"},
      {"\"content\": \"<|endoftext|>\"", "\"content\": \"\"", ISO_ERR_FORMAT, "is empty"},
      {"\"single_word\": false", "\"single_word\": true", ISO_ERR_UNSUPPORTED, "single_word"},
      {"\"lstrip\": false", "\"lstrip\": \"no\"", ISO_ERR_FORMAT, "lstrip"},
      {"\"special\": true", "\"special\": true, \"x\": 1", ISO_ERR_UNSUPPORTED, "\"x\""},
      {"\"B\": 66", "\"B\": 65", ISO_ERR_FORMAT, "two tokens have the id 65"},
      {"\"B\": 66", "\"A\": 66", ISO_ERR_FORMAT, "stands twice"},
      {"\"B\": 66", "\"B\": 66.5", ISO_ERR_FORMAT, "whole number"},
      {"\"B\": 66", "\"B\": -1", ISO_ERR_FORMAT, "whole number"},
      {"\"B\": 66", "\"B\": 1e300", ISO_ERR_FORMAT, "whole number"},
      {"\"B\": 66", "\"\": 66", ISO_ERR_FORMAT, "is empty"},
      {"\"merges\": [", "\"merges\": [\"a\", ", ISO_ERR_FORMAT, "merge 0 is not two tokens"},
      {"\"merges\": [", "\"merges\": [\"a b c\", ", ISO_ERR_FORMAT, "merge 0 is not two tokens"},
      {"\"merges\": [", "\"merges\": [\"a qqq\", ", ISO_ERR_FORMAT, "\"qqq\" that is no token"},
      {"\"merges\": [", "\"merges\": [\"Q Q\", ", ISO_ERR_FORMAT, "makes a token that is not in the vocabulary"},
      {"\"merges\": [", "\"merges\": [[\"a\"], ", ISO_ERR_FORMAT, "neither"},
      {"\"merges\": [", "\"merges\": [[\"a\", \"b\", \"c\"], ", ISO_ERR_FORMAT, "neither"},
      {"\"merges\": [", "\"merges\": [7, ", ISO_ERR_FORMAT, "neither"},
      {"\"merges\": [", "\"merges\": [\"a t\", \"a t\", ", ISO_ERR_FORMAT, "stands there twice"},
      {"\"merges\"", "\"merges\": 5, \"merger\"", ISO_ERR_UNSUPPORTED, "merger"},
      {"\"vocab\"", "\"vocabulary\"", ISO_ERR_UNSUPPORTED, "vocabulary"},
      {"}", "", ISO_ERR_FORMAT, "not valid JSON"},
  };
  char folder[64];
  make_folder(folder);
  char *json = train_small(folder);
  assert_int_equal(open_text(folder, "t.json", json, ""), ISO_OK);
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    char *changed = replaced(json, rows[i].from, rows[i].to);
    assert_int_equal(open_text(folder, "t.json", changed, ""), rows[i].status);
    if (!strstr(iso_last_error(), rows[i].says)) fail_msg("\"%s\" says: %s", rows[i].says, iso_last_error());
    free(changed);
  }
  assert_int_equal(open_text(folder, "t.json", json, "gpt2"), ISO_ERR_CONFIG);
  assert_int_equal(open_text(folder, "t.json", "", ""), ISO_ERR_FORMAT);
  assert_int_equal(open_text(folder, "t.json", "[]", ""), ISO_ERR_FORMAT);
  iso_log_quiet(false);
  free(json);
  remove_folder(folder);
}

/* Cut anywhere, a file is refused and nothing leaks or is read beyond its end. */
static void test_truncated(void **state) {
  char folder[64];
  make_folder(folder);
  char *json = train_small(folder);
  size_t length = strlen(json);
  iso_log_quiet(true);
  for (size_t cut = 0; cut + 2 < length; cut += 1 + length / 100) {
    char *part = malloc(cut + 1);
    memcpy(part, json, cut);
    part[cut] = '\0';
    assert_int_not_equal(open_text(folder, "t.json", part, ""), ISO_OK);
    free(part);
  }
  iso_log_quiet(false);
  free(json);
  remove_folder(folder);
}

static void test_accepted_variations(void **state) {
  static const char *const rows[][2] = {
      {"\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"\""},
      {"\"truncation\": null", "\"truncation\": {\"max_length\": 512}"},
      {"\"post_processor\": null", "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [" BYTE_LEVEL
                                   ", {\"type\": \"TemplateProcessing\", \"single\": []}]}"},
      {"\"normalizer\": null", "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}"},
      {"\"merges\": [", "\"merges\": [\"#version: 0.2\", "},
      {PRE, "\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [" BYTE_LEVEL "]}"},
  };
  char folder[64];
  make_folder(folder);
  char *json = train_small(folder);
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    char *changed = replaced(json, rows[i][0], rows[i][1]);
    assert_int_equal(open_text(folder, "t.json", changed, ""), ISO_OK);
    free(changed);
  }
  free(json);
  remove_folder(folder);
}

static void test_rank_files(void **state) {
  static const struct {
    const char *text, *says;
  } bad[] = {
      {"", "no tokens"},
      {"YQ== 0\nYQ== 1\n", "the same bytes"},
      {"YQ== 0\nYg== 0\n", "two tokens have the id 0"},
      {"YQ==0\n", "line 1"},
      {"YQ== 0\nYg=\n", "line 2"},
      {"YQ== -1\n", "line 1"},
      {"YQ== 01\n", "line 1"},
      {"YQ== 1 \n", "line 1"},
      {"YR== 0\n", "line 1"},
      {"Y=Q= 0\n", "line 1"},
      {"Y!== 0\n", "line 1"},
      {" 0\n", "line 1"},
      {"YQ== 99999999\n", "outside 0..9999999"},
      {"YQ== 9999999999\n", "line 1"},
  };
  char folder[64];
  make_folder(folder);
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(bad); i++) {
    assert_int_equal(open_text(folder, "x.tiktoken", bad[i].text, "gpt2"), ISO_ERR_FORMAT);
    if (!strstr(iso_last_error(), bad[i].says)) fail_msg("\"%s\": %s", bad[i].text, iso_last_error());
  }
  static const char cut_short[] = "\n\x0E\n\x05<unk>\x15\x01"; /* a SentencePiece model, once */
  assert_int_equal(open_text(folder, "x.tiktoken", cut_short, ""), ISO_ERR_FORMAT);
  assert_non_null(strstr(iso_last_error(), "is not a SentencePiece model: the file is damaged"));
  assert_int_equal(open_text(folder, "x.tiktoken", cut_short, "gpt2"), ISO_ERR_CONFIG);
  static const char good[] = "YQ== 0\r\nYg== 1\n\nYWI= 2\n";
  assert_int_equal(open_text(folder, "x.tiktoken", good, ""), ISO_ERR_CONFIG);
  assert_int_equal(open_text(folder, "cl100k_base.tiktoken", good, "gpt2"), ISO_ERR_CONFIG);
  assert_int_equal(open_text(folder, "x.tiktoken", good, "("), ISO_ERR_UNSUPPORTED);
  iso_log_quiet(false);
  assert_int_equal(open_text(folder, "x.tiktoken", good, "gpt2"), ISO_OK);
  assert_int_equal(open_text(folder, "x.tiktoken", good, "[a-z]+"), ISO_OK);
  assert_int_equal(open_text(folder, "cl100k_base.tiktoken", good, "cl100k"), ISO_OK);
  assert_int_equal(open_text(folder, "cl100k_base.tiktoken", good, ""), ISO_OK);
  remove_folder(folder);
}

static void test_where_it_looks(void **state) {
  char folder[64], path[128];
  iso_tokenizer *t;
  make_folder(folder);
  iso_log_quiet(true);
  assert_int_equal(iso_tokenizer_open("/nonexistent/x", "", &t), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_tokenizer_open(folder, "", &t), ISO_ERR_NOT_FOUND);
  assert_non_null(strstr(iso_last_error(), "neither tokenizer.json nor tokenizer.model nor a *.tiktoken"));
  write_file(folder, "a.tiktoken", "YQ== 0\n", 7);
  write_file(folder, "b.tiktoken", "YQ== 0\n", 7);
  assert_int_equal(iso_tokenizer_open(folder, "gpt2", &t), ISO_ERR_CONFIG);
  iso_log_quiet(false);
  snprintf(path, sizeof path, "%s/b.tiktoken", folder);
  unlink(path);
  assert_int_equal(iso_tokenizer_open(folder, "gpt2", &t), ISO_OK);
  assert_string_equal(iso_tokenizer_path(t), folder);
  assert_int_equal(iso_tokenizer_vocabulary(t), 1);
  assert_int_equal(iso_tokenizer_eos(t), -1);
  iso_tokenizer_close(&t);
  iso_tokenizer_close(&t); /* NULL is fine */
  remove_folder(folder);
}

static void test_eos(void **state) {
  static const struct {
    const char *tokenizer_config, *generation_config;
    int64_t eos;
  } rows[] = {
      {NULL, NULL, 299},
      {"{}", "{}", 299},
      {"{\"eos_token\": null}", "{\"eos_token_id\": 7}", 7},
      {"{\"eos_token\": \"<|endoftext|>\"}", "{\"eos_token_id\": 7}", 299},
      {"{\"eos_token\": {\"content\": \"at\", \"lstrip\": false}}", NULL, -2}, /* any id but not the usual one */
      {NULL, "{\"eos_token_id\": [9, 8]}", 9},
  };
  char folder[64], path[128];
  iso_tokenizer *t;
  make_folder(folder);
  free(train_small(folder));
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    unlink(path);
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    unlink(path);
    if (rows[i].tokenizer_config)
      write_file(folder, "tokenizer_config.json", rows[i].tokenizer_config, strlen(rows[i].tokenizer_config));
    if (rows[i].generation_config)
      write_file(folder, "generation_config.json", rows[i].generation_config, strlen(rows[i].generation_config));
    assert_int_equal(iso_tokenizer_open(folder, "", &t), ISO_OK);
    if (rows[i].eos >= -1) {
      assert_int_equal(iso_tokenizer_eos(t), rows[i].eos);
    } else {
      size_t length;
      const char *bytes = iso_tokenizer_bytes(t, iso_tokenizer_eos(t), &length);
      assert_int_equal(length, 2);
      assert_memory_equal(bytes, "at", 2);
    }
    iso_tokenizer_close(&t);
  }
  iso_log_quiet(true);
  write_file(folder, "generation_config.json", "{\"eos_token_id\": 300}", 21);
  assert_int_equal(iso_tokenizer_open(folder, "", &t), ISO_ERR_MISMATCH);
  write_file(folder, "tokenizer_config.json", "{\"eos_token\": \"<none>\"}", 23);
  assert_int_equal(iso_tokenizer_open(folder, "", &t), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "eos_token \"<none>\" is not a token"));
  iso_log_quiet(false);
  remove_folder(folder);
}

/* Layout does not change the fingerprint, meaning does. */
static void test_fingerprint(void **state) {
  static const char *const rows[][3] = {
      {"\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"\"", "same"},
      {"\n    \"merges\"", "\n\n \"merges\"", "same"},
      {"\"special\": true", "\"special\": false", "same"},
      {"\"ignore_merges\": false", "\"ignore_merges\": true", "other"},
      {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", "other"},
      {"\"content\": \"<|endoftext|>\"", "\"content\": \"<|eot|>\"", "other"},
      {"\"rstrip\": false", "\"rstrip\": true", "other"},
      {"\"merges\": [", "\"merges\": [\"s a\", ", "other"},
      {"\"use_regex\": true", "\"use_regex\": false", "other"},
      {"\"Z\": 90", "\"not made of bytes\": 90", "other"},
  };
  char folder[64], path[128];
  make_folder(folder);
  char *json = train_small(folder);
  snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
  unlink(path);
  snprintf(path, sizeof path, "%s/t.json", folder);
  iso_tokenizer *a, *b;
  assert_int_equal(iso_tokenizer_open(folder, "", &a), ISO_OK);
  assert_int_equal(strlen(iso_tokenizer_fingerprint(a)), 64);
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    char *changed = replaced(json, rows[i][0], rows[i][1]);
    if (strstr(rows[i][1], "s a")) { /* a merge needs its result */
      char *more = replaced(changed, "\"vocab\": {", "\"vocab\": {\"sa\": 5000, ");
      char *last = replaced(more, "\"id\": 299", "\"id\": 300");
      free(changed);
      free(more);
      changed = last;
    }
    write_file(folder, "t.json", changed, strlen(changed));
    assert_int_equal(iso_tokenizer_open(path, "", &b), ISO_OK);
    bool same = strcmp(iso_tokenizer_fingerprint(a), iso_tokenizer_fingerprint(b)) == 0;
    assert_int_equal(same, strcmp(rows[i][2], "same") == 0);
    iso_tokenizer_close(&b);
    free(changed);
  }
  iso_tokenizer_close(&a);
  free(json);
  remove_folder(folder);
}

static void test_copy(void **state) {
  char from[64], to[64], path[128];
  iso_tokenizer *a, *b;
  make_folder(from);
  make_folder(to);
  char *json = train_small(from);
  assert_int_equal(iso_tokenizer_open(from, "", &a), ISO_OK);
  assert_int_equal(iso_tokenizer_copy(a, to), ISO_OK);
  assert_int_equal(iso_tokenizer_open(to, "", &b), ISO_OK);
  assert_string_equal(iso_tokenizer_fingerprint(a), iso_tokenizer_fingerprint(b));
  assert_int_equal(iso_tokenizer_eos(b), 299);
  snprintf(path, sizeof path, "%s/tokenizer_config.json", to);
  assert_true(iso_path_exists(path));
  iso_tokenizer_close(&b);
  write_file(from, "tokenizer.json", json, strlen(json) - 1); /* it changed meanwhile */
  iso_log_quiet(true);
  assert_int_equal(iso_tokenizer_copy(a, to), ISO_ERR_MISMATCH);
  iso_log_quiet(false);
  iso_tokenizer_close(&a);
  assert_int_equal(iso_tokenizer_open(ISO_TEST_DATA "/text/o200k_base", "", &a), ISO_OK);
  remove_folder(to);
  make_folder(to);
  assert_int_equal(iso_tokenizer_copy(a, to), ISO_OK);
  assert_int_equal(iso_tokenizer_open(to, "", &b), ISO_OK);
  assert_string_equal(iso_tokenizer_fingerprint(a), iso_tokenizer_fingerprint(b));
  iso_tokenizer_close(&b);
  iso_tokenizer_close(&a);
  free(json);
  remove_folder(from);
  remove_folder(to);
}

/* A pattern that was given and an end of text from generation_config.json go along. */
static void test_copy_settings(void **state) {
  char from[64], to[64], path[128];
  iso_tokenizer *a, *b;
  make_folder(from);
  make_folder(to);
  write_file(from, "x.tiktoken", "YQ== 0\nYg== 1\nYWI= 2\n", 21);
  write_file(from, "generation_config.json", "{\"eos_token_id\": 1}", 19);
  assert_int_equal(iso_tokenizer_open(from, "[a-z]", &a), ISO_OK);
  assert_int_equal(iso_tokenizer_eos(a), 1);
  assert_int_equal(iso_tokenizer_copy(a, to), ISO_OK);
  assert_int_equal(iso_tokenizer_open(to, "", &b), ISO_OK);
  assert_string_equal(iso_tokenizer_fingerprint(a), iso_tokenizer_fingerprint(b));
  assert_int_equal(iso_tokenizer_eos(b), 1);
  iso_tokenizer_close(&b);
  snprintf(path, sizeof path, "%s/x.tiktoken", to);
  assert_int_equal(iso_tokenizer_open(path, "", &b), ISO_OK); /* the file itself finds its pattern too */
  iso_tokenizer_close(&b);
  iso_tokenizer_close(&a);
  remove_folder(from);
  remove_folder(to);
}

/* o200k_harmony: a token with two names decodes to the one that counts up. */
static void test_harmony(void **state) {
  static const char text[] = "<|endofprompt|><|reserved_200018|><|reserved_201087|><|start|>a";
  static const int32_t expected[] = {200018, 200018, 201087, 200006, 0};
  char folder[64];
  iso_tokenizer *t;
  const int32_t *ids;
  size_t count;
  iso_string out = {0};
  make_folder(folder);
  write_file(folder, "o200k_harmony.tiktoken", "YQ== 0\n", 7);
  assert_int_equal(iso_tokenizer_open(folder, "", &t), ISO_OK);
  assert_int_equal(iso_tokenizer_vocabulary(t), 201088);
  assert_int_equal(iso_tokenizer_eos(t), 199999);
  iso_encoder *encoder = iso_encoder_create(t);
  assert_int_equal(iso_encode(encoder, text, sizeof text - 1, true, false, &ids, &count), ISO_OK);
  assert_int_equal(count, ISO_COUNT(expected));
  assert_memory_equal(ids, expected, sizeof expected);
  assert_int_equal(iso_decode(t, ids, 1, &out), ISO_OK);
  assert_string_equal(out.data, "<|reserved_200018|>");
  iso_string_fini(&out);
  iso_encoder_destroy(&encoder);
  iso_tokenizer_close(&t);
  remove_folder(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_refused_json),        cmocka_unit_test(test_truncated),
      cmocka_unit_test(test_accepted_variations), cmocka_unit_test(test_rank_files),
      cmocka_unit_test(test_where_it_looks),      cmocka_unit_test(test_eos),
      cmocka_unit_test(test_fingerprint),         cmocka_unit_test(test_copy),
      cmocka_unit_test(test_copy_settings),       cmocka_unit_test(test_harmony),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
