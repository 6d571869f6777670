/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach bench comm: reduce-scatter of float32 gradients among processes of this host, over the fixed tree in shared
 * memory (src/comm), beside MPI_Reduce_scatter in the same processes in turns.
 *
 * Ranks are started by mpirun where it and the module isotach-mpi.so are there, else by fork, and then there is nothing
 * to compare with. MPI's buffers are private memory on huge pages and its processes have malloc's settings under which
 * its temporaries keep their pages: as installed it touches them anew in each call, and takes several times as long.
 *
 * A round is one call of each, from a common barrier to the end on the slowest rank; figures are medians. Before it is
 * timed each result is compared with sums made element by element: ours must be the same bits.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "comm/comm.h"

enum { MOST_RANKS = 64, MOST_ROUNDS = 1000, KINDS = 2 /* ours, MPI's */, CHUNK = 65536, ERROR_BYTES = 600 };
static const int64_t all_sizes[] = {1 << 20, 16 << 20, 64 << 20, 256 << 20};
static const double timeout_s = 60;

typedef struct bench {
  int64_t ranks, rounds, bytes;
  bool json;
  int rank;
  const int64_t *sizes;
  int size_count;
  const iso_mpi *mpi; /* NULL: nothing to compare with */
  char error[ERROR_BYTES];
  int fd;
  iso_shared *shared;
  iso_gather *barrier; /* of no elements */
  int first_leaf[MOST_RANKS + 1], host[MOST_RANKS + 1], counts[MOST_RANKS];
  int64_t nothing[MOST_RANKS + 1], first_element[MOST_RANKS + 1];
  float *in, *out[KINDS]; /* in: MPI's */
  size_t in_bytes, out_bytes;
  double *times[KINDS]; /* [rounds] of a size; of rank 0 */
  iso_string text;
} bench;

/* ---- starting ranks ---- */

static const char *environment(void *self, const char *name) {
  return getenv(name);
}

/* Becomes mpirun, which starts this bench again as its ranks; returns when that cannot be. */
static void become_mpirun(const bench *b) {
  char program[PATH_MAX], ranks[24], rounds[24], bytes[24];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return;
  program[length] = '\0';
  snprintf(ranks, sizeof ranks, "%lld", (long long)b->ranks);
  snprintf(rounds, sizeof rounds, "%lld", (long long)b->rounds);
  snprintf(bytes, sizeof bytes, "%lld", (long long)b->bytes);
  static const char *const settings[][2] = {{"MALLOC_MMAP_MAX_", "0"},
                                            {"MALLOC_TRIM_THRESHOLD_", "20000000000"},
                                            {"MALLOC_TOP_PAD_", "268435456"},
                                            {"GLIBC_TUNABLES", "glibc.malloc.hugetlb=1"}};
  for (size_t i = 0; i < ISO_COUNT(settings); i++) setenv(settings[i][0], settings[i][1], 0);
  if (geteuid() == 0) { /* else it refuses root */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  }
  if (b->ranks > iso_cpu_count()) {
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
    setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 0);
  }
  char *const words[] = {"mpirun",
                         "-n",
                         ranks,
                         program,
                         "bench",
                         "comm",
                         "--ranks",
                         ranks,
                         "--bytes",
                         bytes,
                         "--rounds",
                         rounds,
                         b->json ? "--json" : NULL,
                         NULL};
  execvp(words[0], words);
  iso_note("bench comm: cannot start mpirun: %s; install openmpi-bin", strerror(errno));
}

static iso_status make_shared(bench *b) {
  int numbers[MOST_RANKS];
  for (int r = 0; r < (int)b->ranks; r++) numbers[r] = r;
  const iso_shared_layout layout = {.ranks = numbers,
                                    .count = (int)b->ranks,
                                    .channels = b->size_count + 1,
                                    .rank_bytes = (size_t)b->sizes[b->size_count - 1],
                                    .common_bytes = MOST_RANKS * sizeof(double)};
  return iso_shared_create(&layout, &b->fd);
}

static iso_status mpi_failed(const bench *b) {
  return iso_fail(ISO_ERR_IO, "bench comm: %s", b->error);
}

