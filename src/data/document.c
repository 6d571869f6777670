/* SPDX-License-Identifier: Apache-2.0
 *
 * document: one document to tokens.
 *
 * Text must be well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF). Bad text is
 * decided by content alone, so that every run and every resume leaves out the same documents.
 *
 * Invariants
 *  1. A good document gives its tokens and one EOS; a bad one gives nothing and is reported by file, number and byte.
 *  2. Nothing is replaced or repaired.
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

void iso_document_name_put(const iso_document_name *name, int64_t byte, iso_string *out) {
  iso_string_printf(out, "\"%s\", document %lld", name->path, (long long)name->index);
  if (byte >= 0) iso_string_printf(out, " (byte %lld of %s)", (long long)byte, name->in ? name->in : "the file");
}

static iso_status tell(const iso_document_name *name, const iso_bad *why, bool skip) {
  const char *skip_by = name->skip_by ? name->skip_by : "data.on_bad: skip";
  iso_string where = {0};
  iso_document_name_put(name, why->byte, &where);
  iso_status status = ISO_OK;
  if (!skip)
    status = iso_fail(ISO_ERR_FORMAT, "data: %s: %s; correct it%s%s", where.data, why->cause,
                      *skip_by ? ", or leave such documents out with " : "", skip_by);
  else
    iso_warn("data: %s: %s; the document is left out", where.data, why->cause);
  iso_string_fini(&where);
  return status;
}

iso_status iso_document_tell(const iso_source *source, int64_t index, const iso_bad *why, bool skip) {
  const iso_document_name name = iso_document_name_of(source, index);
  return tell(&name, why, skip);
}

/* The cause is kept in loaded->why, and logged here: FORMAT, or a warning with `skip`. `at`: byte of the document, -1:
 * no single one. */
static iso_status bad_document(iso_loaded *loaded, const iso_document_name *name, const char *cause, int64_t at,
                               bool skip, bool warn) {
  loaded->bad = true;
  loaded->why.is = true;
  loaded->why.byte = at < 0 ? -1 : name->offset + at;
  snprintf(loaded->why.cause, sizeof loaded->why.cause, "%s", cause);
  return skip && !warn ? ISO_OK : tell(name, &loaded->why, skip);
}

/* A sink: the document's own ids. */
static iso_status append(void *context, const int32_t *ids, size_t count) {
  iso_loaded *loaded = context;
  const size_t have = (size_t)loaded->count, need = have + count;
  if (need > loaded->capacity) {
    const size_t wanted = need + need / 4;
    int32_t *grown = realloc(loaded->ids, wanted * sizeof *grown);
    if (!grown) return iso_fail(ISO_ERR_MEMORY, "data: no memory for the %zu tokens of a document", need);
    loaded->ids = grown;
    loaded->capacity = wanted;
  }
  if (count) memcpy(loaded->ids + have, ids, count * sizeof *ids);
  loaded->count = (int64_t)need;
  return ISO_OK;
}

/* *bad when it is no text, or one that the vocabulary cannot represent; its byte counts from the text. */
static iso_status encode(iso_loaded *loaded, iso_encoder *encoder, const char *text, size_t length, bool parse_special,
                         int32_t eos, iso_bad *bad) {
  const size_t valid = iso_utf8_valid_prefix(text, length);
  bad->is = valid < length;
  if (bad->is) {
    bad->byte = (int64_t)valid;
    snprintf(bad->cause, sizeof bad->cause, "not valid UTF-8");
    return ISO_OK;
  }
  const iso_ids_sink own = {append, loaded}, *sink = loaded->sink ? loaded->sink : &own;
  const iso_long_text whole = {.text = text, .length = length};
  size_t count = 0, unused;
  loaded->count = 0;
  const iso_status status = loaded->crew
                                ? iso_crew_encode(loaded->crew, encoder, &whole, parse_special, sink, &count, &unused)
                                : iso_encode_to(encoder, text, length, parse_special, sink, &count);
  if (status == ISO_ERR_MISMATCH) {
    *bad = (iso_bad){.is = true};
    snprintf(bad->cause, sizeof bad->cause, "%s", iso_last_error());
    return ISO_OK;
  }
  ISO_TRY(status);
  ISO_TRY(sink->put(sink->context, &eos, 1));
  loaded->count = (int64_t)count + 1;
  loaded->text_bytes = (int64_t)length;
  return ISO_OK;
}

iso_status iso_document_encode(iso_loaded *loaded, iso_encoder *encoder, const char *text, size_t length,
                               bool parse_special, int32_t eos, const iso_document_name *name, bool skip, bool warn) {
  iso_bad bad;
  loaded->count = loaded->text_bytes = 0;
  loaded->bad = false;
  ISO_TRY(encode(loaded, encoder, text, length, parse_special, eos, &bad));
  return bad.is ? bad_document(loaded, name, bad.cause, bad.byte, skip, warn) : ISO_OK;
}

iso_document_name iso_document_name_of(const iso_source *source, int64_t index) {
  iso_document place = iso_source_document(source, index);
  const iso_data_file *file = iso_source_file(source, place.file);
  return (iso_document_name){.path = file->path,
                             .index = index,
                             .offset = place.offset,
                             .skip_by = iso_source_options_of(source)->skip_by,
                             .in = file->unpacked ? "what it unpacks to" : NULL};
}

