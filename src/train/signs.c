/* SPDX-License-Identifier: Apache-2.0
 *
 * The four vital signs. Steps are gathered into windows; when one is complete its signs are held against their bounds.
 * One that is out of bounds for two windows in a row has begun to be so, with the first of them; it is over when it has
 * been within them for three, or when the start ends. These moments are told, and one between them: that for two
 * windows another rank or another cause has been to blame than what was said, which comes ever more seldom.
 *
 * Who is to blame: of waits in reductions the rank that its machine kept from running, else the one that waits least,
 * since the others wait for it; of steps that are not level the part that the slow ones have beyond the others, and
 * the rank; of all else the rank whose machine has the cause with the most seconds (blame.c).
 *
 * Invariants
 *  1. Nothing is allocated after iso_watch_create, and a step costs the same however many came before.
 *  2. All that is judged comes in with the step: the same steps give the same breaches.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

const char *const iso_sign_names[ISO_SIGNS] = {"data_load_latency", "allreduce_wait", "checkpoint_bandwidth",
                                               "flatness"};
const char *const iso_sign_units[ISO_SIGNS] = {"s", "s", "bytes/s", "ratio"};

static const double LOAD_MOST_S = 3e-3;                    /* P95 */
static const double WAIT_MOST_S = 2e-3, WAIT_SHARE = 0.01; /* mean: the larger one */
static const double DEVIATION_MOST_S = 3e-4, DEVIATION_SHARE = 2e-3;
static const double BANDWIDTH_LEAST = 800e6, BANDWIDTH_SHARE = 0.9; /* of the best: the smaller one */
static const double WRITING_LEAST = 0.1;   /* of a window, for its bandwidth to say something */
static const double WAITS_FOR_DISK = 0.01; /* of a window */
static const double SPREAD_MOST = 1.05, SPEED_LEAST = 0.99;
static const double CAUSE_LEAST = 2e-3; /* of a window: what is called a cause */
static const double KEPT_SHARE = 0.1;   /* of a window: that its machine kept a rank from running */
static const double LONG_WINDOW_S = 60;
static const double WHOLE_WINDOW_S = 5; /* shorter ones are for tests */
static const double READ_EACH_S = 2;    /* the machine is read once a second; with what a loaded one adds */
static const double LATE_READING_S = 3; /* so long a window stays open for one */
enum { STEPS = 100, FEW_STEPS = 20, BAD_WINDOWS = 2, GOOD_WINDOWS = 3, TENTHS_FROM = 10, CURVE = 512 };
enum { QUIET_LEAST = 3, QUIET_MOST = 48 }; /* windows between two lines on the blame for one sign */

typedef struct moments {
  double sum, squares;
} moments;

typedef struct rank_state {
  iso_tally whole[ISO_PARTS]; /* of this start */
  iso_tally load;             /* of the window; so are the next */
  moments reduce;
  iso_window window;
  iso_evidence before, earlier; /* as the window began; the reading before that one */
  iso_machine machine;          /* of the last one */
  double causes[ISO_CAUSES], totals[ISO_CAUSES];
  iso_window start;             /* all windows of this start */
  double held_s;                /* that others waited for it */
  double clock_sum, clock_at_s; /* of the window's readings; of the newest of them */
  int64_t clock_count;
  iso_budget slow; /* of the window's slow steps, summed */
} rank_state;

typedef struct blamed { /* for a sign, in a window */
  int rank;
  iso_cause cause;
  double seconds;
} blamed;

/* How the blame for a sign that is out of bounds moves on. */
typedef struct blame_state {
  int rank;
  iso_cause cause; /* of the last window, if it is not what was said */
  int windows;     /* in a row that it was so */
  int64_t said;    /* the window in which it was said last */
  int quiet;       /* so many windows nothing more is said of it */
} blame_state;

/* The speed of a run as at most CURVE points, each of the same number of steps. */
typedef struct curve {
  double points[CURVE], sum; /* seconds; of the point to come */
  int64_t each, steps;       /* steps of a point; of the point to come */
  int count;
} curve;

