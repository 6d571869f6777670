/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory planner on invented lifetimes: nothing overlaps, places are aligned, the same plan every time, and little
 * is lost.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "passes/passes.h"

#include <stdlib.h>
#include <string.h>

static uint32_t draws;

static uint32_t draw(uint32_t below) {
  uint32_t out[4];
  iso_rng(13, ISO_RNG_TEST, 3, draws++, out);
  return out[0] % below;
}

static void plan(iso_program *p) {
  assert_int_equal(iso_pass_memplan(p), ISO_OK);
  int64_t end = 0, most = 0;
  for (int i = 0; i < p->buffer_count; i++) {
    const iso_buffer *a = &p->buffers[i];
    assert_int_equal(a->offset % 64, 0);
    assert_true(a->offset >= 0);
    if (a->offset + a->bytes > end) end = a->offset + a->bytes;
    for (int j = 0; j < i; j++) {
      const iso_buffer *b = &p->buffers[j];
      bool together = a->first <= b->last && b->first <= a->last;
      bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
      assert_true(!together || apart);
    }
  }
  for (int at = 0; at < p->instruction_count; at++) {
    int64_t live = 0;
    for (int i = 0; i < p->buffer_count; i++) {
      if (p->buffers[i].first <= at && at <= p->buffers[i].last) live += p->buffers[i].bytes;
    }
    if (live > most) most = live;
  }
  assert_int_equal(p->live_peak_bytes, most);
  assert_true(p->arena_bytes >= end && p->arena_bytes < end + 64);
}

/* `kind` 0: random lifetimes; 1: like training, tensors of a way there that are read on the way back, and short-lived
 * ones. */
static void invent(iso_program *p, int kind, int count, int instructions) {
  p->instruction_count = instructions;
  p->buffer_count = count;
  for (int i = 0; i < count; i++) {
    int a = (int)draw((uint32_t)instructions), b = (int)draw((uint32_t)instructions);
    if (kind == 1 && i % 3 != 0) {
      a = (int)draw((uint32_t)instructions / 2);
      b = instructions - 1 - a;
    } else if (kind == 1) {
      b = a + (int)draw(3) < instructions ? a + (int)draw(3) : a;
    }
    if (b >= instructions) b = instructions - 1;
    p->buffers[i] = (iso_buffer){.bytes = 64 + (int64_t)draw(64) * (draw(4) == 0 ? 1000 : 64),
                                 .first = a < b ? a : b,
                                 .last = a < b ? b : a,
                                 .value = -1};
  }
}

static void invented_lifetimes_are_planned_well(void **state) {
  iso_buffer *buffers = calloc(1000, sizeof *buffers), *again = calloc(1000, sizeof *again);
  iso_instruction *instructions = calloc(1000, sizeof *instructions);
  double sum[2] = {0, 0};
  for (int round = 0; round < 40; round++) {
    iso_program p = {.buffers = buffers, .instructions = instructions};
    int kind = round % 2;
    invent(&p, kind, 1 + (int)draw(200), 2 + (int)draw(300));
    memcpy(again, buffers, sizeof *again * (size_t)p.buffer_count);
    plan(&p);
    iso_program q = p;
    q.buffers = again;
    plan(&q);
    assert_int_equal(q.arena_bytes, p.arena_bytes);
    assert_memory_equal(again, buffers, sizeof *again * (size_t)p.buffer_count);
    double use = (double)p.live_peak_bytes / (double)p.arena_bytes;
    sum[kind] += use / 20;
    assert_true(use >= (kind == 1 ? 0.97 : 0.90));
  }
  printf("mean use: random lifetimes %.4f, nested ones %.4f\n", sum[0], sum[1]);
  assert_true(sum[0] >= 0.97);
  assert_true(sum[1] >= 0.99);
  free(instructions);
  free(again);
  free(buffers);
}

static void an_empty_program_needs_nothing(void **state) {
  iso_program p = {0};
  assert_int_equal(iso_pass_memplan(&p), ISO_OK);
  assert_int_equal(p.arena_bytes, 0);
  assert_int_equal(p.live_peak_bytes, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(invented_lifetimes_are_planned_well),
      cmocka_unit_test(an_empty_program_needs_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
