/* SPDX-License-Identifier: Apache-2.0
 *
 * The seam's entries while a run is recorded: each does what it should, tells the disk, and fails when the plan says
 * so.
 *
 * One lock orders the calls of all threads, so that the record is the order in which they happened. Syncs cost nothing:
 * the disk knows what they cover, which is what was written before they began.
 */
#include "chaos/crash.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <stdatomic.h>
#include <unistd.h>

static iso_os_table real;
static disk *recording;
static fault_plan *plan;
static int log_us, snapshot_us;
static pthread_mutex_t seam_lock = PTHREAD_MUTEX_INITIALIZER;
enum { DESCRIPTORS = 4096, SLOW_US = 300000 };
static int inodes[DESCRIPTORS]; /* + 1; 0: not of the folder */
static bool of_log[DESCRIPTORS], of_snapshot[DESCRIPTORS];
static char names[DESCRIPTORS][80]; /* relative, or its beginning */
static char boot_path[300], process_path[300], own_process[64];
static int64_t processes; /* that this one has been */
static int wander_us;
static pid_t doomed;
static int64_t doomed_in; /* writes of the log */
static _Atomic uint64_t wanderers;

/* ---- schedules ---- */

void seam_wander(int most_us) {
  wander_us = most_us;
}

/* A thread loses time between its calls, so that threads interleave in ways that they seldom do by themselves. */
static void wander(void) {
  static _Thread_local dice own;
  if (!wander_us) return;
  if (!own.seed) own.seed = (uint64_t)getpid() << 20 ^ ++wanderers;
  if (dice_below(&own, 8) == 0) usleep((useconds_t)dice_below(&own, wander_us));
}

/* ---- what is of the folder, and what fails ---- */

/* The path relative to the folder; NULL: elsewhere. The folder itself is "". Of the second place it lasts for two
 * calls more. */
static const char *inside(const char *path) {
  static const char beside[] = SECOND_SUFFIX;
  static _Thread_local char mapped[3][512];
  static _Thread_local int turn;
  const size_t length = strlen(recording->root);
  if (strncmp(path, recording->root, length) != 0) return NULL;
  const char *rest = path + length;
  if (!*rest) return rest;
  if (*rest == '/') return rest + 1;
  if (!recording->second || strncmp(rest, beside, sizeof beside - 1) != 0) return NULL;
  rest += sizeof beside - 1;
  if (*rest && *rest != '/') return NULL;
  char *out = mapped[turn++ % 3];
  snprintf(out, sizeof mapped[0], SECOND "%.480s", rest);
  for (size_t end = strlen(out); out[end - 1] == '/'; end--) out[end - 1] = 0;
  return out;
}

static bool tracked(int fd) {
  return fd >= 0 && fd < DESCRIPTORS && inodes[fd];
}

/* Whether this call is one that is to fail (errno is set then). With the lock. */
static bool fails(const char *relative, fault_kind kind, bool write) {
  if (!plan || plan->kind == FAULT_NONE || (plan->writes_only && !write)) return false;
  if (plan->kind == FAULT_READ && kind != FAULT_READ) return false;
  if (plan->under && strncmp(relative, plan->under, strlen(plan->under)) != 0) return false;
  if ((plan->kind == FAULT_SLOW) != (kind == FAULT_SLOW)) return false;
  if (plan->kind != FAULT_FAIL && plan->kind != kind && (plan->kind != FAULT_SHORT || kind != FAULT_READ)) return false;
  const int64_t call = plan->calls++;
  if (call < plan->at || call >= plan->at + plan->count) return false;
  plan->met = true;
  errno = plan->error;
  return true;
}

static const char *name_of(int fd) {
  return names[fd];
}

/* ---- entries ---- */

static int seam_open(const char *path, int flags, int mode) {
  const char *relative = inside(path);
  if (strcmp(path, "/proc/sys/kernel/random/boot_id") == 0) path = boot_path; /* of the simulated machine */
  if (strcmp(path, own_process) == 0) path = process_path;                    /* the one before is dead */
  if (!relative) return real.open(path, flags, mode);
  wander();
  pthread_mutex_lock(&seam_lock);
  int fd = -1;
  if (!fails(relative, FAULT_FAIL, false)) {
    const bool is_new = (flags & O_CREAT) && disk_find(recording, relative) < 0;
    fd = real.open(path, flags & ~O_DIRECT, mode);
    if (fd >= 0 && is_new) disk_record_entry(recording, OP_CREATE, relative, 0);
    const int inode = fd >= 0 ? disk_find(recording, relative) : -1;
    if (inode >= 0 && fd < DESCRIPTORS) {
      inodes[fd] = inode + 1;
      of_log[fd] = strncmp(relative, "log/", 4) == 0;
      of_snapshot[fd] = strncmp(relative, "snapshots/", 10) == 0;
      snprintf(names[fd], sizeof names[fd], "%.79s", relative);
      if (flags & O_TRUNC) disk_record_truncate(recording, inode, 0);
    }
  }
  pthread_mutex_unlock(&seam_lock);
  return fd;
}

