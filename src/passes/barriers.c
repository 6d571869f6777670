/* SPDX-License-Identifier: Apache-2.0
 *
 * barriers: where the team meets. After memory planning, since reused memory orders instructions too.
 *
 * Threads run through the instruction list on their own; between two meetings the instructions in flight must not touch
 * the same bytes unless all only read them. The last meeting is pushed forward greedily: an instruction gets one before
 * it when it conflicts with any since the last. Phases begin and end with a meeting of their own.
 *
 * Invariants
 *  1. Workspace counts as written; state that an op updates counts as written.
 *  2. Exact for contiguous ranges and for views with one row stride; ranges with different strides conflict when their
 * extents do.
 */
#include "passes/passes.h"

#include <stdlib.h>

typedef struct access {
  iso_region region;
  bool write;
} access;

#define MAX_ACCESSES (ISO_MAX_INPUTS + ISO_MAX_OUTPUTS + 1)

static int accesses_of(const iso_instruction *instruction, access *out) {
  int count = 0, written = iso_op_get(instruction->op)->flags / ISO_OP_FLAG_WRITES0;
  for (int i = 0; i < instruction->input_count; i++) {
    if (!instruction->inputs[i].present) continue;
    out[count++] = (access){iso_operand_region(instruction, &instruction->inputs[i]), (written >> i & 1) != 0};
  }
  for (int i = 0; i < instruction->output_count; i++) {
    if (!instruction->outputs[i].present) continue;
    out[count++] = (access){iso_operand_region(instruction, &instruction->outputs[i]), true};
  }
  if (instruction->scratch.present) {
    out[count++] = (access){iso_operand_region(instruction, &instruction->scratch), true};
  }
  return count;
}

static int64_t extent(const iso_region *r) {
  return (r->rows - 1) * r->ld_bytes + r->row_bytes;
}

static bool overlap(const iso_region *a, const iso_region *b) {
  if (a->space != b->space || a->offset >= b->offset + extent(b) || b->offset >= a->offset + extent(a)) return false;
  if (a->rows == 1 || b->rows == 1 || a->ld_bytes != b->ld_bytes) return true;
  /* one stride: b begins `shift` bytes into a row of a's grid; its columns meet a's in that row or wrap into the next
   */
  int64_t shift = (b->offset - a->offset) % a->ld_bytes;
  if (shift < 0) shift += a->ld_bytes;
  return shift < a->row_bytes || shift + b->row_bytes > a->ld_bytes;
}

static bool conflicts(const access *earlier, int earlier_count, const access *now, int now_count) {
  for (int a = 0; a < now_count; a++) {
    for (int b = 0; b < earlier_count; b++) {
      if ((now[a].write || earlier[b].write) && overlap(&now[a].region, &earlier[b].region)) return true;
    }
  }
  return false;
}

iso_status iso_pass_barriers(iso_program *program) {
  size_t most = (size_t)program->instruction_count * MAX_ACCESSES;
  access *since = malloc((most + 1) * sizeof *since); /* accesses since the last meeting */
  if (since == NULL) return iso_fail(ISO_ERR_MEMORY, "barriers: no memory");
  for (int phase = 0; phase < ISO_PHASE_COUNT; phase++) {
    int count = 0;
    for (int i = program->phase_begin[phase]; i < program->phase_begin[phase + 1]; i++) {
      iso_instruction *instruction = &program->instructions[i];
      access now[MAX_ACCESSES];
      int now_count = accesses_of(instruction, now);
      instruction->barrier = conflicts(since, count, now, now_count);
      if (instruction->barrier) count = 0;
      for (int k = 0; k < now_count; k++) since[count++] = now[k];
    }
  }
  free(since);
  return ISO_OK;
}
