/* SPDX-License-Identifier: Apache-2.0
 *
 * Invariants of ranks_reduce.c, on one rank whose collectives need nobody: buckets are reduced, rounded and handed over
 * in the order agreed on while later ones are not complete yet, in the bits of one rounding of the whole; a step that
 * is not agreed on hands nothing over. And how large buckets are, and who owns what of one.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "train/reducer.h"

enum { BUCKETS = 5, BUCKET = ISO_NORM_BLOCK, TAIL = 777, ELEMENTS = (BUCKETS - 1) * BUCKET + TAIL, SCORED = 37 };
static const int32_t order[BUCKETS] = {4, 3, 1, 2, 0};

typedef struct rank {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int64_t ranges[BUCKETS][2]; /* handed over */
  int count;
  iso_status agreed;
  uint64_t reached[ISO_SIGNAL_KINDS];
  float *sums, *copy; /* copy: of the reduced gradient, as it was handed over */
  float *reduced;
  double squares[BUCKETS];
  int64_t owners[2], block_owners[2];
  iso_reduce *reduce;
  iso_gather *gather;
  iso_reducer *reducer;
} rank;

static void raise_signal(void *self, int kind, uint64_t round) {
  ((rank *)self)->reached[kind] = round;
}

static bool reached(void *self, int number, int kind, uint64_t round) {
  (void)number;
  return ((rank *)self)->reached[kind] >= round;
}

static iso_status agree(void *self, int *reduction) {
  *reduction = 0;
  return ((rank *)self)->agreed;
}

static iso_status wait_for(void *self, iso_collective collective, int64_t step) {
  (void)self;
  assert_int_equal(step, 12);
  while (collective.poll(collective.self) != ISO_POLL_DONE) continue;
  return ISO_OK;
}

static void receive(void *self, int64_t begin, int64_t end) {
  rank *r = self;
  pthread_mutex_lock(&r->lock);
  memcpy(r->copy + begin, r->reduced + begin, (size_t)(end - begin) * sizeof *r->copy);
  r->ranges[r->count][0] = begin;
  r->ranges[r->count++][1] = end;
  pthread_cond_broadcast(&r->changed);
  pthread_mutex_unlock(&r->lock);
}

static void await_count(rank *r, int count) {
  pthread_mutex_lock(&r->lock);
  while (r->count < count) pthread_cond_wait(&r->changed, &r->lock);
  assert_int_equal(r->count, count);
  pthread_mutex_unlock(&r->lock);
}

static void open_rank(rank *r) {
  static const int first_leaf[] = {0, 1}, host[] = {0};
  static const float *pieces[1];
  static iso_signals signals;
  memset(r, 0, sizeof *r);
  pthread_mutex_init(&r->lock, NULL);
  pthread_cond_init(&r->changed, NULL);
  signals = (iso_signals){r, raise_signal, reached};
  r->sums = malloc(sizeof(float) * ELEMENTS);
  r->copy = malloc(sizeof(float) * ELEMENTS);
  r->reduced = malloc(sizeof(float) * ELEMENTS);
  for (int i = 0; i < ELEMENTS; i++) r->sums[i] = (float)((i * 7919) % 1000) * 0.37F - 100;
  pieces[0] = r->sums;
  const iso_reduce_plan reduction = {1, 0, 1, first_leaf, r->owners, host, ISO_NORM_BLOCK};
  assert_int_equal(iso_reduce_create(&reduction, NULL, &signals, pieces, ELEMENTS, &r->reduce), ISO_OK);
  const iso_gather_plan gathering = {1, 0, r->owners, host, ISO_NORM_BLOCK, sizeof(float)};
  static rank gather_signals;
  static iso_signals others = {&gather_signals, raise_signal, reached};
  memset(&gather_signals, 0, sizeof gather_signals);
  assert_int_equal(iso_gather_create(&gathering, NULL, &others, r->reduced, &r->gather), ISO_OK);
  const iso_reducer_options options = {.ranks = 1,
                                       .elements = ELEMENTS,
                                       .bucket = BUCKET,
                                       .order = order,
                                       .owners = r->owners,
                                       .block_owners = r->block_owners,
                                       .reduce = r->reduce,
                                       .gradients = {r->gather, r->gather},
                                       .reductions = {r->reduced, r->reduced},
                                       .squares = r->squares,
                                       .gradient = ISO_F32,
                                       .kernels = iso_kernels_get(ISO_TIER_SCALAR),
                                       .self = r,
                                       .agree = agree,
                                       .wait = wait_for,
                                       .handover = receive,
                                       .handover_context = r};
  assert_int_equal(iso_handover_elements(ELEMENTS, 1), BUCKET);
  assert_int_equal(iso_reducer_buckets(ELEMENTS, 1), BUCKETS);
  assert_int_equal(iso_reducer_create(&options, &r->reducer), ISO_OK);
}

static void close_rank(rank *r) {
  iso_reducer_destroy(&r->reducer);
  assert_null(r->reducer);
  iso_reduce_destroy(&r->reduce);
  iso_gather_destroy(&r->gather);
  free(r->sums);
  free(r->copy);
  free(r->reduced);
  pthread_mutex_destroy(&r->lock);
  pthread_cond_destroy(&r->changed);
}

