/* SPDX-License-Identifier: Apache-2.0
 *
 * os.c: the seam to the file system, and the helpers that everything else uses instead of bare calls.
 *
 * Invariants
 *  1. Every call that changes or reads stored data goes through `iso_os`. Listing a folder does not: it has no effect
 *     that a crash could tear.
 *  2. Transfers are continued after short counts and EINTR until they are complete or have failed.
 *  3. iso_file_replace leaves either the old or the new content under the name, whatever call fails, and no
 *     temporary file behind unless removing it fails too.
 *  4. A failed fsync is never retried: after it the kernel may have dropped the data.
 */
#include "base/base.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- the table's real entries ---- */

static int real_open(const char *path, int flags, int mode) {
  return open(path, flags | O_CLOEXEC, (mode_t)mode);
}

static ssize_t real_pread(int fd, void *data, size_t bytes, int64_t offset) {
  return pread(fd, data, bytes, (off_t)offset);
}

static ssize_t real_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  return pwrite(fd, data, bytes, (off_t)offset);
}

static int real_ftruncate(int fd, int64_t bytes) {
  return ftruncate(fd, (off_t)bytes);
}

static int real_rename_noreplace(const char *from, const char *to) {
#ifdef SYS_renameat2
  const unsigned no_replace = 1; /* RENAME_NOREPLACE */
  if (syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, no_replace) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return -1;
#endif
  if (link(from, to) != 0) return -1;
  (void)unlink(from); /* `to` is published: a left-over name is no reason to report a failure */
  return 0;
}

static int real_mkdir(const char *path, int mode) {
  return mkdir(path, (mode_t)mode);
}

static int real_stat(const char *path, struct stat *out) {
  return stat(path, out);
}

iso_os_table iso_os = {
    .open = real_open,
    .close = close,
    .pread = real_pread,
    .pwrite = real_pwrite,
    .fsync = fsync,
    .fdatasync = fdatasync,
    .ftruncate = real_ftruncate,
    .rename = rename,
    .rename_noreplace = real_rename_noreplace,
    .unlink = unlink,
    .mkdir = real_mkdir,
    .rmdir = rmdir,
    .stat = real_stat,
};

bool iso_os_writes_are_real(void) {
  Dl_info ours, other;
  void *write = dlsym(RTLD_DEFAULT, "pwrite"), *libc = dlsym(RTLD_DEFAULT, "getpid");
  return iso_os.pwrite == real_pwrite && write && libc && dladdr(write, &ours) && dladdr(libc, &other) &&
         ours.dli_fbase == other.dli_fbase;
}

/* ---- errors ---- */

iso_status(iso_os_fail)(const char *what, const char *path) {
  int cause = errno;
  iso_status status = ISO_ERR_IO;
  const char *advice = "";
  switch (cause) {
  case ENOENT:
  case ENOTDIR:
    status = ISO_ERR_NOT_FOUND;
    advice = "; check the path";
    break;
  case ENOSPC:
  case EDQUOT:
    status = ISO_ERR_SPACE;
    advice = "; free some space";
    break;
  case ENOMEM:
    status = ISO_ERR_MEMORY;
    break;
  case EACCES:
  case EPERM:
  case EROFS:
    advice = "; check its permissions";
    break;
  case EISDIR:
    advice = "; name a file";
    break;
  default:
    break;
  }
  return iso_fail(status, "cannot %s '%s': %s%s", what, path, strerror(cause), advice);
}

static int open_retry(const char *path, int flags, int mode) {
  int fd;
  do fd = iso_os.open(path, flags, mode);
  while (fd < 0 && errno == EINTR);
  return fd;
}

/* ---- positioned transfers ---- */

iso_status iso_file_pread(int fd, const char *path, void *data, size_t bytes, int64_t offset) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t got = iso_os.pread(fd, (char *)data + done, bytes - done, offset + (int64_t)done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return iso_os_fail("read", path);
    if (got == 0)
      return iso_fail(ISO_ERR_FORMAT, "'%s' is truncated: it ends at byte %lld, but bytes up to %lld are needed", path,
                      (long long)(offset + (int64_t)done), (long long)(offset + (int64_t)bytes));
    done += (size_t)got;
  }
  return ISO_OK;
}

