/* SPDX-License-Identifier: Apache-2.0
 *
 * Running a program: one dispatch of the team a step. Inside it every thread walks
 *
 *   for each leaf (virtual worker): for each micro-batch: phase MICRO;  then fold the finished leaf into the tree; then
 * phase UPDATE
 *
 * A program that rounds gradients one by one does so in the step's last pass, which folds each before; what is final
 * of the reduced gradient is handed over (to the log) when the team meets next, while that pass goes on.
 *
 * The tree. Leaf i's gradient is summed in buffer `depth`; as in a binary counter, after leaf i as many pairs of
 * neighbouring partial sums are added as i + 1 has trailing zero bits, left += right. So log2(W) + 1 buffers hold all
 * partial sums, and the tree's shape depends on W alone. Losses fold the same way, in double.
 *
 * With an exchange this process is one rank of several and has a range of the leaves: pairs are added as far as both
 * lie in the range, the rest is the exchange's. It hears which partial sums are final as the log does of the gradient,
 * so that it sums and rounds them while the backward pass goes on; before the update it is waited for.
 *
 * Time. Thread 0 has a stopwatch that runs while the team computes and rests in the gate and in the exchange, which
 * time themselves. What the scheduler took of it is what each thread says that it waited for a processor meanwhile.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/exec.h"

enum { MAX_TREE_DEPTH = 40 };

typedef struct op_profile {
  double seconds;
  int64_t flop, calls;
} op_profile;

typedef struct thread_delay {
  double seconds;
  char apart[56]; /* threads write to cache lines of their own */
} thread_delay;

struct iso_exec {
  const iso_device *device;
  const iso_program *program;
  iso_flat *flat;
  void *slab; /* constants, caches, outputs */
  size_t slab_bytes;
  char *base[ISO_SPACE_COUNT];
  const int32_t **inputs; /* by tensor */
  iso_id input_ids[4];    /* tokens, labels, positions, segments */
  const float *losses;    /* output "losses", or NULL */
  iso_exec_gate *gate;    /* before the update; NULL: none */
  void *gate_context;
  const iso_exchange *exchange; /* NULL: alone */
  iso_handover *handovers;      /* NULL: the update rounds all */
  int handover_count;
  iso_exec_handover *handover; /* NULL: nobody asks for them */
  void *handover_context;
  iso_exec_trace *trace; /* NULL: off */
  bool profiling;
  op_profile profile[ISO_OP_COUNT];
  thread_delay *delays; /* by thread, of the step */
};

static const char *const input_names[4] = {"tokens", "labels", "positions", "segments"};

static size_t padded(size_t bytes) {
  return (bytes + 63) & ~(size_t)63;
}

/* Those before CACHE are always one's own; caches may be another's. */
static const iso_space own_spaces[] = {ISO_SPACE_CONST, ISO_SPACE_OUTPUT, ISO_SPACE_CACHE};

static size_t own_bytes(const iso_program *program, bool with_caches) {
  size_t bytes = 0;
  for (size_t i = 0; i < ISO_COUNT(own_spaces); i++)
    if (own_spaces[i] != ISO_SPACE_CACHE || with_caches)
      bytes += padded((size_t)program->graph->space_bytes[own_spaces[i]]);
  return bytes;
}

size_t iso_exec_bytes(const iso_program *program) {
  return own_bytes(program, true);
}

static void place_tensors(iso_exec *exec) {
  const iso_graph *graph = exec->program->graph;
  for (int i = 0; i < 4; i++) exec->input_ids[i] = -1;
  for (int id = 0; id < graph->tensor_count; id++) {
    const iso_tensor *tensor = &graph->tensors[id];
    if (tensor->space == ISO_SPACE_CONST && tensor->content)
      memcpy(exec->base[ISO_SPACE_CONST] + tensor->offset, tensor->content, (size_t)iso_tensor_bytes(tensor));
    if (tensor->space != ISO_SPACE_INPUT) continue;
    for (int i = 0; i < 4; i++)
      if (strcmp(tensor->name, input_names[i]) == 0) exec->input_ids[i] = id;
  }
  exec->losses = iso_exec_output(exec, "losses");
}

