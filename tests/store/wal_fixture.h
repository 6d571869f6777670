/* SPDX-License-Identifier: Apache-2.0
 *
 * Small step logs for the tests of store: what is handed over can be told again from the step's number.
 */
#ifndef ISO_TESTS_STORE_WAL_FIXTURE_H
#define ISO_TESTS_STORE_WAL_FIXTURE_H

#include "store/fixture.h"

#include <fcntl.h>
#include <unistd.h>

enum { ELEMENTS = 5000, CURSORS = 3, STEPS = 5 };

static char uuid[37];
static int64_t acknowledged; /* what the reader is told */

static inline void *gradient_of(int64_t step, iso_dtype type) {
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

static inline iso_wal_record record_of(int64_t step, iso_cursor cursors[CURSORS]) {
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

static inline iso_wal_options options_of(const fixture *f, int incarnation, iso_dtype type) {
  return (iso_wal_options){.run = f->run,
                           .uuid = uuid,
                           .incarnation = incarnation,
                           .elements = ELEMENTS,
                           .gradient = type,
                           .optimizer_version = 1,
                           .segment_bytes = 1 << 30,
                           .cursors = CURSORS};
}

static inline iso_wal *open_with(const iso_wal_options *options, int64_t first) {
  iso_wal *log;
  assert_int_equal(iso_wal_open(options, first, &log), ISO_OK);
  return log;
}

static inline iso_wal *open_log(const fixture *f, int incarnation, iso_dtype type, int64_t segment_bytes, bool disk,
                                int64_t first) {
  iso_wal_options options = options_of(f, incarnation, type);
  options.segment_bytes = segment_bytes;
  options.disk = disk;
  return open_with(&options, first);
}

/* As the loop does it: two buffers, each released before it is filled again. */
static inline void append_steps(iso_wal *log, iso_dtype type, int64_t first, int64_t last) {
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
static inline void check_step(const iso_wal_index *index, const iso_wal_step *s, iso_dtype type) {
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

static inline void read_index(const fixture *f, bool deep, iso_wal_index *index, iso_string *faults) {
  assert_int_equal(iso_wal_index_read(f->run, uuid, deep, acknowledged, index, faults), ISO_OK);
}

static inline void assert_steps(const fixture *f, iso_dtype type, int64_t first, int64_t last) {
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

static inline int setup(void **state) {
  fixture *f = malloc(sizeof *f);
  fixture_init(f);
  bool exists;
  assert_int_equal(iso_run_folder_read(f->run, uuid, &exists), ISO_OK);
  fixture_begin(f, 1, 0);
  *state = f;
  return 0;
}

static inline int teardown(void **state) {
  fixture_fini(*state);
  free(*state);
  return 0;
}

/* ---- a segment's bytes ---- */

typedef struct image {
  char path[512];
  char *bytes;
  size_t length;
} image;

static inline image take_image(const fixture *f) {
  image im = {.bytes = NULL};
  fixture_path(f, "log", "0001-", im.path);
  assert_int_equal(iso_file_read(im.path, &im.bytes, &im.length), ISO_OK);
  return im;
}

static inline void put_image(const image *im, size_t length) {
  const int fd =
      open(im->path, O_WRONLY); /* not truncated to nothing, which some file systems take for a wish to sync */
  assert_true(fd >= 0);
  assert_int_equal(pwrite(fd, im->bytes, length, 0), length);
  assert_int_equal(ftruncate(fd, (off_t)length), 0);
  assert_int_equal(close(fd), 0);
}

/* Whatever still counts has the right content. Returns how many steps that are. */
static inline int64_t count_right_steps(const fixture *f, bool *noted) {
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

/* Of a segment with so many steps each byte of the heads, and each `stride`th one of the rest, is altered in turn. */
static inline void assert_flips_are_seen(const fixture *f, int64_t steps, size_t stride) {
  const image im = take_image(f);
  acknowledged = steps; /* so that nothing is taken for a torn end */
  for (size_t at = 0; at < im.length; at += at % ISO_WAL_BLOCK < 256 ? 1 : stride) {
    bool noted;
    im.bytes[at] ^= (char)(1 << at % 8);
    put_image(&im, im.length);
    im.bytes[at] ^= (char)(1 << at % 8);
    assert_true(count_right_steps(f, &noted) < steps);
    assert_true(noted);
  }
  acknowledged = 0;
  free(im.bytes);
}

#endif
