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

/* Products of up to this many rows with an N x K matrix go by iso_tile_set.few_rows instead, by shape alone. */
#define ISO_FEW_ROWS 4

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

/* Two left panels next to each other, to be packed from columns of a matrix. */
typedef struct iso_tile_pair {
  void *panel, *next_panel;
  const void *source;    /* element (0, 0) of the first panel */
  int64_t row_bytes;     /* of the matrix */
  int count, next_count; /* lines; count is rows - 2 to rows, next_count that or 0 */
} iso_tile_pair;

typedef struct iso_tile_set {
  int rows, cols; /* of the register tile; widths of left and right panels */
  int step;       /* elements of k in a unit */
  /* Packs one panel: `count` <= width lines of the operand, k from 0 to depth. Lines lie `ld` elements apart with k
   * contiguous, or, with `across`, line i is column i of rows that lie `ld` apart along k. width is rows or cols. */
  void (*pack)(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth, bool across);
  /* Two panels at once, of lines next to each other across the source and of `rows` width, where one alone would be
   * narrow. NULL: the tier packs one at a time. */
  void (*pack_two)(void *panel, void *next_panel, int width, const void *source, int64_t ld, int64_t count,
                   int64_t next_count, int64_t depth);
  /* left: packed panel (or the block's part of it), right likewise, `units` deep. */
  void (*multiply)(const void *left, const void *right, int64_t units, const iso_tile_out *out);
  /* As multiply for rows - 2 to rows rows, the left operand as it lies in its matrix, `ld_bytes` from row to row, whole
   * units deep. NULL: the tier packs. */
  void (*multiply_direct)(const void *left, int64_t ld_bytes, const void *right, int64_t units,
                          const iso_tile_out *out);
  /* Products of rows - 2 to rows rows that pack on the way, while the multiply-adds wait for each other; whole units
   * deep. NULL: the tier packs beforehand.
   * multiply_packing: as multiply, or as multiply_direct where ld_bytes is not 0; `right` is packed from `cols` whole
   * columns of the matrix at `source`, rows row_bytes apart. multiply_pair: as multiply of pair->panel, which is packed
   * with the next; what lies beyond their lines is not zero. */
  void (*multiply_packing)(const void *left, int64_t ld_bytes, void *right, const void *source, int64_t row_bytes,
                           int64_t units, const iso_tile_out *out);
  void (*multiply_pair)(const iso_tile_pair *pair, const void *right, int64_t units, const iso_tile_out *out);
  /* As multiply_direct of `left`, whose rows are copied from `source`, rows row_bytes apart, on the way; `units` are
   * whole lines of ISO_LINE_UNITS, and so is ld_bytes. NULL like multiply_packing. */
  void (*multiply_copying)(void *left, int64_t ld_bytes, const void *source, int64_t row_bytes, const void *right,
                           int64_t units, const iso_tile_out *out);
  /* Whole products of 1 to ISO_FEW_ROWS rows, A not transposed, B transposed; no scratch. */
  void (*few_rows)(const iso_gemm_args *args, const iso_worker *worker);
  /* As multiply, the left operand unpacked: rows of units, ISO_SCORE_UNITS apart. For attention's probabilities. */
  void (*multiply_rows)(const void *left, const void *right, int64_t units, const iso_tile_out *out);
} iso_tile_set;

/* Units in a cache line. */
#define ISO_LINE_UNITS 16

/* Row stride of attention's probabilities in units; a block of scores has ISO_SCORE_UNITS * step columns. */
#define ISO_SCORE_UNITS    64
#define ISO_SCORE_COLS_MAX 128
#define ISO_TILE_ROWS_MAX  14
#define ISO_TILE_COLS_MAX  32

/* ---- attention: what a tier adds to its tile set ---- */

/* A tile of scores: rows x columns [begin, end), begin and end multiples of a panel. Row r sees the columns
 * [first[r], last[r]) whose segment, if segments are given, is segment[r]. */
typedef struct iso_score_tile {
  float *scores;       /* [rows][ISO_SCORE_UNITS * step], 64-byte aligned */
  void *probabilities; /* [rows][ISO_SCORE_UNITS] units, as multiply_rows takes them; unseen columns get zeros */
  int rows, begin, end;
  float scale; /* of raw scores */
  int first[16], last[16];
  const int32_t *segments; /* of the columns, or NULL; readable to `end` */
  int32_t segment[16];     /* of the rows */
} iso_score_tile;

/* Running softmax of up to 16 rows: highest scaled score so far, sum of exp(score - high), and the factor that brings
 * what was summed under the previous high to the present one. */
typedef struct iso_softmax_state {
  float high[16], sum[16], factor[16];
} iso_softmax_state;

typedef struct iso_attention_set {
  const iso_tile_set *tiles;
  /* As tiles->pack, from the type of stored probabilities. */
  void (*pack_scores)(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                      bool across);
  /* Scores to probabilities exp(scale * score - high), relative to the running high. */
  void (*softmax)(const iso_score_tile *tile, iso_softmax_state *state);
  /* lse[r] = high[r] + log(sum[r]), for 16 rows. */
  void (*finish)(const iso_softmax_state *state, float lse[16]);
  /* Columns are queries: probabilities p = exp(scale * score - lse[column]) and, in the same form,
   * gradients[r][column] = p * (products[r][column] - delta[column]) * scale. */
  void (*softmax_grad)(const iso_score_tile *tile, const float *products, const float *lse, const float *delta,
                       void *gradients);
  /* row[i] *= factor */
  void (*scale)(float *row, float factor, int64_t count);
  /* target[i] = row[i] * factor, rounded to dtype */
  void (*store)(void *target, iso_dtype dtype, const float *row, float factor, int64_t count);
  float (*dot)(const void *a, const void *b, iso_dtype dtype, int64_t count);
} iso_attention_set;

/* ---- gemm_plan.c ---- */
/* Any product over a tile set; operands have the type the set packs. */
void iso_gemm_run(const iso_tile_set *set, const iso_gemm_args *args, const iso_worker *worker);
/* A product with an epilogue where parts do not come one by one: this thread's rows (or columns, at multiples of
 * `grain` and the epilogue's) by `run`, which splits nothing, then the epilogue over all of them. */
void iso_gemm_by_rectangle(void (*run)(const iso_gemm_args *args, const iso_worker *worker), const iso_gemm_args *args,
                           int64_t grain, bool by_rows, const iso_worker *worker);

/* ---- attention_plan.c, attention_grad_plan.c ---- */
void iso_attention_run(const iso_attention_set *set, const iso_attention_args *args, const iso_worker *worker);
void iso_attention_grad_run(const iso_attention_set *set, const iso_attention_grad_args *args,
                            const iso_worker *worker);

#endif
