/* SPDX-License-Identifier: Apache-2.0
 *
 * program: what exec runs, as text, and the arithmetic on operands that exec, planner and checker share.
 *
 * One line an instruction: its number, '|' where the team meets before it, outputs = op inputs {attributes}, each
 * operand as name type place[:row stride], then workspace and accumulation.
 */
#include "graph/graph.h"

#include <string.h>

void iso_whole_blocks(int64_t flat, int64_t begin, int64_t end, int64_t *first, int64_t *last) {
  *first = (begin + ISO_SQUARES_BLOCK - 1) / ISO_SQUARES_BLOCK * ISO_SQUARES_BLOCK;
  *last = end == flat ? end : end / ISO_SQUARES_BLOCK * ISO_SQUARES_BLOCK;
}

iso_region iso_operand_region(const iso_instruction *instruction, const iso_operand *operand) {
  int64_t size = (int64_t)iso_dtype_size(operand->dtype);
  iso_region region = {.space = operand->space, .offset = operand->offset, .rows = 1, .row_bytes = operand->bytes};
  bool whole = instruction->op == ISO_OP_GRAD_ROUND_PART && operand->space == ISO_SPACE_GRAD; /* one parameter's */
  bool ranged = iso_op_has_attribute(instruction->op, ISO_ATTR_BEGIN) && iso_space_is_flat(operand->space) &&
                operand->space != ISO_SPACE_SCALAR && !whole;
  if (ranged) {
    int64_t begin = (int64_t)instruction->attributes[ISO_ATTR_BEGIN];
    int64_t end = (int64_t)instruction->attributes[ISO_ATTR_END];
    if (operand->space == ISO_SPACE_SQUARES) {
      if (instruction->op == ISO_OP_GRAD_ROUND_PART) { /* blocks that it has whole; the state's last may be short */
        begin = (begin + ISO_SQUARES_BLOCK - 1) / ISO_SQUARES_BLOCK * ISO_SQUARES_BLOCK;
        if (end / ISO_SQUARES_BLOCK + 1 < operand->shape[0]) end = end / ISO_SQUARES_BLOCK * ISO_SQUARES_BLOCK;
      }
      begin /= ISO_SQUARES_BLOCK;
      end = (end + ISO_SQUARES_BLOCK - 1) / ISO_SQUARES_BLOCK;
    }
    region.offset += begin * size;
    region.row_bytes = (end - begin) * size;
  } else if (operand->rank == 2 && operand->ld != operand->shape[1]) {
    region.rows = operand->shape[0];
    region.row_bytes = operand->shape[1] * size;
  }
  region.ld_bytes = region.rows > 1 ? operand->ld * size : region.row_bytes;
  return region;
}

int64_t iso_program_space_bytes(const iso_program *program, iso_space space) {
  const iso_graph *graph = program->graph;
  if (space == ISO_SPACE_TRANSIENT) return program->arena_bytes;
  bool used = false;
  iso_dtype dtype = ISO_F32;
  for (int i = 0; i < program->instruction_count; i++) {
    const iso_instruction *instruction = &program->instructions[i];
    for (int k = 0; k < instruction->input_count + instruction->output_count; k++) {
      const iso_operand *operand =
          k < instruction->input_count ? &instruction->inputs[k] : &instruction->outputs[k - instruction->input_count];
      if (!operand->present || operand->space != space) continue;
      used = true;
      dtype = operand->dtype;
    }
  }
  if (!iso_space_is_flat(space)) return graph->space_bytes[space]; /* places are given out even if nothing reads them */
  if (!used) return 0;
  int64_t entries = graph->flat_elements;
  if (space == ISO_SPACE_SQUARES) entries = (entries + ISO_SQUARES_BLOCK - 1) / ISO_SQUARES_BLOCK;
  if (space == ISO_SPACE_SCALAR) entries = ISO_SCALAR_COUNT;
  return entries * (int64_t)iso_dtype_size(dtype);
}

static void print_operand(const iso_program *program, const iso_operand *operand, iso_string *out) {
  if (!operand->present) {
    iso_string_printf(out, "-");
    return;
  }
  if (operand->value >= 0) iso_string_printf(out, "%s ", program->graph->tensors[operand->value].name);
  iso_string_printf(out, "%s[", iso_dtype_name(operand->dtype));
  for (int i = 0; i < operand->rank; i++) {
    iso_string_printf(out, "%s%lld", i > 0 ? "," : "", (long long)operand->shape[i]);
  }
  iso_string_printf(out, "] %s", iso_space_name(operand->space));
  if (operand->buffer >= 0) iso_string_printf(out, "#%d", operand->buffer);
  iso_string_printf(out, "+%lld", (long long)operand->offset);
  if (operand->rank == 2 && operand->ld != operand->shape[1]) iso_string_printf(out, ":%lld", (long long)operand->ld);
}

static void print_instruction(const iso_program *program, int index, iso_string *out) {
  const iso_instruction *instruction = &program->instructions[index];
  bool present[ISO_ATTR_COUNT];
  for (int key = 0; key < ISO_ATTR_COUNT; key++) present[key] = iso_op_has_attribute(instruction->op, key);
  iso_string_printf(out, "%5d %c ", index, instruction->barrier ? '|' : ' ');
  for (int i = 0; i < instruction->output_count; i++) {
    if (i > 0) iso_string_printf(out, ", ");
    print_operand(program, &instruction->outputs[i], out);
  }
  iso_string_printf(out, " = %s", iso_op_get(instruction->op)->text);
  for (int i = 0; i < instruction->input_count; i++) {
    iso_string_printf(out, "%s", i > 0 ? ", " : " ");
    print_operand(program, &instruction->inputs[i], out);
  }
  iso_attributes_print(instruction->attributes, present, out);
  if (instruction->scratch.present) {
    iso_string_printf(out, " scratch ");
    print_operand(program, &instruction->scratch, out);
  }
  if (instruction->accumulate == ISO_ACCUMULATE_MICRO) iso_string_printf(out, " accumulate=micro");
  if (instruction->accumulate == ISO_ACCUMULATE_ALWAYS) iso_string_printf(out, " accumulate=always");
  iso_string_printf(out, "\n");
}

void iso_program_print(const iso_program *program, iso_string *out) {
  static const char *const phases[ISO_PHASE_COUNT] = {"micro", "update"};
  iso_string_printf(out, "program %s threads=%d instructions=%d arena=%lld live=%lld\n", program->graph->name,
                    program->threads, program->instruction_count, (long long)program->arena_bytes,
                    (long long)program->live_peak_bytes);
  for (int phase = 0; phase < ISO_PHASE_COUNT; phase++) {
    if (program->phase_begin[phase] == program->phase_begin[phase + 1]) continue;
    iso_string_printf(out, "phase %s\n", phases[phase]);
    for (int i = program->phase_begin[phase]; i < program->phase_begin[phase + 1]; i++) {
      print_instruction(program, i, out);
    }
  }
}
