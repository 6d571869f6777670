/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the step log: which steps stand in it whole, and their content.
 *
 * The index follows the frames of each segment from its head by their heads alone. A step is in it when its payload
 * frames cover all elements once, in any order, its commit frame's CRC is right and agrees with them, and no newer
 * incarnation began before it. A payload's own CRC is checked when it is read (or by a deep index).
 *
 * Invariants
 *  1. Where a frame's head is damaged nothing behind it in that segment is believed.
 *  2. A frame counts only at its own place: segment, incarnation, shard and number are part of it.
 *  3. Everything that is not as it should be is a line of `faults`; the caller, who knows which steps were
 * acknowledged, tells a torn end from a loss.
 */
#include "store/store.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* Something that is not as it should be, from this step on. */
typedef struct damage {
  int incarnation;
  int64_t step;
  const char *line;
  int64_t file; /* index of the segment; -1: of none that can be followed */
  bool cut;     /* it is the segment's end, which is less than was to be written */
} damage;

typedef struct reader {
  iso_wal_index *index;
  iso_string *faults; /* of reading itself */
  damage *damages;
  size_t damage_count, damage_capacity;
  bool deep, vanished; /* vanished: a segment was deleted while the log was read */
  const char *uuid;
  size_t file_capacity, step_capacity;
  iso_incarnation *incarnations;
  size_t incarnation_count;
  char *buffer; /* of payload */
  size_t buffer_bytes;
  iso_wal_coder *coders[2]; /* by size of a value, 2 and 4; made when first needed */
  char *values;             /* of a packed frame */
} reader;

/* One segment being followed. */
typedef struct follower {
  reader *r;
  iso_wal_file *file;
  iso_probe probe;
  char name[64]; /* "log/..." */
  char *block;
  int64_t offset, frames;
  /* the step that is being put together */
  iso_wal_step step;
  iso_wal_cover covered;
  uint32_t payloads_crc;
  bool packed;  /* it has packed payload */
  bool whole;   /* of a deep index: all payloads so far were right */
  int64_t last; /* newest step that ended in this segment, or the one before its first */
} follower;

static iso_status note_line(reader *r, int incarnation, int64_t step, const char *line) {
  if (r->damage_count == r->damage_capacity) {
    const size_t capacity = 2 * r->damage_capacity + 16;
    damage *larger = realloc(r->damages, capacity * sizeof *larger);
    if (!larger) return iso_fail(ISO_ERR_MEMORY, "log: no memory to list its faults");
    r->damages = larger;
    r->damage_capacity = capacity;
  }
  if (!line) return iso_fail(ISO_ERR_MEMORY, "log: no memory to list its faults");
  r->damages[r->damage_count++] = (damage){incarnation, step, line, -1, false};
  return ISO_OK;
}

/* In the step that is being put together, or the one that would come next. */
static iso_status note(const follower *f, const char *cause) {
  const int64_t step = f->step.step ? f->step.step : f->last + 1;
  return note_line(f->r, f->file->head.incarnation, step,
                   iso_arena_printf(f->r->index->arena, "%s: at byte %lld, step %lld: %s\n", f->name,
                                    (long long)f->offset, (long long)step, cause));
}

static iso_status note_cut(const follower *f, const char *cause) {
  ISO_TRY(note(f, cause));
  damage *d = &f->r->damages[f->r->damage_count - 1];
  d->file = f->file - f->r->index->files;
  d->cut = true;
  return ISO_OK;
}

static iso_status reserve_buffer(reader *r, size_t bytes) {
  if (bytes <= r->buffer_bytes) return ISO_OK;
  free(r->buffer);
  r->buffer_bytes = 0;
  r->buffer = malloc(bytes);
  if (!r->buffer) return iso_fail(ISO_ERR_MEMORY, "log: no memory to read a frame of %zu bytes", bytes);
  r->buffer_bytes = bytes;
  return ISO_OK;
}

static int64_t last_counted(const reader *r, int incarnation) {
  return iso_incarnation_counts_until(r->incarnations, r->incarnation_count, incarnation);
}

