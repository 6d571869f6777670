/* SPDX-License-Identifier: Apache-2.0
 *
 * gemm_peers: our matrix products beside oneDNN's and OpenBLAS's, in one process and one interleaved run. Built and run
 * by bench/gemm-peers where Debian's libdnnl-dev and libopenblas-dev are installed; no part of the product.
 *
 * Every peer gets what suits it: oneDNN's operands are brought into the layouts that it chooses, untimed, while ours
 * are packed inside the product; OpenBLAS multiplies float32 only. The weight's gradient is added to float32 by all.
 * Contenders take turns, the best of the turns counts, and so does the peak measured between them. On one thread the
 * thread's CPU time is the clock, so that others on the machine do not matter much; on more it is the wall clock.
 *
 * usage: gemm_peers THREADS QUICK(0|1) TURNS
 */
#include <cblas.h>
#include <dnnl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/kernels.h"

#if DNNL_VERSION_MAJOR != 2
#error "this is written for oneDNN 2, as Debian 12 has it"
#endif

typedef struct shape {
  int64_t m, n, k;
} shape;

static const shape layers[] = {{0, 768, 768},  {0, 2304, 768},  {0, 2048, 768},
                               {0, 768, 2048}, {0, 4096, 4096}, {0, 32000, 768}};
static const int64_t tokens[] = {1024, 2048, 4096};
static const char *const names[] = {"xwt", "dyw", "dytx"};

/* C [rows, cols] (+)= A B over depth; strides in elements of A's and B's rows and columns. */
typedef struct product {
  int64_t rows, cols, depth;
  int64_t a_down, a_right, b_down, b_right;
  const void *a, *b;
  void *c;
  bool gradient; /* c is float32 and added to */
  iso_dtype dtype;
} product;

typedef struct bench {
  int threads, turns;
  const iso_kernels *kernels;
  iso_team *team;
  void *scratch;
  product p;
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  dnnl_primitive_t primitive;
  dnnl_memory_t memory[3];
  double peak;
  char implementation[64];
} bench;

static double now(const bench *b) {
  if (b->threads > 1) return iso_clock_s();
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(dnnl_status_t status, const char *what) {
  if (status == dnnl_success) return;
  fprintf(stderr, "gemm_peers: oneDNN: %s: status %d\n", what, (int)status);
  exit(1);
}

/* ---- ours ---- */

static void run_ours(void *context, int thread) {
  const bench *b = context;
  const product *p = &b->p;
  const bool a_t = p->a_right != 1, b_t = p->b_right != 1;
  iso_matrix a = {(void *)(uintptr_t)p->a, a_t ? p->depth : p->rows, a_t ? p->rows : p->depth,
                  a_t ? p->a_right : p->a_down, p->dtype};
  iso_matrix bm = {(void *)(uintptr_t)p->b, b_t ? p->cols : p->depth, b_t ? p->depth : p->cols,
                   b_t ? p->b_right : p->b_down, p->dtype};
  iso_matrix c = {p->c, p->rows, p->cols, p->cols, p->gradient ? ISO_F32 : p->dtype};
  iso_gemm_args args = {.a = a, .b = bm, .c = c, .a_transposed = a_t, .b_transposed = b_t, .accumulate = p->gradient};
  iso_worker worker = {thread, b->threads, b->team, b->scratch};
  b->kernels->gemm(&args, &worker);
}

static void ours(bench *b) {
  if (b->threads > 1)
    iso_team_run(b->team, run_ours, b);
  else
    run_ours(b, 0);
}

/* ---- oneDNN ---- */

static dnnl_memory_t memory_at(bench *b, const dnnl_memory_desc_t *desc, const void *data) {
  dnnl_memory_t memory;
  must(dnnl_memory_create(&memory, desc, b->engine, data ? (void *)(uintptr_t)data : DNNL_MEMORY_ALLOCATE), "memory");
  return memory;
}

/* The operand in the layout of the primitive's choice. */
static dnnl_memory_t packed(bench *b, const dnnl_memory_desc_t *plain, const dnnl_memory_desc_t *wanted,
                            const void *data) {
  dnnl_memory_t from = memory_at(b, plain, data);
  if (dnnl_memory_desc_equal(plain, wanted)) return from;
  dnnl_memory_t to = memory_at(b, wanted, NULL);
  dnnl_primitive_desc_t desc;
  dnnl_primitive_t reorder;
  must(dnnl_reorder_primitive_desc_create(&desc, plain, b->engine, wanted, b->engine, NULL), "reorder");
  must(dnnl_primitive_create(&reorder, desc), "reorder");
  dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}};
  must(dnnl_primitive_execute(reorder, b->stream, 2, args), "reorder");
  must(dnnl_stream_wait(b->stream), "reorder");
  dnnl_primitive_destroy(reorder);
  dnnl_primitive_desc_destroy(desc);
  dnnl_memory_destroy(from);
  return to;
}

