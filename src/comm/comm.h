/* SPDX-License-Identifier: Apache-2.0
 *
 * comm: sums of gradients over many ranks, whose bits depend neither on the ranks nor on the hosts they run on.
 *
 * The one idea: the order of additions is a binary tree over virtual workers (leaves), fixed for a run's life. A rank
 * owns a contiguous range of leaves and has summed each maximal aligned piece of it; what travels are those pieces, and
 * whoever owns an element adds them in the tree's order. Ranks of one host read each other's pieces where they lie, in
 * memory that they share; pieces of other hosts come as messages.
 *
 * Invariants
 *  1. The sum of an element is the same bits for any number of ranks, any distribution of leaves and hosts.
 *  2. A collective never waits by itself: it is a state machine that is polled, by a thread or by a simulation.
 *  3. Between two ranks messages come in the order in which they were sent, so they carry no names.
 *  4. A wait has an end: it fails, on all ranks, with one line that names the rank that did not come.
 */
#ifndef ISO_COMM_H
#define ISO_COMM_H

#include <signal.h>
#include <stdatomic.h>

#include "base/base.h"
#include "comm/order.h"

/* ---- tree.c: sums over the fixed tree ---------------------------------------------------------------------------- */

enum { ISO_MOST_LEAVES = 65536, ISO_MOST_PARTS = 34 /* maximal aligned pieces of a range of leaves */ };
/* The sum of leaves [first, first + count): count is a power of two, first a multiple of it. */
typedef struct iso_part {
  int first, count;
  const float *data; /* borrowed */
} iso_part;
/* Cuts [first, first + count), 0 <= first, count and first + count <= ISO_MOST_LEAVES, into the fewest aligned pieces,
 * in order; data is NULL. Returns how many, 0 for no leaves. */
int iso_tree_parts(int first, int count, iso_part parts[ISO_MOST_PARTS]);
enum { ISO_TREE_SCRATCH = 17 * 2048 }; /* floats */
/* out[i], i in [0, elements), is the sum of all leaves' element i, added as the complete binary tree over `workers`
 * leaves (a power of two up to ISO_MOST_LEAVES) says: node [a, a + 2n) is [a, a + n) + [a + n, a + 2n), in float32. The
 * parts, in ascending order, cover each leaf once; each has `elements` elements. `out` may be the data of a part.
 * `scratch` has ISO_TREE_SCRATCH floats. Cannot fail. */
void iso_tree_sum(const iso_part *parts, int workers, int64_t elements, float *out, float *scratch);

/* ---- what a collective stands on --------------------------------------------------------------------------------- */

/* Messages between ranks. One transport carries one collective after another; collectives that are under way together
 * need one each. A peer that is lost leaves requests that never complete: whoever polls bounds the wait. */
typedef struct iso_transport {
  void *self;
  /* A request's number, >= 0; -1: not now, is tried again at the next poll. `bytes` > 0. Memory stays the caller's,
   * untouched until the request is complete. */
  int (*send)(void *self, int peer, const void *data, size_t bytes);
  int (*receive)(void *self, int peer, void *data, size_t bytes);
  bool (*complete)(void *self, int request); /* true once: the request's number is free then */
} iso_transport;

/* What ranks of one host tell each other by memory; one object for each collective. `round` counts from 1. What a rank
 * wrote before it raised a signal is seen by whoever saw the signal. */
typedef struct iso_signals {
  void *self;
  void (*raise)(void *self, int kind, uint64_t round); /* this rank has come to `round` */
  bool (*reached)(void *self, int rank, int kind, uint64_t round);
} iso_signals;
enum iso_signal {
  ISO_SIGNAL_BEGUN, /* what this rank gives is complete */
  ISO_SIGNAL_ENDED, /* this rank no longer touches memory of others, and what it gets for them is there */
  ISO_SIGNAL_KINDS
};

