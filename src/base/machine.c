/* SPDX-License-Identifier: Apache-2.0
 *
 * machine.c: questions to the kernel about time, memory and disks.
 *
 * Files below /proc and /sys are read directly, not through `iso_os`: they are not storage, and a test that fails the
 * Nth storage call should not have to count them.
 *
 * iso_memory_available is the least of MemAvailable and, for every control group from this process's up to the root,
 * its limit minus what it uses; page cache that the kernel would drop (inactive_file) does not count as used.
 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

double iso_clock_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The text of a small kernel file, cut at capacity - 1 bytes; false when it cannot be read. */
static bool kernel_text(const char *path, char *text, size_t capacity) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  size_t length = 0;
  while (length < capacity - 1) {
    ssize_t got = read(fd, text + length, capacity - 1 - length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    length += (size_t)got;
  }
  close(fd);
  text[length] = '\0';
  return length > 0;
}

/* The number at the start of the line that begins with `name`; -1 if there is none. */
static int64_t field_after(const char *text, const char *name) {
  size_t length = strlen(name);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (strncmp(line, name, length) == 0) return strtoll(line + length, NULL, 10);
  }
  return -1;
}

/* A whole file that is one number; INT64_MAX for "max", -1 when unreadable. */
static int64_t kernel_number(const char *folder, const char *name) {
  char path[PATH_MAX], text[64];
  int length = snprintf(path, sizeof path, "%s/%s", folder, name);
  if (length < 0 || (size_t)length >= sizeof path || !kernel_text(path, text, sizeof text)) return -1;
  if (strncmp(text, "max", 3) == 0) return INT64_MAX;
  errno = 0;
  int64_t value = strtoll(text, NULL, 10);
  return errno == ERANGE ? INT64_MAX : value;
}

/* Names of the files of one control group version. */
typedef struct cgroup_files {
  const char *root;     /* where the hierarchy is mounted */
  const char *limit;    /* bytes or "max" */
  const char *usage;    /* bytes */
  const char *inactive; /* line of memory.stat */
} cgroup_files;

static const cgroup_files cgroup_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "};
static const cgroup_files cgroup_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                       "total_inactive_file "};

/* Room in one group; INT64_MAX when it has no limit. */
static int64_t cgroup_room(const cgroup_files *files, const char *folder) {
  int64_t limit = kernel_number(folder, files->limit);
  if (limit < 0 || limit >= INT64_MAX / 2) return INT64_MAX;
  int64_t usage = kernel_number(folder, files->usage);
  if (usage < 0) usage = 0;
  char path[PATH_MAX], text[8192];
  int length = snprintf(path, sizeof path, "%s/memory.stat", folder);
  if (length > 0 && (size_t)length < sizeof path && kernel_text(path, text, sizeof text)) {
    int64_t inactive = field_after(text, files->inactive);
    if (inactive > 0) usage -= inactive < usage ? inactive : usage;
  }
  return limit > usage ? limit - usage : 0;
}

/* Least room from the group at `path` (as /proc/self/cgroup gives it) up to the mounted root. */
static int64_t cgroup_room_above(const cgroup_files *files, const char *path) {
  char folder[PATH_MAX];
  size_t root = strlen(files->root);
  int length = snprintf(folder, sizeof folder, "%s%s", files->root, path);
  if (length < 0 || (size_t)length >= sizeof folder) return INT64_MAX;
  int64_t least = INT64_MAX;
  for (;;) {
    int64_t room = cgroup_room(files, folder);
    if (room < least) least = room;
    char *slash = strrchr(folder, '/');
    if (strlen(folder) <= root || !slash) return least;
    *slash = '\0';
    if (strlen(folder) < root) return least;
  }
}

static int64_t cgroup_memory_room(void) {
  char text[8192];
  if (!kernel_text("/proc/self/cgroup", text, sizeof text)) return INT64_MAX;
  int64_t least = INT64_MAX;
  char *rest = NULL;
  for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
    /* "0::/path" is version 2, "N:controller,controller:/path" version 1 */
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) continue;
    *path++ = '\0';
    controllers++;
    const cgroup_files *files = NULL;
    if (controllers[0] == '\0') files = &cgroup_v2;
    if (strcmp(controllers, "memory") == 0) files = &cgroup_v1;
    if (!files) continue;
    int64_t room = cgroup_room_above(files, path);
    if (room < least) least = room;
  }
  return least;
}

int64_t iso_memory_available(void) {
  char text[4096];
  int64_t available = INT64_MAX;
  if (kernel_text("/proc/meminfo", text, sizeof text)) {
    int64_t kib = field_after(text, "MemAvailable:");
    if (kib >= 0) available = kib * 1024;
  }
  int64_t room = cgroup_memory_room();
  return room < available ? room : available;
}

int64_t iso_memory_resident(void) {
  char text[256];
  if (!kernel_text("/proc/self/statm", text, sizeof text)) return 0;
  long long total = 0, resident = 0;
  if (sscanf(text, "%lld %lld", &total, &resident) != 2) return 0;
  return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

int64_t iso_memory_resident_peak(void) {
  struct rusage usage;
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return (int64_t)usage.ru_maxrss * 1024;
}

int64_t iso_disk_free(const char *path) {
  char part[PATH_MAX];
  size_t length = strlen(path);
  if (length >= sizeof part) return -1;
  memcpy(part, path, length + 1);
  for (;;) {
    struct statvfs info;
    if (statvfs(part[0] ? part : ".", &info) == 0) return (int64_t)info.f_bavail * (int64_t)info.f_frsize;
    if ((errno != ENOENT && errno != ENOTDIR) || part[0] == '\0') return -1;
    char *slash = strrchr(part, '/');
    if (slash == part)
      part[1] = part[1] ? '\0' : part[1];
    else if (slash)
      *slash = '\0';
    else
      part[0] = '\0';
  }
}
