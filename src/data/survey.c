/* SPDX-License-Identifier: Apache-2.0
 *
 * survey: what a source holds, in one pass over all its documents by several threads.
 *
 * Threads take ranges of documents; each counts for itself, and the counts are added at the end. Of each kind of
 * finding the document with the lowest number is kept as the example.
 *
 * Invariants
 *  1. The result depends on source and tokenizer alone, never on threads.
 *  2. A document that cannot be read as text is counted as bad and goes into no other count. Causes are told apart by
 *     digests, kept where those of texts are; their words are had again from the first document of each.
 *  3. Memory is 16 bytes a document (its digest), 8 bytes a token of the vocabulary and thread, and one document.
 */
#include "data/data.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { RANGE = 64, SHORT_BYTES = 32, LINE_BYTES = 10000, REPEATS = 200 };

static const char *const anomaly_names[ISO_ANOMALIES] = {
    [ISO_ANOMALY_BOM] = "byte order marks (U+FEFF)",
    [ISO_ANOMALY_ZERO_WIDTH] = "zero-width characters",
    [ISO_ANOMALY_BIDI] = "bidirectional controls",
    [ISO_ANOMALY_REPLACEMENT] = "replacement characters (U+FFFD)",
    [ISO_ANOMALY_CONTROL] = "control characters",
    [ISO_ANOMALY_PRIVATE] = "private-use characters",
    [ISO_ANOMALY_NONCHARACTER] = "noncharacters",
    [ISO_ANOMALY_SPACE] = "unusual spaces",
    [ISO_ANOMALY_COMBINING] = "combining accents (text that is not NFC)",
};

static const char *const suspect_names[ISO_SUSPECTS] = {
    [ISO_SUSPECT_SHORT] = "shorter than 32 bytes",
    [ISO_SUSPECT_LINE] = "a line longer than 10,000 bytes",
    [ISO_SUSPECT_REPEAT] = "one character more than 200 times in a row",
    [ISO_SUSPECT_SYMBOLS] = "less than half of it letters, digits and spaces",
    [ISO_SUSPECT_DAMAGED] = "control or replacement characters",
    [ISO_SUSPECT_DENSE] = "less than 1.5 bytes a token",
};

const char *iso_anomaly_name(int anomaly) {
  return anomaly_names[anomaly];
}

const char *iso_suspect_name(int suspect) {
  return suspect_names[suspect];
}

typedef struct surveyor {
  const iso_source *source;
  const iso_tokenizer *tokenizer; /* NULL: text only */
  uint8_t (*digests)[16];         /* of each document's text; of a bad one's cause */
  uint8_t *bad;                   /* per document */
  atomic_llong next;
  atomic_bool stop;
  pthread_mutex_t mutex;
  iso_status status;
  iso_survey *result;
} surveyor;

/* One thread's. */
typedef struct count {
  surveyor *s;
  iso_survey survey;
  iso_encoder *encoder;
  iso_loaded loaded;
  iso_string scratch, decoded;
} count;

/* ---- one document ---- */

static void find(iso_finding *finding, int64_t times, int64_t document) {
  if (times == 0) return;
  finding->times += times;
  finding->documents++;
  if (finding->first < 0 || document < finding->first) finding->first = document;
}

