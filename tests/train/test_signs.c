/* SPDX-License-Identifier: Apache-2.0
 *
 * The four signs on steps that are made up: what is well is not said, what is wrong is said once when it begins and
 * once when it ends, and the rank and the cause are the right ones. The sensors read files that a test has written.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "io/scratch.h"
#include "train/train.h"

enum { RANKS = 4, MOST = 64 };
#define STEP_S   0.01
#define WINDOW_S 1.0 /* 100 steps */

static iso_watch *watch;
static iso_budget budgets[RANKS];
static iso_evidence evidence[RANKS];
static iso_watch_step now;
static const iso_source_options sources[] = {{.path = "fast.txt"}, {.path = "slow.jsonl"}};
static const iso_data_options reads = {.sources = sources, .source_count = 2};
static iso_breach said[MOST];
static int said_count, ranks;

static void begin_windows(int count, double window_s) {
  ranks = count;
  said_count = 0;
  assert_int_equal(iso_watch_create(count, window_s, &watch), ISO_OK);
  now = (iso_watch_step){.now_s = 1000, .time_s = 1e9, .budgets = budgets, .evidence = evidence, .data = &reads};
  for (int r = 0; r < count; r++)
    evidence[r] = (iso_evidence){.at_s = 1000,
                                 .clock_ghz = 3,
                                 .clock_best_ghz = 3,
                                 .celsius = 50,
                                 .running = 2,
                                 .processors = 2,
                                 .memory_bytes = 16e9,
                                 .memory_available_bytes = 8e9,
                                 .page_cache_bytes = 1e9};
}

static void begin(int count) {
  begin_windows(count, WINDOW_S);
}

static int end(void **state) {
  (void)state;
  iso_watch_destroy(&watch);
  return 0;
}

static int unread = -1; /* the rank whose machine is not read */

/* A step of all ranks: computing takes what is left. */
static void well(void) {
  for (int r = 0; r < ranks; r++) {
    double *parts = budgets[r].parts;
    budgets[r] = (iso_budget){0};
    parts[ISO_PART_WALL] = STEP_S;
    parts[ISO_PART_DATA] = 1e-6;
    parts[ISO_PART_OTHER] = 5e-5;
    parts[ISO_PART_REDUCE] = ranks > 1 ? 1e-4 : 0;
    parts[ISO_PART_COMPUTE] = STEP_S - 1e-6 - 5e-5 - parts[ISO_PART_REDUCE];
  }
}

/* All ranks' steps take `more` seconds longer, for that part of `rank`'s. */
static void longer(int rank, iso_budget_part part, double more) {
  for (int r = 0; r < ranks; r++) budgets[r].parts[ISO_PART_WALL] += more;
  budgets[rank].parts[part] += more;
  for (int r = 0; r < ranks; r++)
    if (r != rank) budgets[r].parts[ISO_PART_REDUCE] += more;
}

/* All wait so long for a batch of rank `rank`'s, whose data threads are at that. */
static void late(int rank, iso_late_stage stage, int source, double seconds) {
  longer(rank, ISO_PART_DATA, seconds);
  budgets[rank].late_s = seconds;
  budgets[rank].late_stage = (int32_t)stage;
  budgets[rank].late_source = source;
}

static void step(void) {
  const iso_breach *breaches;
  const double wall_s = budgets[0].parts[ISO_PART_WALL];
  now.step++;
  now.now_s += wall_s;
  now.time_s += wall_s;
  now.log_bytes += 1e6;
  now.log_busy_s += 1e6 / 2e9;
  for (int r = 0; r < ranks; r++)
    if (r != unread) evidence[r].at_s = now.now_s;
  const int count = iso_watch_add(watch, &now, &breaches);
  for (int i = 0; i < count && said_count < MOST; i++) said[said_count++] = breaches[i];
}

static void end_of_start(void) {
  const iso_breach *breaches;
  const int count = iso_watch_end(watch, &now, &breaches);
  for (int i = 0; i < count && said_count < MOST; i++) said[said_count++] = breaches[i];
}

static void well_for(double seconds) {
  for (const double until = now.now_s + seconds; now.now_s < until;) {
    well();
    step();
  }
}

static const iso_breach *only(iso_sign sign) {
  const iso_breach *found = NULL;
  for (int i = 0; i < said_count; i++) {
    if (said[i].sign != sign) continue;
    assert_null(found);
    found = &said[i];
  }
  assert_non_null(found);
  return found;
}

static void what_is_well_is_not_said(void **state) {
  (void)state;
  begin(RANKS);
  well_for(30);
  assert_int_equal(said_count, 0);
  assert_string_equal(iso_watch_breached(watch), "[]");
  iso_sign_values values;
  iso_watch_values(watch, &values);
  assert_true(fabs(values.allreduce_wait - 1e-4) < 1e-9);
  assert_true(fabs(values.flatness - 1) < 0.03 && values.data_load_latency < 2e-6);
}

static void one_bad_window_is_not_said(void **state) {
  (void)state;
  begin(1);
  well_for(3);
  well();
  longer(0, ISO_PART_DATA, 0.9);
  step();
  well_for(5);
  assert_int_equal(said_count, 0);
}

