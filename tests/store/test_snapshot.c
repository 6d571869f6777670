/* SPDX-License-Identifier: Apache-2.0
 *
 * Snapshots: written, found, loaded, verified, pruned; damage of every kind is seen. One test per invariant of store.h.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/fixture.h"

static fixture f;

static int setup(void **state) {
  iso_log_quiet(true);
  fixture_init(&f);
  return 0;
}

static int teardown(void **state) {
  fixture_fini(&f);
  return 0;
}

static char *read_whole(const char *path, size_t *bytes) {
  char *data;
  assert_int_equal(iso_file_read(path, &data, bytes), ISO_OK);
  return data;
}

/* Output of verify, and its status. */
static iso_status verify(char **text) {
  size_t length;
  FILE *out = open_memstream(text, &length);
  iso_status status = iso_snapshot_verify(f.run, out, NULL);
  fclose(out);
  return status;
}

static void a_snapshot_comes_back_whole(void **state) {
  assert_int_equal(fixture_find(&f, -1), -1);
  fixture_begin(&f, 1, 0);
  fixture_write(&f, 10);
  fixture_write(&f, 20);
  fixture_write(&f, 123456789);
  assert_int_equal(fixture_find(&f, -1), 123456789);
  assert_int_equal(fixture_find(&f, 10), 10);
  assert_int_equal(fixture_find(&f, 11), 10); /* at or before */
  assert_int_equal(fixture_find(&f, 9), -1);
  assert_int_equal(fixture_count(&f, "aside"), 0);

  char *text;
  assert_int_equal(verify(&text), ISO_OK);
  assert_string_equal(text, "");
  free(text);

  /* Moments may be left out; the file is a model for any safetensors reader. */
  char folder[512], file[512];
  float master[FIXTURE_ELEMENTS];
  iso_state only = {fixture_tensors, ISO_COUNT(fixture_tensors), FIXTURE_ELEMENTS, master, NULL, NULL};
  fixture_path(&f, "snapshots", "step-00000020", folder);
  assert_int_equal(iso_snapshot_load(folder, &only), ISO_OK);
  fixture_fill(&f, 20);
  assert_memory_equal(master, f.arrays[0], sizeof master);
  fixture_path(&f, "snapshots/step-00000020-0001", "state-", file);
  iso_safetensors *model;
  assert_int_equal(iso_safetensors_open(file, &model), ISO_OK);
  assert_int_equal(iso_safetensors_count(model), 15);
  const iso_safetensor *t = iso_safetensors_find(model, "layers.1.weight");
  assert_non_null(t);
  assert_int_equal(t->offset % 4096, 0);
  assert_memory_equal(t->data, f.arrays[0], 24);
  assert_non_null(iso_safetensors_find(model, "moment2.scale"));
  struct stat info;
  assert_int_equal(stat(file, &info), 0);
  assert_true(info.st_size <= iso_snapshot_bytes(&f.state) && info.st_size + 16384 > iso_snapshot_bytes(&f.state));
  iso_safetensors_close(&model);
}

/* Invariant 1: every single-bit flip and every truncation of every file is seen, by find and by load alike. */
static void all_flips_and_truncations_are_seen(void **state) {
  static const char *const prefixes[] = {"state-", "manifest.json"};
  fixture_write(&f, 7);
  size_t undetected = 0, tried = 0;
  char folder[512], path[512];
  fixture_path(&f, "snapshots", "step-", folder);
  for (int which = 0; which < 2; which++) {
    fixture_path(&f, "snapshots/step-00000007-0001", prefixes[which], path);
    size_t bytes;
    char *good = read_whole(path, &bytes);
    FILE *file = fopen(path, "r+b");
    setvbuf(file, NULL, _IONBF, 0);
    for (size_t flip = 0; flip < 8 * bytes + bytes; flip++) {
      size_t at = flip < 8 * bytes ? flip / 8 : flip - 8 * bytes;
      /* the padding of the header is long and all alike: every 7th bit of it will do */
      if (flip < 8 * bytes && good[at] == ' ' && at > 16 && good[at - 16] == ' ' && flip % 7) continue;
      if (flip >= 8 * bytes && bytes - at > 600 && at % 5) continue;
      if (flip < 8 * bytes) {
        fseek(file, (long)at, SEEK_SET);
        fputc(good[at] ^ (1 << flip % 8), file);
      } else {
        assert_int_equal(truncate(path, (off_t)at), 0);
      }
      iso_manifest manifest;
      iso_string faults = {0};
      fixture got = f;
      iso_state into = f.state;
      into.master = got.arrays[0];
      into.moment1 = got.arrays[1];
      into.moment2 = got.arrays[2];
      tried++;
      undetected += iso_snapshot_examine(folder, NULL, ISO_DEEP, &manifest, &faults) != ISO_ERR_FORMAT || !faults.length;
      undetected += iso_snapshot_load(folder, &into) == ISO_OK;
      iso_manifest_fini(&manifest);
      iso_string_fini(&faults);
      if (flip < 8 * bytes) {
        fseek(file, (long)at, SEEK_SET);
        fputc(good[at], file);
      } else {
        fseek(file, 0, SEEK_SET);
        assert_int_equal(fwrite(good, 1, bytes, file), bytes);
      }
    }
    fclose(file);
    free(good);
  }
  assert_int_equal(undetected, 0);
  assert_true(tried > 10000);
  assert_int_equal(fixture_find(&f, -1), 7); /* all was put back */
}

