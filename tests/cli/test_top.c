/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach top without a terminal: what it reads of run folders that are live, ended, killed, damaged or hostile, and
 * what it draws of that at any size.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/top.h"
#include "io/scratch.h"
#include "train/vitals/vitals.h"

static char parent[128], run[192], text[1 << 16];
static iso_top *top;
static iso_grid grid;
static iso_lock *lock;
static double now;

static const char *in_run(const char *name) {
  static char path[512];
  snprintf(path, sizeof path, "%s/%s", run, name);
  return path;
}

static int setup(void **state) {
  struct timespec time;
  char uuid[37];
  (void)state;
  iso_log_quiet(true);
  scratch_make(parent);
  snprintf(run, sizeof run, "%s/run", parent);
  assert_int_equal(iso_path_make(run), ISO_OK);
  assert_int_equal(iso_run_folder_open(run, uuid), ISO_OK);
  iso_incarnation start = {.number = 1, .tier = "scalar", .build = "test", .optimizer_version = 1, .ranks = 1};
  start.virtual_workers = 1;
  memset(start.config_digest, 'a', 64);
  assert_int_equal(iso_incarnation_publish(run, &start), ISO_OK);
  clock_gettime(CLOCK_REALTIME, &time);
  now = (double)time.tv_sec + 1;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  iso_top_close(&top);
  iso_grid_fini(&grid);
  iso_lock_release(&lock);
  scratch_remove(parent);
  return 0;
}

/* ---- what is in the folder ---- */

static iso_step_metrics step_at(int64_t step) {
  iso_step_metrics m = {.step = step, .tokens = 100 * step, .durable_step = step - 2, .incarnation = 1};
  m.loss = 8.0 - 0.001 * (double)step;
  m.lr = 3e-3;
  m.grad_norm = 0.5;
  m.wall_s = 0.01;
  m.compute_s = 0.008;
  m.data_wait_s = 0.002;
  m.tokens_per_s = 1000 + (double)step;
  m.ring_depth = 3;
  m.checkpoint_bandwidth = m.data_load_latency = m.allreduce_wait = m.allreduce_wait_std = NAN;
  m.flatness = 1.01;
  return m;
}

static void add_steps(int64_t first, int64_t last) {
  iso_metrics *metrics;
  assert_int_equal(iso_metrics_open(run, first - 1, &metrics), ISO_OK);
  for (int64_t step = first; step <= last; step++) {
    const iso_step_metrics m = step_at(step);
    assert_int_equal(iso_metrics_append(metrics, &m), ISO_OK);
  }
  assert_int_equal(iso_metrics_close(&metrics), ISO_OK);
}

static void append(const char *name, const char *bytes) {
  FILE *file = fopen(in_run(name), "ab");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, strlen(bytes), file), strlen(bytes));
  assert_int_equal(fclose(file), 0);
}

static void write_vitals(int64_t step, double time, int ranks) {
  iso_string out = {0};
  iso_string_printf(&out,
                    "{\"step\": %lld, \"steps\": 1000, \"durable_step\": %lld, \"incarnation\": 1, \"time\": %.3f",
                    (long long)step, (long long)step - 2, time);
  iso_string_printf(&out, ", \"loss\": 4.5, \"tokens_per_s\": 2000, \"mfu\": 0.25, \"eta_s\": 3700, \"ring_depth\": 3, "
                          "\"ring_slots\": 4, \"log_behind\": 2, \"memory_bytes\": 2000000000,\n \"signs\": [");
  iso_string_printf(&out, "{\"sign\": \"data_load_latency\", \"value\": 0.001, \"bound\": 0.003, \"out\": false},"
                          "{\"sign\": \"allreduce_wait\", \"value\": 0.01, \"bound\": 0.002, \"measure\": \"std\", "
                          "\"out\": true, \"rank\": 1, "
                          "\"host\": \"beta\", \"since_step\": 7},"
                          "{\"sign\": \"checkpoint_bandwidth\", \"value\": null, \"bound\": null, \"out\": false},"
                          "{\"sign\": \"flatness\", \"value\": 1.2, \"bound\": 1.05, \"out\": false}],\n \"ranks\": [");
  for (int r = 0; r < ranks; r++)
    iso_string_printf(&out,
                      "%s{\"rank\": %d, \"host\": \"h%d\", \"wall_s\": %.4f, \"compute_s\": %.4f, \"data_wait_s\": 0, "
                      "\"reduce_wait_s\": %.4f, \"storage_wait_s\": 0, \"other_s\": 0.001}",
                      r ? ", " : "", r, r, 0.02 + 0.0001 * r, 0.01 + 0.0001 * r, 0.009);
  iso_string_printf(&out, "]}\n");
  scratch_write(in_run("vitals.json"), out.data, out.length);
  iso_string_fini(&out);
}

