/* SPDX-License-Identifier: Apache-2.0
 *
 * Snapshots that stream: the file and what it says are those of iso_snapshot_write, wherever the first update falls;
 * the gate with chunks pending, one in flight, staging too small and storage that hangs; every call failing in turn.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/fixture.h"

#include <errno.h>
#include <time.h>

/* 5 chunks an array; the last one short, or all whole, when the file can be written past the page cache. */
enum { SHORT = 5000, ELEMENTS = 5120, CHUNK = 4096 };
static const iso_tensor_out short_tensors[] = {{"one", ISO_F32, 2, {40, 100}, NULL}, {"two", ISO_F32, 1, {1000}, NULL}};
static const iso_tensor_out whole_tensors[] = {{"one", ISO_F32, 2, {32, 128}, NULL}, {"two", ISO_F32, 1, {1024}, NULL}};

static fixture f;
static _Alignas(4096) float arrays[3][ELEMENTS];
static iso_state state_now;
static iso_os_table real;

static void fill(int64_t step) {
  for (int a = 0; a < 3; a++)
    for (int i = 0; i < ELEMENTS; i++) arrays[a][i] = (float)(step * 1000003 + a * ELEMENTS + i);
  f.info.step = step;
  f.info.adam_step = step;
}

/* stuck_s: of storage; long where a busy machine must not be taken for a hanging mount. */
static iso_streamer *open_with(int64_t staging, double stuck_s) {
  iso_streamer *s;
  const iso_streamer_options options = {.run = f.run,
                                        .state = &state_now,
                                        .cursors = 3,
                                        .staging_bytes = staging,
                                        .chunk_bytes = CHUNK,
                                        .stuck_s = stuck_s,
                                        .keep_last = 1000};
  assert_int_equal(iso_streamer_open(&options, &s), ISO_OK);
  return s;
}

static iso_streamer *open_streamer(int64_t staging) {
  return open_with(staging, 60);
}

/* ---- storage that waits to be told ---- */

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool on;     /* writes of the state file stop after `allowed` of them */
  int allowed; /* of writes that may begin */
  int waiting; /* writes that have begun and stand still */
  int fail_at; /* of all calls of the thread: the one that fails; -1: none */
  int calls;
} disk = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, 0, -1, 0};

static ssize_t slow_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  pthread_mutex_lock(&disk.lock);
  disk.waiting++;
  pthread_cond_broadcast(&disk.changed);
  while (disk.on && disk.allowed == 0) pthread_cond_wait(&disk.changed, &disk.lock);
  if (disk.on) disk.allowed--;
  disk.waiting--;
  pthread_cond_broadcast(&disk.changed);
  pthread_mutex_unlock(&disk.lock);
  return real.pwrite(fd, data, bytes, offset);
}

static void hold(int allowed) {
  pthread_mutex_lock(&disk.lock);
  disk.on = true;
  disk.allowed = allowed;
  pthread_cond_broadcast(&disk.changed);
  pthread_mutex_unlock(&disk.lock);
  iso_os.pwrite = slow_pwrite;
}

static void let_go(void) {
  pthread_mutex_lock(&disk.lock);
  disk.on = false;
  pthread_cond_broadcast(&disk.changed);
  pthread_mutex_unlock(&disk.lock);
}

/* Until a write stands still and none is allowed any more. */
static void await_stop(void) {
  pthread_mutex_lock(&disk.lock);
  while (disk.waiting == 0 || disk.allowed > 0) pthread_cond_wait(&disk.changed, &disk.lock);
  pthread_mutex_unlock(&disk.lock);
}

static void *let_go_soon(void *none) {
  const struct timespec pause = {.tv_nsec = 50000000};
  nanosleep(&pause, NULL);
  let_go();
  return none;
}

/* ---- updates ---- */

typedef struct update {
  iso_streamer *s;
  iso_team *team;
  int threads;
  int64_t step;
} update;

/* As exec does it: the gate, then every thread changes its share. */
static void run_update(void *argument, int thread) {
  update *u = argument;
  iso_streamer_gate(u->s, thread, u->threads, u->team);
  for (int a = 0; a < 3; a++)
    for (int i = thread; i < ELEMENTS; i += u->threads) arrays[a][i] = (float)(u->step * 1000003 + a * ELEMENTS + i);
  iso_team_barrier(u->team);
}

