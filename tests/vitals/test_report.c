/* SPDX-License-Identifier: Apache-2.0
 *
 * report.html: the numbers in the page are those of metrics.jsonl, nothing of it is to be loaded from anywhere, a run
 * whose names are hostile stays text, and damage is seen.
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

static char parent[128], run[192], *page;
static iso_json *data;

static iso_step_metrics step_at(int64_t step) {
  iso_step_metrics m = {.step = step, .tokens = 100 * step, .durable_step = step - 1, .incarnation = step > 30 ? 2 : 1};
  m.loss = 8.0 - 0.01 * (double)step;
  m.wall_s = step % 10 == 0 ? 0.02 : 0.01;
  m.compute_s = 0.75 * m.wall_s;
  m.data_wait_s = step % 10 == 0 ? 0.004 : 0.001;
  m.storage_wait_s = 0.0005;
  m.other_s = m.wall_s - m.compute_s - m.data_wait_s - m.storage_wait_s;
  m.tokens_per_s = 100 / m.wall_s;
  m.starved = step % 10 == 0;
  m.starved_stage = "read";
  m.starved_source = "</script><b>\"x\"";
  return m;
}

static void write_steps(int64_t steps) {
  iso_metrics *metrics;
  assert_int_equal(iso_metrics_open(run, 0, &metrics), ISO_OK);
  for (int64_t step = 1; step <= steps; step++) {
    const iso_step_metrics m = step_at(step);
    assert_int_equal(iso_metrics_append(metrics, &m), ISO_OK);
  }
  assert_int_equal(iso_metrics_close(&metrics), ISO_OK);
}

/* The page's text, and the JSON in it. */
static void read_page(void) {
  static const char open[] = "<script type=\"application/json\" id=\"data\">\n";
  char path[256];
  size_t bytes;
  free(page);
  iso_json_destroy(&data);
  snprintf(path, sizeof path, "%s/report.html", run);
  assert_int_equal(iso_file_read(path, &page, &bytes), ISO_OK);
  const char *begin = strstr(page, open), *end = begin ? strstr(begin, "\n</script>") : NULL;
  assert_non_null(end);
  begin += sizeof open - 1;
  assert_int_equal(iso_json_parse(begin, (size_t)(end - begin), "page", &data), ISO_OK);
}

static iso_verdict verdict; /* of the page written last */
static iso_starts told = {.last_step = -1};

static void write_page(const char *word, int64_t last_step) {
  iso_history history;
  assert_int_equal(iso_history_read(run, &history), ISO_OK);
  const iso_verdict_input input = {.run = run, .history = &history, .starts = &told, .last_step = last_step};
  iso_verdict_fini(&verdict);
  assert_int_equal(iso_verdict_find(&input, &verdict), ISO_OK);
  iso_report_page_write(run, word, &history, &verdict);
  iso_history_fini(&history);
}

static void make_page(int64_t steps) {
  write_steps(steps);
  write_page("done", steps);
  read_page();
}

static int setup(void **state) {
  (void)state;
  iso_log_quiet(true);
  scratch_make(parent);
  snprintf(run, sizeof run, "%s/a<b>&\"c", parent);
  assert_int_equal(iso_path_make(run), ISO_OK);
  char uuid[37];
  assert_int_equal(iso_run_folder_open(run, uuid), ISO_OK);
  for (int number = 1; number <= 2; number++) {
    const iso_incarnation start = {.number = number,
                                   .begins_after = number == 1 ? 0 : 30,
                                   .tier = "scalar",
                                   .build = "test",
                                   .optimizer_version = 1,
                                   .virtual_workers = 1,
                                   .ranks = number};
    iso_incarnation one = start;
    memset(one.config_digest, 'a', 64);
    assert_int_equal(iso_incarnation_publish(run, &one), ISO_OK);
    iso_start_record *begun = iso_starts_add(&told, number);
    assert_non_null(begun);
    begun->started_s = 0;
  }
  return 0;
}

static int teardown(void **state) {
  (void)state;
  free(page);
  iso_json_destroy(&data);
  iso_verdict_fini(&verdict);
  iso_starts_fini(&told);
  scratch_remove(parent);
  return 0;
}

