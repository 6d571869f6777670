/* SPDX-License-Identifier: Apache-2.0
 *
 * The view of isotach top, drawn into a grid of any size.
 *
 * It is made of blocks of rows. Each asks for rows in the order of how much it matters (`matters`), gets what is left,
 * and stands where it stands in the enum: a small terminal has the first of them alone. What is left in the end goes
 * to the ranks, which scroll, and to empty rows between the blocks.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/top.h"

typedef enum block { TITLE, NOTE, STEP, NUMBERS, RINGS, CURVES, SIGNS, RANKS, KEYS, BLOCKS } block;
static const block matters[] = {TITLE, STEP, NUMBERS, RANKS, SIGNS, KEYS, NOTE, CURVES, RINGS};
enum { HOST = 10, PARTS_SHOWN = 5, CAUSE = 800 };
static const char *const part_words[PARTS_SHOWN] = {"compute", "data", "reduce", "storage", "other"};

typedef struct drawing {
  const iso_top *top;
  iso_top_view *view;
  iso_grid *grid;
  int heights[BLOCKS];
  int width; /* columns that bars and curves go up to */
  int gap;   /* empty rows before the curves, the signs and the ranks */
} drawing;

/* ---- words ---- */

static void say_duration(double seconds, char out[32]) {
  if (!(seconds >= 0) || seconds > 360000000)
    snprintf(out, 32, "?");
  else if (seconds < 60)
    snprintf(out, 32, "%.0fs", seconds);
  else if (seconds < 3600)
    snprintf(out, 32, "%dm%02ds", (int)seconds / 60, (int)seconds % 60);
  else
    snprintf(out, 32, "%dh%02dm", (int)(seconds / 3600), (int)(seconds / 60) % 60);
}

static void say_time(double time_s, char out[32]) {
  struct tm utc;
  const time_t time = (time_t)time_s;
  if (!(time_s > 0) || time_s > 1e11 || !gmtime_r(&time, &utc) || !strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc))
    snprintf(out, 32, "an unknown time");
}

static void say_value(double value, iso_sign sign, char out[32]) {
  const char *unit = iso_sign_units[sign];
  if (!isfinite(value))
    snprintf(out, 32, "-");
  else if (strcmp(unit, "s") == 0)
    snprintf(out, 32, "%.3f ms", 1e3 * value);
  else if (strcmp(unit, "bytes/s") == 0)
    snprintf(out, 32, "%.1f MB/s", 1e-6 * value);
  else
    snprintf(out, 32, "%.3f", value);
}

/* More is better of bandwidth, and of the last tenth's speed, whose bound is below 1. */
static bool is_least(iso_sign sign, double bound) {
  return sign == ISO_SIGN_BANDWIDTH || (sign == ISO_SIGN_FLATNESS && bound < 1);
}

/* Flatness may be at its bound, waits may not (docs/metrics.md). */
static const char *relation(iso_sign which, double bound) {
  return is_least(which, bound) ? ">=" : which == ISO_SIGN_FLATNESS ? "<=" : "<";
}

static bool is_beyond(const iso_top_sign *sign, iso_sign which) {
  if (is_least(which, sign->bound)) return sign->value < sign->bound;
  return which == ISO_SIGN_FLATNESS ? sign->value > sign->bound : sign->value >= sign->bound;
}

/* ---- the head ---- */

static double step_s(const iso_top *top) {
  return top->rank_count && isfinite(top->ranks[0].budget.parts[ISO_PART_WALL])
             ? top->ranks[0].budget.parts[ISO_PART_WALL]
             : 0;
}

/* Seconds without a step that a running one should have taken; 0: it goes on. */
static double stalled_s(const iso_top *top) {
  const double silence = top->now - top->since_s, patience = fmax(10, 5 * step_s(top));
  return top->phase == ISO_TOP_RUNNING && silence > patience ? silence : 0;
}

