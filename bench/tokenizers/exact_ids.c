/* SPDX-License-Identifier: Apache-2.0
 *
 * exact_ids TOKENIZER PATTERN 0|1: encodes texts from standard input, with added tokens parsed or not, for
 * bench/tokenizers/exact. Each text is a little-endian uint32 length and its bytes; each answer a uint32 count and
 * int32 ids, written at once. Ill-formed UTF-8 is replaced. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/text.h"

int main(int argc, char **argv) {
  iso_tokenizer *tokenizer;
  if (argc != 4 || iso_tokenizer_open(argv[1], argv[2], &tokenizer) != ISO_OK) return 2;
  iso_encoder *encoder = iso_encoder_create(tokenizer);
  char *text = NULL;
  size_t capacity = 0;
  uint32_t length;
  int status = encoder ? 0 : 2;
  while (status == 0 && fread(&length, sizeof length, 1, stdin) == 1) {
    if (length + (size_t)1 > capacity) {
      capacity = 2 * (length + (size_t)1);
      free(text);
      text = malloc(capacity);
    }
    const int32_t *ids;
    size_t count;
    if (!text || fread(text, 1, length, stdin) != length ||
        iso_encode(encoder, text, length, argv[3][0] == '1', true, &ids, &count) != ISO_OK) {
      status = 1;
      break;
    }
    const uint32_t answer = (uint32_t)count;
    if (fwrite(&answer, sizeof answer, 1, stdout) != 1 || fwrite(ids, sizeof *ids, count, stdout) != count ||
        fflush(stdout) != 0)
      status = 1;
  }
  free(text);
  iso_encoder_destroy(&encoder);
  iso_tokenizer_close(&tokenizer);
  return status;
}
