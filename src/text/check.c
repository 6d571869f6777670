/* SPDX-License-Identifier: Apache-2.0
 *
 * check.c: comparing a tokenizer with reference vectors, one JSON object a line (layout: docs/tokenizers.md).
 *
 * Invariants
 *  1. Every row is either run whole or an error of the file: no row is passed over.
 *  2. A row that does not tell how special tokens are taken must give its ids both ways.
 *  3. What the tokenizer cannot encode or decode is a difference of that row; the rows after it are run.
 */
#include "text/text.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

typedef struct checker {
  const iso_tokenizer *tokenizer;
  iso_encoder *encoder;
  const char *path;
  FILE *out;
  iso_vector_report *report;
  int64_t line;
  iso_string row, text, decoded, expected;
  int32_t *ids;
  size_t count, capacity;
} checker;

static iso_status bad_row(const checker *c, const char *why) {
  return iso_fail(ISO_ERR_FORMAT, "%s: line %lld: %s", c->path, (long long)c->line, why);
}

static void reset(iso_string *string) {
  if (string->data) string->length = 0;
}

/* JSON strings of ours hold no NUL, and reference texts do. Copies the line with each \u0000 replaced by a noncharacter
 * that the line does not hold; *mark is it. */
static bool hide_nul(checker *c, const char *line, size_t length, uint32_t *mark) {
  for (*mark = 0xFDD0; *mark <= 0xFDEF; ++*mark) {
    iso_string raw = {0};
    char escape[8];
    snprintf(escape, sizeof escape, "\\u%04x", *mark);
    iso_utf8_append(&raw, *mark);
    bool used = !raw.data || memmem(line, length, raw.data, raw.length) || memmem(line, length, escape, 6);
    iso_string_fini(&raw);
    if (!used) break;
  }
  if (*mark > 0xFDEF) return false;
  reset(&c->row);
  for (size_t at = 0; at < length;) {
    if (line[at] == '\\' && length - at >= 6 && memcmp(line + at, "\\u0000", 6) == 0) {
      iso_utf8_append(&c->row, *mark);
      at += 6;
      continue;
    }
    size_t step = line[at] == '\\' && at + 1 < length ? 2 : 1;
    iso_string_append(&c->row, line + at, step);
    at += step;
  }
  return true;
}

static void restore_nul(const char *text, uint32_t mark, iso_string *out) {
  iso_string raw = {0};
  iso_utf8_append(&raw, mark);
  for (const char *hit; raw.data && (hit = strstr(text, raw.data)); text = hit + raw.length) {
    iso_string_append(out, text, (size_t)(hit - text));
    iso_string_append(out, "", 1);
  }
  iso_string_append(out, text, strlen(text));
  iso_string_fini(&raw);
}

/* Member `key` as bytes in `out`: text, or base64 when `encoded`. *present tells whether it is there. */
static iso_status read_bytes(checker *c, const iso_json *json, const char *key, bool encoded, uint32_t mark,
                             iso_string *out, bool *present) {
  const char *text;
  ISO_TRY(iso_json_string(json, c->path, key, NULL, &text));
  *present = text != NULL;
  if (!text) return ISO_OK;
  reset(out);
  iso_string_append(out, "", 0);
  if (!encoded)
    restore_nul(text, mark, out);
  else if (!iso_base64_decode(text, strlen(text), out))
    return bad_row(c, "a member is not base64");
  return iso_string_failed(out) ? ISO_ERR_MEMORY : ISO_OK;
}

/* "ids_hf" holds what a tokenizer.json gives where that is not what the tokenizer.model it was made from gives. */
static iso_status read_ids(checker *c, const iso_json *json) {
  const iso_json *list = c->tokenizer->is_json ? iso_json_get(json, "ids_hf") : NULL;
  if (!list) list = iso_json_get(json, "ids");
  if (!cJSON_IsArray(list)) return bad_row(c, "no array \"ids\"");
  c->count = 0;
  for (const iso_json *item = list->child; item; item = item->next) {
    if (c->count == c->capacity) {
      size_t capacity = c->capacity ? 2 * c->capacity : 1024;
      int32_t *ids = realloc(c->ids, capacity * sizeof *ids);
      if (!ids) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", c->path);
      c->ids = ids;
      c->capacity = capacity;
    }
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < INT32_MAX) ||
        item->valuedouble != (double)(int32_t)item->valuedouble)
      return bad_row(c, "an id is not a whole number");
    c->ids[c->count++] = (int32_t)item->valuedouble;
  }
  return ISO_OK;
}