struct iso_watch {
  int ranks;
  double window_s;
  int64_t windows;
  iso_tally wall; /* of the window */
  double began_s, began_time_s, log_bytes, log_busy_s, best_bandwidth;
  int64_t began_step, steps, slow_steps;
  double full_s;      /* when the window could be closed; negative: it cannot yet */
  double slow_from_s; /* a longer step is a slow one, by the last window's median; 0: there was none */
  bool begun;
  curve curve;
  iso_sign_values values;
  iso_sign_state states[ISO_SIGNS];
  int bad[ISO_SIGNS], good[ISO_SIGNS]; /* windows in a row */
  blame_state blames[ISO_SIGNS];
  iso_breach breaches[2 * ISO_SIGNS];
  int breach_count;
  iso_breach last[ISO_SIGNS]; /* of each, that was told */
  char breached[128];
  iso_cause_total totals[ISO_CAUSES];
  rank_state *state; /* [ranks] */
};

iso_status iso_watch_create(int ranks, double window_s, iso_watch **out) {
  *out = NULL;
  iso_watch *s = calloc(1, sizeof *s);
  if (s) s->state = calloc((size_t)ranks, sizeof *s->state);
  if (!s || !s->state) {
    free(s);
    return iso_fail(ISO_ERR_MEMORY, "vital signs: no memory for %d ranks", ranks);
  }
  s->ranks = ranks;
  s->window_s = window_s;
  s->curve.each = 1;
  s->values = (iso_sign_values){NAN, NAN, NAN, NAN, NAN};
  for (int r = 0; r < ranks; r++)
    for (size_t i = 0; i < sizeof(iso_machine) / sizeof(double); i++) ((double *)&s->state[r].machine)[i] = NAN;
  for (int i = 0; i < ISO_SIGNS; i++) s->states[i].value = s->states[i].bound = NAN;
  snprintf(s->breached, sizeof s->breached, "[]");
  *out = s;
  return ISO_OK;
}

void iso_watch_destroy(iso_watch **signs) {
  if (!*signs) return;
  free((*signs)->state);
  free(*signs);
  *signs = NULL;
}

/* ---- the curve ---- */

static void curve_add(curve *c, double seconds) {
  c->sum += seconds;
  if (++c->steps < c->each) return;
  c->points[c->count++] = c->sum;
  c->sum = 0;
  c->steps = 0;
  if (c->count < CURVE) return;
  for (int i = 0; i < CURVE / 2; i++) c->points[i] = c->points[2 * i] + c->points[2 * i + 1];
  c->count = CURVE / 2;
  c->each *= 2;
}

/* Speed of the last tenth over that of the first; NaN while there are too few points. */
static double last_over_first(const curve *c) {
  const int tenth = c->count / 10;
  double first = 0, last = 0;
  for (int i = 0; i < tenth; i++) {
    first += c->points[i];
    last += c->points[c->count - 1 - i];
  }
  return tenth && last > 0 ? first / last : NAN;
}

/* ---- a window ---- */

static void begin_window(iso_watch *s, const iso_watch_step *in) {
  iso_tally_clear(&s->wall);
  s->steps = s->slow_steps = 0;
  s->full_s = -1;
  s->began_s = in->now_s;
  s->began_time_s = in->time_s;
  s->began_step = in->step;
  s->log_bytes = in->log_bytes;
  s->log_busy_s = in->log_busy_s;
  for (int r = 0; r < s->ranks; r++) {
    rank_state *rank = &s->state[r];
    const double began = rank->window.began_processors;
    iso_tally_clear(&rank->load);
    rank->reduce = (moments){0};
    rank->slow = (iso_budget){0};
    rank->clock_sum = 0;
    rank->clock_count = 0;
    if (in->evidence[r].at_s > rank->before.at_s) {
      rank->earlier = rank->before;
      rank->before = in->evidence[r];
    }
    rank->window = (iso_window){.began_processors = began > 0 ? began : in->evidence[r].processors};
  }
}

/* Counters of two readings are apart by the time between these, and by what reading them took. */
static double share(double before, double now, double seconds) {
  const double value = seconds > 0 ? (now - before) / seconds : NAN;
  return value > 1 ? 1 : value;
}

/* Each second is counted once, in the window whose reading has it; of windows that are shorter than readings are apart
 * it is the last share. */
