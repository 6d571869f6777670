/* SPDX-License-Identifier: Apache-2.0
 *
 * The step's program as the dashboard draws it: a graph of instructions, told apart by pass and layer, and the memory
 * that was planned for them. All of it is known when the run is compiled.
 *
 *   threads, memory {rows: [{what, bytes}], total, arena, peak, recompute}
 *   instructions [{op, pass, layer, meets, in, out: [operand], workspace, attributes, accumulate, flop, bytes, from}]
 *                operand: {name, type, shape, space, offset, bytes: of the shape, of a view these alone}; from:
 *                instructions that made what it reads
 *   buffers      [[offset, bytes, first, last, name, op]] of the transient arena
 *
 * What an instruction reads of the arena was made by the one whose output it names, else (a view) by those that wrote
 * the same bytes before. An instruction belongs to the layer of the parameter that it reads or whose gradient it
 * writes; one without belongs to that of the one before. Whatever the shape of the program, the backward pass is what
 * stands behind the loss and is no part of the update: gradients are made from the loss alone, and what is made again
 * for them (passes/recompute.c) stands there too.
 */
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

enum { MOST_SOURCES = 8, NAME = 64 };

typedef struct sketch {
  const iso_program *program;
  int *maker;       /* [tensors]: the instruction that has it as an output; -1: none */
  int *parameter;   /* [tensors]: the parameter that it is, or is the gradient of; -1: none */
  char layer[NAME]; /* of the last instruction */
  bool backward;    /* the loss is behind */
  iso_string *out;
} sketch;

/* ---- where an instruction stands ---- */

static int parameter_of(const sketch *s, const iso_operand *operand) {
  const iso_graph *graph = s->program->graph;
  if (!operand->present || operand->value < 0) return -1;
  if (s->parameter[operand->value] >= 0) return s->parameter[operand->value];
  if (operand->space != ISO_SPACE_WEIGHT && operand->space != ISO_SPACE_GRAD) return -1;
  const int64_t element = operand->offset / (int64_t)iso_dtype_size(operand->dtype);
  for (int p = 0; p < graph->parameter_count; p++)
    if (graph->parameters[p].offset == element) return p;
  return -1;
}

static void find_layer(sketch *s, const iso_instruction *in) {
  int found = -1;
  for (int i = 0; i < in->output_count && found < 0; i++) found = parameter_of(s, &in->outputs[i]);
  for (int i = in->input_count - 1; i >= 0 && found < 0; i--) found = parameter_of(s, &in->inputs[i]);
  if (in->op == ISO_OP_LINEAR_CROSS_ENTROPY || in->op == ISO_OP_LM_HEAD) {
    snprintf(s->layer, sizeof s->layer, "loss");
  } else if (in->phase == ISO_PHASE_UPDATE) {
    snprintf(s->layer, sizeof s->layer, "optimizer");
  } else if (found >= 0) {
    const char *begin;
    const size_t length = iso_layer_name(s->program->graph->parameters[found].name, &begin);
    snprintf(s->layer, sizeof s->layer, "%.*s", (int)length, begin);
  }
}

static const char *find_pass(sketch *s, const iso_instruction *in) {
  const bool rounds = in->op == ISO_OP_GRAD_ROUND || in->op == ISO_OP_GRAD_ROUND_PART;
  if (in->phase == ISO_PHASE_UPDATE || rounds) return "update";
  if (s->backward) return "backward";
  s->backward = in->op == ISO_OP_LINEAR_CROSS_ENTROPY;
  return "forward";
}

/* ---- what it reads ---- */

static bool overlap(const iso_operand *a, const iso_operand *b) {
  return a->present && b->present && a->space == b->space && a->offset < b->offset + b->bytes &&
         b->offset < a->offset + a->bytes;
}

static void add_source(int *sources, int *count, int source) {
  for (int i = 0; i < *count; i++)
    if (sources[i] == source) return;
  if (*count < MOST_SOURCES) sources[(*count)++] = source;
}

