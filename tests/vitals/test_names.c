/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of names: a line of metrics.jsonl holds every row, under its name and with the field's value, and nothing
 * of a step's numbers beside them.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>

#include "io/scratch.h"
#include "train/vitals/vitals.h"

static const iso_step_metrics sample = {.step = 7,
                                        .tokens = 7168,
                                        .durable_step = 6,
                                        .loss = 3.25,
                                        .lr = 1e-3,
                                        .grad_norm = 0.75,
                                        .tokens_per_s = 4096,
                                        .mfu = 0.5,
                                        .wall_s = 0.25,
                                        .compute_s = 0.125,
                                        .data_wait_s = 0.0625,
                                        .reduce_wait_s = 0.03125,
                                        .storage_wait_s = 0.015625,
                                        .other_s = 0.015625,
                                        .incarnation = 3,
                                        .refused = true};

/* Words of a line that are no numbers of a step. */
static bool is_word(const char *name) {
  static const char *const words[] = {"time", "crc32c", "breached", "starved_stage", "starved_source"};
  for (size_t i = 0; i < ISO_COUNT(words); i++)
    if (strcmp(words[i], name) == 0) return true;
  return false;
}

static iso_json *written(const iso_step_metrics *step) {
  char run[128], *data;
  size_t bytes;
  iso_metrics *metrics;
  iso_json *json;
  scratch_make(run);
  assert_int_equal(iso_metrics_open(run, 0, &metrics), ISO_OK);
  assert_int_equal(iso_metrics_append(metrics, step), ISO_OK);
  assert_int_equal(iso_metrics_close(&metrics), ISO_OK);
  assert_int_equal(iso_lines_read(run, "metrics", &data, &bytes, NULL), ISO_OK);
  assert_non_null(data);
  assert_int_equal(iso_json_parse(data, bytes, "line", &json), ISO_OK);
  free(data);
  scratch_remove(run);
  return json;
}

static void a_line_is_the_table(void **state) {
  (void)state;
  iso_json *json = written(&sample);
  size_t known = 0;
  for (const iso_json *item = json->child; item; item = item->next) {
    const iso_vital *vital = iso_vital_find(item->string);
    if (!vital) {
      if (!is_word(item->string)) fail_msg("\"%s\" has no row in names.c", item->string);
      continue;
    }
    known++;
    const double value = cJSON_IsBool(item) ? (double)cJSON_IsTrue(item) : item->valuedouble;
    assert_true(value == iso_vital_value(vital, &sample));
  }
  assert_int_equal(known, iso_vital_count);
  iso_json_destroy(&json);
}

static void rows_are_apart(void **state) {
  (void)state;
  for (size_t i = 0; i < iso_vital_count; i++) {
    assert_ptr_equal(iso_vital_find(iso_vitals[i].name), &iso_vitals[i]);
    assert_true(iso_vitals[i].help[0]);
    for (size_t j = 0; j < i; j++) assert_true(iso_vitals[i].offset != iso_vitals[j].offset);
  }
  assert_null(iso_vital_find("lost"));
}

static void what_is_not_finite_is_null(void **state) {
  (void)state;
  iso_step_metrics step = sample;
  step.loss = NAN;
  step.grad_norm = INFINITY;
  iso_json *json = written(&step);
  assert_true(cJSON_IsNull(cJSON_GetObjectItem(json, "loss")));
  assert_true(cJSON_IsNull(cJSON_GetObjectItem(json, "grad_norm")));
  assert_true(cJSON_GetObjectItem(json, "lr")->valuedouble == 1e-3);
  iso_json_destroy(&json);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_line_is_the_table), cmocka_unit_test(rows_are_apart),
                                     cmocka_unit_test(what_is_not_finite_is_null)};
  return cmocka_run_group_tests_name("names", tests, NULL, NULL);
}
