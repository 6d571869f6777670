/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs whose storage is slow, hangs or fails while snapshots stream: training goes on, durable_step says no more than
 * is true, lines say what is waited for, and the bits at the end are those of a run that had no trouble.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "io/scratch.h"
#include "train/train.h"

#define TINY ISO_TEST_DATA "/../../examples/tiny.yaml"
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOW_MS = 400 }; /* of a write: longer than a step */
#else
enum { SLOW_MS = 20 };
#endif
enum { STEPS = 120, FDS = 256 };

static char folder[128], run_folder[160];
static char expected[65]; /* digest of a run without trouble */
static iso_os_table real;

/* ---- storage ---- */

typedef enum kind { OTHER, STATE, LOG } kind;
static _Atomic int kinds[FDS];
static struct {
  _Atomic int slow_ms;            /* each write of a state file takes so long */
  _Atomic int hang_ms;            /* the next one, once */
  _Atomic int hold_steps;         /* the next one waits until so many more steps are taken */
  _Atomic int terms;              /* SIGTERMs that the next one sends, 100 ms apart */
  _Atomic int fail_state;         /* so many of them fail */
  _Atomic int log_from, fail_log; /* writes of the log before the first that fails; how many do */
} trouble;

static int watched_open(const char *path, int flags, int mode) {
  const int fd = real.open(path, flags, mode);
  if (fd >= 0 && fd < FDS) kinds[fd] = strstr(path, "/state-") ? STATE : strstr(path, "/log/") ? LOG : OTHER;
  return fd;
}

static void pause_ms(int ms) {
  const struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
  nanosleep(&pause, NULL);
}

static int steps_taken(void) {
  char path[200], line[1024];
  int steps = 0;
  snprintf(path, sizeof path, "%s/metrics.jsonl", run_folder);
  FILE *file = fopen(path, "r");
  while (file && fgets(line, sizeof line, file)) steps++;
  if (file) fclose(file);
  return steps;
}

static void hold_for_steps(int steps) {
  const int until = steps_taken() + steps;
  for (int tries = 0; steps && steps_taken() < until && tries < 6000; tries++) pause_ms(10);
}

static ssize_t troubled_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  const int is = fd < FDS ? kinds[fd] : OTHER;
  if (is == STATE) {
    pause_ms(trouble.slow_ms);
    for (int terms = atomic_exchange(&trouble.terms, 0); terms > 0; terms--) {
      kill(getpid(), SIGTERM);
      pause_ms(100);
    }
    pause_ms(atomic_exchange(&trouble.hang_ms, 0));
    hold_for_steps(atomic_exchange(&trouble.hold_steps, 0));
    if (trouble.fail_state > 0) {
      trouble.fail_state--;
      errno = EIO;
      return -1;
    }
  }
  if (is == LOG && trouble.fail_log > 0 && trouble.log_from-- <= 0) {
    trouble.fail_log--;
    errno = EIO;
    return -1;
  }
  return real.pwrite(fd, data, bytes, offset);
}

/* ---- runs ---- */

/* Trains to the end; what went to standard error comes back (free it). */
static iso_status train(const char *const *more, char **said) {
  char run[200], log[200];
  const char *words[16] = {run, "steps=120", "optimizer.schedule=constant"};
  int count = 3;
  snprintf(run_folder, sizeof run_folder, "%s/run", folder);
  snprintf(run, sizeof run, "run=%s", run_folder);
  snprintf(log, sizeof log, "%s/stderr", folder);
  while (*more) words[count++] = *more++;
  iso_config config;
  assert_int_equal(iso_config_read(TINY, words, count, &config), ISO_OK);
  fflush(stderr);
  const int before = dup(2);
  FILE *file = fopen(log, "w");
  assert_non_null(file);
  dup2(fileno(file), 2);
  const iso_train_options options = {.quiet = true};
  iso_train_result result;
  const iso_status status = iso_train(&config, &options, &result);
  dup2(before, 2);
  close(before);
  fclose(file);
  iso_config_fini(&config);
  size_t bytes;
  assert_int_equal(iso_file_read(log, said, &bytes), ISO_OK);
  return status;
}

