/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach bench gemm: the three products of a linear layer in training, X W^T (forward), dY W (input's gradient) and
 * dY^T X (weight's gradient), over shapes of real models. `share` is of the peak measured around the same product.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct shape {
  int64_t m, n, k;
} shape;

/* m tokens, n outputs, k inputs of a layer. */
static const shape shapes[] = {
    {1024, 768, 768},  {1024, 2304, 768}, {1024, 3072, 768},  {1024, 768, 3072}, {2048, 768, 768},
    {2048, 2304, 768}, {2048, 2048, 768}, {2048, 768, 2048},  {512, 50257, 768}, {4096, 256, 256},
    {4096, 688, 256},  {4096, 256, 688},  {2048, 4096, 4096},
};
static const char *const products[] = {"x_wt", "dy_w", "dyt_x"};

typedef struct bench {
  iso_dtype dtype;
  int64_t threads;
  double seconds;
  bool json;
  iso_device *device;
  void *a, *b, *c, *scratch;
  iso_worker worker;
  iso_gemm_args gemm;
  double peak; /* best around the current product */
  double log_sum;
  int rows;
  iso_string out;
} bench;

static void run_thread(void *context, int thread) {
  const bench *b = context;
  iso_worker worker = b->worker;
  worker.thread = thread;
  iso_device_kernels(b->device)->gemm(&b->gemm, &worker);
}

/* The product as the layer (m, n, k) needs it. Every operand is as it stands in memory: X [m, k], W [n, k], dY [m, n].
 */
static iso_gemm_args product_args(const bench *b, const shape *s, int product, shape *gemm) {
  const iso_dtype d = b->dtype;
  const iso_matrix x = {b->a, s->m, s->k, s->k, d}, w = {b->b, s->n, s->k, s->k, d}, dy = {b->a, s->m, s->n, s->n, d};
  if (product == 0) {
    *gemm = (shape){s->m, s->n, s->k};
    return (iso_gemm_args){.a = x, .b = w, .c = {b->c, s->m, s->n, s->n, d}, .b_transposed = true};
  }
  if (product == 1) {
    *gemm = (shape){s->m, s->k, s->n};
    return (iso_gemm_args){.a = dy, .b = w, .c = {b->c, s->m, s->k, s->k, d}};
  }
  const iso_matrix x2 = {b->b, s->m, s->k, s->k, d};
  *gemm = (shape){s->n, s->k, s->m};
  return (iso_gemm_args){
      .a = dy, .b = x2, .c = {b->c, s->n, s->k, s->k, ISO_F32}, .a_transposed = true, .accumulate = true};
}

static void measure_peak(bench *b) {
  const double peak = iso_device_peak(b->device, b->dtype);
  if (peak > b->peak) b->peak = peak;
}

/* Best GFLOP/s over runs of about `seconds` in all. */
static double measure(bench *b, double flop) {
  double best = 0, spent = 0;
  iso_team *team = iso_device_team(b->device);
  iso_team_run(team, run_thread, b);
  b->peak = 0;
  measure_peak(b);
  for (int runs = 0; runs < 3 || spent < b->seconds; runs++) {
    const double began = iso_clock_s();
    iso_team_run(team, run_thread, b);
    const double took = iso_clock_s() - began;
    if (took > 0 && flop / took * 1e-9 > best) best = flop / took * 1e-9;
    spent += took;
  }
  measure_peak(b);
  return best;
}

static void report(bench *b, const shape *gemm, int product, double gflops) {
  const double share = gflops / b->peak;
  b->log_sum += log(share);
  b->rows++;
  if (!b->json) {
    printf("%6lld %6lld %6lld  %-6s %9.1f %9.1f %7.1f%%\n", (long long)gemm->m, (long long)gemm->n, (long long)gemm->k,
           products[product], gflops, b->peak, 100 * share);
    fflush(stdout);
    return;
  }
  iso_json_open(&b->out, NULL, '{');
  iso_json_put_int(&b->out, "m", gemm->m);
  iso_json_put_int(&b->out, "n", gemm->n);
  iso_json_put_int(&b->out, "k", gemm->k);
  iso_json_put_text(&b->out, "product", products[product]);
  iso_json_put_text(&b->out, "dtype", b->dtype == ISO_F32 ? "float32" : "bfloat16");
  iso_json_put_int(&b->out, "threads", iso_device_threads(b->device));
  iso_json_put_real(&b->out, "gflops", gflops);
  iso_json_put_real(&b->out, "peak_gflops", b->peak);
  iso_json_put_real(&b->out, "share", share);
  iso_json_shut(&b->out, '}');
}

/* Room for the largest operand of each kind, and values that are neither zero nor subnormal. */
static iso_status allocate(bench *b) {
  size_t elements = 0, scratch = 64;
  for (size_t i = 0; i < ISO_COUNT(shapes); i++) {
    const shape *s = &shapes[i];
    const size_t sizes[3] = {(size_t)(s->m * s->k), (size_t)(s->n * s->k), (size_t)(s->m * s->n)};
    for (int j = 0; j < 3; j++)
      if (sizes[j] > elements) elements = sizes[j];
    for (int product = 0; product < 3; product++) {
      shape g;
      (void)product_args(b, s, product, &g);
      const size_t bytes = iso_gemm_scratch(g.m, g.n, g.k, b->dtype, b->worker.threads);
      if (bytes > scratch) scratch = bytes;
    }
  }
  b->a = aligned_alloc(64, elements * 4 + 64 - elements * 4 % 64);
  b->b = aligned_alloc(64, elements * 4 + 64 - elements * 4 % 64);
  b->c = aligned_alloc(64, elements * 4 + 64 - elements * 4 % 64);
  b->scratch = aligned_alloc(64, scratch + 64 - scratch % 64);
  if (!b->a || !b->b || !b->c || !b->scratch) return iso_fail(ISO_ERR_MEMORY, "bench gemm: no memory for its matrices");
  for (size_t i = 0; i < elements; i++) {
    const float value = (float)((i * 2654435761U >> 16) % 255 + 1) / 256 - 0.5F;
    if (b->dtype == ISO_F32) {
      ((float *)b->a)[i] = ((float *)b->b)[i] = value;
    } else {
      ((iso_bf16 *)b->a)[i] = ((iso_bf16 *)b->b)[i] = iso_bf16_from_f32(value);
    }
  }
  memset(b->c, 0, elements * 4);
  b->worker.scratch = b->scratch;
  return ISO_OK;
}

static iso_status run(bench *b) {
  ISO_TRY(iso_device_create((int)b->threads, &b->device));
  b->worker.threads = iso_device_threads(b->device);
  b->worker.team = b->worker.threads > 1 ? iso_device_team(b->device) : NULL;
  ISO_TRY(allocate(b));
  if (b->json) {
    iso_json_open(&b->out, NULL, '{');
    iso_json_put_text(&b->out, "tier", iso_tier_name(iso_device_kernels(b->device)->tier));
    iso_json_open(&b->out, "rows", '[');
  } else {
    printf("%6s %6s %6s  %-6s %9s %9s %8s\n", "m", "n", "k", "", "gflops", "peak", "share");
  }
  for (size_t i = 0; i < ISO_COUNT(shapes); i++) {
    for (int product = 0; product < 3; product++) {
      shape g;
      b->gemm = product_args(b, &shapes[i], product, &g);
      report(b, &g, product, measure(b, 2.0 * (double)g.m * (double)g.n * (double)g.k));
    }
  }
  const double geomean = exp(b->log_sum / b->rows);
  if (!b->json) {
    printf("geometric mean of the shares: %.1f%%\n", 100 * geomean);
    return ISO_OK;
  }
  iso_json_shut(&b->out, ']');
  iso_json_put_real(&b->out, "geomean_share", geomean);
  iso_json_shut(&b->out, '}');
  return iso_json_print(&b->out);
}

iso_status iso_verb_bench_gemm(iso_args *args) {
  bench b = {.dtype = ISO_BF16, .seconds = 0.15};
  const iso_flag flags[] = {
      {"dtype", ISO_FLAG_DTYPE, &b.dtype, "of the operands (bfloat16)", 0, 0},
      {"threads", ISO_FLAG_INT, &b.threads, "0: all cores (0)", 0, 1024},
      {"seconds", ISO_FLAG_REAL, &b.seconds, "time spent on each product (0.15)", 0, 60},
      {"json", ISO_FLAG_BOOL, &b.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 0, 0));
  if (args->help) return ISO_OK;
  const iso_status status = run(&b);
  iso_string_fini(&b.out);
  free(b.a);
  free(b.b);
  free(b.c);
  free(b.scratch);
  iso_device_destroy(&b.device);
  return status;
}
