/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of gradients are the same bits for any number of ranks, any distribution of leaves over them (empty ranks too),
 * of elements to owners, and of ranks to hosts, however the elements are cut into buckets, and whatever the order in
 * which messages and signals come. The expected sum is made by recursion over the leaves.
 *
 * test_reduce_swapped is this program over a tree.c in which children of two nodes change places
 * (ISO_SABOTAGE_SWAP_CHILDREN): there, every case in which that happens on all hosts must have other bits, and none in
 * which it happens on no host.
 */
#include "comm/network.h"

/* ---- a case ---- */

typedef struct trial {
  int workers, ranks;
  int64_t elements, chunk;
  int first_leaf[MOST_RANKS + 1], host[MOST_RANKS];
  int64_t first_element[MOST_RANKS + 1];
  float *leaves; /* workers x elements */
  float *expected;
} trial;

static void fold(const trial *t, int first, int count, float *out) {
  if (count == 1) {
    memcpy(out, t->leaves + first * t->elements, (size_t)t->elements * sizeof *out);
    return;
  }
  float *right = malloc((size_t)t->elements * sizeof *right + 1);
  fold(t, first, count / 2, out);
  fold(t, first + count / 2, count / 2, right);
  for (int64_t i = 0; i < t->elements; i++) out[i] += right[i];
  free(right);
}

static void make(trial *t) {
  int64_t borders[MOST_RANKS + 1];
  t->workers = 1 << draw(5);
  t->ranks = 1 + (int)draw(MOST_RANKS);
  t->elements = draw(3) == 0 ? draw(20) : draw(9000);
  t->chunk = 1 + t->elements / 40 + draw(draw(2) ? 10 : 5000);
  cut(t->workers, t->ranks, borders);
  for (int i = 0; i <= t->ranks; i++) t->first_leaf[i] = (int)borders[i];
  cut(t->elements, t->ranks, t->first_element);
  draw_hosts(t->ranks, t->host);
  const size_t count = (size_t)(t->workers * t->elements);
  t->leaves = malloc(count * sizeof(float) + 1);
  t->expected = malloc((size_t)t->elements * sizeof(float) + 1);
  for (size_t i = 0; i < count; i++) /* of very different size, so that any other order gives other bits */
    t->leaves[i] = ((float)draw(1 << 24) - 8388608.0F) * (draw(2) ? 1e-6F : draw(2) ? 1.0F : 3e4F);
  fold(t, 0, t->workers, t->expected);
}

static void release(trial *t) {
  free(t->leaves);
  free(t->expected);
}

/* The rank's pieces, each folded as a rank folds its own leaves. */
static float *pieces_of(const trial *t, int rank, int *count) {
  iso_part parts[ISO_MOST_PARTS];
  *count = iso_tree_parts(t->first_leaf[rank], t->first_leaf[rank + 1] - t->first_leaf[rank], parts);
  float *pieces = malloc((size_t)(*count * t->elements) * sizeof *pieces + 1);
  for (int i = 0; i < *count; i++) fold(t, parts[i].first, parts[i].count, pieces + i * t->elements);
  return pieces;
}

/* A round: some elements, and who owns them. */
enum { MOST_BUCKETS = 5 };
typedef struct bucket {
  int64_t first_element[MOST_RANKS + 1];
} bucket;

/* What a rank has made. */
typedef struct outcome {
  float *sums;                           /* [elements], of those it owns */
  int64_t first_element[MOST_RANKS + 1]; /* its plan's */
  int64_t consumed;                      /* elements of this bucket, by its consumer */
  int64_t grain;                         /* that it wants at once */
  int rank;
} outcome;

static int cut_buckets(const trial *t, bucket *buckets) {
  int64_t borders[MOST_BUCKETS + 1];
  const int count = 1 + (int)draw(MOST_BUCKETS);
  cut(t->elements, count, borders);
  for (int k = 0; k < count; k++) {
    const int turned = count - 1 - k; /* a backward pass begins at the end */
    cut(borders[turned + 1] - borders[turned], t->ranks, buckets[k].first_element);
    for (int r = 0; r <= t->ranks; r++) buckets[k].first_element[r] += borders[turned];
  }
  return count;
}

static void consume(void *self, int64_t begin, int64_t count, const float *sums) {
  outcome *o = self;
  const int64_t first = o->first_element[o->rank], own = o->first_element[o->rank + 1] - first;
  assert_int_equal(begin, first + o->consumed);
  assert_int_equal(count, own - o->consumed < o->grain ? own - o->consumed : o->grain);
  memcpy(o->sums + begin, sums, (size_t)count * sizeof *sums);
  o->consumed += count;
}