static void a_breach_is_said_when_it_begins_and_when_it_ends(void **state) {
  (void)state;
  begin(1);
  well_for(3);
  const int64_t last_good = now.step;
  for (int i = 0; i < 1000; i++) {
    well();
    late(0, ISO_LATE_READ, 1, 5e-3);
    step();
  }
  const iso_breach b = *only(ISO_SIGN_LOAD);
  assert_true(b.begins && b.cause == ISO_CAUSE_SOURCE && b.rank == 0 && b.bound == 3e-3);
  assert_true(fabs(b.value - 5e-3) < 2e-4);
  assert_true(b.since_step >= last_good - 100 && b.since_step <= last_good + 100);
  assert_non_null(strstr(b.detail, "read of \"slow.jsonl\""));
  assert_string_equal(iso_watch_breached(watch), "[\"data_load_latency\", \"flatness\"]"); /* steps are longer, too */
  assert_true(iso_watch_state(watch, ISO_SIGN_LOAD)->out);
  well_for(20);
  int ends = 0;
  for (int i = 0; i < said_count; i++) {
    if (said[i].sign != ISO_SIGN_LOAD || said[i].begins) continue;
    ends++;
    assert_int_equal(said[i].since_step, b.since_step);
    assert_true(said[i].seconds > 15);
  }
  assert_int_equal(ends, 1);
  assert_false(iso_watch_state(watch, ISO_SIGN_LOAD)->out);
}

/* ---- what batches were late for ---- */

/* The last wait of each window, and most of them, are short ones for another source. */
static void the_source_that_costs_most_is_named(void **state) {
  (void)state;
  begin(1);
  well_for(3);
  for (int i = 0; i < 500; i++) {
    well();
    if (i % 10 == 0)
      late(0, ISO_LATE_READ, 1, 0.05);
    else if (i % 10 == 5)
      late(0, ISO_LATE_SCHEDULE, 0, 0.004);
    else
      late(0, ISO_LATE_TOKENIZE, 0, 1e-4);
    step();
  }
  const iso_breach *b = only(ISO_SIGN_LOAD);
  assert_true(b->cause == ISO_CAUSE_SOURCE);
  assert_string_equal(b->detail, "batches came late, at: read of \"slow.jsonl\"");
  assert_true(b->cause_s > 0.25 && b->cause_s < 0.45); /* of a second in which 6 or 7 waits are long */
  end_of_start();
  const iso_cause_total *source = iso_watch_cause(watch, ISO_CAUSE_SOURCE);
  const iso_cause_total *preempted = iso_watch_cause(watch, ISO_CAUSE_PREEMPTED);
  assert_true(fabs(source->seconds - (50 * 0.05 + 400 * 1e-4)) < 1e-2);
  assert_true(fabs(preempted->seconds - 50 * 0.004) < 1e-9); /* only what data threads had no core for */
  assert_string_equal(source->detail, "batches came late, at: read of \"slow.jsonl\"");
}

static void a_data_thread_without_a_core_is_preempted(void **state) {
  (void)state;
  begin(1);
  well_for(3);
  for (int i = 0; i < 500; i++) {
    well();
    late(0, i % 10 ? ISO_LATE_SCHEDULE : ISO_LATE_READ, 0, 6e-3);
    step();
  }
  assert_true(only(ISO_SIGN_LOAD)->cause == ISO_CAUSE_PREEMPTED);
}

/* Stage and source come with the budget of each rank. */
static void a_late_source_of_another_rank(void **state) {
  (void)state;
  begin(RANKS);
  well_for(3);
  for (int i = 0; i < 500; i++) {
    well();
    late(3, ISO_LATE_TOKENIZE, 0, 6e-3);
    step();
  }
  const iso_breach *b = only(ISO_SIGN_LOAD);
  assert_true(b->rank == 3 && b->cause == ISO_CAUSE_SOURCE);
  assert_string_equal(b->detail, "batches came late, at: tokenize of \"fast.txt\"");
  const iso_budget nonsense[] = {{.late_s = 1, .late_stage = -1},
                                 {.late_s = 1, .late_source = ISO_LATE_SOURCES},
                                 {.late_s = NAN},
                                 {.late_s = 1, .late_stage = ISO_LATE_STAGES}};
  iso_late sums = {0};
  iso_late_stage stage;
  int source;
  for (size_t i = 0; i < ISO_COUNT(nonsense); i++) iso_late_add(&sums, &nonsense[i]);
  assert_false(iso_late_most(&sums, ISO_LATE_SCHEDULE, &stage, &source));
}

static void a_starved_step_says_where(void **state) {
  (void)state;
  iso_stopwatch w;
  iso_budget b;
  iso_late sums = {0};
  iso_late_stage stage;
  int source;
  iso_stopwatch_start(&w);
  const iso_ring_waits waits = {.last_wait_s = 0.25, .last_stage = "read", .last_source = "slow.jsonl"};
  iso_stopwatch_starved(&w, &waits, &reads);
  iso_stopwatch_end(&w, &b);
  assert_true(b.late_s == 0.25 && b.late_stage == ISO_LATE_READ && b.late_source == 1);
  iso_late_add(&sums, &b);
  iso_stopwatch_end(&w, &b);
  assert_true(b.late_s == 0); /* the next one did not */
  iso_late_fade(&sums, 0.5);
  iso_late_add(&sums, &(iso_budget){.late_s = 0.124, .late_stage = ISO_LATE_PACK});
  assert_true(iso_late_most(&sums, ISO_LATE_SCHEDULE, &stage, &source));
  assert_true(stage == ISO_LATE_READ && source == 1 && iso_late_sum(&sums, ISO_LATE_READ) == 0.125);
  for (int i = 0; i < 400; i++) iso_late_fade(&sums, 0.9);
  assert_false(iso_late_most(&sums, ISO_LATE_SCHEDULE, &stage, &source)); /* forgotten */
}

/* ---- who and why ---- */

/* Every tenth step takes 50 ms more, as that part of rank 2's. */
static void jitter(iso_budget_part part, double stopped, double steal, double pressure) {
  begin(RANKS);
  well_for(3);
  for (int i = 0; i < 500; i++) {
    well();
    if (i % 10 == 0) {
      longer(2, part, 0.05);
      if (part == ISO_PART_PREEMPTED) budgets[2].parts[ISO_PART_COMPUTE] += 0.05;
      evidence[2].stopped_s += stopped;
      evidence[2].steal_s += steal;
      evidence[2].pressure_memory_s += pressure;
    }
    step();
  }
}

