/* SPDX-License-Identifier: Apache-2.0
 *
 * Damaged files under data.on_bad: skip: what comes before the damage is kept, one bad document stands for the rest,
 * and it is counted and listed the same in every start; without skip they are errors.
 */
#include "datapath/recording.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#define DATA ISO_TEST_DATA "/datapath/"

/* A path that stays, as those of fixture_path do not for long. */
static const char *lasting(const char *name) {
  static char paths[128][256];
  static int next;
  char *path = paths[next++ % 128];
  snprintf(path, sizeof paths[0], "%s", fixture_path(name));
  return path;
}

static iso_source_options options_of(const char *name, bool skip) {
  iso_source_options options = fixture_source(name);
  options.path = lasting(name);
  options.cache = lasting("cache");
  options.tokenizer = fixture_tokenizer;
  options.skip_damaged = skip;
  options.refuse_empty = !skip;
  return options;
}

/* Appends a gzip member or a Zstandard frame with a checksum. Returns the bytes of the file then. */
static size_t append_unit(const char *name, bool zstd, const char *bytes, size_t length) {
  struct stat info;
  if (zstd) {
    size_t room = ZSTD_compressBound(length);
    char *out = malloc(room);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    size_t written = ZSTD_compress2(context, out, room, bytes, length);
    assert_false(ZSTD_isError(written));
    FILE *file = fopen(fixture_path(name), "ab");
    assert_int_equal(fwrite(out, 1, written, file), written);
    assert_int_equal(fclose(file), 0);
    ZSTD_freeCCtx(context);
    free(out);
  } else {
    gzFile file = gzopen(fixture_path(name), "ab");
    assert_int_equal(gzwrite(file, bytes, (unsigned)length), length);
    assert_int_equal(gzclose(file), Z_OK);
  }
  assert_int_equal(stat(fixture_path(name), &info), 0);
  return (size_t)info.st_size;
}

static void cut(const char *name, size_t bytes) {
  assert_int_equal(truncate(fixture_path(name), (off_t)bytes), 0);
}

static void flip(const char *name, size_t at) {
  int fd = open(fixture_path(name), O_RDWR);
  char byte;
  assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
  byte ^= 0x55;
  assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
  close(fd);
}

static iso_status refuse(const iso_source_options *options) {
  iso_source *source;
  return iso_source_open(options, &source);
}

/* The text of document `index`; *bad as the source says. Release `scratch`. */
static const char *text_of(const iso_source *source, int64_t index, iso_string *scratch, size_t *bytes, iso_bad *bad) {
  static char stored[1 << 16];
  const iso_document place = iso_source_document(source, index);
  const char *text;
  assert_true((size_t)place.length < sizeof stored);
  assert_int_equal(iso_source_read(source, place.file, place.offset, place.length, stored), ISO_OK);
  assert_int_equal(iso_source_text(source, index, stored, (size_t)place.length, scratch, &text, bytes, bad), ISO_OK);
  return text;
}

/* Documents "document 0", … and then one that is bad, whose cause has `part`. Returns how many were good. */
static int64_t check_kept(const iso_source *source, const char *part, int64_t byte) {
  const int64_t last = iso_source_documents(source) - 1;
  iso_string scratch = {0};
  size_t bytes;
  iso_bad bad;
  int64_t first;
  for (int64_t i = 0; i < last; i++) {
    char expected[64];
    snprintf(expected, sizeof expected, "document %d", (int)i);
    const char *text = text_of(source, i, &scratch, &bytes, &bad);
    assert_false(bad.is || iso_source_is_damage(source, i));
    assert_int_equal(bytes, strlen(expected));
    if (memcmp(text, expected, bytes) != 0)
      fail_msg("%s: \"%.*s\" is not \"%s\" of %lld", iso_source_file(source, 0)->path, (int)bytes, text, expected,
               (long long)last);
  }
  text_of(source, last, &scratch, &bytes, &bad);
  assert_true(bad.is && iso_source_is_damage(source, last));
  if (!strstr(bad.cause, part)) fail_msg("the cause is \"%s\"; expected \"%s\"", bad.cause, part);
  if (byte != -2) assert_int_equal(bad.byte, byte);
  assert_int_equal(iso_source_damaged(source, &first), 1);
  assert_int_equal(first, 0);
  iso_string_fini(&scratch);
  return last;
}

