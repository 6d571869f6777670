/* SPDX-License-Identifier: Apache-2.0
 *
 * The numbers of a run under way, for whoever asks while it goes on: the loop puts each step in, other threads read.
 *
 * Invariants
 *  1. Putting a step in takes no memory, and waits for a reader only while that copies. Who reads does so from a copy,
 *     in which all numbers are of the same step.
 *  2. Curves are of the whole run, sums and quantiles of this start.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

struct iso_live {
  pthread_mutex_t lock;
  iso_points *points;
  double *values; /* of the last step */
  double *sums;
  double *recent; /* [iso_vital_count][ISO_LIVE_RECENT], a ring */
  int64_t steps;  /* of this start */
  double time;    /* of the last one, seconds since 1970 */
};

void iso_live_destroy(iso_live **live) {
  if (!*live) return;
  iso_points_destroy(&(*live)->points);
  free((*live)->values);
  free((*live)->sums);
  free((*live)->recent);
  (void)pthread_mutex_destroy(&(*live)->lock);
  free(*live);
  *live = NULL;
}

/* The curves of the starts before. */
static void fill(iso_live *live, const iso_history *history) {
  for (int64_t i = 0; i < history->steps; i++) {
    for (size_t row = 0; row < iso_vital_count; row++)
      live->values[row] = history->all[row * (size_t)history->steps + (size_t)i];
    iso_points_add(live->points, live->values);
  }
  for (size_t row = 0; row < iso_vital_count; row++) live->values[row] = NAN;
}

static iso_live *make(void) {
  iso_live *live = calloc(1, sizeof *live);
  if (!live) return NULL;
  (void)pthread_mutex_init(&live->lock, NULL);
  live->points = iso_points_create();
  live->values = calloc(iso_vital_count, sizeof *live->values);
  live->sums = calloc(iso_vital_count, sizeof *live->sums);
  live->recent = calloc(iso_vital_count * ISO_LIVE_RECENT, sizeof *live->recent);
  if (!live->points || !live->values || !live->sums || !live->recent) iso_live_destroy(&live);
  return live;
}

iso_status iso_live_create(const char *run, const iso_history *history, iso_live **out) {
  *out = make();
  if (!*out) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for the numbers to show", run);
  fill(*out, history);
  return ISO_OK;
}

iso_live *iso_live_copy(iso_live *live) {
  iso_live *copy = make();
  if (!copy) return NULL;
  const size_t row_bytes = iso_vital_count * sizeof *live->values;
  iso_point *cells = copy->points->cells;
  (void)pthread_mutex_lock(&live->lock);
  *copy->points = *live->points;
  copy->points->cells = memcpy(cells, live->points->cells, iso_vital_count * ISO_POINTS * sizeof *cells);
  memcpy(copy->values, live->values, row_bytes);
  memcpy(copy->sums, live->sums, row_bytes);
  memcpy(copy->recent, live->recent, ISO_LIVE_RECENT * row_bytes);
  copy->steps = live->steps;
  copy->time = live->time;
  (void)pthread_mutex_unlock(&live->lock);
  return copy;
}

void iso_live_step(iso_live *live, const iso_step_metrics *step, double time) {
  (void)pthread_mutex_lock(&live->lock);
  const size_t place = (size_t)(live->steps % ISO_LIVE_RECENT);
  for (size_t row = 0; row < iso_vital_count; row++) {
    const double value = iso_vital_value(&iso_vitals[row], step);
    live->values[row] = live->recent[row * ISO_LIVE_RECENT + place] = value;
    if (isfinite(value)) live->sums[row] += value;
  }
  live->steps++;
  live->time = time;
  iso_points_add(live->points, live->values);
  (void)pthread_mutex_unlock(&live->lock);
}

void iso_live_read(const iso_live *live, size_t row, iso_live_number *out) {
  double sorted[ISO_LIVE_RECENT];
  int64_t count = 0;
  *out = (iso_live_number){.last = live->steps ? live->values[row] : NAN, .sum = live->sums[row], .steps = live->steps};
  const int64_t most = live->steps < ISO_LIVE_RECENT ? live->steps : ISO_LIVE_RECENT;
  for (int64_t i = 0; i < most; i++)
    if (isfinite(live->recent[row * ISO_LIVE_RECENT + i])) sorted[count++] = live->recent[row * ISO_LIVE_RECENT + i];
  out->p50 = out->p95 = out->p99 = NAN;
  if (count == 0) return;
  iso_sort(sorted, count);
  out->p50 = iso_quantile(sorted, count, 50);
  out->p95 = iso_quantile(sorted, count, 95);
  out->p99 = iso_quantile(sorted, count, 99);
}

/* As the loop does it for the progress line and vitals.json; steps that are not kept any more weigh nothing. */
double iso_live_smoothed(const iso_live *live, const char *name) {
  const iso_vital *vital = iso_vital_find(name);
  const double *recent = vital ? live->recent + (size_t)(vital - iso_vitals) * ISO_LIVE_RECENT : NULL;
  double smoothed = 0;
  for (int64_t i = live->steps > ISO_LIVE_RECENT ? live->steps - ISO_LIVE_RECENT : 0; recent && i < live->steps; i++) {
    const double value = recent[i % ISO_LIVE_RECENT];
    if (isfinite(value)) smoothed = smoothed > 0 ? 0.9 * smoothed + 0.1 * value : value;
  }
  return smoothed > 0 ? smoothed : NAN;
}

double iso_live_time(const iso_live *live) {
  return live->time;
}

const iso_points *iso_live_points(const iso_live *live) {
  return live->points;
}
