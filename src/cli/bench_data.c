/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach bench data: does the data ring keep up with a run, and what does it take from it?
 *
 * The real training step of a config runs in pairs of stretches, in the order ring, filled, filled, ring, ...: one on
 * batches from the ring, one on batches that were all filled beforehand, with the data threads at rest. Both begin with
 * the same number of untimed steps. Between its stretches the ring stands still as it is, so that all of them together
 * are one run, in which data threads do as much as is used up; before the first one it is run until what it held at the
 * start is gone. The ratio is the median over the pairs, which disturbances of the machine leave alone.
 *
 * With --tokens-per-s there is no model: batches are taken at that pace, as a step on another machine would. Nothing is
 * written to the run's folder.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"

enum { LEAST_STEPS = 10, LEAST_PAIRS = 10, MOST_PAIRS = 100, MOST_FILLED = 64 };
#define ALL_S        5            /* of the timed steps of each kind, when nothing else is asked for */
#define FILLED_BYTES (64LL << 20) /* of batches filled beforehand */

typedef struct bench {
  const char *config_path;
  int64_t steps; /* 0: as many as ALL_S asks for */
  bool on_demand, json;
  double pace; /* tokens/s; 0: the real step */
  iso_config config;
  iso_run run;
  iso_ring *ring;
  int64_t lead;  /* untimed steps before each stretch */
  double *loads; /* of timed steps with the ring, seconds */
  int64_t loaded, starved;
  double starved_s; /* the longest wait of a starved one: in which stage, of which source */
  const char *starved_stage, *starved_source;
  iso_slot filled[MOST_FILLED]; /* copies of the first batches */
  int64_t filled_count;
  double ratios[MOST_PAIRS];
  int pairs;
  double ring_s, filled_s; /* of all timed steps */
  double data_cpu_s;       /* processor time of the data threads in them */
} bench;

static double step_tokens(const bench *b) {
  return (double)(b->config.batch.sequences * b->config.data.sequence);
}

/* ---- the two kinds of step ---- */

static iso_status compute(bench *b, const iso_slot *slot) {
  iso_step step;
  iso_run_step_prepare(&b->run, slot, &step);
  iso_exec_step(b->run.engine.exec, &step);
  b->run.at.step++;
  if (step.refused) return iso_fail(ISO_ERR_NUMERIC, "bench data: step %lld is not finite", (long long)b->run.at.step);
  b->run.at.adam_step++;
  return ISO_OK;
}

/* waited_s: what taking the batch took; may be NULL. */
static iso_status ring_step(bench *b, bool timed, double *waited_s) {
  iso_slot *slot;
  double load_s;
  iso_ring_waits before, after;
  iso_ring_waits_get(b->ring, &before);
  ISO_TRY(iso_ring_take(b->ring, &slot, &load_s));
  iso_ring_waits_get(b->ring, &after);
  if (waited_s) *waited_s = load_s;
  if (timed) {
    b->loads[b->loaded++] = load_s;
  }
  if (timed && after.dry > before.dry) {
    b->starved++;
    if (after.last_wait_s > b->starved_s)
      b->starved_s = after.last_wait_s, b->starved_stage = after.last_stage, b->starved_source = after.last_source;
  }
  const iso_status status = b->pace > 0 ? ISO_OK : compute(b, slot);
  iso_ring_release(b->ring, slot);
  return status;
}

static iso_status steps_of(bench *b, int64_t steps, bool from_ring, bool timed) {
  for (int64_t i = 0; i < steps; i++)
    ISO_TRY(from_ring ? ring_step(b, timed, NULL) : compute(b, &b->filled[i % b->filled_count]));
  return ISO_OK;
}

static iso_status stretch(bench *b, int64_t steps, bool from_ring, double *seconds) {
  if (from_ring) iso_ring_pause(b->ring, false);
  ISO_TRY(steps_of(b, b->lead, from_ring, false));
  const double began = iso_clock_s(), cpu = iso_ring_cpu_s(b->ring);
  ISO_TRY(steps_of(b, steps, from_ring, true));
  *seconds = iso_clock_s() - began;
  if (from_ring) b->data_cpu_s += iso_ring_cpu_s(b->ring) - cpu;
  if (from_ring) iso_ring_pause(b->ring, true);
  return ISO_OK;
}

/* Until the ring is as it will be, and the machine as warm. */
static iso_status warm_up(bench *b) {
  const double began = iso_clock_s();
  const int64_t steps = b->on_demand ? b->lead : 2 * b->run.data.slots;
  ISO_TRY(steps_of(b, steps, true, false));
  if (b->steps > 0) return ISO_OK;
  const double all = ALL_S * (double)steps / (iso_clock_s() - began);
  b->steps = all > LEAST_PAIRS * LEAST_STEPS ? (int64_t)all : LEAST_PAIRS * LEAST_STEPS;
  return ISO_OK;
}

