/* SPDX-License-Identifier: Apache-2.0
 *
 * format parquet: a document is a row's string in one column.
 *
 * A row deep inside a compressed page cannot be read by its bytes, so the column is written out once, into the cache
 * folder:
 *
 *   the strings, back to back | u64 length of each row | u64 rows | "ISOCOL1\n"      (little-endian)
 *
 * A null row is written as its number (from 0, in digits), and flagged by the highest bit of its length.
 *
 * Invariants
 *  1. A file is written out whole, or it is an error that says where the file is damaged; with skip_damaged, the pages
 *     before that.
 *  2. Every row is a document but those with an empty string; null rows are bad ones.
 *
 * Memory: 8 bytes a row while it is written out, and what parquet.h says.
 */
#include "data/data.h"
#include "data/parquet/parquet.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC       "ISOCOL1\n"
#define NULL_ROW    (UINT64_C(1) << 63)
#define BUFFER      (1 << 20)
#define CHUNK_BYTES (4 << 20)

/* ---- writing the column out ---- */

typedef struct writing {
  const iso_source_options *options;
  const iso_data_file *file;
  iso_sink *sink;
  uint64_t *lengths;
  size_t rows, capacity;
  char *buffer;
  size_t held;
  iso_transfer progress;
  bool muted; /* only progress is logged */
} writing;

static iso_status flush(writing *w) {
  size_t held = w->held;
  w->held = 0;
  return held ? iso_sink_write(w->sink, w->buffer, held) : ISO_OK;
}

static iso_status put(writing *w, const char *bytes, size_t length) {
  if (length > BUFFER - w->held) ISO_TRY(flush(w));
  if (length > BUFFER) return iso_sink_write(w->sink, bytes, length);
  memcpy(w->buffer + w->held, bytes, length);
  w->held += length;
  return ISO_OK;
}

static iso_status add_row(void *context, const char *bytes, size_t length) {
  writing *w = context;
  char number[24];
  if (w->rows == w->capacity) {
    size_t capacity = w->capacity ? w->capacity + w->capacity / 2 : 4096;
    uint64_t *grown = realloc(w->lengths, capacity * sizeof *grown);
    if (!grown) return iso_fail(ISO_ERR_MEMORY, "data: no memory for the rows of \"%s\"", w->file->path);
    w->lengths = grown;
    w->capacity = capacity;
  }
  if (!bytes) {
    length = (size_t)snprintf(number, sizeof number, "%zu", w->rows);
    w->lengths[w->rows++] = NULL_ROW | length;
    return put(w, number, length);
  }
  w->lengths[w->rows++] = length;
  return length ? put(w, bytes, length) : ISO_OK;
}

static iso_status read_blob(void *context, int64_t offset, int64_t length, void *buffer) {
  writing *w = context;
  iso_log_mute(false);
  iso_transfer_at(&w->progress, offset);
  iso_log_mute(w->muted);
  return iso_blob_read(w->file->blob, offset, length, buffer);
}

/* Gives the rows; with `damage`, those before what is wrong with the file, which it takes. */
static iso_status read_rows(writing *w, iso_damage *damage) {
  const iso_data_file *file = w->file;
  int64_t sound = 0;
  const iso_parquet_input input = {file->path, file->bytes, read_blob, w, w->options->set_field, &sound};
  if (!damage) return iso_parquet_read(&input, w->options->field, add_row, w);
  iso_log_mute(w->muted = true);
  const iso_status status = iso_parquet_read(&input, w->options->field, add_row, w);
  iso_log_mute(w->muted = false);
  if (status == ISO_OK) return ISO_OK;
  if (status != ISO_ERR_FORMAT) return iso_fail(status, "%s", iso_last_error());
  w->rows = (size_t)sound;
  iso_damage_tell(damage, file->path, iso_last_error());
  return ISO_OK;
}

static iso_status write_column(writing *w, iso_damage *damage) {
  const iso_data_file *file = w->file;
  iso_transfer_init(&w->progress, "unpacking a column of", file->path, file->bytes);
  ISO_TRY(read_rows(w, damage));
  iso_transfer_end(&w->progress, file->bytes);
  const uint64_t rows = w->rows;
  for (size_t i = 0; i < w->rows; i++) ISO_TRY(put(w, (const char *)&w->lengths[i], 8));
  ISO_TRY(put(w, (const char *)&rows, 8));
  ISO_TRY(put(w, MAGIC, 8));
  ISO_TRY(flush(w));
  if (damage) damage->kept = w->sink->bytes;
  return ISO_OK;
}

