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
 *  5. A damaged snapshot is named, set aside, never deleted, and the next older valid one is used: set aside once what
 * is used instead leads to every acknowledged step and is on the disk.
 *  6. One process owns a run folder; a second one is refused, naming the first's host and pid.
 *  7. A snapshot of an older incarnation beyond the step at which a newer one began is void.
 */
#ifndef ISO_STORE_H
#define ISO_STORE_H

#include "base/base.h"
#include "io/io.h"
#include "kernels/kernels.h"
#include "store/record.h"

/* ---- lock.c ------------------------------------------------------------------------------------- */

typedef struct iso_lock iso_lock;
/* BUSY (naming host, pid, age) when another live process holds it. A stale lock of a process known to be dead on this
 * host is taken over; one of another host only with `take_over`, and never while its heartbeat is fresh (60 s). Keeps
 * the heartbeat in a thread of its own (a touch every 5 s). The folder must exist. */
iso_status iso_lock_acquire(const char *run, bool take_over, iso_lock **out) ISO_MUST_CHECK;
void iso_lock_release(iso_lock **lock);
/* BUSY when the lock names another process by now. */
iso_status iso_lock_check(const iso_lock *lock) ISO_MUST_CHECK;
/* Whether the line of RUN/lock is as it was written: FORMAT, and a line in `faults`. sealed false: it has no CRC. */
iso_status iso_lock_examine(const char *run, bool *sealed, iso_string *faults) ISO_MUST_CHECK;
/* Of the machine since it started; "-" when the system does not say. */
void iso_boot_id(char id[64]);
typedef struct iso_owner { /* a process, so that no other one is taken for it */
  char host[256];
  long pid;
  char boot[64];
  unsigned long long start; /* clock ticks since boot */
} iso_owner;
void iso_owner_self(iso_owner *me);
/* "<host> <pid> <boot> <start> ..."; false: it is no such line. A damaged one is of an unknown host. */
bool iso_owner_parse(const char *text, iso_owner *out);
/* It ran on this host, since it started, and does not any more. */
bool iso_owner_is_gone(const iso_owner *owner, const iso_owner *me);

typedef struct iso_lock_view { /* RUN/lock from outside */
  bool read;                   /* it could be, or is not there */
  bool altered;                /* something stands there that names nobody */
  bool claimed;                /* it names a process: */
  iso_owner owner;
  bool here, gone; /* of this host; which is no process any more, or ran before the machine started */
  bool held;       /* the kernel's lock is some process's */
  double beat_s;   /* the heartbeat, Unix; 0: there is none */
  double age_s;    /* of it; not below 0 */
  bool fresh;      /* so young that its process counts as alive wherever it is */
} iso_lock_view;
/* Takes, changes and waits for nothing. All else false where there is no lock file; IO when it cannot be read. */
iso_status iso_lock_look(const char *run, iso_lock_view *out) ISO_MUST_CHECK;

/* ---- settle.c ------------------------------------------------------------------------------------- */

/* What a start goes on from may have been written by a process that was killed before it synced it: the log's segments
 * and the snapshot (its folder; "": none) are on the disk when this returns. */
iso_status iso_run_settle(const char *run, const char *snapshot) ISO_MUST_CHECK;

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
  const char *hosts; /* their order, JSON (ranks_order.c of train); NULL: one host, or not asked for */
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
/* Newest incarnation, without its hosts; number = 0 when there is none. */
iso_status iso_incarnation_newest(const char *run, iso_incarnation *out) ISO_MUST_CHECK;
/* Publishes incarnation `in->number` by no-replace rename. BUSY when that number exists or a newer one does. */
iso_status iso_incarnation_publish(const char *run, const iso_incarnation *in) ISO_MUST_CHECK;

/* All incarnations, oldest first, in the arena. FORMAT when one is damaged. */
iso_status iso_incarnation_list(iso_arena *arena, const char *run, iso_incarnation **list,
                                size_t *count) ISO_MUST_CHECK;
