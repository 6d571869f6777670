/* SPDX-License-Identifier: Apache-2.0
 *
 * whole: small files, read once and held.
 *
 * Blocks of a small corpus are a few hundred bytes each and come in random order; opening, checking and reading a file
 * for each of them would cost more than to tokenise them. The lanes of a ring share one copy of each small file instead
 * of having room for text of their own, so what is held is no more than the memory plan counts for that.
 *
 * Invariants
 *  1. A lane gets the bytes that it would have read, and the same refusal of a file that has changed: that is looked at
 *     once a round (a slot of the ring) for each file from which something is had.
 *  2. A file is read when a lane comes to it first, whole; a read that fails is that lane's error, and is tried again
 *     by the next one.
 *  3. What is held, tokens included, is at most the limit given, and belongs to no lane; it does not move.
 *  4. Held tokens are those that the document's bytes gave, which are looked at for changes as in 1.
 *
 * Where room is left, the tokens of their documents are held too: a lane that comes to a document again, an epoch
 * later, does not tokenise it again.
 *
 * Remote files are not held: they are read ahead (prefetch.c).
 */
#include "data/data.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct iso_whole {
  const iso_corpus *corpus;
  int64_t *first;           /* [sources]: of its files in `text`; -1: none is held */
  char *_Atomic *text;      /* NULL: not read yet */
  _Atomic int64_t *checked; /* the round in which it was last found unchanged */
  _Atomic int64_t round;
  int64_t files;
  iso_whole_ids *_Atomic **ids; /* [sources][documents]; NULL: none of that source are held */
  _Atomic int64_t room;         /* bytes that tokens may still take */
  _Atomic int64_t ids_bytes;    /* that they take */
  pthread_mutex_t lock;         /* of reading */
};

/* Bytes of a file that documents lie in: those of the damage that ends it too. */
static int64_t bytes_of(const iso_data_file *file) {
  return file->bytes + file->damage.is;
}

/* Of all files of the source; -1: it is remote. */
static int64_t source_bytes(const iso_source *source) {
  int64_t bytes = 0;
  if (iso_source_remote(source)) return -1;
  for (int64_t f = 0; f < iso_source_files(source); f++) bytes += bytes_of(iso_source_file(source, f));
  return bytes;
}

/* Places for the tokens of each text source that is held. */
static bool make_places(iso_whole *whole) {
  const size_t sources = iso_corpus_options(whole->corpus)->source_count;
  whole->ids = calloc(sources, sizeof *whole->ids);
  for (size_t s = 0; whole->ids && s < sources; s++) {
    const iso_source *source = iso_corpus_source(whole->corpus, (int64_t)s);
    const int64_t bytes = iso_source_documents(source) * (int64_t)sizeof **whole->ids;
    if (whole->first[s] < 0 || iso_source_content(source) != ISO_CONTENT_TEXT || bytes > whole->room) continue;
    whole->ids[s] = calloc((size_t)iso_source_documents(source), sizeof **whole->ids);
    if (!whole->ids[s]) return false;
    whole->room -= bytes;
    whole->ids_bytes += bytes;
  }
  return whole->ids != NULL;
}

iso_status iso_whole_create(const iso_corpus *corpus, int64_t limit, bool tokens, iso_whole **out) {
  const size_t sources = iso_corpus_options(corpus)->source_count;
  iso_whole *whole = *out = calloc(1, sizeof *whole);
  if (!whole) return iso_fail(ISO_ERR_MEMORY, "data: no memory for small files");
  whole->corpus = corpus;
  pthread_mutex_init(&whole->lock, NULL);
  whole->first = calloc(sources, sizeof *whole->first);
  for (size_t s = 0; whole->first && s < sources; s++) {
    const iso_source *source = iso_corpus_source(corpus, (int64_t)s);
    const int64_t bytes = source_bytes(source);
    const bool fits = bytes >= 0 && bytes <= limit;
    whole->first[s] = fits ? whole->files : -1;
    if (!fits) continue;
    limit -= bytes;
    whole->files += iso_source_files(source);
  }
  whole->text = calloc((size_t)whole->files + 1, sizeof *whole->text);
  whole->checked = calloc((size_t)whole->files + 1, sizeof *whole->checked);
  whole->room = limit;
  if (whole->first && whole->text && whole->checked && (!tokens || make_places(whole))) return ISO_OK;
  iso_whole_destroy(out);
  return iso_fail(ISO_ERR_MEMORY, "data: no memory for small files");
}