static int anomaly_of(uint32_t c) {
  if (c < 0x20) return c == '\t' || c == '\n' || c == '\r' ? -1 : ISO_ANOMALY_CONTROL;
  if (c < 0x7F) return -1;
  if (c < 0xA0) return ISO_ANOMALY_CONTROL;
  if (c == 0xA0 || (c >= 0x2000 && c <= 0x200A) || c == 0x202F || c == 0x205F || c == 0x1680) return ISO_ANOMALY_SPACE;
  if (c >= 0x300 && c <= 0x36F) return ISO_ANOMALY_COMBINING;
  if ((c >= 0x200B && c <= 0x200D) || (c >= 0x2060 && c <= 0x2064) || c == 0x180E) return ISO_ANOMALY_ZERO_WIDTH;
  if (c == 0x200E || c == 0x200F || (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069))
    return ISO_ANOMALY_BIDI;
  if ((c >= 0xE000 && c <= 0xF8FF) || (c >= 0xF0000 && (c & 0xFFFE) != 0xFFFE)) return ISO_ANOMALY_PRIVATE;
  if (c == 0xFEFF) return ISO_ANOMALY_BOM;
  if (c == 0xFFFD) return ISO_ANOMALY_REPLACEMENT;
  if ((c >= 0xFDD0 && c <= 0xFDEF) || (c & 0xFFFE) == 0xFFFE) return ISO_ANOMALY_NONCHARACTER;
  return -1;
}

bool iso_is_full_width(uint32_t c) {
  return (c >= 0xFF01 && c <= 0xFF60) || (c >= 0xFFE0 && c <= 0xFFE6);
}

bool iso_is_emoji(uint32_t c) {
  return (c >= 0x1F300 && c <= 0x1F64F) || (c >= 0x1F680 && c <= 0x1F6FF) || (c >= 0x1F900 && c <= 0x1F9FF) ||
         (c >= 0x1FA70 && c <= 0x1FAFF) || (c >= 0x2600 && c <= 0x27BF);
}

/* What only characters tell. Ids of shards need not make well-formed text: a byte that belongs to no character counts
 * as U+FFFD. */
static void look_at_text(iso_survey *survey, int64_t document, const char *text, size_t length) {
  int64_t anomalies[ISO_ANOMALIES] = {0}, plain = 0, line = 0, longest = 0, run = 0, longest_run = 0, characters = 0;
  uint32_t before = UINT32_MAX;
  for (size_t i = 0; i < length;) {
    const int span = iso_utf8_span(text + i, length - i), bytes = span ? span : 1;
    size_t decoded;
    const uint32_t c = span ? iso_utf8_decode((const uint8_t *)text + i, &decoded) : 0xFFFD;
    i += (size_t)bytes;
    characters++;
    const int anomaly = anomaly_of(c);
    if (anomaly >= 0) anomalies[anomaly]++;
    survey->full_width += iso_is_full_width(c);
    survey->emoji += iso_is_emoji(c);
    const uint32_t letter = c | 0x20;
    plain += c > 0x7F || (letter >= 'a' && letter <= 'z') || (c >= '0' && c <= '9') || c == ' ' || c == '\n';
    line = c == '\n' ? 0 : line + bytes;
    run = c == before ? run + 1 : 1;
    before = c;
    if (line > longest) longest = line;
    if (run > longest_run && c != ' ') longest_run = run;
  }
  survey->characters += characters;
  for (int a = 0; a < ISO_ANOMALIES; a++) find(&survey->anomalies[a], anomalies[a], document);
  find(&survey->suspects[ISO_SUSPECT_SHORT], length < SHORT_BYTES, document);
  find(&survey->suspects[ISO_SUSPECT_LINE], longest > LINE_BYTES, document);
  find(&survey->suspects[ISO_SUSPECT_REPEAT], longest_run > REPEATS, document);
  find(&survey->suspects[ISO_SUSPECT_SYMBOLS], 2 * plain < characters, document);
  find(&survey->suspects[ISO_SUSPECT_DAMAGED], anomalies[ISO_ANOMALY_CONTROL] + anomalies[ISO_ANOMALY_REPLACEMENT] > 0,
       document);
}

/* A token of a byte-level vocabulary that is no whole characters. */
static bool is_fragment(const iso_tokenizer *tokenizer, int32_t id) {
  size_t length = 0;
  const char *bytes = iso_tokenizer_bytes(tokenizer, id, &length);
  return bytes && iso_utf8_valid_prefix(bytes, length) < length;
}

