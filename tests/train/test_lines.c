/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of lines: a flipped bit is damage wherever it is, a cut or a hole that a crash left is none, and what a resume
 * keeps is what was written, each step once.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sys/stat.h>

#include "io/scratch.h"
#include "train/train.h"

enum { LINES = 4 };

static char run[128], path[160];
static iso_string whole; /* LINES sealed lines, of steps 1, 2, ... */

static void put_line(iso_string *out, int64_t step, bool sealed) {
  const size_t begin = out->length;
  iso_string_printf(out, "{\"step\": %lld, \"loss\": 1.5, \"text\": \"*J\"", (long long)step);
  if (sealed)
    iso_record_seal_line(out, begin);
  else
    iso_string_append(out, "}\n", 2);
}

static int setup(void **state) {
  (void)state;
  iso_log_quiet(true);
  scratch_make(run);
  snprintf(path, sizeof path, "%s/metrics.jsonl", run);
  for (int step = 1; step <= LINES; step++) put_line(&whole, step, true);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  iso_string_fini(&whole);
  scratch_remove(run);
  return 0;
}

/* What the file's bytes are taken for; what counts goes to `kept`. */
static iso_lines_found read_bytes(const char *bytes, size_t length, iso_string *kept) {
  char *data;
  size_t left;
  iso_lines_found found = {0};
  scratch_write(path, bytes, length);
  assert_int_equal(iso_lines_read(run, "metrics", &data, &left, &found), ISO_OK);
  if (kept) iso_string_append(kept, data, left);
  free(data);
  iso_string_fini(&found.faults);
  return found;
}

static void every_flipped_bit_is_damage(void **state) {
  (void)state;
  char *bytes = malloc(whole.length);
  memcpy(bytes, whole.data, whole.length);
  for (size_t bit = 0; bit < 8 * whole.length; bit++) {
    iso_string kept = {0};
    bytes[bit / 8] ^= (char)(1 << bit % 8);
    const iso_lines_found found = read_bytes(bytes, whole.length, &kept);
    if (!found.damaged) fail_msg("bit %zu: unseen", bit);
    assert_true(kept.length < whole.length && found.unprotected == 0);
    bytes[bit / 8] ^= (char)(1 << bit % 8);
    iso_string_fini(&kept);
  }
  assert_int_equal(read_bytes(bytes, whole.length, NULL).damaged, 0);
  free(bytes);
}

static void a_cut_is_no_damage(void **state) {
  (void)state;
  for (size_t length = 0; length <= whole.length; length++) {
    iso_string kept = {0};
    const bool between = length == 0 || whole.data[length - 1] == '\n';
    const iso_lines_found found = read_bytes(whole.data, length, &kept);
    assert_int_equal(found.damaged, 0);
    assert_int_equal(found.torn, !between);
    assert_true(kept.length <= length);
    if (kept.length) assert_memory_equal(kept.data, whole.data, kept.length);
    iso_string_fini(&kept);
  }
}

static void a_hole_is_no_damage(void **state) {
  (void)state;
  char *bytes = malloc(whole.length);
  const size_t line = whole.length / LINES; /* all are of one length */
  for (size_t begin = 0; begin + 2 <= line; begin++) {
    iso_string kept = {0};
    memcpy(bytes, whole.data, whole.length);
    memset(bytes + line + begin, 0, 2);
    const iso_lines_found found = read_bytes(bytes, whole.length, &kept);
    assert_true(found.damaged == 0 && found.torn == 1);
    assert_int_equal(kept.length, (LINES - (begin + 2 == line ? 2 : 1)) * line); /* without an end: the next one too */
    iso_string_fini(&kept);
  }
  for (int end = 0; end < 2; end++) { /* of one byte, where a sector's border lies behind a brace or before a newline */
    iso_string kept = {0};
    memcpy(bytes, whole.data, whole.length);
    bytes[end ? 2 * line - 1 : line] = 0;
    const iso_lines_found found = read_bytes(bytes, whole.length, &kept);
    assert_true(found.damaged == 0 && found.torn == 1);
    assert_int_equal(kept.length, (LINES - (end ? 2 : 1)) * line);
    iso_string_fini(&kept);
  }
  free(bytes);
}

