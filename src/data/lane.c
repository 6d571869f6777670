/* SPDX-License-Identifier: Apache-2.0
 *
 * lane: the endless stream of one sequence slot.
 *
 * A lane follows its walk document by document. Documents are read and tokenised one at a time as sequences need them,
 * so that the work is even from step to step; what is held is one document's tokens and the text of a few. Text comes
 * from a prefetch where there is one, else the lane reads it.
 *
 * Invariants
 *  1. Between fills the lane stands at a token of its current block; its cursors say which: the current source's
 *     (epoch, block, offset of the token in the block), every other source's next block with offset 0, and the draws.
 *  2. A lane restored from cursors gives what the lane that gave them would have given.
 *  3. Bad documents (skip) have no tokens and move no cursor; each is reported once, by the fill that first meets it.
 *
 * It is used by one thread at a time.
 */
#include "data/data.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define EMPTY_BLOCKS 16 /* blocks without a good document in a row, per block of the lane, before giving up */

typedef struct text_run { /* a span as it lies in its file */
  const char *at;         /* in `bytes`, or in a file that is held whole */
  char *bytes;
  size_t capacity;
  iso_span span; /* end <= first: none */
} text_run;

struct iso_lane {
  const iso_corpus *corpus;
  const iso_data_options *options;
  iso_walk walk; /* next: the document to come. The current source's offset is before + feed.position */
  bool restored; /* cursors were given: skip `resume_offset` tokens of the first block */
  int64_t resume_offset;
  int64_t before;       /* tokens of the current block before the current document */
  int64_t empty_blocks; /* passed in a row without a token */
  iso_feed feed;
  iso_encoder *encoder;   /* of the thread that fills now */
  iso_prefetch *prefetch; /* or NULL */
  iso_whole *whole;       /* or NULL */
  double *read_s;         /* or NULL: adds up what reading takes */
  iso_loaded loaded;      /* the current document */
  text_run text;
  int64_t *bad; /* sorted: source and document of each bad one */
  int64_t bad_count, bad_capacity;
  iso_skipped *skipped; /* of the last fill */
  int64_t skipped_count, skipped_capacity;
  iso_lane_observer observer;
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
  atomic_store_explicit(&lane->stage_source, lane->walk.source, memory_order_relaxed);
}

/* ---- text ---- */

static iso_status reserve_text(text_run *text, size_t bytes) {
  bool too_small = bytes > text->capacity;
  bool too_large = text->capacity > 4 * ISO_LANE_TEXT_BYTES && text->capacity / 4 > bytes; /* after a long document */
  if (!too_small && !too_large) return ISO_OK;
  free(text->bytes);
  text->capacity = bytes < ISO_LANE_TEXT_BYTES ? ISO_LANE_TEXT_BYTES : bytes;
  text->bytes = malloc(text->capacity);
  if (text->bytes) return ISO_OK;
  text->capacity = 0;
  return iso_fail(ISO_ERR_MEMORY, "data: no memory for a document of %zu bytes; split it with a separator", bytes);
}

/* The span that begins with document k, which a prefetch may have read already. */
static iso_status read_text(iso_lane *lane, int64_t k) {
  text_run *text = &lane->text;
  iso_span span;
  text->span.first = text->span.end = 0;
  set_stage(lane, ISO_LANE_READ);
  if (lane->prefetch) {
    char *bytes;
    ISO_TRY(iso_prefetch_take(lane->prefetch, lane->walk.lane, &span, &bytes));
    if (span.draw != lane->walk.draws || span.first != k) {
      free(bytes);
      return iso_fail(ISO_ERR_INTERNAL, "data: lane %lld was given text of another place", (long long)lane->walk.lane);
    }
    if (bytes) {
      free(text->bytes);
      *text = (text_run){bytes, bytes, (size_t)span.bytes, span};
      return ISO_OK;
    }
  } else {
    iso_walk_span(&lane->walk, k, ISO_LANE_TEXT_BYTES, &span);
  }
  if (lane->whole && !lane->prefetch) {
    const char *file;
    ISO_TRY(iso_whole_text(lane->whole, span.source, span.file, &file));
    if (file) {
      text->at = file + span.offset;
      text->span = span;
      return ISO_OK;
    }
  }
  ISO_TRY(reserve_text(text, (size_t)span.bytes));
  ISO_TRY(
      iso_source_read(iso_corpus_source(lane->corpus, span.source), span.file, span.offset, span.bytes, text->bytes));
  text->at = text->bytes;
  text->span = span;
  return ISO_OK;
}

static iso_status read_timed(iso_lane *lane, int64_t k) {
  const double began = lane->read_s ? iso_clock_s() : 0;
  const iso_status status = read_text(lane, k);
  if (lane->read_s) *lane->read_s += iso_clock_s() - began;
  return status;
}

/* ---- bad documents ---- */

