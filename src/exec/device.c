/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU as a device: an ISA tier's kernel table and one team of threads for the life of the process' work. Each
 * thread keeps its /proc/thread-self/schedstat open, whose second number is the time that it waited for a processor
 * (Linux, Documentation/scheduler/sched-stats.rst).
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "exec/exec.h"

struct iso_device {
  const iso_kernels *kernels;
  iso_team *team;
  int threads;
  int schedstat[ISO_WATCHED_THREADS]; /* -1: cannot be read */
};

static void open_schedstat(void *argument, int thread) {
  iso_device *device = argument;
  if (thread < ISO_WATCHED_THREADS)
    device->schedstat[thread] = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
}

iso_status iso_device_create(int threads, iso_device **out) {
  *out = NULL;
  iso_tier tier;
  ISO_TRY(iso_cpu_tier(&tier));
  if (threads < 0 || threads > 1024)
    return iso_fail(ISO_ERR_CONFIG, "threads: %d is outside 0 to 1024; 0 means the cores this process may use",
                    threads);
  if (threads == 0) threads = iso_cpu_count();
  iso_device *device = calloc(1, sizeof *device);
  if (!device) return iso_fail(ISO_ERR_MEMORY, "device: no memory for %zu bytes", sizeof *device);
  device->kernels = iso_kernels_get(tier);
  device->threads = threads;
  device->team = iso_team_create(threads, threads <= iso_cpu_count());
  if (!device->team) {
    free(device);
    return ISO_ERR_MEMORY; /* the team has said why */
  }
  for (int i = 0; i < ISO_WATCHED_THREADS; i++) device->schedstat[i] = -1;
  iso_team_run(device->team, open_schedstat, device);
  *out = device;
  return ISO_OK;
}

void iso_device_destroy(iso_device **device) {
  if (!device || !*device) return;
  iso_team_destroy(&(*device)->team);
  for (int i = 0; i < ISO_WATCHED_THREADS; i++)
    if ((*device)->schedstat[i] >= 0) (void)close((*device)->schedstat[i]);
  free(*device);
  *device = NULL;
}

int iso_device_threads(const iso_device *device) {
  return device->threads;
}

const iso_kernels *iso_device_kernels(const iso_device *device) {
  return device->kernels;
}

iso_team *iso_device_team(const iso_device *device) {
  return device->team;
}

double iso_device_peak(const iso_device *device, iso_dtype type) {
  return iso_peak_gflops(device->kernels, device->team, type);
}

double iso_device_run_delay(const iso_device *device, int thread) {
  char text[96];
  if (thread >= ISO_WATCHED_THREADS || device->schedstat[thread] < 0) return 0;
  const ssize_t got = pread(device->schedstat[thread], text, sizeof text - 1, 0);
  int64_t nanoseconds = 0;
  ssize_t at = 0;
  while (at < got && text[at] != ' ') at++;
  for (at++; at < got && text[at] >= '0' && text[at] <= '9'; at++) nanoseconds = nanoseconds * 10 + (text[at] - '0');
  return 1e-9 * (double)nanoseconds;
}

bool iso_device_sees_delay(const iso_device *device) {
  return device->schedstat[0] >= 0;
}