static iso_status add_step(follower *f, int64_t durable) {
  reader *r = f->r;
  iso_wal_index *index = r->index;
  f->file->packed += f->packed;
  if (f->step.step > last_counted(r, f->file->head.incarnation)) {
    f->file->superseded++;
    return ISO_OK;
  }
  f->file->counted++;
  if (index->step_count == r->step_capacity) {
    const size_t capacity = 2 * r->step_capacity + 256;
    iso_wal_step *larger = realloc(index->steps, capacity * sizeof *larger);
    if (!larger) return iso_fail(ISO_ERR_MEMORY, "log: no memory to list %zu steps", capacity);
    index->steps = larger;
    r->step_capacity = capacity;
  }
  index->steps[index->step_count++] = f->step;
  if (durable > index->newest_durable) index->newest_durable = durable;
  return ISO_OK;
}

static void begin_step(follower *f, int64_t step) {
  f->step = (iso_wal_step){.step = step,
                           .incarnation = f->file->head.incarnation,
                           .segment = f->file - f->r->index->files,
                           .offset = f->offset};
  f->covered.count = 0;
  f->payloads_crc = 0;
  f->whole = true;
  f->packed = false;
}

/* Reads what lies behind the frame's head and compares the CRC. FORMAT: it is wrong (noted). */
static iso_status read_body(follower *f, const iso_wal_frame *frame) {
  const size_t bytes = iso_wal_padded((size_t)frame->bytes);
  ISO_TRY(reserve_buffer(f->r, bytes));
  ISO_TRY(iso_probe_read(&f->probe, f->r->buffer, bytes, f->offset + ISO_WAL_BLOCK, f->r->faults));
  if (iso_crc32c(0, f->r->buffer, bytes) == frame->payload_crc) return ISO_OK;
  ISO_TRY(note(f, frame->kind == ISO_WAL_COMMIT ? "the CRC-32C of the commit is wrong: altered"
                                                : "the CRC-32C of a gradient is wrong: altered"));
  return ISO_ERR_FORMAT;
}

/* What was read is unpacked, to see that it can be. FORMAT: it cannot (noted). */
static iso_status try_unpacking(follower *f, const iso_wal_frame *frame) {
  reader *r = f->r;
  const iso_dtype type = f->file->head.gradient;
  iso_wal_coder **coder = &r->coders[type == ISO_F32];
  if (!*coder) ISO_TRY(iso_wal_coder_create(type, ISO_WAL_PACKED, coder));
  if (!r->values) r->values = malloc(ISO_WAL_PACKED * sizeof(float));
  if (!r->values) return iso_fail(ISO_ERR_MEMORY, "log: no memory to unpack a frame");
  const char *wrong = iso_wal_unpack(*coder, r->buffer, (size_t)frame->bytes, frame->end - frame->begin, r->values);
  if (!wrong) return ISO_OK;
  ISO_TRY(note(f, wrong));
  return ISO_ERR_FORMAT;
}

static iso_status take_payload(follower *f, const iso_wal_frame *frame) {
  if (f->step.step != frame->step) {
    if (f->step.step) ISO_TRY(note(f, "another step begins before this one ends"));
    begin_step(f, frame->step);
  }
  bool fresh;
  ISO_TRY(iso_wal_cover_add(&f->covered, frame->begin, frame->end, &fresh));
  if (!fresh) {
    ISO_TRY(note(f, "a gradient's range was there before"));
    f->whole = false;
  }
  f->step.frames++;
  f->packed |= frame->codec == ISO_WAL_PLANES;
  f->payloads_crc = iso_crc32c(f->payloads_crc, &frame->payload_crc, sizeof frame->payload_crc);
  if (!f->r->deep) return ISO_OK;
  iso_status status = read_body(f, frame);
  if (status == ISO_OK && frame->codec == ISO_WAL_PLANES) status = try_unpacking(f, frame);
  if (status == ISO_ERR_FORMAT) f->whole = false;
  return status == ISO_ERR_FORMAT ? ISO_OK : status;
}

