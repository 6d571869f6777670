/* SPDX-License-Identifier: Apache-2.0
 *
 * kill [--times N] [--seed S] [--sample K] [--keep] [--verbose] [--until-caught] [--slow-log MS FAULTY.so] CONFIG
 * [key=value ...]
 *
 * Kills a training run N times with SIGKILL and lets it go on each time; then compares it with a run that was never
 * killed. The binary is $ISOTACH. Prints `lost L of N, wrong W of N` as its last line; exit code 0 if both are 0.
 *
 * --until-caught ends with the first thing that is wrong, --slow-log makes each write of the log take longer.
 *
 * Moments are dealt evenly to kinds, seeded: during a start (by time, and at its k-th change of a file), among steps,
 * at the k-th write of a log segment, at the k-th change in snapshots/, and at the end. Changes are seen by inotify.
 *
 * After each kill
 *  1. what status.json and metrics.jsonl called durable is not lost: `isotach verify` leads at least so far, and the
 *     next start went on from there or later;
 *  2. `isotach verify` finds no fault;
 *  3. for each K-th one, the digest of the run at that step is that of a run that was never killed.
 * At the end the digests of both are equal, and metrics.jsonl has each step once.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 64, TEXT = 1 << 16, LIFE_LIMIT_S = 60, RETRIES = 20 };
typedef enum kind { START_TIME, START_FILE, STEP, LOG, SNAPSHOT, END, KINDS } kind;
static const char *const kind_names[KINDS] = {"start, by time", "start, at a file", "among steps",
                                              "log write",      "snapshot",         "end"};

static struct {
  const char *isotach, *config;
  const char *keys[WORDS]; /* key=value */
  int key_count;
  int times, sample;
  uint64_t seed;
  bool keep, verbose, until_caught;
  const char *slow_ms, *faulty;
  char folder[PATH_MAX - 64], run[PATH_MAX], reference[PATH_MAX];
} session;

static struct {
  int kills[KINDS], lost, wrong, sampled, lives, incarnation;
  double start_s; /* that a start takes until its first step */
  int64_t acknowledged, recovered;
} seen = {.start_s = 0.4};

