/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache: made once, found again, made again when damaged, by one of several makers, and never published in part.
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
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>

static const char key[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
static char cache[128], key_folder[256];
static iso_os_table real;
static atomic_int fills;

static int setup(void **state) {
  iso_log_quiet(true);
  scratch_make(cache);
  snprintf(key_folder, sizeof key_folder, "%s/spool/%s", cache, key);
  real = iso_os;
  fills = 0;
  return 0;
}

static int teardown(void **state) {
  iso_os = real;
  scratch_remove(cache);
  return 0;
}

static iso_status fill(void *context, iso_sink *sink) {
  const char *text = context;
  fills++;
  return iso_sink_write(sink, text, strlen(text));
}

static iso_status refuse(void *context, iso_sink *sink) {
  fills++;
  iso_status status = iso_sink_write(sink, "half", 4);
  return status == ISO_OK ? iso_fail(ISO_ERR_FORMAT, "the archive is corrupt") : status;
}

/* Opens and gives back the contents in the arena. */
static char *opened(iso_arena *arena, const char *text) {
  iso_blob_info info;
  iso_blob *blob;
  assert_int_equal(iso_spool_open(cache, key, fill, (void *)(uintptr_t)text, arena, &info), ISO_OK);
  char *contents = iso_arena_alloc(arena, (size_t)info.bytes + 1);
  assert_int_equal(iso_blob_open(&info, &blob), ISO_OK);
  assert_int_equal(iso_blob_read(blob, 0, info.bytes, contents), ISO_OK);
  iso_blob_close(&blob);
  return contents;
}

/* Files below the key's folder whose names end with `suffix`; the last one's path in `path`. */
static int files(const char *suffix, char path[512]) {
  int count = 0;
  DIR *folder = opendir(key_folder);
  if (!folder) return 0;
  for (struct dirent *entry; (entry = readdir(folder));) {
    size_t length = strlen(entry->d_name);
    if (length < strlen(suffix) || strcmp(entry->d_name + length - strlen(suffix), suffix) != 0) continue;
    snprintf(path, 512, "%s/%s", key_folder, entry->d_name);
    count++;
  }
  closedir(folder);
  return count;
}

static void test_once(void **state) {
  iso_arena *arena = iso_arena_create();
  char path[512];
  assert_string_equal(opened(arena, "123456789"), "123456789");
  assert_int_equal(files("9-e3069283", path), 1);
  assert_string_equal(opened(arena, "other"), "123456789");
  assert_int_equal(fills, 1);
  assert_int_equal(files(".tmp", path), 0);
  iso_blob_info info;
  char bad[65] = "../../etc/passwd";
  assert_int_equal(iso_spool_open(cache, bad, fill, NULL, arena, &info), ISO_ERR_INTERNAL);
  iso_arena_destroy(&arena);
}

static void test_damaged(void **state) {
  iso_arena *arena = iso_arena_create();
  char path[512];
  for (int how = 0; how < 4; how++) {
    opened(arena, "123456789");
    assert_int_equal(files("9-e3069283", path), 1);
    const char *damage[] = {"123456780", "12345678", "1234567890", ""};
    scratch_write(path, damage[how], strlen(damage[how]));
    assert_string_equal(opened(arena, "123456789"), "123456789");
    assert_int_equal(fills, how + 2);
  }
  iso_arena_destroy(&arena);
}

static void test_failed_fill(void **state) {
  iso_arena *arena = iso_arena_create();
  iso_blob_info info;
  char path[512];
  assert_int_equal(iso_spool_open(cache, key, refuse, NULL, arena, &info), ISO_ERR_FORMAT);
  assert_null(info.path);
  assert_int_equal(files("", path), 3); /* ".", "..", lock */
  assert_string_equal(opened(arena, "now"), "now");
  iso_arena_destroy(&arena);
}

static ssize_t full_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  if (offset >= 5) {
    errno = ENOSPC;
    return -1;
  }
  return real.pwrite(fd, data, 5, offset);
}

static void test_full_disk(void **state) {
  iso_arena *arena = iso_arena_create();
  iso_blob_info info;
  char path[512];
  iso_os.pwrite = full_pwrite;
  assert_int_equal(iso_spool_open(cache, key, fill, "123456789", arena, &info), ISO_ERR_SPACE);
  assert_non_null(strstr(iso_last_error(), "full after 5 bytes"));
  assert_non_null(strstr(iso_last_error(), "ISOTACH_CACHE"));
  assert_non_null(strstr(iso_last_error(), cache));
  assert_int_equal(files(".tmp", path), 0);
  iso_arena_destroy(&arena);
}

static int fail_at, calls;

static bool fails(void) {
  if (calls++ != fail_at) return false;
  errno = EIO;
  return true;
}
static int seam_open(const char *name, int flags, int mode) {
  return fails() ? -1 : real.open(name, flags, mode);
}
static ssize_t seam_pread(int fd, void *data, size_t bytes, int64_t offset) {
  return fails() ? -1 : real.pread(fd, data, bytes, offset);
}
static ssize_t seam_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  return fails() ? -1 : real.pwrite(fd, data, bytes, offset);
}
static int seam_sync(int fd) {
  return fails() ? -1 : 0;
}
static int seam_rename(const char *from, const char *to) {
  return fails() ? -1 : real.rename_noreplace(from, to);
}
static int seam_mkdir(const char *path, int mode) {
  return fails() ? -1 : real.mkdir(path, mode);
}

