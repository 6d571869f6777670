/* SPDX-License-Identifier: Apache-2.0
 *
 * Folders that tests write in: made under $TMPDIR, removed with all they hold.
 */
#ifndef ISO_TESTS_IO_SCRATCH_H
#define ISO_TESTS_IO_SCRATCH_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline void scratch_make(char path[128]) {
  const char *parent = getenv("TMPDIR");
  snprintf(path, 128, "%.80s/isotach-test-XXXXXX", parent && *parent ? parent : "/tmp");
  if (!mkdtemp(path)) {
    perror(path);
    abort();
  }
}

static inline int scratch_unlink(const char *path, const struct stat *info, int type, struct FTW *at) {
  (void)info;
  (void)type;
  (void)at;
  return remove(path);
}

static inline void scratch_remove(const char *path) {
  nftw(path, scratch_unlink, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void scratch_write(const char *path, const void *data, size_t bytes) {
  FILE *file = fopen(path, "wb");
  if (!file || (bytes && fwrite(data, 1, bytes, file) != bytes) || fclose(file)) {
    perror(path);
    abort();
  }
}

#endif