static iso_status take_commit(follower *f, const iso_wal_frame *frame) {
  if (f->step.step != frame->step) {
    if (f->step.step) ISO_TRY(note(f, "another step begins before this one ends"));
    begin_step(f, frame->step);
  }
  iso_wal_record record;
  int64_t payloads;
  uint32_t crc;
  const iso_status status = read_body(f, frame);
  f->last = frame->step;
  if (status != ISO_OK) {
    f->step.step = 0;
    return status == ISO_ERR_FORMAT ? ISO_OK : status;
  }
  f->step.commit = f->offset;
  const bool readable = iso_wal_commit_decode(f->r->buffer, (size_t)frame->bytes, &record, &payloads, &crc);
  const bool nothing = f->covered.count == 0, all = iso_wal_cover_is_whole(&f->covered, f->file->head.elements);
  const bool covered = readable && (all || (record.refused && nothing));
  if (!readable)
    ISO_TRY(note(f, "a commit has an impossible value"));
  else if (!covered || payloads != f->step.frames || crc != f->payloads_crc)
    ISO_TRY(note(f, "a commit does not agree with the gradients before it"));
  else if (f->whole)
    ISO_TRY(add_step(f, record.durable));
  f->step.step = 0;
  return ISO_OK;
}

/* Frame by frame to the end, or to where no frame can be told. */
static iso_status follow(follower *f) {
  while (f->offset < f->probe.bytes) {
    iso_wal_frame frame;
    if (f->probe.bytes - f->offset < ISO_WAL_BLOCK) {
      return note_cut(f, "cut within the head of a frame");
    }
    ISO_TRY(iso_probe_read(&f->probe, f->block, ISO_WAL_BLOCK, f->offset, f->r->faults));
    const char *wrong = iso_wal_frame_decode(f->block, &f->file->head, &frame);
    if (!wrong && frame.number != f->frames) wrong = "a frame is not at its own place";
    if (wrong) return note(f, wrong);
    const int64_t end = f->offset + ISO_WAL_BLOCK + (int64_t)iso_wal_padded((size_t)frame.bytes);
    if (end > f->probe.bytes) return note_cut(f, "cut within a frame");
    ISO_TRY(frame.kind == ISO_WAL_PAYLOAD ? take_payload(f, &frame) : take_commit(f, &frame));
    f->offset = f->file->good_bytes = end;
    f->frames++;
  }
  return f->step.step ? note_cut(f, "it ends before the step's commit") : ISO_OK;
}

static const char *check_head(const follower *f, const iso_wal_segment *named) {
  const iso_wal_segment *head = &f->file->head;
  if (head->incarnation != named->incarnation || head->shard != named->shard || head->number != named->number)
    return "its head has another name: the file was renamed or copied";
  if (f->r->uuid && strcmp(head->uuid, f->r->uuid) != 0) return "it is of another run";
  return NULL;
}

static iso_status read_segment(reader *r, const char *name, const iso_wal_segment *named) {
  iso_wal_index *index = r->index;
  if (index->file_count == r->file_capacity) {
    const size_t capacity = 2 * r->file_capacity + 16;
    iso_wal_file *larger = realloc(index->files, capacity * sizeof *larger);
    if (!larger) return iso_fail(ISO_ERR_MEMORY, "log: no memory to list %zu segments", capacity);
    index->files = larger;
    r->file_capacity = capacity;
  }
  iso_wal_file *file = &index->files[index->file_count++];
  *file = (iso_wal_file){0};
  follower f = {.r = r, .file = file, .offset = ISO_WAL_BLOCK};
  snprintf(file->name, sizeof file->name, "%s", name);
  snprintf(f.name, sizeof f.name, "log/%s", name);
  const char *path = iso_arena_printf(index->arena, "%s/log/%s", index->run, name);
  f.block = malloc(ISO_WAL_BLOCK);
  const size_t known = r->faults->length;
  iso_status status = path && f.block ? iso_probe_open(&f.probe, path, f.name, r->faults)
                                      : iso_fail(ISO_ERR_MEMORY, "log: no memory to read '%s'", f.name);
  if (status == ISO_OK) {
    /* Of heads alone no page beside them: what a replay reads later shall come in large ones. */
    if (!r->deep) (void)posix_fadvise(f.probe.fd, 0, 0, POSIX_FADV_RANDOM);
    file->bytes = f.probe.bytes;
    if (f.probe.bytes < ISO_WAL_BLOCK) {
      status = note_line(r, named->incarnation, INT64_MAX,
                         iso_arena_printf(index->arena, "%s: cut within its head\n", f.name));
    } else {
      status = iso_probe_read(&f.probe, f.block, ISO_WAL_BLOCK, 0, r->faults);
      const char *wrong = status == ISO_OK ? iso_wal_segment_decode(f.block, &file->head) : NULL;
      if (status == ISO_OK && !wrong) wrong = check_head(&f, named);
      if (wrong) status = note_line(r, 0, 0, iso_arena_printf(index->arena, "%s: %s\n", f.name, wrong));
      f.last = file->head.first_step - 1;
      file->usable = status == ISO_OK && !wrong;
      file->good_bytes = file->usable ? ISO_WAL_BLOCK : 0;
      if (file->usable) status = follow(&f);
    }
    iso_probe_close(&f.probe);
  } else if (status == ISO_ERR_FORMAT && !iso_path_exists(path)) { /* deleted since the folder was listed */
    r->faults->length = known;
    r->faults->data[known] = 0;
    index->file_count--;
    r->vanished = true;
  }
  free(f.block);
  iso_wal_cover_fini(&f.covered);
  if (status == ISO_ERR_FORMAT && !r->vanished) file->unread = iso_fault_unread(r->faults, known);
  return status == ISO_ERR_FORMAT ? ISO_OK : status; /* noted */
}

