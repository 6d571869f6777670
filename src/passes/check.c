/* SPDX-License-Identifier: Apache-2.0
 *
 * check: proves a program's memory right from its operands alone. It knows neither buffers nor lifetimes: it plays the
 * program on a map of which value lies where, and keeps the accesses since the last barrier.
 *
 * Proved for every instruction, or the first violation is reported
 *  1. operands have their value's shape and type and lie inside their space; values outside the arena lie at their own
 * place;
 *  2. every read finds the value it means, whole, where it reads: nothing overwrote it, so no two live values overlap;
 *  3. within an instruction only an in-place output may touch an input's bytes, and exactly those;
 *  4. instructions that touch the same bytes, one writing, have a barrier between them;
 *  5. a parameter's gradient is started once per leaf (MICRO) and added to afterwards, and complete before the update
 * reads it;
 *  6. buckets cover the flat state once, and each instruction computes what its node says;
 *  7. in a program that rounds gradients one by one each is rounded once, after all its contributions.
 *
 * Split parts and concatenations are the same bytes under two names: values are compared as column ranges of the
 * tensors that instructions really write ("origins"). A streamed gradient is one value, made in several writes.
 */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

/* Rows of bytes in a space. */
typedef struct area {
  iso_space space;
  int64_t offset, rows, width, stride;
} area;

/* Where columns [column, column + area.width) (bytes) of an origin lie. */
typedef struct record {
  area at;
  iso_id origin;
  int64_t column;
  int writer;
} record;

typedef struct access {
  area at;
  int instruction;
  bool write;
} access;

/* A column range of a value, in terms of its origin; `from` counts within the value. */
typedef struct piece {
  iso_id origin;
  int64_t from, width, column;
} piece;

#define MAX_PIECES 64

typedef struct checker {
  const iso_program *program;
  const iso_graph *graph;
  record *records;
  int record_count, record_capacity;
  access *accesses;
  int access_count, access_capacity;
  bool streams;                      /* gradients lie in the arena */
  bool parts;                        /* they are rounded one by one */
  bool *started;                     /* per parameter: its gradient has a first part */
  int *missing;                      /* per parameter: contributions to its gradient still to come */
  bool *rounded;                     /* per parameter, then */
  int64_t next_bucket[ISO_OP_COUNT]; /* where the next range of a bucketed op must begin */
  int64_t space_bytes[ISO_SPACE_COUNT];
  int index; /* instruction under the glass */
} checker;

ISO_PRINTF(2, 3) static iso_status found(const checker *c, const char *format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return iso_fail(ISO_ERR_CHECK, "program %s: instruction %d (%s): %s", c->graph->name, c->index,
                  iso_op_get(c->program->instructions[c->index].op)->text, text);
}

static const char *value_name(const checker *c, iso_id value) {
  return value < 0 ? "workspace" : c->graph->tensors[value].name;
}

/* ---- areas ---- */

static int64_t extent(const area *a) {
  return (a->rows - 1) * a->stride + a->width;
}

/* True if bytes [begin, end) meet a row of b. */
static bool row_meets(int64_t begin, int64_t end, const area *b) {
  int64_t past = begin - b->offset - b->width; /* rows up to this byte end before `begin` */
  int64_t row = past < 0 ? 0 : past / b->stride + 1;
  return row < b->rows && b->offset + row * b->stride < end;
}

static bool meet(const area *a, const area *b) {
  if (a->space != b->space || a->offset >= b->offset + extent(b) || b->offset >= a->offset + extent(a)) return false;
  const area *few = a->rows <= b->rows ? a : b, *many = few == a ? b : a;
  for (int64_t row = 0; row < few->rows; row++) {
    int64_t begin = few->offset + row * few->stride;
    if (row_meets(begin, begin + few->width, many)) return true;
  }
  return false;
}

static bool same_area(const area *a, const area *b) {
  return a->space == b->space && a->offset == b->offset && a->rows == b->rows && a->width == b->width &&
         a->stride == b->stride;
}

