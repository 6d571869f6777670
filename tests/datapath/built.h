/* SPDX-License-Identifier: Apache-2.0
 *
 * built: what the tests of token shards look at. After fixture.h.
 */
#ifndef ISO_TEST_BUILT_H
#define ISO_TEST_BUILT_H

#include <stdatomic.h>
#include <unistd.h>

static UNUSED void read_file(const char *folder, const char *name, char **data, size_t *bytes) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", fixture_path(folder), name);
  assert_int_equal(iso_file_read(path, data, bytes), ISO_OK);
}

/* Both folders hold the same files with the same bytes. Returns how many. */
static UNUSED size_t assert_same(const char *a, const char *b) {
  iso_arena *arena = iso_arena_create();
  char **names, **others;
  size_t count, other_count;
  assert_int_equal(iso_path_list(arena, fixture_path(a), &names, &count), ISO_OK);
  assert_int_equal(iso_path_list(arena, fixture_path(b), &others, &other_count), ISO_OK);
  assert_int_equal(count, other_count);
  for (size_t i = 0; i < count; i++) {
    char *x, *y;
    size_t x_bytes, y_bytes;
    assert_string_equal(names[i], others[i]);
    read_file(a, names[i], &x, &x_bytes);
    read_file(b, names[i], &y, &y_bytes);
    if (x_bytes != y_bytes || memcmp(x, y, x_bytes) != 0) fail_msg("%s differs in %s and %s", names[i], a, b);
    free(x);
    free(y);
  }
  iso_arena_destroy(&arena);
  return count;
}

/* A process that is really killed, again and again, at the kill_after-th write. */
static atomic_int kill_after;
static ssize_t (*real_pwrite)(int fd, const void *data, size_t bytes, int64_t offset);
static UNUSED ssize_t deadly_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  if (kill_after-- == 0) {
    (void)real_pwrite(fd, data, bytes / 2, offset);
    _exit(9);
  }
  return real_pwrite(fd, data, bytes, offset);
}

#endif
