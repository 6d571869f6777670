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

static int64_t offset_of(const iso_extent *extent) {
  return extent->offset & ~ISO_EXTENT_BAD;
}

static iso_status read_run(iso_scan *scan) {
  int64_t last;
  const iso_extent *first = iso_source_run(scan->source, scan->next, &scan->file, &last);
  const int64_t offset = offset_of(first), most = (last < scan->end ? last : scan->end) - scan->next;
  int64_t bytes = first->length, count = 1;
  for (; count < most; count++) {
    const int64_t upto = offset_of(first + count) + first[count].length - offset;
    if (upto > RUN_BYTES || upto < bytes) break;
    bytes = upto;
  }
  scan->extent = first;
  scan->run_offset = offset;
  scan->run_end = scan->next + count;
  scan->is_left = scan->leave_long && bytes > RUN_BYTES;
  if (scan->is_left) return ISO_OK;
  if ((size_t)bytes > scan->capacity) {
    free(scan->bytes);
    scan->capacity = bytes > RUN_BYTES ? (size_t)bytes : RUN_BYTES;
    scan->bytes = iso_huge_alloc(scan->capacity);
    if (!scan->bytes) {
      scan->capacity = 0;
      return iso_fail(ISO_ERR_MEMORY, "data: no memory for %lld bytes of document %lld of \"%s\"", (long long)bytes,
                      (long long)scan->next, iso_source_file(scan->source, scan->file)->path);
    }
  }
  return iso_source_read(scan->source, scan->file, offset, bytes, scan->bytes);
}

iso_status iso_scan_next(iso_scan *scan, int64_t *index, iso_document *place, const char **stored) {
  *index = -1;
  if (scan->next >= scan->end) return ISO_OK;
  if (scan->next >= scan->run_end) {
    const iso_status status = read_run(scan);
    if (status != ISO_OK) scan->run_end = scan->next; /* nothing was read */
    ISO_TRY(status);
  }
  const iso_extent *extent = scan->extent++;
  place->file = scan->file;
  place->offset = offset_of(extent);
  place->length = extent->length;
  *stored = scan->is_left ? NULL : scan->bytes + (place->offset - scan->run_offset);
  *index = scan->next++;
  return ISO_OK;
}
