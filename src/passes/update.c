/* SPDX-License-Identifier: Apache-2.0
 *
 * update: appends the optimizer to a differentiated graph.
 *
 * Every contribution to a parameter's gradient moves to the parameter's place in the flat GRAD space. The add nodes
 * between them stay in the graph as its meaning; as all their operands now have the same place, lowering turns them
 * into accumulation. Then, over buckets of the flat state cut on norm-block borders: grad_round per bucket, one clip,
 * adamw per bucket.
 *
 * `stream`: a step with one worker and one micro-batch need not keep all gradients until its end. Each parameter is
 * rounded (grad_round_part) as soon as the last contribution to its gradient is there, and lowering gives its float32
 * gradient a place in the arena for that time only. A norm block that several parameters share has its squares summed
 * later (grad_squares), from the rounded bits: the same values in the same order as grad_round's.
 *
 * `early`: of a step of several passes the last one rounds in the same way, so that most of the reduced gradient is
 * final, and on its way to the log, while the backward pass is still at work. Of ranks, which round only what all have
 * reduced, grad_round_part says when the partial sums of a parameter are complete.
 *
 * Invariants
 *  1. All but grad_round_part is in the phase UPDATE, which runs once a step, after all micro-batches and their
 *     reduction.
 *  2. Buckets cover the flat state exactly once; every border but the last is a multiple of ISO_NORM_BLOCK.
 *  3. However it is rounded, `reduced` and `squares` hold the same bits.
 */
#include "passes/passes.h"

#include <stdlib.h>

_Static_assert(ISO_SQUARES_BLOCK == ISO_NORM_BLOCK, "the shape of \"squares\" follows the kernels' norm block");

#define DEFAULT_BUCKET ((int64_t)4194304)

/* Moves a gradient and the contributions it is the sum of to a place in GRAD. */
static iso_status settle(iso_graph *graph, const int *readers, iso_id id, const iso_parameter *parameter) {
  iso_tensor *tensor = &graph->tensors[id];
  const iso_node *producer = &graph->nodes[tensor->producer];
  if (tensor->space != ISO_SPACE_TRANSIENT) {
    return iso_fail(ISO_ERR_UNSUPPORTED, "update: parameter %s: its gradient %s is also something else's",
                    parameter->name, tensor->name);
  }
  tensor->space = ISO_SPACE_GRAD;
  tensor->offset = parameter->offset;
  if (producer->op != ISO_OP_ADD) return ISO_OK;
  for (int i = 0; i < 2; i++) {
    if (readers[producer->inputs[i]] != 1) {
      return iso_fail(ISO_ERR_UNSUPPORTED, "update: parameter %s: a part of its gradient, %s, has other readers",
                      parameter->name, graph->tensors[producer->inputs[i]].name);
    }
    ISO_TRY(settle(graph, readers, producer->inputs[i], parameter));
  }
  return ISO_OK;
}

static iso_status settle_all(iso_graph *graph) {
  int *readers = calloc((size_t)graph->tensor_count + 1, sizeof *readers);
  if (readers == NULL) return iso_fail(ISO_ERR_MEMORY, "update: no memory");
  iso_status status = ISO_OK;
  for (int n = 0; n < graph->node_count; n++) {
    const iso_node *node = &graph->nodes[n];
    for (int i = 0; i < node->input_count; i++) {
      if (node->inputs[i] >= 0) readers[node->inputs[i]]++;
    }
  }
  for (int i = 0; i < graph->parameter_count && status == ISO_OK; i++) {
    const iso_parameter *parameter = &graph->parameters[i];
    if (parameter->gradient < 0) {
      status = iso_fail(ISO_ERR_INTERNAL, "update: parameter %s: it has no gradient", parameter->name);
    } else {
      status = settle(graph, readers, parameter->gradient, parameter);
    }
  }
  free(readers);
  return status;
}

