/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs of two ranks, one of which is slow: before its gradient is complete, in the reduction itself, or in reading its
 * source. The time stands in the right part of each rank's budget, and a source that is late is named.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "io/scratch.h"
#include "train/train.h"

#define TINY ISO_TEST_DATA "/../../examples/tiny.yaml"
enum { RANKS = 2, STEPS = 30, PASSES = 4 }; /* passes: of a rank, in a step */
#define DELAY_S 0.004

static char folder[128];
static double parts[RANKS][ISO_PARTS]; /* mean of the steps, seconds */

static void wait_a_while(void) {
  nanosleep(&(struct timespec){0, (long)(DELAY_S * 1e9)}, NULL);
}

static void (*real_embedding)(const iso_embedding_args *args, const iso_worker *worker);
static void (*real_round)(const iso_grad_round_args *args, const iso_worker *worker);

static void slow_embedding(const iso_embedding_args *args, const iso_worker *worker) {
  if (worker->thread == 0) wait_a_while();
  real_embedding(args, worker);
}

static void slow_round(const iso_grad_round_args *args, const iso_worker *worker) {
  wait_a_while();
  real_round(args, worker);
}

static ssize_t (*real_pread)(int fd, void *data, size_t bytes, int64_t offset);

static ssize_t slow_pread(int fd, void *data, size_t bytes, int64_t offset) {
  wait_a_while();
  wait_a_while();
  return real_pread(fd, data, bytes, offset);
}

typedef enum fault { NONE, COMPUTE, REDUCTION, SOURCE } fault;

/* In a process that is a rank; does not come back. */
static void be_rank(iso_config *config, iso_ranks *ranks, fault what) {
  iso_tier tier;
  if (iso_cpu_tier(&tier) != ISO_OK) _exit(99);
  iso_kernels *kernels = (iso_kernels *)iso_kernels_get(tier);
  if (what == COMPUTE && iso_ranks_number(ranks) == 1) {
    real_embedding = kernels->embedding;
    kernels->embedding = slow_embedding;
  }
  if (what == REDUCTION && iso_ranks_number(ranks) == 1) {
    real_round = kernels->grad_round;
    kernels->grad_round = slow_round;
  }
  if (what == SOURCE && iso_ranks_number(ranks) == 1) {
    real_pread = iso_os.pread;
    iso_os.pread = slow_pread;
  }
  const iso_train_options options = {.ranks = ranks, .quiet = true};
  iso_train_result result;
  iso_status status = iso_ranks_number(ranks) > 0 ? iso_follow(config, ranks) : iso_train(config, &options, &result);
  status = iso_ranks_leave(ranks, status);
  iso_ranks_close(&ranks);
  _exit(iso_exit_code(status));
}

static void read_report(const char *path) {
  iso_json *report;
  assert_int_equal(iso_json_read(path, &report), ISO_OK);
  const iso_json *rank = iso_json_get(report, "ranks")->child;
  for (int r = 0; r < RANKS; r++, rank = rank->next) {
    assert_non_null(rank);
    for (int p = 0; p < ISO_PARTS; p++)
      assert_int_equal(iso_json_double(iso_json_get(rank, iso_budget_names[p]), path, "mean", NAN, &parts[r][p]),
                       ISO_OK);
  }
  iso_json_destroy(&report);
}

/* `more`: words of the config, up to NULL. */
static void train(fault what, const char *const *more) {
  char run[200], steps[32], path[200];
  snprintf(run, sizeof run, "run=%s/run", folder);
  snprintf(steps, sizeof steps, "steps=%d", STEPS);
  snprintf(path, sizeof path, "%s/run/report.json", folder);
  const char *words[16] = {
      run, steps, "threads=1", "checkpoint.snapshot_every=0", "parallel.virtual_workers=2", "log.enabled=false"};
  int count = 6;
  while (more && *more) words[count++] = *more++;
  iso_config config;
  iso_ranks *ranks;
  bool lost;
  assert_int_equal(iso_config_read(TINY, words, count, &config), ISO_OK);
  const iso_status status = iso_ranks_start(&config, RANKS, 0, &ranks, &lost);
  if (ranks) be_rank(&config, ranks, what);
  iso_config_fini(&config);
  assert_int_equal(status, ISO_OK);
  assert_false(lost);
  read_report(path);
}

