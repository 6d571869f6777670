/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach doctor, real steps: `isotach train` with this config for a while, in a folder beside the run's, as the user
 * will start it. What metrics.jsonl says of the steps behind the first ones is held against the thresholds of the vital
 * signs (docs/metrics.md).
 *
 * The trial has no mirror and evaluates nothing. It is stopped by SIGTERM, and killed if it does not heed that.
 */
#include <errno.h>
#include <limits.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

enum { WORDS = 64, UNTIMED = 3, LEAST_STEPS = 8 };
static const double start_s = 6; /* beside the steps: at least so long may the trial take to the first one */
static const double stop_s = 8;  /* that its end may take; with the other checks all stays below half a minute */
static const double load_p95_s = 3e-3, flat = 1.05, wait_share = 0.01; /* bounds of the signs: train/signs.c */
static const double reduce_mean_s = 2e-3, reduce_std_s = 3e-4, reduce_std_share = 2e-3; /* or of the step: the larger */
static const double many_others = 0.05; /* of the processors: as doctor_machine.c */
static const double explains = 0.2;     /* of the time that steps were late: what is called its cause */

typedef struct trial {
  const char *run, *log; /* a run folder, and what training says */
  pid_t pid;
  int code;      /* exit code; -1: killed by us */
  double took_s; /* until it was told to end */
} trial;

static bool start(iso_doctor *d, trial *t) {
  const char *argv[WORDS] = {"isotach", "train", d->config_path};
  int count = 3;
  if (d->override_count > WORDS - 12) {
    (void)iso_fail(ISO_ERR_USAGE, "doctor: more than %d overrides", WORDS - 12);
    return false;
  }
  for (int i = 0; i < d->override_count; i++) argv[count++] = d->overrides[i];
  argv[count++] = iso_arena_printf(d->arena, "run=%s", t->run);
  argv[count++] = "checkpoint.mirror=";
  argv[count++] = "checkpoint.target=";
  argv[count++] = "evaluate.every=0";
  argv[count++] = "stop_at=0";
  argv[count++] = iso_arena_printf(d->arena, "--ranks=%lld", (long long)d->ranks);
  argv[count++] = "--json";
  return iso_spawn(argv, t->log, &t->pid) == ISO_OK;
}

static bool has_ended(trial *t) {
  int state;
  if (t->pid && waitpid(t->pid, &state, WNOHANG) == t->pid) {
    t->pid = 0;
    t->code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  }
  return t->pid == 0;
}

static void wait_until(trial *t, double until_s) {
  while (iso_clock_s() < until_s && !has_ended(t)) nanosleep(&(struct timespec){0, 10000000}, NULL);
}

static int64_t steps_taken(const trial *t) {
  char *lines, path[PATH_MAX];
  size_t bytes = 0;
  int64_t count = 0;
  snprintf(path, sizeof path, "%s/metrics.jsonl", t->run);
  if (!iso_path_exists(path) || iso_lines_read(t->run, "metrics", &lines, &bytes, NULL) != ISO_OK) return 0;
  for (size_t i = 0; i < bytes; i++) count += lines[i] == '\n';
  free(lines);
  return count;
}

/* Returns seconds to the first step; -1: there was none. */
static double run_trial(const iso_doctor *d, trial *t) {
  const double began = iso_clock_s(), until = began + start_s + d->steps_s;
  double first_s = -1;
  while (!has_ended(t) && iso_clock_s() < until && first_s < 0) {
    wait_until(t, iso_clock_s() + 0.05);
    if (steps_taken(t) > 0) first_s = iso_clock_s() - began;
  }
  const double stepping = iso_clock_s();
  if (first_s >= 0) wait_until(t, fmin(stepping + d->steps_s, until));
  while (first_s >= 0 && !has_ended(t) && steps_taken(t) < UNTIMED + LEAST_STEPS && iso_clock_s() < until)
    wait_until(t, iso_clock_s() + 0.2);
  t->took_s = iso_clock_s() - began;
  if (!has_ended(t)) {
    (void)kill(t->pid, SIGTERM);
    wait_until(t, iso_clock_s() + stop_s);
  }
  if (!has_ended(t)) {
    (void)kill(t->pid, SIGKILL);
    int state;
    while (waitpid(t->pid, &state, 0) < 0 && errno == EINTR) continue;
    t->pid = 0;
    t->code = -1;
  }
  if (first_s < 0 && steps_taken(t) > 0) first_s = iso_clock_s() - began;
  return first_s;
}

