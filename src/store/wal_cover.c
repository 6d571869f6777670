/* SPDX-License-Identifier: Apache-2.0
 *
 * Which elements the gradient frames of a step hold. Frames are written in the order in which backward passes complete
 * gradients, which is nearly the reverse of that of the elements, so a reader adds range by range and asks in the end
 * whether nothing is missing.
 *
 * Invariants
 *  1. Spans are ascending and apart from each other: neighbours are one. A step's frames grow from a few places, so
 *     there are few of them, however many frames there are.
 *  2. An element that two frames hold is refused.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

static iso_status insert(iso_wal_cover *cover, size_t at, iso_wal_span span) {
  if (cover->count == cover->capacity) {
    const size_t capacity = 2 * cover->capacity + 16;
    iso_wal_span *larger = realloc(cover->spans, capacity * sizeof *larger);
    if (!larger) return iso_fail(ISO_ERR_MEMORY, "log: no memory to follow the gradient of a step");
    cover->spans = larger;
    cover->capacity = capacity;
  }
  memmove(cover->spans + at + 1, cover->spans + at, (cover->count - at) * sizeof *cover->spans);
  cover->spans[at] = span;
  cover->count++;
  return ISO_OK;
}

iso_status iso_wal_cover_add(iso_wal_cover *cover, int64_t begin, int64_t end, bool *fresh) {
  size_t at = 0, high = cover->count;
  while (at < high) { /* the first span that ends behind `begin` */
    const size_t middle = at + (high - at) / 2;
    if (cover->spans[middle].end <= begin)
      at = middle + 1;
    else
      high = middle;
  }
  *fresh = at == cover->count || cover->spans[at].begin >= end;
  if (!*fresh) return ISO_OK;
  const bool joins_before = at > 0 && cover->spans[at - 1].end == begin;
  const bool joins_after = at < cover->count && cover->spans[at].begin == end;
  if (!joins_before && !joins_after) return insert(cover, at, (iso_wal_span){begin, end});
  if (!joins_before) {
    cover->spans[at].begin = begin;
    return ISO_OK;
  }
  cover->spans[at - 1].end = joins_after ? cover->spans[at].end : end;
  if (!joins_after) return ISO_OK;
  cover->count--;
  memmove(cover->spans + at, cover->spans + at + 1, (cover->count - at) * sizeof *cover->spans);
  return ISO_OK;
}

bool iso_wal_cover_is_whole(const iso_wal_cover *cover, int64_t elements) {
  return cover->count == 1 && cover->spans[0].begin == 0 && cover->spans[0].end == elements;
}

void iso_wal_cover_fini(iso_wal_cover *cover) {
  free(cover->spans);
  *cover = (iso_wal_cover){0};
}
