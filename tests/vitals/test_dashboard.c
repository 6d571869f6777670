/* SPDX-License-Identifier: Apache-2.0
 *
 * What the dashboard shows of a step: the program is told in full and in order, its instructions are timed in a step
 * that was asked for and in no other, which changes no bit, and the timeline stays bounded however long a run is.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/scratch.h"
#include "train/vitals/vitals.h"

enum { SEQUENCE = 19, BATCH = 8, WORKERS = 2, MICRO = 2, THREADS = 3, STEPS = 6 };
static const char model_json[] = "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", "
                                 "\"hidden_size\": 48, \"intermediate_size\": 100, \"num_hidden_layers\": 3, "
                                 "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": 97, "
                                 "\"max_position_embeddings\": 64, \"tie_word_embeddings\": true}";
static iso_model_config model;
static int32_t tokens[BATCH * SEQUENCE], positions[BATCH * SEQUENCE], segments[BATCH * SEQUENCE];

static int setup(void **state) {
  (void)state;
  iso_json *json;
  iso_log_quiet(true);
  if (iso_json_parse(model_json, strlen(model_json), "test", &json) != ISO_OK) return 1;
  if (iso_model_config_parse(json, "test", &model) != ISO_OK) return 1;
  iso_json_destroy(&json);
  for (int i = 0; i < BATCH * SEQUENCE; i++) tokens[i] = i * 7 % 97, positions[i] = i % SEQUENCE;
  return 0;
}

static int teardown(void **state) {
  (void)state;
  iso_model_config_fini(&model);
  return 0;
}

static void open_run_of(iso_run *run, bool log, int64_t workers, int64_t micros) {
  memset(run, 0, sizeof *run);
  assert_int_equal(iso_device_create(THREADS, &run->device), ISO_OK);
  const iso_engine_options options = {.model = &model,
                                      .compute = ISO_BF16,
                                      .gradient = ISO_BF16,
                                      .workers = workers,
                                      .micro = MICRO,
                                      .micros = micros,
                                      .sequence = SEQUENCE,
                                      .train = true,
                                      .log = log,
                                      .segments = true};
  assert_int_equal(iso_engine_init(run->device, &options, &run->engine), ISO_OK);
  iso_model_init(iso_engine_graph(&run->engine), 11, run->engine.flat.master, NULL);
  iso_flat_refresh(&run->engine.flat, run->device);
}

static void open_run(iso_run *run, bool log) {
  open_run_of(run, log, WORKERS, 0);
}

static void close_run(iso_run *run) {
  iso_engine_fini(&run->engine);
  iso_device_destroy(&run->device);
}

static void take_step(iso_run *run, int64_t number) {
  iso_step step = {.inputs = {tokens, tokens, positions, segments}, .workers = WORKERS};
  step.micros = BATCH / WORKERS / MICRO;
  step.scored = BATCH * SEQUENCE;
  step.lr = 0.01f, step.beta1 = 0.9f, step.beta2 = 0.95f, step.eps = 1e-8f, step.clip_norm = 1;
  step.bias1 = (float)(1 - iso_pow_int(0.9, number));
  step.bias2 = (float)(1 - iso_pow_int(0.95, number));
  iso_exec_step(run->engine.exec, &step);
  assert_int_equal(step.status, ISO_OK);
}

static iso_json *parse(iso_string *text) {
  iso_json *json;
  assert_false(iso_string_failed(text));
  assert_int_equal(iso_json_parse(text->data, text->length, "test", &json), ISO_OK);
  iso_string_fini(text);
  return json;
}

static const iso_json *member(const iso_json *object, const char *name) {
  const iso_json *found = cJSON_GetObjectItemCaseSensitive(object, name);
  if (!found) fail_msg("there is no \"%s\"", name);
  return found;
}

static const char *text_of(const iso_json *object, const char *name) {
  return member(object, name)->valuestring;
}

/* ---- numbers ---- */

