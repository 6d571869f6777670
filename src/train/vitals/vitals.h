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

#include "train/health.h"

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
/* Of a step's time. */
bool iso_vital_is_part(const iso_vital *vital);
/* As a number; flags are 0 or 1. */
double iso_vital_value(const iso_vital *vital, const iso_step_metrics *step);
/* `"name": value` for all, with commas between them; numbers that are not finite are null. */
void iso_vitals_print(const iso_step_metrics *step, iso_string *out);

/* ---- points.c: curves in bounded memory --------------------------------------------------------------- */

enum { ISO_POINTS = 600 };
typedef struct iso_point {
  double weight, sum, low, high; /* weight 0: not known */
} iso_point;
typedef struct iso_points {
  iso_point *cells; /* [iso_vital_count][ISO_POINTS] */
  size_t count;
  int64_t steps_per_point, in_last; /* steps of the last point so far */
  int64_t step[ISO_POINTS];         /* a point's last one */
} iso_points;
iso_points *iso_points_create(void); /* NULL: no memory */
void iso_points_destroy(iso_points **points);
/* values: [iso_vital_count], NAN: not known */
void iso_points_add(iso_points *points, const double *values);
iso_point iso_points_get(const iso_points *points, size_t row, size_t point);
double iso_point_mean(iso_point point); /* NAN: not known */
/* {"step": [], NAME: {"mean": [], "low": [], "high": []}}; no low and high where a point is one step. */
void iso_points_print(const iso_points *points, iso_string *out);

/* ---- history.c: what metrics.jsonl says of a run as a whole ----------------------------------------- */

enum { ISO_HISTORY_STARTS = 256, ISO_HISTORY_STARVED = 16 };
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
  int64_t steps, last_step; /* lines; of the last one */
  double *all;              /* [iso_vital_count][steps] */
  iso_points *points;
  double tokens, began, ended; /* seconds since 1970; 0: not known */
  iso_start starts[ISO_HISTORY_STARTS];
  size_t start_count;
  iso_starved starved[ISO_HISTORY_STARVED]; /* steps 0: none */
  int64_t starved_steps;
  iso_starved longest; /* the one that waited longest; steps 0: none says where */
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
/* [steps], of a name; NAN: not known. */
const double *iso_history_values(const iso_history *history, const char *name);
/* Tokens over seconds of the steps that say both; 0: none does. */
double iso_history_rate(const iso_history *history);
/* GFLOP/s that the steps' MFU is a fraction of: of the first step that says it, and the most; 0: none does. */
double iso_history_peak(const iso_history *history, double flop_per_token, double *first);
/* The last line's loss; NAN where it says null, 0 where there is no line. */
double iso_history_loss(const iso_history *history);

/* ---- starts.c (of train): RUN/starts.json, what a start knows that no line says --------------------------- */

typedef struct iso_start_cause { /* of the rank where it is longest */
  double seconds;                /* 0: none */
  int rank;
  bool held_up; /* others waited for that rank */
  char host[256], detail[256];
} iso_start_cause;
typedef struct iso_start_record {
  int64_t number;
  double started_s, replay_s, peak_gflops; /* started: until its first step. NAN: not known */
  int64_t replayed_steps;
  bool ended; /* its causes are known */
  iso_start_cause causes[ISO_CAUSES];
} iso_start_record;
typedef struct iso_starts {
  iso_start_record *list; /* of those that came to a step */
  size_t count;
  int64_t last_step;     /* of the newest one, which has ended; -1: it has not. Then: */
  iso_string ranks, log; /* JSON, as in report.json */
  bool unread;           /* there is one that cannot be read: none is written in its place */
} iso_starts;
/* The part of the budget that a cause is seen in; ISO_PART_WALL: none. */
extern const iso_budget_part iso_cause_parts[ISO_CAUSES];
/* iso_starts_fini in any case. One that is damaged, or of another run than uuid's, is said, and set aside. */
iso_status iso_starts_read(const char *run, const char *uuid, iso_starts *out) ISO_MUST_CHECK;
/* OK also where there is none; FORMAT with the fault's line: the same cases. */
iso_status iso_starts_verify(const char *run, const char *uuid, iso_string *faults) ISO_MUST_CHECK;
void iso_starts_fini(iso_starts *starts);
/* NULL: nothing is known of it. */
const iso_start_record *iso_starts_find(const iso_starts *starts, int64_t number);
iso_start_record *iso_starts_add(iso_starts *starts, int64_t number); /* NULL: no memory */
/* What a start's watch, which has ended, knows of a cause; lines_s: what rank 0's lines of this start say of its part.
 * No host. */
