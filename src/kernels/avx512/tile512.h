/* SPDX-License-Identifier: Apache-2.0
 *
 * tile512.h: the register tile of the 512-bit tiers, 14 rows x 32 columns of float32 accumulators, as a body that
 * avx512/gemm.c (float32) and avx512bf16/gemm.c (pairs of bfloat16) share. The includer defines before:
 *   static inline __m512 tile_step(__m512 sum, __m512i left, __m512i right)   sum + left * right, for 16 units
 *   static inline __m256i tile_round(__m512 x)                                16 floats to bfloat16
 *   static inline __m512i tile_round_pair(__m512 low, __m512 high)            32 of them
 *   static inline void tile_cross_unit(row, row_bytes, low, high)             a unit of 32 lines across a matrix
 *   static inline void tile_cross_pair(from, row, unit, next_unit)            the same for two left panels, masked
 *   TILE_STEP                                                                 elements of k in a unit
 * Also the packing of both, which lives in avx512/pack.c.
 *
 * 28 accumulators, two registers of the right panel and one broadcast of the left make 31 of the 32 registers. Each
 * unit of depth costs 14 cycles of two multiply-adds and 16 loads.
 */
#ifndef ISO_KERNELS_TILE512_H
#define ISO_KERNELS_TILE512_H

#include "kernels/tile.h"

#include <immintrin.h>

#define ISO_TILE512_ROWS 14
#define ISO_TILE512_COLS 32

enum {
  CROSS_AHEAD = 8, /* units from a load across a matrix to its prefetch */
  PAIR_LEAD = 16,  /* units by which packing on the way precedes the products */
  PAIR_AHEAD = 128 /* bytes within a row from what two left panels take of it to its prefetch */
};

/* ---- pack.c: iso_tile_set.pack for float32 to float32, bfloat16 to float32 and bfloat16 to pairs ---- */
void iso_pack_f32_avx512(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                         bool across);
void iso_pack_widen_avx512(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                           bool across);
void iso_pack_pairs_avx512(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                           bool across);
/* iso_tile_set.pack_two for pairs. */
void iso_pack_two_pairs_avx512(void *panel, void *next_panel, int width, const void *source, int64_t ld, int64_t count,
                               int64_t next_count, int64_t depth);

/* ---- gemm.c: tile sets for float32, and for bfloat16 widened to it ---- */
extern const iso_tile_set iso_tile_f32_avx512, iso_tile_bf16_avx512;
extern const iso_tile_set iso_tile_bf16_avx512bf16;      /* avx512bf16/gemm.c */
extern const iso_attention_set iso_attention_f32_avx512; /* attention.c */
void iso_few_rows_avx512(const iso_gemm_args *args, const iso_worker *worker);
double iso_peak_f32_avx512(int64_t iterations);

#ifdef ISO_TILE512_BODY

#define UNROLL _Pragma("GCC unroll 14")

static inline __attribute__((always_inline)) void tile_store_half(const iso_tile_out *out, int row, int half,
                                                                  __mmask16 mask, __m512 sum) {
  int64_t at = row * out->ld + half * 16;
  if (out->dtype == ISO_BF16) {
    _mm256_mask_storeu_epi16((iso_bf16 *)out->c + at, mask, tile_round(sum));
  } else {
    _mm512_mask_storeu_ps((float *)out->c + at, mask, sum);
  }
}