static void lines_of_before_count_until_one_is_sealed(void **state) {
  (void)state;
  iso_string text = {0};
  put_line(&text, 1, false);
  put_line(&text, 2, false);
  put_line(&text, 3, true);
  iso_lines_found found = read_bytes(text.data, text.length, NULL);
  assert_true(found.unprotected == 2 && found.damaged == 0);
  put_line(&text, 4, false);
  put_line(&text, 3, true); /* a step again */
  put_line(&text, 2, true);
  iso_string_printf(&text, "no line\n");
  put_line(&text, 5, true);
  found = read_bytes(text.data, text.length, NULL);
  assert_true(found.unprotected == 2 && found.damaged == 4);
  iso_string_fini(&text);
}

/* A resume behind step 3: what is damaged, torn, or beyond it goes to aside/, and lines go on behind what stays. */
static void a_resume_keeps_what_was_written(void **state) {
  (void)state;
  iso_string text = {0}, expected = {0}, moved = {0};
  iso_lines *lines;
  char *data;
  size_t bytes;
  put_line(&expected, 1, true);
  put_line(&moved, 2, true);
  moved.data[12] ^= 1;
  iso_string_append(&text, expected.data, expected.length);
  iso_string_append(&text, moved.data, moved.length);
  put_line(&text, 3, true);
  put_line(&expected, 3, true);
  put_line(&text, 4, true);
  put_line(&moved, 4, true);
  iso_string_printf(&text, "{\"step\": 5, \"lo");
  iso_string_printf(&moved, "{\"step\": 5, \"lo");
  scratch_write(path, text.data, text.length);
  assert_int_equal(iso_lines_open(run, "metrics", 3, &lines), ISO_OK);
  text.length = 0;
  put_line(&text, 4, true);
  put_line(&expected, 4, true);
  assert_int_equal(iso_lines_append(lines, text.data, text.length), ISO_OK);
  assert_int_equal(iso_lines_close(&lines), ISO_OK);
  assert_int_equal(iso_file_read(path, &data, &bytes), ISO_OK);
  assert_int_equal(bytes, expected.length);
  assert_memory_equal(data, expected.data, bytes);
  free(data);
  snprintf(path, sizeof path, "%s/aside/metrics-00001.jsonl", run);
  assert_int_equal(iso_file_read(path, &data, &bytes), ISO_OK);
  assert_int_equal(bytes, moved.length);
  assert_memory_equal(data, moved.data, bytes);
  free(data);
  iso_string_fini(&text);
  iso_string_fini(&expected);
  iso_string_fini(&moved);
}

static int failing_stat(const char *name, struct stat *info) {
  (void)name;
  (void)info;
  errno = EIO;
  return -1;
}

/* Taken for none, its lines would be cut off and written over in place. */
static void a_file_that_cannot_be_looked_at_stays(void **state) {
  (void)state;
  const iso_os_table real = iso_os;
  iso_lines *lines = NULL;
  char *data;
  size_t bytes;
  scratch_write(path, whole.data, whole.length);
  iso_os.stat = failing_stat;
  assert_int_equal(iso_lines_open(run, "metrics", 2, &lines), ISO_ERR_IO);
  iso_os = real;
  assert_null(lines);
  assert_int_equal(iso_file_read(path, &data, &bytes), ISO_OK);
  assert_int_equal(bytes, whole.length);
  assert_memory_equal(data, whole.data, bytes);
  free(data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_flipped_bit_is_damage),
      cmocka_unit_test(a_cut_is_no_damage),
      cmocka_unit_test(a_hole_is_no_damage),
      cmocka_unit_test(lines_of_before_count_until_one_is_sealed),
      cmocka_unit_test(a_resume_keeps_what_was_written),
      cmocka_unit_test(a_file_that_cannot_be_looked_at_stays),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
