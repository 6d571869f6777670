/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach inspect: what a config compiles to. Nothing of the planned memory is allocated, and of the inputs only the
 * model's config is read.
 */
#include <string.h>

#include "cli/cli.h"

typedef enum view { VIEW_GRAPH, VIEW_PROGRAM, VIEW_MEMORY, VIEW_FUSION } view;

static iso_status check_pass(const char *name) {
  const char *const *names = iso_pass_names();
  size_t count = 0;
  iso_string list = {0};
  for (; names[count]; count++) {
    if (strcmp(names[count], name) == 0) {
      iso_string_fini(&list);
      return ISO_OK;
    }
    iso_string_printf(&list, "%s%s", count ? ", " : "", names[count]);
  }
  const iso_status status = iso_fail(ISO_ERR_USAGE, "inspect: --dump-after \"%s\" is no pass; the passes are: %s", name,
                                     list.data ? list.data : "");
  iso_string_fini(&list);
  return status;
}

static void put_choices(const iso_graph *graph, int row, iso_string *out) {
  iso_json_open(out, "measured", '[');
  for (int i = 0; i < graph->choice_count; i++) {
    const iso_choice *choice = &graph->choices[i];
    if (choice->fusion != row || choice->fused_s <= 0) continue;
    iso_string at = {0};
    iso_choice_print(choice, &at);
    iso_json_open(out, NULL, '{');
    iso_json_put_text(out, "at", at.data ? at.data : "");
    iso_json_put_real(out, "fused_s", choice->fused_s);
    iso_json_put_real(out, "unfused_s", choice->unfused_s);
    iso_json_put_bool(out, "fused", choice->cause == NULL);
    iso_json_shut(out, '}');
    iso_string_fini(&at);
  }
  iso_json_shut(out, ']');
}

static void put_fusion(const iso_graph *graph, iso_string *out) {
  iso_json_open(out, "fusions", '[');
  const iso_fusion_info *info;
  for (int row = 0; (info = iso_fusion_get(row)) != NULL; row++) {
    iso_json_open(out, NULL, '{');
    iso_json_put_text(out, "name", info->name);
    iso_json_put_text(out, "unfused", info->pattern);
    iso_json_put_text(out, "fused_form", info->form);
    iso_json_put_text(out, "bits", info->bits);
    iso_json_put_bool(out, "built_in", info->built_in != ISO_OP_NONE);
    iso_json_put_int(out, "places", iso_fusion_places(graph, row, false));
    iso_json_put_int(out, "fused", iso_fusion_places(graph, row, true));
    iso_json_open(out, "not_fused", '[');
    for (int i = 0; i < graph->note_count; i++) {
      const iso_remark *note = &graph->notes[i];
      if (note->fusion != row || note->cause == NULL) continue;
      iso_json_open(out, NULL, '{');
      iso_json_put_text(out, "place", note->place);
      iso_json_put_text(out, "cause", note->cause);
      iso_json_shut(out, '}');
    }
    iso_json_shut(out, ']');
    put_choices(graph, row, out);
    iso_json_shut(out, '}');
  }
  iso_json_shut(out, ']');
}

static iso_status print_view(const iso_engine *engine, view what, bool json) {
  const iso_program *program = engine->program;
  iso_string text = {0}, out = {0};
  if (what == VIEW_GRAPH) iso_graph_print(program->graph, &text);
  if (what == VIEW_PROGRAM) iso_program_print(program, &text);
  if (what == VIEW_MEMORY) iso_engine_plan(engine, &text);
  if (what == VIEW_FUSION) iso_fusion_print(program->graph, &text);
  if (!json) return iso_text_print(&text);
  iso_json_open(&out, NULL, '{');
  if (what == VIEW_GRAPH) {
    iso_json_put_text(&out, "graph", program->graph->name);
    iso_json_put_int(&out, "nodes", program->graph->node_count);
    iso_json_put_int(&out, "tensors", program->graph->tensor_count);
    iso_json_put_int(&out, "parameters", program->graph->flat_elements);
  } else if (what == VIEW_FUSION) {
    put_fusion(program->graph, &out);
  } else {
    if (what == VIEW_PROGRAM) iso_json_put_int(&out, "instructions", program->instruction_count);
    if (what == VIEW_MEMORY) iso_json_put_int(&out, "total_bytes", iso_engine_bytes(engine));
    iso_json_put_int(&out, "arena_bytes", program->arena_bytes);
    iso_json_put_int(&out, "live_peak_bytes", program->live_peak_bytes);
    iso_json_put_real(&out, "use",
                      program->arena_bytes ? (double)program->live_peak_bytes / (double)program->arena_bytes : 1);
  }
  iso_json_put_text(&out, "text", text.data ? text.data : "");
  iso_json_shut(&out, '}');
  iso_string_fini(&text);
  return iso_json_print(&out);
}

