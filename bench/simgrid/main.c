/* SPDX-License-Identifier: Apache-2.0
 *
 * A step, or a reduction alone, on the simulated cluster; prints one line. See sim.h, and `run` for how it is started.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "exec/exec.h"
#include "sim.h"

enum { READY = 4, OVER = 5 };

static setup s;

/* ---- sums ---- */

void __real_iso_tree_sum(const iso_part *parts, int workers, int64_t elements, float *out, float *scratch);
void __wrap_iso_tree_sum(const iso_part *parts, int workers, int64_t elements, float *out, float *scratch);
void __wrap_iso_tree_sum(const iso_part *parts, int workers, int64_t elements, float *out, float *scratch) {
  int count = 0;
  for (int leaves = 0; leaves < workers; leaves += parts[count++].count) continue;
  charge(&s, (double)(count + 1) * (double)elements * sizeof(float));
  if (s.check) __real_iso_tree_sum(parts, workers, elements, out, scratch);
}

/* ---- ours: as train/ranks_reduce.c does ---- */

typedef struct engine {
  mesh *m;
  int rank;
  int *host, *first_leaf;
  int64_t *owners, *block_owners;
  iso_reduce *reduce;
  iso_gather *gradient, *squares;
  float **pieces; /* [ranks] */
  char *whole;    /* the host's */
  void *whole_squares;
} engine;

static float leaf(int worker, int64_t element) {
  const uint64_t x = ((uint64_t)element * 64 + (uint64_t)worker + 1) * UINT64_C(0x9E3779B97F4A7C15);
  return (float)(int32_t)(x >> 32) * (x & 4096 ? 1e-6F : 3.0F);
}

static float fold(int first, int count, int64_t element) {
  if (count == 1) return leaf(first, element);
  return fold(first, count / 2, element) + fold(first + count / 2, count / 2, element);
}

static void must(iso_status status) {
  if (status != ISO_OK) MPI_Abort(MPI_COMM_WORLD, 1);
}

static void consume(void *self, int64_t begin, int64_t count, const float *sums) {
  engine *e = self;
  /* Rounding to the gradient's type, its squares summed: read while in cache, and written. */
  charge(&s, (double)(count * s.gradient_bytes));
  if (s.check) memcpy(e->whole + begin * s.gradient_bytes, sums, (size_t)(count * s.gradient_bytes));
}

/* Memory that is never touched, but has addresses. */
static void *nowhere(size_t bytes) {
  void *there = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (there == MAP_FAILED) MPI_Abort(MPI_COMM_WORLD, 1);
  return there;
}

/* Virtual workers: a power of two; where sums are checked, ranks have several. */
static int workers(void) {
  int count = 1;
  while (count < s.ranks * (s.check ? 2 : 1)) count *= 2;
  return count;
}

/* This rank's pieces, one after another. */
static float *make_pieces(const engine *e) {
  iso_part parts[ISO_MOST_PARTS];
  const int first = e->first_leaf[e->rank], count = iso_tree_parts(first, e->first_leaf[e->rank + 1] - first, parts);
  const int64_t elements = model_elements(&s);
  const size_t bytes = (size_t)count * (size_t)elements * sizeof(float);
  if (!s.check) return nowhere(bytes);
  float *pieces = malloc(bytes);
  for (int p = 0; p < count; p++)
    for (int64_t i = 0; i < elements; i++) pieces[p * elements + i] = fold(parts[p].first, parts[p].count, i);
  return pieces;
}

/* Ranks of a host have each other's pieces, and the first one's whole. */
static void share_memory(engine *e, MPI_Comm ranks) {
  const size_t elements = (size_t)model_elements(&s), element_bytes = (size_t)s.gradient_bytes;
  void **wholes = calloc((size_t)s.ranks, sizeof *wholes);
  e->pieces = calloc((size_t)s.ranks, sizeof *e->pieces);
  float *own = make_pieces(e);
  void *whole = s.check ? calloc(elements, element_bytes) : nowhere(elements * element_bytes);
  MPI_Allgather(&own, sizeof own, MPI_BYTE, e->pieces, sizeof own, MPI_BYTE, ranks);
  MPI_Allgather(&whole, sizeof whole, MPI_BYTE, wholes, sizeof whole, MPI_BYTE, ranks);
  e->whole = wholes[e->host[e->rank] * s.mates];
  e->whole_squares = calloc(elements / CHUNK + 1, sizeof(double));
  free(wholes);
}

