/* SPDX-License-Identifier: Apache-2.0
 *
 * Reduce-scatter: every rank adds, for the elements it owns, the pieces of all ranks in the tree's order.
 *
 * Ranks of this host are read in place once they have said that their pieces are complete. To ranks of other hosts
 * pieces are sent, chunk by chunk in order, and theirs are received into two sets of buffers: one is summed while the
 * other fills. Memory for messages does not grow with the model.
 *
 * Invariants
 *  1. Both sides walk the same order (owner's chunks ascending, pieces in order), so messages need no names.
 *  2. What goes to one rank never waits for another, and receives are posted whatever the sends do: ranks cannot wait
 *     for each other in a circle.
 *  3. A round is done only when nobody reads this rank's pieces: its sends are complete, and its neighbours have said
 *     so.
 *
 * A round is of the elements that the plan's first_element tells of when it begins: all of them, or one bucket after
 * another as the backward pass completes them.
 *
 * Pieces of one host are not added together before they are sent: a host with n ranks sends up to n pieces.
 */
#include "comm/comm.h"

#include <assert.h>
#include <stdlib.h>

enum { SETS = 2 };

/* Receiving one piece of a rank of another host. */
typedef struct incoming {
  int rank, part; /* index in `parts` */
  float *buffer[SETS];
  int request[SETS]; /* -1: not posted, or complete */
  bool there[SETS];
} incoming;

struct iso_reduce {
  iso_reduce_plan plan;
  const iso_transport *transport;
  const iso_signals *signals;
  iso_part *parts, *shifted; /* of all ranks, ascending; with data moved to the chunk at hand */
  int part_count;
  const float **bases; /* [part_count]; NULL: comes by message */
  iso_stream *out;
  int out_count;
  incoming *in;
  int in_count;
  float *buffers, *scratch;
  const float *own; /* this rank's first piece */
  int64_t room;     /* elements of each buffer */
  iso_reduce_consumer *consumer;
  void *consumer_self;
  float *chunk_sums; /* what a consumer gets */
  /* of a round */
  uint64_t round;
  float *sums;            /* NULL: a consumer gets them */
  int64_t begin, total;   /* of the own range */
  int64_t posted, summed; /* elements of it */
  int posted_in;          /* of the chunk at `posted`: incoming pieces that are posted */
  bool end_raised, active;
};

static bool same_host(const iso_reduce_plan *p, int rank) {
  return p->host[rank] == p->host[p->rank];
}

static int64_t owned(const iso_reduce_plan *p, int rank) {
  return p->first_element[rank + 1] - p->first_element[rank];
}

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* ---- making ---- */

static iso_status check_plan(const iso_reduce_plan *p, const iso_transport *transport, int64_t stride) {
  bool sound = p->ranks > 0 && p->rank >= 0 && p->rank < p->ranks && p->chunk > 0 && p->workers > 0 &&
               p->workers <= ISO_MOST_LEAVES && !(p->workers & (p->workers - 1));
  sound = sound && p->first_leaf[0] == 0 && p->first_leaf[p->ranks] == p->workers && p->first_element[0] >= 0 &&
          p->first_element[p->ranks] <= stride;
  for (int r = 0; sound && r < p->ranks; r++)
    sound = p->first_leaf[r] <= p->first_leaf[r + 1] && owned(p, r) >= 0 && (transport || same_host(p, r));
  if (sound) return ISO_OK;
  return iso_fail(ISO_ERR_INTERNAL, "reduction: the plan of rank %d of %d over %d workers contradicts itself", p->rank,
                  p->ranks, p->workers);
}

static int parts_of(const iso_reduce_plan *p, int rank, iso_part parts[ISO_MOST_PARTS]) {
  return iso_tree_parts(p->first_leaf[rank], p->first_leaf[rank + 1] - p->first_leaf[rank], parts);
}

static void list_parts(iso_reduce *r, const float *const *pieces, int64_t stride) {
  const iso_reduce_plan *p = &r->plan;
  iso_part cut[ISO_MOST_PARTS];
  const int own_count = parts_of(p, p->rank, cut);
  for (int rank = 0; rank < p->ranks; rank++) {
    const bool here = same_host(p, rank);
    const int count = parts_of(p, rank, cut);
    for (int i = 0; i < count; i++) {
      r->bases[r->part_count] = here ? pieces[rank] + i * stride : NULL;
      if (!here) r->in[r->in_count++] = (incoming){.rank = rank, .part = r->part_count};
      r->parts[r->part_count++] = cut[i];
    }
    if (here || !own_count) continue;
    const int64_t element = sizeof(float);
    r->out[r->out_count++] = (iso_stream){
        .peer = rank, .sends = true, .chunk = p->chunk * element, .pieces = own_count, .stride = stride * element};
  }
}

