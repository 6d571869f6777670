/* SPDX-License-Identifier: Apache-2.0
 *
 * vitals: what a run says of itself while it goes on and when it ends. One table of names (names.c) stands behind
 * every output, so that a number is called the same wherever it is read.
 *
 * Invariants
 *  1. A number of a step is a field of iso_step_metrics and a row of iso_vitals; every output walks the table, and none
 *     has names of its own for them.
 *  2. Outputs read what a step has done and change nothing of it: bits are the same with and without them.
 *  3. An output that cannot be written is said and never ends a run.
 */
#ifndef ISO_TRAIN_VITALS_H
#define ISO_TRAIN_VITALS_H

#include "train/train.h"

/* ---- names.c: the table of names -------------------------------------------------------------------- */

typedef enum iso_vital_type { ISO_VITAL_REAL, ISO_VITAL_WHOLE, ISO_VITAL_FLAG } iso_vital_type;
typedef struct iso_vital {
  const char *name; /* in metrics.jsonl and everywhere else */
  iso_vital_type type;
  size_t offset;    /* in iso_step_metrics: double, int64_t, bool */
  const char *unit; /* "": a number without one */
  const char *help;
} iso_vital;
/* In the order of a line of metrics.jsonl. */
extern const iso_vital iso_vitals[];
extern const size_t iso_vital_count;
/* NULL: there is none of that name. */
const iso_vital *iso_vital_find(const char *name);
/* As a number; flags are 0 or 1. */
double iso_vital_value(const iso_vital *vital, const iso_step_metrics *step);
/* `"name": value` for all, with commas between them; numbers that are not finite are null. */
void iso_vitals_print(const iso_step_metrics *step, iso_string *out);

/* ---- history.c: what metrics.jsonl says of a run as a whole ----------------------------------------- */

enum { ISO_HISTORY_POINTS = 600, ISO_HISTORY_STARTS = 256, ISO_HISTORY_STARVED = 16 };
typedef struct iso_start { /* what its lines say */
  int64_t number, first, last, steps;
  double time, gap_s; /* of its first line; since the last one of the start before, NAN: not known */
} iso_start;
typedef struct iso_starved {  /* of what a batch was late */
  const char *stage, *source; /* with quotes, in `text` */
  size_t stage_bytes, source_bytes;
  int64_t steps;
  double seconds;
} iso_starved;
typedef struct iso_history {
  char *text;
  int64_t steps, steps_per_point; /* lines */
  double *all;                    /* [iso_vital_count][steps] */
  /* [iso_vital_count][ISO_HISTORY_POINTS], of them point_count; NAN: not known */
  double *mean, *low, *high;
  size_t point_count;
  int64_t step_of_point[ISO_HISTORY_POINTS]; /* its last one */
  double tokens, began, ended;               /* seconds since 1970; 0: not known */
  iso_start starts[ISO_HISTORY_STARTS];
  size_t start_count;
  iso_starved starved[ISO_HISTORY_STARVED]; /* steps 0: none */
  int64_t starved_steps;
} iso_history;
/* iso_history_fini in any case. Nothing there: no steps. */
iso_status iso_history_read(const char *run, iso_history *history) ISO_MUST_CHECK;
void iso_history_fini(iso_history *history);
typedef struct iso_vital_spread {
  int64_t count;
  double sum, mean, std, p50, p95, p99, most;
} iso_vital_spread;
iso_vital_spread iso_history_spread(const iso_history *history, const char *name);
/* Tokens per second of the last tenth of the steps over those of the first; NAN: fewer than ten steps. */
double iso_history_last_over_first(const iso_history *history);
/* Seconds that steps computed longer than the median. */
double iso_history_slow_compute(const iso_history *history, double median);

/* ---- assets.c: pages that the binary holds ------------------------------------------------------------ */

extern const char iso_page_style[], iso_page_charts[], iso_page_report[], iso_page_report_script[];
typedef struct iso_page_part {
  const char *name, *text;
} iso_page_part;
/* The template, with {{name}} replaced. */
void iso_page_fill(const char *template, const iso_page_part *parts, size_t count, iso_string *out);
/* JSON as it may stand in a <script>, a text as it may stand in HTML. */
void iso_page_json(const char *json, iso_string *out);
void iso_page_text(const char *text, iso_string *out);

/* ---- report_page.c: RUN/report.html --------------------------------------------------------------------- */

/* verdict: a word of status.json. What cannot be written is said in a warning. */
void iso_report_page_write(const char *run, const char *verdict);
/* FORMAT: it is there and is not what was written. A line in `faults` then. */
iso_status iso_report_page_check(const char *run, iso_string *faults) ISO_MUST_CHECK;

#endif
