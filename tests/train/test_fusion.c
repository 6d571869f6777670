/* SPDX-License-Identifier: Apache-2.0
 *
 * Fusion on whole models: what promises the unfused bits has them over several steps, in both types, on any number of
 * threads, with micro-batches; joint products change the order of one sum only, so losses of the first step and weight
 * gradients above it are equal and everything else is close.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

enum { SEQUENCE = 21, BATCH = 4, ROWS = BATCH * SEQUENCE, VOCABULARY = 97 };

#define SIZES                                                                                                          \
  "\"hidden_size\": 48, \"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "             \
  "\"num_key_value_heads\": 2, \"vocab_size\": 97, \"max_position_embeddings\": 64, \"tie_word_embeddings\": false"
static const struct {
  const char *name, *json;
  int joint, places;      /* places of joint_linear: fused, all */
  int swiglu, rope, gelu; /* places of products with row kernels, all fused */
} models[] = {
    {"llama", "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", " SIZES "}", 4, 4, 2, 2, 0},
    {"qwen2", "{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\", " SIZES "}", 2, 4, 2, 4, 0},
    {"qwen3", "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"head_dim\": 12, " SIZES "}", 4,
     4, 2, 2, 0},
    {"gpt2",
     "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"n_embd\": 48, \"n_layer\": 2, \"n_head\": "
     "4, \"vocab_size\": 97, \"n_positions\": 64}",
     0, 0, 0, 0, 2},
};

static int32_t tokens[ROWS], labels[ROWS], positions[ROWS], segments[ROWS];

static int make_batch(void **state) {
  (void)state;
  for (int i = 0; i < ROWS; i++) {
    uint32_t random[4];
    iso_rng(1, ISO_RNG_TEST, 0, (uint64_t)i, random);
    tokens[i] = (int32_t)(random[0] % VOCABULARY);
    labels[i] = random[1] % 7 == 0 ? -100 : (int32_t)(random[2] % VOCABULARY);
    positions[i] = i % SEQUENCE;
  }
  return 0;
}

/* In `off`: measure what may be measured. */
#define MEASURED (1u << 31)

static unsigned measured_rows(void) {
  unsigned rows = 0;
  for (int row = 0; row < ISO_FUSION_COUNT; row++) rows |= (unsigned)iso_fusion_keeps_bits(row) << row;
  return rows;
}

typedef struct run {
  iso_model_config model;
  iso_device *device;
  iso_engine engine;
} run;

static void open_run(run *r, const char *json, int threads, int64_t micro, iso_dtype compute, unsigned off) {
  iso_json *parsed;
  assert_int_equal(iso_json_parse(json, strlen(json), "test", &parsed), ISO_OK);
  assert_int_equal(iso_model_config_parse(parsed, "test", &r->model), ISO_OK);
  iso_json_destroy(&parsed);
  assert_int_equal(iso_device_create(threads, &r->device), ISO_OK);
  const iso_engine_options options = {.model = &r->model,
                                      .compute = compute,
                                      .gradient = compute,
                                      .workers = 1,
                                      .micro = micro,
                                      .micros = BATCH / micro,
                                      .sequence = SEQUENCE,
                                      .train = true,
                                      .segments = true,
                                      .fusion = {off, off & MEASURED ? measured_rows() : 0}};
  assert_int_equal(iso_engine_init(r->device, &options, &r->engine), ISO_OK);
  iso_model_init(iso_engine_graph(&r->engine), 11, r->engine.flat.master, NULL);
  iso_flat_refresh(&r->engine.flat, r->device);
}

static void close_run(run *r) {
  iso_engine_fini(&r->engine);
  iso_device_destroy(&r->device);
  iso_model_config_fini(&r->model);
}

