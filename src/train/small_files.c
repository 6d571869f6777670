/* SPDX-License-Identifier: Apache-2.0
 *
 * The small files of a run folder that verify themselves: status.json, report.json, starts.json, fusion.json,
 * mirror.json, target.json, differed-%04d.json and report.html as a whole, metrics.jsonl, skipped.jsonl and
 * breaches.jsonl line by line, and the line of the lock. No state is made from them, so a damaged one stops nothing
 * (but the newest differed-%04d.json, store/differed.c); but it does not pass for what was written either.
 *
 * Not here: run.json and incarnations (store/run_folder.c), the copies of the inputs (inputs.c), snapshots and log.
 */
#include <stdlib.h>

#include "train/vitals/vitals.h"

static const char *const records[] = {"status.json", "report.json", "fusion.json", "mirror.json", "target.json"};
static const char *const line_files[] = {"metrics", "skipped", "breaches"};

static iso_status verify_record(const char *run, const char *name, FILE *out, iso_string *unprotected) {
  iso_string path = {0}, faults = {0};
  iso_json *json = NULL;
  bool exists, sealed = false;
  iso_string_printf(&path, "%s/%s", run, name);
  iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : iso_path_probe(path.data, &exists);
  if (status == ISO_OK && exists) {
    status = iso_record_read_any(path.data, name, &json, &sealed, &faults);
    if (status == ISO_OK && !sealed) iso_string_printf(unprotected, "%s\n", name);
    if (status != ISO_OK) (void)fprintf(out, "%s\n", iso_fault_first(&faults));
  }
  iso_json_destroy(&json);
  iso_string_fini(&faults);
  iso_string_fini(&path);
  return status;
}

static iso_status verify_lines(const char *run, const char *name, FILE *out, iso_string *unprotected,
                               iso_string *torn) {
  char *data;
  size_t bytes;
  iso_lines_found found = {0};
  const iso_status status = iso_lines_read(run, name, &data, &bytes, &found);
  if (status != ISO_OK) (void)fprintf(out, "%s.jsonl: %s\n", name, iso_last_error());
  if (found.faults.length) (void)fputs(found.faults.data, out);
  if (found.damaged > ISO_LINES_NAMED)
    (void)fprintf(out, "%s.jsonl: %lld more lines are damaged\n", name, (long long)found.damaged - ISO_LINES_NAMED);
  if (found.unprotected) iso_string_printf(unprotected, "%s.jsonl (%lld lines)\n", name, (long long)found.unprotected);
  if (found.torn) iso_string_printf(torn, "%s.jsonl: %lld half written\n", name, (long long)found.torn);
  const bool damaged = found.damaged > 0;
  iso_lines_found_fini(&found);
  free(data);
  return status == ISO_OK && damaged ? ISO_ERR_CHECK : status;
}

static iso_status verify_lock(const char *run, FILE *out, iso_string *unprotected) {
  iso_string faults = {0};
  bool sealed;
  const iso_status status = iso_lock_examine(run, &sealed, &faults);
  if (status == ISO_OK && !sealed) iso_string_printf(unprotected, "lock\n");
  if (status != ISO_OK) (void)fprintf(out, "%s\n", iso_fault_first(&faults));
  iso_string_fini(&faults);
  return status;
}

static iso_status verify_starts(const char *run, FILE *out) {
  iso_string faults = {0};
  char uuid[37];
  bool exists;
  iso_status status = iso_run_folder_read(run, uuid, &exists);
  if (status != ISO_OK || !exists) return ISO_OK; /* whoever reads run.json says so */
  status = iso_starts_verify(run, uuid, &faults);
  if (faults.length) (void)fputs(faults.data, out);
  iso_string_fini(&faults);
  return status;
}

static iso_status verify_differed(const char *run, FILE *out) {
  iso_string faults = {0};
  iso_differed *list;
  size_t count;
  char uuid[37];
  bool exists;
  if (iso_run_folder_read(run, uuid, &exists) != ISO_OK || !exists) return ISO_OK; /* as above */
  iso_arena *arena = iso_arena_create();
  const iso_status status = arena ? iso_differed_list(arena, run, uuid, &list, &count, &faults) : ISO_ERR_MEMORY;
  if (faults.length) (void)fputs(faults.data, out);
  iso_string_fini(&faults);
  iso_arena_destroy(&arena);
  return status;
}

static iso_status verify_page(const char *run, FILE *out) {
  iso_string faults = {0};
  const iso_status status = iso_report_page_check(run, &faults);
  if (faults.length) (void)fputs(faults.data, out);
  iso_string_fini(&faults);
  return status;
}

iso_status iso_run_small_files_verify(const char *run, FILE *out, iso_string *unprotected, iso_string *torn) {
  bool good = verify_lock(run, out, unprotected) == ISO_OK;
  for (size_t i = 0; i < ISO_COUNT(records); i++)
    good = verify_record(run, records[i], out, unprotected) == ISO_OK && good;
  for (size_t i = 0; i < ISO_COUNT(line_files); i++)
    good = verify_lines(run, line_files[i], out, unprotected, torn) == ISO_OK && good;
  good = verify_starts(run, out) == ISO_OK && good;
  good = verify_differed(run, out) == ISO_OK && good;
  good = verify_page(run, out) == ISO_OK && good;
  return good ? ISO_OK : ISO_ERR_CHECK;
}

iso_status iso_run_status_settle(const char *run) {
  iso_string path = {0}, faults = {0};
  iso_json *json = NULL;
  bool exists, sealed;
  char moved_to[256];
  iso_string_printf(&path, "%s/status.json", run);
  iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : iso_path_probe(path.data, &exists);
  if (status == ISO_OK && exists) {
    status = iso_record_read_any(path.data, "status.json", &json, &sealed, &faults);
    if (status == ISO_ERR_FORMAT) status = iso_run_set_aside(run, "status.json", moved_to);
  }
  iso_json_destroy(&json);
  iso_string_fini(&faults);
  iso_string_fini(&path);
  return status;
}
