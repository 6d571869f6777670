/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of hosts: by names, by a topology.conf, as given; files that are wrong are refused in one line; and what
 * must be so of any order, over drawn trees of switches and drawn placements.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/comm.h"

static char file[] = "/tmp/isotach-order.XXXXXX";

static int set_up(void **state) {
  const int fd = mkstemp(file);
  return fd < 0 ? -1 : close(fd);
}

static int tear_down(void **state) {
  return unlink(file);
}

static void write_bytes(const char *text, size_t bytes) {
  FILE *out = fopen(file, "w");
  assert_non_null(out);
  assert_int_equal(fwrite(text, 1, bytes, out), bytes);
  assert_int_equal(fclose(out), 0);
}

static void write_text(const char *text) {
  write_bytes(text, strlen(text));
}

/* "a1 a2 | b1": a bar where the rack is another one. */
static const char *text_of(const iso_order *order, char *out, size_t capacity) {
  size_t at = 0;
  for (int i = 0; i < order->count; i++) {
    const iso_rack_path *now = &order->hosts[i].path, *before = i ? &order->hosts[i - 1].path : now;
    bool same = now->levels == before->levels;
    for (int l = 0; same && l < now->levels; l++) same = strcmp(now->names[l], before->names[l]) == 0;
    at += (size_t)snprintf(out + at, capacity - at, "%s%s%s", i ? " " : "", same ? "" : "| ", order->hosts[i].name);
    assert_true(at < capacity);
  }
  return out;
}

typedef struct names {
  const char *all[12];
} names;

static int count_of(const names *n) {
  int count = 0;
  while (count < 12 && n->all[count]) count++;
  return count;
}

static void test_natural(void **state) {
  static const char *const ascending[] = {
      "", "1", "02", "2", "10", "a", "a1", "a1b", "a2", "a02b", "a10", "b", "b99999999999999999999"};
  for (size_t i = 0; i < ISO_COUNT(ascending); i++)
    for (size_t j = 0; j < ISO_COUNT(ascending); j++) {
      const int found = iso_natural_compare(ascending[i], ascending[j]);
      assert_int_equal(found < 0 ? -1 : found > 0, i < j ? -1 : i > j);
    }
}

static void test_names(void **state) {
  static const struct {
    names given;
    const char *order, *first_path; /* levels of the first host, "/" between them */
  } all[] = {
      {{{"n3", "n10", "n1", "n2"}}, "n3 n1 n2 n10", ""},
      {{{"c102-003", "c101-001", "c102-001", "c101-002"}}, "c102-003 c102-001 | c101-001 c101-002", "c102-*"},
      {{{"r1i0n0", "r2i0n0", "r1i1n0", "r1i0n1", "r2i0n1"}}, "r1i0n0 r1i0n1 | r1i1n0 | r2i0n0 r2i0n1", "r1i*/r1i0n*"},
      {{{"b01n02", "a01n01", "b01n01", "a02n01"}}, "b01n02 b01n01 | a01n01 | a02n01", "b*/b01n*"},
      {{{"rack2-node1.x.org", "rack1-node2.x.org", "rack2-node2.x.org", "rack1-node1.x.org"}},
       "rack2-node1.x.org rack2-node2.x.org | rack1-node1.x.org rack1-node2.x.org",
       "rack2-node*"},
      {{{"host-b", "host-c", "host-a"}}, "host-b host-a host-c", ""},
      {{{"n1", "n2"}}, "n1 n2", ""},
  };
  for (size_t i = 0; i < ISO_COUNT(all); i++) {
    iso_order *order;
    char text[512], path[512] = "";
    assert_int_equal(iso_order_make(all[i].given.all, count_of(&all[i].given), NULL, &order), ISO_OK);
    assert_int_equal(order->source, ISO_ORDER_NAMES);
    assert_string_equal(order->cause, "");
    assert_string_equal(text_of(order, text, sizeof text), all[i].order);
    for (int l = 0; l < order->hosts[0].path.levels; l++)
      snprintf(path + strlen(path), sizeof path - strlen(path), "%s%s", l ? "/" : "", order->hosts[0].path.names[l]);
    assert_string_equal(path, all[i].first_path);
    iso_order_destroy(&order);
  }
}

