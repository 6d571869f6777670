/* SPDX-License-Identifier: Apache-2.0
 *
 * Token shards of long documents, which several threads encode together: their bytes are those of encoding each whole,
 * for any number of threads, with bad documents among them and after kills.
 */
#include "datapath/fixture.h"
#include "datapath/built.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { MEGABYTE = 1000000 };

static iso_source *open_source(const char *name, const char *format, const char *separator) {
  iso_source_options options = fixture_source(name);
  options.format = format;
  options.separator = separator;
  iso_source *source;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  return source;
}

static iso_status build(iso_source *source, const char *folder, int threads, bool skip, iso_shards_report *report) {
  const iso_shards_options options = {.source = source,
                                      .tokenizer = fixture_tokenizer,
                                      .folder = fixture_path(folder),
                                      .threads = threads,
                                      .shard_bytes = 2 * MEGABYTE,
                                      .skip_bad = skip,
                                      .max_bad = 3};
  return iso_shards_build(&options, report);
}

static void remove_built(const char *folder) {
  char command[300];
  snprintf(command, sizeof command, "rm -rf '%s'", fixture_path(folder));
  assert_int_equal(system(command), 0);
}

/* The shards' ids, one after the other, are those of the good documents, each encoded whole. */
static void check_ids(iso_source *source, const char *folder, const iso_shards_report *report) {
  iso_encoder *encoder = iso_encoder_create(fixture_tokenizer);
  iso_loaded loaded = {0};
  const int32_t eos = (int32_t)iso_tokenizer_eos(fixture_tokenizer);
  iso_string ids = {0};
  for (int64_t i = 0; i < iso_source_documents(source); i++) {
    const iso_document d = iso_source_document(source, i);
    char *stored = malloc((size_t)d.length);
    assert_non_null(stored);
    assert_int_equal(iso_source_read(source, d.file, d.offset, d.length, stored), ISO_OK);
    assert_int_equal(iso_document_load(&loaded, source, i, stored, encoder, eos, true, false), ISO_OK);
    for (int64_t t = 0; t < loaded.count; t++) {
      const uint16_t id = (uint16_t)loaded.ids[t];
      iso_string_append(&ids, (const char *)&id, sizeof id);
    }
    free(stored);
  }
  size_t at = 0;
  for (int64_t s = 0; s < report->shards; s++) {
    char name[32], *bin;
    size_t bytes;
    snprintf(name, sizeof name, "shard-%05lld.bin", (long long)s);
    read_file(folder, name, &bin, &bytes);
    assert_true(at + bytes <= ids.length);
    assert_memory_equal(bin, ids.data + at, bytes);
    at += bytes;
    free(bin);
  }
  assert_int_equal(at, ids.length);
  assert_int_equal(at, 2 * report->tokens);
  iso_string_fini(&ids);
  iso_loaded_fini(&loaded);
  iso_encoder_destroy(&encoder);
}

/* Words without a line's end, other than `fixture_document` all different. */
static void append_words(iso_string *out, size_t bytes) {
  static uint64_t counter;
  for (const size_t end = out->length + bytes; out->length < end;) {
    uint32_t bits[4];
    iso_rng(9, ISO_RNG_TEST, 0, counter++, bits);
    iso_string_printf(out, bits[1] % 7 ? "word%u " : "\xe5\xad\x97%u, ", bits[0] % 100000);
  }
}

/* Builds by 1, 2 and 4 threads. */
static void check_threads(iso_source *source, bool skip, int64_t bad) {
  iso_shards_report report, other;
  assert_int_equal(build(source, "one", 1, skip, &report), ISO_OK);
  assert_int_equal(report.bad, bad);
  assert_int_equal(report.bytes, report.total_bytes);
  check_ids(source, "one", &report);
  for (int threads = 2; threads <= 4; threads += 2) {
    assert_int_equal(build(source, "more", threads, skip, &other), ISO_OK);
    assert_int_equal(other.tokens, report.tokens);
    assert_same("one", "more");
    remove_built("more");
  }
  remove_built("one");
}

static void test_one_long_document(void **state) {
  (void)state;
  iso_string text = {0};
  append_words(&text, 3 * MEGABYTE);
  fixture_write("long.txt", text.data, text.length);
  iso_source *source = open_source("long.txt", "auto", "");
  assert_int_equal(iso_source_documents(source), 1);
  check_threads(source, false, 0);
  iso_source_close(&source);
  iso_string_fini(&text);
}

static void test_long_and_short_documents(void **state) {
  (void)state;
  static const size_t sizes[] = {300, 1500000, 1500000, 20, 5000, 2500000, 1048576, 1048577, 400, 1200000};
  iso_string text = {0};
  for (size_t i = 0; i < ISO_COUNT(sizes); i++) {
    append_words(&text, sizes[i]);
    for (int k = 0; k < 30; k++) iso_string_printf(&text, "\n\nshort %d", k);
    iso_string_append(&text, "\n\n", 2);
  }
  fixture_write("mixed.txt", text.data, text.length);
  iso_source *source = open_source("mixed.txt", "auto", "\n\n");
  check_threads(source, false, 0);
  iso_source_close(&source);
  iso_string_fini(&text);
}

/* Text that has to be unescaped is held whole, and encoded together all the same. */
static void test_long_lines_of_json(void **state) {
  (void)state;
  iso_string text = {0};
  for (int i = 0; i < 3; i++) {
    iso_string_printf(&text, "{\"text\": \"one\\n\\\"%d\\\" ", i);
    append_words(&text, 1200000);
    iso_string_printf(&text, "\"}\n{\"text\": \"short %d\"}\n", i);
  }
  fixture_write("long.jsonl", text.data, text.length);
  iso_source *source = open_source("long.jsonl", "jsonl", "");
  assert_int_equal(iso_source_documents(source), 6);
  check_threads(source, false, 0);
  iso_source_close(&source);
  iso_string_fini(&text);
}

