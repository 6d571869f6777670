/* SPDX-License-Identifier: Apache-2.0
 *
 * The training loop: take a batch, run the step's program, account, sometimes evaluate or write a snapshot. This file
 * shows the whole of a run.
 */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "train/health.h"
#include "train/tracing.h"
#include "train/vitals/vitals.h"

#define LOOK_EVERY_S 10.0 /* at how much of the time data took */
#define TRACE_S      10.0 /* of steps, when SIGUSR2 asks for a trace */
#define FILL_S       0.2  /* that filling the ring may take of a start */

static volatile sig_atomic_t stop_signal, snapshot_signal, trace_signal;
static volatile sig_atomic_t launched; /* by mpirun or srun, which signal again and again */

static const double SAME_S = 0.02; /* timeout(1) and others signal a process and its group: that is one signal */

static void on_signal(int number) {
  static volatile double first_s;
  if (stop_signal && (launched || iso_clock_s() - first_s < SAME_S)) return;
  if (stop_signal) _Exit(128 + number); /* the second one ends at once; the newest snapshot stands */
  first_s = iso_clock_s();
  stop_signal = number;
  iso_blob_interrupt(true); /* reads of a service that stands still are not waited for */
}

static void on_snapshot_signal(int number) {
  snapshot_signal = number;
}

static void on_trace_signal(int number) {
  trace_signal = number;
}

typedef struct loop {
  iso_run *run;
  iso_train_result *result;
  iso_ring *ring;
  iso_metrics *metrics;
  iso_lines *skipped;
  iso_progress progress;
  int64_t last_step, refused_in_row;
  int64_t told;          /* held-out documents that an evaluation has read */
  int parts;             /* ranks that compute at the same time */
  double flop_per_token; /* counting it again takes longer than all else that a step's line says */
  double peak_gflops, peak_measured_s;
  iso_stopwatch watch;
  iso_health *health;             /* while steps are taken, and until they are reported */
  bool metrics_kept;              /* lines of metrics.jsonl wait in memory */
  bool state_good;                /* if take_step fails now, the state is that of the last step taken */
  double tokens_per_s, data_wait; /* smoothed; data_wait: share of the time */
  iso_late late;                  /* the same, smoothed as seconds */
  iso_ring_waits waits;           /* so far */
  iso_tracing *tracing;           /* NULL: steps are not traced */
  iso_step_times next;            /* of the step to come, what was before it began */
  iso_outputs *outputs;           /* NULL: none is asked for */
  int64_t starved_told;           /* of its starved takes, those that a line has told of */
  double look_s, look_wait_s;     /* of the time since look_s, what data took */
  double started_s;               /* when this start began */
  iso_starts starts;              /* what they said of themselves; this one, too */
  iso_history history;            /* of all starts, once steps are over */
  iso_verdict verdict;            /* then */
  int64_t memory_bytes;           /* resident, at memory_s */
  double memory_s;
} loop;

static void measure_peak(loop *l) {
  const double peak = iso_device_peak(l->run->device, l->run->engine.options.compute) * (double)l->parts;
  if (peak > l->peak_gflops) l->peak_gflops = peak;
  l->peak_measured_s = iso_clock_s();
}

static double mfu(const loop *l, double tokens_per_s) {
  if (l->peak_gflops <= 0) return 0;
  return tokens_per_s * l->flop_per_token / (l->peak_gflops * 1e9);
}

int64_t iso_run_last_step(const iso_config *config) {
  return config->stop_at && config->stop_at < config->steps ? config->stop_at : config->steps;
}

/* At the peak; 0 when that is unknown. */
static double least_step_s(const loop *l) {
  const iso_config *config = &l->run->config;
  const double tokens = (double)(config->batch.sequences * config->data.sequence);
  const double flop = tokens * l->flop_per_token;
  return l->peak_gflops > 0 ? flop / (l->peak_gflops * 1e9) : 0;
}