/* `flat`: elements of the state. */
static area area_of(const iso_instruction *instruction, const iso_operand *o, int64_t flat) {
  int64_t unit = (int64_t)iso_dtype_size(o->dtype);
  area a = {.space = o->space, .offset = o->offset, .rows = 1, .width = unit};
  for (int i = 0; i < o->rank; i++) a.width *= o->shape[i];
  if (o->rank == 2) {
    a.rows = o->shape[0];
    a.width = o->shape[1] * unit;
  }
  bool bucket =
      instruction->op == ISO_OP_GRAD_ROUND || instruction->op == ISO_OP_ADAMW || instruction->op == ISO_OP_GRAD_SQUARES;
  bool part =
      instruction->op == ISO_OP_GRAD_ROUND_PART && o->space != ISO_SPACE_TRANSIENT && o->space != ISO_SPACE_GRAD;
  if (part || (bucket && o->space != ISO_SPACE_SCALAR && o->space != ISO_SPACE_TRANSIENT)) {
    int64_t begin = (int64_t)instruction->attributes[ISO_ATTR_BEGIN];
    int64_t end = (int64_t)instruction->attributes[ISO_ATTR_END];
    if (part && o->space == ISO_SPACE_SQUARES) iso_whole_blocks(flat, begin, end, &begin, &end);
    int64_t grain = o->space == ISO_SPACE_SQUARES ? ISO_NORM_BLOCK : 1;
    a.offset += begin / grain * unit;
    a.width = ((end + grain - 1) / grain - begin / grain) * unit;
  }
  a.stride = o->rank == 2 ? o->ld * unit : a.width;
  return a;
}

/* ---- values ---- */

/* Columns [from, from + width) of `value` by origin. False when there are more than `room` pieces. */
static bool split_value(const checker *c, iso_id value, int64_t from, int64_t width, int64_t base, piece *out,
                        int *count) {
  const iso_tensor *t = &c->graph->tensors[value];
  const iso_node *node = t->producer >= 0 ? &c->graph->nodes[t->producer] : NULL;
  if (c->streams && t->space == ISO_SPACE_GRAD) {
    value = c->graph->parameters[iso_parameter_at(c->graph, t->offset)].gradient;
    node = NULL;
  }
  if (node != NULL && node->op == ISO_OP_SPLIT) {
    int64_t before = 0;
    for (int i = 0; node->outputs[i] != value; i++) {
      before += node->outputs[i] >= 0 ? c->graph->tensors[node->outputs[i]].shape[1]
                                      : (int64_t)node->attributes[ISO_ATTR_WIDTH0 + i];
    }
    return split_value(c, node->inputs[0], from + before * (int64_t)iso_dtype_size(t->dtype), width, base, out, count);
  }
  if (node != NULL && node->op == ISO_OP_CONCAT) {
    int64_t begin = 0;
    for (int i = 0; i < node->input_count; i++) {
      if (node->inputs[i] < 0) continue;
      const iso_tensor *part = &c->graph->tensors[node->inputs[i]];
      int64_t end = begin + part->shape[1] * (int64_t)iso_dtype_size(part->dtype);
      int64_t low = from > begin ? from : begin, high = from + width < end ? from + width : end;
      if (low < high && !split_value(c, node->inputs[i], low - begin, high - low, base + low - from, out, count)) {
        return false;
      }
      begin = end;
    }
    return true;
  }
  if (*count == MAX_PIECES) return false;
  out[(*count)++] = (piece){value, base, width, from};
  return true;
}

/* The pieces of an operand's value over its area; bucketed operands start within the (flat) value. */
static iso_status pieces_of(const checker *c, const iso_operand *o, const area *a, piece *out, int *count) {
  *count = 0;
  int64_t from = o->rank == 1 ? a->offset - o->offset : 0;
  if (split_value(c, o->value, from, a->width, 0, out, count)) return ISO_OK;
  return found(c, "%s is joined from too many parts to be checked", value_name(c, o->value));
}

