/* SPDX-License-Identifier: Apache-2.0
 *
 * rows_check.h: what the tests of the row and flat kernels share: guarded buffers, random values, runs on teams,
 * bounds.
 *
 * A buffer ends exactly at a page that cannot be read or written, and every byte that is not an element (the space
 * before it, the gaps between rows) holds a pattern that a kernel must leave as it is. Buffers end at arbitrary element
 * boundaries, so pointers are unaligned in all ways.
 */
#ifndef TESTS_KERNELS_ROWS_CHECK_H
#define TESTS_KERNELS_ROWS_CHECK_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/kernels.h"

#define UNUSED __attribute__((unused))
#define UNIT   0x1p-24 /* half an ulp of float32, relative */

/* ---- random numbers of the tests ---- */

static uint64_t random_state = 1;
static UNUSED uint32_t random_bits(void) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(random_state >> 33) ^ (uint32_t)(random_state >> 11);
}
static UNUSED int64_t random_below(int64_t count) {
  return count > 0 ? (int64_t)(random_bits() % (uint64_t)count) : 0;
}
/* Uniform in [-1, 1). */
static UNUSED double random_unit(void) {
  return (double)random_bits() / 2147483648.0 - 1.0;
}
/* About normal, deviation 1. */
static UNUSED double random_normal(void) {
  double sum = 0;
  for (int i = 0; i < 12; i++) sum += random_unit();
  return sum / 2;
}
/* NaNs, infinities, zeros, subnormals and the like. */
static UNUSED double random_special(void) {
  static const double values[] = {0,         -0.0,     1,         -1,         INFINITY, -INFINITY, NAN,     0x1p-149,
                                  -0x1p-149, 0x1p-127, -0x1p-133, 0x1.8p-126, 88.75,    -88.75,    -103.97, -150,
                                  20,        -20,      0x1.01p0,  0x1.03p0,   3e38,     -3e38};
  return values[random_below((int64_t)(sizeof values / sizeof *values))];
}

/* ---- guarded buffers ---- */

typedef struct buffer {
  iso_matrix m;
  unsigned char *map, *saved; /* saved: the bytes that restore() brings back */
  size_t size, bytes;         /* of the mapping without its last page; of the used end of it */
} buffer;

static UNUSED size_t element_size(iso_dtype dtype) {
  return dtype == ISO_BF16 ? 2 : dtype == ISO_F64 ? 8 : 4;
}

/* rows x cols with `gap` elements between rows; no gap after the last row. */
static UNUSED buffer buffer_new(int64_t rows, int64_t cols, int64_t gap, iso_dtype dtype) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  buffer b = {.m = {NULL, rows, cols, cols + gap, dtype}};
  b.bytes = rows > 0 ? (size_t)((rows - 1) * (cols + gap) + cols) * element_size(dtype) : 0;
  b.size = (b.bytes + page) / page * page + page;
  b.map = mmap(NULL, b.size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(b.map != MAP_FAILED);
  assert_int_equal(mprotect(b.map + b.size, page, PROT_NONE), 0);
  memset(b.map, 0xA5, b.size);
  b.m.data = b.map + b.size - b.bytes;
  b.saved = NULL;
  return b;
}

static UNUSED void buffer_free(buffer *b) {
  munmap(b->map, b->size + (size_t)sysconf(_SC_PAGESIZE));
  free(b->saved);
}

static UNUSED double matrix_get(const iso_matrix *m, int64_t i, int64_t j) {
  int64_t at = i * m->ld + j;
  return m->dtype == ISO_F32 ? ((const float *)m->data)[at] : iso_bf16_to_f32(((const iso_bf16 *)m->data)[at]);
}
static UNUSED double get(const buffer *b, int64_t i, int64_t j) {
  return matrix_get(&b->m, i, j);
}
static UNUSED void set(buffer *b, int64_t i, int64_t j, double value) {
  int64_t at = i * b->m.ld + j;
  if (b->m.dtype == ISO_F32)
    ((float *)b->m.data)[at] = (float)value;
  else
    ((iso_bf16 *)b->m.data)[at] = iso_bf16_from_f32((float)value);
}
static UNUSED float *floats(const buffer *b) {
  return b->m.data;
}

