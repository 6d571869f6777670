/* SPDX-License-Identifier: Apache-2.0
 *
 * exec: runs programs. A device (the CPU) binds ops to its kernels, owns the memory and the thread team.
 *
 * Invariants
 *  1. Every thread of the team walks the same instruction list; where an instruction says so they meet first.
 *  2. After iso_exec_create() no call here allocates or maps memory.
 *  3. The gradient of virtual worker i is leaf i of one fixed binary tree, whatever the threads; it is divided once, at
 * the root, by the global count of scored tokens and rounded once.
 *  4. A refused step (norm or loss not finite) changes neither weights nor moments.
 */
#ifndef ISO_EXEC_H
#define ISO_EXEC_H

#include "graph/graph.h"
#include "kernels/kernels.h"

/* ---- device.c ------------------------------------------------------------------------------------ */

typedef struct iso_device iso_device;
/* threads 0: the cores this process may use. The tier follows ISOTACH_CPU. */
iso_status iso_device_create(int threads, iso_device **out) ISO_MUST_CHECK;
void iso_device_destroy(iso_device **device);
int iso_device_threads(const iso_device *device);
const iso_kernels *iso_device_kernels(const iso_device *device);
iso_team *iso_device_team(const iso_device *device);
/* Measured now: GFLOP/s of register-only chains, all threads. About 20 ms. */
double iso_device_peak(const iso_device *device, iso_dtype type);
/* By thread `thread` itself: seconds so far that it was ready to run and another had its processor. 0 where the kernel
 * does not say, and for threads from ISO_WATCHED_THREADS on. About 1 us. */
enum { ISO_WATCHED_THREADS = 64 };
double iso_device_run_delay(const iso_device *device, int thread);
bool iso_device_sees_delay(const iso_device *device);

/* ---- flat.c: the state that outlives a step ------------------------------------------------------ */

/* Parts of the flat state that the ranks of a host share: memory of the caller's, zeroed, on 4 KiB borders. */
typedef struct iso_flat_shared {
  float *gradients;    /* buffers x elements, of this rank */
  int64_t buffers;     /* iso_leaf_buffers of its leaves */
  void *reductions[2]; /* of all ranks; [1] may be NULL */
  double *squares;     /* of all ranks */
  /* Once for all ranks of the host, each of which updates its part; NULL: each rank has its own. */
  float *master, *moment1, *moment2;
  iso_bf16 *weights;
  int64_t own_begin, own_end; /* elements that this rank updates */
} iso_flat_shared;

typedef struct iso_flat_options {
  int64_t elements;
  iso_dtype compute, gradient;
  bool train;
  int64_t virtual_workers;       /* 0: no gradient sums, the program rounds each gradient as it is complete */
  bool log;                      /* a second reduced gradient: one is written to the log while a step makes the other */
  const iso_flat_shared *shared; /* used in place of own memory; NULL: this process is alone */
} iso_flat_options;

typedef struct iso_flat {
  iso_flat_options options;
  float *master, *moment1, *moment2;
  iso_bf16 *weights;   /* compute copy; NULL when compute is float32 */
  float *gradients;    /* buffers x elements; NULL when streamed */
  int64_t buffers;     /* log2(W) + 1; 0 when streamed */
  void *reduced;       /* the one in use */
  void *reductions[2]; /* both; [1] is NULL without a log */
  double *squares;
  int64_t own_begin, own_end; /* elements that are updated here */
  size_t slab_bytes;
  void *slab;
} iso_flat;
size_t iso_flat_bytes(const iso_flat_options *options);
/* How many gradient buffers the partial sums of leaves [first, first + count) take at once: log2(W) + 1 for all. */
int64_t iso_leaf_buffers(int64_t first, int64_t count);
iso_status iso_flat_init(iso_flat *flat, const iso_flat_options *options) ISO_MUST_CHECK;
void iso_flat_fini(iso_flat *flat);
/* Which reduced gradient the next steps make: 0 or 1, by the parity of the step where there are two. */
void iso_flat_reduction_use(iso_flat *flat, int64_t step);
/* weights = round(master), on the device's team. */
void iso_flat_refresh(iso_flat *flat, const iso_device *device);

/* ---- exec.c --------------------------------------------------------------------------------------- */

typedef struct iso_exec iso_exec;
/* Bytes beside the flat state: constants, caches, outputs; the transient arena is shared between programs and given. */
size_t iso_exec_bytes(const iso_program *program);
/* Keeps program, flat and arena (at least program->arena_bytes, 64-byte aligned). `caches`: another exec whose
 * key/value caches this one uses too (it outlives this one and was built with as many cache rows), or NULL. */
