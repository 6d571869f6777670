/* SPDX-License-Identifier: Apache-2.0
 *
 * The run config: defaults, files, overrides, errors with place and nearest key, printing that reads back, digest and
 * differences.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/train.h"

static char folder[] = "/tmp/isotach-config-XXXXXX";
static char path[64];

static int make_folder(void **state) {
  (void)state;
  iso_log_quiet(true);
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/run.yaml", folder);
  return 0;
}

static int remove_folder(void **state) {
  (void)state;
  unlink(path);
  return rmdir(folder);
}

static iso_status read_text(const char *text, const char *const *overrides, int count, iso_config *config) {
  assert_int_equal(iso_file_replace(path, text, strlen(text)), ISO_OK);
  return iso_config_read(path, overrides, count, config);
}

static void test_defaults(void **state) {
  (void)state;
  iso_config config;
  assert_int_equal(read_text("", NULL, 0, &config), ISO_OK);
  assert_int_equal(config.steps, 1000);
  assert_int_equal(config.data.sequence, 1024);
  assert_true(config.data.document_mask);
  assert_int_equal(config.batch.sequences, 8);
  assert_true(config.optimizer.lr == 3e-4);
  assert_true(config.optimizer.beta2 == 0.95);
  assert_int_equal(config.parallel.virtual_workers, -1);
  assert_int_equal(config.checkpoint.snapshot_every, -1);
  assert_int_equal(iso_config_compute(&config), ISO_BF16);
  assert_int_equal(iso_config_gradient(&config), ISO_BF16);
  assert_int_equal(iso_config_micro(&config, 1), 2); /* largest divisor of 8 with micro * 1024 <= 2048 */
  iso_config_fini(&config);
}

static void test_file_and_overrides(void **state) {
  (void)state;
  const char *text =
      "run: here\nsteps: 7\nmodel:\n  config: {model_type: llama, hidden_size: 64, rope_theta: 1e4, note: 'x'}\n"
      "data:\n  sources:\n    - path: a.txt\n      separator: \"\\n\\n\"\n    - b.txt\noptimizer: {lr: 1e-3}\n";
  const char *const overrides[] = {"steps=9",
                                   "optimizer.schedule=wsd",
                                   "data.sources.0.weight=2.5",
                                   "data.sources.2.path=c.txt",
                                   "model.config.hidden_size=128",
                                   "vitals.dashboard=[::1]:8080"};
  iso_config config;
  assert_int_equal(read_text(text, overrides, 6, &config), ISO_OK);
  assert_string_equal(config.vitals.dashboard, "[::1]:8080"); /* no list */
  assert_int_equal(config.steps, 9);
  assert_true(config.optimizer.lr == 1e-3);
  assert_string_equal(config.optimizer.schedule, "wsd");
  assert_int_equal(config.data.source_count, 3);
  char expected[128];
  snprintf(expected, sizeof expected, "%s/a.txt", folder);
  assert_string_equal(config.data.sources[0].path, expected); /* relative to the file */
  assert_string_equal(config.data.sources[0].separator, "\n\n");
  assert_true(config.data.sources[0].weight == 2.5);
  char cwd[4000];
  assert_non_null(getcwd(cwd, sizeof cwd));
  assert_memory_equal(config.data.sources[2].path, cwd, strlen(cwd)); /* relative to the working directory */
  assert_string_equal(config.model.inline_json,
                      "{\"model_type\": \"llama\", \"hidden_size\": 128, \"rope_theta\": 1e4, \"note\": \"x\"}");
  iso_config_fini(&config);
}

