/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention on bfloat16 dot products: probabilities and their gradients are rounded to bfloat16 (natively: subnormals
 * become zero) and enter the second products as pairs. float32 attention stays with the avx512 tier.
 */
#include "kernels/avx512/tile512.h"
#include "kernels/avx512/vec.h"

#define SCORE_TYPE ISO_BF16

VEC_INLINE void score_store(void *row, int column, vec p) {
  _mm256_store_si256((__m256i *)(void *)((iso_bf16 *)row + column), (__m256i)_mm512_cvtneps_pbh(p));
}

VEC_INLINE vec score_round(vec p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(p)), 16));
}

VEC_INLINE vec score_select(const int32_t *segments, int32_t segment, vec x, vec other) {
  __mmask16 same = _mm512_cmpeq_epi32_mask(_mm512_loadu_si512(segments), _mm512_set1_epi32(segment));
  return _mm512_mask_blend_ps(same, other, x);
}

#include "kernels/vector/attention.h"

static const iso_attention_set set_bf16 = {.tiles = &iso_tile_bf16_avx512bf16,
                                           .pack_scores = iso_pack_pairs_avx512,
                                           .softmax = softmax_tile,
                                           .finish = softmax_finish,
                                           .softmax_grad = softmax_grad_tile,
                                           .scale = scale_row,
                                           .store = store_row,
                                           .dot = dot_row};

static void attention_avx512bf16(const iso_attention_args *args, const iso_worker *worker) {
  iso_attention_run(args->q.dtype == ISO_BF16 ? &set_bf16 : &iso_attention_f32_avx512, args, worker);
}

static void attention_grad_avx512bf16(const iso_attention_grad_args *args, const iso_worker *worker) {
  iso_attention_grad_run(args->forward.q.dtype == ISO_BF16 ? &set_bf16 : &iso_attention_f32_avx512, args, worker);
}

void iso_overlay_avx512bf16_attention(iso_kernels *table) {
  table->attention = attention_avx512bf16;
  table->attention_grad = attention_grad_avx512bf16;
}
