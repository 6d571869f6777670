/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling by its definition, and the cached program against itself: however a sequence is cut into calls, its logits
 * stay the same within rounding, and greedy text exactly.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "infer/infer.h"

enum { COUNT = 6 };
static const float logits[COUNT] = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f, -INFINITY};

static int32_t draw(const iso_sampling *sampling, int64_t position) {
  iso_candidate scratch[COUNT];
  int32_t token = -1;
  assert_int_equal(iso_sample(logits, COUNT, sampling, position, scratch, &token), ISO_OK);
  return token;
}

static void frequencies(const iso_sampling *sampling, double share[COUNT]) {
  enum { DRAWS = 20000 };
  memset(share, 0, COUNT * sizeof *share);
  for (int64_t i = 0; i < DRAWS; i++) share[draw(sampling, i)] += 1.0 / DRAWS;
}

static void test_greedy(void **state) {
  (void)state;
  const iso_sampling sampling = {.temperature = 0, .top_p = 1};
  assert_int_equal(draw(&sampling, 0), 1); /* a tie goes to the smaller id */
  const iso_sampling one = {.temperature = 1, .top_k = 1, .top_p = 1, .seed = 5};
  for (int64_t i = 0; i < 100; i++) assert_int_equal(draw(&one, i), 1);
}

/* Shares follow softmax(logits / temperature), after the cuts. */
static void check_shares(const iso_sampling *sampling, const bool kept[COUNT]) {
  double expected[COUNT], share[COUNT], mass = 0;
  for (int i = 0; i < COUNT; i++) mass += expected[i] = kept[i] ? exp(logits[i] / sampling->temperature) : 0;
  frequencies(sampling, share);
  for (int i = 0; i < COUNT; i++) {
    expected[i] /= mass;
    assert_true(fabs(share[i] - expected[i]) < 4.5 * sqrt(expected[i] / 20000) + 1e-9);
  }
}

static void test_shares(void **state) {
  (void)state;
  check_shares(&(iso_sampling){.temperature = 1, .top_p = 1, .seed = 1},
               (bool[COUNT]){true, true, true, true, true, true});
  check_shares(&(iso_sampling){.temperature = 0.5, .top_p = 1, .seed = 2},
               (bool[COUNT]){true, true, true, true, true, true});
  check_shares(&(iso_sampling){.temperature = 1, .top_k = 3, .top_p = 1, .seed = 3},
               (bool[COUNT]){false, true, false, true, true, false});
  /* masses 7.39 7.39 2.72 1.65 0.37 of 19.51: the first three reach 0.8 */
  check_shares(&(iso_sampling){.temperature = 1, .top_p = 0.8, .seed = 4},
               (bool[COUNT]){false, true, false, true, true, false});
  check_shares(&(iso_sampling){.temperature = 1, .top_p = 0, .seed = 4},
               (bool[COUNT]){false, true, false, false, false, false});
}

static void test_seeds(void **state) {
  (void)state;
  const iso_sampling a = {.temperature = 1, .top_p = 1, .seed = 1}, b = {.temperature = 1, .top_p = 1, .seed = 2};
  int differ = 0;
  for (int64_t i = 0; i < 64; i++) {
    assert_int_equal(draw(&a, i), draw(&a, i));
    differ += draw(&a, i) != draw(&b, i);
  }
  assert_true(differ > 10);
}

static void test_broken_logits(void **state) {
  (void)state;
  const float broken[3] = {1, NAN, 2};
  iso_candidate scratch[3];
  int32_t token;
  const iso_sampling sampling = {.temperature = 1, .top_p = 1};
  iso_log_quiet(true);
  assert_int_equal(iso_sample(broken, 3, &sampling, 0, scratch, &token), ISO_ERR_NUMERIC);
  iso_log_quiet(false);
}

enum { MAX_TOKENS = 150 };
static int32_t tokens[MAX_TOKENS];
static int64_t count_all; /* up to the model's last position */

/* Logits after feeding all tokens in parts of `part`. */
static void feed(const iso_lm *lm, iso_dtype compute, int64_t part, float *out) {
  iso_session *session;
  const float *last = NULL;
  assert_int_equal(iso_session_create(lm, compute, count_all, &session), ISO_OK);
  for (int64_t at = 0; at < count_all; at += part) {
    const int64_t count = count_all - at < part ? count_all - at : part;
    assert_int_equal(iso_session_feed(session, tokens + at, count, &last), ISO_OK);
  }
  assert_int_equal(iso_session_length(session), count_all);
  memcpy(out, last, (size_t)lm->model.vocabulary * sizeof *out);
  iso_session_destroy(&session);
}

static void test_cutting(void **state) {
  (void)state;
  static const char *const models[] = {"/golden/llama-gqa/model", "/golden/mistral-window/model", "/golden/qwen3/model",
                                       "/golden/gpt2/model"};
  for (size_t m = 0; m < ISO_COUNT(models); m++) {
    char path[512];
    snprintf(path, sizeof path, "%s%s", ISO_TEST_DATA, models[m]);
    iso_lm lm;
    assert_int_equal(iso_lm_open(path, 2, &lm), ISO_OK);
    count_all = lm.model.positions < MAX_TOKENS ? lm.model.positions : MAX_TOKENS;
    for (int i = 0; i < count_all; i++) tokens[i] = (int32_t)((i * 37 + i * i) % lm.model.vocabulary);
    float whole[512], parts[512];
    assert_true(lm.model.vocabulary <= 512);
    feed(&lm, ISO_F32, count_all, whole);
    for (int64_t part = 1; part <= 100; part = part * 3 + 1) {
      feed(&lm, ISO_F32, part, parts);
      double difference = 0, norm = 0;
      for (int64_t i = 0; i < lm.model.vocabulary; i++) {
        difference += (parts[i] - whole[i]) * (double)(parts[i] - whole[i]);
        norm += whole[i] * (double)whole[i];
      }
      assert_true(sqrt(difference / norm) < 1e-5);
    }
    iso_lm_close(&lm);
  }
}

static void test_capacity(void **state) {
  (void)state;
  iso_lm lm;
  assert_int_equal(iso_lm_open(ISO_TEST_DATA "/golden/llama-gqa/model", 1, &lm), ISO_OK);
  iso_session *session;
  const float *last;
  iso_log_quiet(true);
  assert_int_equal(iso_session_create(&lm, ISO_F32, lm.model.positions + 1, &session), ISO_ERR_CONFIG);
  assert_int_equal(iso_session_create(&lm, ISO_BF16, 3, &session), ISO_OK);
  const int32_t few[4] = {1, 2, 3, 4}, outside[1] = {100000}, negative[1] = {-1};
  assert_int_equal(iso_session_feed(session, outside, 1, &last), ISO_ERR_MISMATCH);
  assert_int_equal(iso_session_feed(session, negative, 1, &last), ISO_ERR_MISMATCH);
  assert_int_equal(iso_session_feed(session, few, 0, &last), ISO_ERR_USAGE);
  assert_int_equal(iso_session_feed(session, few, 4, &last), ISO_ERR_CONFIG);
  assert_int_equal(iso_session_feed(session, few, 3, &last), ISO_OK);
  assert_int_equal(iso_session_feed(session, few, 1, &last), ISO_ERR_CONFIG);
  iso_log_quiet(false);
  iso_session_destroy(&session);
  iso_lm_close(&lm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_greedy),        cmocka_unit_test(test_shares),  cmocka_unit_test(test_seeds),
      cmocka_unit_test(test_broken_logits), cmocka_unit_test(test_cutting), cmocka_unit_test(test_capacity),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
