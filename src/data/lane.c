/* SPDX-License-Identifier: Apache-2.0
 *
 * lane: the endless stream of one sequence slot.
 *
 * A lane reads its blocks document by document, in the order of its epoch; when a block ends it draws the source of the
 * next one. Documents are read and tokenised one at a time as sequences need them, so that the work is even from step
 * to step; what is held is one document's tokens and the text of a few.
 *
 * Invariants
 *  1. Between fills the lane stands at a token of its current block; its cursors say which: the current source's
 *     (epoch, block, offset of the token in the block), every other source's next block with offset 0, and the draws.
 *  2. A lane restored from cursors gives what the lane that gave them would have given.
 *  3. Bad documents (skip) have no tokens and move no cursor; each is reported once in a lane's life.
 *
 * It is used by one thread at a time.
 */
#include "data/data.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define READ_AHEAD_BYTES (64 << 10) /* text read at once; a longer document alone */
#define EMPTY_BLOCKS_PER_BLOCK                                                                                         \
  16 /* blocks without a good document in a row, per block of the lane, before giving up                               \
      */

typedef struct text_run { /* consecutive training documents, as they lie in one file */
  char *bytes;
  size_t capacity;
  int64_t file, base; /* file offset of bytes[0] */
  int64_t first, end; /* training documents */
} text_run;

struct iso_lane {
  const iso_corpus *corpus;
  const iso_data_options *options;
  int64_t lane, sources;
  iso_data_cursor *cursors; /* [sources]; offset of the current one is kept in `before` + feed.position */
  int64_t draws, source;    /* source: current one, once draws > 0 */
  bool restored;            /* cursors were given: skip `resume_offset` tokens of the first block */
  int64_t resume_offset;
  int64_t next_document, end_document; /* of the current block: training documents still to come */
  int64_t before;                      /* tokens of the current block before the current document */
  int64_t empty_blocks;                /* passed in a row without a token */
  iso_feed feed;
  iso_encoder *encoder; /* of the thread that fills now */
  iso_loaded loaded;    /* the current document */
  text_run text;
  int64_t *bad; /* sorted: source and document of each bad one */
  int64_t bad_count, bad_capacity;
  _Atomic int stage; /* what it does now, for whoever waits */
  _Atomic int64_t stage_source;
};

size_t iso_data_cursor_count(const iso_data_options *options) {
  return (size_t)options->batch * (options->source_count + (options->source_count > 1));
}

iso_lane_stage iso_lane_stage_get(const iso_lane *lane, int64_t *source) {
  *source = atomic_load_explicit(&lane->stage_source, memory_order_relaxed);
  return (iso_lane_stage)atomic_load_explicit(&lane->stage, memory_order_relaxed);
}

static void set_stage(iso_lane *lane, iso_lane_stage stage) {
  atomic_store_explicit(&lane->stage, (int)stage, memory_order_relaxed);
  atomic_store_explicit(&lane->stage_source, lane->source, memory_order_relaxed);
}

/* ---- text ---- */

static iso_document document_place(const iso_lane *lane, int64_t k) {
  return iso_source_document(iso_corpus_source(lane->corpus, lane->source),
                             iso_corpus_train_index(lane->corpus, lane->source, k));
}

static iso_status reserve_text(text_run *text, size_t bytes) {
  bool too_small = bytes > text->capacity;
  bool too_large = text->capacity > 4 * READ_AHEAD_BYTES && text->capacity / 4 > bytes; /* after a long document */
  if (!too_small && !too_large) return ISO_OK;
  free(text->bytes);
  text->capacity = bytes < READ_AHEAD_BYTES ? READ_AHEAD_BYTES : bytes;
  text->bytes = malloc(text->capacity);
  if (text->bytes) return ISO_OK;
  text->capacity = 0;
  return iso_fail(ISO_ERR_MEMORY, "data: no memory for a document of %zu bytes; split it with a separator", bytes);
}

/* Reads training document k, and as many after it as lie in the same file and block and READ_AHEAD_BYTES. */
static iso_status read_text(iso_lane *lane, int64_t k) {
  text_run *text = &lane->text;
  iso_document first = document_place(lane, k);
  int64_t bytes = first.length, end = k + 1;
  for (; end < lane->end_document; end++) {
    iso_document next = document_place(lane, end);
    if (next.file != first.file || next.offset + next.length - first.offset > READ_AHEAD_BYTES) break;
    bytes = next.offset + next.length - first.offset;
  }
  text->first = text->end = 0;
  ISO_TRY(reserve_text(text, (size_t)bytes));
  set_stage(lane, ISO_LANE_READ);
  ISO_TRY(iso_source_read(iso_corpus_source(lane->corpus, lane->source), first.file, first.offset, bytes, text->bytes));
  text->file = first.file;
  text->base = first.offset;
  text->first = k;
  text->end = end;
  return ISO_OK;
}

/* ---- bad documents ---- */

