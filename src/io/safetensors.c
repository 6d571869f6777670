/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening safetensors files and sharded models.
 *
 * A file's header is read into memory of our own and checked there (safetensors_header.c); then the file is mapped
 * read-only and tensors point into the mapping. The size is looked at before and after, so that a file that is still
 * being written is refused instead of faulting later.
 *
 * Invariants
 *  1. No tensor points outside its file's mapping.
 *  2. An index names exactly the tensors that its shards hold, each with the shard that holds it.
 *  3. A shard's name stays in the index's folder: no '/', no "..".
 *
 * Not done here: no checksum (the format has none; snapshots keep theirs in the manifest). A disk that fails under a
 * mapping raises SIGBUS, which is why snapshots are read with pread and only models to import through the mapping.
 */
#include "io/io.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct shard {
  char *path;
  void *map;
  size_t map_bytes;
  iso_safetensors_table table;
} shard;

struct iso_safetensors {
  shard *shards;
  size_t shard_count;
  iso_safetensor *tensors; /* of all shards, sorted by name */
  size_t count;
};

/* ---- one file ---------------------------------------------------------------------------------------- */

static iso_status file_bytes(int fd, const char *path, int64_t *bytes) {
  struct stat info;
  if (fstat(fd, &info) != 0) return iso_os_fail("read the size of", path);
  if (!S_ISREG(info.st_mode)) return iso_fail(ISO_ERR_FORMAT, "safetensors file %s: not a regular file", path);
  *bytes = info.st_size;
  return ISO_OK;
}

static iso_status read_header(shard *s, int fd, int64_t bytes) {
  uint8_t first[8] = {0};
  int64_t length;
  ISO_TRY(iso_file_pread(fd, s->path, first, bytes < 8 ? (size_t)bytes : 8, 0));
  ISO_TRY(iso_safetensors_header_length(s->path, bytes, first, &length));
  char *header = malloc((size_t)length + 1);
  if (!header) {
    return iso_fail(ISO_ERR_MEMORY, "safetensors file %s: no memory for its header of %lld bytes", s->path,
                    (long long)length);
  }
  iso_status status = iso_file_pread(fd, s->path, header, (size_t)length, 8);
  if (status == ISO_OK) status = iso_safetensors_table_init(&s->table, s->path, bytes, header, (size_t)length);
  free(header);
  return status;
}

static iso_status map_data(shard *s, int fd, int64_t bytes) {
  int64_t now;
  void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (map == MAP_FAILED) return iso_os_fail("map", s->path);
  s->map = map;
  s->map_bytes = (size_t)bytes;
  ISO_TRY(file_bytes(fd, s->path, &now));
  if (now != bytes) {
    return iso_fail(ISO_ERR_FORMAT,
                    "safetensors file %s: its size changed from %lld to %lld while it was opened; is it being written?",
                    s->path, (long long)bytes, (long long)now);
  }
  for (size_t i = 0; i < s->table.count; i++) {
    iso_safetensor *tensor = &s->table.tensors[i];
    if (tensor->bytes) tensor->data = (const char *)map + tensor->offset;
  }
  return ISO_OK;
}

/* Takes over `path`. */
static iso_status shard_open(shard *s, char *path) {
  int64_t bytes;
  int fd;
  s->path = path;
  if (!path) return iso_fail(ISO_ERR_MEMORY, "safetensors: out of memory");
  /* O_NONBLOCK: a FIFO under that name is refused below instead of waited for */
  do fd = iso_os.open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC, 0);
  while (fd < 0 && errno == EINTR);
  if (fd < 0) return iso_os_fail("open", path);
  iso_status status = file_bytes(fd, path, &bytes);
  if (status == ISO_OK) status = read_header(s, fd, bytes);
  if (status == ISO_OK) status = map_data(s, fd, bytes);
  (void)iso_os.close(fd);
  return status;
}

