/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: any bytes as token files: the first byte says of which kind, the next two how long the .idx is. They are
 * refused with a message, or every document lies in its file and decodes to ids of the vocabulary that end with EOS.
 *
 *   fuzz_shards corpus
 */
#include "data/data.h"
#include "scratch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  make_scratch();
  return 0;
}

static void read_documents(const iso_source *source) {
  int32_t *ids = NULL;
  size_t capacity = 0;
  for (int64_t i = 0; i < iso_source_documents(source); i++) {
    iso_document place = iso_source_document(source, i);
    int64_t count;
    iso_bad bad;
    check(place.length >= 1 && place.offset >= 0 && place.offset + place.length <= iso_source_file(source, 0)->bytes);
    char *stored = malloc((size_t)place.length);
    check(iso_source_read(source, 0, place.offset, place.length, stored) == ISO_OK);
    check(iso_source_tokens(source, i, stored, (size_t)place.length, &ids, &capacity, &count, &bad) == ISO_OK);
    check(bad.is || (count >= 1 && ids[count - 1] == iso_tokenizer_eos(tokenizer)));
    check(!bad.is || (bad.cause[0] && bad.byte >= place.offset && bad.byte < place.offset + place.length));
    for (int64_t t = 0; t < count && !bad.is; t++) check(ids[t] >= 0 && ids[t] < iso_tokenizer_vocabulary(tokenizer));
    free(stored);
  }
  free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 3) return 0;
  const int kind = data[0] % 4;
  size_t index = data[1] | (size_t)data[2] << 8;
  data += 3;
  size -= 3;
  if (index > size || kind > 0) index = kind > 0 ? 0 : size;
  if (kind == 0) write_file(path_of("x.idx"), data, index);
  write_file(path_of("x.bin"), data + index, size - index);
  const iso_source_options options = {.path = path_of("x.bin"),
                                      .format = kind == 0 ? "megatron" : "tokens",
                                      .weight = 1,
                                      .token_type = kind == 2   ? "uint16"
                                                    : kind == 3 ? "uint32"
                                                                : NULL,
                                      .tokenizer = tokenizer};
  iso_source *source;
  if (iso_source_open(&options, &source) == ISO_OK) {
    read_documents(source);
    iso_source_close(&source);
  } else {
    check(iso_last_error()[0] != 0);
  }
  unlink(path_of("x.idx"));
  return 0;
}
