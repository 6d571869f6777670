/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach inspect snapshot: every snapshot of a run, read in full, changed in nothing.
 */
#include <string.h>
#include <time.h>

#include "cli/cli.h"

typedef struct row {
  const char *name;
  int64_t step, bytes, age_s;
  int incarnation;
  const char *state; /* valid, damaged, void, unfinished */
  const char *cause; /* of damage */
  const char *parent;
  int64_t per_step; /* bytes for each step since the parent; 0: no parent */
} row;

typedef struct listing {
  iso_arena *arena;
  const char *run;
  char uuid[37];
  row *rows;
  size_t count;
} listing;

static iso_status examine(const listing *l, const iso_snapshot_entry *entry, row *r) {
  const char *path = iso_path_join(l->arena, entry->folder, "manifest.json");
  struct stat info;
  int64_t parent;
  int incarnation;
  bool there;
  if (!path) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its snapshots", l->run);
  if (iso_os.stat(path, &info) != 0) {
    ISO_TRY(iso_path_probe(entry->folder, &there));
    r->state = there ? "unfinished" : NULL; /* deleted since it was listed */
    return ISO_OK;
  }
  r->age_s = (int64_t)(time(NULL) - info.st_mtime);
  iso_manifest manifest;
  iso_string faults = {0};
  iso_status status = iso_snapshot_examine(entry->folder, l->uuid, ISO_DEEP, &manifest, &faults);
  r->bytes = info.st_size;
  for (size_t i = 0; i < manifest.file_count; i++) r->bytes += manifest.files[i].bytes;
  if (manifest.arena) r->parent = iso_arena_strdup(l->arena, manifest.info.parent);
  if (r->parent && iso_snapshot_name_parse(r->parent, &parent, &incarnation) && parent < r->step)
    r->per_step = r->bytes / (r->step - parent);
  r->state = status == ISO_OK ? (entry->is_void ? "void" : "valid") : "damaged";
  if (status == ISO_ERR_FORMAT) {
    r->cause = iso_arena_strdup(l->arena, iso_fault_first(&faults));
    status = iso_path_probe(path, &there);
    if (status == ISO_OK && !there) r->state = NULL;
  } else if (status != ISO_OK) {
    status = iso_fail(status, "snapshot '%s' cannot be examined: %s", entry->folder, iso_fault_first(&faults));
  }
  iso_manifest_fini(&manifest);
  iso_string_fini(&faults);
  return status;
}

static iso_status list(listing *l) {
  iso_snapshot_entry *entries;
  size_t count;
  bool known;
  ISO_TRY(iso_run_folder_check(l->run));
  ISO_TRY(iso_run_folder_read(l->run, l->uuid, &known));
  ISO_TRY(iso_snapshot_list(l->arena, l->run, &entries, &count));
  l->rows = iso_arena_alloc(l->arena, (count + 1) * sizeof *l->rows);
  if (!l->rows) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its snapshots", l->run);
  for (size_t i = count; i-- > 0;) {
    const iso_snapshot_entry *e = &entries[i];
    row r = {.name = e->name, .step = e->step, .incarnation = e->incarnation, .cause = "", .parent = ""};
    ISO_TRY(examine(l, e, &r));
    if (r.state) l->rows[l->count++] = r;
  }
  return ISO_OK;
}

static iso_status print_json(const listing *l) {
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "run", l->run);
  iso_json_put_text(&out, "uuid", l->uuid);
  iso_json_open(&out, "snapshots", '[');
  for (size_t i = 0; i < l->count; i++) {
    const row *r = &l->rows[i];
    iso_json_open(&out, NULL, '{');
    iso_json_put_text(&out, "name", r->name);
    iso_json_put_int(&out, "step", r->step);
    iso_json_put_int(&out, "incarnation", r->incarnation);
    iso_json_put_int(&out, "bytes", r->bytes);
    iso_json_put_int(&out, "age_s", r->age_s);
    iso_json_put_text(&out, "parent", r->parent);
    if (r->per_step) iso_json_put_int(&out, "bytes_per_step", r->per_step);
    iso_json_put_bool(&out, "valid", strcmp(r->state, "valid") == 0);
    iso_json_put_text(&out, "state", r->state);
    if (r->cause[0]) iso_json_put_text(&out, "cause", r->cause);
    iso_json_shut(&out, '}');
  }
  iso_json_shut(&out, ']');
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status print_table(const listing *l) {
  printf("%-22s %10s %11s %14s %12s %10s %-22s  state\n", "snapshot", "step", "incarnation", "bytes", "bytes/step",
         "age_s", "parent");
  for (size_t i = 0; i < l->count; i++) {
    const row *r = &l->rows[i];
    printf("%-22s %10lld %11d %14lld %12lld %10lld %-22s  %s%s%s\n", r->name, (long long)r->step, r->incarnation,
           (long long)r->bytes, (long long)r->per_step, (long long)r->age_s, r->parent[0] ? r->parent : "-", r->state,
           r->cause[0] ? ": " : "", r->cause);
  }
  return ISO_OK;
}

iso_status iso_verb_snapshots(iso_args *args) {
  bool json = false;
  const iso_flag flags[] = {{"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0}};
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  ISO_TRY(iso_args_bring_run(args));
  listing l = {.arena = iso_arena_create(), .run = args->words[0]};
  iso_status status = l.arena ? list(&l) : iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its snapshots", l.run);
  if (status == ISO_OK) status = json ? print_json(&l) : print_table(&l);
  iso_arena_destroy(&l.arena);
  return status;
}
