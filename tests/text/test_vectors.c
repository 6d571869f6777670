/* SPDX-License-Identifier: Apache-2.0
 *
 * Reference vectors: every row of every tokenizer that lies in tests/data, and of the full ones where they are at hand
 * (environment ISO_SHARED, or the folder `shared` beside the source tree). */
#include "helper.h"

static void check_file(const char *path, const char *vectors, int64_t rows) {
  iso_tokenizer *tokenizer;
  iso_vector_report report;
  assert_int_equal(iso_tokenizer_open(path, "", &tokenizer), ISO_OK);
  assert_int_equal(iso_tokenizer_check(tokenizer, vectors, stdout, &report), ISO_OK);
  assert_int_equal(report.rows, rows);
  assert_int_equal(report.matched, report.rows);
  iso_tokenizer_close(&tokenizer);
}

static void check_folder(const char *folder) {
  char vectors[600];
  snprintf(vectors, sizeof vectors, "%s/vectors.jsonl", folder);
  check_file(folder, vectors, 231);
}

static void test_gpt2(void **state) {
  check_folder(ISO_TEST_DATA "/text/gpt2");
}

static void test_cl100k(void **state) {
  check_folder(ISO_TEST_DATA "/text/cl100k_base");
}

static void test_o200k_cut(void **state) {
  check_folder(ISO_TEST_DATA "/text/o200k_base");
}

static void test_qwen3_cut(void **state) {
  check_folder(ISO_TEST_DATA "/text/qwen3");
}

/* The whole tokenizer.model; a cut tokenizer.json, whose ids differ where a text begins with a space. */
static void test_mistral(void **state) {
  check_file(ISO_TEST_DATA "/text/mistral-v3/tokenizer.model", ISO_TEST_DATA "/text/mistral-v3/vectors.jsonl", 231);
  check_folder(ISO_TEST_DATA "/text/mistral-v3");
}

/* Small ones that between them use every switch. */
static void test_sentencepiece_samples(void **state) {
  static const struct {
    const char *name, *ending;
    int64_t rows;
  } samples[] = {{"nfkc", "model", 134}, {"ties", "model", 134}, {"legacy", "json", 114}, {"split", "json", 114}};
  char path[512], vectors[512];
  for (size_t i = 0; i < ISO_COUNT(samples); i++) {
    snprintf(path, sizeof path, ISO_TEST_DATA "/text/sentencepiece/%s.%s", samples[i].name, samples[i].ending);
    snprintf(vectors, sizeof vectors, ISO_TEST_DATA "/text/sentencepiece/%s.jsonl", samples[i].name);
    check_file(path, vectors, samples[i].rows);
  }
}

static void test_full_files(void **state) {
  static const char *const names[] = {"o200k_base", "qwen3", "mistral-v3"};
  const char *shared = getenv("ISO_SHARED");
  char folder[512];
  for (size_t i = 0; i < ISO_COUNT(names); i++) {
    snprintf(folder, sizeof folder, "%s/data/tokenizers/%s", shared ? shared : ISO_TEST_DATA "/../../../shared",
             names[i]);
    if (iso_path_exists(folder))
      check_folder(folder);
    else
      print_message("no full %s at %s: its cut was tested\n", names[i], folder);
  }
}

/* GPT-2's vocabulary is also a rank file (its ids are in the order of its merges): both roads give the same ids. */
static void test_gpt2_as_ranks(void **state) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  iso_tokenizer *gpt2;
  iso_string file = {0};
  char folder[64], path[128];
  assert_int_equal(iso_tokenizer_open(ISO_TEST_DATA "/text/gpt2", "", &gpt2), ISO_OK);
  for (int64_t id = 0; id < 50256; id++) {
    size_t length;
    const uint8_t *bytes = (const uint8_t *)iso_tokenizer_bytes(gpt2, id, &length);
    for (size_t at = 0; at < length; at += 3) {
      size_t left = length - at;
      uint32_t bits =
          (uint32_t)bytes[at] << 16 | (left > 1 ? (uint32_t)bytes[at + 1] << 8 : 0) | (left > 2 ? bytes[at + 2] : 0);
      char out[4] = {digits[bits >> 18], digits[bits >> 12 & 63], left > 1 ? digits[bits >> 6 & 63] : '=',
                     left > 2 ? digits[bits & 63] : '='};
      iso_string_append(&file, out, 4);
    }
    iso_string_printf(&file, " %lld\n", (long long)id);
  }
  iso_tokenizer_close(&gpt2);
  make_folder(folder);
  write_file(folder, "r50k_base.tiktoken", file.data, file.length);
  iso_string_fini(&file);
  snprintf(path, sizeof path, "%s/r50k_base.tiktoken", folder);
  iso_tokenizer *ranks;
  iso_vector_report report;
  assert_int_equal(iso_tokenizer_open(path, "", &ranks), ISO_OK);
  assert_int_equal(iso_tokenizer_eos(ranks), 50256);
  assert_int_equal(iso_tokenizer_check(ranks, ISO_TEST_DATA "/text/gpt2/vectors.jsonl", stdout, &report), ISO_OK);
  assert_int_equal(report.matched, 231);
  iso_tokenizer_close(&ranks);
  remove_folder(folder);
}

