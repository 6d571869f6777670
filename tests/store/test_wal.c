/* SPDX-License-Identifier: Apache-2.0
 *
 * The step log: what is written is read again, nothing else is; every flipped bit, every length, every failing call.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { ELEMENTS = 5000, CURSORS = 3, STEPS = 5 };

static char uuid[37];
static int64_t acknowledged; /* what the reader is told */

static void *gradient_of(int64_t step, iso_dtype type) {
  void *memory;
  const size_t bytes = iso_wal_padded(ELEMENTS * iso_dtype_size(type));
  assert_int_equal(posix_memalign(&memory, ISO_WAL_BLOCK, bytes), 0);
  memset(memory, 0, bytes);
  for (int i = 0; i < ELEMENTS; i++) {
    const float value = (float)iso_rng_normal(11, ISO_RNG_TEST, (uint64_t)step, (uint64_t)i);
    if (type == ISO_BF16) ((iso_bf16 *)memory)[i] = iso_bf16_from_f32(value);
    if (type == ISO_F32) ((float *)memory)[i] = value;
  }
  return memory;
}

static iso_wal_record record_of(int64_t step, iso_cursor cursors[CURSORS]) {
  for (int i = 0; i < CURSORS; i++) cursors[i] = (iso_cursor){i, step, step * 7 + i};
  return (iso_wal_record){.step = step,
                          .adam_step = step - step / 4,
                          .tokens = 1000 * step,
                          .refused_total = step / 4,
                          .scored = 999,
                          .norm = 0.5 * (double)step,
                          .loss_sum = 3.25,
                          .lr = 1e-3f * (float)step,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .clip = 0.75f,
                          .bias1 = 0.1f,
                          .bias2 = 0.05f,
                          .refused = step % 4 == 0,
                          .cursors = cursors,
                          .cursor_count = CURSORS};
}

static iso_wal *open_log(const fixture *f, int incarnation, iso_dtype type, int64_t segment_bytes, bool disk,
                         int64_t first) {
  const iso_wal_options options = {.run = f->run,
                                   .uuid = uuid,
                                   .incarnation = incarnation,
                                   .elements = ELEMENTS,
                                   .gradient = type,
                                   .optimizer_version = 1,
                                   .segment_bytes = segment_bytes,
                                   .disk = disk,
                                   .cursors = CURSORS};
  iso_wal *log;
  assert_int_equal(iso_wal_open(&options, first, &log), ISO_OK);
  return log;
}

/* As the loop does it: two buffers, each released before it is filled again. */
static void append_steps(iso_wal *log, iso_dtype type, int64_t first, int64_t last) {
  void *buffers[2] = {NULL, NULL};
  for (int64_t step = first; step <= last; step++) {
    iso_cursor cursors[CURSORS];
    const iso_wal_record record = record_of(step, cursors);
    if (buffers[step % 2]) assert_true(iso_wal_release(log, buffers[step % 2], 30));
    free(buffers[step % 2]);
    buffers[step % 2] = gradient_of(step, type);
    assert_int_equal(iso_wal_append(log, &record, buffers[step % 2]), ISO_OK);
  }
  iso_wal_flush(log);
  free(buffers[0]);
  free(buffers[1]);
}

/* The step's content is exactly what was handed over. */
static void check_step(const iso_wal_index *index, const iso_wal_step *s, iso_dtype type) {
  void *want = gradient_of(s->step, type), *have = gradient_of(0, type);
  iso_string faults = {0};
  iso_wal_record record;
  iso_cursor *cursors, expected_cursors[CURSORS];
  assert_int_equal(iso_wal_step_read(index, s, have, &record, &cursors, &faults), ISO_OK);
  const iso_wal_record expected = record_of(s->step, expected_cursors);
  if (!record.refused) assert_memory_equal(have, want, ELEMENTS * iso_dtype_size(type));
  assert_int_equal(record.step, expected.step);
  assert_int_equal(record.adam_step, expected.adam_step);
  assert_int_equal(record.tokens, expected.tokens);
  assert_int_equal(record.refused, expected.refused);
  assert_true(record.lr == expected.lr && record.clip == expected.clip && record.norm == expected.norm);
  assert_true(record.bias1 == expected.bias1 && record.bias2 == expected.bias2 && record.eps == expected.eps);
  assert_int_equal(record.cursor_count, CURSORS);
  assert_memory_equal(cursors, expected_cursors, sizeof expected_cursors);
  free(cursors);
  free(want);
  free(have);
  iso_string_fini(&faults);
}

static void read_index(const fixture *f, bool deep, iso_wal_index *index, iso_string *faults) {
  assert_int_equal(iso_wal_index_read(f->run, uuid, deep, acknowledged, index, faults), ISO_OK);
}

static void assert_steps(const fixture *f, iso_dtype type, int64_t first, int64_t last) {
  iso_wal_index index;
  iso_string faults = {0};
  read_index(f, true, &index, &faults);
  assert_int_equal(faults.length, 0);
  assert_int_equal(index.step_count, last - first + 1);
  for (int64_t step = first; step <= last; step++) {
    const iso_wal_step *s = iso_wal_index_find(&index, step);
    assert_non_null(s);
    check_step(&index, s, type);
  }
  iso_wal_index_fini(&index);
}

static int setup(void **state) {
  fixture *f = malloc(sizeof *f);
  fixture_init(f);
  bool exists;
  assert_int_equal(iso_run_folder_read(f->run, uuid, &exists), ISO_OK);
  fixture_begin(f, 1, 0);
  *state = f;
  return 0;
}

static int teardown(void **state) {
  fixture_fini(*state);
  free(*state);
  return 0;
}

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

typedef struct image {
  char path[512];
  char *bytes;
  size_t length;
} image;

static image take_image(const fixture *f) {
  image im = {.bytes = NULL};
  fixture_path(f, "log", "0001-", im.path);
  assert_int_equal(iso_file_read(im.path, &im.bytes, &im.length), ISO_OK);
  return im;
}

static void put_image(const image *im, size_t length) {
  const int fd = open(im->path, O_WRONLY | O_TRUNC);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, im->bytes, length), length);
  assert_int_equal(close(fd), 0);
}

/* Whatever still counts has the right content. Returns how many steps that are. */
static int64_t count_right_steps(const fixture *f, bool *noted) {
  iso_wal_index index;
  iso_string faults = {0};
  read_index(f, true, &index, &faults);
  *noted = faults.length > 0 || (index.torn.length > 0 && acknowledged == 0);
  const int64_t count = (int64_t)index.step_count;
  for (int64_t i = 0; i < count; i++) check_step(&index, &index.steps[i], ISO_BF16);
  iso_wal_index_fini(&index);
  iso_string_fini(&faults);
  return count;
}

static void test_every_flipped_byte_is_seen(void **state) {
  fixture *f = *state;
  iso_wal *log = open_log(f, 1, ISO_BF16, 1 << 30, false, 1);
  append_steps(log, ISO_BF16, 1, 2);
  iso_wal_close(&log);
  const image im = take_image(f);
  acknowledged = 2; /* so that nothing is taken for a torn end */
  for (size_t at = 0; at < im.length; at += at % ISO_WAL_BLOCK < 256 ? 1 : 37) {
    bool noted;
    im.bytes[at] ^= (char)(1 << at % 8);
    put_image(&im, im.length);
    im.bytes[at] ^= (char)(1 << at % 8);
    assert_true(count_right_steps(f, &noted) < 2);
    assert_true(noted);
  }
  acknowledged = 0;
  free(im.bytes);
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
  fail_from = 12;
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
