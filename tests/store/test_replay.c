/* SPDX-License-Identifier: Apache-2.0
 *
 * Replay: fast and with care, on any number of threads, over several pieces, frames and segments, the bits are those of
 * the optimizer called step by step; damage found half-way through a step leaves the state after the step before; a
 * step of another optimizer kernel is refused unless told.
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

/* More than one piece (512 KiB) of either type, and an odd end. */
enum { ELEMENTS = 700001, CURSORS = 2, STEPS = 6, REFUSED = 4 };

static char uuid[37];

typedef struct arrays {
  float *master, *moment1, *moment2;
} arrays;

static arrays make_arrays(void) {
  arrays a;
  float **all[3] = {&a.master, &a.moment1, &a.moment2};
  for (int k = 0; k < 3; k++) {
    *all[k] = calloc(ELEMENTS, sizeof(float));
    assert_non_null(*all[k]);
  }
  return a;
}

/* The weights that everything begins with. */
static void reset(const arrays *a) {
  for (int i = 0; i < ELEMENTS; i++) a->master[i] = (float)(i % 4001) * 1e-3f - 2;
  memset(a->moment1, 0, ELEMENTS * sizeof(float));
  memset(a->moment2, 0, ELEMENTS * sizeof(float));
}

static void free_arrays(arrays *a) {
  free(a->master);
  free(a->moment1);
  free(a->moment2);
}

static void assert_same(const arrays *a, const arrays *b) {
  assert_memory_equal(a->master, b->master, ELEMENTS * sizeof(float));
  assert_memory_equal(a->moment1, b->moment1, ELEMENTS * sizeof(float));
  assert_memory_equal(a->moment2, b->moment2, ELEMENTS * sizeof(float));
}

static void *gradient_of(int64_t step, iso_dtype type) {
  void *memory;
  const size_t bytes = iso_wal_padded(ELEMENTS * iso_dtype_size(type));
  assert_int_equal(posix_memalign(&memory, ISO_WAL_BLOCK, bytes), 0);
  memset(memory, 0, bytes);
  for (int i = 0; i < ELEMENTS; i++) {
    const float value = (float)(((int64_t)i * 7919 + step * 104729) % 2003) * 1e-3f - 1;
    if (type == ISO_BF16) ((iso_bf16 *)memory)[i] = iso_bf16_from_f32(value);
    if (type == ISO_F32) ((float *)memory)[i] = value;
  }
  return memory;
}

static iso_wal_record record_of(int64_t step, iso_cursor cursors[CURSORS]) {
  for (int i = 0; i < CURSORS; i++) cursors[i] = (iso_cursor){i, step, step * 7 + i};
  return (iso_wal_record){.step = step,
                          .adam_step = step - (step >= REFUSED),
                          .tokens = 1000 * step,
                          .refused_total = step >= REFUSED,
                          .lr = 1e-3f * (float)step,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .clip = 0.75f,
                          .bias1 = 0.1f,
                          .bias2 = 0.05f,
                          .refused = step == REFUSED,
                          .decay = (uint32_t)step % 2,
                          .cursors = cursors,
                          .cursor_count = CURSORS};
}

static void write_log(const fixture *f, iso_dtype type, int version) {
  const iso_wal_options options = {.run = f->run,
                                   .uuid = uuid,
                                   .incarnation = 1,
                                   .elements = ELEMENTS,
                                   .gradient = type,
                                   .optimizer_version = version,
                                   .segment_bytes = 5000000, /* two steps or so */
                                   .cursors = CURSORS};
  iso_wal *log;
  assert_int_equal(iso_wal_open(&options, 1, &log), ISO_OK);
  for (int64_t step = 1; step <= STEPS; step++) {
    iso_cursor cursors[CURSORS];
    const iso_wal_record record = record_of(step, cursors);
    void *gradient = gradient_of(step, type);
    assert_int_equal(iso_wal_append(log, &record, gradient), ISO_OK);
    iso_wal_flush(log);
    free(gradient);
  }
  iso_wal_close(&log);
}

static int64_t decays[2][2] = {{0, 100000}, {30000, ELEMENTS}};

/* The state after `last`, by the kernel itself. */
static void take_steps(const arrays *a, iso_dtype type, int64_t last) {
  iso_tier tier;
  assert_int_equal(iso_cpu_tier(&tier), ISO_OK);
  const iso_worker alone = {0, 1, NULL, NULL};
  reset(a);
  for (int64_t step = 1; step <= last; step++) {
    iso_cursor cursors[CURSORS];
    const iso_wal_record r = record_of(step, cursors);
    if (r.refused) continue;
    void *gradient = gradient_of(step, type);
    const iso_adamw_args args = {.master = a->master,
                                 .moment1 = a->moment1,
                                 .moment2 = a->moment2,
                                 .reduced = gradient,
                                 .reduced_type = type,
                                 .decay_ranges = decays[r.decay],
                                 .decay_count = 1,
                                 .end = ELEMENTS,
                                 .lr = r.lr,
                                 .beta1 = r.beta1,
                                 .beta2 = r.beta2,
                                 .eps = r.eps,
                                 .weight_decay = r.weight_decay,
                                 .clip = r.clip,
                                 .bias1 = r.bias1,
                                 .bias2 = r.bias2};
    iso_kernels_get(tier)->adamw(&args, &alone);
    free(gradient);
  }
}

