/* SPDX-License-Identifier: Apache-2.0
 *
 * threads: how data threads share the cores with the compute team.
 *
 * The team pins one thread to each core and meets at barriers, so whatever runs beside it delays all of it. Data
 * threads therefore run where a core is idle, wherever that is, and never interrupt: they may use every core that the
 * process was given, have a low priority, and a wake-up does not preempt (SCHED_BATCH).
 *
 * A refusal by the system costs speed only.
 */
#include "data/data.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NICE 10 /* above the process' own */

static cpu_set_t given;
static bool remembered;

void iso_data_threads_place(void) {
  remembered = sched_getaffinity(0, sizeof given, &given) == 0;
}

void iso_data_thread_spread(void) {
  if (remembered) (void)pthread_setaffinity_np(pthread_self(), sizeof given, &given);
}

void iso_data_thread_settle(void) {
  iso_data_thread_spread();
  const struct sched_param parameters = {0};
  (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &parameters);
  const int now = getpriority(PRIO_PROCESS, 0); /* of this thread */
  (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), now + NICE > 19 ? 19 : now + NICE);
}
