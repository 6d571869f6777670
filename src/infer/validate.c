/* SPDX-License-Identifier: Apache-2.0
 *
 * Our numbers against a reference case: logits and greedy tokens through the inference program; loss, gradients and
 * trajectory through the training program.
 *
 * A tensor's error is |ours - reference| / |reference| in the 2-norm. Bounds: docs/validation.md (float32: fixed ones;
 * bfloat16: 1.5 times the error of PyTorch's autocast plus 1e-3, for logits, loss and gradients; the rest is printed,
 * not judged).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "infer/infer.h"

typedef struct validation {
  iso_lm lm;
  iso_reference reference;
  iso_dtype compute;
  iso_validate_report *report;
} validation;

/* sqrt(sum of squares of the difference / sum of squares of b), leaving out [skip, skip_end). */
static double relative_error(const float *a, const float *b, int64_t count, double scale) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < count; i++) {
    const double d = (double)a[i] * scale - (double)b[i];
    difference += d * d;
    norm += (double)b[i] * (double)b[i];
  }
  if (!(difference >= 0) || !isfinite(difference)) return INFINITY;
  return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

/* Keeps the worst of a kind: the one nearest to, or farthest beyond, its bound. */
static void note(iso_validate_report *report, const char *kind, const char *tensor, double error, double bound) {
  iso_validate_row *row = NULL;
  for (int i = 0; i < report->count; i++)
    if (strcmp(report->rows[i].kind, kind) == 0) row = &report->rows[i];
  const double severity = bound > 0 ? error / bound : error;
  if (row) {
    const double before = row->bound > 0 ? row->error / row->bound : row->error;
    if (!(severity > before)) return;
  } else {
    row = &report->rows[report->count++];
    row->kind = kind;
  }
  snprintf(row->tensor, sizeof row->tensor, "%s", tensor);
  row->error = error;
  row->bound = bound;
  row->passed = bound < 0 || error <= bound;
}

static double bound_of(const validation *v, const char *kind, const char *name, double float32_bound) {
  if (v->compute == ISO_F32) return float32_bound;
  return 1.5 * iso_reference_autocast_error(&v->reference, kind, name) + 1e-3;
}

/* Judged in float32 only. */
static double float32_only(const validation *v, double bound) {
  return v->compute == ISO_F32 ? bound : -1;
}

static iso_status iota_positions(validation *v, int64_t batch, int32_t **out) {
  const int64_t sequence = v->reference.sequence;
  *out = iso_arena_alloc(v->reference.arena, sizeof(int32_t) * (size_t)(batch * sequence));
  if (!*out) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for positions", v->reference.folder);
  for (int64_t i = 0; i < batch * sequence; i++) (*out)[i] = (int32_t)(i % sequence);
  return ISO_OK;
}

/* Position t is scored against labels[t + 1]; the last of a sequence or segment against nothing. Returns how many are.
 */
static iso_status shift_labels(validation *v, const int32_t *labels, const int32_t *segments, int64_t batch,
                               int32_t **out, int64_t *scored) {
  const int64_t sequence = v->reference.sequence;
  *out = iso_arena_alloc(v->reference.arena, sizeof(int32_t) * (size_t)(batch * sequence));
  if (!*out) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for labels", v->reference.folder);
  *scored = 0;
  for (int64_t i = 0; i < batch * sequence; i++) {
    const bool last = i % sequence == sequence - 1 || (segments && segments[i + 1] != segments[i]);
    (*out)[i] = last ? -100 : labels[i + 1];
    *scored += (*out)[i] != -100;
  }
  return ISO_OK;
}

static iso_status check_logits(validation *v) {
  iso_reference *r = &v->reference;
  const iso_build_options build = {ISO_BUILD_LOGITS, r->batch, r->sequence, 0, r->segment_ids != NULL};
  iso_graph *graph;
  ISO_TRY(iso_model_build(&v->lm.model, &build, r->arena, &graph));
  const iso_compile_options options = {.compute = v->compute,
                                       .gradient = v->compute,
                                       .threads = iso_device_threads(v->lm.device),
                                       .kernels = iso_device_kernels(v->lm.device)};
  iso_program *program;
  ISO_TRY(iso_compile(graph, &options, &program));
  iso_flat flat;
  const iso_flat_options flat_options = {graph->flat_elements, v->compute, v->compute, false, 1, false, NULL};
  ISO_TRY(iso_flat_init(&flat, &flat_options));
  memcpy(flat.master, v->lm.master, v->lm.master_bytes);
  iso_flat_refresh(&flat, v->lm.device);
  const size_t arena_bytes = (size_t)program->arena_bytes + 64;
  void *arena = iso_slab_alloc(arena_bytes, "inference arena");
  iso_exec *exec = NULL;
  iso_status status = arena ? iso_exec_create(v->lm.device, program, &flat, arena, NULL, &exec) : ISO_ERR_MEMORY;
  int32_t *positions = r->position_ids;
  if (status == ISO_OK && !positions) status = iota_positions(v, r->batch, &positions);
  if (status == ISO_OK) {
    const iso_inputs inputs = {.tokens = r->input_ids, .positions = positions, .segments = r->segment_ids};
    iso_exec_forward(exec, &inputs, 0);
    const double error =
        relative_error(iso_exec_output(exec, "logits"), r->logits, r->batch * r->sequence * v->lm.model.vocabulary, 1);
    note(v->report, "logits", "logits", error, bound_of(v, "logits", NULL, 1e-5));
  }
  iso_exec_destroy(&exec);
  iso_slab_free(arena, arena_bytes);
  iso_flat_fini(&flat);
  return status;
}

