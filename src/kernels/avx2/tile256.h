/* SPDX-License-Identifier: Apache-2.0
 *
 * tile256.h: what the files of the avx2 tier's matrix products share. The register tile has 6 rows x 16 columns of
 * float32 accumulators: 12 accumulators, two registers of the right panel and broadcasts of the left.
 */
#ifndef ISO_KERNELS_TILE256_H
#define ISO_KERNELS_TILE256_H

#include "kernels/tile.h"

#define ISO_TILE256_ROWS 6
#define ISO_TILE256_COLS 16

/* ---- pack.c: iso_tile_set.pack from float32, and from bfloat16 widened to it ---- */
void iso_pack_f32_avx2(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                       bool across);
void iso_pack_widen_avx2(void *panel, int width, const void *source, int64_t ld, int64_t count, int64_t depth,
                         bool across);

/* ---- gemm.c ---- */
extern const iso_tile_set iso_tile_f32_avx2, iso_tile_bf16_avx2;

#endif
