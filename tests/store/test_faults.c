/* SPDX-License-Identifier: Apache-2.0
 *
 * A snapshot is written while the OS seam fails, in turn, each of its calls, in each of these ways:
 *   one call fails and does nothing; one call fails though it was done; one is interrupted or comes short; from one
 * call on nothing works any more (the process is as good as killed); the power goes at one call, so that what was not
 * synced is lost. After each, the run has the snapshot from before or the new one, whole, and writing again works.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>

static fixture f;
static iso_os_table real;

/* ---- the seam that fails ---------------------------------------------------------------------------------------- */

typedef enum mode { FAIL, FAIL_BUT_DONE, SHORT, DEAD, COUNT_ONLY } mode;

static struct {
  mode mode;
  int error;
  int at;    /* the call that fails, from 0 */
  int calls; /* so far */
} plan;

/* What a power cut would undo. */
enum { TRACKED = 64 };
static struct tracked {
  char path[PATH_MAX], from[PATH_MAX]; /* from: it came by a rename */
  bool data_synced, entry_synced, folder, used;
} tracked[TRACKED];
static char fd_paths[1024][PATH_MAX];

static struct tracked *track(const char *path) {
  for (int i = 0; i < TRACKED; i++) {
    if (tracked[i].used && strcmp(tracked[i].path, path) == 0) return &tracked[i];
  }
  for (int i = 0; i < TRACKED; i++) {
    if (tracked[i].used) continue;
    memset(&tracked[i], 0, sizeof tracked[i]);
    tracked[i].used = true;
    snprintf(tracked[i].path, PATH_MAX, "%s", path);
    return &tracked[i];
  }
  abort();
}

static void folder_synced(const char *folder) {
  size_t length = strlen(folder);
  for (int i = 0; i < TRACKED; i++) {
    struct tracked *t = &tracked[i];
    if (t->used && strncmp(t->path, folder, length) == 0 && t->path[length] == '/' &&
        !strchr(t->path + length + 1, '/')) {
      t->entry_synced = true;
    }
  }
}

/* Whether this call is to fail; `skip` says that it is not even to be done. */
static bool fails(bool *skip) {
  int call = plan.calls++;
  bool now = plan.mode == DEAD ? call >= plan.at : call == plan.at;
  if (plan.mode == COUNT_ONLY || plan.mode == SHORT) now = false;
  *skip = now && plan.mode != FAIL_BUT_DONE;
  return now;
}

#define SEAM(done)                                                                                                     \
  bool skip, failing = fails(&skip);                                                                                   \
  int result = skip ? -1 : (done);                                                                                     \
  if (failing) {                                                                                                       \
    errno = plan.error;                                                                                                \
    return -1;                                                                                                         \
  }                                                                                                                    \
  return result

static int track_open(const char *path, int flags, int mode_bits) {
  int fd = real.open(path, flags, mode_bits);
  if (fd >= 0 && fd < 1024) snprintf(fd_paths[fd], PATH_MAX, "%s", path);
  if (fd >= 0 && (flags & O_CREAT)) track(path);
  return fd;
}

static int track_sync(int fd, int result) {
  struct stat info;
  if (result == 0 && fd < 1024 && fstat(fd, &info) == 0) {
    if (S_ISDIR(info.st_mode)) {
      folder_synced(fd_paths[fd]);
    } else {
      track(fd_paths[fd])->data_synced = true;
    }
  }
  return result;
}

static int track_rename(const char *from, const char *to, int result) {
  if (result != 0) return result;
  struct tracked *old = track(from), *new = track(to);
  new->data_synced = old->data_synced;
  snprintf(new->from, PATH_MAX, "%s", from);
  old->used = false;
  return result;
}

static int track_mkdir(const char *path, int result) {
  if (result == 0) track(path)->folder = true;
  return result;
}

