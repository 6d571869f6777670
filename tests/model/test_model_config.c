/* SPDX-License-Identifier: Apache-2.0
 *
 * config.json: what is accepted and what it then says, what is refused and with which words, rotary tables.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/model.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int quiet(void **state) {
  iso_log_quiet(true);
  return 0;
}

static iso_status parse(const char *text, iso_model_config *config) {
  iso_json *json;
  assert_int_equal(iso_json_parse(text, strlen(text), "t.json", &json), ISO_OK);
  iso_status status = iso_model_config_parse(json, "t.json", config);
  iso_json_destroy(&json);
  return status;
}

#define SIZES                                                                                                          \
  "\"vocab_size\":192,\"hidden_size\":32,\"intermediate_size\":80,\"num_hidden_layers\":2,\"num_attention_heads\":4"
#define GPT2_SIZES "\"model_type\":\"gpt2\",\"vocab_size\":192,\"n_embd\":32,\"n_layer\":2,\"n_head\":4"

/* ---- reference cases ---- */

static void reference_cases(void **state) {
  static const struct {
    const char *name, *architecture;
    int64_t kv_heads, head_dim, window, inner;
    bool tied, attention_bias, output_bias, mlp_bias, qk_norm;
    double eps, rope_factor;
    iso_rope_kind rope;
    int64_t eos;
  } rows[] = {
      {"llama-gqa", "LlamaForCausalLM", 2, 8, 0, 80, 0, 0, 0, 0, 0, 1e-5, 0, ISO_ROPE_DEFAULT, 2},
      {"llama-packed", "LlamaForCausalLM", 2, 8, 0, 80, 0, 0, 0, 0, 0, 1e-5, 0, ISO_ROPE_DEFAULT, 2},
      {"llama-bias-linear-rope", "LlamaForCausalLM", 4, 8, 0, 80, 0, 1, 1, 1, 0, 1e-6, 4, ISO_ROPE_LINEAR, 2},
      {"llama-tied-llama3rope", "LlamaForCausalLM", 2, 16, 0, 80, 1, 0, 0, 0, 0, 1e-5, 8, ISO_ROPE_LLAMA3, 2},
      {"mistral-window", "MistralForCausalLM", 2, 8, 11, 80, 0, 0, 0, 0, 0, 1e-6, 0, ISO_ROPE_DEFAULT, 2},
      {"qwen2", "Qwen2ForCausalLM", 2, 8, 0, 80, 0, 1, 0, 0, 0, 1e-6, 0, ISO_ROPE_DEFAULT, -1},
      {"qwen3", "Qwen3ForCausalLM", 2, 16, 0, 80, 0, 0, 0, 0, 1, 1e-6, 0, ISO_ROPE_DEFAULT, -1},
      {"gpt2", "GPT2LMHeadModel", 4, 8, 0, 128, 1, 1, 1, 1, 0, 1e-5, 0, ISO_ROPE_DEFAULT, 0},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    char folder[256];
    snprintf(folder, sizeof folder, "%s/golden/%s/model", ISO_TEST_DATA, rows[i].name);
    iso_model_config c;
    assert_int_equal(iso_model_config_read(folder, &c), ISO_OK);
    assert_string_equal(iso_architecture_name(c.architecture), rows[i].architecture);
    assert_int_equal(c.vocabulary, 192);
    assert_int_equal(c.width, 32);
    assert_int_equal(c.layers, 2);
    assert_int_equal(c.heads, 4);
    assert_int_equal(c.kv_heads, rows[i].kv_heads);
    assert_int_equal(c.head_dim, rows[i].head_dim);
    assert_int_equal(c.inner, rows[i].inner);
    assert_int_equal(c.window, rows[i].window);
    for (int layer = 0; layer < 2 && c.window; layer++) assert_true(c.windowed[layer]);
    assert_int_equal(c.tied, rows[i].tied);
    assert_int_equal(c.attention_bias, rows[i].attention_bias);
    assert_int_equal(c.output_bias, rows[i].output_bias);
    assert_int_equal(c.mlp_bias, rows[i].mlp_bias);
    assert_int_equal(c.qk_norm, rows[i].qk_norm);
    assert_true(c.norm_eps == rows[i].eps);
    assert_int_equal(c.rope_kind, rows[i].rope);
    assert_true(c.rope_factor == rows[i].rope_factor);
    assert_true(c.rope_theta == (strcmp(rows[i].name, "gpt2") ? 10000 : 0));
    assert_int_equal(c.eos, rows[i].eos);
    iso_model_config_fini(&c);
  }
}

