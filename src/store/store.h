/* SPDX-License-Identifier: Apache-2.0
 *
 * store: what a run leaves on disk, so that it can be trusted after any crash.
 *
 * Layout of a run folder
 *   lock                         host, pid, start time of the process that owns the run; held with an OFD lock, heartbeat by mtime
 *   run.json                     uuid, created, and what stays for the run's life
 *   incarnations/%04d.json       one per start: "begins after step s", config digest, ISA tier, kernel version, build id, W, ranks
 *   snapshots/step-%08d-%04d/    (step, incarnation): state-<attempt>-00000.safetensors and manifest.json, which is published last
 *   aside/                       damaged or superseded files; never deleted by the program
 *   status.json metrics.jsonl config.yaml log/ report.json      written by others
 *
 * Invariants
 *  1. A snapshot exists if and only if its manifest is present, its own CRC line verifies, and every file it names has the stated size and CRC-32C.
 *  2. No file is overwritten or reused: names carry a 128-bit attempt id; manifests and incarnations are published by no-replace rename after data and folder are synced.
 *  3. CRC-32C is computed on the source buffers, before any I/O.
 *  4. Every element of every tensor is covered exactly once, or the snapshot is not loaded.
 *  5. A damaged snapshot is named, set aside, never deleted, and the next older valid one is used.
 *  6. One process owns a run folder; a second one is refused, naming the first's host and pid.
 *  7. A snapshot of an older incarnation beyond the step at which a newer one began is void.
 */
#ifndef ISO_STORE_H
#define ISO_STORE_H

#include "base/base.h"
#include "io/io.h"

/* ---- lock.c ------------------------------------------------------------------------------------- */

typedef struct iso_lock iso_lock;
/* BUSY (naming host, pid, age) when another live process holds it. A stale lock of a process known to be dead on this host is taken over; one of another host only with
 * `take_over`. Keeps the heartbeat in a thread of its own (a touch every 5 s). */
iso_status iso_lock_acquire(const char *run, bool take_over, iso_lock **out) ISO_MUST_CHECK;
void iso_lock_release(iso_lock **lock);

/* ---- run_folder.c: identity and incarnations --------------------------------------------------- */

typedef struct iso_incarnation {
  int number;              /* k, from 1 */
  int64_t begins_after;    /* step */
  char config_digest[65];
  char tier[24];
  char build[65];
  int optimizer_version;
  int64_t virtual_workers;
  int64_t ranks;
} iso_incarnation;

/* Creates the folder and run.json when missing. uuid: 36 characters and a NUL. */
iso_status iso_run_folder_open(const char *run, char uuid[37]) ISO_MUST_CHECK;
/* Newest incarnation; number = 0 when there is none. */
iso_status iso_incarnation_newest(const char *run, iso_incarnation *out) ISO_MUST_CHECK;
/* Publishes incarnation `in->number` by no-replace rename. BUSY when that number exists. */
iso_status iso_incarnation_publish(const char *run, const iso_incarnation *in) ISO_MUST_CHECK;

/* ---- snapshot.c ----------------------------------------------------------------------------------- */

/* The flat state: parameters back to back in `tensors` order in each of the three arrays. */
typedef struct iso_state {
  const iso_tensor_out *tensors; /* name, rank, shape; dtype F32; data ignored */
  size_t tensor_count;
  int64_t elements; /* of each array */
  float *master, *moment1, *moment2;
} iso_state;

typedef struct iso_cursor { /* of one lane and source: 24 bytes */
  int64_t epoch, block, offset;
} iso_cursor;

typedef struct iso_snapshot_info {
  int64_t step;         /* steps taken, refused ones included */
  int64_t adam_step;    /* Adam's t */
  int incarnation;
  int64_t tokens;       /* scored tokens so far */
  int64_t refused;      /* refused steps so far */
  char config_digest[65];
  char tokenizer_fingerprint[65];
  char tier[24];
  char parent[64];      /* folder name of the snapshot this run came from, or "" */
  iso_cursor *cursors;  /* lanes x sources, owned by the info (free with iso_snapshot_info_fini) */
  size_t cursor_count;
} iso_snapshot_info;
void iso_snapshot_info_fini(iso_snapshot_info *info);

/* Bytes that one snapshot of this state takes on disk. */
int64_t iso_snapshot_bytes(const iso_state *state);
/* Writes and publishes snapshots/step-%08d-%04d. Tensor names in the file: "NAME" (master), "moment1.NAME", "moment2.NAME", so that master weights open as a model. */
iso_status iso_snapshot_write(const char *run, const iso_state *state, const iso_snapshot_info *info) ISO_MUST_CHECK;
/* Finds the newest valid snapshot, sets damaged ones aside (one warning line each), fills info. `found` false when there is none. No state is read. */
iso_status iso_snapshot_find(const char *run, int64_t at_step /* -1: newest */, char folder[512], iso_snapshot_info *info, bool *found) ISO_MUST_CHECK;
/* Loads master and moments into the state (moments may be NULL), verifying sizes, CRCs, names, shapes and coverage on the way. FORMAT/MISMATCH. */
iso_status iso_snapshot_load(const char *folder, iso_state *state) ISO_MUST_CHECK;
/* Deletes all but the newest `keep_last` valid snapshots and those whose step is a multiple of `keep_every` (0: none); only ever deletes what is older than a verified newer one. */
iso_status iso_snapshot_prune(const char *run, int keep_last, int64_t keep_every) ISO_MUST_CHECK;
/* Verifies every snapshot of the run (reads all). One line per fault to `out`; CHECK when there are any. */
iso_status iso_snapshot_verify(const char *run, FILE *out) ISO_MUST_CHECK;
/* 64 hex digits over master, moment1, moment2 (per tensor, in tensor-name order) and step. */
void iso_state_digest(const iso_state *state, int64_t step, char hex[65]);

#endif
