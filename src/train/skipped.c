/* SPDX-License-Identifier: Apache-2.0
 *
 * skipped.jsonl: the documents that a run has left out (data.on_bad: skip), a line each, with the step that met them.
 *
 * Whether a document is bad depends on its bytes alone, so a resume leaves out the same ones. What it needs to know
 * from before is which are listed already: those count against data.max_bad_documents but are not listed again.
 *
 * Invariants
 *  1. Each document of the run stands once, however often it is met, in whichever start.
 *  2. Lines are on disk before their step is durable.
 */
#include <stdlib.h>
#include <string.h>

#include "train/train.h"

static iso_status read_line(const char *path, const char *text, size_t length, iso_skipped *out) {
  iso_json *json;
  ISO_TRY(iso_json_parse(text, length, path, &json));
  *out = (iso_skipped){0};
  iso_status status = iso_json_int(json, path, "lane", -1, &out->lane);
  if (status == ISO_OK) status = iso_json_int(json, path, "source", -1, &out->source);
  if (status == ISO_OK) status = iso_json_int(json, path, "document", -1, &out->document);
  iso_json_destroy(&json);
  if (status != ISO_OK) return status;
  if (out->lane >= 0 && out->source >= 0 && out->document >= 0) return ISO_OK;
  return iso_fail(ISO_ERR_FORMAT, "%s: a line lacks lane, source or document: %.*s; put the right file back", path,
                  (int)(length < 200 ? length : 200), text);
}

static iso_status read_known(const char *path, iso_skipped **known, int64_t *count) {
  char *data;
  size_t bytes;
  ISO_TRY(iso_file_read(path, &data, &bytes));
  int64_t lines = 0;
  for (size_t i = 0; i < bytes; i++) lines += data[i] == '\n';
  *known = calloc((size_t)lines + 1, sizeof **known);
  iso_status status =
      *known ? ISO_OK : iso_fail(ISO_ERR_MEMORY, "%s: no memory for %lld lines", path, (long long)lines);
  for (const char *at = data; status == ISO_OK && at < data + bytes;) {
    const char *end = memchr(at, '\n', (size_t)(data + bytes - at)); /* every line kept has one */
    status = read_line(path, at, (size_t)(end - at), &(*known)[*count]);
    *count += status == ISO_OK;
    at = end + 1;
  }
  free(data);
  return status;
}

iso_status iso_skipped_open(const char *run, int64_t step, iso_lines **out, iso_skipped **known, int64_t *count) {
  *known = NULL;
  *count = 0;
  *out = NULL;
  char path[4096];
  snprintf(path, sizeof path, "%s/skipped.jsonl", run);
  bool exists;
  ISO_TRY(iso_path_probe(path, &exists));
  if (!exists) return ISO_OK; /* made with the first line */
  ISO_TRY(iso_lines_open(run, "skipped", step, out));
  return read_known(path, known, count);
}

iso_status iso_skipped_append(const char *run, iso_lines **lines, const iso_slot *slot,
                              const iso_source_options *sources) {
  if (slot->skipped_count == 0) return ISO_OK;
  if (!*lines) ISO_TRY(iso_lines_open(run, "skipped", slot->step, lines));
  iso_string text = {0};
  for (int64_t i = 0; i < slot->skipped_count; i++) {
    const iso_skipped *s = &slot->skipped[i];
    const size_t begin = text.length;
    iso_string_printf(&text, "{\"step\": %lld, \"lane\": %lld, \"source\": %lld, \"path\": ", (long long)slot->step,
                      (long long)s->lane, (long long)s->source);
    iso_json_quote(&text, sources[s->source].path, strlen(sources[s->source].path));
    iso_string_printf(&text, ", \"file\": ");
    iso_json_quote(&text, s->file, strlen(s->file));
    iso_string_printf(&text, ", \"document\": %lld, \"byte\": %lld, \"cause\": ", (long long)s->document,
                      (long long)s->byte);
    iso_json_quote(&text, s->cause, strlen(s->cause));
    iso_record_seal_line(&text, begin);
    iso_warn("step %lld leaves out document %lld of \"%s\" (byte %lld): %s", (long long)slot->step,
             (long long)s->document, s->file, (long long)s->byte, s->cause);
  }
  iso_status status = iso_string_failed(&text) ? ISO_ERR_MEMORY : iso_lines_append(*lines, text.data, text.length);
  if (status == ISO_OK) status = iso_lines_sync(*lines);
  iso_string_fini(&text);
  return status;
}
