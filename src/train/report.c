/* SPDX-License-Identifier: Apache-2.0
 *
 * report.json: what a run came to, with what it says of itself (verdict.c). It is written when steps are over, and by a
 * start that finds all steps taken and no report: then of the same numbers, since what lines do not hold is in
 * starts.json. What neither holds is not in it.
 */
#include <math.h>
#include <string.h>

#include "train/vitals/vitals.h"

/* What the mixture gave, beside what it was to give. */
static iso_status put_sources(const iso_run *run, iso_string *text) {
  int64_t drawn[ISO_MAX_SOURCES];
  double bytes = 0, weights = 0;
  const size_t count = run->data.source_count;
  if (count < 2 || run->at.step == 0) return ISO_OK;
  ISO_TRY(iso_walk_drawn(run->corpus, (const iso_data_cursor *)(const void *)run->at.cursors, drawn));
  for (size_t s = 0; s < count; s++) {
    bytes += (double)drawn[s];
    weights += run->sources[s].weight;
  }
  iso_string_printf(text, "  \"sources\": [");
  for (size_t s = 0; s < count; s++) {
    iso_string_printf(text, "%s\n    {\"path\": ", s ? "," : "");
    iso_json_quote(text, run->sources[s].path, strlen(run->sources[s].path));
    iso_string_printf(text, ", \"weight\": %.6f, \"share\": %.6f, \"text_bytes\": %lld}",
                      run->sources[s].weight / weights, (double)drawn[s] / bytes, (long long)drawn[s]);
  }
  iso_string_printf(text, "],\n");
  return ISO_OK;
}

/* Where the batch of a starved step was, of the one that waited longest. */
static void put_starved(const iso_starved *one, iso_string *text) {
  if (one->steps)
    iso_string_printf(text, "  \"starved_stage\": %.*s, \"starved_source\": %.*s,\n", (int)one->stage_bytes, one->stage,
                      (int)one->source_bytes, one->source);
}

/* What is not finite is no number of JSON's. */
static void put_fixed(iso_string *text, const char *name, int decimals, double value) {
  iso_string_printf(text, "  \"%s\": ", name);
  if (isfinite(value))
    iso_string_printf(text, "%.*f,\n", decimals, value);
  else
    iso_string_printf(text, "null,\n");
}

/* What is not known, since no line says it, is 0. */
static void put_known(iso_string *text, const char *name, int decimals, double value) {
  put_fixed(text, name, decimals, value > 0 ? value : NAN);
}

static double last_finite(const double *values, int64_t count) {
  for (int64_t i = count; i-- > 0;)
    if (isfinite(values[i])) return values[i];
  return NAN;
}

static void put_result(const iso_report *of, iso_string *text) {
  const iso_train_result *r = of->result;
  if (r->evaluated) {
    put_fixed(text, "bits_per_byte", 6, r->evaluation.bits_per_byte);
    put_fixed(text, "validation_loss", 6, r->evaluation.loss);
    put_fixed(text, "perplexity", 4, r->evaluation.perplexity);
  }
  put_fixed(text, "train_seconds", 3, r->train_s);
  iso_string_printf(text, "  \"steps\": %lld,\n  \"parameters\": %lld,\n  \"tokens\": %lld,\n", (long long)r->step,
                    (long long)r->parameters, (long long)r->tokens);
  put_known(text, "tokens_per_s", 1, r->tokens_per_s);
  put_known(text, "mfu", 6, r->mfu);
  put_known(text, "peak_gflops", 1, r->peak_gflops);
  if (of->first_peak_gflops > 0) put_fixed(text, "first_peak_gflops", 1, of->first_peak_gflops);
  iso_string_printf(text, "  \"refused\": %lld,\n", (long long)r->refused);
  put_fixed(text, "load_p95_ms", 4, r->load_p95_ms);
  iso_string_printf(text, "  \"starved_steps\": %lld,\n", (long long)r->starved_steps);
  put_starved(&of->history->longest, text);
  put_fixed(text, "loss", 6, r->loss);
  if (!isfinite(r->loss))
    put_fixed(text, "last_finite_loss", 6, last_finite(iso_history_values(of->history, "loss"), of->history->steps));
  put_fixed(text, "compile_s", 3, of->run->engine.compile_s);
}

iso_status iso_report_write(const iso_report *of) {
  const iso_run *run = of->run;
  const iso_string *log = &of->starts->log, *members = &of->verdict->members;
  iso_string text = {0};
  iso_string_printf(&text, "{\n");
  put_result(of, &text);
  iso_status status = put_sources(run, &text);
  iso_string_printf(&text, "  \"fusion\": ");
  iso_fusion_record(iso_engine_graph(&run->engine), &text);
  if (of->starts->last_step == run->at.step && log->length) iso_string_printf(&text, ",\n  \"log\": %s", log->data);
  iso_string_append(&text, members->data ? members->data : "", members->length);
  iso_record_seal(&text);
  char path[4096];
  snprintf(path, sizeof path, "%s/report.json", run->config.run);
  if (status == ISO_OK)
    status = iso_string_failed(&text) ? ISO_ERR_MEMORY : iso_file_replace(path, text.data, text.length);
  iso_string_fini(&text);
  return status;
}
