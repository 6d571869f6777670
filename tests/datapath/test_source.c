/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the documents of text files are, and what happens when files change.
 */
#include "datapath/fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

static void test_bad_paths_are_errors(void **state) {
  (void)state;
  iso_source_options options = {.path = fixture_path("none"), .format = "auto", .weight = 1};
  iso_source *source;
  assert_error(iso_source_open(&options, &source), ISO_ERR_NOT_FOUND, "does not exist");
  options.path = "";
  assert_error(iso_source_open(&options, &source), ISO_ERR_CONFIG, "no path");
  options.path = "/dev/null";
  assert_error(iso_source_open(&options, &source), ISO_ERR_CONFIG, "neither");
  options.format = "megatron";
  assert_error(iso_source_open(&options, &source), ISO_ERR_CONFIG, "neither");
}

static void check_documents(const char *name, const char *separator, const char *const *expected, int64_t count) {
  iso_source_options options = {.path = fixture_path(name), .format = "auto", .weight = 1, .separator = separator};
  iso_source *source;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  assert_int_equal(iso_source_documents(source), count);
  for (int64_t i = 0; i < count; i++) {
    iso_document d = iso_source_document(source, i);
    char buffer[64];
    const char *borrowed;
    assert_int_equal(d.length, strlen(expected[i]));
    assert_int_equal(iso_source_read(source, d.file, d.offset, d.length, buffer), ISO_OK);
    assert_memory_equal(buffer, expected[i], d.length);
    assert_int_equal(iso_source_borrow(source, d.file, d.offset, d.length, &borrowed), ISO_OK);
    assert_memory_equal(borrowed, expected[i], d.length);
  }
  iso_source_close(&source);
  assert_null(source);
}

static void test_documents_lie_between_separators(void **state) {
  (void)state;
  fixture_make_folder("split");
  fixture_write("split/1", "one--two----three", 17);
  fixture_write("split/2", "", 0);
  fixture_write("split/3", "--four-", 7);
  fixture_write("split/4", "----", 4);
  fixture_write("split/5", "aaa---b", 7);
  check_documents("split", "--", (const char *[]){"one", "two", "three", "four-", "aaa", "-b"}, 6);
  check_documents("split", "", (const char *[]){"one--two----three", "--four-", "----", "aaa---b"}, 4);
}

/* Separators across the borders of the indexer's chunks are found. */
static void test_separators_across_chunks(void **state) {
  (void)state;
  size_t length = (size_t)9 << 20;
  char *text = malloc(length);
  memset(text, 'x', length);
  static const size_t at[] = {4194304 - 1, 4194304 + 2, 8388608 - 2, 8388608 + 1};
  for (size_t i = 0; i < ISO_COUNT(at); i++) memcpy(text + at[i], "<|>", 3);
  fixture_write("large", text, length);
  iso_source_options options = {.path = fixture_path("large"), .format = "text", .weight = 1, .separator = "<|>"};
  iso_source *source;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  assert_int_equal(iso_source_documents(source), 3);
  static const int64_t offsets[] = {0, 4194304 + 5, 8388608 + 4};
  static const int64_t lengths[] = {4194304 - 1, 8388608 - 2 - 4194304 - 5, ((int64_t)1 << 20) - 4};
  for (int64_t i = 0; i < 3; i++) {
    iso_document d = iso_source_document(source, i);
    assert_int_equal(d.offset, offsets[i]);
    assert_int_equal(d.length, lengths[i]);
  }
  const char *bytes;
  assert_int_equal(iso_source_borrow(source, 0, offsets[2] - 3, 4, &bytes), ISO_OK);
  assert_memory_equal(bytes, "<|>x", 4);
  iso_source_close(&source);
  free(text);
}

static void test_other_formats_are_refused_by_name(void **state) {
  (void)state;
  fixture_write("rows.xz", "{}", 2);
  iso_source_options options = {.path = fixture_path("rows.xz"), .format = "auto", .weight = 1};
  iso_source *source;
  assert_error(iso_source_open(&options, &source), ISO_ERR_UNSUPPORTED, "looks like xz");
  options.format = "csv";
  assert_error(iso_source_open(&options, &source), ISO_ERR_UNSUPPORTED, "\"csv\"");
  options.format = "text";
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  iso_source_close(&source);
  fixture_make_folder("mixed");
  fixture_write("mixed/a.txt", "text", 4);
  fixture_write("mixed/b.jsonl", "{}", 2);
  options = (iso_source_options){.path = fixture_path("mixed"), .format = "auto", .weight = 1};
  assert_error(iso_source_open(&options, &source), ISO_ERR_CONFIG, "several formats");
}

static void test_a_changed_file_is_named(void **state) {
  (void)state;
  char buffer[8];
  const char *bytes;
  fixture_write("changing", "0123456789", 10);
  iso_source_options options = {.path = fixture_path("changing"), .format = "auto", .weight = 1, .separator = ""};
  iso_source *source;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  assert_int_equal(iso_source_read(source, 0, 2, 3, buffer), ISO_OK);
  assert_memory_equal(buffer, "234", 3);
  fixture_write("changing", "0123", 4);
  assert_error(iso_source_read(source, 0, 2, 3, buffer), ISO_ERR_MISMATCH, "changing' changed while in use");
  assert_error(iso_source_borrow(source, 0, 2, 3, &bytes), ISO_ERR_MISMATCH, "had 10 bytes and has 4");
  assert_null(bytes);
  fixture_write("changing", "0123456789", 10);
  struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
  assert_int_equal(utimensat(AT_FDCWD, fixture_path("changing"), times, 0), 0);
  assert_error(iso_source_read(source, 0, 2, 3, buffer), ISO_ERR_MISMATCH, "written to");
  assert_int_equal(unlink(fixture_path("changing")), 0);
  assert_error(iso_source_read(source, 0, 2, 3, buffer), ISO_ERR_MISMATCH, "gone");
  iso_source_close(&source);
}

/* The file shrinks between the look and the read: still a mismatch, no fault, no other text. */
static ssize_t short_pread(int fd, void *data, size_t bytes, int64_t offset) {
  (void)fd, (void)data, (void)bytes, (void)offset;
  return 0;
}

static int failing_open(const char *path, int flags, int mode) {
  (void)path, (void)flags, (void)mode;
  errno = EACCES;
  return -1;
}

static void test_failing_calls_are_errors(void **state) {
  (void)state;
  char buffer[8];
  fixture_write("file", "0123456789", 10);
  iso_source_options options = {.path = fixture_path("file"), .format = "auto", .weight = 1, .separator = "5"};
  iso_source *source;
  iso_os_table real = iso_os;
  iso_os.open = failing_open;
  assert_error(iso_source_open(&options, &source), ISO_ERR_IO, "cannot open");
  iso_os = real;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  iso_os.pread = short_pread;
  iso_status status = iso_source_read(source, 0, 2, 3, buffer);
  iso_os = real;
  assert_error(status, ISO_ERR_MISMATCH, "ends early");
  iso_source_close(&source);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bad_paths_are_errors),     cmocka_unit_test(test_documents_lie_between_separators),
      cmocka_unit_test(test_separators_across_chunks), cmocka_unit_test(test_other_formats_are_refused_by_name),
      cmocka_unit_test(test_a_changed_file_is_named),  cmocka_unit_test(test_failing_calls_are_errors),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
