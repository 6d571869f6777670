/* SPDX-License-Identifier: Apache-2.0
 *
 * report.html: what a run was like, in one file that needs nothing else. Its numbers are those of metrics.jsonl, the
 * incarnations and report.json, and stand in the page as JSON, which pages/report.js draws:
 *
 *   run, verdict, version, steps, tokens, wall_s, began, ended, steps_per_point
 *   names       {NAME: {unit, help}} of the table of names
 *   points      iso_points_print
 *   flatness    {p50_s, p95_s, p99_s, p99_over_median, last_over_first, compute_share}
 *   parts       [{name, seconds, mean, std, p50, p95, p99, most}]
 *   causes      [{name, cause, seconds}], the largest first
 *   starts      [{number, begins_after, first, last, steps, time, gap_s, again, ranks, tier}]
 *   report      report.json, if it is that of the last step
 *
 * Its last line is a comment with the CRC-32C of everything before it, so that `isotach verify` sees damage.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

static const char *const parts[] = {"wall_s", "compute_s", "data_wait_s", "reduce_wait_s", "storage_wait_s", "other_s"};

typedef struct report {
  const char *run, *verdict;
  iso_arena *arena;
  iso_history history;
  iso_vital_spread spreads[ISO_COUNT(parts)];
  iso_string json;
} report;

static void put(iso_string *out, const char *name, double value) {
  iso_string_printf(out, isfinite(value) ? ", \"%s\": %.6g" : ", \"%s\": null", name, value);
}

static void put_text(iso_string *out, const char *name, const char *text) {
  iso_string_printf(out, "\"%s\": ", name);
  iso_json_quote(out, text, strlen(text));
}

static void put_points(report *r) {
  iso_string *out = &r->json;
  iso_string_printf(out, ",\n\"points\": ");
  iso_points_print(r->history.points, out);
  iso_string_printf(out, ",\n\"names\": {");
  for (size_t row = 0; row < iso_vital_count; row++) {
    iso_string_printf(out, "%s\"%s\": {", row ? ", " : "", iso_vitals[row].name);
    put_text(out, "unit", iso_vitals[row].unit);
    iso_string_printf(out, ", ");
    put_text(out, "help", iso_vitals[row].help);
    iso_string_printf(out, "}");
  }
  iso_string_printf(out, "}");
}

static void put_parts(report *r) {
  iso_string *out = &r->json;
  const iso_vital_spread *wall = &r->spreads[0], *compute = &r->spreads[1];
  iso_string_printf(out, ",\n\"flatness\": {\"steps\": %lld", (long long)wall->count);
  put(out, "p50_s", wall->count ? wall->p50 : NAN);
  put(out, "p95_s", wall->count ? wall->p95 : NAN);
  put(out, "p99_s", wall->count ? wall->p99 : NAN);
  put(out, "p99_over_median", wall->p50 > 0 ? wall->p99 / wall->p50 : NAN);
  put(out, "last_over_first", iso_history_last_over_first(&r->history));
  put(out, "compute_share", wall->sum > 0 ? compute->sum / wall->sum : NAN);
  iso_string_printf(out, "},\n\"parts\": [");
  for (size_t i = 0; i < ISO_COUNT(parts); i++) {
    const iso_vital_spread *s = &r->spreads[i];
    iso_string_printf(out, "%s\n{\"name\": \"%s\"", i ? "," : "", parts[i]);
    put(out, "seconds", s->sum);
    put(out, "mean", s->mean);
    put(out, "std", s->std);
    put(out, "p50", s->p50);
    put(out, "p95", s->p95);
    put(out, "p99", s->p99);
    put(out, "most", s->most);
    iso_string_printf(out, "}");
  }
  iso_string_printf(out, "]");
}

/* ---- what time was lost to ---- */

typedef struct cause {
  const char *name;
  const char *text;
  double seconds;
} cause;
enum { CAUSES_MOST = ISO_HISTORY_STARVED + 8 };

static int larger_first(const void *a, const void *b) {
  const double x = ((const cause *)a)->seconds, y = ((const cause *)b)->seconds;
  return (x < y) - (x > y);
}

