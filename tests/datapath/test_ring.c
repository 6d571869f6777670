/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches: resume from any step, independence from threads and slots, faults, stopping (test_ledger.c: the documents).
 */
#include "datapath/recording.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/stat.h>

/* ---- invariant 1: nothing but config, seed and cursors ---- */

static void test_threads_and_slots_change_nothing(void **state) {
  (void)state;
  iso_source_options sources[3];
  iso_data_options options = three_sources(sources);
  options.batch = 5;
  iso_corpus *corpus = open_corpus(&options);
  recording first = record(corpus, &options, 0, 60, NULL);
  static const int cases[][2] = {{1, 2}, {2, 2}, {2, 3}, {4, 4}, {4, 8}, {16, 5}};
  for (size_t c = 0; c < ISO_COUNT(cases); c++) {
    options.threads = cases[c][0];
    options.slots = cases[c][1];
    recording again = record(corpus, &options, 0, 60, NULL);
    assert_continues(&first, 0, &again);
    recording_free(&again);
  }
  recording_free(&first);
  iso_corpus_close(&corpus);
  options.seed++;
  corpus = open_corpus(&options);
  recording other = record(corpus, &options, 0, 1, NULL);
  recording_free(&other);
  iso_corpus_close(&corpus);
}

static void test_resume_from_any_step(void **state) {
  (void)state;
  iso_source_options sources[3];
  iso_data_options options = three_sources(sources);
  for (size_t count = 1; count <= 3; count += 2) {
    options.source_count = count;
    options.sequence = count == 1 ? 7 : 40;
    iso_corpus *corpus = open_corpus(&options);
    enum { STEPS = 40 };
    recording whole = record(corpus, &options, 100, STEPS, NULL);
    for (int64_t at = 0; at + 1 < STEPS; at++) {
      iso_data_cursor *cursors = whole.cursors + (size_t)at * whole.cursor_count;
      int64_t steps = STEPS - at - 1 < 6 ? STEPS - at - 1 : 6;
      recording part = record(corpus, &options, 100 + at + 1, steps, cursors);
      assert_continues(&whole, at + 1, &part);
      if (steps > 2) { /* a second resume in a row, from the first one's cursors */
        recording next = record(corpus, &options, 100 + at + 3, steps - 2, part.cursors + part.cursor_count);
        assert_continues(&whole, at + 3, &next);
        recording_free(&next);
      }
      recording_free(&part);
    }
    iso_data_cursor *zero = calloc(whole.cursor_count, sizeof *zero); /* all zero is the beginning */
    recording begin = record(corpus, &options, 100, 3, zero);
    assert_continues(&whole, 0, &begin);
    recording_free(&begin);
    free(zero);
    recording_free(&whole);
    iso_corpus_close(&corpus);
  }
}

static void test_tiny_and_long_documents(void **state) {
  (void)state;
  fixture_write("tiny", "a|b|c", 5); /* three documents of one byte */
  fixture_corpus("giant", 'g', 0, 3, 60000);
  iso_source_options tiny = fixture_source("tiny"), giant = fixture_source("giant");
  tiny.separator = "|";
  iso_data_options options = fixture_options(&tiny, 1);
  options.sequence = 5;
  iso_corpus *corpus = open_corpus(&options);
  recording r = record(corpus, &options, 0, 4, NULL);
  int32_t eos = (int32_t)iso_tokenizer_eos(fixture_tokenizer);
  for (int64_t b = 0; b < 3; b++) { /* a lane repeats its one document: x EOS x EOS ... */
    int32_t *stream = lane_stream(&r, b);
    for (int64_t i = 0; i < 20; i++) assert_int_equal(stream[i], i % 2 ? eos : stream[0]);
    assert_int_equal(r.scored[b], 3);     /* x E x E x: targets E, -, E, -, E */
    assert_int_equal(r.scored[3 + b], 2); /* E x E x E */
    free(stream);
  }
  assert_int_equal(r.cursors[3 * 3].epoch, 10); /* 20 tokens = 10 documents */
  recording_free(&r);
  iso_corpus_close(&corpus);

  options = fixture_options(&giant, 1);
  options.sequence = 50;
  corpus = open_corpus(&options);
  r = record(corpus, &options, 0, 50, NULL);
  for (int64_t s = 0; s < 50; s++)
    for (int64_t b = 0; b < 3; b++)
      for (int64_t t = 0; t < 50; t++) assert_int_equal(r.arrays[2][(s * 3 + b) * 50 + t], t); /* one document each */
  recording part = record(corpus, &options, 30, 20, r.cursors + 29 * 3);
  assert_continues(&r, 30, &part);
  recording_free(&part);
  recording_free(&r);
  iso_corpus_close(&corpus);
}

