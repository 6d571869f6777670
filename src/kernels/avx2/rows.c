/* SPDX-License-Identifier: Apache-2.0
 *
 * rows.c (avx2): embedding, add, cast, column_sum and softmax with cross-entropy, and the overlay of all row kernels of this tier.
 * The bodies are shared by the vector tiers (src/kernels/vector); this file compiles them for AVX2.
 */
#include "kernels/avx2/vec.h"
#include "kernels/vector/math.h"
#include "kernels/vector/rows.h"
#include "kernels/vector/softmax.h"

void iso_overlay_avx2_rows(iso_kernels *table) {
  table->embedding = embedding;
  table->embedding_grad = embedding_grad;
  table->add = add;
  table->cast = cast;
  table->column_sum = column_sum;
  table->softmax_part = softmax_part;
  table->softmax_finish = softmax_finish;
  iso_overlay_avx2_norm(table);
  iso_overlay_avx2_activation(table);
}