static const char *phase_word(const iso_top *top, iso_ink *ink) {
  *ink = ISO_INK_BAD;
  switch (top->phase) {
  case ISO_TOP_UNBEGUN:
    *ink = ISO_INK_WARN;
    return "NOT BEGUN";
  case ISO_TOP_STARTING:
    *ink = ISO_INK_WARN;
    return "STARTING";
  case ISO_TOP_RUNNING:
    *ink = stalled_s(top) > 0 ? ISO_INK_WARN : ISO_INK_GOOD;
    return stalled_s(top) > 0 ? "STALLED" : "RUNNING";
  case ISO_TOP_KILLED:
    return "KILLED";
  case ISO_TOP_SILENT:
    return "SILENT";
  case ISO_TOP_ENDED:
    break;
  }
  if (!top->verdict[0]) return "ENDED";
  if (strcmp(top->verdict, "done") == 0) {
    *ink = ISO_INK_GOOD;
    return "DONE";
  }
  if (strcmp(top->verdict, "stopped") == 0) *ink = ISO_INK_WARN;
  return *ink == ISO_INK_WARN ? "STOPPED" : strcmp(top->verdict, "lost") == 0 ? "LOST" : "FAILED";
}

/* The end of a path that leaves no room for what stands behind it. */
static int draw_name(drawing *d, int row, int at, const char *run) {
  const size_t length = strlen(run), room = d->grid->columns > 72 ? (size_t)d->grid->columns - 60 : 12;
  const char *from = length > room ? run + length - room + 2 : run;
  while (from > run && (*from & 0xC0) == 0x80) from++; /* not within a character */
  return iso_grid_put(d->grid, row, at, ISO_INK_HEAD, "%s%s", from > run ? ".." : "", from);
}

/* Of what it waits for only a process that was stopped can be told from here. */
static int draw_stall(drawing *d, int row, int at, const char *ago) {
  const iso_top *top = d->top;
  at = iso_grid_put(d->grid, row, at, ISO_INK_WARN, "no step for %s", ago) + 2;
  if (!top->stopped_pid) return at;
  if (top->stopped_rank >= 0)
    at = iso_grid_put(d->grid, row, at - 2, ISO_INK_BAD, ": rank %lld", (long long)top->stopped_rank) + 1;
  else
    at = iso_grid_put(d->grid, row, at - 2, ISO_INK_BAD, ": it") + 1;
  return iso_grid_put(d->grid, row, at, ISO_INK_BAD, "is stopped (process %ld)", top->stopped_pid) + 2;
}

static void draw_title(drawing *d, int row) {
  const iso_top *top = d->top;
  char since[32], ago[32];
  iso_ink ink;
  const char *word = phase_word(top, &ink);
  int at = iso_grid_put(d->grid, row, 0, ink, "%s", word);
  at = draw_name(d, row, at + 1, top->run) + 2;
  say_time(top->since_s, since);
  say_duration(top->now - top->since_s, ago);
  switch (top->phase) {
  case ISO_TOP_UNBEGUN:
    iso_grid_put(d->grid, row, at, ink, "no step yet, and no process has this run");
    return;
  case ISO_TOP_STARTING:
    iso_grid_put(d->grid, row, at, ink, "process %ld on %s has not taken a step yet", top->owner.pid, top->owner.host);
    return;
  case ISO_TOP_RUNNING:
    if (stalled_s(top) > 0) at = draw_stall(d, row, at, ago);
    iso_grid_put(d->grid, row, at, ISO_INK_PLAIN, "start %lld, process %ld on %s", (long long)top->incarnation,
                 top->owner.pid, top->owner.host);
    return;
  case ISO_TOP_SILENT:
    iso_grid_put(d->grid, row, at, ink, "no sign of life from process %ld on %s since %s", top->owner.pid,
                 top->owner.host, since);
    return;
  case ISO_TOP_KILLED:
  case ISO_TOP_ENDED:
    at = iso_grid_put(d->grid, row, at, ink, "not running since %s (%s ago)", since, ago) + 2;
    if (top->phase == ISO_TOP_ENDED && top->exit_code > 0)
      iso_grid_put(d->grid, row, at, ink, "exit code %lld", (long long)top->exit_code);
  }
}