typedef enum fill_kind { FILL_NORMAL, FILL_SPECIAL } fill_kind;
static UNUSED void fill(buffer *b, fill_kind kind, double scale) {
  for (int64_t i = 0; i < b->m.rows; i++)
    for (int64_t j = 0; j < b->m.cols; j++)
      set(b, i, j, kind == FILL_SPECIAL && random_below(3) == 0 ? random_special() : scale * random_normal());
}

/* Fills, a NaN in every element: what a kernel must overwrite. */
static UNUSED void fill_nan(buffer *b) {
  for (int64_t i = 0; i < b->m.rows; i++)
    for (int64_t j = 0; j < b->m.cols; j++) set(b, i, j, NAN);
}

static UNUSED void save(buffer *b) {
  free(b->saved);
  b->saved = malloc(b->size);
  assert_non_null(b->saved);
  memcpy(b->saved, b->map, b->size);
}
static UNUSED void restore(buffer *b) {
  memcpy(b->map, b->saved, b->size);
}

/* Every byte outside the elements still holds the pattern. */
static UNUSED void check_guards(const buffer *b) {
  size_t element = element_size(b->m.dtype), before = b->size - b->bytes;
  for (size_t i = 0; i < before; i++) assert_int_equal(b->map[i], 0xA5);
  for (int64_t row = 0; row + 1 < b->m.rows; row++) {
    const unsigned char *gap = b->map + before + (size_t)(row * b->m.ld + b->m.cols) * element;
    for (size_t i = 0; i < (size_t)(b->m.ld - b->m.cols) * element; i++) assert_int_equal(gap[i], 0xA5);
  }
}

/* ---- runs ---- */

typedef enum kernel_op {
  OP_EMBEDDING,
  OP_EMBEDDING_GRAD,
  OP_NORM,
  OP_NORM_GRAD,
  OP_ADD_NORM,
  OP_NORM_GRAD_ADD,
  OP_ROPE,
  OP_SWIGLU,
  OP_SWIGLU_GRAD,
  OP_GELU,
  OP_GELU_GRAD,
  OP_ADD,
  OP_CAST,
  OP_COLUMN_SUM,
  OP_SOFTMAX_PART,
  OP_SOFTMAX_FINISH,
  OP_FLAT_ADD,
  OP_GRAD_ROUND,
  OP_ADAMW
} kernel_op;

typedef struct kernel_run {
  const iso_kernels *table;
  kernel_op op;
  const void *args;
  void *scratch;
  iso_team *team;
  int threads;
} kernel_run;

static UNUSED void run_thread(void *argument, int thread) {
  const kernel_run *run = argument;
  const iso_kernels *k = run->table;
  iso_worker worker = {thread, run->threads, run->team, run->scratch};
  switch (run->op) {
  case OP_EMBEDDING:
    k->embedding(run->args, &worker);
    break;
  case OP_EMBEDDING_GRAD:
    k->embedding_grad(run->args, &worker);
    break;
  case OP_NORM:
    k->norm(run->args, &worker);
    break;
  case OP_NORM_GRAD:
    k->norm_grad(run->args, &worker);
    break;
  case OP_ADD_NORM:
    k->add_norm(run->args, &worker);
    break;
  case OP_NORM_GRAD_ADD:
    k->norm_grad_add(run->args, &worker);
    break;
  case OP_ROPE:
    k->rope(run->args, &worker);
    break;
  case OP_SWIGLU:
    k->swiglu(run->args, &worker);
    break;
  case OP_SWIGLU_GRAD:
    k->swiglu_grad(run->args, &worker);
    break;
  case OP_GELU:
    k->gelu(run->args, &worker);
    break;
  case OP_GELU_GRAD:
    k->gelu_grad(run->args, &worker);
    break;
  case OP_ADD:
    k->add(run->args, &worker);
    break;
  case OP_CAST:
    k->cast(run->args, &worker);
    break;
  case OP_COLUMN_SUM:
    k->column_sum(run->args, &worker);
    break;
  case OP_SOFTMAX_PART:
    k->softmax_part(run->args, &worker);
    break;
  case OP_SOFTMAX_FINISH:
    k->softmax_finish(run->args, &worker);
    break;
  case OP_FLAT_ADD:
    k->flat_add(run->args, &worker);
    break;
  case OP_GRAD_ROUND:
    k->grad_round(run->args, &worker);
    break;
  case OP_ADAMW:
    k->adamw(run->args, &worker);
    break;
  }
}

