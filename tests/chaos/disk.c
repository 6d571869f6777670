/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated disk. A folder on a memory file system holds the volatile state; every call that changes it, and every
 * sync, is recorded with its bytes. What a cut at any of these calls leaves is built from the record alone, so one run
 * gives as many crashes as it made calls, times the ways in which unsynced things may be lost (image.c).
 *
 * A run's second place (checkpoint.mirror, checkpoint.target) is a folder beside it, in the record the entry SECOND of
 * the run's own. A cut may also take one of the two with all that it holds: its host is gone.
 */
#include "chaos/crash.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const stratum_names[STRATA] = {"start",   "append",        "segment roll", "completion", "publish",
                                           "delete",  "setting aside", "recovery",     "records",    "second place",
                                           "restore", "several ranks", "failing call"};

const char *const op_names[] = {"create", "mkdir", "write", "truncate", "sync", "failed sync", "rename", "remove"};

const char *const disk_gone[] = {"", ", the run folder is gone", ", the second place is gone"};

void disk_die(const char *what) {
  perror(what);
  abort();
}

void *disk_grow(void *array, int *capacity, int needed, size_t size) {
  if (needed <= *capacity) return array;
  *capacity = needed * 2 + 64;
  array = realloc(array, (size_t)*capacity * size);
  if (!array) disk_die("memory");
  return array;
}

static char *copy_of(const void *data, size_t bytes) {
  char *copy = malloc(bytes + 1);
  if (!copy) disk_die("memory");
  memcpy(copy, data, bytes);
  copy[bytes] = 0;
  return copy;
}

/* ---- the tree --------------------------------------------------------------------------------------------------- */

int tree_at(const tree *t, int folder, const char *name) {
  for (int i = 0; i < t->count; i++)
    if (t->entries[i].folder == folder && strcmp(t->entries[i].name, name) == 0) return i;
  return -1;
}

void tree_set(tree *t, int folder, const char *name, int inode) {
  int at = tree_at(t, folder, name);
  if (at < 0) {
    t->entries = disk_grow(t->entries, &t->capacity, t->count + 1, sizeof *t->entries);
    at = t->count++;
  }
  t->entries[at] = (disk_entry){.folder = folder, .inode = inode};
  snprintf(t->entries[at].name, sizeof t->entries[at].name, "%s", name);
}

void tree_drop(tree *t, int folder, const char *name) {
  const int at = tree_at(t, folder, name);
  if (at >= 0) t->entries[at] = t->entries[--t->count];
}

static tree tree_of(const disk *d) {
  return (tree){d->entries, d->entry_count, d->entry_capacity};
}

static void tree_store(disk *d, const tree *t) {
  d->entries = t->entries;
  d->entry_count = t->count;
  d->entry_capacity = t->capacity;
}

/* Folder and name of a path relative to the root; false: a folder of it is not there. */
static bool locate(const disk *d, const char *relative, int *folder, char name[128]) {
  const tree t = tree_of(d);
  *folder = 0;
  while (true) {
    const size_t length = strcspn(relative, "/");
    snprintf(name, 128, "%.*s", (int)length, relative);
    if (!relative[length]) return true;
    const int at = tree_at(&t, *folder, name);
    if (at < 0) return false;
    *folder = t.entries[at].inode;
    relative += length + 1;
  }
}

int disk_find(const disk *d, const char *relative) {
  int folder;
  char name[128];
  if (!*relative) return 0;
  if (!locate(d, relative, &folder, name)) return -1;
  const tree t = tree_of(d);
  const int at = tree_at(&t, folder, name);
  return at < 0 ? -1 : t.entries[at].inode;
}

/* Path of an inode, for telling kinds apart and for people. */
static void path_of(const disk *d, int inode, char *out, size_t capacity) {
  char built[512] = "", next[512];
  while (inode != 0) {
    int i = 0;
    while (i < d->entry_count && d->entries[i].inode != inode) i++;
    if (i == d->entry_count) break;
    snprintf(next, sizeof next, "%s%s%.300s", d->entries[i].name, built[0] ? "/" : "", built);
    snprintf(built, sizeof built, "%s", next);
    inode = d->entries[i].folder;
  }
  snprintf(out, capacity, "%s", built);
}