/* ---- what its steps say ---- */

typedef enum part { WALL, DATA, REDUCE, STORAGE, PARTS } part;
static const char *const part_keys[PARTS] = {"wall_s", "data_wait_s", "reduce_wait_s", "storage_wait_s"};
typedef struct steps {
  double *values[PARTS]; /* ascending, of `count` steps */
  double mean[PARTS], deviation[PARTS];
  int64_t count, last, durable, starved;
} steps;

static double quantile(const steps *s, part p, int percent) {
  return iso_quantile(s->values[p], s->count, percent);
}

static void summarise(steps *s) {
  for (int p = 0; p < PARTS; p++) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < s->count; i++) sum += s->values[p][i];
    s->mean[p] = sum / (double)s->count;
    for (int64_t i = 0; i < s->count; i++) squares += pow(s->values[p][i] - s->mean[p], 2);
    s->deviation[p] = sqrt(squares / (double)s->count);
    iso_sort(s->values[p], s->count);
  }
}

static bool read_steps(const trial *t, steps *s) {
  char *text = NULL;
  size_t bytes = 0, lines = 1;
  if (iso_lines_read(t->run, "metrics", &text, &bytes, NULL) != ISO_OK || !text) return false;
  for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
  bool there = true;
  for (int p = 0; p < PARTS; p++) there = (s->values[p] = malloc(lines * sizeof(double))) && there;
  int64_t seen = 0;
  for (char *line = text, *end; there && (end = memchr(line, '\n', (size_t)(text + bytes - line))); line = end + 1) {
    s->last = (int64_t)iso_line_number(line, end, "step");
    s->durable = (int64_t)iso_line_number(line, end, "durable_step");
    if (seen++ < UNTIMED) continue;
    s->starved += memmem(line, (size_t)(end - line), "\"starved\": true", 15) != NULL;
    for (int p = 0; p < PARTS; p++) s->values[p][s->count] = iso_line_number(line, end, part_keys[p]);
    s->count++;
  }
  free(text);
  if (s->count) summarise(s);
  return s->count > 0;
}

/* What the trial's own verdict names as the largest cause of lost time (report.json); that one rank waits for another
 * has a cause of its own, which is named if there is one. */
typedef struct blamed {
  char cause[24], detail[300]; /* cause "": none */
  double seconds, share;       /* share: of the steps' time */
  int64_t rank;
} blamed;

static const char *advice_for(const char *cause) {
  static const struct {
    const char *cause, *advice;
  } known[] = {
      {"source", "raise data.threads; make shards once with isotach data build"},
      {"stopped", "find who stops the process or its machine (SIGSTOP, a debugger, a paused virtual machine)"},
      {"preempted",
       "stop what else runs here (the system's top shows it), or give the run processors of its own; lower threads"},
      {"throttled", "raise the quota of the control group (cpu.max)"},
      {"steal", "the host of this virtual machine is shared: choose one that is not"},
      {"clock", "look at cooling, power limits and the frequency governor"},
      {"memory", "free memory: other processes, or a smaller batch.micro"},
      {"disk", "a faster disk for `run`, or log.compress: on"},
      {"s3", "the service refuses or drops requests: look at its limits and at the network"},
      {"other",
       "end the other work first, where the row above names some; else a faster disk for `run`, where lines and locks "
       "are written in each step"},
      {"rank", "give each rank cores of its own; isotach topology shows them"},
  };
  for (size_t i = 0; i < ISO_COUNT(known); i++)
    if (strcmp(known[i].cause, cause) == 0) return known[i].advice;
  return "look at other work on the machine and at the waits below";
}

