/* SPDX-License-Identifier: Apache-2.0
 *
 * What a launcher's environment says: which rank of how many this process is, and where.
 *
 * Each launcher has names of its own for the same numbers; a row of the table has them. Two launchers in one
 * environment are common and mostly right: Open MPI's mpirun and Hydra start their daemons with Slurm's srun, so a rank
 * sees the daemon's SLURM_* beside its own names; and what Slurm does with --mpi=pmi2 or pmix it says in PMI_* or
 * PMIX_* too. So rows are in the order of who is nearer to the process, and Slurm is heard only where no one nearer is.
 *
 * Invariants
 *  1. Values are whole decimal numbers without sign, or the call fails; nothing is guessed from a bad one.
 *  2. A rank is below its size, a local rank below its local size, and neither local one above the one of all.
 *  3. Two launchers that both claim this process and say different things are an error that says what to unset.
 *  4. Slurm's numbers count only in a step, that is under srun: a batch script has SLURM_PROCID=0 and SLURM_NTASKS of
 *     the whole job, but is no rank.
 *
 * The names are those of Open MPI 4.1 (mpirun --help, "Environment"), of Hydra 4 and of srun(1), "Output environment
 * variables". Nothing here calls MPI.
 */
#include "comm/comm.h"

#include <string.h>

typedef struct source {
  const char *launcher;
  const char *marker[2];      /* either set: this launcher has started this process */
  const char *rank, *ranks;   /* ranks NULL: it does not say */
  const char *local, *locals; /* NULL: likewise */
  const char *host;
} source;