void iso_run_step_prepare(const iso_run *run, const iso_slot *slot, iso_step *step) {
  const iso_config *config = &run->config;
  memset(step, 0, sizeof *step);
  step->inputs = (iso_inputs){slot->tokens, slot->labels, slot->positions, slot->segments};
  step->workers = run->workers;
  step->micros = run->micros;
  for (int64_t b = 0; b < config->batch.sequences; b++) step->scored += slot->scored[b];
  step->lr = (float)iso_learning_rate(config, run->at.step + 1);
  step->beta1 = (float)config->optimizer.beta1;
  step->beta2 = (float)config->optimizer.beta2;
  step->eps = (float)config->optimizer.eps;
  step->weight_decay = (float)config->optimizer.weight_decay;
  step->clip_norm = (float)config->optimizer.clip_norm;
  step->bias1 = (float)(1 - iso_pow_int(config->optimizer.beta1, run->at.adam_step + 1));
  step->bias2 = (float)(1 - iso_pow_int(config->optimizer.beta2, run->at.adam_step + 1));
  step->decay_ranges = run->decay_ranges;
  step->decay_count = run->decay_count;
}

void iso_run_step_commit(iso_run *run, const iso_slot *slot, const iso_step *step) {
  run->at.step++;
  run->at.tokens += step->scored;
  memcpy(run->at.cursors, slot->cursors, run->at.cursor_count * sizeof *run->at.cursors);
  if (step->refused) {
    run->at.refused++;
  } else {
    run->at.adam_step++;
  }
}

/* Lines that the storage does not take are kept for later, as long as training may go on without it. */
static iso_status append_metrics(loop *l, const iso_step_metrics *m) {
  const iso_run *run = l->run;
  const iso_status status = iso_metrics_append(l->metrics, m);
  const bool storage = status == ISO_ERR_IO || status == ISO_ERR_SPACE;
  const bool goes_on = storage && strcmp(run->config.log.when_slow, "stop") != 0;
  if (goes_on && !l->metrics_kept)
    iso_warn("%s: metrics.jsonl cannot be written (see above); its lines are kept in memory meanwhile",
             run->config.run);
  l->metrics_kept = goes_on;
  return goes_on ? ISO_OK : status;
}

/* Asking takes longer than all other numbers of a step together. */
static int64_t memory(loop *l) {
  const double now = iso_clock_s();
  if (now - l->memory_s < 0.5) return l->memory_bytes;
  l->memory_s = now;
  return l->memory_bytes = iso_memory_resident();
}

static iso_status account(loop *l, const iso_step *step, iso_step_metrics *m) {
  iso_run *run = l->run;
  ISO_TRY(iso_incarnation_check(run->config.run, run->incarnation.number)); /* replaced: its lines do not count */
  ISO_TRY(iso_lock_check(run->lock));                                       /* about to be */
  const iso_config *config = &run->config;
  const double batch_tokens = (double)(config->batch.sequences * config->data.sequence);
  m->step = run->at.step;
  m->tokens = run->at.step * config->batch.sequences * config->data.sequence;
  m->loss = step->scored ? step->loss_sum / (double)step->scored : 0;
  m->lr = iso_learning_rate(config, run->at.step);
  m->grad_norm = step->norm;
  const double wall_s = m->budget.parts[ISO_PART_WALL];
  m->tokens_per_s = batch_tokens / wall_s;
  m->mfu = mfu(l, m->tokens_per_s);
  m->refused = step->refused;
  m->durable_step = run->durable_step;
  m->incarnation = run->incarnation.number;
  m->ring_depth = iso_ring_depth(l->ring);
  l->data_wait = 0.9 * l->data_wait + 0.1 * m->budget.parts[ISO_PART_DATA] / wall_s;
  l->tokens_per_s = l->tokens_per_s > 0 ? 0.9 * l->tokens_per_s + 0.1 * m->tokens_per_s : m->tokens_per_s;
  iso_late_stage stage;
  int source;
  iso_late_fade(&l->late, 0.9);
  iso_late_add(&l->late, &m->budget);
  const bool late = iso_late_most(&l->late, ISO_LATE_SCHEDULE, &stage, &source);
  l->result->loss = m->loss;
  const iso_progress_step shown = {m->step,
                                   config->steps,
                                   m->tokens,
                                   run->durable_step,
                                   m->loss,
                                   m->lr,
                                   l->tokens_per_s,
                                   mfu(l, l->tokens_per_s),
                                   (double)(config->steps - m->step) * batch_tokens / l->tokens_per_s,
                                   memory(l),
                                   m->refused,
                                   l->data_wait,
                                   late ? iso_late_names[stage] : "",
                                   late ? run->sources[source].path : ""};
  iso_health_fill(l->health, m);
  iso_outputs_step(l->outputs, m);
  if (!run->options.quiet) iso_progress_show(&l->progress, &shown, m->step == l->last_step || stop_signal);
  ISO_TRY(append_metrics(l, m));
  iso_health_step(l->health, m, &shown, &l->progress);
  iso_outputs_health(l->outputs, l->health);
  return ISO_OK;
}

