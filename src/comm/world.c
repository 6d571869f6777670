/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks that mpirun or srun has started: that MPI sees all of them, on which hosts they are, and what they tell
 * each other before they share memory.
 *
 * Two ranks are of one host when they can share memory: same host name, same boot of one kernel, same process numbers
 * (a pid namespace), since a file is passed on as /proc/PID/fd/FD.
 *
 * Invariants
 *  1. All ranks call gather, agree and pass_file in the same order, whatever has failed before: a failure is agreed on,
 *     so that nobody waits for a rank that has given up.
 *  2. What all ranks find is said once, by the lowest rank that has failed.
 *  3. Ranks are numbered as MPI numbers them until hosts are put in order, then along that order; rank 0 is MPI's rank 0
 *     in both. MPI's own numbers are used only to speak with MPI.
 *
 * These calls wait without an end: a rank that dies in them is the launcher's to find, which ends the others.
 */
#include "comm/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ERROR_BYTES = 600, CLOSE_S = 10 };

typedef struct place { /* of a rank */
  char host[ISO_HOST_NAME], boot[40], numbers[64];
} place;

struct iso_world {
  const iso_mpi *mpi;
  const iso_launch *launch;
  int rank, ranks, hosts;
  place *places; /* [ranks] */
  int *host;     /* [ranks] */
  int *launched; /* [ranks]: MPI's number of each; they differ once hosts are put in order */
  iso_order *order;
  iso_transport transport;
};

enum { LANE = 0 };

static int send_message(void *self, int peer, const void *data, size_t bytes) {
  const iso_world *w = self;
  return w->mpi->send(LANE, w->launched[peer], data, bytes);
}

static int receive_message(void *self, int peer, void *data, size_t bytes) {
  const iso_world *w = self;
  return w->mpi->receive(LANE, w->launched[peer], data, bytes);
}

static bool message_complete(void *self, int request) {
  return ((const iso_world *)self)->mpi->complete(request);
}

static void read_place(place *p) {
  memset(p, 0, sizeof *p); /* compared as bytes */
  if (gethostname(p->host, sizeof p->host - 1)) snprintf(p->host, sizeof p->host, "?");
  const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    const ssize_t got = read(fd, p->boot, 36);
    if (got < 0) p->boot[0] = '?';
    close(fd);
  }
  if (readlink("/proc/self/ns/pid", p->numbers, sizeof p->numbers - 1) < 0) p->numbers[0] = '?';
}

iso_status iso_world_gather(iso_world *w, const void *mine, void *all, size_t bytes) {
  char error[ERROR_BYTES] = "", *to = all, *given = NULL;
  if (w->order) { /* MPI gives what ranks gave in the order of its own numbers */
    given = malloc((size_t)w->ranks * bytes);
    if (!given) (void)iso_fail(ISO_ERR_MEMORY, "rank %d: no memory for what %d ranks say", w->rank, w->ranks);
  }
  const int failed = w->mpi->gather(mine, given ? given : to, (int)bytes, error, sizeof error);
  for (int r = 0; given && !failed && r < w->ranks; r++)
    memcpy(to + (size_t)r * bytes, given + (size_t)w->launched[r] * bytes, bytes);
  const bool lacks = w->order && !given;
  free(given);
  if (lacks) return ISO_ERR_MEMORY;
  if (!failed) return ISO_OK;
  return iso_fail(ISO_ERR_IO, "rank %d of %d: %s", w->rank, w->ranks, error);
}

static iso_status find_hosts(iso_world *w) {
  place mine;
  read_place(&mine);
  w->places = calloc((size_t)w->ranks, sizeof *w->places);
  w->host = calloc((size_t)w->ranks, sizeof *w->host);
  w->launched = calloc((size_t)w->ranks, sizeof *w->launched);
  if (!w->places || !w->host || !w->launched)
    return iso_fail(ISO_ERR_MEMORY, "rank %d: no memory for %d ranks", w->rank, w->ranks);
  ISO_TRY(iso_world_gather(w, &mine, w->places, sizeof mine));
  for (int r = 0; r < w->ranks; r++) {
    int before = 0;
    while (before < r && memcmp(&w->places[before], &w->places[r], sizeof mine) != 0) before++;
    w->host[r] = before < r ? w->host[before] : w->hosts++;
    w->places[r].host[ISO_HOST_NAME - 1] = '\0';
    w->launched[r] = r;
  }
  return ISO_OK;
}

