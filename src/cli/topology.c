/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach topology: this host as a tree, and measured latency and bandwidth between pairs of its cores.
 *
 * Pairs are of cores that this process may use, by one CPU each, measured one after another until time is up. How many
 * of how many were measured is said. With a config its run's hosts are printed too, as the last start had them in
 * order. Ranks of a launcher are hosts' (topology_hosts.c).
 */
#include <stdlib.h>

#include "cli/cli.h"
#include "comm/comm.h"

enum { NAME_BYTES = 64 };
static const double most_s = 1.5;

typedef struct pairs {
  iso_core_pair chosen[ISO_MOST_PAIRS];
  iso_link links[ISO_MOST_PAIRS];
  int count; /* measured: the first ones */
  int64_t all;
} pairs;

static iso_status measure(const iso_topology *t, pairs *p) {
  const int chosen = iso_core_pairs(t, p->chosen, &p->all);
  const double until_s = iso_clock_s() + most_s;
  for (bool measured = true; measured && p->count < chosen; p->count += measured) {
    const int *cpus = p->chosen[p->count].cpus;
    ISO_TRY(iso_link_measure(cpus[0], cpus[1], until_s, &p->links[p->count], &measured));
  }
  if (p->count < chosen)
    iso_warn("topology: %d of %d pairs are not measured after %.1f s: CPUs are busy with others; try again when they "
             "are idle",
             chosen - p->count, chosen, most_s);
  return ISO_OK;
}

/* ---- the tree ---- */

static const char *const kind_names[ISO_SITE_KINDS] = {"host", "package", "NUMA node", "cache", "core", "CPU"};
static const char *const json_kinds[ISO_SITE_KINDS] = {"host", "package", "numa_node", "cache", "core", "cpu"};

/* "L3 cache", "NUMA node 1", "host" */
static const char *name_of(const iso_site *place, char name[NAME_BYTES]) {
  if (place->kind == ISO_SITE_CACHE)
    snprintf(name, NAME_BYTES, "L%d cache", place->level);
  else if (place->number >= 0)
    snprintf(name, NAME_BYTES, "%s %d", kind_names[place->kind], place->number);
  else
    snprintf(name, NAME_BYTES, "%s", kind_names[place->kind]);
  return name;
}

static void print_bytes(iso_string *out, int64_t bytes) {
  if (bytes >= (int64_t)1 << 30)
    iso_string_printf(out, ", %.1f GiB", (double)bytes / (1 << 30));
  else if (bytes >= 1 << 20)
    iso_string_printf(out, ", %g MiB", (double)bytes / (1 << 20));
  else if (bytes > 0)
    iso_string_printf(out, ", %g KiB", (double)bytes / (1 << 10));
}

/* "0-3,8" */
static void print_set(iso_string *out, const iso_cpu_set *set) {
  const char *comma = "";
  for (int cpu = 0; cpu < ISO_MOST_CPUS; cpu++) {
    if (!iso_cpu_set_has(set, cpu)) continue;
    const int first = cpu;
    while (iso_cpu_set_has(set, cpu + 1)) cpu++;
    iso_string_printf(out, cpu > first ? "%s%d-%d" : "%s%d", comma, first, cpu);
    comma = ",";
  }
}

static void print_tree(iso_string *out, const iso_topology *t) {
  char name[NAME_BYTES];
  for (int i = 0; i < t->count; i++) {
    const iso_site *place = &t->places[i];
    if (place->kind == ISO_SITE_CPU) continue; /* in the line of its core */
    iso_string_printf(out, "%*s%s", 2 * place->depth, "", name_of(place, name));
    if (place->kind == ISO_SITE_HOST) iso_string_printf(out, " %s", t->host);
    print_bytes(out, place->bytes);
    if (place->kind == ISO_SITE_CORE) {
      iso_string_printf(out, ": CPU ");
      print_set(out, &place->cpus);
      int usable = 0;
      for (int cpu = 0; cpu < ISO_MOST_CPUS; cpu++)
        usable += iso_cpu_set_has(&place->cpus, cpu) && iso_cpu_set_has(&t->usable, cpu);
      if (!t->elsewhere && usable < iso_cpu_set_count(&place->cpus))
        iso_string_printf(out, usable ? ", in part not for this process" : ", not for this process");
    }
    iso_string_printf(out, "\n");
  }
}

