/* SPDX-License-Identifier: Apache-2.0
 *
 * Training a vocabulary: merges against a learner that counts everything anew each time, limits, determinism. */
#include "helper.h"

/* ---- a naive learner ---- */

typedef struct word {
  int32_t ids[64];
  size_t count;
} word;

static int compare_tokens(const iso_vocabulary *v, int32_t a, int32_t b) {
  const iso_token *x = &v->tokens[a], *y = &v->tokens[b];
  int order =
      memcmp(v->bytes.data + x->offset, v->bytes.data + y->offset, x->length < y->length ? x->length : y->length);
  return order ? order : (int)x->length - (int)y->length;
}

/* Occurrences of a pair over all words, overlapping ones too. */
static int64_t count_pair(const word *words, const int64_t *weights, size_t count, int32_t left, int32_t right) {
  int64_t total = 0;
  for (size_t w = 0; w < count; w++)
    for (size_t i = 0; i + 1 < words[w].count; i++)
      if (words[w].ids[i] == left && words[w].ids[i + 1] == right) total += weights[w];
  return total;
}

static bool naive_step(const iso_vocabulary *v, word *words, const int64_t *weights, size_t count, iso_merge *best) {
  int64_t most = 0;
  for (size_t w = 0; w < count; w++)
    for (size_t i = 0; i + 1 < words[w].count; i++) {
      int32_t left = words[w].ids[i], right = words[w].ids[i + 1];
      int64_t total = count_pair(words, weights, count, left, right);
      int order = total == most && most > 0 ? compare_tokens(v, left, best->left) : 0;
      if (total == most && most > 0 && order == 0) order = compare_tokens(v, right, best->right);
      if (total > most || order < 0) most = total, *best = (iso_merge){left, right};
    }
  return most > 0;
}

static void naive_apply(word *words, size_t count, iso_merge merge, int32_t id) {
  for (size_t w = 0; w < count; w++) {
    size_t kept = 0;
    for (size_t i = 0; i < words[w].count; i++) {
      bool hit = i + 1 < words[w].count && words[w].ids[i] == merge.left && words[w].ids[i + 1] == merge.right;
      words[w].ids[kept++] = hit ? id : words[w].ids[i];
      i += hit;
    }
    words[w].count = kept;
  }
}

static void test_against_naive(void **state) {
  uint64_t counter = 9000000;
  for (int round = 0; round < 60; round++) {
    enum { WORDS = 12 };
    char bytes[WORDS][64];
    iso_piece pieces[WORDS];
    word words[WORDS];
    int64_t weights[WORDS];
    for (size_t w = 0; w < WORDS; w++) {
      size_t length = 1 + pick(&counter, 40);
      for (size_t i = 0; i < length; i++) bytes[w][i] = (char)('a' + pick(&counter, 1 + (uint32_t)round % 5));
      pieces[w] = (iso_piece){bytes[w], length, weights[w] = 1 + pick(&counter, 4)};
      words[w].count = length;
      for (size_t i = 0; i < length; i++) words[w].ids[i] = (uint8_t)bytes[w][i];
    }
    iso_vocabulary v = {0};
    iso_merge *merges;
    size_t merge_count;
    assert_int_equal(iso_bpe_learn(pieces, WORDS, 256 + 60, "", 0, &v, &merges, &merge_count), ISO_OK);
    size_t step = 0;
    for (iso_merge best; step < merge_count; step++) {
      assert_true(naive_step(&v, words, weights, WORDS, &best));
      assert_int_equal(merges[step].left, best.left);
      assert_int_equal(merges[step].right, best.right);
      const iso_token *x = &v.tokens[best.left], *y = &v.tokens[best.right];
      char joined[128];
      memcpy(joined, v.bytes.data + x->offset, x->length);
      memcpy(joined + x->length, v.bytes.data + y->offset, y->length);
      int32_t id = iso_vocabulary_find(&v, joined, x->length + y->length, true);
      assert_true(id >= 256);
      naive_apply(words, WORDS, best, id);
    }
    iso_merge best;
    if (v.count < 256 + 60) assert_false(naive_step(&v, words, weights, WORDS, &best)); /* it ran out, rightly */
    free(merges);
    iso_vocabulary_fini(&v);
  }
}

/* ---- the whole ---- */

static void train(const char *folder, int64_t vocabulary, const char *pattern, const char *text, size_t length) {
  const char *texts[2] = {text, text + length / 2};
  size_t lengths[2] = {length / 2, length - length / 2};
  iso_bpe_options options = {vocabulary, pattern, "<|endoftext|>"};
  assert_int_equal(iso_bpe_train(&options, texts, lengths, 2, folder), ISO_OK);
}

static void test_patterns_and_round_trip(void **state) {
  static const char *const patterns[] = {"gpt2", "cl100k", "qwen2", "o200k"};
  char *json, folder[64];
  size_t length;
  assert_int_equal(iso_file_read(ISO_TEST_DATA "/text/SOURCES.md", &json, &length), ISO_OK);
  for (size_t i = 0; i < ISO_COUNT(patterns); i++) {
    make_folder(folder);
    train(folder, 400, patterns[i], json, length);
    iso_tokenizer *t;
    assert_int_equal(iso_tokenizer_open(folder, "", &t), ISO_OK);
    assert_int_equal(iso_tokenizer_vocabulary(t), 400);
    assert_int_equal(iso_tokenizer_eos(t), 399);
    assert_int_equal(t->steps[0].splitter, iso_splitter_find(patterns[i]));
    iso_encoder *encoder = iso_encoder_create(t);
    const int32_t *ids;
    size_t count;
    iso_string decoded = {0};
    assert_int_equal(iso_encode(encoder, json, length, true, false, &ids, &count), ISO_OK);
    assert_true(count < length * 2 / 3);
    assert_int_equal(iso_decode(t, ids, count, &decoded), ISO_OK);
    assert_int_equal(decoded.length, length);
    assert_memory_equal(decoded.data, json, length);
    iso_string_fini(&decoded);
    iso_encoder_destroy(&encoder);
    iso_tokenizer_close(&t);
    remove_folder(folder);
  }
  free(json);
}