static double now_s(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void sleep_s(double s) {
  const struct timespec time = {(time_t)s, (long)(1e9 * (s - (double)(time_t)s))};
  nanosleep(&time, NULL);
}

/* splitmix64 */
static uint64_t draw(void) {
  uint64_t z = session.seed += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
static double draw_to(double most) {
  return most * (double)(draw() >> 11) * 0x1p-53;
}

__attribute__((format(printf, 1, 2), noreturn)) static void give_up(const char *format, ...) {
  va_list list;
  va_start(list, format);
  fprintf(stderr, "kill: ");
  vfprintf(stderr, format, list);
  fprintf(stderr, "\n");
  va_end(list);
  exit(2);
}

/* ---- files ---- */

/* At most TEXT - 1 bytes of the file's end; "" when it is not there. */
static char *read_end(const char *folder, const char *name) {
  static char text[TEXT];
  char path[PATH_MAX + 512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  text[0] = 0;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  const off_t size = lseek(fd, 0, SEEK_END);
  const ssize_t got = pread(fd, text, TEXT - 1, size > TEXT - 1 ? size - (TEXT - 1) : 0);
  text[got > 0 ? got : 0] = 0;
  (void)close(fd);
  return text;
}

/* The greatest number behind "KEY": among whole lines; -1: none. */
static int64_t greatest(const char *text, const char *key, bool lines) {
  char quoted[64];
  int64_t most = -1;
  snprintf(quoted, sizeof quoted, "\"%s\": ", key);
  for (const char *at = text; (at = strstr(at, quoted));) {
    at += strlen(quoted);
    if (lines && !strchr(at, '\n')) break;
    const int64_t value = strtoll(at, NULL, 10);
    if (value > most) most = value;
  }
  return most;
}

static int64_t steps_taken(void) {
  return greatest(read_end(session.run, "metrics.jsonl"), "step", true);
}

static int64_t acknowledged(void) {
  const int64_t shown = greatest(read_end(session.run, "metrics.jsonl"), "durable_step", true);
  const int64_t stated = greatest(read_end(session.run, "status.json"), "durable_step", false);
  return shown > stated ? shown : stated > 0 ? stated : 0;
}

/* ---- programs ---- */

static pid_t start(char *const words[], const char *out, const char *err) {
  const pid_t child = fork();
  if (child < 0) give_up("cannot fork: %s", strerror(errno));
  if (child) return child;
  const int in = open("/dev/null", O_RDONLY), o = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0666),
            e = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (dup2(in, 0) < 0 || dup2(o, 1) < 0 || dup2(e, 2) < 0) _exit(126);
  execv(session.isotach, words);
  _exit(127);
}

static pid_t train(const char *run, int64_t stop_at, const char *more) {
  static char run_key[PATH_MAX + 8], stop_key[64];
  char *words[WORDS + 16];
  int n = 0;
  snprintf(run_key, sizeof run_key, "run=%s", run);
  snprintf(stop_key, sizeof stop_key, "stop_at=%lld", (long long)stop_at);
  words[n++] = (char *)(uintptr_t) "isotach";
  words[n++] = (char *)(uintptr_t) "train";
  words[n++] = (char *)(uintptr_t)session.config;
  words[n++] = (char *)(uintptr_t) "steps=100000000"; /* the length of the schedule; no life comes so far */
  words[n++] = (char *)(uintptr_t)more;
  for (int i = 0; i < session.key_count; i++) words[n++] = (char *)(uintptr_t)session.keys[i];
  words[n++] = run_key;
  words[n++] = stop_key;
  words[n] = NULL;
  return start(words, "train.out", "train.err");
}

static int wait_for(pid_t child) {
  int status;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) give_up("waitpid: %s", strerror(errno));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Its exit code; standard output in verb.out. */
static int call(const char *verb, const char *object, const char *option) {
  char *words[] = {(char *)(uintptr_t) "isotach", (char *)(uintptr_t)verb, (char *)(uintptr_t)object,
                   (char *)(uintptr_t)option, NULL};
  return wait_for(start(words, "verb.out", "verb.err"));
}

static void tell(const char *what) {
  fprintf(stderr, "kill %d: %s\n", seen.lives, what);
  fputs(read_end(".", "train.err"), stderr);
  fputs(read_end(".", "verb.out"), stderr);
  fputs(read_end(".", "verb.err"), stderr);
}

static bool digest(const char *run, int64_t step, char hex[65]) {
  char object[PATH_MAX + 32];
  snprintf(object, sizeof object, step < 0 ? "%s" : "%s@%lld", run, (long long)step);
  const int code = call("digest", object, NULL);
  snprintf(hex, 65, "%s", read_end(".", "verb.out"));
  return code == 0 && strlen(hex) == 64;
}

/* ---- one life ---- */

typedef struct watch {
  int fd, snapshot_root, log, incarnations, run;
} watch;

static int add(const watch *w, const char *name) {
  char path[PATH_MAX + 512];
  snprintf(path, sizeof path, "%s%s%s", session.run, *name ? "/" : "", name);
  return inotify_add_watch(w->fd, path, IN_CREATE | IN_MODIFY | IN_MOVED_TO | IN_DELETE);
}

static void add_all(watch *w) {
  w->run = add(w, "");
  w->snapshot_root = add(w, "snapshots");
  w->log = add(w, "log");
  w->incarnations = add(w, "incarnations");
}

/* Changes that count for this kind since the last call; folders that come into being are watched too. */
static int changes(watch *w, kind of) {
  char buffer[8192] __attribute__((aligned(8)));
  int count = 0;
  struct pollfd ready = {w->fd, POLLIN, 0};
  if (poll(&ready, 1, 2) <= 0) return 0;
  const ssize_t got = read(w->fd, buffer, sizeof buffer);
  for (ssize_t at = 0; at < got;) {
    const struct inotify_event *e = (const struct inotify_event *)(const void *)(buffer + at);
    at += (ssize_t)(sizeof *e + e->len);
    char name[NAME_MAX + 32];
    if (e->mask & IN_ISDIR && e->mask & IN_CREATE && e->wd == w->run) add_all(w);
    if (e->mask & IN_ISDIR && e->mask & IN_CREATE && e->wd == w->snapshot_root) {
      snprintf(name, sizeof name, "snapshots/%s", e->name);
      (void)add(w, name);
    }
    const bool lines = e->wd == w->run && (!e->len || strcmp(e->name, "metrics.jsonl") == 0);
    const bool in_log = e->wd == w->log, in_start = e->wd == w->run || e->wd == w->incarnations;
    if (of == LOG ? in_log : of == START_FILE ? in_start : of == SNAPSHOT ? !in_log && !in_start : !lines) count++;
  }
  return count;
}

static bool ended(pid_t child) {
  siginfo_t info = {0};
  return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child;
}

static void await_steps(pid_t child, int64_t beyond, double until) {
  while (!ended(child) && now_s() < until && steps_taken() <= beyond) sleep_s(0.003);
}

/* Waits for the moment of this kind. */
static void await_moment(pid_t child, kind of, watch *w, int64_t before, int64_t stop_at) {
  const double began = now_s(), until = began + LIFE_LIMIT_S;
  if (of == START_TIME) {
    sleep_s(draw_to(1.1 * seen.start_s));
    return;
  }
  if (of == START_FILE) {
    for (int left = 1 + (int)(draw() % 12); left > 0 && !ended(child) && now_s() < until;) left -= changes(w, of);
    return;
  }
  await_steps(child, of == END ? stop_at - 1 : before, until);
  if (of != END) seen.start_s = 0.5 * (seen.start_s + now_s() - began);
  if (of == STEP || (of == END && draw() % 2)) sleep_s(draw_to(of == STEP ? 0.3 : 0.02));
  if (of == STEP || of == END) return;
  while (changes(w, KINDS) > 0) {
  } /* of before */
  for (int left = 1 + (int)(draw() % (of == LOG ? 80 : 30)); left > 0 && !ended(child) && now_s() < until;)
    left -= changes(w, of);
}

/* false: it had ended by itself before. */
static bool kill_once(kind of) {
  const int64_t before = steps_taken(), stop_at = of == END ? (before > 0 ? before : 0) + 5 : 0;
  watch w = {.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK)};
  if (w.fd < 0) give_up("inotify: %s", strerror(errno));
  add_all(&w);
  const pid_t child = train(session.run, stop_at, "checkpoint.snapshot_every=20");
  await_moment(child, of, &w, before, stop_at);
  const bool alive = !ended(child);
  (void)kill(child, SIGKILL);
  const int code = wait_for(child);
  (void)close(w.fd);
  if (alive) return true;
  if (code != 0 && code != 128 + SIGKILL) {
    tell("the run ended by itself");
    seen.wrong++;
  }
  return false;
}

/* ---- what is checked ---- */

/* Where the newest start went on, and its number. */
static int64_t went_on_after(int *number_out) {
  char path[PATH_MAX], name[32];
  int newest = 0;
  *number_out = 0;
  snprintf(path, sizeof path, "%.3900s/incarnations", session.run);
  DIR *folder = opendir(path);
  if (!folder) return 0;
  for (struct dirent *e; (e = readdir(folder));) {
    int number, length = 0;
    if (sscanf(e->d_name, "%d.json%n", &number, &length) == 1 && length && !e->d_name[length] && number > newest)
      newest = number;
  }
  closedir(folder);
  snprintf(name, sizeof name, "%04d.json", newest);
  *number_out = newest;
  return newest ? greatest(read_end(path, name), "begins_after", false) : 0;
}

/* The same steps without a kill, up to here. */
static bool compare(int64_t step, const char *run_object) {
  char killed[65], whole[65];
  const bool known = digest(session.run, run_object ? -1 : step, killed);
  const int code = wait_for(train(session.reference, step, "checkpoint.snapshot_every=0"));
  return known && code == 0 && digest(session.reference, -1, whole) && strcmp(killed, whole) == 0;
}

static void check(kind of) {
  char path[PATH_MAX + 16];
  int number;
  const int64_t said_before = seen.acknowledged, began = went_on_after(&number);
  bool lost = number > seen.incarnation && began < said_before, wrong = false;
  if (session.verbose)
    fprintf(stderr, "kill %d, %s: start %d after %lld; step %lld durable before, %lld now\n", seen.lives + 1,
            kind_names[of], number, (long long)began, (long long)said_before, (long long)acknowledged());
  seen.incarnation = number;
  snprintf(path, sizeof path, "%s/run.json", session.run);
  seen.lives++;
  if (access(path, F_OK) != 0) return; /* before anything was taken */
  seen.acknowledged = acknowledged();
  if (call("verify", session.run, "--json") != 0) {
    wrong = true;
    tell("verify finds faults");
  }
  const char *said = read_end(".", "verb.out");
  const int64_t snapshots_lead = greatest(said, "durable_step", false),
                log_leads = greatest(said, "log_last_step", false);
  seen.recovered = snapshots_lead > log_leads ? snapshots_lead : log_leads;
  if (log_leads < seen.acknowledged || lost) {
    char line[160];
    snprintf(line, sizeof line,
             "step %lld was durable (%lld before), this start began after %lld, the log leads to %lld",
             (long long)seen.acknowledged, (long long)said_before, (long long)began, (long long)log_leads);
    tell(line);
    lost = true;
  }
  if (!lost && !wrong && seen.acknowledged > 0 && seen.lives % session.sample == 0) {
    seen.sampled++;
    wrong = !compare(seen.acknowledged, NULL);
    if (wrong) tell("the digest of the durable step is another");
  }
  seen.lost += lost;
  seen.wrong += wrong;
}

/* metrics.jsonl holds each step once, in order. */
static bool lines_are_whole(int64_t last) {
  char path[PATH_MAX + 16], line[4096];
  snprintf(path, sizeof path, "%s/metrics.jsonl", session.run);
  FILE *file = fopen(path, "r");
  int64_t step = 0;
  long long stated;
  while (file && fgets(line, sizeof line, file) && sscanf(line, "{\"step\": %lld", &stated) == 1 && stated == step + 1)
    step++;
  const bool whole = file && feof(file) && step == last;
  if (file) (void)fclose(file);
  return whole;
}

/* The run is let to its end, and one that was never stopped either is held beside it. */
static void check_end(void) {
  const int64_t last = (seen.recovered > seen.acknowledged ? seen.recovered : seen.acknowledged) + 10;
  if (wait_for(train(session.run, last, "checkpoint.snapshot_every=20")) != 0) {
    tell("the last start did not come to the end");
    seen.wrong++;
    return;
  }
  snprintf(session.reference, sizeof session.reference, "%s/whole", session.folder);
  if (!compare(last, "")) {
    tell("the digest of the end is another");
    seen.wrong++;
  }
  if (!lines_are_whole(last)) {
    tell("metrics.jsonl does not have each step once");
    seen.wrong++;
  }
  if (call("verify", session.run, "--replay") != 0) {
    tell("verify --replay");
    seen.wrong++;
  }
  printf("%lld steps, %d kills:", (long long)last, session.times);
  for (int k = 0; k < KINDS; k++) printf(" %d %s%s", seen.kills[k], kind_names[k], k + 1 < KINDS ? "," : "");
  printf("; %d digests of durable steps compared\n", seen.sampled);
}

/* ---- the command line ---- */

static void slow_the_log(void) {
  char setting[PATH_MAX + 64];
  FILE *control = fopen("control", "w");
  if (!control || fprintf(control, "slow %s", session.slow_ms) < 0 || fclose(control) != 0) give_up("control file");
  snprintf(setting, sizeof setting, "/log/:%s/control", session.folder);
  (void)setenv("ISO_FAULTY", setting, 1);
  (void)setenv("LD_PRELOAD", session.faulty, 1);
}

static void parse(int count, char **words) {
  session.times = 200;
  session.seed = 1;
  session.isotach = getenv("ISOTACH");
  for (int i = 1; i < count; i++) {
    const bool more = i + 1 < count;
    if (strcmp(words[i], "--times") == 0 && more)
      session.times = atoi(words[++i]);
    else if (strcmp(words[i], "--seed") == 0 && more)
      session.seed = strtoull(words[++i], NULL, 10);
    else if (strcmp(words[i], "--sample") == 0 && more)
      session.sample = atoi(words[++i]);
    else if (strcmp(words[i], "--keep") == 0)
      session.keep = true;
    else if (strcmp(words[i], "--until-caught") == 0)
      session.until_caught = true;
    else if (strcmp(words[i], "--verbose") == 0)
      session.verbose = true;
    else if (strcmp(words[i], "--slow-log") == 0 && i + 2 < count)
      session.slow_ms = words[i + 1], session.faulty = words[i + 2], i += 2;
    else if (strchr(words[i], '=') && session.config && session.key_count < WORDS)
      session.keys[session.key_count++] = words[i];
    else if (!session.config && words[i][0] != '-')
      session.config = words[i];
    else
      give_up("usage: kill [--times N] [--seed S] [--sample K] [--keep] [--verbose] [--until-caught] [--slow-log MS "
              "FAULTY.so] CONFIG [key=value ...]");
  }
  if (!session.isotach || !session.config || session.times < 1)
    give_up("ISOTACH must name the binary, and a config is needed");
  if (session.sample < 1) session.sample = session.times <= 40 ? 4 : 10;
}

int main(int count, char **words) {
  parse(count, words);
  static char config[PATH_MAX], binary[PATH_MAX];
  if (!realpath(session.config, config) || !realpath(session.isotach, binary))
    give_up("no such file: %s", strerror(errno));
  session.config = config;
  session.isotach = binary;
  const char *temporary = getenv("TMPDIR");
  snprintf(session.folder, sizeof session.folder, "%.3900s/isotach-kill.XXXXXX", temporary ? temporary : "/tmp");
  if (!mkdtemp(session.folder) || chdir(session.folder) != 0) give_up("cannot make '%s'", session.folder);
  snprintf(session.run, sizeof session.run, "%s/run", session.folder);
  snprintf(session.reference, sizeof session.reference, "%s/stepwise", session.folder);
  if (session.faulty) slow_the_log();
  for (int i = 0, tries = 0; i < session.times && tries < RETRIES;) {
    const kind of = (kind)(i % KINDS);
    if (!kill_once(of)) {
      tries++;
      continue;
    }
    tries = 0;
    seen.kills[of]++;
    check(of);
    i++;
    if (session.until_caught && seen.lost + seen.wrong) break;
    if (isatty(1))
      printf("%d of %d: step %lld durable\r", i, session.times, (long long)seen.acknowledged), fflush(stdout);
  }
  const bool caught = session.until_caught && seen.lost + seen.wrong;
  int killed = 0;
  for (int k = 0; k < KINDS; k++) killed += seen.kills[k];
  if (killed < session.times && !caught) tell("it ends before it can be killed");
  if (!caught) check_end();
  const bool good = seen.lost == 0 && seen.wrong == 0 && killed == session.times;
  if (!session.keep && (good || session.until_caught)) {
    char *remove[] = {(char *)(uintptr_t) "rm", (char *)(uintptr_t) "-rf", session.folder, NULL};
    const pid_t child = fork();
    if (child == 0) execvp("rm", remove), _exit(127);
    if (child > 0) (void)wait_for(child);
  } else {
    fprintf(stderr, "kill: kept %s\n", session.folder);
  }
  printf("lost %d of %d, wrong %d of %d\n", seen.lost, killed, seen.wrong, killed);
  return good ? 0 : 1;
}