static void later_cases_are_refused_by_name(void **state) {
  static const char *const rows[][2] = {
      {"gemma2", "Gemma2ForCausalLM"},   {"gemma3", "Gemma3ForCausalLM"}, {"mixtral", "MixtralForCausalLM"},
      {"olmo2", "Olmo2ForCausalLM"},     {"phi3", "Phi3ForCausalLM"},     {"qwen3-moe", "Qwen3MoeForCausalLM"},
      {"smollm3", "SmolLM3ForCausalLM"}, {"qwen3-tied-yarn", "yarn"},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    char file[256];
    snprintf(file, sizeof file, "%s/model/refused/%s.json", ISO_TEST_DATA, rows[i][0]);
    iso_model_config c;
    assert_int_equal(iso_model_config_read(file, &c), ISO_ERR_UNSUPPORTED);
    assert_non_null(strstr(iso_last_error(), rows[i][1]));
    assert_non_null(strstr(iso_last_error(), file));
    assert_null(strchr(iso_last_error(), '\n'));
  }
}

/* ---- values that stand for what is absent ---- */

static void absent_keys(void **state) {
  iso_model_config c;
  assert_int_equal(parse("{\"model_type\":\"llama\"," SIZES "}", &c), ISO_OK);
  assert_int_equal(c.kv_heads, 4);
  assert_int_equal(c.head_dim, 8);
  assert_int_equal(c.positions, 2048);
  assert_true(c.norm_eps == 1e-6 && c.rope_theta == 10000 && c.init_std == 0.02 && !c.tied);
  assert_int_equal(c.eos, -1);
  iso_model_config_fini(&c);

  assert_int_equal(parse("{\"architecture\":\"MistralForCausalLM\"," SIZES ",\"num_key_value_heads\":null}", &c),
                   ISO_OK);
  assert_int_equal(c.kv_heads, 4);
  assert_int_equal(c.window, 4096); /* transformers' default; null means none */
  iso_model_config_fini(&c);
  assert_int_equal(
      parse("{\"model_type\":\"mistral\"," SIZES ",\"sliding_window\":null,\"num_key_value_heads\":1}", &c), ISO_OK);
  assert_int_equal(c.window, 0);
  assert_null(c.windowed);
  iso_model_config_fini(&c);

  assert_int_equal(parse("{\"model_type\":\"qwen3\"," SIZES ",\"num_key_value_heads\":2}", &c), ISO_OK);
  assert_int_equal(c.head_dim, 128);
  iso_model_config_fini(&c);
  assert_int_equal(parse("{\"model_type\":\"qwen3\"," SIZES ",\"num_key_value_heads\":2,\"head_dim\":null}", &c),
                   ISO_OK);
  assert_int_equal(c.head_dim, 8);
  iso_model_config_fini(&c);

  assert_int_equal(parse("{" GPT2_SIZES ",\"resid_pdrop\":0.25,\"eos_token_id\":[7,9]}", &c), ISO_OK);
  assert_int_equal(c.inner, 128);
  assert_int_equal(c.positions, 1024);
  assert_int_equal(c.gelu_form, 1);
  assert_true(c.tied && c.dropout == 0.25);
  assert_int_equal(c.eos, 7);
  iso_model_config_fini(&c);
}

static void windows_by_layer(void **state) {
#define QWEN                                                                                                           \
  "{\"model_type\":\"qwen2\",\"num_key_value_heads\":2,\"vocab_size\":192,\"hidden_size\":32,"                         \
  "\"intermediate_size\":80,\"num_hidden_layers\":4,\"num_attention_heads\":4"
  iso_model_config c;
  assert_int_equal(parse(QWEN ",\"sliding_window\":9,\"use_sliding_window\":false}", &c), ISO_OK);
  assert_int_equal(c.window, 0);
  iso_model_config_fini(&c);
  assert_int_equal(parse(QWEN ",\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":3}", &c),
                   ISO_OK);
  assert_int_equal(c.window, 9);
  assert_true(!c.windowed[0] && !c.windowed[2] && c.windowed[3]);
  iso_model_config_fini(&c);
  assert_int_equal(parse(QWEN ",\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":4}", &c),
                   ISO_OK);
  assert_int_equal(c.window, 0);
  iso_model_config_fini(&c);
  assert_int_equal(parse(QWEN
                         ",\"sliding_window\":9,\"use_sliding_window\":true,\"layer_types\":[\"sliding_attention\","
                         "\"full_attention\",\"sliding_attention\",\"full_attention\"]}",
                         &c),
                   ISO_OK);
  assert_true(c.windowed[0] && !c.windowed[1] && c.windowed[2] && !c.windowed[3]);
  iso_model_config_fini(&c);
}

