/* SPDX-License-Identifier: Apache-2.0
 *
 * trace: which bytes of which documents a batch held.
 *
 * Lanes are filled again from cursors, as a ring would fill them, and watched: the documents that a lane loads, one
 * after another, are its stream, of which each sequence is the next T tokens. Nothing is taken from the run but its
 * cursors.
 *
 * Which bytes a token stands for is known where the tokens' bytes, one after another, are the text (a tokenizer that
 * rewrites text, by NFC say, may give others: then only whole documents have bytes). One leading space more than the
 * text has is SentencePiece's.
 *
 * Invariants
 *  1. The pieces of a sequence are its T tokens (with data.pad: those before the fill), in order, without gaps.
 *  2. Between calls a lane holds the documents from the one that its next token is in.
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

typedef struct seen_document {
  int64_t source, document, tokens, bytes; /* tokens: EOS counts; bytes: of its text */
  int64_t *ends;                           /* [tokens]: bytes up to and with each token; NULL: not known */
} seen_document;

typedef struct lane_trace {
  struct iso_trace *trace;
  iso_lane *lane;
  seen_document *documents; /* from the one at `at` on */
  int64_t count, capacity;
  int64_t at; /* tokens of documents[0] that are passed */
} lane_trace;

struct iso_trace {
  const iso_corpus *corpus;
  iso_encoder *encoder;
  int64_t lane_count, T;
  lane_trace *lanes;
  int32_t *arrays;          /* of one sequence */
  iso_data_cursor *cursors; /* of one lane */
  iso_string scratch;
  iso_trace_piece *pieces;
  int64_t piece_capacity;
};

/* Fills ends[]; false: the tokens' bytes are not the text. `text` NULL: a shard, whose text is what they decode to. */
static bool find_ends(const iso_tokenizer *tokenizer, const int32_t *ids, int64_t tokens, const char *text,
                      size_t length, int64_t *ends) {
  size_t at = 0;
  for (int64_t i = 0; i + 1 < tokens; i++) {
    size_t bytes = 0;
    const char *token = iso_tokenizer_bytes(tokenizer, ids[i], &bytes);
    if (!token) return false;
    if (text && i == 0 && bytes > 0 && token[0] == ' ' && (length == 0 || text[0] != ' ')) token++, bytes--;
    if (text && (bytes > length - at || memcmp(text + at, token, bytes) != 0)) return false;
    at += bytes;
    ends[i] = (int64_t)at;
  }
  ends[tokens - 1] = (int64_t)at; /* EOS has no text */
  return !text || at == length;
}

static iso_status no_memory(void) {
  return iso_fail(ISO_ERR_MEMORY, "data: no memory to trace documents");
}

static iso_status seen(void *context, int64_t source_index, int64_t document, const char *stored,
                       const iso_loaded *loaded) {
  lane_trace *lane = context;
  struct iso_trace *trace = lane->trace;
  const iso_source *source = iso_corpus_source(trace->corpus, source_index);
  const char *text = NULL;
  size_t length = (size_t)loaded->text_bytes;
  iso_bad bad;
  if (iso_source_content(source) == ISO_CONTENT_TEXT)
    ISO_TRY(iso_source_text(source, document, stored, (size_t)iso_source_document(source, document).length,
                            &trace->scratch, &text, &length, &bad));
  if (lane->count == lane->capacity) {
    const int64_t wanted = lane->capacity ? 2 * lane->capacity : 16;
    seen_document *grown = realloc(lane->documents, (size_t)wanted * sizeof *grown);
    if (!grown) return no_memory();
    lane->documents = grown;
    lane->capacity = wanted;
  }
  int64_t *ends = malloc((size_t)loaded->count * sizeof *ends);
  if (!ends) return no_memory();
  if (!find_ends(iso_corpus_tokenizer(trace->corpus), loaded->ids, loaded->count, text, length, ends)) {
    free(ends);
    ends = NULL;
  }
  lane->documents[lane->count++] = (seen_document){source_index, document, loaded->count, (int64_t)length, ends};
  return ISO_OK;
}

static iso_trace_piece make_piece(const seen_document *d, int64_t first, int64_t end) {
  iso_trace_piece piece = {d->source, d->document, first, end, d->tokens, -1, -1};
  if (d->ends) {
    piece.byte = first ? d->ends[first - 1] : 0;
    piece.byte_end = d->ends[end - 1];
  } else if (first == 0 && end >= d->tokens - 1) {
    piece.byte = 0;
    piece.byte_end = d->bytes;
  }
  return piece;
}

static void forget(lane_trace *lane, int64_t documents) {
  for (int64_t i = 0; i < documents; i++) free(lane->documents[i].ends);
  lane->count -= documents;
  if (lane->count) memmove(lane->documents, lane->documents + documents, (size_t)lane->count * sizeof *lane->documents);
}