/* Where (source, document) stands, or would stand, in the sorted list of pairs. */
static int64_t bad_place(const iso_lane *lane, int64_t source, int64_t document, bool *known) {
  int64_t low = 0, high = lane->bad_count;
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    const int64_t *entry = lane->bad + 2 * middle;
    if (entry[0] < source || (entry[0] == source && entry[1] < document))
      low = middle + 1;
    else
      high = middle;
  }
  *known = low < lane->bad_count && lane->bad[2 * low] == source && lane->bad[2 * low + 1] == document;
  return low;
}

/* Makes room for one more element of `bytes`; false: no memory. */
static bool reserve_one(void **list, int64_t count, int64_t *capacity, size_t bytes) {
  if (count < *capacity) return true;
  int64_t wanted = *capacity ? 2 * *capacity : 16;
  void *grown = realloc(*list, (size_t)wanted * bytes);
  if (!grown) return false;
  *list = grown;
  *capacity = wanted;
  return true;
}

iso_status iso_lane_know(iso_lane *lane, int64_t source, int64_t document) {
  bool known;
  int64_t place = bad_place(lane, source, document, &known);
  if (known) return ISO_OK;
  void *list = lane->bad;
  if (!reserve_one(&list, lane->bad_count, &lane->bad_capacity, 2 * sizeof *lane->bad))
    return iso_fail(ISO_ERR_MEMORY, "data: no memory to list bad documents");
  lane->bad = list;
  int64_t *at = lane->bad + 2 * place;
  memmove(at + 2, at, (size_t)(lane->bad_count - place) * 2 * sizeof *at);
  at[0] = source;
  at[1] = document;
  lane->bad_count++;
  return ISO_OK;
}

/* The document just loaded is bad: unless it is known already, it is listed and reported. */
static iso_status leave_out(iso_lane *lane, int64_t document) {
  const int64_t source = lane->walk.source, known = lane->bad_count;
  ISO_TRY(iso_lane_know(lane, source, document));
  if (lane->bad_count == known) return ISO_OK;
  void *list = lane->skipped;
  if (!reserve_one(&list, lane->skipped_count, &lane->skipped_capacity, sizeof *lane->skipped))
    return iso_fail(ISO_ERR_MEMORY, "data: no memory to list bad documents");
  lane->skipped = list;
  const iso_source *from = iso_corpus_source(lane->corpus, source);
  iso_skipped *entry = &lane->skipped[lane->skipped_count++];
  *entry = (iso_skipped){lane->walk.lane,
                         source,
                         document,
                         lane->loaded.why.byte,
                         iso_source_file(from, iso_source_document(from, document).file)->path,
                         ""};
  snprintf(entry->cause, sizeof entry->cause, "%s", lane->loaded.why.cause);
  if (lane->bad_count <= lane->options->max_bad_documents) return ISO_OK;
  return iso_fail(ISO_ERR_FORMAT,
                  "data: more than %lld bad documents (data.max_bad_documents), the last one document %lld of \"%s\"; "
                  "correct them or raise the limit",
                  (long long)lane->options->max_bad_documents, (long long)document,
                  lane->options->sources[source].path);
}

/* ---- blocks and documents ---- */

static iso_status count_empty_block(iso_lane *lane) {
  int64_t blocks = 0;
  for (int64_t s = 0; s < lane->walk.sources; s++) blocks += iso_corpus_lane_blocks(lane->corpus, s, lane->walk.lane);
  if (++lane->empty_blocks <= EMPTY_BLOCKS * blocks) return ISO_OK;
  return iso_fail(ISO_ERR_FORMAT, "data: lane %lld finds no good document: %lld blocks in a row hold bad ones only",
                  (long long)lane->walk.lane, (long long)lane->empty_blocks);
}

/* Tokenises training document k of the current block into the feed; count 0 when it is bad and left out. */
static iso_status load_document(iso_lane *lane, int64_t k) {
  text_run *text = &lane->text;
  if (k < text->span.first || k >= text->span.end) ISO_TRY(read_timed(lane, k));
  const iso_document place = iso_walk_document(&lane->walk, k);
  const iso_source *source = iso_corpus_source(lane->corpus, lane->walk.source);
  const int64_t document = iso_corpus_train_index(lane->corpus, lane->walk.source, k);
  const char *stored = text->at + (place.offset - text->span.offset);
  lane->feed.position = lane->feed.count = 0;
  const iso_whole_ids *held =
      lane->whole && !lane->observer.seen ? iso_whole_ids_get(lane->whole, lane->walk.source, document) : NULL;
  if (held) {
    lane->feed.ids = held->ids;
    lane->feed.count = held->count;
    return ISO_OK;
  }
  set_stage(lane, ISO_LANE_TOKENIZE);
  ISO_TRY(iso_document_load(&lane->loaded, source, document, stored, lane->encoder,
                            (int32_t)iso_tokenizer_eos(iso_corpus_tokenizer(lane->corpus)), lane->options->skip_bad,
                            false));
  lane->feed.ids = lane->loaded.ids;
  lane->feed.count = lane->loaded.count;
  if (lane->loaded.bad) return leave_out(lane, document);
  if (lane->whole) iso_whole_ids_keep(lane->whole, lane->walk.source, document, lane->loaded.ids, lane->loaded.count);
  if (lane->observer.seen)
    ISO_TRY(lane->observer.seen(lane->observer.context, lane->walk.source, document, stored, &lane->loaded));
  return ISO_OK;
}