static iso_step make_step(int64_t micro, int64_t t) {
  iso_step step = {.inputs = {tokens, labels, positions, segments}, .workers = 1, .micros = BATCH / micro};
  for (int i = 0; i < ROWS; i++) step.scored += labels[i] != -100;
  step.lr = 0.01f;
  step.beta1 = 0.9f;
  step.beta2 = 0.95f;
  step.eps = 1e-8f;
  step.clip_norm = 0.3f;
  step.bias1 = (float)(1 - iso_pow_int(0.9, t));
  step.bias2 = (float)(1 - iso_pow_int(0.95, t));
  return step;
}

/* Four steps; the SHA-256 of the whole state, the losses of the steps. */
static void train(const char *json, int threads, int64_t micro, iso_dtype compute, unsigned off, char hex[65],
                  double losses[4]) {
  run r;
  open_run(&r, json, threads, micro, compute, off);
  for (int t = 0; t < 4; t++) {
    iso_step step = make_step(micro, t + 1);
    iso_exec_step(r.engine.exec, &step);
    assert_false(step.refused);
    losses[t] = step.loss_sum;
  }
  const iso_flat *flat = &r.engine.flat;
  const size_t bytes = (size_t)flat->options.elements * sizeof(float);
  iso_sha256 *hash = iso_sha256_create();
  iso_sha256_update(hash, flat->master, bytes);
  iso_sha256_update(hash, flat->moment1, bytes);
  iso_sha256_update(hash, flat->moment2, bytes);
  iso_sha256_finish(&hash, hex);
  close_run(&r);
}

static void test_same_bits(void **state) {
  (void)state;
  const unsigned joint = 1u << ISO_FUSION_JOINT;
  for (size_t m = 0; m < ISO_COUNT(models); m++)
    for (int which = 0; which < 4; which++) {
      const iso_dtype compute = which & 1 ? ISO_BF16 : ISO_F32;
      const int64_t micro = which & 2 ? 2 : BATCH;
      char unfused[65], fused[65];
      double losses[2][4];
      for (unsigned kept = 0; kept < 2; kept++) { /* with separate products, then with joint ones */
        const unsigned off = kept ? 0 : joint;
        train(models[m].json, 1, micro, compute, off | (ISO_FUSION_ALL & ~joint), unfused, losses[0]);
        for (unsigned single = 0; single <= ISO_FUSION_COUNT; single++) {
          unsigned others = single == ISO_FUSION_COUNT ? 0 : ISO_FUSION_ALL & ~joint & ~(1u << single);
          train(models[m].json, 2, micro, compute, off | others, fused, losses[1]);
          assert_string_equal(unfused, fused);
          assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
        }
        train(models[m].json, 2, micro, compute, off | MEASURED, fused, losses[1]);
        assert_string_equal(unfused, fused);
      }
    }
}

/* Products with row kernels on every tier, with heads that threads and packed panels would cut. */
static void test_tiers(void **state) {
  (void)state;
  const char *before = getenv("ISOTACH_CPU");
  char *kept = before ? strdup(before) : NULL;
  const unsigned joint = 1u << ISO_FUSION_JOINT;
  for (int tier = 0; tier <= (int)iso_cpu_best_tier(); tier++) {
    assert_int_equal(setenv("ISOTACH_CPU", iso_tier_name((iso_tier)tier), 1), 0);
    for (size_t m = 0; m < ISO_COUNT(models); m++)
      for (int type = 0; type < 2; type++) {
        char unfused[65], fused[65];
        double losses[2][4];
        train(models[m].json, 1, BATCH, type ? ISO_BF16 : ISO_F32, ISO_FUSION_ALL & ~joint, unfused, losses[0]);
        for (int threads = 1; threads <= 5; threads += threads < 3 ? 1 : 2) {
          train(models[m].json, threads, BATCH, type ? ISO_BF16 : ISO_F32, 0, fused, losses[1]);
          assert_string_equal(unfused, fused);
        }
      }
  }
  assert_int_equal(kept ? setenv("ISOTACH_CPU", kept, 1) : unsetenv("ISOTACH_CPU"), 0);
  free(kept);
}

