/* SPDX-License-Identifier: Apache-2.0
 *
 * What launchers' environments say, from environments written here.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "comm/comm.h"

/* self: "NAME", "value", ..., NULL */
static const char *look(void *self, const char *name) {
  const char *const *words = self;
  for (; words[0]; words += 2)
    if (strcmp(words[0], name) == 0) return words[1];
  return NULL;
}

#define OMPI(rank, size, local, locals)                                                                                \
  "OMPI_COMM_WORLD_RANK", rank, "OMPI_COMM_WORLD_SIZE", size, "OMPI_COMM_WORLD_LOCAL_RANK", local,                     \
      "OMPI_COMM_WORLD_LOCAL_SIZE", locals
#define HYDRA(rank, size, local, locals)                                                                               \
  "PMI_RANK", rank, "PMI_SIZE", size, "MPI_LOCALRANKID", local, "MPI_LOCALNRANKS", locals
#define STEP(rank, tasks, local)                                                                                       \
  "SLURM_STEP_ID", "0", "SLURM_PROCID", rank, "SLURM_STEP_NUM_TASKS", tasks, "SLURM_NTASKS", tasks, "SLURM_LOCALID",   \
      local, "SLURMD_NODENAME", "node7"

typedef struct good {
  const char *environment[32];
  const char *launcher; /* begins so; NULL: none */
  int rank, ranks, local_rank, local_ranks;
  const char *host;
} good;

static void test_launchers(void **state) {
  static const good all[] = {
      {{NULL}, NULL, 0, 1, 0, 1, NULL},
      {{OMPI("2", "4", "0", "2"), "PMIX_RANK", "2", "PMIX_HOSTNAME", "vm", NULL}, "Open MPI", 2, 4, 0, 2, "vm"},
      {{HYDRA("3", "4", "1", "2"), NULL}, "MPICH", 3, 4, 1, 2, NULL},
      {{STEP("5", "8", "1"), NULL}, "Slurm", 5, 8, 1, -1, "node7"},
      {{"PMI_RANK", "1", "PMI_SIZE", "2", NULL}, "a launcher that speaks PMI", 1, 2, -1, -1, NULL},
      {{"PMIX_RANK", "1", NULL}, "a launcher that speaks PMIx", 1, -1, -1, -1, NULL},
      /* srun --mpi=pmi2 and --mpi=pmix */
      {{STEP("5", "8", "1"), "PMI_RANK", "5", "PMI_SIZE", "8", NULL}, "Slurm", 5, 8, 1, -1, "node7"},
      {{STEP("5", "8", "1"), "PMIX_RANK", "5", NULL}, "Slurm", 5, 8, 1, -1, "node7"},
      /* daemons that srun started, one a node */
      {{OMPI("7", "8", "3", "4"), STEP("1", "2", "0"), "PMIX_RANK", "7", NULL}, "Open MPI", 7, 8, 3, 4, NULL},
      {{HYDRA("7", "8", "3", "4"), STEP("1", "2", "0"), NULL}, "MPICH", 7, 8, 3, 4, NULL},
      /* a batch script is no rank; an empty value is none */
      {{"SLURM_PROCID", "0", "SLURM_NTASKS", "8", "SLURM_LOCALID", "0", NULL}, NULL, 0, 1, 0, 1, NULL},
      {{"PMI_RANK", "", "PMI_SIZE", "", NULL}, NULL, 0, 1, 0, 1, NULL},
      {{OMPI("0", "1", "0", "1"), NULL}, "Open MPI", 0, 1, 0, 1, NULL},
  };
  for (size_t i = 0; i < ISO_COUNT(all); i++) {
    iso_launch l;
    assert_int_equal(iso_launch_read(look, (void *)all[i].environment, &l), ISO_OK);
    if (all[i].launcher)
      assert_memory_equal(l.launcher, all[i].launcher, strlen(all[i].launcher));
    else
      assert_null(l.launcher);
    assert_int_equal(l.rank, all[i].rank);
    assert_int_equal(l.ranks, all[i].ranks);
    assert_int_equal(l.local_rank, all[i].local_rank);
    assert_int_equal(l.local_ranks, all[i].local_ranks);
    if (all[i].host)
      assert_string_equal(l.host, all[i].host);
    else
      assert_null(l.host);
  }
}

