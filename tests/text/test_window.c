/* SPDX-License-Identifier: Apache-2.0
 *
 * The fast roads against the plain ones: windows against the scanners, the matcher against merging (every string over
 * a small alphabet, random vocabularies, the real ones), whole encodings against cutting and merging piece by piece, at
 * every length and at the last byte of a page. */
#include "helper.h"

#include <sys/mman.h>

static const iso_splitter splitters[] = {ISO_SPLIT_GPT2, ISO_SPLIT_CL100K, ISO_SPLIT_QWEN2};

/* Text that pre-tokenizers cut in many ways: runs of one kind, mostly short, mostly ASCII. */
static void mixed_text(uint64_t *counter, size_t bytes, uint32_t foreign, iso_string *out) {
  static const char *const kinds[] = {"aZqx", "stmdrevlSTMDREVL", "0123456789", " ",           " \t\v\f", "\n\r\n",
                                      "'",    "/.,(){}#_-",       "\n",         "\x1C\x7F@[`{"};
  static const char *const others[] = {"\xC5\xBF", "\xC2\xA0",     "\xC3\xA9", "\xE4\xB8\xAD", "\xE3\x80\x80",
                                       "\xCC\x81", "\xE2\x80\x99", "\xD9\xA1", "\xC2\x85",     "\xF0\x9F\x98\x80"};
  if (out->data) out->length = 0;
  iso_string_append(out, "", 0);
  while (out->length < bytes) {
    if (foreign && pick(counter, foreign) == 0) {
      const char *other = others[pick(counter, ISO_COUNT(others))];
      iso_string_append(out, other, strlen(other));
    }
    const char *kind = kinds[pick(counter, ISO_COUNT(kinds))];
    const uint32_t length = (uint32_t)strlen(kind), wide = pick(counter, 16);
    uint32_t run = 1 + pick(counter, wide == 0 ? 90 : wide < 6 ? 9 : 2);
    while (run--) iso_string_append(out, kind + pick(counter, length), 1);
  }
}

/* Every window of the text at a piece's beginning; returns how many decided something. */
static size_t check_windows(iso_window_function window, iso_splitter splitter, const iso_string *text, size_t *all) {
  const uint8_t *bytes = (const uint8_t *)text->data;
  size_t decided = 0;
  for (size_t at = 0; at + ISO_WINDOW < text->length;) {
    const uint64_t starts = window(splitter, bytes + at);
    uint64_t expected = 0;
    for (size_t stop = at; starts;) {
      stop = iso_split_next(splitter, bytes, stop, text->length);
      if (stop - at >= 64 || 1ull << (stop - at) > starts) break;
      expected |= 1ull << (stop - at);
    }
    if (starts != expected)
      fail_msg("splitter %d: window %016llx, scanner %016llx, at %zu of \"%.*s\"", splitter, (unsigned long long)starts,
               (unsigned long long)expected, at, ISO_WINDOW, text->data + at);
    decided += starts != 0;
    ++*all;
    at = iso_split_next(splitter, bytes, at, text->length);
  }
  return decided;
}

static void test_windows(void **state) {
  iso_string text = {0};
  uint64_t counter = 1;
  for (size_t s = 0; s < ISO_COUNT(splitters); s++)
    for (iso_tier tier = ISO_TIER_SCALAR; tier <= ISO_TIER_AVX512 && tier <= iso_cpu_best_tier(); tier++) {
      size_t all = 0, decided = 0;
      for (int round = 0; round < 600; round++) {
        mixed_text(&counter, 300, round % 2 ? 0 : 40, &text);
        decided += check_windows(iso_window_find(tier), splitters[s], &text, &all);
      }
      assert_true(decided > all / 2); /* runs of 90 decide nothing */
    }
  /* other kinds are left to the scanners */
  assert_int_equal(iso_window_find(ISO_TIER_SCALAR)(ISO_SPLIT_DIGITS, (const uint8_t *)text.data), 0);
  iso_string_fini(&text);
}

/* ---- the matcher ---- */