static const iso_parameter *parameter(const iso_graph *graph, const char *name) {
  for (int i = 0; i < graph->parameter_count; i++)
    if (strcmp(graph->parameters[i].name, name) == 0) return &graph->parameters[i];
  fail_msg("no parameter %s", name);
  return NULL;
}

/* The gradients' float32 sums of one step over two micro-batches. */
static float *gradients(run *r, double *loss) {
  iso_step step = make_step(2, 1);
  iso_exec_gradients(r->engine.exec, &step);
  const size_t bytes = (size_t)r->engine.flat.options.elements * sizeof(float);
  float *copy = malloc(bytes);
  assert_non_null(copy);
  memcpy(copy, r->engine.flat.gradients, bytes);
  *loss = step.loss_sum;
  return copy;
}

static void test_joint_products(void **state) {
  (void)state;
  for (size_t m = 0; m < ISO_COUNT(models); m++)
    for (int type = 0; type < 2; type++) {
      const iso_dtype compute = type ? ISO_BF16 : ISO_F32;
      run fused, unfused;
      double loss[2];
      open_run(&fused, models[m].json, 2, 2, compute, 0);
      open_run(&unfused, models[m].json, 2, 2, compute, ISO_FUSION_ALL);
      const iso_graph *graph = iso_engine_graph(&fused.engine);
      assert_int_equal(iso_fusion_places(graph, ISO_FUSION_JOINT, true), models[m].joint);
      assert_int_equal(iso_fusion_places(graph, ISO_FUSION_JOINT, false), models[m].places);
      assert_int_equal(iso_fusion_places(iso_engine_graph(&unfused.engine), ISO_FUSION_JOINT, true), 0);
      float *one = gradients(&fused, &loss[0]), *other = gradients(&unfused, &loss[1]);
      assert_true(loss[0] == loss[1]);
      double difference = 0, size = 0;
      for (int64_t i = 0; i < graph->flat_elements; i++) {
        difference += pow((double)one[i] - (double)other[i], 2);
        size += pow((double)other[i], 2);
      }
      assert_true(sqrt(difference) <= (type ? 1e-2 : 1e-6) * sqrt(size));
      if (models[m].joint > 0) { /* the dy of the last gate and up has met no joint dx yet */
        static const char *const above[] = {"model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight",
                                            "model.layers.1.mlp.down_proj.weight"};
        for (size_t i = 0; i < ISO_COUNT(above); i++) {
          const iso_parameter *p = parameter(graph, above[i]);
          assert_memory_equal(one + p->offset, other + p->offset, (size_t)p->elements * sizeof(float));
        }
      } else {
        assert_memory_equal(one, other, (size_t)graph->flat_elements * sizeof(float));
      }
      free(one);
      free(other);
      close_run(&fused);
      close_run(&unfused);
    }
}