static void read_blamed(iso_doctor *d, const trial *t, blamed *out) {
  const char *path = iso_path_join(d->arena, t->run, "report.json"), *cause, *detail;
  iso_json *report = NULL;
  *out = (blamed){0};
  if (!path || !iso_path_exists(path) || iso_json_read(path, &report) != ISO_OK) return;
  const iso_json *causes = iso_json_get(report, "causes"), *first = causes ? causes->child : NULL; /* longest first */
  for (const iso_json *one = first; one; one = one->next) {
    if (iso_json_string(one, path, "cause", "", &cause) != ISO_OK || strcmp(cause, "rank") == 0) continue;
    first = one;
    break;
  }
  if (first && iso_json_string(first, path, "cause", "", &cause) == ISO_OK &&
      iso_json_string(first, path, "detail", "", &detail) == ISO_OK &&
      iso_json_double(first, path, "seconds", 0, &out->seconds) == ISO_OK &&
      iso_json_double(first, path, "share", 0, &out->share) == ISO_OK &&
      iso_json_int(first, path, "rank", 0, &out->rank) == ISO_OK) {
    snprintf(out->cause, sizeof out->cause, "%s", cause);
    snprintf(out->detail, sizeof out->detail, "%s", detail);
  }
  iso_json_destroy(&report);
}

static void judge_level(iso_doctor *d, const trial *t, const steps *s) {
  const double p99 = quantile(s, WALL, 99) / d->step_s;
  double late_s = 0; /* what steps took beyond the median */
  for (int64_t i = 0; i < s->count; i++) late_s += fmax(0, s->values[WALL][i] - d->step_s);
  blamed b;
  char where[32] = "";
  read_blamed(d, t, &b);
  if (d->ranks > 1) snprintf(where, sizeof where, ", rank %lld", (long long)b.rank);
  const bool level = p99 <= flat, explained = b.cause[0] && b.seconds >= explains * late_s;
  const bool busy = d->others > many_others; /* before the steps, and most likely then too */
  if (level || !explained) {
    const char *why = level  ? ""
                      : busy ? iso_arena_printf(d->arena,
                                                "; the steps show no reason, but other processes used %.1f%% of the "
                                                "processors (other work)",
                                                100 * d->others)
                             : "; the machine shows no reason";
    iso_doctor_add(d, "steps level", level ? ISO_VERDICT_OK : ISO_VERDICT_WARNING, "P99 at most 1.05 of the median",
                   advice_for(busy ? "preempted" : ""), "median %.2f ms, P99 %.3f of it%s", 1e3 * d->step_s, p99,
                   why ? why : "");
    return;
  }
  iso_doctor_add(d, "steps level", ISO_VERDICT_WARNING, "P99 at most 1.05 of the median", advice_for(b.cause),
                 "median %.2f ms, P99 %.3f of it; cause: %s, %.2f s (%.1f%%%s): %s", 1e3 * d->step_s, p99, b.cause,
                 b.seconds, 100 * b.share, where, b.detail);
}

static void judge_reduce(iso_doctor *d, const steps *s) {
  const double mean = s->mean[REDUCE], deviation = s->deviation[REDUCE], step_s = s->mean[WALL];
  const double most = fmax(reduce_mean_s, wait_share * step_s), uneven = fmax(reduce_std_s, reduce_std_share * step_s);
  const char *wanted = iso_arena_printf(
      d->arena, "mean below %.3f ms (2 ms or 1%% of the step), deviation below %.3f ms (0.3 ms or 0.2%%)", 1e3 * most,
      1e3 * uneven);
  iso_doctor_add(d, "reduction wait", mean < most && deviation < uneven ? ISO_VERDICT_OK : ISO_VERDICT_WARNING, wanted,
                 "give each rank cores of its own (isotach topology shows them), and stop what else runs there",
                 "mean %.3f ms, standard deviation %.3f ms, P95 %.3f ms", 1e3 * mean, 1e3 * deviation,
                 1e3 * quantile(s, REDUCE, 95));
}

