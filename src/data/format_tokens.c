/* SPDX-License-Identifier: Apache-2.0
 *
 * format tokens: files of token ids, with the 1,024-byte header of llm.c or without one (nanoGPT).
 *
 *   llm.c: 256 x int32, little-endian: magic, version, tokens, zeros; then the ids, back to back.
 *          magic 20240520, version 1: uint16 (GPT-2); magic 20240801, version 7: uint32 (Llama 3).
 *
 * A document ends with the tokenizer's EOS; what stands behind the last EOS of a file is a document too. So files that
 * put EOS before each document and those that put it behind give the same documents.
 *
 * Invariants
 *  1. A file's size is exactly what its header says; without a header, a whole number of ids.
 *  2. Every id handed out is in the vocabulary; the last of a document is EOS. An EOS alone is no document here.
 *  3. A file of a folder with shards.json is read only if that says what is in it (token_manifest.c).
 *
 * Format from llm.c (train_gpt2.c, dataloader.h; dev/data/data_common.py).
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

enum {
  HEADER_BYTES = 1024,
  MAGIC_GPT2 = 20240520,
  MAGIC_LLAMA3 = 20240801,
  MAGIC_EVAL = 20240522,
  CHUNK_BYTES = 4 << 20 /* a multiple of every width */
};

/* ---- types ---- */

static const struct {
  const char *name;
  int bytes;
} types[ISO_TOKEN_TYPES] = {
    [ISO_TOKEN_U8] = {"uint8", 1},    [ISO_TOKEN_I8] = {"int8", 1},    [ISO_TOKEN_I16] = {"int16", 2},
    [ISO_TOKEN_I32] = {"int32", 4},   [ISO_TOKEN_I64] = {"int64", 8},  [ISO_TOKEN_F64] = {"float64", 8},
    [ISO_TOKEN_F32] = {"float32", 4}, [ISO_TOKEN_U16] = {"uint16", 2}, [ISO_TOKEN_U32] = {"uint32", 4}};

int iso_token_bytes(int type) {
  return types[type].bytes;
}

const char *iso_token_type_name(int type) {
  return types[type].name ? types[type].name : "unknown";
}

int iso_token_type_find(const char *name) {
  for (int i = 1; i < ISO_TOKEN_TYPES; i++)
    if (strcmp(types[i].name, name) == 0) return i;
  return 0;
}

/* The id at `at`, little-endian; -1 when it is none (negative, or not whole). */
static int64_t id_at(int type, const char *at) {
  union {
    uint8_t u8;
    int8_t i8;
    int16_t i16;
    int32_t i32;
    int64_t i64;
    double f64;
    float f32;
    uint16_t u16;
    uint32_t u32;
  } v;
  memcpy(&v, at, (size_t)types[type].bytes);
  double real = 0;
  switch (type) {
  case ISO_TOKEN_U8:
    return v.u8;
  case ISO_TOKEN_I8:
    return v.i8;
  case ISO_TOKEN_I16:
    return v.i16;
  case ISO_TOKEN_I32:
    return v.i32;
  case ISO_TOKEN_I64:
    return v.i64;
  case ISO_TOKEN_F64:
    real = v.f64;
    break;
  case ISO_TOKEN_F32:
    real = (double)v.f32;
    break;
  case ISO_TOKEN_U16:
    return v.u16;
  default:
    return v.u32;
  }
  if (!(real >= 0 && real < 2147483648.0)) return -1;
  return (double)(int64_t)real == real ? (int64_t)real : -1;
}

/* ---- decoding ---- */

iso_status iso_tokens_decode(const iso_source_options *options, const iso_data_file *file, int64_t offset,
                             const char *stored, size_t length, int32_t **ids, size_t *capacity, int64_t *count,
                             iso_bad *bad) {
  const int64_t vocabulary = iso_tokenizer_vocabulary(options->tokenizer);
  const int32_t eos = (int32_t)iso_tokenizer_eos(options->tokenizer);
  const size_t width = (size_t)types[file->token_type].bytes, n = length / width;
  *bad = (iso_bad){.byte = -1};
  *count = 0;
  if (n + 1 > *capacity) {
    size_t wanted = n + 1 + n / 4;
    int32_t *grown = realloc(*ids, wanted * sizeof *grown);
    if (!grown) return iso_fail(ISO_ERR_MEMORY, "data: no memory for %zu tokens of \"%s\"", n, file->path);
    *ids = grown;
    *capacity = wanted;
  }
  for (size_t i = 0; i < n; i++) {
    int64_t id = id_at(file->token_type, stored + i * width);
    if (id < 0 || id >= vocabulary) {
      bad->is = true;
      bad->byte = offset + (int64_t)(i * width);
      if (id < 0)
        snprintf(bad->cause, sizeof bad->cause, "its token %zu (%s) is no id: negative, too large or not whole", i,
                 types[file->token_type].name);
      else
        snprintf(bad->cause, sizeof bad->cause, "its token %zu is %lld; the tokenizer has ids 0 to %lld", i,
                 (long long)id, (long long)vocabulary - 1);
      return ISO_OK;
    }
    (*ids)[i] = (int32_t)id;
  }
  if (n == 0 || (*ids)[n - 1] != eos) (*ids)[n] = eos;
  *count = (int64_t)n + (n == 0 || (*ids)[n - 1] != eos);
  return ISO_OK;
}

/* ---- indexing ---- */