static void test_as_given(void **state) {
  static const struct {
    names given;
    const char *cause;
  } all[] = {
      {{{"beta", "alpha", "gamma"}}, "the names beta and alpha are not of one form that numbers them"},
      {{{"n1", "gpu1", "n2"}}, "the names n1 and gpu1 are not of one form that numbers them"},
      {{{"n1", "n1-2", "n2"}}, "the names n1 and n1-2 are not of one form that numbers them"},
      {{{"n1", "nn", "n2"}}, "the names n1 and nn are not of one form that numbers them"},
      {{{"n2", "n1", "n1.x"}}, "two hosts have the name n1"},
      {{{"box", "box", "box"}}, "two hosts have the name box"},
      {{{"beta", "alpha"}}, ""}, /* there is one order of two */
      {{{"alpha"}}, ""},
  };
  for (size_t i = 0; i < ISO_COUNT(all); i++) {
    iso_order *order;
    const int count = count_of(&all[i].given);
    assert_int_equal(iso_order_make(all[i].given.all, count, NULL, &order), ISO_OK);
    assert_int_equal(order->source, ISO_ORDER_LAUNCHER);
    assert_string_equal(order->cause, all[i].cause);
    for (int h = 0; h < count; h++) {
      assert_string_equal(order->hosts[h].name, all[i].given.all[h]);
      assert_int_equal(order->hosts[h].number, h);
    }
    iso_order_destroy(&order);
  }
}

static void test_files(void **state) {
  static const struct {
    const char *text;
    names given;
    const char *order;
  } all[] = {
      {"SwitchName=s1 Nodes=n[0-3]\nSwitchName=s0 Nodes=n[4-7]\n", {{"n5", "n0", "n4", "n3"}}, "n5 n4 | n0 n3"},
      {"# a tree\nSwitchName=top Switches=s[0-2]\nSwitchName=s2 Nodes=m LinkSpeed=5\n"
       "switchname=s0 nodes=n[01-02,05],n[10-11]x[0-1] # two lists\nSwitchName=s1 Nodes=\\\nn6,\\\n\nSwitchName=s3 "
       "Nodes=z9",
       {{"n11x0", "z9", "m", "n6", "n05", "n01"}},
       NULL},
      {"SwitchName=top Switches=s[0-1],row\nSwitchName=row Switches=s2\nSwitchName=s0 Nodes=a\nSwitchName=s1 "
       "Nodes=b,d\n"
       "SwitchName=s2 Nodes=c\n",
       {{"c", "b", "a", "d"}},
       "c | a | b d"},
      {"SwitchName=top Nodes=z Switches=s[0-1]\nSwitchName=s0 Nodes=a,c\nSwitchName=s1 Nodes=b\n",
       {{"c", "b", "a", "z"}},
       "c a | z | b"},
      {"SwitchName=top Nodes=z,y Switches=s0\nSwitchName=s0 Nodes=a\n", {{"z", "a", "y"}}, "z y | a"},
      {"BlockSizes=2\nBlockName=b2 Nodes=n[1-2]\r\nBlockName=b1 Nodes=n[3-4]\r\n", {{"n3", "n1", "n4"}}, "n3 n4 | n1"},
      {"SwitchName=s Nodes=n[0-999999999]\n", {{"n77777", "n5.some.org"}}, "n77777 n5.some.org"},
      {"SwitchName=s Nodes=n1.some.org\nSwitchName=t Nodes=n1,n2\n",
       {{"n1.some.org", "n2.some.org"}},
       "n1.some.org | n2.some.org"},
      {"SwitchName=s Nodes=n[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]\n", {{"n0123456789"}}, "n0123456789"},
  };
  for (size_t i = 0; i < ISO_COUNT(all); i++) {
    iso_order *order;
    char text[512];
    write_text(all[i].text);
    if (!all[i].order) { /* a list that ends in a comma */
      assert_int_equal(iso_order_make(all[i].given.all, count_of(&all[i].given), file, &order), ISO_ERR_CONFIG);
      continue;
    }
    assert_int_equal(iso_order_make(all[i].given.all, count_of(&all[i].given), file, &order), ISO_OK);
    assert_int_equal(order->source, ISO_ORDER_FILE);
    assert_string_equal(order->file, file);
    assert_string_equal(text_of(order, text, sizeof text), all[i].order);
    iso_order_destroy(&order);
  }
}

