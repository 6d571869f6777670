/* SPDX-License-Identifier: Apache-2.0
 *
 * From instruction to kernel: one small function an op, in a table. An operand becomes a matrix by its space's base and
 * its byte offset; nothing is decided here that the program did not decide.
 */
#include <math.h>
#include <string.h>

#include "exec/exec.h"

typedef struct context {
  const iso_program *program;
  const iso_instruction *in;
  const iso_frame *frame;
  iso_worker *worker;
} context;

static char *address(const context *c, const iso_operand *operand) {
  if (!operand->present) return NULL;
  if (operand->space == ISO_SPACE_INPUT) return (char *)c->frame->inputs[operand->value];
  return c->frame->base[operand->space] + operand->offset;
}

/* A rank-1 operand is a single row. */
static iso_matrix matrix(const context *c, const iso_operand *operand) {
  iso_matrix m = {0};
  if (!operand->present) return m;
  m.data = address(c, operand);
  m.rows = operand->rank >= 2 ? operand->shape[0] : 1;
  m.cols = operand->rank >= 2 ? operand->shape[1] : operand->shape[0];
  m.ld = operand->rank >= 2 ? operand->ld : m.cols;
  m.dtype = operand->dtype;
  return m;
}

static iso_matrix input(const context *c, int index) {
  return matrix(c, &c->in->inputs[index]);
}

static iso_matrix output(const context *c, int index) {
  return matrix(c, &c->in->outputs[index]);
}

static void *input_data(const context *c, int index) {
  return index < c->in->input_count ? address(c, &c->in->inputs[index]) : NULL;
}

static void *output_data(const context *c, int index) {
  return index < c->in->output_count ? address(c, &c->in->outputs[index]) : NULL;
}

static double attribute(const context *c, iso_attribute key) {
  return c->in->attributes[key];
}

static bool accumulates(const context *c) {
  switch (c->in->accumulate) {
  case ISO_ACCUMULATE_ALWAYS:
    return true;
  case ISO_ACCUMULATE_MICRO:
    return !c->frame->first_micro;
  default:
    return false;
  }
}

static void run_embedding(const context *c) {
  const iso_embedding_args args = {input_data(c, 1), input(c, 0), output(c, 0)};
  c->frame->kernels->embedding(&args, c->worker);
}

static void run_embedding_grad(const context *c) {
  const iso_embedding_grad_args args = {input_data(c, 1), input(c, 0), output(c, 0), accumulates(c)};
  c->frame->kernels->embedding_grad(&args, c->worker);
}

/* The weight is input w; y and the statistics are outputs from y on. */
static iso_norm_args norm_args(const context *c, bool layer, iso_matrix x, int w, int y) {
  iso_norm_args args = {.x = x, .y = output(c, y), .weight = input_data(c, w), .layer = layer};
  args.bias = layer ? input_data(c, w + 1) : NULL;
  args.width = c->in->inputs[w].shape[0];
  args.eps = (float)attribute(c, ISO_ATTR_EPS);
  args.mean = layer ? output_data(c, y + 1) : NULL;
  args.rstd = output_data(c, layer ? y + 2 : y + 1);
  return args;
}

static void run_norm(const context *c) {
  const iso_norm_args args = norm_args(c, c->in->op == ISO_OP_LAYERNORM, input(c, 0), 1, 0);
  c->frame->kernels->norm(&args, c->worker);
}

static void run_add_norm(const context *c) {
  iso_add_norm_args args = {.a = input(c, 0), .b = input(c, 1)};
  args.norm = norm_args(c, c->in->op == ISO_OP_ADD_LAYERNORM, output(c, 0), 2, 1);
  c->frame->kernels->add_norm(&args, c->worker);
}

