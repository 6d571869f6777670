/* SPDX-License-Identifier: Apache-2.0
 *
 * A library to preload: CLOCK_MONOTONIC becomes the calling thread's CPU time. On a machine that others use too, a
 * program of one thread then measures itself as if it were alone, but for caches and memory bandwidth: peak, steps and
 * profile alike, so shares of the peak and ratios mean something. compare.py --cpu-time builds and uses it.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
  const clockid_t asked = clock == CLOCK_MONOTONIC ? CLOCK_THREAD_CPUTIME_ID : clock;
  return (int)syscall(SYS_clock_gettime, asked, now);
}
