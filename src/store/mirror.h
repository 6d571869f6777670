/* SPDX-License-Identifier: Apache-2.0
 *
 * Other places for what a run folder holds: targets (folders, S3), the thread that copies a run to one, and the way
 * back. A part of store.h, which includes it.
 *
 * A mirror (checkpoint.mirror) is a copy behind the run. A first target (checkpoint.target) is where the run's durable
 * state lives: the same copy, but one process owns it, and only what it holds is durable.
 */
#ifndef ISO_STORE_MIRROR_H
#define ISO_STORE_MIRROR_H

/* ---- target.c, target_s3.c: another place for what a run folder holds ------------------------------- */

/* A folder or s3://bucket/prefix. Names are those of the run folder ("snapshots/step-.../manifest.json"). What is put
 * is there whole, or not at all, and carries its CRC-32C; only segments of the log ("log/....log") grow, by appending,
 * which in S3 makes an object for each part: log/NAME/OFFSET, OFFSET of 16 hex digits. One thread at a time. */
typedef struct iso_target iso_target;
typedef struct iso_target_entry {
  const char *name;
  int64_t bytes;
} iso_target_entry;
/* Something being written, in pieces of iso_target_piece(bytes), the last one shorter. */
typedef struct iso_target_writer iso_target_writer;
typedef struct iso_target_ops {
  /* One small thing. With `taken` never replacing; another thing of that name is told by *taken, an equal one is
   * success. */
  iso_status (*put)(iso_target *target, const char *name, const void *data, size_t bytes, bool *taken);
  /* offset < 0: a whole file, which replaces; else bytes that follow `offset` bytes of it. */
  iso_status (*begin)(iso_target *target, const char *name, int64_t offset, int64_t bytes, iso_target_writer **out);
  iso_status (*write)(iso_target_writer *writer, const void *data, size_t bytes);
  iso_status (*finish)(iso_target_writer **writer); /* ends it in any case */
  void (*cancel)(iso_target_writer **writer);
  /* All of a thing of at most ISO_TARGET_SMALL bytes, malloc'd and NUL-terminated; NULL: there is none. */
  iso_status (*get)(iso_target *target, const char *name, char **data, size_t *bytes);
  /* All of a thing, piece by piece. NOT_FOUND. `take` ends it by anything but ISO_OK. */
  iso_status (*stream)(iso_target *target, const char *name,
                       iso_status (*take)(void *context, const void *data, size_t bytes), void *context);
  /* What is there below `prefix`, sorted by name, in the arena; nothing is an empty list. */
  iso_status (*list)(iso_target *target, iso_arena *arena, const char *prefix, iso_target_entry **entries,
                     size_t *count);
  iso_status (*remove)(iso_target *target, const char *name); /* one that is gone is success */
  iso_status (*sweep)(iso_target *target);                    /* what killed writers left */
} iso_target_ops;
struct iso_target {
  const iso_target_ops *ops;
  char *where;    /* as it is called */
  char *root;     /* before every name: "FOLDER/" or "s3://bucket/prefix/" */
  bool first;     /* checkpoint.target: what is durable is what is there; else checkpoint.mirror */
  int64_t unsure; /* bytes at the end of a listed segment that an append which was killed may have left unsynced */
};
/* "target" or "mirror", for messages: also the last part of its key in the config. */
const char *iso_target_role(const iso_target *target);
enum { ISO_TARGET_SMALL = 16 << 20, ISO_TARGET_PIECE = 8 << 20 };
/* CONFIG when it cannot be one. Nothing is asked of the network yet; a folder is made. */
iso_status iso_target_open(const char *where, iso_target **out) ISO_MUST_CHECK;
void iso_target_close(iso_target **target);
size_t iso_target_piece(int64_t bytes);
/* Root and name, malloc'd; NULL: no memory. */
char *iso_target_path(const iso_target *target, const char *name);
iso_status iso_target_s3_open(const char *where, iso_target *target) ISO_MUST_CHECK;
/* Writes a new local file at `path` with the thing's bytes, synced; `crc` of them. */
iso_status iso_target_fetch(iso_target *target, const char *name, const char *path, int64_t *bytes,
                            uint32_t *crc) ISO_MUST_CHECK;

/* ---- target_lock.c: one process writes to a first target ---------------------------------------------- */

/* The owner's line stands in owner/%012lld; a sign of life makes the next number, which must not exist, and removes the
 * one before. So whoever makes the next number is the owner, and the one before finds out by its next sign of life. */
typedef struct iso_target_lock iso_target_lock;
/* BUSY, naming host and process, while another one owns it. One that is known to be gone, or is of this host before it
 * started anew and silent, is replaced; any other only with `take_over`, and if it is silent for 30 s. `target` is
 * borrowed. */
