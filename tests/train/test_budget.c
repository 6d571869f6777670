/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole runs in which one part of each step is made slow: the time stands in that part, the parts make up the wall
 * time, and where a sign leaves its bounds the cause is named.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "io/scratch.h"
#include "train/vitals/vitals.h"

#define TINY ISO_TEST_DATA "/../../examples/tiny.yaml"
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SLOW = 10 }; /* steps take so much longer */
#else
enum { SLOW = 1 };
#endif
enum { FDS = 256 };

static char folder[128], run_folder[160];
static iso_os_table real;

/* ---- delays ---- */

typedef enum kind { OTHER, LOG, LINES, SOURCE } kind;
static _Atomic int kinds[FDS];
static struct {
  _Atomic int kind, ms;   /* which files; each write or read of them takes so much longer */
  _Atomic int compute_ms; /* each embedding of thread 0, or each so many of them: */
  int compute_every, compute_calls;
  void (*each_step)(void); /* before its line is written */
  _Atomic int done_ms;     /* so far */
  _Atomic bool begun;      /* the first step is taken: before, nothing is slow */
} delay;

static void pause_ms(int ms) {
  const struct timespec pause = {ms / 1000, ms % 1000 * 1000000L};
  nanosleep(&pause, NULL);
}

static int slow_open(const char *path, int flags, int mode) {
  const int fd = real.open(path, flags, mode);
  if (fd >= 0 && fd < FDS)
    kinds[fd] = strstr(path, "/log/")            ? LOG
                : strstr(path, "/metrics.jsonl") ? LINES
                : strstr(path, "/source.txt")    ? SOURCE
                                                 : OTHER;
  return fd;
}

static void pause_for(int fd) {
  if (fd >= FDS || kinds[fd] == OTHER || kinds[fd] != delay.kind || !delay.begun) return;
  pause_ms(delay.ms);
  delay.done_ms += delay.ms;
}

static ssize_t slow_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  if (fd < FDS && kinds[fd] == LINES) {
    delay.begun = true;
    if (delay.each_step) delay.each_step();
  }
  pause_for(fd);
  return real.pwrite(fd, data, bytes, offset);
}

static ssize_t slow_pread(int fd, void *data, size_t bytes, int64_t offset) {
  if (delay.kind == SOURCE) pause_for(fd);
  return real.pread(fd, data, bytes, offset);
}

static void (*real_embedding)(const iso_embedding_args *args, const iso_worker *worker);

static void slow_embedding(const iso_embedding_args *args, const iso_worker *worker) {
  if (worker->thread == 0 && delay.compute_ms && ++delay.compute_calls % (delay.compute_every + 1) == 0) {
    pause_ms(delay.compute_ms);
    delay.done_ms += delay.compute_ms;
  }
  real_embedding(args, worker);
}

/* ---- runs ---- */

static iso_history history;

static double sum_of(const char *name) {
  return iso_history_spread(&history, name).sum;
}

/* Trains with these words to the end; what went to standard error comes back (free it). */
static char *train(const char *const *more) {
  char run[200], log[200], *said;
  const char *words[16] = {run, "optimizer.schedule=constant", "threads=1", "checkpoint.snapshot_every=0",
                           "log.compress=off"};
  int count = 5;
  size_t bytes;
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
  delay.done_ms = 0;
  delay.begun = false;
  const iso_status status = iso_train(&config, &options, &result);
  dup2(before, 2);
  close(before);
  fclose(file);
  iso_config_fini(&config);
  assert_int_equal(status, ISO_OK);
  assert_int_equal(iso_history_read(run_folder, &history), ISO_OK);
  assert_int_equal(iso_file_read(log, &said, &bytes), ISO_OK);
  return said;
}

/* The parts make up the wall time. A machine that is busy may take the processor between two readings of the clock. */
static void check_closed(void) {
  const size_t steps = (size_t)history.steps;
  const double *wall = history.all + (size_t)(iso_vital_find("wall_s") - iso_vitals) * steps;
  const double *rest = history.all + (size_t)(iso_vital_find("unaccounted_s") - iso_vitals) * steps;
  size_t open = 0;
  for (size_t i = 0; i < steps; i++) open += fabs(rest[i]) > 0.01 * wall[i];
  assert_true(open <= 2 + steps / 10);
  const double parts = sum_of("compute_s") + sum_of("data_wait_s") + sum_of("reduce_wait_s") +
                       sum_of("storage_wait_s") + sum_of("other_s");
  assert_true(fabs(sum_of("wall_s") - parts - sum_of("unaccounted_s")) < 1e-6 * sum_of("wall_s") + 1e-6);
}