/* Ids of a long document are in the file before its last byte is read; when that is bad none of them stays. */
static void test_bad_long_documents(void **state) {
  (void)state;
  iso_string text = {0};
  iso_string_append(&text, "first\n\n", 7);
  append_words(&text, 2500000);
  const size_t late = text.length;
  iso_string_append(&text, "\xff tail\n\nsecond\n\n\xe5\xad", 18);
  append_words(&text, 1500000);
  iso_string_append(&text, "\n\nthird\n\n", 9);
  append_words(&text, 1500000);
  iso_string_append(&text, "\n\nlast", 6);
  fixture_write("bad.txt", text.data, text.length);
  iso_source *source = open_source("bad.txt", "auto", "\n\n");
  iso_shards_report report;
  check_threads(source, true, 2);
  for (int threads = 1; threads <= 3; threads++) {
    char where[80];
    snprintf(where, sizeof where, "document 1 (byte %zu of the file): not valid UTF-8", late);
    const iso_status status = build(source, "strict", threads, false, &report);
    assert_int_equal(status, ISO_ERR_FORMAT);
    if (threads == 1) assert_non_null(strstr(iso_last_error(), where));
    remove_built("strict");
  }
  iso_source_close(&source);
  iso_string_fini(&text);
}

static void test_kills_change_nothing(void **state) {
  (void)state;
  iso_source *source = open_source("mixed.txt", "auto", "\n\n");
  iso_shards_report report;
  assert_int_equal(build(source, "one", 1, false, &report), ISO_OK);
  int kills = 0;
  for (int after = 2;; after += 3) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      kill_after = after;
      real_pwrite = iso_os.pwrite;
      iso_os.pwrite = deadly_pwrite;
      _exit(build(source, "killed", 1 + after % 3, false, &report) == ISO_OK ? 0 : 1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    if (WEXITSTATUS(how) == 0) break;
    assert_int_equal(WEXITSTATUS(how), 9);
    kills++;
  }
  assert_true(kills > 2);
  assert_same("killed", "one");
  remove_built("killed");
  remove_built("one");
  iso_source_close(&source);
}

/* Many small tokens: more than a shard holds before it is synced for the first time. */
static void write_tokens(const char *name) {
  enum { LETTERS = 5 * MEGABYTE };
  char *letters = malloc(LETTERS);
  assert_non_null(letters);
  for (int64_t k = 0; k < LETTERS; k++) letters[k] = (char)('!' + (k * k + 7 * k / 3) % 15);
  fixture_write(name, letters, LETTERS);
  free(letters);
}

/* From so many written bytes on, writing waits until somebody has synced. */
enum { EARLY = 1, LATE };
static atomic_int syncs, sync_fails;
static atomic_llong put;
static ssize_t waiting_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  for (int i = 0; put > 9 * MEGABYTE && syncs == 0 && i < 10000; i++) usleep(1000);
  put += (long long)bytes;
  return real_pwrite(fd, data, bytes, offset);
}
static int counted_fdatasync(int fd) {
  (void)fd;
  if (put < MEGABYTE || syncs++ != 0 || sync_fails == 0) return 0;                 /* before: of the plan */
  for (int i = 0; sync_fails == LATE && syncs == 1 && i < 1000; i++) usleep(1000); /* until the shard would be synced */
  errno = EIO;
  return -1;
}

/* While it is written a shard is synced. When that fails, the shard is not published, since no later sync tells. */
static void test_syncs_of_a_shard_that_grows(void **state) {
  (void)state;
  const iso_os_table real_os = iso_os;
  write_tokens("tokens.txt");
  iso_source *source = open_source("tokens.txt", "auto", "");
  iso_shards_report report;
  for (int fails = 0; fails <= LATE; fails++) {
    syncs = 0;
    put = 0;
    sync_fails = fails;
    real_pwrite = iso_os.pwrite;
    iso_os.pwrite = waiting_pwrite;
    iso_os.fdatasync = counted_fdatasync;
    const iso_status status = build(source, fails ? "failing" : "synced", 2, false, &report);
    iso_os = real_os;
    assert_int_equal(status, fails ? ISO_ERR_IO : ISO_OK);
    assert_int_equal(report.made, !fails);
    if (fails == EARLY) remove_built("failing");
  }
  assert_int_equal(build(source, "failing", 2, false, &report), ISO_OK);
  assert_int_equal(report.made, 1);
  assert_same("failing", "synced");
  iso_source_close(&source);
}

/* A file that changes while a long document is read is an error, from whichever thread reads. */
static void test_a_file_that_changes(void **state) {
  (void)state;
  iso_source *source = open_source("long.txt", "auto", "");
  fixture_write("long.txt", "another text", 12);
  iso_shards_report report;
  for (int threads = 1; threads <= 3; threads++)
    assert_int_equal(build(source, "changed", threads, true, &report), ISO_ERR_MISMATCH);
  iso_source_close(&source);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_long_document),           cmocka_unit_test(test_long_and_short_documents),
      cmocka_unit_test(test_long_lines_of_json),          cmocka_unit_test(test_bad_long_documents),
      cmocka_unit_test(test_kills_change_nothing),        cmocka_unit_test(test_a_file_that_changes),
      cmocka_unit_test(test_syncs_of_a_shard_that_grows),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
