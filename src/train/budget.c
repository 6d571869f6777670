/* SPDX-License-Identifier: Apache-2.0
 *
 * The closed budget of a step: wall = compute + data wait + reduce wait + storage wait + other, each timed by itself.
 *
 * The stopwatch is read where one part ends and the next begins. A part that lies within another (a wait for storage
 * within host work) times itself and is taken out of the lap around it. The step's program times its computing inside
 * (exec.c); its lap is not counted, so what the parts in it leave is seen: unaccounted_s.
 */
#include <math.h>
#include <string.h>

#include "train/train.h"

const char *const iso_budget_names[ISO_PARTS] = {"wall_s",         "compute_s", "data_wait_s", "reduce_wait_s",
                                                 "storage_wait_s", "other_s",   "preempted_s", "unaccounted_s"};

const char *const iso_late_names[ISO_LATE_STAGES] = {"schedule", "read", "tokenize", "pack"};
_Static_assert((int)ISO_LATE_SOURCES >= (int)ISO_MAX_SOURCES, "each source of a run has its seconds");

static const double OPEN_SHARE = 0.01; /* of the wall time that the parts may miss */

void iso_stopwatch_start(iso_stopwatch *watch) {
  *watch = (iso_stopwatch){0};
  watch->began_s = watch->at_s = iso_clock_s();
}

double iso_stopwatch_lap(iso_stopwatch *watch, iso_budget_part part) {
  const double now = iso_clock_s();
  watch->budget.parts[part] += now - watch->at_s - watch->inside_s;
  watch->inside_s = 0;
  watch->at_s = now;
  return now;
}

void iso_stopwatch_within(iso_stopwatch *watch, iso_budget_part part, double seconds) {
  watch->budget.parts[part] += seconds;
  watch->inside_s += seconds;
}

void iso_stopwatch_starved(iso_stopwatch *watch, const iso_ring_waits *waits, const iso_data_options *data) {
  iso_budget *budget = &watch->budget;
  budget->late_s = waits->last_wait_s;
  for (int i = 0; i < ISO_LATE_STAGES; i++)
    if (strcmp(waits->last_stage, iso_late_names[i]) == 0) budget->late_stage = i;
  for (size_t i = 0; i < data->source_count; i++)
    if (strcmp(waits->last_source, data->sources[i].path) == 0) {
      budget->late_source = (int32_t)i;
      break;
    }
}

static double pass(iso_stopwatch *watch) {
  watch->inside_s = 0;
  return watch->at_s = iso_clock_s();
}

double iso_stopwatch_computed(iso_stopwatch *watch, const iso_step *step, iso_ranks *ranks, double gate_s) {
  double *parts = watch->budget.parts;
  parts[ISO_PART_COMPUTE] += step->compute_s;
  parts[ISO_PART_PREEMPTED] += step->preempted_s;
  parts[ISO_PART_STORAGE] += gate_s;
  if (ranks) parts[ISO_PART_REDUCE] += iso_ranks_waited(ranks);
  return pass(watch);
}

void iso_stopwatch_leave_out(iso_stopwatch *watch, double seconds) {
  watch->skipped_s += seconds;
  watch->inside_s += seconds;
}

void iso_stopwatch_end(iso_stopwatch *watch, iso_budget *out) {
  double *parts = watch->budget.parts;
  parts[ISO_PART_WALL] = watch->at_s - watch->began_s - watch->skipped_s;
  parts[ISO_PART_UNACCOUNTED] = parts[ISO_PART_WALL];
  for (int p = ISO_PART_COMPUTE; p <= ISO_PART_OTHER; p++) parts[ISO_PART_UNACCOUNTED] -= parts[p];
  *out = watch->budget;
  const double at = watch->at_s;
  *watch = (iso_stopwatch){.began_s = at, .at_s = at};
}

bool iso_budget_closes(const iso_budget *budget) {
  return fabs(budget->parts[ISO_PART_UNACCOUNTED]) <= OPEN_SHARE * budget->parts[ISO_PART_WALL];
}

