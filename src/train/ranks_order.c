/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of hosts of a run: made by rank 0 at each start, kept with the start's incarnation, and used again by the
 * next one as long as the hosts are the same.
 *
 *   {"by": "names", "list": [{"host": "r1n1", "racks": ["r1n*"], "ranks": [0, 2]}, ...]}
 *
 * `by`: file (then "file" has its path), names or launcher; `ranks`: the launcher's numbers of the host's ranks. Their
 * own numbers ascend along the list, from 0.
 *
 * Invariants
 *  1. A file that the config names decides, always. Else the order of the start before stays, if it is of just these
 *     hosts and begins with rank 0's; else a new one is made, and why is said.
 *  2. Nothing depends on what was kept: what cannot be read counts as nothing.
 */
#include <assert.h>
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

static const char *const source_names[ISO_ORDER_SOURCES] = {"launcher", "names", "file"};

/* ---- as text ---- */

void iso_order_put(const iso_order *order, iso_string *out) {
  iso_string_printf(out, "{\"by\": \"%s\"", source_names[order->source]);
  if (order->source == ISO_ORDER_FILE) {
    iso_string_printf(out, ", \"file\": ");
    iso_json_quote(out, order->file, strlen(order->file));
  }
  iso_string_printf(out, ", \"list\": [");
  for (int i = 0; i < order->count; i++) {
    const iso_order_host *host = &order->hosts[i];
    iso_string_printf(out, "%s{\"host\": ", i ? ", " : "");
    iso_json_quote(out, host->name, strlen(host->name));
    iso_string_printf(out, ", \"racks\": [");
    for (int level = 0; level < host->path.levels; level++) {
      if (level) iso_string_append(out, ", ", 2);
      iso_json_quote(out, host->path.names[level], strlen(host->path.names[level]));
    }
    iso_string_printf(out, "], \"ranks\": [");
    for (int r = 0; r < host->ranks; r++)
      iso_string_printf(out, "%s%d", r ? ", " : "", order->launched[host->first + r]);
    iso_string_printf(out, "]}");
  }
  iso_string_printf(out, "]}");
}

/* "0", "0-3" */
static void put_ranks(const iso_order_host *host, iso_string *out) {
  if (host->ranks == 1)
    iso_string_printf(out, "%d", host->first);
  else
    iso_string_printf(out, "%d-%d", host->first, host->first + host->ranks - 1);
}

static bool same_rack(const iso_rack_path *a, const iso_rack_path *b) {
  bool same = a->levels == b->levels;
  for (int level = 0; same && level < a->levels; level++) same = strcmp(a->names[level], b->names[level]) == 0;
  return same;
}

void iso_order_print(const iso_order *order, iso_string *out) {
  enum { MOST = 16 };
  iso_string_printf(out, "%s",
                    order->source == ISO_ORDER_FILE    ? "by "
                    : order->source == ISO_ORDER_NAMES ? "by their names: "
                                                       : "as the launcher gave them: ");
  if (order->source == ISO_ORDER_FILE) iso_string_printf(out, "%s: ", order->file);
  for (int i = 0; i < order->count && i < MOST; i++) {
    const iso_order_host *host = &order->hosts[i];
    const char *before = i == 0 ? "" : same_rack(&host->path, &host[-1].path) ? ", " : " | ";
    iso_string_printf(out, "%s%s (%s", before, host->name, i ? "" : host->ranks == 1 ? "rank " : "ranks ");
    put_ranks(host, out);
    iso_string_append(out, ")", 1);
  }
  if (order->count > MOST) iso_string_printf(out, " and %d more", order->count - MOST);
}

static bool parse_racks(const iso_json *list, iso_rack_path *path) {
  const iso_json *one;
  if (!cJSON_IsArray(list)) return false;
  cJSON_ArrayForEach(one, list) {
    if (!cJSON_IsString(one) || path->levels == ISO_RACK_LEVELS) return false;
    if (strlen(one->valuestring) >= ISO_RACK_NAME) return false;
    (void)snprintf(path->names[path->levels++], ISO_RACK_NAME, "%s", one->valuestring);
  }
  return true;
}