/* Each rank goes through the buckets at its own pace. */
static void poll_all(const trial *t, iso_reduce **reduces, outcome *outcomes, float *const *pieces, const int *counts,
                     const bucket *buckets, int bucket_count) {
  bool begun[MOST_RANKS] = {false}, eats[MOST_RANKS] = {false};
  int at[MOST_RANKS] = {0};
  float *where[MOST_RANKS] = {NULL};
  for (int left = t->ranks, polls = 0; left > 0;) {
    assert_true(++polls < 400000);
    const int r = (int)draw((uint32_t)t->ranks);
    outcome *o = &outcomes[r];
    if (at[r] < bucket_count && !begun[r]) {
      memcpy(o->first_element, buckets[at[r]].first_element, sizeof o->first_element);
      const int64_t first = o->first_element[r];
      eats[r] = draw(2) != 0;
      where[r] = counts[r] && draw(2) ? pieces[r] + draw((uint32_t)counts[r]) * t->elements + first : o->sums + first;
      o->consumed = 0;
      iso_reduce_begin(reduces[r], eats[r] ? NULL : where[r]);
      begun[r] = true;
    } else if (at[r] < bucket_count && iso_reduce_poll(reduces[r]) == ISO_POLL_DONE) {
      const int64_t first = o->first_element[r], own = o->first_element[r + 1] - first;
      if (eats[r]) assert_int_equal(o->consumed, own);
      if (!eats[r] && where[r] != o->sums + first) memcpy(o->sums + first, where[r], (size_t)own * sizeof(float));
      begun[r] = false;
      left -= ++at[r] == bucket_count;
      assert_int_equal(iso_reduce_awaits(reduces[r]), -1);
      assert_int_equal(iso_reduce_poll(reduces[r]), ISO_POLL_DONE);
    }
    deliver(t->ranks);
  }
}

/* Are the sums the expected bits? Each rank's sums replace a piece of its own, go elsewhere or to a consumer; pieces
 * are made anew for each pass over all buckets. */
static bool run_trial(const trial *t, int passes) {
  iso_reduce *reduces[MOST_RANKS];
  float *pieces[MOST_RANKS];
  static outcome outcomes[MOST_RANKS];
  bucket buckets[MOST_BUCKETS];
  const float *seen[MOST_RANKS];
  int counts[MOST_RANKS];
  bool equal = true;
  network_init(t->ranks);
  for (int r = 0; r < t->ranks; r++) {
    pieces[r] = pieces_of(t, r, &counts[r]);
    outcomes[r].sums = malloc((size_t)t->elements * sizeof(float) + 1);
    memcpy(outcomes[r].first_element, t->first_element, sizeof t->first_element);
  }
  for (int r = 0; r < t->ranks; r++) {
    for (int i = 0; i < t->ranks; i++) seen[i] = t->host[i] == t->host[r] ? pieces[i] : NULL;
    const iso_reduce_plan plan = {t->ranks, r, t->workers, t->first_leaf, outcomes[r].first_element, t->host, t->chunk};
    assert_int_equal(iso_reduce_create(&plan, &nodes[r].transport, &nodes[r].signals, seen, t->elements, &reduces[r]),
                     ISO_OK);
    outcomes[r].rank = r;
    outcomes[r].grain = t->chunk * (1 + draw(4));
    assert_int_equal(iso_reduce_consumer_set(reduces[r], outcomes[r].grain, consume, &outcomes[r]), ISO_OK);
  }
  for (int pass = 0; pass < passes; pass++) {
    for (int r = 0; r < t->ranks; r++) {
      int count;
      float *again = pieces_of(t, r, &count);
      memcpy(pieces[r], again, (size_t)(counts[r] * t->elements) * sizeof(float));
      free(again);
      memset(outcomes[r].sums, 0xff, (size_t)t->elements * sizeof(float));
    }
    const int count = cut_buckets(t, buckets);
    poll_all(t, reduces, outcomes, pieces, counts, buckets, count);
    for (int k = 0; k < count; k++)
      for (int r = 0; r < t->ranks; r++) {
        const int64_t first = buckets[k].first_element[r];
        equal = equal && memcmp(outcomes[r].sums + first, t->expected + first,
                                (size_t)(buckets[k].first_element[r + 1] - first) * sizeof(float)) == 0;
      }
  }
  network_check_empty(t->ranks);
  for (int r = 0; r < t->ranks; r++) {
    iso_reduce_destroy(&reduces[r]);
    free(pieces[r]);
    free(outcomes[r].sums);
  }
  return equal;
}

enum { TRIALS = 1000 };

#ifdef ISO_SABOTAGE_SWAP_CHILDREN

/* A right child stands beside the left child of the next node, both of one size. */
static bool cousins_among(const iso_part *parts, int count) {
  for (int i = 0; i + 1 < count; i++)
    if (parts[i].count == parts[i + 1].count && parts[i].first / parts[i].count % 2) return true;
  return false;
}

