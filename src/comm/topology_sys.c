/* SPDX-License-Identifier: Apache-2.0
 *
 * The places of this host from the files of Linux's /sys, for where hwloc is not.
 *
 *   devices/system/cpu/online                           the CPUs that there are
 *   devices/system/cpu/cpuN/topology/                   package_cpus_list (before 5.2 core_siblings_list) and
 *                                                       physical_package_id; core_cpus_list (thread_siblings_list) and
 *                                                       core_id
 *   devices/system/cpu/cpuN/cache/indexM/               level, type, size ("32768K"), shared_cpu_list
 *   devices/system/node/online, nodeN/cpulist, meminfo  NUMA nodes and their memory
 *
 * (Documentation/ABI/stable/sysfs-devices-system-cpu and -node of Linux.) Only the first must be there: what is not
 * said is left out. What is there and cannot be understood is an error. A set is added once, by its lowest CPU.
 */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

bool iso_cpu_set_parse(const char *text, iso_cpu_set *out) {
  memset(out, 0, sizeof *out);
  while (*text && *text != '\n') {
    char *end;
    if (*text < '0' || *text > '9') return false;
    const long first = strtol(text, &end, 10);
    long last = first;
    if (*end == '-') {
      if (end[1] < '0' || end[1] > '9') return false;
      last = strtol(end + 1, &end, 10);
    }
    if (last < first || last >= ISO_MOST_CPUS) return false;
    for (long cpu = first; cpu <= last; cpu++) iso_cpu_set_put(out, (int)cpu);
    if (*end == ',' && end[1] >= '0' && end[1] <= '9')
      end++;
    else if (*end && *end != '\n')
      return false;
    text = end;
  }
  return true;
}

typedef struct reader {
  iso_topology *topology;
  const char *root;
  char path[512];
  char text[4096]; /* of the file at `path` */
} reader;

/* false: there is no such file. */
static bool read_file(reader *r, const char *name) {
  snprintf(r->path, sizeof r->path, "%s/devices/system/%s", r->root, name);
  FILE *file = fopen(r->path, "re");
  if (!file) return false;
  const size_t length = fread(r->text, 1, sizeof r->text - 1, file);
  const bool failed = ferror(file) || length == sizeof r->text - 1;
  fclose(file);
  r->text[failed ? 0 : length] = '\0';
  return !failed;
}

static iso_status malformed(const reader *r) {
  return iso_fail(ISO_ERR_FORMAT, "topology: %s is not as Linux writes it: \"%.40s\"", r->path, r->text);
}

/* *found is false when there is no such file. */
static iso_status read_set(reader *r, const char *name, iso_cpu_set *out, bool *found) {
  *found = read_file(r, name);
  if (!*found || iso_cpu_set_parse(r->text, out)) return ISO_OK;
  return malformed(r);
}

/* -1: there is no such file. Also "32768K", in bytes. */
static iso_status read_number(reader *r, const char *name, int64_t *out) {
  *out = -1;
  if (!read_file(r, name)) return ISO_OK;
  char *end;
  const long long value = strtoll(r->text, &end, 10);
  if (end == r->text || value < -1 || value > INT64_MAX / 1024) return malformed(r);
  *out = *end == 'K' ? value * 1024 : value;
  if (*end == 'K') end++;
  return *end && *end != '\n' ? malformed(r) : ISO_OK;
}

static bool is_lowest(const iso_cpu_set *set, int cpu) {
  for (int other = 0; other < cpu; other++)
    if (iso_cpu_set_has(set, other)) return false;
  return iso_cpu_set_has(set, cpu);
}

