/* SPDX-License-Identifier: Apache-2.0
 *
 * What this host is made of, as a tree: packages, NUMA nodes, caches that cores share, cores, CPUs.
 *
 * The one idea: whoever reads the machine (hwloc, or /sys) only says which sets of CPUs there are. The tree follows
 * from which set contains which, so it is the same for both, and nobody has to know whether this machine's NUMA nodes
 * lie within packages or packages within nodes.
 *
 * Invariants
 *  1. A place's parent stands before it and has all of its CPUs (or it has none).
 *  2. Each CPU is in one core; a CPU of which no core is known is a core of its own.
 *  3. Caches of one core are left out: they say nothing about the way between cores.
 */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORDS = ISO_MOST_CPUS / 64 };

bool iso_cpu_set_has(const iso_cpu_set *set, int cpu) {
  return cpu >= 0 && cpu < ISO_MOST_CPUS && (set->words[cpu / 64] >> (cpu % 64) & 1);
}

void iso_cpu_set_put(iso_cpu_set *set, int cpu) {
  set->words[cpu / 64] |= (uint64_t)1 << (cpu % 64);
}

int iso_cpu_set_count(const iso_cpu_set *set) {
  int count = 0;
  for (int i = 0; i < WORDS; i++) count += __builtin_popcountll(set->words[i]);
  return count;
}

static int first_cpu(const iso_cpu_set *set) {
  for (int i = 0; i < WORDS; i++)
    if (set->words[i]) return 64 * i + __builtin_ctzll(set->words[i]);
  return ISO_MOST_CPUS;
}

static bool contains(const iso_cpu_set *set, const iso_cpu_set *other) {
  for (int i = 0; i < WORDS; i++)
    if (other->words[i] & ~set->words[i]) return false;
  return true;
}

iso_status iso_topology_add(iso_topology *t, iso_site_kind kind, int level, int number, int64_t bytes,
                            const iso_cpu_set *cpus) {
  if ((t->count & (t->count - 1)) == 0) { /* doubles at each power of two */
    iso_site *more = realloc(t->places, (size_t)(t->count ? 2 * t->count : 1) * sizeof *more);
    if (!more) return iso_fail(ISO_ERR_MEMORY, "topology: no memory for %d places", 2 * t->count);
    t->places = more;
  }
  t->places[t->count++] = (iso_site){kind, level, number, bytes, *cpus, -1, 0};
  return ISO_OK;
}

/* ---- from sets to a tree ---- */

/* Above when the sets are equal. */
static int rank_of(const iso_site *place) {
  return place->kind * 16 - (place->level < 8 ? place->level : 8);
}

static int by_place(const void *a, const void *b) {
  const iso_site *x = a, *y = b;
  if ((x->kind == ISO_SITE_HOST) != (y->kind == ISO_SITE_HOST)) return x->kind == ISO_SITE_HOST ? -1 : 1;
  const int first = first_cpu(&x->cpus) - first_cpu(&y->cpus);
  if (first) return first;
  const int size = iso_cpu_set_count(&y->cpus) - iso_cpu_set_count(&x->cpus);
  if (size) return size;
  const int rank = rank_of(x) - rank_of(y);
  return rank ? rank : x->number - y->number;
}

static bool above(const iso_site *x, const iso_site *y) {
  if (x->kind == ISO_SITE_HOST) return true;
  const int size = iso_cpu_set_count(&y->cpus);
  if (size == 0 || !contains(&x->cpus, &y->cpus)) return false;
  return iso_cpu_set_count(&x->cpus) > size || rank_of(x) < rank_of(y);
}

static iso_status complete_cores(iso_topology *t) {
  const int count = t->count;
  iso_cpu_set in_core = {{0}}, alone;
  for (int i = 0; i < count; i++)
    if (t->places[i].kind == ISO_SITE_CORE)
      for (int w = 0; w < WORDS; w++) in_core.words[w] |= t->places[i].cpus.words[w];
  for (int i = 0; i < count; i++) {
    const int cpu = t->places[i].number;
    if (t->places[i].kind != ISO_SITE_CPU || iso_cpu_set_has(&in_core, cpu)) continue;
    alone = t->places[i].cpus;
    ISO_TRY(iso_topology_add(t, ISO_SITE_CORE, 0, -1, 0, &alone));
  }
  return ISO_OK;
}

