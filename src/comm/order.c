/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of hosts in which ranks are numbered.
 *
 * The one idea: each host has a path of switches (or of what its name says of racks), and hosts are walked as the
 * leaves of that tree. So the hosts below any switch are neighbours, and their leaves make few nodes of the reduction's
 * tree.
 *
 * Invariants
 *  1. The host of rank 0 comes first, and so do its rack and every switch above it: rank 0 has the run folder, and is
 *     MPI's rank 0. All others go by name, as people sort names.
 *  2. The same hosts and the same file give the same order, in whatever order they are given.
 *  3. Names are believed only where they all have one form (words alike, numbers and single letters apart).
 */
#include "comm/order.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

static bool is_letter(char c) {
  return isascii((unsigned char)c) && isalpha((unsigned char)c);
}

int iso_natural_compare(const char *a, const char *b) {
  const char *x = a, *y = b;
  while (*x && *y) {
    if (is_digit(*x) && is_digit(*y)) {
      while (*x == '0') x++;
      while (*y == '0') y++;
      const size_t more = strspn(x, "0123456789"), less = strspn(y, "0123456789");
      if (more != less) return more < less ? -1 : 1;
      const int digits = strncmp(x, y, more);
      if (digits) return digits;
      x += more;
      y += less;
      continue;
    }
    if (*x != *y) return (unsigned char)*x < (unsigned char)*y ? -1 : 1;
    x++;
    y++;
  }
  if (*x || *y) return *x ? 1 : -1;
  return strcmp(a, b);
}

/* Bytes of the run that `name` begins with: digits, letters, or one other byte. */
static size_t run_of(const char *name) {
  size_t length = 1;
  if (is_digit(name[0])) return strspn(name, "0123456789");
  if (is_letter(name[0]))
    while (is_letter(name[length])) length++;
  return length;
}

/* A number, or a letter that stands alone: what may differ. */
static bool varies(const char *run) {
  return is_digit(run[0]) || (is_letter(run[0]) && run_of(run) == 1);
}

static bool same_form(const char *a, const char *b) {
  while (*a && *b) {
    const size_t x = run_of(a), y = run_of(b);
    const bool kind = is_digit(*a) == is_digit(*b) && varies(a) == varies(b);
    if (!kind || (!varies(a) && (x != y || strncmp(a, b, x) != 0))) return false;
    a += x;
    b += y;
  }
  return !*a && !*b;
}

/* Where the parts that may differ begin; returns how many. */
static int cuts_of(const char *name, int cuts[ISO_HOST_NAME]) {
  int count = 0;
  for (const char *at = name; *at; at += run_of(at))
    if (varies(at)) cuts[count++] = (int)(at - name);
  return count;
}

typedef char brief[ISO_HOST_NAME]; /* a name without its domain */

/* Groups of hosts whose names have the first `level` + 1 parts in common. */
static int groups_at(const brief *names, int count, int level) {
  int groups = 0, cuts[ISO_HOST_NAME], before[ISO_HOST_NAME];
  for (int i = 0; i < count; i++) {
    (void)cuts_of(names[i], cuts);
    int j = 0;
    for (; j < i; j++) {
      (void)cuts_of(names[j], before);
      if (before[level + 1] == cuts[level + 1] && strncmp(names[i], names[j], (size_t)cuts[level + 1]) == 0) break;
    }
    groups += j == i;
  }
  return groups;
}

/* Levels that say something: more than one group, fewer than hosts, and other groups than the next level. */
static void set_racks(iso_order *order, const brief *names) {
  int cuts[ISO_HOST_NAME], groups[ISO_HOST_NAME];
  const int parts = cuts_of(names[0], cuts);
  for (int level = 0; level + 1 < parts; level++) groups[level] = groups_at(names, order->count, level);
  for (int level = 0; level + 1 < parts; level++) {
    const bool says = groups[level] > 1 && groups[level] < order->count;
    if (!says || (level + 2 < parts && groups[level] == groups[level + 1])) continue;
    for (int i = 0; i < order->count; i++) {
      iso_rack_path *path = &order->hosts[i].path;
      if (path->levels == ISO_RACK_LEVELS) break;
      (void)cuts_of(names[i], cuts);
      (void)snprintf(path->names[path->levels++], ISO_RACK_NAME, "%.*s*", cuts[level + 1], names[i]);
    }
  }
}

/* *cause says why names do not do. */
static iso_status read_names(iso_order *order) {
  iso_status status = ISO_OK;
  brief *names = calloc((size_t)order->count, sizeof *names);
  if (!names) return iso_fail(ISO_ERR_MEMORY, "order of hosts: no memory for %d names", order->count);
  order->source = ISO_ORDER_NAMES;
  for (int i = 0; i < order->count; i++)
    (void)snprintf(names[i], sizeof names[i], "%.*s", (int)strcspn(order->hosts[i].name, "."), order->hosts[i].name);
  for (int i = 0; i < order->count && order->source == ISO_ORDER_NAMES; i++) {
    if (!same_form(names[0], names[i])) {
      order->source = ISO_ORDER_LAUNCHER;
      (void)snprintf(order->cause, sizeof order->cause, "the names %s and %s are not of one form that numbers them",
                     names[0], names[i]);
    }
    for (int j = 0; j < i && order->source == ISO_ORDER_NAMES; j++) {
      if (strcmp(names[i], names[j]) != 0) continue;
      order->source = ISO_ORDER_LAUNCHER;
      (void)snprintf(order->cause, sizeof order->cause, "two hosts have the name %s", names[i]);
    }
  }
  if (order->source == ISO_ORDER_NAMES) set_racks(order, (const brief *)names);
  free(names);
  return status;
}

