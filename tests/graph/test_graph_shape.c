/* SPDX-License-Identifier: Apache-2.0
 *
 * Shape rules and costs: each op once with good operands (output shapes, FLOP), and its typical mistakes with their
 * cause.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

/* Operands named by their shape: "6x8" is f32[6,8], "i6" is i32[6], "d1" is f64[1]; they are inputs of the graph, or
 * state where the op writes them. */
static iso_id operand(iso_graph *g, const char *word, bool state) {
  char name[32];
  snprintf(name, sizeof name, "%s.%d", word, g->tensor_count);
  int64_t shape[2] = {0, 0};
  iso_dtype dtype = word[0] == 'i' ? ISO_I32 : word[0] == 'd' ? ISO_F64 : ISO_F32;
  const char *digits = dtype == ISO_F32 ? word : word + 1, *x = strchr(digits, 'x');
  shape[0] = atoll(digits);
  if (x != NULL) shape[1] = atoll(x + 1);
  if (state) return iso_graph_cache(g, name, dtype, x != NULL ? 2 : 1, shape);
  return iso_graph_input(g, name, dtype, x != NULL ? 2 : 1, shape);
}

static void attributes(iso_node *node, const char *text) {
  while (*text != '\0') {
    size_t length = strcspn(text, "=");
    int key = iso_attribute_find(text, length);
    assert_true(key >= 0);
    char *end = NULL;
    node->attributes[key] = strtod(text + length + 1, &end);
    node->has_attribute[key] = true;
    text = end + strspn(end, " ");
  }
}