static void write_verdict(const char *verdict, int code, int64_t step) {
  assert_int_equal(iso_status_write(run, verdict, code, step, step, 1, false), ISO_OK);
}

/* A lock as a process left it that is no more, or on another host. */
static void write_lock(const char *host, const char *boot) {
  iso_owner me;
  iso_string line = {0};
  iso_owner_self(&me);
  iso_string_printf(&line, "%s %ld %s 1", host ? host : me.host, me.pid, boot ? boot : me.boot);
  iso_record_seal_plain(&line);
  scratch_write(in_run("lock"), line.data, line.length);
  iso_string_fini(&line);
}

static void age(const char *name, double seconds) {
  const struct timeval time = {.tv_sec = (time_t)(now - seconds)}, times[2] = {time, time};
  assert_int_equal(utimes(in_run(name), times), 0);
}

/* ---- looking ---- */

static void look(void) {
  if (!top) assert_int_equal(iso_top_open(run, &top), ISO_OK);
  assert_int_equal(iso_top_look(top, now), ISO_OK);
}

static iso_top_view view;

static const char *draw(int rows, int columns, bool utf8) {
  iso_string out = {0};
  iso_grid_fini(&grid);
  assert_int_equal(iso_grid_init(&grid, rows, columns, utf8), ISO_OK);
  iso_top_draw(top, &view, &grid);
  iso_grid_print(&grid, &out);
  snprintf(text, sizeof text, "%s", out.data ? out.data : "");
  iso_string_fini(&out);
  return text;
}

static void shows(const char *wanted) {
  if (!strstr(text, wanted)) fail_msg("\"%s\" is not in\n%s", wanted, text);
}

static void shows_not(const char *unwanted) {
  if (strstr(text, unwanted)) fail_msg("\"%s\" is in\n%s", unwanted, text);
}

static const char *whole(void) {
  view = (iso_top_view){.sort = ISO_PARTS};
  return draw(iso_top_rows(top, &view), 200, false);
}

/* ---- which run it is, and whether it goes on ---- */

static void what_is_no_run_is_named(void **state) {
  (void)state;
  iso_top *none;
  assert_int_equal(iso_top_open(in_run("nowhere"), &none), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_top_open(in_run("run.json"), &none), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_top_open(parent, &none), ISO_ERR_NOT_FOUND);
  assert_non_null(strstr(iso_last_error(), "has no run.json"));
  look();
  scratch_remove(run);
  assert_int_equal(iso_top_look(top, now), ISO_ERR_NOT_FOUND);
  assert_non_null(strstr(iso_last_error(), "is gone"));
}

static void a_run_without_steps_says_so(void **state) {
  (void)state;
  look();
  assert_int_equal(top->phase, ISO_TOP_UNBEGUN);
  whole();
  shows("NOT BEGUN");
  shows("no step has been taken");
  shows_not("ETA");
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  look();
  assert_int_equal(top->phase, ISO_TOP_STARTING);
  write_verdict("running", -1, 0);
  look();
  assert_int_equal(top->phase, ISO_TOP_STARTING);
  whole();
  shows("STARTING");
  shows("has not taken a step yet");
}

static void blame(void) {
  iso_string line = {0};
  iso_string_printf(&line, "{\"step\": 8, \"event\": \"begin\", \"sign\": \"allreduce_wait\", \"cause\": \"steal\", "
                           "\"cause_s\": 1.25, \"detail\": \"the host took it\"");
  iso_record_seal_line(&line, 0);
  append("breaches.jsonl", line.data);
  iso_string_fini(&line);
}