typedef enum iso_poll {
  ISO_POLL_IDLE,  /* nothing to be done now: wait for iso_*_awaits */
  ISO_POLL_MOVED, /* poll again at once */
  ISO_POLL_DONE
} iso_poll;

/* A collective under way, for who waits for it. */
typedef struct iso_collective {
  void *self;       /* borrowed */
  const char *what; /* for messages: "the reduction" */
  iso_poll (*poll)(void *self);
  int (*awaits)(const void *self);
} iso_collective;

/* ---- stream.c: chunks to or from one rank, some of them under way ------------------------------------------------ */

enum { ISO_STREAM_WINDOW = 4 };
typedef struct iso_stream {
  int peer;
  bool sends;                      /* else receives */
  char *data;                      /* only read when it sends */
  int64_t bytes, chunk;            /* of all; of a message at most */
  int64_t at;                      /* bytes that are posted */
  int requests[ISO_STREAM_WINDOW]; /* -1: none */
} iso_stream;
/* From the beginning; none of its requests is under way. */
void iso_stream_begin(iso_stream *stream);
/* Collects what is complete and posts what there is room for. true: something was. */
bool iso_stream_poll(iso_stream *stream, const iso_transport *transport);
bool iso_stream_done(const iso_stream *stream);

/* ---- reduce.c: every rank gets the sums of the elements it owns -------------------------------------------------- */

typedef struct iso_reduce_plan { /* the same on all ranks but for `rank` */
  int ranks, rank, workers;      /* workers: leaves, a power of two up to ISO_MOST_LEAVES */
  const int *first_leaf;         /* [ranks + 1], ascending from 0 to workers: rank r has leaves [r], [r + 1); or none */
  /* [ranks + 1], ascending: rank r owns elements [r], [r + 1); or none. Those of a round: read when one begins, and
   * may change between rounds, for all ranks alike. */
  const int64_t *first_element;
  const int *host; /* [ranks]: those of one number share memory */
  int64_t chunk;   /* elements of a message at most, and of what one poll adds; > 0 */
} iso_reduce_plan;
typedef struct iso_reduce iso_reduce;
/* Keeps the plan's arrays, transport, signals and pieces, which outlive it (not the array `pieces`). pieces[r] for a
 * rank of this host: its pieces, float32, one after another in the order of iso_tree_parts, `stride` elements apart,
 * each with the elements of all rounds; unused for others. The transport may be NULL when all ranks are of one host.
 * Errors: MEMORY, INTERNAL (a plan that contradicts itself). */
iso_status iso_reduce_create(const iso_reduce_plan *plan, const iso_transport *transport, const iso_signals *signals,
                             const float *const *pieces, int64_t stride, iso_reduce **out) ISO_MUST_CHECK;
/* Not while a round is under way, unless the transport is gone too. */
void iso_reduce_destroy(iso_reduce **reduce);
/* Gets sums as they are made, in order: those of elements [begin, begin + count). */
typedef void iso_reduce_consumer(void *self, int64_t begin, int64_t count, const float *sums);
/* For rounds whose `out` is NULL: it gets `grain` sums at once, a multiple of plan.chunk, and at last what is left.
 * Between rounds. MEMORY, INTERNAL. */
iso_status iso_reduce_consumer_set(iso_reduce *reduce, int64_t grain, iso_reduce_consumer *consumer,
                                   void *self) ISO_MUST_CHECK;
/* The rank's own pieces are complete, as far as the round's elements go, and stay untouched until it is done. `out`
 * gets the sums of the elements it owns (NULL: the consumer does); it may lie in one of its own pieces, at just those
 * elements, which nobody else reads. */
void iso_reduce_begin(iso_reduce *reduce, float *out);
/* Goes on without waiting, by at most one chunk. DONE: `out` is complete and nobody reads this rank's pieces any
 * more. */
