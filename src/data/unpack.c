/* SPDX-License-Identifier: Apache-2.0
 *
 * unpack: files whose documents cannot be read in place are unpacked once, into the cache folder.
 *
 * Everything behind this file reads plain bytes by ranges: a document deep inside an archive costs what it costs in a
 * plain file. What is unpacked is named by the digest of the file's path, size and version, so that another version is
 * unpacked anew.
 *
 * Invariants
 *  1. A file is unpacked whole and checked, or it is an error: truncated and damaged archives give no documents.
 *  2. Its path in messages stays that of the file.
 */
#include "data/data.h"

#include <string.h>

void iso_unpack_key(const iso_blob_info *info, const char *const *more, size_t count, char key[65]) {
  iso_sha256 *hash = iso_sha256_create();
  char bytes[24];
  snprintf(bytes, sizeof bytes, "%lld", (long long)info->bytes);
  iso_sha256_update(hash, info->path, strlen(info->path) + 1);
  iso_sha256_update(hash, bytes, strlen(bytes) + 1);
  iso_sha256_update(hash, info->version, strlen(info->version) + 1);
  for (size_t i = 0; i < count; i++) iso_sha256_update(hash, more[i], strlen(more[i]) + 1);
  iso_sha256_finish(&hash, key);
}

iso_status iso_unpack(const iso_source_options *options, iso_data_file *file, const char key[65],
                      iso_status (*fill)(void *context, iso_sink *sink), void *context) {
  iso_string folder = {0};
  iso_arena *arena = iso_arena_create();
  iso_blob *blob = NULL;
  iso_blob_info info;
  iso_status status = ISO_OK;
  if (!arena)
    status = iso_fail(ISO_ERR_MEMORY, "data: no memory to unpack \"%s\"", file->path);
  else if (!iso_cache_folder(options->cache, &folder))
    status = ISO_ERR_CONFIG; /* logged */
  if (status == ISO_OK) status = iso_spool_open(folder.data, key, fill, context, arena, &info);
  if (status == ISO_OK) status = iso_blob_open(&info, &blob);
  if (status == ISO_OK) {
    iso_blob_close(&file->blob);
    file->blob = blob;
    file->bytes = info.bytes;
    file->unpacked = true;
  }
  iso_arena_destroy(&arena);
  iso_string_fini(&folder);
  return status;
}

typedef struct archive {
  iso_blob *blob;
  iso_compression how;
} archive;

static iso_status fill_archive(void *context, iso_sink *sink) {
  const archive *a = context;
  return iso_decompress(a->blob, a->how, sink);
}

iso_status iso_unpack_archive(const iso_source_options *options, iso_data_file *file) {
  archive a = {.blob = file->blob};
  ISO_TRY(iso_compression_of(file->blob, &a.how));
  if (a.how == ISO_PLAIN) return ISO_OK;
  char key[65];
  const char *more[] = {"decompressed 1", iso_compression_name(a.how)};
  iso_unpack_key(iso_blob_info_of(file->blob), more, ISO_COUNT(more), key);
  return iso_unpack(options, file, key, fill_archive, &a);
}
