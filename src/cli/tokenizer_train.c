/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach tokenizer train. Documents are found, cut and held out exactly as `data.sources` and `data.validation` do
 * it, by the same code, so that a vocabulary never sees what a run evaluates on, nor what is no text of a document.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct trainer {
  iso_bpe_options options;
  iso_source_options reading;
  const char *on_bad, *out;
  int64_t every, offset, max_bad, bad;
  iso_arena *arena;
  iso_source **sources;
  int source_count;
  iso_loaded loaded;
  const char **texts;
  size_t *lengths, count, held_out;
  int64_t bytes;
  bool json, skip;
} trainer;

/* Text files are taken as they are (the trainer repairs what is no UTF-8, and says so). Of any other format a document
 * is what a run would read, and a bad one is bad. */
static iso_status add_document(trainer *t, iso_source *source, int64_t index) {
  const iso_document place = iso_source_document(source, index);
  const char *stored, *text;
  size_t length = (size_t)place.length;
  ISO_TRY(iso_source_borrow(source, place.file, place.offset, place.length, &stored));
  text = stored;
  if (strcmp(iso_source_format(source), "text") != 0 || iso_source_is_damage(source, index)) {
    ISO_TRY(iso_document_text(&t->loaded, source, index, stored, t->skip, true, &text, &length));
    if (t->loaded.bad && ++t->bad > t->max_bad)
      return iso_fail(ISO_ERR_FORMAT,
                      "data: more than %lld bad documents (--max-bad), the last one document %lld of "
                      "\"%s\"; correct them or raise the limit",
                      (long long)t->max_bad, (long long)index, iso_source_file(source, place.file)->path);
    if (t->loaded.bad || length == 0) return ISO_OK;
    if (text == t->loaded.scratch.data) { /* overwritten by the next one */
      char *copy = iso_arena_alloc(t->arena, length);
      if (!copy) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for document %lld", t->reading.path, (long long)index);
      text = memcpy(copy, text, length);
    }
  }
  t->texts[t->count] = text;
  t->lengths[t->count++] = length;
  t->bytes += (int64_t)length;
  return ISO_OK;
}

static iso_status add_source(trainer *t, const char *path) {
  t->reading.path = path;
  ISO_TRY(iso_source_open(&t->reading, &t->sources[t->source_count]));
  iso_source *source = t->sources[t->source_count++];
  const int64_t documents = iso_source_documents(source);
  const size_t room = t->count + (size_t)documents + 1;
  const char **texts = realloc(t->texts, room * sizeof *texts);
  if (texts) t->texts = texts;
  size_t *lengths = realloc(t->lengths, room * sizeof *lengths);
  if (lengths) t->lengths = lengths;
  if (!texts || !lengths)
    return iso_fail(ISO_ERR_MEMORY, "%s: no memory to list %lld documents", path, (long long)documents);
  for (int64_t i = 0; i < documents; i++) {
    if (t->every && i % t->every == t->offset)
      t->held_out++;
    else
      ISO_TRY(add_document(t, source, i));
  }
  return ISO_OK;
}

static iso_status print_result(const trainer *t) {
  iso_tokenizer *tokenizer;
  ISO_TRY(iso_tokenizer_open(t->out, "", &tokenizer));
  const int64_t vocabulary = iso_tokenizer_vocabulary(tokenizer);
  iso_status status = ISO_OK;
  if (t->json) {
    iso_string out = {0};
    iso_json_open(&out, NULL, '{');
    iso_json_put_text(&out, "folder", t->out);
    iso_json_put_int(&out, "vocabulary", vocabulary);
    iso_json_put_int(&out, "documents", (int64_t)t->count);
    iso_json_put_int(&out, "held_out", (int64_t)t->held_out);
    iso_json_put_int(&out, "bytes", t->bytes);
    iso_json_put_int(&out, "bad", t->bad);
    iso_json_put_text(&out, "fingerprint", iso_tokenizer_fingerprint(tokenizer));
    iso_json_shut(&out, '}');
    status = iso_json_print(&out);
  } else {
    printf("%s: %lld ids from %zu documents, %lld bytes (%zu held out)\n", t->out, (long long)vocabulary, t->count,
           (long long)t->bytes, t->held_out);
    if (t->bad) printf("%lld bad documents left out\n", (long long)t->bad);
  }
  iso_tokenizer_close(&tokenizer);
  return status;
}

