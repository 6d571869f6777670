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

static iso_program *compile(iso_arena *arena, builder *build, const shape *s, int mode, iso_dtype compute) {
  models_status = ISO_OK;
  shape fitted = *s;
  if (build == build_gpt2) fitted.kv_heads = fitted.heads;
  iso_graph *graph = build(arena, &fitted, mode);
  assert_int_equal(models_status, ISO_OK);
  const iso_compile_options options = {
      .train = mode == MODE_LOSS, .compute = compute, .gradient = compute, .threads = 2};
  iso_program *program = NULL;
  assert_int_equal(iso_compile(graph, &options, &program), ISO_OK);
  return program;
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

static double use_of(builder *build, const shape *s, iso_dtype compute, const char *what) {
  iso_arena *arena = iso_arena_create();
  double before = iso_clock_s();
  iso_program *p = compile(arena, build, s, MODE_LOSS, compute);
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
      assert_true(use_of(build_gpt2, &rows[i].s, compute, rows[i].name) >= 0.97);
      assert_true(use_of(build_llama, &rows[i].s, compute, rows[i].name) >= 0.97);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_mode_compiles),
      cmocka_unit_test(the_arena_is_full_at_its_peak),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