static void draw_step(drawing *d, int row) {
  const iso_top *top = d->top;
  char eta[32];
  int at = iso_grid_put(d->grid, row, 0, ISO_INK_PLAIN, "step %lld", (long long)top->step);
  if (top->steps)
    at = iso_grid_put(d->grid, row, at, ISO_INK_PLAIN, "/%lld %.1f%%", (long long)top->steps,
                      100 * (double)top->step / (double)top->steps);
  at = iso_grid_put(d->grid, row, at + 2, ISO_INK_PLAIN, "durable step %lld", (long long)top->durable_step);
  say_duration(top->eta_s, eta);
  if (top->phase == ISO_TOP_RUNNING) iso_grid_put(d->grid, row, at + 2, ISO_INK_PLAIN, "ETA %s", eta);
}

static void draw_numbers(drawing *d, int row) {
  const iso_top *top = d->top;
  int at = 0;
  if (top->step == 0) {
    iso_grid_put(d->grid, row, 0, ISO_INK_PLAIN, "no step has been taken");
    return;
  }
  if (top->phase != ISO_TOP_RUNNING) at = iso_grid_put(d->grid, row, 0, ISO_INK_PLAIN, "at last:") + 1;
  at = isfinite(top->loss) ? iso_grid_put(d->grid, row, at, ISO_INK_PLAIN, "loss %.4f", top->loss)
                           : iso_grid_put(d->grid, row, at, ISO_INK_BAD, "loss is not finite");
  if (isfinite(top->tokens_per_s))
    at = iso_grid_put(d->grid, row, at + 2, ISO_INK_PLAIN, "%.0f tokens/s", top->tokens_per_s);
  if (isfinite(top->mfu)) at = iso_grid_put(d->grid, row, at + 2, ISO_INK_PLAIN, "MFU %.1f%%", 100 * top->mfu);
  if (isfinite(top->lr)) at = iso_grid_put(d->grid, row, at + 2, ISO_INK_PLAIN, "lr %.2e", top->lr);
  if (isfinite(top->grad_norm)) iso_grid_put(d->grid, row, at + 2, ISO_INK_PLAIN, "gradient %.3f", top->grad_norm);
}

static void draw_rings(drawing *d, int row) {
  const iso_top *top = d->top;
  int at = -2;
  if (top->ring_depth >= 0)
    at = iso_grid_put(d->grid, row, 0, ISO_INK_PLAIN, "batch ring %lld", (long long)top->ring_depth);
  if (top->ring_depth >= 0 && top->ring_slots >= 0)
    at = iso_grid_put(d->grid, row, at, ISO_INK_PLAIN, "/%lld", (long long)top->ring_slots);
  if (top->log_behind >= 0)
    at = iso_grid_put(d->grid, row, at + 2, ISO_INK_PLAIN, "not durable yet: %lld step%s", (long long)top->log_behind,
                      iso_plural(top->log_behind));
  if (top->memory_bytes >= 0)
    at = iso_grid_put(d->grid, row, at + 2, ISO_INK_PLAIN, "memory %.2f GB", 1e-9 * (double)top->memory_bytes);
  if (top->refused) iso_grid_put(d->grid, row, at + 2, ISO_INK_BAD, "refused: %lld", (long long)top->refused);
}

static void draw_curves(drawing *d, int row, int rows) {
  const iso_top *top = d->top;
  const int from = 9, label = d->width >= 50 ? 26 : 0;
  double values[ISO_TOP_RECENT], least, most;
  for (int line = 0; line < rows; line++) {
    for (int i = 0; i < top->recent_count; i++) values[i] = line ? top->recent[i].tokens_per_s : top->recent[i].loss;
    iso_grid_put(d->grid, row + line, 0, ISO_INK_PLAIN, "%s", line ? "tokens/s" : "loss");
    iso_grid_spark(d->grid, row + line, from, d->width - from - label, values, top->recent_count, &least, &most);
    if (label && isfinite(least))
      iso_grid_put(d->grid, row + line, d->width - label + 1, ISO_INK_PLAIN, line ? "%.0f to %.0f" : "%.4f to %.4f",
                   least, most);
  }
}

/* ---- signs ---- */

static int count_out(const iso_top *top) {
  int count = 0;
  for (int i = 0; i < ISO_SIGNS; i++) count += top->signs[i].out;
  return count;
}