/* ---- the map ---- */

static bool reserve(void **items, int count, int *capacity, size_t bytes) {
  if (count < *capacity) return true;
  int larger = *capacity * 2 + 64;
  void *grown = realloc(*items, (size_t)larger * bytes);
  if (grown == NULL) return false;
  *items = grown;
  *capacity = larger;
  return true;
}

static iso_status add_record(checker *c, const record *r) {
  if (!reserve((void **)&c->records, c->record_count, &c->record_capacity, sizeof *r)) {
    return iso_fail(ISO_ERR_MEMORY, "program %s: no memory to check it", c->graph->name);
  }
  c->records[c->record_count++] = *r;
  return ISO_OK;
}

/* What is left of a record beside an area on the same grid of rows; elsewhere nothing is. */
static int remainders(const record *r, const area *cut, record out[2]) {
  int count = 0;
  int64_t from = cut->offset - r->at.offset, to = from + cut->width;
  int64_t low = from < 0 ? from : 0, high = to > r->at.width ? to : r->at.width;
  bool grid = r->at.rows == cut->rows && (cut->rows == 1 || (r->at.stride == cut->stride && high - low <= cut->stride));
  if (!grid) return 0;
  if (from > 0) {
    out[count] = *r;
    out[count++].at.width = from;
  }
  if (to < r->at.width) {
    out[count] = *r;
    out[count].at.offset += to;
    out[count].at.width -= to;
    out[count++].column += to;
  }
  return count;
}

/* The area is overwritten: what lay there is gone. */
static iso_status clear(checker *c, const area *a) {
  int count = c->record_count;
  for (int i = 0; i < count; i++) {
    record r = c->records[i], rest[2];
    if (!meet(&r.at, a)) continue;
    int left = remainders(&r, a, rest);
    c->records[i].origin = -1;
    c->records[i].at.rows = 0;
    for (int k = 0; k < left; k++) ISO_TRY(add_record(c, &rest[k]));
  }
  int kept = 0;
  for (int i = 0; i < c->record_count; i++) {
    if (c->records[i].at.rows > 0) c->records[kept++] = c->records[i];
  }
  c->record_count = kept;
  return ISO_OK;
}

static iso_status write_value(checker *c, const iso_operand *o, const area *a) {
  piece pieces[MAX_PIECES];
  int count = 0;
  ISO_TRY(clear(c, a));
  ISO_TRY(pieces_of(c, o, a, pieces, &count));
  for (int k = 0; k < count; k++) {
    record r = {.at = *a, .origin = pieces[k].origin, .column = pieces[k].column, .writer = c->index};
    r.at.offset += pieces[k].from;
    r.at.width = pieces[k].width;
    ISO_TRY(add_record(c, &r));
  }
  return ISO_OK;
}

/* End (column of the origin) of the stretch that begins at `column` and lies where the piece should; -1: not there. */
static int64_t reaches(const checker *c, const area *a, const piece *p, int64_t column) {
  int64_t origin_at = a->offset + p->from - p->column; /* where column 0 would be */
  for (int i = 0; i < c->record_count; i++) {
    const record *r = &c->records[i];
    bool here = r->origin == p->origin && r->at.space == a->space && r->at.rows == a->rows &&
                (a->rows == 1 || r->at.stride == a->stride) && r->at.offset - r->column == origin_at;
    if (here && r->column <= column && column < r->column + r->at.width) return r->column + r->at.width;
  }
  return -1;
}

static iso_status missing(const checker *c, const char *role, const iso_operand *o, const area *a) {
  for (int i = 0; i < c->record_count; i++) {
    if (!meet(&c->records[i].at, a) || c->records[i].origin == o->value) continue;
    return found(c, "%s %s is not whole at %s+%lld: instruction %d put %s there", role, value_name(c, o->value),
                 iso_space_name(o->space), (long long)o->offset, c->records[i].writer,
                 value_name(c, c->records[i].origin));
  }
  return found(c, "%s %s is not whole at %s+%lld", role, value_name(c, o->value), iso_space_name(o->space),
               (long long)o->offset);
}

