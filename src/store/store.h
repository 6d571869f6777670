/* SPDX-License-Identifier: Apache-2.0
 *
 * store: what a run leaves on disk, so that it can be trusted after any crash. docs/formats.md has every file byte by
 * byte.
 *
 * Layout of a run folder
 *   lock                         host, pid, boot id and start time of the process that owns the run; held with an OFD
 * lock, heartbeat by mtime run.json                     uuid, created, and what stays for the run's life
 *   incarnations/%04d.json       one per start: "begins after step s", config digest, ISA tier, kernel version, build
 * id, W, ranks snapshots/step-%08d-%04d/    (step, incarnation): state-<attempt>-00000.safetensors and manifest.json,
 * which is published last aside/                       damaged or superseded files; never deleted by the program
 *   status.json metrics.jsonl config.yaml log/ report.json      written by others
 *
 * Invariants
 *  1. A snapshot exists if and only if its manifest is present, its own CRC line verifies, and every file it names has
 * the stated size and CRC-32C.
 *  2. No file is overwritten or reused: names carry a 128-bit attempt id; manifests and incarnations are published by
 * no-replace rename after data and folder are synced.
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
/* BUSY (naming host, pid, age) when another live process holds it. A stale lock of a process known to be dead on this
 * host is taken over; one of another host only with `take_over`, and never while its heartbeat is fresh (60 s). Keeps
 * the heartbeat in a thread of its own (a touch every 5 s). The folder must exist. */
iso_status iso_lock_acquire(const char *run, bool take_over, iso_lock **out) ISO_MUST_CHECK;
void iso_lock_release(iso_lock **lock);

/* ---- run_folder.c: identity and incarnations --------------------------------------------------- */

typedef struct iso_incarnation {
  int number;           /* k, from 1 */
  int64_t begins_after; /* step */
  char config_digest[65];
  char tier[24];
  char build[65];
  int optimizer_version;
  int64_t virtual_workers;
  int64_t ranks;
} iso_incarnation;

enum { ISO_SNAPSHOT_PATH = 512 /* bytes that the path of a snapshot's folder takes at most, with its NUL */ };

/* Creates the folder and run.json when missing. uuid: 36 characters and a NUL. FORMAT when run.json is damaged, or is
 * missing in a folder that holds snapshots already, CONFIG when the path is too long. */
iso_status iso_run_folder_open(const char *run, char uuid[37]) ISO_MUST_CHECK;
/* The same without creating anything: `exists` is false when there is no run.json (and no snapshots that would need
 * it). */
iso_status iso_run_folder_read(const char *run, char uuid[37], bool *exists) ISO_MUST_CHECK;
/* Deletes what writes that a kill cut short left under temporary names; for the owner of the lock. Snapshot folders are
 * for iso_snapshot_prune. */
void iso_run_folder_sweep(const char *run);
/* Newest incarnation; number = 0 when there is none. */
iso_status iso_incarnation_newest(const char *run, iso_incarnation *out) ISO_MUST_CHECK;
/* Publishes incarnation `in->number` by no-replace rename. BUSY when that number exists or a newer one does. */
iso_status iso_incarnation_publish(const char *run, const iso_incarnation *in) ISO_MUST_CHECK;

/* All incarnations, oldest first, in the arena. FORMAT when one is damaged. */
iso_status iso_incarnation_list(iso_arena *arena, const char *run, iso_incarnation **list,
                                size_t *count) ISO_MUST_CHECK;
/* The same for those that can be read, quietly: `faults` gets a line for each of the others. */
iso_status iso_incarnation_examine(iso_arena *arena, const char *run, iso_incarnation **list, size_t *count,
                                   iso_string *faults) ISO_MUST_CHECK;
/* BUSY when an incarnation newer than `number` is published: what this process writes no longer counts. */
iso_status iso_incarnation_check(const char *run, int number) ISO_MUST_CHECK;
/* Whether the path exists; an error when that cannot be told (a folder that may not be read is not an empty one). */
iso_status iso_path_probe(const char *path, bool *exists) ISO_MUST_CHECK;
/* Moves run/`relative` into run/aside/ under a name never used before, and says so in `moved_to` (its path in the run).
 */
iso_status iso_run_set_aside(const char *run, const char *relative, char moved_to[256]) ISO_MUST_CHECK;

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
  int64_t step;      /* steps taken, refused ones included */
  int64_t adam_step; /* Adam's t */
  int incarnation;
  int64_t tokens;  /* scored tokens so far */
  int64_t refused; /* refused steps so far */
  char config_digest[65];
  char tokenizer_fingerprint[65];
  char tier[24];
  char parent[64];     /* folder name of the snapshot this run came from, or "" */
  iso_cursor *cursors; /* lanes x sources, owned by the info (free with iso_snapshot_info_fini) */
  size_t cursor_count;
} iso_snapshot_info;
void iso_snapshot_info_fini(iso_snapshot_info *info);

/* Bytes that one snapshot of this state takes on disk; -1 when the state cannot be written (names, shapes). */
int64_t iso_snapshot_bytes(const iso_state *state);
/* Writes and publishes snapshots/step-%08d-%04d. Tensor names in the file: "NAME" (master), "moment1.NAME",
 * "moment2.NAME", so that master weights open as a model. The run folder must be open (run.json). An equal snapshot
 * that is there already is success; a different valid one is MISMATCH; a damaged one is set aside first. SPACE, IO;
 * BUSY when a newer incarnation has begun. */
iso_status iso_snapshot_write(const char *run, const iso_state *state, const iso_snapshot_info *info) ISO_MUST_CHECK;