static iso_status check_refused(loop *l, const iso_step *step) {
  const iso_run *run = l->run;
  if (!step->refused) {
    l->refused_in_row = 0;
    return ISO_OK;
  }
  iso_progress_end(&l->progress);
  iso_warn("step %lld is refused: %s; weights and moments are unchanged, data and schedule go on",
           (long long)run->at.step,
           step->scored == 0 ? "no token of its batch is scored" : "its loss or gradient is not finite");
  if (++l->refused_in_row <= run->config.optimizer.max_refused) return ISO_OK;
  return iso_fail(ISO_ERR_NUMERIC,
                  "%s: %lld steps in a row were not finite (optimizer.max_refused = %lld); lower optimizer.lr or go "
                  "back to an earlier snapshot",
                  run->config.run, (long long)l->refused_in_row, (long long)run->config.optimizer.max_refused);
}

/* The batch of this step was not there when it was due. */
static void note_starved(loop *l, iso_step_metrics *m) {
  const int64_t before = l->waits.dry;
  iso_ring_waits_get(l->ring, &l->waits);
  m->starved = l->waits.dry > before;
  m->starved_stage = l->waits.last_stage;
  m->starved_source = l->waits.last_source;
  if (m->starved) iso_stopwatch_starved(&l->watch, &l->waits, &l->run->data);
}

/* The first starved step is told of at once, later ones every now and then: what the line asks for depends on how much
 * of the time since the one before was waited. */
static void check_starved(loop *l, const iso_step_metrics *m) {
  const double now = iso_clock_s(), seconds = now - l->look_s;
  const bool first = l->starved_told == 0 && m->starved, due = seconds >= LOOK_EVERY_S;
  const iso_ring_waits *waits = &l->waits;
  l->look_wait_s += m->budget.parts[ISO_PART_DATA];
  if (!first && !due) return;
  const double share = l->look_wait_s / seconds;
  const int64_t fresh = waits->dry - l->starved_told;
  l->look_s = now;
  l->look_wait_s = 0;
  if (fresh == 0 || l->run->data.on_demand) return;
  l->starved_told = waits->dry;
  iso_progress_end(&l->progress);
  iso_warn(
      "step %lld: %lld of %lld batches came late, %lld of them in the last %.1f s, which waited %.2f%% of the time "
      "for data (last for %.3f ms, at: %s of \"%s\")%s%s",
      (long long)m->step, (long long)waits->dry, (long long)waits->takes, (long long)fresh, seconds, 100 * share,
      1e3 * waits->last_wait_s, waits->last_stage, waits->last_source, share < 0.01 ? "" : "; raise data.threads",
      share >= 0.01 && strcmp(waits->last_stage, "read") == 0 ? " or data.prefetch" : "");
}

/* All of this start, unless the last line said it all. */
static void sum_up_starved(const loop *l) {
  const iso_ring_waits *waits = &l->waits;
  if (waits->dry == 0 || (waits->dry == 1 && l->starved_told == 1)) return;
  iso_warn("%s: %lld of %lld steps starved: their batch came late; the longest wait was %.3f ms, at: %s of \"%s\"",
           l->run->config.run, (long long)waits->dry, (long long)waits->takes, 1e3 * waits->longest_wait_s,
           waits->stage, waits->source);
}

static iso_status evaluate(loop *l, int64_t max_bytes, iso_evaluation *out) {
  iso_run *run = l->run;
  iso_validation *validation;
  ISO_TRY(iso_validation_open(run->corpus, max_bytes, &l->told, &validation));
  const iso_status status = iso_evaluate(&run->engine, validation, -1, out);
  iso_validation_close(&validation);
  if (status != ISO_OK || run->options.quiet) return status;
  iso_progress_end(&l->progress);
  printf("evaluation at step %lld: loss %.4f, perplexity %.2f, %.4f bits per byte (%lld bytes, %lld tokens)\n",
         (long long)run->at.step, iso_unsigned_nan(out->loss), iso_unsigned_nan(out->perplexity),
         iso_unsigned_nan(out->bits_per_byte), (long long)out->bytes, (long long)out->tokens);
  fflush(stdout);
  return ISO_OK;
}

