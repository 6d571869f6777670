/* SPDX-License-Identifier: Apache-2.0
 *
 * Every op row by finite differences: a small graph around the op, its loss along random directions in each parameter,
 * against the gradient that autodiff, passes and kernels give together. A differentiable op without a case here fails
 * the test.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "exec/exec.h"
#include "passes/passes.h"

enum { N = 12, BATCH = 2, V = 11 };

static iso_arena *arena;
static iso_graph *g;
static bool covered[ISO_OP_COUNT];

static iso_id parameter(const char *name, int64_t rows, int64_t cols) {
  const int64_t shape[2] = {rows, cols};
  const iso_id id = iso_graph_parameter(g, name, cols ? 2 : 1, shape, ISO_INIT_NORMAL, 0.5, ISO_DECAY_MATRIX);
  assert_true(id >= 0);
  return id;
}

static iso_id node(iso_op op, const iso_id *inputs, int inputs_count, const iso_attr *attributes, int attributes_count,
                   iso_id *outputs, int outputs_count) {
  iso_id out[ISO_MAX_OUTPUTS];
  covered[op] = true;
  assert_int_equal(
      iso_graph_node(g, op, inputs, inputs_count, attributes, attributes_count, out, outputs_count ? outputs_count : 1),
      ISO_OK);
  for (int i = 0; i < outputs_count; i++) outputs[i] = out[i];
  return out[0];
}

static iso_id ids_input, labels_input, positions_input, segments_input;

/* An activation whose every element is a parameter. */
static iso_id activation(const char *name, int64_t width) {
  const iso_id in[2] = {parameter(name, N, width), ids_input};
  return node(ISO_OP_EMBEDDING, in, 2, NULL, 0, NULL, 0);
}

static void finish(iso_id x, int64_t width) {
  const iso_id in[3] = {x, parameter("head", V, width), labels_input};
  const iso_id losses = node(ISO_OP_LINEAR_CROSS_ENTROPY, in, 3, NULL, 0, NULL, 0);
  iso_graph_rename(g, losses, "losses");
  iso_graph_output(g, losses);
}

static void build_embedding(void) {
  finish(activation("x", 16), 16);
}

static void build_tied(void) {
  const iso_id table = parameter("table", N, 8);
  const iso_id in[2] = {table, ids_input};
  const iso_id x = node(ISO_OP_EMBEDDING, in, 2, NULL, 0, NULL, 0);
  const iso_id head[3] = {x, table, labels_input};
  const iso_id losses = node(ISO_OP_LINEAR_CROSS_ENTROPY, head, 3, NULL, 0, NULL, 0);
  iso_graph_rename(g, losses, "losses");
  iso_graph_output(g, losses);
}

static void build_rmsnorm(void) {
  const iso_attr eps = {ISO_ATTR_EPS, 1e-5};
  const iso_id in[2] = {activation("x", 24), parameter("w", 24, 0)};
  const iso_id y = node(ISO_OP_RMSNORM, in, 2, &eps, 1, NULL, 0);
  const iso_id heads[2] = {y, parameter("wh", 8, 0)};
  finish(node(ISO_OP_RMSNORM, heads, 2, &eps, 1, NULL, 0), 24);
}

static void build_layernorm(void) {
  const iso_attr eps = {ISO_ATTR_EPS, 1e-5};
  const iso_id in[3] = {activation("x", 19), parameter("w", 19, 0), parameter("b", 19, 0)};
  finish(node(ISO_OP_LAYERNORM, in, 3, &eps, 1, NULL, 0), 19);
}

static void build_linear(void) {
  const iso_attr plain = {ISO_ATTR_TRANSPOSED, 0}, transposed = {ISO_ATTR_TRANSPOSED, 1};
  const iso_id in[3] = {activation("x", 17), parameter("w", 9, 17), parameter("b", 9, 0)};
  const iso_id y = node(ISO_OP_LINEAR, in, 3, &plain, 1, NULL, 0);
  const iso_id next[3] = {y, parameter("w2", 9, 13), parameter("b2", 13, 0)};
  finish(node(ISO_OP_LINEAR, next, 3, &transposed, 1, NULL, 0), 13);
}

static void build_linear_joint(void) {
  iso_id in[4] = {activation("x", 17)}, parts[3];
  for (int i = 0; i < 3; i++) in[1 + i] = parameter((const char *[]){"w0", "w1", "w2"}[i], 5 + 2 * i, 17);
  const iso_attr widths[3] = {{ISO_ATTR_WIDTH0, 5}, {ISO_ATTR_WIDTH1, 7}, {ISO_ATTR_WIDTH2, 9}};
  iso_id y = node(ISO_OP_LINEAR_JOINT, in, 4, NULL, 0, NULL, 0);
  node(ISO_OP_SPLIT, &y, 1, widths, 3, parts, 3);
  const iso_id back[3] = {parts[2], parts[0], parts[1]};
  in[0] = node(ISO_OP_CONCAT, back, 3, NULL, 0, NULL, 0);
  in[1] = parameter("v0", 4, 21);
  in[2] = parameter("v1", 6, 21);
  in[3] = -1;
  finish(node(ISO_OP_LINEAR_JOINT, in, 3, NULL, 0, NULL, 0), 10);
}