/* dy, x, weight and statistics are inputs from dy on. */
static iso_norm_grad_args norm_grad_args(const context *c, bool layer, int dy) {
  iso_norm_grad_args args = {.dy = input(c, dy), .x = input(c, dy + 1), .dx = output(c, 0), .layer = layer};
  args.weight = input_data(c, dy + 2);
  args.mean = layer ? input_data(c, dy + 3) : NULL;
  args.rstd = input_data(c, layer ? dy + 4 : dy + 3);
  args.width = c->in->inputs[dy + 2].shape[0];
  args.dweight = output_data(c, 1);
  args.dbias = layer ? output_data(c, 2) : NULL;
  args.accumulate = accumulates(c);
  return args;
}

static void run_norm_grad(const context *c) {
  const iso_norm_grad_args args = norm_grad_args(c, c->in->op == ISO_OP_LAYERNORM_GRAD, 0);
  c->frame->kernels->norm_grad(&args, c->worker);
}

static void run_norm_grad_add(const context *c) {
  const bool layer = c->in->op == ISO_OP_LAYERNORM_GRAD_ADD;
  const iso_norm_grad_add_args args = {norm_grad_args(c, layer, 1), input(c, 0), output(c, layer ? 3 : 2)};
  c->frame->kernels->norm_grad_add(&args, c->worker);
}

/* y = x W^T + b, or x W + b for weights stored [in, out]. */
static iso_gemm_args linear_args(const context *c) {
  iso_gemm_args args = {.a = input(c, 0), .b = input(c, 1), .c = output(c, 0)};
  args.b_transposed = attribute(c, ISO_ATTR_TRANSPOSED) == 0;
  args.bias = c->in->input_count > 2 ? input_data(c, 2) : NULL;
  return args;
}

static void run_linear(const context *c) {
  const iso_gemm_args args = linear_args(c);
  c->frame->kernels->gemm(&args, c->worker);
}

static void run_linear_dx(const context *c) {
  iso_gemm_args args = {.a = input(c, 0), .b = input(c, 1), .c = output(c, 0)};
  args.b_transposed = attribute(c, ISO_ATTR_TRANSPOSED) != 0;
  args.accumulate = accumulates(c);
  c->frame->kernels->gemm(&args, c->worker);
}

static void run_linear_dw(const context *c) {
  const bool transposed = attribute(c, ISO_ATTR_TRANSPOSED) != 0;
  iso_gemm_args args = {.a = input(c, transposed ? 1 : 0), .b = input(c, transposed ? 0 : 1), .c = output(c, 0)};
  args.a_transposed = true;
  args.accumulate = accumulates(c);
  c->frame->kernels->gemm(&args, c->worker);
}

/* The weights are inputs 1 to `last`: the checker saw to it that they are one matrix in memory. */
static iso_matrix joint_weights(const context *c, int last) {
  iso_matrix all = input(c, 1);
  for (int i = 2; i <= last; i++) all.rows += input(c, i).rows;
  return all;
}

static iso_gemm_args joint_args(const context *c, int last, int y) {
  return (iso_gemm_args){.a = input(c, 0), .b = joint_weights(c, last), .c = output(c, y), .b_transposed = true};
}

static void run_linear_joint(const context *c) {
  const iso_gemm_args args = joint_args(c, 3, 0);
  c->frame->kernels->gemm(&args, c->worker);
}

static void run_linear_joint_swiglu(const context *c) {
  const iso_linear_swiglu_args args = {joint_args(c, 2, 1), output(c, 0)};
  iso_linear_swiglu(c->frame->kernels, &args, c->worker);
}

static void run_linear_gelu(const context *c) {
  const iso_matrix h = output(c, 0), y = output(c, 1);
  iso_linear_gelu_args args = {.y = h, .form = (iso_gelu_form)attribute(c, ISO_ATTR_FORM)};
  args.product = linear_args(c);
  args.product.c = y.data != NULL ? y : h;
  iso_linear_gelu(c->frame->kernels, &args, c->worker);
}

/* positions, cos and sin are inputs from `at` on. */
static iso_rope_args rotation(const context *c, int at, int64_t head_dim) {
  return (iso_rope_args){
      .positions = input_data(c, at), .cos = input_data(c, at + 1), .sin = input_data(c, at + 2), .head_dim = head_dim};
}