iso_status iso_exec_create(const iso_device *device, const iso_program *program, iso_flat *flat, void *arena,
                           const iso_exec *caches, iso_exec **out) ISO_MUST_CHECK;
void iso_exec_destroy(iso_exec **exec);
/* Named OUTPUT tensor's memory; NULL: no such output. */
void *iso_exec_output(const iso_exec *exec, const char *name);

/* Pointers to the inputs of one forward pass, [rows] each; those that the program has no input for are ignored. */
typedef struct iso_inputs {
  const int32_t *tokens, *labels, *positions, *segments;
} iso_inputs;

/* Phase MICRO once. offset: rows already in the caches. */
void iso_exec_forward(iso_exec *exec, const iso_inputs *inputs, int64_t offset);

typedef enum iso_wait_kind { ISO_WAIT_REDUCE, ISO_WAIT_STORAGE } iso_wait_kind;
typedef struct iso_wait { /* for others, in a step */
  iso_wait_kind kind;
  double began_s, ended_s; /* iso_clock_s */
} iso_wait;
enum { ISO_EXEC_WAITS = 4 }; /* the reduction, the gate, before and behind an update that is shared */

typedef struct iso_step {
  /* in */
  iso_inputs inputs;       /* of the global batch: B sequences in lane order */
  int64_t workers, micros; /* W leaves of `micros` micro-batches of the program's rows each */
  int64_t scored;          /* scored tokens of the global batch */
  float lr, beta1, beta2, eps, weight_decay, clip_norm; /* clip_norm 0: off */
  float bias1, bias2;                                   /* 1 - beta^t of the step to take */
  const int64_t *decay_ranges;
  int64_t decay_count;
  /* out */
  double loss_sum; /* over scored tokens */
  double norm;     /* of the reduced gradient, before clipping */
  float clip;
  bool refused;
  double compute_s;               /* at the work itself and the meetings within it: neither the gate nor the exchange */
  double preempted_s;             /* of it: the longest that one thread was ready to run and had no processor */
  iso_wait waits[ISO_EXEC_WAITS]; /* between which it was computing, in order */
  int wait_count;
  iso_status status; /* of what ranks do together; unless ISO_OK weights and moments are as before, */
  bool torn;         /* but for this: others may have updated their parts of them */
} iso_step;
/* One optimizer step: all micro-batches of all workers, the tree, the update. scored = 0: the step is refused. A
 * program that streams gradients takes one worker and one micro-batch. */
void iso_exec_step(iso_exec *exec, iso_step *step);
/* Called by every thread before each update, when no one changes the state yet: what still reads it must be done with
 * it when the last one returns (it meets the others inside). NULL: nothing. */
typedef void iso_exec_gate(void *context, const iso_worker *worker);
void iso_exec_gate_set(iso_exec *exec, iso_exec_gate *gate, void *context);
/* Called by thread 0 in a step, once elements [begin, end) of flat->reduced have their final values: nothing writes
 * them until the next step. All are handed over once before the update, in the order in which they are complete. Only a
 * program that rounds gradients one by one calls it (iso_handovers_find). NULL: nothing. */
typedef void iso_exec_handover(void *context, int64_t begin, int64_t end);
void iso_exec_handover_set(iso_exec *exec, iso_exec_handover *handover, void *context);
/* How a process takes its part in the steps of a run of several: it computes leaves, and says of which elements the
 * partial sums are complete while the last pass goes on; all else of the reduced gradient is the exchange's. All
 * functions are called by thread 0; `begin` before the team is at work, `beat` and `part` in between, the others when
 * the team has met. */
typedef struct iso_exchange {
  void *self;
  int64_t first, count; /* leaves that are computed here; the partial sums of their maximal aligned pieces come to lie
                           in flat->gradients, one after another */
  double *losses;       /* [W]; those of its leaves are written before `reduce` */
  void (*begin)(void *self, const iso_step *step); /* which stays until the step is over */
  void (*beat)(void *self);                        /* it gets on: before each instruction */
  void (*excuse)(void *self, bool now);            /* not computing: the others do not count the time */
  /* Elements [begin, end) of the partial sums are final, as in a hand-over. All are, once, before `reduce`. */
  void (*part)(void *self, int64_t begin, int64_t end);
  /* flat->reduced, which is the one that all ranks use in this step, squares and `losses` become those of all. */
  iso_status (*reduce)(void *self, const iso_step *step);
  /* Of state that ranks share: before this rank's part of it is updated, until nobody reads what others will update;
   * and then until all parts are. NULL: it is all this rank's. */
  iso_status (*update)(void *self);
  iso_status (*updated)(void *self);
} iso_exchange;
/* Keeps the exchange; NULL: all leaves and elements are this process's. Between steps. Only for a program that rounds
 * gradients one by one, and keeps sums: where it would round, partial sums are complete. */
