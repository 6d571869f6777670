/* SPDX-License-Identifier: Apache-2.0
 *
 * found: where in a source something was found, in words and as JSON, for the verbs of `isotach data`. A document is
 * named as the messages of training name it: file, number in its source, byte.
 */
#include "cli/cli.h"

void iso_found_put(iso_string *out, const iso_source *source, int64_t document, int64_t byte) {
  const iso_document_name name = iso_document_name_of(source, document);
  iso_document_name_put(&name, byte < 0 ? name.offset : byte, out);
}

void iso_found_json(iso_string *out, const iso_source *source, int64_t document, int64_t byte) {
  const iso_document_name name = iso_document_name_of(source, document);
  iso_json_put_int(out, "document", document);
  iso_json_put_text(out, "file", name.path);
  iso_json_put_int(out, "byte", byte < 0 ? name.offset : byte);
}

static int64_t shown(const iso_survey *survey) {
  return survey->bad_causes < ISO_BAD_CAUSES ? survey->bad_causes : ISO_BAD_CAUSES;
}

void iso_found_bad_put(iso_string *out, const char *head, const iso_source *source, const iso_survey *survey) {
  for (int64_t i = 0; i < shown(survey); i++) {
    const iso_bad_cause *c = &survey->causes[i];
    iso_string_printf(out, "%s%lld document%s: %s; %s", head, (long long)c->documents, iso_plural(c->documents),
                      c->cause, c->documents == 1 ? "" : "the first: ");
    iso_found_put(out, source, c->first, c->byte);
    iso_string_printf(out, "\n");
  }
  const int64_t more = survey->bad_causes - shown(survey);
  if (more) iso_string_printf(out, "%sand others, of %lld more cause%s\n", head, (long long)more, iso_plural(more));
}

void iso_found_bad_json(iso_string *out, const iso_source *source, const iso_survey *survey) {
  iso_json_open(out, "bad", '[');
  for (int64_t i = 0; i < shown(survey); i++) {
    const iso_bad_cause *c = &survey->causes[i];
    iso_json_open(out, NULL, '{');
    iso_json_put_text(out, "cause", c->cause);
    iso_json_put_int(out, "documents", c->documents);
    iso_json_open(out, "first", '{');
    iso_found_json(out, source, c->first, c->byte);
    iso_json_shut(out, '}');
    iso_json_shut(out, '}');
  }
  iso_json_shut(out, ']');
}