/* In sorted order: what a cache contains stands behind it. */
static void drop_private_caches(iso_topology *t) {
  int kept = 0;
  for (int i = 0; i < t->count; i++) {
    const iso_site *site = &t->places[i];
    int cores = 0;
    for (int j = i + 1; site->kind == ISO_SITE_CACHE && cores < 2 && j < t->count; j++) {
      if (!contains(&site->cpus, &t->places[j].cpus)) break;
      cores += t->places[j].kind == ISO_SITE_CORE;
    }
    if (site->kind != ISO_SITE_CACHE || cores > 1) t->places[kept++] = *site;
  }
  t->count = kept;
}

static iso_status build(iso_topology *t) {
  iso_cpu_set all = {{0}};
  for (int i = 0; i < t->count; i++)
    if (t->places[i].kind == ISO_SITE_CPU) iso_cpu_set_put(&all, t->places[i].number);
  if (iso_cpu_set_count(&all) == 0) return iso_fail(ISO_ERR_FORMAT, "topology: %s names no CPU", t->source);
  for (int i = 0; i < t->count; i++) /* CPUs that are switched off stay out */
    for (int w = 0; w < WORDS; w++) t->places[i].cpus.words[w] &= all.words[w];
  ISO_TRY(complete_cores(t));
  ISO_TRY(iso_topology_add(t, ISO_SITE_HOST, 0, -1, 0, &all));
  qsort(t->places, (size_t)t->count, sizeof *t->places, by_place);
  drop_private_caches(t);
  for (int i = 0; i < t->count; i++) {
    iso_site *place = &t->places[i];
    int j = i - 1;
    while (j >= 0 && !above(&t->places[j], place)) j = t->places[j].parent;
    place->parent = j;
    place->depth = j < 0 ? 0 : t->places[j].depth + 1;
    t->kinds[place->kind]++;
  }
  return ISO_OK;
}

/* ---- reading ---- */

static iso_topology *new_topology(void) {
  iso_topology *t = calloc(1, sizeof *t);
  if (!t) {
    (void)iso_fail(ISO_ERR_MEMORY, "topology: no memory");
    return NULL;
  }
  if (gethostname(t->host, sizeof t->host) != 0) snprintf(t->host, sizeof t->host, "localhost");
  t->host[sizeof t->host - 1] = '\0';
  return t;
}

static iso_status finish(iso_topology **t, iso_status status, iso_topology **out) {
  if (status == ISO_OK) status = build(*t);
  if (status != ISO_OK)
    iso_topology_destroy(t);
  else
    *out = *t;
  return status;
}

iso_status iso_topology_from_sys(const char *root, iso_topology **out) {
  *out = NULL;
  iso_topology *t = new_topology();
  if (!t) return ISO_ERR_MEMORY;
  snprintf(t->source, sizeof t->source, "%s", root);
  return finish(&t, iso_topology_read_sys(t, root), out);
}

static void find_usable(iso_topology *t) {
  int cpus[ISO_MOST_CPUS];
  const int count = iso_cpu_order(cpus, ISO_MOST_CPUS);
  for (int i = 0; i < count; i++)
    if (iso_cpu_set_has(&t->places[0].cpus, cpus[i])) iso_cpu_set_put(&t->usable, cpus[i]);
}

iso_status iso_topology_create(iso_topology **out) {
  const char *cause = NULL;
  *out = NULL;
  iso_topology *t = new_topology();
  if (!t) return ISO_ERR_MEMORY;
  iso_status status = iso_topology_read_hwloc(t, &cause);
  if (status == ISO_OK && cause) {
    iso_warn("topology: %s; it is read from /sys instead", cause);
    t->count = 0;
    t->elsewhere = false;
    snprintf(t->source, sizeof t->source, "/sys");
    status = iso_topology_read_sys(t, "/sys");
  }
  ISO_TRY(finish(&t, status, out));
  if (!(*out)->elsewhere) find_usable(*out);
  return ISO_OK;
}

void iso_topology_destroy(iso_topology **topology) {
  if (!*topology) return;
  free((*topology)->places);
  free(*topology);
  *topology = NULL;
}
