/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: any bytes as a Parquet file. They are refused with a message, or give values that lie in memory. Checksums
 * are of pages, so they stop few inputs.
 *
 *   fuzz_parquet corpus tests/data/datapath
 */
#include "data/parquet/parquet.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct memory {
  const uint8_t *bytes;
  int64_t length;
} memory;

static iso_status read_memory(void *context, int64_t offset, int64_t length, void *buffer) {
  const memory *m = context;
  if (offset < 0 || length < 0 || offset > m->length || length > m->length - offset) abort();
  if (length) memcpy(buffer, m->bytes + offset, (size_t)length);
  return ISO_OK;
}

/* Reads every byte, and gives up on inputs that say to hold very many. */
static iso_status add_value(void *context, const char *bytes, size_t length) {
  int64_t *left = context;
  static volatile uint32_t sum;
  if (length) sum += iso_crc32c(0, bytes, length);
  *left -= 1 + (int64_t)length;
  return *left < 0 ? ISO_ERR_SPACE : ISO_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const fields[] = {"text", "a.b"};
  memory m = {data, (int64_t)size};
  const iso_parquet_input input = {"fuzz", (int64_t)size, read_memory, &m, NULL, NULL};
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(fields); i++) {
    int64_t left = 1 << 20;
    if (iso_parquet_read(&input, fields[i], add_value, &left) != ISO_OK && left >= 0 && !iso_last_error()[0]) abort();
  }
  return 0;
}