iso_status iso_exec_create(const iso_device *device, const iso_program *program, iso_flat *flat, void *arena,
                           const iso_exec *caches, iso_exec **out) {
  *out = NULL;
  iso_exec *exec = calloc(1, sizeof *exec);
  if (!exec) return iso_fail(ISO_ERR_MEMORY, "exec: no memory for %zu bytes", sizeof *exec);
  exec->device = device;
  exec->program = program;
  exec->flat = flat;
  exec->slab_bytes = own_bytes(program, caches == NULL);
  exec->inputs = calloc((size_t)program->graph->tensor_count + 1, sizeof *exec->inputs);
  exec->delays = calloc((size_t)iso_device_threads(device), sizeof *exec->delays);
  if (exec->slab_bytes) exec->slab = iso_slab_alloc(exec->slab_bytes, "constants, caches and outputs");
  iso_status status =
      iso_handovers_find(program, flat->options.virtual_workers, &exec->handovers, &exec->handover_count);
  if (status == ISO_OK && (!exec->inputs || !exec->delays || (exec->slab_bytes && !exec->slab)))
    status = ISO_ERR_MEMORY;
  if (status != ISO_OK) {
    iso_exec_destroy(&exec);
    return status;
  }
  char *next = exec->slab;
  for (size_t i = 0; i < ISO_COUNT(own_spaces); i++) {
    exec->base[own_spaces[i]] = next;
    next += padded((size_t)program->graph->space_bytes[own_spaces[i]]);
  }
  if (caches) exec->base[ISO_SPACE_CACHE] = caches->base[ISO_SPACE_CACHE];
  exec->base[ISO_SPACE_TRANSIENT] = arena;
  exec->base[ISO_SPACE_MASTER] = (char *)flat->master;
  exec->base[ISO_SPACE_WEIGHT] = (char *)flat->weights;
  exec->base[ISO_SPACE_MOMENT1] = (char *)flat->moment1;
  exec->base[ISO_SPACE_MOMENT2] = (char *)flat->moment2;
  exec->base[ISO_SPACE_GRAD] = (char *)flat->gradients;
  exec->base[ISO_SPACE_SQUARES] = (char *)flat->squares;
  place_tensors(exec);
  const char *profile = getenv("ISOTACH_PROFILE");
  exec->profiling = profile && strcmp(profile, "1") == 0;
  *out = exec;
  return ISO_OK;
}

void iso_exec_destroy(iso_exec **exec) {
  if (!exec || !*exec) return;
  iso_slab_free((*exec)->slab, (*exec)->slab_bytes);
  free((*exec)->inputs);
  free((*exec)->handovers);
  free((*exec)->delays);
  free(*exec);
  *exec = NULL;
}

void *iso_exec_output(const iso_exec *exec, const char *name) {
  const iso_graph *graph = exec->program->graph;
  for (int id = 0; id < graph->tensor_count; id++) {
    const iso_tensor *tensor = &graph->tensors[id];
    if (tensor->space == ISO_SPACE_OUTPUT && strcmp(tensor->name, name) == 0)
      return exec->base[ISO_SPACE_OUTPUT] + tensor->offset;
  }
  return NULL;
}

/* What the threads of one dispatch share. The leaf's sums live on the stack of thread 0; all threads follow the same
 * control flow. */
typedef struct dispatch {
  iso_exec *exec;
  iso_step *step; /* NULL: forward only */
  const iso_inputs *inputs;
  int64_t cache_offset;
  bool update;
  double going_s; /* thread 0's stopwatch: since when it runs */
} dispatch;

/* ---- the stopwatch ---- */

static void delay_begin(const dispatch *d, int thread) {
  d->exec->delays[thread].seconds -= iso_device_run_delay(d->exec->device, thread);
}

static void delay_end(const dispatch *d, int thread) {
  d->exec->delays[thread].seconds += iso_device_run_delay(d->exec->device, thread);
}

/* By thread 0, around what is not computing. */
static void watch_stop(dispatch *d, iso_wait_kind why) {
  iso_step *step = d->step;
  const double now = iso_clock_s();
  step->compute_s += now - d->going_s;
  step->waits[step->wait_count] = (iso_wait){why, now, now};
  delay_end(d, 0);
}

static void watch_start(dispatch *d) {
  delay_begin(d, 0);
  d->going_s = iso_clock_s();
  d->step->waits[d->step->wait_count++].ended_s = d->going_s;
}

static void watch_sum(const dispatch *d, int threads) {
  double most = 0;
  for (int i = 0; i < threads; i++)
    if (d->exec->delays[i].seconds > most) most = d->exec->delays[i].seconds;
  d->step->preempted_s = most < d->step->compute_s ? most : d->step->compute_s;
}

/* Those that were final before the team met at instruction `at`; `due` is the next one. */
static void hand_over(const iso_exec *exec, int at, int *due) {
  const iso_exchange *exchange = exec->exchange;
  for (; *due < exec->handover_count && exec->handovers[*due].after < at; ++*due) {
    const iso_handover *h = &exec->handovers[*due];
    if (exchange)
      exchange->part(exchange->self, h->begin, h->end);
    else
      exec->handover(exec->handover_context, h->begin, h->end);
  }
}