/* A package or core that this CPU is the first of. */
static iso_status add_group(reader *r, int cpu, iso_site_kind kind, const char *list, const char *older,
                            const char *number_file) {
  char name[96];
  iso_cpu_set set;
  bool found;
  int64_t number;
  snprintf(name, sizeof name, "cpu/cpu%d/topology/%s", cpu, list);
  ISO_TRY(read_set(r, name, &set, &found));
  if (!found) {
    snprintf(name, sizeof name, "cpu/cpu%d/topology/%s", cpu, older);
    ISO_TRY(read_set(r, name, &set, &found));
  }
  if (!found || !is_lowest(&set, cpu)) return ISO_OK;
  snprintf(name, sizeof name, "cpu/cpu%d/topology/%s", cpu, number_file);
  ISO_TRY(read_number(r, name, &number));
  return iso_topology_add(r->topology, kind, 0, number > INT32_MAX ? -1 : (int)number, 0, &set);
}

static iso_status add_caches(reader *r, int cpu) {
  for (int index = 0; index < 16; index++) {
    char name[96];
    iso_cpu_set set;
    bool found;
    int64_t level, bytes;
    snprintf(name, sizeof name, "cpu/cpu%d/cache/index%d/type", cpu, index);
    if (!read_file(r, name)) return ISO_OK;
    if (strncmp(r->text, "Instruction", 11) == 0) continue;
    snprintf(name, sizeof name, "cpu/cpu%d/cache/index%d/shared_cpu_list", cpu, index);
    ISO_TRY(read_set(r, name, &set, &found));
    if (!found || !is_lowest(&set, cpu)) continue;
    snprintf(name, sizeof name, "cpu/cpu%d/cache/index%d/level", cpu, index);
    ISO_TRY(read_number(r, name, &level));
    snprintf(name, sizeof name, "cpu/cpu%d/cache/index%d/size", cpu, index);
    ISO_TRY(read_number(r, name, &bytes));
    if (level < 1 || level > 8) continue;
    ISO_TRY(iso_topology_add(r->topology, ISO_SITE_CACHE, (int)level, -1, bytes < 0 ? 0 : bytes, &set));
  }
  return ISO_OK;
}

static iso_status add_nodes(reader *r) {
  iso_cpu_set nodes, cpus;
  bool found;
  ISO_TRY(read_set(r, "node/online", &nodes, &found));
  for (int node = 0; found && node < ISO_MOST_CPUS; node++) {
    char name[64];
    bool has_list;
    if (!iso_cpu_set_has(&nodes, node)) continue;
    snprintf(name, sizeof name, "node/node%d/cpulist", node);
    ISO_TRY(read_set(r, name, &cpus, &has_list));
    if (!has_list) continue;
    snprintf(name, sizeof name, "node/node%d/meminfo", node);
    const char *total = read_file(r, name) ? strstr(r->text, "MemTotal:") : NULL;
    const long long kilobytes = total ? strtoll(total + strlen("MemTotal:"), NULL, 10) : 0;
    if (kilobytes < 0 || kilobytes > INT64_MAX / 1024) return malformed(r);
    ISO_TRY(iso_topology_add(r->topology, ISO_SITE_NUMA, 0, node, kilobytes * 1024, &cpus));
  }
  return ISO_OK;
}

iso_status iso_topology_read_sys(iso_topology *topology, const char *root) {
  reader r = {.topology = topology, .root = root};
  iso_cpu_set online;
  bool found;
  ISO_TRY(read_set(&r, "cpu/online", &online, &found));
  if (!found) return iso_fail(ISO_ERR_NOT_FOUND, "topology: cannot read %s; is /sys mounted?", r.path);
  for (int cpu = 0; cpu < ISO_MOST_CPUS; cpu++) {
    iso_cpu_set alone = {{0}};
    if (!iso_cpu_set_has(&online, cpu)) continue;
    iso_cpu_set_put(&alone, cpu);
    ISO_TRY(iso_topology_add(topology, ISO_SITE_CPU, 0, cpu, 0, &alone));
    ISO_TRY(add_group(&r, cpu, ISO_SITE_PACKAGE, "package_cpus_list", "core_siblings_list", "physical_package_id"));
    ISO_TRY(add_group(&r, cpu, ISO_SITE_CORE, "core_cpus_list", "thread_siblings_list", "core_id"));
    ISO_TRY(add_caches(&r, cpu));
  }
  return add_nodes(&r);
}