/* By step; of several entries of one step the one that counts first: newest incarnation, written last. */
static int compare_steps(const void *a, const void *b) {
  const iso_wal_step *x = a, *y = b;
  if (x->step != y->step) return x->step < y->step ? -1 : 1;
  if (x->segment != y->segment) return x->segment > y->segment ? -1 : 1; /* segments stand in order of incarnations */
  return x->offset > y->offset ? -1 : x->offset < y->offset;
}

const iso_wal_step *iso_wal_index_find(const iso_wal_index *index, int64_t step) {
  size_t low = 0, high = index->step_count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (index->steps[middle].step < step)
      low = middle + 1;
    else
      high = middle;
  }
  return low < index->step_count && index->steps[low].step == step ? &index->steps[low] : NULL;
}

bool iso_wal_index_unread(const iso_wal_index *index, int64_t step) {
  bool unread = false;
  for (size_t i = 0; i < index->file_count; i++) {
    const iso_wal_file *file = &index->files[i];
    if (file->usable && !file->unread && file->head.first_step <= step) unread = false; /* those before end here */
    unread = unread || file->unread;
  }
  return unread;
}

/* A kill cuts a step short that nobody called durable, but a snapshot of it or a later one may have been published
 * before: the end of what an incarnation wrote is torn, then, if a snapshot bridges all steps that are missing there.
 */
static bool is_bridged(const reader *r, const damage *d, int64_t acknowledged) {
  const iso_wal_index *index = r->index;
  if (!d->cut) return false;
  const iso_wal_segment *head = &index->files[d->file].head;
  for (size_t i = 0; i < index->file_count; i++) {
    const iso_wal_segment *other = &index->files[i].head;
    if (other->incarnation == head->incarnation && other->shard == head->shard && other->number > head->number)
      return false;
  }
  int64_t needed = acknowledged;
  for (size_t i = index->step_count; i-- > 0 && index->steps[i].step > d->step;) needed = index->steps[i].step - 1;
  iso_snapshot_entry *entries;
  size_t count = 0;
  bool bridged = false;
  const bool quiet = iso_log_quiet(true); /* what is wrong with snapshots is said by who reads them */
  if (iso_snapshot_list(index->arena, index->run, &entries, &count) != ISO_OK) count = 0;
  iso_log_quiet(quiet);
  for (size_t i = 0; i < count && !bridged; i++)
    bridged = entries[i].has_manifest && !entries[i].is_void && entries[i].step >= needed;
  return bridged;
}

/* A step that was never acknowledged may be cut by a kill; what a newer start has voided is nobody's loss. A segment
 * cut within its head (step INT64_MAX) held nothing yet; were a step missing for it, its absence would tell. */
static void sort_damages(reader *r, int64_t acknowledged) {
  for (size_t i = 0; i < r->damage_count; i++) {
    const damage *d = &r->damages[i];
    const bool voided = d->step > last_counted(r, d->incarnation), torn = d->step > acknowledged;
    const bool again = d->step > 0 && iso_wal_index_find(r->index, d->step); /* a failed write, done again elsewhere */
    const bool said = voided || torn || again || is_bridged(r, d, acknowledged);
    iso_string *to = said ? &r->index->torn : r->faults;
    iso_string_append(to, d->line, strlen(d->line));
  }
}

