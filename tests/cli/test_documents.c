/* SPDX-License-Identifier: Apache-2.0
 *
 * With --json standard output is one JSON document: every verb that reports, read back with the strict parser.
 * ISOTACH is the binary, ISO_ROOT the repository.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static char folder[] = "/tmp/isotach-json.XXXXXX";

/* Runs "isotach WORDS" in the scratch folder, exit code in *code; the document, to be destroyed. */
static iso_json *document(const char *words, int *code) {
  char command[4096];
  snprintf(command, sizeof command, "cd '%s' && timeout -k 5 60 \"$ISOTACH\" %s", folder, words);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  iso_string text = {0};
  char chunk[4096];
  size_t got;
  while ((got = fread(chunk, 1, sizeof chunk, pipe)) > 0) iso_string_append(&text, chunk, got);
  const int status = pclose(pipe);
  *code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  iso_json *json = NULL;
  if (iso_json_parse(text.data ? text.data : "", text.length, words, &json) != ISO_OK)
    fail_msg("%s: exit code %d, %s: %.300s", words, *code, iso_last_error(), text.data ? text.data : "");
  iso_string_fini(&text);
  return json;
}

/* The document has these keys (separated by blanks). */
static void check(const char *words, int wanted_code, const char *keys) {
  int code;
  char copy[512], *save = NULL;
  iso_json *json = document(words, &code);
  assert_int_equal(code, wanted_code);
  snprintf(copy, sizeof copy, "%s", keys);
  for (char *key = strtok_r(copy, " ", &save); key; key = strtok_r(NULL, " ", &save))
    if (!iso_json_get(json, key)) fail_msg("%s: no member \"%s\"", words, key);
  iso_json_destroy(&json);
}

static void training_and_what_it_leaves(void **state) {
  check(
      "train \"$ISO_ROOT/examples/tiny.yaml\" run=run threads=1 steps=6 --json", 0,
      "run status trained step steps parameters tokens loss train_seconds tokens_per_s mfu peak_gflops bits_per_byte");
  check("train \"$ISO_ROOT/examples/tiny.yaml\" run=run threads=1 steps=6 --json", 0, "run status trained");
  check("digest run --json", 0, "run step digest");
  check("verify run --json", 0, "run ok faults");
  check("inspect snapshot run --json", 0, "run uuid snapshots");
  check("export run model --json", 0, "folder architecture parameters dtype tokenizer step");
  check("import model --json", 0, "folder architecture parameters dtype layers vocabulary tokenizer");
  check("generate model 'A \"q' --max-tokens 9 --json", 0, "prompt prompt_ids ids text seconds tokens_per_s");
  check("evaluate run \"$ISO_ROOT/examples/tiny/plays.txt\" --json", 0,
        "model files loss perplexity bits_per_byte bytes tokens");
  check("tokenizer encode model --text 'a b' --json", 0, "count ids");
  check("tokenizer decode model 70 71 --json", 0, "text");
}

static void what_a_config_compiles_to(void **state) {
  check("inspect graph \"$ISO_ROOT/examples/tiny.yaml\" --json", 0, "graph nodes tensors parameters text");
  check("inspect program \"$ISO_ROOT/examples/tiny.yaml\" --json", 0, "instructions arena_bytes live_peak_bytes use");
  check("inspect memory \"$ISO_ROOT/examples/tiny.yaml\" --json", 0,
        "total_bytes arena_bytes live_peak_bytes use text");
}

static void validation(void **state) {
  check(
      "validate \"$ISO_ROOT/tests/data/golden/llama-gqa/model\" --reference \"$ISO_ROOT/tests/data/golden/llama-gqa\" "
      "--json",
      0, "model dtype passed rows");
}

static void benches(void **state) {
  check("bench step --model \"$ISO_ROOT/tests/data/golden/llama-gqa/model\" --batch 2 --seq 16 --steps 3 --warmup 1 "
        "--threads 2 --json",
        0, "tokens_per_s mfu peak_gflops peak_rss_bytes first_step_s median_step_s threads tier dtype");
}

static void this_host(void **state) {
  check("topology --json", 0, "host source packages numa_nodes cores cpus usable_cpus tree pairs measured");
  check("topology \"$ISO_ROOT/examples/tiny.yaml\" run=none --json", 0,
        "host source packages numa_nodes cores cpus usable_cpus tree pairs measured run_hosts");
}

static int set_up(void **state) {
  return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  return system(command);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(training_and_what_it_leaves),
      cmocka_unit_test(what_a_config_compiles_to),
      cmocka_unit_test(validation),
      cmocka_unit_test(benches),
      cmocka_unit_test(this_host),
  };
  if (!getenv("ISOTACH") || !getenv("ISO_ROOT")) {
    printf("skipped: ISOTACH and ISO_ROOT are not set\n");
    return 77;
  }
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
