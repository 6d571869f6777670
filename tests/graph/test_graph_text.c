/* SPDX-License-Identifier: Apache-2.0
 *
 * The text form: exact lines, parse(print(g)) over random graphs, every parser error with its place.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

static uint32_t draw_count;

static uint32_t draw(uint32_t below) {
  uint32_t out[4];
  iso_rng(7, ISO_RNG_TEST, 1, draw_count++, out);
  return out[0] % below;
}

static iso_graph *parse(iso_arena *arena, const char *text) {
  iso_graph *graph = NULL;
  iso_status status = iso_graph_parse(arena, text, strlen(text), "test", &graph);
  if (status != ISO_OK) fail_msg("%s", iso_last_error());
  return graph;
}

/* The text of everything a graph can hold prints as itself. */
static void text_is_a_fixed_point(void **state) {
  static const char text[] =
      "graph train compute=bf16 gradient=bf16 tokens=4\n"
      "input tokens i32[4] @0\n"
      "input labels i32[4] @64\n"
      "const rope.cos f32[8,2] @0\n"
      "const rope.sin f32[8,2] @64\n"
      "parameter embed.weight f32[10,8] @0 init=normal std=0.02 class=embedding gradient=%90\n"
      "parameter norm.weight f32[8] @80 init=one std=0 class=norm\n"
      "weight embed.weight:weight bf16[10,8] @0\n"
      "grad gradients f32[88] @0\n"
      "reduced reduced bf16[88] @0\n"
      "squares squares f64[1] @0\n"
      "scalar scalars f32[16] @0\n"
      "master master f32[88] @0\n"
      "moment1 moment1 f32[88] @0\n"
      "moment2 moment2 f32[88] @0\n"
      "weight weights bf16[88] @0\n"
      "phase micro\n"
      "  %0 f32[4,8] = embedding embed.weight, tokens\n"
      "  %1 bf16[4,8], - = rmsnorm %0, norm.weight {eps=1e-05}\n"
      "  %2 bf16[4,8] = rope %1, tokens, rope.cos, rope.sin {head_dim=4, inverse=0}\n"
      "  %3 bf16[4,3], %4 bf16[4,5], - = split %2 {width0=3, width1=5, width2=0}\n"
      "  %5 bf16[4,8] = concat %3, %4, -\n"
      "  losses f32[4] @output:0, %7 bf16[4,8], %8 f32[10,8] @grad:0 = linear_cross_entropy %5, embed.weight:weight, "
      "labels\n"
      "  %9 f32[10,8] @grad:0 = embedding_grad %7, tokens {rows=10}\n"
      "  %90 f32[10,8] @grad:0 = add %8, %9\n"
      "phase update\n"
      "  reduced, squares = grad_round gradients {begin=0, end=88}\n"
      "  scalars = clip squares\n"
      "  weights = adamw master, moment1, moment2, reduced, scalars {begin=0, end=88}\n";
  iso_arena *arena = iso_arena_create();
  iso_graph *graph = parse(arena, text);
  assert_int_equal(graph->flat_elements, 88);
  assert_int_equal(graph->space_bytes[ISO_SPACE_INPUT], 128);
  assert_int_equal(graph->space_bytes[ISO_SPACE_OUTPUT], 64);
  assert_int_equal(graph->next_number, 91);
  assert_string_equal(graph->tensors[graph->parameters[0].gradient].name, "%90");
  assert_int_equal(iso_graph_verify(graph, true), ISO_OK);
  iso_string out = {0};
  iso_graph_print(graph, &out);
  assert_string_equal(out.data, text);
  iso_string_fini(&out);
  iso_arena_destroy(&arena);
}

static void comments_and_blank_lines_are_skipped(void **state) {
  iso_arena *arena = iso_arena_create();
  iso_graph *graph = parse(arena, "# a comment\n\ngraph g compute=f32 gradient=f32 tokens=1 # here too\n\ninput x "
                                  "f32[2,4] @0\r\nphase micro\n\n y f32[2,4] @output:0=gelu x{form=0}");
  assert_int_equal(graph->node_count, 1);
  assert_int_equal(iso_graph_find(graph, "y"), 1);
  assert_int_equal(iso_graph_find(graph, "z"), -1);
  iso_arena_destroy(&arena);
}

