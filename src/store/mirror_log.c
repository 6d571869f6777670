/* SPDX-License-Identifier: Apache-2.0
 *
 * The step log in the mirror: whole steps of the open segment as they become durable, one by one, or several together
 * when the mirror is behind; and segments that go when no snapshot needs them.
 *
 * Invariants
 *  1. A step is copied when the run calls it durable and every CRC-32C of it is right here; to a first target, where
 *     only what is there counts, already when it is whole here.
 *  2. What the mirror has of a segment is a beginning of it that ends with a whole step, or with a torn one that is
 *     written again.
 *  3. To a first target a step goes only when that leads to the step before it, those that follow it before older ones.
 *  4. A segment is removed only when the next one begins at or before the step after the oldest snapshot.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

static iso_status no_memory(const iso_mirror_work *w) {
  return iso_fail(ISO_ERR_MEMORY, "mirror of '%s': out of memory", w->run);
}

int64_t iso_mirror_counted_until(const iso_mirror_work *w, int incarnation) {
  return iso_incarnation_counts_until(w->incarnations, w->incarnation_count, incarnation);
}

static iso_status add_steps(iso_mirror_work *w, int incarnation, int64_t first, int64_t last) {
  const int64_t until = iso_mirror_counted_until(w, incarnation);
  if (last > until) last = until;
  if (first > last) return ISO_OK;
  for (size_t i = 0; i < w->range_count; i++) {
    if (first < w->ranges[i].first || first > w->ranges[i].last + 1) continue;
    if (last > w->ranges[i].last) w->ranges[i].last = last;
    return ISO_OK;
  }
  ISO_TRY(iso_mirror_reserve(&w->ranges, w->range_count, &w->range_capacity, sizeof *w->ranges));
  w->ranges[w->range_count].first = first;
  w->ranges[w->range_count++].last = last;
  return ISO_OK;
}

iso_status iso_mirror_segment_of(iso_mirror_work *w, const char *name, iso_mirror_segment **out) {
  size_t at = 0;
  for (; at < w->segment_count; at++) {
    const int order = strcmp(w->segments[at].name, name);
    *out = &w->segments[at];
    if (order == 0) return ISO_OK;
    if (order > 0) break;
  }
  ISO_TRY(iso_mirror_reserve(&w->segments, w->segment_count, &w->segment_capacity, sizeof *w->segments));
  memmove(&w->segments[at + 1], &w->segments[at], (w->segment_count - at) * sizeof *w->segments);
  w->segment_count++;
  *out = &w->segments[at];
  **out = (iso_mirror_segment){0};
  snprintf((*out)->name, sizeof(*out)->name, "%s", name);
  return ISO_OK;
}

/* ---- the log ---- */

bool iso_mirror_frame_is_good(const iso_probe *probe, int64_t offset, const iso_wal_frame *frame, char *buffer) {
  iso_string faults = {0};
  uint32_t crc = 0;
  int64_t left = (int64_t)iso_wal_padded((size_t)frame->bytes);
  bool good = true;
  for (offset += ISO_WAL_BLOCK; left > 0 && good;) {
    const size_t part = left < ISO_TARGET_PIECE ? (size_t)left : ISO_TARGET_PIECE;
    good = iso_probe_read(probe, buffer, part, offset, &faults) == ISO_OK;
    if (good) crc = iso_crc32c(crc, buffer, part);
    offset += (int64_t)part;
    left -= (int64_t)part;
  }
  iso_string_fini(&faults);
  return good && crc == frame->payload_crc;
}

/* Follows frames to the end of the next whole step that counts here; *step 0: there is none yet. */
static iso_status next_step(iso_mirror_work *w, iso_mirror_segment *s, const iso_probe *probe, int64_t *end,
                            int64_t *step) {
  char block[ISO_WAL_BLOCK];
  iso_string faults = {0};
  const bool own = s->head.incarnation == w->incarnation;
  int64_t at = s->followed;
  *step = 0;
  while (!s->bad && at + ISO_WAL_BLOCK <= probe->bytes) {
    iso_wal_frame frame;
    const bool read = iso_probe_read(probe, block, sizeof block, at, &faults) == ISO_OK;
    iso_string_fini(&faults);
    if (!read || iso_wal_frame_decode(block, &s->head, &frame)) return ISO_OK; /* not written yet, or a torn end */
    const int64_t after = at + ISO_WAL_BLOCK + (int64_t)iso_wal_padded((size_t)frame.bytes);
    const bool counts_here = !own || frame.step <= w->shared->durable;
    if (after > probe->bytes || (!counts_here && !w->lock)) return ISO_OK;
    bool good = true;
    if (after > s->there) {
      ISO_TRY(iso_mirror_reserve_bytes(&w->step, &w->step_bytes, ISO_TARGET_PIECE));
      good = iso_mirror_frame_is_good(probe, at, &frame, w->step);
    }
    if (!good && !counts_here) return ISO_OK; /* it is being written */
    if (!good) {
      s->bad = true;
      iso_warn("run '%s': log/%s: step %lld is damaged here; the mirror ends before it", w->run, s->name,
               (long long)frame.step);
      return ISO_OK;
    }
    at = after;
    if (frame.kind != ISO_WAL_COMMIT) continue;
    *step = frame.step;
    *end = at;
    return ISO_OK;
  }
  return ISO_OK;
}

