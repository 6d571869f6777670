/* SPDX-License-Identifier: Apache-2.0
 *
 * source: the documents of one source.
 *
 * Opening lets the source's format find the documents of each file; what is kept is where each document's stored bytes
 * are, and a checksum of the file, by which a resumed run knows its corpus; the bytes are read again when a lane needs
 * them, and the format says what they mean.
 *
 * Invariants
 *  1. Documents are counted from 0 over the files in order; none is empty; none spans two files.
 *  2. Every read compares size and version with those at opening, before and after: a file that changes under a run is
 *     an error that names it, never other text and never a fault of the process.
 *  3. After opening, only the table of borrowed files changes, under a lock.
 *
 * Memory: 16 bytes a document.
 */
#include "data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAP_FROM_BYTES      (1 << 20) /* smaller files are copied: a process has few maps */
#define TEXT_BYTES_OF_TOKEN 4

struct iso_source {
  iso_source_options options; /* strings in the arena */
  iso_arena *arena;
  const iso_format *format;
  iso_data_file *files;
  int64_t file_count;
  iso_blob_info *listed; /* all that the path means, in the order of strcmp */
  int64_t listed_count;
  int64_t *first; /* [files + 1]: first document of each file */
  iso_extent *documents;
  int64_t count, capacity;
  pthread_mutex_t lock;
  char **borrowed; /* [files]: contents, NULL until asked for */
};

iso_status iso_indexer_add(iso_indexer *indexer, int64_t offset, int64_t length, bool bad) {
  iso_source *source = indexer->source;
  if (length == 0) return ISO_OK;
  if (source->count == source->capacity) {
    int64_t capacity = source->capacity ? source->capacity + source->capacity / 2 : 256;
    iso_extent *grown = realloc(source->documents, (size_t)capacity * sizeof *grown);
    if (!grown)
      return iso_fail(ISO_ERR_MEMORY, "data: no memory to index more than %lld documents of \"%s\"",
                      (long long)source->count, source->options.path);
    source->documents = grown;
    source->capacity = capacity;
  }
  source->documents[source->count++] = (iso_extent){bad ? offset | ISO_EXTENT_BAD : offset, length};
  return ISO_OK;
}

const iso_extent *iso_indexer_added(const iso_indexer *indexer, int64_t from, int64_t *count) {
  *count = indexer->source->count - from;
  return *count ? indexer->source->documents + from : NULL;
}

void iso_indexer_restart(iso_indexer *indexer, int64_t from) {
  iso_data_file *file = indexer->file;
  indexer->source->count = from;
  indexer->position = 0;
  file->crc32c = file->index_crc32c = 0;
  file->token_type = 0;
  iso_transfer_init(&indexer->progress, "indexing", file->path, file->bytes);
}

iso_status iso_indexer_next(iso_indexer *indexer, void *buffer, int64_t length) {
  ISO_TRY(iso_blob_read(indexer->file->blob, indexer->position, length, buffer));
  indexer->position += length;
  indexer->file->crc32c = iso_crc32c(indexer->file->crc32c, buffer, (size_t)length);
  iso_log_mute(false);
  iso_transfer_at(&indexer->progress, indexer->position);
  iso_log_mute(indexer->muted);
  return ISO_OK;
}

static int by_path(const void *path, const void *info) {
  return strcmp(path, ((const iso_blob_info *)info)->path);
}

iso_status iso_indexer_beside(iso_indexer *indexer, const char *path, iso_blob **out) {
  const iso_source *source = indexer->source;
  const iso_blob_info *info =
      bsearch(path, source->listed, (size_t)source->listed_count, sizeof *source->listed, by_path);
  iso_blob_info local;
  *out = NULL;
  if (!info && (iso_blob_is_remote(path) || !iso_path_exists(path))) return ISO_OK;
  if (!info) ISO_TRY(iso_blob_local(source->arena, path, &local));
  return iso_blob_open(info ? info : &local, out);
}