iso_status iso_target_lock_acquire(iso_target *target, bool take_over, iso_target_lock **out) ISO_MUST_CHECK;
/* A sign of life, when one is due. BUSY: another process has taken over. */
iso_status iso_target_lock_beat(iso_target_lock *lock) ISO_MUST_CHECK;
/* Nobody can have taken over yet: the last sign of life is younger than 20 s. */
bool iso_target_lock_holds(const iso_target_lock *lock);
void iso_target_lock_release(iso_target_lock **lock);

/* ---- mirror_pass.c: what the mirror lacks is copied, what the run no longer has is removed -------------- */

/* Shared by the run and the thread that mirrors. */
typedef struct iso_mirror_shared {
  _Atomic int64_t durable;       /* newest step that the run folder holds for good: set by the run */
  _Atomic int64_t mirrored;      /* newest step that the mirror alone leads to */
  _Atomic int64_t bytes, things; /* written */
  atomic_bool stop;              /* ends what is under way */
  atomic_bool behind;            /* set by the run: the newest snapshot goes first, and only the log behind it */
} iso_mirror_shared;
typedef struct iso_mirror_segment {
  char name[40];
  iso_wal_segment head; /* elements 0: not read yet */
  int64_t there;        /* bytes in the mirror when it was listed, which are there for good */
  int64_t copied;       /* whole steps: bytes in the mirror */
  int64_t followed;     /* where the next frame begins */
  bool local, bad;
} iso_mirror_segment;

typedef struct iso_mirror_memo { /* of a small file that is in the mirror */
  char name[64];
  uint32_t crc;
  size_t bytes;
} iso_mirror_memo;

/* What a mirroring process remembers; of one thread. */
typedef struct iso_mirror_work {
  const char *run, *uuid;
  int incarnation;
  iso_target *target;
  iso_target_lock *lock; /* of a first target; NULL: a mirror */
  iso_mirror_shared *shared;
  iso_arena *arena; /* of one pass */
  bool claimed, listed;
  bool leaps;                    /* a snapshot is being copied, and no log meanwhile */
  bool puts_off;                 /* the pass has left the older part of the log for later */
  int64_t leads;                 /* newest step that what is there leads to, told or not */
  iso_incarnation *incarnations; /* malloc'd */
  size_t incarnation_count;
  iso_mirror_segment *segments; /* malloc'd, by name */
  size_t segment_count, segment_capacity;
  struct {
    int64_t first, last;
  } * ranges; /* malloc'd: steps of the log in the mirror */
  size_t range_count, range_capacity;
  char (*complete)[64]; /* malloc'd: snapshots in the mirror */
  size_t complete_count, complete_capacity;
  char (*damaged)[64]; /* malloc'd: snapshots here that cannot be copied */
  size_t damaged_count, damaged_capacity;
  iso_mirror_memo memos[24];
  size_t memo_count;
  char *piece, *step; /* buffers: of a file, of the log */
  size_t piece_bytes, step_bytes;
  double slow_s; /* when metrics go again */
} iso_mirror_work;
/* All is borrowed. lock NULL: a mirror. */
iso_status iso_mirror_work_create(const char *run, const char *uuid, int incarnation, iso_target *target,
                                  iso_target_lock *lock, iso_mirror_shared *shared,
                                  iso_mirror_work **out) ISO_MUST_CHECK;
void iso_mirror_work_destroy(iso_mirror_work **work);
/* The mirror is this run's, and no newer incarnation is published there; this one is, from then on. BUSY: another
 * process has gone on from the mirror; what this one writes counts no more. MISMATCH: it holds another run. */
iso_status iso_mirror_claim(iso_mirror_work *work) ISO_MUST_CHECK;
/* Claims, and copies all that is missing. `last`: also what else goes only now and then, and nothing is put off. A
 * first target that is not owned for sure at the end is not complete: IO. */
iso_status iso_mirror_pass(iso_mirror_work *work, bool last) ISO_MUST_CHECK;
/* Moves shared->mirrored on, unless the first target may have another owner by now; exact: or back. */
void iso_mirror_tell_step(iso_mirror_work *work, bool exact);
void iso_mirror_count(iso_mirror_work *work, int64_t bytes);
/* Makes room in *list for one more of `size` bytes, and a buffer of at least `bytes`. */
iso_status iso_mirror_reserve(void *list, size_t count, size_t *capacity, size_t size) ISO_MUST_CHECK;
iso_status iso_mirror_reserve_bytes(char **buffer, size_t *have, size_t bytes) ISO_MUST_CHECK;
/* STOPPED; BUSY: the first target has another owner. Gives a sign of life when one is due. */
iso_status iso_mirror_goes_on(const iso_mirror_work *work) ISO_MUST_CHECK;

/* ---- mirror_log.c: the log's new steps in the mirror ---------------------------------------------------- */

