/* SPDX-License-Identifier: Apache-2.0
 *
 * build record: a shard is there when its record is, and its files are as long as the record says.
 *
 * It does not read the files: their CRC-32C is checked by whoever trains on them.
 */
#include "data/build.h"

#include <errno.h>
#include <string.h>

void iso_build_name(iso_string *out, const char *folder, int64_t number, const char *ending) {
  iso_string_printf(out, "%s/shard-%05lld.%s", folder, (long long)number, ending);
}

static iso_status size_of(const char *folder, int64_t number, const char *ending, int64_t *bytes) {
  iso_string name = {0};
  iso_build_name(&name, folder, number, ending);
  struct stat info;
  iso_status status = ISO_OK;
  *bytes = -1; /* it is gone */
  if (iso_string_failed(&name))
    status = ISO_ERR_MEMORY;
  else if (iso_os.stat(name.data, &info) == 0)
    *bytes = (int64_t)info.st_size;
  else if (errno != ENOENT)
    status = iso_os_fail("look at", name.data);
  iso_string_fini(&name);
  return status;
}

static iso_status parse_record(const iso_json *json, const char *where, iso_build_record *r) {
  const struct {
    const char *key;
    int64_t *value;
  } keys[] = {{"bytes", &r->bytes},
              {"crc32c", &r->crc},
              {"tokens", &r->tokens},
              {"documents", &r->documents},
              {"index_bytes", &r->index_bytes},
              {"index_crc32c", &r->index_crc},
              {"text_bytes", &r->text_bytes},
              {"bad_documents", &r->bad}};
  for (size_t i = 0; i < ISO_COUNT(keys); i++) {
    ISO_TRY(iso_json_int(json, where, keys[i].key, -1, keys[i].value));
    if (*keys[i].value < 0) return iso_fail(ISO_ERR_FORMAT, "%s: \"%s\" is missing or negative", where, keys[i].key);
  }
  return ISO_OK;
}

/* The record of a shard that is there; *there is false when it is still to be made. */
iso_status iso_build_record_read(const char *folder, int64_t number, bool *there, iso_build_record *r) {
  iso_string name = {0};
  iso_build_name(&name, folder, number, "json");
  *there = false;
  if (iso_string_failed(&name)) return ISO_ERR_MEMORY;
  iso_status status = ISO_OK;
  iso_json *json = NULL;
  if (!iso_path_exists(name.data)) goto done;
  status = iso_json_read(name.data, &json);
  if (status == ISO_OK) status = parse_record(json, name.data, r);
  int64_t bytes = 0, index_bytes = 0;
  if (status == ISO_OK) status = size_of(folder, number, "bin", &bytes);
  if (status == ISO_OK) status = size_of(folder, number, "idx", &index_bytes);
  if (status == ISO_OK && (bytes < 0 || index_bytes < 0))
    status =
        iso_fail(ISO_ERR_MISMATCH,
                 "data build: the %s of shard %lld is gone, which '%s' says is made; remove that record to make the "
                 "shard again",
                 bytes < 0 ? ".bin" : ".idx", (long long)number, name.data);
  if (status == ISO_OK && (bytes != r->bytes || index_bytes != r->index_bytes))
    status =
        iso_fail(ISO_ERR_MISMATCH,
                 "data build: shard %lld has %lld and %lld bytes where '%s' says %lld and %lld; remove that record "
                 "to make the shard again",
                 (long long)number, (long long)bytes, (long long)index_bytes, name.data, (long long)r->bytes,
                 (long long)r->index_bytes);
  *there = status == ISO_OK;
done:
  iso_json_destroy(&json);
  iso_string_fini(&name);
  return status;
}