iso_status iso_file_pwrite(int fd, const char *path, const void *data, size_t bytes, int64_t offset) {
  size_t done = 0;
  while (done < bytes) {
    ssize_t put = iso_os.pwrite(fd, (const char *)data + done, bytes - done, offset + (int64_t)done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return iso_os_fail("write", path);
    if (put == 0) return iso_fail(ISO_ERR_IO, "cannot write '%s': the system accepts no more bytes", path);
    done += (size_t)put;
  }
  return ISO_OK;
}

/* ---- whole files ---- */

/* Reads from `fd` to its end into a buffer of `capacity` + 1 bytes that grows if the file turns out longer. */
static iso_status read_to_end(int fd, const char *path, size_t capacity, char **data, size_t *bytes) {
  char *buffer = malloc(capacity + 1);
  size_t length = 0;
  while (buffer) {
    if (length == capacity) {
      char probe; /* one byte beyond the expected end tells a longer file without growing for the usual one */
      ssize_t more = iso_os.pread(fd, &probe, 1, (int64_t)length);
      if (more < 0 && errno == EINTR) continue;
      if (more < 0) break;
      if (more == 0) {
        buffer[length] = '\0';
        *data = buffer;
        *bytes = length;
        return ISO_OK;
      }
      capacity = capacity * 2 + 4096;
      char *larger = realloc(buffer, capacity + 1);
      if (!larger) {
        errno = ENOMEM;
        break;
      }
      buffer = larger;
    }
    ssize_t got = iso_os.pread(fd, buffer + length, capacity - length, (int64_t)length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) break;
    if (got == 0) capacity = length; /* shorter than its size said */
    length += (size_t)got;
  }
  iso_status status = iso_os_fail("read", path);
  free(buffer);
  return status;
}

iso_status iso_file_read(const char *path, char **data, size_t *bytes) {
  *data = NULL;
  *bytes = 0;
  struct stat info;
  if (iso_os.stat(path, &info) != 0) return iso_os_fail("read", path);
  if (S_ISCHR(info.st_mode) || S_ISBLK(info.st_mode) || S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode))
    return iso_fail(ISO_ERR_IO, "cannot read '%s': it is a device or a pipe; name a file", path);
  int64_t size = info.st_size > 0 ? info.st_size : 0;
  if (size > (64 << 20)) {
    int64_t available = iso_memory_available();
    if (size >= available)
      return iso_fail(ISO_ERR_MEMORY, "cannot read '%s': it takes %.1f MiB, only %.1f MiB of memory are available",
                      path, (double)size / 1048576, (double)available / 1048576);
  }
  int fd = open_retry(path, O_RDONLY, 0);
  if (fd < 0) return iso_os_fail("open", path);
  iso_status status = read_to_end(fd, path, (size_t)size, data, bytes);
  (void)iso_os.close(fd); /* nothing was written: the result does not matter */
  return status;
}

/* Copies the folder part of `path` ("." when it has none) to `out`. */
static bool folder_of(const char *path, char *out, size_t capacity) {
  const char *slash = strrchr(path, '/');
  size_t length = !slash ? 1 : slash == path ? 1 : (size_t)(slash - path);
  if (length >= capacity) return false;
  memcpy(out, slash ? path : ".", length);
  out[length] = '\0';
  return true;
}

iso_status iso_file_replace(const char *path, const void *data, size_t bytes) {
  static atomic_uint attempts; /* two threads replacing one file must not share a temporary file */
  char temporary[PATH_MAX], folder[PATH_MAX];
  int length = snprintf(temporary, sizeof temporary, "%s.tmp-%ld-%u", path, (long)getpid(), attempts++);
  if (length < 0 || (size_t)length >= sizeof temporary || !folder_of(path, folder, sizeof folder)) {
    errno = ENAMETOOLONG;
    return iso_os_fail("write", path);
  }
  int fd = open_retry(temporary, O_WRONLY | O_CREAT | O_EXCL, 0666);
  if (fd < 0) return iso_os_fail("create", temporary);
  iso_status status = iso_file_pwrite(fd, temporary, data, bytes, 0);
  if (status == ISO_OK && iso_os.fsync(fd) != 0) status = iso_os_fail("sync", temporary);
  if (iso_os.close(fd) != 0 && status == ISO_OK) status = iso_os_fail("close", temporary);
  if (status == ISO_OK && iso_os.rename(temporary, path) != 0) status = iso_os_fail("replace", path);
  if (status != ISO_OK) {
    (void)iso_os.unlink(temporary);
    return status;
  }
  return iso_path_sync(folder);
}

