/* SPDX-License-Identifier: Apache-2.0
 *
 * jsonl: where in a line of JSON the text is.
 *
 * One pass checks the whole line against RFC 8259 and finds one string: that of a field, or with dots in the field's
 * name of a field of a field. Nothing is built and nothing is copied; the string is unescaped when it is needed.
 *
 * Invariants
 *  1. A line is good only if all of it is: one object in well-formed UTF-8, no object with two keys of one name (after
 *     unescaping), no lone surrogates, no more than MAX_DEPTH levels, nothing behind it.
 *  2. What is wrong is said with its byte, and depends on the line and the field alone.
 *  3. Linear in the line but for sorting the keys of an object.
 */
#include "data/data.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MAX_DEPTH = 256, FEW_KEYS = 12 };

typedef struct iso_jsonl_key {
  uint64_t hash;
  size_t begin, length; /* in the line, escaped as there */
  bool escaped;
} key;

typedef struct scan {
  const uint8_t *text;
  size_t at, end;
  const char *field;
  iso_jsonl_scratch *scratch;
  size_t key_count; /* on the scratch's stack: those of all open objects */
  iso_jsonl_line *out;
  size_t found; /* strings that the field names */
  char wrong[120];
  size_t wrong_at; /* value of the field that is not a string */
  iso_status status;
} scan;

static bool fail(scan *s, size_t at, const char *cause) {
  if (!s->out->cause[0]) {
    snprintf(s->out->cause, sizeof s->out->cause, "%s", cause);
    s->out->at = at;
  }
  return false;
}

static void skip_space(scan *s) {
  while (s->at < s->end && (s->text[s->at] == ' ' || s->text[s->at] == '\t' || s->text[s->at] == '\r')) s->at++;
}

/* ---- strings ---- */