static double kept_s(const iso_watch *s, const iso_window *w, bool stale, double before, double now, double share) {
  const double seconds = s->window_s < WHOLE_WINDOW_S ? share * w->seconds : stale ? 0 : now - before;
  return seconds > 0 ? seconds : 0;
}

static void see_machine(iso_watch *s, const iso_watch_step *in, int r) {
  const rank_state *rank = &s->state[r];
  const iso_evidence *b = &in->evidence[r];
  const bool stale = b->at_s <= rank->before.at_s && rank->earlier.at_s > 0; /* a window without a reading of its own */
  const iso_evidence *a = stale ? &rank->earlier : &rank->before;
  iso_window *w = &s->state[r].window;
  const double read_s = b->at_s - a->at_s; /* readings are a second apart: the window's, nearly */
  const double seconds = read_s > 0 ? read_s : w->seconds;
  const double clock_ghz = rank->clock_count ? rank->clock_sum / (double)rank->clock_count : b->clock_ghz;
  w->machine = (iso_machine){.clock_ghz = clock_ghz,
                             .clock_best_ghz = b->clock_best_ghz,
                             .celsius = b->celsius,
                             .pressure_cpu = share(a->pressure_cpu_s, b->pressure_cpu_s, seconds),
                             .pressure_memory = share(a->pressure_memory_s, b->pressure_memory_s, seconds),
                             .pressure_io = share(a->pressure_io_s, b->pressure_io_s, seconds),
                             .running = b->running,
                             .processors = b->processors,
                             .steal = share(a->steal_s, b->steal_s, seconds),
                             .throttled = share(a->throttled_s, b->throttled_s, seconds),
                             .stopped = share(a->stopped_s, b->stopped_s, seconds),
                             .memory_bytes = b->memory_bytes,
                             .memory_available_bytes = b->memory_available_bytes,
                             .page_cache_bytes = b->page_cache_bytes,
                             .major_faults = b->major_faults - a->major_faults,
                             .disk_busy = r == 0 ? share(s->log_busy_s, in->log_busy_s, w->seconds) : NAN,
                             .disk_write_s = r == 0 ? (in->log_busy_s - s->log_busy_s) / (double)w->steps : NAN,
                             .s3_requests = b->s3_requests > 0 ? b->s3_requests - a->s3_requests : NAN, /* no S3 */
                             .s3_errors = b->s3_requests > 0 ? b->s3_errors - a->s3_errors : NAN};
  const iso_machine *m = &w->machine;
  w->kept = (iso_kept){.stopped_s = kept_s(s, w, stale, a->stopped_s, b->stopped_s, m->stopped),
                       .throttled_s = kept_s(s, w, stale, a->throttled_s, b->throttled_s, m->throttled),
                       .steal_s = kept_s(s, w, stale, a->steal_s, b->steal_s, m->steal),
                       .memory_s = kept_s(s, w, stale, a->pressure_memory_s, b->pressure_memory_s, m->pressure_memory)};
}

static void add_totals(iso_watch *s, int r) {
  rank_state *rank = &s->state[r];
  iso_window_add(&rank->start, &rank->window);
  for (int c = 0; c < ISO_CAUSES; c++) {
    iso_cause_total *total = &s->totals[c];
    rank->totals[c] += rank->causes[c];
    if (rank->totals[c] <= total->seconds) continue;
    total->seconds = rank->totals[c];
    total->rank = r;
  }
}

/* The rank that the others wait for: it waits least itself, unless its machine kept it from running, which may be
 * while it waits. */
static int held_up_by(const iso_watch *s) {
  static const iso_cause kept[] = {ISO_CAUSE_STOPPED, ISO_CAUSE_THROTTLED, ISO_CAUSE_STEAL, ISO_CAUSE_CLOCK,
                                   ISO_CAUSE_MEMORY};
  double most = KEPT_SHARE * s->state[0].window.seconds, least = INFINITY;
  int by_machine = -1, by_wait = 0;
  for (int r = 0; r < s->ranks; r++) {
    const rank_state *rank = &s->state[r];
    for (size_t i = 0; i < ISO_COUNT(kept); i++)
      if (rank->causes[kept[i]] > most) by_machine = r, most = rank->causes[kept[i]];
    if (rank->reduce.sum < least) by_wait = r, least = rank->reduce.sum;
  }
  return by_machine >= 0 ? by_machine : by_wait;
}