static iso_status read_index(const char *run, const char *uuid, bool deep, int64_t acknowledged, iso_wal_index *index,
                             iso_string *faults, bool *vanished) {
  *index = (iso_wal_index){.arena = iso_arena_create()};
  reader r = {.index = index, .faults = faults, .deep = deep, .uuid = uuid};
  if (!index->arena) return iso_fail(ISO_ERR_MEMORY, "log: no memory to read the log of '%s'", run);
  snprintf(index->run, sizeof index->run, "%s", run);
  const char *folder = iso_arena_printf(index->arena, "%s/log", run);
  char **names = NULL;
  size_t count = 0;
  bool exists = false;
  iso_status status = folder ? iso_path_probe(folder, &exists) : ISO_ERR_MEMORY;
  if (status == ISO_OK && exists) status = iso_path_list(index->arena, folder, &names, &count);
  if (status == ISO_OK)
    status = iso_incarnation_examine(index->arena, run, &r.incarnations, &r.incarnation_count, faults);
  for (size_t i = 0; i < count && status == ISO_OK; i++) {
    iso_wal_segment named;
    if (iso_wal_segment_name_parse(names[i], &named))
      status = read_segment(&r, names[i], &named);
    else
      iso_string_printf(faults, "log/%s: no log segment has such a name\n", names[i]);
  }
  free(r.buffer);
  free(r.values);
  for (size_t i = 0; i < ISO_COUNT(r.coders); i++) iso_wal_coder_destroy(&r.coders[i]);
  if (status == ISO_OK && index->step_count)
    qsort(index->steps, index->step_count, sizeof *index->steps, compare_steps);
  if (acknowledged > index->newest_durable) index->newest_durable = acknowledged;
  if (status == ISO_OK) sort_damages(&r, index->newest_durable);
  free(r.damages);
  *vanished = r.vanished;
  if (status != ISO_OK) iso_wal_index_fini(index);
  return status;
}

/* A run that goes on deletes old segments: what was read of the others may then have a gap that is none. */
iso_status iso_wal_index_read(const char *run, const char *uuid, bool deep, int64_t acknowledged, iso_wal_index *index,
                              iso_string *faults) {
  const size_t known = faults->length;
  bool vanished = false;
  for (int attempt = 0;; attempt++) {
    ISO_TRY(read_index(run, uuid, deep, acknowledged, index, faults, &vanished));
    if (!vanished || attempt == 4) return ISO_OK;
    iso_wal_index_fini(index);
    faults->length = known;
    if (faults->data) faults->data[known] = 0;
  }
}

void iso_wal_index_fini(iso_wal_index *index) {
  iso_string_fini(&index->torn);
  free(index->files);
  free(index->steps);
  iso_arena_destroy(&index->arena);
  *index = (iso_wal_index){0};
}

/* ---- one step's content ---- */

/* Reading one step's frames, which must be what the index said. */
typedef struct content {
  const iso_probe *probe;
  const iso_wal_segment *head;
  int64_t step, offset;
  iso_wal_coder *coder; /* made when first needed */
  char *packed;
  iso_wal_cover covered;
  iso_string *faults;
} content;

static iso_status fault(const content *c, const char *wrong) {
  iso_string_printf(c->faults, "%s: at byte %lld: step %lld: %s\n", c->probe->name, (long long)c->offset,
                    (long long)c->step, wrong);
  return ISO_ERR_FORMAT;
}

/* The head at the offset; the frame lies within the file. */
static iso_status read_head(const content *c, iso_wal_kind kind, iso_wal_frame *frame) {
  char block[ISO_WAL_BLOCK];
  ISO_TRY(iso_probe_read(c->probe, block, sizeof block, c->offset, c->faults));
  const char *wrong = iso_wal_frame_decode(block, c->head, frame);
  if (!wrong && (frame->step != c->step || frame->kind != kind)) wrong = "another frame than the index says";
  if (!wrong && (int64_t)iso_wal_padded((size_t)frame->bytes) > c->probe->bytes - c->offset - ISO_WAL_BLOCK)
    wrong = "cut within a frame";
  return wrong ? fault(c, wrong) : ISO_OK;
}

