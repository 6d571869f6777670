/* SPDX-License-Identifier: Apache-2.0
 *
 * YAML in: what libfyaml would read in silence as something else is refused with its place.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static void bytes_that_are_no_text(void **state) {
  (void)state;
  static const struct {
    const char *text;
    size_t length;
    const char *cause;
  } rows[] = {
      {"seed: 1\n\0\0steps: 3\n", 19, "t.yaml:2:1: byte 0x00 is no text"},
      {"a: \"x\0y\"\n", 9, "t.yaml:1:6: byte 0x00"},
      {"run: \xff\xfe\n", 8, "t.yaml:1:6: byte 0xFF is not UTF-8"},
      {"# caf\xe9\nrun: x\n", 14, "t.yaml:1:6: byte 0xE9 is not UTF-8"},
      {"a: 1\nb: \xc3", 9, "t.yaml:2:4: byte 0xC3 is not UTF-8"},
      {"\xff\xfe"
       "a\0:\0 \0001\0\n\0",
       12, "t.yaml:1:1: byte 0xFF is not UTF-8"}, /* UTF-16 */
  };
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_arena *arena = iso_arena_create();
    iso_yaml *root;
    assert_int_equal(iso_yaml_parse(arena, rows[i].text, rows[i].length, "t.yaml", &root), ISO_ERR_CONFIG);
    assert_null(root);
    if (!strstr(iso_last_error(), rows[i].cause)) fail_msg("row %zu: %s", i, iso_last_error());
    iso_arena_destroy(&arena);
  }
  iso_log_quiet(false);
}

static void text_in_any_dress(void **state) {
  (void)state;
  static const char *const rows[] = {"a: x\xc3\xa9\n",
                                     ("\xef\xbb\xbf"
                                      "a: x\xc3\xa9\n"),
                                     "a: x\xc3\xa9\r\n", "a: \"x\xc3\xa9\"", "{a: x\xc3\xa9}"};
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_arena *arena = iso_arena_create();
    iso_yaml *root;
    assert_int_equal(iso_yaml_parse(arena, rows[i], strlen(rows[i]), "t.yaml", &root), ISO_OK);
    assert_int_equal(root->count, 1);
    assert_string_equal(root->children[0]->key, "a");
    assert_string_equal(root->children[0]->text, "x\xc3\xa9");
    iso_arena_destroy(&arena);
  }
}

/* Without a bound, a mapping of many keys keeps the parser busy for minutes. */
static void too_large_a_config(void **state) {
  (void)state;
  iso_string text = {0};
  for (int i = 0; text.length <= 128 << 10; i++) iso_string_printf(&text, "k%d: 1\n", i);
  iso_arena *arena = iso_arena_create();
  iso_yaml *root;
  iso_log_quiet(true);
  assert_int_equal(iso_yaml_parse(arena, text.data, text.length, "t.yaml", &root), ISO_ERR_CONFIG);
  iso_log_quiet(false);
  assert_non_null(strstr(iso_last_error(), "a config has at most 131072"));
  iso_arena_destroy(&arena);
  iso_string_fini(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bytes_that_are_no_text),
      cmocka_unit_test(text_in_any_dress),
      cmocka_unit_test(too_large_a_config),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
