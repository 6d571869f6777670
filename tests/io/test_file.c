/* SPDX-License-Identifier: Apache-2.0
 *
 * The writers of file.c and safetensors_write.c while each call of the OS seam fails in turn: under the final name
 * there is the old content or the new, whole, and no temporary file stays behind.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/io.h"
#include "io/scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>

static char folder[128], path[160];
static iso_os_table real;
static int calls, fail_at, fail_error;

static bool fails(void) {
  if (calls++ != fail_at) return false;
  errno = fail_error;
  return true;
}

static int seam_open(const char *name, int flags, int mode) {
  return fails() ? -1 : real.open(name, flags, mode);
}
static int seam_close(int fd) {
  int result = real.close(fd);
  return fails() ? -1 : result;
}
static ssize_t seam_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  return fails() ? -1 : real.pwrite(fd, data, (bytes + 1) / 2, offset);
}
static int seam_fsync(int fd) {
  return fails() ? -1 : 0;
}
static int seam_rename(const char *from, const char *to) {
  return fails() ? -1 : real.rename(from, to);
}
static int seam_rename_noreplace(const char *from, const char *to) {
  return fails() ? -1 : real.rename_noreplace(from, to);
}

static int setup(void **state) {
  iso_log_quiet(true);
  scratch_make(folder);
  snprintf(path, sizeof path, "%s/file", folder);
  real = iso_os;
  return 0;
}

static int teardown(void **state) {
  iso_os = real;
  scratch_remove(folder);
  return 0;
}

static void break_call(int at, int error) {
  calls = 0;
  fail_at = at;
  fail_error = error;
  iso_os.open = seam_open;
  iso_os.close = seam_close;
  iso_os.pwrite = seam_pwrite;
  iso_os.fsync = seam_fsync;
  iso_os.fdatasync = seam_fsync;
  iso_os.rename = seam_rename;
  iso_os.rename_noreplace = seam_rename_noreplace;
}

static int entries(void) {
  int count = 0;
  DIR *open_folder = opendir(folder);
  for (struct dirent *e; (e = readdir(open_folder));) count += e->d_name[0] != '.';
  closedir(open_folder);
  return count;
}

static void replacing_a_model_is_all_or_nothing(void **state) {
  float values[2] = {1, 1};
  const iso_tensor_out tensor = {"a", ISO_F32, 1, {2}, values};
  assert_int_equal(iso_safetensors_write(path, &tensor, 1, NULL, NULL, NULL), ISO_OK);
  for (int at = 0;; at++) {
    float read[2];
    iso_safetensors *file;
    float before = values[0];
    values[0] = values[1] = (float)(at + 2);
    break_call(at, at % 2 ? ENOSPC : EIO);
    iso_status status = iso_safetensors_write(path, &tensor, 1, NULL, NULL, NULL);
    iso_os = real;
    assert_int_equal(entries(), 1);
    assert_int_equal(iso_safetensors_open(path, &file), ISO_OK);
    assert_int_equal(iso_safetensor_to_f32(iso_safetensors_at(file, 0), read), ISO_OK);
    iso_safetensors_close(&file);
    assert_true(read[0] == read[1] && (read[0] == values[0] || read[0] == before));
    if (status == ISO_OK) assert_true(read[0] == values[0]);
    if (calls <= at) assert_int_equal(status, ISO_OK);
    if (calls <= at) break;
    if (status != ISO_OK) assert_int_equal(status, at % 2 ? ISO_ERR_SPACE : ISO_ERR_IO);
    values[0] = read[0];
  }
  assert_true(fail_at >= 8);
}

static void publishing_never_replaces(void **state) {
  bool taken;
  int at = 0;
  for (;; at++) {
    break_call(at, EIO);
    iso_status status = iso_file_publish(path, "first", 5, &taken);
    iso_os = real;
    assert_false(taken);
    if (status == ISO_OK) break;
    assert_int_equal(status, ISO_ERR_IO);
    if (entries() == 1) assert_int_equal(unlink(path), 0); /* only the last sync of the folder failed */
    assert_int_equal(entries(), 0);
  }
  assert_true(at >= 6);
  assert_int_equal(iso_file_publish(path, "second", 6, &taken), ISO_OK);
  assert_true(taken);
  char *data;
  size_t bytes;
  assert_int_equal(iso_file_read(path, &data, &bytes), ISO_OK);
  assert_string_equal(data, "first");
  free(data);
  assert_int_equal(entries(), 1);
  assert_int_equal(iso_file_publish("/nonexistent/x", "a", 1, &taken), ISO_ERR_NOT_FOUND);
}

