/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with epilogues, every tier and type: on 1, 2, 3 and 5 threads the bytes of the product, then the row kernel,
 * each run whole on one thread. Shapes with few rows, tails, several blocks of rows, columns and k, heads that groups
 * and threads would cut, biases, both layouts of the weight, gaps between rows.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/guarded.h"

enum { POSITIONS = 7 };

typedef enum which { SWIGLU, GELU, GELU_IN_PLACE, ROPE, NORM_ROPE, WHICH_COUNT } which;

typedef struct problem {
  which op;
  int64_t m, k, n; /* n: all columns of the product */
  int64_t head, q, rotated;
  iso_dtype type;
  bool b_transposed, bias, rstd;
  int64_t gap, shift;
} problem;

static const iso_kernels *kernels;
static which running;

static void call_fused(const void *args, const iso_worker *worker) {
  switch (running) {
  case SWIGLU:
    iso_linear_swiglu(kernels, args, worker);
    break;
  case GELU:
  case GELU_IN_PLACE:
    iso_linear_gelu(kernels, args, worker);
    break;
  default:
    iso_linear_rope(kernels, args, worker);
  }
}

static void call_gemm(const void *args, const iso_worker *worker) {
  kernels->gemm(args, worker);
}

/* All that the fused forms read; product.c and what the row kernel writes are of each run. */
typedef struct operands {
  guarded a, b, bias, cos, sin, q_weight, k_weight;
  int32_t positions[4096];
} operands;

/* y: of SwiGLU and GELU, or the normalised q; k likewise. */
typedef struct results {
  guarded c, y, k, q_rstd, k_rstd;
} results;

static results results_create(const problem *p) {
  const int64_t heads = p->op == NORM_ROPE ? p->rotated / p->head : 0, q_heads = heads ? p->q / p->head : 0;
  const int64_t y = p->op == SWIGLU ? p->n / 2 : p->op == GELU ? p->n : p->op == NORM_ROPE ? p->q : 0;
  const int64_t k = p->op == NORM_ROPE ? p->rotated - p->q : 0;
  return (results){guarded_create(p->m, p->n, p->gap, p->shift, p->type, true),
                   guarded_create(y ? p->m : 0, y, 2 * p->gap, p->shift, p->type, true),
                   guarded_create(k ? p->m : 0, k, p->gap, p->shift, p->type, true),
                   guarded_create(p->m * q_heads > 0, p->m * q_heads, 0, 0, ISO_F32, true),
                   guarded_create(p->m * (heads - q_heads) > 0, p->m * (heads - q_heads), 0, 0, ISO_F32, true)};
}

static void results_destroy(results *r) {
  guarded_destroy(&r->c);
  guarded_destroy(&r->y);
  guarded_destroy(&r->k);
  guarded_destroy(&r->q_rstd);
  guarded_destroy(&r->k_rstd);
}

static iso_gemm_args product_of(const problem *p, const operands *in, const results *r) {
  return (iso_gemm_args){.a = in->a.m,
                         .b = in->b.m,
                         .c = r->c.m,
                         .b_transposed = p->b_transposed,
                         .bias = p->bias ? in->bias.m.data : NULL};
}

static iso_linear_rope_args rope_of(const problem *p, const operands *in, const results *r) {
  iso_linear_rope_args args = {.product = product_of(p, in, r), .rotated = p->rotated, .eps = 1e-5f};
  args.rope =
      (iso_rope_args){.positions = in->positions, .cos = in->cos.m.data, .sin = in->sin.m.data, .head_dim = p->head};
  if (p->op != NORM_ROPE) return args;
  args.q = r->y.m;
  args.k = r->k.m;
  args.q_weight = in->q_weight.m.data;
  args.k_weight = in->k_weight.m.data;
  if (!p->rstd) return args;
  args.q_rstd = r->q_rstd.m.data;
  args.k_rstd = r->k_rstd.m.data;
  return args;
}