static void count_of(iso_string *out, const iso_topology *t, iso_site_kind kind, const char *before) {
  iso_string_printf(out, "%s%d %s%s", before, t->kinds[kind], kind_names[kind], iso_plural(t->kinds[kind]));
}

static void print_table(iso_string *out, const pairs *p) {
  char name[NAME_BYTES];
  if (p->count == 0) return;
  iso_string_printf(out, "\n%lld of %lld pairs of cores; medians, and quartiles in brackets\n%6s %6s  %26s  %26s  %s\n",
                    (long long)p->count, (long long)p->all, "CPU", "CPU", "latency, ns", "GB/s", "both in");
  for (int i = 0; i < p->count; i++) {
    const iso_link *link = &p->links[i];
    iso_string_printf(out, "%6d %6d  %8.1f (%7.1f-%7.1f)  %8.2f (%7.2f-%7.2f)  %s\n", link->cpus[0], link->cpus[1],
                      link->latency_ns.median, link->latency_ns.low, link->latency_ns.high, link->gb_per_s.median,
                      link->gb_per_s.low, link->gb_per_s.high, name_of(p->chosen[i].common, name));
  }
}

/* The hosts of the last start of a run that had several, or under a launcher one; NULL: there was none. */
typedef struct stored {
  const char *run;
  int start;
  iso_order *order;
} stored;

static void print_stored(iso_string *out, const stored *hosts) {
  if (!hosts->order) return;
  iso_string_printf(out, "\nhosts of start %d of %s, ", hosts->start, hosts->run);
  if (hosts->order->source == ISO_ORDER_FILE)
    iso_string_printf(out, "in the order of %s\n", hosts->order->file);
  else
    iso_string_printf(out, "in the order of %s\n",
                      hosts->order->source == ISO_ORDER_NAMES ? "their names" : "the launcher");
  iso_hosts_put(hosts->order, out);
}

static iso_status print_text(const iso_topology *t, const pairs *p, const stored *hosts) {
  iso_string out = {0};
  print_tree(&out, t);
  count_of(&out, t, ISO_SITE_PACKAGE, "");
  count_of(&out, t, ISO_SITE_NUMA, ", ");
  count_of(&out, t, ISO_SITE_CORE, ", ");
  count_of(&out, t, ISO_SITE_CPU, ", ");
  iso_string_printf(&out, ", from %s", t->source);
  if (!t->elsewhere) {
    iso_string_printf(&out, "; this process may use CPU ");
    print_set(&out, &t->usable);
  }
  iso_string_printf(&out, "\n");
  print_table(&out, p);
  print_stored(&out, hosts);
  return iso_table_print(&out);
}

/* ---- JSON ---- */

static void put_cpus(iso_string *out, const char *key, const iso_cpu_set *set) {
  iso_json_open(out, key, '[');
  for (int cpu = 0; cpu < ISO_MOST_CPUS; cpu++)
    if (iso_cpu_set_has(set, cpu)) iso_json_put_int(out, NULL, cpu);
  iso_json_shut(out, ']');
}

/* Places stand before what they contain, so that objects close when a place comes that is not deeper. */
static void put_tree(iso_string *out, const iso_topology *t) {
  for (int i = 0; i < t->count; i++) {
    const iso_site *place = &t->places[i];
    const int next = i + 1 < t->count ? t->places[i + 1].depth : 0;
    iso_json_open(out, i ? NULL : "tree", '{');
    iso_json_put_text(out, "kind", json_kinds[place->kind]);
    if (place->number >= 0) iso_json_put_int(out, "number", place->number);
    if (place->level) iso_json_put_int(out, "level", place->level);
    if (place->bytes) iso_json_put_int(out, "bytes", place->bytes);
    put_cpus(out, "cpus", &place->cpus);
    iso_json_open(out, "children", '[');
    for (int depth = place->depth; depth >= next; depth--) {
      iso_json_shut(out, ']');
      iso_json_shut(out, '}');
    }
  }
}