static float table_cos[N * 4], table_sin[N * 4];

static void build_rope(void) {
  for (int p = 0; p < N; p++)
    for (int j = 0; j < 4; j++) {
      table_cos[p * 4 + j] = (float)iso_cos(p * 0.3 / (j + 1));
      table_sin[p * 4 + j] = (float)iso_sin(p * 0.3 / (j + 1));
    }
  const int64_t shape[2] = {N, 4};
  const iso_id c = iso_graph_const(g, "cos", ISO_F32, 2, shape, table_cos),
               s = iso_graph_const(g, "sin", ISO_F32, 2, shape, table_sin);
  const iso_attr attributes[2] = {{ISO_ATTR_HEAD_DIM, 8}, {ISO_ATTR_INVERSE, 0}};
  const iso_id in[4] = {activation("x", 24), positions_input, c, s};
  finish(node(ISO_OP_ROPE, in, 4, attributes, 2, NULL, 0), 24);
}

static void build_attention_with(double window, bool segments) {
  const iso_attr attributes[5] = {{ISO_ATTR_BATCH, BATCH},
                                  {ISO_ATTR_HEADS, 4},
                                  {ISO_ATTR_KV_HEADS, 2},
                                  {ISO_ATTR_SCALE, 0.4},
                                  {ISO_ATTR_WINDOW, window}};
  const iso_id in[4] = {activation("q", 4 * 6), activation("k", 2 * 6), activation("v", 2 * 6),
                        segments ? segments_input : -1};
  finish(node(ISO_OP_ATTENTION, in, segments ? 4 : 3, attributes, 5, NULL, 0), 24);
}

static void build_attention(void) {
  build_attention_with(0, false);
}

static void build_attention_masked(void) {
  build_attention_with(3, true);
}

static void build_swiglu(void) {
  const iso_id in[2] = {activation("gate", 21), activation("up", 21)};
  finish(node(ISO_OP_SWIGLU, in, 2, NULL, 0, NULL, 0), 21);
}

static void build_gelu(void) {
  for (int form = 0; form < 2; form++) {
    const iso_attr attribute = {ISO_ATTR_FORM, form};
    static iso_id x;
    if (form == 0) x = activation("x", 18);
    x = node(ISO_OP_GELU, &x, 1, &attribute, 1, NULL, 0);
    if (form == 1) finish(x, 18);
  }
}

/* One value used three times: contributions add up. */
static void build_add(void) {
  const iso_id x = activation("x", 16);
  const iso_attr attribute = {ISO_ATTR_FORM, 1};
  const iso_id y = node(ISO_OP_GELU, &x, 1, &attribute, 1, NULL, 0);
  const iso_id in[2] = {x, y};
  const iso_id sum = node(ISO_OP_ADD, in, 2, NULL, 0, NULL, 0);
  const iso_id again[2] = {sum, x};
  finish(node(ISO_OP_ADD, again, 2, NULL, 0, NULL, 0), 16);
}

static void build_split(void) {
  const iso_attr widths[3] = {{ISO_ATTR_WIDTH0, 8}, {ISO_ATTR_WIDTH1, 5}, {ISO_ATTR_WIDTH2, 8}},
                 form = {ISO_ATTR_FORM, 0};
  iso_id x = activation("x", 21), parts[3], joined[3];
  node(ISO_OP_SPLIT, &x, 1, widths, 3, parts, 3);
  const iso_id gate[2] = {parts[0], parts[2]};
  joined[0] = node(ISO_OP_SWIGLU, gate, 2, NULL, 0, NULL, 0);
  joined[1] = node(ISO_OP_GELU, &parts[1], 1, &form, 1, NULL, 0);
  finish(node(ISO_OP_CONCAT, joined, 2, NULL, 0, NULL, 0), 13);
}

/* Rows that have no gradient by nature: state, gradients themselves, inference. */
static bool needs_no_case(iso_op op) {
  const iso_op_info *info = iso_op_get(op);
  return (info->flags & ISO_OP_FLAG_EFFECT) || op >= ISO_OP_EMBEDDING_GRAD || op == ISO_OP_CAST || op == ISO_OP_LM_HEAD;
}

static const int32_t ids[N] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
static const int32_t labels[N] = {3, 1, 4, 1, 5, -100, 2, 6, 5, 3, 10, 0};
static const int32_t positions[N] = {0, 1, 2, 3, 4, 5, 0, 1, 2, 0, 1, 2};
static const int32_t segments[N] = {0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1};

