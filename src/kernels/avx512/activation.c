/* SPDX-License-Identifier: Apache-2.0
 *
 * activation.c (avx512): RoPE, SwiGLU, GELU and their gradients: the shared bodies compiled for AVX-512.
 */
#include "kernels/avx512/vec.h"
#include "kernels/vector/math.h"
#include "kernels/vector/activation.h"

void iso_overlay_avx512_activation(iso_kernels *table) {
  table->rope = rope;
  table->swiglu = swiglu;
  table->swiglu_grad = swiglu_grad;
  table->gelu = gelu;
  table->gelu_grad = gelu_grad;
}
