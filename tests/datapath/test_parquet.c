/* SPDX-License-Identifier: Apache-2.0
 *
 * Parquet columns: what pyarrow wrote (tools/make-parquet-tests.py), compared with the same rows in JSON lines; what is
 * refused; and files damaged at every byte.
 *
 * With ISO_PARQUET_FOLDER=DIR also every pair NAME.parquet, NAME.jsonl of that folder.
 */
#include "datapath/fixture.h"

#include <dirent.h>

#include "data/parquet/parquet.h"

#define DATA ISO_TEST_DATA "/datapath/"

/* ---- pairs ---- */

typedef struct side {
  iso_source *source;
  char *stored;
  iso_string scratch;
  const char *text;
  size_t bytes;
  iso_bad bad;
} side;

static void side_open(side *s, const char *path, const char *field) {
  iso_source_options options = {
      .path = path, .format = "auto", .weight = 1, .field = field, .cache = fixture_path("cache")};
  *s = (side){0};
  if (iso_source_open(&options, &s->source) != ISO_OK) fail_msg("%s", iso_last_error());
}

static void side_read(side *s, int64_t index) {
  iso_document place = iso_source_document(s->source, index);
  free(s->stored);
  s->stored = malloc((size_t)place.length);
  assert_int_equal(iso_source_read(s->source, place.file, place.offset, place.length, s->stored), ISO_OK);
  assert_int_equal(
      iso_source_text(s->source, index, s->stored, (size_t)place.length, &s->scratch, &s->text, &s->bytes, &s->bad),
      ISO_OK);
}

static void side_close(side *s) {
  iso_source_close(&s->source);
  iso_string_fini(&s->scratch);
  free(s->stored);
}

static void check_pair(const char *folder, const char *name, const char *field) {
  char path[512];
  side ours, lines;
  snprintf(path, sizeof path, "%s%s.parquet", folder, name);
  side_open(&ours, path, field);
  snprintf(path, sizeof path, "%s%s.jsonl", folder, name);
  side_open(&lines, path, field);
  if (iso_source_documents(ours.source) != iso_source_documents(lines.source))
    fail_msg("%s: %lld documents, expected %lld", name, (long long)iso_source_documents(ours.source),
             (long long)iso_source_documents(lines.source));
  for (int64_t i = 0; i < iso_source_documents(lines.source); i++) {
    side_read(&ours, i);
    side_read(&lines, i);
    assert_int_equal(ours.bad.is, lines.bad.is);
    if (ours.bad.is) {
      assert_non_null(strstr(ours.bad.cause, "is null"));
      continue;
    }
    if (ours.bytes != lines.bytes || memcmp(ours.text, lines.text, ours.bytes) != 0)
      fail_msg("%s: document %lld is \"%.*s\", expected \"%.*s\"", name, (long long)i, (int)ours.bytes, ours.text,
               (int)lines.bytes, lines.text);
  }
  side_close(&ours);
  side_close(&lines);
}

static void test_files_of_pyarrow(void **state) {
  (void)state;
  static const char *const names[] = {"plain",  "snappy",   "gzip-v2", "zstd-v2", "required",
                                      "groups", "fallback", "nulls",   "none"};
  for (size_t i = 0; i < ISO_COUNT(names); i++) check_pair(DATA, names[i], "text");
  check_pair(DATA, "nested", "a.b");
  check_pair(DATA, "plain", "text"); /* from the cache */
}

static void test_more_files(void **state) {
  (void)state;
  const char *folder = getenv("ISO_PARQUET_FOLDER");
  DIR *dir = folder ? opendir(folder) : NULL;
  int pairs = 0;
  for (struct dirent *entry; dir && (entry = readdir(dir));) {
    char *dot = strstr(entry->d_name, ".parquet");
    char path[512];
    if (!dot) continue;
    *dot = '\0';
    snprintf(path, sizeof path, "%s/", folder);
    check_pair(path, entry->d_name, "text");
    pairs++;
  }
  if (dir) closedir(dir);
  if (folder) print_message("%d pairs\n", pairs);
  assert_true(!folder || pairs > 0);
}

static void test_null_rows_say_which(void **state) {
  (void)state;
  side s;
  side_open(&s, DATA "nulls.parquet", "text");
  assert_int_equal(iso_source_documents(s.source), 20);
  side_read(&s, 13);
  assert_true(s.bad.is);
  assert_string_equal(s.bad.cause, "row 13 of column \"text\" is null");
  side_close(&s);
}

/* ---- refusals ---- */

static void refused(const char *path, const char *field, iso_status status, const char *part) {
  iso_source_options options = {
      .path = path, .format = "auto", .weight = 1, .field = field, .cache = fixture_path("cache")};
  iso_source *source;
  assert_error(iso_source_open(&options, &source), status, part);
}

