/* SPDX-License-Identifier: Apache-2.0
 *
 * One process owns a run folder.
 *
 * The lock is an open-file-description lock on run/lock, which the kernel drops when its holder dies. Not every network
 * file system passes such locks to other hosts, so the file also says who holds it, and a heartbeat renews its
 * modification time:
 *
 *   "<host> <pid> <boot id> <start of the process in clock ticks since boot> crc32c:<of the line so far>\n"
 *
 * It is empty when the lock was released; an older version wrote no CRC. Whose line is damaged counts as another
 * host's.
 *
 * Invariants
 *  1. Whoever gets the lock has first seen that no other process holds it: by the kernel on this host, by the heartbeat
 * elsewhere.
 *  2. An owner on this host whose lock the kernel has dropped and that is no process any more is dead: its lock is
 * taken without a question.
 *  3. An owner on another host with a heartbeat younger than 60 s is never pushed aside; an older one only when the
 * user says so.
 *  4. The file is never removed, so two processes can never hold locks on two files of one name.
 *  5. A process that has the kernel's lock but whose heartbeat is older than 60 s (it is stopped, or hangs) is replaced
 * only when the user says so. The new owner writes its claim, and gets the kernel's lock when the old one ends; until
 * then the claim and the heartbeat guard the folder. What the old one still writes does not count: incarnations.
 *  6. The heartbeat stops when the file no longer names this process: it never renews another one's claim.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HEARTBEAT_S = 5, FRESH_S = 60, CLAIM_BYTES = 512 };

struct iso_lock {
  char *path;
  int fd;
  char claim[CLAIM_BYTES];
  pthread_t heartbeat;
  bool beating;
  bool locked; /* the kernel's lock is ours; not yet when a stopped process that was replaced still has it */
  bool stop;   /* under mutex */
  pthread_mutex_t mutex;
  pthread_cond_t wake;
};

/* ---- who we are, and who holds it -------------------------------------------------------------------------------- */