static void a_run_under_way_is_shown(void **state) {
  (void)state;
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  write_verdict("running", -1, 0);
  add_steps(1, 10);
  write_vitals(9, now - 1, 2);
  blame();
  look();
  assert_int_equal(top->phase, ISO_TOP_RUNNING);
  assert_int_equal(top->step, 10); /* the line is newer than vitals.json */
  assert_int_equal(top->durable_step, 8);
  assert_int_equal(top->rank_count, 2);
  assert_int_equal(top->recent_count, 10);
  whole();
  shows("RUNNING");
  shows("step 10/1000 1.0%  durable step 8  ETA 1h01m");
  shows("2000 tokens/s  MFU 25.0%");
  shows("batch ring 3/4  not durable yet: 2 steps  memory 2.00 GB");
  shows("ok   data_load_latency          1.000 ms  bound < 3.000 ms");
  shows("OUT  allreduce_wait            10.000 ms  bound < 2.000 ms, deviation");
  shows("since step 7, rank 1, host beta, cause: steal (1.25 s): the host took it");
  shows("high flatness                      1.200  bound <= 1.050");
  shows("-    checkpoint_bandwidth              -  too little was written to say");
  shows("   0 h0              20.00   50.0%    0.0%   45.0%    0.0%    5.0%");
  assert_string_equal(top->note, "");
}

/* By the kernel's lock, which its process still has; and what could not be read is said. */
static void a_lock_that_names_nobody_ends_no_run(void **state) {
  (void)state;
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  write_verdict("running", -1, 0);
  write_vitals(9, now - 1, 1);
  FILE *file = fopen(in_run("lock"), "r+b"); /* in place: the lock is the file's */
  assert_non_null(file);
  assert_int_equal(fwrite("nonsense", 1, 8, file), 8);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(truncate(in_run("lock"), 8), 0);
  look();
  assert_int_equal(top->phase, ISO_TOP_RUNNING);
  assert_string_equal(top->note, "lock: it is altered, and names no process");
  assert_int_equal(iso_lock_check(lock), ISO_ERR_BUSY);
  assert_non_null(strstr(iso_last_error(), "was altered and names no process any more"));
  iso_lock_release(&lock);
  assert_int_equal(unlink(in_run("lock")), 0);
  assert_int_equal(iso_path_make(in_run("lock")), ISO_OK); /* which nobody can read as a file */
  look();
  assert_int_equal(top->phase, ISO_TOP_RUNNING); /* it is young */
  assert_non_null(strstr(top->note, "lock"));
  age("lock", 100);
  look();
  assert_int_equal(top->phase, ISO_TOP_KILLED);
}

static void breaches_that_cannot_be_read_are_said(void **state) {
  (void)state;
  append("breaches.jsonl", "{\"step\": 8, \"crc32c\": \"00000000\"}\n");
  look();
  assert_string_equal(top->note, "1 damaged line of breaches.jsonl left out; isotach verify names them");
  assert_int_equal(unlink(in_run("breaches.jsonl")), 0);
  assert_int_equal(iso_path_make(in_run("breaches.jsonl")), ISO_OK);
  look();
  assert_non_null(strstr(top->note, "breaches.jsonl"));
}

static void a_run_that_stands_still_is_stalled(void **state) {
  (void)state;
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  write_verdict("running", -1, 0);
  write_vitals(9, now, 1);
  now += 100;
  look();
  assert_int_equal(top->phase, ISO_TOP_RUNNING);
  whole();
  shows("STALLED");
  shows("no step for 1m40s");
}

/* A cause is told in whole words over as many rows as it takes; where there is no room for all, that is seen. */
static void a_cause_is_not_cut(void **state) {
  (void)state;
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  add_steps(1, 10);
  write_vitals(9, now - 1, 2);
  blame();
  look();
  view = (iso_top_view){.sort = ISO_PARTS};
  draw(40, 40, false);
  shows("     since step 7, rank 1, host beta,\n     cause: steal (1.25 s): the host\n     took it\n-    checkpoint");
  draw(10, 40, false);
  shows("     since step 7, rank 1, host beta, ..\n-    checkpoint");
  draw(40, 200, false);
  shows("     since step 7, rank 1, host beta, cause: steal (1.25 s): the host took it\n");
  now += 100; /* it stands still: that was of the steps before */
  look();
  whole();
  shows("STALLED");
  shows("OUT  allreduce_wait");
  shows_not("cause:");
  shows_not("host beta");
}