static void run_instructions(iso_exec *exec, int begin, int end, const iso_frame *frame, iso_worker *worker) {
  const iso_program *program = exec->program;
  const bool hands = (exec->handover || exec->exchange) && frame->last_micro && worker->thread == 0;
  int due = 0;
  double began = exec->profiling && worker->thread == 0 ? iso_clock_s() : 0;
  for (int i = begin; i < end; i++) {
    const iso_instruction *instruction = &program->instructions[i];
    if (instruction->barrier || exec->profiling) {
      iso_team_barrier(worker->team);
      if (hands) hand_over(exec, i, &due);
    }
    if (exec->profiling && worker->thread == 0) began = iso_clock_s();
    if (exec->exchange && worker->thread == 0) exec->exchange->beat(exec->exchange->self);
    const iso_work work = exec->trace || exec->profiling ? iso_instruction_work(instruction, frame) : (iso_work){0};
    const double run_s = exec->trace ? iso_clock_s() : 0;
    iso_instruction_run(program, instruction, frame, worker);
    if (exec->trace) iso_exec_trace_add(exec->trace, worker->thread, i, frame->leaf, work, run_s);
    if (exec->profiling) {
      iso_team_barrier(worker->team);
      if (worker->thread == 0) {
        op_profile *row = &exec->profile[instruction->op];
        row->seconds += iso_clock_s() - began;
        row->flop += work.flop;
        row->calls += work.bytes > 0;
      }
    }
  }
  iso_team_barrier(worker->team);
  if (hands) hand_over(exec, end, &due);
}

static void run_phase(iso_exec *exec, int phase, const iso_frame *frame, iso_worker *worker) {
  const int *begin = exec->program->phase_begin;
  run_instructions(exec, begin[phase], begin[phase + 1], frame, worker);
}

static void bind_inputs(iso_exec *exec, const iso_inputs *inputs, int64_t first_row) {
  const int32_t *const arrays[4] = {inputs->tokens, inputs->labels, inputs->positions, inputs->segments};
  for (int i = 0; i < 4; i++)
    if (exec->input_ids[i] >= 0) exec->inputs[exec->input_ids[i]] = arrays[i] ? arrays[i] + first_row : NULL;
}

static void frame_init(iso_frame *frame, iso_exec *exec, iso_step *step) {
  memcpy(frame->base, exec->base, sizeof frame->base);
  frame->base[ISO_SPACE_REDUCED] = exec->flat->reduced;
  frame->inputs = exec->inputs;
  frame->kernels = iso_device_kernels(exec->device);
  frame->flat = exec->flat;
  frame->step = step;
  frame->exchanged = exec->exchange != NULL;
}

/* buffers[left] += buffers[left + 1] */
static void fold_gradients(const iso_exec *exec, int left, const iso_worker *worker) {
  const int64_t elements = exec->flat->options.elements;
  float *sums = exec->flat->gradients;
  const iso_flat_add_args args = {sums + left * elements, sums + (left + 1) * elements, 0, elements};
  const iso_work work = {elements, 3 * elements * (int64_t)sizeof(float)};
  const double began = exec->trace ? iso_clock_s() : 0;
  iso_device_kernels(exec->device)->flat_add(&args, worker);
  if (exec->trace) iso_exec_trace_add(exec->trace, worker->thread, ISO_EVENT_FOLD, -1, work, began);
  iso_team_barrier(worker->team);
}

static double micro_loss(const iso_exec *exec) {
  double sum = 0;
  for (int64_t row = 0; row < exec->program->graph->tokens; row++) sum += exec->losses[row];
  return sum;
}

static double fold_losses(const double *leaves, int64_t workers) {
  double sums[MAX_TREE_DEPTH] = {0};
  int depth = 0;
  for (int64_t leaf = 0; leaf < workers; leaf++) {
    sums[depth++] = leaves[leaf];
    for (int64_t done = leaf + 1; done % 2 == 0; done /= 2) {
      depth--;
      sums[depth - 1] += sums[depth];
    }
  }
  return sums[0];
}

/* How many partial sums of leaves from `first` on are added to that of `leaf` once it is complete. */
static int folds_behind(int64_t leaf, int64_t first) {
  int folds = 0;
  for (int64_t start = leaf, size = 1; (start & size) && start - size >= first; start -= size, size *= 2) folds++;
  return folds;
}