/* iso_feed's next: the next good document of the stream, however many blocks away. */
static iso_status next_document(void *context, iso_feed *feed, bool *end) {
  iso_lane *lane = context;
  *end = false;
  lane->before += feed->count;
  feed->position = feed->count = 0;
  for (;;) {
    while (lane->walk.next < lane->walk.end) {
      ISO_TRY(load_document(lane, lane->walk.next++));
      if (feed->count == 0) continue;
      lane->empty_blocks = 0;
      set_stage(lane, ISO_LANE_PACK);
      return ISO_OK;
    }
    if (lane->walk.draws > 0 && lane->before == 0) ISO_TRY(count_empty_block(lane));
    iso_walk_next_block(&lane->walk);
    lane->before = 0;
    lane->text.span.first = lane->text.span.end = 0;
  }
}

/* Goes to the token that the given cursors name. */
static iso_status restore(iso_lane *lane) {
  int64_t left = lane->resume_offset;
  lane->before = 0;
  while (lane->walk.next < lane->walk.end) {
    ISO_TRY(load_document(lane, lane->walk.next++));
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
      (long long)lane->walk.lane, (long long)lane->resume_offset, lane->options->sources[lane->walk.source].path,
      (long long)lane->before);
}

/* ---- the lane ---- */

iso_status iso_lane_create(const iso_corpus *corpus, int64_t index, const iso_data_cursor *cursors, iso_lane **out) {
  *out = NULL;
  iso_lane *lane = calloc(1, sizeof *lane);
  if (!lane) return iso_fail(ISO_ERR_MEMORY, "data: no memory for lane %lld", (long long)index);
  lane->corpus = corpus;
  lane->options = iso_corpus_options(corpus);
  lane->feed.next = next_document;
  lane->feed.context = lane;
  iso_status status = iso_walk_init(&lane->walk, corpus, index);
  if (status == ISO_OK && cursors) status = iso_walk_set(&lane->walk, cursors);
  if (status != ISO_OK) {
    iso_lane_destroy(&lane);
    return status;
  }
  lane->restored = lane->walk.draws > 0;
  lane->resume_offset = lane->walk.cursors[lane->walk.source].offset;
  *out = lane;
  return ISO_OK;
}

void iso_lane_destroy(iso_lane **lane_address) {
  iso_lane *lane = *lane_address;
  if (!lane) return;
  iso_walk_fini(&lane->walk);
  iso_loaded_fini(&lane->loaded);
  free(lane->text.bytes);
  free(lane->bad);
  free(lane->skipped);
  free(lane);
  *lane_address = NULL;
}

iso_status iso_lane_read_ahead(iso_lane *lane, iso_prefetch *prefetch) {
  lane->prefetch = prefetch;
  return iso_prefetch_begin(prefetch, &lane->walk);
}

void iso_lane_share(iso_lane *lane, iso_whole *whole) {
  lane->whole = whole;
}

void iso_lane_time_reads(iso_lane *lane, double *read_s) {
  lane->read_s = read_s;
}

void iso_lane_observe(iso_lane *lane, iso_lane_observer observer) {
  lane->observer = observer;
}

int64_t iso_lane_skipped(const iso_lane *lane, const iso_skipped **skipped) {
  *skipped = lane->skipped;
  return lane->skipped_count;
}

size_t iso_lane_bytes(const iso_lane *lane) {
  return lane->text.capacity + lane->loaded.capacity * sizeof *lane->loaded.ids + lane->loaded.scratch.capacity;
}

iso_status iso_lane_fill(iso_lane *lane, iso_encoder *encoder, iso_sequence out, int64_t *scored,
                         iso_data_cursor *cursors, int64_t *bad) {
  int64_t valid = 0;
  lane->encoder = encoder;
  lane->skipped_count = 0;
  if (lane->restored) ISO_TRY(restore(lane));
  set_stage(lane, ISO_LANE_PACK);
  const iso_data_options *o = lane->options;
  const int32_t eos = (int32_t)iso_tokenizer_eos(iso_corpus_tokenizer(lane->corpus));
  if (o->pad)
    ISO_TRY(iso_feed_pad(&lane->feed, o->sequence, o->document_mask, eos, out, scored));
  else
    ISO_TRY(iso_feed_pack(&lane->feed, o->sequence, o->document_mask, eos, out, &valid, scored));
  iso_walk *walk = &lane->walk;
  walk->cursors[walk->source].offset = lane->before + lane->feed.position;
  memcpy(cursors, walk->cursors, (size_t)walk->sources * sizeof *cursors);
  if (walk->sources > 1) cursors[walk->sources] = (iso_data_cursor){walk->draws, walk->source, 0};
  *bad = lane->bad_count;
  set_stage(lane, ISO_LANE_IDLE);
  return ISO_OK;
}
