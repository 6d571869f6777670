/* SPDX-License-Identifier: Apache-2.0
 *
 * The reduced gradient of ranks, made by a thread of its own while the backward pass goes on.
 *
 * The state is cut into buckets. exec says which elements of this rank's partial sums are complete; once a bucket is,
 * and all that come before it in the order that the ranks have agreed on, the thread drives it through its collectives:
 * reduction (each rank gets sums of an equal part of the bucket, which it rounds while they are in cache, summing the
 * squares of its norm blocks), gathering, and the hand-over to the log, which reads it where it lies.
 *
 * Invariants
 *  1. All ranks take the same buckets in the same order, one after another; rank 0's program makes the order. (Programs
 *     may differ between ranks where bits do not.)
 *  2. Bits depend neither on the buckets nor on who owns what: each element is summed in the tree's order, and norm
 *     blocks are not cut.
 *  3. Before the first bucket the ranks have agreed on the step. What fails ends the step; the thread says it then, and
 *     who computes hears of it at the end of the backward pass.
 *  4. The thread sleeps unless a bucket is there to be reduced.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "train/reducer.h"

struct iso_reducer {
  iso_reducer_options o;
  int count; /* of buckets */
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  /* under the lock */
  bool stop, under_way;
  bool *complete;    /* of this step: by bucket */
  int ready;         /* so many, in order, are complete */
  iso_status status; /* of the step */
  int64_t step;      /* its number */
  float scored;      /* in it, by all */
  /* of the thread */
  void *reduced;
};

static int64_t least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

/* Sums of whole norm blocks, but for the state's last. */
static void round_sums(void *self, int64_t begin, int64_t count, const float *sums) {
  const iso_reducer *r = self;
  const iso_worker alone = {.threads = 1};
  const iso_grad_round_args args = {
      .sum = sums,
      .reduced = (char *)r->reduced + (size_t)begin * iso_dtype_size(r->o.gradient),
      .reduced_type = r->o.gradient,
      .squares = r->o.squares + begin / ISO_NORM_BLOCK,
      .count = r->scored,
      .end = count,
  };
  r->o.kernels->grad_round(&args, &alone);
}

void iso_reducer_share(int ranks, int64_t begin, int64_t end, int64_t *owners, int64_t *block_owners) {
  const int64_t blocks = (end - begin + ISO_NORM_BLOCK - 1) / ISO_NORM_BLOCK;
  for (int rank = 0; rank <= ranks; rank++) {
    const int64_t first = blocks * rank / ranks;
    block_owners[rank] = begin / ISO_NORM_BLOCK + first;
    owners[rank] = least(begin + first * ISO_NORM_BLOCK, end);
  }
}

static iso_status gather(iso_reducer *r, iso_gather *which) {
  iso_gather_begin(which);
  return r->o.wait(r->o.self, iso_gather_collective(which), r->step);
}

static iso_status reduce_bucket(iso_reducer *r, int bucket, int reduction) {
  const int64_t begin = bucket * r->o.bucket, end = least(begin + r->o.bucket, r->o.elements);
  const int64_t elements = end - begin;
  iso_reducer_share(r->o.ranks, begin, end, r->o.owners, r->o.block_owners);
  double began = iso_span_begin();
  iso_reduce_begin(r->o.reduce, NULL);
  ISO_TRY(r->o.wait(r->o.self, iso_reduce_collective(r->o.reduce), r->step));
  iso_span_end(ISO_STREAM_COMM, began, "reduce", bucket, elements * (int64_t)sizeof(float));
  began = iso_span_begin();
  ISO_TRY(gather(r, r->o.gradients[reduction]));
  if (r->o.gather_squares) ISO_TRY(gather(r, r->o.gather_squares));
  iso_span_end(ISO_STREAM_COMM, began, "gather", bucket, elements * (int64_t)iso_dtype_size(r->o.gradient));
  if (r->o.handover) r->o.handover(r->o.handover_context, begin, end);
  return ISO_OK;
}

static bool await_bucket(iso_reducer *r, int turn) {
  pthread_mutex_lock(&r->lock);
  while (r->ready <= turn && !r->stop) pthread_cond_wait(&r->changed, &r->lock);
  const bool there = r->ready > turn;
  pthread_mutex_unlock(&r->lock);
  return there;
}

static iso_status reduce_all(iso_reducer *r) {
  int reduction;
  const double began = iso_span_begin();
  ISO_TRY(r->o.agree(r->o.self, &reduction));
  iso_span_end(ISO_STREAM_COMM, began, "agree", r->step, 0);
  r->reduced = r->o.reductions[reduction];
  for (int turn = 0; turn < r->count; turn++) {
    if (!await_bucket(r, turn)) return ISO_STOPPED;
    ISO_TRY(reduce_bucket(r, r->o.order[turn], reduction));
  }
  return ISO_OK;
}