static int seam_open(const char *path, int flags, int mode_bits) {
  SEAM(track_open(path, flags, mode_bits));
}
static int seam_close(int fd) {
  SEAM(real.close(fd));
}
static ssize_t seam_pread(int fd, void *data, size_t bytes, int64_t offset) {
  int call = plan.calls;
  bool skip, failing = fails(&skip);
  if (failing) errno = plan.error;
  if (failing) return -1;
  if (plan.mode == SHORT && call == plan.at && bytes > 1) bytes /= 2;
  return real.pread(fd, data, bytes, offset);
}
static ssize_t seam_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  int call = plan.calls;
  bool skip, failing = fails(&skip);
  if (failing && bytes > 1) (void)!real.pwrite(fd, data, bytes / 2, offset); /* a torn write */
  if (failing) errno = plan.error;
  if (failing) return -1;
  if (plan.mode == SHORT && call == plan.at && bytes > 1) bytes = 1;
  return real.pwrite(fd, data, bytes, offset);
}
static int seam_fsync(int fd) {
  SEAM(track_sync(fd, real.fsync(fd)));
}
static int seam_fdatasync(int fd) {
  SEAM(track_sync(fd, real.fdatasync(fd)));
}
static int seam_ftruncate(int fd, int64_t bytes) {
  SEAM(real.ftruncate(fd, bytes));
}
static int seam_rename(const char *from, const char *to) {
  SEAM(track_rename(from, to, real.rename(from, to)));
}
static int seam_rename_noreplace(const char *from, const char *to) {
  SEAM(track_rename(from, to, real.rename_noreplace(from, to)));
}
static int seam_unlink(const char *path) {
  SEAM(real.unlink(path));
}
static int seam_mkdir(const char *path, int mode_bits) {
  SEAM(track_mkdir(path, real.mkdir(path, mode_bits)));
}
static int seam_rmdir(const char *path) {
  SEAM(real.rmdir(path));
}
static int seam_stat(const char *path, struct stat *out) {
  SEAM(real.stat(path, out));
}

static const iso_os_table seam = {
    .open = seam_open,
    .close = seam_close,
    .pread = seam_pread,
    .pwrite = seam_pwrite,
    .fsync = seam_fsync,
    .fdatasync = seam_fdatasync,
    .ftruncate = seam_ftruncate,
    .rename = seam_rename,
    .rename_noreplace = seam_rename_noreplace,
    .unlink = seam_unlink,
    .mkdir = seam_mkdir,
    .rmdir = seam_rmdir,
    .stat = seam_stat,
};

/* ---- one attempt under a plan --------------------------------------------------------------------------------------
 */

/* Power is cut by the test itself, so the disk need not be waited for. */
static int sync_nothing(int fd) {
  (void)fd;
  return 0;
}

static int setup(void **state) {
  iso_log_quiet(true);
  iso_os.fsync = sync_nothing;
  iso_os.fdatasync = sync_nothing;
  real = iso_os;
  return 0;
}

static iso_status write_under(mode how, int error, int at, int64_t step) {
  plan.mode = how;
  plan.error = error;
  plan.at = at;
  plan.calls = 0;
  memset(tracked, 0, sizeof tracked);
  fixture_fill(&f, step);
  iso_os = seam;
  iso_status status = iso_snapshot_write(f.run, &f.state, &f.info);
  iso_os = real;
  return status;
}

static int open_descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  while (readdir(folder)) count++;
  closedir(folder);
  return count;
}

/* Runs a plan for each call of a write until one is beyond the last. Returns how many there were. */
static int for_each_call(mode how, int error) {
  for (int at = 0;; at++) {
    fixture_init(&f);
    fixture_write(&f, 10);
    int descriptors = open_descriptors();
    iso_status status = write_under(how, error, at, 20);
    bool reached = plan.calls > at;
    if (status != ISO_OK) {
      const char *message = iso_last_error();
      assert_true(*message && !strchr(message, '\n'));
    }
    if (!reached) assert_int_equal(status, ISO_OK);
    /* a close that was not done, or an open that was, keeps one descriptor open: not ours to mend */
    assert_true(how == DEAD || open_descriptors() <= descriptors + 1);
    int64_t found = fixture_find(&f, -1);
    assert_true(found == 10 || found == 20);
    if (status == ISO_OK) assert_int_equal(found, 20);
    assert_int_equal(fixture_count(&f, "aside"), 0); /* a broken attempt is no damaged snapshot */
    fixture_write(&f, 20);
    assert_int_equal(fixture_find(&f, -1), 20);
    fixture_fini(&f);
    if (!reached) return at;
  }
}

static void a_failing_call_leaves_old_or_new(void **state) {
  int calls = for_each_call(FAIL, EIO);
  assert_true(calls > 30);
  for_each_call(FAIL_BUT_DONE, EIO);
}

static void a_full_disk_says_so(void **state) {
  static const char *const actions[] = {"write", "sync", "create"};
  fixture_init(&f);
  fixture_write(&f, 10);
  int said = 0, total = 0;
  for (int at = 0;; at++) {
    iso_status status = write_under(FAIL, ENOSPC, at, 20 + at);
    if (plan.calls <= at) break;
    for (size_t i = 0; i < ISO_COUNT(actions); i++) {
      if (status == ISO_OK || !strstr(iso_last_error(), actions[i]) || !strstr(iso_last_error(), "No space left"))
        continue;
      assert_int_equal(status, ISO_ERR_SPACE);
      said++;
      break;
    }
    total += status != ISO_OK;
  }
  assert_true(said >= 6 && said <= total);
  fixture_fini(&f);
}

