/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as text under tokenizers of SentencePiece's kind: ids come, all can be decoded, and what an encoder
 * remembers of earlier texts changes nothing. */
#include <stdlib.h>
#include <string.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KINDS = 4 };
static iso_tokenizer *tokenizers[KINDS];
static iso_encoder *encoders[KINDS];

static void prepare(void) {
  static const char *const files[KINDS] = {
      ISO_TEST_DATA "/text/sentencepiece/nfkc.model", ISO_TEST_DATA "/text/sentencepiece/ties.model",
      ISO_TEST_DATA "/text/sentencepiece/legacy.json", ISO_TEST_DATA "/text/sentencepiece/split.json"};
  for (int i = 0; i < KINDS; i++) {
    if (iso_tokenizer_open(files[i], "", &tokenizers[i]) != ISO_OK) abort();
    encoders[i] = iso_encoder_create(tokenizers[i]);
  }
}

static void encode(iso_encoder *encoder, int kind, bool special, const char *text, size_t size, const int32_t **ids,
                   size_t *count) {
  iso_string out = {0};
  if (iso_encode(encoder, text, size, special, true, ids, count) != ISO_OK) abort();
  if (iso_decode(tokenizers[kind], *ids, *count, &out) != ISO_OK) abort();
  iso_string_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const int32_t *ids, *again;
  size_t count, count_again;
  if (!encoders[0]) prepare();
  for (int special = 0; special < 2; special++) {
    for (int i = 0; i < KINDS; i++) encode(encoders[i], i, special, (const char *)data, size, &ids, &count);
    if (size % 16 != 0) continue; /* a new encoder is slow */
    const int kind = (int)(size / 16 % KINDS);
    iso_encoder *fresh = iso_encoder_create(tokenizers[kind]);
    encode(encoders[kind], kind, special, (const char *)data, size, &ids, &count);
    encode(fresh, kind, special, (const char *)data, size, &again, &count_again);
    if (count != count_again || memcmp(ids, again, count * sizeof *ids) != 0) abort();
    iso_encoder_destroy(&fresh);
  }
  return 0;
}