/* ---- faults ---- */

static void test_bad_text_stops_at_its_step(void **state) {
  (void)state;
  write_with_bad_documents("bad", 120, 40);
  iso_source_options source = fixture_source("bad");
  iso_data_options options = fixture_options(&source, 1);
  iso_corpus *corpus = open_corpus(&options);
  int64_t steps[3];
  for (int c = 0; c < 3; c++) {
    options.threads = c + 1;
    options.slots = 2 + 2 * c;
    iso_ring *ring = start(corpus, &options, 0, NULL);
    iso_status status;
    steps[c] = run_until_error(ring, 1000, &status, NULL);
    assert_int_equal(status, ISO_ERR_FORMAT);
    assert_non_null(strstr(iso_ring_error(ring), "bad\", document "));
    assert_non_null(strstr(iso_ring_error(ring), "not valid UTF-8"));
    run_until_error(ring, 1, &status, NULL); /* and stays so */
    assert_int_equal(status, ISO_ERR_FORMAT);
    iso_ring_stop(&ring);
  }
  assert_int_equal(steps[0], steps[1]);
  assert_int_equal(steps[0], steps[2]);
  iso_corpus_close(&corpus);
}

static void test_bad_text_is_left_out_and_counted(void **state) {
  (void)state;
  write_with_bad_documents("skipped", 120, 10);
  iso_source_options source = fixture_source("skipped");
  iso_data_options options = fixture_options(&source, 1);
  options.skip_bad = true;
  options.max_bad_documents = 12;
  iso_corpus *corpus = open_corpus(&options);
  iso_ring *ring = start(corpus, &options, 0, NULL);
  iso_status status;
  int64_t bad = 0;
  assert_int_equal(run_until_error(ring, 400, &status, &bad), 400); /* several epochs: each counts once */
  assert_int_equal(bad, 12);
  iso_ring_stop(&ring);
  recording whole = record(corpus, &options, 0, 60, NULL);
  for (int64_t at = 0; at < 55; at++) {
    recording part = record(corpus, &options, at + 1, 4, whole.cursors + at * 3);
    assert_continues(&whole, at + 1, &part);
    recording_free(&part);
  }
  int32_t *stream = lane_stream(&whole, 0);
  iso_string text = {0};
  assert_int_equal(iso_decode(fixture_tokenizer, stream, (size_t)(60 * whole.T), &text), ISO_OK);
  assert_int_equal(iso_utf8_valid_prefix(text.data, text.length - 3), text.length - 3);
  iso_string_fini(&text);
  free(stream);
  recording_free(&whole);
  iso_corpus_close(&corpus);
}