static void check_rank_2(iso_cause cause, const char *words) {
  const iso_breach *waits = only(ISO_SIGN_REDUCE), *uneven = only(ISO_SIGN_FLATNESS);
  assert_int_equal(waits->rank, 2);
  assert_int_equal(uneven->rank, 2);
  assert_string_equal(iso_cause_names[waits->cause], iso_cause_names[cause]);
  assert_string_equal(iso_cause_names[uneven->cause], iso_cause_names[cause]);
  if (!strstr(waits->detail, words)) fail_msg("%s", waits->detail);
  assert_true(waits->cause_s > 0.2 && waits->cause_s < 1.2);
}

static void a_stopped_rank(void **state) {
  (void)state;
  jitter(ISO_PART_COMPUTE, 0.045, 0, 0);
  check_rank_2(ISO_CAUSE_STOPPED, "was stopped");
}

static void a_squeezed_rank(void **state) {
  (void)state;
  begin(RANKS);
  well_for(3);
  for (int r = 0; r < RANKS; r++) evidence[r].running = 5;
  evidence[2].processors = 1;
  for (int i = 0; i < 500; i++) {
    well();
    if (i % 10 == 0) {
      longer(2, ISO_PART_COMPUTE, 0.05);
      budgets[2].parts[ISO_PART_PREEMPTED] = 0.05;
    }
    step();
  }
  check_rank_2(ISO_CAUSE_PREEMPTED, "5 tasks are ready to run, it may use 1 processor, 2 when it started");
}

/* What the system does not say is left out of the words, never printed as a number that is none. */
static void words_without_numbers(void **state) {
  (void)state;
  iso_window w = {.seconds = 1, .steps = 10, .began_processors = 2};
  iso_machine *m = &w.machine;
  char text[512];
  *m = (iso_machine){.running = NAN, .processors = 1};
  m->memory_bytes = m->memory_available_bytes = m->pressure_memory = m->disk_busy = m->disk_write_s = NAN;
  m->clock_ghz = m->clock_best_ghz = m->celsius = m->steal = m->throttled = m->stopped = NAN;
  m->pressure_cpu = m->pressure_io = m->page_cache_bytes = m->major_faults = m->s3_requests = m->s3_errors = NAN;
  for (int cause = 0; cause < ISO_CAUSES; cause++) {
    if (cause == ISO_CAUSE_CLOCK) continue; /* blamed only where the clock is known */
    iso_blame_say(&w, (iso_cause)cause, 0.1, text, sizeof text);
    if (strstr(text, "nan")) fail_msg("%s: %s", iso_cause_names[cause], text);
  }
}

static void a_host_that_steals(void **state) {
  (void)state;
  jitter(ISO_PART_COMPUTE, 0, 0.05, 0);
  check_rank_2(ISO_CAUSE_STEAL, "the host of this virtual machine took");
}

static void a_memory_hog(void **state) {
  (void)state;
  jitter(ISO_PART_COMPUTE, 0, 0, 0.05);
  check_rank_2(ISO_CAUSE_MEMORY, "memory is short");
}

/* The kernel's search for memory takes the processors, for longer than tasks wait for memory. */
static void a_memory_hog_that_takes_processors(void **state) {
  (void)state;
  static const struct {
    double stalled, faults;
    iso_cause cause;
  } cases[] = {{0.02, 3, ISO_CAUSE_MEMORY}, {0.02, 0, ISO_CAUSE_PREEMPTED}, {0.015, 3, ISO_CAUSE_PREEMPTED}};
  for (size_t c = 0; c < ISO_COUNT(cases); c++) {
    begin(1);
    well_for(3);
    for (int i = 0; i < 500; i++) {
      well();
      if (i % 10 == 0) {
        longer(0, ISO_PART_COMPUTE, 0.05);
        budgets[0].parts[ISO_PART_PREEMPTED] = 0.05;
        evidence[0].pressure_memory_s += cases[c].stalled;
        evidence[0].major_faults += cases[c].faults;
      }
      step();
    }
    const iso_breach *b = only(ISO_SIGN_FLATNESS);
    assert_string_equal(iso_cause_names[b->cause], iso_cause_names[cases[c].cause]);
    iso_watch_destroy(&watch);
  }
}

/* A rank that was stopped for long reads that only a while later: all of it counts, and is that rank's. */
static void a_long_stop_counts_whole(void **state) {
  (void)state;
  begin_windows(2, 5);
  well_for(11);
  well();
  longer(1, ISO_PART_COMPUTE, 12);
  unread = 1;
  step();
  well();
  step();
  iso_sign_values values;
  iso_watch_values(watch, &values);
  assert_true(values.flatness < 1.01); /* the window waits for that reading */
  unread = -1;
  evidence[1].stopped_s += 12;
  well();
  step();
  assert_true(iso_watch_machine(watch, 1)->stopped > 0.5);
  well_for(20);
  end_of_start();
  const iso_cause_total *stopped = iso_watch_cause(watch, ISO_CAUSE_STOPPED);
  assert_int_equal(stopped->rank, 1);
  if (!(fabs(stopped->seconds - 12) < 0.01)) fail_msg("%.3f s", stopped->seconds);
  iso_watch_destroy(&watch);
}

/* The window's readings together say how fast a clock was. */
static void one_slow_reading_is_no_slow_clock(void **state) {
  (void)state;
  begin(1);
  for (int i = 0; i < 3000; i++) {
    well();
    evidence[0].clock_ghz = i % 20 == 19 ? 3.2 : 4;
    evidence[0].clock_best_ghz = 4;
    step();
  }
  end_of_start();
  assert_true(iso_watch_cause(watch, ISO_CAUSE_CLOCK)->seconds == 0);
  iso_watch_destroy(&watch);
}