static void mismatch(checker *c, const char *category, const char *how, size_t place, int64_t found, int64_t expected) {
  if (!c->out) return;
  fprintf(c->out, "line %lld (%s, %s): at place %zu found %lld, expected %lld\n", (long long)c->line, category, how,
          place, (long long)found, (long long)expected);
}

/* What the tokenizer cannot do at all, by the last error, is a difference too. */
static void refusal(checker *c, const char *category, const char *how, bool *same) {
  *same = false;
  if (c->out) fprintf(c->out, "line %lld (%s, %s): %s\n", (long long)c->line, category, how, iso_last_error());
}

/* Encodes c->text one way and compares; *same stays as it is or becomes false. */
static iso_status compare_encoding(checker *c, const char *category, bool special, bool replace, bool *same) {
  const int32_t *ids;
  size_t count, place = 0;
  const char *how = special ? "special tokens parsed" : "special tokens as text";
  const bool quiet = iso_log_quiet(true);
  const iso_status status = iso_encode(c->encoder, c->text.data, c->text.length, special, replace, &ids, &count);
  iso_log_quiet(quiet);
  if (status == ISO_ERR_MISMATCH) refusal(c, category, how, same); /* the vocabulary cannot represent it */
  if (status != ISO_OK) return status == ISO_ERR_MISMATCH ? ISO_OK : iso_fail(status, "%s", iso_last_error());
  while (place < count && place < c->count && ids[place] == c->ids[place]) place++;
  if (place == count && place == c->count) return ISO_OK;
  *same = false;
  mismatch(c, category, how, place, place < count ? ids[place] : -1, place < c->count ? c->ids[place] : -1);
  return ISO_OK;
}

/* Each byte that is no part of valid UTF-8 becomes U+FFFD, in c->decoded: the way SentencePiece makes text of bytes. */
static iso_status repair_bytes(checker *c) {
  iso_string repaired = {0};
  for (size_t at = 0, length = c->decoded.length; at < length;) {
    int span = iso_utf8_span(c->decoded.data + at, length - at);
    iso_string_append(&repaired, span ? c->decoded.data + at : "\xEF\xBF\xBD", span ? (size_t)span : 3);
    at += span ? (size_t)span : 1;
  }
  iso_string_append(&repaired, "", 0);
  bool failed = iso_string_failed(&repaired);
  iso_string_fini(&c->decoded);
  c->decoded = repaired;
  return failed ? ISO_ERR_MEMORY : ISO_OK;
}

/* Decodes c->ids and compares with c->expected; `as_text`: invalid UTF-8 is repaired first. */
static iso_status compare_decoding(checker *c, const char *category, bool as_text, bool *same) {
  size_t place = 0;
  reset(&c->decoded);
  const bool quiet = iso_log_quiet(true); /* an id that the vocabulary lacks is a difference, not an error */
  const iso_status status = iso_decode(c->tokenizer, c->ids, c->count, &c->decoded);
  iso_log_quiet(quiet);
  if (status == ISO_ERR_MISMATCH) refusal(c, category, "decoded bytes", same);
  if (status != ISO_OK) return status == ISO_ERR_MISMATCH ? ISO_OK : iso_fail(status, "%s", iso_last_error());
  if (as_text) ISO_TRY(repair_bytes(c));
  size_t length = c->decoded.length;
  while (place < length && place < c->expected.length && c->decoded.data[place] == c->expected.data[place]) place++;
  if (place == length && place == c->expected.length) return ISO_OK;
  *same = false;
  mismatch(c, category, "decoded bytes", place, place < length ? (uint8_t)c->decoded.data[place] : -1,
           place < c->expected.length ? (uint8_t)c->expected.data[place] : -1);
  return ISO_OK;
}

/* Does the text come back when its ids are decoded? Not when it was normalized, nor when it holds what stands for a
 * space; control pieces are not decoded at all. */
