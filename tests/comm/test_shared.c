/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks as processes of one host: sums and gathered elements are the bits of one process for any number of them; and
 * when one is killed, stopped, leaves or never comes, every other one fails within the time with one line that names
 * it, and neither a process nor the memory is left.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"

enum { MOST_RANKS = 8, WORKERS = 8, ELEMENTS = 30000, CHUNK = 4000, SETS = 2 /* of leaves, in turn */ };
enum { FAILED_AS_EXPECTED = 42, WRONG_BITS = 3, WRONG_ERROR = 4 };

static float leaves[SETS][WORKERS][ELEMENTS], expected[SETS][ELEMENTS];

static void fold(int set, int first, int count, float *out) {
  if (count == 1) {
    memcpy(out, leaves[set][first], sizeof leaves[set][first]);
    return;
  }
  float *right = malloc(sizeof(float) * ELEMENTS);
  fold(set, first, count / 2, out);
  fold(set, first + count / 2, count / 2, right);
  for (int i = 0; i < ELEMENTS; i++) out[i] += right[i];
  free(right);
}

static int make_leaves(void **state) {
  (void)state;
  uint64_t seed = 9;
  for (int set = 0; set < SETS; set++) {
    for (int w = 0; w < WORKERS; w++)
      for (int i = 0; i < ELEMENTS; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        leaves[set][w][i] = ((float)(seed >> 40) - 8388608.0F) * (seed & 0x10000000 ? 1e-6F : 3e4F);
      }
    fold(set, 0, WORKERS, expected[set]);
  }
  return 0;
}

/* ---- ranks ---- */

typedef struct job {
  int ranks, rounds;
  double timeout_s;
  int victim;       /* -1: none */
  int leaves_after; /* rounds after which the victim leaves; it never comes when 0 */
  int fd;           /* the memory */
  dev_t device;     /* and which file it is */
  ino_t inode;
  pid_t process[MOST_RANKS];
  int output[MOST_RANKS]; /* what each says on standard error */
  _Atomic int *round;     /* [ranks], seen by all */
} job;

typedef struct rank_state {
  iso_shared *shared;
  iso_reduce *reduce;
  iso_gather *gather;
  int first_leaf[MOST_RANKS + 1], host[MOST_RANKS];
  int64_t first_element[MOST_RANKS + 1];
} rank_state;

static iso_status open_rank(const job *j, int rank, rank_state *s) {
  ISO_TRY(iso_shared_open(j->fd, rank, &s->shared));
  const float *pieces[MOST_RANKS];
  for (int r = 0; r <= j->ranks; r++) {
    s->first_leaf[r] = r * WORKERS / j->ranks;
    s->first_element[r] = (int64_t)ELEMENTS * r * r / (j->ranks * j->ranks);
  }
  for (int r = 0; r < j->ranks; r++) pieces[r] = iso_shared_region(s->shared, r);
  const iso_reduce_plan reduce = {j->ranks, rank, WORKERS, s->first_leaf, s->first_element, s->host, CHUNK};
  const iso_gather_plan gather = {j->ranks, rank, s->first_element, s->host, CHUNK, sizeof(float)};
  ISO_TRY(iso_reduce_create(&reduce, NULL, iso_shared_signals(s->shared, 0), pieces, ELEMENTS, &s->reduce));
  return iso_gather_create(&gather, NULL, iso_shared_signals(s->shared, 1), iso_shared_common(s->shared), &s->gather);
}

static void close_rank(rank_state *s) {
  iso_reduce_destroy(&s->reduce);
  iso_gather_destroy(&s->gather);
  iso_shared_close(&s->shared);
}

static void make_pieces(const rank_state *s, int rank, int set) {
  iso_part parts[ISO_MOST_PARTS];
  const int count = iso_tree_parts(s->first_leaf[rank], s->first_leaf[rank + 1] - s->first_leaf[rank], parts);
  float *pieces = iso_shared_region(s->shared, rank);
  for (int i = 0; i < count; i++) fold(set, parts[i].first, parts[i].count, pieces + (size_t)i * ELEMENTS);
}

