/* SPDX-License-Identifier: Apache-2.0
 *
 * validation: held-out text, in order, as windows of the training length.
 *
 * The documents form one stream of tokens that the packer cuts exactly as it cuts a lane's: windows of T inputs, the
 * next one T later, under the same mask. The text is a corpus's validation part, documents of a
 * source, or one text given whole.
 *
 * Invariants
 *  1. Every token of the chosen documents is a target once, but those that `unpredicted` counts.
 *  2. After the last window, the totals are exact: bytes of the documents, tokens with EOS, unpredicted tokens. Before
 *     it they cover every document begun, and the window may have begun one more than it shows.
 *  3. `max_bytes` ends the stream after a whole document, never inside one; at least one document is taken.
 *  4. Over all evaluations of a run's start, each bad document is warned of once.
 *
 * It computes no loss.
 */
#include "data/data.h"

#include <stdlib.h>
#include <string.h>

struct iso_validation {
  const iso_corpus *corpus; /* or NULL: a source, or a text given whole */
  iso_scan scan;            /* of a source; its own is NULL for a text */
  int64_t documents, next_document;
  const char *text; /* given whole: what is left of it, and the length of that */
  size_t left;
  char *separator;
  int64_t text_offset;
  int64_t max_bytes, sequence;
  bool document_mask, parse_special, skip_bad;
  int64_t max_bad, bad;
  int64_t *told; /* of a corpus: documents before this one were read, and warned of if bad, before */
  int32_t eos;
  iso_encoder *encoder;
  iso_feed feed;
  iso_loaded loaded;
  const char *name; /* of a text given whole */
  iso_held *held;   /* of a corpus */
  int64_t bytes, tokens, started;
};

/* What the next document is; bytes NULL: there is none. */
typedef struct candidate {
  const char *bytes;
  size_t length;
  const iso_source *source; /* NULL: of a text given whole */
  bool warn;                /* of it, if it is bad */
  iso_document_name name;
} candidate;

static iso_status next_of_corpus(iso_validation *v, candidate *out) {
  if (v->next_document == v->documents) return ISO_OK;
  iso_source *source;
  int64_t index;
  const char *stored;
  ISO_TRY(iso_held_get(v->held, v->next_document++, &source, &index, &stored));
  *out = (candidate){stored, (size_t)iso_source_document(source, index).length, source, v->next_document > *v->told,
                     iso_document_name_of(source, index)};
  if (out->warn) *v->told = v->next_document;
  return ISO_OK;
}

static iso_status next_of_source(iso_validation *v, candidate *out) {
  int64_t index;
  iso_document place;
  const char *stored;
  ISO_TRY(iso_scan_next(&v->scan, &index, &place, &stored));
  if (index >= 0)
    *out = (candidate){stored, (size_t)place.length, v->scan.source, true, iso_document_name_of(v->scan.source, index)};
  return ISO_OK;
}

static void next_of_text(iso_validation *v, candidate *out) {
  size_t separator = strlen(v->separator);
  while (v->left > 0) {
    const char *found = separator ? memmem(v->text, v->left, v->separator, separator) : NULL;
    size_t length = found ? (size_t)(found - v->text) : v->left;
    size_t step = found ? length + separator : length;
    *out = (candidate){v->text, length, NULL, true, {v->name, v->next_document, v->text_offset, "", NULL}};
    v->text += step;
    v->left -= step;
    v->text_offset += (int64_t)step;
    if (length == 0) continue;
    v->next_document++;
    return;
  }
  *out = (candidate){0};
}

static iso_status next_document(void *context, iso_feed *feed, bool *end) {
  iso_validation *v = context;
  feed->position = feed->count = 0;
  *end = true;
  for (;;) {
    candidate document = {0};
    if (v->max_bytes > 0 && v->bytes >= v->max_bytes) return ISO_OK;
    if (v->corpus)
      ISO_TRY(next_of_corpus(v, &document));
    else if (v->scan.source)
      ISO_TRY(next_of_source(v, &document));
    else
      next_of_text(v, &document);
    if (!document.bytes) return ISO_OK;
    if (document.source)
      ISO_TRY(iso_document_load(&v->loaded, document.source, document.name.index, document.bytes, v->encoder, v->eos,
                                v->skip_bad, document.warn));
    else
      ISO_TRY(iso_document_encode(&v->loaded, v->encoder, document.bytes, document.length, v->parse_special, v->eos,
                                  &document.name, v->skip_bad, document.warn));
    if (v->loaded.bad) {
      if (++v->bad <= v->max_bad) continue;
      return iso_fail(ISO_ERR_FORMAT,
                      "data: more than %lld bad validation documents (data.max_bad_documents), the last one document "
                      "%lld of \"%s\"; correct them or raise the limit",
                      (long long)v->max_bad, (long long)document.name.index, document.name.path);
    }
    feed->ids = v->loaded.ids;
    feed->count = v->loaded.count;
    v->bytes += v->loaded.text_bytes;
    v->tokens += feed->count;
    v->started++;
    *end = false;
    return ISO_OK;
  }
}

