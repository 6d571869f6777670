/* SPDX-License-Identifier: Apache-2.0
 *
 * Who owns a target: one process, until it lets go, is gone, or was silent while another one took over.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/store.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64];

static iso_target *open_target(void) {
  iso_target *target;
  assert_int_equal(iso_target_open(root, &target), ISO_OK);
  return target;
}

static int setup(void **state) {
  iso_log_quiet(true);
  snprintf(root, sizeof root, "/tmp/isotach-owner.XXXXXX");
  return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf %s", root);
  return system(command);
}

static size_t numbers(iso_target *target, char last[64]) {
  iso_arena *arena = iso_arena_create();
  iso_target_entry *entries;
  size_t count;
  assert_int_equal(target->ops->list(target, arena, "owner/", &entries, &count), ISO_OK);
  snprintf(last, 64, "%s", count ? entries[count - 1].name : "");
  iso_arena_destroy(&arena);
  return count;
}

static void test_one_owns_it_until_it_lets_go(void **state) {
  iso_target *target = open_target();
  iso_target_lock *first, *second;
  char pid[32], last[64];
  assert_int_equal(iso_target_lock_acquire(target, false, &first), ISO_OK);
  assert_true(iso_target_lock_holds(first));
  assert_int_equal(iso_target_lock_beat(first), ISO_OK);
  assert_int_equal(iso_target_lock_acquire(target, false, &second), ISO_ERR_BUSY);
  assert_null(second);
  snprintf(pid, sizeof pid, "held by process %d on ", (int)getpid());
  assert_non_null(strstr(iso_last_error(), pid));
  assert_non_null(strstr(iso_last_error(), "--take-over"));
  iso_target_lock_release(&first);
  assert_null(first);
  assert_int_equal(iso_target_lock_acquire(target, false, &second), ISO_OK);
  assert_int_equal(numbers(target, last), 1);
  assert_string_equal(last, "owner/000000000003"); /* never a number of before */
  iso_target_lock_release(&second);
  iso_target_lock_release(&second);
  iso_target_close(&target);
}

static void test_who_is_gone_is_replaced_at_once(void **state) {
  iso_target *target = open_target();
  iso_target_lock *lock;
  const pid_t child = fork();
  if (child == 0) _exit(iso_target_lock_acquire(target, false, &lock) == ISO_OK ? 0 : 1);
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  assert_int_equal(iso_target_lock_acquire(target, false, &lock), ISO_OK);
  iso_target_lock_release(&lock);
  iso_target_close(&target);
}

/* It slept so long that its next number is free again. */
static void test_who_was_replaced_finds_out(void **state) {
  iso_target *target = open_target();
  iso_target_lock *lock;
  char last[64];
  bool taken;
  assert_int_equal(iso_target_lock_acquire(target, false, &lock), ISO_OK);
  assert_int_equal(target->ops->put(target, "owner/000000000009", "there 7 boot 5 x\n", 17, &taken), ISO_OK);
  assert_int_equal(target->ops->remove(target, "owner/000000000001"), ISO_OK);
  assert_int_equal(iso_target_lock_beat(lock), ISO_OK); /* none is due */
  sleep(6);
  assert_int_equal(iso_target_lock_beat(lock), ISO_ERR_BUSY);
  assert_non_null(strstr(iso_last_error(), "was taken over by process 7 on host there"));
  assert_false(iso_target_lock_holds(lock));
  assert_int_equal(iso_target_lock_beat(lock), ISO_ERR_BUSY);
  iso_target_lock_release(&lock);
  assert_int_equal(numbers(target, last), 1);
  assert_string_equal(last, "owner/000000000009");
  iso_target_close(&target);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_one_owns_it_until_it_lets_go, setup, teardown),
      cmocka_unit_test_setup_teardown(test_who_is_gone_is_replaced_at_once, setup, teardown),
      cmocka_unit_test_setup_teardown(test_who_was_replaced_finds_out, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
