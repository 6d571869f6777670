/* SPDX-License-Identifier: Apache-2.0
 *
 * init.c: first weights, a pure function of (seed, parameter index, element).
 *
 * Invariants
 *  1. Bits depend on the seed and the order of parameters only, not on threads or machine.
 *  2. Values are finite.
 */
#include "model/model.h"

enum { CHUNK = 65536 /* elements of one unit of work, a multiple of 4 */ };

typedef struct job {
  const iso_graph *graph;
  uint64_t seed;
  float *master;
  int threads;
  iso_tier tier;
} job;

static void fill(const job *j, int index, int64_t begin, int64_t end) {
  const iso_parameter *p = &j->graph->parameters[index];
  float *out = j->master + p->offset + begin;
  if (p->init == ISO_INIT_NORMAL) {
    iso_rng_normals(j->tier, j->seed, ISO_RNG_INIT, (uint64_t)index, begin, end, p->init_std, out);
    return;
  }
  for (int64_t i = 0; i < end - begin; i++) out[i] = p->init == ISO_INIT_ONE ? 1.0f : 0.0f;
}

/* Every threads-th chunk, counted through all parameters. */
static void fill_share(void *argument, int thread) {
  const job *j = argument;
  int64_t chunk = 0;
  for (int index = 0; index < j->graph->parameter_count; index++) {
    const int64_t elements = j->graph->parameters[index].elements;
    for (int64_t begin = 0; begin < elements; begin += CHUNK, chunk++) {
      if (chunk % j->threads == thread) fill(j, index, begin, begin + CHUNK < elements ? begin + CHUNK : elements);
    }
  }
}

void iso_model_init(const iso_graph *graph, uint64_t seed, float *master, iso_team *team) {
  job j = {.graph = graph, .seed = seed, .master = master, .threads = team ? iso_team_size(team) : 1};
  if (iso_cpu_tier(&j.tier) != ISO_OK) j.tier = ISO_TIER_SCALAR;
  if (team) {
    iso_team_run(team, fill_share, &j);
  } else {
    fill_share(&j, 0);
  }
}