typedef struct bad {
  const char *environment[32];
  const char *message;
} bad;

static void test_refused(void **state) {
#define REMEDY     "; unset it, or start with mpirun or srun"
#define BAD_NUMBER " must be a whole number from 0 to 16777216, not "
#define BOTH       "; both come from the launcher: unset them, or start with mpirun or srun"
  static const bad all[] = {
      {{OMPI("two", "4", "0", "2"), NULL}, "launch: OMPI_COMM_WORLD_RANK" BAD_NUMBER "\"two\"" REMEDY},
      {{OMPI("-1", "4", "0", "2"), NULL}, "launch: OMPI_COMM_WORLD_RANK" BAD_NUMBER "\"-1\"" REMEDY},
      {{OMPI("1", "4 ", "0", "2"), NULL}, "launch: OMPI_COMM_WORLD_SIZE" BAD_NUMBER "\"4 \"" REMEDY},
      {{HYDRA("1", "99999999999999999999999", "0", "2"), NULL},
       "launch: PMI_SIZE" BAD_NUMBER "\"99999999999999999999999\"" REMEDY},
      {{HYDRA("1", "16777217", "0", "2"), NULL}, "launch: PMI_SIZE" BAD_NUMBER "\"16777217\"" REMEDY},
      {{STEP("1", "2", "0x"), NULL}, "launch: SLURM_LOCALID" BAD_NUMBER "\"0x\"" REMEDY},
      {{"PMIX_RANK", "1.", NULL}, "launch: PMIX_RANK" BAD_NUMBER "\"1.\"" REMEDY},
      {{"OMPI_COMM_WORLD_RANK", "1", NULL},
       "launch: OMPI_COMM_WORLD_RANK is set, but OMPI_COMM_WORLD_SIZE is not" REMEDY},
      {{"OMPI_COMM_WORLD_SIZE", "2", NULL},
       "launch: OMPI_COMM_WORLD_SIZE is set, but OMPI_COMM_WORLD_RANK is not" REMEDY},
      {{"PMI_SIZE", "2", NULL}, "launch: PMI_SIZE is set, but PMI_RANK is not" REMEDY},
      {{"PMI_RANK", "1", NULL}, "launch: PMI_RANK is set, but PMI_SIZE is not" REMEDY},
      {{"MPI_LOCALRANKID", "1", NULL}, "launch: MPI_LOCALRANKID is set, but PMI_RANK is not" REMEDY},
      {{"SLURM_STEP_NUM_TASKS", "4", NULL}, "launch: SLURM_STEP_NUM_TASKS is set, but SLURM_PROCID is not" REMEDY},
      {{OMPI("0", "0", "0", "1"), NULL}, "launch: OMPI_COMM_WORLD_SIZE=0, but this process is one" REMEDY},
      {{OMPI("0", "1", "0", "0"), NULL}, "launch: OMPI_COMM_WORLD_LOCAL_SIZE=0, but this process is one" REMEDY},
      {{OMPI("4", "4", "0", "1"), NULL}, "launch: OMPI_COMM_WORLD_RANK=4, but OMPI_COMM_WORLD_SIZE=4" BOTH},
      {{HYDRA("1", "4", "2", "2"), NULL}, "launch: MPI_LOCALRANKID=2, but MPI_LOCALNRANKS=2" BOTH},
      {{STEP("1", "2", "2"), NULL}, "launch: SLURM_LOCALID=2, but SLURM_STEP_NUM_TASKS=2" BOTH},
      {{OMPI("1", "4", "0", "5"), NULL}, "launch: OMPI_COMM_WORLD_LOCAL_SIZE=5, but OMPI_COMM_WORLD_SIZE=4" BOTH},
      {{OMPI("1", "4", "0", "2"), "PMIX_RANK", "2", NULL},
       "launch: Open MPI's mpirun says OMPI_COMM_WORLD_RANK=1, but a launcher that speaks PMIx says PMIX_RANK=2; unset "
       "the names of the one that did not start this process (env -u PMIX_RANK)"},
      {{OMPI("1", "4", "0", "2"), HYDRA("1", "2", "1", "2"), NULL},
       "launch: Open MPI's mpirun says OMPI_COMM_WORLD_SIZE=4, but MPICH's mpiexec (Hydra) says PMI_SIZE=2; unset the "
       "names of the one that did not start this process (env -u PMI_SIZE)"},
      {{STEP("1", "4", "1"), "PMI_RANK", "0", "PMI_SIZE", "2", NULL},
       "launch: Slurm's srun says SLURM_PROCID=1, but a launcher that speaks PMI says PMI_RANK=0; unset the names of "
       "the "
       "one that did not start this process (env -u PMI_RANK)"},
  };
  for (size_t i = 0; i < ISO_COUNT(all); i++) {
    iso_launch l;
    iso_log_quiet(true);
    assert_int_equal(iso_launch_read(look, (void *)all[i].environment, &l), ISO_ERR_USAGE);
    iso_log_quiet(false);
    assert_string_equal(iso_last_error(), all[i].message);
    assert_null(l.launcher); /* nothing is half known */
  }
}

