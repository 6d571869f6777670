/* SPDX-License-Identifier: Apache-2.0
 *
 * Events for TensorBoard, read back by a small reader of our own: records with their checks, and the fields that the
 * formats' descriptions name. (tests/cli/tensorboard.sh reads them with TensorBoard itself.)
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>

#include "io/scratch.h"
#include "train/vitals/vitals.h"

static char run[128];

/* ---- a reader ---- */

typedef struct field {
  int number, wire;
  uint64_t whole; /* a varint, or the bits of a fixed one */
  const unsigned char *bytes;
  size_t length;
} field;

static uint64_t varint(const unsigned char **at, const unsigned char *end) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    assert_true(*at < end);
    const unsigned char byte = *(*at)++;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
  fail_msg("a varint of more than ten bytes");
  return 0;
}

static bool next_field(const unsigned char **at, const unsigned char *end, field *f) {
  if (*at == end) return false;
  const uint64_t tag = varint(at, end);
  *f = (field){.number = (int)(tag >> 3), .wire = (int)(tag & 7)};
  if (f->wire == 0) {
    f->whole = varint(at, end);
    return true;
  }
  f->length = f->wire == 1 ? 8 : f->wire == 5 ? 4 : (size_t)varint(at, end);
  assert_true(f->wire == 1 || f->wire == 5 || f->wire == 2);
  assert_true(f->length <= (size_t)(end - *at));
  f->bytes = *at;
  *at += f->length;
  if (f->wire != 2) memcpy(&f->whole, f->bytes, f->length);
  return true;
}

/* The first field of that number in a message. */
static bool find(const unsigned char *bytes, size_t length, int number, field *f) {
  for (const unsigned char *at = bytes; next_field(&at, bytes + length, f);)
    if (f->number == number) return true;
  return false;
}

static field in(field message, int number) {
  field f;
  if (!find(message.bytes, message.length, number, &f)) fail_msg("no field %d", number);
  return f;
}

static double real(field f) {
  double value;
  float single;
  if (f.wire == 5) {
    memcpy(&single, f.bytes, sizeof single);
    return (double)single;
  }
  assert_int_equal(f.wire, 1);
  memcpy(&value, f.bytes, sizeof value);
  return value;
}

static bool is_text(field f, const char *text) {
  return f.length == strlen(text) && memcmp(f.bytes, text, f.length) == 0;
}

/* CRC-32C bit by bit. */
static uint32_t masked_crc(const unsigned char *bytes, size_t count) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < count; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

enum { EVENTS_MOST = 64 };
static char *file;
static field events[EVENTS_MOST];
static size_t event_count;

static void read_file(void) {
  char folder[160], **names;
  size_t bytes, count;
  iso_arena *arena = iso_arena_create();
  snprintf(folder, sizeof folder, "%s/tensorboard", run);
  assert_int_equal(iso_path_list(arena, folder, &names, &count), ISO_OK);
  assert_int_equal(count, 1);
  assert_int_equal(strncmp(names[0], "events.out.tfevents.", 20), 0);
  free(file);
  assert_int_equal(iso_file_read(iso_path_join(arena, folder, names[0]), &file, &bytes), ISO_OK);
  iso_arena_destroy(&arena);
  event_count = 0;
  for (const unsigned char *at = (unsigned char *)file, *end = at + bytes; at < end;) {
    uint64_t length;
    uint32_t check;
    assert_true(end - at >= 16 && event_count < EVENTS_MOST);
    memcpy(&length, at, 8);
    memcpy(&check, at + 8, 4);
    assert_int_equal(check, masked_crc(at, 8));
    assert_true(length <= (uint64_t)(end - at) - 16);
    memcpy(&check, at + 12 + length, 4);
    assert_int_equal(check, masked_crc(at + 12, length));
    events[event_count++] = (field){.bytes = at + 12, .length = length};
    at += 16 + length;
  }
}

/* The value of that tag in an event's summary. */
static field value_of(field event, const char *tag) {
  const field summary = in(event, 5);
  field value;
  for (const unsigned char *at = summary.bytes; next_field(&at, summary.bytes + summary.length, &value);) {
    assert_int_equal(value.number, 1);
    if (is_text(in(value, 1), tag)) return value;
  }
  fail_msg("no value %s", tag);
  return value;
}

