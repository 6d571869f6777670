/* SPDX-License-Identifier: Apache-2.0
 *
 * Teams: every thread runs once, barriers order plain memory (ThreadSanitizer proves it in its build), teams larger
 * than the machine and idle teams take no processor time.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { BARRIERS = 10000, THREADS_MOST = 8 };

typedef struct work {
  iso_team *team;
  int values[THREADS_MOST * 16]; /* plain memory, a line per thread */
  int runs[THREADS_MOST];
  int wrong[THREADS_MOST];
  int barriers;
} work;

/* Each thread writes its own place, then reads its neighbour's; two barriers a round keep them apart. */
static void exchange(void *argument, int thread) {
  work *w = argument;
  int size = iso_team_size(w->team);
  w->runs[thread]++;
  for (int i = 0; i < w->barriers / 2; i++) {
    w->values[16 * thread] = i * 100 + thread;
    iso_team_barrier(w->team);
    int other = (thread + 1) % size;
    if (w->values[16 * other] != i * 100 + other) w->wrong[thread]++;
    iso_team_barrier(w->team);
  }
}

static void barriers_order_memory(void **state) {
  const int sizes[] = {1, 2, 3, 5};
  for (size_t s = 0; s < ISO_COUNT(sizes); s++) {
    work w = {.team = iso_team_create(sizes[s], s % 2 == 1), .barriers = BARRIERS};
    assert_non_null(w.team);
    assert_int_equal(iso_team_size(w.team), sizes[s]);
    double start = iso_clock_s();
    iso_team_run(w.team, exchange, &w);
    print_message("           %d threads: %.2f us a barrier\n", sizes[s], (iso_clock_s() - start) / BARRIERS * 1e6);
    for (int i = 0; i < sizes[s]; i++) {
      assert_int_equal(w.runs[i], 1);
      assert_int_equal(w.wrong[i], 0);
    }
    iso_team_destroy(&w.team);
    assert_null(w.team);
  }
}

static void many_runs(void **state) {
  const int sizes[] = {1, 2, 3, 5};
  for (size_t s = 0; s < ISO_COUNT(sizes); s++) {
    work w = {.team = iso_team_create(sizes[s], false), .barriers = 2};
    for (int run = 0; run < 500; run++) {
      iso_team_run(w.team, exchange, &w);
      for (int i = 0; i < sizes[s]; i++) assert_int_equal(w.runs[i], run + 1); /* all returned, all visible */
    }
    for (int i = 0; i < sizes[s]; i++) assert_int_equal(w.wrong[i], 0);
    iso_team_destroy(&w.team);
  }
}

static void count_run(void *argument, int thread) {
  ((int *)argument)[thread]++;
}

static void no_team_is_one_thread(void **state) {
  int runs[1] = {0};
  iso_team_barrier(NULL);
  iso_team_run(NULL, count_run, runs);
  assert_int_equal(runs[0], 1);
  assert_int_equal(iso_team_size(NULL), 1);
  iso_team *none = NULL;
  iso_team_destroy(&none);
  iso_log_quiet(true);
  assert_null(iso_team_create(0, false));
  assert_null(iso_team_create(-3, true));
  assert_null(iso_team_create(1000000, true));
  iso_log_quiet(false);
  iso_team *unused = iso_team_create(4, true); /* created and never run */
  assert_non_null(unused);
  iso_team_destroy(&unused);
}

static double processor_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void nap(void *argument, int thread) {
  if (thread == 0) nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
  iso_team_barrier(argument);
}

static void waiting_sleeps(void **state) {
  iso_team *team = iso_team_create(4, false);
  double before = processor_s();
  iso_team_run(team, nap, team);                             /* three threads wait 0.1 s at a barrier */
  nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* and 0.1 s for work */
  assert_true(processor_s() - before < 0.03);
  iso_team_destroy(&team);
}

static void read_masks(void *argument, int thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  pthread_getaffinity_np(pthread_self(), sizeof set, &set);
  ((cpu_set_t *)argument)[thread] = set;
}

static void pinning(void **state) {
  cpu_set_t before, after, masks[64];
  pthread_getaffinity_np(pthread_self(), sizeof before, &before);
  int count = iso_cpu_count() < 64 ? iso_cpu_count() : 63;
  iso_team *team = iso_team_create(count, true);
  iso_team_run(team, read_masks, masks);
  for (int i = 0; i < count; i++) {
    assert_int_equal(CPU_COUNT(&masks[i]), 1);
    for (int k = 0; k < i; k++) assert_false(CPU_EQUAL(&masks[i], &masks[k]));
  }
  iso_team_destroy(&team);
  pthread_getaffinity_np(pthread_self(), sizeof after, &after);
  assert_true(CPU_EQUAL(&before, &after));
  team = iso_team_create(iso_cpu_count() + 1, true); /* too few cores: nothing is pinned */
  pthread_getaffinity_np(pthread_self(), sizeof after, &after);
  assert_true(CPU_EQUAL(&before, &after));
  iso_team_destroy(&team);
}

static void read_signals(void *argument, int thread) {
  sigset_t set;
  pthread_sigmask(SIG_SETMASK, NULL, &set);
  ((int *)argument)[thread] =
      sigismember(&set, SIGTERM) + 2 * sigismember(&set, SIGINT) + 4 * sigismember(&set, SIGSEGV);
}

static void signals_stay_with_the_caller(void **state) {
  int blocked[3];
  iso_team *team = iso_team_create(3, false);
  iso_team_run(team, read_signals, blocked);
  assert_int_equal(blocked[0], 0);
  assert_int_equal(blocked[1], 3);
  assert_int_equal(blocked[2], 3);
  iso_team_destroy(&team);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(barriers_order_memory),
      cmocka_unit_test(many_runs),
      cmocka_unit_test(no_team_is_one_thread),
      cmocka_unit_test(waiting_sleeps),
      cmocka_unit_test(pinning),
      cmocka_unit_test(signals_stay_with_the_caller),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