static iso_status read_value(const checker *c, const char *role, const iso_operand *o, const area *a) {
  piece pieces[MAX_PIECES];
  int count = 0;
  ISO_TRY(pieces_of(c, o, a, pieces, &count));
  for (int k = 0; k < count; k++) {
    int64_t column = pieces[k].column, end = column + pieces[k].width;
    while (column < end) {
      column = reaches(c, a, &pieces[k], column);
      if (column < 0) return missing(c, role, o, a);
    }
  }
  return ISO_OK;
}

/* ---- operands ---- */

/* Spaces whose contents the program itself makes. */
static bool is_tracked(iso_space space) {
  return space == ISO_SPACE_TRANSIENT || space == ISO_SPACE_OUTPUT || space == ISO_SPACE_REDUCED ||
         space == ISO_SPACE_SQUARES || space == ISO_SPACE_SCALAR;
}

static iso_status check_place(const checker *c, const iso_operand *o, const area *a) {
  piece pieces[MAX_PIECES];
  int count = 0;
  ISO_TRY(pieces_of(c, o, a, pieces, &count));
  for (int k = 0; k < count; k++) {
    const iso_tensor *t = &c->graph->tensors[pieces[k].origin];
    int64_t unit = (int64_t)iso_dtype_size(t->dtype);
    int64_t base = iso_space_is_flat(t->space) ? t->offset * unit : t->offset;
    bool right = t->space == o->space && a->offset + pieces[k].from == base + pieces[k].column &&
                 (a->rows == 1 || a->stride == t->shape[1] * unit);
    if (!right) return found(c, "%s is not at its place in %s", value_name(c, o->value), iso_space_name(o->space));
  }
  return ISO_OK;
}

static iso_status check_operand(const checker *c, const iso_operand *o, const area *a) {
  int64_t limit = c->space_bytes[o->space], cols = o->rank == 2 ? o->shape[1] : 0;
  if (o->value >= c->graph->tensor_count || o->rank < 1 || o->rank > 2 || a->rows < 1 || a->width < 1) {
    return found(c, "an operand has no sense");
  }
  if (o->rank == 2 && o->ld < cols) return found(c, "%s: rows overlap", value_name(c, o->value));
  if (o->offset < 0 || a->offset < 0 || extent(a) > limit || a->offset > limit - extent(a)) {
    return found(c, "%s lies outside %s: [%lld, %lld) of %lld bytes", value_name(c, o->value), iso_space_name(o->space),
                 (long long)a->offset, (long long)(a->offset + extent(a)), (long long)limit);
  }
  if (o->value < 0) {
    return o->space == ISO_SPACE_TRANSIENT ? ISO_OK : found(c, "workspace outside the arena");
  }
  const iso_tensor *t = &c->graph->tensors[o->value];
  bool same = t->dtype == o->dtype && t->rank == o->rank;
  for (int i = 0; same && i < o->rank; i++) same = t->shape[i] == o->shape[i];
  if (!same) return found(c, "%s: type or shape differ from its tensor's", value_name(c, o->value));
  return o->space == ISO_SPACE_TRANSIENT ? ISO_OK : check_place(c, o, a);
}

/* Reads and writes of one instruction, with their areas. */
typedef struct operands {
  const iso_operand *operand[ISO_MAX_INPUTS + ISO_MAX_OUTPUTS + 1];
  area at[ISO_MAX_INPUTS + ISO_MAX_OUTPUTS + 1];
  int index[ISO_MAX_INPUTS + ISO_MAX_OUTPUTS + 1]; /* of input or output */
  bool input[ISO_MAX_INPUTS + ISO_MAX_OUTPUTS + 1], write[ISO_MAX_INPUTS + ISO_MAX_OUTPUTS + 1];
  int count;
} operands;

