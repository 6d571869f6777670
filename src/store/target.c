/* SPDX-License-Identifier: Apache-2.0
 *
 * Other places for what a run folder holds: the choice between them, and the one that is a folder.
 *
 * A folder target looks like the run folder itself, segments of the log included, so it can be used as one.
 *
 * Invariants
 *  1. A thing is written under a temporary name, synced and renamed; under its own name it is whole.
 *  2. What is put as new never replaces another thing.
 *  3. Appended bytes are synced before the append returns. What a killed append left may be there and not on the disk:
 *     the end of a listed segment that it can have written (`unsure`) is taken for missing, and appended again.
 *  4. A sweep, which comes before a listing, syncs every folder: what is listed has its name for good.
 */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

size_t iso_target_piece(int64_t bytes) {
  const int64_t least = (bytes + ISO_S3_MOST_PARTS - 1) / ISO_S3_MOST_PARTS;
  return least <= ISO_TARGET_PIECE ? ISO_TARGET_PIECE : (size_t)((least + (1 << 20) - 1) >> 20 << 20);
}

struct iso_target_writer {
  char *path;      /* final */
  char *temporary; /* NULL: appending */
  iso_sink sink;   /* of a whole file */
  int fd;          /* of an append */
  int64_t offset;
};

char *iso_target_path(const iso_target *target, const char *name) {
  iso_string path = {0};
  iso_string_printf(&path, "%s%s", target->root, name);
  if (!iso_string_failed(&path)) return path.data;
  iso_string_fini(&path);
  return NULL;
}

/* The folders above `path`, each made durable. */
static iso_status make_parents(const iso_target *target, const char *path) {
  const size_t root = strlen(target->root);
  char *part = strdup(path);
  iso_status status = part ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "mirror: no memory for a path");
  for (char *slash = part ? strchr(part + root, '/') : NULL; slash && status == ISO_OK;
       slash = strchr(slash + 1, '/')) {
    *slash = 0;
    if (iso_os.mkdir(part, 0777) == 0)
      status = iso_parent_sync(part);
    else if (errno != EEXIST)
      status = iso_os_fail("create folder", part);
    *slash = '/';
  }
  free(part);
  return status;
}

/* ---- writing ---- */

static iso_status equals(const char *path, const void *data, size_t bytes, bool *equal) {
  char *there;
  size_t length;
  ISO_TRY(iso_file_read(path, &there, &length));
  *equal = length == bytes && (bytes == 0 || memcmp(there, data, bytes) == 0);
  free(there);
  return ISO_OK;
}

static iso_status folder_put(iso_target *target, const char *name, const void *data, size_t bytes, bool *taken) {
  char *path = iso_target_path(target, name);
  bool equal = false;
  iso_status status = path ? make_parents(target, path) : ISO_ERR_MEMORY;
  if (status == ISO_OK)
    status = taken ? iso_file_publish(path, data, bytes, taken) : iso_file_replace(path, data, bytes);
  if (status == ISO_OK && taken && *taken) {
    status = equals(path, data, bytes, &equal);
    if (equal) *taken = false;
  }
  free(path);
  return status;
}

static void writer_free(iso_target_writer **address) {
  iso_target_writer *w = *address;
  if (w->fd >= 0) (void)iso_os.close(w->fd);
  free(w->path);
  free(w->temporary);
  free(w);
  *address = NULL;
}

static iso_status open_whole(iso_target_writer *w) {
  char attempt[33];
  iso_string temporary = {0};
  ISO_TRY(iso_attempt_id(attempt));
  iso_string_printf(&temporary, "%s.%s.tmp", w->path, attempt);
  if (iso_string_failed(&temporary)) return ISO_ERR_MEMORY;
  w->temporary = temporary.data;
  return iso_sink_open(&w->sink, w->temporary);
}

