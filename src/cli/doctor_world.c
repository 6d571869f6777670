/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach doctor under mpirun or srun: what the ranks have to be alike in, how far their clocks are apart, and how fast
 * messages go between each two of them. All ranks take part; then all but rank 0 are done, and it looks at its own
 * machine, the inputs and the storage as ever.
 *
 * The ways between them are those of ways.c.
 */
#include <link.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static const double skew_s = 0.5;      /* that clocks may be apart */
static const double slow_share = 0.25; /* of the best link between hosts */

typedef struct identity {
  char version[32], build[65], libraries[65], config[65];
  int tier, bits, optimizer, cpus;
  int64_t memory_bytes;
} identity;

/* ---- what must be alike ---- */

/* SHA-256 of this program's file; "" when it cannot be read. */
static void hash_program(char hex[65]) {
  char piece[1 << 14];
  FILE *file = fopen("/proc/self/exe", "re");
  iso_sha256 *hash = file ? iso_sha256_create() : NULL;
  hex[0] = 0;
  if (hash) {
    for (size_t got; (got = fread(piece, 1, sizeof piece, file)) > 0;) iso_sha256_update(hash, piece, got);
    iso_sha256_finish(&hash, hex);
  }
  if (file) (void)fclose(file);
}

/* A library by its file's own name, which has its version. */
static int add_library(struct dl_phdr_info *info, size_t size, void *hash) {
  (void)size;
  char *real = info->dlpi_name[0] == '/' ? realpath(info->dlpi_name, NULL) : NULL;
  const char *slash = real ? strrchr(real, '/') : NULL;
  if (slash) iso_sha256_update(hash, slash, strlen(slash));
  free(real);
  return 0;
}

static void describe(const iso_doctor *d, identity *mine) {
  iso_tier tier = ISO_TIER_SCALAR;
  memset(mine, 0, sizeof *mine);
  snprintf(mine->version, sizeof mine->version, "%s", ISO_VERSION);
  hash_program(mine->build);
  iso_sha256 *hash = iso_sha256_create();
  if (hash) (void)dl_iterate_phdr(add_library, hash);
  if (hash) iso_sha256_finish(&hash, mine->libraries);
  iso_string text = {0};
  iso_config_print(&d->config, &text);
  hash = text.data ? iso_sha256_create() : NULL;
  if (hash) {
    iso_sha256_update(hash, text.data, text.length);
    iso_sha256_finish(&hash, mine->config);
  }
  iso_string_fini(&text);
  (void)!iso_cpu_tier(&tier);
  mine->tier = tier;
  mine->bits = ISO_BITS_VERSION;
  mine->optimizer = ISO_OPTIMIZER_VERSION;
  mine->cpus = iso_cpu_count();
  mine->memory_bytes = iso_memory_available();
}

static void compare(iso_doctor *d, const iso_world *world, const identity *all) {
  const int ranks = iso_world_ranks(world), hosts = iso_world_hosts(world);
  iso_string text = {0};
  bool stops = false, differs = false;
  int64_t least = all[0].memory_bytes;
  for (int r = 0; r < ranks; r++) {
    const identity *a = &all[0], *b = &all[r];
    const bool bits = a->tier != b->tier || a->bits != b->bits || a->optimizer != b->optimizer;
    const bool config = strcmp(a->config, b->config) != 0;
    const bool build = strcmp(a->version, b->version) != 0 || strcmp(a->build, b->build) != 0;
    const bool libraries = strcmp(a->libraries, b->libraries) != 0;
    if (b->memory_bytes < least) least = b->memory_bytes;
    if (!bits && !config && !build && !libraries) continue;
    differs = true;
    stops = stops || bits || config;
    iso_string_printf(&text, "; rank %d (host %s) has %s%s%s%s%s", r, iso_world_host_name(world, r),
                      bits ? "tier " : "", bits ? iso_tier_name((iso_tier)b->tier) : "",
                      config ? (bits ? ", another config" : "another config") : "",
                      build ? (bits || config ? ", another build" : "another build") : "",
                      libraries ? (bits || config || build ? ", other libraries" : "other libraries") : "");
  }
  iso_doctor_add(
      d, "ranks",
      stops     ? ISO_VERDICT_STOP
      : differs ? ISO_VERDICT_WARNING
                : ISO_VERDICT_OK,
      "build, libraries, tier and config alike on all",
      stops ? "install one build on all hosts, give all ranks the same file and words, set ISOTACH_CPU"
            : "install one build and the same libraries on all hosts",
      "%d ranks on %d host%s by %s: isotach %s, build %.12s, libraries %.12s, tier %s; %.2f GB free where it "
      "is least%s",
      ranks, hosts, iso_plural(hosts), iso_world_launcher(world), all[0].version, all[0].build, all[0].libraries,
      iso_tier_name((iso_tier)all[0].tier), 1e-9 * (double)least, text.length ? text.data : "");
  iso_string_fini(&text);
}