/* Bytes [s->copied, end) of the segment. */
static iso_status append(iso_mirror_work *w, iso_mirror_segment *s, const iso_probe *probe, int64_t end) {
  const iso_target_ops *ops = w->target->ops;
  const int64_t bytes = end - s->copied;
  const size_t piece = iso_target_piece(bytes);
  iso_target_writer *writer;
  iso_string faults = {0};
  char name[64];
  ISO_TRY(iso_mirror_reserve_bytes(&w->step, &w->step_bytes, piece));
  snprintf(name, sizeof name, "log/%s", s->name);
  ISO_TRY(ops->begin(w->target, name, s->copied, bytes, &writer));
  iso_status status = ISO_OK;
  for (int64_t at = s->copied; at < end && status == ISO_OK;) {
    const size_t part = end - at < (int64_t)piece ? (size_t)(end - at) : piece;
    status = iso_mirror_goes_on(w);
    if (status == ISO_OK) status = iso_probe_read(probe, w->step, part, at, &faults);
    if (status == ISO_OK) status = ops->write(writer, w->step, part);
    at += (int64_t)part;
  }
  iso_string_fini(&faults);
  if (status != ISO_OK) {
    ops->cancel(&writer);
    return status;
  }
  ISO_TRY(ops->finish(&writer));
  s->copied = end;
  iso_mirror_count(w, bytes);
  return ISO_OK;
}

/* A first target holds steps only if it leads to the one before. */
static bool joins(const iso_mirror_work *w, int64_t first) {
  return !w->lock || first <= w->leads + 1;
}

/* New steps of an open segment: one by one as they come, several together when the mirror is behind. *more: it has only
 * begun. NULL: all that there is. */
static iso_status copy_steps(iso_mirror_work *w, iso_mirror_segment *s, const iso_probe *probe, bool *more) {
  for (;;) {
    int64_t first = 0, last = 0, end = s->copied, next_end, step;
    for (;;) {
      ISO_TRY(next_step(w, s, probe, &next_end, &step));
      if (!step || (first && (step != last + 1 || next_end - s->copied > ISO_TARGET_PIECE))) break;
      s->followed = end = next_end;
      if (!first) first = step;
      last = step;
      if (end <= s->there) { /* it is there already */
        s->copied = end;
        break;
      }
    }
    if (!first) return ISO_OK;
    const bool appends = end > s->copied;
    if (appends) {
      const int64_t before = s->copied;
      const bool good = joins(w, first);
      const iso_status status = good ? append(w, s, probe, end) : ISO_OK;
      if (!good || status != ISO_OK) {
        s->followed = before ? before : ISO_WAL_BLOCK;
        return status;
      }
    }
    ISO_TRY(add_steps(w, s->head.incarnation, first, last));
    ISO_TRY(iso_mirror_goes_on(w));
    iso_mirror_tell_step(w, false);
    if (more && appends) {
      *more = true;
      return ISO_OK;
    }
  }
}

