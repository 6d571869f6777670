/* SPDX-License-Identifier: Apache-2.0
 *
 * Small files that verify themselves (run.json, incarnations, manifests), and reading that tells a damaged file from a
 * system that refuses.
 *
 * A record is a JSON object whose last member is a CRC-32C over all text before that member. The end has one spelling
 * only, so a flipped bit anywhere is seen:
 *
 *   {
 *     ...,
 *     "crc32c": "e3069283"
 *   }
 *
 * A missing file, a short one, wrong content and an unreadable sector (EIO) are damage; permissions, descriptors and
 * memory are not, and must never lead to a good snapshot being set aside.
 */
#include "store/store.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static const char seal_head[] = "\"crc32c\": \"", seal_tail[] = "\"\n}\n";
enum { SEAL_BYTES = 11 + 8 + 4, RECORD_LIMIT = 1 << 28 };

static iso_status fault(iso_string *faults, iso_status status, const char *name, const char *cause) {
  iso_string_printf(faults, "%s: %s\n", name, cause);
  return status;
}

static iso_status fault_errno(iso_string *faults, const char *name) {
  int cause = errno;
  if (cause == ENOENT) return fault(faults, ISO_ERR_FORMAT, name, "the file is missing");
  if (cause == EIO) return fault(faults, ISO_ERR_FORMAT, name, "the disk cannot read it (I/O error)");
  iso_string_printf(faults, "%s: cannot be read: %s\n", name, strerror(cause));
  return cause == ENOMEM ? ISO_ERR_MEMORY : ISO_ERR_IO;
}

const char *iso_fault_first(iso_string *faults) {
  if (!faults->length || iso_string_failed(faults)) return "the cause is in the line above";
  faults->data[strcspn(faults->data, "\n")] = 0;
  return faults->data;
}

iso_status iso_probe_open(iso_probe *probe, const char *path, const char *name, iso_string *faults) {
  struct stat info;
  *probe = (iso_probe){.path = path, .name = name, .fd = -1};
  if (iso_os.stat(path, &info) != 0) return fault_errno(faults, name);
  if (!S_ISREG(info.st_mode)) return fault(faults, ISO_ERR_FORMAT, name, "not a regular file");
  do probe->fd = iso_os.open(path, O_RDONLY | O_CLOEXEC, 0);
  while (probe->fd < 0 && errno == EINTR);
  if (probe->fd < 0) return fault_errno(faults, name);
  probe->bytes = info.st_size;
  return ISO_OK;
}

iso_status iso_probe_read(const iso_probe *probe, void *data, size_t bytes, int64_t offset, iso_string *faults) {
  for (size_t done = 0; done < bytes;) {
    ssize_t got = iso_os.pread(probe->fd, (char *)data + done, bytes - done, offset + (int64_t)done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fault_errno(faults, probe->name);
    if (got == 0) {
      iso_string_printf(faults, "%s: cut short at byte %lld\n", probe->name, (long long)(offset + (int64_t)done));
      return ISO_ERR_FORMAT;
    }
    done += (size_t)got;
  }
  return ISO_OK;
}

void iso_probe_close(iso_probe *probe) {
  if (probe->fd >= 0) (void)iso_os.close(probe->fd);
  probe->fd = -1;
}

void iso_record_seal(iso_string *text) {
  iso_string_append(text, ",\n  ", 4);
  if (iso_string_failed(text)) return;
  iso_string_printf(text, "%s%08x%s", seal_head, iso_crc32c(0, text->data, text->length), seal_tail);
}

static iso_status check_seal(const char *text, size_t bytes, const char *name, iso_string *faults) {
  char expected[SEAL_BYTES + 1];
  if (bytes < SEAL_BYTES + 1)
    return fault(faults, ISO_ERR_FORMAT, name, "too short for a record: cut or never written");
  const char *seal = text + bytes - SEAL_BYTES;
  uint32_t crc = iso_crc32c(0, text, bytes - SEAL_BYTES);
  snprintf(expected, sizeof expected, "%s%08x%s", seal_head, crc, seal_tail);
  if (memcmp(seal, seal_head, sizeof seal_head - 1) != 0 || memcmp(seal + 19, seal_tail, sizeof seal_tail - 1) != 0) {
    return fault(faults, ISO_ERR_FORMAT, name, "it does not end in its CRC-32C: cut or altered");
  }
  if (memcmp(seal, expected, SEAL_BYTES) != 0) {
    iso_string_printf(faults, "%s: its CRC-32C is %08x, it says %.8s: altered\n", name, crc, seal + 11);
    return ISO_ERR_FORMAT;
  }
  return ISO_OK;
}

iso_status iso_record_read(const char *path, const char *name, iso_json **json, iso_string *faults) {
  iso_probe probe;
  *json = NULL;
  ISO_TRY(iso_probe_open(&probe, path, name, faults));
  char *text = NULL;
  size_t bytes = (size_t)probe.bytes;
  iso_status status = ISO_OK;
  if (probe.bytes > RECORD_LIMIT) status = fault(faults, ISO_ERR_FORMAT, name, "far too large for a record");
  if (status == ISO_OK && !(text = malloc(bytes + 1))) status = fault(faults, ISO_ERR_MEMORY, name, "out of memory");
  if (status == ISO_OK) status = iso_probe_read(&probe, text, bytes, 0, faults);
  if (status == ISO_OK) status = check_seal(text, bytes, name, faults);
  /* Only text that some program sealed gets here, so that a log line from the parser is news. */
  if (status == ISO_OK && iso_json_parse(text, bytes, name, json) != ISO_OK) {
    status = fault(faults, ISO_ERR_FORMAT, name, iso_last_error());
  }
  free(text);
  iso_probe_close(&probe);
  return status;
}

bool iso_record_whole(const iso_json *item, int64_t least, int64_t *out) {
  if (!cJSON_IsNumber(item)) return false;
  double value = item->valuedouble;
  if (!(value >= (double)least && value <= 0x1p53) || (double)(int64_t)value != value) return false;
  *out = (int64_t)value;
  return true;
}

bool iso_record_int(const iso_json *json, const char *key, int64_t least, int64_t *out) {
  return iso_record_whole(iso_json_get(json, key), least, out);
}

bool iso_record_text(const iso_json *json, const char *key, char *out, size_t capacity) {
  const iso_json *item = iso_json_get(json, key);
  if (!cJSON_IsString(item) || strlen(item->valuestring) >= capacity) return false;
  snprintf(out, capacity, "%s", item->valuestring);
  return true;
}
