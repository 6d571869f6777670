/* SPDX-License-Identifier: Apache-2.0
 *
 * train: from a run config to a trained run folder. loop.c shows the whole.
 *
 * Invariants
 *  1. A key of the config either does what its help says or is refused; unknown keys are errors that name the nearest
 * key.
 *  2. Everything that a run needs (memory, disk, corpus, vocabulary) is checked before step 1.
 *  3. The same command again resumes: the bits are those of a run that was never interrupted.
 *  4. Every clean end leaves a snapshot and a verdict in status.json.
 */
#ifndef ISO_TRAIN_H
#define ISO_TRAIN_H

#include <signal.h>

#include "comm/comm.h"
#include "data/data.h"
#include "exec/exec.h"
#include "model/model.h"
#include "passes/passes.h"
#include "store/store.h"
#include "train/signs.h"

/* ---- config.c, config_print.c: the run config -------------------------------------------------------------- */

enum { ISO_MAX_SOURCES = 64 };

typedef struct iso_source_config {
  const char *path, *format, *field, *token_type, *separator;
  double weight;
  bool parse_special;
} iso_source_config;

/* Values of all keys of DESIGN section 8, in its order. Strings live in the config's arena. -1 stands for `auto` in
 * whole numbers. */
typedef struct iso_config {
  iso_arena *arena;
  const char *source; /* the file it came from */
  const char *run;
  int64_t seed, steps, stop_at, threads;
  struct {
    const char *config, *init_from;
    const char *inline_json; /* keys written in the YAML itself, as JSON; NULL: config names a file */
  } model;
  struct {
    const char *path, *pattern;
  } tokenizer;
  struct {
    iso_source_config sources[ISO_MAX_SOURCES];
    int source_count;
    struct {
      int64_t every, offset;
      const char *path;
    } validation;
    bool pad;
    int64_t sequence;
    bool document_mask;
    int64_t block_bytes, slots, threads, prefetch; /* prefetch -1: auto */
    bool on_demand;
    const char *on_bad;
    int64_t max_bad_documents;
    const char *cache;
  } data;
  struct {
    int64_t sequences, micro;
  } batch;
  struct {
    double lr, min_lr_ratio;
    const char *schedule;
    int64_t warmup_steps, decay_steps;
    double beta1, beta2, eps, weight_decay;
    bool decay_embeddings, decay_norms;
    double clip_norm;
    int64_t max_refused;
  } optimizer;
  struct {
    const char *compute, *gradient, *reduce;
  } precision;
  struct {
    int64_t virtual_workers, zero, check_every;
    double timeout_s;
    const char *topology;
  } parallel;
  struct {
    double limit_gb;
    const char *recompute;
  } memory;
  const char *fusion;
  struct {
    int64_t snapshot_every; /* -1: auto */
    double replay_target_s;
    int64_t staging_mb; /* -1: auto */
    int64_t keep_last, keep_every;
    const char *target, *mirror;
  } checkpoint;
  struct {
    bool enabled;
    const char *durability, *compress, *io, *when_slow;
    double max_wait_s;
  } log;
  struct {
    int64_t every, max_bytes;
  } evaluate;
  struct {
    int64_t metrics_port;
    const char *dashboard;
    bool tensorboard;
  } vitals;
} iso_config;

/* Reads defaults, then the file, then "key=value" overrides (dots for nesting). Paths of inputs in the file are
 * relative to the file's folder, on the command line to the working directory. One-line errors with file:line:column,
 * and the nearest key for an unknown one. Everything lives until iso_config_fini. */
iso_status iso_config_read(const char *path, const char *const *overrides, int override_count,
                           iso_config *config) ISO_MUST_CHECK;
void iso_config_fini(iso_config *config);
/* All keys with values, as YAML that reads back the same. */
void iso_config_print(const iso_config *config, iso_string *out);
/* The keys with defaults, units and meaning. */
void iso_config_help(FILE *out);
/* SHA-256 over the keys that decide bits (and `extra`: model config, tokenizer fingerprint, corpus digest). */
void iso_config_digest(const iso_config *config, const char *extra, char hex[65]);
/* Keys that decide bits and differ: "key: old -> new; ..." appended to `out`. Returns how many. */
int iso_config_difference(const iso_config *before, const iso_config *now, iso_string *out);
/* batch.micro: largest divisor of sequences/W with micro * sequence <= 2,048, at least 1. */
int64_t iso_config_micro(const iso_config *config, int64_t workers);
iso_dtype iso_config_compute(const iso_config *config);
iso_dtype iso_config_gradient(const iso_config *config);
iso_fusion_switches iso_config_fusion(const iso_config *config);

/* ---- keys.c: the key table, one row a key, for reading, printing, help, digest and difference alike ---- */

typedef enum iso_key_type {
  ISO_KEY_STRING,
  ISO_KEY_PATH,   /* of an input: resolved; its content, not its name, decides bits */
  ISO_KEY_CHOICE, /* one of the words in `choices` */
  ISO_KEY_FUSION, /* words of iso_fusion_switches_read */
  ISO_KEY_INT,
  ISO_KEY_AUTO, /* a whole number or `auto` (-1) */
  ISO_KEY_REAL,
  ISO_KEY_BOOL
} iso_key_type;

