/* SPDX-License-Identifier: Apache-2.0
 *
 * kernels: the numeric work, one table of function pointers (table.c), a folder per ISA tier. Knows no graph.
 *
 * Calling convention. Every thread of the team calls the same kernel with the same arguments and its own iso_worker;
 * the kernel computes which OUTPUT elements belong to `thread`. A kernel may use iso_team_barrier(worker->team) inside;
 * it does not end with one (the caller's schedule does).
 *
 * Invariants
 *  1. The bits of a result depend on arguments and tier only, never on the number of threads, the alignment of pointers
 * or the content of scratch.
 *  2. Every reduction has a fixed order, written out; no libm; subnormals, infinities and NaNs behave the same in tails
 * as in full bodies.
 *  3. Kernels cannot fail and do not allocate: everything was checked when the program was built; scratch comes from
 * the caller.
 *  4. No byte outside the described matrices is written; nothing is read beyond them either (masked tails), except that
 * bodies may read within the same row.
 *  5. ISO_F32 x ISO_F32 products accumulate in float32; ISO_BF16 x ISO_BF16 in float32 too (the avx512bf16 tier with
 * vdpbf16ps, pairs along k).
 *
 * Letters: N rows (tokens), C width, H heads, D head width, V vocabulary, T sequence.
 * "compute type" below: ISO_F32 or ISO_BF16. Where a matrix says "any" it may be either, independently of the others.
 */
#ifndef ISO_KERNELS_H
#define ISO_KERNELS_H

#include "base/base.h"

/* A row-major matrix: element (i, j) at data + i * ld + j, ld >= cols, in elements. data NULL: absent. */
typedef struct iso_matrix {
  void *data;
  int64_t rows, cols, ld;
  iso_dtype dtype;
} iso_matrix;

typedef struct iso_worker {
  int thread, threads;
  iso_team *team; /* NULL when threads = 1 */
  void *scratch;  /* shared by all threads of the call; size from the iso_*_scratch function of the kernel; 64-byte
                     aligned */
} iso_worker;

/* Splits [0, count) into contiguous parts that begin at multiples of `grain`, as equal as that allows. Parts of late
 * threads may be empty. */
void iso_split(int64_t count, int64_t grain, const iso_worker *worker, int64_t *begin, int64_t *end);

/* What is done with parts of a product as soon as they are complete, by the thread that made them, in its cache: `run`
 * is called with rows and columns that cover C once. It may change C there, and write elsewhere what no other call
 * touches. The first member of the caller's own struct. */
typedef struct iso_epilogue {
  void (*run)(const struct iso_epilogue *self, int64_t row, int64_t rows, int64_t col, int64_t cols);
  int64_t grain; /* parts begin and end at multiples of so many columns, as C does; at least 1 */
  bool paired;   /* C has two halves: `col` counts in the first, the same columns of the other are complete too */
  int64_t busy;  /* only the first so many columns are work for it, which threads share */
} iso_epilogue;

/* C (+)= A B + bias. A is M x K, or stored K x M when a_transposed. B is K x N, or stored N x K when b_transposed. a
 * and b have one compute type; c any. accumulate needs c F32: C + (A B), the product formed first. bias: N values added
 * after the product (NULL: none; not with accumulate). K = 0 gives zeros (+ bias). */
typedef struct iso_gemm_args {
  iso_matrix a, b, c;
  bool a_transposed, b_transposed, accumulate;
  const float *bias;
  double *packing_s;            /* by thread: the seconds it spends packing panels are added; NULL: not wanted */
  const iso_epilogue *epilogue; /* NULL: none */
} iso_gemm_args;

/* y[i] = table[ids[i]]. table F32 [V, C]; y any [N, C]. 0 <= ids < V (checked where batches are made). */
typedef struct iso_embedding_args {
  const int32_t *ids;
  iso_matrix table, y;
} iso_embedding_args;
/* dtable[ids[i]] += dy[i], in the order of i; work is split over columns. Without accumulate dtable is zeroed first. dy
 * any; dtable F32. */
