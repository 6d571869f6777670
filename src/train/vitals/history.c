/* SPDX-License-Identifier: Apache-2.0
 *
 * What metrics.jsonl says of a run as a whole: curves, sums and quantiles of the parts of a step, what waits were for,
 * and which start took which steps.
 *
 * Lines are read as they were written; a name that a line lacks, or that is null there, is not known (NAN) and counts
 * nowhere; so does a number that no run has, such as a part of a step that is longer than the step. Old lines may be of
 * any form: a scan never leaves its line.
 */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/vitals/vitals.h"

/* ---- one line ---- */

typedef struct line_words {
  const char *stage, *source; /* with their quotes; NULL: none */
  size_t stage_bytes, source_bytes;
  double time;
} line_words;

/* Behind the string that begins at `at`; NULL: it has no end. */
static const char *string_end(const char *at, const char *end) {
  for (at++; at < end; at++) {
    if (*at == '\\') {
      at++;
    } else if (*at == '"') {
      return at + 1;
    }
  }
  return NULL;
}

/* Behind the array or object that begins at `at`, whatever it holds; NULL: it has no end. */
static const char *nest_end(const char *at, const char *end) {
  int depth = 0;
  while (at && at < end) {
    if (*at == '"') {
      at = string_end(at, end);
      continue;
    }
    depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
    at++;
    if (depth == 0) return at;
  }
  return NULL;
}

/* Behind the value that begins at `at`; NULL: it has no end in this line. */
static const char *value_end_of(const char *at, const char *end) {
  if (at >= end) return NULL;
  if (*at == '"') return string_end(at, end);
  if (*at == '[' || *at == '{') return nest_end(at, end);
  while (at < end && !memchr(",]} ", *at, 4)) at++;
  return at;
}

static const char *past_spaces(const char *at, const char *end) {
  while (at < end && *at == ' ') at++;
  return at;
}

/* Rows come in the order of the table, so that the next one is looked at first. */
static size_t row_of(const char *name, size_t length, size_t next) {
  for (size_t i = 0; i < iso_vital_count; i++) {
    const size_t row = (next + i) % iso_vital_count;
    if (strncmp(iso_vitals[row].name, name, length) == 0 && !iso_vitals[row].name[length]) return row;
  }
  return iso_vital_count;
}

/* Larger is no number of a run, and what sums and squares would make of it is none at all. */
static const double MOST = 1e100, MOST_S = 1e9, MOST_WHOLE = 9e15, MOST_RATE = 1e15, MOST_MFU = 10, MOST_TIME = 1e11;

static double number_of(const char *at) {
  if (*at == 't') return 1;
  if (*at == 'f') return 0;
  const double value = *at == '-' || isdigit((unsigned char)*at) ? strtod(at, NULL) : NAN;
  return fabs(value) < MOST ? value : NAN;
}

static double within(double value, double least, double most) {
  return value >= least && value <= most ? value : NAN;
}

/* Of this name no number is larger, nor less than nothing; else it is not known. */
static double vital_of(const iso_vital *vital, double value) {
  if (vital->type == ISO_VITAL_WHOLE) return within(value, 0, MOST_WHOLE);
  if (strcmp(vital->name, "unaccounted_s") == 0) return within(value, -MOST_S, MOST_S);
  if (strcmp(vital->unit, "s") == 0) return within(value, 0, MOST_S);
  if (strcmp(vital->name, "tokens_per_s") == 0) return within(value, 0, MOST_RATE);
  if (strcmp(vital->name, "mfu") == 0) return within(value, 0, MOST_MFU);
  return value;
}

static void note_word(line_words *words, const char *name, size_t length, const char *value, const char *value_end) {
  const size_t bytes = (size_t)(value_end - value);
  if (length == 4 && memcmp(name, "time", 4) == 0) words->time = within(number_of(value), 0, MOST_TIME);
  if (length == 13 && memcmp(name, "starved_stage", 13) == 0) words->stage = value, words->stage_bytes = bytes;
  if (length == 14 && memcmp(name, "starved_source", 14) == 0) words->source = value, words->source_bytes = bytes;
}

