/* SPDX-License-Identifier: Apache-2.0
 *
 * The newest step that a run's earlier starts called durable, by status.json and metrics.jsonl: less than that must not
 * be gone in silence.
 *
 * A start that went back on purpose voids what older incarnations said of later steps. What is stated carries its
 * incarnation, so this holds however little of that start came about: its published record is enough.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "train/train.h"

static const int64_t NEWER_THAN_ALL = INT32_MAX; /* where no incarnation is stated, nothing is taken back */

/* What is left of a step that this incarnation stated. */
static int64_t counted(const iso_incarnation *list, size_t count, int64_t incarnation, int64_t step) {
  const int64_t until = iso_incarnation_counts_until(list, count, incarnation);
  return step < until ? step : until;
}

/* NULL: there is none, or it is damaged, which is said. */
static iso_status parse_status(const char *run, iso_json **json) {
  char path[4096];
  bool exists, sealed;
  iso_string faults = {0};
  *json = NULL;
  snprintf(path, sizeof path, "%s/status.json", run);
  ISO_TRY(iso_path_probe(path, &exists));
  if (!exists) return ISO_OK;
  iso_status status = iso_record_read_any(path, "status.json", json, &sealed, &faults);
  if (status == ISO_ERR_FORMAT) {
    iso_warn("%s/%s; what it says of durable steps does not count", run, iso_fault_first(&faults));
    status = ISO_OK;
  } else if (status != ISO_OK) {
    status = iso_fail(status, "%s/%s", run, iso_fault_first(&faults));
  }
  iso_string_fini(&faults);
  return status;
}

/* Step and incarnation that status.json states; step 0 when it states nothing. before_boot: see iso_acknowledged. */
static iso_status read_status(const char *run, int64_t *step, int64_t *incarnation, bool *before_boot) {
  char boot[64];
  const char *durability, *said_in, *where = "status.json";
  iso_json *json;
  *step = 0;
  *incarnation = NEWER_THAN_ALL;
  ISO_TRY(parse_status(run, &json));
  if (!json) return ISO_OK;
  iso_status status = iso_json_int(json, where, "durable_step", 0, step);
  if (status == ISO_OK) status = iso_json_int(json, where, "incarnation", NEWER_THAN_ALL, incarnation);
  if (status == ISO_OK) status = iso_json_string(json, where, "durability", "", &durability);
  if (status == ISO_OK) status = iso_json_string(json, where, "boot", "", &said_in);
  iso_boot_id(boot);
  *before_boot = status == ISO_OK && strcmp(durability, "process") == 0 && strcmp(said_in, boot) != 0;
  iso_json_destroy(&json);
  return status;
}

/* A line without an incarnation is of a start before `otherwise` was stated. */
static void read_lines(const char *data, const iso_incarnation *list, size_t count, int64_t otherwise, double boot_s,
                       iso_acknowledged *out) {
  const char *key = "\"durable_step\": ", *stamp = "\"time\": ", *start = "\"incarnation\": ";
  for (const char *at = data; (at = strstr(at, key)); at += strlen(key)) {
    const char *end = strchr(at, '\n'), *said = strstr(at, stamp), *of = strstr(at, start);
    int64_t step = strtoll(at + strlen(key), NULL, 10);
    if (step <= out->shown || !said || !end || said > end) continue;
    const int64_t incarnation = of && of < end ? strtoll(of + strlen(start), NULL, 10) : otherwise;
    step = counted(list, count, incarnation, step);
    if (step <= out->shown) continue;
    out->shown = step;
    out->shown_this_boot = strtod(said + strlen(stamp), NULL) > boot_s;
  }
}

static iso_status read_metrics(const char *run, const iso_incarnation *list, size_t count, int64_t otherwise,
                               iso_acknowledged *out) {
  char *data;
  size_t bytes;
  struct timespec now, up;
  iso_lines_found found = {0};
  const iso_status status = iso_lines_read(run, "metrics", &data, &bytes, &found);
  if (status == ISO_OK && found.damaged)
    iso_warn("%s/%s; damaged lines (there %s %lld) do not count", run, iso_fault_first(&found.faults),
             found.damaged == 1 ? "is" : "are", (long long)found.damaged);
  iso_lines_found_fini(&found);
  if (status != ISO_OK || !data) return status;
  clock_gettime(CLOCK_REALTIME, &now);
  clock_gettime(CLOCK_BOOTTIME, &up);
  read_lines(data, list, count, otherwise, (double)(now.tv_sec - up.tv_sec), out);
  free(data);
  return ISO_OK;
}

iso_status iso_acknowledged_read(const char *run, iso_acknowledged *out) {
  iso_incarnation *list;
  size_t count = 0;
  int64_t incarnation;
  *out = (iso_acknowledged){.shown_this_boot = true};
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? iso_incarnation_list(arena, run, &list, &count)
                            : iso_fail(ISO_ERR_MEMORY, "%s: no memory to list its starts", run);
  if (status == ISO_OK) status = read_status(run, &out->stated, &incarnation, &out->before_boot);
  if (status == ISO_OK) {
    out->stated = counted(list, count, incarnation, out->stated);
    status = read_metrics(run, list, count, incarnation, out);
  }
  iso_arena_destroy(&arena);
  return status;
}