void iso_start_cause_find(const iso_watch *watch, iso_cause cause, double lines_s, iso_start_cause *out);
/* Before this start's first step, and behind its last. Both write; what cannot be written is said in a warning. */
void iso_starts_begin(iso_starts *starts, const iso_run *run, double started_s, double peak_gflops);
void iso_starts_end(iso_starts *starts, const iso_run *run, const iso_health *health, const iso_history *history,
                    double peak_gflops);

/* ---- causes.c (of train): where the time of all starts went ---------------------------------------------- */

typedef struct iso_cause_item {
  const char *name;
  double seconds;
  int rank;
  bool held_up;
  char host[256]; /* "": not known */
  char detail[320];
} iso_cause_item;
/* Longest first; returns how many. again_*: of the steps that were run again. */
int iso_causes_list(const iso_history *history, const iso_starts *starts, int64_t again_steps, double again_s,
                    iso_cause_item out[ISO_CAUSES + 1]);

/* ---- verdict.c (of train): what a run says of itself at its end ------------------------------------------ */

typedef struct iso_verdict_input {
  const char *run;
  const iso_history *history; /* of all starts; so are the next */
  const iso_starts *starts;
  int64_t last_step;
} iso_verdict_input;
typedef struct iso_verdict { /* found once; terminal, report.json and report.html say the same. Empty: no steps */
  iso_string members;        /* of report.json, with a comma before each */
  iso_string lines;          /* for standard output */
} iso_verdict;
/* iso_verdict_fini in any case. */
iso_status iso_verdict_find(const iso_verdict_input *input, iso_verdict *out) ISO_MUST_CHECK;
void iso_verdict_fini(iso_verdict *verdict);

/* ---- report.c (of train): RUN/report.json ----------------------------------------------------------------- */

typedef struct iso_report {
  const iso_run *run;
  const iso_train_result *result;
  const iso_history *history;
  const iso_starts *starts;
  const iso_verdict *verdict;
  double first_peak_gflops; /* that was corrected later; 0: it was not */
} iso_report;
iso_status iso_report_write(const iso_report *report) ISO_MUST_CHECK;

/* ---- assets.c: pages that the binary holds ------------------------------------------------------------ */

extern const char iso_page_style[], iso_page_charts[], iso_page_report[], iso_page_report_script[],
    iso_page_dashboard[], iso_page_dashboard_script[], iso_page_panels[], iso_page_program[];
typedef struct iso_page_part {
  const char *name, *text;
} iso_page_part;
/* The template, with {{name}} replaced. */
void iso_page_fill(const char *template, const iso_page_part *parts, size_t count, iso_string *out);
/* "name": "text" */
void iso_json_text(iso_string *out, const char *name, const char *text);
/* JSON as it may stand in a <script>, a text as it may stand in HTML. */
void iso_page_json(const char *json, iso_string *out);
void iso_page_text(const char *text, iso_string *out);

/* ---- report_page.c: RUN/report.html --------------------------------------------------------------------- */

/* word: of status.json. What cannot be written is said in a warning. */
void iso_report_page_write(const char *run, const char *word, const iso_history *history, const iso_verdict *verdict);
/* FORMAT: it is there and is not what was written. A line in `faults` then. */
iso_status iso_report_page_check(const char *run, iso_string *faults) ISO_MUST_CHECK;

/* ---- live.c: the numbers of a run under way ------------------------------------------------------------- */

