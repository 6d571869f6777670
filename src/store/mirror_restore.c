/* SPDX-License-Identifier: Apache-2.0
 *
 * The way back: a run folder that is gone, or damaged, is made from its mirror.
 *
 * Every file comes under a temporary name and takes its place whole; what stood there is set aside, never deleted. In a
 * folder that is gone run.json comes last: until then it is no run folder, and the next start begins here again.
 *
 * Invariants
 *  1. A mirror that cannot be read is never taken for an empty one.
 *  2. A snapshot comes with its files first and its manifest last, and is read and checked here; a damaged one stays in
 *     the mirror and is named.
 *  3. Whole steps that only this folder has are kept: a segment is the mirror's bytes and then the folder's own, and
 *     one of the two stands there whenever the process is killed (replace.c).
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

typedef struct restore {
  const char *run;
  iso_target *target;
  iso_arena *arena;
  iso_restore_report *report;
  iso_target_entry *entries; /* all of the mirror */
  size_t entry_count;
  bool here;  /* run.json is here */
  bool adopt; /* a newer incarnation of the mirror is taken over */
  bool deep;  /* every byte is compared */
  int newest_here;
  char sound[64]; /* a snapshot of the folder that was read and is as its manifest says */
} restore;

static iso_status no_memory(const restore *r) {
  return iso_fail(ISO_ERR_MEMORY, "no memory to restore '%s'", r->run);
}

static const char *in_run(const restore *r, const char *name) {
  return iso_path_join(r->arena, r->run, name);
}

static iso_status make_parent(const char *path) {
  char *folder = strdup(path);
  if (!folder) return iso_fail(ISO_ERR_MEMORY, "no memory for a path");
  *strrchr(folder, '/') = 0;
  iso_status status = ISO_OK;
  if (!iso_path_is_folder(folder)) {
    status = iso_path_make(folder);
    if (status == ISO_OK) status = iso_parent_sync(folder);
  }
  free(folder);
  return status;
}

/* The mirror's thing under a temporary name beside `name`. */
static iso_status fetch(restore *r, const char *name, const char **temporary, int64_t *bytes, uint32_t *crc) {
  char attempt[33];
  ISO_TRY(iso_attempt_id(attempt));
  *temporary = iso_arena_printf(r->arena, "%s/%s.%s.tmp", r->run, name, attempt);
  if (!*temporary) return no_memory(r);
  ISO_TRY(make_parent(*temporary));
  ISO_TRY(iso_target_fetch(r->target, name, *temporary, bytes, crc));
  r->report->files++;
  r->report->bytes += *bytes;
  return ISO_OK;
}

/* What stands under the name goes aside, and the temporary file takes its place. */
static iso_status settle(restore *r, const char *name, const char *temporary, const char *why) {
  char moved_to[256];
  ISO_TRY(iso_run_replace(r->run, name, temporary, moved_to));
  if (moved_to[0])
    iso_string_printf(&r->report->text, "%s: %s; set aside as %s and replaced by the %s's\n", name, why, moved_to,
                      iso_target_role(r->target));
  return ISO_OK;
}

static iso_status bring(restore *r, const char *name, const char *why) {
  const char *temporary;
  int64_t bytes;
  uint32_t crc;
  ISO_TRY(fetch(r, name, &temporary, &bytes, &crc));
  return settle(r, name, temporary, why);
}

/* ---- identity ---- */

static bool record_is_good(const char *path) {
  iso_json *json;
  iso_string faults = {0};
  const bool good = iso_record_read(path, "a record", &json, &faults) == ISO_OK;
  iso_json_destroy(&json);
  iso_string_fini(&faults);
  return good;
}

