/* SPDX-License-Identifier: Apache-2.0
 *
 * metrics.jsonl, a line per step, and status.json, the verdict.
 *
 * Invariants
 *  1. Each step stands once in metrics.jsonl: on a resume, lines beyond the resumed step and a torn last line move to
 * aside/.
 *  2. Numbers that are not finite are written as null, so every line is JSON.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <time.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

struct iso_metrics {
  int fd;
  int64_t offset;
  char *path;
  iso_string line;
};

/* Offset of the first line that is torn or whose step is beyond `step`. */
static size_t keep_until(const char *data, size_t bytes, int64_t step) {
  size_t at = 0;
  while (at < bytes) {
    const char *end = memchr(data + at, '\n', bytes - at);
    if (!end) return at;
    const char *prefix = "{\"step\": ";
    const size_t length = strlen(prefix);
    if ((size_t)(end - (data + at)) < length || strncmp(data + at, prefix, length) != 0) return at;
    if (strtoll(data + at + length, NULL, 10) > step) return at;
    at = (size_t)(end - data) + 1;
  }
  return at;
}

static iso_status set_aside(iso_arena *arena, const char *run, const char *data, size_t bytes) {
  const char *folder = iso_path_join(arena, run, "aside");
  ISO_TRY(iso_path_make(folder));
  for (int i = 1; i < 100000; i++) {
    const char *path = iso_path_join(arena, folder, iso_arena_printf(arena, "metrics-%05d.jsonl", i));
    if (!iso_path_exists(path)) return iso_file_replace(path, data, bytes);
  }
  return iso_fail(ISO_ERR_IO, "%s: holds 100,000 cut-off metrics files; move some away", folder);
}

static iso_status cut_back(iso_arena *arena, const char *run, const char *path, int64_t step, int64_t *offset) {
  *offset = 0;
  if (!iso_path_exists(path)) return ISO_OK;
  char *data;
  size_t bytes;
  ISO_TRY(iso_file_read(path, &data, &bytes));
  const size_t kept = keep_until(data, bytes, step);
  iso_status status = ISO_OK;
  if (kept < bytes) status = set_aside(arena, run, data + kept, bytes - kept);
  free(data);
  *offset = (int64_t)kept;
  return status;
}

iso_status iso_metrics_open(const char *run, int64_t step, iso_metrics **out) {
  *out = NULL;
  iso_arena *arena = iso_arena_create();
  iso_metrics *metrics = calloc(1, sizeof *metrics);
  if (!arena || !metrics) {
    iso_arena_destroy(&arena);
    free(metrics);
    return iso_fail(ISO_ERR_MEMORY, "%s: no memory to open metrics.jsonl", run);
  }
  const char *path = iso_path_join(arena, run, "metrics.jsonl");
  metrics->path = strdup(path);
  metrics->fd = -1;
  iso_status status = metrics->path ? cut_back(arena, run, path, step, &metrics->offset) : ISO_ERR_MEMORY;
  if (status == ISO_OK) {
    metrics->fd = iso_os.open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (metrics->fd < 0 || iso_os.ftruncate(metrics->fd, metrics->offset) != 0)
      status = iso_fail(ISO_ERR_IO, "%s: cannot open for writing: %s", path, strerror(errno));
  }
  iso_arena_destroy(&arena);
  if (status != ISO_OK) {
    (void)!iso_metrics_close(&metrics);
    return status;
  }
  *out = metrics;
  return ISO_OK;
}

static void put(iso_string *line, const char *name, double value) {
  if (isfinite(value)) {
    iso_string_printf(line, ", \"%s\": %.9g", name, value);
  } else {
    iso_string_printf(line, ", \"%s\": null", name);
  }
}

iso_status iso_metrics_append(iso_metrics *metrics, const iso_step_metrics *m) {
  iso_string *line = &metrics->line;
  line->length = 0;
  iso_string_printf(line, "{\"step\": %lld", (long long)m->step);
  put(line, "loss", m->loss);
  put(line, "lr", m->lr);
  put(line, "grad_norm", m->grad_norm);
  iso_string_printf(line, ", \"tokens\": %lld", (long long)m->tokens);
  put(line, "tokens_per_s", m->tokens_per_s);
  put(line, "mfu", m->mfu);
  put(line, "wall_s", m->wall_s);
  put(line, "compute_s", m->compute_s);
  put(line, "data_wait_s", m->data_wait_s);
  put(line, "reduce_wait_s", m->reduce_wait_s);
  put(line, "storage_wait_s", m->storage_wait_s);
  put(line, "other_s", m->other_s);
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  iso_string_printf(line, ", \"durable_step\": %lld, \"refused\": %s, \"time\": %lld.%03ld}\n",
                    (long long)m->durable_step, m->refused ? "true" : "false", (long long)now.tv_sec,
                    now.tv_nsec / 1000000);
  const iso_status status = iso_file_pwrite(metrics->fd, metrics->path, line->data, line->length, metrics->offset);
  metrics->offset += (int64_t)line->length;
  return status;
}

double iso_metrics_wall(const char *run) {
  char path[4096], *data;
  size_t bytes;
  snprintf(path, sizeof path, "%s/metrics.jsonl", run);
  if (!iso_path_exists(path) || iso_file_read(path, &data, &bytes) != ISO_OK) return 0;
  double sum = 0;
  const char *key = "\"wall_s\": ";
  for (const char *at = data; (at = strstr(at, key)); at += strlen(key)) sum += strtod(at + strlen(key), NULL);
  free(data);
  return sum;
}

iso_status iso_metrics_close(iso_metrics **metrics) {
  if (!metrics || !*metrics) return ISO_OK;
  iso_metrics *m = *metrics;
  iso_status status = ISO_OK;
  if (m->fd >= 0 && iso_os.close(m->fd) != 0) status = iso_fail(ISO_ERR_IO, "%s: close: %s", m->path, strerror(errno));
  iso_string_fini(&m->line);
  free(m->path);
  free(m);
  *metrics = NULL;
  return status;
}

iso_status iso_status_write(const char *run, const char *verdict, int exit_code, int64_t step, int64_t durable_step,
                            int incarnation) {
  iso_string text = {0};
  iso_string_printf(&text,
                    "{\n  \"verdict\": \"%s\",\n  \"exit_code\": %d,\n  \"step\": %lld,\n  \"durable_step\": %lld,\n  "
                    "\"incarnation\": %d\n}\n",
                    verdict, exit_code, (long long)step, (long long)durable_step, incarnation);
  char path[4096];
  snprintf(path, sizeof path, "%s/status.json", run);
  const iso_status status = iso_file_replace(path, text.data, text.length);
  iso_string_fini(&text);
  return status;
}
