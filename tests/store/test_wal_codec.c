/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed gradients: every bit comes back, whatever it is; damage is seen; what a hostile file says costs nothing.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/wal_fixture.h"
#include "store/wal_output.h"

typedef enum kind { NORMAL, ZEROS, NOISE, MIXED, KINDS } kind; /* MIXED: rows of zeros, infinities and NaNs too */

static uint32_t noise(uint64_t a, uint64_t b) {
  uint32_t out[4];
  iso_rng(7, ISO_RNG_TEST, a, b, out);
  return out[0];
}

static void *values_of(kind which, iso_dtype type, int64_t count) {
  uint16_t *half = malloc((size_t)count * 2 + 1);
  uint32_t *whole = malloc((size_t)count * 4 + 1);
  for (int64_t i = 0; i < count; i++) {
    union {
      float f;
      uint32_t bits;
    } v = {.f = 1e-4f * (float)(noise(1, (uint64_t)i) >> 8) / 16777216 * (noise(2, (uint64_t)i) & 1 ? 1.0f : -0.3f)};
    if (which == ZEROS || (which == MIXED && i / 64 % 3 != 0)) v.bits = 0;
    if (which == NOISE) v.bits = noise(3, (uint64_t)i);
    if (which == MIXED && i % 97 == 0) v.bits = i % 2 ? 0xff800000u : 0x7fc12345u;
    whole[i] = v.bits;
    half[i] = (uint16_t)(v.bits >> 16);
  }
  free(type == ISO_BF16 ? (void *)whole : half);
  return type == ISO_BF16 ? (void *)half : whole;
}

static size_t check_round_trip(iso_wal_coder *coder, kind which, iso_dtype type, int64_t count) {
  const size_t bytes = (size_t)count * iso_dtype_size(type), bound = iso_wal_packed_bound(type, count);
  void *values = values_of(which, type, count);
  char *content = malloc(bound), *back = malloc(bytes + 1);
  memset(content, 0xa5, bound);
  back[bytes] = 77;
  const size_t packed = iso_wal_pack(coder, values, count, content);
  assert_in_range(packed, 1, bound);
  assert_null(iso_wal_unpack(coder, content, packed, count, back));
  assert_memory_equal(back, values, bytes);
  assert_int_equal(back[bytes], 77);
  free(values);
  free(content);
  free(back);
  return packed;
}

static void test_every_bit_comes_back(void **state) {
  const iso_dtype types[] = {ISO_BF16, ISO_F32};
  const int64_t counts[] = {1, 2, 3, 31, 64, 1000, 65536, 131073, ISO_WAL_PACKED};
  for (int t = 0; t < 2; t++) {
    iso_wal_coder *coder;
    assert_int_equal(iso_wal_coder_create(types[t], ISO_WAL_PACKED, &coder), ISO_OK);
    for (int k = 0; k < KINDS; k++)
      for (size_t i = 0; i < ISO_COUNT(counts); i++) check_round_trip(coder, k, types[t], counts[i]);
    const double raw = (double)(ISO_WAL_PACKED * (int64_t)iso_dtype_size(types[t]));
    const double share = (double)check_round_trip(coder, NORMAL, types[t], ISO_WAL_PACKED) / raw;
    assert_true(share < (t ? 0.84 : 0.72)); /* 12 bytes of a snapshot: 0.12 at most in bfloat16 */
    assert_true((double)check_round_trip(coder, ZEROS, types[t], ISO_WAL_PACKED) / raw < 0.001);
    assert_true((double)check_round_trip(coder, NOISE, types[t], ISO_WAL_PACKED) / raw < 1.001);
    iso_wal_coder_destroy(&coder);
  }
}

