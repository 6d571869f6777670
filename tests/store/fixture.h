/* SPDX-License-Identifier: Apache-2.0
 *
 * A small training state and a run folder for the tests of store.
 */
#ifndef ISO_TESTS_STORE_FIXTURE_H
#define ISO_TESTS_STORE_FIXTURE_H

#include "io/scratch.h"
#include "store/store.h"

#include <dirent.h>

enum { FIXTURE_ELEMENTS = 6 + 4 + 1 + 0 + 5 };

static const iso_tensor_out fixture_tensors[] = {
    {"layers.1.weight", ISO_F32, 2, {2, 3}, NULL},
    {"layers.0.weight", ISO_F32, 1, {4}, NULL},
    {"scale", ISO_F32, 0, {0}, NULL},
    {"none", ISO_F32, 2, {0, 7}, NULL},
    {"a\"b\xc3\xa9", ISO_F32, 1, {5}, NULL},
};

typedef struct fixture {
  char parent[128], run[160];
  float arrays[3][FIXTURE_ELEMENTS];
  iso_cursor cursors[3];
  iso_state state;
  iso_snapshot_info info;
} fixture;

/* Other values for each step. */
static inline void fixture_fill(fixture *f, int64_t step) {
  for (int a = 0; a < 3; a++) {
    for (int i = 0; i < FIXTURE_ELEMENTS; i++) {
      f->arrays[a][i] = (float)iso_rng_normal(5, ISO_RNG_TEST, (uint64_t)step, (uint64_t)(a * FIXTURE_ELEMENTS + i));
    }
  }
  for (int i = 0; i < 3; i++) f->cursors[i] = (iso_cursor){i, 10 * i + step, step * 1000003};
  f->info.step = step;
  f->info.adam_step = step - step / 7;
  f->info.tokens = step * INT64_C(1000003);
  f->info.refused = step / 7;
}

static inline void fixture_init(fixture *f) {
  memset(f, 0, sizeof *f);
  scratch_make(f->parent);
  snprintf(f->run, sizeof f->run, "%s/run", f->parent);
  f->state = (iso_state){fixture_tensors, ISO_COUNT(fixture_tensors), FIXTURE_ELEMENTS, f->arrays[0], f->arrays[1],
                         f->arrays[2]};
  f->info = (iso_snapshot_info){.incarnation = 1, .cursors = f->cursors, .cursor_count = 3};
  snprintf(f->info.config_digest, sizeof f->info.config_digest, "%064d", 12);
  snprintf(f->info.tokenizer_fingerprint, sizeof f->info.tokenizer_fingerprint, "%064d", 34);
  snprintf(f->info.tier, sizeof f->info.tier, "avx2");
  char uuid[37];
  assert_int_equal(iso_run_folder_open(f->run, uuid), ISO_OK);
}

static inline void fixture_fini(fixture *f) {
  scratch_remove(f->parent);
}

static inline void fixture_write(fixture *f, int64_t step) {
  fixture_fill(f, step);
  assert_int_equal(iso_snapshot_write(f->run, &f->state, &f->info), ISO_OK);
}

static inline void fixture_begin(fixture *f, int number, int64_t after) {
  iso_incarnation in = {.number = number,
                        .begins_after = after,
                        .tier = "avx2",
                        .optimizer_version = 1,
                        .virtual_workers = 1,
                        .ranks = 1};
  assert_int_equal(iso_incarnation_publish(f->run, &in), ISO_OK);
  f->info.incarnation = number;
}

/* Path of the only entry of run/`folder` that begins with `prefix`. */
static inline void fixture_path(const fixture *f, const char *folder, const char *prefix, char out[512]) {
  char where[300];
  snprintf(where, sizeof where, "%s/%s", f->run, folder);
  DIR *open_folder = opendir(where);
  assert_non_null(open_folder);
  int matches = 0;
  for (struct dirent *e; (e = readdir(open_folder));) {
    if (strncmp(e->d_name, prefix, strlen(prefix)) != 0) continue;
    snprintf(out, 512, "%.250s/%.250s", where, e->d_name);
    matches++;
  }
  closedir(open_folder);
  assert_int_equal(matches, 1);
}

static inline int fixture_count(const fixture *f, const char *folder) {
  char where[300];
  int count = 0;
  snprintf(where, sizeof where, "%s/%s", f->run, folder);
  DIR *open_folder = opendir(where);
  if (!open_folder) return 0;
  for (struct dirent *e; (e = readdir(open_folder));) count += e->d_name[0] != '.';
  closedir(open_folder);
  return count;
}

/* The step that find chooses, -1 when there is none; it must load and hold that step's values. Damaged ones go to
 * aside/. */
static inline int64_t fixture_find(fixture *f, int64_t at_step) {
  char folder[512];
  iso_snapshot_info info;
  iso_string damaged = {0};
  bool found;
  assert_int_equal(iso_snapshot_find(f->run, at_step, &damaged, folder, &info, &found), ISO_OK);
  assert_int_equal(iso_snapshot_set_damaged_aside(f->run, &damaged), ISO_OK);
  iso_string_fini(&damaged);
  if (!found) return -1;
  fixture want = *f;
  fixture_fill(&want, info.step);
  assert_int_equal(info.adam_step, want.info.adam_step);
  assert_int_equal(info.tokens, want.info.tokens);
  assert_int_equal(info.refused, want.info.refused);
  assert_int_equal(info.cursor_count, 3);
  assert_memory_equal(info.cursors, want.cursors, sizeof want.cursors);
  assert_string_equal(info.config_digest, f->info.config_digest);
  assert_string_equal(info.tokenizer_fingerprint, f->info.tokenizer_fingerprint);
  assert_string_equal(info.tier, "avx2");
  float got[3][FIXTURE_ELEMENTS];
  memset(got, 0xff, sizeof got);
  iso_state state = {fixture_tensors, ISO_COUNT(fixture_tensors), FIXTURE_ELEMENTS, got[0], got[1], got[2]};
  assert_int_equal(iso_snapshot_load(folder, &state), ISO_OK);
  assert_memory_equal(got, want.arrays, sizeof got);
  int64_t step = info.step;
  iso_snapshot_info_fini(&info);
  return step;
}

#endif