void iso_exec_exchange_set(iso_exec *exec, const iso_exchange *exchange);
/* Only the gradients: as iso_exec_step without the update; flat->gradients[0..elements) then holds the root's sum. Not
 * for a program that streams gradients. */
void iso_exec_gradients(iso_exec *exec, iso_step *step);

/* Seconds and FLOP by op since creation, when profiling is on (ISOTACH_PROFILE=1 or iso_exec_profile). */
void iso_exec_profile(iso_exec *exec, bool on);
void iso_exec_profile_print(const iso_exec *exec, FILE *out);

/* ---- handover.c: when parts of the reduced gradient are final ---------------------------------------- */

typedef struct iso_handover {
  int after; /* instruction of phase MICRO */
  int64_t begin, end;
} iso_handover;
/* Elements of the buckets that a state is cut into, by the run's virtual workers (0: one); borders of hand-overs are
 * multiples of it. */
int64_t iso_handover_elements(int64_t elements, int64_t workers);
/* malloc'd, in the order in which they become final; NULL, 0: only the update makes them. */
iso_status iso_handovers_find(const iso_program *program, int64_t workers, iso_handover **list,
                              int *count) ISO_MUST_CHECK;

/* ---- trace.c: which thread ran which instruction when ------------------------------------------------ */

enum { ISO_EVENT_FOLD = -1 }; /* in place of an instruction: two partial sums of the tree are added */
typedef struct iso_work {     /* what one run did, by all threads of this process; zeros: there was nothing to do */
  int64_t flop, bytes;
} iso_work;
typedef struct iso_exec_event {
  double began_s, ended_s; /* iso_clock_s; meeting the other threads before it is not in it */
  iso_work work;
  int32_t instruction; /* of the program, or ISO_EVENT_FOLD */
  int32_t leaf;        /* virtual worker; -1: in the update */
} iso_exec_event;
typedef struct iso_exec_sum { /* of an instruction, by one thread */
  double seconds;
  int64_t calls; /* that had something to do */
  iso_work work; /* of all of them */
} iso_exec_sum;
typedef struct iso_exec_track {
  iso_exec_event *events; /* NULL: only sums are kept */
  iso_exec_sum *sums;     /* by instruction, behind the last one those of ISO_EVENT_FOLD; NULL: events are */
  int64_t count, lost;    /* events; lost: did not fit */
  char apart[32];         /* threads write to cache lines of their own */
} iso_exec_track;
typedef struct iso_exec_trace {
  int threads;
  int64_t capacity; /* events, or sums, of a thread */
  iso_exec_track *tracks;
  void *slab;
  size_t slab_bytes;
} iso_exec_trace;
/* Room for `capacity` events of each thread. */
iso_status iso_exec_trace_create(int threads, int64_t capacity, iso_exec_trace **out) ISO_MUST_CHECK;
/* In place of events what each of so many instructions takes, however often it runs. */
iso_status iso_exec_trace_create_sums(int threads, int instructions, iso_exec_trace **out) ISO_MUST_CHECK;
void iso_exec_trace_clear(iso_exec_trace *trace);
void iso_exec_trace_destroy(iso_exec_trace **trace);
/* From began_s until now. By thread `thread` alone. */
void iso_exec_trace_add(iso_exec_trace *trace, int thread, int instruction, int64_t leaf, iso_work work,
                        double began_s);
/* Steps are recorded into `trace`, which is kept; NULL: they are not. Between steps. */
void iso_exec_trace_set(iso_exec *exec, iso_exec_trace *trace);

/* ---- bind.c --------------------------------------------------------------------------------------- */

/* What an instruction sees: bases of the spaces, the step, the caches' offset. */
typedef struct iso_frame {
  char *base[ISO_SPACE_COUNT];
  const int32_t **inputs; /* by tensor of the graph; set for those in ISO_SPACE_INPUT */
  const iso_kernels *kernels;
  iso_flat *flat;
  iso_step *step;
  int64_t cache_offset;
  int64_t leaf; /* virtual worker, for a trace; -1: none */
  bool first_micro;
  bool last_micro; /* of the step: gradients are complete */
  int depth;       /* then: partial sums before the leaf's */
  int folds;       /* of which so many are added to the leaf's before rounding */
  bool exchanged;  /* others round */
} iso_frame;
/* Calls the instruction's kernel on this worker. */
void iso_instruction_run(const iso_program *program, const iso_instruction *instruction, const iso_frame *frame,
                         iso_worker *worker);
/* What that does: less than the instruction's own numbers where it is another pass's, or another rank's, to do. */
iso_work iso_instruction_work(const iso_instruction *instruction, const iso_frame *frame);

#endif
