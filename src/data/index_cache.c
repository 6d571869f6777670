/* SPDX-License-Identifier: Apache-2.0
 *
 * index cache: where the documents of a file are, kept from start to start.
 *
 * Indexing reads a whole file. For what is read over a network, what was unpacked into the cache folder, and files of
 * CACHED_FROM bytes and more the result is kept there too:
 *
 *   "ISOIDX1\n" | u32 crc32c | u32 index_crc32c | u32 token_type | u32 0 | u64 documents | documents x (offset, length)
 *
 * It is named by the digest of the file's path, size and version (the time of the last change, the ETag) and of
 * everything that decides what its documents are.
 *
 * Invariants
 *  1. A kept index is used only for the very path, size and version it was made from, by the same rules.
 *  2. Without a cache folder, or with one that cannot be written, local files are indexed at each start.
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CACHED_FROM (INT64_C(1) << 30)
#define MAGIC       "ISOIDX1\n"
#define PART_BYTES  (4 << 20)

typedef struct head {
  char magic[8];
  uint32_t crc32c, index_crc32c, token_type, zero;
  uint64_t documents;
} head;

typedef struct making {
  iso_indexer *indexer;
  const iso_format *format;
  int64_t before; /* documents of the source when it began */
} making;

/* ---- the key ---- */

/* Version of a file beside, "" when there is none. */
static iso_status version_beside(iso_indexer *indexer, const char *path, char version[128]) {
  iso_blob *blob = NULL;
  ISO_TRY(iso_indexer_beside(indexer, path, &blob));
  version[0] = '\0';
  if (blob) {
    const iso_blob_info *info = iso_blob_info_of(blob);
    snprintf(version, 128, "%lld %s", (long long)info->bytes, info->version);
  }
  iso_blob_close(&blob);
  return ISO_OK;
}

/* What token files depend on besides their own bytes: shards.json, an .idx, the tokenizer. */
static iso_status token_versions(iso_indexer *indexer, char manifest[128], char index[128]) {
  const char *path = indexer->file->path, *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
  iso_string name = {0};
  iso_string_printf(&name, "%.*sshards.json", slash ? (int)(slash - path) + 1 : 0, path);
  iso_status status = iso_string_failed(&name) ? ISO_ERR_MEMORY : version_beside(indexer, name.data, manifest);
  name.length = 0;
  iso_string_printf(&name, "%.*s.idx", dot ? (int)(dot - path) : 0, path);
  if (status == ISO_OK) status = iso_string_failed(&name) ? ISO_ERR_MEMORY : version_beside(indexer, name.data, index);
  iso_string_fini(&name);
  return status;
}

static iso_status make_key(iso_indexer *indexer, const iso_format *format, char key[65]) {
  const iso_source_options *o = indexer->options;
  char manifest[128] = "", index[128] = "", eos[24] = "";
  const bool tokens = format->content == ISO_CONTENT_TOKENS;
  if (tokens) {
    ISO_TRY(token_versions(indexer, manifest, index));
    if (o->tokenizer) snprintf(eos, sizeof eos, "%lld", (long long)iso_tokenizer_eos(o->tokenizer));
  }
  const char *more[] = {"index 1", format->name,  o->separator,
                        o->field,  o->token_type, tokens && o->tokenizer ? iso_tokenizer_fingerprint(o->tokenizer) : "",
                        eos,       manifest,      index};
  iso_unpack_key(iso_blob_info_of(indexer->file->blob), more, ISO_COUNT(more), key);
  return ISO_OK;
}

/* ---- making and loading ---- */

static iso_status fill(void *context, iso_sink *sink) {
  making *m = context;
  iso_data_file *file = m->indexer->file;
  iso_indexer_restart(m->indexer, m->before);
  ISO_TRY(m->format->index(m->indexer));
  int64_t count;
  const iso_extent *extents = iso_indexer_added(m->indexer, m->before, &count);
  const head h = {MAGIC, file->crc32c, file->index_crc32c, (uint32_t)file->token_type, 0, (uint64_t)count};
  ISO_TRY(iso_sink_write(sink, &h, sizeof h));
  return count ? iso_sink_write(sink, extents, (size_t)count * sizeof *extents) : ISO_OK;
}