/* The last ones before that wrote some of it, of the buffer's lifetime; of flat state only where whole tensors are
 * written and read. */
static void find_writers(const sketch *s, int index, const iso_operand *read, int *sources, int *count) {
  const bool arena = read->space == ISO_SPACE_TRANSIENT && read->buffer >= 0;
  const bool state =
      read->space == ISO_SPACE_GRAD || read->space == ISO_SPACE_SQUARES || read->space == ISO_SPACE_SCALAR;
  if (!arena && !state) return;
  const int first = arena ? s->program->buffers[read->buffer].first : 0;
  for (int i = index - 1, found = 0; i >= first && found < 3; i--) {
    const iso_instruction *in = &s->program->instructions[i];
    bool writes = false;
    for (int k = 0; k < in->output_count; k++)
      writes = writes || (overlap(read, &in->outputs[k]) && (!arena || in->outputs[k].buffer == read->buffer));
    if (!writes) continue;
    add_source(sources, count, i);
    found++;
  }
}

static void put_sources(const sketch *s, int index) {
  const iso_instruction *in = &s->program->instructions[index];
  int sources[MOST_SOURCES], count = 0;
  for (int i = 0; i < in->input_count; i++) {
    const iso_operand *read = &in->inputs[i];
    const int maker = read->present && read->value >= 0 ? s->maker[read->value] : -1;
    if (maker >= 0 && maker < index)
      add_source(sources, &count, maker);
    else if (read->present)
      find_writers(s, index, read, sources, &count);
  }
  iso_string_printf(s->out, ", \"from\": [");
  for (int i = 0; i < count; i++) iso_string_printf(s->out, "%s%d", i ? "," : "", sources[i]);
  iso_string_printf(s->out, "]");
}

/* ---- what is said of it ---- */

static void put_operands(const sketch *s, const char *name, const iso_operand *operands, int count) {
  iso_string *out = s->out;
  iso_string_printf(out, ", \"%s\": [", name);
  for (int i = 0, some = 0; i < count; i++) {
    const iso_operand *o = &operands[i];
    if (!o->present) continue;
    iso_string_printf(out, some++ ? ", {" : "{");
    iso_json_text(out, "name", o->value >= 0 ? s->program->graph->tensors[o->value].name : "workspace");
    iso_string_printf(out, ", \"type\": \"%s\", \"shape\": [", iso_dtype_name(o->dtype));
    int64_t bytes = (int64_t)iso_dtype_size(o->dtype);
    for (int d = 0; d < o->rank; bytes *= o->shape[d++])
      iso_string_printf(out, "%s%lld", d ? "," : "", (long long)o->shape[d]);
    iso_string_printf(out, "], \"space\": \"%s\", \"offset\": %lld, \"bytes\": %lld}", iso_space_name(o->space),
                      (long long)o->offset, (long long)bytes);
  }
  iso_string_printf(out, "]");
}

static void put_instruction(sketch *s, int index) {
  static const char *const sums[] = {"never", "micro", "always"};
  const iso_instruction *in = &s->program->instructions[index];
  iso_string attributes = {0}, *out = s->out;
  bool present[ISO_ATTR_COUNT];
  for (int key = 0; key < ISO_ATTR_COUNT; key++) present[key] = iso_op_has_attribute(in->op, (iso_attribute)key);
  iso_attributes_print(in->attributes, present, &attributes);
  find_layer(s, in);
  const char *pass = find_pass(s, in);
  iso_string_printf(out, "%s\n{\"op\": \"%s\", \"pass\": \"%s\", ", index ? "," : "", iso_op_get(in->op)->text, pass);
  iso_json_text(out, "layer", s->layer);
  iso_string_printf(out, ", \"meets\": %s", in->barrier ? "true" : "false");
  put_operands(s, "in", in->inputs, in->input_count);
  put_operands(s, "out", in->outputs, in->output_count);
  iso_string_printf(out, ", \"workspace\": %lld, ", in->scratch.present ? (long long)in->scratch.bytes : 0LL);
  iso_json_text(out, "attributes", attributes.data ? attributes.data : "");
  iso_string_printf(out, ", \"accumulate\": \"%s\", \"flop\": %lld, \"bytes\": %lld", sums[in->accumulate],
                    (long long)in->flop, (long long)in->bytes);
  put_sources(s, index);
  iso_string_append(out, "}", 1);
  iso_string_fini(&attributes);
}