iso_poll iso_reduce_poll(iso_reduce *reduce);
/* A rank that the round waits for now; -1: none. */
int iso_reduce_awaits(const iso_reduce *reduce);
iso_collective iso_reduce_collective(iso_reduce *reduce);

/* ---- fold.c: what other hosts get of this one in a reduction ----------------------------------------------------- */

/* Who is where. One block of memory. */
typedef struct iso_hosts {
  int count;
  int *of_rank; /* [ranks], in 0 .. count - 1 */
  int *first;   /* [count + 1]: host h has members [h], [h + 1) */
  int *members; /* [ranks]: ranks by host, ascending */
} iso_hosts;
iso_status iso_hosts_create(const iso_reduce_plan *plan, iso_hosts **out) ISO_MUST_CHECK; /* MEMORY */
void iso_hosts_destroy(iso_hosts **hosts);
/* The rank of `host` that sends chunk number `chunk` (from 0) of what rank `owner`, of another host, owns. */
int iso_hosts_sender(const iso_hosts *hosts, int host, int owner, int64_t chunk);
/* The fewest aligned pieces of the leaves of a host's ranks, ascending; data is NULL. Returns how many; `parts` may be
 * NULL. */
int iso_hosts_parts(const iso_hosts *hosts, const iso_reduce_plan *plan, int host, iso_part *parts);
typedef struct iso_fold iso_fold;
/* Keeps what iso_reduce_create keeps, and `hosts`. MEMORY. */
iso_status iso_fold_create(const iso_reduce_plan *plan, const iso_hosts *hosts, const iso_transport *transport,
                           const float *const *pieces, int64_t stride, iso_fold **out) ISO_MUST_CHECK;
void iso_fold_destroy(iso_fold **fold);
/* All ranks of the host have begun the round. */
void iso_fold_begin(iso_fold *fold);
/* Collects what is complete, and adds and posts one message. true: something was done. */
bool iso_fold_poll(iso_fold *fold);
/* A rank that has not taken a message of the round; -1: all are taken, and the round is done. */
int iso_fold_awaits(const iso_fold *fold);

/* ---- gather.c: every host gets the elements of all ranks --------------------------------------------------------- */

typedef struct iso_gather_plan { /* the same on all ranks but for `rank` */
  int ranks, rank;
  const int64_t *first_element; /* as in iso_reduce_plan */
  const int *host;              /* [ranks]: those of one number share memory */
  int64_t chunk;                /* elements of a message at most; > 0 */
  int64_t element_bytes;        /* > 0 */
} iso_gather_plan;
typedef struct iso_gather iso_gather;
/* Keeps the plan's arrays, transport, signals and `whole`, which outlive it. `whole` has all ranks' elements and is one
 * memory for all ranks of a host. The transport may be NULL when all ranks are of one host. Errors: MEMORY, INTERNAL (a
 * plan that contradicts itself). */
iso_status iso_gather_create(const iso_gather_plan *plan, const iso_transport *transport, const iso_signals *signals,
                             void *whole, iso_gather **out) ISO_MUST_CHECK;
/* Not while a round is under way, unless the transport is gone too. */
void iso_gather_destroy(iso_gather **gather);
/* The elements that this rank owns are in `whole`, complete, and stay untouched until the round is done; and it no
 * longer reads the others' elements of before. (When it may write its own, since its neighbours read them, is the
 * caller's to know.) */
void iso_gather_begin(iso_gather *gather);
/* Goes on without waiting. DONE: `whole` is complete, and what this rank owns has gone to all other hosts. */
iso_poll iso_gather_poll(iso_gather *gather);
/* A rank that the round waits for now; -1: none. */
int iso_gather_awaits(const iso_gather *gather);
iso_collective iso_gather_collective(iso_gather *gather);

/* ---- shared.c: memory that the ranks of one host share ----------------------------------------------------------- */