static void run_leaves(dispatch *d, iso_frame *frame, iso_worker *worker) {
  iso_exec *exec = d->exec;
  iso_step *step = d->step;
  const iso_exchange *exchange = exec->exchange;
  const int64_t rows = exec->program->graph->tokens;
  const int64_t first = exchange ? exchange->first : 0, end = exchange ? first + exchange->count : step->workers;
  const bool rounds = d->update && exec->handovers;
  double losses[MAX_TREE_DEPTH] = {0};
  int depth = 0;
  for (int64_t leaf = first; leaf < end; leaf++) {
    const bool folds = !rounds || leaf + 1 < end; /* else each gradient does before it is rounded */
    const int fold_count = folds_behind(leaf, first);
    if (exec->flat->gradients)
      frame->base[ISO_SPACE_GRAD] = (char *)(exec->flat->gradients + depth * exec->flat->options.elements);
    losses[depth] = 0;
    frame->leaf = leaf;
    for (int64_t micro = 0; micro < step->micros; micro++) {
      if (worker->thread == 0) bind_inputs(exec, &step->inputs, (leaf * step->micros + micro) * rows);
      iso_team_barrier(worker->team);
      frame->first_micro = micro == 0;
      frame->last_micro = rounds && leaf + 1 == end && micro + 1 == step->micros;
      frame->depth = depth;
      frame->folds = fold_count;
      run_phase(exec, ISO_PHASE_MICRO, frame, worker);
      if (worker->thread == 0) losses[depth] += micro_loss(exec);
    }
    if (worker->thread == 0 && exchange) exchange->losses[leaf] = losses[depth];
    depth++;
    for (int i = 0; i < fold_count; i++) {
      depth--;
      if (folds) fold_gradients(exec, depth - 1, worker);
      losses[depth - 1] += losses[depth];
    }
  }
  frame->base[ISO_SPACE_GRAD] = (char *)exec->flat->gradients;
  frame->last_micro = false;
  frame->leaf = -1;
  if (worker->thread == 0 && !exchange) step->loss_sum = losses[0];
}

/* What all ranks have summed. false: they do not go on. */
static bool exchange_sums(dispatch *d, iso_frame *frame, const iso_worker *worker) {
  const iso_exchange *exchange = d->exec->exchange;
  iso_step *step = d->step;
  if (worker->thread == 0) {
    watch_stop(d, ISO_WAIT_REDUCE);
    step->status = exchange->reduce(exchange->self, step);
    watch_start(d);
    if (step->status == ISO_OK) step->loss_sum = fold_losses(exchange->losses, step->workers);
  }
  iso_team_barrier(worker->team);
  frame->base[ISO_SPACE_REDUCED] = d->exec->flat->reduced;
  return step->status == ISO_OK;
}

/* What still reads the state may take its time: a snapshot whose disk is slow. */
static void pass_gate(dispatch *d, const iso_worker *worker) {
  const iso_exec *exec = d->exec;
  const iso_exchange *exchange = worker->thread == 0 ? exec->exchange : NULL;
  if (worker->thread == 0) watch_stop(d, ISO_WAIT_STORAGE);
  if (exchange) exchange->excuse(exchange->self, true);
  exec->gate(exec->gate_context, worker);
  if (exchange) exchange->excuse(exchange->self, false);
  if (worker->thread == 0) watch_start(d);
}

/* With the other ranks. false: the step ends here. (All threads have read the status of before.) */
static bool meet_ranks(dispatch *d, iso_status (*meet)(void *self), const iso_worker *worker) {
  iso_step *step = d->step;
  iso_team_barrier(worker->team);
  if (worker->thread == 0) {
    watch_stop(d, ISO_WAIT_REDUCE);
    step->status = meet(d->exec->exchange->self);
    step->torn = step->status != ISO_OK;
    watch_start(d);
  }
  iso_team_barrier(worker->team);
  return step->status == ISO_OK;
}

/* The compute copy of what others have updated, from the masters that all share. */
static void gather_weights(const iso_exec *exec, const iso_worker *worker) {
  const iso_flat *flat = exec->flat;
  const int64_t ranges[2][2] = {{0, flat->own_begin}, {flat->own_end, flat->options.elements}};
  for (int i = 0; i < 2; i++) {
    const int64_t begin = ranges[i][0], count = ranges[i][1] - begin;
    if (count <= 0) continue;
    const iso_cast_args args = {{flat->master + begin, 1, count, count, ISO_F32},
                                {flat->weights + begin, 1, count, count, ISO_BF16}};
    iso_device_kernels(exec->device)->cast(&args, worker);
  }
}

