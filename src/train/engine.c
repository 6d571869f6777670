/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine: a model's compiled programs over one flat state and one transient arena. Compiling needs no planned
 * memory; the plan is checked against what the machine has before anything large is allocated.
 */
#include <string.h>

#include "train/vitals/vitals.h"

static iso_flat_options flat_options(const iso_engine *engine) {
  const iso_graph *graph = iso_engine_graph(engine);
  const bool streamed = engine->program && iso_graph_streams(graph);
  return (iso_flat_options){graph->flat_elements,
                            engine->options.compute,
                            engine->options.gradient,
                            engine->options.train,
                            streamed ? 0 : engine->options.workers,
                            engine->options.log,
                            engine->options.shared};
}

/* Bytes that the run may take, and who says so. */
static int64_t memory_limit(const iso_engine_options *options, const char **whose) {
  const int64_t available = options->share_bytes ? options->share_bytes : iso_memory_available();
  *whose = options->share_bytes ? "are free for each rank" : "are free";
  if (options->memory_limit_gb <= 0 || options->memory_limit_gb * 1e9 >= (double)available) return available;
  *whose = "are allowed by memory.limit_gb";
  return (int64_t)(options->memory_limit_gb * 1e9);
}

static int64_t data_bytes(const iso_engine_options *options) {
  return (int64_t)(options->data.slots + options->data.lanes + options->data.prefetch);
}

static bool streams(const iso_engine_options *options) {
  return options->train && options->workers == 1 && options->micros == 1 && !options->shared;
}

/* Of memory that the log's writes take. */
static int64_t log_bytes(const iso_engine_options *options, int64_t elements) {
  iso_wal_options how = options->log_how;
  how.elements = elements;
  how.gradient = options->gradient;
  return options->log ? (int64_t)iso_wal_output_bytes(&how) : 0;
}

/* Beside all the rest: what was asked for, or half of what is spare, as far as a snapshot can use it. */
static int64_t plan_staging(const iso_engine *engine) {
  const int64_t asked = engine->options.staging, whole = iso_streamer_whole(iso_engine_graph(engine)->flat_elements);
  if (!engine->options.train || asked == 0) return 0;
  if (asked > 0) return asked < whole ? asked : whole;
  const char *whose;
  const int64_t spare = (memory_limit(&engine->options, &whose) - iso_engine_bytes(engine)) / 2;
  return spare < 0 ? 0 : spare < whole ? spare : whole;
}

/* What the limit leaves for the training program's arena; at least 1. */
static int64_t arena_limit(const iso_engine_options *options, const iso_graph *graph) {
  const iso_flat_options flat = {
      graph->flat_elements, options->compute, options->gradient, true, streams(options) ? 0 : options->workers,
      options->log,         options->shared};
  const int64_t own = graph->space_bytes[ISO_SPACE_CONST] + graph->space_bytes[ISO_SPACE_OUTPUT] + 128;
  const char *whose;
  int64_t bytes = memory_limit(options, &whose) - (int64_t)iso_flat_bytes(&flat) - data_bytes(options);
  bytes -= options->evaluate_batch ? 2 * own : own;
  if (options->staging > 0) bytes -= options->staging;
  bytes -= log_bytes(options, graph->flat_elements);
  return bytes > 0 ? bytes : 1;
}

static iso_status compile_one(iso_engine *engine, int64_t batch, bool train, iso_program **program) {
  const iso_engine_options *options = &engine->options;
  const iso_build_options build = {ISO_BUILD_LOSS, batch, options->sequence, 0, options->segments};
  iso_graph *graph;
  ISO_TRY(iso_model_build(options->model, &build, engine->compilation, &graph));
  graph->name = train ? "train" : "evaluate";
  const bool dump = options->dump_after && (train || !options->train);
  const iso_compile_options compile = {.train = train,
                                       .compute = options->compute,
                                       .gradient = options->gradient,
                                       .threads = iso_device_threads(engine->device),
                                       .kernels = iso_device_kernels(engine->device),
                                       .stream = train && streams(options),
                                       .early = train && (options->log || options->shared),
                                       .arena_limit =
                                           train && !options->keep_activations ? arena_limit(options, graph) : 0,
                                       .fusion_off = options->fusion.off,
                                       .fusion_measure = train ? options->fusion.measure : 0,
                                       .race = iso_programs_race,
                                       .race_context = engine->device,
                                       .choices_of = engine->program ? engine->program->graph : NULL,
                                       .dump_after = dump ? options->dump_after : NULL,
                                       .dump = options->dump};
  return iso_compile(graph, &compile, program);
}

