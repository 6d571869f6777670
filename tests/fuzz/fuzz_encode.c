/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as text, under each pre-tokenizer and with NFC: ids come, decode to the text as repaired, and are those
 * that cutting and merging piece by piece gives. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KINDS = 5 };
static iso_tokenizer *tokenizers[KINDS];
static iso_encoder *encoders[KINDS];

static void prepare(void) {
  static const char *const patterns[KINDS] = {"gpt2", "cl100k", "qwen2", "o200k", "qwen2"};
  static const char text[] =
      "the cat and the hat and the bat sat on the mat; THAT is that's 1234 \xC3\xA9\xC3\xA9  \n\n";
  const char *texts[1] = {text};
  size_t lengths[1] = {sizeof text - 1};
  char folder[] = "/tmp/isotach-fuzz-XXXXXX", path[128];
  if (!mkdtemp(folder)) abort();
  for (int i = 0; i < KINDS; i++) {
    iso_bpe_options options = {300, patterns[i], "<|endoftext|>"};
    if (iso_bpe_train(&options, texts, lengths, 1, folder) != ISO_OK) abort();
    if (iso_tokenizer_open(folder, "", &tokenizers[i]) != ISO_OK) abort();
    tokenizers[i]->nfc = i == KINDS - 1;
    encoders[i] = iso_encoder_create(tokenizers[i]);
  }
  snprintf(path, sizeof path, "%s/tokenizer.json", folder);
  unlink(path);
  snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
  unlink(path);
  rmdir(folder);
}

/* Aborts unless `ids` are what the plain road gives for valid text. */
static void check_plain(const iso_tokenizer *t, const iso_string *text, const int32_t *ids, size_t count) {
  int32_t *expected = malloc((text->length + 1) * sizeof *expected);
  iso_bpe_scratch scratch = {0};
  size_t wanted = 0;
  for (size_t at = 0, stop; at < text->length; at = stop) {
    stop = iso_split_next(t->steps[0].splitter, (const uint8_t *)text->data, at, text->length);
    for (size_t i = at; i < stop; i++) expected[wanted + i - at] = t->vocabulary.byte_ids[(uint8_t)text->data[i]];
    wanted += iso_bpe_merge(&t->pairs, expected + wanted, stop - at, &scratch);
  }
  if (wanted != count || memcmp(expected, ids, count * sizeof *ids) != 0) abort();
  free(expected);
  free(scratch.memory);
}

static void encode_once(const char *data, size_t size) {
  iso_string repaired = {0}, out = {0};
  iso_string_append(&repaired, "", 0);
  iso_utf8_replace(data, size, &repaired);
  for (int i = 0; i < KINDS; i++)
    for (int special = 0; special < 2; special++) {
      const int32_t *ids;
      size_t count;
      if (iso_encode(encoders[i], data, size, special, true, &ids, &count) != ISO_OK) abort();
      if (out.data) out.length = 0;
      if (iso_decode(tokenizers[i], ids, count, &out) != ISO_OK) abort();
      bool same = out.length == repaired.length && memcmp(out.data, repaired.data, out.length) == 0;
      if (!tokenizers[i]->nfc && !same) abort();
      if (!tokenizers[i]->nfc && !special) check_plain(tokenizers[i], &repaired, ids, count);
    }
  iso_string_fini(&repaired);
  iso_string_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!encoders[0]) prepare();
  encode_once((const char *)data, size);
  if (size == 0 || size > 512) return 0;
  iso_string longer = {0}; /* long enough for windows */
  while (longer.length < 256) iso_string_append(&longer, data, size);
  encode_once(longer.data, longer.length);
  iso_string_fini(&longer);
  return 0;
}