/* As tile_finish, for a tile that lies in the matrix as a whole. */
static inline __attribute__((always_inline)) void tile_finish_whole(const int rows, const iso_tile_out *out,
                                                                    __m512 (*sums)[2]) {
  if (out->bias) {
    __m512 bias0 = _mm512_loadu_ps(out->bias), bias1 = _mm512_loadu_ps(out->bias + 16);
    UNROLL for (int r = 0; r < rows; r++) {
      sums[r][0] = _mm512_add_ps(sums[r][0], bias0);
      sums[r][1] = _mm512_add_ps(sums[r][1], bias1);
    }
  }
  if (out->dtype == ISO_BF16) {
    iso_bf16 *c = out->c;
    UNROLL for (int r = 0; r < rows; r++, c += out->ld) _mm512_storeu_si512(c, tile_round_pair(sums[r][0], sums[r][1]));
    return;
  }
  float *c = out->c;
  if (out->accumulate) {
    UNROLL for (int r = 0; r < rows; r++, c += out->ld) {
      _mm512_storeu_ps(c, _mm512_add_ps(_mm512_loadu_ps(c), sums[r][0]));
      _mm512_storeu_ps(c + 16, _mm512_add_ps(_mm512_loadu_ps(c + 16), sums[r][1]));
    }
    return;
  }
  UNROLL for (int r = 0; r < rows; r++, c += out->ld) {
    _mm512_storeu_ps(c, sums[r][0]);
    _mm512_storeu_ps(c + 16, sums[r][1]);
  }
}

/* Accumulators of `rows` rows to c: bias or old values added, columns beyond the matrix masked. */
static inline __attribute__((always_inline)) void tile_finish(const int rows, const iso_tile_out *out,
                                                              __m512 (*sums)[2]) {
  uint32_t columns = out->count_cols >= 32 ? ~0u : (1u << out->count_cols) - 1u;
  __mmask16 mask0 = (__mmask16)columns, mask1 = (__mmask16)(columns >> 16);
  __m512 bias0 = _mm512_setzero_ps(), bias1 = bias0;
  if (out->bias) {
    bias0 = _mm512_maskz_loadu_ps(mask0, out->bias);
    bias1 = _mm512_maskz_loadu_ps(mask1, out->bias + 16);
    UNROLL for (int r = 0; r < rows; r++) {
      sums[r][0] = _mm512_add_ps(sums[r][0], bias0);
      sums[r][1] = _mm512_add_ps(sums[r][1], bias1);
    }
  }
  if (out->accumulate) {
    UNROLL for (int r = 0; r < rows; r++) {
      if (r >= out->count_rows) break;
      const float *c = (const float *)out->c + r * out->ld;
      sums[r][0] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask0, c), sums[r][0]);
      sums[r][1] = _mm512_add_ps(_mm512_maskz_loadu_ps(mask1, c + 16), sums[r][1]);
    }
  }
  UNROLL for (int r = 0; r < rows; r++) {
    if (r >= out->count_rows) break;
    tile_store_half(out, r, 0, mask0, sums[r][0]);
    tile_store_half(out, r, 1, mask1, sums[r][1]);
  }
}

/* Where a right panel comes from: `row` holds the next unit's elements. NULL row: it is packed. */
typedef struct tile_source {
  const char *row;
  int64_t row_bytes;
} tile_source;

/* The next unit of the right panel; packed on the way if it comes from a matrix. */
static inline __attribute__((always_inline)) void tile_right(const bool packs, tile_source *from, float *right,
                                                             __m512i *right0, __m512i *right1) {
  if (packs) {
    const char *ahead = from->row + CROSS_AHEAD * TILE_STEP * from->row_bytes;
    _mm_prefetch(ahead, _MM_HINT_T0);
    _mm_prefetch(TILE_STEP == 2 ? ahead + from->row_bytes : ahead + 64, _MM_HINT_T0);
    tile_cross_unit(from->row, from->row_bytes, right0, right1);
    _mm512_store_si512(right, *right0);
    _mm512_store_si512(right + 16, *right1);
    from->row += TILE_STEP * from->row_bytes;
  } else {
    *right0 = _mm512_load_si512(right);
    *right1 = _mm512_load_si512(right + 16);
  }
}

static inline __attribute__((always_inline)) void tile_unit(const int rows, const int row_units, const int32_t *left,
                                                            const bool packs, tile_source *from, float *right,
                                                            __m512 (*sums)[2]) {
  __m512i right0, right1;
  tile_right(packs, from, right, &right0, &right1);
  UNROLL for (int r = 0; r < rows; r++) {
    __m512i value = _mm512_set1_epi32(left[r * row_units]);
    sums[r][0] = tile_step(sums[r][0], value, right0);
    sums[r][1] = tile_step(sums[r][1], value, right1);
  }
}

