/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger: every document of a lane comes exactly once in each of its epochs, in block order, whole, through kills,
 * resumes, second resumes and epoch ends, with other threads, slots, prefetch and ranks in every start; one source and
 * mixtures; text, JSON lines and token shards.
 */
#include "datapath/recording.h"

/* The stream's definition, document by document: draw a source, visit its next block, next epoch when all are visited.
 */
typedef struct expected_order {
  const iso_corpus *corpus;
  int64_t lane, draws, source, next, end; /* next, end: training documents of the block */
  int64_t visited[3];                     /* blocks of each source so far */
} expected_order;

static int64_t expected_document(expected_order *e) {
  if (e->next == e->end) {
    e->source = iso_corpus_draw(e->corpus, e->lane, e->draws++);
    int64_t blocks = iso_corpus_lane_blocks(e->corpus, e->source, e->lane);
    int64_t place = e->visited[e->source]++;
    iso_corpus_lane_block(e->corpus, e->source, e->lane, place / blocks, place % blocks, &e->next, &e->end);
  }
  return iso_corpus_train_index(e->corpus, e->source, e->next++);
}

/* Which document the decoded text is: source and number, checked against its whole text. */
static void recognise(const iso_string *text, const int *longest, int *source, int64_t *number) {
  *source = text->data[0] - 'a';
  assert_in_range(*source, 0, 2);
  *number = atoll(text->data + 1);
  iso_string expected = {0};
  fixture_document(&expected, text->data[0], *number, longest[*source]);
  assert_string_equal(text->data, expected.data);
  iso_string_fini(&expected);
}

static void check_ledger(const iso_corpus *corpus, const recording *r, const int *longest) {
  const iso_data_options *o = iso_corpus_options(corpus);
  int32_t eos = (int32_t)iso_tokenizer_eos(fixture_tokenizer);
  int64_t epochs[3] = {0};
  for (int64_t b = 0; b < o->batch; b++) {
    int *times[3];   /* how often each document came */
    int64_t mine[3]; /* documents of the lane: one epoch */
    int64_t met[3] = {0};
    for (size_t s = 0; s < o->source_count; s++) {
      times[s] = calloc((size_t)iso_source_documents(iso_corpus_source(corpus, (int64_t)s)), sizeof(int));
      mine[s] = 0;
      for (int64_t i = 0; i < iso_corpus_lane_blocks(corpus, (int64_t)s, b); i++) {
        int64_t first, end;
        iso_corpus_lane_block(corpus, (int64_t)s, b, 0, i, &first, &end);
        mine[s] += end - first;
        for (int64_t k = first; k < end; k++) times[s][iso_corpus_train_index(corpus, (int64_t)s, k)] = 1;
      }
      for (int64_t i = 0; i < iso_source_documents(iso_corpus_source(corpus, (int64_t)s)); i++)
        times[s][i] = times[s][i] ? 0 : -1; /* -1: not this lane's */
    }
    int32_t *stream = lane_stream(r, b);
    iso_string text = {0};
    expected_order order = {.corpus = corpus, .lane = b};
    for (int64_t i = 0; i < r->steps * r->T; i++) {
      if (stream[i] != eos) {
        assert_int_equal(iso_decode(fixture_tokenizer, stream + i, 1, &text), ISO_OK);
        continue;
      }
      int s;
      int64_t number;
      recognise(&text, longest, &s, &number);
      assert_int_equal(number, expected_document(&order));
      assert_int_equal(s, order.source);
      assert_true(times[s][number] >= 0);
      assert_int_equal(times[s][number], met[s] / mine[s]); /* e times before in the lane's epoch e, for every e */
      times[s][number]++;
      met[s]++;
      text.length = 0;
    }
    for (size_t s = 0; s < o->source_count; s++) {
      epochs[s] += met[s] / mine[s];
      free(times[s]);
    }
    iso_string_fini(&text);
    free(stream);
  }
  for (size_t s = 0; s < o->source_count; s++) assert_true(epochs[s] >= 2 * o->batch);
}