/* Steps are not level by what the slow ones have more of, whatever takes more seconds of all of them. */
static void what_is_constant_is_not_uneven(void **state) {
  (void)state;
  static const struct {
    double data_s, preempted_s; /* of each step */
    bool source;                /* what each fiftieth has ten steps' time more of */
    iso_cause cause;
  } cases[] = {{1e-6, 0.4 * STEP_S, true, ISO_CAUSE_SOURCE}, {0.25 * STEP_S, 1e-6, false, ISO_CAUSE_PREEMPTED}};
  for (size_t c = 0; c < ISO_COUNT(cases); c++) {
    begin(1);
    for (int i = 0; i < 2000; i++) {
      well();
      if (cases[c].data_s > 1e-5) late(0, ISO_LATE_READ, 0, cases[c].data_s);
      budgets[0].parts[ISO_PART_PREEMPTED] = cases[c].preempted_s;
      if (i % 50 == 0 && cases[c].source) {
        late(0, ISO_LATE_READ, 0, 10 * STEP_S);
      } else if (i % 50 == 0) {
        longer(0, ISO_PART_COMPUTE, 10 * STEP_S);
        budgets[0].parts[ISO_PART_PREEMPTED] += 10 * STEP_S;
      }
      step();
    }
    const iso_breach *b = only(ISO_SIGN_FLATNESS);
    assert_string_equal(iso_cause_names[b->cause], iso_cause_names[cases[c].cause]);
    iso_watch_destroy(&watch);
  }
}

/* A counter that grew by more than the time, since reading took some, is a share of one. */
static void no_share_is_above_one(void **state) {
  (void)state;
  begin(1);
  for (int i = 0; i < 300; i++) {
    well();
    evidence[0].pressure_cpu_s += 1.2 * STEP_S;
    evidence[0].pressure_memory_s += 1.2 * STEP_S;
    evidence[0].pressure_io_s += 1.2 * STEP_S;
    evidence[0].steal_s += 1.2 * STEP_S;
    now.log_busy_s += 1.2 * STEP_S;
    step();
  }
  const iso_machine *m = iso_watch_machine(watch, 0);
  assert_true(m->pressure_cpu == 1 && m->pressure_memory == 1 && m->pressure_io == 1 && m->steal == 1);
  assert_true(m->disk_busy == 1);
}

static void one_is_no_plural(void **state) {
  (void)state;
  iso_machine m = {.processors = 1, .major_faults = 1, .s3_requests = 1};
  iso_string words = {0};
  iso_machine_say(&m, &words);
  assert_non_null(strstr(words.data, ", 1 processor, "));
  assert_non_null(strstr(words.data, ", 1 major fault, "));
  assert_non_null(strstr(words.data, ", 1 S3 request, "));
  m.processors = m.major_faults = m.s3_requests = 2;
  iso_machine_say(&m, &words);
  assert_non_null(strstr(words.data, ", 2 processors, "));
  assert_non_null(strstr(words.data, ", 2 major faults, "));
  assert_non_null(strstr(words.data, ", 2 S3 requests, "));
  iso_string_fini(&words);
}

/* Its quota is used up while it waits for a processor, which is no preemption then. */
static void a_throttled_rank(void **state) {
  (void)state;
  begin(RANKS);
  well_for(3);
  for (int i = 0; i < 500; i++) {
    well();
    if (i % 10 == 0) {
      longer(2, ISO_PART_COMPUTE, 0.05);
      budgets[2].parts[ISO_PART_PREEMPTED] = 0.05;
      evidence[2].throttled_s += 0.048;
    }
    step();
  }
  check_rank_2(ISO_CAUSE_THROTTLED, "quota of processor time was used up");
}

static void a_rank_without_a_reason(void **state) {
  (void)state;
  jitter(ISO_PART_COMPUTE, 0, 0, 0);
  const iso_breach *b = only(ISO_SIGN_REDUCE);
  assert_true(b->rank == 2 && b->cause == ISO_CAUSE_RANK);
}

static void a_clock_that_drops(void **state) {
  (void)state;
  begin(RANKS);
  well_for(12);
  evidence[2].clock_ghz = 1.5;
  evidence[2].celsius = 98;
  for (int i = 0; i < 1000; i++) {
    well();
    longer(2, ISO_PART_COMPUTE, STEP_S);
    step();
  }
  const iso_breach *b = only(ISO_SIGN_REDUCE);
  assert_true(b->rank == 2 && b->cause == ISO_CAUSE_CLOCK);
  assert_non_null(strstr(b->detail, "1.50 GHz, 50% of 3.00, at 98 C"));
  const iso_breach *slower = only(ISO_SIGN_FLATNESS); /* no step stands out, but the last tenth is slower */
  assert_true(slower->rank == 2 && slower->cause == ISO_CAUSE_CLOCK);
  iso_string words = {0};
  iso_machine_say(&b->machine, &words);
  assert_non_null(strstr(words.data, "clock 1.50 GHz, best 3.00, 98 C"));
  assert_null(strstr(words.data, "nan"));
  iso_string_fini(&words);
}

static void a_slow_disk(void **state) {
  (void)state;
  begin(1);
  well_for(3);
  for (int i = 0; i < 500; i++) {
    well();
    longer(0, ISO_PART_STORAGE, 0.02);
    now.log_busy_s += 0.025;
    step();
  }
  const iso_breach *b = only(ISO_SIGN_BANDWIDTH);
  assert_true(b->cause == ISO_CAUSE_DISK && b->bound == 800e6 && b->value < 50e6);
  assert_non_null(strstr(b->detail, "steps waited"));
  assert_true(b->machine.disk_busy > 0.5);
  end_of_start();
  const iso_cause_total *total = iso_watch_cause(watch, ISO_CAUSE_DISK);
  assert_true(fabs(total->seconds - 10) < 0.5);
  /* 3 s at 5 % and 15 s at 85 %, which is what the last window says */
  if (!strstr(total->detail, "the log was writing 72% of the time, ")) fail_msg("%s", total->detail);
}