static iso_status append(iso_graph *graph, iso_op op, const iso_id *inputs, int input_count, const iso_id *outputs,
                         int output_count, int64_t begin, int64_t end) {
  int phase = op == ISO_OP_GRAD_ROUND_PART ? ISO_PHASE_MICRO : ISO_PHASE_UPDATE;
  iso_node node = {.op = op, .input_count = input_count, .output_count = output_count, .phase = phase};
  for (int i = 0; i < input_count; i++) node.inputs[i] = inputs[i];
  for (int i = 0; i < output_count; i++) node.outputs[i] = outputs[i];
  if (iso_op_has_attribute(op, ISO_ATTR_BEGIN)) {
    node.has_attribute[ISO_ATTR_BEGIN] = node.has_attribute[ISO_ATTR_END] = true;
    node.attributes[ISO_ATTR_BEGIN] = (double)begin;
    node.attributes[ISO_ATTR_END] = (double)end;
  }
  return iso_graph_node_into(graph, &node);
}

/* Parameters below this are rounded behind the next larger one, which keeps the scheduler from moving them forward: a
 * meeting of the threads for each would cost more than their bytes. */
#define SMALL_PART 16384

static iso_status round_part(iso_graph *graph, const iso_parameter *p, iso_id reduced, iso_id squares) {
  int64_t first = 0, last = 0;
  iso_whole_blocks(graph->flat_elements, p->offset, p->offset + p->elements, &first, &last);
  const iso_id rounded[2] = {reduced, first < last ? squares : -1};
  return append(graph, ISO_OP_GRAD_ROUND_PART, &p->gradient, 1, rounded, 2, p->offset, p->offset + p->elements);
}

/* Those of the first `count` parameters in `small`, which then is empty. */
static iso_status round_small(iso_graph *graph, const int *small, int *count, iso_id reduced, iso_id squares) {
  for (int i = 0; i < *count; i++) ISO_TRY(round_part(graph, &graph->parameters[small[i]], reduced, squares));
  *count = 0;
  return ISO_OK;
}

/* Puts a grad_round_part behind the node that completes each parameter's gradient. */
static iso_status round_parts(iso_graph *graph, iso_id reduced, iso_id squares) {
  const iso_node *old = graph->nodes;
  const int count = graph->node_count;
  int *completes = calloc((size_t)graph->tensor_count + 1, sizeof *completes); /* parameter + 1 by tensor */
  int *small = calloc((size_t)graph->parameter_count + 1, sizeof *small), smalls = 0;
  iso_status status = completes && small ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "update: no memory");
  for (int i = 0; i < graph->parameter_count && status == ISO_OK; i++) completes[graph->parameters[i].gradient] = i + 1;
  if (status == ISO_OK) {
    graph->nodes = NULL;
    graph->node_count = graph->node_capacity = 0;
  }
  for (int n = 0; n < count && status == ISO_OK; n++) {
    status = iso_graph_node_into(graph, &old[n]);
    for (int k = 0; k < old[n].output_count && status == ISO_OK; k++) {
      const int parameter = (old[n].outputs[k] < 0 ? 0 : completes[old[n].outputs[k]]) - 1;
      if (parameter < 0) continue;
      if (graph->parameters[parameter].elements < SMALL_PART) {
        small[smalls++] = parameter;
        continue;
      }
      status = round_part(graph, &graph->parameters[parameter], reduced, squares);
      if (status == ISO_OK) status = round_small(graph, small, &smalls, reduced, squares);
    }
  }
  if (status == ISO_OK) status = round_small(graph, small, &smalls, reduced, squares);
  free(small);
  free(completes);
  return status;
}