/* As the progress line and vitals.json have it (train/loop.c), also once old steps are forgotten. */
static void speed_is_smoothed_as_elsewhere(void **state) {
  (void)state;
  iso_live *live;
  const iso_history history = {0};
  assert_int_equal(iso_live_create("run", &history, &live), ISO_OK);
  assert_true(isnan(iso_live_smoothed(live, "tokens_per_s")));
  double expected = 0;
  for (int64_t step = 1; step <= 3000; step++) {
    const iso_step_metrics metrics = {.step = step, .tokens_per_s = 100 + (double)(step * 37 % 101), .mfu = NAN};
    iso_live_step(live, &metrics, 1.7e9);
    expected = expected > 0 ? 0.9 * expected + 0.1 * metrics.tokens_per_s : metrics.tokens_per_s;
    if (step == 1 || step % 500 == 0)
      assert_true(fabs(iso_live_smoothed(live, "tokens_per_s") - expected) < 1e-9 * expected);
  }
  assert_true(isnan(iso_live_smoothed(live, "mfu")));
  iso_live_destroy(&live);
}

/* ---- the program ---- */

/* What autodiff made (gradient ops, and products for inputs and weights) goes back, the rest of a micro-batch forward,
 * up to the loss. Rounding a gradient is part of the update, wherever it stands. */
static int pass_of(const iso_instruction *in, bool lost) {
  const char *op = iso_op_get(in->op)->text;
  if (in->phase == ISO_PHASE_UPDATE || strncmp(op, "grad_round", 10) == 0) return 2;
  const bool made = strstr(op, "_grad") || strcmp(op, "linear_dx") == 0 || strcmp(op, "linear_dw") == 0;
  if (made) assert_true(lost); /* else the program is none */
  return lost;
}

/* What an operand is said to take is what its type and shape are: of a view too, whose rows lie apart. */
static int check_sizes(const iso_json *one, const char *way, const iso_operand *operands, int count) {
  const iso_json *said = member(one, way)->child;
  int views = 0;
  for (int i = 0; i < count; i++) {
    if (!operands[i].present) continue;
    double bytes = (double)iso_dtype_size(operands[i].dtype);
    for (const iso_json *side = member(said, "shape")->child; side; side = side->next) bytes *= side->valuedouble;
    assert_true(member(said, "bytes")->valuedouble == bytes);
    views += operands[i].bytes != (int64_t)bytes;
    said = said->next;
  }
  assert_null(said);
  return views;
}

static void check_program(iso_run *run) {
  iso_string text = {0};
  iso_program_describe(&run->engine, &text);
  iso_json *json = parse(&text);
  const iso_program *program = run->engine.program;
  const iso_json *list = member(json, "instructions");
  assert_int_equal(cJSON_GetArraySize(list), program->instruction_count);
  assert_int_equal(cJSON_GetArraySize(member(json, "buffers")), program->buffer_count);
  int index = 0, connected = 0, layers[4][3] = {{0}}, passes[3] = {0};
  int views = 0;
  bool lost = false;
  for (const iso_json *one = list->child; one; one = one->next, index++) {
    static const char *const names[] = {"forward", "backward", "update"};
    const iso_instruction *in = &program->instructions[index];
    const int pass = pass_of(in, lost);
    assert_string_equal(text_of(one, "op"), iso_op_get(in->op)->text);
    assert_int_equal(member(one, "flop")->valuedouble, in->flop);
    if (strcmp(text_of(one, "pass"), names[pass]) != 0)
      fail_msg("%d, %s, is said to be of the %s pass", index, text_of(one, "op"), text_of(one, "pass"));
    lost = lost || in->op == ISO_OP_LINEAR_CROSS_ENTROPY;
    passes[pass]++;
    views += check_sizes(one, "in", in->inputs, in->input_count);
    views += check_sizes(one, "out", in->outputs, in->output_count);
    for (const iso_json *from = member(one, "from")->child; from; from = from->next) {
      assert_in_range(from->valueint, 0, index - 1);
      connected++;
    }
    const char *layer = text_of(one, "layer");
    if (strncmp(layer, "layers.", 7) == 0) layers[layer[7] - '0'][pass]++;
  }
  assert_true(views > 0); /* else nothing of it is tested */
  assert_true(connected >= program->instruction_count - 4);
  assert_true(passes[0] > 15 && passes[1] > passes[0] && passes[2] >= 3);
  for (int layer = 0; layer < 3; layer++) /* alike, but for what the first and the last one do beside */
    for (int pass = 0; pass < 2; pass++) assert_in_range(layers[layer][pass], layers[1][pass] - 3, layers[1][pass] + 3);
  assert_true(layers[1][0] >= 5 && layers[1][1] >= 8);
  iso_json_destroy(&json);
}

