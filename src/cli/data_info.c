/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach data info: documents, tokens, lengths, duplicates and what looks odd.
 */
#include "cli/cli.h"

static void put_place(iso_string *out, const char *key, const iso_source *source, int64_t document) {
  iso_json_open(out, key, '{');
  iso_found_json(out, source, document, -1);
  iso_json_shut(out, '}');
}

static void put_finding(iso_string *out, const char *what, const iso_source *source, const iso_finding *f) {
  iso_json_open(out, NULL, '{');
  iso_json_put_text(out, "what", what);
  iso_json_put_int(out, "documents", f->documents);
  put_place(out, "first", source, f->first);
  iso_json_shut(out, '}');
}

static void put_source(iso_string *out, const iso_source *source, const iso_survey *s) {
  iso_json_open(out, NULL, '{');
  iso_json_put_text(out, "path", iso_source_options_of(source)->path);
  iso_json_put_text(out, "format", iso_source_format(source));
  iso_json_put_int(out, "files", iso_source_files(source));
  iso_json_put_int(out, "documents", s->documents);
  iso_json_put_int(out, "bytes", s->bytes);
  iso_json_put_int(out, "characters", s->characters);
  iso_json_put_int(out, "bad_documents", s->bad);
  iso_json_put_int(out, "bad_causes", s->bad_causes);
  iso_found_bad_json(out, source, s);
  if (s->vocabulary) {
    iso_json_put_int(out, "tokens", s->tokens);
    iso_json_put_real(out, "bytes_per_token", s->tokens ? (double)s->bytes / (double)s->tokens : 0.0);
  }
  iso_json_put_int(out, "longest_document", s->longest);
  iso_json_put_int(out, "longest_bytes", s->longest < 0 ? 0 : s->longest_bytes);
  iso_json_put_int(out, "duplicates", s->duplicates);
  if (s->duplicates) {
    put_place(out, "first_duplicate", source, s->first_duplicate);
    put_place(out, "duplicate_of", source, s->duplicate_of);
  }
  iso_json_open(out, "suspicious", '[');
  for (int i = 0; i < ISO_SUSPECTS; i++)
    if (s->suspects[i].documents) put_finding(out, iso_suspect_name(i), source, &s->suspects[i]);
  iso_json_shut(out, ']');
  iso_json_shut(out, '}');
}

static iso_status print_source(const iso_source *source, const iso_survey *s) {
  iso_string out = {0};
  iso_string_printf(&out, "%s (%s, %lld file%s)\n", iso_source_options_of(source)->path, iso_source_format(source),
                    (long long)iso_source_files(source), iso_plural(iso_source_files(source)));
  iso_string_printf(&out, "  documents   %lld, %lld bytes, %lld characters\n", (long long)s->documents,
                    (long long)s->bytes, (long long)s->characters);
  if (s->vocabulary)
    iso_string_printf(&out, "  tokens      %lld, %.3f bytes a token\n", (long long)s->tokens,
                      s->tokens ? (double)s->bytes / (double)s->tokens : 0.0);
  if (s->longest >= 0) {
    iso_string_printf(&out, "  longest     %lld bytes: ", (long long)s->longest_bytes);
    iso_found_put(&out, source, s->longest, -1);
    iso_string_printf(&out, "\n");
  }
  iso_string_printf(&out, "  duplicates  %lld", (long long)s->duplicates);
  if (s->duplicates) {
    iso_string_printf(&out, "; the first: ");
    iso_found_put(&out, source, s->first_duplicate, -1);
    iso_string_printf(&out, ", repeats ");
    iso_found_put(&out, source, s->duplicate_of, -1);
  }
  iso_string_printf(&out, "\n  bad         %lld", (long long)s->bad);
  if (s->bad) iso_string_printf(&out, ", %lld cause%s", (long long)s->bad_causes, iso_plural(s->bad_causes));
  iso_string_printf(&out, "\n");
  iso_found_bad_put(&out, "              ", source, s);
  for (int i = 0; i < ISO_SUSPECTS; i++) {
    if (!s->suspects[i].documents) continue;
    iso_string_printf(&out, "  suspicious  %lld: %s; the first: ", (long long)s->suspects[i].documents,
                      iso_suspect_name(i));
    iso_found_put(&out, source, s->suspects[i].first, -1);
    iso_string_printf(&out, "\n");
  }
  return iso_text_print(&out);
}

static iso_status info(iso_args *args, iso_data_input *input, bool json) {
  ISO_TRY(iso_data_input_open(args, input, false));
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_open(&out, "sources", '[');
  for (int i = 0; i < input->count; i++) {
    iso_survey survey;
    iso_status status = iso_survey_take(input->sources[i], input->tokenizer, (int)input->threads, &survey);
    if (status == ISO_OK) {
      if (json)
        put_source(&out, input->sources[i], &survey);
      else
        status = print_source(input->sources[i], &survey);
      iso_survey_fini(&survey);
    }
    if (status != ISO_OK) {
      iso_string_fini(&out);
      return status;
    }
  }
  iso_json_shut(&out, ']');
  iso_json_shut(&out, '}');
  if (json) return iso_json_print(&out);
  iso_string_fini(&out);
  return ISO_OK;
}

iso_status iso_verb_data_info(iso_args *args) {
  iso_data_input input = ISO_DATA_INPUT;
  bool json = false;
  const iso_flag flags[] = {
      ISO_DATA_INPUT_FLAGS(input),
      {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, -1));
  if (args->help) return ISO_OK;
  const iso_status status = info(args, &input, json);
  iso_data_input_close(&input);
  return status;
}
