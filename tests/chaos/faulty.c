/* SPDX-License-Identifier: Apache-2.0
 *
 * Bad storage for a whole program, by LD_PRELOAD: writes and syncs of files below a folder go wrong for as long as a
 * control file says how. Nobody needs the right to mount anything.
 *
 *   ISO_FAULTY=FOLDER:CONTROL LD_PRELOAD=faulty.so isotach train ...
 *
 * FOLDER is a part of the path. CONTROL holds "enospc", "eio", "hang" (the call does not return before the file says
 * something else) or "slow MS" (each write takes that much longer); without the file all is well.
 *
 * What it does not do: calls that reach the kernel without libc (io_uring) go by it; ISO_FAULTY therefore also answers
 * io_uring_setup, where libc's syscall() is used for it, with ENOSYS.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static void pause_ms(long ms) {
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* Whether a call on this file is to fail; errno says how. Returns after a hang or a delay. */
static int fails(int fd, int writes) {
  const char *setting = getenv("ISO_FAULTY");
  const char *control = setting ? strchr(setting, ':') : NULL;
  char link[64], path[4096], part[4096];
  if (!control) return 0;
  snprintf(part, sizeof part, "%.*s", (int)(control - setting), setting);
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) return 0;
  path[length] = 0;
  if (!strstr(path, part)) return 0;
  for (;;) {
    char how[64] = "";
    const int file = open(control + 1, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const ssize_t got = read(file, how, sizeof how - 1);
    (void)close(file);
    how[got > 0 ? got : 0] = 0;
    if (strncmp(how, "enospc", 6) == 0 || strncmp(how, "eio", 3) == 0) {
      errno = how[1] == 'n' ? ENOSPC : EIO;
      return 1;
    }
    if (strncmp(how, "slow ", 5) == 0 && writes) pause_ms(strtol(how + 5, NULL, 10));
    if (strncmp(how, "hang", 4) != 0) return 0;
    pause_ms(10);
  }
}

#define REAL(name) ((__typeof__(&(name)))dlsym(RTLD_NEXT, #name))

SHOWN ssize_t pwrite(int fd, const void *data, size_t bytes, off_t offset) {
  return fails(fd, 1) ? -1 : REAL(pwrite)(fd, data, bytes, offset);
}
SHOWN ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t offset) {
  return fails(fd, 1) ? -1 : REAL(pwrite64)(fd, data, bytes, offset);
}
SHOWN ssize_t write(int fd, const void *data, size_t bytes) {
  return fails(fd, 1) ? -1 : REAL(write)(fd, data, bytes);
}
SHOWN int fsync(int fd) {
  return fails(fd, 0) ? -1 : REAL(fsync)(fd);
}
SHOWN int fdatasync(int fd) {
  return fails(fd, 0) ? -1 : REAL(fdatasync)(fd);
}
SHOWN long syscall(long number, ...) {
  long a[6];
  va_list list;
  if (number == SYS_io_uring_setup && getenv("ISO_FAULTY")) {
    errno = ENOSYS;
    return -1;
  }
  va_start(list, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
  va_end(list);
  return REAL(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
