/* SPDX-License-Identifier: Apache-2.0
 *
 * A start that goes back (--from-step, or by itself since the weights of ranks differed; with another learning rate) is
 * killed before each of its calls that change something. However far it came: the run is that of before, whole, or that
 * of the new branch, and then nothing of the old one counts again; the same command again, or a plain resume, ends with
 * the bits of a start that was not killed; and no step of the old branch is deleted. By itself it goes back once,
 * however often it is killed.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/wait.h>

#include "io/scratch.h"
#include "train/train.h"

enum { BACK = 11, OLD = 16, NEW = 14, STRIDE = 5 };

static char parent[128];
static bool by_itself; /* there is a record, instead of --from-step */

/* ---- dying at a call ---- */

static iso_os_table real;
static int calls, die_at, fail_at; /* 0: never */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* -1: this call fails. */
static int count_call(void) {
  pthread_mutex_lock(&lock);
  if (++calls == die_at) _exit(9);
  const bool fails = calls == fail_at;
  pthread_mutex_unlock(&lock);
  errno = calls % 2 ? EIO : ENOSPC;
  return fails ? -1 : 0;
}

static int counted_open(const char *path, int flags, int mode) {
  if ((flags & O_CREAT) && count_call() != 0) return -1;
  return real.open(path, flags, mode);
}
static ssize_t counted_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  if (count_call() != 0) return -1;
  return real.pwrite(fd, data, bytes, offset);
}
static int counted_ftruncate(int fd, int64_t bytes) {
  if (count_call() != 0) return -1;
  return real.ftruncate(fd, bytes);
}
static int counted_rename(const char *from, const char *to) {
  if (count_call() != 0) return -1;
  return real.rename(from, to);
}
static int counted_rename_noreplace(const char *from, const char *to) {
  if (count_call() != 0) return -1;
  return real.rename_noreplace(from, to);
}
static int counted_unlink(const char *path) {
  if (count_call() != 0) return -1;
  return real.unlink(path);
}
static int counted_mkdir(const char *path, int mode) {
  if (count_call() != 0) return -1;
  return real.mkdir(path, mode);
}

static void count_calls(int die, int fail) {
  real = iso_os;
  calls = 0;
  die_at = die;
  fail_at = fail;
  iso_os.open = counted_open;
  iso_os.pwrite = counted_pwrite;
  iso_os.ftruncate = counted_ftruncate;
  iso_os.rename = counted_rename;
  iso_os.rename_noreplace = counted_rename_noreplace;
  iso_os.unlink = counted_unlink;
  iso_os.mkdir = counted_mkdir;
}

/* ---- runs ---- */

static iso_status train(const char *run, bool new_branch, bool go_back, int64_t stop_at) {
  char name[256], stop[64];
  snprintf(name, sizeof name, "run=%s/%s", parent, run);
  snprintf(stop, sizeof stop, "stop_at=%lld", (long long)stop_at);
  const char *const overrides[] = {name,
                                   stop,
                                   "steps=60",
                                   "threads=1",
                                   "checkpoint.snapshot_every=6",
                                   "checkpoint.keep_last=3",
                                   new_branch ? "optimizer.lr=1e-3" : "optimizer.lr=3e-3"};
  iso_config config;
  iso_train_result result;
  const iso_train_options options = {
      .quiet = true, .accept = new_branch, .go_back = go_back && !by_itself, .from_step = BACK};
  assert_int_equal(iso_config_read(ISO_TEST_DATA "/../../examples/tiny.yaml", overrides, ISO_COUNT(overrides), &config),
                   ISO_OK);
  const iso_status status = iso_train(&config, &options, &result);
  iso_config_fini(&config);
  return status;
}

static bool digest(const char *run, int64_t step, char hex[65], int64_t *at) {
  char path[256];
  iso_stored stored;
  snprintf(path, sizeof path, "%s/%s", parent, run);
  const iso_status status = iso_stored_open(path, step, &stored);
  if (status != ISO_OK) return false;
  iso_state_digest(&stored.state, stored.info.step, hex);
  if (at) *at = stored.info.step;
  iso_stored_close(&stored);
  return true;
}

static void copy_run(const char *from, const char *to) {
  char command[600];
  snprintf(command, sizeof command, "rm -rf '%s/%s' && cp -r '%s/%s' '%s/%s'", parent, to, parent, from, parent, to);
  assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
}

static iso_incarnation newest(const char *run) {
  char path[256];
  iso_incarnation in;
  snprintf(path, sizeof path, "%s/%s", parent, run);
  assert_int_equal(iso_incarnation_newest(path, &in), ISO_OK);
  return in;
}

static int newest_incarnation(const char *run) {
  return newest(run).number;
}

/* As the old run was; its ranks' weights differed behind BACK, should that be what the start goes back for. */
static void copy_old(void) {
  char path[256], uuid[37], none[ISO_SNAPSHOT_PATH] = "";
  bool exists;
  const iso_differed differed = {.incarnation = 1, .step = OLD, .rank = 1, .same_step = BACK, .logged = true};
  copy_run("old", "killed");
  if (!by_itself) return;
  snprintf(path, sizeof path, "%s/killed", parent);
  assert_int_equal(iso_run_folder_read(path, uuid, &exists), ISO_OK);
  assert_int_equal(iso_differed_write(path, uuid, &differed, none), ISO_OK);
}

