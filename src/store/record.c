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
 * and in a file of lines, each an object: {..., "crc32c": "e3069283"}
 * and behind a plain line: ... crc32c:e3069283
 *
 * Files and lines of before they had one are still read. What has lost its seal by damage is not taken for one of
 * those: it still looks like one (most bytes of the seal stand in their places, or its key stands somewhere), so one
 * flipped bit or a cut is seen without knowing when the text was written.
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

/* How a seal is spelt: head, 8 hex digits, tail. */
typedef struct spelling {
  const char *head, *tail, *key; /* key: with it a text says that it has a seal */
} spelling;
static const spelling record_seal = {"\"crc32c\": \"", "\"\n}\n", "\"crc32c\""},
                      line_seal = {"\"crc32c\": \"", "\"}", "\"crc32c\""}, plain_seal = {" crc32c:", "\n", "crc32c"};
enum { CRC_BYTES = 8, SEAL_BYTES = 32 /* and more than any has */, RECORD_LIMIT = 1 << 28 };

static size_t seal_bytes(const spelling *how) {
  return strlen(how->head) + CRC_BYTES + strlen(how->tail);
}

static iso_status fault(iso_string *faults, iso_status status, const char *name, const char *cause) {
  iso_string_printf(faults, "%s: %s\n", name, cause);
  return status;
}

static const char unread[] = "the disk cannot read it (I/O error)";

static iso_status fault_errno(iso_string *faults, const char *name) {
  int cause = errno;
  if (cause == ENOENT) return fault(faults, ISO_ERR_FORMAT, name, "the file is missing");
  if (cause == EIO) return fault(faults, ISO_ERR_FORMAT, name, unread);
  iso_string_printf(faults, "%s: cannot be read: %s\n", name, strerror(cause));
  return cause == ENOMEM ? ISO_ERR_MEMORY : ISO_ERR_IO;
}

const char *iso_fault_first(iso_string *faults) {
  if (!faults->length || iso_string_failed(faults)) return "the cause is in the line above";
  faults->data[strcspn(faults->data, "\n")] = 0;
  return faults->data;
}

