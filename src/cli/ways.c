/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast messages go between ranks that a launcher has started, and how far their hosts' clocks are apart.
 *
 * Latency is half of the shortest of ROUNDS trips of 8 bytes, bandwidth that of the fastest of BLOCKS messages of BLOCK
 * bytes with an answer behind each. Of more ranks than ISO_MOST_WAYS those are taken that stand evenly among all.
 */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "cli/cli.h"

enum { ROUNDS = 50, BLOCK = 4 << 20, BLOCKS = 4 };
static const double message_s = 10; /* that a message may take */

static bool pass(const iso_transport *t, int peer, void *data, size_t bytes, bool sends) {
  const double until_s = iso_clock_s() + message_s;
  int request = -1;
  while (request < 0 && iso_clock_s() < until_s)
    request = sends ? t->send(t->self, peer, data, bytes) : t->receive(t->self, peer, data, bytes);
  bool done = false;
  while (request >= 0 && !done && iso_clock_s() < until_s) done = t->complete(t->self, request);
  return done || !iso_fail(ISO_ERR_IO, "no message between this rank and rank %d within %.0f s", peer, message_s);
}

static double wall_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool lead(const iso_transport *t, int peer, char *block, iso_way *out) {
  *out = (iso_way){.latency_s = INFINITY};
  for (int i = 0; i < ROUNDS; i++) {
    double there = 0, began = wall_clock(), from = iso_clock_s();
    if (!pass(t, peer, &began, sizeof began, true) || !pass(t, peer, &there, sizeof there, false)) return false;
    const double trip = iso_clock_s() - from;
    if (trip / 2 >= out->latency_s) continue;
    out->latency_s = trip / 2;
    out->ahead_s = there - (began + trip / 2);
  }
  for (int i = 0; i < BLOCKS; i++) {
    double there = 0;
    const double from = iso_clock_s();
    if (!pass(t, peer, block, BLOCK, true) || !pass(t, peer, &there, sizeof there, false)) return false;
    const double rate = BLOCK / (iso_clock_s() - from);
    if (rate > out->bytes_per_s) out->bytes_per_s = rate;
  }
  return true;
}

static bool answer(const iso_transport *t, int peer, char *block) {
  double there;
  for (int i = 0; i < ROUNDS; i++) {
    if (!pass(t, peer, &there, sizeof there, false)) return false;
    there = wall_clock();
    if (!pass(t, peer, &there, sizeof there, true)) return false;
  }
  for (int i = 0; i < BLOCKS; i++)
    if (!pass(t, peer, block, BLOCK, false) || !pass(t, peer, &there, sizeof there, true)) return false;
  return true;
}

iso_status iso_ways_measure(iso_world *world, const int *chosen, int count, iso_way *ways) {
  const iso_transport *t = iso_world_transport(world);
  const int me = iso_world_rank(world), ranks = iso_world_ranks(world);
  char *block = calloc(1, BLOCK);
  iso_way *all = calloc((size_t)ranks, sizeof *all);
  iso_status status = block && all ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "no memory for messages of %d bytes", BLOCK);
  status = iso_world_agree(world, status);
  for (int a = 0; a < count && status == ISO_OK && block && all; a++)
    for (int b = a + 1; b < count && status == ISO_OK; b++) {
      iso_way mine = {0};
      bool good = true;
      if (me == chosen[a]) good = lead(t, chosen[b], block, &mine);
      if (me == chosen[b]) good = answer(t, chosen[a], block);
      status = iso_world_agree(world, good ? ISO_OK : ISO_ERR_IO);
      if (status == ISO_OK) status = iso_world_gather(world, &mine, all, sizeof mine);
      if (status == ISO_OK) ways[a * count + b] = all[chosen[a]];
    }
  free(block);
  free(all);
  return status;
}
