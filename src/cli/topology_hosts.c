/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach topology under mpirun or srun: the hosts of its ranks as a tree of racks, in the order in which training
 * numbers ranks, what each host is made of, and latency and bandwidth between hosts.
 *
 * Each way is one between the first ranks of two hosts. Of more hosts than ISO_MOST_WAYS those are taken that stand
 * evenly among all. All ranks take part; rank 0 prints.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct makeup { /* of a host, by its first rank; all 0: not known */
  int kinds[ISO_SITE_KINDS];
} makeup;

typedef struct view {
  const iso_world *world;
  const iso_order *order;
  const makeup *hosts; /* [ranks] */
  int chosen[ISO_MOST_WAYS], count;
  iso_way ways[ISO_MOST_WAYS * ISO_MOST_WAYS];
} view;

/* ---- the tree ---- */

static void put_ranks(const iso_order *order, const iso_order_host *host, iso_string *out) {
  bool moved = false;
  iso_string_printf(out, host->ranks == 1 ? ": rank %d" : ": ranks %d", host->first);
  if (host->ranks > 1) iso_string_printf(out, "-%d", host->first + host->ranks - 1);
  for (int r = host->first; r < host->first + host->ranks; r++) moved = moved || order->launched[r] != r;
  if (!moved) return;
  iso_string_printf(out, " (the launcher's ");
  for (int r = host->first; r < host->first + host->ranks; r++)
    iso_string_printf(out, "%s%d", r > host->first ? ", " : "", order->launched[r]);
  iso_string_append(out, ")", 1);
}

/* How many levels of racks two hosts have in common. */
static int common_levels(const iso_order_host *a, const iso_order_host *b) {
  int level = 0;
  while (level < a->path.levels && level < b->path.levels && strcmp(a->path.names[level], b->path.names[level]) == 0)
    level++;
  return level;
}

static void put_makeup(const makeup *m, iso_string *out) {
  static const struct {
    iso_site_kind kind;
    const char *name;
  } rows[] = {
      {ISO_SITE_PACKAGE, "package"}, {ISO_SITE_NUMA, "NUMA node"}, {ISO_SITE_CORE, "core"}, {ISO_SITE_CPU, "CPU"}};
  for (size_t i = 0; m->kinds[ISO_SITE_CPU] && i < ISO_COUNT(rows); i++)
    iso_string_printf(out, "%s%d %s%s", i ? ", " : "; ", m->kinds[rows[i].kind], rows[i].name,
                      iso_plural(m->kinds[rows[i].kind]));
}

/* What names only suggest is called a rack; the file's switches may be anything. */
static const char *kind_of(const iso_order *order, const iso_order_host *host, int level) {
  if (order->source == ISO_ORDER_FILE) return "switch";
  return level + 1 == host->path.levels ? "rack" : "group";
}

static void put_tree(const iso_order *order, const makeup *hosts, iso_string *out) {
  for (int i = 0; i < order->count; i++) {
    const iso_order_host *host = &order->hosts[i];
    for (int level = i ? common_levels(host, host - 1) : 0; level < host->path.levels; level++)
      iso_string_printf(out, "%*s%s %s\n", 2 * level, "", kind_of(order, host, level), host->path.names[level]);
    iso_string_printf(out, "%*shost %s", 2 * host->path.levels, "", host->name);
    put_ranks(order, host, out);
    if (hosts) put_makeup(&hosts[host->first], out);
    iso_string_append(out, "\n", 1);
  }
}

void iso_hosts_put(const iso_order *order, iso_string *out) {
  put_tree(order, NULL, out);
}

/* ---- printing ---- */

static const char *order_words(const iso_order *order) {
  return order->source == ISO_ORDER_FILE    ? order->file
         : order->source == ISO_ORDER_NAMES ? "their names"
                                            : "the launcher";
}

/* The smallest that both are in; NULL: none. */
static const char *rack_of(const iso_order *order, int a, int b) {
  const int levels = common_levels(&order->hosts[a], &order->hosts[b]);
  return levels ? order->hosts[a].path.names[levels - 1] : NULL;
}

static int host_of(const view *v, int chosen) {
  return iso_world_host(v->world, v->chosen[chosen]);
}

static iso_status print_text(const view *v) {
  const int ranks = iso_world_ranks(v->world), hosts = iso_world_hosts(v->world);
  iso_string out = {0};
  put_tree(v->order, v->hosts, &out);
  iso_string_printf(&out, "%d rank%s of %s on %d host%s, whose order is that of %s\n", ranks, iso_plural(ranks),
                    iso_world_launcher(v->world), hosts, iso_plural(hosts), order_words(v->order));
  if (v->count > 1)
    iso_string_printf(
        &out, "\n%d of %d pairs of hosts; the best of 50 trips, and of 4 messages of 4 MiB\n%-24s %-24s %11s %9s  %s\n",
        v->count * (v->count - 1) / 2, hosts * (hosts - 1) / 2, "host", "host", "latency, us", "GB/s", "both in");
  for (int a = 0; a < v->count; a++)
    for (int b = a + 1; b < v->count; b++) {
      const iso_way *way = &v->ways[a * v->count + b];
      const char *rack = rack_of(v->order, host_of(v, a), host_of(v, b));
      iso_string_printf(&out, "%-24s %-24s %11.1f %9.2f  %s\n", iso_world_host_name(v->world, v->chosen[a]),
                        iso_world_host_name(v->world, v->chosen[b]), 1e6 * way->latency_s, 1e-9 * way->bytes_per_s,
                        rack ? rack : "none");
    }
  return iso_table_print(&out);
}

