/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach evaluate: loss, perplexity and bits per byte of any text under any model. Over several files bits, bytes and
 * tokens are added up.
 *
 * Files are read as a run's sources are. A text file is one text, which the separator cuts; of any other format each
 * line, row or piece of ids is a document.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct evaluation {
  iso_evaluate_options options;
  iso_source_options reading;
  bool json, no_mask;
  int64_t threads;
  iso_evaluation total;
  double bits; /* of all files */
  int64_t files;
  iso_string out;
} evaluation;

static void put_json(iso_string *out, const iso_evaluation *e) {
  iso_json_put_real(out, "loss", e->loss);
  iso_json_put_real(out, "perplexity", e->perplexity);
  iso_json_put_real(out, "bits_per_byte", e->bits_per_byte);
  iso_json_put_int(out, "bytes", e->bytes);
  iso_json_put_int(out, "tokens", e->tokens);
  iso_json_put_int(out, "predicted", e->predicted);
  iso_json_put_int(out, "unpredicted", e->unpredicted);
  iso_json_put_real(out, "seconds", e->seconds);
}

static void print_row(const char *name, const iso_evaluation *e) {
  printf("%10.6f %12.4f %10.6f %12lld %12lld  %s\n", e->loss, e->perplexity, e->bits_per_byte, (long long)e->bytes,
         (long long)e->tokens, name);
}

static void add(evaluation *v, const iso_evaluation *e) {
  iso_evaluation *t = &v->total;
  v->files++;
  v->bits += e->bits_per_byte * (double)e->bytes;
  t->loss_sum += e->loss_sum;
  t->predicted += e->predicted;
  t->tokens += e->tokens;
  t->bytes += e->bytes;
  t->unpredicted += e->unpredicted;
  t->seconds += e->seconds;
  t->loss = t->predicted ? t->loss_sum / (double)t->predicted : 0;
  t->perplexity = iso_exp(t->loss);
  t->bits_per_byte = t->bytes ? v->bits / (double)t->bytes : 0;
}

/* Document `index` is the file, whole. */
static iso_status evaluate_text(evaluation *v, const iso_lm *lm, const iso_source *source, int64_t index,
                                iso_evaluation *e) {
  const iso_document place = iso_source_document(source, index);
  const char *path = iso_source_file(source, place.file)->path;
  char *text = malloc((size_t)place.length);
  if (!text) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for its %lld bytes", path, (long long)place.length);
  iso_status status = iso_source_read(source, place.file, place.offset, place.length, text);
  if (status == ISO_OK) status = iso_lm_evaluate(lm, path, text, (size_t)place.length, &v->options, e);
  free(text);
  return status;
}

/* The documents [first, end) of a file. */
static iso_status evaluate_file(evaluation *v, const iso_lm *lm, const iso_source *source, const char *path,
                                int64_t first, int64_t end) {
  iso_evaluation e = {0};
  if (strcmp(iso_source_format(source), "text") == 0) {
    if (first == end) return iso_fail(ISO_ERR_CONFIG, "%s: is empty", path);
    ISO_TRY(evaluate_text(v, lm, source, first, &e));
  } else {
    if (first == end) return iso_fail(ISO_ERR_CONFIG, "%s: has no document", path);
    ISO_TRY(iso_lm_evaluate_documents(lm, source, first, end, &v->options, &e));
  }
  add(v, &e);
  if (v->json) {
    iso_json_open(&v->out, NULL, '{');
    iso_json_put_text(&v->out, "file", path);
    put_json(&v->out, &e);
    iso_json_shut(&v->out, '}');
  } else {
    print_row(path, &e);
    fflush(stdout);
  }
  return ISO_OK;
}

/* A word may be a file, a folder or a glob. */
static iso_status evaluate_word(evaluation *v, const iso_lm *lm, const char *word) {
  iso_source *source;
  v->reading.path = word;
  v->reading.tokenizer = lm->tokenizer;
  ISO_TRY(iso_source_open(&v->reading, &source));
  iso_status status = ISO_OK;
  const int64_t files = iso_source_files(source), documents = iso_source_documents(source);
  for (int64_t file = 0, first = 0, end = 0; file < files && status == ISO_OK; file++, first = end) {
    while (end < documents && iso_source_document(source, end).file == file) end++;
    status = evaluate_file(v, lm, source, iso_source_file(source, file)->path, first, end);
  }
  iso_source_close(&source);
  return status;
}

static iso_status evaluate_all(evaluation *v, const iso_lm *lm, const char *const *words, int count) {
  if (v->json) {
    iso_json_open(&v->out, NULL, '{');
    iso_json_put_text(&v->out, "model", lm->path);
    iso_json_open(&v->out, "files", '[');
  } else {
    printf("%10s %12s %10s %12s %12s  %s\n", "loss", "perplexity", "bits/byte", "bytes", "tokens", "file");
  }
  for (int i = 0; i < count; i++) ISO_TRY(evaluate_word(v, lm, words[i]));
  if (!v->json) {
    if (v->files > 1) print_row("in all", &v->total);
    return ISO_OK;
  }
  iso_json_shut(&v->out, ']');
  put_json(&v->out, &v->total);
  iso_json_shut(&v->out, '}');
  return iso_json_print(&v->out);
}

iso_status iso_verb_evaluate(iso_args *args) {
  evaluation v = {.options = {.compute = ISO_F32},
                  .reading = {.format = "auto", .weight = 1, .separator = "", .skip_by = "", .set_field = "--field"}};
  const char *separator = NULL;
  const iso_flag flags[] = {
      {"sequence", ISO_FLAG_INT, &v.options.sequence, "tokens of a window; 0: the run's, else at most 1024 (0)", 0,
       1e7},
      {"format", ISO_FLAG_TEXT, &v.reading.format, "as data.sources[].format (auto)", 0, 0},
      {"field", ISO_FLAG_TEXT, &v.reading.field, "of JSON lines and Parquet: where the text is (text)", 0, 0},
      {"token-type", ISO_FLAG_TEXT, &v.reading.token_type, "of shards without a header: uint16 or uint32", 0, 0},
      {"separator", ISO_FLAG_TEXT, &separator,
       "cuts text files into documents; \\n is a line's end (the run's, else none)", 0, 0},
      {"cache", ISO_FLAG_TEXT, &v.reading.cache, "folder of what is made once (the user's)", 0, 0},
      {"no-mask", ISO_FLAG_BOOL, &v.no_mask, "let documents attend to those before them", 0, 0},
      {"no-eos", ISO_FLAG_BOOL, &v.options.without_eos, "leave end-of-text tokens out of loss and count", 0, 0},
      {"dtype", ISO_FLAG_DTYPE, &v.options.compute, "compute type (float32)", 0, 0},
      {"threads", ISO_FLAG_INT, &v.threads, "0: all cores (0)", 0, 1024},
      {"json", ISO_FLAG_BOOL, &v.json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 2, -1));
  if (args->help) return ISO_OK;
  iso_lm lm;
  ISO_TRY(iso_lm_open(args->words[0], (int)v.threads, &lm));
  v.options.document_mask = lm.document_mask && !v.no_mask;
  iso_status status = ISO_OK;
  if (separator) {
    v.options.separator = iso_unescape(lm.arena, separator);
    if (!v.options.separator) status = iso_fail(ISO_ERR_USAGE, "evaluate: --separator has an unknown escape");
  }
  if (status == ISO_OK) status = evaluate_all(&v, &lm, args->words + 1, args->word_count - 1);
  iso_string_fini(&v.out);
  iso_lm_close(&lm);
  return status;
}
