/* SPDX-License-Identifier: Apache-2.0
 *
 * Token files: llm.c's and bare ones, Megatron pairs of every type, what is wrong with them, and shards.json.
 */
#include "datapath/fixture.h"

#include <sys/stat.h>

static int32_t eos;

static iso_source_options options_of(const char *name, const char *format, const char *token_type) {
  return (iso_source_options){.path = fixture_path(name),
                              .format = format,
                              .weight = 1,
                              .token_type = token_type,
                              .tokenizer = fixture_tokenizer};
}

/* Bytes in the order of the file. */
static void put(iso_string *out, int64_t value, int width) {
  for (int i = 0; i < width; i++) {
    char byte = (char)((uint64_t)value >> (8 * i));
    iso_string_append(out, &byte, 1);
  }
}

static void write_string(const char *name, iso_string *bytes) {
  fixture_write(name, bytes->data ? bytes->data : "", bytes->length);
  iso_string_fini(bytes);
}

/* Document `index` as ids; *bad as iso_source_tokens says. The ids are the caller's. */
static int32_t *load(const iso_source *source, int64_t index, int64_t *count, iso_bad *bad) {
  iso_document place = iso_source_document(source, index);
  char *stored = malloc((size_t)place.length);
  int32_t *ids = NULL;
  size_t capacity = 0;
  assert_int_equal(iso_source_read(source, place.file, place.offset, place.length, stored), ISO_OK);
  assert_int_equal(iso_source_tokens(source, index, stored, (size_t)place.length, &ids, &capacity, count, bad), ISO_OK);
  free(stored);
  return ids;
}

/* Documents as strings of ids: "5 6 E", E for EOS; "bad" for bad ones. */
static void check(const iso_source_options *options, const char *const *documents, int64_t n) {
  iso_source *source;
  assert_int_equal(iso_source_open(options, &source), ISO_OK);
  assert_int_equal(iso_source_content(source), ISO_CONTENT_TOKENS);
  assert_int_equal(iso_source_documents(source), n);
  for (int64_t i = 0; i < n; i++) {
    int64_t count;
    iso_bad bad;
    int32_t *ids = load(source, i, &count, &bad);
    iso_string text = {0};
    for (int64_t t = 0; t < count; t++) iso_string_printf(&text, ids[t] == eos ? "%sE" : "%s%d", t ? " " : "", ids[t]);
    assert_string_equal(bad.is ? "bad" : text.data, documents[i]);
    if (!bad.is) {
      iso_document place = iso_source_document(source, i);
      int64_t tokens = place.length / iso_token_bytes(iso_source_file(source, place.file)->token_type);
      assert_int_equal(iso_source_size(source, i), 4 * tokens);
    }
    iso_string_fini(&text);
    free(ids);
  }
  iso_source_close(&source);
}

static void refused(const iso_source_options *options, iso_status status, const char *part) {
  iso_source *source;
  assert_error(iso_source_open(options, &source), status, part);
}

/* ---- llm.c and bare ids ---- */

static void write_llmc(const char *name, int32_t magic, int32_t version, int width, const int64_t *ids, int64_t count,
                       int64_t said) {
  iso_string out = {0};
  put(&out, magic, 4);
  put(&out, version, 4);
  put(&out, said, 4);
  for (int i = 3; i < 256; i++) put(&out, 0, 4);
  for (int64_t i = 0; i < count; i++) put(&out, ids[i], width);
  write_string(name, &out);
}