/* Whom a sign blames, and why. Of a run that stands still nothing: that was of the steps before. */
static void say_cause(const iso_top *top, iso_sign which, char out[CAUSE]) {
  const iso_top_sign *sign = &top->signs[which];
  char since[40] = "", rank[120] = "", seconds[32] = "";
  out[0] = 0;
  if (!sign->out || stalled_s(top) > 0) return;
  if (sign->since_step >= 0) snprintf(since, sizeof since, "since step %lld", (long long)sign->since_step);
  if (sign->rank >= 0) snprintf(rank, sizeof rank, "rank %lld, host %s", (long long)sign->rank, sign->host);
  if (isfinite(sign->cause_s)) snprintf(seconds, sizeof seconds, " (%.2f s)", sign->cause_s);
  const int length = snprintf(out, CAUSE, "%s%s%s", since, since[0] && rank[0] ? ", " : "", rank);
  if (sign->cause[0] && length < CAUSE)
    snprintf(out + length, (size_t)(CAUSE - length), "%scause: %s%s: %s", length ? ", " : "", sign->cause, seconds,
             sign->detail);
}

/* Bytes of a text that go into a row of so many columns: whole words, where there are any. */
static int row_of(const char *text, int columns) {
  const int length = (int)strlen(text);
  int at = 0, word = 0;
  for (int column = 0; at < length && column < columns; column++) {
    const int span = iso_utf8_span(text + at, (size_t)(length - at));
    at += span ? span : 1;
    if (text[at] == ' ') word = at;
  }
  return at == length || word == 0 ? at : word;
}

enum { CAUSE_AT = 5 };

static int cause_columns(const drawing *d) {
  const int columns = d->grid ? d->grid->columns - CAUSE_AT : CAUSE;
  return columns > 8 ? columns : 8;
}

static int cause_rows(const drawing *d, iso_sign which) {
  char text[CAUSE];
  int rows = 0;
  say_cause(d->top, which, text);
  for (const char *at = text; *at; rows++) {
    at += row_of(at, cause_columns(d));
    while (*at == ' ') at++;
  }
  return rows;
}

static int sign_rows(const drawing *d) {
  int rows = ISO_SIGNS;
  for (int i = 0; i < ISO_SIGNS; i++) rows += cause_rows(d, (iso_sign)i);
  return rows;
}

static const char *why_not_known(const iso_top *top, iso_sign which) {
  const bool judged = isfinite(top->signs[ISO_SIGN_FLATNESS].value); /* each window has it */
  if (!judged) return top->phase == ISO_TOP_RUNNING ? "not known yet: no window of steps is over" : "not known";
  if (which == ISO_SIGN_REDUCE && top->rank_count <= 1) return "there is one rank";
  return which == ISO_SIGN_BANDWIDTH ? "too little was written to say" : "not known";
}

static const char *measure_words(const char *measure) {
  static const char *const words[][2] = {{"p95", ", P95"},
                                         {"mean", ", mean"},
                                         {"std", ", deviation"},
                                         {"p99_over_median", ", P99 over median"},
                                         {"last_over_first_tenth", ", last tenth over first"}};
  for (size_t i = 0; i < ISO_COUNT(words); i++)
    if (strcmp(measure, words[i][0]) == 0) return words[i][1];
  return "";
}

static void draw_sign(drawing *d, int row, iso_sign which) {
  const iso_top_sign *sign = &d->top->signs[which];
  char value[32], bound[32];
  const bool known = isfinite(sign->value), beyond = known && is_beyond(sign, which);
  const iso_ink ink = sign->out ? ISO_INK_BAD : beyond ? ISO_INK_WARN : known ? ISO_INK_GOOD : ISO_INK_PLAIN;
  say_value(sign->value, which, value);
  say_value(sign->bound, which, bound);
  iso_grid_put(d->grid, row, 0, ink, "%s", sign->out ? "OUT" : beyond ? "high" : known ? "ok" : "-");
  if (beyond && !sign->out && is_least(which, sign->bound)) iso_grid_put(d->grid, row, 0, ink, "low ");
  iso_grid_put(d->grid, row, 5, ISO_INK_PLAIN, "%s", iso_sign_names[which]);
  iso_grid_put(d->grid, row, 26, ink, "%14s", value);
  if (isfinite(sign->bound)) /* one of two values and bounds, where a sign has two */
    iso_grid_put(d->grid, row, 42, ISO_INK_PLAIN, "bound %s %s%s", relation(which, sign->bound), bound,
                 measure_words(sign->measure));
  else if (!known)
    iso_grid_put(d->grid, row, 42, ISO_INK_PLAIN, "%s", why_not_known(d->top, which));
}