iso_status iso_engine_compile(const iso_device *device, const iso_engine_options *options, iso_engine *engine) {
  memset(engine, 0, sizeof *engine);
  if (options->sequence > options->model->positions)
    return iso_fail(ISO_ERR_CONFIG, "model: `data.sequence` = %lld is more than its max_position_embeddings = %lld",
                    (long long)options->sequence, (long long)options->model->positions);
  engine->options = *options;
  engine->device = device;
  engine->compilation = iso_arena_create();
  if (!engine->compilation) return iso_fail(ISO_ERR_MEMORY, "engine: no memory to compile the model");
  const double began = iso_clock_s();
  iso_status status = ISO_OK;
  if (options->train) status = compile_one(engine, options->micro, true, &engine->program);
  if (status == ISO_OK && options->evaluate_batch)
    status = compile_one(engine, options->evaluate_batch, false, &engine->evaluation);
  if (status != ISO_OK) {
    iso_engine_fini(engine);
    return status;
  }
  engine->compile_s = iso_clock_s() - began;
  const iso_program *const programs[2] = {engine->program, engine->evaluation};
  for (int i = 0; i < 2; i++)
    if (programs[i] && (size_t)programs[i]->arena_bytes > engine->arena_bytes)
      engine->arena_bytes = (size_t)programs[i]->arena_bytes;
  engine->staging_bytes = plan_staging(engine);
  return ISO_OK;
}

const iso_graph *iso_engine_graph(const iso_engine *engine) {
  return engine->program ? engine->program->graph : engine->evaluation->graph;
}

int64_t iso_engine_bytes(const iso_engine *engine) {
  const iso_flat_options flat = flat_options(engine);
  int64_t bytes = (int64_t)iso_flat_bytes(&flat) + (int64_t)engine->arena_bytes + data_bytes(&engine->options);
  bytes += engine->staging_bytes + log_bytes(&engine->options, iso_engine_graph(engine)->flat_elements);
  if (engine->program) bytes += (int64_t)iso_exec_bytes(engine->program);
  if (engine->evaluation) bytes += (int64_t)iso_exec_bytes(engine->evaluation);
  return bytes;
}

static void add_row(iso_plan_row *rows, int *count, const char *what, int64_t bytes) {
  rows[(*count)++] = (iso_plan_row){what, bytes};
}

static const char sums_row[] = "gradient sums (float32)";

static int64_t sums_buffers(const iso_flat_options *flat) {
  int64_t buffers = 1;
  for (int64_t workers = flat->virtual_workers; workers > 1; workers /= 2) buffers++;
  return buffers;
}

int iso_engine_plan_rows(const iso_engine *engine, iso_plan_row rows[ISO_PLAN_ROWS]) {
  const iso_flat_options flat = flat_options(engine);
  const iso_engine_options *options = &engine->options;
  const iso_ring_plan *data = &options->data;
  const int64_t elements = flat.elements;
  int count = 0;
  add_row(rows, &count, "master weights (float32)", elements * 4);
  if (flat.compute == ISO_BF16) add_row(rows, &count, "compute weights (bfloat16)", elements * 2);
  if (flat.train) {
    add_row(rows, &count, "moments (float32)", elements * 8);
    if (flat.virtual_workers) add_row(rows, &count, sums_row, elements * 4 * sums_buffers(&flat));
    add_row(rows, &count, flat.log ? "reduced gradients: one made, one logged" : "reduced gradient",
            elements * (int64_t)iso_dtype_size(flat.gradient) * (flat.log ? 2 : 1));
  }
  if (data->slots) add_row(rows, &count, "batch ring", (int64_t)data->slots);
  if (data->lanes) add_row(rows, &count, "data lanes: text and tokens", (int64_t)data->lanes);
  if (data->prefetch) add_row(rows, &count, "data prefetch: text ahead", (int64_t)data->prefetch);
  if (options->log) add_row(rows, &count, "step log: writes in flight", log_bytes(options, elements));
  if (engine->staging_bytes)
    add_row(rows, &count, options->staging < 0 ? "snapshot staging, at most" : "snapshot staging",
            engine->staging_bytes);
  add_row(rows, &count, "transient arena", (int64_t)engine->arena_bytes);
  return count;
}

static void print_row(iso_string *out, const char *what, int64_t bytes) {
  iso_string_printf(out, "%-44s %16lld bytes %10.3f MB\n", what, (long long)bytes, (double)bytes * 1e-6);
}

/* Stands before the reduced gradients. */
static void print_sums(const iso_flat_options *flat, iso_string *out) {
  const int64_t buffers = sums_buffers(flat);
  if (flat->virtual_workers == 0)
    iso_string_printf(out, "gradient sums: none kept, each is rounded as soon as it is complete\n");
  else
    iso_string_printf(out, "gradient sums: %lld buffer%s for %lld virtual worker%s\n", (long long)buffers,
                      iso_plural(buffers), (long long)flat->virtual_workers, iso_plural(flat->virtual_workers));
}