static void put_spread(iso_string *out, const char *key, iso_spread spread) {
  iso_json_open(out, key, '{');
  iso_json_put_real(out, "median", spread.median);
  iso_json_put_real(out, "lower_quartile", spread.low);
  iso_json_put_real(out, "upper_quartile", spread.high);
  iso_json_shut(out, '}');
}

static void put_stored(iso_string *out, const stored *hosts) {
  iso_json_open(out, "run_hosts", '{');
  iso_json_put_text(out, "run", hosts->run);
  iso_json_put_int(out, "start", hosts->start);
  iso_string_printf(out, ", \"order\": ");
  if (hosts->order)
    iso_order_put(hosts->order, out);
  else
    iso_string_printf(out, "null");
  iso_json_shut(out, '}');
}

static iso_status print_json(const iso_topology *t, const pairs *p, const stored *hosts) {
  iso_string out = {0};
  char name[NAME_BYTES];
  iso_json_open(&out, NULL, '{');
  iso_json_put_text(&out, "host", t->host);
  iso_json_put_text(&out, "source", t->source);
  iso_json_put_int(&out, "packages", t->kinds[ISO_SITE_PACKAGE]);
  iso_json_put_int(&out, "numa_nodes", t->kinds[ISO_SITE_NUMA]);
  iso_json_put_int(&out, "cores", t->kinds[ISO_SITE_CORE]);
  iso_json_put_int(&out, "cpus", t->kinds[ISO_SITE_CPU]);
  put_cpus(&out, "usable_cpus", &t->usable);
  put_tree(&out, t);
  iso_json_put_int(&out, "pairs", p->all);
  iso_json_open(&out, "measured", '[');
  for (int i = 0; i < p->count; i++) {
    const iso_link *link = &p->links[i];
    iso_json_open(&out, NULL, '{');
    iso_json_open(&out, "cpus", '[');
    for (int side = 0; side < 2; side++) iso_json_put_int(&out, NULL, link->cpus[side]);
    iso_json_shut(&out, ']');
    iso_json_put_text(&out, "both_in", name_of(p->chosen[i].common, name));
    put_spread(&out, "latency_ns", link->latency_ns);
    put_spread(&out, "gb_per_s", link->gb_per_s);
    iso_json_shut(&out, '}');
  }
  iso_json_shut(&out, ']');
  if (hosts->run) put_stored(&out, hosts);
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

static iso_status look_here(bool json, const stored *hosts) {
  iso_topology *t;
  pairs p = {.count = 0};
  ISO_TRY(iso_topology_create(&t));
  iso_status status = ISO_OK;
  if (t->elsewhere)
    iso_warn("topology: hwloc describes another machine, as a variable HWLOC_... tells it to: nothing is measured");
  else
    status = measure(t, &p);
  if (status == ISO_OK) status = json ? print_json(t, &p, hosts) : print_text(t, &p, hosts);
  iso_topology_destroy(&t);
  return status;
}

static const char *environment(void *self, const char *name) {
  (void)self;
  return getenv(name);
}

iso_status iso_verb_topology(iso_args *args) {
  bool json = false;
  const iso_flag flags[] = {{"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0}};
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 0, -1));
  if (args->help) return ISO_OK;
  iso_launch launch;
  ISO_TRY(iso_launch_read(environment, NULL, &launch));
  if (launch.launcher && launch.ranks != 1) return iso_topology_launched(&launch, args, json);
  stored hosts = {0};
  iso_config config = {0};
  if (args->word_count > 0) {
    ISO_TRY(iso_config_read(args->words[0], args->words + 1, args->word_count - 1, &config));
    hosts.run = config.run;
    hosts.order = iso_order_stored(config.run, &hosts.start);
  }
  const iso_status status = look_here(json, &hosts);
  iso_order_destroy(&hosts.order);
  iso_config_fini(&config);
  return status;
}
