/* SPDX-License-Identifier: Apache-2.0
 *
 * The compiled step as a whole: same bits on any number of threads and under recorded profiling; the tree of virtual
 * workers is the documented one; a refused step changes nothing; no memory is taken after the first step.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "train/train.h"

/* ---- counting what any thread of this process allocates or maps ---- */

static atomic_bool counting;
static atomic_int allocations;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);

static void count_one(void) {
  if (atomic_load(&counting)) atomic_fetch_add(&allocations, 1);
}

void *malloc(size_t bytes) {
  count_one();
  return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
  count_one();
  return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
  count_one();
  return __libc_realloc(memory, bytes);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  count_one();
  return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset); // NOLINT
}
#define COUNTS_ALLOCATIONS 1
#else
#define COUNTS_ALLOCATIONS 0
#endif

/* ---- a small model and batch ---- */

enum { SEQUENCE = 37, BATCH = 8, VOCABULARY = 97 };
static const char model_json[] = "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
                                 "\"hidden_size\": 48, \"intermediate_size\": 100, \"num_hidden_layers\": 2, "
                                 "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 97, "
                                 "\"max_position_embeddings\": 64, \"tie_word_embeddings\": true}";
static iso_model_config model;
static int32_t tokens[BATCH * SEQUENCE], labels[BATCH * SEQUENCE], positions[BATCH * SEQUENCE],
    segments[BATCH * SEQUENCE];

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
    const int t = i % SEQUENCE, cut = 11 + i / SEQUENCE;
    positions[i] = t < cut ? t : t - cut;
    segments[i] = t < cut ? 0 : 1;
  }
  return 0;
}

static int free_batch(void **state) {
  (void)state;
  iso_model_config_fini(&model);
  return 0;
}

typedef struct setup {
  iso_device *device;
  iso_engine engine;
} setup;

static double limit_gb; /* of the engines opened next; 0: none */

static void open_engine_with(setup *s, int threads, int64_t workers, int64_t micro, iso_dtype compute, bool stream) {
  assert_int_equal(iso_device_create(threads, &s->device), ISO_OK);
  const iso_engine_options options = {.model = &model,
                                      .compute = compute,
                                      .gradient = compute,
                                      .workers = workers,
                                      .micro = micro,
                                      .micros = stream ? BATCH / workers / micro : 0,
                                      .sequence = SEQUENCE,
                                      .train = true,
                                      .segments = true,
                                      .memory_limit_gb = limit_gb};
  assert_int_equal(iso_engine_init(s->device, &options, &s->engine), ISO_OK);
  assert_int_equal(stream && workers == 1 && micro == BATCH, s->engine.flat.gradients == NULL);
  iso_model_init(iso_engine_graph(&s->engine), 11, s->engine.flat.master, NULL);
  iso_flat_refresh(&s->engine.flat, s->device);
}

static void open_engine(setup *s, int threads, int64_t workers, int64_t micro, iso_dtype compute) {
  open_engine_with(s, threads, workers, micro, compute, false);
}

static void close_engine(setup *s) {
  iso_engine_fini(&s->engine);
  iso_device_destroy(&s->device);
}

static iso_step make_step(int64_t workers, int64_t micro, int64_t t) {
  static const int64_t decay[2] = {0, 1000};
  iso_step step = {
      .inputs = {tokens, labels, positions, segments}, .workers = workers, .micros = BATCH / workers / micro};
  for (int i = 0; i < BATCH * SEQUENCE; i++) step.scored += labels[i] != -100;
  step.lr = 0.01f;
  step.beta1 = 0.9f;
  step.beta2 = 0.95f;
  step.eps = 1e-8f;
  step.weight_decay = 0.1f;
  step.clip_norm = 0.3f;
  step.bias1 = (float)(1 - iso_pow_int(0.9, t));
  step.bias2 = (float)(1 - iso_pow_int(0.95, t));
  step.decay_ranges = decay;
  step.decay_count = 1;
  return step;
}