static void add_held_up(iso_watch *s) {
  double longest = 0;
  for (int r = 0; r < s->ranks; r++)
    if (s->state[r].reduce.sum > longest) longest = s->state[r].reduce.sum;
  if (s->ranks > 1) s->state[held_up_by(s)].held_s += longest;
}

static void close_ranks(iso_watch *s, const iso_watch_step *in) {
  for (int r = 0; r < s->ranks; r++) {
    iso_window *w = &s->state[r].window;
    w->seconds = in->now_s - s->began_s;
    w->steps = s->steps;
    w->data = in->data;
    see_machine(s, in, r);
    s->state[r].machine = w->machine;
    iso_blame(w, s->state[r].causes);
    add_totals(s, r);
  }
  add_held_up(s);
}

/* ---- the signs ---- */

typedef struct finding {
  bool known, out;
  double value, bound;
  const char *measure;
  int rank;
  char text[256];
} finding;

static double mean_of(const moments *m, int64_t steps) {
  return m->sum / (double)steps;
}

static double deviation_of(const moments *m, int64_t steps) {
  const double mean = mean_of(m, steps), square = m->squares / (double)steps - mean * mean;
  return square > 0 ? sqrt(square) : 0;
}

static finding find_load(iso_watch *s) {
  finding f = {.known = true, .bound = LOAD_MOST_S, .measure = "p95"};
  for (int r = 0; r < s->ranks; r++) {
    const double p95 = iso_tally_quantile(&s->state[r].load, 95);
    if (p95 < f.value) continue;
    f.value = p95;
    f.rank = r;
  }
  s->values.data_load_latency = f.value;
  f.out = f.value >= LOAD_MOST_S;
  snprintf(f.text, sizeof f.text, "P95 of waiting for a batch is %.3f ms (bound: 3 ms)", 1e3 * f.value);
  return f;
}

static finding find_reduce(iso_watch *s) {
  finding f = {.known = s->ranks > 1};
  double mean = 0, deviation = 0;
  const double step_s = iso_tally_mean(&s->wall);
  int waits = 0;
  for (int r = 0; r < s->ranks; r++) {
    const double own = mean_of(&s->state[r].reduce, s->steps), spread = deviation_of(&s->state[r].reduce, s->steps);
    if (own > mean) waits = r, mean = own;
    if (spread > deviation) deviation = spread;
  }
  s->values.allreduce_wait = f.known ? mean : NAN;
  s->values.allreduce_wait_std = f.known ? deviation : NAN;
  if (!f.known) return f;
  f.rank = held_up_by(s);
  const double most = WAIT_SHARE * step_s > WAIT_MOST_S ? WAIT_SHARE * step_s : WAIT_MOST_S;
  const double uneven = DEVIATION_SHARE * step_s > DEVIATION_MOST_S ? DEVIATION_SHARE * step_s : DEVIATION_MOST_S;
  const bool long_wait = mean >= most, spread_out = deviation >= uneven, by_spread = spread_out && !long_wait;
  f.out = long_wait || spread_out;
  f.value = by_spread ? deviation : mean;
  f.bound = by_spread ? uneven : most;
  f.measure = by_spread ? "std" : "mean";
  snprintf(f.text, sizeof f.text,
           "rank %d waits %.3f ms a step for others (bound: %.3f), standard deviation %.3f ms (bound: %.3f)%s", waits,
           1e3 * mean, 1e3 * most, 1e3 * deviation, 1e3 * uneven,
           by_spread    ? ": the deviation is out"
           : spread_out ? ": both are out"
           : long_wait  ? ": the mean is out"
                        : "");
  return f;
}