static void onednn_prepare(bench *b) {
  const product *p = &b->p;
  const dnnl_data_type_t type = p->dtype == ISO_BF16 ? dnnl_bf16 : dnnl_f32;
  const dnnl_dims_t a_dims = {p->rows, p->depth}, a_strides = {p->a_down, p->a_right};
  const dnnl_dims_t b_dims = {p->depth, p->cols}, b_strides = {p->b_down, p->b_right};
  const dnnl_dims_t c_dims = {p->rows, p->cols};
  dnnl_memory_desc_t plain[2], any[2], c;
  must(dnnl_memory_desc_init_by_strides(&plain[0], 2, a_dims, type, a_strides), "layout");
  must(dnnl_memory_desc_init_by_strides(&plain[1], 2, b_dims, type, b_strides), "layout");
  must(dnnl_memory_desc_init_by_tag(&any[0], 2, a_dims, type, dnnl_format_tag_any), "layout");
  must(dnnl_memory_desc_init_by_tag(&any[1], 2, b_dims, type, dnnl_format_tag_any), "layout");
  must(dnnl_memory_desc_init_by_tag(&c, 2, c_dims, p->gradient ? dnnl_f32 : type, dnnl_ab), "layout");
  dnnl_matmul_desc_t matmul;
  must(dnnl_matmul_desc_init(&matmul, &any[0], &any[1], NULL, &c), "matmul");
  dnnl_primitive_attr_t attributes;
  dnnl_post_ops_t after;
  must(dnnl_primitive_attr_create(&attributes), "attributes");
  must(dnnl_post_ops_create(&after), "post-ops");
  if (p->gradient) must(dnnl_post_ops_append_sum(after, 1.0F), "sum");
  must(dnnl_primitive_attr_set_post_ops(attributes, after), "post-ops");
  dnnl_primitive_desc_t desc;
  must(dnnl_primitive_desc_create(&desc, &matmul, attributes, b->engine, NULL), "matmul");
  must(dnnl_primitive_create(&b->primitive, desc), "matmul");
  const char *name = "";
  dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, (void *)&name);
  snprintf(b->implementation, sizeof b->implementation, "%s", name);
  b->memory[0] = packed(b, &plain[0], dnnl_primitive_desc_query_md(desc, dnnl_query_src_md, 0), p->a);
  b->memory[1] = packed(b, &plain[1], dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0), p->b);
  b->memory[2] = memory_at(b, &c, p->c);
  dnnl_primitive_desc_destroy(desc);
  dnnl_post_ops_destroy(after);
  dnnl_primitive_attr_destroy(attributes);
}

static void onednn(bench *b) {
  dnnl_exec_arg_t args[3] = {
      {DNNL_ARG_SRC, b->memory[0]}, {DNNL_ARG_WEIGHTS, b->memory[1]}, {DNNL_ARG_DST, b->memory[2]}};
  must(dnnl_primitive_execute(b->primitive, b->stream, 3, args), "matmul");
  must(dnnl_stream_wait(b->stream), "matmul");
}

static void onednn_finish(bench *b) {
  for (int i = 0; i < 3; i++) dnnl_memory_destroy(b->memory[i]);
  dnnl_primitive_destroy(b->primitive);
}

/* ---- OpenBLAS ---- */