static void interruptions_and_short_transfers_are_continued(void **state) {
  int calls = for_each_call(FAIL, EINTR);
  fixture_init(&f);
  for (int at = 0; at <= calls; at++) {
    /* short transfers only make more calls */
    assert_int_equal(write_under(SHORT, 0, at, 20 + at), ISO_OK);
    assert_int_equal(fixture_find(&f, 20 + at), 20 + at);
  }
  fixture_fini(&f);
}

static void a_killed_process_leaves_old_or_new(void **state) {
  for_each_call(DEAD, EIO);
}

/* ---- power cuts
 * ---------------------------------------------------------------------------------------------------------- */

/* What was not synced is lost: data of files always; new names in folders when `names_too`. */
static void cut_power(bool names_too) {
  for (int i = 0; i < TRACKED; i++) {
    struct tracked *t = &tracked[i];
    if (t->used && !t->folder && !t->data_synced) (void)!truncate(t->path, 0);
  }
  for (int i = 0; i < TRACKED && names_too; i++) {
    struct tracked *t = &tracked[i];
    if (!t->used || t->entry_synced || t->folder) continue;
    if (t->from[0]) {
      rename(t->path, t->from);
    } else {
      unlink(t->path);
    }
  }
  for (int i = 0; i < TRACKED && names_too; i++) {
    if (tracked[i].used && tracked[i].folder && !tracked[i].entry_synced) scratch_remove(tracked[i].path);
  }
}

static void a_power_cut_leaves_old_or_new(void **state) {
  for (int names_too = 0; names_too < 2; names_too++) {
    bool reached = true;
    for (int at = 0; reached; at++) {
      fixture_init(&f);
      fixture_write(&f, 10);
      iso_status status = write_under(DEAD, EIO, at, 20);
      reached = plan.calls > at;
      cut_power(names_too);
      int64_t found = fixture_find(&f, -1);
      assert_true(found == 10 || found == 20);
      if (status == ISO_OK) assert_int_equal(found, 20); /* acknowledged: it stays */
      assert_int_equal(fixture_count(&f, "aside"), 0);
      fixture_write(&f, 20);
      fixture_fini(&f);
    }
  }
}

/* The first snapshot of a run, where folders are new too. */
static void the_first_snapshot_survives_a_power_cut(void **state) {
  for (int names_too = 0; names_too < 2; names_too++) {
    bool reached = true;
    for (int at = 0; reached; at++) {
      fixture_init(&f);
      iso_status status = write_under(DEAD, EIO, at, 20);
      reached = plan.calls > at;
      cut_power(names_too);
      int64_t found = fixture_find(&f, -1);
      assert_true(found == -1 || found == 20);
      if (status == ISO_OK) assert_int_equal(found, 20);
      fixture_fini(&f);
    }
  }
}

/* ---- reading under faults
 * -------------------------------------------------------------------------------------------------- */

/* A system that refuses to open or read a snapshot must not make a good one look damaged; an unreadable sector does. */
static void refusals_are_not_damage(void **state) {
  fixture_init(&f);
  fixture_write(&f, 10);
  fixture_write(&f, 20);
  int refused = 0;
  for (int at = 0;; at++) {
    char folder[512];
    iso_snapshot_info info;
    bool found;
    plan.mode = FAIL;
    plan.error = EACCES;
    plan.at = at;
    plan.calls = 0;
    iso_os = seam;
    iso_status status = iso_snapshot_find(f.run, -1, NULL, folder, &info, &found);
    iso_os = real;
    assert_int_equal(fixture_count(&f, "aside"), 0);
    if (status == ISO_OK) assert_true(found && info.step == 20); /* e.g. a failed close of a file that was read */
    refused += status != ISO_OK;
    iso_snapshot_info_fini(&info);
    if (plan.calls <= at) break;
  }
  assert_true(refused > 10);
  fixture_fini(&f);

  for (int at = 0;; at++) { /* a read that fails once is no damage either */
    char folder[512];
    iso_snapshot_info info;
    bool found;
    fixture_init(&f);
    fixture_write(&f, 10);
    fixture_write(&f, 20);
    plan.mode = FAIL;
    plan.error = EIO;
    plan.at = at;
    plan.calls = 0;
    iso_os = seam;
    iso_status status = iso_snapshot_find(f.run, -1, NULL, folder, &info, &found);
    iso_os = real;
    bool reached = plan.calls > at;
    if (status == ISO_OK) assert_true(found && info.step == 20);
    assert_int_equal(fixture_count(&f, "aside"), 0);
    iso_snapshot_info_fini(&info);
    fixture_fini(&f);
    if (!reached) break;
  }
}

