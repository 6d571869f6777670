/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's things in S3, below s3://bucket/prefix/.
 *
 * An object is there whole or not at all, so each thing is one object under its name. Segments of the log grow, which
 * objects cannot: log/NAME/OFFSET (16 hex digits) holds the bytes from there on, whole steps always, and the segment is
 * these objects in order. Such an object is made once and never replaced: a request that was given up may still be on
 * its way, and one that holds fewer steps would come in the place of a newer one that holds more. (Those of older
 * builds may overlap: they hold the same bytes there.)
 *
 * Invariants
 *  1. Every object carries a CRC-32C that the service checked (s3_write.c).
 *  2. A segment ends where its objects stop joining.
 *  3. More than a piece goes up in parts, and is there when all of them are.
 *  4. A part of a segment is asked for as new. If one of that name is there that holds other bytes, the append fails;
 *     whoever appends lists the segment again and goes on from its end.
 */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

struct iso_target_writer {
  char *path;
  iso_s3_upload *upload;
  int64_t bytes, done;
  bool only_new; /* a part of a segment */
};

static bool is_segment(const char *name) {
  const size_t length = strlen(name);
  return strncmp(name, "log/", 4) == 0 && length > 8 && strcmp(name + length - 4, ".log") == 0;
}

/* ---- writing ---- */

static iso_status s3_put(iso_target *target, const char *name, const void *data, size_t bytes, bool *taken) {
  char *path = iso_target_path(target, name);
  const iso_status status = path ? iso_s3_put(path, data, bytes, taken) : ISO_ERR_MEMORY;
  free(path);
  return status;
}

static void writer_free(iso_target_writer **address) {
  free((*address)->path);
  free(*address);
  *address = NULL;
}

static void s3_cancel(iso_target_writer **address) {
  if (!*address) return;
  iso_s3_upload_abort(&(*address)->upload);
  writer_free(address);
}

static iso_status s3_begin(iso_target *target, const char *name, int64_t offset, int64_t bytes,
                           iso_target_writer **out) {
  iso_string path = {0};
  *out = calloc(1, sizeof **out);
  iso_string_printf(&path, "%s%s", target->root, name);
  if (offset >= 0) iso_string_printf(&path, "/%016llx", (long long)offset);
  if (!*out || iso_string_failed(&path)) {
    free(*out);
    *out = NULL;
    return iso_fail(ISO_ERR_MEMORY, "no memory to write '%s'", name);
  }
  **out = (iso_target_writer){.path = path.data, .bytes = bytes, .only_new = offset >= 0};
  iso_status status = ISO_OK;
  if (bytes > (int64_t)iso_target_piece(bytes))
    status = iso_s3_upload_begin(path.data, &(*out)->upload);
  else if (bytes == 0)
    status = iso_s3_put(path.data, "", 0, NULL);
  if (status != ISO_OK) writer_free(out);
  return status;
}

static iso_status judge_new(const iso_target_writer *w, iso_status status, bool taken) {
  if (status != ISO_OK || !taken) return status;
  return iso_fail(ISO_ERR_IO, "'%s' was written by an earlier request meanwhile; what is missing is written behind it",
                  w->path);
}

static iso_status s3_write(iso_target_writer *w, const void *data, size_t bytes) {
  bool taken = false;
  w->done += (int64_t)bytes;
  if (w->upload) return iso_s3_upload_part(w->upload, data, bytes);
  if (w->done != w->bytes)
    return iso_fail(ISO_ERR_INTERNAL, "'%s': %lld bytes in pieces, not in one", w->path, (long long)w->bytes);
  const iso_status status = iso_s3_put(w->path, data, bytes, w->only_new ? &taken : NULL);
  return judge_new(w, status, taken);
}

static iso_status s3_finish(iso_target_writer **address) {
  iso_target_writer *w = *address;
  iso_status status = ISO_OK;
  bool taken = false;
  if (w->done != w->bytes) {
    status = iso_fail(ISO_ERR_INTERNAL, "'%s': %lld bytes of %lld were written", w->path, (long long)w->done,
                      (long long)w->bytes);
    s3_cancel(address);
    return status;
  }
  if (w->upload) status = iso_s3_upload_complete(&w->upload, w->only_new ? &taken : NULL);
  status = judge_new(w, status, taken);
  writer_free(address);
  return status;
}

