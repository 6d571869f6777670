/* SPDX-License-Identifier: Apache-2.0
 *
 * token manifest: shards.json, which stands beside token shards and says which tokenizer made them and what is in them.
 *
 *   {"version": 1, "tokenizer": "<fingerprint, 64 hex digits>", "dtype": "uint16" | "int32" | …, "eos": 50256,
 * *
 * Names are relative to its folder. `isotach data build` writes it.
 *
 * Invariants
 *  1. Shards of another tokenizer, or another EOS, are refused.
 *  2. A file beside a shards.json is read only if it is listed there with its size and checksum; one that is listed and
 *     not there is an error.
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#define MANIFEST_LIMIT (INT64_C(64) << 20)

struct iso_token_manifest {
  iso_arena *arena;
  const char *folder; /* it stands in; with its slash */
  const char *path;   /* of the shards.json; NULL: the folder has none */
  iso_token_manifest_file *files;
  int64_t count;
};

static iso_status bad_manifest(const char *path, const char *what) {
  return iso_fail(ISO_ERR_FORMAT, "data: \"%s\": %s; build the shards again, or remove it to read them unchecked", path,
                  what);
}

/* Checksums are written as 8 hex digits; a number is taken too. */
static bool read_crc(const iso_json *json, const char *key, uint32_t *out) {
  const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
  if (cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= 4294967295.0) {
    *out = (uint32_t)item->valuedouble;
    return true;
  }
  if (!cJSON_IsString(item) || strlen(item->valuestring) != 8 ||
      strspn(item->valuestring, "0123456789abcdefABCDEF") != 8)
    return false;
  *out = (uint32_t)strtoul(item->valuestring, NULL, 16);
  return true;
}

static iso_status read_file(struct iso_token_manifest *manifest, const iso_json *json, int type,
                            iso_token_manifest_file *out) {
  const char *name;
  ISO_TRY(iso_json_string(json, manifest->path, "name", "", &name));
  ISO_TRY(iso_json_int(json, manifest->path, "bytes", -1, &out->bytes));
  ISO_TRY(iso_json_int(json, manifest->path, "tokens", -1, &out->tokens));
  ISO_TRY(iso_json_int(json, manifest->path, "index_bytes", -1, &out->index_bytes));
  out->token_type = type;
  out->name = iso_arena_strdup(manifest->arena, name);
  if (!out->name) return iso_fail(ISO_ERR_MEMORY, "data: no memory for \"%s\"", manifest->path);
  if (!*name || out->bytes < 0 || !read_crc(json, "crc32c", &out->crc32c) ||
      (out->index_bytes >= 0 && !read_crc(json, "index_crc32c", &out->index_crc32c)))
    return bad_manifest(manifest->path, "an entry of `files` lacks name, bytes or crc32c");
  return ISO_OK;
}

static iso_status read_manifest(struct iso_token_manifest *manifest, const iso_json *json,
                                const iso_tokenizer *tokenizer) {
  int64_t version, eos;
  const char *fingerprint, *dtype;
  ISO_TRY(iso_json_int(json, manifest->path, "version", 0, &version));
  if (version != 1)
    return iso_fail(ISO_ERR_UNSUPPORTED, "data: \"%s\" is of version %lld; this build reads 1", manifest->path,
                    (long long)version);
  ISO_TRY(iso_json_string(json, manifest->path, "tokenizer", "", &fingerprint));
  ISO_TRY(iso_json_string(json, manifest->path, "dtype", "", &dtype));
  ISO_TRY(iso_json_int(json, manifest->path, "eos", -1, &eos));
  if (strcmp(fingerprint, iso_tokenizer_fingerprint(tokenizer)) != 0)
    return iso_fail(
        ISO_ERR_MISMATCH,
        "data: the shards in \"%s\" were made by the tokenizer %.12s…; this one (\"%s\") is %.12s…; use the "
        "tokenizer that made them, or build them again",
        manifest->folder, fingerprint, iso_tokenizer_path(tokenizer), iso_tokenizer_fingerprint(tokenizer));
  if (eos != iso_tokenizer_eos(tokenizer))
    return iso_fail(ISO_ERR_MISMATCH, "data: \"%s\": documents end with id %lld; the tokenizer's end of text is %lld",
                    manifest->path, (long long)eos, (long long)iso_tokenizer_eos(tokenizer));
  const int type = iso_token_type_find(dtype);
  if (!type) return bad_manifest(manifest->path, "its `dtype` is no type of token ids");
  const cJSON *files = cJSON_GetObjectItemCaseSensitive(json, "files");
  if (!cJSON_IsArray(files)) return bad_manifest(manifest->path, "it has no list `files`");
  const int count = cJSON_GetArraySize(files);
  manifest->files = iso_arena_alloc(manifest->arena, ((size_t)count + 1) * sizeof *manifest->files);
  if (!manifest->files) return iso_fail(ISO_ERR_MEMORY, "data: no memory for \"%s\"", manifest->path);
  for (const cJSON *item = files->child; item; item = item->next)
    ISO_TRY(read_file(manifest, item, type, &manifest->files[manifest->count++]));
  return ISO_OK;
}

/* Every listed file is there: among those beside which it stands, when they are local. */
static iso_status check_presence(const struct iso_token_manifest *manifest) {
  if (iso_blob_is_remote(manifest->folder)) return ISO_OK;
  for (int64_t i = 0; i < manifest->count; i++) {
    const char *path = iso_path_join(manifest->arena, manifest->folder, manifest->files[i].name);
    if (!path) return iso_fail(ISO_ERR_MEMORY, "data: no memory for \"%s\"", manifest->path);
    if (!iso_path_exists(path))
      return iso_fail(ISO_ERR_NOT_FOUND, "data: \"%s\" lists \"%s\", which is not there; restore it", manifest->path,
                      manifest->files[i].name);
  }
  return ISO_OK;
}

