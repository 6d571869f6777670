/* SPDX-License-Identifier: Apache-2.0
 *
 * Local blobs: what a path means, and reads that fail when the file is no longer what was listed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/io.h"
#include "io/scratch.h"

#include <errno.h>
#include <fcntl.h>

static char folder[128];
static iso_arena *arena;
static iso_os_table real;

static int setup(void **state) {
  iso_log_quiet(true);
  scratch_make(folder);
  arena = iso_arena_create();
  real = iso_os;
  return 0;
}

static int teardown(void **state) {
  iso_os = real;
  iso_arena_destroy(&arena);
  scratch_remove(folder);
  return 0;
}

static char *below(const char *name) {
  return iso_path_join(arena, folder, name);
}

static void make(const char *name, const char *text) {
  scratch_write(below(name), text, strlen(text));
}

static void assert_lists(const char *path, int64_t count, const char *const *names) {
  iso_blob_info *blobs;
  int64_t found;
  assert_int_equal(iso_blobs_list(arena, path, &blobs, &found), ISO_OK);
  assert_int_equal(found, count);
  for (int64_t i = 0; i < count; i++) assert_string_equal(blobs[i].path, below(names[i]));
}

static void test_paths(void **state) {
  mkdir(below("b"), 0777);
  mkdir(below("b/.hidden"), 0777);
  mkdir(below("empty"), 0777);
  make("a", "1");
  make("b/x.txt", "22");
  make("b/.dot", "");
  make("b/.hidden/y.txt", "333");
  make("b-1", "1"); /* '-' sorts before '/': the order is that of whole paths */
  make("star*", "4");
  mkfifo(below("b/pipe"), 0666);
  assert_lists(folder, 6, (const char *[]){"a", "b-1", "b/.dot", "b/.hidden/y.txt", "b/x.txt", "star*"});
  assert_lists(below("a"), 1, (const char *[]){"a"});
  assert_lists(below("b*"), 4, (const char *[]){"b-1", "b/.dot", "b/.hidden/y.txt", "b/x.txt"});
  assert_lists(below("*/x.txt"), 1, (const char *[]){"b/x.txt"});
  assert_lists(below("star*"), 1, (const char *[]){"star*"});
  iso_blob_info *blobs;
  int64_t count;
  assert_int_equal(iso_blobs_list(arena, below("b"), &blobs, &count), ISO_OK);
  assert_int_equal(blobs[1].bytes, 3);
  assert_int_equal(iso_blobs_list(arena, below("none"), &blobs, &count), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_blobs_list(arena, below("none*"), &blobs, &count), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_blobs_list(arena, below("a/b"), &blobs, &count), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_blobs_list(arena, below("empty"), &blobs, &count), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_blobs_list(arena, "", &blobs, &count), ISO_ERR_CONFIG);
  assert_int_equal(iso_blobs_list(arena, "/dev/null", &blobs, &count), ISO_ERR_CONFIG);
  assert_int_equal(iso_blobs_list(arena, below("b/pipe"), &blobs, &count), ISO_ERR_CONFIG);
  assert_null(blobs);
  assert_int_equal(symlink("..", below("b/loop")), 0);
  assert_int_equal(iso_blobs_list(arena, folder, &blobs, &count), ISO_ERR_FORMAT);
  assert_non_null(strstr(iso_last_error(), "contains itself"));
}

static iso_blob *open_one(const char *name) {
  iso_blob_info info;
  iso_blob *blob;
  assert_int_equal(iso_blob_local(arena, below(name), &info), ISO_OK);
  assert_int_equal(iso_blob_open(&info, &blob), ISO_OK);
  return blob;
}

static ssize_t short_pread(int fd, void *data, size_t bytes, int64_t offset) {
  static int calls;
  if (calls++ % 2) {
    errno = EINTR;
    return -1;
  }
  return real.pread(fd, data, bytes > 1 ? 1 : bytes, offset);
}

static ssize_t growing_pread(int fd, void *data, size_t bytes, int64_t offset) {
  make("f", "012345678901234567890");
  return real.pread(fd, data, bytes, offset);
}

static ssize_t failing_pread(int fd, void *data, size_t bytes, int64_t offset) {
  errno = EIO;
  return -1;
}

static void test_reads(void **state) {
  char text[16] = {0};
  make("f", "0123456789");
  iso_blob *blob = open_one("f");
  assert_int_equal(iso_blob_info_of(blob)->bytes, 10);
  assert_int_equal(iso_blob_read(blob, 3, 4, text), ISO_OK);
  assert_string_equal(text, "3456");
  assert_int_equal(iso_blob_read(blob, 10, 0, text), ISO_OK);
  assert_int_equal(iso_blob_read(blob, 10, 1, text), ISO_ERR_INTERNAL);
  assert_int_equal(iso_blob_read(blob, -1, 1, text), ISO_ERR_INTERNAL);
  assert_int_equal(iso_blob_read(blob, 1, INT64_MAX, text), ISO_ERR_INTERNAL);
  iso_os.pread = short_pread;
  assert_int_equal(iso_blob_read(blob, 0, 10, text), ISO_OK);
  assert_string_equal(text, "0123456789");
  iso_os.pread = failing_pread;
  assert_int_equal(iso_blob_read(blob, 0, 10, text), ISO_ERR_IO);
  iso_os.pread = growing_pread; /* changed while it is read */
  assert_int_equal(iso_blob_read(blob, 0, 10, text), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "it had 10 bytes and has 21"));
  iso_blob_close(&blob);
  assert_null(blob);
  iso_blob_close(&blob);
}

static void test_changes(void **state) {
  char text[16] = {0};
  make("f", "0123456789");
  iso_blob *blob = open_one("f");
  assert_int_equal(iso_blob_check(blob), ISO_OK);
  const struct timespec later[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1234567, .tv_nsec = 89}};
  assert_int_equal(utimensat(AT_FDCWD, below("f"), later, 0), 0);
  assert_int_equal(iso_blob_read(blob, 0, 10, text), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "it was written to"));
  iso_blob_close(&blob);
  blob = open_one("f");
  assert_string_equal(iso_blob_info_of(blob)->version, "1234567.000000089");
  assert_int_equal(iso_blob_read(blob, 0, 10, text), ISO_OK);
  unlink(below("f"));
  assert_int_equal(iso_blob_read(blob, 0, 10, text), ISO_ERR_MISMATCH);
  assert_int_equal(iso_blob_check(blob), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "it is gone"));
  iso_blob_close(&blob);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_paths, setup, teardown),
      cmocka_unit_test_setup_teardown(test_reads, setup, teardown),
      cmocka_unit_test_setup_teardown(test_changes, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
