/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of hosts that follows the network: hosts of one rack are neighbours, and so are racks of one switch. Ranks
 * are numbered in it. No bit depends on it.
 */
#ifndef ISO_ORDER_H
#define ISO_ORDER_H

#include "base/base.h"

enum { ISO_HOST_NAME = 64 /* bytes of a host's name, with its NUL */ };

/* ---- switches.c: a file that says which host is at which switch ---------------------------------------------------
 */

enum { ISO_RACK_LEVELS = 8, ISO_RACK_NAME = 72 /* bytes, with the NUL */ };
typedef struct iso_rack_path { /* of a host: the switches (racks, rows) above it, the outermost first */
  int levels;
  char names[ISO_RACK_LEVELS][ISO_RACK_NAME];
} iso_rack_path;
typedef struct iso_switches iso_switches;
/* Slurm's topology.conf: lines of SwitchName= (or BlockName=) with Nodes= and Switches=. CONFIG with the line's number:
 * malformed, a switch twice, below two others or below itself, more than 1 MiB, no plain file; NOT_FOUND, IO, MEMORY.
 */
iso_status iso_switches_read(const char *path, iso_switches **out) ISO_MUST_CHECK;
void iso_switches_destroy(iso_switches **switches);
/* Of a host by its name, else by its name up to the first dot. CONFIG: it stands nowhere, or twice. */
iso_status iso_switches_find(const iso_switches *switches, const char *host, iso_rack_path *out) ISO_MUST_CHECK;

/* ---- order.c: who stands beside whom ------------------------------------------------------------------------------
 */

typedef enum iso_order_source {
  ISO_ORDER_LAUNCHER, /* nothing is known of the network */
  ISO_ORDER_NAMES,
  ISO_ORDER_FILE,
  ISO_ORDER_SOURCES
} iso_order_source;
typedef struct iso_order_host {
  char name[ISO_HOST_NAME];
  iso_rack_path path; /* no levels: of racks nothing is known */
  int number;         /* among the hosts as they were given */
  int first, ranks;   /* its ranks are first .. first + ranks - 1; filled in by who has ranks */
} iso_order_host;
typedef struct iso_order {
  iso_order_source source;
  char file[512];   /* of FILE: its path */
  char cause[256];  /* of LAUNCHER: why nothing better is known; "": there is nothing to be put in order */
  char change[256]; /* why it is not that of the start before; "": it is, or there was none */
  int count;        /* hosts */
  iso_order_host *hosts;
  int rank_count;
  int *launched; /* [rank_count]: the launcher's number of each rank; NULL: not filled in yet */
} iso_order;
/* An order of `count` hosts, whose names are given in any order but that names[0] stays first, with its rack and all
 * switches above it: rank 0 is there. By the file, if `file` is not NULL; else by names of one form that differ in
 * numbers and single letters; else as given, with the cause. What iso_switches_read and _find say; MEMORY. */
iso_status iso_order_make(const char *const *names, int count, const char *file, iso_order **out) ISO_MUST_CHECK;
void iso_order_destroy(iso_order **order);
/* Copies of the hosts, in the order in which they stand; for orders that were stored. MEMORY. */
iso_status iso_order_create(const iso_order_host *hosts, int count, iso_order **out) ISO_MUST_CHECK;
/* Rank numbers ascend along it: launched[] from host_of[launcher's number], which counts hosts as they were given.
 * MEMORY. */
iso_status iso_order_number(iso_order *order, const int *host_of, int ranks) ISO_MUST_CHECK;
/* As people sort: digits as the numbers that they are. <0, 0, >0. */
int iso_natural_compare(const char *a, const char *b);

#endif
