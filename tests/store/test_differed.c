/* SPDX-License-Identifier: Apache-2.0
 *
 * The record that the weights of ranks differed, and what must stay for it: it is published once, also on a full disk,
 * and is whole or not there whatever call its process dies at; only the newest incarnation's counts; a damaged one is
 * refused. The snapshot that leads to the step at which weights were last the same is not deleted.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "store/fixture.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static const iso_differed one = {.incarnation = 1, .step = 12, .rank = 3, .same_step = 5, .logged = true};

static fixture f;
static char uuid[37];
static iso_os_table real;
static int calls, die_at;

static int make(void **state) {
  (void)state;
  bool exists;
  fixture_init(&f);
  fixture_begin(&f, 1, 0);
  real = iso_os;
  iso_log_quiet(true);
  return iso_run_folder_read(f.run, uuid, &exists) == ISO_OK && exists ? 0 : 1;
}

static int clear(void **state) {
  (void)state;
  iso_os = real;
  iso_log_quiet(false);
  fixture_fini(&f);
  return 0;
}

static int names_with(const char *part) {
  char **names;
  size_t count;
  int with = 0;
  iso_arena *arena = iso_arena_create();
  assert_int_equal(iso_path_list(arena, f.run, &names, &count), ISO_OK);
  for (size_t i = 0; i < count; i++) with += strstr(names[i], part) != NULL;
  iso_arena_destroy(&arena);
  return with;
}

static bool is_there(const iso_differed *wanted) {
  iso_differed d;
  bool found;
  assert_int_equal(iso_differed_find(f.run, uuid, wanted->incarnation, &d, &found), ISO_OK);
  if (!found) return false;
  assert_int_equal(d.incarnation, wanted->incarnation);
  assert_int_equal(d.step, wanted->step);
  assert_int_equal(d.rank, wanted->rank);
  assert_int_equal(d.same_step, wanted->same_step);
  assert_int_equal(d.logged, wanted->logged);
  return true;
}

static void published_once(void **state) {
  (void)state;
  char reserve[ISO_SNAPSHOT_PATH], none[ISO_SNAPSHOT_PATH] = "";
  iso_differed late = one;
  late.same_step = 11;
  assert_false(is_there(&one));
  assert_int_equal(iso_differed_pending(f.run), 0);
  assert_int_equal(iso_differed_reserve(f.run, 1, reserve), ISO_OK);
  assert_int_equal(names_with(".tmp"), 1);
  assert_false(is_there(&one));
  assert_int_equal(iso_differed_write(f.run, uuid, &one, reserve), ISO_OK);
  assert_int_equal(names_with(".tmp"), 0);
  assert_true(is_there(&one));
  assert_int_equal(iso_differed_write(f.run, uuid, &late, none), ISO_OK); /* by who comes late, without a reserve */
  assert_int_equal(iso_differed_reserve(f.run, 1, reserve), ISO_OK);
  assert_int_equal(iso_differed_write(f.run, uuid, &late, reserve), ISO_OK);
  assert_true(is_there(&one));
  assert_int_equal(names_with("differed"), 1);
  assert_int_equal(names_with(".tmp"), 0);
}

/* Invariant 2 */
static void counts_for_the_newest_only(void **state) {
  (void)state;
  char none[ISO_SNAPSHOT_PATH] = "";
  assert_int_equal(iso_differed_write(f.run, uuid, &one, none), ISO_OK);
  assert_int_equal(iso_differed_pending(f.run), f.info.incarnation);
  fixture_begin(&f, 2, 5);
  assert_int_equal(iso_differed_pending(f.run), 0);
  iso_differed *list, two = {.incarnation = 2, .step = 30, .rank = 0, .same_step = 29};
  size_t count;
  iso_string faults = {0};
  iso_arena *arena = iso_arena_create();
  assert_int_equal(iso_differed_write(f.run, uuid, &two, none), ISO_OK);
  assert_int_equal(iso_differed_pending(f.run), f.info.incarnation);
  assert_true(is_there(&two));
  assert_int_equal(iso_differed_list(arena, f.run, uuid, &list, &count, &faults), ISO_OK);
  assert_int_equal(count, 2);
  assert_int_equal(list[0].same_step, 5);
  assert_int_equal(list[1].same_step, 29);
  iso_arena_destroy(&arena);
}

