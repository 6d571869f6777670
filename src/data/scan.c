/* SPDX-License-Identifier: Apache-2.0
 *
 * scan: the documents of a source in order, for whoever reads all of it once.
 *
 * Documents that lie next to each other in a file are read together, up to RUN_BYTES at a time, so that a corpus of
 * small documents costs few reads. A longer document is read alone.
 *
 * Invariants
 *  1. Every document of [first, end) comes once, in order, with exactly its stored bytes.
 *  2. What a scan holds is bounded by RUN_BYTES or the longest document that it reads.
 */
#include "data/data.h"

#include <stdlib.h>

enum { RUN_BYTES = 1 << 20 };

void iso_scan_init(iso_scan *scan, const iso_source *source, int64_t first, int64_t end) {
  *scan = (iso_scan){.source = source, .next = first, .end = end, .run_end = first};
}

void iso_scan_set(iso_scan *scan, int64_t first, int64_t end) {
  scan->next = scan->run_end = first;
  scan->end = end;
}

void iso_scan_fini(iso_scan *scan) {
  free(scan->bytes);
  *scan = (iso_scan){0};
}

static iso_status read_run(iso_scan *scan) {
  const iso_document first = iso_source_document(scan->source, scan->next);
  int64_t bytes = first.length, end = scan->next + 1;
  for (; end < scan->end; end++) {
    const iso_document next = iso_source_document(scan->source, end);
    const int64_t upto = next.offset + next.length - first.offset;
    if (next.file != first.file || upto > RUN_BYTES || upto < bytes) break;
    bytes = upto;
  }
  if ((size_t)bytes > scan->capacity) {
    free(scan->bytes);
    scan->capacity = bytes > RUN_BYTES ? (size_t)bytes : RUN_BYTES;
    scan->bytes = iso_huge_alloc(scan->capacity);
    if (!scan->bytes) {
      scan->capacity = 0;
      return iso_fail(ISO_ERR_MEMORY, "data: no memory for %lld bytes of document %lld of \"%s\"", (long long)bytes,
                      (long long)scan->next, iso_source_file(scan->source, first.file)->path);
    }
  }
  ISO_TRY(iso_source_read(scan->source, first.file, first.offset, bytes, scan->bytes));
  scan->run_offset = first.offset;
  scan->run_end = end;
  return ISO_OK;
}

iso_status iso_scan_next(iso_scan *scan, int64_t *index, iso_document *place, const char **stored) {
  *index = -1;
  if (scan->next >= scan->end) return ISO_OK;
  *place = iso_source_document(scan->source, scan->next);
  if (scan->leave_long && place->length > RUN_BYTES) {
    *stored = NULL;
    *index = scan->next++;
    return ISO_OK;
  }
  if (scan->next >= scan->run_end) ISO_TRY(read_run(scan));
  *stored = scan->bytes + (place->offset - scan->run_offset);
  *index = scan->next++;
  return ISO_OK;
}