/* Whether the mirror holds a run, and the folder the same one. */
static iso_status look_at_identity(restore *r) {
  char *data, uuid[37] = "", own[37];
  size_t bytes;
  bool exists;
  iso_json *json;
  ISO_TRY(r->target->ops->get(r->target, "run.json", &data, &bytes));
  r->report->holds = data != NULL;
  if (!data) return ISO_OK;
  iso_status status = iso_json_parse(data, bytes, "run.json of the mirror", &json);
  free(data);
  if (status != ISO_OK) return status;
  const bool known = iso_record_text(json, "uuid", uuid, sizeof uuid);
  iso_json_destroy(&json);
  if (!known)
    return iso_fail(ISO_ERR_FORMAT, "%s '%s': its run.json is damaged", iso_target_role(r->target), r->target->where);
  const char *path = in_run(r, "run.json");
  if (!path) return no_memory(r);
  ISO_TRY(iso_path_probe(path, &exists));
  r->here = exists;
  if (!exists) return ISO_OK;
  if (!record_is_good(path)) return bring(r, "run.json", "damaged");
  ISO_TRY(iso_run_folder_read(r->run, own, &exists));
  if (strcmp(own, uuid) == 0) return ISO_OK;
  return iso_fail(
      ISO_ERR_MISMATCH,
      "%s '%s' holds another run (%s) than folder '%s' (%s); choose another checkpoint.%s, or another `run`",
      iso_target_role(r->target), r->target->where, uuid, r->run, own, iso_target_role(r->target));
}

static int incarnation_of(const char *name) {
  int number = 0, end = 0;
  return sscanf(name, "incarnations/%d.json%n", &number, &end) == 1 && end && !name[end] ? number : 0;
}

/* Before anything is changed: does the run go on elsewhere? */
static iso_status look_at_incarnations(restore *r) {
  char **names = NULL;
  size_t count = 0;
  bool exists;
  const char *folder = in_run(r, "incarnations");
  if (!folder) return no_memory(r);
  ISO_TRY(iso_path_probe(folder, &exists));
  if (exists) ISO_TRY(iso_path_list(r->arena, folder, &names, &count));
  for (size_t i = 0; i < count; i++) {
    int number = 0;
    if (sscanf(names[i], "%d.json", &number) == 1 && number > r->newest_here) r->newest_here = number;
  }
  for (size_t i = 0; i < r->entry_count && r->here && !r->adopt; i++)
    if (incarnation_of(r->entries[i].name) > r->newest_here)
      return iso_fail(ISO_ERR_BUSY,
                      "run '%s' goes on elsewhere: incarnation %d was begun from %s '%s', this folder knows %d; stop "
                      "that process, then remove this folder to go on from the %s, or use --take-over",
                      r->run, incarnation_of(r->entries[i].name), iso_target_role(r->target), r->target->where,
                      r->newest_here, iso_target_role(r->target));
  return ISO_OK;
}

static iso_status bring_incarnations(restore *r) {
  for (size_t i = 0; i < r->entry_count; i++) {
    const char *name = r->entries[i].name, *path = in_run(r, name);
    char *there, *own;
    size_t there_bytes, own_bytes;
    bool exists;
    if (!incarnation_of(name)) continue;
    if (!path) return no_memory(r);
    ISO_TRY(iso_path_probe(path, &exists));
    if (!exists || !record_is_good(path)) {
      ISO_TRY(bring(r, name, "damaged"));
      continue;
    }
    ISO_TRY(r->target->ops->get(r->target, name, &there, &there_bytes));
    iso_status status = iso_file_read(path, &own, &own_bytes);
    const bool same = status == ISO_OK && there && there_bytes == own_bytes && memcmp(there, own, own_bytes) == 0;
    free(there);
    free(own);
    ISO_TRY(status);
    if (same) continue;
    if (r->adopt)
      ISO_TRY(bring(r, name, "of a start that another one, in the mirror, made void"));
    else
      return iso_fail(ISO_ERR_BUSY,
                      "run '%s' goes on elsewhere: incarnation %d of %s '%s' is another than here; stop that "
                      "process, then remove this folder to go on from the %s",
                      r->run, incarnation_of(name), iso_target_role(r->target), r->target->where,
                      iso_target_role(r->target));
  }
  return ISO_OK;
}

/* ---- snapshots ---- */

static iso_status examine(const char *folder, bool deep, iso_string *faults) {
  iso_manifest manifest;
  const iso_status status = iso_snapshot_examine(folder, NULL, deep, &manifest, faults);
  iso_manifest_fini(&manifest);
  return status;
}