static void collect(const iso_instruction *instruction, int64_t flat, operands *all) {
  int written = iso_op_get(instruction->op)->flags / ISO_OP_FLAG_WRITES0;
  all->count = 0;
  for (int k = 0; k <= instruction->input_count + instruction->output_count; k++) {
    bool input = k < instruction->input_count, scratch = k == instruction->input_count + instruction->output_count;
    int index = input ? k : k - instruction->input_count, n = all->count;
    const iso_operand *o = scratch ? &instruction->scratch
                           : input ? &instruction->inputs[index]
                                   : &instruction->outputs[index];
    if (!o->present) continue;
    all->operand[n] = o;
    all->at[n] = area_of(instruction, o, flat);
    all->index[n] = index;
    all->input[n] = input;
    all->write[n] = !input || (written >> index & 1) != 0;
    all->count++;
  }
}

/* Point 3: within the instruction. */
static iso_status check_within(const checker *c, const iso_instruction *instruction, const operands *all) {
  int flags = iso_op_get(instruction->op)->flags;
  for (int w = 0; w < all->count; w++) {
    for (int k = 0; k < all->count; k++) {
      if (k == w || !all->write[w] || !meet(&all->at[w], &all->at[k])) continue;
      bool first = !all->input[w] && all->index[w] == 0 && all->operand[w] != &instruction->scratch;
      int needed = all->index[k] == 0 ? ISO_OP_FLAG_INPLACE : all->index[k] == 1 ? ISO_OP_FLAG_INPLACE1 : 0;
      bool inplace = first && all->input[k] && (flags & needed) != 0 && same_area(&all->at[w], &all->at[k]) &&
                     all->operand[w]->dtype == all->operand[k]->dtype;
      if (inplace || (all->input[w] && all->operand[k] == all->operand[w])) continue;
      if (all->write[k] && k < w) continue; /* the pair was seen from the other side */
      return found(c, "it writes %s over its own operand %s", value_name(c, all->operand[w]->value),
                   value_name(c, all->operand[k]->value));
    }
  }
  return ISO_OK;
}

/* Point 4: against what may still be running. */
static iso_status check_conflicts(checker *c, const iso_instruction *instruction, const operands *all) {
  if (instruction->barrier) c->access_count = 0;
  for (int k = 0; k < all->count; k++) {
    for (int j = 0; j < c->access_count; j++) {
      const access *before = &c->accesses[j];
      if ((before->write || all->write[k]) && meet(&before->at, &all->at[k])) {
        return found(c, "no barrier between it and instruction %d (%s), which touches the bytes of %s",
                     before->instruction, iso_op_get(c->program->instructions[before->instruction].op)->text,
                     value_name(c, all->operand[k]->value));
      }
    }
  }
  for (int k = 0; k < all->count; k++) {
    if (!reserve((void **)&c->accesses, c->access_count, &c->access_capacity, sizeof *c->accesses)) {
      return iso_fail(ISO_ERR_MEMORY, "program %s: no memory to check it", c->graph->name);
    }
    c->accesses[c->access_count++] = (access){all->at[k], c->index, all->write[k]};
  }
  return ISO_OK;
}

/* Index of the parameter that an operand holds the gradient of; -1: none. */
static int gradient_of(const checker *c, const iso_operand *o) {
  const iso_tensor *t = o->value >= 0 ? &c->graph->tensors[o->value] : NULL;
  if (t == NULL || t->space != ISO_SPACE_GRAD) return -1;
  int parameter = iso_parameter_at(c->graph, t->offset);
  bool fits = parameter < c->graph->parameter_count && c->graph->parameters[parameter].offset == t->offset &&
              c->graph->parameters[parameter].elements == iso_tensor_elements(t);
  return fits ? parameter : -1;
}

