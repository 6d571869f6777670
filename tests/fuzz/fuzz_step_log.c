/* SPDX-License-Identifier: Apache-2.0
 *
 * libFuzzer: any bytes as a segment of the step log. What its reader calls a step can be read with every element and
 * cursor in its place, or is a fault that is said; a replay ends at a step before the first that cannot.
 *
 * An input is spelt without the padding that a segment is full of: a byte of flags, then pieces, each two bytes of
 * length and so many bytes, which stand on the next border of 4,096 bytes. With a flag the CRCs are made right, so that
 * what lies behind them is reached. The folder of inputs that the command line names gets a few real segments first.
 */
#include "store/store.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ELEMENTS = 64, CURSORS = 2, STEPS = 3, MOST_BYTES = 1 << 20, MOST_ELEMENTS = 1 << 16 };
enum { REPAIR = 1, CUT = 2, DEEP = 4 }; /* flags; CUT: the last piece is not padded */

static const char uuid[37] = "01234567-89ab-4cde-8f01-23456789abcd";
static char run[64], segment_path[128];
static char bytes[MOST_BYTES];

static void check(bool holds) {
  if (!holds) abort();
}

/* ---- from an input to a segment ---- */

static size_t spread(const uint8_t *data, size_t size, uint8_t flags) {
  size_t length = 0, end = 0;
  while (size >= 2) {
    size_t piece = (size_t)data[0] | (size_t)data[1] << 8;
    data += 2;
    size -= 2;
    if (piece > size) piece = size;
    if (length + iso_wal_padded(piece) > MOST_BYTES) break;
    memset(bytes + length, 0, iso_wal_padded(piece));
    memcpy(bytes + length, data, piece);
    end = length + piece;
    length += iso_wal_padded(piece);
    data += piece;
    size -= piece;
  }
  return flags & CUT ? end : length;
}

