/* SPDX-License-Identifier: Apache-2.0
 *
 * tile.h: the contract between the drivers of matrix products and attention (gemm_plan.c, attention_plan.c: blocks,
 * threads, loops; no vector code) and the tiers (packing and register tiles; no loops over blocks). Private to
 * src/kernels.
 *
 * Packed form. Both operands of a product are packed in panels of 4-byte units: a float, or a pair of bfloat16
 * neighbours along k (`step` = 2). A panel of width W and depth k is [ceil(k / step)][W] units; the left operand's
 * panels are `rows` wide, the right one's `cols`. What lies beyond the matrix (columns of the last panel, the second
 * half of an odd pair) is zero.
 *
 * Invariants
 *  1. An element of C is one chain of multiply-adds in the order of k, begun at zero, whatever tile it falls in and
 *     however k is cut into blocks (a block continues the accumulators of the one before). Then bias, or the old C.
 *  2. Tiles of fewer rows or columns are the same body with fewer accumulators or masked stores: same bits.
 *  3. pack reads exactly the described elements and writes the whole panel; multiply reads whole panels and writes
 *     `count_rows` x `count_cols` of C, or, with `keep`, whole accumulator rows for the rows it computes.
 */
#ifndef ISO_KERNELS_TILE_H
#define ISO_KERNELS_TILE_H

#include "kernels/kernels.h"

/* Where the accumulators of a tile come from and go to. */
typedef struct iso_tile_out {
  float *sums;       /* accumulators kept between calls, [rows][cols] with row stride sums_ld, 64-byte aligned rows */
  int64_t sums_ld;   /* a multiple of 16 */
  bool load;         /* start from sums, not from zero */
  bool keep;         /* end in sums; else in c */
  void *c;           /* element (0, 0) of the tile */
  int64_t ld;        /* in elements of c */
  iso_dtype dtype;   /* of c */
  bool accumulate;   /* c F32: c + product */
  const float *bias; /* of the tile's first column, or NULL */
  int count_rows, count_cols;
} iso_tile_out;

typedef struct iso_tile_set {
  int rows, cols; /* of the register tile; widths of left and right panels */
  int step;       /* elements of k in a unit */
  /* Packs one panel: `count` <= width lines of the operand, k from 0 to depth. Lines lie `ld` elements apart with k
   * contiguous, or, with `across`, line i is column i of rows that lie `ld` apart along k. width is rows or cols. */
  void (*pack)(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth, bool across);
  /* left: packed panel (or the block's part of it), right likewise, `units` deep. */
  void (*multiply)(const void *left, const void *right, int64_t units, const iso_tile_out *out);
  /* The same, the left operand unpacked: rows of units, ISO_SCORE_UNITS apart. For attention's probabilities. */
  void (*multiply_rows)(const void *left, const void *right, int64_t units, const iso_tile_out *out);
} iso_tile_set;

/* Columns of a block of attention's scores, in units: the row stride of multiply_rows. */
#define ISO_SCORE_UNITS 64

/* ---- gemm_plan.c ---- */
/* Any product over a tile set; operands have the type the set packs. */
void iso_gemm_run(const iso_tile_set *set, const iso_gemm_args *args, const iso_worker *worker);

#endif
