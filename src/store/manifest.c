/* SPDX-License-Identifier: Apache-2.0
 *
 * manifest.json: what a snapshot is made of. The text is a record (record.c), so it verifies itself.
 *
 * Invariants
 *  1. What is rendered is read back equal; values that JSON's numbers cannot hold (beyond 2^53) are refused when
 * writing.
 *  2. A manifest names only files of its own folder, by the name pattern of snapshot attempts.
 *  3. A manifest says for which (step, incarnation) it is; in a folder of another name it is not accepted.
 */
#include "store/store.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { FORMAT = 1 };
static const int64_t number_limit = INT64_C(1) << 53;

void iso_snapshot_name(int64_t step, int incarnation, char name[64]) {
  snprintf(name, 64, "step-%08lld-%04d", (long long)step, incarnation);
}

bool iso_snapshot_name_parse(const char *name, int64_t *step, int *incarnation) {
  char again[64];
  long long s;
  int k;
  if (strlen(name) > 40 || sscanf(name, "step-%18lld-%9d", &s, &k) != 2 || s < 0 || k < 0) return false;
  iso_snapshot_name(s, k, again);
  *step = s;
  *incarnation = k;
  return strcmp(name, again) == 0;
}

static bool is_hex(const char *text, size_t length) {
  for (size_t i = 0; i < length; i++) {
    if (!text[i] || !strchr("0123456789abcdef", text[i])) return false;
  }
  return true;
}

bool iso_state_file_name(const char *name) {
  if (strncmp(name, "state-", 6) != 0 || !is_hex(name + 6, 32) || name[38] != '-') return false;
  for (int i = 39; i < 44; i++) {
    if (name[i] < '0' || name[i] > '9') return false;
  }
  return strcmp(name + 44, ".safetensors") == 0;
}

void iso_snapshot_info_fini(iso_snapshot_info *info) {
  free(info->cursors);
  info->cursors = NULL;
  info->cursor_count = 0;
}

void iso_manifest_fini(iso_manifest *manifest) {
  iso_snapshot_info_fini(&manifest->info);
  iso_arena_destroy(&manifest->arena);
  memset(manifest, 0, sizeof *manifest);
}

/* ---- writing -------------------------------------------------------------------------------------------- */

static void put_text(iso_string *text, const char *key, const char *value) {
  iso_string_printf(text, ",\n  \"%s\": ", key);
  iso_json_quote(text, value, strlen(value));
}

static bool put_number(iso_string *text, const char *key, int64_t value) {
  iso_string_printf(text, ",\n  \"%s\": %lld", key, (long long)value);
  return value >= 0 && value <= number_limit;
}

static bool put_cursors(iso_string *text, const iso_snapshot_info *info) {
  bool good = true;
  iso_string_printf(text, ",\n  \"cursors\": [");
  for (size_t i = 0; i < info->cursor_count; i++) {
    const iso_cursor *c = &info->cursors[i];
    const int64_t values[] = {c->epoch, c->block, c->offset};
    for (int k = 0; k < 3; k++) good = good && values[k] >= -number_limit && values[k] <= number_limit;
    iso_string_printf(text, "%s[%lld, %lld, %lld]", i ? ",\n    " : "\n    ", (long long)c->epoch, (long long)c->block,
                      (long long)c->offset);
  }
  iso_string_printf(text, "]");
  return good;
}

static void put_files(iso_string *text, const iso_manifest *m) {
  iso_string_printf(text, ",\n  \"files\": [");
  for (size_t i = 0; i < m->file_count; i++) {
    const iso_manifest_file *file = &m->files[i];
    iso_string_printf(text, "%s\n    {\"name\": \"%s\", \"bytes\": %lld, \"crc32c\": \"%08x\", \"covers\": [",
                      i ? "," : "", file->name, (long long)file->bytes, file->crc);
    for (size_t k = 0; k < file->cover_count; k++) {
      const iso_manifest_cover *cover = &file->covers[k];
      iso_string_printf(text, "%s\n      [", k ? "," : "");
      iso_json_quote(text, cover->tensor, strlen(cover->tensor));
      iso_string_printf(text, ", %lld, %lld]", (long long)cover->begin, (long long)cover->end);
    }
    iso_string_printf(text, "]}");
  }
  iso_string_printf(text, "]");
}

