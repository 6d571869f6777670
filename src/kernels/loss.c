/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear layer and cross-entropy in one, without logits in memory. Rows go in chunks of ISO_LOSS_CHUNK. Of a chunk each
 * thread multiplies blocks of ISO_SOFTMAX_BLOCK columns into a window of its own that stays in its cache, and takes
 * their exponentials there, relative to the block's top in each row. When all are there, rows are brought to one top
 * and to the loss's gradient in place, which both gradient products read. Written over the kernel table, so every tier
 * has it.
 *
 * Scratch: the chunk's exponentials, then gradient, [chunk, V] in the compute type, rows padded to whole lines; tops
 * and sums of blocks; the logits at the labels; then a window for each thread and the products' own.
 *
 * Invariants
 *  1. Blocks begin at multiples of ISO_SOFTMAX_BLOCK, whoever multiplies them: the bits do not depend on the threads.
 *  2. Threads meet at a barrier between stages, because each stage reads what all threads wrote.
 */
#include "kernels/rows.h"

enum { ROWS_LEAST = 8 }; /* of a thread's part, where rows are shared */

static size_t aligned(size_t bytes) {
  return (bytes + 63) & ~(size_t)63;
}

static size_t larger(size_t a, size_t b) {
  return a > b ? a : b;
}