void iso_whole_destroy(iso_whole **address) {
  iso_whole *whole = *address;
  if (!whole) return;
  for (int64_t f = 0; whole->text && f < whole->files; f++) free(atomic_load(&whole->text[f]));
  for (size_t s = 0; whole->ids && s < iso_corpus_options(whole->corpus)->source_count; s++) {
    const int64_t documents = whole->ids[s] ? iso_source_documents(iso_corpus_source(whole->corpus, (int64_t)s)) : 0;
    for (int64_t d = 0; d < documents; d++) free(atomic_load(&whole->ids[s][d]));
    free((void *)whole->ids[s]);
  }
  free((void *)whole->ids);
  free((void *)whole->text);
  free((void *)whole->checked);
  free(whole->first);
  pthread_mutex_destroy(&whole->lock);
  free(whole);
  *address = NULL;
}

static iso_status read_whole(const iso_source *source, int64_t file, char *_Atomic *text) {
  const int64_t bytes = bytes_of(iso_source_file(source, file));
  char *copy = malloc(bytes ? (size_t)bytes : 1);
  if (!copy)
    return iso_fail(ISO_ERR_MEMORY, "data: no memory for the %lld bytes of \"%s\"", (long long)bytes,
                    iso_source_file(source, file)->path);
  const iso_status status = iso_source_read(source, file, 0, bytes, copy);
  if (status == ISO_OK)
    atomic_store(text, copy);
  else
    free(copy);
  return status;
}

iso_status iso_whole_text(iso_whole *whole, int64_t source_index, int64_t file, const char **out) {
  *out = NULL;
  if (whole->first[source_index] < 0) return ISO_OK;
  const iso_source *source = iso_corpus_source(whole->corpus, source_index);
  const int64_t place = whole->first[source_index] + file, round = atomic_load(&whole->round);
  char *_Atomic *text = &whole->text[place];
  if (atomic_load(text)) {
    if (atomic_load(&whole->checked[place]) < round) ISO_TRY(iso_blob_check(iso_source_file(source, file)->blob));
  } else {
    pthread_mutex_lock(&whole->lock);
    const iso_status status = atomic_load(text) ? ISO_OK : read_whole(source, file, text);
    pthread_mutex_unlock(&whole->lock);
    ISO_TRY(status);
  }
  atomic_store(&whole->checked[place], round);
  *out = atomic_load(text);
  return ISO_OK;
}

const iso_whole_ids *iso_whole_ids_get(const iso_whole *whole, int64_t source, int64_t document) {
  return whole->ids && whole->ids[source] ? atomic_load_explicit(&whole->ids[source][document], memory_order_acquire)
                                          : NULL;
}

void iso_whole_ids_keep(iso_whole *whole, int64_t source, int64_t document, const int32_t *ids, int64_t count) {
  if (!whole->ids || !whole->ids[source]) return;
  const int64_t bytes = (int64_t)sizeof(iso_whole_ids) + count * (int64_t)sizeof *ids;
  if (atomic_fetch_sub(&whole->room, bytes) < bytes) {
    atomic_fetch_add(&whole->room, bytes);
    return;
  }
  iso_whole_ids *kept = malloc((size_t)bytes), *none = NULL;
  if (kept) {
    kept->count = count;
    memcpy(kept->ids, ids, (size_t)count * sizeof *ids);
    if (atomic_compare_exchange_strong(&whole->ids[source][document], &none, kept)) {
      atomic_fetch_add(&whole->ids_bytes, bytes);
      return;
    }
  }
  free(kept); /* no memory: it is tokenised again; or another thread was first */
  atomic_fetch_add(&whole->room, bytes);
}

void iso_whole_next_round(iso_whole *whole) {
  atomic_fetch_add(&whole->round, 1);
}

size_t iso_whole_bytes(const iso_whole *whole) {
  size_t bytes = (size_t)atomic_load(&whole->ids_bytes);
  for (size_t s = 0; s < iso_corpus_options(whole->corpus)->source_count; s++) {
    const iso_source *source = iso_corpus_source(whole->corpus, (int64_t)s);
    for (int64_t f = 0; whole->first[s] >= 0 && f < iso_source_files(source); f++)
      if (atomic_load(&whole->text[whole->first[s] + f])) bytes += (size_t)bytes_of(iso_source_file(source, f));
  }
  return bytes;
}
