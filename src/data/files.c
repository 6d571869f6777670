/* SPDX-License-Identifier: Apache-2.0
 *
 * files: which files a configured path means.
 *
 * A path is a file, a folder (every regular file below it) or a glob. The result is one list sorted by strcmp of the
 * whole paths, so that it depends neither on the locale nor on the order in which a file system lists names.
 *
 * Invariants
 *  1. Every regular file that the path means is listed once; nothing is left out by name.
 *  2. Size and modification time are those of the moment of listing: later reads compare with them.
 *  3. A folder that contains itself through a symbolic link is an error, not an endless walk.
 *
 * It does not read file contents.
 */
#include "data/data.h"

#include <errno.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64

typedef struct listing {
  iso_arena *arena;
  iso_data_file *files; /* heap while it grows */
  int64_t count, capacity;
} listing;

/* Folders from the root down to the one being walked. */
typedef struct ancestor {
  const struct ancestor *above;
  dev_t device;
  ino_t inode;
  int depth;
} ancestor;

static iso_status listing_add(listing *list, const char *path, const struct stat *info) {
  if (list->count == list->capacity) {
    int64_t capacity = list->capacity ? 2 * list->capacity : 64;
    iso_data_file *grown = realloc(list->files, (size_t)capacity * sizeof *grown);
    if (!grown) return iso_fail(ISO_ERR_MEMORY, "data: no memory to list %lld files", (long long)capacity);
    list->files = grown;
    list->capacity = capacity;
  }
  char *copy = iso_arena_strdup(list->arena, path);
  if (!copy) return iso_fail(ISO_ERR_MEMORY, "data: no memory for the name of \"%s\"", path);
  list->files[list->count++] = (iso_data_file){.path = copy,
                                               .bytes = (int64_t)info->st_size,
                                               .mtime_s = (int64_t)info->st_mtim.tv_sec,
                                               .mtime_ns = (int64_t)info->st_mtim.tv_nsec};
  return ISO_OK;
}

static iso_status stat_failed(const char *path, int error) {
  if (error == ENOENT || error == ENOTDIR)
    return iso_fail(ISO_ERR_NOT_FOUND, "data: \"%s\" does not exist; correct the source's path", path);
  return iso_fail(ISO_ERR_IO, "data: cannot look at \"%s\": %s", path, strerror(error));
}

/* Adds the file, or the files below the folder. `named`: the user named this very path, so it must be usable. */
static iso_status walk(listing *list, const char *path, bool named, const ancestor *above) {
  struct stat info;
  if (iso_os.stat(path, &info) != 0) return stat_failed(path, errno);
  if (S_ISREG(info.st_mode)) return listing_add(list, path, &info);
  if (!S_ISDIR(info.st_mode)) {
    if (!named) return ISO_OK;
    return iso_fail(ISO_ERR_CONFIG,
                    "data: \"%s\" is neither a regular file nor a folder; copy its contents to a file first", path);
  }
  ancestor here = {above, info.st_dev, info.st_ino, above ? above->depth + 1 : 0};
  for (const ancestor *a = above; a; a = a->above)
    if (a->device == here.device && a->inode == here.inode)
      return iso_fail(ISO_ERR_FORMAT, "data: folder \"%s\" contains itself through a symbolic link; remove the link",
                      path);
  if (here.depth > MAX_DEPTH)
    return iso_fail(ISO_ERR_FORMAT, "data: folder \"%s\" is nested deeper than %d levels", path, MAX_DEPTH);
  char **names = NULL;
  size_t count = 0;
  ISO_TRY(iso_path_list(list->arena, path, &names, &count));
  for (size_t i = 0; i < count; i++) {
    const char *child = iso_path_join(list->arena, path, names[i]);
    if (!child) return iso_fail(ISO_ERR_MEMORY, "data: no memory to list \"%s\"", path);
    ISO_TRY(walk(list, child, false, &here));
  }
  return ISO_OK;
}

static iso_status walk_glob(listing *list, const char *pattern) {
  glob_t matches = {0};
  int error = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &matches);
  iso_status status = ISO_OK;
  if (error == GLOB_NOMATCH)
    status = iso_fail(ISO_ERR_NOT_FOUND, "data: no file matches \"%s\"; correct the source's path", pattern);
  else if (error)
    status = iso_fail(error == GLOB_NOSPACE ? ISO_ERR_MEMORY : ISO_ERR_IO, "data: cannot expand \"%s\": %s", pattern,
                      error == GLOB_NOSPACE ? "out of memory" : "a folder on the way cannot be read");
  for (size_t i = 0; status == ISO_OK && i < matches.gl_pathc; i++)
    status = walk(list, matches.gl_pathv[i], true, NULL);
  globfree(&matches);
  return status;
}

static int by_path(const void *a, const void *b) {
  return strcmp(((const iso_data_file *)a)->path, ((const iso_data_file *)b)->path);
}

iso_status iso_data_files_list(iso_arena *arena, const char *path, iso_data_file **files, int64_t *count) {
  *files = NULL;
  *count = 0;
  if (!path || !*path) return iso_fail(ISO_ERR_CONFIG, "data: a source has no path; set data.sources[].path");
  if (strncmp(path, "s3://", 5) == 0)
    return iso_fail(ISO_ERR_UNSUPPORTED, "data: \"%s\": this build does not read s3:// sources; use local files", path);
  listing list = {.arena = arena};
  iso_status status;
  if (!iso_path_exists(path) && strpbrk(path, "*?["))
    status = walk_glob(&list, path);
  else
    status = walk(&list, path, true, NULL);
  if (status == ISO_OK && list.count == 0)
    status = iso_fail(ISO_ERR_NOT_FOUND, "data: no regular file below \"%s\"; correct the source's path", path);
  if (status == ISO_OK) {
    qsort(list.files, (size_t)list.count, sizeof *list.files, by_path);
    *files = iso_arena_alloc(arena, (size_t)list.count * sizeof **files);
    if (*files) {
      memcpy(*files, list.files, (size_t)list.count * sizeof **files);
      *count = list.count;
    } else {
      status = iso_fail(ISO_ERR_MEMORY, "data: no memory to list \"%s\"", path);
    }
  }
  free(list.files);
  return status;
}