static void digest(const iso_flat *flat, char hex[65]) {
  const size_t bytes = (size_t)flat->options.elements * sizeof(float);
  iso_sha256 *hash = iso_sha256_create();
  iso_sha256_update(hash, flat->master, bytes);
  iso_sha256_update(hash, flat->moment1, bytes);
  iso_sha256_update(hash, flat->moment2, bytes);
  iso_sha256_finish(&hash, hex);
}

static void train_digest_with(int threads, int64_t workers, int64_t micro, iso_dtype compute, bool profile, bool stream,
                              char hex[65], double *loss) {
  setup s;
  open_engine_with(&s, threads, workers, micro, compute, stream);
  iso_exec_profile(s.engine.exec, profile);
  for (int t = 1; t <= 4; t++) {
    iso_step step = make_step(workers, micro, t);
    iso_exec_step(s.engine.exec, &step);
    assert_false(step.refused);
    assert_true(step.clip < 1);
    *loss = step.loss_sum / (double)step.scored;
  }
  digest(&s.engine.flat, hex);
  close_engine(&s);
}

static void train_digest(int threads, int64_t workers, int64_t micro, iso_dtype compute, bool profile, char hex[65],
                         double *loss) {
  train_digest_with(threads, workers, micro, compute, profile, false, hex, loss);
}

/* Gradients rounded as they are complete: the bits of those that are kept to the end, squares and norm included. */
static void test_streamed_gradients(void **state) {
  (void)state;
  const iso_model_config small = model;
  for (int wide = 0; wide < 2; wide++) { /* the second model has parameters with whole norm blocks */
    if (wide) model.vocabulary = 3000;
    for (int type = 0; type < 2; type++) {
      char kept[65], streamed[65];
      double loss_kept, loss_streamed;
      train_digest_with(2, 1, BATCH, type ? ISO_BF16 : ISO_F32, false, false, kept, &loss_kept);
      for (int threads = 1; threads <= 3; threads++) {
        train_digest_with(threads, 1, BATCH, type ? ISO_BF16 : ISO_F32, threads == 3, true, streamed, &loss_streamed);
        assert_string_equal(kept, streamed);
        assert_true(loss_kept == loss_streamed);
      }
    }
  }
  model = small;
}

/* Activations made again have the bits of those that are kept: four steps under less and less memory. */
static void test_recompute(void **state) {
  (void)state;
  static const char *const jsons[2] = {
      "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 96, "
      "\"intermediate_size\": 300, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
      "\"vocab_size\": 97, \"max_position_embeddings\": 64}",
      "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"n_embd\": 96, \"n_layer\": 4, "
      "\"n_head\": 4, \"n_positions\": 64, \"vocab_size\": 97}"};
  const iso_model_config small = model;
  for (int variant = 0; variant < 4; variant++) {
    const char *text = jsons[variant & 1];
    const iso_dtype compute = (variant & 2) != 0 ? ISO_BF16 : ISO_F32;
    iso_json *json;
    assert_int_equal(iso_json_parse(text, strlen(text), "test", &json), ISO_OK);
    assert_int_equal(iso_model_config_parse(json, "test", &model), ISO_OK);
    iso_json_destroy(&json);
    char kept[65], again[65];
    double loss_kept, loss_again;
    train_digest(2, 1, BATCH, compute, false, kept, &loss_kept);
    setup s;
    open_engine(&s, 2, 1, BATCH, compute);
    const double total = (double)iso_engine_bytes(&s.engine), arena = (double)s.engine.arena_bytes;
    int instructions = s.engine.program->instruction_count;
    close_engine(&s);
    for (int part = 1; part <= 3; part++) {
      limit_gb = (total - arena * 0.14 * part) * 1e-9;
      open_engine(&s, 2, 1, BATCH, compute);
      assert_true((double)iso_engine_bytes(&s.engine) <= limit_gb * 1e9);
      assert_true(s.engine.program->instruction_count > instructions);
      instructions = s.engine.program->instruction_count;
      close_engine(&s);
      train_digest(2, 1, BATCH, compute, false, again, &loss_again);
      assert_string_equal(kept, again);
      assert_true(loss_kept == loss_again);
    }
    limit_gb = 0;
    iso_model_config_fini(&model);
  }
  model = small;
}