/* Sums into the host's copy, then gathers it. */
static iso_status one_round(const job *j, int rank, rank_state *s, int round) {
  float *whole = iso_shared_common(s->shared);
  make_pieces(s, rank, round % SETS);
  iso_reduce_begin(s->reduce, whole + s->first_element[rank]);
  ISO_TRY(iso_shared_wait(s->shared, iso_reduce_collective(s->reduce), round, j->timeout_s));
  iso_gather_begin(s->gather);
  return iso_shared_wait(s->shared, iso_gather_collective(s->gather), round, j->timeout_s);
}

static int be_rank(const job *j, int rank) {
  rank_state s = {0};
  if (rank == j->victim && j->leaves_after == 0) {
    pause();
    return 0;
  }
  iso_status status = open_rank(j, rank, &s);
  for (int round = 1; status == ISO_OK && round <= j->rounds; round++) {
    if (rank == j->victim && round > j->leaves_after) break;
    status = one_round(j, rank, &s, round);
    if (status == ISO_OK && memcmp(iso_shared_common(s.shared), expected[round % SETS], sizeof expected[0]) != 0)
      return WRONG_BITS;
    j->round[rank] = round;
  }
  close_rank(&s);
  if (status == ISO_OK) return 0;
  return status == ISO_ERR_IO ? FAILED_AS_EXPECTED : WRONG_ERROR;
}

/* ---- the host ---- */

static void start(job *j) {
  int ranks[MOST_RANKS];
  struct stat stat;
  for (int r = 0; r < j->ranks; r++) ranks[r] = r;
  const size_t pieces = ELEMENTS * sizeof(float) * 6;
  const iso_shared_layout layout = {ranks, j->ranks, 2, pieces, ELEMENTS * sizeof(float)};
  assert_int_equal(iso_shared_create(&layout, &j->fd), ISO_OK);
  assert_int_equal(fstat(j->fd, &stat), 0);
  j->device = stat.st_dev;
  j->inode = stat.st_ino;
  j->round = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(j->round != MAP_FAILED);
  const pid_t parent = getpid();
  for (int r = 0; r < j->ranks; r++) {
    j->output[r] = memfd_create("said", MFD_CLOEXEC);
    assert_true(j->output[r] >= 0);
    j->process[r] = fork();
    assert_true(j->process[r] >= 0);
    if (j->process[r]) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    dup2(j->output[r], STDERR_FILENO);
    _exit(be_rank(j, r));
  }
}

/* Processes that have the memory open. */
static int holders(const job *j) {
  int count = 0;
  DIR *processes = opendir("/proc");
  assert_non_null(processes);
  for (struct dirent *p; (p = readdir(processes));) {
    char path[600];
    (void)snprintf(path, sizeof path, "/proc/%s/fd", p->d_name);
    DIR *files = p->d_name[0] >= '0' && p->d_name[0] <= '9' ? opendir(path) : NULL;
    bool holds = false;
    for (struct dirent *f; files && (f = readdir(files));) {
      struct stat stat;
      holds = holds ||
              (fstatat(dirfd(files), f->d_name, &stat, 0) == 0 && stat.st_dev == j->device && stat.st_ino == j->inode);
    }
    if (files) closedir(files);
    count += holds;
  }
  closedir(processes);
  return count;
}

/* Exit status of a rank that ends within the time; else the test fails. */
static int end_of(const job *j, int rank, double until_s) {
  for (int status;;) {
    const pid_t ended = waitpid(j->process[rank], &status, WNOHANG);
    if (ended == j->process[rank]) return status;
    assert_int_equal(ended, 0);
    if (iso_clock_s() > until_s) fail_msg("rank %d of %d does not end", rank, j->ranks);
    usleep(1000);
  }
}

static void finish(job *j) {
  assert_int_equal(waitpid(-1, NULL, 0), -1);
  assert_int_equal(errno, ECHILD);
  assert_int_equal(holders(j), 1); /* this one */
  close(j->fd);
  assert_int_equal(holders(j), 0);
  for (int r = 0; r < j->ranks; r++) close(j->output[r]);
  munmap((void *)j->round, 4096);
}

/* The rank has said one line, with all of these. */
static void check_line(const job *j, int rank, const char *const *words, size_t count) {
  char text[4096] = "";
  assert_true(pread(j->output[rank], text, sizeof text - 1, 0) >= 0);
  const char *end = strchr(text, '\n');
  if (!end || end[1]) fail_msg("rank %d said not one line: '%s'", rank, text);
  for (size_t i = 0; i < count; i++)
    if (!strstr(text, words[i])) fail_msg("rank %d does not say '%s': %s", rank, words[i], text);
}

