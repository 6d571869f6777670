/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach bench store: what being durable costs a run. Two runs of one model train in turns, as processes of their own:
 * one logs every step and writes snapshots, the other saves nothing. The ratio is the median over pairs of stretches;
 * beside it stands the spread of the stretches that save nothing, below which a difference means nothing.
 *
 * Then: the log's writer alone beside a plain O_DIRECT writer of the same bytes (store_rate.c), a replay beside the
 * optimizer alone (store_replay.c), and a kill -9 with the asked number of steps to replay, timed from the launch to
 * the end of the first new step.
 *
 * On a virtual machine the host may write with the same cores: what it then takes is not seen in the processes' time,
 * but in the steal time of /proc/stat. Its share stands beside the ratio, of the stretches of each kind.
 *
 * The first steps of each stretch are left out: a start touches its memory first. A snapshot falls in the middle of
 * each stretch.
 */
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

enum { SKIPPED = 2, KINDS = 2 }; /* kinds: 0 saves nothing, 1 saves */

/* Seconds of all cores. */
typedef struct machine_time {
  double all, busy, system, steal;
} machine_time;

typedef struct bench {
  const char *name, *durability, *compress, *folder;
  int64_t steps, interval, pairs, replay;
  bool json;
  iso_model_config model;
  iso_trial trial;
  double *walls[KINDS]; /* of all counted steps */
  int64_t counted[KINDS];
  double *sums[KINDS]; /* of each stretch: seconds a step, mean */
  double ratio, spread, p99[KINDS];
  double storage_s; /* mean wait of a saving step */
  double log_bytes, recovery_s;
  iso_store_rate rate;
  iso_store_replay replayed;
  machine_time machine[KINDS]; /* of all stretches */
} bench;

static const char *const runs[KINDS] = {"plain", "saved"};

/* ---- stretches ---- */

/* Since the machine was started; zeros where /proc/stat cannot be read. */
static machine_time machine_now(void) {
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0, steal = 0;
  FILE *file = fopen("/proc/stat", "r");
  const int read = file ? fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle, &wait, &irq,
                                 &soft, &steal)
                        : 0;
  if (file) (void)fclose(file);
  if (read != 8) return (machine_time){0};
  const double tick = 1.0 / (double)sysconf(_SC_CLK_TCK), kernel = system + irq + soft;
  return (machine_time){.all = tick * (user + nice + kernel + idle + wait + steal),
                        .busy = tick * (user + nice + kernel),
                        .system = tick * kernel,
                        .steal = tick * steal};
}

static void machine_add(machine_time *sum, const machine_time *before) {
  const machine_time now = machine_now();
  sum->all += now.all - before->all;
  sum->busy += now.busy - before->busy;
  sum->system += now.system - before->system;
  sum->steal += now.steal - before->steal;
}

static double share_of(double part, const machine_time *time) {
  return time->all > 0 ? part / time->all : 0;
}

/* The run goes on to step `last`. */
static iso_status train(bench *b, int kind, int64_t last) {
  char stop[40], every[60], compress[40], durability[40];
  snprintf(stop, sizeof stop, "stop_at=%lld", (long long)last);
  snprintf(every, sizeof every, "checkpoint.snapshot_every=%lld", (long long)(kind ? b->interval : 0));
  snprintf(compress, sizeof compress, "log.compress=%s", b->compress);
  snprintf(durability, sizeof durability, "log.durability=%s", b->durability);
  const char *const words[] = {stop,     every,      kind ? "log.enabled=true" : "log.enabled=false",
                               compress, durability, NULL};
  pid_t pid;
  ISO_TRY(iso_trial_start(&b->trial, runs[kind], words, &pid));
  return iso_trial_wait(&b->trial, runs[kind], pid, false);
}

/* Steps (first, last] were just taken. */
static iso_status count(bench *b, int kind, int64_t pair, int64_t first, int64_t last) {
  iso_trial_steps steps;
  double sum = 0, waited = 0;
  int64_t taken = 0;
  ISO_TRY(iso_trial_read(&b->trial, runs[kind], &steps));
  for (size_t i = 0; i < steps.count; i++) {
    const iso_trial_step *s = &steps.list[i];
    if (s->step <= first + SKIPPED || s->step > last) continue;
    b->walls[kind][b->counted[kind]++] = s->wall_s;
    sum += s->wall_s;
    waited += s->storage_s;
    taken++;
  }
  free(steps.list);
  if (taken != last - first - SKIPPED)
    return iso_fail(ISO_ERR_INTERNAL, "bench store: metrics.jsonl has %lld of %lld steps", (long long)taken,
                    (long long)(last - first - SKIPPED));
  b->sums[kind][pair] = sum / (double)taken;
  if (kind) b->storage_s += waited / (double)(taken * b->pairs);
  return ISO_OK;
}

