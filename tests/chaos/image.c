/* SPDX-License-Identifier: Apache-2.0
 *
 * What a cut leaves of a folder, made from the record of calls alone: first what is certain to be on the disk, then of
 * the rest as much as the cut's mode and its dice say.
 *
 * After a kill everything written is there (of the write under way, a part), but stays unsynced: a later power cut may
 * still take it. After a power cut there is, beside what was synced, any part of the rest:
 *   - a write, in sectors of 512 bytes: whole, torn, or not at all, in any order, or once more behind a later one
 *   - the length of a file whose bytes were lost (they read as zeros then)
 *   - an entry of a folder (create, rename, unlink), each by itself; of a rename between folders also both names
 * What a failed sync of a file was to write may be lost for good: a later sync does not mend it.
 */
#include "chaos/crash.h"

#include <stdlib.h>
#include <string.h>

enum { SECTOR = 512 };
/* Of a power cut: what of the unsynced survives. */
enum {
  KEEP_NOTHING,
  KEEP_DATA,    /* but no entry */
  KEEP_ENTRIES, /* but no data */
  KEEP_SOME,    /* of the calls */
  KEEP_SECTORS, /* of the writes, and some of the entries */
  KEEP_FIRST,   /* some first calls, the last of them torn */
  LOSE_ONE,
  KEEP_ONE,
  REPEAT_ONE, /* all, and an earlier write comes again */
  KEEP_ALL,
  KEEP_ALL_TORN /* but sectors of the last write */
};

/* ---- dice ---- */

uint64_t dice_roll(dice *d) {
  uint64_t x = d->seed + ++d->next * UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
  return x ^ x >> 31;
}

int64_t dice_below(dice *d, int64_t limit) {
  return limit > 0 ? (int64_t)(dice_roll(d) % (uint64_t)limit) : 0;
}

/* ---- files ---- */

static void file_reserve(file *f, int64_t bytes) {
  if (bytes <= f->capacity) return;
  const int64_t capacity = bytes * 2 + 4096;
  f->data = realloc(f->data, (size_t)capacity);
  if (!f->data) disk_die("memory");
  memset(f->data + f->capacity, 0, (size_t)(capacity - f->capacity));
  f->capacity = capacity;
}

static void file_resize(file *f, int64_t bytes) {
  file_reserve(f, bytes);
  if (bytes < f->bytes) memset(f->data + bytes, 0, (size_t)(f->bytes - bytes));
  f->bytes = bytes;
}

static void file_write(file *f, const char *data, int64_t bytes, int64_t offset) {
  file_reserve(f, offset + bytes);
  memcpy(f->data + offset, data, (size_t)bytes);
  if (offset + bytes > f->bytes) f->bytes = offset + bytes;
}

/* Some of the sectors; with `length` the file becomes as long as if all had been written. */
static void write_sectors(file *f, const op *o, dice *random, bool length) {
  for (int64_t at = 0; at < o->bytes;) {
    const int64_t sector_end = ((o->offset + at) / SECTOR + 1) * SECTOR - o->offset;
    const int64_t end = sector_end < o->bytes ? sector_end : o->bytes;
    if (dice_below(random, 2)) file_write(f, o->data + at, end - at, o->offset + at);
    at = end;
  }
  if (length && o->offset + o->bytes > f->bytes) file_resize(f, o->offset + o->bytes);
}

/* ---- what survives ---- */

certainty *disk_certain(const disk *d, int count) {
  certainty *certain = calloc((size_t)count + 1, sizeof *certain);
  int *covered = calloc((size_t)d->inodes + 1, sizeof *covered);
  if (!certain || !covered) disk_die("memory");
  for (int i = count; i-- > 0;) {
    const op *o = &d->ops[i];
    if (o->kind == OP_SYNC && o->begun > covered[o->inode]) covered[o->inode] = o->begun;
    if (o->kind == OP_SYNC_FAILED && !d->folders[o->inode]) covered[o->inode] = 0;
    const bool data = o->kind == OP_WRITE || o->kind == OP_TRUNCATE;
    certain[i].here = o->settled || i < covered[data ? o->inode : o->to];
    certain[i].gone = o->settled || (o->kind == OP_RENAME && i < covered[o->folder]);
    if (certain[i].gone) certain[i].here = true;
  }
  free(covered);
  return certain;
}

bool op_changes(const op *o) {
  return o->kind != OP_SYNC && o->kind != OP_SYNC_FAILED;
}

