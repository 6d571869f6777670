/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights: what init draws, what import takes from a folder and what it refuses, and that export gives it back.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "model/model.h"
#include "io/scratch.h"

#include <cjson/cJSON.h>
#include <math.h>

static const char *const cases[] = {
    "llama-gqa", "llama-bias-linear-rope", "llama-tied-llama3rope", "mistral-window", "qwen2", "qwen3", "gpt2"};

static int quiet(void **state) {
  iso_log_quiet(true);
  return 0;
}

/* A model of a reference case and room for its weights. */
typedef struct model {
  iso_model_config config;
  iso_arena *arena;
  iso_graph *graph;
  float *master;
  char folder[256];
} model;

static void model_open(model *m, const char *name) {
  snprintf(m->folder, sizeof m->folder, "%s/golden/%s/model", ISO_TEST_DATA, name);
  assert_int_equal(iso_model_config_read(m->folder, &m->config), ISO_OK);
  m->arena = iso_arena_create();
  const iso_build_options options = {.mode = ISO_BUILD_LOSS, .batch = 1, .sequence = 4};
  assert_int_equal(iso_model_build(&m->config, &options, m->arena, &m->graph), ISO_OK);
  m->master = malloc((size_t)m->graph->flat_elements * sizeof *m->master);
  for (int64_t i = 0; i < m->graph->flat_elements; i++) m->master[i] = NAN;
}

static void model_close(model *m) {
  free(m->master);
  iso_arena_destroy(&m->arena);
  iso_model_config_fini(&m->config);
}

/* ---- import ---- */

static void import_fills_every_parameter(void **state) {
  for (size_t i = 0; i < ISO_COUNT(cases); i++) {
    model m;
    model_open(&m, cases[i]);
    assert_int_equal(iso_model_import(&m.config, m.graph, m.folder, m.master), ISO_OK);
    iso_safetensors *file;
    assert_int_equal(iso_safetensors_open(m.folder, &file), ISO_OK);
    assert_int_equal(iso_safetensors_count(file), m.graph->parameter_count);
    for (int p = 0; p < m.graph->parameter_count; p++) {
      const iso_parameter *parameter = &m.graph->parameters[p];
      const iso_safetensor *tensor = iso_safetensors_find(file, parameter->name);
      assert_non_null(tensor);
      assert_string_equal(tensor->dtype, "F32");
      assert_memory_equal(m.master + parameter->offset, tensor->data, (size_t)tensor->bytes);
    }
    iso_safetensors_close(&file);
    model_close(&m);
  }
}

/* A folder with m's weights as tensors to be changed: names and data are the test's to replace. */
typedef struct draft {
  iso_tensor_out tensors[64];
  char names[64][96];
  int count;
} draft;

static void draft_start(draft *d, const model *m) {
  assert_true(m->graph->parameter_count < 60);
  d->count = m->graph->parameter_count;
  for (int i = 0; i < d->count; i++) {
    const iso_parameter *p = &m->graph->parameters[i];
    snprintf(d->names[i], sizeof d->names[i], "%s", p->name);
    d->tensors[i] = (iso_tensor_out){.name = d->names[i], .dtype = ISO_F32, .rank = p->rank};
    d->tensors[i].data = m->master + p->offset;
    memcpy(d->tensors[i].shape, p->shape, sizeof(int64_t) * (size_t)p->rank);
  }
}

static void draft_strip(draft *d, const char *prefix) {
  for (int i = 0; i < d->count; i++)
    if (strncmp(d->names[i], prefix, strlen(prefix)) == 0)
      memmove(d->names[i], d->names[i] + strlen(prefix), strlen(d->names[i]) - strlen(prefix) + 1);
}

static void draft_add(draft *d, const char *name, int64_t rows, int64_t columns, const float *data) {
  const int at = d->count++;
  snprintf(d->names[at], sizeof d->names[at], "%s", name);
  d->tensors[at] =
      (iso_tensor_out){.name = d->names[at], .dtype = ISO_F32, .rank = 2, .shape = {rows, columns}, .data = data};
}

/* Writes the draft, imports it into `out`. */
static iso_status draft_import(const draft *d, const model *m, float *out) {
  char folder[128], path[192];
  scratch_make(folder);
  snprintf(path, sizeof path, "%s/model.safetensors", folder);
  assert_int_equal(iso_safetensors_write(path, d->tensors, (size_t)d->count, NULL, NULL, NULL), ISO_OK);
  iso_status status = iso_model_import(&m->config, m->graph, folder, out);
  scratch_remove(folder);
  return status;
}