/* A small file of /proc, whose size is not known before; "" when there is none. */
static void read_small(const char *path, char *out, size_t capacity) {
  out[0] = 0;
  int fd = iso_os.open(path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return;
  ssize_t got = iso_os.pread(fd, out, capacity - 1, 0);
  out[got > 0 ? got : 0] = 0;
  (void)iso_os.close(fd);
}

/* Field 22 of /proc/<pid>/stat, counted behind the command's name, which may hold anything. 0: no such process, or a
 * dead one that nobody has waited for. */
static unsigned long long process_start(long pid) {
  char path[64], text[1024];
  unsigned long long start = 0;
  snprintf(path, sizeof path, "/proc/%ld/stat", pid);
  read_small(path, text, sizeof text);
  const char *at = strrchr(text, ')');
  for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
  if (at) start = strtoull(at, NULL, 10);
  const char *state = strrchr(text, ')');
  return state && (state[1] != ' ' || state[2] == 'Z' || state[2] == 'X') ? 0 : start;
}

void iso_boot_id(char id[64]) {
  read_small("/proc/sys/kernel/random/boot_id", id, 64);
  id[strcspn(id, "\n")] = 0;
  if (!id[0]) snprintf(id, 64, "-");
}

void iso_owner_self(iso_owner *me) {
  memset(me, 0, sizeof *me);
  if (gethostname(me->host, sizeof me->host - 1) != 0 || !me->host[0]) snprintf(me->host, sizeof me->host, "unknown");
  for (char *c = me->host; *c; c++) {
    if ((unsigned char)*c <= ' ' || *c == '/') *c = '_';
  }
  me->pid = (long)getpid();
  iso_boot_id(me->boot);
  me->start = process_start(me->pid);
}

bool iso_owner_is_gone(const iso_owner *owner, const iso_owner *me) {
  if (strcmp(owner->host, me->host) != 0 || strcmp(owner->boot, me->boot) != 0) return false;
  return owner->start != 0 && process_start(owner->pid) != owner->start;
}

bool iso_owner_parse(const char *text, iso_owner *out) {
  char cause[96];
  memset(out, 0, sizeof *out);
  if (iso_record_check_plain(text, strlen(text), cause) == ISO_SEAL_BROKEN) {
    snprintf(out->host, sizeof out->host, "? (its line is damaged)");
    return true;
  }
  return sscanf(text, "%255s %ld %63s %llu", out->host, &out->pid, out->boot, &out->start) == 4 && out->pid > 0;
}

static iso_status read_claim(int fd, const char *path, char claim[CLAIM_BYTES]) {
  ssize_t got;
  do got = iso_os.pread(fd, claim, CLAIM_BYTES - 1, 0);
  while (got < 0 && errno == EINTR);
  claim[got > 0 ? got : 0] = 0;
  return got < 0 ? iso_os_fail("read", path) : ISO_OK;
}

static double seconds_of(struct timespec time) {
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double age_of(const struct stat *info) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const double age = seconds_of(now) - seconds_of(info->st_mtim);
  return age > 0 ? age : 0;
}

static double claim_age_s(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 ? age_of(&info) : 0;
}

static iso_status busy(const iso_lock *lock, const iso_owner *who, const char *advice) {
  return iso_fail(ISO_ERR_BUSY,
                  "run folder in use: '%s' is held by process %ld on host %s, last heartbeat %.0f s ago; %s",
                  lock->path, who->pid, who->host, claim_age_s(lock->fd), advice);
}

static iso_status look_at(int fd, const char *path, iso_lock_view *out) {
  char claim[CLAIM_BYTES];
  struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  iso_owner me;
  out->held = fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
  ISO_TRY(read_claim(fd, path, claim));
  out->claimed = iso_owner_parse(claim, &out->owner);
  out->altered = claim[0] && !out->claimed;
  iso_owner_self(&me);
  out->here = out->claimed && strcmp(out->owner.host, me.host) == 0;
  out->gone = out->here && (strcmp(out->owner.boot, me.boot) != 0 || iso_owner_is_gone(&out->owner, &me));
  return ISO_OK;
}

iso_status iso_lock_look(const char *run, iso_lock_view *out) {
  iso_string path = {0};
  struct stat info;
  bool exists = false;
  *out = (iso_lock_view){0};
  iso_string_printf(&path, "%s/lock", run);
  iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : iso_path_probe(path.data, &exists);
  if (status == ISO_OK && exists && iso_os.stat(path.data, &info) == 0) { /* also of one that cannot be opened */
    out->beat_s = seconds_of(info.st_mtim);
    out->age_s = age_of(&info);
    out->fresh = out->age_s < FRESH_S;
  }
  if (status == ISO_OK && exists) {
    const int fd = iso_os.open(path.data, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0); /* a pipe is not waited for */
    status = fd < 0 ? iso_os_fail("open", path.data) : look_at(fd, path.data, out);
    if (fd >= 0) (void)iso_os.close(fd);
  }
  out->read = status == ISO_OK;
  iso_string_fini(&path);
  return status;
}

/* ---- taking it ------------------------------------------------------------------------------------------------------
 */

/* `enforced`: the file system has such locks, so that getting one proves that no process of this host has it. */
static iso_status lock_file(iso_lock *lock, bool *enforced, bool *held) {
  struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  int result;
  *enforced = true;
  *held = false;
  do result = fcntl(lock->fd, F_OFD_SETLK, &whole);
  while (result != 0 && errno == EINTR);
  if (result == 0) return ISO_OK;
  *held = errno == EAGAIN || errno == EACCES;
  *enforced = *held;
  if (*held) return ISO_OK;
  if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL) {
    iso_warn("the file system of '%s' has no locks (%s); the run is guarded by the lock file's heartbeat only",
             lock->path, strerror(errno));
    return ISO_OK;
  }
  return iso_os_fail("lock", lock->path);
}

/* Whether an earlier claim in the file may be overwritten. */
static iso_status judge_claim(const iso_lock *lock, const iso_owner *me, bool enforced, bool take_over) {
  char claim[CLAIM_BYTES];
  iso_owner who;
  ISO_TRY(read_claim(lock->fd, lock->path, claim));
  if (!iso_owner_parse(claim, &who)) return ISO_OK; /* released, or never claimed */
  if (strcmp(who.host, me->host) == 0) {
    const bool alive = strcmp(who.boot, me->boot) == 0 && who.start != 0 && process_start(who.pid) == who.start;
    if (!alive || (enforced && who.pid == me->pid)) return ISO_OK;
  }
  if (claim_age_s(lock->fd) < FRESH_S) return busy(lock, &who, "wait for it or stop it");
  if (!take_over) return busy(lock, &who, "if that process is known to be gone, say --take-over");
  iso_warn("'%s': taking over from process %ld on host %s, silent for %.0f s", lock->path, who.pid, who.host,
           claim_age_s(lock->fd));
  return ISO_OK;
}