static void take_update(iso_streamer *s, int threads, int64_t step) {
  iso_team *team = iso_team_create(threads, false);
  assert_non_null(team);
  update u = {s, team, threads, step};
  iso_team_run(team, run_update, &u);
  iso_team_destroy(&team);
}

static void use_state(bool whole) {
  state_now =
      (iso_state){whole ? whole_tensors : short_tensors, 2, whole ? ELEMENTS : SHORT, arrays[0], arrays[1], arrays[2]};
}

static int setup(void **state) {
  (void)state;
  iso_log_quiet(true);
  real = iso_os;
  fixture_init(&f);
  use_state(false);
  disk.on = false;
  disk.fail_at = -1;
  return 0;
}

static int setup_whole(void **state) {
  setup(state);
  *state = &state_now;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  iso_os = real;
  fixture_fini(&f);
  return 0;
}

/* The bytes of the file in snapshots/NAME, but for its own name a function of the state. */
static void read_file(const char *name, char **data, size_t *bytes) {
  char folder[80], path[512];
  snprintf(folder, sizeof folder, "snapshots/%s", name);
  fixture_path(&f, folder, "state-", path);
  assert_int_equal(iso_file_read(path, data, bytes), ISO_OK);
}

/* The snapshot of `step` holds what fill(step) gives, bit for bit as the blocking writer writes it. */
static void check_snapshot(int64_t step) {
  char name[64], folder[512], *streamed, *written;
  size_t streamed_bytes, written_bytes;
  iso_manifest manifest;
  iso_string faults = {0};
  iso_snapshot_name(step, 1, name);
  snprintf(folder, sizeof folder, "%s/snapshots/%s", f.run, name);
  assert_int_equal(iso_snapshot_examine(folder, NULL, ISO_DEEP, &manifest, &faults), ISO_OK);
  assert_int_equal(manifest.info.step, step);
  assert_memory_equal(manifest.info.cursors, f.cursors, sizeof f.cursors);
  iso_manifest_fini(&manifest);
  iso_string_fini(&faults);
  read_file(name, &streamed, &streamed_bytes);
  fixture other;
  fixture_init(&other);
  fill(step);
  other.info.step = step;
  assert_int_equal(iso_snapshot_write(other.run, &state_now, &other.info), ISO_OK);
  char from[80], path[512];
  snprintf(from, sizeof from, "snapshots/%s", name);
  fixture_path(&other, from, "state-", path);
  assert_int_equal(iso_file_read(path, &written, &written_bytes), ISO_OK);
  assert_int_equal(streamed_bytes, written_bytes);
  assert_memory_equal(streamed, written, written_bytes);
  free(streamed);
  free(written);
  fixture_fini(&other);
}

static iso_streamer_state finish(iso_streamer *s) {
  iso_streamer_state state;
  assert_true(iso_streamer_wait(s, 60));
  iso_streamer_state_get(s, &state);
  assert_true(state.active); /* until its end was asked for */
  assert_true(iso_streamer_ended(s, &state));
  assert_false(iso_streamer_ended(s, &state));
  assert_false(state.active);
  return state;
}

/* ---- tests ---- */

static void without_an_update_nothing_is_copied(void **none) {
  (void)none;
  iso_streamer *s = open_streamer(0);
  for (int64_t step = 1; step <= 3; step++) {
    fill(step);
    assert_int_equal(iso_streamer_begin(s, &f.info, false), ISO_OK);
    assert_int_equal(iso_streamer_begin(s, &f.info, false), ISO_ERR_INTERNAL); /* one at a time */
    const iso_streamer_state state = finish(s);
    assert_int_equal(state.status, ISO_OK);
    assert_true(state.published && !state.given_up);
    assert_int_equal(state.step, step);
    assert_int_equal(state.bytes, 3 * 4 * SHORT);
    assert_int_equal(state.copied, 0);
    check_snapshot(step);
  }
  iso_streamer_close(&s);
}

/* The update comes when `written` writes are done and the next one is in flight: it waits for that one, the others are
 * copied. Writes: the header, then 15 chunks. */
