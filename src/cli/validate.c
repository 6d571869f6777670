/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach validate: a model beside what the reference computed with it; the worst error of each kind.
 */
#include "cli/cli.h"

static iso_status print_json(const char *model, const iso_validate_report *report, iso_dtype dtype) {
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "model", model);
  iso_json_put_text(&out, "dtype", dtype == ISO_F32 ? "float32" : "bfloat16");
  iso_json_put_bool(&out, "passed", report->passed);
  iso_json_open(&out, "rows", '[');
  for (int i = 0; i < report->count; i++) {
    const iso_validate_row *row = &report->rows[i];
    iso_json_open(&out, NULL, '{');
    iso_json_put_text(&out, "kind", row->kind);
    iso_json_put_text(&out, "worst", row->tensor);
    iso_json_put_real(&out, "error", row->error);
    if (row->bound >= 0) iso_json_put_real(&out, "bound", row->bound);
    iso_json_put_bool(&out, "judged", row->bound >= 0);
    iso_json_put_bool(&out, "passed", row->passed);
    iso_json_shut(&out, '}');
  }
  iso_json_shut(&out, ']');
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static void print_table(const iso_validate_report *report) {
  printf("%-16s %12s %12s  %-7s %s\n", "kind", "error", "bound", "", "worst");
  for (int i = 0; i < report->count; i++) {
    const iso_validate_row *row = &report->rows[i];
    char bound[32] = "-";
    if (row->bound >= 0) snprintf(bound, sizeof bound, "%.3e", row->bound);
    printf("%-16s %12.3e %12s  %-7s %s\n", row->kind, row->error, bound,
           row->bound < 0 ? "shown"
           : row->passed  ? "ok"
                          : "BROKEN",
           row->tensor);
  }
}

iso_status iso_verb_validate(iso_args *args) {
  bool json = false;
  const char *reference = "";
  iso_dtype dtype = ISO_F32;
  int64_t threads = 0;
  const iso_flag flags[] = {
      {"reference", ISO_FLAG_TEXT, &reference, "folder with case.json and case.safetensors", 0, 0},
      {"dtype", ISO_FLAG_DTYPE, &dtype, "compute type (float32)", 0, 0},
      {"threads", ISO_FLAG_INT, &threads, "0: all cores (0)", 0, 1024},
      {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  if (!reference[0]) return iso_fail(ISO_ERR_USAGE, "validate: --reference is missing; name a case's folder");
  iso_validate_report report;
  ISO_TRY(iso_validate(args->words[0], reference, dtype, (int)threads, &report));
  if (json) {
    ISO_TRY(print_json(args->words[0], &report, dtype));
  } else {
    print_table(&report);
  }
  if (report.passed) return ISO_OK;
  int broken = 0;
  for (int i = 0; i < report.count; i++) broken += !report.rows[i].passed;
  return iso_fail(ISO_ERR_CHECK, "%s: %d of %d comparisons are out of bounds; see the table", args->words[0], broken,
                  report.count);
}
