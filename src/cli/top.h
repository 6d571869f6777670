/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach top: a view of a run from the outside, part of cli.h. top_state.c reads what a run folder says into a struct
 * (top_tail.c the lines of metrics.jsonl), top_draw.c draws that into a grid of cells (top_grid.c), and top.c shows the
 * grid on a terminal or prints it.
 *
 * Invariants
 *  1. The run is only read: no lock is taken, nothing is written, and a run under way does not notice.
 *  2. A look costs what was added since the one before, however long the run is.
 *  3. What a run that does not go on said last is never shown as if it went on.
 *  4. Nothing that a file says reaches the terminal as a control character.
 */
#ifndef ISO_CLI_TOP_H
#define ISO_CLI_TOP_H

#include <sys/types.h>

#include "cli/cli.h"

/* ---- top_tail.c: the newest lines of a file that grows --------------------------------------------------- */

typedef struct iso_tail {
  ino_t inode;
  int64_t offset; /* behind the last whole line that was given */
} iso_tail;
/* The whole lines that were added, the newest `most` bytes of them at most; malloc'd and NUL-terminated, NULL: there is
 * none. *anew: they do not follow those given before, since the file is another one, or too much was added. */
iso_status iso_tail_next(iso_tail *tail, const char *path, size_t most, char **lines, bool *anew) ISO_MUST_CHECK;

/* ---- top_state.c: what a run folder says ----------------------------------------------------------------- */

enum { ISO_TOP_RECENT = 1024, ISO_TOP_RANKS = 4096 };
typedef enum iso_top_phase {
  ISO_TOP_UNBEGUN,  /* no step, and no process has it */
  ISO_TOP_STARTING, /* a process has it, which has taken no step yet */
  ISO_TOP_RUNNING,
  ISO_TOP_ENDED,  /* with the verdict of status.json; none: that is missing, but there is a report */
  ISO_TOP_KILLED, /* without one */
  ISO_TOP_SILENT  /* its process is on another host, whose heartbeat has stopped */
} iso_top_phase;
typedef struct iso_top_step {
  int64_t step;
  double loss, tokens_per_s; /* NAN: not finite */
} iso_top_step;
typedef struct iso_top_rank {
  int64_t rank;
  char host[64];
  iso_budget budget; /* NAN: not known */
} iso_top_rank;
typedef struct iso_top_sign {
  double value, bound; /* NAN: not known */
  bool out;            /* said to be out of bounds; then: */
  int64_t rank, since_step;
  char host[64], cause[64], detail[400]; /* "": not known; detail: in words */
  double cause_s;                        /* that it cost; NAN: not known */
  char measure[24];                      /* what `value` is (docs/metrics.md); "": not known */
} iso_top_sign;
typedef struct iso_top {
  const char *run;
  iso_top_phase phase;
  char verdict[16]; /* of status.json; "": none */
  int64_t exit_code;
  iso_owner owner;                                /* who has, or had, the run; pid 0: nobody */
  long stopped_pid;                               /* of this host, a process of the run that was stopped; 0: none */
  int64_t stopped_rank;                           /* that it is; -1: not known */
  double now, since_s;                            /* Unix; since: not running, or the last step */
  int64_t step, steps, durable_step, incarnation; /* steps 0: not known */
  double loss, lr, grad_norm, tokens_per_s, mfu, eta_s;
  int64_t ring_depth, ring_slots, log_behind, memory_bytes; /* -1: not known */
  iso_top_sign signs[ISO_SIGNS];
  bool whole_start; /* the budget is the mean of a start, else of the last second or so */
  iso_top_rank *ranks;
  int rank_count;
  iso_top_step recent[ISO_TOP_RECENT]; /* newest last */
  int recent_count;
  int64_t refused, damaged; /* lines of metrics.jsonl that were looked at: refused steps; left out */
  int64_t damaged_breaches; /* of breaches.jsonl: left out */
  char note[160];           /* what could not be read; "": all could */
  /* between looks */
  iso_tail metrics, breaches;
  iso_step_metrics last; /* line; step 0: none */
  double last_s;         /* its time */
  char last_breached[160];
} iso_top;
/* NOT_FOUND unless `run` (kept) is a run folder. */
iso_status iso_top_open(const char *run, iso_top **out) ISO_MUST_CHECK;
/* Looks; now: Unix time. The first one must be made before anything is drawn. */
iso_status iso_top_look(iso_top *top, double now) ISO_MUST_CHECK;
void iso_top_close(iso_top **top);
/* One JSON document. */
void iso_top_print_json(const iso_top *top, iso_string *out);

/* ---- top_grid.c: cells ------------------------------------------------------------------------------------ */

typedef enum iso_ink { /* the parts of a step first */
                       ISO_INK_COMPUTE,
                       ISO_INK_DATA,
                       ISO_INK_REDUCE,
                       ISO_INK_STORAGE,
                       ISO_INK_OTHER,
                       ISO_INK_PLAIN,
                       ISO_INK_HEAD,
                       ISO_INK_GOOD,
                       ISO_INK_WARN,
                       ISO_INK_BAD,
                       ISO_INKS
} iso_ink;
typedef struct iso_cell {
  uint32_t text; /* Unicode; one column wide */
  iso_ink ink;
} iso_cell;
typedef struct iso_grid {
  int rows, columns;
  bool utf8; /* else ASCII */
  iso_cell *cells;
} iso_grid;
/* Blank. */
iso_status iso_grid_init(iso_grid *grid, int rows, int columns, bool utf8) ISO_MUST_CHECK;
void iso_grid_fini(iso_grid *grid);
/* Text from there on, as far as the row goes; what is no printable character of one column is '?'. Returns the column
 * behind it. */
int iso_grid_put(iso_grid *grid, int row, int column, iso_ink ink, const char *format, ...) ISO_PRINTF(5, 6);
/* The mark of a part of a step, `count` times. */
int iso_grid_fill(iso_grid *grid, int row, int column, iso_ink part, int count);
/* A curve of `count` values, newest last, in so many columns; a mark where one of those in a column is not finite.
 * least and most: of what is finite (NAN: nothing is). */
void iso_grid_spark(iso_grid *grid, int row, int column, int columns, const double *values, int count, double *least,
                    double *most);
/* As text, without blanks at the ends of rows, and without empty rows at the end. */
void iso_grid_print(const iso_grid *grid, iso_string *out);

/* ---- top_draw.c: the view ---------------------------------------------------------------------------------- */

typedef struct iso_top_view {
  int sort;  /* iso_budget_part, largest first; ISO_PARTS: by rank */
  int first; /* rank in that order that is shown first; kept within what there is */
  bool keys; /* a row with the keys */
  bool help;
  int width; /* of bars and curves; 0: that of the grid */
  int shown; /* ranks, set by drawing */
} iso_top_view;
/* Rows that show all. */
int iso_top_rows(const iso_top *top, const iso_top_view *view);
/* As much as fits, the most important first. */
void iso_top_draw(const iso_top *top, iso_top_view *view, iso_grid *grid);

#endif