static void test_print_reads_back(void **state) {
  (void)state;
  const char *text =
      "seed: 5\nmodel: {config: {a: 1}}\ndata: {sources: [{path: /x/y, separator: \"\\n#\"}, /z], sequence: 77}\n"
      "optimizer: {lr: 0.000123456789, eps: 1e-9}\nparallel: {virtual_workers: 4}\n";
  iso_config first, second;
  assert_int_equal(read_text(text, NULL, 0, &first), ISO_OK);
  iso_string one = {0}, two = {0}, difference = {0};
  iso_config_print(&first, &one);
  assert_int_equal(read_text(one.data, NULL, 0, &second), ISO_OK);
  iso_config_print(&second, &two);
  assert_string_equal(one.data, two.data);
  assert_non_null(strstr(one.data, "\n  timeout_s: 30\n"));
  assert_int_equal(iso_config_difference(&first, &second, &difference), 0);
  char a[65], b[65];
  iso_config_digest(&first, "", a);
  iso_config_digest(&second, "", b);
  assert_string_equal(a, b);
  iso_string_fini(&one);
  iso_string_fini(&two);
  iso_config_fini(&first);
  iso_config_fini(&second);
}

static void test_digest_follows_bits(void **state) {
  (void)state;
  const char *const deciding[] = {"seed=2",
                                  "steps=11",
                                  "optimizer.lr=1",
                                  "batch.sequences=16",
                                  "data.document_mask=false",
                                  "fusion=off",
                                  "fusion=auto -joint_linear",
                                  "data.sources.0.weight=3"};
  const char *const free_ones[] = {"stop_at=5",
                                   "threads=2",
                                   "data.slots=3",
                                   "checkpoint.keep_last=7",
                                   "evaluate.every=3",
                                   "memory.limit_gb=5",
                                   "log.enabled=false",
                                   "parallel.timeout_s=2",
                                   "fusion=on",
                                   "fusion=-add_norm",
                                   "fusion=off,+joint_linear",
                                   "fusion=auto +joint_linear -grad_cast"};
  const char *text = "steps: 10\ndata: {sources: [/x]}\n";
  iso_config base, changed;
  char before[65], after[65];
  assert_int_equal(read_text(text, NULL, 0, &base), ISO_OK);
  iso_config_digest(&base, "e", before);
  for (size_t i = 0; i < ISO_COUNT(deciding); i++) {
    assert_int_equal(iso_config_read(path, &deciding[i], 1, &changed), ISO_OK);
    iso_config_digest(&changed, "e", after);
    assert_string_not_equal(before, after);
    iso_string what = {0};
    assert_int_equal(iso_config_difference(&base, &changed, &what), 1);
    const size_t length = strcspn(deciding[i], "=");
    assert_memory_equal(what.data, deciding[i], length);
    iso_string_fini(&what);
    iso_config_fini(&changed);
  }
  for (size_t i = 0; i < ISO_COUNT(free_ones); i++) {
    assert_int_equal(iso_config_read(path, &free_ones[i], 1, &changed), ISO_OK);
    iso_config_digest(&changed, "e", after);
    assert_string_equal(before, after);
    iso_config_fini(&changed);
  }
  iso_config_digest(&base, "f", after);
  assert_string_not_equal(before, after);
  iso_config_fini(&base);
}