/* Evaluation and the measurement of the peak are no part of any step's time. */
static iso_status after_step(loop *l) {
  iso_run *run = l->run;
  bool wanted; /* to end a suspension of the log */
  double waited_s = 0;
  ISO_TRY(iso_run_log_poll(run, &wanted));
  ISO_TRY(iso_run_mirror_poll(run, &wanted, &waited_s));
  iso_step_times_wait(&l->next, ISO_WAIT_STORAGE, waited_s, iso_clock_s());
  if (snapshot_signal) {
    snapshot_signal = 0;
    run->snapshots.asked = true;
  }
  /* Counted in the next step: this one's line is written first, so a kill in between leaves no durable step without. */
  double snapshot_s = 0;
  ISO_TRY(iso_run_snapshots_step(run, wanted, &snapshot_s));
  iso_step_times_wait(&l->next, ISO_WAIT_STORAGE, snapshot_s, iso_clock_s());
  iso_stopwatch_within(&l->watch, ISO_PART_STORAGE, waited_s + snapshot_s);
  const double began = iso_clock_s();
  const int64_t every = run->config.evaluate.every;
  if (every && run->at.step % every == 0 && run->at.step < l->last_step && run->engine.evaluation)
    ISO_TRY(evaluate(l, run->config.evaluate.max_bytes, &(iso_evaluation){0}));
  if (began - l->peak_measured_s > 30) measure_peak(l);
  l->next.left_began_s = began;
  l->next.left_ended_s = iso_clock_s();
  iso_stopwatch_leave_out(&l->watch, l->next.left_ended_s - began);
  return ISO_OK;
}

/* Ends a trace whose time is over, and begins one that was asked for, once the one before is written. */
static void trace(loop *l, const iso_step_times *times) {
  const double began = iso_clock_s();
  if (l->tracing && iso_tracing_step(l->tracing, times, l->ring)) {
    iso_tracing_end(l->tracing);
    iso_stopwatch_leave_out(&l->watch, iso_clock_s() - began); /* no part of a step's time */
  }
  if (iso_tracing_is_written(l->tracing)) {
    iso_progress_end(&l->progress);
    iso_tracing_close(&l->tracing);
  }
  if (!trace_signal || l->tracing) return;
  trace_signal = 0;
  (void)!iso_tracing_begin(l->run, TRACE_S, l->watch.began_s, &l->tracing);
}

static iso_status take_step(loop *l) {
  iso_run *run = l->run;
  iso_stopwatch *watch = &l->watch;
  iso_step_times times = l->next;
  iso_step_metrics m = {0};
  iso_slot *slot;
  double wait_s = 0;
  l->next = (iso_step_times){0};
  times.began_s = watch->began_s;
  l->state_good = true; /* until something after the batch fails */
  times.take_s = iso_stopwatch_lap(watch, ISO_PART_OTHER);
  ISO_TRY(iso_ring_take(l->ring, &slot, &wait_s));
  times.taken_s = iso_stopwatch_lap(watch, ISO_PART_DATA);
  note_starved(l, &m);
  iso_step step;
  iso_run_step_prepare(run, slot, &step);
  const double prepared_s = iso_stopwatch_lap(watch, ISO_PART_OTHER);
  ISO_TRY(iso_run_log_begin(run, &wait_s));
  times.begin_s = iso_stopwatch_lap(watch, ISO_PART_STORAGE);
  iso_step_times_wait(&times, ISO_WAIT_STORAGE, times.begin_s - prepared_s, times.begin_s);
  iso_outputs_begin(l->outputs, l->tracing != NULL);
  iso_exec_step(run->engine.exec, &step);
  l->state_good = !step.torn;
  if (step.status != ISO_OK) return step.status;
  const double gate_wait_s = iso_run_snapshots_waited(run);
  iso_step_times_computed(&times, &step, iso_stopwatch_computed(watch, &step, run->options.ranks, gate_wait_s));
  iso_run_step_commit(run, slot, &step);
  l->state_good = false;
  if (slot->skipped_count) iso_progress_end(&l->progress);
  ISO_TRY(iso_skipped_append(run->config.run, &l->skipped, slot, run->sources));
  iso_ring_release(l->ring, slot);
  times.ended_s = iso_stopwatch_lap(watch, ISO_PART_OTHER);
  iso_stopwatch_end(watch, &m.budget);
  times.wall_s = m.budget.parts[ISO_PART_WALL];
  times.compute_s = m.budget.parts[ISO_PART_COMPUTE];
  times.storage_wait_s = m.budget.parts[ISO_PART_STORAGE];
  times.reduce_wait_s = m.budget.parts[ISO_PART_REDUCE];
  ISO_TRY(account(l, &step, &m)); /* before the log has it: a durable step has its line */
  check_starved(l, &m);
  l->state_good = true;
  ISO_TRY(iso_run_log_append(run, &step));
  ISO_TRY(check_refused(l, &step));
  l->state_good = false;
  ISO_TRY(after_step(l));
  trace(l, &times);
  return ISO_OK;
}

