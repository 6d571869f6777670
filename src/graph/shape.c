/* SPDX-License-Identifier: Apache-2.0
 *
 * shape: what each op makes of its operands' shapes. One rule an op; ops.def's comments say the same in words.
 *
 * Invariants
 *  1. A node that passes has every required operand, all operands in range, exactly the attributes of its row, and
 * shapes that its kernel can take; output shapes follow.
 *  2. Element types are checked for kind only here (whole, floating, double); verify.c checks them to the letter.
 *  3. Rules do not log: they name the cause, the public functions decide where it goes.
 */
#include "graph/graph.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* What a rule sees of its node, and where it leaves its verdict. */
typedef struct view {
  const iso_graph *graph;
  const iso_node *node;
  const iso_tensor *in[ISO_MAX_INPUTS]; /* NULL: absent */
  iso_tensor *out;
  char *cause;
  size_t cause_bytes;
} view;

ISO_PRINTF(2, 3) static bool bad(const view *v, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(v->cause, v->cause_bytes, format, list);
  va_end(list);
  return false;
}

static void shape_text(const iso_tensor *tensor, char *text, size_t bytes) {
  size_t used = 0;
  text[0] = '\0';
  for (int i = 0; i < tensor->rank && used < bytes; i++) {
    int n = snprintf(text + used, bytes - used, "%s%lld", i > 0 ? "," : "", (long long)tensor->shape[i]);
    used += n > 0 ? (size_t)n : 0;
  }
}

/* Input i must have this shape; rank 1 or 2. An absent optional input passes. */
static bool want(const view *v, int i, int rank, int64_t rows, int64_t cols) {
  const iso_tensor *t = v->in[i];
  if (t == NULL) return true;
  if (t->rank == rank && t->shape[0] == rows && (rank == 1 || t->shape[1] == cols)) return true;
  char have[96];
  shape_text(t, have, sizeof have);
  if (rank == 1) return bad(v, "input %d (%s) is [%s], not [%lld]", i, t->name, have, (long long)rows);
  return bad(v, "input %d (%s) is [%s], not [%lld,%lld]", i, t->name, have, (long long)rows, (long long)cols);
}

static bool want_rank(const view *v, int i, int rank) {
  const iso_tensor *t = v->in[i];
  return t->rank == rank || bad(v, "input %d (%s) has rank %d, not %d", i, t->name, t->rank, rank);
}

static void give(const view *v, int i, int rank, int64_t rows, int64_t cols) {
  v->out[i].rank = rank;
  v->out[i].shape[0] = rows;
  v->out[i].shape[1] = cols;
}

static void give_like(const view *v, int i, const iso_tensor *like) {
  v->out[i].rank = like->rank;
  memcpy(v->out[i].shape, like->shape, sizeof like->shape);
}

static int64_t whole(const view *v, iso_attribute key) {
  return (int64_t)v->node->attributes[key];
}

static int64_t rows_of(const view *v, int i) {
  return v->in[i]->shape[0];
}

static int64_t cols_of(const view *v, int i) {
  return v->in[i]->shape[1];
}

static bool same_shape(const view *v, int i, int j) {
  const iso_tensor *a = v->in[i], *b = v->in[j];
  bool same = a->rank == b->rank && memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->rank) == 0;
  return same || bad(v, "input %d (%s) and input %d (%s) differ in shape", i, a->name, j, b->name);
}

static bool shape_embedding(const view *v) {
  if (!want_rank(v, 0, 2) || !want_rank(v, 1, 1)) return false;
  give(v, 0, 2, rows_of(v, 1), cols_of(v, 0));
  return true;
}

/* x [N,C] at input i in groups of D = |w| (input w). Returns groups N*C/D, or -1. */
static int64_t norm_groups(const view *v, int x, int w) {
  if (!want_rank(v, x, 2) || !want_rank(v, w, 1)) return -1;
  int64_t width = v->in[w]->shape[0];
  if (width <= 0 || cols_of(v, x) % width != 0) {
    bad(v, "input %d (%s) has %lld columns, no multiple of the weight's %lld", x, v->in[x]->name,
        (long long)cols_of(v, x), (long long)width);
    return -1;
  }
  return rows_of(v, x) * (cols_of(v, x) / width);
}