static void run_fused(const problem *p, const operands *in, const results *r, int threads) {
  const iso_linear_swiglu_args swiglu = {product_of(p, in, r), r->y.m};
  const iso_linear_gelu_args gelu = {product_of(p, in, r), p->op == GELU ? r->y.m : r->c.m, ISO_GELU_TANH};
  const iso_linear_rope_args rope = rope_of(p, in, r);
  const void *args = p->op == SWIGLU ? (const void *)&swiglu : p->op <= GELU_IN_PLACE ? &gelu : (const void *)&rope;
  const size_t scratch = p->op == SWIGLU ? iso_gemm_paired_scratch(p->m, p->n, p->k, p->type, threads)
                                         : iso_gemm_scratch(p->m, p->n, p->k, p->type, threads);
  running = p->op;
  assert_true(kernel_run(call_fused, args, scratch, threads));
}

static iso_matrix columns(iso_matrix m, int64_t first, int64_t count) {
  m.data = (char *)m.data + (size_t)first * iso_dtype_size(m.dtype);
  m.cols = count;
  return m;
}

static void run_unfused(const problem *p, const operands *in, const results *r) {
  const iso_gemm_args product = product_of(p, in, r);
  const iso_worker alone = {.threads = 1};
  assert_true(kernel_run(call_gemm, &product, iso_gemm_scratch(p->m, p->n, p->k, p->type, 1), 1));
  if (p->op == SWIGLU) {
    const int64_t half = p->n / 2;
    const iso_swiglu_args args = {columns(r->c.m, 0, half), columns(r->c.m, half, half), r->y.m};
    kernels->swiglu(&args, &alone);
    return;
  }
  if (p->op == GELU || p->op == GELU_IN_PLACE) {
    const iso_gelu_args args = {r->c.m, p->op == GELU ? r->y.m : r->c.m, ISO_GELU_TANH};
    kernels->gelu(&args, &alone);
    return;
  }
  const iso_linear_rope_args all = rope_of(p, in, r);
  const int64_t from[2] = {0, p->q}, width[2] = {p->q, p->rotated - p->q};
  for (int i = 0; i < 2; i++) {
    iso_rope_args rope = all.rope;
    rope.x = rope.y = columns(r->c.m, from[i], width[i]);
    if (p->op == NORM_ROPE) rope.x = rope.y = i ? r->k.m : r->y.m;
    const iso_norm_args norm = {.x = columns(r->c.m, from[i], width[i]),
                                .y = rope.y,
                                .weight = i ? all.k_weight : all.q_weight,
                                .width = p->head,
                                .eps = all.eps,
                                .rstd = i ? all.k_rstd : all.q_rstd};
    if (p->op == NORM_ROPE) kernels->norm(&norm, &alone);
    kernels->rope(&rope, &alone);
  }
}

static void same(const problem *p, const guarded *one, const guarded *other, const char *what, int threads) {
  if (!guarded_same(one, other))
    fail_msg("op %d %lldx%lldx%lld head %lld q %lld rotated %lld %s, %d threads: %s differs", (int)p->op,
             (long long)p->m, (long long)p->n, (long long)p->k, (long long)p->head, (long long)p->q,
             (long long)p->rotated, iso_dtype_name(p->type), threads, what);
}

static void check_problem(const problem *p) {
  static operands in;
  in.a = guarded_create(p->m, p->k, p->gap, p->shift, p->type, false);
  in.b = guarded_create(p->b_transposed ? p->n : p->k, p->b_transposed ? p->k : p->n, p->gap, 0, p->type, false);
  in.bias = guarded_create(1, p->n, 0, p->shift, ISO_F32, false);
  in.cos = guarded_create(POSITIONS, p->head / 2, 0, 0, ISO_F32, false);
  in.sin = guarded_create(POSITIONS, p->head / 2, 0, 0, ISO_F32, false);
  in.q_weight = guarded_create(1, p->head, 0, 0, ISO_F32, false);
  in.k_weight = guarded_create(1, p->head, 0, 0, ISO_F32, false);
  guarded *inputs[] = {&in.a, &in.b, &in.bias, &in.cos, &in.sin, &in.q_weight, &in.k_weight};
  for (size_t i = 0; i < ISO_COUNT(inputs); i++) guarded_fill(inputs[i], 1.0f);
  for (int64_t i = 0; i < p->m; i++) in.positions[i] = (int32_t)test_below(POSITIONS);
  results whole = results_create(p);
  run_unfused(p, &in, &whole);
  static const int team_sizes[] = {1, 2, 3, 5};
  for (size_t t = 0; t < ISO_COUNT(team_sizes); t++) {
    results parts = results_create(p);
    run_fused(p, &in, &parts, team_sizes[t]);
    same(p, &whole.c, &parts.c, "c", team_sizes[t]);
    same(p, &whole.y, &parts.y, "y", team_sizes[t]);
    same(p, &whole.k, &parts.k, "k", team_sizes[t]);
    same(p, &whole.q_rstd, &parts.q_rstd, "q_rstd", team_sizes[t]);
    same(p, &whole.k_rstd, &parts.k_rstd, "k_rstd", team_sizes[t]);
    results_destroy(&parts);
  }
  results_destroy(&whole);
  for (size_t i = 0; i < ISO_COUNT(inputs); i++) guarded_destroy(inputs[i]);
}