static void test_errors(void **state) {
  (void)state;
  static const struct {
    const char *text, *override, *message;
  } rows[] = {
      {"stepz: 5\n", NULL, ":1:1: unknown key `stepz`; the nearest is `steps`"},
      {"optimizer:\n  learning: 1\n", NULL, ":2:3: unknown key `optimizer.learning`"},
      {"steps: many\n", NULL, ":1:8: `steps` must be a whole number, not \"many\""},
      {"steps: 1.5\n", NULL, ":1:8: `steps` must be a whole number"},
      {"steps: -1\n", NULL, ":1:8: `steps` = -1 is outside 1 to 1000000000"},
      {"steps: \"5\"\n", NULL, ":1:9: `steps` must not be in quotes"},
      {"steps: [5]\n", NULL, "`steps` must be a single value, not a list"},
      {"optimizer: 3\n", NULL, "`optimizer` must be a mapping"},
      {"optimizer: {lr: fast}\n", NULL, ":1:17: `optimizer.lr` must be a number"},
      {"optimizer: {lr: nan}\n", NULL, "`optimizer.lr` must be a number"},
      {"optimizer: {schedule: warp}\n", NULL, "must be one of: cosine linear wsd constant; not \"warp\""},
      {"data: {document_mask: yes}\n", NULL, "`data.document_mask` must be true or false"},
      {"data: {sources: x}\n", NULL, "`data.sources` must be a list"},
      {"data: {sources: [{pth: x}]}\n", NULL, "unknown key `pth` of a source"},
      {"data: {sources: [{weight: 1}]}\n", NULL, "`data.sources.0.path` is missing"},
      {"steps: 1\nsteps: 2\n", NULL, ":2:1:"},
      {"a: [\n", NULL, "is not valid YAML"},
      {"", "steps=x", "command line: `steps` must be a whole number"},
      {"", "nothing", "command line: \"nothing\" is neither a flag nor key=value"},
      {"", "=5", "is neither a flag nor key=value"},
      {"", "a..b=5", "empty word in the key"},
      {"", "optimiser.lr=5", "the nearest is `optimizer.lr`"},
      {"optimizer: {learning_rate: 1}\n", NULL, "the nearest is `optimizer.lr`"},
      {"optimizer: {lerning_rate: 1}\n", NULL, "the nearest is `optimizer.lr`"},
      {"global_batch_size: 1\n", NULL, "the nearest is `batch.sequences`"},
      {"parallel: {virtual_workers: 3}\n", NULL, "is not a power of two"},
      {"parallel: {virtual_workers: 16}\n", NULL, "is no multiple of the 16 virtual workers"},
      {"batch: {sequences: 8, micro: 3}\n", NULL, "`batch.micro` = 3 does not divide"},
      {"steps: 5\noptimizer: {warmup_steps: 6}\n", NULL, "is more than `steps`"},
      {"run: \"\"\n", NULL, "`run` is empty"},
      {"- a\n", NULL, "a run config is a mapping of keys"},
      {"fusion: offf\n", NULL, ":1:9: `fusion`: \"offf\" is no mode; the nearest is \"off\""},
      {"fusion: auto -add_nrom\n", NULL, "`fusion`: \"-add_nrom\" is no fusion; the nearest is \"add_norm\""},
      {"fusion: add_norm\n", NULL, "\"add_norm\" is no mode; the nearest is \"add_norm\""},
      {"fusion: -add_norm auto\n", NULL, "\"auto\" is no switch of the form -name or +name"},
      {"fusion: off +attention\n", NULL, "\"+attention\": that form is built in and has no switch"},
      {"fusion: off +add_norm -add_norm\n", NULL, "\"add_norm\" is named twice"},
      {"fusion: \" , \"\n", NULL, "`fusion`: is empty; the modes are auto, on and off"},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_config config;
    const iso_status status = read_text(rows[i].text, &rows[i].override, rows[i].override != NULL, &config);
    if (status == ISO_OK) fail_msg("row %zu passed: %s", i, rows[i].text);
    if (!strstr(iso_last_error(), rows[i].message))
      fail_msg("row %zu: \"%s\" lacks \"%s\"", i, iso_last_error(), rows[i].message);
    assert_null(strchr(iso_last_error(), '\n'));
  }
  iso_config config;
  assert_int_equal(iso_config_read("/nonexistent/x.yaml", NULL, 0, &config), ISO_ERR_NOT_FOUND);
}