static void check(const char *const *environment, int rank, int ranks, const char *message) {
  iso_launch l;
  assert_int_equal(iso_launch_read(look, (void *)environment, &l), ISO_OK);
  iso_log_quiet(true);
  assert_int_equal(iso_launch_check(&l, rank, ranks, "Open MPI v4.1.4"), message ? ISO_ERR_MISMATCH : ISO_OK);
  iso_log_quiet(false);
  if (message) assert_string_equal(iso_last_error(), message);
}

static void test_beside_mpi(void **state) {
  static const char *const none[] = {NULL}, *const ompi[] = {OMPI("2", "4", "0", "2"), NULL},
                           *const hydra[] = {HYDRA("0", "2", "0", "2"), NULL},
                           *const step[] = {STEP("0", "2", "0"), NULL}, *const pmix[] = {"PMIX_RANK", "1", NULL};
  check(none, 0, 1, NULL);
  check(none, 1, 2, NULL); /* a launcher that is not known */
  check(ompi, 2, 4, NULL);
  check(hydra, 0, 2, NULL);
  check(pmix, 1, 8, NULL);
  check(hydra, 0, 1,
        "launch: MPICH's mpiexec (Hydra) says rank 0 of 2, but MPI (Open MPI v4.1.4) says rank 0 of 1; start with the "
        "mpirun of that MPI, or build isotach-mpi.so with the launcher's");
  check(step, 0, 1,
        "launch: Slurm's srun says rank 0 of 2, but MPI (Open MPI v4.1.4) says rank 0 of 1; start with srun --mpi=pmix "
        "or "
        "--mpi=pmi2, whichever this MPI was built for (srun --mpi=list)");
  check(pmix, 0, 1,
        "launch: a launcher that speaks PMIx says rank 1, but MPI (Open MPI v4.1.4) says rank 0 of 1; start with the "
        "mpirun of that MPI, or build isotach-mpi.so with the launcher's");
  check(ompi, 3, 4,
        "launch: Open MPI's mpirun says rank 2 of 4, but MPI (Open MPI v4.1.4) says rank 3 of 4; unset the launcher's "
        "variables where they are set by hand, and start with mpirun or srun");
  check(ompi, 2, 8,
        "launch: Open MPI's mpirun says rank 2 of 4, but MPI (Open MPI v4.1.4) says rank 2 of 8; unset the launcher's "
        "variables where they are set by hand, and start with mpirun or srun");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_launchers),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_beside_mpi),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