static void digest(char hex[65]) {
  iso_stored stored;
  assert_int_equal(iso_stored_open(run_folder, -1, &stored), ISO_OK);
  assert_int_equal(stored.info.step, STEPS);
  iso_state_digest(&stored.state, stored.info.step, hex);
  iso_stored_close(&stored);
}

static void check_end(void) {
  char hex[65];
  iso_os = real;
  digest(hex);
  assert_string_equal(hex, expected);
  char *text;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  assert_int_equal(iso_snapshot_verify(run_folder, out, NULL), ISO_OK);
  fclose(out);
  free(text);
}

/* durable_step of each line of metrics.jsonl. */
static void read_durable(int64_t durable[STEPS + 1]) {
  char path[200], *data;
  size_t bytes;
  snprintf(path, sizeof path, "%s/metrics.jsonl", run_folder);
  assert_int_equal(iso_file_read(path, &data, &bytes), ISO_OK);
  int64_t step = 0;
  for (const char *at = data; (at = strstr(at, "\"durable_step\": ")); at++)
    durable[++step] = strtoll(at + strlen("\"durable_step\": "), NULL, 10);
  assert_int_equal(step, STEPS);
  free(data);
}

static int setup(void **state) {
  (void)state;
  scratch_make(folder);
  memset(&trouble, 0, sizeof trouble);
  trouble.fail_log = 0;
  real = iso_os;
  iso_os.open = watched_open;
  iso_os.pwrite = troubled_pwrite;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  iso_os = real;
  scratch_remove(folder);
  return 0;
}

static void a_run_without_trouble(void **none) {
  (void)none;
  const char *const words[] = {"checkpoint.snapshot_every=0", "log.compress=off", NULL}; /* a slow disk is said */
  char *said;
  assert_int_equal(train(words, &said), ISO_OK);
  assert_string_equal(said, "");
  free(said);
  digest(expected);
}

/* Each snapshot takes many steps; the next one, due meanwhile, waits for it. */
static void slow_storage_changes_no_bits(void **none) {
  (void)none;
  static const char *const staging[] = {"checkpoint.staging_mb=0", "checkpoint.staging_mb=1",
                                        "checkpoint.staging_mb=auto"};
  for (int i = 0; i < 3; i++) {
    const char *const words[] = {"checkpoint.snapshot_every=40", staging[i], "threads=2", NULL};
    char *said;
    trouble.slow_ms = SLOW_MS > 200 ? SLOW_MS : 200; /* a step of a busy machine is over before the write */
    assert_int_equal(train(words, &said), ISO_OK);
    assert_true((strstr(said, "checkpoint.staging_mb holds") != NULL) == (i < 2));
    free(said);
    check_end();
    iso_os.open = watched_open;
    iso_os.pwrite = troubled_pwrite;
    scratch_remove(folder);
    scratch_make(folder);
  }
}

static void a_write_that_hangs_is_said_and_steps_go_on(void **none) {
  (void)none;
  const char *const words[] = {"checkpoint.snapshot_every=10", "log.max_wait_s=0.1", NULL};
  char *said;
  int64_t durable[STEPS + 1];
  trouble.hang_ms = 1500;
  assert_int_equal(train(words, &said), ISO_OK);
  /* Given up when it is in flight as the update comes; else all of it was copied aside. */
  const char *line = strstr(said, "the snapshot of step 10 ");
  assert_true(line && (strstr(line, "is given up (its storage made no progress for 0.1 s (writing its file))") ||
                       strstr(line, "stands still (writing its file)")));
  assert_null(strstr(said, "error"));
  free(said);
  check_end();
  read_durable(durable);
  assert_true(durable[60] >= 55); /* of the log */
}

static void when_slow_stop_ends_the_run(void **none) {
  (void)none;
  const char *const words[] = {"checkpoint.snapshot_every=10", "log.max_wait_s=0.5", "log.when_slow=stop", NULL};
  char *said;
  trouble.hang_ms = 2500;
  assert_int_equal(train(words, &said), ISO_ERR_IO);
  assert_non_null(strstr(said, "and log.when_slow is stop"));
  free(said);
  const char *const patient[] = {"checkpoint.snapshot_every=10", "log.when_slow=stop", NULL};
  trouble.fail_state = 1; /* the same with one that fails */
  assert_int_equal(train(patient, &said), ISO_ERR_IO);
  free(said);
  assert_int_equal(train(patient, &said), ISO_OK);
  free(said);
  check_end();
}

