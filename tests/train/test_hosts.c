/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of hosts in the record of a start: read back as it was, by who asks for the newest; damage and other forms
 * count as none; records of before it have none.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "io/scratch.h"
#include "train/train.h"

static char parent[128], run[160];

static int set_up(void **state) {
  scratch_make(parent);
  snprintf(run, sizeof run, "%s/run", parent);
  return 0;
}

static int tear_down(void **state) {
  scratch_remove(parent);
  return 0;
}

/* Ranks of these hosts in turns, as mpirun --map-by node places them. */
static iso_order *make(const char *const *names, int hosts, int ranks) {
  iso_order *order;
  int host_of[ISO_MOST_RANKS];
  for (int r = 0; r < ranks; r++) host_of[r] = r % hosts;
  assert_int_equal(iso_order_make(names, hosts, NULL, &order), ISO_OK);
  assert_int_equal(iso_order_number(order, host_of, ranks), ISO_OK);
  return order;
}

static const char *const four[] = {"r1n1", "r2n1", "r1n2", "r2n2"};

static void what_is_put_is_read(void **state) {
  iso_string text = {0}, again = {0}, line = {0};
  iso_order *order = make(four, 4, 6);
  iso_order_put(order, &text);
  assert_string_equal(text.data,
                      "{\"by\": \"names\", \"list\": [{\"host\": \"r1n1\", \"racks\": [\"r1n*\"], \"ranks\": [0, 4]}, "
                      "{\"host\": \"r1n2\", \"racks\": [\"r1n*\"], \"ranks\": [2]}, "
                      "{\"host\": \"r2n1\", \"racks\": [\"r2n*\"], \"ranks\": [1, 5]}, "
                      "{\"host\": \"r2n2\", \"racks\": [\"r2n*\"], \"ranks\": [3]}]}");
  order->source = ISO_ORDER_FILE;
  snprintf(order->file, sizeof order->file, "/etc/a \"file\"\\");
  text.length = 0;
  iso_order_put(order, &text);
  iso_order *read = iso_order_parse(text.data);
  assert_non_null(read);
  iso_order_put(read, &again);
  assert_string_equal(again.data, text.data);
  assert_int_equal(read->hosts[3].first, 5);
  order->source = ISO_ORDER_NAMES;
  iso_order_print(order, &line);
  assert_string_equal(line.data, "by their names: r1n1 (ranks 0-1), r1n2 (2) | r2n1 (3-4), r2n2 (5)");
  iso_order_destroy(&order);
  iso_order_destroy(&read);
  iso_string_fini(&text);
  iso_string_fini(&again);
  iso_string_fini(&line);
}

static void other_forms_are_none(void **state) {
  static const char *const all[] = {
      "",
      "[]",
      "{}",
      "{\"list\": 1}",
      "{\"list\": []}",
      "{\"list\": [1]}",
      "{\"list\": [{\"host\": \"a\"}]}",
      "{\"list\": [{\"host\": \"\", \"racks\": [], \"ranks\": [0]}]}",
      "{\"list\": [{\"host\": 7, \"racks\": [], \"ranks\": [0]}]}",
      "{\"list\": [{\"host\": \"a\", \"racks\": [], \"ranks\": []}]}",
      "{\"list\": [{\"host\": \"a\", \"racks\": [1], \"ranks\": [0]}]}",
      "{\"list\": [{\"host\": \"a\", \"racks\": [], \"ranks\": [-1]}]}",
      "{\"list\": [{\"host\": \"a\", \"racks\": [], \"ranks\": [256]}]}",
      "{\"list\": [{\"host\": \"a\", \"racks\": [], \"ranks\": [1e99]}]}",
      "{\"list\": [{\"host\": \"a\", \"racks\": [], \"ranks\": [\"0\"]}]}",
      "{\"list\": [{\"host\": \"a\", \"racks\": [\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\"], \"ranks\": "
      "[0]}]}",
  };
  const bool quiet = iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(all); i++) assert_null(iso_order_parse(all[i]));
  iso_string many = {0}; /* more hosts, more ranks than there can be */
  for (int kind = 0; kind < 2; kind++) {
    many.length = 0;
    iso_string_printf(&many, "{\"list\": [");
    for (int i = 0; i < 300; i++)
      iso_string_printf(&many,
                        kind ? "%s{\"host\": \"a\", \"racks\": [], \"ranks\": [0]}"
                        : i  ? ", 0"
                             : "%s{\"host\": \"a\", \"racks\": [], \"ranks\": [0",
                        i ? ", " : "");
    iso_string_printf(&many, kind ? "]}" : "]}]}");
    assert_null(iso_order_parse(many.data));
  }
  iso_string_fini(&many);
  iso_log_quiet(quiet);
}

/* The newest start that has one; and a version that does not know the member reads the rest. */
static void a_start_keeps_it(void **state) {
  char uuid[37];
  int start;
  iso_string text = {0};
  iso_incarnation newest, in = {.number = 1, .tier = "scalar", .build = "test", .virtual_workers = 8, .ranks = 6};
  iso_order *order = make(four, 4, 6);
  iso_order_put(order, &text);
  iso_order_destroy(&order);
  assert_int_equal(iso_run_folder_open(run, uuid), ISO_OK);
  assert_null(iso_order_stored(run, &start));
  assert_int_equal(iso_incarnation_publish(run, &in), ISO_OK);
  assert_null(iso_order_stored(run, &start));
  in.number = 2;
  in.hosts = text.data;
  assert_int_equal(iso_incarnation_publish(run, &in), ISO_OK);
  in.number = 3;
  in.hosts = NULL;
  assert_int_equal(iso_incarnation_publish(run, &in), ISO_OK);
  order = iso_order_stored(run, &start);
  assert_non_null(order);
  assert_int_equal(start, 2);
  assert_int_equal(order->count, 4);
  assert_string_equal(order->hosts[2].name, "r2n1");
  assert_string_equal(order->hosts[2].path.names[0], "r2n*");
  assert_int_equal(order->launched[3], 1);
  iso_order_destroy(&order);
  assert_int_equal(iso_incarnation_newest(run, &newest), ISO_OK);
  assert_int_equal(newest.number, 3);
  in.number = 4; /* of another form: the start counts, its order does not */
  in.hosts = "{\"list\": 5}";
  assert_int_equal(iso_incarnation_publish(run, &in), ISO_OK);
  assert_null(iso_order_stored(run, &start));
  assert_int_equal(iso_incarnation_newest(run, &newest), ISO_OK);
  assert_null(newest.hosts);
  assert_int_equal(newest.ranks, 6);
  iso_string_fini(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_put_is_read),
      cmocka_unit_test(other_forms_are_none),
      cmocka_unit_test_setup_teardown(a_start_keeps_it, set_up, tear_down),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