/* In `rows` rows at most; returns how many. */
static int draw_cause(drawing *d, int row, iso_sign which, int rows) {
  char text[CAUSE];
  int done = 0;
  say_cause(d->top, which, text);
  for (const char *at = text; *at && done < rows; done++) {
    const int bytes = row_of(at, cause_columns(d));
    iso_grid_put(d->grid, row + done, CAUSE_AT, ISO_INK_BAD, "%.*s", bytes, at);
    at += bytes;
    while (*at == ' ') at++;
    if (*at && done + 1 == rows) iso_grid_put(d->grid, row + done, d->grid->columns - 2, ISO_INK_BAD, "..");
  }
  return done;
}

static void draw_signs_in_a_row(drawing *d, int row) {
  int at = iso_grid_put(d->grid, row, 0, ISO_INK_PLAIN, "signs:") + 1, known = 0;
  for (int i = 0; i < ISO_SIGNS; i++) {
    known += isfinite(d->top->signs[i].value) != 0;
    if (d->top->signs[i].out) at = iso_grid_put(d->grid, row, at, ISO_INK_BAD, "%s OUT", iso_sign_names[i]) + 1;
  }
  if (count_out(d->top) == 0)
    iso_grid_put(d->grid, row, at, known ? ISO_INK_GOOD : ISO_INK_PLAIN, known ? "none is out of bounds" : "not known");
}

static void draw_signs(drawing *d, int row, int rows) {
  if (rows < ISO_SIGNS) {
    draw_signs_in_a_row(d, row);
    return;
  }
  for (int i = 0, left = rows - ISO_SIGNS; i < ISO_SIGNS; i++) {
    draw_sign(d, row++, (iso_sign)i);
    const int more = draw_cause(d, row, (iso_sign)i, left);
    row += more;
    left -= more;
  }
}

/* ---- ranks ---- */

typedef struct order { /* of a rank in the list */
  double key;
  int place;
} order;

static int by_key(const void *a, const void *b) {
  const order *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? 1 : -1;
  return x->place - y->place;
}

/* Places in the order asked for, malloc'd; NULL: there are none, or no memory. */
static order *sort_ranks(const iso_top *top, int sort) {
  order *list = top->rank_count ? malloc((size_t)top->rank_count * sizeof *list) : NULL;
  for (int i = 0; list && i < top->rank_count; i++) {
    const double key = sort < ISO_PARTS ? top->ranks[i].budget.parts[sort] : 0;
    list[i] = (order){isfinite(key) ? key : -1, i};
  }
  if (list) qsort(list, (size_t)top->rank_count, sizeof *list, by_key);
  return list;
}

typedef struct columns {
  bool host, times, shares;
  int bar, bar_width;
} columns;

static columns lay_out(int width) {
  columns c = {.host = width >= 80, .times = width >= 40, .shares = width >= 76};
  c.bar = 5 + (c.host ? HOST + 1 : 0) + (c.times ? 11 : 0) + (c.shares ? 8 * PARTS_SHOWN : 0);
  c.bar_width = width - c.bar;
  return c;
}

static void draw_bar(drawing *d, int row, const columns *c, const iso_budget *budget, double longest_s) {
  int at = 0;
  double sum = 0;
  for (int p = 0; p < PARTS_SHOWN; p++) {
    const double part = budget->parts[ISO_PART_COMPUTE + p];
    if (part > 0) sum += part;
    const double end = longest_s > 0 ? sum / longest_s * c->bar_width : 0;
    const int until = end < c->bar_width ? (int)(end + 0.5) : c->bar_width;
    iso_grid_fill(d->grid, row, c->bar + at, (iso_ink)p, until - at);
    at = until;
  }
}