void iso_engine_plan(const iso_engine *engine, iso_string *out) {
  const iso_flat_options flat = flat_options(engine);
  iso_plan_row rows[ISO_PLAN_ROWS];
  const int count = iso_engine_plan_rows(engine, rows);
  for (int i = 0; i < count; i++) {
    const bool sums = rows[i].what == sums_row, reduced = strncmp(rows[i].what, "reduced", 7) == 0;
    if (sums || (reduced && flat.virtual_workers == 0)) print_sums(&flat, out);
    print_row(out, rows[i].what, rows[i].bytes);
  }
  const char *whose;
  const int64_t total = iso_engine_bytes(engine), limit = memory_limit(&engine->options, &whose);
  print_row(out, "total", total);
  if (flat.train && !flat.shared)
    iso_ranks_plan_rows(flat.elements, flat.compute, flat.gradient, flat.virtual_workers, flat.log, out);
  if (total > limit)
    iso_string_printf(out, "does not fit: %.3f GB %s; a run with this plan is refused\n", (double)limit * 1e-9, whose);
  iso_memory_print(engine->program ? engine->program : engine->evaluation, out);
}

/* Weights, moments and gradients alone, before time goes into compiling what cannot run. */
static iso_status check_flat_memory(const iso_engine_options *options) {
  const iso_flat_options flat = {
      iso_model_parameters(options->model),    options->compute, options->gradient, options->train,
      streams(options) ? 0 : options->workers, options->log,     options->shared};
  if (flat.elements < 0) return iso_fail(ISO_ERR_MEMORY, "memory: the model is too large even to be described");
  const char *whose;
  const int64_t needed = (int64_t)iso_flat_bytes(&flat), limit = memory_limit(options, &whose);
  if (needed <= limit) return ISO_OK;
  return iso_fail(
      ISO_ERR_MEMORY,
      "memory: weights, moments and gradients of %lld parameters need %.3f GB but %.3f GB %s; take a smaller "
      "model or lower parallel.virtual_workers",
      (long long)flat.elements, (double)needed * 1e-9, (double)limit * 1e-9, whose);
}

static iso_status check_memory(const iso_engine *engine) {
  const int64_t needed = iso_engine_bytes(engine);
  const char *whose;
  const int64_t limit = memory_limit(&engine->options, &whose);
  if (needed <= limit) return ISO_OK;
  const iso_flat_options flat = flat_options(engine);
  return iso_fail(ISO_ERR_MEMORY,
                  "memory: the run needs %.3f GB (%.3f GB weights, moments and gradients, %.3f GB transient arena) but "
                  "%.3f GB %s%s; lower batch.micro, "
                  "data.sequence or parallel.virtual_workers, or take a smaller model",
                  (double)needed * 1e-9, (double)iso_flat_bytes(&flat) * 1e-9, (double)engine->arena_bytes * 1e-9,
                  (double)limit * 1e-9, whose, engine->options.keep_activations ? ", and memory.recompute is off" : "");
}

/* A run that pays for its memory with time says so. */
static void note_recompute(const iso_engine *engine) {
  if (!engine->program || engine->program->graph->saved_bytes == 0) return;
  iso_string text = {0};
  iso_recompute_print(engine->program->graph, &text);
  if (text.length) iso_note("memory: %.*s (isotach inspect memory)", (int)strcspn(text.data, "\n"), text.data);
  iso_string_fini(&text);
}

iso_status iso_engine_init(const iso_device *device, const iso_engine_options *options, iso_engine *engine) {
  memset(engine, 0, sizeof *engine);
  ISO_TRY(check_flat_memory(options));
  ISO_TRY(iso_engine_compile(device, options, engine));
  iso_status status = check_memory(engine);
  if (status == ISO_OK) note_recompute(engine);
  const iso_flat_options flat = flat_options(engine);
  if (status == ISO_OK) status = iso_flat_init(&engine->flat, &flat);
  if (status == ISO_OK) {
    engine->arena = iso_slab_alloc(engine->arena_bytes ? engine->arena_bytes : 64, "transient arena");
    if (!engine->arena) status = ISO_ERR_MEMORY;
  }
  if (status == ISO_OK && engine->program)
    status = iso_exec_create(device, engine->program, &engine->flat, engine->arena, NULL, &engine->exec);
  if (status == ISO_OK && engine->evaluation)
    status = iso_exec_create(device, engine->evaluation, &engine->flat, engine->arena, NULL, &engine->evaluation_exec);
  if (status != ISO_OK) iso_engine_fini(engine);
  return status;
}

void iso_engine_fini(iso_engine *engine) {
  iso_exec_destroy(&engine->exec);
  iso_exec_destroy(&engine->evaluation_exec);
  iso_slab_free(engine->arena, engine->arena_bytes ? engine->arena_bytes : 64);
  iso_flat_fini(&engine->flat);
  iso_arena_destroy(&engine->compilation);
  memset(engine, 0, sizeof *engine);
}