/* Without the frame's CRC before it: what is unpacked in spite of damage is what was packed. */
static void test_damaged_content(void **state) {
  enum { COUNT = 700 };
  const iso_dtype types[] = {ISO_BF16, ISO_F32};
  for (int t = 0; t < 2; t++) {
    iso_wal_coder *coder;
    assert_int_equal(iso_wal_coder_create(types[t], ISO_WAL_PACKED, &coder), ISO_OK);
    void *values = values_of(MIXED, types[t], COUNT);
    const size_t bytes = COUNT * iso_dtype_size(types[t]);
    char *content = malloc(iso_wal_packed_bound(types[t], COUNT)), *back = malloc(bytes);
    const size_t packed = iso_wal_pack(coder, values, COUNT, content);
    int seen = 0, flips = 0;
    for (size_t bit = 0; bit < 8 * packed; bit++, flips++) {
      content[bit / 8] ^= (char)(1 << bit % 8);
      const char *wrong = iso_wal_unpack(coder, content, packed, COUNT, back);
      if (!wrong) assert_memory_equal(back, values, bytes);
      seen += wrong != NULL;
      content[bit / 8] ^= (char)(1 << bit % 8);
    }
    assert_true(seen > flips * 99 / 100);       /* a few bits of a zstd frame mean nothing */
    for (size_t cut = 0; cut < packed; cut++) { /* a copy, so that a sanitizer sees what is read behind it */
      char *part = malloc(cut + 1);
      memcpy(part, content, cut);
      assert_non_null(iso_wal_unpack(coder, part, cut, COUNT, back));
      free(part);
    }
    assert_non_null(iso_wal_unpack(coder, content, packed, COUNT - 1, back));
    assert_non_null(iso_wal_unpack(coder, content, packed, 0, back));
    assert_non_null(iso_wal_unpack(coder, content, packed, -1, back));
    assert_non_null(iso_wal_unpack(coder, content, packed, ISO_WAL_PACKED + 1, back));
    assert_non_null(iso_wal_unpack(coder, content, packed, INT64_MAX, back));
    free(values);
    free(content);
    free(back);
    iso_wal_coder_destroy(&coder);
  }
}

/* Heads that say anything, over content that is anything. */
static void test_hostile_content(void **state) {
  enum { COUNT = 257, ROUNDS = 20000 };
  iso_wal_coder *coder;
  assert_int_equal(iso_wal_coder_create(ISO_BF16, ISO_WAL_PACKED, &coder), ISO_OK);
  char *back = malloc(COUNT * 2);
  void *values = values_of(NORMAL, ISO_BF16, COUNT);
  const size_t bound = iso_wal_packed_bound(ISO_BF16, COUNT);
  char *good = malloc(bound);
  const size_t packed = iso_wal_pack(coder, values, COUNT, good);
  for (uint64_t round = 0; round < ROUNDS; round++) {
    const size_t bytes = round % 2 ? packed : noise(5, round) % (bound + 64);
    char *content = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) content[i] = round % 2 && i < packed ? good[i] : (char)noise(round + 10, i);
    for (size_t k = 0; k < 6 && 32 <= bytes; k++) { /* fields of the head, mostly near what could be */
      const uint32_t r = noise(6 * round + k, 1);
      const uint32_t field = r % 4 == 0 ? r : r % 4 == 1 ? noise(r, 2) % 600 : k == 0 ? 2 : UINT32_MAX - r % 3;
      if (r % 3 == 0) memcpy(content + 4 + 4 * k, &field, sizeof field);
    }
    const char *wrong = iso_wal_unpack(coder, content, bytes, COUNT, back);
    if (!wrong) assert_memory_equal(back, values, COUNT * 2);
    free(content);
  }
  free(back);
  free(values);
  free(good);
  iso_wal_coder_destroy(&coder);
}

/* ---- in a log ---- */

static iso_wal *open_packed(const fixture *f, int incarnation, iso_dtype type, int64_t first) {
  iso_wal_options options = options_of(f, incarnation, type);
  options.packed = ISO_WAL_ON;
  return open_with(&options, first);
}

static void test_packed_steps_are_read(void **state) {
  fixture *f = *state;
  const iso_dtype types[] = {ISO_BF16, ISO_F32};
  for (int t = 0; t < 2; t++) {
    fixture_begin(f, 2 + t, 0);
    iso_wal *log = open_packed(f, 2 + t, types[t], 1);
    append_steps(log, types[t], 1, STEPS);
    iso_wal_state s;
    iso_wal_state_get(log, &s);
    assert_int_equal(s.durable, STEPS);
    assert_int_equal(s.packed_steps, STEPS - 1); /* one is refused: it has no gradient */
    assert_true(s.packed && s.pack_s > 0);
    iso_wal_close(&log);
    assert_steps(f, types[t], 1, STEPS);
    iso_wal_index index;
    iso_string faults = {0};
    read_index(f, true, &index, &faults);
    assert_int_equal(index.files[index.file_count - 1].packed, STEPS - 1);
    iso_wal_index_fini(&index);
  }
}