/* values: [iso_vital_count] */
static void read_line(const char *line, const char *end, double *values, line_words *words) {
  size_t next = 0;
  *words = (line_words){.time = NAN};
  for (size_t i = 0; i < iso_vital_count; i++) values[i] = NAN;
  for (const char *at = line; at < end && (*at == '{' || *at == ',');) {
    const char *name = past_spaces(at + 1, end);
    const char *name_end = name < end && *name == '"' ? string_end(name, end) : NULL;
    const char *colon = name_end ? past_spaces(name_end, end) : end;
    if (colon >= end || *colon != ':') return;
    const char *value = past_spaces(colon + 1, end), *value_end = value_end_of(value, end);
    if (!value_end) return;
    const size_t length = (size_t)(name_end - name) - 2, row = row_of(name + 1, length, next);
    if (row < iso_vital_count) {
      values[row] = vital_of(&iso_vitals[row], number_of(value));
      next = row + 1;
    } else {
      note_word(words, name + 1, length, value, value_end);
    }
    at = past_spaces(value_end, end);
  }
}

/* ---- all lines ---- */

enum { STEP, TOKENS, DATA, START, STARVED, PLACES };
static const char *const places[PLACES] = {"step", "tokens", "data_wait_s", "incarnation", "starved"};

typedef struct reading {
  iso_history *h;
  size_t place[PLACES]; /* rows of those names */
  size_t parts[ISO_PARTS];
  double *values;
} reading;

/* A part that is longer than the whole: none of that line's times is one. Small ones may be, by readings of the clock
 * and of the kernel's counts. */
static void drop_impossible_parts(const reading *r) {
  static const double MUCH = 1.1, LITTLE_S = 0.1;
  const double wall = r->values[r->parts[ISO_PART_WALL]];
  bool possible = true;
  for (int p = 0; p < ISO_PARTS; p++) {
    const double part = r->values[r->parts[p]];
    if (isfinite(wall) && isfinite(part) && fabs(part) > MUCH * wall + LITTLE_S) possible = false;
  }
  for (int p = 0; !possible && p < ISO_PARTS; p++) r->values[r->parts[p]] = NAN;
}

static iso_start *start_of(iso_history *h, int64_t number) {
  for (size_t i = h->start_count; i-- > 0;)
    if (h->starts[i].number == number) return &h->starts[i];
  if (h->start_count == ISO_HISTORY_STARTS) return NULL;
  h->starts[h->start_count] = (iso_start){.number = number};
  return &h->starts[h->start_count++];
}

static void add_to_start(iso_history *h, int64_t number, int64_t step, double time, double wall) {
  const double before = h->ended;
  if (isfinite(time)) h->ended = time;
  if (isfinite(time) && !(h->began > 0)) h->began = time - (wall > 0 ? wall : 0);
  iso_start *start = start_of(h, number);
  if (!start) return;
  if (start->steps++ == 0) {
    start->first = step;
    start->time = time;
    start->gap_s = before > 0 && isfinite(time) && wall >= 0 ? time - wall - before : NAN;
  }
  start->last = step;
}

static void add_starved(iso_history *h, const line_words *words, double wait_s) {
  iso_starved *free_place = NULL;
  h->starved_steps++;
  if (!words->stage || !words->source) return;
  if (h->longest.steps == 0 || wait_s >= h->longest.seconds)
    h->longest = (iso_starved){words->stage, words->source, words->stage_bytes, words->source_bytes, 1, wait_s};
  for (size_t i = 0; i < ISO_HISTORY_STARVED; i++) {
    iso_starved *one = &h->starved[i];
    if (one->steps == 0) {
      free_place = one;
      break;
    }
    if (one->stage_bytes == words->stage_bytes && one->source_bytes == words->source_bytes &&
        memcmp(one->stage, words->stage, words->stage_bytes) == 0 &&
        memcmp(one->source, words->source, words->source_bytes) == 0) {
      one->steps++;
      one->seconds += wait_s;
      return;
    }
  }
  if (free_place)
    *free_place = (iso_starved){words->stage, words->source, words->stage_bytes, words->source_bytes, 1, wait_s};
}

static void add_line(reading *r, const char *line, const char *end, int64_t index) {
  iso_history *h = r->h;
  line_words words;
  read_line(line, end, r->values, &words);
  drop_impossible_parts(r);
  const double *values = r->values;
  iso_points_add(h->points, values);
  for (size_t row = 0; row < iso_vital_count; row++) h->all[row * (size_t)h->steps + (size_t)index] = values[row];
  const double step = values[r->place[STEP]], number = values[r->place[START]], data_s = values[r->place[DATA]];
  if (isfinite(values[r->place[TOKENS]])) h->tokens = values[r->place[TOKENS]];
  if (isfinite(step)) h->last_step = (int64_t)step;
  if (isfinite(step) && isfinite(number))
    add_to_start(h, (int64_t)number, (int64_t)step, words.time, values[r->parts[ISO_PART_WALL]]);
  if (values[r->place[STARVED]] == 1) add_starved(h, &words, isfinite(data_s) ? data_s : 0);
}

