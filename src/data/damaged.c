/* SPDX-License-Identifier: Apache-2.0
 *
 * damaged: files that are left out, whole or from a place on (data.on_bad: skip).
 *
 * A truncated archive, a shard that is not what its checksum says, a file without a document: what is lost of such a
 * file has no documents that could be counted. One bad document stands for it, the last one of the file. So it lies in
 * a block, and the lane that comes by counts it and lists it with its step, as any other bad document; every start,
 * resume and rank finds the same.
 *
 *   file     |  documents that are kept  |  one virtual byte: the document that stands for the rest
 *
 * Invariants
 *  1. What is kept depends on the file's bytes alone.
 *  2. Of text and rows, whole documents before the damage are kept; of a token shard nothing is, since its checksum is
 *     one over all of it.
 *  3. What a failing read gives is an error, never damage; so is a file that changed.
 */
#include "data/data.h"

#include <string.h>

void iso_damage_tell(iso_damage *damage, const char *path, const char *message) {
  const size_t length = strlen(path);
  *damage = (iso_damage){.is = true};
  if (strncmp(message, "data: ", 6) == 0) message += 6;
  const bool quoted = (*message == '"' || *message == '\'') && strncmp(message + 1, path, length) == 0;
  if (quoted && message[1 + length] == *message) message += length + 2;
  message += strspn(message, ": ");
  const char *advice = strchr(message, ';');
  size_t taken = advice ? (size_t)(advice - message) : strlen(message);
  if (taken > sizeof damage->cause - 1) taken = sizeof damage->cause - 1;
  while (taken && ((unsigned char)message[taken] & 0xC0) == 0x80) taken--; /* no half of a character */
  snprintf(damage->cause, sizeof damage->cause, "%.*s", (int)taken, message);
}

/* Of a token shard: good as a whole or not at all. */
static iso_status index_shard(iso_indexer *indexer, const iso_format *format) {
  iso_data_file *file = indexer->file;
  const iso_token_manifest_file *entry;
  int64_t before;
  (void)iso_indexer_added(indexer, 0, &before);
  if (file->damage.is) return ISO_OK;
  ISO_TRY(iso_token_manifest_find(indexer, &entry)); /* what is wrong with shards.json is no damage of one shard */
  indexer->damaged = false;
  iso_log_mute(indexer->muted = true);
  const iso_status status = iso_index_file(indexer, format);
  iso_log_mute(indexer->muted = false);
  if (status == ISO_OK) return ISO_OK;
  if (status != ISO_ERR_FORMAT && !(status == ISO_ERR_MISMATCH && indexer->damaged))
    return iso_fail(status, "%s", iso_last_error());
  iso_damage_tell(&file->damage, file->path, iso_last_error());
  iso_indexer_restart(indexer, before);
  return ISO_OK;
}

iso_status iso_index_damaged(iso_indexer *indexer, const iso_format *format, bool *empty) {
  iso_data_file *file = indexer->file;
  int64_t before, after;
  *empty = false;
  if (!indexer->options->skip_damaged) return iso_index_file(indexer, format);
  (void)iso_indexer_added(indexer, 0, &before);
  ISO_TRY(format->content == ISO_CONTENT_TOKENS ? index_shard(indexer, format) : iso_index_file(indexer, format));
  (void)iso_indexer_added(indexer, 0, &after);
  *empty = !file->damage.is && before == after;
  if (*empty) {
    file->damage = (iso_damage){.is = true};
    snprintf(file->damage.cause, sizeof file->damage.cause, "the file (%lld bytes) has no document",
             (long long)iso_blob_info_of(file->blob)->bytes);
  } else if (file->damage.is) {
    iso_warn("data: \"%s\": %s; %lld document%s of it %s kept, the rest is left out and counts as one bad document",
             file->path, file->damage.cause, (long long)(after - before), iso_plural(after - before),
             after - before == 1 ? "is" : "are");
  }
  return file->damage.is ? iso_indexer_add(indexer, file->bytes, 1, true) : ISO_OK;
}

int64_t iso_source_damaged(const iso_source *source, int64_t *first) {
  int64_t count = 0;
  *first = -1;
  for (int64_t f = 0; f < iso_source_files(source); f++) {
    if (!iso_source_file(source, f)->damage.is) continue;
    if (count++ == 0) *first = f;
  }
  return count;
}

bool iso_source_is_damage(const iso_source *source, int64_t index) {
  const iso_document place = iso_source_document(source, index);
  const iso_data_file *file = iso_source_file(source, place.file);
  return file->damage.is && place.offset == file->bytes;
}

iso_status iso_source_check_sound(const iso_source *source) {
  int64_t first;
  const int64_t damaged = iso_source_damaged(source, &first);
  if (damaged == 0 || damaged < iso_source_documents(source)) return ISO_OK;
  const iso_data_file *file = iso_source_file(source, first);
  return iso_fail(
      ISO_ERR_FORMAT, "data: nothing of the %lld file%s of \"%s\" can be kept; the first is \"%s\": %s; get it again",
      (long long)damaged, iso_plural(damaged), iso_source_options_of(source)->path, file->path, file->damage.cause);
}
