/* SPDX-License-Identifier: Apache-2.0
 *
 * What the machine says, read by a thread of its own once a second: clocks, heat, pressure, what others took. 50 times
 * a second that thread looks how late it woke up: what its wait for a processor does not explain, the process was
 * stopped for, and the next reading is soon.
 *
 * Files: Documentation/accounting/psi.rst, admin-guide/pm/cpufreq.rst, driver-api/thermal and proc(5) of Linux. The
 * environment variable ISOTACH_SENSORS names a folder that stands for "/" (tests).
 *
 * Invariants
 *  1. Reading the newest reading waits for nobody.
 *  2. What cannot be read is NaN, and stops nothing.
 *  3. All of a reading is of at_s: what grew between two of them did so in the time between these.
 *  4. throttled_s is what this process was held back since its sensors began, in whichever control group it was then.
 *
 * It does not say why: signs.c does.
 */
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "train/train.h"

static const double BEAT_S = 0.02, READ_S = 1, SOON_S = 0.1;
static const double LATE_S = 0.015; /* lateness that counts as having been stopped */
enum { MOST_CPUS = 16, MOST_ZONES = 32, CHAIN = 20000, CHAIN_TRIES = 5, READ_TRIES = 3, TEXT = 8192, MOST_LEVELS = 16 };

struct iso_sensors {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t condition;
  bool stop;
  iso_evidence newest; /* under the lock */
  iso_evidence own;    /* the thread's */
  int schedstat;
  char root[512];
  char group_mount[64], group[1024]; /* the control group's own path below */
  double throttled[MOST_LEVELS];     /* of it and those above it, at the last reading */
  int levels;                        /* 0: there was none */
  double throttled_s;                /* so far */
  char text[TEXT];
};

/* ---- files ---- */

