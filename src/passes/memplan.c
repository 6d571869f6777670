/* SPDX-License-Identifier: Apache-2.0
 *
 * memplan: offsets of all buffers in the transient arena.
 *
 * Buffers have fixed lifetimes (instructions first..last); two that live at once must not overlap. Finding the smallest
 * arena is NP-hard, so several orders of placing buffers one by one are tried, each into the tightest gap that fits,
 * and the best is improved by a bounded search: what sits at the top of the arena is placed earlier. The bound that
 * none can beat is the largest sum of bytes live at one instruction; the search stops when it is reached.
 *
 * Invariants
 *  1. Offsets are multiples of 64 bytes; buffers that live at once do not overlap (check.c proves it again, on its
 * own).
 *  2. Deterministic: no clock, no address, ties by buffer number; the search's random numbers are counter-based.
 */
#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 64

static int64_t aligned(int64_t bytes) {
  return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

typedef struct planner {
  const iso_buffer *buffers;
  int count, peak; /* peak: instruction with the most live bytes */
  int *order, *candidate, *sorted, *key;
  int64_t *offset, *best_offset, *weight;
} planner;

static bool together(const iso_buffer *a, const iso_buffer *b) {
  return a->first <= b->last && b->first <= a->last;
}

/* Places buffers in this order, each into the smallest gap between those it lives with that holds it, else above them.
 * Returns the arena's size; stops early, with a size above it, when `limit` is exceeded. */
static int64_t place_all(planner *p, const int *order, int64_t limit) {
  int64_t size = 0;
  int placed = 0;
  for (int k = 0; k < p->count; k++) {
    int id = order[k];
    const iso_buffer *buffer = &p->buffers[id];
    int64_t need = aligned(buffer->bytes), top = 0, best = -1, best_gap = INT64_MAX;
    for (int j = 0; j < placed; j++) {
      int other = p->sorted[j];
      if (!together(buffer, &p->buffers[other])) continue;
      int64_t gap = p->offset[other] - top;
      if (gap >= need && gap < best_gap) {
        best = top;
        best_gap = gap;
      }
      int64_t end = p->offset[other] + aligned(p->buffers[other].bytes);
      if (end > top) top = end;
    }
    p->offset[id] = best >= 0 ? best : top;
    if (p->offset[id] + need > size) size = p->offset[id] + need;
    if (size > limit) return size;
    int at = placed++;
    for (; at > 0 && p->offset[p->sorted[at - 1]] > p->offset[id]; at--) p->sorted[at] = p->sorted[at - 1];
    p->sorted[at] = id;
  }
  return size;
}

/* Orders by weight, largest first, then by number. Insertion into runs: merge sort, bottom up, with candidate as the
 * second array. */
static void sort_by_weight(planner *p, int *order, int *other) {
  for (int i = 0; i < p->count; i++) order[i] = i;
  for (int width = 1; width < p->count; width *= 2) {
    for (int begin = 0; begin < p->count; begin += 2 * width) {
      int middle = begin + width < p->count ? begin + width : p->count;
      int end = begin + 2 * width < p->count ? begin + 2 * width : p->count;
      for (int i = begin, j = middle, k = begin; k < end; k++) {
        bool left = i < middle && (j >= end || p->weight[order[i]] >= p->weight[order[j]]);
        other[k] = left ? order[i++] : order[j++];
      }
    }
    memcpy(order, other, sizeof *order * (size_t)p->count);
  }
}

enum { BY_SIZE, BY_LIFE, BY_AREA, BY_PEAK_LIFE, BY_PEAK_SIZE, BY_PEAK_BIRTH, BY_BIRTH, STRATEGIES };

static int64_t weigh(const planner *p, const iso_buffer *b, int strategy) {
  int64_t size = aligned(b->bytes), life = b->last - b->first + 1;
  bool at_peak = b->first <= p->peak && p->peak <= b->last;
  const int64_t first_class = (int64_t)1 << 60;
  switch (strategy) {
  case BY_SIZE:
    return size;
  case BY_LIFE:
    return life;
  case BY_AREA:
    return size / ALIGNMENT * life;
  case BY_PEAK_LIFE:
    return at_peak ? first_class + life : size;
  case BY_PEAK_SIZE:
    return at_peak ? first_class + size : size;
  case BY_PEAK_BIRTH:
    return at_peak ? first_class - b->first : size;
  default:
    return -b->first;
  }
}

static int64_t try_strategies(planner *p) {
  int64_t best = INT64_MAX;
  for (int strategy = 0; strategy < STRATEGIES; strategy++) {
    for (int i = 0; i < p->count; i++) p->weight[i] = weigh(p, &p->buffers[i], strategy);
    sort_by_weight(p, p->candidate, p->key);
    int64_t size = place_all(p, p->candidate, best == INT64_MAX ? INT64_MAX : best - 1);
    if (size >= best) continue;
    best = size;
    memcpy(p->order, p->candidate, sizeof *p->order * (size_t)p->count);
    memcpy(p->best_offset, p->offset, sizeof *p->offset * (size_t)p->count);
  }
  return best;
}

/* Position in `order` of a buffer that ends at the arena's top, under best_offset; the pick-th such one, wrapping. */
static int top_position(const planner *p, int64_t size, uint32_t pick) {
  int found = 0, last = 0;
  for (int round = 0; round < 2; round++) {
    int seen = 0;
    for (int k = 0; k < p->count; k++) {
      int id = p->order[k];
      if (p->best_offset[id] + aligned(p->buffers[id].bytes) < size) continue;
      if (round == 1 && seen == (int)(pick % (uint32_t)found)) return k;
      last = k;
      seen++;
    }
    found = seen;
    if (found == 0) return last;
  }
  return last;
}

static void move(int *order, int from, int to) {
  int id = order[from];
  for (; from > to; from--) order[from] = order[from - 1];
  for (; from < to; from++) order[from] = order[from + 1];
  order[from] = id;
}

/* Local search: moves top buffers (and, half the time, a random one too) to earlier turns; keeps what is not worse. */
static int64_t improve(planner *p, int64_t size, int64_t bound) {
  int64_t pairs = (int64_t)p->count * p->count;
  int rounds = pairs > 0 ? (int)(400000000 / pairs) : 0;
  if (rounds > 2000) rounds = 2000;
  for (int round = 0; round < rounds && size > bound; round++) {
    uint32_t random[4];
    iso_rng(1, ISO_RNG_TEST, 0, (uint64_t)round, random);
    memcpy(p->candidate, p->order, sizeof *p->order * (size_t)p->count);
    int from = top_position(p, size, random[0]);
    move(p->candidate, from, (int)(random[1] % (uint32_t)(from + 1)));
    if ((random[2] & 1) != 0) {
      move(p->candidate, (int)((random[2] >> 1) % (uint32_t)p->count), (int)(random[3] % (uint32_t)p->count));
    }
    int64_t found = place_all(p, p->candidate, size);
    if (found > size) continue;
    size = found;
    memcpy(p->order, p->candidate, sizeof *p->order * (size_t)p->count);
    memcpy(p->best_offset, p->offset, sizeof *p->offset * (size_t)p->count);
  }
  return size;
}

/* Bytes live at each instruction; returns the largest sum (of true sizes), the aligned one in *bound. */
static int64_t find_peak(const iso_program *program, int64_t *live, int *peak, int64_t *bound) {
  int count = program->instruction_count;
  int64_t most = 0;
  *bound = 0;
  for (int pass = 0; pass < 2; pass++) {
    memset(live, 0, sizeof *live * ((size_t)count + 1));
    for (int i = 0; i < program->buffer_count; i++) {
      const iso_buffer *buffer = &program->buffers[i];
      int64_t bytes = pass == 0 ? aligned(buffer->bytes) : buffer->bytes;
      live[buffer->first] += bytes;
      live[buffer->last + 1] -= bytes;
    }
    int64_t sum = 0;
    for (int i = 0; i < count; i++) {
      sum += live[i];
      if (pass == 0 && sum > *bound) *bound = sum;
      if (pass == 1 && sum > most) {
        most = sum;
        *peak = i;
      }
    }
  }
  return most;
}

static void settle(iso_program *program, iso_operand *operand) {
  if (operand->present && operand->buffer >= 0) operand->offset += program->buffers[operand->buffer].offset;
}

iso_status iso_pass_memplan(iso_program *program) {
  size_t count = (size_t)program->buffer_count + 1;
  planner p = {.buffers = program->buffers, .count = program->buffer_count};
  int *ints = calloc(4 * count, sizeof *ints);
  int64_t *longs = calloc(3 * count, sizeof *longs);
  int64_t *live = calloc((size_t)program->instruction_count + 2, sizeof *live), bound = 0;
  if (ints == NULL || longs == NULL || live == NULL) {
    free(live);
    free(longs);
    free(ints);
    return iso_fail(ISO_ERR_MEMORY, "memplan: no memory");
  }
  p.order = ints;
  p.candidate = ints + count;
  p.sorted = ints + 2 * count;
  p.key = ints + 3 * count;
  p.offset = longs;
  p.best_offset = longs + count;
  p.weight = longs + 2 * count;
  program->live_peak_bytes = find_peak(program, live, &p.peak, &bound);
  program->arena_bytes = 0;
  if (p.count > 0) program->arena_bytes = improve(&p, try_strategies(&p), bound);
  for (int i = 0; i < p.count; i++) program->buffers[i].offset = p.best_offset[i];
  for (int i = 0; i < program->instruction_count; i++) {
    iso_instruction *instruction = &program->instructions[i];
    for (int k = 0; k < instruction->input_count; k++) settle(program, &instruction->inputs[k]);
    for (int k = 0; k < instruction->output_count; k++) settle(program, &instruction->outputs[k]);
    settle(program, &instruction->scratch);
  }
  free(live);
  free(longs);
  free(ints);
  return ISO_OK;
}
