/* SPDX-License-Identifier: Apache-2.0
 *
 * An all-gather brings every element to every host, for any number of ranks, any distribution of elements over them
 * (empty ranks too) and of ranks to hosts, whatever the order in which messages and signals come; and it writes nothing
 * to a host's copy while a rank of the host may still read what was there.
 */
#include "comm/network.h"

typedef struct trial {
  int ranks;
  int64_t elements, chunk, element_bytes;
  int host[MOST_RANKS];
  int64_t first_element[MOST_RANKS + 1];
  unsigned char *whole[MOST_RANKS]; /* by number of host */
  iso_gather *gathers[MOST_RANKS];
} trial;

static void make(trial *t) {
  t->ranks = 1 + (int)draw(MOST_RANKS);
  t->elements = draw(3) == 0 ? draw(20) : draw(9000);
  t->chunk = 1 + t->elements / 40 + draw(draw(2) ? 10 : 5000);
  t->element_bytes = draw(2) ? 2 : 4;
  cut(t->elements, t->ranks, t->first_element);
  draw_hosts(t->ranks, t->host);
  network_init(t->ranks);
  for (int h = 0; h < t->ranks; h++) {
    t->whole[h] = malloc((size_t)(t->elements * t->element_bytes) + 1);
    memset(t->whole[h], 0, (size_t)(t->elements * t->element_bytes));
  }
  for (int r = 0; r < t->ranks; r++) {
    const iso_gather_plan plan = {t->ranks, r, t->first_element, t->host, t->chunk, t->element_bytes};
    assert_int_equal(
        iso_gather_create(&plan, &nodes[r].transport, &nodes[r].signals, t->whole[t->host[r]], &t->gathers[r]), ISO_OK);
  }
}

static void release(trial *t) {
  network_check_empty(t->ranks);
  for (int r = 0; r < t->ranks; r++) {
    iso_gather_destroy(&t->gathers[r]);
    free(t->whole[r]);
  }
}

/* What byte `at` of the whole is in a round, never as in the one before. */
static unsigned char byte_of(int64_t at, int round) {
  return (unsigned char)(at * 7 + (at >> 8) * 13 + round);
}

static bool holds(const trial *t, int host, int owner, int round) {
  for (int64_t at = t->first_element[owner] * t->element_bytes; at < t->first_element[owner + 1] * t->element_bytes;
       at++)
    if (t->whole[host][at] != byte_of(at, round)) return false;
  return true;
}

static bool host_holds_all(const trial *t, int host, int round) {
  for (int owner = 0; owner < t->ranks; owner++)
    if (!holds(t, host, owner, round)) return false;
  return true;
}

/* Nothing of other hosts has come while a neighbour has not begun. */
static void check_untouched(const trial *t, const bool *begun, int round) {
  for (int late = 0; late < t->ranks; late++)
    for (int owner = 0; !begun[late] && owner < t->ranks; owner++)
      if (t->host[owner] != t->host[late]) assert_true(holds(t, t->host[late], owner, round - 1));
}

static void run_round(trial *t, int round) {
  bool begun[MOST_RANKS] = {false}, complete[MOST_RANKS] = {false};
  if (draw(2)) cut(t->elements, t->ranks, t->first_element); /* other owners than in the round before */
  for (int left = t->ranks, polls = 0; left > 0;) {
    assert_true(++polls < 400000);
    const int r = (int)draw((uint32_t)t->ranks);
    if (!begun[r] && (draw(4) || polls > 1000)) {
      if (round > 1) check_untouched(t, begun, round);
      for (int64_t at = t->first_element[r] * t->element_bytes; at < t->first_element[r + 1] * t->element_bytes; at++)
        t->whole[t->host[r]][at] = byte_of(at, round);
      iso_gather_begin(t->gathers[r]);
      begun[r] = true;
    } else if (begun[r] && !complete[r] && iso_gather_poll(t->gathers[r]) == ISO_POLL_DONE) {
      complete[r] = true;
      left--;
      assert_int_equal(iso_gather_awaits(t->gathers[r]), -1);
      assert_true(host_holds_all(t, t->host[r], round));
    }
    deliver(t->ranks);
  }
}

static void test_every_host_gets_every_element(void **state) {
  (void)state;
  for (int i = 0; i < 500; i++) {
    trial t;
    seed = (uint64_t)i * 91 + 3;
    make(&t);
    const int rounds = 1 + (int)draw(3);
    for (int round = 1; round <= rounds; round++) run_round(&t, round);
    release(&t);
  }
}

static void test_a_rank_that_does_not_come_is_named(void **state) {
  (void)state;
  seed = 3;
  const int host[] = {0, 0, 1};
  const int64_t first_element[] = {0, 40, 70, 100};
  float whole[100] = {0};
  network_init(3);
  const iso_gather_plan plan = {3, 0, first_element, host, 10, sizeof(float)};
  iso_gather *gather;
  assert_int_equal(iso_gather_create(&plan, &nodes[0].transport, &nodes[0].signals, whole, &gather), ISO_OK);
  assert_int_equal(iso_gather_awaits(gather), -1);
  iso_gather_begin(gather);
  for (int i = 0; i < 20; i++) assert_int_not_equal(iso_gather_poll(gather), ISO_POLL_DONE);
  assert_int_equal(iso_gather_poll(gather), ISO_POLL_IDLE);
  assert_int_equal(iso_gather_awaits(gather), 1); /* its neighbour */
  nodes[1].reached[ISO_SIGNAL_BEGUN] = 1;
  for (int i = 0; i < 20; i++) assert_int_not_equal(iso_gather_poll(gather), ISO_POLL_DONE);
  assert_int_equal(iso_gather_poll(gather), ISO_POLL_IDLE);
  assert_int_equal(iso_gather_awaits(gather), 2); /* the other host */
  iso_gather_destroy(&gather);
}

static void test_a_plan_that_contradicts_itself_is_refused(void **state) {
  (void)state;
  const int host[] = {0, 0}, apart[] = {0, 1};
  const int64_t elements[] = {0, 5, 10}, back_elements[] = {0, 11, 10}, early_elements[] = {-1, 5, 10};
  const iso_gather_plan sound = {2, 0, elements, host, 3, 2};
  iso_gather_plan bad[6];
  for (size_t i = 0; i < ISO_COUNT(bad); i++) bad[i] = sound;
  bad[0].rank = -1;
  bad[1].first_element = back_elements;
  bad[2].first_element = early_elements;
  bad[3].chunk = 0;
  bad[4].element_bytes = 0;
  bad[5].host = apart; /* without a transport */
  char whole[20] = {0};
  iso_gather *gather;
  network_init(2);
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(bad); i++) {
    assert_int_equal(iso_gather_create(&bad[i], NULL, &nodes[0].signals, whole, &gather), ISO_ERR_INTERNAL);
    assert_null(gather);
  }
  iso_log_quiet(false);
  assert_int_equal(iso_gather_create(&sound, NULL, &nodes[0].signals, whole, &gather), ISO_OK);
  iso_gather_destroy(&gather);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_host_gets_every_element),
      cmocka_unit_test(test_a_rank_that_does_not_come_is_named),
      cmocka_unit_test(test_a_plan_that_contradicts_itself_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
