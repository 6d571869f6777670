/* SPDX-License-Identifier: Apache-2.0
 *
 * A mirror in a folder: killed between any two operations it holds a state of the run, and the next pass completes it;
 * what comes back from it is what was there; who is superseded is told.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/mirror_fixture.h"

/* ---- a target that dies after so many operations ---- */

static iso_target *inner;
static iso_target_ops dying_ops;
static int left; /* operations until the kill */

static bool dies(void) {
  return left-- <= 0;
}

static iso_status dying_put(iso_target *t, const char *name, const void *data, size_t bytes, bool *taken) {
  return dies() ? ISO_STOPPED : inner->ops->put(inner, name, data, bytes, taken);
}

static iso_status dying_begin(iso_target *t, const char *name, int64_t offset, int64_t bytes, iso_target_writer **out) {
  return dies() ? ISO_STOPPED : inner->ops->begin(inner, name, offset, bytes, out);
}

static iso_status dying_write(iso_target_writer *w, const void *data, size_t bytes) {
  if (left-- > 0) return inner->ops->write(w, data, bytes);
  if (inner->ops->write(w, data, bytes / 2) != ISO_OK) return ISO_ERR_IO; /* half of it got there */
  return ISO_STOPPED;
}

static iso_status dying_finish(iso_target_writer **w) {
  if (left-- > 0) return inner->ops->finish(w);
  inner->ops->cancel(w);
  return ISO_STOPPED;
}

static iso_status dying_remove(iso_target *t, const char *name) {
  return dies() ? ISO_STOPPED : inner->ops->remove(inner, name);
}

static iso_status dying_list(iso_target *t, iso_arena *arena, const char *prefix, iso_target_entry **entries,
                             size_t *count) {
  return inner->ops->list(inner, arena, prefix, entries, count);
}

static iso_status dying_get(iso_target *t, const char *name, char **data, size_t *bytes) {
  return inner->ops->get(inner, name, data, bytes);
}

static iso_status dying_sweep(iso_target *t) {
  return inner->ops->sweep(inner);
}

static iso_status dying_stream(iso_target *t, const char *name, iso_status (*take)(void *, const void *, size_t),
                               void *context) {
  return inner->ops->stream(inner, name, take, context);
}

static iso_target dying_target(iso_target *of) {
  inner = of;
  dying_ops = *of->ops;
  dying_ops.put = dying_put;
  dying_ops.begin = dying_begin;
  dying_ops.write = dying_write;
  dying_ops.finish = dying_finish;
  dying_ops.remove = dying_remove;
  dying_ops.list = dying_list;
  dying_ops.get = dying_get;
  dying_ops.sweep = dying_sweep;
  dying_ops.stream = dying_stream;
  iso_target dying = *of;
  dying.ops = &dying_ops;
  return dying;
}

/* ---- tests ---- */

static void test_complete(void **state) {
  place *p = *state;
  assert_int_equal(verify(p), ISO_ERR_CHECK);
  assert_int_equal(pass(p, p->target, 1), ISO_OK);
  assert_int_equal(p->shared.mirrored, STEPS);
  assert_int_equal(verify(p), ISO_OK);
  assert_int_equal(restored_reach(p), STEPS);
  const int64_t things = p->shared.things;
  assert_int_equal(pass(p, p->target, 1), ISO_OK); /* only small files again */
  assert_true(p->shared.things - things < 12);
}

/* Steps that are not called durable are not copied. */
static void test_durable_only(void **state) {
  place *p = *state;
  p->shared.durable = 7;
  assert_int_equal(pass(p, p->target, 1), ISO_OK);
  assert_int_equal(p->shared.mirrored, 7);
  assert_int_equal(restored_reach(p), 7);
}

/* Passes killed one operation later each time, until one comes to its end: what the mirror leads to goes from `before`
 * to `last` and never back. */
static void pass_killed_anywhere(place *p, int incarnation, int64_t before, int64_t last) {
  bool ended = false;
  for (int kill_at = 0; !ended && kill_at < 300; kill_at++) {
    iso_target dying = dying_target(p->target);
    left = kill_at;
    ended = pass(p, &dying, incarnation) == ISO_OK;
    const int64_t now = restored_reach(p);
    assert_true(now >= before);
    assert_true(now >= p->shared.mirrored || p->shared.mirrored == 0); /* which is not said too early */
    before = now;
  }
  assert_true(ended);
  assert_int_equal(before, last);
}

