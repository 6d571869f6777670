/* SPDX-License-Identifier: Apache-2.0
 *
 * Which steps' states can be had: each valid snapshot, and the steps that the log leads to behind it without a gap.
 *
 * Snapshots are judged by their manifests and the sizes of their files, the log by its frames' heads: good enough to
 * tell a user where to go, and nothing is read in full. Whoever then goes there checks every byte.
 */
#include "store/store.h"

#include <stdlib.h>

static int ascending(const void *left, const void *right) {
  const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return (a > b) - (a < b);
}

/* Steps to begin at: valid snapshots, and the first weights. */
static iso_status find_starts(iso_arena *arena, const char *run, const char *uuid, bool from_first, int64_t **starts,
                              size_t *count) {
  iso_snapshot_entry *entries;
  size_t entry_count;
  *count = 0;
  ISO_TRY(iso_snapshot_list(arena, run, &entries, &entry_count));
  *starts = iso_arena_alloc(arena, (entry_count + 1) * sizeof **starts);
  if (!*starts) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its steps", run);
  for (size_t i = 0; i < entry_count; i++) {
    iso_manifest manifest;
    iso_string faults = {0};
    if (entries[i].is_void || !entries[i].has_manifest) continue;
    if (iso_snapshot_examine(entries[i].folder, uuid, ISO_SHALLOW, &manifest, &faults) == ISO_OK)
      (*starts)[(*count)++] = entries[i].step;
    iso_manifest_fini(&manifest);
    iso_string_fini(&faults);
  }
  if (from_first) (*starts)[(*count)++] = 0;
  qsort(*starts, *count, sizeof **starts, ascending);
  return ISO_OK;
}

static void join(iso_reach *reach, const iso_wal_index *index, int64_t start) {
  if (reach->count && start <= reach->ranges[reach->count - 1].last) return; /* the log of an older one leads here */
  int64_t last = start;
  while (iso_wal_index_find(index, last + 1)) last++;
  if (reach->count && start == reach->ranges[reach->count - 1].last + 1) {
    reach->ranges[reach->count - 1].last = last;
    return;
  }
  reach->ranges[reach->count].first = start;
  reach->ranges[reach->count++].last = last;
}

static iso_status read_reach(const char *run, const char *uuid, bool from_first, iso_reach *reach) {
  int64_t *starts;
  size_t count;
  iso_wal_index index;
  iso_string faults = {0};
  ISO_TRY(find_starts(reach->arena, run, uuid, from_first, &starts, &count));
  reach->ranges = iso_arena_alloc(reach->arena, (count + 1) * sizeof *reach->ranges);
  if (!reach->ranges) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its steps", run);
  const iso_status status = iso_wal_index_read(run, uuid, false, 0, &index, &faults);
  iso_string_fini(&faults);
  ISO_TRY(status);
  for (size_t i = 0; i < count; i++) join(reach, &index, starts[i]);
  iso_wal_index_fini(&index);
  return ISO_OK;
}

iso_status iso_reach_read(const char *run, const char *uuid, bool from_first, iso_reach *reach) {
  *reach = (iso_reach){.arena = iso_arena_create()};
  const iso_status status = reach->arena ? read_reach(run, uuid, from_first, reach)
                                         : iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its steps", run);
  if (status != ISO_OK) iso_reach_fini(reach);
  return status;
}

void iso_reach_fini(iso_reach *reach) {
  iso_arena_destroy(&reach->arena);
  *reach = (iso_reach){0};
}

void iso_reach_print(const iso_reach *reach, iso_string *out) {
  if (!reach->count) iso_string_printf(out, "none");
  for (size_t i = 0; i < reach->count; i++) {
    iso_string_printf(out, "%s%lld", i ? ", " : "", (long long)reach->ranges[i].first);
    if (reach->ranges[i].last > reach->ranges[i].first)
      iso_string_printf(out, " to %lld", (long long)reach->ranges[i].last);
  }
}