static size_t merge_naive(const iso_pairs *pairs, int32_t *ids, size_t count) {
  for (;;) {
    const iso_pair *best = NULL;
    size_t place = 0;
    for (size_t i = 0; i + 1 < count; i++) {
      const iso_pair *pair = iso_pairs_find(pairs, ids[i], ids[i + 1]);
      if (pair && (!best || pair->rank < best->rank)) best = pair, place = i;
    }
    if (!best) return count;
    ids[place] = best->id;
    memmove(ids + place + 1, ids + place + 2, (count - place - 2) * sizeof *ids);
    count--;
  }
}

/* A vocabulary of 256 bytes and `tokens` joined from two that are there, over "abc". */
static void grow_vocabulary(uint64_t *counter, int tokens, iso_vocabulary *v) {
  for (int byte = 0; byte < 256; byte++)
    assert_int_equal(iso_vocabulary_add(v, "test", byte, &(char){(char)byte}, 1, true), ISO_OK);
  for (int tries = 0; v->used < 256 + tokens && tries < 1000; tries++) {
    char bytes[16];
    size_t length = 0;
    for (int half = 0; half < 2; half++) {
      const uint32_t choice = pick(counter, 3 + (uint32_t)(v->used - 256));
      const iso_token *token = &v->tokens[choice < 3 ? 'a' + choice : 256 + choice - 3];
      if (length + token->length > 8) break;
      memcpy(bytes + length, v->bytes.data + token->offset, token->length);
      length += token->length;
    }
    if (length < 2 || iso_vocabulary_find(v, bytes, length, true) >= 0) continue;
    assert_int_equal(iso_vocabulary_add(v, "test", v->used, bytes, length, true), ISO_OK);
  }
  iso_vocabulary_finish(v);
}

/* Merges of a random subset of all cuts, each with a rank of its own, in the order of ids or out of it. */
static void random_merges(uint64_t *counter, const iso_vocabulary *v, bool ordered, iso_pairs *pairs) {
  int32_t rank = 0;
  assert_int_equal(iso_pairs_reserve(pairs, 1000), ISO_OK);
  for (int32_t id = 256; id < v->count; id++) {
    const char *bytes = v->bytes.data + v->tokens[id].offset;
    for (uint32_t cut = 1; cut < v->tokens[id].length; cut++) {
      const int32_t left = iso_vocabulary_find(v, bytes, cut, true);
      const int32_t right = iso_vocabulary_find(v, bytes + cut, v->tokens[id].length - cut, true);
      if (left < 0 || right < 0 || pick(counter, 3) == 0) continue;
      assert_true(iso_pairs_add(pairs, left, right, ordered ? rank : (int32_t)(pick(counter, 1000) * 1000) + rank, id));
      rank++;
    }
  }
}

/* All strings over "abc" of up to 9 bytes, and some longer ones. How many of these are left to merging, which short
 * ones never are. */
static int check_strings(const iso_matcher *m, const iso_vocabulary *v, const iso_pairs *pairs, uint64_t *counter) {
  iso_bpe_scratch scratch = {0};
  int undecided = 0;
  for (int length = 1, all = 3; length <= 40; length++, all = length <= 7 ? 3 * all : 20)
    for (int number = 0; number < all; number++) {
      uint8_t text[40];
      int32_t ids[40], expected[40];
      for (int i = 0, rest = number; i < length; i++, rest /= 3) {
        text[i] = (uint8_t)('a' + (length <= 7 ? rest % 3 : (int)pick(counter, 3)));
        expected[i] = v->byte_ids[text[i]];
      }
      const size_t count = merge_naive(pairs, expected, (size_t)length);
      const size_t made = iso_matcher_encode(m, text, (size_t)length, ids, &scratch);
      if (made == SIZE_MAX && length > 15) {
        undecided++;
        continue;
      }
      assert_int_equal(made, count);
      assert_memory_equal(ids, expected, count * sizeof *ids);
    }
  free(scratch.memory);
  return undecided;
}

/* Random vocabularies, as rank files and as lists of merges: where the matcher decides, it is exact, also where tokens
 * stand before their halves. */