static void test_headers_of_llmc(void **state) {
  (void)state;
  const int64_t before[] = {eos, 1, 2, eos, 3, eos, eos, 4, 5}, behind[] = {1, 2, eos, 3, eos, 4, 5, eos};
  static const char *const documents[] = {"1 2 E", "3 E", "4 5 E"};
  write_llmc("gpt2.bin", 20240520, 1, 2, before, 9, 9);
  write_llmc("llama3.bin", 20240801, 7, 4, behind, 8, 8);
  iso_source_options gpt2 = options_of("gpt2.bin", "auto", NULL), llama3 = options_of("llama3.bin", "tokens", "auto");
  check(&gpt2, documents, 3);
  check(&llama3, documents, 3);
  gpt2.tokenizer = NULL;
  refused(&gpt2, ISO_ERR_CONFIG, "a tokenizer");
  write_llmc("bad.bin", 20240520, 2, 2, before, 9, 9);
  iso_source_options bad = options_of("bad.bin", "auto", NULL);
  refused(&bad, ISO_ERR_UNSUPPORTED, "version 2");
  write_llmc("bad.bin", 20240520, 1, 2, before, 9, 8);
  refused(&bad, ISO_ERR_FORMAT, "says 8 tokens of uint16, which makes 1040 bytes; the file has 1042");
  write_llmc("bad.bin", 20240520, 1, 2, before, 9, -1);
  refused(&bad, ISO_ERR_FORMAT, "says -1 tokens");
  write_llmc("bad.bin", 20240522, 1, 2, before, 9, 9);
  refused(&bad, ISO_ERR_UNSUPPORTED, "evaluation file");
  bad.token_type = "uint32";
  write_llmc("bad.bin", 20240520, 1, 2, before, 9, 9);
  refused(&bad, ISO_ERR_MISMATCH, "holds uint16");
  fixture_write("bad.bin", "\x88\xd8\x34\x01xxxx", 8);
  refused(&bad, ISO_ERR_FORMAT, "ends inside its header");
}

static void test_bare_ids(void **state) {
  (void)state;
  const int64_t ids[] = {7, 8, eos, 70000, eos, 9};
  iso_string narrow = {0}, wide = {0};
  for (int i = 0; i < 3; i++) put(&narrow, ids[i], 2);
  for (int i = 0; i < 6; i++) put(&wide, ids[i], 4);
  write_string("narrow.bin", &narrow);
  write_string("wide.bin", &wide);
  iso_source_options options = options_of("narrow.bin", "auto", "uint16");
  check(&options, (const char *const[]){"7 8 E"}, 1);
  options = options_of("wide.bin", "tokens", "uint32");
  check(&options, (const char *const[]){"7 8 E", "bad", "9 E"}, 3);
  iso_source *source;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  int64_t count;
  iso_bad bad;
  free(load(source, 1, &count, &bad));
  assert_int_equal(bad.byte, 12);
  assert_non_null(strstr(bad.cause, "its token 0 is 70000; the tokenizer has ids 0 to"));
  iso_source_close(&source);
  options.token_type = "auto";
  refused(&options, ISO_ERR_CONFIG, "set token_type");
  fixture_write("odd.bin", "abc", 3);
  options = options_of("odd.bin", "tokens", "uint16");
  refused(&options, ISO_ERR_FORMAT, "no whole number");
  fixture_write("none.bin", "", 0);
  options = options_of("none.bin", "tokens", "uint16");
  check(&options, NULL, 0);
}

/* Documents across the borders of the indexer's chunks. */
static void test_many_ids(void **state) {
  (void)state;
  enum { COUNT = 5000000 };
  char *bytes = malloc((size_t)COUNT * 2);
  int64_t documents = 0;
  for (int64_t i = 0; i < COUNT; i++) {
    int64_t id = i % 1000 == 999 ? eos : i % 250;
    bytes[2 * i] = (char)id;
    bytes[2 * i + 1] = (char)(id >> 8);
    documents += id == eos;
  }
  fixture_write("many.bin", bytes, (size_t)COUNT * 2);
  iso_source_options options = options_of("many.bin", "tokens", "uint16");
  iso_source *source;
  assert_int_equal(iso_source_open(&options, &source), ISO_OK);
  assert_int_equal(iso_source_documents(source), documents);
  for (int64_t i = 0; i < documents; i++) {
    assert_int_equal(iso_source_document(source, i).offset, i * 2000);
    assert_int_equal(iso_source_document(source, i).length, 2000);
  }
  assert_int_equal(iso_source_file(source, 0)->crc32c, iso_crc32c(0, bytes, (size_t)COUNT * 2));
  iso_source_close(&source);
  free(bytes);
}

