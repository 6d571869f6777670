/* SPDX-License-Identifier: Apache-2.0
 *
 * reducer: of a step of ranks, what goes on beside the backward pass. Known to ranks.c and its tests alone.
 */
#ifndef ISO_TRAIN_REDUCER_H
#define ISO_TRAIN_REDUCER_H

#include "train/train.h"

/* ---- ranks_reduce.c: buckets of the gradient are reduced while the backward pass goes on ------------------------- */

typedef struct iso_reducer iso_reducer;
typedef struct iso_reducer_options {
  int ranks;
  int64_t elements, bucket; /* of the state; of a bucket, a multiple of ISO_NORM_BLOCK */
  const int32_t *order;     /* of the buckets; the same for all ranks */
  /* [ranks + 1], of the bucket at hand: those that the collectives' plans have. Of norm blocks. */
  int64_t *owners, *block_owners;
  iso_reduce *reduce;
  iso_gather *gradients[2], *gather_squares; /* NULL: all ranks are of one host */
  void *reductions[2];
  double *squares;
  iso_dtype gradient;
  const iso_kernels *kernels;
  void *self;
  /* Which reduced gradient this step makes, or that it is not taken. By the reducer's thread. */
  iso_status (*agree)(void *self, int *reduction);
  iso_status (*wait)(void *self, iso_collective collective, int64_t step);
  iso_exec_handover *handover; /* NULL: nobody asks */
  void *handover_context;
} iso_reducer_options;
/* Of a state, by the run's virtual workers: iso_handover_elements says how large they are. */
int iso_reducer_buckets(int64_t elements, int64_t workers);
/* order[iso_reducer_buckets]: as a program completes them. */
iso_status iso_reducer_order(const iso_program *program, int64_t workers, int32_t *order) ISO_MUST_CHECK;
/* Who owns what of the bucket [begin, end): each rank as many norm blocks, or one more. Both lists: [ranks + 1]. */
void iso_reducer_share(int ranks, int64_t begin, int64_t end, int64_t *owners, int64_t *block_owners);
/* Keeps all. */
iso_status iso_reducer_create(const iso_reducer_options *options, iso_reducer **out) ISO_MUST_CHECK;
void iso_reducer_destroy(iso_reducer **reducer); /* no step is under way */
/* A step, with so many scored tokens in all, begins; parts of the partial sums are complete, all of them once; then the
 * rest is waited for. */
void iso_reducer_begin(iso_reducer *reducer, int64_t step, int64_t scored);
void iso_reducer_part(iso_reducer *reducer, int64_t begin, int64_t end);
iso_status iso_reducer_finish(iso_reducer *reducer) ISO_MUST_CHECK;

/* ---- ranks_differed.c: the weights of ranks are not the same ----------------------------------------------- */

typedef struct iso_ranks_differed {
  const char *run;                 /* folder, borrowed; NULL: these are no run's steps */
  iso_differed record;             /* to be */
  char reserve[ISO_SNAPSHOT_PATH]; /* of rank 0; iso_differed_release */
} iso_ranks_differed;
/* The rank whose weights, by their CRCs, are not those of most; in doubt rank 0's count. -1: all are alike. *sure: most
 * are. */
int iso_ranks_odd(const uint32_t *weights, int count, bool *sure);
/* Rank 0: room for the record, so that a full disk is found before the first step. */
iso_status iso_ranks_differed_begin(iso_ranks_differed *differed, const iso_run *run) ISO_MUST_CHECK;
/* All ranks have found what the record says: rank 0 and the next one of its host keep it, rank 0 says it. MISMATCH. */
iso_status iso_ranks_differed_say(iso_ranks_differed *differed, const iso_ranks_plan *plan, int rank,
                                  const uint32_t *weights, bool sure) ISO_MUST_CHECK;

#endif