static iso_status make_room(bench *b) {
  b->loads = calloc((size_t)b->steps + 2 * MOST_PAIRS, sizeof *b->loads);
  if (b->loads) return ISO_OK;
  return iso_fail(ISO_ERR_MEMORY, "bench data: no memory for %lld times", (long long)b->steps);
}

static iso_status run_pairs(bench *b) {
  ISO_TRY(warm_up(b));
  ISO_TRY(make_room(b));
  const int64_t pairs = b->steps / LEAST_STEPS;
  b->pairs = (int)(pairs < 1 ? 1 : pairs > MOST_PAIRS ? MOST_PAIRS : pairs);
  const int64_t each = (b->steps + b->pairs - 1) / b->pairs;
  iso_ring_pause(b->ring, true);
  for (int p = 0; p < b->pairs; p++) {
    double seconds[2];
    for (int half = 0; half < 2; half++) { /* ABBA: drift of the machine falls on both alike */
      const bool from_ring = (half == 0) == (p % 2 == 0);
      ISO_TRY(stretch(b, each, from_ring, &seconds[from_ring]));
    }
    b->ring_s += seconds[1];
    b->filled_s += seconds[0];
    b->ratios[p] = seconds[0] / seconds[1];
  }
  b->steps = each * b->pairs;
  return ISO_OK;
}

static void sleep_until(double when_s) {
  for (double left; (left = when_s - iso_clock_s()) > 0;) {
    const struct timespec time = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
    nanosleep(&time, NULL);
  }
}

static iso_status run_paced(bench *b) {
  const double step_s = step_tokens(b) / b->pace;
  if (b->steps == 0) b->steps = LEAST_STEPS * LEAST_PAIRS;
  ISO_TRY(make_room(b));
  double due = iso_clock_s(), began = due;
  for (int64_t i = 0; i < b->lead + b->steps; i++) {
    double waited_s;
    if (i == b->lead) began = iso_clock_s(), b->data_cpu_s = -iso_ring_cpu_s(b->ring);
    ISO_TRY(ring_step(b, i >= b->lead, &waited_s));
    due += step_s + waited_s; /* what was waited for is not caught up */
    sleep_until(due);
  }
  b->ring_s = iso_clock_s() - began;
  b->data_cpu_s += iso_ring_cpu_s(b->ring);
  b->filled_s = (double)b->steps * step_s;
  b->ratios[b->pairs++] = b->filled_s / b->ring_s;
  return ISO_OK;
}

/* ---- the run ---- */

/* As many different batches as memory allows, copied before anything is timed. */
static iso_status fill_beforehand(bench *b) {
  const size_t ids = (size_t)step_tokens(b), batch = (size_t)b->config.batch.sequences;
  const int64_t fit = FILLED_BYTES / (4 * (int64_t)(ids * sizeof(int32_t)));
  const int64_t count = fit > MOST_FILLED ? MOST_FILLED : fit > b->config.data.slots ? fit : b->config.data.slots;
  for (int64_t i = 0; i < count; i++) {
    iso_slot *slot, *copy = &b->filled[i];
    double wait_s;
    int32_t *arrays = malloc(4 * ids * sizeof *arrays);
    copy->tokens = arrays;
    copy->scored = malloc(batch * sizeof *copy->scored);
    b->filled_count++;
    if (!arrays || !copy->scored)
      return iso_fail(ISO_ERR_MEMORY, "bench data: no memory for %lld batches", (long long)count);
    copy->labels = arrays + ids, copy->positions = arrays + 2 * ids, copy->segments = arrays + 3 * ids;
    ISO_TRY(iso_ring_take(b->ring, &slot, &wait_s));
    memcpy(copy->tokens, slot->tokens, ids * sizeof *arrays);
    memcpy(copy->labels, slot->labels, ids * sizeof *arrays);
    memcpy(copy->positions, slot->positions, ids * sizeof *arrays);
    memcpy(copy->segments, slot->segments, ids * sizeof *arrays);
    memcpy(copy->scored, slot->scored, batch * sizeof *copy->scored);
    iso_ring_release(b->ring, slot);
  }
  return ISO_OK;
}

static iso_status measure(bench *b) {
  b->lead = 2 * b->config.data.slots;
  ISO_TRY(iso_ring_start(b->run.corpus, &b->run.data, 1, NULL, &b->ring));
  iso_ring_settle(b->ring, b->run.data.slots, INFINITY);
  if (b->pace > 0) return run_paced(b);
  ISO_TRY(fill_beforehand(b));
  return run_pairs(b);
}