static int ready[2];

/* A rank; the first one has the run, the last one is stopped. */
static void be_rank(int rank, int ranks) {
  if (rank == 0 && iso_lock_acquire(run, false, &lock) != ISO_OK) _exit(1);
  (void)!write(ready[1], "x", 1);
  if (rank == ranks - 1) (void)raise(SIGSTOP);
  for (;;) (void)pause();
}

/* The process that has so many ranks as children. */
static pid_t begin_ranks(int ranks) {
  char c;
  assert_int_equal(pipe(ready), 0);
  const pid_t keeper = fork();
  assert_true(keeper >= 0);
  if (keeper == 0) {
    for (int r = 0; r < ranks; r++)
      if (fork() == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_rank(r, ranks);
      }
    int status;
    while (waitpid(-1, &status, WUNTRACED) > 0 && !WIFSTOPPED(status)) continue;
    (void)!write(ready[1], "s", 1);
    for (;;) (void)pause();
  }
  for (int i = 0; i <= ranks; i++) assert_int_equal(read(ready[0], &c, 1), 1);
  (void)close(ready[0]);
  (void)close(ready[1]);
  return keeper;
}

static void a_rank_that_is_stopped_is_named(void **state) {
  (void)state;
  if (access("/proc/thread-self/children", R_OK) != 0) skip();
  for (int ranks = 1; ranks <= 3; ranks++) {
    const pid_t keeper = begin_ranks(ranks);
    write_vitals(9, now, ranks);
    look();
    whole();
    shows("RUNNING");
    shows_not("stopped");
    now += 100;
    look();
    assert_int_equal(top->stopped_rank, ranks > 1 ? ranks - 1 : -1);
    whole();
    shows(ranks == 1   ? "STALLED"
          : ranks == 2 ? "no step for 1m40s: rank 1 is stopped (process "
                       : "no step for 1m40s: rank 2 is stopped (process ");
    if (ranks == 1) shows("no step for 1m40s: it is stopped (process ");
    write_vitals(9, now - 100, ranks + 1); /* other ranks than its children */
    look();
    if (ranks > 1) assert_int_equal(top->stopped_pid, 0);
    assert_int_equal(kill(keeper, SIGKILL), 0);
    assert_int_equal(waitpid(keeper, NULL, 0), keeper);
    assert_int_equal(unlink(in_run("lock")), 0);
  }
}

/* What was said before this process began is no news of it. */
static void a_start_does_not_show_what_the_one_before_said(void **state) {
  (void)state;
  assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
  write_verdict("running", -1, 0);
  write_vitals(9, now - 1000, 1);
  look();
  assert_int_equal(top->phase, ISO_TOP_STARTING);
  whole();
  shows_not("ETA");
  shows("at last:");
}

static void a_killed_run_is_not_shown_as_live(void **state) {
  (void)state;
  write_verdict("running", -1, 0);
  add_steps(1, 10);
  write_vitals(9, now - 1000, 1);
  write_lock(NULL, NULL); /* this process, had it started with the machine */
  age("lock", 500);
  now += 20;
  look();
  assert_int_equal(top->phase, ISO_TOP_KILLED);
  whole();
  shows("KILLED");
  shows("not running since 20");
  shows_not("ETA");
  shows_not("RUNNING");
  write_lock(NULL, "00000000-0000-0000-0000-000000000000"); /* before the machine started anew */
  look();
  assert_int_equal(top->phase, ISO_TOP_KILLED);
}

static void another_host_is_believed_by_its_heartbeat(void **state) {
  (void)state;
  write_verdict("running", -1, 0);
  write_vitals(9, now - 1, 1);
  write_lock("elsewhere.example", NULL);
  look();
  assert_int_equal(top->phase, ISO_TOP_RUNNING);
  age("lock", 61);
  look();
  assert_int_equal(top->phase, ISO_TOP_SILENT);
  whole();
  shows("SILENT");
  shows("no sign of life from process");
  shows("elsewhere.example");
  append("lock", "x"); /* a damaged line is somebody's */
  age("lock", 61);
  look();
  assert_int_equal(top->phase, ISO_TOP_SILENT);
}

