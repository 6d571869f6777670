/* SPDX-License-Identifier: Apache-2.0
 *
 * A step applied as it is read: the team's threads take pieces of its gradients from the file, each into a buffer that
 * stays in its cache, take the CRC there and update the weights from there. So the log's bytes cross memory once, which
 * is what keeps a replay near the speed of the update alone; and the system is told of later steps in time, so that
 * storage never waits for us.
 *
 * Invariants
 *  1. What does not come out right (a CRC, a read) is known only when part of the step has been applied: the state is
 *     of no use then, and the caller begins again from where it came (wal_replay.c).
 *  2. Only uncompressed steps are taken, in whatever order their frames stand; all others go the common way.
 *  3. The update is the optimizer's own kernel on ranges of elements: the same bits however the ranges are cut.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PIECE_BYTES = 512 << 10, ASK_BYTES = 8 << 20, AHEAD_BYTES = 256 << 20 };

typedef struct piece {
  int64_t frame;         /* that it is of */
  int64_t offset, bytes; /* in the file; the last one of a frame has its padding too */
  int64_t begin, end;    /* elements */
  uint32_t crc;          /* as read */
} piece;

struct iso_wal_plan {
  iso_probe probe;
  char path[4400], name[64];
  iso_dtype gradient;
  int64_t elements, begin, end; /* in the file: from the first frame to the commit */
  int64_t frame_count, piece_count, piece_capacity;
  uint32_t *frame_crcs; /* as the frames' heads state them */
  piece *pieces;
  iso_wal_cover covered;
};

/* ---- what is to be read ---- */

static iso_status add_pieces(iso_wal_plan *plan, const iso_wal_frame *frame, int64_t offset) {
  const int64_t size = (int64_t)iso_dtype_size(plan->gradient), each = PIECE_BYTES / size;
  const int64_t padded = (int64_t)iso_wal_padded((size_t)frame->bytes);
  for (int64_t begin = frame->begin; begin < frame->end; begin += each) {
    if (plan->piece_count == plan->piece_capacity) {
      const int64_t capacity = 2 * plan->piece_capacity + 256;
      piece *larger = realloc(plan->pieces, (size_t)capacity * sizeof *larger);
      if (!larger) return iso_fail(ISO_ERR_MEMORY, "log: no memory to plan the reading of a step");
      plan->pieces = larger;
      plan->piece_capacity = capacity;
    }
    const bool last = begin + each >= frame->end;
    const int64_t before = (begin - frame->begin) * size;
    plan->pieces[plan->piece_count++] = (piece){.frame = plan->frame_count,
                                                .offset = offset + before,
                                                .bytes = last ? padded - before : PIECE_BYTES,
                                                .begin = begin,
                                                .end = last ? frame->end : begin + each};
  }
  plan->frame_crcs[plan->frame_count++] = frame->payload_crc;
  return ISO_OK;
}

/* `plain`: the step can be taken this way. */
static iso_status read_heads(iso_wal_plan *plan, const iso_wal_file *file, const iso_wal_step *step, bool *plain,
                             iso_string *faults) {
  char block[ISO_WAL_BLOCK];
  int64_t offset = step->offset;
  bool fresh = true;
  *plain = false;
  plan->frame_crcs = malloc((size_t)(step->frames + 1) * sizeof *plan->frame_crcs);
  if (!plan->frame_crcs) return iso_fail(ISO_ERR_MEMORY, "log: no memory to plan the reading of a step");
  for (int64_t i = 0; i < step->frames; i++) {
    iso_wal_frame frame;
    ISO_TRY(iso_probe_read(&plan->probe, block, sizeof block, offset, faults));
    if (iso_wal_frame_decode(block, &file->head, &frame) || frame.step != step->step || frame.kind != ISO_WAL_PAYLOAD ||
        frame.codec != ISO_WAL_RAW)
      return ISO_OK;
    ISO_TRY(iso_wal_cover_add(&plan->covered, frame.begin, frame.end, &fresh));
    if (!fresh) return ISO_OK;
    ISO_TRY(add_pieces(plan, &frame, offset + ISO_WAL_BLOCK));
    offset += ISO_WAL_BLOCK + (int64_t)iso_wal_padded((size_t)frame.bytes);
  }
  *plain = step->frames == 0 || iso_wal_cover_is_whole(&plan->covered, plan->elements);
  return ISO_OK;
}

static iso_status read_commit(iso_wal_plan *plan, const iso_wal_file *file, const iso_wal_step *step,
                              iso_wal_record *record, iso_cursor **cursors, bool *plain, iso_string *faults) {
  char block[ISO_WAL_BLOCK];
  iso_wal_frame frame;
  int64_t payloads;
  uint32_t crc, payloads_crc = 0;
  *plain = false;
  ISO_TRY(iso_probe_read(&plan->probe, block, sizeof block, step->commit, faults));
  if (iso_wal_frame_decode(block, &file->head, &frame) || frame.kind != ISO_WAL_COMMIT || frame.step != step->step)
    return ISO_OK;
  const size_t bytes = iso_wal_padded((size_t)frame.bytes);
  char *body = malloc(bytes);
  if (!body) return iso_fail(ISO_ERR_MEMORY, "log: no memory for a commit of %zu bytes", bytes);
  iso_status status = iso_probe_read(&plan->probe, body, bytes, step->commit + ISO_WAL_BLOCK, faults);
  if (status == ISO_OK && iso_crc32c(0, body, bytes) == frame.payload_crc &&
      iso_wal_commit_decode(body, (size_t)frame.bytes, record, &payloads, &crc)) {
    for (int64_t i = 0; i < plan->frame_count; i++)
      payloads_crc = iso_crc32c(payloads_crc, &plan->frame_crcs[i], sizeof plan->frame_crcs[i]);
    *plain = payloads == plan->frame_count && crc == payloads_crc;
    if (record->refused) { /* its gradient is not looked at */
      plan->frame_count = plan->piece_count = 0;
      plan->begin = plan->end;
    }
    record->step = step->step;
    status = iso_wal_record_own(record, cursors);
  }
  free(body);
  return status;
}

