/* SPDX-License-Identifier: Apache-2.0
 *
 * A step on paper: which part of the gradient is complete when, and how long its reduction should take.
 *
 * Operations are those of docs/performance.md: 6 N + 6 L T C a token, two thirds of them backward. The gradient is
 * complete from the last layer to the first; the embedding is tied to the head, and so comes last. Within a layer each
 * matrix takes time as it has elements.
 */
#include <stdlib.h>

#include "sim.h"

static double layer_elements(const setup *s) {
  return 12.0 * s->width * s->width;
}

int64_t model_elements(const setup *s) {
  return (int64_t)(layer_elements(s) * s->layers) + (int64_t)(s->vocabulary + s->sequence) * s->width;
}

/* Of a rank: its share of the host's cores. */
static double seconds(const setup *s, double operations_of_token) {
  return operations_of_token * s->sequence / (CORE_SPEED * HOST_CORES / s->mates) / s->faster;
}

static double layer_forward(const setup *s) {
  return seconds(s, 2 * layer_elements(s) + 2.0 * s->sequence * s->width);
}

static double head_forward(const setup *s) {
  return seconds(s, 2.0 * s->vocabulary * s->width);
}

double forward_seconds(const setup *s) {
  return s->layers * layer_forward(s) + head_forward(s);
}

double backward_seconds(const setup *s) {
  return 2 * forward_seconds(s);
}

double complete_seconds(const setup *s, int64_t elements) {
  const double layers = (double)elements / layer_elements(s);
  return 2 * (head_forward(s) + (layers < s->layers ? layers : s->layers) * layer_forward(s));
}

/* Master weights and two moments read and written, the gradient read: by the ranks of a host together. */
double update_seconds(const setup *s) {
  return (double)model_elements(s) * 28 / HOST_MEMORY;
}

static double most(double a, double b) {
  return a > b ? a : b;
}

/* ---- a bucket ---- */

/* Blocks of a bucket that rank r owns: up to this one. As train/ranks_reduce.c shares them out. */
static int64_t blocks_before(const setup *s, int64_t blocks, int rank) {
  return blocks * rank / s->ranks;
}

/* What goes over the links of the busiest host, seconds: what it owns comes from all others and what others own goes to
 * them (a reduction), or the other way round (a gathering), an element once for each pair of hosts. */
static double links(const setup *s, int64_t blocks, double element_bytes) {
  const int hosts = s->ranks / s->mates;
  double busiest = 0;
  for (int h = 0; h < hosts; h++) {
    const double own = (double)(blocks_before(s, blocks, (h + 1) * s->mates) - blocks_before(s, blocks, h * s->mates));
    busiest = most(busiest, most(own * (hosts - 1), (double)blocks - own));
  }
  const int there = s->per_leaf < hosts ? s->per_leaf : hosts;
  const double uplinks = (double)there / UPLINKS * (hosts - there) / (hosts > 1 ? hosts - 1 : 1);
  return busiest * CHUNK * element_bytes / LINK * most(1, uplinks);
}

static double messages_latency(const setup *s) {
  return s->ranks == s->mates ? 2 * LOCAL_LATENCY : 2 * LOCAL_LATENCY + 4 * CABLE_LATENCY;
}

/* The thread folds what other hosts own, its share, and adds what it owns: its neighbours' pieces and a piece of each
 * other host; then it rounds that. Both take the thread. The last message is added when it is there from all; with
 * nothing to fold the first one is waited for. */
static double reduce_ours(const setup *s, int64_t blocks) {
  const int hosts = s->ranks / s->mates;
  const double own = (double)((blocks + s->ranks - 1) / s->ranks),
               away = (double)blocks * (hosts - 1) / hosts / s->mates;
  const double block = CHUNK * sizeof(float) / s->memory;
  const double fold = s->mates > 1 ? away * (s->mates + 1) * block : 0;
  const double add = (s->mates + hosts) * block + CHUNK * (double)s->gradient_bytes / s->memory;
  const double part = s->mates > 1 ? 1 : (double)PART / CHUNK, arrival = (hosts - 1) * PART * sizeof(float) / LINK;
  const double first = s->mates > 1 ? (s->mates + 1) * block : 0; /* nothing is on the link before */
  const double thread = (s->mates > 1 ? fold : arrival) + own * add;
  const double network = hosts > 1 ? first + links(s, blocks, sizeof(float)) + add * part : 0;
  return most(thread, network) + messages_latency(s);
}

static double gather_ours(const setup *s, int64_t blocks) {
  return links(s, blocks, (double)s->gradient_bytes) + messages_latency(s);
}

/* The most steps of the ring that leave one host. */
static int leaving(const setup *s) {
  int *order = malloc((size_t)s->ranks * sizeof *order), *out = calloc((size_t)s->ranks, sizeof *out), found = 0;
  if (s->ranks > s->mates) {
    ring_order(s, order);
    for (int i = 0; i < s->ranks; i++) {
      const int host = order[i] / s->mates;
      if (host != order[(i + 1) % s->ranks] / s->mates && ++out[host] > found) found = out[host];
    }
  }
  free(order);
  free(out);
  return found;
}

/* Around the ring: a turn takes a segment's messages at the slower of link and memory, and at least as long as one
 * takes through both. Steps that leave a host share its link. */
static double ring_pass(const setup *s, int64_t elements, double element_bytes, double add) {
  const double segment = (double)elements / s->ranks, message = segment < CHUNK ? segment : CHUNK;
  const double wire = element_bytes / LINK * leaving(s), latency = 4 * CABLE_LATENCY;
  return (s->ranks - 1) * most(segment * most(wire, add), message * (wire + add) + latency);
}

static double bucket_seconds(const setup *s, int64_t elements) {
  const int64_t blocks = (elements + CHUNK - 1) / CHUNK;
  if (s->algorithm != OURS)
    return ring_pass(s, elements, sizeof(float), 3 * sizeof(float) / s->memory) +
           ring_pass(s, elements, (double)s->gradient_bytes, 0);
  const double squares = s->ranks == s->mates ? 0 : messages_latency(s);
  return reduce_ours(s, blocks) + gather_ours(s, blocks) + squares;
}

double predict(const setup *s) {
  const int64_t elements = model_elements(s);
  double at = 0;
  for (int64_t begin = 0; begin < elements; begin += s->bucket) {
    const int64_t end = begin + s->bucket < elements ? begin + s->bucket : elements;
    const double ready = s->only_reduce ? 0 : forward_seconds(s) + complete_seconds(s, end);
    at = most(at, ready) + bucket_seconds(s, end - begin);
  }
  return s->only_reduce ? at : most(at, forward_seconds(s) + backward_seconds(s)) + update_seconds(s);
}