/* Batches come late: from S3, of whose requests some fail. */
static void an_s3_that_fails(void **state) {
  (void)state;
  begin(1);
  well_for(3);
  iso_string words = {0};
  iso_machine_say(iso_watch_machine(watch, 0), &words);
  assert_null(strstr(words.data, "S3")); /* a run without S3 does not speak of it */
  for (int i = 0; i < 1000; i++) {
    well();
    late(0, ISO_LATE_READ, 1, 5e-3);
    evidence[0].s3_requests += 4;
    evidence[0].s3_errors += 1;
    step();
  }
  const iso_breach *b = only(ISO_SIGN_LOAD);
  assert_string_equal(iso_cause_names[b->cause], "s3");
  assert_true(b->machine.s3_requests > 100 && b->machine.s3_errors == b->machine.s3_requests / 4);
  assert_non_null(strstr(b->detail, " requests to S3 failed"));
  iso_machine_say(&b->machine, &words);
  assert_non_null(strstr(words.data, " S3 requests, 25.0% of them failed"));
  iso_string_fini(&words);
}

/* ---- what comes behind a sign that is out already ---- */

/* Rank `rank` is stopped for half of a tenth of the steps. */
static void stops(int rank, int steps) {
  for (int i = 0; i < steps; i++) {
    well();
    if (i % 10 == 0) {
      longer(rank, ISO_PART_COMPUTE, 0.05);
      evidence[rank].stopped_s += 0.045;
    }
    step();
  }
}

static int lines_of(iso_sign sign, int from) {
  int count = 0;
  for (int i = from; i < said_count; i++) count += said[i].sign == sign;
  return count;
}

static const iso_breach *last_of(iso_sign sign) {
  for (int i = said_count; i-- > 0;)
    if (said[i].sign == sign) return &said[i];
  return NULL;
}

static void another_rank_is_said_again(void **state) {
  (void)state;
  begin(RANKS);
  well_for(3);
  stops(2, 500);
  assert_int_equal(only(ISO_SIGN_REDUCE)->rank, 2);
  const int64_t since = only(ISO_SIGN_REDUCE)->since_step;
  stops(1, 500);
  assert_int_equal(lines_of(ISO_SIGN_REDUCE, 0), 2);
  const iso_breach *b = last_of(ISO_SIGN_REDUCE);
  assert_true(b->changes && !b->begins && !b->closes && b->rank == 1 && b->cause == ISO_CAUSE_STOPPED);
  assert_int_equal(b->since_step, since); /* out all the time */
  assert_int_equal(iso_watch_state(watch, ISO_SIGN_REDUCE)->rank, 1);
  assert_string_equal(iso_cause_names[iso_watch_state(watch, ISO_SIGN_REDUCE)->cause], "stopped");
}

static void another_cause_is_said_again(void **state) {
  (void)state;
  begin(RANKS);
  well_for(3);
  stops(2, 500);
  for (int i = 0; i < 500; i++) {
    well();
    if (i % 10 == 0) {
      longer(2, ISO_PART_COMPUTE, 0.05);
      evidence[2].steal_s += 0.05;
    }
    step();
  }
  const iso_breach *b = last_of(ISO_SIGN_REDUCE);
  assert_int_equal(lines_of(ISO_SIGN_REDUCE, 0), 2);
  assert_true(b->changes && b->rank == 2 && b->cause == ISO_CAUSE_STEAL);
  assert_non_null(strstr(b->detail, "the host of this virtual machine took"));
}

/* Blame that comes and goes is said ever more seldom; of one window not at all. */
static void blame_does_not_chatter(void **state) {
  (void)state;
  begin(RANKS);
  well_for(3);
  stops(2, 400);
  const int before = said_count;
  for (int i = 0; i < 20; i++) stops(i % 2, 80); /* a window is 67 steps: none is of one rank twice */
  assert_true(lines_of(ISO_SIGN_REDUCE, before) <= 4);
  const int then = said_count;
  for (int i = 0; i < 40; i++) stops(i % 2, 400); /* about 240 windows */
  assert_true(lines_of(ISO_SIGN_REDUCE, then) <= 8);
}

/* ---- what the value is of ---- */

static void a_value_says_what_it_is(void **state) {
  (void)state;
  begin(RANKS);
  well_for(3);
  const iso_sign_state *waits = iso_watch_state(watch, ISO_SIGN_REDUCE);
  assert_string_equal(waits->measure, "mean"); /* as in metrics.jsonl */
  assert_true(fabs(waits->value - 1e-4) < 1e-9 && waits->bound == 2e-3);
  for (int i = 0; i < 500; i++) {
    well();
    longer(2, ISO_PART_COMPUTE, i % 2 ? 0 : 1e-3);
    step();
  }
  const iso_breach *b = only(ISO_SIGN_REDUCE);
  assert_string_equal(b->measure, "std");
  assert_true(fabs(b->value - 5e-4) < 2e-5 && b->bound == 3e-4);
  assert_non_null(strstr(b->text, ": the deviation is out"));
  assert_string_equal(iso_watch_state(watch, ISO_SIGN_REDUCE)->measure, "std");
  for (int i = 0; i < 500; i++) {
    well();
    longer(2, ISO_PART_COMPUTE, 4e-3);
    step();
  }
  assert_string_equal(waits->measure, "mean");
  assert_true(waits->value > 4e-3 && waits->bound == 2e-3);
}