/* Everything taken so far is in the log. */
static bool log_is_complete(const loop *l) {
  iso_run *run = l->run;
  bool wanted;
  if (!run->wal) return false;
  return iso_run_log_flush(run) && iso_run_log_poll(run, &wanted) == ISO_OK && run->here_step == run->at.step;
}

/* All that steps need beside the run. */
static iso_status open_steps(loop *l) {
  iso_run *run = l->run;
  const iso_data_cursor *cursors = run->at.step ? (const iso_data_cursor *)(const void *)run->at.cursors : NULL;
  iso_skipped *known;
  iso_status listed = iso_skipped_open(run->config.run, run->at.step, &l->skipped, &known, &run->data.known_count);
  run->data.known = known;
  if (listed == ISO_OK) listed = iso_ring_start(run->corpus, &run->data, run->at.step + 1, cursors, &l->ring);
  free(known);
  run->data.known = NULL;
  run->data.known_count = 0;
  ISO_TRY(listed);
  ISO_TRY(iso_metrics_open(run->config.run, run->at.step, &l->metrics));
  ISO_TRY(iso_outputs_open(run, &l->outputs));
  ISO_TRY(iso_health_open(run, &l->health));
  ISO_TRY(iso_status_write(run->config.run, "running", -1, run->at.step, run->durable_step, run->incarnation.number,
                           iso_run_is_power_safe(run)));
  iso_ring_settle(l->ring, 1, INFINITY); /* reading the first batch is part of starting, not of a step */
  iso_ring_settle(l->ring, run->data.slots, FILL_S);
  return iso_run_snapshots_open(run, least_step_s(l));
}

/* With ranks a signal counts when all have agreed on the step that is the last one. */
static bool stops(const loop *l) {
  const iso_ranks *ranks = l->run->options.ranks;
  return ranks ? iso_ranks_stop(ranks) : stop_signal;
}

/* A run that was stopped, also by data or numbers, ends with its last step durable: in the log, else by a snapshot. One
 * that is complete ends with a snapshot. */
static iso_status run_steps(loop *l) {
  iso_run *run = l->run;
  iso_ranks *ranks = run->options.ranks;
  if (ranks) ISO_TRY(iso_ranks_announce(ranks));
  if (ranks) ISO_TRY(iso_ranks_begin(ranks, run, ISO_OK, l->last_step, &stop_signal));
  iso_status status = open_steps(l);
  if (ranks) status = iso_ranks_ready(ranks, status);
  ISO_TRY(status);
  if (ranks) (void)iso_ranks_waited(ranks); /* for their start */
  if (run->options.trace_s > 0) ISO_TRY(iso_tracing_begin(run, run->options.trace_s, iso_clock_s(), &l->tracing));
  iso_starts_begin(&l->starts, run, iso_clock_s() - l->started_s, l->peak_gflops);
  iso_stopwatch_start(&l->watch);
  l->look_s = l->watch.began_s;
  while (status == ISO_OK && run->at.step < l->last_step && !stops(l)) status = take_step(l);
  if (ranks && status != ISO_OK) status = iso_ranks_refuse(ranks, status);
  iso_progress_end(&l->progress);
  iso_tracing_end(l->tracing);
  sum_up_starved(l);
  if (iso_ranks_lost(ranks) && log_is_complete(l)) return status; /* mpirun leaves a second to those that remain */
  const iso_status ended = iso_run_snapshots_finish(run);
  if (status == ISO_OK) status = ended;
  if (run->snapshot_step == run->at.step || (status != ISO_OK && !l->state_good)) return status;
  if (log_is_complete(l) && run->at.step < l->last_step) return status;
  const iso_status written = iso_run_snapshots_last(run);
  return status == ISO_OK ? written : status;
}