static const iso_json *judged(const char *name) {
  return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(data, "judged"), name);
}

static double number_of(const iso_json *object, const char *name) {
  const iso_json *item = cJSON_GetObjectItemCaseSensitive(object, name);
  assert_true(cJSON_IsNumber(item));
  return item->valuedouble;
}

static double element_of(const char *name, const char *kind, int index) {
  const iso_json *points = cJSON_GetObjectItemCaseSensitive(data, "points");
  const iso_json *series = cJSON_GetObjectItemCaseSensitive(points, name);
  const iso_json *item = cJSON_GetArrayItem(kind ? cJSON_GetObjectItemCaseSensitive(series, kind) : series, index);
  assert_true(cJSON_IsNumber(item));
  return item->valuedouble;
}

static void near(double value, double wanted) {
  if (!(fabs(value - wanted) <= 2e-5 * fabs(wanted))) fail_msg("%.9g, wanted %.9g", value, wanted);
}

static void numbers_are_those_of_the_lines(void **state) {
  (void)state;
  make_page(60);
  for (int i = 0; i < 60; i++) {
    const iso_step_metrics m = step_at(i + 1);
    near(element_of("step", NULL, i), i + 1);
    for (size_t row = 0; row < iso_vital_count; row++)
      if (iso_vitals[row].type == ISO_VITAL_REAL)
        near(element_of(iso_vitals[row].name, "mean", i), iso_vital_value(&iso_vitals[row], &m));
  }
  near(number_of(judged("flatness"), "p99_over_median"), 2);
  near(number_of(judged("flatness"), "last_over_first_tenth"), 0.06 / 0.07); /* step 60 is a slow one */
  near(judged("effective_training_share")->valuedouble, 0.75);
  const iso_json *wall = cJSON_GetObjectItem(judged("budget"), "wall_s");
  near(number_of(wall, "p50"), 0.01);
  near(number_of(wall, "most"), 0.02);
  near(number_of(data, "loss"), 7.4); /* the last step's */
  assert_int_equal(cJSON_GetObjectItem(data, "steps")->valueint, 60);
  assert_string_equal(cJSON_GetObjectItem(data, "run")->valuestring, run);
}

static double seconds_of(const char *cause, const char **detail) {
  for (const iso_json *one = judged("causes")->child; one; one = one->next)
    if (strcmp(cJSON_GetObjectItem(one, "cause")->valuestring, cause) == 0) {
      *detail = cJSON_GetObjectItem(one, "detail")->valuestring;
      return number_of(one, "seconds");
    }
  return NAN;
}

static void causes_are_parts_of_the_time(void **state) {
  (void)state;
  make_page(60);
  double before = INFINITY;
  const char *detail;
  for (const iso_json *one = judged("causes")->child; one; one = one->next) {
    assert_true(number_of(one, "seconds") > 0 && number_of(one, "seconds") <= before);
    before = number_of(one, "seconds");
  }
  near(seconds_of("other", &detail), 54 * 0.001 + 6 * 0.0005);
  near(seconds_of("disk", &detail), 60 * 0.0005);
  near(seconds_of("source", &detail), 54 * 0.001 + 6 * 0.004);
  assert_string_equal(detail, "6 batches came late, 0.024 s of it at read of \"</script><b>\\\"x\\\"\"");
  assert_true(isnan(seconds_of("rank", &detail)));
}

/* Without the beginning of a start that took steps every share of the whole time would be too high. */
static void what_is_not_known_is_no_share(void **state) {
  (void)state;
  told.list[0].started_s = 0.2; /* beside 0.66 s of steps, and of those that the test before took, which are cut off */
  make_page(60);
  near(judged("effective_training_share")->valuedouble, 0.75 * 0.66 / (2 * 0.66 + 0.2));
  assert_non_null(strstr(verdict.lines.data, "useful compute"));
  told.list[1].started_s = NAN;
  write_page("done", 60);
  read_page();
  assert_true(cJSON_IsNull(judged("effective_training_share")));
  for (const iso_json *one = judged("causes")->child; one; one = one->next) {
    assert_true(number_of(one, "seconds") > 0);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(one, "share")));
  }
  assert_null(strstr(verdict.lines.data, "useful compute"));
  assert_non_null(strstr(verdict.lines.data, "starts.json lacks a start"));
  assert_non_null(strstr(verdict.lines.data, "# where the rest went: "));
  assert_null(strchr(verdict.lines.data, '%'));
  told.list[0].started_s = told.list[1].started_s = 0;
}

