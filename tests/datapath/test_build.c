/* SPDX-License-Identifier: Apache-2.0
 *
 * Token shards: their bytes, that threads and interruptions change nothing, and what is refused.
 */
#include "datapath/fixture.h"
#include "datapath/built.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/wait.h>

static iso_source *open_source(const char *name) {
  const iso_source_options options = fixture_source(name);
  iso_source *source;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  return source;
}

static iso_status build(iso_source *source, const char *folder, int threads, bool skip, iso_shards_report *report) {
  const iso_shards_options options = {.source = source,
                                      .tokenizer = fixture_tokenizer,
                                      .folder = fixture_path(folder),
                                      .threads = threads,
                                      .shard_bytes = 4000,
                                      .skip_bad = skip,
                                      .max_bad = 3};
  return iso_shards_build(&options, report);
}

static uint64_t u64_at(const char *bytes) {
  uint64_t value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

/* The ids in the shards are those of the documents, in order, each with EOS; the index says where they are. */
static void check_content(iso_source *source, const char *folder, int64_t shards) {
  iso_encoder *encoder = iso_encoder_create(fixture_tokenizer);
  iso_loaded loaded = {0};
  int64_t document = 0;
  for (int64_t s = 0; s < shards; s++) {
    char name[32], *bin, *idx;
    size_t bin_bytes, idx_bytes;
    snprintf(name, sizeof name, "shard-%05lld.bin", (long long)s);
    read_file(folder, name, &bin, &bin_bytes);
    snprintf(name, sizeof name, "shard-%05lld.idx", (long long)s);
    read_file(folder, name, &idx, &idx_bytes);
    assert_memory_equal(idx, "MMIDIDX\0\0", 9);
    assert_int_equal(u64_at(idx + 9), 1);
    assert_int_equal(idx[17], 8); /* uint16 */
    const int64_t count = (int64_t)u64_at(idx + 18);
    assert_int_equal(u64_at(idx + 26), count + 1);
    assert_int_equal(idx_bytes, 34 + 12 * count + 8 * (count + 1));
    size_t offset = 0;
    for (int64_t i = 0; i < count; i++, document++) {
      char text[4096];
      int32_t length;
      const iso_document d = iso_source_document(source, document);
      assert_true(d.length < (int64_t)sizeof text);
      assert_int_equal(iso_source_read(source, d.file, d.offset, d.length, text), ISO_OK);
      const int32_t eos = (int32_t)iso_tokenizer_eos(fixture_tokenizer);
      assert_int_equal(iso_document_load(&loaded, source, document, text, encoder, eos, false, false), ISO_OK);
      memcpy(&length, idx + 34 + 4 * i, sizeof length);
      assert_int_equal(length, loaded.count);
      assert_int_equal(u64_at(idx + 34 + 4 * count + 8 * i), offset);
      assert_int_equal(u64_at(idx + 34 + 12 * count + 8 * i), i);
      for (int64_t t = 0; t < loaded.count; t++, offset += 2) {
        uint16_t id;
        memcpy(&id, bin + offset, sizeof id);
        assert_int_equal(id, loaded.ids[t]);
      }
    }
    assert_int_equal(offset, bin_bytes);
    free(bin);
    free(idx);
  }
  assert_int_equal(document, iso_source_documents(source));
  iso_loaded_fini(&loaded);
  iso_encoder_destroy(&encoder);
}

static void test_shards_hold_the_documents(void **state) {
  (void)state;
  fixture_corpus("books.txt", 'a', 0, 300, 40);
  iso_source *source = open_source("books.txt");
  iso_shards_report one, three;
  assert_int_equal(build(source, "one", 1, false, &one), ISO_OK);
  assert_int_equal(build(source, "three", 3, false, &three), ISO_OK);
  assert_true(one.shards > 3);
  assert_int_equal(one.made, one.shards);
  assert_int_equal(one.documents, 300);
  assert_int_equal(one.bytes, one.total_bytes);
  assert_int_equal(three.tokens, one.tokens);
  assert_int_equal(assert_same("one", "three"), 3 * (size_t)one.shards + 3); /* and the plan, the lock, the manifest */
  check_content(source, "one", one.shards);
  iso_source_close(&source);
}

static void test_a_killed_build_goes_on(void **state) {
  (void)state;
  iso_source *source = open_source("books.txt");
  iso_shards_report report;
  /* As a kill leaves it: a shard without a record, one half renamed, temporary files, no manifest. */
  assert_int_equal(build(source, "killed", 1, false, &report), ISO_OK);
  const char *gone[] = {"killed/shards.json", "killed/shard-00001.json", "killed/shard-00003.json",
                        "killed/shard-00003.idx"};
  for (size_t i = 0; i < ISO_COUNT(gone); i++) assert_int_equal(unlink(fixture_path(gone[i])), 0);
  fixture_write("killed/shard-00001.bin", "half", 4);
  fixture_write("killed/shard-00002.bin.0123.tmp", "half", 4);
  assert_int_equal(build(source, "killed", 2, false, &report), ISO_OK);
  assert_int_equal(report.made, 2);
  assert_int_equal(report.reused, report.shards - 2);
  assert_int_equal(report.documents, 300);
  assert_same("killed", "one");
  iso_source_close(&source);
}

static void test_kills_change_nothing(void **state) {
  (void)state;
  iso_source *source = open_source("books.txt");
  int kills = 0;
  for (int after = 0;; after = (after + 1) % 23 + (after > 40 ? 1000 : 0)) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
      iso_shards_report report;
      real_pwrite = iso_os.pwrite;
      kill_after = after + kills;
      iso_os.pwrite = deadly_pwrite;
      _exit(build(source, "mortal", 1, false, &report) == ISO_OK ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WEXITSTATUS(status) == 0) break;
    assert_int_equal(WEXITSTATUS(status), 9);
    kills++;
  }
  assert_true(kills >= 3);
  assert_same("mortal", "one");
  iso_source_close(&source);
}

