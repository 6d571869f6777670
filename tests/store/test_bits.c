/* SPDX-License-Identifier: Apache-2.0
 *
 * Damage to what a run's recovery reads, bit by bit: a segment of the step log, run.json and incarnations; every
 * length; files that are missing, doubled, swapped or foreign. Nothing may go unseen: a step that counts has the bits
 * that were handed over, and one that is gone is a fault, or, if nobody was told that it is durable, a torn end that is
 * said. (The same for snapshots: test_snapshot.c.)
 *
 * Bytes that are padding are damaged at one bit in 37; ISO_BITS=all damages all bits of all bytes.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/fixture.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { ELEMENTS = 64, CURSORS = 2, STEPS = 3, STEP_BLOCKS = 4 /* a head and a block of gradient and of commit */ };

static char uuid[37];

typedef struct bits {
  fixture f;
  char path[512], *bytes; /* of the log's first segment */
  size_t length;
} bits;

static iso_wal_record record_of(int64_t step, iso_cursor cursors[CURSORS]) {
  for (int i = 0; i < CURSORS; i++) cursors[i] = (iso_cursor){step, i, 3 * step};
  return (iso_wal_record){.step = step,
                          .adam_step = step,
                          .tokens = 10 * step,
                          .scored = 10,
                          .norm = 1.5,
                          .loss_sum = 2.5,
                          .lr = 1e-3f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .clip = 1,
                          .bias1 = 0.1f,
                          .bias2 = 0.05f,
                          .cursors = cursors,
                          .cursor_count = CURSORS};
}

static void fill_gradient(int64_t step, iso_bf16 *reduced) {
  for (int i = 0; i < ELEMENTS; i++)
    reduced[i] = iso_bf16_from_f32((float)iso_rng_normal(7, ISO_RNG_TEST, (uint64_t)step, (uint64_t)i));
}

static void write_log(const fixture *f, int incarnation, int64_t first, int64_t last) {
  const iso_wal_options options = {.run = f->run,
                                   .uuid = uuid,
                                   .incarnation = incarnation,
                                   .elements = ELEMENTS,
                                   .gradient = ISO_BF16,
                                   .optimizer_version = 1,
                                   .segment_bytes = 1 << 30,
                                   .cursors = CURSORS};
  iso_wal *log;
  void *reduced;
  assert_int_equal(posix_memalign(&reduced, ISO_WAL_BLOCK, ISO_WAL_BLOCK), 0);
  memset(reduced, 0, ISO_WAL_BLOCK);
  assert_int_equal(iso_wal_open(&options, first, &log), ISO_OK);
  for (int64_t step = first; step <= last; step++) {
    iso_cursor cursors[CURSORS];
    const iso_wal_record record = record_of(step, cursors);
    fill_gradient(step, reduced);
    assert_int_equal(iso_wal_append(log, &record, reduced), ISO_OK);
    assert_true(iso_wal_release(log, reduced, 30));
  }
  iso_wal_flush(log);
  iso_wal_close(&log);
  free(reduced);
}

static int setup(void **state) {
  bits *b = calloc(1, sizeof *b);
  bool exists;
  iso_log_quiet(true);
  fixture_init(&b->f);
  assert_int_equal(iso_run_folder_read(b->f.run, uuid, &exists), ISO_OK);
  fixture_begin(&b->f, 1, 0);
  write_log(&b->f, 1, 1, STEPS);
  fixture_path(&b->f, "log", "0001-", b->path);
  assert_int_equal(iso_file_read(b->path, &b->bytes, &b->length), ISO_OK);
  *state = b;
  return 0;
}

static int teardown(void **state) {
  bits *b = *state;
  fixture_fini(&b->f);
  free(b->bytes);
  free(b);
  return 0;
}

/* ---- what recovery makes of the log ---- */

typedef struct outcome {
  int64_t reached;        /* last of the steps from 1 on that can be read */
  int64_t newest_durable; /* by the commits, or as told */
  bool faults, torn;      /* something is said */
} outcome;