/* ---- order ---- */

static int by_name(const iso_order_host *a, const iso_order_host *b, int zero) {
  if ((a->number == zero) != (b->number == zero)) return a->number == zero ? -1 : 1;
  const int names = iso_natural_compare(a->name, b->name);
  return names ? names : a->number - b->number;
}

/* `zero` comes first, with all that is above it; hosts of a switch come before the switches below it. */
static int compare(const iso_order_host *a, const iso_order_host *b, const iso_order_host *zero) {
  bool with_zero = true; /* as far as the paths are one, they are zero's */
  for (int level = 0;; level++) {
    const bool ends_a = level == a->path.levels, ends_b = level == b->path.levels;
    const char *on = with_zero && level < zero->path.levels ? zero->path.names[level] : NULL;
    if (ends_a && ends_b) return by_name(a, b, zero->number);
    if (ends_a) return on && a->number != zero->number && strcmp(b->path.names[level], on) == 0 ? 1 : -1;
    if (ends_b) return on && b->number != zero->number && strcmp(a->path.names[level], on) == 0 ? -1 : 1;
    const char *x = a->path.names[level], *y = b->path.names[level];
    const bool x_on = on && strcmp(x, on) == 0, y_on = on && strcmp(y, on) == 0;
    if (x_on != y_on) return x_on ? -1 : 1;
    const int names = iso_natural_compare(x, y);
    if (names) return names;
    with_zero = with_zero && x_on;
  }
}

static void sort(iso_order *order) {
  const iso_order_host zero = order->hosts[0];
  for (int i = 1; i < order->count; i++) {
    const iso_order_host moved = order->hosts[i];
    int at = i;
    for (; at > 0 && compare(&order->hosts[at - 1], &moved, &zero) > 0; at--) order->hosts[at] = order->hosts[at - 1];
    order->hosts[at] = moved;
  }
}

/* ---- making ---- */

iso_status iso_order_create(const iso_order_host *hosts, int count, iso_order **out) {
  *out = NULL;
  iso_order *order = calloc(1, sizeof *order);
  if (order) order->hosts = calloc((size_t)count, sizeof *order->hosts);
  if (!order || !order->hosts) {
    free(order);
    return iso_fail(ISO_ERR_MEMORY, "order of hosts: no memory for %d hosts", count);
  }
  order->count = count;
  memcpy(order->hosts, hosts, (size_t)count * sizeof *hosts);
  *out = order;
  return ISO_OK;
}

static iso_status read_file(iso_order *order, const char *file) {
  iso_switches *switches;
  ISO_TRY(iso_switches_read(file, &switches));
  iso_status status = ISO_OK;
  for (int i = 0; i < order->count && status == ISO_OK; i++)
    status = iso_switches_find(switches, order->hosts[i].name, &order->hosts[i].path);
  iso_switches_destroy(&switches);
  order->source = ISO_ORDER_FILE;
  (void)snprintf(order->file, sizeof order->file, "%s", file);
  return status;
}

iso_status iso_order_make(const char *const *names, int count, const char *file, iso_order **out) {
  iso_order *order;
  *out = NULL;
  iso_order_host *hosts = calloc((size_t)count, sizeof *hosts);
  if (!hosts) return iso_fail(ISO_ERR_MEMORY, "order of hosts: no memory for %d hosts", count);
  for (int i = 0; i < count; i++) {
    hosts[i].number = i;
    (void)snprintf(hosts[i].name, sizeof hosts[i].name, "%s", names[i]);
  }
  iso_status status = iso_order_create(hosts, count, &order);
  free(hosts);
  ISO_TRY(status);
  status = file ? read_file(order, file) : count > 1 ? read_names(order) : ISO_OK;
  if (status == ISO_OK && order->source != ISO_ORDER_LAUNCHER) sort(order);
  if (count <= 2) order->cause[0] = '\0'; /* there is one order of two */
  if (status == ISO_OK)
    *out = order;
  else
    iso_order_destroy(&order);
  return status;
}

void iso_order_destroy(iso_order **order) {
  if (!*order) return;
  free((*order)->hosts);
  free((*order)->launched);
  free(*order);
  *order = NULL;
}

iso_status iso_order_number(iso_order *order, const int *host_of, int ranks) {
  int *launched = calloc((size_t)ranks, sizeof *launched), given = 0;
  if (!launched) return iso_fail(ISO_ERR_MEMORY, "order of hosts: no memory for %d ranks", ranks);
  for (int i = 0; i < order->count; i++) {
    iso_order_host *host = &order->hosts[i];
    host->first = given;
    for (int r = 0; r < ranks; r++)
      if (host_of[r] == host->number) launched[given++] = r;
    host->ranks = given - host->first;
  }
  free(order->launched);
  order->launched = launched;
  order->rank_count = ranks;
  return ISO_OK;
}