typedef struct iso_key {
  const char *path; /* with dots */
  iso_key_type type;
  size_t offset; /* in iso_config, or in iso_source_config */
  const char *fallback;
  const char *choices; /* CHOICE: words separated by spaces; numbers: "low high" */
  const char *help;    /* unit and meaning */
  bool decides_bits;
} iso_key;

extern const iso_key iso_keys[];
extern const size_t iso_key_count;
extern const iso_key iso_source_keys[]; /* of an entry of data.sources */
extern const size_t iso_source_key_count;

/* Sets the field from its text. `where` names the place for errors. Strings go to the arena. */
iso_status iso_key_set(const iso_key *key, void *base, iso_arena *arena, const char *text,
                       const char *where) ISO_MUST_CHECK;
/* The field as YAML text. */
void iso_key_print(const iso_key *key, const void *base, iso_string *out);
/* Key of the table nearest to a misspelt one. */
const char *iso_key_nearest(const char *path);

/* ---- schedule.c ------------------------------------------------------------------------------------- */

/* Learning rate of step 1..steps: linear warm-up to lr, then constant, cosine or linear to lr * min_lr_ratio, or WSD:
 * hold, then linear over the last decay_steps. */
double iso_learning_rate(const iso_config *config, int64_t step);
/* Sorted disjoint [begin, end) pairs of the flat state that decay; arena-allocated. */
void iso_decay_ranges(const iso_config *config, const iso_graph *graph, iso_arena *arena, int64_t **ranges,
                      int64_t *count);

/* ---- engine.c: compiled programs over one flat state ----------------------------------------------- */

typedef struct iso_engine_options {
  const iso_model_config *model;
  iso_dtype compute, gradient;
  int64_t workers, micro, sequence; /* rows of one pass = micro * sequence */
  int64_t micros;         /* passes of a worker in a step; with one worker and one pass no flat gradients are kept, and
                             iso_exec_gradients cannot run. 0: any number, gradients are kept */
  int64_t evaluate_batch; /* windows of an evaluation pass; 0: no evaluation program */
  bool train, segments;
  double memory_limit_gb;        /* 0: what the machine has */
  int64_t staging;               /* bytes to hold a snapshot aside; -1: what is spare, at most the whole state */
  bool log;                      /* two reduced gradients, of which the log reads one */
  iso_wal_options log_how;       /* of it what decides the memory that its writes take */
  const iso_flat_shared *shared; /* of the flat state, by ranks; NULL: this process is alone */
  int64_t share_bytes;           /* memory that this rank may take at most; 0: what is free */
  bool keep_activations;      /* memory.recompute: off; else activations are made again where the limit asks for it */
  iso_ring_plan data;         /* batch ring, lanes, prefetch: counted in the plan */
  iso_fusion_switches fusion; /* all 0: everything that can be is fused, nothing measured */
  const char *dump_after;
  FILE *dump;
} iso_engine_options;

typedef struct iso_engine {
  iso_engine_options options;
  const iso_device *device;
  iso_arena *compilation;
  iso_program *program;    /* training step; NULL when !train */
  iso_program *evaluation; /* losses only; NULL when none */
  iso_flat flat;
  void *arena;
  size_t arena_bytes;
  int64_t staging_bytes; /* planned for snapshots, which allocate it */
  iso_exec *exec, *evaluation_exec;
  double compile_s; /* seconds that compiling the programs took, measuring fusions included */
} iso_engine;

/* Compiles without allocating planned memory (inspect). */
iso_status iso_engine_compile(const iso_device *device, const iso_engine_options *options,
                              iso_engine *engine) ISO_MUST_CHECK;
/* The memory plan as text, last line: use of the transient arena in percent. */
void iso_engine_plan(const iso_engine *engine, iso_string *out);
int64_t iso_engine_bytes(const iso_engine *engine);
/* Compile, check the plan against memory (MEMORY error says how much is needed and what would help), allocate. */
iso_status iso_engine_init(const iso_device *device, const iso_engine_options *options,
                           iso_engine *engine) ISO_MUST_CHECK;
void iso_engine_fini(iso_engine *engine);
const iso_graph *iso_engine_graph(const iso_engine *engine);

/* ---- race.c -------------------------------------------------------------------------------------------- */

/* An iso_race on an iso_device: how fast small programs are on its team. */
iso_status iso_programs_race(const void *device, iso_program *const *programs, int count, double budget_s,
                             double *seconds) ISO_MUST_CHECK;

/* ---- evaluate.c --------------------------------------------------------------------------------------- */

typedef struct iso_evaluation {
  double loss_sum; /* nats over the predicted tokens */
  int64_t predicted, tokens, bytes, unpredicted, left_out;
  double loss, perplexity; /* per predicted token */
  double bits_per_byte;    /* all tokens, unpredicted ones charged log2(vocabulary) */
  double seconds;
} iso_evaluation;
/* Runs the evaluation program over all windows. `without`: targets with this id count neither as loss nor as tokens
 * (-1: all count). Allocates windows once. */
iso_status iso_evaluate(iso_engine *engine, iso_validation *validation, int64_t without,
                        iso_evaluation *out) ISO_MUST_CHECK;

/* ---- progress.c: the progress line -------------------------------------------------------------------- */