/* What was fused, and what finding that out took of the run: its length is at least that at the measured peak. */
static void print_fusion(const loop *l) {
  const iso_run *run = l->run;
  const iso_graph *graph = iso_engine_graph(&run->engine);
  const int64_t steps = run->config.steps - run->at.step;
  const double least_s = (double)steps * least_step_s(l), compile_s = run->engine.compile_s;
  iso_string text = {0};
  iso_fusion_verdict(graph, &text);
  iso_string_printf(&text, "; ");
  iso_choices_print(graph, &text);
  printf("# %s; compiled in %.2f s (%.2f s of it to measure)", text.data, compile_s, graph->choose_s);
  if (steps > 0 && least_s > 0)
    printf(", %.2g%% of %lld steps at the peak", 100 * compile_s / (compile_s + least_s), (long long)steps);
  printf("\n");
  iso_string_fini(&text);
}

static void print_start(const loop *l) {
  const iso_run *run = l->run;
  const iso_config *config = &run->config;
  iso_string text = {0};
  iso_config_print(config, &text);
  printf("%s", text.data);
  iso_string_fini(&text);
  printf("# %s, %.2f M parameters, %s, %d threads, tier %s\n", iso_architecture_name(run->model.architecture),
         (double)iso_model_parameters(&run->model) * 1e-6, config->precision.compute, iso_device_threads(run->device),
         iso_tier_name(iso_device_kernels(run->device)->tier));
  printf("# %lld documents, %.2f MB to train on; %lld documents, %.2f MB held out; blocks of %lld bytes\n",
         (long long)run->corpus_info.train_documents, (double)run->corpus_info.train_bytes * 1e-6,
         (long long)run->corpus_info.validation_documents, (double)run->corpus_info.validation_bytes * 1e-6,
         (long long)run->corpus_info.block_bytes);
  printf("# memory plan %.1f MB; snapshots of %.1f MB; ", (double)iso_engine_bytes(&run->engine) * 1e-6,
         (double)iso_snapshot_bytes(&run->state) * 1e-6);
  if (config->log.enabled)
    printf("step log of %.1f MB a step, durable against %s\n",
           (double)(run->state.elements * (int64_t)iso_dtype_size(run->engine.options.gradient)) * 1e-6,
           strcmp(config->log.durability, "disk") == 0 ? "power cuts" : "kills");
  else
    printf("no step log: a crash resumes from the newest snapshot\n");
  print_fusion(l);
  if (run->options.ranks) iso_ranks_print(run->options.ranks, iso_device_threads(run->device));
  if (run->snapshot[0] || run->replayed_steps)
    printf("# resuming after step %lld from %s and %lld steps of the log\n", (long long)run->at.step,
           run->snapshot[0] ? run->snapshot : "the first weights", (long long)run->replayed_steps);
  fflush(stdout);
}

/* What became of all steps, of all starts: read once, for whatever is said of them. */
static iso_status look_back(loop *l) {
  const iso_run *run = l->run;
  const iso_status read = iso_history_read(run->config.run, &l->history);
  if (read != ISO_OK) iso_history_fini(&l->history);
  ISO_TRY(read);
  if (l->health) iso_starts_end(&l->starts, run, l->health, &l->history, l->peak_gflops);
  const iso_verdict_input input = {
      .run = run->config.run, .history = &l->history, .starts = &l->starts, .last_step = run->at.step};
  return iso_verdict_find(&input, &l->verdict);
}

/* Tokens per second of all steps, and their MFU by the best peak that any start has measured. Returns the peak that the
 * first step was held against, if that was a lower one; 0: it was the same. */
static double find_speed(loop *l) {
  static const double SAME = 1.005, MOST = 1.5; /* more than 1: the peak was measured while others took processors */
  iso_train_result *r = l->result;
  double first;
  double peak = iso_history_peak(&l->history, l->flop_per_token, &first);
  if (l->health && l->peak_gflops > peak) peak = l->peak_gflops;
  for (size_t i = 0; i < l->starts.count; i++)
    if (l->starts.list[i].peak_gflops > peak) peak = l->starts.list[i].peak_gflops;
  r->peak_gflops = peak;
  r->tokens_per_s = iso_history_rate(&l->history);
  r->mfu = peak > 0 ? r->tokens_per_s * l->flop_per_token / (peak * 1e9) : 0;
  if (r->mfu > MOST) r->mfu = 0; /* lines that no run writes */
  return first > 0 && peak > SAME * first ? first : 0;
}

