/* SPDX-License-Identifier: Apache-2.0
 *
 * Choosing the next token. Order as in transformers: temperature, then top-k, then top-p. Weights are double and come
 * from iso_exp, so the choice is the same everywhere.
 */
#include <math.h>
#include <stdlib.h>

#include "infer/infer.h"

static int by_weight(const void *a, const void *b) {
  const iso_candidate *x = a, *y = b;
  if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
  return (x->id > y->id) - (x->id < y->id);
}

static iso_status find_largest(const float *logits, int64_t vocabulary, int32_t *best) {
  *best = 0;
  for (int64_t i = 0; i < vocabulary; i++) {
    if (isnan(logits[i]))
      return iso_fail(ISO_ERR_NUMERIC,
                      "sample: the model's logit of token %lld is not a number; its weights are broken", (long long)i);
    if (logits[i] > logits[*best]) *best = (int32_t)i;
  }
  return ISO_OK;
}

iso_status iso_sample(const float *logits, int64_t vocabulary, const iso_sampling *sampling, int64_t position,
                      iso_candidate *scratch, int32_t *token) {
  ISO_TRY(find_largest(logits, vocabulary, token));
  if (sampling->temperature <= 0 || isinf(logits[*token])) return ISO_OK;
  const double largest = logits[*token];
  double mass = 0;
  for (int64_t i = 0; i < vocabulary; i++) {
    scratch[i] = (iso_candidate){iso_exp(((double)logits[i] - largest) / sampling->temperature), (int32_t)i};
    mass += scratch[i].weight;
  }
  int64_t count = vocabulary;
  if ((sampling->top_k > 0 && sampling->top_k < vocabulary) || sampling->top_p < 1) {
    qsort(scratch, (size_t)vocabulary, sizeof *scratch, by_weight);
    if (sampling->top_k > 0 && sampling->top_k < count) count = sampling->top_k;
    mass = 0;
    for (int64_t i = 0; i < count; i++) mass += scratch[i].weight;
    double kept = 0;
    int64_t cut = 0;
    while (cut < count && (cut == 0 || kept < sampling->top_p * mass)) kept += scratch[cut++].weight;
    count = cut;
    mass = kept;
  }
  double target = iso_rng_uniform(sampling->seed, ISO_RNG_SAMPLE, (uint64_t)position, 0) * mass;
  for (int64_t i = 0; i < count; i++) {
    *token = scratch[i].id;
    target -= scratch[i].weight;
    if (target < 0) break;
  }
  return ISO_OK;
}
