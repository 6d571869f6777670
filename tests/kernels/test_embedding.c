/* SPDX-License-Identifier: Apache-2.0
 *
 * Embedding and its gradient, every tier. Both are exact: a gather rounds once, and the gradient is a float32 sum in
 * the order of the tokens, so every tier must give the bits of that loop, however often tokens repeat.
 */
#include "rows_check.h"

static void run_case(const iso_kernels *k, int64_t tokens, int64_t width, int64_t vocabulary, iso_dtype type,
                     int64_t distinct, bool accumulate) {
  int32_t *ids = malloc(sizeof(int32_t) * (size_t)(tokens + 1));
  for (int64_t i = 0; i < tokens; i++) ids[i] = (int32_t)(vocabulary - 1 - random_below(distinct));
  buffer table = buffer_new(vocabulary, width, random_below(2) * 3, ISO_F32),
         y = buffer_new(tokens, width, random_below(2), type);
  buffer dtable = buffer_new(vocabulary, width, random_below(2) * 5, ISO_F32);
  fill(&table, FILL_SPECIAL, 1), fill_nan(&y);
  iso_embedding_args forward = {ids, table.m, y.m};
  run_kernel(k, OP_EMBEDDING, &forward, 0, (buffer *[]){&y}, 1);
  for (int64_t i = 0; i < tokens; i++)
    for (int64_t j = 0; j < width; j++) {
      double value = get(&y, i, j), expected = get(&table, ids[i], j);
      if (type == ISO_BF16) expected = iso_bf16_to_f32(iso_bf16_from_f32((float)expected));
      assert_true(value == expected || (isnan(value) && isnan(expected)));
    }
  fill(&y, FILL_NORMAL, 1); /* dy from here on */
  fill(&dtable, FILL_NORMAL, 1);
  if (!accumulate) fill_nan(&dtable);
  float *expected = calloc((size_t)(vocabulary * width) + 1, sizeof(float));
  for (int64_t i = 0; accumulate && i < vocabulary; i++)
    for (int64_t j = 0; j < width; j++) expected[i * width + j] = (float)get(&dtable, i, j);
  for (int64_t i = 0; i < tokens; i++)
    for (int64_t j = 0; j < width; j++) expected[ids[i] * width + j] += (float)get(&y, i, j);
  iso_embedding_grad_args backward = {ids, y.m, dtable.m, accumulate};
  run_kernel(k, OP_EMBEDDING_GRAD, &backward, 0, (buffer *[]){&dtable}, 1);
  for (int64_t i = 0; i < vocabulary; i++)
    for (int64_t j = 0; j < width; j++) assert_true((float)get(&dtable, i, j) == expected[i * width + j]);
  free(ids), free(expected);
  buffer_free(&table), buffer_free(&y), buffer_free(&dtable);
}

static void test_random_shapes(void **state) {
  (void)state;
  for_each_tier(k) for (int round = 0; round < 60; round++) {
    int64_t vocabulary = 1 + random_below(40);
    run_case(k, random_below(40), random_width(), vocabulary, compute_types[round % 2], 1 + random_below(vocabulary),
             round / 2 % 2);
  }
}

static void test_one_token_repeated(void **state) {
  (void)state;
  for_each_tier(k) run_case(k, 2000, 70, 9, ISO_F32, 1, false);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_shapes), cmocka_unit_test(test_one_token_repeated)};
  return cmocka_run_group_tests(tests, setup_teams, teardown_teams);
}
