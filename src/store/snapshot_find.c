/* SPDX-License-Identifier: Apache-2.0
 *
 * The snapshots of a run as a whole: finding the newest valid one, deleting old ones, verifying all.
 *
 * No file says which snapshot is the latest: the folder is listed, void ones are left out, and the newest that verifies
 * wins. A folder without manifest.json is an attempt that was interrupted before it counted: it is neither a snapshot
 * nor damage.
 *
 * Invariants
 *  1. (step s, incarnation j) is void when some incarnation k > j begins after a step < s.
 *  2. Only damage moves a snapshot to aside/, and not before what the run goes on from without it is on the disk: what
 * a disk refuses to read today it may give tomorrow. A system that refuses to read one stops the search with an error.
 *  3. Nothing is deleted but what is older than a snapshot that was read and verified in the same call. The manifest
 * goes first, so that a half-deleted snapshot does not exist.
 *  4. Before each thing that is deleted or set aside by pruning it is looked whether a newer incarnation has begun: a
 * process that was stopped meanwhile takes nothing from the one that replaced it.
 */
#include "store/store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef iso_snapshot_entry entry;

static int newest_first(const void *left, const void *right) {
  const entry *a = left, *b = right;
  if (a->step != b->step) return a->step > b->step ? -1 : 1;
  return b->incarnation - a->incarnation;
}

static iso_status fill_entry(iso_arena *arena, const char *snapshots, const char *name, entry *e) {
  e->name = name;
  e->folder = iso_path_join(arena, snapshots, name);
  const char *manifest = e->folder ? iso_path_join(arena, e->folder, "manifest.json") : NULL;
  if (!manifest) return ISO_ERR_MEMORY;
  return iso_path_probe(manifest, &e->has_manifest);
}

/* Names of run/snapshots that no snapshot has go to `foreign` (may be NULL), one per line. */
static iso_status list_entries(iso_arena *arena, const char *run, const iso_incarnation *incarnations,
                               size_t incarnation_count, entry **entries, size_t *count, iso_string *foreign) {
  char **names;
  size_t name_count;
  bool exists;
  *count = 0;
  *entries = NULL;
  const char *snapshots = iso_path_join(arena, run, "snapshots");
  if (!snapshots) return ISO_ERR_MEMORY;
  ISO_TRY(iso_path_probe(snapshots, &exists));
  if (!exists) return ISO_OK;
  ISO_TRY(iso_path_list(arena, snapshots, &names, &name_count));
  *entries = iso_arena_alloc(arena, (name_count + 1) * sizeof **entries);
  if (!*entries) return ISO_ERR_MEMORY;
  for (size_t i = 0; i < name_count; i++) {
    entry e = {0};
    if (!iso_snapshot_name_parse(names[i], &e.step, &e.incarnation)) {
      if (foreign)
        iso_string_printf(foreign, "snapshots/%s: not a snapshot's name; nothing of this program's\n", names[i]);
      continue;
    }
    ISO_TRY(fill_entry(arena, snapshots, names[i], &e));
    e.is_void = e.step > iso_incarnation_counts_until(incarnations, incarnation_count, e.incarnation);
    (*entries)[(*count)++] = e;
  }
  if (*count) qsort(*entries, *count, sizeof **entries, newest_first);
  return ISO_OK;
}

static iso_status list_run(iso_arena *arena, const char *run, entry **entries, size_t *count) {
  iso_incarnation *incarnations;
  size_t incarnation_count;
  ISO_TRY(iso_incarnation_list(arena, run, &incarnations, &incarnation_count));
  for (size_t i = 0; i < incarnation_count; i++) {
    if (incarnations[i].number != (int)i + 1) {
      iso_warn("run '%s': incarnations/%04zu.json is missing; if that start went back to an earlier step, the "
               "snapshots that it made "
               "void are not known to be so",
               run, i + 1);
      break;
    }
  }
  return list_entries(arena, run, incarnations, incarnation_count, entries, count, NULL);
}

/* ---- find
 * ------------------------------------------------------------------------------------------------------------ */

