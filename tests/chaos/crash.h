/* SPDX-License-Identifier: Apache-2.0
 *
 * crash: a disk that is cut off at any moment, and the run that is recovered from what is left of it.
 *
 *   disk.c    the OS seam records what a run does to its folder; the folder as a cut leaves it
 *   image.c   what a cut at any of these calls leaves, made from the record
 *   faults.c  the seam's entries, which fail when they are told to
 *   trial.c   one run under the seam: recover, check, go on to the end, check
 *   crash.c   which points are tried, by kind, on several processes; the verdict
 *   orders.c  cases that chance seldom meets, each made on purpose
 */
#ifndef ISO_TESTS_CHAOS_CRASH_H
#define ISO_TESTS_CHAOS_CRASH_H

#include "train/train.h"

/* ---- disk.c ---------------------------------------------------------------------------------------------------- */

typedef enum stratum {
  AT_START,      /* run.json, incarnations, settings */
  AT_APPEND,     /* a write of a step to the log */
  AT_ROLL,       /* a new segment of the log, its head, its folder's sync */
  AT_COMPLETION, /* one of several writes in flight is done, or a sync of the log is under way */
  AT_PUBLISH,    /* a snapshot */
  AT_DELETE,     /* of old snapshots and segments */
  AT_ASIDE,      /* something is set aside */
  AT_RECOVERY,   /* any call of a start that recovers, up to its first step */
  AT_RECORDS,    /* metrics.jsonl, status.json, report.json, the lock */
  AT_SECOND,     /* the mirror or target is written or read */
  AT_RESTORE,    /* the run folder is gone, and any call of a start that brings it back */
  AT_RANKS,      /* any call of a run of several ranks */
  AT_FAULT,      /* a call that fails, then a cut */
  STRATA
} stratum;
extern const char *const stratum_names[STRATA];

typedef enum op_kind {
  OP_CREATE,
  OP_MKDIR,
  OP_WRITE,
  OP_TRUNCATE,
  OP_SYNC,
  OP_SYNC_FAILED,
  OP_RENAME,
  OP_REMOVE
} op_kind;

extern const char *const op_names[]; /* by op_kind */

/* One call that changed something or made it durable. */
typedef struct op {
  op_kind kind;
  stratum at;
  int inode;            /* of the file or folder */
  int folder, to;       /* of the entry; where a rename leads */
  char *name, *to_name; /* in them */
  char *data;           /* written */
  int64_t offset, bytes;
  int begun;         /* of a sync: ops before this one are covered */
  bool settled;      /* it is on the disk whatever comes */
  int64_t acked;     /* newest durable step that these bytes state; 0: none */
  int64_t mirrored;  /* newest step that these bytes say the mirror leads to; 0: none */
  int64_t published; /* a sync of snapshots/: the newest snapshot that it makes durable */
  int64_t begins;    /* of a new incarnation coming to its name: the step that it begins after; -1: of none */
} op;

typedef struct disk_entry {
  int folder, inode;
  char name[128];
} disk_entry;

/* What happened to a folder since it was empty. Its inode is 0. */
typedef struct disk {
  char root[256]; /* path of the folder: holds the state with nothing lost */
  op *ops;
  int count, capacity, own; /* ops from `own` on were recorded here; those before are the parent's */
  int inodes;
  bool *folders; /* by inode */
  disk_entry *entries;
  int entry_count, entry_capacity;
  int second;               /* inode of the run's second place; 0: it has none */
  bool target;              /* and what is durable is what is there */
  int64_t acked, published; /* what was acknowledged before the first own op: against a kill; against a power cut */
  int64_t mirrored;         /* what was said to be in the mirror */
  int64_t renamed;          /* step of the newest manifest renamed into place */
  int renamed_in;           /* its folder */
  bool renamed_synced;
  bool harmed;       /* something of it was damaged */
  bool bereft;       /* one of its places was lost */
  bool doubted;      /* a start of it may refuse: word is left of steps that are not */
  bool restoring;    /* the run folder was lost, and is not back yet */
  int restored_at;   /* op with which it was; 0: none here */
  bool goes_back;    /* a start of it does */
  bool recovering;   /* no step was taken since the last start */
  bool in_flight;    /* the log's write being done was one of several */
  int boots;         /* power cuts so far */
  int starts;        /* recorded here */
  char history[400]; /* cuts and damage so far, for people */
} disk;

#define SECOND        "@second" /* what begins so lies in the second place, which is the folder ROOT.second */
#define SECOND_SUFFIX ".second"
typedef enum place { NEITHER, FIRST_PLACE, SECOND_PLACE } place;
extern const char *const disk_gone[]; /* by place */

typedef struct cut {
  int at;     /* ops before are done, this one is under way */
  bool power; /* else a kill: everything written survives */
  place gone; /* with all that it held */
  int mode;   /* of the power cut: which unsynced things survive; see disk.c */
  uint64_t seed;
} cut;
enum { CUT_MODES = 11 };

void disk_init(disk *d, const char *root);
/* An empty second place; before anything is recorded. target: what is called durable is there. */
void disk_add_second(disk *d, bool target);
/* The folder holds what the cut leaves, and `d` records from there on. */
void disk_after(disk *d, const disk *parent, const cut *c);
void disk_fini(disk *d);
/* All calls up to the cut, to stderr. */
void disk_dump(const disk *d, const cut *c);
/* A damaged sector: one byte of a file changes for good. */
bool disk_damage(disk *d, const char *relative, int64_t offset);
/* The file and its first `end` bytes survive whatever comes. */
bool disk_holds(const disk *d, const char *relative, int64_t end);
/* Acknowledged before op `at`, against a kill or a power cut. */
int64_t disk_acked(const disk *d, int at, bool power_cut_counts, bool power);
/* Said to be in the mirror before op `at`. */
int64_t disk_mirrored(const disk *d, int at);
/* Whether the folder holds exactly what was recorded: that nothing goes past the seam. */
bool disk_is_complete(const disk *d);
/* Of the folder's whole content as the last disk_after made it. */
uint64_t disk_hash(void);
int disk_find(const disk *d, const char *relative); /* inode, or -1 */
void disk_record_entry(disk *d, op_kind kind, const char *relative, int inode);
void disk_record_rename(disk *d, const char *from, const char *to);
void disk_record_write(disk *d, int inode, const void *data, int64_t bytes, int64_t offset);
void disk_record_truncate(disk *d, int inode, int64_t bytes);
void disk_record_sync(disk *d, int inode, int begun, bool failed);