static int64_t open_and_check(const iso_source_options *options, const char *part, int64_t byte) {
  iso_source *source;
  if (iso_source_open(options, &source) != ISO_OK) fail_msg("%s", iso_last_error());
  const int64_t kept = check_kept(source, part, byte);
  iso_source_close(&source);
  return kept;
}

/* ---- archives ---- */

static void make_texts(iso_string *text, iso_string *lines, int first, int end) {
  text->length = lines->length = 0;
  for (int i = first; i < end; i++) {
    iso_string_printf(text, "document %d\n\n", i);
    iso_string_printf(lines, "{\"text\": \"document %d\"}\n", i);
  }
}

static void test_a_truncated_archive_keeps_whole_documents(void **state) {
  (void)state;
  static const char *const names[] = {"cut.txt.gz", "cut.txt.zst", "cut.jsonl.gz", "cut.jsonl.zst"};
  iso_string text = {0}, lines = {0};
  make_texts(&text, &lines, 0, 40000);
  for (int i = 0; i < 4; i++) {
    const iso_string *plain = i < 2 ? &text : &lines;
    const size_t bytes = append_unit(names[i], i % 2, plain->data, plain->length);
    iso_source_options options = options_of(names[i], true), strict = options_of(names[i], false);
    cut(names[i], bytes / 2);
    assert_error(refuse(&strict), ISO_ERR_FORMAT, "is truncated: it ends at byte");
    const int64_t kept = open_and_check(&options, "the archive is truncated: it ends at byte", -2);
    assert_true(kept > 1000 && kept < 39000);
    assert_int_equal(open_and_check(&options, "the archive is truncated", -2), kept); /* from the cache */
    assert_error(refuse(&strict), ISO_ERR_FORMAT, "is truncated: it ends at byte");   /* also what is kept there */
    options.cache = lasting("another cache");
    assert_int_equal(open_and_check(&options, "the archive is truncated", -2), kept);
    cut(names[i], bytes); /* longer again, with zeros, which decompress to something: not to be trusted */
    open_and_check(&options, "the archive is ", -2);
    cut(names[i], 0);
    append_unit(names[i], i % 2, plain->data, plain->length);
    cut(names[i], bytes - 1); /* its text is whole, its end is not */
    assert_true(open_and_check(&options, "the archive is truncated", -2) >= kept);
    cut(names[i], 0);
    append_unit(names[i], i % 2, plain->data, plain->length);
    iso_source *source;
    if (iso_source_open(&options, &source) != ISO_OK) fail_msg("%s", iso_last_error());
    assert_int_equal(iso_source_documents(source), 40000); /* restored: nothing is left out */
    iso_source_close(&source);
  }
  iso_string_fini(&text);
  iso_string_fini(&lines);
}