/* ---- tests ---- */

static int setup(void **state) {
  (void)state;
  iso_log_quiet(true);
  scratch_make(run);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  scratch_remove(run);
  free(file);
  file = NULL;
  return 0;
}

static void a_file_reads_back(void **state) {
  (void)state;
  iso_events *out;
  assert_int_equal(iso_events_open(run, 11, 1.5e9, "run: \"x\"\n", &out), ISO_OK);
  for (int64_t step = 11; step <= 20; step++)
    iso_events_step(out,
                    &(iso_step_metrics){.step = step, .loss = 8 - 0.25 * (double)step, .lr = NAN, .tokens = 1 << 20},
                    1.5e9 + (double)step);
  iso_events_close(&out);
  read_file();
  assert_int_equal(event_count, 13);
  assert_true(is_text(in(events[0], 3), "brain.Event:2"));
  assert_int_equal(in(in(events[1], 7), 1).whole, 1); /* a session starts */
  assert_int_equal(in(events[1], 2).whole, 11);
  const field config = value_of(events[2], "config");
  assert_true(is_text(in(in(config, 8), 8), "run: \"x\"\n"));
  assert_int_equal(in(in(config, 8), 1).whole, 7);
  assert_true(is_text(in(in(in(config, 9), 1), 1), "text"));
  for (int64_t step = 11; step <= 20; step++) {
    const field event = events[step - 8];
    assert_int_equal(in(event, 2).whole, step);
    assert_true(real(in(event, 1)) == 1.5e9 + (double)step);
    assert_true(real(in(value_of(event, "loss"), 2)) == 8 - 0.25 * (double)step);
    assert_true(real(in(value_of(event, "tokens"), 2)) == 1 << 20);
    field f;
    const field summary = in(event, 5);
    for (const unsigned char *at = summary.bytes; next_field(&at, summary.bytes + summary.length, &f);)
      assert_false(is_text(in(f, 1), "lr")); /* not a number: left out */
  }
}

static void histograms(void **state) {
  (void)state;
  static const iso_tensor_out tensors[] = {
      {.name = "model.embed_tokens.weight", .rank = 2, .shape = {2, 2}},
      {.name = "model.layers.0.a.weight", .rank = 1, .shape = {3}},
      {.name = "model.layers.0.b.weight", .rank = 1, .shape = {2}},
      {.name = "model.layers.10.a.weight", .rank = 1, .shape = {1}},
      {.name = "model.norm.weight", .rank = 1, .shape = {2}},
  };
  const iso_state described = {.tensors = tensors, .tensor_count = ISO_COUNT(tensors), .elements = 12};
  static const float values[12] = {0, 1, -1, 0.75f, 1e-30f, -3e3f, 2, 2, 1.5f, 5, NAN, INFINITY};
  iso_gradients *gradients;
  iso_events *out;
  assert_int_equal(iso_gradients_create(&described, &gradients), ISO_OK);
  iso_gradients_measure(gradients, values, ISO_F32);
  assert_int_equal(gradients->count, 4);
  static const char *const names[] = {"embed_tokens", "layers.0", "layers.10", "norm"};
  for (size_t i = 0; i < 4; i++) assert_string_equal(gradients->layers[i].name, names[i]);
  assert_int_equal(gradients->layers[3].not_finite, 2);
  assert_true(gradients->layers[1].squares == (double)1e-30f * (double)1e-30f + 9e6 + 4 + 4 + 2.25);

  assert_int_equal(iso_events_open(run, 1, 1, "", &out), ISO_OK);
  iso_events_gradients(out, gradients, 50, 2);
  iso_events_close(&out);
  iso_gradients_destroy(&gradients);
  read_file();
  const field histogram = in(value_of(events[3], "gradients/layers.0"), 5);
  const field limits = in(histogram, 6), counts = in(histogram, 7);
  assert_true(real(in(histogram, 1)) == -3e3 && real(in(histogram, 2)) == 2);
  assert_true(real(in(histogram, 3)) == 5);
  assert_int_equal(limits.length, counts.length);
  double before = -INFINITY, limit, count, sum = 0;
  const size_t buckets = limits.length / 8;
  for (size_t i = 0; i < buckets; i++) {
    memcpy(&limit, limits.bytes + 8 * i, 8);
    memcpy(&count, counts.bytes + 8 * i, 8);
    assert_true(limit >= before);
    for (int k = 4; k < 9; k++) /* each element lies where it is counted */
      if ((double)values[k] >= before && (double)values[k] < limit) count -= 1;
    before = limit;
    sum += count;
  }
  assert_true(before == 2 && sum == 2); /* the last limit is the largest element itself, which is there twice */
}

