/* SPDX-License-Identifier: Apache-2.0
 *
 * A small run folder with every kind of file that one can hold, each damaged in turn: a bit flipped, cut, missing.
 * `isotach verify` must fail and name the file.
 *
 * A sample of each file's bits; ISO_BITS=all flips all bits of all files, but for snapshots and log one in each byte
 * (store/test_bits and store/test_snapshot flip all of those, of smaller ones).
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "io/scratch.h"
#include "train/train.h"

enum { SAMPLES = 100, FILES = 64, SMALL = 32768 };

static char parent[128], run[160];
static struct {
  char path[512];
  char *bytes;
  size_t length;
} files[FILES];
static int file_count;

/* ---- a run ---- */

static const char yaml[] =
    "steps: 4\nseed: 3\nthreads: 1\nrun: %s\n"
    "model:\n  config: {architectures: [LlamaForCausalLM], vocab_size: 512, hidden_size: 8,\n"
    "    intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1,\n"
    "    max_position_embeddings: 32, tie_word_embeddings: true, rms_norm_eps: 1.0e-5, rope_theta: 10000,\n"
    "    initializer_range: 0.05, bos_token_id: null}\n"
    "tokenizer: {path: %s/tokenizer}\n"
    "data: {sources: [{path: %s/text.txt, separator: \"\\n\\n\"}], sequence: 15, slots: 2, threads: 1, on_bad: skip}\n"
    "batch: {sequences: 2}\noptimizer: {lr: 1e-2, warmup_steps: 2}\nfusion: off\n"
    "checkpoint: {mirror: %s/mirror}\n";

static void train(void) {
  char path[256], text[4096];
  const char *examples = ISO_TEST_DATA "/../../examples/tiny";
  iso_config config;
  iso_train_result result;
  const iso_train_options options = {.quiet = true};
  int length = 0;
  for (int i = 0; i < 40; i++) /* every third document is bad */
    length += snprintf(text + length, sizeof text - (size_t)length, "document %d of so many words, and%s more\n\n", i,
                       i % 3 ? "" : " \xff");
  snprintf(path, sizeof path, "%s/text.txt", parent);
  scratch_write(path, text, (size_t)length);
  length = snprintf(text, sizeof text, yaml, run, examples, parent, parent);
  snprintf(path, sizeof path, "%s/run.yaml", parent);
  scratch_write(path, text, (size_t)length);
  assert_int_equal(iso_config_read(path, NULL, 0, &config), ISO_OK);
  if (iso_train(&config, &options, &result) != ISO_OK) fail_msg("%s", iso_last_error());
  iso_config_fini(&config);
}

