/* SPDX-License-Identifier: Apache-2.0
 *
 * What a start goes on from is made to last before the start calls it durable.
 *
 * A process that is killed between a write and its sync leaves bytes that the next start can read, since the system
 * still has them, but that a power cut then takes. The next start syncs none of them by itself: it writes to a segment
 * of its own. So it goes through everything that it has read, once; what is on the disk already costs nothing.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>

static iso_status settle_file(const char *path) {
  int fd;
  do fd = iso_os.open(path, O_RDONLY | O_CLOEXEC, 0);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return iso_os_fail("open", path);
  const iso_status status = iso_os.fdatasync(fd) == 0 ? ISO_OK : iso_os_fail("sync", path);
  (void)iso_os.close(fd);
  return status;
}

/* All files of a folder, and the folder. */
static iso_status settle_folder(iso_arena *arena, const char *folder) {
  char **names = NULL;
  size_t count = 0;
  ISO_TRY(iso_path_list(arena, folder, &names, &count));
  for (size_t i = 0; i < count; i++) {
    const char *path = iso_path_join(arena, folder, names[i]);
    if (!path) return ISO_ERR_MEMORY;
    if (!iso_path_is_folder(path)) ISO_TRY(settle_file(path));
  }
  return iso_path_sync(folder);
}

static iso_status settle(iso_arena *arena, const char *run, const char *snapshot) {
  bool exists;
  const char *log = iso_path_join(arena, run, "log");
  if (!log) return ISO_ERR_MEMORY;
  ISO_TRY(iso_path_probe(log, &exists));
  if (exists) ISO_TRY(settle_folder(arena, log));
  if (snapshot[0]) {
    ISO_TRY(settle_folder(arena, snapshot));
    ISO_TRY(iso_parent_sync(snapshot));
  }
  return iso_path_sync(run);
}

iso_status iso_run_settle(const char *run, const char *snapshot) {
  iso_arena *arena = iso_arena_create();
  const iso_status status = arena ? settle(arena, run, snapshot) : iso_fail(ISO_ERR_MEMORY, "%s: no memory", run);
  iso_arena_destroy(&arena);
  return status;
}