/* Of several micro-batches, which keep sums of gradients, and of one, which keeps none. */
static void the_program_is_told_in_order(void **state) {
  (void)state;
  static const struct { int64_t workers, micros; } shapes[] = {{WORKERS, 0}, {1, 4}, {WORKERS, 1}, {1, 1}};
  for (size_t i = 0; i < ISO_COUNT(shapes); i++)
    for (int log = 0; log < 2; log++) {
      iso_run run;
      open_run_of(&run, log, shapes[i].workers, shapes[i].micros);
      check_program(&run);
      close_run(&run);
    }
}

static void the_memory_plan_adds_up(void **state) {
  (void)state;
  for (int log = 0; log < 2; log++) {
    iso_run run;
    iso_plan_row rows[ISO_PLAN_ROWS];
    iso_string text = {0};
    open_run(&run, log);
    const int count = iso_engine_plan_rows(&run.engine, rows);
    int64_t sum = 0;
    iso_engine_plan(&run.engine, &text);
    for (int i = 0; i < count; i++) {
      char line[128];
      sum += rows[i].bytes;
      snprintf(line, sizeof line, "%-44s %16lld bytes", rows[i].what, (long long)rows[i].bytes);
      assert_non_null(strstr(text.data, line)); /* as isotach inspect memory says it */
    }
    assert_in_range(sum, iso_engine_bytes(&run.engine) * 3 / 4, iso_engine_bytes(&run.engine));
    iso_string_fini(&text);
    close_run(&run);
  }
}

/* ---- times ---- */

static iso_json *times_of(iso_profile *profile) {
  iso_string text = {0};
  iso_profile_print(profile, &text);
  return parse(&text);
}

static int64_t looks_of(iso_profile *profile) {
  iso_json *json = times_of(profile);
  const int64_t looks = member(json, "looks")->valueint;
  iso_json_destroy(&json);
  return looks;
}

static double item(const iso_json *json, const char *name, int i) {
  return cJSON_GetArrayItem(member(json, name), i)->valuedouble;
}

static void step_with(iso_run *run, iso_profile *profile, int64_t number, bool busy) {
  iso_profile_begin(profile, busy);
  take_step(run, number);
  iso_profile_end(profile, number);
}

/* Where gradients are rounded one by one that is done in the last pass alone, with the tree's last addition: the others
 * find nothing to do, and are counted neither as runs nor by what one of them does. */
static void check_row(const iso_json *json, const iso_instruction *in, int i) {
  const bool part = in->op == ISO_OP_GRAD_ROUND_PART, micro = in->phase == ISO_PHASE_MICRO && !part;
  const int64_t folded = part ? (int64_t)(in->attributes[ISO_ATTR_END] - in->attributes[ISO_ATTR_BEGIN]) : 0;
  const double calls = micro ? BATCH / MICRO : 1;
  assert_true(item(json, "calls", i) == calls);
  assert_true(item(json, "flop", i) == calls * (double)(in->flop + folded));
  assert_true(item(json, "bytes", i) == calls * (double)(in->bytes + 12 * folded));
  const double mean = item(json, "seconds", i), most = item(json, "longest_s", i);
  assert_true(mean > 0 && most >= 0.999 * mean && most <= 3.001 * mean);
}

