/* SPDX-License-Identifier: Apache-2.0
 *
 * The step log: what is written is read again, nothing else is; every flipped bit, every length, every failing call.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/wal_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static void test_what_is_written_is_read(void **state) {
  fixture *f = *state;
  const iso_dtype types[] = {ISO_BF16, ISO_F32};
  for (int t = 0; t < 2; t++) {
    fixture_begin(f, 2 + t, 0);
    iso_wal *log = open_log(f, 2 + t, types[t], t ? 1 : 1 << 30, t, 1);
    append_steps(log, types[t], 1, STEPS);
    iso_wal_state s;
    iso_wal_state_get(log, &s);
    assert_int_equal(s.durable, STEPS);
    assert_int_equal(s.segments, t ? STEPS : 1); /* of one byte at most: each step has its own */
    assert_false(s.suspended);
    iso_wal_close(&log);
    assert_steps(f, types[t], 1, STEPS); /* those of the incarnation before are superseded */
  }
}

static void test_acknowledged_steps_travel(void **state) {
  fixture *f = *state;
  iso_wal *log = open_log(f, 1, ISO_BF16, 1 << 30, false, 1);
  append_steps(log, ISO_BF16, 1, STEPS);
  iso_wal_close(&log);
  iso_wal_index index;
  iso_string faults = {0};
  read_index(f, false, &index, &faults);
  assert_true(index.newest_durable >= STEPS - 2 && index.newest_durable < STEPS);
  iso_wal_index_fini(&index);
}

/* ---- damage ---- */

static void test_every_flipped_byte_is_seen(void **state) {
  fixture *f = *state;
  iso_wal *log = open_log(f, 1, ISO_BF16, 1 << 30, false, 1);
  append_steps(log, ISO_BF16, 1, 2);
  iso_wal_close(&log);
  assert_flips_are_seen(f, 2, 37);
}

static void test_every_length_is_a_prefix(void **state) {
  fixture *f = *state;
  iso_wal *log = open_log(f, 1, ISO_BF16, 1 << 30, false, 1);
  append_steps(log, ISO_BF16, 1, 3);
  iso_wal_close(&log);
  const image im = take_image(f);
  const size_t step = 4 * ISO_WAL_BLOCK + iso_wal_padded(2 * ELEMENTS) - ISO_WAL_BLOCK; /* 2 heads, payload, commit */
  assert_int_equal(im.length, ISO_WAL_BLOCK + 3 * step);
  for (size_t length = 0; length <= im.length; length += length % 512 ? 512 - length % 512 : 511) {
    bool noted;
    put_image(&im, length);
    const size_t whole = length < ISO_WAL_BLOCK ? 0 : (length - ISO_WAL_BLOCK) / step;
    assert_int_equal(count_right_steps(f, &noted), whole);
    if (length != ISO_WAL_BLOCK + whole * step) assert_true(noted);
  }
  free(im.bytes);
}

static void test_foreign_and_copied_segments(void **state) {
  fixture *f = *state;
  iso_wal *log = open_log(f, 1, ISO_BF16, 1 << 30, false, 1);
  append_steps(log, ISO_BF16, 1, 2);
  iso_wal_close(&log);
  image im = take_image(f);
  bool noted;
  char copy[300];
  snprintf(copy, sizeof copy, "%s/log/0001-00000-000001.log", f->run);
  assert_int_equal(close(open(copy, O_CREAT | O_WRONLY, 0666)), 0);
  snprintf(im.path, sizeof im.path, "%s", copy);
  put_image(&im, im.length);
  assert_int_equal(count_right_steps(f, &noted), 2); /* a copy under another name is none */
  assert_true(noted);
  assert_int_equal(unlink(copy), 0);
  uuid[0] ^= 1;
  assert_int_equal(count_right_steps(f, &noted), 0); /* of another run */
  uuid[0] ^= 1;
  assert_true(noted);
  free(im.bytes);
}

/* ---- failing calls ---- */

static iso_os_table real;
static int calls, fail_from, fail_count, fail_errno = EIO;

static bool fails(void) {
  const int n = __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);
  if (n < fail_from || n >= fail_from + fail_count) return false;
  errno = fail_errno;
  return true;
}
static ssize_t seam_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  if (!fails()) return real.pwrite(fd, data, bytes, offset);
  if (bytes > ISO_WAL_BLOCK) (void)!real.pwrite(fd, data, ISO_WAL_BLOCK, offset); /* a torn write */
  errno = fail_errno;
  return -1;
}
static int seam_fdatasync(int fd) {
  return fails() ? -1 : real.fdatasync(fd);
}
static int seam_open(const char *path, int flags, int mode) {
  return (flags & O_CREAT) && fails() ? -1 : real.open(path, flags, mode);
}

static void test_one_failure_loses_nothing(void **state) {
  fixture *f = *state;
  real = iso_os;
  int incarnation = 1;
  for (fail_from = 0;; fail_from++) {
    fixture_begin(f, ++incarnation, 0);
    calls = 0;
    fail_count = 1;
    iso_os.pwrite = seam_pwrite, iso_os.fdatasync = seam_fdatasync, iso_os.open = seam_open;
    iso_wal *log = open_log(f, incarnation, ISO_BF16, 1 << 30, true, 1);
    append_steps(log, ISO_BF16, 1, STEPS);
    iso_wal_state s;
    iso_wal_state_get(log, &s);
    iso_wal_close(&log);
    const int made = calls;
    iso_os = real;
    assert_int_equal(s.durable, STEPS);
    assert_false(s.suspended);
    iso_wal_index index;
    iso_string faults = {0};
    read_index(f, true, &index, &faults); /* a torn segment is noted */
    for (int64_t step = 1; step <= STEPS; step++) {
      assert_non_null(iso_wal_index_find(&index, step));
      check_step(&index, iso_wal_index_find(&index, step), ISO_BF16);
    }
    iso_wal_index_fini(&index);
    iso_string_fini(&faults);
    if (made <= fail_from) break;
  }
  assert_true(fail_from > 20);
}