static void test_another_build_is_refused(void **state) {
  (void)state;
  fixture_corpus("other.txt", 'b', 0, 20, 40);
  iso_source *source = open_source("other.txt");
  iso_shards_report report;
  assert_error(build(source, "one", 1, false, &report), ISO_ERR_MISMATCH,
               "not the same: the files of the source, documents 300 there and 20 here)");
  iso_source_close(&source);
  source = open_source("books.txt");
  assert_error(build(source, "one", 1, true, &report), ISO_ERR_MISMATCH,
               "not the same: on_bad \"error\" there and \"skip\" here)");
  assert_int_equal(unlink(fixture_path("one/shard-00001.idx")), 0);
  assert_error(build(source, "one", 1, false, &report), ISO_ERR_MISMATCH, "the .idx of shard 1 is gone");
  fixture_write("one/shard-00000.bin", "short", 5);
  assert_error(build(source, "one", 1, false, &report), ISO_ERR_MISMATCH, "shard 0 has 5 and");
  iso_source_close(&source);
}

static void test_foreign_folder(void **state) {
  (void)state;
  assert_int_equal(iso_path_make(fixture_path("mine")), ISO_OK);
  fixture_corpus("mine/text.txt", 'b', 0, 20, 40);
  iso_source *source = open_source("mine");
  iso_shards_report report;
  assert_error(build(source, "mine", 1, false, &report), ISO_ERR_CONFIG, "lies in the source");
  assert_error(build(source, "mine/shards", 1, false, &report), ISO_ERR_CONFIG, "lies in the source");
  assert_false(iso_path_exists(fixture_path("mine/shards")));
  assert_int_equal(iso_path_make(fixture_path("yours")), ISO_OK);
  fixture_write("yours/text.txt", "x", 1);
  assert_error(build(source, "yours", 1, false, &report), ISO_ERR_CONFIG, "is not empty (text.txt)");
  /* shards of somebody else stay */
  static const char *const foreign[] = {"shard-00000.bin", "shard-00007.idx", "shards-plan.tmp.txt",
                                        "shards.json",     "build.txt",       "build.json.of.mine"};
  char name[64], said[64];
  assert_int_equal(unlink(fixture_path("yours/text.txt")), 0);
  for (size_t i = 0; i < ISO_COUNT(foreign); i++) {
    snprintf(name, sizeof name, "yours/%s", foreign[i]);
    snprintf(said, sizeof said, "is not empty (%s)", foreign[i]);
    fixture_write(name, "x", 1);
    assert_error(build(source, "yours", 1, false, &report), ISO_ERR_CONFIG, said);
    assert_true(iso_path_exists(fixture_path(name)));
    assert_int_equal(unlink(fixture_path(name)), 0);
  }
  /* what a start left that did not come to its plan is in nobody's way, and goes */
  fixture_write("yours/build.json.0123456789abcdef0123456789abcdef.tmp", "x", 1);
  assert_int_equal(build(source, "yours", 1, false, &report), ISO_OK);
  assert_false(iso_path_exists(fixture_path("yours/build.json.0123456789abcdef0123456789abcdef.tmp")));
  /* what a failed build published without a record goes */
  fixture_write("yours/shard-00009.bin", "x", 1);
  fixture_write("yours/shard-00009.idx", "x", 1);
  assert_int_equal(build(source, "yours", 1, false, &report), ISO_OK);
  assert_false(iso_path_exists(fixture_path("yours/shard-00009.bin")));
  assert_false(iso_path_exists(fixture_path("yours/shard-00009.idx")));
  assert_int_equal(unlink(fixture_path("mine/text.txt")), 0);
  iso_source_close(&source);
}

