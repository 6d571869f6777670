/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as tokenizer.json (when they begin with '{'), as a SentencePiece model or as a rank file: opened or
 * refused, and when opened it encodes and decodes. The file lies in memory. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char text[] = "the cat's hat  \xC3\xA9\xCC\x81 123\n<|endoftext|></s>\xE2\x96\x81\xEF\xAC\x81\xFF";
  static int fd = -1;
  static char path[64];
  if (fd < 0) {
    fd = memfd_create("tokenizer", 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    iso_log_quiet(true);
  }
  if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
  iso_tokenizer *tokenizer;
  iso_status status = iso_tokenizer_open(path, "", &tokenizer);
  if (status == ISO_ERR_CONFIG) status = iso_tokenizer_open(path, "[a-z]+|\\s", &tokenizer); /* a rank file */
  if (status != ISO_OK) return 0;
  iso_encoder *encoder = iso_encoder_create(tokenizer);
  const int32_t *ids;
  size_t count;
  iso_string out = {0};
  for (int special = 0; special < 2; special++)
    if (iso_encode(encoder, text, sizeof text - 1, special, true, &ids, &count) == ISO_OK)
      if (iso_decode(tokenizer, ids, count, &out) != ISO_OK) abort(); /* every id we give can be decoded */
  iso_string_fini(&out);
  iso_encoder_destroy(&encoder);
  iso_tokenizer_close(&tokenizer);
  return 0;
}
