/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach bench gemm: the three products of a linear layer in training, X W^T (forward), dY W (the input's gradient)
 * and dY^T X (the weight's gradient), over shapes of real models, both types, on one thread and on all.
 *
 * What is timed is the table's gemm entry as a step calls it: operands row-major as they stand in memory (X [m, k],
 * W [n, k], dY [m, n]) in slabs like the arena's, results of the compute type, the weight's gradient added to float32.
 * Packing is part of it; its share is counted in runs of its own, which are not timed. `share` is of the peak measured
 * right before and after the product's runs, best against best.
 */
#include <math.h>
#include <string.h>

#include "cli/cli.h"

typedef struct shape {
  int64_t m, n, k;
} shape;

/* n outputs and k inputs of a layer. */
static const shape layers[] = {{0, 768, 768},  {0, 2304, 768},  {0, 2048, 768},
                               {0, 768, 2048}, {0, 4096, 4096}, {0, 32000, 768}};
static const int64_t tokens[] = {1024, 2048, 4096};
static const char *const products[] = {"xwt", "dyw", "dytx"};

enum { QUICK_LAYERS = 4, QUICK_TOKENS = 1, PACKING_RUNS = 3, THREADS_MAX = 1024 };

typedef enum buffer { BUFFER_X, BUFFER_W, BUFFER_Y, BUFFER_DX, BUFFER_DW, BUFFER_SCRATCH, BUFFERS } buffer;

typedef struct bench {
  const char *dtype_flag;
  int64_t threads_flag;
  double seconds;
  bool json, quick;
  iso_dtype dtype;
  iso_device *device;
  void *data[BUFFERS];
  size_t bytes[BUFFERS];
  iso_worker worker;
  iso_gemm_args gemm;
  double peak; /* best around the current product */
  double packing[THREADS_MAX];
  double log_sum, packing_sum, packing_most;
  int rows;
  const char *tier;
  iso_string out;
} bench;

static void run_thread(void *context, int thread) {
  const bench *b = context;
  iso_worker worker = b->worker;
  worker.thread = thread;
  iso_device_kernels(b->device)->gemm(&b->gemm, &worker);
}

/* Seconds of one run. */
static double run_once(bench *b) {
  const double began = iso_clock_s();
  iso_team_run(iso_device_team(b->device), run_thread, b);
  return iso_clock_s() - began;
}

static iso_gemm_args product_args(const bench *b, const shape *s, int product) {
  const iso_dtype d = b->dtype;
  const iso_matrix x = {b->data[BUFFER_X], s->m, s->k, s->k, d}, w = {b->data[BUFFER_W], s->n, s->k, s->k, d};
  const iso_matrix y = {b->data[BUFFER_Y], s->m, s->n, s->n, d}, dx = {b->data[BUFFER_DX], s->m, s->k, s->k, d};
  const iso_matrix dw = {b->data[BUFFER_DW], s->n, s->k, s->k, ISO_F32};
  switch (product) {
  case 0:
    return (iso_gemm_args){.a = x, .b = w, .c = y, .b_transposed = true};
  case 1:
    return (iso_gemm_args){.a = y, .b = w, .c = dx};
  default:
    return (iso_gemm_args){.a = y, .b = x, .c = dw, .a_transposed = true, .accumulate = true};
  }
}

static void measure_peak(bench *b) {
  const double peak = iso_device_peak(b->device, b->dtype);
  if (peak > b->peak) b->peak = peak;
}

/* Best GFLOP/s of at least three runs, over about `seconds` in all. */
static double measure(bench *b, double flop) {
  double best = 0, spent = 0;
  (void)run_once(b); /* brings operands and scratch into memory and cache */
  b->peak = 0;
  measure_peak(b);
  for (int runs = 0; runs < 3 || spent < b->seconds; runs++) {
    const double took = run_once(b);
    if (took > 0 && flop / took * 1e-9 > best) best = flop / took * 1e-9;
    spent += took;
  }
  measure_peak(b);
  return best;
}

/* Packing's share of the threads' time, in the fastest of a few runs: of what packs on the way, what it takes longer
 * than tiles that do not. */
static double measure_packing(bench *b) {
  double fastest = 0, share = 0;
  b->gemm.packing_s = b->packing;
  for (int run = 0; run < PACKING_RUNS; run++) {
    memset(b->packing, 0, sizeof b->packing);
    const double took = run_once(b);
    if (run > 0 && took >= fastest) continue;
    fastest = took;
    share = 0;
    for (int t = 0; t < b->worker.threads; t++) share += b->packing[t];
    share /= took * b->worker.threads;
  }
  b->gemm.packing_s = NULL;
  return share;
}

static void report(bench *b, const shape *s, int product, double gflops, double packing) {
  const double share = gflops / b->peak;
  b->log_sum += log(share);
  b->packing_sum += packing;
  if (packing > b->packing_most) b->packing_most = packing;
  b->rows++;
  const char *dtype = b->dtype == ISO_F32 ? "float32" : "bfloat16";
  if (!b->json) {
    printf("%6lld %6lld %6lld  %-5s %-9s %3d %9.1f %9.1f %6.1f%% %7.1f%%\n", (long long)s->m, (long long)s->n,
           (long long)s->k, products[product], dtype, b->worker.threads, gflops, b->peak, 100 * share, 100 * packing);
    fflush(stdout);
    return;
  }
  iso_json_open(&b->out, NULL, '{');
  iso_json_put_int(&b->out, "m", s->m);
  iso_json_put_int(&b->out, "n", s->n);
  iso_json_put_int(&b->out, "k", s->k);
  iso_json_put_text(&b->out, "product", products[product]);
  iso_json_put_text(&b->out, "dtype", dtype);
  iso_json_put_int(&b->out, "threads", b->worker.threads);
  iso_json_put_real(&b->out, "gflops", gflops);
  iso_json_put_real(&b->out, "peak_gflops", b->peak);
  iso_json_put_real(&b->out, "share", share);
  iso_json_put_real(&b->out, "packing_share", packing);
  iso_json_shut(&b->out, '}');
}

static void free_buffers(bench *b) {
  for (int i = 0; i < BUFFERS; i++) {
    iso_slab_free(b->data[i], b->bytes[i]);
    b->data[i] = NULL;
  }
}

/* Room for one shape; operands are neither zero nor subnormal. */
static iso_status allocate(bench *b, const shape *s) {
  const size_t size = iso_dtype_size(b->dtype), m = (size_t)s->m, n = (size_t)s->n, k = (size_t)s->k;
  const int threads = b->worker.threads;
  const size_t needs[3] = {iso_gemm_scratch(s->m, s->n, s->k, b->dtype, threads),
                           iso_gemm_scratch(s->m, s->k, s->n, b->dtype, threads),
                           iso_gemm_scratch(s->n, s->k, s->m, b->dtype, threads)};
  const size_t bytes[BUFFERS] = {[BUFFER_X] = m * k * size,  [BUFFER_W] = n * k * size, [BUFFER_Y] = m * n * size,
                                 [BUFFER_DX] = m * k * size, [BUFFER_DW] = n * k * 4,   [BUFFER_SCRATCH] = 64};
  memcpy(b->bytes, bytes, sizeof bytes);
  for (int i = 0; i < 3; i++)
    if (needs[i] > b->bytes[BUFFER_SCRATCH]) b->bytes[BUFFER_SCRATCH] = needs[i];
  for (int i = 0; i < BUFFERS; i++) {
    b->data[i] = iso_slab_alloc(b->bytes[i], "bench gemm");
    if (!b->data[i]) return iso_fail(ISO_ERR_MEMORY, "bench gemm: no memory for its matrices; try --quick");
  }
  for (int i = BUFFER_X; i <= BUFFER_Y; i++) {
    for (size_t j = 0; j < b->bytes[i] / size; j++) {
      const float value = (float)((j * 2654435761U >> 16) % 255 + 1) / 256 - 0.5F;
      if (b->dtype == ISO_F32)
        ((float *)b->data[i])[j] = value;
      else
        ((iso_bf16 *)b->data[i])[j] = iso_bf16_from_f32(value);
    }
  }
  b->worker.scratch = b->data[BUFFER_SCRATCH];
  return ISO_OK;
}

static void run_shape(bench *b, const shape *s) {
  for (int product = 0; product < 3; product++) {
    b->gemm = product_args(b, s, product);
    const double gflops = measure(b, 2.0 * (double)s->m * (double)s->n * (double)s->k);
    report(b, s, product, gflops, measure_packing(b));
  }
}

/* All shapes in one type on the threads of b->device. */
static iso_status run_shapes(bench *b) {
  const size_t token_count = b->quick ? QUICK_TOKENS : ISO_COUNT(tokens);
  const size_t layer_count = b->quick ? QUICK_LAYERS : ISO_COUNT(layers);
  iso_status status = ISO_OK;
  for (size_t t = 0; t < token_count && status == ISO_OK; t++) {
    for (size_t l = 0; l < layer_count && status == ISO_OK; l++) {
      const shape s = {tokens[t], layers[l].n, layers[l].k};
      status = allocate(b, &s);
      if (status == ISO_OK) run_shape(b, &s);
      free_buffers(b);
    }
  }
  return status;
}

/* Both types, or the one asked for, on `threads` threads (0: all). */
static iso_status run_threads(bench *b, int threads) {
  ISO_TRY(iso_device_create(threads, &b->device));
  b->worker.threads = iso_device_threads(b->device);
  b->worker.team = b->worker.threads > 1 ? iso_device_team(b->device) : NULL;
  b->tier = iso_tier_name(iso_device_kernels(b->device)->tier);
  iso_status status = ISO_OK;
  for (int i = 0; i < 2 && status == ISO_OK; i++) {
    b->dtype = i == 0 ? ISO_BF16 : ISO_F32;
    if (b->dtype_flag && strcmp(b->dtype_flag, b->dtype == ISO_F32 ? "float32" : "bfloat16") != 0) continue;
    status = run_shapes(b);
  }
  const bool several = b->worker.threads > 1;
  iso_device_destroy(&b->device);
  /* with no number given: one thread too */
  return status == ISO_OK && b->threads_flag == 0 && threads == 0 && several ? run_threads(b, 1) : status;
}

static iso_status run(bench *b) {
  if (b->json) {
    iso_json_open(&b->out, NULL, '{');
    iso_json_open(&b->out, "rows", '[');
  } else {
    printf("%6s %6s %6s  %-5s %-9s %3s %9s %9s %7s %8s\n", "m", "n", "k", "", "dtype", "thr", "gflops", "peak", "share",
           "packing");
  }
  ISO_TRY(run_threads(b, (int)b->threads_flag));
  const double geomean = exp(b->log_sum / b->rows), packing = b->packing_sum / b->rows;
  if (!b->json) {
    printf("geometric mean of the shares: %.1f%%; packing: %.1f%% of the time on average, at most %.1f%%\n",
           100 * geomean, 100 * packing, 100 * b->packing_most);
    return ISO_OK;
  }
  iso_json_shut(&b->out, ']');
  iso_json_put_text(&b->out, "tier", b->tier);
  iso_json_put_real(&b->out, "geomean_share", geomean);
  iso_json_put_real(&b->out, "pack_share", packing);
  iso_json_put_real(&b->out, "pack_share_most", b->packing_most);
  iso_json_shut(&b->out, '}');
  return iso_json_print(&b->out);
}

iso_status iso_verb_bench_gemm(iso_args *args) {
  bench b = {.seconds = 0.1};
  const iso_flag flags[] = {
      {"dtype", ISO_FLAG_TEXT, &b.dtype_flag, "float32 or bfloat16 (both)", 0, 0},
      {"threads", ISO_FLAG_INT, &b.threads_flag, "0: one, and all cores (0)", 0, THREADS_MAX},
      {"quick", ISO_FLAG_BOOL, &b.quick, "1,024 tokens and the four small layers", 0, 0},
      {"seconds", ISO_FLAG_REAL, &b.seconds, "time spent on each product, three runs at least (0.1)", 0, 60},
      {"json", ISO_FLAG_BOOL, &b.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 0, 0));
  if (args->help) return ISO_OK;
  if (b.dtype_flag && strcmp(b.dtype_flag, "float32") != 0 && strcmp(b.dtype_flag, "bfloat16") != 0)
    return iso_fail(ISO_ERR_USAGE, "bench gemm: --dtype must be float32 or bfloat16, not \"%s\"", b.dtype_flag);
  const iso_status status = run(&b);
  iso_string_fini(&b.out);
  return status;
}
