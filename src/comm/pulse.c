/* SPDX-License-Identifier: Apache-2.0
 *
 * That a rank's process runs, and what it is at, for those that wait for it.
 *
 * Who waits in shared memory sees the signs of its neighbours there, but not that a process is stopped while it is
 * excused; and of ranks of other hosts it sees nothing. So each rank has a thread that ten times a second puts the time
 * into its own signs, sends them to the ranks of other hosts, and keeps what it hears of those.
 *
 * Invariants
 *  1. A pulse is one small message, and to each rank at most one is under way: a network that is cut fills nothing up.
 *  2. Ages travel, not times: clocks of hosts are never compared. What is late looks older than it is.
 *  3. The verdict travels with each pulse, and the first one that a host has stays.
 *  4. Whoever is not heard of stays as it was: it is the waits' to draw conclusions, after their time.
 *
 * Each rank tells each rank of other hosts: a host that has one rank left still tells and hears everything. That is
 * ranks squared of messages, small beside the gradients up to some hundreds of ranks.
 */
#include "comm/comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { LANE = 1 };
static const double PERIOD_S = 0.1, LAST_S = 2, TELL_S = 0.2;

typedef struct message {
  int64_t awaits, beat_age, work_age, alive_age; /* ns */
  uint64_t verdict;
  int32_t excused;
  int32_t last; /* nothing comes behind this one */
} message;

typedef struct peer { /* a rank of another host */
  int rank, launched; /* MPI's number */
  message in, out;
  int receiving, sending; /* requests; -1: none */
  bool ended;             /* its last one has come */
  bool told, said_last;   /* the verdict, or that this rank ends, has gone to it */
} peer;

struct iso_pulse {
  const iso_mpi *mpi;
  iso_shared *shared;
  iso_signs *signs; /* [ranks], of others */
  peer *peers;
  int count;
  double period_s;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  bool stop, tell; /* under the lock */
  bool all_told;
  int lost; /* nobody waits until this rank is told; -1: none */
};

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t age(int64_t then, int64_t now) {
  return then > now ? 0 : now - then;
}

static void hear(iso_pulse *p, peer *other) {
  const int64_t now = now_ns();
  const message *m = &other->in;
  iso_signs *signs = &p->signs[other->rank];
  signs->awaits = m->awaits;
  signs->beat = now - m->beat_age;
  signs->work = now - m->work_age;
  signs->excused = m->excused;
  signs->alive = now - m->alive_age;
  other->ended = m->last != 0;
  if (m->verdict) iso_shared_verdict_adopt(p->shared, m->verdict);
}

static void receive_all(iso_pulse *p) {
  for (int i = 0; i < p->count; i++) {
    peer *other = &p->peers[i];
    for (int most = 0; most < 8 && !other->ended; most++) {
      if (other->receiving < 0) other->receiving = p->mpi->receive(LANE, other->launched, &other->in, sizeof other->in);
      if (other->receiving < 0 || !p->mpi->complete(other->receiving)) break;
      other->receiving = -1;
      hear(p, other);
    }
  }
}

static void send_all(iso_pulse *p, bool last) {
  const iso_signs *own = iso_shared_signs(p->shared);
  const uint64_t verdict = iso_shared_verdict(p->shared);
  for (int i = 0; i < p->count; i++) {
    peer *other = &p->peers[i];
    if (other->sending >= 0) {
      if (!p->mpi->complete(other->sending)) continue;
      other->sending = -1;
      other->told = other->told || other->out.verdict;
      other->said_last = other->said_last || other->out.last;
    }
    if (other->said_last) continue;
    const int64_t now = now_ns();
    other->out = (message){.awaits = own->awaits,
                           .beat_age = age(own->beat, now),
                           .work_age = age(own->work, now),
                           .alive_age = age(own->alive, now),
                           .verdict = verdict,
                           .excused = own->excused,
                           .last = last};
    other->sending = p->mpi->send(LANE, other->launched, &other->out, sizeof other->out);
  }
}

static bool all(const iso_pulse *p, bool (*is)(const peer *other)) {
  for (int i = 0; i < p->count; i++)
    if (p->peers[i].rank != p->lost && !is(&p->peers[i])) return false;
  return true;
}

static bool is_told(const peer *other) {
  return other->told;
}