static int setup(void **state) {
  (void)state;
  scratch_make(folder);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  scratch_remove(folder);
  return 0;
}

/* The parts of both make up their wall time. */
static void check_closed(void) {
  for (int r = 0; r < RANKS; r++) {
    double sum = 0;
    for (int p = ISO_PART_COMPUTE; p <= ISO_PART_OTHER; p++) sum += parts[r][p];
    if (fabs(sum - parts[r][ISO_PART_WALL]) > 0.02 * parts[r][ISO_PART_WALL])
      fail_msg("rank %d: parts of %.6f s, wall time %.6f s", r, sum, parts[r][ISO_PART_WALL]);
  }
}

/* The other rank waits for it in the reduction; its own time is compute. */
static void a_slow_rank_is_waited_for(void **state) {
  (void)state;
  const double delay_s = DELAY_S * PASSES;
  train(COMPUTE, NULL);
  assert_true(parts[1][ISO_PART_COMPUTE] >= delay_s);
  assert_true(parts[0][ISO_PART_REDUCE] >= 0.6 * delay_s);
  if (parts[0][ISO_PART_REDUCE] - parts[1][ISO_PART_REDUCE] < 0.3 * delay_s) /* either waits for a busy machine, too */
    fail_msg("rank 1 waits %.6f s, rank 0 %.6f s", parts[1][ISO_PART_REDUCE], parts[0][ISO_PART_REDUCE]);
  check_closed();
}

/* Both wait for it, and neither computes longer by it. */
static void a_slow_reduction_is_reduction(void **state) {
  (void)state;
  train(REDUCTION, NULL);
  for (int r = 0; r < RANKS; r++) {
    if (parts[r][ISO_PART_REDUCE] < 0.9 * DELAY_S) fail_msg("rank %d waits %.6f s", r, parts[r][ISO_PART_REDUCE]);
    assert_true(parts[r][ISO_PART_COMPUTE] + parts[r][ISO_PART_REDUCE] <= parts[r][ISO_PART_WALL]);
  }
  check_closed();
}

/* What its data threads were at comes with its budget. */
static void a_late_source_of_another_rank_is_named(void **state) {
  (void)state;
  char path[200], sources[260], detail[300], *text;
  size_t bytes;
  snprintf(path, sizeof path, "%s/source.txt", folder);
  snprintf(sources, sizeof sources, "data.sources=[{path: %s, separator: \"\\n\\n\"}]", path);
  assert_int_equal(iso_file_read(ISO_TEST_DATA "/../../examples/tiny/plays.txt", &text, &bytes), ISO_OK);
  FILE *file = fopen(path, "w"); /* larger than what is held in memory */
  assert_non_null(file);
  for (int i = 0; i < 20; i++) assert_int_equal(fwrite(text, 1, bytes, file), bytes);
  fclose(file);
  free(text);
  const char *const more[] = {sources,
                              "steps=150",
                              "data.on_demand=true",
                              "data.block_bytes=4096",
                              "data.prefetch=0",
                              "data.validation.every=0",
                              "evaluate.every=0",
                              NULL};
  setenv("ISOTACH_WINDOW_S", "0.2", 1);
  train(SOURCE, more);
  unsetenv("ISOTACH_WINDOW_S");
  snprintf(path, sizeof path, "%s/run", folder);
  assert_int_equal(iso_lines_read(path, "breaches", &text, &bytes, NULL), ISO_OK);
  char *line = text ? strstr(text, "\"event\": \"begin\", \"sign\": \"data_load_latency\"") : NULL;
  assert_non_null(line);
  *strchr(line, '\n') = 0;
  snprintf(detail, sizeof detail, "\"batches came late, at: read of \\\"%s/source.txt\\\"\"", folder);
  if (!strstr(line, "\"rank\": 1, ") || !strstr(line, "\"cause\": \"source\"") || !strstr(line, detail))
    fail_msg("%s", line);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_slow_rank_is_waited_for, setup, teardown),
      cmocka_unit_test_setup_teardown(a_slow_reduction_is_reduction, setup, teardown),
      cmocka_unit_test_setup_teardown(a_late_source_of_another_rank_is_named, setup, teardown),
  };
  return cmocka_run_group_tests_name("budget of ranks", tests, NULL, NULL);
}