static void test_matcher_on_random_vocabularies(void **state) {
  uint64_t counter = 50000000;
  int usable = 0, undecided = 0;
  for (int round = 0; round < 60; round++) {
    iso_vocabulary v = {0};
    iso_pairs pairs = {0};
    iso_matcher m = {0};
    grow_vocabulary(&counter, 1 + (int)pick(&counter, 40), &v);
    if (round % 3 == 0)
      assert_int_equal(iso_pairs_from_ranks(&pairs, &v), ISO_OK);
    else
      random_merges(&counter, &v, round % 3 == 1, &pairs);
    iso_matcher_build(&m, &v, &pairs);
    if (m.usable) undecided += check_strings(&m, &v, &pairs, &counter);
    usable += m.usable;
    iso_matcher_fini(&m);
    iso_pairs_fini(&pairs);
    iso_vocabulary_fini(&v);
  }
  assert_true(usable >= 50 && undecided > 0);
}

static void test_matcher_on_real_vocabularies(void **state) {
  static const char *const names[] = {"gpt2", "cl100k_base", "o200k_base", "qwen3"};
  iso_string text = {0};
  uint64_t counter = 60000000;
  for (size_t n = 0; n < ISO_COUNT(names); n++) {
    char path[256];
    iso_tokenizer *t;
    snprintf(path, sizeof path, ISO_TEST_DATA "/text/%s", names[n]);
    assert_int_equal(iso_tokenizer_open(path, "", &t), ISO_OK);
    assert_true(t->matcher.usable);
    iso_bpe_scratch scratch = {0};
    for (int round = 0; round < 1500; round++) {
      random_text(&counter, 1 + pick(&counter, 60), &text);
      if (round % 3 == 0) { /* bytes at random */
        for (size_t i = 0; i < text.length; i++) text.data[i] = (char)pick(&counter, 256);
      } else if (round % 3 == 1) { /* few letters: long tokens, many ways */
        const uint32_t letters = 1 + pick(&counter, 4);
        for (size_t i = 0; i < text.length; i++) text.data[i] = " etaEs=-"[pick(&counter, letters) + round % 5];
      }
      int32_t *ids = malloc(text.length * 4), *expected = malloc(text.length * 4);
      for (size_t i = 0; i < text.length; i++) expected[i] = t->vocabulary.byte_ids[(uint8_t)text.data[i]];
      const size_t wanted = merge_naive(&t->pairs, expected, text.length);
      const size_t count = iso_matcher_encode(&t->matcher, (const uint8_t *)text.data, text.length, ids, &scratch);
      assert_int_equal(count, wanted);
      assert_memory_equal(ids, expected, count * sizeof *ids);
      free(ids);
      free(expected);
    }
    free(scratch.memory);
    iso_tokenizer_close(&t);
  }
  iso_string_fini(&text);
}

/* ---- whole texts ---- */

typedef struct plain_ids {
  int32_t *ids;
  size_t count;
} plain_ids;

/* Piece by piece with the scanner, merged; whole pieces first where the tokenizer says so. */
static plain_ids encode_plain(const iso_tokenizer *t, const char *text, size_t length) {
  plain_ids out = {malloc((length + 1) * sizeof *out.ids), 0};
  iso_bpe_scratch scratch = {0};
  for (size_t at = 0, stop; at < length; at = stop) {
    stop = iso_split_next(t->steps[0].splitter, (const uint8_t *)text, at, length);
    int32_t *ids = out.ids + out.count, whole = -1;
    if (t->whole_first) whole = iso_vocabulary_find(&t->vocabulary, text + at, stop - at, true);
    if (whole >= 0) {
      out.ids[out.count++] = whole;
      continue;
    }
    for (size_t i = at; i < stop; i++) ids[i - at] = t->vocabulary.byte_ids[(uint8_t)text[i]];
    out.count += iso_bpe_merge(&t->pairs, ids, stop - at, &scratch);
  }
  free(scratch.memory);
  return out;
}

