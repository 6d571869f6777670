/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach bench step: a training step on random tokens. The peak is measured between the timed steps and the best one
 * counts; the step's time is the median.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct bench {
  const char *name;
  iso_dtype dtype;
  int64_t batch, sequence, micro, threads, steps, warmup;
  bool json;
  iso_model_config model;
  iso_device *device;
  iso_engine engine;
  int32_t *inputs; /* tokens, labels, positions, segments: rows each */
  double *times;   /* of the timed steps */
  double first_step_s, median_s, peak_gflops, tokens_per_s, mfu, loss;
  const char *tier;
} bench;

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void fill_inputs(bench *b, int64_t step, iso_step *out) {
  const int64_t rows = b->batch * b->sequence;
  int32_t *tokens = b->inputs, *labels = tokens + rows, *positions = labels + rows, *segments = positions + rows;
  for (int64_t i = 0; i < rows; i++) {
    uint32_t bits[4];
    iso_rng(1, ISO_RNG_TEST, (uint64_t)step, (uint64_t)i, bits);
    tokens[i] = (int32_t)(bits[0] % (uint64_t)b->model.vocabulary);
    labels[i] = (int32_t)(bits[1] % (uint64_t)b->model.vocabulary);
    positions[i] = (int32_t)(i % b->sequence);
    segments[i] = 0;
  }
  *out = (iso_step){.inputs = {tokens, labels, positions, segments},
                    .workers = 1,
                    .micros = b->batch / b->micro,
                    .scored = rows,
                    .lr = 1e-4F,
                    .beta1 = 0.9F,
                    .beta2 = 0.95F,
                    .eps = 1e-8F,
                    .clip_norm = 1,
                    .bias1 = (float)(1 - iso_pow_int(0.9, step + 1)),
                    .bias2 = (float)(1 - iso_pow_int(0.95, step + 1))};
}

static void measure_peak(bench *b) {
  const double peak = iso_device_peak(b->device, b->dtype);
  if (peak > b->peak_gflops) b->peak_gflops = peak;
}

static iso_status run_steps(bench *b) {
  const double began = iso_clock_s();
  for (int64_t i = 0; i < b->warmup + b->steps; i++) {
    iso_step step;
    fill_inputs(b, i, &step);
    const double start = iso_clock_s();
    iso_exec_step(b->engine.exec, &step);
    const double end = iso_clock_s();
    if (i == 0) b->first_step_s = end - began;
    if (step.refused) return iso_fail(ISO_ERR_NUMERIC, "bench step: step %lld is not finite", (long long)i + 1);
    b->loss = step.loss_sum / (double)step.scored;
    if (i < b->warmup) continue;
    b->times[i - b->warmup] = end - start;
    measure_peak(b);
  }
  qsort(b->times, (size_t)b->steps, sizeof *b->times, ascending);
  b->median_s = b->steps % 2 ? b->times[b->steps / 2] : (b->times[b->steps / 2 - 1] + b->times[b->steps / 2]) / 2;
  b->tokens_per_s = (double)(b->batch * b->sequence) / b->median_s;
  b->mfu = b->tokens_per_s * iso_model_flop_per_token(&b->model, b->sequence) / (b->peak_gflops * 1e9);
  return ISO_OK;
}

static iso_status print_result(const bench *b) {
  if (!b->json) {
    printf("%s, %s, %lld x %lld tokens, %d threads, tier %s, %.1f M parameters\n", b->name,
           b->dtype == ISO_F32 ? "float32" : "bfloat16", (long long)b->batch, (long long)b->sequence,
           iso_device_threads(b->device), b->tier, (double)iso_model_parameters(&b->model) * 1e-6);
    printf("%.1f tokens/s, MFU %.1f%% of %.0f GFLOP/s, step %.4f s (first %.3f s), peak memory %.2f GB\n",
           b->tokens_per_s, 100 * b->mfu, b->peak_gflops, b->median_s, b->first_step_s,
           (double)iso_memory_resident_peak() * 1e-9);
    return ISO_OK;
  }
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "model", b->name);
  iso_json_put_text(&out, "dtype", b->dtype == ISO_F32 ? "float32" : "bfloat16");
  iso_json_put_int(&out, "batch", b->batch);
  iso_json_put_int(&out, "seq", b->sequence);
  iso_json_put_int(&out, "micro", b->micro);
  iso_json_put_int(&out, "threads", iso_device_threads(b->device));
  iso_json_put_text(&out, "tier", b->tier);
  iso_json_put_int(&out, "parameters", iso_model_parameters(&b->model));
  iso_json_put_int(&out, "steps", b->steps);
  iso_json_put_int(&out, "warmup", b->warmup);
  iso_json_put_real(&out, "tokens_per_s", b->tokens_per_s);
  iso_json_put_real(&out, "mfu", b->mfu);
  iso_json_put_real(&out, "peak_gflops", b->peak_gflops);
  iso_json_put_int(&out, "peak_rss_bytes", iso_memory_resident_peak());
  iso_json_put_real(&out, "first_step_s", b->first_step_s);
  iso_json_put_real(&out, "median_step_s", b->median_s);
  iso_json_put_real(&out, "min_step_s", b->times[0]);
  iso_json_put_real(&out, "loss", b->loss);
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status open_model(bench *b) {
  if (strchr(b->name, '/') || strstr(b->name, ".json") || iso_path_exists(b->name))
    return iso_model_config_read(b->name, &b->model);
  return iso_model_config_preset(b->name, &b->model);
}