typedef struct iso_progress {
  bool terminal;
  int width;
  double last_s, started_s;
  bool open; /* an unfinished line is on the terminal */
} iso_progress;
typedef struct iso_progress_step {
  int64_t step, steps, tokens_done, durable_step;
  double loss, lr, tokens_per_s, mfu, eta_s;
  int64_t memory_bytes;
  bool refused;
  double data_wait;                     /* share of the time, lately */
  const char *data_stage, *data_source; /* what cost most of it; "": nothing did */
} iso_progress_step;
void iso_progress_init(iso_progress *progress);
/* On a terminal rewrites one line (at most 10 times a second); else prints a line about every 10 s and at the end. */
void iso_progress_show(iso_progress *progress, const iso_progress_step *step, bool last);
void iso_progress_end(iso_progress *progress);

/* ---- lines.c: .jsonl files of a run, a line a step ------------------------------------------------------- */

typedef struct iso_lines iso_lines;
/* Opens RUN/NAME.jsonl for appending after `step`: later lines (and a torn last one) are cut off and kept in aside/. */
iso_status iso_lines_open(const char *run, const char *name, int64_t step, iso_lines **out) ISO_MUST_CHECK;
/* Whole lines, which begin with {"step": STEP and are sealed (iso_record_seal_line). After a failure they are kept and
 * written before the next ones. */
iso_status iso_lines_append(iso_lines *lines, const char *text, size_t bytes) ISO_MUST_CHECK;
iso_status iso_lines_sync(iso_lines *lines) ISO_MUST_CHECK;
iso_status iso_lines_close(iso_lines **lines) ISO_MUST_CHECK;
enum { ISO_LINES_NAMED = 20 };
typedef struct iso_lines_found {
  int64_t unprotected; /* lines of before they had a CRC */
  int64_t damaged;
  int64_t torn;      /* half written ones, which a kill or a power cut left */
  iso_string faults; /* a line for each of the first ISO_LINES_NAMED damaged ones: "NAME.jsonl, line 12: cause" */
} iso_lines_found;
void iso_lines_found_fini(iso_lines_found *found);
/* The lines of RUN/NAME.jsonl that count, malloc'd and NUL-terminated; NULL: there is no such file. `found`, which
 * begins as zeros and is added to, may be NULL. Nothing is said. */
iso_status iso_lines_read(const char *run, const char *name, char **data, size_t *bytes,
                          iso_lines_found *found) ISO_MUST_CHECK;

/* ---- skipped.c: documents left out, in skipped.jsonl -------------------------------------------------------- */

/* `known` (malloc'd, the caller's): those listed up to `step`. `lines` stays NULL while there is no file. */
iso_status iso_skipped_open(const char *run, int64_t step, iso_lines **lines, iso_skipped **known,
                            int64_t *count) ISO_MUST_CHECK;
/* Lists and warns of those that the slot's step met first; opens `lines` if need be. */
iso_status iso_skipped_append(const char *run, iso_lines **lines, const iso_slot *slot,
                              const iso_source_options *sources) ISO_MUST_CHECK;

/* ---- metrics.c: metrics.jsonl and status.json ---------------------------------------------------------- */

typedef struct iso_step_metrics { /* its numbers are those of vitals/names.c */
  int64_t step, tokens, durable_step;
  double loss, lr, grad_norm, tokens_per_s, mfu;
  union {
    iso_budget budget;
    struct { /* its parts, in their order */
      double wall_s, compute_s, data_wait_s, reduce_wait_s, storage_wait_s, other_s, preempted_s, unaccounted_s;
    };
  };
  union {
    iso_sign_values signs; /* of the last window; NaN: not known */
    struct {
      double data_load_latency, allreduce_wait, allreduce_wait_std, checkpoint_bandwidth, flatness;
    };
  };
  const char *breached;            /* JSON array of the signs that are out of bounds; NULL: [] */
  int64_t incarnation, ring_depth; /* ring: batches that were ready behind it */
  bool refused;
  bool starved;                               /* no filled slot was there when it was due, however short the wait */
  const char *starved_stage, *starved_source; /* then */
} iso_step_metrics;
typedef struct iso_metrics iso_metrics;
/* As iso_lines_open. */
iso_status iso_metrics_open(const char *run, int64_t step, iso_metrics **out) ISO_MUST_CHECK;
iso_status iso_metrics_append(iso_metrics *metrics, const iso_step_metrics *step) ISO_MUST_CHECK;
/* A line {"step", "evaluate": {...}} beside the steps' lines goes to evaluations.jsonl. */
iso_status iso_metrics_close(iso_metrics **metrics) ISO_MUST_CHECK;
/* Seconds of these steps in RUN/metrics.jsonl, whichever start took them. */
double iso_metrics_seconds(const char *run, int64_t first, int64_t last);
iso_status iso_status_write(const char *run, const char *verdict, int exit_code, int64_t step, int64_t durable_step,
                            int incarnation, bool disk) ISO_MUST_CHECK;

/* ---- acknowledged.c: what earlier starts called durable ----------------------------------------------- */

typedef struct iso_acknowledged {
  int64_t stated;       /* newest durable step of status.json; 0: none */
  bool before_boot;     /* it was said under `durability: process` before this machine started: a power cut explains
                           that it is missing, and that any other step is */
  int64_t shown;        /* of the lines of metrics.jsonl */
  bool shown_this_boot; /* said since this machine started, so that no power cut can explain that it is missing */
} iso_acknowledged;
/* Without what a later start left by going back. */
iso_status iso_acknowledged_read(const char *run, iso_acknowledged *out) ISO_MUST_CHECK;

/* ---- state.c -------------------------------------------------------------------------------------------------- */