static void put_host(const view *v, const iso_order_host *host, iso_string *out) {
  const int *kinds = v->hosts[host->first].kinds;
  iso_json_open(out, NULL, '{');
  iso_json_put_text(out, "host", host->name);
  iso_json_open(out, "racks", '[');
  for (int level = 0; level < host->path.levels; level++) iso_json_put_text(out, NULL, host->path.names[level]);
  iso_json_shut(out, ']');
  iso_json_open(out, "ranks", '[');
  for (int r = 0; r < host->ranks; r++) iso_json_put_int(out, NULL, host->first + r);
  iso_json_shut(out, ']');
  iso_json_open(out, "launched", '[');
  for (int r = 0; r < host->ranks; r++) iso_json_put_int(out, NULL, v->order->launched[host->first + r]);
  iso_json_shut(out, ']');
  iso_json_put_int(out, "packages", kinds[ISO_SITE_PACKAGE]);
  iso_json_put_int(out, "numa_nodes", kinds[ISO_SITE_NUMA]);
  iso_json_put_int(out, "cores", kinds[ISO_SITE_CORE]);
  iso_json_put_int(out, "cpus", kinds[ISO_SITE_CPU]);
  iso_json_shut(out, '}');
}

static void put_way(const view *v, int a, int b, iso_string *out) {
  const iso_way *way = &v->ways[a * v->count + b];
  const char *rack = rack_of(v->order, host_of(v, a), host_of(v, b));
  iso_json_open(out, NULL, '{');
  iso_json_open(out, "ranks", '[');
  iso_json_put_int(out, NULL, v->chosen[a]);
  iso_json_put_int(out, NULL, v->chosen[b]);
  iso_json_shut(out, ']');
  iso_json_put_text(out, "both_in", rack ? rack : "");
  iso_json_put_real(out, "latency_ns", 1e9 * way->latency_s);
  iso_json_put_real(out, "gb_per_s", 1e-9 * way->bytes_per_s);
  iso_json_shut(out, '}');
}

static iso_status print_json(const view *v) {
  static const char *const by[ISO_ORDER_SOURCES] = {"launcher", "names", "file"};
  const int hosts = iso_world_hosts(v->world);
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "launcher", iso_world_launcher(v->world));
  iso_json_put_text(&out, "order_by", by[v->order->source]);
  iso_json_put_text(&out, "file", v->order->file);
  iso_json_put_text(&out, "cause", v->order->cause);
  iso_json_open(&out, "hosts", '[');
  for (int i = 0; i < v->order->count; i++) put_host(v, &v->order->hosts[i], &out);
  iso_json_shut(&out, ']');
  iso_json_put_int(&out, "pairs", hosts * (hosts - 1) / 2);
  iso_json_open(&out, "measured", '[');
  for (int a = 0; a < v->count; a++)
    for (int b = a + 1; b < v->count; b++) put_way(v, a, b, &out);
  iso_json_shut(&out, ']');
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

/* ---- looking ---- */

/* Of the first rank of each host; what fails there is only not shown. */
static iso_status look_at_hosts(iso_world *world, makeup *all) {
  const int me = iso_world_rank(world);
  makeup mine = {{0}};
  iso_topology *t = NULL;
  const bool first = me == 0 || iso_world_host(world, me - 1) != iso_world_host(world, me);
  const bool quiet = iso_log_quiet(true);
  if (first && iso_topology_create(&t) == ISO_OK) memcpy(mine.kinds, t->kinds, sizeof mine.kinds);
  iso_log_quiet(quiet);
  iso_topology_destroy(&t);
  return iso_world_gather(world, &mine, all, sizeof mine);
}

static iso_status look(iso_world *world, const iso_config *config, bool json) {
  makeup *hosts = calloc((size_t)iso_world_ranks(world), sizeof *hosts);
  view v = {.world = world, .hosts = hosts};
  iso_status status = hosts ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "topology: no memory");
  status = iso_world_agree(world, status);
  if (status == ISO_OK) status = iso_ranks_order(world, config);
  if (status == ISO_OK) {
    v.order = iso_world_order(world);
    v.count = v.order->count < ISO_MOST_WAYS ? v.order->count : ISO_MOST_WAYS;
    for (int i = 0; i < v.count; i++) v.chosen[i] = v.order->hosts[(int64_t)i * v.order->count / v.count].first;
    iso_ranks_order_warn(world);
    status = look_at_hosts(world, hosts);
  }
  if (status == ISO_OK) status = iso_ways_measure(world, v.chosen, v.count, v.ways);
  if (status == ISO_OK && iso_world_rank(world) == 0) status = json ? print_json(&v) : print_text(&v);
  free(hosts);
  return status;
}

iso_status iso_topology_launched(const iso_launch *launch, const iso_args *args, bool json) {
  iso_world *world;
  iso_config config = {.run = "", .parallel = {.topology = ""}};
  const bool quiet = iso_log_quiet(launch->local_rank > 0); /* as of train */
  iso_status status = iso_world_open(launch, &world);
  iso_log_quiet(quiet);
  ISO_TRY(status);
  iso_log_quiet(iso_world_rank(world) > 0);
  if (args->word_count > 0) status = iso_config_read(args->words[0], args->words + 1, args->word_count - 1, &config);
  status = iso_world_agree(world, status);
  if (status == ISO_OK) status = look(world, &config, json);
  iso_config_fini(&config);
  (void)fflush(stdout);
  iso_world_close(&world, iso_exit_code(status));
  return status;
}