/* Bytes that the ids decode to, without the EOS at the end. */
static int64_t text_bytes(const iso_tokenizer *tokenizer, const int32_t *ids, int64_t count) {
  int64_t bytes = 0;
  for (int64_t i = 0; i + 1 < count; i++) {
    size_t length = 0;
    if (iso_tokenizer_bytes(tokenizer, ids[i], &length)) bytes += (int64_t)length;
  }
  return bytes;
}

/* Tokens and bytes of text; or *bad, with a byte of the file, or of the document's text when *in_file is false. */
static iso_status load(iso_loaded *loaded, const iso_source *source, int64_t index, const char *stored,
                       iso_encoder *encoder, int32_t eos, iso_bad *bad, bool *in_file) {
  const iso_source_options *options = iso_source_options_of(source);
  const size_t length = (size_t)iso_source_length(source, index);
  const char *text = NULL;
  size_t bytes = 0;
  *in_file = true;
  if (iso_source_content(source) == ISO_CONTENT_TOKENS) {
    ISO_TRY(iso_source_tokens(source, index, stored, length, &loaded->ids, &loaded->capacity, &loaded->count, bad));
  } else {
    ISO_TRY(iso_source_text(source, index, stored, length, &loaded->scratch, &text, &bytes, bad));
  }
  if (bad->is) return ISO_OK;
  *in_file = false;
  if (text) return encode(loaded, encoder, text, bytes, options->parse_special, eos, bad);
  loaded->text_bytes = text_bytes(options->tokenizer, loaded->ids, loaded->count);
  return ISO_OK;
}

iso_status iso_document_load(iso_loaded *loaded, const iso_source *source, int64_t index, const char *stored,
                             iso_encoder *encoder, int32_t eos, bool skip, bool warn) {
  iso_bad bad;
  bool in_file;
  loaded->count = loaded->text_bytes = 0;
  ISO_TRY(load(loaded, source, index, stored, encoder, eos, &bad, &in_file));
  loaded->bad = bad.is;
  if (!bad.is) return ISO_OK;
  const iso_document_name name = iso_document_name_of(source, index);
  loaded->count = 0;
  return bad_document(loaded, &name, bad.cause, bad.byte < 0 ? -1 : bad.byte - (in_file ? name.offset : 0), skip, warn);
}

/* What a document is read from, in parts. */
typedef struct part_reader {
  const iso_source *source;
  iso_document place;
} part_reader;

static iso_status read_part(void *context, size_t offset, size_t bytes, char *to) {
  const part_reader *r = context;
  return iso_source_read(r->source, r->place.file, r->place.offset + (int64_t)offset, (int64_t)bytes, to);
}

iso_status iso_document_stream(iso_loaded *loaded, const iso_source *source, int64_t index, iso_encoder *encoder,
                               int32_t eos, bool skip, bool warn) {
  part_reader reader = {source, iso_source_document(source, index)};
  const iso_long_text text = {.length = (size_t)reader.place.length, .read = read_part, .context = &reader};
  size_t count, valid;
  loaded->count = loaded->text_bytes = 0;
  loaded->bad = false;
  ISO_TRY(iso_crew_encode(loaded->crew, encoder, &text, iso_source_options_of(source)->parse_special, loaded->sink,
                          &count, &valid));
  if (valid < text.length) {
    const iso_document_name name = iso_document_name_of(source, index);
    return bad_document(loaded, &name, "not valid UTF-8", (int64_t)valid, skip, warn);
  }
  ISO_TRY(loaded->sink->put(loaded->sink->context, &eos, 1));
  loaded->count = (int64_t)count + 1;
  loaded->text_bytes = (int64_t)text.length;
  return ISO_OK;
}

iso_status iso_document_text(iso_loaded *loaded, const iso_source *source, int64_t index, const char *stored, bool skip,
                             bool warn, const char **text, size_t *bytes) {
  const iso_document_name name = iso_document_name_of(source, index);
  const size_t length = (size_t)iso_source_length(source, index);
  iso_bad bad;
  loaded->bad = false;
  ISO_TRY(iso_source_text(source, index, stored, length, &loaded->scratch, text, bytes, &bad));
  if (bad.is) return bad_document(loaded, &name, bad.cause, bad.byte < 0 ? -1 : bad.byte - name.offset, skip, warn);
  const size_t valid = iso_utf8_valid_prefix(*text, *bytes);
  return valid == *bytes ? ISO_OK : bad_document(loaded, &name, "not valid UTF-8", (int64_t)valid, skip, warn);
}

iso_status iso_document_check(iso_loaded *loaded, const iso_source *source, int64_t index, const char *stored) {
  const size_t length = (size_t)iso_source_length(source, index);
  const char *text;
  size_t bytes;
  iso_bad bad;
  if (iso_source_content(source) == ISO_CONTENT_TEXT)
    return iso_document_text(loaded, source, index, stored, false, true, &text, &bytes);
  ISO_TRY(iso_source_tokens(source, index, stored, length, &loaded->ids, &loaded->capacity, &loaded->count, &bad));
  if (!bad.is) return ISO_OK;
  const iso_document_name name = iso_document_name_of(source, index);
  return bad_document(loaded, &name, bad.cause, bad.byte < 0 ? -1 : bad.byte - name.offset, false, true);
}

void iso_loaded_fini(iso_loaded *loaded) {
  free(loaded->ids);
  iso_string_fini(&loaded->scratch);
  *loaded = (iso_loaded){0};
}