static iso_status open_append(iso_target_writer *w) {
  struct stat info;
  const bool is_new = iso_os.stat(w->path, &info) != 0;
  if (w->offset > (is_new ? 0 : info.st_size))
    return iso_fail(ISO_ERR_FORMAT, "mirror: '%s' is shorter than it was; what is missing is written again", w->path);
  do w->fd = iso_os.open(w->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  while (w->fd < 0 && errno == EINTR);
  if (w->fd < 0) return iso_os_fail("open", w->path);
  return is_new ? iso_parent_sync(w->path) : ISO_OK;
}

static iso_status folder_begin(iso_target *target, const char *name, int64_t offset, int64_t bytes,
                               iso_target_writer **out) {
  *out = NULL;
  iso_target_writer *w = calloc(1, sizeof *w);
  if (!w) return iso_fail(ISO_ERR_MEMORY, "mirror: no memory to write '%s'", name);
  *w = (iso_target_writer){.fd = -1, .offset = offset, .path = iso_target_path(target, name)};
  iso_status status = w->path ? make_parents(target, w->path) : ISO_ERR_MEMORY;
  if (status == ISO_OK) status = offset < 0 ? open_whole(w) : open_append(w);
  if (status != ISO_OK) {
    writer_free(&w);
    return status;
  }
  *out = w;
  return ISO_OK;
}

static iso_status folder_write(iso_target_writer *w, const void *data, size_t bytes) {
  if (w->temporary) return iso_sink_write(&w->sink, data, bytes);
  ISO_TRY(iso_file_pwrite(w->fd, w->path, data, bytes, w->offset));
  w->offset += (int64_t)bytes;
  return ISO_OK;
}

static void folder_cancel(iso_target_writer **address) {
  if (!*address) return;
  if ((*address)->temporary) iso_sink_abandon(&(*address)->sink);
  writer_free(address);
}

static iso_status folder_finish(iso_target_writer **address) {
  iso_target_writer *w = *address;
  iso_status status = ISO_OK;
  if (w->temporary) {
    status = iso_sink_commit(&w->sink);
    if (status == ISO_OK && iso_os.rename(w->temporary, w->path) != 0) status = iso_os_fail("publish", w->path);
    if (status == ISO_OK) status = iso_parent_sync(w->path);
    if (status != ISO_OK) (void)iso_os.unlink(w->temporary);
  } else if (iso_os.fdatasync(w->fd) != 0) {
    status = iso_os_fail("sync", w->path);
  }
  writer_free(address);
  return status;
}

/* ---- reading ---- */

static iso_status folder_get(iso_target *target, const char *name, char **data, size_t *bytes) {
  char *path = iso_target_path(target, name);
  bool exists = false;
  *data = NULL;
  *bytes = 0;
  iso_status status = path ? iso_path_probe(path, &exists) : ISO_ERR_MEMORY;
  if (status == ISO_OK && exists) status = iso_file_read(path, data, bytes);
  free(path);
  return status;
}

static iso_status stream_file(const char *path, iso_status (*take)(void *, const void *, size_t), void *context) {
  struct stat info;
  if (iso_os.stat(path, &info) != 0) return iso_os_fail("read", path);
  const int fd = iso_os.open(path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return iso_os_fail("open", path);
  char *buffer = malloc(ISO_TARGET_PIECE);
  iso_status status = buffer ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "no memory to read '%s'", path);
  for (int64_t at = 0; at < info.st_size && status == ISO_OK;) {
    const int64_t left = info.st_size - at;
    const size_t part = left < ISO_TARGET_PIECE ? (size_t)left : ISO_TARGET_PIECE;
    status = iso_file_pread(fd, path, buffer, part, at);
    if (status == ISO_OK) status = take(context, buffer, part);
    at += (int64_t)part;
  }
  free(buffer);
  (void)iso_os.close(fd);
  return status;
}

static iso_status folder_stream(iso_target *target, const char *name,
                                iso_status (*take)(void *context, const void *data, size_t bytes), void *context) {
  char *path = iso_target_path(target, name);
  const iso_status status = path ? stream_file(path, take, context) : ISO_ERR_MEMORY;
  free(path);
  return status;
}

typedef struct lister {
  iso_target *target;
  iso_arena *arena;
  iso_target_entry *entries; /* heap */
  size_t count, capacity;
  bool temporaries; /* those only, or all but those */
} lister;

/* NAME.<attempt>.tmp or NAME.tmp-<pid>-<number>: unfinished writes of this program. */
static bool is_temporary(const char *name) {
  const size_t length = strlen(name), tail = 1 + 32 + 4;
  const char *dash = strstr(name, ".tmp-");
  if (dash && dash[5] && strspn(dash + 5, "0123456789-") == strlen(dash + 5)) return true;
  if (length <= tail || strcmp(name + length - 4, ".tmp") != 0 || name[length - tail] != '.') return false;
  return strspn(name + length - tail + 1, "0123456789abcdef") == 32;
}

static iso_status add_entry(lister *l, const char *name, int64_t bytes) {
  if (l->count == l->capacity) {
    const size_t capacity = 2 * l->capacity + 64;
    iso_target_entry *grown = realloc(l->entries, capacity * sizeof *grown);
    if (!grown) return iso_fail(ISO_ERR_MEMORY, "mirror: no memory to list %zu files", capacity);
    l->entries = grown;
    l->capacity = capacity;
  }
  l->entries[l->count++] = (iso_target_entry){name, bytes};
  return ISO_OK;
}

static iso_status walk(lister *l, const char *name) {
  char **names;
  size_t count;
  const char *path = iso_arena_printf(l->arena, "%s%s", l->target->root, name);
  if (!path) return ISO_ERR_MEMORY;
  ISO_TRY(iso_path_list(l->arena, path, &names, &count));
  for (size_t i = 0; i < count; i++) {
    struct stat info;
    const char *child = *name ? iso_path_join(l->arena, name, names[i]) : names[i];
    const char *full = child ? iso_arena_printf(l->arena, "%s%s", l->target->root, child) : NULL;
    if (!full) return ISO_ERR_MEMORY;
    if (iso_os.stat(full, &info) != 0) continue; /* gone meanwhile */
    if (S_ISDIR(info.st_mode)) {
      if (strcmp(child, "aside") != 0) ISO_TRY(walk(l, child));
    } else if (S_ISREG(info.st_mode) && is_temporary(names[i]) == l->temporaries) {
      ISO_TRY(add_entry(l, child, info.st_size));
    }
  }
  return ISO_OK;
}

static int by_name(const void *a, const void *b) {
  return strcmp(((const iso_target_entry *)a)->name, ((const iso_target_entry *)b)->name);
}

static iso_status list_some(iso_target *target, iso_arena *arena, const char *prefix, bool temporaries,
                            iso_target_entry **entries, size_t *count) {
  lister l = {.target = target, .arena = arena, .temporaries = temporaries};
  char folder_name[128] = "";
  const char *slash = strrchr(prefix, '/');
  bool exists = true;
  if (slash && (size_t)(slash - prefix) < sizeof folder_name)
    snprintf(folder_name, sizeof folder_name, "%.*s", (int)(slash - prefix), prefix);
  const char *top = iso_arena_printf(arena, "%s%s", target->root, folder_name);
  iso_status status = top ? iso_path_probe(top, &exists) : ISO_ERR_MEMORY;
  if (status == ISO_OK && exists) status = walk(&l, folder_name);
  *entries = iso_arena_alloc(arena, (l.count + 1) * sizeof **entries);
  *count = 0;
  if (!*entries && status == ISO_OK) status = ISO_ERR_MEMORY;
  for (size_t i = 0; i < l.count && status == ISO_OK; i++)
    if (strncmp(l.entries[i].name, prefix, strlen(prefix)) == 0) (*entries)[(*count)++] = l.entries[i];
  if (status == ISO_OK && *count) qsort(*entries, *count, sizeof **entries, by_name);
  free(l.entries);
  return status;
}

static iso_status folder_list(iso_target *target, iso_arena *arena, const char *prefix, iso_target_entry **entries,
                              size_t *count) {
  return list_some(target, arena, prefix, false, entries, count);
}

/* ---- removing ---- */

static iso_status folder_remove(iso_target *target, const char *name) {
  char *path = iso_target_path(target, name);
  iso_status status = path ? ISO_OK : ISO_ERR_MEMORY;
  if (path && iso_os.unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR) status = iso_os_fail("delete", path);
  if (status == ISO_OK && strncmp(name, "snapshots/", 10) == 0) {
    *strrchr(path, '/') = 0;
    (void)iso_os.rmdir(path); /* succeeds with the last file of it */
  }
  free(path);
  return status;
}

/* Who made a name in it may have been killed before it synced the folder. */
static iso_status sync_folders(iso_arena *arena, const char *path) {
  char **names;
  size_t count;
  ISO_TRY(iso_path_sync(path));
  ISO_TRY(iso_path_list(arena, path, &names, &count));
  for (size_t i = 0; i < count; i++) {
    const char *child = iso_path_join(arena, path, names[i]);
    if (!child) return ISO_ERR_MEMORY;
    if (iso_path_is_folder(child) && strcmp(names[i], "aside") != 0) ISO_TRY(sync_folders(arena, child));
  }
  return ISO_OK;
}

static iso_status folder_sweep(iso_target *target) {
  iso_arena *arena = iso_arena_create();
  iso_target_entry *entries;
  size_t count = 0;
  iso_status status = arena ? list_some(target, arena, "", true, &entries, &count) : ISO_ERR_MEMORY;
  for (size_t i = 0; i < count && status == ISO_OK; i++) status = folder_remove(target, entries[i].name);
  if (status == ISO_OK) status = sync_folders(arena, target->root);
  iso_arena_destroy(&arena);
  return status;
}

static const iso_target_ops folder_ops = {folder_put, folder_begin,  folder_write, folder_finish, folder_cancel,
                                          folder_get, folder_stream, folder_list,  folder_remove, folder_sweep};

static iso_status folder_open(const char *where, iso_target *target) {
  size_t length = strlen(where);
  while (length && where[length - 1] == '/') length--;
  iso_string root = {0};
  iso_string_printf(&root, "%.*s/", (int)length, where);
  if (iso_string_failed(&root)) return iso_fail(ISO_ERR_MEMORY, "no memory to open '%s'", where);
  target->ops = &folder_ops;
  target->root = root.data;
  target->unsure = ISO_TARGET_PIECE; /* an append holds no more, or one step */
  return iso_path_make(target->root);
}

/* ---- either ---- */

iso_status iso_target_open(const char *where, iso_target **out) {
  *out = NULL;
  iso_target *target = calloc(1, sizeof *target);
  if (target) target->where = strdup(where);
  if (!target || !target->where) {
    free(target);
    return iso_fail(ISO_ERR_MEMORY, "no memory to open '%s'", where);
  }
  const iso_status status = iso_blob_is_remote(where) ? iso_target_s3_open(where, target) : folder_open(where, target);
  if (status != ISO_OK) {
    iso_target_close(&target);
    return status;
  }
  *out = target;
  return ISO_OK;
}

const char *iso_target_role(const iso_target *target) {
  return target->first ? "target" : "mirror";
}

void iso_target_close(iso_target **address) {
  iso_target *target = *address;
  if (!target) return;
  free(target->root);
  free(target->where);
  free(target);
  *address = NULL;
}

static iso_status take_piece(void *context, const void *data, size_t bytes) {
  return iso_sink_write(context, data, bytes);
}

iso_status iso_target_fetch(iso_target *target, const char *name, const char *path, int64_t *bytes, uint32_t *crc) {
  iso_sink sink;
  ISO_TRY(iso_sink_open(&sink, path));
  iso_status status = target->ops->stream(target, name, take_piece, &sink);
  if (status == ISO_OK) status = iso_sink_commit(&sink);
  if (status != ISO_OK) iso_sink_abandon(&sink);
  *bytes = sink.bytes;
  *crc = sink.crc;
  return status;
}