/* What came out of a member that is corrupt is not to be trusted, also before the byte where that shows. */
static void test_a_corrupt_archive_keeps_the_units_before(void **state) {
  (void)state;
  static const char *const names[] = {"flip.txt.gz", "flip.txt.zst"};
  iso_string first = {0}, second = {0}, lines = {0};
  make_texts(&first, &lines, 0, 1000);
  first.length -= 4; /* the last document goes on in the next member: "document 999\n\n" */
  make_texts(&second, &lines, 1000, 30000);
  for (int i = 0; i < 2; i++) {
    const size_t one = append_unit(names[i], i, first.data, first.length);
    iso_string rest = {0};
    iso_string_append(&rest, "99\n\n", 4);
    iso_string_append(&rest, second.data, second.length);
    const size_t all = append_unit(names[i], i, rest.data, rest.length);
    iso_string_fini(&rest);
    flip(names[i], one + (all - one) / 2);
    iso_source_options options = options_of(names[i], true), strict = options_of(names[i], false);
    assert_error(refuse(&strict), ISO_ERR_FORMAT, "is corrupt at byte");
    char where[64];
    snprintf(where, sizeof where, "that begins at byte %zu", one);
    assert_int_equal(open_and_check(&options, where, (int64_t)first.length), 999); /* its half document is none */
    cut(names[i], one);
    FILE *file = fopen(fixture_path(names[i]), "ab");
    assert_true(file && fputs("something else", file) >= 0 && fclose(file) == 0);
    assert_int_equal(open_and_check(&options, "has other bytes after its last", (int64_t)first.length), 999);
  }
  fixture_write("not.txt.gz", "plain text", 10);
  fixture_write("none.gz", "", 0);
  iso_source_options options = options_of("not.txt.gz", true);
  assert_int_equal(open_and_check(&options, "is not what its name says", 0), 0);
  options = options_of("none.gz", true);
  assert_int_equal(open_and_check(&options, "it is empty", 0), 0);
  iso_string_fini(&first);
  iso_string_fini(&second);
  iso_string_fini(&lines);
}

/* ---- Parquet ---- */

static void copy_file(const char *from, const char *name, size_t *bytes) {
  char *data;
  assert_int_equal(iso_file_read(from, &data, bytes), ISO_OK);
  fixture_write(name, data, *bytes);
  free(data);
}

static void test_parquet_keeps_the_pages_before(void **state) {
  (void)state;
  size_t bytes;
  iso_source *whole, *source;
  int64_t first;
  iso_source_options plain = {
      .path = DATA "groups.parquet", .format = "auto", .weight = 1, .cache = fixture_path("cache")};
  assert_int_equal(iso_source_open(&plain, &whole), ISO_OK);
  const int64_t rows = iso_source_documents(whole);
  int64_t partly = 0;
  copy_file(plain.path, "rows.parquet", &bytes);
  for (size_t at = 40; at < bytes; at += 97) { /* every start of the file's pages and the footer is hit somewhere */
    flip("rows.parquet", at);
    const iso_source_options options = options_of("rows.parquet", true);
    const iso_status status = iso_source_open(&options, &source);
    if (status != ISO_OK) { /* another column, another encoding: that is no damage that we can tell */
      assert_true(status == ISO_ERR_UNSUPPORTED || status == ISO_ERR_CONFIG);
    } else if (iso_source_damaged(source, &first)) {
      const int64_t kept = iso_source_documents(source) - 1;
      iso_string a = {0}, b = {0};
      assert_true(kept < rows);
      partly += kept > 0;
      for (int64_t i = 0; i < kept; i++) assert_int_equal(iso_source_length(source, i) >= 1, 1);
      iso_bad bad;
      size_t n;
      text_of(source, kept, &a, &n, &bad);
      assert_true(bad.is && bad.byte == -1 && bad.cause[0] && !strstr(bad.cause, fixture_folder));
      iso_string_fini(&a);
      iso_string_fini(&b);
    }
    iso_source_close(&source);
    flip("rows.parquet", at);
  }
  assert_true(partly > 0);
  cut("rows.parquet", bytes / 2);
  const iso_source_options options = options_of("rows.parquet", true), strict = options_of("rows.parquet", false);
  assert_error(refuse(&strict), ISO_ERR_FORMAT, "does not begin and end with PAR1");
  assert_int_equal(open_and_check(&options, "does not begin and end with PAR1", -1), 0);
  iso_source_close(&whole);
}

/* ---- shards ---- */

typedef struct shards {
  int64_t documents[3]; /* of each */
  int64_t all;
} shards;