static void test_bad_documents(void **state) {
  (void)state;
  static const char text[] = "good\n\nb\xff"
                             "d\n\nfine\n\n\xc3(\n\nlast";
  fixture_write("bad.txt", text, sizeof text - 1);
  iso_source *source = open_source("bad.txt");
  iso_shards_report report;
  static const char all[] = "\xff\n\n\xff";
  fixture_write("all.txt", all, sizeof all - 1);
  iso_source *hopeless = open_source("all.txt");
  assert_error(build(hopeless, "hopeless", 1, true, &report), ISO_ERR_FORMAT, "each of the 2 documents");
  iso_source_close(&hopeless);
  assert_error(build(source, "strict", 1, false, &report), ISO_ERR_FORMAT, "document 1 (byte 7 of the file)");
  assert_int_equal(build(source, "lenient", 2, true, &report), ISO_OK);
  assert_int_equal(report.documents, 3);
  assert_int_equal(report.bad, 2);
  char *record;
  size_t bytes;
  read_file("lenient", "shard-00000.json", &record, &bytes);
  assert_non_null(strstr(record, "\"bad_documents\": 2, \"bad\": [1, 3]"));
  free(record);
  iso_source_close(&source);
  iso_string many = {0};
  for (int i = 0; i < 5; i++) iso_string_printf(&many, "%s\xff%d", i ? "\n\n" : "", i);
  fixture_write("many.txt", many.data, many.length);
  iso_string_fini(&many);
  source = open_source("many.txt");
  assert_error(build(source, "limited", 1, true, &report), ISO_ERR_FORMAT, "more than 3 bad documents");
  iso_source_close(&source);
}

/* Every write, sync and rename that can fail does so once; the build then says so, and the next one completes it. */
static int fail_at;
static atomic_int calls; /* the publisher is a thread of its own */
static iso_os_table real_os;
static bool fails_now(void) {
  if (calls++ != fail_at) return false;
  errno = ENOSPC;
  return true;
}
static ssize_t failing_pwrite(int fd, const void *data, size_t bytes, int64_t offset) {
  return fails_now() ? -1 : real_os.pwrite(fd, data, bytes, offset);
}
static int failing_fdatasync(int fd) {
  return fails_now() ? -1 : real_os.fdatasync(fd);
}
static int failing_rename(const char *from, const char *to) {
  return fails_now() ? -1 : real_os.rename_noreplace(from, to);
}

static void test_failing_disk(void **state) {
  (void)state;
  iso_source *source = open_source("other.txt");
  iso_shards_report report;
  assert_int_equal(build(source, "whole", 1, false, &report), ISO_OK);
  real_os = iso_os;
  int failures = 0;
  for (fail_at = 0;; fail_at++) {
    calls = 0;
    iso_os.pwrite = failing_pwrite;
    iso_os.fdatasync = failing_fdatasync;
    iso_os.rename_noreplace = failing_rename;
    const iso_status status = build(source, "failing", 1, false, &report);
    iso_os = real_os;
    if (status != ISO_OK) failures++;
    if (calls <= fail_at) {
      assert_int_equal(status, ISO_OK);
      break;
    }
    assert_int_not_equal(status, ISO_OK);
    assert_int_equal(build(source, "failing", 1, false, &report), ISO_OK);
    assert_same("failing", "whole");
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", fixture_path("failing"));
    assert_int_equal(system(command), 0);
  }
  assert_true(failures > 6);
  iso_source_close(&source);
}

/* Long documents, of which a part is written before they end, between short ones; bad ones behind each other in
 * chunks that several threads have at once. */
static void write_long(const char *name, const int64_t *bad, size_t bad_count) {
  iso_string text = {0};
  for (int64_t i = 0; i < 24; i++) {
    for (size_t k = 0; k < bad_count; k++)
      if (bad[k] == i) iso_string_append(&text, "\xff", 1);
    fixture_document(&text, 'l', i, 40);
    /* few letters make tokens: about one id a byte */
    for (int64_t k = 0; i % 5 == 2 && k < 1500000 + 1000 * i; k++) {
      const char c = (char)('!' + (k * k + 7 * k / 3 + i) % 15);
      iso_string_append(&text, &c, 1);
    }
    for (int64_t k = 0; i % 5 != 2 && k < 40000; k++) iso_string_append(&text, k % 7 ? "day " : "made ", k % 7 ? 4 : 5);
    iso_string_append(&text, "\n\n", 2);
  }
  fixture_write(name, text.data, text.length);
  iso_string_fini(&text);
}