/* Value of 4 hex digits, -1 when they are not. */
static int hex4(const uint8_t *digits) {
  int value = 0;
  for (int i = 0; i < 4; i++) {
    int c = digits[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
    if (digit < 0) return -1;
    value = value << 4 | digit;
  }
  return value;
}

/* What the letter behind a backslash stands for; 0: nothing, or more than that letter. */
static const uint8_t simple_escapes[256] = {
    ['"'] = '"', ['\\'] = '\\', ['/'] = '/', ['b'] = '\b', ['f'] = '\f', ['n'] = '\n', ['r'] = '\r', ['t'] = '\t'};

/* Code point of the escape at text[0] == '\\', of which at least two bytes are there; its bytes in *span. -1: none. */
static int32_t unescape_one(const uint8_t *text, size_t left, size_t *span) {
  *span = 2;
  if (text[1] != 'u') return simple_escapes[text[1]] ? simple_escapes[text[1]] : -1;
  int high = left >= 6 ? hex4(text + 2) : -1;
  *span = 6;
  if (high < 0 || (high >= 0xDC00 && high <= 0xDFFF)) return -1;
  if (high < 0xD800 || high > 0xDBFF) return high;
  int low = left >= 12 && text[6] == '\\' && text[7] == 'u' ? hex4(text + 8) : -1;
  *span = 12;
  if (low < 0xDC00 || low > 0xDFFF) return -1;
  return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

/* Bytes of its UTF-8, which go to `out`. */
static size_t put_utf8(char *out, int32_t code) {
  const size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (size_t i = length; i-- > 1; code >>= 6) out[i] = (char)(0x80 | (code & 0x3F));
  out[0] = (char)(lead[length] | code);
  return length;
}

enum { STEP = 64 }; /* bytes that are written at once: as many more than are needed may be */

/* An escape at raw[*at]: its bytes go to *to, and both move on. False: it is none. */
static bool put_escape(const char *raw, size_t length, size_t *at, char **to) {
  size_t span = 2;
  const uint8_t simple = length - *at >= 2 ? simple_escapes[(uint8_t)raw[*at + 1]] : 0;
  if (simple) {
    *(*to)++ = (char)simple;
  } else {
    const int32_t code = length - *at >= 2 ? unescape_one((const uint8_t *)raw + *at, length - *at, &span) : -1;
    if (code < 0) return false;
    *to += put_utf8(*to, code);
  }
  *at += span;
  return true;
}

/* The end of what was written; NULL: an escape is none. */
static char *unescape_plain(const char *raw, size_t length, char *to) {
  for (size_t at = 0; at < length;) {
#if defined(__SSE2__)
    if (length - at >= 16) {
      const __m128i bytes = _mm_loadu_si128((const void *)(raw + at));
      const int found = _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
      const size_t plain = found ? (size_t)__builtin_ctz((unsigned)found) : 16;
      _mm_storeu_si128((void *)to, bytes);
      to += plain;
      at += plain;
      if (!found) continue;
    }
#endif
    if (raw[at] != '\\')
      *to++ = raw[at++];
    else if (!put_escape(raw, length, &at, &to))
      return NULL;
  }
  return to;
}

#if defined(__x86_64__)
/* The same, 64 bytes at once: letters behind backslashes are looked up, the backslashes squeezed out. What is not a
 * backslash and one of those letters ends a block. */
__attribute__((target("avx512f,avx512bw,avx512vbmi,avx512vbmi2"))) static char *
unescape_avx512(const char *raw, size_t length, char *to) {
  const __m512i low = _mm512_loadu_si512(simple_escapes), high = _mm512_loadu_si512(simple_escapes + 64);
  for (size_t at = 0; at < length;) {
    const uint64_t there = length - at >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << (length - at)) - 1;
    const __m512i bytes = _mm512_maskz_loadu_epi8(there, raw + at);
    const uint64_t slashes = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8('\\')), letters = slashes << 1;
    const __m512i meant = _mm512_permutex2var_epi8(low, bytes, high);
    const uint64_t known = _mm512_test_epi8_mask(meant, meant) & ~_mm512_movepi8_mask(bytes);
    /* backslashes before another one, before what is no such letter, and at the end */
    const uint64_t odd = (slashes & slashes >> 1) | (letters & ~known) >> 1 | (slashes & UINT64_C(1) << 63);
    const uint64_t upto = odd ? (odd & -odd) - 1 : ~UINT64_C(0), kept = there & upto & ~slashes;
    const __m512i text = _mm512_mask_mov_epi8(bytes, letters, meant);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi8(kept, text));
    to += __builtin_popcountll(kept);
    at += (size_t)__builtin_popcountll(there & upto);
    if (odd && !put_escape(raw, length, &at, &to)) return NULL;
  }
  return to;
}
#endif

typedef char *(*unescape_function)(const char *raw, size_t length, char *to);

static unescape_function find_unescape(void) {
#if defined(__x86_64__)
  iso_tier tier;
  if (iso_cpu_tier(&tier) == ISO_OK && tier >= ISO_TIER_AVX512 && __builtin_cpu_supports("avx512vbmi") &&
      __builtin_cpu_supports("avx512vbmi2"))
    return unescape_avx512;
#endif
  return unescape_plain;
}

bool iso_jsonl_unescape(const char *raw, size_t length, iso_string *out) {
  static const char nothing[STEP];
  static _Atomic(unescape_function) found;
  unescape_function unescape = atomic_load_explicit(&found, memory_order_relaxed);
  if (!unescape) atomic_store_explicit(&found, unescape = find_unescape(), memory_order_relaxed);
  out->length = 0;
  if (out->capacity <= length + STEP) { /* nothing is longer than its escape */
    iso_string_append(out, raw, length);
    iso_string_append(out, nothing, sizeof nothing);
    out->length = 0;
  }
  if (iso_string_failed(out)) return true;
  const char *end = unescape(raw, length, out->data);
  if (!end) return false;
  out->length = (size_t)(end - out->data);
  out->data[out->length] = '\0';
  return true;
}