/* ---- listing ---- */

/* The offset in OFFSET of log/NAME/OFFSET and the length of log/NAME; false: it is no such name. */
static bool parse_part(const char *name, size_t *length, int64_t *offset) {
  const char *slash = strrchr(name, '/');
  if (!slash || strlen(slash + 1) != 16 || strspn(slash + 1, "0123456789abcdef") != 16) return false;
  *length = (size_t)(slash - name);
  if (strncmp(name, "log/", 4) != 0 || *length < 8 || strncmp(slash - 4, ".log", 4) != 0) return false;
  const unsigned long long value = strtoull(slash + 1, NULL, 16);
  *offset = (int64_t)value;
  return value <= INT64_MAX;
}

static iso_status s3_list(iso_target *target, iso_arena *arena, const char *prefix, iso_target_entry **entries,
                          size_t *count) {
  iso_blob_info *blobs;
  int64_t blob_count;
  const size_t root = strlen(target->root);
  char *path = iso_target_path(target, prefix);
  *count = 0;
  const iso_status status = path ? iso_s3_list_all(arena, path, &blobs, &blob_count) : ISO_ERR_MEMORY;
  free(path);
  ISO_TRY(status);
  *entries = iso_arena_alloc(arena, (size_t)(blob_count + 1) * sizeof **entries);
  if (!*entries) return ISO_ERR_MEMORY;
  for (int64_t i = 0; i < blob_count; i++) { /* sorted, so the objects of a segment come in order */
    const char *name = blobs[i].path + root;
    size_t length;
    int64_t offset;
    iso_target_entry *last = *count ? &(*entries)[*count - 1] : NULL;
    if (!parse_part(name, &length, &offset)) {
      (*entries)[(*count)++] = (iso_target_entry){name, blobs[i].bytes};
    } else if (last && strlen(last->name) == length && strncmp(last->name, name, length) == 0) {
      const int64_t end = offset + blobs[i].bytes;
      if (offset <= last->bytes && end > last->bytes) last->bytes = end;
    } else {
      const char *segment = iso_arena_printf(arena, "%.*s", (int)length, name);
      if (!segment) return ISO_ERR_MEMORY;
      (*entries)[(*count)++] = (iso_target_entry){segment, offset == 0 ? blobs[i].bytes : 0};
    }
  }
  return ISO_OK;
}

/* The objects of a segment. */
static iso_status list_parts(iso_target *target, iso_arena *arena, const char *name, iso_blob_info **blobs,
                             int64_t *count) {
  iso_string path = {0};
  iso_string_printf(&path, "%s%s/", target->root, name);
  const iso_status status = iso_string_failed(&path) ? ISO_ERR_MEMORY : iso_s3_list_all(arena, path.data, blobs, count);
  iso_string_fini(&path);
  return status;
}

/* ---- reading ---- */

static iso_status s3_get(iso_target *target, const char *name, char **data, size_t *bytes) {
  bool missing;
  char *path = iso_target_path(target, name);
  *data = NULL;
  *bytes = 0;
  const iso_status status = path ? iso_s3_get(path, ISO_TARGET_SMALL, data, bytes, &missing) : ISO_ERR_MEMORY;
  free(path);
  return status;
}

/* An object's bytes from `from` on. */
static iso_status stream_object(const iso_blob_info *info, int64_t from, char *buffer,
                                iso_status (*take)(void *, const void *, size_t), void *context) {
  for (int64_t at = from; at < info->bytes;) {
    const int64_t left = info->bytes - at, part = left < ISO_TARGET_PIECE ? left : ISO_TARGET_PIECE;
    ISO_TRY(iso_s3_read(info, at, part, buffer));
    ISO_TRY(take(context, buffer, (size_t)part));
    at += part;
  }
  return ISO_OK;
}