static void an_ended_run_has_its_verdict(void **state) {
  (void)state;
  static const struct {
    const char *verdict, *word;
    int code;
  } ends[] = {{"done", "DONE", 0}, {"stopped", "STOPPED", 75}, {"failed", "FAILED", 8}, {"lost", "LOST", 9}};
  add_steps(1, 10);
  write_vitals(9, now - 1, 1);
  for (size_t i = 0; i < ISO_COUNT(ends); i++) {
    write_verdict(ends[i].verdict, ends[i].code, 10);
    look();
    assert_int_equal(top->phase, ISO_TOP_ENDED);
    assert_int_equal(top->durable_step, 10); /* the verdict knows it, vitals.json does not */
    whole();
    shows(ends[i].word);
    shows("not running since 20");
    shows_not("ETA");
    if (ends[i].code) shows("exit code ");
  }
  assert_false(top->whole_start);
  const char *report = "{\"steps\": 10, \"ranks\": [{\"rank\": 0, \"host\": \"h\", \"wall_s\": {\"mean\": 0.5}, "
                       "\"compute_s\": {\"mean\": 0.25}}]}";
  scratch_write(in_run("report.json"), report, strlen(report));
  look();
  assert_true(top->whole_start);
  whole();
  shows("mean ms");
  shows("500.00   50.0%");
  static const char *const nothing[] = {"[1]", "{\"verdict\": ", NULL};
  for (size_t i = 0; i < ISO_COUNT(nothing);
       i++) { /* without the verdict, the report of its last step tells that it ended */
    if (nothing[i]) scratch_write(in_run("status.json"), nothing[i], strlen(nothing[i]));
    if (!nothing[i]) assert_int_equal(unlink(in_run("status.json")), 0);
    look();
    assert_int_equal(top->phase, ISO_TOP_ENDED);
    assert_true(top->whole_start && top->step == 10);
    whole();
    shows("ENDED");
    shows_not("KILLED");
  }
  write_verdict("done", 0, 10); /* of a folder that was copied long after: when it ended is in the file */
  struct timespec later[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = (time_t)now + 5000}};
  assert_int_equal(utimensat(AT_FDCWD, in_run("status.json"), later, 0), 0);
  look();
  assert_true(top->since_s <= now);
  assert_int_equal(unlink(in_run("status.json")), 0);
  add_steps(11, 12); /* it went on behind its report */
  look();
  assert_int_equal(top->phase, ISO_TOP_KILLED);
}

static void without_vitals_the_lines_tell(void **state) {
  (void)state;
  write_verdict("done", 0, 10);
  add_steps(1, 10);
  look();
  assert_int_equal(top->rank_count, 1);
  whole();
  shows("step 10  durable step 10");
  shows("loss 7.9900  1010 tokens/s");
  shows("   0                 10.00   80.0%   20.0%");
  shows("ok   flatness                      1.010");
  shows("-    allreduce_wait                    -  there is one rank");
}

/* ---- lines ---- */

static void a_torn_line_waits_for_its_end(void **state) {
  (void)state;
  add_steps(1, 3);
  look();
  assert_int_equal(top->step, 3);
  char *data;
  size_t bytes;
  assert_int_equal(iso_file_read(in_run("metrics.jsonl"), &data, &bytes), ISO_OK);
  assert_int_equal(truncate(in_run("metrics.jsonl"), 0), 0);
  look();
  assert_int_equal(top->recent_count, 0);
  for (size_t cut = 1; cut < bytes; cut += 97) { /* any end of what was written so far */
    scratch_write(in_run("metrics.jsonl"), data, cut);
    look();
    assert_int_equal(top->damaged, 0);
  }
  scratch_write(in_run("metrics.jsonl"), data, bytes);
  look();
  assert_int_equal(top->recent_count, 3);
  assert_int_equal(top->step, 3);
  free(data);
}

static void damaged_lines_are_left_out_and_said(void **state) {
  (void)state;
  add_steps(1, 3);
  append("metrics.jsonl", "{\"step\": 99, \"loss\": 0.1, \"crc32c\": \"00000000\"}\nno JSON at all\n[]\n\n");
  look();
  assert_int_equal(top->step, 3);
  assert_int_equal(top->damaged, 4);
  whole();
  shows("4 damaged lines of metrics.jsonl left out; isotach verify names them");
}

