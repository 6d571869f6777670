/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranged reads of blobs.
 *
 * A local file is opened for each read, looked at before and after, and closed: a few microseconds, and no limit on how
 * many blobs are open. An object in S3 is asked for its bytes under the condition that it is still the one listed.
 *
 * Invariants
 *  1. A read returns bytes of the blob as it was listed, or fails: size and version are compared before and after.
 *  2. Nothing of a blob changes after its opening, so threads share it without a lock.
 */
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

struct iso_blob {
  iso_blob_info info; /* its path is ours */
};

iso_status iso_blob_open(const iso_blob_info *info, iso_blob **out) {
  *out = NULL;
  iso_blob *blob = calloc(1, sizeof *blob);
  char *path = strdup(info->path);
  if (!blob || !path) {
    free(blob);
    free(path);
    return iso_fail(ISO_ERR_MEMORY, "cannot open '%s': out of memory", info->path);
  }
  blob->info = *info;
  blob->info.path = path;
  *out = blob;
  return ISO_OK;
}

void iso_blob_close(iso_blob **blob) {
  if (!*blob) return;
  free((*blob)->info.path);
  free(*blob);
  *blob = NULL;
}

const iso_blob_info *iso_blob_info_of(const iso_blob *blob) {
  return &blob->info;
}

static iso_status changed(const iso_blob_info *info, const char *how) {
  return iso_fail(ISO_ERR_MISMATCH, "'%s' changed while in use (%s); restore it, or start anew with what it is now",
                  info->path, how);
}

static iso_status check_local(const iso_blob_info *info) {
  struct stat now;
  if (iso_os.stat(info->path, &now) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return changed(info, "it is gone");
    return iso_os_fail("look at", info->path);
  }
  if ((int64_t)now.st_size != info->bytes) {
    char how[96];
    snprintf(how, sizeof how, "it had %lld bytes and has %lld", (long long)info->bytes, (long long)now.st_size);
    return changed(info, how);
  }
  char version[sizeof info->version];
  snprintf(version, sizeof version, "%lld.%09ld", (long long)now.st_mtim.tv_sec, now.st_mtim.tv_nsec);
  if (strcmp(version, info->version) != 0) return changed(info, "it was written to");
  return ISO_OK;
}

static iso_status read_local(const iso_blob_info *info, int64_t offset, int64_t length, char *buffer) {
  ISO_TRY(check_local(info));
  int fd;
  do fd = iso_os.open(info->path, O_RDONLY | O_CLOEXEC, 0);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return iso_os_fail("open", info->path);
  iso_status status = ISO_OK;
  while (length > 0 && status == ISO_OK) {
    ssize_t got = iso_os.pread(fd, buffer, (size_t)length, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = iso_os_fail("read", info->path);
    if (got == 0) status = changed(info, "it ends early");
    if (got <= 0) break;
    buffer += got;
    length -= got;
    offset += got;
  }
  (void)iso_os.close(fd); /* nothing was written */
  return status == ISO_OK ? check_local(info) : status;
}

iso_status iso_blob_read(iso_blob *blob, int64_t offset, int64_t length, void *buffer) {
  const iso_blob_info *info = &blob->info;
  if (offset < 0 || length < 0 || offset > info->bytes || length > info->bytes - offset)
    return iso_fail(ISO_ERR_INTERNAL, "cannot read %lld bytes at %lld of '%s': it has %lld", (long long)length,
                    (long long)offset, info->path, (long long)info->bytes);
  if (iso_blob_is_remote(info->path)) return iso_s3_read(info, offset, length, buffer);
  return read_local(info, offset, length, buffer);
}

iso_status iso_blob_check(const iso_blob *blob) {
  return iso_blob_is_remote(blob->info.path) ? ISO_OK : check_local(&blob->info);
}

void iso_blob_interrupt(bool on) {
  iso_http_stop(on);
}
