/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading ahead of the lanes, and reading on demand: the same batches, bounded memory, errors at the step that needs
 * the bytes. Slow storage is a pread that sleeps.
 */
#include "datapath/recording.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>

static iso_os_table real_os;
static _Atomic int reads, fail_from, fail_count; /* reads numbered from 1: these fail */
static _Atomic int latency_us;

static ssize_t slow_pread(int fd, void *data, size_t bytes, int64_t offset) {
  usleep((useconds_t)atomic_load(&latency_us));
  const int number = atomic_fetch_add(&reads, 1) + 1, from = atomic_load(&fail_from);
  if (number >= from && number < from + atomic_load(&fail_count)) return errno = EIO, -1;
  return real_os.pread(fd, data, bytes, offset);
}

static void slow_down(int microseconds, int from, int count) {
  real_os = iso_os;
  atomic_store(&reads, 0);
  atomic_store(&latency_us, microseconds);
  atomic_store(&fail_from, from);
  atomic_store(&fail_count, count);
  iso_os.pread = slow_pread;
}

static void test_reading_ahead_changes_nothing(void **state) {
  (void)state;
  iso_source_options sources[3];
  iso_data_options options = three_sources(sources);
  options.batch = 4;
  options.block_bytes = 2000;
  iso_corpus *corpus = open_corpus(&options);
  recording whole = record(corpus, &options, 0, 120, NULL);
  static const struct {
    int prefetch, threads, slots;
    bool on_demand;
  } rows[] = {{1, 1, 2, false}, {3, 2, 4, false}, {16, 4, 3, false}, {0, 1, 4, true}, {8, 3, 2, true}};
  for (size_t r = 0; r < ISO_COUNT(rows); r++) {
    options.prefetch = rows[r].prefetch;
    options.threads = rows[r].threads;
    options.slots = rows[r].slots;
    options.on_demand = rows[r].on_demand;
    recording again = record(corpus, &options, 0, 120, NULL);
    assert_continues(&whole, 0, &again);
    recording_free(&again);
    for (int64_t at = 3; at < 110; at += 17) {
      recording part = record(corpus, &options, at + 1, 9, whole.cursors + (size_t)at * whole.cursor_count);
      assert_continues(&whole, at + 1, &part);
      recording_free(&part);
    }
  }
  recording_free(&whole);
  iso_corpus_close(&corpus);
}

/* 20 ms a read, one small document a read: alone a lane would wait 20 ms for each of its ~4 documents a step. */
static void test_slow_reads_do_not_reach_the_step(void **state) {
  (void)state;
  fixture_corpus("far", 'a', 0, 2000, 12);
  iso_source_options source = fixture_source("far");
  iso_data_options options = fixture_options(&source, 1);
  options.block_bytes = 1;
  options.prefetch = 16;
  iso_corpus *corpus = open_corpus(&options);
  slow_down(20000, 0, 0);
  iso_ring *ring = start(corpus, &options, 0, NULL);
  iso_ring_settle(ring, options.slots, INFINITY);
  usleep(300000); /* the pool gets ahead */
  iso_status status;
  for (int s = 0; s < 24; s++) {
    assert_int_equal(run_until_error(ring, 1, &status, NULL), 1);
    usleep(40000); /* 16 reads side by side give 32 documents in that time; a step takes 12 or so */
  }
  iso_ring_waits waits;
  iso_ring_waits_get(ring, &waits);
  assert_true(waits.dry <= 1); /* a machine under load may be late once */
  iso_ring_stop(&ring);
  iso_os = real_os;
  iso_corpus_close(&corpus);
}

static void test_a_read_that_fails_is_tried_again_by_its_lane(void **state) {
  (void)state;
  fixture_corpus("again", 'a', 0, 400, 40);
  iso_source_options source = fixture_source("again");
  iso_data_options options = fixture_options(&source, 1);
  options.block_bytes = 500;
  iso_corpus *corpus = open_corpus(&options);
  recording whole = record(corpus, &options, 0, 60, NULL);
  options.prefetch = 4;
  for (int from = 1; from < 60; from += 7) {
    slow_down(0, from, 1);
    recording again = record(corpus, &options, 0, 60, NULL);
    iso_os = real_os;
    assert_continues(&whole, 0, &again);
    recording_free(&again);
  }
  recording_free(&whole);
  iso_corpus_close(&corpus);
}