/* Invariant 2 */
static void writing_again_is_no_op_or_refused(void **state) {
  char first[512], second[512];
  fixture_write(&f, 5);
  fixture_path(&f, "snapshots/step-00000005-0001", "state-", first);
  snprintf(f.info.parent, sizeof f.info.parent, "step-00000005-0001");
  fixture_write(&f, 5); /* equal but for where it came from */
  fixture_path(&f, "snapshots/step-00000005-0001", "state-", second);
  assert_string_equal(first, second);
  f.arrays[1][3] += 1;
  assert_int_equal(iso_snapshot_write(f.run, &f.state, &f.info), ISO_ERR_MISMATCH);
  fixture_fill(&f, 5);
  f.cursors[0].offset++;
  assert_int_equal(iso_snapshot_write(f.run, &f.state, &f.info), ISO_ERR_MISMATCH);
  assert_int_equal(fixture_find(&f, -1), 5);

  /* a damaged one never blocks a new one */
  assert_int_equal(truncate(first, 100), 0);
  fixture_write(&f, 5);
  assert_int_equal(fixture_count(&f, "aside"), 1);
  assert_int_equal(fixture_find(&f, -1), 5);

  /* an unfinished attempt does not either: its files stay, those of the new attempt come beside them */
  char path[512], manifest[512];
  fixture_path(&f, "snapshots/step-00000005-0001", "state-", path);
  fixture_path(&f, "snapshots/step-00000005-0001", "manifest.json", manifest);
  assert_int_equal(unlink(manifest), 0);
  assert_int_equal(fixture_find(&f, -1), -1);
  fixture_write(&f, 5);
  assert_int_equal(fixture_count(&f, "snapshots/step-00000005-0001"), 3);
  assert_int_equal(fixture_find(&f, -1), 5);
}

static void impossible_states_are_refused(void **state) {
  const iso_tensor_out moment[] = {{"moment1.x", ISO_F32, 1, {4}, NULL}}, half[] = {{"x", ISO_BF16, 1, {4}, NULL}},
                       twice[] = {{"x", ISO_F32, 1, {2}, NULL}, {"x", ISO_F32, 1, {2}, NULL}};
  fixture_fill(&f, 1);
  iso_state s = {moment, 1, 4, f.arrays[0], f.arrays[1], f.arrays[2]};
  assert_int_equal(iso_snapshot_write(f.run, &s, &f.info), ISO_ERR_FORMAT);
  assert_int_equal(iso_snapshot_bytes(&s), -1);
  s.tensors = half;
  assert_int_equal(iso_snapshot_write(f.run, &s, &f.info), ISO_ERR_INTERNAL);
  s.tensors = twice;
  s.tensor_count = 2;
  assert_int_equal(iso_snapshot_write(f.run, &s, &f.info), ISO_ERR_FORMAT);
  s = f.state;
  s.elements++;
  assert_int_equal(iso_snapshot_write(f.run, &s, &f.info), ISO_ERR_INTERNAL);
  s = f.state;
  s.moment2 = NULL;
  assert_int_equal(iso_snapshot_write(f.run, &s, &f.info), ISO_ERR_INTERNAL);
  f.info.tokens = INT64_C(1) << 54;
  assert_int_equal(iso_snapshot_write(f.run, &f.state, &f.info), ISO_ERR_INTERNAL);
  assert_int_equal(fixture_count(&f, "snapshots"), 0);
  assert_int_equal(iso_snapshot_write(f.parent, &f.state, &f.info), ISO_ERR_NOT_FOUND);
}