static void draw_rank(drawing *d, int row, const columns *c, const iso_top_rank *rank, double longest_s) {
  const double wall = rank->budget.parts[ISO_PART_WALL];
  int at = iso_grid_put(d->grid, row, 0, ISO_INK_PLAIN, "%4lld", (long long)rank->rank) + 1;
  if (c->host) {
    iso_grid_put(d->grid, row, at, ISO_INK_PLAIN, "%.*s", HOST, rank->host);
    at += HOST + 1;
  }
  if (c->times && isfinite(wall)) iso_grid_put(d->grid, row, at, ISO_INK_PLAIN, "%10.2f", 1e3 * wall);
  if (c->times) at += 11;
  for (int p = 0; c->shares && p < PARTS_SHOWN; p++, at += 8) {
    const double share = wall > 0 ? rank->budget.parts[ISO_PART_COMPUTE + p] / wall : NAN;
    if (isfinite(share)) iso_grid_put(d->grid, row, at, (iso_ink)p, "%6.1f%%", 100 * share);
  }
  draw_bar(d, row, c, &rank->budget, longest_s);
}

static void draw_rank_head(drawing *d, int row, const columns *c, int shown) {
  const iso_top *top = d->top;
  iso_grid_put(d->grid, row, 0, ISO_INK_HEAD, "rank");
  int at = 5;
  if (c->host) iso_grid_put(d->grid, row, at, ISO_INK_HEAD, "host");
  if (c->host) at += HOST + 1;
  if (c->times) iso_grid_put(d->grid, row, at, ISO_INK_HEAD, "%10s", top->whole_start ? "mean ms" : "step ms");
  at = c->bar;
  for (int p = 0; p < PARTS_SHOWN; p++) {
    if (c->shares) iso_grid_put(d->grid, row, c->bar - 8 * (PARTS_SHOWN - p), (iso_ink)p, "%7s", part_words[p]);
    if (c->shares && d->width < c->bar + 24) continue; /* a mark stands for its column */
    at = iso_grid_fill(d->grid, row, at, (iso_ink)p, 1);
    at = iso_grid_put(d->grid, row, at, (iso_ink)p, "%.1s", c->shares ? "" : part_words[p]);
  }
  if (shown < top->rank_count)
    iso_grid_put(d->grid, row, at + (at > c->bar), ISO_INK_HEAD, "%d-%d of %d", d->view->first + 1,
                 d->view->first + shown, top->rank_count);
}

static void draw_ranks(drawing *d, int row, int rows) {
  const iso_top *top = d->top;
  iso_top_view *view = d->view;
  const columns c = lay_out(d->width);
  const int shown = rows - 1 < top->rank_count ? rows - 1 : top->rank_count;
  view->shown = shown;
  if (view->first > top->rank_count - shown) view->first = top->rank_count - shown;
  if (view->first < 0) view->first = 0;
  draw_rank_head(d, row, &c, shown);
  order *list = sort_ranks(top, view->sort);
  double longest_s = 0;
  for (int i = 0; i < top->rank_count; i++) longest_s = fmax(longest_s, top->ranks[i].budget.parts[ISO_PART_WALL]);
  for (int i = 0; list && i < shown; i++)
    draw_rank(d, row + 1 + i, &c, &top->ranks[list[view->first + i].place], longest_s);
  free(list);
}

/* ---- keys ---- */

/* The key in force stands in brackets. */
static void draw_keys(drawing *d, int row) {
  static const struct {
    int sort;
    const char *words;
  } keys[] = {{ISO_PARTS, "n rank"},      {ISO_PART_WALL, "w step"},     {ISO_PART_COMPUTE, "c compute"},
              {ISO_PART_DATA, "d data"},  {ISO_PART_REDUCE, "r reduce"}, {ISO_PART_STORAGE, "s storage"},
              {ISO_PART_OTHER, "o other"}};
  int at = iso_grid_put(d->grid, row, 0, ISO_INK_HEAD, "q quit h help sort:");
  for (size_t i = 0; i < ISO_COUNT(keys); i++) {
    const bool now = keys[i].sort == d->view->sort;
    at = iso_grid_put(d->grid, row, at + 1, now ? ISO_INK_GOOD : ISO_INK_HEAD, now ? "[%s]" : "%s", keys[i].words);
  }
}