static int by_first(const void *a, const void *b) {
  return ((const iso_part *)a)->first - ((const iso_part *)b)->first;
}

/* What a host adds: the pieces of its own ranks and what other hosts have folded. */
static bool adds_cousins(const trial *t, const iso_reduce_plan *plan, const iso_hosts *hosts, int host) {
  iso_part parts[ISO_MOST_PARTS * MOST_RANKS];
  int count = 0;
  for (int other = 0; other < hosts->count; other++)
    if (other != host) count += iso_hosts_parts(hosts, plan, other, parts + count);
  for (int r = 0; r < t->ranks; r++)
    if (hosts->of_rank[r] == host)
      count += iso_tree_parts(t->first_leaf[r], t->first_leaf[r + 1] - t->first_leaf[r], parts + count);
  qsort(parts, (size_t)count, sizeof *parts, by_first);
  return cousins_among(parts, count);
}

/* What a host folds for others: each node of pieces of its own. */
static bool folds_cousins(const trial *t, const iso_reduce_plan *plan, const iso_hosts *hosts, int host) {
  iso_part wholes[ISO_MOST_PARTS * MOST_RANKS], parts[ISO_MOST_PARTS * MOST_RANKS];
  const int whole_count = iso_hosts_parts(hosts, plan, host, wholes);
  for (int i = 0; i < whole_count && hosts->count > 1; i++) {
    iso_part all[ISO_MOST_PARTS];
    int count = 0;
    for (int r = 0; r < t->ranks; r++) {
      const int made = iso_tree_parts(t->first_leaf[r], t->first_leaf[r + 1] - t->first_leaf[r], all);
      for (int j = 0; j < made; j++)
        if (all[j].first >= wholes[i].first && all[j].first < wholes[i].first + wholes[i].count)
          parts[count++] = all[j];
    }
    if (cousins_among(parts, count)) return true;
  }
  return false;
}

/* How many hosts add children that change places; less than 0: none does, but so many fold such. */
static int cousins(const trial *t, int *hosts_count) {
  const iso_reduce_plan plan = {.ranks = t->ranks, .first_leaf = t->first_leaf, .host = t->host};
  iso_hosts *hosts;
  int adding = 0, folding = 0;
  assert_int_equal(iso_hosts_create(&plan, &hosts), ISO_OK);
  for (int h = 0; h < hosts->count; h++) {
    adding += adds_cousins(t, &plan, hosts, h);
    folding += folds_cousins(t, &plan, hosts, h);
  }
  *hosts_count = hosts->count;
  iso_hosts_destroy(&hosts);
  return adding ? adding : -folding;
}