static void test_a_lasting_failure_stops_at_the_step_that_needs_it(void **state) {
  (void)state;
  fixture_corpus("broken", 'a', 0, 400, 40);
  iso_source_options source = fixture_source("broken");
  iso_data_options options = fixture_options(&source, 1);
  options.block_bytes = 500;
  options.prefetch = 2;
  iso_corpus *corpus = open_corpus(&options);
  recording whole = record(corpus, &options, 0, 60, NULL);
  slow_down(0, 30, 1000000);
  iso_ring *ring = start(corpus, &options, 0, NULL);
  iso_data_cursor *cursors = NULL;
  int64_t steps = 0;
  iso_status status;
  for (;; steps++) {
    iso_slot *slot;
    double wait_s;
    status = iso_ring_take(ring, &slot, &wait_s);
    if (status != ISO_OK) break;
    cursors = realloc(cursors, whole.cursor_count * sizeof *cursors);
    memcpy(cursors, slot->cursors, whole.cursor_count * sizeof *cursors);
    iso_ring_release(ring, slot);
  }
  assert_int_equal(status, ISO_ERR_IO);
  assert_non_null(strstr(iso_ring_error(ring), "cannot read"));
  assert_in_range(steps, 2, 58);
  iso_ring_stop(&ring);
  iso_os = real_os;
  recording rest = record(corpus, &options, steps, 60 - steps, cursors); /* resumable: nothing skipped, nothing twice */
  assert_continues(&whole, steps, &rest);
  recording_free(&rest);
  recording_free(&whole);
  free(cursors);
  iso_corpus_close(&corpus);
}

static void test_memory_is_as_planned(void **state) {
  (void)state;
  fixture_corpus("planned", 'a', 0, 3000, 700);
  iso_source_options source = fixture_source("planned");
  iso_data_options options = fixture_options(&source, 1);
  options.batch = 5;
  options.block_bytes = 200000;
  iso_corpus *corpus = open_corpus(&options);
  for (int prefetch = 0; prefetch <= 8; prefetch += 8) {
    options.prefetch = prefetch;
    iso_ring_plan plan;
    iso_ring_plan_get(&options, false, &plan);
    const size_t slabs = iso_slab_total();
    iso_ring *ring = start(corpus, &options, 0, NULL);
    assert_int_equal(iso_slab_total() - slabs, plan.slots);
    iso_status status;
    assert_int_equal(run_until_error(ring, 400, &status, NULL), 400);
    iso_ring_settle(ring, options.slots, INFINITY);
    const size_t held = iso_ring_held(ring);
    assert_true(held > 0);
    assert_true(held <= plan.lanes + plan.prefetch);
    if (prefetch) assert_true(held > plan.prefetch / 4); /* and the plan is no fancy */
    assert_int_equal(plan.prefetch > 0, prefetch > 0);
    iso_ring_stop(&ring);
  }
  options.prefetch = -1;
  iso_ring_plan plan;
  iso_ring_plan_get(&options, false, &plan);
  assert_int_equal(plan.prefetch, 0);
  iso_ring_plan_get(&options, true, &plan);
  assert_true(plan.prefetch >= 5 * (512 << 10));
  options.on_demand = true;
  iso_ring_plan_get(&options, true, &plan);
  assert_int_equal(plan.prefetch, 0);
  iso_corpus_close(&corpus);
}

/* Stopping at any moment, with reads under way, hangs nowhere and leaks nothing. */
static void test_stopping_while_reading(void **state) {
  (void)state;
  fixture_corpus("stopping", 'a', 0, 400, 40);
  iso_source_options source = fixture_source("stopping");
  iso_data_options options = fixture_options(&source, 1);
  options.block_bytes = 300;
  iso_corpus *corpus = open_corpus(&options);
  slow_down(3000, 0, 0);
  for (int round = 0; round < 30; round++) {
    options.prefetch = 1 + round % 5;
    options.threads = 1 + round % 3;
    iso_ring *ring = start(corpus, &options, 0, NULL);
    iso_status status;
    run_until_error(ring, round % 4, &status, NULL);
    usleep((useconds_t)(round * 300));
    iso_ring_stop(&ring);
  }
  iso_os = real_os;
  iso_corpus_close(&corpus);
}

/* ---- what is left out ---- */

typedef struct listing {
  iso_skipped entries[64];
  int64_t steps[64];
  int64_t count;
} listing;

