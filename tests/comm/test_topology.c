/* SPDX-License-Identifier: Apache-2.0
 *
 * The tree of this host, of machines whose /sys is written here, the choice of pairs, and the way between two CPUs.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"

static char root[] = "/tmp/isotach-sys.XXXXXX";

static int set_up(void **state) {
  return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static void empty_sys(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'/devices", root);
  assert_int_equal(system(command), 0);
}

static void put(const char *text, const char *format, ...) ISO_PRINTF(2, 3);
static void put(const char *text, const char *format, ...) {
  char path[512];
  int length = snprintf(path, sizeof path, "%s/devices/system/", root);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(path + length, sizeof path - (size_t)length, format, arguments);
  va_end(arguments);
  char *slash = strrchr(path, '/');
  *slash = '\0';
  assert_int_equal(iso_path_make(path), ISO_OK);
  *slash = '/';
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

static void test_sets(void **state) {
  static const struct {
    const char *text;
    int count, first, last; /* count -1: malformed */
  } all[] = {{"", 0, 0, 0},        {"\n", 0, 0, 0},         {"0\n", 1, 0, 0},   {"0-3,8\n", 5, 0, 8},
             {"63-64", 2, 63, 64}, {"8191", 1, 8191, 8191}, {"8192", -1, 0, 0}, {"0-8192", -1, 0, 0},
             {"3-1", -1, 0, 0},    {"-1", -1, 0, 0},        {"1,", -1, 0, 0},   {"1,,2", -1, 0, 0},
             {"1-", -1, 0, 0},     {"x", -1, 0, 0},         {"1 2", -1, 0, 0},  {"99999999999999999999", -1, 0, 0}};
  for (size_t i = 0; i < ISO_COUNT(all); i++) {
    iso_cpu_set set;
    assert_int_equal(iso_cpu_set_parse(all[i].text, &set), all[i].count >= 0);
    if (all[i].count < 0) continue;
    assert_int_equal(iso_cpu_set_count(&set), all[i].count);
    assert_int_equal(iso_cpu_set_has(&set, all[i].first), all[i].count > 0);
    assert_int_equal(iso_cpu_set_has(&set, all[i].last), all[i].count > 0);
    assert_false(iso_cpu_set_has(&set, -1) || iso_cpu_set_has(&set, ISO_MOST_CPUS));
  }
}

/* "P0[...]": kind, number or level, and what is within. */
static const char *text_of(const iso_topology *t, char *out, size_t capacity) {
  size_t at = 0;
  for (int i = 0; i < t->count; i++) {
    const iso_site *site = &t->places[i];
    const int next = i + 1 < t->count ? t->places[i + 1].depth : 0;
    at += (size_t)snprintf(out + at, capacity - at, "%c%d", "HPNLCT"[site->kind],
                           site -> level ? site -> level : site -> number);
    if (next > site->depth) at += (size_t)snprintf(out + at, capacity - at, "(");
    for (int depth = site->depth; depth > next; depth--) at += (size_t)snprintf(out + at, capacity - at, ")");
    if (next <= site->depth && next > 0) at += (size_t)snprintf(out + at, capacity - at, " ");
    assert_true(at < capacity);
  }
  return out;
}

/* What must be so of any machine. */
static void check_tree(const iso_topology *t) {
  int kinds[ISO_SITE_KINDS] = {0}, cpus_in_cores = 0;
  assert_int_equal(t->places[0].kind, ISO_SITE_HOST);
  assert_int_equal(t->places[0].parent, -1);
  for (int i = 0; i < t->count; i++) {
    const iso_site *site = &t->places[i];
    kinds[site->kind]++;
    if (site->kind == ISO_SITE_CORE) cpus_in_cores += iso_cpu_set_count(&site->cpus);
    if (i == 0) continue;
    assert_in_range(site->parent, 0, i - 1);
    assert_int_equal(site->depth, t->places[site->parent].depth + 1);
    assert_true(site->depth <= t->places[i - 1].depth + 1);
    for (int cpu = 0; cpu < ISO_MOST_CPUS; cpu++)
      assert_true(!iso_cpu_set_has(&site->cpus, cpu) || iso_cpu_set_has(&t->places[site->parent].cpus, cpu));
  }
  assert_memory_equal(kinds, t->kinds, sizeof kinds);
  assert_int_equal(kinds[ISO_SITE_HOST], 1);
  assert_int_equal(kinds[ISO_SITE_CPU], iso_cpu_set_count(&t->places[0].cpus));
  assert_int_equal(cpus_in_cores, kinds[ISO_SITE_CPU]);
}

