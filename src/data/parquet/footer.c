/* SPDX-License-Identifier: Apache-2.0
 *
 * footer: a Parquet file's last bytes, which say where everything is.
 *
 *   "PAR1" … column chunks … footer (a FileMetaData in Thrift), u32 its length, "PAR1"
 *
 * The schema is a tree written depth first; its leaves are the columns. A column's name is the names on the way to it,
 * with dots between. A row group has one chunk for each column, in the same order.
 *
 * Invariants
 *  1. A chunk lies between the first magic and the footer; row groups have as many rows as the file says.
 *  2. Encrypted files and columns, columns that are repeated, and chunks in other files are refused by name.
 */
#include "data/parquet/parquet.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LEVELS = 64, BYTE_ARRAY = 6, OPTIONAL = 1, REPEATED = 2, DECIMAL = 5, MAX_LISTED = 12 };
#define MAX_ROWS (INT64_C(1) << 48)

typedef struct element {
  const uint8_t *name;
  size_t name_length;
  int type; /* -1: a group */
  int repetition, converted;
  int32_t children;
} element;

typedef struct footer {
  const iso_parquet_input *input;
  iso_arena *arena;
  const char *field;
  int64_t begin; /* of the footer in the file */
  bool encrypted;
  int64_t rows;
  element *elements;
  int64_t element_count;
  /* the column */
  iso_string name;  /* of the element being looked at */
  iso_string names; /* of the string columns, for the message */
  int listed;
  bool found;
  int64_t leaf, leaves; /* number of the column's leaf; leaves seen */
  int max_definition;
  bool failed;
} footer;

static iso_status malformed(const footer *f, const char *what) {
  return iso_fail(ISO_ERR_FORMAT, "data: \"%s\": the footer of the Parquet file is damaged: %s", f->input->path, what);
}

/* ---- schema ---- */

static void read_element(iso_thrift *t, element *out) {
  iso_thrift_field field = {0};
  *out = (element){.type = -1, .converted = -1};
  while (iso_thrift_next(t, &field)) {
    switch (field.id) {
    case 1:
      out->type = iso_thrift_i32(t, field.type);
      break;
    case 3:
      out->repetition = iso_thrift_i32(t, field.type);
      break;
    case 4:
      out->name = iso_thrift_binary(t, field.type, &out->name_length);
      break;
    case 5:
      out->children = iso_thrift_i32(t, field.type);
      break;
    case 6:
      out->converted = iso_thrift_i32(t, field.type);
      break;
    default:
      iso_thrift_skip(t, field.type);
    }
  }
  if (out->children > 0) out->type = -1;
}

static iso_status read_schema(footer *f, iso_thrift *t, int type) {
  int64_t count = iso_thrift_list(t, type, ISO_THRIFT_STRUCT);
  f->elements = iso_arena_alloc(f->arena, (size_t)(count + 1) * sizeof *f->elements);
  if (!f->elements) return iso_fail(ISO_ERR_MEMORY, "data: no memory for the schema of \"%s\"", f->input->path);
  for (int64_t i = 0; i < count && !t->failed; i++) read_element(t, &f->elements[i]);
  f->element_count = count;
  return ISO_OK;
}

static iso_status check_column(footer *f, const element *e, int definition, int repetition) {
  static const char *const types[] = {"BOOLEAN", "INT32",  "INT64", "INT96",
                                      "FLOAT",   "DOUBLE", "",      "FIXED_LEN_BYTE_ARRAY"};
  const char *path = f->input->path;
  f->found = true;
  f->leaf = f->leaves;
  f->max_definition = definition;
  if (e->type < 0)
    return iso_fail(ISO_ERR_CONFIG, "data: \"%s\": \"%s\" is a group of columns; name one, as in \"%s.NAME\"", path,
                    f->field, f->field);
  if (repetition)
    return iso_fail(ISO_ERR_UNSUPPORTED,
                    "data: \"%s\": column \"%s\" is repeated (a list); only columns with one value "
                    "a row are read",
                    path, f->field);
  if (e->type != BYTE_ARRAY || e->converted == DECIMAL)
    return iso_fail(ISO_ERR_UNSUPPORTED, "data: \"%s\": column \"%s\" holds %s, not strings", path, f->field,
                    e->converted == DECIMAL                              ? "decimals"
                    : e->type >= 0 && (size_t)e->type < ISO_COUNT(types) ? types[e->type]
                                                                         : "values of an unknown type");
  return ISO_OK;
}

static void list_name(footer *f, const element *e, int repetition) {
  if (e->type != BYTE_ARRAY || repetition || f->listed == MAX_LISTED) return;
  iso_string_printf(&f->names, "%s\"%s\"", f->listed++ ? ", " : "", f->name.data);
}