static void free_world(iso_world **world) {
  free((*world)->places);
  free((*world)->host);
  free((*world)->launched);
  iso_order_destroy(&(*world)->order);
  free(*world);
  *world = NULL;
}

iso_status iso_world_open(const iso_launch *launch, iso_world **out) {
  char error[ERROR_BYTES] = "";
  *out = NULL;
  if (launch->disconnected) /* MPI itself says it in many lines, or takes each rank for a world of its own */
    return iso_fail(
        ISO_ERR_MISMATCH,
        "launch: %s says rank %d of %d, but MPI could not find the others; start with srun --mpi=pmix (Open "
        "MPI) or --mpi=pmi2 (MPICH); srun --mpi=list says what there is",
        launch->launcher, launch->rank, launch->ranks);
  iso_world *w = calloc(1, sizeof *w);
  if (!w) return iso_fail(ISO_ERR_MEMORY, "launch: no memory for %zu bytes", sizeof *w);
  w->launch = launch;
  w->transport = (iso_transport){w, send_message, receive_message, message_complete};
  iso_status status = iso_mpi_load(&w->mpi);
  if (status == ISO_OK && w->mpi->init(&w->rank, &w->ranks, error, sizeof error))
    status = iso_fail(ISO_ERR_IO, "launch: %s", error);
  if (status == ISO_OK) status = iso_launch_check(launch, w->rank, w->ranks, w->mpi->library());
  if (status == ISO_OK) status = find_hosts(w);
  if (status == ISO_OK)
    *out = w;
  else
    free_world(&w);
  return status;
}

static volatile sig_atomic_t code_at_end;

static void give_up(int number) {
  (void)number;
  _exit(code_at_end);
}

void iso_world_close(iso_world **world, int code) {
  char error[ERROR_BYTES];
  code_at_end = code;
  if (!*world) return;
  signal(SIGALRM, give_up);
  alarm(CLOSE_S);
  (void)(*world)->mpi->finalize(error, sizeof error);
  alarm(0);
  signal(SIGALRM, SIG_DFL);
  free_world(world);
}

/* ---- the order of hosts ---- */

/* Rank 0's: which of the hosts, as they are numbered now, comes when. */
static iso_status spread_order(iso_world *w, const iso_order *order, int *numbers) {
  const size_t bytes = (size_t)w->hosts * sizeof *numbers;
  int *all = calloc((size_t)w->ranks, bytes);
  for (int i = 0; order && i < w->hosts; i++) numbers[i] = order->hosts[i].number;
  iso_status status = all ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "rank %d: no memory for %d ranks", w->rank, w->ranks);
  status = iso_world_agree(w, status);
  if (status == ISO_OK) status = all ? iso_world_gather(w, numbers, all, bytes) : ISO_ERR_MEMORY;
  if (status == ISO_OK && all) memcpy(numbers, all, bytes);
  free(all);
  return status;
}

/* Everything that goes by ranks, anew. */
static iso_status renumber(iso_world *w, iso_order *order) {
  place *places = calloc((size_t)w->ranks, sizeof *places);
  int *launched = calloc((size_t)w->ranks, sizeof *launched), rank = w->rank;
  iso_status status = iso_order_number(order, w->host, w->ranks);
  if (status == ISO_OK && (!places || !launched))
    status = iso_fail(ISO_ERR_MEMORY, "rank %d: no memory for %d ranks", w->rank, w->ranks);
  status = iso_world_agree(w, status);
  if (status == ISO_OK && places && launched) {
    for (int r = 0; r < w->ranks; r++) { /* order->launched: of the numbers so far */
      const int was = order->launched[r];
      places[r] = w->places[was];
      launched[r] = w->launched[was];
      if (was == w->rank) rank = r;
    }
    for (int i = 0; i < order->count; i++) {
      for (int r = 0; r < order->hosts[i].ranks; r++) w->host[order->hosts[i].first + r] = i;
      order->hosts[i].number = i;
    }
    memcpy(order->launched, launched, (size_t)w->ranks * sizeof *launched);
    memcpy(w->launched, launched, (size_t)w->ranks * sizeof *launched);
    memcpy(w->places, places, (size_t)w->ranks * sizeof *places);
    w->rank = rank;
    iso_order_destroy(&w->order);
    w->order = order;
  }
  free(places);
  free(launched);
  return status;
}

