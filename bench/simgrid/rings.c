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
  MPI_Request *sends;
};

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

/* A pass around: segment (place - turn - shift) is sent in a turn. Receives of a turn are posted before it is needed.
 */
static void pass(ring *r, int64_t elements, int shift, size_t element_bytes, bool adds) {
  const int n = r->s->ranks;
  const int64_t most = (elements / n + CHUNK) / CHUNK;
  MPI_Request *in = malloc((size_t)(most * (n - 1)) * sizeof *in),
              *out = malloc((size_t)(most * (n - 1)) * sizeof *out);
  int64_t coming = 0, going = 0;
  for (int turn = 0; turn < n - 1; turn++) /* all at once: SMPI has no buffers that run short */
    for (int64_t i = 0; i < most; i++) {
      const int64_t count = piece(r, elements, (r->place - turn - 1 + shift + 2 * n) % n, i);
      if (count)
        MPI_Irecv(r->nothing, (int)(count * (int64_t)element_bytes), MPI_BYTE, r->before, TAG, MPI_COMM_WORLD,
                  &in[coming++]);
    }
  int64_t heard = 0;
  for (int turn = 0; turn < n; turn++)
    for (int64_t i = 0; i < most; i++) {
      const int64_t count = piece(r, elements, (r->place - turn + shift + 2 * n) % n, i);
      if (!count) continue;
      if (turn) MPI_Wait(&in[heard++], MPI_STATUS_IGNORE);
      if (turn && adds) charge(3.0 * (double)count * sizeof(float)); /* what came, what is here, their sum */
      if (turn < n - 1)
        MPI_Isend(r->nothing, (int)(count * (int64_t)element_bytes), MPI_BYTE, r->next, TAG, MPI_COMM_WORLD,
                  &out[going++]);
    }
  MPI_Waitall((int)going, out, MPI_STATUSES_IGNORE);
  free(in);
  free(out);
}

void ring_run(ring *r, int64_t elements) {
  if (r->s->ranks == 1) return;
  pass(r, elements, 0, sizeof(float), true);
  pass(r, elements, 1, (size_t)r->s->gradient_bytes, false);
}