static bool parse_ranks(const iso_json *list, iso_order_host *host, int *launched, int *count) {
  const iso_json *one;
  if (!cJSON_IsArray(list)) return false;
  host->first = *count;
  cJSON_ArrayForEach(one, list) {
    if (!cJSON_IsNumber(one) || *count == ISO_MOST_RANKS || one->valuedouble < 0 || one->valuedouble >= ISO_MOST_RANKS)
      return false;
    launched[(*count)++] = (int)one->valuedouble;
  }
  host->ranks = *count - host->first;
  return host->ranks > 0;
}

static bool parse_hosts(const iso_json *list, iso_order_host *hosts, int *count, int *launched, int *ranks) {
  const iso_json *one;
  if (!cJSON_IsArray(list)) return false;
  cJSON_ArrayForEach(one, list) {
    if (*count == ISO_MOST_RANKS) return false;
    iso_order_host *host = &hosts[*count];
    host->number = (*count)++;
    iso_json_copy_text(one, "host", host->name, sizeof host->name);
    if (!host->name[0] || !parse_racks(iso_json_get(one, "racks"), &host->path) ||
        !parse_ranks(iso_json_get(one, "ranks"), host, launched, ranks))
      return false;
  }
  return *count > 0;
}

iso_order *iso_order_parse(const char *text) {
  int launched[ISO_MOST_RANKS], ranks = 0, count = 0;
  iso_order *order = NULL;
  iso_json *json = NULL;
  char by[16];
  iso_order_host *hosts = calloc(ISO_MOST_RANKS, sizeof *hosts);
  if (hosts && iso_json_parse(text, strlen(text), "hosts", &json) == ISO_OK &&
      parse_hosts(iso_json_get(json, "list"), hosts, &count, launched, &ranks) &&
      iso_order_create(hosts, count, &order) == ISO_OK) {
    iso_json_copy_text(json, "by", by, sizeof by);
    iso_json_copy_text(json, "file", order->file, sizeof order->file);
    for (int source = 0; source < ISO_ORDER_SOURCES; source++)
      if (strcmp(by, source_names[source]) == 0) order->source = (iso_order_source)source;
    order->rank_count = ranks;
    order->launched = calloc((size_t)ranks, sizeof *order->launched);
    if (order->launched)
      memcpy(order->launched, launched, (size_t)ranks * sizeof *launched);
    else
      iso_order_destroy(&order);
  }
  iso_json_destroy(&json);
  free(hosts);
  return order;
}

iso_order *iso_order_stored(const char *run, int *start) {
  iso_incarnation *list = NULL;
  size_t count = 0;
  iso_string faults = {0};
  iso_order *order = NULL;
  *start = 0;
  iso_arena *arena = iso_arena_create();
  const bool quiet = iso_log_quiet(true); /* what is damaged is said by the start */
  if (arena) (void)!iso_incarnation_examine(arena, run, &list, &count, &faults);
  for (size_t i = count; i-- > 0 && !order;) {
    if (!list[i].hosts) continue;
    order = iso_order_parse(list[i].hosts);
    *start = list[i].number;
    break;
  }
  iso_log_quiet(quiet);
  iso_string_fini(&faults);
  iso_arena_destroy(&arena);
  return order;
}

/* ---- this start's ---- */

/* Of `order` a host of this name that is not taken; NULL: there is none. */
static const iso_order_host *find(const iso_order *order, const char *name, const bool *taken) {
  for (int i = 0; i < order->count; i++)
    if (!taken[i] && strcmp(order->hosts[i].name, name) == 0) return &order->hosts[i];
  return NULL;
}

/* The first host of `a` that `b` has not; NULL: b has all. */
static const char *missing(const iso_order *a, const iso_order *b) {
  bool taken[ISO_MOST_RANKS] = {false};
  for (int i = 0; i < a->count; i++) {
    const iso_order_host *host = find(b, a->hosts[i].name, taken);
    if (!host) return a->hosts[i].name;
    taken[host - b->hosts] = true;
  }
  return NULL;
}

/* The stored order's hosts as they are numbered now. */
static void adopt(iso_order *order, const iso_order *stored) {
  bool taken[ISO_MOST_RANKS] = {false};
  iso_order_host hosts[ISO_MOST_RANKS];
  for (int i = 0; i < order->count; i++) {
    /* of hosts of one name, rank 0's is numbered 0 and is to stay first */
    const iso_order_host *now = NULL;
    for (int j = 0; j < order->count; j++)
      if (!taken[j] && strcmp(order->hosts[j].name, stored->hosts[i].name) == 0 &&
          (!now || order->hosts[j].number < now->number))
        now = &order->hosts[j];
    assert(now);
    taken[now - order->hosts] = true;
    hosts[i] = stored->hosts[i];
    hosts[i].number = now->number;
  }
  memcpy(order->hosts, hosts, (size_t)order->count * sizeof *hosts);
  order->source = stored->source;
  memcpy(order->file, stored->file, sizeof order->file);
  if (order->source != ISO_ORDER_LAUNCHER) order->cause[0] = '\0';
}