static void check_whole(const iso_tokenizer *t, iso_encoder *encoder, const char *text, size_t length) {
  const int32_t *ids;
  size_t count;
  assert_int_equal(iso_encode(encoder, text, length, false, false, &ids, &count), ISO_OK);
  plain_ids expected = encode_plain(t, text, length);
  assert_int_equal(count, expected.count);
  assert_memory_equal(ids, expected.ids, count * sizeof *ids);
  free(expected.ids);
}

/* Every length from 0 to 300, ending at the last byte before a page that may not be read, beginning at any alignment.
 */
static void test_page_ends(void **state) {
  static const char *const names[] = {"gpt2", "cl100k_base"};
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(memory != MAP_FAILED);
  assert_int_equal(mprotect(memory + page, page, PROT_NONE), 0);
  iso_string text = {0};
  uint64_t counter = 70000000;
  for (size_t n = 0; n < ISO_COUNT(names); n++) {
    char path[256];
    iso_tokenizer *t;
    snprintf(path, sizeof path, ISO_TEST_DATA "/text/%s", names[n]);
    assert_int_equal(iso_tokenizer_open(path, "", &t), ISO_OK);
    iso_encoder *encoder = iso_encoder_create(t);
    for (size_t length = 0; length <= 300; length++)
      for (uint32_t foreign = 0; foreign <= 10; foreign += 5) {
        mixed_text(&counter, length, foreign, &text);
        size_t bytes = text.length < page ? text.length : page;
        memcpy(memory + page - bytes, text.data + text.length - bytes, bytes);
        check_whole(t, encoder, memory + page - bytes, bytes);
      }
    iso_encoder_destroy(&encoder);
    iso_tokenizer_close(&t);
  }
  iso_string_fini(&text);
  munmap(memory, 2 * page);
}

/* Longer mixed texts, with an encoder that has seen much and the qwen2 pattern on a rank file too. */
static void test_whole_texts(void **state) {
  static const char *const names[] = {"gpt2", "cl100k_base", "o200k_base"};
  iso_string text = {0};
  uint64_t counter = 80000000;
  for (size_t n = 0; n <= ISO_COUNT(names); n++) {
    char path[256];
    iso_tokenizer *t;
    snprintf(path, sizeof path, ISO_TEST_DATA "/text/%s", names[n % ISO_COUNT(names)]);
    assert_int_equal(iso_tokenizer_open(path, "", &t), ISO_OK);
    if (n == ISO_COUNT(names)) t->steps[0].splitter = ISO_SPLIT_QWEN2;
    iso_encoder *encoder = iso_encoder_create(t);
    for (int round = 0; round < 60; round++) {
      if (round % 3 == 2)
        random_text(&counter, 1500, &text);
      else
        mixed_text(&counter, 3000, round % 3 ? 30 : 0, &text);
      check_whole(t, encoder, text.data, text.length);
    }
    iso_encoder_destroy(&encoder);
    iso_tokenizer_close(&t);
  }
  iso_string_fini(&text);
}

/* ---- stretches ---- */

/* The ids of a text cut in stretches, each merged alone; *cuts counts cuts, *direct stretches told to be one token. */
static size_t merge_stretches(const iso_matcher *m, const iso_pairs *pairs, const int32_t *bytes, const uint8_t *text,
                              size_t length, int32_t *ids, size_t *cuts, size_t *direct) {
  iso_stretch walk = {.matcher = m, .text = text, .length = length};
  size_t count = 0;
  while (walk.at < length) {
    const size_t from = walk.at;
    const int32_t id = iso_stretch_next(&walk);
    assert_true(walk.at > from && walk.at <= length);
    assert_true(walk.at == length || (text[walk.at] & 0xC0) != 0x80);
    *cuts += walk.at < length;
    *direct += id >= 0;
    for (size_t i = from; i < walk.at; i++) ids[count + i - from] = bytes[text[i]];
    const size_t merged = merge_naive(pairs, ids + count, walk.at - from);
    if (id >= 0) assert_true(merged == 1 && ids[count] == id);
    count += merged;
  }
  return count;
}