static void draw_help(drawing *d) {
  static const char *const lines[] = {
      "q             quit (so do Ctrl-C and Ctrl-D)",
      "h ?           this page, and back",
      "n             ranks in their order",
      "w c d r s o   ranks by step time, compute, data wait, reduce wait, storage wait, other",
      "arrows j k    scroll through the ranks; also PgUp, PgDn, Home, End",
      "",
      "A bar is a rank's step, as long as the longest of all ranks:",
  };
  const int count = (int)ISO_COUNT(lines);
  for (int i = 0; i < count; i++) iso_grid_put(d->grid, i, 0, ISO_INK_PLAIN, "%s", lines[i]);
  for (int p = 0, at = 0; p < PARTS_SHOWN; p++) {
    at = iso_grid_fill(d->grid, count, at, (iso_ink)p, 3);
    at = iso_grid_put(d->grid, count, at + 1, (iso_ink)p, "%s", part_words[p]) + 2;
  }
  iso_grid_put(d->grid, count + 1, 0, ISO_INK_PLAIN,
               "Signs: ok within bounds; high, low beyond its bound in the last window;");
  iso_grid_put(d->grid, count + 2, 0, ISO_INK_PLAIN,
               "OUT in two windows in a row. ! in a curve: a value that is not finite.");
}

/* ---- all of it ---- */

static int wanted(const drawing *d, block b) {
  const iso_top *top = d->top;
  switch (b) {
  case NOTE:
    return top->note[0] != 0;
  case CURVES:
    return top->recent_count ? 2 : 0;
  case SIGNS:
    return top->step ? sign_rows(d) : 0;
  case RANKS:
    return top->rank_count ? 2 : 0; /* at least */
  case KEYS:
    return d->view->keys;
  case RINGS:
    return top->step > 0;
  default:
    return 1;
  }
}

/* What a block takes of `left` rows. */
static int take(const drawing *d, block b, int left) {
  int rows = wanted(d, b);
  if (b == SIGNS && rows > left && left >= ISO_SIGNS) rows = left;
  if (b == SIGNS && rows > left) rows = 1;
  return rows <= left ? rows : 0;
}

static void share_out(drawing *d) {
  int left = d->grid->rows;
  for (size_t i = 0; i < ISO_COUNT(matters); i++) left -= d->heights[matters[i]] = take(d, matters[i], left);
  const int more = d->heights[RANKS] ? d->top->rank_count - 1 : 0;
  const int gaps = 2 + (d->heights[CURVES] > 0);
  d->gap = left >= gaps + (more < 6 ? more : 6);
  if (d->gap) left -= gaps;
  d->heights[RANKS] += more < left ? more : left;
}

static void draw_block(drawing *d, block b, int row) {
  const int rows = d->heights[b];
  switch (b) {
  case TITLE:
    draw_title(d, row);
    break;
  case NOTE:
    iso_grid_put(d->grid, row, 0, ISO_INK_WARN, "%s", d->top->note);
    break;
  case STEP:
    draw_step(d, row);
    break;
  case NUMBERS:
    draw_numbers(d, row);
    break;
  case RINGS:
    draw_rings(d, row);
    break;
  case CURVES:
    draw_curves(d, row, rows);
    break;
  case SIGNS:
    draw_signs(d, row, rows);
    break;
  case RANKS:
    draw_ranks(d, row, rows);
    break;
  case KEYS:
    draw_keys(d, d->grid->rows - 1);
    break;
  case BLOCKS:
    break;
  }
}

int iso_top_rows(const iso_top *top, const iso_top_view *view) {
  iso_top_view copy = *view;
  const drawing d = {.top = top, .view = &copy};
  int rows = 3 + (top->rank_count ? top->rank_count - 1 : 0);
  for (int b = 0; b < BLOCKS; b++) rows += wanted(&d, (block)b);
  return rows;
}

void iso_top_draw(const iso_top *top, iso_top_view *view, iso_grid *grid) {
  drawing d = {.top = top, .view = view, .grid = grid, .width = view->width ? view->width : grid->columns};
  if (view->help) {
    draw_help(&d);
    return;
  }
  share_out(&d);
  int row = 0;
  for (int b = 0; b < BLOCKS; b++) {
    if (d.heights[b] && d.gap && (b == CURVES || b == SIGNS || b == RANKS)) row++;
    if (d.heights[b]) draw_block(&d, (block)b, row);
    row += d.heights[b];
  }
}
