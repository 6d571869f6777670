/* SPDX-License-Identifier: Apache-2.0
 *
 * team.c: a fixed team of threads that walk one instruction list together and meet at barriers.
 *
 * Both waits, for work and at a barrier, are the same: a generation counter that somebody will raise. A waiter spins
 * on it for SPIN_S, then sleeps on it with a futex; the one who raises it wakes sleepers only when there are any, so
 * that in the usual case nobody enters the kernel.
 *
 * Invariants
 *  1. No allocation after iso_team_create.
 *  2. No lost wake-up: a waiter announces itself (sleepers + 1) before it looks at the counter for the last time, the
 *     raiser raises before it looks at the announcement, and all four are sequentially consistent.
 *  3. A team larger than the set of allowed cores does not spin: spinning would take the core from the thread that
 *     is waited for.
 *  4. The end of iso_team_run is a barrier, so what threads wrote is visible to the caller.
 *  5. Team threads take no asynchronous signals: those belong to the program's main thread.
 */
#include "base/base.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_S 30e-6
enum { CACHE_LINE = 64, PAUSES_PER_LOOK = 16 };

/* A counter that threads wait to see change. */
typedef struct gate {
  _Alignas(CACHE_LINE) _Atomic uint32_t generation; /* also the futex word */
  _Atomic uint32_t sleepers;
} gate;

typedef struct team_thread {
  iso_team *team;
  int index;
  pthread_t handle;
} team_thread;

struct iso_team {
  gate start;                                    /* raised once for each run, and to stop */
  gate barrier;                                  /* raised by the last to arrive */
  _Alignas(CACHE_LINE) _Atomic uint32_t arrived; /* threads now at the barrier */
  _Alignas(CACHE_LINE) void (*function)(void *argument, int thread);
  void *argument;
  bool stop;             /* written before `start` is raised */
  int size;              /* threads, the caller included */
  int created;           /* team threads that exist */
  double spin_s;         /* 0 when oversubscribed */
  bool pinned;           /* the caller's mask must be restored */
  cpu_set_t caller_mask; /* as found */
  team_thread *threads;  /* [size], entry 0 unused */
};

static void cpu_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void gate_wait(gate *g, uint32_t old, double spin_s) {
  if (spin_s > 0) {
    double limit = iso_clock_s() + spin_s;
    do {
      for (int i = 0; i < PAUSES_PER_LOOK; i++) {
        if (atomic_load_explicit(&g->generation, memory_order_acquire) != old) return;
        cpu_relax();
      }
    } while (iso_clock_s() < limit);
  }
  atomic_fetch_add(&g->sleepers, 1);
  while (atomic_load(&g->generation) == old)
    syscall(SYS_futex, &g->generation, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0); /* EAGAIN, EINTR: look again */
  atomic_fetch_sub(&g->sleepers, 1);
}

static void gate_raise(gate *g) {
  atomic_fetch_add(&g->generation, 1);
  if (atomic_load(&g->sleepers) > 0) syscall(SYS_futex, &g->generation, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void iso_team_barrier(iso_team *team) {
  if (!team || team->size == 1) return;
  uint32_t old = atomic_load(&team->barrier.generation); /* cannot change before this thread has arrived */
  if (atomic_fetch_add(&team->arrived, 1) + 1 == (uint32_t)team->size) {
    atomic_store(&team->arrived, 0);
    gate_raise(&team->barrier);
  } else {
    gate_wait(&team->barrier, old, team->spin_s);
  }
}

static void *team_thread_main(void *argument) {
  team_thread *self = argument;
  iso_team *team = self->team;
  for (uint32_t seen = 0;; seen++) {
    gate_wait(&team->start, seen, team->spin_s);
    if (team->stop) return NULL;
    team->function(team->argument, self->index);
    iso_team_barrier(team);
  }
}

void iso_team_run(iso_team *team, void (*function)(void *argument, int thread), void *argument) {
  if (!team || team->size == 1) {
    function(argument, 0);
    return;
  }
  team->function = function;
  team->argument = argument;
  gate_raise(&team->start);
  function(argument, 0);
  iso_team_barrier(team);
}

int iso_team_size(const iso_team *team) {
  return team ? team->size : 1;
}

/* ---- creation ---- */

static void pin_thread(pthread_t thread, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  (void)pthread_setaffinity_np(thread, sizeof set, &set); /* an optimisation: a refusal costs only speed */
}

/* Pins all threads when there is a core for each; the caller's mask is kept for iso_team_destroy. */
static void team_pin(iso_team *team, const int *cpus, int count) {
  if (count < team->size) return;
  if (pthread_getaffinity_np(pthread_self(), sizeof team->caller_mask, &team->caller_mask) != 0) return;
  team->pinned = true;
  pin_thread(pthread_self(), cpus[0]);
  for (int i = 1; i < team->size; i++) pin_thread(team->threads[i].handle, cpus[i]);
}

/* Starts threads 1.., with asynchronous signals blocked. Returns 0 or the error of pthread_create. */
static int team_start(iso_team *team) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  const int synchronous[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS, SIGPROF};
  for (size_t i = 0; i < ISO_COUNT(synchronous); i++) sigdelset(&blocked, synchronous[i]);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  int error = 0;
  for (int i = 1; i < team->size && error == 0; i++) {
    team->threads[i] = (team_thread){.team = team, .index = i};
    error = pthread_create(&team->threads[i].handle, NULL, team_thread_main, &team->threads[i]);
    if (error == 0) team->created++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

iso_team *iso_team_create(int threads, bool pin) {
  if (threads < 1 || threads > 4096) {
    iso_fail(ISO_ERR_USAGE, "cannot create a team of %d threads: 1 to 4096 are possible", threads);
    return NULL;
  }
  iso_team *team = aligned_alloc(CACHE_LINE, (sizeof *team + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
  int *cpus = calloc((size_t)threads, sizeof *cpus);
  if (team) {
    memset(team, 0, sizeof *team);
    team->size = threads;
    team->threads = calloc((size_t)threads, sizeof *team->threads);
  }
  if (!team || !cpus || !team->threads) {
    iso_fail(ISO_ERR_MEMORY, "cannot create a team of %d threads: out of memory", threads);
    goto fail;
  }
  int count = iso_cpu_order(cpus, threads);
  team->spin_s = count >= threads ? SPIN_S : 0;
  int error = team_start(team);
  if (error != 0) {
    iso_fail(error == EAGAIN ? ISO_ERR_MEMORY : ISO_ERR_IO,
             "cannot start thread %d of %d: %s; use fewer threads or raise the limit on processes", team->created + 1,
             threads, strerror(error));
    goto fail;
  }
  if (pin) team_pin(team, cpus, count);
  free(cpus);
  return team;
fail:
  free(cpus);
  iso_team_destroy(&team);
  return NULL;
}

void iso_team_destroy(iso_team **team_address) {
  iso_team *team = team_address ? *team_address : NULL;
  if (!team) return;
  team->stop = true;
  gate_raise(&team->start);
  for (int i = 1; i <= team->created; i++) pthread_join(team->threads[i].handle, NULL);
  if (team->pinned) (void)pthread_setaffinity_np(pthread_self(), sizeof team->caller_mask, &team->caller_mask);
  free(team->threads);
  free(team);
  *team_address = NULL;
}