static int restored;

static iso_status restore(const iso_replay *with) {
  restored++;
  reset(with->context);
  return ISO_OK;
}

/* Replays over `a`; the step that it comes to. */
static int64_t replay(const fixture *f, const arrays *a, int threads, bool fast, iso_replay_report *report) {
  iso_tier tier;
  iso_wal_index index;
  iso_string faults = {0};
  iso_snapshot_info info = {0};
  arrays context = *a;
  assert_int_equal(iso_cpu_tier(&tier), ISO_OK);
  iso_state state = {.elements = ELEMENTS, .master = a->master, .moment1 = a->moment1, .moment2 = a->moment2};
  iso_team *team = iso_team_create(threads, false);
  iso_replay with = {.kernels = iso_kernels_get(tier),
                     .team = team,
                     .threads = threads,
                     .state = &state,
                     .optimizer_version = 1,
                     .restore = fast ? restore : NULL,
                     .context = &context};
  for (int i = 0; i < ISO_WAL_DECAYS; i++) with.decay[i].ranges = decays[i % 2], with.decay[i].count = 1;
  reset(a);
  restored = 0;
  assert_int_equal(iso_wal_index_read(f->run, uuid, false, 0, &index, &faults), ISO_OK);
  assert_int_equal(iso_wal_replay(&index, &with, INT64_MAX, &info, report, &faults), ISO_OK);
  const int64_t step = info.step;
  assert_int_equal(report->steps, step);
  assert_int_equal(report->damaged_step, faults.length ? step + 1 : 0);
  if (step) {
    iso_cursor cursors[CURSORS];
    const iso_wal_record r = record_of(step, cursors);
    assert_int_equal(info.adam_step, r.adam_step);
    assert_int_equal(info.tokens, r.tokens);
    assert_int_equal(info.refused, r.refused_total);
    assert_int_equal(info.cursor_count, CURSORS);
    assert_memory_equal(info.cursors, cursors, sizeof cursors);
  }
  iso_snapshot_info_fini(&info);
  iso_string_fini(&faults);
  iso_wal_index_fini(&index);
  iso_team_destroy(&team);
  return step;
}

static void begin(fixture *f) {
  bool exists;
  fixture_init(f);
  fixture_begin(f, 1, 0);
  assert_int_equal(iso_run_folder_read(f->run, uuid, &exists), ISO_OK);
}

static void test_same_bits(void **state) {
  (void)state;
  arrays want = make_arrays(), got = make_arrays();
  for (int type = 0; type < 2; type++) {
    const iso_dtype dtype = type ? ISO_BF16 : ISO_F32;
    fixture f;
    begin(&f);
    write_log(&f, dtype, 1);
    take_steps(&want, dtype, STEPS);
    for (int fast = 0; fast < 2; fast++)
      for (int threads = 1; threads <= 3; threads++) {
        iso_replay_report report;
        assert_int_equal(replay(&f, &got, threads, fast, &report), STEPS);
        assert_int_equal(restored, 0);
        assert_int_equal(report.bytes, (STEPS - 1) * (int64_t)ELEMENTS * (int64_t)iso_dtype_size(dtype));
        assert_same(&got, &want);
      }
    fixture_fini(&f);
  }
  free_arrays(&want);
  free_arrays(&got);
}

/* A bit of a gradient is flipped: heads and commits are whole, so that only reading it all finds it. */
static void test_damage_half_way(void **state) {
  (void)state;
  arrays want = make_arrays(), got = make_arrays();
  fixture f;
  begin(&f);
  write_log(&f, ISO_BF16, 1);
  iso_wal_index index;
  iso_string faults = {0};
  assert_int_equal(iso_wal_index_read(f.run, uuid, false, 0, &index, &faults), ISO_OK);
  for (int64_t step = 1; step <= STEPS; step++) {
    const iso_wal_step *entry = iso_wal_index_find(&index, step);
    if (step == REFUSED) continue;
    const int64_t places[] = {entry->offset + ISO_WAL_BLOCK, entry->offset + ISO_WAL_BLOCK + 1000000,
                              entry->commit - 1};
    char path[512];
    snprintf(path, sizeof path, "%s/log/%s", f.run, index.files[entry->segment].name);
    take_steps(&want, ISO_BF16, step - 1);
    for (size_t i = 0; i < ISO_COUNT(places); i++) {
      char byte, flipped;
      iso_replay_report report;
      const int fd = open(path, O_RDWR);
      assert_int_equal(pread(fd, &byte, 1, places[i]), 1);
      flipped = (char)(byte ^ 4);
      assert_int_equal(pwrite(fd, &flipped, 1, places[i]), 1);
      assert_int_equal(replay(&f, &got, 2, true, &report), step - 1);
      assert_int_equal(restored, 1);
      assert_same(&got, &want);
      assert_int_equal(replay(&f, &got, 2, false, &report), step - 1);
      assert_same(&got, &want);
      assert_int_equal(pwrite(fd, &byte, 1, places[i]), 1);
      close(fd);
    }
  }
  iso_wal_index_fini(&index);
  fixture_fini(&f);
  free_arrays(&want);
  free_arrays(&got);
}