static inline __attribute__((always_inline)) void tile_begin(const int rows, const iso_tile_out *out,
                                                             __m512 (*sums)[2]) {
  if (out->load) {
    UNROLL for (int r = 0; r < rows; r++) {
      sums[r][0] = _mm512_load_ps(out->sums + r * out->sums_ld);
      sums[r][1] = _mm512_load_ps(out->sums + r * out->sums_ld + 16);
    }
  } else {
    UNROLL for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
  }
}

static inline __attribute__((always_inline)) void tile_end(const int rows, const iso_tile_out *out, __m512 (*sums)[2]) {
  if (out->keep) {
    UNROLL for (int r = 0; r < rows; r++) {
      _mm512_store_ps(out->sums + r * out->sums_ld, sums[r][0]);
      _mm512_store_ps(out->sums + r * out->sums_ld + 16, sums[r][1]);
    }
  } else if (out->count_rows == rows && out->count_cols == ISO_TILE512_COLS) {
    tile_finish_whole(rows, out, sums);
  } else {
    tile_finish(rows, out, sums);
  }
}

/* Lines needed soon, a row of them to be fetched with each of the first units: this tile's place in c, and the next
 * tile's accumulators. What is not needed is a line at hand. */
typedef struct tile_fetch {
  const char *c, *sums;
  int64_t c_stride, sums_stride, count;
} tile_fetch;

static inline __attribute__((always_inline)) tile_fetch tile_fetch_of(const iso_tile_out *out, const void *at_hand,
                                                                      int64_t units) {
  tile_fetch fetch = {at_hand, at_hand, 0, 0, out->count_rows < units ? out->count_rows : units};
  if (out->load) {
    fetch.sums = (const char *)(out->sums + ISO_TILE512_ROWS * out->sums_ld);
    fetch.sums_stride = out->sums_ld * 4;
  }
  if (!out->keep) {
    fetch.c = out->c;
    fetch.c_stride = out->ld * (out->dtype == ISO_BF16 ? 2 : 4);
  }
  return fetch;
}

static inline __attribute__((always_inline)) void tile_fetch_row(tile_fetch *fetch) {
  _mm_prefetch(fetch->c, _MM_HINT_T0);
  _mm_prefetch(fetch->c + 64, _MM_HINT_T0);
  _mm_prefetch(fetch->sums, _MM_HINT_T0);
  _mm_prefetch(fetch->sums + 64, _MM_HINT_T0);
  fetch->c += fetch->c_stride;
  fetch->sums += fetch->sums_stride;
}

/* Unit u of row r of the left operand lies at left[r * row_units + u * depth_units]. */
static inline __attribute__((always_inline)) void tile_body(const int rows, const int row_units, const int depth_units,
                                                            const void *left_panel, const bool packs, tile_source from,
                                                            const void *right_panel, int64_t units,
                                                            const iso_tile_out *out) {
  const int32_t *left = left_panel;
  float *right = (float *)(uintptr_t)right_panel; /* written if it packs */
  __m512 sums[ISO_TILE512_ROWS][2];
  tile_begin(rows, out, sums);
  tile_fetch fetch = tile_fetch_of(out, right, units);
  int64_t u = 0;
  for (; u < fetch.count; u++) {
    tile_fetch_row(&fetch);
    tile_unit(rows, row_units, left, packs, &from, right, sums);
    left += depth_units;
    right += ISO_TILE512_COLS;
  }
  const char *next = (const char *)(left + ISO_TILE512_ROWS * (units - u));
  for (; u < units; u++) {
    if (row_units == 1) {
      _mm_prefetch(next, _MM_HINT_T1);
      next += 4 * ISO_TILE512_ROWS;
    }
    tile_unit(rows, row_units, left, packs, &from, right, sums);
    left += depth_units;
    right += ISO_TILE512_COLS;
  }
  tile_end(rows, out, sums);
}