static double loss_and_gradient(iso_exec *exec) {
  iso_step step = {.inputs = {ids, labels, positions, segments}, .workers = 1, .micros = 1, .scored = 11};
  iso_exec_gradients(exec, &step);
  return step.loss_sum;
}

static void check_parameter(iso_exec *exec, iso_flat *flat, const iso_parameter *p, const float *gradient,
                            const char *what) {
  const double step = 4e-3;
  float *w = flat->master + p->offset;
  for (int trial = 0; trial < 3; trial++) {
    double slope = 0, losses[2];
    for (int side = 0; side < 2; side++) {
      for (int64_t i = 0; i < p->elements; i++) {
        const double direction = iso_rng_normal(7, ISO_RNG_TEST, (uint64_t)(100 + trial), (uint64_t)(p->offset + i));
        if (side == 0) slope += direction * (double)gradient[p->offset + i];
        w[i] += (float)((side ? -2 : 1) * step * direction);
      }
      losses[side] = loss_and_gradient(exec);
    }
    for (int64_t i = 0; i < p->elements; i++)
      w[i] += (float)(step * iso_rng_normal(7, ISO_RNG_TEST, (uint64_t)(100 + trial), (uint64_t)(p->offset + i)));
    const double numeric = (losses[0] - losses[1]) / (2 * step);
    if (fabs(numeric - slope) > 2e-3 * (1 + fabs(slope)))
      fail_msg("%s: parameter %s: gradient along direction %d is %.6f, finite difference %.6f", what, p->name, trial,
               slope, numeric);
  }
}

static void check_case(void (*build)(void), const char *what) {
  arena = iso_arena_create();
  g = iso_graph_new(arena, "train");
  const int64_t shape[1] = {N};
  ids_input = iso_graph_input(g, "tokens", ISO_I32, 1, shape);
  labels_input = iso_graph_input(g, "labels", ISO_I32, 1, shape);
  positions_input = iso_graph_input(g, "positions", ISO_I32, 1, shape);
  segments_input = iso_graph_input(g, "segments", ISO_I32, 1, shape);
  g->tokens = N;
  build();
  iso_device *device;
  assert_int_equal(iso_device_create(2, &device), ISO_OK);
  const iso_compile_options options = {
      .train = true, .compute = ISO_F32, .gradient = ISO_F32, .threads = 2, .kernels = iso_device_kernels(device)};
  iso_program *program;
  assert_int_equal(iso_compile(g, &options, &program), ISO_OK);
  iso_flat flat;
  const iso_flat_options flat_options = {g->flat_elements, ISO_F32, ISO_F32, true, 1, false, NULL};
  assert_int_equal(iso_flat_init(&flat, &flat_options), ISO_OK);
  for (int64_t i = 0; i < g->flat_elements; i++)
    flat.master[i] = (float)(0.5 * iso_rng_normal(3, ISO_RNG_TEST, 1, (uint64_t)i));
  void *slab = iso_slab_alloc((size_t)program->arena_bytes + 64, "test arena");
  iso_exec *exec;
  assert_int_equal(iso_exec_create(device, program, &flat, slab, NULL, &exec), ISO_OK);
  loss_and_gradient(exec);
  float *gradient = iso_slab_alloc((size_t)g->flat_elements * sizeof(float), "test gradient");
  memcpy(gradient, flat.gradients, (size_t)g->flat_elements * sizeof(float));
  for (int i = 0; i < g->parameter_count; i++) check_parameter(exec, &flat, &g->parameters[i], gradient, what);
  iso_slab_free(gradient, (size_t)g->flat_elements * sizeof(float));
  iso_exec_destroy(&exec);
  iso_slab_free(slab, (size_t)program->arena_bytes + 64);
  iso_flat_fini(&flat);
  iso_device_destroy(&device);
  iso_arena_destroy(&arena);
}

static void test_every_op(void **state) {
  (void)state;
  check_case(build_embedding, "embedding");
  check_case(build_tied, "tied head");
  check_case(build_rmsnorm, "rmsnorm");
  check_case(build_layernorm, "layernorm");
  check_case(build_linear, "linear");
  check_case(build_linear_joint, "linear_joint");
  check_case(build_rope, "rope");
  check_case(build_attention, "attention");
  check_case(build_attention_masked, "attention with window and segments");
  check_case(build_swiglu, "swiglu");
  check_case(build_gelu, "gelu");
  check_case(build_add, "add");
  check_case(build_split, "split and concat");
  for (int op = 1; op < ISO_OP_COUNT; op++)
    if (!covered[op] && !needs_no_case((iso_op)op))
      fail_msg("op %s has no gradient case here", iso_op_get((iso_op)op)->text);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_op)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