/* A snapshot whose manifest has gone since the folder was listed is being pruned by the run's owner: no damage. */
static iso_status note_damaged(const char *run, const entry *e, iso_string *faults, iso_string *damaged) {
  bool still_there = false;
  iso_arena *arena = iso_arena_create();
  const char *manifest = arena ? iso_path_join(arena, e->folder, "manifest.json") : NULL;
  const iso_status status = manifest ? iso_path_probe(manifest, &still_there) : ISO_ERR_MEMORY;
  iso_arena_destroy(&arena);
  if (status != ISO_OK || !still_there) return status;
  iso_warn("run '%s': snapshot %s is damaged: %s; the next older one is used", run, e->name, iso_fault_first(faults));
  if (damaged) iso_string_printf(damaged, "%s\n", e->name);
  return damaged && iso_string_failed(damaged) ? ISO_ERR_MEMORY : ISO_OK;
}

/* `good`: the snapshot is valid, and its manifest's info was moved to `info`. */
static iso_status try_entry(const char *run, const char *uuid, const entry *e, iso_string *damaged,
                            iso_snapshot_info *info, bool *good) {
  iso_manifest manifest;
  iso_string faults = {0};
  *good = false;
  iso_status status = iso_snapshot_examine(e->folder, uuid, ISO_DEEP, &manifest, &faults);
  if (status == ISO_ERR_FORMAT) { /* a read may fail once: nothing is passed over for that */
    iso_manifest_fini(&manifest);
    faults.length = 0;
    status = iso_snapshot_examine(e->folder, uuid, ISO_DEEP, &manifest, &faults);
  }
  if (status == ISO_OK) {
    *info = manifest.info;
    manifest.info.cursors = NULL; /* moved */
    *good = true;
  } else if (status == ISO_ERR_FORMAT) {
    status = note_damaged(run, e, &faults, damaged);
  } else {
    status = iso_fail(status, "snapshot '%s' cannot be examined: %s", e->folder, iso_fault_first(&faults));
  }
  iso_manifest_fini(&manifest);
  iso_string_fini(&faults);
  return status;
}

static iso_status find(iso_arena *arena, const char *run, int64_t at_step, iso_string *damaged,
                       char folder[ISO_SNAPSHOT_PATH], iso_snapshot_info *info, bool *found) {
  char uuid[37];
  entry *entries;
  size_t count;
  bool exists;
  ISO_TRY(iso_run_folder_read(run, uuid, &exists));
  if (!exists) return ISO_OK;
  ISO_TRY(list_run(arena, run, &entries, &count));
  for (size_t i = 0; i < count && !*found; i++) {
    const entry *e = &entries[i];
    if (e->is_void || (at_step >= 0 && e->step > at_step)) continue;
    if (!e->has_manifest) {
      iso_note("run '%s': snapshot %s was never finished (no manifest.json); it does not count", run, e->name);
      continue;
    }
    if (strlen(e->folder) >= 512)
      return iso_fail(ISO_ERR_UNSUPPORTED, "the path of snapshot '%s' is longer than 511 bytes", e->folder);
    ISO_TRY(try_entry(run, uuid, e, damaged, info, found));
    if (*found) snprintf(folder, 512, "%s", e->folder);
  }
  return ISO_OK;
}

iso_status iso_snapshot_find(const char *run, int64_t at_step, iso_string *damaged, char folder[ISO_SNAPSHOT_PATH],
                             iso_snapshot_info *info, bool *found) {
  iso_arena *arena = iso_arena_create();
  *found = false;
  folder[0] = 0;
  memset(info, 0, sizeof *info);
  iso_status status = arena ? find(arena, run, at_step, damaged, folder, info, found) : ISO_ERR_MEMORY;
  iso_arena_destroy(&arena);
  return status;
}

iso_status iso_snapshot_set_damaged_aside(const char *run, const iso_string *damaged) {
  char relative[80], moved_to[256];
  for (const char *at = damaged->length ? damaged->data : ""; *at;) {
    const int length = (int)strcspn(at, "\n");
    snprintf(relative, sizeof relative, "snapshots/%.*s", length < 64 ? length : 64, at);
    ISO_TRY(iso_run_set_aside(run, relative, moved_to));
    iso_warn("run '%s': snapshot %.*s, which is damaged, is set aside as %s", run, length, at, moved_to);
    at += length + (at[length] == '\n');
  }
  return ISO_OK;
}

/* ---- prune
 * ----------------------------------------------------------------------------------------------------------- */

/* Whether a file in a snapshot folder is of this program's making. */
static bool is_own_file(const char *name) {
  return iso_state_file_name(name) || strcmp(name, "manifest.json") == 0 ||
         (strncmp(name, "manifest.json.", 14) == 0 && strlen(name) > 18 &&
          strcmp(name + strlen(name) - 4, ".tmp") == 0);
}

