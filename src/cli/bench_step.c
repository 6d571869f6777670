/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach bench step: training steps of one model and shape on random tokens. The step's time is the median of the
 * timed ones; the peak is measured between them and the best one counts. The first step's time counts from the launch
 * of the process: what a user waits for.
 *
 * With --ranks steps are those of so many processes of this host, a leaf each or two; the peak is then measured before
 * and after, since others would wait for it. What a rank waits for others is exposed: its computing does not hide it.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/cli.h"

/* What a rank has waited for others in the timed steps, for rank 0 to read. */
typedef struct exposed {
  double seconds, of; /* of their time */
} exposed;

typedef struct bench {
  const char *name, *fusion;
  int64_t threads, steps, warmup, ranks, zero;
  exposed *exposed; /* [ranks], in memory that all share; NULL: one rank */
  bool json;
  iso_model_config model;
  iso_device *device;
  iso_workload workload;
  double began, first_step_s;       /* of the verb; from launch to the end of step 1 */
  double step1_s;                   /* of which step 1 itself, with the first touch of what it uses */
  double *times, median_s, least_s; /* of the timed steps */
  double tokens_per_s, mfu;
} bench;

static bool profile_wanted(void) {
  const char *profile = getenv("ISOTACH_PROFILE");
  return profile && strcmp(profile, "1") == 0;
}

static iso_status run_steps(bench *b) {
  iso_workload *w = &b->workload;
  exposed *mine = w->ranks ? &b->exposed[iso_ranks_number(w->ranks)] : NULL;
  iso_workload_peak(w);
  if (mine) { /* each has filled the state, of which there may be one for all: copies made meanwhile do not count */
    ISO_TRY(iso_ranks_ready(w->ranks, ISO_OK));
    iso_flat_refresh(&w->engine.flat, b->device);
    ISO_TRY(iso_ranks_ready(w->ranks, ISO_OK));
  }
  for (int64_t i = 0; i < b->warmup + b->steps; i++) {
    double seconds;
    if (i == b->warmup && profile_wanted()) iso_exec_profile(w->engine.exec, true); /* of the timed steps only */
    ISO_TRY(iso_workload_step(w, &seconds));
    if (i == 0) b->step1_s = seconds;
    if (i == 0) b->first_step_s = iso_process_age_s(iso_clock_s() - b->began);
    const double waited = mine ? iso_ranks_waited(w->ranks) : 0;
    if (i < b->warmup) continue;
    b->times[i - b->warmup] = seconds;
    if (!mine) {
      iso_workload_peak(w);
      continue;
    }
    mine->seconds += waited;
    mine->of += seconds;
  }
  if (mine) {
    iso_workload_peak(w);
    ISO_TRY(iso_ranks_ready(w->ranks, ISO_OK));
  }
  b->median_s = iso_median(b->times, b->steps);
  b->least_s = b->times[0];
  b->tokens_per_s = (double)(w->batch * w->sequence) / b->median_s;
  b->mfu = iso_workload_mfu(w, b->tokens_per_s) / (double)b->ranks; /* the peak is that of one of them */
  return ISO_OK;
}

/* The largest share of any rank's steps, and the mean of all. */
static double exposed_share(const bench *b, double *mean) {
  double most = 0;
  *mean = 0;
  for (int64_t r = 0; r < b->ranks && b->exposed; r++) {
    const double share = b->exposed[r].of > 0 ? b->exposed[r].seconds / b->exposed[r].of : 0;
    *mean += share / (double)b->ranks;
    if (share > most) most = share;
  }
  return most;
}

