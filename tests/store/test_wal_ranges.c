/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps handed over range by range, in the order of a backward pass: the same steps are read again, ranges are written
 * while the step is computed yet, and a step that comes to nothing leaves nothing.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/wal_fixture.h"

#include <errno.h>
#include <sys/stat.h>
#include <time.h>

enum { PART = 2048 }; /* elements: a block of bfloat16, two of float32 */

static void rest(void) {
  const struct timespec moment = {.tv_nsec = 200000};
  nanosleep(&moment, NULL);
}

/* The part of the gradient gets its values, and is handed over. */
static void give(iso_wal *log, char *reduced, const char *values, iso_dtype type, int64_t begin) {
  const int64_t end = begin + PART < ELEMENTS ? begin + PART : ELEMENTS;
  const size_t size = iso_dtype_size(type);
  memcpy(reduced + (size_t)begin * size, values + (size_t)begin * size, (size_t)(end - begin) * size);
  iso_wal_range(log, begin, end);
}

static int64_t last_part(void) {
  return (ELEMENTS - 1) / PART * PART;
}

/* As a run does it: what is not handed over yet holds other values. Every third step is handed over whole. */
static void append_in_ranges(iso_wal *log, iso_dtype type, int64_t first, int64_t last) {
  char *buffers[2] = {gradient_of(0, type), gradient_of(0, type)};
  for (int64_t step = first; step <= last; step++) {
    iso_cursor cursors[CURSORS];
    const iso_wal_record record = record_of(step, cursors);
    char *reduced = buffers[step % 2], *values = gradient_of(step, type);
    assert_true(iso_wal_release(log, reduced, 30));
    memset(reduced, 0xab, ELEMENTS * iso_dtype_size(type));
    iso_wal_begin(log, step, reduced);
    if (step % 3 == 0) memcpy(reduced, values, ELEMENTS * iso_dtype_size(type));
    for (int64_t begin = last_part(); step % 3 && begin >= 0; begin -= PART) {
      give(log, reduced, values, type, begin);
      if (step % 2) rest();
    }
    assert_int_equal(iso_wal_append(log, &record, reduced), ISO_OK);
    free(values);
  }
  iso_wal_flush(log);
  free(buffers[0]);
  free(buffers[1]);
}

static void assert_no_torn_end(const fixture *f) {
  iso_wal_index index;
  iso_string faults = {0};
  read_index(f, true, &index, &faults);
  if (faults.length) print_message("%s", faults.data);
  assert_int_equal(faults.length, 0);
  assert_int_equal(index.torn.length, 0);
  iso_wal_index_fini(&index);
}

static void test_ranges_come_back(void **state) {
  fixture *f = *state;
  const iso_dtype types[] = {ISO_BF16, ISO_F32};
  for (int way = 0; way < 8; way++) {
    const iso_dtype type = types[way & 1];
    fixture_begin(f, 2 + way, 0);
    iso_wal_options options = options_of(f, 2 + way, type);
    options.packed = way & 2 ? ISO_WAL_ON : ISO_WAL_OFF;
    options.several = way & 4 ? ISO_WAL_ON : ISO_WAL_OFF;
    options.disk = (way & 4) != 0;
    iso_wal *log = open_with(&options, 1);
    append_in_ranges(log, type, 1, 9);
    iso_wal_state s;
    iso_wal_state_get(log, &s);
    assert_int_equal(s.durable, 9);
    assert_int_equal(s.segments, 1);
    iso_wal_close(&log);
    assert_steps(f, type, 1, 9); /* of which 4 and 8 are refused: 4 and 8 have frames nevertheless */
    assert_no_torn_end(f);
  }
}

static int64_t segment_bytes(const fixture *f) {
  char path[512];
  struct stat there;
  fixture_path(f, "log", "0001-", path);
  assert_int_equal(stat(path, &there), 0);
  return there.st_size;
}

static void test_written_while_computed(void **state) {
  fixture *f = *state;
  iso_wal *log = open_log(f, 1, ISO_BF16, 1 << 30, false, 1);
  append_in_ranges(log, ISO_BF16, 1, 2);
  const int64_t before = segment_bytes(f);
  char *reduced = gradient_of(0, ISO_BF16), *values = gradient_of(3, ISO_BF16);
  iso_wal_begin(log, 3, reduced);
  give(log, reduced, values, ISO_BF16, last_part());
  const double until = iso_clock_s() + 30;
  while (segment_bytes(f) < before + 2 * ISO_WAL_BLOCK && iso_clock_s() < until) rest();
  assert_int_equal(segment_bytes(f), before + 2 * ISO_WAL_BLOCK);
  iso_wal_state s;
  iso_wal_state_get(log, &s);
  assert_int_equal(s.durable, 2);
  assert_true(s.hangs_s == 0); /* it waits for the step, not for storage */
  assert_false(iso_wal_release(log, reduced, 0));
  iso_wal_flush(log); /* of what is complete */
  for (int64_t begin = last_part() - PART; begin >= 0; begin -= PART) give(log, reduced, values, ISO_BF16, begin);
  iso_cursor cursors[CURSORS];
  const iso_wal_record record = record_of(3, cursors);
  assert_int_equal(iso_wal_append(log, &record, reduced), ISO_OK);
  iso_wal_flush(log);
  iso_wal_close(&log);
  free(reduced);
  free(values);
  assert_steps(f, ISO_BF16, 1, 3);
}

