/* SPDX-License-Identifier: Apache-2.0
 *
 * The split, the blocks, and whose they are: each document in one place, whatever the numbers.
 */
#include "datapath/recording.h"

#include <math.h>

static void expect_refused(const iso_data_options *options, iso_status expected, const char *part) {
  iso_corpus *corpus;
  assert_error(iso_corpus_open(options, fixture_tokenizer, &corpus), expected, part);
  assert_null(corpus);
}

/* Invariants 1 to 3: over lanes and blocks each training document comes once per epoch; with validation, all do. */
static void check_partition(const iso_corpus *corpus, int64_t source) {
  const iso_data_options *o = iso_corpus_options(corpus);
  int64_t documents = iso_source_documents(iso_corpus_source(corpus, source));
  int *seen = calloc((size_t)documents, sizeof *seen);
  enum { EPOCHS = 3 };
  for (int64_t lane = 0; lane < o->batch; lane++) {
    int64_t blocks = iso_corpus_lane_blocks(corpus, source, lane);
    assert_true(blocks >= 1);
    for (int64_t e = 0; e < EPOCHS; e++)
      for (int64_t i = 0; i < blocks; i++) {
        int64_t first, end;
        iso_corpus_lane_block(corpus, source, lane, e, i, &first, &end);
        assert_true(first < end);
        for (int64_t k = first; k < end; k++) seen[iso_corpus_train_index(corpus, source, k)]++;
      }
  }
  for (int64_t i = 0; i < documents; i++) {
    bool held_out = o->validation_every && i % o->validation_every == o->validation_offset;
    assert_int_equal(seen[i], held_out ? 0 : EPOCHS);
  }
  free(seen);
}

static void test_every_document_has_one_place(void **state) {
  (void)state;
  fixture_make_folder("many");
  fixture_corpus("many/1", 'a', 0, 137, 30);
  fixture_corpus("many/2", 'a', 137, 64, 3);
  fixture_corpus("other", 'b', 0, 40, 100);
  iso_source_options sources[] = {fixture_source("many"), fixture_source("other")};
  static const int64_t cases[][4] = {/* every, offset, batch, block_bytes */
                                     {0, 0, 3, 1 << 20}, {2, 0, 1, 1 << 20}, {2, 1, 7, 100},  {3, 2, 5, 1},
                                     {20, 7, 8, 500},    {10, 9, 13, 1000},  {39, 38, 2, 64}, {5, 0, 32, 1 << 20}};
  for (size_t c = 0; c < ISO_COUNT(cases); c++) {
    iso_data_options options = fixture_options(sources, 2);
    options.validation_every = cases[c][0];
    options.validation_offset = cases[c][1];
    options.batch = cases[c][2];
    options.block_bytes = cases[c][3];
    iso_corpus *corpus = open_corpus(&options);
    check_partition(corpus, 0);
    check_partition(corpus, 1);
    iso_corpus_info info;
    iso_corpus_info_get(corpus, &info);
    assert_int_equal(info.train_documents + info.validation_documents, 241);
    assert_true(info.block_bytes <= options.block_bytes);
    iso_corpus_close(&corpus);
  }
}

/* Documents of both parts, in corpus order, are exactly the texts that were written. */
static void test_documents_by_index(void **state) {
  (void)state;
  fixture_corpus("indexed", 'i', 0, 50, 30);
  fixture_corpus("indexed2", 'j', 0, 50, 30);
  iso_source_options sources[] = {fixture_source("indexed"), fixture_source("indexed2")};
  iso_data_options options = fixture_options(sources, 2);
  options.validation_every = 7;
  options.validation_offset = 3;
  iso_corpus *corpus = open_corpus(&options);
  iso_corpus_info info;
  iso_corpus_info_get(corpus, &info);
  int64_t next[2] = {0, 0}, bytes[2] = {0, 0};
  for (int s = 0; s < 2; s++)
    for (int64_t i = 0; i < 50; i++) {
      bool validation = i % 7 == 3;
      iso_string expected = {0};
      fixture_document(&expected, s ? 'j' : 'i', i, 30);
      const char *text;
      size_t length;
      /* held-out documents of the two take turns */
      const int64_t index = validation ? 2 * (i / 7) + s : next[0];
      next[validation]++;
      assert_int_equal(iso_corpus_document(corpus, validation, index, &text, &length), ISO_OK);
      assert_int_equal(length, expected.length);
      assert_memory_equal(text, expected.data, length);
      bytes[validation] += (int64_t)length;
      iso_string_fini(&expected);
    }
  assert_int_equal(info.train_documents, next[0]);
  assert_int_equal(info.validation_documents, next[1]);
  assert_int_equal(info.train_bytes, bytes[0]);
  assert_int_equal(info.validation_bytes, bytes[1]);
  iso_corpus_close(&corpus);
}