/* Invariant 4: the state and the snapshot must be of the same model. */
static void other_models_are_refused(void **state) {
  char folder[512];
  float a[3][64];
  fixture_write(&f, 3);
  fixture_path(&f, "snapshots", "step-", folder);
  iso_tensor_out tensors[ISO_COUNT(fixture_tensors) + 1];
  memcpy(tensors, fixture_tensors, sizeof fixture_tensors);
  iso_state s = {tensors, ISO_COUNT(fixture_tensors), FIXTURE_ELEMENTS, a[0], a[1], a[2]};
  tensors[0].name = "layers.2.weight";
  assert_int_equal(iso_snapshot_load(folder, &s), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "layers.1.weight"));
  tensors[0] = fixture_tensors[0];
  tensors[0].shape[0] = 3;
  tensors[0].shape[1] = 2;
  assert_int_equal(iso_snapshot_load(folder, &s), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "another shape"));
  tensors[0].shape[0] = 4;
  s.elements += 2;
  assert_int_equal(iso_snapshot_load(folder, &s), ISO_ERR_MISMATCH);
  tensors[0] = fixture_tensors[0];
  tensors[5] = (iso_tensor_out){"more", ISO_F32, 1, {2}, NULL};
  s.tensor_count = 6;
  assert_int_equal(iso_snapshot_load(folder, &s), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "'more' is not in it"));
  s.tensor_count = 4;
  s.elements = FIXTURE_ELEMENTS - 5;
  assert_int_equal(iso_snapshot_load(folder, &s), ISO_ERR_MISMATCH);
  assert_int_equal(iso_snapshot_load(f.run, &s), ISO_ERR_FORMAT);

  /* another order of the same tensors is the same model */
  iso_tensor_out reversed[5];
  for (int i = 0; i < 5; i++) reversed[i] = fixture_tensors[4 - i];
  s = (iso_state){reversed, 5, FIXTURE_ELEMENTS, a[0], a[1], a[2]};
  assert_int_equal(iso_snapshot_load(folder, &s), ISO_OK);
  char other[65], own[65];
  iso_state_digest(&s, 3, other);
  iso_state_digest(&f.state, 3, own);
  assert_string_equal(other, own);
}

/* Invariant 4: a manifest that seals nonsense (elements twice, missing, or a range split over files) */
static void coverage_is_checked(void **state) {
  char folder[512], path[512];
  fixture_write(&f, 4);
  fixture_path(&f, "snapshots", "step-", folder);
  snprintf(path, sizeof path, "%.400s/manifest.json", folder);
  iso_manifest good, unused;
  iso_string faults = {0};
  assert_int_equal(iso_manifest_read(folder, &good, &faults), ISO_OK);
  iso_manifest_cover *covers = good.files[0].covers;
  for (int fault = 0; fault < 7; fault++) {
    iso_manifest_cover kept[3] = {covers[0], covers[1], covers[2]};
    int64_t elements = good.elements;
    size_t count = good.files[0].cover_count;
    if (fault == 0) covers[0].begin = 1;
    if (fault == 1) covers[0].end -= 1;
    if (fault == 2) covers[1].tensor = covers[0].tensor;
    if (fault == 3) good.files[0].cover_count--;
    if (fault == 4) good.elements++;
    if (fault == 5) covers[0].tensor = "moment1.unknown";
    if (fault == 6) good.uuid[0] ^= 1;
    iso_string text = {0};
    assert_int_equal(iso_manifest_render(&good, &text), ISO_OK);
    scratch_write(path, text.data, text.length);
    iso_string_fini(&text);
    iso_string_fini(&faults);
    char uuid[37];
    assert_int_equal(iso_run_folder_open(f.run, uuid), ISO_OK);
    assert_int_equal(iso_snapshot_examine(folder, uuid, ISO_DEEP, &unused, &faults), ISO_ERR_FORMAT);
    assert_true(faults.length > 0);
    iso_manifest_fini(&unused);
    if (fault < 6) {
      fixture got = f;
      iso_state into = f.state;
      into.master = got.arrays[0];
      assert_int_not_equal(iso_snapshot_load(folder, &into), ISO_OK);
    }
    if (fault == 6) good.uuid[0] ^= 1;
    memcpy(covers, kept, sizeof kept);
    good.elements = elements;
    good.files[0].cover_count = count;
  }
  iso_string text = {0};
  assert_int_equal(iso_manifest_render(&good, &text), ISO_OK);
  scratch_write(path, text.data, text.length);
  iso_string_fini(&text);
  iso_string_fini(&faults);
  iso_manifest_fini(&good);
  assert_int_equal(fixture_find(&f, -1), 4);
}