static iso_status write_claim(iso_lock *lock, const iso_owner *me) {
  iso_string text = {0};
  iso_string_printf(&text, "%s %ld %s %llu", me->host, me->pid, me->boot, me->start);
  iso_record_seal_plain(&text);
  const int length = snprintf(lock->claim, sizeof lock->claim, "%s", iso_string_failed(&text) ? "" : text.data);
  iso_string_fini(&text);
  if (!length) return ISO_ERR_MEMORY; /* logged already */
  if (iso_os.ftruncate(lock->fd, 0) != 0) return iso_os_fail("write", lock->path);
  ISO_TRY(iso_file_pwrite(lock->fd, lock->path, lock->claim, (size_t)length, 0));
  return iso_os.fsync(lock->fd) == 0 ? ISO_OK : iso_os_fail("sync", lock->path); /* so that other hosts see it */
}

/* ---- the heartbeat
 * --------------------------------------------------------------------------------------------------- */

/* Renews the modification time by writing the claim again; false when the file names another process now. */
static bool beat(iso_lock *lock) {
  char claim[CLAIM_BYTES] = "";
  size_t length = strlen(lock->claim);
  ssize_t got = iso_os.pread(lock->fd, claim, sizeof claim - 1, 0);
  if (got < 0) return true; /* a storage hiccup; the next beat tries again */
  if ((size_t)got != length || memcmp(claim, lock->claim, length) != 0) {
    iso_warn("'%s' no longer names this process: another one has taken the run over", lock->path);
    return false;
  }
  (void)iso_os.pwrite(lock->fd, lock->claim, length, 0);
  struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  if (!lock->locked) lock->locked = fcntl(lock->fd, F_OFD_SETLK, &whole) == 0; /* the one before may have ended */
  return true;
}

iso_status iso_lock_examine(const char *run, bool *sealed, iso_string *faults) {
  char claim[CLAIM_BYTES], cause[96];
  iso_string path = {0};
  iso_probe probe = {.fd = -1};
  bool exists = false;
  *sealed = true;
  iso_string_printf(&path, "%s/lock", run);
  iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : iso_path_probe(path.data, &exists);
  if (status == ISO_OK && exists) status = iso_probe_open(&probe, path.data, "lock", faults);
  ssize_t got = probe.fd >= 0 ? iso_os.pread(probe.fd, claim, sizeof claim, 0) : 0;
  /* A power cut may leave the length of a line whose bytes it took; who takes the lock reads up to there. */
  while (got > 0 && claim[got - 1] == 0) got--;
  /* a line is whole or, while one is being written or since a kill or a power cut meanwhile, not there or cut */
  if (got > 0) {
    const iso_seal found = iso_record_check_plain(claim, (size_t)got, cause);
    *sealed = found == ISO_SEAL_GOOD || (found == ISO_SEAL_NONE && claim[got - 1] != '\n');
    if (found == ISO_SEAL_BROKEN) {
      iso_string_printf(faults, "lock: %s\n", cause);
      status = ISO_ERR_FORMAT;
    }
  }
  iso_probe_close(&probe);
  iso_string_fini(&path);
  return status;
}

iso_status iso_lock_check(const iso_lock *lock) {
  char claim[CLAIM_BYTES] = "";
  const ssize_t got = iso_os.pread(lock->fd, claim, sizeof claim - 1, 0);
  if (got < 0 || strcmp(claim, lock->claim) == 0) return ISO_OK; /* what cannot be read is no other one's */
  iso_owner other;
  if (claim[0] && (!iso_owner_parse(claim, &other) || other.pid <= 0))
    return iso_fail(ISO_ERR_BUSY,
                    "'%s' was altered and names no process any more: whose the run is cannot be told; this "
                    "one ends, the same command again goes on",
                    lock->path);
  return iso_fail(ISO_ERR_BUSY, "'%s' no longer names this process: another one has taken the run over; this one ends",
                  lock->path);
}