/* Visits element *at and those below it. */
static iso_status visit(footer *f, int64_t *at, int depth, int definition, int repetition) {
  if (*at >= f->element_count) return malformed(f, "the schema ends early");
  if (depth > MAX_LEVELS) return malformed(f, "the schema is nested too deep");
  const element *e = &f->elements[(*at)++];
  const size_t length = f->name.length;
  if (e->repetition < 0 || e->repetition > REPEATED || e->children < 0) return malformed(f, "a schema element is none");
  if (depth > 0) {
    definition += e->repetition != 0;
    repetition += e->repetition == REPEATED;
    if (length) iso_string_append(&f->name, ".", 1);
    iso_string_append(&f->name, e->name, e->name_length);
    if (iso_string_failed(&f->name)) return ISO_ERR_MEMORY; /* logged */
    if (strlen(f->field) == f->name.length && memcmp(f->field, f->name.data, f->name.length) == 0) {
      if (f->found) return malformed(f, "it has the column's name twice");
      ISO_TRY(check_column(f, e, definition, repetition));
    }
    list_name(f, e, repetition);
  }
  if (e->type >= 0) f->leaves++;
  for (int32_t c = 0; c < e->children; c++) ISO_TRY(visit(f, at, depth + 1, definition, repetition));
  if (depth > 0) {
    f->name.length = length;
    f->name.data[length] = '\0';
  }
  return ISO_OK;
}

static iso_status find_leaf(footer *f) {
  int64_t at = 0;
  iso_string_append(&f->name, "", 0);
  iso_string_append(&f->names, "", 0);
  ISO_TRY(visit(f, &at, 0, 0, 0));
  if (at != f->element_count) return malformed(f, "the schema has more elements than its tree");
  if (f->found) return ISO_OK;
  return iso_fail(ISO_ERR_CONFIG, "data: \"%s\" has no column \"%s\"; its columns of strings: %s; set %s",
                  f->input->path, f->field, f->names.length ? f->names.data : "none",
                  f->input->set_field ? f->input->set_field : "the source's field");
}

/* ---- row groups ---- */

typedef struct chunk {
  int64_t dictionary, data, bytes, values;
  int codec, type;
  bool elsewhere, encrypted, has_meta;
} chunk;

static void read_chunk_meta(iso_thrift *t, chunk *out) {
  iso_thrift_field field = {0};
  out->has_meta = true;
  while (iso_thrift_next(t, &field)) {
    switch (field.id) {
    case 1:
      out->type = iso_thrift_i32(t, field.type);
      break;
    case 4:
      out->codec = iso_thrift_i32(t, field.type);
      break;
    case 5:
      out->values = iso_thrift_int(t, field.type);
      break;
    case 7:
      out->bytes = iso_thrift_int(t, field.type);
      break;
    case 9:
      out->data = iso_thrift_int(t, field.type);
      break;
    case 11:
      out->dictionary = iso_thrift_int(t, field.type);
      break;
    default:
      iso_thrift_skip(t, field.type);
    }
  }
}

static void read_chunk(iso_thrift *t, chunk *out) {
  iso_thrift_field field = {0};
  size_t length;
  *out = (chunk){.dictionary = -1};
  while (iso_thrift_next(t, &field)) {
    if (field.id == 1) {
      (void)iso_thrift_binary(t, field.type, &length);
      out->elsewhere = length > 0;
    } else if (field.id == 3 && field.type == ISO_THRIFT_STRUCT) {
      read_chunk_meta(t, out);
    } else {
      out->encrypted = out->encrypted || field.id == 8 || field.id == 9;
      iso_thrift_skip(t, field.type);
    }
  }
}

static iso_status check_chunk(const footer *f, const chunk *c, int64_t rows, iso_parquet_chunk *out) {
  const char *path = f->input->path;
  if (c->encrypted)
    return iso_fail(ISO_ERR_UNSUPPORTED, "data: \"%s\": column \"%s\" is encrypted; write it anew without", path,
                    f->field);
  if (c->elsewhere)
    return iso_fail(ISO_ERR_UNSUPPORTED, "data: \"%s\": column \"%s\" lies in another file, which is not followed",
                    path, f->field);
  if (!c->has_meta) return malformed(f, "a column has no description");
  if (c->type != BYTE_ARRAY) return malformed(f, "a row group's column is of another type than the schema says");
  if (!iso_parquet_codec_name(c->codec)) return malformed(f, "a codec's number is none");
  if (c->values != rows) return malformed(f, "a column has more or fewer values than its row group has rows");
  *out = (iso_parquet_chunk){rows, f->begin, f->begin, 0, c->codec};
  if (rows == 0) return ISO_OK; /* writers leave the rest of it unset then */
  int64_t begin = c->data;
  if (c->dictionary > 0 && c->dictionary < begin) begin = c->dictionary;
  if (begin < 4 || begin > f->begin || c->bytes < 0 || c->bytes > f->begin - begin)
    return malformed(f, "a column does not lie within the file");
  *out = (iso_parquet_chunk){rows, begin, begin + c->bytes, c->values, c->codec};
  return ISO_OK;
}