static iso_status finish(loop *l) {
  iso_run *run = l->run;
  iso_train_result *r = l->result;
  r->step = run->at.step;
  r->refused = run->at.refused;
  r->parameters = iso_model_parameters(&run->model);
  r->tokens = run->at.step * run->config.batch.sequences * run->config.data.sequence;
  r->train_s = iso_history_spread(&l->history, "wall_s").sum; /* of all starts, which may differ in threads and ranks */
  const double first_peak_gflops = find_speed(l);
  if (run->engine.evaluation && run->at.step >= run->config.steps) {
    ISO_TRY(evaluate(l, 0, &r->evaluation));
    r->evaluated = true;
  }
  r->load_p95_ms = 1e3 * iso_history_spread(&l->history, "data_wait_s").p95;
  r->starved_steps = l->history.starved_steps;
  const iso_report report = {.run = run,
                             .result = r,
                             .history = &l->history,
                             .starts = &l->starts,
                             .verdict = &l->verdict,
                             .first_peak_gflops = first_peak_gflops};
  ISO_TRY(iso_report_write(&report));
  if (run->options.quiet || !l->verdict.lines.length) return ISO_OK;
  printf("%s", l->verdict.lines.data);
  fflush(stdout);
  return ISO_OK;
}

/* A file of the run as JSON; NULL when it is missing or damaged. */
static iso_json *read_own(const iso_run *run, const char *name) {
  char path[4096];
  bool sealed;
  iso_json *json = NULL;
  iso_string faults = {0};
  snprintf(path, sizeof path, "%s/%s", run->config.run, name);
  if (iso_path_exists(path) && iso_record_read_any(path, name, &json, &sealed, &faults) != ISO_OK)
    iso_warn("%s/%s; it is written anew", run->config.run, iso_fault_first(&faults));
  iso_string_fini(&faults);
  return json;
}

/* A run whose steps are all taken may still lack its last evaluation and report. */
static bool is_done(const iso_run *run) {
  const char *verdict = "";
  iso_json *status = read_own(run, "status.json"), *report = read_own(run, "report.json");
  const bool done = status && report && iso_json_string(status, "status.json", "verdict", "", &verdict) == ISO_OK &&
                    strcmp(verdict, "done") == 0;
  iso_json_destroy(&status);
  iso_json_destroy(&report);
  return done;
}

static iso_status run_to_end(loop *l) {
  if (l->run->at.step >= l->last_step) { /* only the last evaluation and the report are wanting */
    ISO_TRY(look_back(l));
    l->result->loss = iso_history_loss(&l->history);
    return finish(l);
  }
  iso_status status = run_steps(l);
  iso_tracing_close(&l->tracing);
  iso_ring_stop(&l->ring);
  iso_outputs_close(&l->outputs);
  iso_health_end(l->health);
  iso_status closed = iso_metrics_close(&l->metrics);
  const iso_status listed = iso_lines_close(&l->skipped);
  if (closed == ISO_OK) closed = listed;
  if (status == ISO_OK) status = closed;
  const iso_status known = look_back(l); /* of a run that failed too: its page says it */
  if (status == ISO_OK) status = known;
  if (status == ISO_OK) status = finish(l);
  iso_health_close(&l->health);
  if (status == ISO_OK && stop_signal && l->run->at.step < l->last_step)
    status = iso_ranks_stopped(l->run->options.ranks);
  return status;
}

static void print_nothing_to_do(const iso_run *run, int64_t last_step) {
  const int64_t step = run->at.step, steps = run->config.steps;
  if (step > last_step)
    printf("# nothing to do: step %lld of %lld is taken, %s = %lld lies behind it (--from-step goes back)\n",
           (long long)step, (long long)steps, last_step < steps ? "stop_at" : "steps", (long long)last_step);
  else
    printf("# complete: step %lld of %lld%s\n", (long long)step, (long long)steps, step < steps ? " (stop_at)" : "");
}