static void open_engine(engine *e, int rank, MPI_Comm ranks) {
  const size_t count = (size_t)s.ranks + 1;
  *e = (engine){.rank = rank};
  e->host = calloc(count, sizeof *e->host);
  e->first_leaf = calloc(count, sizeof *e->first_leaf);
  e->owners = calloc(count, sizeof *e->owners);
  e->block_owners = calloc(count, sizeof *e->block_owners);
  for (int r = 0; r < s.ranks; r++) e->host[r] = r / s.mates;
  for (int r = 0; r <= s.ranks; r++) e->first_leaf[r] = workers() * r / s.ranks;
  e->m = mesh_create(&s, rank, e->host);
  share_memory(e, ranks);
  const iso_reduce_plan reduction = {
      s.ranks, rank, workers(), e->first_leaf, e->owners, e->host, s.mates > 1 ? CHUNK : PART};
  const iso_gather_plan gradient = {s.ranks, rank, e->owners, e->host, CHUNK, s.gradient_bytes};
  const iso_gather_plan squares = {s.ranks, rank, e->block_owners, e->host, CHUNK, sizeof(double)};
  const iso_transport *t = mesh_transport(e->m);
  must(iso_reduce_create(&reduction, t, mesh_signals(e->m, 0), (const float *const *)e->pieces, model_elements(&s),
                         &e->reduce));
  must(iso_reduce_consumer_set(e->reduce, CHUNK, consume, e));
  must(iso_gather_create(&gradient, t, mesh_signals(e->m, 1), e->whole, &e->gradient));
  must(iso_gather_create(&squares, t, mesh_signals(e->m, 2), e->whole_squares, &e->squares));
}

static void reduce_bucket(engine *e, int64_t begin, int64_t end) {
  const int64_t blocks = (end - begin + CHUNK - 1) / CHUNK;
  for (int r = 0; r <= s.ranks; r++) {
    const int64_t first = blocks * r / s.ranks, at = begin + first * CHUNK;
    e->block_owners[r] = begin / CHUNK + first;
    e->owners[r] = at < end ? at : end;
  }
  iso_reduce_begin(e->reduce, NULL);
  mesh_run(e->m, iso_reduce_collective(e->reduce));
  iso_gather_begin(e->gradient);
  mesh_run(e->m, iso_gather_collective(e->gradient));
  if (s.ranks == s.mates) return;
  iso_gather_begin(e->squares);
  mesh_run(e->m, iso_gather_collective(e->squares));
}

/* How many elements are not the tree's. */
static int64_t wrong(const engine *e) {
  int64_t found = 0;
  const float *whole = (const float *)e->whole;
  for (int64_t i = 0; i < model_elements(&s); i++) {
    const float expected = fold(0, workers(), i);
    found += memcmp(&expected, &whole[i], sizeof expected) != 0;
  }
  return found;
}

static void close_engine(engine *e) {
  iso_reduce_destroy(&e->reduce);
  iso_gather_destroy(&e->gradient);
  iso_gather_destroy(&e->squares);
  mesh_destroy(e->m);
  free(e->host);
  free(e->first_leaf);
  free(e->owners);
  free(e->block_owners);
  free(e->pieces);
  free(e->whole_squares);
}

/* ---- the two processes of a rank ---- */

