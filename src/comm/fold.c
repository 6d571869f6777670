/* SPDX-License-Identifier: Apache-2.0
 *
 * What other hosts get of this host in a reduction: its ranks' pieces, added together as far as the tree joins them, so
 * that an element leaves a host once however many ranks the host has.
 *
 * Which nodes of the tree a host has whole follows from the leaves of its ranks; such a node's sum is made of pieces
 * that lie in the host's shared memory, and takes the place of them. The chunks of what a rank elsewhere owns are dealt
 * to the host's ranks in turn. A node that is one rank's piece is sent where it lies.
 *
 * Invariants
 *  1. A node's sum is the tree's, so bits do not depend on who is on which host.
 *  2. Both sides deal alike: chunk number c of rank d's elements is that of the host's rank number (c + d) mod ranks.
 *  3. All ranks send in order of chunk numbers, whoever gets them, and whoever owns elements takes chunks in that
 * order. So the lowest chunk that somebody still waits for is always under way, and a bounded number of messages is
 * enough.
 *  4. Nothing of a neighbour is read before it has begun the round; a round is done when all messages are complete.
 */
#include <assert.h>
#include <stdlib.h>

#include "comm/comm.h"

enum { MESSAGES = 16 /* under way; one for each other host, if more, where they need no buffers */ };

/* A node that a host has whole. */
typedef struct whole {
  iso_part part;
  int first, count; /* in `pieces`: what it is the sum of */
} whole;

typedef struct message {
  float *sums;
  int request, peer; /* -1: free, or not posted */
} message;

struct iso_fold {
  iso_reduce_plan plan;
  const iso_transport *transport;
  const iso_hosts *hosts;
  int place, mates; /* of this rank among its host's */
  iso_part *pieces, *shifted;
  whole *wholes;
  int whole_count;
  message *messages;
  int message_count;
  float *buffers, *scratch;
  /* of a round: what is sent next */
  int64_t chunks; /* of the rank that owns most */
  int64_t chunk;  /* its number */
  int turn;       /* ranks from this one on to whom it goes */
  int whole;      /* of its nodes */
  bool given;     /* nothing is left to be sent */
  int folded;     /* message whose sums are made, which is not posted; -1: none */
  const float *data;
};

/* ---- hosts ---- */

iso_status iso_hosts_create(const iso_reduce_plan *plan, iso_hosts **out) {
  *out = NULL;
  const size_t ranks = (size_t)plan->ranks;
  iso_hosts *h = calloc(1, sizeof *h + ranks * (3 * sizeof(int)) + sizeof(int));
  if (!h) return iso_fail(ISO_ERR_MEMORY, "reduction: no memory for the hosts of %d ranks", plan->ranks);
  h->of_rank = (int *)(h + 1);
  h->first = h->of_rank + ranks;
  h->members = h->first + ranks + 1;
  int given = 0;
  for (int r = 0; r < plan->ranks; r++) h->of_rank[r] = -1;
  for (int r = 0; r < plan->ranks; r++) {
    if (h->of_rank[r] >= 0) continue;
    for (int other = r; other < plan->ranks; other++)
      if (plan->host[other] == plan->host[r]) {
        h->of_rank[other] = h->count;
        h->members[given++] = other;
      }
    h->first[++h->count] = given;
  }
  *out = h;
  return ISO_OK;
}

void iso_hosts_destroy(iso_hosts **hosts) {
  free(*hosts);
  *hosts = NULL;
}

int iso_hosts_sender(const iso_hosts *h, int host, int owner, int64_t chunk) {
  const int members = h->first[host + 1] - h->first[host];
  return h->members[h->first[host] + (int)((chunk + owner) % members)];
}

int iso_hosts_parts(const iso_hosts *h, const iso_reduce_plan *plan, int host, iso_part *parts) {
  int made = 0, begin = 0, end = 0; /* of leaves of neighbouring ranks */
  for (int i = h->first[host]; i <= h->first[host + 1]; i++) {
    const int rank = i < h->first[host + 1] ? h->members[i] : -1;
    if (rank >= 0 && plan->first_leaf[rank] == plan->first_leaf[rank + 1]) continue;
    if (rank >= 0 && plan->first_leaf[rank] == end && end > begin) {
      end = plan->first_leaf[rank + 1];
      continue;
    }
    iso_part cut[ISO_MOST_PARTS];
    const int count = iso_tree_parts(begin, end - begin, cut);
    for (int j = 0; parts && j < count; j++) parts[made + j] = cut[j];
    made += count;
    if (rank < 0) break;
    begin = plan->first_leaf[rank];
    end = plan->first_leaf[rank + 1];
  }
  return made;
}

