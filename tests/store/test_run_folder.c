/* SPDX-License-Identifier: Apache-2.0
 *
 * run.json and incarnations: published once, verified when read, never given anew to a folder that has a history.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/scratch.h"
#include "store/store.h"

static char parent[128], run[160];

static int setup(void **state) {
  iso_log_quiet(true);
  scratch_make(parent);
  snprintf(run, sizeof run, "%s/a/b", parent);
  return 0;
}

static int teardown(void **state) {
  scratch_remove(parent);
  return 0;
}

static const char *in_run(const char *name) {
  static char path[256];
  snprintf(path, sizeof path, "%.120s/%.120s", run, name);
  return path;
}

static void a_run_has_one_uuid(void **state) {
  char uuid[37], again[37], other[37];
  bool exists;
  assert_int_equal(iso_run_folder_read(run, uuid, &exists), ISO_OK);
  assert_false(exists);
  assert_false(iso_path_exists(run));
  assert_int_equal(iso_run_folder_open(run, uuid), ISO_OK);
  assert_int_equal(strlen(uuid), 36);
  assert_int_equal(uuid[14], '4');
  assert_non_null(strchr("89ab", uuid[19]));
  assert_int_equal(iso_run_folder_open(run, again), ISO_OK);
  assert_string_equal(uuid, again);
  assert_int_equal(iso_run_folder_read(run, again, &exists), ISO_OK);
  assert_true(exists);
  assert_string_equal(uuid, again);
  assert_int_equal(iso_run_folder_open(parent, other), ISO_OK);
  assert_string_not_equal(uuid, other);
}

/* Every flip and every truncation of run.json and of an incarnation is an error, and never a new identity. */
static void damage_is_an_error(void **state) {
  char uuid[37];
  iso_incarnation in = {.number = 1, .begins_after = 5, .tier = "avx2", .build = "b\"\n", .ranks = 2}, out;
  assert_int_equal(iso_run_folder_open(run, uuid), ISO_OK);
  assert_int_equal(iso_incarnation_publish(run, &in), ISO_OK);
  static const char *const names[] = {"run.json", "incarnations/0001.json"};
  for (int which = 0; which < 2; which++) {
    char *text;
    size_t bytes;
    assert_int_equal(iso_file_read(in_run(names[which]), &text, &bytes), ISO_OK);
    FILE *file = fopen(in_run(names[which]), "r+b");
    setvbuf(file, NULL, _IONBF, 0);
    for (size_t i = 0; i < 9 * bytes; i++) {
      size_t at = i % bytes;
      if (i < 8 * bytes) {
        fseek(file, (long)at, SEEK_SET);
        fputc(text[at] ^ (1 << i / bytes), file);
      } else {
        assert_int_equal(ftruncate(fileno(file), (off_t)at), 0);
      }
      iso_status status = which ? iso_incarnation_newest(run, &out) : iso_run_folder_open(run, uuid);
      assert_int_equal(status, ISO_ERR_FORMAT);
      fseek(file, 0, SEEK_SET);
      assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    }
    fclose(file);
    free(text);
  }
  assert_int_equal(iso_run_folder_open(run, uuid), ISO_OK);
  assert_int_equal(iso_incarnation_newest(run, &out), ISO_OK);
  assert_string_equal(out.build, "b\"\n");
  assert_int_equal(unlink(in_run("run.json")), 0);
  assert_int_equal(iso_run_folder_open(run, uuid), ISO_ERR_FORMAT);
  assert_non_null(strstr(iso_last_error(), "no run.json"));
}

