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
 *  2. Every read compares size and modification time with those at opening, before and after: a file that changes under
 *     a run is an error that names it, never other text and never a fault of the process.
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

#define MAP_FROM_BYTES (1 << 20) /* smaller files are copied: a process has few maps */

#define TEXT_BYTES_OF_TOKEN 4
#define BAD                 (INT64_C(1) << 62) /* in an extent's offset: the format found it bad */

typedef struct extent {
  int64_t offset, length;
} extent;

struct iso_source {
  iso_source_options options; /* strings in the arena */
  iso_arena *arena;
  const iso_format *format;
  iso_data_file *files;
  int64_t file_count;
  int64_t *first; /* [files + 1]: first document of each file */
  extent *documents;
  int64_t count, capacity;
  pthread_mutex_t lock;
  char **borrowed; /* [files]: contents, NULL until asked for */
};

iso_status iso_indexer_add(iso_indexer *indexer, int64_t offset, int64_t length, bool bad) {
  iso_source *source = indexer->source;
  if (length == 0) return ISO_OK;
  if (source->count == source->capacity) {
    int64_t capacity = source->capacity ? source->capacity + source->capacity / 2 : 256;
    extent *grown = realloc(source->documents, (size_t)capacity * sizeof *grown);
    if (!grown)
      return iso_fail(ISO_ERR_MEMORY, "data: no memory to index more than %lld documents of \"%s\"",
                      (long long)source->count, source->options.path);
    source->documents = grown;
    source->capacity = capacity;
  }
  source->documents[source->count++] = (extent){bad ? offset | BAD : offset, length};
  return ISO_OK;
}

static iso_status file_changed(const iso_data_file *file, const char *how) {
  return iso_fail(ISO_ERR_MISMATCH,
                  "data: \"%s\" changed while in use (%s); restore it, or start a new run on the new text", file->path,
                  how);
}