static void update(dispatch *d, const iso_frame *frame, iso_worker *worker) {
  iso_exec *exec = d->exec;
  const iso_exchange *exchange = exec->exchange;
  const bool shares = exchange && exchange->update;
  if (shares && !meet_ranks(d, exchange->update, worker)) return;
  run_phase(exec, ISO_PHASE_UPDATE, frame, worker);
  if (!shares || !meet_ranks(d, exchange->updated, worker) || d->step->refused) return;
  if (exec->flat->weights && !exec->flat->options.shared->weights) gather_weights(exec, worker);
}

static void run_thread(void *argument, int thread) {
  dispatch *d = argument;
  iso_worker worker = {thread, iso_device_threads(d->exec->device), iso_device_team(d->exec->device), NULL};
  iso_frame frame = {0};
  frame_init(&frame, d->exec, d->step);
  if (!d->step) {
    frame.cache_offset = d->cache_offset;
    frame.first_micro = true;
    run_phase(d->exec, ISO_PHASE_MICRO, &frame, &worker);
    return;
  }
  d->exec->delays[thread].seconds = 0;
  delay_begin(d, thread);
  run_leaves(d, &frame, &worker);
  iso_team_barrier(worker.team);
  if (d->update && (!d->exec->exchange || exchange_sums(d, &frame, &worker))) {
    if (d->exec->gate) pass_gate(d, &worker);
    update(d, &frame, &worker);
  }
  delay_end(d, thread);
}

void iso_exec_forward(iso_exec *exec, const iso_inputs *inputs, int64_t offset) {
  bind_inputs(exec, inputs, 0);
  dispatch d = {.exec = exec, .inputs = inputs, .cache_offset = offset};
  iso_team_run(iso_device_team(exec->device), run_thread, &d);
}

/* Waking the team, and waiting for the last of it, is part of computing. */
static void take(dispatch *d) {
  d->step->compute_s = 0;
  d->step->wait_count = 0;
  d->going_s = iso_clock_s();
  iso_team_run(iso_device_team(d->exec->device), run_thread, d);
  d->step->compute_s += iso_clock_s() - d->going_s;
  watch_sum(d, iso_device_threads(d->exec->device));
}

void iso_exec_step(iso_exec *exec, iso_step *step) {
  assert(exec->flat->gradients || (step->workers == 1 && step->micros == 1));
  dispatch d = {.exec = exec, .step = step, .update = true};
  const iso_exchange *exchange = exec->exchange;
  step->torn = false;
  if (exchange) exchange->begin(exchange->self, step);
  if (exchange) exchange->excuse(exchange->self, false);
  take(&d);
  if (exchange) exchange->excuse(exchange->self, true);
}

void iso_exec_exchange_set(iso_exec *exec, const iso_exchange *exchange) {
  assert(!exchange || (exec->handovers && exec->flat->gradients));
  exec->exchange = exchange;
}

void iso_exec_trace_set(iso_exec *exec, iso_exec_trace *trace) {
  exec->trace = trace;
}

void iso_exec_gate_set(iso_exec *exec, iso_exec_gate *gate, void *context) {
  exec->gate = gate;
  exec->gate_context = context;
}

void iso_exec_handover_set(iso_exec *exec, iso_exec_handover *handover, void *context) {
  exec->handover = handover;
  exec->handover_context = context;
}

void iso_exec_gradients(iso_exec *exec, iso_step *step) {
  assert(exec->flat->gradients && !exec->exchange);
  dispatch d = {.exec = exec, .step = step};
  take(&d);
}

void iso_exec_profile(iso_exec *exec, bool on) {
  exec->profiling = on;
  memset(exec->profile, 0, sizeof exec->profile);
}

void iso_exec_profile_print(const iso_exec *exec, FILE *out) {
  double total = 0;
  for (int op = 0; op < ISO_OP_COUNT; op++) total += exec->profile[op].seconds;
  fprintf(out, "%-22s %8s %10s %7s %10s\n", "op", "calls", "seconds", "share", "GFLOP/s");
  for (int op = 1; op < ISO_OP_COUNT; op++) {
    const op_profile *row = &exec->profile[op];
    if (!row->calls) continue;
    fprintf(out, "%-22s %8lld %10.4f %6.1f%% %10.1f\n", iso_op_get((iso_op)op)->text, (long long)row->calls,
            row->seconds, total > 0 ? 100 * row->seconds / total : 0,
            row->seconds > 0 ? (double)row->flop / row->seconds * 1e-9 : 0);
  }
}