static void what_is_not_known_is_not_said(void **state) {
  (void)state;
  begin(1);
  for (int i = 0; i < 300; i++) {
    well();
    now.log_busy_s += 2e-3;
    step();
  }
  iso_sign_values values;
  const iso_sign_state *bandwidth = iso_watch_state(watch, ISO_SIGN_BANDWIDTH);
  assert_true(bandwidth->value > 300e6 && bandwidth->value < 500e6);
  assert_string_equal(bandwidth->measure, "rate");
  well_for(3); /* too little is written */
  iso_watch_values(watch, &values);
  assert_true(isnan(values.checkpoint_bandwidth) && isnan(bandwidth->value) && isnan(bandwidth->bound));
  assert_null(bandwidth->measure);
  assert_true(isnan(values.allreduce_wait) && isnan(values.allreduce_wait_std)); /* there is one rank */
  assert_true(isnan(iso_watch_state(watch, ISO_SIGN_REDUCE)->value));
}

/* ---- the end of a start ---- */

static void what_is_out_ends_with_its_start(void **state) {
  (void)state;
  begin(RANKS);
  well_for(3);
  stops(2, 530);
  const iso_breach began = *only(ISO_SIGN_REDUCE);
  end_of_start();
  assert_int_equal(lines_of(ISO_SIGN_REDUCE, 0), 2);
  const iso_breach *b = last_of(ISO_SIGN_REDUCE);
  assert_true(b->closes && !b->begins && !b->changes && b->rank == 2 && b->cause == ISO_CAUSE_STOPPED);
  assert_true(b->step == now.step && b->since_step == began.since_step && b->seconds > began.seconds);
  assert_true(iso_watch_state(watch, ISO_SIGN_REDUCE)->out);
  end_of_start();
  assert_int_equal(lines_of(ISO_SIGN_REDUCE, 0), 2); /* once */
}

static void the_rank_that_is_waited_for_is_known(void **state) {
  (void)state;
  begin(RANKS);
  well_for(3);
  stops(2, 530);
  stops(1, 130);
  end_of_start();
  const iso_cause_total *waits = iso_watch_cause(watch, ISO_CAUSE_RANK);
  assert_int_equal(iso_watch_held_up_by(watch), 2);
  assert_true(waits->rank != 2 && waits->seconds > 2);
}

static void nobody_is_waited_for_by_itself(void **state) {
  (void)state;
  begin(1);
  well_for(3);
  end_of_start();
  assert_int_equal(iso_watch_held_up_by(watch), -1);
}

static void tallies_are_those_of_the_steps(void **state) {
  (void)state;
  begin(2);
  for (int i = 0; i < 1001; i++) {
    well();
    budgets[1].parts[ISO_PART_DATA] = 1e-3 * (i % 100 + 1);
    step();
  }
  const iso_tally *data = iso_watch_tally(watch, 1, ISO_PART_DATA);
  assert_int_equal(data->count, 1000); /* the first step warms up */
  assert_true(fabs(iso_tally_mean(data) - 0.0505) < 1e-4);
  assert_true(fabs(iso_tally_deviation(data) - 0.028866) < 1e-4);
  const int percents[] = {50, 95, 99};
  for (int i = 0; i < 3; i++)
    assert_true(fabs(iso_tally_quantile(data, percents[i]) / (1e-3 * percents[i]) - 1) < 0.02);
  iso_string text = {0};
  iso_tally_print(data, &text);
  assert_non_null(strstr(text.data, "\"p95\": 0.09"));
  iso_string_fini(&text);
}

/* ---- sensors ---- */

static char root[128];

static void put(const char *path, const char *text) {
  char full[512];
  snprintf(full, sizeof full, "%s%s", root, path);
  *strrchr(full, '/') = 0;
  assert_int_equal(iso_path_make(full), ISO_OK);
  snprintf(full, sizeof full, "%s%s", root, path);
  assert_int_equal(iso_file_replace(full, text, strlen(text)), ISO_OK);
}

static void put_clock(const char *khz) {
  for (int cpu = 0; cpu < 256; cpu++) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", cpu);
    put(path, khz);
  }
}

/* Of all that was written before: what is as hot as this is read before control groups are, once a second. */
static void await_reading(iso_sensors *sensors, iso_evidence *e) {
  static int celsius = 20;
  char text[16];
  snprintf(text, sizeof text, "%d000\n", ++celsius);
  put("/sys/class/thermal/thermal_zone0/temp", text);
  for (int i = 0; i < 6000 && e->celsius != celsius; i++) {
    nanosleep(&(struct timespec){0, 10000000}, NULL);
    iso_sensors_get(sensors, e);
  }
  assert_true(e->celsius == celsius);
}