static int new_inode(disk *d, bool folder) {
  d->folders = realloc(d->folders, (size_t)(d->inodes + 1) * sizeof *d->folders);
  if (!d->folders) disk_die("memory");
  d->folders[d->inodes] = folder;
  return d->inodes++;
}

/* ---- recording ----------------------------------------------------------------------------------------------------
 */

static bool begins(const char *text, const char *with) {
  return strncmp(text, with, strlen(with)) == 0;
}

static stratum classify(const disk *d, const op *o, const char *path) {
  if (begins(path, SECOND)) return AT_SECOND;
  if (d->restoring) return AT_RESTORE;
  if (begins(path, "aside")) return AT_ASIDE;
  if (d->recovering) return d->own > 0 || d->starts > 1 ? AT_RECOVERY : AT_START;
  if (o->kind == OP_REMOVE && (begins(path, "log/") || begins(path, "snapshots/"))) return AT_DELETE;
  if (begins(path, "log")) {
    if (o->kind == OP_CREATE || (o->kind == OP_WRITE && o->offset == 0) || strcmp(path, "log") == 0) return AT_ROLL;
    return o->kind == OP_WRITE && !d->in_flight ? AT_APPEND : AT_COMPLETION;
  }
  if (begins(path, "snapshots")) {
    const op *before = d->count ? &d->ops[d->count - 1] : NULL; /* the sync behind a deletion is a part of it */
    return o->kind == OP_SYNC && before && before->kind == OP_REMOVE ? AT_DELETE : AT_PUBLISH;
  }
  if (begins(path, "run.json") || begins(path, "incarnations") || begins(path, "tokenizer") || begins(path, "config") ||
      begins(path, "model") || begins(path, "inputs") || begins(path, "fusion"))
    return AT_START;
  return AT_RECORDS;
}

static op *add(disk *d, op o, const char *path) {
  if (d->restoring && begins(path, "config.yaml.next")) { /* all is back */
    d->restoring = false;
    d->restored_at = d->count;
  }
  o.at = classify(d, &o, path);
  if (o.kind != OP_RENAME) o.begins = -1;
  d->ops = disk_grow(d->ops, &d->capacity, d->count + 1, sizeof *d->ops);
  d->ops[d->count] = o;
  return &d->ops[d->count++];
}

void disk_record_entry(disk *d, op_kind kind, const char *relative, int inode) {
  int folder;
  char name[128];
  if (!locate(d, relative, &folder, name)) abort();
  tree t = tree_of(d);
  if (kind == OP_REMOVE) {
    const int at = tree_at(&t, folder, name);
    inode = at < 0 ? -1 : t.entries[at].inode;
    tree_drop(&t, folder, name);
  } else {
    inode = new_inode(d, kind == OP_MKDIR);
    tree_set(&t, folder, name, inode);
  }
  tree_store(d, &t);
  add(d, (op){.kind = kind, .inode = inode, .folder = folder, .to = folder, .name = copy_of(name, strlen(name))},
      relative);
}

/* The step that an incarnation's record says it begins after. */
static int64_t stated_beginning(const disk *d, int inode, const char *to) {
  const char *key = "\"begins_after\": ";
  if (!begins(to, "incarnations/")) return -1;
  for (int i = d->count; i-- > 0;) {
    const op *o = &d->ops[i];
    const char *at = o->inode == inode && o->kind == OP_WRITE ? strstr(o->data, key) : NULL;
    if (at) return strtoll(at + strlen(key), NULL, 10);
  }
  return -1;
}

