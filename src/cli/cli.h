/* SPDX-License-Identifier: Apache-2.0
 *
 * cli: the verbs of the command line, one file each. main.c has the table and nothing else of substance.
 *
 * Invariants
 *  1. Results go to standard output, everything else to standard error. With --json standard output is one JSON
 *     document.
 *  2. A failure is one line on standard error and an exit code by kind (base/status.c).
 *  3. Output that could not be written in full is a failure too.
 */
#ifndef ISO_CLI_H
#define ISO_CLI_H

#include "infer/infer.h"
#include "train/train.h"

/* ---- args.c: flags and words --------------------------------------------------------------------- */

typedef enum iso_flag_kind {
  ISO_FLAG_BOOL, /* value: bool * */
  ISO_FLAG_TEXT, /* value: const char ** */
  ISO_FLAG_INT,  /* value: int64_t * */
  ISO_FLAG_REAL, /* value: double * */
  ISO_FLAG_DTYPE /* value: iso_dtype *; float32 or bfloat16 */
} iso_flag_kind;

/* The value set before parsing is the default. */
typedef struct iso_flag {
  const char *name; /* without the dashes */
  iso_flag_kind kind;
  void *value;
  const char *help;        /* "--name: help" */
  double minimum, maximum; /* of INT and REAL; both 0: no bounds */
} iso_flag;

typedef struct iso_verb iso_verb;

/* What stands behind the verb on the command line. */
typedef struct iso_args {
  const iso_verb *verb;
  int argc;
  char **argv;
  const char **words; /* set by iso_args_parse: what is no flag, in order; points into argv */
  int word_count;
  bool help; /* --help was asked for and answered: the verb has nothing to do */
} iso_args;

struct iso_verb {
  const char *name;
  iso_status (*run)(iso_args *args);
  const char *synopsis; /* words and the main flags */
  const char *help;     /* one line */
};

/* Flags may stand anywhere, as `--name value`, `--name=value`; `--` ends them. Between `least` and `most` words are
 * wanted (most < 0: any number). USAGE. */
iso_status iso_args_parse(iso_args *args, const iso_flag *flags, size_t flag_count, int least, int most) ISO_MUST_CHECK;
/* A whole number with optional sign and nothing else. */
bool iso_parse_int(const char *text, int64_t *out);
/* Text with the escapes \n, \t, \r and \\ resolved, in the arena; NULL for any other. */
char *iso_unescape(iso_arena *arena, const char *text);
/* Calls the subverb that the first word names, with the rest of the words. USAGE lists them. */
iso_status iso_subverb_run(iso_args *args, const iso_verb *table, size_t count) ISO_MUST_CHECK;

/* ---- brought.c: a run that is named by where its target or mirror is --------------------------------- */

/* The first word, a run, may be s3://bucket/prefix[@STEP]: then it becomes the path of a copy. */
iso_status iso_args_bring_run(iso_args *args) ISO_MUST_CHECK;
/* Lines on what of it is damaged there; "" when nothing is. */
const char *iso_brought_damage(void);
/* The copy goes; at the end of the process. */
void iso_brought_remove(void);

/* ---- json_out.c: one JSON document, written member by member --------------------------------------- */

/* Commas are put where they belong by looking at what stands before. `key` NULL: an array's element. */
void iso_json_open(iso_string *out, const char *key, char bracket);
void iso_json_shut(iso_string *out, char bracket);
void iso_json_put_text(iso_string *out, const char *key, const char *text);
void iso_json_put_int(iso_string *out, const char *key, int64_t value);
void iso_json_put_real(iso_string *out, const char *key, double value); /* null when not finite */
void iso_json_put_bool(iso_string *out, const char *key, bool value);
/* Prints the document with a newline to standard output and frees it. */
iso_status iso_json_print(iso_string *out) ISO_MUST_CHECK;
/* Prints plain text the same way. */
iso_status iso_text_print(iso_string *out) ISO_MUST_CHECK;
/* The same, for text with names that come from files: what a terminal would obey is '?'. */
iso_status iso_table_print(iso_string *out) ISO_MUST_CHECK;