static iso_status take_pairs(bench *b) {
  const int64_t lead = b->interval / 2 + SKIPPED; /* so that snapshots fall inside */
  for (int kind = 0; kind < KINDS; kind++) ISO_TRY(train(b, kind, lead));
  for (int64_t pair = 0; pair < b->pairs; pair++) {
    const int64_t first = lead + pair * b->steps, last = first + b->steps;
    for (int half = 0; half < KINDS; half++) {
      const int kind = (half + (int)pair) % KINDS;
      const machine_time before = machine_now();
      ISO_TRY(train(b, kind, last));
      machine_add(&b->machine[kind], &before);
      ISO_TRY(count(b, kind, pair, first, last));
    }
    iso_note("pair %lld of %lld: %.4f s a step with saving, %.4f s without, %.4f", (long long)pair + 1,
             (long long)b->pairs, b->sums[1][pair], b->sums[0][pair], b->sums[1][pair] / b->sums[0][pair]);
  }
  return ISO_OK;
}

static void conclude(bench *b) {
  double ratios[64], least = INFINITY, most = 0;
  for (int64_t i = 0; i < b->pairs; i++) {
    ratios[i] = b->sums[1][i] / b->sums[0][i];
    least = fmin(least, b->sums[0][i]);
    most = fmax(most, b->sums[0][i]);
  }
  b->ratio = iso_median(ratios, b->pairs);
  b->spread = most / least - 1;
  for (int kind = 0; kind < KINDS; kind++) {
    (void)iso_median(b->walls[kind], b->counted[kind]); /* sorts */
    b->p99[kind] = iso_quantile(b->walls[kind], b->counted[kind], 99);
  }
}

/* ---- log and recovery ---- */

/* Bytes of a step of the log: that of the segments there, over the steps in them. */
static iso_status measure_log(bench *b) {
  char uuid[37], run[4096];
  bool exists;
  iso_wal_index index;
  iso_string faults = {0};
  int64_t bytes = 0;
  snprintf(run, sizeof run, "%s/%s", b->trial.folder, runs[1]);
  ISO_TRY(iso_run_folder_read(run, uuid, &exists));
  iso_status status = iso_wal_index_read(run, uuid, false, 0, &index, &faults);
  if (status == ISO_OK) {
    for (size_t i = 0; i < index.file_count; i++) bytes += index.files[i].bytes;
    b->log_bytes = index.step_count ? (double)bytes / (double)index.step_count : 0;
    iso_wal_index_fini(&index);
  } else {
    status = iso_fail(status, "%s: its log cannot be read: %s", run, iso_fault_first(&faults));
  }
  iso_string_fini(&faults);
  return status;
}

static iso_status measure_recovery(bench *b) {
  const char *const words[] = {"log.enabled=true", "checkpoint.snapshot_every=0", NULL};
  iso_trial *trial = &b->trial;
  const int64_t lead = b->interval / 2 + SKIPPED, reached = lead + b->pairs * b->steps;
  const int64_t snapshot = reached / b->interval * b->interval;
  int64_t killed_at = snapshot + b->replay;
  if (killed_at <= reached) killed_at = reached + 1;
  const double most_s = 120 + 10 * b->sums[0][0] * (double)(killed_at - reached + 2);
  pid_t pid;
  ISO_TRY(iso_trial_start(trial, runs[1], words, &pid));
  ISO_TRY(iso_trial_until(trial, runs[1], pid, "durable_step", killed_at, most_s));
  ISO_TRY(iso_trial_wait(trial, runs[1], pid, true));
  iso_trial_steps steps;
  ISO_TRY(iso_trial_read(trial, runs[1], &steps));
  const int64_t last = steps.list[steps.count - 1].step;
  free(steps.list);
  const double began = iso_clock_s();
  ISO_TRY(iso_trial_start(trial, runs[1], words, &pid));
  ISO_TRY(iso_trial_until(trial, runs[1], pid, "step", last + 1, most_s));
  b->recovery_s = iso_clock_s() - began;
  return iso_trial_wait(trial, runs[1], pid, true);
}

/* ---- result ---- */

