/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank other than 0: the same steps as rank 0's loop takes, without anything that stays of them. It reads the same
 * batches and updates a state of its own, or its part of the host's; log, snapshots, metrics, evaluation and signals
 * are rank 0's.
 */
#include <math.h>

#include "train/tracing.h"

typedef struct own_health {
  iso_stopwatch watch;
  iso_sensors *sensors;
  iso_evidence evidence;
  iso_tracing *tracing; /* NULL: none is wanted */
  int64_t starved;      /* steps, so far */
} own_health;

static void note_starved(const iso_run *run, const iso_ring *ring, own_health *health) {
  iso_ring_waits waits;
  iso_ring_waits_get(ring, &waits);
  if (waits.dry > health->starved) iso_stopwatch_starved(&health->watch, &waits, &run->data);
  health->starved = waits.dry;
}

static iso_status take_step(iso_run *run, iso_ring *ring, own_health *health) {
  iso_stopwatch *watch = &health->watch;
  iso_slot *slot;
  iso_step step;
  double wait_s;
  iso_step_times times = {.began_s = watch->began_s, .take_s = watch->at_s};
  ISO_TRY(iso_ring_take(ring, &slot, &wait_s));
  times.taken_s = iso_stopwatch_lap(watch, ISO_PART_DATA);
  note_starved(run, ring, health);
  iso_run_step_prepare(run, slot, &step);
#ifdef ISO_SABOTAGE_FLIP_WEIGHT /* tests/cli/ranks_differ.sh: the check of the weights must find it */
  const iso_flat *flat = &run->engine.flat;
  const int64_t middle = flat->options.elements / 2;
  if (run->at.step == 9 && iso_ranks_number(run->options.ranks) == 1 && !run->config.parallel.zero)
    flat->master[middle] *= -1;
  if (run->at.step >= 9 && iso_ranks_number(run->options.ranks) == 1 && run->config.parallel.zero)
    flat->weights[middle] ^= 0x8000; /* a bit that is stuck: each update writes the copy anew */
#endif
  times.begin_s = iso_stopwatch_lap(watch, ISO_PART_OTHER);
  iso_exec_step(run->engine.exec, &step);
  iso_ranks *ranks = run->options.ranks;
  iso_step_times_computed(&times, &step, iso_stopwatch_computed(watch, &step, ranks, 0));
  if (step.status == ISO_OK) iso_run_step_commit(run, slot, &step);
  iso_ring_release(ring, slot);
  iso_budget budget;
  times.ended_s = iso_stopwatch_lap(watch, ISO_PART_OTHER);
  iso_stopwatch_end(watch, &budget);
  times.wall_s = budget.parts[ISO_PART_WALL];
  times.compute_s = budget.parts[ISO_PART_COMPUTE];
  times.reduce_wait_s = budget.parts[ISO_PART_REDUCE];
  iso_sensors_get(health->sensors, &health->evidence);
  iso_ranks_health_set(ranks, &budget, &health->evidence);
  if (step.status == ISO_OK) iso_tracing_follow(run, &times, ring, &health->tracing);
  return step.status;
}

static iso_status run_steps(iso_run *run, iso_ranks *ranks) {
  const int64_t last_step = iso_run_last_step(&run->config);
  static const volatile sig_atomic_t none; /* signals are rank 0's */
  iso_ring *ring = NULL;
  own_health health = {0};
  ISO_TRY(iso_ranks_begin(ranks, run, ISO_OK, last_step, &none));
  const iso_data_cursor *cursors = run->at.step ? (const iso_data_cursor *)(const void *)run->at.cursors : NULL;
  iso_status status = iso_ring_start(run->corpus, &run->data, run->at.step + 1, cursors, &ring);
  if (status == ISO_OK) iso_ring_settle(ring, 1, INFINITY);
  (void)!iso_sensors_start(&health.sensors); /* it goes without */
  status = iso_ranks_ready(ranks, status);
  if (status == ISO_OK) {
    iso_stopwatch_start(&health.watch);
    (void)iso_ranks_waited(ranks); /* for the start */
    while (status == ISO_OK && run->at.step < last_step && !iso_ranks_stop(ranks))
      status = take_step(run, ring, &health);
    if (status != ISO_OK) status = iso_ranks_refuse(ranks, status);
    iso_tracing_close(&health.tracing);
  }
  iso_ring_stop(&ring);
  iso_sensors_stop(&health.sensors);
  return status;
}

iso_status iso_follow(const iso_config *config, iso_ranks *ranks) {
  bool goes_on;
  iso_run run;
  iso_log_quiet(true); /* what is to be said in spite of that: see ranks.c */
  iso_status status = iso_ranks_await(ranks, &goes_on);
  if (status != ISO_OK || !goes_on) return status;
  status = iso_run_open_follower(config, ranks, &run);
  if (status != ISO_OK) return iso_ranks_begin(ranks, &run, status, 0, NULL);
  status = run_steps(&run, ranks);
  iso_run_close(&run);
  return status;
}
