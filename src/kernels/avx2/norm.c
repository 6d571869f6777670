/* SPDX-License-Identifier: Apache-2.0
 *
 * norm.c (avx2): RMSNorm, LayerNorm and their gradients: the shared bodies compiled for AVX2.
 */
#include "kernels/avx2/vec.h"
#include "kernels/vector/norm.h"

void iso_overlay_avx2_norm(iso_kernels *table) {
  table->norm = norm;
  table->norm_grad = norm_grad;
}