/* The lock as a killed process leaves it. */
static void die_with_lock(void) {
  iso_lock *lock;
  int how;
  const pid_t child = fork();
  if (child == 0) _exit(iso_lock_acquire(run, false, &lock) == ISO_OK ? 0 : 1);
  assert_true(child > 0 && waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

static int take_file(const char *path, const struct stat *info, int type, struct FTW *at) {
  (void)info;
  if (type != FTW_F || strcmp(path + at->base, "vitals.json") == 0) return 0; /* of a moment: a record of nothing */
  assert_true(file_count < FILES);
  snprintf(files[file_count].path, sizeof files[0].path, "%s", path);
  assert_int_equal(iso_file_read(path, &files[file_count].bytes, &files[file_count].length), ISO_OK);
  file_count++;
  return 0;
}

static int setup(void **state) {
  (void)state;
  iso_log_quiet(true);
  scratch_make(parent);
  snprintf(run, sizeof run, "%s/run", parent);
  train();
  die_with_lock();
  assert_int_equal(nftw(run, take_file, 16, FTW_PHYS), 0);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  for (int i = 0; i < file_count; i++) free(files[i].bytes);
  scratch_remove(parent);
  return 0;
}

/* ---- verify ---- */

static char *said;
static size_t said_bytes;

/* What it prints goes to `said`. */
static iso_status verify(void) {
  static const iso_verb verb = {"verify", iso_verb_verify, "RUN", ""};
  char *argv[] = {run, NULL};
  iso_args args = {.verb = &verb, .argc = 1, .argv = argv};
  (void)fflush(stdout);
  const int own = dup(STDOUT_FILENO), memory = memfd_create("verify", 0);
  assert_true(own >= 0 && memory >= 0 && dup2(memory, STDOUT_FILENO) >= 0);
  const iso_status status = iso_verb_verify(&args);
  (void)fflush(stdout);
  assert_true(dup2(own, STDOUT_FILENO) >= 0);
  said_bytes = (size_t)lseek(memory, 0, SEEK_END);
  said = realloc(said, said_bytes + 4096);
  assert_int_equal(pread(memory, said, said_bytes, 0), said_bytes);
  snprintf(said + said_bytes, 4096, "%s", status == ISO_OK ? "" : iso_last_error());
  close(memory);
  close(own);
  return status;
}

static const char *base_of(const char *path) {
  return strrchr(path, '/') + 1;
}

/* Of a snapshot's file the snapshot may be named. */
static bool is_named(const char *path) {
  const char *snapshot = strstr(path, "/snapshots/");
  char folder[64];
  if (strstr(said, base_of(path))) return true;
  if (!snapshot) return false;
  snprintf(folder, sizeof folder, "%.*s", (int)strcspn(snapshot + 11, "/"), snapshot + 11);
  return strstr(said, folder) != NULL;
}

static void must_see(const char *path, const char *how, size_t at) {
  if (verify() == ISO_OK) fail_msg("%s: %s %zu: unseen", path + strlen(run), how, at);
  if (!is_named(path)) fail_msg("%s: %s %zu: not named by: %s", path + strlen(run), how, at, said);
}

static void must_be_good(void) {
  if (verify() != ISO_OK) fail_msg("%s", said);
}

/* ---- damage ---- */

static bool all_bits(void) {
  return getenv("ISO_BITS") && strcmp(getenv("ISO_BITS"), "all") == 0;
}

static void put_byte(int fd, size_t at, char byte) {
  assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
}

static void every_bit(void **state) {
  (void)state;
  int64_t flips = 0;
  must_be_good();
  assert_null(strstr(said, "not protected"));
  for (int i = 0; i < file_count; i++) {
    const size_t bits = 8 * files[i].length;
    size_t stride = bits / SAMPLES < 1 ? 1 : bits / SAMPLES | 1;
    if (all_bits()) stride = files[i].length > SMALL ? 9 : 1;
    const int fd = open(files[i].path, O_WRONLY);
    assert_true(fd >= 0);
    for (size_t bit = 0; bit < bits; bit += stride, flips++) {
      put_byte(fd, bit / 8, (char)(files[i].bytes[bit / 8] ^ 1 << bit % 8));
      must_see(files[i].path, "bit", bit);
      put_byte(fd, bit / 8, files[i].bytes[bit / 8]);
    }
    close(fd);
  }
  must_be_good();
  print_message("%lld bits of %d files\n", (long long)flips, file_count);
}

/* Ends of the log that nobody acknowledged, and of files of lines, are no damage; nor is a lock that is empty. */
static bool may_be_cut(const char *path) {
  const char *base = base_of(path);
  return strstr(base, ".jsonl") || strstr(base, ".log") || strcmp(base, "lock") == 0;
}

static void every_length(void **state) {
  (void)state;
  for (int i = 0; i < file_count; i++) {
    const size_t length = files[i].length;
    const size_t stride = all_bits() && length <= SMALL ? 1 : length / SAMPLES | 1;
    if (may_be_cut(files[i].path)) continue;
    for (size_t cut = length; cut > 0;) {
      cut -= cut < stride || cut == length ? 1 : stride;
      assert_int_equal(truncate(files[i].path, (off_t)cut), 0);
      must_see(files[i].path, "length", cut);
    }
    scratch_write(files[i].path, files[i].bytes, length);
  }
  must_be_good();
}

/* What no state is made from may be missing: then nothing is said that is not so. A snapshot without its manifest is
 * none. */
static bool may_be_missing(const char *path) {
  static const char *const names[] = {"status.json", "report.json", "starts.json",  "fusion.json",
                                      "mirror.json", "report.html", "manifest.json"};
  for (size_t i = 0; i < ISO_COUNT(names); i++)
    if (strcmp(base_of(path), names[i]) == 0) return true;
  return may_be_cut(path);
}

static void missing_files(void **state) {
  (void)state;
  for (int i = 0; i < file_count; i++) {
    if (may_be_missing(files[i].path)) continue;
    assert_int_equal(unlink(files[i].path), 0);
    must_see(files[i].path, "missing", 0);
    scratch_write(files[i].path, files[i].bytes, files[i].length);
  }
  must_be_good();
}

static void every_kind_is_there(void **state) {
  (void)state;
  static const char *const kinds[] = {
      "lock",        "run.json",       "config.yaml",           "model.json",  "inputs.json",
      "fusion.json", "metrics.jsonl",  "skipped.jsonl",         "report.json", "status.json",
      "mirror.json", "0001.json",      "starts.json",           "report.html", "manifest.json",
      "state-",      "tokenizer.json", "tokenizer_config.json", ".log"};
  for (size_t k = 0; k < ISO_COUNT(kinds); k++) {
    bool there = false;
    for (int i = 0; i < file_count; i++) there = there || (strstr(base_of(files[i].path), kinds[k]) && files[i].length);
    if (!there) fail_msg("no %s, or an empty one", kinds[k]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_kind_is_there),
      cmocka_unit_test(every_bit),
      cmocka_unit_test(every_length),
      cmocka_unit_test(missing_files),
  };
  const int failed = cmocka_run_group_tests(tests, setup, teardown);
  free(said);
  return failed;
}