static double quantile_ms(const bench *b, int percent) {
  return 1e3 * iso_quantile(b->loads, b->loaded, percent);
}

static iso_status print_result(bench *b) {
  iso_sort(b->loads, b->loaded);
  iso_ring_plan plan;
  iso_ring_plan_get(&b->run.data, false, &plan);
  const double ratio = iso_median(b->ratios, b->pairs), tokens = (double)b->steps * step_tokens(b);
  const char *mode = b->run.data.on_demand ? "on demand" : "ring";
  if (!b->json) {
    printf("%s: %s, %lld steps of %.0f tokens: %.1f tokens/s, %.4f of the same with all batches filled beforehand\n",
           b->config_path, mode, (long long)b->steps, step_tokens(b), tokens / b->ring_s, ratio);
    printf("taking a batch: P50 %.4f ms, P95 %.4f ms, longest %.4f ms; %lld of %lld steps starved%s%s%s%s\n",
           quantile_ms(b, 50), quantile_ms(b, 95), quantile_ms(b, 100), (long long)b->starved, (long long)b->loaded,
           b->starved ? ", the longest at: " : "", b->starved_stage, b->starved ? " of " : "", b->starved_source);
    printf("data threads: %.4f ms of one core a step, %.3f%% of it\n", 1e3 * b->data_cpu_s / (double)b->steps,
           100 * b->data_cpu_s / b->ring_s);
    return ISO_OK;
  }
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "config", b->config_path);
  iso_json_put_text(&out, "mode", mode);
  iso_json_put_bool(&out, "on_demand", b->run.data.on_demand);
  iso_json_put_int(&out, "steps", b->steps);
  iso_json_put_int(&out, "pairs", b->pace > 0 ? 0 : b->pairs);
  iso_json_put_real(&out, "step_tokens", step_tokens(b));
  iso_json_put_real(&out, "load_p50_ms", quantile_ms(b, 50));
  iso_json_put_real(&out, "load_p95_ms", quantile_ms(b, 95));
  iso_json_put_real(&out, "load_max_ms", quantile_ms(b, 100));
  iso_json_put_int(&out, "starved_steps", b->starved);
  iso_json_put_text(&out, "starved_stage", b->starved_stage);
  iso_json_put_text(&out, "starved_source", b->starved_source);
  iso_json_put_real(&out, "tokens_per_s", tokens / b->ring_s);
  iso_json_put_real(&out, "prefilled_tokens_per_s", tokens / b->filled_s);
  iso_json_put_real(&out, "prefilled_ratio", ratio);
  iso_json_put_real(&out, "paced_tokens_per_s", b->pace);
  iso_json_put_real(&out, "data_cpu_ms_per_step", 1e3 * b->data_cpu_s / (double)b->steps);
  iso_json_put_int(&out, "slots", b->run.data.slots);
  iso_json_put_int(&out, "data_threads", b->config.data.threads);
  iso_json_put_int(&out, "slot_bytes", (int64_t)plan.slots);
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status run(bench *b) {
  iso_status status = b->pace > 0 ? iso_run_open_inputs(&b->config, &b->run) : iso_run_open_dry(&b->config, &b->run);
  if (status != ISO_OK) return status;
  status = measure(b);
  if (status == ISO_OK) status = print_result(b);
  iso_ring_stop(&b->ring);
  for (int64_t i = 0; i < b->filled_count; i++) {
    free(b->filled[i].tokens);
    free(b->filled[i].scored);
  }
  free(b->loads);
  iso_run_close(&b->run);
  return status;
}

iso_status iso_verb_bench_data(iso_args *args) {
  bench b = {.starved_stage = "", .starved_source = ""};
  const iso_flag flags[] = {
      {"steps", ISO_FLAG_INT, &b.steps, "timed steps of each kind; 0: 100, or more for 5 s (0)", 0, 1e7},
      {"on-demand", ISO_FLAG_BOOL, &b.on_demand, "each step reads and tokenizes its batch itself (data.on_demand)", 0,
       0},
      {"tokens-per-s", ISO_FLAG_REAL, &b.pace, "no model: batches are taken at this pace; 0: the real step (0)", 0,
       1e12},
      {"json", ISO_FLAG_BOOL, &b.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, -1));
  if (args->help) return ISO_OK;
  b.config_path = args->words[0];
  ISO_TRY(iso_config_read(args->words[0], args->words + 1, args->word_count - 1, &b.config));
  if (b.on_demand) b.config.data.on_demand = true;
  const iso_status status = run(&b);
  iso_config_fini(&b.config);
  return status;
}