/* A step that reads well has exactly the bits that were handed over. */
static bool step_is_right(const iso_wal_index *index, const iso_wal_step *s, iso_string *faults) {
  iso_bf16 want[ELEMENTS], *have;
  iso_wal_record record;
  iso_cursor *cursors = NULL, expected_cursors[CURSORS];
  void *memory;
  assert_int_equal(posix_memalign(&memory, ISO_WAL_BLOCK, ISO_WAL_BLOCK), 0);
  have = memory;
  const iso_status status = iso_wal_step_read(index, s, have, &record, &cursors, faults);
  if (status == ISO_OK) {
    const iso_wal_record expected = record_of(s->step, expected_cursors);
    fill_gradient(s->step, want);
    assert_memory_equal(have, want, sizeof want);
    assert_int_equal(record.cursor_count, CURSORS);
    assert_memory_equal(cursors, expected_cursors, sizeof expected_cursors);
    assert_true(record.adam_step == expected.adam_step && record.tokens == expected.tokens && record.lr == expected.lr);
    assert_true(record.bias1 == expected.bias1 && record.clip == expected.clip && record.beta1 == expected.beta1);
  } else {
    assert_int_equal(status, ISO_ERR_FORMAT);
    assert_true(faults->length > 0);
  }
  free(cursors);
  free(memory);
  return status == ISO_OK;
}

/* As a start does it: the heads, then each step in turn; as verify does it with `deep`. */
static outcome recover(const bits *b, int64_t acknowledged, bool deep) {
  iso_wal_index index;
  iso_string faults = {0};
  outcome o = {0};
  assert_int_equal(iso_wal_index_read(b->f.run, uuid, deep, acknowledged, &index, &faults), ISO_OK);
  const iso_wal_step *s;
  while ((s = iso_wal_index_find(&index, o.reached + 1)) && step_is_right(&index, s, &faults)) o.reached++;
  if (deep) assert_true(s == NULL); /* all that it lists can be read */
  o.newest_durable = index.newest_durable;
  o.faults = faults.length > 0;
  o.torn = index.torn.length > 0;
  iso_wal_index_fini(&index);
  iso_string_fini(&faults);
  return o;
}

static void put(const char *path, const char *bytes, size_t length) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, bytes, length), length);
  assert_int_equal(close(fd), 0);
}

static void flip(const char *path, const char *bytes, size_t at, int bit, bool back) {
  const char altered = back ? bytes[at] : (char)(bytes[at] ^ 1 << bit);
  const int fd = open(path, O_WRONLY);
  assert_int_equal(pwrite(fd, &altered, 1, (off_t)at), 1);
  assert_int_equal(close(fd), 0);
}

static void every_bit_of_a_segment_is_seen(void **state) {
  bits *b = *state;
  const bool all = getenv("ISO_BITS") && strcmp(getenv("ISO_BITS"), "all") == 0;
  assert_int_equal(b->length, ISO_WAL_BLOCK * (1 + STEP_BLOCKS * STEPS));
  int64_t flips = 0;
  for (size_t at = 0; at < b->length; at++) {
    const bool content = at % ISO_WAL_BLOCK < 2 * ELEMENTS + 32;
    if (!all && !content && at % 37) continue;
    for (int bit = 0; bit < 8; bit++) {
      if (!all && !content && bit != (int)(at / 37 % 8)) continue;
      flip(b->path, b->bytes, at, bit, false);
      const int64_t hit = at < ISO_WAL_BLOCK ? 1 : 1 + (int64_t)((at / ISO_WAL_BLOCK - 1) / STEP_BLOCKS);
      for (int deep = 0; deep < 2; deep++) {
        const outcome o = recover(b, STEPS, deep); /* the newest step was acknowledged */
        if (o.reached >= hit || !o.faults) fail_msg("bit %d of byte %zu: unseen (step %lld)", bit, at, (long long)hit);
      }
      flip(b->path, b->bytes, at, 0, true);
      flips++;
    }
  }
  assert_int_equal(recover(b, STEPS, true).reached, STEPS);
  print_message("%lld bits of %zu\n", (long long)flips, 8 * b->length);
}

/* An end that was acknowledged is lost: a fault, or fewer steps than are known to have been durable. Else it is said.
 */