typedef struct iso_embedding_grad_args {
  const int32_t *ids;
  iso_matrix dy, dtable;
  bool accumulate;
} iso_embedding_grad_args;

/* RMSNorm (mean.data NULL, bias NULL) and LayerNorm over groups of D = weight's length; x [N, G*D], y same shape;
 * statistics F32 [N*G]. RMSNorm (Zhang & Sennrich 2019): y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps). LayerNorm
 * (Ba et al. 2016): y = (x - mean) * rstd * w + b, variance biased, two passes. x any, y any. */
typedef struct iso_norm_args {
  iso_matrix x, y;
  const float *weight, *bias;
  int64_t width; /* D */
  float eps;
  float *mean, *rstd; /* rstd may be NULL (inference) */
  bool layer;         /* LayerNorm */
  int64_t stats_ld;   /* statistics from one row's first to the next one's, for columns of a larger matrix; 0: G */
} iso_norm_args;
/* dx, dweight and dbias (F32, accumulate or overwritten). dy any, x as forward, dx any. dweight/dbias sum over rows
 * (and groups) in a fixed order independent of threads. dbias NULL for RMSNorm. */
typedef struct iso_norm_grad_args {
  iso_matrix dy, x, dx;
  const float *weight, *mean, *rstd;
  int64_t width;
  float *dweight, *dbias;
  bool layer, accumulate;
} iso_norm_grad_args;

/* Fused: norm.x = a + b (F32, may have the storage of a or b), then the norm of it. The bits of add, then norm. a, b
 * any. */
typedef struct iso_add_norm_args {
  iso_norm_args norm;
  iso_matrix a, b;
} iso_add_norm_args;
/* Fused: grad.dx = skip + the norm's dx; both F32, dx may have the storage of skip; copy: the same in BF16 (data NULL:
 * not wanted). The bits of norm_grad with a dx in F32, then add, then cast. */
typedef struct iso_norm_grad_add_args {
  iso_norm_grad_args grad;
  iso_matrix skip, copy;
} iso_norm_grad_add_args;

/* Rotary embedding (Su et al. 2021), "rotate half" form on every head of width D = 2 * table cols: with c = cos[p], s =
 * sin[p]: y[j] = x[j] c[j] - x[j + D/2] s[j];  y[j + D/2] = x[j + D/2] c[j] + x[j] s[j]. inverse negates s (that is the
 * gradient). cos, sin: F32 [P, D/2] row-major. x, y any; y may be x. */
typedef struct iso_rope_args {
  iso_matrix x, y; /* [N, H*D] */
  const int32_t *positions;
  const float *cos, *sin;
  int64_t head_dim;
  bool inverse;
} iso_rope_args;

/* Causal attention with grouped heads, tiled with online softmax (Dao et al. 2022). q [B*T, H*D]; k, v [B*S, Hkv*D]; o
 * [B*T, H*D]; one compute type. Head h reads kv head h / (H / Hkv). Query t of a sequence attends keys s with s <=
 * offset + t, s < S, (window = 0 or s > offset + t - window) and, when segments are given (offset = 0, S = T),
 * segments[s] == segments[t]. lse F32 [B*T*H] (row-major by token, then head): log-sum-exp of the scaled scores, of the
 * probabilities as the tier stores them; may be NULL in inference. */
typedef struct iso_attention_args {
  iso_matrix q, k, v, o;
  float *lse;
  const int32_t *segments;      /* [B*T] or NULL */
  int64_t batch, queries, keys; /* B, T, S */
  int64_t heads, kv_heads, head_dim;
  int64_t window, offset;
  float scale;
} iso_attention_args;
/* dq, dk, dv, of any type, from do (training shapes: offset 0, S = T). Work is split so that each output element is
 * summed by one thread in a fixed order. */