/* The units of two left panels from a row of the matrix, PAIR_LEAD units before they are multiplied. */
static inline __attribute__((always_inline)) void tile_pack_pair(const iso_tile_pair *from, const char **row,
                                                                 int32_t **unit, int32_t **next_unit) {
  const __mmask16 to = (__mmask16)((1 << ISO_TILE512_ROWS) - 1);
  __m512i here, next;
  _mm_prefetch(*row + PAIR_AHEAD, _MM_HINT_T1);
  _mm_prefetch(*row + PAIR_AHEAD + (TILE_STEP == 2 ? from->row_bytes : 64), _MM_HINT_T1);
  tile_cross_pair(from, *row, &here, &next);
  _mm512_mask_storeu_epi32(*unit, to, here);
  _mm512_mask_storeu_epi32(*next_unit, to, next);
  *row += TILE_STEP * from->row_bytes;
  *unit += ISO_TILE512_ROWS;
  *next_unit += ISO_TILE512_ROWS;
}

/* As tile_body; packs the left panel and the one after it on the way. */
static inline __attribute__((always_inline)) void tile_body_pair(const int rows, const iso_tile_pair *from,
                                                                 const void *right_panel, int64_t units,
                                                                 const iso_tile_out *out) {
  const int32_t *left = from->panel;
  float *right = (float *)(uintptr_t)right_panel;
  const char *row = from->source;
  int32_t *unit = from->panel, *next_unit = from->next_panel;
  const int64_t lead = units < PAIR_LEAD ? units : PAIR_LEAD;
  for (int64_t u = 0; u < lead; u++) tile_pack_pair(from, &row, &unit, &next_unit);
  __m512 sums[ISO_TILE512_ROWS][2];
  tile_begin(rows, out, sums);
  tile_fetch fetch = tile_fetch_of(out, right, units);
  for (int64_t u = 0; u < fetch.count; u++) tile_fetch_row(&fetch);
  tile_source none = {NULL, 0};
  for (int64_t u = lead; u < units; u++) {
    tile_pack_pair(from, &row, &unit, &next_unit);
    tile_unit(rows, 1, left, false, &none, right, sums);
    left += ISO_TILE512_ROWS;
    right += ISO_TILE512_COLS;
  }
  for (int64_t u = 0; u < lead; u++) {
    tile_unit(rows, 1, left, false, &none, right, sums);
    left += ISO_TILE512_ROWS;
    right += ISO_TILE512_COLS;
  }
  tile_end(rows, out, sums);
}

static inline __attribute__((always_inline)) void tile_any_pair(const iso_tile_pair *from, const void *right,
                                                                int64_t units, const iso_tile_out *out) {
  if (out->count_rows == 14)
    tile_body_pair(14, from, right, units, out);
  else if (out->count_rows == 13)
    tile_body_pair(13, from, right, units, out);
  else
    tile_body_pair(12, from, right, units, out);
}

/* A unit wherever it lies. */
typedef int32_t tile_any_unit __attribute__((aligned(1), may_alias));

static inline __attribute__((always_inline)) void tile_direct_unit(const int rows, const char *low, const char *high,
                                                                   int64_t ld, int64_t ld3, int64_t ld5,
                                                                   const bool packs, tile_source *from, float *right,
                                                                   __m512 (*sums)[2]) {
  const int64_t offset[7] = {0, ld, 2 * ld, ld3, 4 * ld, ld5, 2 * ld3};
  __m512i right0, right1;
  tile_right(packs, from, right, &right0, &right1);
  UNROLL for (int r = 0; r < rows; r++) {
    const char *at = r < 7 ? low + offset[r] : high + offset[r - 7];
    __m512i value = _mm512_set1_epi32(*(const tile_any_unit *)(const void *)at);
    sums[r][0] = tile_step(sums[r][0], value, right0);
    sums[r][1] = tile_step(sums[r][1], value, right1);
  }
}

/* The left operand as it lies in its matrix: rows of units, ld bytes apart. Its lines in the next tile are fetched into
 * the outer cache, this one's into the inner one, each a line with each unit in turn. */