/* Terminal, report.json and page have one judgement. */
static void the_page_says_what_the_verdict_says(void **state) {
  (void)state;
  make_page(60);
  iso_string text = {0};
  iso_json *own;
  iso_string_printf(&text, "{\"steps\": 60%s}", verdict.members.data);
  assert_int_equal(iso_json_parse(text.data, text.length, "verdict", &own), ISO_OK);
  assert_true(cJSON_Compare(own, cJSON_GetObjectItem(data, "judged"), true));
  iso_json_destroy(&own);
  iso_string_fini(&text);
  const char *detail;
  char wanted[128];
  snprintf(wanted, sizeof wanted, "P99 of the steps is %.3f times the median",
           number_of(judged("flatness"), "p99_over_median"));
  assert_non_null(strstr(verdict.lines.data, wanted));
  assert_non_null(strstr(verdict.lines.data, "# not level: "));
  assert_false(cJSON_IsTrue(judged("level")));
  snprintf(wanted, sizeof wanted, "source %.2f s (", seconds_of("source", &detail));
  assert_non_null(strstr(verdict.lines.data, wanted));
}

static void starts_are_told(void **state) {
  (void)state;
  make_page(60);
  const iso_json *starts = cJSON_GetObjectItem(data, "starts"), *second = cJSON_GetArrayItem(starts, 1);
  assert_int_equal(cJSON_GetArraySize(starts), 2);
  assert_int_equal(cJSON_GetObjectItem(second, "begins_after")->valueint, 30);
  assert_int_equal(cJSON_GetObjectItem(second, "first")->valueint, 31);
  assert_int_equal(cJSON_GetObjectItem(second, "steps")->valueint, 30);
  assert_int_equal(cJSON_GetObjectItem(second, "ranks")->valueint, 2);
}

/* 6,000 lines are 375 points of sixteen. */
static void many_steps_are_few_points(void **state) {
  (void)state;
  make_page(6000);
  const iso_json *points = cJSON_GetObjectItem(data, "points");
  assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(points, "step")), 375);
  near(element_of("step", NULL, 4), 80); /* 65 to 80, of them 70 and 80 slow */
  near(element_of("wall_s", "mean", 4), 0.01125);
  near(element_of("wall_s", "low", 4), 0.01);
  near(element_of("wall_s", "high", 4), 0.02);
  near(element_of("tokens_per_s", "mean", 4), 100 / 0.01125); /* of the time, not of the steps */
  near(element_of("loss", "mean", 4), 8.0 - 0.01 * 72.5);
  near(number_of(data, "loss"), 8.0 - 0.01 * 6000); /* the last step's, not the last point's */
  assert_true(strlen(page) < 400000);
}

static size_t times(const char *text) {
  size_t count = 0;
  for (const char *found = page; (found = strstr(found, text)); found += strlen(text)) count++;
  return count;
}

static void the_page_needs_nothing_else(void **state) {
  (void)state;
  make_page(60);
  assert_int_equal(strncmp(page, "<!DOCTYPE html>\n", 16), 0);
  for (const char *const *tag = (const char *const[]){"html", "head", "body", "main", "style", "title", NULL}; *tag;
       tag++) {
    char text[32];
    snprintf(text, sizeof text, "</%s>", *tag);
    assert_int_equal(times(text), 1);
  }
  assert_int_equal(times("<script"), 3); /* no name of ours has opened or closed one */
  assert_int_equal(times("</script>"), 3);
  assert_int_equal(times("{{"), 0);
  assert_non_null(strstr(page, "/a&lt;b&gt;&amp;&quot;c</title>"));
  assert_int_equal(times("src="), 0);
  assert_int_equal(times("@import"), 0);
  assert_int_equal(times("url("), 0);
  assert_int_equal(times("fetch("), 0);
  assert_int_equal(times("href=") - times("href=\"data:,\""), 0);
  assert_int_equal(times("://") - times("http://www.w3.org/2000/svg"), 0); /* a namespace, not an address */
}