/* The same for those that can be read, quietly: `faults` gets a line for each of the others. */
iso_status iso_incarnation_examine(iso_arena *arena, const char *run, iso_incarnation **list, size_t *count,
                                   iso_string *faults) ISO_MUST_CHECK;
/* The step up to which those of incarnation `number` count: where the first newer one began, else INT64_MAX. */
int64_t iso_incarnation_counts_until(const iso_incarnation *list, size_t count, int64_t number);
/* known: every start since the newest one that began with the first weights had the settings of the newest start, so
 * that these make the first weights again. */
iso_status iso_incarnation_first_known(const char *run, bool *known) ISO_MUST_CHECK;
/* BUSY when an incarnation newer than `number` is published: what this process writes no longer counts. */
iso_status iso_incarnation_check(const char *run, int number) ISO_MUST_CHECK;
/* Whether the path exists; an error when that cannot be told (a folder that may not be read is not an empty one). */
iso_status iso_path_probe(const char *path, bool *exists) ISO_MUST_CHECK;
/* Moves run/`relative` into run/aside/ under a name never used before, and says so in `moved_to` (its path in the run).
 */
iso_status iso_run_set_aside(const char *run, const char *relative, char moved_to[256]) ISO_MUST_CHECK;

/* ---- differed.c: the weights of a run's ranks were not the same ------------------------------------------ */

typedef struct iso_differed {
  int incarnation;   /* that found it, and ended */
  int64_t step;      /* which was not taken: weights were compared before it */
  int64_t rank;      /* whose were others */
  int64_t same_step; /* behind which all were last the same */
  bool logged;       /* the run had a step log, which leads there */
} iso_differed;
void iso_differed_name(int incarnation, char name[32]); /* of the file in the run folder */
/* A block of the disk for a record that may come. Its path goes to `path`; "": there is none. */
iso_status iso_differed_reserve(const char *run, int incarnation, char path[ISO_SNAPSHOT_PATH]) ISO_MUST_CHECK;
void iso_differed_release(char path[ISO_SNAPSHOT_PATH]);
/* Durable when it returns. One that is there stays. Uses the reserve up ("": none). */
iso_status iso_differed_write(const char *run, const char *uuid, const iso_differed *differed,
                              char reserve[ISO_SNAPSHOT_PATH]) ISO_MUST_CHECK;
/* What incarnation `newest` left, which is the only one that counts. FORMAT: it is damaged; another run's is said, and
 * is none. */
iso_status iso_differed_find(const char *run, const char *uuid, int newest, iso_differed *out,
                             bool *found) ISO_MUST_CHECK;
/* All that can be read, by incarnation, in the arena; a line to `faults` for each other one, and FORMAT. */
iso_status iso_differed_list(iso_arena *arena, const char *run, const char *uuid, iso_differed **list, size_t *count,
                             iso_string *faults) ISO_MUST_CHECK;
/* The incarnation of the one that counts; 0: none does, or that cannot be told. Quiet. */
int iso_differed_pending(const char *run);

/* ---- replace.c: a thing of the run folder gives way to a better one ---------------------------------- */

/* `temporary`, a whole and synced file beside run/`relative`, takes its place. What stood there goes to aside/, which
 * `moved_to` says; "": nothing did. Killed anywhere, the next start has the one or the other. */
iso_status iso_run_replace(const char *run, const char *relative, const char *temporary,
                           char moved_to[256]) ISO_MUST_CHECK;
/* Ends what a kill cut short; for the run's owner, before anything of it is looked at. */
iso_status iso_run_replace_finish(const char *run) ISO_MUST_CHECK;
/* Whether it is the name of a file that is to take another one's place. */
bool iso_run_replace_is_ready(const char *name);

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