static void test_wrong_files(void **state) {
  static const struct {
    const char *text, *said; /* behind the path */
  } all[] = {
      {"", ": no line with SwitchName=; write one for each rack: SwitchName=rack1 Nodes=n[1-8]"},
      {"# nothing\n\n", ": no line with SwitchName=; write one for each rack: SwitchName=rack1 Nodes=n[1-8]"},
      {"SwitchName=s\n", ":1: neither Nodes= nor Switches= of switch \"s\""},
      {"Nodes=n1\n", ":1: a line without SwitchName=, but with \"n1\""},
      {"n1 rack1\n", ":1: not KEY=VALUE: \"n1\""},
      {"\n\nSwitchName=s Node=n1\n",
       ":3: only SwitchName=, BlockName=, Nodes=, Switches= and LinkSpeed= are known, not \"Node\""},
      {"SwitchName=s Nodes=n1 \\\n Nodes=n2\n", ":1: a second list on one line: \"n2\""},
      {"SwitchName=s SwitchName=t Nodes=n1\n", ":1: a second switch on one line: \"t\""},
      {"SwitchName= Nodes=n1\n", ":1: no name of a switch (1 to 63 bytes, without brackets and commas): \"\""},
      {"SwitchName=s[0-1] Nodes=n1\n",
       ":1: no name of a switch (1 to 63 bytes, without brackets and commas): \"s[0-1]\""},
      {"SwitchName=s Nodes=\n", ":1: no list of names as in n[1-4,7],m1: \"\""},
      {"SwitchName=s Nodes=a,,n1\n", ":1: no list of names as in n[1-4,7],m1: \"a,,n1\""},
      {"SwitchName=s Nodes=n[1-2\n", ":1: no list of names as in n[1-4,7],m1: \"n[1-2\""},
      {"SwitchName=s Nodes=n1-2]\n", ":1: no list of names as in n[1-4,7],m1: \"n1-2]\""},
      {"SwitchName=s Nodes=n[2-1]\n", ":1: no list of names as in n[1-4,7],m1: \"n[2-1]\""},
      {"SwitchName=s Nodes=n[]\n", ":1: no list of names as in n[1-4,7],m1: \"n[]\""},
      {"SwitchName=s Nodes=n[1,]\n", ":1: no list of names as in n[1-4,7],m1: \"n[1,]\""},
      {"SwitchName=s Nodes=n[a-b]\n", ":1: no list of names as in n[1-4,7],m1: \"n[a-b]\""},
      {"SwitchName=s Nodes=n[0-9999999999999999999]\n",
       ":1: no list of names as in n[1-4,7],m1: \"n[0-9999999999999999999]\""},
      {"SwitchName=s Nodes=n1\nSwitchName=s Nodes=n2\n", ":2: a second line of switch \"s\""},
      {"SwitchName=s Nodes=n1\nSwitchName=t Switches=s,u\n", ":2: Switches= names what has no line of its own: \"u\""},
      {"SwitchName=s Switches=s\n", ":1: below itself, by its Switches= or theirs, is switch \"s\""},
      {"SwitchName=a Switches=b\nSwitchName=b Switches=c\nSwitchName=c Switches=a\nSwitchName=d Nodes=n1\n",
       ":1: below itself, by its Switches= or theirs, is switch \"a\""},
      {"SwitchName=a Switches=s\nSwitchName=b Switches=s\nSwitchName=s Nodes=n1\n",
       ":2: switch s is below a already (line 1); put it below one only"},
      {"SwitchName=a Switches=s,s\nSwitchName=s Nodes=n1\n",
       ":1: switch s is below a already (line 1); put it below one only"},
      {"SwitchName=s Nodes=n[1-4]\nSwitchName=t Nodes=n1\n",
       ": host n1 stands twice, at switch s (line 1) and at t (line 2); leave it at one"},
      {"SwitchName=s Nodes=n[1-4],n1\n",
       ": host n1 stands twice, at switch s (line 1) and at s (line 1); leave it at one"},
      {"SwitchName=s Nodes=n[01-04],n1\n",
       ": host n2 stands at no switch; add it to the Nodes= of its own, or leave parallel.topology empty"},
      {"SwitchName=a Switches=b\nSwitchName=b Switches=c\nSwitchName=c Switches=d\nSwitchName=d Switches=e\n"
       "SwitchName=e Switches=f\nSwitchName=f Switches=g\nSwitchName=g Switches=h\nSwitchName=h Switches=i\n"
       "SwitchName=i Nodes=n1\n",
       ":9: more than 8 switches above each other; the lowest is \"i\""},
  };
  static const char *const hosts[] = {"n1", "n2"};
  const bool quiet = iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(all); i++) {
    iso_order *order;
    char said[512];
    write_text(all[i].text);
    assert_int_equal(iso_order_make(hosts, 2, file, &order), ISO_ERR_CONFIG);
    assert_null(order);
    snprintf(said, sizeof said, "%s%s", file, all[i].said);
    assert_string_equal(iso_last_error(), said);
  }
  iso_log_quiet(quiet);
}