static int setup(void **state) {
  (void)state;
  scratch_make(folder);
  memset(&delay, 0, sizeof delay);
  real = iso_os;
  iso_os.open = slow_open;
  iso_os.pwrite = slow_pwrite;
  iso_os.pread = slow_pread;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  iso_os = real;
  iso_history_fini(&history);
  scratch_remove(folder);
  return 0;
}

static void slow_kernels_are_compute(void **state) {
  (void)state;
  const char *const words[] = {"steps=20", NULL};
  iso_tier tier;
  assert_int_equal(iso_cpu_tier(&tier), ISO_OK);
  iso_kernels *kernels = (iso_kernels *)iso_kernels_get(tier);
  real_embedding = kernels->embedding;
  kernels->embedding = slow_embedding;
  delay.compute_ms = 2;
  char *said = train(words);
  kernels->embedding = real_embedding;
  assert_true(delay.done_ms >= 20 * 8 * 2); /* eight passes a step, and the evaluation's */
  assert_true(sum_of("compute_s") >= 1e-3 * 20 * 8 * 2);
  check_closed();
  free(said);
}

static double median_of(const char *name) {
  return iso_history_spread(&history, name).p50;
}

/* Steps as short as these show what the loop does beside them. Medians: others may take a processor in either. */
static void host_work_is_little(void **state) {
  (void)state;
  const char *const words[] = {"steps=100", NULL};
  char *said = train(words);
  if (SLOW == 1 && median_of("other_s") > 0.02 * median_of("wall_s"))
    fail_msg("%.6f of %.6f s", median_of("other_s"), median_of("wall_s"));
  if (median_of("unaccounted_s") > 0.01 * median_of("wall_s")) fail_msg("%.6f s are open", median_of("unaccounted_s"));
  check_closed();
  free(said);
}

static void slow_log_is_storage(void **state) {
  (void)state;
  const char *const words[] = {"steps=15", NULL};
  delay.kind = LOG;
  delay.ms = 8 * SLOW; /* a step is several writes */
  char *said = train(words);
  assert_true(delay.done_ms >= 10 * 8 * SLOW);
  assert_true(sum_of("storage_wait_s") >= 0.3 * 1e-3 * delay.done_ms);
  check_closed();
  free(said);
}

static void slow_lines_are_other(void **state) {
  (void)state;
  const char *const words[] = {"steps=20", NULL};
  delay.kind = LINES;
  delay.ms = 20;
  char *said = train(words);
  assert_int_equal(delay.done_ms, 20 * 20);
  assert_true(sum_of("other_s") >= 1e-3 * 20 * 19); /* the last line's is behind the last step */
  check_closed();
  free(said);
}

/* Larger than what is held in memory, in small blocks, so that it is read again and again. */
static const char *slow_source(const char *words[]) {
  static char path[200], source[260];
  char *text;
  size_t bytes;
  snprintf(path, sizeof path, "%s/source.txt", folder);
  snprintf(source, sizeof source, "data.sources=[{path: %s, separator: \"\\n\\n\"}]", path);
  assert_int_equal(iso_file_read(ISO_TEST_DATA "/../../examples/tiny/plays.txt", &text, &bytes), ISO_OK);
  FILE *file = fopen(path, "w");
  for (int i = 0; i < 20; i++) assert_int_equal(fwrite(text, 1, bytes, file), bytes);
  fclose(file);
  free(text);
  words[0] = source;
  words[1] = "data.on_demand=true";
  words[2] = "data.block_bytes=4096";
  words[3] = "data.prefetch=0";
  return path;
}

static void slow_source_is_data(void **state) {
  (void)state;
  const char *words[8] = {0};
  slow_source(words);
  words[4] = "steps=120";
  words[5] = "data.validation.every=0";
  delay.kind = SOURCE;
  delay.ms = 8;
  setenv("ISOTACH_WINDOW_S", "0.2", 1);
  char *said = train(words);
  unsetenv("ISOTACH_WINDOW_S");
  const double waited = sum_of("data_wait_s");
  if (delay.done_ms < 100 || waited < 0.5e-3 * delay.done_ms) fail_msg("%d ms, %.3f s waited", delay.done_ms, waited);
  const char *line = strstr(said, "sign data_load_latency is out of bounds");
  if (!line || !strstr(line, "cause: source") || !strstr(line, "at: read of \"")) fail_msg("%s", said);
  check_closed();
  free(said);
}