static inline __attribute__((always_inline)) void tile_direct(const int rows, const void *left, int64_t ld,
                                                              const bool packs, tile_source from,
                                                              const void *right_panel, int64_t units,
                                                              const iso_tile_out *out) {
  const char *low = left, *high = low + 7 * ld;
  float *right = (float *)(uintptr_t)right_panel; /* written if it packs */
  const int64_t ld3 = 3 * ld, ld5 = 5 * ld;
  __m512 sums[ISO_TILE512_ROWS][2];
  tile_begin(rows, out, sums);
  tile_fetch fetch = tile_fetch_of(out, right, units);
  int64_t u = 0;
  for (; u < fetch.count; u++, low += 4, high += 4, right += ISO_TILE512_COLS) {
    tile_fetch_row(&fetch);
    tile_direct_unit(rows, low, high, ld, ld3, ld5, packs, &from, right, sums);
  }
  const char *line = low;
  int64_t row = 0;
  for (; u < units; u++, low += 4, high += 4, right += ISO_TILE512_COLS) {
    _mm_prefetch(line + 128, _MM_HINT_T0);
    _mm_prefetch(line + rows * ld, _MM_HINT_T1);
    line += ld;
    if (++row == 16) {
      row = 0;
      line += 64 - 16 * ld;
    }
    tile_direct_unit(rows, low, high, ld, ld3, ld5, packs, &from, right, sums);
  }
  tile_end(rows, out, sums);
}

static inline __attribute__((always_inline)) void tile_any_direct(const void *left, int64_t ld, const bool packs,
                                                                  tile_source from, const void *right, int64_t units,
                                                                  const iso_tile_out *out) {
  if (out->count_rows == 14)
    tile_direct(14, left, ld, packs, from, right, units, out);
  else if (out->count_rows == 13)
    tile_direct(13, left, ld, packs, from, right, units, out);
  else
    tile_direct(12, left, ld, packs, from, right, units, out);
}

/* As tile_direct; a row's next line is copied from the source with each unit in turn. */
static inline __attribute__((always_inline)) void tile_copying(const int rows, char *left, int64_t ld, const char *from,
                                                               int64_t from_ld, const void *right_panel, int64_t units,
                                                               const iso_tile_out *out) {
  const char *low = left, *high = low + 7 * ld;
  float *right = (float *)(uintptr_t)right_panel;
  const int64_t ld3 = 3 * ld, ld5 = 5 * ld;
  tile_source none = {NULL, 0};
  for (int r = 0; r < rows; r++) _mm512_store_si512(left + r * ld, _mm512_loadu_si512(from + r * from_ld));
  __m512 sums[ISO_TILE512_ROWS][2];
  tile_begin(rows, out, sums);
  tile_fetch fetch = tile_fetch_of(out, right, units);
  for (int64_t r = 0; r < fetch.count; r++) tile_fetch_row(&fetch);
  int64_t u = 0, row = 0;
  left += 64;
  from += 64;
  for (; u < units - ISO_LINE_UNITS; u++, low += 4, high += 4, right += ISO_TILE512_COLS) {
    if (row < rows) {
      _mm_prefetch(from + 128, _MM_HINT_T1);
      _mm512_store_si512(left, _mm512_loadu_si512(from));
      left += ld;
      from += from_ld;
    }
    if (++row == ISO_LINE_UNITS) {
      row = 0;
      left += 64 - rows * ld;
      from += 64 - rows * from_ld;
    }
    tile_direct_unit(rows, low, high, ld, ld3, ld5, false, &none, right, sums);
  }
  for (; u < units; u++, low += 4, high += 4, right += ISO_TILE512_COLS)
    tile_direct_unit(rows, low, high, ld, ld3, ld5, false, &none, right, sums);
  tile_end(rows, out, sums);
}

static inline __attribute__((always_inline)) void tile_any_copying(void *left, int64_t ld, const void *source,
                                                                   int64_t row_bytes, const void *right, int64_t units,
                                                                   const iso_tile_out *out) {
  if (out->count_rows == 14)
    tile_copying(14, left, ld, source, row_bytes, right, units, out);
  else if (out->count_rows == 13)
    tile_copying(13, left, ld, source, row_bytes, right, units, out);
  else
    tile_copying(12, left, ld, source, row_bytes, right, units, out);
}