static int seam_close(int fd) {
  pthread_mutex_lock(&seam_lock);
  const bool failing = tracked(fd) && fails(name_of(fd), FAULT_FAIL, false);
  const int cause = errno;
  if (fd >= 0 && fd < DESCRIPTORS) inodes[fd] = 0;
  int result = real.close(fd); /* closed all the same, as the kernel does */
  if (failing) result = -1, errno = cause;
  pthread_mutex_unlock(&seam_lock);
  return result;
}

static ssize_t seam_pread(int fd, void *data, size_t bytes, int64_t offset) {
  if (!tracked(fd)) return real.pread(fd, data, bytes, offset);
  pthread_mutex_lock(&seam_lock);
  const bool failing = fails(name_of(fd), FAULT_READ, false);
  ssize_t result = -1;
  if (!failing || plan->kind == FAULT_SHORT)
    result = real.pread(fd, data, failing && bytes > 1 ? bytes / 2 : bytes, offset);
  pthread_mutex_unlock(&seam_lock);
  return result;
}

void seam_doom(pid_t process, int64_t writes) {
  doomed = process;
  doomed_in = writes;
}

/* Storage that takes its time, or does not answer for a while. */
static void dawdle(int fd) {
  pthread_mutex_lock(&seam_lock);
  const bool slow = plan && plan->kind == FAULT_SLOW && fails(name_of(fd), FAULT_SLOW, true);
  if (doomed && of_log[fd] && doomed_in-- == 0) {
    kill(doomed, SIGKILL);
    doomed = 0;
  }
  pthread_mutex_unlock(&seam_lock);
  const int takes_us = slow ? SLOW_US : of_log[fd] ? log_us : of_snapshot[fd] ? snapshot_us : 0;
  if (takes_us) usleep((useconds_t)takes_us);
}

static ssize_t seam_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  if (!tracked(fd)) return real.pwrite(fd, data, bytes, offset);
  dawdle(fd);
  wander();
  pthread_mutex_lock(&seam_lock);
  const bool failing = fails(name_of(fd), FAULT_SHORT, true);
  const int cause = errno;
  if (failing && bytes > 1) bytes = plan->kind == FAULT_SHORT ? bytes / 3 + 1 : bytes / 2; /* a part is written */
  ssize_t result = -1;
  const bool refuses = failing && plan->kind == FAULT_FAIL && plan->error == EINTR;
  if (!refuses) result = real.pwrite(fd, data, bytes, offset);
  if (result > 0) disk_record_write(recording, inodes[fd] - 1, data, result, offset);
  if (failing && plan->kind != FAULT_SHORT) result = -1, errno = cause;
  pthread_mutex_unlock(&seam_lock);
  return result;
}

/* ---- several writes in flight: done when they are reaped, in any order ---- */

typedef struct flight {
  struct {
    int fd, tag;
    const struct iovec *parts; /* read when the write is done: a buffer that is used again too early shows */
    int count;
    int64_t offset;
  } writes[64];
  int count;
  dice random;
} flight;

static void *seam_writes_open(int depth) {
  flight *f = depth <= 64 ? calloc(1, sizeof *f) : NULL;
  if (f) f->random.seed = (uint64_t)recording->count;
  return f;
}

static int seam_writes_begin(void *writes, int fd, const struct iovec *parts, int count, int64_t offset, int tag) {
  flight *f = writes;
  if (f->count == 64) abort();
  f->writes[f->count].fd = fd;
  f->writes[f->count].tag = tag;
  f->writes[f->count].parts = parts;
  f->writes[f->count].count = count;
  f->writes[f->count++].offset = offset;
  return 0;
}

/* Each part is a write of its own: what is there of them after a cut is any of them. */
static ssize_t write_parts(int fd, const struct iovec *parts, int count, int64_t offset) {
  ssize_t all = 0;
  for (int i = 0; i < count; i++) {
    const ssize_t put = seam_pwrite(fd, parts[i].iov_base, parts[i].iov_len, offset + all);
    if (put < 0) return all > 0 ? all : -errno;
    all += put;
    if ((size_t)put < parts[i].iov_len) break;
  }
  return all;
}

static int seam_writes_reap(void *writes, int *tag, ssize_t *result) {
  flight *f = writes;
  if (f->count == 0) abort();
  const int i = (int)dice_below(&f->random, f->count);
  *tag = f->writes[i].tag;
  recording->in_flight = true; /* by the log's thread only */
  *result = write_parts(f->writes[i].fd, f->writes[i].parts, f->writes[i].count, f->writes[i].offset);
  recording->in_flight = false;
  f->writes[i] = f->writes[--f->count];
  return 0;
}

static void seam_writes_close(void *writes) {
  free(writes);
}

static int sync_any(int fd, int (*call)(int fd)) {
  if (!tracked(fd)) return call(fd);
  if (of_snapshot[fd] && snapshot_us) usleep((useconds_t)snapshot_us);
  wander();
#ifdef ISO_SABOTAGE_SKIP_FSYNC
  if (of_log[fd]) return 0;
#endif
  pthread_mutex_lock(&seam_lock);
  const int inode = inodes[fd] - 1, begun = recording->count;
  const bool failing = fails(name_of(fd), FAULT_SYNC, false);
  const int cause = errno;
  disk_record_sync(recording, inode, begun, failing);
  pthread_mutex_unlock(&seam_lock);
  errno = cause;
  return failing ? -1 : 0;
}