typedef struct iso_shared_layout {
  const int *ranks;    /* [count]: the numbers of this host's ranks, ascending */
  int count;           /* 1 to 4096 */
  int channels;        /* collectives with signals of their own; >= 1 */
  size_t rank_bytes;   /* of each rank's region */
  size_t common_bytes; /* of the region of all */
} iso_shared_layout;
/* Makes the memory, zeroed, as a file without a name: when the last process that has it is gone, so is the memory.
 * Processes get it by inheriting *fd (which an exec closes unless the caller clears FD_CLOEXEC), or by opening
 * /proc/PID/fd/FD; *fd is the caller's to close. Errors: MEMORY, IO, INTERNAL (a layout that contradicts itself). */
iso_status iso_shared_create(const iso_shared_layout *layout, int *fd) ISO_MUST_CHECK;
typedef struct iso_shared iso_shared;
/* This process becomes `rank`, and has the memory until iso_shared_close; `fd` stays the caller's. Errors: FORMAT (not
 * made by iso_shared_create of this version), NOT_FOUND (no such rank on this host), BUSY (another process is this
 * rank, or was), MEMORY, IO. */
iso_status iso_shared_open(int fd, int rank, iso_shared **out) ISO_MUST_CHECK;
/* Leaves: a rank that waits for this one afterwards fails. */
void iso_shared_close(iso_shared **shared);
/* On page borders; NULL: a rank of another host. */
void *iso_shared_region(const iso_shared *shared, int rank);
void *iso_shared_common(const iso_shared *shared);
/* For the one collective of channel [0, channels); valid until close. */
const iso_signals *iso_shared_signals(const iso_shared *shared, int channel);
/* What a rank shows of itself to those that wait for it. Times are ns of this host's CLOCK_MONOTONIC. */
typedef struct iso_signs {
  _Atomic int64_t awaits; /* rank + 1; 0: does not wait */
  _Atomic int64_t beat;   /* when it last waited */
  _Atomic int64_t work;   /* when it last said that it got on with what the others wait for */
  _Atomic int64_t alive;  /* when its process was last seen to run; 0: nobody looks (pulse.c) */
  _Atomic int excused;    /* it is at something else, and takes as long as that takes */
} iso_signs;
/* Signs of the ranks of other hosts, which who waits goes by too, and names for messages. Borrowed. */
typedef struct iso_away {
  const iso_signs *signs;                          /* [ranks]; unused for those of this host */
  const char *(*name)(const void *self, int rank); /* of a rank's host */
  const void *self;
  void (*tell)(void *pulse, int lost); /* passes the verdict on, that this rank is lost, to other hosts */
  void *pulse;
} iso_away;
/* Before any wait. NULL: all ranks are of this host. */
void iso_shared_look_away(iso_shared *shared, const iso_away *away);
/* Not 0: a launcher has asked for the end, as it does when a rank has died, so that a rank of another host of which
 * nothing is heard was lost. Borrowed. */
void iso_shared_hurry(iso_shared *shared, const volatile sig_atomic_t *hurry);
iso_signs *iso_shared_signs(const iso_shared *shared); /* of this rank */
/* What is known of a rank that did not come, as one number; 0: nothing. The first one stays. */
uint64_t iso_shared_verdict(const iso_shared *shared);
void iso_shared_verdict_adopt(iso_shared *shared, uint64_t verdict);
/* This rank gets on with what the others wait for: it is not silent yet. Between two of these, and from the last one to
 * its wait, should be less than the others' timeout_s. */
void iso_shared_beat(iso_shared *shared);
/* Whether this rank is at something that may take any time (a slow disk). Who waits for it then waits on, but not for a
 * process that is gone. At first it is not excused. */
void iso_shared_excuse(iso_shared *shared, bool excused);
/* Polls until the collective is done. Fails with IO when a rank is gone, has left, or did nothing for `timeout_s` > 0;
 * the first rank that finds this says so to its host, and from then on every wait there fails with the same rank in its
 * one line: a rank that was stopped fails too when it goes on. `step` is for the message. The collective is in an
 * unknown state afterwards. */
