/* SPDX-License-Identifier: Apache-2.0
 *
 * format jsonl: a document is the string of one field of a line's JSON object.
 *
 * Indexing checks each line and keeps where the string's content lies, escaped as in the file; reading unescapes it. A
 * bad line is kept whole, flagged, and found bad again, with the cause, when it is read.
 *
 * Invariants
 *  1. A document's place and whether it is bad depend on its line and the field alone.
 *  2. Lines end with LF or CRLF; the last may lack it, but not in a damaged file. Blank lines and empty strings are no
 * documents. A byte order mark before the first line is skipped.
 *
 * Memory while indexing: the longest line, at most LINE_LIMIT.
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (4 << 20)
#define LINE_LIMIT  (INT64_C(1) << 30)

typedef struct reading {
  iso_indexer *indexer;
  iso_jsonl_scratch scratch;
  char *buffer;
  size_t capacity, held;
  int64_t base; /* file offset of buffer[0] */
} reading;

bool iso_jsonl_probe(const uint8_t *bytes, size_t count) {
  size_t at = count >= 3 && memcmp(bytes, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
  while (at < count && (bytes[at] == ' ' || bytes[at] == '\t')) at++;
  if (at == count || bytes[at++] != '{') return false;
  while (at < count && (bytes[at] == ' ' || bytes[at] == '\t')) at++;
  return at < count && bytes[at] == '"';
}

static bool is_blank(const char *line, size_t length) {
  for (size_t i = 0; i < length; i++)
    if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') return false;
  return true;
}

static iso_status too_long(const reading *r, int64_t offset) {
  return iso_fail(ISO_ERR_FORMAT, "data: \"%s\": the line at byte %lld is longer than %lld bytes; is it JSON lines?",
                  r->indexer->file->path, (long long)offset, (long long)LINE_LIMIT);
}

static iso_status add_line(reading *r, const char *line, size_t length) {
  int64_t offset = r->base + (line - r->buffer);
  if (offset == 0 && length >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) {
    line += 3;
    offset += 3;
    length -= 3;
  }
  while (length && line[length - 1] == '\r') length--;
  if (is_blank(line, length)) return ISO_OK;
  if ((int64_t)length > LINE_LIMIT) return too_long(r, offset);
  iso_jsonl_line found;
  ISO_TRY(iso_jsonl_scan(line, length, r->indexer->options->field, &r->scratch, &found));
  if (!found.good) return iso_indexer_add(r->indexer, offset, (int64_t)length, true);
  return iso_indexer_add(r->indexer, offset + (int64_t)found.begin, (int64_t)found.length, false);
}

static iso_status grow(reading *r) {
  if (r->capacity - r->held >= CHUNK_BYTES) return ISO_OK;
  if ((int64_t)r->held > LINE_LIMIT) return too_long(r, r->base);
  size_t capacity = 2 * r->capacity + 2 * CHUNK_BYTES;
  char *grown = realloc(r->buffer, capacity);
  if (!grown)
    return iso_fail(ISO_ERR_MEMORY, "data: no memory for a line of %zu bytes of \"%s\"", r->held,
                    r->indexer->file->path);
  r->buffer = grown;
  r->capacity = capacity;
  return ISO_OK;
}

static iso_status read_lines(reading *r) {
  const int64_t bytes = r->indexer->file->bytes;
  while (r->indexer->position < bytes) {
    int64_t want = bytes - r->indexer->position;
    if (want > CHUNK_BYTES) want = CHUNK_BYTES;
    ISO_TRY(grow(r));
    ISO_TRY(iso_indexer_next(r->indexer, r->buffer + r->held, want));
    const char *at = r->buffer, *fresh = r->buffer + r->held, *end = fresh + want, *found;
    while ((found = memchr(fresh, '\n', (size_t)(end - fresh)))) {
      ISO_TRY(add_line(r, at, (size_t)(found - at)));
      at = fresh = found + 1;
    }
    r->held = (size_t)(end - at);
    r->base += at - r->buffer;
    memmove(r->buffer, at, r->held);
  }
  if (r->indexer->file->damage.is) return ISO_OK; /* the last line is not whole */
  return r->held ? add_line(r, r->buffer, r->held) : ISO_OK;
}

iso_status iso_jsonl_index(iso_indexer *indexer) {
  reading r = {.indexer = indexer};
  iso_status status = read_lines(&r);
  free(r.buffer);
  iso_jsonl_scratch_fini(&r.scratch);
  return status;
}

/* Why a line is bad, found again. */
static iso_status explain(const iso_source_options *options, int64_t offset, const char *line, size_t length,
                          iso_bad *bad) {
  iso_jsonl_scratch space = {.set_field = options->set_field};
  iso_jsonl_line found;
  iso_status status = iso_jsonl_scan(line, length, options->field, &space, &found);
  iso_jsonl_scratch_fini(&space);
  if (status != ISO_OK) return status;
  bad->is = true;
  bad->byte = offset + (int64_t)found.at;
  if (found.good || found.at == 0)
    snprintf(bad->cause, sizeof bad->cause, "%s", found.good ? "not as it was when it was indexed" : found.cause);
  else
    snprintf(bad->cause, sizeof bad->cause, "%.110s (its line begins at byte %lld)", found.cause, (long long)offset);
  return ISO_OK;
}

iso_status iso_jsonl_text(const iso_source_options *options, const iso_data_file *file, int64_t offset, bool flagged,
                          const char *stored, size_t length, iso_string *scratch, const char **text, size_t *bytes,
                          iso_bad *bad) {
  if (flagged) return explain(options, offset, stored, length, bad);
  if (!memchr(stored, '\\', length)) return ISO_OK;
  if (!iso_jsonl_unescape(stored, length, scratch)) {
    *bad = (iso_bad){true, "not as it was when it was indexed", offset};
    return ISO_OK;
  }
  if (iso_string_failed(scratch))
    return iso_fail(ISO_ERR_MEMORY, "data: no memory for a document of %zu bytes of \"%s\"", length, file->path);
  *text = scratch->data;
  *bytes = scratch->length;
  return ISO_OK;
}