/* Names and shapes of a graph's parameters in flat order (in the arena); the arrays stay NULL. */
iso_status iso_state_describe(const iso_graph *graph, iso_arena *arena, iso_state *state) ISO_MUST_CHECK;
/* "RUN@STEP", unless a file has that very name; step -1: none given. USAGE. */
iso_status iso_run_path_split(const char *path, char *run, size_t capacity, int64_t *step) ISO_MUST_CHECK;

/* ---- prove.c: snapshot N + log = snapshot N+1 ------------------------------------------------------------- */

typedef enum iso_proof_result { ISO_PROVEN, ISO_UNPROVEN, ISO_REFUTED } iso_proof_result;
typedef struct iso_proof { /* of one pair of neighbouring snapshots */
  const char *from, *to;   /* their names; from: "the first weights" where the run has made them again */
  int64_t from_step, to_step, steps;
  iso_proof_result result;
  const char *cause; /* of what is not proven */
} iso_proof;
/* Replays between all snapshots that count and compares every bit of weights, moments, cursors and counters. Nothing is
 * written, and no lock is taken. The proofs live in the arena. */
iso_status iso_run_prove(iso_arena *arena, const char *run, iso_proof **proofs, size_t *count) ISO_MUST_CHECK;

/* ---- inputs.c: what a run folder says its run was made of ---------------------------------------------------------
 */

/* Raised whenever kernels or passes of an unchanged config give other bits. Part of every run's digest, so a resume
 * under other bits is refused without --accept. */
#define ISO_BITS_VERSION 2
/* Digest of everything that decides a run's bits: the config's deciding keys, the model's config, tokenizer and corpus.
 */
void iso_run_digest(const iso_config *config, const char *model_json, const char *tokenizer, const char *corpus,
                    char hex[65]);
/* Where the copies stand that the newest incarnation was started with. */
typedef struct iso_input_paths {
  const char *config, *model, *inputs; /* in the arena given */
  char tokenizer[65];                  /* fingerprint that they state */
  bool is_next;                        /* its start was killed before it put them in their places */
} iso_input_paths;
/* Recomputes the digest from config.yaml, model.json and inputs.json and compares with the newest incarnation: FORMAT
 * when one of them is not what the run was started with. */
iso_status iso_run_inputs_find(iso_arena *arena, const char *run, iso_input_paths *paths) ISO_MUST_CHECK;
/* The same for who needs only that, and the tokenizer's fingerprint (may be NULL). */
iso_status iso_run_inputs_check(const char *run, char tokenizer[65]) ISO_MUST_CHECK;
/* Whether these copies and tokenizer/ are what inputs.json names: FORMAT, and a line in `faults` for each that is not.
 * listed false: inputs.json is of before it named any. */
iso_status iso_run_inputs_examine(const char *run, const iso_input_paths *paths, bool *listed,
                                  iso_string *faults) ISO_MUST_CHECK;
/* The same as a warning, for who goes on with them. */
iso_status iso_run_inputs_warn(const char *run, const iso_input_paths *paths) ISO_MUST_CHECK;
/* inputs.json; one line when it is damaged. */
iso_status iso_run_inputs_json(const char *path, iso_json **inputs) ISO_MUST_CHECK;
typedef struct iso_run_inputs {
  const char *config, *model; /* texts of config.yaml and model.json */
  const char *corpus;         /* digest */
  const iso_tokenizer *tokenizer;
} iso_run_inputs;
/* For the run's owner, before an incarnation is published. */
iso_status iso_run_inputs_write(const char *run, const iso_run_inputs *inputs) ISO_MUST_CHECK;
/* After it is; and at the next start, should this one not have got there. */
iso_status iso_run_inputs_settle(const char *run) ISO_MUST_CHECK;

/* ---- small_files.c: what a run folder holds beside snapshots, log and inputs ------------------------------- */

/* Reads each file that verifies itself: a line to `out` for each fault, to `unprotected` for each file of before it had
 * a CRC, to `torn` for each that ends in half a line. CHECK when there is a fault. */
iso_status iso_run_small_files_verify(const char *run, FILE *out, iso_string *unprotected,
                                      iso_string *torn) ISO_MUST_CHECK;
/* A damaged status.json goes to aside/ before another takes its place. */
iso_status iso_run_status_settle(const char *run) ISO_MUST_CHECK;

/* ---- stored.c: a run's stored state without an engine ----------------------------------------------------- */

typedef struct iso_stored {
  iso_arena *arena;
  char run[4096];
  char folder[512]; /* of the snapshot that it begins with; "": of the first weights */
  iso_input_paths inputs;
  iso_model_config model;
  iso_snapshot_info info;
  iso_state state; /* with moments */
  size_t slab_bytes;
} iso_stored;
/* The state of a run folder after `step`, or after the newest step that snapshots and log lead to (-1). NOT_FOUND. */
iso_status iso_stored_open(const char *run, int64_t step, iso_stored *stored) ISO_MUST_CHECK;
void iso_stored_close(iso_stored *stored);
/* Only the model, described, and memory for its state, which is all zeros. */
iso_status iso_stored_prepare(const char *run, iso_stored *stored, iso_graph **graph) ISO_MUST_CHECK;
/* The state that a replay begins with: of the snapshot in `folder`, or, NULL, the weights that the run began with.
 * NOT_FOUND when these cannot be made again. */
iso_status iso_stored_load(iso_stored *stored, const char *folder, const iso_graph *graph,
                           const iso_device *device) ISO_MUST_CHECK;