static const char *text_of(iso_sensors *s, const char *path) {
  char full[2048];
  snprintf(full, sizeof full, "%s%s", s->root, path);
  const int fd = open(full, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NULL;
  const ssize_t got = read(fd, s->text, TEXT - 1);
  (void)close(fd);
  if (got <= 0) return NULL;
  s->text[got] = 0;
  return s->text;
}

/* The number behind `name` in a text; NaN: there is none. */
static double number_after(const char *text, const char *name) {
  const char *at = text ? strstr(text, name) : NULL;
  char *end;
  if (!at) return NAN;
  at += strlen(name);
  const double value = strtod(at, &end);
  return end == at ? NAN : value;
}

static double pressure(iso_sensors *s, const char *what) {
  char path[64];
  snprintf(path, sizeof path, "/proc/pressure/%s", what);
  return 1e-6 * number_after(text_of(s, path), "total=");
}

static double hottest(iso_sensors *s) {
  double most = NAN;
  for (int i = 0; i < MOST_ZONES; i++) {
    char path[80];
    snprintf(path, sizeof path, "/sys/class/thermal/thermal_zone%d/temp", i);
    const char *text = text_of(s, path);
    if (!text) continue;
    const double celsius = 1e-3 * strtod(text, NULL);
    if (!(celsius <= most)) most = celsius;
  }
  return most;
}

/* The eighth number of the line "cpu": ticks that the host of a virtual machine took, of all processors. */
static double stolen_s(iso_sensors *s) {
  const char *at = text_of(s, "/proc/stat");
  const double processors = (double)sysconf(_SC_NPROCESSORS_ONLN), ticks = (double)sysconf(_SC_CLK_TCK);
  double value = NAN;
  char *end;
  if (!at || strncmp(at, "cpu ", 4) != 0) return NAN;
  at += 4;
  for (int i = 0; i < 8; i++, at = end) {
    value = strtod(at, &end);
    if (end == at) return NAN;
  }
  return value / ticks / processors;
}

/* ---- control groups ---- */

/* The path behind `controller` in /proc/self/cgroup: "0::/a/b" of version 2, "3:cpu,cpuacct:/a/b" of version 1. */
static bool own_group(iso_sensors *s, const char *controller, char *path, size_t bytes) {
  const char *text = text_of(s, "/proc/self/cgroup");
  for (const char *line = text; line && *line; line += strcspn(line, "\n"), line += *line == '\n') {
    const char *names = strchr(line, ':'), *own = names ? strchr(names + 1, ':') : NULL;
    if (!own || own > line + strcspn(line, "\n")) continue;
    const size_t length = strlen(controller);
    bool named = length == 0 && own == names + 1;
    for (const char *at = names + 1; length && at < own; at += strcspn(at, ",:") + 1)
      named = named || (strcspn(at, ",:") == length && memcmp(at, controller, length) == 0);
    if (!named) continue;
    snprintf(path, bytes, "%.*s", (int)strcspn(own + 1, "\n"), own + 1);
    if (strcmp(path, "/") == 0) path[0] = 0;
    return true;
  }
  path[0] = 0;
  return false;
}

static bool group_is_there(iso_sensors *s, const char *mount) {
  char path[1200];
  snprintf(s->group_mount, sizeof s->group_mount, "%s", mount);
  snprintf(path, sizeof path, "%s%s/cpu.stat", s->group_mount, s->group);
  return number_after(text_of(s, path), "nr_throttled ") >= 0;
}

/* Where the control group says how long its quota was used up: version 2, else version 1. In a container the group's
 * own path may be that of the host, and what is mounted is the group itself. */
static void find_group(iso_sensors *s) {
  static const char unified[] = "/sys/fs/cgroup", *const older[] = {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"};
  if (own_group(s, "", s->group, sizeof s->group) && group_is_there(s, unified)) return;
  for (size_t i = 0; i < ISO_COUNT(older); i++)
    if (own_group(s, "cpu", s->group, sizeof s->group) && group_is_there(s, older[i])) return;
  s->group[0] = 0;
  if (group_is_there(s, unified)) return;
  for (size_t i = 0; i < ISO_COUNT(older); i++)
    if (group_is_there(s, older[i])) return;
}

/* Of the group and those above it; NaN: it is not known. Returns how many there are. */
static int read_levels(iso_sensors *s, double throttled[MOST_LEVELS]) {
  char group[sizeof s->group], path[1200];
  snprintf(group, sizeof group, "%s", s->group);
  for (int level = 0; level < MOST_LEVELS; level++) {
    snprintf(path, sizeof path, "%s%s/cpu.stat", s->group_mount, group);
    const char *text = text_of(s, path);
    const double newer = number_after(text, "throttled_usec "), older = number_after(text, "throttled_time ");
    throttled[level] = isfinite(newer) ? 1e-6 * newer : 1e-9 * older;
    char *end = strrchr(group, '/');
    if (!end) return level + 1;
    *end = 0;
  }
  return MOST_LEVELS;
}

/* Adds what the group or one above it was held back since the last reading, whichever was longest. A process may be
 * moved to another group, and a group be given a quota, at any time: what counted before is no beginning then. */
static double throttled_s(iso_sensors *s, double so_far) {
  double now[MOST_LEVELS], most = 0;
  char mount[sizeof s->group_mount], group[sizeof s->group];
  memcpy(mount, s->group_mount, sizeof mount);
  memcpy(group, s->group, sizeof group);
  find_group(s);
  const bool same = s->levels && strcmp(mount, s->group_mount) == 0 && strcmp(group, s->group) == 0;
  const int levels = read_levels(s, now);
  bool known = false;
  for (int i = 0; i < levels; i++) {
    const double grown = now[i] - s->throttled[i];
    known = known || isfinite(now[i]);
    if (same && grown > most) most = grown;
  }
  memcpy(s->throttled, now, sizeof now);
  s->levels = levels;
  return !known ? NAN : isfinite(so_far) ? so_far + most : 0;
}

/* ---- the clock of a core ---- */

/* A chain of instructions that take a cycle each; 0: not on this machine. */
static uint64_t run_chain(void) {
  uint64_t left = CHAIN;
#if defined(__x86_64__)
  __asm__ volatile("1: dec %0\n\tjnz 1b" : "+r"(left)::"cc");
  return CHAIN;
#elif defined(__aarch64__)
  __asm__ volatile("1: subs %0, %0, #1\n\tb.ne 1b" : "+r"(left)::"cc");
  return CHAIN;
#else
  return 0 * left;
#endif
}

static double chain_ghz(void) {
  double best = 0;
  for (int i = 0; i < CHAIN_TRIES; i++) {
    const double began = iso_clock_s();
    const uint64_t cycles = run_chain();
    const double ghz = 1e-9 * (double)cycles / (iso_clock_s() - began);
    if (ghz > best) best = ghz;
  }
  return best > 0 ? best : NAN;
}

static double core_ghz(iso_sensors *s, const cpu_set_t *mask) {
  double sum = 0;
  int count = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE && count < MOST_CPUS; cpu++) {
    char path[96];
    if (!CPU_ISSET(cpu, mask)) continue;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", cpu);
    const char *text = text_of(s, path);
    if (!text) break;
    sum += 1e-6 * strtod(text, NULL);
    count++;
  }
  return count ? sum / count : s->root[0] ? NAN : chain_ghz();
}

/* ---- the thread ---- */

static double own_delay_s(const iso_sensors *s) {
  char text[96];
  const ssize_t got = s->schedstat >= 0 ? pread(s->schedstat, text, sizeof text - 1, 0) : -1;
  if (got <= 0) return 0;
  text[got] = 0;
  const char *space = strchr(text, ' ');
  return space ? 1e-9 * strtod(space, NULL) : 0;
}

/* By itself in a profile (bench/vitals). */
__attribute__((noinline)) static void read_once(iso_sensors *s) {
  iso_evidence *e = &s->own;
  struct rusage usage;
  cpu_set_t mask;
  const char *text;
  CPU_ZERO(&mask);
  (void)sched_getaffinity(0, sizeof mask, &mask);
  e->processors = CPU_COUNT(&mask);
  e->clock_ghz = core_ghz(s, &mask);
  if (!(e->clock_ghz <= e->clock_best_ghz)) e->clock_best_ghz = e->clock_ghz;
  e->celsius = hottest(s);
  e->pressure_cpu_s = pressure(s, "cpu");
  e->pressure_memory_s = pressure(s, "memory");
  e->pressure_io_s = pressure(s, "io");
  e->steal_s = stolen_s(s);
  const double throttled = throttled_s(s, s->throttled_s);
  if (isfinite(throttled)) s->throttled_s = throttled;
  e->throttled_s = throttled;
  text = text_of(s, "/proc/loadavg"); /* "0.31 0.40 0.44 2/130 4711": two are running or ready */
  for (int i = 0; text && i < 3; i++) text = (text = strchr(text, ' ')) ? text + 1 : NULL;
  e->running = text ? strtod(text, NULL) : NAN;
  text = text_of(s, "/proc/meminfo");
  e->memory_bytes = 1024 * number_after(text, "MemTotal:");
  e->page_cache_bytes = 1024 * number_after(text, "\nCached:");
  e->memory_available_bytes = 1024 * number_after(text, "MemAvailable:");
  if (!s->root[0]) e->memory_available_bytes = (double)iso_memory_available();
  iso_s3_counts s3;
  iso_s3_counts_get(&s3);
  e->s3_requests = (double)s3.requests;
  e->s3_errors = (double)s3.errors;
  e->major_faults = getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_majflt : NAN;
  e->at_s = iso_clock_s();
}

/* A reading during which the process was stopped is of two times. */
static void read_all(iso_sensors *s) {
  for (int i = 0; i < READ_TRIES; i++) {
    const double began = iso_clock_s();
    read_once(s);
    if (s->own.at_s - began < LATE_S) return;
  }
}

static void publish(iso_sensors *s) {
  pthread_mutex_lock(&s->lock);
  s->newest = s->own;
  pthread_cond_broadcast(&s->condition);
  pthread_mutex_unlock(&s->lock);
}

static bool rest(iso_sensors *s, double until_s) {
  pthread_mutex_lock(&s->lock);
  while (!s->stop && iso_clock_s() < until_s)
    if (!iso_condition_wait(&s->condition, &s->lock, until_s)) break;
  const bool goes_on = !s->stop;
  pthread_mutex_unlock(&s->lock);
  return goes_on;
}

static void *watch(void *argument) {
  iso_sensors *s = argument;
  (void)pthread_setname_np(pthread_self(), "sensors");
  iso_data_thread_spread(); /* the one that started it is pinned */
  double read_due = 0, due = iso_clock_s();
  s->schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  double delay = own_delay_s(s);
  do {
    const double now = iso_clock_s(), delayed = own_delay_s(s);
    const double late = now - due - (delayed - delay);
    if (late > LATE_S) {
      s->own.stopped_s += late;
      read_due = fmin(read_due, s->own.at_s + SOON_S);
    }
    delay = delayed;
    if (now >= read_due) { /* which takes a while, and may be delayed itself */
      read_all(s);
      publish(s);
      read_due = now + READ_S;
      delay = own_delay_s(s);
    }
    due = iso_clock_s() + BEAT_S;
  } while (rest(s, due));
  if (s->schedstat >= 0) (void)close(s->schedstat);
  return NULL;
}

iso_status iso_sensors_start(iso_sensors **out) {
  const char *root = getenv("ISOTACH_SENSORS");
  *out = NULL;
  iso_sensors *s = calloc(1, sizeof *s);
  if (!s) return iso_fail(ISO_ERR_MEMORY, "sensors: no memory for %zu bytes", sizeof *s);
  snprintf(s->root, sizeof s->root, "%s", root ? root : "");
  s->own.clock_best_ghz = s->throttled_s = NAN;
  pthread_mutex_init(&s->lock, NULL);
  iso_condition_init(&s->condition);
  if (iso_thread_start(&s->thread, watch, s) != 0) {
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->condition);
    free(s);
    return iso_fail(ISO_ERR_MEMORY, "sensors: cannot start their thread; raise the limit on processes");
  }
  pthread_mutex_lock(&s->lock);
  while (s->newest.at_s == 0) (void)iso_condition_wait(&s->condition, &s->lock, iso_clock_s() + READ_S);
  pthread_mutex_unlock(&s->lock);
  *out = s;
  return ISO_OK;
}

void iso_sensors_get(iso_sensors *s, iso_evidence *evidence) {
  if (!s || pthread_mutex_trylock(&s->lock) != 0) return;
  *evidence = s->newest;
  pthread_mutex_unlock(&s->lock);
}

void iso_sensors_stop(iso_sensors **sensors) {
  iso_sensors *s = *sensors;
  if (!s) return;
  pthread_mutex_lock(&s->lock);
  s->stop = true;
  pthread_cond_signal(&s->condition);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, NULL);
  pthread_mutex_destroy(&s->lock);
  pthread_cond_destroy(&s->condition);
  free(s);
  *sensors = NULL;
}
