/* SPDX-License-Identifier: Apache-2.0
 *
 * build shard: the files of one shard, from the first byte to the record.
 *
 * A shard is a pair of files in the layout of Megatron's indexed datasets (.bin: ids back to back, .idx: where each
 * document is), so that other trainers read them too, and a record of it (.json: counts, CRC-32C).
 *
 * Invariants
 *  1. The files have temporary names until they are whole and synced.
 *  2. The record is published last; what has no record is made again.
 *
 * Layout of .idx: shared/reference of Megatron-Core's IndexedDataset, see docs/data.md. One thread at a time has a
 * shard.
 */
#include "data/build.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_VERSION = 1, CODE_I32 = 4, CODE_U16 = 8, BEGIN_BYTES = 1 << 20 };

static iso_status open_file(iso_build_shard *s, iso_sink *sink, iso_string *path, const char *ending,
                            const char *attempt) {
  iso_string_printf(path, "%s/shard-%05lld.%s.%s.tmp", s->folder, (long long)s->number, ending, attempt);
  if (iso_string_failed(path)) return ISO_ERR_MEMORY;
  return iso_sink_open(sink, path->data);
}

iso_status iso_build_shard_open(const char *folder, int64_t number, int id_bytes, iso_build_shard **out) {
  iso_build_shard *s = malloc(sizeof *s);
  *out = NULL;
  if (!s) return iso_fail(ISO_ERR_MEMORY, "data build: no memory for a shard");
  *s =
      (iso_build_shard){.folder = folder, .number = number, .id_bytes = id_bytes, .bin = {.fd = -1}, .idx = {.fd = -1}};
  char attempt[33];
  iso_status status = iso_attempt_id(attempt);
  if (status == ISO_OK) status = open_file(s, &s->bin, &s->bin_path, "bin", attempt);
  if (status == ISO_OK) status = open_file(s, &s->idx, &s->idx_path, "idx", attempt);
  if (status == ISO_OK)
    *out = s;
  else
    iso_build_shard_close(&s, false);
  return status;
}

void iso_build_shard_close(iso_build_shard **shard, bool published) {
  iso_build_shard *s = *shard;
  if (!s) return;
  if (!published && s->bin.path) iso_sink_abandon(&s->bin);
  if (!published && s->idx.path) iso_sink_abandon(&s->idx);
  iso_string_fini(&s->bin_path);
  iso_string_fini(&s->idx_path);
  iso_string_fini(&s->bad);
  free(s->lengths);
  free(s);
  *shard = NULL;
}

iso_status iso_build_shard_put(iso_build_shard *s, const char *ids, size_t bytes) {
  if (bytes) ISO_TRY(iso_sink_write(&s->bin, ids, bytes));
  if (s->bin.bytes - s->begun < BEGIN_BYTES) return ISO_OK;
  /* Asks the system to begin writing to the disk, so that the sync at the end has little left. It may decline. */
  (void)sync_file_range(s->bin.fd, s->begun, s->bin.bytes - s->begun, SYNC_FILE_RANGE_WRITE);
  s->begun = s->bin.bytes;
  return ISO_OK;
}

void iso_build_shard_mark(iso_build_shard *s) {
  s->mark = s->bin;
}

iso_status iso_build_shard_take_back(iso_build_shard *s) {
  if (iso_os.ftruncate(s->bin.fd, s->mark.bytes) != 0) return iso_os_fail("truncate", s->bin.path);
  s->bin = s->mark;
  if (s->begun > s->bin.bytes) s->begun = s->bin.bytes;
  if (s->asked > s->bin.bytes) s->asked = s->bin.bytes;
  return ISO_OK;
}

iso_status iso_build_shard_count(iso_build_shard *s, const int32_t *lengths, size_t count) {
  const size_t need = (size_t)s->documents + count;
  if (need > s->capacity) {
    const size_t wanted = 2 * need;
    int32_t *grown = realloc(s->lengths, wanted * sizeof *grown);
    if (!grown)
      return iso_fail(ISO_ERR_MEMORY, "data build: no memory for the index of shard %lld", (long long)s->number);
    s->lengths = grown;
    s->capacity = wanted;
  }
  if (count) memcpy(s->lengths + s->documents, lengths, count * sizeof *lengths);
  for (size_t i = 0; i < count; i++) s->tokens += lengths[i];
  s->documents = (int64_t)need;
  return ISO_OK;
}

