/* SPDX-License-Identifier: Apache-2.0
 *
 * packer: a stream of documents' tokens, cut into sequences.
 *
 * A sequence takes T+1 tokens of the stream, T as inputs and the last T as their targets; the next sequence begins T
 * tokens later, so that every token but the stream's first is a target once.
 *
 * Invariants
 *  1. With the document mask, `segments` counts the documents of the sequence from 0, `positions` restart at 0 with
 * each (a document continued from the sequence before restarts at 0 too), and a document's first token is never a
 * target (label -100). EOS is a target.
 *  2. Without it, segments are 0, positions are 0..T-1 and every token is a target.
 *  3. After a call the feed stands at a token that exists, or at the stream's end: a cursor taken there never points
 *     past a block.
 *
 *  4. Padded, a sequence holds tokens of one document: a longer one goes on in the next sequence, whatever is left of a
 *     sequence behind a document's end is fill. Every token but a document's first is a target once.
 *
 * It knows neither files nor lanes.
 */
#include "data/data.h"

#include <string.h>

#define NOT_SCORED (-100)

/* Copies `run` tokens of the current document to places t.. of the sequence; the last one's label is left out. */
static void copy_run(const iso_feed *feed, int64_t run, int64_t t, bool mask, int32_t segment, int64_t place,
                     iso_sequence out) {
  const int32_t *ids = feed->ids + feed->position;
  memcpy(out.tokens + t, ids, (size_t)run * sizeof *ids);
  memcpy(out.labels + t, ids + 1, (size_t)(run - 1) * sizeof *ids);
  for (int64_t i = 0; i < run; i++) {
    out.positions[t + i] = (int32_t)(mask ? place + i : t + i);
    out.segments[t + i] = mask ? segment : 0;
  }
}

/* Places from `t` on after the stream's end: fill, a segment of its own under the mask. */
static void fill_rest(int64_t t, int64_t T, bool mask, int32_t segment, int32_t fill, iso_sequence out) {
  for (int64_t i = t; i < T; i++) {
    out.tokens[i] = fill;
    out.labels[i] = NOT_SCORED;
    out.positions[i] = (int32_t)(mask ? i - t : i);
    out.segments[i] = mask ? segment : 0;
  }
}

iso_status iso_feed_pack(iso_feed *feed, int64_t T, bool mask, int32_t fill, iso_sequence out, int64_t *valid,
                         int64_t *scored) {
  bool end = false;
  int64_t t = 0, place = 0, firsts = 0; /* firsts: documents' first tokens that the mask takes from the targets */
  int32_t segment = 0;
  if (feed->position == feed->count) ISO_TRY(feed->next(feed->context, feed, &end));
  while (t < T && !end) {
    int64_t run = feed->count - feed->position;
    if (run > T - t) run = T - t;
    copy_run(feed, run, t, mask, segment, place, out);
    feed->position += run;
    t += run;
    place += run;
    if (feed->position < feed->count) {
      out.labels[t - 1] = feed->ids[feed->position];
      continue;
    }
    ISO_TRY(feed->next(feed->context, feed, &end));
    if (end) break;
    out.labels[t - 1] = mask ? NOT_SCORED : feed->ids[feed->position];
    firsts += mask;
    segment++;
    place = 0;
  }
  if (end && t > 0) t--; /* the stream's last token has no target */
  if (end) fill_rest(t, T, mask, segment + (t > 0), fill, out);
  *valid = t;
  *scored = t - firsts;
  return ISO_OK;
}

iso_status iso_feed_pad(iso_feed *feed, int64_t T, bool mask, int32_t fill, iso_sequence out, int64_t *scored) {
  bool end = false;
  if (feed->position == feed->count) ISO_TRY(feed->next(feed->context, feed, &end));
  int64_t run = feed->count - feed->position;
  if (run > T) run = T;
  if (!end) copy_run(feed, run, 0, mask, 0, 0, out);
  if (end) run = 0;
  feed->position += run;
  *scored = run;
  if (feed->position < feed->count) { /* it goes on: the next token is the last one's target */
    out.labels[run - 1] = feed->ids[feed->position];
    return ISO_OK;
  }
  if (run > 0) out.labels[run - 1] = NOT_SCORED, --*scored;
  fill_rest(run, T, mask, run > 0, fill, out);
  return end ? ISO_OK : feed->next(feed->context, feed, &end); /* to stand at a token that exists */
}
