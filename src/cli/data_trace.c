/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach data trace: which bytes of which documents each sequence of a run held. Computed from the run's config and
 * corpus alone; a snapshot's cursors only shorten the way to the first step asked for.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct tracing {
  const char *folder;
  int64_t first, last, slot; /* steps; slot -1: all */
  bool json;
  iso_arena *arena;
  iso_input_paths inputs;
  iso_config config;
  iso_run run;
  iso_data_cursor *cursors; /* after step `at`; NULL: at = 0 */
  int64_t at;
} tracing;

static iso_status parse_steps(const char *text, tracing *t) {
  char *end;
  t->first = t->last = strtoll(text, &end, 10);
  if (end != text && *end == ':') {
    const char *second = end + 1;
    t->last = strtoll(second, &end, 10);
    if (end == second) end = (char *)(uintptr_t)text;
  }
  if (end != text && *end == 0 && t->first >= 1 && t->last >= t->first) return ISO_OK;
  return iso_fail(ISO_ERR_USAGE, "data trace: --steps \"%s\" is no range; write A:B with 1 <= A <= B, or one step",
                  text);
}

/* Steps up to `base` were taken under settings that a later start changed: they cannot be told from the config. */
static iso_status find_base(const tracing *t, int64_t *base) {
  iso_incarnation *list;
  size_t count;
  ISO_TRY(iso_incarnation_list(t->arena, t->folder, &list, &count));
  *base = 0;
  for (size_t i = 1; i < count; i++)
    if (strcmp(list[i].config_digest, list[i - 1].config_digest) != 0 || list[i].begins_after < *base)
      *base = list[i].begins_after;
  if (t->first > *base) return ISO_OK;
  return iso_fail(ISO_ERR_MISMATCH,
                  "data trace: steps up to %lld of %s were taken before its settings were changed (--accept); ask for "
                  "later ones",
                  (long long)*base, t->folder);
}

/* Cursors of the snapshot nearest before the first step, if it says what this config needs. */
static iso_status find_cursors(tracing *t, int64_t base) {
  iso_snapshot_entry *entries;
  size_t count;
  ISO_TRY(iso_snapshot_list(t->arena, t->folder, &entries, &count));
  for (size_t i = 0; i < count; i++) {
    const int64_t step = entries[i].step;
    if (entries[i].is_void || step >= t->first || step < base || step <= t->at) continue;
    iso_manifest manifest;
    iso_string faults = {0};
    const iso_status status = iso_manifest_read(entries[i].folder, &manifest, &faults);
    const size_t wanted = iso_data_cursor_count(&t->run.data);
    if (status == ISO_OK && manifest.info.cursor_count == wanted) {
      t->cursors = iso_arena_alloc(t->arena, wanted * sizeof *t->cursors);
      if (t->cursors) memcpy(t->cursors, manifest.info.cursors, wanted * sizeof *t->cursors);
      t->at = t->cursors ? step : 0;
    }
    iso_manifest_fini(&manifest);
    iso_string_fini(&faults);
  }
  if (t->at >= base) return ISO_OK;
  return iso_fail(
      ISO_ERR_NOT_FOUND,
      "data trace: %s has no snapshot between step %lld, from which its present settings hold, and step %lld",
      t->folder, (long long)base, (long long)t->first);
}

static void put_piece(const tracing *t, const iso_trace_piece *p, iso_string *out) {
  const iso_source *source = iso_corpus_source(t->run.corpus, p->source);
  const iso_document place = iso_source_document(source, p->document);
  const char *file = iso_source_file(source, place.file)->path;
  if (!t->json) {
    iso_string_printf(out, "  %s document %lld ", file, (long long)p->document);
    if (p->byte >= 0)
      iso_string_printf(out, "bytes %lld-%lld ", (long long)p->byte, (long long)p->byte_end);
    else
      iso_string_printf(out, "bytes unknown (rewritten text) ");
    iso_string_printf(out, "tokens %lld-%lld of %lld\n", (long long)p->first, (long long)p->end, (long long)p->of);
    return;
  }
  iso_json_open(out, NULL, '{');
  iso_json_put_int(out, "source", p->source);
  iso_json_put_text(out, "file", file);
  iso_json_put_int(out, "document", p->document);
  iso_json_put_int(out, "file_offset", place.offset);
  iso_json_put_int(out, "stored_bytes", place.length);
  if (p->byte >= 0) {
    iso_json_put_int(out, "byte_begin", p->byte);
    iso_json_put_int(out, "byte_end", p->byte_end);
  }
  iso_json_put_int(out, "token_begin", p->first);
  iso_json_put_int(out, "token_end", p->end);
  iso_json_put_int(out, "document_tokens", p->of);
  iso_json_shut(out, '}');
}