static void test_long_documents(void **state) {
  (void)state;
  write_long("long.txt", NULL, 0);
  iso_source *source = open_source("long.txt");
  iso_shards_report report;
  iso_shards_options options = {
      .source = source, .tokenizer = fixture_tokenizer, .folder = fixture_path("long-1"), .threads = 1};
  assert_int_equal(iso_shards_build(&options, &report), ISO_OK);
  assert_int_equal(report.documents, 24);
  assert_true(report.tokens > 5000000);
  options.folder = fixture_path("long-4");
  options.threads = 4;
  assert_int_equal(iso_shards_build(&options, &report), ISO_OK);
  assert_same("long-1", "long-4");
  /* the ids of one of them, and those of the one behind it */
  char *bin;
  size_t bytes;
  read_file("long-4", "shard-00000.bin", &bin, &bytes);
  iso_encoder *encoder = iso_encoder_create(fixture_tokenizer);
  iso_loaded loaded = {0};
  size_t at = 0;
  for (int64_t i = 0; i < 24; i++) {
    const iso_document d = iso_source_document(source, i);
    char *text = malloc((size_t)d.length);
    assert_non_null(text);
    assert_int_equal(iso_source_read(source, d.file, d.offset, d.length, text), ISO_OK);
    assert_int_equal(iso_document_load(&loaded, source, i, text, encoder, (int32_t)iso_tokenizer_eos(fixture_tokenizer),
                                       false, false),
                     ISO_OK);
    for (int64_t t = 0; t < loaded.count; t++, at++)
      assert_int_equal(((const uint16_t *)(void *)bin)[at], loaded.ids[t]);
    free(text);
  }
  assert_int_equal(2 * at, bytes);
  iso_loaded_fini(&loaded);
  iso_encoder_destroy(&encoder);
  free(bin);
  iso_source_close(&source);
}

/* Standard error goes to a file while it runs. */
static int lines_of_errors(const iso_shards_options *options, iso_status expected, const char *part) {
  const int kept = dup(STDERR_FILENO);
  assert_non_null(freopen(fixture_path("errors"), "w", stderr));
  iso_log_quiet(false);
  iso_shards_report report;
  const iso_status status = iso_shards_build(options, &report);
  iso_log_quiet(true);
  fflush(stderr);
  assert_true(dup2(kept, STDERR_FILENO) >= 0);
  close(kept);
  assert_error(status, expected, part);
  char *text;
  size_t bytes;
  read_file(".", "errors", &text, &bytes);
  int lines = 0;
  for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
  free(text);
  return lines;
}

static void test_an_error_is_said_once(void **state) {
  (void)state;
  write_long("ill.txt", (const int64_t[]){5, 7, 8, 9, 10, 11, 13}, 7);
  iso_source *source = open_source("ill.txt");
  iso_shards_options options = {.source = source, .tokenizer = fixture_tokenizer, .threads = 4};
  for (int i = 0; i < 8; i++) { /* the first one, whoever comes first */
    options.folder = fixture_path("ill");
    assert_int_equal(lines_of_errors(&options, ISO_ERR_FORMAT, "document 5 (byte"), 1);
  }
  options.skip_bad = true;
  options.max_bad = 3;
  assert_int_equal(lines_of_errors(&options, ISO_ERR_FORMAT, "more than 3 bad documents"), 5); /* and four warnings */
  fixture_write("ill.txt", "gone", 4);
  options.folder = fixture_path("ill-gone");
  assert_int_equal(lines_of_errors(&options, ISO_ERR_MISMATCH, "changed while in use"), 1);
  iso_source_close(&source);

  /* Also of one that is read in parts, by whoever reads them. */
  iso_source_options whole = fixture_source("ill.txt");
  iso_string text = {0};
  for (int64_t i = 0; i < 300000; i++) iso_string_printf(&text, "word%lld ", (long long)i);
  fixture_write("ill.txt", text.data, text.length);
  iso_string_fini(&text);
  whole.separator = "";
  assert_int_equal(iso_source_open(&whole, &source), ISO_OK);
  options.source = source;
  fixture_write("ill.txt", "gone", 4);
  options.folder = fixture_path("ill-gone-too");
  for (options.threads = 1; options.threads <= 4; options.threads++)
    assert_int_equal(lines_of_errors(&options, ISO_ERR_MISMATCH, "changed while in use"), 1);
  iso_source_close(&source);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_shards_hold_the_documents),
      cmocka_unit_test(test_a_killed_build_goes_on),
      cmocka_unit_test(test_kills_change_nothing),
      cmocka_unit_test(test_another_build_is_refused),
      cmocka_unit_test(test_foreign_folder),
      cmocka_unit_test(test_bad_documents),
      cmocka_unit_test(test_failing_disk),
      cmocka_unit_test(test_long_documents),
      cmocka_unit_test(test_an_error_is_said_once),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