/* A storage that is slower than the bound measures itself; where steps wait for it that is no excuse. */
static finding find_bandwidth(iso_watch *s, const iso_watch_step *in) {
  finding f = {.measure = "rate"};
  const double busy = in->log_busy_s - s->log_busy_s, bytes = in->log_bytes - s->log_bytes;
  const iso_window *w = &s->state[0].window;
  const bool waits = w->sums.parts[ISO_PART_STORAGE] > WAITS_FOR_DISK * w->seconds;
  s->values.checkpoint_bandwidth = NAN;
  if (!(busy > 0) || busy < WRITING_LEAST * w->seconds) return f;
  f.known = true;
  f.value = s->values.checkpoint_bandwidth = bytes / busy;
  f.bound = BANDWIDTH_SHARE * s->best_bandwidth;
  if (waits || f.bound > BANDWIDTH_LEAST) f.bound = BANDWIDTH_LEAST;
  f.out = f.value < f.bound;
  if (f.value > s->best_bandwidth) s->best_bandwidth = f.value;
  snprintf(f.text, sizeof f.text, "the log is written at %.1f MB/s (bound: %.1f), best so far %.1f MB/s",
           1e-6 * f.value, 1e-6 * f.bound, 1e-6 * s->best_bandwidth);
  return f;
}

static finding find_flatness(iso_watch *s) {
  finding f = {.known = true, .bound = SPREAD_MOST, .measure = "p99_over_median"};
  const double median = iso_tally_quantile(&s->wall, 50), p99 = iso_tally_quantile(&s->wall, 99);
  const double speed = s->windows + 1 >= TENTHS_FROM ? last_over_first(&s->curve) : NAN;
  f.value = s->values.flatness = median > 0 ? p99 / median : 1;
  f.out = f.value > SPREAD_MOST;
  const bool slower = speed < SPEED_LEAST;
  if (slower && !f.out) {
    f.out = true;
    f.value = speed;
    f.bound = SPEED_LEAST;
    f.measure = "last_over_first_tenth";
  }
  snprintf(f.text, sizeof f.text, "P99 of the step is %.3f times its median of %.2f ms (bound: 1.05)",
           s->values.flatness, 1e3 * median);
  const size_t length = strlen(f.text);
  if (isfinite(speed))
    snprintf(f.text + length, sizeof f.text - length,
             "; the last tenth of the steps runs at %.3f of the first's speed (bound: 0.99)", speed);
  return f;
}

/* ---- who, and why ---- */

/* The cause with the most seconds on that rank, but for those of the mask `not`. */
static iso_cause worst_of(const iso_watch *s, int r, unsigned not, double *seconds) {
  iso_cause worst = ISO_CAUSE_UNKNOWN;
  *seconds = CAUSE_LEAST * s->state[r].window.seconds;
  for (int c = 0; c < ISO_CAUSE_RANK; c++) {
    if (not >> c & 1 || s->state[r].causes[c] <= *seconds) continue;
    *seconds = s->state[r].causes[c];
    worst = (iso_cause)c;
  }
  if (worst == ISO_CAUSE_UNKNOWN) *seconds = 0;
  if (worst != ISO_CAUSE_PREEMPTED || !iso_blame_is_memory(&s->state[r].window, *seconds)) return worst;
  *seconds = s->state[r].causes[ISO_CAUSE_MEMORY];
  return ISO_CAUSE_MEMORY;
}

/* What took steps out of their course need not be what took most of the window: the part of which the slow steps have
 * most seconds beyond what the other steps have of it, and the rank. A wait for other ranks is theirs. */
static bool find_excess(const iso_watch *s, int *rank, iso_budget_part *part) {
  static const iso_budget_part own[] = {ISO_PART_COMPUTE, ISO_PART_DATA, ISO_PART_STORAGE, ISO_PART_OTHER};
  const double slow = (double)s->slow_steps, others = (double)(s->steps - s->slow_steps);
  double most = 0;
  for (int r = 0; r < s->ranks && others > 0; r++)
    for (size_t i = 0; i < ISO_COUNT(own); i++) {
      const double seconds = s->state[r].slow.parts[own[i]], rest = s->state[r].window.sums.parts[own[i]] - seconds;
      if (seconds - slow * rest / others <= most) continue;
      most = seconds - slow * rest / others;
      *rank = r;
      *part = own[i];
    }
  return most > 0;
}