static void judge(iso_doctor *d, const trial *t, const steps *s) {
  d->step_s = quantile(s, WALL, 50);
  const double load = quantile(s, DATA, 95);
  judge_level(d, t, s);
  iso_doctor_add(d, "data wait", load < load_p95_s && s->starved == 0 ? ISO_VERDICT_OK : ISO_VERDICT_WARNING,
                 "P95 below 3 ms, no starved step", "raise data.threads; make shards once with isotach data build",
                 "P95 %.4f ms, %lld step%s starved", 1e3 * load, (long long)s->starved, iso_plural(s->starved));
  if (d->ranks > 1) judge_reduce(d, s);
  const double storage = s->mean[STORAGE];
  iso_doctor_add(d, "storage wait", storage <= wait_share * d->step_s ? ISO_VERDICT_OK : ISO_VERDICT_WARNING,
                 "mean below 1% of the step",
                 iso_doctor_warned(d, "other work")
                     ? "end the other work first: the threads that write had no processor"
                     : "a faster disk for `run`, or log.compress: on",
                 "mean %.3f ms, P95 %.3f ms; the durable step was %lld behind at the end", 1e3 * storage,
                 1e3 * quantile(s, STORAGE, 95), (long long)(s->last - s->durable));
}

static void conclude(iso_doctor *d, trial *t, double first_s) {
  steps s = {0};
  const bool good = t->code == 0 || t->code == 75;
  if (!good && t->code >= 0) {
    char *line = iso_last_line(t->log);
    const char *said = line ? line : "";
    if (strncmp(said, "isotach: error: ", 16) == 0) said += 16;
    iso_doctor_add(d, "real steps", ISO_VERDICT_STOP, "a run that takes steps", "as it says", "exit code %d: %s",
                   t->code, said);
    free(line);
  } else if (first_s < 0) {
    iso_doctor_add(
        d, "real steps", ISO_VERDICT_WARNING, "a first step soon",
        "the first reading of a large corpus takes long once: start the run and look; --steps-s 60 waits longer",
        "no step within %.0f s", t->took_s);
  } else if (!read_steps(t, &s) || s.count < LEAST_STEPS) {
    iso_doctor_add(d, "real steps", ISO_VERDICT_SKIPPED, "", "--steps-s 60 takes more time",
                   "first step after %.1f s, %lld steps in %.0f s: too few to judge, the first %d do not count",
                   first_s, (long long)steps_taken(t), t->took_s, UNTIMED);
  } else {
    iso_doctor_add(d, "real steps", t->code < 0 ? ISO_VERDICT_WARNING : ISO_VERDICT_OK, "ends when it is told to",
                   "look at the storage: the last step could not be made durable in 8 s",
                   "first step after %.1f s, %lld steps (the rows below leave out the first %d), %.0f tokens/s%s",
                   first_s, (long long)s.count + UNTIMED, UNTIMED,
                   (double)(d->config.batch.sequences * d->config.data.sequence) / quantile(&s, WALL, 50),
                   t->code < 0 ? "; had to be killed" : "");
    judge(d, t, &s);
  }
  for (int p = 0; p < PARTS; p++) free(s.values[p]);
}

void iso_doctor_steps(iso_doctor *d) {
  trial t = {.code = -1};
  if (d->launched && d->steps_s > 0) return; /* tried already, by all ranks */
  if (d->stops || d->steps_s <= 0) {
    iso_doctor_add(d, "real steps", ISO_VERDICT_SKIPPED, "", "", "%s",
                   d->stops ? "not tried: see what stops the run" : "not asked for");
    return;
  }
  const char *folder = iso_doctor_folder(d);
  t.run = folder ? iso_path_join(d->arena, folder, "run") : NULL;
  t.log = folder ? iso_path_join(d->arena, folder, "log") : NULL;
  if (!t.run || !t.log || !start(d, &t))
    iso_doctor_failed(d, "real steps", ISO_VERDICT_STOP, "a folder that can be written to beside `run`", "check `run`");
  else
    conclude(d, &t, run_trial(d, &t));
  if (folder) iso_folder_remove(folder);
}

/* ---- with the ranks of a launcher ---- */

/* Ends training as a user does, some time after its first step. */
typedef struct timer {
  const trial *trial;
  double seconds, first_s, took_s; /* to the first step, -1: there was none; until it was told to end */
  _Atomic bool over;
} timer;

