/* SPDX-License-Identifier: Apache-2.0
 *
 * norm.c (avx2): RMSNorm, LayerNorm, their gradients, and both with the add beside them: the shared bodies compiled for
 * AVX2.
 */
#include "kernels/avx2/vec.h"
#include "kernels/vector/norm.h"
#include "kernels/vector/fused.h"

void iso_overlay_avx2_norm(iso_kernels *table) {
  table->norm = norm;
  table->norm_grad = norm_grad;
  table->add_norm = add_norm;
  table->norm_grad_add = norm_grad_add_all;
}