static void a_write_that_fails_is_tried_again(void **none) {
  (void)none;
  const char *const words[] = {"checkpoint.snapshot_every=50", NULL};
  char *said;
  trouble.fail_state = 1;
  assert_int_equal(train(words, &said), ISO_OK);
  assert_non_null(strstr(said, "no snapshot after step 50 (see above); training goes on"));
  free(said);
  check_end();
}

/* The log fails, is suspended, and begins again behind the snapshot that closes the gap; while that is written steps go
 * by, and none of them is called durable. */
static void a_gap_is_closed_by_a_snapshot_that_streams(void **none) {
  (void)none;
  const char *const words[] = {"checkpoint.snapshot_every=0", NULL};
  char *said;
  int64_t durable[STEPS + 1];
  trouble.hold_steps = 8;
  trouble.log_from = 60;
  trouble.fail_log = 2; /* the step's segment, and the new one */
  assert_int_equal(train(words, &said), ISO_OK);
  assert_non_null(strstr(said, "the log is suspended"));
  assert_non_null(strstr(said, "the log is whole again"));
  free(said);
  check_end();
  read_durable(durable);
  int64_t longest = 0, jump = 0;
  for (int64_t step = 2, same = 0; step <= STEPS; step++) {
    assert_true(durable[step] >= durable[step - 1] && durable[step] < step);
    same = durable[step] == durable[step - 1] ? same + 1 : 0;
    if (same > longest) longest = same;
    if (durable[step] - durable[step - 1] > jump) jump = durable[step] - durable[step - 1];
  }
  assert_true(longest >= 5); /* not durable before it is published */
  assert_true(jump >= 5);    /* and then at once all that the log has behind it */
}

static void a_signal_waits_for_the_one_under_way(void **none) {
  (void)none;
  const char *const words[] = {"checkpoint.snapshot_every=30", NULL};
  char *said, path[200], *status;
  size_t bytes;
  int64_t oldest, newest;
  trouble.slow_ms = SLOW_MS;
  trouble.terms = 1;
  assert_int_equal(train(words, &said), ISO_STOPPED);
  free(said);
  assert_int_equal(iso_snapshot_range(run_folder, &oldest, &newest), ISO_OK);
  assert_int_equal(oldest, 30);
  assert_int_equal(newest, 30); /* the last step is in the log */
  snprintf(path, sizeof path, "%s/status.json", run_folder);
  assert_int_equal(iso_file_read(path, &status, &bytes), ISO_OK);
  assert_non_null(strstr(status, "\"verdict\": \"stopped\""));
  const char *step = strstr(status, "\"step\": "), *durable = strstr(status, "\"durable_step\": ");
  assert_true(step && durable && strtol(step + 8, NULL, 10) >= 30);
  assert_int_equal(strtol(step + 8, NULL, 10), strtol(durable + 16, NULL, 10));
  free(status);
  assert_int_equal(train(words, &said), ISO_OK);
  free(said);
  check_end();
}

/* Storage hangs, one signal waits for it, the second one does not. */
static void a_second_signal_ends_at_once(void **none) {
  (void)none;
  const char *const words[] = {"checkpoint.snapshot_every=30", "threads=1", NULL};
  char *said;
  trouble.hang_ms = 60000;
  trouble.terms = 2;
  const double began = iso_clock_s();
  const pid_t pid = fork();
  if (pid == 0) {
    (void)!train(words, &said);
    _exit(1);
  }
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM);
  assert_true(iso_clock_s() - began < 50);
  memset(&trouble, 0, sizeof trouble);
  assert_int_equal(train(words, &said), ISO_OK); /* and nothing is lost */
  free(said);
  check_end();
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      TEST(a_run_without_trouble),
      TEST(slow_storage_changes_no_bits),
      TEST(a_write_that_hangs_is_said_and_steps_go_on),
      TEST(when_slow_stop_ends_the_run),
      TEST(a_write_that_fails_is_tried_again),
      TEST(a_gap_is_closed_by_a_snapshot_that_streams),
      TEST(a_signal_waits_for_the_one_under_way),
      TEST(a_second_signal_ends_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
