/* SPDX-License-Identifier: Apache-2.0
 *
 * guarded.h: matrices for kernel tests whose surroundings are watched, random numbers, and running a kernel on a team.
 *
 * A guarded matrix fills its gaps and both ends with 0xFF bytes: read as numbers they are NaNs, which spoil a result;
 * written over, guarded_intact() fails. An input's last element ends its heap block, so that a sanitizer sees one byte
 * read too much.
 */
#ifndef ISO_TESTS_GUARDED_H
#define ISO_TESTS_GUARDED_H

#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 128 };

typedef struct guarded {
  iso_matrix m;
  unsigned char *block;
  size_t bytes;
} guarded;

static uint64_t test_state = 0x9E3779B97F4A7C15u;

static inline uint32_t test_random(void) {
  test_state ^= test_state << 13;
  test_state ^= test_state >> 7;
  test_state ^= test_state << 17;
  return (uint32_t)(test_state >> 32);
}
/* In [0, count). */
static inline int64_t test_below(int64_t count) {
  return (int64_t)(test_random() % (uint64_t)count);
}
/* In [-1, 1). */
static inline float test_value(void) {
  return (float)((int32_t)(test_random() >> 8) - (1 << 23)) * 0x1p-23f;
}

static inline float matrix_get(const iso_matrix *m, int64_t i, int64_t j) {
  int64_t at = i * m->ld + j;
  if (m->dtype == ISO_F32) {
    float x;
    memcpy(&x, (const char *)m->data + at * 4, 4);
    return x;
  }
  iso_bf16 x;
  memcpy(&x, (const char *)m->data + at * 2, 2);
  return iso_bf16_to_f32(x);
}
static inline void matrix_set(const iso_matrix *m, int64_t i, int64_t j, float value) {
  int64_t at = i * m->ld + j;
  iso_bf16 half = iso_bf16_from_f32(value);
  if (m->dtype == ISO_F32)
    memcpy((char *)m->data + at * 4, &value, 4);
  else
    memcpy((char *)m->data + at * 2, &half, 2);
}

/* `gap` elements between rows; the first element lies `shift` elements after a 64-byte boundary. */
static inline guarded guarded_create(int64_t rows, int64_t cols, int64_t gap, int64_t shift, iso_dtype dtype,
                                     bool output) {
  guarded g;
  size_t size = iso_dtype_size(dtype);
  int64_t ld = cols + gap;
  size_t span = rows > 0 && cols > 0 ? (size_t)((rows - 1) * ld + cols) * size : 0;
  size_t before = GUARD_BYTES + (size_t)shift * size;
  g.bytes = before + span + (output ? GUARD_BYTES : 0);
  void *block = NULL;
  if (posix_memalign(&block, 64, g.bytes) != 0) exit(1);
  g.block = block;
  memset(g.block, 0xFF, g.bytes);
  g.m = (iso_matrix){g.block + before, rows, cols, ld, dtype};
  return g;
}
static inline void guarded_destroy(guarded *g) {
  free(g->block);
  g->block = NULL;
}
static inline void guarded_fill(guarded *g, float scale) {
  for (int64_t i = 0; i < g->m.rows; i++)
    for (int64_t j = 0; j < g->m.cols; j++) matrix_set(&g->m, i, j, test_value() * scale);
}
static inline guarded guarded_copy(const guarded *g) {
  guarded copy = *g;
  void *block = NULL;
  if (posix_memalign(&block, 64, g->bytes) != 0) exit(1);
  memcpy(block, g->block, g->bytes);
  copy.block = block;
  copy.m.data = copy.block + ((unsigned char *)g->m.data - g->block);
  return copy;
}
static inline bool guarded_same(const guarded *a, const guarded *b) {
  return a->bytes == b->bytes && memcmp(a->block, b->block, a->bytes) == 0;
}
/* All bytes that are no elements are as they were made. */
static inline bool guarded_intact(const guarded *g) {
  size_t size = iso_dtype_size(g->m.dtype);
  size_t first = (size_t)((unsigned char *)g->m.data - g->block);
  for (size_t at = 0; at < g->bytes; at++) {
    if (at >= first && g->m.cols > 0 && g->m.rows > 0) {
      size_t element = (at - first) / size;
      if (element / (size_t)g->m.ld < (size_t)g->m.rows && element % (size_t)g->m.ld < (size_t)g->m.cols) continue;
    }
    if (g->block[at] != 0xFF) return false;
  }
  return true;
}

/* Calls a kernel on `threads` threads with scratch of exactly `scratch_bytes`, full of NaNs and guarded. Returns
 * whether the guard held. */
typedef struct kernel_call {
  void (*function)(const void *args, const iso_worker *worker);
  const void *args;
  iso_worker worker;
} kernel_call;

static inline void kernel_call_thread(void *argument, int thread) {
  const kernel_call *call = argument;
  iso_worker worker = call->worker;
  worker.thread = thread;
  call->function(call->args, &worker);
}

static inline bool kernel_run(void (*function)(const void *, const iso_worker *), const void *args,
                              size_t scratch_bytes, int threads) {
  static iso_team *teams[17];
  if (threads > 1 && !teams[threads]) teams[threads] = iso_team_create(threads, false);
  void *scratch = NULL;
  if (posix_memalign(&scratch, 64, scratch_bytes + GUARD_BYTES) != 0) exit(1);
  memset(scratch, 0xFF, scratch_bytes + GUARD_BYTES);
  kernel_call call = {function, args, {0, threads, threads > 1 ? teams[threads] : NULL, scratch}};
  if (threads > 1)
    iso_team_run(teams[threads], kernel_call_thread, &call);
  else
    kernel_call_thread(&call, 0);
  bool intact = true;
  for (int i = 0; i < GUARD_BYTES; i++)
    intact = intact && ((unsigned char *)scratch)[scratch_bytes + (size_t)i] == 0xFF;
  free(scratch);
  return intact;
}

#endif
