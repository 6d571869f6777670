/* SPDX-License-Identifier: Apache-2.0
 *
 * activation.c (avx2): RoPE, SwiGLU, GELU and their gradients: the shared bodies compiled for AVX2.
 */
#include "kernels/avx2/vec.h"
#include "kernels/vector/math.h"
#include "kernels/vector/activation.h"

void iso_overlay_avx2_activation(iso_kernels *table) {
  table->rope = rope;
  table->swiglu = swiglu;
  table->swiglu_grad = swiglu_grad;
  table->gelu = gelu;
  table->gelu_grad = gelu_grad;
}
