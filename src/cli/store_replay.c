/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast the step log is replayed beside the optimizer alone: the same update of the same state on the same threads,
 * once from the log in the page cache and once from a gradient in memory, in turns. Seconds are of the wall; beside
 * them stand those of all threads together, which say more while other work has the cores.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"

enum { ROUNDS = 7, STEPS = 3 };

typedef struct replayed {
  iso_device *device;
  iso_state state;
  void *memory;
  size_t memory_bytes;
  char *gradient;
  size_t gradient_bytes;
  const char *run;
  char uuid[37];
} replayed;

typedef struct spent {
  double wall_s, cpu_s; /* of a step */
} spent;

static double cpu_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static iso_adamw_args update_args(const iso_state *s) {
  return (iso_adamw_args){.master = s->master,
                          .moment1 = s->moment1,
                          .moment2 = s->moment2,
                          .reduced_type = ISO_BF16,
                          .end = s->elements,
                          .lr = 1e-4f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .clip = 1,
                          .bias1 = 1,
                          .bias2 = 1};
}

/* ---- the two sides ---- */

typedef struct update {
  const replayed *r;
  iso_adamw_args args;
} update;

static void update_thread(void *argument, int thread) {
  const update *u = argument;
  const iso_device *device = u->r->device;
  const iso_worker worker = {thread, iso_device_threads(device), iso_device_team(device), NULL};
  iso_device_kernels(device)->adamw(&u->args, &worker);
}

static spent update_alone(const replayed *r) {
  update u = {r, update_args(&r->state)};
  u.args.reduced = r->gradient;
  const double wall = iso_clock_s(), cpu = cpu_s();
  for (int step = 0; step < STEPS; step++) iso_team_run(iso_device_team(r->device), update_thread, &u);
  return (spent){(iso_clock_s() - wall) / STEPS, (cpu_s() - cpu) / STEPS};
}

static iso_status restore(const iso_replay *with) {
  (void)with;
  return iso_fail(ISO_ERR_INTERNAL, "bench store: its log is damaged");
}

static iso_status replay(const replayed *r, spent *out) {
  iso_wal_index index;
  iso_string faults = {0};
  iso_snapshot_info info = {0};
  iso_replay_report report = {0};
  iso_state state = r->state;
  iso_replay with = {.kernels = iso_device_kernels(r->device),
                     .team = iso_device_team(r->device),
                     .threads = iso_device_threads(r->device),
                     .state = &state,
                     .optimizer_version = ISO_OPTIMIZER_VERSION,
                     .restore = restore};
  ISO_TRY(iso_wal_index_read(r->run, r->uuid, false, 0, &index, &faults));
  const double cpu = cpu_s();
  iso_status status = iso_wal_replay(&index, &with, STEPS, &info, &report, &faults);
  *out = (spent){report.seconds / STEPS, (cpu_s() - cpu) / STEPS};
  if (status == ISO_OK && report.steps != STEPS)
    status = iso_fail(ISO_ERR_IO, "bench store: of %d steps %lld can be replayed: %s", STEPS, (long long)report.steps,
                      faults.length ? iso_fault_first(&faults) : "the log ends");
  iso_wal_index_fini(&index);
  iso_snapshot_info_fini(&info);
  iso_string_fini(&faults);
  return status;
}

/* ---- what they work on ---- */

static iso_status write_log(const replayed *r) {
  const iso_incarnation incarnation = {
      .number = 1, .tier = "bench", .build = "bench", .virtual_workers = 1, .ranks = 1};
  ISO_TRY(iso_incarnation_publish(r->run, &incarnation));
  const iso_wal_options options = {.run = r->run,
                                   .uuid = r->uuid,
                                   .incarnation = 1,
                                   .elements = r->state.elements,
                                   .gradient = ISO_BF16,
                                   .optimizer_version = ISO_OPTIMIZER_VERSION,
                                   .segment_bytes = INT64_C(1) << 40};
  const iso_adamw_args args = update_args(&r->state);
  iso_wal *log;
  iso_wal_state state;
  ISO_TRY(iso_wal_open(&options, 1, &log));
  iso_status status = ISO_OK;
  for (int64_t step = 1; step <= STEPS && status == ISO_OK; step++) {
    const iso_wal_record record = {.step = step,
                                   .adam_step = step,
                                   .lr = args.lr,
                                   .beta1 = args.beta1,
                                   .beta2 = args.beta2,
                                   .eps = args.eps,
                                   .weight_decay = args.weight_decay,
                                   .clip = args.clip,
                                   .bias1 = args.bias1,
                                   .bias2 = args.bias2};
    (void)iso_wal_release(log, r->gradient, 1e6);
    status = iso_wal_append(log, &record, r->gradient);
  }
  iso_wal_flush(log);
  iso_wal_state_get(log, &state);
  iso_wal_close(&log);
  if (status == ISO_OK && state.suspended)
    status = iso_fail(state.status, "bench store: the log could not be written: %s", state.cause);
  return status;
}