static iso_status open_engine(validation *v, int64_t batch, bool segments, iso_engine *engine) {
  const iso_engine_options options = {.model = &v->lm.model,
                                      .compute = v->compute,
                                      .gradient = v->compute,
                                      .workers = 1,
                                      .micro = batch,
                                      .sequence = v->reference.sequence,
                                      .train = true,
                                      .segments = segments};
  ISO_TRY(iso_engine_init(v->lm.device, &options, engine));
  memcpy(engine->flat.master, v->lm.master, v->lm.master_bytes);
  iso_flat_refresh(&engine->flat, v->lm.device);
  return ISO_OK;
}

/* Compares one parameter with a tensor of the case. The key part of GPT-2's c_attn.bias has a gradient of exactly zero
 * in exact arithmetic, so what the reference holds there is noise: it is left out. */
static iso_status compare(validation *v, const iso_parameter *parameter, const float *ours, double scale,
                          const char *prefix, double *error) {
  iso_reference *r = &v->reference;
  const iso_safetensor *tensor = iso_reference_tensor(r, prefix, parameter->name);
  if (!tensor) return iso_fail(ISO_ERR_FORMAT, "%s: case has no %s%s", r->folder, prefix, parameter->name);
  if (tensor->elements != parameter->elements)
    return iso_fail(ISO_ERR_MISMATCH, "%s: %s has %lld values, the model's parameter %lld", r->folder, tensor->name,
                    (long long)tensor->elements, (long long)parameter->elements);
  float *reference = malloc((size_t)tensor->elements * sizeof(float) + 16);
  float *mine = malloc((size_t)tensor->elements * sizeof(float) + 16);
  iso_status status = reference && mine ? iso_safetensor_to_f32(tensor, reference)
                                        : iso_fail(ISO_ERR_MEMORY, "%s: no memory for %s", r->folder, tensor->name);
  if (status == ISO_OK) {
    memcpy(mine, ours, (size_t)tensor->elements * sizeof(float));
    const size_t length = strlen(parameter->name);
    if (length >= 11 && strcmp(parameter->name + length - 11, "c_attn.bias") == 0) {
      const int64_t width = parameter->elements / 3;
      memset(reference + width, 0, (size_t)width * sizeof(float));
      memset(mine + width, 0, (size_t)width * sizeof(float));
    }
    *error = relative_error(mine, reference, parameter->elements, scale);
  }
  free(reference);
  free(mine);
  return status;
}

static iso_status compare_gradients(validation *v, const iso_engine *engine, int64_t scored) {
  const iso_graph *graph = iso_engine_graph(engine);
  for (int i = 0; i < graph->parameter_count; i++) {
    const iso_parameter *parameter = &graph->parameters[i];
    double error = 0;
    ISO_TRY(compare(v, parameter, engine->flat.gradients + parameter->offset, 1.0 / (double)scored, "grad.", &error));
    note(v->report, "gradients", parameter->name, error, bound_of(v, "gradients", parameter->name, 1e-5));
  }
  return ISO_OK;
}

static iso_status check_gradients(validation *v) {
  iso_reference *r = &v->reference;
  iso_engine engine;
  ISO_TRY(open_engine(v, r->batch, r->segment_ids != NULL, &engine));
  int32_t *labels = NULL, *positions = r->position_ids;
  iso_step step = {.workers = 1, .micros = 1};
  iso_status status = shift_labels(v, r->labels, r->segment_ids, r->batch, &labels, &step.scored);
  if (status == ISO_OK && !positions) status = iota_positions(v, r->batch, &positions);
  if (status == ISO_OK && step.scored == 0) status = iso_fail(ISO_ERR_FORMAT, "%s: labels score nothing", r->folder);
  if (status == ISO_OK) {
    step.inputs = (iso_inputs){r->input_ids, labels, positions, r->segment_ids};
    iso_exec_gradients(engine.exec, &step);
    const double loss = step.loss_sum / (double)step.scored;
    note(v->report, "loss", "loss", fabs(loss - (double)r->loss[0]) / fabs((double)r->loss[0]),
         bound_of(v, "loss", NULL, 1e-6));
    status = compare_gradients(v, &engine, step.scored);
  }
  iso_engine_fini(&engine);
  return status;
}