/* A bin's limits are those of its numbers, whatever their size and sign. */
static void bins(void **state) {
  (void)state;
  static const iso_tensor_out tensor = {.name = "w", .rank = 1, .shape = {1}};
  const iso_state one = {.tensors = &tensor, .tensor_count = 1, .elements = 1};
  iso_gradients *gradients;
  assert_int_equal(iso_gradients_create(&one, &gradients), ISO_OK);
  for (int bin = 1; bin < 2 * ISO_SPREAD_BINS; bin++) assert_true(iso_spread_limit(bin - 1) < iso_spread_limit(bin));
  uint32_t bits = 1;
  for (int i = 0; i < 20000; i++) {
    float value;
    bits = bits * 1664525u + 1013904223u;
    memcpy(&value, &bits, sizeof value);
    iso_gradients_measure(gradients, &value, ISO_F32);
    const iso_layer_spread *s = &gradients->layers[0];
    if (!isfinite(value)) {
      assert_int_equal(s->not_finite, 1);
      continue;
    }
    int bin = 0;
    while (!s->bins[bin]) bin++;
    if (bin > 0) assert_true((double)value >= iso_spread_limit(bin - 1));
    if (bin < 2 * ISO_SPREAD_BINS) assert_true((double)value <= iso_spread_limit(bin));
    assert_true((value < 0) == (bin < ISO_SPREAD_BINS) || fabsf(value) < 1e-11f);
  }
  iso_gradients_destroy(&gradients);
}

/* As many elements as it takes, of which so many are looked at. */
static void large_layers_are_sampled(void **state) {
  (void)state;
  const int64_t count = 5 * ISO_SPREAD_SAMPLES + 3;
  const iso_tensor_out tensor = {.name = "w", .rank = 1, .shape = {count}};
  const iso_state one = {.tensors = &tensor, .tensor_count = 1, .elements = count};
  iso_gradients *gradients;
  iso_bf16 *values = calloc((size_t)count, sizeof *values);
  for (int64_t i = 0; i < count; i++) values[i] = iso_bf16_from_f32(i % 2 ? 1 : -1);
  assert_int_equal(iso_gradients_create(&one, &gradients), ISO_OK);
  iso_gradients_measure(gradients, values, ISO_BF16);
  const iso_layer_spread *s = &gradients->layers[0];
  assert_true(s->count <= ISO_SPREAD_SAMPLES && s->count > ISO_SPREAD_SAMPLES / 2);
  assert_true(s->squares == (double)s->count && s->least == -1);
  iso_gradients_destroy(&gradients);
  free(values);
}

static ssize_t (*own_pwrite)(int fd, const void *data, size_t bytes, int64_t offset);
static int failures;
static ssize_t failing(int fd, const void *data, size_t bytes, int64_t offset) {
  failures++;
  errno = ENOSPC;
  return -1;
}

static void a_full_disk_is_said_once(void **state) {
  (void)state;
  iso_events *out;
  assert_int_equal(iso_events_open(run, 1, 1, "", &out), ISO_OK);
  own_pwrite = iso_os.pwrite;
  iso_os.pwrite = failing;
  for (int round = 0; round < 3; round++) {
    for (int64_t step = 1; step <= 5000; step++) iso_events_step(out, &(iso_step_metrics){.step = step}, 1);
  }
  iso_events_close(&out);
  iso_os.pwrite = own_pwrite;
  assert_int_equal(failures, 1);
  read_file(); /* what was there before is whole */
  assert_int_equal(event_count, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_file_reads_back, setup, teardown),
      cmocka_unit_test_setup_teardown(histograms, setup, teardown),
      cmocka_unit_test(bins),
      cmocka_unit_test(large_layers_are_sampled),
      cmocka_unit_test_setup_teardown(a_full_disk_is_said_once, setup, teardown),
  };
  return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}