static void run_linear_rope(const context *c) {
  iso_linear_rope_args args = {.product = linear_args(c)};
  args.rope = rotation(c, 3, (int64_t)attribute(c, ISO_ATTR_HEAD_DIM));
  args.rotated = args.product.c.cols;
  iso_linear_rope(c->frame->kernels, &args, c->worker);
}

static void run_linear_joint_rope(const context *c) {
  iso_linear_rope_args args = {.product = joint_args(c, 3, 0)};
  args.rope = rotation(c, 4, (int64_t)attribute(c, ISO_ATTR_HEAD_DIM));
  args.rotated = input(c, 1).rows + input(c, 2).rows;
  iso_linear_rope(c->frame->kernels, &args, c->worker);
}

static void run_linear_joint_norm_rope(const context *c) {
  iso_linear_rope_args args = {.product = joint_args(c, 3, 0), .q = output(c, 1), .k = output(c, 2)};
  args.rope = rotation(c, 6, c->in->inputs[4].shape[0]);
  args.rotated = args.q.cols + args.k.cols;
  args.q_weight = input_data(c, 4);
  args.k_weight = input_data(c, 5);
  args.q_rstd = output_data(c, 3);
  args.k_rstd = output_data(c, 4);
  args.eps = (float)attribute(c, ISO_ATTR_EPS);
  iso_linear_rope(c->frame->kernels, &args, c->worker);
}

static void run_linear_joint_dx(const context *c) {
  const iso_gemm_args args = {.a = input(c, 0), .b = joint_weights(c, 3), .c = output(c, 0)};
  c->frame->kernels->gemm(&args, c->worker);
}

/* The outputs follow each other in memory, too. */
static void run_linear_joint_dw(const context *c) {
  iso_gemm_args args = {.a = input(c, 0), .b = input(c, 1), .c = output(c, 0), .a_transposed = true};
  args.c.rows = args.a.cols;
  args.accumulate = accumulates(c);
  c->frame->kernels->gemm(&args, c->worker);
}

static void run_bias_grad(const context *c) {
  const iso_column_sum_args args = {input(c, 0), output_data(c, 0), accumulates(c)};
  c->frame->kernels->column_sum(&args, c->worker);
}

static void run_rope(const context *c) {
  iso_rope_args args = {.x = input(c, 0), .y = output(c, 0), .positions = input_data(c, 1)};
  args.cos = input_data(c, 2);
  args.sin = input_data(c, 3);
  args.head_dim = (int64_t)attribute(c, ISO_ATTR_HEAD_DIM);
  args.inverse = attribute(c, ISO_ATTR_INVERSE) != 0;
  c->frame->kernels->rope(&args, c->worker);
}

static iso_attention_args attention_args(const context *c, iso_matrix q, iso_matrix k, iso_matrix v, iso_matrix o) {
  iso_attention_args args = {.q = q, .k = k, .v = v, .o = o};
  args.batch = (int64_t)attribute(c, ISO_ATTR_BATCH);
  if (args.batch < 1) args.batch = 1;
  args.queries = q.rows / args.batch;
  args.keys = k.rows / args.batch;
  args.heads = (int64_t)attribute(c, ISO_ATTR_HEADS);
  args.kv_heads = (int64_t)attribute(c, ISO_ATTR_KV_HEADS);
  args.head_dim = q.cols / args.heads;
  args.window = (int64_t)attribute(c, ISO_ATTR_WINDOW);
  args.scale = (float)attribute(c, ISO_ATTR_SCALE);
  return args;
}

static void run_attention(const context *c) {
  iso_attention_args args = attention_args(c, input(c, 0), input(c, 1), input(c, 2), output(c, 0));
  args.segments = input_data(c, 3);
  args.lse = output_data(c, 1);
  c->frame->kernels->attention(&args, c->worker);
}