/* Files first, then the manifest; then all of it is checked. */
static iso_status bring_snapshot(restore *r, const char *name) {
  const char *prefix = iso_arena_printf(r->arena, "snapshots/%s/", name);
  const char *folder = iso_arena_printf(r->arena, "%s/snapshots/%s", r->run, name);
  char moved_to[256], relative[80];
  iso_string faults = {0};
  if (!prefix || !folder) return no_memory(r);
  for (int manifest = 0; manifest < 2; manifest++) {
    for (size_t i = 0; i < r->entry_count; i++) {
      const char *file = r->entries[i].name;
      bool exists;
      if (strncmp(file, prefix, strlen(prefix)) != 0) continue;
      if ((strcmp(file + strlen(prefix), "manifest.json") == 0) != manifest) continue;
      const char *path = in_run(r, file);
      struct stat info;
      if (!path) return no_memory(r);
      ISO_TRY(iso_path_probe(path, &exists));
      if (exists && !manifest && iso_os.stat(path, &info) == 0 && info.st_size == r->entries[i].bytes)
        continue; /* of a restore that was killed; all is checked below */
      ISO_TRY(bring(r, file, "not whole"));
    }
  }
  iso_status status = examine(folder, true, &faults);
  if (status == ISO_ERR_FORMAT) {
    snprintf(relative, sizeof relative, "snapshots/%s", name);
    status = iso_run_set_aside(r->run, relative, moved_to);
    iso_string_printf(&r->report->text, "%s: damaged in the %s too: %s\n", relative, iso_target_role(r->target),
                      iso_fault_first(&faults));
  }
  iso_string_fini(&faults);
  return status;
}

/* What is wrong with the folder's own, if anything; *missing: there is none. */
static iso_status look_at_own(restore *r, const char *name, bool deep, bool *missing, iso_string *faults) {
  const char *folder = iso_arena_printf(r->arena, "%s/snapshots/%s", r->run, name);
  const char *manifest = folder ? iso_path_join(r->arena, folder, "manifest.json") : NULL;
  bool exists;
  if (!manifest) return no_memory(r);
  ISO_TRY(iso_path_probe(manifest, &exists));
  *missing = !exists;
  return exists ? examine(folder, deep, faults) : ISO_OK;
}

static iso_status bring_one(restore *r, const char *name, bool newest) {
  iso_string faults = {0};
  char relative[80], moved_to[256];
  bool missing;
  iso_status status = look_at_own(r, name, (newest || r->deep) && strcmp(name, r->sound) != 0, &missing, &faults);
  const bool damaged = status == ISO_ERR_FORMAT;
  if (damaged) {
    snprintf(relative, sizeof relative, "snapshots/%s", name);
    status = iso_run_set_aside(r->run, relative, moved_to);
    iso_string_printf(&r->report->text, "%s: damaged: %s; set aside as %s and replaced by the %s's\n", relative,
                      iso_fault_first(&faults), moved_to, iso_target_role(r->target));
  }
  iso_string_fini(&faults);
  return status == ISO_OK && (missing || damaged) ? bring_snapshot(r, name) : status;
}

/* The step of the folder's newest sound snapshot; -1: it has none. A power cut may leave a manifest without the data.
 */
static iso_status newest_own(restore *r, int64_t *step) {
  char **names = NULL;
  size_t count = 0;
  bool exists;
  *step = -1;
  const char *folder = in_run(r, "snapshots");
  if (!folder) return no_memory(r);
  ISO_TRY(iso_path_probe(folder, &exists));
  if (exists) ISO_TRY(iso_path_list(r->arena, folder, &names, &count));
  for (size_t i = count; i-- > 0 && *step < 0;) { /* sorted by name */
    int64_t own;
    int incarnation;
    bool missing;
    iso_string faults = {0};
    if (!iso_snapshot_name_parse(names[i], &own, &incarnation)) continue;
    const iso_status status = look_at_own(r, names[i], strcmp(names[i], r->sound) != 0, &missing, &faults);
    iso_string_fini(&faults);
    if (status == ISO_ERR_MEMORY) return status;
    if (status != ISO_OK || missing) continue;
    snprintf(r->sound, sizeof r->sound, "%.63s", names[i]);
    *step = own;
  }
  return ISO_OK;
}