static void test_too_much_bad_text_stops_at_a_fixed_step(void **state) {
  (void)state;
  write_with_bad_documents("much", 120, 10);
  iso_source_options source = fixture_source("much");
  iso_data_options options = fixture_options(&source, 1);
  options.skip_bad = true;
  options.max_bad_documents = 7;
  iso_corpus *corpus = open_corpus(&options);
  int64_t steps[3];
  for (int c = 0; c < 3; c++) {
    options.threads = c + 1;
    options.slots = 2 + 3 * c;
    iso_ring *ring = start(corpus, &options, 0, NULL);
    iso_status status;
    steps[c] = run_until_error(ring, 1000, &status, NULL);
    assert_int_equal(status, ISO_ERR_FORMAT);
    assert_non_null(strstr(iso_ring_error(ring), "max_bad_documents"));
    iso_ring_stop(&ring);
  }
  assert_true(steps[0] > 0);
  assert_int_equal(steps[0], steps[1]);
  assert_int_equal(steps[0], steps[2]);
  iso_corpus_close(&corpus);
  fixture_write("allbad", "\xff|\xff|\xff|\xff", 7);
  source = fixture_source("allbad");
  source.separator = "|";
  options.max_bad_documents = 100;
  corpus = open_corpus(&options);
  iso_ring *ring = start(corpus, &options, 0, NULL);
  iso_status status;
  assert_int_equal(run_until_error(ring, 1, &status, NULL), 0);
  assert_int_equal(status, ISO_ERR_FORMAT);
  assert_non_null(strstr(iso_ring_error(ring), "finds no good document"));
  iso_ring_stop(&ring);
  iso_corpus_close(&corpus);
}

static void test_a_changed_file_stops_the_run(void **state) {
  (void)state;
  fixture_corpus("volatile", 'a', 0, 3000, 60);
  iso_source_options source = fixture_source("volatile");
  iso_data_options options = fixture_options(&source, 1);
  options.threads = 2;
  iso_corpus *corpus = open_corpus(&options);
  iso_ring *ring = start(corpus, &options, 0, NULL);
  iso_status status;
  assert_int_equal(run_until_error(ring, 5, &status, NULL), 5);
  fixture_corpus("volatile", 'a', 0, 2999, 60);
  assert_true(run_until_error(ring, 100000, &status, NULL) < 100000);
  assert_int_equal(status, ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_ring_error(ring), "volatile' changed while in use"));
  iso_ring_stop(&ring);
  iso_corpus_close(&corpus);
}

/* Every file-system call fails once: an error each time, nothing lost, nothing hung. */
static iso_os_table real_os;
static _Atomic int calls_left;

static bool fails_now(void) {
  return atomic_fetch_sub(&calls_left, 1) == 1;
}

static int faulty_open(const char *path, int flags, int mode) {
  if (fails_now()) return errno = EMFILE, -1;
  return real_os.open(path, flags, mode);
}

static int faulty_stat(const char *path, struct stat *out) {
  if (fails_now()) return errno = EIO, -1;
  return real_os.stat(path, out);
}

static ssize_t faulty_pread(int fd, void *data, size_t bytes, int64_t offset) {
  if (fails_now()) return errno = EIO, -1;
  return real_os.pread(fd, data, bytes > 100 ? 100 : bytes, offset); /* short reads go on */
}

static void test_each_failing_call_is_an_error(void **state) {
  (void)state;
  fixture_make_folder("faulty");
  fixture_corpus("faulty/1", 'a', 0, 20, 20);
  fixture_corpus("faulty/2", 'a', 20, 20, 20);
  iso_source_options source = fixture_source("faulty");
  iso_data_options options = fixture_options(&source, 1);
  options.threads = 2;
  real_os = iso_os;
  iso_os.open = faulty_open;
  iso_os.stat = faulty_stat;
  iso_os.pread = faulty_pread;
  int failed_open = 0, failed_run = 0;
  for (int n = 1; n < 400; n++) {
    iso_corpus *corpus;
    iso_ring *ring;
    atomic_store(&calls_left, n);
    iso_status status = iso_corpus_open(&options, fixture_tokenizer, &corpus);
    if (status != ISO_OK) {
      assert_null(corpus);
      failed_open++;
      continue;
    }
    ring = start(corpus, &options, 0, NULL);
    run_until_error(ring, 30, &status, NULL);
    if (atomic_load(&calls_left) > 0) n = 400; /* the run needs fewer calls */
    failed_run += status != ISO_OK;
    if (status != ISO_OK) assert_int_equal(status, ISO_ERR_IO);
    iso_ring_stop(&ring);
    iso_corpus_close(&corpus);
  }
  iso_os = real_os;
  assert_true(failed_open > 5);
  assert_true(failed_run > 50);
}