enum { ISO_LIVE_RECENT = 1024 };
typedef struct iso_live iso_live;
/* With the curves of the steps that the run has taken so far. */
iso_status iso_live_create(const char *run, const iso_history *history, iso_live **out) ISO_MUST_CHECK;
void iso_live_destroy(iso_live **live);
void iso_live_step(iso_live *live, const iso_step_metrics *step, double time);
typedef struct iso_live_number {
  double last, sum, p50, p95, p99; /* NAN: not known; quantiles of the newest ISO_LIVE_RECENT steps */
  int64_t steps;                   /* of this start */
} iso_live_number;
/* By any thread, while steps are put in: all of it as it stands at this moment, the caller's. NULL: no memory. */
iso_live *iso_live_copy(iso_live *live);
/* While nobody puts a step in. */
void iso_live_read(const iso_live *live, size_t row, iso_live_number *out);
double iso_live_smoothed(const iso_live *live, const char *name); /* as in vitals.json; NAN: no step yet */
double iso_live_time(const iso_live *live);                       /* of the last step; 0: none */
const iso_points *iso_live_points(const iso_live *live);

/* ---- exposition.c: for Prometheus --------------------------------------------------------------------- */

typedef struct iso_outputs_head { /* what does not change in a start; borrowed */
  const char *run, *uuid, *tier;
  int64_t steps, parameters;
  int ranks, threads;
} iso_outputs_head;
void iso_exposition_print(const iso_outputs_head *head, const iso_live *live, iso_string *out);

/* ---- server.c: HTTP ---------------------------------------------------------------------------------------- */

typedef struct iso_server iso_server;
/* By the server's thread: the body, and its type; false: there is nothing of that path. */
typedef bool iso_server_answer(void *context, const char *path, const char **type, iso_string *body);
/* address: HOST:PORT, port 0 for any that is free. `where` names what asks for it, for errors: CONFIG, BUSY, IO. */
iso_status iso_server_open(const char *address, const char *where, iso_server_answer *answer, void *context,
                           iso_server **out) ISO_MUST_CHECK;
/* The same in two steps: the address is this process's, and who asks waits; they are answered. */
iso_status iso_server_listen(const char *address, const char *where, iso_server **out) ISO_MUST_CHECK;
iso_status iso_server_start(iso_server *server, const char *where, iso_server_answer *answer,
                            void *context) ISO_MUST_CHECK;
void iso_server_close(iso_server **server);
/* Where a path is, with the token where one is needed. */
void iso_server_url(const iso_server *server, const char *path, char url[256]);
/* CONFIG. */
iso_status iso_address_split(const char *text, const char *where, char host[64], char port[8]) ISO_MUST_CHECK;

/* ---- gradients.c: how the reduced gradient is spread --------------------------------------------------- */

enum { ISO_SPREAD_OCTAVES = 40, ISO_SPREAD_BINS = 120, ISO_SPREAD_SAMPLES = 1 << 16 };
typedef struct iso_layer_spread {
  char name[64];      /* "layers.3", "norm" */
  int64_t begin, end; /* elements of the flat state */
  int64_t count, not_finite;
  double sum, squares;
  float least, most;
  int64_t bins[2 * ISO_SPREAD_BINS + 1]; /* of rising values; the one in the middle is that of zero */
} iso_layer_spread;
typedef struct iso_gradients {
  iso_layer_spread *layers;
  size_t count;
} iso_gradients;
iso_status iso_gradients_create(const iso_state *state, iso_gradients **out) ISO_MUST_CHECK;
void iso_gradients_destroy(iso_gradients **gradients);
/* values: of the flat state's elements, F32 or BF16. */
void iso_gradients_measure(iso_gradients *gradients, const void *values, iso_dtype type);
/* Between bin i and bin i + 1. */
double iso_spread_limit(int bin);
/* "model.layers.3.mlp.up_proj.weight" is of "layers.3", "model.norm.weight" of "norm": returns the length of that part,
 * and where it begins. */
size_t iso_layer_name(const char *parameter, const char **begin);

/* ---- protobuf.c: fields of a message ------------------------------------------------------------------- */

void iso_protobuf_int(iso_string *out, int field, int64_t value);
void iso_protobuf_float(iso_string *out, int field, float value);
void iso_protobuf_double(iso_string *out, int field, double value);
void iso_protobuf_bytes(iso_string *out, int field, const void *bytes, size_t count);
void iso_protobuf_text(iso_string *out, int field, const char *text);
void iso_protobuf_message(iso_string *out, int field, iso_string *message); /* which is empty then */

/* ---- events.c: for TensorBoard ------------------------------------------------------------------------- */