/* Newest first. In a folder that holds the run only those are wanted that are as new as its own newest one. */
static iso_status bring_snapshots(restore *r) {
  int64_t own;
  bool newest = true;
  ISO_TRY(newest_own(r, &own));
  for (size_t i = r->entry_count; i-- > 0;) { /* sorted by name */
    const char *name = r->entries[i].name, *slash = strrchr(name, '/');
    char snapshot[64];
    int64_t step;
    int incarnation;
    if (strncmp(name, "snapshots/", 10) != 0 || strcmp(slash, "/manifest.json") != 0) continue;
    snprintf(snapshot, sizeof snapshot, "%.*s", (int)(slash - name - 10), name + 10);
    if (!iso_snapshot_name_parse(snapshot, &step, &incarnation)) continue;
    if (r->here && !r->deep && step < own) continue;
    ISO_TRY(bring_one(r, snapshot, newest));
    newest = false;
  }
  return ISO_OK;
}

/* ---- the log ---- */

typedef struct comparison {
  iso_probe probe;
  int64_t at;
  bool differs;
  char *buffer;
} comparison;

static iso_status compare_piece(void *context, const void *data, size_t bytes) {
  comparison *c = context;
  iso_string faults = {0};
  const int64_t left = c->probe.bytes - c->at;
  const size_t both = left < (int64_t)bytes ? (size_t)left : bytes;
  const bool read = iso_probe_read(&c->probe, c->buffer, both, c->at, &faults) == ISO_OK;
  iso_string_fini(&faults);
  c->differs = c->differs || !read || memcmp(c->buffer, data, both) != 0 || both < bytes;
  c->at += (int64_t)bytes;
  return c->differs ? ISO_STOPPED : ISO_OK;
}

/* Whether what the mirror has of a thing is not a beginning of the folder's own. */
static iso_status differs(restore *r, const char *name, bool *out, int64_t *own_bytes) {
  comparison c = {.buffer = malloc(ISO_TARGET_PIECE)};
  iso_string faults = {0};
  const char *path = in_run(r, name);
  if (!path || !c.buffer) {
    free(c.buffer);
    return no_memory(r);
  }
  iso_status status = ISO_OK;
  if (iso_probe_open(&c.probe, path, name, &faults) != ISO_OK) {
    c.differs = true;
  } else {
    status = r->target->ops->stream(r->target, name, compare_piece, &c);
    if (status == ISO_STOPPED && c.differs) status = ISO_OK;
  }
  *out = c.differs;
  *own_bytes = c.probe.bytes;
  iso_probe_close(&c.probe);
  iso_string_fini(&faults);
  free(c.buffer);
  return status;
}

/* What the folder's own segment has behind the mirror's end; *all: all of it could be read. */
static iso_status add_tail(restore *r, const char *name, const char *temporary, int64_t from, int64_t own_bytes,
                           bool *all) {
  const char *path = in_run(r, name);
  iso_probe probe;
  iso_string faults = {0};
  *all = true;
  if (own_bytes <= from) return ISO_OK;
  char *buffer = malloc(ISO_TARGET_PIECE);
  const int fd = iso_os.open(temporary, O_WRONLY | O_CLOEXEC, 0);
  iso_status status = buffer && path ? ISO_OK : no_memory(r);
  if (fd < 0) status = iso_os_fail("open", temporary);
  if (status == ISO_OK && iso_probe_open(&probe, path, name, &faults) == ISO_OK) {
    for (int64_t at = from; at < own_bytes && status == ISO_OK;) {
      const size_t part = own_bytes - at < ISO_TARGET_PIECE ? (size_t)(own_bytes - at) : ISO_TARGET_PIECE;
      *all = iso_probe_read(&probe, buffer, part, at, &faults) == ISO_OK;
      if (!*all) break;
      status = iso_file_pwrite(fd, temporary, buffer, part, at);
      at += (int64_t)part;
    }
    iso_probe_close(&probe);
  } else if (status == ISO_OK) {
    *all = false;
  }
  if (status == ISO_OK && iso_os.fdatasync(fd) != 0) status = iso_os_fail("sync", temporary);
  if (fd >= 0) (void)iso_os.close(fd);
  iso_string_fini(&faults);
  free(buffer);
  return status;
}