/* ---- Megatron ---- */

typedef struct pair {
  int code;
  int64_t version, lengths[5], offsets[5], documents[6];
  int64_t sequences, entries;
  bool modes;
} pair;

static const int widths[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};

/* 3 documents: ids 1 2 | 3, EOS | none | 4 5; sequences of 2, 2 and 2 ids. */
static pair good_pair(int code) {
  int64_t w = 2 * widths[code];
  return (pair){code, 1, {2, 2, 2}, {0, w, 2 * w}, {0, 1, 2, 2, 3}, 3, 5, false};
}

static void write_pair(const char *name, const pair *p) {
  const int64_t ids[] = {1, 2, 3, widths[p->code] == 1 ? 9 : eos, 4, 5};
  iso_string bin = {0}, idx = {0};
  char file[64];
  for (int i = 0; i < 6; i++) {
    if (p->code == 6) {
      double real = (double)ids[i];
      iso_string_append(&bin, &real, 8);
    } else if (p->code == 7) {
      float real = (float)ids[i];
      iso_string_append(&bin, &real, 4);
    } else {
      put(&bin, ids[i], widths[p->code]);
    }
  }
  iso_string_append(&idx, "MMIDIDX\0\0", 9);
  put(&idx, p->version, 8);
  put(&idx, p->code, 1);
  put(&idx, p->sequences, 8);
  put(&idx, p->entries, 8);
  for (int i = 0; i < 3; i++) put(&idx, p->lengths[i], 4);
  for (int i = 0; i < 3; i++) put(&idx, p->offsets[i], 8);
  for (int i = 0; i < 5; i++) put(&idx, p->documents[i], 8);
  for (int i = 0; p->modes && i < 3; i++) put(&idx, 0, 1);
  snprintf(file, sizeof file, "%s.bin", name);
  write_string(file, &bin);
  snprintf(file, sizeof file, "%s.idx", name);
  write_string(file, &idx);
}

static void test_megatron_pairs(void **state) {
  (void)state;
  static const char *const wide[] = {"1 2 E", "3 E", "4 5 E"}, *const narrow[] = {"1 2 E", "3 9 E", "4 5 E"};
  for (int code = 1; code <= 8; code++) {
    pair p = good_pair(code);
    p.modes = code % 2;
    write_pair("pair", &p);
    const char *const *documents = widths[code] == 1 ? narrow : wide;
    iso_source_options options = options_of("pair.bin", "auto", NULL);
    check(&options, documents, 3);
    options = options_of("pair", "megatron", NULL); /* the prefix */
    check(&options, documents, 3);
    fixture_make_folder("pairs");
    write_pair("pairs/x", &p);
    options = options_of("pairs", "auto", NULL); /* a folder with both */
    check(&options, documents, 3);
  }
}

