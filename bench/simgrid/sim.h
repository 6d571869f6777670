/* SPDX-License-Identifier: Apache-2.0
 *
 * Weak scaling on a simulated cluster: src/comm's collectives, as they are, on SimGrid's SMPI (3.32).
 *
 * A rank is two processes of SMPI on one host: one computes (backward pass, layer by layer, as sleep of the time that
 * its operations take at the cluster's published speed), one is what the engine's reducing thread is: it takes the
 * buckets in the order in which the backward pass completes them and polls reduce-scatter, gathering of the gradient
 * and gathering of the norms' squares to their ends, bucket after bucket. Flat rings do the same work as baselines.
 *
 * Invariants
 *  1. The collectives are libiso_comm's: no copy of them is here. They are polled; only between polls does a process
 * wait.
 *  2. Time passes by messages, by sums (charged by iso_tree_sum's name at link time: what it reads and writes, at a
 * thread's share of memory) and by computing; never by what this machine takes to simulate.
 *  3. With --check sums and messages are real, and compared with recursion over the leaves.
 *
 * What is not here: the log, input, the MPI library's own overhead of a message, other jobs of the cluster.
 */
#ifndef ISO_BENCH_SIMGRID_H
#define ISO_BENCH_SIMGRID_H

#include <mpi.h>

#include "comm/comm.h"

enum { CHUNK = 65536 /* train/ranks.c: a norm block */, PART = CHUNK / 4 /* where each rank is alone on its host */ };

static const double HOST_MEMORY = 281.6e9, CORE_SPEED = 104.8e9, LINK = 12.5e9, CABLE_LATENCY = 300e-9;
static const double LOCAL_LATENCY = 200e-9;
enum { HOST_CORES = 56, LEAF_HOSTS = 44, UPLINKS = 36 /* of LINK each */ };

typedef enum algorithm { OURS, RING, RING_BLIND, ALGORITHMS } algorithm;

typedef struct setup {
  algorithm algorithm;
  int ranks, mates, per_leaf; /* ranks of a host; hosts of a leaf switch */
  int layers, width, vocabulary, sequence;
  double faster; /* computing, times */
  /* What one thread reads and writes of memory, bytes a second. Assumed, 12e9: a core of this kind is bound by its
   * outstanding misses to 12 to 14 GB/s of a socket's 140.8; the threads of a host together do not exhaust that. */
  double memory;
  int64_t bucket;          /* elements; as the engine's unless it is given */
  int64_t gradient_bytes;  /* of an element that is gathered */
  bool on_paper;           /* only what is predicted */
  bool check, only_reduce; /* real sums; no computing: all is complete at the start */
} setup;

/* ---- model.c: what a step is, and how long it should take -------------------------------------------------------- */

int64_t model_elements(const setup *s);
double forward_seconds(const setup *s);
/* After the backward pass's start, until `elements` of the gradient, from the model's end, are complete. */
double complete_seconds(const setup *s, int64_t elements);
double backward_seconds(const setup *s);
double update_seconds(const setup *s);
/* What the simulation should say: seconds of the step, or of the reduction alone. */
double predict(const setup *s);

/* ---- mesh.c: transport and signals over SMPI --------------------------------------------------------------------- */

typedef struct mesh mesh;
mesh *mesh_create(const setup *s, int rank, const int *host);
void mesh_destroy(mesh *m);
const iso_transport *mesh_transport(mesh *m);
const iso_signals *mesh_signals(mesh *m, int channel);
/* Polls it until it is done. */
void mesh_run(mesh *m, iso_collective collective);
/* The thread reads and writes so many bytes. */
void charge(const setup *s, double bytes);

/* ---- rings.c: baselines ------------------------------------------------------------------------------------------ */

typedef struct ring ring;
/* order[ranks]: who follows whom; by hosts, or, where the algorithm knows no hosts, a seeded permutation. */
void ring_order(const setup *s, int *order);
ring *ring_create(const setup *s, int rank, const int *order);
void ring_destroy(ring *r);
/* Reduce-scatter and all-gather of a bucket. */
void ring_run(ring *r, int64_t elements);

#endif
