/* SPDX-License-Identifier: Apache-2.0
 *
 * Reduce-scatter: every rank adds, for the elements it owns, the pieces of all ranks in the tree's order.
 *
 * Ranks of this host are read in place once they have said that their pieces are complete. To other hosts goes what
 * this host's pieces add up to (fold.c), chunk by chunk in order; theirs is received into two sets of buffers: one is
 * summed while the other fills. Memory for messages does not grow with the model.
 *
 * Invariants
 *  1. Both sides walk the same order (owner's chunks ascending, pieces in order), so messages need no names.
 *  2. Receives are posted whatever the sends do: ranks cannot wait for each other in a circle.
 *  3. A round is done only when nobody reads this rank's pieces: its sends are complete, and its neighbours have said
 *     that theirs are.
 *
 * A round is of the elements that the plan's first_element tells of when it begins: all of them, or one bucket after
 * another as the backward pass completes them.
 */
#include "comm/comm.h"

#include <assert.h>
#include <stdlib.h>

enum { SETS = 2 };

/* Receiving one piece of another host. */
typedef struct incoming {
  int host, part; /* number in `hosts`, index in `parts` */
  float *buffer[SETS];
  int request[SETS]; /* -1: not posted, or complete */
  bool there[SETS];
} incoming;

struct iso_reduce {
  iso_reduce_plan plan;
  const iso_transport *transport;
  const iso_signals *signals;
  iso_hosts *hosts;
  iso_fold *fold;            /* NULL: all ranks are of one host */
  iso_part *parts, *shifted; /* of this host's ranks and the other hosts, ascending; with data moved to the chunk */
  int part_count;
  const float **bases; /* [part_count]; NULL: comes by message */
  incoming *in;
  int in_count;
  float *buffers, *scratch;
  int64_t room; /* elements of each buffer */
  iso_reduce_consumer *consumer;
  void *consumer_self;
  float *grain_sums; /* what a consumer gets */
  int64_t grain;     /* elements of it */
  /* of a round */
  uint64_t round;
  float *sums;            /* NULL: a consumer gets them */
  int64_t begin, total;   /* of the own range */
  int64_t posted, summed; /* elements of it */
  int posted_in;          /* of the chunk at `posted`: incoming pieces that are posted */
  bool all_begun, end_raised, active;
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

/* One part of the list; those of this host lie at `data`. */
static void add_part(iso_reduce *r, iso_part part, int host, const float *data) {
  if (!data) r->in[r->in_count++] = (incoming){.host = host, .part = r->part_count};
  r->bases[r->part_count] = data;
  r->parts[r->part_count++] = part;
}

static int by_first_leaf(const void *a, const void *b) {
  return ((const iso_part *)a)->first - ((const iso_part *)b)->first;
}

/* In ascending order, though ranks of one host need not be neighbours: host and data go by where a part's leaves are.
 */
static void list_parts(iso_reduce *r, iso_part *all, int count, const float *const *pieces, int64_t stride) {
  const iso_reduce_plan *p = &r->plan;
  qsort(all, (size_t)count, sizeof *all, by_first_leaf);
  for (int i = 0, rank = 0, number = 0; i < count; i++, number++) {
    while (p->first_leaf[rank + 1] <= all[i].first) {
      rank++;
      number = 0;
    }
    add_part(r, all[i], r->hosts->of_rank[rank], same_host(p, rank) ? pieces[rank] + number * stride : NULL);
  }
}

/* What this rank adds: each rank's pieces of its host, and the other hosts'. Returns how many; `parts` may be NULL. */
static int gather_parts(const iso_reduce *r, iso_part *parts, int *away) {
  const iso_reduce_plan *p = &r->plan;
  iso_part cut[ISO_MOST_PARTS];
  int count = 0;
  *away = 0;
  for (int host = 0; host < r->hosts->count; host++) {
    if (host == r->hosts->of_rank[p->rank]) continue;
    *away += iso_hosts_parts(r->hosts, p, host, parts ? parts + *away : NULL);
  }
  count = *away;
  for (int rank = 0; rank < p->ranks; rank++) {
    if (!same_host(p, rank)) continue;
    const int made = parts_of(p, rank, cut);
    for (int i = 0; parts && i < made; i++) parts[count + i] = cut[i];
    count += made;
  }
  return count;
}

static bool allocate(iso_reduce *r, const float *const *pieces, int64_t stride) {
  int away;
  const int count = gather_parts(r, NULL, &away);
  iso_part *all = calloc((size_t)count + 1, sizeof *all);
  r->parts = calloc((size_t)count + 1, sizeof *r->parts);
  r->shifted = calloc((size_t)count + 1, sizeof *r->shifted);
  r->bases = calloc((size_t)count + 1, sizeof *r->bases);
  r->in = calloc((size_t)away + 1, sizeof *r->in);
  r->scratch = malloc(ISO_TREE_SCRATCH * sizeof *r->scratch);
  r->room = least(r->plan.chunk, stride);
  r->buffers = malloc((SETS * (size_t)away * (size_t)r->room + 1) * sizeof *r->buffers);
  const bool there = all && r->parts && r->shifted && r->bases && r->in && r->scratch && r->buffers;
  if (there) {
    (void)gather_parts(r, all, &away);
    list_parts(r, all, count, pieces, stride);
  }
  free(all);
  return there;
}

iso_status iso_reduce_create(const iso_reduce_plan *plan, const iso_transport *transport, const iso_signals *signals,
                             const float *const *pieces, int64_t stride, iso_reduce **out) {
  *out = NULL;
  ISO_TRY(check_plan(plan, transport, stride));
  iso_reduce *r = calloc(1, sizeof *r);
  if (!r) return iso_fail(ISO_ERR_MEMORY, "reduction: no memory for %zu bytes", sizeof *r);
  *r = (iso_reduce){.plan = *plan, .transport = transport, .signals = signals};
  iso_status status = iso_hosts_create(plan, &r->hosts);
  if (status == ISO_OK && !allocate(r, pieces, stride))
    status = iso_fail(ISO_ERR_MEMORY, "reduction: no memory for the pieces of %d ranks", plan->ranks);
  if (status == ISO_OK && r->hosts->count > 1)
    status = iso_fold_create(plan, r->hosts, transport, pieces, stride, &r->fold);
  if (status != ISO_OK) {
    iso_reduce_destroy(&r);
    return status;
  }
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
  iso_fold_destroy(&r->fold);
  iso_hosts_destroy(&r->hosts);
  free(r->parts);
  free(r->shifted);
  free(r->bases);
  free(r->in);
  free(r->buffers);
  free(r->scratch);
  free(r->grain_sums);
  free(r);
  *reduce = NULL;
}

iso_status iso_reduce_consumer_set(iso_reduce *r, int64_t grain, iso_reduce_consumer *consumer, void *self) {
  if (grain < r->plan.chunk || grain % r->plan.chunk)
    return iso_fail(ISO_ERR_INTERNAL, "reduction: a consumer of %lld sums and chunks of %lld", (long long)grain,
                    (long long)r->plan.chunk);
  float *sums = realloc(r->grain_sums, ((size_t)grain + 1) * sizeof *sums);
  if (!sums) return iso_fail(ISO_ERR_MEMORY, "reduction: no memory for %lld sums", (long long)grain);
  r->grain_sums = sums;
  r->grain = grain;
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
  r->all_begun = r->end_raised = false;
  r->active = true;
  r->signals->raise(r->signals->self, ISO_SIGNAL_BEGUN, r->round);
}

/* Which set of buffers the chunk at element `at` of the own range uses. */
static int set_of(const iso_reduce *r, int64_t at) {
  return (int)(at / r->plan.chunk % SETS);
}

/* The rank that sends piece `in` of the chunk at element `at` of the own range. */
static int sender(const iso_reduce *r, const incoming *in, int64_t at) {
  return iso_hosts_sender(r->hosts, in->host, r->plan.rank, at / r->plan.chunk);
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
      in->request[set] = r->transport->receive(r->transport->self, sender(r, in, r->posted), in->buffer[set],
                                               (size_t)count * sizeof(float));
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
    if (!r->in[i].there[set]) return sender(r, &r->in[i], r->summed);
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
  const int64_t kept = r->sums ? 0 : r->summed % r->grain; /* sums that the consumer has not got */
  iso_tree_sum(r->shifted, r->plan.workers, count, r->sums ? r->sums + r->summed : r->grain_sums + kept, r->scratch);
  r->summed += count;
  if (!r->sums && (kept + count == r->grain || r->summed == r->total))
    r->consumer(r->consumer_self, at - kept, kept + count, r->grain_sums);
}

/* Sends, or else adds: by a chunk. */
static bool go_on(iso_reduce *r) {
  if (!r->all_begun) {
    if (missing(r, ISO_SIGNAL_BEGUN) >= 0) return false;
    r->all_begun = true;
    if (r->fold) iso_fold_begin(r->fold);
  }
  if (r->fold && iso_fold_poll(r->fold)) return true;
  if (r->summed == r->total || missing_message(r) >= 0) return false;
  sum_next(r);
  post_receives(r);
  return true;
}

iso_poll iso_reduce_poll(iso_reduce *r) {
  if (!r->active) return ISO_POLL_DONE;
  bool moved = collect_receives(r);
  moved = post_receives(r) || moved;
  moved = go_on(r) || moved;
  if (r->all_begun && r->summed == r->total && !r->end_raised && (!r->fold || iso_fold_awaits(r->fold) < 0)) {
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
  if (!r->all_begun) return missing(r, ISO_SIGNAL_BEGUN);
  const int message = r->summed < r->total ? missing_message(r) : -1;
  if (message >= 0) return message;
  const int peer = r->fold && !r->end_raised ? iso_fold_awaits(r->fold) : -1;
  return peer >= 0 ? peer : missing(r, ISO_SIGNAL_ENDED);
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