static void buckets_go_in_order_while_others_are_computed(void **state) {
  (void)state;
  rank r;
  open_rank(&r);
  for (int step = 0; step < 3; step++) {
    r.count = 0;
    memset(r.copy, 0xab, sizeof(float) * ELEMENTS);
    iso_reducer_begin(r.reducer, 12, SCORED);
    iso_reducer_part(r.reducer, 4 * BUCKET, ELEMENTS);
    await_count(&r, 1); /* the others are not complete */
    iso_reducer_part(r.reducer, BUCKET, 2 * BUCKET);
    iso_reducer_part(r.reducer, 0, BUCKET); /* before their turn */
    iso_reducer_part(r.reducer, 3 * BUCKET, 4 * BUCKET);
    await_count(&r, 3);
    iso_reducer_part(r.reducer, 2 * BUCKET, 3 * BUCKET);
    assert_int_equal(iso_reducer_finish(r.reducer), ISO_OK);
    await_count(&r, BUCKETS);
    for (int i = 0; i < BUCKETS; i++) {
      assert_int_equal(r.ranges[i][0], order[i] * BUCKET);
      assert_int_equal(r.ranges[i][1], order[i] == BUCKETS - 1 ? ELEMENTS : (order[i] + 1) * BUCKET);
    }
    double squares[BUCKETS];
    float *whole = malloc(sizeof(float) * ELEMENTS);
    const iso_worker alone = {.threads = 1};
    const iso_grad_round_args args = {
        .sum = r.sums, .reduced = whole, .reduced_type = ISO_F32, .squares = squares, .count = SCORED, .end = ELEMENTS};
    iso_kernels_get(ISO_TIER_SCALAR)->grad_round(&args, &alone);
    assert_memory_equal(r.copy, whole, sizeof(float) * ELEMENTS);
    assert_memory_equal(r.squares, squares, sizeof squares);
    free(whole);
  }
  close_rank(&r);
}

static void a_step_that_is_not_agreed_on_hands_nothing_over(void **state) {
  (void)state;
  rank r;
  open_rank(&r);
  r.agreed = ISO_ERR_MISMATCH;
  iso_reducer_begin(r.reducer, 12, SCORED);
  iso_reducer_part(r.reducer, 0, ELEMENTS);
  assert_int_equal(iso_reducer_finish(r.reducer), ISO_ERR_MISMATCH);
  await_count(&r, 0);
  r.agreed = ISO_OK;
  iso_reducer_begin(r.reducer, 12, SCORED);
  iso_reducer_part(r.reducer, 0, ELEMENTS);
  assert_int_equal(iso_reducer_finish(r.reducer), ISO_OK);
  await_count(&r, BUCKETS);
  close_rank(&r);
}

/* A run that is resumed has the hand-overs that it was begun with. */
static void buckets_of_64_workers_and_fewer_stay(void **state) {
  (void)state;
  static const int64_t sizes[][2] = {
      {1, 65536},          {2097152, 65536},     {2097153, 131072},     {8388608, 262144},
      {67108864, 2097152}, {124475904, 4194304}, {2652000000, 4194304}, {INT64_C(175000000000), 4194304}};
  for (size_t i = 0; i < ISO_COUNT(sizes); i++)
    for (int64_t workers = 0; workers <= 64; workers = workers ? 2 * workers : 1)
      assert_int_equal(iso_handover_elements(sizes[i][0], workers), sizes[i][1]);
  assert_int_equal(iso_reducer_buckets(124475904, 64), 30);
}

static void check_owners(int64_t elements, int64_t workers, int ranks) {
  static int64_t owners[1025], blocks[1025];
  const int64_t bucket = iso_handover_elements(elements, workers);
  const int count = iso_reducer_buckets(elements, workers);
  for (int b = 0; b < count; b++) {
    const int64_t begin = b * bucket, end = begin + bucket < elements ? begin + bucket : elements;
    iso_reducer_share(ranks, begin, end, owners, blocks);
    assert_int_equal(owners[0], begin);
    assert_int_equal(owners[ranks], end);
    assert_int_equal(blocks[ranks], (end + ISO_NORM_BLOCK - 1) / ISO_NORM_BLOCK);
    for (int r = 0; r < ranks; r++) {
      if (end - begin == bucket) assert_true(blocks[r] < blocks[r + 1]);
      assert_true(owners[r] == end || owners[r] == blocks[r] * ISO_NORM_BLOCK);
    }
  }
}

/* Of a state that is more than such a bucket, and of each but the last one, which may be less. */
static void each_of_many_ranks_owns_something_of_a_bucket(void **state) {
  (void)state;
  static const int ranks[] = {1, 3, 64, 65, 100, 127, 128, 200, 256, 1000, 1024};
  for (int64_t workers = 128; workers <= 65536; workers *= 2) {
    const int64_t block_each = workers * ISO_NORM_BLOCK;
    const int64_t sizes[] = {block_each + 1, 2 * block_each, 2 * block_each + 777, 9 * block_each - 65536};
    for (size_t i = 0; i < ISO_COUNT(sizes); i++) {
      assert_int_equal(iso_handover_elements(sizes[i], workers), block_each);
      for (size_t k = 0; k < ISO_COUNT(ranks) && ranks[k] <= workers; k++) check_owners(sizes[i], workers, ranks[k]);
    }
  }
  /* Of smaller states two buckets are left, whatever the workers; and they are never smaller than with 64. */
  for (int64_t elements = 1; elements < INT64_C(1) << 40; elements = elements * 3 + 7)
    for (int64_t workers = 128; workers <= 65536; workers *= 2) {
      const int64_t bucket = iso_handover_elements(elements, workers), before = iso_handover_elements(elements, 64);
      assert_true(bucket >= before && bucket % ISO_NORM_BLOCK == 0 && bucket <= workers * ISO_NORM_BLOCK);
      assert_true(bucket == before || bucket < elements);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(buckets_go_in_order_while_others_are_computed),
      cmocka_unit_test(a_step_that_is_not_agreed_on_hands_nothing_over),
      cmocka_unit_test(buckets_of_64_workers_and_fewer_stay),
      cmocka_unit_test(each_of_many_ranks_owns_something_of_a_bucket),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