static void both_rope_styles(void **state) {
#define LLAMA "{\"model_type\":\"llama\"," SIZES
  static const char *const texts[] = {
      LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2}}",
      LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
      LLAMA ",\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"linear\",\"factor\":2}}",
      LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2},"
            "\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"linear\",\"factor\":2}}",
      LLAMA ",\"rope_theta\":5e5,\"rope_parameters\":{\"type\":\"linear\",\"factor\":2}}",
  };
  for (size_t i = 0; i < ISO_COUNT(texts); i++) {
    iso_model_config c;
    assert_int_equal(parse(texts[i], &c), ISO_OK);
    assert_true(c.rope_theta == 5e5 && c.rope_factor == 2);
    assert_int_equal(c.rope_kind, ISO_ROPE_LINEAR);
    iso_model_config_fini(&c);
  }
}

/* ---- what is refused ---- */

static void hostile(void **state) {
  static const struct {
    const char *text;
    iso_status status;
    const char *says;
  } rows[] = {
      {"[]", ISO_ERR_FORMAT, "object"},
      {"{}", ISO_ERR_FORMAT, "neither"},
      {"{\"model_type\":7}", ISO_ERR_FORMAT, "model_type"},
      {"{\"architectures\":[\"LlamaForCausalLM\",\"X\"]}", ISO_ERR_FORMAT, "one name"},
      {"{\"architectures\":[\"LlamaModel\"]}", ISO_ERR_UNSUPPORTED, "LlamaModel"},
      {"{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"mistral\"}", ISO_ERR_FORMAT, "contradicts"},
      {"{\"model_type\":\"llama\"}", ISO_ERR_FORMAT, "vocab_size is missing"},
      {"{\"model_type\":\"llama\",\"vocab_size\":192,\"intermediate_size\":3}", ISO_ERR_FORMAT,
       "hidden_size is missing"},
      {"{\"model_type\":\"llama\",\"vocab_size\":0}", ISO_ERR_FORMAT, "vocab_size is 0"},
      {"{\"model_type\":\"llama\",\"vocab_size\":-5}", ISO_ERR_FORMAT, "vocab_size is -5"},
      {"{\"model_type\":\"llama\",\"vocab_size\":4294967296}", ISO_ERR_FORMAT, "vocab_size is 4294967296"},
      {"{\"model_type\":\"llama\",\"vocab_size\":1.5}", ISO_ERR_FORMAT, "vocab_size"},
      {"{\"model_type\":\"llama\",\"vocab_size\":\"x\"}", ISO_ERR_FORMAT, "vocab_size"},
      {LLAMA ",\"num_key_value_heads\":3}", ISO_ERR_FORMAT, "no multiple"},
      {LLAMA ",\"num_key_value_heads\":8}", ISO_ERR_FORMAT, "no multiple"},
      {LLAMA ",\"num_key_value_heads\":0}", ISO_ERR_FORMAT, "num_key_value_heads is 0"},
      {LLAMA ",\"head_dim\":7}", ISO_ERR_FORMAT, "even"},
      {LLAMA ",\"head_dim\":-8}", ISO_ERR_FORMAT, "head_dim"},
      {"{\"model_type\":\"llama\",\"vocab_size\":9,\"hidden_size\":30,\"intermediate_size\":8,\"num_hidden_layers\":1,"
       "\"num_attention_heads\":4}",
       ISO_ERR_FORMAT, "no multiple of num_attention_heads"},
      {"{\"model_type\":\"llama\",\"vocab_size\":9,\"hidden_size\":32,\"intermediate_size\":8,"
       "\"num_hidden_layers\":10001,\"num_attention_heads\":4}",
       ISO_ERR_FORMAT, "num_hidden_layers is 10001"},
      {"{\"model_type\":\"llama\",\"vocab_size\":2147483647,\"hidden_size\":16777216,\"intermediate_size\":67108864,"
       "\"num_hidden_layers\":10000,\"num_attention_heads\":2,\"head_dim\":64}",
       ISO_ERR_FORMAT, "2^46"},
      {"{\"model_type\":\"llama\",\"vocab_size\":9,\"hidden_size\":32,\"intermediate_size\":8,\"num_hidden_layers\":1,"
       "\"num_attention_heads\":16777216,\"head_dim\":4}",
       ISO_ERR_FORMAT, "num_attention_heads x head_dim"},
      {LLAMA ",\"hidden_act\":\"gelu\"}", ISO_ERR_UNSUPPORTED, "hidden_act \"gelu\""},
      {LLAMA ",\"rms_norm_eps\":-1}", ISO_ERR_FORMAT, "rms_norm_eps"},
      {LLAMA ",\"initializer_range\":-1}", ISO_ERR_FORMAT, "initializer_range"},
      {LLAMA ",\"tie_word_embeddings\":1}", ISO_ERR_FORMAT, "tie_word_embeddings"},
      {LLAMA ",\"attention_dropout\":1.5}", ISO_ERR_FORMAT, "attention_dropout"},
      {LLAMA ",\"eos_token_id\":[1,\"x\"]}", ISO_ERR_FORMAT, "eos_token_id"},
      {LLAMA ",\"quantization_config\":{\"quant_method\":\"gptq\"}}", ISO_ERR_UNSUPPORTED, "gptq"},
      {LLAMA ",\"partial_rotary_factor\":0.5}", ISO_ERR_UNSUPPORTED, "partial_rotary_factor 0.5"},
      {LLAMA ",\"partial_rotary_factor\":0}", ISO_ERR_UNSUPPORTED, "partial_rotary_factor 0"},
      {LLAMA ",\"num_local_experts\":8}", ISO_ERR_UNSUPPORTED, "num_local_experts 8"},
      {LLAMA ",\"layer_types\":[\"full_attention\"]}", ISO_ERR_UNSUPPORTED, "layer_types"},
      {LLAMA ",\"is_causal\":false}", ISO_ERR_UNSUPPORTED, "is_causal false"},
      {LLAMA ",\"pruned_heads\":{\"0\":[1]}}", ISO_ERR_UNSUPPORTED, "pruned_heads"},
      {LLAMA ",\"rope_theta\":0}", ISO_ERR_FORMAT, "rope_theta"},
      {LLAMA ",\"rope_scaling\":7}", ISO_ERR_FORMAT, "rope_scaling must be an object"},
      {LLAMA ",\"rope_scaling\":{\"rope_type\":\"dynamic\",\"factor\":2}}", ISO_ERR_UNSUPPORTED, "\"dynamic\""},
      {LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}", ISO_ERR_UNSUPPORTED, "\"yarn\""},
      {LLAMA ",\"rope_parameters\":{\"rope_type\":\"longrope\"}}", ISO_ERR_UNSUPPORTED, "\"longrope\""},
      {LLAMA ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", ISO_ERR_UNSUPPORTED,
       "rope_parameters.full_attention"},
      {LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"mrope_section\":[1,2]}}", ISO_ERR_UNSUPPORTED,
       "mrope_section"},
      {LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.25}}", ISO_ERR_UNSUPPORTED,
       "partial_rotary_factor 0.25"},
      {LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"type\":\"default\",\"factor\":2}}", ISO_ERR_FORMAT,
       "keep one"},
      {LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\"}}", ISO_ERR_FORMAT, "needs a factor"},
      {LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}}", ISO_ERR_FORMAT, "factor is 0"},
      {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1}}", ISO_ERR_FORMAT,
       "high_freq_factor"},
      {LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4}}",
       ISO_ERR_FORMAT, "must be above"},
      {LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2},\"rope_parameters\":{\"rope_theta\":1e4}}",
       ISO_ERR_FORMAT, "contradicts"},
      {LLAMA ",\"rope_theta\":1e5,\"rope_parameters\":{\"rope_theta\":1e4}}", ISO_ERR_FORMAT, "contradicts"},
      {"{\"model_type\":\"mistral\"," SIZES ",\"num_key_value_heads\":2,\"sliding_window\":0}", ISO_ERR_FORMAT,
       "sliding_window is 0"},
      {"{\"model_type\":\"mistral\"," SIZES ",\"num_key_value_heads\":2,\"attention_bias\":true}", ISO_ERR_UNSUPPORTED,
       "attention_bias true"},
      {"{\"model_type\":\"mistral\"," SIZES "}", ISO_ERR_FORMAT, "4 attention heads are no multiple of 8"},
      {QWEN ",\"attention_bias\":false}", ISO_ERR_UNSUPPORTED, "attention_bias false"},
      {QWEN ",\"layer_types\":[\"full_attention\"]}", ISO_ERR_FORMAT, "4 layers"},
      {QWEN ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"linear_attention\"]}",
       ISO_ERR_UNSUPPORTED, "linear_attention"},
      {QWEN ",\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"sliding_attention\"]}",
       ISO_ERR_FORMAT, "use_sliding_window is false"},
      {"{" GPT2_SIZES ",\"activation_function\":\"relu\"}", ISO_ERR_UNSUPPORTED, "activation_function \"relu\""},
      {"{" GPT2_SIZES ",\"activation_function\":\"gelu_fast\"}", ISO_ERR_UNSUPPORTED, "gelu_fast"},
      {"{" GPT2_SIZES ",\"scale_attn_weights\":false}", ISO_ERR_UNSUPPORTED, "scale_attn_weights false"},
      {"{" GPT2_SIZES ",\"scale_attn_by_inverse_layer_idx\":true}", ISO_ERR_UNSUPPORTED,
       "scale_attn_by_inverse_layer_idx true"},
      {"{" GPT2_SIZES ",\"reorder_and_upcast_attn\":true}", ISO_ERR_UNSUPPORTED, "reorder_and_upcast_attn true"},
      {"{" GPT2_SIZES ",\"add_cross_attention\":true}", ISO_ERR_UNSUPPORTED, "add_cross_attention true"},
      {"{" GPT2_SIZES ",\"n_inner\":0}", ISO_ERR_FORMAT, "n_inner is 0"},
      {"{\"model_type\":\"gpt2\",\"vocab_size\":192,\"n_embd\":33,\"n_layer\":2,\"n_head\":4}", ISO_ERR_FORMAT,
       "no multiple of n_head"},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_model_config c;
    iso_status status = parse(rows[i].text, &c);
    if (status != rows[i].status || !strstr(iso_last_error(), rows[i].says))
      fail_msg("row %zu: %s: status %s, %s", i, rows[i].text, iso_status_name(status), iso_last_error());
    assert_non_null(strstr(iso_last_error(), "t.json"));
    assert_null(c.json);
  }
  iso_model_config c;
  assert_int_equal(iso_model_config_read(ISO_TEST_DATA "/no-such-folder", &c), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_model_config_preset("gpt5", &c), ISO_ERR_USAGE);
}