/* Why it is not the stored one. */
static void explain(iso_order *order, const iso_order *stored, int start) {
  char *out = order->change;
  const size_t capacity = sizeof order->change;
  int same = 0;
  while (same < order->count && same < stored->count && strcmp(order->hosts[same].name, stored->hosts[same].name) == 0)
    same++;
  if (same == order->count && same == stored->count) return;
  const char *added = missing(order, stored), *gone = missing(stored, order);
  if (added)
    (void)snprintf(out, capacity, "host %s was not there at start %d", added, start);
  else if (gone)
    (void)snprintf(out, capacity, "host %s of start %d is not there", gone, start);
  else if (same == 0)
    (void)snprintf(out, capacity, "rank 0 is on %s, at start %d it was on %s", order->hosts[0].name, start,
                   stored->hosts[0].name);
  else
    (void)snprintf(out, capacity, "at start %d %s came behind %s", start, stored->hosts[same].name,
                   stored->hosts[same - 1].name);
}

static iso_status make(const iso_world *world, const iso_config *config, iso_order **out) {
  const char *names[ISO_MOST_RANKS] = {0};
  const int hosts = iso_world_hosts(world);
  const char *file = config->parallel.topology[0] ? config->parallel.topology : NULL;
  int start;
  if (iso_world_ranks(world) > ISO_MOST_RANKS)
    return iso_fail(ISO_ERR_USAGE, "%d ranks of %s: there can be 1 to %d", iso_world_ranks(world),
                    iso_world_launcher(world), ISO_MOST_RANKS);
  for (int r = iso_world_ranks(world); r-- > 0;) names[iso_world_host(world, r)] = iso_world_host_name(world, r);
  ISO_TRY(iso_order_make(names, hosts, file, out));
  iso_order *stored = config->run[0] ? iso_order_stored(config->run, &start) : NULL;
  if (!stored) return ISO_OK;
  const bool better = (*out)->source == ISO_ORDER_NAMES && stored->source == ISO_ORDER_LAUNCHER;
  if (!file && !better && !missing(*out, stored) && !missing(stored, *out) &&
      strcmp(stored->hosts[0].name, names[0]) == 0)
    adopt(*out, stored);
  explain(*out, stored, start);
  iso_order_destroy(&stored);
  return ISO_OK;
}

iso_status iso_ranks_order(iso_world *world, const iso_config *config) {
  iso_order *order = NULL;
  const iso_status made = iso_world_rank(world) == 0 ? make(world, config, &order) : ISO_OK;
  const iso_status status = iso_world_agree(world, made);
  if (status == ISO_OK) return iso_world_reorder(world, order);
  iso_order_destroy(&order);
  return status;
}

void iso_ranks_order_warn(const iso_world *world) {
  const iso_order *order = iso_world_order(world);
  if (order && order->cause[0] && iso_world_rank(world) == 0)
    iso_warn(
        "order of hosts: as %s gave them, since %s; name a file in parallel.topology, so that hosts of one rack are "
        "neighbours (docs/comm.md)",
        iso_world_launcher(world), order->cause);
}

/* A rank whose number is not the launcher's; -1: none. */
static int renumbered(const iso_order *order) {
  for (int r = 0; r < order->rank_count; r++)
    if (order->launched[r] != r) return r;
  return -1;
}

void iso_ranks_order_print(const iso_world *world) {
  const iso_order *order = iso_world_order(world);
  if (!order || order->count < 2) return;
  iso_string text = {0};
  iso_order_print(order, &text);
  printf("# hosts %s\n", text.data ? text.data : "");
  iso_string_fini(&text);
  if (order->change[0]) printf("# the order of hosts is a new one: %s\n", order->change);
  const int r = renumbered(order);
  if (r >= 0) printf("# ranks are numbered along it: rank %d is the launcher's %d\n", r, order->launched[r]);
}