static void test_damaged_indexes_are_refused(void **state) {
  (void)state;
  iso_source_options options = options_of("broken.bin", "megatron", NULL);
  struct {
    const char *message;
    pair p;
  } cases[12];
  int n = 0;
#define CASE(text, change)                                                                                             \
  cases[n].message = (text);                                                                                           \
  cases[n].p = good_pair(8);                                                                                           \
  cases[n++].p.change
  CASE("type code 9", code = 8);
  CASE("offset 1 is 5", offsets[1] = 5);
  CASE("length 1 is -1", lengths[1] = -1);
  CASE("length 2 is 2000000000", lengths[2] = 2000000000);
  CASE("offset 2 is 8", lengths[1] = 1);
  CASE("says 10", lengths[2] = 1);
  CASE("document 0 is 1", documents[0] = 1);
  CASE("document 2 is 0", documents[2] = 0);
  CASE("document 3 is 4", documents[3] = 4);
  CASE("the last entry is the number of sequences", documents[4] = 2);
  CASE("which is not what an index of 4 sequences", sequences = 4);
  CASE("which is not what an index of 3 sequences and 1152921504606846976", entries = INT64_C(1) << 60);
  for (int i = 0; i < n; i++) {
    write_pair("broken", &cases[i].p);
    if (i == 0) {
      char *bytes;
      size_t length;
      assert_int_equal(iso_file_read(fixture_path("broken.idx"), &bytes, &length), ISO_OK);
      bytes[17] = 9;
      fixture_write("broken.idx", bytes, length);
      free(bytes);
    }
    refused(&options, ISO_ERR_FORMAT, cases[i].message);
  }
  pair p = good_pair(8);
  p.version = 2;
  write_pair("broken", &p);
  refused(&options, ISO_ERR_UNSUPPORTED, "version 2");
  fixture_write("broken.idx", "MMIDIDX\0\0", 9);
  refused(&options, ISO_ERR_FORMAT, "no index of Megatron");
  assert_int_equal(unlink(fixture_path("broken.idx")), 0);
  refused(&options, ISO_ERR_NOT_FOUND, "has no index");
  p = good_pair(8);
  write_pair("alone", &p);
  options = options_of("alone.idx", "auto", NULL);
  refused(&options, ISO_ERR_CONFIG, "name the .bin");
}

/* ---- shards.json ---- */

static void write_manifest(const char *fingerprint, int64_t end, int64_t bytes, uint32_t crc, int64_t tokens,
                           const char *more) {
  iso_string out = {0};
  iso_string_printf(&out,
                    "{\"version\": 1, \"tokenizer\": \"%s\", \"dtype\": \"uint16\", \"eos\": %lld, \"files\": "
                    "[{\"name\": \"a.bin\", \"bytes\": %lld, \"crc32c\": %u, \"tokens\": %lld, \"documents\": 2}%s]}",
                    fingerprint, (long long)end, (long long)bytes, crc, (long long)tokens, more);
  write_string("set/shards.json", &out);
}

static void test_manifests(void **state) {
  (void)state;
  const char *print = iso_tokenizer_fingerprint(fixture_tokenizer);
  fixture_make_folder("set");
  iso_string ids = {0};
  const int64_t values[] = {1, eos, 2, eos};
  for (int i = 0; i < 4; i++) put(&ids, values[i], 2);
  uint32_t crc = iso_crc32c(0, ids.data, ids.length);
  write_string("set/a.bin", &ids);
  iso_source_options options = options_of("set", "auto", NULL);
  fixture_write("set/build.lock", "", 0);
  fixture_write("set/a.json", "{}", 2);
  write_manifest(print, eos, 8, crc, 4, "");
  check(&options, (const char *const[]){"1 E", "2 E"}, 2); /* its dtype is enough for bare ids */
  options = options_of("set/a.bin", "tokens", NULL);
  check(&options, (const char *const[]){"1 E", "2 E"}, 2);
  write_manifest("0123456789abcdef", eos, 8, crc, 4, "");
  refused(&options, ISO_ERR_MISMATCH, "made by the tokenizer 0123456789ab");
  write_manifest(print, eos + 1, 8, crc, 4, "");
  refused(&options, ISO_ERR_MISMATCH, "documents end with id");
  write_manifest(print, eos, 9, crc, 4, "");
  refused(&options, ISO_ERR_MISMATCH, "has 8 bytes");
  write_manifest(print, eos, 8, crc ^ 1, 4, "");
  refused(&options, ISO_ERR_MISMATCH, "is damaged: the CRC-32C");
  write_manifest(print, eos, 8, crc, 5, "");
  refused(&options, ISO_ERR_MISMATCH, "has 4 tokens");
  write_manifest(print, eos, 8, crc, 4, ", {\"name\": \"b.bin\", \"bytes\": 1, \"crc32c\": \"0000000a\"}");
  refused(&options, ISO_ERR_NOT_FOUND, "b.bin");
  write_manifest(print, eos, 8, crc, 4, ", {\"name\": \"a.bin\", \"bytes\": 1}");
  refused(&options, ISO_ERR_FORMAT, "lacks name, bytes or crc32c");
  write_manifest(print, eos, 8, crc, 4, "");
  fixture_write("set/stray.bin", "12", 2);
  options = options_of("set", "auto", NULL);
  refused(&options, ISO_ERR_MISMATCH, "stray.bin\" is not listed");
  fixture_write("set/shards.json", "{\"version\": 1", 13);
  refused(&options, ISO_ERR_FORMAT, "shards.json");
}

