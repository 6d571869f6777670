/* SPDX-License-Identifier: Apache-2.0
 *
 * A run with snapshots and a step log, and a place for its copy: for the tests of targets and mirrors.
 */
#ifndef ISO_TESTS_STORE_MIRROR_FIXTURE_H
#define ISO_TESTS_STORE_MIRROR_FIXTURE_H

#include "store/fixture.h"

#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 9, ELEMENTS = 3000 };

typedef struct place {
  fixture f;
  char uuid[37], mirror[200];
  iso_target *target;
  iso_target_lock *lock; /* a first target; NULL: a mirror */
  iso_mirror_shared shared;
} place;

static inline void put_text(const place *p, const char *name, const char *text) {
  char path[300];
  snprintf(path, sizeof path, "%s/%s", p->f.run, name);
  assert_int_equal(iso_file_replace(path, text, strlen(text)), ISO_OK);
}

/* Steps first to last of the incarnation, in segments of so many bytes. */
static inline void log_segments(place *p, int64_t first, int64_t last, int64_t segment_bytes) {
  static _Alignas(4096) uint16_t reduced[ISO_WAL_DEPTH][4096];
  iso_wal_options options = {.run = p->f.run,
                             .uuid = p->uuid,
                             .incarnation = p->f.info.incarnation,
                             .elements = ELEMENTS,
                             .gradient = ISO_BF16,
                             .optimizer_version = 1,
                             .segment_bytes = segment_bytes,
                             .cursors = 3};
  iso_wal *log;
  assert_int_equal(iso_wal_open(&options, first, &log), ISO_OK);
  for (int64_t step = first; step <= last; step++) {
    uint16_t *to = reduced[step % ISO_WAL_DEPTH];
    assert_true(iso_wal_release(log, to, 10));
    for (int i = 0; i < ELEMENTS; i++) to[i] = (uint16_t)(step * 31 + i);
    iso_wal_record record = {.step = step, .adam_step = step, .cursors = p->f.cursors, .cursor_count = 3};
    assert_int_equal(iso_wal_append(log, &record, to), ISO_OK);
  }
  iso_wal_flush(log);
  iso_wal_close(&log);
  p->shared.durable = last;
}

static inline void log_steps(place *p, int64_t first, int64_t last) {
  log_segments(p, first, last, 1 << 20);
}

enum { THREE_STEPS = 60000 /* bytes of them */ };
/* Nine steps, and snapshots of the third and the sixth. */
static inline place *place_make(int64_t segment_bytes) {
  place *p = calloc(1, sizeof *p);
  bool exists;
  iso_log_quiet(true);
  fixture_init(&p->f);
  snprintf(p->mirror, sizeof p->mirror, "%s/mirror", p->f.parent);
  assert_int_equal(iso_run_folder_read(p->f.run, p->uuid, &exists), ISO_OK);
  put_text(p, "config.yaml", "a");
  put_text(p, "model.json", "b");
  put_text(p, "inputs.json", "c");
  fixture_begin(&p->f, 1, 0);
  log_segments(p, 1, STEPS, segment_bytes);
  fixture_write(&p->f, 3);
  fixture_write(&p->f, 6);
  return p;
}

static inline void place_destroy(place *p) {
  iso_target_lock_release(&p->lock);
  iso_target_close(&p->target);
  fixture_fini(&p->f);
  free(p);
}

static inline int setup(void **state) {
  place *p = place_make(1 << 20);
  assert_int_equal(iso_target_open(p->mirror, &p->target), ISO_OK);
  *state = p;
  return 0;
}

static inline int teardown(void **state) {
  place_destroy(*state);
  return 0;
}

static inline iso_status one_pass(place *p, iso_target *target, int incarnation, bool last) {
  iso_mirror_work *work;
  assert_int_equal(iso_mirror_work_create(p->f.run, p->uuid, incarnation, target, p->lock, &p->shared, &work), ISO_OK);
  const iso_status status = iso_mirror_pass(work, last);
  iso_mirror_work_destroy(&work);
  return status;
}

static inline iso_status pass(place *p, iso_target *target, int incarnation) {
  return one_pass(p, target, incarnation, true);
}

static inline iso_status verify(place *p) {
  FILE *out = fopen("/dev/null", "w");
  const iso_status status = iso_mirror_verify(p->f.run, p->target, out);
  fclose(out);
  return status;
}

/* The newest step that the folder leads to. */
static inline int64_t reach_of(const char *run, const char *uuid) {
  iso_reach reach;
  int64_t last = 0;
  assert_int_equal(iso_reach_read(run, uuid, true, &reach), ISO_OK);
  if (reach.count) last = reach.ranges[reach.count - 1].last;
  iso_reach_fini(&reach);
  return last;
}

static inline int64_t restored_reach(place *p) {
  char again[200], uuid[37];
  iso_restore_report report;
  int64_t last = -1;
  snprintf(again, sizeof again, "%s/again", p->f.parent);
  assert_int_equal(iso_path_make(again), ISO_OK);
  assert_int_equal(iso_mirror_restore(again, p->target, false, &report), ISO_OK);
  if (report.holds) {
    assert_true(report.whole);
    assert_int_equal(iso_run_folder_open(again, uuid), ISO_OK);
    assert_string_equal(uuid, p->uuid);
    last = reach_of(again, uuid);
  }
  iso_string_fini(&report.text);
  scratch_remove(again);
  return last;
}

static inline void own(place *p) {
  p->target->first = true;
  assert_int_equal(iso_target_lock_acquire(p->target, false, &p->lock), ISO_OK);
}

static inline bool is_there(place *p, const char *name) {
  iso_arena *arena = iso_arena_create();
  iso_target_entry *entries;
  size_t count;
  assert_int_equal(p->target->ops->list(p->target, arena, name, &entries, &count), ISO_OK);
  iso_arena_destroy(&arena);
  return count > 0;
}

#endif