/* ---- found.c: where in a source something was found ------------------------------------------------- */

/* Appends file, document and byte; byte -1: where the document begins. */
void iso_found_put(iso_string *out, const iso_source *source, int64_t document, int64_t byte);
/* The same as members "document", "file" and "byte". */
void iso_found_json(iso_string *out, const iso_source *source, int64_t document, int64_t byte);
/* Bad documents, a line for each of the causes met first: `head` stands before it. */
void iso_found_bad_put(iso_string *out, const char *head, const iso_source *source, const iso_survey *survey);
/* The same as member "bad": a list of cause, documents and where the first one is. */
void iso_found_bad_json(iso_string *out, const iso_source *source, const iso_survey *survey);

/* ---- workload.c: training steps on random tokens, for the benches ------------------------------------ */

typedef struct iso_workload {
  /* set by the caller */
  iso_device *device;
  const iso_model_config *model;
  iso_dtype dtype;                /* of compute and gradient */
  int64_t batch, sequence, micro; /* micro: sequences of a pass, 0: the whole batch */
  iso_fusion_switches fusion;
  int64_t workers;  /* leaves of the gradient's sum; 0: one */
  iso_ranks *ranks; /* that this process is one of; NULL: alone */
  /* from init to fini */
  iso_engine engine;
  int32_t *inputs;    /* tokens, labels, positions, segments: batch * sequence each */
  int64_t taken;      /* steps */
  double peak_gflops; /* best measured so far */
  double loss;        /* of the last step */
  double weights_s;   /* seconds that drawing the weights took, with the first touch of their memory */
} iso_workload;
/* What the engine is asked for, to plan without allocating. */
iso_engine_options iso_workload_options(const iso_workload *workload);
/* Compiles, checks the plan against memory, allocates, draws weights. Nothing to free after a failure. */
iso_status iso_workload_init(iso_workload *workload) ISO_MUST_CHECK;
void iso_workload_fini(iso_workload *workload);
/* Brings all planned memory onto its pages, so that a first step can be timed. Before the first step only. */
void iso_workload_touch(iso_workload *workload);
iso_status iso_workload_step(iso_workload *workload, double *seconds) ISO_MUST_CHECK;
/* Measures the peak once more; about 20 ms. */
void iso_workload_peak(iso_workload *workload);
/* Model FLOP utilisation, a fraction of the best peak. */
double iso_workload_mfu(const iso_workload *workload, double tokens_per_s);
/* Sorts the values. count >= 1. */
double iso_median(double *values, int64_t count);
/* Seconds since this process was launched (10 ms resolution); `fallback`, a lower bound, where the kernel does not say.
 */
double iso_process_age_s(double fallback);

/* ---- trial.c: training runs as processes of their own, for the benches -------------------------------------- */

typedef struct iso_trial {
  /* set by the caller */
  const iso_model_config *model;
  const char *parent;             /* folder in which the trial's own is made */
  const char *tokenizer, *corpus; /* "": ids drawn evenly */
  int64_t batch, sequence, threads;
  /* from create to remove */
  iso_arena *arena;
  const char *folder;
} iso_trial;
typedef struct iso_trial_step {
  int64_t step, durable;
  double wall_s, storage_s;
} iso_trial_step;
typedef struct iso_trial_steps {
  iso_trial_step *list; /* malloc'd */
  size_t count;
} iso_trial_steps;
/* Writes model, tokens and config. Remove it after a failure too. */
iso_status iso_trial_create(iso_trial *trial) ISO_MUST_CHECK;
void iso_trial_remove(iso_trial *trial);
/* Starts `isotach train` on the trial's run of this name, with overrides (NULL ends them). */
iso_status iso_trial_start(iso_trial *trial, const char *run, const char *const *words, pid_t *pid) ISO_MUST_CHECK;
/* Waits for its end, which must be a good one; or kills it first. */
iso_status iso_trial_wait(const iso_trial *trial, const char *run, pid_t pid, bool killed) ISO_MUST_CHECK;
/* Waits until the last line of metrics.jsonl has "step" or "durable_step" at `step` or beyond; kills it after most_s.
 */