static iso_status check_unchanged(const iso_data_file *file) {
  struct stat info;
  if (iso_os.stat(file->path, &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return file_changed(file, "it is gone");
    return iso_fail(ISO_ERR_IO, "data: cannot look at \"%s\": %s", file->path, strerror(errno));
  }
  if ((int64_t)info.st_size != file->bytes) {
    char how[96];
    snprintf(how, sizeof how, "it had %lld bytes and has %lld", (long long)file->bytes, (long long)info.st_size);
    return file_changed(file, how);
  }
  if ((int64_t)info.st_mtim.tv_sec != file->mtime_s || (int64_t)info.st_mtim.tv_nsec != file->mtime_ns)
    return file_changed(file, "it was written to");
  return ISO_OK;
}

/* Opens for reading; -1 with the error logged in *status. */
static int open_file(const iso_data_file *file, iso_status *status) {
  int fd = iso_os.open(file->path, O_RDONLY | O_CLOEXEC, 0);
  *status = ISO_OK;
  if (fd < 0) *status = iso_fail(ISO_ERR_IO, "data: cannot open \"%s\": %s", file->path, strerror(errno));
  return fd;
}

/* Reads exactly `length` bytes; a file that ends early has changed. */
static iso_status read_exactly(const iso_data_file *file, int fd, char *buffer, int64_t length, int64_t offset) {
  while (length > 0) {
    ssize_t got = iso_os.pread(fd, buffer, (size_t)length, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return iso_fail(ISO_ERR_IO, "data: cannot read \"%s\": %s", file->path, strerror(errno));
    if (got == 0) return file_changed(file, "it ends early");
    buffer += got;
    length -= got;
    offset += got;
  }
  return ISO_OK;
}

iso_status iso_indexer_read(iso_indexer *indexer, int64_t offset, int64_t length, void *buffer) {
  return read_exactly(indexer->file, indexer->fd, buffer, length, offset);
}

iso_status iso_indexer_next(iso_indexer *indexer, void *buffer, int64_t length) {
  ISO_TRY(iso_indexer_read(indexer, indexer->position, length, buffer));
  indexer->position += length;
  indexer->file->crc32c = iso_crc32c(indexer->file->crc32c, buffer, (size_t)length);
  return ISO_OK;
}

static iso_status index_file(iso_source *source, iso_data_file *file) {
  iso_status status;
  iso_indexer indexer = {.options = &source->options, .file = file, .source = source};
  indexer.fd = open_file(file, &status);
  if (indexer.fd < 0) return status;
  status = source->format->index(&indexer);
  iso_os.close(indexer.fd);
  if (status == ISO_OK) status = check_unchanged(file);
  return status;
}

static iso_status index_files(iso_source *source) {
  const char *path = source->options.path;
  ISO_TRY(iso_data_files_list(source->arena, path, &source->files, &source->file_count));
  ISO_TRY(iso_format_choose(&source->options, source->files, source->file_count, &source->format));
  size_t files = (size_t)source->file_count;
  source->first = iso_arena_alloc(source->arena, (files + 1) * sizeof *source->first);
  source->borrowed = iso_arena_alloc(source->arena, files * sizeof *source->borrowed);
  if (!source->first || !source->borrowed) return iso_fail(ISO_ERR_MEMORY, "data: no memory to index \"%s\"", path);
  for (size_t f = 0; f < files; f++) {
    source->first[f] = source->count;
    ISO_TRY(index_file(source, &source->files[f]));
  }
  source->first[files] = source->count;
  return ISO_OK;
}

/* Copies the options; a string that is NULL or "" becomes the fallback. */
static iso_status copy_options(iso_source *source, const iso_source_options *given) {
  iso_source_options *o = &source->options;
  *o = *given;
  struct {
    const char **string, *fallback;
  } strings[] = {{&o->path, ""},      {&o->format, "auto"},     {&o->separator, ""},
                 {&o->field, "text"}, {&o->token_type, "auto"}, {&o->cache, ""}};
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
  if (status == ISO_OK) status = index_files(source);
  if (status != ISO_OK) {
    iso_source_close(&source);
    return status;
  }
  *out = source;
  return ISO_OK;
}

void iso_source_close(iso_source **source_address) {
  iso_source *source = *source_address;
  if (!source) return;
  for (int64_t f = 0; source->borrowed && f < source->file_count; f++) {
    if (!source->borrowed[f]) continue;
    if (source->files[f].bytes >= MAP_FROM_BYTES)
      munmap(source->borrowed[f], (size_t)source->files[f].bytes);
    else
      free(source->borrowed[f]);
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
  (void)source;
  return false;
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
  const extent *document = &source->documents[index];
  return (iso_document){low, document->offset & ~BAD, document->length};
}

int64_t iso_source_size(const iso_source *source, int64_t index) {
  int64_t length = source->documents[index].length;
  if (source->format->content == ISO_CONTENT_TEXT) return length;
  return length / source->files[iso_source_document(source, index).file].token_bytes * TEXT_BYTES_OF_TOKEN;
}

iso_status iso_source_text(const iso_source *source, int64_t index, const char *stored, size_t length,
                           iso_string *scratch, const char **text, size_t *bytes, iso_bad *bad) {
  *bad = (iso_bad){.byte = -1};
  *text = stored;
  *bytes = length;
  if (!source->format->text) return ISO_OK;
  iso_document place = iso_source_document(source, index);
  return source->format->text(&source->options, &source->files[place.file], place.offset,
                              source->documents[index].offset & BAD, stored, length, scratch, text, bytes, bad);
}

iso_status iso_source_tokens(const iso_source *source, int64_t index, const char *stored, size_t length, int32_t **ids,
                             size_t *capacity, int64_t *count, iso_bad *bad) {
  (void)index, (void)stored, (void)length, (void)ids, (void)capacity;
  *count = 0;
  *bad = (iso_bad){.byte = -1};
  return iso_fail(ISO_ERR_INTERNAL, "data: \"%s\" holds text, not tokens", source->options.path);
}

iso_status iso_source_read(const iso_source *source, int64_t file_index, int64_t offset, int64_t length, char *buffer) {
  const iso_data_file *file = &source->files[file_index];
  ISO_TRY(check_unchanged(file));
  iso_status status;
  int fd = open_file(file, &status);
  if (fd < 0) return status;
  status = read_exactly(file, fd, buffer, length, offset);
  iso_os.close(fd);
  if (status == ISO_OK) status = check_unchanged(file);
  return status;
}

static iso_status borrow_file(iso_source *source, int64_t file_index) {
  const iso_data_file *file = &source->files[file_index];
  size_t bytes = (size_t)file->bytes;
  iso_status status;
  if (file->bytes < MAP_FROM_BYTES) {
    char *copy = malloc(bytes ? bytes : 1);
    if (!copy) return iso_fail(ISO_ERR_MEMORY, "data: no memory for the %zu bytes of \"%s\"", bytes, file->path);
    status = iso_source_read(source, file_index, 0, file->bytes, copy);
    if (status != ISO_OK)
      free(copy);
    else
      source->borrowed[file_index] = copy;
    return status;
  }
  ISO_TRY(check_unchanged(file));
  int fd = open_file(file, &status);
  if (fd < 0) return status;
  void *map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (map == MAP_FAILED)
    status = iso_fail(ISO_ERR_IO, "data: cannot map \"%s\": %s", file->path, strerror(errno));
  else
    source->borrowed[file_index] = map;
  iso_os.close(fd);
  return status;
}

iso_status iso_source_borrow(iso_source *source, int64_t file, int64_t offset, int64_t length, const char **bytes) {
  (void)length;
  *bytes = NULL;
  iso_status status = ISO_OK;
  pthread_mutex_lock(&source->lock);
  if (!source->borrowed[file]) status = borrow_file(source, file);
  if (status == ISO_OK) *bytes = source->borrowed[file] + offset;
  pthread_mutex_unlock(&source->lock);
  return status;
}