void disk_record_rename(disk *d, const char *from, const char *to) {
  int folder, to_folder;
  char name[128], to_name[128];
  if (!locate(d, from, &folder, name) || !locate(d, to, &to_folder, to_name)) abort();
  tree t = tree_of(d);
  const int at = tree_at(&t, folder, name);
  if (at < 0) abort();
  const int inode = t.entries[at].inode;
  tree_drop(&t, folder, name);
  tree_set(&t, to_folder, to_name, inode);
  tree_store(d, &t);
  long long step;
  if (sscanf(to, "snapshots/step-%lld-%*d/manifest.json", &step) == 1 && strcmp(to_name, "manifest.json") == 0)
    d->renamed = step, d->renamed_in = to_folder, d->renamed_synced = false;
  add(d,
      (op){.kind = OP_RENAME,
           .begins = stated_beginning(d, inode, to),
           .inode = inode,
           .folder = folder,
           .to = to_folder,
           .name = copy_of(name, strlen(name)),
           .to_name = copy_of(to_name, strlen(to_name))},
      to);
}

/* The newest step that a line or a status states by that key. */
static int64_t stated(const char *data, int64_t bytes, const char *key) {
  int64_t newest = 0;
  for (const char *at = data; (at = memmem(at, (size_t)(bytes - (at - data)), key, strlen(key))); at += strlen(key)) {
    const int64_t step = strtoll(at + strlen(key), NULL, 10);
    if (step > newest) newest = step;
  }
  return newest;
}

void disk_record_write(disk *d, int inode, const void *data, int64_t bytes, int64_t offset) {
  char path[512];
  path_of(d, inode, path, sizeof path);
  /* A start writes old lines anew: those say what was, and not what its second place leads to. */
  const bool lines = begins(path, "metrics.jsonl") && !strstr(path, ".tmp");
  const bool states = !d->restoring && (lines || begins(path, "status.json"));
  const bool steps = begins(path, "metrics.jsonl") || (begins(path, "log/") && !strstr(path, ".tmp"));
  if (steps && !d->restoring) d->recovering = false;
  op *o = add(d, (op){.kind = OP_WRITE, .inode = inode, .bytes = bytes, .offset = offset}, path);
  o->data = copy_of(data, (size_t)bytes);
  if (states) o->acked = stated(o->data, bytes, "\"durable_step\": ");
  if (d->target) o->mirrored = o->acked;
  if (begins(path, "mirror.json")) o->mirrored = stated(o->data, bytes, "\"mirrored_step\": ");
}

void disk_record_truncate(disk *d, int inode, int64_t bytes) {
  char path[512];
  path_of(d, inode, path, sizeof path);
  add(d, (op){.kind = OP_TRUNCATE, .inode = inode, .bytes = bytes}, path);
}

void disk_record_sync(disk *d, int inode, int begun, bool failed) {
  char path[512];
  path_of(d, inode, path, sizeof path);
  op *o = add(d, (op){.kind = failed ? OP_SYNC_FAILED : OP_SYNC, .inode = inode, .begun = begun}, path);
  if (!failed && inode == d->renamed_in) d->renamed_synced = true;
  if (!failed && strcmp(path, "snapshots") == 0 && d->renamed_synced) o->published = d->renamed;
}

/* A start that goes back takes back what was said of later steps: as soon as its record may be there. */
int64_t disk_acked(const disk *d, int at, bool power_cut_counts, bool power) {
  int64_t acked = power && !power_cut_counts ? d->published : d->acked;
  for (int i = d->own; i <= at && i < d->count; i++) {
    const op *o = &d->ops[i];
    const int64_t said = power && !power_cut_counts ? o->published : o->acked;
    if (d->goes_back && o->begins >= 0 && o->begins < acked) acked = o->begins;
    if (i < at && said > acked) acked = said;
  }
  return acked;
}

int64_t disk_mirrored(const disk *d, int at) {
  int64_t mirrored = d->mirrored;
  for (int i = d->own; i < at && i < d->count; i++)
    if (d->ops[i].mirrored > mirrored) mirrored = d->ops[i].mirrored;
  return mirrored;
}
/* ---- the folder itself --------------------------------------------------------------------------------------------
 */

static void remove_tree(const char *path) {
  DIR *folder = opendir(path);
  for (struct dirent *e; folder && (e = readdir(folder));) {
    char inner[1024];
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
    if (unlink(inner) != 0) remove_tree(inner);
  }
  if (folder) closedir(folder);
  rmdir(path);
}