static int newest_state = -1; /* descriptor of its file */
static int open_newest_state(const char *path, int flags, int mode_bits) {
  const int fd = real.open(path, flags, mode_bits);
  if (strstr(path, "step-00000020-0001/state-")) newest_state = fd;
  return fd;
}
static ssize_t pread_bad_sector(int fd, void *data, size_t bytes, int64_t offset) {
  if (fd != newest_state) return real.pread(fd, data, bytes, offset);
  errno = EIO;
  return -1;
}
static int close_newest_state(int fd) {
  if (fd == newest_state) newest_state = -1;
  return real.close(fd);
}

static void an_unreadable_sector_is_damage(void **state) {
  fixture_init(&f);
  fixture_write(&f, 10);
  fixture_write(&f, 20);
  iso_os.open = open_newest_state;
  iso_os.pread = pread_bad_sector;
  iso_os.close = close_newest_state;
  assert_int_equal(fixture_find(&f, -1), 10);
  iso_os = real;
  assert_int_equal(fixture_count(&f, "aside"), 1);
  fixture_fini(&f);
}

/* Found or not, it stays where it is: the disk may read it again, and until something else is known to lead as far it
 * may be the only copy of a durable step. */
static void what_cannot_be_read_stays_in_its_place(void **state) {
  char folder[512];
  iso_snapshot_info info;
  iso_string damaged = {0};
  bool found;
  fixture_init(&f);
  fixture_write(&f, 10);
  fixture_write(&f, 20);
  iso_os.open = open_newest_state;
  iso_os.pread = pread_bad_sector;
  iso_os.close = close_newest_state;
  assert_int_equal(iso_snapshot_find(f.run, -1, &damaged, folder, &info, &found), ISO_OK);
  iso_os = real;
  assert_true(found);
  assert_int_equal(info.step, 10);
  iso_snapshot_info_fini(&info);
  assert_string_equal(damaged.data, "step-00000020-0001\n");
  iso_string_fini(&damaged);
  assert_int_equal(fixture_count(&f, "aside"), 0);
  assert_int_equal(fixture_find(&f, -1), 20);
  fixture_fini(&f);
}

static int open_while_pruned(const char *path, int flags, int mode_bits) {
  if (strstr(path, "step-00000020-0001/manifest.json")) real.unlink(path);
  return real.open(path, flags, mode_bits);
}

/* Another process reads while the run's owner deletes: what vanishes under it is not damaged. */
static void a_snapshot_that_is_being_pruned_is_not_damaged(void **state) {
  fixture_init(&f);
  fixture_write(&f, 10);
  fixture_write(&f, 20);
  iso_os.open = open_while_pruned;
  assert_int_equal(fixture_find(&f, -1), 10);
  iso_os = real;
  assert_int_equal(fixture_count(&f, "aside"), 0);
  fixture_fini(&f);
}

/* Deleting, interrupted anywhere: the newest stays, and no half-deleted snapshot counts. */
static void an_interrupted_prune_loses_nothing(void **state) {
  for (int at = 0;; at++) {
    fixture_init(&f);
    for (int step = 10; step <= 30; step += 10) fixture_write(&f, step);
    plan.mode = DEAD;
    plan.error = EIO;
    plan.at = at;
    plan.calls = 0;
    iso_os = seam;
    iso_status status = iso_snapshot_prune(f.run, 1, 1, 0);
    iso_os = real;
    bool reached = plan.calls > at;
    assert_int_equal(fixture_find(&f, -1), 30);
    assert_true(status == ISO_OK || reached);
    assert_int_equal(iso_snapshot_prune(f.run, 1, 1, 0), ISO_OK);
    assert_int_equal(fixture_count(&f, "snapshots"), 1);
    assert_int_equal(fixture_count(&f, "aside"), 0);
    fixture_fini(&f);
    if (!reached) break;
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_failing_call_leaves_old_or_new),
      cmocka_unit_test(a_full_disk_says_so),
      cmocka_unit_test(interruptions_and_short_transfers_are_continued),
      cmocka_unit_test(a_killed_process_leaves_old_or_new),
      cmocka_unit_test(a_power_cut_leaves_old_or_new),
      cmocka_unit_test(the_first_snapshot_survives_a_power_cut),
      cmocka_unit_test(refusals_are_not_damage),
      cmocka_unit_test(an_unreadable_sector_is_damage),
      cmocka_unit_test(what_cannot_be_read_stays_in_its_place),
      cmocka_unit_test(a_snapshot_that_is_being_pruned_is_not_damaged),
      cmocka_unit_test(an_interrupted_prune_loses_nothing),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