/* Of the causes that can make such a part long the one with the most seconds. What waits for a source or a disk does
 * not need the processors that others have, unless it was the data's own threads that lacked them. */
static blamed blame_part(const iso_watch *s, int rank, iso_budget_part part) {
  static const unsigned source = 1U << ISO_CAUSE_SOURCE, disk = 1U << ISO_CAUSE_DISK, s3 = 1U << ISO_CAUSE_S3,
                        other = 1U << ISO_CAUSE_OTHER, clock = 1U << ISO_CAUSE_CLOCK,
                        preempted = 1U << ISO_CAUSE_PREEMPTED;
  const rank_state *own = &s->state[rank];
  const double scheduled = iso_late_sum(&own->window.late, ISO_LATE_SCHEDULE);
  const bool starved = own->causes[ISO_CAUSE_SOURCE] < scheduled;
  const unsigned not = part == ISO_PART_DATA      ? disk | other | clock | (starved ? 0 : preempted)
                       : part == ISO_PART_STORAGE ? source | other | clock | preempted
                       : part == ISO_PART_OTHER   ? source | disk | s3
                                                  : source | disk | s3 | other;
  blamed b = {.rank = rank};
  b.cause = worst_of(s, rank, not, &b.seconds);
  return b;
}

/* `rank`: whom the sign itself accuses. */
static blamed blame(const iso_watch *s, iso_sign sign, int rank) {
  iso_budget_part part = ISO_PART_COMPUTE;
  if (sign == ISO_SIGN_FLATNESS && s->values.flatness > SPREAD_MOST && find_excess(s, &rank, &part)) {
    const blamed of_slow = blame_part(s, rank, part);
    if (of_slow.cause != ISO_CAUSE_UNKNOWN) return of_slow;
  }
  const rank_state *own = &s->state[rank];
  const double memory = own->causes[ISO_CAUSE_MEMORY], window_s = own->window.seconds;
  blamed b = {.rank = rank, .cause = ISO_CAUSE_UNKNOWN};
  if (sign == ISO_SIGN_REDUCE) {
    b.cause = worst_of(s, rank, 0, &b.seconds);
    if (b.cause == ISO_CAUSE_UNKNOWN) b.cause = ISO_CAUSE_RANK;
    return b;
  }
  if ((sign == ISO_SIGN_LOAD || sign == ISO_SIGN_BANDWIDTH) && memory <= 0.1 * window_s) {
    const iso_cause direct = sign == ISO_SIGN_LOAD ? ISO_CAUSE_SOURCE : ISO_CAUSE_DISK;
    const double seconds = own->causes[direct], scheduled = iso_late_sum(&own->window.late, ISO_LATE_SCHEDULE);
    if ((sign == ISO_SIGN_BANDWIDTH && own->causes[ISO_CAUSE_S3] == 0) ||
        (sign == ISO_SIGN_LOAD && seconds > CAUSE_LEAST * window_s && seconds > scheduled))
      return (blamed){.rank = rank, .cause = direct, .seconds = seconds};
  }
  for (int r = 0; r < s->ranks; r++) {
    double most;
    const iso_cause cause = worst_of(s, r, 0, &most);
    if (most > b.seconds) b = (blamed){.rank = r, .cause = cause, .seconds = most};
  }
  return b;
}

static iso_breach *tell(iso_watch *s, const iso_watch_step *in, iso_sign sign, const finding *f, const blamed *who) {
  iso_sign_state *state = &s->states[sign];
  const iso_window *w = &s->state[who->rank].window;
  iso_breach *b = &s->breaches[s->breach_count++];
  *b = (iso_breach){.sign = sign,
                    .step = in->step,
                    .since_step = state->since_step,
                    .time_s = in->time_s,
                    .since_time_s = state->since_time_s,
                    .seconds = in->now_s - state->since_s,
                    .value = f->value,
                    .bound = f->bound,
                    .measure = f->measure,
                    .rank = who->rank,
                    .cause = who->cause,
                    .cause_s = who->seconds,
                    .window_s = w->seconds,
                    .machine = w->machine};
  memcpy(b->text, f->text, sizeof b->text);
  iso_blame_say(w, b->cause, b->cause_s, b->detail, sizeof b->detail);
  state->rank = who->rank;
  state->cause = who->cause;
  s->last[sign] = *b;
  return b;
}

