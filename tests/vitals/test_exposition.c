/* SPDX-License-Identifier: Apache-2.0
 *
 * The text for Prometheus: every line is one of the format's, every row of the table of names is there with its value,
 * and what a run is called cannot break a line.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <math.h>

#include "io/scratch.h"
#include "train/vitals/vitals.h"

static char run[128];
static iso_live *live;
static iso_string text;
static const iso_outputs_head head = {.run = "a\"b\\c\nd",
                                      .uuid = "00000000-0000-4000-8000-000000000000",
                                      .tier = "scalar",
                                      .steps = 500,
                                      .parameters = 1234,
                                      .ranks = 2,
                                      .threads = 3};

static int setup(void **state) {
  (void)state;
  scratch_make(run);
  assert_int_equal(iso_live_create(run, &(iso_history){0}, &live), ISO_OK);
  for (int64_t step = 1; step <= 2000; step++) {
    iso_step_metrics m = {.step = step, .tokens = 100 * step, .starved = step % 4 == 0, .loss = NAN};
    m.wall_s = (double)(step % 100 + 1) * 1e-3;
    m.compute_s = 0.5 * m.wall_s;
    m.lr = INFINITY;
    m.tokens_per_s = 4096.5;
    iso_live_step(live, &m, 1.7e9 + (double)step);
  }
  iso_exposition_print(&head, live, &text);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  iso_live_destroy(&live);
  iso_string_fini(&text);
  scratch_remove(run);
  return 0;
}

static bool is_name(const char **at) {
  const char *begin = *at;
  while (isalnum((unsigned char)**at) || **at == '_' || **at == ':') (*at)++;
  return *at > begin && !isdigit((unsigned char)*begin);
}

static bool is_labels(const char **at) {
  if (**at != '{') return true;
  do {
    (*at)++;
    if (!is_name(at) || **at != '=' || *++*at != '"') return false;
    for (++*at; **at != '"'; (*at)++) {
      if (**at == '\n' || !**at) return false;
      if (**at == '\\' && !strchr("\\\"n", *++*at)) return false;
    }
    ++*at;
  } while (**at == ',');
  return *(*at)++ == '}';
}

/* name{label="value",...} number */
static bool is_sample(const char *line) {
  char *end;
  if (!is_name(&line) || !is_labels(&line) || *line++ != ' ') return false;
  (void)strtod(line, &end);
  return end > line && *end == '\n';
}

static void every_line_is_of_the_format(void **state) {
  (void)state;
  char family[80] = "";
  int samples = 0;
  for (const char *line = text.data; *line; line = strchr(line, '\n') + 1) {
    if (line[0] == '#') {
      char kind[8], name[80], word[16];
      assert_int_equal(sscanf(line, "# %7s %79s %15s", kind, name, word), 3);
      if (strcmp(kind, "HELP") == 0) {
        snprintf(family, sizeof family, "%s", name);
        continue;
      }
      assert_string_equal(kind, "TYPE");
      assert_string_equal(name, family); /* directly behind its help */
      assert_true(strcmp(word, "gauge") == 0 || strcmp(word, "counter") == 0 || strcmp(word, "summary") == 0);
      continue;
    }
    samples++;
    if (!is_sample(line) || strncmp(line, family, strlen(family)) != 0)
      fail_msg("no sample of %s: %.80s", family, line);
  }
  assert_true(samples > (int)iso_vital_count);
}

static double value_of(const char *sample) {
  char wanted[96];
  snprintf(wanted, sizeof wanted, "\n%s ", sample);
  const char *found = strstr(text.data, wanted);
  if (!found) fail_msg("no %s", sample);
  return strtod(found + strlen(wanted), NULL);
}

static void every_name_has_its_value(void **state) {
  (void)state;
  for (size_t row = 0; row < iso_vital_count; row++) {
    char name[80];
    snprintf(name, sizeof name, "# TYPE isotach_%s", iso_vitals[row].name);
    assert_non_null(strstr(text.data, name));
  }
  assert_true(value_of("isotach_step") == 2000);
  assert_true(value_of("isotach_tokens") == 200000);
  assert_true(value_of("isotach_tokens_per_s") == 4096.5);
  assert_true(isnan(value_of("isotach_loss")));
  assert_true(isinf(value_of("isotach_lr")));
  assert_true(value_of("isotach_starved_total") == 500);
  assert_true(value_of("isotach_refused_total") == 0);
  assert_true(value_of("isotach_wall_s_count") == 2000);
  assert_true(fabs(value_of("isotach_wall_s_sum") - 2000 * 50.5e-3) < 1e-9);
  assert_true(fabs(value_of("isotach_wall_s{quantile=\"0.5\"}") - 0.05) <= 0.003);
  assert_true(value_of("isotach_wall_s{quantile=\"0.99\"}") >= 0.098);
  assert_true(value_of("isotach_steps") == 500);
  assert_true(value_of("isotach_time") == 1.7e9 + 2000);
  assert_non_null(strstr(text.data, "isotach_run_info{run=\"a\\\"b\\\\c\\nd\",uuid=\"0"));
}

static void curves_go_on_from_the_starts_before(void **state) {
  (void)state;
  char before[128];
  iso_metrics *metrics;
  iso_live *other;
  scratch_make(before);
  assert_int_equal(iso_metrics_open(before, 0, &metrics), ISO_OK);
  for (int64_t step = 1; step <= 5; step++)
    assert_int_equal(iso_metrics_append(metrics, &(iso_step_metrics){.step = step, .loss = 2}), ISO_OK);
  assert_int_equal(iso_metrics_close(&metrics), ISO_OK);
  iso_history history;
  assert_int_equal(iso_history_read(before, &history), ISO_OK);
  assert_int_equal(iso_live_create(before, &history, &other), ISO_OK);
  iso_history_fini(&history);
  iso_live_number number;
  const size_t loss = (size_t)(iso_vital_find("loss") - iso_vitals);
  iso_live_read(other, loss, &number);
  assert_int_equal(number.steps, 0);
  assert_true(isnan(number.last) && number.sum == 0);
  iso_live_step(other, &(iso_step_metrics){.step = 6, .loss = 1}, 1);
  const iso_points *points = iso_live_points(other);
  assert_int_equal(points->count, 6);
  assert_true(iso_point_mean(iso_points_get(points, loss, 4)) == 2);
  assert_true(iso_point_mean(iso_points_get(points, loss, 5)) == 1);
  iso_live_destroy(&other);
  scratch_remove(before);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_line_is_of_the_format),
      cmocka_unit_test(every_name_has_its_value),
      cmocka_unit_test(curves_go_on_from_the_starts_before),
  };
  return cmocka_run_group_tests_name("exposition", tests, setup, teardown);
}