static void test_first_target_killed_anywhere(void **state) {
  place *p = *state;
  own(p);
  pass_killed_anywhere(p, 1, -1, STEPS);
  assert_int_equal(verify(p), ISO_OK);
}

/* Far behind: the newest snapshot goes first, then the log behind it; what is older when there is time. */
static void test_first_target_leaps(void **state) {
  place *p = *state;
  own(p);
  fixture_begin(&p->f, 2, STEPS);
  log_steps(p, STEPS + 1, STEPS + 4);
  fixture_write(&p->f, STEPS + 2);
  p->shared.behind = true;
  assert_int_equal(one_pass(p, p->target, 2, false), ISO_OK);
  assert_int_equal(p->shared.mirrored, STEPS + 4);
  assert_int_equal(restored_reach(p), STEPS + 4);
  assert_true(is_there(p, "log/0002-"));
  assert_false(is_there(p, "log/0001-"));
  p->shared.behind = false;
  assert_int_equal(pass(p, p->target, 2), ISO_OK);
  assert_true(is_there(p, "log/0001-"));
  assert_int_equal(verify(p), ISO_OK);
}

/* A first target never holds a step that it does not lead to; it has steps before the folder calls them durable. */
static void test_first_target_without_gaps(void **state) {
  place *p = *state;
  own(p);
  fixture_begin(&p->f, 2, STEPS);
  log_steps(p, STEPS + 4, STEPS + 6); /* a gap, which no snapshot covers yet */
  p->shared.durable = STEPS + 4;
  assert_int_equal(pass(p, p->target, 2), ISO_OK);
  assert_int_equal(p->shared.mirrored, STEPS);
  assert_false(is_there(p, "log/0002-"));
  fixture_write(&p->f, STEPS + 3);
  assert_int_equal(pass(p, p->target, 2), ISO_OK);
  assert_int_equal(p->shared.mirrored, STEPS + 6);
  assert_int_equal(restored_reach(p), STEPS + 6);
}

/* Invariant of the pass: killed between any two operations, over two generations of snapshots, the mirror leads to a
 * step that it led to before or to a later one, and the next pass completes it. */
static void test_killed_anywhere(void **state) {
  place *p = *state;
  pass_killed_anywhere(p, 1, -1, STEPS);
  assert_int_equal(verify(p), ISO_OK);
  /* More steps, a newer snapshot, and what is old goes. */
  fixture_begin(&p->f, 2, STEPS);
  log_steps(p, STEPS + 1, STEPS + 4);
  fixture_write(&p->f, STEPS + 2);
  fixture_write(&p->f, STEPS + 3);
  assert_int_equal(iso_snapshot_prune(p->f.run, 2, 2, 0), ISO_OK);
  assert_int_equal(iso_wal_prune(p->f.run, STEPS + 2), ISO_OK);
  pass_killed_anywhere(p, 2, STEPS, STEPS + 4);
  assert_int_equal(verify(p), ISO_OK);
  iso_arena *arena = iso_arena_create();
  iso_target_entry *entries;
  size_t count;
  assert_int_equal(p->target->ops->list(p->target, arena, "", &entries, &count), ISO_OK);
  for (size_t i = 0; i < count; i++) { /* as here */
    char path[400];
    snprintf(path, sizeof path, "%s/%s", p->f.run, entries[i].name);
    assert_true(iso_path_exists(path));
  }
  iso_arena_destroy(&arena);
}

/* A restore that is killed goes on at the next start. */
static void test_restore_killed(void **state) {
  place *p = *state;
  char again[200], uuid[37];
  bool exists;
  assert_int_equal(pass(p, p->target, 1), ISO_OK);
  snprintf(again, sizeof again, "%s/again", p->f.parent);
  assert_int_equal(iso_path_make(again), ISO_OK);
  iso_restore_report report;
  assert_int_equal(iso_mirror_restore(again, p->target, false, &report), ISO_OK);
  iso_string_fini(&report.text);
  char path[300];
  snprintf(path, sizeof path, "%s/run.json", again);
  assert_int_equal(unlink(path), 0); /* comes last */
  snprintf(path, sizeof path, "%s/log/0001-00000-000000.log", again);
  assert_int_equal(truncate(path, 5000), 0);
  assert_int_equal(iso_mirror_restore(again, p->target, false, &report), ISO_OK);
  assert_true(report.whole);
  iso_string_fini(&report.text);
  assert_int_equal(iso_run_folder_read(again, uuid, &exists), ISO_OK);
  assert_true(exists);
  assert_int_equal(reach_of(again, uuid), STEPS);
}

