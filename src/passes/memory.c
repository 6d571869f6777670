/* SPDX-License-Identifier: Apache-2.0
 *
 * memory: the memory of a program as a report: bytes by space, and what is live at the arena's peak.
 *
 * The last line is fixed: "arena: <bytes> bytes, live at peak <bytes> bytes, use <percent>%".
 */
#include "passes/passes.h"

#include <stdlib.h>

#define LARGEST 12

int iso_program_peak(const iso_program *program, int64_t *bytes) {
  int peak = 0;
  int64_t *change = calloc((size_t)program->instruction_count + 2, sizeof *change), sum = 0;
  *bytes = 0;
  if (change == NULL) return 0;
  for (int i = 0; i < program->buffer_count; i++) {
    const iso_buffer *buffer = &program->buffers[i];
    const int64_t size = (buffer->bytes + 63) / 64 * 64;
    change[buffer->first] += size;
    change[buffer->last + 1] -= size;
  }
  for (int i = 0; i < program->instruction_count; i++) {
    sum += change[i];
    if (sum <= *bytes) continue;
    *bytes = sum;
    peak = i;
  }
  free(change);
  return peak;
}

static bool live_at(const iso_buffer *buffer, int instruction) {
  return buffer->first <= instruction && instruction <= buffer->last;
}

/* The largest buffers live at the peak, by repeated selection (few of many). */
static void print_largest(const iso_program *program, int peak, iso_string *out) {
  const iso_buffer *shown = NULL;
  int64_t rest = 0;
  int live = 0;
  for (int i = 0; i < program->buffer_count; i++) {
    if (!live_at(&program->buffers[i], peak)) continue;
    rest += program->buffers[i].bytes;
    live++;
  }
  iso_string_printf(out, "%16s  %s\n", "bytes", "live at the peak");
  for (int k = 0; k < LARGEST && k < live; k++) {
    const iso_buffer *next = NULL;
    for (int i = 0; i < program->buffer_count; i++) {
      const iso_buffer *b = &program->buffers[i];
      bool after = shown == NULL || b->bytes < shown->bytes || (b->bytes == shown->bytes && b > shown);
      if (live_at(b, peak) && after && (next == NULL || b->bytes > next->bytes)) next = b;
    }
    shown = next;
    rest -= next->bytes;
    const iso_tensor *t = next->value >= 0 ? &program->graph->tensors[next->value] : NULL;
    iso_string_printf(out, "%16lld  %s", (long long)next->bytes, t != NULL ? t->name : "workspace");
    if (t != NULL) {
      iso_string_printf(out, " %s[", iso_dtype_name(t->dtype));
      for (int d = 0; d < t->rank; d++) iso_string_printf(out, "%s%lld", d > 0 ? "," : "", (long long)t->shape[d]);
      iso_string_printf(out, "] of %s", iso_op_get(program->graph->nodes[t->producer].op)->text);
    }
    iso_string_printf(out, "\n");
  }
  if (live > LARGEST) iso_string_printf(out, "%16lld  %d smaller ones\n", (long long)rest, live - LARGEST);
}

void iso_memory_print(const iso_program *program, iso_string *out) {
  int64_t total = 0;
  iso_string_printf(out, "%-12s %16s\n", "space", "bytes");
  for (int space = 0; space < ISO_SPACE_COUNT; space++) {
    int64_t bytes = iso_program_space_bytes(program, (iso_space)space);
    if (bytes == 0) continue;
    iso_string_printf(out, "%-12s %16lld\n", iso_space_name((iso_space)space), (long long)bytes);
    total += bytes;
  }
  iso_string_printf(out, "%-12s %16lld\n", "total", (long long)total);
  if (program->buffer_count > 0) {
    int64_t bytes = 0;
    int peak = iso_program_peak(program, &bytes);
    iso_string_printf(out, "peak at instruction %d of %d (%s)\n", peak, program->instruction_count,
                      iso_op_get(program->instructions[peak].op)->text);
    print_largest(program, peak, out);
  }
  iso_recompute_print(program->graph, out);
  double use =
      program->arena_bytes > 0 ? 100.0 * (double)program->live_peak_bytes / (double)program->arena_bytes : 100.0;
  iso_string_printf(out, "arena: %lld bytes, live at peak %lld bytes, use %.2f%%\n", (long long)program->arena_bytes,
                    (long long)program->live_peak_bytes, use);
}