iso_status iso_trial_until(const iso_trial *trial, const char *run, pid_t pid, const char *key, int64_t step,
                           double most_s) ISO_MUST_CHECK;
/* The lines of metrics.jsonl so far. */
iso_status iso_trial_read(const iso_trial *trial, const char *run, iso_trial_steps *steps) ISO_MUST_CHECK;

/* The folder and all that is below it; failures are left to whoever finds it. */
void iso_folder_remove(const char *path);
/* Starts this program with these words (argv, NULL ends it); what it says goes to the file `log`. */
iso_status iso_spawn(const char *const *argv, const char *log, pid_t *pid) ISO_MUST_CHECK;
/* The last line of such a file, malloc'd; "" when there is none. NULL: no memory. */
char *iso_last_line(const char *log);
/* The number behind "key": in a line of JSON; 0 when there is none. */
double iso_line_number(const char *line, const char *end, const char *key);

/* ---- doctor.c: is this machine fit for this run? ------------------------------------------------------------- */

typedef enum iso_doctor_verdict {
  ISO_VERDICT_OK,
  ISO_VERDICT_WARNING,
  ISO_VERDICT_STOP,
  ISO_VERDICT_SKIPPED
} iso_doctor_verdict;
typedef struct iso_doctor_row {
  const char *check, *found, *wanted, *advice; /* advice "": nothing is to be done */
  iso_doctor_verdict verdict;
} iso_doctor_row;
typedef struct iso_doctor_link { /* between two ranks */
  int ranks[2], cpus[2];
  double latency_ns, gb_per_s;
} iso_doctor_link;
enum { ISO_MOST_FINDINGS = 40, ISO_MOST_LINKS = 45 };
typedef struct iso_doctor {
  /* set by the verb */
  const char *config_path;
  const char *const *overrides; /* words behind it */
  int override_count;
  int64_t ranks;
  bool launched;   /* ranks are of mpirun or srun */
  double steps_s;  /* of real steps */
  double patience; /* 1; less: measurements are shorter by that factor */
  iso_config config;
  /* as it goes on */
  iso_arena *arena;
  iso_doctor_row findings[ISO_MOST_FINDINGS];
  int count;
  iso_doctor_link links[ISO_MOST_LINKS];
  int link_count;
  bool stops;         /* a finding stops the run */
  double others;      /* share of the processors' time that other processes used */
  double step_s;      /* median of real steps; 0: not known */
  double log_bytes;   /* of a step; 0: no log */
  double state_bytes; /* of a snapshot; 0: not known */
} iso_doctor;
/* Adds a row. Strings but `found` are kept as they are. */
void iso_doctor_add(iso_doctor *doctor, const char *check, iso_doctor_verdict verdict, const char *wanted,
                    const char *advice, const char *found, ...) ISO_PRINTF(6, 7);
/* There is a row of that check, and it warns. */
bool iso_doctor_warned(const iso_doctor *doctor, const char *check);
/* The row of a check that could not be made: what the last failure said. */
void iso_doctor_failed(iso_doctor *doctor, const char *check, iso_doctor_verdict verdict, const char *wanted,
                       const char *advice);
