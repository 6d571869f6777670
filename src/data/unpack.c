/* SPDX-License-Identifier: Apache-2.0
 *
 * unpack: files whose documents cannot be read in place are unpacked once, into the cache folder.
 *
 * Everything behind this file reads plain bytes by ranges: a document deep inside an archive costs what it costs in a
 * plain file. What is unpacked is named by the digest of the file's path, size and version, so that another version is
 * unpacked anew.
 *
 * Invariants
 *  1. A file is unpacked whole and checked, or it is an error: truncated and damaged archives give no documents. With
 *     skip_damaged what comes before the damage is kept, with its cause behind it, so that every start finds the same.
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

typedef struct unpacking {
  iso_status (*fill)(void *context, iso_sink *sink, iso_damage *damage);
  void *context;
  bool skip_damaged;
} unpacking;

/* What ends everything that is unpacked. */
typedef struct tail {
  int64_t kept; /* bytes that count; there may be others between them and the tail */
  int64_t is_damaged;
  char cause[sizeof((iso_damage *)0)->cause];
  char magic[8];
} tail;

#define MAGIC "ISOUNP1\n"

static iso_status fill_and_end(void *context, iso_sink *sink) {
  unpacking *u = context;
  iso_damage damage = {0};
  ISO_TRY(u->fill(u->context, sink, u->skip_damaged ? &damage : NULL));
  tail t = {.kept = damage.is ? damage.kept : sink->bytes, .is_damaged = damage.is};
  memcpy(t.cause, damage.cause, sizeof t.cause);
  memcpy(t.magic, MAGIC, sizeof t.magic);
  return iso_sink_write(sink, &t, sizeof t);
}

/* Takes the place of the file's blob. */
static iso_status take(const iso_source_options *options, iso_data_file *file, iso_blob *blob) {
  const iso_blob_info *info = iso_blob_info_of(blob);
  const int64_t room = info->bytes - (int64_t)sizeof(tail);
  tail t = {0};
  if (room >= 0) ISO_TRY(iso_blob_read(blob, room, sizeof t, &t));
  if (memcmp(t.magic, MAGIC, sizeof t.magic) != 0 || t.kept < 0 || t.kept > room ||
      !memchr(t.cause, 0, sizeof t.cause) || t.is_damaged != (t.cause[0] != 0))
    return iso_fail(ISO_ERR_FORMAT, "data: what was unpacked from \"%s\" (\"%s\") is damaged; remove it", file->path,
                    info->path);
  if (t.is_damaged && !options->skip_damaged)
    return iso_fail(ISO_ERR_FORMAT, "data: \"%s\": %s; get it again", file->path, t.cause);
  iso_blob_close(&file->blob);
  file->blob = blob;
  file->bytes = t.kept;
  file->unpacked = true;
  file->damage.kept = t.kept;
  if (!t.is_damaged || file->damage.is) return ISO_OK; /* the archive that it comes from was damaged first */
  file->damage.is = true;
  memcpy(file->damage.cause, t.cause, sizeof t.cause);
  return ISO_OK;
}

iso_status iso_unpack(const iso_source_options *options, iso_data_file *file, const char key[65],
                      iso_status (*fill)(void *context, iso_sink *sink, iso_damage *damage), void *context) {
  iso_string folder = {0};
  iso_arena *arena = iso_arena_create();
  iso_blob *blob = NULL;
  iso_blob_info info;
  unpacking u = {fill, context, options->skip_damaged};
  iso_status status = ISO_OK;
  if (!arena)
    status = iso_fail(ISO_ERR_MEMORY, "data: no memory to unpack \"%s\"", file->path);
  else if (!iso_cache_folder(options->cache, &folder))
    status = ISO_ERR_CONFIG; /* logged */
  if (status == ISO_OK) status = iso_spool_open(folder.data, key, fill_and_end, &u, arena, &info);
  if (status == ISO_OK) status = iso_blob_open(&info, &blob);
  if (status == ISO_OK) status = take(options, file, blob);
  if (status != ISO_OK) iso_blob_close(&blob);
  iso_arena_destroy(&arena);
  iso_string_fini(&folder);
  return status;
}

typedef struct archive {
  iso_blob *blob;
  iso_compression how;
} archive;

static iso_status fill_archive(void *context, iso_sink *sink, iso_damage *damage) {
  const archive *a = context;
  return iso_decompress(a->blob, a->how, sink, damage);
}

/* What is not what its name promises is damaged from its first byte on. */
static iso_status compression_of(const iso_source_options *options, iso_data_file *file, iso_compression *how) {
  if (!options->skip_damaged) return iso_compression_of(file->blob, how);
  const bool muted = iso_log_mute(true);
  const iso_status status = iso_compression_of(file->blob, how);
  iso_log_mute(muted);
  if (status == ISO_OK) return ISO_OK;
  if (status != ISO_ERR_FORMAT) return iso_fail(status, "%s", iso_last_error());
  iso_damage_tell(&file->damage, file->path, iso_last_error());
  file->bytes = 0;
  *how = ISO_PLAIN;
  return ISO_OK;
}

iso_status iso_unpack_archive(const iso_source_options *options, iso_data_file *file) {
  archive a = {.blob = file->blob};
  ISO_TRY(compression_of(options, file, &a.how));
  if (a.how == ISO_PLAIN) return ISO_OK;
  char key[65];
  const char *more[] = {"decompressed 2", iso_compression_name(a.how)};
  iso_unpack_key(iso_blob_info_of(file->blob), more, ISO_COUNT(more), key);
  return iso_unpack(options, file, key, fill_archive, &a);
}