/* All but the victim end in time, each with one line that names it. */
static void check_survivors(const job *j, double until_s, const char *cause) {
  char name[160];
  char host[65] = "";
  assert_int_equal(gethostname(host, sizeof host - 1), 0);
  (void)snprintf(name, sizeof name, ": rank %d (host %s, process %d)", j->victim, host, j->process[j->victim]);
  if (!j->leaves_after) (void)snprintf(name, sizeof name, ": rank %d did", j->victim);
  for (int r = 0; r < j->ranks; r++) {
    if (r == j->victim) continue;
    const int status = end_of(j, r, until_s);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != FAILED_AS_EXPECTED) fail_msg("rank %d: status %x", r, status);
    const char *const words[] = {name, cause, " of step "};
    check_line(j, r, words, ISO_COUNT(words));
  }
}

/* ---- tests ---- */

static void test_the_bits_of_one_process(void **state) {
  (void)state;
  static const int counts[] = {1, 2, 3, 4, 6, 8};
  for (size_t i = 0; i < ISO_COUNT(counts); i++) {
    job j = {.ranks = counts[i], .rounds = 8, .timeout_s = 60, .victim = -1};
    start(&j);
    for (int r = 0; r < j.ranks; r++) assert_int_equal(end_of(&j, r, iso_clock_s() + 60), 0);
    finish(&j);
  }
}

/* After some rounds, the victim gets the signal at an odd moment. */
static void strike(const job *j, int after_us, int signal) {
  const double until_s = iso_clock_s() + 30;
  while (j->round[j->victim] < 3 && iso_clock_s() < until_s) usleep(500);
  assert_true(j->round[j->victim] >= 3);
  usleep((useconds_t)after_us);
  assert_int_equal(kill(j->process[j->victim], signal), 0);
}

static void test_a_killed_rank_is_named_at_once(void **state) {
  (void)state;
  for (int i = 0; i < 12; i++) {
    const int ranks = 2 + i % 3;
    job j = {.ranks = ranks, .rounds = 1000000, .timeout_s = 20, .victim = i % ranks, .leaves_after = 1000000};
    start(&j);
    strike(&j, i * 237, SIGKILL);
    check_survivors(&j, iso_clock_s() + 10, "is gone"); /* long before the time */
    assert_true(WIFSIGNALED(end_of(&j, j.victim, iso_clock_s() + 10)));
    finish(&j);
  }
}

static void test_a_stopped_rank_is_named_and_does_not_go_on(void **state) {
  (void)state;
  for (int i = 0; i < 4; i++) {
    const int ranks = 2 + i;
    job j = {.ranks = ranks, .rounds = 1000000, .timeout_s = 0.5, .victim = i, .leaves_after = 1000000};
    start(&j);
    strike(&j, 113 + i * 271, SIGSTOP);
    check_survivors(&j, iso_clock_s() + 5, "did nothing for 0.5 s");
    assert_int_equal(kill(j.process[j.victim], SIGCONT), 0);
    const int status = end_of(&j, j.victim, iso_clock_s() + 10);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == FAILED_AS_EXPECTED);
    static const char *const words[] = {"has given this rank up"};
    check_line(&j, j.victim, words, 1);
    finish(&j);
  }
}

static void test_a_rank_that_leaves_early_is_named(void **state) {
  (void)state;
  job j = {.ranks = 3, .rounds = 1000000, .timeout_s = 20, .victim = 1, .leaves_after = 4};
  start(&j);
  check_survivors(&j, iso_clock_s() + 10, "has left");
  assert_int_equal(end_of(&j, j.victim, iso_clock_s() + 10), 0);
  finish(&j);
}

static void test_a_rank_that_never_comes_is_named(void **state) {
  (void)state;
  job j = {.ranks = 3, .rounds = 1000000, .timeout_s = 0.3, .victim = 2, .leaves_after = 0};
  start(&j);
  check_survivors(&j, iso_clock_s() + 10, "did nothing for 0.3 s");
  assert_int_equal(kill(j.process[j.victim], SIGKILL), 0);
  assert_true(WIFSIGNALED(end_of(&j, j.victim, iso_clock_s() + 10)));
  finish(&j);
}