/* Three shards of ten documents or so, made by data build. */
static void build_shards(const char *folder, shards *out) {
  fixture_corpus("for-shards.txt", 's', 0, 60, 12);
  const iso_source_options options = options_of("for-shards.txt", false);
  iso_source *source;
  iso_shards_report report;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  const iso_shards_options how = {.source = source,
                                  .tokenizer = fixture_tokenizer,
                                  .folder = lasting(folder),
                                  .threads = 1,
                                  .shard_bytes = 700,
                                  .max_bad = 0};
  assert_int_equal(iso_shards_build(&how, &report), ISO_OK);
  assert_true(report.shards >= 3);
  iso_source_close(&source);
  const iso_source_options built = options_of(folder, false);
  assert_int_equal(iso_source_open(&built, &source), ISO_OK);
  *out = (shards){.all = iso_source_documents(source)};
  for (int64_t i = 0; i < out->all; i++) {
    const int64_t file = iso_source_document(source, i).file;
    if (file < 3) out->documents[file]++;
  }
  iso_source_close(&source);
}

/* Opens; shard 1 alone is left out, with this cause. */
static void check_second_left_out(const char *folder, const shards *s, const char *part) {
  const iso_source_options options = options_of(folder, true);
  iso_source *source;
  int64_t first, count;
  int32_t *ids = NULL;
  size_t capacity = 0;
  iso_bad bad;
  if (iso_source_open(&options, &source) != ISO_OK) fail_msg("%s", iso_last_error());
  assert_int_equal(iso_source_damaged(source, &first), 1);
  assert_int_equal(first, 1);
  assert_int_equal(iso_source_documents(source), s->all - s->documents[1] + 1);
  const int64_t at = s->documents[0];
  assert_true(iso_source_is_damage(source, at));
  assert_int_equal(iso_source_size(source, at), 1);
  char stored[1] = {1};
  const iso_document place = iso_source_document(source, at);
  assert_int_equal(iso_source_read(source, place.file, place.offset, 1, stored), ISO_OK);
  assert_int_equal(iso_source_tokens(source, at, stored, 1, &ids, &capacity, &count, &bad), ISO_OK);
  assert_true(bad.is && count == 0);
  if (!strstr(bad.cause, part)) fail_msg("the cause is \"%s\"; expected \"%s\"", bad.cause, part);
  assert_false(iso_source_is_damage(source, at + 1));
  assert_true(iso_source_size(source, at + 1) > 1);
  free(ids);
  iso_source_close(&source);
}

static void test_a_damaged_shard_is_left_out(void **state) {
  (void)state;
  shards s;
  build_shards("shards", &s);
  iso_source_options strict = options_of("shards", false);
  flip("shards/shard-00001.bin", 30);
  assert_error(refuse(&strict), ISO_ERR_MISMATCH, "is damaged: the CRC-32C of its ids");
  check_second_left_out("shards", &s, "the CRC-32C of its ids is");
  flip("shards/shard-00001.bin", 30);
  flip("shards/shard-00001.idx", 3);
  assert_error(refuse(&strict), ISO_ERR_FORMAT, "does not begin with MMIDIDX");
  check_second_left_out("shards", &s, "does not begin with MMIDIDX");
  flip("shards/shard-00001.idx", 3);
  flip("shards/shard-00001.idx", 35); /* the length of the first sequence */
  check_second_left_out("shards", &s, "shard-00001.idx");
  flip("shards/shard-00001.idx", 35);
  struct stat info;
  assert_int_equal(stat(fixture_path("shards/shard-00001.bin"), &info), 0);
  char *saved;
  size_t bytes;
  assert_int_equal(iso_file_read(fixture_path("shards/shard-00001.bin"), &saved, &bytes), ISO_OK);
  cut("shards/shard-00001.bin", bytes - 2);
  assert_error(refuse(&strict), ISO_ERR_MISMATCH, "bytes; \"");
  check_second_left_out("shards", &s, "bytes");
  fixture_write("shards/shard-00001.bin", saved, bytes);
  free(saved);
  iso_source *source;
  const iso_source_options options = options_of("shards", true);
  int64_t first;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  assert_int_equal(iso_source_damaged(source, &first), 0);
  iso_source_close(&source);
}

