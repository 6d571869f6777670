/* SPDX-License-Identifier: Apache-2.0
 *
 * json.c: strict JSON over cJSON.
 *
 * cJSON accepts more than JSON and says little about what it refuses. So the text is first checked by a scanner of our
 * own, which knows RFC 8259's grammar and gives line, column and cause; cJSON then builds the tree from text known to
 * be good, and the tree is checked for duplicate keys (after escapes are decoded).
 *
 * Invariants
 *  1. Nothing reaches cJSON that is not JSON: grammar, UTF-8, surrogate pairs and nesting are checked before.
 *  2. A string holds no NUL, raw or escaped, so a C string is the whole string.
 *  3. Checking is O(n log n) in the size of the text, whatever it holds.
 *  4. Whole numbers are exact: cJSON keeps doubles, so integers beyond 2^53 are refused rather than rounded.
 */
#include "base/base.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_LIMIT = 64, NUMBER_LIMIT = 63 /* cJSON's buffer */ };

/* ---- scanner ---- */

typedef struct scanner {
  const char *text;
  size_t length; /* bytes of text */
  size_t at;     /* next byte, or the offending one */
  const char *cause;
} scanner;

static bool scan_value(scanner *s, int depth);

static bool scan_fail(scanner *s, const char *cause) {
  s->cause = s->at >= s->length ? "the text ends too early" : cause;
  return false;
}

static int scan_peek(const scanner *s) {
  return s->at < s->length ? (unsigned char)s->text[s->at] : -1;
}

static void scan_space(scanner *s) {
  while (s->at < s->length) {
    char c = s->text[s->at];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    s->at++;
  }
}