/* ---- snapshot_read.c ------------------------------------------------------------------------------ */

/* Loads master and moments into the state (moments may be NULL), verifying sizes, CRCs, names, shapes and coverage on
 * the way. FORMAT/MISMATCH; the arrays hold no usable values then. */
iso_status iso_snapshot_load(const char *folder, iso_state *state) ISO_MUST_CHECK;

struct iso_manifest;
/* Examines one snapshot folder: manifest, file sizes, and with `deep` also CRCs and coverage. Logs nothing: `faults`
 * gets one line per fault, "FILE: cause". FORMAT: damaged. Any other error: the system refused, which says nothing
 * about the snapshot. `uuid` may be NULL: not checked. `manifest` is filled in when the manifest itself is good (fini
 * it in any case). */
iso_status iso_snapshot_examine(const char *folder, const char *uuid, bool deep, struct iso_manifest *manifest,
                                iso_string *faults) ISO_MUST_CHECK;

/* ---- snapshot_find.c ------------------------------------------------------------------------------ */

/* Finds the newest valid snapshot (at_step -1), or that of a step; fills info. Damaged ones are named in one warning
 * line each and, with `set_aside`, moved to aside/: for the run's owner only, others change nothing. `found` false when
 * there is none. No state is read into memory, but every byte of the one found was checked. */
iso_status iso_snapshot_find(const char *run, int64_t at_step, bool set_aside, char folder[ISO_SNAPSHOT_PATH],
                             iso_snapshot_info *info, bool *found) ISO_MUST_CHECK;
/* Deletes all but the newest `keep_last` (at least 1) valid snapshots and those whose step is a multiple of
 * `keep_every` (0: none); only ever deletes what is older than a newer one verified in this call. Void snapshots go to
 * aside/. */
iso_status iso_snapshot_prune(const char *run, int keep_last, int64_t keep_every) ISO_MUST_CHECK;
/* Verifies identity, incarnations and every snapshot of the run (reads all). One line per fault to `out`; CHECK when
 * there are any. */
iso_status iso_snapshot_verify(const char *run, FILE *out) ISO_MUST_CHECK;

/* ---- digest.c ------------------------------------------------------------------------------------- */

/* 64 hex digits over master, moment1, moment2 (per tensor, in tensor-name order) and step. NULL moments count as zeros.
 */
void iso_state_digest(const iso_state *state, int64_t step, char hex[65]);

/* ---- manifest.c ----------------------------------------------------------------------------------- */

typedef struct iso_manifest_cover { /* elements [begin, end) of a tensor stand in the file under the tensor's name */
  const char *tensor;
  int64_t begin, end;
} iso_manifest_cover;

typedef struct iso_manifest_file {
  const char *name;
  int64_t bytes;
  uint32_t crc;
  iso_manifest_cover *covers;
  size_t cover_count;
} iso_manifest_file;

typedef struct iso_manifest {
  char uuid[37];
  char attempt[33];
  int64_t elements; /* of each of the three arrays */
  iso_snapshot_info info;
  iso_manifest_file *files;
  size_t file_count;
  iso_arena *arena; /* owns files and covers */
} iso_manifest;
/* Appends the sealed text of manifest.json. */
iso_status iso_manifest_render(const iso_manifest *manifest, iso_string *text) ISO_MUST_CHECK;
/* Reads and checks folder/manifest.json. Quiet: see iso_snapshot_examine. */
iso_status iso_manifest_read(const char *folder, iso_manifest *manifest, iso_string *faults) ISO_MUST_CHECK;
void iso_manifest_fini(iso_manifest *manifest);
/* step-%08d-%04d */
void iso_snapshot_name(int64_t step, int incarnation, char name[64]);
bool iso_snapshot_name_parse(const char *name, int64_t *step, int *incarnation);
/* Whether a file name is one that a snapshot attempt gives: state-<attempt>-%05d.safetensors. */
bool iso_state_file_name(const char *name);

/* ---- record.c: small files that verify themselves, and quiet reading -------------------------------- */

/* Functions that take `faults` log nothing. When they fail, a line "NAME: cause" is appended. ISO_ERR_FORMAT then means
 * that the file is damaged (missing, cut, altered, unreadable sector); anything else that the system refused to show
 * it. */

/* The first line, without its end; `faults` is cut there. */
const char *iso_fault_first(iso_string *faults);

typedef struct iso_probe {
  const char *path; /* borrowed */
  const char *name; /* how faults call it; borrowed */
  int fd;           /* -1: closed */
  int64_t bytes;
} iso_probe;
iso_status iso_probe_open(iso_probe *probe, const char *path, const char *name, iso_string *faults) ISO_MUST_CHECK;
iso_status iso_probe_read(const iso_probe *probe, void *data, size_t bytes, int64_t offset,
                          iso_string *faults) ISO_MUST_CHECK;
void iso_probe_close(iso_probe *probe);

/* Completes a JSON object: `text` holds "{" and members without a comma after the last; appends the member "crc32c"
 * over all text before it, and the end. */
void iso_record_seal(iso_string *text);
iso_status iso_record_read(const char *path, const char *name, iso_json **json, iso_string *faults) ISO_MUST_CHECK;
/* Members of a record. false when missing, of another type, out of [least, 2^53], or too long. */
bool iso_record_whole(const iso_json *item, int64_t least, int64_t *out);
bool iso_record_int(const iso_json *json, const char *key, int64_t least, int64_t *out);
bool iso_record_text(const iso_json *json, const char *key, char *out, size_t capacity);

#endif