/* Where the commit of the step stands in its segment. */
static int64_t commit_of(const place *p, int64_t step) {
  iso_wal_index index;
  iso_string faults = {0};
  assert_int_equal(iso_wal_index_read(p->f.run, p->uuid, false, 0, &index, &faults), ISO_OK);
  const int64_t commit = iso_wal_index_find(&index, step)->commit;
  iso_wal_index_fini(&index);
  iso_string_fini(&faults);
  return commit;
}

/* The folder's log has that many steps, and every byte of them is as it was written. */
static void assert_log_is_whole(const place *p, int64_t steps) {
  iso_wal_index index;
  iso_string faults = {0};
  assert_int_equal(iso_wal_index_read(p->f.run, p->uuid, true, 0, &index, &faults), ISO_OK);
  assert_int_equal(faults.length, 0);
  assert_int_equal(index.step_count, steps);
  iso_wal_index_fini(&index);
  iso_string_fini(&faults);
}

/* Every byte counts: a repair finds a flipped one and keeps the steps that only the folder has. */
static void test_repair(void **state) {
  place *p = *state;
  char path[300];
  p->shared.durable = 7;
  assert_int_equal(pass(p, p->target, 1), ISO_OK);
  snprintf(path, sizeof path, "%s/log/0001-00000-000000.log", p->f.run);
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  fseek(file, 4096 + 4096 + 100, SEEK_SET); /* the first step's gradient */
  fputc(0xEE, file);
  fclose(file);
  assert_int_equal(verify(p), ISO_ERR_CHECK);
  iso_restore_report report;
  assert_int_equal(iso_mirror_repair(p->f.run, p->target, &report), ISO_OK);
  assert_int_equal(report.files, 1);
  assert_non_null(strstr(report.text.data, "log/0001-00000-000000.log: altered; set aside as aside/"));
  iso_string_fini(&report.text);
  assert_log_is_whole(p, STEPS);
}

/* A power cut leaves a segment of its full length with a hole in it: a start brings back what the mirror has, and keeps
 * the steps that only the folder has. */
static void test_hole(void **state) {
  place *p = *state;
  static const char zeros[512];
  char path[300];
  p->shared.durable = 8;
  assert_int_equal(pass(p, p->target, 1), ISO_OK);
  snprintf(path, sizeof path, "%s/log/0001-00000-000000.log", p->f.run);
  const int64_t commit = commit_of(p, 7);
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  fseek(file, commit - 8192, SEEK_SET); /* the gradient before it */
  assert_int_equal(fwrite(zeros, sizeof zeros, 1, file), 1);
  fclose(file);
  iso_restore_report report;
  assert_int_equal(iso_mirror_restore(p->f.run, p->target, false, &report), ISO_OK);
  assert_int_equal(report.files, 1);
  assert_non_null(strstr(report.text.data, "log/0001-00000-000000.log: altered; set aside as aside/"));
  iso_string_fini(&report.text);
  assert_log_is_whole(p, STEPS);
}

static void zero_block(const char *root, int64_t offset) {
  static const char zeros[ISO_WAL_BLOCK];
  char path[300];
  snprintf(path, sizeof path, "%s/log/0001-00000-000000.log", root);
  FILE *file = fopen(path, "r+b");
  assert_non_null(file);
  fseek(file, offset, SEEK_SET);
  assert_int_equal(fwrite(zeros, sizeof zeros, 1, file), 1);
  fclose(file);
}