static iso_status check(void) {
  iso_string faults = {0};
  const iso_status status = iso_report_page_check(run, &faults);
  assert_int_equal(status == ISO_OK, faults.length == 0);
  iso_string_fini(&faults);
  return status;
}

static void damage_is_seen(void **state) {
  (void)state;
  make_page(60);
  char path[256];
  snprintf(path, sizeof path, "%s/report.html", run);
  const size_t bytes = strlen(page);
  assert_int_equal(check(), ISO_OK);
  for (size_t i = 0; i < bytes; i += i + 50 < bytes ? 977 : 1) {
    page[i] ^= 4;
    scratch_write(path, page, bytes);
    assert_int_equal(check(), ISO_ERR_FORMAT);
    page[i] ^= 4;
  }
  scratch_write(path, page, bytes / 2);
  assert_int_equal(check(), ISO_ERR_FORMAT);
  scratch_write(path, "", 0);
  assert_int_equal(check(), ISO_ERR_FORMAT);
  unlink(path);
  assert_int_equal(check(), ISO_OK); /* it is made of what stands elsewhere */
}

/* Several signs out of bounds: what stands behind the array counts as it does behind an empty one; so with objects. */
static void arrays_hide_nothing(void **state) {
  (void)state;
  static const char *const breached[] = {"[]", "[\"data_load_latency\", \"flatness\"]",
                                         "[\"a, ]b\", [1, {\"wall_s\": 9}], \"\\\"}\"]",
                                         "{\"flatness\": {\"rank\": 1, \"wall_s\": 7}, \"time\": 5}"};
  iso_string text = {0};
  char path[256];
  snprintf(path, sizeof path, "%s/metrics.jsonl", run);
  for (int step = 1; step <= 8; step++) {
    iso_string_printf(&text, "{\"step\": %d, \"wall_s\": 0.5, \"data_wait_s\": 0.25, \"incarnation\": %d, ", step,
                      step > 4 ? 2 : 1);
    iso_string_printf(&text, "\"starved\": true, \"breached\" : %s , \"starved_stage\": \"read\", ",
                      breached[(step - 1) % 4]);
    iso_string_printf(&text, "\"starved_source\": \"x, [y\", \"time\": %d}\n", 1000 + step + (step > 4 ? 60 : 0));
  }
  scratch_write(path, text.data, text.length);
  iso_string_fini(&text);
  iso_history h;
  assert_int_equal(iso_history_read(run, &h), ISO_OK);
  assert_int_equal(h.steps, 8);
  assert_int_equal(h.starved_steps, 8);
  assert_int_equal(h.starved[0].steps, 8);
  assert_true(h.starved[0].seconds == 2 && h.starved[1].steps == 0);
  assert_true(h.ended == 1068 && h.began == 1000.5);
  assert_int_equal(h.start_count, 2);
  assert_true(h.starts[1].gap_s == 60.5 && iso_history_spread(&h, "wall_s").sum == 4);
  iso_history_fini(&h);
}

/* Finite, and yet what is added to them is not. */
static void numbers_that_no_run_has(void **state) {
  (void)state;
  static const char lines[] = "{\"step\": 1, \"wall_s\": 0.5, \"time\": 10}\n"
                              "{\"step\": 2, \"wall_s\": 1e308, \"loss\": -1.7e308, \"time\": 1e308}\n"
                              "{\"step\": 3, \"wall_s\": 1.7e308, \"loss\": 1.7e308, \"time\": 12}\n";
  char path[256];
  snprintf(path, sizeof path, "%s/metrics.jsonl", run);
  scratch_write(path, lines, strlen(lines));
  iso_history h;
  assert_int_equal(iso_history_read(run, &h), ISO_OK);
  const iso_vital_spread wall = iso_history_spread(&h, "wall_s");
  assert_true(wall.sum == 0.5 && wall.std == 0);
  assert_true(isfinite(h.began) && isfinite(h.ended));
  iso_history_fini(&h);
}