/* ---- making ---- */

static int list_pieces(iso_fold *f, const float *const *pieces, int64_t stride) {
  const iso_reduce_plan *p = &f->plan;
  const int own = f->hosts->of_rank[p->rank];
  int count = 0;
  for (int i = f->hosts->first[own]; i < f->hosts->first[own + 1]; i++) {
    const int rank = f->hosts->members[i];
    iso_part cut[ISO_MOST_PARTS];
    const int made = iso_tree_parts(p->first_leaf[rank], p->first_leaf[rank + 1] - p->first_leaf[rank], cut);
    for (int j = 0; j < made; j++) {
      if (f->pieces) {
        f->pieces[count] = cut[j];
        f->pieces[count].data = pieces[rank] + j * stride;
      }
      count++;
    }
  }
  return count;
}

/* Both lists ascend, and a piece lies within one node. */
static void list_wholes(iso_fold *f, iso_part *parts, int pieces) {
  int at = 0;
  for (int i = 0; i < f->whole_count; i++) {
    whole *w = &f->wholes[i];
    *w = (whole){.part = parts[i], .first = at};
    while (at < pieces && f->pieces[at].first < parts[i].first + parts[i].count) at++;
    w->count = at - w->first;
  }
  assert(at == pieces);
}

static iso_status allocate(iso_fold *f, const float *const *pieces, int64_t stride) {
  const int own = f->hosts->of_rank[f->plan.rank], count = list_pieces(f, pieces, stride);
  const int64_t room = f->plan.chunk < stride ? f->plan.chunk : stride;
  f->whole_count = iso_hosts_parts(f->hosts, &f->plan, own, NULL);
  iso_part *parts = calloc((size_t)f->whole_count + 1, sizeof *parts);
  f->pieces = calloc((size_t)count + 1, sizeof *f->pieces);
  f->shifted = calloc((size_t)count + 1, sizeof *f->shifted);
  f->wholes = calloc((size_t)f->whole_count + 1, sizeof *f->wholes);
  bool there = parts && f->pieces && f->shifted && f->wholes;
  if (there) {
    (void)list_pieces(f, pieces, stride);
    (void)iso_hosts_parts(f->hosts, &f->plan, own, parts);
    list_wholes(f, parts, count);
  }
  if (there && count > f->whole_count) { /* else nothing is added */
    f->buffers = malloc((size_t)MESSAGES * (size_t)room * sizeof *f->buffers + 1);
    f->scratch = malloc(ISO_TREE_SCRATCH * sizeof *f->scratch);
    there = f->buffers && f->scratch;
  }
  f->message_count = f->buffers || f->hosts->count < MESSAGES ? MESSAGES : f->hosts->count;
  f->messages = calloc((size_t)f->message_count, sizeof *f->messages);
  there = there && f->messages;
  for (int i = 0; there && i < f->message_count; i++)
    f->messages[i] = (message){f->buffers ? f->buffers + i * room : NULL, -1, -1};
  free(parts);
  if (there) return ISO_OK;
  return iso_fail(ISO_ERR_MEMORY, "reduction: no memory for the messages of rank %d", f->plan.rank);
}

iso_status iso_fold_create(const iso_reduce_plan *plan, const iso_hosts *hosts, const iso_transport *transport,
                           const float *const *pieces, int64_t stride, iso_fold **out) {
  *out = NULL;
  iso_fold *f = calloc(1, sizeof *f);
  if (!f) return iso_fail(ISO_ERR_MEMORY, "reduction: no memory for %zu bytes", sizeof *f);
  *f = (iso_fold){.plan = *plan, .transport = transport, .hosts = hosts, .given = true, .folded = -1};
  const int own = hosts->of_rank[plan->rank];
  f->mates = hosts->first[own + 1] - hosts->first[own];
  while (hosts->members[hosts->first[own] + f->place] != plan->rank) f->place++;
  const iso_status status = allocate(f, pieces, stride);
  if (status == ISO_OK)
    *out = f;
  else
    iso_fold_destroy(&f);
  return status;
}