/* Shards and text in one mixture: every document once, each with its EOS. */
static void test_a_mixture_of_formats(void **state) {
  (void)state;
  fixture_corpus("mix.txt", 'm', 0, 60, 10);
  iso_string lines = {0}, ids = {0};
  for (int i = 0; i < 60; i++) iso_string_printf(&lines, "{\"id\": %d, \"text\": \"j\\u0031%d\"}\n", i, i);
  for (int i = 0; i < 60; i++)
    for (int t = 0; t < 4; t++) put(&ids, t == 3 ? eos : 1 + (i + t) % 90, 2);
  write_string("mix.jsonl", &lines);
  write_string("mix.bin", &ids);
  iso_source_options sources[] = {fixture_source("mix.txt"), fixture_source("mix.jsonl"),
                                  options_of("mix.bin", "tokens", "uint16")};
  iso_data_options options = fixture_options(sources, 3);
  options.validation_every = 10;
  iso_corpus *corpus, *other;
  iso_corpus_info info, changed;
  assert_int_equal(iso_corpus_open(&options, fixture_tokenizer, &corpus), ISO_OK);
  iso_corpus_info_get(corpus, &info);
  assert_int_equal(info.train_documents, 3 * 54);
  assert_int_equal(iso_corpus_check_validation(corpus), ISO_OK);
  iso_ring *ring;
  assert_int_equal(iso_ring_start(corpus, &options, 0, NULL, &ring), ISO_OK);
  for (int step = 0; step < 50; step++) {
    iso_slot *slot;
    double waited;
    assert_int_equal(iso_ring_take(ring, &slot, &waited), ISO_OK);
    iso_ring_release(ring, slot);
  }
  iso_ring_stop(&ring);
  iso_validation *validation;
  int64_t valid = 1, bytes, tokens, unpredicted, told = 0;
  fixture_arrays arrays = fixture_arrays_create(options.sequence);
  assert_int_equal(iso_validation_open(corpus, 0, &told, &validation), ISO_OK);
  while (valid) assert_int_equal(iso_validation_next(validation, arrays.sequence, &valid), ISO_OK);
  iso_validation_totals(validation, &bytes, &tokens, &unpredicted);
  assert_int_equal(unpredicted, 18);
  assert_true(bytes > 6 * 3 + 6 * 3 + 6 * 2);
  iso_validation_close(&validation);
  free(arrays.memory);
  sources[1].format = "text"; /* the same bytes, read another way */
  sources[1].separator = "\n";
  assert_int_equal(iso_corpus_open(&options, fixture_tokenizer, &other), ISO_OK);
  iso_corpus_info_get(other, &changed);
  assert_string_not_equal(info.digest, changed.digest);
  iso_corpus_close(&other);
  iso_corpus_close(&corpus);
}

static int setup(void **state) {
  int result = fixture_setup(state);
  eos = (int32_t)iso_tokenizer_eos(fixture_tokenizer);
  return result;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_headers_of_llmc),
      cmocka_unit_test(test_bare_ids),
      cmocka_unit_test(test_many_ids),
      cmocka_unit_test(test_megatron_pairs),
      cmocka_unit_test(test_damaged_indexes_are_refused),
      cmocka_unit_test(test_manifests),
      cmocka_unit_test(test_a_mixture_of_formats),
  };
  return cmocka_run_group_tests(tests, setup, fixture_teardown);
}
