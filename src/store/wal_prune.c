/* SPDX-License-Identifier: Apache-2.0
 *
 * Segments that go: those that no snapshot needs any more are deleted, those of a history that a newer start left are
 * set aside.
 *
 * Invariants
 *  1. A segment is deleted only when the one behind it begins at or before the step after the oldest snapshot kept: its
 *     own steps are all older.
 *  2. A whole step that is void is never deleted: the segment that holds it goes to aside/, at once when nothing else
 *     stands in it, else when it would be deleted.
 *  3. What cannot be told (a head that is damaged) is left where it is, and so is all behind it.
 *  4. Before each segment that goes it is looked whether a newer incarnation has begun, as snapshot_find.c does.
 */
#include "store/store.h"

#include <errno.h>
#include <string.h>

/* The run's segments in order, and of each whether it is known and what it says. */
typedef struct segments {
  iso_arena *arena;
  const char *run;
  int incarnation; /* whose process this is */
  char **names;
  size_t count;
  iso_wal_segment *heads; /* incarnation 0: cannot be told */
  iso_incarnation *incarnations;
  size_t incarnation_count;
  iso_wal_index index; /* read when first asked for */
} segments;

static iso_status read_head(const segments *s, const char *name, iso_wal_segment *head) {
  char block[ISO_WAL_BLOCK];
  iso_probe probe;
  iso_wal_segment named;
  iso_string faults = {0};
  *head = (iso_wal_segment){0};
  if (!iso_wal_segment_name_parse(name, &named)) return ISO_OK;
  const char *path = iso_arena_printf(s->arena, "%s/log/%s", s->run, name);
  if (!path) return iso_fail(ISO_ERR_MEMORY, "log: no memory to look at '%s'", name);
  if (iso_probe_open(&probe, path, name, &faults) == ISO_OK) {
    const bool known = probe.bytes >= ISO_WAL_BLOCK &&
                       iso_probe_read(&probe, block, ISO_WAL_BLOCK, 0, &faults) == ISO_OK &&
                       !iso_wal_segment_decode(block, head);
    if (!known) *head = (iso_wal_segment){0};
    iso_probe_close(&probe);
  }
  iso_string_fini(&faults);
  return ISO_OK;
}

static iso_status list(segments *s) {
  bool exists;
  const char *folder = iso_path_join(s->arena, s->run, "log");
  if (!folder) return iso_fail(ISO_ERR_MEMORY, "log: no memory to list the log of '%s'", s->run);
  ISO_TRY(iso_path_probe(folder, &exists));
  if (!exists) return ISO_OK;
  ISO_TRY(iso_path_list(s->arena, folder, &s->names, &s->count));
  ISO_TRY(iso_incarnation_list(s->arena, s->run, &s->incarnations, &s->incarnation_count));
  s->heads = iso_arena_alloc(s->arena, (s->count + 1) * sizeof *s->heads);
  if (!s->heads) return iso_fail(ISO_ERR_MEMORY, "log: no memory to list %zu segments", s->count);
  for (size_t i = 0; i < s->count; i++) ISO_TRY(read_head(s, s->names[i], &s->heads[i]));
  return ISO_OK;
}

static iso_status set_aside(const segments *s, size_t i) {
  char relative[64], moved_to[256];
  snprintf(relative, sizeof relative, "log/%.50s", s->names[i]);
  ISO_TRY(iso_run_set_aside(s->run, relative, moved_to));
  iso_note("run '%s': %s holds steps of a history that a later start left; moved to %s", s->run, relative, moved_to);
  return ISO_OK;
}

static int64_t counted_until(const segments *s, int incarnation) {
  return iso_incarnation_counts_until(s->incarnations, s->incarnation_count, incarnation);
}

/* What the log's index says of a segment; NULL: it is not in it. */
static iso_status look_up(segments *s, size_t i, const iso_wal_file **out) {
  *out = NULL;
  if (!s->index.arena) {
    iso_string faults = {0};
    const iso_status status = iso_wal_index_read(s->run, NULL, false, 0, &s->index, &faults);
    iso_string_fini(&faults);
    ISO_TRY(status);
  }
  for (size_t k = 0; k < s->index.file_count && !*out; k++)
    if (strcmp(s->index.files[k].name, s->names[i]) == 0) *out = &s->index.files[k];
  return ISO_OK;
}

static iso_status drop(segments *s, size_t i) {
  if (counted_until(s, s->heads[i].incarnation) != INT64_MAX) {
    const iso_wal_file *file;
    ISO_TRY(look_up(s, i, &file));
    if (file && file->superseded) {
      ISO_TRY(iso_incarnation_check(s->run, s->incarnation));
      return set_aside(s, i);
    }
  }
  const char *path = iso_arena_printf(s->arena, "%s/log/%s", s->run, s->names[i]);
  if (!path) return iso_fail(ISO_ERR_MEMORY, "log: no memory to delete '%s'", s->names[i]);
  ISO_TRY(iso_incarnation_check(s->run, s->incarnation));
  return iso_os.unlink(path) == 0 || errno == ENOENT ? ISO_OK : iso_os_fail("delete", path);
}

static iso_status prune(segments *s, int64_t step) {
  ISO_TRY(list(s));
  for (size_t i = 1; i < s->count; i++) {
    /* the one before ends where this one begins */
    if (!s->heads[i - 1].incarnation || !s->heads[i].incarnation || s->heads[i].first_step > step + 1) break;
    ISO_TRY(drop(s, i - 1));
  }
  return ISO_OK;
}

iso_status iso_wal_prune_by(const char *run, int incarnation, int64_t step) {
  segments s = {.arena = iso_arena_create(), .run = run, .incarnation = incarnation};
  const iso_status status = s.arena ? prune(&s, step) : iso_fail(ISO_ERR_MEMORY, "log: no memory to prune '%s'", run);
  iso_wal_index_fini(&s.index);
  iso_arena_destroy(&s.arena);
  return status;
}

iso_status iso_wal_prune(const char *run, int64_t step) {
  iso_incarnation newest;
  ISO_TRY(iso_incarnation_newest(run, &newest));
  return iso_wal_prune_by(run, newest.number, step);
}

static iso_status set_void_aside(segments *s, int64_t *moved) {
  ISO_TRY(list(s));
  for (size_t i = 0; i < s->count; i++) {
    const iso_wal_file *file;
    if (!s->heads[i].incarnation || s->heads[i].first_step <= counted_until(s, s->heads[i].incarnation)) continue;
    ISO_TRY(look_up(s, i, &file));
    if (!file || !file->superseded || file->counted) continue; /* an end that a kill left goes when it is pruned */
    ISO_TRY(set_aside(s, i));
    ++*moved;
  }
  return ISO_OK;
}

iso_status iso_wal_set_void_aside(const char *run, int64_t *moved) {
  segments s = {.arena = iso_arena_create(), .run = run};
  *moved = 0;
  const iso_status status =
      s.arena ? set_void_aside(&s, moved) : iso_fail(ISO_ERR_MEMORY, "log: no memory to look at '%s'", run);
  iso_wal_index_fini(&s.index);
  iso_arena_destroy(&s.arena);
  return status;
}