/* Where (source, document) stands, or would stand, in the sorted list of pairs. */
static int64_t bad_place(const iso_lane *lane, int64_t document, bool *known) {
  int64_t low = 0, high = lane->bad_count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    const int64_t *entry = lane->bad + 2 * middle;
    if (entry[0] < lane->source || (entry[0] == lane->source && entry[1] < document))
      low = middle + 1;
    else
      high = middle;
  }
  *known = low < lane->bad_count && lane->bad[2 * low] == lane->source && lane->bad[2 * low + 1] == document;
  return low;
}

static iso_status bad_add(iso_lane *lane, int64_t place, int64_t document) {
  if (lane->bad_count == lane->bad_capacity) {
    int64_t capacity = lane->bad_capacity ? 2 * lane->bad_capacity : 16;
    int64_t *grown = realloc(lane->bad, (size_t)capacity * 2 * sizeof *grown);
    if (!grown) return iso_fail(ISO_ERR_MEMORY, "data: no memory to list bad documents");
    lane->bad = grown;
    lane->bad_capacity = capacity;
  }
  int64_t *at = lane->bad + 2 * place;
  memmove(at + 2, at, (size_t)(lane->bad_count - place) * 2 * sizeof *at);
  at[0] = lane->source;
  at[1] = document;
  lane->bad_count++;
  if (lane->bad_count <= lane->options->max_bad_documents) return ISO_OK;
  return iso_fail(ISO_ERR_FORMAT,
                  "data: more than %lld bad documents (data.max_bad_documents), the last one document %lld of \"%s\"; "
                  "correct them or raise the limit",
                  (long long)lane->options->max_bad_documents, (long long)document,
                  lane->options->sources[lane->source].path);
}

/* ---- blocks and documents ---- */

/* Draws a source and opens its next block. */
static void open_block(iso_lane *lane) {
  lane->source = iso_corpus_draw(lane->corpus, lane->lane, lane->draws);
  lane->draws++;
  const iso_data_cursor *cursor = &lane->cursors[lane->source];
  iso_corpus_lane_block(lane->corpus, lane->source, lane->lane, cursor->epoch, cursor->block, &lane->next_document,
                        &lane->end_document);
  lane->before = 0;
  lane->text.first = lane->text.end = 0;
}

/* The current block is used up: its source's cursor moves to its next one. */
static void close_block(iso_lane *lane) {
  iso_data_cursor *cursor = &lane->cursors[lane->source];
  cursor->offset = 0;
  if (++cursor->block < iso_corpus_lane_blocks(lane->corpus, lane->source, lane->lane)) return;
  cursor->block = 0;
  cursor->epoch++;
}

static iso_status count_empty_block(iso_lane *lane) {
  int64_t blocks = 0;
  for (int64_t s = 0; s < lane->sources; s++) blocks += iso_corpus_lane_blocks(lane->corpus, s, lane->lane);
  if (++lane->empty_blocks <= EMPTY_BLOCKS_PER_BLOCK * blocks) return ISO_OK;
  return iso_fail(ISO_ERR_FORMAT, "data: lane %lld finds no good document: %lld blocks in a row hold bad ones only",
                  (long long)lane->lane, (long long)lane->empty_blocks);
}

/* Tokenises training document k of the current block into the feed; count 0 when it is bad and left out. */
static iso_status load_document(iso_lane *lane, int64_t k) {
  text_run *text = &lane->text;
  if (k < text->first || k >= text->end) ISO_TRY(read_text(lane, k));
  iso_document place = document_place(lane, k);
  const iso_source *source = iso_corpus_source(lane->corpus, lane->source);
  const int64_t document = iso_corpus_train_index(lane->corpus, lane->source, k);
  bool known = false;
  int64_t bad_at = bad_place(lane, document, &known);
  set_stage(lane, ISO_LANE_TOKENIZE);
  lane->feed.position = lane->feed.count = 0;
  ISO_TRY(iso_document_load(&lane->loaded, source, document, text->bytes + (place.offset - text->base), lane->encoder,
                            (int32_t)iso_tokenizer_eos(iso_corpus_tokenizer(lane->corpus)), lane->options->skip_bad,
                            !known));
  lane->feed.ids = lane->loaded.ids;
  lane->feed.count = lane->loaded.count;
  if (lane->loaded.bad && !known) ISO_TRY(bad_add(lane, bad_at, document));
  return ISO_OK;
}

/* iso_feed's next: the next good document of the stream, however many blocks away. */
static iso_status next_document(void *context, iso_feed *feed, bool *end) {
  iso_lane *lane = context;
  *end = false;
  lane->before += feed->count;
  feed->position = feed->count = 0;
  for (;;) {
    while (lane->next_document < lane->end_document) {
      ISO_TRY(load_document(lane, lane->next_document++));
      if (feed->count == 0) continue;
      lane->empty_blocks = 0;
      set_stage(lane, ISO_LANE_PACK);
      return ISO_OK;
    }
    if (lane->draws > 0) {
      if (lane->before == 0) ISO_TRY(count_empty_block(lane));
      close_block(lane);
    }
    open_block(lane);
  }
}