/* ---- paths ---- */

bool iso_path_exists(const char *path) {
  struct stat info;
  return iso_os.stat(path, &info) == 0;
}

bool iso_path_is_folder(const char *path) {
  struct stat info;
  return iso_os.stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool iso_path_is_dangling(const char *path) {
  struct stat info;
  return lstat(path, &info) == 0 && S_ISLNK(info.st_mode) && !iso_path_exists(path);
}

bool iso_path_is_root(const char *path) {
  struct stat info, root;
  return iso_os.stat(path, &info) == 0 && iso_os.stat("/", &root) == 0 && info.st_dev == root.st_dev &&
         info.st_ino == root.st_ino;
}

iso_status iso_path_make(const char *path) {
  size_t length = strlen(path);
  char *part = malloc(length + 1);
  if (!part) return iso_fail(ISO_ERR_MEMORY, "cannot create folder '%s': out of memory", path);
  memcpy(part, path, length + 1);
  iso_status status = ISO_OK;
  if (length == 0) status = iso_fail(ISO_ERR_NOT_FOUND, "cannot create a folder: its path is empty");
  for (size_t at = 1; at <= length && status == ISO_OK; at++) {
    if (part[at] != '/' && part[at] != '\0') continue;
    char kept = part[at];
    part[at] = '\0';
    if (iso_os.mkdir(part, 0777) != 0) {
      int cause = errno;
      if (!iso_path_is_folder(part)) { /* also covers EROFS, EACCES and the like above an existing folder */
        errno = cause == EEXIST ? ENOTDIR : cause;
        status = iso_path_is_dangling(part)
                     ? iso_fail(ISO_ERR_NOT_FOUND,
                                "cannot create folder '%s': it is a symbolic link that leads nowhere; "
                                "create what it names, or remove it",
                                part)
                     : iso_os_fail("create folder", part);
      }
    }
    part[at] = kept;
  }
  free(part);
  return status;
}

iso_status iso_path_sync(const char *path) {
#ifdef ISO_SABOTAGE_SKIP_DIRSYNC /* faults of tests/chaos: proofs that it would find them */
  return ISO_OK;
#endif
  int fd = open_retry(path, O_RDONLY | O_DIRECTORY, 0);
  if (fd < 0) return iso_os_fail("open folder", path);
  iso_status status = ISO_OK;
  /* EINVAL: a file system that has no such operation for folders; its renames are ordered by other means. */
  if (iso_os.fsync(fd) != 0 && errno != EINVAL) status = iso_os_fail("sync folder", path);
  (void)iso_os.close(fd);
  return status;
}

char *iso_path_join(iso_arena *arena, const char *a, const char *b) {
  size_t length = strlen(a);
  if (b[0] == '/' || length == 0) return iso_arena_strdup(arena, b);
  return iso_arena_printf(arena, "%s%s%s", a, a[length - 1] == '/' ? "" : "/", b);
}

static int name_compare(const void *a, const void *b) {
  return strcmp(*(char *const *)a, *(char *const *)b);
}

iso_status iso_path_list(iso_arena *arena, const char *path, char ***names, size_t *count) {
  *names = NULL;
  *count = 0;
  DIR *folder = opendir(path);
  if (!folder) return iso_os_fail("list folder", path);
  char **list = NULL;
  size_t used = 0, capacity = 0;
  for (;;) {
    errno = 0;
    struct dirent *entry = readdir(folder);
    if (!entry) break;
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
    if (used == capacity) {
      capacity = capacity ? capacity * 2 : 64;
      char **larger = realloc(list, capacity * sizeof *list);
      if (larger) list = larger;
      errno = ENOMEM;
      if (!larger) break;
    }
    errno = ENOMEM;
    list[used] = iso_arena_strdup(arena, entry->d_name);
    if (!list[used]) break;
    used++;
  }
  iso_status status = errno == 0 ? ISO_OK : iso_os_fail("list folder", path);
  closedir(folder);
  if (status == ISO_OK) {
    if (used > 0) qsort(list, used, sizeof *list, name_compare);
    *names = iso_arena_alloc(arena, (used + 1) * sizeof *list);
    if (!*names) status = ISO_ERR_MEMORY;
    if (*names && used > 0) memcpy(*names, list, used * sizeof *list);
    *count = *names ? used : 0;
  }
  free(list);
  return status;
}