/* What lies behind the head, checked; moves past it. */
static iso_status read_content(content *c, const iso_wal_frame *frame, void *data) {
  char block[ISO_WAL_BLOCK];
  const size_t bytes = (size_t)frame->bytes, rest = iso_wal_padded(bytes) - bytes;
  ISO_TRY(iso_probe_read(c->probe, data, bytes, c->offset + ISO_WAL_BLOCK, c->faults));
  uint32_t crc = iso_crc32c(0, data, bytes);
  if (rest) ISO_TRY(iso_probe_read(c->probe, block, rest, c->offset + ISO_WAL_BLOCK + (int64_t)bytes, c->faults));
  crc = iso_crc32c(crc, block, rest);
  if (crc != frame->payload_crc) return fault(c, "the CRC-32C of a frame's content is wrong: altered");
  c->offset += ISO_WAL_BLOCK + (int64_t)iso_wal_padded(bytes);
  return ISO_OK;
}

static iso_status read_packed(content *c, const iso_wal_frame *frame, void *values) {
  const int64_t at = c->offset;
  if (!c->coder) ISO_TRY(iso_wal_coder_create(c->head->gradient, ISO_WAL_PACKED, &c->coder));
  if (!c->packed) c->packed = malloc(iso_wal_packed_bound(c->head->gradient, ISO_WAL_PACKED));
  if (!c->packed) return iso_fail(ISO_ERR_MEMORY, "log: no memory to unpack step %lld", (long long)c->step);
  ISO_TRY(read_content(c, frame, c->packed));
  const char *wrong = iso_wal_unpack(c->coder, c->packed, (size_t)frame->bytes, frame->end - frame->begin, values);
  if (!wrong) return ISO_OK;
  c->offset = at;
  return fault(c, wrong);
}

static iso_status read_commit(content *c, iso_wal_record *record, iso_cursor **cursors) {
  iso_wal_frame frame;
  int64_t payloads;
  uint32_t crc;
  ISO_TRY(read_head(c, ISO_WAL_COMMIT, &frame));
  char *body = malloc((size_t)frame.bytes + 1);
  if (!body) return iso_fail(ISO_ERR_MEMORY, "log: no memory for a commit of %lld bytes", (long long)frame.bytes);
  iso_status status = read_content(c, &frame, body);
  if (status == ISO_OK && !iso_wal_commit_decode(body, (size_t)frame.bytes, record, &payloads, &crc))
    status = fault(c, "a commit has an impossible value");
  if (status == ISO_OK) {
    record->step = c->step;
    status = iso_wal_record_own(record, cursors);
  }
  free(body);
  return status;
}

/* The commit first: of a refused step nothing else is read. */
static iso_status read_step(content *c, const iso_wal_step *step, char *reduced, iso_wal_record *record,
                            iso_cursor **cursors) {
  const size_t size = iso_dtype_size(c->head->gradient);
  iso_wal_frame frame;
  bool fresh;
  c->offset = step->commit;
  ISO_TRY(read_commit(c, record, cursors));
  c->offset = step->offset;
  for (int64_t i = 0; i < step->frames && !record->refused; i++) {
    ISO_TRY(read_head(c, ISO_WAL_PAYLOAD, &frame));
    ISO_TRY(iso_wal_cover_add(&c->covered, frame.begin, frame.end, &fresh));
    if (!fresh) return fault(c, "another frame than the index says");
    char *values = reduced + (size_t)frame.begin * size;
    ISO_TRY(frame.codec == ISO_WAL_PLANES ? read_packed(c, &frame, values) : read_content(c, &frame, values));
  }
  if (record->refused || iso_wal_cover_is_whole(&c->covered, c->head->elements)) return ISO_OK;
  return fault(c, "other frames than the index says");
}

iso_status iso_wal_step_read(const iso_wal_index *index, const iso_wal_step *step, void *reduced,
                             iso_wal_record *record, iso_cursor **cursors, iso_string *faults) {
  const iso_wal_file *file = &index->files[step->segment];
  char path[4400], name[64];
  iso_probe probe;
  *cursors = NULL;
  snprintf(path, sizeof path, "%s/log/%s", index->run, file->name);
  snprintf(name, sizeof name, "log/%s", file->name);
  ISO_TRY(iso_probe_open(&probe, path, name, faults));
  content c = {.probe = &probe, .head = &file->head, .step = step->step, .offset = step->offset, .faults = faults};
  const iso_status status = read_step(&c, step, reduced, record, cursors);
  if (status != ISO_OK) {
    free(*cursors);
    *cursors = NULL;
  }
  iso_wal_coder_destroy(&c.coder);
  free(c.packed);
  iso_wal_cover_fini(&c.covered);
  iso_probe_close(&probe);
  return status;
}