/* One power cut tears both places: of each step the one that has it gives it. */
static void test_both_torn(void **state) {
  place *p = *state;
  iso_restore_report report;
  assert_int_equal(pass(p, p->target, 1), ISO_OK);
  const int64_t seventh = commit_of(p, 7), eighth = commit_of(p, 8);
  zero_block(p->f.run, seventh - 8192);
  zero_block(p->mirror, eighth - 8192);
  zero_block(p->mirror, eighth); /* and the head of the frame behind it */
  assert_int_equal(iso_mirror_restore(p->f.run, p->target, false, &report), ISO_OK);
  assert_int_equal(report.files, 1);
  iso_string_fini(&report.text);
  assert_log_is_whole(p, STEPS);
  /* what does not even begin as a segment takes no segment's place */
  zero_block(p->mirror, 0);
  zero_block(p->f.run, eighth - 8192);
  assert_int_equal(iso_mirror_restore(p->f.run, p->target, false, &report), ISO_OK);
  assert_int_equal(report.files, 0);
  assert_non_null(strstr(report.text.data, "altered, but so is the mirror's, from its first block on: it stays"));
  iso_string_fini(&report.text);
}

/* A power cut takes the name of a segment, and leaves that of a later one: it was not pruned. */
static void test_first_name(void **state) {
  place *p = *state;
  char path[300];
  log_steps(p, STEPS + 1, STEPS + 3);
  assert_int_equal(pass(p, p->target, 1), ISO_OK);
  assert_int_equal(p->shared.mirrored, STEPS + 3);
  snprintf(path, sizeof path, "%s/log/0001-00000-000000.log", p->f.run);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(reach_of(p->f.run, p->uuid), 6); /* the newest snapshot */
  iso_restore_report report;
  assert_int_equal(iso_mirror_restore(p->f.run, p->target, false, &report), ISO_OK);
  assert_int_equal(report.files, 1);
  iso_string_fini(&report.text);
  assert_int_equal(reach_of(p->f.run, p->uuid), STEPS + 3);
  /* now all are behind a snapshot: the first one was pruned */
  fixture_write(&p->f, STEPS);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(iso_mirror_restore(p->f.run, p->target, false, &report), ISO_OK);
  assert_int_equal(report.files, 0);
  iso_string_fini(&report.text);
  /* but that snapshot may be what is damaged */
  assert_int_equal(iso_mirror_repair(p->f.run, p->target, &report), ISO_OK);
  assert_int_equal(report.files, 1);
  iso_string_fini(&report.text);
  assert_true(iso_path_exists(path));
}

/* A power cut leaves the newest snapshot's manifest without its data: the log is needed from the one before on, and
 * that may be damaged here. */
static void test_manifest_alone(void **state) {
  place *p = *state;
  char path[512], folder[64];
  log_steps(p, STEPS + 1, STEPS + 3);
  assert_int_equal(pass(p, p->target, 1), ISO_OK);
  fixture_write(&p->f, STEPS + 3); /* behind the mirror's back */
  snprintf(folder, sizeof folder, "snapshots/step-%08d-0001", STEPS + 3);
  fixture_path(&p->f, folder, "state-", path);
  assert_int_equal(truncate(path, 4096), 0);
  zero_block(p->f.run, commit_of(p, 8) - 8192);
  iso_restore_report report;
  assert_int_equal(iso_mirror_restore(p->f.run, p->target, false, &report), ISO_OK);
  assert_int_equal(report.files, 1);
  assert_non_null(strstr(report.text.data, "log/0001-00000-000000.log: altered; set aside as aside/"));
  iso_string_fini(&report.text);
  assert_log_is_whole(p, STEPS + 3);
}

/* What is damaged here is not copied over what is whole there. */
static void test_damage_stays_here(void **state) {
  place *p = *state;
  char path[512];
  fixture_path(&p->f, "snapshots/step-00000006-0001", "state-", path);
  FILE *file = fopen(path, "r+b");
  fseek(file, 4200, SEEK_SET);
  fputc(0xEE, file);
  fclose(file);
  assert_int_equal(pass(p, p->target, 1), ISO_OK);
  snprintf(path, sizeof path, "%s/snapshots/step-00000006-0001/manifest.json", p->mirror);
  assert_false(iso_path_exists(path));
  snprintf(path, sizeof path, "%s/snapshots/step-00000003-0001/manifest.json", p->mirror);
  assert_true(iso_path_exists(path));
  assert_int_equal(p->shared.mirrored, STEPS); /* the log leads there all the same */
}

