/* SPDX-License-Identifier: Apache-2.0
 *
 * lower: from a scheduled graph to instructions: kernel calls with operands in memory.
 *
 * Each node becomes one instruction, but: split and concat become copies of the parts that views.c could not place
 * (usually none), and adds in GRAD become accumulation. Operands in the arena are given relative to their buffer;
 * memplan adds the rest.
 *
 * Invariants
 *  1. Instructions stand in node order, MICRO before UPDATE.
 *  2. Of the instructions that write one parameter's gradient the first accumulates over micro-batches (MICRO), the
 * others add (ALWAYS); an instruction's gradient outputs agree.
 *  3. A copied part has the part as its value on both sides: the bytes are the same.
 *  4. Workspace is a buffer that lives for its instruction only.
 *  5. In a graph that streams, all contributions to a parameter's gradient have one buffer in the arena, from the first
 *     of them to the grad_round_part.
 */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

typedef struct lowering {
  const iso_graph *graph;
  iso_program *program;
  iso_place *places;
  int *buffer;   /* per root tensor: its buffer, -1: none yet */
  bool *written; /* per parameter: its gradient has a contribution */
  bool streams;  /* GRAD tensors have buffers */
  int capacity;  /* of program->instructions */
} lowering;

static int64_t view_offset(const iso_tensor *tensor, int64_t column) {
  int64_t unit = (int64_t)iso_dtype_size(tensor->dtype);
  return (iso_space_is_flat(tensor->space) ? tensor->offset * unit : tensor->offset) + column * unit;
}

/* The parts that linear_joint_dw makes are one matrix: the tensor of the first one, where part `id` begins in it, and
 * the bytes of all. False: id is no such part. */
static bool joint_part(const iso_graph *graph, iso_id id, iso_id *first, int64_t *offset, int64_t *bytes) {
  const int producer = graph->tensors[id].producer;
  if (producer < 0 || graph->nodes[producer].op != ISO_OP_LINEAR_JOINT_DW) return false;
  const iso_node *node = &graph->nodes[producer];
  *first = node->outputs[0];
  *bytes = 0;
  for (int i = 0; i < node->output_count; i++) {
    if (node->outputs[i] < 0) continue;
    if (node->outputs[i] == id) *offset = *bytes;
    *bytes += iso_tensor_bytes(&graph->tensors[node->outputs[i]]);
  }
  return true;
}

/* Buffer of a root in the arena, made at its first mention; its lifetime grows to instruction `at`. */
static int touch_buffer(lowering *l, iso_id root, int at) {
  if (l->buffer[root] < 0) {
    l->buffer[root] = l->program->buffer_count;
    l->program->buffers[l->program->buffer_count++] =
        (iso_buffer){.bytes = iso_tensor_bytes(&l->graph->tensors[root]), .first = at, .last = at, .value = root};
  }
  iso_buffer *buffer = &l->program->buffers[l->buffer[root]];
  buffer->last = at;
  return l->buffer[root];
}