void iso_build_shard_leave_out(iso_build_shard *s, int64_t document) {
  iso_string_printf(&s->bad, "%s%lld", s->bad_count++ ? ", " : "", (long long)document);
}

iso_status iso_build_shard_end(iso_build_shard *s) {
  static const char magic[9] = "MMIDIDX\0";
  const uint64_t version = INDEX_VERSION, sequences = (uint64_t)s->documents, bounds = sequences + 1;
  const uint8_t code = s->id_bytes == 2 ? CODE_U16 : CODE_I32;
  ISO_TRY(iso_sink_write(&s->idx, magic, sizeof magic));
  ISO_TRY(iso_sink_write(&s->idx, &version, 8));
  ISO_TRY(iso_sink_write(&s->idx, &code, 1));
  ISO_TRY(iso_sink_write(&s->idx, &sequences, 8));
  ISO_TRY(iso_sink_write(&s->idx, &bounds, 8));
  ISO_TRY(iso_sink_write(&s->idx, s->lengths, (size_t)s->documents * 4));
  int64_t *row = malloc((size_t)bounds * sizeof *row);
  if (!row) return iso_fail(ISO_ERR_MEMORY, "data build: no memory for the index of shard %lld", (long long)s->number);
  int64_t offset = 0;
  for (int64_t i = 0; i < s->documents; i++) {
    row[i] = offset;
    offset += (int64_t)s->lengths[i] * s->id_bytes;
  }
  iso_status status = iso_sink_write(&s->idx, row, (size_t)s->documents * 8);
  for (int64_t i = 0; i <= s->documents; i++) row[i] = i;
  if (status == ISO_OK) status = iso_sink_write(&s->idx, row, (size_t)bounds * 8);
  free(row);
  free(s->lengths);
  s->lengths = NULL;
  (void)sync_file_range(s->bin.fd, s->begun, s->bin.bytes - s->begun, SYNC_FILE_RANGE_WRITE);
  (void)sync_file_range(s->idx.fd, 0, s->idx.bytes, SYNC_FILE_RANGE_WRITE);
  return status;
}

static iso_status publish_file(iso_build_shard *s, iso_sink *sink, const char *ending) {
  ISO_TRY(iso_sink_commit(sink));
  iso_string name = {0};
  iso_build_name(&name, s->folder, s->number, ending);
  iso_status status = ISO_OK;
  if (iso_string_failed(&name)) status = ISO_ERR_MEMORY;
  /* Without a record, what has the name is what a killed build left. */
  else if (iso_os.unlink(name.data) != 0 && errno != ENOENT)
    status = iso_os_fail("remove", name.data);
  else if (iso_os.rename_noreplace(sink->path, name.data) != 0)
    status = iso_os_fail("publish", name.data);
  iso_string_fini(&name);
  return status;
}

iso_status iso_build_shard_publish(iso_build_shard *s) {
  ISO_TRY(publish_file(s, &s->bin, "bin"));
  ISO_TRY(publish_file(s, &s->idx, "idx"));
  ISO_TRY(iso_path_sync(s->folder));
  iso_string name = {0}, text = {0};
  iso_build_name(&name, s->folder, s->number, "json");
  iso_string_printf(
      &text,
      "{\"name\": \"shard-%05lld.bin\", \"bytes\": %lld, \"crc32c\": %u, \"tokens\": %lld, \"documents\": "
      "%lld, \"index_bytes\": %lld, \"index_crc32c\": %u, \"text_bytes\": %lld, \"bad_documents\": %lld, "
      "\"bad\": [%s]}\n",
      (long long)s->number, (long long)s->bin.bytes, s->bin.crc, (long long)s->tokens, (long long)s->documents,
      (long long)s->idx.bytes, s->idx.crc, (long long)s->bytes, (long long)s->bad_count,
      s->bad.data ? s->bad.data : "");
  bool taken = false;
  iso_status status = iso_string_failed(&name) || iso_string_failed(&text) || iso_string_failed(&s->bad)
                          ? ISO_ERR_MEMORY
                          : iso_file_publish(name.data, text.data, text.length, &taken);
  if (status == ISO_OK && taken) status = iso_fail(ISO_ERR_BUSY, "data build: '%s' appeared meanwhile", name.data);
  iso_string_fini(&text);
  iso_string_fini(&name);
  return status;
}