static void check_stretches(const iso_matcher *m, const iso_pairs *pairs, const int32_t *bytes, const iso_string *text,
                            size_t *cuts, size_t *direct) {
  int32_t *ids = malloc(text->length * 4), *expected = malloc(text->length * 4);
  for (size_t i = 0; i < text->length; i++) expected[i] = bytes[(uint8_t)text->data[i]];
  const size_t wanted = merge_naive(pairs, expected, text->length);
  const uint8_t *data = (const uint8_t *)text->data;
  assert_int_equal(merge_stretches(m, pairs, bytes, data, text->length, ids, cuts, direct), wanted);
  assert_memory_equal(ids, expected, wanted * sizeof *ids);
  free(ids);
  free(expected);
}

/* A token that no merging makes is taken where it is a whole piece, and merged where its bytes are a stretch of one; in
 * both orders, with one memory. */
static void test_stretches_that_are_whole_pieces(void **state) {
#define X "\xE4\x80\x80"
#define Y "\xE5\x80\x80"
#define Z "\xE6\x80\x80"
  static const char *const texts[] = {X Y "\n" Z X Y Z "\n" X Y, Z X Y Z "\n" X Y "\n" Z X Y Z};
  for (size_t n = 0; n < ISO_COUNT(texts); n++) {
    iso_tokenizer t = {.path = "test", .whole_first = true};
    for (int byte = 0; byte < 256; byte++)
      assert_int_equal(iso_vocabulary_add(&t.vocabulary, "test", byte, &(char){(char)byte}, 1, true), ISO_OK);
    assert_int_equal(iso_vocabulary_add(&t.vocabulary, "test", 256, "\x80\xE5", 2, true), ISO_OK); /* joins X and Y */
    assert_int_equal(iso_vocabulary_add(&t.vocabulary, "test", 257, X Y, 6, true), ISO_OK);
    iso_vocabulary_finish(&t.vocabulary);
    assert_int_equal(iso_pairs_from_ranks(&t.pairs, &t.vocabulary), ISO_OK);
    iso_matcher_build(&t.matcher, &t.vocabulary, &t.pairs);
    assert_true(t.matcher.usable && !t.matcher.complete);
    t.steps[t.step_count++].splitter = ISO_SPLIT_GPT2;
    iso_encoder *encoder = iso_encoder_create(&t);
    assert_non_null(encoder);
    for (int again = 0; again < 2; again++) check_whole(&t, encoder, texts[n], strlen(texts[n]));
    iso_encoder_destroy(&encoder);
    iso_matcher_fini(&t.matcher);
    iso_pairs_fini(&t.pairs);
    iso_vocabulary_fini(&t.vocabulary);
  }
#undef X
#undef Y
#undef Z
}

/* Characters of three bytes that share first, middle and last bytes, and a vocabulary over these bytes whose tokens
 * begin and end inside characters and reach over one, two or three borders; ranks in and out of order. */
