/* SPDX-License-Identifier: Apache-2.0
 *
 * The numbers of a run in the text format of Prometheus, version 0.0.4 (prometheus.io, "Exposition formats"). A number
 * NAME is isotach_NAME; parts of a step's time (unit s) are summaries, of which the quantiles are over the newest steps
 * and sum and count over this start's; flags are counted, isotach_NAME_total; everything else is a gauge of the last
 * step.
 */
#include <math.h>
#include <string.h>

#include "train/vitals/vitals.h"

static void put_value(iso_string *out, double value) {
  if (isfinite(value)) {
    iso_string_printf(out, " %.17g\n", value);
  } else {
    iso_string_printf(out, isnan(value) ? " NaN\n" : value > 0 ? " +Inf\n" : " -Inf\n");
  }
}

static void put_head(iso_string *out, const char *name, const char *type, const char *help, const char *unit) {
  iso_string_printf(out, "# HELP isotach_%s %s%s%s%s\n# TYPE isotach_%s %s\n", name, help, unit[0] ? " (" : "", unit,
                    unit[0] ? ")" : "", name, type);
}

static void put_vital(const iso_live *live, size_t row, iso_string *out) {
  const iso_vital *vital = &iso_vitals[row];
  const char *name = vital->name;
  iso_live_number number;
  iso_live_read(live, row, &number);
  if (iso_vital_is_part(vital)) {
    const double quantiles[] = {number.p50, number.p95, number.p99};
    static const char *const words[] = {"0.5", "0.95", "0.99"};
    put_head(out, name, "summary", vital->help, vital->unit);
    for (size_t i = 0; i < ISO_COUNT(words); i++) {
      iso_string_printf(out, "isotach_%s{quantile=\"%s\"}", name, words[i]);
      put_value(out, quantiles[i]);
    }
    iso_string_printf(out, "isotach_%s_sum", name);
    put_value(out, number.sum);
    iso_string_printf(out, "isotach_%s_count %lld\n", name, (long long)number.steps);
  } else if (vital->type == ISO_VITAL_FLAG) {
    char total[64];
    snprintf(total, sizeof total, "%s_total", name);
    put_head(out, total, "counter", vital->help, "steps");
    iso_string_printf(out, "isotach_%s", total);
    put_value(out, number.sum);
  } else {
    put_head(out, name, "gauge", vital->help, vital->unit);
    iso_string_printf(out, "isotach_%s", name);
    put_value(out, number.last);
  }
}

/* A label's value: backslash, quote and newline are escaped. */
static void put_label(iso_string *out, const char *name, const char *text) {
  iso_string_printf(out, "%s=\"", name);
  for (const char *at = text; *at; at++) {
    if (*at == '\n') {
      iso_string_printf(out, "\\n");
    } else {
      iso_string_printf(out, *at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
    }
  }
  iso_string_printf(out, "\"");
}

void iso_exposition_print(const iso_outputs_head *head, const iso_live *live, iso_string *out) {
  put_head(out, "run_info", "gauge", "what runs; always 1", "");
  iso_string_printf(out, "isotach_run_info{");
  put_label(out, "run", head->run);
  iso_string_printf(out, ",");
  put_label(out, "uuid", head->uuid);
  iso_string_printf(out, ",");
  put_label(out, "version", ISO_VERSION);
  iso_string_printf(out, ",");
  put_label(out, "tier", head->tier);
  iso_string_printf(out, "} 1\n");
  const struct {
    const char *name, *help, *unit;
    double value;
  } own[] = {{"steps", "length of the run's schedule", "steps", (double)head->steps},
             {"parameters", "of the model", "", (double)head->parameters},
             {"ranks", "that compute", "", (double)head->ranks},
             {"threads", "of each rank's compute team", "", (double)head->threads},
             {"memory_bytes", "resident", "bytes", (double)iso_memory_resident()},
             {"time", "when the last step ended, since 1970; 0: none yet", "s", iso_live_time(live)}};
  for (size_t i = 0; i < ISO_COUNT(own); i++) {
    put_head(out, own[i].name, "gauge", own[i].help, own[i].unit);
    iso_string_printf(out, "isotach_%s", own[i].name);
    put_value(out, own[i].value);
  }
  for (size_t row = 0; row < iso_vital_count; row++) put_vital(live, row, out);
}