static void incarnations_only_grow(void **state) {
  char uuid[37];
  iso_incarnation newest,
      in = {.number = 1, .begins_after = 0, .optimizer_version = 3, .virtual_workers = 4, .ranks = 2};
  snprintf(in.config_digest, sizeof in.config_digest, "%064d", 5);
  snprintf(in.tier, sizeof in.tier, "avx512bf16");
  snprintf(in.build, sizeof in.build, "%040d", 6);
  assert_int_equal(iso_run_folder_open(run, uuid), ISO_OK);
  assert_int_equal(iso_incarnation_newest(run, &newest), ISO_OK);
  assert_int_equal(newest.number, 0);
  assert_int_equal(iso_incarnation_check(run, 0), ISO_OK);
  for (in.number = 1; in.number <= 12; in.number++) {
    in.begins_after = 100 - in.number;
    assert_int_equal(iso_incarnation_publish(run, &in), ISO_OK);
    assert_int_equal(iso_incarnation_publish(run, &in), ISO_ERR_BUSY);
    assert_int_equal(iso_incarnation_newest(run, &newest), ISO_OK);
    assert_memory_equal(&newest, &in, sizeof in);
    assert_int_equal(iso_incarnation_check(run, in.number), ISO_OK);
    assert_int_equal(iso_incarnation_check(run, in.number - 1), ISO_ERR_BUSY);
  }
  in.number = 7;
  assert_int_equal(iso_incarnation_publish(run, &in), ISO_ERR_BUSY);
  in.number = 0;
  assert_int_equal(iso_incarnation_publish(run, &in), ISO_ERR_INTERNAL);

  iso_arena *arena = iso_arena_create();
  iso_incarnation *list;
  size_t count;
  scratch_write(in_run("incarnations/0013.json.0123.tmp"), "half", 4); /* what a killed start leaves */
  assert_int_equal(iso_incarnation_list(arena, run, &list, &count), ISO_OK);
  assert_int_equal(count, 12);
  for (size_t i = 0; i < count; i++) assert_int_equal(list[i].begins_after, 99 - (int64_t)i);
  iso_arena_destroy(&arena);

  /* verify names what is damaged and what is missing */
  char *text;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  assert_int_equal(iso_snapshot_verify(run, out, NULL), ISO_OK);
  assert_int_equal(unlink(in_run("incarnations/0004.json")), 0);
  assert_int_equal(iso_snapshot_verify(run, out, NULL), ISO_ERR_CHECK);
  scratch_write(in_run("incarnations/0009.json"), "{}", 2);
  assert_int_equal(iso_snapshot_verify(run, out, NULL), ISO_ERR_CHECK);
  fclose(out);
  assert_string_equal(text, "incarnations/0004.json: the file is missing\n"
                            "incarnations/0009.json: too short for a record: cut or never written\n");
  free(text);
}

/* A run whose snapshots' paths are too long to be found again must not begin: at the limit it works, above it is
 * refused. */
static void a_long_path_is_refused_at_once(void **state) {
  (void)state;
  const size_t most = ISO_SNAPSHOT_PATH - sizeof "/snapshots/step-9007199254740992-2147483647";
  char path[ISO_SNAPSHOT_PATH + 2], uuid[37];
  size_t length = (size_t)snprintf(path, sizeof path, "%s/", run);
  while (length < most) {
    path[length] = length % 100 == 0 && length + 1 < most ? '/' : 'd';
    length++;
  }
  path[length] = 0;
  assert_int_equal(iso_path_make(path), ISO_OK);
  assert_int_equal(iso_run_folder_open(path, uuid), ISO_OK);
  path[length++] = 'd';
  path[length] = 0;
  assert_int_equal(iso_path_make(path), ISO_OK);
  assert_int_equal(iso_run_folder_open(path, uuid), ISO_ERR_CONFIG);
  assert_non_null(strstr(iso_last_error(), "shorten it"));
}

static void setting_aside_never_collides(void **state) {
  char uuid[37], moved[256], again[256];
  assert_int_equal(iso_run_folder_open(run, uuid), ISO_OK);
  for (int i = 0; i < 3; i++) {
    scratch_write(in_run("metrics.jsonl"), "x", 1);
    assert_int_equal(iso_run_set_aside(run, "metrics.jsonl", moved), ISO_OK);
    assert_false(iso_path_exists(in_run("metrics.jsonl")));
    assert_true(iso_path_exists(in_run(moved)));
    if (i) assert_string_not_equal(moved, again);
    memcpy(again, moved, sizeof again);
  }
  assert_int_equal(iso_run_set_aside(run, "metrics.jsonl", moved), ISO_ERR_NOT_FOUND);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_run_has_one_uuid, setup, teardown),
      cmocka_unit_test_setup_teardown(damage_is_an_error, setup, teardown),
      cmocka_unit_test_setup_teardown(incarnations_only_grow, setup, teardown),
      cmocka_unit_test_setup_teardown(a_long_path_is_refused_at_once, setup, teardown),
      cmocka_unit_test_setup_teardown(setting_aside_never_collides, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
