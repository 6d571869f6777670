/* SPDX-License-Identifier: Apache-2.0
 *
 * Arenas, slabs and strings: alignment, zeroes, growth, and requests that cannot be met.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <string.h>

static bool all_zero(const void *data, size_t bytes) {
  const unsigned char *at = data;
  for (size_t i = 0; i < bytes; i++)
    if (at[i] != 0) return false;
  return true;
}

static void arena_hands_out_zeroed_aligned_memory(void **state) {
  iso_arena *arena = iso_arena_create();
  unsigned char *kept[2000];
  size_t sizes[2000];
  for (size_t i = 0; i < ISO_COUNT(kept); i++) {
    sizes[i] = i % 97 == 0 ? 50000 + i * 13 : i * 7 % 300;
    kept[i] = iso_arena_alloc(arena, sizes[i]);
    assert_non_null(kept[i]);
    assert_int_equal((uintptr_t)kept[i] % 16, 0);
    assert_true(all_zero(kept[i], sizes[i]));
    memset(kept[i], (int)(i & 255), sizes[i]);
  }
  for (size_t i = 0; i < ISO_COUNT(kept); i++) /* nothing overlaps */
    for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(kept[i][k], i & 255);
  void *a = iso_arena_alloc(arena, 0), *b = iso_arena_alloc(arena, 0);
  assert_ptr_not_equal(a, b);
  iso_arena_destroy(&arena);
  assert_null(arena);
  iso_arena_destroy(&arena);
}

static void arena_texts(void **state) {
  iso_arena *arena = iso_arena_create();
  assert_string_equal(iso_arena_strdup(arena, ""), "");
  assert_string_equal(iso_arena_strdup(arena, "abc"), "abc");
  assert_string_equal(iso_arena_printf(arena, "%d-%s-%5.2f", 7, "x", 1.5), "7-x- 1.50");
  char long_text[70000];
  memset(long_text, 'y', sizeof long_text - 1);
  long_text[sizeof long_text - 1] = '\0';
  assert_string_equal(iso_arena_printf(arena, "%s", long_text), long_text);
  iso_arena_destroy(&arena);
}

static void arena_refuses_what_cannot_be(void **state) {
  iso_arena *arena = iso_arena_create();
  iso_log_quiet(true);
  assert_null(iso_arena_alloc(arena, SIZE_MAX));
  assert_null(iso_arena_alloc(arena, SIZE_MAX / 2));
  iso_log_quiet(false);
  assert_non_null(strstr(iso_last_error(), "address space"));
  assert_non_null(iso_arena_alloc(arena, 10));
  iso_arena_destroy(&arena);
}

static void slabs_are_aligned_and_counted(void **state) {
  const size_t sizes[] = {0, 1, 4096, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5000000};
  void *slabs[ISO_COUNT(sizes)];
  size_t total = iso_slab_total();
  for (size_t i = 0; i < ISO_COUNT(sizes); i++) {
    slabs[i] = iso_slab_alloc(sizes[i], "test");
    assert_non_null(slabs[i]);
    assert_int_equal((uintptr_t)slabs[i] % (2 << 20), 0);
    assert_true(all_zero(slabs[i], sizes[i]));
    memset(slabs[i], 0xA5, sizes[i]);
    total += sizes[i];
    assert_int_equal(iso_slab_total(), total);
  }
  for (size_t i = 0; i < ISO_COUNT(sizes); i++) {
    iso_slab_free(slabs[i], sizes[i]);
    total -= sizes[i];
    assert_int_equal(iso_slab_total(), total);
  }
  iso_slab_free(NULL, 123);
  assert_int_equal(iso_slab_total(), total);
}

static void slab_too_large_is_an_error_with_numbers(void **state) {
  iso_log_quiet(true);
  size_t total = iso_slab_total();
  size_t bytes = (size_t)iso_memory_available() + ((size_t)1 << 34);
  assert_null(iso_slab_alloc(bytes, "the moments"));
  assert_non_null(strstr(iso_last_error(), "MiB for the moments: only "));
  assert_non_null(strstr(iso_last_error(), "MiB are available"));
  assert_null(iso_slab_alloc(SIZE_MAX, "everything"));
  assert_null(iso_slab_alloc(SIZE_MAX / 2 - 5, "half of everything"));
  assert_int_equal(iso_slab_total(), total);
  iso_log_quiet(false);
}

/* Slabs are touched lazily: untouched ones must count against what is available. */
static void untouched_slabs_count_as_taken(void **state) {
  iso_log_quiet(true);
  size_t bytes = (size_t)(iso_memory_available() / 10 * 8);
  void *first = iso_slab_alloc(bytes, "first");
  assert_non_null(first);
  void *second = iso_slab_alloc(bytes, "second");
  assert_null(second);
  iso_slab_free(first, bytes);
  iso_log_quiet(false);
}

static void strings_grow(void **state) {
  iso_string string = {0};
  for (int i = 0; i < 5000; i++) iso_string_printf(&string, "%d,", i % 10);
  assert_int_equal(string.length, 10000);
  assert_int_equal(string.data[10000], 0);
  for (int i = 0; i < 5000; i++) assert_int_equal(string.data[2 * i], '0' + i % 10);
  iso_string_append(&string, "\0z", 2);
  assert_int_equal(string.length, 10002);
  assert_memory_equal(string.data + 10000, "\0z", 3);
  assert_false(iso_string_failed(&string));
  iso_string_fini(&string);
  assert_null(string.data);
  iso_string_append(&string, NULL, 0);
  assert_string_equal(string.data, "");
  iso_string_fini(&string);
  iso_string_fini(&string);
}

static void failed_string_is_empty_and_says_so(void **state) {
  iso_string string = {0};
  iso_log_quiet(true);
  iso_string_append(&string, "abc", 3);
  iso_string_append(&string, "x", SIZE_MAX - 2);
  iso_log_quiet(false);
  assert_non_null(strstr(iso_last_error(), "out of memory"));
  assert_true(iso_string_failed(&string));
  assert_string_equal(string.data, "");
  assert_int_equal(string.length, 0);
  iso_string_append(&string, "abc", 3);
  iso_string_printf(&string, "%d", 5);
  assert_string_equal(string.data, "");
  iso_string_fini(&string);
  assert_false(iso_string_failed(&string));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(arena_hands_out_zeroed_aligned_memory),
      cmocka_unit_test(arena_texts),
      cmocka_unit_test(arena_refuses_what_cannot_be),
      cmocka_unit_test(slabs_are_aligned_and_counted),
      cmocka_unit_test(slab_too_large_is_an_error_with_numbers),
      cmocka_unit_test(untouched_slabs_count_as_taken),
      cmocka_unit_test(strings_grow),
      cmocka_unit_test(failed_string_is_empty_and_says_so),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