/* Goes to the token that the given cursors name. */
static iso_status restore(iso_lane *lane) {
  const iso_data_cursor *cursor = &lane->cursors[lane->source];
  int64_t left = lane->resume_offset;
  iso_corpus_lane_block(lane->corpus, lane->source, lane->lane, cursor->epoch, cursor->block, &lane->next_document,
                        &lane->end_document);
  lane->before = 0;
  while (lane->next_document < lane->end_document) {
    ISO_TRY(load_document(lane, lane->next_document++));
    if (left < lane->feed.count) {
      lane->feed.position = left;
      lane->restored = false;
      return ISO_OK;
    }
    left -= lane->feed.count;
    lane->before += lane->feed.count;
  }
  return iso_fail(
      ISO_ERR_MISMATCH,
      "data: lane %lld stands at token %lld of a block of \"%s\" that has %lld; the corpus or the tokenizer "
      "is not the run's",
      (long long)lane->lane, (long long)lane->resume_offset, lane->options->sources[lane->source].path,
      (long long)lane->before);
}

/* ---- the lane ---- */

static iso_status bad_cursor(const iso_lane *lane, const iso_data_cursor *cursor, const char *what) {
  return iso_fail(ISO_ERR_MISMATCH,
                  "data: the cursor of lane %lld (epoch %lld, block %lld, offset %lld) %s; it is not of this corpus",
                  (long long)lane->lane, (long long)cursor->epoch, (long long)cursor->block, (long long)cursor->offset,
                  what);
}

static iso_status set_cursors(iso_lane *lane, const iso_data_cursor *given) {
  bool begun = false;
  for (int64_t s = 0; s < lane->sources; s++) {
    const iso_data_cursor *cursor = &given[s];
    if (cursor->epoch < 0 || cursor->block < 0 || cursor->offset < 0) return bad_cursor(lane, cursor, "is negative");
    if (cursor->block >= iso_corpus_lane_blocks(lane->corpus, s, lane->lane))
      return bad_cursor(lane, cursor, "names a block that the lane does not have");
    begun = begun || cursor->epoch || cursor->block || cursor->offset;
    lane->cursors[s] = *cursor;
  }
  lane->draws = begun;
  if (lane->sources > 1) {
    const iso_data_cursor *mixture = &given[lane->sources];
    if (mixture->epoch < 0 || mixture->block < 0 || mixture->block >= lane->sources || mixture->offset != 0)
      return bad_cursor(lane, mixture, "is no mixture state");
    if (mixture->epoch == 0 && (begun || mixture->block)) return bad_cursor(lane, mixture, "has no draw yet");
    lane->draws = mixture->epoch;
    lane->source = mixture->block;
  }
  for (int64_t s = 0; s < lane->sources; s++)
    if (s != lane->source && given[s].offset)
      return bad_cursor(lane, &given[s], "has an offset in a source that is not current");
  lane->restored = lane->draws > 0;
  lane->resume_offset = lane->cursors[lane->source].offset;
  return ISO_OK;
}

iso_status iso_lane_create(const iso_corpus *corpus, int64_t index, const iso_data_cursor *cursors, iso_lane **out) {
  *out = NULL;
  iso_lane *lane = calloc(1, sizeof *lane);
  if (lane) {
    lane->corpus = corpus;
    lane->options = iso_corpus_options(corpus);
    lane->lane = index;
    lane->sources = (int64_t)lane->options->source_count;
    lane->feed.next = next_document;
    lane->feed.context = lane;
    lane->cursors = calloc((size_t)lane->sources, sizeof *lane->cursors);
  }
  iso_status status = ISO_OK;
  if (!lane || !lane->cursors)
    status = iso_fail(ISO_ERR_MEMORY, "data: no memory for lane %lld", (long long)index);
  else if (cursors)
    status = set_cursors(lane, cursors);
  if (status != ISO_OK) {
    iso_lane_destroy(&lane);
    return status;
  }
  *out = lane;
  return ISO_OK;
}

void iso_lane_destroy(iso_lane **lane_address) {
  iso_lane *lane = *lane_address;
  if (!lane) return;
  free(lane->cursors);
  iso_loaded_fini(&lane->loaded);
  free(lane->text.bytes);
  free(lane->bad);
  free(lane);
  *lane_address = NULL;
}

iso_status iso_lane_fill(iso_lane *lane, iso_encoder *encoder, iso_sequence out, int64_t *scored,
                         iso_data_cursor *cursors, int64_t *bad) {
  int64_t valid = 0;
  lane->encoder = encoder;
  if (lane->restored) ISO_TRY(restore(lane));
  set_stage(lane, ISO_LANE_PACK);
  ISO_TRY(iso_feed_pack(&lane->feed, lane->options->sequence, lane->options->document_mask,
                        (int32_t)iso_tokenizer_eos(iso_corpus_tokenizer(lane->corpus)), out, &valid, scored));
  lane->cursors[lane->source].offset = lane->before + lane->feed.position;
  memcpy(cursors, lane->cursors, (size_t)lane->sources * sizeof *cursors);
  if (lane->sources > 1) cursors[lane->sources] = (iso_data_cursor){lane->draws, lane->source, 0};
  *bad = lane->bad_count;
  set_stage(lane, ISO_LANE_IDLE);
  return ISO_OK;
}