static iso_status look_at_tokens(count *c, int64_t document, const char *text, size_t length) {
  iso_survey *survey = &c->survey;
  const iso_loaded *loaded = &c->loaded;
  for (int64_t i = 0; i + 1 < loaded->count; i++) { /* the last one is EOS */
    survey->token_counts[loaded->ids[i]]++;
    survey->fragments += survey->is_fragment[loaded->ids[i]];
  }
  const int64_t eos = iso_tokenizer_eos(c->s->tokenizer);
  if (eos >= 0) survey->token_counts[eos]++;
  survey->tokens += loaded->count;
  find(&survey->suspects[ISO_SUSPECT_DENSE], 2 * (int64_t)length < 3 * (loaded->count - 1), document);
  c->decoded.length = 0;
  ISO_TRY(iso_decode(c->s->tokenizer, loaded->ids, (size_t)loaded->count - 1, &c->decoded));
  if (iso_string_failed(&c->decoded)) return ISO_ERR_MEMORY;
  find(&survey->changed, c->decoded.length != length || (length && memcmp(c->decoded.data, text, length) != 0),
       document);
  return ISO_OK;
}

static void digest_of(const char *text, size_t length, uint8_t out[16]) {
  static const char digits[] = "0123456789abcdef";
  char hex[65];
  iso_sha256 *hash = iso_sha256_create();
  memset(out, 0, 16);
  if (!hash) return;
  iso_sha256_update(hash, text, length);
  iso_sha256_finish(&hash, hex);
  for (int i = 0; i < 16; i++)
    out[i] = (uint8_t)((strchr(digits, hex[2 * i]) - digits) << 4 | (strchr(digits, hex[2 * i + 1]) - digits));
}

/* The text of a document; *bad when it has none. */
static iso_status text_of(count *c, int64_t index, const iso_document *place, const char *stored, const char **text,
                          size_t *length, iso_bad *bad) {
  const iso_source *source = c->s->source;
  if (iso_source_content(source) == ISO_CONTENT_TEXT) {
    ISO_TRY(iso_source_text(source, index, stored, (size_t)place->length, &c->scratch, text, length, bad));
    if (!bad->is && iso_utf8_valid_prefix(*text, *length) < *length) {
      *bad = (iso_bad){.is = true, .byte = place->offset + (int64_t)iso_utf8_valid_prefix(*text, *length)};
      snprintf(bad->cause, sizeof bad->cause, "not valid UTF-8");
    }
    return ISO_OK;
  }
  iso_loaded *loaded = &c->loaded;
  ISO_TRY(iso_source_tokens(source, index, stored, (size_t)place->length, &loaded->ids, &loaded->capacity,
                            &loaded->count, bad));
  if (bad->is) return ISO_OK;
  c->scratch.length = 0;
  ISO_TRY(iso_decode(c->s->tokenizer, loaded->ids, (size_t)loaded->count - 1, &c->scratch));
  if (iso_string_failed(&c->scratch)) return ISO_ERR_MEMORY;
  *text = c->scratch.data ? c->scratch.data : "";
  *length = c->scratch.length;
  return ISO_OK;
}

/* The same, and with a tokenizer its ids, in c->loaded. */
static iso_status read_document(count *c, int64_t index, const iso_document *place, const char *stored,
                                const char **text, size_t *length, iso_bad *bad) {
  const surveyor *s = c->s;
  ISO_TRY(text_of(c, index, place, stored, text, length, bad));
  if (bad->is || !s->tokenizer || iso_source_content(s->source) != ISO_CONTENT_TEXT) return ISO_OK;
  const iso_source_options *options = iso_source_options_of(s->source);
  const iso_document_name name = iso_document_name_of(s->source, index);
  ISO_TRY(iso_document_encode(&c->loaded, c->encoder, *text, *length, options->parse_special, 0, &name, true, false));
  if (!c->loaded.bad) return ISO_OK;
  *bad = (iso_bad){.is = true, .byte = c->loaded.why.byte};
  snprintf(bad->cause, sizeof bad->cause, "the vocabulary cannot represent it");
  return ISO_OK;
}