/* Others may take a processor from the tokeniser, too: what costs most is the slow one's reads. */
static void the_slow_one_of_two_sources_is_named(void **state) {
  (void)state;
  const char *words[8] = {0}, *path = slow_source(words);
  char source[400], wanted[260];
  snprintf(source, sizeof source,
           "data.sources=[{path: %s, separator: \"\\n\\n\"}, {path: " ISO_TEST_DATA
           "/../../examples/tiny/plays.txt, separator: \"\\n\\n\"}]",
           path);
  words[0] = source;
  words[4] = SLOW == 1 ? "steps=240" : "steps=120";
  words[5] = "data.validation.every=0";
  delay.kind = SOURCE;
  delay.ms = 8 * SLOW;
  setenv("ISOTACH_WINDOW_S", "0.2", 1);
  char *said = train(words);
  unsetenv("ISOTACH_WINDOW_S");
  snprintf(wanted, sizeof wanted, "batches came late, at: read of \"%s\"", path);
  const char *line = strstr(said, "sign data_load_latency is out of bounds");
  const char *named = line ? strstr(line, wanted) : NULL;
  if (!named || named > strchr(line, '\n')) fail_msg("%s", said);
  free(said);
}

static void slow_log_is_a_breach_of_bandwidth(void **state) {
  (void)state;
  const char *const words[] = {"steps=80", NULL};
  delay.kind = LOG;
  delay.ms = 3 * SLOW;
  setenv("ISOTACH_WINDOW_S", "0.2", 1);
  char *said = train(words);
  unsetenv("ISOTACH_WINDOW_S");
  const char *line = strstr(said, "sign checkpoint_bandwidth is out of bounds");
  if (!line || !strstr(line, "cause: disk")) fail_msg("%s", said);
  assert_null(strstr(line + 1, "sign checkpoint_bandwidth")); /* once */
  char *text;
  size_t bytes;
  iso_lines_found found = {0};
  assert_int_equal(iso_lines_read(run_folder, "breaches", &text, &bytes, &found), ISO_OK);
  assert_true(text && strstr(text, "\"event\": \"begin\", \"sign\": \"checkpoint_bandwidth\""));
  assert_int_equal(found.damaged + found.unprotected + found.torn, 0);
  iso_lines_found_fini(&found);
  free(text);
  free(said);
}

/* ---- a machine that is not well, by what its files say ---- */

static char machine[128];
static double machine_s, put_s; /* since when it is not well; when a file was written last */

