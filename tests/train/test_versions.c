/* SPDX-License-Identifier: Apache-2.0
 *
 * A run whose last start was of another optimizer kernel or another ISA tier goes on only when told, says what may
 * differ, and begins with a snapshot of its own, so that later replays are of one kind.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "io/scratch.h"
#include "train/train.h"

enum { TAKEN = 6, LOGGED = 2 };

static char parent[128], run[160];

static iso_status train(bool accept, int64_t stop_at) {
  char name[256], stop[64];
  snprintf(name, sizeof name, "run=%s", run);
  snprintf(stop, sizeof stop, "stop_at=%lld", (long long)stop_at);
  const char *const overrides[] = {name, stop, "steps=60", "threads=1"};
  iso_config config;
  iso_train_result result;
  const iso_train_options options = {.quiet = true, .accept = accept};
  assert_int_equal(iso_config_read(ISO_TEST_DATA "/../../examples/tiny.yaml", overrides, ISO_COUNT(overrides), &config),
                   ISO_OK);
  const iso_status status = iso_train(&config, &options, &result);
  iso_config_fini(&config);
  return status;
}

static bool has_snapshot(int64_t step, int incarnation) {
  char name[64], path[256];
  iso_snapshot_name(step, incarnation, name);
  snprintf(path, sizeof path, "%s/snapshots/%s/manifest.json", run, name);
  return iso_path_exists(path);
}

/* The newest start, as one of another kind would have published it. */
static void publish(const char *tier, int version) {
  iso_incarnation in;
  assert_int_equal(iso_incarnation_newest(run, &in), ISO_OK);
  in.number++;
  in.begins_after = TAKEN;
  if (tier) snprintf(in.tier, sizeof in.tier, "%s", tier);
  if (version) in.optimizer_version = version;
  assert_int_equal(iso_incarnation_publish(run, &in), ISO_OK);
}

/* Steps behind the snapshot, in the name of that start. */
static void write_steps(int version) {
  char uuid[37], folder[ISO_SNAPSHOT_PATH];
  iso_snapshot_info info;
  bool found;
  iso_wal *log;
  iso_stored stored;
  assert_int_equal(iso_run_folder_open(run, uuid), ISO_OK);
  assert_int_equal(iso_snapshot_find(run, -1, NULL, folder, &info, &found), ISO_OK);
  assert_true(found);
  assert_int_equal(iso_stored_open(run, TAKEN, &stored), ISO_OK);
  const int64_t elements = stored.state.elements;
  iso_stored_close(&stored);
  const iso_wal_options options = {.run = run,
                                   .uuid = uuid,
                                   .incarnation = 2,
                                   .elements = elements,
                                   .gradient = ISO_BF16,
                                   .optimizer_version = version,
                                   .segment_bytes = INT64_C(1) << 30,
                                   .cursors = (int64_t)info.cursor_count};
  void *gradient;
  assert_int_equal(posix_memalign(&gradient, ISO_WAL_BLOCK, iso_wal_padded((size_t)elements * 2)), 0);
  memset(gradient, 0x3c, iso_wal_padded((size_t)elements * 2));
  assert_int_equal(iso_wal_open(&options, TAKEN + 1, &log), ISO_OK);
  for (int64_t step = TAKEN + 1; step <= TAKEN + LOGGED; step++) {
    const iso_wal_record record = {.step = step,
                                   .adam_step = step,
                                   .tokens = info.tokens,
                                   .lr = 1e-3f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .eps = 1e-8f,
                                   .clip = 1,
                                   .bias1 = 0.5f,
                                   .bias2 = 0.5f,
                                   .cursors = info.cursors,
                                   .cursor_count = info.cursor_count};
    assert_int_equal(iso_wal_append(log, &record, gradient), ISO_OK);
    iso_wal_flush(log);
  }
  iso_wal_close(&log);
  free(gradient);
  iso_snapshot_info_fini(&info);
}

static void test_optimizer_version(void **state) {
  (void)state;
  iso_stored stored;
  assert_int_equal(train(false, TAKEN), ISO_OK);
  publish(NULL, 7);
  write_steps(7);
  assert_int_equal(iso_stored_open(run, TAKEN, &stored), ISO_OK); /* a snapshot needs no optimizer */
  iso_stored_close(&stored);
  assert_int_equal(iso_stored_open(run, TAKEN + 1, &stored), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "optimizer kernel version 7"));
  assert_int_equal(train(false, 20), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "optimizer kernel version: 7 -> 1"));
  assert_non_null(strstr(iso_last_error(), "may differ in their last bits"));
  assert_false(has_snapshot(TAKEN + LOGGED, 3));
  assert_int_equal(train(true, 20), ISO_OK);
  assert_true(has_snapshot(TAKEN + LOGGED, 3)); /* of the replayed steps */
  assert_true(has_snapshot(20, 3));
  assert_int_equal(iso_stored_open(run, 15, &stored), ISO_OK);
  iso_stored_close(&stored);
  assert_int_equal(train(false, 22), ISO_OK); /* told once is told */
}

static void test_tier(void **state) {
  (void)state;
  assert_int_equal(train(false, TAKEN), ISO_OK);
  publish("none such", 0);
  assert_int_equal(train(false, 20), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "ISA tier: none such -> "));
  assert_int_equal(train(true, 20), ISO_OK);
  assert_true(has_snapshot(TAKEN, 3));
  assert_int_equal(train(false, 22), ISO_OK);
}

static int make_run(void **state) {
  (void)state;
  scratch_make(parent);
  snprintf(run, sizeof run, "%s/run", parent);
  iso_log_quiet(true);
  return 0;
}

static int remove_run(void **state) {
  (void)state;
  scratch_remove(parent);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_optimizer_version, make_run, remove_run),
                                     cmocka_unit_test_setup_teardown(test_tier, make_run, remove_run)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
