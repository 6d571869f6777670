/* SPDX-License-Identifier: Apache-2.0
 *
 * Of which pairs of cores the way between them is measured: there may be hundreds of thousands, and a few of each kind
 * say it all. Two pairs are of one kind when the smallest place that has both cores is: within a shared cache, within a
 * NUMA node, a package, the host.
 */
#include "comm/comm.h"

#include <stdlib.h>

enum { MOST_KINDS = 16 };

typedef struct kind_of_pair {
  iso_site_kind kind;
  int level;
  int64_t count, seen, taken;
} kind_of_pair;

typedef struct kinds {
  kind_of_pair list[MOST_KINDS];
  int count;
} kinds;

static kind_of_pair *kind_of(kinds *k, const iso_site *common) {
  for (int i = 0; i < k->count; i++)
    if (k->list[i].kind == common->kind && k->list[i].level == common->level) return &k->list[i];
  if (k->count == MOST_KINDS) return &k->list[MOST_KINDS - 1];
  k->list[k->count] = (kind_of_pair){.kind = common->kind, .level = common->level};
  return &k->list[k->count++];
}

typedef struct core {
  int site, cpu;
} core;

/* Those with a usable CPU, by the lowest such. */
static int find_cores(const iso_topology *t, core *cores) {
  int count = 0;
  for (int i = 0; i < t->count && count < ISO_MOST_CPUS; i++) {
    if (t->places[i].kind != ISO_SITE_CORE) continue;
    int cpu = 0;
    while (cpu < ISO_MOST_CPUS && !(iso_cpu_set_has(&t->places[i].cpus, cpu) && iso_cpu_set_has(&t->usable, cpu)))
      cpu++;
    if (cpu < ISO_MOST_CPUS) cores[count++] = (core){i, cpu};
  }
  return count;
}

static const iso_site *common_of(const iso_topology *t, core a, core b) {
  int site = t->places[a.site].parent;
  while (site > 0 && !iso_cpu_set_has(&t->places[site].cpus, b.cpu)) site = t->places[site].parent;
  return &t->places[site];
}

static int by_turn(const void *a, const void *b) {
  const iso_core_pair *x = a, *y = b;
  if (x->turn != y->turn) return x->turn - y->turn;
  return x->cpus[0] != y->cpus[0] ? x->cpus[0] - y->cpus[0] : x->cpus[1] - y->cpus[1];
}

int iso_core_pairs(const iso_topology *t, iso_core_pair pairs[ISO_MOST_PAIRS], int64_t *all) {
  core cores[ISO_MOST_CPUS];
  kinds k = {.count = 0};
  int chosen = 0;
  const int count = find_cores(t, cores);
  for (int a = 0; a < count; a++)
    for (int b = a + 1; b < count; b++) kind_of(&k, common_of(t, cores[a], cores[b]))->count++;
  *all = (int64_t)count * (count - 1) / 2;
  const int64_t quota = k.count ? ISO_MOST_PAIRS / k.count : 0;
  for (int a = 0; a < count; a++)
    for (int b = a + 1; b < count; b++) {
      const iso_site *common = common_of(t, cores[a], cores[b]);
      kind_of_pair *kind = kind_of(&k, common);
      const bool skipped = kind->count > quota && kind->seen * quota < kind->taken * kind->count;
      kind->seen++;
      if (skipped || kind->taken == quota) continue;
      pairs[chosen++] = (iso_core_pair){{cores[a].cpu, cores[b].cpu}, common, (int)kind->taken++};
    }
  qsort(pairs, (size_t)chosen, sizeof *pairs, by_turn);
  return chosen;
}