/* Numbers as gradients have them: none is so small or large that the update would take another way. */
static void fill(const replayed *r) {
  for (size_t at = 0; at + 16 <= r->gradient_bytes; at += 16) {
    uint32_t random[4];
    iso_rng(3, ISO_RNG_TEST, 0, at, random);
    for (int i = 0; i < 4; i++) random[i] = (random[i] & 0x807f807fu) | 0x3a803a80u;
    memcpy(r->gradient + at, random, sizeof random);
  }
}

static iso_status prepare(replayed *r, int threads, int64_t elements) {
  ISO_TRY(iso_device_create(threads, &r->device));
  r->memory_bytes = (size_t)elements * 3 * sizeof(float);
  r->gradient_bytes = iso_wal_padded((size_t)elements * sizeof(iso_bf16));
  r->memory = iso_slab_alloc(r->memory_bytes, "bench store's state");
  r->gradient = iso_slab_alloc(r->gradient_bytes, "bench store's gradient");
  if (!r->memory || !r->gradient) return ISO_ERR_MEMORY;
  r->state.elements = elements;
  r->state.master = r->memory;
  r->state.moment1 = r->state.master + elements;
  r->state.moment2 = r->state.moment1 + elements;
  memset(r->memory, 0, r->memory_bytes);
  fill(r);
  ISO_TRY(iso_path_make(r->run));
  ISO_TRY(iso_run_folder_open(r->run, r->uuid));
  return write_log(r);
}

/* As any program would: what is asked for ahead of time lies in the page cache in smaller pieces. */
static iso_status read_through(const replayed *r) {
  char path[4200];
  char *bytes;
  size_t length;
  snprintf(path, sizeof path, "%s/log/0001-00000-000000.log", r->run);
  ISO_TRY(iso_file_read(path, &bytes, &length));
  free(bytes);
  return ISO_OK;
}

static iso_status rounds(const replayed *r, iso_store_replay *out) {
  double wall[ROUNDS], cpu[ROUNDS], alone[ROUNDS], steps[ROUNDS];
  spent read = {0};
  ISO_TRY(read_through(r)); /* the page cache has it now */
  ISO_TRY(replay(r, &read));
  (void)update_alone(r);
  for (int i = 0; i < ROUNDS; i++) {
    const spent alone_once = update_alone(r);
    ISO_TRY(replay(r, &read));
    wall[i] = alone_once.wall_s / read.wall_s;
    cpu[i] = alone_once.cpu_s / read.cpu_s;
    alone[i] = alone_once.wall_s;
    steps[i] = read.wall_s;
  }
  *out = (iso_store_replay){.ratio = iso_median(wall, ROUNDS),
                            .cpu_ratio = iso_median(cpu, ROUNDS),
                            .update_s = iso_median(alone, ROUNDS),
                            .step_s = iso_median(steps, ROUNDS)};
  return ISO_OK;
}

iso_status iso_store_replay_measure(const char *folder, int threads, int64_t elements, iso_store_replay *out) {
  char run[4096];
  snprintf(run, sizeof run, "%s/replay", folder);
  replayed r = {.run = run};
  iso_status status = prepare(&r, threads, elements);
  if (status == ISO_OK) status = rounds(&r, out);
  iso_slab_free(r.memory, r.memory_bytes);
  iso_slab_free(r.gradient, r.gradient_bytes);
  iso_device_destroy(&r.device);
  return status;
}