/* A collective that never moves. */
typedef struct stuck {
  iso_shared *shared;
  int awaited;
  double timeout_s;
  iso_status status;
  char said[200];
} stuck;

static iso_poll never(void *self) {
  (void)self;
  return ISO_POLL_IDLE;
}

static int awaits(const void *self) {
  return ((const stuck *)self)->awaited;
}

static void *wait_stuck(void *self) {
  stuck *s = self;
  s->status = iso_shared_wait(s->shared, (iso_collective){s, "nothing", never, awaits}, 7, s->timeout_s);
  (void)snprintf(s->said, sizeof s->said, "%s", iso_last_error());
  return NULL;
}

/* Rank r of 0, 1, 2 waits for `awaited[r]`; -1: it does not wait. */
static void wait_all(const int awaited[3], const double timeout_s[3], stuck out[3]) {
  static const int numbers[] = {0, 1, 2};
  const iso_shared_layout layout = {numbers, 3, 1, 1, 1};
  pthread_t threads[3];
  int fd;
  assert_int_equal(iso_shared_create(&layout, &fd), ISO_OK);
  for (int r = 0; r < 3; r++) {
    out[r] = (stuck){.awaited = awaited[r], .timeout_s = timeout_s[r]};
    assert_int_equal(iso_shared_open(fd, r, &out[r].shared), ISO_OK);
  }
  iso_log_quiet(true);
  for (int r = 0; r < 3; r++)
    if (awaited[r] >= 0) assert_int_equal(iso_thread_start(&threads[r], wait_stuck, &out[r]), 0);
  for (int r = 0; r < 3; r++)
    if (awaited[r] >= 0) pthread_join(threads[r], NULL);
  iso_log_quiet(false);
  for (int r = 0; r < 3; r++) iso_shared_close(&out[r].shared);
  close(fd);
}

static void test_the_end_of_the_chain_is_named(void **state) {
  (void)state;
  stuck out[3];
  wait_all((int[]){1, 2, -1}, (double[]){0.3, 100, 0}, out);
  assert_int_equal(out[0].status, ISO_ERR_IO);
  assert_int_equal(out[1].status, ISO_ERR_IO);
  assert_non_null(strstr(out[0].said, "rank 0, in nothing of step 7: rank 2 (host "));
  assert_null(strstr(out[0].said, "says"));
  assert_non_null(strstr(out[1].said, "rank 1, in nothing of step 7: rank 2 (host "));
  assert_non_null(strstr(out[1].said, "says rank 0"));
  wait_all((int[]){1, 2, 0}, (double[]){0.2, 100, 100}, out); /* a circle ends too */
  for (int r = 0; r < 3; r++) assert_int_equal(out[r].status, ISO_ERR_IO);
  assert_non_null(strstr(out[0].said, ": rank 1 (host "));
}

/* A rank that does its part and leaves at once, just after the other's poll. */
typedef struct late {
  iso_shared *peer;
  int asked;
  bool done;
} late;

static iso_poll poll_late(void *self) {
  return ((late *)self)->done ? ISO_POLL_DONE : ISO_POLL_IDLE;
}

/* Two ranks in this process; the descriptor of what they share. */
static int open_two(iso_shared **zero, iso_shared **one) {
  static const int numbers[] = {0, 1};
  const iso_shared_layout layout = {numbers, 2, 1, 1, 1};
  int fd;
  assert_int_equal(iso_shared_create(&layout, &fd), ISO_OK);
  assert_int_equal(iso_shared_open(fd, 0, zero), ISO_OK);
  assert_int_equal(iso_shared_open(fd, 1, one), ISO_OK);
  return fd;
}

static int leave_late(const void *self) {
  late *l = (late *)(uintptr_t)self;
  if (l->asked++ == 0) return 1; /* begins the watch */
  usleep(20000);                 /* so that what comes next is a look at the rank */
  l->done = true;
  iso_shared_close(&l->peer);
  return 1;
}

static void test_a_rank_that_did_its_part_may_leave(void **state) {
  (void)state;
  iso_shared *shared;
  late l = {0};
  const int fd = open_two(&shared, &l.peer);
  assert_int_equal(iso_shared_wait(shared, (iso_collective){&l, "its part", poll_late, leave_late}, 1, 100), ISO_OK);
  assert_null(l.peer);
  iso_shared_close(&shared);
  close(fd);
}