/* grad_squares over each run of blocks that lie in no one parameter. */
static iso_status square_seams(iso_graph *graph, iso_id reduced, iso_id squares) {
  int64_t covered = 0; /* whole blocks of the parameters so far end here */
  for (int i = 0; i < graph->parameter_count; i++) {
    const iso_parameter *p = &graph->parameters[i];
    int64_t first = 0, last = 0;
    iso_whole_blocks(graph->flat_elements, p->offset, p->offset + p->elements, &first, &last);
    if (first >= last) continue;
    if (covered < first) ISO_TRY(append(graph, ISO_OP_GRAD_SQUARES, &reduced, 1, &squares, 1, covered, first));
    covered = last;
  }
  if (covered == graph->flat_elements) return ISO_OK;
  return append(graph, ISO_OP_GRAD_SQUARES, &reduced, 1, &squares, 1, covered, graph->flat_elements);
}

iso_status iso_pass_update(iso_graph *graph, iso_dtype gradient, int64_t bucket_elements, iso_rounding rounding) {
  int64_t elements = graph->flat_elements, bucket = bucket_elements > 0 ? bucket_elements : DEFAULT_BUCKET;
  if (bucket % ISO_NORM_BLOCK != 0) {
    return iso_fail(ISO_ERR_INTERNAL, "update: buckets of %lld elements are no multiple of %d", (long long)bucket,
                    ISO_NORM_BLOCK);
  }
  if (gradient != ISO_F32 && gradient != ISO_BF16) {
    return iso_fail(ISO_ERR_UNSUPPORTED, "update: gradients of type %s, only f32 and bf16 are supported",
                    iso_dtype_name(gradient));
  }
  ISO_TRY(settle_all(graph));
  graph->gradient = gradient;
  const int64_t flat[1] = {elements}, blocks[1] = {(elements + ISO_NORM_BLOCK - 1) / ISO_NORM_BLOCK};
  const int64_t scalar[1] = {ISO_SCALAR_COUNT};
  const bool parts = rounding != ISO_ROUND_LAST;
  graph->keeps_sums = rounding == ISO_ROUND_EARLY;
  iso_id gradients = parts ? -1 : iso_graph_tensor(graph, "gradients", ISO_F32, 1, flat, ISO_SPACE_GRAD);
  iso_id reduced = iso_graph_tensor(graph, "reduced", gradient, 1, flat, ISO_SPACE_REDUCED);
  iso_id squares = iso_graph_tensor(graph, "squares", ISO_F64, 1, blocks, ISO_SPACE_SQUARES);
  iso_id scalars = iso_graph_tensor(graph, "scalars", ISO_F32, 1, scalar, ISO_SPACE_SCALAR);
  iso_id master = iso_graph_tensor(graph, "master", ISO_F32, 1, flat, ISO_SPACE_MASTER);
  iso_id moment1 = iso_graph_tensor(graph, "moment1", ISO_F32, 1, flat, ISO_SPACE_MOMENT1);
  iso_id moment2 = iso_graph_tensor(graph, "moment2", ISO_F32, 1, flat, ISO_SPACE_MOMENT2);
  iso_id weights = -1;
  if (graph->compute != ISO_F32) {
    weights = iso_graph_tensor(graph, "weights", graph->compute, 1, flat, ISO_SPACE_WEIGHT);
  }
  const iso_id rounded[2] = {reduced, squares}, state[5] = {master, moment1, moment2, reduced, scalars};
  if (parts) {
    ISO_TRY(round_parts(graph, reduced, squares));
    ISO_TRY(square_seams(graph, reduced, squares));
  }
  for (int64_t begin = 0; !parts && begin < elements; begin += bucket) {
    int64_t end = begin + bucket < elements ? begin + bucket : elements;
    ISO_TRY(append(graph, ISO_OP_GRAD_ROUND, &gradients, 1, rounded, 2, begin, end));
  }
  ISO_TRY(append(graph, ISO_OP_CLIP, &squares, 1, &scalars, 1, 0, 0));
  for (int64_t begin = 0; begin < elements; begin += bucket) {
    int64_t end = begin + bucket < elements ? begin + bucket : elements;
    ISO_TRY(append(graph, ISO_OP_ADAMW, state, 5, &weights, 1, begin, end));
  }
  return ISO_OK;
}