static iso_status join_mpi(bench *b, const iso_launch *launch) {
  typedef struct where {
    int process, fd;
  } where;
  where mine = {0, -1}, all[MOST_RANKS];
  int ranks = 0;
  char path[64];
  ISO_TRY(iso_mpi_load(&b->mpi));
  if (b->mpi->init(&b->rank, &ranks, b->error, sizeof b->error)) return mpi_failed(b);
  ISO_TRY(iso_launch_check(launch, b->rank, ranks, b->mpi->library()));
  if (ranks != b->ranks)
    return iso_fail(ISO_ERR_MISMATCH,
                    "bench comm: %s has started %d ranks, but --ranks is %lld; give both the same number",
                    launch->launcher, ranks, (long long)b->ranks);
  if (b->rank == 0) {
    ISO_TRY(make_shared(b));
    mine = (where){getpid(), b->fd};
  }
  if (b->mpi->gather(&mine, all, sizeof mine, b->error, sizeof b->error)) return mpi_failed(b);
  if (b->rank == 0) return ISO_OK;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", all[0].process, all[0].fd);
  b->fd = open(path, O_RDWR | O_CLOEXEC);
  if (b->fd >= 0) return ISO_OK;
  return iso_fail(ISO_ERR_IO, "bench comm: cannot open rank 0's memory by %s: %s; all ranks must be on one host", path,
                  strerror(errno));
}

/* Other ranks as children of this process, which is rank 0. */
static iso_status fork_ranks(bench *b, pid_t children[MOST_RANKS]) {
  ISO_TRY(make_shared(b));
  const pid_t parent = getpid();
  for (int r = 1; r < (int)b->ranks; r++) {
    children[r] = fork();
    if (children[r] < 0) return iso_fail(ISO_ERR_IO, "bench comm: cannot start rank %d: %s", r, strerror(errno));
    if (children[r]) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    memset(children, 0, MOST_RANKS * sizeof *children);
    b->rank = r;
    break;
  }
  return ISO_OK;
}

/* ---- buffers ---- */

static iso_status wait_for(const bench *b, iso_collective collective) {
  return iso_shared_wait(b->shared, collective, 0, timeout_s);
}

static iso_status meet(const bench *b) {
  iso_gather_begin(b->barrier);
  return wait_for(b, iso_gather_collective(b->barrier));
}

/* Between -1 and 1, of very different size. */
static float value(int rank, int64_t i) {
  const uint32_t bits = ((uint32_t)i * 2654435761U) ^ ((uint32_t)rank * 40503U << 8);
  return ((float)(bits >> 8) / 8388608.0F - 1.0F) * (bits & 64 ? 1e-3F : 1.0F);
}

static iso_status make_buffers(bench *b) {
  const int64_t most = b->sizes[b->size_count - 1];
  ISO_TRY(iso_shared_open(b->fd, b->rank, &b->shared));
  for (int r = 0; r <= (int)b->ranks; r++) b->first_leaf[r] = r;
  const iso_gather_plan plan = {(int)b->ranks, b->rank, b->nothing, b->host, 1, 1};
  ISO_TRY(iso_gather_create(&plan, NULL, iso_shared_signals(b->shared, b->size_count), NULL, &b->barrier));
  b->out_bytes = (size_t)(most / b->ranks);
  b->in_bytes = (size_t)most;
  for (int kind = 0; kind < (b->mpi ? KINDS : 1); kind++) {
    b->times[kind] = malloc((size_t)b->rounds * sizeof(double));
    b->out[kind] = iso_slab_alloc(b->out_bytes, "sums");
    if (!b->times[kind]) return iso_fail(ISO_ERR_MEMORY, "bench comm: no memory for %lld rounds", (long long)b->rounds);
    if (!b->out[kind]) return ISO_ERR_MEMORY;
  }
  float *piece = iso_shared_region(b->shared, b->rank);
  for (int64_t i = 0; i < most / 4; i++) piece[i] = value(b->rank, i);
  if (!b->mpi) return ISO_OK;
  b->in = iso_slab_alloc(b->in_bytes, "what MPI adds");
  if (!b->in) return ISO_ERR_MEMORY;
  memcpy(b->in, piece, b->in_bytes);
  return ISO_OK;
}

static void free_buffers(bench *b) {
  for (int kind = 0; kind < KINDS; kind++) {
    free(b->times[kind]);
    iso_slab_free(b->out[kind], b->out_bytes);
  }
  iso_slab_free(b->in, b->in_bytes);
  iso_gather_destroy(&b->barrier);
  iso_shared_close(&b->shared);
  if (b->fd >= 0) close(b->fd);
  iso_string_fini(&b->text);
}