/* A wrong vocabulary is noticed: the report counts, the rows are printed. */
static void test_mismatches_are_counted(void **state) {
  iso_tokenizer *gpt2;
  iso_vector_report report;
  char *lines = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&lines, &bytes);
  assert_int_equal(iso_tokenizer_open(ISO_TEST_DATA "/text/cl100k_base", "", &gpt2), ISO_OK);
  char folder[64], path[128];
  make_folder(folder);
  static const char rows[] = "{\"cat\":\"hand\",\"text\":\"Hello\",\"ids\":[9906]}\n"
                             "{\"cat\":\"hand\",\"text\":\"Hello\\u0000\",\"ids\":[9906,188]}\n"
                             "{\"cat\":\"hand\",\"text\":\"Hello\",\"ids\":[9907]}\n"
                             "{\"cat\":\"decode_only\",\"ids\":[9906],\"bytes_b64\":\"SGVsbG8=\"}\n"
                             "{\"cat\":\"decode_only\",\"ids\":[9906],\"bytes_b64\":\"SGVsbGE=\"}\n"
                             "{\"cat\":\"decode_only\",\"ids\":[9906,2000000],\"bytes_b64\":\"SGVsbG8=\"}\n"
                             "{\"cat\":\"hand\",\"text\":\"Hello\",\"ids\":[9906]}\n";
  write_file(folder, "v.jsonl", rows, sizeof rows - 1);
  snprintf(path, sizeof path, "%s/v.jsonl", folder);
  assert_int_equal(iso_tokenizer_check(gpt2, path, out, &report), ISO_OK);
  fclose(out);
  assert_int_equal(report.rows, 7);
  assert_int_equal(report.matched, 4);
  assert_non_null(strstr(lines, "line 3 (hand, special tokens parsed): at place 0 found 9906, expected 9907\n"));
  assert_non_null(strstr(lines, "line 5 (decode_only, decoded bytes): at place 4 found 111, expected 97\n"));
  assert_non_null(strstr(lines, "line 6 (decode_only, decoded bytes): cannot decode id 2000000 at place 1: "));
  free(lines);
  iso_log_quiet(true);
  static const char *const bad[] = {"",
                                    "{\"ids\":[1]}\n",
                                    "{\"text\":\"a\"}\n",
                                    "{\"text\":\"a\",\"ids\":[-1]}\n",
                                    "[]\n",
                                    "{\"b64\":\"!\",\"ids\":[]}\n",
                                    "{\"b64\":\"/w==\",\"ids\":[]}\n",
                                    "{\"b64\":\"/w==\",\"ids\":[],\"policy\":\"x\"}\n"};
  for (size_t i = 0; i < ISO_COUNT(bad); i++) {
    write_file(folder, "v.jsonl", bad[i], strlen(bad[i]));
    assert_int_equal(iso_tokenizer_check(gpt2, path, NULL, &report), ISO_ERR_FORMAT);
  }
  iso_log_quiet(false);
  iso_tokenizer_close(&gpt2);
  remove_folder(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_gpt2),
      cmocka_unit_test(test_cl100k),
      cmocka_unit_test(test_o200k_cut),
      cmocka_unit_test(test_qwen3_cut),
      cmocka_unit_test(test_mistral),
      cmocka_unit_test(test_sentencepiece_samples),
      cmocka_unit_test(test_full_files),
      cmocka_unit_test(test_gpt2_as_ranks),
      cmocka_unit_test(test_mismatches_are_counted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