typedef struct iso_attention_grad_args {
  iso_attention_args forward; /* q, k, v, o, lse as the forward pass left them */
  iso_matrix dout, dq, dk, dv;
} iso_attention_grad_args;

/* y = silu(gate) * up (Shazeer 2020), silu(x) = x / (1 + exp(-x)). One compute type. */
typedef struct iso_swiglu_args {
  iso_matrix gate, up, y;
} iso_swiglu_args;
typedef struct iso_swiglu_grad_args {
  iso_matrix dy, gate, up, dgate, dup;
} iso_swiglu_grad_args;

typedef enum iso_gelu_form { ISO_GELU_ERF, ISO_GELU_TANH } iso_gelu_form;
/* GELU (Hendrycks & Gimpel 2016): exact with erf, or the tanh form. One compute type. dx(dy, x). */
typedef struct iso_gelu_args {
  iso_matrix x, y;
  iso_gelu_form form;
} iso_gelu_args;
typedef struct iso_gelu_grad_args {
  iso_matrix dy, x, dx;
  iso_gelu_form form;
} iso_gelu_grad_args;

/* y = a + b, computed in float32; any types; y may be a or b. */
typedef struct iso_add_args {
  iso_matrix a, b, y;
} iso_add_args;
/* y = x, converted (nearest even) or copied; any types and strides. */
typedef struct iso_cast_args {
  iso_matrix x, y;
} iso_cast_args;
/* out[j] (+)= sum over rows of x[i][j], in a fixed order. x any. */
typedef struct iso_column_sum_args {
  iso_matrix x;
  float *out;
  bool accumulate;
} iso_column_sum_args;

/* Products whose result goes through a row kernel part by part; the bits of the product, then the row kernel.
 * product.epilogue is theirs; not with accumulate. */
/* product.c = [gate | up] [N, 2F], y [N, F] = silu(gate) up. */
typedef struct iso_linear_swiglu_args {
  iso_gemm_args product;
  iso_matrix y;
} iso_linear_swiglu_args;
/* y = gelu(product.c), whose storage it may have. */
typedef struct iso_linear_gelu_args {
  iso_gemm_args product;
  iso_matrix y;
  iso_gelu_form form;
} iso_linear_gelu_args;
/* Columns [0, rotated) of product.c, whole heads, are rotated in place; what follows stays. With norms product.c stays
 * as it is, and q [N, Hq*D] gets the rotated RMSNorm of its first heads, k [N, Hk*D] that of the next. */
typedef struct iso_linear_rope_args {
  iso_gemm_args product;
  iso_rope_args rope; /* but x and y */
  int64_t rotated;
  iso_matrix q, k;                  /* data NULL: no norms; else their columns are those rotated */
  const float *q_weight, *k_weight; /* [D] */
  float *q_rstd, *k_rstd;           /* [N * heads]; NULL: not wanted */
  float eps;
} iso_linear_rope_args;

/* Softmax with cross-entropy, row-wise, in two steps: blocks of ISO_SOFTMAX_BLOCK columns (the last one may have fewer)
 * while their logits are in cache, then what brings the blocks of a row together.
 * part: one block of z, F32 [rows, columns]; tops[i blocks] = the greatest of row i, exponentials e = exp(z - top) in
 * e's type (NULL data: not wanted), sums[i blocks] = their sum. `blocks`: of the whole row. */
#define ISO_SOFTMAX_BLOCK 256
typedef struct iso_softmax_part_args {
  iso_matrix logits, exponentials;
  float *tops, *sums; /* of the block in the first row */
  int64_t blocks;
} iso_softmax_part_args;
/* finish: loss[i] = log(sum_j exp(z[i][j])) - z[i][label] and, in the storage of the exponentials of all blocks, dz =
 * softmax(z) - onehot(label) (NULL data: not wanted; its columns count all the same). label = -100: loss 0, dz 0. */