/* Of a cause without its numbers. */
static void digest_of_cause(const char *cause, uint8_t out[16]) {
  char words[sizeof((iso_bad *)0)->cause];
  size_t length = 0;
  for (; *cause; cause++)
    if (*cause < '0' || *cause > '9') words[length++] = *cause;
  digest_of(words, length, out);
}

static iso_status survey_document(count *c, int64_t index, const iso_document *place, const char *stored) {
  surveyor *s = c->s;
  iso_survey *survey = &c->survey;
  const char *text = NULL;
  size_t length = 0;
  iso_bad bad = {0};
  ISO_TRY(read_document(c, index, place, stored, &text, &length, &bad));
  if (bad.is) {
    s->bad[index] = 1;
    survey->bad++;
    digest_of_cause(bad.cause, s->digests[index]);
    return ISO_OK;
  }
  survey->documents++;
  survey->bytes += (int64_t)length;
  const bool longer = (int64_t)length > survey->longest_bytes;
  if (longer || ((int64_t)length == survey->longest_bytes && index < survey->longest)) {
    survey->longest_bytes = (int64_t)length;
    survey->longest = index;
  }
  digest_of(text, length, s->digests[index]);
  look_at_text(survey, index, text, length);
  return s->tokenizer ? look_at_tokens(c, index, text, length) : ISO_OK;
}

/* ---- threads ---- */

static void survey_reset(iso_survey *survey) {
  *survey = (iso_survey){.longest = -1, .longest_bytes = -1, .changed = {.first = -1}, .first_duplicate = -1};
  for (int i = 0; i < ISO_ANOMALIES; i++) survey->anomalies[i].first = -1;
  for (int i = 0; i < ISO_SUSPECTS; i++) survey->suspects[i].first = -1;
}

static void add_finding(iso_finding *to, const iso_finding *from) {
  to->times += from->times;
  to->documents += from->documents;
  if (from->first >= 0 && (to->first < 0 || from->first < to->first)) to->first = from->first;
}

void iso_survey_add(iso_survey *to, const iso_survey *from) {
  to->documents += from->documents;
  to->bytes += from->bytes;
  to->characters += from->characters;
  to->tokens += from->tokens;
  to->fragments += from->fragments;
  to->full_width += from->full_width;
  to->emoji += from->emoji;
  to->bad += from->bad;
  if (from->longest_bytes > to->longest_bytes ||
      (from->longest_bytes == to->longest_bytes && from->longest < to->longest)) {
    to->longest = from->longest;
    to->longest_bytes = from->longest_bytes;
  }
  add_finding(&to->changed, &from->changed);
  for (int i = 0; i < ISO_ANOMALIES; i++) add_finding(&to->anomalies[i], &from->anomalies[i]);
  for (int i = 0; i < ISO_SUSPECTS; i++) add_finding(&to->suspects[i], &from->suspects[i]);
  for (int64_t id = 0; id < to->vocabulary; id++) to->token_counts[id] += from->token_counts[id];
}

static iso_status survey_range(count *c, int64_t first, int64_t end) {
  iso_scan scan;
  iso_scan_init(&scan, c->s->source, first, end);
  iso_status status = ISO_OK;
  while (status == ISO_OK) {
    int64_t index;
    iso_document place;
    const char *stored;
    status = iso_scan_next(&scan, &index, &place, &stored);
    if (status != ISO_OK || index < 0) break;
    status = survey_document(c, index, &place, stored);
  }
  iso_scan_fini(&scan);
  return status;
}