/* Whole documents before `at` are passed. */
static void settle(lane_trace *lane) {
  int64_t passed = 0;
  while (passed < lane->count && lane->at >= lane->documents[passed].tokens)
    lane->at -= lane->documents[passed++].tokens;
  forget(lane, passed);
}

iso_status iso_trace_next(iso_trace *trace, int64_t lane_index, const iso_trace_piece **pieces, int64_t *count) {
  lane_trace *lane = &trace->lanes[lane_index];
  const int64_t T = trace->T;
  int64_t scored, bad;
  *count = 0;
  ISO_TRY(iso_lane_fill(lane->lane, trace->encoder,
                        (iso_sequence){trace->arrays, trace->arrays + T, trace->arrays + 2 * T, trace->arrays + 3 * T},
                        &scored, trace->cursors, &bad));
  settle(lane);
  int64_t left = T;
  if (iso_corpus_options(trace->corpus)->pad && lane->count && lane->documents[0].tokens - lane->at < T)
    left = lane->documents[0].tokens - lane->at; /* the rest is fill */
  const int64_t held = left;
  for (int64_t i = 0; left > 0 && i < lane->count; i++) {
    const int64_t first = i == 0 ? lane->at : 0;
    int64_t end = lane->documents[i].tokens;
    if (end - first > left) end = first + left;
    if (*count == trace->piece_capacity) {
      const int64_t wanted = trace->piece_capacity ? 2 * trace->piece_capacity : 64;
      iso_trace_piece *grown = realloc(trace->pieces, (size_t)wanted * sizeof *grown);
      if (!grown) return no_memory();
      trace->pieces = grown;
      trace->piece_capacity = wanted;
    }
    trace->pieces[(*count)++] = make_piece(&lane->documents[i], first, end);
    left -= end - first;
  }
  if (left > 0)
    return iso_fail(ISO_ERR_INTERNAL, "data: lane %lld lacks %lld tokens", (long long)lane_index, (long long)left);
  lane->at += held;
  settle(lane);
  *pieces = trace->pieces;
  return ISO_OK;
}

static iso_status open_lanes(iso_trace *trace, const iso_data_cursor *cursors) {
  const size_t per_lane = iso_data_cursor_count(iso_corpus_options(trace->corpus)) / (size_t)trace->lane_count;
  const size_t sources = iso_corpus_options(trace->corpus)->source_count;
  trace->lanes = calloc((size_t)trace->lane_count, sizeof *trace->lanes);
  trace->arrays = malloc((size_t)(4 * trace->T) * sizeof *trace->arrays);
  trace->cursors = malloc(per_lane * sizeof *trace->cursors);
  trace->encoder = iso_encoder_create(iso_corpus_tokenizer(trace->corpus));
  if (!trace->lanes || !trace->arrays || !trace->cursors || !trace->encoder) return no_memory();
  for (int64_t b = 0; b < trace->lane_count; b++) {
    lane_trace *lane = &trace->lanes[b];
    const iso_data_cursor *own = cursors ? cursors + (size_t)b * per_lane : NULL;
    lane->trace = trace;
    ISO_TRY(iso_lane_create(trace->corpus, b, own, &lane->lane));
    iso_lane_observe(lane->lane, (iso_lane_observer){seen, lane});
    for (size_t s = 0; own && s < sources; s++) lane->at += own[s].offset; /* only the current source has one */
  }
  return ISO_OK;
}

iso_status iso_trace_open(const iso_corpus *corpus, const iso_data_cursor *cursors, iso_trace **out) {
  *out = NULL;
  iso_trace *trace = calloc(1, sizeof *trace);
  if (!trace) return no_memory();
  trace->corpus = corpus;
  trace->lane_count = iso_corpus_options(corpus)->batch;
  trace->T = iso_corpus_options(corpus)->sequence;
  const iso_status status = open_lanes(trace, cursors);
  if (status == ISO_OK)
    *out = trace;
  else
    iso_trace_close(&trace);
  return status;
}

void iso_trace_close(iso_trace **address) {
  iso_trace *trace = *address;
  if (!trace) return;
  for (int64_t b = 0; trace->lanes && b < trace->lane_count; b++) {
    forget(&trace->lanes[b], trace->lanes[b].count);
    free(trace->lanes[b].documents);
    iso_lane_destroy(&trace->lanes[b].lane);
  }
  free(trace->lanes);
  free(trace->arrays);
  free(trace->cursors);
  free(trace->pieces);
  iso_encoder_destroy(&trace->encoder);
  iso_string_fini(&trace->scratch);
  free(trace);
  *address = NULL;
}
