/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of a safetensors file: parsed strictly, then checked rule by rule.
 *
 * The parser is our own because the header is untrusted and the rules are stricter than those of a general JSON
 * library: duplicate names must be seen, sizes must be whole numbers without rounding, a NUL in a name must not shorten
 * it, and a header of 100 MB must not take quadratic time. All strings are decoded into one pool that is never larger
 * than the header.
 *
 * Rules, in the order of checking (names as in docs/formats.md)
 *  1. the file has at least 8 bytes; its first 8 (little-endian) are N <= 100,000,000; 8 + N does not pass the end of
 * file
 *  2. the header is UTF-8, begins with '{', is JSON, and is followed by spaces only
 *  3. sorted by offsets, the first tensor begins at 0, each begins where the one before ended, none ends before it
 * begins
 *  4. the product of a shape, and that times the bits of an element, do not overflow; the bits are whole bytes; the
 * bytes are those between the offsets
 *  5. the last end is the end of the file
 *  6. no name comes twice
 *  7. metadata keys and values are strings, and no key comes twice
 *
 * Source of the rules: the safetensors format description (huggingface/safetensors). Members of a tensor other than
 * dtype, shape and data_offsets are checked to be JSON and otherwise ignored, as the reference does.
 */
#include "io/io.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_HEADER_BYTES = 100000000, MAX_DEPTH = 64, MAX_RANK = 8 };

static const struct {
  const char *name;
  int bits;
} dtypes[] = {
    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"BOOL", 8},        {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

static const char *dtype_find(const char *name, int *bits) {
  for (size_t i = 0; i < ISO_COUNT(dtypes); i++) {
    if (strcmp(dtypes[i].name, name) == 0) {
      *bits = dtypes[i].bits;
      return dtypes[i].name;
    }
  }
  *bits = 0;
  return NULL;
}

int iso_safetensors_dtype_bits(const char *dtype) {
  int bits;
  dtype_find(dtype, &bits);
  return bits;
}

/* ---- a strict JSON scanner -------------------------------------------------------------------------- */

typedef struct scan {
  const char *file;
  const char *begin, *at, *end;
  char *pool; /* decoded strings, each with its NUL */
  size_t pool_used;
} scan;

static iso_status bad(const scan *s, const char *cause) {
  return iso_fail(ISO_ERR_FORMAT, "safetensors file %s: header byte %zu: %s; the file is damaged or not safetensors",
                  s->file, (size_t)(s->at - s->begin), cause);
}

static void skip_space(scan *s) {
  while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) s->at++;
}

static bool take(scan *s, char c) {
  skip_space(s);
  if (s->at >= s->end || *s->at != c) return false;
  s->at++;
  return true;
}

static bool scan_hex4(scan *s, uint32_t *out) {
  if (s->end - s->at < 4) return false;
  uint32_t value = 0;
  for (int i = 0; i < 4; i++) {
    char c = s->at[i];
    uint32_t digit;
    if (c >= '0' && c <= '9') {
      digit = (uint32_t)(c - '0');
    } else if ((c | 32) >= 'a' && (c | 32) <= 'f') {
      digit = (uint32_t)((c | 32) - 'a' + 10);
    } else {
      return false;
    }
    value = value * 16 + digit;
  }
  s->at += 4;
  *out = value;
  return true;
}

static size_t utf8_put(char *out, uint32_t code) {
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  if (code < 0x800) {
    out[0] = (char)(0xC0 | code >> 6);
    out[1] = (char)(0x80 | (code & 63));
    return 2;
  }
  if (code < 0x10000) {
    out[0] = (char)(0xE0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 63));
    out[2] = (char)(0x80 | (code & 63));
    return 3;
  }
  out[0] = (char)(0xF0 | code >> 18);
  out[1] = (char)(0x80 | (code >> 12 & 63));
  out[2] = (char)(0x80 | (code >> 6 & 63));
  out[3] = (char)(0x80 | (code & 63));
  return 4;
}

/* After "\u": one code point, surrogates in pairs. */
static iso_status scan_unicode(scan *s, uint32_t *code) {
  if (!scan_hex4(s, code)) return bad(s, "\\u is not followed by four hex digits");
  if (*code == 0) return bad(s, "a string holds NUL");
  if (*code >= 0xDC00 && *code <= 0xDFFF) return bad(s, "a low surrogate without its high one");
  if (*code >= 0xD800 && *code <= 0xDBFF) {
    uint32_t low;
    if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u')
      return bad(s, "a high surrogate without its low one");
    s->at += 2;
    if (!scan_hex4(s, &low) || low < 0xDC00 || low > 0xDFFF) return bad(s, "a high surrogate without its low one");
    *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
  }
  return ISO_OK;
}

