/* SPDX-License-Identifier: Apache-2.0
 *
 * What the loop has of a run's vital signs: a step's to the watch. The watch itself, sensors and budget: signs.h.
 */
#ifndef ISO_TRAIN_HEALTH_H
#define ISO_TRAIN_HEALTH_H

#include "train/train.h"

/* ---- health.c: a run's vital signs ---------------------------------------------------------------------------- */

typedef struct iso_health iso_health;
/* Keeps the run. */
iso_status iso_health_open(const iso_run *run, iso_health **out) ISO_MUST_CHECK;
/* vitals.json says the last state. */
void iso_health_close(iso_health **health);
/* The signs as they are, for a step's line. */
void iso_health_fill(const iso_health *health, iso_step_metrics *metrics);
/* Behind a step, by rank 0: tells what begins or ends to be out of bounds, or who else is to blame now, ending a
 * progress line before. */
void iso_health_step(iso_health *health, const iso_step_metrics *metrics, const iso_progress_step *shown,
                     iso_progress *progress);
/* Steps are over; NULL: nothing. */
void iso_health_end(iso_health *health);
const iso_watch *iso_health_watch(const iso_health *health);
int iso_health_ranks(const iso_health *health);
const char *iso_health_host(const iso_health *health, int rank);
/* "rank": ..., "host": ... */
void iso_health_put_rank(const iso_health *health, int rank, iso_string *out);
/* For those who look on: {"signs": [...], "ranks": [...]}, of each rank and part the mean of the last second, and P50,
 * P95 and mean of this start. */
void iso_health_look(const iso_health *health, iso_string *out);

#endif
