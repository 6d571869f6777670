/* SPDX-License-Identifier: Apache-2.0
 *
 * network.h: several ranks in one thread, with a network that delays, refuses and mixes as it likes (but keeps the
 * order between two ranks), and distributions drawn at random. For the tests of collectives.
 */
#ifndef ISO_TEST_COMM_NETWORK_H
#define ISO_TEST_COMM_NETWORK_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

enum { MOST_RANKS = 9, REQUESTS = 200 };

static uint64_t seed;
static uint32_t draw(uint32_t below) {
  seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return below ? (uint32_t)((seed >> 33) % below) : 0;
}

/* ---- messages and signals ---- */

typedef struct request {
  int peer; /* -1: free */
  bool send, done;
  void *data;
  size_t bytes;
  uint64_t order;
} request;
typedef struct node {
  int rank;
  request requests[REQUESTS];
  uint64_t reached[ISO_SIGNAL_KINDS];
  iso_transport transport;
  iso_signals signals;
} node;
static node nodes[MOST_RANKS];
static uint64_t order;

static int post(node *n, int peer, bool send, void *data, size_t bytes) {
  assert_true(bytes > 0);
  if (draw(5) == 0) return -1;
  for (int i = 0; i < REQUESTS; i++) {
    request *r = &n->requests[i];
    if (r->peer >= 0) continue;
    *r = (request){peer, send, false, data, bytes, ++order};
    return i;
  }
  fail_msg("more requests under way than pieces");
  return -1;
}

static int sim_send(void *self, int peer, const void *data, size_t bytes) {
  return post(self, peer, true, (void *)(uintptr_t)data, bytes);
}

static int sim_receive(void *self, int peer, void *data, size_t bytes) {
  return post(self, peer, false, data, bytes);
}

static bool sim_complete(void *self, int number) {
  node *n = self;
  if (!n->requests[number].done) return false;
  n->requests[number].peer = -1;
  return true;
}

static request *oldest(node *n, int peer, bool send) {
  request *found = NULL;
  for (int i = 0; i < REQUESTS; i++) {
    request *r = &n->requests[i];
    if (r->peer == peer && r->send == send && !r->done && (!found || r->order < found->order)) found = r;
  }
  return found;
}

/* Brings some messages over. */
static void deliver(int ranks) {
  for (int from = 0; from < ranks; from++)
    for (int to = 0; to < ranks; to++) {
      if (draw(3) == 0) continue;
      request *send = oldest(&nodes[from], to, true), *receive = oldest(&nodes[to], from, false);
      if (!send || !receive) continue;
      assert_int_equal(send->bytes, receive->bytes);
      memcpy(receive->data, send->data, send->bytes);
      send->done = receive->done = true;
    }
}

static void sim_raise(void *self, int kind, uint64_t round) {
  ((node *)self)->reached[kind] = round;
}

static bool sim_reached(void *self, int rank, int kind, uint64_t round) {
  (void)self;
  return nodes[rank].reached[kind] >= round;
}

static void network_init(int ranks) {
  for (int r = 0; r < ranks; r++) {
    nodes[r] = (node){.rank = r};
    for (int i = 0; i < REQUESTS; i++) nodes[r].requests[i].peer = -1;
    nodes[r].transport = (iso_transport){&nodes[r], sim_send, sim_receive, sim_complete};
    nodes[r].signals = (iso_signals){&nodes[r], sim_raise, sim_reached};
  }
}

/* Nothing is left under way. */
static void network_check_empty(int ranks) {
  for (int r = 0; r < ranks; r++)
    for (int i = 0; i < REQUESTS; i++) assert_int_equal(nodes[r].requests[i].peer, -1);
}

/* ---- distributions ---- */

static int ascending(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* borders[0 .. pieces]: from 0 to total, ascending, some pieces empty. */
static void cut(int64_t total, int pieces, int64_t *borders) {
  borders[0] = 0;
  borders[pieces] = total;
  for (int i = 1; i < pieces; i++) borders[i] = draw((uint32_t)total + 1);
  qsort(borders + 1, (size_t)(pieces - 1), sizeof *borders, ascending);
}

/* Neighbours together, as launchers place them, or anyhow. */
static void draw_hosts(int ranks, int *host) {
  const int hosts = 1 + (int)draw((uint32_t)ranks);
  const bool together = draw(2) != 0;
  for (int i = 0; i < ranks; i++) host[i] = together ? i * hosts / ranks : (int)draw((uint32_t)hosts);
}

#endif