static void *wait_and_stop(void *argument) {
  timer *t = argument;
  const double began = iso_clock_s();
  double until_s = began + start_s + t->seconds;
  while (!t->over && iso_clock_s() < until_s) {
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    if (t->first_s >= 0 || steps_taken(t->trial) == 0) continue;
    t->first_s = iso_clock_s() - began;
    until_s = fmin(until_s, iso_clock_s() + t->seconds);
  }
  t->took_s = iso_clock_s() - began;
  while (!t->over) { /* the first one may come before training hears it */
    (void)kill(getpid(), SIGTERM);
    for (int i = 0; i < 40 && !t->over; i++) nanosleep(&(struct timespec){0, 50000000}, NULL);
  }
  return NULL;
}

static iso_status take_steps(iso_doctor *d, iso_config *config, iso_ranks *ranks, trial *t, double *first_s) {
  if (iso_ranks_number(ranks) > 0) return iso_follow(config, ranks);
  timer clock = {.trial = t, .seconds = d->steps_s, .first_s = -1};
  pthread_t thread;
  iso_train_result result;
  const iso_train_options options = {.ranks = ranks, .quiet = true};
  const bool timed = iso_thread_start(&thread, wait_and_stop, &clock) == 0;
  if (!timed) config->stop_at = UNTIMED + LEAST_STEPS;
  const iso_status status = iso_train(config, &options, &result);
  clock.over = true;
  if (timed) (void)pthread_join(thread, NULL);
  *first_s = timed ? clock.first_s : 0;
  t->took_s = clock.took_s;
  return status;
}

static iso_status train_together(iso_doctor *d, iso_world *world, const char *run, trial *t, double *first_s) {
  iso_config config = d->config;
  iso_ranks *ranks = NULL;
  cpu_set_t before;
  const bool known = sched_getaffinity(0, sizeof before, &before) == 0;
  config.run = iso_arena_strdup(d->arena, run);
  config.checkpoint.mirror = config.checkpoint.target = "";
  config.evaluate.every = config.stop_at = 0;
  iso_status status = iso_ranks_join(world, &config, config.run ? ISO_OK : ISO_ERR_MEMORY, &ranks);
  if (status != ISO_OK) return status;
  status = iso_ranks_leave(ranks, take_steps(d, &config, ranks, t, first_s));
  if (!iso_ranks_lost(ranks)) iso_ranks_close(&ranks);
  if (known) (void)sched_setaffinity(0, sizeof before, &before); /* ranks have shared the processors out */
  return status;
}

iso_status iso_doctor_world_steps(iso_doctor *d, iso_world *world) {
  const int me = iso_world_rank(world), ranks = iso_world_ranks(world);
  const char *folder = me == 0 ? iso_doctor_folder(d) : NULL;
  char mine[PATH_MAX] = "", *all = calloc((size_t)ranks, sizeof mine);
  if (folder) snprintf(mine, sizeof mine, "%s/run", folder);
  iso_status status = iso_world_agree(world, all ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "doctor: no memory"));
  if (status == ISO_OK) status = iso_world_gather(world, mine, all, sizeof mine);
  trial t = {.run = status == ISO_OK && all ? all : ""};
  double first_s = -1;
  iso_status trained = ISO_OK;
  if (t.run[0]) {
    const bool quiet = iso_log_quiet(true);
    trained = train_together(d, world, t.run, &t, &first_s);
    iso_log_quiet(quiet);
  }
  if (me == 0 && status == ISO_OK && !t.run[0]) {
    iso_doctor_failed(d, "real steps", ISO_VERDICT_STOP, "a folder that can be written to beside `run`", "check `run`");
  } else if (me == 0 && status == ISO_OK) {
    t.code = iso_exit_code(trained);
    if (trained != ISO_OK && trained != ISO_STOPPED)
      iso_doctor_add(d, "real steps", ISO_VERDICT_STOP, "a run that takes steps", "as it says", "exit code %d: %s",
                     t.code, iso_last_error());
    else
      conclude(d, &t, first_s);
  }
  if (folder) iso_folder_remove(folder);
  free(all);
  return status;
}