static int64_t read_bytes;
static iso_os_table real;

static ssize_t counted_pread(int fd, void *data, size_t bytes, int64_t offset) {
  const ssize_t got = real.pread(fd, data, bytes, offset);
  if (got > 0) read_bytes += got;
  return got;
}

/* A look costs what was added, not what is there. */
static void a_long_run_is_not_read_again(void **state) {
  (void)state;
  enum { STEPS = 20000 };
  iso_string lines = {0};
  for (int64_t step = 1; step <= STEPS; step++) {
    const iso_step_metrics m = step_at(step);
    const size_t begin = lines.length;
    iso_string_append(&lines, "{", 1);
    iso_vitals_print(&m, &lines);
    iso_record_seal_line(&lines, begin);
  }
  scratch_write(in_run("metrics.jsonl"), lines.data, lines.length);
  real = iso_os;
  iso_os.pread = counted_pread;
  read_bytes = 0;
  look();
  assert_int_equal(top->step, STEPS);
  assert_int_equal(top->recent_count, ISO_TOP_RECENT);
  assert_int_equal(top->recent[0].step, STEPS - ISO_TOP_RECENT + 1);
  assert_int_equal(top->damaged, 0);
  assert_true((size_t)read_bytes < lines.length / 4);
  read_bytes = 0;
  append("metrics.jsonl", "x");
  look();
  assert_in_range(read_bytes, 1, 20000);
  iso_os = real;
  iso_string_fini(&lines);
}

/* A resume begins a file of its own, which may be shorter or longer. */
static void another_file_is_read_anew(void **state) {
  (void)state;
  add_steps(1, 30);
  look();
  assert_int_equal(top->recent_count, 30);
  add_steps(11, 12); /* goes back to 10 */
  look();
  assert_int_equal(top->recent_count, 12);
  assert_int_equal(top->step, 12);
  assert_int_equal(unlink(in_run("metrics.jsonl")), 0);
  look();
  assert_int_equal(top->recent_count, 0);
}

static void what_is_not_finite_is_marked(void **state) {
  (void)state;
  iso_metrics *metrics;
  assert_int_equal(iso_metrics_open(run, 0, &metrics), ISO_OK);
  for (int64_t step = 1; step <= 4; step++) {
    iso_step_metrics m = step_at(step);
    if (step >= 3) m.loss = m.grad_norm = step == 3 ? INFINITY : NAN;
    m.refused = step >= 3;
    assert_int_equal(iso_metrics_append(metrics, &m), ISO_OK);
  }
  assert_int_equal(iso_metrics_close(&metrics), ISO_OK);
  look();
  assert_true(isnan(top->loss));
  assert_int_equal(top->refused, 2);
  whole();
  shows("loss is not finite");
  shows("#_!!");
  shows("refused: 2");
}

/* ---- the grid ---- */

static void a_bar_is_shared_out_as_the_step_was(void **state) {
  (void)state;
  write_vitals(9, now, 2);
  look();
  view = (iso_top_view){.sort = ISO_PARTS};
  draw(40, 45, false);
  int counts[5] = {0};
  const char *row = strstr(text, "\n   1 ");
  assert_non_null(row);
  for (const char *c = row + 17; *c && *c != '\n'; c++) {
    const char *found = strchr("#drs.", *c);
    assert_non_null(found);
    counts[found - "#drs."]++;
  }
  /* 29 columns for 20.1 ms: 10.1 of compute, 9 of reduce, 1 of other */
  assert_int_equal(counts[0], 15);
  assert_int_equal(counts[1], 0);
  assert_int_equal(counts[2], 13);
  assert_int_equal(counts[4], 1);
}

static void many_ranks_scroll_and_sort(void **state) {
  (void)state;
  write_vitals(9, now, 64);
  look();
  view = (iso_top_view){.sort = ISO_PARTS, .keys = true};
  draw(24, 80, false);
  shows("  0 h0 ");
  shows_not("  63 h63");
  shows(" of 64");
  shows("q quit h help sort: [n rank] w step c compute d data");
  view.sort = ISO_PART_DATA;
  draw(24, 80, false);
  shows("q quit h help sort: n rank w step c compute [d data]");
  view.sort = ISO_PARTS;
  view.first = 1000;
  draw(24, 80, false);
  assert_int_equal(view.first, 64 - view.shown);
  shows("  63 h63");
  view.first = 0;
  view.sort = ISO_PART_WALL;
  draw(24, 80, false);
  shows("  63 h63");
  shows_not("   0 h0 ");
  view.first = -5;
  draw(24, 80, false);
  assert_int_equal(view.first, 0);
  draw(200, 80, false);
  shows("   0 h0 ");
  shows_not(" of 64");
}