/* Rank 0 is away for longer than the time it gives others; rank 1 does its part soon after. */
static int sleep_once(const void *self) {
  late *l = (late *)(uintptr_t)self;
  if (++l->asked == 2) usleep(500000);
  l->done = l->asked == 3;
  return 1;
}

static void test_own_absence_is_nobody_elses(void **state) {
  (void)state;
  iso_shared *shared;
  late l = {0};
  const int fd = open_two(&shared, &l.peer);
  assert_int_equal(iso_shared_wait(shared, (iso_collective){&l, "its part", poll_late, sleep_once}, 1, 0.3), ISO_OK);

  /* But when rank 0 has given rank 1 up, rank 1 does not go on, though it has all it needs. */
  stuck given_up = {.shared = shared, .awaited = 1, .timeout_s = 0.2};
  late ready = {.done = true};
  iso_log_quiet(true);
  wait_stuck(&given_up);
  assert_int_equal(given_up.status, ISO_ERR_IO);
  assert_int_equal(iso_shared_wait(l.peer, (iso_collective){&ready, "its part", poll_late, sleep_once}, 2, 0.2),
                   ISO_ERR_IO);
  iso_log_quiet(false);
  assert_non_null(strstr(iso_last_error(), "rank 1, in its part of step 2: rank 0 has given this rank up"));
  iso_shared_close(&l.peer);
  iso_shared_close(&shared);
  close(fd);
}

/* Rank 0 waits 0.3 s for rank 1. */
typedef struct patient {
  iso_shared *shared;
  _Atomic bool done;
  iso_status status;
} patient;

static iso_poll poll_patient(void *self) {
  return ((patient *)self)->done ? ISO_POLL_DONE : ISO_POLL_IDLE;
}

static int awaits_one(const void *self) {
  (void)self;
  return 1;
}

static void *wait_patiently(void *self) {
  patient *p = self;
  p->status = iso_shared_wait(p->shared, (iso_collective){p, "its part", poll_patient, awaits_one}, 1, 0.3);
  return NULL;
}

static void test_who_gets_on_or_is_excused_is_not_given_up(void **state) {
  (void)state;
  static const int numbers[] = {0, 1};
  const iso_shared_layout layout = {numbers, 2, 1, 1, 1};
  iso_shared *one;
  patient p = {0};
  pthread_t thread;
  int fd;
  assert_int_equal(iso_shared_create(&layout, &fd), ISO_OK);
  assert_int_equal(iso_shared_open(fd, 0, &p.shared), ISO_OK);
  assert_int_equal(iso_shared_open(fd, 1, &one), ISO_OK);
  iso_log_quiet(true);
  assert_int_equal(iso_thread_start(&thread, wait_patiently, &p), 0);
  for (const double until = iso_clock_s() + 0.8; iso_clock_s() < until; usleep(10000)) iso_shared_beat(one);
  iso_shared_excuse(one, true);
  usleep(800000);
  iso_shared_excuse(one, false);
  p.done = true;
  pthread_join(thread, NULL);
  assert_int_equal(p.status, ISO_OK);

  /* Excused no more, it is given up; and one that is gone is no matter of time. */
  p.done = false;
  wait_patiently(&p);
  assert_int_equal(p.status, ISO_ERR_IO);
  iso_shared_close(&one);
  iso_shared_close(&p.shared);
  close(fd);
  assert_int_equal(iso_shared_create(&layout, &fd), ISO_OK);
  assert_int_equal(iso_shared_open(fd, 0, &p.shared), ISO_OK);
  assert_int_equal(iso_shared_open(fd, 1, &one), ISO_OK);
  iso_shared_excuse(one, true);
  iso_shared_close(&one);
  wait_patiently(&p);
  assert_int_equal(p.status, ISO_ERR_IO);
  assert_non_null(strstr(iso_last_error(), "rank 1"));
  assert_non_null(strstr(iso_last_error(), "has left"));
  iso_log_quiet(false);
  iso_shared_close(&p.shared);
  close(fd);
}

