/* SPDX-License-Identifier: Apache-2.0
 *
 * walk: where a lane goes, without reading anything.
 *
 * A lane's way through the corpus is a pure function of its cursors: it draws a source, visits that source's next block
 * document by document, and draws again. A walk is a place on that way; whoever reads ahead has one of its own that
 * stands further on.
 *
 * Invariants
 *  1. Two walks from the same cursors go the same way.
 *  2. A span never crosses a file or a block, and where it is cut depends on its first document and `limit` alone.
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

iso_status iso_walk_init(iso_walk *walk, const iso_corpus *corpus, int64_t lane) {
  *walk = (iso_walk){.corpus = corpus, .lane = lane};
  walk->sources = (int64_t)iso_corpus_options(corpus)->source_count;
  walk->cursors = calloc((size_t)walk->sources, sizeof *walk->cursors);
  if (walk->cursors) return ISO_OK;
  return iso_fail(ISO_ERR_MEMORY, "data: no memory for lane %lld", (long long)lane);
}

iso_status iso_walk_copy(iso_walk *to, const iso_walk *from) {
  ISO_TRY(iso_walk_init(to, from->corpus, from->lane));
  iso_data_cursor *cursors = to->cursors;
  *to = *from;
  to->cursors = cursors;
  memcpy(cursors, from->cursors, (size_t)from->sources * sizeof *cursors);
  return ISO_OK;
}

void iso_walk_fini(iso_walk *walk) {
  free(walk->cursors);
  memset(walk, 0, sizeof *walk);
}

static void open_block(iso_walk *walk) {
  const iso_data_cursor *cursor = &walk->cursors[walk->source];
  iso_corpus_lane_block(walk->corpus, walk->source, walk->lane, cursor->epoch, cursor->block, &walk->next, &walk->end);
}

void iso_walk_next_block(iso_walk *walk) {
  if (walk->draws > 0) { /* the current block is used up: its source's cursor moves to its next one */
    iso_data_cursor *cursor = &walk->cursors[walk->source];
    cursor->offset = 0;
    if (++cursor->block == iso_corpus_lane_blocks(walk->corpus, walk->source, walk->lane)) {
      cursor->block = 0;
      cursor->epoch++;
    }
  }
  walk->source = iso_corpus_draw(walk->corpus, walk->lane, walk->draws++);
  open_block(walk);
}

static iso_status bad_cursor(const iso_walk *walk, const iso_data_cursor *cursor, const char *what) {
  return iso_fail(ISO_ERR_MISMATCH,
                  "data: the cursor of lane %lld (epoch %lld, block %lld, offset %lld) %s; it is not of this corpus",
                  (long long)walk->lane, (long long)cursor->epoch, (long long)cursor->block, (long long)cursor->offset,
                  what);
}

iso_status iso_walk_set(iso_walk *walk, const iso_data_cursor *given) {
  bool begun = false;
  for (int64_t s = 0; s < walk->sources; s++) {
    const iso_data_cursor *cursor = &given[s];
    if (cursor->epoch < 0 || cursor->block < 0 || cursor->offset < 0) return bad_cursor(walk, cursor, "is negative");
    if (cursor->block >= iso_corpus_lane_blocks(walk->corpus, s, walk->lane))
      return bad_cursor(walk, cursor, "names a block that the lane does not have");
    begun = begun || cursor->epoch || cursor->block || cursor->offset;
    walk->cursors[s] = *cursor;
  }
  walk->draws = begun;
  if (walk->sources > 1) {
    const iso_data_cursor *mixture = &given[walk->sources];
    if (mixture->epoch < 0 || mixture->block < 0 || mixture->block >= walk->sources || mixture->offset != 0)
      return bad_cursor(walk, mixture, "is no mixture state");
    if (mixture->epoch == 0 && (begun || mixture->block)) return bad_cursor(walk, mixture, "has no draw yet");
    walk->draws = mixture->epoch;
    walk->source = mixture->block;
  }
  for (int64_t s = 0; s < walk->sources; s++)
    if (s != walk->source && given[s].offset)
      return bad_cursor(walk, &given[s], "has an offset in a source that is not current");
  if (walk->draws > 0) open_block(walk);
  return ISO_OK;
}

iso_document iso_walk_document(const iso_walk *walk, int64_t k) {
  return iso_source_document(iso_corpus_source(walk->corpus, walk->source),
                             iso_corpus_train_index(walk->corpus, walk->source, k));
}

void iso_walk_span(const iso_walk *walk, int64_t k, int64_t limit, iso_span *span) {
  const iso_document first = iso_walk_document(walk, k);
  *span = (iso_span){walk->draws, walk->source, first.file, first.offset, first.length, k, k + 1};
  for (; span->end < walk->end; span->end++) {
    const iso_document next = iso_walk_document(walk, span->end);
    const int64_t bytes = next.offset + next.length - first.offset;
    if (next.file != first.file || next.offset < first.offset || bytes > limit) return;
    if (bytes > span->bytes) span->bytes = bytes;
  }
}

static int64_t block_bytes(const iso_walk *walk, int64_t source, int64_t epoch, int64_t index) {
  int64_t first, end, bytes = 0;
  iso_corpus_lane_block(walk->corpus, source, walk->lane, epoch, index, &first, &end);
  for (int64_t k = first; k < end; k++)
    bytes += iso_source_size(iso_corpus_source(walk->corpus, source), iso_corpus_train_index(walk->corpus, source, k));
  return bytes;
}

/* Of one lane and source: its whole epochs, the blocks before the cursor, and the cursor's if it is begun. */
static int64_t drawn(const iso_walk *walk, int64_t source) {
  const iso_data_cursor *cursor = &walk->cursors[source];
  const int64_t blocks = iso_corpus_lane_blocks(walk->corpus, source, walk->lane);
  const int64_t begun = cursor->block + (walk->draws > 0 && walk->source == source);
  int64_t bytes = 0, all = 0;
  for (int64_t i = 0; i < begun; i++) bytes += block_bytes(walk, source, cursor->epoch, i);
  for (int64_t i = 0; i < blocks && cursor->epoch > 0; i++) all += block_bytes(walk, source, 0, i);
  return bytes + cursor->epoch * all;
}

iso_status iso_walk_drawn(const iso_corpus *corpus, const iso_data_cursor *cursors, int64_t *bytes) {
  const iso_data_options *options = iso_corpus_options(corpus);
  const int64_t sources = (int64_t)options->source_count;
  for (int64_t s = 0; s < sources; s++) bytes[s] = 0;
  for (int64_t lane = 0; lane < options->batch; lane++) {
    iso_walk walk;
    ISO_TRY(iso_walk_init(&walk, corpus, lane));
    const iso_status status = iso_walk_set(&walk, cursors + lane * (sources + (sources > 1)));
    for (int64_t s = 0; s < sources && status == ISO_OK; s++) bytes[s] += drawn(&walk, s);
    iso_walk_fini(&walk);
    ISO_TRY(status);
  }
  return ISO_OK;
}