/* Computes; tells its partner of each bucket that is complete. Returns the step's seconds. */
static double compute(int partner) {
  const int64_t elements = model_elements(&s);
  const double start = MPI_Wtime(), forward = s.only_reduce ? 0 : forward_seconds(&s);
  double at = 0;
  char nothing = 0;
  for (int64_t begin = 0; begin < elements; begin += s.bucket) {
    const int64_t end = begin + s.bucket < elements ? begin + s.bucket : elements;
    const double then = s.only_reduce ? 0 : forward + complete_seconds(&s, end);
    if (then > at) smpi_execute_flops((then - at) * CORE_SPEED);
    at = then;
    MPI_Send(&nothing, 1, MPI_BYTE, partner, READY, MPI_COMM_WORLD);
  }
  MPI_Recv(&nothing, 1, MPI_BYTE, partner, OVER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  if (!s.only_reduce) smpi_execute_flops(update_seconds(&s) * CORE_SPEED);
  return MPI_Wtime() - start;
}

/* Reduces buckets as they become complete. Returns how many elements are wrong. */
static int64_t reduce(int rank, int partner, MPI_Comm ranks) {
  engine e;
  ring *r = NULL;
  int64_t found = 0;
  char nothing = 0;
  const int64_t elements = model_elements(&s);
  if (s.algorithm == OURS) {
    open_engine(&e, rank, ranks);
  } else {
    int *order = calloc((size_t)s.ranks, sizeof *order);
    ring_order(&s, order);
    r = ring_create(&s, rank, order);
    free(order);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  for (int64_t begin = 0; begin < elements; begin += s.bucket) {
    const int64_t end = begin + s.bucket < elements ? begin + s.bucket : elements;
    MPI_Recv(&nothing, 1, MPI_BYTE, partner, READY, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (r)
      ring_run(r, end - begin);
    else
      reduce_bucket(&e, begin, end);
  }
  MPI_Send(&nothing, 1, MPI_BYTE, partner, OVER, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  if (s.check && !r) found = wrong(&e);
  if (r) ring_destroy(r);
  if (!r) close_engine(&e);
  return found;
}

/* ---- */

static const char *const names[ALGORITHMS] = {"ours", "ring", "blind-ring"};

static bool read_options(int count, char **words) {
  s = (setup){.mates = 4,
              .per_leaf = 4,
              .layers = 32,
              .width = 2560,
              .vocabulary = 50257,
              .sequence = 2048,
              .faster = 1,
              .memory = 12e9,
              .gradient_bytes = sizeof(float)};
  static const struct option options[] = {
      {"algorithm", 1, 0, 'a'}, {"ranks", 1, 0, 'n'},       {"mates", 1, 0, 'm'},
      {"layers", 1, 0, 'l'},    {"width", 1, 0, 'w'},       {"vocabulary", 1, 0, 'v'},
      {"faster", 1, 0, 'f'},    {"bucket", 1, 0, 'b'},      {"gradient-bytes", 1, 0, 'g'},
      {"check", 0, 0, 'c'},     {"only-reduce", 0, 0, 'o'}, {"per-leaf", 1, 0, 'p'},
      {"memory", 1, 0, 'y'},    {"on-paper", 0, 0, 'q'},    {0, 0, 0, 0}};
  for (int o; (o = getopt_long(count, words, "", options, NULL)) != -1;) {
    if (o == 'a')
      while (s.algorithm < ALGORITHMS && strcmp(names[s.algorithm], optarg)) s.algorithm++;
    else if (o == 'n')
      s.ranks = atoi(optarg);
    else if (o == 'm')
      s.mates = atoi(optarg);
    else if (o == 'l')
      s.layers = atoi(optarg);
    else if (o == 'w')
      s.width = atoi(optarg);
    else if (o == 'v')
      s.vocabulary = atoi(optarg);
    else if (o == 'f')
      s.faster = atof(optarg);
    else if (o == 'b')
      s.bucket = atoll(optarg);
    else if (o == 'g')
      s.gradient_bytes = atoll(optarg);
    else if (o == 'c')
      s.check = true;
    else if (o == 'p')
      s.per_leaf = atoi(optarg);
    else if (o == 'y')
      s.memory = atof(optarg) * 1e9;
    else if (o == 'q')
      s.on_paper = true;
    else if (o == 'o')
      s.only_reduce = true;
    else
      return false;
  }
  if (!s.bucket && s.ranks > 0) s.bucket = iso_handover_elements(model_elements(&s), workers());
  return s.algorithm < ALGORITHMS && s.ranks > 0 && s.mates > 0 && s.per_leaf > 0 && s.ranks % s.mates == 0 &&
         s.bucket > 0 && s.faster > 0 && s.memory > 0 && s.bucket % CHUNK == 0 &&
         (!s.check || s.gradient_bytes == sizeof(float));
}

static void say(double seconds, double wrong) {
  const double alone = s.only_reduce ? 0 : forward_seconds(&s) + backward_seconds(&s) + update_seconds(&s);
  const double predicted = predict(&s);
  printf("%-10s ranks %4d mates %d per_leaf %2d elements %.4g", names[s.algorithm], s.ranks, s.mates, s.per_leaf,
         (double)model_elements(&s));
  printf(" predicted_s %.4f", predicted);
  if (!s.on_paper) printf(" simulated_s %.4f ratio %.3f", seconds, predicted / seconds);
  if (alone > 0) printf(" alone_s %.4f efficiency %.4f", alone, alone / (s.on_paper ? predicted : seconds));
  if (s.check) printf(" wrong %.0f", wrong);
  printf("\n");
}

static int simulate(int process, int processes) {
  const int rank = process % s.ranks, partner = (process + s.ranks) % processes;
  const bool reduces = process < s.ranks;
  MPI_Comm ranks;
  MPI_Comm_split(MPI_COMM_WORLD, !reduces, rank, &ranks);
  double mine[2] = {0}, all[2];
  if (reduces) {
    mine[1] = (double)reduce(rank, partner, ranks);
  } else {
    MPI_Barrier(MPI_COMM_WORLD);
    mine[0] = compute(partner);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Reduce(mine, all, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (!process) say(all[0], all[1]);
  MPI_Comm_free(&ranks);
  return !process && all[1] > 0;
}

int main(int count, char **words) {
  int process, processes, status = 0;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &process);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  if (!read_options(count, words) || processes != (s.on_paper ? 1 : 2 * s.ranks)) {
    if (!process) fprintf(stderr, "weak: these words go together as bench/simgrid/run says\n");
    status = 2;
  } else if (s.on_paper) {
    say(0, 0);
  } else {
    status = simulate(process, processes);
  }
  MPI_Finalize();
  return status;
}