/* As text, in the unit that fits; in the arena. */
const char *iso_doctor_bytes(const iso_doctor *doctor, double bytes);
/* Makes a folder beside the run's, on the same storage; in the arena. NULL, logged: it cannot be made. */
const char *iso_doctor_folder(iso_doctor *doctor);
/* With all ranks that a launcher has started; of rank 0 the rows. */
iso_status iso_doctor_world_steps(iso_doctor *doctor, iso_world *world) ISO_MUST_CHECK;
/* doctor_world.c: all ranks that a launcher has started, together. *leads: this one is rank 0, and goes on. */
iso_status iso_doctor_world(iso_doctor *doctor, const iso_launch *launch, bool *leads) ISO_MUST_CHECK;
void iso_doctor_machine(iso_doctor *doctor); /* doctor_machine.c: build, products, limits, clock */
void iso_doctor_links(iso_doctor *doctor);   /* doctor_links.c: between cores, and between ranks */
void iso_doctor_inputs(iso_doctor *doctor);  /* doctor_inputs.c: model, tokenizer, corpus, memory plan */
/* doctor_run.c: what a start would find. run: with its inputs; NULL: they cannot be read. */
void iso_doctor_run(iso_doctor *doctor, const iso_run *run);
void iso_doctor_storage(iso_doctor *doctor); /* doctor_storage.c: the run's folder and its mirror */
void iso_doctor_steps(iso_doctor *doctor);   /* doctor_steps.c: the run itself, for a while, in a folder beside it */

/* ---- ways.c: messages between ranks that a launcher has started ---------------------------------------------- */

enum { ISO_MOST_WAYS = 10 /* ranks of which each two are measured */ };
typedef struct iso_way {
  double latency_s, bytes_per_s, ahead_s; /* ahead_s: the second's clock of the first's */
} iso_way;
/* All ranks. Of the chosen ones all pairs, one after another: ways[a * count + b], a < b. IO: a message does not come.
 */
iso_status iso_ways_measure(iso_world *world, const int *chosen, int count, iso_way *ways) ISO_MUST_CHECK;

/* ---- topology_hosts.c: racks, hosts, ranks -------------------------------------------------------------------- */

/* All ranks that a launcher has started: the tree of their hosts, and the ways between these. config: NULL, none. */
iso_status iso_topology_launched(const iso_launch *launch, const iso_args *args, bool json) ISO_MUST_CHECK;
/* The tree, a line for each rack and host. */
void iso_hosts_put(const iso_order *order, iso_string *out);

/* ---- store_rate.c: the log's writer beside a plain one ------------------------------------------------------- */

typedef struct iso_store_rate {
  double plain;          /* bytes/s of a plain O_DIRECT writer */
  double writing, whole; /* bytes/s of the log: while it writes, and with its CRC-32C */
  double share;          /* writing over plain, median of rounds */
  double crc_s;          /* of a step */
} iso_store_rate;
/* Steps of `elements` bfloat16 gradients, in a run of its own below `folder`. */
iso_status iso_store_rate_measure(const char *folder, int64_t elements, iso_store_rate *rate) ISO_MUST_CHECK;

/* ---- store_replay.c: a replay beside the optimizer alone ----------------------------------------------------- */

typedef struct iso_store_replay {
  double ratio, cpu_ratio; /* the update alone over a replay: by the clock, by the time of all threads; medians */
  double update_s, step_s; /* of a step: the update alone, and replayed from the page cache */
} iso_store_replay;
/* The same for a log that is in the page cache. */
iso_status iso_store_replay_measure(const char *folder, int threads, int64_t elements,
                                    iso_store_replay *out) ISO_MUST_CHECK;

/* ---- data_input.c: what the verbs of `isotach data` read -------------------------------------------- */

typedef struct iso_data_input {
  /* flags */
  const char *tokenizer_path, *pattern, *format, *field, *token_type, *separator, *cache;
  bool parse_special;
  int64_t threads;
  /* set by the verb */
  bool refuse_empty;   /* a file without a document */
  const char *skip_by; /* as in iso_source_options */
  /* from open to close */
  iso_arena *arena;
  iso_config config;
  bool has_config;
  iso_source_options options[ISO_MAX_SOURCES];
  iso_source *sources[ISO_MAX_SOURCES];
  int count;
  iso_tokenizer *tokenizer; /* NULL: none was given */
} iso_data_input;
#define ISO_DATA_INPUT                                                                                                 \
  { .tokenizer_path = "", .pattern = "", .format = "", .field = "", .token_type = "", .separator = "", .cache = "" }