/* The first byte from `at` that is not plain inside a string: a quote, a backslash, a control character, the end. */
static size_t plain_end(const scan *s, size_t at) {
  const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
  while (s->end - at >= 8) {
    uint64_t word;
    memcpy(&word, s->text + at, 8);
    uint64_t quote = word ^ (ones * '"'), slash = word ^ (ones * '\\');
    uint64_t hit = ((quote - ones) & ~quote) | ((slash - ones) & ~slash) | ((word - ones * 0x20) & ~word);
    if (hit & tops) return at + (size_t)__builtin_ctzll(hit & tops) / 8; /* the lowest one is exact */
    at += 8;
  }
  while (at < s->end && s->text[at] != '"' && s->text[at] != '\\' && s->text[at] >= 0x20) at++;
  return at;
}

/* At the opening quote: checks the string; its content is [*begin, *begin + *length). */
static bool read_string(scan *s, size_t *begin, size_t *length, bool *escaped) {
  const size_t open = s->at;
  *begin = ++s->at;
  *escaped = false;
  for (;;) {
    s->at = plain_end(s, s->at);
    if (s->at == s->end) return fail(s, open, "the string that begins here does not end in this line");
    uint8_t c = s->text[s->at];
    if (c == '"') break;
    if (c != '\\') return fail(s, s->at, "a control character in a string is not escaped");
    *escaped = true;
    size_t span = 2;
    if (s->end - s->at < 2) return fail(s, open, "the string that begins here does not end in this line");
    if (unescape_one(s->text + s->at, s->end - s->at, &span) < 0)
      return fail(s, s->at,
                  s->text[s->at + 1] == 'u' ? "not a Unicode character (\\u with 4 hex digits, surrogates in pairs)"
                                            : "no escape of JSON");
    s->at += span;
  }
  *length = s->at++ - *begin;
  return true;
}

/* ---- keys ---- */

static uint64_t hash_bytes(const void *bytes, size_t length) {
  const uint8_t *at = bytes;
  uint64_t hash = 0x9E3779B97F4A7C15u ^ length;
  for (; length; at += 8) {
    uint64_t word = 0;
    size_t part = length < 8 ? length : 8;
    memcpy(&word, at, part);
    hash = (hash ^ word) * 0xFF51AFD7ED558CCDu;
    hash ^= hash >> 32;
    length -= part;
  }
  return hash;
}

/* The key's characters: in the line, or unescaped in `space`. */
static const char *key_text(const scan *s, const key *k, iso_string *space, size_t *length) {
  const char *raw = (const char *)s->text + k->begin;
  *length = k->length;
  if (!k->escaped) return raw;
  if (!iso_jsonl_unescape(raw, k->length, space)) return "";
  *length = space->length;
  return space->data;
}

static bool same_key(scan *s, const key *a, const key *b) {
  if (a->hash != b->hash) return false;
  size_t x, y;
  const char *left = key_text(s, a, &s->scratch->left, &x), *right = key_text(s, b, &s->scratch->right, &y);
  return x == y && memcmp(left, right, x) == 0;
}