static void put(const char *name, const char *text) {
  char path[256], next[270];
  snprintf(path, sizeof path, "%s%s", machine, name);
  snprintf(next, sizeof next, "%s.next", path);
  FILE *file = fopen(next, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
  assert_int_equal(rename(next, path), 0); /* who reads it meanwhile finds all of it */
}

static void put_clocks(const char *khz) {
  for (int cpu = 0; cpu < 64; cpu++) {
    char name[96], folder_name[256];
    snprintf(folder_name, sizeof folder_name, "%s/sys/devices/system/cpu/cpu%d/cpufreq", machine, cpu);
    assert_int_equal(iso_path_make(folder_name), ISO_OK);
    snprintf(name, sizeof name, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", cpu);
    put(name, khz);
  }
}

static void drop_clocks(void) {
  if (machine_s == 0) put_clocks("400000\n");
  machine_s = 1;
}

/* All tasks wait for memory, most of the time. */
static void press_memory(void) {
  char text[160];
  const double now = iso_clock_s();
  if (machine_s == 0) machine_s = now;
  if (now - put_s < 0.1) return;
  put_s = now;
  snprintf(text, sizeof text, "some avg10=90.00 avg60=50.00 avg300=10.00 total=%lld\n",
           (long long)(0.95e6 * (now - machine_s)));
  put("/proc/pressure/memory", text);
}

/* Every tenth step is longer, while the machine's files say what each_step makes of them. */
static char *train_unwell(void (*each_step)(void)) {
  char name[200];
  scratch_make(machine);
  snprintf(name, sizeof name, "%s/proc/pressure", machine);
  assert_int_equal(iso_path_make(name), ISO_OK);
  put_clocks("3200000\n");
  put("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
  put("/proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable:  9000000 kB\nCached: 1000 kB\n");
  machine_s = put_s = 0;
  iso_tier tier;
  assert_int_equal(iso_cpu_tier(&tier), ISO_OK);
  iso_kernels *kernels = (iso_kernels *)iso_kernels_get(tier);
  real_embedding = kernels->embedding;
  kernels->embedding = slow_embedding;
  delay.compute_ms = 10 * SLOW;
  delay.compute_every = 79;
  delay.each_step = each_step;
  setenv("ISOTACH_SENSORS", machine, 1);
  setenv("ISOTACH_WINDOW_S", "1.2", 1);
  const char *const words[] = {SLOW == 1 ? "steps=900" : "steps=150", "log.enabled=false", "evaluate.every=0", NULL};
  char *said = train(words);
  unsetenv("ISOTACH_SENSORS");
  unsetenv("ISOTACH_WINDOW_S");
  kernels->embedding = real_embedding;
  scratch_remove(machine);
  return said;
}

static void a_clock_that_drops_is_named(void **state) {
  (void)state;
  char *said = train_unwell(drop_clocks);
  const char *line = strstr(said, "sign flatness is out of bounds");
  if (!line || !strstr(line, "cause: clock") || !strstr(line, "its core clock is 0.40 GHz, 1")) fail_msg("%s", said);
  free(said);
}

static void a_memory_hog_is_named(void **state) {
  (void)state;
  char *said = train_unwell(press_memory);
  const char *line = strstr(said, "sign flatness is out of bounds");
  if (!line || !strstr(line, "cause: memory") || !strstr(line, "tasks waited for memory")) fail_msg("%s", said);
  free(said);
}

/* ---- the scheduler ---- */

static _Atomic bool hog_ends;

static void *hog(void *argument) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(*(int *)argument, &mask);
  (void)pthread_setaffinity_np(pthread_self(), sizeof mask, &mask);
  while (!hog_ends) continue;
  return NULL;
}

/* Another thread on the processor of the only compute thread. */
static void a_busy_processor_is_preemption(void **state) {
  (void)state;
  const char *const words[] = {"steps=100", NULL};
  pthread_t thread;
  int cpu;
  assert_int_equal(iso_cpu_order(&cpu, 1), 1); /* the one that the team takes */
  hog_ends = false;
  assert_int_equal(pthread_create(&thread, NULL, hog, &cpu), 0);
  char *said = train(words);
  hog_ends = true;
  pthread_join(thread, NULL);
  const double compute = sum_of("compute_s"), preempted = sum_of("preempted_s");
  assert_true(preempted >= 0.2 * compute && preempted <= compute);
  check_closed();
  free(said);
}

/* ---- the verdict ---- */

static void a_report_says_where_the_time_went(void **state) {
  (void)state;
  const char *const words[] = {"steps=40", NULL};
  delay.kind = LOG;
  delay.ms = 5 * SLOW;
  char *said = train(words), path[200];
  iso_json *report;
  snprintf(path, sizeof path, "%s/report.json", run_folder);
  assert_int_equal(iso_json_read(path, &report), ISO_OK);
  double useful, sum;
  int64_t again;
  const char *text;
  assert_int_equal(iso_json_double(report, path, "effective_training_share", -1, &useful), ISO_OK);
  assert_true(useful > 0 && useful < 0.9);
  assert_int_equal(iso_json_int(report, path, "steps_run_again", -1, &again), ISO_OK);
  assert_int_equal(again, 0);
  const iso_json *causes = iso_json_get(report, "causes");
  bool disk = false;
  for (const iso_json *c = causes->child; c; c = c->next) {
    assert_int_equal(iso_json_string(c, path, "cause", "", &text), ISO_OK);
    assert_int_equal(iso_json_double(c, path, "seconds", -1, &sum), ISO_OK);
    if (strcmp(text, "disk") == 0) disk = sum > 0.1;
  }
  assert_true(disk);
  const iso_json *budget = iso_json_get(report, "budget"), *rank = iso_json_get(report, "ranks")->child;
  for (int p = 0; p < ISO_PARTS; p++) {
    double p95, mine;
    assert_int_equal(iso_json_double(iso_json_get(budget, iso_budget_names[p]), path, "sum", NAN, &sum), ISO_OK);
    assert_true(fabs(sum - sum_of(iso_budget_names[p])) < 1e-6 + 1e-6 * fabs(sum));
    assert_int_equal(iso_json_double(iso_json_get(rank, iso_budget_names[p]), path, "p95", -1, &p95), ISO_OK);
    mine = iso_history_spread(&history, iso_budget_names[p]).p95;
    if (p == ISO_PART_WALL) assert_true(p95 > 0.5 * mine && p95 < 2 * mine); /* without the first step */
  }
  iso_json_destroy(&report);
  free(said);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(slow_kernels_are_compute, setup, teardown),
      cmocka_unit_test_setup_teardown(host_work_is_little, setup, teardown),
      cmocka_unit_test_setup_teardown(slow_log_is_storage, setup, teardown),
      cmocka_unit_test_setup_teardown(slow_lines_are_other, setup, teardown),
      cmocka_unit_test_setup_teardown(slow_source_is_data, setup, teardown),
      cmocka_unit_test_setup_teardown(the_slow_one_of_two_sources_is_named, setup, teardown),
      cmocka_unit_test_setup_teardown(slow_log_is_a_breach_of_bandwidth, setup, teardown),
      cmocka_unit_test_setup_teardown(a_clock_that_drops_is_named, setup, teardown),
      cmocka_unit_test_setup_teardown(a_memory_hog_is_named, setup, teardown),
      cmocka_unit_test_setup_teardown(a_busy_processor_is_preemption, setup, teardown),
      cmocka_unit_test_setup_teardown(a_report_says_where_the_time_went, setup, teardown),
  };
  return cmocka_run_group_tests_name("budget", tests, NULL, NULL);
}
