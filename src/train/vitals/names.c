/* SPDX-License-Identifier: Apache-2.0
 *
 * The numbers of a step: one row each. A new one is a field of iso_step_metrics and a row here, and stands in
 * metrics.jsonl, on the pages, in the events and at the endpoint from then on.
 */
#include <math.h>
#include <string.h>

#include "train/vitals/vitals.h"

#define AT(field) offsetof(iso_step_metrics, field)

const iso_vital iso_vitals[] = {
    {"step", ISO_VITAL_WHOLE, AT(step), "steps", "optimizer steps taken"},
    {"loss", ISO_VITAL_REAL, AT(loss), "nats", "mean over the scored tokens of the step's batch"},
    {"lr", ISO_VITAL_REAL, AT(lr), "", "learning rate"},
    {"grad_norm", ISO_VITAL_REAL, AT(grad_norm), "", "of the whole reduced gradient, before clipping"},
    {"tokens", ISO_VITAL_WHOLE, AT(tokens), "tokens", "read since the run began"},
    {"tokens_per_s", ISO_VITAL_REAL, AT(tokens_per_s), "tokens/s", "of this step"},
    {"mfu", ISO_VITAL_REAL, AT(mfu), "", "useful FLOP per second, as a fraction of the measured peak"},
    {"wall_s", ISO_VITAL_REAL, AT(wall_s), "s", "what the step took; the sum of the next five, within 1 %"},
    {"compute_s", ISO_VITAL_REAL, AT(compute_s), "s", "of it, computing"},
    {"data_wait_s", ISO_VITAL_REAL, AT(data_wait_s), "s", "of it, waiting for the batch"},
    {"reduce_wait_s", ISO_VITAL_REAL, AT(reduce_wait_s), "s",
     "of it, waiting for other ranks, and adding what they sent"},
    {"storage_wait_s", ISO_VITAL_REAL, AT(storage_wait_s), "s", "of it, waiting for log and snapshots"},
    {"other_s", ISO_VITAL_REAL, AT(other_s), "s", "of it, host work: lines, locks, signals"},
    {"preempted_s", ISO_VITAL_REAL, AT(preempted_s), "s", "of computing, what the scheduler gave to others"},
    {"unaccounted_s", ISO_VITAL_REAL, AT(unaccounted_s), "s", "of the step, what no part holds"},
    {"data_load_latency", ISO_VITAL_REAL, AT(data_load_latency), "s", "P95 of data_wait_s in the last window of steps"},
    {"allreduce_wait", ISO_VITAL_REAL, AT(allreduce_wait), "s",
     "mean of reduce_wait_s there, of the rank that waits most"},
    {"allreduce_wait_std", ISO_VITAL_REAL, AT(allreduce_wait_std), "s", "its standard deviation"},
    {"checkpoint_bandwidth", ISO_VITAL_REAL, AT(checkpoint_bandwidth), "bytes/s", "made durable while writing"},
    {"flatness", ISO_VITAL_REAL, AT(flatness), "", "P99 of wall_s over its median, in the last window of steps"},
    {"durable_step", ISO_VITAL_WHOLE, AT(durable_step), "steps", "newest step that a crash cannot take"},
    {"ring_depth", ISO_VITAL_WHOLE, AT(ring_depth), "batches", "ready behind the step"},
    {"incarnation", ISO_VITAL_WHOLE, AT(incarnation), "", "number of the start that took the step"},
    {"refused", ISO_VITAL_FLAG, AT(refused), "", "the step was not finite and changed nothing"},
    {"starved", ISO_VITAL_FLAG, AT(starved), "", "the batch was not there when it was due"},
};
const size_t iso_vital_count = ISO_COUNT(iso_vitals);

const iso_vital *iso_vital_find(const char *name) {
  for (size_t i = 0; i < iso_vital_count; i++)
    if (strcmp(iso_vitals[i].name, name) == 0) return &iso_vitals[i];
  return NULL;
}

bool iso_vital_is_part(const iso_vital *vital) {
  const size_t length = strlen(vital->name);
  return vital->type == ISO_VITAL_REAL && strcmp(vital->unit, "s") == 0 && strcmp(vital->name + length - 2, "_s") == 0;
}

static int64_t whole(const iso_vital *vital, const iso_step_metrics *step) {
  int64_t value;
  memcpy(&value, (const char *)step + vital->offset, sizeof value);
  return value;
}

double iso_vital_value(const iso_vital *vital, const iso_step_metrics *step) {
  const char *field = (const char *)step + vital->offset;
  double value;
  if (vital->type == ISO_VITAL_WHOLE) return (double)whole(vital, step);
  if (vital->type == ISO_VITAL_FLAG) return *(const bool *)field ? 1 : 0;
  memcpy(&value, field, sizeof value);
  return value;
}

void iso_vitals_print(const iso_step_metrics *step, iso_string *out) {
  for (size_t i = 0; i < iso_vital_count; i++) {
    const iso_vital *vital = &iso_vitals[i];
    const double value = iso_vital_value(vital, step);
    iso_string_printf(out, "%s\"%s\": ", i ? ", " : "", vital->name);
    if (vital->type == ISO_VITAL_WHOLE) {
      iso_string_printf(out, "%lld", (long long)whole(vital, step));
    } else if (vital->type == ISO_VITAL_FLAG) {
      iso_string_printf(out, "%s", value != 0 ? "true" : "false");
    } else {
      iso_json_number(out, value, 9);
    }
  }
}