/* Whether what lies behind the frame's head at `offset` has the CRC that the head states. Quiet. `buffer` has
 * ISO_TARGET_PIECE bytes. */
bool iso_mirror_frame_is_good(const iso_probe *probe, int64_t offset, const iso_wal_frame *frame, char *buffer);
/* Steps of this incarnation beyond the result are void. */
int64_t iso_mirror_counted_until(const iso_mirror_work *work, int incarnation);
/* The entry of a segment, made if there is none. */
iso_status iso_mirror_segment_of(iso_mirror_work *work, const char *name, iso_mirror_segment **out) ISO_MUST_CHECK;
/* To a first target: only what follows the step that it leads to. */
iso_status iso_mirror_copy_log(iso_mirror_work *work) ISO_MUST_CHECK;
/* To a first target: what it lacks of the steps before. */
iso_status iso_mirror_copy_old_log(iso_mirror_work *work) ISO_MUST_CHECK;
/* Removes segments of which no step lies behind the oldest snapshot. */
iso_status iso_mirror_prune_log(iso_mirror_work *work, int64_t oldest) ISO_MUST_CHECK;
/* As iso_mirror_claim, within a pass. */
iso_status iso_mirror_claim_again(iso_mirror_work *work) ISO_MUST_CHECK;

/* ---- mirror.c: the thread that mirrors ------------------------------------------------------------------- */

typedef struct iso_mirror iso_mirror;
typedef struct iso_mirror_state {
  int64_t step;    /* newest step that the mirror alone leads to */
  int64_t outages; /* begun */
  bool outage;     /* now */
  bool complete;   /* after iso_mirror_close: all that the run had is there */
  iso_status lost; /* BUSY, MISMATCH: the run goes on elsewhere, this process must stop */
  int64_t bytes, things;
  char cause[256]; /* of the outage, or of `lost` */
} iso_mirror_state;
/* Claims and starts the thread. `owned`: of a first target; NULL: of a mirror, for which an outage is no failure.
 * `settle`: what the thread does first; may be NULL. Keeps `target` and `owned` when it succeeds. */
iso_status iso_mirror_open(const char *run, const char *uuid, int incarnation, int64_t durable, iso_target *target,
                           iso_target_lock *owned, void (*settle)(void), iso_mirror **out) ISO_MUST_CHECK;
void iso_mirror_tell(iso_mirror *mirror, int64_t durable); /* there is more to copy */
void iso_mirror_state_get(iso_mirror *mirror, iso_mirror_state *state);
/* From now on, or no longer: a snapshot of the newest steps goes before the log. Of a first target. */
void iso_mirror_leap(iso_mirror *mirror, bool behind);
/* Waits until the mirror is complete or leads to the step `enough`: at most max_s, and during an outage at most
 * outage_s. Lets go of a first target. */
void iso_mirror_close(iso_mirror **mirror, double max_s, double outage_s, int64_t enough, iso_mirror_state *last);
/* Reads RUN/ROLE.json ("target", "mirror"), which the thread keeps. `there` false: the run has none. */
typedef struct iso_mirror_note {
  char where[512], cause[256]; /* cause: of an outage at that time, or "" */
  int64_t step, outages;
} iso_mirror_note;
iso_status iso_mirror_note_read(const char *run, const char *role, iso_mirror_note *note, bool *there) ISO_MUST_CHECK;

/* ---- mirror_restore.c: back from the mirror -------------------------------------------------------------- */

typedef struct iso_restore_report {
  bool holds;           /* the mirror holds this run */
  bool whole;           /* there was no run here: all came from the mirror */
  int64_t files, bytes; /* that came from the mirror */
  iso_string text;      /* lines: what was replaced, and why */
} iso_restore_report;
/* For the owner of the lock, before the run folder is opened. A folder without run.json gets the mirror's run, run.json
 * last, so that a killed restore goes on at the next start; in one that holds this run, identity, snapshots newer than
 * its own, and segments of the log that are cut or missing are replaced. BUSY: another process has gone on from the
 * mirror, unless `adopt`: then the folder goes on where that one is. MISMATCH: the mirror holds another run. fini the
 * report's text in any case. */
iso_status iso_mirror_restore(const char *run, iso_target *target, bool adopt,
                              iso_restore_report *report) ISO_MUST_CHECK;
/* What is damaged here by every byte, and whole in the mirror, is replaced: for a run that cannot be resumed. */
iso_status iso_mirror_repair(const char *run, iso_target *target, iso_restore_report *report) ISO_MUST_CHECK;
/* Compares all with the mirror, byte by byte; a line to `out` for each thing that it lacks or has otherwise. CHECK when
 * there are any. */
iso_status iso_mirror_verify(const char *run, iso_target *target, FILE *out) ISO_MUST_CHECK;

#endif