/* `cores` cores a package, `each` of which share an L3; one thread a core; a NUMA node a package. */
static void write_machine(int packages, int cores, int each) {
  char text[64];
  empty_sys();
  snprintf(text, sizeof text, "0-%d\n", packages * cores - 1);
  put(text, "cpu/online");
  for (int cpu = 0; cpu < packages * cores; cpu++) {
    const int package = cpu / cores, cluster = cpu / each;
    snprintf(text, sizeof text, "%d\n", package);
    put(text, "cpu/cpu%d/topology/physical_package_id", cpu);
    snprintf(text, sizeof text, "%d-%d\n", package * cores, (package + 1) * cores - 1);
    put(text, "cpu/cpu%d/topology/package_cpus_list", cpu);
    put(text, "node/node%d/cpulist", package);
    snprintf(text, sizeof text, "%d\n", cpu);
    put(text, "cpu/cpu%d/topology/core_id", cpu);
    put(text, "cpu/cpu%d/topology/core_cpus_list", cpu);
    put("3\n", "cpu/cpu%d/cache/index0/level", cpu);
    put("Unified\n", "cpu/cpu%d/cache/index0/type", cpu);
    put("16384K\n", "cpu/cpu%d/cache/index0/size", cpu);
    snprintf(text, sizeof text, "%d-%d\n", cluster * each, (cluster + 1) * each - 1);
    put(text, "cpu/cpu%d/cache/index0/shared_cpu_list", cpu);
  }
  snprintf(text, sizeof text, "0-%d\n", packages - 1);
  put(text, "node/online");
}

static void test_written_machines(void **state) {
  char text[4096];
  iso_topology *t;
  write_machine(2, 4, 2);
  put("Node 1 MemTotal:       2048 kB\nNode 1 MemFree: 7 kB\n", "node/node1/meminfo");
  put("0-2\n", "node/online"); /* and memory without CPUs */
  put("\n", "node/node2/cpulist");
  assert_int_equal(iso_topology_from_sys(root, &t), ISO_OK);
  check_tree(t);
  assert_string_equal(
      text_of(t, text, sizeof text),
      "H-1(P0(N0(L3(C0(T0) C1(T1)) L3(C2(T2) C3(T3)))) P1(N1(L3(C4(T4) C5(T5)) L3(C6(T6) C7(T7)))) N2)");
  int checked = 0;
  for (int i = 0; i < t->count; i++) {
    if (t->places[i].kind == ISO_SITE_NUMA && t->places[i].number == 1) checked += t->places[i].bytes == 2048 * 1024;
    if (t->places[i].kind == ISO_SITE_CACHE) checked += t->places[i].bytes == 16384 * 1024;
  }
  assert_int_equal(checked, 5);
  iso_topology_destroy(&t);
  assert_null(t);

  /* CPU 1 is switched off; an old kernel's names; 2 threads a core; an instruction cache; two nodes in a package. */
  empty_sys();
  put("0,2-3\n", "cpu/online");
  for (int cpu = 0; cpu < 4; cpu++) {
    put("0-3\n", "cpu/cpu%d/topology/core_siblings_list", cpu);
    put(cpu % 2 ? "1,3\n" : "0,2\n", "cpu/cpu%d/topology/thread_siblings_list", cpu);
    put("Instruction\n", "cpu/cpu%d/cache/index0/type", cpu);
    put("0-3\n", "cpu/cpu%d/cache/index0/shared_cpu_list", cpu);
    put("1\n", "cpu/cpu%d/cache/index0/level", cpu);
  }
  put("0-1\n", "node/online");
  put("0,2\n", "node/node0/cpulist");
  put("1,3\n", "node/node1/cpulist");
  assert_int_equal(iso_topology_from_sys(root, &t), ISO_OK);
  check_tree(t);
  assert_string_equal(text_of(t, text, sizeof text), "H-1(P-1(N0(C-1(T0 T2)) N1(C-1(T3))))");
  iso_topology_destroy(&t);

  /* Only CPUs are known: each is a core. */
  empty_sys();
  put("0-1\n", "cpu/online");
  assert_int_equal(iso_topology_from_sys(root, &t), ISO_OK);
  check_tree(t);
  assert_string_equal(text_of(t, text, sizeof text), "H-1(C-1(T0) C-1(T1))");
  iso_topology_destroy(&t);
}

static void refused(iso_status wanted, const char *message) {
  iso_topology *t;
  char whole[512];
  snprintf(whole, sizeof whole, message, root);
  iso_log_quiet(true);
  assert_int_equal(iso_topology_from_sys(root, &t), wanted);
  iso_log_quiet(false);
  assert_string_equal(iso_last_error(), whole);
  assert_null(t);
}

static void test_bad_sys(void **state) {
  empty_sys();
  refused(ISO_ERR_NOT_FOUND, "topology: cannot read %s/devices/system/cpu/online; is /sys mounted?");
  put("", "cpu/online");
  refused(ISO_ERR_FORMAT, "topology: %s names no CPU");
  put("0-x", "cpu/online");
  refused(ISO_ERR_FORMAT, "topology: %s/devices/system/cpu/online is not as Linux writes it: \"0-x\"");
  put("0", "cpu/online");
  put("0", "cpu/cpu0/topology/package_cpus_list");
  put("first", "cpu/cpu0/topology/physical_package_id");
  refused(ISO_ERR_FORMAT,
          "topology: %s/devices/system/cpu/cpu0/topology/physical_package_id is not as Linux writes it: \"first\"");
  put("0", "cpu/cpu0/topology/physical_package_id");
  put("Unified", "cpu/cpu0/cache/index0/type");
  put("0", "cpu/cpu0/cache/index0/shared_cpu_list");
  put("3", "cpu/cpu0/cache/index0/level");
  put("99999999999999999999K", "cpu/cpu0/cache/index0/size");
  refused(
      ISO_ERR_FORMAT,
      "topology: %s/devices/system/cpu/cpu0/cache/index0/size is not as Linux writes it: \"99999999999999999999K\"");
}