/* The three arrays in file order, each cut into chunks of `bytes` (the last one of each is shorter). */
typedef struct iso_snapshot_part {
  const char *data;
  size_t bytes;
} iso_snapshot_part;
enum { ISO_SNAPSHOT_CHUNK = 4 << 20 };
int64_t iso_snapshot_chunks(const iso_state *state, int64_t bytes);
iso_snapshot_part iso_snapshot_chunk(const iso_state *state, int64_t bytes, int64_t index);
/* Gives the writer its chunks, asked for once each and in order. */
typedef struct iso_snapshot_source {
  void *context;
  int64_t chunk_bytes;
  /* Memory that holds the chunk until it is put back; NULL: the attempt is given up, which `take` tells whom it
   * concerns. */
  const void *(*take)(void *context, int64_t index);
  void (*put)(void *context, int64_t index);
  void (*now)(void *context, const char *doing); /* what storage is asked for next, as a phrase that lasts */
} iso_snapshot_source;
/* The same file and manifest from another source. STOPPED: given up. */
iso_status iso_snapshot_write_from(const char *run, const iso_state *state, const iso_snapshot_info *info,
                                   const iso_snapshot_source *source) ISO_MUST_CHECK;

/* ---- snapshot_stream.c: snapshots written while steps go on ----------------------------------------------- */

typedef struct iso_streamer iso_streamer;
typedef struct iso_streamer_options {
  const char *run;        /* folder; borrowed for the streamer's life, as is the state */
  const iso_state *state; /* the live arrays */
  size_t cursors;         /* of each snapshot */
  int64_t staging_bytes;  /* allocated and touched by the opening */
  int64_t chunk_bytes;    /* 0: iso_streamer_chunk */
  double stuck_s;         /* storage without progress for so long is not waited for */
  int keep_last;          /* what iso_snapshot_prune leaves behind each new one */
  int64_t keep_every;
  bool log;             /* the step log is cut back to the oldest one, too */
  void (*settle)(void); /* called first on the thread; may be NULL */
} iso_streamer_options;
typedef struct iso_streamer_state {
  int64_t step;      /* of the last attempt */
  bool active;       /* it is under way, or its end was not asked for yet */
  bool published;    /* it counts; older ones may still be being deleted */
  bool given_up;     /* by the gate, for `cause` */
  bool stuck;        /* given up because storage made no progress */
  iso_status status; /* once it has ended; the thread said why. STOPPED: given up */
  char cause[200];
  const char *doing;     /* what storage was asked for last */
  double idle_s;         /* since it answered last, of an active one */
  int64_t bytes, copied; /* written of the arrays; of them copied aside */
  double write_s;        /* from the beginning to the publication */
} iso_streamer_state;
/* Bytes of staging that hold a whole state, and of a chunk. */
int64_t iso_streamer_whole(int64_t elements);
int64_t iso_streamer_chunk(int64_t elements);
iso_status iso_streamer_open(const iso_streamer_options *options, iso_streamer **out) ISO_MUST_CHECK;
/* Another size of staging, between attempts. MEMORY: there is none then. */
iso_status iso_streamer_stage(iso_streamer *streamer, int64_t bytes) ISO_MUST_CHECK;
/* Begins a snapshot of the arrays as they are; none may be under way, and the end of the last one must have been asked
 * for. patient: an update waits when staging is too small, instead of giving the attempt up. */
iso_status iso_streamer_begin(iso_streamer *streamer, const iso_snapshot_info *info, bool patient) ISO_MUST_CHECK;
/* Snapshots and log that lead to this step stay (-1: as options say); from the next deletion on. */
void iso_streamer_need(iso_streamer *streamer, int64_t step);
/* By every thread of the team, before anything changes the arrays. */
void iso_streamer_gate(iso_streamer *streamer, int thread, int threads, iso_team *team);
void iso_streamer_state_get(iso_streamer *streamer, iso_streamer_state *state);
/* true once for each attempt that has ended. */
bool iso_streamer_ended(iso_streamer *streamer, iso_streamer_state *state);
/* Waits for the one under way; false: it still is after max_s. */
bool iso_streamer_wait(iso_streamer *streamer, double max_s);
/* Waits for as long as it takes. */
void iso_streamer_close(iso_streamer **streamer);

/* ---- snapshot_read.c ------------------------------------------------------------------------------ */

/* Loads master and moments into the state (moments may be NULL), verifying sizes, CRCs, names, shapes and coverage on
 * the way. FORMAT/MISMATCH; the arrays hold no usable values then. */