/* Reads that fail, once, at any place: the state is whole all the same, and no newer than the log allows. */
static int reads, fail_at;
static iso_os_table real;

static ssize_t failing_pread(int fd, void *data, size_t bytes, int64_t offset) {
  if (__atomic_add_fetch(&reads, 1, __ATOMIC_SEQ_CST) == fail_at) {
    errno = EIO;
    return -1;
  }
  if (bytes > 100000) bytes = 100000; /* short ones on the way */
  return real.pread(fd, data, bytes, offset);
}

static void test_failing_reads(void **state) {
  (void)state;
  arrays want = make_arrays(), got = make_arrays();
  fixture f;
  begin(&f);
  write_log(&f, ISO_BF16, 1);
  real = iso_os;
  bool failed = true;
  for (fail_at = 1; failed; fail_at += 7) {
    iso_replay_report report;
    reads = 0;
    iso_os.pread = failing_pread;
    iso_tier tier;
    iso_wal_index index;
    iso_string faults = {0};
    iso_snapshot_info info = {0};
    arrays context = got;
    assert_int_equal(iso_cpu_tier(&tier), ISO_OK);
    iso_state flat = {.elements = ELEMENTS, .master = got.master, .moment1 = got.moment1, .moment2 = got.moment2};
    iso_team *team = iso_team_create(2, false);
    iso_replay with = {.kernels = iso_kernels_get(tier),
                       .team = team,
                       .threads = 2,
                       .state = &flat,
                       .optimizer_version = 1,
                       .restore = restore,
                       .context = &context};
    for (int i = 0; i < ISO_WAL_DECAYS; i++) with.decay[i].ranges = decays[i % 2], with.decay[i].count = 1;
    reset(&got);
    if (iso_wal_index_read(f.run, uuid, false, 0, &index, &faults) == ISO_OK) {
      assert_int_equal(iso_wal_replay(&index, &with, INT64_MAX, &info, &report, &faults), ISO_OK);
      iso_wal_index_fini(&index);
      iso_os = real;
      take_steps(&want, ISO_BF16, info.step);
      assert_same(&got, &want);
    }
    iso_os = real;
    failed = reads >= fail_at;
    if (!failed) assert_int_equal(info.step, STEPS);
    iso_snapshot_info_fini(&info);
    iso_string_fini(&faults);
    iso_team_destroy(&team);
  }
  assert_true(fail_at > 60);
  fixture_fini(&f);
  free_arrays(&want);
  free_arrays(&got);
}

static void test_optimizer_versions(void **state) {
  (void)state;
  arrays want = make_arrays(), got = make_arrays();
  fixture f;
  begin(&f);
  write_log(&f, ISO_BF16, 2);
  iso_tier tier;
  iso_wal_index index;
  iso_string faults = {0};
  iso_replay_report report;
  iso_snapshot_info info = {0};
  assert_int_equal(iso_cpu_tier(&tier), ISO_OK);
  iso_state flat = {.elements = ELEMENTS, .master = got.master, .moment1 = got.moment1, .moment2 = got.moment2};
  iso_replay with = {.kernels = iso_kernels_get(tier), .threads = 1, .state = &flat, .optimizer_version = 1};
  with.team = iso_team_create(1, false);
  for (int i = 0; i < ISO_WAL_DECAYS; i++) with.decay[i].ranges = decays[i % 2], with.decay[i].count = 1;
  reset(&got);
  assert_int_equal(iso_wal_index_read(f.run, uuid, false, 0, &index, &faults), ISO_OK);
  assert_int_equal(iso_wal_replay(&index, &with, INT64_MAX, &info, &report, &faults), ISO_ERR_MISMATCH);
  assert_int_equal(info.step, 0);
  assert_non_null(strstr(iso_last_error(), "optimizer kernel version 2, this is version 1"));
  with.any_version = true;
  assert_int_equal(iso_wal_replay(&index, &with, INT64_MAX, &info, &report, &faults), ISO_OK);
  assert_int_equal(info.step, STEPS);
  take_steps(&want, ISO_BF16, STEPS);
  assert_same(&got, &want);
  iso_snapshot_info_fini(&info);
  iso_wal_index_fini(&index);
  iso_team_destroy((iso_team **)&with.team);
  fixture_fini(&f);
  free_arrays(&want);
  free_arrays(&got);
}

int main(void) {
  iso_log_quiet(true);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_same_bits),
      cmocka_unit_test(test_damage_half_way),
      cmocka_unit_test(test_failing_reads),
      cmocka_unit_test(test_optimizer_versions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
