/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach data check: do text and vocabulary fit each other? A preflight before tokens are bought.
 */
#include <string.h>

#include "cli/cli.h"

enum { EXAMPLES = 8 };

typedef struct range {
  const char *name;
  uint32_t first, last;
} range;
static const range ranges[] = {
    {"ASCII", 0x20, 0x7E},
    {"Latin letters with marks", 0xC0, 0x17F},
    {"Greek, Cyrillic", 0x370, 0x4FF},
    {"Hebrew, Arabic", 0x5D0, 0x6FF},
    {"Devanagari", 0x900, 0x97F},
    {"Thai", 0xE01, 0xE5B},
    {"kana", 0x3041, 0x30FF},
    {"Hangul", 0xAC00, 0xD7A3},
    {"CJK ideographs", 0x4E00, 0x9FFF},
    {"CJK punctuation", 0x3000, 0x303F},
    {"full-width forms", 0xFF01, 0xFF60},
    {"emoji", 0x1F300, 0x1F64F},
    {"more emoji", 0x1F900, 0x1F9FF},
};

/* How a vocabulary writes the characters of a range, each by itself. */
typedef struct coverage {
  int64_t characters, kept, whole, tokens; /* whole: one token */
} coverage;

static iso_status cover(const iso_tokenizer *tokenizer, iso_encoder *encoder, const range *r, coverage *out) {
  iso_string text = {0}, decoded = {0};
  iso_status status = ISO_OK;
  *out = (coverage){0};
  iso_log_quiet(true); /* a character without tokens is a finding, not an error */
  for (uint32_t c = r->first; c <= r->last && status == ISO_OK; c++) {
    text.length = 0;
    iso_utf8_append(&text, c);
    if (iso_string_failed(&text)) status = ISO_ERR_MEMORY; /* logged already */
    if (status != ISO_OK) break;
    const int32_t *ids;
    size_t count;
    out->characters++;
    status = iso_encode(encoder, text.data, text.length, false, false, &ids, &count);
    if (status == ISO_ERR_MISMATCH) {
      status = ISO_OK;
      continue;
    }
    if (status != ISO_OK) break;
    decoded.length = 0;
    status = iso_decode(tokenizer, ids, count, &decoded);
    out->kept += status == ISO_OK && decoded.length == text.length && memcmp(decoded.data, text.data, text.length) == 0;
    out->whole += count == 1;
    out->tokens += (int64_t)count;
  }
  iso_log_quiet(false);
  iso_string_fini(&text);
  iso_string_fini(&decoded);
  return status;
}

typedef struct check {
  const iso_data_input *input;
  iso_survey all;                      /* of all sources, token counts and findings added up */
  iso_string bad, bad_json, first_bad; /* bad documents of all sources, in words and as JSON; the first of them */
  int64_t bad_causes;                  /* a source's each for itself */
  coverage covered[ISO_COUNT(ranges)];
  int64_t never, model_vocabulary;
  int errors;
} check;

static void note_bad(check *c, const iso_source *source, const iso_survey *survey) {
  if (survey->bad && !c->first_bad.length) {
    iso_found_put(&c->first_bad, source, survey->causes[0].first, survey->causes[0].byte);
    iso_string_printf(&c->first_bad, ": %s", survey->causes[0].cause);
  }
  c->bad_causes += survey->bad_causes;
  iso_found_bad_put(&c->bad, "bad               ", source, survey);
  iso_json_open(&c->bad_json, NULL, '{');
  iso_json_put_text(&c->bad_json, "path", iso_source_options_of(source)->path);
  iso_json_put_int(&c->bad_json, "bad_documents", survey->bad);
  iso_json_put_int(&c->bad_json, "bad_causes", survey->bad_causes);
  iso_found_bad_json(&c->bad_json, source, survey);
  iso_json_shut(&c->bad_json, '}');
}