iso_status iso_snapshot_load(const char *folder, iso_state *state) ISO_MUST_CHECK;
/* Reads the snapshot as loading does and compares it with the state bit by bit. `difference`: "" when all are equal,
 * else the first that is not. */
iso_status iso_snapshot_compare(const char *folder, const iso_state *state, char difference[200]) ISO_MUST_CHECK;

struct iso_manifest;
/* How far to look: at manifest and sizes; also at CRCs and coverage; the same with all data read from the disk itself.
 */
typedef enum iso_depth { ISO_SHALLOW, ISO_DEEP, ISO_DEEP_DIRECT } iso_depth;
/* Examines one snapshot folder: manifest, file sizes, and with `deep` also CRCs and coverage. Logs nothing: `faults`
 * gets one line per fault, "FILE: cause". FORMAT: damaged. Any other error: the system refused, which says nothing
 * about the snapshot. `uuid` may be NULL: not checked. `manifest` is filled in when the manifest itself is good (fini
 * it in any case). */
iso_status iso_snapshot_examine(const char *folder, const char *uuid, iso_depth deep, struct iso_manifest *manifest,
                                iso_string *faults) ISO_MUST_CHECK;

/* ---- snapshot_find.c ------------------------------------------------------------------------------ */

/* Finds the newest valid snapshot, at_step >= 0: of that step or one before; fills info. Damaged ones are named in one
 * warning line each, and by a line of `damaged` (may be NULL) each; they stay where they are. `found` false when there
 * is none. No state is read into memory, but every byte of the one found was checked. */
iso_status iso_snapshot_find(const char *run, int64_t at_step, iso_string *damaged, char folder[ISO_SNAPSHOT_PATH],
                             iso_snapshot_info *info, bool *found) ISO_MUST_CHECK;
/* Moves those that iso_snapshot_find named to aside/. For the run's owner, once the state that it goes on from is known
 * to be all that was acknowledged, and is on the disk: until then one that the disk would not read may be the only copy
 * of a durable step. */
iso_status iso_snapshot_set_damaged_aside(const char *run, const iso_string *damaged) ISO_MUST_CHECK;
/* Moves every snapshot that a newer incarnation made void to aside/, for the run's owner. `moved` counts them. */
iso_status iso_snapshot_set_void_aside(const char *run, int64_t *moved) ISO_MUST_CHECK;
/* A snapshot as its folder shows it. */
typedef struct iso_snapshot_entry {
  int64_t step;
  int incarnation;
  bool is_void, has_manifest;
  const char *name;   /* step-%08d-%04d */
  const char *folder; /* path */
} iso_snapshot_entry;
/* All of a run's, newest first, in the arena. */
iso_status iso_snapshot_list(iso_arena *arena, const char *run, iso_snapshot_entry **entries,
                             size_t *count) ISO_MUST_CHECK;
/* The lowest and the highest step of which there is a snapshot's folder that is not void, valid or not; -1: none. */
iso_status iso_snapshot_range(const char *run, int64_t *oldest, int64_t *newest) ISO_MUST_CHECK;
/* Deletes all but the newest `keep_last` (at least 1) valid snapshots and those whose step is a multiple of
 * `keep_every` (0: none); only ever deletes what is older than a newer one verified in this call. Void snapshots go to
 * aside/. BUSY, and nothing more is deleted, once an incarnation newer than that of this process has begun. */
iso_status iso_snapshot_prune(const char *run, int incarnation, int keep_last, int64_t keep_every) ISO_MUST_CHECK;
/* The same, but the newest valid one at or before step `needed` (-1: none) stays, too. */
iso_status iso_snapshot_prune_but(const char *run, int incarnation, int keep_last, int64_t keep_every,
                                  int64_t needed) ISO_MUST_CHECK;
/* Verifies identity, incarnations and every snapshot of the run (reads all). One line per fault to `out`; CHECK when
 * there are any. `snapshots` (may be NULL) counts them. A snapshot that its run deletes meanwhile is none. */
iso_status iso_snapshot_verify(const char *run, FILE *out, int64_t *snapshots) ISO_MUST_CHECK;