/* iso_tile_set.multiply_packing */
static inline __attribute__((always_inline)) void tile_any_packing(const void *left, int64_t ld, void *right,
                                                                   const void *source, int64_t row_bytes, int64_t units,
                                                                   const iso_tile_out *out) {
  const tile_source from = {source, row_bytes};
  if (ld)
    tile_any_direct(left, ld, true, from, right, units, out);
  else if (out->count_rows == 14)
    tile_body(14, 1, ISO_TILE512_ROWS, left, true, from, right, units, out);
  else if (out->count_rows == 13)
    tile_body(13, 1, ISO_TILE512_ROWS, left, true, from, right, units, out);
  else
    tile_body(12, 1, ISO_TILE512_ROWS, left, true, from, right, units, out);
}

/* Few rows take a body with few accumulators; the rows a body computes beyond count_rows are zeros of the panel. */
static inline __attribute__((always_inline)) void tile_any(const int row_units, const int depth_units, const void *left,
                                                           const void *right, int64_t units, const iso_tile_out *out) {
  const tile_source none = {NULL, 0};
  if (out->count_rows > 13)
    tile_body(14, row_units, depth_units, left, false, none, right, units, out);
  else if (out->count_rows > 12)
    tile_body(13, row_units, depth_units, left, false, none, right, units, out);
  else if (out->count_rows > 10)
    tile_body(12, row_units, depth_units, left, false, none, right, units, out);
  else if (out->count_rows > 8)
    tile_body(10, row_units, depth_units, left, false, none, right, units, out);
  else if (out->count_rows > 4)
    tile_body(8, row_units, depth_units, left, false, none, right, units, out);
  else if (out->count_rows > 1)
    tile_body(4, row_units, depth_units, left, false, none, right, units, out);
  else
    tile_body(1, row_units, depth_units, left, false, none, right, units, out);
}

/* What a tile set calls: the bodies above behind plain functions. */

static void multiply(const void *left, const void *right, int64_t units, const iso_tile_out *out) {
  tile_any(1, ISO_TILE512_ROWS, left, right, units, out);
}

static void multiply_direct(const void *left, int64_t ld_bytes, const void *right, int64_t units,
                            const iso_tile_out *out) {
  const tile_source none = {NULL, 0};
  tile_any_direct(left, ld_bytes, false, none, right, units, out);
}

static void multiply_packing(const void *left, int64_t ld_bytes, void *right, const void *source, int64_t row_bytes,
                             int64_t units, const iso_tile_out *out) {
  tile_any_packing(left, ld_bytes, right, source, row_bytes, units, out);
}

static void multiply_pair(const iso_tile_pair *pair, const void *right, int64_t units, const iso_tile_out *out) {
  tile_any_pair(pair, right, units, out);
}

static void multiply_copying(void *left, int64_t ld_bytes, const void *source, int64_t row_bytes, const void *right,
                             int64_t units, const iso_tile_out *out) {
  tile_any_copying(left, ld_bytes, source, row_bytes, right, units, out);
}

static void multiply_rows(const void *left, const void *right, int64_t units, const iso_tile_out *out) {
  tile_any(ISO_SCORE_UNITS, 1, left, right, units, out);
}

/* 24 independent chains; `flop` of one instruction. Returns the FLOP done. */
static inline double tile_peak(double flop, int64_t iterations) {
  __m512 sums[24];
  __m512i left = _mm512_set1_epi32(0x3f803f80), right = left;
  for (int j = 0; j < 24; j++) sums[j] = _mm512_setzero_ps();
  for (int64_t i = 0; i < iterations; i++) {
    _Pragma("GCC unroll 24") for (int j = 0; j < 24; j++) sums[j] = tile_step(sums[j], left, right);
  }
  __m512 total = sums[0];
  for (int j = 1; j < 24; j++) total = _mm512_add_ps(total, sums[j]);
  volatile float sink = _mm512_reduce_add_ps(total); /* keeps the chains alive */
  (void)sink;
  return flop * 24.0 * (double)iterations;
}

#endif
#endif