static iso_status fill(void *context, iso_sink *sink, iso_damage *damage) {
  writing *w = context;
  w->sink = sink;
  w->buffer = malloc(BUFFER);
  iso_status status =
      w->buffer ? write_column(w, damage) : iso_fail(ISO_ERR_MEMORY, "data: no memory to read \"%s\"", w->file->path);
  free(w->buffer);
  free(w->lengths);
  w->buffer = NULL;
  w->lengths = NULL;
  w->rows = w->capacity = w->held = 0;
  return status;
}

iso_status iso_parquet_unpack(const iso_source_options *options, iso_data_file *file) {
  writing w = {.options = options, .file = file};
  const char *more[] = {"parquet column 2", options->field};
  char key[65];
  iso_unpack_key(iso_blob_info_of(file->blob), more, ISO_COUNT(more), key);
  return iso_unpack(options, file, key, fill, &w);
}

/* ---- reading it ---- */

static iso_status not_ours(const iso_data_file *file) {
  return iso_fail(ISO_ERR_FORMAT, "data: what was unpacked from \"%s\" (\"%s\") is damaged; remove it", file->path,
                  iso_blob_info_of(file->blob)->path);
}

static iso_status add_rows(iso_indexer *indexer, char *buffer, int64_t begin, int64_t rows) {
  int64_t offset = 0;
  for (int64_t done = 0; done < rows;) {
    int64_t now = rows - done < CHUNK_BYTES / 8 ? rows - done : CHUNK_BYTES / 8;
    ISO_TRY(iso_indexer_next(indexer, buffer, 8 * now));
    for (int64_t i = 0; i < now; i++) {
      uint64_t length;
      memcpy(&length, buffer + 8 * i, 8);
      const bool null = length & NULL_ROW;
      length &= ~NULL_ROW;
      if (length > (uint64_t)(begin - offset)) return not_ours(indexer->file);
      ISO_TRY(iso_indexer_add(indexer, offset, (int64_t)length, null));
      offset += (int64_t)length;
    }
    done += now;
  }
  /* Of a damaged file, rows of the page that broke off may lie behind those that count. */
  return offset == begin || (indexer->file->damage.is && offset < begin) ? ISO_OK : not_ours(indexer->file);
}

static iso_status index_column(iso_indexer *indexer, char *buffer) {
  const iso_data_file *file = indexer->file;
  struct {
    uint64_t rows;
    char magic[8];
  } tail;
  if (file->bytes < (int64_t)sizeof tail) return not_ours(file);
  ISO_TRY(iso_blob_read(file->blob, file->bytes - (int64_t)sizeof tail, sizeof tail, &tail));
  const int64_t left = file->bytes - (int64_t)sizeof tail;
  if (memcmp(tail.magic, MAGIC, 8) != 0 || tail.rows > (uint64_t)left / 8) return not_ours(file);
  const int64_t begin = left - 8 * (int64_t)tail.rows;
  while (indexer->position < begin) {
    int64_t want = begin - indexer->position;
    ISO_TRY(iso_indexer_next(indexer, buffer, want < CHUNK_BYTES ? want : CHUNK_BYTES));
  }
  return add_rows(indexer, buffer, begin, (int64_t)tail.rows);
}

iso_status iso_parquet_index(iso_indexer *indexer) {
  char *buffer = malloc(CHUNK_BYTES);
  if (!buffer) return iso_fail(ISO_ERR_MEMORY, "data: no memory to index \"%s\"", indexer->file->path);
  iso_status status = index_column(indexer, buffer);
  free(buffer);
  return status;
}

iso_status iso_parquet_text(const iso_source_options *options, const iso_data_file *file, int64_t offset, bool flagged,
                            const char *stored, size_t length, iso_string *scratch, const char **text, size_t *bytes,
                            iso_bad *bad) {
  (void)file, (void)offset, (void)scratch, (void)text, (void)bytes;
  if (!flagged) return ISO_OK;
  bad->is = true;
  snprintf(bad->cause, sizeof bad->cause, "row %.*s of column \"%.80s\" is null", (int)length, stored, options->field);
  return ISO_OK;
}

bool iso_parquet_probe(const uint8_t *first, size_t bytes) {
  return bytes >= 4 && (memcmp(first, "PAR1", 4) == 0 || memcmp(first, "PARE", 4) == 0);
}