/* ---- wal_format.c: the bytes of the step log ------------------------------------------------------- */

enum { ISO_WAL_BLOCK = 4096 };
typedef enum iso_wal_kind { ISO_WAL_PAYLOAD = 1, ISO_WAL_COMMIT = 2 } iso_wal_kind;
typedef enum iso_wal_codec { ISO_WAL_RAW = 0, ISO_WAL_PLANES = 1 } iso_wal_codec; /* packed: wal_codec.c */

/* One file, log/%04d-%05d-%06d.log: a head block, then frames. */
typedef struct iso_wal_segment {
  int incarnation, shard, number;
  int64_t elements, first_step; /* of the whole state; the first step that may stand in it */
  iso_dtype gradient;
  int optimizer_version;
  char uuid[37];
} iso_wal_segment;
/* A head block, then `bytes` of payload or commit, padded with zeros to blocks. */
typedef struct iso_wal_frame {
  iso_wal_kind kind;
  iso_wal_codec codec;
  int incarnation, shard;
  int64_t step, begin, end; /* elements; of a commit the range of the shard */
  int64_t bytes, number;    /* number: frames of this segment before it */
  uint32_t payload_crc;     /* of the padded bytes behind the head */
} iso_wal_frame;
/* What a commit says of its step: all that the optimizer needs beside the gradient, and all counters after it. */
typedef struct iso_wal_record {
  int64_t step, adam_step, tokens, refused_total, scored;
  int64_t durable; /* newest step known to be durable when this one was written */
  double norm, loss_sum;
  float lr, beta1, beta2, eps, weight_decay, clip, bias1, bias2;
  bool refused;
  uint32_t decay;            /* which parameters decayed beside matrices: 1 embeddings, 2 norms and biases */
  const iso_cursor *cursors; /* borrowed */
  size_t cursor_count;
} iso_wal_record;
enum { ISO_WAL_DECAYS = 4 };
size_t iso_wal_padded(size_t bytes);
void iso_wal_segment_encode(const iso_wal_segment *segment, void *block);
void iso_wal_frame_encode(const iso_wal_frame *frame, void *block);
/* NULL, or what is wrong. */
const char *iso_wal_segment_decode(const void *block, iso_wal_segment *segment);
const char *iso_wal_frame_decode(const void *block, const iso_wal_segment *segment, iso_wal_frame *frame);
size_t iso_wal_commit_bytes(size_t cursor_count);
/* payloads_crc: CRC-32C over the payload_crc of the step's payload frames, in order. */
void iso_wal_commit_encode(const iso_wal_record *record, int64_t payloads, uint32_t payloads_crc, void *body);
/* record->step is not set, its cursors point into `body`. */
bool iso_wal_commit_decode(const void *body, size_t bytes, iso_wal_record *record, int64_t *payloads,
                           uint32_t *payloads_crc);
/* The record's cursors become malloc'd ones, which are also *cursors. */
iso_status iso_wal_record_own(iso_wal_record *record, iso_cursor **cursors) ISO_MUST_CHECK;
void iso_wal_segment_name(const iso_wal_segment *segment, char name[40]);
bool iso_wal_segment_name_parse(const char *name, iso_wal_segment *segment);

/* ---- wal_cover.c: which elements the gradient frames of a step hold, in whatever order ------------------- */

typedef struct iso_wal_span {
  int64_t begin, end;
} iso_wal_span;
typedef struct iso_wal_cover { /* begins as zeros */
  iso_wal_span *spans;
  size_t count, capacity;
} iso_wal_cover;
/* fresh false: an element of it is there already, and nothing is added. */
iso_status iso_wal_cover_add(iso_wal_cover *cover, int64_t begin, int64_t end, bool *fresh) ISO_MUST_CHECK;
bool iso_wal_cover_is_whole(const iso_wal_cover *cover, int64_t elements);
void iso_wal_cover_fini(iso_wal_cover *cover);

/* ---- wal_codec.c: gradients packed without loss (ISO_WAL_PLANES) ------------------------------------------ */

