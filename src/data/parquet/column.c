/* SPDX-License-Identifier: Apache-2.0
 *
 * column: the values of one column, row group by row group, page by page.
 *
 *   chunk     [dictionary page] data pages …; each a header in Thrift and its bytes
 *   page v1   compressed: [u32 length, definition levels] values
 *   page v2   repetition levels, definition levels, then values, which alone may be compressed
 *   values    PLAIN: u32 length, bytes; dictionary: 1 byte width, then places in the dictionary as runs
 *
 * A definition level below the column's largest stands for null; no level is stored where nothing can be null.
 *
 * Invariants
 *  1. A chunk's pages have exactly its values; a page's bytes hold exactly what its header says.
 *  2. Checksums are compared where pages have them.
 */
#include "data/parquet/parquet.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, RLE_DICTIONARY = 8 };
#define WINDOW_BYTES (4 << 20)
#define HEADER_BYTES (64 << 10)
#define HEADER_LIMIT (64 << 20)
#define PAGE_LIMIT   (1 << 30)

typedef struct buffer {
  uint8_t *bytes;
  size_t capacity;
} buffer;

typedef struct text {
  const uint8_t *bytes;
  uint32_t length;
} text;

typedef struct reader {
  const iso_parquet_input *input;
  const iso_parquet_column *column;
  iso_status (*value)(void *context, const char *bytes, size_t length);
  void *context;
  int64_t group;
  const iso_parquet_chunk *chunk;
  buffer window, page, dictionary_bytes;
  int64_t base, held; /* of the window: its first byte in the file, its bytes */
  text *dictionary;
  int64_t dictionary_count;
  bool has_dictionary;
  int64_t at, values; /* byte of the page being read; values of the chunk so far */
} reader;

static iso_status damaged(const reader *r, const char *what) {
  return iso_fail(ISO_ERR_FORMAT, "data: \"%s\": row group %lld, page at byte %lld: %s", r->input->path,
                  (long long)r->group, (long long)r->at, what);
}

static iso_status reserve(const reader *r, buffer *b, size_t bytes) {
  if (bytes <= b->capacity && b->bytes) return ISO_OK;
  free(b->bytes);
  b->bytes = malloc(bytes ? bytes : 1);
  b->capacity = b->bytes ? bytes : 0;
  if (b->bytes) return ISO_OK;
  return iso_fail(ISO_ERR_MEMORY, "data: no memory for a page of %zu bytes of \"%s\"", bytes, r->input->path);
}

/* Bytes [at, at + bytes) of the file, which lie in the chunk; they stay until the next call. */
static iso_status look(reader *r, int64_t at, int64_t bytes, const uint8_t **out) {
  if (at < r->base || at + bytes > r->base + r->held) {
    int64_t want = bytes > WINDOW_BYTES ? bytes : WINDOW_BYTES;
    if (want > r->chunk->end - at) want = r->chunk->end - at;
    r->held = 0;
    ISO_TRY(reserve(r, &r->window, (size_t)want));
    ISO_TRY(r->input->read(r->input->context, at, want, r->window.bytes));
    r->base = at;
    r->held = want;
  }
  *out = r->window.bytes + (at - r->base);
  return ISO_OK;
}

static iso_status read_header(reader *r, iso_parquet_page *page, size_t *header_bytes) {
  const int64_t left = r->chunk->end - r->at;
  for (int64_t want = HEADER_BYTES;; want *= 4) {
    const uint8_t *bytes;
    bool more;
    if (want > left) want = left;
    ISO_TRY(look(r, r->at, want, &bytes));
    if (iso_parquet_page_parse(bytes, (size_t)want, page, header_bytes, &more)) return ISO_OK;
    if (!more || want == left || want > HEADER_LIMIT) return damaged(r, "its header cannot be read");
  }
}