static int64_t list_skipped(const iso_corpus *corpus, const iso_data_options *options, int64_t first, int64_t steps,
                            const iso_data_cursor *cursors, listing *out, iso_data_cursor *last) {
  iso_ring *ring = start(corpus, options, first, cursors);
  int64_t bad = 0;
  for (int64_t s = 0; s < steps; s++) {
    iso_slot *slot;
    double wait_s;
    if (iso_ring_take(ring, &slot, &wait_s) != ISO_OK) fail_msg("iso_ring_take: %s", iso_ring_error(ring));
    for (int64_t i = 0; i < slot->skipped_count; i++) {
      assert_true(out->count < 64);
      out->steps[out->count] = slot->step;
      out->entries[out->count++] = slot->skipped[i];
    }
    bad = slot->bad_documents;
    memcpy(last, slot->cursors, iso_data_cursor_count(options) * sizeof *last);
    iso_ring_release(ring, slot);
  }
  iso_ring_stop(&ring);
  return bad;
}

static void assert_same_listing(const listing *a, const listing *b) {
  assert_int_equal(a->count, b->count);
  for (int64_t i = 0; i < a->count; i++) {
    assert_int_equal(a->steps[i], b->steps[i]);
    assert_int_equal(a->entries[i].lane, b->entries[i].lane);
    assert_int_equal(a->entries[i].document, b->entries[i].document);
    assert_int_equal(a->entries[i].byte, b->entries[i].byte);
    assert_string_equal(a->entries[i].cause, b->entries[i].cause);
  }
}

static void test_what_is_left_out_is_listed_once_at_its_step(void **state) {
  (void)state;
  enum { STEPS = 200, CURSORS = 3 };
  write_with_bad_documents("listed", 120, 10);
  iso_source_options source = fixture_source("listed");
  iso_data_options options = fixture_options(&source, 1);
  options.skip_bad = true;
  options.max_bad_documents = 12;
  iso_corpus *corpus = open_corpus(&options);
  iso_data_cursor cursors[CURSORS];
  listing whole = {.count = 0};
  assert_int_equal(list_skipped(corpus, &options, 0, STEPS, NULL, &whole, cursors), 12);
  assert_int_equal(whole.count, 12);
  for (int64_t i = 0; i < whole.count; i++) {
    assert_int_equal(whole.entries[i].document % 10, 2);
    assert_string_equal(whole.entries[i].cause, "not valid UTF-8");
    assert_non_null(strstr(whole.entries[i].file, "listed"));
    const iso_document place = iso_source_document(iso_corpus_source(corpus, 0), whole.entries[i].document);
    assert_in_range(whole.entries[i].byte, place.offset, place.offset + place.length - 1);
  }
  for (int c = 0; c < 4; c++) { /* other threads, other slots */
    options.threads = 1 + c;
    options.slots = 2 + 2 * c;
    options.prefetch = 2 * c;
    listing again = {.count = 0};
    list_skipped(corpus, &options, 0, STEPS, NULL, &again, cursors);
    assert_same_listing(&whole, &again);
  }
  for (int64_t at = 1; at < 40; at++) { /* in three starts, each told what those before have listed */
    listing parts = {.count = 0};
    options.known = parts.entries;
    options.known_count = 0;
    int64_t bad = list_skipped(corpus, &options, 0, at, NULL, &parts, cursors);
    assert_int_equal(bad, parts.count);
    options.known_count = parts.count;
    bad = list_skipped(corpus, &options, at, at, cursors, &parts, cursors);
    assert_int_equal(bad, parts.count);
    options.known_count = parts.count;
    bad = list_skipped(corpus, &options, 2 * at, STEPS - 2 * at, cursors, &parts, cursors);
    assert_int_equal(bad, 12);
    assert_same_listing(&whole, &parts);
  }
  iso_corpus_close(&corpus);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reading_ahead_changes_nothing),
      cmocka_unit_test(test_slow_reads_do_not_reach_the_step),
      cmocka_unit_test(test_a_read_that_fails_is_tried_again_by_its_lane),
      cmocka_unit_test(test_a_lasting_failure_stops_at_the_step_that_needs_it),
      cmocka_unit_test(test_memory_is_as_planned),
      cmocka_unit_test(test_stopping_while_reading),
      cmocka_unit_test(test_what_is_left_out_is_listed_once_at_its_step),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