static iso_status compile(const iso_config *config, const iso_model_config *model, view what, const char *dump_after,
                          bool json) {
  iso_device *device;
  ISO_TRY(iso_device_create((int)config->threads, &device));
  iso_engine_options options;
  const int64_t workers = config->parallel.virtual_workers;
  iso_run_engine_options(config, model, workers < 0 ? 1 : workers, &options);
  options.dump_after = dump_after[0] ? dump_after : NULL;
  options.dump = stdout;
  if (what != VIEW_FUSION) options.fusion.measure = 0; /* what is shown does not depend on the moment */
  iso_engine engine;
  iso_status status = iso_engine_compile(device, &options, &engine);
  if (status == ISO_OK) {
    if (!options.dump_after) status = print_view(&engine, what, json);
    iso_engine_fini(&engine);
  }
  iso_device_destroy(&device);
  return status;
}

static iso_status inspect(iso_args *args, view what) {
  bool json = false;
  const char *dump_after = "";
  const iso_flag flags[] = {
      {"dump-after", ISO_FLAG_TEXT, &dump_after, "print the stage after this pass instead", 0, 0},
      {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, -1));
  if (args->help) return ISO_OK;
  if (dump_after[0]) ISO_TRY(check_pass(dump_after));
  if (dump_after[0] && json)
    return iso_fail(ISO_ERR_USAGE, "%s: --dump-after prints text; leave out --json", args->verb->name);
  iso_config config;
  ISO_TRY(iso_config_read(args->words[0], args->words + 1, args->word_count - 1, &config));
  iso_model_config model;
  iso_status status = iso_run_model(&config, &model);
  if (status == ISO_OK) {
    status = compile(&config, &model, what, dump_after, json);
    iso_model_config_fini(&model);
  }
  iso_config_fini(&config);
  return status;
}

static iso_status inspect_graph(iso_args *args) {
  return inspect(args, VIEW_GRAPH);
}

static iso_status inspect_program(iso_args *args) {
  return inspect(args, VIEW_PROGRAM);
}

static iso_status inspect_memory(iso_args *args) {
  return inspect(args, VIEW_MEMORY);
}

static iso_status inspect_fusion(iso_args *args) {
  return inspect(args, VIEW_FUSION);
}

iso_status iso_verb_inspect(iso_args *args) {
  static const iso_verb table[] = {
      {"inspect graph", inspect_graph, "CONFIG [key=value ...] [--dump-after PASS] [--json]",
       "the training step as a graph, after all passes or after one"},
      {"inspect program", inspect_program, "CONFIG [key=value ...] [--dump-after PASS] [--json]",
       "the kernel calls that the step runs"},
      {"inspect memory", inspect_memory, "CONFIG [key=value ...] [--json]", "the memory plan and how well it is used"},
      {"inspect snapshot", iso_verb_snapshots, "RUN [--json]", "a run's snapshots: step, size, age, whether valid"},
      {"inspect fusion", inspect_fusion, "CONFIG [key=value ...] [--json]",
       "which neighbouring ops run as one, which do not, and why"},
      {"inspect log", iso_verb_inspect_log, "RUN [--json]", "a run's step log: segments, steps, faults"},
  };
  return iso_subverb_run(args, table, ISO_COUNT(table));
}