static void names_without_prefix(void **state) {
  static const char *const rows[][2] = {{"gpt2", "transformer."}, {"llama-gqa", "model."}};
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    model m;
    model_open(&m, rows[i][0]);
    assert_int_equal(iso_model_import(&m.config, m.graph, m.folder, m.master), ISO_OK);
    const size_t bytes = (size_t)m.graph->flat_elements * sizeof(float);
    float *again = calloc(1, bytes);
    draft d;
    draft_start(&d, &m);
    draft_strip(&d, rows[i][1]);
    /* what old files carry besides */
    draft_add(&d, i ? "layers.0.self_attn.rotary_emb.inv_freq" : "h.0.attn.bias", 2, 2, m.master);
    if (i == 0) draft_add(&d, "h.0.attn.masked_bias", 1, 1, m.master);
    if (i == 0) draft_add(&d, "lm_head.weight", 192, 32, m.master);
    assert_int_equal(draft_import(&d, &m, again), ISO_OK);
    assert_memory_equal(again, m.master, bytes);
    /* one tensor with the prefix among those without */
    snprintf(d.names[1], sizeof d.names[1], "%s", m.graph->parameters[1].name);
    assert_int_equal(draft_import(&d, &m, again), ISO_ERR_MISMATCH);
    free(again);
    model_close(&m);
  }
}

static void smaller_types(void **state) {
  model m;
  model_open(&m, "qwen2");
  assert_int_equal(iso_model_import(&m.config, m.graph, m.folder, m.master), ISO_OK);
  const size_t count = (size_t)m.graph->flat_elements;
  uint16_t *small = malloc(count * sizeof *small);
  float *again = malloc(count * sizeof *again);
  for (int half = 0; half < 2; half++) {
    for (size_t i = 0; i < count; i++) /* float16: any finite pattern will do */
      small[i] = half ? (uint16_t)(i * 7 % 0x7c00) : iso_bf16_from_f32(m.master[i]);
    draft d;
    draft_start(&d, &m);
    for (int i = 0; i < d.count; i++) {
      d.tensors[i].dtype = half ? ISO_F16 : ISO_BF16;
      d.tensors[i].data = small + m.graph->parameters[i].offset;
    }
    assert_int_equal(draft_import(&d, &m, again), ISO_OK);
    for (size_t i = 0; i < count; i++)
      assert_true(again[i] == (half ? iso_f16_to_f32(small[i]) : iso_bf16_to_f32(small[i])));
  }
  free(small);
  free(again);
  model_close(&m);
}

static void import_refuses(void **state) {
  model m;
  model_open(&m, "llama-tied-llama3rope");
  assert_int_equal(iso_model_import(&m.config, m.graph, m.folder, m.master), ISO_OK);
  const size_t bytes = (size_t)m.graph->flat_elements * sizeof(float);
  float *out = malloc(bytes), *changed = malloc(bytes);
  memcpy(changed, m.master, bytes);
  static const struct {
    const char *what;
    iso_status status;
    const char *says;
  } rows[] = {
      {"missing", ISO_ERR_MISMATCH, "2 of the 20 tensors that config.json asks for are missing, the first is model."},
      {"extra", ISO_ERR_MISMATCH, "2 tensors have no place in a LlamaForCausalLM of this config, the first is a.extra"},
      {"shape", ISO_ERR_MISMATCH,
       "model.layers.0.self_attn.q_proj.weight has shape [32, 64], but config.json asks for [64, 32]"},
      {"rank", ISO_ERR_MISMATCH, "model.norm.weight has shape [1, 32], but config.json asks for [32]"},
      {"nan", ISO_ERR_FORMAT, "model.norm.weight holds a value that is not finite, at element 5"},
      {"head", ISO_ERR_MISMATCH, "lm_head.weight differs from the embedding"},
      {"type", ISO_ERR_UNSUPPORTED, "I64"},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    draft d;
    draft_start(&d, &m);
    const char *what = rows[i].what;
    const int norm = d.count - 1;
    assert_string_equal(d.names[norm], "model.norm.weight");
    if (!strcmp(what, "missing")) d.count -= 2;
    if (!strcmp(what, "extra")) draft_add(&d, "z.extra", 1, 1, out), draft_add(&d, "a.extra", 1, 1, out);
    if (!strcmp(what, "shape")) d.tensors[2].shape[0] = 32, d.tensors[2].shape[1] = 64;
    if (!strcmp(what, "rank")) d.tensors[norm].rank = 2, d.tensors[norm].shape[0] = 1, d.tensors[norm].shape[1] = 32;
    if (!strcmp(what, "nan")) {
      changed[m.graph->parameters[norm].offset + 5] = INFINITY;
      d.tensors[norm].data = changed + m.graph->parameters[norm].offset;
    }
    if (!strcmp(what, "head")) draft_add(&d, "lm_head.weight", 192, 32, m.master + 32);
    int64_t whole[32] = {0};
    if (!strcmp(what, "type")) d.tensors[norm].dtype = ISO_I64, d.tensors[norm].data = whole;
    iso_status status = draft_import(&d, &m, out);
    if (status != rows[i].status || !strstr(iso_last_error(), rows[i].says))
      fail_msg("%s: %s: %s", what, iso_status_name(status), iso_last_error());
  }
  assert_int_equal(iso_model_import(&m.config, m.graph, ISO_TEST_DATA "/no-such", out), ISO_ERR_NOT_FOUND);
  free(out);
  free(changed);
  model_close(&m);
}