/* A random node over the matrices made so far; true if it could be built. */
static void random_node(iso_graph *g, iso_id *pool, int *count, iso_id ids, iso_id table, iso_id norm) {
  iso_id in[4] = {pool[draw((uint32_t)*count)], pool[draw((uint32_t)*count)], pool[draw((uint32_t)*count)], -1};
  iso_id out[3] = {-1, -1, -1};
  const iso_tensor *x = &g->tensors[in[0]];
  int64_t cols = x->shape[1], widths[3] = {1 + draw(3), cols - 4, 0};
  switch (draw(8)) {
  case 0: {
    const iso_id e[2] = {table, ids};
    assert_int_equal(iso_graph_node(g, ISO_OP_EMBEDDING, e, 2, NULL, 0, out, 1), ISO_OK);
    break;
  }
  case 1: {
    const iso_attr eps = {ISO_ATTR_EPS, 1.0 / (1 + draw(1000))};
    const iso_id n[2] = {in[0], norm};
    if (cols % 2 != 0) return;
    assert_int_equal(iso_graph_node(g, ISO_OP_RMSNORM, n, 2, &eps, 1, out, 1), ISO_OK);
    if (draw(2) == 0) {
      g->tensors[g->nodes[g->node_count - 1].outputs[1]].producer = -1;
      g->nodes[g->node_count - 1].outputs[1] = -1;
    }
    break;
  }
  case 2: {
    const iso_attr form = {ISO_ATTR_FORM, draw(2)};
    assert_int_equal(iso_graph_node(g, ISO_OP_GELU, in, 1, &form, 1, out, 1), ISO_OK);
    break;
  }
  case 3:
    if (g->tensors[in[1]].shape[1] != cols) return;
    assert_int_equal(iso_graph_node(g, draw(2) == 0 ? ISO_OP_ADD : ISO_OP_SWIGLU, in, 2, NULL, 0, out, 1), ISO_OK);
    break;
  case 4: {
    if (cols < 6) return;
    widths[1] = cols - widths[0] - (int64_t)draw(2);
    widths[2] = cols - widths[0] - widths[1];
    const iso_attr w[3] = {{ISO_ATTR_WIDTH0, (double)widths[0]},
                           {ISO_ATTR_WIDTH1, (double)widths[1]},
                           {ISO_ATTR_WIDTH2, (double)widths[2]}};
    assert_int_equal(iso_graph_node(g, ISO_OP_SPLIT, in, 1, w, 3, out, 3), ISO_OK);
    break;
  }
  case 5:
    if (g->tensors[in[1]].shape[1] + cols > 200) return;
    assert_int_equal(iso_graph_node(g, ISO_OP_CONCAT, in, 2 + (int)draw(2), NULL, 0, out, 1), ISO_OK);
    break;
  case 6: {
    const int64_t dims[2] = {2 * (1 + draw(20)), cols};
    char name[64];
    snprintf(name, sizeof name, "weight.%d", g->parameter_count);
    const iso_id l[3] = {
        in[0], iso_graph_parameter(g, name, 2, dims, (iso_init)draw(3), 1.0 / (1 + draw(99)), (iso_decay_class)draw(4)),
        -1};
    assert_int_equal(iso_graph_node(g, ISO_OP_LINEAR, l, 2, NULL, 0, out, 1), ISO_OK);
    break;
  }
  default:
    assert_int_equal(iso_graph_node(g, ISO_OP_BIAS_GRAD, in, 1, NULL, 0, out, 1), ISO_OK);
    if (draw(2) == 0) iso_graph_output(g, out[0]);
    return;
  }
  for (int i = 0; i < 3; i++) {
    if (out[i] >= 0) pool[(*count)++] = out[i];
  }
}

static void random_graphs_come_back(void **state) {
  for (int round = 0; round < 200; round++) {
    iso_arena *arena = iso_arena_create();
    iso_graph *g = iso_graph_new(arena, "random");
    iso_id pool[400];
    int count = 0;
    const int64_t rows = 1 + draw(9), x[2] = {rows, 2 * (1 + draw(20))}, table_shape[2] = {11, 12}, two[1] = {2};
    g->tokens = rows;
    iso_id ids = iso_graph_input(g, "ids", ISO_I32, 1, &rows);
    pool[count++] = iso_graph_input(g, "x", ISO_F32, 2, x);
    pool[count++] = iso_graph_const(g, "c", ISO_BF16, 2, x, NULL);
    iso_id table = iso_graph_parameter(g, "table", 2, table_shape, ISO_INIT_NORMAL, 0.02, ISO_DECAY_EMBEDDING);
    iso_id norm = iso_graph_parameter(g, "norm", 1, two, ISO_INIT_ONE, 0, ISO_DECAY_NORM);
    for (int n = 0; n < 40; n++) random_node(g, pool, &count, ids, table, norm);
    assert_int_equal(iso_graph_verify(g, false), ISO_OK);
    iso_string first = {0}, second = {0};
    iso_graph_print(g, &first);
    iso_graph *again = parse(arena, first.data);
    iso_graph_print(again, &second);
    assert_string_equal(first.data, second.data);
    assert_int_equal(again->node_count, g->node_count);
    assert_memory_equal(again->space_bytes, g->space_bytes, sizeof g->space_bytes);
    iso_string_fini(&first);
    iso_string_fini(&second);
    iso_arena_destroy(&arena);
  }
}

