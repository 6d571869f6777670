/* SPDX-License-Identifier: Apache-2.0
 *
 * Files and paths over the seam: short transfers, EINTR, and a failure of every single call in turn.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64];
static iso_os_table real;

/* ---- a table that fails the Nth call ---- */

static int calls, fail_at, fail_errno;
static bool failed_unlink;

static bool fails(void) {
  if (++calls != fail_at) return false;
  errno = fail_errno;
  return true;
}
static int f_open(const char *path, int flags, int mode) {
  return fails() ? -1 : real.open(path, flags, mode);
}
static int f_close(int fd) {
  int result = real.close(fd); /* even a failing close closes */
  return fails() ? -1 : result;
}
static ssize_t f_pread(int fd, void *data, size_t bytes, int64_t offset) {
  return fails() ? -1 : real.pread(fd, data, bytes, offset);
}
static ssize_t f_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  return fails() ? -1 : real.pwrite(fd, data, bytes, offset);
}
static int f_fsync(int fd) {
  return fails() ? -1 : real.fsync(fd);
}
static int f_rename(const char *from, const char *to) {
  return fails() ? -1 : real.rename(from, to);
}
static int f_unlink(const char *path) {
  failed_unlink = fails();
  return failed_unlink ? -1 : real.unlink(path);
}
static int f_mkdir(const char *path, int mode) {
  return fails() ? -1 : real.mkdir(path, mode);
}
static int f_stat(const char *path, struct stat *out) {
  return fails() ? -1 : real.stat(path, out);
}

static void seam_fail(int at, int error) {
  calls = 0;
  fail_at = at;
  fail_errno = error;
  failed_unlink = false;
  iso_os.open = f_open;
  iso_os.close = f_close;
  iso_os.pread = f_pread;
  iso_os.pwrite = f_pwrite;
  iso_os.fsync = f_fsync;
  iso_os.rename = f_rename;
  iso_os.unlink = f_unlink;
  iso_os.mkdir = f_mkdir;
  iso_os.stat = f_stat;
}

/* ---- a table of short, interrupted transfers ---- */

static int transfers;
static int s_open(const char *path, int flags, int mode) {
  errno = EINTR;
  return transfers++ % 2 == 0 ? -1 : real.open(path, flags, mode);
}
static ssize_t s_pread(int fd, void *data, size_t bytes, int64_t offset) {
  errno = EINTR;
  return transfers++ % 2 == 0 ? -1 : real.pread(fd, data, bytes < 7 ? bytes : 7, offset);
}
static ssize_t s_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  errno = EINTR;
  return transfers++ % 2 == 0 ? -1 : real.pwrite(fd, data, bytes < 7 ? bytes : 7, offset);
}
static ssize_t zero_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  return 0;
}
static int einval_fsync(int fd) {
  errno = EINVAL;
  return -1;
}

/* ---- fixtures ---- */

static int group_setup(void **state) {
  real = iso_os;
  strcpy(folder, "/tmp/iso-os-XXXXXX");
  iso_log_quiet(true);
  return mkdtemp(folder) ? 0 : -1;
}

static int group_teardown(void **state) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}

static int restore(void **state) {
  iso_os = real;
  return 0;
}

static char *in_folder(const char *name) {
  static char path[4][256];
  static int next;
  next = (next + 1) % 4;
  snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
  return path[next];
}

static void assert_content(const char *path, const char *wanted) {
  char *data;
  size_t bytes;
  assert_int_equal(iso_file_read(path, &data, &bytes), ISO_OK);
  assert_int_equal(bytes, strlen(wanted));
  assert_string_equal(data, wanted);
  free(data);
}

static size_t entries_of(const char *path) {
  iso_arena *arena = iso_arena_create();
  char **names;
  size_t count;
  assert_int_equal(iso_path_list(arena, path, &names, &count), ISO_OK);
  iso_arena_destroy(&arena);
  return count;
}

/* ---- tests ---- */

static void replace_and_read(void **state) {
  char *path = in_folder("plain");
  assert_int_equal(iso_file_replace(path, "one", 3), ISO_OK);
  assert_content(path, "one");
  assert_int_equal(iso_file_replace(path, "", 0), ISO_OK);
  assert_content(path, "");
  size_t bytes = 3000000, got;
  char *large = malloc(bytes), *data;
  for (size_t i = 0; i < bytes; i++) large[i] = (char)(i * 31 + i / 1000);
  assert_int_equal(iso_file_replace(path, large, bytes), ISO_OK);
  assert_int_equal(iso_file_read(path, &data, &got), ISO_OK);
  assert_int_equal(got, bytes);
  assert_memory_equal(data, large, bytes);
  assert_int_equal(data[bytes], 0);
  free(data);
  free(large);
}