/* The columns follow from the op: pairs for SwiGLU, heads of q, of k, and v's for rope. */
static void set_columns(problem *p, int64_t heads, int64_t n) {
  p->head = (int64_t[]){2, 6, 8, 12, 64, 80, 128}[test_below(7)];
  p->n = p->op == SWIGLU ? 2 * n : n;
  if (p->op != ROPE && p->op != NORM_ROPE) return;
  const int64_t q = 1 + test_below(heads), k = p->op == NORM_ROPE ? 1 + test_below(heads) : test_below(heads + 1);
  p->q = q * p->head;
  p->rotated = (q + k) * p->head;
  p->n = p->rotated + test_below(heads) * p->head;
}

static problem random_problem(void) {
  static const int64_t rows[] = {1, 2, 3, 4, 5, 6, 13, 14, 15, 28, 29, 90}, cols[] = {1, 5, 16, 31, 33, 64, 90, 300};
  static const int64_t depths[] = {0, 1, 2, 7, 32, 65};
  problem p = {.op = (which)test_below(WHICH_COUNT),
               .m = rows[test_below(ISO_COUNT(rows))],
               .k = depths[test_below(ISO_COUNT(depths))],
               .type = test_below(2) ? ISO_BF16 : ISO_F32,
               .b_transposed = test_below(3) > 0,
               .bias = test_below(2),
               .rstd = test_below(2),
               .gap = test_below(3) ? 0 : test_below(20),
               .shift = test_below(2) ? 0 : test_below(16)};
  set_columns(&p, 4, cols[test_below(ISO_COUNT(cols))]);
  return p;
}

static void for_each_tier(void (*check)(bool slow)) {
  for (int t = 0; t <= (int)iso_cpu_best_tier(); t++) {
    kernels = iso_kernels_get((iso_tier)t);
    test_state = 0x9E3779B97F4A7C15u;
    check(t == 0);
  }
}

static void check_small(bool slow) {
  for (int i = 0; i < (slow ? 60 : 200); i++) {
    const problem p = random_problem();
    check_problem(&p);
  }
}

/* Several blocks of k (and so accumulators kept in scratch), of rows and of columns; groups that cut heads. */
static void check_large(bool slow) {
  static const struct {
    int64_t m, k, n;
  } shapes[] = {{17, 2100, 70}, {1100, 40, 150}, {20, 30, 2300}, {9, 1500, 1200}};
  for (size_t s = 0; s < ISO_COUNT(shapes) && !slow; s++)
    for (int op = 0; op < WHICH_COUNT; op++)
      for (int type = 0; type < 2; type++) {
        problem p = {.op = (which)op,
                     .m = shapes[s].m,
                     .k = shapes[s].k,
                     .type = type ? ISO_BF16 : ISO_F32,
                     .b_transposed = true,
                     .bias = op == GELU || op == ROPE,
                     .rstd = true,
                     .gap = 3 * type};
        set_columns(&p, 12, shapes[s].n);
        check_problem(&p);
      }
}

static void test_small(void **state) {
  (void)state;
  for_each_tier(check_small);
}

static void test_large(void **state) {
  (void)state;
  for_each_tier(check_large);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_small), cmocka_unit_test(test_large)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