static void test_foreign_cursors_are_refused(void **state) {
  (void)state;
  iso_source_options sources[3];
  iso_data_options options = three_sources(sources);
  options.source_count = 2;
  options.batch = 1;
  iso_corpus *corpus = open_corpus(&options);
  iso_ring *ring;
  static const struct {
    iso_data_cursor cursors[3];
    const char *part;
  } rows[] = {
      {{{-1, 0, 0}, {0, 0, 0}, {1, 0, 0}}, "is negative"},
      {{{0, 1000, 0}, {0, 0, 0}, {1, 0, 0}}, "names a block"},
      {{{0, 0, 0}, {0, 0, 0}, {1, 2, 0}}, "is no mixture state"},
      {{{0, 1, 0}, {0, 0, 0}, {0, 0, 0}}, "has no draw yet"},
      {{{0, 0, 0}, {0, 0, 7}, {1, 0, 0}}, "not current"},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++)
    assert_error(iso_ring_start(corpus, &options, 0, rows[i].cursors, &ring), ISO_ERR_MISMATCH, rows[i].part);
  static const iso_data_cursor beyond[3] = {{0, 0, 1000000}, {0, 0, 0}, {1, 0, 0}};
  ring = start(corpus, &options, 0, beyond);
  iso_status status;
  run_until_error(ring, 1, &status, NULL);
  assert_int_equal(status, ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_ring_error(ring), "stands at token 1000000"));
  iso_ring_stop(&ring);
  options.slots = 1;
  assert_error(iso_ring_start(corpus, &options, 0, NULL, &ring), ISO_ERR_CONFIG, "data.slots is 1");
  options.slots = 4, options.threads = 0;
  assert_error(iso_ring_start(corpus, &options, 0, NULL, &ring), ISO_ERR_CONFIG, "data.threads is 0");
  iso_corpus_close(&corpus);
}

/* ---- the ring itself ---- */

static void test_slots_fill_ahead_and_stop_does_not_hang(void **state) {
  (void)state;
  fixture_corpus("ahead", 'a', 0, 400, 60);
  iso_source_options source = fixture_source("ahead");
  iso_data_options options = fixture_options(&source, 1);
  size_t slabs = iso_slab_total();
  iso_corpus *corpus = open_corpus(&options);
  for (int round = 0; round < 40; round++) { /* stopped at any moment */
    options.threads = 1 + round % 4;
    iso_ring *ring = start(corpus, &options, 0, NULL);
    iso_status status;
    run_until_error(ring, round / 4, &status, NULL);
    iso_ring_stop(&ring);
  }
  iso_ring *ring = start(corpus, &options, 7, NULL);
  assert_int_equal(iso_slab_total(), slabs + iso_ring_bytes(&options));
  double until = iso_clock_s() + 20;
  while (iso_ring_depth(ring) < options.slots && iso_clock_s() < until) usleep(1000);
  assert_int_equal(iso_ring_depth(ring), options.slots);
  iso_slot *slots[4], *none;
  double wait_s;
  for (int k = 0; k < 4; k++) {
    assert_int_equal(iso_ring_take(ring, &slots[k], &wait_s), ISO_OK);
    assert_int_equal(slots[k]->step, 7 + k);
    assert_int_equal((uintptr_t)slots[k]->tokens % 64, 0);
    assert_true(wait_s < 1);
  }
  assert_int_equal(iso_ring_depth(ring), 0);
  assert_error(iso_ring_take(ring, &none, &wait_s), ISO_ERR_INTERNAL, "all 4 slots are taken");
  for (int k = 3; k >= 0; k--) iso_ring_release(ring, slots[k]); /* in any order */
  for (int k = 0; k < 4; k++) {
    assert_int_equal(iso_ring_take(ring, &slots[0], &wait_s), ISO_OK);
    assert_int_equal(slots[0]->step, 11 + k);
    iso_ring_release(ring, slots[0]);
  }
  iso_ring_stop(&ring);
  iso_ring_stop(&ring); /* NULL: nothing */
  iso_corpus_close(&corpus);
  assert_int_equal(iso_slab_total(), slabs);
}

