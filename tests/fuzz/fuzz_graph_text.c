/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: the graph parser, and the passes behind it. Build with clang -fsanitize=fuzzer,address,undefined.
 *
 * Whatever the bytes: an error, or a graph that prints as a fixed point and that every pass takes or refuses with a
 * message. Graphs above a few megabytes of tensors are parsed and printed only.
 */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool right) {
  if (!right) abort();
}

static void reprint(iso_arena *arena, const iso_graph *graph) {
  iso_string first = {0}, second = {0};
  iso_graph *again = NULL;
  iso_graph_print(graph, &first);
  check(iso_graph_parse(arena, first.data, first.length, "again", &again) == ISO_OK);
  iso_graph_print(again, &second);
  check(first.length == second.length && memcmp(first.data, second.data, first.length) == 0);
  iso_string_fini(&first);
  iso_string_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  iso_arena *arena = iso_arena_create();
  iso_graph *graph = NULL;
  iso_log_quiet(true);
  if (size < 65536 && iso_graph_parse(arena, (const char *)data, size, "fuzz", &graph) == ISO_OK) {
    reprint(arena, graph);
    bool small = graph->flat_elements < (1 << 26) && graph->compute == ISO_F32;
    for (int space = 0; space < ISO_SPACE_COUNT; space++) small = small && graph->space_bytes[space] < (1 << 26);
    for (iso_id id = 0; id < graph->tensor_count; id++)
      small = small && iso_tensor_bytes(&graph->tensors[id]) < (1 << 26);
    const iso_compile_options options = {
        .train = size % 2 == 0, .compute = size % 3 == 0 ? ISO_F32 : ISO_BF16, .gradient = ISO_F32, .threads = 2};
    iso_program *program = NULL;
    if (small && iso_compile(graph, &options, &program) == ISO_OK) check(iso_program_check(program) == ISO_OK);
  }
  iso_arena_destroy(&arena);
  return 0;
}