static void put_buffers(const sketch *s) {
  const iso_program *program = s->program;
  iso_string_printf(s->out, "],\n\"buffers\": [");
  for (int i = 0; i < program->buffer_count; i++) {
    const iso_buffer *b = &program->buffers[i];
    const int maker = b->value >= 0 ? s->maker[b->value] : -1;
    const char *name = b->value >= 0 ? program->graph->tensors[b->value].name : "workspace";
    iso_string_printf(s->out, "%s[%lld,%lld,%d,%d,", i ? ",\n" : "", (long long)b->offset, (long long)b->bytes,
                      b->first, b->last);
    iso_json_quote(s->out, name, strlen(name));
    iso_string_printf(s->out, ",\"%s\"]", iso_op_get(program->instructions[maker >= 0 ? maker : b->first].op)->text);
  }
  iso_string_printf(s->out, "]");
}

static void put_memory(const iso_engine *engine, iso_string *out) {
  iso_plan_row rows[ISO_PLAN_ROWS];
  const int count = iso_engine_plan_rows(engine, rows);
  iso_string_printf(out, "\"memory\": {\"rows\": [");
  for (int i = 0; i < count; i++) {
    iso_string_printf(out, i ? ", {" : "{");
    iso_json_text(out, "what", rows[i].what);
    iso_string_printf(out, ", \"bytes\": %lld}", (long long)rows[i].bytes);
  }
  iso_string_printf(out, "], \"total\": %lld, \"arena\": %lld, \"peak\": %lld, \"saved\": %lld}",
                    (long long)iso_engine_bytes(engine), (long long)engine->program->arena_bytes,
                    (long long)engine->program->live_peak_bytes, (long long)engine->program->graph->saved_bytes);
}

/* Tensors by who makes them, and by parameter. */
static void look_up(sketch *s) {
  const iso_program *program = s->program;
  const iso_graph *graph = program->graph;
  for (int i = 0; i < graph->tensor_count; i++) s->maker[i] = s->parameter[i] = -1;
  for (int p = 0; p < graph->parameter_count; p++) {
    s->parameter[graph->parameters[p].tensor] = p;
    if (graph->parameters[p].gradient >= 0) s->parameter[graph->parameters[p].gradient] = p;
  }
  for (int i = 0; i < program->instruction_count; i++) {
    const iso_instruction *in = &program->instructions[i];
    for (int k = 0; k < in->output_count; k++) {
      const iso_operand *o = &in->outputs[k];
      if (o->present && o->value >= 0 && s->maker[o->value] < 0 && !iso_space_is_state(o->space))
        s->maker[o->value] = i;
    }
  }
}

void iso_program_describe(const iso_engine *engine, iso_string *out) {
  const iso_program *program = engine->program;
  const size_t tensors = (size_t)program->graph->tensor_count;
  sketch s = {.program = program, .layer = "input", .out = out};
  s.maker = calloc(2 * tensors + 1, sizeof *s.maker);
  iso_string_printf(out, "{\"threads\": %d, ", program->threads);
  put_memory(engine, out);
  iso_string_printf(out, ",\n\"instructions\": [");
  if (s.maker) {
    s.parameter = s.maker + tensors;
    look_up(&s);
    for (int i = 0; i < program->instruction_count; i++) put_instruction(&s, i);
    put_buffers(&s);
  } else {
    iso_string_printf(out, "], \"buffers\": []");
  }
  iso_string_printf(out, "}\n");
  free(s.maker);
}