static bool shape_rmsnorm(const view *v) {
  int64_t groups = norm_groups(v, 0, 1);
  if (groups < 0) return false;
  give_like(v, 0, v->in[0]);
  give(v, 1, 1, groups, 0);
  return true;
}

static bool shape_layernorm(const view *v) {
  if (!want_rank(v, 0, 2)) return false;
  int64_t width = cols_of(v, 0);
  if (!want(v, 1, 1, width, 0) || !want(v, 2, 1, width, 0)) return false;
  give_like(v, 0, v->in[0]);
  give(v, 1, 1, rows_of(v, 0), 0);
  give(v, 2, 1, rows_of(v, 0), 0);
  return true;
}

static bool flag_01(const view *v, iso_attribute key) {
  double value = v->node->attributes[key];
  return value == 0 || value == 1 || bad(v, "attribute %s is %g, not 0 or 1", iso_attribute_text(key), value);
}

static bool shape_linear(const view *v) {
  if (!want_rank(v, 0, 2) || !want_rank(v, 1, 2) || !flag_01(v, ISO_ATTR_TRANSPOSED)) return false;
  bool transposed = whole(v, ISO_ATTR_TRANSPOSED) == 1;
  int64_t outer = v->in[1]->shape[transposed ? 1 : 0], inner = cols_of(v, 0);
  if (!want(v, 1, 2, transposed ? inner : outer, transposed ? outer : inner)) return false;
  if (v->node->op != ISO_OP_LM_HEAD && !want(v, 2, 1, outer, 0)) return false;
  give(v, 0, 2, rows_of(v, 0), outer);
  return true;
}

/* Parts W0, W1, W2 (inputs 1 to 3) of `inner` columns each; their rows together, or -1. */
static int64_t joint_rows(const view *v, int64_t inner) {
  int64_t rows = 0;
  for (int i = 1; i < 4; i++) {
    if (v->in[i] == NULL) continue;
    if (!want_rank(v, i, 2) || !want(v, i, 2, rows_of(v, i), inner)) return -1;
    rows += rows_of(v, i);
  }
  return rows;
}

static bool shape_linear_joint(const view *v) {
  if (!want_rank(v, 0, 2)) return false;
  int64_t rows = joint_rows(v, cols_of(v, 0));
  if (rows < 0) return false;
  give(v, 0, 2, rows_of(v, 0), rows);
  return true;
}

static bool shape_linear_joint_dx(const view *v) {
  if (!want_rank(v, 0, 2) || !want_rank(v, 1, 2)) return false;
  int64_t rows = joint_rows(v, cols_of(v, 1));
  if (rows < 0 || !want(v, 0, 2, rows_of(v, 0), rows)) return false;
  give(v, 0, 2, rows_of(v, 0), cols_of(v, 1));
  return true;
}

/* Heads of `width` in `cols` columns of input i; positions of input 0's rows, cos and sin are inputs from `at` on. */
static bool rotation_fits(const view *v, int64_t width, int64_t cols, int i, int at) {
  if (width < 2 || width % 2 != 0 || cols % width != 0) {
    return bad(v, "head_dim %lld is odd, or no divisor of the %lld columns of input %d (%s)", (long long)width,
               (long long)cols, i, v->in[i]->name);
  }
  return want_rank(v, at + 1, 2) && want(v, at, 1, rows_of(v, 0), 0) &&
         want(v, at + 1, 2, rows_of(v, at + 1), width / 2) && want(v, at + 2, 2, rows_of(v, at + 1), width / 2);
}

static bool shape_rope(const view *v) {
  if (!want_rank(v, 0, 2) || !want_rank(v, 2, 2) || !flag_01(v, ISO_ATTR_INVERSE)) return false;
  if (!rotation_fits(v, whole(v, ISO_ATTR_HEAD_DIM), cols_of(v, 0), 0, 1)) return false;
  give_like(v, 0, v->in[0]);
  return true;
}

static bool shape_linear_rope(const view *v) {
  return shape_linear(v) && rotation_fits(v, whole(v, ISO_ATTR_HEAD_DIM), v->out[0].shape[1], 1, 3);
}

static bool shape_linear_joint_rope(const view *v) {
  const int64_t width = whole(v, ISO_ATTR_HEAD_DIM);
  return shape_linear_joint(v) && rotation_fits(v, width, rows_of(v, 1), 1, 4) &&
         rotation_fits(v, width, rows_of(v, 2), 2, 4);
}

