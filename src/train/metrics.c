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

double iso_metrics_wall(const char *run, double *mfu) {
  char *data;
  size_t bytes;
  *mfu = 0;
  if (!read_lines(run, &data, &bytes)) return 0;
  double sum = 0, used = 0;
  const char *mfu_key = "\"mfu\": ", *key = "\"wall_s\": "; /* in this order in a line */
  for (const char *at = data; (at = strstr(at, mfu_key));) {
    at += strlen(mfu_key);
    const double share = strtod(at, NULL);
    at = strstr(at, key);
    if (!at) break;
    at += strlen(key);
    const double seconds = strtod(at, NULL);
    sum += seconds;
    used += share * seconds;
  }
  free(data);
  if (sum > 0) *mfu = used / sum;
  return sum;
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

double iso_metrics_loss(const char *run) {
  char *data, *end;
  size_t bytes;
  if (!read_lines(run, &data, &bytes)) return 0;
  const char *key = "\"loss\": ", *last = NULL;
  for (const char *at = data; (at = strstr(at, key)); at += strlen(key)) last = at + strlen(key);
  double loss = last ? strtod(last, &end) : 0;
  if (last && end == last) loss = NAN;
  free(data);
  return loss;
}

/* The line from `begin` on is a starved step's: counted, and kept if it is the one that waited longest. */
static void note_starved(iso_metrics_waits *waits, const char *begin, double wait_s) {
  static const char *const first = "\"starved_stage\": ", *const behind = ", \"time\": ";
  const char *line_end = strchr(begin, '\n');
  const char *where = strstr(begin, first), *end = where ? strstr(where, behind) : NULL;
  waits->starved++;
  if (wait_s < waits->longest_s || !end || (line_end && end > line_end)) return; /* lines of before did not say it */
  waits->longest_s = wait_s;
  waits->where.length = 0;
  iso_string_append(&waits->where, where, (size_t)(end - where));
}

void iso_metrics_waits_get(const char *run, iso_metrics_waits *waits) {
  char *data;
  size_t bytes, count = 0;
  *waits = (iso_metrics_waits){0};
  if (!read_lines(run, &data, &bytes)) return;
  size_t lines = 1;
  for (size_t i = 0; i < bytes; i++) lines += data[i] == '\n';
  double *seconds = malloc(lines * sizeof *seconds);
  const char *key = "\"data_wait_s\": ", *flag = "\"starved\": ";
  for (const char *at = data; seconds && count < lines && (at = strstr(at, key));) {
    at += strlen(key);
    seconds[count++] = strtod(at, NULL);
    const char *is = strstr(at, flag);
    if (is && strncmp(is + strlen(flag), "true", 4) == 0) note_starved(waits, is, seconds[count - 1]);
  }
  if (count) {
    iso_sort(seconds, (int64_t)count);
    waits->p95_s = iso_quantile(seconds, (int64_t)count, 95);
  }
  free(seconds);
  free(data);
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
  iso_boot_id(boot);
  iso_string_printf(&text,
                    "{\n  \"verdict\": \"%s\",\n  \"exit_code\": %d,\n  \"step\": %lld,\n  \"durable_step\": %lld,\n  "
                    "\"incarnation\": %d,\n  \"durability\": \"%s\",\n  \"boot\": \"%s\"",
                    verdict, exit_code, (long long)step, (long long)durable_step, incarnation,
                    disk ? "disk" : "process", boot);
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
