/* SPDX-License-Identifier: Apache-2.0
 *
 * init.c: first weights, a pure function of (seed, parameter index, element).
 *
 * A normal number comes from 32 random bits through the inverse of the normal distribution (Wichura 1988, Algorithm
 * AS 241, the 7-digit form PPND7), so one Philox block gives four of them and only the outer 15% cost a logarithm. Its
 * relative error of about 1e-7 is below float32's own rounding.
 *
 * Invariants
 *  1. Bits depend on the seed and the order of parameters only, not on threads or machine.
 *  2. Values are finite: |z| < 6.4.
 */
#include "model/model.h"

#include <math.h>

enum { CHUNK = 65536 /* elements of one unit of work, a multiple of 4 */, SMALL = 1 << 20 /* not worth a team */ };

double iso_normal_from_bits(uint32_t bits) {
  const double p = ((double)bits + 0.5) / 4294967296.0, q = p - 0.5; /* q is exact and odd in the bits */
  if (fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    const double above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179;
    const double below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0;
    return q * above / below;
  }
  double z, r = sqrt(-iso_log(0.5 - fabs(q)));
  if (r <= 5) {
    r -= 1.6;
    z = (((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777) /
        ((0.12021132975 * r + 0.73700164250) * r + 1.0);
  } else {
    r -= 5;
    z = (((0.017337203997 * r + 0.42868294337) * r + 3.0812263860) * r + 6.6579051150) /
        ((0.012258202635 * r + 0.24197894225) * r + 1.0);
  }
  return q < 0 ? -z : z;
}

typedef struct job {
  const iso_graph *graph;
  uint64_t seed;
  float *master;
  int threads;
} job;

static void fill(const iso_parameter *p, uint64_t seed, uint64_t index, int64_t begin, int64_t end, float *out) {
  if (p->init != ISO_INIT_NORMAL) {
    for (int64_t i = begin; i < end; i++) out[i] = p->init == ISO_INIT_ONE ? 1.0f : 0.0f;
    return;
  }
  for (int64_t i = begin; i < end; i += 4) {
    uint32_t bits[4];
    iso_rng(seed, ISO_RNG_INIT, index, (uint64_t)i / 4, bits);
    for (int64_t j = i; j < i + 4 && j < end; j++) out[j] = (float)(p->init_std * iso_normal_from_bits(bits[j - i]));
  }
}

/* Every threads-th chunk of each parameter. */
static void fill_share(void *argument, int thread) {
  const job *j = argument;
  for (int index = 0; index < j->graph->parameter_count; index++) {
    const iso_parameter *p = &j->graph->parameters[index];
    for (int64_t begin = (int64_t)thread * CHUNK; begin < p->elements; begin += (int64_t)j->threads * CHUNK) {
      const int64_t end = begin + CHUNK < p->elements ? begin + CHUNK : p->elements;
      fill(p, j->seed, (uint64_t)index, begin, end, j->master + p->offset);
    }
  }
}

void iso_model_init(const iso_graph *graph, uint64_t seed, float *master) {
  job j = {.graph = graph, .seed = seed, .master = master, .threads = 1};
  iso_team *team = graph->flat_elements > SMALL ? iso_team_create(iso_cpu_count(), false) : NULL;
  if (!team) {
    fill_share(&j, 0);
    return;
  }
  j.threads = iso_team_size(team);
  iso_team_run(team, fill_share, &j);
  iso_team_destroy(&team);
}
