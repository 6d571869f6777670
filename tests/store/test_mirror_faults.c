/* SPDX-License-Identifier: Apache-2.0
 *
 * A copy that is called complete is complete, and a step that is called durable is there: whichever answer is lost,
 * however long the process was stopped at whichever request, and whatever a power cut took of an append.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/mirror_fixture.h"

#include <sys/syscall.h>
#include <time.h>

/* ---- a clock that goes on while the process is stopped ---- */

static atomic_int stopped_s;

int clock_gettime(clockid_t clock, struct timespec *now) { /* in the place of the C library's */
  const long result = syscall(SYS_clock_gettime, clock, now);
  if (result == 0 && clock == CLOCK_BOOTTIME) now->tv_sec += stopped_s;
  return (int)result;
}

/* ---- a target that is meddled with ---- */

enum { REQUEST_S = 25 /* longer than an owner is sure of itself, and a sign of life is due */ };
static iso_target inner;
static struct {
  int calls;         /* so far */
  int lost;          /* the call whose answer is lost, from 0; -1: none */
  int slow, slow_by; /* the process is stopped for REQUEST_S at so many calls from this one on */
} plan;

static bool is_lost(void) {
  const int call = plan.calls++;
  if (call >= plan.slow && call < plan.slow + plan.slow_by) stopped_s += REQUEST_S;
  return call == plan.lost;
}

static iso_status answer(bool lost, iso_status status) {
  return lost && status == ISO_OK ? iso_fail(ISO_ERR_IO, "the answer was lost") : status;
}

static iso_status meddled_put(iso_target *t, const char *name, const void *data, size_t bytes, bool *taken) {
  const bool lost = is_lost();
  return answer(lost, inner.ops->put(&inner, name, data, bytes, taken));
}

static iso_status meddled_begin(iso_target *t, const char *name, int64_t offset, int64_t bytes,
                                iso_target_writer **out) {
  const bool lost = is_lost();
  const iso_status status = answer(lost, inner.ops->begin(&inner, name, offset, bytes, out));
  if (lost) inner.ops->cancel(out);
  return status;
}

static iso_status meddled_write(iso_target_writer *w, const void *data, size_t bytes) {
  const bool lost = is_lost();
  return answer(lost, inner.ops->write(w, data, bytes));
}

static iso_status meddled_finish(iso_target_writer **w) {
  const bool lost = is_lost();
  return answer(lost, inner.ops->finish(w));
}

static iso_status meddled_remove(iso_target *t, const char *name) {
  const bool lost = is_lost();
  return answer(lost, inner.ops->remove(&inner, name));
}

static iso_status meddled_list(iso_target *t, iso_arena *arena, const char *prefix, iso_target_entry **entries,
                               size_t *count) {
  const bool lost = is_lost();
  return answer(lost, inner.ops->list(&inner, arena, prefix, entries, count));
}

static iso_status meddled_get(iso_target *t, const char *name, char **data, size_t *bytes) {
  const bool lost = is_lost();
  const iso_status status = answer(lost, inner.ops->get(&inner, name, data, bytes));
  if (lost) free(*data);
  if (lost) *data = NULL;
  return status;
}

static void meddle(place *p) {
  static iso_target_ops meddled;
  inner = *p->target;
  meddled = *inner.ops;
  meddled.put = meddled_put;
  meddled.begin = meddled_begin;
  meddled.write = meddled_write;
  meddled.finish = meddled_finish;
  meddled.remove = meddled_remove;
  meddled.list = meddled_list;
  meddled.get = meddled_get;
  p->target->ops = &meddled;
}

/* ---- a pass that says that it is complete ---- */

static void open_place(place *p, bool first) {
  iso_target_lock_release(&p->lock);
  iso_target_close(&p->target);
  scratch_remove(p->mirror);
  p->shared.mirrored = 0;
  plan.calls = 0;
  plan.lost = plan.slow = -1;
  plan.slow_by = 0;
  assert_int_equal(iso_target_open(p->mirror, &p->target), ISO_OK);
  if (first) own(p);
  meddle(p);
}

