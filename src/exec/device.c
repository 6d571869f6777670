/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU as a device: an ISA tier's kernel table and one team of threads for the life of the process' work.
 */
#include <stdlib.h>

#include "exec/exec.h"

struct iso_device {
  const iso_kernels *kernels;
  iso_team *team;
  int threads;
};

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
  *out = device;
  return ISO_OK;
}

void iso_device_destroy(iso_device **device) {
  if (!device || !*device) return;
  iso_team_destroy(&(*device)->team);
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