bool iso_stored_first_known(const iso_stored *stored);
/* NOT_FOUND unless `run` is a run folder. */
iso_status iso_run_folder_check(const char *run) ISO_MUST_CHECK;

/* ---- run.c, resume.c: a run's live objects ------------------------------------------------------------- */

typedef struct iso_ranks iso_ranks;

typedef struct iso_train_options {
  iso_ranks *ranks; /* NULL: this process is alone; kept until iso_train returns */
  bool accept, take_over;
  bool quiet;            /* nothing on standard output (tests) */
  double trace_s;        /* the first steps are traced for so long; 0: they are not */
  bool go_back;          /* begin after from_step, whatever comes later */
  int64_t from_step;     /* with go_back */
  int64_t segment_bytes; /* of the log (tests); 0: as it is best */
} iso_train_options;

/* What snapshots.c keeps of a run. */
typedef struct iso_snapshots {
  iso_streamer *streamer;
  int64_t staging_bytes;
  bool asked;                      /* by the user (SIGUSR1): behind the next step */
  bool begun_for_user;             /* the last one was */
  bool retry;                      /* the last one came to nothing */
  bool patient;                    /* staging was too small: updates wait for the rest */
  int64_t begun_step;              /* of the last one begun */
  int64_t said;                    /* step of the attempt of which trouble was told */
  double last_s;                   /* when the last one ended */
  double not_before_s;             /* after one that failed */
  double write_s;                  /* that the last one took, beside the steps */
  double cost_s;                   /* that steps waited for the last one */
  double gate_s;                   /* that updates waited since iso_run_snapshots_waited */
  double update_began_s, update_s; /* of this step; smoothed length */
} iso_snapshots;

/* Another place for what the run folder holds, or none. */
typedef struct iso_copy {
  iso_target *target;     /* until the mirror is open, which keeps it; NULL: none */
  iso_target_lock *owned; /* the same, of checkpoint.target */
  iso_mirror *mirror;
  int64_t mark; /* of checkpoint.target: a step that it lacked at mark_s; 0: it lacks none */
  double mark_s;
  double told_s;
  bool behind; /* for log.max_wait_s, and said */
  bool outage; /* at the last look */
} iso_copy;

/* Everything a run holds between its first and its last step. Opened by iso_run_open in the order of the fields. */
typedef struct iso_run {
  iso_config config; /* resolved: virtual_workers is a number */
  iso_train_options options;
  iso_lock *lock;
  iso_copy target, mirror; /* of checkpoint.target, checkpoint.mirror */
  char uuid[37];
  iso_model_config model;
  iso_tokenizer *tokenizer;
  iso_data_options data;
  iso_source_options sources[ISO_MAX_SOURCES];
  iso_corpus *corpus;
  iso_corpus_info corpus_info;
  char digest[65]; /* of config, model, tokenizer and corpus */
  iso_device *device;
  iso_engine engine;
  iso_arena *arena; /* small objects of the run */
  iso_state state;  /* the flat state as the store sees it */
  int64_t workers, micro, micros, *decay_ranges, decay_count;
  iso_incarnation incarnation;
  char snapshot[512];    /* folder resumed from; "" at the beginning */
  iso_differed differed; /* why this start goes back by itself; incarnation 0: it does not */
  iso_snapshot_info at;  /* step, Adam's t, tokens, refused, cursors: after the last step taken */
  int64_t durable_step;
  int64_t here_step;     /* that the run folder leads to; durable, unless there is a checkpoint.target */
  int64_t snapshot_step; /* of the newest snapshot; -1: none */
  int64_t replayed_steps;
  double replay_s;
  iso_wal *wal; /* NULL: log.enabled is false */
  iso_snapshots snapshots;
  bool gap;       /* of the log, and said */
  bool suspended; /* the log: said already */
  bool packed;    /* the log was, at some time */
  bool hangs;     /* the same: its storage */
  double suspended_since_s;
} iso_run;

/* ---- mirror.c: other places of a run: where its durable state lives, and a second one behind it ------- */

/* Nothing of this does anything when neither checkpoint.target nor checkpoint.mirror is given. Before the folder is
 * opened: what is gone or cut short here comes from there; a folder without a run gets theirs. BUSY: the target is
 * another process's. */
iso_status iso_run_mirror_restore(iso_run *run) ISO_MUST_CHECK;
/* For a run that cannot be resumed: what is damaged is replaced. */
iso_status iso_run_mirror_repair(iso_run *run, bool *repaired) ISO_MUST_CHECK;
/* After the incarnation is published: BUSY when another process has gone on from there. */
iso_status iso_run_mirror_open(iso_run *run) ISO_MUST_CHECK;
/* The run folder leads to that step: it is durable, unless a target is to have it first. */
void iso_run_has(iso_run *run, int64_t step);
/* After a step: what the target has is durable. Adds what it waited for one that is behind (log.when_slow), and asks
 * for a snapshot when that brings it on. IO with when_slow: stop. */
iso_status iso_run_mirror_poll(iso_run *run, bool *snapshot_wanted, double *wait_s) ISO_MUST_CHECK;
/* Waits for them to be complete, or the target to have the last step; how long depends on how the run ended. */
void iso_run_mirror_close(iso_run *run, iso_status status);
/* Then: there is a target, and it lacks steps that are here. */
bool iso_run_mirror_lacks(const iso_run *run);