static int32_t int_at(const uint8_t *bytes) {
  return (int32_t)((uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24);
}

bool iso_tokens_probe(const uint8_t *first, size_t bytes) {
  return bytes >= 4 && (int_at(first) == MAGIC_GPT2 || int_at(first) == MAGIC_LLAMA3);
}

iso_status iso_tokens_head(const char *path, const uint8_t *first, size_t held, int64_t bytes, int declared, int *type,
                           int64_t *begin) {
  const int32_t magic = held >= 4 ? int_at(first) : 0;
  *begin = 0;
  *type = declared;
  if (magic == MAGIC_EVAL && bytes >= HEADER_BYTES)
    return iso_fail(ISO_ERR_UNSUPPORTED,
                    "data: \"%s\" is an evaluation file of llm.c (magic %d), not a token shard; leave it out", path,
                    MAGIC_EVAL);
  if (magic == MAGIC_GPT2 || magic == MAGIC_LLAMA3) {
    const int version = magic == MAGIC_GPT2 ? 1 : 7;
    *type = magic == MAGIC_GPT2 ? ISO_TOKEN_U16 : ISO_TOKEN_U32;
    if (held < 12 || bytes < HEADER_BYTES)
      return iso_fail(ISO_ERR_FORMAT, "data: \"%s\" ends inside its header of %d bytes", path, HEADER_BYTES);
    if (int_at(first + 4) != version)
      return iso_fail(ISO_ERR_UNSUPPORTED,
                      "data: \"%s\": a token shard of magic %d has version %d; this build reads %d", path, magic,
                      int_at(first + 4), version);
    const int64_t tokens = int_at(first + 8);
    if (tokens < 0 || bytes - HEADER_BYTES != tokens * types[*type].bytes)
      return iso_fail(ISO_ERR_FORMAT,
                      "data: \"%s\": the header says %lld tokens of %s, which makes %lld bytes; the file has %lld",
                      path, (long long)tokens, types[*type].name,
                      (long long)(HEADER_BYTES + tokens * types[*type].bytes), (long long)bytes);
    if (declared && declared != *type)
      return iso_fail(ISO_ERR_MISMATCH, "data: \"%s\" holds %s; token_type or shards.json says %s", path,
                      types[*type].name, types[declared].name);
    *begin = HEADER_BYTES;
    return ISO_OK;
  }
  if (!declared)
    return iso_fail(
        ISO_ERR_CONFIG,
        "data: \"%s\" has no header of a token shard; if it holds bare ids, set token_type: uint16 or uint32 "
        "on its source (isotach data: --token-type)",
        path);
  if (bytes % types[declared].bytes)
    return iso_fail(ISO_ERR_FORMAT, "data: \"%s\" has %lld bytes, which is no whole number of %s ids", path,
                    (long long)bytes, types[declared].name);
  return ISO_OK;
}

/* Adds the documents that end in the next `length` bytes, which lie at `offset` of the file. */
static iso_status split(iso_indexer *indexer, const char *bytes, int64_t length, int64_t offset, int64_t *begin) {
  const int type = indexer->file->token_type, width = types[type].bytes;
  const int64_t eos = iso_tokenizer_eos(indexer->options->tokenizer);
  for (int64_t at = 0; at < length; at += width) {
    uint16_t narrow;
    uint32_t wide;
    if (type == ISO_TOKEN_U16) {
      memcpy(&narrow, bytes + at, sizeof narrow);
      if (narrow != eos) continue;
    } else {
      memcpy(&wide, bytes + at, sizeof wide);
      if (wide != eos) continue;
    }
    const int64_t end = offset + at + width;
    if (end - *begin > width) ISO_TRY(iso_indexer_add(indexer, *begin, end - *begin, false));
    *begin = end;
  }
  return ISO_OK;
}

static iso_status scan(iso_indexer *indexer, char *buffer, int64_t begin) {
  const int64_t bytes = indexer->file->bytes;
  while (indexer->position < bytes) {
    const int64_t offset = indexer->position;
    int64_t want = bytes - offset;
    if (want > CHUNK_BYTES) want = CHUNK_BYTES;
    if (offset == 0 && begin) want = begin;
    ISO_TRY(iso_indexer_next(indexer, buffer, want));
    if (offset == 0 && begin) continue;
    ISO_TRY(split(indexer, buffer, want, offset, &begin));
  }
  return iso_indexer_add(indexer, begin, bytes - begin, false);
}

iso_status iso_tokens_check_tokenizer(const iso_indexer *indexer) {
  if (indexer->options->tokenizer && iso_tokenizer_eos(indexer->options->tokenizer) >= 0) return ISO_OK;
  return iso_fail(ISO_ERR_CONFIG,
                  "data: \"%s\" holds tokens: a tokenizer with an end-of-text token is needed to read it",
                  indexer->file->path);
}

iso_status iso_tokens_index(iso_indexer *indexer) {
  iso_data_file *file = indexer->file;
  uint8_t first[12];
  const size_t held = file->bytes < (int64_t)sizeof first ? (size_t)file->bytes : sizeof first;
  const iso_token_manifest_file *entry = NULL;
  int64_t begin;
  int declared = iso_token_type_find(indexer->options->token_type);
  ISO_TRY(iso_tokens_check_tokenizer(indexer));
  ISO_TRY(iso_token_manifest_find(indexer, &entry));
  if (entry) ISO_TRY(iso_token_manifest_size(indexer, entry));
  if (entry && !declared) declared = entry->token_type;
  ISO_TRY(iso_blob_read(file->blob, 0, (int64_t)held, first));
  ISO_TRY(iso_tokens_head(file->path, first, held, file->bytes, declared, &file->token_type, &begin));
  char *buffer = malloc(CHUNK_BYTES);
  if (!buffer) return iso_fail(ISO_ERR_MEMORY, "data: no memory to index \"%s\"", file->path);
  iso_status status = scan(indexer, buffer, begin);
  free(buffer);
  if (status != ISO_OK || !entry) return status;
  return iso_token_manifest_check(indexer, entry, (file->bytes - begin) / types[file->token_type].bytes);
}