enum { ISO_WAL_PACKED = 1 << 20 /* values of a packed frame, at most; a multiple of the norm's blocks */ };
typedef struct iso_wal_coder iso_wal_coder;
/* Bytes that the content of a packed frame of `count` values takes at most. */
size_t iso_wal_packed_bound(iso_dtype type, int64_t count);
/* For frames of `most` values; that much memory. */
size_t iso_wal_coder_bytes(iso_dtype type, int64_t most);
iso_status iso_wal_coder_create(iso_dtype type, int64_t most, iso_wal_coder **out) ISO_MUST_CHECK;
void iso_wal_coder_destroy(iso_wal_coder **coder);
/* Returns the bytes of the content. */
size_t iso_wal_pack(iso_wal_coder *coder, const void *values, int64_t count, void *content);
/* Whatever the content and the count are; NULL, or what is wrong: `values` are unusable then. */
const char *iso_wal_unpack(iso_wal_coder *coder, const void *content, size_t bytes, int64_t count, void *values);

/* ---- wal_write.c: the step log of a running incarnation ------------------------------------------------ */

typedef enum iso_wal_use { ISO_WAL_OFF, ISO_WAL_ON, ISO_WAL_AUTO } iso_wal_use;
typedef struct iso_wal iso_wal;
typedef struct iso_wal_options {
  const char *run; /* folder */
  const char *uuid;
  int incarnation;
  int64_t elements;
  iso_dtype gradient;
  int optimizer_version;
  int64_t segment_bytes; /* a segment that has this many is closed */
  bool disk;             /* a step is durable once it is synced, not once it is written */
  int shard;
  int64_t cursors;     /* of each step */
  iso_wal_use packed;  /* gradients packed */
  iso_wal_use several; /* writes in flight, where the kernel can */
  bool idle_core;      /* there is a core that the steps do not compute on */
  bool patient;        /* what cannot be written is tried again, with pauses, until iso_wal_suspend */
  double max_wait_s;   /* storage that does not answer for so long is said to hang; 0: 30 */
} iso_wal_options;
typedef struct iso_wal_state {
  int64_t durable;               /* newest step of an unbroken row from the log's first one */
  bool suspended;                /* writing failed: nothing is written until iso_wal_restart */
  bool gap;                      /* steps are missing behind `durable`: a snapshot must cover them */
  char cause[256];               /* then: why */
  iso_status status;             /* then: of what failed; IO when storage was too slow */
  int64_t segments;              /* begun */
  int64_t bytes;                 /* written, heads and padding included */
  int64_t raw_bytes;             /* of gradients */
  double write_s, sync_s, crc_s; /* spent; write_s holds crc_s */
  double pack_s;                 /* of write_s: packing */
  int64_t packed_steps;          /* written so */
  bool packed, several;          /* how the next step is written */
  char why[160];                 /* and why, as a phrase */
  bool failing;                  /* patient: storage refuses, it is tried again */
  double hangs_s;                /* since storage last answered, of a step being written; 0: none is */
} iso_wal_state;
/* Memory that its writes take (wal_output.c). */
size_t iso_wal_output_bytes(const iso_wal_options *options);
/* Begins at `first_step` (the step after the snapshot or the last one replayed). Starts the io thread. */
iso_status iso_wal_open(const iso_wal_options *options, int64_t first_step, iso_wal **out) ISO_MUST_CHECK;
enum { ISO_WAL_DEPTH = 2 }; /* steps in the log's hands, at most */
/* From now on `step` is computed into `reduced` (4 KiB aligned, all elements), which was released. What is final of it
 * may be handed over with iso_wal_range; the rest is with iso_wal_append. */
void iso_wal_begin(iso_wal *log, int64_t step, const void *reduced);
/* Elements [begin, end) of the step begun have their final values. Both stand on borders of 4 KiB, or end is that of
 * the state; no element comes twice; at most ISO_WAL_RANGES of them are smaller than ISO_NORM_BLOCK. Keeps nobody: no
 * lock is taken unless the log's thread sleeps. */
enum { ISO_WAL_RANGES = 16 };
void iso_wal_range(iso_wal *log, int64_t begin, int64_t end);
/* Hands a step over: returns at once. `reduced` must not change before iso_wal_release of it. Of a step that was begun
 * all or none of its ranges were handed over before. */