/* Whether another rank or cause is to blame than what was said, for long enough; a window that shows no cause says
 * nothing of it. */
static bool blame_moved(iso_watch *s, iso_sign sign, const blamed *who) {
  const iso_sign_state *said = &s->states[sign];
  blame_state *b = &s->blames[sign];
  if (who->cause == ISO_CAUSE_UNKNOWN) return false;
  if (who->rank == said->rank && who->cause == said->cause) {
    b->windows = 0;
    return false;
  }
  b->windows = b->windows && b->rank == who->rank && b->cause == who->cause ? b->windows + 1 : 1;
  b->rank = who->rank;
  b->cause = who->cause;
  return b->windows >= BAD_WINDOWS && s->windows - b->said >= b->quiet;
}

static void judge(iso_watch *s, const iso_watch_step *in, iso_sign sign, const finding *f) {
  iso_sign_state *state = &s->states[sign];
  state->value = f->known ? f->value : NAN;
  state->bound = f->known ? f->bound : NAN;
  state->measure = f->known ? f->measure : NULL;
  if (!f->known) return;
  if (f->out) {
    s->good[sign] = 0;
    if (s->bad[sign]++ == 0 && !state->out) {
      state->since_step = s->began_step + 1;
      state->since_s = s->began_s;
      state->since_time_s = s->began_time_s;
    }
  } else {
    s->bad[sign] = 0;
    s->good[sign]++;
  }
  const bool begins = !state->out && s->bad[sign] >= BAD_WINDOWS, ends = state->out && s->good[sign] >= GOOD_WINDOWS;
  if (!begins && !ends && !(state->out && f->out)) return;
  const blamed who = blame(s, sign, f->rank);
  blame_state *b = &s->blames[sign];
  if (begins || ends) {
    tell(s, in, sign, f, &who)->begins = begins;
    state->out = begins;
    *b = (blame_state){.said = s->windows, .quiet = QUIET_LEAST};
  } else if (blame_moved(s, sign, &who)) {
    tell(s, in, sign, f, &who)->changes = true;
    *b = (blame_state){.said = s->windows, .quiet = b->quiet < QUIET_MOST ? 2 * b->quiet : QUIET_MOST};
  }
}

static void list_breached(iso_watch *s) {
  size_t length = (size_t)snprintf(s->breached, sizeof s->breached, "[");
  for (int i = 0; i < ISO_SIGNS; i++)
    if (s->states[i].out)
      length += (size_t)snprintf(s->breached + length, sizeof s->breached - length, "%s\"%s\"", length > 1 ? ", " : "",
                                 iso_sign_names[i]);
  snprintf(s->breached + length, sizeof s->breached - length, "]");
}

static void close_window(iso_watch *s, const iso_watch_step *in) {
  close_ranks(s, in);
  const finding found[ISO_SIGNS] = {find_load(s), find_reduce(s), find_bandwidth(s, in), find_flatness(s)};
  for (int i = 0; i < ISO_SIGNS; i++) judge(s, in, (iso_sign)i, &found[i]);
  list_breached(s);
  s->slow_from_s = SPREAD_MOST * iso_tally_quantile(&s->wall, 50);
  s->windows++;
}

/* One reading says little of a clock that comes and goes. */
static void add_clock(rank_state *rank, const iso_evidence *e) {
  if (e->at_s <= rank->clock_at_s || isnan(e->clock_ghz)) return;
  rank->clock_at_s = e->at_s;
  rank->clock_sum += e->clock_ghz;
  rank->clock_count++;
}

/* A rank that was stopped cannot have read what stopped it when its step ends: a second later it has. Clocks of other
 * hosts are compared with themselves only. */
static bool has_readings(const iso_watch *s, const iso_watch_step *in, double passed) {
  for (int r = 0; r < s->ranks; r++) {
    const double before = s->state[r].before.at_s, now = in->evidence[r].at_s;
    if (before > 0 && now - before < passed - READ_EACH_S) return false;
  }
  return true;
}