/* A run may change its mind: another start, another form. */
static void test_both_forms_follow_each_other(void **state) {
  fixture *f = *state;
  iso_wal *log = open_packed(f, 1, ISO_BF16, 1);
  append_steps(log, ISO_BF16, 1, 3);
  iso_wal_close(&log);
  fixture_begin(f, 2, 3);
  log = open_log(f, 2, ISO_BF16, 1 << 30, false, 4);
  append_steps(log, ISO_BF16, 4, 6);
  iso_wal_close(&log);
  assert_steps(f, ISO_BF16, 1, 6);
}

static void test_every_flipped_byte_is_seen(void **state) {
  fixture *f = *state;
  iso_wal *log = open_packed(f, 1, ISO_BF16, 1);
  append_steps(log, ISO_BF16, 1, 2);
  iso_wal_close(&log);
  assert_flips_are_seen(f, 2, 53);
}

/* Every CRC of the frame is right, but what it holds was packed wrongly: a fault of memory, library or ours. */
static void test_wrongly_packed_is_named(void **state) {
  fixture *f = *state;
  iso_wal *log = open_packed(f, 1, ISO_BF16, 1);
  append_steps(log, ISO_BF16, 1, 1);
  iso_wal_close(&log);
  const image im = take_image(f);
  char *head = im.bytes + ISO_WAL_BLOCK, *content = head + ISO_WAL_BLOCK, *commit;
  iso_wal_segment segment;
  iso_wal_frame frame;
  iso_wal_record record;
  int64_t payloads;
  uint32_t crc;
  assert_null(iso_wal_segment_decode(im.bytes, &segment));
  assert_null(iso_wal_frame_decode(head, &segment, &frame));
  assert_int_equal(frame.codec, ISO_WAL_PLANES);
  const size_t padded = iso_wal_padded((size_t)frame.bytes);
  content[frame.bytes - 1] ^= 1; /* a mantissa: it stands as it is */
  frame.payload_crc = iso_crc32c(0, content, padded);
  iso_wal_frame_encode(&frame, head);
  const uint32_t all = iso_crc32c(0, &frame.payload_crc, 4);
  commit = content + padded;
  assert_null(iso_wal_frame_decode(commit, &segment, &frame));
  char *body = commit + ISO_WAL_BLOCK;
  iso_cursor cursors[CURSORS];
  assert_true(iso_wal_commit_decode(body, (size_t)frame.bytes, &record, &payloads, &crc));
  memcpy(cursors, record.cursors, sizeof cursors);
  record.cursors = cursors;
  iso_wal_commit_encode(&record, payloads, all, body);
  frame.payload_crc = iso_crc32c(0, body, iso_wal_padded((size_t)frame.bytes));
  iso_wal_frame_encode(&frame, commit);
  put_image(&im, im.length);
  iso_wal_index index;
  iso_string faults = {0};
  read_index(f, false, &index, &faults); /* by the heads alone all is well */
  assert_int_equal(index.step_count, 1);
  void *have = gradient_of(0, ISO_BF16);
  iso_cursor *read;
  assert_int_equal(iso_wal_step_read(&index, &index.steps[0], have, &record, &read, &faults), ISO_ERR_FORMAT);
  assert_non_null(strstr(faults.data, "does not unpack to the values it was made of"));
  iso_wal_index_fini(&index);
  iso_string_fini(&faults);
  acknowledged = 1;
  faults = (iso_string){0};
  read_index(f, true, &index, &faults);
  assert_int_equal(index.step_count, 0);
  assert_non_null(strstr(faults.data, "does not unpack to the values it was made of"));
  acknowledged = 0;
  iso_wal_index_fini(&index);
  iso_string_fini(&faults);
  free(have);
  free(im.bytes);
}