/* Two files that share a tensor by element ranges, as ranks will write them. */
static void ranges_over_two_files_load(void **state) {
  char folder[512], path[600];
  fixture_begin(&f, 1, 0);
  fixture_write(&f, 6);
  fixture_path(&f, "snapshots", "step-", folder);
  iso_manifest m;
  iso_string faults = {0}, text = {0};
  assert_int_equal(iso_manifest_read(folder, &m, &faults), ISO_OK);
  iso_manifest_file files[2];
  iso_manifest_cover covers[2][6];
  static const int64_t cut[3] = {0, 3, 16};
  static const char *const names[] = {"w", "moment1.w", "moment2.w"};
  static const iso_tensor_out one[] = {{"w", ISO_F32, 1, {16}, NULL}};
  for (int i = 0; i < 2; i++) {
    iso_tensor_out tensors[3];
    for (int a = 0; a < 3; a++) {
      tensors[a] = (iso_tensor_out){names[a], ISO_F32, 1, {cut[i + 1] - cut[i]}, f.arrays[a] + cut[i]};
      covers[i][a] = (iso_manifest_cover){names[a], cut[i], cut[i + 1]};
    }
    char name[64];
    snprintf(name, sizeof name, "state-%032d-%05d.safetensors", 7, i);
    files[i] = (iso_manifest_file){iso_arena_strdup(m.arena, name), 0, 0, covers[i], 3};
    snprintf(path, sizeof path, "%.500s/%s", folder, name);
    assert_int_equal(iso_safetensors_write(path, tensors, 3, NULL, &files[i].crc, &files[i].bytes), ISO_OK);
  }
  m.files = files;
  m.file_count = 2;
  snprintf(path, sizeof path, "%.500s/manifest.json", folder);
  assert_int_equal(iso_manifest_render(&m, &text), ISO_OK);
  scratch_write(path, text.data, text.length);
  float got[3][16];
  iso_state s = {one, 1, 16, got[0], got[1], got[2]};
  assert_int_equal(iso_snapshot_load(folder, &s), ISO_OK);
  assert_memory_equal(got, f.arrays, sizeof got);
  char *lines;
  assert_int_equal(verify(&lines), ISO_OK);
  free(lines);
  iso_string_fini(&text);
  iso_string_fini(&faults);
  iso_manifest_fini(&m);
}

/* Invariant 5 */
static void damaged_ones_are_set_aside(void **state) {
  char path[512], moved[512];
  fixture_begin(&f, 1, 0);
  for (int step = 10; step <= 50; step += 10) fixture_write(&f, step);
  fixture_path(&f, "snapshots/step-00000050-0001", "state-", path);
  assert_int_equal(truncate(path, 5000), 0);
  fixture_path(&f, "snapshots/step-00000040-0001", "manifest.json", path);
  scratch_write(path, "", 0);
  fixture_path(&f, "snapshots/step-00000030-0001", "state-", path);
  assert_int_equal(unlink(path), 0);
  fixture_path(&f, "snapshots/step-00000020-0001", "manifest.json", path);
  assert_int_equal(unlink(path), 0);

  char *text;
  assert_int_equal(verify(&text), ISO_ERR_CHECK);
  assert_non_null(strstr(text, "snapshots/step-00000050-0001/state-"));
  assert_non_null(strstr(text, "it has 5000 bytes, the manifest says "));
  assert_non_null(strstr(text, "snapshots/step-00000040-0001/manifest.json: too short"));
  assert_non_null(strstr(text, ".safetensors: the file is missing"));
  int lines = 0;
  for (char *c = text; *c; c++) lines += *c == '\n';
  assert_int_equal(lines, 3);
  free(text);

  assert_int_equal(fixture_find(&f, -1), 10);
  assert_int_equal(fixture_count(&f, "aside"), 3);
  fixture_path(&f, "aside", "step-00000050-0001-", moved); /* kept, under its own name */
  assert_int_equal(fixture_count(&f, "snapshots"), 2);     /* step 20 was unfinished, not damaged */
  assert_int_equal(fixture_find(&f, -1), 10);
}