typedef struct framed {
  iso_probe probe;
  iso_wal_segment head;
  char *buffer; /* ISO_TARGET_PIECE, where frames are read */
} framed;

/* The frame at `at` is as it was written; *bytes: of all of it. */
static bool frame_is_good(framed *f, int64_t at, int64_t *bytes) {
  char block[ISO_WAL_BLOCK];
  iso_wal_frame frame;
  iso_string faults = {0};
  const bool read = iso_probe_read(&f->probe, block, sizeof block, at, &faults) == ISO_OK;
  iso_string_fini(&faults);
  if (!read || iso_wal_frame_decode(block, &f->head, &frame)) return false;
  *bytes = ISO_WAL_BLOCK + (int64_t)iso_wal_padded((size_t)frame.bytes);
  return iso_mirror_frame_is_good(&f->probe, at, &frame, f->buffer);
}

/* false: there is no segment of which the head can be read; there is nothing to close then. */
static bool framed_open(framed *f, const char *path, const char *name) {
  char block[ISO_WAL_BLOCK];
  iso_string faults = {0};
  bool good = path && iso_probe_open(&f->probe, path, name, &faults) == ISO_OK;
  if (good && (iso_probe_read(&f->probe, block, sizeof block, 0, &faults) != ISO_OK ||
               iso_wal_segment_decode(block, &f->head))) {
    iso_probe_close(&f->probe);
    good = false;
  }
  iso_string_fini(&faults);
  return good;
}

/* Whether the frames of the folder's own are as they were written, as far as the mirror has the segment. */
static iso_status is_whole(restore *r, const iso_target_entry *entry, bool *whole) {
  framed own = {.buffer = malloc(ISO_TARGET_PIECE)};
  if (!own.buffer) return no_memory(r);
  *whole = framed_open(&own, in_run(r, entry->name), entry->name);
  const bool opened = *whole;
  for (int64_t at = ISO_WAL_BLOCK, bytes = 0; *whole && at < entry->bytes; at += bytes)
    *whole = frame_is_good(&own, at, &bytes);
  if (opened) iso_probe_close(&own.probe);
  free(own.buffer);
  return ISO_OK;
}

static iso_status copy_range(framed *from, int fd, const char *to, int64_t at, int64_t bytes) {
  iso_string faults = {0};
  iso_status status = ISO_OK;
  for (int64_t end = at + bytes; at < end && status == ISO_OK;) {
    const size_t part = end - at < ISO_TARGET_PIECE ? (size_t)(end - at) : ISO_TARGET_PIECE;
    status = iso_probe_read(&from->probe, from->buffer, part, at, &faults);
    if (status == ISO_OK) status = iso_file_pwrite(fd, to, from->buffer, part, at);
    at += (int64_t)part;
  }
  iso_string_fini(&faults);
  return status;
}

/* To what was fetched: one power cut may have torn the mirror, too. A frame that is good in the folder only comes from
 * there. *better: what is there then is worth more than the folder's own. */
static iso_status add_good_frames(restore *r, const iso_target_entry *entry, const char *temporary, bool *better) {
  framed own = {.buffer = malloc(ISO_TARGET_PIECE)}, fetched = {.buffer = malloc(ISO_TARGET_PIECE)};
  int fd = -1;
  iso_status status = own.buffer && fetched.buffer ? ISO_OK : no_memory(r);
  const bool both = status == ISO_OK && framed_open(&own, in_run(r, entry->name), entry->name);
  *better = !both;
  if (both && framed_open(&fetched, temporary, entry->name)) {
    *better = true;
    for (int64_t at = ISO_WAL_BLOCK, bytes = 0; at < entry->bytes && status == ISO_OK; at += bytes) {
      if (frame_is_good(&fetched, at, &bytes)) continue;
      if (!frame_is_good(&own, at, &bytes)) break;
      if (fd < 0) fd = iso_os.open(temporary, O_WRONLY | O_CLOEXEC, 0);
      status = fd < 0 ? iso_os_fail("open", temporary) : copy_range(&own, fd, temporary, at, bytes);
    }
    iso_probe_close(&fetched.probe);
  }
  if (fd >= 0 && status == ISO_OK && iso_os.fdatasync(fd) != 0) status = iso_os_fail("sync", temporary);
  if (fd >= 0) (void)iso_os.close(fd);
  if (both) iso_probe_close(&own.probe);
  free(own.buffer);
  free(fetched.buffer);
  return status;
}