/* Four hex digits at s->at; -1 if they are not. */
static int scan_hex4(scanner *s) {
  int value = 0;
  for (int i = 0; i < 4; i++, s->at++) {
    int c = scan_peek(s);
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

/* An escape; s->at stands on the backslash. */
static bool scan_escape(scanner *s) {
  size_t start = s->at++;
  int c = scan_peek(s);
  if (c < 0) return scan_fail(s, "");
  if (c != 'u') {
    if (c == 0 || !strchr("\"\\/bfnrt", c)) return scan_fail(s, "unknown escape in a string");
    s->at++;
    return true;
  }
  s->at++;
  int unit = scan_hex4(s);
  if (unit < 0) return scan_fail(s, "\\u needs four hex digits");
  bool pair = unit >= 0xD800 && unit <= 0xDBFF;
  if (pair && s->at + 1 < s->length && s->text[s->at] == '\\' && s->text[s->at + 1] == 'u') {
    s->at += 2;
    int low = scan_hex4(s);
    if (low >= 0xDC00 && low <= 0xDFFF) return true;
  }
  if (unit >= 0xD800 && unit <= 0xDFFF) {
    s->at = start;
    return scan_fail(s, "half of a surrogate pair in a string");
  }
  if (unit == 0) {
    s->at = start;
    return scan_fail(s, "NUL character in a string");
  }
  return true;
}

static bool scan_string(scanner *s) {
  s->at++; /* the opening quote */
  for (;;) {
    int c = scan_peek(s);
    if (c == '"') {
      s->at++;
      return true;
    }
    if (c < 0) return scan_fail(s, "");
    if (c == '\\') {
      if (!scan_escape(s)) return false;
    } else if (c < 0x20) {
      return scan_fail(s, "control character in a string (write it as an escape)");
    } else if (c < 0x80) {
      s->at++;
    } else {
      int span = iso_utf8_span(s->text + s->at, s->length - s->at);
      if (span == 0) return scan_fail(s, "bytes that are not UTF-8");
      s->at += (size_t)span;
    }
  }
}

static bool scan_digits(scanner *s) {
  size_t start = s->at;
  while (scan_peek(s) >= '0' && scan_peek(s) <= '9') s->at++;
  return s->at > start || scan_fail(s, "expected a digit");
}

static bool scan_number(scanner *s) {
  size_t start = s->at;
  if (scan_peek(s) == '-') s->at++;
  if (scan_peek(s) == '0')
    s->at++;
  else if (!scan_digits(s))
    return false;
  if (scan_peek(s) == '.') {
    s->at++;
    if (!scan_digits(s)) return false;
  }
  if (scan_peek(s) == 'e' || scan_peek(s) == 'E') {
    s->at++;
    if (scan_peek(s) == '+' || scan_peek(s) == '-') s->at++;
    if (!scan_digits(s)) return false;
  }
  if (s->at - start > NUMBER_LIMIT) {
    s->at = start;
    return scan_fail(s, "number of more than 63 characters");
  }
  return true;
}

static bool scan_word(scanner *s, const char *word) {
  size_t length = strlen(word);
  if (s->length - s->at < length || memcmp(s->text + s->at, word, length) != 0)
    return scan_fail(s, "expected a value (note: JSON has no NaN, Infinity, None or single quotes)");
  s->at += length;
  return true;
}

/* The rest of an object or array; s->at stands on the opening bracket. */
static bool scan_container(scanner *s, int depth) {
  bool object = s->text[s->at] == '{';
  int close = object ? '}' : ']';
  if (depth >= DEPTH_LIMIT) return scan_fail(s, "nested more than 64 deep");
  s->at++;
  scan_space(s);
  if (scan_peek(s) == close) {
    s->at++;
    return true;
  }
  for (;;) {
    if (object) {
      if (scan_peek(s) != '"') return scan_fail(s, "expected a key in double quotes");
      if (!scan_string(s)) return false;
      scan_space(s);
      if (scan_peek(s) != ':') return scan_fail(s, "expected ':' after a key");
      s->at++;
      scan_space(s);
    }
    if (!scan_value(s, depth + 1)) return false;
    scan_space(s);
    int c = scan_peek(s);
    if (c != ',' && c != close) return scan_fail(s, object ? "expected ',' or '}'" : "expected ',' or ']'");
    s->at++;
    if (c == close) return true;
    scan_space(s);
  }
}

static bool scan_value(scanner *s, int depth) {
  int c = scan_peek(s);
  switch (c) {
  case '{':
  case '[':
    return scan_container(s, depth);
  case '"':
    return scan_string(s);
  case 't':
    return scan_word(s, "true");
  case 'f':
    return scan_word(s, "false");
  case 'n':
    return scan_word(s, "null");
  default:
    if (c == '-' || (c >= '0' && c <= '9')) return scan_number(s);
    return scan_word(s, "a value"); /* fails with the general cause */
  }
}

static bool scan_document(scanner *s) {
  if (s->length >= 3 && memcmp(s->text, "\xEF\xBB\xBF", 3) == 0) s->at = 3; /* a byte order mark, as cJSON */
  scan_space(s);
  if (!scan_value(s, 0)) return false;
  scan_space(s);
  return s->at == s->length || scan_fail(s, "more text after the end of the value");
}

static iso_status scan_report(const scanner *s, const char *where) {
  size_t line = 1, column = 1;
  for (size_t i = 0; i < s->at && i < s->length; i++) {
    if (s->text[i] == '\n') {
      line++;
      column = 1;
    } else if (((unsigned char)s->text[i] & 0xC0) != 0x80) {
      column++;
    }
  }
  return iso_fail(ISO_ERR_FORMAT, "%s:%zu:%zu: not valid JSON: %s", where, line, column, s->cause);
}

/* ---- duplicate keys ---- */

typedef struct hashed_key {
  uint64_t hash;
  const char *key;
} hashed_key;

static uint64_t key_hash(const char *key) {
  uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */
  for (; *key; key++) hash = (hash ^ (unsigned char)*key) * 0x100000001B3u;
  return hash;
}

static int hashed_key_compare(const void *a, const void *b) {
  const hashed_key *x = a, *y = b;
  if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
  return strcmp(x->key, y->key);
}

static iso_status object_check(const cJSON *object, const char *where) {
  size_t count = 0;
  for (const cJSON *item = object->child; item; item = item->next) count++;
  if (count < 2) return ISO_OK;
  hashed_key *keys = malloc(count * sizeof *keys);
  if (!keys) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory while checking %zu keys", where, count);
  size_t used = 0;
  for (const cJSON *item = object->child; item; item = item->next)
    keys[used++] = (hashed_key){key_hash(item->string), item->string};
  qsort(keys, count, sizeof *keys, hashed_key_compare);
  iso_status status = ISO_OK;
  for (size_t i = 1; i < count && status == ISO_OK; i++)
    if (keys[i].hash == keys[i - 1].hash && strcmp(keys[i].key, keys[i - 1].key) == 0)
      status =
          iso_fail(ISO_ERR_FORMAT, "%s: not valid JSON: key \"%s\" stands twice in one object", where, keys[i].key);
  free(keys);
  return status;
}

/* Recursion is bounded by DEPTH_LIMIT. */
static iso_status duplicates_check(const cJSON *value, const char *where) {
  if (cJSON_IsObject(value)) ISO_TRY(object_check(value, where));
  for (const cJSON *item = value->child; item; item = item->next)
    if (item->child) ISO_TRY(duplicates_check(item, where));
  return ISO_OK;
}

/* ---- parsing ---- */

iso_status iso_json_parse(const char *text, size_t bytes, const char *where, iso_json **out) {
  *out = NULL;
  scanner s = {.text = text, .length = bytes};
  if (!scan_document(&s)) return scan_report(&s, where);
  cJSON *json = cJSON_ParseWithLengthOpts(text, bytes, NULL, 0);
  if (!json) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory while parsing %zu bytes of JSON", where, bytes);
  iso_status status = duplicates_check(json, where);
  if (status == ISO_OK)
    *out = json;
  else
    cJSON_Delete(json);
  return status;
}

iso_status iso_json_read(const char *path, iso_json **out) {
  char *text;
  size_t bytes;
  *out = NULL;
  ISO_TRY(iso_file_read(path, &text, &bytes));
  iso_status status = iso_json_parse(text, bytes, path, out);
  free(text);
  return status;
}

void iso_json_destroy(iso_json **json) {
  if (!json || !*json) return;
  cJSON_Delete(*json);
  *json = NULL;
}

/* ---- typed access ---- */

iso_json *iso_json_get(const iso_json *object, const char *key) {
  if (!cJSON_IsObject(object)) return NULL;
  cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
  return !item || cJSON_IsNull(item) ? NULL : item;
}

static iso_status type_fail(const iso_json *item, const char *where, const char *key, const char *wanted) {
  const char *found = cJSON_IsNumber(item)   ? "a number"
                      : cJSON_IsString(item) ? "a string"
                      : cJSON_IsBool(item)   ? "a boolean"
                      : cJSON_IsArray(item)  ? "an array"
                                             : "an object";
  return iso_fail(ISO_ERR_FORMAT, "%s: \"%s\" must be %s, but it is %s", where, key, wanted, found);
}

iso_status iso_json_int(const iso_json *object, const char *where, const char *key, int64_t fallback, int64_t *out) {
  const iso_json *item = iso_json_get(object, key);
  *out = fallback;
  if (!item) return ISO_OK;
  if (!cJSON_IsNumber(item)) return type_fail(item, where, key, "a whole number");
  double value = item->valuedouble;
  if (!(value >= -0x1p53 && value <= 0x1p53))
    return iso_fail(ISO_ERR_FORMAT, "%s: \"%s\" must be a whole number within 2^53, but it is %g", where, key, value);
  if ((double)(int64_t)value != value)
    return iso_fail(ISO_ERR_FORMAT, "%s: \"%s\" must be a whole number, but it is %g", where, key, value);
  *out = (int64_t)value;
  return ISO_OK;
}

iso_status iso_json_double(const iso_json *object, const char *where, const char *key, double fallback, double *out) {
  const iso_json *item = iso_json_get(object, key);
  *out = fallback;
  if (!item) return ISO_OK;
  if (!cJSON_IsNumber(item)) return type_fail(item, where, key, "a number");
  double value = item->valuedouble;
  if (!(value >= -__DBL_MAX__ && value <= __DBL_MAX__))
    return iso_fail(ISO_ERR_FORMAT, "%s: \"%s\" is too large for a double", where, key);
  *out = value;
  return ISO_OK;
}

iso_status iso_json_bool(const iso_json *object, const char *where, const char *key, bool fallback, bool *out) {
  const iso_json *item = iso_json_get(object, key);
  *out = fallback;
  if (!item) return ISO_OK;
  if (!cJSON_IsBool(item)) return type_fail(item, where, key, "true or false");
  *out = cJSON_IsTrue(item);
  return ISO_OK;
}

iso_status iso_json_string(const iso_json *object, const char *where, const char *key, const char *fallback,
                           const char **out) {
  const iso_json *item = iso_json_get(object, key);
  *out = fallback;
  if (!item) return ISO_OK;
  if (!cJSON_IsString(item)) return type_fail(item, where, key, "a string");
  *out = item->valuestring;
  return ISO_OK;
}

void iso_json_copy_text(const iso_json *object, const char *key, char *out, size_t capacity) {
  const iso_json *item = iso_json_get(object, key);
  snprintf(out, capacity, "%s", cJSON_IsString(item) ? item->valuestring : "");
}

/* ---- writing ---- */

void iso_json_number(iso_string *out, double value, int digits) {
  if (isfinite(value))
    iso_string_printf(out, "%.*g", digits, value);
  else
    iso_string_append(out, "null", 4);
}

void iso_json_quote(iso_string *out, const char *text, size_t length) {
  iso_string_append(out, "\"", 1);
  size_t plain = 0; /* start of the run not yet copied */
  for (size_t at = 0; at < length;) {
    unsigned char c = (unsigned char)text[at];
    int span = iso_utf8_span(text + at, length - at);
    if (span > 0 && c >= 0x20 && c != '"' && c != '\\') {
      at += (size_t)span;
      continue;
    }
    iso_string_append(out, text + plain, at - plain);
    if (span == 0)
      iso_string_append(out, "\\ufffd", 6); /* JSON is UTF-8: a stray byte becomes the replacement character */
    else if (c == '"' || c == '\\')
      iso_string_printf(out, "\\%c", c);
    else if (c == '\n')
      iso_string_append(out, "\\n", 2);
    else if (c == '\t')
      iso_string_append(out, "\\t", 2);
    else if (c == '\r')
      iso_string_append(out, "\\r", 2);
    else
      iso_string_printf(out, "\\u%04x", c);
    plain = ++at;
  }
  iso_string_append(out, text + plain, length - plain);
  iso_string_append(out, "\"", 1);
}
