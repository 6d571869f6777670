/* SPDX-License-Identifier: Apache-2.0
 *
 * format text: a file's documents are the parts between separators; with the separator "" it is one document.
 *
 * Invariants
 *  1. Separators are found leftmost first and do not overlap, whatever the size of the chunks.
 *  2. Parts of zero bytes are no documents; a separator belongs to none. Of a damaged file the last part is none.
 *
 * It does not decode text.
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES (4 << 20)

/* As memmem, which looks at each byte: a short separator is rare enough to look for its first byte. */
static const char *find(const char *text, size_t length, const char *separator, size_t width) {
  if (width > 8) return memmem(text, length, separator, width);
  for (const char *end = text + length; (size_t)(end - text) >= width; text++) {
    text = memchr(text, separator[0], (size_t)(end - text) - (width - 1));
    if (!text || memcmp(text, separator, width) == 0) return text;
  }
  return NULL;
}

/* The window holds the bytes that may still begin a separator. */
static iso_status split(iso_indexer *indexer, char *window) {
  const char *separator = indexer->options->separator;
  const size_t width = strlen(separator);
  const int64_t bytes = indexer->file->bytes;
  size_t held = 0;  /* bytes in the window from the last chunk */
  int64_t base = 0; /* file offset of window[0] */
  int64_t begin = 0;
  while (base + (int64_t)held < bytes) {
    int64_t want = bytes - base - (int64_t)held;
    if (want > CHUNK_BYTES) want = CHUNK_BYTES;
    ISO_TRY(iso_indexer_next(indexer, window + held, want));
    size_t length = held + (size_t)want, at = 0;
    const char *found;
    while (width && (found = find(window + at, length - at, separator, width))) {
      int64_t offset = base + (found - window);
      ISO_TRY(iso_indexer_add(indexer, begin, offset - begin, false));
      begin = offset + (int64_t)width;
      at = (size_t)(found - window) + width;
    }
    held = length - at;
    if (held >= width) held = width ? width - 1 : 0;
    memmove(window, window + length - held, held);
    base += (int64_t)(length - held);
  }
  if (indexer->file->damage.is) return ISO_OK; /* the last part is not whole */
  return iso_indexer_add(indexer, begin, bytes - begin, false);
}

iso_status iso_text_index(iso_indexer *indexer) {
  char *window = malloc((size_t)CHUNK_BYTES + strlen(indexer->options->separator));
  if (!window) return iso_fail(ISO_ERR_MEMORY, "data: no memory to index \"%s\"", indexer->file->path);
  iso_status status = split(indexer, window);
  free(window);
  return status;
}
