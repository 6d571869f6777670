/* SPDX-License-Identifier: Apache-2.0
 *
 * The lock of a run folder: between processes, after a death, and with claims of other hosts.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/scratch.h"
#include "store/store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static char run[128], path[160];

static int setup(void **state) {
  iso_log_quiet(true);
  scratch_make(run);
  snprintf(path, sizeof path, "%s/lock", run);
  return 0;
}

static int teardown(void **state) {
  scratch_remove(run);
  return 0;
}

static void set_age(int seconds) {
  struct timespec times[2] = {{time(NULL) - seconds, 0}, {time(NULL) - seconds, 0}};
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* A child that takes the lock, says whether it did, and stays until it is killed. */
static pid_t child_holds(iso_status *status) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  if (child == 0) {
    iso_lock *lock;
    iso_status taken = iso_lock_acquire(run, false, &lock);
    (void)!write(ends[1], &taken, sizeof taken);
    for (;;) pause();
  }
  assert_int_equal(read(ends[0], status, sizeof *status), sizeof *status);
  close(ends[0]);
  close(ends[1]);
  return child;
}

static void one_process_at_a_time(void **state) {
  iso_status status;
  iso_lock *lock = NULL, *second = NULL;
  char words[32];
  pid_t child = child_holds(&status);
  assert_int_equal(status, ISO_OK);
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_ERR_BUSY);
  snprintf(words, sizeof words, "process %ld on host ", (long)child);
  assert_non_null(strstr(iso_last_error(), words));
  assert_int_equal(iso_lock_acquire(run, true, &lock), ISO_ERR_BUSY); /* take-over is for the dead only */
  assert_null(lock);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  /* and the other way round: a child meets this process's lock */
  child = child_holds(&status);
  assert_int_equal(status, ISO_ERR_BUSY);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  /* the same process twice is refused as well */
  assert_int_equal(iso_lock_acquire(run, false, &second), ISO_ERR_BUSY);
  iso_lock_release(&lock);
  assert_null(lock);
  iso_lock_release(&lock);
  struct stat info;
  assert_int_equal(stat(path, &info), 0);
  assert_int_equal(info.st_size, 0); /* released */
  assert_int_equal(iso_lock_acquire(run, false, &second), ISO_OK);
  iso_lock_release(&second);
}

static void other_hosts_are_respected(void **state) {
  static const char claim[] = "elsewhere.example 4711 0a0b-boot 99\n";
  iso_lock *lock;
  scratch_write(path, claim, sizeof claim - 1);
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_ERR_BUSY);
  assert_non_null(strstr(iso_last_error(), "process 4711 on host elsewhere.example"));
  assert_int_equal(iso_lock_acquire(run, true, &lock), ISO_ERR_BUSY); /* its heartbeat is fresh */
  set_age(59);
  assert_int_equal(iso_lock_acquire(run, true, &lock), ISO_ERR_BUSY);
  set_age(3000);
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_ERR_BUSY);
  assert_non_null(strstr(iso_last_error(), "--take-over"));
  set_age(3000);
  assert_int_equal(iso_lock_acquire(run, true, &lock), ISO_OK);
  struct stat info;
  assert_int_equal(stat(path, &info), 0);
  assert_true(time(NULL) - info.st_mtim.tv_sec < 10);
  iso_lock_release(&lock);
  set_age(-100); /* a clock that runs ahead counts as fresh */
  scratch_write(path, claim, sizeof claim - 1);
  assert_int_equal(iso_lock_acquire(run, true, &lock), ISO_ERR_BUSY);
}