/* "op operands | attributes" -> output shapes "4x8 4", or the cause. */
static void infer(const char *line, const char *operands, const char *attribute_text, char *result, size_t bytes,
                  int64_t *flop) {
  iso_arena *arena = iso_arena_create();
  iso_graph *g = iso_graph_new(arena, "shapes");
  g->flat_elements = 140000;
  iso_node node = {.op = iso_op_find(line, strlen(line))};
  assert_int_not_equal(node.op, ISO_OP_NONE);
  char copy[128];
  snprintf(copy, sizeof copy, "%s", operands);
  int written = iso_op_get(node.op)->flags / ISO_OP_FLAG_WRITES0;
  for (char *rest = NULL, *word = strtok_r(copy, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
    int i = node.input_count++;
    node.inputs[i] = word[0] == '-' ? -1 : operand(g, word, (written >> i & 1) != 0);
  }
  node.output_count = iso_op_output_count(node.op);
  attributes(&node, attribute_text);
  iso_tensor out[ISO_MAX_OUTPUTS];
  *flop = -1;
  result[0] = '\0';
  if (iso_shape_explain(g, &node, out, result, bytes)) {
    size_t used = 0;
    for (int i = 0; i < node.output_count; i++) {
      const iso_tensor *t = &out[i];
      const char *gap = i > 0 ? " " : "";
      if (t->rank < 0) {
        used += (size_t)snprintf(result + used, bytes - used, "%s-", gap);
      } else if (t->rank == 1) {
        used += (size_t)snprintf(result + used, bytes - used, "%s%lld", gap, (long long)t->shape[0]);
      } else {
        used += (size_t)snprintf(result + used, bytes - used, "%s%lldx%lld", gap, (long long)t->shape[0],
                                 (long long)t->shape[1]);
      }
      node.outputs[i] = t->rank < 0 ? -1 : iso_graph_tensor(g, NULL, t->dtype, t->rank, t->shape, ISO_SPACE_TRANSIENT);
    }
    int64_t moved = 0;
    iso_node_cost(g, &node, flop, &moved);
    assert_true(moved > 0);
  }
  iso_arena_destroy(&arena);
}

#define ATT "batch=2 heads=4 kv_heads=2 scale=0.5 window=0"

static const struct {
  const char *op, *operands, *attributes, *outputs;
  int64_t flop;
} good[] = {
    {"embedding", "10x8 i6", "", "6x8", 0},
    {"rmsnorm", "6x8 8", "eps=1e-5", "6x8 6", 192},
    {"rmsnorm", "6x8 4", "eps=1e-5", "6x8 12", 192},
    {"layernorm", "6x8 8 8", "eps=1e-5", "6x8 6 6", 288},
    {"linear", "6x8 5x8 5", "transposed=0", "6x5", 480},
    {"linear", "6x8 8x5 -", "transposed=1", "6x5", 480},
    {"linear_joint", "6x8 3x8 4x8 -", "", "6x7", 2 * 6 * 7 * 8},
    {"linear_joint", "6x8 3x8 4x8 2x8", "", "6x9", 2 * 6 * 9 * 8},
    {"lm_head", "6x8 5x8", "transposed=0", "6x5", 480},
    {"rope", "6x8 i6 9x2 9x2", "head_dim=4 inverse=1", "6x8", 288},
    {"attention", "6x8 6x4 6x4 i6", ATT, "6x8 24", 14 * 2 * 4 * 6},
    {"attention", "6x8 6x4 6x4 -", "batch=1 heads=4 kv_heads=2 scale=0.5 window=2", "6x8 24", 14 * 4 * 11},
    {"attention_cached", "3x8 3x4 3x4 9x4 9x4", "heads=4 kv_heads=2 scale=0.5 window=0", "3x8", 14 * 3 * 9 * 4},
    {"swiglu", "6x8 6x8", "", "6x8", 480},
    {"gelu", "6x8", "form=1", "6x8", 480},
    {"add", "6x8 6x8", "", "6x8", 48},
    {"add", "8 8", "", "8", 8},
    {"split", "6x8", "width0=3 width1=5 width2=0", "6x3 6x5 -", 0},
    {"split", "6x8", "width0=3 width1=4 width2=1", "6x3 6x4 6x1", 0},
    {"concat", "6x3 6x5 -", "", "6x8", 0},
    {"concat", "6x3 6x4 6x1", "", "6x8", 0},
    {"cast", "6x8", "", "6x8", 0},
    {"linear_cross_entropy", "6x8 10x8 i6", "", "6 6x8 10x8", 3 * 2 * 6 * 80 + 6 * 60},
    {"embedding_grad", "6x8 i6", "rows=10", "10x8", 48},
    {"rmsnorm_grad", "6x8 6x8 4 12", "eps=1e-5", "6x8 4", 576},
    {"layernorm_grad", "6x8 6x8 8 6 6", "eps=1e-5", "6x8 8 8", 576},
    {"linear_dx", "6x5 5x8", "transposed=0", "6x8", 480},
    {"linear_dx", "6x5 8x5", "transposed=1", "6x8", 480},
    {"linear_dw", "6x5 6x8", "transposed=0", "5x8", 480},
    {"linear_dw", "6x5 6x8", "transposed=1", "8x5", 480},
    {"linear_joint_dx", "6x9 3x8 4x8 2x8", "", "6x8", 2 * 6 * 9 * 8},
    {"linear_joint_dw", "6x7 6x8", "width0=3 width1=4 width2=0", "3x8 4x8 -", 2 * 6 * 7 * 8},
    {"add_rmsnorm", "6x8 6x8 4", "eps=1e-5", "6x8 6x8 12", 240},
    {"add_layernorm", "6x8 6x8 8 8", "eps=1e-5", "6x8 6x8 6 6", 336},
    {"rmsnorm_grad_add", "6x8 6x8 6x8 4 12", "eps=1e-5", "6x8 4 6x8", 624},
    {"layernorm_grad_add", "6x8 6x8 6x8 8 6 6", "eps=1e-5", "6x8 8 8 6x8", 624},
    {"linear_joint_swiglu", "6x8 5x8 5x8", "", "6x5 6x10", 2 * 6 * 10 * 8 + 10 * 6 * 5},
    {"linear_gelu", "6x8 5x8 5", "transposed=0 form=1", "6x5 6x5", 2 * 6 * 5 * 8 + 10 * 6 * 5},
    {"linear_gelu", "6x8 8x5 -", "transposed=1 form=0", "6x5 6x5", 2 * 6 * 5 * 8 + 10 * 6 * 5},
    {"linear_rope", "6x5 8x5 8 i6 9x2 9x2", "transposed=0 head_dim=4", "6x8", 2 * 6 * 5 * 8 + 6 * 6 * 8},
    {"linear_rope", "6x5 5x8 - i6 9x2 9x2", "transposed=1 head_dim=4", "6x8", 2 * 6 * 5 * 8 + 6 * 6 * 8},
    {"linear_joint_rope", "6x5 8x5 4x5 3x5 i6 9x2 9x2", "head_dim=4", "6x15", 2 * 6 * 5 * 15 + 6 * 6 * 12},
    {"linear_joint_rope", "6x5 8x5 4x5 - i6 9x2 9x2", "head_dim=4", "6x12", 2 * 6 * 5 * 12 + 6 * 6 * 12},
    {"linear_joint_norm_rope", "6x5 8x5 4x5 4x5 4 4 i6 9x2 9x2", "eps=1e-5", "6x16 6x8 6x4 12 6",
     2 * 6 * 5 * 16 + 10 * 6 * 12},
    {"bias_grad", "6x5", "", "5", 30},
    {"attention_grad", "6x8 6x8 6x4 6x4 6x8 24 -", ATT, "6x8 6x4 6x4", 30 * 2 * 4 * 6},
    {"swiglu_grad", "6x8 6x8 6x8", "", "6x8 6x8", 960},
    {"gelu_grad", "6x8 6x8", "form=0", "6x8", 960},
    {"grad_round", "70000", "begin=65536 end=70000", "70000 2", 3 * 4464},
    {"grad_round_part", "10x7000", "begin=100 end=70100", "140000 -", 3 * 70000},
    {"grad_round_part", "10x7000", "begin=65536 end=135536", "140000 3", 3 * 70000},
    {"grad_round_part", "8928", "begin=131072 end=140000", "140000 3", 3 * 8928},
    {"grad_squares", "140000", "begin=65536 end=140000", "3", 3 * 74464},
    {"clip", "d2", "", "16", 2},
    {"adamw", "70000 70000 70000 70000 16", "begin=0 end=65536", "70000", 14 * 65536},
};

static void good_operands_give_shapes_and_costs(void **state) {
  bool seen[ISO_OP_COUNT] = {false};
  for (size_t i = 0; i < ISO_COUNT(good); i++) {
    char result[320];
    int64_t flop = 0;
    infer(good[i].op, good[i].operands, good[i].attributes, result, sizeof result, &flop);
    assert_string_equal(result, good[i].outputs);
    assert_int_equal(flop, good[i].flop);
    seen[iso_op_find(good[i].op, strlen(good[i].op))] = true;
  }
  for (int op = ISO_OP_NONE + 1; op < ISO_OP_COUNT; op++) {
    if (!seen[op]) fail_msg("op %s has no row in this test", iso_op_get((iso_op)op)->text);
  }
}

static void mistakes_are_named(void **state) {
  static const struct {
    const char *op, *operands, *attributes, *cause;
  } rows[] = {
      {"embedding", "10 i6", "", "input 0 (10.0) has rank 1, not 2"},
      {"embedding", "10x8 6", "", "input 1 (6.1) is of type f32"},
      {"rmsnorm", "6x8 3", "eps=1", "input 0 (6x8.0) has 8 columns, no multiple of the weight's 3"},
      {"layernorm", "6x8 8 7", "eps=1", "input 2 (7.2) is [7], not [8]"},
      {"linear", "6x8 5x9 -", "transposed=0", "input 1 (5x9.1) is [5,9], not [5,8]"},
      {"linear", "6x8 8x5 -", "transposed=2", "attribute transposed is 2, not 0 or 1"},
      {"linear", "6x8 5x8 4", "transposed=0", "input 2 (4.2) is [4], not [5]"},
      {"rope", "6x8 i6 9x2 9x2", "head_dim=3 inverse=0",
       "head_dim 3 is odd, or no divisor of the 8 columns of input 0 (6x8.0)"},
      {"rope", "6x8 i6 9x4 9x4", "head_dim=4 inverse=0", "input 2 (9x4.2) is [9,4], not [9,2]"},
      {"attention", "6x8 6x4 6x5 -", ATT, "input 2 (6x5.2) is [6,5], not [6,4]"},
      {"attention", "6x8 6x4 6x4 -", "batch=4 heads=4 kv_heads=2 scale=1 window=0",
       "batch 4 does not divide the 6 rows"},
      {"attention", "6x8 6x4 6x4 -", "batch=2 heads=4 kv_heads=3 scale=1 window=0",
       "4 heads on 3 kv_heads do not divide the 8 columns of input 0 (6x8.0)"},
      {"attention", "6x8 6x4 6x4 -", "batch=2 heads=4 kv_heads=2 scale=1 window=-1", "window is negative"},
      {"attention_cached", "3x8 3x4 3x4 2x4 2x4", "heads=4 kv_heads=2 scale=0.5 window=0",
       "the cache (2x4.3) holds 2 rows, fewer than the 3 of one run"},
      {"swiglu", "6x8 6x7", "", "input 0 (6x8.0) and input 1 (6x7.1) differ in shape"},
      {"gelu", "6x8", "form=3", "attribute form is 3, not 0 (erf) or 1 (tanh)"},
      {"gelu", "6x8", "", "attribute form is missing"},
      {"split", "6x8", "width0=3 width1=4 width2=0", "parts have 7 columns together, input 0 (6x8.0) has 8"},
      {"split", "6x8", "width0=8 width1=0 width2=0", "part 1 has 0 columns"},
      {"concat", "6x3 5x5 -", "", "input 1 (5x5.1) is [5,5], not [6,5]"},
      {"linear_cross_entropy", "6x8 10x8 i5", "", "input 2 (i5.2) is [5], not [6]"},
      {"embedding_grad", "6x8 i6", "rows=0", "attribute rows is below 1"},
      {"rmsnorm_grad", "6x8 6x8 4 6", "eps=1", "input 3 (6.3) is [6], not [12]"},
      {"linear_dw", "6x5 7x8", "transposed=0", "input 1 (7x8.1) is [7,8], not [6,8]"},
      {"linear_joint", "6x8 3x8 4x7 -", "", "input 2 (4x7.2) is [4,7], not [4,8]"},
      {"linear_joint_dx", "6x8 3x8 4x8 -", "", "input 0 (6x8.0) is [6,8], not [6,7]"},
      {"linear_joint_dw", "6x7 5x8", "width0=3 width1=4 width2=0", "input 1 (5x8.1) is [5,8], not [6,8]"},
      {"linear_joint_dw", "6x7 6x8", "width0=3 width1=3 width2=0",
       "parts have 6 columns together, input 0 (6x7.0) has 7"},
      {"add_rmsnorm", "6x8 6x7 8", "eps=1", "input 0 (6x8.0) and input 1 (6x7.1) differ in shape"},
      {"add_layernorm", "6x8 6x8 8 7", "eps=1", "input 3 (7.3) is [7], not [8]"},
      {"rmsnorm_grad_add", "6x8 6x8 6x8 4 6", "eps=1", "input 4 (6.4) is [6], not [12]"},
      {"layernorm_grad_add", "5x8 6x8 6x8 8 6 6", "eps=1", "input 0 (5x8.0) and input 2 (6x8.2) differ in shape"},
      {"linear_joint_swiglu", "6x8 5x8 4x8", "", "input 1 (5x8.1) and input 2 (4x8.2) differ in shape"},
      {"linear_gelu", "6x8 5x8 4", "transposed=0 form=1", "input 2 (4.2) is [4], not [5]"},
      {"linear_gelu", "6x8 5x8 -", "transposed=0 form=2", "attribute form is 2, not 0 (erf) or 1 (tanh)"},
      {"linear_rope", "6x5 6x5 - i6 9x2 9x2", "transposed=0 head_dim=4",
       "head_dim 4 is odd, or no divisor of the 6 columns of input 1 (6x5.1)"},
      {"linear_rope", "6x5 8x5 - i5 9x2 9x2", "transposed=0 head_dim=4", "input 3 (i5.2) is [5], not [6]"},
      {"linear_joint_rope", "6x5 8x5 6x5 3x5 i6 9x2 9x2", "head_dim=4",
       "head_dim 4 is odd, or no divisor of the 6 columns of input 2 (6x5.2)"},
      {"linear_joint_rope", "6x5 8x5 4x5 3x4 i6 9x2 9x2", "head_dim=4", "input 3 (3x4.3) is [3,4], not [3,5]"},
      {"linear_joint_norm_rope", "6x5 8x5 4x5 4x5 4 2 i6 9x2 9x2", "eps=1e-5", "input 5 (2.5) is [2], not [4]"},
      {"linear_joint_norm_rope", "6x5 8x5 4x5 4x5 4 4 i6 9x2 9x3", "eps=1e-5", "input 8 (9x3.8) is [9,3], not [9,2]"},
      {"grad_round", "70000", "begin=100 end=70000",
       "range [100,70000) does not cut the state's 70000 elements on block borders"},
      {"grad_round_part", "10x7000", "begin=0 end=70001",
       "range [0,70001) of 140000 is not that of input 0 (10x7000.0)"},
      {"grad_squares", "140000", "begin=0 end=70000",
       "range [0,70000) does not cut the state's 140000 elements on block borders"},
      {"adamw", "88 88 88 88 15", "begin=0 end=88", "input 4 (15.4) is [15], not [16]"},
      {"clip", "2", "", "input 0 (2.0) is of type f32"},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    char result[320];
    int64_t flop = 0;
    infer(rows[i].op, rows[i].operands, rows[i].attributes, result, sizeof result, &flop);
    assert_string_equal(result, rows[i].cause);
    assert_int_equal(flop, -1);
  }
}

/* ops.def and the arrays sized by hand agree. */
static void the_op_table_is_sound(void **state) {
  for (int op = ISO_OP_NONE + 1; op < ISO_OP_COUNT; op++) {
    const iso_op_info *info = iso_op_get((iso_op)op);
    assert_int_equal(iso_op_find(info->text, strlen(info->text)), op);
    assert_in_range(iso_op_input_count((iso_op)op), 1, ISO_MAX_INPUTS);
    assert_in_range(iso_op_output_count((iso_op)op), 1, ISO_MAX_OUTPUTS);
    assert_true(strspn(info->inputs, "tTfFiIdga") == strlen(info->inputs));
    assert_true(strspn(info->outputs, "tTfFdDgsSwW") == strlen(info->outputs));
    for (const char *at = info->attributes; *at != '\0';) {
      size_t length = strcspn(at, " ");
      assert_true(iso_attribute_find(at, length) >= 0);
      at += length + strspn(at + length, " ");
    }
  }
  assert_int_equal(iso_op_find("rms", 3), ISO_OP_NONE);
  assert_int_equal(iso_attribute_find("width", 5), -1);
}

static void builder_mistakes_are_reported(void **state) {
  iso_arena *arena = iso_arena_create();
  iso_graph *g = iso_graph_new(arena, "g");
  const int64_t shape[2] = {2, 4};
  iso_id x = iso_graph_input(g, "x", ISO_F32, 2, shape), in[3] = {x, x, x}, out = -1;
  const iso_attr eps = {ISO_ATTR_EPS, 1};
  iso_log_quiet(true);
  assert_int_equal(iso_graph_node(g, ISO_OP_ADD, in, 3, NULL, 0, &out, 1), ISO_ERR_INTERNAL);
  assert_string_equal(iso_last_error(), "graph g: node 0 (add): 3 inputs given, it takes 2");
  assert_int_equal(iso_graph_node(g, ISO_OP_ADD, in, 2, &eps, 1, &out, 1), ISO_ERR_INTERNAL);
  assert_string_equal(iso_last_error(), "graph g: node 0 (add): it has no attribute eps");
  assert_int_equal(iso_graph_node(g, ISO_OP_ADD, in, 1, NULL, 0, &out, 1), ISO_ERR_INTERNAL);
  assert_string_equal(iso_last_error(), "graph g: node 0 (add): input 1 is missing");
  iso_log_quiet(false);
  iso_arena_destroy(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(good_operands_give_shapes_and_costs),
      cmocka_unit_test(mistakes_are_named),
      cmocka_unit_test(the_op_table_is_sound),
      cmocka_unit_test(builder_mistakes_are_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