/* Too large, no text, no file, no plain file, every prefix of a file. */
static void test_hostile_files(void **state) {
  static const char *const hosts[] = {"n1", "n2"};
  const bool quiet = iso_log_quiet(true);
  enum { LARGE = (1 << 20) + 1 };
  iso_order *order;
  char *large = malloc(LARGE);
  assert_non_null(large);
  memset(large, ',', LARGE);
  write_bytes(large, LARGE);
  assert_int_equal(iso_order_make(hosts, 2, file, &order), ISO_ERR_CONFIG);
  assert_non_null(strstr(iso_last_error(), "has 1048577 bytes; a topology.conf has at most 1 MiB"));
  write_bytes(large, LARGE - 1); /* one line of commas */
  assert_int_equal(iso_order_make(hosts, 2, file, &order), ISO_ERR_CONFIG);
  for (int i = 0; i < LARGE; i++) large[i] = "SwitchName=s Nodes=a,"[i < 19 ? i : 19 + (~i & 1)];
  large[LARGE - 2] = 'a';
  write_bytes(large, LARGE - 1); /* half a million hosts at one switch */
  assert_int_equal(iso_order_make(hosts, 2, file, &order), ISO_ERR_CONFIG);
  assert_non_null(strstr(iso_last_error(), "host n1 stands at no switch"));
  int at = 0;
  for (int i = 0; i < 5000; i++) at += snprintf(large + at, LARGE - (size_t)at, "SwitchName=s%d Nodes=n%d\n", i, i);
  write_bytes(large, (size_t)at);
  assert_int_equal(iso_order_make(hosts, 2, file, &order), ISO_ERR_CONFIG);
  assert_non_null(strstr(iso_last_error(), ":4097: more than 4096 switches: \"s4096\""));
  free(large);
  write_bytes("SwitchName=s\0Nodes=n1\n", 22);
  assert_int_equal(iso_order_make(hosts, 2, file, &order), ISO_ERR_CONFIG);
  assert_non_null(strstr(iso_last_error(), "has a NUL"));
  assert_int_equal(iso_order_make(hosts, 2, "/dev/zero", &order), ISO_ERR_CONFIG);
  assert_int_equal(iso_order_make(hosts, 2, "/", &order), ISO_ERR_CONFIG);
  assert_int_equal(iso_order_make(hosts, 2, "/nowhere/topology.conf", &order), ISO_ERR_NOT_FOUND);
  static const char good[] =
      "SwitchName=a Nodes=n[1-2],m\\\n[3-4] #\nSwitchName=b Switches=a,c LinkSpeed=1\nSwitchName=c Nodes=q";
  for (size_t bytes = 0; bytes < sizeof good; bytes++) {
    write_bytes(good, bytes);
    const iso_status status = iso_order_make(hosts, 2, file, &order);
    assert_true(status == ISO_OK || status == ISO_ERR_CONFIG);
    iso_order_destroy(&order);
  }
  iso_log_quiet(quiet);
}

/* ---- any tree ---- */

static uint32_t seed = 7;
static int draw(int below) {
  seed = seed * 1664525u + 1013904223u;
  return (int)((seed >> 8) % (uint32_t)below);
}

