/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach doctor, the links: how fast cores of this host pass on what they write, and with several ranks the same
 * between the first processor of each rank and that of each other, as `isotach train --ranks N` places them: a matrix
 * of latency and bandwidth.
 *
 * Of more ranks than MOST_RANKS those are taken that stand evenly among all.
 */
#include <pthread.h>
#include <string.h>

#include "cli/cli.h"

static const double cores_s = 1.5, ranks_s = 1.5;
static const double slow_share = 0.25; /* of the best link */
enum { MOST_RANKS = 10 };

/* ---- between cores ---- */

static void check_cores(iso_doctor *d) {
  iso_topology *t;
  if (iso_topology_create(&t) != ISO_OK) {
    iso_doctor_failed(d, "links", ISO_VERDICT_SKIPPED, "", "");
    return;
  }
  iso_core_pair chosen[ISO_MOST_PAIRS];
  int64_t all;
  const int count = t->elsewhere ? 0 : iso_core_pairs(t, chosen, &all);
  const double until_s = iso_clock_s() + cores_s * d->patience;
  double slowest_ns = 0, least = 0, most = 0;
  int measured = 0;
  for (bool done = true; measured < count && done; measured += done) {
    iso_link link;
    if (iso_link_measure(chosen[measured].cpus[0], chosen[measured].cpus[1], until_s, &link, &done) != ISO_OK) break;
    if (!done) continue;
    const double rate = link.gb_per_s.median;
    if (link.latency_ns.median > slowest_ns) slowest_ns = link.latency_ns.median;
    if (measured == 0 || rate < least) least = rate;
    if (rate > most) most = rate;
  }
  iso_topology_destroy(&t);
  if (measured == 0)
    iso_doctor_add(d, "links", ISO_VERDICT_SKIPPED, "", "", "no pair of cores could be measured");
  else
    iso_doctor_add(d, "links", least >= slow_share * most ? ISO_VERDICT_OK : ISO_VERDICT_WARNING,
                   "no pair of cores below a quarter of the best",
                   "isotach topology shows all pairs; give the run cores that are near each other (taskset)",
                   "%d pair%s of cores: latency up to %.0f ns, %.1f to %.1f GB/s", measured, iso_plural(measured),
                   slowest_ns, least, most);
}

/* ---- between ranks ---- */

typedef struct place {
  int rank, ranks, cpu; /* cpu: the first that it may use; -1: not known */
} place;

/* In a thread of its own, whose processors are its own to choose. */
static void *find_cpu(void *argument) {
  place *p = argument;
  int cpu;
  p->cpu = iso_cpu_part(p->rank, p->ranks) > 0 && iso_cpu_order(&cpu, 1) == 1 ? cpu : -1;
  return NULL;
}

static int find_places(const iso_doctor *d, place places[MOST_RANKS]) {
  const int ranks = (int)d->ranks, count = ranks < MOST_RANKS ? ranks : MOST_RANKS;
  for (int i = 0; i < count; i++) {
    pthread_t thread;
    places[i] = (place){.rank = (int)((int64_t)i * ranks / count), .ranks = ranks, .cpu = -1};
    if (iso_thread_start(&thread, find_cpu, &places[i]) == 0) (void)pthread_join(thread, NULL);
  }
  return count;
}

/* Adds a link to the doctor's list; false: time is up, or it cannot be measured. */
static bool measure(iso_doctor *d, const place *a, const place *b, double until_s) {
  iso_link link;
  bool done;
  if (iso_link_measure(a->cpu, b->cpu, until_s, &link, &done) != ISO_OK || !done) return false;
  d->links[d->link_count++] = (iso_doctor_link){.ranks = {a->rank, b->rank},
                                                .cpus = {a->cpu, b->cpu},
                                                .latency_ns = link.latency_ns.median,
                                                .gb_per_s = link.gb_per_s.median};
  return true;
}

static void say_ranks(iso_doctor *d, int wanted, int shared) {
  iso_string text = {0};
  double least = 0, most = 0;
  for (int i = 0; i < d->link_count; i++) {
    const iso_doctor_link *l = &d->links[i];
    iso_string_printf(&text, "%s%d-%d %.0f ns %.1f GB/s", i ? ", " : "", l->ranks[0], l->ranks[1], l->latency_ns,
                      l->gb_per_s);
    if (i == 0 || l->gb_per_s < least) least = l->gb_per_s;
    if (l->gb_per_s > most) most = l->gb_per_s;
  }
  const bool slow = least < slow_share * most;
  iso_doctor_add(d, "links of ranks",
                 shared || slow           ? ISO_VERDICT_WARNING
                 : d->link_count < wanted ? ISO_VERDICT_SKIPPED
                                          : ISO_VERDICT_OK,
                 "each rank on processors of its own, no link below a quarter of the best",
                 shared ? "lower --ranks, or allow the run more processors"
                        : "isotach topology shows which cores are near each other; choose them with taskset",
                 "%d of %d pairs of ranks%s%s%s", d->link_count, wanted, text.length ? ": " : "",
                 text.length ? text.data : "", shared ? "; other pairs share a processor" : "");
  iso_string_fini(&text);
}

static void check_ranks(iso_doctor *d) {
  place places[MOST_RANKS];
  const int count = find_places(d, places);
  const double until_s = iso_clock_s() + ranks_s * d->patience;
  int wanted = 0, shared = 0;
  bool going = true;
  for (int a = 0; a < count; a++)
    for (int b = a + 1; b < count; b++) {
      if (places[a].cpu < 0 || places[b].cpu < 0) continue;
      wanted++;
      if (places[a].cpu == places[b].cpu)
        shared++;
      else if (going)
        going = measure(d, &places[a], &places[b], until_s);
    }
  say_ranks(d, wanted, shared);
}

void iso_doctor_links(iso_doctor *d) {
  check_cores(d);
  if (d->ranks > 1 && !d->launched) check_ranks(d);
}