/* Without their seals lines may say anything: what cannot be is not known, and no share is more than the whole. */
static void shares_that_no_run_has(void **state) {
  (void)state;
  static const char lines[] =
      "{\"step\": 1, \"wall_s\": 0.5, \"compute_s\": 0.4, \"mfu\": 0.5, \"tokens_per_s\": 100, \"incarnation\": 1}\n"
      "{\"step\": 2, \"wall_s\": 0.5, \"compute_s\": 1e22, \"mfu\": 1e99, \"tokens_per_s\": 1e99, \"time\": 1e99}\n"
      "{\"step\": 1e99, \"wall_s\": 1e99, \"compute_s\": 1e99, \"preempted_s\": 1e99, \"incarnation\": 1e99}\n"
      "{\"step\": 4, \"wall_s\": -3, \"data_wait_s\": 5, \"tokens\": -1}\n"
      "{\"step\": 5, \"compute_s\": 400}\n";
  char path[256];
  double first;
  snprintf(path, sizeof path, "%s/metrics.jsonl", run);
  scratch_write(path, lines, strlen(lines));
  write_page("done", 5);
  read_page();
  iso_history h;
  assert_int_equal(iso_history_read(run, &h), ISO_OK);
  assert_true(iso_history_spread(&h, "wall_s").sum == 1 && iso_history_rate(&h) == 100);
  near(iso_history_peak(&h, 1e7, &first), 100 * 1e7 / 0.5 * 1e-9);
  iso_history_fini(&h);
  assert_true(cJSON_IsNull(judged("effective_training_share")));
  assert_null(strstr(verdict.lines.data, "useful compute"));
  for (const char *at = verdict.lines.data; *at; at++) assert_true(strspn(at, "0123456789") < 8);
}

/* Lines as other versions may have written them, and none at all. */
static void strange_lines(void **state) {
  (void)state;
  static const char *const lines[] = {
      "{\"step\": 1}\n", "{\"step\": 2, \"loss\": null, \"wall_s\": 1e999}\n", "{\"step\": 3, \"other\": \"\\\\\"}\n",
      "{\"step\": 4, \"loss\":2.5,\"wall_s\":0.5}\n", "{\"step\": 5, \"loss\": \"a, b\", \"mfu\": 0.5}\n"};
  iso_string text = {0};
  char path[256];
  snprintf(path, sizeof path, "%s/metrics.jsonl", run);
  for (size_t i = 0; i < ISO_COUNT(lines); i++) iso_string_append(&text, lines[i], strlen(lines[i]));
  scratch_write(path, text.data, text.length);
  write_page("stopped", 5);
  read_page();
  assert_int_equal(cJSON_GetObjectItem(data, "steps")->valueint, 5);
  near(element_of("loss", "mean", 3), 2.5);
  near(element_of("mfu", "mean", 4), 0.5);
  scratch_write(path, "", 0);
  char page_path[256];
  snprintf(page_path, sizeof page_path, "%s/report.html", run);
  unlink(page_path);
  write_page("failed", 5);
  assert_false(iso_path_exists(page_path)); /* no step, no page */
  iso_string_fini(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(numbers_are_those_of_the_lines),
      cmocka_unit_test(what_is_not_known_is_no_share),
      cmocka_unit_test(causes_are_parts_of_the_time),
      cmocka_unit_test(the_page_says_what_the_verdict_says),
      cmocka_unit_test(starts_are_told),
      cmocka_unit_test(many_steps_are_few_points),
      cmocka_unit_test(the_page_needs_nothing_else),
      cmocka_unit_test(damage_is_seen),
      cmocka_unit_test(arrays_hide_nothing),
      cmocka_unit_test(numbers_that_no_run_has),
      cmocka_unit_test(shares_that_no_run_has),
      cmocka_unit_test(strange_lines),
  };
  return cmocka_run_group_tests_name("report", tests, setup, teardown);
}