iso_status iso_manifest_render(const iso_manifest *m, iso_string *text) {
  const iso_snapshot_info *info = &m->info;
  iso_string_printf(text, "{\n  \"format\": %d", FORMAT);
  put_text(text, "run", m->uuid);
  put_text(text, "attempt", m->attempt);
  bool good = put_number(text, "step", info->step);
  good &= put_number(text, "adam_step", info->adam_step);
  good &= put_number(text, "incarnation", info->incarnation);
  good &= put_number(text, "tokens", info->tokens);
  good &= put_number(text, "refused", info->refused);
  good &= put_number(text, "elements", m->elements);
  put_text(text, "config_digest", info->config_digest);
  put_text(text, "tokenizer_fingerprint", info->tokenizer_fingerprint);
  put_text(text, "tier", info->tier);
  put_text(text, "parent", info->parent);
  good &= put_cursors(text, info);
  put_files(text, m);
  iso_record_seal(text);
  if (iso_string_failed(text)) return ISO_ERR_MEMORY; /* logged already */
  if (!good) {
    return iso_fail(ISO_ERR_INTERNAL,
                    "snapshot of step %lld: a counter or cursor is outside what a manifest holds (0 to 2^53)",
                    (long long)info->step);
  }
  return ISO_OK;
}

/* ---- reading ---------------------------------------------------------------------------------------------- */

static size_t item_count(const cJSON *list) {
  size_t count = 0;
  for (const cJSON *item = list->child; item; item = item->next) count++;
  return count;
}

/* The parsers return FORMAT or MEMORY: a manifest is not damaged because memory ran out. */
static iso_status parse_cursors(const iso_json *json, iso_snapshot_info *info) {
  const cJSON *list = iso_json_get(json, "cursors");
  if (!cJSON_IsArray(list)) return ISO_ERR_FORMAT;
  info->cursors = calloc(item_count(list) + 1, sizeof *info->cursors);
  if (!info->cursors) return ISO_ERR_MEMORY;
  for (const cJSON *item = list->child; item; item = item->next) {
    iso_cursor *c = &info->cursors[info->cursor_count++];
    if (!cJSON_IsArray(item) || item_count(item) != 3) return ISO_ERR_FORMAT;
    if (!iso_record_whole(item->child, -number_limit, &c->epoch) ||
        !iso_record_whole(item->child->next, -number_limit, &c->block) ||
        !iso_record_whole(item->child->next->next, -number_limit, &c->offset)) {
      return ISO_ERR_FORMAT;
    }
  }
  return ISO_OK;
}

static iso_status parse_covers(const cJSON *list, iso_manifest *m, iso_manifest_file *file) {
  if (!cJSON_IsArray(list)) return ISO_ERR_FORMAT;
  file->covers = iso_arena_alloc(m->arena, (item_count(list) + 1) * sizeof *file->covers);
  if (!file->covers) return ISO_ERR_MEMORY;
  for (const cJSON *item = list->child; item; item = item->next) {
    iso_manifest_cover *cover = &file->covers[file->cover_count++];
    if (!cJSON_IsArray(item) || item_count(item) != 3 || !cJSON_IsString(item->child)) return ISO_ERR_FORMAT;
    cover->tensor = iso_arena_strdup(m->arena, item->child->valuestring);
    if (!cover->tensor) return ISO_ERR_MEMORY;
    if (!iso_record_whole(item->child->next, 0, &cover->begin) ||
        !iso_record_whole(item->child->next->next, cover->begin, &cover->end)) {
      return ISO_ERR_FORMAT;
    }
  }
  return ISO_OK;
}

static iso_status parse_files(const iso_json *json, iso_manifest *m) {
  const cJSON *list = iso_json_get(json, "files");
  if (!cJSON_IsArray(list) || !list->child) return ISO_ERR_FORMAT;
  m->files = iso_arena_alloc(m->arena, item_count(list) * sizeof *m->files);
  if (!m->files) return ISO_ERR_MEMORY;
  for (const cJSON *item = list->child; item; item = item->next) {
    iso_manifest_file *file = &m->files[m->file_count++];
    char name[64], crc[16];
    if (!iso_record_text(item, "name", name, sizeof name) || !iso_state_file_name(name) ||
        !iso_record_int(item, "bytes", 0, &file->bytes) || !iso_record_text(item, "crc32c", crc, sizeof crc) ||
        strlen(crc) != 8 || !is_hex(crc, 8)) {
      return ISO_ERR_FORMAT;
    }
    for (size_t i = 0; i + 1 < m->file_count; i++) {
      if (strcmp(m->files[i].name, name) == 0) return ISO_ERR_FORMAT;
    }
    file->name = iso_arena_strdup(m->arena, name);
    file->crc = (uint32_t)strtoul(crc, NULL, 16);
    if (!file->name) return ISO_ERR_MEMORY;
    ISO_TRY(parse_covers(iso_json_get(item, "covers"), m, file));
  }
  return ISO_OK;
}