static void run_attention_grad(const context *c) {
  iso_attention_grad_args args = {.dout = input(c, 0), .dq = output(c, 0), .dk = output(c, 1), .dv = output(c, 2)};
  args.forward = attention_args(c, input(c, 1), input(c, 2), input(c, 3), input(c, 4));
  args.forward.lse = input_data(c, 5);
  args.forward.segments = input_data(c, 6);
  c->frame->kernels->attention_grad(&args, c->worker);
}

/* Rows [offset, offset + T) of a cache. */
static iso_matrix cache_rows(iso_matrix cache, int64_t first, int64_t rows) {
  cache.data = (char *)cache.data + (size_t)(first * cache.ld) * iso_dtype_size(cache.dtype);
  cache.rows = rows;
  return cache;
}

static void run_attention_cached(const context *c) {
  const int64_t offset = c->frame->cache_offset;
  const iso_matrix q = input(c, 0);
  for (int part = 0; part < 2; part++) {
    const iso_cast_args copy = {input(c, 1 + part), cache_rows(input(c, 3 + part), offset, q.rows)};
    c->frame->kernels->cast(&copy, c->worker);
  }
  iso_team_barrier(c->worker->team);
  const iso_matrix k = cache_rows(input(c, 3), 0, offset + q.rows);
  const iso_matrix v = cache_rows(input(c, 4), 0, offset + q.rows);
  iso_attention_args args = attention_args(c, q, k, v, output(c, 0));
  args.offset = offset;
  c->frame->kernels->attention(&args, c->worker);
}

static void run_swiglu(const context *c) {
  const iso_swiglu_args args = {input(c, 0), input(c, 1), output(c, 0)};
  c->frame->kernels->swiglu(&args, c->worker);
}

static void run_swiglu_grad(const context *c) {
  const iso_swiglu_grad_args args = {input(c, 0), input(c, 1), input(c, 2), output(c, 0), output(c, 1)};
  c->frame->kernels->swiglu_grad(&args, c->worker);
}

static void run_gelu(const context *c) {
  const iso_gelu_args args = {input(c, 0), output(c, 0), (iso_gelu_form)attribute(c, ISO_ATTR_FORM)};
  c->frame->kernels->gelu(&args, c->worker);
}

static void run_gelu_grad(const context *c) {
  const iso_gelu_grad_args args = {input(c, 0), input(c, 1), output(c, 0), (iso_gelu_form)attribute(c, ISO_ATTR_FORM)};
  c->frame->kernels->gelu_grad(&args, c->worker);
}

static void run_add(const context *c) {
  const iso_add_args args = {input(c, 0), input(c, 1), output(c, 0)};
  c->frame->kernels->add(&args, c->worker);
}

static void run_cast(const context *c) {
  const iso_cast_args args = {input(c, 0), output(c, 0)};
  c->frame->kernels->cast(&args, c->worker);
}

static iso_matrix columns(iso_matrix whole, int64_t first, int64_t width) {
  whole.data = (char *)whole.data + (size_t)first * iso_dtype_size(whole.dtype);
  whole.cols = width;
  return whole;
}

static void run_split(const context *c) {
  int64_t first = 0;
  for (int part = 0; part < c->in->output_count; part++) {
    const iso_matrix y = output(c, part);
    if (!y.data) continue;
    const iso_cast_args args = {columns(input(c, 0), first, y.cols), y};
    c->frame->kernels->cast(&args, c->worker);
    first += y.cols;
  }
}

static void run_concat(const context *c) {
  int64_t first = 0;
  for (int part = 0; part < c->in->input_count; part++) {
    const iso_matrix x = input(c, part);
    if (!x.data) continue;
    const iso_cast_args args = {x, columns(output(c, 0), first, x.cols)};
    c->frame->kernels->cast(&args, c->worker);
    first += x.cols;
  }
}

