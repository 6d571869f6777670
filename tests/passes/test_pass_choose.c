/* SPDX-License-Identifier: Apache-2.0
 *
 * Choosing fusions by a race: places are cut out as small programs that differ in one row, the verdict holds for all
 * places of that type and shape and for other graphs that are told, and without a race everything is fused.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "passes/models.h"

#include <stdlib.h>
#include <string.h>

static const shape small = {.layers = 2,
                            .width = 64,
                            .inner = 160,
                            .heads = 4,
                            .kv_heads = 4,
                            .vocabulary = 300,
                            .batch = 2,
                            .sequence = 24,
                            .tied = true};

/* A race whose outcome is set: forms with this op are slow. */
typedef struct fixed {
  iso_op slow;
  int races;
  bool layernorm; /* a GPT-2 instead of a Llama */
} fixed;

static bool has(const iso_program *program, iso_op op) {
  for (int i = 0; i < program->instruction_count; i++) {
    if (program->instructions[i].op == op) return true;
  }
  return false;
}

static fixed *told; /* what the race was told */

static iso_status race(const void *context, iso_program *const *programs, int count, double budget_s, double *seconds) {
  assert_ptr_equal(context, told);
  assert_int_equal(count, 2);
  assert_true(budget_s > 0 && budget_s < 1);
  told->races++;
  for (int i = 0; i < count; i++) {
    seconds[i] = has(programs[i], told->slow) ? 3e-3 : 2e-3;
    assert_true(programs[i]->instruction_count > 0 && programs[i]->instruction_count < 12);
    assert_true(programs[i]->arena_bytes > 0);
    assert_int_equal(programs[i]->phase_begin[1], programs[i]->instruction_count);
  }
  assert_true(programs[0]->instruction_count < programs[1]->instruction_count); /* the first is the fused one */
  return ISO_OK;
}

static iso_program *compile(iso_arena *arena, const iso_graph *told_by, unsigned off, unsigned measure, int mode,
                            fixed *outcome) {
  models_status = ISO_OK;
  iso_graph *graph = outcome && outcome->layernorm ? build_gpt2(arena, &small, mode) : build_llama(arena, &small, mode);
  assert_int_equal(models_status, ISO_OK);
  const iso_compile_options options = {.train = mode == MODE_LOSS && told_by == NULL,
                                       .compute = ISO_BF16,
                                       .gradient = ISO_BF16,
                                       .threads = 2,
                                       .stream = true,
                                       .fusion_off = off,
                                       .fusion_measure = measure,
                                       .race = outcome ? race : NULL,
                                       .race_context = outcome,
                                       .choices_of = told_by};
  iso_program *program = NULL;
  told = outcome;
  assert_int_equal(iso_compile(graph, &options, &program), ISO_OK);
  return program;
}

static unsigned same_bits(void) {
  unsigned rows = 0;
  for (int row = 0; row < ISO_FUSION_COUNT; row++) rows |= (unsigned)iso_fusion_keeps_bits(row) << row;
  return rows;
}

static void nothing_slow(void **state) {
  (void)state;
  for (int layernorm = 0; layernorm < 2; layernorm++) {
    iso_arena *arena = iso_arena_create();
    fixed outcome = {.slow = ISO_OP_NONE, .layernorm = layernorm};
    const iso_graph *graph = compile(arena, NULL, 0, same_bits(), MODE_LOSS, &outcome)->graph;
    assert_true(outcome.races >= 3);
    for (int row = 0; row < ISO_FUSION_COUNT; row++) {
      assert_int_equal(iso_fusion_places(graph, row, true), iso_fusion_places(graph, row, false));
      int measured = 0;
      for (int i = 0; i < graph->choice_count; i++)
        measured += graph->choices[i].fusion == row && graph->choices[i].fused_s > 0;
      assert_int_equal(measured > 0, iso_fusion_keeps_bits(row) && iso_fusion_places(graph, row, false) > 0);
    }
    iso_arena_destroy(&arena);
  }
}

/* One row is slow: its places alone stay, with the cause, also in the graph of an evaluation. */
static void slow_rows(void **state) {
  (void)state;
  static const struct {
    iso_op op;
    iso_fusion row;
  } rows[] = {{ISO_OP_ADD_RMSNORM, ISO_FUSION_ADD_NORM}, {ISO_OP_RMSNORM_GRAD_ADD, ISO_FUSION_NORM_GRAD_ADD}};
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_arena *arena = iso_arena_create();
    fixed outcome = {.slow = rows[i].op};
    const iso_program *program = compile(arena, NULL, 0, same_bits(), MODE_LOSS, &outcome);
    assert_false(has(program, rows[i].op));
    assert_int_equal(iso_fusion_places(program->graph, rows[i].row, true), 0);
    iso_string text = {0};
    iso_fusion_print(program->graph, &text);
    assert_non_null(strstr(text.data, ": measured: 0.67x of unfused at f32[48,64]\n"));
    text.length = 0;
    iso_choices_print(program->graph, &text);
    assert_non_null(strstr(text.data, "0.67x at f32[48,64]"));
    assert_non_null(strstr(text.data, "left out"));
    text.length = 0;
    iso_fusion_record(program->graph, &text);
    iso_json *json;
    assert_int_equal(iso_json_parse(text.data, text.length, "record", &json), ISO_OK);
    iso_json_destroy(&json);
    iso_string_fini(&text);
    const iso_program *evaluation = compile(arena, program->graph, 0, 0, MODE_LOSS, NULL);
    assert_int_equal(has(evaluation, ISO_OP_ADD_RMSNORM), rows[i].op != ISO_OP_ADD_RMSNORM);
    iso_arena_destroy(&arena);
  }
}

static void only_what_is_asked(void **state) {
  (void)state;
  iso_arena *arena = iso_arena_create();
  fixed outcome = {.slow = ISO_OP_ADD_RMSNORM};
  const iso_program *on = compile(arena, NULL, 0, 0, MODE_LOSS, &outcome);
  assert_int_equal(outcome.races, 0);
  assert_true(has(on, ISO_OP_ADD_RMSNORM));
  const unsigned add_norm = 1u << ISO_FUSION_ADD_NORM;
  const iso_program *named = compile(arena, NULL, 0, same_bits() & ~add_norm, MODE_LOSS, &outcome);
  assert_true(outcome.races > 0);
  assert_true(has(named, ISO_OP_ADD_RMSNORM));
  outcome.races = 0;
  const iso_program *off = compile(arena, NULL, ISO_FUSION_ALL, same_bits(), MODE_LOSS, &outcome);
  assert_int_equal(outcome.races, 0);
  assert_false(has(off, ISO_OP_ADD_RMSNORM));
  iso_arena_destroy(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nothing_slow),
      cmocka_unit_test(slow_rows),
      cmocka_unit_test(only_what_is_asked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