iso_status iso_world_reorder(iso_world *w, iso_order *order) {
  iso_order *own = order;
  int *numbers = calloc((size_t)w->hosts, sizeof *numbers);
  iso_order_host *hosts = calloc((size_t)w->hosts, sizeof *hosts);
  iso_status status =
      numbers && hosts ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "rank %d: no memory for %d hosts", w->rank, w->hosts);
  status = iso_world_agree(w, status);
  if (status == ISO_OK && numbers && hosts) status = spread_order(w, w->rank == 0 ? order : NULL, numbers);
  if (status == ISO_OK && numbers && hosts && w->rank != 0) {
    for (int i = 0; i < w->hosts; i++) hosts[i].number = numbers[i];
    for (int r = 0; r < w->ranks; r++)
      for (int i = 0; i < w->hosts; i++)
        if (hosts[i].number == w->host[r]) memcpy(hosts[i].name, w->places[r].host, ISO_HOST_NAME);
    status = iso_order_create(hosts, w->hosts, &own);
  }
  status = iso_world_agree(w, status);
  if (status == ISO_OK) status = own ? renumber(w, own) : ISO_ERR_MEMORY;
  if (w->order != own) iso_order_destroy(&own);
  free(numbers);
  free(hosts);
  return status;
}

const iso_order *iso_world_order(const iso_world *w) {
  return w->order;
}

int iso_world_launched(const iso_world *w, int rank) {
  return w->launched[rank];
}

/* ---- asking ---- */

int iso_world_rank(const iso_world *w) {
  return w->rank;
}

int iso_world_ranks(const iso_world *w) {
  return w->ranks;
}

const char *iso_world_launcher(const iso_world *w) {
  return w->launch->launcher;
}

int iso_world_host(const iso_world *w, int rank) {
  return w->host[rank];
}

const char *iso_world_host_name(const iso_world *w, int rank) {
  return w->places[rank].host;
}

int iso_world_hosts(const iso_world *w) {
  return w->hosts;
}

const iso_transport *iso_world_transport(const iso_world *w) {
  return &w->transport;
}

const iso_mpi *iso_world_mpi(const iso_world *w) {
  return w->mpi;
}

/* Ranks other than 0 may be quiet. */
static void say_if_quiet(const iso_world *w, iso_status status) {
  char cause[2048];
  snprintf(cause, sizeof cause, "%s", iso_last_error());
  const bool quiet = iso_log_quiet(false);
  if (quiet) (void)iso_fail(status, "rank %d: %s", w->rank, cause[0] ? cause : iso_status_name(status));
  iso_log_quiet(quiet);
}

iso_status iso_world_agree(iso_world *w, iso_status status) {
  iso_status *all = calloc((size_t)w->ranks, sizeof *all);
  iso_status agreed = all ? iso_world_gather(w, &status, all, sizeof status)
                          : iso_fail(ISO_ERR_MEMORY, "rank %d: no memory for %d ranks", w->rank, w->ranks);
  for (int r = 0; agreed == ISO_OK && r < w->ranks; r++) {
    agreed = all[r];
    if (agreed != ISO_OK && r == w->rank) say_if_quiet(w, agreed);
  }
  free(all);
  return agreed;
}

iso_status iso_world_pass_file(iso_world *w, int fd, int *out) {
  typedef struct file {
    int process, fd;
  } file;
  *out = -1;
  file *all = calloc((size_t)w->ranks, sizeof *all);
  if (!all) return iso_fail(ISO_ERR_MEMORY, "rank %d: no memory for %d ranks", w->rank, w->ranks);
  const file mine = {getpid(), fd};
  iso_status status = iso_world_gather(w, &mine, all, sizeof mine);
  int first = 0;
  while (w->host[first] != w->host[w->rank]) first++;
  if (status == ISO_OK && all[first].fd >= 0) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", all[first].process, all[first].fd);
    *out = open(path, O_RDWR | O_CLOEXEC);
    if (*out < 0)
      status = iso_fail(ISO_ERR_IO,
                        "rank %d: cannot open rank %d's memory by %s: %s; ranks of one host must be processes "
                        "of one user",
                        w->rank, first, path, strerror(errno));
  }
  free(all);
  return iso_world_agree(w, status);
}