static iso_status read_group(footer *f, iso_thrift *t, iso_parquet_chunk *out) {
  iso_thrift_field field = {0};
  chunk wanted = {0};
  int64_t rows = -1, columns = -1;
  while (iso_thrift_next(t, &field)) {
    if (field.id == 1) {
      columns = iso_thrift_list(t, field.type, ISO_THRIFT_STRUCT);
      for (int64_t i = 0; i < columns && !t->failed; i++) {
        chunk c;
        read_chunk(t, &c);
        if (i == f->leaf) wanted = c;
      }
    } else if (field.id == 3) {
      rows = iso_thrift_int(t, field.type);
    } else {
      iso_thrift_skip(t, field.type);
    }
  }
  if (t->failed) return malformed(f, "a row group cannot be read");
  if (columns != f->leaves) return malformed(f, "a row group has more or fewer columns than the schema");
  if (rows < 0 || rows > f->rows) return malformed(f, "a row group has more rows than the file, or none");
  return check_chunk(f, &wanted, rows, out);
}

static iso_status read_groups(footer *f, iso_thrift t, int type, iso_parquet_column *out) {
  const int64_t count = iso_thrift_list(&t, type, ISO_THRIFT_STRUCT);
  int64_t rows = 0;
  out->max_definition = f->max_definition;
  out->chunks = iso_arena_alloc(f->arena, (size_t)(count + 1) * sizeof *out->chunks);
  if (!out->chunks) return iso_fail(ISO_ERR_MEMORY, "data: no memory for the row groups of \"%s\"", f->input->path);
  for (int64_t i = 0; i < count; i++) {
    ISO_TRY(read_group(f, &t, &out->chunks[i]));
    rows += out->chunks[i].rows;
    if (rows > f->rows) break;
  }
  if (rows != f->rows) return malformed(f, "its row groups have more or fewer rows than the file");
  out->chunk_count = count;
  return ISO_OK;
}

/* ---- the footer ---- */

static iso_status parse(footer *f, const uint8_t *bytes, size_t length, iso_parquet_column *out) {
  iso_thrift t = {.at = bytes, .end = bytes + length}, groups = {0};
  iso_thrift_field field = {0};
  int groups_type = 0;
  f->rows = -1;
  while (iso_thrift_next(&t, &field)) {
    if (field.id == 2 && !f->elements) {
      ISO_TRY(read_schema(f, &t, field.type));
    } else if (field.id == 3) {
      f->rows = iso_thrift_int(&t, field.type);
    } else if (field.id == 4) { /* read when the column is known */
      groups = t;
      groups_type = field.type;
      iso_thrift_skip(&t, field.type);
    } else {
      iso_thrift_skip(&t, field.type);
    }
  }
  if (t.failed) return malformed(f, "it cannot be read");
  if (!f->elements || f->element_count == 0 || f->rows < 0 || f->rows > MAX_ROWS || !groups_type)
    return malformed(f, "it lacks a part, or says that it has too many rows");
  ISO_TRY(find_leaf(f));
  return read_groups(f, groups, groups_type, out);
}

static iso_status read_footer(footer *f, uint8_t **bytes, size_t *length) {
  const iso_parquet_input *in = f->input;
  uint8_t first[4], last[8];
  if (in->bytes < 12)
    return iso_fail(ISO_ERR_FORMAT, "data: \"%s\" has %lld bytes, too few for a Parquet file", in->path,
                    (long long)in->bytes);
  ISO_TRY(in->read(in->context, 0, 4, first));
  ISO_TRY(in->read(in->context, in->bytes - 8, 8, last));
  if (memcmp(last + 4, "PARE", 4) == 0)
    return iso_fail(ISO_ERR_UNSUPPORTED, "data: \"%s\" is an encrypted Parquet file; write it anew without", in->path);
  if (memcmp(first, "PAR1", 4) != 0 || memcmp(last + 4, "PAR1", 4) != 0)
    return iso_fail(ISO_ERR_FORMAT, "data: \"%s\" is no Parquet file, or is cut: it does not begin and end with PAR1",
                    in->path);
  const int64_t size = (int64_t)last[0] | (int64_t)last[1] << 8 | (int64_t)last[2] << 16 | (int64_t)last[3] << 24;
  if (size > in->bytes - 12) return malformed(f, "it is longer than the file");
  f->begin = in->bytes - 8 - size;
  *length = (size_t)size;
  *bytes = malloc((size_t)size + 1);
  if (!*bytes) return iso_fail(ISO_ERR_MEMORY, "data: no memory for the footer of \"%s\"", in->path);
  return in->read(in->context, f->begin, size, *bytes);
}

iso_status iso_parquet_column_find(iso_arena *arena, const iso_parquet_input *input, const char *field,
                                   iso_parquet_column *out) {
  footer f = {.input = input, .arena = arena, .field = field};
  uint8_t *bytes = NULL;
  size_t length = 0;
  iso_status status = read_footer(&f, &bytes, &length);
  if (status == ISO_OK) status = parse(&f, bytes, length, out);
  free(bytes);
  iso_string_fini(&f.name);
  iso_string_fini(&f.names);
  return status;
}