static void test_every_document_once_per_lane_epoch(void **state) {
  (void)state;
  iso_source_options sources[3];
  iso_data_options options = three_sources(sources);
  static const int longest[] = {60, 4, 300};
  for (size_t count = 1; count <= 3; count++)
    for (int mask = 0; mask < 2; mask++) {
      options.source_count = count;
      options.document_mask = mask;
      options.validation_every = mask ? 10 : 0;
      options.block_bytes = mask ? 700 : 1 << 20;
      iso_corpus *corpus = open_corpus(&options);
      recording r = record(corpus, &options, 0, count == 1 ? 1000 : 3000, NULL);
      check_ledger(corpus, &r, longest);
      recording_free(&r);
      iso_corpus_close(&corpus);
    }
}

/* ---- the same from many starts ---- */

static uint32_t dice(uint64_t purpose, uint64_t number, uint32_t sides) {
  uint32_t bits[4];
  iso_rng(11, ISO_RNG_TEST, purpose, number, bits);
  return bits[0] % sides;
}

/* Where the steps of one start go in the recording of all. */
static void keep(recording *all, int64_t at, const recording *part, int64_t steps) {
  const size_t ids = (size_t)(all->batch * all->T);
  for (int a = 0; a < 4; a++)
    memcpy(all->arrays[a] + (size_t)at * ids, part->arrays[a], (size_t)steps * ids * sizeof(int32_t));
  memcpy(all->scored + at * all->batch, part->scored, (size_t)(steps * all->batch) * sizeof(int64_t));
  memcpy(all->cursors + (size_t)at * all->cursor_count, part->cursors,
         (size_t)steps * all->cursor_count * sizeof(iso_data_cursor));
}

/* As `ranks` processes would do it: each opens the corpus itself and fills its own contiguous share of the lanes. */
static void fill_by_ranks(const iso_data_options *o, int64_t ranks, const iso_data_cursor *cursors, recording *part) {
  const size_t per_lane = part->cursor_count / (size_t)o->batch;
  for (int64_t rank = 0; rank < ranks; rank++) {
    iso_corpus *corpus = open_corpus(o);
    iso_encoder *encoder = iso_encoder_create(fixture_tokenizer);
    for (int64_t b = rank * o->batch / ranks; b < (rank + 1) * o->batch / ranks; b++) {
      iso_lane *lane;
      assert_int_equal(iso_lane_create(corpus, b, cursors ? cursors + (size_t)b * per_lane : NULL, &lane), ISO_OK);
      for (int64_t s = 0; s < part->steps; s++) {
        const int64_t row = (s * o->batch + b) * o->sequence;
        const iso_sequence out = {part->arrays[0] + row, part->arrays[1] + row, part->arrays[2] + row,
                                  part->arrays[3] + row};
        int64_t bad;
        assert_int_equal(iso_lane_fill(lane, encoder, out, &part->scored[s * o->batch + b],
                                       part->cursors + (size_t)s * part->cursor_count + (size_t)b * per_lane, &bad),
                         ISO_OK);
      }
      iso_lane_destroy(&lane);
    }
    iso_encoder_destroy(&encoder);
    iso_corpus_close(&corpus);
  }
}

/* `all->steps` steps from as many starts as it takes. Each reads ahead of what it hands out, and is killed: the steps
 * after its last durable one are lost and taken again by the next start. */