static void openblas(bench *b) {
  const product *p = &b->p;
  const bool a_t = p->a_right != 1, b_t = p->b_right != 1;
  cblas_sgemm(CblasRowMajor, a_t ? CblasTrans : CblasNoTrans, b_t ? CblasTrans : CblasNoTrans, (int)p->rows,
              (int)p->cols, (int)p->depth, 1.0F, p->a, (int)(a_t ? p->a_right : p->a_down), p->b,
              (int)(b_t ? p->b_right : p->b_down), p->gradient ? 1.0F : 0.0F, p->c, (int)p->cols);
}

/* ---- turns ---- */

static void measure_peak(bench *b) {
  double peak = 0;
  if (b->threads > 1) {
    peak = iso_peak_gflops(b->kernels, b->team, b->p.dtype);
  } else {
    const double began = now(b), flop = b->kernels->peak(b->p.dtype, 200000);
    peak = flop / (now(b) - began) * 1e-9;
  }
  if (peak > b->peak) b->peak = peak;
}

static void turn(bench *b, void (*contender)(bench *), double flop, double *best) {
  contender(b); /* its threads awake, its code and operands at hand */
  const double began = now(b);
  contender(b);
  const double rate = flop / (now(b) - began) * 1e-9;
  if (rate > *best) *best = rate;
}

static product product_of(const shape *s, int kind, iso_dtype dtype, void *x, void *w, void *y, void *out) {
  switch (kind) {
  case 0:
    return (product){s->m, s->n, s->k, s->k, 1, 1, s->k, x, w, y, false, dtype};
  case 1:
    return (product){s->m, s->k, s->n, s->n, 1, s->k, 1, y, w, out, false, dtype};
  default:
    return (product){s->n, s->k, s->m, 1, s->n, s->k, 1, y, x, out, true, dtype};
  }
}

static void *filled(size_t count, iso_dtype dtype) {
  const size_t bytes = count * iso_dtype_size(dtype);
  void *data = iso_slab_alloc(bytes, "gemm_peers");
  if (!data) exit(1);
  for (size_t i = 0; i < count; i++) {
    const float value = (float)((i * 2654435761U >> 16) % 255 + 1) / 256 - 0.5F;
    if (dtype == ISO_F32)
      ((float *)data)[i] = value;
    else
      ((iso_bf16 *)data)[i] = iso_bf16_from_f32(value);
  }
  return data;
}

typedef struct total {
  double ours, onednn, openblas;
  int rows;
} total;

static void run_product(bench *b, const shape *s, int kind, total *sum) {
  const product *p = &b->p;
  const double flop = 2.0 * (double)p->rows * (double)p->cols * (double)p->depth;
  double best[3] = {0, 0, 0};
  const size_t scratch = iso_gemm_scratch(p->rows, p->cols, p->depth, p->dtype, b->threads);
  b->scratch = iso_slab_alloc(scratch, "gemm_peers");
  if (!b->scratch) exit(1);
  onednn_prepare(b);
  b->peak = 0;
  for (int i = 0; i < b->turns; i++) {
    measure_peak(b);
    turn(b, ours, flop, &best[0]);
    turn(b, onednn, flop, &best[1]);
    if (p->dtype == ISO_F32) turn(b, openblas, flop, &best[2]);
  }
  measure_peak(b);
  onednn_finish(b);
  iso_slab_free(b->scratch, scratch);
  printf("%6lld %6lld %6lld  %-4s %-8s %8.1f %6.1f%% %7.1f%%", (long long)s->m, (long long)s->n, (long long)s->k,
         names[kind], p->dtype == ISO_F32 ? "float32" : "bfloat16", b->peak, 100 * best[0] / b->peak,
         100 * best[1] / b->peak);
  if (p->dtype == ISO_F32)
    printf(" %8.1f%%", 100 * best[2] / b->peak);
  else
    printf(" %9s", "-");
  printf("  %5.2f  %s\n", best[0] / (best[1] > best[2] ? best[1] : best[2]), b->implementation);
  fflush(stdout);
  sum->ours += log(best[0] / b->peak);
  sum->onednn += log(best[1] / b->peak);
  if (p->dtype == ISO_F32) sum->openblas += log(best[2] / b->peak);
  sum->rows++;
}