static void test_blocks_shrink_until_lanes_have_sixteen(void **state) {
  (void)state;
  iso_string text = {0};
  for (int i = 0; i < 1000; i++) iso_string_printf(&text, "%09d|", i);
  fixture_write("even", text.data, text.length);
  iso_string_fini(&text);
  iso_source_options source = fixture_source("even");
  source.separator = "|";
  iso_data_options options = fixture_options(&source, 1);
  options.block_bytes = 4096;
  options.batch = 4;
  iso_corpus *corpus = open_corpus(&options);
  iso_corpus_info info;
  iso_corpus_info_get(corpus, &info);
  assert_int_equal(info.block_bytes, 128); /* 256: 28 documents of 9 bytes, 36 blocks; 128: 14, 72 blocks */
  assert_int_equal(info.blocks, 72);
  iso_corpus_close(&corpus);
  options.batch = 500; /* 16 each cannot be had: documents alone */
  corpus = open_corpus(&options);
  iso_corpus_info_get(corpus, &info);
  assert_int_equal(info.blocks, 1000);
  for (int64_t b = 0; b < 500; b++) assert_int_equal(iso_corpus_lane_blocks(corpus, 0, b), 2);
  iso_corpus_close(&corpus);
}

static void test_order_depends_on_seed_lane_and_epoch(void **state) {
  (void)state;
  fixture_corpus("order", 'o', 0, 400, 10);
  iso_source_options source = fixture_source("order");
  iso_data_options options = fixture_options(&source, 1);
  options.block_bytes = 1;
  options.batch = 2;
  int64_t orders[4][200];
  for (int c = 0; c < 4; c++) { /* as it is; once more; epoch 1; another seed */
    options.seed = c == 3 ? 6 : 5;
    iso_corpus *corpus = open_corpus(&options);
    int64_t end;
    for (int64_t i = 0; i < 200; i++) iso_corpus_lane_block(corpus, 0, 1, c == 2, i, &orders[c][i], &end);
    iso_corpus_close(&corpus);
  }
  assert_memory_equal(orders[0], orders[1], sizeof orders[0]);
  int same_epoch = 0, same_seed = 0, ascending = 0;
  for (int i = 0; i < 200; i++) {
    same_epoch += orders[0][i] == orders[2][i];
    same_seed += orders[0][i] == orders[3][i];
    ascending += i > 0 && orders[0][i] > orders[0][i - 1];
  }
  assert_true(same_epoch < 10);
  assert_true(same_seed < 10);
  assert_in_range(ascending, 60, 140);
}

static void test_draws_follow_weights_by_bytes(void **state) {
  (void)state;
  fixture_corpus("long", 'l', 0, 100, 400);
  fixture_corpus("short", 's', 0, 300, 20);
  iso_source_options sources[] = {fixture_source("long"), fixture_source("short")};
  sources[0].weight = 3;
  sources[1].weight = 1;
  iso_data_options options = fixture_options(sources, 2);
  options.block_bytes = 1; /* blocks are documents: those of one source are much longer */
  iso_corpus *corpus = open_corpus(&options);
  double bytes[2] = {0, 0};
  int64_t next[2] = {0, 0};
  for (int64_t draw = 0; draw < 20000; draw++) {
    int64_t s = iso_corpus_draw(corpus, 1, draw), first, end;
    int64_t blocks = iso_corpus_lane_blocks(corpus, s, 1);
    iso_corpus_lane_block(corpus, s, 1, next[s] / blocks, next[s] % blocks, &first, &end);
    next[s]++;
    bytes[s] += (double)iso_source_document(iso_corpus_source(corpus, s), first).length;
  }
  assert_true(fabs(bytes[0] / bytes[1] / 3 - 1) < 0.25);
  iso_corpus_close(&corpus);
}

