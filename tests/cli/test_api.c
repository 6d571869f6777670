/* SPDX-License-Identifier: Apache-2.0
 *
 * The public interface, through include/isotach.h alone: train, open, generate, errors.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "isotach.h"

#define EXAMPLES ISO_TEST_DATA "/../../examples"

static char folder[] = "/tmp/isotach-api.XXXXXX";

typedef struct text {
  char bytes[4096];
  size_t length;
  int tokens;
} text;

static void on_token(void *context, int32_t token, const char *bytes, size_t length) {
  text *t = context;
  assert_true(token >= 0 && token < 512);
  assert_true(t->length + length < sizeof t->bytes);
  memcpy(t->bytes + t->length, bytes, length);
  t->length += length;
  t->tokens++;
}

static void statuses_have_names_and_exit_codes(void **state) {
  assert_string_equal(isotach_version(), ISOTACH_VERSION);
  assert_string_equal(isotach_status_name(ISOTACH_ERR_NOT_FOUND), "not_found");
  assert_int_equal(isotach_exit_code(ISOTACH_OK), 0);
  assert_int_equal(isotach_exit_code(ISOTACH_STOPPED), 75);
}

static void a_run_trains_and_its_model_generates(void **state) {
  char run[256];
  snprintf(run, sizeof run, "run=%s/run", folder);
  const char *overrides[] = {run, "steps=8", "threads=2"};
  isotach_config *config;
  assert_int_equal(isotach_config_open(EXAMPLES "/tiny.yaml", overrides, 3, &config), ISOTACH_OK);
  isotach_train_result result;
  assert_int_equal(isotach_train(config, ISOTACH_TRAIN_QUIET, &result), ISOTACH_OK);
  assert_int_equal(result.step, 8);
  assert_true(result.loss > 3 && result.loss < 7);
  assert_true(result.bits_per_byte > 1 && result.bits_per_byte < 8);
  assert_int_equal(isotach_train(config, ISOTACH_TRAIN_QUIET, NULL), ISOTACH_OK); /* complete */
  isotach_config_close(&config);
  assert_null(config);

  isotach_model *model;
  assert_int_equal(isotach_model_open(run + 4, 1, &model), ISOTACH_OK);
  assert_int_equal(isotach_model_parameters(model), result.parameters);
  assert_int_equal(isotach_model_vocabulary(model), 512);
  const isotach_sampling sampling = {.temperature = 0.9, .top_p = 0.95, .seed = 7, .max_tokens = 20};
  text first = {0}, second = {0};
  assert_int_equal(isotach_generate(model, "First Citizen:", &sampling, on_token, &first), ISOTACH_OK);
  assert_int_equal(isotach_generate(model, "First Citizen:", &sampling, on_token, &second), ISOTACH_OK);
  assert_true(first.tokens > 0 && first.tokens <= 20);
  assert_int_equal(first.length, second.length);
  assert_memory_equal(first.bytes, second.bytes, first.length);
  isotach_model_close(&model);
  assert_null(model);
}

static void failures_hand_out_nothing_and_say_why(void **state) {
  isotach_config *config = (isotach_config *)folder;
  assert_int_equal(isotach_config_open("/nowhere.yaml", NULL, 0, &config), ISOTACH_ERR_NOT_FOUND);
  assert_null(config);
  assert_non_null(strstr(isotach_last_error(), "/nowhere.yaml"));
  const char *overrides[] = {"no.such=1"};
  assert_int_equal(isotach_config_open(EXAMPLES "/tiny.yaml", overrides, 1, &config), ISOTACH_ERR_CONFIG);
  assert_int_equal(isotach_train(NULL, 0, NULL), ISOTACH_ERR_USAGE);
  isotach_model *model;
  assert_int_equal(isotach_model_open("/nowhere", 0, &model), ISOTACH_ERR_NOT_FOUND);
  assert_null(model);
  assert_int_equal(isotach_model_open(NULL, 0, &model), ISOTACH_ERR_USAGE);
  isotach_config_close(&config); /* NULL is accepted */
  isotach_model_close(NULL);
}

static int set_up(void **state) {
  isotach_log_quiet(1);
  return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(statuses_have_names_and_exit_codes),
      cmocka_unit_test(a_run_trains_and_its_model_generates),
      cmocka_unit_test(failures_hand_out_nothing_and_say_why),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
