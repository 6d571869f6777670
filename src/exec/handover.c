/* SPDX-License-Identifier: Apache-2.0
 *
 * When parts of the reduced gradient are final: a program that rounds gradients one by one says it by its list of
 * instructions. The flat state is cut into buckets; one is final once the last parameter that has a part in it is
 * rounded, and may be handed over when the team has met after that.
 *
 * Buckets are what ranks reduce at a time, and each rank owns whole norm blocks of one. So beyond 64 virtual workers,
 * which is the most ranks that a bucket of LARGEST elements has blocks for, buckets grow to a block a worker. Workers,
 * not ranks: the number of ranks changes at a resume, that of workers never does. A step of so many workers takes long
 * enough for the larger bucket that is last.
 *
 * Invariants
 *  1. Hand-overs stand in the order of instructions and are all elements once; borders are multiples of
 *     ISO_NORM_BLOCK or the end.
 *  2. Neighbours that become final at once are one.
 *  3. Buckets follow from elements and virtual workers alone. No bit depends on them, and nothing of them is stored: a
 *     log that was written by other buckets is read as any other.
 */
#include <stdlib.h>

#include "exec/exec.h"

enum { LARGEST = 1 << 22, PARTS = 32 }; /* elements of a bucket; buckets of a smaller state, about */

int64_t iso_handover_elements(int64_t elements, int64_t workers) {
  int64_t bucket = ISO_NORM_BLOCK;
  while (bucket < LARGEST && bucket * PARTS < elements) bucket *= 2;
  if (workers <= LARGEST / ISO_NORM_BLOCK) return bucket;
  while (bucket < workers * ISO_NORM_BLOCK && bucket * 2 < elements) bucket *= 2; /* two are left, to overlap */
  return bucket;
}

static int compare(const void *a, const void *b) {
  const iso_handover *x = a, *y = b;
  if (x->after != y->after) return x->after < y->after ? -1 : 1;
  return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* The last instruction that rounds something of each bucket. */
static void mark(const iso_program *program, int64_t bucket, iso_handover *list, int count) {
  const int *phase = program->phase_begin;
  for (int i = phase[ISO_PHASE_MICRO]; i < phase[ISO_PHASE_MICRO + 1]; i++) {
    const iso_instruction *instruction = &program->instructions[i];
    if (instruction->op != ISO_OP_GRAD_ROUND_PART) continue;
    const int64_t begin = (int64_t)instruction->attributes[ISO_ATTR_BEGIN];
    const int64_t end = (int64_t)instruction->attributes[ISO_ATTR_END];
    for (int64_t b = begin / bucket; b < count && b * bucket < end; b++) list[b].after = i;
  }
}

iso_status iso_handovers_find(const iso_program *program, int64_t workers, iso_handover **out, int *out_count) {
  const int64_t elements = program->graph->flat_elements, bucket = iso_handover_elements(elements, workers);
  const int count = (int)((elements + bucket - 1) / bucket);
  *out = NULL;
  *out_count = 0;
  iso_handover *list = calloc((size_t)count + 1, sizeof *list);
  if (!list) return iso_fail(ISO_ERR_MEMORY, "exec: no memory for %d buckets", count);
  for (int b = 0; b < count; b++) {
    const int64_t begin = b * bucket;
    list[b] = (iso_handover){-1, begin, begin + bucket < elements ? begin + bucket : elements};
  }
  mark(program, bucket, list, count);
  qsort(list, (size_t)count, sizeof *list, compare);
  if (count == 0 || list[0].after < 0) { /* nothing is rounded one by one */
    free(list);
    return ISO_OK;
  }
  int kept = 0;
  for (int b = 1; b < count; b++) {
    if (list[b].after == list[kept].after && list[b].begin == list[kept].end)
      list[kept].end = list[b].end;
    else
      list[++kept] = list[b];
  }
  *out = list;
  *out_count = kept + 1;
  return ISO_OK;
}