/* A span that no double holds. */
static void curves_of_the_largest_numbers(void **state) {
  (void)state;
  const double values[] = {-1.7e308, 1.7e308, 0, -1e308, INFINITY, NAN};
  double least, most;
  for (int utf8 = 0; utf8 < 2; utf8++) {
    iso_grid_fini(&grid);
    assert_int_equal(iso_grid_init(&grid, 2, 20, utf8), ISO_OK);
    iso_grid_spark(&grid, 0, 0, 20, values, (int)ISO_COUNT(values), &least, &most);
    assert_true(least == -1.7e308 && most == 1.7e308);
  }
}

static void any_size_is_drawn(void **state) {
  (void)state;
  add_steps(1, 300);
  write_vitals(9, now, 64);
  for (int held = 0; held < 2; held++) {
    if (held) assert_int_equal(iso_lock_acquire(run, false, &lock), ISO_OK);
    look();
    for (int rows = 0; rows <= 60; rows++)
      for (int columns = 0; columns <= 120; columns += columns < 30 ? 1 : 9)
        for (int help = 0; help < 2; help++) {
          view = (iso_top_view){.sort = ISO_PART_DATA, .keys = true, .help = help};
          draw(rows, columns, columns % 2);
        }
  }
  view.help = false;
  draw(5, 20, false);
  shows("step 300/1000");
  shows("loss ");
  shows("rank ");
  draw(80, 300, true);
  shows("h63");
}

static void without_utf8_all_is_ascii(void **state) {
  (void)state;
  add_steps(1, 30);
  write_vitals(9, now, 3);
  look();
  view = (iso_top_view){.sort = ISO_PARTS};
  for (const char *c = draw(40, 120, false); *c; c++) assert_true(*c == '\n' || (*c >= ' ' && *c < 0x7F));
  draw(40, 120, true);
  shows("\xE2\x96\x88"); /* U+2588 */
}

/* ---- files that want harm ---- */

static void no_control_character_gets_through(void **state) {
  (void)state;
  static const char vitals[] =
      "{\"step\": 3, \"ranks\": [{\"rank\": 0, \"host\": \"\\u001b[2J\xC3\xA9\xE4\xB8\xAD\", \"wall_s\": 1}, "
      "{\"rank\": 1, \"host\": \"x\\u0007\\u009b\\n\", \"wall_s\": 1}]}";
  const bool wide = strcmp(setlocale(LC_CTYPE, NULL), "C") != 0; /* there is a locale that knows how wide they are */
  scratch_write(in_run("vitals.json"), vitals, sizeof vitals - 1);
  look();
  view = (iso_top_view){.sort = ISO_PARTS};
  for (int utf8 = 0; utf8 < 2; utf8++) {
    draw(40, 120, utf8);
    for (int i = 0; i < grid.rows * grid.columns; i++)
      assert_true(grid.cells[i].text >= ' ' && (grid.cells[i].text < 0x7F || grid.cells[i].text >= 0xA0));
    shows(utf8 && wide ? "?[2J\xC3\xA9?" : "?[2J??");
    shows("x??? ");
    shows_not("\xE4\xB8\xAD"); /* two columns wide */
  }
}