#define ISO_DATA_INPUT_FLAGS(input)                                                                                    \
  {"tokenizer", ISO_FLAG_TEXT, &(input).tokenizer_path, "folder or file of a tokenizer (that of CONFIG)", 0, 0},       \
      {"pattern", ISO_FLAG_TEXT, &(input).pattern, "a tiktoken file's pattern, if its name does not tell", 0, 0},      \
      {"format", ISO_FLAG_TEXT, &(input).format, "as data.sources[].format (auto)", 0, 0},                             \
      {"field", ISO_FLAG_TEXT, &(input).field, "of JSON lines and Parquet: where the text is (text)", 0, 0},           \
      {"token-type", ISO_FLAG_TEXT, &(input).token_type, "of shards without a header: uint16 or uint32", 0, 0},        \
      {"separator", ISO_FLAG_TEXT, &(input).separator, "cuts text files into documents; \\n is a line's end", 0, 0},   \
      {"parse-special", ISO_FLAG_BOOL, &(input).parse_special, "special tokens written in the text are meant", 0, 0},  \
      {"cache", ISO_FLAG_TEXT, &(input).cache, "folder of what is made once (the user's)", 0, 0}, {                    \
    "threads", ISO_FLAG_INT, &(input).threads, "0: the cores this process may use (0)", 0, 1024                        \
  }
/* The words are a run config (a name ending in .yaml) with overrides, or paths. Close it after a failure too. */
iso_status iso_data_input_open(iso_args *args, iso_data_input *input, bool need_tokenizer) ISO_MUST_CHECK;
void iso_data_input_close(iso_data_input *input);

/* ---- export.c -------------------------------------------------------------------------------------- */

/* USAGE when the folder is there and holds something, unless `force`. */
iso_status iso_output_check(const char *verb, const char *folder, bool force) ISO_MUST_CHECK;

/* ---- verbs ------------------------------------------------------------------------------------------- */

iso_status iso_verb_train(iso_args *args);
iso_status iso_verb_init(iso_args *args);
iso_status iso_verb_inspect(iso_args *args);
iso_status iso_verb_snapshots(iso_args *args);   /* inspect snapshot; snapshots.c */
iso_status iso_verb_inspect_log(iso_args *args); /* inspect_log.c */
iso_status iso_verb_verify(iso_args *args);
iso_status iso_verb_digest(iso_args *args);
iso_status iso_verb_export(iso_args *args);
iso_status iso_verb_import(iso_args *args);
iso_status iso_verb_validate(iso_args *args);
iso_status iso_verb_generate(iso_args *args);
iso_status iso_verb_evaluate(iso_args *args);
iso_status iso_verb_tokenizer(iso_args *args);
iso_status iso_verb_tokenizer_train(iso_args *args); /* tokenizer_train.c */
iso_status iso_verb_topology(iso_args *args);
iso_status iso_verb_doctor(iso_args *args);
iso_status iso_verb_trace(iso_args *args);
iso_status iso_verb_top(iso_args *args); /* top.h */
iso_status iso_verb_bench(iso_args *args);
iso_status iso_verb_bench_gemm(iso_args *args);      /* bench_gemm.c */
iso_status iso_verb_bench_step(iso_args *args);      /* bench_step.c */
iso_status iso_verb_bench_sweep(iso_args *args);     /* bench_sweep.c */
iso_status iso_verb_bench_store(iso_args *args);     /* bench_store.c */
iso_status iso_verb_bench_tokenizer(iso_args *args); /* bench_tokenizer.c */
iso_status iso_verb_data(iso_args *args);
iso_status iso_verb_data_build(iso_args *args); /* data_build.c */
iso_status iso_verb_data_info(iso_args *args);  /* data_info.c */
iso_status iso_verb_data_check(iso_args *args); /* data_check.c */
iso_status iso_verb_bench_data(iso_args *args); /* bench_data.c */
iso_status iso_verb_bench_comm(iso_args *args); /* bench_comm.c */
iso_status iso_verb_data_trace(iso_args *args); /* data_trace.c */

#endif