static void test_what_is_not_read_is_named(void **state) {
  (void)state;
  refused(DATA "plain.parquet", "body", ISO_ERR_CONFIG,
          "no column \"body\"; its columns of strings: \"text\", \"other\"");
  refused(DATA "plain.parquet", "id", ISO_ERR_UNSUPPORTED, "\"id\" holds INT64");
  refused(DATA "nested.parquet", "a", ISO_ERR_CONFIG, "group of columns");
  refused(DATA "nested.parquet", "a.c.list.element", ISO_ERR_UNSUPPORTED, "repeated");
  refused(DATA "refused-lz4.parquet", "text", ISO_ERR_UNSUPPORTED, "LZ4");
  refused(DATA "refused-brotli.parquet", "text", ISO_ERR_UNSUPPORTED, "Brotli");
  refused(DATA "refused-delta.parquet", "text", ISO_ERR_UNSUPPORTED, "DELTA_BYTE_ARRAY");
  fixture_write("short.parquet", "PAR1PAR1", 8);
  refused(fixture_path("short.parquet"), "text", ISO_ERR_FORMAT, "too few");
  fixture_write("long.parquet", "PAR1xxxx\x40\0\0\0PAR1", 16);
  refused(fixture_path("long.parquet"), "text", ISO_ERR_FORMAT, "longer than the file");
  fixture_write("secret.parquet", "PARExxxx\0\0\0\0PARE", 16);
  refused(fixture_path("secret.parquet"), "text", ISO_ERR_UNSUPPORTED, "encrypted");
  fixture_write("cut.parquet", "PAR1xxxx\0\0\0\0PARx", 16);
  refused(fixture_path("cut.parquet"), "text", ISO_ERR_FORMAT, "is cut");
}

/* ---- damage ---- */

typedef struct memory {
  const char *bytes;
  int64_t length;
} memory;

static iso_status read_memory(void *context, int64_t offset, int64_t length, void *buffer) {
  const memory *m = context;
  assert_true(offset >= 0 && length >= 0 && offset <= m->length && length <= m->length - offset);
  memcpy(buffer, m->bytes + offset, (size_t)length);
  return ISO_OK;
}

typedef struct digest {
  int64_t values;
  uint32_t crc;
} digest;

static iso_status add_value(void *context, const char *bytes, size_t length) {
  digest *d = context;
  if (++d->values > 100000) return ISO_ERR_SPACE;
  d->crc = iso_crc32c(d->crc, bytes ? bytes : "null", bytes ? length : 4);
  return ISO_OK;
}

static iso_status digest_of(const char *bytes, size_t length, digest *out) {
  memory m = {bytes, (int64_t)length};
  const iso_parquet_input input = {"memory", (int64_t)length, read_memory, &m, NULL, NULL};
  *out = (digest){0};
  return iso_parquet_read(&input, "text", add_value, out);
}

/* Every byte flipped, in three ways, and every length: an error or the same values, or others where nothing checks. */
static void test_damage(void **state) {
  (void)state;
  static const char *const names[] = {"snappy", "zstd-v2", "fallback"};
  for (size_t f = 0; f < ISO_COUNT(names); f++) {
    char path[512], *bytes;
    size_t length;
    digest good, other;
    int64_t silent = 0, caught = 0;
    snprintf(path, sizeof path, "%s%s.parquet", DATA, names[f]);
    assert_int_equal(iso_file_read(path, &bytes, &length), ISO_OK);
    assert_int_equal(digest_of(bytes, length, &good), ISO_OK);
    assert_int_equal(good.values, 150);
    for (size_t i = 0; i < length; i++)
      for (int way = 0; way < 3; way++) {
        char was = bytes[i];
        bytes[i] = (char)(way == 0 ? was ^ 1 : way == 1 ? ~was : was ^ 0x80);
        iso_status status = digest_of(bytes, length, &other);
        caught += status != ISO_OK;
        silent += status == ISO_OK && (other.values != good.values || other.crc != good.crc);
        bytes[i] = was;
      }
    for (size_t cut = 0; cut < length; cut += 3) assert_int_not_equal(digest_of(bytes, cut, &other), ISO_OK);
    assert_true(caught > (int64_t)length / 2);
    if (f < 2) assert_int_equal(silent, 0); /* these have checksums */
    free(bytes);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_files_of_pyarrow),
      cmocka_unit_test(test_more_files),
      cmocka_unit_test(test_null_rows_say_which),
      cmocka_unit_test(test_what_is_not_read_is_named),
      cmocka_unit_test(test_damage),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