typedef struct pruner {
  iso_arena *arena;
  const char *run;
  int incarnation; /* whose process this is */
  int64_t needed;  /* the newest one at or before this step stays; -1: none need */
} pruner;

static iso_status delete_file(const pruner *p, const char *folder, const char *name) {
  const char *path = iso_path_join(p->arena, folder, name);
  if (!path) return ISO_ERR_MEMORY;
  ISO_TRY(iso_incarnation_check(p->run, p->incarnation));
  if (iso_os.unlink(path) != 0 && errno != ENOENT) return iso_os_fail("delete", path);
  return ISO_OK;
}

static iso_status delete_files(const pruner *p, const entry *e) {
  char **names;
  size_t count;
  if (e->has_manifest) {
    ISO_TRY(delete_file(p, e->folder, "manifest.json"));
    ISO_TRY(iso_path_sync(e->folder));
  }
  ISO_TRY(iso_path_list(p->arena, e->folder, &names, &count));
  for (size_t i = 0; i < count; i++) {
    if (is_own_file(names[i])) ISO_TRY(delete_file(p, e->folder, names[i]));
  }
  if (iso_os.rmdir(e->folder) != 0 && errno != ENOTEMPTY && errno != EEXIST)
    return iso_os_fail("delete folder", e->folder);
  return ISO_OK;
}

/* One that has gone meanwhile was deleted by a process that this one has replaced, or that has replaced this one. */
static iso_status delete_snapshot(const pruner *p, const entry *e) {
  if (!iso_path_exists(e->folder)) return ISO_OK;
  const iso_status status = delete_files(p, e);
  return status == ISO_ERR_NOT_FOUND && !iso_path_exists(e->folder) ? ISO_OK : status;
}

static iso_status set_void_aside(const char *run, const entry *e) {
  char relative[80], moved_to[256];
  snprintf(relative, sizeof relative, "snapshots/%s", e->name);
  ISO_TRY(iso_run_set_aside(run, relative, moved_to));
  iso_note("run '%s': snapshot %s belongs to a history that a later start left; moved to %s", run, e->name, moved_to);
  return ISO_OK;
}

/* Quiet check of one entry: good, or not to be counted. */
static iso_status entry_is_good(const char *uuid, const entry *e, iso_depth deep, bool *good) {
  iso_manifest manifest;
  iso_string faults = {0};
  iso_status status = iso_snapshot_examine(e->folder, uuid, deep, &manifest, &faults);
  *good = status == ISO_OK;
  if (status == ISO_ERR_FORMAT) {
    iso_warn("snapshot '%s' is damaged: %s; it is kept but not counted", e->folder, iso_fault_first(&faults));
    status = ISO_OK;
  } else if (status != ISO_OK) {
    status = iso_fail(status, "snapshot '%s' cannot be examined: %s", e->folder, iso_fault_first(&faults));
  }
  iso_manifest_fini(&manifest);
  iso_string_fini(&faults);
  return status;
}

static iso_status prune(const pruner *p, int keep_last, int64_t keep_every) {
  iso_arena *arena = p->arena;
  const char *run = p->run;
  char uuid[37];
  entry *entries;
  size_t count, deleted = 0;
  int kept = 0;
  bool exists, leads = p->needed < 0;
  ISO_TRY(iso_run_folder_read(run, uuid, &exists));
  if (!exists) return ISO_OK;
  ISO_TRY(list_run(arena, run, &entries, &count));
  /* Newest first: until one has been read and verified nothing is deleted; those after it were verified when they were
   * newest. */
  for (size_t i = 0; i < count; i++) {
    const entry *e = &entries[i];
    bool good = false;
    if (e->is_void) {
      ISO_TRY(iso_incarnation_check(run, p->incarnation));
      ISO_TRY(set_void_aside(run, e));
      continue;
    }
    const bool last = kept < keep_last, needed = !leads && e->step <= p->needed;
    if (e->has_manifest && (last || needed)) {
      ISO_TRY(entry_is_good(uuid, e, kept == 0 ? ISO_DEEP_DIRECT : ISO_SHALLOW, &good));
      kept += good;
      leads = leads || (needed && good);
      continue;
    }
    if (kept == 0) continue;
    if (e->has_manifest && keep_every > 0 && e->step % keep_every == 0) continue;
    ISO_TRY(delete_snapshot(p, e));
    deleted++;
  }
  if (!deleted) return ISO_OK;
  const char *snapshots = iso_path_join(arena, run, "snapshots");
  return snapshots ? iso_path_sync(snapshots) : ISO_ERR_MEMORY;
}