/* What the mixture gave, by the cursors of a batch, is what walks from the beginning pass. */
static void test_what_the_mixture_gave(void **state) {
  (void)state;
  iso_source_options sources[3];
  iso_data_options options = three_sources(sources);
  options.block_bytes = 300;
  iso_corpus *corpus = open_corpus(&options);
  iso_data_cursor cursors[3 * 4] = {0};
  int64_t bytes[3], expected[3] = {0};
  assert_int_equal(iso_walk_drawn(corpus, cursors, bytes), ISO_OK);
  assert_memory_equal(bytes, expected, sizeof bytes); /* nothing is begun */
  for (int64_t lane = 0; lane < 3; lane++) {
    iso_walk walk;
    assert_int_equal(iso_walk_init(&walk, corpus, lane), ISO_OK);
    for (int64_t draw = 0; draw < 4000 + lane; draw++) { /* many epochs of each */
      iso_walk_next_block(&walk);
      for (int64_t k = walk.next; k < walk.end; k++) expected[walk.source] += iso_walk_document(&walk, k).length;
    }
    memcpy(cursors + 4 * lane, walk.cursors, 3 * sizeof *cursors);
    cursors[4 * lane + 3] = (iso_data_cursor){walk.draws, walk.source, 0};
    iso_walk_fini(&walk);
  }
  assert_int_equal(iso_walk_drawn(corpus, cursors, bytes), ISO_OK);
  assert_memory_equal(bytes, expected, sizeof bytes);
  const double all = (double)(bytes[0] + bytes[1] + bytes[2]);
  const double weights[] = {1 / 3.5, 0.5 / 3.5, 2 / 3.5};
  for (int s = 0; s < 3; s++) assert_true(fabs((double)bytes[s] / all - weights[s]) < 0.03);
  cursors[1].block = 1 << 30;
  assert_int_equal(iso_walk_drawn(corpus, cursors, bytes), ISO_ERR_MISMATCH);
  iso_corpus_close(&corpus);
}

static void test_too_small_says_the_numbers(void **state) {
  (void)state;
  fixture_write("small", "one\n\ntwo\n\nthree", 15);
  fixture_write("blank", "\n\n\n\n", 4);
  iso_source_options source = fixture_source("small");
  iso_data_options options = fixture_options(&source, 1);
  options.batch = 3;
  iso_corpus *corpus = open_corpus(&options);
  for (int64_t b = 0; b < 3; b++) assert_int_equal(iso_corpus_lane_blocks(corpus, 0, b), 1);
  iso_corpus_close(&corpus);
  options.batch = 4;
  expect_refused(
      &options, ISO_ERR_CONFIG,
      "has 3 training documents (11 bytes), and each of the 4 lanes needs one; give at least 4 documents, or "
      "set batch.sequences to 3 or less");
  source.separator = "";
  options.batch = 2;
  expect_refused(&options, ISO_ERR_CONFIG, "a separator splits files");
  source = fixture_source("blank");
  expect_refused(&options, ISO_ERR_CONFIG, "holds no text");
}

static void test_impossible_options_are_refused(void **state) {
  (void)state;
  fixture_corpus("plain", 'p', 0, 40, 10);
  iso_source_options source = fixture_source("plain");
  iso_data_options good = fixture_options(&source, 1), o = good;
  o.source_count = 0;
  expect_refused(&o, ISO_ERR_CONFIG, "data.sources");
  o = good, o.sequence = 0;
  expect_refused(&o, ISO_ERR_CONFIG, "data.sequence is 0");
  o = good, o.batch = -1;
  expect_refused(&o, ISO_ERR_CONFIG, "batch.sequences is -1");
  o = good, o.block_bytes = 0;
  expect_refused(&o, ISO_ERR_CONFIG, "data.block_bytes");
  o = good, o.max_bad_documents = -1;
  expect_refused(&o, ISO_ERR_CONFIG, "max_bad_documents");
  o = good, o.validation_every = 1;
  expect_refused(&o, ISO_ERR_CONFIG, "validation.every is 1");
  o = good, o.validation_every = 5, o.validation_offset = 5;
  expect_refused(&o, ISO_ERR_CONFIG, "0 to 4");
  o = good, o.validation_every = 100, o.validation_offset = 50;
  expect_refused(&o, ISO_ERR_CONFIG, "the sources have 40 documents");
  o = good, o.validation_every = 5, o.validation_path = fixture_path("plain");
  expect_refused(&o, ISO_ERR_CONFIG, "give one of them");
  o = good, o.validation_path = fixture_path("none");
  expect_refused(&o, ISO_ERR_NOT_FOUND, "none");
  source.weight = 0;
  expect_refused(&good, ISO_ERR_CONFIG, "sources[0].weight");
  source.weight = NAN;
  expect_refused(&good, ISO_ERR_CONFIG, "sources[0].weight");
}

