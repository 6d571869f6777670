/* SPDX-License-Identifier: Apache-2.0
 *
 * How attention is cut into tiles, and the scratch that takes.
 */
#include "kernels/kernels.h"

size_t iso_attention_scratch(int64_t queries, int64_t keys, int64_t head_dim, int threads) {
  return (size_t)keys * sizeof(float) * (size_t)threads;
}

size_t iso_attention_grad_scratch(int64_t batch, int64_t queries, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                  int threads) {
  return (size_t)(2 * queries * head_dim + head_dim) * sizeof(float) * (size_t)threads;
}