static void test_this_host(void **state) {
  iso_topology *t, *sys;
  if (access("/sys/devices/system/cpu/online", R_OK) != 0) skip();
  assert_int_equal(iso_topology_create(&t), ISO_OK);
  check_tree(t);
  assert_false(t->elsewhere);
#ifdef ISO_WITHOUT_HWLOC
  assert_string_equal(t->source, "/sys");
#endif
  assert_int_equal(t->kinds[ISO_SITE_CPU], sysconf(_SC_NPROCESSORS_ONLN));
  assert_int_equal(iso_cpu_set_count(&t->usable), iso_cpu_count());
  /* Whoever reads it, it is the same machine. */
  assert_int_equal(iso_topology_from_sys("/sys", &sys), ISO_OK);
  check_tree(sys);
  assert_int_equal(iso_cpu_set_count(&sys->usable), 0);
  assert_int_equal(sys->kinds[ISO_SITE_CPU], t->kinds[ISO_SITE_CPU]);
  assert_int_equal(sys->kinds[ISO_SITE_CORE], t->kinds[ISO_SITE_CORE]);
  iso_topology_destroy(&sys);
  iso_topology_destroy(&t);
}

static void check_pairs(int packages, int cores, int each, int usable, int wanted) {
  iso_topology *t;
  iso_core_pair pairs[ISO_MOST_PAIRS];
  int64_t all;
  int kinds[3] = {0};
  write_machine(packages, cores, each);
  assert_int_equal(iso_topology_from_sys(root, &t), ISO_OK);
  for (int cpu = 0; cpu < usable; cpu++) iso_cpu_set_put(&t->usable, cpu);
  const int count = iso_core_pairs(t, pairs, &all);
  assert_int_equal(all, usable * (usable - 1) / 2);
  assert_int_equal(count, wanted);
  for (int i = 0; i < count; i++) {
    const int a = pairs[i].cpus[0], b = pairs[i].cpus[1];
    const iso_site_kind common = pairs[i].common->kind;
    assert_true(a < b && b < usable);
    const int kind = a / cores != b / cores ? 0 : a / each != b / each ? 1 : 2;
    kinds[kind]++;
    assert_int_equal(common, kind == 0 ? ISO_SITE_HOST : kind == 1 ? ISO_SITE_NUMA : ISO_SITE_CACHE);
    for (int j = 0; j < i; j++) assert_false(pairs[j].cpus[0] == a && pairs[j].cpus[1] == b);
    if (i > 0) assert_true(pairs[i].turn >= pairs[i - 1].turn);
  }
  if (count < all)
    for (int kind = 0; kind < 3; kind++) assert_int_equal(kinds[kind], ISO_MOST_PAIRS / 3);
  iso_topology_destroy(&t);
}

static void test_pairs(void **state) {
  check_pairs(1, 1, 1, 1, 0);
  check_pairs(1, 4, 2, 4, 6);
  check_pairs(1, 4, 2, 2, 1);
  check_pairs(2, 16, 4, 32, ISO_MOST_PAIRS);
  check_pairs(2, 32, 8, 64, ISO_MOST_PAIRS);
}

static void check_spread(iso_spread spread) {
  assert_true(spread.low > 0 && spread.low <= spread.median && spread.median <= spread.high && spread.high < 1e9);
}

static void test_link(void **state) {
  int cpus[2];
  iso_link link;
  bool measured;
  if (iso_cpu_order(cpus, 2) < 2) skip();
  /* A machine whose CPUs others hold makes it late; that must be said, and is tried again. */
  for (int tries = 0, done = 0; !done; tries++) {
    assert_true(tries < 20);
    assert_int_equal(iso_link_measure(cpus[0], cpus[1], iso_clock_s() + 2, &link, &measured), ISO_OK);
    done = measured;
  }
  assert_int_equal(link.cpus[0], cpus[0]);
  assert_int_equal(link.cpus[1], cpus[1]);
  check_spread(link.latency_ns);
  check_spread(link.gb_per_s);

  const double began = iso_clock_s();
  assert_int_equal(iso_link_measure(cpus[0], cpus[1], began - 1, &link, &measured), ISO_OK);
  assert_false(measured);

  iso_log_quiet(true);
  assert_int_equal(iso_link_measure(cpus[0], ISO_MOST_CPUS - 1, iso_clock_s() + 2, &link, &measured), ISO_ERR_IO);
  iso_log_quiet(false);
  assert_false(measured);
  assert_non_null(strstr(iso_last_error(), "and one on CPU 8191: Invalid argument"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_sets),    cmocka_unit_test(test_written_machines),
      cmocka_unit_test(test_bad_sys), cmocka_unit_test(test_this_host),
      cmocka_unit_test(test_pairs),   cmocka_unit_test(test_link),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