static void harmless_keys(void **state) {
  iso_model_config c;
  assert_int_equal(parse(LLAMA ",\"transformers_version\":\"9\",\"use_cache\":true,\"pad_token_id\":-1,\"auto_map\":{},"
                               "\"some_key_of_tomorrow\":true,\"partial_rotary_factor\":1.0,\"num_experts\":0,"
                               "\"quantization_config\":null}",
                         &c),
                   ISO_OK);
  assert_non_null(strstr(c.json, "some_key_of_tomorrow"));
  iso_model_config_fini(&c);
}

/* Every key of every reference config takes every odd value: refused, or the model can be built. */
static void odd_values(void **state) {
  static const char *const files[] = {"llama-tied-llama3rope", "mistral-window", "qwen2", "qwen3", "gpt2"};
  static const char *const values[] = {"null",       "true",  "false", "-1", "0",     "1",         "3",       "0.5",
                                       "2147483647", "1e300", "\"x\"", "[]", "[[1]]", "{\"a\":1}", "\"silu\""};
  int accepted = 0, refused = 0;
  for (size_t f = 0; f < ISO_COUNT(files); f++) {
    char path[256];
    snprintf(path, sizeof path, "%s/golden/%s/model/config.json", ISO_TEST_DATA, files[f]);
    iso_json *json;
    assert_int_equal(iso_json_read(path, &json), ISO_OK);
    for (int key = 0; key < cJSON_GetArraySize(json); key++) {
      for (size_t v = 0; v < ISO_COUNT(values); v++) {
        cJSON *changed = cJSON_Duplicate(json, true);
        cJSON_ReplaceItemInArray(changed, key, cJSON_Parse(values[v]));
        cJSON *item = cJSON_GetArrayItem(changed, key);
        item->string = strdup(cJSON_GetArrayItem(json, key)->string);
        iso_model_config c;
        iso_status status = iso_model_config_parse(changed, "t.json", &c);
        cJSON_Delete(changed);
        if (status != ISO_OK) {
          assert_true(status == ISO_ERR_FORMAT || status == ISO_ERR_UNSUPPORTED);
          refused++;
          continue;
        }
        const iso_build_options options = {.mode = ISO_BUILD_LOSS, .batch = 1, .sequence = 2};
        iso_arena *arena = iso_arena_create();
        iso_graph *graph;
        status = iso_model_build(&c, &options, arena, &graph);
        assert_true(status == ISO_OK ? iso_graph_verify(graph, true) == ISO_OK : status == ISO_ERR_CONFIG);
        iso_arena_destroy(&arena);
        iso_model_config_fini(&c);
        accepted++;
      }
    }
    iso_json_destroy(&json);
  }
  assert_true(accepted > 500 && refused > 500);
}

