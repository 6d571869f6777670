/* SPDX-License-Identifier: Apache-2.0
 *
 * All-gather: every host gets the elements of all ranks, in one copy that its ranks share.
 *
 * A rank puts what it owns where it belongs in its host's copy; its neighbours need no more than a signal. What a rank
 * of another host owns comes once to a host, shared out: each rank of the host receives an equal range of it, straight
 * into its place.
 *
 * Invariants
 *  1. Nothing is written to the host's copy before all ranks of the host have begun: until then one of them may read
 *     what was there before.
 *  2. Each pair of ranks of different hosts has a stream in each direction, and none waits for another: ranks cannot
 *     wait for each other in a circle.
 *  3. Sender and receiver cut a range alike: by the receiver's place among the ranks of its host.
 *  4. A round is done only when what every neighbour brings is there, and what this rank sends is sent.
 */
#include "comm/comm.h"

#include <stdlib.h>

struct iso_gather {
  iso_gather_plan plan;
  const iso_transport *transport;
  const iso_signals *signals;
  char *whole;
  iso_stream *out, *in; /* [stream_count] each, by rank of another host */
  int stream_count;
  /* of a round */
  uint64_t round;
  bool all_begun, end_raised, active;
};

static bool same_host(const iso_gather_plan *p, int a, int b) {
  return p->host[a] == p->host[b];
}

static iso_status check_plan(const iso_gather_plan *p, const iso_transport *transport) {
  bool sound = p->ranks > 0 && p->rank >= 0 && p->rank < p->ranks && p->chunk > 0 && p->element_bytes > 0 &&
               p->first_element[0] >= 0;
  for (int r = 0; sound && r < p->ranks; r++)
    sound = p->first_element[r] <= p->first_element[r + 1] && (transport || same_host(p, r, p->rank));
  if (sound) return ISO_OK;
  return iso_fail(ISO_ERR_INTERNAL, "gathering: the plan of rank %d of %d contradicts itself", p->rank, p->ranks);
}

/* The part of what `owner` owns that `receiver`, of another host, receives: elements [*begin, *end). */
static void share(const iso_gather_plan *p, int owner, int receiver, int64_t *begin, int64_t *end) {
  int place = 0, mates = 1; /* the receiver itself */
  for (int r = 0; r < p->ranks; r++) {
    if (r == receiver || !same_host(p, r, receiver)) continue;
    if (r < receiver) place++;
    mates++;
  }
  const int64_t first = p->first_element[owner], count = p->first_element[owner + 1] - first;
  const int64_t each = count / mates, rest = count % mates; /* the first `rest` ranks take one more */
  *begin = first + place * each + (place < rest ? place : rest);
  *end = *begin + each + (place < rest);
}

static void begin_stream(const iso_gather *g, iso_stream *stream) {
  const iso_gather_plan *p = &g->plan;
  int64_t begin, end;
  share(p, stream->sends ? p->rank : stream->peer, stream->sends ? stream->peer : p->rank, &begin, &end);
  stream->data = g->whole + begin * p->element_bytes;
  stream->bytes = (end - begin) * p->element_bytes;
  iso_stream_begin(stream);
}

iso_status iso_gather_create(const iso_gather_plan *plan, const iso_transport *transport, const iso_signals *signals,
                             void *whole, iso_gather **out) {
  *out = NULL;
  ISO_TRY(check_plan(plan, transport));
  iso_gather *g = calloc(1, sizeof *g);
  if (g) {
    *g = (iso_gather){.plan = *plan, .transport = transport, .signals = signals, .whole = whole};
    g->out = calloc((size_t)plan->ranks, sizeof *g->out);
    g->in = calloc((size_t)plan->ranks, sizeof *g->in);
  }
  if (!g || !g->out || !g->in) {
    iso_gather_destroy(&g);
    return iso_fail(ISO_ERR_MEMORY, "gathering: no memory for the streams of %d ranks", plan->ranks);
  }
  for (int rank = 0; rank < plan->ranks; rank++) {
    if (same_host(plan, rank, plan->rank)) continue;
    const int64_t chunk = plan->chunk * plan->element_bytes;
    g->out[g->stream_count] = (iso_stream){.peer = rank, .sends = true, .chunk = chunk};
    g->in[g->stream_count++] = (iso_stream){.peer = rank, .chunk = chunk};
  }
  *out = g;
  return ISO_OK;
}

void iso_gather_destroy(iso_gather **gather) {
  iso_gather *g = *gather;
  if (!g) return;
  free(g->out);
  free(g->in);
  free(g);
  *gather = NULL;
}

/* ---- a round ---- */

void iso_gather_begin(iso_gather *g) {
  g->round++;
  g->all_begun = g->end_raised = false;
  g->active = true;
  for (int i = 0; i < g->stream_count; i++) {
    begin_stream(g, &g->out[i]);
    begin_stream(g, &g->in[i]);
  }
  g->signals->raise(g->signals->self, ISO_SIGNAL_BEGUN, g->round);
}

/* The first rank of this host that has not come to this point of the round; -1: all have. */
static int missing(const iso_gather *g, int kind) {
  for (int rank = 0; rank < g->plan.ranks; rank++)
    if (same_host(&g->plan, rank, g->plan.rank) && !g->signals->reached(g->signals->self, rank, kind, g->round))
      return rank;
  return -1;
}

static bool poll_streams(iso_stream *streams, int count, const iso_transport *transport) {
  bool moved = false;
  for (int i = 0; i < count; i++) moved = iso_stream_poll(&streams[i], transport) || moved;
  return moved;
}

/* The first rank whose stream is not done; -1: all are. */
static int unfinished(const iso_stream *streams, int count) {
  for (int i = 0; i < count; i++)
    if (!iso_stream_done(&streams[i])) return streams[i].peer;
  return -1;
}

iso_poll iso_gather_poll(iso_gather *g) {
  if (!g->active) return ISO_POLL_DONE;
  bool moved = poll_streams(g->out, g->stream_count, g->transport);
  if (!g->all_begun && missing(g, ISO_SIGNAL_BEGUN) < 0) g->all_begun = moved = true;
  if (g->all_begun) moved = poll_streams(g->in, g->stream_count, g->transport) || moved;
  if (g->all_begun && !g->end_raised && unfinished(g->in, g->stream_count) < 0) {
    g->signals->raise(g->signals->self, ISO_SIGNAL_ENDED, g->round);
    g->end_raised = moved = true;
  }
  if (g->end_raised && iso_gather_awaits(g) < 0) {
    g->active = false;
    return ISO_POLL_DONE;
  }
  return moved ? ISO_POLL_MOVED : ISO_POLL_IDLE;
}

int iso_gather_awaits(const iso_gather *g) {
  if (!g->active) return -1;
  if (!g->all_begun) return missing(g, ISO_SIGNAL_BEGUN);
  if (!g->end_raised) return unfinished(g->in, g->stream_count);
  const int neighbour = missing(g, ISO_SIGNAL_ENDED);
  return neighbour >= 0 ? neighbour : unfinished(g->out, g->stream_count);
}

static iso_poll poll_any(void *self) {
  return iso_gather_poll(self);
}

static int awaits_any(const void *self) {
  return iso_gather_awaits(self);
}

iso_collective iso_gather_collective(iso_gather *gather) {
  return (iso_collective){gather, "the gathering", poll_any, awaits_any};
}