static iso_status validation_new(const iso_tokenizer *tokenizer, iso_validation **out) {
  *out = NULL;
  if (iso_tokenizer_eos(tokenizer) < 0)
    return iso_fail(ISO_ERR_CONFIG, "data: tokenizer \"%s\" has no end-of-text token, which ends each document",
                    iso_tokenizer_path(tokenizer));
  iso_validation *v = calloc(1, sizeof *v);
  if (v) v->encoder = iso_encoder_create(tokenizer);
  if (!v || !v->encoder) {
    free(v);
    return iso_fail(ISO_ERR_MEMORY, "data: no memory to read validation text");
  }
  v->eos = (int32_t)iso_tokenizer_eos(tokenizer);
  v->feed = (iso_feed){.next = next_document, .context = v};
  *out = v;
  return ISO_OK;
}

iso_status iso_validation_open(const iso_corpus *corpus, int64_t max_bytes, int64_t *told, iso_validation **out) {
  const iso_data_options *o = iso_corpus_options(corpus);
  iso_corpus_info info;
  iso_corpus_info_get(corpus, &info);
  ISO_TRY(validation_new(iso_corpus_tokenizer(corpus), out));
  iso_validation *v = *out;
  v->corpus = corpus;
  v->documents = info.validation_documents;
  v->max_bytes = max_bytes;
  v->told = told;
  v->sequence = o->sequence;
  v->document_mask = o->document_mask;
  v->skip_bad = o->skip_bad;
  v->max_bad = o->max_bad_documents;
  const iso_status status = iso_held_open(corpus, &v->held);
  if (status != ISO_OK) iso_validation_close(out);
  return status;
}

iso_status iso_validation_open_text(const iso_tokenizer *tokenizer, const char *name, const char *text, size_t length,
                                    const char *separator, int64_t sequence, bool document_mask, bool parse_special,
                                    iso_validation **out) {
  ISO_TRY(validation_new(tokenizer, out));
  iso_validation *v = *out;
  v->name = name;
  v->text = text;
  v->left = length;
  v->sequence = sequence;
  v->document_mask = document_mask;
  v->parse_special = parse_special;
  v->separator = strdup(separator ? separator : "");
  if (v->separator) return ISO_OK;
  iso_validation_close(out);
  return iso_fail(ISO_ERR_MEMORY, "data: no memory to read validation text");
}

iso_status iso_validation_open_source(const iso_tokenizer *tokenizer, const iso_source *source, int64_t first,
                                      int64_t end, int64_t sequence, bool document_mask, iso_validation **out) {
  ISO_TRY(validation_new(tokenizer, out));
  iso_validation *v = *out;
  v->sequence = sequence;
  v->document_mask = document_mask;
  iso_scan_init(&v->scan, source, first, end);
  return ISO_OK;
}

void iso_validation_close(iso_validation **address) {
  iso_validation *v = *address;
  if (!v) return;
  iso_encoder_destroy(&v->encoder);
  free(v->separator);
  iso_held_close(&v->held);
  iso_scan_fini(&v->scan);
  iso_loaded_fini(&v->loaded);
  free(v);
  *address = NULL;
}

iso_status iso_validation_next(iso_validation *v, iso_sequence sequence, int64_t *valid) {
  int64_t scored;
  return iso_feed_pack(&v->feed, v->sequence, v->document_mask, v->eos, sequence, valid, &scored);
}

void iso_validation_totals(const iso_validation *v, int64_t *bytes, int64_t *tokens, int64_t *unpredicted) {
  *bytes = v->bytes;
  *tokens = v->tokens;
  *unpredicted = v->document_mask ? v->started : v->started > 0;
}