static int by_hash(const void *a, const void *b) {
  const key *x = a, *y = b;
  if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
  return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* An object has ended whose keys are those from `base`. */
static bool keys_differ(scan *s, size_t base) {
  key *keys = s->scratch->keys + base;
  const size_t count = s->key_count - base;
  s->key_count = base;
  if (count > FEW_KEYS) qsort(keys, count, sizeof *keys, by_hash);
  for (size_t i = 0; i < count; i++)
    for (size_t j = i + 1; j < count && (count <= FEW_KEYS || keys[j].hash == keys[i].hash); j++)
      if (same_key(s, &keys[i], &keys[j])) return fail(s, keys[j].begin - 1, "an object has this key twice");
  return true;
}

static bool push_key(scan *s, const key *k) {
  iso_jsonl_scratch *scratch = s->scratch;
  if (s->key_count == scratch->key_capacity) {
    size_t capacity = scratch->key_capacity ? 2 * scratch->key_capacity : 64;
    key *grown = realloc(scratch->keys, capacity * sizeof *grown);
    if (!grown) {
      s->status = iso_fail(ISO_ERR_MEMORY, "data: no memory for the keys of a JSON line of %zu bytes", s->end);
      return false;
    }
    scratch->keys = grown;
    scratch->key_capacity = capacity;
  }
  scratch->keys[s->key_count++] = *k;
  return true;
}

/* ---- values ---- */

static bool read_value(scan *s, int depth, const char *rest);

/* JSON's grammar of numbers: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)? */
static bool read_number(scan *s) {
  const size_t begin = s->at;
  size_t digits;
#define DIGITS()                                                                                                       \
  for (digits = 0; s->at < s->end && s->text[s->at] >= '0' && s->text[s->at] <= '9'; s->at++) digits++
  if (s->text[s->at] == '-') s->at++;
  const size_t whole = s->at;
  DIGITS();
  if (digits == 0 || (digits > 1 && s->text[whole] == '0')) return fail(s, begin, "not a JSON value");
  if (s->at < s->end && s->text[s->at] == '.') {
    s->at++;
    DIGITS();
    if (digits == 0) return fail(s, begin, "not a JSON number");
  }
  if (s->at < s->end && (s->text[s->at] | 32) == 'e') {
    s->at++;
    if (s->at < s->end && (s->text[s->at] == '+' || s->text[s->at] == '-')) s->at++;
    DIGITS();
    if (digits == 0) return fail(s, begin, "not a JSON number");
  }
#undef DIGITS
  return true;
}

static bool read_word(scan *s, const char *word) {
  const size_t length = strlen(word);
  if (s->end - s->at < length || memcmp(s->text + s->at, word, length) != 0) return fail(s, s->at, "not a JSON value");
  s->at += length;
  return true;
}

/* The value of the field itself. */
static bool read_field(scan *s, int depth) {
  const uint8_t c = s->text[s->at];
  const size_t at = s->at;
  bool escaped;
  s->found++;
  if (c == '"') return read_string(s, &s->out->begin, &s->out->length, &escaped);
  const char *what = c == '{'               ? "an object"
                     : c == '['             ? "a list"
                     : c == 'n'             ? "null"
                     : c == 't' || c == 'f' ? "a truth value"
                                            : "a number";
  if (!s->wrong[0]) {
    snprintf(s->wrong, sizeof s->wrong, "field \"%.60s\" is %s, not a string", s->field, what);
    s->wrong_at = at;
  }
  return read_value(s, depth, NULL);
}

/* One member. `rest`: what is left of the field's name inside this object, NULL off its way. */
static bool read_member(scan *s, int depth, const char *rest) {
  key k = {0};
  if (s->at == s->end || s->text[s->at] != '"') return fail(s, s->at, "expected a key in quotes");
  if (!read_string(s, &k.begin, &k.length, &k.escaped)) return false;
  size_t length;
  const char *name = key_text(s, &k, &s->scratch->left, &length);
  k.hash = hash_bytes(name, length);
  const char *below = NULL;
  bool is_field = false;
  if (rest && strncmp(rest, name, length) == 0 && strlen(rest) >= length && !memchr(name, 0, length)) {
    is_field = rest[length] == 0;
    if (rest[length] == '.') below = rest + length + 1;
  }
  if (!push_key(s, &k)) return false;
  skip_space(s);
  if (s->at == s->end || s->text[s->at] != ':') return fail(s, s->at, "expected a colon behind the key");
  s->at++;
  skip_space(s);
  if (s->at == s->end) return fail(s, s->at, "the line ends where a value should stand");
  return is_field ? read_field(s, depth) : read_value(s, depth, below);
}

static bool read_items(scan *s, int depth, const char *rest, bool object) {
  const uint8_t close = object ? '}' : ']';
  const size_t base = s->key_count;
  if (depth == MAX_DEPTH) return fail(s, s->at, "nested deeper than 256 levels");
  s->at++;
  skip_space(s);
  if (s->at < s->end && s->text[s->at] == close) {
    s->at++;
    return true;
  }
  for (;;) {
    if (object ? !read_member(s, depth + 1, rest) : !read_value(s, depth + 1, NULL)) return false;
    skip_space(s);
    if (s->at == s->end) return fail(s, s->at, "the line ends inside an object or list");
    const uint8_t c = s->text[s->at++];
    if (c == close) break;
    if (c != ',') return fail(s, s->at - 1, "expected a comma or the end of the object or list");
    skip_space(s);
  }
  return object ? keys_differ(s, base) : true;
}

static bool read_value(scan *s, int depth, const char *rest) {
  size_t begin, length;
  bool escaped;
  skip_space(s);
  if (s->at == s->end) return fail(s, s->at, "the line ends where a value should stand");
  switch (s->text[s->at]) {
  case '{':
    return read_items(s, depth, rest, true);
  case '[':
    return read_items(s, depth, NULL, false);
  case '"':
    return read_string(s, &begin, &length, &escaped);
  case 't':
    return read_word(s, "true");
  case 'f':
    return read_word(s, "false");
  case 'n':
    return read_word(s, "null");
  default:
    return read_number(s);
  }
}

/* The string members of an object that was read without fault, as far as they fit, into `out`. */
static void list_strings(scan *s, char *out, size_t room) {
  size_t used = 0;
  s->at = 0;
  skip_space(s);
  s->at++;
  for (;;) {
    size_t begin, length, value;
    bool escaped;
    skip_space(s);
    if (s->text[s->at] != '"' || !read_string(s, &begin, &length, &escaped)) return;
    skip_space(s);
    s->at++;
    skip_space(s);
    value = s->at;
    if (!read_value(s, 1, NULL)) return;
    if (s->text[value] == '"' && length <= 24 && used + length + 5 < room)
      used += (size_t)snprintf(out + used, room - used, "%s\"%.*s\"", used ? ", " : "", (int)length,
                               (const char *)s->text + begin);
    skip_space(s);
    if (s->text[s->at++] != ',') return;
  }
}

static bool fail_field(scan *s) {
  char strings[60] = "", cause[160];
  list_strings(s, strings, sizeof strings);
  snprintf(cause, sizeof cause, "no field \"%.40s\"%s%s; set %.40s", s->field,
           strings[0] ? ", only " : ", and no string at its top", strings,
           s->scratch->set_field ? s->scratch->set_field : "the source's field");
  return fail(s, 0, cause);
}

/* What stands outside strings and numbers is in ASCII, so one look over the line covers its strings. */
static bool read_line(scan *s) {
  skip_space(s);
  if (s->at == s->end || s->text[s->at] != '{') return fail(s, s->at, "not a JSON object");
  if (!read_value(s, 0, s->field)) return false;
  skip_space(s);
  if (s->at != s->end) return fail(s, s->at, "something stands behind the JSON object");
  if (s->found > 1) return fail(s, s->out->begin, "the field's name fits two members");
  if (s->wrong[0]) return fail(s, s->wrong_at, s->wrong);
  if (s->found == 1) return true;
  return fail_field(s);
}

iso_status iso_jsonl_scan(const char *line, size_t length, const char *field, iso_jsonl_scratch *scratch,
                          iso_jsonl_line *out) {
  scan s = {.text = (const uint8_t *)line, .end = length, .field = field, .scratch = scratch, .out = out};
  *out = (iso_jsonl_line){0};
  const size_t valid = iso_utf8_valid_prefix(line, length);
  if (valid < length)
    fail(&s, valid, "not valid UTF-8");
  else
    out->good = read_line(&s);
  return s.status;
}

void iso_jsonl_scratch_fini(iso_jsonl_scratch *scratch) {
  free(scratch->keys);
  iso_string_fini(&scratch->left);
  iso_string_fini(&scratch->right);
  *scratch = (iso_jsonl_scratch){0};
}