/* ---- measuring ---- */

static iso_status call(bench *b, iso_reduce *reduce, int kind, double *seconds) {
  iso_status status = ISO_OK;
  ISO_TRY(meet(b));
  const double began = iso_clock_s();
  if (kind == 0) {
    iso_reduce_begin(reduce, b->out[0]);
    status = wait_for(b, iso_reduce_collective(reduce));
  } else if (b->mpi->reduce_scatter(b->in, b->out[1], b->counts, b->error, sizeof b->error)) {
    status = mpi_failed(b);
  }
  double *all = iso_shared_common(b->shared);
  all[b->rank] = iso_clock_s() - began;
  if (status == ISO_OK) status = meet(b);
  *seconds = all[0];
  for (int r = 1; r < (int)b->ranks; r++) *seconds = fmax(*seconds, all[r]);
  return status;
}

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/* Each result beside sums made element by element. */
static iso_status check(const bench *b) {
  const int64_t begin = b->first_element[b->rank], end = b->first_element[b->rank + 1];
  for (int64_t i = begin; i < end; i++) {
    float sums[MOST_RANKS] = {0};
    double size = 0;
    for (int r = 0; r < (int)b->ranks; r++) {
      sums[r] = value(r, i);
      size += fabs((double)sums[r]);
    }
    for (int n = (int)b->ranks / 2; n > 0; n /= 2)
      for (int r = 0; r < n; r++) sums[r] = sums[2 * r] + sums[2 * r + 1];
    if (bits_of(b->out[0][i - begin]) != bits_of(sums[0]))
      return iso_fail(ISO_ERR_CHECK, "bench comm: element %lld is %a, not the tree's %a", (long long)i,
                      (double)b->out[0][i - begin], (double)sums[0]);
    if (b->mpi && fabs((double)b->out[1][i - begin] - (double)sums[0]) > 1e-5 * size)
      return iso_fail(ISO_ERR_CHECK, "bench comm: MPI's element %lld is %g, not about %g", (long long)i,
                      (double)b->out[1][i - begin], (double)sums[0]);
  }
  return ISO_OK;
}

static iso_status take_rounds(bench *b, iso_reduce *reduce) {
  const int kinds = b->mpi ? KINDS : 1;
  double seconds;
  for (int warm = 0; warm < 2; warm++)
    for (int kind = 0; kind < kinds; kind++) ISO_TRY(call(b, reduce, kind, &seconds));
  ISO_TRY(check(b));
  for (int64_t round = 0; round < b->rounds; round++)
    for (int half = 0; half < kinds; half++) {
      const int kind = (half + (int)round) % kinds;
      ISO_TRY(call(b, reduce, kind, &b->times[kind][round]));
    }
  return ISO_OK;
}

static void put_row(bench *b, int64_t bytes) {
  double rates[KINDS] = {NAN, NAN};
  for (int kind = 0; kind < (b->mpi ? KINDS : 1); kind++)
    rates[kind] = (double)bytes / iso_median(b->times[kind], b->rounds) * 1e-9;
  if (b->json) {
    iso_json_open(&b->text, NULL, '{');
    iso_json_put_text(&b->text, "op", "reduce_scatter");
    iso_json_put_int(&b->text, "bytes", bytes);
    iso_json_put_real(&b->text, "gb_per_s", rates[0]);
    iso_json_put_real(&b->text, "mpi_gb_per_s", rates[1]);
    iso_json_put_real(&b->text, "ratio", rates[0] / rates[1]);
    iso_json_shut(&b->text, '}');
    return;
  }
  iso_string_printf(&b->text, "reduce_scatter %12lld bytes  %7.2f GB/s", (long long)bytes, rates[0]);
  if (b->mpi) iso_string_printf(&b->text, "  MPI %7.2f GB/s  ratio %.2f", rates[1], rates[0] / rates[1]);
  iso_string_printf(&b->text, "\n");
}

