/* SPDX-License-Identifier: Apache-2.0
 *
 * Graphs: every mode of every architecture verifies, has the inputs and outputs that model.h states and the same
 * parameters; counts are those of the published models.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const cases[] = {
    "llama-gqa", "llama-bias-linear-rope", "llama-tied-llama3rope", "mistral-window", "qwen2", "qwen3", "gpt2"};

static int quiet(void **state) {
  iso_log_quiet(true);
  return 0;
}

static void read_case(const char *name, iso_model_config *config) {
  char folder[256];
  snprintf(folder, sizeof folder, "%s/golden/%s/model", ISO_TEST_DATA, name);
  assert_int_equal(iso_model_config_read(folder, config), ISO_OK);
}

static iso_status parse(const char *text, iso_model_config *config) {
  iso_json *json;
  assert_int_equal(iso_json_parse(text, strlen(text), "t.json", &json), ISO_OK);
  iso_status status = iso_model_config_parse(json, "t.json", config);
  iso_json_destroy(&json);
  return status;
}

static const iso_parameter *find_parameter(const iso_graph *graph, const char *name) {
  for (int i = 0; i < graph->parameter_count; i++)
    if (strcmp(graph->parameters[i].name, name) == 0) return &graph->parameters[i];
  return NULL;
}

static void check_tensor(const iso_graph *graph, const char *name, iso_space space, int64_t rows, int64_t columns) {
  iso_id id = iso_graph_find(graph, name);
  if (rows == 0) {
    assert_int_equal(id, -1);
    return;
  }
  assert_true(id >= 0);
  const iso_tensor *t = &graph->tensors[id];
  assert_int_equal(t->space, space);
  assert_int_equal(t->dtype, space == ISO_SPACE_INPUT ? ISO_I32 : ISO_F32);
  assert_int_equal(t->rank, columns ? 2 : 1);
  assert_int_equal(t->shape[0], rows);
  if (columns) assert_int_equal(t->shape[1], columns);
}

static int count_nodes(const iso_graph *graph, iso_op op) {
  int count = 0;
  for (int i = 0; i < graph->node_count; i++) count += graph->nodes[i].op == op;
  return count;
}

static void every_mode_verifies(void **state) {
  for (size_t i = 0; i < ISO_COUNT(cases); i++) {
    iso_model_config c;
    read_case(cases[i], &c);
    for (int form = 0; form < 5; form++) {
      const iso_build_options options = {.mode = form < 2   ? ISO_BUILD_LOSS
                                                 : form < 4 ? ISO_BUILD_LOGITS
                                                            : ISO_BUILD_CACHED,
                                         .batch = form < 4 ? 3 : 1,
                                         .sequence = form < 4 ? 17 : 5,
                                         .cache = form < 4 ? 0 : 40,
                                         .segments = form % 2 == 1};
      iso_arena *arena = iso_arena_create();
      iso_graph *graph = NULL;
      assert_int_equal(iso_model_build(&c, &options, arena, &graph), ISO_OK);
      assert_int_equal(iso_graph_verify(graph, true), ISO_OK);
      const bool loss = form < 2, cached = form == 4;
      const int64_t rows = cached ? 5 : 51;
      assert_int_equal(graph->tokens, rows);
      check_tensor(graph, "tokens", ISO_SPACE_INPUT, rows, 0);
      check_tensor(graph, "positions", ISO_SPACE_INPUT, rows, 0);
      check_tensor(graph, "segments", ISO_SPACE_INPUT, options.segments ? rows : 0, 0);
      check_tensor(graph, "labels", ISO_SPACE_INPUT, loss ? rows : 0, 0);
      check_tensor(graph, "losses", ISO_SPACE_OUTPUT, loss ? rows : 0, 0);
      check_tensor(graph, "logits", ISO_SPACE_OUTPUT, loss ? 0 : rows, 192);
      check_tensor(graph, "cache.1.v", ISO_SPACE_CACHE, cached ? 40 : 0, c.kv_heads * c.head_dim);
      check_tensor(graph, "rope.cos", ISO_SPACE_CONST, c.rope_theta == 0 ? 0 : cached ? 40 : 17, c.head_dim / 2);
      assert_int_equal(count_nodes(graph, cached ? ISO_OP_ATTENTION_CACHED : ISO_OP_ATTENTION), 2);
      assert_int_equal(graph->flat_elements, iso_model_parameters(&c));
      iso_arena_destroy(&arena);
    }
    iso_model_config_fini(&c);
  }
}

static void window_reaches_its_layers(void **state) {
  iso_model_config c;
  assert_int_equal(parse("{\"model_type\":\"qwen3\",\"vocab_size\":64,\"hidden_size\":32,\"intermediate_size\":48,"
                         "\"num_hidden_layers\":3,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":6,"
                         "\"use_sliding_window\":true,\"sliding_window\":7,\"max_window_layers\":2}",
                         &c),
                   ISO_OK);
  for (int mode = ISO_BUILD_LOSS; mode <= ISO_BUILD_CACHED; mode++) {
    const iso_build_options options = {.mode = (iso_build_mode)mode, .batch = 1, .sequence = 9, .cache = 9};
    iso_arena *arena = iso_arena_create();
    iso_graph *graph = NULL;
    assert_int_equal(iso_model_build(&c, &options, arena, &graph), ISO_OK);
    int layer = 0;
    for (int i = 0; i < graph->node_count; i++) {
      const iso_node *node = &graph->nodes[i];
      if (node->op != ISO_OP_ATTENTION && node->op != ISO_OP_ATTENTION_CACHED) continue;
      assert_true(iso_node_attribute(node, ISO_ATTR_WINDOW) == (layer == 2 ? 7 : 0));
      assert_true(iso_node_attribute(node, ISO_ATTR_SCALE) == 1 / sqrt(6));
      assert_true(iso_node_attribute(node, ISO_ATTR_HEADS) == 4 && iso_node_attribute(node, ISO_ATTR_KV_HEADS) == 2);
      layer++;
    }
    assert_int_equal(layer, 3);
    iso_arena_destroy(&arena);
  }
  iso_model_config_fini(&c);
}

static void flat_order_init_and_decay(void **state) {
  iso_model_config c;
  read_case("llama-bias-linear-rope", &c);
  const iso_build_options options = {.mode = ISO_BUILD_LOSS, .batch = 1, .sequence = 4};
  iso_arena *arena = iso_arena_create();
  iso_graph *graph = NULL;
  assert_int_equal(iso_model_build(&c, &options, arena, &graph), ISO_OK);
  static const struct {
    const char *name;
    iso_init init;
    double std;
    iso_decay_class decay;
  } first[] = {
      {"model.embed_tokens.weight", ISO_INIT_NORMAL, 0.02, ISO_DECAY_EMBEDDING},
      {"model.layers.0.input_layernorm.weight", ISO_INIT_ONE, 0, ISO_DECAY_NORM},
      {"model.layers.0.self_attn.q_proj.weight", ISO_INIT_NORMAL, 0.02, ISO_DECAY_MATRIX},
      {"model.layers.0.self_attn.q_proj.bias", ISO_INIT_ZERO, 0, ISO_DECAY_BIAS},
      {"model.layers.0.self_attn.k_proj.weight", ISO_INIT_NORMAL, 0.02, ISO_DECAY_MATRIX},
      {"model.layers.0.self_attn.k_proj.bias", ISO_INIT_ZERO, 0, ISO_DECAY_BIAS},
      {"model.layers.0.self_attn.v_proj.weight", ISO_INIT_NORMAL, 0.02, ISO_DECAY_MATRIX},
      {"model.layers.0.self_attn.v_proj.bias", ISO_INIT_ZERO, 0, ISO_DECAY_BIAS},
      {"model.layers.0.self_attn.o_proj.weight", ISO_INIT_NORMAL, 0.01, ISO_DECAY_MATRIX},
      {"model.layers.0.self_attn.o_proj.bias", ISO_INIT_ZERO, 0, ISO_DECAY_BIAS},
      {"model.layers.0.post_attention_layernorm.weight", ISO_INIT_ONE, 0, ISO_DECAY_NORM},
      {"model.layers.0.mlp.gate_proj.weight", ISO_INIT_NORMAL, 0.02, ISO_DECAY_MATRIX},
      {"model.layers.0.mlp.gate_proj.bias", ISO_INIT_ZERO, 0, ISO_DECAY_BIAS},
      {"model.layers.0.mlp.up_proj.weight", ISO_INIT_NORMAL, 0.02, ISO_DECAY_MATRIX},
      {"model.layers.0.mlp.up_proj.bias", ISO_INIT_ZERO, 0, ISO_DECAY_BIAS},
      {"model.layers.0.mlp.down_proj.weight", ISO_INIT_NORMAL, 0.01, ISO_DECAY_MATRIX},
      {"model.layers.0.mlp.down_proj.bias", ISO_INIT_ZERO, 0, ISO_DECAY_BIAS},
      {"model.layers.1.input_layernorm.weight", ISO_INIT_ONE, 0, ISO_DECAY_NORM},
  };
  for (size_t i = 0; i < ISO_COUNT(first); i++) {
    const iso_parameter *p = &graph->parameters[i];
    assert_string_equal(p->name, first[i].name);
    assert_int_equal(p->init, first[i].init);
    assert_true(p->init_std == first[i].std);
    assert_int_equal(p->decay_class, first[i].decay);
  }
  assert_string_equal(graph->parameters[graph->parameter_count - 2].name, "model.norm.weight");
  assert_string_equal(graph->parameters[graph->parameter_count - 1].name, "lm_head.weight");
  assert_int_equal(graph->parameters[graph->parameter_count - 1].decay_class, ISO_DECAY_MATRIX);
  iso_arena_destroy(&arena);
  iso_model_config_fini(&c);
}

static void tied_head_is_the_embedding(void **state) {
  iso_model_config c;
  for (int round = 0; round < 2; round++) {
    read_case(round ? "gpt2" : "llama-tied-llama3rope", &c);
    const iso_build_options options = {.mode = ISO_BUILD_LOSS, .batch = 1, .sequence = 4};
    iso_arena *arena = iso_arena_create();
    iso_graph *graph = NULL;
    assert_int_equal(iso_model_build(&c, &options, arena, &graph), ISO_OK);
    assert_null(find_parameter(graph, "lm_head.weight"));
    const iso_node *last = &graph->nodes[graph->node_count - 1];
    assert_int_equal(last->op, ISO_OP_LINEAR_CROSS_ENTROPY);
    assert_int_equal(last->inputs[1], graph->parameters[0].tensor);
    iso_arena_destroy(&arena);
    iso_model_config_fini(&c);
  }
}

static void known_counts(void **state) {
  static const struct {
    const char *json;
    int64_t total, mfu;
  } rows[] = {
      /* Llama 3.2 1B (tied) and Llama 3.1 8B: as published */
      {"{\"model_type\":\"llama\",\"vocab_size\":128256,\"hidden_size\":2048,\"intermediate_size\":8192,"
       "\"num_hidden_layers\":16,\"num_attention_heads\":32,\"num_key_value_heads\":8,\"tie_word_embeddings\":true}",
       1235814400, 1235814400},
      {"{\"model_type\":\"llama\",\"vocab_size\":128256,\"hidden_size\":4096,\"intermediate_size\":14336,"
       "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8}",
       8030261248, 8030261248 - 128256 * 4096},
      /* Qwen2.5 0.5B (tied), Qwen3 0.6B (tied), Mistral 7B */
      {"{\"model_type\":\"qwen2\",\"vocab_size\":151936,\"hidden_size\":896,\"intermediate_size\":4864,"
       "\"num_hidden_layers\":24,\"num_attention_heads\":14,\"num_key_value_heads\":2,\"tie_word_embeddings\":true}",
       494032768, 494032768},
      {"{\"model_type\":\"qwen3\",\"vocab_size\":151936,\"hidden_size\":1024,\"intermediate_size\":3072,\"head_dim\":"
       "128,"
       "\"num_hidden_layers\":28,\"num_attention_heads\":16,\"num_key_value_heads\":8,\"tie_word_embeddings\":true}",
       596049920, 596049920},
      {"{\"model_type\":\"mistral\",\"vocab_size\":32000,\"hidden_size\":4096,\"intermediate_size\":14336,"
       "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"num_key_value_heads\":8}",
       7241732096, 7241732096 - 32000 * 4096},
      {"{\"model_type\":\"gpt2\",\"vocab_size\":50257,\"n_embd\":768,\"n_layer\":12,\"n_head\":12}", 124439808,
       124439808 - 1024 * 768},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_model_config c;
    assert_int_equal(parse(rows[i].json, &c), ISO_OK);
    assert_int_equal(iso_model_parameters(&c), rows[i].total);
    assert_int_equal(iso_model_mfu_parameters(&c), rows[i].mfu);
    iso_model_config_fini(&c);
  }
  iso_model_config c;
  assert_int_equal(iso_model_config_preset("gpt2-124m", &c), ISO_OK);
  assert_int_equal(iso_model_parameters(&c), 124439808);
  assert_true(iso_model_flop_per_token(&c, 256) == 6.0 * (124439808 - 786432) + 6.0 * 12 * 256 * 768);
  iso_model_config_fini(&c);
  assert_int_equal(iso_model_config_preset("llama-110m", &c), ISO_OK);
  assert_int_equal(iso_model_parameters(&c), 32000 * 768 + 12 * (4 * 768 * 768 + 3 * 768 * 2048 + 2 * 768) + 768);
  iso_model_config_fini(&c);
}