static void every_length_is_seen(void **state) {
  bits *b = *state;
  const bool all = getenv("ISO_BITS") && strcmp(getenv("ISO_BITS"), "all") == 0;
  const size_t step = STEP_BLOCKS * ISO_WAL_BLOCK;
  for (size_t length = b->length; length-- > 0;) {
    if (!all && length % 61 && length % ISO_WAL_BLOCK > 1 && length % ISO_WAL_BLOCK < ISO_WAL_BLOCK - 1) continue;
    assert_int_equal(truncate(b->path, (off_t)length), 0);
    const int64_t whole = length < ISO_WAL_BLOCK ? 0 : (int64_t)((length - ISO_WAL_BLOCK) / step);
    const bool between = length == ISO_WAL_BLOCK + (size_t)whole * step;
    const outcome told = recover(b, STEPS, true), untold = recover(b, 0, true);
    assert_int_equal(told.reached, whole);
    assert_int_equal(untold.reached, whole);
    assert_true(told.newest_durable == STEPS); /* so a start that reaches less refuses to go on in silence */
    if (!between && length >= ISO_WAL_BLOCK) assert_true(told.faults);
    if (!between) assert_true(untold.torn || untold.faults);
    if (between) assert_false(untold.faults); /* nobody was told of more */
  }
}

/* A kill that tears a step while a snapshot of a later one is published: nothing is lost, and it is said. */
static void a_torn_end_that_a_snapshot_bridges_is_no_damage(void **state) {
  bits *b = *state;
  const size_t step = STEP_BLOCKS * ISO_WAL_BLOCK;
  assert_int_equal(truncate(b->path, (off_t)(b->length - step / 2)), 0); /* in step 3 */
  assert_true(recover(b, STEPS + 1, true).faults);
  fixture_write(&b->f, STEPS);
  assert_true(recover(b, STEPS + 1, true).faults); /* step 4 was durable, and this is of 3 */
  fixture_write(&b->f, STEPS + 1);
  outcome o = recover(b, STEPS + 1, true);
  assert_true(!o.faults && o.torn && o.reached == 2);
  /* the next start goes on behind it */
  fixture_begin(&b->f, 2, STEPS + 1);
  write_log(&b->f, 2, STEPS + 2, STEPS + 3);
  o = recover(b, STEPS + 3, true);
  assert_true(!o.faults && o.torn && o.reached == 2);
  flip(b->path, b->bytes, ISO_WAL_BLOCK + step + 3, 5, false); /* damage is damage */
  assert_true(recover(b, STEPS + 3, true).faults);
  flip(b->path, b->bytes, ISO_WAL_BLOCK + step + 3, 5, true);
  /* within an incarnation no step is torn: what a failed write leaves is cut off */
  put(b->path, b->bytes, b->length - step / 2);
  char other[512];
  snprintf(other, sizeof other, "%s/log/0001-00000-000001.log", b->f.run);
  iso_wal_segment head = {.incarnation = 1,
                          .number = 1,
                          .elements = ELEMENTS,
                          .first_step = STEPS + 1,
                          .gradient = ISO_BF16,
                          .optimizer_version = 1};
  snprintf(head.uuid, sizeof head.uuid, "%s", uuid);
  char block[ISO_WAL_BLOCK] = {0};
  iso_wal_segment_encode(&head, block);
  put(other, block, sizeof block);
  assert_true(recover(b, STEPS + 3, true).faults);
}