iso_status iso_snapshot_prune(const char *run, int incarnation, int keep_last, int64_t keep_every) {
  return iso_snapshot_prune_but(run, incarnation, keep_last, keep_every, -1);
}

iso_status iso_snapshot_prune_but(const char *run, int incarnation, int keep_last, int64_t keep_every, int64_t needed) {
  if (keep_last < 1 || keep_every < 0) {
    return iso_fail(ISO_ERR_CONFIG, "keep_last is %d and keep_every %lld; keep at least one snapshot", keep_last,
                    (long long)keep_every);
  }
  pruner p = {.arena = iso_arena_create(), .run = run, .incarnation = incarnation, .needed = needed};
  const iso_status status = p.arena ? prune(&p, keep_last, keep_every) : ISO_ERR_MEMORY;
  iso_arena_destroy(&p.arena);
  return status;
}

/* ---- verify
 * ---------------------------------------------------------------------------------------------------------- */

typedef struct report {
  FILE *out;
  size_t faults, snapshots;
} report;

/* Each line of `text` is a fault of the thing called `prefix`. */
static void print_faults(report *r, const char *prefix, const iso_string *text) {
  for (const char *at = text->length ? text->data : ""; *at;) {
    int length = (int)strcspn(at, "\n");
    fprintf(r->out, "%s%.*s\n", prefix, length, at);
    r->faults++;
    at += length;
    if (*at) at++;
  }
}

/* Files in a published snapshot's folder that nobody of this program put there. */
static iso_status find_foreign_files(iso_arena *arena, const entry *e, iso_string *faults) {
  char **names;
  size_t count;
  ISO_TRY(iso_path_list(arena, e->folder, &names, &count));
  for (size_t i = 0; i < count; i++) {
    if (!is_own_file(names[i])) iso_string_printf(faults, "%s: a foreign file\n", names[i]);
  }
  return ISO_OK;
}

static iso_status verify_entry(iso_arena *arena, const char *uuid, const entry *e, report *r) {
  iso_manifest manifest;
  iso_string faults = {0};
  char prefix[96];
  snprintf(prefix, sizeof prefix, "snapshots/%s/", e->name);
  iso_status status = iso_snapshot_examine(e->folder, uuid, ISO_DEEP, &manifest, &faults);
  if (status == ISO_OK || status == ISO_ERR_FORMAT) status = find_foreign_files(arena, e, &faults);
  bool there;
  const char *path = iso_path_join(arena, e->folder, "manifest.json");
  if (!path || iso_path_probe(path, &there) != ISO_OK) there = true;
  if (there) {
    r->snapshots++;
    print_faults(r, prefix, &faults);
  } else { /* its run's owner has deleted it since it was listed, manifest first */
    status = ISO_OK;
  }
  iso_manifest_fini(&manifest);
  iso_string_fini(&faults);
  return status;
}

/* run.json and incarnations/. `known`: whether uuid may be relied on. */
static iso_status verify_identity(iso_arena *arena, const char *run, char uuid[37], bool *known,
                                  iso_incarnation **incarnations, size_t *count, report *r) {
  iso_string faults = {0};
  iso_status status = iso_run_folder_read(run, uuid, known);
  if (status == ISO_OK && !*known) return iso_fail(ISO_ERR_NOT_FOUND, "'%s' is no run folder: it has no run.json", run);
  *known = status == ISO_OK;
  if (status == ISO_ERR_FORMAT) {
    iso_string_printf(&faults, "%s\n", iso_last_error());
  } else if (status != ISO_OK) {
    return status;
  }
  status = iso_incarnation_examine(arena, run, incarnations, count, &faults);
  if (status != ISO_OK && status != ISO_ERR_FORMAT) {
    status = iso_fail(status, "run '%s': %s", run, iso_fault_first(&faults));
  } else {
    bool damaged = status == ISO_ERR_FORMAT; /* those are no gaps */
    int number = 1;
    for (size_t i = 0; i < *count && !damaged; number++) {
      if ((*incarnations)[i].number == number) {
        i++;
      } else {
        iso_string_printf(&faults, "incarnations/%04d.json: the file is missing\n", number);
      }
    }
    status = ISO_OK;
    print_faults(r, "", &faults);
  }
  iso_string_fini(&faults);
  return status;
}