static void altered_files_do_no_harm(void **state) {
  (void)state;
  char *data;
  size_t bytes;
  view = (iso_top_view){.sort = ISO_PART_WALL, .keys = true};
  write_verdict("running", -1, 0);
  add_steps(1, 5);
  write_vitals(9, now, 3);
  assert_int_equal(iso_file_read(in_run("vitals.json"), &data, &bytes), ISO_OK);
  uint32_t words[4];
  for (uint64_t i = 0; i < 1500; i++) {
    iso_rng(1, ISO_RNG_TEST, i, 0, words);
    const size_t at = words[0] % bytes;
    const char before = data[at];
    static const char bad[] = "\0\"{}[],:-e9n\xFF";
    data[at] = bad[words[1] % (sizeof bad - 1)];
    scratch_write(in_run("vitals.json"), data, words[2] % 8 ? bytes : at);
    data[at] = before;
    look();
    draw(24, 80, false);
  }
  free(data);
  static const char *const odd[] = {"",
                                    "null",
                                    "[]",
                                    "{\"step\": -1, \"signs\": 3, \"ranks\": {\"a\": 1}, \"time\": \"x\"}",
                                    "{\"step\": 1e300, \"steps\": 1e17, \"ranks\": [1, null, {}], \"signs\": [1, {}]}",
                                    "{\"step\": 5, \"steps\": 9, \"ranks\": [{\"wall_s\": -1, \"compute_s\": 1e308}]}"};
  for (size_t i = 0; i < ISO_COUNT(odd); i++) {
    scratch_write(in_run("vitals.json"), odd[i], strlen(odd[i]));
    look();
    draw(24, 80, false);
    assert_int_equal(top->step, 5); /* of metrics.jsonl */
  }
  scratch_write(in_run("vitals.json"), "{", 1);
  scratch_write(in_run("status.json"), "{\"verdict\": \"done\"", 18);
  look();
  assert_true(top->note[0] != 0);
  assert_int_equal(unlink(in_run("metrics.jsonl")), 0);
  assert_int_equal(iso_path_make(in_run("metrics.jsonl")), ISO_OK);
  look();
  draw(24, 80, false);
}

static void the_document_is_json(void **state) {
  (void)state;
  write_vitals(9, now, 2);
  blame();
  look();
  iso_string out = {0};
  iso_json *json;
  iso_top_print_json(top, &out);
  assert_int_equal(iso_json_parse(out.data, out.length, "top", &json), ISO_OK);
  int64_t step;
  const char *kind;
  assert_int_equal(iso_json_int(json, "top", "step", 0, &step), ISO_OK);
  assert_int_equal(step, 9);
  assert_int_equal(iso_json_string(json, "top", "state", "", &kind), ISO_OK);
  assert_string_equal(kind, "killed");
  assert_null(iso_json_get(json, "eta_s"));
  const iso_json *sign = cJSON_GetArrayItem(iso_json_get(json, "signs"), ISO_SIGN_REDUCE);
  assert_int_equal(iso_json_string(sign, "top", "measure", "", &kind), ISO_OK);
  assert_string_equal(kind, "std");
  assert_int_equal(iso_json_string(sign, "top", "cause", "", &kind), ISO_OK);
  assert_string_equal(kind, "steal");
  iso_json_destroy(&json);
  iso_string_fini(&out);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)

int main(void) {
  (void)setlocale(LC_CTYPE, "C.UTF-8");
  const struct CMUnitTest tests[] = {TEST(what_is_no_run_is_named),
                                     TEST(a_run_without_steps_says_so),
                                     TEST(a_run_under_way_is_shown),
                                     TEST(a_lock_that_names_nobody_ends_no_run),
                                     TEST(breaches_that_cannot_be_read_are_said),
                                     TEST(a_run_that_stands_still_is_stalled),
                                     TEST(a_cause_is_not_cut),
                                     TEST(a_rank_that_is_stopped_is_named),
                                     TEST(a_start_does_not_show_what_the_one_before_said),
                                     TEST(a_killed_run_is_not_shown_as_live),
                                     TEST(another_host_is_believed_by_its_heartbeat),
                                     TEST(an_ended_run_has_its_verdict),
                                     TEST(without_vitals_the_lines_tell),
                                     TEST(a_torn_line_waits_for_its_end),
                                     TEST(damaged_lines_are_left_out_and_said),
                                     TEST(a_long_run_is_not_read_again),
                                     TEST(another_file_is_read_anew),
                                     TEST(what_is_not_finite_is_marked),
                                     TEST(a_bar_is_shared_out_as_the_step_was),
                                     TEST(many_ranks_scroll_and_sort),
                                     TEST(curves_of_the_largest_numbers),
                                     TEST(any_size_is_drawn),
                                     TEST(without_utf8_all_is_ascii),
                                     TEST(no_control_character_gets_through),
                                     TEST(altered_files_do_no_harm),
                                     TEST(the_document_is_json)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