/* D is the length of the norms' weights. */
static bool shape_linear_joint_norm_rope(const view *v) {
  if (!shape_linear_joint(v) || !want_rank(v, 4, 1)) return false;
  const int64_t width = rows_of(v, 4), rows = rows_of(v, 0);
  if (!want(v, 5, 1, width, 0)) return false;
  for (int i = 1; i < 3; i++) {
    if (!rotation_fits(v, width, rows_of(v, i), i, 6)) return false;
    give(v, i, 2, rows, rows_of(v, i));
    give(v, 2 + i, 1, rows * (rows_of(v, i) / width), 0);
  }
  return true;
}

/* heads, kv_heads, and q [N,H*D] (input q), k and v [S,K*D] (inputs k, k+1). */
static bool heads_fit(const view *v, int q, int k, int64_t kv_rows) {
  int64_t heads = whole(v, ISO_ATTR_HEADS), kv_heads = whole(v, ISO_ATTR_KV_HEADS);
  if (!want_rank(v, q, 2)) return false;
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0 || cols_of(v, q) % heads != 0) {
    return bad(v, "%lld heads on %lld kv_heads do not divide the %lld columns of input %d (%s)", (long long)heads,
               (long long)kv_heads, (long long)cols_of(v, q), q, v->in[q]->name);
  }
  if (whole(v, ISO_ATTR_WINDOW) < 0) return bad(v, "window is negative");
  int64_t kv_cols = cols_of(v, q) / heads * kv_heads;
  return want(v, k, 2, kv_rows, kv_cols) && want(v, k + 1, 2, kv_rows, kv_cols);
}

static bool batch_fits(const view *v, int64_t rows) {
  int64_t batch = whole(v, ISO_ATTR_BATCH);
  return (batch >= 1 && rows % batch == 0) ||
         bad(v, "batch %lld does not divide the %lld rows", (long long)batch, (long long)rows);
}

static bool shape_attention(const view *v) {
  int64_t rows = rows_of(v, 0);
  if (!heads_fit(v, 0, 1, rows) || !batch_fits(v, rows) || !want(v, 3, 1, rows, 0)) return false;
  give_like(v, 0, v->in[0]);
  give(v, 1, 1, rows * whole(v, ISO_ATTR_HEADS), 0);
  return true;
}

static bool shape_attention_cached(const view *v) {
  if (!heads_fit(v, 0, 1, rows_of(v, 0)) || !want_rank(v, 3, 2)) return false;
  if (!heads_fit(v, 0, 3, rows_of(v, 3))) return false;
  if (rows_of(v, 3) < rows_of(v, 0)) {
    return bad(v, "the cache (%s) holds %lld rows, fewer than the %lld of one run", v->in[3]->name,
               (long long)rows_of(v, 3), (long long)rows_of(v, 0));
  }
  give_like(v, 0, v->in[0]);
  return true;
}

static bool shape_attention_grad(const view *v) {
  if (!want_rank(v, 0, 2)) return false;
  int64_t rows = rows_of(v, 0);
  if (!heads_fit(v, 1, 2, rows) || !batch_fits(v, rows) || !same_shape(v, 0, 1) || !same_shape(v, 4, 1)) return false;
  if (!want(v, 5, 1, rows * whole(v, ISO_ATTR_HEADS), 0) || !want(v, 6, 1, rows, 0)) return false;
  for (int i = 0; i < 3; i++) give_like(v, i, v->in[1 + i]);
  return true;
}

static bool gelu_form(const view *v) {
  double form = v->node->attributes[ISO_ATTR_FORM];
  return form == 0 || form == 1 || bad(v, "attribute form is %g, not 0 (erf) or 1 (tanh)", form);
}

static bool shape_linear_gelu(const view *v) {
  if (!shape_linear(v) || !gelu_form(v)) return false;
  give(v, 1, 2, v->out[0].shape[0], v->out[0].shape[1]);
  return true;
}

static bool shape_linear_joint_swiglu(const view *v) {
  if (!want_rank(v, 0, 2) || !want_rank(v, 1, 2) || !same_shape(v, 1, 2)) return false;
  const int64_t rows = joint_rows(v, cols_of(v, 0));
  if (rows < 0) return false;
  give(v, 0, 2, rows_of(v, 0), rows / 2);
  give(v, 1, 2, rows_of(v, 0), rows);
  return true;
}