/* ---- messages ---- */

static void say_links(iso_doctor *d, const iso_world *world, const int *chosen, int count, const iso_way *links) {
  iso_string text = {0};
  double least = INFINITY, most = 0, skew = 0;
  int worst = 0;
  for (int a = 0; a < count; a++)
    for (int b = a + 1; b < count; b++) {
      const iso_way *l = &links[a * count + b];
      const bool apart = iso_world_host(world, chosen[a]) != iso_world_host(world, chosen[b]);
      iso_string_printf(&text, "%s%d-%d%s %.1f us %.2f GB/s", text.length ? ", " : "", chosen[a], chosen[b],
                        apart ? " (hosts)" : "", 1e6 * l->latency_s, 1e-9 * l->bytes_per_s);
      d->links[d->link_count++] = (iso_doctor_link){.ranks = {chosen[a], chosen[b]},
                                                    .cpus = {-1, -1},
                                                    .latency_ns = 1e9 * l->latency_s,
                                                    .gb_per_s = 1e-9 * l->bytes_per_s};
      if (a == 0 && fabs(l->ahead_s) > fabs(skew)) skew = l->ahead_s, worst = chosen[b];
      if (!apart) continue;
      least = fmin(least, l->bytes_per_s);
      most = fmax(most, l->bytes_per_s);
    }
  iso_doctor_add(d, "links of ranks", least < slow_share * most ? ISO_VERDICT_WARNING : ISO_VERDICT_OK,
                 "no link between hosts below a quarter of the best", "look at that host's network",
                 "messages, %d of %d ranks: %s", count, iso_world_ranks(world), text.data ? text.data : "");
  iso_doctor_add(d, "clock skew", fabs(skew) <= skew_s ? ISO_VERDICT_OK : ISO_VERDICT_WARNING,
                 "at most 0.5 s between hosts", "set all hosts' clocks by a time server",
                 "rank %d (host %s) is %.6f s ahead of rank 0, all others less", worst,
                 iso_world_host_name(world, worst), skew);
  iso_string_fini(&text);
}

/* One of two hosts needs none. */
static void say_order(iso_doctor *d, const iso_world *world) {
  const iso_order *order = iso_world_order(world);
  iso_string text = {0};
  if (order->count < 2) return;
  iso_order_print(order, &text);
  if (order->cause[0]) iso_string_printf(&text, "; %s", order->cause);
  iso_doctor_add(d, "order of hosts", order->cause[0] ? ISO_VERDICT_WARNING : ISO_VERDICT_OK,
                 "hosts of one rack are neighbours", "name a topology.conf in parallel.topology", "%s",
                 text.data ? text.data : "");
  iso_string_fini(&text);
}

iso_status iso_doctor_world(iso_doctor *d, const iso_launch *launch, bool *leads) {
  iso_world *world;
  identity mine;
  *leads = launch->rank == 0;
  describe(d, &mine); /* before MPI loads what it needs where it is */
  const bool quiet = iso_log_quiet(launch->local_rank > 0);
  iso_status status = iso_world_open(launch, &world);
  iso_log_quiet(quiet);
  ISO_TRY(status);
  status = iso_ranks_order(world, &d->config);
  *leads = iso_world_rank(world) == 0;
  const int ranks = iso_world_ranks(world), count = ranks < ISO_MOST_WAYS ? ranks : ISO_MOST_WAYS;
  int chosen[ISO_MOST_WAYS];
  iso_way links[ISO_MOST_WAYS * ISO_MOST_WAYS] = {{0}};
  identity *all = calloc((size_t)ranks, sizeof *all);
  d->ranks = ranks;
  for (int i = 0; i < count; i++) chosen[i] = (int)((int64_t)i * ranks / count);
  if (!all) status = iso_fail(ISO_ERR_MEMORY, "doctor: no memory for %d ranks", ranks);
  status = iso_world_agree(world, status);
  if (status == ISO_OK) status = iso_world_gather(world, &mine, all, sizeof mine);
  if (status == ISO_OK) status = iso_ways_measure(world, chosen, count, links);
  if (status == ISO_OK && *leads && all) {
    compare(d, world, all);
    say_order(d, world);
    say_links(d, world, chosen, count, links);
  }
  free(all);
  if (status == ISO_OK && d->steps_s > 0) status = iso_doctor_world_steps(d, world);
  iso_world_close(&world, iso_exit_code(status));
  return status;
}