static iso_status take_sources(check *c) {
  const iso_data_input *input = c->input;
  iso_json_open(&c->bad_json, NULL, '[');
  for (int i = 0; i < input->count; i++) {
    iso_survey one;
    ISO_TRY(iso_survey_take(input->sources[i], input->tokenizer, (int)input->threads, &one));
    note_bad(c, input->sources[i], &one);
    if (i == 0) {
      c->all = one;
      continue;
    }
    iso_survey_add(&c->all, &one);
    iso_survey_fini(&one);
  }
  iso_json_shut(&c->bad_json, ']');
  const bool failed = iso_string_failed(&c->bad) || iso_string_failed(&c->bad_json) || iso_string_failed(&c->first_bad);
  return failed ? iso_fail(ISO_ERR_MEMORY, "data check: no memory for what was found") : ISO_OK;
}

static iso_status take_model(check *c, const iso_args *args) {
  if (!c->input->has_config) return ISO_OK;
  iso_model_config model;
  ISO_TRY(iso_run_model(&c->input->config, &model));
  c->model_vocabulary = model.vocabulary;
  iso_model_config_fini(&model);
  return ISO_OK;
}

static int64_t count_never(const check *c) {
  int64_t never = 0;
  for (int64_t id = 0; id < c->all.vocabulary; id++) {
    size_t length;
    never += c->all.token_counts[id] == 0 && iso_tokenizer_bytes(c->input->tokenizer, id, &length) != NULL;
  }
  return never;
}

/* Texts of the first tokens that were never produced, quoted. */
static void put_examples(const check *c, iso_string *out) {
  int shown = 0;
  for (int64_t id = 0; id < c->all.vocabulary && shown < EXAMPLES; id++) {
    size_t length = 0;
    const char *bytes = iso_tokenizer_bytes(c->input->tokenizer, id, &length);
    if (!bytes || c->all.token_counts[id] || iso_utf8_valid_prefix(bytes, length) < length) continue;
    if (shown++) iso_string_printf(out, ", ");
    iso_json_quote(out, bytes, length);
  }
}

static iso_status print_check(const check *c) {
  const iso_survey *s = &c->all;
  const double tokens = s->tokens ? (double)s->tokens : 1;
  iso_string examples = {0};
  put_examples(c, &examples);
  printf("documents         %lld good, %lld bad\n", (long long)s->documents, (long long)s->bad);
  if (c->bad.length) fputs(c->bad.data, stdout);
  printf("decode back       %lld document%s\n", (long long)s->changed.documents,
         s->changed.documents == 1 ? " differs" : "s differ");
  if (c->model_vocabulary)
    printf("vocabulary        %lld ids in a model of %lld\n", (long long)s->vocabulary, (long long)c->model_vocabulary);
  printf("never produced    %lld of %lld ids%s%s\n", (long long)c->never, (long long)s->vocabulary,
         examples.length ? ", the first: " : "", examples.length ? examples.data : "");
  printf("byte fragments    %lld tokens, %.2f%% of all\n", (long long)s->fragments,
         100 * (double)s->fragments / tokens);
  printf("in the text       %lld full-width characters, %lld emoji\n", (long long)s->full_width, (long long)s->emoji);
  for (int a = 0; a < ISO_ANOMALIES; a++)
    if (s->anomalies[a].times)
      printf("anomaly           %lld %s in %lld document%s\n", (long long)s->anomalies[a].times, iso_anomaly_name(a),
             (long long)s->anomalies[a].documents, iso_plural(s->anomalies[a].documents));
  for (size_t i = 0; i < ISO_COUNT(ranges); i++) {
    const coverage *v = &c->covered[i];
    printf("%-17s %s: %lld of %lld kept, %.2f tokens each, %lld as one token\n", i ? "" : "coverage", ranges[i].name,
           (long long)v->kept, (long long)v->characters, v->kept ? (double)v->tokens / (double)v->kept : 0.0,
           (long long)v->whole);
  }
  iso_string_fini(&examples);
  return ISO_OK;
}