/* Matrices of one shape in, matrices of that shape out. */
static bool shape_elementwise(const view *v) {
  if (v->node->op != ISO_OP_ADD && v->node->op != ISO_OP_CAST && !want_rank(v, 0, 2)) return false;
  if (iso_op_has_attribute(v->node->op, ISO_ATTR_FORM) && !gelu_form(v)) return false;
  for (int i = 1; i < iso_op_input_count(v->node->op); i++) {
    if (!same_shape(v, 0, i)) return false;
  }
  for (int i = 0; i < iso_op_output_count(v->node->op); i++) give_like(v, i, v->in[0]);
  return true;
}

/* Output i is a part of the input's columns; a joint product's gradient has a row for each of them. */
static bool shape_split(const view *v) {
  const bool product = v->node->op == ISO_OP_LINEAR_JOINT_DW;
  if (!want_rank(v, 0, 2)) return false;
  if (product && (!want_rank(v, 1, 2) || !want(v, 1, 2, rows_of(v, 0), cols_of(v, 1)))) return false;
  const iso_attribute keys[3] = {ISO_ATTR_WIDTH0, ISO_ATTR_WIDTH1, ISO_ATTR_WIDTH2};
  int64_t sum = 0;
  for (int i = 0; i < 3; i++) {
    int64_t width = whole(v, keys[i]);
    if (width < 0 || (width == 0 && i < 2) || width > cols_of(v, 0)) {
      return bad(v, "part %d has %lld columns", i, (long long)width);
    }
    sum += width;
    if (width > 0) give(v, i, 2, product ? width : rows_of(v, 0), product ? cols_of(v, 1) : width);
  }
  return sum == cols_of(v, 0) || bad(v, "parts have %lld columns together, input 0 (%s) has %lld", (long long)sum,
                                     v->in[0]->name, (long long)cols_of(v, 0));
}

static bool shape_concat(const view *v) {
  int64_t sum = 0;
  for (int i = 0; i < 3; i++) {
    if (i == 2 && v->in[i] == NULL) continue;
    if (!want_rank(v, i, 2) || !want(v, i, 2, rows_of(v, 0), cols_of(v, i))) return false;
    sum += cols_of(v, i);
  }
  give(v, 0, 2, rows_of(v, 0), sum);
  return true;
}

static bool shape_cross_entropy(const view *v) {
  if (!want_rank(v, 0, 2) || !want_rank(v, 1, 2)) return false;
  if (!want(v, 1, 2, rows_of(v, 1), cols_of(v, 0)) || !want(v, 2, 1, rows_of(v, 0), 0)) return false;
  give(v, 0, 1, rows_of(v, 0), 0);
  give_like(v, 1, v->in[0]);
  give_like(v, 2, v->in[1]);
  return true;
}

static bool shape_embedding_grad(const view *v) {
  if (!want_rank(v, 0, 2) || !want(v, 1, 1, rows_of(v, 0), 0)) return false;
  if (whole(v, ISO_ATTR_ROWS) < 1) return bad(v, "attribute rows is below 1");
  give(v, 0, 2, whole(v, ISO_ATTR_ROWS), cols_of(v, 0));
  return true;
}

static bool shape_rmsnorm_grad(const view *v) {
  int64_t groups = norm_groups(v, 1, 2);
  if (groups < 0 || !same_shape(v, 0, 1) || !want(v, 3, 1, groups, 0)) return false;
  give_like(v, 0, v->in[1]);
  give_like(v, 1, v->in[2]);
  return true;
}

static bool shape_layernorm_grad(const view *v) {
  if (!want_rank(v, 1, 2) || !same_shape(v, 0, 1) || !want(v, 2, 1, cols_of(v, 1), 0)) return false;
  if (!want(v, 3, 1, rows_of(v, 1), 0) || !want(v, 4, 1, rows_of(v, 1), 0)) return false;
  give_like(v, 0, v->in[1]);
  give_like(v, 1, v->in[2]);
  give_like(v, 2, v->in[2]);
  return true;
}

