/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention with 512-bit vectors: float32 scores and probabilities, whatever the type of q, k and v.
 */
#include "kernels/avx512/tile512.h"
#include "kernels/avx512/vec.h"

#define SCORE_TYPE ISO_F32

VEC_INLINE void score_store(void *row, int column, vec p) {
  _mm512_store_ps((float *)row + column, p);
}

VEC_INLINE vec score_round(vec p) {
  return p;
}

VEC_INLINE vec score_select(const int32_t *segments, int32_t segment, vec x, vec other) {
  __mmask16 same = _mm512_cmpeq_epi32_mask(_mm512_loadu_si512(segments), _mm512_set1_epi32(segment));
  return _mm512_mask_blend_ps(same, other, x);
}

#include "kernels/vector/attention.h"

const iso_attention_set iso_attention_f32_avx512 = {.tiles = &iso_tile_f32_avx512,
                                                    .pack_scores = iso_pack_f32_avx512,
                                                    .softmax = softmax_tile,
                                                    .finish = softmax_finish,
                                                    .softmax_grad = softmax_grad_tile,
                                                    .scale = scale_row,
                                                    .store = store_row,
                                                    .dot = dot_row};

static const iso_attention_set set_bf16 = {.tiles = &iso_tile_bf16_avx512,
                                           .pack_scores = iso_pack_f32_avx512,
                                           .softmax = softmax_tile,
                                           .finish = softmax_finish,
                                           .softmax_grad = softmax_grad_tile,
                                           .scale = scale_row,
                                           .store = store_row,
                                           .dot = dot_row};

static void attention_avx512(const iso_attention_args *args, const iso_worker *worker) {
  iso_attention_run(args->q.dtype == ISO_BF16 ? &set_bf16 : &iso_attention_f32_avx512, args, worker);
}

static void attention_grad_avx512(const iso_attention_grad_args *args, const iso_worker *worker) {
  iso_attention_grad_run(args->forward.q.dtype == ISO_BF16 ? &set_bf16 : &iso_attention_f32_avx512, args, worker);
}

void iso_overlay_avx512_attention(iso_kernels *table) {
  table->attention = attention_avx512;
  table->attention_grad = attention_grad_avx512;
}