static iso_status put_check(const check *c) {
  const iso_survey *s = &c->all;
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_put_int(&out, "documents", s->documents);
  iso_json_put_int(&out, "bad_documents", s->bad);
  iso_json_put_int(&out, "bad_causes", c->bad_causes);
  iso_string_printf(&out, ", \"sources\": %s", c->bad_json.data);
  iso_json_put_int(&out, "documents_changed_by_decoding", s->changed.documents);
  iso_json_put_int(&out, "vocabulary", s->vocabulary);
  if (c->model_vocabulary) iso_json_put_int(&out, "model_vocabulary", c->model_vocabulary);
  iso_json_put_int(&out, "tokens", s->tokens);
  iso_json_put_int(&out, "never_produced", c->never);
  iso_json_put_int(&out, "byte_fragments", s->fragments);
  iso_json_put_int(&out, "full_width", s->full_width);
  iso_json_put_int(&out, "emoji", s->emoji);
  iso_json_open(&out, "anomalies", '{');
  for (int a = 0; a < ISO_ANOMALIES; a++)
    if (s->anomalies[a].times) iso_json_put_int(&out, iso_anomaly_name(a), s->anomalies[a].times);
  iso_json_shut(&out, '}');
  iso_json_open(&out, "coverage", '[');
  for (size_t i = 0; i < ISO_COUNT(ranges); i++) {
    const coverage *v = &c->covered[i];
    iso_json_open(&out, NULL, '{');
    iso_json_put_text(&out, "range", ranges[i].name);
    iso_json_put_int(&out, "characters", v->characters);
    iso_json_put_int(&out, "kept", v->kept);
    iso_json_put_int(&out, "one_token", v->whole);
    iso_json_put_real(&out, "tokens_each", v->kept ? (double)v->tokens / (double)v->kept : 0.0);
    iso_json_shut(&out, '}');
  }
  iso_json_shut(&out, ']');
  iso_json_put_bool(&out, "ok", c->errors == 0);
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

/* Findings that training would stumble over. */
static iso_status verdict(check *c, const iso_args *args, bool json) {
  const iso_survey *s = &c->all;
  const bool too_small = c->model_vocabulary && s->vocabulary > c->model_vocabulary;
  c->errors = (s->bad > 0) + too_small;
  ISO_TRY(json ? put_check(c) : print_check(c));
  if (too_small)
    return iso_fail(ISO_ERR_CHECK, "%s: the tokenizer has %lld ids, the model only %lld; raise vocab_size",
                    args->verb->name, (long long)s->vocabulary, (long long)c->model_vocabulary);
  if (s->bad)
    return iso_fail(ISO_ERR_CHECK, "%s: %lld document%s bad%s %s; correct %s, or leave %s out (%s)", args->verb->name,
                    (long long)s->bad, s->bad == 1 ? " is" : "s are",
                    s->bad == 1 ? ":" : "; the first:", c->first_bad.data, s->bad == 1 ? "it" : "them",
                    s->bad == 1 ? "it" : "them",
                    c->input->has_config ? "data.on_bad: skip" : "data build: --on-bad skip; a run: data.on_bad: skip");
  return ISO_OK;
}

static iso_status run(iso_args *args, iso_data_input *input, bool json) {
  ISO_TRY(iso_data_input_open(args, input, true));
  check c = {.input = input};
  iso_status status = take_model(&c, args);
  if (status == ISO_OK) status = take_sources(&c);
  iso_encoder *encoder = iso_encoder_create(input->tokenizer);
  if (!encoder && status == ISO_OK) status = iso_fail(ISO_ERR_MEMORY, "%s: no memory", args->verb->name);
  for (size_t i = 0; i < ISO_COUNT(ranges) && status == ISO_OK; i++)
    status = cover(input->tokenizer, encoder, &ranges[i], &c.covered[i]);
  if (status == ISO_OK) {
    c.never = count_never(&c);
    status = verdict(&c, args, json);
  }
  iso_encoder_destroy(&encoder);
  iso_survey_fini(&c.all);
  iso_string_fini(&c.bad);
  iso_string_fini(&c.bad_json);
  iso_string_fini(&c.first_bad);
  return status;
}

iso_status iso_verb_data_check(iso_args *args) {
  iso_data_input input = ISO_DATA_INPUT;
  bool json = false;
  const iso_flag flags[] = {
      ISO_DATA_INPUT_FLAGS(input),
      {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, -1));
  if (args->help) return ISO_OK;
  const iso_status status = run(args, &input, json);
  iso_data_input_close(&input);
  return status;
}
