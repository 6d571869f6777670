/* SPDX-License-Identifier: Apache-2.0
 *
 * Vital signs: part of train.h, which includes it. docs/metrics.md has every name that is written, with its unit.
 *
 * Invariants
 *  1. Each part of a step's budget is timed between two readings of the clock that belong to it; what no part holds is
 *     published as unaccounted_s.
 *  2. Nothing here changes a bit of the run, and nothing here ends it.
 *  3. Memory is taken before the first step.
 */
#ifndef ISO_TRAIN_SIGNS_H
#define ISO_TRAIN_SIGNS_H

#include "base/base.h"
#include "exec/exec.h"

struct iso_ranks;

/* ---- budget.c: where the time of a step goes ------------------------------------------------------------ */

typedef enum iso_budget_part {
  ISO_PART_WALL,
  ISO_PART_COMPUTE,
  ISO_PART_DATA,
  ISO_PART_REDUCE,
  ISO_PART_STORAGE,
  ISO_PART_OTHER,      /* host work: lines, signals, looking after log and snapshots */
  ISO_PART_PREEMPTED,  /* of compute: the scheduler took it */
  ISO_PART_UNACCOUNTED /* wall minus compute to other; may be below 0 by a reading of the clock */
} iso_budget_part;
enum { ISO_PARTS = ISO_PART_UNACCOUNTED + 1 };
extern const char *const iso_part_names[ISO_PARTS]; /* "wall_s", ... */
typedef struct iso_budget {
  double parts[ISO_PARTS]; /* seconds */
} iso_budget;

/* Times the parts of one step after the other, by the thread that takes them. */
typedef struct iso_stopwatch {
  iso_budget budget;
  double began_s, at_s, skipped_s; /* of the step; of the lap; what was no part of the step */
  double inside_s;                 /* of the lap: timed by itself */
} iso_stopwatch;
void iso_stopwatch_start(iso_stopwatch *watch);
/* What passed since the last lap, but for what was added with iso_stopwatch_within, is of that part. Returns the time.
 */
double iso_stopwatch_lap(iso_stopwatch *watch, iso_budget_part part);
/* Within this lap so many seconds were timed by themselves. */
void iso_stopwatch_within(iso_stopwatch *watch, iso_budget_part part, double seconds);
/* This lap was the step's program, whose parts were timed by those who did them; gate_s: in its gate. Returns the time.
 */
double iso_stopwatch_computed(iso_stopwatch *watch, const iso_step *step, struct iso_ranks *ranks, double gate_s);
/* These seconds of this lap are no part of any step. */
void iso_stopwatch_leave_out(iso_stopwatch *watch, double seconds);
/* A step is over, at the last lap; the next one begins there. */
void iso_stopwatch_end(iso_stopwatch *watch, iso_budget *out);
/* The parts make up the wall time, within 1 %. */
bool iso_budget_closes(const iso_budget *budget);

/* How values are spread, in memory of a fixed size: quantiles within 1.1 %, mean and standard deviation exact. */
enum { ISO_TALLY_FINE = 32, ISO_TALLY_OCTAVES = 40, ISO_TALLY_BINS = ISO_TALLY_FINE * ISO_TALLY_OCTAVES };
typedef struct iso_tally {
  int64_t count;
  double sum, squares, least, most;
  uint32_t bins[ISO_TALLY_BINS]; /* from 1e-8, 32 to the doubling */
} iso_tally;
void iso_tally_add(iso_tally *tally, double value);
void iso_tally_clear(iso_tally *tally);
double iso_tally_mean(const iso_tally *tally); /* 0 when there is none; so for all of these */
double iso_tally_deviation(const iso_tally *tally);
double iso_tally_quantile(const iso_tally *tally, int percent);
/* {"p50": ..., "p95": ..., "p99": ..., "mean": ..., "std": ...} */
void iso_tally_print(const iso_tally *tally, iso_string *out);

/* ---- signs.c: four signs, and who is to blame ----------------------------------------------------------- */

typedef struct iso_sign_values {                                /* names and order of metrics.jsonl */
  double data_load_latency, allreduce_wait, allreduce_wait_std; /* s */
  double checkpoint_bandwidth;                                  /* bytes/s */
  double flatness;
} iso_sign_values;

#endif