/* ---- export ---- */

static void round_trip(void **state) {
  for (size_t i = 0; i < ISO_COUNT(cases); i++) {
    for (int small = 0; small < 2; small++) {
      model m;
      model_open(&m, cases[i]);
      assert_int_equal(iso_model_import(&m.config, m.graph, m.folder, m.master), ISO_OK);
      char folder[128], inner[192], path[256];
      scratch_make(folder);
      snprintf(inner, sizeof inner, "%s/a/b", folder);
      m.config.eos = 5;
      assert_int_equal(iso_model_export(&m.config, m.graph, m.master, small ? ISO_BF16 : ISO_F32, inner), ISO_OK);

      iso_model_config again;
      assert_int_equal(iso_model_config_read(inner, &again), ISO_OK);
      assert_ptr_equal(again.architecture, m.config.architecture);
      assert_int_equal(again.eos, 5);
      assert_int_equal(again.bos, m.config.bos);
      assert_int_equal(again.window, m.config.window);
      assert_int_equal(again.rope_kind, m.config.rope_kind);
      assert_true(again.rope_theta == m.config.rope_theta && again.rope_factor == m.config.rope_factor);
      assert_int_equal(again.rope_original_positions, m.config.rope_original_positions);
      assert_non_null(strstr(again.json, small ? "\"torch_dtype\":\t\"bfloat16\"" : "\"torch_dtype\":\t\"float32\""));
      assert_non_null(strstr(again.json, small ? "\"dtype\":\t\"bfloat16\"" : "\"dtype\":\t\"float32\""));

      const size_t count = (size_t)m.graph->flat_elements;
      float *values = calloc(count, sizeof *values);
      assert_int_equal(iso_model_import(&again, m.graph, inner, values), ISO_OK);
      for (size_t e = 0; e < count; e++)
        assert_true(values[e] == (small ? iso_bf16_to_f32(iso_bf16_from_f32(m.master[e])) : m.master[e]));
      iso_safetensors *file;
      assert_int_equal(iso_safetensors_open(inner, &file), ISO_OK);
      assert_string_equal(iso_safetensors_metadata(file, "format"), "pt");
      iso_safetensors_close(&file);
      iso_json *generation;
      snprintf(path, sizeof path, "%s/generation_config.json", inner);
      assert_int_equal(iso_json_read(path, &generation), ISO_OK);
      assert_true(iso_json_get(generation, "eos_token_id")->valuedouble == 5);
      iso_json_destroy(&generation);

      /* a second export replaces the first; one beside a sharded model is refused */
      assert_int_equal(iso_model_export(&m.config, m.graph, m.master, ISO_F32, inner), ISO_OK);
      snprintf(path, sizeof path, "%s/model.safetensors.index.json", inner);
      scratch_write(path, "{}", 2);
      assert_int_equal(iso_model_export(&m.config, m.graph, m.master, ISO_F32, inner), ISO_ERR_USAGE);
      assert_int_equal(iso_model_export(&m.config, m.graph, m.master, ISO_I32, folder), ISO_ERR_UNSUPPORTED);
      free(values);
      scratch_remove(folder);
      iso_model_config_fini(&again);
      model_close(&m);
    }
  }
}

/* ---- init ---- */