iso_status iso_wal_append(iso_wal *log, const iso_wal_record *record, const void *reduced) ISO_MUST_CHECK;
/* Waits until the log no longer reads `reduced`, at most max_s; false: it still does. */
bool iso_wal_release(iso_wal *log, const void *reduced, double max_s);
/* Gives up what is waiting to be written, all but a write that is under way. */
void iso_wal_suspend(iso_wal *log, const char *cause);
/* Waits until everything handed over is written (and synced with `disk`), or writing is suspended. */
void iso_wal_flush(iso_wal *log);
/* The same for at most max_s; false: it is not. */
bool iso_wal_flush_for(iso_wal *log, double max_s);
/* A snapshot of step first_step - 1 begins to be made: from first_step on steps go to a new segment, and if writing was
 * suspended they are written again. Behind a gap they count only once a snapshot of that step or a later one covers it.
 */
void iso_wal_restart(iso_wal *log, int64_t first_step);
/* A snapshot of `step` is published. */
void iso_wal_covered(iso_wal *log, int64_t step);
void iso_wal_state_get(iso_wal *log, iso_wal_state *state);
/* Flushes, but tries nothing again that fails. Says so, every max_wait_s, while storage hangs. */
void iso_wal_close(iso_wal **log);

/* ---- wal_read.c: what a run's log holds ------------------------------------------------------------------ */

typedef struct iso_wal_step {
  int64_t step;
  int incarnation;
  int64_t segment, offset; /* index of the segment; of the step's first frame */
  int64_t frames;          /* payload frames */
  int64_t commit;          /* offset of the commit frame */
} iso_wal_step;
typedef struct iso_wal_file {
  char name[40];
  iso_wal_segment head;
  int64_t bytes, good_bytes;   /* size; up to where frames can be followed */
  int64_t counted, superseded; /* whole steps that count, and that a newer incarnation made void */
  int64_t packed;              /* of both, those whose gradient is packed */
  bool usable;
  bool unread; /* the disk would not read some of it */
} iso_wal_file;
typedef struct iso_wal_index {
  iso_arena *arena;
  char run[4096];
  iso_wal_file *files;
  size_t file_count;
  iso_wal_step *steps; /* complete ones that count, by step */
  size_t step_count;
  int64_t newest_durable; /* newest step that any commit (or the caller) calls durable */
  iso_string torn;        /* lines on ends that no acknowledged step is lost by */
} iso_wal_index;
/* Reads the heads of all frames. `acknowledged`: newest step that is known to have been durable (0: none). `faults`
 * gets a line for each thing that is not as it should be. With `deep` also all payloads' CRCs. IO, MEMORY. */
iso_status iso_wal_index_read(const char *run, const char *uuid, bool deep, int64_t acknowledged, iso_wal_index *index,
                              iso_string *faults) ISO_MUST_CHECK;
void iso_wal_index_fini(iso_wal_index *index);
/* Whether the step may stand where the disk would not read: not in a segment that a later one continues from there. */
bool iso_wal_index_unread(const iso_wal_index *index, int64_t step);
/* The entry of a step that counts, newest incarnation first; NULL: none. */
const iso_wal_step *iso_wal_index_find(const iso_wal_index *index, int64_t step);
/* Reads one step: `reduced` gets all elements, `record` the commit (its cursors are malloc'd into *cursors). FORMAT
 * with a fault when a CRC is wrong. */
iso_status iso_wal_step_read(const iso_wal_index *index, const iso_wal_step *step, void *reduced,
                             iso_wal_record *record, iso_cursor **cursors, iso_string *faults) ISO_MUST_CHECK;

/* ---- wal_prune.c: what no snapshot needs any more, and what a newer start left ---------------------------- */

/* Deletes the segments of which no step is behind `step`: a snapshot of it is the oldest one kept. One that holds void
 * steps goes to aside/. BUSY as for iso_snapshot_prune. */