static void *heartbeat(void *argument) {
  iso_lock *lock = argument;
  bool ours = true;
  pthread_mutex_lock(&lock->mutex);
  while (!lock->stop) {
    const double until = iso_clock_s() + HEARTBEAT_S;
    while (!lock->stop && iso_condition_wait(&lock->wake, &lock->mutex, until)) continue;
    if (lock->stop || !ours) continue;
    pthread_mutex_unlock(&lock->mutex);
    ours = beat(lock);
    pthread_mutex_lock(&lock->mutex);
  }
  pthread_mutex_unlock(&lock->mutex);
  return NULL;
}

static iso_status start_heartbeat(iso_lock *lock) {
  const int error = iso_thread_start(&lock->heartbeat, heartbeat, lock);
  if (error) return iso_fail(ISO_ERR_MEMORY, "cannot start the heartbeat of '%s': %s", lock->path, strerror(error));
  lock->beating = true;
  return ISO_OK;
}

/* ---- the handle
 * ------------------------------------------------------------------------------------------------------- */

static iso_status acquire(iso_lock *lock, bool take_over) {
  iso_owner me, holder;
  bool enforced, held;
  do lock->fd = iso_os.open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  while (lock->fd < 0 && errno == EINTR);
  if (lock->fd < 0) return iso_os_fail("open", lock->path);
  ISO_TRY(lock_file(lock, &enforced, &held));
  if (held) {
    char claim[CLAIM_BYTES];
    ISO_TRY(read_claim(lock->fd, lock->path, claim));
    if (!iso_owner_parse(claim, &holder)) {
      return iso_fail(ISO_ERR_BUSY, "run folder in use: '%s' is held by a process that is just starting; try again",
                      lock->path);
    }
    if (claim_age_s(lock->fd) < FRESH_S) return busy(lock, &holder, "wait for it or stop it");
    if (!take_over) return busy(lock, &holder, "if that process is known to be gone or to hang, say --take-over");
    iso_warn("'%s': taking over from process %ld on host %s, silent for %.0f s", lock->path, holder.pid, holder.host,
             claim_age_s(lock->fd));
  }
  lock->locked = !held;
  iso_owner_self(&me);
  if (!held) ISO_TRY(judge_claim(lock, &me, enforced, take_over));
  ISO_TRY(write_claim(lock, &me));
  return start_heartbeat(lock);
}

static void lock_destroy(iso_lock *lock) {
  if (lock->fd >= 0) (void)iso_os.close(lock->fd); /* the kernel's lock goes with the descriptor */
  pthread_cond_destroy(&lock->wake);
  pthread_mutex_destroy(&lock->mutex);
  free(lock->path);
  free(lock);
}

iso_status iso_lock_acquire(const char *run, bool take_over, iso_lock **out) {
  *out = NULL;
  iso_lock *lock = calloc(1, sizeof *lock);
  if (!lock || asprintf(&lock->path, "%s/lock", run) < 0) {
    free(lock);
    return iso_fail(ISO_ERR_MEMORY, "cannot lock run folder '%s': out of memory", run);
  }
  lock->fd = -1;
  pthread_mutex_init(&lock->mutex, NULL);
  iso_condition_init(&lock->wake);
  iso_status status = acquire(lock, take_over);
  if (status != ISO_OK) {
    lock_destroy(lock);
    return status;
  }
  iso_run_folder_sweep(run);
  *out = lock;
  return ISO_OK;
}

void iso_lock_release(iso_lock **lock) {
  if (!lock || !*lock) return;
  iso_lock *l = *lock;
  char claim[CLAIM_BYTES] = "";
  *lock = NULL;
  if (l->beating) {
    pthread_mutex_lock(&l->mutex);
    l->stop = true;
    pthread_cond_signal(&l->wake);
    pthread_mutex_unlock(&l->mutex);
    pthread_join(l->heartbeat, NULL);
  }
  /* Empty means released, unless another process has taken over meanwhile. */
  if (iso_os.pread(l->fd, claim, sizeof claim - 1, 0) > 0 && strcmp(claim, l->claim) == 0)
    (void)iso_os.ftruncate(l->fd, 0);
  lock_destroy(l);
}
