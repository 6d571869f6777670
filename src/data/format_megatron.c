/* SPDX-License-Identifier: Apache-2.0
 *
 * format megatron: token ids in NAME.bin, where its documents are in NAME.idx.
 *
 *   .idx, little-endian, nothing aligned:
 *     0   9 bytes   "MMIDIDX\0\0"
 *     9   u64       version 1
 *     17  u8        type of the ids: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16
 *     18  u64       S, sequences
 *     26  u64       D, entries of the document array: documents + 1
 *     34  i32[S]    ids of each sequence
 *         i64[S]    its byte offset in .bin
 *         i64[D]    sequence with which each document begins; the first is 0, the last S
 *         i8[S]     modes, of multimodal sets only
 *
 * Invariants
 *  1. Sizes of both files are exactly what the counts say; offsets are the running sum of lengths; documents begin at
 *     sequences in order. Nothing is read through a number that was not checked first.
 *  2. A document is its sequences, joined; EOS follows it unless it ends with one. One without ids is none.
 *
 * Format from Megatron-LM (megatron/core/datasets/indexed_dataset.py).
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 34, CHUNK_BYTES = 4 << 20, STREAM_BYTES = 1 << 16 };

static uint64_t u64_at(const uint8_t *bytes) {
  uint64_t value = 0;
  for (int i = 0; i < 8; i++) value |= (uint64_t)bytes[i] << (8 * i);
  return value;
}

iso_status iso_megatron_head(const char *path, const uint8_t head[34], int64_t bytes, iso_megatron_counts *out) {
  if (bytes < HEAD_BYTES || memcmp(head, "MMIDIDX\0\0", 9) != 0)
    return iso_fail(ISO_ERR_FORMAT, "data: \"%s\" is no index of Megatron: it does not begin with MMIDIDX", path);
  if (u64_at(head + 9) != 1)
    return iso_fail(ISO_ERR_UNSUPPORTED, "data: \"%s\": an index of version %llu; this build reads 1", path,
                    (unsigned long long)u64_at(head + 9));
  out->token_type = head[17];
  if (out->token_type < ISO_TOKEN_U8 || out->token_type > ISO_TOKEN_U16)
    return iso_fail(ISO_ERR_FORMAT, "data: \"%s\": type code %d is none of 1 to 8", path, head[17]);
  const uint64_t limit = (uint64_t)(bytes - HEAD_BYTES), sequences = u64_at(head + 18), entries = u64_at(head + 26);
  uint64_t left = limit;
  bool fits = sequences <= left / 12;
  if (fits) left -= 12 * sequences;
  fits = fits && entries <= left / 8;
  if (fits) left -= 8 * entries;
  if (!fits || (left != 0 && left != sequences))
    return iso_fail(
        ISO_ERR_FORMAT,
        "data: \"%s\" has %lld bytes, which is not what an index of %llu sequences and %llu document entries "
        "has; it is damaged or cut",
        path, (long long)bytes, (unsigned long long)sequences, (unsigned long long)entries);
  if (entries == 0) return iso_fail(ISO_ERR_FORMAT, "data: \"%s\": the document array is empty", path);
  out->sequences = (int64_t)sequences;
  out->entries = (int64_t)entries;
  out->modes = left != 0;
  return ISO_OK;
}

/* One array, read front to back. */
typedef struct stream {
  iso_blob *blob;
  int64_t at, end; /* bytes of the file still to be loaded */
  int width;
  size_t next, held;
  uint8_t bytes[STREAM_BYTES];
} stream;

static void stream_init(stream *s, iso_blob *blob, int64_t *at, int64_t count, int width) {
  s->blob = blob;
  s->at = *at;
  s->end = *at += count * width;
  s->width = width;
  s->next = s->held = 0;
}

/* The next entry as a signed number; the caller counts them. */
static iso_status stream_next(stream *s, int64_t *out) {
  if (s->next == s->held) {
    int64_t want = s->end - s->at < STREAM_BYTES ? s->end - s->at : STREAM_BYTES;
    ISO_TRY(iso_blob_read(s->blob, s->at, want, s->bytes));
    s->at += want;
    s->held = (size_t)want;
    s->next = 0;
  }
  uint8_t entry[8] = {0};
  memcpy(entry, s->bytes + s->next, (size_t)s->width);
  uint64_t bits = u64_at(entry);
  *out = s->width == 1 ? (int8_t)bits : s->width == 4 ? (int32_t)bits : (int64_t)bits;
  s->next += (size_t)s->width;
  return ISO_OK;
}

static iso_status bad_entry(const char *path, const char *array, int64_t index, int64_t value, const char *what) {
  return iso_fail(ISO_ERR_FORMAT, "data: \"%s\": %s %lld is %lld, but %s; the index is damaged", path, array,
                  (long long)index, (long long)value, what);
}

typedef struct arrays {
  stream lengths, offsets, documents, modes;
} arrays;

