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

/* Bytes of the well-formed character at `s` (of `left` >= 1 bytes), 0 when it is ill-formed. */
static size_t character_length(const unsigned char *s, size_t left) {
  unsigned char lead = s[0];
  if (lead < 0x80) return 1;
  size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || left < length) return 0;
  for (size_t i = 1; i < length; i++)
    if ((s[i] & 0xC0) != 0x80) return 0;
  if ((lead == 0xE0 && s[1] < 0xA0) || (lead == 0xED && s[1] > 0x9F)) return 0; /* overlong; surrogates */
  if ((lead == 0xF0 && s[1] < 0x90) || (lead == 0xF4 && s[1] > 0x8F)) return 0; /* overlong; above U+10FFFF */
  return length;
}

int64_t iso_utf8_bad_position(const char *text, size_t length) {
  const unsigned char *s = (const unsigned char *)text;
  size_t i = 0;
  while (i < length) {
    uint64_t word, words[4];
    if (length - i >= sizeof words) {
      memcpy(words, s + i, sizeof words);
      if (((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080u) == 0) {
        i += sizeof words;
        continue;
      }
    }
    if (length - i >= sizeof word) {
      memcpy(&word, s + i, sizeof word);
      if ((word & 0x8080808080808080u) == 0) {
        i += sizeof word;
        continue;
      }
    }
    size_t step = character_length(s + i, length - i);
    if (step == 0) return (int64_t)i;
    i += step;
  }
  return -1;
}

/* The cause is kept in loaded->why, and logged here: FORMAT, or a warning with `skip`. `at`: byte of the document, -1:
 * no single one. */
static iso_status bad_document(iso_loaded *loaded, const iso_document_name *name, const char *cause, int64_t at,
                               bool skip, bool warn) {
  loaded->bad = true;
  loaded->why.is = true;
  loaded->why.byte = at < 0 ? -1 : name->offset + at;
  snprintf(loaded->why.cause, sizeof loaded->why.cause, "%s", cause);
  iso_string where = {0};
  iso_string_printf(&where, "\"%s\", document %lld", name->path, (long long)name->index);
  if (at >= 0)
    iso_string_printf(&where, " (byte %lld of %s)", (long long)(name->offset + at), name->in ? name->in : "the file");
  iso_status status = ISO_OK;
  if (!skip)
    status = iso_fail(ISO_ERR_FORMAT, "data: %s: %s; correct it%s", where.data, cause,
                      name->whole ? "" : ", or leave such documents out with data.on_bad: skip");
  else if (warn)
    iso_warn("data: %s: %s; the document is left out", where.data, cause);
  iso_string_fini(&where);
  return status;
}

static iso_status reserve(iso_loaded *loaded, size_t count, const iso_document_name *name) {
  if (count <= loaded->capacity) return ISO_OK;
  size_t wanted = count + count / 4;
  int32_t *grown = realloc(loaded->ids, wanted * sizeof *grown);
  if (!grown)
    return iso_fail(ISO_ERR_MEMORY, "data: no memory for the %zu tokens of document %lld of \"%s\"", count,
                    (long long)name->index, name->path);
  loaded->ids = grown;
  loaded->capacity = wanted;
  return ISO_OK;
}

iso_status iso_document_encode(iso_loaded *loaded, iso_encoder *encoder, const char *text, size_t length,
                               bool parse_special, int32_t eos, const iso_document_name *name, bool skip, bool warn) {
  loaded->count = loaded->text_bytes = 0;
  loaded->bad = false;
  int64_t position = iso_utf8_bad_position(text, length);
  if (position >= 0) return bad_document(loaded, name, "not valid UTF-8", position, skip, warn);
  const int32_t *encoded = NULL;
  size_t n = 0;
  iso_status status = iso_encode(encoder, text, length, parse_special, false, &encoded, &n);
  if (status == ISO_ERR_FORMAT) { /* text that the vocabulary cannot represent */
    char cause[256];
    snprintf(cause, sizeof cause, "%s", iso_last_error());
    return bad_document(loaded, name, cause, 0, skip, warn);
  }
  ISO_TRY(status);
  ISO_TRY(reserve(loaded, n + 1, name));
  if (n) memcpy(loaded->ids, encoded, n * sizeof *loaded->ids);
  loaded->ids[n] = eos;
  loaded->count = (int64_t)n + 1;
  loaded->text_bytes = (int64_t)length;
  return ISO_OK;
}

iso_document_name iso_document_name_of(const iso_source *source, int64_t index) {
  iso_document place = iso_source_document(source, index);
  const iso_data_file *file = iso_source_file(source, place.file);
  return (iso_document_name){
      .path = file->path, .index = index, .offset = place.offset, .in = file->unpacked ? "what it unpacks to" : NULL};
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

iso_status iso_document_load(iso_loaded *loaded, const iso_source *source, int64_t index, const char *stored,
                             iso_encoder *encoder, int32_t eos, bool skip, bool warn) {
  const iso_document_name name = iso_document_name_of(source, index);
  const iso_source_options *options = iso_source_options_of(source);
  const size_t length = (size_t)iso_source_document(source, index).length;
  const char *text = NULL;
  size_t bytes = 0;
  iso_bad bad;
  loaded->count = loaded->text_bytes = 0;
  if (iso_source_content(source) == ISO_CONTENT_TOKENS)
    ISO_TRY(iso_source_tokens(source, index, stored, length, &loaded->ids, &loaded->capacity, &loaded->count, &bad));
  else
    ISO_TRY(iso_source_text(source, index, stored, length, &loaded->scratch, &text, &bytes, &bad));
  loaded->bad = bad.is;
  if (bad.is) {
    loaded->count = 0;
    return bad_document(loaded, &name, bad.cause, bad.byte < 0 ? -1 : bad.byte - name.offset, skip, warn);
  }
  if (text) return iso_document_encode(loaded, encoder, text, bytes, options->parse_special, eos, &name, skip, warn);
  loaded->text_bytes = text_bytes(options->tokenizer, loaded->ids, loaded->count);
  return ISO_OK;
}

iso_status iso_document_check(iso_loaded *loaded, const iso_source *source, int64_t index, const char *stored) {
  const iso_document_name name = iso_document_name_of(source, index);
  const size_t length = (size_t)iso_source_document(source, index).length;
  const char *text = NULL;
  size_t bytes = 0;
  iso_bad bad;
  if (iso_source_content(source) == ISO_CONTENT_TOKENS)
    ISO_TRY(iso_source_tokens(source, index, stored, length, &loaded->ids, &loaded->capacity, &loaded->count, &bad));
  else
    ISO_TRY(iso_source_text(source, index, stored, length, &loaded->scratch, &text, &bytes, &bad));
  if (bad.is) return bad_document(loaded, &name, bad.cause, bad.byte < 0 ? -1 : bad.byte - name.offset, false, true);
  const int64_t position = text ? iso_utf8_bad_position(text, bytes) : -1;
  return position < 0 ? ISO_OK : bad_document(loaded, &name, "not valid UTF-8", position, false, true);
}

void iso_loaded_fini(iso_loaded *loaded) {
  free(loaded->ids);
  iso_string_fini(&loaded->scratch);
  *loaded = (iso_loaded){0};
}