static bool make_room(reading *r) {
  iso_history *h = r->h;
  h->points = iso_points_create();
  h->all = malloc((iso_vital_count * (size_t)h->steps + 1) * sizeof *h->all);
  r->values = malloc(iso_vital_count * sizeof *r->values);
  return h->points && h->all && r->values;
}

static void read_all(reading *r) {
  iso_history *h = r->h;
  int64_t index = 0;
  for (size_t i = 0; i < PLACES; i++) r->place[i] = (size_t)(iso_vital_find(places[i]) - iso_vitals);
  for (int p = 0; p < ISO_PARTS; p++) r->parts[p] = (size_t)(iso_vital_find(iso_budget_names[p]) - iso_vitals);
  for (const char *line = h->text, *end; line && (end = strchr(line, '\n')); line = end + 1)
    add_line(r, line, end, index++);
}

iso_status iso_history_read(const char *run, iso_history *h) {
  size_t bytes;
  *h = (iso_history){0};
  ISO_TRY(iso_lines_read(run, "metrics", &h->text, &bytes, NULL));
  for (const char *at = h->text; at && (at = strchr(at, '\n')); at++) h->steps++;
  reading r = {.h = h};
  const bool room = make_room(&r);
  if (room) read_all(&r);
  free(r.values);
  return room ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "%s: no memory to read metrics.jsonl", run);
}

void iso_history_fini(iso_history *h) {
  free(h->text);
  iso_points_destroy(&h->points);
  free(h->all);
  memset(h, 0, sizeof *h);
}

/* ---- what follows from them ---- */

const double *iso_history_values(const iso_history *h, const char *name) {
  return h->all + (size_t)(iso_vital_find(name) - iso_vitals) * (size_t)h->steps;
}

iso_vital_spread iso_history_spread(const iso_history *h, const char *name) {
  iso_vital_spread s = {0};
  const double *values = iso_history_values(h, name);
  double *sorted = malloc(((size_t)h->steps + 1) * sizeof *sorted), squares = 0;
  for (int64_t i = 0; sorted && i < h->steps; i++)
    if (isfinite(values[i])) sorted[s.count++] = values[i], s.sum += values[i];
  if (s.count) {
    s.mean = s.sum / (double)s.count;
    for (int64_t i = 0; i < s.count; i++) squares += (sorted[i] - s.mean) * (sorted[i] - s.mean);
    s.std = sqrt(squares / (double)s.count);
    iso_sort(sorted, s.count);
    s.p50 = iso_quantile(sorted, s.count, 50);
    s.p95 = iso_quantile(sorted, s.count, 95);
    s.p99 = iso_quantile(sorted, s.count, 99);
    s.most = sorted[s.count - 1];
  }
  free(sorted);
  return s;
}

double iso_history_last_over_first(const iso_history *h) {
  const int64_t tenth = h->steps / 10;
  const double *wall = iso_history_values(h, "wall_s");
  double first = 0, last = 0;
  if (tenth < 1) return NAN;
  for (int64_t i = 0; i < tenth; i++) {
    first += wall[i];
    last += wall[h->steps - tenth + i];
  }
  return last > 0 ? first / last : NAN; /* all steps have as many tokens */
}

double iso_history_rate(const iso_history *h) {
  const double *wall = iso_history_values(h, "wall_s"), *rate = iso_history_values(h, "tokens_per_s");
  double seconds = 0, tokens = 0;
  for (int64_t i = 0; i < h->steps; i++) {
    if (!isfinite(wall[i]) || !isfinite(rate[i])) continue;
    seconds += wall[i];
    tokens += rate[i] * wall[i];
  }
  return seconds > 0 ? tokens / seconds : 0;
}

double iso_history_peak(const iso_history *h, double flop_per_token, double *first) {
  const double *rate = iso_history_values(h, "tokens_per_s"), *mfu = iso_history_values(h, "mfu");
  double most = 0;
  *first = 0;
  for (int64_t i = 0; i < h->steps; i++) {
    if (!(rate[i] > 0) || !(mfu[i] > 1e-6)) continue;
    const double peak = rate[i] * flop_per_token / mfu[i] * 1e-9;
    if (*first == 0) *first = peak;
    if (peak > most) most = peak;
  }
  return most;
}

double iso_history_loss(const iso_history *h) {
  return h->steps ? iso_history_values(h, "loss")[h->steps - 1] : 0;
}