static void age_line(char *line, size_t bytes) {
  enum { CRC_AND_END = 8 + 2 };
  const char *key = "\"time\": ";
  char cause[96], crc[9];
  const bool sealed = iso_record_check_line(line, bytes, cause) == ISO_SEAL_GOOD;
  char *at = memmem(line, bytes, key, strlen(key));
  if (at) at += strlen(key);
  for (; at && at < line + bytes && *at && strchr("0123456789.", *at); at++) /* a hole stays one */
    if (*at != '.') *at = '0';
  if (!sealed) return; /* cut */
  snprintf(crc, sizeof crc, "%08x", iso_crc32c(0, line, bytes - CRC_AND_END - strlen("\"crc32c\": \"")));
  memcpy(line + bytes - CRC_AND_END, crc, 8);
}

/* The machine starts anew: lines of metrics.jsonl are from before that. */
static void age_lines(file *f) {
  for (char *line = f->data, *end; line && line < f->data + f->bytes; line = end + 1) {
    end = memchr(line, '\n', (size_t)(f->data + f->bytes - line));
    if (!end) end = f->data + f->bytes;
    age_line(line, (size_t)(end - line));
  }
}

static uint64_t hashed;

static void hash_more(const void *data, size_t bytes) {
  const uint32_t low = iso_crc32c((uint32_t)hashed, data, bytes),
                 high = iso_crc32c((uint32_t)(hashed >> 32) ^ 7, data, bytes);
  hashed = ((uint64_t)high << 32 | low) * UINT64_C(0x9e3779b97f4a7c15);
}

uint64_t disk_hash(void) {
  return hashed;
}

/* Where an entry of a folder lies. */
static void child_path(const disk_entry *e, const char *path, char out[1024]) {
  if (e->folder == 0 && strcmp(e->name, SECOND) == 0)
    snprintf(out, 1024, "%s" SECOND_SUFFIX, path);
  else
    snprintf(out, 1024, "%s/%s", path, e->name);
}

static void put_folder(const image *im, const bool *folders, int folder, const char *path, int *reachable) {
  for (int i = 0; i < im->t.count; i++) {
    const disk_entry *e = &im->t.entries[i];
    if (e->folder != folder) continue;
    char inner[1024];
    child_path(e, path, inner);
    hash_more(inner, strlen(inner));
    reachable[i] = 1;
    if (folders[e->inode]) {
      if (mkdir(inner, 0777) != 0) disk_die(inner);
      put_folder(im, folders, e->inode, inner, reachable);
      continue;
    }
    const file *f = &im->files[e->inode];
    const int fd = open(inner, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 || (f->bytes && pwrite(fd, f->data, (size_t)f->bytes, 0) != f->bytes)) disk_die(inner);
    close(fd);
    if (strcmp(e->name, "lock") != 0) hash_more(f->data, (size_t)f->bytes);
  }
}

static op settle_entry(const image *im, const disk_entry *e, bool folder) {
  return (op){.kind = folder ? OP_MKDIR : OP_CREATE,
              .inode = e->inode,
              .folder = e->folder,
              .to = e->folder,
              .name = copy_of(e->name, strlen(e->name)),
              .settled = true};
}

/* What is on the disk now is there for good. */
static void settle(disk *d, const image *im, const int *reachable) {
  for (int i = 0; i < im->t.count; i++) {
    const disk_entry *e = &im->t.entries[i];
    if (!reachable[i]) continue;
    d->ops = disk_grow(d->ops, &d->capacity, d->count + 2, sizeof *d->ops);
    d->ops[d->count++] = settle_entry(im, e, d->folders[e->inode]);
    const file *f = &im->files[e->inode];
    if (d->folders[e->inode] || !f->bytes) continue;
    d->ops[d->count++] = (op){.kind = OP_WRITE,
                              .inode = e->inode,
                              .bytes = f->bytes,
                              .data = copy_of(f->data, (size_t)f->bytes),
                              .settled = true};
  }
}