static void test_threads(void **state) {
  (void)state;
  static const struct {
    int64_t workers, micro;
    iso_dtype compute;
  } rows[] = {{1, 8, ISO_F32}, {1, 8, ISO_BF16}, {1, 2, ISO_BF16}, {4, 1, ISO_BF16}, {8, 1, ISO_F32}};
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    char one[65], other[65];
    double loss_one, loss_other;
    train_digest(1, rows[i].workers, rows[i].micro, rows[i].compute, false, one, &loss_one);
    for (int threads = 2; threads <= 5; threads++) {
      train_digest(threads, rows[i].workers, rows[i].micro, rows[i].compute, threads == 3, other, &loss_other);
      assert_string_equal(one, other);
      assert_true(loss_one == loss_other);
    }
  }
}

/* The root of W = 4 is ((0 + 1) + (2 + 3)) in float32, each leaf being what one worker alone computes. */
static void test_tree(void **state) {
  (void)state;
  setup s;
  open_engine(&s, 2, 4, 2, ISO_BF16);
  const int64_t elements = s.engine.flat.options.elements;
  iso_step step = make_step(4, 2, 1);
  iso_exec_gradients(s.engine.exec, &step);
  float *root = malloc((size_t)elements * sizeof(float)), *leaves = malloc(4 * (size_t)elements * sizeof(float));
  memcpy(root, s.engine.flat.gradients, (size_t)elements * sizeof(float));
  close_engine(&s);
  open_engine(&s, 1, 1, 2, ISO_BF16);
  double losses[4];
  for (int leaf = 0; leaf < 4; leaf++) {
    iso_step one = make_step(1, 2, 1);
    const int64_t at = leaf * 2 * SEQUENCE;
    one.inputs = (iso_inputs){tokens + at, labels + at, positions + at, segments + at};
    one.micros = 1;
    iso_exec_gradients(s.engine.exec, &one);
    losses[leaf] = one.loss_sum;
    memcpy(leaves + leaf * elements, s.engine.flat.gradients, (size_t)elements * sizeof(float));
  }
  close_engine(&s);
  for (int64_t i = 0; i < elements; i++) {
    const float left = leaves[i] + leaves[elements + i], right = leaves[2 * elements + i] + leaves[3 * elements + i];
    const float expected = left + right;
    assert_memory_equal(&root[i], &expected, sizeof expected);
  }
  assert_true(step.loss_sum == (losses[0] + losses[1]) + (losses[2] + losses[3]));
  free(root);
  free(leaves);
}

static void test_refused(void **state) {
  (void)state;
  setup s;
  open_engine(&s, 2, 1, 8, ISO_F32);
  iso_step step = make_step(1, 8, 1);
  iso_exec_step(s.engine.exec, &step);
  assert_false(step.refused);
  char before[65], after[65];
  const float kept = s.engine.flat.master[5];
  s.engine.flat.master[5] = INFINITY;
  iso_flat_refresh(&s.engine.flat, s.device);
  digest(&s.engine.flat, before);
  step = make_step(1, 8, 2);
  iso_exec_step(s.engine.exec, &step);
  assert_true(step.refused);
  digest(&s.engine.flat, after);
  assert_string_equal(before, after);
  s.engine.flat.master[5] = kept;
  step = make_step(1, 8, 2);
  step.scored = 0;
  iso_exec_step(s.engine.exec, &step);
  assert_true(step.refused);
  close_engine(&s);
}