/* how 0: the run ends, 1: another attempt at the step begins, 2: the log is suspended meanwhile. */
static void test_a_step_that_comes_to_nothing(void **state) {
  fixture *f = *state;
  for (int how = 0; how < 3; how++) {
    fixture_begin(f, 2 + how, 0);
    iso_wal *log = open_log(f, 2 + how, ISO_BF16, 1 << 30, false, 1);
    append_in_ranges(log, ISO_BF16, 1, 2);
    char *reduced = gradient_of(0, ISO_BF16), *values = gradient_of(3, ISO_BF16);
    iso_wal_begin(log, 3, reduced);
    give(log, reduced, values, ISO_BF16, last_part());
    for (int i = 0; i < 20 * how; i++) rest();
    if (how == 2) {
      iso_wal_suspend(log, "the caller gives up");
      iso_cursor cursors[CURSORS];
      const iso_wal_record record = record_of(3, cursors);
      give(log, reduced, values, ISO_BF16, 0); /* goes nowhere */
      assert_int_equal(iso_wal_append(log, &record, reduced), ISO_OK);
      assert_true(iso_wal_release(log, reduced, 30));
      iso_wal_restart(log, 4);
      append_in_ranges(log, ISO_BF16, 4, 5);
      iso_wal_covered(log, 3);
    }
    if (how == 1) append_in_ranges(log, ISO_BF16, 3, 4);
    iso_wal_state s;
    iso_wal_state_get(log, &s);
    assert_int_equal(s.durable, how == 0 ? 2 : how == 1 ? 4 : 5);
    iso_wal_close(&log);
    free(reduced);
    free(values);
    if (how < 2) assert_steps(f, ISO_BF16, 1, how ? 4 : 2);
    assert_no_torn_end(f);
  }
}

static void test_a_part_is_not_taken_for_the_whole(void **state) {
  fixture *f = *state;
  iso_wal *log = open_log(f, 1, ISO_BF16, 1 << 30, false, 1);
  append_in_ranges(log, ISO_BF16, 1, 1);
  char *reduced = gradient_of(2, ISO_BF16);
  iso_cursor cursors[CURSORS];
  const iso_wal_record record = record_of(2, cursors);
  iso_wal_begin(log, 2, reduced);
  iso_wal_range(log, 0, PART);
  assert_int_equal(iso_wal_append(log, &record, reduced), ISO_ERR_INTERNAL);
  assert_true(iso_wal_release(log, reduced, 30));
  free(reduced);
  iso_wal_close(&log);
  assert_steps(f, ISO_BF16, 1, 1);
}

/* ---- failing calls ---- */

static iso_os_table real;
static int calls, fail_at;

static bool fails(void) {
  if (__atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST) != fail_at) return false;
  errno = EIO;
  return true;
}
static ssize_t seam_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  return fails() ? -1 : real.pwrite(fd, data, bytes, offset);
}
static int seam_fdatasync(int fd) {
  return fails() ? -1 : real.fdatasync(fd);
}

static void test_one_failure_loses_nothing(void **state) {
  fixture *f = *state;
  real = iso_os;
  int incarnation = 1;
  for (fail_at = 0;; fail_at++) {
    fixture_begin(f, ++incarnation, 0);
    calls = 0;
    iso_os.pwrite = seam_pwrite, iso_os.fdatasync = seam_fdatasync;
    iso_wal *log = open_log(f, incarnation, ISO_BF16, 1 << 30, true, 1);
    append_in_ranges(log, ISO_BF16, 1, STEPS);
    iso_wal_state s;
    iso_wal_state_get(log, &s);
    iso_wal_close(&log);
    const int made = calls;
    iso_os = real;
    assert_int_equal(s.durable, STEPS);
    assert_false(s.suspended);
    iso_wal_index index;
    iso_string faults = {0};
    read_index(f, true, &index, &faults);
    for (int64_t step = 1; step <= STEPS; step++) {
      assert_non_null(iso_wal_index_find(&index, step));
      check_step(&index, iso_wal_index_find(&index, step), ISO_BF16);
    }
    iso_wal_index_fini(&index);
    iso_string_fini(&faults);
    if (made <= fail_at) break;
  }
  assert_true(fail_at > 30);
}

/* ---- which elements are there ---- */

static void test_cover(void **state) {
  (void)state;
  enum { CELLS = 40, ROUNDS = 300 };
  for (uint64_t round = 0; round < ROUNDS; round++) {
    iso_wal_cover cover = {0};
    bool there[CELLS] = {false}, fresh;
    int64_t count = 0;
    for (uint64_t i = 0; i < 200; i++) {
      uint32_t random[4];
      iso_rng(7, ISO_RNG_TEST, round, i, random);
      const int64_t begin = random[0] % CELLS, end = begin + 1 + random[1] % 4;
      if (end > CELLS) continue;
      bool want = true;
      for (int64_t k = begin; k < end; k++) want = want && !there[k];
      assert_int_equal(iso_wal_cover_add(&cover, begin, end, &fresh), ISO_OK);
      assert_int_equal(fresh, want);
      for (int64_t k = begin; want && k < end; k++) there[k] = true, count++;
      assert_int_equal(iso_wal_cover_is_whole(&cover, CELLS), count == CELLS);
    }
    for (int64_t k = 0; k < CELLS; k++) {
      assert_int_equal(iso_wal_cover_add(&cover, k, k + 1, &fresh), ISO_OK);
      assert_int_equal(fresh, !there[k]);
    }
    assert_true(iso_wal_cover_is_whole(&cover, CELLS));
    assert_false(iso_wal_cover_is_whole(&cover, CELLS + 1));
    iso_wal_cover_fini(&cover);
  }
}

int main(void) {
  iso_log_quiet(true);
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
  const struct CMUnitTest tests[] = {
      EACH(test_ranges_come_back),
      EACH(test_written_while_computed),
      EACH(test_a_step_that_comes_to_nothing),
      EACH(test_a_part_is_not_taken_for_the_whole),
      EACH(test_one_failure_loses_nothing),
      cmocka_unit_test(test_cover),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