static void test_digest_names_the_corpus(void **state) {
  (void)state;
  fixture_corpus("digest", 'd', 0, 60, 10);
  iso_source_options source = fixture_source("digest");
  iso_data_options options = fixture_options(&source, 1);
  iso_corpus_info infos[5];
  for (int c = 0; c < 5; c++) {
    if (c == 2) options.block_bytes = 1;
    if (c == 3) options.validation_every = 10;
    if (c == 4) fixture_corpus("digest", 'd', 1, 60, 10);
    iso_corpus *corpus = open_corpus(&options);
    iso_corpus_info_get(corpus, &infos[c]);
    iso_corpus_close(&corpus);
    assert_int_equal(strlen(infos[c].digest), 64);
  }
  assert_string_equal(infos[0].digest, infos[1].digest);
  for (int c = 2; c < 5; c++) assert_string_not_equal(infos[c].digest, infos[c - 1].digest);
}

/* Other text of the same size, with its separators where they were, is another corpus: training or held out, with a
 * separator or without. */
static void test_digest_knows_the_content(void **state) {
  (void)state;
  enum { BYTES = 3000, EACH = 60, PLACES = 4 };
  static const int64_t places[PLACES] = {0, 7 * EACH + 3, BYTES / 2, BYTES - 1};
  static const char *const separators[] = {"\n", ""};
  char text[BYTES];
  for (size_t s = 0; s < ISO_COUNT(separators); s++) {
    char digests[PLACES + 2][65];
    for (int c = 0; c < PLACES + 2; c++) {
      for (int i = 0; i < BYTES; i++) text[i] = i % EACH == EACH - 2 ? '\n' : 'a';
      if (c < PLACES) text[places[c]] = 'b';
      fixture_write("content", text, BYTES);
      iso_source_options source = fixture_source("content");
      source.separator = separators[s];
      iso_data_options options = fixture_options(&source, 1);
      options.batch = 1;
      if (*separators[s]) {
        options.validation_every = 10;
        options.validation_offset = 7;
      }
      iso_corpus *corpus = open_corpus(&options);
      iso_corpus_info info;
      iso_corpus_info_get(corpus, &info);
      memcpy(digests[c], info.digest, sizeof info.digest);
      iso_corpus_close(&corpus);
      for (int d = 0; d < c; d++) {
        if (d == PLACES) assert_string_equal(digests[d], digests[c]); /* the last two are one text */
        if (d < PLACES) assert_string_not_equal(digests[d], digests[c]);
      }
    }
  }
}

static void test_validation_files_of_their_own(void **state) {
  (void)state;
  fixture_corpus("training", 't', 0, 60, 10);
  fixture_corpus("held-out", 'h', 0, 11, 10);
  iso_source_options source = fixture_source("training");
  iso_data_options options = fixture_options(&source, 1);
  options.validation_path = fixture_path("held-out");
  iso_corpus *corpus = open_corpus(&options);
  iso_corpus_info info;
  iso_corpus_info_get(corpus, &info);
  assert_int_equal(info.train_documents, 60);
  assert_int_equal(info.validation_documents, 11);
  const char *text;
  size_t length;
  assert_int_equal(iso_corpus_document(corpus, true, 10, &text, &length), ISO_OK);
  assert_memory_equal(text, "h10", 3);
  iso_corpus_close(&corpus);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_document_has_one_place),
      cmocka_unit_test(test_documents_by_index),
      cmocka_unit_test(test_blocks_shrink_until_lanes_have_sixteen),
      cmocka_unit_test(test_order_depends_on_seed_lane_and_epoch),
      cmocka_unit_test(test_draws_follow_weights_by_bytes),
      cmocka_unit_test(test_what_the_mixture_gave),
      cmocka_unit_test(test_too_small_says_the_numbers),
      cmocka_unit_test(test_impossible_options_are_refused),
      cmocka_unit_test(test_digest_names_the_corpus),
      cmocka_unit_test(test_digest_knows_the_content),
      cmocka_unit_test(test_validation_files_of_their_own),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