/* What is wrong with all shards is no damage of one. */
static void test_a_wrong_manifest_is_never_skipped(void **state) {
  (void)state;
  shards s;
  char *text;
  size_t bytes;
  build_shards("wrong", &s);
  const iso_source_options options = options_of("wrong", true);
  assert_int_equal(iso_file_read(fixture_path("wrong/shards.json"), &text, &bytes), ISO_OK);
  char *print = strstr(text, iso_tokenizer_fingerprint(fixture_tokenizer));
  print[0] = print[0] == 'a' ? 'b' : 'a';
  fixture_write("wrong/shards.json", text, bytes);
  assert_error(refuse(&options), ISO_ERR_MISMATCH, "were made by the tokenizer");
  fixture_write("wrong/shards.json", text, bytes / 2);
  assert_error(refuse(&options), ISO_ERR_FORMAT, "shards.json");
  free(text);
}

static void test_a_header_of_llmc(void **state) {
  (void)state;
  int32_t header[256] = {20240520, 1, 3};
  iso_string file = {0};
  const uint16_t ids[3] = {5, 6, (uint16_t)iso_tokenizer_eos(fixture_tokenizer)};
  iso_string_append(&file, (const char *)header, sizeof header);
  iso_string_append(&file, (const char *)ids, sizeof ids);
  fixture_make_folder("llmc");
  fixture_write("llmc/a.bin", file.data, file.length);
  fixture_write("llmc/b.bin", file.data, file.length - 1);
  iso_string_fini(&file);
  const iso_source_options options = options_of("llmc", true), strict = options_of("llmc", false);
  assert_error(refuse(&strict), ISO_ERR_FORMAT, "the header says 3 tokens");
  iso_source *source;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  assert_int_equal(iso_source_documents(source), 2);
  assert_false(iso_source_is_damage(source, 0));
  assert_true(iso_source_is_damage(source, 1));
  iso_source_close(&source);
}

/* ---- empty files ---- */

static void test_an_empty_file_counts(void **state) {
  (void)state;
  fixture_make_folder("some");
  fixture_write("some/a.txt", "", 0);
  fixture_write("some/b.txt", "document 1", 10);
  iso_source_options options = options_of("some", true), strict = options_of("some", false);
  assert_error(refuse(&strict), ISO_ERR_FORMAT, "a.txt\" (0 bytes) has no document");
  iso_source *source;
  iso_string scratch = {0};
  size_t bytes;
  iso_bad bad;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  assert_int_equal(iso_source_documents(source), 2);
  text_of(source, 0, &scratch, &bytes, &bad);
  assert_true(bad.is && bad.byte == 0 && strstr(bad.cause, "has no document"));
  text_of(source, 1, &scratch, &bytes, &bad);
  assert_false(bad.is);
  iso_source_close(&source);
  fixture_write("some/b.txt", "\n\n", 2); /* now none has a document */
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  assert_int_equal(iso_source_documents(source), 0);
  iso_source_close(&source);
  iso_string_fini(&scratch);
}

/* ---- runs ---- */

/* A folder of a good file, a truncated archive and an empty file; held-out documents or none. */
static void make_corpus(const char *folder) {
  iso_string text = {0};
  char name[64];
  fixture_make_folder(folder);
  snprintf(name, sizeof name, "%s/a.txt", folder);
  fixture_corpus(name, 'a', 0, 60, 20);
  for (int64_t i = 0; i < 400; i++) {
    fixture_document(&text, 'b', i, 20);
    iso_string_append(&text, "\n\n", 2);
  }
  snprintf(name, sizeof name, "%s/b.txt.gz", folder);
  cut(name, append_unit(name, false, text.data, text.length) / 2);
  snprintf(name, sizeof name, "%s/c.txt", folder);
  fixture_write(name, "", 0);
  iso_string_fini(&text);
}