iso_status iso_shared_wait(iso_shared *shared, iso_collective collective, int64_t step,
                           double timeout_s) ISO_MUST_CHECK;
/* Until this rank of the host has left or is gone, at most so long. */
void iso_shared_await_end(iso_shared *shared, int rank, double seconds);
/* Fails in the same way if a rank is gone, now or within `seconds`. */
iso_status iso_shared_look(iso_shared *shared, int64_t step, double seconds) ISO_MUST_CHECK;

/* ---- launch.c: what the launcher's environment says -------------------------------------------------------------- */

typedef struct iso_launch {
  const char *launcher; /* "Open MPI's mpirun"; NULL: nobody, this is one process, rank 0 of 1 */
  int rank, ranks;      /* ranks -1: it does not say (PMIx) */
  /* Among the ranks that it started on this host; -1: it does not say. */
  int local_rank, local_ranks;
  const char *host;  /* its name for this host, the environment's; NULL: it does not say */
  bool disconnected; /* srun without --mpi: nothing by which MPI could find the other ranks */
} iso_launch;
/* Open MPI's mpirun, MPICH's Hydra, Slurm's srun, and others that set PMI_RANK and PMI_SIZE, or PMIX_RANK. `get` is
 * getenv with a context. USAGE: a bad number, half of a pair, numbers or launchers that contradict each other. */
iso_status iso_launch_read(const char *(*get)(void *self, const char *name), void *self,
                           iso_launch *out) ISO_MUST_CHECK;
/* Does MPI see the ranks that the launcher started? MISMATCH; the common cause is an mpirun of one MPI with the module
 * of another, which makes N worlds of one rank each. `library` is the module's, for the message. */
iso_status iso_launch_check(const iso_launch *launch, int rank, int ranks, const char *library) ISO_MUST_CHECK;

/* ---- topology.c: what this host is made of ----------------------------------------------------------------------- */

enum { ISO_MOST_CPUS = 8192 };
typedef struct iso_cpu_set {
  uint64_t words[ISO_MOST_CPUS / 64]; /* CPU n: bit n % 64 of word n / 64 */
} iso_cpu_set;
bool iso_cpu_set_has(const iso_cpu_set *set, int cpu);
void iso_cpu_set_put(iso_cpu_set *set, int cpu); /* cpu in [0, ISO_MOST_CPUS) */
int iso_cpu_set_count(const iso_cpu_set *set);

typedef enum iso_site_kind {
  ISO_SITE_HOST,
  ISO_SITE_PACKAGE,
  ISO_SITE_NUMA,
  ISO_SITE_CACHE, /* that more than one core shares */
  ISO_SITE_CORE,
  ISO_SITE_CPU, /* a hardware thread */
  ISO_SITE_KINDS
} iso_site_kind;
typedef struct iso_site {
  iso_site_kind kind;
  int level;        /* of a cache; else 0 */
  int number;       /* the operating system's; -1: it has none */
  int64_t bytes;    /* of a cache, or of a NUMA node's memory; else 0 */
  iso_cpu_set cpus; /* may be empty: memory without CPUs */
  int parent;       /* index; -1 for the host */
  int depth;        /* 0 for the host */
} iso_site;
typedef struct iso_topology {
  char host[256];
  char source[64];    /* "hwloc", "/sys" */
  bool elsewhere;     /* hwloc describes another machine, as its environment variables may say */
  iso_cpu_set usable; /* that this process may run on; empty when elsewhere */
  iso_site *places;   /* each before what it contains; [0] is the host */
  int count;
  int kinds[ISO_SITE_KINDS]; /* places of each kind */
} iso_topology;
/* Asks hwloc; without it, or when it fails, /sys, and a warning says why. Errors: FORMAT, MEMORY, NOT_FOUND,
 * UNSUPPORTED. */