static bool is_over(const peer *other) {
  return other->ended && other->said_last;
}

static void rest(iso_pulse *p, double seconds) {
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += (long)(seconds * 1e9);
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  (void)pthread_cond_timedwait(&p->changed, &p->lock, &until);
}

static void *run(void *argument) {
  iso_pulse *p = argument;
  pthread_mutex_lock(&p->lock);
  while (!p->stop) {
    const bool tell = p->tell;
    pthread_mutex_unlock(&p->lock);
    iso_shared_signs(p->shared)->alive = now_ns();
    receive_all(p);
    send_all(p, false);
    pthread_mutex_lock(&p->lock);
    if (tell && !p->all_told && all(p, is_told)) {
      p->all_told = true;
      pthread_cond_broadcast(&p->changed);
    }
    if (!p->stop) rest(p, p->tell && !p->all_told ? 0.001 : p->period_s);
  }
  pthread_mutex_unlock(&p->lock);
  return NULL;
}

/* The verdict is on its way to all that can be reached. */
static void tell(void *self, int lost) {
  iso_pulse *p = self;
  const double end = iso_clock_s() + TELL_S;
  pthread_mutex_lock(&p->lock);
  p->tell = true;
  p->lost = lost;
  pthread_cond_broadcast(&p->changed);
  while (p->count > 0 && !p->all_told && iso_clock_s() < end) rest(p, 0.01);
  pthread_mutex_unlock(&p->lock);
}

static const char *name_of(const void *self, int rank) {
  return iso_world_host_name(self, rank);
}

static void destroy(iso_pulse *p) {
  pthread_mutex_destroy(&p->lock);
  pthread_cond_destroy(&p->changed);
  free(p->signs);
  free(p->peers);
  free(p);
}

iso_status iso_pulse_start(const iso_world *world, iso_shared *shared, double timeout_s, iso_pulse **out) {
  const int ranks = iso_world_ranks(world), me = iso_world_rank(world);
  *out = NULL;
  iso_pulse *p = calloc(1, sizeof *p);
  if (!p) return iso_fail(ISO_ERR_MEMORY, "rank %d: no memory for the signs of %d ranks", me, ranks);
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&p->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  pthread_mutex_init(&p->lock, NULL);
  p->mpi = iso_world_mpi(world);
  p->lost = -1;
  p->shared = shared;
  p->period_s = timeout_s / 8 < PERIOD_S ? timeout_s / 8 : PERIOD_S;
  p->signs = calloc((size_t)ranks, sizeof *p->signs);
  p->peers = calloc((size_t)ranks, sizeof *p->peers);
  iso_status status = ISO_OK;
  if (!p->signs || !p->peers)
    status = iso_fail(ISO_ERR_MEMORY, "rank %d: no memory for the signs of %d ranks", me, ranks);
  for (int r = 0; status == ISO_OK && r < ranks; r++) {
    if (iso_world_host(world, r) == iso_world_host(world, me)) continue;
    p->signs[r].alive = p->signs[r].work = now_ns();
    p->signs[r].excused = 1;
    p->peers[p->count++] = (peer){.rank = r, .launched = iso_world_launched(world, r), .receiving = -1, .sending = -1};
  }
  if (status == ISO_OK) {
    const int error = iso_thread_start(&p->thread, run, p);
    if (error) status = iso_fail(ISO_ERR_IO, "rank %d: cannot start a thread (error %d)", me, error);
  }
  if (status != ISO_OK) {
    destroy(p);
    return status;
  }
  const iso_away away = {p->signs, name_of, world, tell, p};
  iso_shared_look_away(shared, &away);
  *out = p;
  return ISO_OK;
}

void iso_pulse_stop(iso_pulse **pulse, bool lost) {
  iso_pulse *p = *pulse;
  if (!p) return;
  pthread_mutex_lock(&p->lock);
  p->stop = true;
  pthread_cond_broadcast(&p->changed);
  pthread_mutex_unlock(&p->lock);
  pthread_join(p->thread, NULL);
  const double end = iso_clock_s() + LAST_S;
  while (!lost && !all(p, is_over) && iso_clock_s() < end) {
    receive_all(p);
    send_all(p, true);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  iso_shared_look_away(p->shared, NULL);
  if (lost) return; /* messages that are under way are in its memory */
  destroy(p);
  *pulse = NULL;
}