static op own_copy(const op *o) {
  op copy = *o;
  if (o->name) copy.name = copy_of(o->name, strlen(o->name));
  if (o->to_name) copy.to_name = copy_of(o->to_name, strlen(o->to_name));
  if (o->data) copy.data = copy_of(o->data, (size_t)o->bytes);
  return copy;
}

/* The record so far, cut: of the write under way what there is of it. */
static void inherit(disk *d, const disk *parent, const cut *c) {
  for (int i = 0; i <= c->at && i < parent->count; i++) {
    op part = parent->ops[i];
    if (i == c->at && !op_comes_about(&parent->ops[i], c, &part)) continue;
    d->ops = disk_grow(d->ops, &d->capacity, d->count + 1, sizeof *d->ops);
    d->ops[d->count++] = own_copy(&part);
  }
}

void disk_init(disk *d, const char *root) {
  *d = (disk){.recovering = true};
  char second[300];
  snprintf(d->root, sizeof d->root, "%s", root);
  remove_tree(root);
  snprintf(second, sizeof second, "%s" SECOND_SUFFIX, root);
  remove_tree(second);
  new_inode(d, true);
}

void disk_add_second(disk *d, bool target) {
  char path[300];
  tree t = tree_of(d);
  snprintf(path, sizeof path, "%s" SECOND_SUFFIX, d->root);
  if (mkdir(path, 0777) != 0) disk_die(path);
  d->second = new_inode(d, true);
  d->target = target;
  tree_set(&t, 0, SECOND, d->second);
  tree_store(d, &t);
  op *o = add(d, (op){.kind = OP_MKDIR, .inode = d->second, .settled = true}, SECOND);
  o->name = copy_of(SECOND, strlen(SECOND));
}

void disk_after(disk *d, const disk *parent, const cut *c) {
  image im = image_build(parent, c);
  if (c->gone) image_lose(&im, parent, c->gone);
  disk_init(d, parent->root);
  snprintf(d->history, sizeof d->history, "%.280s; %s at call %d of %d%s", parent->history,
           c->power ? "power cut" : "kill", c->at, parent->count, disk_gone[c->gone]);
  d->second = parent->second;
  d->target = parent->target;
  d->restoring = c->gone == FIRST_PLACE || parent->restoring || c->at < parent->restored_at;
  for (int i = 1; i < parent->inodes; i++) new_inode(d, parent->folders[i]);
  for (int i = 0; c->power && i < im.t.count; i++)
    if (strcmp(im.t.entries[i].name, "metrics.jsonl") == 0) age_lines(&im.files[im.t.entries[i].inode]);
  int *reachable = calloc((size_t)im.t.count + 1, sizeof *reachable);
  if (!reachable || mkdir(d->root, 0777) != 0) disk_die(d->root);
  d->boots = parent->boots + (c->power && !d->target); /* who owned a target is looked for 30 s after that */
  d->harmed = parent->harmed;
  d->bereft = parent->bereft || c->gone;
  d->doubted = parent->doubted;
  hashed = c->power;
  put_folder(&im, d->folders, 0, d->root, reachable);
  if (c->power || c->gone)
    settle(d, &im, reachable);
  else
    inherit(d, parent, c);
  d->own = d->count;
  tree kept = {0};
  for (int i = 0; i < im.t.count; i++)
    if (reachable[i]) tree_set(&kept, im.t.entries[i].folder, im.t.entries[i].name, im.t.entries[i].inode);
  tree_store(d, &kept);
  free(im.t.entries);
  free(reachable);
  image_fini(&im);
}