iso_status iso_topology_create(iso_topology **out) ISO_MUST_CHECK;
void iso_topology_destroy(iso_topology **topology);
/* The same from the files below `root` ("/sys") alone, for tests too; no CPU is usable. */
iso_status iso_topology_from_sys(const char *root, iso_topology **out) ISO_MUST_CHECK;
/* Adds a place, in any order; for what reads a topology. MEMORY. */
iso_status iso_topology_add(iso_topology *topology, iso_site_kind kind, int level, int number, int64_t bytes,
                            const iso_cpu_set *cpus) ISO_MUST_CHECK;

/* ---- topology_hwloc.c, topology_sys.c: who adds the places --------------------------------------------------------
 */

/* *cause: why not, NULL when all is added. MEMORY, UNSUPPORTED (a CPU of a higher number than ISO_MOST_CPUS has room
 * for). */
iso_status iso_topology_read_hwloc(iso_topology *topology, const char **cause) ISO_MUST_CHECK;
iso_status iso_topology_read_sys(iso_topology *topology, const char *root) ISO_MUST_CHECK;
/* "0-3,8" and a newline or not. false: malformed, or a CPU that is too high. */
bool iso_cpu_set_parse(const char *text, iso_cpu_set *out);

/* ---- pairs.c: of which cores the way between them is measured ------------------------------------------------------
 */

typedef struct iso_core_pair {
  int cpus[2];            /* one of each core, cpus[0] of the one that stands first in the tree */
  const iso_site *common; /* the smallest place that has both */
  int turn;               /* how many of its kind (common's kind and level) come before it */
} iso_core_pair;
enum { ISO_MOST_PAIRS = 48 };
/* Of the cores that have a usable CPU: all pairs, or evenly as many of each kind; those of one turn together, so that
 * each kind is met early. Returns how many; *all is how many pairs there are. */
int iso_core_pairs(const iso_topology *topology, iso_core_pair pairs[ISO_MOST_PAIRS], int64_t *all);

/* ---- link.c: how fast two CPUs of this host pass on what they write ------------------------------------------------
 */

typedef struct iso_spread {
  double median, low, high; /* low, high: quartiles */
} iso_spread;
typedef struct iso_link {
  int cpus[2];
  iso_spread latency_ns; /* from a store by one to its being seen by the other */
  iso_spread gb_per_s;   /* at which the second copies what the first has just written */
} iso_link;
/* Two threads, one on each CPU, over memory as processes share it; some milliseconds. *measured is false when
 * iso_clock_s() came to `until_s` first: CPUs that are busy with others. IO: no such threads can be had. */
iso_status iso_link_measure(int a, int b, double until_s, iso_link *out, bool *measured) ISO_MUST_CHECK;

/* ---- module.c: MPI, which is found at run time ------------------------------------------------------------------- */

enum { ISO_MPI_VERSION = 2, ISO_MPI_LANES = 2 };
/* What the module isotach-mpi.so gives (mpi.c, the only file that includes mpi.h). Functions return 0, or another
 * number with the cause in error[capacity]. All ranks call gather and reduce_scatter together; all are those that the
 * launcher started. Any thread may call any of them, one at a time or at once. */
typedef struct iso_mpi {
  int version;
  int (*init)(int *rank, int *ranks, char *error, size_t capacity); /* once in a process's life; first */
  int (*finalize)(char *error, size_t capacity);
  const char *(*library)(void); /* "Open MPI v4.1.4"; valid after init */
  /* all[r * bytes]: what rank r gave */
  int (*gather)(const void *mine, void *all, int bytes, char *error, size_t capacity);
  /* MPI_Reduce_scatter of float32 sums: rank r gets counts[r] of them; for comparison. */
  int (*reduce_scatter)(const float *in, float *out, const int *counts, char *error, size_t capacity);
  /* As in iso_transport. Messages of one lane [0, ISO_MPI_LANES) never match those of another. */
  int (*send)(int lane, int peer, const void *data, size_t bytes);
  int (*receive)(int lane, int peer, void *data, size_t bytes);
  bool (*complete)(int request);
} iso_mpi;
/* The module's one symbol. */
const iso_mpi *iso_mpi_module(void);
/* Is the module there, beside the program or where it is installed? */
bool iso_mpi_exists(void);
/* Loads it, for the process's life; where there is one for each MPI, the one that the launcher in the environment is
 * of. UNSUPPORTED, with the package to install, when it is missing or cannot be loaded. */