static iso_status train(trainer *t, iso_args *args) {
  t->arena = iso_arena_create();
  t->sources = calloc((size_t)args->word_count, sizeof *t->sources);
  if (!t->arena || !t->sources) return iso_fail(ISO_ERR_MEMORY, "%s: no memory", args->verb->name);
  t->reading.separator = iso_unescape(t->arena, t->reading.separator);
  if (!t->reading.separator) return iso_fail(ISO_ERR_USAGE, "%s: --separator has an unknown escape", args->verb->name);
  for (int i = 0; i < args->word_count; i++) ISO_TRY(add_source(t, args->words[i]));
  if (t->count == 0) return iso_fail(ISO_ERR_CONFIG, "%s: there is no document to learn from", args->verb->name);
  ISO_TRY(iso_path_make(t->out));
  ISO_TRY(iso_bpe_train(&t->options, t->texts, t->lengths, t->count, t->out));
  return print_result(t);
}

iso_status iso_verb_tokenizer_train(iso_args *args) {
  trainer t = {.options = {.pattern = "gpt2", .eos = "<|endoftext|>"},
               .reading = {.format = "auto",
                           .weight = 1,
                           .separator = "",
                           .field = "",
                           .set_field = "--field",
                           .cache = "",
                           .text_only = true,
                           .skip_by = "--on-bad skip"},
               .on_bad = "error",
               .max_bad = 100,
               .out = ""};
  bool force = false;
  const iso_flag flags[] = {
      {"vocabulary", ISO_FLAG_INT, &t.options.vocabulary, "ids in all: special tokens, 256 bytes, merges", 257, 1e7},
      {"out", ISO_FLAG_TEXT, &t.out, "folder to write", 0, 0},
      {"pattern", ISO_FLAG_TEXT, &t.options.pattern, "gpt2, cl100k, qwen2 or o200k (gpt2)", 0, 0},
      {"eos", ISO_FLAG_TEXT, &t.options.eos, "the token that ends a document (<|endoftext|>)", 0, 0},
      {"format", ISO_FLAG_TEXT, &t.reading.format, "as data.sources[].format (auto)", 0, 0},
      {"field", ISO_FLAG_TEXT, &t.reading.field, "of JSON lines and Parquet: where the text is (text)", 0, 0},
      {"separator", ISO_FLAG_TEXT, &t.reading.separator, "cuts text files into documents; \\n is a line's end (none)",
       0, 0},
      {"cache", ISO_FLAG_TEXT, &t.reading.cache, "folder of what is made once (the user's)", 0, 0},
      {"on-bad", ISO_FLAG_TEXT, &t.on_bad, "error, or skip: leave bad lines and rows out (error)", 0, 0},
      {"max-bad", ISO_FLAG_INT, &t.max_bad, "bad ones left out at most (100)", 0, 9e15},
      {"validation-every", ISO_FLAG_INT, &t.every, "leave out documents i with i mod N = offset; 0: none (0)", 0, 9e15},
      {"validation-offset", ISO_FLAG_INT, &t.offset, "see validation-every; counted from 0 (0)", 0, 9e15},
      {"force", ISO_FLAG_BOOL, &force, "write into a folder that is not empty", 0, 0},
      {"json", ISO_FLAG_BOOL, &t.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, -1));
  if (args->help) return ISO_OK;
  if (!t.options.vocabulary) return iso_fail(ISO_ERR_USAGE, "%s: --vocabulary is missing", args->verb->name);
  if (!t.out[0]) return iso_fail(ISO_ERR_USAGE, "%s: --out is missing", args->verb->name);
  if (t.every && (t.every == 1 || t.offset >= t.every))
    return iso_fail(ISO_ERR_USAGE, "%s: --validation-every must be 2 or more and above --validation-offset",
                    args->verb->name);
  t.skip = t.reading.skip_damaged = strcmp(t.on_bad, "skip") == 0;
  if (!t.skip && strcmp(t.on_bad, "error") != 0)
    return iso_fail(ISO_ERR_USAGE, "%s: --on-bad must be error or skip, not \"%s\"", args->verb->name, t.on_bad);
  ISO_TRY(iso_output_check(args->verb->name, t.out, force));
  const iso_status status = train(&t, args);
  for (int i = 0; i < t.source_count; i++) iso_source_close(&t.sources[i]);
  free(t.sources);
  free(t.texts);
  free(t.lengths);
  iso_loaded_fini(&t.loaded);
  iso_arena_destroy(&t.arena);
  return status;
}
