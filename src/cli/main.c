/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach: the table of verbs. Each verb has a file of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static iso_status verb_help(iso_args *args);

static const iso_verb verbs[] = {
    {"train", iso_verb_train, "CONFIG [key=value ...] [--accept] [--from-step S] [--take-over]",
     "trains a run, or resumes it: the same command again goes on where it stopped"},
    {"init", iso_verb_init, "", "writes a commented run.yaml into this folder"},
    {"inspect", iso_verb_inspect, "graph|program|memory|fusion CONFIG [key=value ...] | snapshot|log RUN",
     "shows what a config compiles to, or what a run has stored"},
    {"verify", iso_verb_verify, "RUN [--replay] [--json]",
     "reads everything that a run has stored and names every fault"},
    {"digest", iso_verb_digest, "RUN[@STEP]", "64 hex digits over weights, moments and step"},
    {"export", iso_verb_export, "RUN[@STEP] DIR [--force]", "writes a Hugging Face folder"},
    {"import", iso_verb_import, "DIR", "says what a Hugging Face folder holds and whether it can be used"},
    {"validate", iso_verb_validate, "MODEL --reference CASE",
     "compares a model with what the reference computed: logits, loss, gradients, training"},
    {"generate", iso_verb_generate, "MODEL \"prompt\"",
     "continues a text; MODEL is a Hugging Face folder or RUN[@STEP]"},
    {"evaluate", iso_verb_evaluate, "MODEL FILE ...",
     "loss, perplexity and bits per byte of any text; MODEL as for generate"},
    {"tokenizer", iso_verb_tokenizer, "train|encode|decode|check ...", "vocabularies: learn one, use one, check one"},
    {"data", iso_verb_data, "build|info|check|trace ...",
     "corpora: token shards, what a source holds, whether the vocabulary fits"},
    {"top", iso_verb_top, "RUN [--once] [--json]",
     "shows a run, under way or ended: where the time goes by rank, signs, curves, what is left"},
    {"trace", iso_verb_trace, "FILE | RUN [--top N] [--rank R] [--json]",
     "sums up what `train --trace` recorded: waits, ops, the critical path"},
    {"doctor", iso_verb_doctor, "CONFIG [key=value ...] [--ranks N] [--json]",
     "before a run: is this machine fit for it? Exit code 0, 1 (warnings) or 2 (do not start)"},
    {"topology", iso_verb_topology, "[CONFIG [key=value ...]] [--json]",
     "what this host is made of, and how fast its cores pass data on; by mpirun: racks and hosts"},
    {"bench", iso_verb_bench, "gemm|step|sweep|store|data|comm|tokenizer ...",
     "measures this machine against its own peak"},
    {"help", verb_help, "[config | VERB]", "this page, the keys of a config, or one verb's flags"},
};

static void print_usage(void) {
  printf("isotach %s pretrains decoder-only language models.\n\nusage: isotach VERB ...\n\n", ISO_VERSION);
  for (size_t i = 0; i < ISO_COUNT(verbs); i++) printf("  %-10s %s\n", verbs[i].name, verbs[i].help);
  printf("\nisotach VERB --help shows a verb's words and flags; most verbs take --json.\n"
         "Exit codes: 0 done, 1 a check failed, 2 usage or config, 3 missing or unreadable, 4 corrupt, 5 mismatch,\n"
         "6 in use, 7 too little memory or disk, 8 not finite, 9 a rank was lost, 70 a fault of isotach's own, 75 "
         "stopped\n"
         "early and resumable, 130 ended at once by Ctrl-C (train: by a second one; 143: by a second SIGTERM).\n");
}

static const iso_verb *find_verb(const char *name) {
  for (size_t i = 0; i < ISO_COUNT(verbs); i++)
    if (strcmp(verbs[i].name, name) == 0) return &verbs[i];
  return NULL;
}

static iso_status unknown_verb(const char *name) {
  if (name[0] == '-')
    return iso_fail(ISO_ERR_USAGE, "unknown flag %s; a verb comes first (isotach help lists all)", name);
  const char *names[ISO_COUNT(verbs)];
  for (size_t i = 0; i < ISO_COUNT(verbs); i++) names[i] = verbs[i].name;
  return iso_fail(ISO_ERR_USAGE, "unknown verb \"%s\"; the nearest is \"%s\" (isotach help lists all)", name,
                  iso_nearest(name, names, ISO_COUNT(verbs)));
}

static iso_status run_verb(const iso_verb *verb, int argc, char **argv) {
  iso_args args = {.verb = verb, .argc = argc, .argv = argv};
  const iso_status status = verb->run(&args);
  iso_brought_remove();
  return status;
}

static iso_status verb_help(iso_args *args) {
  ISO_TRY(iso_args_parse(args, NULL, 0, 0, 1));
  if (args->help) return ISO_OK;
  if (args->word_count == 0) {
    print_usage();
    return ISO_OK;
  }
  if (strcmp(args->words[0], "config") == 0) {
    iso_config_help(stdout);
    return ISO_OK;
  }
  const iso_verb *verb = find_verb(args->words[0]);
  char flag[] = "--help", *flags[] = {flag, NULL};
  return verb ? run_verb(verb, 1, flags) : unknown_verb(args->words[0]);
}

/* What printf could not write is only known now. Findings (CHECK, and doctor's "do not start") are worth nothing
 * without their table: that is said beside the verb's own line, and CHECK, which stands for a table, is not returned.
 */
static iso_status close_output(iso_status status) {
  errno = 0;
  const bool failed = ferror(stdout) != 0;
  if (fflush(stdout) == 0 && !failed) return status;
  if (status == ISO_ERR_IO || status == ISO_ERR_SPACE) return status; /* said */
  const iso_status lost =
      iso_fail(ISO_ERR_IO, "cannot write standard output in full: %s", errno ? strerror(errno) : "see above");
  return status == ISO_OK || status == ISO_ERR_CHECK ? lost : status;
}

/* A process may be started with descriptors 0 to 2 closed. The next file opened would get such a number, and what is
 * printed would be written into it: each is taken by /dev/null first, so that writing to a closed output fails. */
static void hold_standard_files(void) {
  while (true) {
    const int fd = open("/dev/null", O_RDONLY);
    if (fd > STDERR_FILENO) {
      close(fd);
      return;
    }
    if (fd < 0) return;
  }
}

int main(int argc, char **argv) {
  hold_standard_files();
  signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error of writing, not the end of a training run */
  signal(SIGXFSZ, SIG_IGN); /* so is a file that may not grow further */
  iso_status status = ISO_OK;
  const char *first = argc > 1 ? argv[1] : "help";
  if (strcmp(first, "--version") == 0) {
    printf("isotach %s\n", ISO_VERSION);
  } else if (argc < 2 || strcmp(first, "--help") == 0 || strcmp(first, "-h") == 0) {
    print_usage();
  } else {
    const iso_verb *verb = find_verb(first);
    status = verb ? run_verb(verb, argc - 2, argv + 2) : unknown_verb(first);
  }
  return iso_exit_code(close_output(status));
}