static _Atomic int slow_us; /* what each look at a file "slow" takes */

static int slow_stat(const char *path, struct stat *out) {
  if (strstr(path, "slow")) usleep((useconds_t)atomic_load(&slow_us));
  return stat(path, out);
}

/* Takes `count` batches. Each starved take has a stage and a source; returns how many of them say: read, of "slow". */
static int64_t take_and_look(iso_ring *ring, int count) {
  static const char *const stages[] = {"schedule", "read", "tokenize", "pack"};
  int64_t slow = 0;
  iso_ring_waits before, after;
  for (int i = 0; i < count; i++) {
    iso_slot *slot;
    double wait_s;
    iso_ring_waits_get(ring, &before);
    assert_int_equal(iso_ring_take(ring, &slot, &wait_s), ISO_OK);
    iso_ring_release(ring, slot);
    iso_ring_waits_get(ring, &after);
    assert_int_equal(after.takes, before.takes + 1);
    if (after.dry == before.dry) continue;
    assert_int_equal(after.dry, before.dry + 1);
    assert_true(after.last_wait_s > 0 && after.last_wait_s <= wait_s);
    bool known = false;
    for (size_t s = 0; s < ISO_COUNT(stages); s++) known = known || strcmp(after.last_stage, stages[s]) == 0;
    assert_true(known);
    const bool of_slow = strstr(after.last_source, "slow") != NULL;
    assert_true(of_slow || strstr(after.last_source, "fast"));
    slow += of_slow && strcmp(after.last_stage, "read") == 0;
    assert_true(after.longest_wait_s >= after.last_wait_s);
    assert_true(after.stage[0] && after.source[0]);
  }
  return slow;
}

/* Long waits and short ones, with data threads and on demand. */
static void test_each_starved_step_is_timed_and_named(void **state) {
  (void)state;
  fixture_corpus("fast", 'a', 0, 400, 60);
  fixture_corpus("slow", 'b', 0, 400, 60);
  iso_source_options sources[2] = {fixture_source("fast"), fixture_source("slow")};
  iso_data_options options = fixture_options(sources, 2);
  options.block_bytes = 1;
  iso_os_table real = iso_os;
  for (int round = 0; round < 4; round++) {
    options.on_demand = round >= 2;
    atomic_store(&slow_us, round % 2 ? 50 : 20000);
    iso_corpus *corpus = open_corpus(&options);
    iso_os.stat = slow_stat;
    iso_ring *ring = start(corpus, &options, 0, NULL);
    const double begin = iso_clock_s();
    const int64_t slow = take_and_look(ring, 12);
    const double wall_s = iso_clock_s() - begin;
    iso_ring_waits waits;
    iso_ring_waits_get(ring, &waits);
    iso_ring_stop(&ring);
    iso_os = real;
    iso_corpus_close(&corpus);
    assert_int_equal(waits.takes, 12);
    assert_true(waits.wait_s <= wall_s && waits.longest_wait_s <= waits.wait_s);
    if (options.on_demand) assert_int_equal(waits.dry, 12);
    if (round % 2 == 0) assert_true(waits.dry >= 1 && slow >= 1 && waits.wait_s > 0.02);
  }
}