static void record_through_kills(const iso_corpus *corpus, const iso_data_options *given, recording *all) {
  iso_data_options o = *given;
  int64_t at = 0;
  for (uint64_t start_number = 0; at < all->steps; start_number++) {
    const int64_t left = all->steps - at;
    int64_t steps = 1 + dice(1, start_number, 60), durable = 1 + dice(2, start_number, (uint32_t)steps);
    if (steps > left) steps = left;
    if (durable > steps) durable = steps;
    o.threads = 1 + (int)dice(3, start_number, 4);
    o.slots = 2 + (int)dice(4, start_number, 7);
    o.prefetch = (int)dice(5, start_number, 3) * 3;
    o.on_demand = dice(6, start_number, 6) == 0;
    const iso_data_cursor *cursors = at ? all->cursors + (size_t)(at - 1) * all->cursor_count : NULL;
    recording part;
    if (dice(7, start_number, 3) == 0) {
      part = recording_create(given, steps);
      fill_by_ranks(given, 1 + dice(8, start_number, (uint32_t)given->batch), cursors, &part);
    } else {
      part = record(corpus, &o, at, steps, cursors);
    }
    keep(all, at, &part, durable);
    recording_free(&part);
    at += durable;
  }
}

/* The document texts of test_every_document_once, as JSON lines and as ids. */
static void write_jsonl(const char *name, char tag, int64_t count, int longest) {
  iso_string text = {0}, document = {0};
  for (int64_t i = 0; i < count; i++) {
    document.length = 0;
    fixture_document(&document, tag, i, longest);
    iso_string_printf(&text, "{\"id\": %lld, \"text\": ", (long long)i);
    iso_json_quote(&text, document.data, document.length);
    iso_string_printf(&text, "}\n");
  }
  fixture_write(name, text.data, text.length);
  iso_string_fini(&text);
  iso_string_fini(&document);
}

static void write_ids(const char *name, char tag, int64_t count, int longest) {
  iso_string shard = {0}, document = {0};
  iso_encoder *encoder = iso_encoder_create(fixture_tokenizer);
  for (int64_t i = 0; i < count; i++) {
    document.length = 0;
    fixture_document(&document, tag, i, longest);
    const int32_t *ids;
    size_t n;
    assert_int_equal(iso_encode(encoder, document.data, document.length, false, false, &ids, &n), ISO_OK);
    for (size_t k = 0; k <= n; k++) {
      const uint16_t id = (uint16_t)(k < n ? ids[k] : iso_tokenizer_eos(fixture_tokenizer));
      iso_string_append(&shard, &id, sizeof id);
    }
  }
  fixture_write(name, shard.data, shard.length);
  iso_encoder_destroy(&encoder);
  iso_string_fini(&shard);
  iso_string_fini(&document);
}

static void test_the_ledger_through_kills_and_resumes(void **state) {
  (void)state;
  static const int longest[] = {60, 4, 300};
  iso_source_options sources[3], all[3];
  iso_data_options options = three_sources(sources);
  write_jsonl("mix-b.jsonl", 'b', 90, longest[1]);
  write_ids("mix-c.bin", 'c', 40, longest[2]);
  memcpy(all, sources, sizeof all);
  all[1].path = fixture_path("mix-b.jsonl");
  all[1].separator = "";
  all[2].path = fixture_path("mix-c.bin");
  all[2].format = "tokens";
  all[2].token_type = "uint16";
  all[2].separator = "";
  options.batch = 4;
  options.block_bytes = 600;
  for (int c = 0; c < 4; c++) {
    options.sources = c < 2 ? sources : all;
    options.source_count = c == 0 ? 1 : c == 1 ? 2 : 3;
    options.document_mask = c % 2;
    options.validation_every = c == 3 ? 10 : 0;
    iso_corpus *corpus = open_corpus(&options);
    const int64_t steps = c == 0 ? 700 : 2200;
    recording whole = record(corpus, &options, 0, steps, NULL), parts = recording_create(&options, steps);
    record_through_kills(corpus, &options, &parts);
    assert_continues(&whole, 0, &parts);
    check_ledger(corpus, &parts, longest);
    recording_free(&parts);
    recording_free(&whole);
    iso_corpus_close(&corpus);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_document_once_per_lane_epoch),
      cmocka_unit_test(test_the_ledger_through_kills_and_resumes),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