iso_status iso_wal_plan_make(const iso_wal_index *index, const iso_wal_step *step, iso_wal_record *record,
                             iso_cursor **cursors, iso_wal_plan **out, iso_string *faults) {
  const iso_wal_file *file = &index->files[step->segment];
  bool plain = false;
  *out = NULL;
  *cursors = NULL;
  iso_wal_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return iso_fail(ISO_ERR_MEMORY, "log: no memory to plan the reading of a step");
  snprintf(plan->path, sizeof plan->path, "%s/log/%s", index->run, file->name);
  snprintf(plan->name, sizeof plan->name, "log/%s", file->name);
  plan->gradient = file->head.gradient;
  plan->elements = file->head.elements;
  plan->begin = step->offset;
  plan->end = step->commit;
  plan->probe.fd = -1;
  iso_status status = iso_probe_open(&plan->probe, plan->path, plan->name, faults);
  if (status == ISO_OK) status = read_heads(plan, file, step, &plain, faults);
  if (status == ISO_OK && plain) status = read_commit(plan, file, step, record, cursors, &plain, faults);
  if (status == ISO_OK && plain) {
    *out = plan;
    return ISO_OK;
  }
  free(*cursors);
  *cursors = NULL;
  iso_wal_plan_destroy(&plan);
  return status;
}

void iso_wal_plan_destroy(iso_wal_plan **address) {
  iso_wal_plan *plan = *address;
  if (!plan) return;
  iso_probe_close(&plan->probe);
  free(plan->frame_crcs);
  free(plan->pieces);
  iso_wal_cover_fini(&plan->covered);
  free(plan);
  *address = NULL;
}

void iso_wal_plan_prefetch(const iso_wal_plan *plan, int64_t *issued, _Atomic int64_t *consumed,
                           const _Atomic bool *stop) {
  const struct timespec moment = {.tv_nsec = 500000};
  for (int64_t at = plan->begin; at < plan->end; at += ASK_BYTES) {
    while (*issued - *consumed > AHEAD_BYTES && !*stop) nanosleep(&moment, NULL);
    if (*stop) return;
    const int64_t bytes = plan->end - at < ASK_BYTES ? plan->end - at : ASK_BYTES;
    (void)posix_fadvise(plan->probe.fd, at, bytes, POSIX_FADV_WILLNEED); /* advice: nothing hangs on it */
    *issued += bytes;
  }
}

/* ---- reading and applying ---- */

typedef struct applier {
  iso_wal_plan *plan;
  const iso_replay *with;
  iso_adamw_args args;
  char *buffers; /* PIECE_BYTES for each thread */
  _Atomic int64_t next, *consumed;
  atomic_bool failed;
} applier;

static bool read_piece(const iso_wal_plan *plan, const piece *p, char *into) {
  for (int64_t done = 0; done < p->bytes;) {
    const ssize_t got = iso_os.pread(plan->probe.fd, into + done, (size_t)(p->bytes - done), p->offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false; /* the common way, which is taken next, says why */
    done += got;
  }
  return true;
}

static void apply_thread(void *argument, int thread) {
  applier *a = argument;
  iso_wal_plan *plan = a->plan;
  const iso_worker alone = {0, 1, NULL, NULL};
  const int64_t size = (int64_t)iso_dtype_size(plan->gradient);
  char *buffer = a->buffers + (size_t)thread * PIECE_BYTES;
  iso_adamw_args args = a->args;
  for (int64_t i; !a->failed && (i = atomic_fetch_add(&a->next, 1)) < plan->piece_count;) {
    piece *p = &plan->pieces[i];
    if (!read_piece(plan, p, buffer)) {
      a->failed = true;
      break;
    }
    *a->consumed += p->bytes;
    p->crc = iso_crc32c(0, buffer, (size_t)p->bytes);
    args.reduced = (const void *)((uintptr_t)buffer - (uintptr_t)(p->begin * size)); /* element `begin` is its first */
    args.begin = p->begin;
    args.end = p->end;
    a->with->kernels->adamw(&args, &alone);
  }
}

/* Every frame's CRC, joined from those of its pieces, is the one that its head states. */
static bool crcs_are_right(const iso_wal_plan *plan) {
  for (int64_t i = 0; i < plan->piece_count;) {
    const int64_t frame = plan->pieces[i].frame;
    uint32_t crc = 0;
    for (; i < plan->piece_count && plan->pieces[i].frame == frame; i++)
      crc = iso_crc32c_join(crc, plan->pieces[i].crc, (uint64_t)plan->pieces[i].bytes);
    if (crc != plan->frame_crcs[frame]) return false;
  }
  return true;
}

size_t iso_wal_plan_scratch(int threads) {
  return (size_t)threads * PIECE_BYTES;
}

bool iso_wal_plan_apply(iso_wal_plan *plan, const iso_replay *with, const iso_adamw_args *args, void *scratch,
                        _Atomic int64_t *consumed) {
  applier a = {.plan = plan, .with = with, .args = *args, .buffers = scratch, .consumed = consumed};
  iso_team_run(with->team, apply_thread, &a);
  return !a.failed && crcs_are_right(plan);
}
