/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach train --ranks N on one host: this process forks N ranks and stays behind to look after them; with
 * --restarts K it forks them anew when one was lost, or when weights of theirs differed and the next start goes back.
 *
 * It holds no model and writes nothing into the run folder. It passes signals on to rank 0, sees a rank that is stopped
 * or killed (the kernel says so to the parent alone), and leaves only when all ranks are gone.
 *
 * Invariants
 *  1. No rank outlives it: the kernel kills them when it ends, also those that are stopped.
 *  2. When one rank has ended otherwise than well, the others have timeout_s (5 s at least) to say so and to make
 *     durable what they can; then they are killed, which loses no more than kill -9 ever does.
 *  3. Ranks have process groups of their own, so that a terminal's Ctrl-C comes once, through here.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "train/train.h"

static const double LEAST_GRACE_S = 5;
static const double STOPPED_MORE_S = 0.5; /* the other ranks see it first, if they wait for it */
static const double LOOK_S = 0.1;
static const double SAME_S = 0.02; /* timeout(1) and others signal a process and its group: that is one signal */

typedef struct child {
  pid_t process; /* 0: gone, or never begun */
  bool stopped;
  double stopped_s; /* of this process's own time */
} child;

typedef struct keeper {
  int count, running;
  double timeout_s;
  child children[ISO_MOST_RANKS];
  bool failed;                       /* some rank has ended otherwise than well */
  int signal;                        /* that asked for the end; 0: none */
  double signal_s, ended_s, grace_s; /* when it came; when rank 0, or the first one that failed, ended (0: none) */
  bool forced;
  bool lost;         /* a rank was: all others ended because of that */
  iso_status status; /* of rank 0, else of the first one that failed */
  bool zero_ended;
} keeper;

static iso_status status_of(int code) {
  if (code == ISO_EXIT_LOST_RANK) return ISO_ERR_IO;
  static const iso_status known[] = {ISO_OK,           ISO_ERR_CONFIG,   ISO_ERR_IO,     ISO_ERR_FORMAT,
                                     ISO_ERR_MISMATCH, ISO_ERR_BUSY,     ISO_ERR_MEMORY, ISO_ERR_CHECK,
                                     ISO_ERR_NUMERIC,  ISO_ERR_INTERNAL, ISO_STOPPED};
  for (size_t i = 0; i < ISO_COUNT(known); i++)
    if (iso_exit_code(known[i]) == code) return known[i];
  return ISO_ERR_IO;
}

static void kill_all(const keeper *k) {
  for (int r = 0; r < k->count; r++)
    if (k->children[r].process) (void)kill(k->children[r].process, SIGKILL);
}

static void note_end(keeper *k, int rank, int state) {
  const pid_t process = k->children[rank].process;
  const bool killed = WIFSIGNALED(state);
  const iso_status status = killed ? ISO_ERR_IO : status_of(WEXITSTATUS(state));
  const bool well = status == ISO_OK || status == ISO_STOPPED;
  k->children[rank] = (child){0};
  k->running--;
  if (killed && !k->forced)
    iso_note("rank %d (process %lld) was ended by signal %d (%s)", rank, (long long)process, WTERMSIG(state),
             strsignal(WTERMSIG(state)));
  if (killed || WEXITSTATUS(state) == ISO_EXIT_LOST_RANK) k->lost = true;
  if (rank == 0) k->zero_ended = true;
  if (rank == 0 || (!well && !k->failed && !k->zero_ended)) k->status = status;
  if (!well) k->failed = true;
  if ((!well || rank == 0) && k->ended_s == 0) k->ended_s = iso_clock_s();
}

static void reap(keeper *k) {
  int state;
  for (pid_t process; (process = waitpid(-1, &state, WNOHANG | WUNTRACED | WCONTINUED)) > 0;)
    for (int r = 0; r < k->count; r++) {
      child *c = &k->children[r];
      if (c->process != process) continue;
      if (WIFSTOPPED(state) || WIFCONTINUED(state)) {
        c->stopped = WIFSTOPPED(state);
        c->stopped_s = 0;
      } else {
        note_end(k, r, state);
      }
    }
}

static void pass_on(keeper *k, int number) {
  const pid_t zero = k->children[0].process;
  if (number == SIGUSR1 || number == SIGUSR2) {
    if (zero) (void)kill(zero, number);
    return;
  }
  if (number != SIGTERM && number != SIGINT) return;
  const double now = iso_clock_s();
  if (k->signal && now - k->signal_s < SAME_S) return;
  if (k->signal || !zero) { /* the second one ends at once */
    k->forced = true;
    kill_all(k);
  } else {
    (void)kill(zero, number);
  }
  k->signal = number;
  k->signal_s = now;
}

