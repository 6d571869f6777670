/* SPDX-License-Identifier: Apache-2.0
 *
 * thread.c: single threads beside the compute team, and waiting with an end.
 *
 * Invariants
 *  1. A thread started here takes no signals: those belong to the program's main thread.
 *  2. Times are those of iso_clock_s: setting the system's clock shortens or lengthens no wait.
 */
#include "base/base.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

int iso_thread_start(pthread_t *thread, void *(*function)(void *argument), void *argument) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(thread, NULL, function, argument);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

void iso_condition_init(pthread_cond_t *condition) {
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &monotonic);
  pthread_condattr_destroy(&monotonic);
}

bool iso_condition_wait(pthread_cond_t *condition, pthread_mutex_t *lock, double until_s) {
  struct timespec until = {.tv_sec = (time_t)until_s};
  until.tv_nsec = (long)((until_s - (double)until.tv_sec) * 1e9);
  return pthread_cond_timedwait(condition, lock, &until) != ETIMEDOUT;
}
