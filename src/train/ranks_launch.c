/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks that mpirun or srun has started become ranks of a run: they agree that they are to do the same thing, and get
 * the memory that the ranks of a host share. From then on MPI has nothing to do on one host.
 *
 * Invariants
 *  1. Nothing is opened before all ranks have read the same config, on processors that give the same bits.
 *  2. A failure of one rank is agreed on at once: no rank waits for one that has given up.
 *  3. Ranks have their numbers (ranks_order.c) before anything goes by them.
 */
#include <assert.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/train.h"

/* What must be alike, and what is added up, of a rank. */
typedef struct offer {
  int64_t workers;
  char config[65]; /* SHA-256 of its text */
  int bits, optimizer, tier;
  int cpus;
  char mask[65]; /* of which CPUs it may use */
} offer;

static void describe_cpus(offer *mine) {
  enum { MOST = 8192 };
  int *list = calloc(MOST, sizeof *list);
  iso_sha256 *hash = iso_sha256_create();
  const int count = list ? iso_cpu_order(list, MOST) : 0;
  mine->cpus = iso_cpu_count();
  if (hash) {
    iso_sha256_update(hash, list, list ? (size_t)count * sizeof *list : 0);
    iso_sha256_finish(&hash, mine->mask);
  }
  free(list);
}

static iso_status make_offer(const iso_config *config, int64_t ranks, offer *mine) {
  iso_tier tier;
  memset(mine, 0, sizeof *mine);
  mine->workers = iso_config_workers(config, ranks);
  ISO_TRY(iso_cpu_tier(&tier));
  mine->tier = tier;
  mine->bits = ISO_BITS_VERSION;
  mine->optimizer = ISO_OPTIMIZER_VERSION;
  describe_cpus(mine);
  iso_string text = {0};
  iso_config_print(config, &text);
  iso_sha256 *hash = iso_sha256_create();
  if (!hash || iso_string_failed(&text)) {
    iso_string_fini(&text);
    return iso_fail(ISO_ERR_MEMORY, "train: no memory to compare the config");
  }
  iso_sha256_update(hash, text.data, text.length);
  iso_sha256_finish(&hash, mine->config);
  iso_string_fini(&text);
  return ISO_OK;
}

static iso_status compare(const iso_world *world, const offer *all) {
  const int me = iso_world_rank(world);
  const offer *mine = &all[me];
  const char *host = iso_world_host_name(world, me), *first = iso_world_host_name(world, 0);
  if (strcmp(mine->config, all[0].config) != 0)
    return iso_fail(ISO_ERR_MISMATCH,
                    "train: rank %d (host %s) has read another config than rank 0 (host %s); give all ranks the same "
                    "file and the same words",
                    me, host, first);
  if (mine->tier != all[0].tier)
    return iso_fail(ISO_ERR_MISMATCH,
                    "train: rank %d (host %s) has tier %s, rank 0 (host %s) has %s, and their bits differ; set "
                    "ISOTACH_CPU to the lower one for all ranks",
                    me, host, iso_tier_name((iso_tier)mine->tier), first, iso_tier_name((iso_tier)all[0].tier));
  if (mine->bits != all[0].bits || mine->optimizer != all[0].optimizer)
    return iso_fail(ISO_ERR_MISMATCH,
                    "train: rank %d (host %s) is another version of isotach than rank 0 (host %s); install the same "
                    "one on all hosts",
                    me, host, first);
  return ISO_OK;
}

/* A launcher that has bound each rank to processors of its own is left alone. Returns how many the ranks of this host
 * have together. */
static int share_processors(const iso_world *world, const offer *all) {
  const int me = iso_world_rank(world);
  int mates = 0, place = 0, cpus = 0;
  bool same = true;
  for (int r = 0; r < iso_world_ranks(world); r++) {
    if (iso_world_host(world, r) != iso_world_host(world, me)) continue;
    mates++;
    place += r < me;
    cpus += all[r].cpus;
    same = same && strcmp(all[r].mask, all[me].mask) == 0;
  }
  if (!same || mates == 1) return cpus;
  (void)iso_cpu_part(place, mates); /* where it cannot be, all use all of them */
  return all[me].cpus;
}