static size_t find_causes(report *r, cause *causes) {
  const iso_history *h = &r->history;
  size_t count = 0;
  double late_s = 0;
  for (size_t i = 0; i < ISO_HISTORY_STARVED && h->starved[i].steps; i++) {
    const iso_starved *one = &h->starved[i];
    const char *text =
        iso_arena_printf(r->arena, "data: %lld batches came late, at: %.*s of %.*s", (long long)one->steps,
                         (int)one->stage_bytes - 2, one->stage + 1, (int)one->source_bytes - 2, one->source + 1);
    causes[count++] = (cause){"data_wait_s", text, one->seconds};
    late_s += one->seconds;
  }
  const double left_s = r->spreads[2].sum - late_s;
  const char *left = count ? "data: other waits for a batch" : "data: waits for a batch";
  causes[count++] = (cause){"data_wait_s", left, left_s};
  causes[count++] = (cause){"reduce_wait_s", "other ranks: waits for their sums", r->spreads[3].sum};
  causes[count++] = (cause){"storage_wait_s", "storage: waits for log and snapshots", r->spreads[4].sum};
  causes[count++] = (cause){"other_s", "between the parts: accounting, lines, log", r->spreads[5].sum};
  causes[count++] =
      (cause){"compute_s", "computing longer than the median step", iso_history_slow_compute(h, r->spreads[1].p50)};
  qsort(causes, count, sizeof *causes, larger_first);
  return count;
}

static void put_causes(report *r) {
  cause causes[CAUSES_MOST];
  const size_t count = find_causes(r, causes);
  iso_string_printf(&r->json, ",\n\"causes\": [");
  for (size_t i = 0, put_so_far = 0; i < count; i++) {
    if (!(causes[i].seconds > 0) || !causes[i].text) continue;
    iso_string_printf(&r->json, "%s\n{\"name\": \"%s\", ", put_so_far++ ? "," : "", causes[i].name);
    put_text(&r->json, "cause", causes[i].text);
    put(&r->json, "seconds", causes[i].seconds);
    iso_string_printf(&r->json, "}");
  }
  iso_string_printf(&r->json, "]");
}

/* ---- starts ---- */

/* Lines that a later start set aside, since it began before them: their steps were taken again. */
static int64_t set_aside_by(report *r, char **names, size_t count, int64_t number) {
  int64_t lines = 0;
  char wanted[48];
  snprintf(wanted, sizeof wanted, "\"incarnation\": %lld,", (long long)number);
  for (size_t i = 0; i < count; i++) {
    char *text = NULL;
    size_t bytes;
    const char *path = iso_arena_printf(r->arena, "%s/aside/%s", r->run, names[i]);
    if (strncmp(names[i], "metrics", 7) != 0 || !path || iso_file_read(path, &text, &bytes) != ISO_OK) continue;
    for (const char *at = text; (at = strstr(at, wanted)); at++) lines++;
    free(text);
  }
  return lines;
}

static void put_starts(report *r) {
  const iso_history *h = &r->history;
  iso_string *out = &r->json, faults = {0};
  iso_incarnation *list = NULL;
  char **names = NULL;
  size_t count = 0, name_count = 0;
  const char *aside = iso_arena_printf(r->arena, "%s/aside", r->run);
  if (iso_incarnation_examine(r->arena, r->run, &list, &count, &faults) != ISO_OK && !list) count = 0;
  if (aside && iso_path_is_folder(aside) && iso_path_list(r->arena, aside, &names, &name_count) != ISO_OK)
    name_count = 0;
  const size_t first = count > ISO_HISTORY_STARTS ? count - ISO_HISTORY_STARTS : 0;
  iso_string_printf(out, ",\n\"starts\": [");
  for (size_t i = first; i < count; i++) {
    const iso_start *lines = NULL;
    for (size_t k = 0; k < h->start_count; k++)
      if (h->starts[k].number == list[i].number) lines = &h->starts[k];
    iso_string_printf(out, "%s\n{\"number\": %d, \"begins_after\": %lld, \"ranks\": %lld, ", i > first ? "," : "",
                      list[i].number, (long long)list[i].begins_after, (long long)list[i].ranks);
    put_text(out, "tier", list[i].tier);
    iso_string_printf(out, ", \"steps\": %lld, \"first\": %lld, \"last\": %lld, \"again\": %lld",
                      lines ? (long long)lines->steps : 0LL, lines ? (long long)lines->first : 0LL,
                      lines ? (long long)lines->last : 0LL,
                      i ? (long long)set_aside_by(r, names, name_count, list[i - 1].number) : 0LL);
    iso_string_printf(out, lines && isfinite(lines->time) ? ", \"time\": %.3f" : ", \"time\": null",
                      lines ? lines->time : 0);
    put(out, "gap_s", lines ? lines->gap_s : NAN);
    iso_string_printf(out, "}");
  }
  iso_string_printf(out, "]");
  iso_string_fini(&faults);
}

/* ---- the page ---- */

/* The text of report.json as it stands; NULL: none, damaged, or of another step than the last line. */
static char *read_report(const report *r) {
  const iso_history *h = &r->history;
  iso_string faults = {0};
  iso_json *json = NULL;
  char *text = NULL;
  size_t bytes;
  bool sealed;
  int64_t steps = -1;
  const char *path = iso_arena_printf(r->arena, "%s/report.json", r->run);
  if (path && iso_path_exists(path) && iso_record_read_any(path, "report.json", &json, &sealed, &faults) == ISO_OK &&
      iso_json_int(json, path, "steps", -1, &steps) == ISO_OK && steps == h->last_step &&
      iso_file_read(path, &text, &bytes) != ISO_OK)
    text = NULL;
  iso_json_destroy(&json);
  iso_string_fini(&faults);
  return text;
}