static void test_swapped_children_are_found(void **state) {
  (void)state;
  int swapped = 0, same = 0;
  for (int i = 0; i < TRIALS; i++) {
    trial t;
    seed = (uint64_t)i * 77 + 5;
    make(&t);
    const bool equal = run_trial(&t, 1);
    int hosts;
    const int found = cousins(&t, &hosts);
    if (found == hosts && t.elements > 100) {
      assert_false(equal);
      swapped++;
    } else if (!found) {
      assert_true(equal);
      same++;
    }
    release(&t);
  }
  assert_true(swapped >= TRIALS / 10 && same >= TRIALS / 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_swapped_children_are_found)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void test_any_distribution_gives_the_same_bits(void **state) {
  (void)state;
  for (int i = 0; i < TRIALS; i++) {
    trial t;
    seed = (uint64_t)i * 77 + 5;
    make(&t);
    assert_true(run_trial(&t, 1 + (int)draw(3)));
    release(&t);
  }
}

/* Deep trees: the sum over 65,536 leaves, with any of them at hand singly. */
static void test_a_deep_tree(void **state) {
  (void)state;
  enum { LEAVES = ISO_MOST_LEAVES, ELEMENTS = 3 };
  seed = 5;
  trial t = {.workers = LEAVES, .elements = ELEMENTS};
  t.leaves = malloc(sizeof(float) * LEAVES * ELEMENTS);
  for (int i = 0; i < LEAVES * ELEMENTS; i++) t.leaves[i] = (float)draw(1 << 24) * (draw(2) ? 1e-6F : 3e4F);
  iso_part *parts = malloc(LEAVES * sizeof *parts);
  float *scratch = malloc(ISO_TREE_SCRATCH * sizeof *scratch);
  float expected[ELEMENTS], sums[ELEMENTS];
  for (int i = 0; i < LEAVES; i++) parts[i] = (iso_part){i, 1, t.leaves + i * ELEMENTS};
  fold(&t, 0, LEAVES, expected);
  iso_tree_sum(parts, LEAVES, ELEMENTS, sums, scratch);
  assert_memory_equal(sums, expected, sizeof sums);
  free(scratch);
  free(parts);
  free(t.leaves);
}

static void test_parts_are_aligned_and_cover(void **state) {
  (void)state;
  for (int first = 0; first < 70; first++)
    for (int count = 0; count < 70; count++) {
      iso_part parts[ISO_MOST_PARTS];
      const int made = iso_tree_parts(first, count, parts);
      int at = first;
      for (int i = 0; i < made; i++) {
        assert_int_equal(parts[i].first, at);
        assert_int_equal(parts[i].count & (parts[i].count - 1), 0);
        assert_int_equal(parts[i].first % parts[i].count, 0);
        at += parts[i].count;
      }
      assert_int_equal(at, first + count);
      for (int i = 0; i + 1 < made; i++) /* none could be joined with the next */
        assert_false(parts[i].count == parts[i + 1].count && parts[i].first % (2 * parts[i].count) == 0);
    }
}

static void test_a_rank_that_does_not_come_is_named(void **state) {
  (void)state;
  seed = 3;
  const int first_leaf[] = {0, 1, 2, 4}, host[] = {0, 0, 1};
  const int64_t first_element[] = {0, 40, 70, 100};
  float pieces[400] = {0}, out[100];
  network_init(3);
  const float *const seen[3] = {pieces, pieces, NULL};
  const iso_reduce_plan plan = {3, 0, 4, first_leaf, first_element, host, 10};
  iso_reduce *reduce;
  assert_int_equal(iso_reduce_create(&plan, &nodes[0].transport, &nodes[0].signals, seen, 100, &reduce), ISO_OK);
  assert_int_equal(iso_reduce_awaits(reduce), -1);
  iso_reduce_begin(reduce, out);
  for (int i = 0; i < 20; i++) assert_int_not_equal(iso_reduce_poll(reduce), ISO_POLL_DONE);
  assert_int_equal(iso_reduce_poll(reduce), ISO_POLL_IDLE);
  assert_int_equal(iso_reduce_awaits(reduce), 1); /* its neighbour */
  nodes[1].reached[ISO_SIGNAL_BEGUN] = 1;
  for (int i = 0; i < 20; i++) assert_int_not_equal(iso_reduce_poll(reduce), ISO_POLL_DONE); /* sends its part */
  assert_int_equal(iso_reduce_poll(reduce), ISO_POLL_IDLE);
  assert_int_equal(iso_reduce_awaits(reduce), 2); /* the other host */
  iso_reduce_destroy(&reduce);
}

static void test_a_plan_that_contradicts_itself_is_refused(void **state) {
  (void)state;
  const int leaves[] = {0, 2, 4}, short_leaves[] = {0, 2, 3}, back_leaves[] = {0, 5, 4}, host[] = {0, 0},
            apart[] = {0, 1};
  const int64_t elements[] = {0, 5, 10}, back_elements[] = {0, 11, 10};
  const iso_reduce_plan sound = {2, 0, 4, leaves, elements, host, 3};
  iso_reduce_plan bad[8];
  for (size_t i = 0; i < ISO_COUNT(bad); i++) bad[i] = sound;
  bad[0].rank = 2;
  bad[1].workers = 3;
  bad[2].first_leaf = short_leaves;
  bad[3].first_leaf = back_leaves;
  bad[4].first_element = back_elements;
  bad[5].chunk = 0;
  bad[6].host = apart; /* without a transport */
  bad[7].ranks = 0;
  float pieces[40] = {0};
  const float *const seen[2] = {pieces, pieces + 20};
  iso_reduce *reduce;
  network_init(2);
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(bad); i++) {
    assert_int_equal(iso_reduce_create(&bad[i], NULL, &nodes[0].signals, seen, 10, &reduce), ISO_ERR_INTERNAL);
    assert_null(reduce);
  }
  assert_int_equal(iso_reduce_create(&sound, NULL, &nodes[0].signals, seen, 9, &reduce), ISO_ERR_INTERNAL);
  assert_int_equal(iso_reduce_create(&sound, NULL, &nodes[0].signals, seen, 10, &reduce), ISO_OK);
  static const int64_t no_grains[] = {-3, 0, 2, 4}; /* of chunks of 3 */
  for (size_t i = 0; i < ISO_COUNT(no_grains); i++)
    assert_int_equal(iso_reduce_consumer_set(reduce, no_grains[i], NULL, NULL), ISO_ERR_INTERNAL);
  iso_log_quiet(false);
  iso_reduce_destroy(&reduce);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_parts_are_aligned_and_cover),
      cmocka_unit_test(test_a_deep_tree),
      cmocka_unit_test(test_any_distribution_gives_the_same_bits),
      cmocka_unit_test(test_a_rank_that_does_not_come_is_named),
      cmocka_unit_test(test_a_plan_that_contradicts_itself_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