static void foreign_snapshots_are_set_aside(void **state) {
  fixture other;
  char from[512], to[600];
  fixture_init(&other);
  fixture_write(&other, 90);
  fixture_write(&f, 10);
  fixture_path(&other, "snapshots", "step-", from);
  snprintf(to, sizeof to, "%s/snapshots/step-00000090-0001", f.run);
  assert_int_equal(rename(from, to), 0);
  char *text;
  assert_int_equal(verify(&text), ISO_ERR_CHECK);
  assert_non_null(strstr(text, "it belongs to run "));
  free(text);
  assert_int_equal(fixture_find(&f, -1), 10);
  fixture_fini(&other);

  /* and one under another step's name */
  fixture_path(&f, "snapshots", "step-", from);
  snprintf(to, sizeof to, "%s/snapshots/step-00000011-0001", f.run);
  assert_int_equal(rename(from, to), 0);
  assert_int_equal(fixture_find(&f, -1), -1);
  assert_int_equal(fixture_count(&f, "aside"), 2);
  snprintf(to, sizeof to, "%s/snapshots/notes.txt", f.run);
  scratch_write(to, "x", 1);
  assert_int_equal(verify(&text), ISO_ERR_CHECK);
  assert_non_null(strstr(text, "snapshots/notes.txt"));
  free(text);
}

/* Invariant 7 */
static void void_snapshots_do_not_count(void **state) {
  fixture_begin(&f, 1, 0);
  for (int step = 10; step <= 40; step += 10) fixture_write(&f, step);
  assert_int_equal(fixture_find(&f, -1), 40);
  fixture_begin(&f, 2, 20); /* went back to step 20 */
  assert_int_equal(fixture_find(&f, -1), 20);
  assert_int_equal(fixture_find(&f, 30), 20);
  fixture_write(&f, 30);
  assert_int_equal(fixture_find(&f, -1), 30);
  assert_int_equal(fixture_find(&f, 30), 30);

  /* a process of incarnation 1 that wakes up late may not publish, and what it has published stays void */
  f.info.incarnation = 1;
  fixture_fill(&f, 50);
  assert_int_equal(iso_snapshot_write(f.run, &f.state, &f.info), ISO_ERR_BUSY);
  assert_non_null(strstr(iso_last_error(), "incarnation 2 has begun"));
  assert_int_equal(fixture_find(&f, -1), 30);

  /* incarnation 3 goes on after 30: nothing of 1 beyond 20 comes back */
  fixture_begin(&f, 3, 30);
  assert_int_equal(fixture_find(&f, -1), 30);
  fixture_begin(&f, 4, 10);
  assert_int_equal(fixture_find(&f, -1), 10);
  assert_int_equal(iso_snapshot_prune(f.run, 4, 5, 0), ISO_OK);
  assert_int_equal(fixture_count(&f, "snapshots"), 1);
  assert_int_equal(fixture_count(&f, "aside"), 4);
}

