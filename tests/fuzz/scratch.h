/* SPDX-License-Identifier: Apache-2.0
 *
 * scratch: a folder in memory for fuzzers whose subject reads files, and a small tokenizer in it.
 */
#ifndef ISO_FUZZ_SCRATCH_H
#define ISO_FUZZ_SCRATCH_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/text.h"

#define UNUSED __attribute__((unused)) /* not every fuzzer needs all of it */

static char folder[64];
static iso_tokenizer *tokenizer;

static UNUSED void check(bool holds) {
  if (!holds) abort();
}

/* FOLDER/name; the last four results live. */
static UNUSED const char *path_of(const char *name) {
  static char paths[4][128];
  static int next;
  char *path = paths[next++ % 4];
  snprintf(path, sizeof paths[0], "%s/%s", folder, name);
  return path;
}

static UNUSED void write_file(const char *path, const void *data, size_t size) {
  FILE *file = fopen(path, "wb");
  check(file && (size == 0 || fwrite(data, 1, size, file) == size) && fclose(file) == 0);
}

static UNUSED void make_scratch(void) {
  const iso_bpe_options options = {.vocabulary = 300, .pattern = "gpt2", .eos = "<|endoftext|>"};
  const char *text = "the light and the day and the waters";
  const size_t length = strlen(text);
  iso_log_quiet(true);
  strcpy(folder, "/dev/shm/iso-fuzz-XXXXXX");
  check(mkdtemp(folder) != NULL);
  check(iso_path_make(path_of("tokenizer")) == ISO_OK);
  check(iso_bpe_train(&options, &text, &length, 1, path_of("tokenizer")) == ISO_OK);
  check(iso_tokenizer_open(path_of("tokenizer"), "", &tokenizer) == ISO_OK);
}

#endif