static iso_status check_shape(bench *b) {
  if (!b->micro) b->micro = b->batch;
  if (b->batch % b->micro)
    return iso_fail(ISO_ERR_USAGE, "bench step: --micro %lld does not divide --batch %lld", (long long)b->micro,
                    (long long)b->batch);
  if (b->sequence > b->model.positions)
    return iso_fail(ISO_ERR_USAGE, "bench step: --seq %lld is more than the model's %lld positions",
                    (long long)b->sequence, (long long)b->model.positions);
  return ISO_OK;
}

static iso_status run(bench *b) {
  ISO_TRY(check_shape(b));
  ISO_TRY(iso_device_create((int)b->threads, &b->device));
  b->tier = iso_tier_name(iso_device_kernels(b->device)->tier);
  const iso_engine_options options = {.model = &b->model,
                                      .compute = b->dtype,
                                      .gradient = b->dtype,
                                      .workers = 1,
                                      .micro = b->micro,
                                      .sequence = b->sequence,
                                      .train = true};
  ISO_TRY(iso_engine_init(b->device, &options, &b->engine));
  iso_model_init(iso_engine_graph(&b->engine), 1, b->engine.flat.master);
  iso_flat_refresh(&b->engine.flat, b->device);
  b->inputs = calloc((size_t)(4 * b->batch * b->sequence), sizeof *b->inputs);
  b->times = calloc((size_t)b->steps, sizeof *b->times);
  if (!b->inputs || !b->times) return iso_fail(ISO_ERR_MEMORY, "bench step: no memory for the batch");
  measure_peak(b);
  ISO_TRY(run_steps(b));
  const char *profile = getenv("ISOTACH_PROFILE");
  if (profile && strcmp(profile, "1") == 0) iso_exec_profile_print(b->engine.exec, stderr);
  return print_result(b);
}

iso_status iso_verb_bench_step(iso_args *args) {
  bench b = {.name = "gpt2-124m", .dtype = ISO_BF16, .batch = 4, .sequence = 256, .steps = 10, .warmup = 5};
  const iso_flag flags[] = {
      {"model", ISO_FLAG_TEXT, &b.name, "gpt2-124m, llama-110m, or a config.json (gpt2-124m)", 0, 0},
      {"dtype", ISO_FLAG_DTYPE, &b.dtype, "compute type (bfloat16)", 0, 0},
      {"batch", ISO_FLAG_INT, &b.batch, "sequences of a step (4)", 1, 65536},
      {"seq", ISO_FLAG_INT, &b.sequence, "tokens of a sequence (256)", 1, 1e7},
      {"micro", ISO_FLAG_INT, &b.micro, "sequences of a pass; 0: the whole batch (0)", 0, 65536},
      {"threads", ISO_FLAG_INT, &b.threads, "0: all cores (0)", 0, 1024},
      {"steps", ISO_FLAG_INT, &b.steps, "timed steps (10)", 1, 100000},
      {"warmup", ISO_FLAG_INT, &b.warmup, "steps before them (5)", 0, 100000},
      {"json", ISO_FLAG_BOOL, &b.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 0, 1));
  if (args->help) return ISO_OK;
  if (args->word_count == 1) b.name = args->words[0];
  ISO_TRY(open_model(&b));
  const iso_status status = run(&b);
  free(b.inputs);
  free(b.times);
  iso_engine_fini(&b.engine);
  iso_device_destroy(&b.device);
  iso_model_config_fini(&b.model);
  return status;
}
