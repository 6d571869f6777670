/* SPDX-License-Identifier: Apache-2.0
 *
 * build: what the files of `isotach data build` share; data.h has what others call (iso_shards_build).
 *
 *   build.c cuts chunks ─ threads encode ─ build_order.c ─> build_shard.c: files, index, record
 *   build_folder.c: whose folder it is; build_record.c: shards that are there
 */
#ifndef ISO_DATA_BUILD_H
#define ISO_DATA_BUILD_H

#include "data/data.h"

/* ---- build_order.c: chunks to threads, batches of ids back in order ------------------------------------ */

typedef struct iso_build_bad {
  int64_t document; /* in its source */
  iso_bad why;
} iso_build_bad;
/* What became of a chunk of documents, or of a part of it. */
typedef struct iso_build_batch {
  struct iso_build_batch *after;
  int64_t number;  /* of the chunk */
  bool more;       /* the chunk goes on in another batch */
  bool takes_back; /* the batches of the chunk before this one do not count */
  char *ids;       /* as they are stored */
  size_t used, capacity;
  int32_t *lengths; /* tokens of the documents that ended here */
  size_t documents, length_capacity;
  int64_t bytes;      /* of stored text */
  iso_build_bad *bad; /* documents that are left out */
  size_t bad_count, bad_capacity;
  iso_status status; /* what ended it before its end, and the message */
  iso_string error;
} iso_build_batch;
typedef struct iso_build_order {
  pthread_mutex_t mutex; /* over all of it */
  pthread_cond_t written;
  int64_t chunks, next, head; /* how many; the next to be taken; the one that is due */
  int64_t window, held;       /* chunks taken and not written at most; bytes of ids that wait */
  iso_build_batch **ready;    /* [window] by number */
  iso_build_batch *idle;
  bool writing;        /* a thread writes */
  bool ended, stopped; /* no more are taken; nothing is written any more */
} iso_build_order;
iso_status iso_build_order_init(iso_build_order *order, int64_t chunks) ISO_MUST_CHECK;
void iso_build_order_fini(iso_build_order *order); /* no thread is in it; after init, whatever that returned */
enum { ISO_BUILD_OVER = -1, ISO_BUILD_FULL = -2 };
/* The next chunk. OVER: there is none for this thread any more; FULL: not yet, after a short wait. */
int64_t iso_build_order_take(iso_build_order *order);
/* An empty batch for a chunk; NULL: no memory (logged). */
iso_build_batch *iso_build_order_batch(iso_build_order *order, int64_t number);
/* Is it the chunk that is due? `wait`: until it is, or the order is stopped. */
bool iso_build_order_is_awaited(iso_build_order *order, int64_t number, bool wait);
bool iso_build_order_is_stopped(iso_build_order *order);
/* One with `more` only for the chunk that is due. A status that is not ISO_OK ends the order. */
void iso_build_order_give(iso_build_order *order, iso_build_batch *batch);
/* The batch that is due, for this thread to write, and be done with; NULL: it is not there, or another thread writes.
 * To be called after each give, until it returns NULL. */
iso_build_batch *iso_build_order_next(iso_build_order *order);
void iso_build_order_done(iso_build_order *order, iso_build_batch *batch);
void iso_build_order_end(iso_build_order *order);
void iso_build_order_stop(iso_build_order *order);
/* Room for so many more bytes of ids; a document has ended; a document is left out. */
iso_status iso_build_batch_reserve(iso_build_batch *batch, size_t bytes) ISO_MUST_CHECK;
iso_status iso_build_batch_count(iso_build_batch *batch, int32_t tokens) ISO_MUST_CHECK;
iso_status iso_build_batch_leave_out(iso_build_batch *batch, int64_t document, const iso_bad *why) ISO_MUST_CHECK;

/* ---- build_shard.c: the files of one shard -------------------------------------------------------------- */

typedef struct iso_build_shard {
  struct iso_build_shard *after; /* for lists of whoever has it */
  const char *folder;
  int64_t number;
  int id_bytes;
  iso_sink bin, idx, mark;
  iso_string bin_path, idx_path; /* temporary names */
  int64_t begun;                 /* bytes of .bin that are on their way to the disk */
  int64_t asked;                 /* bytes of .bin that are synced or about to be; whoever has it counts */
  iso_string bad;                /* numbers of those left out, as in a JSON array */
  int32_t *lengths;
  size_t capacity;
  int64_t documents, tokens, bad_count;
  int64_t bytes; /* of stored text; whoever has it counts */
} iso_build_shard;
/* Keeps `folder`. */
iso_status iso_build_shard_open(const char *folder, int64_t number, int id_bytes, iso_build_shard **out) ISO_MUST_CHECK;
/* Its files go too unless they have been published. */
void iso_build_shard_close(iso_build_shard **shard, bool published);
iso_status iso_build_shard_put(iso_build_shard *shard, const char *ids, size_t bytes) ISO_MUST_CHECK;
/* What is put from here on can be taken back. */
void iso_build_shard_mark(iso_build_shard *shard);
iso_status iso_build_shard_take_back(iso_build_shard *shard) ISO_MUST_CHECK;
/* Documents that ended, by their tokens. */
iso_status iso_build_shard_count(iso_build_shard *shard, const int32_t *lengths, size_t count) ISO_MUST_CHECK;
void iso_build_shard_leave_out(iso_build_shard *shard, int64_t document);
/* Writes the index. */
iso_status iso_build_shard_end(iso_build_shard *shard) ISO_MUST_CHECK;
/* Syncs and names the files, then the record. */
iso_status iso_build_shard_publish(iso_build_shard *shard) ISO_MUST_CHECK;

/* ---- build_folder.c: whose folder it is ---------------------------------------------------------------- */

typedef struct iso_build_folder {
  int lock;     /* descriptor; -1 */
  bool planned; /* build.json is of this process */
} iso_build_folder;
/* Makes the folder and takes it for one plan. BUSY, MISMATCH (another plan's; says what differs), CONFIG (other files
 * are there, or it lies in the source). The folder is to be left whatever came. */
iso_status iso_build_folder_take(const iso_shards_options *options, int64_t shard_bytes, int32_t eos,
                                 iso_build_folder *folder) ISO_MUST_CHECK;
/* `empty`: nothing was made; then a plan of this process goes, since another setting may do. */
void iso_build_folder_leave(const iso_shards_options *options, iso_build_folder *folder, bool empty);

/* ---- build_record.c: shards that are there ------------------------------------------------------------- */

typedef struct iso_build_record {
  int64_t bytes, crc, tokens, documents, index_bytes, index_crc, text_bytes, bad;
} iso_build_record;
/* Appends the path of a shard's file: "bin", "idx", "json" (its record). */
void iso_build_name(iso_string *out, const char *folder, int64_t number, const char *ending);
/* The record of a shard that is there; *there is false when it is still to be made. MISMATCH: its files are not as the
 * record says. */
iso_status iso_build_record_read(const char *folder, int64_t number, bool *there, iso_build_record *r) ISO_MUST_CHECK;

#endif