void iso_fold_destroy(iso_fold **fold) {
  iso_fold *f = *fold;
  if (!f) return;
  free(f->pieces);
  free(f->shifted);
  free(f->wholes);
  free(f->buffers);
  free(f->messages);
  free(f->scratch);
  free(f);
  *fold = NULL;
}

/* ---- a round ---- */

static int64_t owned(const iso_fold *f, int rank) {
  return f->plan.first_element[rank + 1] - f->plan.first_element[rank];
}

static int receiver(const iso_fold *f) {
  return (f->plan.rank + f->turn) % f->plan.ranks;
}

/* Whether what is sent next is there to be sent by this rank. */
static bool is_own(const iso_fold *f) {
  const int peer = receiver(f);
  return f->hosts->of_rank[peer] != f->hosts->of_rank[f->plan.rank] && f->chunk * f->plan.chunk < owned(f, peer) &&
         (f->chunk + peer) % f->mates == f->place;
}

/* On to the next chunk that this rank sends. The same chunk of all owners comes before the next one of any; hosts begin
 * with another owner each, so that not all send to one. */
static void find_next(iso_fold *f) {
  for (; f->chunk < f->chunks; f->chunk++, f->turn = 1)
    for (; f->turn < f->plan.ranks; f->turn++)
      if (is_own(f)) return;
  f->given = true;
}

void iso_fold_begin(iso_fold *f) {
  int64_t most = 0;
  for (int r = 0; r < f->plan.ranks; r++)
    if (owned(f, r) > most) most = owned(f, r);
  f->chunks = (most + f->plan.chunk - 1) / f->plan.chunk;
  f->chunk = 0;
  f->turn = 1;
  f->whole = 0;
  f->folded = -1;
  f->given = !f->whole_count;
  if (!f->given) find_next(f);
}

static bool collect(iso_fold *f) {
  bool moved = false;
  for (int i = 0; i < f->message_count; i++) {
    message *m = &f->messages[i];
    if (m->request < 0 || !f->transport->complete(f->transport->self, m->request)) continue;
    m->request = m->peer = -1;
    moved = true;
  }
  return moved;
}

static int free_message(const iso_fold *f) {
  for (int i = 0; i < f->message_count; i++)
    if (f->messages[i].peer < 0) return i;
  return -1;
}

static int64_t next_count(const iso_fold *f) {
  const int64_t rest = owned(f, receiver(f)) - f->chunk * f->plan.chunk;
  return rest < f->plan.chunk ? rest : f->plan.chunk;
}

/* The sums of what is sent next; where they lie. */
static const float *fold_next(iso_fold *f, float *sums) {
  const whole *w = &f->wholes[f->whole];
  const int64_t at = f->plan.first_element[receiver(f)] + f->chunk * f->plan.chunk;
  if (w->count == 1) return f->pieces[w->first].data + at;
  for (int i = 0; i < w->count; i++) {
    f->shifted[i] = f->pieces[w->first + i];
    f->shifted[i].first -= w->part.first;
    f->shifted[i].data += at;
  }
  iso_tree_sum(f->shifted, w->part.count, next_count(f), sums, f->scratch);
  return sums;
}

static bool post_folded(iso_fold *f) {
  message *m = &f->messages[f->folded];
  m->request = f->transport->send(f->transport->self, m->peer, f->data, (size_t)next_count(f) * sizeof(float));
  if (m->request < 0) return false;
  f->folded = -1;
  if (++f->whole == f->whole_count) {
    f->whole = 0;
    f->turn++;
    find_next(f);
  }
  return true;
}

bool iso_fold_poll(iso_fold *f) {
  bool moved = collect(f);
  if (f->given) return moved;
  if (f->folded < 0) {
    const int next = free_message(f);
    if (next < 0) return moved;
    f->data = fold_next(f, f->messages[next].sums);
    f->messages[next].peer = receiver(f);
    f->folded = next;
    moved = true;
  }
  return post_folded(f) || moved;
}

int iso_fold_awaits(const iso_fold *f) {
  for (int i = 0; i < f->message_count; i++)
    if (f->messages[i].peer >= 0) return f->messages[i].peer;
  return f->given ? -1 : receiver(f);
}
