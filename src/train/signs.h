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
#include "data/data.h"
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
extern const char *const iso_budget_names[ISO_PARTS]; /* "wall_s", ... */

/* What the data threads were at when a batch came late: names of iso_ring_waits. */
typedef enum iso_late_stage { ISO_LATE_SCHEDULE, ISO_LATE_READ, ISO_LATE_TOKENIZE, ISO_LATE_PACK } iso_late_stage;
enum { ISO_LATE_STAGES = ISO_LATE_PACK + 1, ISO_LATE_SOURCES = 64 };
extern const char *const iso_late_names[ISO_LATE_STAGES];

typedef struct iso_budget {
  double parts[ISO_PARTS]; /* seconds */
  double late_s;           /* of ISO_PART_DATA: the step starved; 0: it did not */
  int32_t late_stage, late_source;
} iso_budget;

/* Seconds of starved steps. */
typedef struct iso_late {
  double seconds[ISO_LATE_STAGES][ISO_LATE_SOURCES];
} iso_late;
/* Of what came before so much counts on. */
void iso_late_fade(iso_late *late, double share);
void iso_late_add(iso_late *late, const iso_budget *budget);
double iso_late_sum(const iso_late *late, iso_late_stage stage);
/* Stage, from `from` on, and source with the most seconds; false: there are none. */
bool iso_late_most(const iso_late *late, iso_late_stage from, iso_late_stage *stage, int *source);

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
/* The step starved, as its ring says. */
void iso_stopwatch_starved(iso_stopwatch *watch, const iso_ring_waits *waits, const iso_data_options *data);
/* This lap was the step's program, whose parts were timed by those who did them; gate_s: in its gate. Returns the time.
 */
double iso_stopwatch_computed(iso_stopwatch *watch, const iso_step *step, struct iso_ranks *ranks, double gate_s);
/* These seconds of this lap are no part of any step. */
void iso_stopwatch_leave_out(iso_stopwatch *watch, double seconds);
/* A step is over, at the last lap; the next one begins there. */
void iso_stopwatch_end(iso_stopwatch *watch, iso_budget *out);
/* The parts make up the wall time, within 1 %. */
bool iso_budget_closes(const iso_budget *budget);

/* How values are spread, in memory of a fixed size: quantiles within 1.6 %, mean and standard deviation exact. */
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

/* ---- sensors.c: what the machine says ------------------------------------------------------------------- */

typedef struct iso_evidence { /* NaN: not known */
  double at_s;                /* iso_clock_s there */
  /* since some beginning */
  double stopped_s;   /* the process did not run though nobody had its processor */
  double steal_s;     /* mean of the processors */
  double throttled_s; /* the control group's quota was used up */
  double pressure_cpu_s, pressure_memory_s, pressure_io_s;
  double major_faults;
  double s3_requests, s3_errors; /* 0 requests: S3 is not used */
  /* now */
  double clock_ghz, clock_best_ghz; /* best: so far */
  double celsius;
  double running, processors; /* tasks ready to run; processors that this process may use */
  double memory_bytes, memory_available_bytes, page_cache_bytes;
} iso_evidence;
typedef struct iso_sensors iso_sensors;
/* Starts their thread; the first reading is there. */
iso_status iso_sensors_start(iso_sensors **out) ISO_MUST_CHECK;
/* The newest reading; left as it is while the thread writes one. NULL: nothing. */
void iso_sensors_get(iso_sensors *sensors, iso_evidence *evidence);
void iso_sensors_stop(iso_sensors **sensors);

/* ---- signs.c: four signs, and who is to blame ----------------------------------------------------------- */

typedef struct iso_sign_values {                                /* names and order of metrics.jsonl */
  double data_load_latency, allreduce_wait, allreduce_wait_std; /* s */
  double checkpoint_bandwidth;                                  /* bytes/s */
  double flatness;
} iso_sign_values;

typedef enum iso_sign { ISO_SIGN_LOAD, ISO_SIGN_REDUCE, ISO_SIGN_BANDWIDTH, ISO_SIGN_FLATNESS } iso_sign;
enum { ISO_SIGNS = ISO_SIGN_FLATNESS + 1 };
extern const char *const iso_sign_names[ISO_SIGNS], *const iso_sign_units[ISO_SIGNS];

typedef enum iso_cause {
  ISO_CAUSE_SOURCE,
  ISO_CAUSE_STOPPED,
  ISO_CAUSE_PREEMPTED,
  ISO_CAUSE_THROTTLED,
  ISO_CAUSE_STEAL,
  ISO_CAUSE_CLOCK,
  ISO_CAUSE_MEMORY,
  ISO_CAUSE_DISK,
  ISO_CAUSE_S3,
  ISO_CAUSE_OTHER,
  ISO_CAUSE_RANK,
  ISO_CAUSE_UNKNOWN
} iso_cause;
enum { ISO_CAUSES = ISO_CAUSE_UNKNOWN + 1 };
extern const char *const iso_cause_names[ISO_CAUSES];