static void sensors_read_the_machine(void **state) {
  (void)state;
  scratch_make(root);
  put_clock("3200000\n");
  put("/sys/class/thermal/thermal_zone0/temp", "41000\n");
  put("/sys/class/thermal/thermal_zone1/temp", "57500\n");
  put("/proc/pressure/cpu",
      "some avg10=0.10 avg60=0.20 avg300=0.30 total=2500000\nfull avg10=0 avg60=0 avg300=0 total=7\n");
  put("/proc/pressure/memory", "some avg10=0 avg60=0 avg300=0 total=1500000\n");
  put("/proc/loadavg", "0.31 0.40 0.44 7/130 4711\n");
  put("/proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable:  400000 kB\nCached: 1000 kB\n");
  put("/proc/self/cgroup", "12:memory:/other\n0::/jobs/mine\n");
  put("/sys/fs/cgroup/jobs/mine/cpu.stat", "usage_usec 9\nnr_periods 8\nnr_throttled 1\nthrottled_usec 1000000\n");
  put("/sys/fs/cgroup/jobs/cpu.stat", "usage_usec 9\nnr_periods 8\nnr_throttled 7\nthrottled_usec 3500000\n");
  setenv("ISOTACH_SENSORS", root, 1);
  iso_sensors *sensors;
  iso_evidence e = {0};
  assert_int_equal(iso_sensors_start(&sensors), ISO_OK);
  while (e.at_s == 0) iso_sensors_get(sensors, &e);
  assert_true(e.throttled_s == 0); /* what was before is no matter */
  assert_true(fabs(e.clock_ghz - 3.2) < 1e-9 && e.celsius == 57.5 && e.pressure_cpu_s == 2.5);
  assert_true(e.pressure_memory_s == 1.5 && isnan(e.pressure_io_s) && e.running == 7);
  assert_true(e.memory_bytes == 16e9 / 1000 * 1024 && e.memory_available_bytes == 4e5 * 1024 && isnan(e.steal_s));
  put_clock("1600000\n");
  put("/sys/fs/cgroup/jobs/mine/cpu.stat", "usage_usec 9\nnr_periods 8\nnr_throttled 1\nthrottled_usec 1500000\n");
  put("/sys/fs/cgroup/jobs/cpu.stat", "usage_usec 9\nnr_periods 8\nnr_throttled 7\nthrottled_usec 4500000\n");
  put("/sys/class/thermal/thermal_zone1/temp", "99000\n");
  for (int i = 0; i < 6000 && (e.celsius != 99 || e.clock_ghz > 1.7); i++) { /* it reads once a second */
    nanosleep(&(struct timespec){0, 10000000}, NULL);
    iso_sensors_get(sensors, &e);
  }
  assert_true(e.throttled_s == 1); /* the group above it has a quota, too */
  assert_true(e.celsius == 99 && fabs(e.clock_ghz - 1.6) < 1e-9 && fabs(e.clock_best_ghz - 3.2) < 1e-9);
  iso_sensors_stop(&sensors);
  unsetenv("ISOTACH_SENSORS");
  scratch_remove(root);
}

static void sensors_read_older_groups(void **state) {
  (void)state;
  scratch_make(root);
  put("/proc/self/cgroup", "9:name=systemd:/\n3:cpuset,cpu,cpuacct:/jobs/mine\n0::/\n");
  put("/sys/fs/cgroup/cpu/jobs/mine/cpu.stat", "nr_periods 8\nnr_throttled 1\nthrottled_time 2500000000\n");
  put("/sys/fs/cgroup/cpu/cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n");
  setenv("ISOTACH_SENSORS", root, 1);
  iso_sensors *sensors;
  iso_evidence e = {0};
  assert_int_equal(iso_sensors_start(&sensors), ISO_OK);
  while (e.at_s == 0) iso_sensors_get(sensors, &e);
  assert_true(e.throttled_s == 0);
  put("/sys/fs/cgroup/cpu/jobs/mine/cpu.stat", "nr_periods 8\nnr_throttled 1\nthrottled_time 5000000000\n");
  await_reading(sensors, &e);
  assert_true(e.throttled_s == 2.5);
  iso_sensors_stop(&sensors);
  unsetenv("ISOTACH_SENSORS");
  scratch_remove(root);
}

/* A process may be moved into a group with a quota under way, and what that group was held back before is not its. */
static void sensors_follow_to_another_group(void **state) {
  (void)state;
  scratch_make(root);
  put("/proc/self/cgroup", "0::/\n");
  setenv("ISOTACH_SENSORS", root, 1);
  iso_sensors *sensors;
  iso_evidence e = {0};
  assert_int_equal(iso_sensors_start(&sensors), ISO_OK);
  while (e.at_s == 0) iso_sensors_get(sensors, &e);
  assert_true(isnan(e.throttled_s));
  put("/sys/fs/cgroup/held/cpu.stat", "nr_periods 8\nnr_throttled 1\nthrottled_usec 7000000\n");
  put("/proc/self/cgroup", "0::/held\n");
  await_reading(sensors, &e);
  assert_true(e.throttled_s == 0);
  put("/sys/fs/cgroup/held/cpu.stat", "nr_periods 8\nnr_throttled 1\nthrottled_usec 7500000\n");
  await_reading(sensors, &e);
  assert_true(e.throttled_s == 0.5);
  put("/sys/fs/cgroup/other/cpu.stat", "nr_periods 8\nnr_throttled 1\nthrottled_usec 90000000\n");
  put("/proc/self/cgroup", "0::/other\n");
  await_reading(sensors, &e);
  assert_true(e.throttled_s == 0.5);
  iso_sensors_stop(&sensors);
  unsetenv("ISOTACH_SENSORS");
  scratch_remove(root);
}

/* ---- a process that is stopped ---- */

/* The first reading behind cont_s; 0: it is of the files as they are then. */
static int look_behind_a_stop(const _Atomic double *cont_s, _Atomic bool *ready) {
  iso_sensors *sensors;
  iso_evidence e = {0};
  if (iso_sensors_start(&sensors) != ISO_OK) return 2;
  *ready = true;
  while (*cont_s == 0 || e.at_s <= *cont_s) iso_sensors_get(sensors, &e);
  const int code = e.pressure_cpu_s == 2 ? 0 : 1;
  iso_sensors_stop(&sensors);
  return code;
}

/* Shares are what counters grew by over the time between two readings, so no reading has a time of its own. */
static void a_reading_is_of_one_time(void **state) {
  (void)state;
  static const char total[] = "some avg10=0.10 avg60=0.20 avg300=0.30 total=%d\n";
  struct shared {
    _Atomic double cont_s;
    _Atomic bool ready;
  } *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(shared != MAP_FAILED);
  char text[96];
  int status;
  scratch_make(root);
  snprintf(text, sizeof text, total, 1000000);
  put("/proc/pressure/cpu", text);
  setenv("ISOTACH_SENSORS", root, 1);
  const pid_t child = fork();
  if (child == 0) _exit(look_behind_a_stop(&shared->cont_s, &shared->ready));
  while (!shared->ready) nanosleep(&(struct timespec){0, 1000000}, NULL);
  kill(child, SIGSTOP);
  assert_int_equal(waitpid(child, &status, WUNTRACED), child);
  assert_true(WIFSTOPPED(status));
  snprintf(text, sizeof text, total, 2000000);
  put("/proc/pressure/cpu", text);
  nanosleep(&(struct timespec){0, 100000000}, NULL); /* so long it is stopped at least */
  shared->cont_s = iso_clock_s();
  kill(child, SIGCONT);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
  munmap(shared, sizeof *shared);
  unsetenv("ISOTACH_SENSORS");
  scratch_remove(root);
}

