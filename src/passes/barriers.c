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

/* Bytes from the first to the last that was touched since the last meeting. What lies outside meets none of them, so
 * that the buckets of a flat array, each beyond the one before, cost no search: a model has thousands. */
typedef struct hull {
  int64_t begin, end;
} hull;

typedef struct pending {
  access *accesses;
  int count;
  hull hulls[ISO_SPACE_COUNT][2]; /* of all accesses, of writes */
} pending;

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

static bool conflicts(const pending *since, const access *now) {
  const hull *near = &since->hulls[now->region.space][now->write ? 0 : 1];
  if (now->region.offset >= near->end || now->region.offset + extent(&now->region) <= near->begin) return false;
  for (int b = 0; b < since->count; b++) {
    const access *earlier = &since->accesses[b];
    if ((now->write || earlier->write) && overlap(&now->region, &earlier->region)) return true;
  }
  return false;
}

static void meet(pending *since) {
  since->count = 0;
  for (int space = 0; space < ISO_SPACE_COUNT; space++)
    for (int kind = 0; kind < 2; kind++) since->hulls[space][kind] = (hull){INT64_MAX, INT64_MIN};
}

static void add(pending *since, const access *now) {
  const int64_t begin = now->region.offset, end = begin + extent(&now->region);
  since->accesses[since->count++] = *now;
  for (int kind = 0; kind <= now->write; kind++) {
    hull *h = &since->hulls[now->region.space][kind];
    if (begin < h->begin) h->begin = begin;
    if (end > h->end) h->end = end;
  }
}

iso_status iso_pass_barriers(iso_program *program) {
  size_t most = (size_t)program->instruction_count * MAX_ACCESSES;
  pending since = {.accesses = malloc((most + 1) * sizeof *since.accesses)};
  if (since.accesses == NULL) return iso_fail(ISO_ERR_MEMORY, "barriers: no memory");
  for (int phase = 0; phase < ISO_PHASE_COUNT; phase++) {
    meet(&since);
    for (int i = program->phase_begin[phase]; i < program->phase_begin[phase + 1]; i++) {
      iso_instruction *instruction = &program->instructions[i];
      access now[MAX_ACCESSES];
      int now_count = accesses_of(instruction, now);
      instruction->barrier = false;
      for (int k = 0; k < now_count && !instruction->barrier; k++) instruction->barrier = conflicts(&since, &now[k]);
      if (instruction->barrier) meet(&since);
      for (int k = 0; k < now_count; k++) add(&since, &now[k]);
    }
  }
  free(since.accesses);
  return ISO_OK;
}