iso_status iso_wal_prune_by(const char *run, int incarnation, int64_t step) ISO_MUST_CHECK;
iso_status iso_wal_prune(const char *run, int64_t step) ISO_MUST_CHECK;
/* Moves segments all of whose steps are void to aside/, for the run's owner. `moved` counts them. */
iso_status iso_wal_set_void_aside(const char *run, int64_t *moved) ISO_MUST_CHECK;

/* ---- reach.c: the steps whose state can be had -------------------------------------------------------------- */

typedef struct iso_reach {
  iso_arena *arena; /* owns the ranges */
  struct {
    int64_t first, last;
  } * ranges; /* ascending, apart from each other */
  size_t count;
} iso_reach;
/* What snapshots (by their manifests and sizes) and the log lead to. `from_first`: the first weights can be made, so
 * step 0 is one. Quiet about damage: what is damaged leads nowhere. */
iso_status iso_reach_read(const char *run, const char *uuid, bool from_first, iso_reach *reach) ISO_MUST_CHECK;
void iso_reach_fini(iso_reach *reach);
/* "0 to 20, 31"; "none". */
void iso_reach_print(const iso_reach *reach, iso_string *out);

/* ---- wal_ahead.c: a step applied as it is read -------------------------------------------------------------- */

typedef struct iso_replay iso_replay;
typedef struct iso_wal_plan iso_wal_plan;
/* Where an uncompressed step stands in its segment, and its commit as iso_wal_step_read gives it. *out NULL: the step
 * is to be read the common way. */
iso_status iso_wal_plan_make(const iso_wal_index *index, const iso_wal_step *step, iso_wal_record *record,
                             iso_cursor **cursors, iso_wal_plan **out, iso_string *faults) ISO_MUST_CHECK;
void iso_wal_plan_destroy(iso_wal_plan **plan);
/* Tells the system to have the step in memory soon, never more than a few hundred MB before what was consumed
 * (*consumed counts bytes of all plans that `issued` counts). Returns when all is asked for, or at *stop. Who applies
 * the plan waits for it, so it must be called, by another thread. */
void iso_wal_plan_prefetch(iso_wal_plan *plan, int64_t *issued, _Atomic int64_t *consumed, const _Atomic bool *stop);
size_t iso_wal_plan_scratch(int threads);
/* Reads, checks and applies; `args` as for the whole state, without the gradient. false: something was not right, and
 * the state is of no use. */
bool iso_wal_plan_apply(iso_wal_plan *plan, const iso_replay *with, const iso_adamw_args *args, void *scratch,
                        _Atomic int64_t *consumed) ISO_MUST_CHECK;

/* ---- wal_replay.c: the state after a later step ----------------------------------------------------------- */

struct iso_replay {
  const iso_kernels *kernels;
  iso_team *team;
  int threads; /* of the team */
  iso_state *state;
  int optimizer_version;
  bool any_version; /* steps of other versions are applied too; their bits may differ from the run's */
  struct {
    int64_t *ranges, count; /* as in iso_adamw_args */
  } decay[ISO_WAL_DECAYS];  /* by iso_wal_record.decay */
  /* Loads the state anew as it was before the replay. Then steps are applied while they are read, and only should one
   * turn out to be damaged does all begin again, with care. NULL: with care at once. */
  iso_status (*restore)(const iso_replay *with);
  void *context; /* the caller's, for restore */
};
typedef struct iso_replay_report {
  int64_t steps, bytes; /* applied; of gradients */
  int64_t damaged_step; /* where it had to end; 0: the log has no more */
  int64_t acknowledged; /* newest step that the log itself calls durable (set by who reads the index) */
  double seconds;
} iso_replay_report;
/* Applies the steps after info->step, up to `last`, as far as they are in the log without a gap, and moves info on. A
 * damaged step ends it (a line in `faults`). MISMATCH: another model, precision or optimizer kernel version. */
iso_status iso_wal_replay(const iso_wal_index *index, const iso_replay *with, int64_t last, iso_snapshot_info *info,
                          iso_replay_report *report, iso_string *faults) ISO_MUST_CHECK;

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

#include "store/mirror.h"

#endif