static int full_open(const char *path, int flags, int mode) {
  errno = ENOSPC;
  return flags & O_CREAT ? -1 : real.open(path, flags, mode);
}

/* Invariant 3 */
static void a_full_disk(void **state) {
  (void)state;
  char reserve[ISO_SNAPSHOT_PATH], none[ISO_SNAPSHOT_PATH] = "";
  assert_int_equal(iso_differed_reserve(f.run, 1, reserve), ISO_OK);
  iso_os.open = full_open;
  assert_int_equal(iso_differed_write(f.run, uuid, &one, none), ISO_ERR_SPACE);
  assert_false(is_there(&one));
  assert_int_equal(iso_differed_write(f.run, uuid, &one, reserve), ISO_OK);
  assert_true(is_there(&one));
  assert_int_equal(iso_differed_reserve(f.run, 1, reserve), ISO_ERR_SPACE);
  assert_int_equal(reserve[0], 0);
}

static void count_call(void) {
  if (++calls == die_at) _exit(9);
}
static int counted_open(const char *path, int flags, int mode) {
  count_call();
  return real.open(path, flags, mode);
}
static ssize_t counted_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  count_call();
  return real.pwrite(fd, data, bytes / 2 + 1, offset); /* parts of it */
}
static int counted_ftruncate(int fd, int64_t bytes) {
  count_call();
  return real.ftruncate(fd, bytes);
}
static int counted_fsync(int fd) {
  count_call();
  return real.fsync(fd);
}
static int counted_rename(const char *from, const char *to) {
  count_call();
  return real.rename_noreplace(from, to);
}
static int counted_unlink(const char *path) {
  count_call();
  return real.unlink(path);
}

static bool die_in_write(bool reserved) {
  char reserve[ISO_SNAPSHOT_PATH] = "";
  if (reserved) assert_int_equal(iso_differed_reserve(f.run, 1, reserve), ISO_OK);
  fflush(NULL);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    iso_os.open = counted_open;
    iso_os.pwrite = counted_pwrite;
    iso_os.ftruncate = counted_ftruncate;
    iso_os.fsync = iso_os.fdatasync = counted_fsync;
    iso_os.rename_noreplace = counted_rename;
    iso_os.unlink = counted_unlink;
    _exit(iso_differed_write(f.run, uuid, &one, reserve) == ISO_OK ? 0 : 1);
  }
  int ended;
  assert_int_equal(waitpid(child, &ended, 0), child);
  assert_true(WIFEXITED(ended) && (WEXITSTATUS(ended) == 0 || WEXITSTATUS(ended) == 9));
  return WEXITSTATUS(ended) == 9;
}

static void killed_at_every_call(void **state) {
  (void)state;
  char path[300], none[ISO_SNAPSHOT_PATH] = "";
  snprintf(path, sizeof path, "%s/differed-0001.json", f.run);
  for (int reserved = 0; reserved < 2; reserved++) {
    int without = 0;
    bool died = true;
    for (die_at = 1; died; die_at++) {
      died = die_in_write(reserved);
      without += !is_there(&one);
      assert_true(died || is_there(&one));
      iso_run_folder_sweep(f.run);
      assert_int_equal(names_with(".tmp"), 0);
      assert_int_equal(iso_differed_write(f.run, uuid, &one, none), ISO_OK); /* the next rank of the host */
      assert_true(is_there(&one));
      assert_int_equal(unlink(path), 0);
    }
    assert_true(without > 3);
    assert_true(die_at > without + 2);
  }
}

