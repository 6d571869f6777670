/* SPDX-License-Identifier: Apache-2.0
 *
 * Traces: part of train.h for those that take steps. docs/formats.md has the file.
 */
#ifndef ISO_TRAIN_TRACING_H
#define ISO_TRAIN_TRACING_H

#include "train/train.h"

enum { ISO_STEP_WAITS = ISO_EXEC_WAITS + 3 };
typedef struct iso_step_times {
  double began_s, take_s, taken_s, begin_s, computed_s, ended_s; /* iso_clock_s; take: the batch is asked for and
                                                                    there; begin, computed: the program does and has */
  iso_wait waits[ISO_STEP_WAITS]; /* for all but the batch, in order: before it, for the log, inside the program */
  int wait_count;
  double left_began_s, left_ended_s; /* before the batch is asked for, what is no part of the step: an evaluation */
  double wall_s, compute_s;
  double storage_wait_s, reduce_wait_s;
  /* set by iso_tracing_step */
  int64_t step, durable;
  double log_write_s, data_cpu_s; /* what threads beside the step did meanwhile */
  int ring_depth;
} iso_step_times;

/* It has waited so long for `why`, until ended_s. Nothing where there is no time or place for it. */
void iso_step_times_wait(iso_step_times *times, iso_wait_kind why, double seconds, double ended_s);
/* The program has run. */
void iso_step_times_computed(iso_step_times *times, const iso_step *step, double computed_s);

/* ---- tracing.c: what a stretch of steps did, RUN/trace-STEP.json ----------------------------------------------- */

typedef struct iso_tracing iso_tracing;
/* Between steps: the next ones are traced, for so many seconds. from_s: when the first of them began, at the latest.
 * Rank 0 asks the others to do so, too, from the step after the next on. */
iso_status iso_tracing_begin(iso_run *run, double seconds, double from_s, iso_tracing **out) ISO_MUST_CHECK;
/* Behind a step of a rank other than 0: begins and ends as rank 0 asks. */
void iso_tracing_follow(iso_run *run, const iso_step_times *times, const iso_ring *ring, iso_tracing **tracing);
/* After a step; true: the time is over. Nothing once it has ended. */
bool iso_tracing_step(iso_tracing *tracing, const iso_step_times *times, const iso_ring *ring);
/* The next steps are not traced; a thread of its own writes the file, or says why not: training goes on in any case. */
void iso_tracing_end(iso_tracing *tracing);
/* It has ended, and the file is written. */
bool iso_tracing_is_written(const iso_tracing *tracing);
/* Ends it if it has not, and waits for the file. NULL: nothing. */
void iso_tracing_close(iso_tracing **tracing);

/* ---- tracing_write.c: its file --------------------------------------------------------------------------------- */

enum { ISO_TRACE_STREAMS = ISO_STREAMS };
typedef struct iso_traced { /* what a rank has recorded; borrowed */
  const iso_run *run;
  int rank, ranks;
  const char *host;
  const iso_exec_trace *trace;
  const iso_step_times *steps;
  int64_t count, lost; /* of steps */
  const iso_busy_span *spans[ISO_TRACE_STREAMS];
  int64_t span_counts[ISO_TRACE_STREAMS];
  double base_s;  /* what is 0 in the file */
  int64_t number; /* of the trace: the first step that rank 0 traces */
  bool alone;     /* the other ranks' parts are not waited for */
} iso_traced;
/* Rank 0: the file, with the parts of all ranks as they come. Others: their part. */
iso_status iso_traced_write(const iso_traced *traced) ISO_MUST_CHECK;

/* ---- ranks.c --------------------------------------------------------------------------------------------------- */

/* By rank 0: from the next agreement on, trace `number` is wanted; 0: none. */
void iso_ranks_trace_set(iso_ranks *ranks, int64_t number, double base_s);
/* What rank 0 wants, as of the last agreement; *base_s by this rank's clock. */
int64_t iso_ranks_trace_get(const iso_ranks *ranks, double *base_s);

#endif