/* Checks every entry and adds the documents. */
static iso_status add_documents(iso_indexer *indexer, const char *path, const iso_megatron_counts *counts, arrays *a) {
  const int width = iso_token_bytes(counts->token_type);
  const int64_t bytes = indexer->file->bytes;
  int64_t running = 0, begin = 0, documents = 0, next;
  ISO_TRY(stream_next(&a->documents, &next));
  if (next != 0) return bad_entry(path, "document", 0, next, "the first begins with sequence 0");
  for (int64_t i = 0; i <= counts->sequences; i++) {
    while (next == i) { /* a document begins with sequence i, and the one before ends */
      ISO_TRY(iso_indexer_add(indexer, begin, running - begin, false));
      begin = running;
      if (++documents == counts->entries) break;
      ISO_TRY(stream_next(&a->documents, &next));
      if (next < i || next > counts->sequences)
        return bad_entry(path, "document", documents, next, "they begin in order, within the sequences");
    }
    if (i == counts->sequences) break;
    if (documents == counts->entries)
      return bad_entry(path, "document", documents - 1, i, "the last entry is the number of sequences");
    int64_t length, offset, mode = 0;
    ISO_TRY(stream_next(&a->lengths, &length));
    ISO_TRY(stream_next(&a->offsets, &offset));
    if (counts->modes) ISO_TRY(stream_next(&a->modes, &mode));
    if (length < 0) return bad_entry(path, "length", i, length, "it cannot be negative");
    if (offset != running) return bad_entry(path, "offset", i, offset, "it is not where the sequence before ends");
    if (length > (bytes - running) / width) return bad_entry(path, "length", i, length, "the .bin ends before");
    if (mode) return bad_entry(path, "mode", i, mode, "only text is read");
    running += length * width;
  }
  if (documents != counts->entries)
    return bad_entry(path, "document", documents, next, "the last entry is the number of sequences");
  if (running == bytes) return ISO_OK;
  return iso_fail(ISO_ERR_FORMAT, "data: \"%s\" has %lld bytes; its index \"%s\" says %lld", indexer->file->path,
                  (long long)bytes, path, (long long)running);
}

static iso_status read_index(iso_indexer *indexer, iso_blob *blob) {
  const iso_blob_info *info = iso_blob_info_of(blob);
  uint8_t head[HEAD_BYTES] = {0};
  iso_megatron_counts counts;
  ISO_TRY(iso_blob_read(blob, 0, info->bytes < HEAD_BYTES ? info->bytes : HEAD_BYTES, head));
  ISO_TRY(iso_megatron_head(info->path, head, info->bytes, &counts));
  indexer->file->token_type = counts.token_type;
  arrays *a = malloc(sizeof *a);
  if (!a) return iso_fail(ISO_ERR_MEMORY, "data: no memory to index \"%s\"", indexer->file->path);
  int64_t at = HEAD_BYTES;
  stream_init(&a->lengths, blob, &at, counts.sequences, 4);
  stream_init(&a->offsets, blob, &at, counts.sequences, 8);
  stream_init(&a->documents, blob, &at, counts.entries, 8);
  stream_init(&a->modes, blob, &at, counts.modes ? counts.sequences : 0, 1);
  iso_status status = add_documents(indexer, info->path, &counts, a);
  free(a);
  return status;
}

static iso_status checksum(iso_indexer *indexer, iso_blob *index) {
  iso_data_file *file = indexer->file;
  char *buffer = malloc(CHUNK_BYTES);
  if (!buffer) return iso_fail(ISO_ERR_MEMORY, "data: no memory to index \"%s\"", file->path);
  iso_status status = ISO_OK;
  const int64_t bytes = iso_blob_info_of(index)->bytes;
  for (int64_t at = 0; at < bytes && status == ISO_OK; at += CHUNK_BYTES) {
    int64_t want = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
    status = iso_blob_read(index, at, want, buffer);
    if (status == ISO_OK) file->index_crc32c = iso_crc32c(file->index_crc32c, buffer, (size_t)want);
  }
  while (indexer->position < file->bytes && status == ISO_OK) {
    int64_t want = file->bytes - indexer->position;
    status = iso_indexer_next(indexer, buffer, want < CHUNK_BYTES ? want : CHUNK_BYTES);
  }
  free(buffer);
  return status;
}

bool iso_megatron_probe(const uint8_t *first, size_t bytes) {
  return bytes >= 9 && memcmp(first, "MMIDIDX\0\0", 9) == 0;
}

iso_status iso_megatron_index(iso_indexer *indexer) {
  const char *path = indexer->file->path;
  const size_t length = strlen(path);
  const iso_token_manifest_file *entry;
  ISO_TRY(iso_tokens_check_tokenizer(indexer));
  ISO_TRY(iso_token_manifest_find(indexer, &entry));
  if (entry) ISO_TRY(iso_token_manifest_size(indexer, entry));
  if (length < 4 || strcmp(path + length - 4, ".bin") != 0)
    return iso_fail(ISO_ERR_CONFIG, "data: \"%s\" is not named .bin; a Megatron source is NAME.bin with NAME.idx",
                    path);
  iso_string name = {0};
  iso_string_printf(&name, "%.*s.idx", (int)(length - 4), path);
  iso_blob *blob = NULL;
  iso_status status = iso_string_failed(&name) ? ISO_ERR_MEMORY : iso_indexer_beside(indexer, name.data, &blob);
  if (status == ISO_OK && !blob)
    status = iso_fail(ISO_ERR_NOT_FOUND, "data: \"%s\" has no index \"%s\"; restore it, or read it with format: tokens",
                      path, name.data);
  if (status == ISO_OK) status = read_index(indexer, blob);
  if (status == ISO_OK) status = checksum(indexer, blob);
  if (status == ISO_OK && entry)
    status =
        iso_token_manifest_check(indexer, entry, indexer->file->bytes / iso_token_bytes(indexer->file->token_type));
  iso_blob_close(&blob);
  iso_string_fini(&name);
  return status;
}
