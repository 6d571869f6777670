/* SPDX-License-Identifier: Apache-2.0
 *
 * The newest lines of a file to which another process appends, read on from where the last look ended.
 *
 * Invariants
 *  1. Only whole lines are given: one without its newline is still being written, or was torn by a kill, and is looked
 *     at again.
 *  2. A byte of zero, which a power cut leaves, is given as '?': no line that has a CRC matches it then.
 *  3. A file that took the place of the one before, or was cut, is read anew.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "cli/top.h"

/* Whether a line begins at `offset`. */
static bool line_begins(int fd, int64_t offset) {
  char before = '\n';
  return offset == 0 || (iso_os.pread(fd, &before, 1, offset - 1) == 1 && before == '\n');
}

/* From tail->offset up to `end`, without what stands before the first newline if `skip`. */
static iso_status read_lines(iso_tail *tail, int fd, const char *path, int64_t end, bool skip, char **lines) {
  const size_t bytes = (size_t)(end - tail->offset);
  char *text = malloc(bytes + 1);
  if (!text) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to read its last lines", path);
  const iso_status status = iso_file_pread(fd, path, text, bytes, tail->offset);
  if (status != ISO_OK) {
    free(text);
    return status == ISO_ERR_FORMAT ? ISO_OK : status; /* cut meanwhile: the next look sees it */
  }
  const char *first = skip ? memchr(text, '\n', bytes) : text;
  const char *last = memrchr(text, '\n', bytes);
  const size_t from = first ? (size_t)(first - text) + skip : bytes, to = last ? (size_t)(last - text) + 1 : 0;
  if (from >= to) {
    free(text);
    return ISO_OK;
  }
  memmove(text, text + from, to - from);
  text[to - from] = 0;
  for (char *zero = text; (zero = memchr(zero, 0, (size_t)(text + (to - from) - zero)));) *zero = '?';
  tail->offset += (int64_t)to;
  *lines = text;
  return ISO_OK;
}

static iso_status read_on(iso_tail *tail, int fd, const char *path, size_t most, char **lines, bool *anew) {
  struct stat info;
  if (fstat(fd, &info) != 0) return iso_os_fail("look at", path);
  if (!S_ISREG(info.st_mode)) return iso_fail(ISO_ERR_FORMAT, "%s is no file", path);
  bool skip = false;
  if (info.st_ino != tail->inode || info.st_size < tail->offset || !line_begins(fd, tail->offset)) {
    *tail = (iso_tail){.inode = info.st_ino};
    *anew = true;
  }
  if (info.st_size - tail->offset > (int64_t)most) {
    tail->offset = info.st_size - (int64_t)most;
    skip = !line_begins(fd, tail->offset);
    *anew = true;
  }
  return info.st_size > tail->offset ? read_lines(tail, fd, path, info.st_size, skip, lines) : ISO_OK;
}

iso_status iso_tail_next(iso_tail *tail, const char *path, size_t most, char **lines, bool *anew) {
  *lines = NULL;
  *anew = false;
  const int fd = iso_os.open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
  if (fd < 0 && errno == ENOENT) {
    *anew = tail->inode != 0;
    *tail = (iso_tail){0};
    return ISO_OK;
  }
  if (fd < 0) return iso_os_fail("open", path);
  const iso_status status = read_on(tail, fd, path, most, lines, anew);
  (void)iso_os.close(fd);
  return status;
}