/* ---- starved steps ---- */

void iso_late_fade(iso_late *late, double share) {
  for (int i = 0; i < ISO_LATE_STAGES; i++)
    for (int j = 0; j < ISO_LATE_SOURCES; j++)
      late->seconds[i][j] = late->seconds[i][j] > 1e-9 ? late->seconds[i][j] * share : 0;
}

void iso_late_add(iso_late *late, const iso_budget *budget) {
  const int stage = budget->late_stage, source = budget->late_source;
  if (!(budget->late_s > 0) || stage < 0 || stage >= ISO_LATE_STAGES || source < 0 || source >= ISO_LATE_SOURCES)
    return; /* another rank says so */
  late->seconds[stage][source] += budget->late_s;
}

double iso_late_sum(const iso_late *late, iso_late_stage stage) {
  double sum = 0;
  for (int j = 0; j < ISO_LATE_SOURCES; j++) sum += late->seconds[stage][j];
  return sum;
}

bool iso_late_most(const iso_late *late, iso_late_stage from, iso_late_stage *stage, int *source) {
  double most = 0;
  for (int i = (int)from; i < ISO_LATE_STAGES; i++)
    for (int j = 0; j < ISO_LATE_SOURCES; j++) {
      if (late->seconds[i][j] <= most) continue;
      most = late->seconds[i][j];
      *stage = (iso_late_stage)i;
      *source = j;
    }
  return most > 0;
}

/* ---- how values are spread ---- */

static const double LEAST = 1e-8; /* seconds of the first bin's beginning */

static int bin_of(double value) {
  int octave;
  if (!(value > LEAST)) return 0;
  const double fraction = frexp(value / LEAST, &octave); /* [0.5, 1) */
  const int bin = (octave - 1) * ISO_TALLY_FINE + (int)((fraction * 2 - 1) * ISO_TALLY_FINE);
  return bin < ISO_TALLY_BINS ? bin : ISO_TALLY_BINS - 1;
}

/* The middle of a bin. */
static double value_of(int bin) {
  return LEAST * ldexp(1 + (bin % ISO_TALLY_FINE + 0.5) / ISO_TALLY_FINE, bin / ISO_TALLY_FINE);
}

void iso_tally_add(iso_tally *tally, double value) {
  if (!isfinite(value)) return;
  if (tally->count == 0 || value < tally->least) tally->least = value;
  if (tally->count == 0 || value > tally->most) tally->most = value;
  tally->count++;
  tally->sum += value;
  tally->squares += value * value;
  tally->bins[bin_of(value)]++;
}

void iso_tally_clear(iso_tally *tally) {
  if (tally->count) memset(tally, 0, sizeof *tally);
}

double iso_tally_mean(const iso_tally *tally) {
  return tally->count ? tally->sum / (double)tally->count : 0;
}

double iso_tally_deviation(const iso_tally *tally) {
  const double mean = iso_tally_mean(tally);
  const double square = tally->count ? tally->squares / (double)tally->count - mean * mean : 0;
  return square > 0 ? sqrt(square) : 0;
}

double iso_tally_quantile(const iso_tally *tally, int percent) {
  const int64_t rank = (tally->count * percent + 99) / 100;
  int64_t seen = 0;
  if (tally->count == 0) return 0;
  for (int bin = 0; bin < ISO_TALLY_BINS; bin++) {
    seen += tally->bins[bin];
    if (seen < rank) continue;
    const double value = bin ? value_of(bin) : tally->least;
    return value < tally->least ? tally->least : value > tally->most ? tally->most : value;
  }
  return tally->most;
}

void iso_tally_print(const iso_tally *tally, iso_string *out) {
  iso_string_printf(out, "{\"p50\": %.9g, \"p95\": %.9g, \"p99\": %.9g, \"mean\": %.9g, \"std\": %.9g}",
                    iso_tally_quantile(tally, 50), iso_tally_quantile(tally, 95), iso_tally_quantile(tally, 99),
                    iso_tally_mean(tally), iso_tally_deviation(tally));
}