static uint32_t u32_at(const uint8_t *bytes) {
  return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* The next PLAIN value of [*at, end). */
static bool next_plain(const uint8_t **at, const uint8_t *end, text *out) {
  if (end - *at < 4) return false;
  out->length = u32_at(*at);
  out->bytes = *at += 4;
  if (out->length > (uint64_t)(end - *at)) return false;
  *at += out->length;
  return true;
}

static iso_status unpack(reader *r, const uint8_t *stored, size_t bytes, bool compressed, buffer *to, size_t to_bytes) {
  iso_string what = {0};
  ISO_TRY(reserve(r, to, to_bytes));
  iso_string_printf(&what, "data: \"%s\": row group %lld, page at byte %lld", r->input->path, (long long)r->group,
                    (long long)r->at);
  iso_status status = iso_string_failed(&what) ? ISO_ERR_MEMORY
                                               : iso_parquet_decompress(what.data, compressed ? r->chunk->codec : 0,
                                                                        stored, bytes, to->bytes, to_bytes);
  iso_string_fini(&what);
  return status;
}

static iso_status read_dictionary(reader *r, const iso_parquet_page *page, const uint8_t *stored) {
  if (r->has_dictionary) return damaged(r, "a second dictionary");
  if (page->encoding != PLAIN && page->encoding != PLAIN_DICTIONARY)
    return damaged(r, "a dictionary of an encoding that dictionaries do not have");
  ISO_TRY(unpack(r, stored, (size_t)page->stored_bytes, true, &r->dictionary_bytes, (size_t)page->bytes));
  const uint8_t *at = r->dictionary_bytes.bytes, *end = at + page->bytes;
  if (page->values > page->bytes / 4) return damaged(r, "a dictionary with more values than bytes for them");
  free(r->dictionary);
  r->dictionary = malloc(((size_t)page->values + 1) * sizeof *r->dictionary);
  if (!r->dictionary) return iso_fail(ISO_ERR_MEMORY, "data: no memory for a dictionary of \"%s\"", r->input->path);
  for (int32_t i = 0; i < page->values; i++)
    if (!next_plain(&at, end, &r->dictionary[i])) return damaged(r, "a value of the dictionary does not lie within it");
  if (at != end) return damaged(r, "bytes behind the dictionary's values");
  r->dictionary_count = page->values;
  r->has_dictionary = true;
  return ISO_OK;
}

/* All nulls need no dictionary, whatever the encoding. */
static iso_status check_encoding(const reader *r, const iso_parquet_page *page) {
  static const char *const names[] = {"",
                                      "",
                                      "",
                                      "RLE",
                                      "BIT_PACKED",
                                      "DELTA_BINARY_PACKED",
                                      "DELTA_LENGTH_BYTE_ARRAY",
                                      "DELTA_BYTE_ARRAY",
                                      "",
                                      "BYTE_STREAM_SPLIT"};
  const bool dictionary = page->encoding == PLAIN_DICTIONARY || page->encoding == RLE_DICTIONARY;
  if (dictionary || page->encoding == PLAIN) return ISO_OK;
  if (page->encoding < 0 || (size_t)page->encoding >= ISO_COUNT(names) || !names[page->encoding][0])
    return damaged(r, "an encoding's number is none");
  return iso_fail(
      ISO_ERR_UNSUPPORTED,
      "data: \"%s\": row group %lld: values are encoded as %s, which is not read; write the column with PLAIN "
      "or dictionary encoding",
      r->input->path, (long long)r->group, names[page->encoding]);
}

/* Gives the page's values. `levels`: definition levels, when there are any. */
static iso_status give_values(reader *r, const iso_parquet_page *page, iso_parquet_runs *levels, const uint8_t *at,
                              const uint8_t *end) {
  const uint32_t defined = (uint32_t)r->column->max_definition;
  const bool plain = page->encoding == PLAIN;
  iso_parquet_runs places = {.end = end};
  int32_t nulls = 0;
  ISO_TRY(check_encoding(r, page));
  if (!plain && at < end) {
    places.width = *at++;
    if (places.width > 32) return damaged(r, "places in the dictionary of more than 32 bits");
  }
  places.at = at;
  for (int32_t i = 0; i < page->values; i++) {
    uint32_t level = defined, place;
    text value;
    if (defined && !iso_parquet_runs_next(levels, &level)) return damaged(r, "its levels end early");
    if (level > defined) return damaged(r, "a definition level is too large");
    if (level < defined) {
      nulls++;
      ISO_TRY(r->value(r->context, NULL, 0));
      continue;
    }
    if (plain) {
      if (!next_plain(&at, end, &value)) return damaged(r, "its values end early");
    } else {
      if (!iso_parquet_runs_next(&places, &place)) return damaged(r, "its places in the dictionary end early");
      if (!r->has_dictionary) return damaged(r, "it needs a dictionary, and there is none before it");
      if (place >= r->dictionary_count) return damaged(r, "a place beyond the dictionary");
      value = r->dictionary[place];
    }
    ISO_TRY(r->value(r->context, (const char *)value.bytes, value.length));
  }
  if (plain && at != end) return damaged(r, "bytes behind its values");
  if (page->type == ISO_PARQUET_DATA_V2 && nulls != page->nulls) return damaged(r, "it has other nulls than it says");
  return ISO_OK;
}

static int bits_of(int number) {
  int bits = 0;
  while (number >> bits) bits++;
  return bits;
}

static iso_status read_v1(reader *r, const iso_parquet_page *page, const uint8_t *stored) {
  iso_parquet_runs levels = {.width = bits_of(r->column->max_definition)};
  const uint8_t *at = stored;
  if (r->chunk->codec != 0 || page->stored_bytes != page->bytes) {
    ISO_TRY(unpack(r, stored, (size_t)page->stored_bytes, true, &r->page, (size_t)page->bytes));
    at = r->page.bytes;
  }
  const uint8_t *end = at + page->bytes;
  if (r->column->max_definition) {
    if (page->level_encoding != RLE)
      return iso_fail(ISO_ERR_UNSUPPORTED, "data: \"%s\": row group %lld: levels of encoding %d, which is not read",
                      r->input->path, (long long)r->group, page->level_encoding);
    if (end - at < 4 || u32_at(at) > (uint64_t)(end - at - 4)) return damaged(r, "its levels do not lie within it");
    levels.at = at + 4;
    levels.end = at = levels.at + u32_at(at);
  }
  return give_values(r, page, &levels, at, end);
}

static iso_status read_v2(reader *r, const iso_parquet_page *page, const uint8_t *stored) {
  const int64_t before = (int64_t)page->repetition_bytes + page->definition_bytes;
  if (before > page->stored_bytes || before > page->bytes) return damaged(r, "its levels do not lie within it");
  if (page->repetition_bytes) return damaged(r, "repetition levels in a column that is not repeated");
  if (page->rows != page->values) return damaged(r, "more or fewer rows than values");
  iso_parquet_runs levels = {.at = stored, .end = stored + before, .width = bits_of(r->column->max_definition)};
  const uint8_t *at = stored + before, *end = stored + page->stored_bytes;
  const size_t value_bytes = (size_t)(page->bytes - before);
  if (page->compressed && r->chunk->codec != 0 && (value_bytes || end > at)) {
    ISO_TRY(unpack(r, at, (size_t)(end - at), true, &r->page, value_bytes));
    at = r->page.bytes;
    end = at + value_bytes;
  }
  if ((size_t)(end - at) != value_bytes) return damaged(r, "it has other bytes than it says");
  return give_values(r, page, &levels, at, end);
}

static iso_status read_page(reader *r) {
  iso_parquet_page page;
  size_t header_bytes;
  const uint8_t *stored;
  ISO_TRY(read_header(r, &page, &header_bytes));
  const int64_t body = r->at + (int64_t)header_bytes;
  if (page.stored_bytes > r->chunk->end - body) return damaged(r, "it does not lie within its column");
  if (page.bytes > PAGE_LIMIT) return damaged(r, "it says that it holds more than a GiB");
  ISO_TRY(look(r, body, page.stored_bytes, &stored));
  if (page.has_crc && (uint32_t)crc32(0, stored, (unsigned)page.stored_bytes) != page.crc)
    return damaged(r, "its checksum (CRC-32) is wrong");
  if (page.type == ISO_PARQUET_DICTIONARY) {
    ISO_TRY(read_dictionary(r, &page, stored));
  } else if (page.type == ISO_PARQUET_DATA || page.type == ISO_PARQUET_DATA_V2) {
    if (page.values > r->chunk->values - r->values) return damaged(r, "more values than its column has");
    ISO_TRY(page.type == ISO_PARQUET_DATA ? read_v1(r, &page, stored) : read_v2(r, &page, stored));
    r->values += page.values;
    if (r->input->sound) *r->input->sound += page.values;
  } else if (page.type != ISO_PARQUET_INDEX) {
    return damaged(r, "its type is none");
  }
  r->at = body + page.stored_bytes;
  return ISO_OK;
}

static iso_status read_chunk(reader *r, const iso_parquet_chunk *chunk) {
  r->chunk = chunk;
  r->has_dictionary = false;
  r->at = chunk->begin;
  r->values = r->held = 0;
  while (r->values < chunk->values) {
    if (r->at >= chunk->end) return damaged(r, "the column ends before its last value");
    ISO_TRY(read_page(r));
  }
  return ISO_OK;
}

iso_status iso_parquet_read(const iso_parquet_input *input, const char *field,
                            iso_status (*value)(void *context, const char *bytes, size_t length), void *context) {
  iso_parquet_column column = {0};
  reader r = {.input = input, .column = &column, .value = value, .context = context};
  iso_arena *arena = iso_arena_create();
  iso_status status = arena ? iso_parquet_column_find(arena, input, field, &column)
                            : iso_fail(ISO_ERR_MEMORY, "data: no memory to read \"%s\"", input->path);
  for (int64_t g = 0; g < column.chunk_count && status == ISO_OK; g++) {
    r.group = g;
    status = read_chunk(&r, &column.chunks[g]);
  }
  free(r.window.bytes);
  free(r.page.bytes);
  free(r.dictionary_bytes.bytes);
  free(r.dictionary);
  iso_arena_destroy(&arena);
  return status;
}