typedef struct iso_events iso_events;
/* A file of its own for a start that takes first_step first; config: a text. */
iso_status iso_events_open(const char *run, int64_t first_step, double time, const char *config,
                           iso_events **out) ISO_MUST_CHECK;
void iso_events_step(iso_events *events, const iso_step_metrics *step, double time);
void iso_events_gradients(iso_events *events, const iso_gradients *gradients, int64_t step, double time);
void iso_events_close(iso_events **events);

/* ---- engine.c (of train): the memory plan by what it holds --------------------------------------------------- */

enum { ISO_PLAN_ROWS = 16 };
typedef struct iso_plan_row {
  const char *what;
  int64_t bytes;
} iso_plan_row;
/* Returns how many. Small things (constants, outputs, padding) are in iso_engine_bytes alone. */
int iso_engine_plan_rows(const iso_engine *engine, iso_plan_row rows[ISO_PLAN_ROWS]);

/* ---- program.c: the step's program, and the memory that was planned for it ------------------------------- */

/* What the page draws of it; the same for the whole start. */
void iso_program_describe(const iso_engine *engine, iso_string *out);

/* ---- profile.c: what each instruction of a step takes, while somebody looks ------------------------------ */

typedef struct iso_profile iso_profile;
/* Keeps run->engine.exec. */
iso_status iso_profile_create(const iso_run *run, iso_profile **out) ISO_MUST_CHECK;
void iso_profile_destroy(iso_profile **profile); /* between steps */
/* Around a step. busy: it is traced already. */
void iso_profile_begin(iso_profile *profile, bool busy);
void iso_profile_end(iso_profile *profile, int64_t step);
/* By the server's thread: the step looked at last, and one is looked at soon. */
void iso_profile_print(iso_profile *profile, iso_string *out);

/* ---- timeline.c: snapshots, the log and starts ------------------------------------------------------------- */

typedef struct iso_timeline iso_timeline;
iso_status iso_timeline_create(const iso_run *run, const iso_history *history, iso_timeline **out) ISO_MUST_CHECK;
void iso_timeline_destroy(iso_timeline **timeline);
/* By the loop. */
void iso_timeline_step(iso_timeline *timeline, const iso_run *run, double now);
void iso_timeline_print(iso_timeline *timeline, iso_string *out);

/* ---- dashboard.c: one page, and its numbers -------------------------------------------------------------- */

typedef struct iso_flow iso_flow; /* gradients by layer and step */
/* Keeps `gradients`. */
iso_status iso_flow_create(const iso_gradients *gradients, iso_flow **out) ISO_MUST_CHECK;
void iso_flow_destroy(iso_flow **flow);
/* What the gradients' last measurement said. */
void iso_flow_add(iso_flow *flow, int64_t step);
void iso_dashboard_page(const iso_outputs_head *head, iso_string *out);
typedef struct iso_dashboard { /* what its numbers are made of */
  const iso_outputs_head *head;
  const iso_live *live;
  iso_flow *flow;
  iso_timeline *timeline;
  const char *health; /* of iso_health_look; NULL: not known yet */
} iso_dashboard;
void iso_dashboard_data(const iso_dashboard *dashboard, iso_string *out);

/* ---- outputs.c: what the config asks for -------------------------------------------------------------- */

typedef struct iso_outputs iso_outputs;
/* Before the folder of a new run is made: addresses that the config wants become this process's, so that none that is
 * taken leaves a folder behind. NULL in *out: nothing is asked for, or the folder is there. */
iso_status iso_outputs_reserve(const iso_config *config, iso_outputs **out) ISO_MUST_CHECK;
/* *outputs: NULL, or reserved. NULL then: nothing is asked for. The run outlives it. */
iso_status iso_outputs_open(const iso_run *run, iso_outputs **outputs) ISO_MUST_CHECK;
/* NULL: nothing; so for all. Before the program of a step runs; traced: somebody records its instructions. */
void iso_outputs_begin(iso_outputs *outputs, bool traced);
/* After each step. */
void iso_outputs_step(iso_outputs *outputs, const iso_step_metrics *step);
/* Then, once the signs know of it. */
void iso_outputs_health(iso_outputs *outputs, const iso_health *health);
void iso_outputs_close(iso_outputs **outputs);

#endif
