/* SPDX-License-Identifier: Apache-2.0
 *
 * A step applied as it is read: the team's threads take pieces of its gradients from the file, each into a buffer that
 * stays in its cache, take the CRC there and update the weights from there. So the log's bytes cross memory once, which
 * is what keeps a replay near the speed of the update alone; and the system is told of later steps in time, so that
 * storage never waits for us, and so that they come into the page cache in large pages: copying out of small ones costs
 * four times as much.
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
#include <sys/mman.h>
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
  _Atomic int64_t asked; /* up to there it is in memory, or asked for */
};

/* Of its frame. */
static bool is_first(const iso_wal_plan *plan, int64_t i) {
  return i == 0 || plan->pieces[i].frame != plan->pieces[i - 1].frame;
}

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
  if (status == ISO_OK) (void)posix_fadvise(plan->probe.fd, 0, 0, POSIX_FADV_RANDOM); /* heads alone for now */
  if (status == ISO_OK) status = read_heads(plan, file, step, &plain, faults);
  if (status == ISO_OK && plain) status = read_commit(plan, file, step, record, cursors, &plain, faults);
  if (status == ISO_OK) (void)posix_fadvise(plan->probe.fd, 0, 0, POSIX_FADV_NORMAL);
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

/* A mapping of the step by which pages are asked for; nobody looks through it, so what cannot be read is no signal, but
 * an error of the read that follows. NULL: there can be none. */
static char *map_to_ask(const iso_wal_plan *plan) {
#ifdef MADV_POPULATE_READ
  if (plan->end <= plan->begin || plan->end > plan->probe.bytes) return NULL;
  const int fd = iso_os.open(plan->path, O_RDONLY | O_CLOEXEC, 0); /* reads by another descriptor are none of its own */
  if (fd < 0) return NULL;
  char *map = mmap(NULL, (size_t)(plan->end - plan->begin), PROT_READ, MAP_SHARED, fd, plan->begin);
  (void)iso_os.close(fd);
  if (map == MAP_FAILED) return NULL;
  (void)madvise(map, (size_t)(plan->end - plan->begin), MADV_HUGEPAGE);
  return map;
#else
  (void)plan;
  return NULL;
#endif
}

/* A page that is there alone, as those of heads are, keeps its whole neighbourhood from coming as a large one. One that
 * is part of a large page stays. */
static void let_heads_go(const iso_wal_plan *plan) {
  for (int64_t i = 0; i < plan->piece_count; i++)
    if (is_first(plan, i))
      (void)posix_fadvise(plan->probe.fd, plan->pieces[i].offset - ISO_WAL_BLOCK, ISO_WAL_BLOCK, POSIX_FADV_DONTNEED);
}

/* By a mapping the file comes into the page cache in large pages, by POSIX_FADV_WILLNEED in pages of 4 KiB, each of
 * which costs as much again when it is copied from. Both are advice: nothing hangs on it. */
static void ask_for(const iso_wal_plan *plan, char *map, int64_t at, int64_t bytes) {
#ifdef MADV_POPULATE_READ
  if (map && madvise(map + (at - plan->begin), (size_t)bytes, MADV_POPULATE_READ) == 0) return;
#else
  (void)map;
#endif
  (void)posix_fadvise(plan->probe.fd, at, bytes, POSIX_FADV_WILLNEED);
}

void iso_wal_plan_prefetch(iso_wal_plan *plan, int64_t *issued, _Atomic int64_t *consumed, const _Atomic bool *stop) {
  const struct timespec moment = {.tv_nsec = 500000};
  char *map = map_to_ask(plan);
  if (map) let_heads_go(plan);
  for (int64_t at = plan->begin; at < plan->end && !*stop; at += ASK_BYTES) {
    while (*issued - *consumed > AHEAD_BYTES && !*stop) nanosleep(&moment, NULL);
    if (*stop) break;
    const int64_t bytes = plan->end - at < ASK_BYTES ? plan->end - at : ASK_BYTES;
    ask_for(plan, map, at, bytes);
    *issued += bytes;
    plan->asked = at + bytes;
  }
  plan->asked = INT64_MAX;
  if (map) (void)munmap(map, (size_t)(plan->end - plan->begin));
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

/* Who reads what is not asked for yet has the system read ahead in small pages, under the feet of who asks. */
static bool read_piece(const iso_wal_plan *plan, const piece *p, char *into) {
  while (plan->asked < p->offset + p->bytes) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
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
    *a->consumed += p->bytes + (is_first(plan, i) ? ISO_WAL_BLOCK : 0); /* with the head: as it was asked for */
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