static void print_words(const bench *b) {
  const double snapshot = 12.0 * (double)iso_model_parameters(&b->model), step_s = b->sums[1][b->pairs / 2];
  const machine_time *plain = &b->machine[0], *saved = &b->machine[1];
  printf("%s, %lld x %lld tokens, durability %s, compression %s, a snapshot every %lld steps\n", b->name,
         (long long)b->trial.batch, (long long)b->trial.sequence, b->durability, b->compress, (long long)b->interval);
  printf("time %.4f of the same steps with nothing saved, median of %lld pairs of %lld steps; those that save nothing "
         "spread by %.4f\n",
         b->ratio, (long long)b->pairs, (long long)(b->steps - SKIPPED), b->spread);
  printf("P99 of %lld steps %.4f s, %.4f s without: %.4f; mean wait for storage %.4f s\n", (long long)b->counted[1],
         b->p99[1], b->p99[0], b->p99[1] / b->p99[0], b->storage_s);
  printf("of all cores' time %.2f%% was stolen by the host, %.2f%% in the kernel; %.2f%% and %.2f%% without saving\n",
         100 * share_of(saved->steal, saved), 100 * share_of(saved->system, saved), 100 * share_of(plain->steal, plain),
         100 * share_of(plain->system, plain));
  printf("log: %.1f MB a step, %.4f of a full snapshot; CRC-32C %.3f%% of a step\n", b->log_bytes * 1e-6,
         b->log_bytes / snapshot, 100 * b->rate.crc_s / step_s);
  printf("writing: %.2f GB/s, %.3f of a plain O_DIRECT writer's %.2f GB/s; with its CRC-32C %.2f GB/s\n",
         b->rate.writing * 1e-9, b->rate.share, b->rate.plain * 1e-9, b->rate.whole * 1e-9);
  printf("replay from the page cache: %.3f of the optimizer alone (%.4f s a step, %.4f s alone), by threads' time "
         "%.3f\n",
         b->replayed.ratio, b->replayed.step_s, b->replayed.update_s, b->replayed.cpu_ratio);
  printf("recovery: %.2f s from the launch to the first new step, %lld steps to replay\n", b->recovery_s,
         (long long)b->replay);
}

static iso_status print_document(const bench *b) {
  const double snapshot = 12.0 * (double)iso_model_parameters(&b->model), step_s = b->sums[1][b->pairs / 2];
  const machine_time *plain = &b->machine[0], *saved = &b->machine[1];
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "model", b->name);
  iso_json_put_int(&out, "parameters", iso_model_parameters(&b->model));
  iso_json_put_int(&out, "batch", b->trial.batch);
  iso_json_put_int(&out, "seq", b->trial.sequence);
  iso_json_put_text(&out, "durability", b->durability);
  iso_json_put_text(&out, "compress", b->compress);
  iso_json_put_int(&out, "snapshot_every", b->interval);
  iso_json_put_int(&out, "pairs", b->pairs);
  iso_json_put_int(&out, "steps", b->counted[1]);
  iso_json_put_real(&out, "time_ratio", b->ratio);
  iso_json_put_real(&out, "spread", b->spread);
  iso_json_put_real(&out, "p99_ratio", b->p99[1] / b->p99[0]);
  iso_json_put_real(&out, "p99_s", b->p99[1]);
  iso_json_put_real(&out, "p99_nothing_saved_s", b->p99[0]);
  iso_json_put_real(&out, "step_s", step_s);
  iso_json_put_real(&out, "storage_wait_s", b->storage_s);
  iso_json_put_real(&out, "log_bytes_per_step", b->log_bytes);
  iso_json_put_real(&out, "log_bytes_over_snapshot", b->log_bytes / snapshot);
  iso_json_put_real(&out, "bandwidth_share", b->rate.share);
  iso_json_put_real(&out, "log_bytes_per_s", b->rate.writing);
  iso_json_put_real(&out, "log_with_crc_bytes_per_s", b->rate.whole);
  iso_json_put_real(&out, "plain_bytes_per_s", b->rate.plain);
  iso_json_put_real(&out, "crc_share", b->rate.crc_s / step_s);
  iso_json_put_real(&out, "steal_share", share_of(saved->steal, saved));
  iso_json_put_real(&out, "steal_share_nothing_saved", share_of(plain->steal, plain));
  iso_json_put_real(&out, "kernel_share", share_of(saved->system, saved));
  iso_json_put_real(&out, "kernel_share_nothing_saved", share_of(plain->system, plain));
  iso_json_put_real(&out, "busy_share", share_of(saved->busy, saved));
  iso_json_put_real(&out, "busy_share_nothing_saved", share_of(plain->busy, plain));
  iso_json_put_real(&out, "replay_ratio", b->replayed.ratio);
  iso_json_put_real(&out, "replay_cpu_ratio", b->replayed.cpu_ratio);
  iso_json_put_real(&out, "replay_step_s", b->replayed.step_s);
  iso_json_put_real(&out, "optimizer_step_s", b->replayed.update_s);
  iso_json_put_int(&out, "replayed_steps", b->replay);
  iso_json_put_real(&out, "recovery_s", b->recovery_s);
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status check(const bench *b) {
  if (b->steps <= SKIPPED)
    return iso_fail(ISO_ERR_USAGE, "bench store: --steps %lld leaves nothing, the first %d of a stretch do not count",
                    (long long)b->steps, SKIPPED);
  if (strcmp(b->durability, "process") != 0 && strcmp(b->durability, "disk") != 0)
    return iso_fail(ISO_ERR_USAGE, "bench store: --durability is process or disk, not '%.40s'", b->durability);
  if (strcmp(b->compress, "auto") != 0 && strcmp(b->compress, "on") != 0 && strcmp(b->compress, "off") != 0)
    return iso_fail(ISO_ERR_USAGE, "bench store: --compress is auto, on or off, not '%.40s'", b->compress);
  if (!b->trial.corpus[0] != !b->trial.tokenizer[0])
    return iso_fail(ISO_ERR_USAGE, "bench store: --corpus and --tokenizer belong together");
  if (b->trial.sequence > b->model.positions)
    return iso_fail(ISO_ERR_USAGE, "bench store: --seq %lld is more than the model's %lld positions",
                    (long long)b->trial.sequence, (long long)b->model.positions);
  return ISO_OK;
}