static const int team_sizes[] = {1, 2, 3, 5};
static iso_team *teams[4];

static UNUSED int setup_teams(void **state) {
  (void)state;
  for (int i = 1; i < 4; i++)
    if (!(teams[i] = iso_team_create(team_sizes[i], false))) return 1;
  return 0;
}
static UNUSED int teardown_teams(void **state) {
  (void)state;
  for (int i = 1; i < 4; i++) iso_team_destroy(&teams[i]);
  return 0;
}

/* Runs on 1, 2, 3 and 5 threads from the same state with scratch full of NaNs: the same bytes each time, and no guard
 * touched. The outputs are those of the run on one thread. */
static UNUSED void run_kernel(const iso_kernels *table, kernel_op op, const void *args, size_t scratch_bytes,
                              buffer *const *outputs, int count) {
  unsigned char *first[8] = {NULL};
  size_t scratch_size = (scratch_bytes + 63) / 64 * 64 + 64;
  void *scratch = aligned_alloc(64, scratch_size);
  assert_true(count <= 8 && scratch);
  for (int k = 0; k < count; k++) save(outputs[k]);
  for (int i = 0; i < 4; i++) {
    kernel_run run = {table, op, args, scratch, teams[i], team_sizes[i]};
    memset(scratch, 0xFF, scratch_bytes);
    memset((char *)scratch + scratch_bytes, 0xA5, scratch_size - scratch_bytes);
    for (int k = 0; k < count; k++) restore(outputs[k]);
    if (teams[i])
      iso_team_run(teams[i], run_thread, &run);
    else
      run_thread(&run, 0);
    for (size_t k = scratch_bytes; k < scratch_size; k++) assert_int_equal(((unsigned char *)scratch)[k], 0xA5);
    for (int k = 0; k < count; k++) {
      if (i == 0) {
        first[k] = malloc(outputs[k]->size);
        assert_non_null(first[k]);
        memcpy(first[k], outputs[k]->map, outputs[k]->size);
        check_guards(outputs[k]);
      } else {
        assert_memory_equal(first[k], outputs[k]->map, outputs[k]->size);
      }
    }
  }
  for (int k = 0; k < count; k++) free(first[k]);
  free(scratch);
}

/* |value - expected| <= bound, widened by what rounding to the type costs; NaN wants NaN, infinity the same infinity.
 */
static UNUSED bool is_close(double value, double expected, double bound, iso_dtype dtype) {
  if (isnan(expected)) return isnan(value);
  double unit = dtype == ISO_BF16 ? 0x1p-8 : UNIT, top = dtype == ISO_BF16 ? 0x1.FEp127 : 0x1.FFFFFEp127;
  if (fabs(expected) > top) return fabs(value) >= top * (1 - 0x1p-7) && (value > 0) == (expected > 0);
  bound += fabs(expected) * unit + (dtype == ISO_BF16 ? 0x1p-134 : 0x1p-149);
  return fabs(value - expected) <= bound;
}

/* Prints where and what before it fails. */
#define assert_close(value, expected, bound, dtype, i, j)                                                              \
  do {                                                                                                                 \
    double value_ = (value), expected_ = (expected), bound_ = (bound);                                                 \
    if (!is_close(value_, expected_, bound_, dtype)) {                                                                 \
      print_error("at (%lld, %lld): %.9g, expected %.9g, off by %.3g, bound %.3g\n", (long long)(i), (long long)(j),   \
                  value_, expected_, fabs(value_ - expected_), bound_);                                                \
      fail();                                                                                                          \
    }                                                                                                                  \
  } while (0)

/* Every tier of this machine: for_each_tier(table) { ... } */
#define for_each_tier(table)                                                                                           \
  for (int tier_ = 0; tier_ <= (int)iso_cpu_best_tier(); tier_++)                                                      \
    for (const iso_kernels *table = iso_kernels_get((iso_tier)tier_); table; table = NULL)

static const iso_dtype compute_types[] = {ISO_F32, ISO_BF16};
static UNUSED iso_dtype random_type(void) {
  return compute_types[random_below(2)];
}

/* Widths around vector and block borders. */
static UNUSED int64_t random_width(void) {
  static const int64_t widths[] = {0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 130, 257, 511};
  return widths[random_below((int64_t)(sizeof widths / sizeof *widths))];
}

#endif