/* a + b (inputs 0, 1), then the norm with w, b (inputs 2, 3). */
static bool shape_add_norm(const view *v) {
  const bool layer = v->node->op == ISO_OP_ADD_LAYERNORM;
  if (!want_rank(v, 0, 2) || !same_shape(v, 0, 1)) return false;
  int64_t groups = layer ? rows_of(v, 0) : norm_groups(v, 0, 2);
  if (groups < 0) return false;
  if (layer && (!want(v, 2, 1, cols_of(v, 0), 0) || !want(v, 3, 1, cols_of(v, 0), 0))) return false;
  for (int i = 0; i < 2; i++) give_like(v, i, v->in[0]);
  for (int i = 2; i < (layer ? 4 : 3); i++) give(v, i, 1, groups, 0);
  return true;
}

static bool shape_norm_grad_add(const view *v) {
  const bool layer = v->node->op == ISO_OP_LAYERNORM_GRAD_ADD;
  int64_t groups = norm_groups(v, 2, 3);
  if (groups < 0 || !same_shape(v, 0, 2) || !same_shape(v, 1, 2)) return false;
  if (layer && !want(v, 3, 1, cols_of(v, 2), 0)) return false;
  for (int i = 4; i < (layer ? 6 : 5); i++) {
    if (!want(v, i, 1, groups, 0)) return false;
  }
  give_like(v, 0, v->in[2]);
  for (int i = 1; i < (layer ? 3 : 2); i++) give_like(v, i, v->in[3]);
  give_like(v, layer ? 3 : 2, v->in[2]);
  return true;
}

static bool shape_linear_dx(const view *v) {
  if (!want_rank(v, 0, 2) || !want_rank(v, 1, 2) || !flag_01(v, ISO_ATTR_TRANSPOSED)) return false;
  bool transposed = whole(v, ISO_ATTR_TRANSPOSED) == 1;
  int64_t inner = v->in[1]->shape[transposed ? 0 : 1], outer = cols_of(v, 0);
  if (!want(v, 1, 2, transposed ? inner : outer, transposed ? outer : inner)) return false;
  give(v, 0, 2, rows_of(v, 0), inner);
  return true;
}

static bool shape_linear_dw(const view *v) {
  if (!want_rank(v, 0, 2) || !want_rank(v, 1, 2) || !flag_01(v, ISO_ATTR_TRANSPOSED)) return false;
  if (!want(v, 1, 2, rows_of(v, 0), cols_of(v, 1))) return false;
  bool transposed = whole(v, ISO_ATTR_TRANSPOSED) == 1;
  give(v, 0, 2, cols_of(v, transposed ? 1 : 0), cols_of(v, transposed ? 0 : 1));
  return true;
}

static bool shape_bias_grad(const view *v) {
  if (!want_rank(v, 0, 2)) return false;
  give(v, 0, 1, cols_of(v, 0), 0);
  return true;
}

static int64_t square_blocks(int64_t elements) {
  return (elements + ISO_SQUARES_BLOCK - 1) / ISO_SQUARES_BLOCK;
}

/* Attributes begin and end cut the flat state on block borders. */
static bool range_fits(const view *v, int64_t elements) {
  int64_t begin = whole(v, ISO_ATTR_BEGIN), end = whole(v, ISO_ATTR_END);
  bool fits = begin >= 0 && begin < end && end <= elements && begin % ISO_SQUARES_BLOCK == 0 &&
              (end % ISO_SQUARES_BLOCK == 0 || end == elements);
  return fits || bad(v, "range [%lld,%lld) does not cut the state's %lld elements on block borders", (long long)begin,
                     (long long)end, (long long)elements);
}

static bool shape_grad_round(const view *v) {
  if (!want_rank(v, 0, 1) || !range_fits(v, rows_of(v, 0))) return false;
  give_like(v, 0, v->in[0]);
  give(v, 1, 1, square_blocks(rows_of(v, 0)), 0);
  return true;
}

/* The input is one parameter's gradient, [begin, end) its elements in the state. */
static bool shape_grad_round_part(const view *v) {
  int64_t begin = whole(v, ISO_ATTR_BEGIN), end = whole(v, ISO_ATTR_END), flat = v->graph->flat_elements;
  if (begin < 0 || end > flat || end - begin != iso_tensor_elements(v->in[0])) {
    return bad(v, "range [%lld,%lld) of %lld is not that of input 0 (%s)", (long long)begin, (long long)end,
               (long long)flat, v->in[0]->name);
  }
  int64_t first = 0, last = 0;
  iso_whole_blocks(flat, begin, end, &first, &last);
  give(v, 0, 1, flat, 0);
  if (first < last) give(v, 1, 1, square_blocks(flat), 0);
  return true;
}