/* On failure `member` names what is not as it should be. */
static iso_status parse(const iso_json *json, iso_manifest *m, const char **member) {
  iso_snapshot_info *info = &m->info;
  const struct {
    const char *key;
    char *out;
    size_t capacity;
  } texts[] = {{"run", m->uuid, sizeof m->uuid},
               {"attempt", m->attempt, sizeof m->attempt},
               {"config_digest", info->config_digest, sizeof info->config_digest},
               {"tokenizer_fingerprint", info->tokenizer_fingerprint, sizeof info->tokenizer_fingerprint},
               {"tier", info->tier, sizeof info->tier},
               {"parent", info->parent, sizeof info->parent}};
  int64_t incarnation = 0;
  const struct {
    const char *key;
    int64_t *out;
  } numbers[] = {{"step", &info->step},     {"adam_step", &info->adam_step}, {"incarnation", &incarnation},
                 {"tokens", &info->tokens}, {"refused", &info->refused},     {"elements", &m->elements}};
  for (size_t i = 0; i < ISO_COUNT(texts); i++) {
    *member = texts[i].key;
    if (!iso_record_text(json, texts[i].key, texts[i].out, texts[i].capacity)) return ISO_ERR_FORMAT;
  }
  for (size_t i = 0; i < ISO_COUNT(numbers); i++) {
    *member = numbers[i].key;
    if (!iso_record_int(json, numbers[i].key, 0, numbers[i].out)) return ISO_ERR_FORMAT;
  }
  *member = "incarnation";
  if (incarnation > INT_MAX) return ISO_ERR_FORMAT;
  info->incarnation = (int)incarnation;
  *member = "cursors";
  ISO_TRY(parse_cursors(json, info));
  *member = "files";
  return parse_files(json, m);
}

static iso_status check_place(const char *folder, const iso_manifest *m, iso_string *faults) {
  char name[64];
  const char *slash = strrchr(folder, '/');
  iso_snapshot_name(m->info.step, m->info.incarnation, name);
  if (strcmp(slash ? slash + 1 : folder, name) == 0) return ISO_OK;
  iso_string_printf(faults, "manifest.json: it is that of %s\n", name);
  return ISO_ERR_FORMAT;
}

static iso_status read_manifest(const char *path, const char *folder, iso_manifest *m, iso_string *faults) {
  iso_json *json;
  int64_t format;
  ISO_TRY(iso_record_read(path, "manifest.json", &json, faults));
  iso_status status = ISO_OK;
  if (!iso_record_int(json, "format", 1, &format) || format != FORMAT) {
    iso_string_printf(faults, "manifest.json: its format is not %d; a newer build may read it\n", FORMAT);
    status = ISO_ERR_UNSUPPORTED;
  } else {
    const char *member;
    status = parse(json, m, &member);
    if (status == ISO_OK) {
      status = check_place(folder, m, faults);
    } else {
      iso_string_printf(faults, "manifest.json: '%s' is %s\n", member,
                        status == ISO_ERR_MEMORY ? "too large for the memory left" : "missing or malformed");
    }
  }
  iso_json_destroy(&json);
  return status;
}

iso_status iso_manifest_read(const char *folder, iso_manifest *m, iso_string *faults) {
  memset(m, 0, sizeof *m);
  m->arena = iso_arena_create();
  const char *path = m->arena ? iso_path_join(m->arena, folder, "manifest.json") : NULL;
  iso_status status;
  if (path) {
    status = read_manifest(path, folder, m, faults);
  } else {
    iso_string_printf(faults, "manifest.json: out of memory\n");
    status = ISO_ERR_MEMORY;
  }
  if (status != ISO_OK) iso_manifest_fini(m);
  return status;
}