static void check_timed(bool log) {
  iso_run run, other;
  iso_profile *profile;
  open_run(&run, log);
  open_run(&other, log);
  assert_int_equal(iso_profile_create(&run, &profile), ISO_OK);
  step_with(&run, profile, 1, false); /* nobody has asked */
  assert_int_equal(looks_of(profile), 0);
  step_with(&run, profile, 2, true); /* traced by somebody else */
  assert_int_equal(looks_of(profile), 0);
  step_with(&run, profile, 3, false);
  step_with(&run, profile, 4, false);
  iso_json *json = times_of(profile);
  assert_int_equal(member(json, "looks")->valueint, 1);
  assert_int_equal(member(json, "step")->valueint, 3);
  const iso_program *program = run.engine.program;
  assert_int_equal(cJSON_GetArraySize(member(json, "calls")), program->instruction_count + 1);
  int parts = 0;
  for (int i = 0; i < program->instruction_count; i++) {
    check_row(json, &program->instructions[i], i);
    parts += program->instructions[i].op == ISO_OP_GRAD_ROUND_PART;
  }
  assert_int_equal(parts > 0, log);
  assert_true(item(json, "calls", program->instruction_count) == (log ? 0 : WORKERS - 1)); /* additions of the tree */
  iso_json_destroy(&json);
  for (int64_t number = 5; number <= STEPS; number++) step_with(&run, profile, number, false);
  for (int64_t number = 1; number <= STEPS; number++) take_step(&other, number);
  const size_t bytes = (size_t)run.engine.flat.options.elements * sizeof(float);
  assert_memory_equal(run.engine.flat.master, other.engine.flat.master, bytes);
  assert_memory_equal(run.engine.flat.moment2, other.engine.flat.moment2, bytes);
  iso_profile_destroy(&profile);
  close_run(&run);
  close_run(&other);
}

static void a_step_that_is_asked_for_is_timed(void **state) {
  (void)state;
  check_timed(false);
  check_timed(true);
}

/* ---- the timeline ---- */

static void the_timeline_is_bounded(void **state) {
  (void)state;
  char folder[128], uuid[37];
  iso_run run = {0};
  iso_timeline *timeline;
  iso_history history = {.start_count = 1};
  history.starts[0] = (iso_start){.number = 1, .time = 1e9, .gap_s = 2};
  scratch_make(folder);
  assert_int_equal(iso_run_folder_open(folder, uuid), ISO_OK);
  for (int number = 1; number <= 2; number++) {
    iso_incarnation one = {.number = number, .begins_after = 10 * (number - 1), .tier = "scalar", .build = "test"};
    one.optimizer_version = 1, one.virtual_workers = 1, one.ranks = number;
    memset(one.config_digest, 'a', 64);
    assert_int_equal(iso_incarnation_publish(folder, &one), ISO_OK);
    run.incarnation = one;
  }
  run.config.run = folder;
  run.snapshot_step = -1;
  run.replayed_steps = 7;
  assert_int_equal(iso_timeline_create(&run, &history, &timeline), ISO_OK);
  for (int64_t step = 11; step <= 20000; step++) {
    run.at.step = step;
    if (step % 5 == 0) run.snapshot_step = step;
    iso_timeline_step(timeline, &run, 1.7e9 + (double)step);
  }
  iso_string text = {0};
  iso_timeline_print(timeline, &text);
  iso_json *json = parse(&text);
  const int count = cJSON_GetArraySize(json);
  assert_in_range(count, 300, 512);
  assert_string_equal(text_of(json->child, "kind"), "start");
  assert_string_equal(text_of(json->child, "text"), "start 1, 1 rank, 2.0 s after the last step before");
  assert_non_null(strstr(text_of(json->child->next, "text"), "start 2, 2 ranks; 7 steps replayed"));
  assert_int_equal(member(cJSON_GetArrayItem(json, count - 1), "step")->valueint, 20000);
  assert_int_equal(member(cJSON_GetArrayItem(json, count - 2), "step")->valueint, 19995);
  iso_json_destroy(&json);
  iso_timeline_destroy(&timeline);
  scratch_remove(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(speed_is_smoothed_as_elsewhere), cmocka_unit_test(the_program_is_told_in_order),
      cmocka_unit_test(the_memory_plan_adds_up),        cmocka_unit_test(a_step_that_is_asked_for_is_timed),
      cmocka_unit_test(the_timeline_is_bounded),
  };
  return cmocka_run_group_tests_name("dashboard", tests, setup, teardown);
}