/* Stopped together and continued, as by a terminal: nobody blames another for the time. */
static void test_ranks_that_are_stopped_together_go_on(void **state) {
  (void)state;
  job j = {.ranks = 3, .rounds = 400, .timeout_s = 0.4, .victim = -1};
  start(&j);
  while (j.round[0] < 3) usleep(500);
  for (int r = 0; r < j.ranks; r++) assert_int_equal(kill(j.process[r], SIGSTOP), 0);
  usleep(1000000);
  for (int r = 0; r < j.ranks; r++) assert_int_equal(kill(j.process[r], SIGCONT), 0);
  for (int r = 0; r < j.ranks; r++) assert_int_equal(end_of(&j, r, iso_clock_s() + 30), 0);
  finish(&j);
}

static void test_what_cannot_be_opened(void **state) {
  (void)state;
  static const int numbers[] = {2, 5};
  const iso_shared_layout layout = {numbers, 2, 1, 100, 0};
  iso_shared *a, *b;
  int fd;
  iso_log_quiet(true);
  assert_int_equal(iso_shared_create(&layout, &fd), ISO_OK);
  assert_int_equal(iso_shared_open(fd, 3, &b), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_shared_open(-1, 2, &b), ISO_ERR_IO);
  assert_int_equal(iso_shared_open(fd, 2, &a), ISO_OK);
  assert_non_null(iso_shared_region(a, 2));
  assert_non_null(iso_shared_region(a, 5));
  assert_null(iso_shared_region(a, 3));
  assert_null(iso_shared_region(a, 6));
  assert_null(iso_shared_region(a, -1));
  assert_int_equal(iso_shared_open(fd, 2, &b), ISO_ERR_BUSY);
  assert_non_null(strstr(iso_last_error(), "is rank 2 already"));
  iso_shared_close(&a);
  assert_int_equal(iso_shared_open(fd, 2, &b), ISO_ERR_BUSY); /* its signals stand where it left them */
  assert_non_null(strstr(iso_last_error(), "was rank 2"));
  assert_int_equal(iso_shared_open(fd, 5, &b), ISO_OK);
  iso_shared_close(&b);
  iso_shared_close(&b);
  close(fd);

  const int foreign = memfd_create("foreign", MFD_CLOEXEC);
  assert_int_equal(ftruncate(foreign, 1 << 20), 0);
  assert_int_equal(iso_shared_open(foreign, 0, &b), ISO_ERR_FORMAT);
  close(foreign);

  static const int descending[] = {5, 2};
  iso_shared_layout bad[5] = {layout, layout, layout, layout, layout};
  bad[0].ranks = descending;
  bad[1].count = 0;
  bad[2].channels = 0;
  bad[3].rank_bytes = SIZE_MAX / 2;
  bad[4].common_bytes = SIZE_MAX;
  for (size_t i = 0; i < ISO_COUNT(bad); i++) {
    assert_int_equal(iso_shared_create(&bad[i], &fd), ISO_ERR_INTERNAL);
    assert_int_equal(fd, -1);
  }
  iso_log_quiet(false);
}

/* More than the machine has is an error, not a signal. */
static void test_too_much_memory_is_refused(void **state) {
  (void)state;
  static const int number = 0;
  const iso_shared_layout layout = {&number, 1, 1, (size_t)1 << 45, 0};
  iso_shared *shared;
  int fd;
  iso_log_quiet(true);
  assert_int_equal(iso_shared_create(&layout, &fd), ISO_OK);
  const iso_status status = iso_shared_open(fd, 0, &shared);
  iso_log_quiet(false);
  assert_int_equal(status, ISO_ERR_MEMORY);
  assert_null(shared);
  close(fd);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_the_bits_of_one_process),
      cmocka_unit_test(test_a_killed_rank_is_named_at_once),
      cmocka_unit_test(test_a_stopped_rank_is_named_and_does_not_go_on),
      cmocka_unit_test(test_a_rank_that_leaves_early_is_named),
      cmocka_unit_test(test_a_rank_that_never_comes_is_named),
      cmocka_unit_test(test_the_end_of_the_chain_is_named),
      cmocka_unit_test(test_a_rank_that_did_its_part_may_leave),
      cmocka_unit_test(test_own_absence_is_nobody_elses),
      cmocka_unit_test(test_who_gets_on_or_is_excused_is_not_given_up),
      cmocka_unit_test(test_ranks_that_are_stopped_together_go_on),
      cmocka_unit_test(test_what_cannot_be_opened),
      cmocka_unit_test(test_too_much_memory_is_refused),
  };
  return cmocka_run_group_tests(tests, make_leaves, NULL);
}
