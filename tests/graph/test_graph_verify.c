/* SPDX-License-Identifier: Apache-2.0
 *
 * The verifier: a sound graph, broken in one way a row, is refused with the cause.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "graph/graph.h"

#include <string.h>

/* Tensors by number: 0 tokens, 1 labels, 2 embed, 3 norm, 4 embed:weight, 5 reduced, 6 gradients, then %0.. from 7 on.
 */
static const char text[] =
    "graph g compute=bf16 gradient=bf16 tokens=4\n"
    "input tokens i32[4] @0\n"
    "input labels i32[4] @64\n"
    "parameter embed f32[10,8] @0 init=normal std=0.02 class=embedding gradient=%9\n"
    "parameter norm f32[8] @80 init=one std=0 class=norm\n"
    "weight embed:weight bf16[10,8] @0\n"
    "reduced reduced bf16[88] @0\n"
    "grad gradients f32[88] @0\n"
    "squares squares f64[1] @0\n"
    "phase micro\n"
    "  %0 f32[4,8] = embedding embed, tokens\n"
    "  %1 bf16[4,8], %2 f32[4] = rmsnorm %0, norm {eps=1e-05}\n"
    "  losses f32[4] @output:0, %7 bf16[4,8], %8 f32[10,8] @grad:0 = linear_cross_entropy %1, embed:weight, labels\n"
    "  %9 f32[10,8] @grad:0 = embedding_grad %7, tokens {rows=10}\n"
    "phase update\n"
    "  reduced, squares = grad_round gradients {begin=0, end=88}\n";

static iso_tensor *tensor(iso_graph *g, const char *name) {
  return &g->tensors[iso_graph_find(g, name)];
}

static void break_duplicate_name(iso_graph *g) {
  tensor(g, "%0")->name = "tokens";
}
static void break_empty_name(iso_graph *g) {
  tensor(g, "%0")->name = "";
}
static void break_name_characters(iso_graph *g) {
  tensor(g, "%0")->name = "a b";
}
static void break_space(iso_graph *g) {
  tensor(g, "%0")->space = ISO_SPACE_COUNT;
}
static void break_dtype(iso_graph *g) {
  tensor(g, "%0")->dtype = (iso_dtype)99;
}
static void break_rank(iso_graph *g) {
  tensor(g, "%0")->rank = 5;
}
static void break_size(iso_graph *g) {
  tensor(g, "%0")->shape[1] = 0;
}
static void break_size_overflow(iso_graph *g) {
  tensor(g, "%0")->shape[1] = (int64_t)1 << 45;
}
static void break_place(iso_graph *g) {
  tensor(g, "labels")->offset = 128;
}
static void break_negative_place(iso_graph *g) {
  tensor(g, "labels")->offset = -64;
}
static void break_flat_place(iso_graph *g) {
  tensor(g, "embed:weight")->offset = 80;
}
static void break_parameter_index(iso_graph *g) {
  tensor(g, "%0")->parameter = 2;
}
static void break_parameter_tensor(iso_graph *g) {
  g->parameters[0].tensor = 0;
}
static void break_parameter_type(iso_graph *g) {
  tensor(g, "embed")->dtype = ISO_BF16;
}
static void break_parameter_offset(iso_graph *g) {
  g->parameters[1].offset = 79;
}
static void break_flat_total(iso_graph *g) {
  g->flat_elements = 90;
}
static void break_gradient_number(iso_graph *g) {
  g->parameters[0].gradient = 1000;
}
static void break_gradient_shape(iso_graph *g) {
  g->parameters[1].gradient = iso_graph_find(g, "%9");
}
static void break_phase(iso_graph *g) {
  g->nodes[0].phase = ISO_PHASE_UPDATE;
}
static void break_phase_number(iso_graph *g) {
  g->nodes[0].phase = 7;
}
static void break_op(iso_graph *g) {
  g->nodes[0].op = ISO_OP_NONE;
}
static void break_input_count(iso_graph *g) {
  g->nodes[0].input_count = 1;
}
static void break_output_count(iso_graph *g) {
  g->nodes[1].output_count = 1;
}
static void break_input_number(iso_graph *g) {
  g->nodes[0].inputs[0] = 999;
}
static void break_input_missing(iso_graph *g) {
  g->nodes[0].inputs[0] = -1;
}
static void break_input_kind(iso_graph *g) {
  g->nodes[0].inputs[1] = g->nodes[0].inputs[0];
}
static void break_order(iso_graph *g) {
  iso_node first = g->nodes[0];
  g->nodes[0] = g->nodes[1];
  g->nodes[1] = first;
}
static void break_unmade(iso_graph *g) {
  tensor(g, "%0")->producer = -1;
}
static void break_attribute_missing(iso_graph *g) {
  g->nodes[1].has_attribute[ISO_ATTR_EPS] = false;
}
static void break_attribute_extra(iso_graph *g) {
  g->nodes[0].has_attribute[ISO_ATTR_EPS] = true;
}
static void break_attribute_nan(iso_graph *g) {
  g->nodes[1].attributes[ISO_ATTR_EPS] = 0.0 / 0.0;
}
static void break_attribute_whole(iso_graph *g) {
  g->nodes[3].attributes[ISO_ATTR_ROWS] = 10.5;
}
static void break_output_number(iso_graph *g) {
  g->nodes[0].outputs[0] = 999;
}
static void break_output_missing(iso_graph *g) {
  g->nodes[0].outputs[0] = -1;
}
static void break_output_shape(iso_graph *g) {
  tensor(g, "%2")->shape[0] = 5;
}
static void break_output_input(iso_graph *g) {
  tensor(g, "%2")->space = ISO_SPACE_INPUT;
}
static void break_output_state(iso_graph *g) {
  tensor(g, "%2")->space = ISO_SPACE_MASTER;
  tensor(g, "%2")->producer = -1;
}
static void break_two_producers(iso_graph *g) {
  g->nodes[3].outputs[0] = g->nodes[2].outputs[2];
}
static void break_range(iso_graph *g) {
  g->nodes[4].attributes[ISO_ATTR_END] = 87;
}
static void break_loss_gradients(iso_graph *g) {
  g->nodes[2].outputs[2] = -1;
}
static void break_typed_input(iso_graph *g) {
  g->nodes[2].inputs[1] = iso_graph_find(g, "embed");
}
static void break_typed_output(iso_graph *g) {
  tensor(g, "%1")->dtype = ISO_F32;
}
static void break_typed_reduced(iso_graph *g) {
  tensor(g, "reduced")->dtype = ISO_F32;
}