static void run_linear_cross_entropy(const context *c) {
  iso_linear_cross_entropy_args args = {.x = input(c, 0), .weight = input(c, 1), .labels = input_data(c, 2)};
  args.loss = output_data(c, 0);
  if (c->in->output_count > 1) args.dx = output(c, 1);
  if (c->in->output_count > 2) args.dweight = output(c, 2);
  args.accumulate = accumulates(c);
  iso_linear_cross_entropy(c->frame->kernels, &args, c->worker);
}

static void run_grad_round(const context *c) {
  const iso_flat *flat = c->frame->flat;
  iso_grad_round_args args = {.sum = (const float *)c->frame->base[ISO_SPACE_GRAD], .reduced = flat->reduced};
  args.reduced_type = flat->options.gradient;
  args.squares = flat->squares;
  args.count = (float)c->frame->step->scored;
  args.begin = (int64_t)attribute(c, ISO_ATTR_BEGIN);
  args.end = (int64_t)attribute(c, ISO_ATTR_END);
  c->frame->kernels->grad_round(&args, c->worker);
}

/* Elements [begin, end) of the state, `sum` being those from `base` on. Squares go to `squares` (from the first block
 * of the range on). */
static void round_range(const context *c, const float *sum, int64_t base, int64_t begin, int64_t end, double *squares) {
  const iso_flat *flat = c->frame->flat;
  if (begin >= end) return;
  iso_grad_round_args args = {.sum = sum + (begin - base), .end = end - begin};
  args.reduced = (char *)flat->reduced + (size_t)begin * iso_dtype_size(flat->options.gradient);
  args.reduced_type = flat->options.gradient;
  args.squares = squares;
  args.count = (float)c->frame->step->scored;
  c->frame->kernels->grad_round(&args, c->worker);
}

/* The last leaf's gradient [begin, end) goes up the tree, as far as leaves of this process do; the sum there. */
static const float *fold_part(const context *c, int64_t begin, int64_t end) {
  const int64_t elements = c->frame->flat->options.elements;
  const int top = c->frame->depth - c->frame->folds;
  float *sums = c->frame->flat->gradients;
  for (int level = c->frame->depth; level > top; level--) {
    const iso_flat_add_args args = {sums + (level - 1) * elements, sums + level * elements, begin, end};
    c->frame->kernels->flat_add(&args, c->worker);
  }
  if (c->frame->folds) iso_team_barrier(c->worker->team);
  return sums + top * elements + begin;
}

/* A parameter's whole blocks, and what it has of blocks before and after them: their squares are summed later. */
static void run_grad_round_part(const context *c) {
  if (!c->frame->last_micro) return;
  int64_t begin = (int64_t)attribute(c, ISO_ATTR_BEGIN), end = (int64_t)attribute(c, ISO_ATTR_END), first, last;
  const float *sum = c->frame->flat->gradients ? fold_part(c, begin, end) : input_data(c, 0);
  if (c->frame->exchanged) return;
  double partial[2];
  iso_whole_blocks(c->frame->flat->options.elements, begin, end, &first, &last);
  if (first >= last) first = last = end;
  round_range(c, sum, begin, begin, first, partial);
  round_range(c, sum, begin, first, last, c->frame->flat->squares + first / ISO_NORM_BLOCK);
  round_range(c, sum, begin, last, end, partial);
}

