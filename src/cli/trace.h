/* SPDX-License-Identifier: Apache-2.0
 *
 * A trace as `isotach trace` has it: what each rank did, summed up as far as one line after the other can be.
 */
#ifndef ISO_CLI_TRACE_H
#define ISO_CLI_TRACE_H

#include "cli/cli.h"

enum { ISO_TRACE_OPS = 128, ISO_TRACE_THREADS = 1024 };
typedef enum iso_trace_part {
  ISO_TRACE_DATA,
  ISO_TRACE_REDUCE,
  ISO_TRACE_STORAGE,
  ISO_TRACE_COMPUTE,
  ISO_TRACE_REST, /* what the four leave: the trace does not time it */
  ISO_TRACE_WALL,
  ISO_TRACE_PARTS
} iso_trace_part;
extern const char *const iso_trace_keys[ISO_TRACE_PARTS]; /* "data_wait_s", ..., "wall_s" */
typedef enum iso_trace_work { /* beside the steps; ISO_TRACE_DATA, ..., ISO_TRACE_STORAGE are the waits for it */
                              ISO_TRACE_DATA_WORK,
                              ISO_TRACE_REDUCE_WORK,
                              ISO_TRACE_STORAGE_WORK,
                              ISO_TRACE_WORKS
} iso_trace_work;

typedef struct iso_trace_event {
  int op, thread, group; /* group: stretches between meetings, counted over the trace */
  float seconds;
} iso_trace_event;
typedef struct iso_trace_op {
  char name[40];
  int64_t calls; /* of thread 0, where there was something to do */
  double seconds /* of all threads */, path_s, flop;
} iso_trace_op;

typedef struct iso_trace_rank {
  iso_trace_op ops[ISO_TRACE_OPS];
  int op_count, threads, groups[ISO_TRACE_THREADS];
  iso_trace_event *events;
  size_t count, capacity;
  double *parts[ISO_TRACE_PARTS]; /* by step, seconds */
  double *works[ISO_TRACE_WORKS]; /* the same, beside it */
  double *begins, *ends;          /* of these steps, in order */
  int64_t *numbers;               /* of these steps */
  int64_t steps, step_capacity;
  double work_s[ISO_TRACE_WORKS], hidden[ISO_TRACE_WORKS]; /* in all, and which share of it; NAN: there is none */
  double waiting_s /* of threads for each other */, path_s;
  int64_t critical; /* steps in which it computed longest of all ranks */
} iso_trace_rank;
typedef struct iso_trace_file {
  const char *path;
  iso_trace_rank **ranks; /* by number */
  int rank_count;
  int64_t lost, stated; /* events that did not fit; ranks that the run had */
} iso_trace_file;

/* ---- trace_read.c ---------------------------------------------------------------------------------------------- */

/* FORMAT: no trace, or one that is damaged. To be ended in any case. */
iso_status iso_trace_read(const char *path, iso_trace_file *out) ISO_MUST_CHECK;
void iso_trace_fini(iso_trace_file *file);

#endif