/* Whether the folder's own segment of that name begins at or before that step. */
static bool begins_by(restore *r, const char *name, int64_t step) {
  framed own = {0};
  if (!framed_open(&own, iso_arena_printf(r->arena, "%s/log/%s", r->run, name), name)) return false;
  iso_probe_close(&own.probe);
  return own.head.first_step <= step;
}

/* needed: its steps lead on from the newest snapshot, so that it is read, and not only measured: a power cut may leave
 * a file of its full length with holes. */
static iso_status bring_segment(restore *r, const iso_target_entry *entry, bool needed) {
  const char *path = in_run(r, entry->name), *temporary;
  struct stat info;
  int64_t bytes, own_bytes = 0;
  uint32_t crc;
  if (!path) return no_memory(r);
  const bool exists = iso_os.stat(path, &info) == 0;
  if (!exists && errno != ENOENT) return iso_os_fail("look at", path);
  bool wanted = !exists || info.st_size < entry->bytes;
  if (exists) own_bytes = info.st_size;
  if (exists && !wanted && r->deep) {
    ISO_TRY(differs(r, entry->name, &wanted, &own_bytes));
  } else if (exists && !wanted && needed) {
    bool whole = false;
    ISO_TRY(is_whole(r, entry, &whole));
    wanted = !whole;
  }
  if (!wanted || entry->bytes == 0) return ISO_OK;
  ISO_TRY(fetch(r, entry->name, &temporary, &bytes, &crc));
  bool all = true, better = true;
  if (exists) ISO_TRY(add_good_frames(r, entry, temporary, &better));
  if (exists && better) ISO_TRY(add_tail(r, entry->name, temporary, bytes, own_bytes, &all));
  if (!all || !better) { /* it may hold steps that are nowhere else, and the disk may read it yet */
    iso_string_printf(&r->report->text, "%s: altered, but %s: it stays\n", entry->name,
                      better ? "its end cannot be read" : "so is the mirror's, from its first block on");
    (void)iso_os.unlink(temporary);
    r->report->files--;
    return ISO_OK;
  }
  return settle(r, entry->name, temporary, own_bytes < entry->bytes ? "cut short" : "altered");
}

static iso_status bring_log(restore *r) {
  char **names = NULL;
  size_t count = 0, needed = 0; /* the first one that leads on from the newest snapshot */
  int64_t own;
  bool exists;
  const char *folder = in_run(r, "log");
  if (!folder) return no_memory(r);
  ISO_TRY(iso_path_probe(folder, &exists));
  if (exists) ISO_TRY(iso_path_list(r->arena, folder, &names, &count));
  ISO_TRY(newest_own(r, &own));
  while (needed + 1 < count && begins_by(r, names[needed + 1], own + 1)) needed++;
  /* A power cut may take the names of the first ones, too; and if the newest snapshot is no good, more are needed. */
  const bool pruned = r->here && !r->deep && count && begins_by(r, names[0], own + 1);
  for (size_t i = 0; i < r->entry_count; i++) {
    iso_wal_segment parsed;
    const char *name = r->entries[i].name;
    if (strncmp(name, "log/", 4) != 0 || !iso_wal_segment_name_parse(name + 4, &parsed)) continue;
    if (pruned && strcmp(name + 4, names[0]) < 0) continue;
    ISO_TRY(bring_segment(r, &r->entries[i], count && strcmp(name + 4, names[needed]) >= 0));
  }
  return ISO_OK;
}

/* ---- the rest ---- */

static bool is_small_file(const char *name) {
  static const char *const names[] = {"config.yaml",     "model.json",        "inputs.json", "config.yaml.next",
                                      "model.json.next", "inputs.json.next",  "fusion.json", "metrics.jsonl",
                                      "skipped.jsonl",   "evaluations.jsonl", "starts.json", "report.json"};
  for (size_t i = 0; i < ISO_COUNT(names); i++)
    if (strcmp(name, names[i]) == 0) return true;
  return strncmp(name, "tokenizer/", 10) == 0 || strncmp(name, "differed-", 9) == 0;
}

