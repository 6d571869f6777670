/* SPDX-License-Identifier: Apache-2.0
 *
 * source: the documents of one text source.
 *
 * A document is the part of a file between separators; with the separator "" it is the whole file. Parts of zero bytes
 * are no documents. Opening reads each file once, in chunks, and keeps only where each document begins and how long it
 * is, and a checksum of the file, by which a resumed run knows its corpus; the text itself is read again when a lane
 * needs it.
 *
 * Invariants
 *  1. Documents are counted from 0 over the files in order; none is empty; none spans two files.
 *  2. Separators are found leftmost first and do not overlap, whatever the size of the chunks.
 *  3. Every read compares size and modification time with those at opening, before and after: a file that changes under
 *     a run is an error that names it, never other text and never a fault of the process.
 *  4. After opening, only the table of borrowed files changes, under a lock.
 *
 * Memory: 16 bytes a document. It does not decode text.
 */
#include "data/data.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHUNK_BYTES    (4 << 20)
#define MAP_FROM_BYTES (1 << 20) /* smaller files are copied: a process has few maps */

typedef struct extent {
  int64_t offset, length;
} extent;

struct iso_source {
  iso_source_options options; /* strings in the arena */
  iso_arena *arena;
  iso_data_file *files;
  int64_t file_count;
  int64_t *first; /* [files + 1]: first document of each file */
  extent *documents;
  int64_t count, capacity;
  size_t separator_length;
  pthread_mutex_t lock;
  char **borrowed; /* [files]: contents, NULL until asked for */
};

static iso_status add_document(iso_source *source, int64_t offset, int64_t length) {
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
  source->documents[source->count++] = (extent){offset, length};
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

/* Checksums one file and finds its separators. The window holds the bytes that may still begin a separator. */
static iso_status split_file(iso_source *source, iso_data_file *file, int fd, char *window) {
  size_t held = 0;  /* bytes in the window from the last chunk */
  int64_t base = 0; /* file offset of window[0] */
  int64_t begin = 0;
  while (base + (int64_t)held < file->bytes) {
    int64_t want = file->bytes - base - (int64_t)held;
    if (want > CHUNK_BYTES) want = CHUNK_BYTES;
    ISO_TRY(read_exactly(file, fd, window + held, want, base + (int64_t)held));
    file->crc32c = iso_crc32c(file->crc32c, window + held, (size_t)want);
    size_t length = held + (size_t)want, at = 0;
    const char *found;
    while (source->separator_length &&
           (found = memmem(window + at, length - at, source->options.separator, source->separator_length))) {
      int64_t offset = base + (found - window);
      ISO_TRY(add_document(source, begin, offset - begin));
      begin = offset + (int64_t)source->separator_length;
      at = (size_t)(found - window) + source->separator_length;
    }
    held = length - at;
    if (held >= source->separator_length) held = source->separator_length ? source->separator_length - 1 : 0;
    memmove(window, window + length - held, held);
    base += (int64_t)(length - held);
  }
  return add_document(source, begin, file->bytes - begin);
}

static iso_status index_file(iso_source *source, iso_data_file *file, char *window) {
  iso_status status;
  int fd = open_file(file, &status);
  if (fd < 0) return status;
  status = split_file(source, file, fd, window);
  iso_os.close(fd);
  if (status == ISO_OK) status = check_unchanged(file);
  return status;
}

/* Names that promise another format must not be read as text by accident. */
static iso_status check_format(const iso_source *source) {
  static const char *const other[][2] = {{".jsonl", "JSON lines"}, {".parquet", "Parquet"}, {".gz", "gzip"},
                                         {".zst", "Zstandard"},    {".xz", "xz"},           {".bz2", "bzip2"},
                                         {".lz4", "LZ4"},          {".zip", "zip"},         {".bin", "token shards"},
                                         {".idx", "token shards"}};
  const char *format = source->options.format;
  if (strcmp(format, "text") == 0) return ISO_OK;
  if (strcmp(format, "auto") != 0)
    return iso_fail(ISO_ERR_UNSUPPORTED, "data: source \"%s\": format \"%s\" is not read by this build; use \"text\"",
                    source->options.path, format);
  for (int64_t f = 0; f < source->file_count; f++) {
    const char *path = source->files[f].path;
    size_t length = strlen(path);
    for (size_t i = 0; i < ISO_COUNT(other); i++) {
      size_t suffix = strlen(other[i][0]);
      if (length > suffix && strcmp(path + length - suffix, other[i][0]) == 0)
        return iso_fail(ISO_ERR_UNSUPPORTED,
                        "data: \"%s\" looks like %s, which this build does not read; convert it to text, or set "
                        "format: text to read its bytes as they are",
                        path, other[i][1]);
    }
  }
  return ISO_OK;
}

static iso_status index_files(iso_source *source) {
  const char *path = source->options.path;
  ISO_TRY(iso_data_files_list(source->arena, path, &source->files, &source->file_count));
  ISO_TRY(check_format(source));
  size_t files = (size_t)source->file_count;
  source->first = iso_arena_alloc(source->arena, (files + 1) * sizeof *source->first);
  source->borrowed = iso_arena_alloc(source->arena, files * sizeof *source->borrowed);
  char *window = malloc((size_t)CHUNK_BYTES + source->separator_length);
  iso_status status = ISO_OK;
  if (!source->first || !source->borrowed || !window)
    status = iso_fail(ISO_ERR_MEMORY, "data: no memory to index \"%s\"", path);
  for (size_t f = 0; f < files && status == ISO_OK; f++) {
    source->first[f] = source->count;
    status = index_file(source, &source->files[f], window);
  }
  if (status == ISO_OK) source->first[files] = source->count;
  free(window);
  return status;
}

iso_status iso_source_open(const iso_source_options *options, iso_source **out) {
  *out = NULL;
  iso_source *source = calloc(1, sizeof *source);
  if (!source) return iso_fail(ISO_ERR_MEMORY, "data: no memory to open \"%s\"", options->path);
  pthread_mutex_init(&source->lock, NULL);
  source->arena = iso_arena_create();
  iso_status status = ISO_OK;
  if (source->arena) {
    source->options = *options;
    source->options.path = iso_arena_strdup(source->arena, options->path ? options->path : "");
    source->options.format = iso_arena_strdup(source->arena, options->format ? options->format : "auto");
    source->options.separator = iso_arena_strdup(source->arena, options->separator ? options->separator : "");
  }
  if (!source->arena || !source->options.path || !source->options.format || !source->options.separator)
    status = iso_fail(ISO_ERR_MEMORY, "data: no memory to open \"%s\"", options->path);
  if (status == ISO_OK) {
    source->separator_length = strlen(source->options.separator);
    status = index_files(source);
  }
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
  return (iso_document){low, document->offset, document->length};
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