/* ---- wal.c: the run's step log ------------------------------------------------------------------------- */

/* Durable steps survive a power cut: they are in snapshots only, or log.durability is disk. */
bool iso_run_is_power_safe(const iso_run *run);
/* After the incarnation is published. Nothing when log.enabled is false; so for all of these. */
iso_status iso_run_log_open(iso_run *run) ISO_MUST_CHECK;
/* What the config says of how the log is written. */
void iso_config_log(const iso_config *config, iso_wal_options *options);
void iso_run_log_close(iso_run *run);
/* Everything handed over is written; false: not within log.max_wait_s (5 s at least), and the log is suspended. */
bool iso_run_log_flush(iso_run *run);
/* How it was written, as an object of report.json; nothing without a log. */
void iso_run_log_record(const iso_run *run, iso_string *out);
/* Before a step: chooses a reduced gradient that the log does not read, and adds what it waited. IO with when_slow:
 * stop. */
iso_status iso_run_log_begin(iso_run *run, double *wait_s) ISO_MUST_CHECK;
/* After it is taken. */
iso_status iso_run_log_append(iso_run *run, const iso_step *step) ISO_MUST_CHECK;
/* Moves durable_step on. A suspension is said once; *snapshot_wanted when a snapshot should end it now. */
iso_status iso_run_log_poll(iso_run *run, bool *snapshot_wanted) ISO_MUST_CHECK;

/* ---- replay.c: what recovery did ------------------------------------------------------------------------- */

typedef struct iso_recovery {
  int64_t from; /* the step that it began behind */
  iso_replay_report report;
  iso_string segments; /* that gave the steps, in words */
  iso_string faults;   /* lines: damage of the log, if any */
  iso_string torn;     /* lines: ends that a kill left */
  bool unread;         /* the step behind the last one may stand where the disk would not read */
} iso_recovery;
/* What iso_wal_replay needs, but for `restore` and `any_version`; its ranges live in the arena. */
void iso_replay_init(const iso_device *device, const iso_graph *graph, iso_state *state, iso_arena *arena,
                     iso_replay *with);
/* From the state after info->step to that after `last`, or as far as the log of the run folder goes. uuid may be NULL.
 * Prints nothing; fini `out` in any case. */
iso_status iso_log_replay(const char *folder, const char *uuid, const iso_replay *with, int64_t last,
                          iso_snapshot_info *info, iso_recovery *out) ISO_MUST_CHECK;
void iso_recovery_fini(iso_recovery *recovery);
/* One line for each thing: what was refused and why, what was replayed and how long that took. */
void iso_recovery_print(const iso_recovery *recovery, const char *run);
/* NOT_FOUND, naming the steps that can be had. from_first: as in iso_reach_read; differed: why the step is wanted, if
 * it is not the user who wants it, else NULL. */
iso_status iso_step_unreachable(const char *run, const char *uuid, int64_t step, bool from_first,
                                const iso_differed *differed) ISO_MUST_CHECK;

/* Checks everything, resumes from the newest valid snapshot or initialises, publishes the incarnation. */
iso_status iso_run_open(const iso_config *config, const iso_train_options *options, iso_run *run) ISO_MUST_CHECK;
void iso_run_close(iso_run *run);
/* As a rank that follows: inputs, engine and cursors, without a state. */
iso_status iso_run_open_follower(const iso_config *config, iso_ranks *ranks, iso_run *run) ISO_MUST_CHECK;
/* Only the inputs: model, tokenizer, corpus (data trace). */
iso_status iso_run_open_inputs(const iso_config *config, iso_run *run) ISO_MUST_CHECK;
/* Inputs and engine with weights as a run begins with, and no folder: nothing is written (bench data). */
iso_status iso_run_open_dry(const iso_config *config, iso_run *run) ISO_MUST_CHECK;
/* The parts that `inspect` and `evaluate` need too: options of the engine from a config, model config from either place
 * it may stand. */
iso_status iso_run_model(const iso_config *config, iso_model_config *model) ISO_MUST_CHECK;
void iso_run_engine_options(const iso_config *config, const iso_model_config *model, int64_t workers,
                            iso_engine_options *out);
void iso_run_data_options(const iso_config *config, iso_source_options sources[ISO_MAX_SOURCES], iso_data_options *out);
/* resume.c: finds where to go on: loads the snapshot into the engine or initialises; fills run->at, incarnation,
 * durable_step. */
iso_status iso_run_resume(iso_run *run) ISO_MUST_CHECK;
/* Weights and cursors of step 0. */
iso_status iso_run_start_afresh(iso_run *run) ISO_MUST_CHECK;

/* ---- snapshots.c: when snapshots are written --------------------------------------------------------------- */

/* Once the run is about to take steps; none can take less than least_step_s. */
iso_status iso_run_snapshots_open(iso_run *run, double least_step_s) ISO_MUST_CHECK;
void iso_run_snapshots_close(iso_run *run); /* waits for one under way */
/* Seconds that updates waited since the last call, which is behind each step. */
double iso_run_snapshots_waited(iso_run *run);
/* Behind a step and its append to the log: takes note of what has become of the one under way, and begins one when it
 * is due, asked for, or wanted to close a gap in the log. Adds what it waited. */
