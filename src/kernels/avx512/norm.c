/* SPDX-License-Identifier: Apache-2.0
 *
 * norm.c (avx512): RMSNorm, LayerNorm and their gradients: the shared bodies compiled for AVX-512.
 */
#include "kernels/avx512/vec.h"
#include "kernels/vector/norm.h"

void iso_overlay_avx512_norm(iso_kernels *table) {
  table->norm = norm;
  table->norm_grad = norm_grad;
}