static void test_no_memory_after_first_step(void **state) {
  (void)state;
  if (!COUNTS_ALLOCATIONS) skip();
  setup s;
  open_engine(&s, 2, 2, 2, ISO_BF16);
  iso_step step = make_step(2, 2, 1);
  iso_exec_step(s.engine.exec, &step);
  atomic_store(&counting, true);
  void *volatile probe = malloc(10);
  atomic_store(&counting, false);
  free(probe);
  assert_int_equal(atomic_exchange(&allocations, 0), 1); /* the counter counts */
  atomic_store(&counting, true);
  for (int t = 2; t <= 5; t++) {
    step = make_step(2, 2, t);
    iso_exec_step(s.engine.exec, &step);
  }
  atomic_store(&counting, false);
  assert_int_equal(atomic_load(&allocations), 0);
  close_engine(&s);
}

static void test_memory_limit(void **state) {
  (void)state;
  iso_device *device;
  assert_int_equal(iso_device_create(1, &device), ISO_OK);
  const iso_engine_options options = {.model = &model,
                                      .compute = ISO_F32,
                                      .gradient = ISO_F32,
                                      .workers = 1,
                                      .micro = 8,
                                      .sequence = SEQUENCE,
                                      .train = true,
                                      .memory_limit_gb = 1e-4};
  iso_engine engine;
  iso_log_quiet(true);
  assert_int_equal(iso_engine_init(device, &options, &engine), ISO_ERR_MEMORY);
  assert_non_null(strstr(iso_last_error(), "need"));
  iso_engine_options kept = options; /* what recompute would make fit is refused when it is off */
  kept.memory_limit_gb = 0;
  assert_int_equal(iso_engine_init(device, &kept, &engine), ISO_OK);
  kept.memory_limit_gb = ((double)iso_engine_bytes(&engine) - 0.1 * (double)engine.arena_bytes) * 1e-9;
  iso_engine_fini(&engine);
  kept.keep_activations = true;
  assert_int_equal(iso_engine_init(device, &kept, &engine), ISO_ERR_MEMORY);
  assert_non_null(strstr(iso_last_error(), "memory.recompute is off"));
  kept.keep_activations = false;
  assert_int_equal(iso_engine_init(device, &kept, &engine), ISO_OK);
  iso_engine_fini(&engine);
  iso_log_quiet(false);
  iso_device_destroy(&device);
}

/* Planned memory of whole runs stays where it was brought. */
static void test_planned_memory(void **state) {
  (void)state;
  static const struct {
    const char *name;
    int64_t micro, micros, sequence;
    double most; /* bytes */
  } rows[] = {{"gpt2-124m", 4, 1, 256, 2.68e9},
              {"gpt2-124m", 2, 4, 1024, 3.40e9},
              {"llama-110m", 4, 1, 256, 2.33e9},
              {"llama-110m", 2, 4, 1024, 3.10e9}};
  iso_device *device;
  assert_int_equal(iso_device_create(2, &device), ISO_OK);
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_model_config preset;
    assert_int_equal(iso_model_config_preset(rows[i].name, &preset), ISO_OK);
    const iso_engine_options options = {.model = &preset,
                                        .compute = ISO_BF16,
                                        .gradient = ISO_BF16,
                                        .workers = 1,
                                        .micro = rows[i].micro,
                                        .micros = rows[i].micros,
                                        .sequence = rows[i].sequence,
                                        .train = true,
                                        .keep_activations = true};
    iso_engine engine;
    assert_int_equal(iso_engine_compile(device, &options, &engine), ISO_OK);
    printf("%s, %lld x %lld tokens: %.3f GB\n", rows[i].name, (long long)(rows[i].micro * rows[i].micros),
           (long long)rows[i].sequence, (double)iso_engine_bytes(&engine) * 1e-9);
    assert_true((double)iso_engine_bytes(&engine) <= rows[i].most);
    iso_engine_fini(&engine);
    iso_model_config_fini(&preset);
  }
  iso_device_destroy(&device);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_threads),      cmocka_unit_test(test_streamed_gradients),
      cmocka_unit_test(test_recompute),    cmocka_unit_test(test_tree),
      cmocka_unit_test(test_refused),      cmocka_unit_test(test_no_memory_after_first_step),
      cmocka_unit_test(test_memory_limit), cmocka_unit_test(test_planned_memory),
  };
  return cmocka_run_group_tests(tests, make_batch, free_batch);
}
