/* SPDX-License-Identifier: Apache-2.0
 *
 * Whole compilations of built models: every mode, both types, both architectures; the memory plan's use of the arena.
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
                            .kv_heads = 2,
                            .vocabulary = 300,
                            .batch = 2,
                            .sequence = 24,
                            .tied = true,
                            .segments = true};

typedef iso_graph *builder(iso_arena *, const shape *, int);

static iso_program *compile_form(iso_arena *arena, builder *build, const shape *s, int mode, iso_dtype compute,
                                 bool stream) {
  models_status = ISO_OK;
  shape fitted = *s;
  if (build == build_gpt2) fitted.kv_heads = fitted.heads;
  iso_graph *graph = build(arena, &fitted, mode);
  assert_int_equal(models_status, ISO_OK);
  const iso_compile_options options = {
      .train = mode == MODE_LOSS, .compute = compute, .gradient = compute, .threads = 2, .stream = stream};
  iso_program *program = NULL;
  assert_int_equal(iso_compile(graph, &options, &program), ISO_OK);
  return program;
}

static iso_program *compile(iso_arena *arena, builder *build, const shape *s, int mode, iso_dtype compute) {
  return compile_form(arena, build, s, mode, compute, false);
}

static void every_mode_compiles(void **state) {
  for (int which = 0; which < 2; which++) {
    for (int mode = MODE_LOSS; mode <= MODE_CACHED; mode++) {
      for (int variant = 0; variant < 8; variant++) {
        shape s = small;
        s.tied = (variant & 1) != 0;
        s.qk_norm = (variant & 2) != 0;
        s.segments = mode != MODE_CACHED;
        s.batch = mode == MODE_CACHED ? 1 : 2;
        iso_arena *arena = iso_arena_create();
        iso_program *p =
            compile(arena, which == 0 ? build_gpt2 : build_llama, &s, mode, (variant & 4) != 0 ? ISO_BF16 : ISO_F32);
        assert_true(p->arena_bytes >= p->live_peak_bytes);
        if (getenv("ISO_SHOW") != NULL && variant == 5) {
          iso_string text = {0};
          iso_program_print(p, &text);
          iso_memory_print(p, &text);
          printf("%s", text.data);
          iso_string_fini(&text);
        }
        iso_arena_destroy(&arena);
      }
    }
  }
}

static double use_of(builder *build, const shape *s, iso_dtype compute, bool stream, const char *what) {
  iso_arena *arena = iso_arena_create();
  double before = iso_clock_s();
  iso_program *p = compile_form(arena, build, s, MODE_LOSS, compute, stream);
  double use = (double)p->live_peak_bytes / (double)p->arena_bytes;
  printf("%-28s %-4s %5d instructions, arena %10lld, use %.4f, %.3f s\n", what, iso_dtype_name(compute),
         p->instruction_count, (long long)p->arena_bytes, use, iso_clock_s() - before);
  iso_arena_destroy(&arena);
  return use;
}

static void the_arena_is_full_at_its_peak(void **state) {
  static const struct {
    const char *name;
    shape s;
  } rows[] = {
      {"12 layers, width 768", {12, 768, 3072, 12, 4, 50257, 4, 256, true, false, true}},
      {"12 layers, width 768, T 1024", {12, 768, 2048, 12, 12, 32000, 1, 1024, false, false, false}},
      {"6 layers, width 256", {6, 256, 688, 4, 2, 4096, 8, 256, true, false, true}},
      {"4 layers, width 128, odd rows", {4, 128, 352, 4, 4, 1000, 3, 77, true, true, true}},
      {"24 layers, width 1024", {24, 1024, 2816, 16, 8, 32000, 2, 512, false, true, false}},
      {"1 layer", {1, 64, 128, 2, 1, 300, 2, 64, true, false, false}},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    for (int type = 0; type < 2; type++) {
      iso_dtype compute = type == 0 ? ISO_F32 : ISO_BF16;
      for (int stream = 0; stream < 2; stream++) {
        assert_true(use_of(build_gpt2, &rows[i].s, compute, stream, rows[i].name) >= 0.97);
        assert_true(use_of(build_llama, &rows[i].s, compute, stream, rows[i].name) >= 0.97);
      }
    }
  }
}

/* Accumulation over micro-batches and over the uses of a tied weight. */
static void gradients_accumulate(void **state) {
  iso_arena *arena = iso_arena_create();
  iso_program *p = compile(arena, build_llama, &small, MODE_LOSS, ISO_BF16);
  const iso_graph *g = p->graph;
  int first = 0, more = 0;
  for (int i = 0; i < p->instruction_count; i++) {
    const iso_instruction *in = &p->instructions[i];
    int gradients = 0;
    for (int k = 0; k < in->output_count; k++)
      gradients += in->outputs[k].present && in->outputs[k].space == ISO_SPACE_GRAD;
    assert_int_equal(gradients > 0, in->accumulate != ISO_ACCUMULATE_NEVER);
    if (in->accumulate == ISO_ACCUMULATE_MICRO) first += gradients;
    more += in->accumulate == ISO_ACCUMULATE_ALWAYS;
    if (in->accumulate == ISO_ACCUMULATE_ALWAYS) assert_int_equal(in->op, ISO_OP_EMBEDDING_GRAD);
  }
  assert_int_equal(first, g->parameter_count);
  assert_int_equal(more, 1);
  iso_arena_destroy(&arena);
}