static iso_status bring_small_files(restore *r) {
  for (size_t i = 0; i < r->entry_count; i++) {
    const char *name = r->entries[i].name, *path = in_run(r, name);
    bool exists;
    if (!is_small_file(name)) continue;
    if (!path) return no_memory(r);
    ISO_TRY(iso_path_probe(path, &exists));
    if (r->here && !r->adopt && strstr(name, ".next")) continue;
    if (!exists || (r->adopt && strncmp(name, "tokenizer/", 10) != 0)) ISO_TRY(bring(r, name, "of before"));
  }
  return ISO_OK;
}

/* What a restore that was killed left under temporary names. */
static iso_status sweep(restore *r) {
  iso_target *here;
  ISO_TRY(iso_target_open(r->run, &here));
  const iso_status status = here->ops->sweep(here);
  iso_target_close(&here);
  return status;
}

static iso_status restore_all(restore *r) {
  ISO_TRY(iso_run_replace_finish(r->run));
  ISO_TRY(look_at_identity(r));
  if (!r->report->holds) return ISO_OK;
  ISO_TRY(r->target->ops->list(r->target, r->arena, "", &r->entries, &r->entry_count));
  ISO_TRY(look_at_incarnations(r));
  bool newer = false;
  for (size_t i = 0; i < r->entry_count; i++) newer = newer || incarnation_of(r->entries[i].name) > r->newest_here;
  r->adopt = r->adopt && r->here && newer;
  r->report->whole = !r->here;
  ISO_TRY(sweep(r));
  ISO_TRY(bring_snapshots(r));
  ISO_TRY(bring_log(r));
  ISO_TRY(bring_small_files(r));
  ISO_TRY(bring_incarnations(r));
  return r->here ? ISO_OK : bring(r, "run.json", "");
}

static iso_status in_arena(const char *run, iso_target *target, bool adopt, bool deep, iso_restore_report *report) {
  *report = (iso_restore_report){0};
  restore r = {.run = run, .target = target, .report = report, .adopt = adopt, .deep = deep};
  r.arena = iso_arena_create();
  const iso_status status = r.arena ? restore_all(&r) : no_memory(&r);
  iso_arena_destroy(&r.arena);
  return status;
}

iso_status iso_mirror_restore(const char *run, iso_target *target, bool adopt, iso_restore_report *report) {
  return in_arena(run, target, adopt, false, report);
}

iso_status iso_mirror_repair(const char *run, iso_target *target, iso_restore_report *report) {
  return in_arena(run, target, false, true, report);
}

/* ---- is the mirror complete? ---- */

static iso_status verify_thing(restore *r, const char *name, FILE *out, int64_t *faults, bool may_be_ahead) {
  const iso_target_entry *entry = NULL;
  bool other;
  int64_t bytes;
  for (size_t i = 0; i < r->entry_count && !entry; i++)
    if (strcmp(r->entries[i].name, name) == 0) entry = &r->entries[i];
  if (!entry) {
    fprintf(out, "%s: not in the %s\n", name, iso_target_role(r->target));
    ++*faults;
    return ISO_OK;
  }
  ISO_TRY(differs(r, name, &other, &bytes));
  if (other || (!may_be_ahead && bytes != entry->bytes)) {
    fprintf(out, "%s: the %s holds other bytes\n", name, iso_target_role(r->target));
    ++*faults;
  }
  return ISO_OK;
}

static iso_status verify_folder(restore *r, const char *folder, FILE *out, int64_t *faults) {
  char **names = NULL;
  size_t count = 0;
  bool exists;
  const char *path = in_run(r, folder);
  if (!path) return no_memory(r);
  ISO_TRY(iso_path_probe(path, &exists));
  if (exists) ISO_TRY(iso_path_list(r->arena, path, &names, &count));
  for (size_t i = 0; i < count; i++) {
    const char *name = iso_path_join(r->arena, folder, names[i]);
    if (!name) return no_memory(r);
    if (!strstr(names[i], ".tmp")) ISO_TRY(verify_thing(r, name, out, faults, false));
  }
  return ISO_OK;
}