static void place_on_hosts(const iso_world *world, iso_ranks_plan *plan) {
  const int me = iso_world_rank(world);
  plan->world = world;
  plan->hosts = iso_world_hosts(world);
  plan->mates = 0;
  for (int r = 0; r < plan->count; r++) {
    plan->host[r] = iso_world_host(world, r);
    if (plan->host[r] == iso_world_host(world, me)) plan->numbers[plan->mates++] = r;
  }
}

static iso_status make_memory(const iso_world *world, iso_ranks_plan *plan, int *fd) {
  *fd = -1;
  if (iso_world_rank(world) != plan->numbers[0]) return ISO_OK;
  return iso_ranks_create_memory(plan, fd);
}

/* Each rank of the host the same. */
static iso_status share_memory(iso_world *world, iso_ranks_plan *plan) {
  int64_t *all = calloc((size_t)plan->count, sizeof *all);
  if (!all) return iso_fail(ISO_ERR_MEMORY, "train: no memory for %d ranks", plan->count);
  assert(plan->mates > 0);
  const int64_t own = (int64_t)iso_ranks_own_bytes(plan) * plan->mates;
  const int64_t mine = (iso_memory_available() - own) / plan->mates;
  const iso_status status = iso_world_gather(world, &mine, all, sizeof mine);
  plan->share_bytes = all[plan->numbers[0]] > 1 ? all[plan->numbers[0]] : 1;
  free(all);
  return status;
}

static iso_status agree_with(iso_world *world, iso_config *config, offer *all, iso_ranks_plan *plan) {
  const int ranks = iso_world_ranks(world);
  char who[96];
  offer mine;
  ISO_TRY(iso_world_agree(world, make_offer(config, ranks, &mine)));
  ISO_TRY(iso_world_gather(world, &mine, all, sizeof mine));
  ISO_TRY(iso_world_agree(world, compare(world, all)));
  (void)snprintf(who, sizeof who, "%d ranks of %s", ranks, iso_world_launcher(world));
  config->parallel.virtual_workers = all[0].workers;
  ISO_TRY(iso_world_agree(world, iso_ranks_plan_make(config, ranks, who, plan)));
  plan->processors = share_processors(world, all);
  return ISO_OK;
}

static iso_status agree_on_plan(iso_world *world, iso_config *config, iso_status status, iso_ranks_plan *plan) {
  offer *all = calloc((size_t)iso_world_ranks(world), sizeof *all);
  if (!all && status == ISO_OK) status = iso_fail(ISO_ERR_MEMORY, "train: no memory to compare the ranks");
  status = iso_world_agree(world, status);
  if (status == ISO_OK) status = iso_ranks_order(world, config);
  if (status == ISO_OK) iso_ranks_order_warn(world);
  if (status == ISO_OK) status = all ? agree_with(world, config, all, plan) : ISO_ERR_MEMORY;
  free(all);
  return status;
}

static volatile sig_atomic_t asked_to_end;

static void note_end(int number) {
  asked_to_end = number;
}

/* Rank 0 says when it is time; but a launcher's signal may mean that a rank has died. */
static void hear_signals(void) {
  const struct sigaction noted = {.sa_handler = note_end, .sa_flags = SA_RESTART};
  sigaction(SIGTERM, &noted, NULL);
  sigaction(SIGINT, &noted, NULL);
  signal(SIGUSR1, SIG_IGN);
  signal(SIGUSR2, SIG_IGN);
}

iso_status iso_ranks_join(iso_world *world, iso_config *config, iso_status status, iso_ranks **out) {
  iso_ranks_plan plan;
  int made, fd;
  *out = NULL;
  ISO_TRY(agree_on_plan(world, config, status, &plan));
  place_on_hosts(world, &plan);
  if (iso_world_rank(world) != 0) hear_signals();
  ISO_TRY(share_memory(world, &plan));
  ISO_TRY(iso_world_agree(world, make_memory(world, &plan, &made)));
  status = iso_world_pass_file(world, made, &fd);
  if (status == ISO_OK) status = iso_world_agree(world, iso_ranks_open(&plan, fd, iso_world_rank(world), out));
  if (status == ISO_OK && iso_world_rank(world) != 0) iso_ranks_hurry(*out, &asked_to_end);
  if (made >= 0) close(made);
  if (fd >= 0) close(fd);
  return status;
}