iso_status iso_run_snapshots_step(iso_run *run, bool wanted, double *wait_s) ISO_MUST_CHECK;
/* Waits for one under way, if any. Storage that fails is only said (but for when_slow: stop). */
iso_status iso_run_snapshots_finish(iso_run *run) ISO_MUST_CHECK;
/* Writes one of run->at and waits for it; none may be under way. */
iso_status iso_run_snapshots_last(iso_run *run) ISO_MUST_CHECK;
/* The same before iso_run_snapshots_open and before the log is open. */
iso_status iso_run_snapshot(iso_run *run) ISO_MUST_CHECK;

/* ---- ranks.c: what the ranks of a run do together ------------------------------------------------------------- */

enum { ISO_MOST_RANKS = 256 };
typedef struct iso_ranks_plan {
  /* in */
  int count;
  int64_t workers, elements; /* W; of the flat state */
  iso_dtype gradient, compute;
  int zero;       /* parallel.zero: what the ranks of a host have once */
  bool log;       /* two reduced gradients */
  int processors; /* that the ranks of this host share */
  double timeout_s;
  int64_t share_bytes;    /* of memory, for each rank beside what is shared */
  const iso_world *world; /* of a launcher's ranks; NULL: this program has forked them */
  int start, starts;      /* which one this is, and of how many at most; 0: nothing restarts them */
  /* iso_ranks_plan_init, and for a launcher's ranks iso_ranks_join: */
  int hosts, mates;                                  /* mates: ranks of this host */
  int numbers[ISO_MOST_RANKS], host[ISO_MOST_RANKS]; /* numbers: [mates], of this host's */
  int first_leaf[ISO_MOST_RANKS + 1];
} iso_ranks_plan;
void iso_ranks_plan_init(iso_ranks_plan *plan); /* ranks_plan.c */
/* Shared memory: of all ranks of the host together (ranks.c). */
size_t iso_ranks_common_bytes(const iso_ranks_plan *plan);
iso_status iso_ranks_create_memory(const iso_ranks_plan *plan, int *fd) ISO_MUST_CHECK;
/* This process becomes `rank`. */
iso_status iso_ranks_open(const iso_ranks_plan *plan, int fd, int rank, iso_ranks **out) ISO_MUST_CHECK;
/* The end: rank 0 that has taken no step tells the others its status; a launcher's ranks wait for each other, and rank
 * 0's status is that of all, which is returned. */
iso_status iso_ranks_leave(iso_ranks *ranks, iso_status status) ISO_MUST_CHECK; /* NULL: status */
void iso_ranks_close(iso_ranks **ranks);
/* A rank was lost: this process ends with ISO_EXIT_LOST_RANK, and waits for nobody. */
bool iso_ranks_lost(const iso_ranks *ranks); /* NULL: false */
/* Rank 0 stops since it was told to (ISO_STOPPED), unless a launcher told it because a rank is gone: then that is said
 * and returned. */
iso_status iso_ranks_stopped(iso_ranks *ranks) ISO_MUST_CHECK;
int iso_ranks_number(const iso_ranks *ranks); /* NULL: 0 */
/* As iso_shared_hurry; for ranks other than 0. */
void iso_ranks_hurry(iso_ranks *ranks, const volatile sig_atomic_t *hurry);
/* How many ranks of so many threads have processors of their own. */
int iso_ranks_at_once(const iso_ranks *ranks, int threads);
const iso_ranks_plan *iso_ranks_plan_get(const iso_ranks *ranks);
const iso_flat_shared *iso_ranks_flat(const iso_ranks *ranks);
/* The others, before they open anything: are there steps to take? Rank 0, when it has opened the run: there are. */
iso_status iso_ranks_await(iso_ranks *ranks, bool *goes_on) ISO_MUST_CHECK;
iso_status iso_ranks_announce(iso_ranks *ranks) ISO_MUST_CHECK;
/* All: the engine is there, or not (`status`, which becomes that of all). Weights, moments, counters and cursors become
 * those of rank 0, and steps those of all ranks. Keeps run->engine and stop_signal. */
iso_status iso_ranks_begin(iso_ranks *ranks, iso_run *run, iso_status status, int64_t last_step,
                           const volatile sig_atomic_t *stop_signal) ISO_MUST_CHECK;
/* The last part of it, for steps that are no run's: state is alike already, `rows` are those of a batch. Each rank
 * meets the others in iso_ranks_ready afterwards. */
iso_status iso_ranks_attach(iso_ranks *ranks, const iso_device *device, iso_engine *engine, int64_t rows,
                            int64_t last_step, const volatile sig_atomic_t *stop_signal) ISO_MUST_CHECK;
/* All: steps can be taken, or not. */
iso_status iso_ranks_ready(iso_ranks *ranks, iso_status status) ISO_MUST_CHECK;
/* Behind a step: it was the last one, since rank 0 had a signal. */
bool iso_ranks_stop(const iso_ranks *ranks);
/* A failure between steps: the others hear of it in the next one, which is not taken. Returns `status`. */
iso_status iso_ranks_refuse(iso_ranks *ranks, iso_status status);
/* The step behind which all weights were last seen to be the same: what leads there is needed. -1: they are not
 * compared. */
int64_t iso_ranks_checked(const iso_ranks *ranks); /* NULL: -1 */
/* Seconds that this rank waited for others since the last call. */
double iso_ranks_waited(iso_ranks *ranks);
/* What the step that is over was for this rank: the others hear of it in the next one. */
void iso_ranks_health_set(iso_ranks *ranks, const iso_budget *budget, const iso_evidence *evidence);
/* Of all ranks, [count], in the step before the last reduction. */
void iso_ranks_health_get(const iso_ranks *ranks, iso_budget *budgets, iso_evidence *evidence);

