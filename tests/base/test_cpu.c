/* SPDX-License-Identifier: Apache-2.0
 *
 * Tier selection by ISOTACH_CPU, and the cores that a process may use.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

static void best_tier_agrees_with_the_compiler(void **state) {
  iso_tier best = iso_cpu_best_tier();
#if defined(__x86_64__) && !defined(__clang__)
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  assert_int_equal(best, bf16     ? ISO_TIER_AVX512BF16
                         : avx512 ? ISO_TIER_AVX512
                         : avx2   ? ISO_TIER_AVX2
                                  : ISO_TIER_SCALAR);
#else
  assert_true(best < ISO_TIER_COUNT);
#endif
}

static void environment_forces_a_tier(void **state) {
  iso_tier best = iso_cpu_best_tier(), tier;
  iso_log_quiet(true);
  unsetenv("ISOTACH_CPU");
  assert_int_equal(iso_cpu_tier(&tier), ISO_OK);
  assert_int_equal(tier, best);
  setenv("ISOTACH_CPU", "", 1);
  assert_int_equal(iso_cpu_tier(&tier), ISO_OK);
  assert_int_equal(tier, best);
  for (int i = 0; i < ISO_TIER_COUNT; i++) {
    setenv("ISOTACH_CPU", iso_tier_name((iso_tier)i), 1);
    iso_status status = iso_cpu_tier(&tier);
    if ((iso_tier)i <= best) {
      assert_int_equal(status, ISO_OK);
      assert_int_equal(tier, i);
    } else {
      assert_int_equal(status, ISO_ERR_CONFIG);
      assert_non_null(strstr(iso_last_error(), "this machine runs at most"));
    }
  }
  setenv("ISOTACH_CPU", "AVX2", 1);
  assert_int_equal(iso_cpu_tier(&tier), ISO_ERR_CONFIG);
  assert_non_null(strstr(iso_last_error(), "unknown tier"));
  unsetenv("ISOTACH_CPU");
  iso_log_quiet(false);
  assert_string_equal(iso_tier_name(ISO_TIER_COUNT), "unknown");
}

static void cores(void **state) {
  cpu_set_t before, one;
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  int count = iso_cpu_count();
  assert_int_equal(count, CPU_COUNT(&before));
  int *order = calloc((size_t)count + 1, sizeof *order);
  assert_int_equal(iso_cpu_order(order, count + 1), count);
  for (int i = 0; i < count; i++) { /* each allowed core once */
    assert_true(CPU_ISSET(order[i], &before));
    for (int k = 0; k < i; k++) assert_int_not_equal(order[i], order[k]);
  }
  CPU_ZERO(&one);
  CPU_SET(order[count - 1], &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  assert_int_equal(iso_cpu_count(), 1);
  int only = -1;
  assert_int_equal(iso_cpu_order(&only, 1), 1);
  assert_int_equal(only, order[count - 1]);
  sched_setaffinity(0, sizeof before, &before);
  free(order);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(best_tier_agrees_with_the_compiler),
      cmocka_unit_test(environment_forces_a_tier),
      cmocka_unit_test(cores),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