/* The same graph gives the same program; threads change workspace only. */
static void compilation_is_deterministic(void **state) {
  iso_string text[2] = {{0}, {0}};
  for (int i = 0; i < 2; i++) {
    iso_arena *arena = iso_arena_create();
    iso_program_print(compile(arena, build_gpt2, &small, MODE_LOSS, ISO_BF16), &text[i]);
    iso_arena_destroy(&arena);
  }
  assert_string_equal(text[0].data, text[1].data);
  iso_string_fini(&text[0]);
  iso_string_fini(&text[1]);
}

static void the_memory_report_ends_with_the_arena(void **state) {
  iso_arena *arena = iso_arena_create();
  iso_program *p = compile(arena, build_llama, &small, MODE_LOSS, ISO_BF16);
  iso_string text = {0};
  char line[160];
  iso_memory_print(p, &text);
  snprintf(line, sizeof line, "arena: %lld bytes, live at peak %lld bytes, use %.2f%%\n", (long long)p->arena_bytes,
           (long long)p->live_peak_bytes, 100.0 * (double)p->live_peak_bytes / (double)p->arena_bytes);
  assert_string_equal(text.data + text.length - strlen(line), line);
  snprintf(line, sizeof line, "%-12s %16lld\n", "moment2", (long long)p->graph->flat_elements * 4);
  assert_non_null(strstr(text.data, line));
  snprintf(line, sizeof line, "%-12s %16lld\n", "weight", (long long)p->graph->flat_elements * 2);
  assert_non_null(strstr(text.data, line));
  iso_string_fini(&text);
  iso_arena_destroy(&arena);
}

static iso_program *compile_within(iso_arena *arena, builder *build, iso_dtype compute, bool stream, int64_t limit) {
  shape s = {3, 64, 256, 4, 4, 100, 4, 64, true, true, true};
  const iso_compile_options options = {
      .train = true, .compute = compute, .gradient = compute, .threads = 2, .stream = stream, .arena_limit = limit};
  iso_program *program = NULL;
  models_status = ISO_OK;
  assert_int_equal(iso_compile(build(arena, &s, MODE_LOSS), &options, &program), ISO_OK);
  assert_int_equal(models_status, ISO_OK);
  return program;
}

/* Recompute: nothing when it fits, else within the limit and no more than needed, down to a plan that it cannot lower.
 */
