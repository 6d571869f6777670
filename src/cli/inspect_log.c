/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach inspect log: the segments of a run's step log and the steps that they lead to, read in full, changed in
 * nothing.
 */
#include <string.h>

#include "cli/cli.h"

/* Steps of each segment that count. */
typedef struct span {
  int64_t first, last, count;
} span;

static void spans_of(const iso_wal_index *index, span *spans) {
  for (size_t i = 0; i < index->step_count; i++) {
    const iso_wal_step *step = &index->steps[i];
    span *s = &spans[step->segment];
    if (s->count++ == 0) s->first = step->step;
    s->last = step->step;
  }
}

static void print_table(const iso_wal_index *index, const span *spans, const iso_string *faults) {
  printf("%-26s %14s %11s %8s %10s %10s\n", "segment", "bytes", "incarnation", "steps", "first", "last");
  for (size_t i = 0; i < index->file_count; i++) {
    const iso_wal_file *file = &index->files[i];
    const span *s = &spans[i];
    printf("%-26s %14lld %11d %8lld %10lld %10lld\n", file->name, (long long)file->bytes, file->head.incarnation,
           (long long)s->count, (long long)s->first, (long long)s->last);
  }
  if (index->torn.length) printf("ends cut by a kill, or damaged (isotach verify tells which):\n%s", index->torn.data);
  if (faults->length) printf("faults:\n%s", faults->data);
}

static iso_status print_json(const iso_wal_index *index, const span *spans, const iso_string *faults) {
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "run", index->run);
  iso_json_open(&out, "segments", '[');
  for (size_t i = 0; i < index->file_count; i++) {
    const iso_wal_file *file = &index->files[i];
    iso_json_open(&out, NULL, '{');
    iso_json_put_text(&out, "name", file->name);
    iso_json_put_int(&out, "bytes", file->bytes);
    iso_json_put_int(&out, "incarnation", file->head.incarnation);
    iso_json_put_int(&out, "steps", spans[i].count);
    iso_json_put_int(&out, "first_step", spans[i].first);
    iso_json_put_int(&out, "last_step", spans[i].last);
    iso_json_shut(&out, '}');
  }
  iso_json_shut(&out, ']');
  iso_json_put_int(&out, "steps", (int64_t)index->step_count);
  iso_json_put_int(&out, "newest_step", index->step_count ? index->steps[index->step_count - 1].step : 0);
  iso_json_put_text(&out, "torn", index->torn.length ? index->torn.data : "");
  iso_json_put_text(&out, "faults", faults->length ? faults->data : "");
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status inspect(const char *run, bool json) {
  char uuid[37];
  bool exists;
  iso_wal_index index;
  iso_string faults = {0};
  ISO_TRY(iso_run_folder_check(run));
  ISO_TRY(iso_run_folder_read(run, uuid, &exists));
  iso_status status = iso_wal_index_read(run, uuid, true, 0, &index, &faults);
  if (status == ISO_OK) {
    span *spans = iso_arena_alloc(index.arena, (index.file_count + 1) * sizeof *spans);
    if (!spans) status = iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its log", run);
    if (spans) spans_of(&index, spans);
    if (spans && json) status = print_json(&index, spans, &faults);
    if (spans && !json) print_table(&index, spans, &faults);
    iso_wal_index_fini(&index);
  } else {
    status = iso_fail(status, "%s: its log cannot be read: %s", run, iso_fault_first(&faults));
  }
  iso_string_fini(&faults);
  return status;
}

iso_status iso_verb_inspect_log(iso_args *args) {
  bool json = false;
  const iso_flag flags[] = {{"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0}};
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  return args->help ? ISO_OK : inspect(args->words[0], json);
}