static bool allocate(iso_reduce *r, int64_t stride) {
  const iso_reduce_plan *p = &r->plan;
  iso_part cut[ISO_MOST_PARTS];
  size_t parts = 1, away = 0;
  for (int rank = 0; rank < p->ranks; rank++) {
    const int count = parts_of(p, rank, cut);
    parts += (size_t)count;
    if (!same_host(p, rank)) away += (size_t)count;
  }
  r->parts = calloc(parts, sizeof *r->parts);
  r->shifted = calloc(parts, sizeof *r->shifted);
  r->bases = calloc(parts, sizeof *r->bases);
  r->in = calloc(away + 1, sizeof *r->in);
  r->out = calloc((size_t)p->ranks, sizeof *r->out);
  r->scratch = malloc(ISO_TREE_SCRATCH * sizeof *r->scratch);
  r->room = least(p->chunk, stride);
  r->buffers = malloc((SETS * away * (size_t)r->room + 1) * sizeof *r->buffers);
  return r->parts && r->shifted && r->bases && r->in && r->out && r->scratch && r->buffers;
}

iso_status iso_reduce_create(const iso_reduce_plan *plan, const iso_transport *transport, const iso_signals *signals,
                             const float *const *pieces, int64_t stride, iso_reduce **out) {
  *out = NULL;
  ISO_TRY(check_plan(plan, transport, stride));
  iso_reduce *r = calloc(1, sizeof *r);
  if (r) *r = (iso_reduce){.plan = *plan, .transport = transport, .signals = signals};
  if (!r || !allocate(r, stride)) {
    iso_reduce_destroy(&r);
    return iso_fail(ISO_ERR_MEMORY, "reduction: no memory for the pieces of %d ranks", plan->ranks);
  }
  list_parts(r, pieces, stride);
  r->own = pieces[plan->rank];
  for (int i = 0; i < r->in_count; i++)
    for (int set = 0; set < SETS; set++) {
      r->in[i].buffer[set] = r->buffers + ((size_t)i * SETS + (size_t)set) * (size_t)r->room;
      r->in[i].request[set] = -1;
    }
  *out = r;
  return ISO_OK;
}

void iso_reduce_destroy(iso_reduce **reduce) {
  iso_reduce *r = *reduce;
  if (!r) return;
  free(r->parts);
  free(r->shifted);
  free(r->bases);
  free(r->in);
  free(r->out);
  free(r->buffers);
  free(r->scratch);
  free(r->chunk_sums);
  free(r);
  *reduce = NULL;
}

iso_status iso_reduce_consumer_set(iso_reduce *r, iso_reduce_consumer *consumer, void *self) {
  if (!r->chunk_sums) r->chunk_sums = malloc(((size_t)r->room + 1) * sizeof *r->chunk_sums);
  if (!r->chunk_sums) return iso_fail(ISO_ERR_MEMORY, "reduction: no memory for %lld sums", (long long)r->room);
  r->consumer = consumer;
  r->consumer_self = self;
  return ISO_OK;
}

/* ---- a round ---- */

void iso_reduce_begin(iso_reduce *r, float *out) {
  const iso_reduce_plan *p = &r->plan;
  assert(out || r->consumer || !owned(p, p->rank));
  r->round++;
  r->sums = out;
  r->begin = p->first_element[p->rank];
  r->total = owned(p, p->rank);
  r->posted = r->summed = 0;
  r->posted_in = 0;
  r->end_raised = false;
  r->active = true;
  for (int i = 0; i < r->out_count; i++) {
    iso_stream *to = &r->out[i];
    to->data = (char *)(uintptr_t)(r->own + p->first_element[to->peer]);
    to->bytes = owned(p, to->peer) * (int64_t)sizeof(float);
    iso_stream_begin(to);
  }
  r->signals->raise(r->signals->self, ISO_SIGNAL_BEGUN, r->round);
}

/* Which set of buffers the chunk at element `at` of the own range uses. */
static int set_of(const iso_reduce *r, int64_t at) {
  return (int)(at / r->plan.chunk % SETS);
}

