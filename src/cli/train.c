/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach train: the run's own progress goes to standard output, then one line of summary.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

typedef struct train_flags {
  bool accept, take_over, json;
  int64_t ranks, restarts, from_step;
  const char *trace;
  double trace_s;
} train_flags;

/* "10s", "10" or "0.5s" as seconds: digits, and a point among them. */
static iso_status trace_seconds(const char *text, double *seconds) {
  static const char digits[] = "0123456789";
  *seconds = 0;
  if (!text) return ISO_OK;
  const char *end = text + strspn(text, digits);
  bool good = end > text;
  if (*end == '.') {
    good = good && strspn(end + 1, digits) > 0;
    end += 1 + strspn(end + 1, digits);
  }
  if (good && (!*end || strcmp(end, "s") == 0)) *seconds = strtod(text, NULL); /* the locale is C's */
  if (*seconds > 0 && *seconds < 1e6) return ISO_OK;
  return iso_fail(ISO_ERR_USAGE, "train: --trace \"%s\" is not a time; write seconds, as in --trace 10s", text);
}

static void print_summary(const iso_config *config, const iso_train_result *result, iso_status status) {
  if (result->step == 0) return; /* nothing was trained: the run said that it is complete */
  printf("# %s: step %lld of %lld, loss %.4f",
         status == ISO_STOPPED ? "stopped early, the same command resumes" : "done", (long long)result->step,
         (long long)config->steps, iso_unsigned_nan(result->loss));
  if (result->evaluated) printf(", held-out %.4f bits per byte", iso_unsigned_nan(result->evaluation.bits_per_byte));
  char run[4096];
  snprintf(run, sizeof run, "%s", config->run);
  iso_text_tame(run, strlen(run));
  printf(", %.1f s, %.0f tokens/s, MFU %.1f%%, in %s\n", result->train_s, result->tokens_per_s, 100 * result->mfu, run);
}

static iso_status print_json(const iso_config *config, const iso_train_result *result, iso_status status) {
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "run", config->run);
  iso_json_put_text(&out, "status", iso_status_name(status));
  iso_json_put_bool(&out, "trained", result->step > 0); /* false: the run was complete already */
  if (result->step > 0) {
    iso_json_put_int(&out, "step", result->step);
    iso_json_put_int(&out, "steps", config->steps);
    iso_json_put_int(&out, "parameters", result->parameters);
    iso_json_put_int(&out, "tokens", result->tokens);
    iso_json_put_int(&out, "refused", result->refused);
    iso_json_put_real(&out, "loss", result->loss);
    iso_json_put_real(&out, "train_seconds", result->train_s);
    iso_json_put_real(&out, "tokens_per_s", result->tokens_per_s);
    iso_json_put_real(&out, "mfu", result->mfu);
    iso_json_put_real(&out, "peak_gflops", result->peak_gflops);
    if (result->evaluated) iso_json_put_real(&out, "bits_per_byte", result->evaluation.bits_per_byte);
  }
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status train(const train_flags *f, const iso_config *config, iso_ranks *ranks) {
  const iso_train_options options = {.ranks = ranks,
                                     .accept = f->accept,
                                     .take_over = f->take_over,
                                     .quiet = f->json,
                                     .trace_s = f->trace_s,
                                     .go_back = f->from_step >= 0,
                                     .from_step = f->from_step};
  iso_train_result result;
  const iso_status status = iso_train(config, &options, &result);
  if (status != ISO_OK && status != ISO_STOPPED) return status;
  iso_status printed = ISO_OK;
  if (f->json) {
    printed = print_json(config, &result, status);
  } else {
    print_summary(config, &result, status);
  }
  return status == ISO_OK ? printed : status;
}

/* A rank is lost: nothing is waited for, and nothing that a library would do at exit. */
static void end_at_once(int code) {
  (void)fflush(stdout);
  _exit(code);
}

static iso_status be_rank(const train_flags *f, const iso_config *config, iso_ranks **ranks) {
  iso_status status = iso_ranks_number(*ranks) > 0 ? iso_follow(config, *ranks) : train(f, config, *ranks);
  status = iso_ranks_leave(*ranks, status);
  if (iso_ranks_lost(*ranks)) end_at_once(ISO_EXIT_LOST_RANK);
  iso_ranks_close(ranks);
  return status;
}

