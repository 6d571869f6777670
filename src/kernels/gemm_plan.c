/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products over a tier's tile set: how C is dealt to threads, cut into blocks, and the scratch that takes.
 *
 * Threads form a grid over C; each computes one rectangle alone, packing what it needs into scratch of its own (the few
 * percent of packing done twice are cheaper than meeting at barriers). Inside, blocks of ROW_BLOCK x COL_BLOCK outputs;
 * for each block of DEPTH_BLOCK units of k the left operand is packed whole and stays in the outer caches, while the
 * right one is packed panel by panel into the inner ones and swept over all left panels.
 *
 * Invariants
 *  1. Nothing here decides bits: an element's chain of additions runs in the order of k through all depth blocks (its
 *     accumulators wait in scratch between them), in whichever tile it falls (tile.h, invariant 1).
 *     Products of up to ISO_FEW_ROWS rows with an N x K matrix have a form of their own, chosen by shape alone.
 *  2. Scratch is written before it is read.
 */
#include "kernels/tile.h"

enum {
  ROW_BLOCK = 1008,  /* a multiple of every tier's tile rows */
  COL_BLOCK = 1024,  /* a multiple of every tier's tile columns */
  DEPTH_BLOCK = 512, /* units of k in a packed panel */
  TILE_ROWS_MAX = 14,
  TILE_COLS_MAX = 32,
  PACK_COST = 24 /* packing an element of A or B, in multiply-adds */
};

static int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

static int64_t round_up(int64_t x, int64_t grain) {
  return (x + grain - 1) / grain * grain;
}

/* Byte offsets of the three areas of one thread's scratch; all multiples of 64. */
typedef struct scratch_plan {
  size_t right, sums, total;
} scratch_plan;

static scratch_plan plan_scratch(int64_t m, int64_t n, int64_t k) {
  size_t rows = (size_t)round_up(min_of(m, ROW_BLOCK) + TILE_ROWS_MAX, 16);
  size_t cols = (size_t)round_up(min_of(n, COL_BLOCK), TILE_COLS_MAX);
  size_t depth = (size_t)min_of(k, DEPTH_BLOCK);
  scratch_plan plan;
  plan.right = rows * depth * 4;
  plan.sums = plan.right + TILE_COLS_MAX * depth * 4;
  plan.total = plan.sums + (k > DEPTH_BLOCK ? rows * cols * 4 : 0);
  plan.total = (size_t)round_up((int64_t)plan.total, 4096);
  return plan;
}

size_t iso_gemm_scratch(int64_t m, int64_t n, int64_t k, iso_dtype type, int threads) {
  return plan_scratch(m, n, k).total * (size_t)threads;
}

/* The grid of threads over C with the least work for the busiest: tiles first, packing second. Returns its columns. */
static int choose_grid(const iso_tile_set *set, int64_t m, int64_t n, int threads, int *down) {
  int best_across = 1;
  int64_t best_cost = INT64_MAX;
  *down = 1;
  for (int across = 1; across <= threads; across++) {
    int rows_of_threads = threads / across;
    int64_t tiles = (m + set->rows - 1) / set->rows, panels = (n + set->cols - 1) / set->cols;
    int64_t rows = (tiles + rows_of_threads - 1) / rows_of_threads * set->rows;
    int64_t cols = (panels + across - 1) / across * set->cols;
    int64_t cost = rows * cols + PACK_COST * (rows + cols);
    if (cost >= best_cost) continue;
    best_cost = cost;
    best_across = across;
    *down = rows_of_threads;
  }
  return best_across;
}

/* One thread's state: its rectangle of C and its scratch. */
typedef struct gemm_job {
  const iso_tile_set *set;
  const iso_gemm_args *args;
  char *left, *right;
  float *sums;
  int64_t depth;            /* K */
  int64_t left_row, left_k; /* what `left` holds; -1: nothing */
} gemm_job;

/* Element (line, k) of an operand whose lines are rows of A or columns of B. */
static const void *operand_at(const iso_matrix *matrix, bool across, int64_t line, int64_t k) {
  int64_t at = across ? k * matrix->ld + line : line * matrix->ld + k;
  return (const char *)matrix->data + (size_t)at * iso_dtype_size(matrix->dtype);
}