typedef struct listed {
  int64_t step, document, byte;
  char file[256];
} listed;

/* Runs `steps` steps; what was left out goes to `list`. */
static int64_t run_and_list(const iso_corpus *corpus, const iso_data_options *o, int64_t from, int64_t steps,
                            const iso_data_cursor *cursors, listed list[8]) {
  iso_ring *ring = start(corpus, o, from, cursors);
  int64_t count = 0;
  for (int64_t s = 0; s < steps; s++) {
    iso_slot *slot;
    double wait_s;
    if (iso_ring_take(ring, &slot, &wait_s) != ISO_OK) fail_msg("%s", iso_ring_error(ring));
    for (int64_t i = 0; i < slot->skipped_count; i++) {
      const iso_skipped *x = &slot->skipped[i];
      assert_true(count < 8);
      list[count] = (listed){.step = slot->step, .document = x->document, .byte = x->byte};
      snprintf(list[count++].file, sizeof list[0].file, "%s", x->file);
    }
    iso_ring_release(ring, slot);
  }
  iso_ring_stop(&ring);
  return count;
}

static void test_a_run_leaves_out_the_same(void **state) {
  (void)state;
  make_corpus("corpus");
  iso_source_options source = options_of("corpus", false);
  iso_data_options options = fixture_options(&source, 1);
  iso_corpus *corpus;
  options.max_bad_documents = 2;
  assert_error(iso_corpus_open(&options, fixture_tokenizer, &corpus), ISO_ERR_FORMAT, "is truncated");
  options.skip_bad = true;
  corpus = open_corpus(&options);
  iso_corpus_info info;
  iso_corpus_info_get(corpus, &info);
  listed whole[8], other[8];
  assert_int_equal(run_and_list(corpus, &options, 0, 400, NULL, whole), 2);
  for (int c = 1; c < 4; c++) { /* other threads, slots, a prefetch, another cache: the same, at the same steps */
    options.threads = c;
    options.slots = 2 + c;
    options.prefetch = c - 1;
    source.cache = lasting(c == 3 ? "cache of another rank" : "cache");
    iso_corpus *own = open_corpus(&options);
    iso_corpus_info again;
    iso_corpus_info_get(own, &again);
    assert_string_equal(again.digest, info.digest);
    assert_int_equal(run_and_list(own, &options, 0, 400, NULL, other), 2);
    assert_memory_equal(other, whole, 2 * sizeof *whole);
    iso_corpus_close(&own);
  }
  for (int i = 0; i < 2; i++) {
    const bool archive = strstr(whole[i].file, "b.txt.gz") != NULL;
    assert_true(archive || strstr(whole[i].file, "c.txt"));
    assert_int_equal(archive ? whole[i].byte > 0 : whole[i].byte == 0, 1);
  }
  options.threads = 2;
  recording all = record(corpus, &options, 0, 40, NULL);
  for (int64_t at = 0; at < 36; at += 5) {
    recording part = record(corpus, &options, at + 1, 4, all.cursors + at * 3);
    assert_continues(&all, at + 1, &part);
    recording_free(&part);
  }
  recording_free(&all);
  iso_corpus_close(&corpus);
  options.max_bad_documents = 1;
  assert_error(iso_corpus_open(&options, fixture_tokenizer, &corpus), ISO_ERR_FORMAT,
               "2 files are damaged, each counts as one bad document, and data.max_bad_documents is 1");
  options.max_bad_documents = 2;
  options.validation_every = 3; /* held out or not, it leaves out the same */
  for (options.validation_offset = 0; options.validation_offset < 3; options.validation_offset++) {
    int64_t told = 0, valid;
    iso_validation *validation;
    fixture_arrays a = fixture_arrays_create(32);
    corpus = open_corpus(&options);
    assert_int_equal(iso_validation_open(corpus, 0, &told, &validation), ISO_OK);
    do assert_int_equal(iso_validation_next(validation, a.sequence, &valid), ISO_OK);
    while (valid);
    iso_validation_close(&validation);
    iso_corpus_close(&corpus);
    free(a.memory);
  }
}