static void put_sequence(const tracing *t, int64_t step, int64_t slot, const iso_trace_piece *pieces, int64_t count,
                         iso_string *out) {
  if (t->json) {
    iso_json_open(out, NULL, '{');
    iso_json_put_int(out, "step", step);
    iso_json_put_int(out, "slot", slot);
    iso_json_open(out, "documents", '[');
  } else {
    iso_string_printf(out, "step %lld slot %lld\n", (long long)step, (long long)slot);
  }
  for (int64_t i = 0; i < count; i++) put_piece(t, &pieces[i], out);
  if (!t->json) return;
  iso_json_shut(out, ']');
  iso_json_shut(out, '}');
}

static iso_status trace_steps(const tracing *t, iso_string *out) {
  iso_trace *trace;
  ISO_TRY(iso_trace_open(t->run.corpus, t->cursors, &trace));
  iso_status status = ISO_OK;
  for (int64_t step = t->at + 1; status == ISO_OK && step <= t->last; step++)
    for (int64_t b = 0; status == ISO_OK && b < t->config.batch.sequences; b++) {
      if (t->slot >= 0 && b != t->slot) continue;
      const iso_trace_piece *pieces;
      int64_t count;
      status = iso_trace_next(trace, b, &pieces, &count);
      if (status == ISO_OK && step >= t->first) put_sequence(t, step, b, pieces, count, out);
    }
  iso_trace_close(&trace);
  return status;
}

static iso_status check_corpus(const tracing *t) {
  const char *path = t->inputs.inputs;
  iso_json *inputs;
  const char *corpus;
  ISO_TRY(iso_json_read(path, &inputs));
  iso_status status = iso_json_string(inputs, path, "corpus", "", &corpus);
  if (status == ISO_OK && strcmp(corpus, t->run.corpus_info.digest) != 0)
    status = iso_fail(ISO_ERR_MISMATCH,
                      "data trace: the corpus is not the one that %s was trained on (files, sizes or "
                      "documents differ); restore it",
                      t->folder);
  iso_json_destroy(&inputs);
  return status;
}

static iso_status trace(tracing *t) {
  int64_t base;
  ISO_TRY(find_base(t, &base));
  if (t->slot >= t->config.batch.sequences)
    return iso_fail(ISO_ERR_USAGE, "data trace: --slot %lld: the batch has slots 0 to %lld", (long long)t->slot,
                    (long long)t->config.batch.sequences - 1);
  ISO_TRY(check_corpus(t));
  ISO_TRY(find_cursors(t, base));
  iso_string out = {0};
  if (t->json) {
    iso_json_open(&out, NULL, '{');
    iso_json_put_text(&out, "run", t->folder);
    iso_json_put_int(&out, "sequence_tokens", t->config.data.sequence);
    iso_json_put_int(&out, "from_snapshot", t->at);
    iso_json_open(&out, "sequences", '[');
  }
  const iso_status status = trace_steps(t, &out);
  if (status != ISO_OK) {
    iso_string_fini(&out);
    return status;
  }
  if (!t->json) return iso_text_print(&out);
  iso_json_shut(&out, ']');
  iso_json_shut(&out, '}');
  return iso_json_print(&out);
}

iso_status iso_verb_data_trace(iso_args *args) {
  const char *steps = "";
  tracing t = {.slot = -1};
  const iso_flag flags[] = {
      {"steps", ISO_FLAG_TEXT, &steps, "A:B, from 1, both included; or one step", 0, 0},
      {"slot", ISO_FLAG_INT, &t.slot, "only this sequence of the batch, from 0; -1: all (-1)", -1, 1e9},
      {"json", ISO_FLAG_BOOL, &t.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 1));
  if (args->help) return ISO_OK;
  if (!steps[0]) return iso_fail(ISO_ERR_USAGE, "data trace: --steps A:B is missing");
  ISO_TRY(parse_steps(steps, &t));
  t.folder = args->words[0];
  ISO_TRY(iso_run_folder_check(t.folder));
  t.arena = iso_arena_create();
  if (!t.arena) return iso_fail(ISO_ERR_MEMORY, "data trace: no memory");
  iso_status status = iso_run_inputs_find(t.arena, t.folder, &t.inputs);
  if (status == ISO_OK) status = iso_run_inputs_warn(t.folder, &t.inputs);
  if (status == ISO_OK) status = iso_config_read(t.inputs.config, NULL, 0, &t.config);
  if (status == ISO_OK && t.last > t.config.steps) {
    status = iso_fail(ISO_ERR_USAGE, "data trace: %s has %lld steps; --steps %s goes beyond them", t.folder,
                      (long long)t.config.steps, steps);
    iso_config_fini(&t.config);
  }
  if (status == ISO_OK) {
    /* The tokenizer as the run keeps it: the one it came from may be gone. */
    t.config.tokenizer.path = iso_path_join(t.config.arena, t.folder, "tokenizer");
    status = iso_run_open_inputs(&t.config, &t.run);
    if (status == ISO_OK) {
      status = trace(&t);
      iso_run_close(&t.run);
    }
    iso_config_fini(&t.config);
  }
  iso_arena_destroy(&t.arena);
  return status;
}
