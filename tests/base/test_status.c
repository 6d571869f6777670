/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines stay one line whatever the message holds, exit codes follow the families, and UTF-8 is told from bytes.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static char caught[16384];

/* What `act` writes to standard error. */
static const char *stderr_of(void (*act)(void)) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  int saved = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  close(ends[1]);
  act();
  dup2(saved, STDERR_FILENO);
  close(saved);
  ssize_t length = read(ends[0], caught, sizeof caught - 1); /* one write is one read here */
  caught[length < 0 ? 0 : length] = '\0';
  close(ends[0]);
  return caught;
}

static void say_error(void) {
  errno = 42;
  assert_int_equal(iso_fail(ISO_ERR_IO, "cannot read '%s': %d", "a b", 7), ISO_ERR_IO);
  assert_int_equal(errno, 42);
}

static void say_others(void) {
  iso_warn("watch %s", "out");
}

static void say_note(void) {
  iso_note("hello");
}

static void say_hostile(void) {
  iso_fail(ISO_ERR_FORMAT, "file '%s'", "a\nisotach: error: b\x1b[2J\x7f\xC2\x85\xFF\xC3\xA9\xE2\x82");
}

static void say_long(void) {
  char text[9000];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  iso_fail(ISO_ERR_FORMAT, "%s", text);
}

static void say_long_control(void) {
  char text[3000];
  memset(text, '\n', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  iso_fail(ISO_ERR_FORMAT, "%s", text);
}

static void say_long_utf8(void) { /* three-byte characters: the cut falls within one */
  char text[6001];
  for (size_t i = 0; i < 6000; i += 3) memcpy(text + i, "\xE2\x82\xAC", 3);
  text[6000] = '\0';
  iso_fail(ISO_ERR_FORMAT, "%s", text);
}

static void lines_have_prefix_and_end(void **state) {
  assert_string_equal(stderr_of(say_error), "isotach: error: cannot read 'a b': 7\n");
  assert_string_equal(iso_last_error(), "cannot read 'a b': 7");
  assert_string_equal(stderr_of(say_others), "isotach: warning: watch out\n");
  assert_string_equal(stderr_of(say_note), "isotach: hello\n");
  assert_string_equal(iso_last_error(), "cannot read 'a b': 7");
}

static void hostile_text_is_escaped(void **state) {
  assert_string_equal(stderr_of(say_hostile),
                      "isotach: error: file 'a\\x0Aisotach: error: b\\x1B[2J\\x7F\\xC2\\x85\\xFF\xC3\xA9\\xE2\\x82'\n");
}

static void long_messages_are_cut(void **state) {
  void (*const acts[])(void) = {say_long, say_long_control, say_long_utf8};
  for (size_t i = 0; i < ISO_COUNT(acts); i++) {
    const char *line = stderr_of(acts[i]);
    size_t length = strlen(line);
    assert_true(length > 4000 && length < 4096 + 32);
    assert_string_equal(line + length - 4, "...\n");
    assert_ptr_equal(strchr(line, '\n'), line + length - 1);
    assert_true(strlen(iso_last_error()) < 4096);
  }
  assert_null(strstr(iso_last_error(), "\\x")); /* no half character at the cut */
}

static void last_error_may_be_an_argument(void **state) {
  iso_log_quiet(true);
  iso_fail(ISO_ERR_IO, "inner");
  iso_fail(ISO_ERR_IO, "outer: %s", iso_last_error());
  iso_log_quiet(false);
  assert_string_equal(iso_last_error(), "outer: inner");
}

static void quiet_say(void) {
  iso_log_quiet(true);
  iso_fail(ISO_ERR_IO, "silent");
  iso_warn("silent");
  iso_note("silent");
  iso_log_quiet(false);
  iso_note("end");
}

static void quiet_prints_nothing(void **state) {
  assert_string_equal(stderr_of(quiet_say), "isotach: end\n");
  assert_string_equal(iso_last_error(), "silent");
}

static void *other_thread(void *argument) {
  iso_fail(ISO_ERR_IO, "other");
  return NULL;
}

static void last_error_is_per_thread(void **state) {
  iso_log_quiet(true);
  iso_fail(ISO_ERR_IO, "mine");
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, other_thread, NULL), 0);
  pthread_join(thread, NULL);
  iso_log_quiet(false);
  assert_string_equal(iso_last_error(), "mine");
}

static void exit_codes(void **state) {
  const struct {
    iso_status status;
    int code;
    const char *name;
  } rows[] = {
      {ISO_OK, 0, "ok"},
      {ISO_ERR_USAGE, 2, "usage"},
      {ISO_ERR_CONFIG, 2, "config"},
      {ISO_ERR_UNSUPPORTED, 2, "unsupported"},
      {ISO_ERR_NOT_FOUND, 3, "not_found"},
      {ISO_ERR_IO, 3, "io"},
      {ISO_ERR_FORMAT, 4, "format"},
      {ISO_ERR_MISMATCH, 5, "mismatch"},
      {ISO_ERR_BUSY, 6, "busy"},
      {ISO_ERR_MEMORY, 7, "memory"},
      {ISO_ERR_SPACE, 7, "space"},
      {ISO_ERR_CHECK, 1, "check"},
      {ISO_ERR_NUMERIC, 8, "numeric"},
      {ISO_STOPPED, 75, "stopped"},
      {ISO_ERR_INTERNAL, 70, "internal"},
      {(iso_status)99, 70, "unknown"},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    assert_int_equal(iso_exit_code(rows[i].status), rows[i].code);
    assert_string_equal(iso_status_name(rows[i].status), rows[i].name);
  }
}

/* Every code point's encoding has its length; every other one, two or three byte string is refused. */
static void utf8_spans(void **state) {
  for (uint32_t c = 0; c < 0x110000; c++) {
    char s[4];
    int n;
    if (c < 0x80)
      n = 1, s[0] = (char)c;
    else if (c < 0x800)
      n = 2, s[0] = (char)(0xC0 | c >> 6), s[1] = (char)(0x80 | (c & 63));
    else if (c < 0x10000)
      n = 3, s[0] = (char)(0xE0 | c >> 12), s[1] = (char)(0x80 | (c >> 6 & 63)), s[2] = (char)(0x80 | (c & 63));
    else
      n = 4, s[0] = (char)(0xF0 | c >> 18), s[1] = (char)(0x80 | (c >> 12 & 63)), s[2] = (char)(0x80 | (c >> 6 & 63)),
      s[3] = (char)(0x80 | (c & 63));
    bool surrogate = c >= 0xD800 && c < 0xE000;
    if (iso_utf8_span(s, (size_t)n) != (surrogate ? 0 : n)) fail_msg("U+%04X", (unsigned)c);
    if (iso_utf8_span(s, (size_t)n - 1) != 0) fail_msg("U+%04X cut", (unsigned)c);
  }
  const char *const bad[] = {
      "\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
      "\xFE", "\xFF",     "\xC3(",    "\xE2\x82(",    "\xF0\x9F\x98("};
  for (size_t i = 0; i < ISO_COUNT(bad); i++) assert_int_equal(iso_utf8_span(bad[i], strlen(bad[i])), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lines_have_prefix_and_end),
      cmocka_unit_test(hostile_text_is_escaped),
      cmocka_unit_test(long_messages_are_cut),
      cmocka_unit_test(last_error_may_be_an_argument),
      cmocka_unit_test(quiet_prints_nothing),
      cmocka_unit_test(last_error_is_per_thread),
      cmocka_unit_test(exit_codes),
      cmocka_unit_test(utf8_spans),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