static void test_a_source_of_which_nothing_is_left(void **state) {
  (void)state;
  fixture_make_folder("lost");
  fixture_write("lost/a.gz", "no gzip", 7);
  fixture_write("lost/b.gz", "no gzip", 7);
  iso_source_options source = options_of("lost", false);
  iso_data_options options = fixture_options(&source, 1);
  iso_corpus *corpus;
  options.skip_bad = true;
  assert_error(iso_corpus_open(&options, fixture_tokenizer, &corpus), ISO_ERR_FORMAT, "nothing of the 2 files of");
}

/* A file that changes is an error under every policy: old and new are never mixed. */
static void test_a_file_that_changes_is_never_skipped(void **state) {
  (void)state;
  fixture_corpus("changing.txt", 'c', 0, 200, 20);
  iso_source_options source = options_of("changing.txt", false);
  iso_data_options options = fixture_options(&source, 1);
  options.skip_bad = true;
  iso_corpus *corpus = open_corpus(&options);
  flip("changing.txt", 3);
  iso_ring *ring = start(corpus, &options, 0, NULL);
  iso_status status;
  assert_int_equal(run_until_error(ring, 100, &status, NULL), 0);
  assert_int_equal(status, ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_ring_error(ring), "changed while in use"));
  iso_ring_stop(&ring);
  iso_corpus_close(&corpus);
}

/* ---- data build ---- */

static void test_build_lists_the_same(void **state) {
  (void)state;
  make_corpus("raw");
  const iso_source_options options = options_of("raw", true);
  iso_source *source;
  iso_shards_report report;
  char *record;
  size_t bytes;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  iso_shards_options how = {.source = source,
                            .tokenizer = fixture_tokenizer,
                            .folder = lasting("built"),
                            .threads = 2,
                            .skip_bad = true,
                            .max_bad = 2};
  assert_int_equal(iso_shards_build(&how, &report), ISO_OK);
  const int64_t all = iso_source_documents(source);
  assert_int_equal(report.documents, all - 2);
  assert_int_equal(report.bad, 2);
  assert_int_equal(iso_file_read(fixture_path("built/shard-00000.json"), &record, &bytes), ISO_OK);
  char list[64];
  snprintf(list, sizeof list, "\"bad\": [%lld, %lld]", (long long)all - 2, (long long)all - 1);
  assert_non_null(strstr(record, list));
  free(record);
  how.folder = lasting("built less");
  how.max_bad = 1;
  assert_error(iso_shards_build(&how, &report), ISO_ERR_FORMAT, "more than 1 bad documents");
  iso_source_close(&source);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_truncated_archive_keeps_whole_documents),
      cmocka_unit_test(test_a_corrupt_archive_keeps_the_units_before),
      cmocka_unit_test(test_parquet_keeps_the_pages_before),
      cmocka_unit_test(test_a_damaged_shard_is_left_out),
      cmocka_unit_test(test_a_wrong_manifest_is_never_skipped),
      cmocka_unit_test(test_a_header_of_llmc),
      cmocka_unit_test(test_an_empty_file_counts),
      cmocka_unit_test(test_a_run_leaves_out_the_same),
      cmocka_unit_test(test_a_source_of_which_nothing_is_left),
      cmocka_unit_test(test_a_file_that_changes_is_never_skipped),
      cmocka_unit_test(test_build_lists_the_same),
  };
  return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