/* The squares of rounded bits are those of rounding them again, divided by one. */
static void run_grad_squares(const context *c) {
  if (c->frame->exchanged) return;
  const iso_flat *flat = c->frame->flat;
  const iso_dtype type = flat->options.gradient;
  const size_t block_bytes = ISO_NORM_BLOCK * (sizeof(float) + iso_dtype_size(type));
  const int64_t end = (int64_t)attribute(c, ISO_ATTR_END), begin = (int64_t)attribute(c, ISO_ATTR_BEGIN);
  float *sums = (float *)((char *)c->worker->scratch + block_bytes * (size_t)c->worker->thread);
  const iso_worker alone = {.threads = 1};
  int64_t block, last;
  iso_split((end - begin + ISO_NORM_BLOCK - 1) / ISO_NORM_BLOCK, 1, c->worker, &block, &last);
  for (; block < last; block++) {
    const int64_t at = begin + block * ISO_NORM_BLOCK, count = end - at < ISO_NORM_BLOCK ? end - at : ISO_NORM_BLOCK;
    const iso_cast_args widen = {{(char *)flat->reduced + (size_t)at * iso_dtype_size(type), 1, count, count, type},
                                 {sums, 1, count, count, ISO_F32}};
    c->frame->kernels->cast(&widen, &alone);
    const iso_grad_round_args args = {.sum = sums,
                                      .reduced = sums + ISO_NORM_BLOCK,
                                      .reduced_type = type,
                                      .squares = flat->squares + at / ISO_NORM_BLOCK,
                                      .count = 1,
                                      .end = count};
    c->frame->kernels->grad_round(&args, &alone);
  }
}

/* norm = sqrt(sum of the blocks' squares, in order); clip = min(1, clip_norm / (norm + 1e-6)). */
static void run_clip(const context *c) {
  if (c->worker->thread != 0) return;
  iso_step *step = c->frame->step;
  const int64_t blocks = (c->frame->flat->options.elements + ISO_NORM_BLOCK - 1) / ISO_NORM_BLOCK;
  double sum = 0;
  for (int64_t block = 0; block < blocks; block++) sum += c->frame->flat->squares[block];
  step->norm = sqrt(sum);
  step->clip = 1.0f;
  if (step->clip_norm > 0 && step->norm + 1e-6 > step->clip_norm)
    step->clip = (float)(step->clip_norm / (step->norm + 1e-6));
  step->refused = !isfinite(step->norm) || !isfinite(step->loss_sum) || step->scored == 0;
}

/* What is updated here of elements [*begin, *end). */
static void keep_own(const iso_flat *flat, int64_t *begin, int64_t *end) {
  if (*begin < flat->own_begin) *begin = flat->own_begin;
  if (*end > flat->own_end) *end = flat->own_end;
}

static void run_adamw(const context *c) {
  const iso_flat *flat = c->frame->flat;
  const iso_step *step = c->frame->step;
  iso_adamw_args args = {.master = flat->master, .moment1 = flat->moment1, .moment2 = flat->moment2};
  args.reduced = flat->reduced;
  args.reduced_type = flat->options.gradient;
  args.compute = flat->weights;
  args.decay_ranges = step->decay_ranges;
  args.decay_count = step->decay_count;
  args.begin = (int64_t)attribute(c, ISO_ATTR_BEGIN);
  args.end = (int64_t)attribute(c, ISO_ATTR_END);
  keep_own(flat, &args.begin, &args.end);
  args.lr = step->lr;
  args.beta1 = step->beta1;
  args.beta2 = step->beta2;
  args.eps = step->eps;
  args.weight_decay = step->weight_decay;
  args.clip = step->clip;
  args.bias1 = step->bias1;
  args.bias2 = step->bias2;
  args.refused = step->refused;
  if (args.begin < args.end) c->frame->kernels->adamw(&args, c->worker);
}