/* Index of the parameter that begins at this element, by bisection. */
int iso_parameter_at(const iso_graph *graph, int64_t element) {
  int low = 0, high = graph->parameter_count;
  while (low < high) {
    int middle = (low + high) / 2;
    if (graph->parameters[middle].offset < element) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

bool iso_graph_streams(const iso_graph *graph) {
  for (int n = 0; n < graph->node_count; n++) {
    if (graph->nodes[n].op == ISO_OP_GRAD_ROUND_PART) return !graph->keeps_sums;
  }
  return false;
}

/* `shape_of` within the storage of tensor id, `column` columns in: the operand whose value is `value`. */
static iso_operand operand(lowering *l, iso_id id, iso_id value, int64_t column, int at) {
  const iso_tensor *tensor = &l->graph->tensors[value];
  int64_t first = 0, unit = (int64_t)iso_dtype_size(tensor->dtype);
  iso_id root_id = iso_place_root(l->places, id, &first);
  const iso_tensor *root = &l->graph->tensors[root_id];
  iso_operand o = {.space = root->space,
                   .offset = view_offset(root, first + column),
                   .dtype = tensor->dtype,
                   .rank = tensor->rank,
                   .value = value,
                   .buffer = -1,
                   .present = true};
  memcpy(o.shape, tensor->shape, sizeof o.shape);
  o.ld =
      tensor->rank >= 2 && root->rank == tensor->rank ? root->shape[root->rank - 1] : tensor->shape[tensor->rank - 1];
  o.bytes = iso_tensor_bytes(tensor);
  if (tensor->rank == 2) o.bytes = ((tensor->shape[0] - 1) * o.ld + tensor->shape[1]) * unit;
  if (l->streams && root->space == ISO_SPACE_GRAD) {
    root_id = l->graph->parameters[iso_parameter_at(l->graph, root->offset)].gradient;
    o.space = ISO_SPACE_TRANSIENT;
  }
  if (o.space == ISO_SPACE_TRANSIENT) {
    int64_t offset = 0, bytes = 0;
    const bool part = joint_part(l->graph, root_id, &root_id, &offset, &bytes);
    o.buffer = touch_buffer(l, root_id, at);
    if (part) l->program->buffers[o.buffer].bytes = bytes;
    o.offset = offset + (first + column) * unit;
  }
  return o;
}

static iso_instruction *append(lowering *l, iso_op op, int phase) {
  iso_program *program = l->program;
  if (program->instruction_count == l->capacity) {
    int capacity = l->capacity * 2 + 64;
    iso_instruction *larger = iso_arena_alloc(l->graph->arena, (size_t)capacity * sizeof *larger);
    if (larger == NULL) return NULL;
    if (program->instruction_count > 0) {
      memcpy(larger, program->instructions, (size_t)program->instruction_count * sizeof *larger);
    }
    program->instructions = larger;
    l->capacity = capacity;
  }
  iso_instruction *instruction = &program->instructions[program->instruction_count++];
  *instruction = (iso_instruction){.op = op, .phase = phase};
  program->phase_begin[phase + 1] = program->instruction_count;
  return instruction;
}

/* One part of a split (`out` = it) or concat (`in` = it) that could not become a view. */
static iso_status copy_part(lowering *l, const iso_node *node, iso_id from, int64_t from_column, iso_id to,
                            int64_t to_column, iso_id part) {
  int at = l->program->instruction_count;
  iso_instruction *copy = append(l, ISO_OP_CAST, node->phase);
  if (copy == NULL) return iso_fail(ISO_ERR_MEMORY, "lower: no memory");
  copy->input_count = copy->output_count = 1;
  copy->inputs[0] = operand(l, from, part, from_column, at);
  copy->outputs[0] = operand(l, to, part, to_column, at);
  copy->bytes = 2 * iso_tensor_bytes(&l->graph->tensors[part]);
  return ISO_OK;
}

static iso_status lower_split(lowering *l, const iso_node *node) {
  int64_t column = 0;
  for (int i = 0; i < node->output_count; i++) {
    iso_id part = node->outputs[i];
    if (part < 0) continue;
    if (l->places[part].parent != node->inputs[0]) {
      ISO_TRY(copy_part(l, node, node->inputs[0], column, part, 0, part));
    }
    column += l->graph->tensors[part].shape[1];
  }
  return ISO_OK;
}

static iso_status lower_concat(lowering *l, const iso_node *node) {
  int64_t column = 0;
  iso_id whole = node->outputs[0];
  for (int i = 0; i < node->input_count; i++) {
    iso_id part = node->inputs[i];
    if (part < 0) continue;
    bool placed = l->places[part].parent == whole && l->places[part].column == column;
    if (!placed) ISO_TRY(copy_part(l, node, part, 0, whole, column, part));
    column += l->graph->tensors[part].shape[1];
  }
  return ISO_OK;
}

/* Workspace the kernel of this instruction asks for. */
static size_t scratch_bytes(const iso_instruction *i, int threads) {
  const int64_t *x = i->inputs[0].shape, *w = i->inputs[1].shape, *y = i->outputs[0].shape;
  int64_t heads = (int64_t)i->attributes[ISO_ATTR_HEADS], kv_heads = (int64_t)i->attributes[ISO_ATTR_KV_HEADS];
  int64_t batch = (int64_t)i->attributes[ISO_ATTR_BATCH];
  iso_dtype type = i->inputs[0].dtype;
  switch (i->op) {
  case ISO_OP_LINEAR:
  case ISO_OP_LINEAR_JOINT:
  case ISO_OP_LM_HEAD:
  case ISO_OP_LINEAR_DX:
  case ISO_OP_LINEAR_JOINT_DX:
  case ISO_OP_LINEAR_GELU:
  case ISO_OP_LINEAR_ROPE:
  case ISO_OP_LINEAR_JOINT_ROPE:
  case ISO_OP_LINEAR_JOINT_NORM_ROPE:
    return iso_gemm_scratch(x[0], y[1], x[1], type, threads);
  case ISO_OP_LINEAR_JOINT_SWIGLU:
    return iso_gemm_paired_scratch(x[0], 2 * y[1], x[1], type, threads);
  case ISO_OP_LINEAR_DW:
    return iso_gemm_scratch(y[0], y[1], x[0], type, threads);
  case ISO_OP_LINEAR_JOINT_DW:
    return iso_gemm_scratch(x[1], y[1], x[0], type, threads);
  case ISO_OP_BIAS_GRAD:
    return iso_column_sum_scratch(x[0], x[1], threads);
  case ISO_OP_RMSNORM_GRAD:
  case ISO_OP_LAYERNORM_GRAD:
    return iso_norm_grad_scratch(x[0], x[1], i->inputs[2].shape[0], threads);
  case ISO_OP_RMSNORM_GRAD_ADD:
  case ISO_OP_LAYERNORM_GRAD_ADD:
    return iso_norm_grad_scratch(x[0], x[1], i->inputs[3].shape[0], threads);
  case ISO_OP_ATTENTION:
    return iso_attention_scratch(x[0] / batch, x[0] / batch, x[1] / heads, threads);
  case ISO_OP_ATTENTION_CACHED:
    return iso_attention_scratch(x[0], i->inputs[3].shape[0], x[1] / heads, threads);
  case ISO_OP_ATTENTION_GRAD:
    return iso_attention_grad_scratch(batch, x[0] / batch, heads, kv_heads, x[1] / heads, threads);
  case ISO_OP_GRAD_SQUARES: /* a block as sums and as what it rounds to */
    return (size_t)threads * ISO_NORM_BLOCK * (sizeof(float) + iso_dtype_size(type));
  case ISO_OP_LINEAR_CROSS_ENTROPY:
    return iso_linear_cross_entropy_scratch(x[0], x[1], w[0], type, threads);
  default:
    return 0;
  }
}

static void add_scratch(lowering *l, iso_instruction *instruction, int at) {
  size_t bytes = scratch_bytes(instruction, l->program->threads);
  if (bytes == 0) return;
  iso_program *program = l->program;
  instruction->scratch = (iso_operand){.space = ISO_SPACE_TRANSIENT,
                                       .dtype = ISO_U8,
                                       .rank = 1,
                                       .shape = {(int64_t)bytes},
                                       .ld = (int64_t)bytes,
                                       .bytes = (int64_t)bytes,
                                       .value = -1,
                                       .buffer = program->buffer_count,
                                       .present = true};
  program->buffers[program->buffer_count++] =
      (iso_buffer){.bytes = (int64_t)bytes, .first = at, .last = at, .value = -1};
}

static bool accumulates(iso_op op, int output) {
  switch (op) {
  case ISO_OP_EMBEDDING_GRAD:
  case ISO_OP_LINEAR_DW:
  case ISO_OP_BIAS_GRAD:
    return output == 0;
  case ISO_OP_RMSNORM_GRAD:
  case ISO_OP_LAYERNORM_GRAD:
    return output >= 1;
  case ISO_OP_RMSNORM_GRAD_ADD:
  case ISO_OP_LAYERNORM_GRAD_ADD:
    return output >= 1 && output < (op == ISO_OP_RMSNORM_GRAD_ADD ? 2 : 3);
  case ISO_OP_LINEAR_JOINT_DW:
    return true;
  case ISO_OP_LINEAR_CROSS_ENTROPY:
    return output == 2;
  default:
    return false;
  }
}

/* Decides how an instruction's gradient outputs meet what is in GRAD already. */
static iso_status set_accumulate(lowering *l, iso_instruction *instruction) {
  const iso_graph *graph = l->graph;
  for (int i = 0; i < instruction->output_count; i++) {
    const iso_operand *o = &instruction->outputs[i];
    if (!o->present || graph->tensors[o->value].space != ISO_SPACE_GRAD) continue;
    const char *name = graph->tensors[o->value].name, *op = iso_op_get(instruction->op)->text;
    if (!accumulates(instruction->op, i)) {
      return iso_fail(ISO_ERR_UNSUPPORTED, "lower: %s cannot accumulate its output %d (%s) as a parameter's gradient",
                      op, i, name);
    }
    int parameter = iso_parameter_at(graph, graph->tensors[o->value].offset);
    iso_accumulate how = l->written[parameter] ? ISO_ACCUMULATE_ALWAYS : ISO_ACCUMULATE_MICRO;
    if (instruction->accumulate != ISO_ACCUMULATE_NEVER && instruction->accumulate != how) {
      return iso_fail(ISO_ERR_UNSUPPORTED,
                      "lower: %s: one gradient output is a parameter's first part, another (%s) is not", op, name);
    }
    instruction->accumulate = how;
    l->written[parameter] = true;
  }
  return ISO_OK;
}

static iso_status lower_node(lowering *l, const iso_node *node) {
  if (node->op == ISO_OP_SPLIT) return lower_split(l, node);
  if (node->op == ISO_OP_CONCAT) return lower_concat(l, node);
  if (node->op == ISO_OP_ADD && l->graph->tensors[node->outputs[0]].space == ISO_SPACE_GRAD) return ISO_OK;
  int at = l->program->instruction_count;
  iso_instruction *instruction = append(l, node->op, node->phase);
  if (instruction == NULL) return iso_fail(ISO_ERR_MEMORY, "lower: no memory");
  instruction->input_count = node->input_count;
  instruction->output_count = node->output_count;
  memcpy(instruction->attributes, node->attributes, sizeof node->attributes);
  const iso_operand absent = {.value = -1, .buffer = -1};
  for (int i = 0; i < node->input_count; i++) {
    iso_id id = node->inputs[i];
    instruction->inputs[i] = id < 0 ? absent : operand(l, id, id, 0, at);
  }
  for (int i = 0; i < node->output_count; i++) {
    iso_id id = node->outputs[i];
    instruction->outputs[i] = id < 0 ? absent : operand(l, id, id, 0, at);
  }
  instruction->scratch = absent;
  add_scratch(l, instruction, at);
  iso_node_cost(l->graph, node, &instruction->flop, &instruction->bytes);
  return set_accumulate(l, instruction);
}

iso_status iso_pass_lower(iso_graph *graph, int threads, iso_program **program) {
  size_t tensors = (size_t)graph->tensor_count + 1, nodes = (size_t)graph->node_count + 1;
  iso_program *made = iso_arena_alloc(graph->arena, sizeof *made);
  lowering l = {.graph = graph,
                .program = made,
                .places = calloc(tensors, sizeof *l.places),
                .buffer = calloc(tensors, sizeof *l.buffer),
                .written = calloc((size_t)graph->parameter_count + 1, sizeof *l.written),
                .streams = iso_graph_streams(graph)};
  iso_status status = ISO_OK;
  if (made != NULL) made->buffers = iso_arena_alloc(graph->arena, (tensors + nodes) * sizeof *made->buffers);
  if (made == NULL || made->buffers == NULL || l.places == NULL || l.buffer == NULL || l.written == NULL) {
    status = iso_fail(ISO_ERR_MEMORY, "lower: no memory");
    goto done;
  }
  made->graph = graph;
  made->threads = threads;
  status = iso_views_resolve(graph, l.places);
  for (iso_id id = 0; id < graph->tensor_count; id++) l.buffer[id] = -1;
  for (int n = 0; n < graph->node_count && status == ISO_OK; n++) status = lower_node(&l, &graph->nodes[n]);
  for (int phase = 0; phase < ISO_PHASE_COUNT; phase++) { /* an empty phase begins where the one before ends */
    if (made->phase_begin[phase + 1] < made->phase_begin[phase])
      made->phase_begin[phase + 1] = made->phase_begin[phase];
  }
  if (status == ISO_OK) *program = made;
done:
  free(l.written);
  free(l.buffer);
  free(l.places);
  return status;
}
