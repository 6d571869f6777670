/* SPDX-License-Identifier: Apache-2.0
 *
 * Small programs against each other: each runs on the device's team, by turns, and its fastest run counts. They compute
 * on zeros: kernels take the same time for any numbers.
 *
 * Invariants
 *  1. Memory is one slab, as large as the largest program asks for, written before the first timed run and freed.
 *  2. After one run of each program it is known whether the budget allows what tells them apart: at least two timed
 *     runs of each. If not, the seconds are 0.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

enum { LEAST_RUNS = 2, MOST_RUNS = 9 };
#define ENOUGH_S 0.01 /* of timed runs: the least number of them will do */

typedef struct lane {
  const iso_device *device;
  const iso_program *program;
  iso_frame frame;
} lane;

static void run_lane(void *argument, int thread) {
  const lane *l = argument;
  iso_worker worker = {thread, iso_device_threads(l->device), iso_device_team(l->device), NULL};
  for (int i = 0; i < l->program->phase_begin[ISO_PHASE_MICRO + 1]; i++) {
    if (l->program->instructions[i].barrier) iso_team_barrier(worker.team);
    iso_instruction_run(l->program, &l->program->instructions[i], &l->frame, &worker);
  }
}

static double run_once(lane *l) {
  const double began = iso_clock_s();
  iso_team_run(iso_device_team(l->device), run_lane, l);
  return iso_clock_s() - began;
}

/* Where each space begins in the slab; its whole size as return value. */
static size_t plan_slab(iso_program *const *programs, int count, size_t begins[ISO_SPACE_COUNT]) {
  size_t total = 0;
  for (int space = 0; space < ISO_SPACE_COUNT; space++) {
    int64_t most = 0;
    for (int i = 0; i < count; i++) {
      const int64_t bytes = iso_program_space_bytes(programs[i], (iso_space)space);
      if (bytes > most) most = bytes;
    }
    begins[space] = total;
    total += ((size_t)most + 63) / 64 * 64;
  }
  return total;
}

static void bind(lane *l, char *slab, const size_t *begins, iso_step *step) {
  const iso_graph *graph = l->program->graph;
  for (int space = 0; space < ISO_SPACE_COUNT; space++) l->frame.base[space] = slab + begins[space];
  l->frame.kernels = iso_device_kernels(l->device);
  l->frame.step = step;
  l->frame.first_micro = true;
  for (iso_id id = 0; id < graph->tensor_count; id++) {
    const iso_tensor *t = &graph->tensors[id];
    if (t->space == ISO_SPACE_INPUT)
      l->frame.inputs[id] = (const int32_t *)(const void *)(l->frame.base[ISO_SPACE_INPUT] + t->offset);
  }
}

static void race(lane *lanes, int count, double budget_s, double *seconds) {
  double once = 0;
  for (int i = 0; i < count; i++) once += run_once(&lanes[i]);
  const double fit = budget_s / (once > 1e-9 ? once : 1e-9);
  if (fit < LEAST_RUNS) return;
  const double began = iso_clock_s();
  bool enough = false;
  for (int run = 0; run < MOST_RUNS && !enough; run++) {
    once = 0;
    for (int i = 0; i < count; i++) {
      const double took = run_once(&lanes[i]);
      if (run == 0 || took < seconds[i]) seconds[i] = took;
      once += seconds[i];
    }
    /* what disturbed runs took does not count: then more of them are needed, as far as the budget goes */
    enough = run + 1 >= LEAST_RUNS && ((run + 1) * once > ENOUGH_S || iso_clock_s() - began > budget_s);
  }
}

iso_status iso_programs_race(const void *device, iso_program *const *programs, int count, double budget_s,
                             double *seconds) {
  size_t begins[ISO_SPACE_COUNT];
  const size_t bytes = plan_slab(programs, count, begins);
  iso_step step = {.scored = 1};
  iso_status status = ISO_OK;
  memset(seconds, 0, sizeof *seconds * (size_t)count);
  lane *lanes = calloc((size_t)count, sizeof *lanes);
  char *slab = iso_slab_alloc(bytes, "measuring fusions");
  if (lanes == NULL || slab == NULL) status = ISO_ERR_MEMORY;
  for (int i = 0; i < count && status == ISO_OK; i++) {
    lanes[i] = (lane){.device = device, .program = programs[i]};
    lanes[i].frame.inputs = calloc((size_t)programs[i]->graph->tensor_count + 1, sizeof *lanes[i].frame.inputs);
    if (lanes[i].frame.inputs == NULL) status = iso_fail(ISO_ERR_MEMORY, "race: no memory");
  }
  if (status == ISO_OK) {
    memset(slab, 0, bytes); /* pages of its own, not the one page of zeros */
    for (int i = 0; i < count; i++) bind(&lanes[i], slab, begins, &step);
    race(lanes, count, budget_s, seconds);
  }
  for (int i = 0; lanes != NULL && i < count; i++) free(lanes[i].frame.inputs);
  iso_slab_free(slab, bytes);
  free(lanes);
  return status;
}