/* Hosts below one switch are neighbours, at every level; the first stays first; ranks ascend along it. */
static void check_order(const iso_order *order, const char *first) {
  assert_string_equal(order->hosts[0].name, first);
  for (int level = 0; level < ISO_RACK_LEVELS; level++)
    for (int i = 0; i < order->count; i++)
      for (int j = i + 1; j < order->count; j++) {
        const iso_rack_path *a = &order->hosts[i].path, *b = &order->hosts[j].path;
        bool together = a->levels > level && b->levels > level;
        for (int l = 0; together && l <= level; l++) together = strcmp(a->names[l], b->names[l]) == 0;
        for (int between = i + 1; together && between < j; between++) {
          const iso_rack_path *c = &order->hosts[between].path;
          assert_true(c->levels > level);
          for (int l = 0; l <= level; l++) assert_string_equal(c->names[l], a->names[l]);
        }
      }
}

enum { HOSTS = 24 };
typedef struct drawing {
  char names[HOSTS][8];
  const char *given[HOSTS];
  int hosts;
} drawing;

static void shuffle(drawing *d, int from) {
  for (int i = from; i < d->hosts; i++) {
    const int with = i + draw(d->hosts - i);
    const char *moved = d->given[i];
    d->given[i] = d->given[with];
    d->given[with] = moved;
  }
}

/* Rows of racks of hosts, some directly below the first row; in `file`. */
static void draw_tree(drawing *d) {
  iso_string text = {0};
  const int racks = 1 + draw(6), rows = 1 + draw(3);
  int rack_of[HOSTS];
  d->hosts = 1 + draw(HOSTS);
  for (int i = 0; i < d->hosts; i++) {
    snprintf(d->names[i], sizeof d->names[i], "h%d", i);
    rack_of[i] = draw(racks + 1);
    d->given[i] = d->names[i];
  }
  for (int row = 0; row < rows; row++) {
    iso_string_printf(&text, "SwitchName=row%d Nodes=none%d", row, row);
    for (int i = 0; i < d->hosts && row == 0; i++)
      if (rack_of[i] == racks) iso_string_printf(&text, ",h%d", i);
    for (int rack = row, any = 0; rack < racks; rack += rows, any = 1)
      iso_string_printf(&text, "%srack%d", any ? "," : " Switches=", rack);
    iso_string_printf(&text, "\n");
  }
  for (int rack = 0; rack < racks; rack++) {
    iso_string_printf(&text, "SwitchName=rack%d Nodes=empty%d", rack, rack);
    for (int i = 0; i < d->hosts; i++)
      if (rack_of[i] == rack) iso_string_printf(&text, ",h%d", i);
    iso_string_printf(&text, "\n");
  }
  write_text(text.data);
  iso_string_fini(&text);
}

/* Each host has its ranks, ascending as the launcher numbers them; rank 0 is the launcher's. */
static void check_numbers(iso_order *order) {
  int host_of[4 * HOSTS], seen = 0;
  const int hosts = order->count, ranks = hosts + draw(3 * HOSTS);
  for (int r = 0; r < ranks; r++) host_of[r] = r < hosts ? r : draw(hosts);
  assert_int_equal(iso_order_number(order, host_of, ranks), ISO_OK);
  assert_int_equal(order->launched[0], 0);
  for (int i = 0; i < hosts; i++) {
    assert_int_equal(order->hosts[i].first, seen);
    for (int r = seen; r < seen + order->hosts[i].ranks; r++) {
      assert_int_equal(host_of[order->launched[r]], order->hosts[i].number);
      assert_true(r == seen || order->launched[r - 1] < order->launched[r]);
    }
    seen += order->hosts[i].ranks;
  }
  assert_int_equal(seen, ranks);
}

static void test_any_tree(void **state) {
  for (int round = 0; round < 200; round++) {
    char before[512], again[512];
    iso_order *order;
    drawing d;
    draw_tree(&d);
    shuffle(&d, 0); /* any of them has rank 0 */
    assert_int_equal(iso_order_make(d.given, d.hosts, file, &order), ISO_OK);
    check_order(order, d.given[0]);
    check_numbers(order);
    text_of(order, before, sizeof before);
    iso_order_destroy(&order);
    shuffle(&d, 1); /* the same hosts, given otherwise */
    assert_int_equal(iso_order_make(d.given, d.hosts, file, &order), ISO_OK);
    assert_string_equal(text_of(order, again, sizeof again), before);
    iso_order_destroy(&order);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_natural),  cmocka_unit_test(test_names),       cmocka_unit_test(test_as_given),
      cmocka_unit_test(test_files),    cmocka_unit_test(test_wrong_files), cmocka_unit_test(test_hostile_files),
      cmocka_unit_test(test_any_tree),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