/* The digests of the words that there were before there were switches, and what `off` and `auto` switch. */
static void test_fusion_words(void **state) {
  (void)state;
  static const struct {
    const char *words, *bits;
    unsigned off;
    bool measures;
  } rows[] = {
      {"auto", "auto", 0, true},
      {"on", "auto", 0, false},
      {"off", "off", ISO_FUSION_ALL, false},
      {"off +add_norm", "off", ISO_FUSION_ALL & ~(1u << ISO_FUSION_ADD_NORM), false},
      {"off, +joint_linear,+grad_cast", "auto", ISO_FUSION_ALL & ~(1u << ISO_FUSION_JOINT | 1u << ISO_FUSION_GRAD_CAST),
       false},
      {"auto -joint_linear", "off", 1u << ISO_FUSION_JOINT, true},
      {"-add_norm", "auto", 1u << ISO_FUSION_ADD_NORM, true},
  };
  for (size_t i = 0; i < ISO_COUNT(rows); i++) {
    iso_fusion_switches switches;
    iso_string bits = {0};
    assert_int_equal(iso_fusion_switches_read(rows[i].words, "test", &switches), ISO_OK);
    assert_int_equal(switches.off, rows[i].off);
    assert_int_equal(switches.measure != 0, rows[i].measures);
    for (int row = 0; row < ISO_FUSION_COUNT; row++) {
      if ((switches.measure >> row & 1) == 0) continue;
      assert_true(iso_fusion_keeps_bits(row));
      assert_null(strstr(rows[i].words, iso_fusion_get(row)->name));
    }
    iso_fusion_switches_bits(&switches, &bits);
    assert_string_equal(bits.data, rows[i].bits);
    iso_string_fini(&bits);
  }
  static const struct {
    const char *text, *digest;
  } digests[] = {{"", "59defb76cf17b73b306292d858590ebcb64bb16dcaa19e4f1ca7b7ab2d6a5469"},
                 {"fusion: off\n", "954b12cf2a5650076927cd00478ded872856c0ea3c9cffa4028ffeedd721a990"}};
  for (size_t i = 0; i < ISO_COUNT(digests); i++) {
    iso_config config;
    char hex[65];
    assert_int_equal(read_text(digests[i].text, NULL, 0, &config), ISO_OK);
    iso_config_digest(&config, "e", hex);
    assert_string_equal(hex, digests[i].digest);
    iso_config_fini(&config);
  }
}

static void test_schedules(void **state) {
  (void)state;
  const char *const overrides[] = {"optimizer.schedule=cosine"};
  iso_config c;
  assert_int_equal(read_text("steps: 100\noptimizer: {lr: 1.0, min_lr_ratio: 0.1, warmup_steps: 10, decay_steps: 20}\n",
                             overrides, 1, &c),
                   ISO_OK);
  assert_true(iso_learning_rate(&c, 1) == 0.1);
  assert_true(iso_learning_rate(&c, 10) == 1.0);
  assert_true(iso_learning_rate(&c, 55) > 0.5499999 && iso_learning_rate(&c, 55) < 0.5500001);
  assert_true(iso_learning_rate(&c, 100) > 0.0999999 && iso_learning_rate(&c, 100) < 0.1000001);
  c.optimizer.schedule = "linear";
  assert_true(iso_learning_rate(&c, 55) > 0.5499999 && iso_learning_rate(&c, 55) < 0.5500001);
  c.optimizer.schedule = "wsd";
  assert_true(iso_learning_rate(&c, 80) == 1.0);
  assert_true(iso_learning_rate(&c, 90) > 0.5499999 && iso_learning_rate(&c, 90) < 0.5500001);
  assert_true(iso_learning_rate(&c, 100) > 0.0999999 && iso_learning_rate(&c, 100) < 0.1000001);
  c.optimizer.schedule = "constant";
  assert_true(iso_learning_rate(&c, 100) == 1.0);
  iso_config_fini(&c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_defaults),         cmocka_unit_test(test_file_and_overrides),
      cmocka_unit_test(test_print_reads_back), cmocka_unit_test(test_digest_follows_bits),
      cmocka_unit_test(test_errors),           cmocka_unit_test(test_schedules),
      cmocka_unit_test(test_fusion_words),
  };
  return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