#define HEAD "graph g compute=f32 gradient=f32 tokens=1\n"
#define X    HEAD "input x f32[2,4] @0\n"

static void errors_name_line_and_column(void **state) {
  static const struct {
    const char *text, *error;
  } rows[] = {
      {"", "test:1:1: 'graph' is expected here"},
      {"input", "test:1:1: 'graph' is expected here"},
      {"graph", "test:1:6: the graph's name is expected here"},
      {"graph g f32", "test:1:9: 'compute=' is expected here"},
      {"graph g compute=i32 gradient=f32 tokens=1", "test:1:17: f32 or bf16 is expected here"},
      {"graph g compute=f32 gradient=f16 tokens=1", "test:1:30: f32 or bf16 is expected here"},
      {"graph g compute=f32 gradient=f32 tokens=many", "test:1:41: a whole number is expected here"},
      {"graph g compute=f32 gradient=f32 tokens=1 x", "test:1:43: the line should end here"},
      {HEAD "bag x f32[2] @0", "test:2:1: a declaration or a phase is expected here"},
      {HEAD "output x f32[2] @0", "test:2:1: a declaration or a phase is expected here"},
      {HEAD "input x f33[2] @0", "test:2:9: unknown element type"},
      {HEAD "input x f32 @0", "test:2:13: '[' is expected here"},
      {HEAD "input x f32[] @0", "test:2:13: a whole number of at most 15 digits is expected here"},
      {HEAD "input x f32[0] @0", "test:2:13: this size is too small or too large"},
      {HEAD "input x f32[99999999,99999999] @0", "test:2:22: this size is too small or too large"},
      {HEAD "input x f32[1,1,1,1,1] @0", "test:2:21: too many dimensions"},
      {HEAD "input x f32[2;3] @0", "test:2:14: ',' or ']' is expected here"},
      {HEAD "input x f32[2] 0", "test:2:16: '@' and the place are expected here"},
      {HEAD "input x f32[2] @-1", "test:2:17: a place is not negative"},
      {HEAD "input - f32[2] @0", "test:2:7: a name is expected here"},
      {X "input x f32[2] @0", "test:3:7: this name is taken"},
      {HEAD "parameter w bf16[2] @0 init=one std=0 class=norm", "test:2:11: a parameter is f32"},
      {HEAD "parameter w f32[2] @1 init=one std=0 class=norm",
       "test:2:11: parameters must follow each other without gaps"},
      {HEAD "parameter w f32[2] @0 init=two std=0 class=norm", "test:2:28: unknown init"},
      {HEAD "parameter w f32[2] @0 init=one std=nan class=norm", "test:2:36: a finite decimal number is expected here"},
      {HEAD "parameter w f32[2] @0 init=one std=0 class=big", "test:2:44: unknown class"},
      {HEAD "parameter w f32[2] @0 init=one std=0 class=norm gradient=%1", "test:2:58: this tensor is not known here"},
      {X "phase last", "test:3:7: 'micro', then 'update' is expected here, each once"},
      {X "phase micro\nphase micro", "test:4:7: 'micro', then 'update' is expected here, each once"},
      {X "phase micro\n%1 f32[2,4] = jump x", "test:4:15: unknown op"},
      {X "phase micro\n%1 f32[2,4] = gelu y {form=0}", "test:4:20: this tensor is not known here"},
      {X "phase micro\n%1 f32[2,4] = gelu %1 {form=0}", "test:4:20: a node cannot read what it makes"},
      {X "phase micro\n%1 f32[2,4] = gelu x", "test:4:15: attribute form is missing"},
      {X "phase micro\n%1 f32[2,4] = gelu x {form=2}", "test:4:15: attribute form is 2, not 0 (erf) or 1 (tanh)"},
      {X "phase micro\n%1 f32[2,4] = gelu x {form=0.5}", "test:4:28: a whole number is expected here"},
      {X "phase micro\n%1 f32[2,4] = gelu x {from=0}", "test:4:23: unknown attribute"},
      {X "phase micro\n%1 f32[2,4] = gelu x {form=0, form=0}", "test:4:31: this attribute stands twice"},
      {X "phase micro\n%1 f32[2,4] = gelu x {form=0, eps=1}", "test:4:15: it has no attribute eps"},
      {X "phase micro\n%1 f32[2,4] = gelu x {form=0", "test:4:29: ',' or '}' is expected here"},
      {X "phase micro\n%1 f32[2,5] = gelu x {form=0}", "test:4:1: an output has another shape than the op gives"},
      {X "phase micro\n%1 f32[2,4], %1 f32[2] = gelu x {form=0}", "test:4:14: this name is taken"},
      {X "phase micro\n%1 f32[2,4], - = gelu x {form=0}", "test:4:18: it has 2 outputs, its row says 1"},
      {X "phase micro\n%1 f32[2,4] = gelu x, x {form=0}", "test:4:15: it has 2 inputs, its row says 1"},
      {X "phase micro\n%1 f32[2,4] = gelu - {form=0}", "test:4:15: input 0 is missing"},
      {X "phase micro\n- = gelu x {form=0}", "test: graph g: node 0 (gelu): output 0 is missing"},
      {X "phase micro\nx = gelu x {form=0}", "test:4:1: only state may be written again"},
      {X "phase micro\n%1 f32[2,4] @input:0 = gelu x {form=0}", "test:4:14: only output and grad are made"},
      {X "phase micro\n%1 f32[2,4] @output = gelu x {form=0}", "test:4:14: a place is written space:offset"},
      {X "phase micro\n%1 f32[2,4] @output:-8 = gelu x {form=0}", "test:4:21: a place is not negative"},
      {X "phase micro\n%1 f32[2,4] @grad:0 = gelu x {form=0}",
       "test: graph g: tensor %1: it lies outside its space grad (offset 0, 8 of 0)"},
      {X "phase micro\n%1 f32[2,4] gelu x", "test:4:13: ',' or '=' is expected here"},
  };
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_arena *arena = iso_arena_create();
    iso_graph *graph = NULL;
    iso_status status = iso_graph_parse(arena, rows[i].text, strlen(rows[i].text), "test", &graph);
    assert_string_equal(iso_last_error(), rows[i].error);
    assert_int_equal(status, ISO_ERR_FORMAT);
    assert_null(graph);
    iso_arena_destroy(&arena);
  }
  iso_log_quiet(false);
}

