/* SPDX-License-Identifier: Apache-2.0
 *
 * What is damaged in a run folder and comes back from a mirror: a process that is killed at any call leaves the old
 * thing or the new one under its name, with the steps that only the folder has.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/mirror_fixture.h"

#include <errno.h>

static iso_os_table real;
static int left; /* calls until the kill */

static bool dies(void) {
  errno = EIO;
  return left-- <= 0;
}

static int dying_open(const char *path, int flags, int mode) {
  return dies() ? -1 : real.open(path, flags, mode);
}
static ssize_t dying_pread(int fd, void *data, size_t bytes, int64_t offset) {
  return dies() ? -1 : real.pread(fd, data, bytes, offset);
}
static ssize_t dying_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  return dies() ? -1 : real.pwrite(fd, data, bytes, offset);
}
static int dying_sync(int fd) {
  (void)fd;
  return dies() ? -1 : 0;
}
static int dying_rename(const char *from, const char *to) {
  return dies() ? -1 : real.rename(from, to);
}
static int dying_rename_noreplace(const char *from, const char *to) {
  return dies() ? -1 : real.rename_noreplace(from, to);
}
static int dying_unlink(const char *path) {
  return dies() ? -1 : real.unlink(path);
}
static int dying_mkdir(const char *path, int mode) {
  return dies() ? -1 : real.mkdir(path, mode);
}
static int dying_stat(const char *path, struct stat *out) {
  return dies() ? -1 : real.stat(path, out);
}

static void begin_to_die(int after) {
  left = after;
  iso_os.open = dying_open;
  iso_os.pread = dying_pread;
  iso_os.pwrite = dying_pwrite;
  iso_os.fsync = iso_os.fdatasync = dying_sync;
  iso_os.rename = dying_rename;
  iso_os.rename_noreplace = dying_rename_noreplace;
  iso_os.unlink = dying_unlink;
  iso_os.mkdir = dying_mkdir;
  iso_os.stat = dying_stat;
}

static int sync_nothing(int fd) {
  (void)fd;
  return 0;
}

static int setup_group(void **state) {
  iso_os.fsync = iso_os.fdatasync = sync_nothing;
  real = iso_os;
  return 0;
}

static void flip(const place *p, const char *name, long at) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", p->f.run, name);
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  fseek(file, at, SEEK_SET);
  fputc(0xEE, file);
  fclose(file);
}

static bool has(const place *p, const char *name) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", p->f.run, name);
  return iso_path_exists(path);
}

static void mend(place *p, bool deep) {
  iso_restore_report report;
  assert_int_equal(deep ? iso_mirror_repair(p->f.run, p->target, &report)
                        : iso_mirror_restore(p->f.run, p->target, false, &report),
                   ISO_OK);
  iso_string_fini(&report.text);
}

/* The mirror has seven of nine steps; of the folder's `name` the byte `at` is another one. Killed one call later each
 * time; then a start that does not reach the mirror finds something under the name, and one that does finds all. */
static void killed_anywhere(const char *name, long at, bool deep) {
  bool ended = false;
  int aside = 0;
  for (int kill_at = 0; !ended; kill_at++) {
    char uuid[37];
    iso_restore_report report;
    iso_wal_index index;
    iso_string faults = {0};
    place *p = place_make(1 << 20);
    assert_int_equal(iso_target_open(p->mirror, &p->target), ISO_OK);
    p->shared.durable = 7;
    assert_int_equal(pass(p, p->target, 1), ISO_OK);
    flip(p, name, at);
    begin_to_die(kill_at);
    ended = (deep ? iso_mirror_repair(p->f.run, p->target, &report)
                  : iso_mirror_restore(p->f.run, p->target, false, &report)) == ISO_OK;
    iso_os = real;
    iso_string_fini(&report.text);
    aside += fixture_count(&p->f, "aside");
    iso_run_folder_sweep(p->f.run); /* as a start does it */
    (void)!iso_run_folder_open(p->f.run, uuid);
    assert_true(has(p, name));
    mend(p, deep);
    assert_int_equal(iso_run_folder_open(p->f.run, uuid), ISO_OK);
    assert_string_equal(uuid, p->uuid);
    assert_int_equal(iso_wal_index_read(p->f.run, p->uuid, true, 0, &index, &faults), ISO_OK);
    assert_int_equal(faults.length, 0);
    assert_int_equal(index.step_count, STEPS);
    assert_int_equal(fixture_count(&p->f, "log"), 1);
    iso_wal_index_fini(&index);
    iso_string_fini(&faults);
    place_destroy(p);
  }
  assert_true(aside > 1); /* it was killed behind the first rename, too */
}

static void test_a_segment(void **state) {
  killed_anywhere("log/0001-00000-000000.log", 4096 + 4096 + 100, true);
}

static void test_the_identity(void **state) {
  killed_anywhere("run.json", 20, false);
}

static void test_an_incarnation(void **state) {
  killed_anywhere("incarnations/0001.json", 20, false);
}

static void test_names(void **state) {
  assert_true(iso_run_replace_is_ready("run.json.ready.0123456789abcdef0123456789abcdef.tmp"));
  assert_false(iso_run_replace_is_ready("run.json.0123456789abcdef0123456789abcdef.tmp"));
  assert_false(iso_run_replace_is_ready(".ready.0123456789abcdef0123456789abcdef.tmp"));
  assert_false(iso_run_replace_is_ready("run.json.ready.0123456789abcdef0123456789abcdeg.tmp"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_segment),
      cmocka_unit_test(test_the_identity),
      cmocka_unit_test(test_an_incarnation),
      cmocka_unit_test(test_names),
  };
  return cmocka_run_group_tests(tests, setup_group, NULL);
}
