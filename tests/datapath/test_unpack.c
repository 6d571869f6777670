/* SPDX-License-Identifier: Apache-2.0
 *
 * Compressed sources: unpacked once, read like plain ones, and refused whole when they are damaged.
 */
#include "datapath/fixture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

static void write_gzip(const char *name, const void *bytes, size_t length) {
  gzFile file = gzopen(fixture_path(name), "wb");
  assert_non_null(file);
  assert_int_equal(gzwrite(file, bytes, (unsigned)length), length);
  assert_int_equal(gzclose(file), Z_OK);
}

static void write_zstd(const char *name, const void *bytes, size_t length) {
  size_t room = ZSTD_compressBound(length);
  char *out = malloc(room);
  size_t written = ZSTD_compress(out, room, bytes, length, 3);
  assert_false(ZSTD_isError(written));
  fixture_write(name, out, written);
  free(out);
}

static int64_t open_and_count(const iso_source_options *options, uint32_t *crc) {
  iso_source *source;
  assert_int_equal(iso_source_open(options, &source), ISO_OK);
  int64_t count = iso_source_documents(source);
  *crc = iso_source_file(source, 0)->crc32c;
  assert_string_equal(iso_source_file(source, 0)->path, options->path);
  for (int64_t i = 0; i < count; i++) {
    iso_document d = iso_source_document(source, i);
    char text[64] = "", expected[64];
    assert_true(d.length < 60);
    assert_int_equal(iso_source_read(source, d.file, d.offset, d.length, text), ISO_OK);
    snprintf(expected, sizeof expected, "document %d", (int)i);
    assert_string_equal(text, expected);
  }
  iso_source_close(&source);
  return count;
}

static void test_archives_are_read_like_plain_files(void **state) {
  (void)state;
  iso_string text = {0}, lines = {0};
  for (int i = 0; i < 500; i++) {
    iso_string_printf(&text, "document %d\n\n", i);
    iso_string_printf(&lines, "{\"text\": \"document %d\"}\n", i);
  }
  write_gzip("plain.txt.gz", text.data, text.length);
  write_zstd("plain.zst", text.data, text.length);
  write_gzip("rows.jsonl.gz", lines.data, lines.length);
  write_zstd("rows.jsonl.zst", lines.data, lines.length);
  write_gzip("unnamed", text.data, text.length);
  static const struct {
    const char *name, *format;
    bool lines;
  } cases[] = {{"plain.txt.gz", "auto", false},  {"plain.zst", "auto", false},     {"rows.jsonl.gz", "auto", true},
               {"rows.jsonl.zst", "auto", true}, {"rows.jsonl.gz", "jsonl", true}, {"unnamed", "text", false}};
  for (size_t i = 0; i < ISO_COUNT(cases); i++)
    for (int again = 0; again < 2; again++) { /* the second time from the cache */
      const iso_string *content = cases[i].lines ? &lines : &text;
      iso_source_options options = {.path = fixture_path(cases[i].name),
                                    .format = cases[i].format,
                                    .weight = 1,
                                    .separator = "\n\n",
                                    .cache = fixture_path("cache")};
      uint32_t crc;
      assert_int_equal(open_and_count(&options, &crc), 500);
      assert_int_equal(crc, iso_crc32c(0, content->data, content->length));
    }
  iso_string_fini(&text);
  iso_string_fini(&lines);
}

static int64_t reads;
static ssize_t (*real_pread)(int fd, void *data, size_t bytes, int64_t offset);

static ssize_t counting_pread(int fd, void *data, size_t bytes, int64_t offset) {
  ssize_t got = real_pread(fd, data, bytes, offset);
  if (got > 0) reads += got;
  return got;
}

/* Bytes read while the source is opened; its documents and checksum. */
static int64_t open_cost(const char *path, const char *field, int64_t *documents, uint32_t *crc) {
  iso_source_options options = {
      .path = path, .format = "auto", .weight = 1, .field = field, .cache = fixture_path("kept")};
  iso_source *source;
  real_pread = iso_os.pread;
  iso_os.pread = counting_pread;
  reads = 0;
  iso_status status = iso_source_open(&options, &source);
  iso_os.pread = real_pread;
  assert_int_equal(status, ISO_OK);
  *documents = iso_source_documents(source);
  *crc = iso_source_file(source, 0)->crc32c;
  iso_source_close(&source);
  return reads;
}

/* A second start reads what was unpacked once, to check it, and not again to index it; other rules index it anew. */
static void test_an_index_is_kept(void **state) {
  (void)state;
  iso_string lines = {0};
  for (int i = 0; i < 3000; i++)
    iso_string_printf(&lines, "{\"text\": \"a document of some length, number %d\", \"other\": %d}\n", i, i);
  write_gzip("kept.jsonl.gz", lines.data, lines.length);
  int64_t documents[4];
  uint32_t crc[4];
  open_cost(fixture_path("kept.jsonl.gz"), "text", &documents[0], &crc[0]);
  int64_t second = open_cost(fixture_path("kept.jsonl.gz"), "text", &documents[1], &crc[1]);
  int64_t other = open_cost(fixture_path("kept.jsonl.gz"), "other", &documents[2], &crc[2]);
  assert_int_equal(documents[1], 3000);
  assert_int_equal(documents[2], 3000); /* all bad */
  assert_int_equal(crc[0], crc[1]);
  assert_int_equal(crc[0], iso_crc32c(0, lines.data, lines.length));
  assert_in_range(second, (int64_t)lines.length, (int64_t)lines.length + 3000 * 40);
  assert_true(other >= 2 * (int64_t)lines.length);
  write_gzip("kept.jsonl.gz", lines.data, lines.length / 2); /* another version: everything anew */
  open_cost(fixture_path("kept.jsonl.gz"), "text", &documents[3], &crc[3]);
  assert_true(documents[3] < 3000 && crc[3] != crc[0]);
  iso_string_fini(&lines);
}

static void test_damaged_archives_are_refused(void **state) {
  (void)state;
  char text[4000];
  for (size_t i = 0; i < sizeof text; i++) text[i] = (char)('a' + i * i % 23);
  write_gzip("cut.gz", text, sizeof text);
  write_zstd("cut.zst", text, sizeof text);
  static const char *const names[] = {"cut.gz", "cut.zst"};
  for (size_t i = 0; i < ISO_COUNT(names); i++) {
    iso_source_options options = {
        .path = fixture_path(names[i]), .format = "auto", .weight = 1, .cache = fixture_path("cache")};
    struct stat info;
    iso_source *source;
    assert_int_equal(stat(options.path, &info), 0);
    assert_int_equal(truncate(options.path, info.st_size - 5), 0);
    assert_error(iso_source_open(&options, &source), ISO_ERR_FORMAT, names[i]);
  }
  fixture_write("not.gz", "plain text", 10);
  iso_source_options options = {
      .path = fixture_path("not.gz"), .format = "auto", .weight = 1, .cache = fixture_path("cache")};
  iso_source *source;
  assert_error(iso_source_open(&options, &source), ISO_ERR_FORMAT, "not.gz");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_archives_are_read_like_plain_files),
      cmocka_unit_test(test_an_index_is_kept),
      cmocka_unit_test(test_damaged_archives_are_refused),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
