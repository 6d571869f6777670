/* SPDX-License-Identifier: Apache-2.0
 *
 * Flags and words.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "cli/cli.h"

static const iso_verb verb = {"test", NULL, "WORD ...", "a verb for tests"};

typedef struct values {
  bool flag;
  const char *text;
  int64_t whole;
  double real;
  iso_dtype dtype;
} values;

static iso_status parse(values *v, iso_args *args, char **argv, int least, int most) {
  const iso_flag flags[] = {
      {"flag", ISO_FLAG_BOOL, &v->flag, "", 0, 0},     {"text", ISO_FLAG_TEXT, &v->text, "", 0, 0},
      {"whole", ISO_FLAG_INT, &v->whole, "", -5, 100}, {"real", ISO_FLAG_REAL, &v->real, "", 0, 0},
      {"dtype", ISO_FLAG_DTYPE, &v->dtype, "", 0, 0},
  };
  int argc = 0;
  while (argv[argc]) argc++;
  *args = (iso_args){.verb = &verb, .argc = argc, .argv = argv};
  return iso_args_parse(args, flags, ISO_COUNT(flags), least, most);
}

/* argv of up to 15 words; strings are not written to. */
#define ARGV(...) ((char *[16]){__VA_ARGS__})

static void flags_stand_anywhere(void **state) {
  values v = {0};
  iso_args args;
  char **argv =
      ARGV("one", "--whole", "-3", "two", "--real=1.5e-3", "--flag", "--text", "--odd", "three", "--dtype=bfloat16");
  assert_int_equal(parse(&v, &args, argv, 3, 3), ISO_OK);
  assert_int_equal(args.word_count, 3);
  assert_string_equal(args.words[0], "one");
  assert_string_equal(args.words[1], "two");
  assert_string_equal(args.words[2], "three");
  assert_true(v.flag);
  assert_string_equal(v.text, "--odd");
  assert_int_equal(v.whole, -3);
  assert_true(v.real == 1.5e-3);
  assert_int_equal(v.dtype, ISO_BF16);
}

static void two_dashes_end_flags(void **state) {
  values v = {0};
  iso_args args;
  assert_int_equal(parse(&v, &args, ARGV("--flag", "--", "--whole", "--help", "--"), 3, 3), ISO_OK);
  assert_string_equal(args.words[0], "--whole");
  assert_string_equal(args.words[1], "--help");
  assert_string_equal(args.words[2], "--");
  assert_int_equal(v.whole, 0);
}

static void negative_numbers_and_a_dash_are_words(void **state) {
  values v = {0};
  iso_args args;
  assert_int_equal(parse(&v, &args, ARGV("-5", "-", ""), 3, 3), ISO_OK);
  assert_string_equal(args.words[0], "-5");
  assert_string_equal(args.words[1], "-");
  assert_string_equal(args.words[2], "");
}

static void wrong_values_are_refused(void **state) {
  static char *const wrong[] = {
      "--whole=1.5",  "--whole=",    "--whole=101", "--whole=-6",  "--whole=9999999999999999999999",
      "--real=x",     "--real=nan",  "--real=inf",  "--real=0x10", "--real=1e999",
      "--dtype=bf16", "--flag=true", "--text",      "--flags",     "-f",
      "--=3",         "--whole=3 "};
  for (size_t i = 0; i < ISO_COUNT(wrong); i++) {
    values v = {0};
    iso_args args;
    assert_int_equal(parse(&v, &args, ARGV(wrong[i]), 0, 0), ISO_ERR_USAGE);
    assert_non_null(strstr(iso_last_error(), "test: "));
  }
}

static void word_counts_are_checked(void **state) {
  values v = {0};
  iso_args args;
  assert_int_equal(parse(&v, &args, ARGV("a"), 2, 3), ISO_ERR_USAGE);
  assert_int_equal(parse(&v, &args, ARGV("a", "b", "c", "d"), 2, 3), ISO_ERR_USAGE);
  assert_non_null(strstr(iso_last_error(), "\"d\""));
  assert_int_equal(parse(&v, &args, ARGV("a", "b", "c", "d"), 2, -1), ISO_OK);
}

static void nearest_is_by_edit_distance(void **state) {
  static const char *const names[] = {"temperature", "top-k", "top-p", "seed"};
  assert_string_equal(iso_nearest("tempreture", names, 4), "temperature");
  assert_string_equal(iso_nearest("topk", names, 4), "top-k");
  assert_string_equal(iso_nearest("sed", names, 4), "seed");
  char huge[5000];
  memset(huge, 'x', sizeof huge - 1);
  huge[sizeof huge - 1] = 0;
  assert_non_null(iso_nearest(huge, names, 4));
}

static void escapes_are_resolved(void **state) {
  iso_arena *arena = iso_arena_create();
  assert_string_equal(iso_unescape(arena, "a\\n\\t\\r\\\\n"), "a\n\t\r\\n");
  assert_string_equal(iso_unescape(arena, ""), "");
  assert_null(iso_unescape(arena, "\\q"));
  assert_null(iso_unescape(arena, "end\\"));
  iso_arena_destroy(&arena);
}

static void json_members_get_their_commas(void **state) {
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "a", "x\"y");
  iso_json_open(&out, "b", '[');
  iso_json_shut(&out, ']');
  iso_json_open(&out, "c", '[');
  iso_json_put_int(&out, NULL, -1);
  iso_json_put_bool(&out, NULL, true);
  iso_json_open(&out, NULL, '{');
  iso_json_shut(&out, '}');
  iso_json_shut(&out, ']');
  iso_json_put_real(&out, "d", NAN);
  iso_json_put_text(&out, "e", "[");
  iso_json_put_real(&out, "f", 1.5);
  iso_json_shut(&out, '}');
  assert_string_equal(out.data,
                      "{\"a\": \"x\\\"y\", \"b\": [], \"c\": [-1, true, {}], \"d\": null, \"e\": \"[\", \"f\": 1.5}");
  iso_string_fini(&out);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(flags_stand_anywhere),
      cmocka_unit_test(two_dashes_end_flags),
      cmocka_unit_test(negative_numbers_and_a_dash_are_words),
      cmocka_unit_test(wrong_values_are_refused),
      cmocka_unit_test(word_counts_are_checked),
      cmocka_unit_test(nearest_is_by_edit_distance),
      cmocka_unit_test(escapes_are_resolved),
      cmocka_unit_test(json_members_get_their_commas),
  };
  iso_log_quiet(true);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
