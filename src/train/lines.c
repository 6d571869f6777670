/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's .jsonl files: a JSON object a line, which begins with the step that it belongs to.
 *
 * Invariants
 *  1. On a resume, lines beyond the resumed step and a torn last line move to aside/, so that each step's lines stand
 *     once.
 *  2. A line is there once its append returned, whatever happens to the process then. One that could not be written is
 *     kept, and goes before the next; closing tries once more.
 *  3. Each start writes to a file of its own, which begins with the lines that stay: a process that was stopped and
 *     replaced, and wakes up again, writes to the one that is no longer there.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

static const double RETRY_S = 5; /* each attempt that fails says so */

struct iso_lines {
  int fd;
  int64_t offset;
  char *path;
  iso_string kept;    /* lines not written yet */
  iso_status failure; /* why */
  double retry_s;     /* when to try again */
};

/* Offset of the first line that is torn or whose step is beyond `step`. */
static size_t keep_until(const char *data, size_t bytes, int64_t step) {
  size_t at = 0;
  while (at < bytes) {
    const char *end = memchr(data + at, '\n', bytes - at);
    if (!end) return at;
    const char *prefix = "{\"step\": ";
    const size_t length = strlen(prefix);
    if ((size_t)(end - (data + at)) < length || strncmp(data + at, prefix, length) != 0) return at;
    if (strtoll(data + at + length, NULL, 10) > step) return at;
    at = (size_t)(end - data) + 1;
  }
  return at;
}

static iso_status set_aside(iso_arena *arena, const char *run, const char *name, const char *data, size_t bytes) {
  const char *folder = iso_path_join(arena, run, "aside");
  ISO_TRY(iso_path_make(folder));
  for (int i = 1; i < 100000; i++) {
    const char *path = iso_path_join(arena, folder, iso_arena_printf(arena, "%s-%05d.jsonl", name, i));
    if (!iso_path_exists(path)) return iso_file_replace(path, data, bytes);
  }
  return iso_fail(ISO_ERR_IO, "%s: holds 100,000 cut-off %s files; move some away", folder, name);
}

static iso_status cut_back(iso_arena *arena, const char *run, const char *name, const char *path, int64_t step,
                           int64_t *offset) {
  *offset = 0;
  if (!iso_path_exists(path)) return ISO_OK;
  char *data;
  size_t bytes;
  ISO_TRY(iso_file_read(path, &data, &bytes));
  const size_t kept = keep_until(data, bytes, step);
  iso_status status = ISO_OK;
  if (kept < bytes) status = set_aside(arena, run, name, data + kept, bytes - kept);
  if (status == ISO_OK) status = iso_file_replace(path, data, kept);
  free(data);
  *offset = (int64_t)kept;
  return status;
}

iso_status iso_lines_open(const char *run, const char *name, int64_t step, iso_lines **out) {
  *out = NULL;
  iso_arena *arena = iso_arena_create();
  iso_lines *lines = calloc(1, sizeof *lines);
  if (!arena || !lines) {
    iso_arena_destroy(&arena);
    free(lines);
    return iso_fail(ISO_ERR_MEMORY, "%s: no memory to open %s.jsonl", run, name);
  }
  const char *path = iso_path_join(arena, run, iso_arena_printf(arena, "%s.jsonl", name));
  lines->path = strdup(path);
  lines->fd = -1;
  iso_status status = lines->path ? cut_back(arena, run, name, path, step, &lines->offset) : ISO_ERR_MEMORY;
  if (status == ISO_OK) {
    lines->fd = iso_os.open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (lines->fd < 0 || iso_os.ftruncate(lines->fd, lines->offset) != 0)
      status = iso_fail(ISO_ERR_IO, "%s: cannot open for writing: %s", path, strerror(errno));
  }
  iso_arena_destroy(&arena);
  if (status != ISO_OK) {
    (void)!iso_lines_close(&lines);
    return status;
  }
  *out = lines;
  return ISO_OK;
}

iso_status iso_lines_append(iso_lines *lines, const char *text, size_t bytes) {
  iso_string_append(&lines->kept, text, bytes);
  if (iso_string_failed(&lines->kept)) return ISO_ERR_MEMORY; /* logged already */
  if (lines->failure != ISO_OK && bytes > 0 && iso_clock_s() < lines->retry_s) return lines->failure;
  lines->failure = iso_file_pwrite(lines->fd, lines->path, lines->kept.data, lines->kept.length, lines->offset);
  lines->retry_s = iso_clock_s() + RETRY_S;
  if (lines->failure != ISO_OK) return lines->failure;
  lines->offset += (int64_t)lines->kept.length;
  lines->kept.length = 0;
  return ISO_OK;
}

iso_status iso_lines_sync(iso_lines *lines) {
  if (iso_os.fdatasync(lines->fd) == 0) return ISO_OK;
  return iso_fail(ISO_ERR_IO, "%s: cannot sync: %s", lines->path, strerror(errno));
}

iso_status iso_lines_close(iso_lines **address) {
  if (!address || !*address) return ISO_OK;
  iso_lines *lines = *address;
  iso_status status = lines->kept.length ? iso_lines_append(lines, "", 0) : ISO_OK;
  if (lines->fd >= 0 && iso_os.close(lines->fd) != 0)
    status = iso_fail(ISO_ERR_IO, "%s: close: %s", lines->path, strerror(errno));
  free(lines->path);
  iso_string_fini(&lines->kept);
  free(lines);
  *address = NULL;
  return status;
}
