/* SPDX-License-Identifier: Apache-2.0
 *
 * Training runs as processes of their own, for benches that need what a user has: `isotach train` on a model of any
 * size and random tokens, stopped, killed and started again, read by its metrics.jsonl.
 *
 * A trial is a folder with model, tokens, tokenizer and config; its runs differ in settings given on the command line.
 * Nothing but that folder is written, and iso_trial_remove removes it.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

extern char **environ;

enum { TOKENS = 1 << 21, WORDS = 24 };

static const char *in_trial(const iso_trial *trial, const char *name) {
  return iso_path_join(trial->arena, trial->folder, name);
}

/* A tokenizer of the bytes and an end, and a file of its ids, evenly drawn: a step costs the same on any text. */
static iso_status make_data(const iso_trial *trial) {
  const iso_bpe_options options = {.vocabulary = 257, .pattern = "gpt2", .eos = "<|endoftext|>"};
  const char *text = "", *folder = in_trial(trial, "bytes");
  const size_t length = 0;
  uint16_t *ids = malloc((size_t)TOKENS * sizeof *ids);
  if (!ids || !folder) return iso_fail(ISO_ERR_MEMORY, "bench: no memory for %d tokens", TOKENS);
  for (size_t i = 0; i < TOKENS; i++) {
    uint32_t bits[4];
    iso_rng(1, ISO_RNG_TEST, 0, i, bits);
    ids[i] = (uint16_t)(bits[0] % 257);
  }
  iso_status status = iso_file_replace(in_trial(trial, "tokens.bin"), ids, (size_t)TOKENS * sizeof *ids);
  free(ids);
  if (status == ISO_OK) status = iso_path_make(folder);
  return status == ISO_OK ? iso_bpe_train(&options, &text, &length, 1, folder) : status;
}

static iso_status write_config(const iso_trial *trial) {
  iso_string text = {0};
  char here[PATH_MAX] = "";
  iso_string_printf(&text, "steps: 1000000\nthreads: %lld\nmodel: {config: model.json}\n", (long long)trial->threads);
  if (trial->corpus[0]) {
    if (!getcwd(here, sizeof here)) here[0] = '\0';
    const char *const paths[2] = {trial->tokenizer, trial->corpus};
    for (int i = 0; i < 2; i++)
      iso_string_printf(&text, "%s\"%s%s%s\"}%s",
                        i == 0 ? "tokenizer: {path: " : "data:\n  sources: [{path: ", paths[i][0] == '/' ? "" : here,
                        paths[i][0] == '/' ? "" : "/", paths[i], i == 0 ? "\n" : "]\n");
  } else {
    iso_string_printf(&text, "tokenizer: {path: bytes}\ndata:\n"
                             "  sources: [{path: tokens.bin, token_type: uint16}]\n");
  }
  iso_string_printf(&text,
                    "  sequence: %lld\nbatch: {sequences: %lld}\noptimizer: {lr: 3e-4, schedule: constant}\n"
                    "precision: {compute: bfloat16}\n",
                    (long long)trial->sequence, (long long)trial->batch);
  const iso_status status = iso_string_failed(&text)
                                ? iso_fail(ISO_ERR_MEMORY, "bench: no memory for a config")
                                : iso_file_replace(in_trial(trial, "config.yaml"), text.data, text.length);
  iso_string_fini(&text);
  return status;
}

iso_status iso_trial_create(iso_trial *trial) {
  trial->arena = iso_arena_create();
  char *made = trial->arena ? iso_arena_printf(trial->arena, "%s/isotach-bench.XXXXXX", trial->parent) : NULL;
  if (!made) return iso_fail(ISO_ERR_MEMORY, "bench: no memory");
  if (!mkdtemp(made)) return iso_os_fail("create a folder in", trial->parent);
  trial->folder = made;
  ISO_TRY(iso_file_replace(in_trial(trial, "model.json"), trial->model->json, strlen(trial->model->json)));
  if (!trial->corpus[0]) ISO_TRY(make_data(trial));
  return write_config(trial);
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *at) {
  (void)info, (void)kind, (void)at;
  return remove(path);
}

