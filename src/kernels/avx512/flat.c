/* SPDX-License-Identifier: Apache-2.0
 *
 * flat.c (avx512): kernels of the flat state: the shared bodies compiled for AVX-512.
 */
#include "kernels/avx512/vec.h"
#include "kernels/vector/flat.h"

void iso_overlay_avx512_flat(iso_kernels *table) {
  table->flat_add = flat_add;
  table->grad_round = grad_round;
  table->adamw = adamw;
}