/* An escape is never shorter than what it decodes to, so the pool never outgrows the header. */
static iso_status scan_string(scan *s, const char **out) {
  if (!take(s, '"')) return bad(s, "expected a string");
  char *text = s->pool + s->pool_used;
  size_t length = 0;
  for (;;) {
    if (s->at >= s->end) return bad(s, "a string without its end");
    unsigned char c = (unsigned char)*s->at;
    if (c < 0x20) return bad(s, "a control character inside a string");
    s->at++;
    if (c == '"') break;
    if (c != '\\') {
      text[length++] = (char)c;
      continue;
    }
    static const char plain[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    if (s->at >= s->end) return bad(s, "a string without its end");
    char escape = *s->at;
    const char *known = escape ? strchr(plain, escape) : NULL;
    if (escape == 'u') {
      uint32_t code;
      s->at++;
      ISO_TRY(scan_unicode(s, &code));
      length += utf8_put(text + length, code);
    } else if (known) {
      s->at++;
      text[length++] = means[known - plain];
    } else {
      return bad(s, "an unknown escape");
    }
  }
  text[length] = 0;
  s->pool_used += length + 1;
  *out = text;
  return ISO_OK;
}

/* A whole number that fits int64: no sign, no fraction, no exponent, no leading zero. */
static iso_status scan_size(scan *s, int64_t *out) {
  skip_space(s);
  const char *first = s->at;
  uint64_t value = 0;
  while (s->at < s->end && *s->at >= '0' && *s->at <= '9') {
    uint64_t digit = (uint64_t)(*s->at - '0');
    if (value > ((uint64_t)INT64_MAX - digit) / 10) return bad(s, "a size that overflows 63 bits");
    value = value * 10 + digit;
    s->at++;
  }
  if (s->at == first) return bad(s, "expected a whole number of at least 0");
  if (*first == '0' && s->at - first > 1) return bad(s, "a number with a leading zero");
  if (s->at < s->end && (*s->at == '.' || *s->at == 'e' || *s->at == 'E')) return bad(s, "a size that is not whole");
  *out = (int64_t)value;
  return ISO_OK;
}

static iso_status skip_number(scan *s) {
  if (s->at < s->end && *s->at == '-') s->at++;
  const char *first = s->at;
  while (s->at < s->end && *s->at >= '0' && *s->at <= '9') s->at++;
  if (s->at == first || (*first == '0' && s->at - first > 1)) return bad(s, "expected a JSON value");
  if (s->at < s->end && *s->at == '.') {
    first = ++s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') s->at++;
    if (s->at == first) return bad(s, "a number without digits after its point");
  }
  if (s->at < s->end && (*s->at | 32) == 'e') {
    s->at++;
    if (s->at < s->end && (*s->at == '+' || *s->at == '-')) s->at++;
    first = s->at;
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') s->at++;
    if (s->at == first) return bad(s, "a number without digits in its exponent");
  }
  return ISO_OK;
}

static iso_status skip_value(scan *s, int depth) {
  skip_space(s);
  if (depth > MAX_DEPTH) return bad(s, "nested deeper than 64");
  if (s->at >= s->end) return bad(s, "expected a JSON value");
  const char *unused;
  char c = *s->at;
  if (c == '"') {
    size_t used = s->pool_used;
    iso_status status = scan_string(s, &unused);
    s->pool_used = used;
    return status;
  }
  if (c == '{' || c == '[') {
    char close = c == '{' ? '}' : ']';
    s->at++;
    if (take(s, close)) return ISO_OK;
    do {
      if (c == '{') {
        size_t used = s->pool_used;
        ISO_TRY(scan_string(s, &unused));
        s->pool_used = used;
        if (!take(s, ':')) return bad(s, "expected ':' after a name");
      }
      ISO_TRY(skip_value(s, depth + 1));
    } while (take(s, ','));
    return take(s, close) ? ISO_OK : bad(s, "expected ',' or a closing bracket");
  }
  static const char *const words[] = {"true", "false", "null"};
  for (size_t i = 0; i < ISO_COUNT(words); i++) {
    size_t length = strlen(words[i]);
    if ((size_t)(s->end - s->at) >= length && memcmp(s->at, words[i], length) == 0) {
      s->at += length;
      return ISO_OK;
    }
  }
  return skip_number(s);
}

/* ---- the header's members --------------------------------------------------------------------------- */

typedef struct builder {
  scan s;
  iso_safetensors_table *table;
  size_t capacity, metadata_capacity;
  int metadata_members;       /* how many __metadata__ there are */
  const char *metadata_fault; /* first key whose value is not a string; "" when __metadata__ is no object */
} builder;

static iso_status no_memory(const builder *b) {
  return iso_fail(ISO_ERR_MEMORY, "safetensors file %s: no memory for a header of %zu bytes", b->s.file,
                  (size_t)(b->s.end - b->s.begin));
}

static iso_status scan_metadata(builder *b) {
  scan *s = &b->s;
  iso_safetensors_table *t = b->table;
  b->metadata_members++;
  skip_space(s);
  if (s->at >= s->end || *s->at != '{') {
    if (!b->metadata_fault) b->metadata_fault = "";
    return skip_value(s, 1);
  }
  s->at++;
  if (take(s, '}')) return ISO_OK;
  do {
    const char *key, *value = "";
    ISO_TRY(scan_string(s, &key));
    if (!take(s, ':')) return bad(s, "expected ':' after a name");
    skip_space(s);
    if (s->at < s->end && *s->at == '"') {
      ISO_TRY(scan_string(s, &value));
    } else {
      if (!b->metadata_fault) b->metadata_fault = key;
      ISO_TRY(skip_value(s, 2));
    }
    if (t->metadata_count == b->metadata_capacity) {
      size_t capacity = b->metadata_capacity ? b->metadata_capacity * 2 : 8;
      const char **grown = realloc(t->metadata, capacity * 2 * sizeof *grown);
      if (!grown) return no_memory(b);
      t->metadata = grown;
      b->metadata_capacity = capacity;
    }
    t->metadata[2 * t->metadata_count] = key;
    t->metadata[2 * t->metadata_count + 1] = value;
    t->metadata_count++;
  } while (take(s, ','));
  return take(s, '}') ? ISO_OK : bad(s, "expected ',' or '}'");
}

static iso_status scan_shape(scan *s, iso_safetensor *tensor) {
  if (!take(s, '[')) return bad(s, "shape is not a list");
  if (take(s, ']')) return ISO_OK;
  do {
    int64_t dimension;
    ISO_TRY(scan_size(s, &dimension));
    if (tensor->rank == MAX_RANK) {
      return iso_fail(ISO_ERR_UNSUPPORTED, "safetensors file %s: tensor '%.100s' has more than %d dimensions", s->file,
                      tensor->name, MAX_RANK);
    }
    tensor->shape[tensor->rank++] = dimension;
  } while (take(s, ','));
  return take(s, ']') ? ISO_OK : bad(s, "shape is not a list of whole numbers");
}

/* Until check_layout, tensor->offset and ->bytes hold data_offsets as written. */
static iso_status scan_tensor(builder *b, const char *name) {
  scan *s = &b->s;
  iso_safetensors_table *t = b->table;
  if (t->count == b->capacity) {
    size_t capacity = b->capacity ? b->capacity * 2 : 64;
    iso_safetensor *grown = realloc(t->tensors, capacity * sizeof *grown);
    if (!grown) return no_memory(b);
    t->tensors = grown;
    b->capacity = capacity;
  }
  iso_safetensor tensor = {.name = name, .file = s->file};
  bool has_dtype = false, has_shape = false, has_offsets = false;
  if (!take(s, '{')) return bad(s, "a tensor's entry is not an object");
  if (!take(s, '}')) {
    do {
      const char *key, *dtype;
      size_t used = s->pool_used;
      int bits;
      ISO_TRY(scan_string(s, &key));
      if (!take(s, ':')) return bad(s, "expected ':' after a name");
      bool *has = strcmp(key, "dtype") == 0          ? &has_dtype
                  : strcmp(key, "shape") == 0        ? &has_shape
                  : strcmp(key, "data_offsets") == 0 ? &has_offsets
                                                     : NULL;
      if (has && *has) return bad(s, "a member of a tensor comes twice");
      if (has) *has = true;
      if (has == &has_dtype) {
        ISO_TRY(scan_string(s, &dtype));
        tensor.dtype = dtype_find(dtype, &bits);
        if (!tensor.dtype) return bad(s, "an unknown dtype");
      } else if (has == &has_shape) {
        ISO_TRY(scan_shape(s, &tensor));
      } else if (has == &has_offsets) {
        if (!take(s, '[')) return bad(s, "data_offsets is not a list");
        ISO_TRY(scan_size(s, &tensor.offset));
        if (!take(s, ',')) return bad(s, "data_offsets is not two numbers");
        ISO_TRY(scan_size(s, &tensor.bytes));
        if (!take(s, ']')) return bad(s, "data_offsets is not two numbers");
      } else {
        ISO_TRY(skip_value(s, 2));
      }
      s->pool_used = used;
    } while (take(s, ','));
    if (!take(s, '}')) return bad(s, "expected ',' or '}'");
  }
  if (!has_dtype) return bad(s, "a tensor without dtype");
  if (!has_shape) return bad(s, "a tensor without shape");
  if (!has_offsets) return bad(s, "a tensor without data_offsets");
  t->tensors[t->count++] = tensor;
  return ISO_OK;
}

static iso_status scan_header(builder *b) {
  scan *s = &b->s;
  if (s->at >= s->end || *s->at != '{') return bad(s, "the first byte is not '{'");
  s->at++;
  if (!take(s, '}')) {
    do {
      const char *name;
      ISO_TRY(scan_string(s, &name));
      if (!take(s, ':')) return bad(s, "expected ':' after a name");
      if (strcmp(name, "__metadata__") == 0) {
        ISO_TRY(scan_metadata(b));
      } else {
        ISO_TRY(scan_tensor(b, name));
      }
    } while (take(s, ','));
    if (!take(s, '}')) return bad(s, "expected ',' or '}'");
  }
  for (; s->at < s->end; s->at++) {
    if (*s->at != ' ') return bad(s, "the padding after the JSON is not spaces");
  }
  return ISO_OK;
}

/* ---- rules 3 to 7 ------------------------------------------------------------------------------------ */

static int by_offset(const void *left, const void *right) {
  const iso_safetensor *a = left, *b = right;
  if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
  if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
  return 0;
}

static int by_name(const void *left, const void *right) {
  return strcmp(((const iso_safetensor *)left)->name, ((const iso_safetensor *)right)->name);
}

static int by_key(const void *left, const void *right) {
  return strcmp(((const char *const *)left)[0], ((const char *const *)right)[0]);
}

static iso_status broken(const iso_safetensor *tensor, const char *cause) {
  return iso_fail(ISO_ERR_FORMAT, "safetensors file %s: tensor '%.100s': %s", tensor->file, tensor->name, cause);
}

static iso_status check_order(const iso_safetensors_table *t) {
  int64_t end = 0;
  for (size_t i = 0; i < t->count; i++) {
    const iso_safetensor *tensor = &t->tensors[i];
    if (tensor->offset > end) {
      return broken(tensor,
                    i ? "there is a hole between it and the tensor before it" : "the first tensor does not begin at 0");
    }
    if (tensor->offset < end) return broken(tensor, "it overlaps the tensor before it");
    if (tensor->bytes < tensor->offset) return broken(tensor, "its data_offsets end before they begin");
    end = tensor->bytes;
  }
  return ISO_OK;
}

/* Turns begin and end into offset from the file's beginning and bytes. */
static iso_status check_sizes(iso_safetensors_table *t, int64_t data_begin) {
  for (size_t i = 0; i < t->count; i++) {
    iso_safetensor *tensor = &t->tensors[i];
    int64_t bits, stored = tensor->bytes - tensor->offset;
    tensor->elements = iso_shape_elements(tensor->rank, tensor->shape);
    if (tensor->elements < 0) return broken(tensor, "the product of its shape overflows");
    if (__builtin_mul_overflow(tensor->elements, (int64_t)iso_safetensors_dtype_bits(tensor->dtype), &bits)) {
      return broken(tensor, "its size in bits overflows");
    }
    if (bits % 8 != 0) return broken(tensor, "its elements do not fill whole bytes");
    if (bits / 8 != stored) {
      return iso_fail(
          ISO_ERR_FORMAT,
          "safetensors file %s: tensor '%.100s': shape and dtype need %lld bytes, its data_offsets hold %lld",
          tensor->file, tensor->name, (long long)(bits / 8), (long long)stored);
    }
    if (__builtin_add_overflow(tensor->offset, data_begin, &tensor->offset))
      return broken(tensor, "its offset overflows");
    tensor->bytes = stored;
  }
  return ISO_OK;
}

static iso_status check_metadata(const builder *b) {
  const iso_safetensors_table *t = b->table;
  if (b->metadata_fault && !*b->metadata_fault) {
    return iso_fail(ISO_ERR_FORMAT, "safetensors file %s: __metadata__ is not an object of strings", b->s.file);
  }
  if (b->metadata_fault) {
    return iso_fail(ISO_ERR_FORMAT, "safetensors file %s: metadata '%.100s' is not a string", b->s.file,
                    b->metadata_fault);
  }
  if (t->metadata_count) qsort(t->metadata, t->metadata_count, 2 * sizeof *t->metadata, by_key);
  for (size_t i = 1; i < t->metadata_count; i++) {
    if (strcmp(t->metadata[2 * i - 2], t->metadata[2 * i]) == 0) {
      return iso_fail(ISO_ERR_FORMAT, "safetensors file %s: metadata '%.100s' comes twice", b->s.file,
                      t->metadata[2 * i]);
    }
  }
  return ISO_OK;
}

static iso_status check_rules(builder *b, int64_t file_bytes) {
  iso_safetensors_table *t = b->table;
  int64_t data_begin = 8 + (int64_t)(b->s.end - b->s.begin);
  if (t->count) qsort(t->tensors, t->count, sizeof *t->tensors, by_offset);
  ISO_TRY(check_order(t));
  int64_t data_end = t->count ? t->tensors[t->count - 1].bytes : 0;
  ISO_TRY(check_sizes(t, data_begin));
  if (data_end != file_bytes - data_begin) {
    return iso_fail(ISO_ERR_FORMAT,
                    "safetensors file %s: its tensors take %lld bytes but the file holds %lld after the header (%s)",
                    b->s.file, (long long)data_end, (long long)(file_bytes - data_begin),
                    data_end > file_bytes - data_begin ? "cut short" : "bytes too many");
  }
  if (t->count) qsort(t->tensors, t->count, sizeof *t->tensors, by_name);
  for (size_t i = 1; i < t->count; i++) {
    if (strcmp(t->tensors[i - 1].name, t->tensors[i].name) == 0) return broken(&t->tensors[i], "its name comes twice");
  }
  if (b->metadata_members > 1) {
    return iso_fail(ISO_ERR_FORMAT, "safetensors file %s: __metadata__ comes twice", b->s.file);
  }
  return check_metadata(b);
}

iso_status iso_safetensors_header_length(const char *file, int64_t file_bytes, const uint8_t first[8],
                                         int64_t *length) {
  if (file_bytes < 8) {
    return iso_fail(ISO_ERR_FORMAT, "safetensors file %s: %lld bytes are too few, the header's length alone takes 8",
                    file, (long long)file_bytes);
  }
  uint64_t n = 0;
  for (int i = 7; i >= 0; i--) n = n << 8 | first[i];
  if (n > MAX_HEADER_BYTES) {
    return iso_fail(ISO_ERR_FORMAT, "safetensors file %s: a header of %llu bytes is above the limit of %d", file,
                    (unsigned long long)n, MAX_HEADER_BYTES);
  }
  if ((int64_t)n > file_bytes - 8) {
    return iso_fail(ISO_ERR_FORMAT, "safetensors file %s: a header of %llu bytes passes the end of a file of %lld",
                    file, (unsigned long long)n, (long long)file_bytes);
  }
  *length = (int64_t)n;
  return ISO_OK;
}

iso_status iso_safetensors_table_init(iso_safetensors_table *table, const char *file, int64_t file_bytes,
                                      const char *header, size_t length) {
  memset(table, 0, sizeof *table);
  builder b = {.s = {.file = file, .begin = header, .at = header, .end = header + length}, .table = table};
  for (int span; b.s.at < b.s.end; b.s.at += span) {
    span = iso_utf8_span(b.s.at, (size_t)(b.s.end - b.s.at));
    if (span == 0) return bad(&b.s, "not UTF-8");
  }
  b.s.at = header;
  table->pool = b.s.pool = malloc(length + 1);
  if (!table->pool) return no_memory(&b);
  iso_status status = scan_header(&b);
  if (status == ISO_OK) status = check_rules(&b, file_bytes);
  if (status != ISO_OK) iso_safetensors_table_fini(table);
  return status;
}

void iso_safetensors_table_fini(iso_safetensors_table *table) {
  free(table->tensors);
  free(table->metadata);
  free(table->pool);
  memset(table, 0, sizeof *table);
}