void iso_safetensors_close(iso_safetensors **file) {
  if (!file || !*file) return;
  iso_safetensors *f = *file;
  for (size_t i = 0; i < f->shard_count; i++) {
    shard *s = &f->shards[i];
    if (s->map) munmap(s->map, s->map_bytes);
    iso_safetensors_table_fini(&s->table);
    free(s->path);
  }
  free(f->shards);
  free(f->tensors);
  free(f);
  *file = NULL;
}

static int by_name(const void *left, const void *right) {
  return strcmp(((const iso_safetensor *)left)->name, ((const iso_safetensor *)right)->name);
}

/* One sorted list over all shards; a tensor in two of them is an error. */
static iso_status merge(iso_safetensors *f) {
  for (size_t i = 0; i < f->shard_count; i++) f->count += f->shards[i].table.count;
  f->tensors = malloc((f->count + 1) * sizeof *f->tensors);
  if (!f->tensors) return iso_fail(ISO_ERR_MEMORY, "safetensors file %s: no memory for its tensors", f->shards[0].path);
  size_t used = 0;
  for (size_t i = 0; i < f->shard_count; i++) {
    const iso_safetensors_table *table = &f->shards[i].table;
    if (table->count) memcpy(f->tensors + used, table->tensors, table->count * sizeof *f->tensors);
    used += table->count;
  }
  if (used) qsort(f->tensors, used, sizeof *f->tensors, by_name);
  for (size_t i = 1; i < used; i++) {
    if (strcmp(f->tensors[i - 1].name, f->tensors[i].name) == 0) {
      return iso_fail(ISO_ERR_FORMAT, "safetensors: tensor '%.100s' is in two shards, %s and %s", f->tensors[i].name,
                      f->tensors[i - 1].file, f->tensors[i].file);
    }
  }
  return ISO_OK;
}

/* ---- an index and its shards ------------------------------------------------------------------------- */

typedef struct entry {
  const char *tensor, *shard;
} entry;

static int by_shard(const void *left, const void *right) {
  return strcmp(((const entry *)left)->shard, ((const entry *)right)->shard);
}

static int by_tensor(const void *left, const void *right) {
  return strcmp(((const entry *)left)->tensor, ((const entry *)right)->tensor);
}