static void test_deterministic(void **state) {
  char a[64], b[64], path[128], *first, *second;
  size_t length;
  make_folder(a);
  make_folder(b);
  first = train_small(a);
  second = train_small(b);
  assert_string_equal(first, second);
  free(second);
  /* when pairs run out the vocabulary is smaller, and still opens */
  iso_log_quiet(true);
  train(b, 5000, "gpt2", "aaaa bbbb", 9);
  iso_log_quiet(false);
  snprintf(path, sizeof path, "%s/tokenizer.json", b);
  assert_int_equal(iso_file_read(path, &second, &length), ISO_OK);
  iso_tokenizer *t;
  assert_int_equal(iso_tokenizer_open(b, "", &t), ISO_OK);
  assert_true(iso_tokenizer_vocabulary(t) < 270);
  assert_int_equal(iso_tokenizer_eos(t), iso_tokenizer_vocabulary(t) - 1);
  iso_tokenizer_close(&t);
  free(first);
  free(second);
  remove_folder(a);
  remove_folder(b);
}

/* The end-of-text token's spelling is never learned, or the reference would number it otherwise. */
static void test_eos_is_not_learned(void **state) {
  char folder[64];
  static const char text[] = "stop stop stop stop stop stopper stop stop";
  const char *texts[1] = {text};
  size_t lengths[1] = {sizeof text - 1};
  iso_bpe_options options = {4000, "gpt2", "stop"};
  iso_tokenizer *t;
  make_folder(folder);
  iso_log_quiet(true);
  assert_int_equal(iso_bpe_train(&options, texts, lengths, 1, folder), ISO_OK);
  iso_log_quiet(false);
  assert_int_equal(iso_tokenizer_open(folder, "", &t), ISO_OK);
  assert_int_equal(iso_tokenizer_eos(t), iso_tokenizer_vocabulary(t) - 1);
  iso_tokenizer_close(&t);
  remove_folder(folder);
}

static void test_bad_options(void **state) {
  static const iso_bpe_options bad[] = {{256, "gpt2", "<|endoftext|>"},
                                        {0, "gpt2", "<|endoftext|>"},
                                        {10000001, "gpt2", "<eos>"},
                                        {300, "nope", "<eos>"},
                                        {300, "", "<eos>"},
                                        {300, NULL, "<eos>"},
                                        {300, "gpt2", ""},
                                        {300, "gpt2", "a"},
                                        {300, "gpt2", NULL},
                                        {300, "gpt2", "\xFF\xFF"}};
  const char *texts[1] = {"abc"};
  size_t lengths[1] = {3};
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(bad); i++)
    assert_int_equal(iso_bpe_train(&bad[i], texts, lengths, 1, "/nonexistent/x"), ISO_ERR_CONFIG);
  iso_log_quiet(false);
}

/* Broken bytes are counted as U+FFFD; no text at all gives the bytes and the end of text. */
static void test_odd_texts(void **state) {
  char folder[64];
  const char *texts[2] = {"ab\xFF"
                          "ab",
                          ""};
  size_t lengths[2] = {5, 0};
  iso_bpe_options options = {257, "gpt2", "<|endoftext|>"};
  iso_tokenizer *t;
  make_folder(folder);
  iso_log_quiet(true);
  options.vocabulary = 260;
  assert_int_equal(iso_bpe_train(&options, texts, lengths, 2, folder), ISO_OK);
  iso_log_quiet(false);
  assert_int_equal(iso_tokenizer_open(folder, "", &t), ISO_OK);
  assert_true(iso_vocabulary_find(&t->vocabulary, "ab", 2, true) >= 256);
  iso_tokenizer_close(&t);
  options.vocabulary = 257;
  assert_int_equal(iso_bpe_train(&options, texts, lengths, 0, folder), ISO_OK);
  assert_int_equal(iso_tokenizer_open(folder, "", &t), ISO_OK);
  assert_int_equal(iso_tokenizer_vocabulary(t), 257);
  iso_tokenizer_close(&t);
  remove_folder(folder);
}

/* Counting is incremental: a megabyte with long runs and many words takes a moment. */
static void test_speed(void **state) {
  iso_string text = {0};
  uint64_t counter = 77;
  char folder[64];
  for (int i = 0; i < 100000; i++) iso_string_append(&text, "=", 1);
  while (text.length < 1000000) {
    char w[8] = " ";
    size_t n = 1 + pick(&counter, 6);
    for (size_t k = 1; k <= n; k++) w[k] = (char)('a' + pick(&counter, 20));
    iso_string_append(&text, w, n + 1);
  }
  make_folder(folder);
  double start = iso_clock_s();
  train(folder, 4096, "gpt2", text.data, text.length);
  assert_true(iso_clock_s() - start < 20); /* 0.3 s; counting anew takes an hour */
  iso_string_fini(&text);
  remove_folder(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_against_naive), cmocka_unit_test(test_patterns_and_round_trip),
      cmocka_unit_test(test_deterministic), cmocka_unit_test(test_eos_is_not_learned),
      cmocka_unit_test(test_bad_options),   cmocka_unit_test(test_odd_texts),
      cmocka_unit_test(test_speed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
