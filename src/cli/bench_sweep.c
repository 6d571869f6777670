/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach bench sweep: how speed depends on size. Llamas of 5 million to a billion parameters at one length, then two
 * of them over lengths from 128 to 32,768, each with as many sequences as make about the same number of tokens a step.
 *
 *  1. A row takes few steps: one to warm up, then timed ones for --seconds (one at least, ten at most), then one with
 *     the profile on, which gives attention's share. When a step is expected to take longer than --seconds, the first
 *     one, with all memory on its pages before, is timed and profiled, and the only one.
 *  2. A model that does not fit is a row too, with the reason in place of numbers.
 *  3. What is meant to be flat is printed: bytes of the transient arena per token of a pass. Passes are cut as in a
 * run.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct model_size {
  const char *name;
  int64_t layers, width, heads, inner, vocabulary;
  int64_t tokens; /* of a step */
} model_size;

static const model_size sizes[] = {
    {"5m", 6, 256, 4, 688, 2048, 8192},        {"14m", 6, 384, 6, 1024, 8192, 8192},
    {"30m", 8, 512, 8, 1376, 8192, 8192},      {"110m", 12, 768, 12, 2048, 32000, 4096},
    {"340m", 24, 1024, 16, 2752, 32000, 2048}, {"680m", 16, 1792, 14, 4864, 32000, 2048},
    {"1b", 18, 2048, 16, 5504, 32000, 2048},
};
static const int64_t lengths[] = {128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
enum { SIZE_5M = 0, SIZE_30M = 2, SIZE_110M = 3, SWEEP_LENGTH = 1024, QUICK_LENGTH = 4096, MOST_STEPS = 10 };
#define USUAL_SHARE 0.65 /* of the peak: what a step is expected to reach */

typedef struct bench {
  iso_dtype dtype;
  int64_t threads, tokens; /* tokens 0: as the table says */
  double seconds, max_memory_gb;
  bool json, quick;
  iso_device *device;
  iso_string out;
} bench;

typedef struct row {
  const model_size *size;
  int64_t batch, micro, sequence, parameters, bytes, arena_bytes, steps;
  double tokens_per_s, mfu, peak_gflops, attention_share, loss;
  char skipped[256]; /* the reason; "" for a row that ran */
} row;

static iso_status make_model(const model_size *size, int64_t positions, iso_model_config *model) {
  char text[512];
  const int length = snprintf(
      text, sizeof text,
      "{\"model_type\":\"llama\",\"hidden_size\":%lld,\"num_hidden_layers\":%lld,\"num_attention_heads\":%lld,"
      "\"intermediate_size\":%lld,\"vocab_size\":%lld,\"max_position_embeddings\":%lld,\"hidden_act\":\"silu\","
      "\"rms_norm_eps\":1e-05,\"initializer_range\":0.02,\"tie_word_embeddings\":true}",
      (long long)size->width, (long long)size->layers, (long long)size->heads, (long long)size->inner,
      (long long)size->vocabulary, (long long)positions);
  iso_json *json = NULL;
  ISO_TRY(iso_json_parse(text, (size_t)length, size->name, &json));
  const iso_status status = iso_model_config_parse(json, size->name, model);
  iso_json_destroy(&json);
  return status;
}

/* Share of attention, forward and backward, in the profile's table: its columns are op, calls, seconds, share, rate. */
static double attention_share(const iso_exec *exec) {
  char *text = NULL;
  size_t length = 0;
  FILE *file = open_memstream(&text, &length);
  if (!file) return 0;
  iso_exec_profile_print(exec, file);
  if (fclose(file) != 0) return 0;
  double attention = 0, total = 0;
  for (const char *line = text; line; line = strchr(line, '\n')) {
    char op[64];
    double calls, seconds;
    line += *line == '\n';
    if (sscanf(line, "%63s %lf %lf", op, &calls, &seconds) != 3) continue;
    total += seconds;
    if (strncmp(op, "attention", 9) == 0) attention += seconds;
  }
  free(text);
  return total > 0 ? attention / total : 0;
}

/* What the row would take, and whether that may be had. */
static iso_status plan(const bench *b, const iso_workload *w, row *r) {
  const iso_engine_options options = iso_workload_options(w);
  iso_engine engine;
  ISO_TRY(iso_engine_compile(b->device, &options, &engine));
  r->bytes = iso_engine_bytes(&engine);
  r->arena_bytes = (int64_t)engine.arena_bytes;
  iso_engine_fini(&engine);
  const double needed = (double)r->bytes * 1e-9, available = (double)iso_memory_available() * 1e-9;
  if (b->max_memory_gb > 0 && needed > b->max_memory_gb) {
    snprintf(r->skipped, sizeof r->skipped, "needs %.2f GB, --max-memory is %.2f", needed, b->max_memory_gb);
  } else if (needed > 0.97 * available) {
    snprintf(r->skipped, sizeof r->skipped, "needs %.2f GB, %.2f are free", needed, available);
  }
  return ISO_OK;
}

static iso_status measure(const bench *b, iso_workload *w, row *r) {
  double first = 0, times[MOST_STEPS], profiled;
  const double flop = (double)(w->batch * w->sequence) * iso_model_flop_per_token(w->model, w->sequence);
  iso_workload_peak(w);
  const bool lengthy = flop > b->seconds * USUAL_SHARE * w->peak_gflops * 1e9;
  if (lengthy) {
    iso_workload_touch(w);
  } else {
    ISO_TRY(iso_workload_step(w, &first));
    iso_workload_peak(w);
  }
  const double fit = lengthy ? 0 : b->seconds / (first > 1e-6 ? first : 1e-6);
  const int64_t timed = fit >= MOST_STEPS ? MOST_STEPS : (int64_t)fit;
  for (int64_t i = 0; i < timed; i++) {
    ISO_TRY(iso_workload_step(w, &times[i]));
    iso_workload_peak(w);
  }
  iso_exec_profile(w->engine.exec, true);
  ISO_TRY(iso_workload_step(w, &profiled));
  iso_workload_peak(w);
  r->steps = timed > 0 ? timed : 1;
  r->tokens_per_s = (double)(w->batch * w->sequence) / (timed > 0 ? iso_median(times, timed) : profiled);
  r->mfu = iso_workload_mfu(w, r->tokens_per_s);
  r->peak_gflops = w->peak_gflops;
  r->attention_share = attention_share(w->engine.exec);
  r->loss = w->loss;
  return ISO_OK;
}

static void report_json(bench *b, const row *r) {
  iso_string *out = &b->out;
  iso_json_open(out, NULL, '{');
  iso_json_put_text(out, "model", r->size->name);
  iso_json_put_int(out, "parameters", r->parameters);
  iso_json_put_int(out, "layers", r->size->layers);
  iso_json_put_int(out, "width", r->size->width);
  iso_json_put_int(out, "batch", r->batch);
  iso_json_put_int(out, "micro", r->micro);
  iso_json_put_int(out, "seq", r->sequence);
  iso_json_put_int(out, "planned_bytes", r->bytes);
  iso_json_put_real(out, "arena_bytes_per_token", (double)r->arena_bytes / (double)(r->micro * r->sequence));
  if (*r->skipped) {
    iso_json_put_text(out, "skipped", r->skipped);
  } else {
    iso_json_put_int(out, "steps", r->steps);
    iso_json_put_real(out, "tokens_per_s", r->tokens_per_s);
    iso_json_put_real(out, "mfu", r->mfu);
    iso_json_put_real(out, "peak_gflops", r->peak_gflops);
    iso_json_put_real(out, "attention_share", r->attention_share);
    iso_json_put_real(out, "loss", r->loss);
  }
  iso_json_shut(out, '}');
}

static void report(bench *b, const row *r) {
  if (b->json) {
    report_json(b, r);
    return;
  }
  printf("%-5s %7.1f M %4lld %6lld  ", r->size->name, (double)r->parameters * 1e-6, (long long)r->batch,
         (long long)r->sequence);
  if (*r->skipped) {
    printf("%9s %7s %11s %10.1f %8.2f skipped: %s\n", "", "", "",
           (double)r->arena_bytes / (double)(r->micro * r->sequence) * 1e-3, (double)r->bytes * 1e-9, r->skipped);
  } else {
    printf("%9.0f %6.1f%% %10.1f%% %10.1f %8.2f %5lld\n", r->tokens_per_s, 100 * r->mfu, 100 * r->attention_share,
           (double)r->arena_bytes / (double)(r->micro * r->sequence) * 1e-3, (double)r->bytes * 1e-9,
           (long long)r->steps);
  }
  fflush(stdout);
}

static iso_status run_row(bench *b, const model_size *size, int64_t sequence) {
  const int64_t tokens = b->tokens ? b->tokens : size->tokens;
  row r = {.size = size, .batch = tokens > sequence ? tokens / sequence : 1, .sequence = sequence};
  const iso_config config = {.batch.sequences = r.batch, .data.sequence = sequence};
  r.micro = iso_config_micro(&config, 1);
  iso_model_config model;
  ISO_TRY(make_model(size, sequence, &model));
  r.parameters = iso_model_parameters(&model);
  iso_workload w = {.device = b->device,
                    .model = &model,
                    .dtype = b->dtype,
                    .batch = r.batch,
                    .sequence = sequence,
                    .micro = r.micro};
  iso_status status = plan(b, &w, &r);
  if (status == ISO_OK && !*r.skipped) {
    status = iso_workload_init(&w);
    if (status == ISO_OK) {
      status = measure(b, &w, &r);
      iso_workload_fini(&w);
    }
  }
  iso_model_config_fini(&model);
  if (status == ISO_OK) report(b, &r);
  return status;
}

static iso_status run_lengths(bench *b, const model_size *size) {
  for (size_t i = 0; i < ISO_COUNT(lengths); i++) {
    if (lengths[i] == SWEEP_LENGTH || (b->quick && lengths[i] > QUICK_LENGTH)) continue;
    ISO_TRY(run_row(b, size, lengths[i]));
  }
  return ISO_OK;
}

static iso_status run(bench *b) {
  ISO_TRY(iso_device_create((int)b->threads, &b->device));
  const char *dtype = b->dtype == ISO_F32 ? "float32" : "bfloat16";
  const char *tier = iso_tier_name(iso_device_kernels(b->device)->tier);
  if (b->json) {
    iso_json_open(&b->out, NULL, '{');
    iso_json_put_text(&b->out, "dtype", dtype);
    iso_json_put_int(&b->out, "threads", iso_device_threads(b->device));
    iso_json_put_text(&b->out, "tier", tier);
    iso_json_open(&b->out, "rows", '[');
  } else {
    printf("%s, %d threads, tier %s\n", dtype, iso_device_threads(b->device), tier);
    printf("%-5s %9s %4s %6s  %9s %7s %11s %10s %8s %5s\n", "model", "params", "B", "T", "tokens/s", "MFU", "attention",
           "kB/token", "plan GB", "steps");
  }
  for (size_t i = 0; i < ISO_COUNT(sizes); i++) {
    if (b->quick && i > SIZE_30M) break;
    ISO_TRY(run_row(b, &sizes[i], SWEEP_LENGTH));
  }
  ISO_TRY(run_lengths(b, &sizes[SIZE_5M]));
  if (!b->quick) ISO_TRY(run_lengths(b, &sizes[SIZE_110M]));
  if (!b->json) return ISO_OK;
  iso_json_shut(&b->out, ']');
  iso_json_shut(&b->out, '}');
  return iso_json_print(&b->out);
}

iso_status iso_verb_bench_sweep(iso_args *args) {
  bench b = {.dtype = ISO_BF16, .seconds = 10};
  const iso_flag flags[] = {
      {"quick", ISO_FLAG_BOOL, &b.quick, "only up to 30 M parameters and 4,096 tokens a sequence; 1 s a row", 0, 0},
      {"max-memory", ISO_FLAG_REAL, &b.max_memory_gb, "GB that a row may plan; 0: what is free (0)", 0, 1e6},
      {"tokens", ISO_FLAG_INT, &b.tokens, "tokens of a step; 0: 8,192 to 2,048 by size (0)", 0, 1e7},
      {"seconds", ISO_FLAG_REAL, &b.seconds, "of timed steps in a row; a longer step is taken once (10)", 0, 3600},
      {"dtype", ISO_FLAG_DTYPE, &b.dtype, "compute type (bfloat16)", 0, 0},
      {"threads", ISO_FLAG_INT, &b.threads, "0: all cores (0)", 0, 1024},
      {"json", ISO_FLAG_BOOL, &b.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 0, 0));
  if (args->help) return ISO_OK;
  if (b.quick && b.seconds > 1) b.seconds = 1;
  const iso_status status = run(&b);
  iso_string_fini(&b.out);
  iso_device_destroy(&b.device);
  return status;
}