/* Point 5, for an output in GRAD. */
static iso_status check_gradient(checker *c, const iso_instruction *instruction, const iso_operand *o, bool *fresh) {
  int parameter = gradient_of(c, o);
  if (parameter < 0) return found(c, "%s is no parameter's gradient", value_name(c, o->value));
  iso_accumulate want = c->started[parameter] ? ISO_ACCUMULATE_ALWAYS : ISO_ACCUMULATE_MICRO;
  if (instruction->accumulate != want) {
    return found(c, "%s %s the gradient of %s", value_name(c, o->value),
                 c->started[parameter] ? "overwrites" : "adds to nothing in", c->graph->parameters[parameter].name);
  }
  fresh[parameter] = true;
  c->missing[parameter]--;
  return ISO_OK;
}

/* Point 7. */
static iso_status check_part(checker *c, const iso_instruction *instruction) {
  const iso_operand *sum = &instruction->inputs[0];
  int parameter = sum->present ? gradient_of(c, sum) : -1;
  if (parameter < 0) return found(c, "it rounds no parameter's gradient");
  const iso_parameter *p = &c->graph->parameters[parameter];
  int64_t first = 0, last = 0;
  bool same = (int64_t)instruction->attributes[ISO_ATTR_BEGIN] == p->offset &&
              (int64_t)instruction->attributes[ISO_ATTR_END] == p->offset + p->elements;
  iso_whole_blocks(c->graph->flat_elements, p->offset, p->offset + p->elements, &first, &last);
  if (!same || instruction->outputs[1].present != (first < last))
    return found(c, "its range is not that of %s", p->name);
  if (c->rounded[parameter]) return found(c, "the gradient of %s is rounded already", p->name);
  if (c->missing[parameter] > 0) return found(c, "the gradient of %s is not complete yet", p->name);
  c->rounded[parameter] = true;
  return ISO_OK;
}

/* Point 6: the node that makes this instruction's outputs says the same; ranges follow each other. */
static iso_status check_meaning(checker *c, const iso_instruction *instruction) {
  if (instruction->op == ISO_OP_GRAD_ROUND_PART) return check_part(c, instruction);
  if (instruction->op == ISO_OP_GRAD_SQUARES) return ISO_OK; /* that squares are whole is seen where they are read */
  if (iso_op_has_attribute(instruction->op, ISO_ATTR_BEGIN)) {
    int64_t begin = (int64_t)instruction->attributes[ISO_ATTR_BEGIN];
    if (begin != c->next_bucket[instruction->op]) return found(c, "its range does not follow the one before");
    c->next_bucket[instruction->op] = (int64_t)instruction->attributes[ISO_ATTR_END];
    return ISO_OK;
  }
  const iso_operand *first = &instruction->outputs[0], *from = &instruction->inputs[0];
  if (instruction->op == ISO_OP_CAST && first->value == from->value) return ISO_OK; /* a copied part */
  for (int k = 0; k < instruction->output_count; k++) {
    if (!instruction->outputs[k].present) continue;
    int producer = c->graph->tensors[instruction->outputs[k].value].producer;
    if (producer < 0) continue;
    const iso_node *node = &c->graph->nodes[producer];
    bool same = node->op == instruction->op && node->outputs[k] == instruction->outputs[k].value;
    for (int i = 0; same && i < node->input_count; i++) {
      iso_id value = instruction->inputs[i].present ? instruction->inputs[i].value : -1;
      same = node->inputs[i] == value;
    }
    if (!same) return found(c, "%s is not made like this in the graph", value_name(c, instruction->outputs[k].value));
  }
  return ISO_OK;
}

/* How many inputs of a joint product, from 1 on, can be its weights. */
static int joint_weights(iso_op op) {
  switch (op) {
  case ISO_OP_LINEAR_JOINT:
  case ISO_OP_LINEAR_JOINT_DX:
  case ISO_OP_LINEAR_JOINT_ROPE:
  case ISO_OP_LINEAR_JOINT_NORM_ROPE:
    return 3;
  case ISO_OP_LINEAR_JOINT_SWIGLU:
    return 2;
  default:
    return 0;
  }
}

