/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast the step log's writer is beside a plain writer: the same bytes, the same storage, in turns. The plain one
 * opens its file with O_DIRECT and calls pwrite with pieces of PIECE bytes; where the file system refuses O_DIRECT both
 * go through the page cache. A first round, which is not counted, lets the log find out whether several writes in
 * flight are sooner done, as a run does in its first steps.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

enum { ROUNDS = 5, STEPS = 4, CHOICE_STEPS = 8, PIECE = 16 << 20 };

static iso_status plain_round(const char *folder, char *const *buffers, size_t bytes, double *rate) {
  char path[4096];
  snprintf(path, sizeof path, "%s/plain.bin", folder);
  const int flags = O_WRONLY | O_CREAT | O_TRUNC;
  int fd = iso_os.open(path, flags | O_DIRECT, 0666);
  if (fd < 0 && errno == EINVAL) fd = iso_os.open(path, flags, 0666);
  if (fd < 0) return iso_os_fail("create", path);
  iso_status status = ISO_OK;
  const double began = iso_clock_s();
  for (int step = 0; step < STEPS && status == ISO_OK; step++)
    for (size_t at = 0; at < bytes && status == ISO_OK; at += PIECE)
      status = iso_file_pwrite(fd, path, buffers[step % 2] + at, bytes - at < PIECE ? bytes - at : PIECE,
                               (int64_t)(bytes * (size_t)step + at));
  *rate = (double)(STEPS * bytes) / (iso_clock_s() - began);
  (void)iso_os.close(fd);
  (void)iso_os.unlink(path);
  return status;
}

/* A new incarnation writes `steps` behind *before, which moves on. */
static iso_status log_round(iso_wal_options *options, int64_t *before, int64_t steps, char *const *buffers,
                            iso_store_rate *rate) {
  const iso_incarnation incarnation = {.number = ++options->incarnation,
                                       .begins_after = *before,
                                       .tier = "bench",
                                       .build = "bench",
                                       .virtual_workers = 1,
                                       .ranks = 1};
  ISO_TRY(iso_incarnation_publish(options->run, &incarnation));
  iso_wal *log;
  iso_wal_state state;
  ISO_TRY(iso_wal_open(options, *before + 1, &log));
  const double began = iso_clock_s();
  iso_status status = ISO_OK;
  for (int64_t step = *before + 1; step <= *before + steps && status == ISO_OK; step++) {
    const iso_wal_record record = {.step = step, .adam_step = step, .clip = 1, .bias1 = 1, .bias2 = 1};
    (void)iso_wal_release(log, buffers[step % 2], 1e6);
    status = iso_wal_append(log, &record, buffers[step % 2]);
  }
  iso_wal_flush(log);
  const double seconds = iso_clock_s() - began;
  iso_wal_state_get(log, &state);
  iso_wal_close(&log);
  ISO_TRY(status);
  if (state.suspended) return iso_fail(state.status, "bench store: the log could not be written: %s", state.cause);
  rate->whole = (double)state.bytes / seconds;
  rate->writing = (double)state.bytes / state.write_s;
  rate->crc_s = state.crc_s / (double)steps;
  if (options->several == ISO_WAL_AUTO) options->several = state.several ? ISO_WAL_ON : ISO_WAL_OFF;
  *before += steps;
  return iso_wal_prune(options->run, *before);
}

static iso_status rounds(const char *folder, iso_wal_options *options, char *const *buffers, size_t bytes,
                         iso_store_rate *rate) {
  double plain[ROUNDS], whole[ROUNDS], writing[ROUNDS], crc[ROUNDS], share[ROUNDS];
  int64_t before = 0;
  iso_store_rate one;
  options->several = ISO_WAL_AUTO;
  ISO_TRY(log_round(options, &before, CHOICE_STEPS, buffers, &one));
  for (int i = 0; i < ROUNDS; i++) {
    ISO_TRY(plain_round(folder, buffers, bytes, &plain[i]));
    ISO_TRY(log_round(options, &before, STEPS, buffers, &one));
    whole[i] = one.whole, writing[i] = one.writing, crc[i] = one.crc_s;
    share[i] = one.writing / plain[i];
  }
  *rate = (iso_store_rate){.plain = iso_median(plain, ROUNDS),
                           .whole = iso_median(whole, ROUNDS),
                           .writing = iso_median(writing, ROUNDS),
                           .crc_s = iso_median(crc, ROUNDS),
                           .share = iso_median(share, ROUNDS)};
  return ISO_OK;
}

iso_status iso_store_rate_measure(const char *folder, int64_t elements, iso_store_rate *rate) {
  const size_t bytes = iso_wal_padded((size_t)elements * 2);
  char run[4096], uuid[37], *buffers[2] = {NULL, NULL};
  snprintf(run, sizeof run, "%s/rate", folder);
  ISO_TRY(iso_path_make(run));
  ISO_TRY(iso_run_folder_open(run, uuid));
  iso_wal_options options = {.run = run,
                             .uuid = uuid,
                             .elements = elements,
                             .gradient = ISO_BF16,
                             .optimizer_version = ISO_OPTIMIZER_VERSION,
                             .segment_bytes = INT64_C(1) << 40};
  iso_status status = ISO_OK;
  for (int i = 0; i < 2 && status == ISO_OK; i++) {
    buffers[i] = iso_slab_alloc(bytes, "bench store's gradient");
    if (!buffers[i]) status = ISO_ERR_MEMORY;
    for (size_t at = 0; buffers[i] && at < bytes; at += sizeof(uint32_t) * 4)
      iso_rng(2, ISO_RNG_TEST, (uint64_t)i, at, (uint32_t *)(void *)(buffers[i] + at));
  }
  if (status == ISO_OK) status = rounds(folder, &options, buffers, bytes, rate);
  for (int i = 0; i < 2; i++) iso_slab_free(buffers[i], bytes);
  return status;
}