static void put_head(report *r) {
  const iso_history *h = &r->history;
  iso_string *out = &r->json;
  iso_string_printf(out, "{");
  put_text(out, "run", r->run);
  iso_string_printf(out, ", ");
  put_text(out, "verdict", r->verdict);
  iso_string_printf(out, ", ");
  put_text(out, "version", ISO_VERSION);
  iso_string_printf(out, ",\n\"steps\": %lld, \"steps_per_point\": %lld, \"tokens\": %.0f, \"wall_s\": %.6f",
                    (long long)h->steps, (long long)h->points->steps_per_point, h->tokens, r->spreads[0].sum);
  if (h->began > 0) iso_string_printf(out, ", \"began\": %.3f, \"ended\": %.3f", h->began, h->ended);
}

static void collect(report *r) {
  for (size_t i = 0; i < ISO_COUNT(parts); i++) r->spreads[i] = iso_history_spread(&r->history, parts[i]);
  put_head(r);
  put_points(r);
  put_parts(r);
  put_causes(r);
  put_starts(r);
  char *own = read_report(r);
  iso_string_printf(&r->json, ",\n\"report\": ");
  iso_string_append(&r->json, own ? own : "null", own ? strlen(own) : 4);
  iso_string_printf(&r->json, "}");
  free(own);
}

static const char seal_begin[] = "<!-- crc32c:";
enum { SEAL_BYTES = sizeof seal_begin - 1 + 8 + 5 }; /* digits, " -->\n" */

static void print_seal(const char *text, size_t bytes, char seal[SEAL_BYTES + 1]) {
  snprintf(seal, SEAL_BYTES + 1, "%s%08x -->\n", seal_begin, (unsigned)iso_crc32c(0, text, bytes));
}

static iso_status write_page(report *r) {
  iso_string title = {0}, data = {0}, page = {0};
  char seal[SEAL_BYTES + 1];
  iso_page_text(r->run, &title);
  iso_page_json(r->json.data, &data);
  const char *path = iso_arena_printf(r->arena, "%s/report.html", r->run);
  iso_status status = ISO_ERR_MEMORY;
  if (path && !iso_string_failed(&title) && !iso_string_failed(&data) && !iso_string_failed(&r->json)) {
    const iso_page_part with[] = {{"title", title.data},
                                  {"style", iso_page_style},
                                  {"data", data.data},
                                  {"charts", iso_page_charts},
                                  {"script", iso_page_report_script}};
    iso_page_fill(iso_page_report, with, ISO_COUNT(with), &page);
    if (!iso_string_failed(&page)) {
      print_seal(page.data, page.length, seal);
      iso_string_append(&page, seal, SEAL_BYTES);
    }
    if (!iso_string_failed(&page)) status = iso_file_replace(path, page.data, page.length);
  }
  iso_string_fini(&title);
  iso_string_fini(&data);
  iso_string_fini(&page);
  return status;
}

void iso_report_page_write(const char *run, const char *verdict) {
  report r = {.run = run, .verdict = verdict, .arena = iso_arena_create()};
  iso_status status = r.arena ? iso_history_read(run, &r.history) : ISO_ERR_MEMORY;
  if (status == ISO_OK && r.history.steps) {
    collect(&r);
    status = write_page(&r);
  }
  if (status != ISO_OK)
    iso_warn("%s: report.html is not written%s", run, status == ISO_ERR_MEMORY ? ": no memory" : "");
  iso_history_fini(&r.history);
  iso_string_fini(&r.json);
  iso_arena_destroy(&r.arena);
}

iso_status iso_report_page_check(const char *run, iso_string *faults) {
  iso_string path = {0};
  char *text, seal[SEAL_BYTES + 1];
  size_t bytes;
  iso_string_printf(&path, "%s/report.html", run);
  iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : ISO_OK;
  if (status == ISO_OK && iso_path_exists(path.data)) {
    status = iso_file_read(path.data, &text, &bytes);
    if (status != ISO_OK) {
      iso_string_printf(faults, "report.html: %s\n", iso_last_error());
    } else {
      if (bytes >= SEAL_BYTES) print_seal(text, bytes - SEAL_BYTES, seal);
      if (bytes < SEAL_BYTES || memcmp(text + bytes - SEAL_BYTES, seal, SEAL_BYTES) != 0) status = ISO_ERR_FORMAT;
      if (status != ISO_OK)
        iso_string_printf(faults, "report.html: it does not end in the CRC-32C of what it holds: cut or altered\n");
      free(text);
    }
  }
  iso_string_fini(&path);
  return status;
}
