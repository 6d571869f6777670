/* SPDX-License-Identifier: Apache-2.0
 *
 * Pulses between hosts: three processes, each a host of one rank with memory of its own, and between them messages that
 * can be cut. A rank that shows that it gets on is waited for, one that is stopped, gone silent or cut off is named by
 * all that can hear of it, within the time. MPI and the world are replaced here by pairs of sockets.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"

enum { RANKS = 3, REQUESTS = 64, WELL = 0, FAILED = 42, WRONG = 3 };
static const double TIMEOUT_S = 0.6;

/* ---- a world of three hosts ---- */

static int me, sockets[RANKS][RANKS]; /* [a][b]: a's end of the pair */
static _Atomic int *cut;              /* [RANKS], seen by all: nothing goes to or from this rank */

static struct {
  int peer;   /* -1: free */
  void *data; /* NULL: it has been sent */
  size_t bytes;
} requests[REQUESTS];

static int post(int peer, void *data, size_t bytes) {
  for (int i = 0; i < REQUESTS; i++)
    if (requests[i].peer < 0) {
      requests[i].peer = peer;
      requests[i].data = data;
      requests[i].bytes = bytes;
      return i;
    }
  return -1;
}

static int send_message(int lane, int peer, const void *data, size_t bytes) {
  (void)lane;
  if (cut[me] || cut[peer]) return post(peer, NULL, 1); /* never complete */
  if (send(sockets[me][peer], data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)bytes) return -1;
  return post(peer, NULL, 0);
}

static int receive_message(int lane, int peer, void *data, size_t bytes) {
  (void)lane;
  return post(peer, data, bytes);
}

static bool complete(int number) {
  const bool receives = requests[number].data != NULL;
  if (!receives && requests[number].bytes) return false;
  if (receives && (cut[me] || cut[requests[number].peer])) return false;
  if (receives && recv(sockets[me][requests[number].peer], requests[number].data, requests[number].bytes,
                       MSG_DONTWAIT) != (ssize_t)requests[number].bytes)
    return false;
  requests[number].peer = -1;
  return true;
}

static const iso_mpi mpi = {
    .version = ISO_MPI_VERSION, .send = send_message, .receive = receive_message, .complete = complete};
static const char *const names[RANKS] = {"anna", "berta", "cora"};

/* In place of world.c's. */
int iso_world_rank(const iso_world *world) {
  return me;
}
int iso_world_ranks(const iso_world *world) {
  return RANKS;
}
int iso_world_host(const iso_world *world, int rank) {
  return rank;
}
const char *iso_world_host_name(const iso_world *world, int rank) {
  return names[rank];
}
int iso_world_launched(const iso_world *world, int rank) {
  return rank;
}
const iso_mpi *iso_world_mpi(const iso_world *world) {
  return &mpi;
}

/* ---- ranks ---- */

typedef struct plan {
  int waits_for[RANKS]; /* -1: for nobody */
  double works_s;       /* rank 2 gets on with beats so long, then comes; < 0: it does nothing and does not come */
  bool excused;         /* rank 2 is */
  bool hurry;           /* the launcher asks for the end */
} plan;

static _Atomic int *come; /* rank 2 has */

static iso_poll poll_come(void *self) {
  return *come ? ISO_POLL_DONE : ISO_POLL_IDLE;
}

static int awaits(const void *self) {
  return *(const int *)self;
}

static void work(iso_shared *shared, const plan *p) {
  const double end = iso_clock_s() + (p->works_s < 0 ? 20 : p->works_s);
  iso_shared_excuse(shared, p->excused);
  while (iso_clock_s() < end) {
    if (p->works_s >= 0 && !p->excused) iso_shared_beat(shared);
    usleep(10000);
  }
  *come = 1;
}

static int be_rank(const plan *p, int rank) {
  static const volatile sig_atomic_t yes = 1;
  const iso_shared_layout layout = {.ranks = &rank, .count = 1, .channels = 1};
  int fd;
  iso_shared *shared;
  iso_pulse *pulse;
  me = rank;
  for (int i = 0; i < REQUESTS; i++) requests[i].peer = -1;
  if (iso_shared_create(&layout, &fd) != ISO_OK || iso_shared_open(fd, rank, &shared) != ISO_OK ||
      iso_pulse_start(NULL, shared, TIMEOUT_S, &pulse) != ISO_OK)
    return WRONG;
  int status = WELL;
  if (p->hurry) iso_shared_hurry(shared, &yes);
  iso_shared_excuse(shared, false);
  if (p->waits_for[rank] < 0) {
    work(shared, p);
  } else {
    const iso_collective collective = {(void *)(uintptr_t)&p->waits_for[rank], "a test", poll_come, awaits};
    const iso_status waited = iso_shared_wait(shared, collective, 5, TIMEOUT_S);
    status = waited == ISO_OK ? WELL : waited == ISO_ERR_IO ? FAILED : WRONG;
  }
  iso_pulse_stop(&pulse, status != WELL);
  if (status == WELL) iso_shared_close(&shared);
  return status;
}

typedef struct outcome {
  pid_t process[RANKS];
  int output[RANKS], code[RANKS];
  char said[RANKS][1000];
  double seconds;
} outcome;