static void test_stretches_on_random_vocabularies(void **state) {
  static const char letters[] = "\xE4\xE5\x80\x81";
  uint64_t counter = 90000000;
  size_t cuts = 0, direct = 0, used = 0;
  for (int round = 0; round < 400; round++) {
    iso_vocabulary v = {0};
    iso_pairs pairs = {0};
    iso_matcher m = {0};
    for (int byte = 0; byte < 256; byte++)
      assert_int_equal(iso_vocabulary_add(&v, "test", byte, &(char){(char)byte}, 1, true), ISO_OK);
    const int64_t tokens = 256 + 4 + pick(&counter, 40);
    for (int tries = 0; v.used < tokens && tries < 400; tries++) {
      char bytes[32];
      size_t length = 0;
      for (int half = 0; half < 2; half++) {
        const uint32_t choice = pick(&counter, 4 + (uint32_t)(v.used - 256));
        const iso_token *token = &v.tokens[choice < 4 ? (uint8_t)letters[choice] : 256 + choice - 4];
        if (length + token->length > 10) break;
        memcpy(bytes + length, v.bytes.data + token->offset, token->length);
        length += token->length;
      }
      if (length < 2 || iso_vocabulary_find(&v, bytes, length, true) >= 0) continue;
      assert_int_equal(iso_vocabulary_add(&v, "test", v.used, bytes, length, true), ISO_OK);
    }
    iso_vocabulary_finish(&v);
    if (round % 2)
      assert_int_equal(iso_pairs_from_ranks(&pairs, &v), ISO_OK);
    else
      random_merges(&counter, &v, round % 4 == 0, &pairs);
    iso_matcher_build(&m, &v, &pairs);
    if (m.usable) {
      iso_string text = {0};
      used++;
      for (int texts = 0; texts < 60; texts++) {
        if (text.data) text.length = 0;
        for (uint32_t left = 1 + pick(&counter, 12); left--;) {
          const char character[3] = {letters[pick(&counter, 2)], letters[2 + pick(&counter, 2)],
                                     letters[2 + pick(&counter, 2)]};
          iso_string_append(&text, character, 3);
        }
        check_stretches(&m, &pairs, v.byte_ids, &text, &cuts, &direct);
      }
      iso_string_fini(&text);
    }
    iso_matcher_fini(&m);
    iso_pairs_fini(&pairs);
    iso_vocabulary_fini(&v);
  }
  assert_true(used >= 200 && cuts > 10000 && direct > 1000);
}

/* Characters of a few scripts without spaces, frequent ones first, against the real vocabularies' merges; and whole
 * encodings of them, remembered stretches and pieces alike. */
static void test_stretches_on_real_vocabularies(void **state) {
  static const char *const names[] = {"gpt2", "cl100k_base", "o200k_base", "qwen3"};
  static const uint32_t firsts[] = {0x4E00, 0x3040, 0x30A0, 0xAC00, 0x3000, 0xFF00},
                        sizes[] = {20990, 90, 90, 11170, 3, 100};
  static const uint32_t common[] = {0x7684, 0x4E00, 0x662F, 0x4E0D, 0x4E86, 0x4EBA, 0x6211, 0x5728, 0x6709, 0x4ED6,
                                    0x8FD9, 0x4E2D, 0x5927, 0x6765, 0x4E0A, 0x56FD, 0x4E2A, 0x5230, 0x8BF4, 0x4EEC};
  uint64_t counter = 95000000;
  iso_string text = {0};
  for (size_t n = 0; n < ISO_COUNT(names); n++) {
    char path[256];
    iso_tokenizer *t;
    snprintf(path, sizeof path, ISO_TEST_DATA "/text/%s", names[n]);
    assert_int_equal(iso_tokenizer_open(path, "", &t), ISO_OK);
    iso_encoder *encoder = iso_encoder_create(t);
    size_t cuts = 0, direct = 0;
    for (int round = 0; round < 400; round++) {
      if (text.data) text.length = 0;
      for (uint32_t left = 1 + pick(&counter, 60); left--;) {
        const uint32_t script = pick(&counter, ISO_COUNT(firsts));
        const bool frequent = pick(&counter, 4) != 0;
        iso_utf8_append(&text, frequent ? common[pick(&counter, ISO_COUNT(common))]
                                        : firsts[script] + pick(&counter, sizes[script]));
      }
      check_stretches(&t->matcher, &t->pairs, t->vocabulary.byte_ids, &text, &cuts, &direct);
      if (t->steps[0].splitter != ISO_SPLIT_REGEX && !t->nfc) check_whole(t, encoder, text.data, text.length);
    }
    assert_true(cuts > 1000 && direct > 0);
    iso_encoder_destroy(&encoder);
    iso_tokenizer_close(&t);
  }
  iso_string_fini(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_windows),
      cmocka_unit_test(test_matcher_on_random_vocabularies),
      cmocka_unit_test(test_matcher_on_real_vocabularies),
      cmocka_unit_test(test_page_ends),
      cmocka_unit_test(test_whole_texts),
      cmocka_unit_test(test_stretches_that_are_whole_pieces),
      cmocka_unit_test(test_stretches_on_random_vocabularies),
      cmocka_unit_test(test_stretches_on_real_vocabularies),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
