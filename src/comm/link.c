/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast two CPUs of this host pass on what they write.
 *
 * Two threads, each pinned to its CPU, play ping-pong: each has a line of memory of its own in which it counts, and
 * waits until it sees the other's count (as ranks raise signals). Half of a round trip is the latency. For bandwidth
 * the first writes a block, small enough for its caches, and raises its count; the second copies it out and is timed.
 *
 * Invariants
 *  1. Both threads end: a wait that comes to the deadline says so to the other, and all waits end then.
 *  2. The caller's own thread is not moved to another CPU.
 *
 * A sample that the scheduler interrupts is an outlier; medians and quartiles do not see a few of them.
 */
#include "comm/comm.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SAMPLES = 31, TRIPS = 200, BLOCK = 256 << 10, LINE = 128 /* two lines: CPUs fetch pairs */ };

typedef struct counter {
  _Alignas(LINE) _Atomic uint32_t at;
} counter;

/* What both see; mapped shared, as between processes. */
typedef struct table {
  counter sides[2];
  _Alignas(LINE) atomic_bool late;
  _Alignas(4096) char block[BLOCK];
} table;

typedef struct player {
  table *table;
  int side, cpu;
  double until_s;
  int error; /* errno of pinning; 0 */
  char *copy;
  double latency_ns[SAMPLES], gb_per_s[SAMPLES]; /* the second has both */
} player;

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/* Until the other side has counted to `count`; false: too late. */
static bool await(player *p, uint32_t count) {
  _Atomic uint32_t *other = &p->table->sides[!p->side].at;
  for (uint32_t spins = 1; atomic_load_explicit(other, memory_order_acquire) < count; spins++) {
    relax();
    if (spins % 1024) continue;
    if (atomic_load(&p->table->late)) return false;
    if (iso_clock_s() < p->until_s) continue;
    atomic_store(&p->table->late, true);
    return false;
  }
  return true;
}

static void raise_to(player *p, uint32_t count) {
  atomic_store_explicit(&p->table->sides[p->side].at, count, memory_order_release);
}

/* The first begins each trip, the second answers; counts go on from *count. */
static bool play(player *p, uint32_t *count) {
  if (iso_clock_s() >= p->until_s) return false;
  for (int i = 0; i < TRIPS; i++) {
    ++*count;
    if (p->side == 0) raise_to(p, *count);
    if (!await(p, *count)) return false;
    if (p->side == 1) raise_to(p, *count);
  }
  return true;
}

static bool sample(player *p, int index, uint32_t *count) {
  const double began = iso_clock_s();
  if (!play(p, count)) return false;
  p->latency_ns[index] = (iso_clock_s() - began) * 1e9 / (2 * TRIPS);
  ++*count;
  if (p->side == 0) {
    memset(p->table->block, index, BLOCK);
    raise_to(p, *count);
    return await(p, *count); /* until it is copied */
  }
  if (!await(p, *count)) return false;
  const double copying = iso_clock_s();
  memcpy(p->copy, p->table->block, BLOCK);
  p->gb_per_s[index] = BLOCK / (iso_clock_s() - copying) * 1e-9;
  raise_to(p, *count);
  return true;
}

static int pin(int cpu) {
  const size_t bytes = CPU_ALLOC_SIZE(ISO_MOST_CPUS);
  cpu_set_t *set = CPU_ALLOC(ISO_MOST_CPUS);
  if (!set) return ENOMEM;
  CPU_ZERO_S(bytes, set);
  CPU_SET_S((size_t)cpu, bytes, set);
  const int error = sched_setaffinity(0, bytes, set) == 0 ? 0 : errno;
  CPU_FREE(set);
  return error;
}

static void *run(void *argument) {
  player *p = argument;
  uint32_t count = 0;
  p->error = pin(p->cpu);
  if (p->error) {
    atomic_store(&p->table->late, true);
    return NULL;
  }
  bool going = play(p, &count); /* both have come, and are warm */
  for (int i = 0; going && i < SAMPLES; i++) going = sample(p, i, &count);
  if (!going) atomic_store(&p->table->late, true);
  return NULL;
}

static int by_value(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static iso_spread spread_of(double *values) {
  qsort(values, SAMPLES, sizeof *values, by_value);
  return (iso_spread){values[SAMPLES / 2], values[SAMPLES / 4], values[SAMPLES - 1 - SAMPLES / 4]};
}

static iso_status fail(int a, int b, int error) {
  return iso_fail(ISO_ERR_IO, "topology: cannot run a thread on CPU %d and one on CPU %d: %s", a, b, strerror(error));
}

static iso_status measure(player players[2], iso_link *out, bool *measured) {
  pthread_t threads[2];
  int started = 0, error = 0;
  for (; started < 2 && !error; started += !error) error = iso_thread_start(&threads[started], run, &players[started]);
  if (error) atomic_store(&players[0].table->late, true);
  for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < 2; i++)
    if (!error) error = players[i].error;
  if (error) return fail(players[0].cpu, players[1].cpu, error);
  if (atomic_load(&players[0].table->late)) return ISO_OK;
  out->latency_ns = spread_of(players[1].latency_ns);
  out->gb_per_s = spread_of(players[1].gb_per_s);
  *measured = true;
  return ISO_OK;
}

iso_status iso_link_measure(int a, int b, double until_s, iso_link *out, bool *measured) {
  *measured = false;
  *out = (iso_link){.cpus = {a, b}};
  table *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return fail(a, b, errno);
  char *copy = malloc(BLOCK);
  player *players = calloc(2, sizeof *players);
  iso_status status;
  if (copy && players) {
    memset(copy, 1, BLOCK); /* its pages are there before they are timed */
    for (int i = 0; i < 2; i++)
      players[i] = (player){.table = shared, .side = i, .cpu = i ? b : a, .until_s = until_s, .copy = copy};
    status = measure(players, out, measured);
  } else {
    status = iso_fail(ISO_ERR_MEMORY, "topology: no memory for a block of %d bytes", BLOCK);
  }
  free(players);
  free(copy);
  munmap(shared, sizeof *shared);
  return status;
}