static void test_two_hosts(void **state) {
  place *p = *state;
  iso_restore_report report;
  place other = {.mirror = ""};
  assert_int_equal(pass(p, p->target, 1), ISO_OK);
  other.f = p->f;
  snprintf(other.f.run, sizeof other.f.run, "%.120s/other", p->f.parent);
  assert_int_equal(iso_path_make(other.f.run), ISO_OK);
  assert_int_equal(iso_mirror_restore(other.f.run, p->target, false, &report), ISO_OK);
  iso_string_fini(&report.text);
  memcpy(other.uuid, p->uuid, sizeof other.uuid);
  fixture_begin(&p->f, 2, STEPS);
  fixture_begin(&other.f, 2, STEPS); /* the same record but for its attempt */
  assert_int_equal(pass(&other, p->target, 2), ISO_OK);
  assert_int_equal(pass(p, p->target, 2), ISO_ERR_BUSY);
  assert_non_null(strstr(iso_last_error(), "incarnation 2 was begun from mirror"));
  assert_int_equal(pass(p, p->target, 1), ISO_ERR_BUSY);
  assert_int_equal(iso_mirror_restore(p->f.run, p->target, false, &report), ISO_ERR_BUSY);
  iso_string_fini(&report.text);
  fixture_begin(&other.f, 3, STEPS);
  assert_int_equal(pass(&other, p->target, 3), ISO_OK);
  assert_int_equal(iso_mirror_restore(p->f.run, p->target, true, &report), ISO_OK); /* takes over */
  iso_string_fini(&report.text);
  iso_incarnation newest;
  assert_int_equal(iso_incarnation_newest(p->f.run, &newest), ISO_OK);
  assert_int_equal(newest.number, 3);
}

static void test_another_run(void **state) {
  place *p = *state;
  iso_restore_report report;
  fixture other;
  assert_int_equal(pass(p, p->target, 1), ISO_OK);
  fixture_init(&other);
  assert_int_equal(iso_mirror_restore(other.run, p->target, false, &report), ISO_ERR_MISMATCH);
  iso_string_fini(&report.text);
  fixture_fini(&other);
}

/* The thread: copies what it is told of, and closing waits for it. */
static void test_thread(void **state) {
  place *p = *state;
  iso_mirror *mirror;
  iso_mirror_state now;
  iso_mirror_note note;
  iso_target *target;
  bool there;
  assert_int_equal(iso_target_open(p->mirror, &target), ISO_OK);
  assert_int_equal(iso_mirror_open(p->f.run, p->uuid, 1, 5, target, NULL, NULL, &mirror), ISO_OK);
  for (int64_t step = 6; step <= STEPS; step++) iso_mirror_tell(mirror, step);
  iso_mirror_state_get(mirror, &now);
  assert_false(now.outage);
  iso_mirror_close(&mirror, 60, 60, INT64_MAX, &(iso_mirror_state){0});
  assert_null(mirror);
  assert_int_equal(verify(p), ISO_OK);
  assert_int_equal(iso_mirror_note_read(p->f.run, "mirror", &note, &there), ISO_OK);
  assert_true(there);
  assert_int_equal(note.step, STEPS);
  assert_string_equal(note.cause, "");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_complete, setup, teardown),
      cmocka_unit_test_setup_teardown(test_durable_only, setup, teardown),
      cmocka_unit_test_setup_teardown(test_killed_anywhere, setup, teardown),
      cmocka_unit_test_setup_teardown(test_first_target_killed_anywhere, setup, teardown),
      cmocka_unit_test_setup_teardown(test_first_target_leaps, setup, teardown),
      cmocka_unit_test_setup_teardown(test_first_target_without_gaps, setup, teardown),
      cmocka_unit_test_setup_teardown(test_restore_killed, setup, teardown),
      cmocka_unit_test_setup_teardown(test_repair, setup, teardown),
      cmocka_unit_test_setup_teardown(test_hole, setup, teardown),
      cmocka_unit_test_setup_teardown(test_both_torn, setup, teardown),
      cmocka_unit_test_setup_teardown(test_first_name, setup, teardown),
      cmocka_unit_test_setup_teardown(test_manifest_alone, setup, teardown),
      cmocka_unit_test_setup_teardown(test_damage_stays_here, setup, teardown),
      cmocka_unit_test_setup_teardown(test_two_hosts, setup, teardown),
      cmocka_unit_test_setup_teardown(test_another_run, setup, teardown),
      cmocka_unit_test_setup_teardown(test_thread, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