static void *run(void *argument) {
  iso_reducer *r = argument;
  iso_data_thread_spread();
  pthread_mutex_lock(&r->lock);
  for (;;) {
    while (!r->stop && !(r->under_way && r->ready)) pthread_cond_wait(&r->changed, &r->lock);
    if (r->stop) break;
    pthread_mutex_unlock(&r->lock);
    const iso_status status = reduce_all(r);
    pthread_mutex_lock(&r->lock);
    r->status = status;
    r->under_way = false;
    pthread_cond_broadcast(&r->changed);
  }
  pthread_mutex_unlock(&r->lock);
  return NULL;
}

int iso_reducer_buckets(int64_t elements, int64_t workers) {
  const int64_t bucket = iso_handover_elements(elements, workers);
  return (int)((elements + bucket - 1) / bucket);
}

/* Bucket of a hand-over's part; those of a program that rounds one by one are all of them once. */
iso_status iso_reducer_order(const iso_program *program, int64_t workers, int32_t *order) {
  iso_handover *list;
  int parts, count = 0;
  const int64_t elements = program->graph->flat_elements, bucket = iso_handover_elements(elements, workers);
  const int all = iso_reducer_buckets(elements, workers);
  ISO_TRY(iso_handovers_find(program, workers, &list, &parts));
  for (int i = 0; i < parts; i++)
    for (int64_t at = list[i].begin; at < list[i].end; at += bucket) order[count++] = (int32_t)(at / bucket);
  free(list);
  if (count == all) return ISO_OK;
  return iso_fail(ISO_ERR_INTERNAL, "ranks: %d of %d buckets are completed by the program", count, all);
}

iso_status iso_reducer_create(const iso_reducer_options *options, iso_reducer **out) {
  *out = NULL;
  iso_reducer *r = calloc(1, sizeof *r);
  if (!r) return iso_fail(ISO_ERR_MEMORY, "ranks: no memory for %zu bytes", sizeof *r);
  r->o = *options;
  r->count = (int)((r->o.elements + r->o.bucket - 1) / r->o.bucket);
  r->complete = calloc((size_t)r->count + 1, sizeof *r->complete);
  pthread_mutex_init(&r->lock, NULL);
  iso_condition_init(&r->changed);
  iso_status status = iso_reduce_consumer_set(r->o.reduce, ISO_NORM_BLOCK, round_sums, r);
  if (status == ISO_OK && !r->complete) status = iso_fail(ISO_ERR_MEMORY, "ranks: no memory for %d buckets", r->count);
  const int error = status == ISO_OK ? iso_thread_start(&r->thread, run, r) : 0;
  if (error) status = iso_fail(ISO_ERR_MEMORY, "ranks: cannot start the thread that reduces: %s", strerror(error));
  if (status == ISO_OK) {
    *out = r;
    return ISO_OK;
  }
  pthread_cond_destroy(&r->changed);
  pthread_mutex_destroy(&r->lock);
  free(r->complete);
  free(r);
  return status;
}

void iso_reducer_destroy(iso_reducer **out) {
  iso_reducer *r = *out;
  if (!r) return;
  pthread_mutex_lock(&r->lock);
  r->stop = true;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->lock);
  pthread_join(r->thread, NULL);
  pthread_cond_destroy(&r->changed);
  pthread_mutex_destroy(&r->lock);
  free(r->complete);
  free(r);
  *out = NULL;
}

/* ---- a step, by who computes ---- */

void iso_reducer_begin(iso_reducer *r, int64_t step, int64_t scored) {
  pthread_mutex_lock(&r->lock);
  memset(r->complete, 0, (size_t)r->count * sizeof *r->complete);
  r->ready = 0;
  r->step = step;
  r->scored = (float)scored;
  r->under_way = true;
  pthread_mutex_unlock(&r->lock);
}

void iso_reducer_part(iso_reducer *r, int64_t begin, int64_t end) {
  pthread_mutex_lock(&r->lock);
  const int before = r->ready;
  for (int64_t at = begin; at < end; at += r->o.bucket) r->complete[at / r->o.bucket] = true;
  while (r->ready < r->count && r->complete[r->o.order[r->ready]]) r->ready++;
  if (r->ready > before) pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->lock);
}

iso_status iso_reducer_finish(iso_reducer *r) {
  pthread_mutex_lock(&r->lock);
  while (r->under_way) pthread_cond_wait(&r->changed, &r->lock);
  const iso_status status = r->status;
  pthread_mutex_unlock(&r->lock);
  return status;
}
