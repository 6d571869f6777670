/* SPDX-License-Identifier: Apache-2.0
 *
 * A step whose gradient is handed over in parts, as it becomes final: the parts are all of it, once, in the bits that
 * the optimizer consumes, and the step's bits are those of one whose update rounds all.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

enum { SEQUENCE = 24, BATCH = 8, VOCABULARY = 1009, STEPS = 3 };
static const char model_json[] = "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
                                 "\"hidden_size\": 96, \"intermediate_size\": 260, \"num_hidden_layers\": 4, "
                                 "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 1009, "
                                 "\"max_position_embeddings\": 64, \"tie_word_embeddings\": true}";
static iso_model_config model;
static int32_t tokens[BATCH * SEQUENCE], labels[BATCH * SEQUENCE], positions[BATCH * SEQUENCE];

static int make_batch(void **state) {
  (void)state;
  iso_json *json;
  if (iso_json_parse(model_json, strlen(model_json), "test", &json) != ISO_OK) return 1;
  if (iso_model_config_parse(json, "test", &model) != ISO_OK) return 1;
  iso_json_destroy(&json);
  for (int i = 0; i < BATCH * SEQUENCE; i++) {
    uint32_t random[4];
    iso_rng(1, ISO_RNG_TEST, 0, (uint64_t)i, random);
    tokens[i] = (int32_t)(random[0] % VOCABULARY);
    labels[i] = random[1] % 7 == 0 ? -100 : (int32_t)(random[2] % VOCABULARY);
    positions[i] = i % SEQUENCE;
  }
  return 0;
}

static int free_batch(void **state) {
  (void)state;
  iso_model_config_fini(&model);
  return 0;
}

typedef struct trial {
  int threads;
  int64_t workers, micro;
  iso_dtype type;
  bool log;
} trial;

/* What was handed over, as it was then. */
typedef struct received {
  const iso_flat *flat;
  char *copy;
  int64_t elements, ranges;
} received;

static void receive(void *context, int64_t begin, int64_t end) {
  received *r = context;
  const size_t size = iso_dtype_size(r->flat->options.gradient);
  assert_true(begin % ISO_NORM_BLOCK == 0 && begin < end && end <= r->flat->options.elements);
  memcpy(r->copy + (size_t)begin * size, (char *)r->flat->reduced + (size_t)begin * size, (size_t)(end - begin) * size);
  r->elements += end - begin;
  r->ranges++;
}

typedef struct outcome {
  iso_device *device;
  iso_engine engine;
  iso_step step;
} outcome;

static iso_step make_step(const trial *t, int64_t number) {
  static const int64_t decay[2] = {0, 100000};
  iso_step step = {.inputs = {tokens, labels, positions, NULL},
                   .workers = t->workers,
                   .micros = BATCH / t->workers / t->micro,
                   .lr = 0.01f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .weight_decay = 0.1f,
                   .clip_norm = 0.3f,
                   .bias1 = (float)(1 - iso_pow_int(0.9, number)),
                   .bias2 = (float)(1 - iso_pow_int(0.95, number)),
                   .decay_ranges = decay,
                   .decay_count = 1};
  for (int i = 0; i < BATCH * SEQUENCE; i++) step.scored += labels[i] != -100;
  return step;
}

static void take_steps(const trial *t, outcome *out) {
  assert_int_equal(iso_device_create(t->threads, &out->device), ISO_OK);
  const iso_engine_options options = {.model = &model,
                                      .compute = t->type,
                                      .gradient = t->type,
                                      .workers = t->workers,
                                      .micro = t->micro,
                                      .micros = BATCH / t->workers / t->micro,
                                      .sequence = SEQUENCE,
                                      .log = t->log,
                                      .train = true};
  iso_engine *engine = &out->engine;
  assert_int_equal(iso_engine_init(out->device, &options, engine), ISO_OK);
  iso_model_init(iso_engine_graph(engine), 11, engine->flat.master, NULL);
  iso_flat_refresh(&engine->flat, out->device);
  const size_t bytes = (size_t)engine->flat.options.elements * iso_dtype_size(t->type);
  received r = {.flat = &engine->flat, .copy = malloc(bytes)};
  iso_exec_handover_set(engine->exec, receive, &r);
  for (int64_t number = 1; number <= STEPS; number++) {
    r.elements = r.ranges = 0;
    memset(r.copy, 0xab, bytes);
    iso_flat_reduction_use(&engine->flat, number);
    out->step = make_step(t, number);
    iso_exec_step(engine->exec, &out->step);
    assert_false(out->step.refused);
    const bool streamed = t->workers == 1 && t->micro == BATCH;
    if (!t->log && !streamed) {
      assert_int_equal(r.ranges, 0);
      continue;
    }
    assert_true(r.ranges >= 4);
    assert_int_equal(r.elements, engine->flat.options.elements);
    assert_memory_equal(r.copy, engine->flat.reduced, bytes);
  }
  free(r.copy);
}

static void close_outcome(outcome *o) {
  iso_engine_fini(&o->engine);
  iso_device_destroy(&o->device);
}

static void bits_are_those_of_the_update(void **state) {
  (void)state;
  const struct { int64_t workers, micro; } shapes[] = {{1, BATCH}, {1, 4}, {1, 2}, {2, 2}, {4, 1}, {8, 1}};
  for (size_t i = 0; i < ISO_COUNT(shapes); i++) {
    for (int f32 = 0; f32 < 2; f32++) {
      const iso_dtype type = f32 ? ISO_F32 : ISO_BF16;
      trial t = {2, shapes[i].workers, shapes[i].micro, type, false};
      outcome plain, handed;
      take_steps(&t, &plain);
      t.log = true;
      t.threads = 1 + (int)i % 3;
      take_steps(&t, &handed);
      const iso_flat *a = &plain.engine.flat, *b = &handed.engine.flat;
      const size_t bytes = (size_t)a->options.elements * sizeof(float);
      assert_true(plain.step.norm == handed.step.norm && plain.step.loss_sum == handed.step.loss_sum);
      assert_memory_equal(a->master, b->master, bytes);
      assert_memory_equal(a->moment1, b->moment1, bytes);
      assert_memory_equal(a->moment2, b->moment2, bytes);
      assert_memory_equal(a->reduced, b->reduced, (size_t)a->options.elements * iso_dtype_size(type));
      close_outcome(&plain);
      close_outcome(&handed);
    }
  }
}

/* Most of the gradient is handed over well before the backward pass ends. */
static void parts_are_final_early(void **state) {
  (void)state;
  const trial t = {1, 1, 2, ISO_BF16, true};
  outcome o;
  take_steps(&t, &o);
  const iso_program *program = o.engine.program;
  iso_handover *list;
  int count;
  assert_int_equal(iso_handovers_find(program, t.workers, &list, &count), ISO_OK);
  const int begin = program->phase_begin[ISO_PHASE_MICRO], end = program->phase_begin[ISO_PHASE_MICRO + 1];
  int64_t early = 0, all = 0;
  for (int i = 0; i < count; i++) {
    assert_true(list[i].after >= begin && list[i].after < end);
    assert_true(i == 0 || list[i].after >= list[i - 1].after);
    all += list[i].end - list[i].begin;
    if (list[i].after < end - (end - begin) / 8) early += list[i].end - list[i].begin;
  }
  assert_int_equal(all, program->graph->flat_elements);
  assert_true(early * 2 > all);
  free(list);
  close_outcome(&o);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bits_are_those_of_the_update),
      cmocka_unit_test(parts_are_final_early),
  };
  return cmocka_run_group_tests(tests, make_batch, free_batch);
}