static void broken_graphs_are_refused(void **state) {
  static const struct {
    void (*damage)(iso_graph *);
    const char *error;
  } rows[] = {
      {break_duplicate_name, "graph g: tensors 0 and 8 are both named tokens"},
      {break_empty_name, "graph g: tensor 8: its name is empty, too long or has characters that no name may have"},
      {break_name_characters, "graph g: tensor 8: its name is empty, too long or has characters that no name may have"},
      {break_space, "graph g: tensor %0: unknown space"},
      {break_dtype, "graph g: tensor %0: unknown element type"},
      {break_rank, "graph g: tensor %0: rank 5"},
      {break_size, "graph g: tensor %0: dimension 1 is 0"},
      {break_size_overflow, "graph g: tensor %0: dimension 1 is 35184372088832"},
      {break_place, "graph g: tensor labels: it lies outside its space input (offset 128, 16 of 128)"},
      {break_negative_place, "graph g: tensor labels: it lies outside its space input (offset -64, 16 of 128)"},
      {break_flat_place, "graph g: tensor embed:weight: it lies outside its space weight (offset 80, 80 of 88)"},
      {break_parameter_index, "graph g: tensor %0: it belongs to parameter 2, which does not exist"},
      {break_parameter_tensor, "graph g: parameter embed: its tensor does not point back"},
      {break_parameter_type, "graph g: parameter embed: its tensor differs in space, type or shape"},
      {break_parameter_offset, "graph g: parameter norm: it lies at element 79 of the flat state, not at 80"},
      {break_flat_total, "graph g: the flat state has 90 elements, its parameters have 88"},
      {break_gradient_number, "graph g: parameter embed: its gradient is tensor 1000, which does not exist"},
      {break_gradient_shape, "graph g: parameter norm: its gradient %9 has another shape or type, or no producer"},
      {break_phase, "graph g: node 1 (rmsnorm): its phase is out of order"},
      {break_phase_number, "graph g: node 0 (embedding): its phase is out of order"},
      {break_op, "graph g: node 0 (none): op 0 has no rule"},
      {break_input_count, "graph g: node 0 (embedding): it has 1 inputs, its row says 2"},
      {break_output_count, "graph g: node 1 (rmsnorm): it has 1 outputs, its row says 2"},
      {break_input_number, "graph g: node 0 (embedding): input 0 is tensor 999, which does not exist"},
      {break_input_missing, "graph g: node 0 (embedding): input 0 is missing"},
      {break_input_kind, "graph g: node 0 (embedding): input 1 (embed) is of type f32"},
      {break_order, "graph g: node 0 (rmsnorm): input 0 (%0) is read before it is made"},
      {break_unmade, "graph g: node 0 (embedding): output 0 (%0) is also made by node -1"},
      {break_attribute_missing, "graph g: node 1 (rmsnorm): attribute eps is missing"},
      {break_attribute_extra, "graph g: node 0 (embedding): it has no attribute eps"},
      {break_attribute_nan, "graph g: node 1 (rmsnorm): attribute eps is not finite"},
      {break_attribute_whole, "graph g: node 3 (embedding_grad): attribute rows is 10.5, no whole number"},
      {break_output_number, "graph g: node 0 (embedding): output 0 is tensor 999, which does not exist"},
      {break_output_missing, "graph g: node 0 (embedding): output 0 is missing"},
      {break_output_shape, "graph g: node 1 (rmsnorm): output 1 (%2) has another shape than its rule gives"},
      {break_output_input, "graph g: node 1 (rmsnorm): output 1 (%2) is an input or a constant"},
      {break_output_state, "graph g: node 1 (rmsnorm): output 1 (%2) is state, which it may not write"},
      {break_two_producers, "graph g: node 3 (embedding_grad): output 0 (%8) is also made by node 2"},
      {break_range, "graph g: node 4 (grad_round): range [0,87) does not cut the state's 88 elements on block borders"},
      {break_loss_gradients,
       "graph g: node 2 (linear_cross_entropy): one of its gradients is wanted and the other is not"},
      {break_typed_input, "graph g: node 2 (linear_cross_entropy): input 1 (embed) is f32, it must be bf16"},
      {break_typed_output, "graph g: node 1 (rmsnorm): output 0 (%1) is f32, its rule gives bf16"},
      {break_typed_reduced, "graph g: node 4 (grad_round): output 0 (reduced) is f32, its rule gives bf16"},
  };
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_arena *arena = iso_arena_create();
    iso_graph *graph = NULL;
    assert_int_equal(iso_graph_parse(arena, text, strlen(text), "test", &graph), ISO_OK);
    assert_int_equal(iso_graph_verify(graph, true), ISO_OK);
    rows[i].damage(graph);
    assert_int_equal(iso_graph_verify(graph, true), ISO_ERR_INTERNAL);
    assert_string_equal(iso_last_error(), rows[i].error);
    iso_arena_destroy(&arena);
  }
  iso_log_quiet(false);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(broken_graphs_are_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
