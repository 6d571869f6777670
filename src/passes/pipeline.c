/* SPDX-License-Identifier: Apache-2.0
 *
 * pipeline: the order of the passes. Read this first.
 *
 *   build       the model builder's graph, as given
 *   join        linears of one input as one product
 *   autodiff    gradients of the sum of the losses             (training)
 *   simplify    equal nodes merged, unread ones dropped
 *   precision   element types, casts, compute copies of weights
 *   update      reduction, clip, optimizer over buckets        (training)
 *   choose      which fusions of equal bits pay here, measured (training)
 *   recompute   activations made again where memory is short   (training)
 *   fuse        neighbours that one kernel does with the same bits
 *   schedule    an order that keeps memory low
 *   lower       instructions: views, in-place, accumulation, workspace
 *   memplan     places in the arena
 *   barriers    where the team meets
 *   check       proof of the memory plan and the barriers
 *
 * The verifier runs after every pass on the graph; `dump_after` prints graph or program after the named one.
 */
#include "passes/passes.h"

#include <string.h>

static const char *const names[] = {"build",  "join",    "autodiff",  "simplify", "precision",
                                    "update", "choose",  "recompute", "fuse",     "schedule",
                                    "lower",  "memplan", "barriers",  "check",    NULL};

const char *const *iso_pass_names(void) {
  return names;
}

static iso_status dump(const char *pass, const iso_graph *graph, const iso_program *program,
                       const iso_compile_options *options) {
  if (options->dump_after == NULL || strcmp(options->dump_after, pass) != 0) return ISO_OK;
  iso_string text = {0};
  if (program != NULL) {
    iso_program_print(program, &text);
  } else {
    iso_graph_print(graph, &text);
  }
  size_t written = fwrite(text.data, 1, text.length, options->dump);
  bool failed = written != text.length || fflush(options->dump) != 0;
  iso_string_fini(&text);
  return failed ? iso_fail(ISO_ERR_IO, "cannot write the dump after %s", pass) : ISO_OK;
}

/* After a pass on the graph. */
static iso_status passed(const char *pass, const iso_graph *graph, bool typed, const iso_compile_options *options) {
  const char *cause = iso_graph_explain(graph, typed);
  if (cause != NULL) return iso_fail(ISO_ERR_INTERNAL, "after pass %s: %s", pass, cause);
  return dump(pass, graph, NULL, options);
}

static iso_status check_options(const iso_compile_options *options) {
  if (options->threads < 1) return iso_fail(ISO_ERR_INTERNAL, "compile: %d threads", options->threads);
  if (options->dump_after == NULL) return ISO_OK;
  for (int i = 0; names[i] != NULL; i++) {
    if (strcmp(names[i], options->dump_after) == 0) return ISO_OK;
  }
  return iso_fail(ISO_ERR_USAGE,
                  "there is no pass \"%s\" to dump after; the passes are build, join, autodiff, simplify, "
                  "precision, update, choose, recompute, fuse, schedule, lower, memplan, barriers, check",
                  options->dump_after);
}

static iso_rounding rounding(const iso_compile_options *options) {
  return options->stream ? ISO_ROUND_STREAM : options->early ? ISO_ROUND_EARLY : ISO_ROUND_LAST;
}

iso_status iso_compile(iso_graph *graph, const iso_compile_options *options, iso_program **program) {
  iso_program *made = NULL;
  *program = NULL;
  ISO_TRY(check_options(options));
  ISO_TRY(passed("build", graph, false, options));
  ISO_TRY(iso_pass_join(graph, options->fusion_off));
  ISO_TRY(passed("join", graph, false, options));
  if (options->train) ISO_TRY(iso_pass_autodiff(graph));
  ISO_TRY(passed("autodiff", graph, false, options));
  ISO_TRY(iso_pass_simplify(graph));
  ISO_TRY(passed("simplify", graph, false, options));
  ISO_TRY(iso_pass_precision(graph, options->compute));
  ISO_TRY(passed("precision", graph, true, options));
  if (options->train) ISO_TRY(iso_pass_update(graph, options->gradient, options->bucket_elements, rounding(options)));
  ISO_TRY(passed("update", graph, true, options));
  ISO_TRY(iso_pass_choose(graph, options));
  ISO_TRY(passed("choose", graph, true, options));
  ISO_TRY(iso_pass_recompute(graph, options->threads, options->fusion_off, options->train ? options->arena_limit : 0));
  ISO_TRY(passed("recompute", graph, true, options));
  ISO_TRY(iso_pass_fuse(graph, options->fusion_off));
  ISO_TRY(passed("fuse", graph, true, options));
  ISO_TRY(iso_pass_schedule(graph));
  ISO_TRY(passed("schedule", graph, true, options));
  ISO_TRY(iso_pass_lower(graph, options->threads, &made));
  ISO_TRY(dump("lower", graph, made, options));
  ISO_TRY(iso_pass_memplan(made));
  ISO_TRY(dump("memplan", graph, made, options));
  ISO_TRY(iso_pass_barriers(made));
  ISO_TRY(dump("barriers", graph, made, options));
  ISO_TRY(iso_program_check(made));
  ISO_TRY(dump("check", graph, made, options));
  *program = made;
  return ISO_OK;
}
