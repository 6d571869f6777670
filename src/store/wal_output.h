/* SPDX-License-Identifier: Apache-2.0
 *
 * What the step log's writer is made of: segments and frames on their way to storage, and the choice of how they are
 * written. Apart from store.h because only wal_write.c uses it.
 */
#ifndef ISO_STORE_WAL_OUTPUT_H
#define ISO_STORE_WAL_OUTPUT_H

#include "store/store.h"

/* ---- wal_output.c: segments and frames on their way to storage ------------------------------ */

typedef struct iso_wal_output {
  const iso_wal_options *options; /* borrowed */
  char *folder, *path;
  int fd; /* -1: no segment is open */
  int number;
  int64_t offset, frames;
  int64_t segments; /* begun */
  bool whole;       /* the open segment holds a whole step */
  int64_t counted;  /* then: where the last of them ends */
  iso_writes *writes;
  iso_wal_coder *coder; /* NULL: never packs */
  char *body;           /* of a commit */
  size_t body_bytes;
} iso_wal_output;
typedef struct iso_wal_way {
  bool packed, several;
} iso_wal_way;
/* Where a step's gradient comes from, range by range. */
typedef enum iso_wal_coming { ISO_WAL_NOTHING_YET, ISO_WAL_RANGE, ISO_WAL_COMPLETE, ISO_WAL_GIVEN_UP } iso_wal_coming;
typedef struct iso_wal_source {
  void *self;
  int64_t step;
  const char *reduced;
  const iso_wal_record *record; /* set once it is complete */
  /* Range number i, which then stays as it is. `wait`: until it is there, or there will be no more of them. */
  iso_wal_coming (*next)(void *self, int64_t i, bool wait, iso_wal_span *range);
} iso_wal_source;
typedef struct iso_wal_spent { /* on a step */
  int64_t bytes;
  double write_s, sync_s, crc_s, pack_s;
  double waited_s; /* for ranges to become final: in none of the others */
} iso_wal_spent;
iso_status iso_wal_output_init(iso_wal_output *output, const iso_wal_options *options) ISO_MUST_CHECK;
void iso_wal_output_fini(iso_wal_output *output);
/* Writes a step as it becomes final, with `disk` syncs it; into a new segment when none is open. given_up: it will
 * never be complete; the segment is to be abandoned. */
iso_status iso_wal_output_step(iso_wal_output *output, const iso_wal_source *source, iso_wal_way way, bool *given_up,
                               iso_wal_spent *spent) ISO_MUST_CHECK;
/* Ends the open segment, synced. */
iso_status iso_wal_output_close(iso_wal_output *output) ISO_MUST_CHECK;
/* After a failure: the segment is not touched again. One without a whole step is deleted. */
void iso_wal_output_abandon(iso_wal_output *output);
/* Seconds of this thread that packing the whole gradient would take, and the share of its bytes that would be left. */
void iso_wal_output_try(iso_wal_output *output, const char *reduced, double *pack_s, double *share);

/* ---- wal_choice.c: how steps are written, by measurement ------------------------------------------------------ */

typedef struct iso_wal_choice {
  const iso_wal_options *options;
  iso_wal_way way;
  bool can_several, settled;     /* settled: whether several is known */
  int64_t steps, changed, tried; /* seen; of them at the last change, at the last trial */
  int agreed;                    /* steps in a row that ask for a change */
  double one_s, several_s;       /* shortest write of a step in either way */
  double raw_s, packed_s;        /* smoothed: writing a step in either way; 0: not known */
  double step_s;                 /* smoothed: of computing a step */
  double pack_s, share;          /* as tried */
  char why[160];
} iso_wal_choice;
void iso_wal_choice_init(iso_wal_choice *choice, const iso_wal_options *options, bool can_several);
/* The way of the next step; `try`: packing is to be tried on it. */
iso_wal_way iso_wal_choice_next(iso_wal_choice *choice, bool *try);
void iso_wal_choice_tried(iso_wal_choice *choice, double pack_s, double share);
/* A step was written in that way; step_s: what computing it took, 0: not known. */
void iso_wal_choice_learn(iso_wal_choice *choice, iso_wal_way way, double write_s, double step_s);

#endif