static iso_status damaged(const iso_blob_info *info) {
  return iso_fail(ISO_ERR_FORMAT, "data: the kept index \"%s\" is damaged; remove it", info->path);
}

static iso_status load_extents(const making *m, iso_blob *blob, int64_t documents, iso_extent *part) {
  const int64_t bytes = m->indexer->file->bytes, at_once = PART_BYTES / (int64_t)sizeof *part;
  for (int64_t done = 0; done < documents;) {
    const int64_t now = documents - done < at_once ? documents - done : at_once, width = (int64_t)sizeof *part;
    ISO_TRY(iso_blob_read(blob, (int64_t)sizeof(head) + done * width, now * width, part));
    for (int64_t i = 0; i < now; i++) {
      const int64_t offset = part[i].offset & ~ISO_EXTENT_BAD;
      if (offset < 0 || offset > bytes || part[i].length < 1 || part[i].length > bytes - offset)
        return damaged(iso_blob_info_of(blob));
      ISO_TRY(iso_indexer_add(m->indexer, offset, part[i].length, part[i].offset & ISO_EXTENT_BAD));
    }
    done += now;
  }
  return ISO_OK;
}

static iso_status load(const making *m, const iso_blob_info *info) {
  iso_data_file *file = m->indexer->file;
  iso_blob *blob = NULL;
  head h;
  iso_extent *part = malloc(PART_BYTES);
  iso_status status = part ? iso_blob_open(info, &blob) : iso_fail(ISO_ERR_MEMORY, "data: no memory for an index");
  if (status == ISO_OK && info->bytes < (int64_t)sizeof h) status = damaged(info);
  if (status == ISO_OK) status = iso_blob_read(blob, 0, sizeof h, &h);
  if (status == ISO_OK && (memcmp(h.magic, MAGIC, 8) != 0 || h.token_type >= ISO_TOKEN_TYPES ||
                           h.documents != (uint64_t)(info->bytes - (int64_t)sizeof h) / sizeof *part ||
                           (info->bytes - (int64_t)sizeof h) % (int64_t)sizeof *part))
    status = damaged(info);
  if (status == ISO_OK) {
    iso_indexer_restart(m->indexer, m->before); /* what was just made is the same, and this one was checked */
    file->crc32c = h.crc32c;
    file->index_crc32c = h.index_crc32c;
    file->token_type = (int)h.token_type;
    status = load_extents(m, blob, (int64_t)h.documents, part);
  }
  iso_blob_close(&blob);
  free(part);
  return status;
}

/* Should it be kept, and where? False for local files when there is no place. */
static bool find_cache(const iso_indexer *indexer, iso_string *folder) {
  const iso_data_file *file = indexer->file;
  const char *configured = indexer->options->cache;
  const bool needed = file->unpacked || iso_blob_is_remote(iso_blob_info_of(file->blob)->path);
  if (!needed && file->bytes < CACHED_FROM) return false;
  if (!needed && !*configured && !getenv("ISOTACH_CACHE") && !getenv("XDG_CACHE_HOME") && !getenv("HOME")) return false;
  if (!iso_cache_folder(configured, folder)) return false;
  return needed || (iso_path_make(folder->data) == ISO_OK && access(folder->data, W_OK) == 0);
}

iso_status iso_index_file(iso_indexer *indexer, const iso_format *format) {
  making m = {indexer, format, 0};
  iso_string folder = {0};
  (void)iso_indexer_added(indexer, 0, &m.before);
  if (!find_cache(indexer, &folder)) {
    iso_string_fini(&folder);
    return format->index(indexer);
  }
  char key[65];
  iso_blob_info info;
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? make_key(indexer, format, key) : iso_fail(ISO_ERR_MEMORY, "data: no memory for an index");
  if (status == ISO_OK) status = iso_spool_open(folder.data, key, fill, &m, arena, &info);
  if (status == ISO_OK) status = load(&m, &info);
  iso_arena_destroy(&arena);
  iso_string_fini(&folder);
  return status;
}