static iso_status stream_segment(iso_target *target, iso_arena *arena, const char *name, char *buffer,
                                 iso_status (*take)(void *, const void *, size_t), void *context) {
  iso_blob_info *blobs;
  int64_t count, end = 0;
  ISO_TRY(list_parts(target, arena, name, &blobs, &count));
  if (count == 0) return iso_fail(ISO_ERR_NOT_FOUND, "'%s%s' does not exist", target->root, name);
  for (int64_t i = 0; i < count; i++) {
    size_t length;
    int64_t offset;
    if (!parse_part(blobs[i].path + strlen(target->root), &length, &offset) || offset > end) break;
    if (offset + blobs[i].bytes <= end) continue;
    ISO_TRY(stream_object(&blobs[i], end - offset, buffer, take, context));
    end = offset + blobs[i].bytes;
  }
  return ISO_OK;
}

static iso_status stream_whole(iso_target *target, const char *name, char *buffer,
                               iso_status (*take)(void *, const void *, size_t), void *context) {
  iso_blob_info info;
  bool missing;
  char *path = iso_target_path(target, name);
  if (!path) return ISO_ERR_MEMORY;
  iso_status status = iso_s3_head(path, &info, &missing);
  info.path = path;
  if (status == ISO_OK && missing) status = iso_fail(ISO_ERR_NOT_FOUND, "'%s' does not exist", path);
  if (status == ISO_OK) status = stream_object(&info, 0, buffer, take, context);
  free(path);
  return status;
}

static iso_status s3_stream(iso_target *target, const char *name,
                            iso_status (*take)(void *context, const void *data, size_t bytes), void *context) {
  iso_arena *arena = iso_arena_create();
  char *buffer = malloc(ISO_TARGET_PIECE);
  iso_status status = arena && buffer ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "no memory to read '%s'", name);
  if (status == ISO_OK)
    status = is_segment(name) ? stream_segment(target, arena, name, buffer, take, context)
                              : stream_whole(target, name, buffer, take, context);
  free(buffer);
  iso_arena_destroy(&arena);
  return status;
}

/* ---- removing ---- */

static iso_status remove_segment(iso_target *target, iso_arena *arena, const char *name) {
  iso_blob_info *blobs;
  int64_t count;
  ISO_TRY(list_parts(target, arena, name, &blobs, &count));
  const char **paths = iso_arena_alloc(arena, (size_t)(count + 1) * sizeof *paths);
  if (!paths) return ISO_ERR_MEMORY;
  for (int64_t i = 0; i < count; i++) paths[i] = blobs[i].path;
  return iso_s3_delete_all(paths, (size_t)count); /* from the end: what is left is a segment */
}

static iso_status s3_remove(iso_target *target, const char *name) {
  iso_arena *arena = iso_arena_create();
  char *path = iso_target_path(target, name);
  iso_status status = arena && path ? ISO_OK : ISO_ERR_MEMORY;
  if (status == ISO_OK) status = is_segment(name) ? remove_segment(target, arena, name) : iso_s3_delete(path);
  free(path);
  iso_arena_destroy(&arena);
  return status;
}

static iso_status s3_sweep(iso_target *target) {
  int64_t count;
  return iso_s3_uploads_abort(target->root, &count);
}

static const iso_target_ops s3_ops = {s3_put, s3_begin,  s3_write, s3_finish, s3_cancel,
                                      s3_get, s3_stream, s3_list,  s3_remove, s3_sweep};

iso_status iso_target_s3_open(const char *where, iso_target *target) {
  char name[64];
  const char *key;
  iso_string root = {0};
  ISO_TRY(iso_s3_path_split(where, name, &key));
  size_t length = strlen(key);
  while (length && key[length - 1] == '/') length--;
  iso_string_printf(&root, "s3://%s/%.*s%s", name, (int)length, key, length ? "/" : "");
  if (iso_string_failed(&root)) return iso_fail(ISO_ERR_MEMORY, "no memory to open '%s'", where);
  target->ops = &s3_ops;
  target->root = root.data;
  return ISO_OK;
}
