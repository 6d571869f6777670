/* SPDX-License-Identifier: Apache-2.0
 *
 * flat.c (avx2): kernels of the flat state: the shared bodies compiled for AVX2.
 */
#include "kernels/avx2/vec.h"
#include "kernels/vector/flat.h"

void iso_overlay_avx2_flat(iso_kernels *table) {
  table->flat_add = flat_add;
  table->grad_round = grad_round;
  table->adamw = adamw;
}
