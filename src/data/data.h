/* SPDX-License-Identifier: Apache-2.0
 *
 * data: from a corpus to batch slots, ahead of the step.
 *
 * Invariants
 *  1. The batch of a step is a pure function of (config, seed, lane cursors at that step); threads, slots and timing change nothing.
 *  2. Within a lane-epoch every document of the lane's blocks comes exactly once, whole, in block order.
 *  3. A cursor is that of the last step handed out, never of what was read ahead.
 *  4. No document is dropped or altered silently.
 *
 * Letters: B sequence slots of the global batch (lane b fills slot b), T tokens of a sequence.
 */
#ifndef ISO_DATA_H
#define ISO_DATA_H

#include "text/text.h"
#include "io/io.h"

typedef struct iso_source_options {
  const char *path;      /* file, folder (all regular files below it, sorted) or glob */
  const char *format;    /* "auto", "text"; others: UNSUPPORTED by name for now */
  double weight;
  const char *separator; /* text: splits documents; "" = the file is one document. The separator itself belongs to no document. */
  bool parse_special;
} iso_source_options;

typedef struct iso_data_options {
  const iso_source_options *sources;
  size_t source_count;
  int64_t sequence;        /* T */
  int64_t batch;           /* B */
  uint64_t seed;
  bool document_mask, pad; /* pad: UNSUPPORTED for now, by name */
  int64_t block_bytes;
  int slots, threads;
  bool skip_bad;           /* on_bad: skip */
  int64_t max_bad_documents;
  int64_t validation_every, validation_offset;
  const char *validation_path; /* "" or file/folder */
} iso_data_options;

/* ---- corpus.c: documents and blocks ------------------------------------------------------------- */

typedef struct iso_corpus iso_corpus;
/* Opens and indexes (mmap; document bounds only). CONFIG when the corpus is too small for B lanes: says how many documents/bytes there are and what would do. MISMATCH/FORMAT as text.h says. */
iso_status iso_corpus_open(const iso_data_options *options, const iso_tokenizer *tokenizer, iso_corpus **out) ISO_MUST_CHECK;
void iso_corpus_close(iso_corpus **corpus);
/* Bytes of a block finally chosen (recorded with the run), documents and bytes of the training and of the validation part. */
typedef struct iso_corpus_info {
  int64_t block_bytes, blocks;
  int64_t train_documents, train_bytes, validation_documents, validation_bytes;
  char digest[65]; /* SHA-256 over paths' base names, sizes and block bounds: a changed corpus is refused on resume */
} iso_corpus_info;
void iso_corpus_info_get(const iso_corpus *corpus, iso_corpus_info *info);
/* Document i of the training (or validation) part, in corpus order: bytes borrowed from the map. */
void iso_corpus_document(const iso_corpus *corpus, bool validation, int64_t index, const char **bytes, size_t *length);

/* ---- packer.c: documents to sequences ------------------------------------------------------------ */

/* Where one sequence's arrays are: T entries each. */
typedef struct iso_sequence {
  int32_t *tokens, *labels, *positions, *segments; /* labels: target of each position, -100 = not scored */
} iso_sequence;

typedef struct iso_data_cursor { /* of one lane and source */
  int64_t epoch, block, offset; /* offset: tokens of the block already passed */
} iso_data_cursor;

/* Validation text in order as windows of T: call until `*valid` is 0. `valid` counts the real positions of the window (the last one may be short: its rest is filled with EOS, not scored). */
typedef struct iso_validation iso_validation;
iso_status iso_validation_open(const iso_corpus *corpus, int64_t max_bytes /* 0: all */, iso_validation **out) ISO_MUST_CHECK;
/* The same over one text given whole: documents are its parts by `separator`. */
iso_status iso_validation_open_text(const iso_tokenizer *tokenizer, const char *text, size_t length, const char *separator, int64_t sequence, bool document_mask, bool parse_special, iso_validation **out) ISO_MUST_CHECK;
void iso_validation_close(iso_validation **validation);
iso_status iso_validation_next(iso_validation *validation, iso_sequence sequence, int64_t *valid) ISO_MUST_CHECK;
/* So far: bytes of documents, tokens (EOS included), tokens that nothing predicts (each document's first under the mask; the very first without). */
void iso_validation_totals(const iso_validation *validation, int64_t *bytes, int64_t *tokens, int64_t *unpredicted);

/* ---- ring.c: batch slots ---------------------------------------------------------------------------- */

typedef struct iso_slot {
  int64_t step;
  int32_t *tokens, *labels, *positions, *segments; /* [B*T] each, row b = lane b */
  int64_t *scored;            /* [B]: scored positions of each sequence */
  iso_data_cursor *cursors;   /* [B*sources]: after this step */
} iso_slot;

typedef struct iso_ring iso_ring;
/* Memory of the slots: bytes per slot * slots. */
size_t iso_ring_bytes(const iso_data_options *options);
/* Starts data threads; batches from `first_step` on, with lanes at `cursors` (NULL: the beginning). */
iso_status iso_ring_start(const iso_corpus *corpus, const iso_data_options *options, int64_t first_step, const iso_data_cursor *cursors, iso_ring **out) ISO_MUST_CHECK;
void iso_ring_stop(iso_ring **ring);
/* Next slot in step order; blocks until it is filled. wait_s: seconds waited. An error met by a data thread is returned here (logged once by the thread that met it). */
iso_status iso_ring_take(iso_ring *ring, iso_slot **slot, double *wait_s) ISO_MUST_CHECK;
void iso_ring_release(iso_ring *ring, iso_slot *slot);
/* Slots filled and waiting now. */
int iso_ring_depth(const iso_ring *ring);

#endif