static iso_status run_loop(loop *l) {
  iso_run *run = l->run;
  const iso_config *config = &run->config;
  l->last_step = iso_run_last_step(config);
  l->flop_per_token = iso_model_flop_per_token(&run->model, config->data.sequence);
  iso_progress_init(&l->progress);
  (void)!iso_starts_read(config->run, run->uuid, &l->starts); /* said; nothing is known of them then */
  measure_peak(l);
  if (!run->options.quiet) print_start(l);
  if (run->at.step >= l->last_step) {
    if (!run->options.quiet) print_nothing_to_do(run, l->last_step);
    if (is_done(run)) {
      iso_run_mirror_close(run, ISO_OK);
      return iso_run_mirror_lacks(run) ? ISO_STOPPED : ISO_OK;
    }
  }
  iso_status status = run_to_end(l);
  /* What fails for a process that was replaced fails because of that; the verdict is the other one's then. */
  const bool failed = status != ISO_OK && status != ISO_STOPPED;
  if (failed && iso_incarnation_check(config->run, run->incarnation.number) != ISO_OK) status = ISO_ERR_BUSY;
  const bool replaced = status == ISO_ERR_BUSY;
  const bool lost = iso_ranks_lost(run->options.ranks); /* a rank: the run ends with it */
  const char *verdict = status == ISO_OK ? "done" : status == ISO_STOPPED ? "stopped" : lost ? "lost" : "failed";
  int code = lost ? ISO_EXIT_LOST_RANK : iso_exit_code(status);
  const bool disk = iso_run_is_power_safe(run);
  if (!replaced) iso_report_page_write(config->run, verdict, &l->history, &l->verdict);
  iso_status written = replaced ? status
                                : iso_status_write(config->run, verdict, code, run->at.step, run->durable_step,
                                                   run->incarnation.number, disk);
  if (run->target.mirror || run->mirror.mirror) { /* take the verdict along, and then it says how far they are */
    iso_run_mirror_close(run, status);
    if (status == ISO_OK && iso_run_mirror_lacks(run)) { /* complete, but not durable yet */
      status = ISO_STOPPED;
      verdict = "stopped";
      code = iso_exit_code(status);
    }
    if (written == ISO_OK)
      written =
          iso_status_write(config->run, verdict, code, run->at.step, run->durable_step, run->incarnation.number, disk);
  }
  return status == ISO_OK ? written : status;
}

iso_status iso_train(const iso_config *config, const iso_train_options *options, iso_train_result *result) {
  memset(result, 0, sizeof *result);
  stop_signal = snapshot_signal = trace_signal = 0;
  launched = options->ranks && iso_ranks_plan_get(options->ranks)->world;
  iso_blob_interrupt(false);
  struct sigaction action = {.sa_handler = on_signal}, before_term, before_int, before_usr1, before_usr2;
  struct sigaction snapshot = {.sa_handler = on_snapshot_signal, .sa_flags = SA_RESTART};
  sigaction(SIGTERM, &action, &before_term);
  sigaction(SIGINT, &action, &before_int);
  struct sigaction asked = {.sa_handler = on_trace_signal, .sa_flags = SA_RESTART};
  sigaction(SIGUSR1, &snapshot, &before_usr1);
  sigaction(SIGUSR2, &asked, &before_usr2);
  iso_run run;
  iso_outputs *outputs;
  const double began = iso_clock_s();
  iso_status status = iso_outputs_reserve(config, &outputs);
  if (status == ISO_OK) status = iso_run_open(config, options, &run);
  if (status == ISO_OK) {
    loop l = {.run = &run, .result = result, .parts = 1, .started_s = began, .outputs = outputs};
    if (options->ranks) l.parts = iso_ranks_at_once(options->ranks, iso_device_threads(run.device));
    status = run_loop(&l);
    outputs = l.outputs;
    iso_verdict_fini(&l.verdict);
    iso_history_fini(&l.history);
    iso_starts_fini(&l.starts);
    iso_run_close(&run);
  }
  iso_outputs_close(&outputs);
  sigaction(SIGTERM, &before_term, NULL);
  sigaction(SIGINT, &before_int, NULL);
  sigaction(SIGUSR1, &before_usr1, NULL);
  sigaction(SIGUSR2, &before_usr2, NULL);
  iso_blob_interrupt(false);
  return status;
}