static iso_status count_init(count *c, surveyor *s) {
  *c = (count){.s = s};
  survey_reset(&c->survey);
  c->survey.is_fragment = s->result->is_fragment;
  if (!s->tokenizer) return ISO_OK;
  c->encoder = iso_encoder_create(s->tokenizer);
  c->survey.token_counts = calloc((size_t)s->result->vocabulary, sizeof *c->survey.token_counts);
  return c->encoder && c->survey.token_counts ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "data: no memory for a thread");
}

static void count_fini(count *c) {
  iso_encoder_destroy(&c->encoder);
  free(c->survey.token_counts);
  iso_loaded_fini(&c->loaded);
  iso_string_fini(&c->scratch);
  iso_string_fini(&c->decoded);
}

static void *work(void *argument) {
  surveyor *s = argument;
  count c;
  const int64_t documents = iso_source_documents(s->source);
  iso_status status = count_init(&c, s);
  while (status == ISO_OK && !atomic_load(&s->stop)) {
    const int64_t first = atomic_fetch_add(&s->next, RANGE);
    if (first >= documents) break;
    status = survey_range(&c, first, first + RANGE < documents ? first + RANGE : documents);
  }
  pthread_mutex_lock(&s->mutex);
  if (status == ISO_OK)
    iso_survey_add(s->result, &c.survey);
  else if (s->status == ISO_OK)
    s->status = status;
  pthread_mutex_unlock(&s->mutex);
  if (status != ISO_OK) atomic_store(&s->stop, true);
  count_fini(&c);
  return NULL;
}

/* ---- duplicates and causes ---- */

typedef struct entry {
  uint8_t digest[16];
  int64_t document;
} entry;

static int compare_entries(const void *a, const void *b) {
  const entry *x = a, *y = b;
  const int order = memcmp(x->digest, y->digest, sizeof x->digest);
  if (order != 0) return order;
  return x->document < y->document ? -1 : x->document > y->document;
}

/* The good documents, or the bad ones, with equal digests beside each other. `list` has room for all. */
static int64_t sort_digests(const surveyor *s, bool bad, entry *list) {
  const int64_t documents = iso_source_documents(s->source);
  int64_t used = 0;
  for (int64_t i = 0; i < documents; i++) {
    if (s->bad[i] != bad) continue;
    memcpy(list[used].digest, s->digests[i], sizeof list[used].digest);
    list[used++].document = i;
  }
  qsort(list, (size_t)used, sizeof *list, compare_entries);
  return used;
}

static void count_duplicates(const surveyor *s, entry *list) {
  iso_survey *r = s->result;
  const int64_t used = sort_digests(s, false, list);
  for (int64_t i = 1, original = 0; i < used; i++) {
    if (memcmp(list[i].digest, list[original].digest, sizeof list[i].digest) != 0) {
      original = i;
      continue;
    }
    r->duplicates++;
    if (r->first_duplicate >= 0 && r->first_duplicate < list[i].document) continue;
    r->first_duplicate = list[i].document;
    r->duplicate_of = list[original].document;
  }
}

/* Takes its place among those met first. */
static void insert_cause(iso_survey *r, const iso_bad_cause *cause) {
  int64_t at = r->bad_causes < ISO_BAD_CAUSES ? r->bad_causes : ISO_BAD_CAUSES;
  r->bad_causes++;
  for (; at > 0 && r->causes[at - 1].first > cause->first; at--)
    if (at < ISO_BAD_CAUSES) r->causes[at] = r->causes[at - 1];
  if (at < ISO_BAD_CAUSES) r->causes[at] = *cause;
}

static void count_causes(const surveyor *s, entry *list) {
  const int64_t used = sort_digests(s, true, list);
  for (int64_t i = 0, end; i < used; i = end) {
    for (end = i + 1; end < used && memcmp(list[end].digest, list[i].digest, sizeof list[i].digest) == 0;) end++;
    insert_cause(s->result, &(iso_bad_cause){.documents = end - i, .first = list[i].document});
  }
}