static void normal_numbers(void **state) {
  /* quantiles of the standard normal distribution at (bits + 0.5) / 2^32 */
  static const struct {
    uint32_t bits;
    double z;
  } rows[] = {{0x80000000u, 2.918e-10},   {0xD76AA477u, 1.00052185}, {0x26666666u, -1.03643339},
              {0x00010000u, -4.16956758}, {0xFFFFFFFFu, 6.33795775}, {0, -6.33795775}};
  for (size_t i = 0; i < ISO_COUNT(rows); i++)
    assert_true(fabs(iso_normal_from_bits(rows[i].bits) - rows[i].z) < 1e-6 * (1 + fabs(rows[i].z)));
  for (uint32_t bits = 0; bits < 4000000000u; bits += 99999989u)
    assert_true(iso_normal_from_bits(bits) == -iso_normal_from_bits(~bits));
}

static void init_statistics(void **state) {
  model m;
  model_open(&m, "gpt2");
  iso_model_init(m.graph, 42, m.master, NULL);
  for (int i = 0; i < m.graph->parameter_count; i++) {
    const iso_parameter *p = &m.graph->parameters[i];
    double sum = 0, squares = 0, fourth = 0;
    for (int64_t e = 0; e < p->elements; e++) {
      const double x = m.master[p->offset + e];
      sum += x, squares += x * x, fourth += x * x * x * x;
      if (p->init != ISO_INIT_NORMAL) assert_true(x == (p->init == ISO_INIT_ONE ? 1 : 0));
    }
    if (p->init != ISO_INIT_NORMAL) continue;
    const double n = (double)p->elements, variance = squares / n;
    assert_true(fabs(sum / n) < 5 * p->init_std / sqrt(n));
    assert_true(fabs(sqrt(variance) / p->init_std - 1) < 5 / sqrt(2 * n));
    assert_true(fabs(fourth / n / (variance * variance) - 3) < 5 * sqrt(24 / n));
  }
  const iso_parameter *c_proj = &m.graph->parameters[6];
  assert_string_equal(c_proj->name, "transformer.h.0.attn.c_proj.weight");
  assert_true(c_proj->init_std == 0.01);
  model_close(&m);
}

static void init_is_determined(void **state) {
  model m;
  model_open(&m, "llama-gqa");
  const size_t bytes = (size_t)m.graph->flat_elements * sizeof(float);
  float *again = malloc(bytes);
  iso_model_init(m.graph, 7, m.master, NULL);
  iso_model_init(m.graph, 7, again, NULL);
  assert_memory_equal(again, m.master, bytes);
  iso_model_init(m.graph, 8, again, NULL);
  int same = 0;
  const iso_parameter *embedding = &m.graph->parameters[0], *head = &m.graph->parameters[m.graph->parameter_count - 1];
  for (int64_t e = 0; e < embedding->elements; e++) same += again[e] == m.master[e];
  assert_true(same < 10);
  same = 0;
  for (int64_t e = 0; e < embedding->elements; e++) same += m.master[e] == m.master[head->offset + e];
  assert_true(same < 10);
  /* a team draws the elements that one thread draws, one by one */
  iso_model_config config;
  assert_int_equal(iso_model_config_preset("llama-110m", &config), ISO_OK);
  config.layers = 1;
  config.vocabulary = 3001;
  const iso_build_options options = {.mode = ISO_BUILD_LOSS, .batch = 1, .sequence = 1};
  iso_graph *graph = NULL;
  assert_int_equal(iso_model_build(&config, &options, m.arena, &graph), ISO_OK);
  assert_true(graph->flat_elements > 1 << 20);
  float *large = malloc((size_t)graph->flat_elements * sizeof *large);
  for (int64_t e = 0; e < graph->flat_elements; e++) large[e] = NAN;
  iso_team *team = iso_team_create(3, false);
  assert_non_null(team);
  iso_model_init(graph, 3, large, team);
  iso_team_destroy(&team);
  const int64_t elements = graph->parameters[0].elements;
  for (int64_t e = 0; e < graph->flat_elements; e++) {
    assert_false(isnan(large[e]));
    if (e >= elements || e % 977) continue;
    uint32_t bits[4];
    iso_rng(3, ISO_RNG_INIT, 0, (uint64_t)e / 4, bits);
    assert_true(large[e] == (float)(0.02 * iso_normal_from_bits(bits[e % 4])));
  }
  free(large);
  free(again);
  iso_model_config_fini(&config);
  model_close(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(import_fills_every_parameter),
      cmocka_unit_test(names_without_prefix),
      cmocka_unit_test(smaller_types),
      cmocka_unit_test(import_refuses),
      cmocka_unit_test(round_trip),
      cmocka_unit_test(normal_numbers),
      cmocka_unit_test(init_statistics),
      cmocka_unit_test(init_is_determined),
  };
  return cmocka_run_group_tests(tests, quiet, NULL);
}