static bool poll_sends(iso_reduce *r) {
  bool moved = false;
  for (int i = 0; i < r->out_count; i++) moved = iso_stream_poll(&r->out[i], r->transport) || moved;
  return moved;
}

static bool collect_receives(iso_reduce *r) {
  bool moved = false;
  for (int i = 0; i < r->in_count; i++)
    for (int set = 0; set < SETS; set++) {
      incoming *in = &r->in[i];
      if (in->request[set] < 0 || !r->transport->complete(r->transport->self, in->request[set])) continue;
      in->request[set] = -1;
      in->there[set] = moved = true;
    }
  return moved;
}

static bool post_receives(iso_reduce *r) {
  bool moved = false;
  while (r->posted < r->total && r->posted < r->summed + SETS * r->plan.chunk) {
    const int set = set_of(r, r->posted);
    const int64_t count = least(r->plan.chunk, r->total - r->posted);
    for (; r->posted_in < r->in_count; r->posted_in++) {
      incoming *in = &r->in[r->posted_in];
      in->request[set] =
          r->transport->receive(r->transport->self, in->rank, in->buffer[set], (size_t)count * sizeof(float));
      if (in->request[set] < 0) return moved;
      moved = true;
    }
    r->posted_in = 0;
    r->posted += count;
  }
  return moved;
}

/* The first rank of this host that has not come to this point of the round; -1: all have. */
static int missing(const iso_reduce *r, int kind) {
  for (int rank = 0; rank < r->plan.ranks; rank++)
    if (same_host(&r->plan, rank) && !r->signals->reached(r->signals->self, rank, kind, r->round)) return rank;
  return -1;
}

/* The first rank of another host whose piece of the next chunk is not here; -1: all are. */
static int missing_message(const iso_reduce *r) {
  const int set = set_of(r, r->summed);
  for (int i = 0; i < r->in_count; i++)
    if (!r->in[i].there[set]) return r->in[i].rank;
  return -1;
}

/* The pieces of the next chunk are all here: adds them. */
static void sum_next(iso_reduce *r) {
  const int64_t at = r->begin + r->summed, count = least(r->plan.chunk, r->total - r->summed);
  const int set = set_of(r, r->summed);
  for (int i = 0; i < r->part_count; i++) {
    r->shifted[i] = r->parts[i];
    if (r->bases[i]) r->shifted[i].data = r->bases[i] + at;
  }
  for (int i = 0; i < r->in_count; i++) {
    r->shifted[r->in[i].part].data = r->in[i].buffer[set];
    r->in[i].there[set] = false;
  }
  float *sums = r->sums ? r->sums + r->summed : r->chunk_sums;
  iso_tree_sum(r->shifted, r->plan.workers, count, sums, r->scratch);
  if (!r->sums) r->consumer(r->consumer_self, at, count, sums);
  r->summed += count;
}

iso_poll iso_reduce_poll(iso_reduce *r) {
  if (!r->active) return ISO_POLL_DONE;
  bool moved = poll_sends(r);
  moved = collect_receives(r) || moved;
  moved = post_receives(r) || moved;
  if (r->summed < r->total && missing(r, ISO_SIGNAL_BEGUN) < 0 && missing_message(r) < 0) {
    sum_next(r);
    post_receives(r);
    moved = true;
  }
  if (r->summed == r->total && !r->end_raised) {
    r->signals->raise(r->signals->self, ISO_SIGNAL_ENDED, r->round);
    r->end_raised = moved = true;
  }
  if (r->end_raised && iso_reduce_awaits(r) < 0) {
    r->active = false;
    return ISO_POLL_DONE;
  }
  return moved ? ISO_POLL_MOVED : ISO_POLL_IDLE;
}

int iso_reduce_awaits(const iso_reduce *r) {
  if (!r->active) return -1;
  if (r->summed < r->total) {
    const int neighbour = missing(r, ISO_SIGNAL_BEGUN);
    return neighbour >= 0 ? neighbour : missing_message(r);
  }
  const int neighbour = missing(r, ISO_SIGNAL_ENDED);
  if (neighbour >= 0) return neighbour;
  for (int i = 0; i < r->out_count; i++)
    if (!iso_stream_done(&r->out[i])) return r->out[i].peer;
  return -1;
}

static iso_poll poll_any(void *self) {
  return iso_reduce_poll(self);
}

static int awaits_any(const void *self) {
  return iso_reduce_awaits(self);
}

iso_collective iso_reduce_collective(iso_reduce *reduce) {
  return (iso_collective){reduce, "the reduction", poll_any, awaits_any};
}
