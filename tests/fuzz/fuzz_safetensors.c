/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: any bytes as a safetensors file. They are refused with a message, or every tensor lies inside them and can
 * be read.
 *
 * Build with clang and -DISO_FUZZ=ON; start from tests/data/io:  fuzz_safetensors corpus tests/data/io
 */
#include "io/io.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool holds) {
  if (!holds) abort();
}

/* The header alone, from memory of exactly its size, so that one byte too far is seen. */
static void parse_header(const uint8_t *data, size_t size) {
  iso_safetensors_table table;
  int64_t length;
  uint8_t first[8] = {0};
  memcpy(first, data, size < 8 ? size : 8);
  if (iso_safetensors_header_length("fuzz", (int64_t)size, first, &length) != ISO_OK) return;
  char *header = malloc((size_t)length);
  if (length) memcpy(header, data + 8, (size_t)length);
  if (iso_safetensors_table_init(&table, "fuzz", (int64_t)size, header, (size_t)length) == ISO_OK) {
    for (size_t i = 0; i < table.count; i++) {
      const iso_safetensor *t = &table.tensors[i];
      check(t->offset >= 8 + length && t->bytes >= 0 && t->offset + t->bytes <= (int64_t)size);
      check(i == 0 || strcmp(t[-1].name, t->name) < 0);
    }
    iso_safetensors_table_fini(&table);
  }
  free(header);
}

static void open_file(const uint8_t *data, size_t size) {
  char path[64];
  iso_safetensors *file;
  int fd = memfd_create("fuzz", MFD_CLOEXEC);
  check(fd >= 0 && write(fd, data, size) == (ssize_t)size);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (iso_safetensors_open(path, &file) == ISO_OK) {
    for (size_t i = 0; i < iso_safetensors_count(file); i++) {
      const iso_safetensor *t = iso_safetensors_at(file, i);
      check(iso_safetensors_find(file, t->name) == t);
      float *values = malloc((size_t)t->bytes * 4 + 8);
      int32_t *whole = malloc((size_t)t->bytes * 4 + 8);
      iso_status ignored = iso_safetensor_to_f32(t, values);
      ignored = iso_safetensor_to_i32(t, whole);
      (void)ignored;
      free(values);
      free(whole);
    }
    iso_safetensors_close(&file);
  } else {
    check(*iso_last_error() && !strchr(iso_last_error(), '\n'));
  }
  close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  iso_log_quiet(true);
  parse_header(data, size);
  open_file(data, size);
  return 0;
}