static int seam_fsync(int fd) {
  return sync_any(fd, real.fsync);
}

static int seam_fdatasync(int fd) {
  return sync_any(fd, real.fdatasync);
}

static int seam_ftruncate(int fd, int64_t bytes) {
  if (!tracked(fd)) return real.ftruncate(fd, bytes);
  wander();
  pthread_mutex_lock(&seam_lock);
  int result = -1;
  if (!fails(name_of(fd), FAULT_FAIL, true)) result = real.ftruncate(fd, bytes);
  if (result == 0) disk_record_truncate(recording, inodes[fd] - 1, bytes);
  pthread_mutex_unlock(&seam_lock);
  return result;
}

static int rename_any(const char *from, const char *to, int (*call)(const char *from, const char *to)) {
  const char *relative = inside(from), *to_relative = inside(to);
  if (!relative || !to_relative) return call(from, to);
  wander();
  pthread_mutex_lock(&seam_lock);
  int result = -1;
  if (!fails(to_relative, FAULT_FAIL, false)) result = call(from, to);
  if (result == 0) disk_record_rename(recording, relative, to_relative);
  pthread_mutex_unlock(&seam_lock);
  return result;
}

static int seam_rename(const char *from, const char *to) {
  return rename_any(from, to, real.rename);
}

static int seam_rename_noreplace(const char *from, const char *to) {
  return rename_any(from, to, real.rename_noreplace);
}

static int entry_any(const char *path, op_kind kind, int (*call)(const char *path)) {
  const char *relative = inside(path);
  if (!relative) return call(path);
  wander();
  pthread_mutex_lock(&seam_lock);
  int result = -1;
  if (!fails(relative, FAULT_FAIL, false)) result = call(path);
  if (result == 0 && *relative) disk_record_entry(recording, kind, relative, 0);
  pthread_mutex_unlock(&seam_lock);
  return result;
}

static int seam_unlink(const char *path) {
  return entry_any(path, OP_REMOVE, real.unlink);
}

static int seam_rmdir(const char *path) {
  return entry_any(path, OP_REMOVE, real.rmdir);
}

static int mkdir_any(const char *path) {
  return real.mkdir(path, 0777);
}

static int seam_mkdir(const char *path, int mode) {
  return inside(path) ? entry_any(path, OP_MKDIR, mkdir_any) : real.mkdir(path, mode);
}

static int seam_stat(const char *path, struct stat *out) {
  const char *relative = inside(path);
  if (!relative) return real.stat(path, out);
  pthread_mutex_lock(&seam_lock);
  const int result = fails(relative, FAULT_FAIL, false) ? -1 : real.stat(path, out);
  pthread_mutex_unlock(&seam_lock);
  return result;
}

static void write_small(const char *path, const char *text) {
  FILE *to = fopen(path, "w");
  if (!to || fputs(text, to) < 0 || fclose(to) != 0) abort();
}

/* What the process can know of the machine and of itself: when it began tells it from those before. */
static void pretend(const disk *d) {
  char text[256];
  snprintf(boot_path, sizeof boot_path, "%s.boot", d->root);
  snprintf(text, sizeof text, "simulated-boot-%d\n", d->boots);
  write_small(boot_path, text);
  snprintf(process_path, sizeof process_path, "%s.process", d->root);
  snprintf(own_process, sizeof own_process, "/proc/%ld/stat", (long)getpid());
  snprintf(text, sizeof text, "%ld (crash) R 1 1 1 0 0 0 0 0 0 0 0 0 0 0 20 0 1 0 %lld 0 0\n", (long)getpid(),
           (long long)++processes);
  write_small(process_path, text);
}

void seam_pace(int of_log_us, int of_snapshot_us) {
  log_us = of_log_us;
  snapshot_us = of_snapshot_us;
}

void seam_install(disk *d, fault_plan *how) {
  real = iso_os;
  recording = d;
  plan = how;
  memset(inodes, 0, sizeof inodes);
  pretend(d);
  iso_os = (iso_os_table){.open = seam_open,
                          .close = seam_close,
                          .pread = seam_pread,
                          .pwrite = seam_pwrite,
                          .fsync = seam_fsync,
                          .fdatasync = seam_fdatasync,
                          .ftruncate = seam_ftruncate,
                          .rename = seam_rename,
                          .rename_noreplace = seam_rename_noreplace,
                          .unlink = seam_unlink,
                          .mkdir = seam_mkdir,
                          .rmdir = seam_rmdir,
                          .stat = seam_stat,
                          .writes_open = seam_writes_open,
                          .writes_begin = seam_writes_begin,
                          .writes_reap = seam_writes_reap,
                          .writes_close = seam_writes_close};
}

void seam_remove(void) {
  seam_pace(0, 0);
  iso_os = real;
}