/* ---- rotary tables, against transformers (tests/data/model/make-rope.py) ---- */

static double worst_difference(const cJSON *wanted, const float *values) {
  double worst = 0;
  const cJSON *item;
  cJSON_ArrayForEach(item, wanted) {
    double difference = fabs(item->valuedouble - (double)*values++);
    if (difference > worst) worst = difference;
  }
  return worst;
}

static void rope_tables(void **state) {
  iso_json *cases;
  assert_int_equal(iso_json_read(ISO_TEST_DATA "/model/rope.json", &cases), ISO_OK);
  assert_true(cJSON_GetArraySize(cases) >= 7);
  const cJSON *item;
  cJSON_ArrayForEach(item, cases) {
    iso_model_config c;
    assert_int_equal(iso_model_config_parse(iso_json_get(item, "config"), "rope.json", &c), ISO_OK);
    const int64_t half = c.head_dim / 2, rows = 4096;
    const cJSON *wanted = iso_json_get(item, "frequencies");
    assert_int_equal(cJSON_GetArraySize(wanted), half);
    float *frequencies = malloc((size_t)half * sizeof *frequencies);
    iso_rope_frequencies(&c, frequencies);
    for (int64_t i = 0; i < half; i++) {
      double reference = cJSON_GetArrayItem(wanted, (int)i)->valuedouble;
      assert_true(fabs(frequencies[i] - reference) <= 1.2e-7 * reference);
    }
    float *cos_table = malloc((size_t)(rows * half) * sizeof *cos_table);
    float *sin_table = malloc((size_t)(rows * half) * sizeof *sin_table);
    iso_rope_tables(&c, rows, cos_table, sin_table);
    const cJSON *position;
    int row = 0;
    cJSON_ArrayForEach(position, iso_json_get(item, "positions")) {
      /* one unit in the last place of a frequency turns the angle by position * 6e-8 */
      const double bound = 1.2e-7 + position->valuedouble * 1.2e-7;
      const int64_t at = (int64_t)position->valuedouble * half;
      assert_true(worst_difference(cJSON_GetArrayItem(iso_json_get(item, "cos"), row), cos_table + at) <= bound);
      assert_true(worst_difference(cJSON_GetArrayItem(iso_json_get(item, "sin"), row), sin_table + at) <= bound);
      row++;
    }
    free(frequencies);
    free(cos_table);
    free(sin_table);
    iso_model_config_fini(&c);
  }
  iso_json_destroy(&cases);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reference_cases),  cmocka_unit_test(later_cases_are_refused_by_name),
      cmocka_unit_test(absent_keys),      cmocka_unit_test(windows_by_layer),
      cmocka_unit_test(both_rope_styles), cmocka_unit_test(hostile),
      cmocka_unit_test(harmless_keys),    cmocka_unit_test(rope_tables),
      cmocka_unit_test(odd_values),
  };
  return cmocka_run_group_tests(tests, quiet, NULL);
}