void iso_folder_remove(const char *path) {
  (void)nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

void iso_trial_remove(iso_trial *trial) {
  if (trial->folder) iso_folder_remove(trial->folder);
  iso_arena_destroy(&trial->arena);
  trial->folder = NULL;
}

/* ---- processes ---- */

iso_status iso_spawn(const char *const *argv, const char *log, pid_t *pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  const int error = posix_spawn(pid, "/proc/self/exe", &actions, NULL, (char *const *)(uintptr_t)argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  return error ? iso_fail(ISO_ERR_IO, "cannot start isotach %s: %s", argv[1], strerror(error)) : ISO_OK;
}

iso_status iso_trial_start(iso_trial *trial, const char *run, const char *const *words, pid_t *pid) {
  const char *argv[WORDS] = {"isotach", "train", in_trial(trial, "config.yaml")};
  int count = 3;
  argv[count++] = iso_arena_printf(trial->arena, "run=%s/%s", trial->folder, run);
  for (; *words && count < WORDS - 1; words++) argv[count++] = *words;
  const char *log = in_trial(trial, "train.log");
  if (!log || !argv[2] || !argv[3]) return iso_fail(ISO_ERR_MEMORY, "bench: no memory");
  return iso_spawn(argv, log, pid);
}

char *iso_last_line(const char *log) {
  char *text = NULL;
  size_t bytes = 0;
  if (iso_file_read(log, &text, &bytes) != ISO_OK) bytes = 0;
  while (bytes && text[bytes - 1] == '\n') bytes--;
  size_t begin = bytes;
  while (begin && text[begin - 1] != '\n') begin--;
  char *line = strndup(text ? text + begin : "", bytes - begin);
  free(text);
  return line;
}

static iso_status tell_failure(const iso_trial *trial, const char *run, int code) {
  char *line = iso_last_line(in_trial(trial, "train.log"));
  const iso_status status =
      iso_fail(ISO_ERR_INTERNAL, "bench: training %s/%s ended with %d: %s", trial->folder, run, code, line ? line : "");
  free(line);
  return status;
}

iso_status iso_trial_wait(const iso_trial *trial, const char *run, pid_t pid, bool killed) {
  int status;
  pid_t ended;
  if (killed) kill(pid, SIGKILL);
  do ended = waitpid(pid, &status, 0);
  while (ended < 0 && errno == EINTR);
  if (killed || (ended == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0)) return ISO_OK;
  return tell_failure(trial, run, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

iso_status iso_trial_until(const iso_trial *trial, const char *run, pid_t pid, const char *key, int64_t step,
                           double most_s) {
  const double began = iso_clock_s();
  while (iso_clock_s() - began < most_s) {
    iso_trial_steps steps;
    ISO_TRY(iso_trial_read(trial, run, &steps));
    const iso_trial_step *last = steps.count ? &steps.list[steps.count - 1] : NULL;
    const int64_t there = !last ? 0 : strcmp(key, "durable_step") == 0 ? last->durable : last->step;
    free(steps.list);
    if (there >= step) return ISO_OK;
    int status;
    if (waitpid(pid, &status, WNOHANG) == pid)
      return tell_failure(trial, run, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    nanosleep(&(struct timespec){0, 2000000}, NULL);
  }
  (void)!iso_trial_wait(trial, run, pid, true);
  return iso_fail(ISO_ERR_IO, "bench: %s/%s did not reach %s %lld in %.0f s", trial->folder, run, key, (long long)step,
                  most_s);
}

/* ---- metrics.jsonl ---- */

double iso_line_number(const char *line, const char *end, const char *key) {
  char pattern[32];
  const int length = snprintf(pattern, sizeof pattern, "\"%s\": ", key);
  const char *at = memmem(line, (size_t)(end - line), pattern, (size_t)length);
  return at ? strtod(at + length, NULL) : 0;
}

iso_status iso_trial_read(const iso_trial *trial, const char *run, iso_trial_steps *steps) {
  char path[4096], *text;
  size_t bytes, lines = 1;
  *steps = (iso_trial_steps){0};
  snprintf(path, sizeof path, "%s/%s/metrics.jsonl", trial->folder, run);
  if (!iso_path_exists(path)) return ISO_OK;
  ISO_TRY(iso_file_read(path, &text, &bytes));
  for (size_t i = 0; i < bytes; i++) lines += text[i] == '\n';
  steps->list = malloc(lines * sizeof *steps->list);
  for (char *line = text, *end; steps->list && (end = memchr(line, '\n', (size_t)(text + bytes - line)));
       line = end + 1) {
    steps->list[steps->count++] = (iso_trial_step){.step = (int64_t)iso_line_number(line, end, "step"),
                                                   .durable = (int64_t)iso_line_number(line, end, "durable_step"),
                                                   .wall_s = iso_line_number(line, end, "wall_s"),
                                                   .storage_s = iso_line_number(line, end, "storage_wait_s")};
  }
  free(text);
  return steps->list ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "bench: no memory for %zu lines", lines);
}