static void leftovers_of_this_host_are_taken(void **state) {
  char host[256] = "", claim[400];
  iso_lock *lock;
  gethostname(host, sizeof host - 1);
  int length = snprintf(claim, sizeof claim, "%s 4711 some-older-boot 99\n", host);
  scratch_write(path, claim, (size_t)length);
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  iso_lock_release(&lock);
  scratch_write(path, "garbage", 7);
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  iso_lock_release(&lock);
  scratch_write(path, "\0\xff\n", 3);
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  /* a claim that another process has put over ours is left alone on release */
  scratch_write(path, "elsewhere 1 b 2\n", 16);
  iso_lock_release(&lock);
  struct stat info;
  assert_int_equal(stat(path, &info), 0);
  assert_int_equal(info.st_size, 16);
}

/* A power cut may leave a line's length with the bytes of the one before, or none. */
static void zeros_behind_a_line_are_none_of_it(void **state) {
  char claim[600] = "";
  iso_lock *lock;
  iso_string faults = {0};
  bool sealed;
  (void)state;
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  const size_t length = fread(claim, 1, 400, file);
  fclose(file);
  iso_lock_release(&lock);
  for (size_t zeros = 0; zeros < 4; zeros++) {
    scratch_write(path, claim, length + zeros);
    assert_int_equal(iso_lock_examine(run, &sealed, &faults), ISO_OK);
    assert_true(sealed);
  }
  assert_int_equal(faults.length, 0);
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  iso_lock_release(&lock);
  claim[3] ^= 1;
  scratch_write(path, claim, length + 1);
  assert_int_equal(iso_lock_examine(run, &sealed, &faults), ISO_ERR_FORMAT);
  iso_string_fini(&faults);
}

/* Who owns the folder clears what a kill left of unfinished writes, and nothing else. */
static void unfinished_writes_are_cleared(void **state) {
  (void)state;
  static const struct {
    const char *name;
    bool kept;
  } rows[] = {
      {"config.yaml.tmp-4711-0", false},
      {"tokenizer/tokenizer.json.tmp-1-12", false},
      {"run.json.0123456789abcdef0123456789abcdef.tmp", false},
      {"incarnations/0003.json.0123456789abcdef0123456789abcdef.tmp", false},
      {"config.yaml", true},
      {"notes.tmp", true},
      {"notes.tmp-1", true},
      {"notes.tmp-1-", true},
      {"notes.tmp-1-2.txt", true},
      {".tmp-1-2", true},
      {"a.0123456789ABCDEF0123456789abcdef.tmp", true},
      {"0123456789abcdef0123456789abcdef.tmp", true},
      {"mine/run.json.tmp-1-2", true},
  };
  static const char *const folders[] = {"incarnations", "tokenizer", "mine"};
  char name[300];
  iso_lock *lock;
  for (size_t i = 0; i < ISO_COUNT(folders); i++) {
    snprintf(name, sizeof name, "%s/%s", run, folders[i]);
    assert_int_equal(iso_path_make(name), ISO_OK);
  }
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    snprintf(name, sizeof name, "%s/%s", run, rows[i].name);
    scratch_write(name, "x", 1);
  }
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    snprintf(name, sizeof name, "%s/%s", run, rows[i].name);
    if (iso_path_exists(name) != rows[i].kept) fail_msg("%s: %s", rows[i].name, rows[i].kept ? "gone" : "left");
  }
  iso_lock_release(&lock);
}

static void a_missing_folder_is_an_error(void **state) {
  iso_lock *lock;
  assert_int_equal(iso_lock_acquire("/nonexistent/run", false, &lock), ISO_ERR_NOT_FOUND);
  assert_null(lock);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(one_process_at_a_time, setup, teardown),
      cmocka_unit_test_setup_teardown(other_hosts_are_respected, setup, teardown),
      cmocka_unit_test_setup_teardown(leftovers_of_this_host_are_taken, setup, teardown),
      cmocka_unit_test_setup_teardown(zeros_behind_a_line_are_none_of_it, setup, teardown),
      cmocka_unit_test_setup_teardown(unfinished_writes_are_cleared, setup, teardown),
      cmocka_unit_test_setup_teardown(a_missing_folder_is_an_error, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
