/* SPDX-License-Identifier: Apache-2.0
 *
 * The step log over storage that takes several writes at once, in any order, that fails for a while or for good, and
 * that does not answer.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/wal_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

static iso_os_table real;

/* ---- a ring that is simulated: writes reach the file in any order, when they are reaped ---- */

typedef struct pending {
  bool used;
  int fd, tag;
  const struct iovec *parts;
  int count;
  int64_t offset;
} pending;

static struct {
  pending slots[ISO_WRITES_DEPTH];
  int count, most;
  uint64_t draws;
  int calls, fail_at; /* of the begins and reaps */
  bool order_broken, sync_early, refuse_begins;
} ring;

static void *sim_open(int depth) {
  memset(&ring.slots, 0, sizeof ring.slots);
  ring.count = 0;
  return depth == ISO_WRITES_DEPTH ? &ring : NULL;
}

static int sim_begin(void *handle, int fd, const struct iovec *parts, int count, int64_t offset, int tag) {
  const char *data = parts[0].iov_base;
  uint32_t kind;
  memcpy(&kind, data + 8, 4);
  if (memcmp(data, "ISOFRAM", 8) == 0 && kind == ISO_WAL_COMMIT && ring.count > 0) ring.order_broken = true;
  if (ring.refuse_begins) {
    errno = EBUSY;
    return -1;
  }
  for (int i = 0; i < ISO_WRITES_DEPTH; i++) {
    if (ring.slots[i].used) continue;
    ring.slots[i] = (pending){true, fd, tag, parts, count, offset};
    if (++ring.count > ring.most) ring.most = ring.count;
    return 0;
  }
  errno = EBUSY;
  return -1;
}

static int sim_reap(void *handle, int *tag, ssize_t *result) {
  uint32_t draw[4];
  assert_true(ring.count > 0);
  iso_rng(3, ISO_RNG_TEST, ring.draws++, 0, draw);
  int i = (int)(draw[0] % ISO_WRITES_DEPTH);
  while (!ring.slots[i].used) i = (i + 1) % ISO_WRITES_DEPTH;
  pending *p = &ring.slots[i];
  p->used = false;
  ring.count--;
  *tag = p->tag;
  if (ring.calls++ == ring.fail_at) {
    *result = -EIO;
  } else if (draw[1] % 8 == 0) {
    *result = draw[1] % 16 == 0 ? -EINTR : -EAGAIN;
  } else { /* short now and then */
    const bool cut = draw[1] % 8 == 1;
    *result = 0;
    for (int k = 0; k < (cut ? 1 : p->count); k++) {
      const size_t bytes = cut ? ISO_WAL_BLOCK : p->parts[k].iov_len;
      assert_int_equal(real.pwrite(p->fd, p->parts[k].iov_base, bytes, p->offset + *result), bytes);
      *result += (ssize_t)bytes;
    }
  }
  return 0;
}

static void sim_close(void *handle) {
  assert_int_equal(ring.count, 0);
}

static int sim_fdatasync(int fd) {
  if (ring.count > 0) ring.sync_early = true;
  return 0;
}

static void simulate(int fail_at) {
  real = iso_os;
  memset(&ring, 0, sizeof ring);
  ring.fail_at = fail_at;
  iso_os.writes_open = sim_open, iso_os.writes_begin = sim_begin;
  iso_os.writes_reap = sim_reap, iso_os.writes_close = sim_close;
  iso_os.fdatasync = sim_fdatasync;
}

static iso_wal *open_several(const fixture *f, int incarnation, bool packed) {
  iso_wal_options options = options_of(f, incarnation, ISO_BF16);
  options.several = ISO_WAL_ON;
  options.packed = packed ? ISO_WAL_ON : ISO_WAL_OFF;
  options.disk = true;
  return open_with(&options, 1);
}

static void test_writes_in_any_order(void **state) {
  fixture *f = *state;
  for (int packed = 0; packed < 2; packed++) {
    fixture_begin(f, 2 + packed, 0);
    simulate(-1);
    iso_wal *log = open_several(f, 2 + packed, packed);
    append_steps(log, ISO_BF16, 1, STEPS);
    iso_wal_state s;
    iso_wal_state_get(log, &s);
    iso_wal_close(&log);
    iso_os = real;
    assert_true(s.several);
    assert_int_equal(s.durable, STEPS);
    assert_true(ring.most > 1);
    assert_false(ring.order_broken); /* a commit is begun when all before it is there */
    assert_false(ring.sync_early);
    assert_steps(f, ISO_BF16, 1, STEPS);
  }
}