/* Parts of the reduced gradient are handed over as they become final, by a thread of the ranks'. Before
 * iso_ranks_begin. */
void iso_ranks_handover_set(iso_ranks *ranks, iso_exec_handover *handover, void *context);

/* ---- ranks_plan.c: who owns what, and the memory that takes ------------------------------------------------------ */

/* Of each rank, that others read. */
size_t iso_ranks_own_bytes(const iso_ranks_plan *plan);
/* Weights, moments and gradients of a host, shared or not. */
size_t iso_ranks_host_bytes(const iso_ranks_plan *plan);
/* The same for 2, 4 and 8 ranks of one host and every parallel.zero, in words. */
void iso_ranks_plan_rows(int64_t elements, iso_dtype compute, iso_dtype gradient, int64_t workers, bool log,
                         iso_string *out);
/* How the work is shared out, and what that costs: lines on standard output. */
void iso_ranks_print(const iso_ranks *ranks, int threads);

/* ---- ranks_order.c: the order of hosts, which ranks are numbered in ---------------------------------------------- */

/* All ranks, before their numbers are used: rank 0 makes the order, by config->parallel.topology, the run's last start,
 * names or as the launcher gave it. CONFIG: as iso_order_make; agreed on. */
iso_status iso_ranks_order(iso_world *world, const iso_config *config) ISO_MUST_CHECK;
/* On rank 0: why nothing is known of the network, if so; and lines on standard output. */
void iso_ranks_order_warn(const iso_world *world);
void iso_ranks_order_print(const iso_world *world);
/* As JSON for the record of a start, and back: NULL when it is none, or there is no memory. */
void iso_order_put(const iso_order *order, iso_string *out);
iso_order *iso_order_parse(const char *text);
/* "by their names: a1 (ranks 0-1), a2 (2-3) | b1 (4)" */
void iso_order_print(const iso_order *order, iso_string *out);
/* Of the newest start that has one. NULL: there is none that can be read. */
iso_order *iso_order_stored(const char *run, int *start);

/* ---- ranks_start.c: one process becomes many --------------------------------------------------------------------- */

/* Forks the ranks; before threads exist. In each, *out is it. In the process that called it, which stays to look after
 * them, *out is NULL, all ranks are gone, the status is what became of the run, and *lost says that this was because a
 * rank was lost; up to `restarts` times all are started anew then, and when weights of ranks differed. Resolves
 * `virtual_workers: auto`. */
iso_status iso_ranks_start(iso_config *config, int64_t count, int64_t restarts, iso_ranks **out,
                           bool *lost) ISO_MUST_CHECK;
/* What `count` ranks share. `who` wants them ("--ranks 4"), for errors: CONFIG. */
/* The ranks of a plan, once, for steps that are no run's. In each *out is it; in the process that called it stays NULL,
 * and all are gone. */
iso_status iso_ranks_fork(iso_ranks_plan *plan, iso_ranks **out) ISO_MUST_CHECK;
iso_status iso_ranks_plan_make(const iso_config *config, int64_t count, const char *who,
                               iso_ranks_plan *plan) ISO_MUST_CHECK;
/* Virtual workers of a run by `ranks`: those of the config; for `auto` those that the run folder was begun with, else
 * the ranks rounded up to a power of two. */
int64_t iso_config_workers(const iso_config *config, int64_t ranks);
/* They can share out the batch: CONFIG. (What is written in the config is checked when it is read, `auto` is not.) */
iso_status iso_config_workers_check(const iso_config *config) ISO_MUST_CHECK;

/* ---- ranks_launch.c: a launcher's processes become ranks -----------------------------------------------------------
 */

/* All ranks, each with its config or the status that reading it gave. The status is that of all: *out is this rank, or
 * NULL. Resolves `virtual_workers: auto`. Keeps the world. */
iso_status iso_ranks_join(iso_world *world, iso_config *config, iso_status status, iso_ranks **out) ISO_MUST_CHECK;

/* ---- follow.c: a rank other than 0 --------------------------------------------------------------------------------
 */

/* Takes the steps that rank 0 takes. Writes nothing, and says nothing but that it failed or that a rank is lost. */
iso_status iso_follow(const iso_config *config, iso_ranks *ranks) ISO_MUST_CHECK;

/* ---- loop.c ------------------------------------------------------------------------------------------------ */

typedef struct iso_train_result {
  int64_t step, parameters, tokens, refused;
  double train_s, tokens_per_s, mfu, peak_gflops, loss, load_p95_ms;
  int64_t starved_steps;
  iso_evaluation evaluation; /* of the final weights, when there is validation text */
  bool evaluated;
} iso_train_result;
/* What the step after run->at is to do with this batch. */
void iso_run_step_prepare(const iso_run *run, const iso_slot *slot, iso_step *step);
/* It is taken: counters and cursors move on, also when it was refused. */
void iso_run_step_commit(iso_run *run, const iso_slot *slot, const iso_step *step);
int64_t iso_run_last_step(const iso_config *config);
/* Trains, or resumes, until `steps`, `stop_at` or a signal (ISO_STOPPED). */
iso_status iso_train(const iso_config *config, const iso_train_options *options,
                     iso_train_result *result) ISO_MUST_CHECK;

#endif