/* A window of steps as a rank's machine saw it; names and units: docs/metrics.md. NaN: not known. */
typedef struct iso_machine {
  double clock_ghz, clock_best_ghz, celsius, pressure_cpu, pressure_memory, pressure_io, running, processors, steal,
      throttled, stopped, memory_bytes, memory_available_bytes, page_cache_bytes, major_faults, disk_busy, disk_write_s,
      s3_requests, s3_errors;
} iso_machine;
/* {"clock_ghz": ..., ...}; and as words, without what is not known. */
void iso_machine_print(const iso_machine *machine, iso_string *out);
void iso_machine_say(const iso_machine *machine, iso_string *out);

/* A step, as all ranks know it. */
typedef struct iso_watch_step {
  int64_t step;
  double now_s, time_s;         /* iso_clock_s; Unix */
  const iso_budget *budgets;    /* [ranks] */
  const iso_evidence *evidence; /* [ranks] */
  double log_bytes, log_busy_s; /* so far, of the log's thread */
  const iso_data_options *data; /* whose sources starved steps name */
} iso_watch_step;

/* What a line says: a sign has left its bounds, another rank or cause is to blame for it now, it is back, or the start
 * ends before it is (closes). Valid until the next step. */
typedef struct iso_breach {
  iso_sign sign;
  bool begins, changes, closes; /* none of them: it is back */
  int64_t step, since_step;
  double time_s, since_time_s, seconds; /* seconds: since it began */
  double value, bound;
  const char *measure; /* what of the sign the value is: "p95", "mean", ... */
  int rank;
  iso_cause cause;
  double cause_s, window_s;
  char text[256];   /* value and bound in words */
  char detail[512]; /* the cause in words */
  iso_machine machine;
} iso_breach;

typedef struct iso_sign_state {
  bool out;
  double value, bound;
  const char *measure; /* NULL: not known */
  int rank;            /* what was said last; so is the cause */
  iso_cause cause;
  int64_t since_step;
  double since_s, since_time_s;
} iso_sign_state;

/* Seconds that a cause took of this start, of the rank where they are most. */
typedef struct iso_cause_total {
  double seconds;
  int rank;
  char detail[256]; /* of the whole start; once it is over */
} iso_cause_total;

typedef struct iso_watch iso_watch;
/* window_s: the least that a window lasts. */
iso_status iso_watch_create(int ranks, double window_s, iso_watch **out) ISO_MUST_CHECK;
void iso_watch_destroy(iso_watch **signs);
/* Returns how many breaches begin, change or end here. */
int iso_watch_add(iso_watch *signs, const iso_watch_step *step, const iso_breach **breaches);
/* The last step is over: the window that it lies in counts for the causes, and is not judged. Returns how many breaches
 * end with the start; their signs stay out. */
int iso_watch_end(iso_watch *signs, const iso_watch_step *step, const iso_breach **breaches);
void iso_watch_values(const iso_watch *signs, iso_sign_values *values);
const iso_sign_state *iso_watch_state(const iso_watch *signs, iso_sign sign);
const char *iso_watch_breached(const iso_watch *signs); /* JSON array of names */
/* Of this start: a rank's part; what a cause took, in the windows that are over. */
const iso_tally *iso_watch_tally(const iso_watch *signs, int rank, iso_budget_part part);
const iso_cause_total *iso_watch_cause(const iso_watch *signs, iso_cause cause);
/* The rank that the others waited for most, of this start; -1: they waited for none. */
int iso_watch_held_up_by(const iso_watch *signs);

/* Of the last window; all unknown before there is one. */
const iso_machine *iso_watch_machine(const iso_watch *watch, int rank);

/* ---- blame.c: which cause took how long ------------------------------------------------------------- */

/* What its machine kept a rank from running, s: of readings that may span more or less than the window. */
typedef struct iso_kept {
  double stopped_s, throttled_s, steal_s, memory_s;
} iso_kept;

typedef struct iso_window { /* of a rank */
  double seconds;
  int64_t steps;
  iso_budget sums;
  iso_machine machine;
  iso_kept kept;
  double began_processors; /* that it could use when it started */
  iso_late late;
  const iso_data_options *data;
} iso_window;
/* Adds a window to what came before: sums, means over the time, and of what is now the worst. */
void iso_window_add(iso_window *sum, const iso_window *window);
/* Seconds by cause; ISO_CAUSE_RANK: what it waited for others. */
void iso_blame(const iso_window *window, double seconds[ISO_CAUSES]);
/* So many seconds of preemption are memory's doing. */
bool iso_blame_is_memory(const iso_window *window, double preempted);
/* The cause in words. */
void iso_blame_say(const iso_window *window, iso_cause cause, double seconds, char *out, size_t bytes);

#endif