static void apply(image *im, const op *o, bool both_names) {
  file *f = o->inode >= 0 ? &im->files[o->inode] : NULL;
  switch (o->kind) {
  case OP_CREATE:
  case OP_MKDIR:
    tree_set(&im->t, o->folder, o->name, o->inode);
    break;
  case OP_WRITE:
    file_write(f, o->data, o->bytes, o->offset);
    break;
  case OP_TRUNCATE:
    file_resize(f, o->bytes);
    break;
  case OP_RENAME: {
    const int at = tree_at(&im->t, o->folder, o->name);
    if (!both_names && at >= 0 && im->t.entries[at].inode == o->inode) tree_drop(&im->t, o->folder, o->name);
    tree_set(&im->t, o->to, o->to_name, o->inode);
    break;
  }
  case OP_REMOVE:
    tree_drop(&im->t, o->folder, o->name);
    break;
  case OP_SYNC:
  case OP_SYNC_FAILED:
    break;
  }
}

static void apply_uncertain(image *im, const op *o, int index, int of, int chosen, const cut *c, dice *random) {
  const bool entry = o->kind != OP_WRITE && o->kind != OP_TRUNCATE;
  bool keep = false, torn = false;
  switch (c->mode) {
  case KEEP_NOTHING:
    break;
  case KEEP_DATA:
    keep = !entry;
    break;
  case KEEP_ENTRIES:
    keep = entry;
    break;
  case KEEP_SOME:
    keep = dice_below(random, 2);
    break;
  case KEEP_SECTORS:
    torn = o->kind == OP_WRITE;
    keep = dice_below(random, 4) > 0;
    break;
  case KEEP_FIRST:
    keep = index < chosen;
    torn = index == chosen;
    break;
  case LOSE_ONE:
    keep = index != chosen;
    break;
  case KEEP_ONE:
    keep = index == chosen;
    break;
  case REPEAT_ONE:
  case KEEP_ALL:
    keep = true;
    break;
  default:
    keep = index < of - 1;
    torn = !keep;
    break;
  }
  const bool length = c->seed & 1; /* journalled apart from the data */
  if (torn && o->kind == OP_WRITE)
    write_sectors(&im->files[o->inode], o, random, length);
  else if (keep)
    apply(im, o, o->kind == OP_RENAME && o->folder != o->to && dice_below(random, 2));
  else if (length && o->kind == OP_WRITE && o->offset + o->bytes > im->files[o->inode].bytes)
    file_resize(&im->files[o->inode], o->offset + o->bytes);
}

/* A kill: of a write under way a part is there, of anything else all or nothing. */
bool op_comes_about(const op *o, const cut *c, op *part) {
  dice random = {.seed = c->seed ^ 0x5eed};
  *part = *o;
  if (!op_changes(o)) return false;
  if (o->kind != OP_WRITE) return dice_below(&random, 2);
  const int64_t sectors = dice_below(&random, o->bytes / SECTOR + 2);
  if (sectors * SECTOR < o->bytes) part->bytes = sectors * SECTOR;
  return part->bytes > 0;
}

image image_build(const disk *d, const cut *c) {
  const int count = c->at < d->count ? c->at + 1 : d->count; /* with the one under way */
  image im = {.inodes = d->inodes};
  im.files = calloc((size_t)d->inodes + 1, sizeof *im.files);
  certainty *certain = disk_certain(d, c->at < d->count ? c->at : d->count);
  dice random = {.seed = c->seed};
  int uncertain = 0, index = 0;
  if (!im.files) disk_die("memory");
  for (int i = 0; i < count; i++) uncertain += op_changes(&d->ops[i]) && !certain[i].here;
  const int chosen = uncertain ? (int)dice_below(&random, uncertain) : 0;
  const op *again = NULL;
  for (int i = 0; i < count; i++) {
    const op *o = &d->ops[i];
    if (!op_changes(o)) continue;
    op part;
    if (!c->power && i == c->at) {
      if (op_comes_about(o, c, &part)) apply(&im, &part, false);
    } else if (!c->power || certain[i].here) {
      const bool both = c->power && o->kind == OP_RENAME && o->folder != o->to && !certain[i].gone;
      apply(&im, o, both && dice_below(&random, 2));
    } else {
      if (index == chosen && o->kind == OP_WRITE) again = o;
      apply_uncertain(&im, o, index++, uncertain, chosen, c, &random);
    }
  }
  if (c->power && c->mode == REPEAT_ONE && again) apply(&im, again, false);
  free(certain);
  return im;
}

void image_fini(image *im) {
  for (int i = 0; i < im->inodes; i++) free(im->files[i].data);
  free(im->files);
}

/* With all that it holds. */
void image_lose(image *im, const disk *parent, place which) {
  tree *t = &im->t;
  const int folder = which == FIRST_PLACE ? 0 : parent->second;
  for (int i = t->count; i-- > 0;)
    if (t->entries[i].folder == folder && t->entries[i].inode != parent->second) t->entries[i] = t->entries[--t->count];
}