static void (*const run_table[ISO_OP_COUNT])(const context *) = {
    [ISO_OP_EMBEDDING] = run_embedding,
    [ISO_OP_RMSNORM] = run_norm,
    [ISO_OP_LAYERNORM] = run_norm,
    [ISO_OP_LINEAR] = run_linear,
    [ISO_OP_LINEAR_JOINT] = run_linear_joint,
    [ISO_OP_LM_HEAD] = run_linear,
    [ISO_OP_ROPE] = run_rope,
    [ISO_OP_ATTENTION] = run_attention,
    [ISO_OP_ATTENTION_CACHED] = run_attention_cached,
    [ISO_OP_SWIGLU] = run_swiglu,
    [ISO_OP_GELU] = run_gelu,
    [ISO_OP_ADD] = run_add,
    [ISO_OP_SPLIT] = run_split,
    [ISO_OP_CONCAT] = run_concat,
    [ISO_OP_CAST] = run_cast,
    [ISO_OP_LINEAR_CROSS_ENTROPY] = run_linear_cross_entropy,
    [ISO_OP_EMBEDDING_GRAD] = run_embedding_grad,
    [ISO_OP_RMSNORM_GRAD] = run_norm_grad,
    [ISO_OP_LAYERNORM_GRAD] = run_norm_grad,
    [ISO_OP_LINEAR_DX] = run_linear_dx,
    [ISO_OP_LINEAR_DW] = run_linear_dw,
    [ISO_OP_LINEAR_JOINT_DX] = run_linear_joint_dx,
    [ISO_OP_LINEAR_JOINT_DW] = run_linear_joint_dw,
    [ISO_OP_BIAS_GRAD] = run_bias_grad,
    [ISO_OP_ATTENTION_GRAD] = run_attention_grad,
    [ISO_OP_SWIGLU_GRAD] = run_swiglu_grad,
    [ISO_OP_GELU_GRAD] = run_gelu_grad,
    [ISO_OP_ADD_RMSNORM] = run_add_norm,
    [ISO_OP_ADD_LAYERNORM] = run_add_norm,
    [ISO_OP_RMSNORM_GRAD_ADD] = run_norm_grad_add,
    [ISO_OP_LAYERNORM_GRAD_ADD] = run_norm_grad_add,
    [ISO_OP_LINEAR_JOINT_SWIGLU] = run_linear_joint_swiglu,
    [ISO_OP_LINEAR_GELU] = run_linear_gelu,
    [ISO_OP_LINEAR_ROPE] = run_linear_rope,
    [ISO_OP_LINEAR_JOINT_ROPE] = run_linear_joint_rope,
    [ISO_OP_LINEAR_JOINT_NORM_ROPE] = run_linear_joint_norm_rope,
    [ISO_OP_GRAD_ROUND] = run_grad_round,
    [ISO_OP_GRAD_ROUND_PART] = run_grad_round_part,
    [ISO_OP_GRAD_SQUARES] = run_grad_squares,
    [ISO_OP_CLIP] = run_clip,
    [ISO_OP_ADAMW] = run_adamw,
};

void iso_instruction_run(const iso_program *program, const iso_instruction *instruction, const iso_frame *frame,
                         iso_worker *worker) {
  const context c = {program, instruction, frame, worker};
  worker->scratch =
      instruction->scratch.present ? frame->base[instruction->scratch.space] + instruction->scratch.offset : NULL;
  run_table[instruction->op](&c);
}

static iso_work share_of(const iso_instruction *in, int64_t elements, int64_t all) {
  const double share = elements > 0 && all > 0 ? (double)elements / (double)all : 0;
  return (iso_work){(int64_t)((double)in->flop * share), (int64_t)((double)in->bytes * share)};
}

iso_work iso_instruction_work(const iso_instruction *in, const iso_frame *frame) {
  iso_work work = {in->flop, in->bytes};
  int64_t begin = (int64_t)in->attributes[ISO_ATTR_BEGIN], end = (int64_t)in->attributes[ISO_ATTR_END];
  const int64_t elements = end - begin;
  switch (in->op) {
  case ISO_OP_GRAD_ROUND_PART:
    if (!frame->last_micro || frame->exchanged) work = (iso_work){0};
    if (!frame->last_micro || !frame->flat->gradients) return work;
    work.flop += frame->folds * elements;
    work.bytes += frame->folds * 3 * elements * (int64_t)sizeof(float);
    return work;
  case ISO_OP_GRAD_SQUARES:
    return frame->exchanged ? (iso_work){0} : work;
  case ISO_OP_ADAMW:
    if (frame->step->refused) return (iso_work){0};
    keep_own(frame->flat, &begin, &end);
    return share_of(in, end - begin, elements);
  default:
    return work;
  }
}