/* The newest incarnation is missed by what it left: snapshots, segments of the log. */
static iso_status find_newest_missing(iso_arena *arena, const char *run, const entry *entries, size_t count, int newest,
                                      report *r) {
  char **names = NULL;
  size_t name_count = 0;
  bool exists;
  int named = 0;
  iso_wal_segment segment;
  iso_string faults = {0};
  const char *log = iso_path_join(arena, run, "log");
  if (!log) return ISO_ERR_MEMORY;
  ISO_TRY(iso_path_probe(log, &exists));
  if (exists) ISO_TRY(iso_path_list(arena, log, &names, &name_count));
  for (size_t i = 0; i < name_count; i++)
    if (iso_wal_segment_name_parse(names[i], &segment) && segment.incarnation > named) named = segment.incarnation;
  for (size_t i = 0; i < count; i++)
    if (entries[i].has_manifest && entries[i].incarnation > named) named = entries[i].incarnation;
  const char *path = iso_arena_printf(arena, "%s/incarnations/%04d.json", run, named);
  if (named <= newest || !path) return path ? ISO_OK : ISO_ERR_MEMORY;
  ISO_TRY(iso_path_probe(path, &exists)); /* it may have begun since they were listed */
  if (!exists)
    iso_string_printf(&faults, "incarnations/%04d.json: the file is missing, but what it wrote is here\n", named);
  print_faults(r, "", &faults);
  iso_string_fini(&faults);
  return ISO_OK;
}

static iso_status verify(iso_arena *arena, const char *run, report *r) {
  char uuid[37];
  iso_incarnation *incarnations;
  entry *entries;
  size_t count, incarnation_count;
  iso_string foreign = {0};
  bool known;
  ISO_TRY(verify_identity(arena, run, uuid, &known, &incarnations, &incarnation_count, r));
  iso_status status = list_entries(arena, run, incarnations, incarnation_count, &entries, &count, &foreign);
  print_faults(r, "", &foreign);
  iso_string_fini(&foreign);
  const int newest = incarnation_count ? incarnations[incarnation_count - 1].number : 0;
  if (status == ISO_OK) status = find_newest_missing(arena, run, entries, count, newest, r);
  for (size_t i = 0; i < count && status == ISO_OK; i++) {
    if (entries[i].has_manifest) status = verify_entry(arena, known ? uuid : NULL, &entries[i], r);
  }
  return status;
}

iso_status iso_snapshot_verify(const char *run, FILE *out, int64_t *snapshots) {
  report r = {.out = out};
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? verify(arena, run, &r) : ISO_ERR_MEMORY;
  iso_arena_destroy(&arena);
  if (snapshots) *snapshots = (int64_t)r.snapshots;
  if (status == ISO_OK && r.faults) {
    status = iso_fail(ISO_ERR_CHECK, "run '%s': %zu %s found in %zu snapshots; see the list", run, r.faults,
                      r.faults == 1 ? "fault was" : "faults were", r.snapshots);
  }
  return status;
}

/* ---- lists
 * ---------------------------------------------------------------------------------------------------------- */

iso_status iso_snapshot_list(iso_arena *arena, const char *run, iso_snapshot_entry **entries, size_t *count) {
  iso_incarnation *incarnations;
  size_t incarnation_count;
  *count = 0;
  ISO_TRY(iso_incarnation_list(arena, run, &incarnations, &incarnation_count));
  return list_entries(arena, run, incarnations, incarnation_count, entries, count, NULL);
}

iso_status iso_snapshot_range(const char *run, int64_t *oldest, int64_t *newest) {
  entry *entries;
  size_t count = 0;
  *oldest = *newest = -1;
  iso_arena *arena = iso_arena_create();
  const iso_status status = arena ? iso_snapshot_list(arena, run, &entries, &count) : ISO_ERR_MEMORY;
  for (size_t i = 0; i < count && status == ISO_OK; i++) {
    if (entries[i].is_void) continue;
    if (*newest < 0) *newest = entries[i].step;
    *oldest = entries[i].step;
  }
  iso_arena_destroy(&arena);
  return status;
}

iso_status iso_snapshot_set_void_aside(const char *run, int64_t *moved) {
  entry *entries;
  size_t count = 0;
  *moved = 0;
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? iso_snapshot_list(arena, run, &entries, &count) : ISO_ERR_MEMORY;
  for (size_t i = 0; i < count && status == ISO_OK; i++) {
    if (!entries[i].is_void) continue;
    status = set_void_aside(run, &entries[i]);
    *moved += status == ISO_OK;
  }
  iso_arena_destroy(&arena);
  return status;
}