static void an_update_at_any_chunk_changes_no_bit(void **whole) {
  use_state(*whole != NULL);
  iso_streamer *s = open_streamer(15 * CHUNK);
  for (int written = 0; written <= 15; written++) {
    for (int threads = 1; threads <= 3; threads++) {
      const int64_t step = 10 * written + threads;
      fill(step);
      hold(written);
      assert_int_equal(iso_streamer_begin(s, &f.info, false), ISO_OK);
      await_stop();
      pthread_t releaser;
      assert_int_equal(pthread_create(&releaser, NULL, let_go_soon, NULL), 0);
      take_update(s, threads, step + 1000);
      pthread_join(releaser, NULL);
      take_update(s, threads, step + 2000); /* further ones have nothing to do with it */
      const iso_streamer_state state = finish(s);
      assert_int_equal(state.status, ISO_OK);
      assert_int_equal(state.copied, (int64_t)(15 - written) * CHUNK); /* write 0 is the header: then none is live */
      iso_os = real;
      check_snapshot(step);
    }
  }
  iso_streamer_close(&s);
}

static void staging_too_small_is_given_up_and_said(void **none) {
  (void)none;
  iso_streamer *s = open_streamer(5 * CHUNK);
  fill(1);
  hold(3);
  assert_int_equal(iso_streamer_begin(s, &f.info, false), ISO_OK);
  await_stop();
  pthread_t releaser;
  assert_int_equal(pthread_create(&releaser, NULL, let_go_soon, NULL), 0);
  take_update(s, 2, 2);
  pthread_join(releaser, NULL);
  iso_streamer_state state = finish(s);
  assert_int_equal(state.status, ISO_STOPPED);
  assert_true(state.given_up && !state.published);
  assert_non_null(strstr(state.cause, "checkpoint.staging_mb"));
  assert_int_equal(fixture_count(&f, "snapshots"), 0);

  /* A patient one: the update waits for the writes that staging has no room for. */
  for (int slots = 0; slots <= 5; slots += 5) {
    if (slots == 0) iso_streamer_close(&s), s = open_streamer(0);
    fill(10 + slots);
    hold(3);
    assert_int_equal(iso_streamer_begin(s, &f.info, true), ISO_OK);
    await_stop();
    assert_int_equal(pthread_create(&releaser, NULL, let_go_soon, NULL), 0);
    take_update(s, 2, 1000);
    pthread_join(releaser, NULL);
    state = finish(s);
    assert_int_equal(state.status, ISO_OK);
    assert_true(state.copied <= slots * CHUNK);
    iso_os = real;
    check_snapshot(10 + slots);
    if (slots == 0) iso_streamer_close(&s), s = open_streamer(5 * CHUNK);
  }
  iso_streamer_close(&s);
}

/* A mount that hangs: the update waits for stuck_s and no longer, and what comes of the write then counts for nothing.
 */
static void storage_that_hangs_does_not_hold_the_update(void **none) {
  (void)none;
  for (int patient = 0; patient <= 1; patient++) {
    iso_streamer *s = open_with(15 * CHUNK, 0.2);
    fill(1);
    hold(2);
    assert_int_equal(iso_streamer_begin(s, &f.info, patient), ISO_OK);
    await_stop();
    const double began = iso_clock_s();
    take_update(s, 2, 2);
    assert_true(iso_clock_s() - began < 10);
    iso_streamer_state state;
    iso_streamer_state_get(s, &state);
    assert_true(state.active && state.given_up && state.idle_s >= 0.2);
    assert_string_equal(state.doing, "writing its file");
    assert_non_null(strstr(state.cause, "no progress for 0.2 s"));
    assert_false(iso_streamer_wait(s, 0.05));
    take_update(s, 2, 3);
    let_go();
    state = finish(s);
    assert_int_equal(state.status, ISO_STOPPED);
    assert_int_equal(fixture_count(&f, "snapshots"), 0);
    iso_os = real;
    fill(4);
    assert_int_equal(iso_streamer_begin(s, &f.info, patient), ISO_OK);
    assert_int_equal(finish(s).status, ISO_OK);
    check_snapshot(4);
    iso_streamer_close(&s);
    fixture_fini(&f);
    fixture_init(&f);
  }
}

/* ---- failures ---- */

static bool fails(void) {
  pthread_mutex_lock(&disk.lock);
  const bool now = disk.calls++ == disk.fail_at;
  pthread_mutex_unlock(&disk.lock);
  if (now) errno = EIO;
  return now;
}
static int fail_open(const char *path, int flags, int mode) {
  return fails() ? -1 : real.open(path, flags, mode);
}
static ssize_t fail_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  return fails() ? -1 : real.pwrite(fd, data, bytes, offset);
}
static int fail_fsync(int fd) {
  return fails() ? -1 : real.fsync(fd);
}
static int fail_fdatasync(int fd) {
  return fails() ? -1 : real.fdatasync(fd);
}
static int fail_rename(const char *from, const char *to) {
  return fails() ? -1 : real.rename_noreplace(from, to);
}
static int fail_mkdir(const char *path, int mode) {
  return fails() ? -1 : real.mkdir(path, mode);
}