/* Invariant 4 */
static void every_bit_counts(void **state) {
  (void)state;
  char path[300], none[ISO_SNAPSHOT_PATH] = "", other[37];
  char *data;
  size_t bytes;
  iso_differed d;
  bool found;
  snprintf(path, sizeof path, "%s/differed-0001.json", f.run);
  assert_int_equal(iso_differed_write(f.run, uuid, &one, none), ISO_OK);
  assert_int_equal(iso_file_read(path, &data, &bytes), ISO_OK);
  for (size_t bit = 0; bit < 8 * bytes; bit++) {
    data[bit / 8] ^= (char)(1 << bit % 8);
    assert_int_equal(iso_file_replace(path, data, bytes), ISO_OK);
    data[bit / 8] ^= (char)(1 << bit % 8);
    if (iso_differed_find(f.run, uuid, 1, &d, &found) != ISO_ERR_FORMAT) fail_msg("bit %zu is not missed", bit);
    assert_false(found);
  }
  assert_non_null(strstr(iso_last_error(), "differed-0001.json: "));
  assert_non_null(strstr(iso_last_error(), "--from-step S"));
  for (size_t cut = 0; cut < bytes; cut += 7) {
    assert_int_equal(iso_file_replace(path, data, cut), ISO_OK);
    assert_int_equal(iso_differed_find(f.run, uuid, 1, &d, &found), ISO_ERR_FORMAT);
  }
  free(data);
  assert_int_equal(unlink(path), 0);
  snprintf(other, sizeof other, "%s", uuid);
  other[0] = other[0] == 'a' ? 'b' : 'a';
  assert_int_equal(iso_differed_write(f.run, other, &one, none), ISO_OK); /* another run's */
  assert_int_equal(iso_differed_find(f.run, uuid, 1, &d, &found), ISO_OK);
  assert_false(found);
}

static void pruning_keeps_what_is_needed(void **state) {
  (void)state;
  char path[512];
  for (int step = 10; step <= 80; step += 10) fixture_write(&f, step);
  assert_int_equal(iso_snapshot_prune_but(f.run, 1, 2, 0, 45), ISO_OK);
  assert_int_equal(fixture_count(&f, "snapshots"), 3); /* 80 70 40 */
  assert_int_equal(fixture_find(&f, 45), 40);
  assert_int_equal(iso_snapshot_prune_but(f.run, 1, 2, 0, 40), ISO_OK);
  assert_int_equal(fixture_find(&f, 45), 40);
  assert_int_equal(iso_snapshot_prune_but(f.run, 1, 2, 0, 75), ISO_OK); /* among the last ones */
  assert_int_equal(fixture_count(&f, "snapshots"), 2);
  assert_int_equal(iso_snapshot_prune_but(f.run, 1, 1, 0, -1), ISO_OK);
  assert_int_equal(fixture_count(&f, "snapshots"), 1);

  /* the one that is needed is damaged: it stays, and so does the one before */
  for (int step = 90; step <= 120; step += 10) fixture_write(&f, step);
  fixture_path(&f, "snapshots/step-00000100-0001", "state-", path);
  assert_int_equal(truncate(path, 4000), 0);
  assert_int_equal(iso_snapshot_prune_but(f.run, 1, 1, 0, 105), ISO_OK);
  assert_int_equal(fixture_count(&f, "snapshots"), 3); /* 120, 100, 90 */
  assert_int_equal(fixture_find(&f, 105), 90);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(published_once, make, clear),
      cmocka_unit_test_setup_teardown(counts_for_the_newest_only, make, clear),
      cmocka_unit_test_setup_teardown(a_full_disk, make, clear),
      cmocka_unit_test_setup_teardown(killed_at_every_call, make, clear),
      cmocka_unit_test_setup_teardown(every_bit_counts, make, clear),
      cmocka_unit_test_setup_teardown(pruning_keeps_what_is_needed, make, clear),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