static void reading_what_has_no_size(void **state) {
  char *data;
  size_t bytes;
  assert_int_equal(iso_file_read("/proc/self/status", &data, &bytes), ISO_OK); /* its size says 0 */
  assert_true(bytes > 100 && strncmp(data, "Name:", 5) == 0);
  free(data);
}

/* A device has no end, a pipe without a writer no beginning. */
static void reading_what_is_no_file(void **state) {
  (void)state;
  char *pipe = in_folder("pipe"), *data;
  size_t bytes;
  assert_int_equal(mkfifo(pipe, 0600), 0);
  const char *const paths[] = {"/dev/zero", "/dev/null", pipe};
  for (size_t i = 0; i < ISO_COUNT(paths); i++) {
    assert_int_equal(iso_file_read(paths[i], &data, &bytes), ISO_ERR_IO);
    assert_null(data);
    assert_non_null(strstr(iso_last_error(), paths[i]));
    assert_non_null(strstr(iso_last_error(), "name a file"));
  }
  assert_int_equal(unlink(pipe), 0);
}

static void short_and_interrupted_transfers(void **state) {
  char *path = in_folder("short");
  iso_os.open = s_open;
  iso_os.pread = s_pread;
  iso_os.pwrite = s_pwrite;
  assert_int_equal(iso_file_replace(path, "the quick brown fox jumps", 25), ISO_OK);
  assert_content(path, "the quick brown fox jumps");
  char part[10] = "";
  int fd = real.open(path, O_RDWR, 0);
  assert_int_equal(iso_file_pread(fd, path, part, 9, 10), ISO_OK);
  assert_string_equal(part, "brown fox");
  assert_int_equal(iso_file_pwrite(fd, path, "BLACK DOG", 9, 10), ISO_OK);
  close(fd);
  assert_content(path, "the quick BLACK DOG jumps");
}

static void truncated_file_is_a_format_error(void **state) {
  char *path = in_folder("cut"), part[100];
  assert_int_equal(iso_file_replace(path, "0123456789", 10), ISO_OK);
  int fd = iso_os.open(path, O_RDWR, 0);
  assert_int_equal(iso_file_pread(fd, path, part, 8, 5), ISO_ERR_FORMAT);
  assert_non_null(strstr(iso_last_error(), "ends at byte 10"));
  assert_non_null(strstr(iso_last_error(), path));
  assert_int_equal(iso_file_pread(fd, path, part, 0, 500), ISO_OK);
  iso_os.pwrite = zero_pwrite;
  assert_int_equal(iso_file_pwrite(fd, path, "x", 1, 0), ISO_ERR_IO);
  close(fd);
  assert_int_equal(iso_file_pread(-1, path, part, 1, 0), ISO_ERR_IO);
}

static void failures_have_the_right_status(void **state) {
  const struct {
    int error;
    iso_status status;
  } rows[] = {{ENOENT, ISO_ERR_NOT_FOUND}, {ENOTDIR, ISO_ERR_NOT_FOUND}, {ENOSPC, ISO_ERR_SPACE},
              {EDQUOT, ISO_ERR_SPACE},     {ENOMEM, ISO_ERR_MEMORY},     {EIO, ISO_ERR_IO},
              {EACCES, ISO_ERR_IO},        {EISDIR, ISO_ERR_IO}};
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    seam_fail(1, rows[i].error);
    assert_int_equal(iso_file_replace(in_folder("x"), "a", 1), rows[i].status);
    assert_non_null(strstr(iso_last_error(), strerror(rows[i].error)));
    assert_non_null(strstr(iso_last_error(), folder));
  }
}

/* Every call of iso_file_replace fails in turn: old or new content, never another, and nothing left over. */
static void replace_fails_at_every_call(void **state) {
  char *place = in_folder("every"), path[300];
  assert_int_equal(iso_path_make(place), ISO_OK);
  snprintf(path, sizeof path, "%s/file", place);
  int n = 0;
  for (iso_status status = ISO_ERR_IO; status != ISO_OK;) {
    iso_os = real;
    assert_int_equal(iso_file_replace(path, "old", 3), ISO_OK);
    seam_fail(++n, EIO);
    status = iso_file_replace(path, "new", 3);
    bool triggered = calls >= fail_at;
    iso_os = real;
    char *data;
    size_t bytes;
    assert_int_equal(iso_file_read(path, &data, &bytes), ISO_OK);
    assert_true(strcmp(data, "old") == 0 || strcmp(data, "new") == 0);
    if (status == ISO_OK) assert_string_equal(data, "new");
    free(data);
    assert_int_equal(entries_of(place), 1);
    if (!triggered) break;
    if (status == ISO_OK) status = ISO_ERR_IO; /* a failure that does not matter: closing the folder */
  }
  assert_true(n >= 8); /* open, write, sync, close, rename, open, sync, close */
}