static uint32_t read_u32(const char *at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static void write_u32(char *at, uint32_t value) {
  memcpy(at, &value, sizeof value);
}

static void repair_block(char *block, size_t at) {
  write_u32(block + at, 0);
  write_u32(block + at, iso_crc32c(0, block, ISO_WAL_BLOCK));
}

/* The run's name, and the CRCs of the head and of all frames (docs/formats.md, The step log). */
static void repair(size_t length) {
  uint32_t payloads = 0;
  if (length < ISO_WAL_BLOCK) return;
  memcpy(bytes + 48, uuid, sizeof uuid);
  memset(bytes + 48 + sizeof uuid, 0, 40 - sizeof uuid);
  repair_block(bytes, 88);
  for (size_t at = ISO_WAL_BLOCK; at + ISO_WAL_BLOCK <= length; at += ISO_WAL_BLOCK) {
    char *head = bytes + at, *content = head + ISO_WAL_BLOCK;
    int64_t size;
    if (memcmp(head, "ISOFRAM", 8) != 0) continue;
    memcpy(&size, head + 48, sizeof size);
    if (size > 0 && size <= MOST_BYTES && iso_wal_padded((size_t)size) <= length - at - ISO_WAL_BLOCK) {
      const bool commit = read_u32(head + 8) == ISO_WAL_COMMIT;
      if (commit && size >= 120) write_u32(content + 108, payloads);
      write_u32(head + 64, iso_crc32c(0, content, iso_wal_padded((size_t)size)));
      payloads = commit ? 0 : iso_crc32c(payloads, head + 64, 4);
      at += iso_wal_padded((size_t)size);
    }
    repair_block(head, 68);
  }
}

static void write_segment(size_t length) {
  const int fd = open(segment_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  check(fd >= 0 && write(fd, bytes, length) == (ssize_t)length);
  close(fd);
}

/* ---- what is made of it ---- */

static void read_steps(const iso_wal_index *index) {
  for (size_t i = 0; i < index->step_count; i++) {
    const iso_wal_step *step = &index->steps[i];
    const iso_wal_file *file = &index->files[step->segment];
    iso_string faults = {0};
    iso_cursor *cursors = NULL;
    iso_wal_record record;
    iso_wal_plan *plan = NULL;
    check(step->step >= 1 && step->offset >= ISO_WAL_BLOCK && step->commit < file->bytes && file->usable);
    check(i == 0 || index->steps[i - 1].step <= step->step);
    if (file->head.elements > MOST_ELEMENTS) continue;
    void *reduced = malloc((size_t)file->head.elements * iso_dtype_size(file->head.gradient));
    check(reduced != NULL);
    if (iso_wal_step_read(index, step, reduced, &record, &cursors, &faults) == ISO_OK) {
      check(record.step == step->step && record.cursor_count <= MOST_BYTES / sizeof *cursors);
      for (size_t k = 0; k < record.cursor_count; k++) check(memcmp(&cursors[k], &record.cursors[k], 1) == 0);
    } else {
      check(faults.length > 0 || *iso_last_error());
    }
    free(cursors);
    cursors = NULL;
    faults.length = 0;
    if (iso_wal_plan_make(index, step, &record, &cursors, &plan, &faults) != ISO_OK) check(faults.length > 0);
    iso_wal_plan_destroy(&plan);
    free(cursors);
    free(reduced);
    iso_string_fini(&faults);
  }
}

static iso_status restore(const iso_replay *with) {
  iso_state *state = with->state;
  for (int i = 0; i < ELEMENTS; i++) state->master[i] = state->moment1[i] = state->moment2[i] = 0;
  return ISO_OK;
}

static void replay(const iso_wal_index *index) {
  static float master[ELEMENTS], moment1[ELEMENTS], moment2[ELEMENTS];
  static int64_t range[2] = {0, ELEMENTS};
  static iso_team *team;
  iso_tier tier;
  iso_string faults = {0};
  iso_snapshot_info info = {0};
  iso_replay_report report;
  iso_state state = {.elements = ELEMENTS, .master = master, .moment1 = moment1, .moment2 = moment2};
  check(iso_cpu_tier(&tier) == ISO_OK);
  if (!team) team = iso_team_create(1, false);
  iso_replay with = {.kernels = iso_kernels_get(tier),
                     .team = team,
                     .threads = 1,
                     .state = &state,
                     .optimizer_version = 1,
                     .restore = restore};
  for (int i = 0; i < ISO_WAL_DECAYS; i++) with.decay[i].ranges = range, with.decay[i].count = 1;
  (void)!restore(&with);
  if (iso_wal_replay(index, &with, INT64_MAX, &info, &report, &faults) == ISO_OK) {
    check(report.steps == info.step && (report.damaged_step == 0 || report.damaged_step == info.step + 1));
    check(info.step == 0 || iso_wal_index_find(index, info.step));
  }
  iso_snapshot_info_fini(&info);
  iso_string_fini(&faults);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  iso_wal_index index;
  iso_string faults = {0};
  iso_log_quiet(true);
  if (size == 0) return 0;
  const uint8_t flags = data[0];
  const size_t length = spread(data + 1, size - 1, flags);
  if (flags & REPAIR) repair(length);
  write_segment(length);
  if (iso_wal_index_read(run, uuid, flags & DEEP, 0, &index, &faults) == ISO_OK) {
    read_steps(&index);
    replay(&index);
    iso_wal_index_fini(&index);
  } else {
    check(faults.length > 0 || *iso_last_error());
  }
  iso_string_fini(&faults);
  return 0;
}

/* ---- real segments ---- */

static void write_log(const iso_wal_options *options) {
  iso_wal *log;
  void *reduced;
  check(posix_memalign(&reduced, ISO_WAL_BLOCK, ISO_WAL_BLOCK) == 0);
  memset(reduced, 0, ISO_WAL_BLOCK);
  check(iso_wal_open(options, 1, &log) == ISO_OK);
  for (int64_t step = 1; step <= STEPS; step++) {
    iso_cursor cursors[CURSORS] = {{step, 0, 3}, {step, 1, 5}};
    const bool refused = step == 2;
    const iso_wal_record record = {.step = step,
                                   .adam_step = step - (step > 1),
                                   .tokens = 10 * step,
                                   .refused_total = step > 1,
                                   .scored = 10,
                                   .refused = refused,
                                   .lr = 1e-3f,
                                   .beta1 = 0.9f,
                                   .beta2 = 0.95f,
                                   .eps = 1e-8f,
                                   .clip = 1,
                                   .bias1 = 0.1f,
                                   .bias2 = 0.05f,
                                   .cursors = cursors,
                                   .cursor_count = CURSORS};
    for (int i = 0; i < ELEMENTS; i++) {
      const float value = (float)iso_rng_normal(7, ISO_RNG_TEST, (uint64_t)step, (uint64_t)i);
      if (options->gradient == ISO_BF16)
        ((iso_bf16 *)reduced)[i] = iso_bf16_from_f32(value);
      else
        ((float *)reduced)[i] = value;
    }
    check(iso_wal_append(log, &record, reduced) == ISO_OK && iso_wal_release(log, reduced, 30));
  }
  iso_wal_flush(log);
  iso_wal_close(&log);
  free(reduced);
}

/* The segment as an input: zeros at the end of a block are left out. */
static void write_input(const char *path, uint8_t flags) {
  char *data;
  size_t length;
  iso_string text = {0};
  check(iso_file_read(segment_path, &data, &length) == ISO_OK);
  iso_string_append(&text, &flags, 1);
  for (size_t at = 0; at < length; at += ISO_WAL_BLOCK) {
    size_t piece = ISO_WAL_BLOCK;
    while (piece > 1 && data[at + piece - 1] == 0) piece--;
    const uint8_t head[2] = {(uint8_t)piece, (uint8_t)(piece >> 8)};
    iso_string_append(&text, head, sizeof head);
    iso_string_append(&text, data + at, piece);
  }
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  check(fd >= 0 && write(fd, text.data, text.length) == (ssize_t)text.length);
  close(fd);
  iso_string_fini(&text);
  free(data);
}

static void write_inputs(const char *folder) {
  for (int how = 0; how < 4; how++) {
    char path[512];
    const iso_wal_options options = {.run = run,
                                     .uuid = uuid,
                                     .incarnation = 1,
                                     .elements = ELEMENTS,
                                     .gradient = how & 1 ? ISO_F32 : ISO_BF16,
                                     .optimizer_version = 1,
                                     .segment_bytes = 1 << 30,
                                     .packed = how & 2 ? ISO_WAL_ON : ISO_WAL_OFF,
                                     .cursors = CURSORS};
    unlink(segment_path);
    write_log(&options);
    for (uint8_t flags = 0; flags < 8; flags++) {
      snprintf(path, sizeof path, "%s/real-%d-%d", folder, how, flags);
      write_input(path, flags);
    }
  }
}

static void remove_run(void) {
  char text[256];
  snprintf(text, sizeof text, "rm -rf '%s'", run);
  check(system(text) == 0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  const iso_incarnation first = {.number = 1, .tier = "none", .optimizer_version = 1, .virtual_workers = 1, .ranks = 1};
  char own[37];
  struct stat info;
  snprintf(run, sizeof run, "%s/isotach-fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
  check(mkdtemp(run) != NULL && iso_run_folder_open(run, own) == ISO_OK);
  check(iso_incarnation_publish(run, &first) == ISO_OK);
  snprintf(segment_path, sizeof segment_path, "%s/log/0001-00000-000000.log", run);
  atexit(remove_run);
  for (int i = 1; i < *argc; i++)
    if ((*argv)[i][0] != '-' && stat((*argv)[i], &info) == 0 && S_ISDIR(info.st_mode)) {
      write_inputs((*argv)[i]);
      break;
    }
  snprintf(segment_path, sizeof segment_path, "%s/log", run);
  check(iso_path_make(segment_path) == ISO_OK);
  snprintf(segment_path, sizeof segment_path, "%s/log/0001-00000-000000.log", run);
  return 0;
}
