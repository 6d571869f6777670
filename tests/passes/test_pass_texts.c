/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes as text: every file of tests/data/passes is one case.
 *
 *   # passes: autodiff simplify      the passes to run, in order (precision:f32, precision:bf16, update:<bucket
 * elements>, stream: the update that rounds gradients one by one,
 * recompute:<bytes of the arena>, join:<bits of fusions switched off>, fuse:<the same>) <graph>
 *   ----
 *   <graph, or program after "lower", or "error: " and the message>
 *
 * To accept new output after a deliberate change: ISO_ACCEPT=1 test_pass_texts, then read the difference.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

#define FOLDER ISO_TEST_DATA "/passes"

static iso_status run_pass(const char *name, size_t length, iso_graph *graph, iso_program **program) {
  char pass[64];
  assert_true(length < sizeof pass);
  memcpy(pass, name, length);
  pass[length] = '\0';
  if (strncmp(pass, "join:", 5) == 0) return iso_pass_join(graph, (unsigned)atoi(pass + 5));
  if (strncmp(pass, "fuse:", 5) == 0) return iso_pass_fuse(graph, (unsigned)atoi(pass + 5));
  if (strcmp(pass, "autodiff") == 0) return iso_pass_autodiff(graph);
  if (strcmp(pass, "simplify") == 0) return iso_pass_simplify(graph);
  if (strcmp(pass, "precision:f32") == 0) return iso_pass_precision(graph, ISO_F32);
  if (strcmp(pass, "precision:bf16") == 0) return iso_pass_precision(graph, ISO_BF16);
  if (strncmp(pass, "update:", 7) == 0) return iso_pass_update(graph, graph->compute, atoll(pass + 7), ISO_ROUND_LAST);
  if (strcmp(pass, "stream") == 0) return iso_pass_update(graph, graph->compute, 0, ISO_ROUND_STREAM);
  if (strcmp(pass, "early") == 0) return iso_pass_update(graph, graph->compute, 0, ISO_ROUND_EARLY);
  if (strncmp(pass, "recompute:", 10) == 0) return iso_pass_recompute(graph, 2, 0, atoll(pass + 10));
  if (strcmp(pass, "schedule") == 0) return iso_pass_schedule(graph);
  if (strcmp(pass, "lower") == 0) return iso_pass_lower(graph, 2, program);
  if (strcmp(pass, "memplan") == 0) return iso_pass_memplan(*program);
  if (strcmp(pass, "check") == 0) return iso_program_check(*program);
  if (strcmp(pass, "barriers") == 0) return iso_pass_barriers(*program);
  fail_msg("no pass %s", pass);
  return ISO_ERR_INTERNAL;
}

/* What the case's input becomes. */
static void transform(const char *where, const char *passes, const char *text, size_t length, iso_string *out) {
  iso_arena *arena = iso_arena_create();
  iso_graph *graph = NULL;
  iso_program *program = NULL;
  iso_status status = iso_graph_parse(arena, text, length, where, &graph);
  if (status != ISO_OK) fail_msg("%s", iso_last_error());
  while (*passes != '\n' && status == ISO_OK) {
    passes += strspn(passes, " ");
    size_t word = strcspn(passes, " \n");
    status = run_pass(passes, word, graph, &program);
    if (status == ISO_OK && iso_graph_explain(graph, graph->compute != ISO_F32) != NULL) {
      fail_msg("%s: after %.*s: %s", where, (int)word, passes, iso_graph_explain(graph, graph->compute != ISO_F32));
    }
    passes += word;
  }
  if (status != ISO_OK) {
    iso_string_printf(out, "error: %s\n", iso_last_error());
  } else if (program != NULL) {
    iso_program_print(program, out);
  } else {
    iso_graph_print(graph, out);
  }
  for (int i = 0; i < graph->note_count; i++) {
    const iso_remark *note = &graph->notes[i];
    iso_string_printf(out, "# %s at %s: %s\n", iso_fusion_get(note->fusion)->name, note->place,
                      note->cause ? note->cause : "fused");
  }
  iso_arena_destroy(&arena);
}

static void run_case(iso_arena *arena, const char *name) {
  char *path = iso_path_join(arena, FOLDER, name), *text = NULL;
  size_t bytes = 0;
  assert_int_equal(iso_file_read(path, &text, &bytes), ISO_OK);
  const char *head = "# passes:", *mark = "\n----\n", *split = strstr(text, mark);
  if (strncmp(text, head, strlen(head)) != 0 || split == NULL) fail_msg("%s: it has no head or no ---- line", name);
  iso_string out = {0};
  transform(name, text + strlen(head), text, (size_t)(split - text) + 1, &out);
  const char *expected = split + strlen(mark);
  if (strcmp(out.data, expected) != 0 && getenv("ISO_ACCEPT") != NULL) {
    iso_string file = {0};
    iso_string_append(&file, text, (size_t)(expected - text));
    iso_string_append(&file, out.data, out.length);
    assert_int_equal(iso_file_replace(path, file.data, file.length), ISO_OK);
    iso_string_fini(&file);
  } else if (strcmp(out.data, expected) != 0) {
    fail_msg("%s: it gives\n%s----\ninstead of\n%s", name, out.data, expected);
  }
  iso_string_fini(&out);
  free(text);
}

static void every_case_gives_its_text(void **state) {
  iso_arena *arena = iso_arena_create();
  char **names = NULL;
  size_t count = 0;
  assert_int_equal(iso_path_list(arena, FOLDER, &names, &count), ISO_OK);
  assert_true(count >= 20);
  iso_log_quiet(true);
  for (size_t i = 0; i < count; i++) run_case(arena, names[i]);
  iso_log_quiet(false);
  iso_arena_destroy(&arena);
}

/* An op cannot be added without a gradient rule or a reason why it has none. */
static void every_op_has_a_rule_or_is_exempt(void **state) {
  for (int op = ISO_OP_NONE + 1; op < ISO_OP_COUNT; op++) {
    const iso_gradient_step *steps = NULL;
    bool rule = iso_gradient_steps((iso_op)op, &steps) > 0, exempt = iso_gradient_exempt((iso_op)op);
    if (rule == exempt)
      fail_msg("op %s: has a gradient rule: %d, is exempt: %d", iso_op_get((iso_op)op)->text, rule, exempt);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_case_gives_its_text),
      cmocka_unit_test(every_op_has_a_rule_or_is_exempt),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