static iso_status decay_ranges(validation *v, const iso_graph *graph, int64_t **ranges, int64_t *count) {
  *ranges = iso_arena_alloc(v->reference.arena, sizeof(int64_t) * 2 * (size_t)(graph->parameter_count + 1));
  if (!*ranges) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for decay ranges", v->reference.folder);
  *count = 0;
  for (int i = 0; i < graph->parameter_count; i++) {
    const iso_parameter *parameter = &graph->parameters[i];
    if (!iso_reference_decays(&v->reference, parameter->name)) continue;
    (*ranges)[2 * *count] = parameter->offset;
    (*ranges)[2 * *count + 1] = parameter->offset + parameter->elements;
    ++*count;
  }
  return ISO_OK;
}

static iso_status train_steps(validation *v, iso_engine *engine) {
  iso_reference *r = &v->reference;
  const int64_t rows = r->train_batch * r->sequence;
  iso_step step = {.workers = 1, .micros = 1};
  ISO_TRY(decay_ranges(v, iso_engine_graph(engine), (int64_t **)&step.decay_ranges, &step.decay_count));
  int32_t *positions;
  ISO_TRY(iota_positions(v, r->train_batch, &positions));
  for (int64_t t = 1; t <= r->steps; t++) {
    const int32_t *ids = r->train_ids + (t - 1) * rows;
    int32_t *labels;
    ISO_TRY(shift_labels(v, ids, NULL, r->train_batch, &labels, &step.scored));
    step.inputs = (iso_inputs){ids, labels, positions, NULL};
    step.lr = (float)r->lr[t - 1];
    step.beta1 = (float)r->beta1;
    step.beta2 = (float)r->beta2;
    step.eps = (float)r->eps;
    step.weight_decay = (float)r->weight_decay;
    step.clip_norm = (float)r->clip_norm;
    step.bias1 = (float)(1 - iso_pow_int(r->beta1, t));
    step.bias2 = (float)(1 - iso_pow_int(r->beta2, t));
    iso_exec_step(engine->exec, &step);
    char name[32];
    snprintf(name, sizeof name, "step %lld", (long long)t);
    const double loss = step.loss_sum / (double)step.scored, expected = r->train_loss[t - 1],
                 norm = r->train_norm[t - 1];
    note(v->report, "training loss", name, fabs(loss - expected) / fabs(expected), float32_only(v, 1e-5));
    note(v->report, "gradient norm", name, fabs(step.norm - norm) / fabs(norm), float32_only(v, 1e-5));
  }
  return ISO_OK;
}

static iso_status check_trajectory(validation *v) {
  iso_engine engine;
  ISO_TRY(open_engine(v, v->reference.train_batch, false, &engine));
  iso_status status = train_steps(v, &engine);
  const iso_graph *graph = iso_engine_graph(&engine);
  for (int i = 0; i < graph->parameter_count && status == ISO_OK; i++) {
    double error = 0;
    status = compare(v, &graph->parameters[i], engine.flat.master + graph->parameters[i].offset, 1, "final.", &error);
    if (status == ISO_OK) note(v->report, "final weights", graph->parameters[i].name, error, float32_only(v, 1e-4));
  }
  iso_engine_fini(&engine);
  return status;
}

static iso_status check_greedy(validation *v) {
  const iso_reference *r = &v->reference;
  int32_t *tokens = iso_arena_alloc(r->arena, sizeof(int32_t) * (size_t)(r->greedy_count + 1));
  if (!tokens) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for tokens", r->folder);
  const iso_generate_options options = {.sampling = {.top_p = 1}, .max_tokens = r->greedy_count, .compute = v->compute};
  int64_t count;
  ISO_TRY(iso_generate(&v->lm, r->prompt, r->prompt_count, &options, tokens, &count));
  int64_t same = 0;
  while (same < count && tokens[same] == r->greedy[same]) same++;
  char name[64] = "all equal";
  if (same < r->greedy_count) snprintf(name, sizeof name, "differs from token %lld on", (long long)same);
  note(v->report, "greedy tokens", name, (double)(r->greedy_count - same), float32_only(v, 0));
  return ISO_OK;
}

iso_status iso_validate(const char *model, const char *reference, iso_dtype compute, int threads,
                        iso_validate_report *report) {
  memset(report, 0, sizeof *report);
  validation v = {.compute = compute, .report = report};
  ISO_TRY(iso_lm_open(model, threads, &v.lm));
  iso_status status = iso_reference_open(reference, v.lm.model.vocabulary, &v.reference);
  if (status == ISO_OK) {
    status = check_logits(&v);
    if (status == ISO_OK) status = check_gradients(&v);
    if (status == ISO_OK) status = check_trajectory(&v);
    if (status == ISO_OK) status = check_greedy(&v);
    iso_reference_close(&v.reference);
  }
  iso_lm_close(&v.lm);
  report->passed = status == ISO_OK;
  for (int i = 0; i < report->count; i++) report->passed = report->passed && report->rows[i].passed;
  return status;
}