static void test_one_failed_completion_loses_nothing(void **state) {
  fixture *f = *state;
  int incarnation = 1, fail_at = 0;
  for (;; fail_at++) {
    fixture_begin(f, ++incarnation, 0);
    simulate(fail_at);
    iso_wal *log = open_several(f, incarnation, fail_at % 2);
    append_steps(log, ISO_BF16, 1, STEPS);
    iso_wal_state s;
    iso_wal_state_get(log, &s);
    iso_wal_close(&log);
    iso_os = real;
    assert_int_equal(s.durable, STEPS);
    assert_false(s.suspended || ring.order_broken || ring.sync_early);
    iso_wal_index index;
    iso_string faults = {0};
    read_index(f, true, &index, &faults);
    for (int64_t step = 1; step <= STEPS; step++) check_step(&index, iso_wal_index_find(&index, step), ISO_BF16);
    iso_wal_index_fini(&index);
    iso_string_fini(&faults);
    if (ring.calls <= fail_at) break;
  }
  assert_true(fail_at >= 2 * STEPS); /* payload and commit of each, once each at least */
}

/* A ring that takes nothing any more: the rest goes one after the other. */
static void test_a_ring_that_refuses(void **state) {
  fixture *f = *state;
  simulate(-1);
  ring.refuse_begins = true;
  iso_wal *log = open_several(f, 1, false);
  append_steps(log, ISO_BF16, 1, STEPS);
  iso_wal_state s;
  iso_wal_state_get(log, &s);
  iso_wal_close(&log);
  iso_os = real;
  assert_int_equal(s.durable, STEPS);
  assert_int_equal(ring.most, 0);
  assert_steps(f, ISO_BF16, 1, STEPS);
}

static ssize_t other_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  return real.pwrite(fd, data, bytes, offset);
}

static void test_the_kernels_ring(void **state) {
  fixture *f = *state;
  real = iso_os;
  iso_writes *writes;
  iso_os.pwrite = other_pwrite; /* never bypassed */
  assert_int_equal(iso_writes_open(true, 4096, &writes), ISO_OK);
  assert_false(iso_writes_use(writes, true));
  iso_writes_close(&writes);
  iso_os = real;
  iso_wal *log = open_several(f, 1, false); /* by io_uring, where there is one */
  append_steps(log, ISO_BF16, 1, STEPS);
  iso_wal_close(&log);
  assert_steps(f, ISO_BF16, 1, STEPS);
}

/* ---- storage that fails ---- */

static atomic_int failing; /* writes that fail yet; negative: all */
static atomic_int failure;

static ssize_t failing_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  const int left = atomic_load(&failing);
  if (left == 0) return real.pwrite(fd, data, bytes, offset);
  if (left > 0) atomic_fetch_sub(&failing, 1);
  errno = atomic_load(&failure);
  return -1;
}

static iso_wal *open_patient(const fixture *f, int incarnation) {
  iso_wal_options options = options_of(f, incarnation, ISO_BF16);
  options.patient = true;
  options.max_wait_s = 0.2;
  return open_with(&options, 1);
}

static void test_patience_ends_with_the_failure(void **state) {
  fixture *f = *state;
  const int causes[] = {EIO, ENOSPC};
  for (int i = 0; i < 2; i++) {
    fixture_begin(f, 2 + i, 0);
    real = iso_os;
    atomic_store(&failing, 5);
    atomic_store(&failure, causes[i]);
    iso_os.pwrite = failing_pwrite;
    iso_wal *log = open_patient(f, 2 + i);
    append_steps(log, ISO_BF16, 1, STEPS);
    iso_wal_state s;
    iso_wal_state_get(log, &s);
    iso_wal_close(&log);
    iso_os = real;
    assert_int_equal(atomic_load(&failing), 0);
    assert_false(s.suspended || s.failing || s.gap);
    assert_int_equal(s.durable, STEPS);
    assert_steps(f, ISO_BF16, 1, STEPS);
    assert_int_equal(fixture_count(f, "log"), 1 + i); /* what failed left no files behind */
  }
}