static iso_status print_result(const bench *b) {
  const iso_workload *w = &b->workload;
  const char *dtype = w->dtype == ISO_F32 ? "float32" : "bfloat16";
  const char *tier = iso_tier_name(iso_device_kernels(b->device)->tier);
  double mean;
  const double share = exposed_share(b, &mean);
  if (!b->json) {
    printf("%s, %s, %lld x %lld tokens, %d threads, tier %s, %.1f M parameters\n", b->name, dtype, (long long)w->batch,
           (long long)w->sequence, iso_device_threads(b->device), tier, (double)iso_model_parameters(&b->model) * 1e-6);
    printf("%.1f tokens/s, MFU %.1f%% of %.0f GFLOP/s, step %.4f s, peak memory %.2f GB, first step done %.2f s after "
           "launch\n",
           b->tokens_per_s, 100 * b->mfu, w->peak_gflops, b->median_s, (double)iso_memory_resident_peak() * 1e-9,
           b->first_step_s);
    if (b->exposed)
      printf("%lld ranks, parallel.zero %lld: they wait for each other in %.2f%% of a step, the one that waits most in "
             "%.2f%%\n",
             (long long)b->ranks, (long long)b->zero, 100 * mean, 100 * share);
    return ISO_OK;
  }
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "model", b->name);
  iso_json_put_text(&out, "dtype", dtype);
  iso_json_put_int(&out, "batch", w->batch);
  iso_json_put_int(&out, "seq", w->sequence);
  iso_json_put_int(&out, "micro", w->micro);
  iso_json_put_int(&out, "threads", iso_device_threads(b->device));
  iso_json_put_text(&out, "tier", tier);
  iso_json_put_text(&out, "fusion", b->fusion);
  iso_json_put_int(&out, "parameters", iso_model_parameters(&b->model));
  iso_json_put_int(&out, "steps", b->steps);
  iso_json_put_int(&out, "warmup", b->warmup);
  iso_json_put_real(&out, "tokens_per_s", b->tokens_per_s);
  iso_json_put_real(&out, "mfu", b->mfu);
  iso_json_put_real(&out, "peak_gflops", w->peak_gflops);
  iso_json_put_int(&out, "peak_rss_bytes", iso_memory_resident_peak());
  iso_json_put_real(&out, "first_step_s", b->first_step_s);
  iso_json_open(&out, "first_step", '{');
  iso_json_put_real(&out, "compile_s", w->engine.compile_s);
  iso_json_put_real(&out, "measure_fusions_s", iso_engine_graph(&w->engine)->choose_s);
  iso_json_put_real(&out, "weights_s", w->weights_s);
  iso_json_put_real(&out, "step_s", b->step1_s);
  iso_json_shut(&out, '}');
  iso_json_put_real(&out, "median_step_s", b->median_s);
  iso_json_put_real(&out, "min_step_s", b->least_s);
  iso_json_put_int(&out, "ranks", b->ranks);
  iso_json_put_int(&out, "parallel_zero", b->zero);
  iso_json_put_real(&out, "exposed_reduce_share", mean);
  iso_json_put_real(&out, "exposed_reduce_share_most", share);
  iso_json_put_real(&out, "loss", w->loss);
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status check_shape(bench *b) {
  iso_workload *w = &b->workload;
  for (w->workers = 1; w->workers < b->ranks;) w->workers *= 2;
  if (w->batch % w->workers)
    return iso_fail(ISO_ERR_USAGE, "bench step: --batch %lld cannot be shared out among %lld leaves (--ranks %lld)",
                    (long long)w->batch, (long long)w->workers, (long long)b->ranks);
  if (w->micro && w->batch / w->workers % w->micro)
    return iso_fail(ISO_ERR_USAGE, "bench step: --micro %lld does not divide --batch %lld%s", (long long)w->micro,
                    (long long)w->batch, w->workers > 1 ? " by its leaves" : "");
  if (!w->micro) { /* as a run with this batch has it */
    const iso_config config = {.batch.sequences = w->batch, .data.sequence = w->sequence};
    w->micro = iso_config_micro(&config, w->workers);
  }
  if (w->sequence > b->model.positions)
    return iso_fail(ISO_ERR_USAGE, "bench step: --seq %lld is more than the model's %lld positions",
                    (long long)w->sequence, (long long)b->model.positions);
  return ISO_OK;
}

static const volatile sig_atomic_t nothing;