int iso_watch_add(iso_watch *s, const iso_watch_step *in, const iso_breach **breaches) {
  *breaches = s->breaches;
  s->breach_count = 0;
  if (!s->begun) { /* the first step warms up, and has no evidence before it */
    s->begun = true;
    begin_window(s, in);
    return 0;
  }
  const double wall_s = in->budgets[0].parts[ISO_PART_WALL], passed = in->now_s - s->began_s;
  const bool slow = s->slow_from_s > 0 && wall_s > s->slow_from_s;
  s->steps++;
  s->slow_steps += slow;
  for (int r = 0; r < s->ranks; r++) {
    rank_state *rank = &s->state[r];
    const double *parts = in->budgets[r].parts;
    for (int p = 0; p < ISO_PARTS; p++) {
      iso_tally_add(&rank->whole[p], p == ISO_PART_UNACCOUNTED ? fabs(parts[p]) : parts[p]);
      rank->window.sums.parts[p] += parts[p];
      if (slow) rank->slow.parts[p] += parts[p];
    }
    iso_late_add(&rank->window.late, &in->budgets[r]);
    add_clock(rank, &in->evidence[r]);
    iso_tally_add(&rank->load, parts[ISO_PART_DATA]);
    rank->reduce.sum += parts[ISO_PART_REDUCE];
    rank->reduce.squares += parts[ISO_PART_REDUCE] * parts[ISO_PART_REDUCE];
  }
  iso_tally_add(&s->wall, wall_s);
  curve_add(&s->curve, wall_s);
  const int64_t least = passed >= LONG_WINDOW_S || s->window_s < WHOLE_WINDOW_S ? FEW_STEPS : STEPS;
  if (passed < s->window_s || s->steps < least) return 0;
  if (s->full_s < 0) s->full_s = in->now_s;
  if (!has_readings(s, in, passed) && in->now_s - s->full_s < LATE_READING_S) return 0;
  close_window(s, in);
  begin_window(s, in);
  return s->breach_count;
}

/* ---- asking ---- */

/* A sign that is out when its start ends: as it was said last. */
static void tell_open(iso_watch *s, const iso_watch_step *in, iso_sign sign) {
  iso_breach *b = &s->breaches[s->breach_count++];
  *b = s->last[sign];
  b->begins = b->changes = false;
  b->closes = true;
  b->step = in->step;
  b->time_s = in->time_s;
  b->seconds = in->now_s - s->states[sign].since_s;
  snprintf(b->text, sizeof b->text, "this start ends before it is within bounds again");
}

int iso_watch_end(iso_watch *s, const iso_watch_step *in, const iso_breach **breaches) {
  *breaches = s->breaches;
  s->breach_count = 0;
  if (s->begun && s->steps > 0) close_ranks(s, in);
  for (int c = 0; c < ISO_CAUSES; c++) {
    iso_cause_total *t = &s->totals[c];
    if (t->seconds > 0) iso_blame_say(&s->state[t->rank].start, (iso_cause)c, t->seconds, t->detail, sizeof t->detail);
  }
  for (int i = 0; s->begun && i < ISO_SIGNS; i++)
    if (s->states[i].out) tell_open(s, in, (iso_sign)i);
  s->begun = false;
  return s->breach_count;
}

void iso_watch_values(const iso_watch *s, iso_sign_values *values) {
  *values = s->values;
}

const iso_sign_state *iso_watch_state(const iso_watch *s, iso_sign sign) {
  return &s->states[sign];
}

const char *iso_watch_breached(const iso_watch *s) {
  return s->breached;
}

const iso_tally *iso_watch_tally(const iso_watch *s, int rank, iso_budget_part part) {
  return &s->state[rank].whole[part];
}

const iso_cause_total *iso_watch_cause(const iso_watch *s, iso_cause cause) {
  return &s->totals[cause];
}

int iso_watch_held_up_by(const iso_watch *s) {
  int by = -1;
  double most = 0;
  for (int r = 0; r < s->ranks; r++)
    if (s->state[r].held_s > most) by = r, most = s->state[r].held_s;
  return by;
}

const iso_machine *iso_watch_machine(const iso_watch *s, int rank) {
  return &s->state[rank].machine;
}