static int count_names(const char *run, const char *folder, const char *prefix) {
  char path[400];
  int count = 0;
  snprintf(path, sizeof path, "%s/%s/%s", parent, run, folder);
  DIR *open_folder = opendir(path);
  if (!open_folder) return 0;
  for (struct dirent *e; (e = readdir(open_folder));) count += strncmp(e->d_name, prefix, strlen(prefix)) == 0;
  closedir(open_folder);
  return count;
}

/* Snapshots and segments of the first incarnation, wherever they are. */
static int count_old(const char *run) {
  return count_names(run, "log", "0001-") + count_names(run, "aside", "0001-") +
         count_names(run, "snapshots", "step-00000012-0001") + count_names(run, "aside", "step-00000012-0001") +
         count_names(run, "snapshots", "step-00000016-0001") + count_names(run, "aside", "step-00000016-0001");
}

static void check_whole(const char *run) {
  char path[256], uuid[37];
  bool exists;
  iso_wal_index index;
  iso_string faults = {0};
  snprintf(path, sizeof path, "%s/%s", parent, run);
  FILE *out = tmpfile();
  assert_int_equal(iso_snapshot_verify(path, out, NULL), ISO_OK);
  fclose(out);
  assert_int_equal(iso_run_folder_read(path, uuid, &exists), ISO_OK);
  assert_int_equal(iso_wal_index_read(path, uuid, true, 0, &index, &faults), ISO_OK);
  assert_int_equal(faults.length, 0);
  iso_wal_index_fini(&index);
}

/* Runs the start in a process of its own that dies before call `at`; false: it ended before that. */
static bool die_in_start(const char *run, int at) {
  fflush(NULL);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    count_calls(at, 0);
    const iso_status status = train(run, true, true, NEW);
    _exit(status == ISO_OK ? 0 : 1);
  }
  int ended;
  assert_int_equal(waitpid(child, &ended, 0), child);
  assert_true(WIFEXITED(ended));
  assert_true(WEXITSTATUS(ended) == 0 || WEXITSTATUS(ended) == 9);
  return WEXITSTATUS(ended) == 9;
}

static char old_end[65], back[65], new_end[65];

/* What the run is after a start that ended early, and after the next one. */
static void check_afterwards(int old_things, int *before) {
  char hex[65];
  int64_t at;
  assert_true(digest("killed", BACK, hex, NULL));
  assert_string_equal(hex, back);
  assert_true(digest("killed", -1, hex, &at));
  assert_true(count_old("killed") >= old_things - 1); /* one segment of steps up to BACK may have been pruned */
  if (newest_incarnation("killed") == 1) {            /* nothing has happened yet */
    ++*before;
    assert_int_equal(at, OLD);
    assert_string_equal(hex, old_end);
    assert_int_equal(train("killed", true, true, NEW), ISO_OK);
  } else {
    assert_in_range(at, BACK, NEW);
    assert_false(digest("killed", OLD, hex, NULL));
    check_whole("killed");
    const int before_resume = newest_incarnation("killed");
    assert_int_equal(train("killed", true, false, NEW), ISO_OK); /* a plain resume */
    const iso_incarnation in = newest("killed");
    assert_true(in.number == before_resume || in.begins_after == at);
  }
  assert_true(digest("killed", -1, hex, &at) && at == NEW);
  assert_string_equal(hex, new_end);
  assert_false(digest("killed", OLD, hex, NULL));
  check_whole("killed");
}

static void test_killed_at_every_call(void **state) {
  (void)state;
  int killed = 0, before = 0;
  for (bool died = true; died; killed++) {
    copy_old();
    const int old_things = count_old("killed");
    died = die_in_start("killed", 1 + killed * STRIDE);
    check_afterwards(old_things, &before);
  }
  assert_true(before > 3);
  assert_true(killed > 2 * before);
  print_message("killed at %d calls, %d of them before the incarnation\n", killed, before);
}

static void test_every_call_fails(void **state) {
  (void)state;
  int failed = 0, before = 0, survived = 0;
  bool there = true;
  for (int n = 2; there; n += STRIDE + 1, failed++) {
    copy_old();
    const int old_things = count_old("killed");
    count_calls(0, n);
    survived += train("killed", true, true, NEW) == ISO_OK;
    iso_os = real;
    there = calls >= n;
    check_afterwards(old_things, &before);
  }
  assert_true(before > 1);
  assert_true(survived > 3);
  print_message("%d calls failed, %d starts went on all the same\n", failed, survived);
}

static void test_by_itself(void **state) {
  by_itself = true;
  test_killed_at_every_call(state);
  by_itself = false;
}

static void test_by_itself_every_call_fails(void **state) {
  by_itself = true;
  test_every_call_fails(state);
  by_itself = false;
}

static int make_parent(void **state) {
  (void)state;
  char hex[65];
  int64_t at;
  scratch_make(parent);
  iso_log_quiet(true);
  assert_int_equal(train("old", false, false, OLD), ISO_OK);
  assert_true(digest("old", -1, old_end, &at) && at == OLD);
  assert_true(digest("old", BACK, back, NULL));
  copy_run("old", "whole");
  assert_int_equal(train("whole", true, true, NEW), ISO_OK);
  assert_true(digest("whole", -1, new_end, &at) && at == NEW);
  assert_false(digest("whole", OLD, hex, NULL));
  return 0;
}

static int remove_parent(void **state) {
  (void)state;
  iso_log_quiet(false);
  scratch_remove(parent);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed_at_every_call),
                                     cmocka_unit_test(test_every_call_fails), cmocka_unit_test(test_by_itself),
                                     cmocka_unit_test(test_by_itself_every_call_fails)};
  return cmocka_run_group_tests(tests, make_parent, remove_parent);
}
