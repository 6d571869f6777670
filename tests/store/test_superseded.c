/* SPDX-License-Identifier: Apache-2.0
 *
 * A process that was stopped at any call while it deletes what it no longer needs, and replaced meanwhile, deletes
 * nothing more when it wakes: the one that replaced it may have gone back to just that.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/mirror_fixture.h"

static iso_os_table real;
static place *now;
static struct {
  int at, calls; /* replaced at this call, from 0; calls so far */
  bool replaced;
  int gone; /* things deleted or set aside since, but for the one of that very call */
} plan;

static void stop_here(void) {
  if (plan.calls++ != plan.at) return;
  const iso_os_table seam = iso_os;
  iso_os = real;
  fixture_begin(&now->f, 2, 3);
  now->f.info.incarnation = 1;
  iso_os = seam;
  plan.replaced = true;
}

static int seam_open(const char *path, int flags, int mode) {
  stop_here();
  return real.open(path, flags, mode);
}
static ssize_t seam_pread(int fd, void *data, size_t bytes, int64_t offset) {
  stop_here();
  return real.pread(fd, data, bytes, offset);
}
static int seam_stat(const char *path, struct stat *out) {
  stop_here();
  return real.stat(path, out);
}
static int seam_fsync(int fd) {
  stop_here();
  return real.fsync(fd);
}
static int seam_unlink(const char *path) {
  plan.gone += plan.replaced;
  stop_here();
  return real.unlink(path);
}
static int seam_rename_noreplace(const char *from, const char *to) {
  plan.gone += plan.replaced;
  stop_here();
  return real.rename_noreplace(from, to);
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

static iso_status prune_snapshots(void) {
  return iso_snapshot_prune(now->f.run, 1, 1, 0);
}

static iso_status prune_log(void) {
  return iso_wal_prune_by(now->f.run, 1, STEPS);
}

/* Replaced at each call of it in turn. */
static void replaced_anywhere(iso_status (*prune)(void)) {
  int refused = 0;
  for (bool over = false; !over;) {
    now = place_make(THREE_STEPS);
    fixture_write(&now->f, STEPS);
    plan.calls = plan.gone = 0;
    plan.replaced = false;
    iso_os.open = seam_open;
    iso_os.pread = seam_pread;
    iso_os.stat = seam_stat;
    iso_os.fsync = seam_fsync;
    iso_os.unlink = seam_unlink;
    iso_os.rename_noreplace = seam_rename_noreplace;
    const iso_status status = prune();
    iso_os = real;
    over = !plan.replaced;
    assert_int_equal(plan.gone, 0);
    assert_true(status == ISO_OK || status == ISO_ERR_BUSY);
    if (status == ISO_ERR_BUSY) assert_non_null(strstr(iso_last_error(), "incarnation 2 has begun"));
    refused += status == ISO_ERR_BUSY;
    place_destroy(now);
    plan.at++;
  }
  assert_true(refused > 5);
}

static void test_pruning_snapshots(void **state) {
  plan.at = 0;
  replaced_anywhere(prune_snapshots);
}

static void test_pruning_the_log(void **state) {
  plan.at = 0;
  replaced_anywhere(prune_log);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pruning_snapshots),
      cmocka_unit_test(test_pruning_the_log),
  };
  return cmocka_run_group_tests(tests, setup_group, NULL);
}