static void pack_left(gemm_job *job, int64_t row, int64_t rows, int64_t k, int64_t depth, int64_t units) {
  if (job->left_row == row && job->left_k == k) return;
  const iso_tile_set *set = job->set;
  bool across = job->args->a_transposed;
  for (int64_t i = 0; i < rows; i += set->rows)
    set->pack(job->left + i * units * 4, set->rows, operand_at(&job->args->a, across, row + i, k), job->args->a.ld,
              min_of(rows - i, set->rows), depth, across);
  job->left_row = row;
  job->left_k = k;
}

/* One right panel against all left panels of the block. */
static void sweep_panel(const gemm_job *job, int64_t row, int64_t rows, int64_t col, int64_t cols, int64_t k,
                        int64_t units, float *sums) {
  const iso_tile_set *set = job->set;
  const iso_matrix *c = &job->args->c;
  int64_t depth_end = k + units * set->step;
  iso_tile_out out = {.sums_ld = set->cols,
                      .load = k > 0,
                      .keep = depth_end < job->depth,
                      .ld = c->ld,
                      .dtype = c->dtype,
                      .accumulate = job->args->accumulate,
                      .bias = job->args->bias ? job->args->bias + col : NULL,
                      .count_cols = (int)cols};
  size_t size = iso_dtype_size(c->dtype);
  for (int64_t i = 0; i < rows; i += set->rows) {
    out.sums = sums + i * set->cols;
    out.count_rows = (int)min_of(rows - i, set->rows);
    out.c = (char *)c->data + (size_t)((row + i) * c->ld + col) * size;
    set->multiply(job->left + i * units * 4, job->right, units, &out);
  }
}

static void run_block(gemm_job *job, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  const iso_tile_set *set = job->set;
  const iso_gemm_args *args = job->args;
  int64_t padded = round_up(rows, set->rows), k = 0;
  do { /* once also for K = 0: C is then zero */
    int64_t depth = min_of(job->depth - k, (int64_t)DEPTH_BLOCK * set->step);
    int64_t units = (depth + set->step - 1) / set->step;
    pack_left(job, row, rows, k, depth, units);
    for (int64_t j = 0; j < cols; j += set->cols) {
      int64_t width = min_of(cols - j, set->cols);
      set->pack(job->right, set->cols, operand_at(&args->b, !args->b_transposed, col + j, k), args->b.ld, width, depth,
                !args->b_transposed);
      sweep_panel(job, row, rows, col + j, width, k, units, job->sums + j * padded);
    }
    k += depth;
  } while (k < job->depth);
}

void iso_gemm_run(const iso_tile_set *set, const iso_gemm_args *args, const iso_worker *worker) {
  int64_t m = args->c.rows, n = args->c.cols;
  if (m <= ISO_FEW_ROWS && !args->a_transposed && args->b_transposed) {
    set->few_rows(args, worker);
    return;
  }
  int64_t depth = args->a_transposed ? args->a.rows : args->a.cols;
  int down, across = choose_grid(set, m, n, worker->threads, &down);
  if (worker->thread >= down * across) return;
  iso_worker by_row = {.thread = worker->thread / across, .threads = down};
  iso_worker by_col = {.thread = worker->thread % across, .threads = across};
  int64_t row, row_end, col_begin, col_end;
  iso_split(m, set->rows, &by_row, &row, &row_end);
  iso_split(n, set->cols, &by_col, &col_begin, &col_end);
  scratch_plan plan = plan_scratch(m, n, depth);
  char *scratch = (char *)worker->scratch + plan.total * (size_t)worker->thread;
  gemm_job job = {.set = set,
                  .args = args,
                  .left = scratch,
                  .right = scratch + plan.right,
                  .sums = (float *)(void *)(scratch + plan.sums),
                  .depth = depth,
                  .left_row = -1,
                  .left_k = -1};
  for (; row < row_end; row += ROW_BLOCK)
    for (int64_t col = col_begin; col < col_end; col += COL_BLOCK)
      run_block(&job, row, min_of(row_end - row, ROW_BLOCK), col, min_of(col_end - col, COL_BLOCK));
}