static void test_a_dead_disk_suspends(void **state) {
  fixture *f = *state;
  real = iso_os;
  calls = 0;
  fail_from = 13; /* in the gradient of the third step, of which a block is written */
  fail_count = 1 << 30;
  iso_os.pwrite = seam_pwrite, iso_os.fdatasync = seam_fdatasync, iso_os.open = seam_open;
  iso_wal *log = open_log(f, 1, ISO_BF16, 1 << 30, false, 1);
  append_steps(log, ISO_BF16, 1, STEPS);
  iso_wal_state s;
  iso_wal_state_get(log, &s);
  assert_true(s.suspended);
  assert_non_null(strstr(s.cause, "Input/output error"));
  const int64_t durable = s.durable;
  assert_true(durable >= 1 && durable < STEPS);
  iso_os = real;
  append_steps(log, ISO_BF16, STEPS + 1, STEPS + 1); /* still suspended: nothing is written */
  iso_wal_state_get(log, &s);
  assert_int_equal(s.durable, durable);
  assert_true(s.gap);
  iso_wal_restart(log, STEPS + 2); /* a snapshot after step STEPS + 1 begins, but comes to nothing */
  append_steps(log, ISO_BF16, STEPS + 2, STEPS + 3);
  iso_wal_state_get(log, &s);
  assert_false(s.suspended);
  assert_true(s.gap);
  assert_int_equal(s.durable, durable);
  iso_wal_covered(log, STEPS); /* an older one does not close the gap */
  iso_wal_state_get(log, &s);
  assert_true(s.gap);
  assert_int_equal(s.durable, STEPS);
  iso_wal_covered(log, STEPS + 1);
  iso_wal_state_get(log, &s);
  assert_false(s.gap);
  assert_int_equal(s.durable, STEPS + 3);
  append_steps(log, ISO_BF16, STEPS + 4, STEPS + 4);
  iso_wal_state_get(log, &s);
  assert_int_equal(s.durable, STEPS + 4);
  iso_wal_close(&log);
  iso_wal_index index;
  iso_string faults = {0};
  read_index(f, true, &index, &faults);
  for (int64_t step = 1; step <= STEPS + 4; step++)
    assert_int_equal(iso_wal_index_find(&index, step) != NULL, step <= durable || step >= STEPS + 2);
  assert_int_equal(faults.length, 0); /* what the failed write left is cut off: nobody need look into it */
  iso_wal_index_fini(&index);
  iso_string_fini(&faults);
}

static void test_a_full_disk_is_told_from_a_dead_one(void **state) {
  fixture *f = *state;
  const int causes[] = {EIO, ENOSPC};
  for (int i = 0; i < 2; i++) {
    real = iso_os;
    calls = 0;
    fail_from = 12;
    fail_count = 1 << 30;
    fail_errno = causes[i];
    iso_os.pwrite = seam_pwrite, iso_os.fdatasync = seam_fdatasync, iso_os.open = seam_open;
    iso_wal *log = open_log(f, 1 + i, ISO_BF16, 1 << 30, false, 1);
    append_steps(log, ISO_BF16, 1, STEPS);
    iso_wal_state s;
    iso_wal_state_get(log, &s);
    iso_os = real;
    fail_errno = EIO;
    assert_true(s.suspended);
    assert_int_equal(s.status, causes[i] == EIO ? ISO_ERR_IO : ISO_ERR_SPACE);
    iso_wal_close(&log);
  }
}

static void test_a_superseded_process_counts_no_more(void **state) {
  fixture *f = *state;
  iso_wal *log = open_log(f, 1, ISO_BF16, 1 << 30, false, 1);
  append_steps(log, ISO_BF16, 1, 2);
  fixture_begin(f, 2, 1); /* another start went on after step 1 */
  append_steps(log, ISO_BF16, 3, 3);
  iso_wal_state s;
  iso_wal_state_get(log, &s);
  assert_true(s.suspended);
  assert_int_equal(s.durable, 2);
  iso_wal_close(&log);
  iso_wal_index index;
  iso_string faults = {0};
  read_index(f, true, &index, &faults);
  assert_int_equal(index.step_count, 1);
  assert_int_equal(index.steps[0].step, 1);
  iso_wal_index_fini(&index);
}

int main(void) {
  iso_log_quiet(true);
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
  const struct CMUnitTest tests[] = {
      EACH(test_what_is_written_is_read),
      EACH(test_acknowledged_steps_travel),
      EACH(test_every_flipped_byte_is_seen),
      EACH(test_every_length_is_a_prefix),
      EACH(test_foreign_and_copied_segments),
      EACH(test_one_failure_loses_nothing),
      EACH(test_a_dead_disk_suspends),
      EACH(test_a_superseded_process_counts_no_more),
      EACH(test_a_full_disk_is_told_from_a_dead_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
