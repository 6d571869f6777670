/* SPDX-License-Identifier: Apache-2.0
 *
 * Which blobs a path means.
 *
 * A path is a file, a folder (every regular file below it), a glob, or in S3 a key or a prefix. The result is one list
 * sorted by strcmp of the whole paths, so that it depends neither on the locale nor on the order in which a file system
 * or a service lists names.
 *
 * Invariants
 *  1. Every regular file that the path means is listed once; nothing is left out by name.
 *  2. Size and version are those of the moment of listing: later reads compare with them.
 *  3. A folder that contains itself through a symbolic link is an error, not an endless walk.
 *
 * It does not read contents.
 */
#include "io/io.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

typedef struct listing {
  iso_arena *arena;
  iso_blob_info *blobs; /* heap while it grows */
  int64_t count, capacity;
} listing;

/* Folders from the root down to the one being walked. */
typedef struct ancestor {
  const struct ancestor *above;
  dev_t device;
  ino_t inode;
  int depth;
} ancestor;

bool iso_blob_is_remote(const char *path) {
  return strncmp(path, "s3://", 5) == 0;
}

static iso_status info_fill(iso_arena *arena, const char *path, const struct stat *info, iso_blob_info *out) {
  *out = (iso_blob_info){.path = iso_arena_strdup(arena, path), .bytes = (int64_t)info->st_size};
  if (!out->path) return iso_fail(ISO_ERR_MEMORY, "cannot list '%s': out of memory", path);
  snprintf(out->version, sizeof out->version, "%lld.%09ld", (long long)info->st_mtim.tv_sec, info->st_mtim.tv_nsec);
  return ISO_OK;
}

static iso_status listing_add(listing *list, const char *path, const struct stat *info) {
  if (list->count == list->capacity) {
    int64_t capacity = list->capacity ? 2 * list->capacity : 64;
    iso_blob_info *grown = realloc(list->blobs, (size_t)capacity * sizeof *grown);
    if (!grown) return iso_fail(ISO_ERR_MEMORY, "cannot list %lld files: out of memory", (long long)capacity);
    list->blobs = grown;
    list->capacity = capacity;
  }
  ISO_TRY(info_fill(list->arena, path, info, &list->blobs[list->count]));
  list->count++;
  return ISO_OK;
}

static iso_status stat_failed(const char *path) {
  if (errno == ENOENT || errno == ENOTDIR)
    return iso_fail(ISO_ERR_NOT_FOUND, "'%s' does not exist; check the path", path);
  return iso_os_fail("look at", path);
}

iso_status iso_blob_local(iso_arena *arena, const char *path, iso_blob_info *out) {
  struct stat info;
  if (iso_os.stat(path, &info) != 0) return stat_failed(path);
  if (!S_ISREG(info.st_mode)) return iso_fail(ISO_ERR_CONFIG, "'%s' is not a regular file; name a file", path);
  return info_fill(arena, path, &info, out);
}

/* Adds the file, or the files below the folder. `named`: the user named this very path, so it must be usable. */
static iso_status walk(listing *list, const char *path, bool named, const ancestor *above) {
  struct stat info;
  if (iso_os.stat(path, &info) != 0) return stat_failed(path);
  if (S_ISREG(info.st_mode)) return listing_add(list, path, &info);
  if (!S_ISDIR(info.st_mode)) {
    if (!named) return ISO_OK;
    return iso_fail(ISO_ERR_CONFIG, "'%s' is neither a regular file nor a folder; copy its contents to a file first",
                    path);
  }
  ancestor here = {above, info.st_dev, info.st_ino, above ? above->depth + 1 : 0};
  for (const ancestor *a = above; a; a = a->above)
    if (a->device == here.device && a->inode == here.inode)
      return iso_fail(ISO_ERR_FORMAT, "folder '%s' contains itself through a symbolic link; remove the link", path);
  if (here.depth > MAX_DEPTH)
    return iso_fail(ISO_ERR_FORMAT, "folder '%s' is nested deeper than %d levels", path, MAX_DEPTH);
  char **names = NULL;
  size_t count = 0;
  ISO_TRY(iso_path_list(list->arena, path, &names, &count));
  for (size_t i = 0; i < count; i++) {
    const char *child = iso_path_join(list->arena, path, names[i]);
    if (!child) return iso_fail(ISO_ERR_MEMORY, "cannot list '%s': out of memory", path);
    ISO_TRY(walk(list, child, false, &here));
  }
  return ISO_OK;
}

static iso_status walk_glob(listing *list, const char *pattern) {
  glob_t matches = {0};
  int error = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &matches);
  iso_status status = ISO_OK;
  if (error == GLOB_NOMATCH)
    status = iso_fail(ISO_ERR_NOT_FOUND, "no file matches '%s'; check the path", pattern);
  else if (error)
    status = iso_fail(error == GLOB_NOSPACE ? ISO_ERR_MEMORY : ISO_ERR_IO, "cannot expand '%s': %s", pattern,
                      error == GLOB_NOSPACE ? "out of memory" : "a folder on the way cannot be read");
  for (size_t i = 0; status == ISO_OK && i < matches.gl_pathc; i++)
    status = walk(list, matches.gl_pathv[i], true, NULL);
  globfree(&matches);
  return status;
}

static int by_path(const void *a, const void *b) {
  return strcmp(((const iso_blob_info *)a)->path, ((const iso_blob_info *)b)->path);
}

static iso_status list_local(iso_arena *arena, const char *path, iso_blob_info **blobs, int64_t *count) {
  listing list = {.arena = arena};
  iso_status status;
  if (!iso_path_exists(path) && strpbrk(path, "*?["))
    status = walk_glob(&list, path);
  else
    status = walk(&list, path, true, NULL);
  if (status == ISO_OK && list.count == 0)
    status = iso_fail(ISO_ERR_NOT_FOUND, "there is no regular file below '%s'; check the path", path);
  if (status == ISO_OK) {
    size_t bytes = (size_t)list.count * sizeof **blobs;
    *blobs = iso_arena_alloc(arena, bytes);
    if (*blobs) {
      memcpy(*blobs, list.blobs, bytes);
      *count = list.count;
    } else {
      status = iso_fail(ISO_ERR_MEMORY, "cannot list '%s': out of memory", path);
    }
  }
  free(list.blobs);
  return status;
}

iso_status iso_blobs_list(iso_arena *arena, const char *path, iso_blob_info **blobs, int64_t *count) {
  *blobs = NULL;
  *count = 0;
  if (!*path) return iso_fail(ISO_ERR_CONFIG, "a path is empty; name a file, a folder or a glob");
  if (iso_blob_is_remote(path)) return iso_s3_list(arena, path, blobs, count);
  ISO_TRY(list_local(arena, path, blobs, count));
  qsort(*blobs, (size_t)*count, sizeof **blobs, by_path);
  return ISO_OK;
}
