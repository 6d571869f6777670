/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach evaluate: loss, perplexity and bits per byte of any text under any model. Over several files bits, bytes and
 * tokens are added up.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

typedef struct evaluation {
  iso_evaluate_options options;
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

static iso_status evaluate_file(evaluation *v, const iso_lm *lm, const char *path) {
  char *text;
  size_t bytes;
  iso_evaluation e = {0};
  ISO_TRY(iso_file_read(path, &text, &bytes));
  const iso_status status =
      bytes ? iso_lm_evaluate(lm, path, text, bytes, &v->options, &e) : iso_fail(ISO_ERR_CONFIG, "%s: is empty", path);
  free(text);
  if (status != ISO_OK) return status;
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
  iso_blob_info *files;
  int64_t count;
  iso_arena *arena = iso_arena_create();
  if (!arena) return iso_fail(ISO_ERR_MEMORY, "evaluate: no memory to list files");
  iso_status status = iso_blobs_list(arena, word, &files, &count);
  for (int64_t i = 0; i < count && status == ISO_OK; i++) status = evaluate_file(v, lm, files[i].path);
  iso_arena_destroy(&arena);
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
  evaluation v = {.options = {.compute = ISO_F32}};
  const char *separator = NULL;
  const iso_flag flags[] = {
      {"sequence", ISO_FLAG_INT, &v.options.sequence, "tokens of a window; 0: the run's, else at most 1024 (0)", 0,
       1e7},
      {"separator", ISO_FLAG_TEXT, &separator, "cuts files into documents; \\n is a line's end (the run's, else none)",
       0, 0},
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