static void sensors_of_this_machine(void **state) {
  (void)state;
  iso_sensors *sensors;
  iso_evidence e = {0};
  assert_int_equal(iso_sensors_start(&sensors), ISO_OK);
  while (e.at_s == 0) iso_sensors_get(sensors, &e);
  assert_true(e.processors >= 1 && e.running >= 1 && e.memory_available_bytes > 0 && e.memory_bytes > 0);
#if defined(__x86_64__)
  assert_true(e.clock_ghz > 0.1 && e.clock_ghz < 10);
#endif
  iso_sensors_stop(&sensors);
  assert_null(sensors);
}

/* ---- the stopwatch ---- */

static void parts_make_up_the_wall_time(void **state) {
  (void)state;
  iso_stopwatch w;
  iso_budget b;
  iso_stopwatch_start(&w);
  nanosleep(&(struct timespec){0, 2000000}, NULL);
  iso_stopwatch_lap(&w, ISO_PART_DATA);
  nanosleep(&(struct timespec){0, 3000000}, NULL);
  iso_stopwatch_within(&w, ISO_PART_STORAGE, 0.001);
  iso_stopwatch_leave_out(&w, 0.0005);
  iso_stopwatch_lap(&w, ISO_PART_OTHER);
  const iso_step program = {.compute_s = 0.004, .preempted_s = 0.001};
  nanosleep(&(struct timespec){0, 5000000}, NULL);
  iso_stopwatch_computed(&w, &program, NULL, 0.0005);
  iso_stopwatch_end(&w, &b);
  const double *p = b.parts;
  assert_true(p[ISO_PART_DATA] >= 0.002 && p[ISO_PART_OTHER] >= 0.0015 && p[ISO_PART_STORAGE] == 0.0015);
  assert_true(p[ISO_PART_COMPUTE] == 0.004 && p[ISO_PART_PREEMPTED] == 0.001 && p[ISO_PART_UNACCOUNTED] >= 0.0005);
  double sum = 0;
  for (int i = ISO_PART_COMPUTE; i <= ISO_PART_OTHER; i++) sum += p[i];
  assert_true(fabs(p[ISO_PART_WALL] - sum - p[ISO_PART_UNACCOUNTED]) < 1e-9);
  assert_false(iso_budget_closes(&b)); /* a program that forgets half a millisecond is seen */
  iso_stopwatch_lap(&w, ISO_PART_OTHER);
  iso_stopwatch_end(&w, &b);
  assert_true(b.parts[ISO_PART_COMPUTE] == 0 && iso_budget_closes(&b));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(what_is_well_is_not_said, end),
      cmocka_unit_test_teardown(one_bad_window_is_not_said, end),
      cmocka_unit_test_teardown(a_breach_is_said_when_it_begins_and_when_it_ends, end),
      cmocka_unit_test_teardown(the_source_that_costs_most_is_named, end),
      cmocka_unit_test_teardown(a_data_thread_without_a_core_is_preempted, end),
      cmocka_unit_test_teardown(a_late_source_of_another_rank, end),
      cmocka_unit_test(a_starved_step_says_where),
      cmocka_unit_test_teardown(a_stopped_rank, end),
      cmocka_unit_test_teardown(a_squeezed_rank, end),
      cmocka_unit_test(words_without_numbers),
      cmocka_unit_test_teardown(a_host_that_steals, end),
      cmocka_unit_test_teardown(a_memory_hog, end),
      cmocka_unit_test(a_memory_hog_that_takes_processors),
      cmocka_unit_test_teardown(what_is_constant_is_not_uneven, end),
      cmocka_unit_test_teardown(a_long_stop_counts_whole, end),
      cmocka_unit_test_teardown(one_slow_reading_is_no_slow_clock, end),
      cmocka_unit_test_teardown(no_share_is_above_one, end),
      cmocka_unit_test(one_is_no_plural),
      cmocka_unit_test_teardown(a_throttled_rank, end),
      cmocka_unit_test_teardown(a_rank_without_a_reason, end),
      cmocka_unit_test_teardown(a_clock_that_drops, end),
      cmocka_unit_test_teardown(a_slow_disk, end),
      cmocka_unit_test_teardown(an_s3_that_fails, end),
      cmocka_unit_test_teardown(another_rank_is_said_again, end),
      cmocka_unit_test_teardown(another_cause_is_said_again, end),
      cmocka_unit_test_teardown(blame_does_not_chatter, end),
      cmocka_unit_test_teardown(a_value_says_what_it_is, end),
      cmocka_unit_test_teardown(what_is_not_known_is_not_said, end),
      cmocka_unit_test_teardown(what_is_out_ends_with_its_start, end),
      cmocka_unit_test_teardown(the_rank_that_is_waited_for_is_known, end),
      cmocka_unit_test_teardown(nobody_is_waited_for_by_itself, end),
      cmocka_unit_test_teardown(tallies_are_those_of_the_steps, end),
      cmocka_unit_test(sensors_read_the_machine),
      cmocka_unit_test(sensors_read_older_groups),
      cmocka_unit_test(sensors_follow_to_another_group),
      cmocka_unit_test(a_reading_is_of_one_time),
      cmocka_unit_test(sensors_of_this_machine),
      cmocka_unit_test(parts_make_up_the_wall_time),
  };
  return cmocka_run_group_tests_name("signs", tests, NULL, NULL);
}