static void test_small_batches_have_more_slots(void **state) {
  (void)state;
  iso_data_options options = {.source_count = 1, .batch = 16, .sequence = 61, .slots = 4, .threads = 1};
  const int slots = iso_ring_slots(&options);
  assert_true(slots > 8 && slots < 64);
  options.slots = slots; /* as many as fit into 512 KiB */
  assert_true(iso_ring_bytes(&options) <= 512 << 10);
  options.slots = slots + 1;
  assert_true(iso_ring_bytes(&options) > 512 << 10);
  options.slots = 4;
  options.batch = 1;
  assert_int_equal(iso_ring_slots(&options), 64);
  options.on_demand = true;
  assert_int_equal(iso_ring_slots(&options), 4);
  options.on_demand = false;
  options.batch = 512;
  options.sequence = 1024;
  assert_int_equal(iso_ring_slots(&options), 4);
}

static void test_a_pause_changes_nothing(void **state) {
  (void)state;
  fixture_corpus("pause", 'a', 0, 400, 60);
  iso_source_options source = fixture_source("pause");
  iso_data_options options = fixture_options(&source, 1);
  iso_corpus *corpus = open_corpus(&options);
  recording whole = record(corpus, &options, 0, 60, NULL);
  for (options.threads = 1; options.threads <= 3; options.threads += 2) {
    iso_ring *ring = start(corpus, &options, 0, NULL);
    const size_t row = (size_t)(options.batch * options.sequence);
    for (int64_t step = 0; step < 60; step++) {
      iso_slot *slot;
      double wait_s;
      assert_int_equal(iso_ring_take(ring, &slot, &wait_s), ISO_OK);
      assert_memory_equal(slot->tokens, whole.arrays[0] + (size_t)step * row, row * sizeof *slot->tokens);
      if (step % 3 == 0) iso_ring_pause(ring, true);
      const int depth = iso_ring_depth(ring);
      iso_ring_release(ring, slot);
      if (step % 3 == 0) assert_int_equal(iso_ring_depth(ring), depth); /* the free slot stays free */
      if (step % 3 == 0) iso_ring_pause(ring, false);
    }
    iso_ring_pause(ring, true); /* and stopping does not wait for its end */
    iso_ring_stop(&ring);
  }
  recording_free(&whole);
  iso_corpus_close(&corpus);
}

/* A file that is held is read once, and a change of it is noticed all the same. */
static void test_small_files_are_read_once(void **state) {
  (void)state;
  fixture_corpus("held", 'a', 0, 300, 30);
  iso_source_options source = fixture_source("held");
  iso_data_options options = fixture_options(&source, 1);
  options.block_bytes = 1;
  iso_corpus *corpus = open_corpus(&options);
  iso_whole *whole, *none;
  const char *text, *again;
  assert_int_equal(iso_whole_create(corpus, 1 << 20, false, &whole), ISO_OK);
  assert_int_equal(iso_whole_create(corpus, 10, true, &none), ISO_OK); /* it does not fit */
  assert_int_equal(iso_whole_bytes(whole), 0);
  assert_int_equal(iso_whole_text(none, 0, 0, &text), ISO_OK);
  assert_null(text);
  assert_int_equal(iso_whole_text(whole, 0, 0, &text), ISO_OK);
  const iso_document place = iso_source_document(iso_corpus_source(corpus, 0), 7);
  char *bytes = malloc((size_t)place.length);
  assert_int_equal(iso_source_read(iso_corpus_source(corpus, 0), 0, place.offset, place.length, bytes), ISO_OK);
  assert_memory_equal(text + place.offset, bytes, (size_t)place.length);
  free(bytes);
  assert_int_equal(iso_whole_bytes(whole), iso_source_file(iso_corpus_source(corpus, 0), 0)->bytes);
  iso_whole_next_round(whole);
  assert_int_equal(iso_whole_text(whole, 0, 0, &again), ISO_OK);
  assert_ptr_equal(text, again);
  iso_ring *ring = start(corpus, &options, 0, NULL);
  iso_status status;
  assert_int_equal(run_until_error(ring, 5, &status, NULL), 5);
  assert_true(iso_ring_held(ring) > 0);
  fixture_corpus("held", 'a', 0, 299, 30);
  assert_true(run_until_error(ring, 100000, &status, NULL) < 100000);
  assert_int_equal(status, ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_ring_error(ring), "held' changed while in use"));
  iso_ring_stop(&ring);
  iso_whole_next_round(whole);
  assert_error(iso_whole_text(whole, 0, 0, &again), ISO_ERR_MISMATCH, "changed while in use");
  iso_whole_destroy(&whole);
  iso_whole_destroy(&none);
  iso_corpus_close(&corpus);
}