static iso_status measure_size(bench *b, int index) {
  const int64_t bytes = b->sizes[index], each = bytes / 4 / b->ranks;
  const float *pieces[MOST_RANKS];
  iso_reduce *reduce;
  for (int r = 0; r < (int)b->ranks; r++) {
    pieces[r] = iso_shared_region(b->shared, r);
    b->first_element[r + 1] = (r + 1) * each;
    b->counts[r] = (int)each;
  }
  const iso_reduce_plan plan = {(int)b->ranks, b->rank, (int)b->ranks, b->first_leaf, b->first_element, b->host, CHUNK};
  ISO_TRY(iso_reduce_create(&plan, NULL, iso_shared_signals(b->shared, index), pieces, bytes / 4, &reduce));
  const iso_status status = take_rounds(b, reduce);
  iso_reduce_destroy(&reduce);
  if (status == ISO_OK && b->rank == 0) put_row(b, bytes);
  return status;
}

static iso_status measure(bench *b) {
  ISO_TRY(make_buffers(b));
  if (b->rank == 0 && b->json) {
    iso_json_open(&b->text, NULL, '{');
    iso_json_put_int(&b->text, "ranks", b->ranks);
    iso_json_put_int(&b->text, "rounds", b->rounds);
    if (b->mpi) iso_json_put_text(&b->text, "library", b->mpi->library());
    iso_json_open(&b->text, "rows", '[');
  } else if (b->rank == 0 && b->mpi) {
    iso_string_printf(&b->text, "beside MPI_Reduce_scatter of %s\n", b->mpi->library());
  }
  for (int i = 0; i < b->size_count; i++) ISO_TRY(measure_size(b, i));
  if (b->mpi && b->mpi->finalize(b->error, sizeof b->error)) return mpi_failed(b);
  if (b->rank != 0) return ISO_OK;
  if (!b->json) return iso_text_print(&b->text);
  iso_json_shut(&b->text, ']');
  iso_json_shut(&b->text, '}');
  return iso_json_print(&b->text);
}

static iso_status run(bench *b, const iso_launch *launch) {
  pid_t children[MOST_RANKS] = {0};
  iso_status status;
  if (launch->launcher) {
    status = join_mpi(b, launch);
  } else {
    if (iso_mpi_exists())
      become_mpirun(b);
    else
      iso_note("bench comm: there is no isotach-mpi.so; install libopenmpi-dev and build again");
    iso_note("bench comm: there is no MPI to compare with");
    status = fork_ranks(b, children);
  }
  if (status == ISO_OK) status = measure(b);
  free_buffers(b);
  for (int r = 1; r < (int)b->ranks; r++) {
    int code = 0;
    if (children[r] <= 0 || waitpid(children[r], &code, 0) != children[r]) continue;
    if (code && status == ISO_OK) status = iso_fail(ISO_ERR_IO, "bench comm: rank %d has failed", r);
  }
  return status;
}

iso_status iso_verb_bench_comm(iso_args *args) {
  bench b = {.ranks = 2, .rounds = 11, .fd = -1, .sizes = all_sizes, .size_count = ISO_COUNT(all_sizes)};
  const iso_flag flags[] = {
      {"ranks", ISO_FLAG_INT, &b.ranks, "processes, a power of two (2)", 2, MOST_RANKS},
      {"bytes", ISO_FLAG_INT, &b.bytes, "of each rank's gradients; 0: 1, 16, 64 and 256 MiB (0)", 0, 1 << 30},
      {"rounds", ISO_FLAG_INT, &b.rounds, "timed calls of each size (11)", 1, MOST_ROUNDS},
      {"json", ISO_FLAG_BOOL, &b.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 0, 0));
  if (args->help) return ISO_OK;
  if (b.ranks & (b.ranks - 1))
    return iso_fail(ISO_ERR_USAGE, "bench comm: --ranks must be a power of two, not %lld", (long long)b.ranks);
  if (b.bytes % (4 * b.ranks))
    return iso_fail(ISO_ERR_USAGE, "bench comm: --bytes must be a multiple of %lld, 4 for each of %lld ranks",
                    (long long)(4 * b.ranks), (long long)b.ranks);
  if (b.bytes) {
    b.sizes = &b.bytes;
    b.size_count = 1;
  }
  const int64_t most = b.sizes[b.size_count - 1], needs = (2 * b.ranks + 2) * most, there = iso_memory_available();
  iso_launch launch;
  ISO_TRY(iso_launch_read(environment, NULL, &launch));
  if (!launch.launcher && needs > there)
    return iso_fail(ISO_ERR_MEMORY, "bench comm: %lld ranks need %lld MB of memory, %lld are free; take less --bytes",
                    (long long)b.ranks, (long long)(needs >> 20), (long long)(there >> 20));
  return run(&b, &launch);
}