static iso_status verify_snapshots(restore *r, FILE *out, int64_t *faults) {
  iso_snapshot_entry *entries;
  size_t count;
  ISO_TRY(iso_snapshot_list(r->arena, r->run, &entries, &count));
  for (size_t i = 0; i < count; i++) {
    const char *folder = iso_arena_printf(r->arena, "snapshots/%s", entries[i].name);
    if (!folder) return no_memory(r);
    if (entries[i].has_manifest && !entries[i].is_void) ISO_TRY(verify_folder(r, folder, out, faults));
  }
  return ISO_OK;
}

/* Each whole step of the log: the mirror's bytes reach to the last one's end and are the folder's own. */
static iso_status verify_log(restore *r, const char *uuid, FILE *out, int64_t *faults) {
  iso_wal_index index;
  iso_string ignored = {0};
  ISO_TRY(iso_wal_index_read(r->run, uuid, false, 0, &index, &ignored));
  iso_string_fini(&ignored);
  iso_status status = ISO_OK;
  for (size_t i = 0; i < index.file_count && status == ISO_OK; i++) {
    const iso_wal_file *file = &index.files[i];
    int64_t end = 0, there = 0, last = 0;
    for (size_t k = 0; k < index.step_count; k++)
      if (index.steps[k].segment == (int64_t)i && index.steps[k].commit > end) {
        end = index.steps[k].commit;
        last = index.steps[k].step;
      }
    if (!end) continue;
    const char *name = iso_arena_printf(r->arena, "log/%s", file->name);
    for (size_t k = 0; name && k < r->entry_count; k++)
      if (strcmp(r->entries[k].name, name) == 0) there = r->entries[k].bytes;
    status = name ? ISO_OK : no_memory(r);
    if (status == ISO_OK && there <= end) {
      fprintf(out, "%s: the %s ends before step %lld\n", name, iso_target_role(r->target), (long long)last);
      ++*faults;
    }
    if (status == ISO_OK && there > 0) status = verify_thing(r, name, out, faults, true);
  }
  iso_wal_index_fini(&index);
  return status;
}

static iso_status verify_all(restore *r, FILE *out, int64_t *faults) {
  char uuid[37];
  bool exists;
  static const char *const files[] = {"run.json", "config.yaml", "model.json", "inputs.json"};
  ISO_TRY(iso_run_folder_read(r->run, uuid, &exists));
  if (!exists) return iso_fail(ISO_ERR_NOT_FOUND, "'%s' is no run folder: it has no run.json", r->run);
  char differed[32];
  iso_incarnation newest;
  ISO_TRY(iso_incarnation_newest(r->run, &newest));
  iso_differed_name(newest.number, differed);
  const char *record = in_run(r, differed);
  if (!record) return no_memory(r);
  ISO_TRY(r->target->ops->list(r->target, r->arena, "", &r->entries, &r->entry_count));
  for (size_t i = 0; i < ISO_COUNT(files); i++) ISO_TRY(verify_thing(r, files[i], out, faults, false));
  ISO_TRY(verify_folder(r, "tokenizer", out, faults));
  ISO_TRY(verify_folder(r, "incarnations", out, faults));
  ISO_TRY(iso_path_probe(record, &exists));
  if (exists) ISO_TRY(verify_thing(r, differed, out, faults, false));
  ISO_TRY(verify_snapshots(r, out, faults));
  return verify_log(r, uuid, out, faults);
}

iso_status iso_mirror_verify(const char *run, iso_target *target, FILE *out) {
  int64_t faults = 0;
  iso_restore_report unused = {0};
  restore r = {.run = run, .target = target, .report = &unused, .arena = iso_arena_create()};
  iso_status status = r.arena ? verify_all(&r, out, &faults) : no_memory(&r);
  iso_arena_destroy(&r.arena);
  if (status == ISO_OK && faults)
    status = iso_fail(ISO_ERR_CHECK, "%s '%s' of run '%s': %lld %s found; see the list", iso_target_role(target),
                      target->where, run, (long long)faults, faults == 1 ? "fault was" : "faults were");
  return status;
}
