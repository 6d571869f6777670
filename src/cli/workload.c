/* SPDX-License-Identifier: Apache-2.0
 *
 * Training steps on random tokens, for the benches. A step is what a run does between two batches: forward, backward,
 * norm, update. The machine's peak is measured whenever asked, and the best one counts: a share of the peak is only
 * worth something when both were taken in the same minute.
 *
 * Tokens come from the counter-based generator, so step i reads the same ones in every run.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

iso_engine_options iso_workload_options(const iso_workload *w) {
  const int64_t workers = w->workers ? w->workers : 1, micro = w->micro ? w->micro : w->batch / workers;
  return (iso_engine_options){.model = w->model,
                              .compute = w->dtype,
                              .gradient = w->dtype,
                              .workers = workers,
                              .micro = micro,
                              .micros = w->batch / workers / micro,
                              .shared = w->ranks ? iso_ranks_flat(w->ranks) : NULL,
                              .share_bytes = w->ranks ? iso_ranks_plan_get(w->ranks)->share_bytes : 0,
                              .sequence = w->sequence,
                              .fusion = w->fusion,
                              .train = true};
}

/* Everything is allocated, initialised and on its pages afterwards, but for what the first step touches. */
iso_status iso_workload_init(iso_workload *w) {
  const iso_engine_options options = iso_workload_options(w);
  w->micro = options.micro;
  ISO_TRY(iso_engine_init(w->device, &options, &w->engine));
  const double began = iso_clock_s();
  iso_model_init(iso_engine_graph(&w->engine), 1, w->engine.flat.master, iso_device_team(w->device));
  iso_flat_refresh(&w->engine.flat, w->device);
  w->weights_s = iso_clock_s() - began;
  w->inputs = calloc((size_t)(4 * w->batch * w->sequence), sizeof *w->inputs);
  if (w->inputs) return ISO_OK;
  iso_engine_fini(&w->engine);
  return iso_fail(ISO_ERR_MEMORY, "bench: no memory for a batch of %lld x %lld tokens", (long long)w->batch,
                  (long long)w->sequence);
}

void iso_workload_fini(iso_workload *w) {
  free(w->inputs);
  w->inputs = NULL;
  iso_engine_fini(&w->engine);
}

typedef struct touch {
  char *base[2];
  size_t bytes[2];
  int threads;
} touch;

static void touch_share(void *argument, int thread) {
  const touch *t = argument;
  for (int i = 0; i < 2; i++) {
    const size_t share = t->bytes[i] / (size_t)t->threads + 1, begin = share * (size_t)thread;
    if (begin < t->bytes[i]) memset(t->base[i] + begin, 0, begin + share < t->bytes[i] ? share : t->bytes[i] - begin);
  }
}

/* Behind weights, which are drawn, stand moments, which are zero, and what a step overwrites. */
void iso_workload_touch(iso_workload *w) {
  const iso_flat *flat = &w->engine.flat;
  const size_t drawn = (size_t)((char *)flat->moment1 - (char *)flat->slab);
  touch t = {.base = {(char *)flat->moment1, w->engine.arena},
             .bytes = {flat->slab_bytes - drawn, w->engine.arena_bytes},
             .threads = iso_device_threads(w->device)};
  iso_team_run(iso_device_team(w->device), touch_share, &t);
}

static void fill_inputs(iso_workload *w, iso_step *out) {
  const int64_t rows = w->batch * w->sequence, step = w->taken;
  int32_t *tokens = w->inputs, *labels = tokens + rows, *positions = labels + rows, *segments = positions + rows;
  for (int64_t i = 0; i < rows; i++) {
    uint32_t bits[4];
    iso_rng(1, ISO_RNG_TEST, (uint64_t)step, (uint64_t)i, bits);
    tokens[i] = (int32_t)(bits[0] % (uint64_t)w->model->vocabulary);
    labels[i] = (int32_t)(bits[1] % (uint64_t)w->model->vocabulary);
    positions[i] = (int32_t)(i % w->sequence);
    segments[i] = 0;
  }
  *out = (iso_step){.inputs = {tokens, labels, positions, segments},
                    .workers = w->workers ? w->workers : 1,
                    .micros = w->batch / (w->workers ? w->workers : 1) / w->micro,
                    .scored = rows,
                    .lr = 1e-4F,
                    .beta1 = 0.9F,
                    .beta2 = 0.95F,
                    .eps = 1e-8F,
                    .clip_norm = 1,
                    .bias1 = (float)(1 - iso_pow_int(0.9, step + 1)),
                    .bias2 = (float)(1 - iso_pow_int(0.95, step + 1))};
}

iso_status iso_workload_step(iso_workload *w, double *seconds) {
  iso_step step;
  fill_inputs(w, &step);
  const double began = iso_clock_s();
  iso_exec_step(w->engine.exec, &step);
  *seconds = iso_clock_s() - began;
  w->taken++;
  ISO_TRY(step.status);
  if (step.refused) return iso_fail(ISO_ERR_NUMERIC, "bench: step %lld is not finite", (long long)w->taken);
  w->loss = step.loss_sum / (double)step.scored;
  return ISO_OK;
}

void iso_workload_peak(iso_workload *w) {
  const double peak = iso_device_peak(w->device, w->dtype);
  if (peak > w->peak_gflops) w->peak_gflops = peak;
}

double iso_workload_mfu(const iso_workload *w, double tokens_per_s) {
  return tokens_per_s * iso_model_flop_per_token(w->model, w->sequence) / (w->peak_gflops * 1e9);
}

double iso_median(double *values, int64_t count) {
  iso_sort(values, count);
  return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Field 22 of /proc/self/stat: clock ticks from boot to the start of the process. The name, field 2, may hold anything,
 * so fields are counted from its closing bracket. */
static double launched_s(void) {
  char text[1024];
  FILE *file = fopen("/proc/self/stat", "re");
  if (!file) return -1;
  const size_t length = fread(text, 1, sizeof text - 1, file);
  (void)fclose(file);
  text[length] = '\0';
  const char *at = strrchr(text, ')');
  for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
  if (!at) return -1;
  errno = 0;
  const unsigned long long ticks = strtoull(at, NULL, 10);
  return errno ? -1 : (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

double iso_process_age_s(double fallback) {
  struct timespec now;
  const double launched = launched_s();
  if (launched < 0 || clock_gettime(CLOCK_BOOTTIME, &now) != 0) return fallback;
  const double age = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - launched;
  return age >= fallback ? age : fallback;
}