/* The weights of a joint product are read as one matrix, their gradients written as one. */
static iso_status check_joint(const checker *c, const iso_instruction *instruction) {
  const bool gradient = instruction->op == ISO_OP_LINEAR_JOINT_DW;
  const int weights = joint_weights(instruction->op);
  if (!gradient && weights == 0) return ISO_OK;
  const iso_operand *parts = gradient ? instruction->outputs : instruction->inputs + 1;
  const int count = gradient ? instruction->output_count : weights;
  for (int i = 0; i + 1 < count && parts[i + 1].present; i++) {
    const iso_operand *o = &parts[i], *next = &parts[i + 1];
    const int64_t bytes = o->shape[0] * o->shape[1] * (int64_t)iso_dtype_size(o->dtype);
    bool joined = o->present && next->space == o->space && next->offset == o->offset + bytes && next->rank == 2 &&
                  next->dtype == o->dtype && o->ld == o->shape[1] && next->ld == o->ld;
    if (!joined) return found(c, "%s does not follow %s", value_name(c, next->value), value_name(c, o->value));
  }
  return ISO_OK;
}

static iso_status check_reads(const checker *c, const iso_instruction *instruction, const operands *all) {
  for (int k = 0; k < all->count; k++) {
    const iso_operand *o = all->operand[k];
    if (!all->input[k]) continue;
    if (o->space == ISO_SPACE_GRAD && instruction->op != ISO_OP_GRAD_ROUND_PART) { /* that one: check_part */
      for (int i = 0; i < c->graph->parameter_count; i++) {
        if (!c->started[i]) return found(c, "the gradient of %s is not there yet", c->graph->parameters[i].name);
      }
    }
    if (is_tracked(o->space)) ISO_TRY(read_value(c, "input", o, &all->at[k]));
  }
  return ISO_OK;
}

static iso_status check_writes(checker *c, const iso_instruction *instruction, const operands *all) {
  bool *fresh = calloc((size_t)c->graph->parameter_count + 1, 1), any = false;
  if (fresh == NULL) return iso_fail(ISO_ERR_MEMORY, "program %s: no memory to check it", c->graph->name);
  iso_status status = ISO_OK;
  for (int k = 0; k < all->count && status == ISO_OK; k++) {
    const iso_operand *o = all->operand[k];
    if (all->input[k]) continue;
    if (o->value >= 0 && c->graph->tensors[o->value].space == ISO_SPACE_GRAD) {
      any = true;
      status = check_gradient(c, instruction, o, fresh);
      if (c->streams && status == ISO_OK && instruction->accumulate == ISO_ACCUMULATE_ALWAYS) {
        status = read_value(c, "sum", o, &all->at[k]);
      }
      if (c->streams && status == ISO_OK) status = write_value(c, o, &all->at[k]);
    } else if (o->value < 0) {
      status = clear(c, &all->at[k]);
    } else if (is_tracked(o->space)) {
      status = write_value(c, o, &all->at[k]);
    }
  }
  for (int i = 0; i < c->graph->parameter_count; i++) c->started[i] = c->started[i] || fresh[i];
  free(fresh);
  if (status == ISO_OK && !any && instruction->accumulate != ISO_ACCUMULATE_NEVER) {
    return found(c, "it accumulates without a gradient output");
  }
  return status;
}

static iso_status check_instruction(checker *c, int index) {
  const iso_instruction *instruction = &c->program->instructions[index];
  operands all;
  c->index = index;
  collect(instruction, c->graph->flat_elements, &all);
  for (int k = 0; k < all.count; k++) ISO_TRY(check_operand(c, all.operand[k], &all.at[k]));
  ISO_TRY(check_meaning(c, instruction));
  ISO_TRY(check_joint(c, instruction));
  ISO_TRY(check_within(c, instruction, &all));
  ISO_TRY(check_conflicts(c, instruction, &all));
  ISO_TRY(check_reads(c, instruction, &all));
  return check_writes(c, instruction, &all);
}

