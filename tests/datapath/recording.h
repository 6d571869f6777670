/* SPDX-License-Identifier: Apache-2.0
 *
 * recording: batches copied out of a ring, and what is asked of them.
 */
#ifndef ISO_TEST_DATAPATH_RECORDING_H
#define ISO_TEST_DATAPATH_RECORDING_H

#include "datapath/fixture.h"

static UNUSED iso_corpus *open_corpus(const iso_data_options *options) {
  iso_corpus *corpus;
  iso_status status = iso_corpus_open(options, fixture_tokenizer, &corpus);
  if (status != ISO_OK) fail_msg("iso_corpus_open: %s", iso_last_error());
  return corpus;
}

static UNUSED iso_ring *start(const iso_corpus *corpus, const iso_data_options *options, int64_t step,
                              const iso_data_cursor *cursors) {
  iso_ring *ring;
  iso_status status = iso_ring_start(corpus, options, step, cursors, &ring);
  if (status != ISO_OK) fail_msg("iso_ring_start: %s", iso_last_error());
  return ring;
}

/* All batches of `steps` steps and the cursors after each, copied out of the ring. */
typedef struct recording {
  int64_t steps, batch, T;
  size_t cursor_count;
  int32_t *arrays[4]; /* tokens, labels, positions, segments: [steps][B*T] */
  int64_t *scored;    /* [steps][B] */
  iso_data_cursor *cursors;
} recording;

static UNUSED recording recording_create(const iso_data_options *o, int64_t steps) {
  recording r = {steps, o->batch, o->sequence, iso_data_cursor_count(o), {0}, NULL, NULL};
  size_t ids = (size_t)(o->batch * o->sequence);
  for (int a = 0; a < 4; a++) r.arrays[a] = calloc((size_t)steps * ids, sizeof(int32_t));
  r.scored = calloc((size_t)(steps * o->batch), sizeof(int64_t));
  r.cursors = calloc((size_t)steps * r.cursor_count, sizeof(iso_data_cursor));
  return r;
}

static UNUSED recording record(const iso_corpus *corpus, const iso_data_options *o, int64_t first_step, int64_t steps,
                               const iso_data_cursor *cursors) {
  recording r = recording_create(o, steps);
  const size_t ids = (size_t)(o->batch * o->sequence);
  iso_ring *ring = start(corpus, o, first_step, cursors);
  for (int64_t s = 0; s < steps; s++) {
    iso_slot *slot;
    double wait_s;
    if (iso_ring_take(ring, &slot, &wait_s) != ISO_OK) fail_msg("iso_ring_take: %s", iso_ring_error(ring));
    assert_int_equal(slot->step, first_step + s);
    const int32_t *from[4] = {slot->tokens, slot->labels, slot->positions, slot->segments};
    for (int a = 0; a < 4; a++) memcpy(r.arrays[a] + (size_t)s * ids, from[a], ids * sizeof(int32_t));
    memcpy(r.scored + s * o->batch, slot->scored, (size_t)o->batch * sizeof(int64_t));
    memcpy(r.cursors + (size_t)s * r.cursor_count, slot->cursors, r.cursor_count * sizeof(iso_data_cursor));
    memset(slot->tokens, 0x55, ids * sizeof(int32_t)); /* the slot is the taker's until it is released */
    iso_ring_release(ring, slot);
  }
  iso_ring_stop(&ring);
  assert_null(ring);
  return r;
}

static UNUSED void recording_free(recording *r) {
  for (int a = 0; a < 4; a++) free(r->arrays[a]);
  free(r->scored);
  free(r->cursors);
}

/* `part` is what `whole` holds from its step `from` on. */
static UNUSED void assert_continues(const recording *whole, int64_t from, const recording *part) {
  size_t ids = (size_t)(whole->batch * whole->T);
  for (int a = 0; a < 4; a++)
    assert_memory_equal(whole->arrays[a] + (size_t)from * ids, part->arrays[a],
                        (size_t)part->steps * ids * sizeof(int32_t));
  assert_memory_equal(whole->scored + from * whole->batch, part->scored,
                      (size_t)(part->steps * whole->batch) * sizeof(int64_t));
  assert_memory_equal(whole->cursors + (size_t)from * whole->cursor_count, part->cursors,
                      (size_t)part->steps * whole->cursor_count * sizeof(iso_data_cursor));
}

static UNUSED iso_data_options three_sources(iso_source_options sources[3]) {
  static const char *const names[] = {"mix-a", "mix-b", "mix-c"};
  static const int longest[] = {60, 4, 300};
  static const int64_t counts[] = {150, 90, 40};
  static const double weights[] = {1, 0.5, 2};
  for (int s = 0; s < 3; s++) {
    fixture_corpus(names[s], (char)('a' + s), 0, counts[s], longest[s]);
    sources[s] = fixture_source(names[s]);
    sources[s].weight = weights[s];
  }
  return fixture_options(sources, 3);
}

/* Lane b's inputs of all steps, one after another, plus the last target: its stream. */
static UNUSED int32_t *lane_stream(const recording *r, int64_t b) {
  int64_t T = r->T, ids = r->batch * T;
  int32_t *stream = malloc((size_t)(r->steps * T) * sizeof *stream);
  for (int64_t s = 0; s < r->steps; s++) {
    const int32_t *tokens = r->arrays[0] + s * ids + b * T;
    const int32_t *labels = r->arrays[1] + s * ids + b * T;
    memcpy(stream + s * T, tokens, (size_t)T * sizeof *stream);
    for (int64_t t = 0; t + 1 < T; t++)
      if (labels[t] != -100) assert_int_equal(labels[t], tokens[t + 1]);
    if (s + 1 < r->steps && labels[T - 1] != -100) assert_int_equal(labels[T - 1], tokens[ids]); /* T+1 overlap */
  }
  return stream;
}

/* Takes and releases until an error or `steps`; returns the steps that came out. */
static UNUSED int64_t run_until_error(iso_ring *ring, int64_t steps, iso_status *status, int64_t *bad) {
  for (int64_t s = 0; s < steps; s++) {
    iso_slot *slot;
    double wait_s;
    *status = iso_ring_take(ring, &slot, &wait_s);
    if (*status != ISO_OK) return s;
    if (bad) *bad = slot->bad_documents;
    iso_ring_release(ring, slot);
  }
  return steps;
}

static UNUSED void write_with_bad_documents(const char *name, int64_t count, int64_t bad_every) {
  iso_string text = {0};
  for (int64_t i = 0; i < count; i++) {
    fixture_document(&text, 'a', i, 30);
    iso_string_printf(&text, "%s\n\n", i % bad_every == 2 ? " \xe2\x28" : "");
  }
  fixture_write(name, text.data, text.length);
  iso_string_fini(&text);
}

#endif