typedef struct tree {
  disk_entry *entries;
  int count, capacity;
} tree;
int tree_at(const tree *t, int folder, const char *name); /* index, or -1 */
void tree_set(tree *t, int folder, const char *name, int inode);
void tree_drop(tree *t, int folder, const char *name);
_Noreturn void disk_die(const char *what);
void *disk_grow(void *array, int *capacity, int needed, size_t size);

/* ---- image.c ----------------------------------------------------------------------------------------------------- */

/* Numbers that do not depend on anything else. */
typedef struct dice {
  uint64_t seed, next;
} dice;
uint64_t dice_roll(dice *d);
int64_t dice_below(dice *d, int64_t limit);

typedef struct file {
  char *data;
  int64_t bytes, capacity;
} file;

typedef struct image {
  tree t;
  file *files; /* by inode */
  int inodes;
} image;
/* Which ops are on the disk for certain. Of a rename between folders the name's going may be certain, its coming, or
 * both: its coming is whenever one is. */
typedef struct certainty {
  bool here, gone; /* gone: of a rename, that the old name is not there any more */
} certainty;
/* Of the first `count` ops; malloc'd. */
certainty *disk_certain(const disk *d, int count);
bool op_changes(const op *o);
/* A kill within the call: what of it comes about; false: nothing. */
bool op_comes_about(const op *o, const cut *c, op *part);
image image_build(const disk *d, const cut *c);
/* One of the places goes with all that it holds. */
void image_lose(image *im, const disk *parent, place which);
void image_fini(image *im);

/* ---- faults.c ---------------------------------------------------------------------------------------------------- */

/* FAULT_SLOW: a write takes long, and succeeds. */
typedef enum fault_kind { FAULT_NONE, FAULT_FAIL, FAULT_SHORT, FAULT_SYNC, FAULT_READ, FAULT_SLOW } fault_kind;
typedef struct fault_plan {
  fault_kind kind;
  int error;
  const char *under; /* only calls on what begins with this, relative to the folder; NULL: all */
  bool writes_only;
  int64_t at, count; /* these calls fail */
  int64_t calls;     /* so far */
  bool met;
} fault_plan;

/* The seam records to `d` and fails as the plan (may be NULL) says, until seam_remove. */
void seam_install(disk *d, fault_plan *plan);
/* What a write of the log, and what a write or sync of a snapshot takes at least until seam_remove, so that what must
 * wait for them is seen to wait. */
void seam_pace(int log_us, int snapshot_us);
void seam_remove(void);
/* With the log's write of that number from now on, that process is killed. */
void seam_doom(pid_t process, int64_t writes);
/* From now on a thread waits up to so long before every eighth of its calls or so. 0: it does not. */
void seam_wander(int most_us);

/* ---- trial.c ------------------------------------------------------------------------------------------------------
 */

enum { STEPS = 20 };
typedef struct scenario {
  const char *name;
  bool disk;       /* durability */
  bool several;    /* writes of the log in flight */
  bool packed;     /* gradients */
  bool gap;        /* writes of the log fail for a while */
  bool slow;       /* or take longer than log.max_wait_s */
  int64_t stop_at; /* a first start ends here */
  int64_t back_to; /* and the next goes back to this step; 0: it does not */
  int64_t keep_every;
  const char *second;      /* "mirror" or "target"; NULL: the run has no second place */
  int ranks;               /* 0: one process */
  bool loses_rank;         /* rank 1 of a first start is killed */
  int log_us, snapshot_us; /* of seam_pace, while the run is recorded */
} scenario;
extern const scenario scenarios[];
extern const int scenario_count;

typedef struct verdict {
  bool lost, wrong;
  char text[512];
  int64_t recovered; /* read, or gone on from */
  int64_t here;      /* read in the run folder alone, before the start */
} verdict;

/* Writes config and corpus to `scratch`, and finds the digests of the run that nothing happens to: of that scenario, or
 * (NULL) of all. */
bool trial_prepare(const char *scratch, const scenario *only);
/* Newest step that the run folder leads to; 0: none. */
int64_t trial_newest(const disk *d);
/* The run from its beginning in d's empty folder; false: it did not end well (told). */
bool trial_first(const scenario *s, disk *d, dice *random);
/* What must be there. */
typedef struct duty {
  int64_t acked;    /* what a start goes on behind, at least */
  int64_t here;     /* of that, what the run folder alone leads to */
  int64_t second;   /* what the second place alone leads to */
  bool may_give_up; /* more was durable, but was damaged on purpose: a start may ask for --accept first */
} duty;
/* Recovers from what d's folder holds, checks, goes on to the end, checks. */
void trial_recover(const scenario *s, disk *d, const duty *to, verdict *out);
/* What can be read is at least as new as that, and right: changes nothing. */
void trial_look(const scenario *s, disk *d, int64_t acked, verdict *out);
/* Goes on while calls fail: may end in any way but a crash. Whether it ended well. */
bool trial_fault(const scenario *s, disk *d, fault_plan *plan);

#endif
