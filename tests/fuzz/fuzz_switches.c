/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: any bytes as a topology.conf. It is refused with one line that begins with its path, or every host has a
 * place, and the order is one of just these hosts, the first one first.
 *
 *   fuzz_switches corpus
 */
#include "comm/comm.h"
#include "scratch.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  iso_log_quiet(true);
  strcpy(folder, "/dev/shm/iso-fuzz-XXXXXX");
  check(mkdtemp(folder) != NULL);
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char *const names[] = {"n1", "n10", "n2.some.org", "m"};
  enum { HOSTS = ISO_COUNT(names) };
  const char *path = path_of("topology.conf");
  bool seen[HOSTS] = {false};
  iso_order *order;
  write_file(path, data, size);
  const iso_status status = iso_order_make(names, HOSTS, path, &order);
  if (status != ISO_OK) {
    check(status == ISO_ERR_CONFIG && !order && strncmp(iso_last_error(), path, strlen(path)) == 0);
    check(!strchr(iso_last_error(), '\n'));
    return 0;
  }
  check(order->count == HOSTS && order->hosts[0].number == 0);
  for (int i = 0; i < HOSTS; i++) {
    const iso_order_host *host = &order->hosts[i];
    check(host->number >= 0 && host->number < HOSTS && !seen[host->number]);
    check(strcmp(host->name, names[host->number]) == 0);
    check(host->path.levels >= 1 && host->path.levels <= ISO_RACK_LEVELS);
    seen[host->number] = true;
  }
  iso_order_destroy(&order);
  return 0;
}