/* Whatever call fails, what is published is whole, and the next attempt succeeds. */
static void test_every_failure(void **state) {
  for (fail_at = 0;; fail_at++) {
    scratch_remove(cache);
    iso_arena *arena = iso_arena_create();
    iso_blob_info info;
    char path[512];
    calls = 0;
    iso_os.open = seam_open, iso_os.pread = seam_pread, iso_os.pwrite = seam_pwrite, iso_os.mkdir = seam_mkdir;
    iso_os.fsync = iso_os.fdatasync = seam_sync, iso_os.rename_noreplace = seam_rename;
    iso_status status = iso_spool_open(cache, key, fill, "123456789", arena, &info);
    iso_os = real;
    assert_int_equal(files(".tmp", path), 0);
    if (calls <= fail_at) assert_int_equal(status, ISO_OK);
    assert_int_equal(info.path != NULL, status == ISO_OK);
    assert_string_equal(opened(arena, "123456789"), "123456789");
    iso_arena_destroy(&arena);
    if (calls <= fail_at) break;
  }
  assert_true(fail_at >= 6);
}

static void *make_slowly(void *argument) {
  iso_arena *arena = iso_arena_create();
  bool same = strcmp(opened(arena, "123456789"), "123456789") == 0;
  iso_arena_destroy(&arena);
  return same ? argument : NULL;
}

static void test_makers_at_once(void **state) {
  pthread_t threads[4];
  char path[512];
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, make_slowly, path), 0);
  for (int i = 0; i < 4; i++) {
    void *result;
    pthread_join(threads[i], &result);
    assert_non_null(result);
  }
  assert_int_equal(fills, 1); /* the others waited */
  assert_int_equal(files("9-e3069283", path), 1);
}

static iso_status hang(void *context, iso_sink *sink) {
  iso_status status = iso_sink_write(sink, "half", 4);
  if (write(*(int *)context, "x", 1) == 1) pause();
  return status;
}

/* A killed maker releases its lock and leaves its attempt to the next one to remove. Attempts of other machines stay
 * until they are old. */
static void test_killed_maker(void **state) {
  int pipes[2];
  char path[512], byte;
  assert_int_equal(pipe(pipes), 0);
  pid_t child = fork();
  if (child == 0) {
    iso_arena *arena = iso_arena_create();
    iso_blob_info info;
    alarm(30);
    iso_status status = iso_spool_open(cache, key, hang, &pipes[1], arena, &info);
    _exit(status == ISO_OK ? 0 : 1);
  }
  assert_int_equal(read(pipes[0], &byte, 1), 1);
  assert_int_equal(files(".tmp", path), 1);
  kill(child, SIGKILL);
  assert_int_equal(waitpid(child, NULL, 0), child);
  char foreign[512], old[512];
  snprintf(foreign, sizeof foreign, "%s/xxxxxxxx-0123456789abcdef0123456789abcdef.tmp", key_folder);
  snprintf(old, sizeof old, "%s/yyyyyyyy-0123456789abcdef0123456789abcdef.tmp", key_folder);
  scratch_write(foreign, "f", 1);
  scratch_write(old, "o", 1);
  const struct timespec times[2] = {{.tv_sec = time(NULL) - 100000}, {.tv_sec = time(NULL) - 100000}};
  assert_int_equal(utimensat(AT_FDCWD, old, times, 0), 0);
  iso_arena *arena = iso_arena_create();
  assert_string_equal(opened(arena, "123456789"), "123456789");
  assert_int_equal(files(".tmp", path), 1);
  assert_string_equal(path, foreign);
  iso_arena_destroy(&arena);
  close(pipes[0]);
  close(pipes[1]);
}

static void test_folder(void **state) {
  iso_string out = {0};
  setenv("ISOTACH_CACHE", "/own", 1);
  setenv("XDG_CACHE_HOME", "/xdg", 1);
  setenv("HOME", "/home/me", 1);
  assert_string_equal(iso_cache_folder("/configured", &out), "/configured");
  iso_string_fini(&out);
  assert_string_equal(iso_cache_folder("", &out), "/own");
  iso_string_fini(&out);
  unsetenv("ISOTACH_CACHE");
  assert_string_equal(iso_cache_folder("", &out), "/xdg/isotach");
  iso_string_fini(&out);
  setenv("XDG_CACHE_HOME", "relative", 1);
  assert_string_equal(iso_cache_folder(NULL, &out), "/home/me/.cache/isotach");
  iso_string_fini(&out);
  unsetenv("HOME");
  assert_null(iso_cache_folder("", &out));
  iso_string_fini(&out);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_once, setup, teardown),
      cmocka_unit_test_setup_teardown(test_damaged, setup, teardown),
      cmocka_unit_test_setup_teardown(test_failed_fill, setup, teardown),
      cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
      cmocka_unit_test_setup_teardown(test_every_failure, setup, teardown),
      cmocka_unit_test_setup_teardown(test_makers_at_once, setup, teardown),
      cmocka_unit_test_setup_teardown(test_killed_maker, setup, teardown),
      cmocka_unit_test_setup_teardown(test_folder, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