/* What the caller reads afterwards must be there: outputs after MICRO, all buckets after UPDATE. */
static iso_status check_end(checker *c, int phase) {
  const iso_graph *graph = c->graph;
  for (iso_id id = 0; phase == ISO_PHASE_MICRO && id < graph->tensor_count; id++) {
    const iso_tensor *t = &graph->tensors[id];
    if (t->space != ISO_SPACE_OUTPUT || t->producer < 0) continue;
    iso_operand o = {.space = t->space, .offset = t->offset, .dtype = t->dtype, .rank = t->rank, .value = id};
    memcpy(o.shape, t->shape, sizeof o.shape);
    o.ld = t->shape[t->rank - 1];
    const iso_instruction none = {.op = ISO_OP_NONE};
    area a = area_of(&none, &o, graph->flat_elements);
    ISO_TRY(read_value(c, "output", &o, &a));
  }
  for (int i = 0; phase == ISO_PHASE_MICRO && c->parts && i < graph->parameter_count; i++) {
    if (!c->rounded[i]) return found(c, "the gradient of %s is never rounded", graph->parameters[i].name);
  }
  for (int op = 0; phase == ISO_PHASE_UPDATE && op < ISO_OP_COUNT; op++) {
    if (c->next_bucket[op] != 0 && c->next_bucket[op] != graph->flat_elements) {
      return found(c, "%s covers %lld of %lld elements", iso_op_get((iso_op)op)->text, (long long)c->next_bucket[op],
                   (long long)graph->flat_elements);
    }
  }
  return ISO_OK;
}

/* Before anything walks over operands. */
static iso_status check_counts(checker *c) {
  for (c->index = 0; c->index < c->program->instruction_count; c->index++) {
    const iso_instruction *i = &c->program->instructions[c->index];
    bool sane = i->input_count >= 0 && i->input_count <= ISO_MAX_INPUTS && i->output_count >= 0 &&
                i->output_count <= ISO_MAX_OUTPUTS;
    if (!sane) return found(c, "it has an impossible number of operands");
  }
  return ISO_OK;
}

/* Contributions to each parameter's gradient. */
static void count_contributions(checker *c) {
  for (int n = 0; n < c->graph->node_count; n++) {
    const iso_node *node = &c->graph->nodes[n];
    if (node->op == ISO_OP_ADD) continue;
    for (int k = 0; k < node->output_count; k++) {
      const iso_operand o = {.value = node->outputs[k]};
      int parameter = gradient_of(c, &o);
      if (parameter >= 0) c->missing[parameter]++;
    }
  }
}

iso_status iso_program_check(const iso_program *program) {
  const size_t parameters = (size_t)program->graph->parameter_count + 1;
  checker c = {.program = program, .graph = program->graph, .streams = iso_graph_streams(program->graph)};
  c.parts = c.streams || program->graph->keeps_sums;
  iso_status status = ISO_OK;
  c.started = calloc(parameters, sizeof *c.started);
  c.rounded = calloc(parameters, sizeof *c.rounded);
  c.missing = calloc(parameters, sizeof *c.missing);
  if (c.started == NULL || c.rounded == NULL || c.missing == NULL) {
    status = iso_fail(ISO_ERR_MEMORY, "program %s: no memory to check it", program->graph->name);
  } else {
    count_contributions(&c);
    status = check_counts(&c);
  }
  for (int space = 0; space < ISO_SPACE_COUNT && status == ISO_OK; space++) {
    c.space_bytes[space] = iso_program_space_bytes(program, (iso_space)space);
  }
  for (int phase = 0; phase < ISO_PHASE_COUNT && status == ISO_OK; phase++) {
    c.access_count = 0;
    for (int i = program->phase_begin[phase]; i < program->phase_begin[phase + 1] && status == ISO_OK; i++) {
      status = check_instruction(&c, i);
    }
    if (status == ISO_OK && program->instruction_count > 0) status = check_end(&c, phase);
  }
  free(c.records);
  free(c.accesses);
  free(c.missing);
  free(c.rounded);
  free(c.started);
  return status;
}