/* Fusion costs no memory (but for workspace of wider products), and every norm but the first of a Llama is fused. */
static void test_plan(void **state) {
  (void)state;
  for (size_t m = 0; m < ISO_COUNT(models); m++) {
    run fused, unfused;
    open_run(&fused, models[m].json, 2, BATCH, ISO_BF16, 0);
    open_run(&unfused, models[m].json, 2, BATCH, ISO_BF16, ISO_FUSION_ALL);
    const iso_program *with = fused.engine.program, *without = unfused.engine.program;
    if ((double)with->arena_bytes > 1.03 * (double)without->arena_bytes)
      fail_msg("%s: %lld bytes fused, %lld unfused", models[m].name, (long long)with->arena_bytes,
               (long long)without->arena_bytes);
    assert_true(with->instruction_count < without->instruction_count);
    int barriers[2] = {0, 0};
    for (int i = 0; i < with->instruction_count; i++) barriers[0] += with->instructions[i].barrier;
    for (int i = 0; i < without->instruction_count; i++) barriers[1] += without->instructions[i].barrier;
    print_message("%s: %d instructions and %d barriers, unfused %d and %d\n", models[m].name, with->instruction_count,
                  barriers[0], without->instruction_count, barriers[1]);
    assert_true(barriers[0] < barriers[1]);
    assert_int_equal(iso_fusion_places(with->graph, ISO_FUSION_ADD_NORM, true), models[m].places ? 4 : 5);
    const int rows[3][2] = {
        {ISO_FUSION_SWIGLU, models[m].swiglu}, {ISO_FUSION_ROPE, models[m].rope}, {ISO_FUSION_GELU, models[m].gelu}};
    for (int i = 0; i < 3; i++)
      for (int fused_only = 0; fused_only < 2; fused_only++)
        assert_int_equal(iso_fusion_places(with->graph, rows[i][0], fused_only), rows[i][1]);
    iso_string text = {0};
    iso_fusion_print(with->graph, &text);
    assert_non_null(strstr(text.data, "norm_grad_add   a norm's gradient"));
    if (strcmp(models[m].name, "qwen2") == 0)
      assert_non_null(strstr(text.data, "not at model.layers.0.self_attn.q_proj.weight: "
                                        "model.layers.0.self_attn.q_proj.weight has a bias"));
    iso_string_fini(&text);
    iso_fusion_print(without->graph, &text);
    assert_non_null(strstr(text.data, ": switched off\n"));
    iso_string_fini(&text);
    close_run(&fused);
    close_run(&unfused);
  }
}

static iso_instruction *find(const iso_program *program, iso_op op) {
  for (int i = 0; i < program->instruction_count; i++)
    if (program->instructions[i].op == op) return &program->instructions[i];
  fail_msg("no %s", iso_op_get(op)->text);
  return NULL;
}

/* The kernel reads and writes the parts as one matrix, so the checker lets no part lie elsewhere, flat or streamed. */
static void test_torn_joint(void **state) {
  (void)state;
  static const struct {
    iso_op op;
    int model;
    unsigned off;
  } rows[] = {{ISO_OP_LINEAR_JOINT, 0, ISO_FUSION_ALL & ~(1u << ISO_FUSION_JOINT)},
              {ISO_OP_LINEAR_JOINT_DX, 0, 0},
              {ISO_OP_LINEAR_JOINT_DW, 0, 0},
              {ISO_OP_LINEAR_JOINT_SWIGLU, 0, 0},
              {ISO_OP_LINEAR_JOINT_ROPE, 0, 0},
              {ISO_OP_LINEAR_JOINT_NORM_ROPE, 2, 0}};
  for (int64_t micro = 2; micro <= BATCH; micro += BATCH - 2) {
    for (size_t i = 0; i < ISO_COUNT(rows); i++) {
      run r;
      open_run(&r, models[rows[i].model].json, 2, micro, ISO_BF16, rows[i].off);
      assert_int_equal(iso_program_check(r.engine.program), ISO_OK);
      iso_instruction *joint = find(r.engine.program, rows[i].op), whole = *joint;
      iso_operand *parts = rows[i].op == ISO_OP_LINEAR_JOINT_DW ? joint->outputs : joint->inputs + 1;
      parts[1].offset += 64;
      iso_log_quiet(true);
      assert_int_equal(iso_program_check(r.engine.program), ISO_ERR_CHECK);
      *joint = whole;
      parts[0].ld++;
      assert_int_equal(iso_program_check(r.engine.program), ISO_ERR_CHECK);
      iso_log_quiet(false);
      *joint = whole;
      assert_int_equal(iso_program_check(r.engine.program), ISO_OK);
      close_run(&r);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_same_bits), cmocka_unit_test(test_tiers),      cmocka_unit_test(test_joint_products),
      cmocka_unit_test(test_plan),      cmocka_unit_test(test_torn_joint),
  };
  return cmocka_run_group_tests(tests, make_batch, NULL);
}