/* Ranks that are stopped, and those that stay when the others have ended. */
static void look(keeper *k, bool waited) {
  for (int r = 0; r < k->count; r++) {
    child *c = &k->children[r];
    if (!c->process || !c->stopped) continue;
    if (waited) c->stopped_s += LOOK_S;
    if (!k->failed && (k->timeout_s <= 0 || c->stopped_s < k->timeout_s + STOPPED_MORE_S)) continue;
    iso_note("rank %d (process %lld) is stopped: it is killed", r, (long long)c->process);
    (void)kill(c->process, SIGKILL);
    c->stopped = false;
  }
  if (k->ended_s == 0 || k->forced || iso_clock_s() - k->ended_s < k->grace_s) return;
  iso_note("%d rank%s not ended within %g s of the first: killed", k->running, k->running == 1 ? " has" : "s have",
           k->grace_s);
  k->forced = true;
  kill_all(k);
}

static iso_status keep(keeper *k, const sigset_t *signals) {
  while (k->running > 0) {
    bool any_stopped = false;
    for (int r = 0; r < k->count; r++) any_stopped = any_stopped || (k->children[r].process && k->children[r].stopped);
    const struct timespec most = {.tv_nsec = (long)(LOOK_S * 1e9)};
    const int number = any_stopped || k->ended_s > 0 ? sigtimedwait(signals, NULL, &most) : sigwaitinfo(signals, NULL);
    if (number > 0) pass_on(k, number);
    reap(k);
    look(k, number < 0);
  }
  if (k->forced && k->signal) _Exit(128 + k->signal); /* as one process does */
  return k->status;
}

/* ---- starting ---- */

static int64_t stored_workers(const iso_config *config) {
  char path[4096];
  iso_config stored;
  (void)snprintf(path, sizeof path, "%s/config.yaml", config->run);
  if (!iso_path_exists(path)) return -1;
  const bool quiet = iso_log_quiet(true); /* a damaged one is said by the start */
  const iso_status status = iso_config_read(path, NULL, 0, &stored);
  iso_log_quiet(quiet);
  if (status != ISO_OK) return -1;
  const int64_t workers = stored.parallel.virtual_workers;
  iso_config_fini(&stored);
  return workers;
}

int64_t iso_config_workers(const iso_config *config, int64_t ranks) {
  int64_t workers = config->parallel.virtual_workers;
  if (workers < 0) workers = stored_workers(config);
  if (workers > 0) return workers;
  for (workers = 1; workers < ranks;) workers *= 2;
  return workers;
}

iso_status iso_config_workers_check(const iso_config *config) {
  const int64_t workers = config->parallel.virtual_workers;
  if (config->batch.sequences % workers ||
      (config->batch.micro && config->batch.sequences / workers % config->batch.micro))
    return iso_fail(ISO_ERR_CONFIG,
                    "%s: `batch.sequences` = %lld cannot be shared out among %lld virtual workers in passes of "
                    "`batch.micro` = %lld",
                    config->source, (long long)config->batch.sequences, (long long)workers,
                    (long long)config->batch.micro);
  return ISO_OK;
}

static iso_status check_ranks(const iso_config *config, int64_t count, const char *who) {
  const int64_t workers = config->parallel.virtual_workers;
  if (count < 1 || count > ISO_MOST_RANKS)
    return iso_fail(ISO_ERR_USAGE, "train: %s: there can be 1 to %d", who, ISO_MOST_RANKS);
  if (count > workers)
    return iso_fail(ISO_ERR_CONFIG,
                    "train: %s: more than the run's %lld virtual workers (parallel.virtual_workers, fixed for its "
                    "life), at most one rank each",
                    who, (long long)workers);
  return iso_config_workers_check(config);
}

iso_status iso_ranks_plan_make(const iso_config *config, int64_t count, const char *who, iso_ranks_plan *plan) {
  iso_model_config model;
  ISO_TRY(check_ranks(config, count, who));
  ISO_TRY(iso_run_model(config, &model));
  *plan = (iso_ranks_plan){.count = (int)count,
                           .processors = iso_cpu_count(),
                           .workers = config->parallel.virtual_workers,
                           .elements = iso_model_parameters(&model),
                           .gradient = iso_config_gradient(config),
                           .compute = iso_config_compute(config),
                           .zero = (int)config->parallel.zero,
                           .log = config->log.enabled,
                           .timeout_s = config->parallel.timeout_s > 0 ? config->parallel.timeout_s : 1e9};
  iso_model_config_fini(&model);
  if (plan->elements <= 0) return iso_fail(ISO_ERR_MEMORY, "memory: the model is too large even to be described");
  iso_ranks_plan_init(plan);
  return ISO_OK;
}

