/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel table: which function runs for which op on which machine. Plain C fills every entry; each tier overlays
 * what it does better, in order, once. Reading this file shows every kernel family and every tier.
 */
#include "kernels/kernels.h"

static iso_kernels tables[ISO_TIER_COUNT];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void fill_table(iso_kernels *table, iso_tier tier) {
  table->tier = tier;
  iso_overlay_scalar_gemm(table);
  iso_overlay_scalar_attention(table);
  iso_overlay_scalar_rows(table);
  iso_overlay_scalar_flat(table);
  if (tier < ISO_TIER_AVX2) return;
  iso_overlay_avx2_gemm(table);
  iso_overlay_avx2_attention(table);
  iso_overlay_avx2_rows(table);
  iso_overlay_avx2_flat(table);
  if (tier < ISO_TIER_AVX512) return;
  iso_overlay_avx512_gemm(table);
  iso_overlay_avx512_attention(table);
  iso_overlay_avx512_rows(table);
  iso_overlay_avx512_flat(table);
  if (tier < ISO_TIER_AVX512BF16) return;
  iso_overlay_avx512bf16_gemm(table);
  iso_overlay_avx512bf16_attention(table);
}

static void fill_tables(void) {
  for (int tier = 0; tier < ISO_TIER_COUNT; tier++) fill_table(&tables[tier], (iso_tier)tier);
}

const iso_kernels *iso_kernels_get(iso_tier tier) {
  pthread_once(&tables_once, fill_tables);
  return &tables[tier];
}