/* What there is of it; `more` as for copy_steps. `only_look`: its head is read, nothing is copied. */
static iso_status copy_segment(iso_mirror_work *w, iso_mirror_segment *s, bool only_look, bool *more) {
  char block[ISO_WAL_BLOCK];
  iso_probe probe;
  iso_string faults = {0};
  const char *path = iso_arena_printf(w->arena, "%s/log/%s", w->run, s->name);
  if (!path) return no_memory(w);
  if (only_look && s->followed) return ISO_OK;
  if (iso_probe_open(&probe, path, s->name, &faults) != ISO_OK) { /* pruned meanwhile */
    iso_string_fini(&faults);
    return ISO_OK;
  }
  iso_status status = ISO_OK;
  if (!s->followed && probe.bytes >= ISO_WAL_BLOCK) {
    const bool known = iso_probe_read(&probe, block, sizeof block, 0, &faults) == ISO_OK &&
                       !iso_wal_segment_decode(block, &s->head) && strcmp(s->head.uuid, w->uuid) == 0;
    if (known) s->followed = ISO_WAL_BLOCK;
  }
  if (s->followed && !only_look) status = copy_steps(w, s, &probe, more);
  iso_probe_close(&probe);
  iso_string_fini(&faults);
  return status;
}

/* The run's segments, with their heads, by name. *live: the first one that is not wholly behind the step that a first
 * target leads to; of a mirror all are. */
static iso_status list_segments(iso_mirror_work *w, char ***names, size_t *count, size_t *live) {
  size_t name_count = 0;
  bool exists;
  const char *folder = iso_path_join(w->arena, w->run, "log");
  if (!folder) return no_memory(w);
  *count = *live = 0;
  ISO_TRY(iso_path_probe(folder, &exists));
  if (exists) ISO_TRY(iso_path_list(w->arena, folder, names, &name_count));
  for (size_t i = 0; i < w->segment_count; i++) w->segments[i].local = false;
  for (size_t i = 0; i < name_count; i++) {
    iso_wal_segment parsed;
    iso_mirror_segment *s;
    if (!iso_wal_segment_name_parse((*names)[i], &parsed) || parsed.incarnation > w->incarnation) continue;
    ISO_TRY(iso_mirror_segment_of(w, (*names)[i], &s));
    s->local = true;
    ISO_TRY(copy_segment(w, s, true, NULL));
    if (w->lock && s->followed && s->head.first_step <= w->leads + 1) *live = *count;
    (*names)[(*count)++] = (*names)[i];
  }
  return ISO_OK;
}

iso_status iso_mirror_copy_log(iso_mirror_work *w) {
  char **names = NULL;
  size_t name_count, live;
  ISO_TRY(list_segments(w, &names, &name_count, &live));
  for (size_t i = live; i < name_count; i++) {
    iso_mirror_segment *s;
    ISO_TRY(iso_mirror_segment_of(w, names[i], &s));
    ISO_TRY(copy_segment(w, s, false, NULL));
  }
  return ISO_OK;
}

/* Piece by piece, and in between what is new. */
iso_status iso_mirror_copy_old_log(iso_mirror_work *w) {
  char **names = NULL;
  size_t name_count, live;
  if (!w->lock) return ISO_OK;
  ISO_TRY(list_segments(w, &names, &name_count, &live));
  for (size_t i = 0; i < live; i++) {
    bool more;
    do {
      iso_mirror_segment *s;
      more = false;
      ISO_TRY(iso_mirror_segment_of(w, names[i], &s));
      ISO_TRY(copy_segment(w, s, false, &more));
      if (more) ISO_TRY(iso_mirror_copy_log(w));
    } while (more);
  }
  return ISO_OK;
}

static iso_status take_head(void *context, const void *data, size_t bytes) {
  if (bytes >= ISO_WAL_BLOCK && iso_wal_segment_decode(data, context))
    *(iso_wal_segment *)context = (iso_wal_segment){0};
  return ISO_STOPPED; /* no more of it */
}

/* Segments of which no step lies behind the oldest snapshot: the next one begins at or before the step after it. */
iso_status iso_mirror_prune_log(iso_mirror_work *w, int64_t oldest) {
  for (size_t i = 0; i + 1 < w->segment_count;) {
    iso_mirror_segment *s = &w->segments[i], *next = s + 1;
    char name[64];
    if (s->local) break;
    if (!next->head.first_step && next->there) {
      snprintf(name, sizeof name, "log/%s", next->name);
      const iso_status status = w->target->ops->stream(w->target, name, take_head, &next->head);
      if (status != ISO_OK && status != ISO_STOPPED) return status;
    }
    if (!next->head.first_step || next->head.first_step > oldest + 1) break;
    ISO_TRY(iso_mirror_claim_again(w));
    snprintf(name, sizeof name, "log/%s", s->name);
    ISO_TRY(w->target->ops->remove(w->target, name));
    memmove(s, next, (w->segment_count - i - 1) * sizeof *s);
    w->segment_count--;
  }
  return ISO_OK;
}