/* What a head may say is bounded before anything is read or allocated for it. */
static void test_hostile_heads(void **state) {
  char block[ISO_WAL_BLOCK];
  iso_wal_segment segment = {
      .incarnation = 1, .elements = INT64_MAX / 8, .first_step = 1, .gradient = ISO_F32, .optimizer_version = 1};
  iso_wal_frame out;
  const iso_wal_frame good = {.kind = ISO_WAL_PAYLOAD,
                              .codec = ISO_WAL_PLANES,
                              .incarnation = 1,
                              .step = 1,
                              .end = ISO_WAL_PACKED,
                              .bytes = 100};
  iso_wal_frame_encode(&good, block);
  assert_null(iso_wal_frame_decode(block, &segment, &out));
  for (int i = 0; i < 6; i++) {
    iso_wal_frame bad = good;
    if (i == 0) bad.end = ISO_WAL_PACKED + 1;
    if (i == 1) bad.bytes = (int64_t)iso_wal_packed_bound(ISO_F32, ISO_WAL_PACKED) + 1;
    if (i == 2) bad.kind = ISO_WAL_COMMIT;
    if (i == 3) bad.end = segment.elements;
    if (i == 4) bad.codec = (iso_wal_codec)2;
    if (i == 5) bad.codec = ISO_WAL_RAW, bad.end = segment.elements;
    iso_wal_frame_encode(&bad, block);
    assert_non_null(iso_wal_frame_decode(block, &segment, &out));
  }
  snprintf(segment.uuid, sizeof segment.uuid, "%036d", 1);
  iso_wal_segment_encode(&segment, block);
  assert_null(iso_wal_segment_decode(block, &segment));
  segment.elements++;
  iso_wal_segment_encode(&segment, block);
  assert_non_null(iso_wal_segment_decode(block, &segment));
}

/* ---- when it is done ---- */

static bool packs_by_measurement(bool idle_core, double step_s, double raw_s, double pack_s) {
  const iso_wal_options options = {.packed = ISO_WAL_AUTO, .idle_core = idle_core};
  iso_wal_choice choice;
  iso_wal_choice_init(&choice, &options, false);
  int packed = 0;
  for (int i = 0; i < 200; i++) {
    bool try;
    const iso_wal_way way = iso_wal_choice_next(&choice, &try);
    if (try) iso_wal_choice_tried(&choice, pack_s, 0.68);
    iso_wal_choice_learn(&choice, way, way.packed ? pack_s + 0.68 * raw_s : raw_s, step_s);
    packed += way.packed;
  }
  assert_true(packed == 0 || packed > 150); /* it does not waver */
  return choice.way.packed;
}

static void test_it_packs_where_that_does_not_slow_the_run(void **state) {
  assert_false(packs_by_measurement(false, 1.0, 0.2, 0.1)); /* storage keeps up: packing would take from the steps */
  assert_true(packs_by_measurement(false, 1.0, 3.0, 0.1));  /* storage is what steps wait for */
  assert_false(packs_by_measurement(false, 1.0, 1.2, 0.5)); /* the wait is shorter than packing */
  assert_true(packs_by_measurement(true, 1.0, 0.2, 0.1));   /* a core has nothing else to do */
  assert_false(packs_by_measurement(true, 0.1, 0.09, 2.0)); /* it would not keep up */
  const iso_wal_options options = {.several = ISO_WAL_AUTO};
  for (int faster = 0; faster < 2; faster++) {
    iso_wal_choice choice;
    iso_wal_choice_init(&choice, &options, true);
    for (int i = 0; i < 20; i++) {
      bool try;
      const iso_wal_way way = iso_wal_choice_next(&choice, &try);
      iso_wal_choice_learn(&choice, way, way.several == faster ? 0.5 : 1.0, 1);
    }
    assert_int_equal(choice.way.several, faster);
  }
}

int main(void) {
  iso_log_quiet(true);
#define EACH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_bit_comes_back),
      cmocka_unit_test(test_damaged_content),
      cmocka_unit_test(test_hostile_content),
      cmocka_unit_test(test_hostile_heads),
      cmocka_unit_test(test_it_packs_where_that_does_not_slow_the_run),
      EACH(test_packed_steps_are_read),
      EACH(test_both_forms_follow_each_other),
      EACH(test_every_flipped_byte_is_seen),
      EACH(test_wrongly_packed_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