static void start(const plan *p, outcome *o) {
  memset(o, 0, sizeof *o);
  for (int a = 0; a < RANKS; a++) cut[a] = 0;
  *come = 0;
  for (int a = 0; a < RANKS; a++)
    for (int b = a + 1; b < RANKS; b++) {
      int pair[2];
      assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
      sockets[a][b] = pair[0];
      sockets[b][a] = pair[1];
    }
  for (int r = 0; r < RANKS; r++) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    o->process[r] = fork();
    assert_true(o->process[r] >= 0);
    if (o->process[r] == 0) {
      dup2(ends[1], STDERR_FILENO);
      close(ends[0]);
      close(ends[1]);
      _exit(be_rank(p, r));
    }
    close(ends[1]);
    o->output[r] = ends[0];
  }
  o->seconds = iso_clock_s();
}

/* All but `left` end by themselves; that one is killed then. */
static void finish(outcome *o, int left) {
  for (int r = 0; r < RANKS; r++) {
    int state;
    if (r == left) continue;
    assert_int_equal(waitpid(o->process[r], &state, 0), o->process[r]);
    o->code[r] = WIFEXITED(state) ? WEXITSTATUS(state) : -1;
  }
  o->seconds = iso_clock_s() - o->seconds;
  if (left >= 0) {
    kill(o->process[left], SIGKILL);
    waitpid(o->process[left], NULL, 0);
  }
  for (int r = 0; r < RANKS; r++) {
    const ssize_t got = read(o->output[r], o->said[r], sizeof o->said[r] - 1);
    o->said[r][got > 0 ? got : 0] = '\0';
    close(o->output[r]);
    for (int b = 0; b < RANKS; b++)
      if (b != r) close(sockets[r][b]);
  }
}

static void assert_said(const outcome *o, int rank, const char *what) {
  if (o->code[rank] == FAILED && strstr(o->said[rank], what)) return;
  fail_msg("rank %d ended with %d and said '%s', not '%s'", rank, o->code[rank], o->said[rank], what);
}

static const plan usual = {.waits_for = {2, 2, -1}, .works_s = -1};

/* ---- tests ---- */

static void test_who_gets_on_is_waited_for(void **state) {
  outcome o;
  plan p = usual;
  p.works_s = 3 * TIMEOUT_S;
  start(&p, &o);
  finish(&o, -1);
  for (int r = 0; r < RANKS; r++) assert_int_equal(o.code[r], WELL);
  p.excused = true;
  start(&p, &o);
  finish(&o, -1);
  for (int r = 0; r < RANKS; r++) assert_int_equal(o.code[r], WELL);
}

static void test_who_does_nothing_is_named(void **state) {
  outcome o;
  start(&usual, &o);
  finish(&o, 2);
  assert_said(&o, 0, "rank 0, in a test of step 5: rank 2 (host cora) did nothing for 0.6 s");
  assert_said(&o, 1, "rank 1, in a test of step 5: rank 2 (host cora) did nothing for 0.6 s");
  assert_true(o.seconds >= TIMEOUT_S && o.seconds < 10 * TIMEOUT_S);
}

static void test_a_stopped_one_is_named_though_excused(void **state) {
  outcome o;
  plan p = usual;
  p.excused = true;
  p.works_s = 20;
  start(&p, &o);
  usleep(300000);
  kill(o.process[2], SIGSTOP);
  finish(&o, 2);
  assert_said(&o, 0, "rank 2 (host cora) did nothing for 0.6 s");
  assert_said(&o, 1, "rank 2 (host cora) did nothing for 0.6 s");
}

/* Rank 0 waits for rank 1, which waits for rank 2. */
static void test_the_end_of_the_chain_is_named(void **state) {
  outcome o;
  plan p = usual;
  p.waits_for[0] = 1;
  start(&p, &o);
  finish(&o, 2);
  assert_said(&o, 0, "rank 2 (host cora) did nothing for 0.6 s");
  assert_said(&o, 1, "rank 2 (host cora) did nothing for 0.6 s");
}

/* Rank 1 hears of the verdict from rank 0, though it would wait on itself: rank 2 is excused, and cut off for rank 0.
 */
static void test_a_cut_is_named_on_both_sides(void **state) {
  outcome o;
  plan p = {.waits_for = {2, 2, 0}, .works_s = -1};
  start(&p, &o);
  usleep(200000);
  cut[2] = 1;
  finish(&o, -1);
  assert_said(&o, 0, "rank 2 (host cora) did nothing for 0.6 s");
  assert_said(&o, 1, "rank 2 (host cora) did nothing for 0.6 s");
  if (!strstr(o.said[2], "(host anna) did nothing for 0.6 s") &&
      !strstr(o.said[2], "(host berta) did nothing for 0.6 s"))
    fail_msg("rank 2 said '%s'", o.said[2]);
}

/* Within a second, though the timeout is longer, when the launcher asks for the end. */
static void test_who_vanishes_at_the_end_is_named_at_once(void **state) {
  outcome o;
  plan p = usual;
  p.excused = true;
  p.works_s = 20;
  p.hurry = true;
  start(&p, &o);
  usleep(200000);
  cut[2] = 1;
  finish(&o, 2);
  assert_true(strstr(o.said[0], "rank 2 (host cora) is not heard of any more") ||
              strstr(o.said[1], "rank 2 (host cora) is not heard of any more"));
  assert_said(&o, 0, "rank 2 (host cora)");
  assert_said(&o, 1, "rank 2 (host cora)");
}

int main(void) {
  void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  cut = shared;
  come = cut + RANKS;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_who_gets_on_is_waited_for),
      cmocka_unit_test(test_who_does_nothing_is_named),
      cmocka_unit_test(test_a_stopped_one_is_named_though_excused),
      cmocka_unit_test(test_the_end_of_the_chain_is_named),
      cmocka_unit_test(test_a_cut_is_named_on_both_sides),
      cmocka_unit_test(test_who_vanishes_at_the_end_is_named_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