/* The path of a Megatron pair may lack its suffix. */
static const char *listed_path(iso_source *source) {
  const char *path = source->options.path;
  if (strcmp(source->options.format, "megatron") != 0 || iso_path_exists(path) || iso_blob_is_remote(path)) return path;
  const char *full = iso_arena_printf(source->arena, "%s.bin", path);
  return full && iso_path_exists(full) ? full : path;
}

static iso_status list_files(iso_source *source) {
  const char *path = source->options.path;
  if (!*path) return iso_fail(ISO_ERR_CONFIG, "data: a source has no path; set data.sources[].path");
  ISO_TRY(iso_blobs_list(source->arena, listed_path(source), &source->listed, &source->listed_count));
  source->files = iso_arena_alloc(source->arena, (size_t)source->listed_count * sizeof *source->files);
  if (!source->files) return iso_fail(ISO_ERR_MEMORY, "data: no memory to list \"%s\"", path);
  for (int64_t f = 0; f < source->listed_count; f++) {
    iso_data_file *file = &source->files[source->file_count++];
    file->path = source->listed[f].path;
    file->bytes = source->listed[f].bytes;
    ISO_TRY(iso_blob_open(&source->listed[f], &file->blob));
  }
  return ISO_OK;
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* What `isotach data build` has begun and not ended is no corpus: it would be read in part, or its plan as text. */
static iso_status check_complete(const iso_source *source) {
  for (int64_t f = 0; f < source->file_count; f++) {
    const char *path = source->files[f].path, *name = base_name(path);
    const size_t folder = (size_t)(name - path);
    if (strcmp(name, "build.json") != 0) continue;
    bool lock = false, manifest = false;
    for (int64_t g = 0; g < source->file_count; g++) {
      const char *other = source->files[g].path, *own = base_name(other);
      if ((size_t)(own - other) != folder || strncmp(other, path, folder) != 0) continue;
      lock = lock || strcmp(own, "build.lock") == 0;
      manifest = manifest || strcmp(own, "shards.json") == 0;
    }
    if (lock && !manifest)
      return iso_fail(ISO_ERR_CONFIG,
                      "data: \"%.*s\" holds shards that are not complete (no shards.json); run the same isotach data "
                      "build again, or take the folder away",
                      folder > 1 ? (int)folder - 1 : 1, folder ? path : ".");
  }
  return ISO_OK;
}

/* Leaves out the files that hold no documents of their own. */
static iso_status drop_companions(iso_source *source) {
  int64_t kept = 0;
  for (int64_t f = 0; f < source->file_count; f++) {
    iso_data_file *file = &source->files[f];
    if (iso_format_is_companion(source->format, file->path))
      iso_blob_close(&file->blob);
    else
      source->files[kept++] = *file;
  }
  source->file_count = kept;
  if (kept) return ISO_OK;
  return iso_fail(ISO_ERR_CONFIG, "data: \"%s\" has an index or a description, but no token ids; name the .bin",
                  source->options.path);
}

static void tell_first_empty(const iso_source *source, int64_t empty, int64_t first, const char *how) {
  iso_warn("data: %lld of the %lld files of \"%s\" have no document; the first is \"%s\" (%lld bytes)%s",
           (long long)empty, (long long)source->file_count, source->options.path, source->files[first].path,
           (long long)source->files[first].bytes, how);
}

/* Files without a document give nothing, which is said. (When none has one, the corpus is refused. With skip_damaged
 * there are others only then.) */
static iso_status tell_of_empty(const iso_source *source) {
  const char *skip_by = source->options.skip_by;
  int64_t empty = 0, first = -1;
  for (int64_t f = 0; f < source->file_count; f++) {
    if (source->first[f] != source->first[f + 1]) continue;
    if (empty++ == 0) first = f;
  }
  if (empty == 0 || empty == source->file_count || (skip_by && !*skip_by)) return ISO_OK;
  if (source->options.refuse_empty)
    return iso_fail(ISO_ERR_FORMAT,
                    "data: \"%s\" (%lld bytes) has no document, as %lld of the %lld files of \"%s\"; take such files "
                    "away, or leave them out with %s",
                    source->files[first].path, (long long)source->files[first].bytes, (long long)empty,
                    (long long)source->file_count, source->options.path, skip_by ? skip_by : "data.on_bad: skip");
  tell_first_empty(source, empty, first, "");
  return ISO_OK;
}

/* With skip_damaged, when no file has a document and that is all that is wrong: there is none, not even a bad one. */
static void forget_empty(iso_source *source) {
  source->count = 0;
  for (int64_t f = 0; f < source->file_count; f++) {
    source->first[f] = 0;
    source->files[f].damage = (iso_damage){0};
  }
}

static iso_status index_files(iso_source *source) {
  iso_indexer indexer = {.options = &source->options, .source = source};
  iso_status status = ISO_OK;
  int64_t empty = 0, first = -1;
  for (int64_t f = 0; f < source->file_count && status == ISO_OK; f++) {
    bool is_empty = false;
    source->first[f] = source->count;
    indexer.file = &source->files[f];
    iso_indexer_restart(&indexer, source->count);
    status = iso_index_damaged(&indexer, source->format, &is_empty);
    iso_transfer_end(&indexer.progress, indexer.position);
    if (is_empty && empty++ == 0) first = f;
  }
  iso_token_manifest_close(&indexer.manifest);
  if (status != ISO_OK) return status;
  if (empty == source->file_count) forget_empty(source);
  source->first[source->file_count] = source->count;
  if (empty && source->count) tell_first_empty(source, empty, first, "; each counts as one bad document");
  return tell_of_empty(source);
}

static iso_status open_files(iso_source *source) {
  ISO_TRY(list_files(source));
  ISO_TRY(check_complete(source));
  for (int64_t f = 0; f < source->file_count; f++)
    if (iso_format_may_be_packed(source->files[f].path))
      ISO_TRY(iso_unpack_archive(&source->options, &source->files[f]));
  ISO_TRY(iso_format_choose(&source->options, source->files, source->file_count, &source->format));
  if (source->options.text_only && source->format->content != ISO_CONTENT_TEXT)
    return iso_fail(ISO_ERR_UNSUPPORTED, "data: \"%s\" holds %s, and text is wanted; name the text they were made from",
                    source->options.path, source->format->what);
  ISO_TRY(drop_companions(source));
  for (int64_t f = 0; f < source->file_count && source->format->unpack; f++)
    ISO_TRY(source->format->unpack(&source->options, &source->files[f]));
  const size_t files = (size_t)source->file_count;
  source->first = iso_arena_alloc(source->arena, (files + 1) * sizeof *source->first);
  source->borrowed = iso_arena_alloc(source->arena, files * sizeof *source->borrowed);
  if (!source->first || !source->borrowed)
    return iso_fail(ISO_ERR_MEMORY, "data: no memory to index \"%s\"", source->options.path);
  return index_files(source);
}

/* Copies the options; a string that is NULL or "" becomes the fallback. */
static iso_status copy_options(iso_source *source, const iso_source_options *given) {
  iso_source_options *o = &source->options;
  *o = *given;
  struct {
    const char **string, *fallback;
  } strings[] = {{&o->path, ""},
                 {&o->format, "auto"},
                 {&o->separator, ""},
                 {&o->field, "text"},
                 {&o->token_type, "auto"},
                 {&o->cache, ""},
                 {&o->set_field, "the source's field"}};
  for (size_t i = 0; i < ISO_COUNT(strings); i++) {
    const char *from = *strings[i].string && **strings[i].string ? *strings[i].string : strings[i].fallback;
    *strings[i].string = iso_arena_strdup(source->arena, from);
    if (!*strings[i].string) return iso_fail(ISO_ERR_MEMORY, "data: no memory to open \"%s\"", given->path);
  }
  return ISO_OK;
}

iso_status iso_source_open(const iso_source_options *options, iso_source **out) {
  *out = NULL;
  iso_source *source = calloc(1, sizeof *source);
  if (!source) return iso_fail(ISO_ERR_MEMORY, "data: no memory to open \"%s\"", options->path);
  pthread_mutex_init(&source->lock, NULL);
  source->arena = iso_arena_create();
  iso_status status = source->arena ? copy_options(source, options)
                                    : iso_fail(ISO_ERR_MEMORY, "data: no memory to open \"%s\"", options->path);
  if (status == ISO_OK) status = open_files(source);
  if (status != ISO_OK) {
    iso_source_close(&source);
    return status;
  }
  *out = source;
  return ISO_OK;
}

static bool is_mapped(const iso_data_file *file) {
  return file->bytes >= MAP_FROM_BYTES && !iso_blob_is_remote(iso_blob_info_of(file->blob)->path);
}

void iso_source_close(iso_source **source_address) {
  iso_source *source = *source_address;
  if (!source) return;
  for (int64_t f = 0; f < source->file_count; f++) {
    char *borrowed = source->borrowed ? source->borrowed[f] : NULL;
    if (borrowed && is_mapped(&source->files[f]))
      munmap(borrowed, (size_t)source->files[f].bytes);
    else
      free(borrowed);
    iso_blob_close(&source->files[f].blob);
  }
  free(source->documents);
  iso_arena_destroy(&source->arena);
  pthread_mutex_destroy(&source->lock);
  free(source);
  *source_address = NULL;
}

iso_content iso_source_content(const iso_source *source) {
  return source->format->content;
}

const char *iso_source_format(const iso_source *source) {
  return source->format->name;
}

bool iso_source_remote(const iso_source *source) {
  for (int64_t f = 0; f < source->file_count; f++)
    if (iso_blob_is_remote(iso_blob_info_of(source->files[f].blob)->path)) return true;
  return false;
}

bool iso_source_is_plain(const iso_source *source) {
  return source->format->content == ISO_CONTENT_TEXT && !source->format->text && !iso_source_remote(source);
}

int64_t iso_source_files(const iso_source *source) {
  return source->file_count;
}

const iso_data_file *iso_source_file(const iso_source *source, int64_t file) {
  return &source->files[file];
}

const iso_source_options *iso_source_options_of(const iso_source *source) {
  return &source->options;
}

int64_t iso_source_documents(const iso_source *source) {
  return source->count;
}

iso_document iso_source_document(const iso_source *source, int64_t index) {
  int64_t low = 0, high = source->file_count; /* first[low] <= index < first[high] */
  while (high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    if (source->first[middle] <= index)
      low = middle;
    else
      high = middle;
  }
  const iso_extent *document = &source->documents[index];
  return (iso_document){low, document->offset & ~ISO_EXTENT_BAD, document->length};
}

const iso_extent *iso_source_run(const iso_source *source, int64_t index, int64_t *file, int64_t *end) {
  *file = iso_source_document(source, index).file;
  *end = source->first[*file + 1];
  return source->documents + index;
}

int64_t iso_source_length(const iso_source *source, int64_t index) {
  return source->documents[index].length;
}

int64_t iso_source_size(const iso_source *source, int64_t index) {
  int64_t length = source->documents[index].length;
  if (source->format->content == ISO_CONTENT_TEXT || iso_source_is_damage(source, index)) return length;
  return length / iso_token_bytes(source->files[iso_source_document(source, index).file].token_type) *
         TEXT_BYTES_OF_TOKEN;
}

/* The byte is where text is lost; what the cause says is of the file itself. */
static void stands_for_damage(const iso_source *source, int64_t index, iso_bad *bad) {
  const iso_data_file *file = &source->files[iso_source_document(source, index).file];
  const bool text = source->format->content == ISO_CONTENT_TEXT && !source->format->unpack;
  *bad = (iso_bad){.is = true, .byte = text ? file->bytes : -1};
  memcpy(bad->cause, file->damage.cause, sizeof bad->cause);
}

iso_status iso_source_text(const iso_source *source, int64_t index, const char *stored, size_t length,
                           iso_string *scratch, const char **text, size_t *bytes, iso_bad *bad) {
  bad->is = false; /* field by field: small documents are many */
  bad->byte = -1;
  bad->cause[0] = '\0';
  *text = stored;
  *bytes = length;
  if (iso_source_is_damage(source, index)) {
    stands_for_damage(source, index, bad);
    return ISO_OK;
  }
  if (!source->format->text) return ISO_OK;
  iso_document place = iso_source_document(source, index);
  return source->format->text(&source->options, &source->files[place.file], place.offset,
                              source->documents[index].offset & ISO_EXTENT_BAD, stored, length, scratch, text, bytes,
                              bad);
}

iso_status iso_source_tokens(const iso_source *source, int64_t index, const char *stored, size_t length, int32_t **ids,
                             size_t *capacity, int64_t *count, iso_bad *bad) {
  iso_document place = iso_source_document(source, index);
  if (source->format->content != ISO_CONTENT_TOKENS)
    return iso_fail(ISO_ERR_INTERNAL, "data: \"%s\" holds text, not tokens", source->options.path);
  if (iso_source_is_damage(source, index)) {
    stands_for_damage(source, index, bad);
    *count = 0;
    return ISO_OK;
  }
  return iso_tokens_decode(&source->options, &source->files[place.file], place.offset, stored, length, ids, capacity,
                           count, bad);
}

iso_status iso_source_read(const iso_source *source, int64_t file_index, int64_t offset, int64_t length, char *buffer) {
  const iso_data_file *file = &source->files[file_index];
  if (file->damage.is && length > 0 && offset + length == file->bytes + 1) buffer[--length] = 0;
  return length ? iso_blob_read(file->blob, offset, length, buffer) : ISO_OK;
}

static iso_status copy_file(const iso_data_file *file, char **out) {
  *out = malloc(file->bytes ? (size_t)file->bytes : 1);
  if (!*out)
    return iso_fail(ISO_ERR_MEMORY, "data: no memory for the %lld bytes of \"%s\"", (long long)file->bytes, file->path);
  iso_status status = iso_blob_read(file->blob, 0, file->bytes, *out);
  if (status == ISO_OK) return ISO_OK;
  free(*out);
  *out = NULL;
  return status;
}

static iso_status borrow_file(const iso_data_file *file, char **out) {
  if (!is_mapped(file)) return copy_file(file, out);
  const char *path = iso_blob_info_of(file->blob)->path;
  ISO_TRY(iso_blob_check(file->blob));
  int fd = iso_os.open(path, O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return iso_os_fail("open", path);
  void *map = mmap(NULL, (size_t)file->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  iso_status status = map == MAP_FAILED ? iso_os_fail("map", path) : ISO_OK;
  iso_os.close(fd);
  if (status == ISO_OK) *out = map;
  return status;
}

iso_status iso_source_borrow(iso_source *source, int64_t file, int64_t offset, int64_t length, const char **bytes) {
  (void)length;
  *bytes = "";
  iso_status status = ISO_OK;
  if (source->files[file].damage.is && offset == source->files[file].bytes) return ISO_OK;
  *bytes = NULL;
  pthread_mutex_lock(&source->lock);
  if (!source->borrowed[file]) status = borrow_file(&source->files[file], &source->borrowed[file]);
  if (status == ISO_OK) *bytes = source->borrowed[file] + offset;
  pthread_mutex_unlock(&source->lock);
  return status;
}