static void activations_are_made_again_to_fit(void **state) {
  for (int variant = 0; variant < 8; variant++) {
    builder *build = (variant & 1) != 0 ? build_gpt2 : build_llama;
    iso_dtype compute = (variant & 2) != 0 ? ISO_BF16 : ISO_F32;
    bool stream = (variant & 4) != 0;
    iso_arena *arena = iso_arena_create();
    iso_program *whole = compile_within(arena, build, compute, stream, 0);
    iso_program *least = compile_within(arena, build, compute, stream, 1), *before = whole;
    const int64_t most = whole->arena_bytes, gap = most - least->arena_bytes;
    assert_int_equal(compile_within(arena, build, compute, stream, most)->instruction_count, whole->instruction_count);
    assert_int_equal(whole->graph->saved_bytes, 0);
    assert_true(gap > most / 8);
    for (int part = 1; part <= 4; part++) {
      int64_t limit = most - gap * part / 4;
      iso_program *p = compile_within(arena, build, compute, stream, limit);
      assert_true(p->arena_bytes <= limit || p->instruction_count == least->instruction_count);
      assert_true(p->instruction_count > before->instruction_count || before->arena_bytes <= limit);
      assert_true(p->graph->saved_bytes > 0 && p->graph->saved_bytes <= gap + most / 50);
      before = p;
    }
    iso_string text = {0};
    iso_memory_print(least, &text);
    assert_non_null(strstr(text.data, "activations are made again, saves "));
    iso_string_fini(&text);
    iso_arena_destroy(&arena);
  }
}

/* Every pass can be dumped; what is a graph parses back. */
static void every_pass_can_be_dumped(void **state) {
  for (const char *const *name = iso_pass_names(); *name != NULL; name++) {
    iso_arena *arena = iso_arena_create();
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    const iso_compile_options options = {
        .train = true, .compute = ISO_BF16, .gradient = ISO_BF16, .threads = 1, .dump_after = *name, .dump = stream};
    iso_program *program = NULL;
    models_status = ISO_OK;
    assert_int_equal(iso_compile(build_llama(arena, &small, MODE_LOSS), &options, &program), ISO_OK);
    assert_int_equal(models_status, ISO_OK);
    fclose(stream);
    if (strncmp(text, "graph ", 6) == 0) {
      iso_graph *again = NULL;
      assert_int_equal(iso_graph_parse(arena, text, bytes, *name, &again), ISO_OK);
      iso_string out = {0};
      iso_graph_print(again, &out);
      assert_string_equal(out.data, text);
      iso_string_fini(&out);
    } else {
      assert_int_equal(strncmp(text, "program ", 8), 0);
    }
    free(text);
    iso_arena_destroy(&arena);
  }
}

static void wrong_options_are_refused(void **state) {
  iso_arena *arena = iso_arena_create();
  iso_program *program = NULL;
  iso_compile_options options = {.train = true, .threads = 1, .dump_after = "fold"};
  iso_log_quiet(true);
  assert_int_equal(iso_compile(build_llama(arena, &small, MODE_LOSS), &options, &program), ISO_ERR_USAGE);
  assert_non_null(strstr(iso_last_error(), "there is no pass \"fold\""));
  options = (iso_compile_options){.train = true, .threads = 0};
  assert_int_equal(iso_compile(build_llama(arena, &small, MODE_LOSS), &options, &program), ISO_ERR_INTERNAL);
  options = (iso_compile_options){.train = true, .threads = 1, .compute = ISO_F16};
  assert_int_equal(iso_compile(build_llama(arena, &small, MODE_LOSS), &options, &program), ISO_ERR_UNSUPPORTED);
  assert_null(program);
  iso_log_quiet(false);
  iso_arena_destroy(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_mode_compiles),
      cmocka_unit_test(the_arena_is_full_at_its_peak),
      cmocka_unit_test(gradients_accumulate),
      cmocka_unit_test(compilation_is_deterministic),
      cmocka_unit_test(the_memory_report_ends_with_the_arena),
      cmocka_unit_test(activations_are_made_again_to_fit),
      cmocka_unit_test(every_pass_can_be_dumped),
      cmocka_unit_test(wrong_options_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