static void test_patience_can_be_given_up(void **state) {
  fixture *f = *state;
  for (int how = 0; how < 2; how++) {
    fixture_begin(f, 2 + how, 0);
    real = iso_os;
    atomic_store(&failing, -1);
    atomic_store(&failure, ENOSPC);
    iso_os.pwrite = failing_pwrite;
    iso_wal *log = open_patient(f, 2 + how);
    iso_cursor cursors[CURSORS];
    const iso_wal_record record = record_of(1, cursors);
    void *gradient = gradient_of(1, ISO_BF16);
    assert_int_equal(iso_wal_append(log, &record, gradient), ISO_OK);
    assert_false(iso_wal_release(log, gradient, 0.3));
    iso_wal_state s;
    iso_wal_state_get(log, &s);
    assert_true(s.failing && !s.suspended && s.hangs_s < 5);
    if (how == 0) iso_wal_suspend(log, "the caller gives up");
    if (how == 0) assert_true(iso_wal_flush_for(log, 20));
    const double began = iso_clock_s();
    iso_wal_close(&log);
    assert_true(iso_clock_s() - began < 15);
    iso_os = real;
    free(gradient);
  }
}

/* ---- storage that does not answer ---- */

static pthread_mutex_t hang_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hang_changed = PTHREAD_COND_INITIALIZER;
static bool hanging;

static void hang(bool on) {
  pthread_mutex_lock(&hang_lock);
  hanging = on;
  pthread_cond_broadcast(&hang_changed);
  pthread_mutex_unlock(&hang_lock);
}

static ssize_t hanging_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  pthread_mutex_lock(&hang_lock);
  while (hanging) pthread_cond_wait(&hang_changed, &hang_lock);
  pthread_mutex_unlock(&hang_lock);
  return real.pwrite(fd, data, bytes, offset);
}

static void append_one(iso_wal *log, int64_t step, void *gradient) {
  iso_cursor cursors[CURSORS];
  const iso_wal_record record = record_of(step, cursors);
  assert_int_equal(iso_wal_append(log, &record, gradient), ISO_OK);
}

static void test_a_hanging_write_is_slow_storage(void **state) {
  fixture *f = *state;
  real = iso_os;
  iso_os.pwrite = hanging_pwrite;
  iso_wal_options options = options_of(f, 1, ISO_BF16);
  options.max_wait_s = 0.2;
  iso_wal *log = open_with(&options, 1);
  append_steps(log, ISO_BF16, 1, 1);
  hang(true);
  void *one = gradient_of(2, ISO_BF16), *other = gradient_of(3, ISO_BF16);
  append_one(log, 2, one);
  append_one(log, 3, other);
  assert_false(iso_wal_release(log, one, 0.2));
  iso_wal_state s;
  iso_wal_state_get(log, &s);
  assert_true(s.hangs_s > 0.1 && !s.suspended);
  assert_int_equal(s.durable, 1);
  iso_wal_suspend(log, "storage is too slow");
  assert_false(iso_wal_flush_for(log, 0.1)); /* it reads `one` yet */
  assert_true(iso_wal_release(log, other, 0));
  for (int64_t step = 4; step < 8; step++) { /* the run goes on with the other buffer, and waits for nothing */
    const double began = iso_clock_s();
    append_one(log, step, other);
    assert_true(iso_wal_release(log, other, 0));
    assert_true(iso_clock_s() - began < 5);
  }
  hang(false);
  assert_true(iso_wal_flush_for(log, 30));
  iso_wal_restart(log, 8); /* a snapshot of step 7 begins */
  free(other);
  other = gradient_of(8, ISO_BF16);
  append_one(log, 8, other);
  assert_true(iso_wal_flush_for(log, 30));
  iso_wal_covered(log, 7);
  iso_wal_state_get(log, &s);
  assert_int_equal(s.durable, 8);
  assert_false(s.gap);
  iso_wal_close(&log);
  iso_os = real;
  free(one);
  free(other);
}

int main(void) {
  iso_log_quiet(true);
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
  const struct CMUnitTest tests[] = {
      EACH(test_writes_in_any_order),
      EACH(test_one_failed_completion_loses_nothing),
      EACH(test_a_ring_that_refuses),
      EACH(test_the_kernels_ring),
      EACH(test_patience_ends_with_the_failure),
      EACH(test_patience_can_be_given_up),
      EACH(test_a_hanging_write_is_slow_storage),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