static void files_that_do_not_belong_are_seen(void **state) {
  bits *b = *state;
  char other[512], name[64];
  /* another number, incarnation, shard */
  static const char *const places[] = {"0001-00000-000001.log", "0002-00000-000000.log", "0001-00001-000000.log"};
  fixture_begin(&b->f, 2, STEPS);
  for (size_t i = 0; i < ISO_COUNT(places); i++) {
    snprintf(other, sizeof other, "%s/log/%s", b->f.run, places[i]);
    put(other, b->bytes, b->length); /* doubled */
    outcome o = recover(b, STEPS, true);
    assert_true(o.faults && o.reached == STEPS);
    assert_int_equal(unlink(b->path), 0); /* renamed */
    o = recover(b, STEPS, true);
    assert_true(o.faults && o.reached == 0);
    put(b->path, b->bytes, b->length);
    assert_int_equal(unlink(other), 0);
  }
  /* two segments that took each other's places */
  write_log(&b->f, 2, STEPS + 1, STEPS + 2);
  snprintf(name, sizeof name, "0002-00000-000000.log");
  snprintf(other, sizeof other, "%s/log/%s", b->f.run, name);
  assert_int_equal(recover(b, STEPS + 2, true).reached, STEPS + 2);
  char *second;
  size_t second_length;
  assert_int_equal(iso_file_read(other, &second, &second_length), ISO_OK);
  put(b->path, second, second_length);
  put(other, b->bytes, b->length);
  outcome o = recover(b, STEPS + 2, true);
  assert_true(o.faults && o.reached == 0);
  /* the newest one missing; frames of one in the other */
  put(b->path, b->bytes, b->length);
  assert_int_equal(unlink(other), 0);
  o = recover(b, STEPS + 2, true);
  assert_true(o.reached == STEPS && o.newest_durable == STEPS + 2);
  memcpy(second + ISO_WAL_BLOCK, b->bytes + ISO_WAL_BLOCK, STEP_BLOCKS * ISO_WAL_BLOCK);
  put(other, second, second_length);
  o = recover(b, STEPS + 2, true);
  assert_true(o.faults && o.reached == STEPS);
  free(second);
  /* a frame doubled, left out, or swapped with another within its segment */
  const size_t step = STEP_BLOCKS * ISO_WAL_BLOCK;
  assert_int_equal(unlink(other), 0);
  char *mixed = malloc(b->length + step);
  for (int how = 0; how < 3; how++) {
    const size_t second_step = ISO_WAL_BLOCK + step, third = second_step + step;
    memcpy(mixed, b->bytes, b->length);
    if (how == 0) memcpy(mixed + third, b->bytes + second_step, step);
    if (how == 1) memcpy(mixed + second_step, b->bytes + third, step);
    if (how == 2)
      memcpy(mixed + second_step, b->bytes + third, step), memcpy(mixed + third, b->bytes + second_step, step);
    put(b->path, mixed, how == 1 ? b->length - step : b->length);
    o = recover(b, STEPS, true);
    assert_true(o.faults && o.reached == (how == 0 ? 2 : 1));
  }
  free(mixed);
  /* another run's */
  put(b->path, b->bytes, b->length);
  char own[37];
  memcpy(own, uuid, sizeof own);
  uuid[3] = uuid[3] == 'a' ? 'b' : 'a';
  o = recover(b, STEPS, true);
  assert_true(o.faults && o.reached == 0);
  memcpy(uuid, own, sizeof own);
}

static iso_status read_identity(const bits *b) {
  char said[37];
  bool exists;
  const iso_status status = iso_run_folder_read(b->f.run, said, &exists);
  if (status == ISO_OK && exists) assert_string_equal(said, uuid);
  return status != ISO_OK ? status : exists ? ISO_OK : ISO_ERR_NOT_FOUND;
}

static iso_status read_incarnations(const bits *b) {
  iso_incarnation *list;
  size_t count;
  iso_arena *arena = iso_arena_create();
  const iso_status status = iso_incarnation_list(arena, b->f.run, &list, &count);
  iso_arena_destroy(&arena);
  return status;
}

/* Records verify themselves: every bit, and every length. */
static void every_bit_of_a_record_is_seen(void **state) {
  bits *b = *state;
  const struct {
    const char *name;
    iso_status (*read)(const bits *);
  } rows[] = {{"run.json", read_identity}, {"incarnations/0001.json", read_incarnations}};
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    char path[512], *bytes;
    size_t length;
    snprintf(path, sizeof path, "%s/%s", b->f.run, rows[i].name);
    assert_int_equal(iso_file_read(path, &bytes, &length), ISO_OK);
    for (size_t at = 0; at < length; at++) {
      for (int bit = 0; bit < 8; bit++) {
        flip(path, bytes, at, bit, false);
        if (rows[i].read(b) == ISO_OK) fail_msg("%s: bit %d of byte %zu: unseen", rows[i].name, bit, at);
        flip(path, bytes, at, 0, true);
      }
    }
    for (size_t cut = length; cut-- > 0;) {
      assert_int_equal(truncate(path, (off_t)cut), 0);
      if (rows[i].read(b) == ISO_OK) fail_msg("%s: cut to %zu bytes: unseen", rows[i].name, cut);
    }
    put(path, bytes, length);
    assert_int_equal(rows[i].read(b), ISO_OK);
    free(bytes);
  }
}

int main(void) {
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
  const struct CMUnitTest tests[] = {
      EACH(every_bit_of_a_segment_is_seen),
      EACH(every_length_is_seen),
      EACH(a_torn_end_that_a_snapshot_bridges_is_no_damage),
      EACH(files_that_do_not_belong_are_seen),
      EACH(every_bit_of_a_record_is_seen),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
