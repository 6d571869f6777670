/* SPDX-License-Identifier: Apache-2.0
 *
 * What starts leave in starts.json, and the causes of all of them: no second is of two causes, a cause never gets less
 * by another start, a start that was killed has what its lines say, and no file makes numbers that cannot be.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <string.h>

#include "io/scratch.h"
#include "store/record.h"
#include "train/vitals/vitals.h"

static char parent[128], run[192], uuid[37];
static iso_history history;
static iso_starts starts;
static iso_cause_item causes[ISO_CAUSES + 1];

static int setup(void **state) {
  (void)state;
  iso_log_quiet(true);
  scratch_make(parent);
  snprintf(run, sizeof run, "%s/run", parent);
  assert_int_equal(iso_path_make(run), ISO_OK);
  assert_int_equal(iso_run_folder_open(run, uuid), ISO_OK);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  iso_history_fini(&history);
  iso_starts_fini(&starts);
  scratch_remove(parent);
  return 0;
}

static void near(double value, double wanted) {
  if (!(fabs(value - wanted) <= 0.01 * fabs(wanted))) fail_msg("%.9g, wanted %.9g", value, wanted);
}

static const iso_cause_item *cause_of(const char *name) {
  const int count = iso_causes_list(&history, &starts, 0, 0, causes);
  for (int i = 0; i < count; i++) {
    if (i) assert_true(causes[i].seconds <= causes[i - 1].seconds);
    if (strcmp(causes[i].name, name) == 0) return &causes[i];
  }
  fail_msg("there is no cause %s", name);
  return NULL;
}

static void write_lines(int64_t number, int64_t count) {
  iso_metrics *metrics;
  assert_int_equal(iso_metrics_open(run, 0, &metrics), ISO_OK);
  for (int64_t step = 1; step <= count; step++) {
    iso_step_metrics m = {.step = step, .incarnation = number};
    m.wall_s = 0.01;
    m.compute_s = 0.009;
    m.preempted_s = 0.005;
    m.storage_wait_s = 0.001;
    assert_int_equal(iso_metrics_append(metrics, &m), ISO_OK);
  }
  assert_int_equal(iso_metrics_close(&metrics), ISO_OK);
  iso_history_fini(&history);
  assert_int_equal(iso_history_read(run, &history), ISO_OK);
}

/* Threads wait for a processor while the quota is used up: that time is throttled, and not preempted once more. The
 * first step, which warms up, is the lines' alone. */
static void a_second_has_one_cause(void **state) {
  (void)state;
  enum { STEPS = 500 };
  iso_watch *watch;
  iso_budget budget = {0};
  iso_evidence evidence = {.processors = 2, .clock_ghz = 3, .clock_best_ghz = 3};
  iso_watch_step now = {.budgets = &budget, .evidence = &evidence};
  const iso_breach *breaches;
  iso_start_cause found;
  budget.parts[ISO_PART_WALL] = 0.016;
  budget.parts[ISO_PART_COMPUTE] = 0.015;
  budget.parts[ISO_PART_STORAGE] = 0.001;
  budget.parts[ISO_PART_PREEMPTED] = 0.010;
  assert_int_equal(iso_watch_create(1, 1, &watch), ISO_OK);
  for (now.step = 1; now.step <= STEPS; now.step++) {
    now.now_s = 1000 + 0.016 * (double)now.step;
    evidence.at_s = now.now_s;
    evidence.throttled_s = 0.006 * (double)now.step;
    (void)iso_watch_add(watch, &now, &breaches);
  }
  (void)iso_watch_end(watch, &now, &breaches);
  iso_start_cause_find(watch, ISO_CAUSE_THROTTLED, 0, &found);
  near(found.seconds, 0.006 * STEPS);
  iso_start_cause_find(watch, ISO_CAUSE_PREEMPTED, 0.010 * STEPS, &found);
  near(found.seconds, 0.004 * STEPS);
  iso_start_cause_find(watch, ISO_CAUSE_DISK, 0.001 * STEPS + 3, &found); /* three seconds of the first step */
  near(found.seconds, 0.001 * STEPS + 3);
  iso_watch_destroy(&watch);
}

static iso_start_record *ended(int64_t number) {
  iso_start_record *record = iso_starts_add(&starts, number);
  assert_non_null(record);
  record->ended = true;
  return record;
}

static void no_cause_gets_less_by_another_start(void **state) {
  (void)state;
  write_lines(3, 100);
  ended(1)->causes[ISO_CAUSE_PREEMPTED] = (iso_start_cause){7.62, 1, false, "b", "others had its processors"};
  assert_true(cause_of("preempted")->seconds == 7.62 + 0.5); /* start 3 was killed: its lines */
  assert_true(cause_of("disk")->seconds > 0.0999 && cause_of("disk")->seconds < 0.1001);
  ended(2)->causes[ISO_CAUSE_PREEMPTED] = (iso_start_cause){1.33, 0, false, "a", "nobody had them"};
  const iso_cause_item *one = cause_of("preempted");
  near(one->seconds, 7.62 + 1.33 + 0.5);
  assert_int_equal(one->rank, 1);
  assert_string_equal(one->host, "b");
  assert_string_equal(one->detail, "most of it in start 1: others had its processors");
  ended(3); /* it ended, and knows better than its lines */
  near(cause_of("preempted")->seconds, 7.62 + 1.33);
  assert_string_equal(cause_of("disk")->host, "");
  starts.list[1].replay_s = 0.25;
  starts.list[1].replayed_steps = 1;
  assert_int_equal(iso_causes_list(&history, &starts, 1, 0.5, causes), ISO_CAUSES);
  for (int i = 0; i < ISO_CAUSES; i++)
    if (strcmp(causes[i].name, "restart") == 0) {
      assert_true(causes[i].seconds == 0.75);
      assert_string_equal(causes[i].detail, "1 step was run again for 0.500 s, 1 replayed from the log in 0.250 s");
    }
}

