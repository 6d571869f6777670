/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine's peak for a type, as measured: register-only multiply-add chains (the tier's `peak` entry) on all
 * threads at once, the best of a few short runs. MFU is a share of this number, so it must be taken in the same run.
 */
#include "kernels/kernels.h"

enum { PEAK_RUNS = 5, PEAK_THREADS = 1024 };
#define PEAK_RUN_S 0.003

typedef struct peak_job {
  const iso_kernels *kernels;
  iso_team *team;
  iso_dtype type;
  int64_t iterations;
  int threads;
  double flop[PEAK_THREADS]; /* by thread */
  double best;               /* GFLOP/s; written by thread 0 */
} peak_job;

/* One run: all threads start together and the slowest ends it. Returns seconds. */
static double run_once(peak_job *job, int thread) {
  iso_team_barrier(job->team);
  double start = iso_clock_s();
  double flop = job->kernels->peak(job->type, job->iterations);
  if (thread < PEAK_THREADS) job->flop[thread] = flop;
  iso_team_barrier(job->team);
  return iso_clock_s() - start;
}

static void run_peak(void *argument, int thread) {
  peak_job *job = argument;
  run_once(job, thread); /* wakes the threads and the vector units */
  double seconds = run_once(job, thread);
  if (thread == 0) {
    double scale = PEAK_RUN_S / (seconds > 1e-7 ? seconds : 1e-7);
    job->iterations = (int64_t)((double)job->iterations * scale) + 1;
  }
  iso_team_barrier(job->team);
  for (int run = 0; run < PEAK_RUNS; run++) {
    seconds = run_once(job, thread);
    if (thread != 0) continue;
    double flop = 0.0;
    for (int t = 0; t < job->threads; t++) flop += job->flop[t];
    double rate = flop / (seconds > 1e-9 ? seconds : 1e-9) * 1e-9;
    if (rate > job->best) job->best = rate;
  }
}

double iso_peak_gflops(const iso_kernels *kernels, iso_team *team, iso_dtype type) {
  peak_job job = {.kernels = kernels, .team = team, .type = type, .iterations = 20000, .threads = 1};
  if (team) {
    job.threads = iso_team_size(team) < PEAK_THREADS ? iso_team_size(team) : PEAK_THREADS;
    iso_team_run(team, run_peak, &job);
  } else {
    run_peak(&job, 0);
  }
  return job.best;
}