static const char *environment(void *self, const char *name) {
  (void)self;
  return getenv(name);
}

static iso_status check_launched(const train_flags *f, const iso_launch *launch, int count) {
  if (f->restarts)
    return iso_fail(ISO_ERR_USAGE,
                    "train: --restarts goes with --ranks, where isotach starts the ranks; %s has started these",
                    launch->launcher);
  if (f->ranks > 1 && f->ranks != count)
    return iso_fail(ISO_ERR_USAGE, "train: --ranks %lld, but %s has started %d; leave --ranks out", (long long)f->ranks,
                    launch->launcher, count);
  return ISO_OK;
}

/* As one of the ranks that mpirun or srun has started. */
static iso_status train_launched(const train_flags *f, const iso_args *args, const iso_launch *launch) {
  iso_world *world;
  iso_config config = {0};
  iso_ranks *ranks = NULL;
  /* What comes before the ranks know of each other is found by all alike: one of each host says it. */
  const bool quiet = iso_log_quiet(launch->local_rank > 0);
  iso_status status = iso_world_open(launch, &world);
  iso_log_quiet(quiet);
  ISO_TRY(status);
  iso_log_quiet(iso_world_rank(world) > 0);
  status = check_launched(f, launch, iso_world_ranks(world));
  if (status == ISO_OK) status = iso_config_read(args->words[0], args->words + 1, args->word_count - 1, &config);
  status = iso_ranks_join(world, &config, status, &ranks);
  if (status == ISO_OK) status = be_rank(f, &config, &ranks);
  iso_config_fini(&config);
  (void)fflush(stdout);
  iso_world_close(&world, iso_exit_code(status));
  return status;
}

iso_status iso_verb_train(iso_args *args) {
  train_flags f = {.ranks = 1, .from_step = -1};
  const iso_flag flags[] = {
      {"accept", ISO_FLAG_BOOL, &f.accept, "resume although settings that decide bits have changed", 0, 0},
      {"take-over", ISO_FLAG_BOOL, &f.take_over,
       "replace a process that is gone (on another host) or hangs: its lock has been silent for a minute", 0, 0},
      {"json", ISO_FLAG_BOOL, &f.json, "no progress; one JSON document at the end", 0, 0},
      {"ranks", ISO_FLAG_INT, &f.ranks,
       "processes of this host that share the work; at most parallel.virtual_workers; mpirun and srun bring theirs (1)",
       1, ISO_MOST_RANKS},
      {"restarts", ISO_FLAG_INT, &f.restarts,
       "with --ranks: how often to start again when a rank was lost or its weights differed (0)", 0, 1000000},
      {"from-step", ISO_FLAG_INT, &f.from_step,
       "go back: begin anew after this step; what was trained behind it is kept aside and never used again", 0, 1e15},
      {"trace", ISO_FLAG_TEXT, &f.trace,
       "the first steps for so long, as in 10s, in RUN/trace-STEP.json (isotach trace); SIGUSR2 asks for 10 s of a run "
       "under way",
       0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, -1));
  if (args->help) return ISO_OK;
  ISO_TRY(trace_seconds(f.trace, &f.trace_s));
  /* They ask steps for something: before and behind these they ask in vain, and end nothing. */
  signal(SIGUSR1, SIG_IGN);
  signal(SIGUSR2, SIG_IGN);
  iso_launch launch;
  ISO_TRY(iso_launch_read(environment, NULL, &launch));
  if (launch.launcher && launch.ranks != 1) return train_launched(&f, args, &launch);
  iso_config config;
  ISO_TRY(iso_config_read(args->words[0], args->words + 1, args->word_count - 1, &config));
  iso_ranks *ranks = NULL;
  iso_status status = ISO_OK;
  bool lost = false;
  const bool forks = f.ranks > 1 || f.restarts > 0;
  if (forks) status = iso_ranks_start(&config, f.ranks, f.restarts, &ranks, &lost);
  if (!forks || ranks) status = be_rank(&f, &config, &ranks); /* else the ranks have come and gone */
  iso_config_fini(&config);
  if (lost) end_at_once(ISO_EXIT_LOST_RANK);
  return status;
}