iso_status iso_mpi_load(const iso_mpi **out) ISO_MUST_CHECK;

/* ---- world.c: the ranks that a launcher has started, and on which hosts they are ----------------------------------
 */

enum { ISO_EXIT_LOST_RANK = 9 /* a process's, when another rank was lost; an I/O error as a status */ };
typedef struct iso_world iso_world;
/* Loads MPI, and checks that it sees the ranks that `launch` (kept) speaks of. Errors: UNSUPPORTED, MISMATCH, IO. */
iso_status iso_world_open(const iso_launch *launch, iso_world **out) ISO_MUST_CHECK;
/* All ranks: the end, which MPI must be told of. If others do not come within some seconds, the process ends with
 * `code`. Not when a rank was lost. */
void iso_world_close(iso_world **world, int code);
int iso_world_rank(const iso_world *world);
int iso_world_ranks(const iso_world *world);
const char *iso_world_launcher(const iso_world *world);
/* Of a rank: a number, ascending from 0 by the first rank of each; and the name. Ranks are of one host when they can
 * share memory. */
int iso_world_host(const iso_world *world, int rank);
const char *iso_world_host_name(const iso_world *world, int rank);
int iso_world_hosts(const iso_world *world);
/* All ranks, before anything stands on their numbers: ranks and hosts are numbered in rank 0's `order` (the others give
 * NULL), whose hosts are this world's and begin with rank 0's. Takes it. MEMORY, IO, agreed on. */
iso_status iso_world_reorder(iso_world *world, iso_order *order) ISO_MUST_CHECK;
/* The order that they are numbered in; of ranks other than 0 without paths and source. NULL: the launcher's. */
const iso_order *iso_world_order(const iso_world *world);
/* The launcher's number of a rank. */
int iso_world_launched(const iso_world *world, int rank);
/* all[r * bytes]: what rank r gave. IO. */
iso_status iso_world_gather(iso_world *world, const void *mine, void *all, size_t bytes) ISO_MUST_CHECK;
/* The status of all: that of the lowest rank that has failed, which says the cause if it was quiet. */
iso_status iso_world_agree(iso_world *world, iso_status status) ISO_MUST_CHECK;
/* From the first rank of each host to the others of it: the file `fd` (-1: none, an error that is agreed on), opened
 * anew. *out is the caller's to close; fd stays its own. */
iso_status iso_world_pass_file(iso_world *world, int fd, int *out) ISO_MUST_CHECK;

/* Messages between hosts. */
const iso_transport *iso_world_transport(const iso_world *world);
const iso_mpi *iso_world_mpi(const iso_world *world);

/* ---- pulse.c: ranks show that they run, to other hosts by messages -------------------------------------------------
 */

typedef struct iso_pulse iso_pulse;
/* A thread of this process shows that it runs, tells the ranks of other hosts what this one shows to its own, and the
 * verdict, and hears theirs. `timeout_s`: of waits. Keeps all; from now on waits in `shared` go by it. */
iso_status iso_pulse_start(const iso_world *world, iso_shared *shared, double timeout_s,
                           iso_pulse **out) ISO_MUST_CHECK;
/* All ranks, at the end; `lost`: the others are not waited for. */
void iso_pulse_stop(iso_pulse **pulse, bool lost);

#endif