typedef struct iso_softmax_finish_args {
  iso_matrix dlogits;
  float *tops, *sums;    /* [rows, blocks]; sums are overwritten */
  const float *at_label; /* [rows] z[i][label], of rows that have one */
  const int32_t *labels;
  float *loss;
} iso_softmax_finish_args;

/* Linear + cross-entropy without logits: chunks of ISO_LOSS_CHUNK rows; z = x W^T in float32, only ever a block of it,
 * loss per row, and, when dx.data and dweight.data are given, at once dx = dz W and dweight (+)= dz^T x with
 * exponentials and dz rounded to the compute type. x [N, C], weight [V, C] one compute type; dx any; dweight F32; loss
 * F32 [N]. Scratch: iso_linear_cross_entropy_scratch. */
#define ISO_LOSS_CHUNK 1024
typedef struct iso_linear_cross_entropy_args {
  iso_matrix x, weight, dx, dweight;
  const int32_t *labels;
  float *loss;
  bool accumulate; /* dweight */
} iso_linear_cross_entropy_args;

/* ---- flat state ---- */

/* dst += src, elements [begin, end). */
typedef struct iso_flat_add_args {
  float *dst;
  const float *src;
  int64_t begin, end;
} iso_flat_add_args;

/* Blocks of the norm's fixed tree; ranges of the flat state begin at multiples of it. */
#define ISO_NORM_BLOCK 65536
/* reduced[i] = round(sum[i] / count) to reduced_type, i in [begin, end); squares[b] = sum over block b of
 * (double)reduced^2 in a fixed order. begin is a multiple of ISO_NORM_BLOCK; end too, or the end of the state. */
typedef struct iso_grad_round_args {
  const float *sum;
  void *reduced;
  iso_dtype reduced_type;
  double *squares; /* indexed by block number from 0 */
  float count;
  int64_t begin, end;
} iso_grad_round_args;

/* AdamW with decoupled decay (Loshchilov & Hutter 2019), elements [begin, end), g = float(reduced) * clip:
 *   w -= lr * weight_decay * w (only inside decay ranges);  m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;  w -= (lr /
 * bias1) * m / (sqrt(v) / sqrt(bias2) + eps). `compute` (BF16 copy of w, or NULL). decay: sorted, disjoint [begin, end)
 * pairs. Nothing is written when refused. */
typedef struct iso_adamw_args {
  float *master, *moment1, *moment2;
  const void *reduced;
  iso_dtype reduced_type;
  iso_bf16 *compute;
  const int64_t *decay_ranges; /* pairs */
  int64_t decay_count;
  int64_t begin, end;
  float lr, beta1, beta2, eps, weight_decay, clip;
  float bias1, bias2; /* 1 - beta^t */
  bool refused;
} iso_adamw_args;
/* Raised whenever the bits of adamw change. Recorded with every run. */
#define ISO_OPTIMIZER_VERSION 1

typedef struct iso_kernels {
  iso_tier tier;
  void (*gemm)(const iso_gemm_args *, const iso_worker *);
  void (*embedding)(const iso_embedding_args *, const iso_worker *);
  void (*embedding_grad)(const iso_embedding_grad_args *, const iso_worker *);
  void (*norm)(const iso_norm_args *, const iso_worker *);
  void (*norm_grad)(const iso_norm_grad_args *, const iso_worker *);
  void (*add_norm)(const iso_add_norm_args *, const iso_worker *);
  void (*norm_grad_add)(const iso_norm_grad_add_args *, const iso_worker *);
  void (*rope)(const iso_rope_args *, const iso_worker *);
  void (*attention)(const iso_attention_args *, const iso_worker *);
  void (*attention_grad)(const iso_attention_grad_args *, const iso_worker *);
  void (*swiglu)(const iso_swiglu_args *, const iso_worker *);
  void (*swiglu_grad)(const iso_swiglu_grad_args *, const iso_worker *);
  void (*gelu)(const iso_gelu_args *, const iso_worker *);
  void (*gelu_grad)(const iso_gelu_grad_args *, const iso_worker *);
  void (*add)(const iso_add_args *, const iso_worker *);
  void (*cast)(const iso_cast_args *, const iso_worker *);
  void (*column_sum)(const iso_column_sum_args *, const iso_worker *);
  void (*softmax_part)(const iso_softmax_part_args *, const iso_worker *);
  void (*softmax_finish)(const iso_softmax_finish_args *, const iso_worker *);
  void (*flat_add)(const iso_flat_add_args *, const iso_worker *);
  void (*grad_round)(const iso_grad_round_args *, const iso_worker *);
  void (*adamw)(const iso_adamw_args *, const iso_worker *);
  /* Register-only multiply-add chains of the type's fastest instruction; returns the FLOP this thread did. */
  double (*peak)(iso_dtype type, int64_t iterations);
} iso_kernels;

