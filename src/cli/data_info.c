/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach data info: documents, tokens, lengths, duplicates and what looks odd.
 */
#include "cli/cli.h"

static void put_finding(iso_string *out, const char *what, const iso_finding *f) {
  iso_json_open(out, NULL, '{');
  iso_json_put_text(out, "what", what);
  iso_json_put_int(out, "documents", f->documents);
  iso_json_put_int(out, "first", f->first);
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
  if (s->vocabulary) {
    iso_json_put_int(out, "tokens", s->tokens);
    iso_json_put_real(out, "bytes_per_token", s->tokens ? (double)s->bytes / (double)s->tokens : 0.0);
  }
  iso_json_put_int(out, "longest_document", s->longest);
  iso_json_put_int(out, "longest_bytes", s->longest < 0 ? 0 : s->longest_bytes);
  iso_json_put_int(out, "duplicates", s->duplicates);
  iso_json_open(out, "suspicious", '[');
  for (int i = 0; i < ISO_SUSPECTS; i++)
    if (s->suspects[i].documents) put_finding(out, iso_suspect_name(i), &s->suspects[i]);
  iso_json_shut(out, ']');
  iso_json_shut(out, '}');
}

static void print_source(const iso_source *source, const iso_survey *s) {
  printf("%s (%s, %lld files)\n", iso_source_options_of(source)->path, iso_source_format(source),
         (long long)iso_source_files(source));
  printf("  documents   %lld, %lld bytes, %lld characters\n", (long long)s->documents, (long long)s->bytes,
         (long long)s->characters);
  if (s->vocabulary)
    printf("  tokens      %lld, %.3f bytes a token\n", (long long)s->tokens,
           s->tokens ? (double)s->bytes / (double)s->tokens : 0.0);
  if (s->longest >= 0)
    printf("  longest     document %lld, %lld bytes\n", (long long)s->longest, (long long)s->longest_bytes);
  printf("  duplicates  %lld", (long long)s->duplicates);
  if (s->duplicates)
    printf(" (the first: document %lld repeats %lld)", (long long)s->first_duplicate, (long long)s->duplicate_of);
  printf("\n  bad         %lld", (long long)s->bad);
  if (s->bad) printf(" (the first: document %lld, %s)", (long long)s->first_bad, s->first_cause);
  printf("\n");
  for (int i = 0; i < ISO_SUSPECTS; i++)
    if (s->suspects[i].documents)
      printf("  suspicious  %lld of %s (the first: %lld)\n", (long long)s->suspects[i].documents, iso_suspect_name(i),
             (long long)s->suspects[i].first);
}

static iso_status info(iso_args *args, iso_data_input *input, bool json) {
  ISO_TRY(iso_data_input_open(args, input, false));
  iso_string out = {0};
  iso_json_open(&out, NULL, '{');
  iso_json_open(&out, "sources", '[');
  for (int i = 0; i < input->count; i++) {
    iso_survey survey;
    const iso_status status = iso_survey_take(input->sources[i], input->tokenizer, (int)input->threads, &survey);
    if (status != ISO_OK) {
      iso_string_fini(&out);
      return status;
    }
    if (json)
      put_source(&out, input->sources[i], &survey);
    else
      print_source(input->sources[i], &survey);
    iso_survey_fini(&survey);
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