static void pruning_keeps_what_it_says(void **state) {
  char path[512];
  assert_int_equal(iso_snapshot_prune(f.run, 4, 0, 0), ISO_ERR_CONFIG);
  assert_int_equal(iso_snapshot_prune(f.run, 4, 2, 0), ISO_OK);
  for (int step = 10; step <= 80; step += 10) fixture_write(&f, step);
  assert_int_equal(iso_snapshot_prune(f.run, 4, 2, 30), ISO_OK);
  assert_int_equal(fixture_count(&f, "snapshots"), 4); /* 80 70 60 30 */
  assert_int_equal(fixture_find(&f, 30), 30);
  assert_int_equal(fixture_find(&f, 60), 60);
  assert_int_equal(fixture_find(&f, 70), 70);

  /* the newest is damaged: it is not counted, and what leads on from the last good one stays */
  fixture_path(&f, "snapshots/step-00000080-0001", "state-", path);
  assert_int_equal(truncate(path, 4000), 0);
  assert_int_equal(iso_snapshot_prune(f.run, 4, 1, 0), ISO_OK);
  assert_int_equal(fixture_count(&f, "snapshots"), 2); /* 80, damaged and kept, and 70 */
  assert_int_equal(fixture_count(&f, "aside"), 0);
  assert_int_equal(fixture_find(&f, -1), 70);

  /* all damaged: nothing is deleted; unfinished attempts older than a good one go */
  fixture_write(&f, 90);
  fixture_path(&f, "snapshots/step-00000070-0001", "manifest.json", path);
  assert_int_equal(unlink(path), 0);
  fixture_path(&f, "snapshots/step-00000090-0001", "state-", path);
  assert_int_equal(truncate(path, 4000), 0);
  assert_int_equal(iso_snapshot_prune(f.run, 4, 1, 0), ISO_OK);
  assert_int_equal(fixture_count(&f, "snapshots"), 2);
  fixture_write(&f, 100);
  assert_int_equal(iso_snapshot_prune(f.run, 4, 1, 0), ISO_OK);
  assert_int_equal(fixture_find(&f, -1), 100);
  assert_int_equal(fixture_count(&f, "snapshots"), 1);
}

/* By the definition in digest.c, computed with Python's hashlib. */
static void digest_has_known_answers(void **state) {
  float master[3] = {1.0f, -2.0f, 0.5f}, moment1[3] = {0.25f, 0, -0.0f}, moment2[3] = {1e-8f, 3, 4};
  const iso_tensor_out tensors[] = {{"b", ISO_F32, 1, {2}, NULL}, {"a", ISO_F32, 0, {0}, NULL}};
  iso_state s = {tensors, 2, 3, master, moment1, moment2};
  char hex[65];
  iso_state_digest(&s, 40, hex);
  assert_string_equal(hex, "697fd90991f9d988d855dc333ac15a848cf5dca20d704e9ddc9d7f707ec8dca6");
  const iso_tensor_out swapped[] = {tensors[1], tensors[0]};
  float master2[3] = {0.5f, 1.0f, -2.0f}, moment12[3] = {-0.0f, 0.25f, 0}, moment22[3] = {4, 1e-8f, 3};
  iso_state s2 = {swapped, 2, 3, master2, moment12, moment22};
  char other[65];
  iso_state_digest(&s2, 40, other);
  assert_string_equal(hex, other);
  iso_state_digest(&s2, 41, other);
  assert_string_not_equal(hex, other);
  moment12[0] = 0.0f;
  iso_state_digest(&s2, 40, other);
  assert_string_not_equal(hex, other);
  iso_state none = {NULL, 0, 0, NULL, NULL, NULL};
  iso_state_digest(&none, 0, hex);
  assert_string_equal(hex, "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc");
  static const iso_tensor_out large[] = {{"large", ISO_F32, 1, {3000}, NULL}};
  static float zeros[3000];
  iso_state with = {large, 1, 3000, zeros, zeros, zeros}, without = {large, 1, 3000, zeros, NULL, NULL};
  iso_state_digest(&with, 1, hex);
  iso_state_digest(&without, 1, other);
  assert_string_equal(hex, other);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_snapshot_comes_back_whole, setup, teardown),
      cmocka_unit_test_setup_teardown(all_flips_and_truncations_are_seen, setup, teardown),
      cmocka_unit_test_setup_teardown(writing_again_is_no_op_or_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(impossible_states_are_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(other_models_are_refused, setup, teardown),
      cmocka_unit_test_setup_teardown(coverage_is_checked, setup, teardown),
      cmocka_unit_test_setup_teardown(ranges_over_two_files_load, setup, teardown),
      cmocka_unit_test_setup_teardown(damaged_ones_are_set_aside, setup, teardown),
      cmocka_unit_test_setup_teardown(foreign_snapshots_are_set_aside, setup, teardown),
      cmocka_unit_test_setup_teardown(void_snapshots_do_not_count, setup, teardown),
      cmocka_unit_test_setup_teardown(pruning_keeps_what_it_says, setup, teardown),
      cmocka_unit_test_setup_teardown(digest_has_known_answers, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