/* In a new process. */
static iso_status become_rank(const iso_ranks_plan *plan, int fd, int rank, pid_t keeper_process, const sigset_t *mask,
                              iso_ranks **out) {
  (void)setpgid(0, 0);
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != keeper_process) _Exit(128 + SIGKILL);
  if (rank != 0) {
    signal(SIGTERM, SIG_IGN); /* rank 0 says when it is time */
    signal(SIGINT, SIG_IGN);
    signal(SIGUSR1, SIG_IGN);
    signal(SIGUSR2, SIG_IGN);
  }
  (void)sigprocmask(SIG_SETMASK, mask, NULL);
  (void)iso_cpu_part(rank, plan->count); /* where it cannot be, all use all of them */
  const iso_status status = iso_ranks_open(plan, fd, rank, out);
  close(fd);
  return status;
}

static void hear_signals(sigset_t *signals, sigset_t *before) {
  const int heard[] = {SIGCHLD, SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
  sigemptyset(signals);
  for (size_t i = 0; i < ISO_COUNT(heard); i++) sigaddset(signals, heard[i]);
  (void)sigprocmask(SIG_BLOCK, signals, before);
  signal(SIGCHLD, SIG_DFL); /* ignored, children would end unseen */
}

/* In each rank *out is it; here it stays NULL, all ranks are gone, and *k says how they ended. */
static iso_status start_once(iso_ranks_plan *plan, double timeout_s, keeper *k, iso_ranks **out) {
  int fd;
  *k = (keeper){.count = plan->count, .timeout_s = timeout_s};
  k->grace_s = plan->timeout_s > LEAST_GRACE_S ? plan->timeout_s : LEAST_GRACE_S;
  ISO_TRY(iso_ranks_create_memory(plan, &fd));
  plan->share_bytes = (iso_memory_available() - (int64_t)iso_ranks_own_bytes(plan) * plan->count) / plan->count;
  if (plan->share_bytes < 1) plan->share_bytes = 1;
  sigset_t signals, before;
  hear_signals(&signals, &before);
  (void)fflush(NULL); /* else each rank prints what waits to be printed */
  const pid_t self = getpid();
  iso_status failed = ISO_OK;
  for (int r = 0; r < k->count && failed == ISO_OK; r++) {
    const pid_t process = fork();
    if (process == 0) return become_rank(plan, fd, r, self, &before, out);
    if (process < 0) {
      failed = iso_fail(ISO_ERR_IO, "train: cannot start rank %d of %d: %s", r, k->count, strerror(errno));
    } else {
      k->children[r].process = process;
      k->running++;
    }
  }
  close(fd);
  if (failed != ISO_OK) {
    k->forced = true;
    kill_all(k);
  }
  const iso_status status = keep(k, &signals);
  (void)sigprocmask(SIG_SETMASK, &before, NULL);
  return failed != ISO_OK ? failed : status;
}

iso_status iso_ranks_fork(iso_ranks_plan *plan, iso_ranks **out) {
  keeper k;
  *out = NULL;
  plan->start = plan->starts = 1;
  return start_once(plan, 0, &k, out);
}

iso_status iso_ranks_start(iso_config *config, int64_t count, int64_t restarts, iso_ranks **out, bool *lost) {
  iso_ranks_plan plan;
  keeper k;
  char who[48];
  *out = NULL;
  *lost = false;
  (void)snprintf(who, sizeof who, "--ranks %lld", (long long)count);
  config->parallel.virtual_workers = iso_config_workers(config, count);
  ISO_TRY(iso_ranks_plan_make(config, count, who, &plan));
  plan.starts = (int)restarts + 1;
  for (plan.start = 1;; plan.start++) {
    const int known = iso_differed_pending(config->run);
    const iso_status status = start_once(&plan, config->parallel.timeout_s, &k, out);
    if (*out) return status; /* a rank */
    *lost = k.lost && status != ISO_OK && status != ISO_STOPPED;
    const int found = status == ISO_ERR_MISMATCH ? iso_differed_pending(config->run) : 0;
    const bool differed = found && found != known; /* by this start, which was not refused for another reason */
    if ((!*lost && !differed) || k.signal || plan.start >= plan.starts) return status;
  }
}
