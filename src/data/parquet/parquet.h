/* SPDX-License-Identifier: Apache-2.0
 *
 * parquet: one string column of a Parquet file, row by row.
 *
 *   bytes ── thrift ──> footer (schema, row groups) ── column (pages) ── levels (runs and packed bits) ──> values
 *
 * What is read: BYTE_ARRAY columns that are not repeated; data pages of both versions; PLAIN and dictionary encodings;
 * uncompressed, Snappy, gzip and Zstandard. All else is refused by name.
 *
 * Invariants
 *  1. Nothing is read through a number from the file that was not checked against the file's size or the buffer's.
 *  2. Each row of each row group gives one value, in order; a count that does not fit is an error.
 *  3. Memory: the footer, a dictionary, and one page, compressed and not.
 *
 * Format from apache/parquet-format (README.md, Encodings.md, parquet.thrift) and Thrift's compact protocol.
 */
#ifndef ISO_DATA_PARQUET_H
#define ISO_DATA_PARQUET_H

#include "base/base.h"

/* ---- column.c: the way in ------------------------------------------------------------------------------ */

/* Where the file is: read is asked for ranges within `bytes` only. */
typedef struct iso_parquet_input {
  const char *path; /* in messages */
  int64_t bytes;
  iso_status (*read)(void *context, int64_t offset, int64_t length, void *buffer);
  void *context;
  const char *set_field; /* in messages: what names the column; NULL: the source's field */
  int64_t *sound;        /* NULL, or takes the values given so far that are of whole pages */
} iso_parquet_input;
/* Gives every value of the column named by `field` (dots between the names of nested groups) to `value`, in order; NULL
 * stands for null. FORMAT, UNSUPPORTED, CONFIG when there is no such column. */
iso_status iso_parquet_read(const iso_parquet_input *input, const char *field,
                            iso_status (*value)(void *context, const char *bytes, size_t length),
                            void *context) ISO_MUST_CHECK;

/* ---- thrift.c: Thrift's compact protocol ---------------------------------------------------------------- */

enum {
  ISO_THRIFT_STOP = 0,
  ISO_THRIFT_TRUE = 1,
  ISO_THRIFT_FALSE = 2,
  ISO_THRIFT_I8 = 3,
  ISO_THRIFT_I16 = 4,
  ISO_THRIFT_I32 = 5,
  ISO_THRIFT_I64 = 6,
  ISO_THRIFT_DOUBLE = 7,
  ISO_THRIFT_BINARY = 8,
  ISO_THRIFT_LIST = 9,
  ISO_THRIFT_SET = 10,
  ISO_THRIFT_MAP = 11,
  ISO_THRIFT_STRUCT = 12,
  ISO_THRIFT_UUID = 13
};
/* Once failed it stays failed, and gives zeros. */
typedef struct iso_thrift {
  const uint8_t *at, *end;
  bool failed, short_of_bytes; /* short: it would perhaps not have failed with more bytes */
} iso_thrift;
typedef struct iso_thrift_field {
  int id, type; /* before the first: zeros */
} iso_thrift_field;
/* The next field of the struct being read; false at its end, or failed. */
bool iso_thrift_next(iso_thrift *thrift, iso_thrift_field *field);
uint64_t iso_thrift_varint(iso_thrift *thrift);
/* A whole number of a field; fails when its type is another. */
int64_t iso_thrift_int(iso_thrift *thrift, int type);
int32_t iso_thrift_i32(iso_thrift *thrift, int type); /* and when it has more than 32 bits */
const uint8_t *iso_thrift_binary(iso_thrift *thrift, int type, size_t *length);
/* Entries of a list of `element`s. */
int64_t iso_thrift_list(iso_thrift *thrift, int type, int element);
void iso_thrift_skip(iso_thrift *thrift, int type);

/* ---- footer.c: schema and row groups ---------------------------------------------------------------------- */

typedef struct iso_parquet_chunk {
  int64_t rows;       /* of its row group */
  int64_t begin, end; /* in the file */
  int64_t values;     /* nulls counted */
  int codec;
} iso_parquet_chunk;
typedef struct iso_parquet_column {
  int max_definition; /* a value is not null where its level is this */
  iso_parquet_chunk *chunks;
  int64_t chunk_count;
} iso_parquet_column;
/* Reads the footer and finds the column. The result is in the arena. */
iso_status iso_parquet_column_find(iso_arena *arena, const iso_parquet_input *input, const char *field,
                                   iso_parquet_column *out) ISO_MUST_CHECK;

/* ---- page.c: one page ---------------------------------------------------------------------------------------- */

enum { ISO_PARQUET_DATA = 0, ISO_PARQUET_INDEX = 1, ISO_PARQUET_DICTIONARY = 2, ISO_PARQUET_DATA_V2 = 3 };
typedef struct iso_parquet_page {
  int type;
  int32_t bytes, stored_bytes; /* uncompressed; in the file */
  bool has_crc;
  uint32_t crc;
  int32_t values, nulls, rows; /* nulls, rows: of version 2 */
  int encoding, level_encoding;
  int32_t definition_bytes, repetition_bytes; /* of version 2 */
  bool compressed;
} iso_parquet_page;
/* Parses the header at `from`; *header_bytes: its length. False with *more set: give more bytes, if there are. */
bool iso_parquet_page_parse(const uint8_t *from, size_t bytes, iso_parquet_page *out, size_t *header_bytes, bool *more);
/* `stored` to exactly `to_bytes`. `what` begins messages. */
iso_status iso_parquet_decompress(const char *what, int codec, const uint8_t *stored, size_t bytes, uint8_t *to,
                                  size_t to_bytes) ISO_MUST_CHECK;
const char *iso_parquet_codec_name(int codec); /* NULL: not known */

/* A sequence of numbers as runs and packed bits (RLE/bit-packing hybrid). */
typedef struct iso_parquet_runs {
  const uint8_t *at, *end;
  int width;         /* bits, 0 to 32 */
  uint32_t value;    /* of the run */
  uint64_t run_left; /* repetitions of `value` */
  uint64_t packed_left;
  int bit; /* of *at, in a packed stretch */
} iso_parquet_runs;
/* The next number; false when the bytes end or make no sense. */
bool iso_parquet_runs_next(iso_parquet_runs *runs, uint32_t *out);

#endif
