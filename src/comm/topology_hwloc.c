/* SPDX-License-Identifier: Apache-2.0
 *
 * The places of this host as hwloc sees them, or why there are none.
 *
 * hwloc (Portable Hardware Locality, version 2) is optional when isotach is built. It is asked for the whole machine,
 * also for what this process may not use. Its environment variables (HWLOC_SYNTHETIC, HWLOC_XMLFILE) can make it
 * describe another machine; the topology says so then.
 */
#include "comm/comm.h"

#ifdef ISO_HWLOC

#include <errno.h>
#include <hwloc.h>
#include <string.h>

static void copy_set(hwloc_const_cpuset_t from, iso_cpu_set *to) {
  memset(to, 0, sizeof *to);
  for (int cpu = hwloc_bitmap_first(from); cpu >= 0 && cpu < ISO_MOST_CPUS; cpu = hwloc_bitmap_next(from, cpu))
    iso_cpu_set_put(to, cpu);
}

static int number_of(hwloc_obj_t object) {
  return object->os_index <= INT32_MAX ? (int)object->os_index : -1;
}

static iso_status add_all(iso_topology *t, hwloc_topology_t from) {
  static const struct {
    hwloc_obj_type_t type;
    iso_site_kind kind;
    int level;
  } rows[] = {
      {HWLOC_OBJ_PACKAGE, ISO_SITE_PACKAGE, 0}, {HWLOC_OBJ_NUMANODE, ISO_SITE_NUMA, 0},
      {HWLOC_OBJ_L5CACHE, ISO_SITE_CACHE, 5},   {HWLOC_OBJ_L4CACHE, ISO_SITE_CACHE, 4},
      {HWLOC_OBJ_L3CACHE, ISO_SITE_CACHE, 3},   {HWLOC_OBJ_L2CACHE, ISO_SITE_CACHE, 2},
      {HWLOC_OBJ_L1CACHE, ISO_SITE_CACHE, 1},   {HWLOC_OBJ_CORE, ISO_SITE_CORE, 0},
      {HWLOC_OBJ_PU, ISO_SITE_CPU, 0},
  };
  iso_cpu_set cpus;
  for (size_t row = 0; row < ISO_COUNT(rows); row++) {
    const iso_site_kind kind = rows[row].kind;
    hwloc_obj_t object = NULL;
    while ((object = hwloc_get_next_obj_by_type(from, rows[row].type, object)) != NULL) {
      const int number = kind == ISO_SITE_CACHE ? -1 : number_of(object);
      int64_t bytes = 0;
      if (kind == ISO_SITE_CPU && (number < 0 || number >= ISO_MOST_CPUS))
        return iso_fail(ISO_ERR_UNSUPPORTED, "topology: hwloc names CPU %u; this version knows CPUs up to %d",
                        object->os_index, ISO_MOST_CPUS - 1);
      if (kind == ISO_SITE_CACHE) bytes = (int64_t)object->attr->cache.size;
      if (kind == ISO_SITE_NUMA) bytes = (int64_t)object->attr->numanode.local_memory;
      copy_set(object->cpuset, &cpus);
      ISO_TRY(iso_topology_add(t, kind, rows[row].level, number, bytes, &cpus));
    }
  }
  return ISO_OK;
}

iso_status iso_topology_read_hwloc(iso_topology *t, const char **cause) {
  hwloc_topology_t from;
  iso_status status = ISO_OK;
  *cause = "hwloc cannot begin";
  errno = 0;
  if (hwloc_topology_init(&from) != 0) return ISO_OK;
  if (hwloc_topology_set_flags(from, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) == 0 && hwloc_topology_load(from) == 0) {
    snprintf(t->source, sizeof t->source, "hwloc");
    t->elsewhere = !hwloc_topology_is_thissystem(from);
    status = add_all(t, from);
    *cause = t->count || status != ISO_OK ? NULL : "hwloc finds nothing";
  } else {
    static _Thread_local char text[128];
    snprintf(text, sizeof text, "hwloc cannot read this machine: %s", errno ? strerror(errno) : "no cause given");
    *cause = text;
  }
  hwloc_topology_destroy(from);
  return status;
}

#else

iso_status iso_topology_read_hwloc(iso_topology *t, const char **cause) {
  *cause = "isotach was built without hwloc (install libhwloc-dev and build again)";
  return ISO_OK;
}

#endif