static iso_status run(bench *b) {
  ISO_TRY(check(b));
  b->trial.model = &b->model;
  b->trial.parent = b->folder;
  for (int kind = 0; kind < KINDS; kind++) {
    b->walls[kind] = calloc((size_t)(b->pairs * b->steps), sizeof(double));
    b->sums[kind] = calloc((size_t)b->pairs, sizeof(double));
    if (!b->walls[kind] || !b->sums[kind]) return iso_fail(ISO_ERR_MEMORY, "bench store: no memory for its times");
  }
  ISO_TRY(iso_trial_create(&b->trial));
  ISO_TRY(take_pairs(b));
  conclude(b);
  ISO_TRY(measure_log(b));
  const int64_t elements = iso_model_parameters(&b->model);
  ISO_TRY(iso_store_rate_measure(b->trial.folder, elements, &b->rate));
  ISO_TRY(iso_store_replay_measure(b->trial.folder, (int)b->trial.threads, elements, &b->replayed));
  ISO_TRY(measure_recovery(b));
  if (b->json) return print_document(b);
  print_words(b);
  return ISO_OK;
}

iso_status iso_verb_bench_store(iso_args *args) {
  bench b = {.name = "gpt2-124m",
             .durability = "process",
             .compress = "auto",
             .folder = ".",
             .steps = 20,
             .interval = 20,
             .pairs = 5,
             .replay = 20,
             .trial = {.tokenizer = "", .corpus = "", .batch = 8, .sequence = 1024}};
  const iso_flag flags[] = {
      {"model", ISO_FLAG_TEXT, &b.name, "gpt2-124m, llama-110m, llama-30m, or a config.json (gpt2-124m)", 0, 0},
      {"batch", ISO_FLAG_INT, &b.trial.batch, "sequences of a step (8)", 1, 65536},
      {"seq", ISO_FLAG_INT, &b.trial.sequence, "tokens of a sequence (1024)", 1, 1e7},
      {"threads", ISO_FLAG_INT, &b.trial.threads, "0: all cores (0)", 0, 1024},
      {"tokenizer", ISO_FLAG_TEXT, &b.trial.tokenizer, "with --corpus: its tokenizer", 0, 0},
      {"corpus", ISO_FLAG_TEXT, &b.trial.corpus, "text to train on (ids drawn evenly)", 0, 0},
      {"folder", ISO_FLAG_TEXT, &b.folder, "where the runs are made, on the storage in question (.)", 0, 0},
      {"durability", ISO_FLAG_TEXT, &b.durability, "as log.durability (process)", 0, 0},
      {"compress", ISO_FLAG_TEXT, &b.compress, "as log.compress (auto)", 0, 0},
      {"interval", ISO_FLAG_INT, &b.interval, "steps between snapshots (20)", 1, 1e6},
      {"steps", ISO_FLAG_INT, &b.steps, "steps of a stretch (20)", 1, 1e6},
      {"pairs", ISO_FLAG_INT, &b.pairs, "pairs of stretches (5)", 1, 64},
      {"replay", ISO_FLAG_INT, &b.replay, "steps that the timed recovery replays (20)", 1, 1e6},
      {"json", ISO_FLAG_BOOL, &b.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 0, 0));
  if (args->help) return ISO_OK;
  ISO_TRY(iso_model_config_open(b.name, &b.model));
  const iso_status status = run(&b);
  iso_trial_remove(&b.trial);
  for (int kind = 0; kind < KINDS; kind++) {
    free(b.walls[kind]);
    free(b.sums[kind]);
  }
  iso_model_config_fini(&b.model);
  return status;
}