static iso_status run(bench *b) {
  iso_workload *w = &b->workload;
  ISO_TRY(iso_device_create((int)b->threads, &b->device));
  w->device = b->device;
  w->model = &b->model;
  b->times = calloc((size_t)b->steps, sizeof *b->times);
  if (!b->times) return iso_fail(ISO_ERR_MEMORY, "bench step: no memory for %lld times", (long long)b->steps);
  ISO_TRY(iso_workload_init(w));
  iso_status status = ISO_OK;
  if (w->ranks)
    status = iso_ranks_attach(w->ranks, b->device, &w->engine, w->batch * w->sequence, b->warmup + b->steps, &nothing);
  if (status == ISO_OK) status = run_steps(b);
  if (status == ISO_OK && profile_wanted()) iso_exec_profile_print(w->engine.exec, stderr);
  if (status == ISO_OK && iso_ranks_number(w->ranks) == 0) status = print_result(b);
  iso_workload_fini(w);
  return status;
}

/* In each of the ranks; this process only waits for them. */
static iso_status run_ranks(bench *b) {
  iso_workload *w = &b->workload;
  iso_ranks_plan plan = {.count = (int)b->ranks,
                         .processors = iso_cpu_count(),
                         .workers = w->workers,
                         .elements = iso_model_parameters(&b->model),
                         .gradient = w->dtype,
                         .compute = w->dtype,
                         .zero = (int)b->zero,
                         .timeout_s = 1e9};
  if (plan.elements <= 0) return iso_fail(ISO_ERR_MEMORY, "bench step: the model is too large even to be described");
  iso_ranks_plan_init(&plan);
  const size_t bytes = (size_t)b->ranks * sizeof *b->exposed;
  void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return iso_fail(ISO_ERR_MEMORY, "bench step: no memory for %zu bytes", bytes);
  b->exposed = shared;
  iso_status status = iso_ranks_fork(&plan, &w->ranks);
  if (w->ranks) {
    iso_log_quiet(iso_ranks_number(w->ranks) > 0);
    status = iso_ranks_leave(w->ranks, run(b));
    iso_ranks_close(&w->ranks);
  }
  (void)munmap(shared, bytes);
  return status;
}

iso_status iso_verb_bench_step(iso_args *args) {
  bench b = {.name = "gpt2-124m",
             .fusion = "auto",
             .steps = 10,
             .warmup = 5,
             .ranks = 1,
             .zero = 1,
             .began = iso_clock_s(),
             .workload = {.dtype = ISO_BF16, .batch = 4, .sequence = 256}};
  iso_workload *w = &b.workload;
  const iso_flag flags[] = {
      {"model", ISO_FLAG_TEXT, &b.name, "gpt2-124m, llama-110m, llama-30m, or a config.json (gpt2-124m)", 0, 0},
      {"dtype", ISO_FLAG_DTYPE, &w->dtype, "compute type (bfloat16)", 0, 0},
      {"batch", ISO_FLAG_INT, &w->batch, "sequences of a step (4)", 1, 65536},
      {"seq", ISO_FLAG_INT, &w->sequence, "tokens of a sequence (256)", 1, 1e7},
      {"micro", ISO_FLAG_INT, &w->micro, "sequences of a pass; 0: as in a run, 2,048 tokens at most (0)", 0, 65536},
      {"threads", ISO_FLAG_INT, &b.threads, "0: all cores (0)", 0, 1024},
      {"fusion", ISO_FLAG_TEXT, &b.fusion, "as the config's key, say \"off +add_norm\" (auto)", 0, 0},
      {"steps", ISO_FLAG_INT, &b.steps, "timed steps (10)", 1, 100000},
      {"warmup", ISO_FLAG_INT, &b.warmup, "steps before them (5)", 0, 100000},
      {"ranks", ISO_FLAG_INT, &b.ranks, "processes that share the step (1)", 1, ISO_MOST_RANKS},
      {"zero", ISO_FLAG_INT, &b.zero, "with --ranks: as parallel.zero (1)", 0, 3},
      {"json", ISO_FLAG_BOOL, &b.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 0, 1));
  if (args->help) return ISO_OK;
  if (args->word_count == 1) b.name = args->words[0];
  ISO_TRY(iso_fusion_switches_read(b.fusion, "bench step: --fusion", &w->fusion));
  ISO_TRY(iso_model_config_open(b.name, &b.model));
  iso_status status = check_shape(&b);
  if (status == ISO_OK) status = b.ranks > 1 ? run_ranks(&b) : run(&b);
  free(b.times);
  iso_device_destroy(&b.device);
  iso_model_config_fini(&b.model);
  return status;
}