static void read_fails_at_every_call(void **state) {
  char *path = in_folder("read"), *data;
  size_t bytes;
  assert_int_equal(iso_file_replace(path, "content", 7), ISO_OK);
  int failures = 0;
  for (int n = 1; n <= 4; n++) { /* stat, open, read, look for more; then close, whose failure does not matter */
    seam_fail(n, EIO);
    failures += iso_file_read(path, &data, &bytes) == ISO_ERR_IO;
    assert_null(data);
  }
  assert_int_equal(failures, 4);
}

static void files_that_cannot_be_read(void **state) {
  char *data;
  size_t bytes;
  assert_int_equal(iso_file_read(in_folder("missing"), &data, &bytes), ISO_ERR_NOT_FOUND);
  assert_non_null(strstr(iso_last_error(), "/missing'"));
  assert_int_equal(iso_file_read(folder, &data, &bytes), ISO_ERR_IO);
  assert_int_equal(iso_file_replace(in_folder("no/such/file"), "x", 1), ISO_ERR_NOT_FOUND);
  char *sparse = in_folder("sparse"); /* larger than memory: an error, not the end of the process */
  int fd = iso_os.open(sparse, O_RDWR | O_CREAT, 0600);
  if (iso_os.ftruncate(fd, (int64_t)1 << 42) == 0) {
    assert_int_equal(iso_file_read(sparse, &data, &bytes), ISO_ERR_MEMORY);
    assert_null(data);
  }
  iso_os.close(fd);
  iso_os.unlink(sparse);
  char long_path[6000];
  memset(long_path, 'a', sizeof long_path - 1);
  long_path[sizeof long_path - 1] = '\0';
  assert_int_equal(iso_file_replace(long_path, "x", 1), ISO_ERR_IO);
}

static void rename_without_replacing(void **state) {
  char *a = in_folder("a"), *b = in_folder("b");
  assert_int_equal(iso_file_replace(a, "a", 1), ISO_OK);
  assert_int_equal(iso_os.rename_noreplace(a, b), 0);
  assert_false(iso_path_exists(a));
  assert_content(b, "a");
  assert_int_equal(iso_file_replace(a, "c", 1), ISO_OK);
  assert_int_equal(iso_os.rename_noreplace(a, b), -1);
  assert_int_equal(errno, EEXIST);
  assert_content(a, "c");
  assert_content(b, "a");
  assert_int_equal(iso_os.rename_noreplace(in_folder("missing"), in_folder("d")), -1);
  assert_int_equal(errno, ENOENT);
}