static void sinks_never_reuse_a_name(void **state) {
  enum { LARGE = (8 << 20) + 12345 };
  iso_sink sink, second;
  char *data = malloc(LARGE), *read;
  size_t bytes;
  for (size_t i = 0; i < LARGE; i++) data[i] = (char)(i * i >> 7);
  assert_int_equal(iso_sink_open(&sink, path), ISO_OK);
  assert_int_equal(iso_sink_open(&second, path), ISO_ERR_IO);
  assert_int_equal(iso_sink_write(&sink, data, LARGE), ISO_OK);
  assert_int_equal(iso_sink_write(&sink, NULL, 0), ISO_OK);
  assert_int_equal(iso_sink_write(&sink, data, 3), ISO_OK);
  assert_int_equal(iso_sink_commit(&sink), ISO_OK);
  assert_int_equal(sink.bytes, LARGE + 3);
  assert_int_equal(iso_file_read(path, &read, &bytes), ISO_OK);
  assert_int_equal(bytes, LARGE + 3);
  assert_memory_equal(read, data, LARGE);
  assert_int_equal(iso_crc32c(0, read, bytes), sink.crc);
  free(read);
  free(data);
  char first[33], other[33];
  assert_int_equal(iso_attempt_id(first), ISO_OK);
  assert_int_equal(iso_attempt_id(other), ISO_OK);
  assert_int_equal(strspn(first, "0123456789abcdef"), 32);
  assert_string_not_equal(first, other);
}

/* A disk that wants larger blocks than ours: the first write past the cache is refused. */
static ssize_t refuse_direct(int fd, const void *data, size_t bytes, int64_t offset) {
  if (fcntl(fd, F_GETFL) & O_DIRECT) {
    errno = EINVAL;
    return -1;
  }
  return real.pwrite(fd, data, bytes, offset);
}

static int open_without_direct(const char *name, int flags, int mode) {
  const int fd = real.open(name, flags & ~O_DIRECT, mode);
  if (!(flags & O_DIRECT)) return fd;
  if (fd >= 0) (void)real.close(fd); /* made, and then refused */
  errno = EINVAL;
  return -1;
}

/* Aligned parts, then others, and with file systems that refuse: always the same bytes. */
static void sinks_past_the_cache_write_the_same(void **state) {
  (void)state;
  enum { PART = 3 * 4096, ODD = 700 };
  char *data = NULL, *read, other[320];
  size_t bytes;
  assert_int_equal(posix_memalign((void **)&data, 4096, PART + 1), 0);
  for (size_t i = 0; i < PART; i++) data[i] = (char)(i * i >> 5);
  for (int how = 0; how < 4; how++) {
    iso_sink sink;
    snprintf(other, sizeof other, "%s.%d", path, how);
    if (how == 1) iso_os.pwrite = refuse_direct;
    if (how == 2) iso_os.open = open_without_direct;
    assert_int_equal(iso_sink_open_direct(&sink, other), ISO_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(iso_sink_write(&sink, data, PART), ISO_OK);
    if (how == 3) memmove(data + 1, data, PART);
    assert_int_equal(iso_sink_write(&sink, data + (how == 3), ODD), ISO_OK);
    if (how == 3) memmove(data, data + 1, PART);
    assert_int_equal(iso_sink_write(&sink, data, PART), ISO_OK);
    assert_int_equal(iso_sink_commit(&sink), ISO_OK);
    iso_os = real;
    assert_int_equal(iso_file_read(other, &read, &bytes), ISO_OK);
    assert_int_equal(bytes, 3 * PART + ODD);
    assert_memory_equal(read, data, PART);
    assert_memory_equal(read + PART, data, PART);
    assert_memory_equal(read + 2 * PART, data, ODD);
    assert_memory_equal(read + 2 * PART + ODD, data, PART);
    assert_int_equal(iso_crc32c(0, read, bytes), sink.crc);
    free(read);
    assert_int_equal(iso_sink_open_direct(&sink, other), ISO_ERR_IO); /* it exists */
    assert_int_equal(remove(other), 0);
  }
  free(data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(replacing_a_model_is_all_or_nothing, setup, teardown),
      cmocka_unit_test_setup_teardown(publishing_never_replaces, setup, teardown),
      cmocka_unit_test_setup_teardown(sinks_never_reuse_a_name, setup, teardown),
      cmocka_unit_test_setup_teardown(sinks_past_the_cache_write_the_same, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