static const char *file(void) {
  static char path[256];
  snprintf(path, sizeof path, "%s/starts.json", run);
  return path;
}

static void read_starts(void) {
  iso_starts_fini(&starts);
  assert_int_equal(iso_starts_read(run, uuid, &starts), ISO_OK);
}

static void write_starts(const char *of, const char *members) {
  iso_string text = {0};
  iso_string_printf(&text, "{\"run\": \"%s\", %s", of, members);
  iso_record_seal(&text);
  scratch_write(file(), text.data, text.length);
  iso_string_fini(&text);
}

static void a_strange_file_says_nothing(void **state) {
  (void)state;
  write_starts(uuid, "\"starts\": 5, \"last_step\": 1e99, \"ranks\": 7, \"log\": [8]");
  read_starts();
  assert_true(starts.count == 0 && starts.last_step == -1 && starts.ranks.length == 0);
  write_starts(uuid,
               "\"starts\": [7, {}, {\"incarnation\": -1}, {\"incarnation\": 1e300}, {\"incarnation\": 4, "
               "\"started_s\": 1e99, \"replay_s\": -1, \"peak_gflops\": \"x\", \"replayed_steps\": 1e20, "
               "\"causes\": [3, {\"cause\": \"source\"}, {\"cause\": \"clock\", \"seconds\": 1e99, \"rank\": 0}, "
               "{\"cause\": \"steal\", \"seconds\": 1, \"rank\": -1}, {\"cause\": \"none\", \"seconds\": 1, "
               "\"rank\": 0}, {\"cause\": \"disk\", \"seconds\": 2, \"rank\": 3, \"host\": 4, \"detail\": null}]}]");
  read_starts();
  assert_int_equal(starts.count, 1);
  const iso_start_record *one = iso_starts_find(&starts, 4);
  assert_non_null(one);
  assert_true(isnan(one->started_s) && isnan(one->replay_s) && isnan(one->peak_gflops) && one->replayed_steps == 0);
  for (int c = 0; c < ISO_CAUSES; c++) assert_true(one->causes[c].seconds == (c == ISO_CAUSE_DISK ? 2 : 0));
  assert_string_equal(one->causes[ISO_CAUSE_DISK].host, "");
}

/* Damaged, never sealed, or of another run: nothing of it is believed, it is kept in aside/, and verify names it. */
static void is_set_aside(const char *cause) {
  iso_string faults = {0};
  assert_int_equal(iso_starts_verify(run, uuid, &faults), ISO_ERR_FORMAT);
  if (!strstr(faults.data, cause)) fail_msg("'%s' is not in: %s", cause, faults.data);
  iso_string_fini(&faults);
  read_starts();
  assert_true(starts.count == 0 && starts.ranks.length == 0 && !iso_path_exists(file()));
  assert_int_equal(iso_starts_verify(run, uuid, &faults), ISO_OK); /* there is none */
  iso_string_fini(&faults);
}

static void what_is_not_its_own_is_set_aside(void **state) {
  (void)state;
  static const char broken[] = "{\"starts\": [], \"crc32c\": \"00000000\"\n}\n";
  scratch_write(file(), broken, strlen(broken));
  is_set_aside("it says 00000000: altered");
  static const char members[] = "\"starts\": [{\"incarnation\": 1}], \"last_step\": 4, \"ranks\": [{\"rank\": 0}]";
  iso_string text = {0};
  iso_string_printf(&text, "{\"run\": \"%s\", %s}\n", uuid, members);
  scratch_write(file(), text.data, text.length);
  iso_string_fini(&text);
  is_set_aside("it does not end in its CRC-32C");
  write_starts("00000000-0000-4000-8000-000000000000", members);
  is_set_aside("it is of run '00000000-0000-4000-8000-000000000000'");
  write_starts(uuid, members);
  read_starts();
  assert_true(starts.count == 1 && starts.last_step == 4 && starts.ranks.length > 0);
}

static int refuse_to_open(const char *path, int flags, int mode) {
  (void)path, (void)flags, (void)mode;
  errno = EACCES;
  return -1;
}

/* One that is there and cannot be read is not written over. */
static void what_cannot_be_read_stays(void **state) {
  (void)state;
  write_starts(uuid, "\"starts\": [{\"incarnation\": 1}, {\"incarnation\": 1, \"started_s\": 5}], \"last_step\": 4");
  read_starts();
  assert_true(starts.count == 1 && isnan(starts.list[0].started_s) && !starts.unread); /* the first of two counts */
  iso_os_table kept = iso_os;
  iso_os.open = refuse_to_open;
  iso_starts_fini(&starts);
  assert_int_not_equal(iso_starts_read(run, uuid, &starts), ISO_OK);
  iso_os = kept;
  assert_true(starts.unread && starts.count == 0);
  iso_run of = {.config.run = run};
  iso_starts_begin(&starts, &of, 1, 1);
  read_starts();
  assert_true(starts.count == 1 && starts.last_step == 4);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_second_has_one_cause, setup, teardown),
      cmocka_unit_test_setup_teardown(no_cause_gets_less_by_another_start, setup, teardown),
      cmocka_unit_test_setup_teardown(a_strange_file_says_nothing, setup, teardown),
      cmocka_unit_test_setup_teardown(what_is_not_its_own_is_set_aside, setup, teardown),
      cmocka_unit_test_setup_teardown(what_cannot_be_read_stays, setup, teardown),
  };
  return cmocka_run_group_tests_name("starts", tests, NULL, NULL);
}
