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
} row;

typedef struct listing {
  iso_arena *arena;
  const char *run;
  char uuid[37];
  iso_incarnation *incarnations;
  size_t incarnation_count;
  row *rows;
  size_t count;
} listing;

/* A later start that began before this step has left this history. */
static bool is_void(const listing *l, const row *r) {
  for (size_t i = 0; i < l->incarnation_count; i++)
    if (l->incarnations[i].number > r->incarnation && l->incarnations[i].begins_after < r->step) return true;
  return false;
}

static iso_status examine(const listing *l, const char *folder, row *r) {
  const char *path = iso_path_join(l->arena, folder, "manifest.json");
  struct stat info;
  if (!path) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its snapshots", l->run);
  if (iso_os.stat(path, &info) != 0) {
    r->state = "unfinished";
    return ISO_OK;
  }
  r->age_s = (int64_t)(time(NULL) - info.st_mtime);
  iso_manifest manifest;
  iso_string faults = {0};
  iso_status status = iso_snapshot_examine(folder, l->uuid, true, &manifest, &faults);
  r->bytes = info.st_size;
  for (size_t i = 0; i < manifest.file_count; i++) r->bytes += manifest.files[i].bytes;
  r->state = status == ISO_OK ? (is_void(l, r) ? "void" : "valid") : "damaged";
  if (status == ISO_ERR_FORMAT) {
    r->cause = iso_arena_strdup(l->arena, iso_fault_first(&faults));
    status = ISO_OK;
  } else if (status != ISO_OK) {
    status = iso_fail(status, "snapshot '%s' cannot be examined: %s", folder, iso_fault_first(&faults));
  }
  iso_manifest_fini(&manifest);
  iso_string_fini(&faults);
  return status;
}

static iso_status list(listing *l) {
  char **names;
  size_t count;
  bool exists;
  ISO_TRY(iso_run_folder_check(l->run));
  ISO_TRY(iso_run_folder_open(l->run, l->uuid));
  ISO_TRY(iso_incarnation_list(l->arena, l->run, &l->incarnations, &l->incarnation_count));
  const char *folder = iso_path_join(l->arena, l->run, "snapshots");
  if (!folder) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its snapshots", l->run);
  ISO_TRY(iso_path_probe(folder, &exists));
  if (!exists) return ISO_OK;
  ISO_TRY(iso_path_list(l->arena, folder, &names, &count));
  l->rows = iso_arena_alloc(l->arena, (count + 1) * sizeof *l->rows);
  if (!l->rows) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its snapshots", l->run);
  for (size_t i = 0; i < count; i++) {
    row r = {.name = names[i], .cause = ""};
    if (!iso_snapshot_name_parse(names[i], &r.step, &r.incarnation)) continue;
    ISO_TRY(examine(l, iso_path_join(l->arena, folder, names[i]), &r));
    l->rows[l->count++] = r;
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
  printf("%-22s %10s %11s %14s %10s  state\n", "snapshot", "step", "incarnation", "bytes", "age_s");
  for (size_t i = 0; i < l->count; i++) {
    const row *r = &l->rows[i];
    printf("%-22s %10lld %11d %14lld %10lld  %s%s%s\n", r->name, (long long)r->step, r->incarnation,
           (long long)r->bytes, (long long)r->age_s, r->state, r->cause[0] ? ": " : "", r->cause);
  }
  return ISO_OK;
}

iso_status iso_verb_snapshots(iso_args *args) {
  bool json = false;
  const iso_flag flags[] = {{"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0}};
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  listing l = {.arena = iso_arena_create(), .run = args->words[0]};
  iso_status status = l.arena ? list(&l) : iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its snapshots", l.run);
  if (status == ISO_OK) status = json ? print_json(&l) : print_table(&l);
  iso_arena_destroy(&l.arena);
  return status;
}
