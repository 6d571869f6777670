/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention with 256-bit vectors: float32 scores and probabilities, whatever the type of q, k and v.
 */
#include "kernels/avx2/tile256.h"
#include "kernels/avx2/vec.h"

#define SCORE_TYPE ISO_F32

VEC_INLINE void score_store(void *row, int column, vec p) {
  _mm256_store_ps((float *)row + column, p);
}

VEC_INLINE vec score_round(vec p) {
  return p;
}

VEC_INLINE vec score_select(const int32_t *segments, int32_t segment, vec x, vec other) {
  __m256i lanes = _mm256_loadu_si256((const __m256i_u *)(const void *)segments);
  __m256i same = _mm256_cmpeq_epi32(lanes, _mm256_set1_epi32(segment));
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(same));
}

#include "kernels/vector/attention.h"

static const iso_attention_set set_f32 = {.tiles = &iso_tile_f32_avx2,
                                          .pack_scores = iso_pack_f32_avx2,
                                          .softmax = softmax_tile,
                                          .finish = softmax_finish,
                                          .softmax_grad = softmax_grad_tile,
                                          .scale = scale_row,
                                          .store = store_row,
                                          .dot = dot_row};

static const iso_attention_set set_bf16 = {.tiles = &iso_tile_bf16_avx2,
                                           .pack_scores = iso_pack_f32_avx2,
                                           .softmax = softmax_tile,
                                           .finish = softmax_finish,
                                           .softmax_grad = softmax_grad_tile,
                                           .scale = scale_row,
                                           .store = store_row,
                                           .dot = dot_row};

static void attention_avx2(const iso_attention_args *args, const iso_worker *worker) {
  iso_attention_run(args->q.dtype == ISO_BF16 ? &set_bf16 : &set_f32, args, worker);
}

static void attention_grad_avx2(const iso_attention_grad_args *args, const iso_worker *worker) {
  iso_attention_grad_run(args->forward.q.dtype == ISO_BF16 ? &set_bf16 : &set_f32, args, worker);
}

void iso_overlay_avx2_attention(iso_kernels *table) {
  table->attention = attention_avx2;
  table->attention_grad = attention_grad_avx2;
}
