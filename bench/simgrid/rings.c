/* SPDX-License-Identifier: Apache-2.0
 *
 * Flat rings: what collectives do that know no hosts. Each rank sends to the next and hears the one before; after ranks
 * - 1 turns each has the sums of one segment, after as many again all segments.
 *
 * A segment goes in messages of a norm block, and a message is added and passed on as soon as it is there, so network
 * and memory work at once. A message to a neighbour of the host is a copy at a whole socket's bandwidth, which is more
 * than libraries reach.
 */
#include <stdlib.h>

#include "sim.h"

enum { TAG = 3 };

struct ring {
  const setup *s;
  int next, before, place;
  void *nothing;
};

void ring_order(const setup *s, int *order) {
  uint64_t seed = 20;
  for (int i = 0; i < s->ranks; i++) order[i] = i;
  for (int i = s->ranks - 1; i > 0 && s->algorithm == RING_BLIND; i--) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    const int j = (int)((seed >> 33) % (uint64_t)(i + 1)), other = order[j];
    order[j] = order[i];
    order[i] = other;
  }
}

ring *ring_create(const setup *s, int rank, const int *order) {
  ring *r = calloc(1, sizeof *r);
  r->s = s;
  while (order[r->place] != rank) r->place++;
  r->next = order[(r->place + 1) % s->ranks];
  r->before = order[(r->place + s->ranks - 1) % s->ranks];
  r->nothing = SMPI_SHARED_MALLOC(CHUNK * sizeof(double));
  return r;
}

void ring_destroy(ring *r) {
  SMPI_SHARED_FREE(r->nothing);
  free(r);
}

/* Of a segment's messages number `i`; 0: there is none. */
static int64_t piece(const ring *r, int64_t elements, int segment, int64_t i) {
  const int64_t first = elements * segment / r->s->ranks, end = elements * (segment + 1) / r->s->ranks;
  const int64_t rest = end - first - i * CHUNK;
  return rest < 0 ? 0 : rest < CHUNK ? rest : CHUNK;
}

/* A pass around: in turn t segment (place - t + shift) is sent, which came in turn t - 1, but for the first. Messages
 * leave one after another: the link is not shared among them, so the first arrives first. */
static void pass(ring *r, int64_t elements, int shift, size_t element_bytes, bool adds) {
  const int n = r->s->ranks;
  const int64_t most = (elements / n + CHUNK) / CHUNK, all = most * n;
  int64_t *counts = malloc((size_t)all * sizeof *counts); /* of messages in order: those of the first turn are here */
  MPI_Request *in = malloc((size_t)all * sizeof *in), pair[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
  int64_t count = 0, here = 0, sent = 0, last = 0; /* [0, last) are passed on */
  for (int turn = 0; turn < n; turn++) {
    if (turn == n - 1) last = count;
    for (int64_t i = 0; i < most; i++) {
      const int64_t piece_count = piece(r, elements, (r->place - turn + shift + 2 * n) % n, i);
      if (!piece_count) continue;
      const int bytes = (int)(piece_count * (int64_t)element_bytes);
      if (turn) MPI_Irecv(r->nothing, bytes, MPI_BYTE, r->before, TAG, MPI_COMM_WORLD, &in[count]);
      counts[count++] = piece_count;
      here += !turn;
    }
  }
  for (;;) {
    if (pair[1] == MPI_REQUEST_NULL && here < count) pair[1] = in[here];
    if (pair[0] == MPI_REQUEST_NULL && sent < here && sent < last) { /* looked at first */
      const int bytes = (int)(counts[sent++] * (int64_t)element_bytes);
      MPI_Isend(r->nothing, bytes, MPI_BYTE, r->next, TAG, MPI_COMM_WORLD, &pair[0]);
    }
    int which;
    MPI_Waitany(2, pair, &which, MPI_STATUS_IGNORE);
    if (which == MPI_UNDEFINED) break;
    if (!which) continue;
    if (adds) charge(r->s, 3.0 * (double)counts[here] * sizeof(float)); /* what came, what is here, their sum */
    here++;
  }
  free(counts);
  free(in);
}

void ring_run(ring *r, int64_t elements) {
  if (r->s->ranks == 1) return;
  pass(r, elements, 0, sizeof(float), true);
  pass(r, elements, 1, (size_t)r->s->gradient_bytes, false);
}