static int64_t lesser(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t blocks_of(int64_t vocabulary) {
  return (vocabulary + ISO_SOFTMAX_BLOCK - 1) / ISO_SOFTMAX_BLOCK;
}

/* Elements from row to row of the gradient: an odd number of cache lines, so that rows do not meet in a set of them. */
static int64_t gradient_stride(int64_t vocabulary, iso_dtype type) {
  const int64_t line = 64 / (int64_t)iso_dtype_size(type);
  return ((vocabulary + line - 1) / line | 1) * line;
}

/* Bytes of the areas of scratch, each a multiple of 64. */
typedef struct loss_plan {
  size_t gradient, stats, at_label, window, block, product; /* stats: of tops, and of sums; block: of one thread */
} loss_plan;

static loss_plan plan_loss(int64_t rows, int64_t width, int64_t vocabulary, iso_dtype type, int threads) {
  const int64_t chunk = lesser(rows, ISO_LOSS_CHUNK), block = lesser(vocabulary, ISO_SOFTMAX_BLOCK);
  loss_plan plan;
  plan.gradient = aligned((size_t)(chunk * gradient_stride(vocabulary, type)) * iso_dtype_size(type));
  plan.stats = aligned((size_t)(chunk * blocks_of(vocabulary)) * sizeof(float));
  plan.at_label = aligned((size_t)chunk * sizeof(float));
  plan.window = aligned((size_t)(chunk * block) * sizeof(float));
  plan.block = plan.window + iso_gemm_scratch(chunk, block, width, type, 1);
  plan.product = larger(iso_gemm_scratch(chunk, width, vocabulary, type, threads),
                        iso_gemm_scratch(vocabulary, width, chunk, type, threads));
  return plan;
}

size_t iso_linear_cross_entropy_scratch(int64_t rows, int64_t width, int64_t vocabulary, iso_dtype type, int threads) {
  const loss_plan plan = plan_loss(rows, width, vocabulary, type, threads);
  return plan.gradient + 2 * plan.stats + plan.at_label + larger(plan.block * (size_t)threads, plan.product);
}

/* `count` rows of m from `first` on, and of them `cols` columns from `col` on. */
static iso_matrix part_of(const iso_matrix *m, int64_t first, int64_t count, int64_t col, int64_t cols) {
  void *at = m->data ? iso_matrix_at(m, first, col) : NULL;
  return (iso_matrix){at, count, cols, m->ld, m->dtype};
}

/* A chunk of rows on its way. */
typedef struct loss_chunk {
  const iso_kernels *kernels;
  iso_matrix x, weight, gradient; /* gradient: no data if it is not wanted */
  const int32_t *labels;
  float *tops, *sums, *at_label;
  int64_t blocks;
} loss_chunk;

typedef struct loss_epilogue {
  iso_epilogue base;
  const loss_chunk *chunk;
  iso_matrix window; /* rows x columns of the block */
  int64_t row, col;  /* of the window in the chunk */
} loss_epilogue;

/* Rows of the window whose columns are all there. */
static void loss_part(const iso_epilogue *base, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  const loss_epilogue *self = (const loss_epilogue *)base;
  const loss_chunk *chunk = self->chunk;
  const int64_t first = self->row + row, at = first * chunk->blocks + self->col / ISO_SOFTMAX_BLOCK;
  const iso_worker alone = {.threads = 1};
  const iso_softmax_part_args part = {.logits = part_of(&self->window, row, rows, col, cols),
                                      .exponentials = part_of(&chunk->gradient, first, rows, self->col + col, cols),
                                      .tops = chunk->tops + at,
                                      .sums = chunk->sums + at,
                                      .blocks = chunk->blocks};
  for (int64_t i = 0; i < rows; i++) {
    const int64_t label = chunk->labels[first + i] - self->col;
    if (label >= 0 && label < cols) chunk->at_label[first + i] = *(const float *)iso_matrix_at(&part.logits, i, label);
  }
  chunk->kernels->softmax_part(&part, &alone);
}

/* Columns [col, col + cols), a block, of rows [row, row + rows). */
static void run_block(const loss_chunk *chunk, int64_t row, int64_t rows, int64_t col, int64_t cols, char *scratch,
                      size_t window_bytes) {
  const iso_matrix window = {scratch, rows, cols, cols, ISO_F32};
  const loss_epilogue epilogue = {{loss_part, cols, false, cols}, chunk, window, row, col};
  const iso_gemm_args product = {.a = part_of(&chunk->x, row, rows, 0, chunk->x.cols),
                                 .b = part_of(&chunk->weight, col, cols, 0, chunk->x.cols),
                                 .c = window,
                                 .b_transposed = true,
                                 .epilogue = &epilogue.base};
  const iso_worker alone = {.threads = 1, .scratch = scratch + window_bytes};
  chunk->kernels->gemm(&product, &alone);
}

/* This thread's blocks. Threads share columns, and rows too where there are too few blocks for all: not too finely,
 * since products of few rows add in another order. */
static void run_blocks(const loss_chunk *chunk, const loss_plan *plan, const iso_worker *worker) {
  const int64_t rows = chunk->x.rows, vocabulary = chunk->weight.rows;
  const int across = (int)lesser(worker->threads, chunk->blocks);
  const int down = rows < 2 * ROWS_LEAST ? 1 : (int)lesser(worker->threads / across, rows / ROWS_LEAST);
  const iso_worker by_col = {.thread = worker->thread % across, .threads = across};
  const iso_worker by_row = {.thread = worker->thread / across, .threads = down};
  if (by_row.thread >= down) return;
  int64_t row, row_end, col, col_end;
  iso_split(rows, 1, &by_row, &row, &row_end);
  iso_split(vocabulary, ISO_SOFTMAX_BLOCK, &by_col, &col, &col_end);
  if (row == row_end) return;
  char *scratch = (char *)worker->scratch + plan->block * (size_t)worker->thread;
  for (; col < col_end; col += ISO_SOFTMAX_BLOCK)
    run_block(chunk, row, row_end - row, col, lesser(col_end - col, ISO_SOFTMAX_BLOCK), scratch, plan->window);
}

/* Both products of the chunk's gradient. */
static void run_gradients(const loss_chunk *chunk, const iso_matrix *dx, const iso_matrix *dweight, bool accumulate,
                          const iso_worker *worker) {
  const iso_gemm_args to_x = {.a = chunk->gradient, .b = chunk->weight, .c = *dx};
  chunk->kernels->gemm(&to_x, worker);
  iso_team_barrier(worker->team);
  const iso_gemm_args to_weight = {
      .a = chunk->gradient, .b = chunk->x, .c = *dweight, .a_transposed = true, .accumulate = accumulate};
  chunk->kernels->gemm(&to_weight, worker);
  iso_team_barrier(worker->team);
}

void iso_linear_cross_entropy(const iso_kernels *kernels, const iso_linear_cross_entropy_args *args,
                              const iso_worker *worker) {
  const iso_dtype type = args->x.dtype;
  const int64_t rows = args->x.rows, width = args->x.cols, vocabulary = args->weight.rows;
  const bool wanted = args->dx.data && args->dweight.data;
  const loss_plan plan = plan_loss(rows, width, vocabulary, type, worker->threads);
  char *gradient = worker->scratch, *tops = gradient + plan.gradient, *sums = tops + plan.stats;
  char *at_label = sums + plan.stats;
  iso_worker inner = *worker;
  inner.scratch = at_label + plan.at_label;
  bool accumulate = args->accumulate;
  int64_t first = 0;
  do { /* once also for no rows: dweight is then zeroed by a product of depth 0 */
    const int64_t count = lesser(rows - first, ISO_LOSS_CHUNK);
    const loss_chunk chunk = {
        .kernels = kernels,
        .x = part_of(&args->x, first, count, 0, width),
        .weight = args->weight,
        .gradient = {wanted ? gradient : NULL, count, vocabulary, gradient_stride(vocabulary, type), type},
        .labels = args->labels + first,
        .tops = (float *)(void *)tops,
        .sums = (float *)(void *)sums,
        .at_label = (float *)(void *)at_label,
        .blocks = blocks_of(vocabulary)};
    run_blocks(&chunk, &plan, &inner);
    iso_team_barrier(worker->team);
    const iso_softmax_finish_args finish = {chunk.gradient, chunk.tops,   chunk.sums,
                                            chunk.at_label, chunk.labels, args->loss + first};
    kernels->softmax_finish(&finish, &inner);
    iso_team_barrier(worker->team);
    if (wanted) {
      const iso_matrix dx = part_of(&args->dx, first, count, 0, width);
      run_gradients(&chunk, &dx, &args->dweight, accumulate, &inner);
      accumulate = true;
    }
    first += count;
  } while (first < rows);
}