/* ---- table.c ---- */
/* The table of a tier: plain C first, then overlaid tier by tier up to `tier`. The machine must be able to run it.
 * Process lifetime. */
const iso_kernels *iso_kernels_get(iso_tier tier);
/* Scratch bytes, given the shapes and the number of threads. */
size_t iso_gemm_scratch(int64_t m, int64_t n, int64_t k, iso_dtype type, int threads);
/* Of a product with a paired epilogue: n columns in both halves. */
size_t iso_gemm_paired_scratch(int64_t m, int64_t n, int64_t k, iso_dtype type, int threads);
size_t iso_attention_scratch(int64_t queries, int64_t keys, int64_t head_dim, int threads);
size_t iso_attention_grad_scratch(int64_t batch, int64_t queries, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                  int threads);
size_t iso_norm_grad_scratch(int64_t rows, int64_t cols, int64_t width, int threads);
size_t iso_column_sum_scratch(int64_t rows, int64_t cols, int threads);
size_t iso_linear_cross_entropy_scratch(int64_t rows, int64_t width, int64_t vocabulary, iso_dtype type, int threads);

/* ---- loss.c: written over the table ---- */
void iso_linear_cross_entropy(const iso_kernels *kernels, const iso_linear_cross_entropy_args *args,
                              const iso_worker *worker);

/* ---- epilogue.c: likewise ---- */
void iso_linear_swiglu(const iso_kernels *kernels, const iso_linear_swiglu_args *args, const iso_worker *worker);
void iso_linear_gelu(const iso_kernels *kernels, const iso_linear_gelu_args *args, const iso_worker *worker);
void iso_linear_rope(const iso_kernels *kernels, const iso_linear_rope_args *args, const iso_worker *worker);

/* ---- peak.c ---- */
/* Best GFLOP/s of a few short register-only runs on `threads` threads of the team, for the type. Takes about 20 ms. */
double iso_peak_gflops(const iso_kernels *kernels, iso_team *team, iso_dtype type);

/* ---- one overlay function per file of a tier folder; each sets its entries ---- */
void iso_overlay_scalar_gemm(iso_kernels *table);
void iso_overlay_scalar_attention(iso_kernels *table);
void iso_overlay_scalar_rows(
    iso_kernels *table); /* norm, rope, embedding, activations, add, cast, column_sum, softmax */
void iso_overlay_scalar_flat(iso_kernels *table); /* flat_add, grad_round, adamw */
void iso_overlay_avx2_gemm(iso_kernels *table);
void iso_overlay_avx2_attention(iso_kernels *table);
void iso_overlay_avx2_rows(iso_kernels *table);
void iso_overlay_avx2_flat(iso_kernels *table);
void iso_overlay_avx512_gemm(iso_kernels *table);
void iso_overlay_avx512_attention(iso_kernels *table);
void iso_overlay_avx512_rows(iso_kernels *table);
void iso_overlay_avx512_flat(iso_kernels *table);
void iso_overlay_avx512bf16_gemm(iso_kernels *table);
void iso_overlay_avx512bf16_attention(iso_kernels *table);

#endif
