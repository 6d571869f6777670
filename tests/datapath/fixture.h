/* SPDX-License-Identifier: Apache-2.0
 *
 * fixture: what the data tests share: a temporary folder, files in it, a small trained tokenizer, options, and the
 * documents of a test corpus, each recognisable by its text.
 */
#ifndef ISO_TEST_DATAPATH_FIXTURE_H
#define ISO_TEST_DATAPATH_FIXTURE_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "data/data.h"

#define UNUSED __attribute__((unused))

static char fixture_folder[64];
static iso_tokenizer *fixture_tokenizer;

static UNUSED void fixture_write(const char *name, const void *bytes, size_t length) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", fixture_folder, name);
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, length, file), length);
  assert_int_equal(fclose(file), 0);
}

static UNUSED const char *fixture_path(const char *name) {
  static char paths[8][256];
  static int next;
  char *path = paths[next++ % 8];
  snprintf(path, sizeof paths[0], "%s/%s", fixture_folder, name);
  return path;
}

static UNUSED void fixture_make_folder(const char *name) {
  assert_int_equal(iso_path_make(fixture_path(name)), ISO_OK);
}

/* Text of document `number` of source `tag`: 1 to ~`longest` words, the number first. */
static UNUSED void fixture_document(iso_string *out, char tag, int64_t number, int longest) {
  static const char *const words[] = {"light", "and", "the", "waters", "of", "\xc3\xa9t\xc3\xa9", "day", "made"};
  uint32_t bits[4];
  iso_rng(7, ISO_RNG_TEST, (uint64_t)tag, (uint64_t)number, bits);
  iso_string_printf(out, "%c%lld", tag, (long long)number);
  int count = (int)(bits[0] % (uint32_t)longest);
  for (int i = 0; i < count; i++) {
    iso_rng(8, ISO_RNG_TEST, (uint64_t)number, (uint64_t)i, bits);
    iso_string_printf(out, " %s", words[bits[0] % ISO_COUNT(words)]);
  }
}

/* A file of `count` documents of source `tag`, numbered from `first`, separated by "\n\n". */
static UNUSED void fixture_corpus(const char *name, char tag, int64_t first, int64_t count, int longest) {
  iso_string text = {0};
  for (int64_t i = 0; i < count; i++) {
    fixture_document(&text, tag, first + i, longest);
    iso_string_append(&text, "\n\n", 2);
  }
  fixture_write(name, text.data, text.length);
  iso_string_fini(&text);
}

static UNUSED iso_source_options fixture_source(const char *name) {
  return (iso_source_options){.path = fixture_path(name), .format = "auto", .weight = 1, .separator = "\n\n"};
}

static UNUSED iso_data_options fixture_options(const iso_source_options *sources, size_t count) {
  return (iso_data_options){.sources = sources,
                            .source_count = count,
                            .sequence = 32,
                            .batch = 3,
                            .seed = 5,
                            .document_mask = true,
                            .block_bytes = 1 << 20,
                            .slots = 4,
                            .threads = 1,
                            .max_bad_documents = 100,
                            .validation_path = ""};
}

static UNUSED int fixture_setup(void **state) {
  (void)state;
  iso_log_quiet(true);
  snprintf(fixture_folder, sizeof fixture_folder, "/tmp/iso-data-XXXXXX");
  assert_non_null(mkdtemp(fixture_folder));
  iso_string text = {0};
  for (int64_t i = 0; i < 200; i++) fixture_document(&text, 'z', i, 40);
  iso_bpe_options options = {.vocabulary = 300, .pattern = "gpt2", .eos = "<|endoftext|>"};
  const char *texts[] = {text.data};
  fixture_make_folder("tokenizer");
  assert_int_equal(iso_bpe_train(&options, texts, &text.length, 1, fixture_path("tokenizer")), ISO_OK);
  iso_string_fini(&text);
  assert_int_equal(iso_tokenizer_open(fixture_path("tokenizer"), "", &fixture_tokenizer), ISO_OK);
  assert_true(iso_tokenizer_eos(fixture_tokenizer) >= 0);
  return 0;
}

static UNUSED int fixture_teardown(void **state) {
  (void)state;
  iso_tokenizer_close(&fixture_tokenizer);
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", fixture_folder);
  return system(command);
}

static UNUSED void assert_error(iso_status status, iso_status expected, const char *part) {
  if (status != expected || !strstr(iso_last_error(), part))
    fail_msg("status %s, message \"%s\"; expected %s with \"%s\"", iso_status_name(status), iso_last_error(),
             iso_status_name(expected), part);
}

/* Arrays of one sequence of T, or of a batch of them. */
typedef struct fixture_arrays {
  int32_t *memory;
  iso_sequence sequence;
} fixture_arrays;

static UNUSED fixture_arrays fixture_arrays_create(int64_t T) {
  fixture_arrays a = {.memory = calloc((size_t)T * 4, sizeof(int32_t))};
  assert_non_null(a.memory);
  a.sequence = (iso_sequence){a.memory, a.memory + T, a.memory + 2 * T, a.memory + 3 * T};
  return a;
}

#endif