static total run_dtype(bench *b, iso_dtype dtype, bool quick) {
  total sum = {0};
  for (size_t t = 0; t < (quick ? 1 : ISO_COUNT(tokens)); t++) {
    for (size_t l = 0; l < (quick ? 4 : ISO_COUNT(layers)); l++) {
      const shape s = {tokens[t], layers[l].n, layers[l].k};
      const size_t size = iso_dtype_size(dtype), m = (size_t)s.m, n = (size_t)s.n, k = (size_t)s.k;
      const size_t out_bytes = (m > n ? m : n) * k * 4;
      void *x = filled(m * k, dtype), *w = filled(n * k, dtype), *y = filled(m * n, dtype);
      void *out = iso_slab_alloc(out_bytes, "gemm_peers");
      if (!out) exit(1);
      for (int kind = 0; kind < 3; kind++) {
        b->p = product_of(&s, kind, dtype, x, w, y, out);
        run_product(b, &s, kind, &sum);
      }
      iso_slab_free(x, m * k * size);
      iso_slab_free(w, n * k * size);
      iso_slab_free(y, m * n * size);
      iso_slab_free(out, out_bytes);
    }
  }
  return sum;
}

/* Geometric means side by side, and who is ahead by how much of the other's rate. */
static void print_means(const char *dtype, const total *sum, bool openblas) {
  const double ours = exp(sum->ours / sum->rows), onednn = exp(sum->onednn / sum->rows);
  const double blas = openblas ? exp(sum->openblas / sum->rows) : 0, best = onednn > blas ? onednn : blas;
  const char *peer = onednn > blas ? "oneDNN" : "OpenBLAS";
  printf("%-9s %7.1f%% %7.1f%%", dtype, 100 * ours, 100 * onednn);
  if (openblas)
    printf(" %8.1f%%", 100 * blas);
  else
    printf(" %9s", "-");
  printf("  %s ahead of %s by %.1f%%\n", ours >= best ? "ours" : peer, ours >= best ? peer : "ours",
         100 * (ours >= best ? ours / best - 1 : best / ours - 1));
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: gemm_peers THREADS QUICK TURNS; bench/gemm-peers runs it\n");
    return 2;
  }
  bench b = {.threads = atoi(argv[1]), .turns = atoi(argv[3]), .kernels = iso_kernels_get(iso_cpu_best_tier())};
  if (b.threads < 1 || b.threads > 1024 || b.turns < 1) {
    fprintf(stderr, "gemm_peers: THREADS must be from 1 to 1024 and TURNS at least 1\n");
    return 2;
  }
  if (b.threads > 1 && !(b.team = iso_team_create(b.threads, false))) return 1;
  openblas_set_num_threads(b.threads);
  must(dnnl_engine_create(&b.engine, dnnl_cpu, 0), "engine");
  must(dnnl_stream_create(&b.stream, b.engine, dnnl_stream_default_flags), "stream");
  printf("ours %s; oneDNN %d.%d.%d; OpenBLAS %s, kernels for %s; shares of the peak, clock: %s\n",
         iso_tier_name(b.kernels->tier), DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH,
         openblas_get_config(), openblas_get_corename(), b.threads > 1 ? "wall" : "the thread's CPU time");
  printf("%6s %6s %6s  %-4s %-8s %8s %7s %8s %9s  %5s  %s\n", "m", "n", "k", "", "dtype", "GFLOP/s", "ours", "oneDNN",
         "OpenBLAS", "ratio", "oneDNN's kernel");
  const total bf16 = run_dtype(&b, ISO_BF16, atoi(argv[2]) != 0), f32 = run_dtype(&b, ISO_F32, atoi(argv[2]) != 0);
  printf("geometric means of %d shares of the peak on %d thread%s:\n%-9s %8s %8s %9s\n", bf16.rows, b.threads,
         b.threads > 1 ? "s" : "", "", "ours", "oneDNN", "OpenBLAS");
  print_means("bfloat16", &bf16, false);
  print_means("float32", &f32, true);
  dnnl_stream_destroy(b.stream);
  dnnl_engine_destroy(b.engine);
  iso_team_destroy(&b.team);
  return 0;
}