enum { OPEN_MPI, HYDRA, SLURM_STEP, PMI, PMIX, SOURCES };
static const source sources[SOURCES] = {
    {"Open MPI's mpirun",
     {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_HOSTNAME"},
    {"MPICH's mpiexec (Hydra)",
     {"MPI_LOCALRANKID", NULL},
     "PMI_RANK",
     "PMI_SIZE",
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     NULL},
    {"Slurm's srun",
     {"SLURM_STEP_NUM_TASKS", NULL},
     "SLURM_PROCID",
     "SLURM_STEP_NUM_TASKS",
     "SLURM_LOCALID",
     NULL,
     "SLURMD_NODENAME"},
    {"a launcher that speaks PMI", {"PMI_RANK", "PMI_SIZE"}, "PMI_RANK", "PMI_SIZE", NULL, NULL, NULL},
    {"a launcher that speaks PMIx", {"PMIX_RANK", NULL}, "PMIX_RANK", NULL, NULL, NULL, "PMIX_HOSTNAME"},
};

typedef struct environment {
  const char *(*get)(void *self, const char *name);
  void *self;
} environment;

/* NULL also for an empty value: launchers set none, and `NAME= command` is how one is taken away. */
static const char *look(environment e, const char *name) {
  const char *value = name ? e.get(e.self, name) : NULL;
  return value && *value ? value : NULL;
}

enum { UNSAID = -1, MOST_RANKS = 1 << 24 };

/* UNSAID when the name is NULL or not set. */
static iso_status number(environment e, const char *name, int *out) {
  const char *text = look(e, name);
  *out = UNSAID;
  if (!text) return ISO_OK;
  int64_t value = 0;
  const char *at = text;
  while (*at >= '0' && *at <= '9' && value <= MOST_RANKS) value = value * 10 + (*at++ - '0');
  if (*at || value > MOST_RANKS)
    return iso_fail(
        ISO_ERR_USAGE,
        "launch: %s must be a whole number from 0 to %d, not \"%s\"; unset it, or start with mpirun or srun", name,
        MOST_RANKS, text);
  *out = (int)value;
  return ISO_OK;
}

/* The name that shows that this launcher has started this process; NULL: it has not. */
static const char *mark(environment e, const source *s) {
  return look(e, s->marker[0]) ? s->marker[0] : look(e, s->marker[1]) ? s->marker[1] : NULL;
}

/* `value` is below `limit`, or equal to it where that `may` be. What is not said contradicts nothing. */
static iso_status below(const char *name, int value, const char *whole, int limit, bool may) {
  if (value == UNSAID || limit == UNSAID || value < limit + may) return ISO_OK;
  return iso_fail(ISO_ERR_USAGE,
                  "launch: %s=%d, but %s=%d; both come from the launcher: unset them, or start with mpirun or srun",
                  name, value, whole, limit);
}

static iso_status read_source(environment e, const source *s, iso_launch *out) {
  iso_launch l = {.launcher = s->launcher, .host = look(e, s->host)};
  ISO_TRY(number(e, s->rank, &l.rank));
  ISO_TRY(number(e, s->ranks, &l.ranks));
  ISO_TRY(number(e, s->local, &l.local_rank));
  ISO_TRY(number(e, s->locals, &l.local_ranks));
  if (l.rank == UNSAID || (s->ranks && l.ranks == UNSAID))
    return iso_fail(ISO_ERR_USAGE, "launch: %s is set, but %s is not; unset it, or start with mpirun or srun",
                    mark(e, s), l.rank == UNSAID ? s->rank : s->ranks);
  if (l.ranks == 0 || l.local_ranks == 0)
    return iso_fail(ISO_ERR_USAGE, "launch: %s=0, but this process is one; unset it, or start with mpirun or srun",
                    l.ranks == 0 ? s->ranks : s->locals);
  ISO_TRY(below(s->rank, l.rank, s->ranks, l.ranks, false));
  ISO_TRY(below(s->local, l.local_rank, s->locals, l.local_ranks, false));
  ISO_TRY(below(s->local, l.local_rank, s->ranks, l.ranks, false));
  ISO_TRY(below(s->locals, l.local_ranks, s->ranks, l.ranks, true));
  *out = l;
  return ISO_OK;
}

static iso_status agree(environment e, int heard, const iso_launch *l, int other) {
  const source *a = &sources[heard], *b = &sources[other];
  int rank, ranks;
  ISO_TRY(number(e, b->rank, &rank));
  ISO_TRY(number(e, b->ranks, &ranks));
  const bool same_rank = rank == UNSAID || rank == l->rank;
  if (same_rank && (ranks == UNSAID || l->ranks == UNSAID || ranks == l->ranks)) return ISO_OK;
  return iso_fail(
      ISO_ERR_USAGE,
      "launch: %s says %s=%d, but %s says %s=%d; unset the names of the one that did not start this process "
      "(env -u %s)",
      a->launcher, same_rank ? a->ranks : a->rank, same_rank ? l->ranks : l->rank, b->launcher,
      same_rank ? b->ranks : b->rank, same_rank ? ranks : rank, same_rank ? b->ranks : b->rank);
}

iso_status iso_launch_read(const char *(*get)(void *self, const char *name), void *self, iso_launch *out) {
  const environment e = {get, self};
  int heard = 0;
  *out = (iso_launch){.launcher = NULL, .rank = 0, .ranks = 1, .local_rank = 0, .local_ranks = 1, .host = NULL};
  while (heard < SOURCES && !mark(e, &sources[heard])) heard++;
  if (heard == SOURCES) return ISO_OK;
  iso_launch l;
  ISO_TRY(read_source(e, &sources[heard], &l));
  for (int other = heard + 1; other < SOURCES; other++) /* Slurm may have started the daemon of the one heard */
    if (other != SLURM_STEP && mark(e, &sources[other])) ISO_TRY(agree(e, heard, &l, other));
  l.disconnected = heard == SLURM_STEP && !mark(e, &sources[PMI]) && !mark(e, &sources[PMIX]);
  *out = l;
  return ISO_OK;
}

iso_status iso_launch_check(const iso_launch *launch, int rank, int ranks, const char *library) {
  if (!launch->launcher) return ISO_OK;
  const bool size_differs = launch->ranks != UNSAID && launch->ranks != ranks;
  if (!size_differs && launch->rank == rank) return ISO_OK;
  char said[32] = "";
  if (launch->ranks != UNSAID) snprintf(said, sizeof said, " of %d", launch->ranks);
  /* Worlds of one: MPI did not find whoever started it. Otherwise it did, and one of the two is wrong. */
  const bool alone = ranks == 1;
  const bool slurm = launch->launcher == sources[SLURM_STEP].launcher;
  return iso_fail(ISO_ERR_MISMATCH, "launch: %s says rank %d%s, but MPI (%s) says rank %d of %d; %s", launch->launcher,
                  launch->rank, said, library, rank, ranks,
                  !alone ? "unset the launcher's variables where they are set by hand, and start with mpirun or srun"
                  : slurm
                      ? "start with srun --mpi=pmix or --mpi=pmi2, whichever this MPI was built for (srun --mpi=list)"
                      : "start with the mpirun of that MPI, or build isotach-mpi.so with the launcher's");
}