/* Makes renameat2 fail in this process, as on file systems without RENAME_NOREPLACE. */
static bool forbid_renameat2(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_renameat2, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {ISO_COUNT(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 &&
         syscall(SYS_renameat2, AT_FDCWD, "", AT_FDCWD, "", 1) == -1 && errno == EINVAL;
}

static void rename_without_replacing_by_link(void **state) {
  char *a = in_folder("la"), *b = in_folder("lb"), *c = in_folder("lc");
  assert_int_equal(iso_file_replace(a, "a", 1), ISO_OK);
  assert_int_equal(iso_file_replace(c, "c", 1), ISO_OK);
  pid_t child = fork(); /* the filter cannot be taken off again */
  if (child == 0) {
    if (!forbid_renameat2()) _exit(77);
    if (iso_os.rename_noreplace(a, b) != 0) _exit(1);
    if (iso_os.rename_noreplace(c, b) != -1 || errno != EEXIST) _exit(2);
    if (iso_os.rename_noreplace(a, b) != -1 || errno != ENOENT) _exit(3);
    _exit(0);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip(); /* no seccomp here */
  assert_int_equal(status, 0);
  assert_false(iso_path_exists(a));
  assert_content(b, "a");
  assert_content(c, "c");
}

static void making_folders(void **state) {
  char *deep = in_folder("p/q/r");
  assert_int_equal(iso_path_make(deep), ISO_OK);
  assert_true(iso_path_is_folder(deep));
  assert_int_equal(iso_path_make(deep), ISO_OK);
  assert_int_equal(iso_path_make(in_folder("p//q/s/")), ISO_OK);
  assert_true(iso_path_is_folder(in_folder("p/q/s")));
  assert_int_equal(iso_path_make("/"), ISO_OK);
  assert_int_equal(iso_path_make("."), ISO_OK);
  assert_int_equal(iso_path_make(""), ISO_ERR_NOT_FOUND);
  char *file = in_folder("file");
  assert_int_equal(iso_file_replace(file, "x", 1), ISO_OK);
  assert_true(iso_path_exists(file));
  assert_false(iso_path_is_folder(file));
  assert_int_equal(iso_path_make(file), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_path_make(in_folder("file/below")), ISO_ERR_NOT_FOUND);
}

static void syncing_folders(void **state) {
  assert_int_equal(iso_path_sync(folder), ISO_OK);
  assert_int_equal(iso_path_sync(in_folder("missing")), ISO_ERR_NOT_FOUND);
  iso_os.fsync = einval_fsync; /* a file system without the operation */
  assert_int_equal(iso_path_sync(folder), ISO_OK);
  seam_fail(2, EIO);
  assert_int_equal(iso_path_sync(folder), ISO_ERR_IO);
}

static void joining(void **state) {
  iso_arena *arena = iso_arena_create();
  assert_string_equal(iso_path_join(arena, "a", "b"), "a/b");
  assert_string_equal(iso_path_join(arena, "a/", "b"), "a/b");
  assert_string_equal(iso_path_join(arena, "/", "b"), "/b");
  assert_string_equal(iso_path_join(arena, "", "b"), "b");
  assert_string_equal(iso_path_join(arena, "a", "/b"), "/b");
  iso_arena_destroy(&arena);
}

static void listing(void **state) {
  iso_arena *arena = iso_arena_create();
  char **names, name[300];
  size_t count;
  char *place = in_folder("list");
  assert_int_equal(iso_path_make(place), ISO_OK);
  assert_int_equal(iso_path_list(arena, place, &names, &count), ISO_OK);
  assert_int_equal(count, 0);
  for (int i = 0; i < 150; i++) {
    snprintf(name, sizeof name, "%s/n%d", place, (i * 37) % 150);
    close(iso_os.open(name, O_CREAT | O_WRONLY, 0600));
  }
  assert_int_equal(iso_path_list(arena, place, &names, &count), ISO_OK);
  assert_int_equal(count, 150);
  for (size_t i = 1; i < count; i++) assert_true(strcmp(names[i - 1], names[i]) < 0);
  assert_int_equal(iso_path_list(arena, in_folder("missing"), &names, &count), ISO_ERR_NOT_FOUND);
  assert_int_equal(count, 0);
  iso_arena_destroy(&arena);
}

static void machine_questions(void **state) {
  double before = iso_clock_s();
  assert_true(iso_clock_s() >= before);
  int64_t available = iso_memory_available(), resident = iso_memory_resident();
  assert_true(available > (1 << 20) && available < ((int64_t)1 << 50));
  assert_true(resident > (100 << 10) && resident <= iso_memory_resident_peak() + (4 << 20));
  size_t bytes = 64 << 20;
  char *slab = iso_slab_alloc(bytes, "test");
  assert_true(iso_memory_resident() < resident + (32 << 20)); /* touched lazily */
  memset(slab, 1, bytes);
  assert_true(iso_memory_resident() >= resident + (60 << 20));
  assert_true(iso_memory_resident_peak() >= iso_memory_resident() - (4 << 20));
  iso_slab_free(slab, bytes);
  int64_t here = iso_disk_free(folder);
  assert_true(here > 0);
  int64_t below = iso_disk_free(in_folder("not/yet/there"));
  assert_true(below > here / 2 && below < here * 2);
  assert_true(iso_disk_free("relative/not/there") > 0);
  assert_true(iso_disk_free("not-there") > 0);
  assert_true(iso_disk_free("/not-there/at/all") >= 0);
}

int main(void) {
#define OS_TEST(name) cmocka_unit_test_teardown(name, restore)
  const struct CMUnitTest tests[] = {
      OS_TEST(replace_and_read),
      OS_TEST(reading_what_has_no_size),
      OS_TEST(reading_what_is_no_file),
      OS_TEST(short_and_interrupted_transfers),
      OS_TEST(truncated_file_is_a_format_error),
      OS_TEST(failures_have_the_right_status),
      OS_TEST(replace_fails_at_every_call),
      OS_TEST(read_fails_at_every_call),
      OS_TEST(files_that_cannot_be_read),
      OS_TEST(rename_without_replacing),
      OS_TEST(rename_without_replacing_by_link),
      OS_TEST(making_folders),
      OS_TEST(syncing_folders),
      OS_TEST(joining),
      OS_TEST(listing),
      OS_TEST(machine_questions),
  };
  return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