void disk_dump(const disk *d, const cut *c) {
  certainty *certain = disk_certain(d, c->at < d->count ? c->at : d->count);
  fprintf(stderr, "crash: the calls so far (s: settled, +: on the disk, -: not)%s\n", d->history);
  for (int i = 0; i <= c->at && i < d->count; i++) {
    const op *o = &d->ops[i];
    char path[512];
    path_of(d, o->inode, path, sizeof path);
    if (i == d->own) fprintf(stderr, "  -- the start that is cut\n");
    fprintf(stderr, "  %4d %c %-11s %3d %s%s%s", i,
            o->settled        ? 's'
            : certain[i].here ? '+'
                              : '-',
            op_names[o->kind], o->inode, o->name ? o->name : path, o->to_name ? " -> " : "",
            o->to_name ? o->to_name : "");
    if (o->kind == OP_WRITE || o->kind == OP_TRUNCATE)
      fprintf(stderr, " %lld+%lld", (long long)o->offset, (long long)o->bytes);
    if (o->acked) fprintf(stderr, ", says that %lld is durable", (long long)o->acked);
    if (o->published) fprintf(stderr, ", publishes %lld", (long long)o->published);
    fprintf(stderr, "\n");
  }
  free(certain);
}

void disk_fini(disk *d) {
  for (int i = 0; i < d->count; i++) {
    free(d->ops[i].name);
    free(d->ops[i].to_name);
    free(d->ops[i].data);
  }
  free(d->ops);
  free(d->folders);
  free(d->entries);
  *d = (disk){0};
}

bool disk_damage(disk *d, const char *relative, int64_t offset) {
  char path[1024], byte;
  const int inode = disk_find(d, relative);
  snprintf(path, sizeof path, "%s/%s", d->root, relative);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  bool done = inode >= 0 && fd >= 0 && pread(fd, &byte, 1, offset) == 1;
  byte ^= 0x10;
  done = done && pwrite(fd, &byte, 1, offset) == 1;
  if (fd >= 0) close(fd);
  if (!done) return false;
  op *o = add(d, (op){.kind = OP_WRITE, .inode = inode, .bytes = 1, .offset = offset, .settled = true}, relative);
  snprintf(d->history + strlen(d->history), sizeof d->history - strlen(d->history), "; %.90s damaged", relative);
  o->data = copy_of(&byte, 1);
  d->harmed = true;
  d->own = d->count;
  return true;
}

bool disk_holds(const disk *d, const char *relative, int64_t end) {
  const int inode = disk_find(d, relative);
  int folder = 0;
  char name[128];
  if (inode < 0 || !locate(d, relative, &folder, name)) return false;
  certainty *certain = disk_certain(d, d->count);
  bool holds = true;
  for (int i = 0; i < d->count && holds; i++) {
    const op *o = &d->ops[i];
    if (certain[i].here || !op_changes(o) || (o->inode != inode && o->inode != folder)) continue;
    const bool behind = (o->kind == OP_WRITE && o->offset >= end) || (o->kind == OP_TRUNCATE && o->bytes >= end);
    holds = behind;
  }
  free(certain);
  return holds;
}

static bool same_as_folder(const disk *d, const image *im, int folder, const char *path) {
  int there = 0, known = 0;
  DIR *open_folder = opendir(path);
  if (!open_folder) return false;
  for (struct dirent *e; (e = readdir(open_folder));)
    there += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
  closedir(open_folder);
  for (int i = 0; i < im->t.count; i++) {
    const disk_entry *e = &im->t.entries[i];
    if (e->folder != folder) continue;
    known++;
    char inner[1024], *data;
    size_t bytes;
    child_path(e, path, inner);
    known -= inner[strlen(path)] != '/'; /* beside it */
    if (d->folders[e->inode]) {
      if (!same_as_folder(d, im, e->inode, inner)) return false;
      continue;
    }
    if (iso_file_read(inner, &data, &bytes) != ISO_OK) return false;
    const file *f = &im->files[e->inode];
    const bool same = (int64_t)bytes == f->bytes && (!bytes || memcmp(data, f->data, bytes) == 0);
    free(data);
    if (!same) fprintf(stderr, "crash: %s is not what was recorded\n", inner);
    if (!same) return false;
  }
  return there == known;
}

bool disk_is_complete(const disk *d) {
  const cut all = {.at = d->count};
  image im = image_build(d, &all);
  const bool same = same_as_folder(d, &im, 0, d->root);
  free(im.t.entries);
  image_fini(&im);
  return same;
}
