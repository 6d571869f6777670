/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing files so that a crash, a full disk or a failing one leaves the old or the new, and nothing in between.
 *
 * Invariants
 *  1. A sink's file is created exclusively and never opened for writing again after its commit.
 *  2. The CRC-32C covers exactly the bytes handed over, and is taken before the system sees them.
 *  3. A failed fdatasync is not repeated: what the kernel then reports as clean may never have reached the disk.
 *  4. iso_file_publish never replaces: the name belongs to whoever came first.
 */
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { CHUNK_BYTES = 8 << 20 }; /* large enough for any disk, small enough to be still in the cache after its CRC */

iso_status iso_attempt_id(char hex[33]) {
  unsigned char bits[16];
  for (size_t done = 0; done < sizeof bits;) {
    ssize_t got = getrandom(bits + done, sizeof bits - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return iso_os_fail("read", "the system's random source");
    done += (size_t)got;
  }
  for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", bits[i]);
  return ISO_OK;
}

iso_status iso_parent_sync(const char *path) {
  const char *slash = strrchr(path, '/');
  if (!slash) return iso_path_sync(".");
  char *folder = strndup(path, slash == path ? 1 : (size_t)(slash - path));
  if (!folder) return iso_fail(ISO_ERR_MEMORY, "cannot sync the folder of '%s': out of memory", path);
  iso_status status = iso_path_sync(folder);
  free(folder);
  return status;
}

iso_status iso_sink_open(iso_sink *sink, const char *path) {
  *sink = (iso_sink){.path = path, .fd = -1};
  do sink->fd = iso_os.open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  while (sink->fd < 0 && errno == EINTR);
  return sink->fd < 0 ? iso_os_fail("create", path) : ISO_OK;
}

iso_status iso_sink_open_direct(iso_sink *sink, const char *path) {
  *sink = (iso_sink){.path = path, .fd = -1, .direct = true};
  do sink->fd = iso_os.open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0666);
  while (sink->fd < 0 && errno == EINTR);
  if (sink->fd >= 0 || errno != EINVAL) return sink->fd < 0 ? iso_os_fail("create", path) : ISO_OK;
  /* Some file systems make the file before they refuse: it is empty, and ours. */
  (void)iso_os.unlink(path);
  return iso_sink_open(sink, path);
}

/* From here on through the page cache; the sync at the end is the file's, however it was written. */
static iso_status leave_direct(iso_sink *sink) {
  int fd;
  do fd = iso_os.open(sink->path, O_WRONLY | O_CLOEXEC, 0);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return iso_os_fail("open", sink->path);
  (void)iso_os.close(sink->fd); /* nothing is only in it: what was written is on its way past the cache */
  sink->fd = fd;
  sink->direct = false;
  return ISO_OK;
}

static bool is_aligned(const char *from, size_t bytes, int64_t at) {
  return (((uintptr_t)from | (uintptr_t)bytes | (uintptr_t)at) & (ISO_SINK_ALIGN - 1)) == 0;
}

/* A full disk is the one failure that a user of ours can mend: say how much fitted and how much more there is. */
static iso_status write_chunk(iso_sink *sink, const char *from, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    int64_t at = sink->bytes + (int64_t)done;
    if (sink->direct && !is_aligned(from + done, bytes - done, at)) ISO_TRY(leave_direct(sink));
    ssize_t put = iso_os.pwrite(sink->fd, from + done, bytes - done, at);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EINVAL && sink->direct) { /* a disk with larger blocks */
      ISO_TRY(leave_direct(sink));
      continue;
    }
    if (put < 0 && errno != ENOSPC && errno != EDQUOT) return iso_os_fail("write", sink->path);
    if (put <= 0)
      return iso_fail(ISO_ERR_SPACE, "cannot write '%s': its disk is full after %lld bytes of it; %s", sink->path,
                      (long long)at, sink->advice ? sink->advice : "free some space");
    done += (size_t)put;
  }
  return ISO_OK;
}

iso_status iso_sink_write(iso_sink *sink, const void *data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    size_t chunk = bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES;
    const char *from = (const char *)data + done;
    sink->crc = iso_crc32c(sink->crc, from, chunk);
    ISO_TRY(write_chunk(sink, from, chunk));
    sink->bytes += (int64_t)chunk;
    done += chunk;
  }
  return ISO_OK;
}

iso_status iso_sink_commit(iso_sink *sink) {
  iso_status status = ISO_OK;
  if (iso_os.fdatasync(sink->fd) != 0) status = iso_os_fail("sync", sink->path);
  if (iso_os.close(sink->fd) != 0 && status == ISO_OK) status = iso_os_fail("close", sink->path);
  sink->fd = -1;
  return status;
}

void iso_sink_abandon(iso_sink *sink) {
  if (sink->fd >= 0) (void)iso_os.close(sink->fd);
  sink->fd = -1;
  (void)iso_os.unlink(sink->path);
}

iso_status iso_file_publish(const char *path, const void *data, size_t bytes, bool *taken) {
  char attempt[33];
  iso_string temporary = {0};
  iso_sink sink;
  *taken = false;
  ISO_TRY(iso_attempt_id(attempt));
  iso_string_printf(&temporary, "%s.%s.tmp", path, attempt);
  if (iso_string_failed(&temporary)) return ISO_ERR_MEMORY; /* logged already */
  iso_status status = iso_sink_open(&sink, temporary.data);
  if (status != ISO_OK) goto done;
  status = iso_sink_write(&sink, data, bytes);
  if (status == ISO_OK) status = iso_sink_commit(&sink);
  if (status == ISO_OK && iso_os.rename_noreplace(temporary.data, path) != 0) {
    *taken = errno == EEXIST;
    if (!*taken) status = iso_os_fail("publish", path);
  }
  if (status != ISO_OK || *taken) {
    iso_sink_abandon(&sink);
  } else {
    status = iso_parent_sync(path);
  }
done:
  iso_string_fini(&temporary);
  return status;
}
