/* SPDX-License-Identifier: Apache-2.0
 *
 * held: stored bytes of held-out documents, in order.
 *
 * Of a local source they are read one at a time. Of a remote one a window of them is read at once: neighbours in one
 * piece where the gap between them is small, and several pieces side by side, so that a round trip is paid for
 * thousands of documents and not for each.
 *
 * Invariants
 *  1. A document's bytes are those that iso_source_read gives.
 *  2. At most WINDOW_PIECES x PIECE_BYTES are held, or one document where that is longer.
 */
#include "data/data.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_DOCUMENTS 4096
#define WINDOW_PIECES    16          /* as many threads */
#define PIECE_BYTES      (1LL << 20) /* a longer document alone */
#define GAP_BYTES        (64LL << 10)

typedef struct piece { /* of one file, read at once */
  const iso_source *source;
  int64_t file, offset, length;
  char *bytes;
  size_t capacity;
  bool read;
} piece;

struct iso_held {
  const iso_corpus *corpus;
  int64_t first, end; /* documents in the window */
  piece pieces[WINDOW_PIECES];
  int piece_count;
  unsigned char *piece_of; /* [WINDOW_DOCUMENTS] */
  _Atomic int next;        /* piece to read */
};

iso_status iso_held_open(const iso_corpus *corpus, iso_held **out) {
  iso_held *held = calloc(1, sizeof *held);
  *out = held;
  if (held) held->corpus = corpus;
  if (held) held->piece_of = malloc(WINDOW_DOCUMENTS);
  if (held && held->piece_of) return ISO_OK;
  iso_held_close(out);
  return iso_fail(ISO_ERR_MEMORY, "data: no memory to read held-out text");
}

void iso_held_close(iso_held **address) {
  iso_held *held = *address;
  if (!held) return;
  for (int i = 0; i < WINDOW_PIECES; i++) free(held->pieces[i].bytes);
  free(held->piece_of);
  free(held);
  *address = NULL;
}

/* The document goes into the last piece, or a new one; false: the window is full. */
static bool add(iso_held *held, const iso_source *source, iso_document place) {
  piece *last = held->piece_count ? &held->pieces[held->piece_count - 1] : NULL;
  const int64_t end = place.offset + place.length;
  const bool near = last && last->source == source && last->file == place.file && place.offset >= last->offset &&
                    place.offset - (last->offset + last->length) <= GAP_BYTES && end - last->offset <= PIECE_BYTES;
  if (near) {
    if (end - last->offset > last->length) last->length = end - last->offset;
    return true;
  }
  if (held->piece_count == WINDOW_PIECES || (last && place.length > PIECE_BYTES)) return false;
  piece *own = &held->pieces[held->piece_count++];
  own->source = source, own->file = place.file, own->offset = place.offset, own->length = place.length;
  own->read = false;
  return true;
}

static iso_status read_piece(piece *p) {
  if ((size_t)p->length > p->capacity) {
    free(p->bytes);
    p->bytes = malloc((size_t)p->length);
    p->capacity = p->bytes ? (size_t)p->length : 0;
    if (!p->bytes)
      return iso_fail(ISO_ERR_MEMORY, "data: no memory for a document of %lld bytes", (long long)p->length);
  }
  ISO_TRY(iso_source_read(p->source, p->file, p->offset, p->length, p->bytes));
  p->read = true;
  return ISO_OK;
}

static void *read_pieces(void *argument) {
  iso_held *held = argument;
  for (int i; (i = atomic_fetch_add(&held->next, 1)) < held->piece_count;) (void)!read_piece(&held->pieces[i]);
  return NULL;
}

/* A window that begins with document v. */
static iso_status fill(iso_held *held, int64_t v) {
  iso_corpus_info info;
  iso_corpus_info_get(held->corpus, &info);
  held->first = held->end = v;
  held->piece_count = 0;
  while (held->end < info.validation_documents && held->end - v < WINDOW_DOCUMENTS) {
    iso_source *source;
    int64_t document;
    iso_corpus_validation_index(held->corpus, held->end, &source, &document);
    if (held->end > v && !iso_source_remote(source)) break;
    if (!add(held, source, iso_source_document(source, document))) break;
    held->piece_of[held->end++ - v] = (unsigned char)(held->piece_count - 1);
    if (!iso_source_remote(source)) break;
  }
  pthread_t threads[WINDOW_PIECES];
  int started = 0;
  atomic_store(&held->next, 0);
  while (held->piece_count > 1 && started < held->piece_count - 1 &&
         iso_thread_start(&threads[started], read_pieces, held) == 0)
    started++;
  if (held->piece_count > 1) read_pieces(held);
  for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
  iso_status status = ISO_OK; /* what could not be read is tried once more, here, where the error belongs */
  for (int i = 0; i < held->piece_count && status == ISO_OK; i++)
    if (!held->pieces[i].read) status = read_piece(&held->pieces[i]);
  if (status != ISO_OK) held->end = held->first;
  return status;
}

iso_status iso_held_get(iso_held *held, int64_t v, iso_source **source, int64_t *document, const char **stored) {
  iso_corpus_validation_index(held->corpus, v, source, document);
  if (v < held->first || v >= held->end) ISO_TRY(fill(held, v));
  const piece *p = &held->pieces[held->piece_of[v - held->first]];
  *stored = p->bytes + (iso_source_document(*source, *document).offset - p->offset);
  return ISO_OK;
}
