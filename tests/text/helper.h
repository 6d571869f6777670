/* SPDX-License-Identifier: Apache-2.0
 *
 * helper.h: what the tests of text share: temporary folders, files, a small trained tokenizer to vary. */
#ifndef ISO_TESTS_TEXT_HELPER_H
#define ISO_TESTS_TEXT_HELPER_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text/text.h"

/* A new folder under /tmp; `out` has room for 64 bytes. */
static inline void make_folder(char *out) {
  strcpy(out, "/tmp/isotach-text-XXXXXX");
  assert_non_null(mkdtemp(out));
}

/* Removes a folder of plain files. */
static inline void remove_folder(const char *folder) {
  iso_arena *arena = iso_arena_create();
  char **names;
  size_t count;
  assert_int_equal(iso_path_list(arena, folder, &names, &count), ISO_OK);
  for (size_t i = 0; i < count; i++) unlink(iso_path_join(arena, folder, names[i]));
  rmdir(folder);
  iso_arena_destroy(&arena);
}

static inline void write_file(const char *folder, const char *name, const char *bytes, size_t length) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  assert_int_equal(iso_file_replace(path, bytes, length), ISO_OK);
}

/* Trains 300 ids on a little English into `folder` and returns tokenizer.json's text (malloc'd). */
static inline char *train_small(const char *folder) {
  static const char text[] =
      "the cat and the hat and the bat sat on the mat; that is that, and this is the end of the tale. "
      "don't they say so? they've said it, we'll see 123 times 456.\n";
  const char *texts[1] = {text};
  size_t lengths[1] = {sizeof text - 1}, length;
  iso_bpe_options options = {300, "gpt2", "<|endoftext|>"};
  assert_int_equal(iso_bpe_train(&options, texts, lengths, 1, folder), ISO_OK);
  char path[256], *json;
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  assert_int_equal(iso_file_read(path, &json, &length), ISO_OK);
  return json;
}

/* `text` with the first `from` replaced by `to` (malloc'd). */
__attribute__((noinline, unused)) static char *replaced(const char *text, const char *from, const char *to) {
  const char *hit = strstr(text, from);
  if (!hit) fail_msg("\"%s\" is not in the text", from);
  char *out = malloc(strlen(text) + strlen(to) + 1);
  size_t before = (size_t)(hit - text);
  memcpy(out, text, before);
  strcpy(out + before, to);
  strcat(out, hit + strlen(from));
  return out;
}

/* A seeded source of numbers below `below`. */
static inline uint32_t pick(uint64_t *counter, uint32_t below) {
  uint32_t bits[4];
  iso_rng(7, ISO_RNG_TEST, 0, (*counter)++, bits);
  return bits[0] % below;
}

/* Appends a random character of a kind that pre-tokenizers care about; only characters of Unicode 9, which every
 * library knows. */
static inline void append_random(uint64_t *counter, iso_string *out) {
  static const char *const pieces[] = {
      "'s",  "'S", "'ll",   "'\xC5\xBF", "'re", " ",  "  ", "\n",       "\r\n",     "\t",           "/", "!",
      "...", "a",  "Hello", "WORLD",     "x1",  "42", "<|", "\xC2\xA0", "\xC2\x85", "\xE3\x80\x80", "_"};
  static const uint32_t ranges[][2] = {{0x20, 0x7E},     {0xA0, 0x17F},      {0x1C4, 0x1CC},    {0x2B0, 0x2FF},
                                       {0x300, 0x36F},   {0x391, 0x3A1},     {0x410, 0x44F},    {0x5D0, 0x5EA},
                                       {0x660, 0x669},   {0x905, 0x939},     {0xE01, 0xE3A},    {0x1100, 0x1112},
                                       {0x1161, 0x1175}, {0x2160, 0x2188},   {0x3041, 0x3096},  {0x4E00, 0x4E80},
                                       {0xAC00, 0xAC40}, {0x1D165, 0x1D169}, {0x1F600, 0x1F64F}};
  if (pick(counter, 3) == 0) {
    const char *piece = pieces[pick(counter, ISO_COUNT(pieces))];
    iso_string_append(out, piece, strlen(piece));
    return;
  }
  const uint32_t *range = ranges[pick(counter, ISO_COUNT(ranges))];
  iso_utf8_append(out, range[0] + pick(counter, range[1] - range[0] + 1));
}

static inline void random_text(uint64_t *counter, size_t characters, iso_string *out) {
  if (out->data) out->length = 0;
  iso_string_append(out, "", 0);
  for (size_t i = 0; i < characters; i++) append_random(counter, out);
}

#endif