static void every_failing_call_leaves_the_old_or_the_new(void **none) {
  (void)none;
  int failed = 0;
  for (int at = 0;; at++) {
    fixture_fini(&f);
    fixture_init(&f);
    fixture_write(&f, 1);
    const fixture before = f;
    iso_streamer *s = open_streamer(15 * CHUNK);
    fill(20);
    disk.calls = 0;
    disk.fail_at = at;
    iso_os.open = fail_open, iso_os.pwrite = fail_pwrite, iso_os.fsync = fail_fsync;
    iso_os.fdatasync = fail_fdatasync, iso_os.rename_noreplace = fail_rename, iso_os.mkdir = fail_mkdir;
    assert_int_equal(iso_streamer_begin(s, &f.info, false), ISO_OK);
    take_update(s, 2, 21);
    const iso_streamer_state state = finish(s);
    const bool reached = disk.calls > at;
    iso_os = real;
    failed += state.status != ISO_OK;
    if (state.published) check_snapshot(20);
    if (!state.published) assert_int_not_equal(state.status, ISO_OK);
    char folder[512];
    iso_snapshot_info info;
    bool found;
    assert_int_equal(iso_snapshot_find(f.run, 19, NULL, folder, &info, &found), ISO_OK);
    assert_true(found && info.step == 1);
    iso_snapshot_info_fini(&info);
    f = before;
    fill(30);
    assert_int_equal(iso_streamer_begin(s, &f.info, false), ISO_OK); /* and it works again */
    assert_int_equal(finish(s).status, ISO_OK);
    check_snapshot(30);
    iso_streamer_close(&s);
    if (!reached) break;
  }
  assert_true(failed > 20);
}

/* Deletes what keep_last and keep_every leave over, behind the publication. */
static void old_ones_go_behind_the_new(void **none) {
  (void)none;
  iso_streamer *s;
  const iso_streamer_options options = {
      .run = f.run, .state = &state_now, .cursors = 3, .stuck_s = 1, .keep_last = 2, .keep_every = 5};
  assert_int_equal(iso_streamer_open(&options, &s), ISO_OK);
  for (int64_t step = 1; step <= 12; step++) {
    fill(step);
    assert_int_equal(iso_streamer_begin(s, &f.info, false), ISO_OK);
    assert_int_equal(finish(s).status, ISO_OK);
  }
  iso_streamer_close(&s);
  assert_int_equal(fixture_count(&f, "snapshots"), 4); /* 5, 10, 11, 12 */
  int64_t oldest, newest;
  assert_int_equal(iso_snapshot_range(f.run, &oldest, &newest), ISO_OK);
  assert_int_equal(oldest, 5);
  assert_int_equal(newest, 12);
}

static void a_superseded_process_publishes_nothing(void **none) {
  (void)none;
  fixture_begin(&f, 1, 0);
  iso_streamer *s = open_streamer(0);
  fill(5);
  hold(4);
  assert_int_equal(iso_streamer_begin(s, &f.info, true), ISO_OK);
  await_stop();
  iso_os = real; /* this thread's writes are not held */
  fixture_begin(&f, 2, 3);
  let_go();
  const iso_streamer_state state = finish(s);
  assert_int_equal(state.status, ISO_ERR_BUSY);
  assert_false(state.published);
  assert_int_equal(fixture_count(&f, "snapshots"), 0);
  iso_streamer_close(&s);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
      TEST(without_an_update_nothing_is_copied),
      TEST(an_update_at_any_chunk_changes_no_bit),
      {"an_update_at_any_chunk_changes_no_bit, past the cache", an_update_at_any_chunk_changes_no_bit, setup_whole,
       teardown, NULL},
      TEST(staging_too_small_is_given_up_and_said),
      TEST(storage_that_hangs_does_not_hold_the_update),
      TEST(every_failing_call_leaves_the_old_or_the_new),
      TEST(old_ones_go_behind_the_new),
      TEST(a_superseded_process_publishes_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