static iso_status read_entries(const char *path, const iso_json *json, entry **entries, size_t *count) {
  const iso_json *map = iso_json_get(json, "weight_map");
  if (!cJSON_IsObject(map)) {
    return iso_fail(ISO_ERR_FORMAT, "index %s: no weight_map; is it a safetensors index?", path);
  }
  size_t n = 0;
  for (const cJSON *item = map->child; item; item = item->next) n++;
  if (n == 0) return iso_fail(ISO_ERR_FORMAT, "index %s: weight_map is empty", path);
  *entries = malloc(n * sizeof **entries);
  if (!*entries) return iso_fail(ISO_ERR_MEMORY, "index %s: no memory for %zu entries", path, n);
  for (const cJSON *item = map->child; item; item = item->next) {
    const char *name = cJSON_IsString(item) ? item->valuestring : NULL;
    if (!name)
      return iso_fail(ISO_ERR_FORMAT, "index %s: the file of tensor '%.100s' is not a string", path, item->string);
    if (!*name || strcmp(name, ".") == 0 || strchr(name, '/') || strstr(name, "..")) {
      return iso_fail(ISO_ERR_FORMAT,
                      "index %s: tensor '%.100s' is in '%.100s', which is no plain file name in the index's folder",
                      path, item->string, name);
    }
    (*entries)[(*count)++] = (entry){.tensor = item->string, .shard = name};
  }
  return ISO_OK;
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* Both lists sorted by tensor: they must be the same. */
static iso_status compare_entries(const char *path, const iso_safetensors *f, const entry *entries, size_t count) {
  for (size_t i = 0, k = 0; i < count || k < f->count;) {
    int order = i == count ? 1 : k == f->count ? -1 : strcmp(entries[i].tensor, f->tensors[k].name);
    if (order < 0) {
      return iso_fail(ISO_ERR_FORMAT, "index %s: tensor '%.100s' is not in its shard '%.100s'", path, entries[i].tensor,
                      entries[i].shard);
    }
    if (order > 0) {
      return iso_fail(ISO_ERR_FORMAT, "index %s: tensor '%.100s' of shard %s is not in the index", path,
                      f->tensors[k].name, f->tensors[k].file);
    }
    if (strcmp(entries[i].shard, base_name(f->tensors[k].file)) != 0) {
      return iso_fail(ISO_ERR_FORMAT, "index %s: tensor '%.100s' is in '%.100s', not in '%.100s'", path,
                      entries[i].tensor, base_name(f->tensors[k].file), entries[i].shard);
    }
    i++;
    k++;
  }
  return ISO_OK;
}

static iso_status open_shards(const char *path, iso_safetensors *f, entry *entries, size_t count) {
  qsort(entries, count, sizeof *entries, by_shard);
  size_t distinct = 1;
  for (size_t i = 1; i < count; i++) distinct += strcmp(entries[i - 1].shard, entries[i].shard) != 0;
  f->shards = calloc(distinct, sizeof *f->shards);
  if (!f->shards) return iso_fail(ISO_ERR_MEMORY, "index %s: no memory for %zu shards", path, distinct);
  int folder = (int)(base_name(path) - path);
  for (size_t i = 0; i < count; i++) {
    if (i && strcmp(entries[i - 1].shard, entries[i].shard) == 0) continue;
    char *shard_path;
    if (asprintf(&shard_path, "%.*s%s", folder, path, entries[i].shard) < 0) shard_path = NULL;
    ISO_TRY(shard_open(&f->shards[f->shard_count++], shard_path));
  }
  ISO_TRY(merge(f));
  qsort(entries, count, sizeof *entries, by_tensor);
  return compare_entries(path, f, entries, count);
}

static iso_status open_index(const char *path, iso_safetensors *f) {
  iso_json *json;
  entry *entries = NULL;
  size_t count = 0;
  ISO_TRY(iso_json_read(path, &json));
  iso_status status = read_entries(path, json, &entries, &count);
  if (status == ISO_OK) status = open_shards(path, f, entries, count);
  free(entries);
  iso_json_destroy(&json);
  return status;
}

static iso_status open_file(const char *path, iso_safetensors *f) {
  f->shards = calloc(1, sizeof *f->shards);
  if (!f->shards) return iso_fail(ISO_ERR_MEMORY, "safetensors file %s: out of memory", path);
  f->shard_count = 1;
  ISO_TRY(shard_open(&f->shards[0], strdup(path)));
  return merge(f);
}

static iso_status open_folder(const char *path, iso_safetensors *f) {
  iso_arena *arena = iso_arena_create();
  char *whole = arena ? iso_path_join(arena, path, "model.safetensors") : NULL;
  char *index = arena ? iso_path_join(arena, path, "model.safetensors.index.json") : NULL;
  iso_status status;
  if (!whole || !index) {
    status = ISO_ERR_MEMORY; /* logged already */
  } else if (iso_path_exists(whole)) {
    status = open_file(whole, f);
  } else if (iso_path_exists(index)) {
    status = open_index(index, f);
  } else {
    status = iso_fail(ISO_ERR_NOT_FOUND, "folder '%s' holds neither model.safetensors nor model.safetensors.index.json",
                      path);
  }
  iso_arena_destroy(&arena);
  return status;
}

iso_status iso_safetensors_open(const char *path, iso_safetensors **out) {
  size_t length = strlen(path);
  *out = NULL;
  iso_safetensors *f = calloc(1, sizeof *f);
  if (!f) return iso_fail(ISO_ERR_MEMORY, "cannot open '%s': out of memory", path);
  iso_status status;
  if (iso_path_is_folder(path)) {
    status = open_folder(path, f);
  } else if (length > 5 && strcmp(path + length - 5, ".json") == 0) {
    status = open_index(path, f);
  } else {
    status = open_file(path, f);
  }
  if (status != ISO_OK) {
    iso_safetensors_close(&f);
    return status;
  }
  *out = f;
  return ISO_OK;
}

/* ---- reading out --------------------------------------------------------------------------------------- */

size_t iso_safetensors_count(const iso_safetensors *file) {
  return file->count;
}

const iso_safetensor *iso_safetensors_at(const iso_safetensors *file, size_t index) {
  return index < file->count ? &file->tensors[index] : NULL;
}

const iso_safetensor *iso_safetensors_find(const iso_safetensors *file, const char *name) {
  iso_safetensor key = {.name = name};
  return file->count ? bsearch(&key, file->tensors, file->count, sizeof key, by_name) : NULL;
}

const char *iso_safetensors_metadata(const iso_safetensors *file, const char *key) {
  for (size_t i = 0; i < file->shard_count; i++) {
    const iso_safetensors_table *table = &file->shards[i].table;
    for (size_t k = 0; k < table->metadata_count; k++) {
      if (strcmp(table->metadata[2 * k], key) == 0) return table->metadata[2 * k + 1];
    }
  }
  return NULL;
}

/* The file promises no alignment: elements are fetched with memcpy. */
iso_status iso_safetensor_to_f32(const iso_safetensor *tensor, float *out) {
  const char *from = tensor->data;
  size_t count = (size_t)tensor->elements;
  if (strcmp(tensor->dtype, "F32") == 0) {
    if (count) memcpy(out, from, count * sizeof *out);
  } else if (strcmp(tensor->dtype, "BF16") == 0) {
    for (size_t i = 0; i < count; i++) {
      uint16_t half;
      memcpy(&half, from + 2 * i, 2);
      uint32_t bits = (uint32_t)half << 16;
      memcpy(&out[i], &bits, 4);
    }
  } else if (strcmp(tensor->dtype, "F16") == 0) {
    for (size_t i = 0; i < count; i++) {
      uint16_t half;
      memcpy(&half, from + 2 * i, 2);
      out[i] = iso_f16_to_f32(half);
    }
  } else if (strcmp(tensor->dtype, "F64") == 0) {
    for (size_t i = 0; i < count; i++) {
      double wide;
      memcpy(&wide, from + 8 * i, 8);
      out[i] = (float)wide;
    }
  } else {
    return iso_fail(ISO_ERR_UNSUPPORTED,
                    "%s: tensor '%.100s' is %s, which is not read as float32 (F32, BF16, F16, F64 are)", tensor->file,
                    tensor->name, tensor->dtype);
  }
  return ISO_OK;
}

iso_status iso_safetensor_to_i32(const iso_safetensor *tensor, int32_t *out) {
  const char *from = tensor->data;
  size_t count = (size_t)tensor->elements;
  if (strcmp(tensor->dtype, "I32") == 0) {
    if (count) memcpy(out, from, count * sizeof *out);
    return ISO_OK;
  }
  if (strcmp(tensor->dtype, "I64") != 0) {
    return iso_fail(ISO_ERR_UNSUPPORTED, "%s: tensor '%.100s' is %s, which is not read as int32 (I32 and I64 are)",
                    tensor->file, tensor->name, tensor->dtype);
  }
  for (size_t i = 0; i < count; i++) {
    int64_t wide;
    memcpy(&wide, from + 8 * i, 8);
    if (wide < INT32_MIN || wide > INT32_MAX) {
      return iso_fail(ISO_ERR_MISMATCH, "%s: tensor '%.100s': element %zu is %lld, outside int32", tensor->file,
                      tensor->name, i, (long long)wide);
    }
    out[i] = (int32_t)wide;
  }
  return ISO_OK;
}