/* Reads the first document of a cause again. */
static iso_status name_cause(count *c, iso_bad_cause *cause) {
  iso_scan scan;
  iso_scan_init(&scan, c->s->source, cause->first, cause->first + 1);
  int64_t index;
  iso_document place;
  const char *stored, *text;
  size_t length;
  iso_bad bad = {0};
  iso_status status = iso_scan_next(&scan, &index, &place, &stored);
  if (status == ISO_OK) status = read_document(c, index, &place, stored, &text, &length, &bad);
  cause->byte = bad.byte;
  snprintf(cause->cause, sizeof cause->cause, "%s", bad.cause);
  iso_scan_fini(&scan);
  return status;
}

static iso_status look_back(surveyor *s) {
  iso_survey *r = s->result;
  const int64_t documents = iso_source_documents(s->source);
  entry *list = malloc((size_t)documents * sizeof *list + 1);
  if (!list) return iso_fail(ISO_ERR_MEMORY, "data: no memory to sort %lld digests", (long long)documents);
  count_duplicates(s, list);
  count_causes(s, list);
  free(list);
  if (!r->bad) return ISO_OK;
  count c;
  iso_status status = count_init(&c, s);
  for (int64_t i = 0; i < ISO_BAD_CAUSES && i < r->bad_causes && status == ISO_OK; i++)
    status = name_cause(&c, &r->causes[i]);
  count_fini(&c);
  return status;
}

/* ---- all of it ---- */

static iso_status run(surveyor *s, int threads) {
  pthread_t *others = calloc((size_t)threads, sizeof *others);
  if (!others) return iso_fail(ISO_ERR_MEMORY, "data: no memory for %d threads", threads);
  int started = 0;
  for (; started < threads - 1; started++)
    if (pthread_create(&others[started], NULL, work, s) != 0) break; /* fewer do as well */
  work(s);
  for (int i = 0; i < started; i++) pthread_join(others[i], NULL);
  free(others);
  return s->status == ISO_OK ? look_back(s) : s->status;
}

iso_status iso_survey_take(const iso_source *source, const iso_tokenizer *tokenizer, int threads, iso_survey *survey) {
  surveyor s = {.source = source, .tokenizer = tokenizer, .result = survey};
  const size_t documents = (size_t)iso_source_documents(source);
  survey_reset(survey);
  if (iso_source_content(source) == ISO_CONTENT_TOKENS && !tokenizer)
    return iso_fail(ISO_ERR_CONFIG, "data: \"%s\" holds tokens; say of which tokenizer",
                    iso_source_options_of(source)->path);
  s.digests = malloc((documents + 1) * sizeof *s.digests);
  s.bad = calloc(documents + 1, 1);
  iso_status status =
      s.digests && s.bad ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "data: no memory for %zu digests", documents);
  if (tokenizer && status == ISO_OK) {
    survey->vocabulary = iso_tokenizer_vocabulary(tokenizer);
    survey->token_counts = calloc((size_t)survey->vocabulary, sizeof *survey->token_counts);
    survey->is_fragment = calloc((size_t)survey->vocabulary, 1);
    if (!survey->token_counts || !survey->is_fragment)
      status = iso_fail(ISO_ERR_MEMORY, "data: no memory for counts of %lld tokens", (long long)survey->vocabulary);
    for (int64_t id = 0; status == ISO_OK && id < survey->vocabulary; id++)
      survey->is_fragment[id] = is_fragment(tokenizer, (int32_t)id);
  }
  pthread_mutex_init(&s.mutex, NULL);
  if (status == ISO_OK) status = run(&s, threads);
  pthread_mutex_destroy(&s.mutex);
  free(s.digests);
  free(s.bad);
  if (status != ISO_OK) iso_survey_fini(survey);
  return status;
}

void iso_survey_fini(iso_survey *survey) {
  free(survey->token_counts);
  free(survey->is_fragment);
  survey->token_counts = NULL;
  survey->is_fragment = NULL;
}