static bool shape_grad_squares(const view *v) {
  if (!want_rank(v, 0, 1) || !range_fits(v, rows_of(v, 0))) return false;
  give(v, 0, 1, square_blocks(rows_of(v, 0)), 0);
  return true;
}

static bool shape_clip(const view *v) {
  if (!want_rank(v, 0, 1)) return false;
  give(v, 0, 1, ISO_SCALAR_COUNT, 0);
  return true;
}

static bool shape_adamw(const view *v) {
  if (!want_rank(v, 0, 1) || !range_fits(v, rows_of(v, 0))) return false;
  for (int i = 1; i < 4; i++) {
    if (!same_shape(v, i, 0)) return false;
  }
  if (!want(v, 4, 1, ISO_SCALAR_COUNT, 0)) return false;
  give_like(v, 0, v->in[0]);
  return true;
}

static bool (*const rules[ISO_OP_COUNT])(const view *) = {
    [ISO_OP_EMBEDDING] = shape_embedding,
    [ISO_OP_RMSNORM] = shape_rmsnorm,
    [ISO_OP_LAYERNORM] = shape_layernorm,
    [ISO_OP_LINEAR] = shape_linear,
    [ISO_OP_LINEAR_JOINT] = shape_linear_joint,
    [ISO_OP_LM_HEAD] = shape_linear,
    [ISO_OP_ROPE] = shape_rope,
    [ISO_OP_ATTENTION] = shape_attention,
    [ISO_OP_ATTENTION_CACHED] = shape_attention_cached,
    [ISO_OP_SWIGLU] = shape_elementwise,
    [ISO_OP_GELU] = shape_elementwise,
    [ISO_OP_ADD] = shape_elementwise,
    [ISO_OP_SPLIT] = shape_split,
    [ISO_OP_CONCAT] = shape_concat,
    [ISO_OP_CAST] = shape_elementwise,
    [ISO_OP_LINEAR_CROSS_ENTROPY] = shape_cross_entropy,
    [ISO_OP_EMBEDDING_GRAD] = shape_embedding_grad,
    [ISO_OP_RMSNORM_GRAD] = shape_rmsnorm_grad,
    [ISO_OP_LAYERNORM_GRAD] = shape_layernorm_grad,
    [ISO_OP_LINEAR_DX] = shape_linear_dx,
    [ISO_OP_LINEAR_DW] = shape_linear_dw,
    [ISO_OP_LINEAR_JOINT_DX] = shape_linear_joint_dx,
    [ISO_OP_LINEAR_JOINT_DW] = shape_split,
    [ISO_OP_BIAS_GRAD] = shape_bias_grad,
    [ISO_OP_ATTENTION_GRAD] = shape_attention_grad,
    [ISO_OP_SWIGLU_GRAD] = shape_elementwise,
    [ISO_OP_GELU_GRAD] = shape_elementwise,
    [ISO_OP_ADD_RMSNORM] = shape_add_norm,
    [ISO_OP_ADD_LAYERNORM] = shape_add_norm,
    [ISO_OP_RMSNORM_GRAD_ADD] = shape_norm_grad_add,
    [ISO_OP_LAYERNORM_GRAD_ADD] = shape_norm_grad_add,
    [ISO_OP_LINEAR_JOINT_SWIGLU] = shape_linear_joint_swiglu,
    [ISO_OP_LINEAR_GELU] = shape_linear_gelu,
    [ISO_OP_LINEAR_ROPE] = shape_linear_rope,
    [ISO_OP_LINEAR_JOINT_ROPE] = shape_linear_joint_rope,
    [ISO_OP_LINEAR_JOINT_NORM_ROPE] = shape_linear_joint_norm_rope,
    [ISO_OP_GRAD_ROUND] = shape_grad_round,
    [ISO_OP_GRAD_ROUND_PART] = shape_grad_round_part,
    [ISO_OP_GRAD_SQUARES] = shape_grad_squares,
    [ISO_OP_CLIP] = shape_clip,
    [ISO_OP_ADAMW] = shape_adamw,
};