static iso_status load(struct iso_token_manifest *manifest, iso_indexer *indexer) {
  const char *path = iso_arena_printf(manifest->arena, "%sshards.json", manifest->folder);
  iso_blob *blob = NULL;
  if (!path) return iso_fail(ISO_ERR_MEMORY, "data: no memory to look for shards.json");
  ISO_TRY(iso_tokens_check_tokenizer(indexer)); /* which is compared */
  ISO_TRY(iso_indexer_beside(indexer, path, &blob));
  if (!blob) {
    iso_warn("data: there is no shards.json beside \"%s\": that its ids are this tokenizer's is not checked",
             indexer->file->path);
    return ISO_OK;
  }
  manifest->path = path;
  const int64_t bytes = iso_blob_info_of(blob)->bytes;
  char *text = bytes <= MANIFEST_LIMIT ? malloc((size_t)bytes + 1) : NULL;
  iso_json *json = NULL;
  iso_status status =
      text ? iso_blob_read(blob, 0, bytes, text)
           : iso_fail(ISO_ERR_MEMORY, "data: no memory for the %lld bytes of \"%s\"", (long long)bytes, path);
  if (status == ISO_OK) status = iso_json_parse(text, (size_t)bytes, path, &json);
  if (status == ISO_OK) status = read_manifest(manifest, json, indexer->options->tokenizer);
  if (status == ISO_OK) status = check_presence(manifest);
  iso_json_destroy(&json);
  free(text);
  iso_blob_close(&blob);
  return status;
}

void iso_token_manifest_close(iso_token_manifest **manifest) {
  if (!*manifest) return;
  iso_arena_destroy(&(*manifest)->arena);
  free(*manifest);
  *manifest = NULL;
}

static iso_status open_folder(iso_indexer *indexer, size_t length) {
  iso_token_manifest_close(&indexer->manifest);
  iso_token_manifest *manifest = indexer->manifest = calloc(1, sizeof *manifest);
  if (manifest) manifest->arena = iso_arena_create();
  if (manifest && manifest->arena)
    manifest->folder = iso_arena_printf(manifest->arena, "%.*s", (int)length, indexer->file->path);
  if (!manifest || !manifest->folder) return iso_fail(ISO_ERR_MEMORY, "data: no memory to look for shards.json");
  return load(manifest, indexer);
}

/* Length of a shard's path without ".bin" or ".idx". */
static int stem(const char *path) {
  return (int)strlen(path) - 4;
}

iso_status iso_token_manifest_find(iso_indexer *indexer, const iso_token_manifest_file **entry) {
  const char *path = indexer->file->path, *slash = strrchr(path, '/');
  const size_t length = slash ? (size_t)(slash - path) + 1 : 0;
  const iso_token_manifest *manifest = indexer->manifest;
  *entry = NULL;
  if (!manifest || strlen(manifest->folder) != length || memcmp(manifest->folder, path, length) != 0)
    ISO_TRY(open_folder(indexer, length));
  manifest = indexer->manifest;
  if (!manifest->path) return ISO_OK;
  for (int64_t i = 0; i < manifest->count; i++)
    if (strcmp(manifest->files[i].name, path + length) == 0) {
      *entry = &manifest->files[i];
      return ISO_OK;
    }
  return iso_fail(ISO_ERR_MISMATCH, "data: \"%s\" is not listed in \"%s\"; move it to a folder of its own", path,
                  manifest->path);
}

iso_status iso_token_manifest_size(iso_indexer *indexer, const iso_token_manifest_file *entry) {
  const char *path = indexer->file->path;
  if (indexer->file->bytes == entry->bytes) return ISO_OK;
  indexer->damaged = true;
  return iso_fail(
      ISO_ERR_MISMATCH,
      "data: \"%s\" has %lld bytes; \"%s\" says %lld; restore it, or remove \"%.*s.json\" and run data build again",
      path, (long long)indexer->file->bytes, indexer->manifest->path, (long long)entry->bytes, stem(path), path);
}

static iso_status damaged(iso_indexer *indexer, const char *what, uint32_t is, uint32_t should) {
  indexer->damaged = true;
  return iso_fail(ISO_ERR_MISMATCH,
                  "data: \"%s\" is damaged: the CRC-32C of its %s is %08x, \"%s\" says %08x; restore it, or remove "
                  "\"%.*s.json\" and "
                  "run data build again",
                  indexer->file->path, what, is, indexer->manifest->path, should, stem(indexer->file->path),
                  indexer->file->path);
}

iso_status iso_token_manifest_check(iso_indexer *indexer, const iso_token_manifest_file *entry, int64_t tokens) {
  const iso_data_file *file = indexer->file;
  if (file->crc32c != entry->crc32c) return damaged(indexer, "ids", file->crc32c, entry->crc32c);
  if (entry->index_bytes >= 0 && file->index_crc32c != entry->index_crc32c)
    return damaged(indexer, "index", file->index_crc32c, entry->index_crc32c);
  if (entry->tokens < 0 || tokens == entry->tokens) return ISO_OK;
  indexer->damaged = true;
  return iso_fail(
      ISO_ERR_MISMATCH, "data: \"%s\" has %lld tokens, \"%s\" says %lld; remove \"%.*s.json\" and run data build again",
      file->path, (long long)tokens, indexer->manifest->path, (long long)entry->tokens, stem(file->path), file->path);
}