/* Tokens that are held are those that the text gives, epoch after epoch, and what is held stays within its limit. */
static void test_tokens_are_held(void **state) {
  (void)state;
  fixture_corpus("tokens", 'a', 0, 300, 30);
  iso_source_options source = fixture_source("tokens");
  iso_data_options options = fixture_options(&source, 1);
  options.block_bytes = 1;
  options.on_demand = true; /* tokenises each document each time */
  iso_corpus *corpus = open_corpus(&options);
  recording plain = record(corpus, &options, 0, 400, NULL);
  options.on_demand = false;
  for (options.threads = 1; options.threads <= 4; options.threads += 3) {
    recording held = record(corpus, &options, 0, 400, NULL);
    assert_continues(&plain, 0, &held);
    recording_free(&held);
  }
  recording_free(&plain);

  const int64_t text = iso_source_file(iso_corpus_source(corpus, 0), 0)->bytes;
  const int64_t places = iso_source_documents(iso_corpus_source(corpus, 0)) * (int64_t)sizeof(void *);
  const int64_t limit = text + places + 200;
  const int32_t ids[5] = {4, 3, 2, 1, 0};
  iso_whole *whole;
  const char *bytes;
  assert_int_equal(iso_whole_create(corpus, limit, true, &whole), ISO_OK);
  assert_int_equal(iso_whole_text(whole, 0, 0, &bytes), ISO_OK);
  int kept = 0;
  for (int64_t d = 0; d < 20; d++) {
    assert_null(iso_whole_ids_get(whole, 0, d));
    iso_whole_ids_keep(whole, 0, d, ids, 5);
    const iso_whole_ids *held = iso_whole_ids_get(whole, 0, d);
    if (!held) continue;
    kept++;
    assert_int_equal(held->count, 5);
    assert_memory_equal(held->ids, ids, sizeof ids);
  }
  assert_in_range(kept, 1, 19);
  assert_in_range(iso_whole_bytes(whole), text + places, limit);
  iso_whole_destroy(&whole);
  assert_int_equal(iso_whole_create(corpus, text + 1, true, &whole), ISO_OK); /* text alone fits */
  iso_whole_ids_keep(whole, 0, 0, ids, 5);
  assert_null(iso_whole_ids_get(whole, 0, 0));
  iso_whole_destroy(&whole);
  iso_corpus_close(&corpus);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_threads_and_slots_change_nothing),
      cmocka_unit_test(test_resume_from_any_step),
      cmocka_unit_test(test_tiny_and_long_documents),
      cmocka_unit_test(test_bad_text_stops_at_its_step),
      cmocka_unit_test(test_bad_text_is_left_out_and_counted),
      cmocka_unit_test(test_too_much_bad_text_stops_at_a_fixed_step),
      cmocka_unit_test(test_a_changed_file_stops_the_run),
      cmocka_unit_test(test_each_failing_call_is_an_error),
      cmocka_unit_test(test_foreign_cursors_are_refused),
      cmocka_unit_test(test_slots_fill_ahead_and_stop_does_not_hang),
      cmocka_unit_test(test_each_starved_step_is_timed_and_named),
      cmocka_unit_test(test_small_batches_have_more_slots),
      cmocka_unit_test(test_a_pause_changes_nothing),
      cmocka_unit_test(test_small_files_are_read_once),
      cmocka_unit_test(test_tokens_are_held),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