static void impossible_options(void **state) {
  iso_model_config c;
  read_case("gpt2", &c); /* 64 positions */
  static const struct {
    iso_build_options options;
    const char *says;
  } rows[] = {
      {{.mode = ISO_BUILD_LOSS, .batch = 1, .sequence = 65}, "64 positions"},
      {{.mode = ISO_BUILD_CACHED, .batch = 1, .sequence = 1, .cache = 65}, "64 positions"},
      {{.mode = ISO_BUILD_LOSS, .batch = 0, .sequence = 4}, "0 sequences"},
      {{.mode = ISO_BUILD_LOSS, .batch = 1, .sequence = -1}, "-1 tokens"},
      {{.mode = ISO_BUILD_LOSS, .batch = INT64_MAX, .sequence = 4}, "sequences"},
      {{.mode = ISO_BUILD_CACHED, .batch = 2, .sequence = 1, .cache = 8}, "batch 2"},
      {{.mode = ISO_BUILD_CACHED, .batch = 1, .sequence = 9, .cache = 8}, "cache of 8"},
      {{.mode = ISO_BUILD_CACHED, .batch = 1, .sequence = 1, .cache = 8, .segments = true}, "segments"},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_arena *arena = iso_arena_create();
    iso_graph *graph = NULL;
    assert_int_equal(iso_model_build(&c, &rows[i].options, arena, &graph), ISO_ERR_CONFIG);
    assert_non_null(strstr(iso_last_error(), rows[i].says));
    assert_null(graph);
    iso_arena_destroy(&arena);
  }
  iso_model_config_fini(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_mode_verifies),
      cmocka_unit_test(window_reaches_its_layers),
      cmocka_unit_test(flat_order_init_and_decay),
      cmocka_unit_test(tied_head_is_the_embedding),
      cmocka_unit_test(known_counts),
      cmocka_unit_test(impossible_options),
  };
  return cmocka_run_group_tests(tests, quiet, NULL);
}