/* The letter's kind of element type; shape rules need no more. */
static bool kind_fits(char letter, iso_dtype dtype) {
  switch (letter) {
  case 'i':
  case 'I':
    return dtype == ISO_I32;
  case 'd':
  case 'D':
    return dtype == ISO_F64;
  default:
    return dtype == ISO_F32 || dtype == ISO_BF16;
  }
}

static bool operands_present(view *v) {
  const iso_op_info *info = iso_op_get(v->node->op);
  if (v->node->input_count != iso_op_input_count(v->node->op)) {
    return bad(v, "it has %d inputs, its row says %d", v->node->input_count, iso_op_input_count(v->node->op));
  }
  if (v->node->output_count != iso_op_output_count(v->node->op)) {
    return bad(v, "it has %d outputs, its row says %d", v->node->output_count, iso_op_output_count(v->node->op));
  }
  for (int i = 0; i < v->node->input_count; i++) {
    iso_id id = v->node->inputs[i];
    if (id < -1 || id >= v->graph->tensor_count) return bad(v, "input %d is tensor %d, which does not exist", i, id);
    if (id < 0) {
      if (!iso_op_input_optional(v->node->op, i)) return bad(v, "input %d is missing", i);
      continue;
    }
    v->in[i] = &v->graph->tensors[id];
    if (!kind_fits(info->inputs[i], v->in[i]->dtype)) {
      return bad(v, "input %d (%s) is of type %s", i, v->in[i]->name, iso_dtype_name(v->in[i]->dtype));
    }
  }
  return true;
}

static bool attributes_fit(const view *v) {
  for (int key = 0; key < ISO_ATTR_COUNT; key++) {
    bool listed = iso_op_has_attribute(v->node->op, key);
    const char *text = iso_attribute_text(key);
    if (listed && !v->node->has_attribute[key]) return bad(v, "attribute %s is missing", text);
    if (!listed && v->node->has_attribute[key]) return bad(v, "it has no attribute %s", text);
    if (!listed) continue;
    double value = v->node->attributes[key];
    if (!isfinite(value)) return bad(v, "attribute %s is not finite", text);
    if (iso_attribute_kind(key) == 'i' && (fabs(value) > 9007199254740992.0 || value != (double)(int64_t)value)) {
      return bad(v, "attribute %s is %g, no whole number", text, value);
    }
  }
  return true;
}

/* The type that ops.def gives output i; 's' is the type of x: input 0, or 1 in the norms' gradients. */
static iso_dtype output_dtype(const view *v, int i) {
  switch (iso_op_get(v->node->op)->outputs[i]) {
  case 't':
  case 'T':
  case 'w':
  case 'W':
    return v->graph->compute;
  case 's':
  case 'S': {
    bool norm = v->node->op == ISO_OP_RMSNORM_GRAD || v->node->op == ISO_OP_LAYERNORM_GRAD;
    return v->in[norm ? 1 : 0]->dtype;
  }
  case 'g':
    return v->graph->gradient;
  case 'd':
  case 'D':
    return ISO_F64;
  default:
    return ISO_F32;
  }
}

bool iso_shape_explain(const iso_graph *graph, const iso_node *node, iso_tensor outputs[ISO_MAX_OUTPUTS], char *cause,
                       size_t cause_bytes) {
  view v = {.graph = graph, .node = node, .out = outputs, .cause = cause, .cause_bytes = cause_bytes};
  if ((unsigned)node->op >= ISO_OP_COUNT || rules[node->op] == NULL) return bad(&v, "op %d has no rule", (int)node->op);
  for (int i = 0; i < ISO_MAX_OUTPUTS; i++) outputs[i] = (iso_tensor){.rank = -1};
  if (!operands_present(&v) || !attributes_fit(&v) || !rules[node->op](&v)) return false;
  for (int i = 0; i < node->output_count; i++) outputs[i].dtype = output_dtype(&v, i);
  return true;
}

iso_status iso_shape_infer(const iso_graph *graph, const iso_node *node, iso_tensor outputs[ISO_MAX_OUTPUTS]) {
  char cause[320];
  if (iso_shape_explain(graph, node, outputs, cause, sizeof cause)) return ISO_OK;
  return iso_fail(ISO_ERR_INTERNAL, "graph %s: node %d (%s): %s", graph->name, graph->node_count,
                  iso_op_get(node->op)->text, cause);
}
