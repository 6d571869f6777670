/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.jsonl, a line per step, and status.json, the verdict.
 *
 * Invariants
 *  1. Each step stands once in metrics.jsonl (lines.c).
 *  2. Numbers that are not finite are written as null, so every line is JSON.
 *  3. Each line and status.json end in their CRC-32C (store/record.h).
 */
#include <math.h>
#include <time.h>
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

struct iso_metrics {
  iso_lines *lines;
  iso_string line;
};

iso_status iso_metrics_open(const char *run, int64_t step, iso_metrics **out) {
  *out = calloc(1, sizeof **out);
  if (!*out) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to open metrics.jsonl", run);
  const iso_status status = iso_lines_open(run, "metrics", step, &(*out)->lines);
  if (status != ISO_OK) (void)!iso_metrics_close(out);
  return status;
}

iso_status iso_metrics_append(iso_metrics *metrics, const iso_step_metrics *m) {
  iso_string *line = &metrics->line;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  line->length = 0;
  iso_string_append(line, "{", 1);
  iso_vitals_print(m, line);
  iso_string_printf(line, ", \"breached\": %s", m->breached ? m->breached : "[]");
  if (m->starved) {
    iso_string_printf(line, ", \"starved_stage\": \"%s\", \"starved_source\": ", m->starved_stage);
    iso_json_quote(line, m->starved_source, strlen(m->starved_source));
  }
  iso_string_printf(line, ", \"time\": %lld.%03ld", (long long)now.tv_sec, now.tv_nsec / 1000000);
  iso_record_seal_line(line, 0);
  return iso_lines_append(metrics->lines, line->data, line->length);
}

/* Damaged lines do not count; who goes on with the run says so (lines.c, acknowledged.c). */
static bool read_lines(const char *run, char **data, size_t *bytes) {
  return iso_lines_read(run, "metrics", data, bytes, NULL) == ISO_OK && *data;
}

double iso_metrics_seconds(const char *run, int64_t first, int64_t last) {
  char *data;
  size_t bytes;
  if (!read_lines(run, &data, &bytes)) return 0;
  double sum = 0;
  const char *step_key = "{\"step\": ", *key = "\"wall_s\": ";
  for (const char *at = data; (at = strstr(at, step_key)); at += strlen(step_key)) {
    const int64_t step = strtoll(at + strlen(step_key), NULL, 10);
    const char *wall = step >= first && step <= last ? strstr(at, key) : NULL;
    if (wall) sum += strtod(wall + strlen(key), NULL);
  }
  free(data);
  return sum;
}

iso_status iso_metrics_close(iso_metrics **metrics) {
  if (!metrics || !*metrics) return ISO_OK;
  const iso_status status = iso_lines_close(&(*metrics)->lines);
  iso_string_fini(&(*metrics)->line);
  free(*metrics);
  *metrics = NULL;
  return status;
}

iso_status iso_status_write(const char *run, const char *verdict, int exit_code, int64_t step, int64_t durable_step,
                            int incarnation, bool disk) {
  ISO_TRY(iso_incarnation_check(run, incarnation));
  iso_string text = {0};
  char boot[64];
  struct timespec now;
  iso_boot_id(boot);
  clock_gettime(CLOCK_REALTIME, &now);
  const double time_s = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
  iso_string_printf(&text,
                    "{\n  \"verdict\": \"%s\",\n  \"exit_code\": %d,\n  \"step\": %lld,\n  \"durable_step\": %lld,\n  "
                    "\"incarnation\": %d,\n  \"durability\": \"%s\",\n  \"boot\": \"%s\",\n  \"time\": %.3f",
                    verdict, exit_code, (long long)step, (long long)durable_step, incarnation,
                    disk ? "disk" : "process", boot, time_s);
  iso_mirror_note mirror;
  bool there;
  if (iso_mirror_note_read(run, "mirror", &mirror, &there) == ISO_OK && there)
    iso_string_printf(&text, ",\n  \"mirrored_step\": %lld", (long long)mirror.step);
  iso_record_seal(&text);
  char path[4096];
  snprintf(path, sizeof path, "%s/status.json", run);
  const iso_status status = iso_string_failed(&text) ? ISO_ERR_MEMORY : iso_file_replace(path, text.data, text.length);
  iso_string_fini(&text);
  return status;
}