/* Any cut or damage of a good text ends in a graph that verifies or in an error; never in a crash. */
static void damaged_text_is_refused_or_valid(void **state) {
  static const char good[] = X "parameter w f32[4,4] @0 init=normal std=0.02 class=matrix gradient=%2\nphase micro\n"
                               "%1 f32[2,4] = linear x, w, - {transposed=0}\n%2 f32[4,4] = linear_dw %1, x "
                               "{transposed=0}\nphase update\n";
  iso_log_quiet(true);
  for (int round = 0; round < 3000; round++) {
    char text[sizeof good];
    memcpy(text, good, sizeof good);
    size_t length = draw(2) == 0 ? draw(sizeof good) : sizeof good - 1;
    for (uint32_t k = draw(3); k > 0 && length > 0; k--) text[draw((uint32_t)length)] = (char)draw(256);
    iso_arena *arena = iso_arena_create();
    iso_graph *graph = NULL;
    iso_status status = iso_graph_parse(arena, text, length, "test", &graph);
    assert_true(status == ISO_OK ? graph != NULL : status == ISO_ERR_FORMAT && graph == NULL);
    if (graph != NULL) assert_int_equal(iso_graph_verify(graph, false), ISO_OK);
    iso_arena_destroy(&arena);
  }
  iso_log_quiet(false);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(text_is_a_fixed_point),
      cmocka_unit_test(comments_and_blank_lines_are_skipped),
      cmocka_unit_test(random_graphs_come_back),
      cmocka_unit_test(errors_name_line_and_column),
      cmocka_unit_test(damaged_text_is_refused_or_valid),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