bool iso_fault_unread(const iso_string *faults, size_t from) {
  return faults->length > from && strstr(faults->data + from, unread);
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

/* ---- seals ---- */

static void seal(iso_string *text, size_t begin, const char *between, const spelling *how) {
  iso_string_append(text, between, strlen(between));
  if (iso_string_failed(text)) return;
  iso_string_printf(text, "%s%08x%s", how->head, iso_crc32c(0, text->data + begin, text->length - begin), how->tail);
}

void iso_record_seal(iso_string *text) {
  seal(text, 0, ",\n  ", &record_seal);
}

void iso_record_seal_line(iso_string *text, size_t begin) {
  seal(text, begin, ", ", &line_seal);
  iso_string_append(text, "\n", 1);
}

void iso_record_seal_plain(iso_string *text) {
  seal(text, 0, "", &plain_seal);
}

/* Whether the text has a seal, intact or not; no text of before there were seals looks so. */
static bool claims_seal(const char *text, size_t bytes, const spelling *how) {
  const size_t head = strlen(how->head), tail = strlen(how->tail), all = seal_bytes(how);
  if (memmem(text, bytes, how->key, strlen(how->key))) return true;
  if (bytes < all) return false;
  size_t same = 0;
  for (size_t i = 0; i < head; i++) same += text[bytes - all + i] == how->head[i];
  for (size_t i = 0; i < tail; i++) same += text[bytes - tail + i] == how->tail[i];
  return 2 * same > head + tail;
}

/* false: `cause` says why. */
static bool is_sealed(const char *text, size_t bytes, const spelling *how, char cause[96]) {
  char expected[SEAL_BYTES];
  const size_t head = strlen(how->head), tail = strlen(how->tail), all = seal_bytes(how);
  snprintf(cause, 96, "it does not end in its CRC-32C: cut or altered");
  if (bytes < all) return false;
  const char *own = text + bytes - all;
  const uint32_t crc = iso_crc32c(0, text, bytes - all);
  snprintf(expected, sizeof expected, "%s%08x%s", how->head, crc, how->tail);
  if (memcmp(own, how->head, head) != 0 || memcmp(own + head + CRC_BYTES, how->tail, tail) != 0) return false;
  snprintf(cause, 96, "its CRC-32C is %08x, it says %.8s: altered", crc, own + head);
  return memcmp(own, expected, all) == 0;
}

static iso_seal check(const char *text, size_t bytes, const spelling *how, char cause[96]) {
  if (is_sealed(text, bytes, how, cause)) return ISO_SEAL_GOOD;
  return claims_seal(text, bytes, how) ? ISO_SEAL_BROKEN : ISO_SEAL_NONE;
}

iso_seal iso_record_check_line(const char *line, size_t bytes, char cause[96]) {
  return check(line, bytes, &line_seal, cause);
}

iso_seal iso_record_check_plain(const char *text, size_t bytes, char cause[96]) {
  return check(text, bytes, &plain_seal, cause);
}

size_t iso_record_line_end(const char *text, size_t bytes) {
  char cause[96];
  const size_t all = seal_bytes(&line_seal);
  for (const char *at = text; (at = memmem(at, (size_t)(text + bytes - at), line_seal.head, strlen(line_seal.head)));
       at++) {
    const size_t length = (size_t)(at - text) + all;
    if (length <= bytes && is_sealed(text, length, &line_seal, cause)) return length;
  }
  return 0;
}

/* `sealed`: NULL when it has to be. */
static iso_status check_text(const char *text, size_t bytes, const char *name, bool *sealed, iso_string *faults) {
  char cause[96];
  const iso_seal found = check(text, bytes, &record_seal, cause);
  if (sealed) *sealed = found == ISO_SEAL_GOOD;
  if (found == ISO_SEAL_GOOD || (sealed && found == ISO_SEAL_NONE)) return ISO_OK;
  if (!sealed && bytes <= seal_bytes(&record_seal))
    return fault(faults, ISO_ERR_FORMAT, name, "too short for a record: cut or never written");
  return fault(faults, ISO_ERR_FORMAT, name, cause);
}

static iso_status read_record(const char *path, const char *name, iso_json **json, bool *sealed, iso_string *faults) {
  iso_probe probe;
  *json = NULL;
  ISO_TRY(iso_probe_open(&probe, path, name, faults));
  char *text = NULL;
  size_t bytes = (size_t)probe.bytes;
  iso_status status = ISO_OK;
  if (probe.bytes > RECORD_LIMIT) status = fault(faults, ISO_ERR_FORMAT, name, "far too large for a record");
  if (status == ISO_OK && !(text = malloc(bytes + 1))) status = fault(faults, ISO_ERR_MEMORY, name, "out of memory");
  if (status == ISO_OK) status = iso_probe_read(&probe, text, bytes, 0, faults);
  if (status == ISO_OK) status = check_text(text, bytes, name, sealed, faults);
  /* Text that some program sealed parses, so that a log line from the parser is news. */
  const bool foreign = status == ISO_OK && sealed && !*sealed;
  const bool quiet = foreign ? iso_log_quiet(true) : false;
  if (status == ISO_OK && iso_json_parse(text, bytes, name, json) != ISO_OK) {
    iso_string_printf(faults, "%s\n", iso_last_error()); /* begins with the name */
    status = ISO_ERR_FORMAT;
  }
  if (foreign) iso_log_quiet(quiet);
  free(text);
  iso_probe_close(&probe);
  return status;
}

iso_status iso_record_read(const char *path, const char *name, iso_json **json, iso_string *faults) {
  return read_record(path, name, json, NULL, faults);
}

iso_status iso_record_read_any(const char *path, const char *name, iso_json **json, bool *sealed, iso_string *faults) {
  *sealed = false;
  return read_record(path, name, json, sealed, faults);
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