/* Passes of one process until one says that all is there; what is said before is there, too. */
static void complete(place *p, int64_t last) {
  iso_mirror_work *work;
  iso_status status = ISO_ERR_IO;
  assert_int_equal(iso_mirror_work_create(p->f.run, p->uuid, 1, p->target, p->lock, &p->shared, &work), ISO_OK);
  for (int tries = 0; tries < 4 && status != ISO_OK; tries++) {
    const iso_target_ops *meddled = p->target->ops;
    status = iso_mirror_pass(work, true);
    p->target->ops = inner.ops;
    assert_true(p->shared.mirrored == 0 || restored_reach(p) >= p->shared.mirrored);
    if (status == ISO_OK) {
      assert_int_equal(p->shared.mirrored, last);
      assert_int_equal(verify(p), ISO_OK);
    }
    p->target->ops = meddled;
  }
  assert_int_equal(status, ISO_OK);
  iso_mirror_work_destroy(&work);
}

/* `first`: of a target, else of a mirror. Each call of a pass in turn; returns how many there are. */
static int at_each_call(bool first, bool loses, int slow_by) {
  place *p = place_make(THREE_STEPS);
  int at = -1;
  fixture_write(&p->f, STEPS);
  do {
    open_place(p, first);
    plan.slow = ++at;
    plan.lost = loses ? at : -1;
    plan.slow_by = slow_by;
    complete(p, STEPS);
  } while (plan.calls > at);
  place_destroy(p);
  return at;
}

static void test_any_answer_is_lost(void **state) {
  assert_true(at_each_call(false, true, 0) > 40);
  assert_true(at_each_call(true, true, 0) > 30);
}

/* Nobody took over meanwhile. The segments of the log must go there all the same, also when the newest snapshot alone
 * already leads to the last step. */
static void test_stopped_at_any_request(void **state) {
  for (int requests = 1; requests <= 4; requests++) at_each_call(true, false, requests);
  at_each_call(true, true, 2);
}

/* Far behind at the end of the run: the newest snapshot goes first, but the rest is not left out. */
static void test_the_last_pass_puts_nothing_off(void **state) {
  place *p = place_make(THREE_STEPS);
  fixture_write(&p->f, STEPS);
  open_place(p, true);
  p->shared.behind = true;
  complete(p, STEPS);
  place_destroy(p);
}

/* ---- an append that was killed before its sync, and then a power cut where the target is ---- */

static void zero_tail(const place *p, const char *name, long bytes) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", p->mirror, name);
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  fseek(file, -bytes, SEEK_END);
  while (bytes-- > 0) fputc(0, file);
  fclose(file);
}

static void test_unsynced_end_is_not_taken_for_there(void **state) {
  for (int first = 0; first < 2; first++) {
    place *p = place_make(THREE_STEPS);
    open_place(p, first);
    complete(p, STEPS);
    zero_tail(p, "log/0001-00000-000002.log", 3 * 4096);
    assert_int_equal(verify(p), ISO_ERR_CHECK);
    p->shared.mirrored = 0;
    complete(p, STEPS);
    place_destroy(p);
  }
}

static int folder_syncs;
static int count_sync(int fd) {
  struct stat info;
  if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) folder_syncs++;
  return 0;
}

/* Names that are there already when a process begins: who made them may have been killed before it synced them. */
static void test_listed_names_are_synced(void **state) {
  place *p = place_make(THREE_STEPS);
  open_place(p, false);
  complete(p, STEPS);
  folder_syncs = 0;
  assert_int_equal(p->target->ops->sweep(p->target), ISO_OK);
  assert_int_equal(folder_syncs, 6); /* itself, incarnations, log, snapshots and two of those */
  place_destroy(p);
}

/* Power is cut by the test itself, so the disk need not be waited for. */
static int setup_group(void **state) {
  iso_os.fsync = iso_os.fdatasync = count_sync;
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_any_answer_is_lost),
      cmocka_unit_test(test_stopped_at_any_request),
      cmocka_unit_test(test_the_last_pass_puts_nothing_off),
      cmocka_unit_test(test_unsynced_end_is_not_taken_for_there),
      cmocka_unit_test(test_listed_names_are_synced),
  };
  return cmocka_run_group_tests(tests, setup_group, NULL);
}