static bool comes_back(const checker *c, bool special) {
  const iso_sentencepiece *sp = c->tokenizer->sentencepiece;
  if (c->tokenizer->nfc) return false;
  if (!sp) return true;
  if (sp->trim || sp->charsmap.bytes || special || (!sp->byte_fallback)) return false;
  bool prefixed = sp->prefix != ISO_PREFIX_START_UNLESS && sp->prefix != ISO_PREFIX_EVERY_UNLESS;
  return (prefixed || c->text.data[0] != ' ') && !memmem(c->text.data, c->text.length, "\xE2\x96\x81", 3);
}

static iso_status check_row(checker *c, const iso_json *json, uint32_t mark) {
  const char *category, *policy;
  bool has_text, has_bytes, has_expected, has_text_out = false, special, same = true;
  ISO_TRY(iso_json_string(json, c->path, "cat", "", &category));
  ISO_TRY(iso_json_string(json, c->path, "policy", "", &policy));
  ISO_TRY(iso_json_bool(json, c->path, "special", false, &special));
  ISO_TRY(read_ids(c, json));
  ISO_TRY(read_bytes(c, json, "text", false, mark, &c->text, &has_text));
  ISO_TRY(read_bytes(c, json, has_text ? "" : "b64", true, mark, &c->text, &has_bytes));
  ISO_TRY(read_bytes(c, json, "bytes_b64", true, mark, &c->expected, &has_expected));
  if (!has_expected) ISO_TRY(read_bytes(c, json, "text_out", false, mark, &c->expected, &has_text_out));
  has_expected |= has_text_out;
  if (*policy && strcmp(policy, "replace") != 0) return bad_row(c, "\"policy\" is not \"replace\"");
  if (!has_text && !has_bytes && !has_expected)
    return bad_row(c, "none of \"text\", \"b64\", \"bytes_b64\", \"text_out\"");
  if (has_text || has_bytes) {
    bool both = !iso_json_get(json, "special");
    if (both || special) ISO_TRY(compare_encoding(c, category, true, *policy != '\0', &same));
    if (both || !special) ISO_TRY(compare_encoding(c, category, false, *policy != '\0', &same));
    if (has_text && !has_expected && comes_back(c, special)) { /* what was encoded comes back */
      reset(&c->expected);
      iso_string_append(&c->expected, c->text.data, c->text.length);
      has_expected = true;
    }
  }
  if (has_expected) ISO_TRY(compare_decoding(c, category, has_text_out, &same));
  c->report->rows++;
  if (same) c->report->matched++;
  return ISO_OK;
}

static iso_status check_line(checker *c, const char *line, size_t length) {
  uint32_t mark;
  iso_json *json;
  char where[4096];
  if (!hide_nul(c, line, length, &mark)) return bad_row(c, "uses all noncharacters U+FDD0 to U+FDEF");
  if (iso_string_failed(&c->row)) return ISO_ERR_MEMORY;
  snprintf(where, sizeof where, "%s: row %lld", c->path, (long long)c->line);
  ISO_TRY(iso_json_parse(c->row.data, c->row.length, where, &json));
  iso_status status = check_row(c, json, mark);
  iso_json_destroy(&json);
  return status;
}

iso_status iso_tokenizer_check(const iso_tokenizer *tokenizer, const char *vectors_path, FILE *out,
                               iso_vector_report *report) {
  checker c = {.tokenizer = tokenizer, .path = vectors_path, .out = out, .report = report};
  char *text;
  size_t length;
  *report = (iso_vector_report){0};
  ISO_TRY(iso_file_read(vectors_path, &text, &length));
  c.encoder = iso_encoder_create(tokenizer);
  iso_status status = c.encoder ? ISO_OK : ISO_ERR_MEMORY;
  for (size_t at = 0; at < length && status == ISO_OK;) {
    const char *end = memchr(text + at, '\n', length - at);
    size_t stop = end ? (size_t)(end - text) : length;
    c.line++;
    if (stop > at) status = check_line(&c, text + at, stop - at);
    at = stop + 1;
  }
  if (status == ISO_OK && report->rows == 0) status = iso_fail(ISO_ERR_FORMAT, "%s: no rows", vectors_path);
  iso_encoder_destroy(&c.encoder);
  iso_string_fini(&c.row);
  iso_string_fini(&c.text);
  iso_string_fini(&c.decoded);
  iso_string_fini(&c.expected);
  free(c.ids);
  free(text);
  return status;
}
