/* SPDX-License-Identifier: Apache-2.0
 *
 * report.html: what a run was like, in one file that needs nothing else. Its numbers are those of metrics.jsonl, the
 * incarnations and report.json, and stand in the page as JSON, which pages/report.js draws:
 *
 *   run, verdict, version, steps, tokens, wall_s, loss (of the last step), tokens_per_s, began, ended, steps_per_point
 *   names       {NAME: {unit, help}} of the table of names
 *   points      iso_points_print
 *   judged      what the run says of itself (verdict.c): level, flatness, budget, causes, breaches, starts, as in
 *               report.json; a run that failed has it too
 *   starts      [{number, begins_after, first, last, steps, time, gap_s, ranks, tier}]
 *   report      report.json, if it is that of the last step
 *
 * Its last line is a comment with the CRC-32C of everything before it, so that `isotach verify` sees damage.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

typedef struct report {
  const char *run, *word;
  iso_arena *arena;
  const iso_history *history;
  const iso_verdict *verdict;
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
  iso_points_print(r->history->points, out);
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

/* ---- starts ---- */

static void put_starts(report *r) {
  const iso_history *h = r->history;
  iso_string *out = &r->json, faults = {0};
  iso_incarnation *list = NULL;
  size_t count = 0;
  if (iso_incarnation_examine(r->arena, r->run, &list, &count, &faults) != ISO_OK && !list) count = 0;
  const size_t first = count > ISO_HISTORY_STARTS ? count - ISO_HISTORY_STARTS : 0;
  iso_string_printf(out, ",\n\"starts\": [");
  for (size_t i = first; i < count; i++) {
    const iso_start *lines = NULL;
    for (size_t k = 0; k < h->start_count; k++)
      if (h->starts[k].number == list[i].number) lines = &h->starts[k];
    iso_string_printf(out, "%s\n{\"number\": %d, \"begins_after\": %lld, \"ranks\": %lld, ", i > first ? "," : "",
                      list[i].number, (long long)list[i].begins_after, (long long)list[i].ranks);
    put_text(out, "tier", list[i].tier);
    iso_string_printf(out, ", \"steps\": %lld, \"first\": %lld, \"last\": %lld", lines ? (long long)lines->steps : 0LL,
                      lines ? (long long)lines->first : 0LL, lines ? (long long)lines->last : 0LL);
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
  const iso_history *h = r->history;
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
  const iso_history *h = r->history;
  iso_string *out = &r->json;
  iso_string_printf(out, "{");
  put_text(out, "run", r->run);
  iso_string_printf(out, ", ");
  put_text(out, "verdict", r->word);
  iso_string_printf(out, ", ");
  put_text(out, "version", ISO_VERSION);
  iso_string_printf(out, ",\n\"steps\": %lld, \"steps_per_point\": %lld, \"tokens\": %.0f, \"wall_s\": %.6f",
                    (long long)h->steps, (long long)h->points->steps_per_point, h->tokens,
                    iso_history_spread(h, "wall_s").sum);
  const double rate = iso_history_rate(h);
  iso_string_printf(out, ", \"loss\": ");
  iso_json_number(out, iso_history_loss(h), 9);
  iso_string_printf(out, ", \"tokens_per_s\": ");
  iso_json_number(out, rate > 0 ? rate : NAN, 9);
  if (h->began > 0) iso_string_printf(out, ", \"began\": %.3f, \"ended\": %.3f", h->began, h->ended);
}

static void collect(report *r) {
  put_head(r);
  put_points(r);
  iso_string_printf(&r->json, ",\n\"judged\": {\"steps\": %lld%s}", (long long)r->history->steps,
                    r->verdict->members.length ? r->verdict->members.data : "");
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

void iso_report_page_write(const char *run, const char *word, const iso_history *history, const iso_verdict *verdict) {
  if (history->steps == 0) return;
  report r = {.run = run, .word = word, .arena = iso_arena_create(), .history = history, .verdict = verdict};
  iso_status status = r.arena ? ISO_OK : ISO_ERR_MEMORY;
  if (status == ISO_OK) {
    collect(&r);
    status = write_page(&r);
  }
  if (status != ISO_OK)
    iso_warn("%s: report.html is not written%s", run, status == ISO_ERR_MEMORY ? ": no memory" : "");
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
