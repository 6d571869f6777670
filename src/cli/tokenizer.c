/* SPDX-License-Identifier: Apache-2.0
 *
 * isotach tokenizer: encode, decode and check with any tokenizer that can be opened; learning one is in
 * tokenizer_train.c.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* The whole of standard input. */
static iso_status read_stdin(iso_string *out) {
  char chunk[65536];
  size_t got;
  while ((got = fread(chunk, 1, sizeof chunk, stdin)) > 0) iso_string_append(out, chunk, got);
  if (ferror(stdin)) return iso_fail(ISO_ERR_IO, "cannot read standard input");
  if (iso_string_failed(out)) return iso_fail(ISO_ERR_MEMORY, "no memory for the text on standard input");
  return ISO_OK;
}

static iso_status read_text(const char *path, iso_string *out) {
  char *text;
  size_t bytes;
  if (strcmp(path, "-") == 0) return read_stdin(out);
  ISO_TRY(iso_file_read(path, &text, &bytes));
  iso_string_append(out, text, bytes);
  free(text);
  return iso_string_failed(out) ? iso_fail(ISO_ERR_MEMORY, "%s: no memory for its text", path) : ISO_OK;
}

/* ---- encode ---- */

static iso_status print_ids(const int32_t *ids, size_t count, bool json) {
  iso_string out = {0};
  if (json) {
    iso_json_open(&out, NULL, '{');
    iso_json_put_int(&out, "count", (int64_t)count);
    iso_json_open(&out, "ids", '[');
    for (size_t i = 0; i < count; i++) iso_json_put_int(&out, NULL, ids[i]);
    iso_json_shut(&out, ']');
    iso_json_shut(&out, '}');
  } else {
    for (size_t i = 0; i < count; i++) iso_string_printf(&out, "%s%d", i ? " " : "", (int)ids[i]);
  }
  return iso_json_print(&out);
}

static iso_status encode_verb(iso_args *args) {
  bool json = false, special = false;
  const char *text = NULL, *pattern = "";
  const iso_flag flags[] = {
      {"text", ISO_FLAG_TEXT, &text, "the text itself, instead of a file", 0, 0},
      {"parse-special", ISO_FLAG_BOOL, &special, "special tokens written in the text become their ids", 0, 0},
      {"pattern", ISO_FLAG_TEXT, &pattern, "pre-tokenizer of a rank file whose name does not tell", 0, 0},
      {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, 2));
  if (args->help) return ISO_OK;
  if (text && args->word_count == 2)
    return iso_fail(ISO_ERR_USAGE, "%s: give --text or a file, not both", args->verb->name);
  iso_tokenizer *tokenizer;
  ISO_TRY(iso_tokenizer_open(args->words[0], pattern, &tokenizer));
  iso_string read = {0};
  iso_status status = ISO_OK;
  if (!text) status = read_text(args->word_count == 2 ? args->words[1] : "-", &read);
  iso_encoder *encoder = iso_encoder_create(tokenizer);
  if (status == ISO_OK && !encoder) status = iso_fail(ISO_ERR_MEMORY, "%s: no memory", args->verb->name);
  const int32_t *ids;
  size_t count;
  const char *bytes = text ? text : read.data ? read.data : "";
  if (status == ISO_OK)
    status = iso_encode(encoder, bytes, text ? strlen(text) : read.length, special, false, &ids, &count);
  if (status == ISO_OK) status = print_ids(ids, count, json);
  iso_encoder_destroy(&encoder);
  iso_string_fini(&read);
  iso_tokenizer_close(&tokenizer);
  return status;
}

/* ---- decode ---- */

typedef struct id_list {
  int32_t *ids;
  size_t count, capacity;
} id_list;

/* Numbers in `text`, with blanks or commas between them. */
static iso_status add_ids(id_list *list, char *text) {
  char *state = NULL;
  for (char *word = strtok_r(text, " \t\r\n,[]", &state); word; word = strtok_r(NULL, " \t\r\n,[]", &state)) {
    int64_t id;
    if (!iso_parse_int(word, &id) || id < 0 || id > INT32_MAX)
      return iso_fail(ISO_ERR_USAGE, "tokenizer decode: \"%s\" is no token id", word);
    if (list->count == list->capacity) {
      const size_t capacity = list->capacity ? 2 * list->capacity : 256;
      int32_t *grown = realloc(list->ids, capacity * sizeof *grown);
      if (!grown) return iso_fail(ISO_ERR_MEMORY, "tokenizer decode: no memory for %zu ids", capacity);
      list->ids = grown;
      list->capacity = capacity;
    }
    list->ids[list->count++] = (int32_t)id;
  }
  return ISO_OK;
}

static iso_status decode_verb(iso_args *args) {
  bool json = false;
  const char *pattern = "";
  const iso_flag flags[] = {
      {"pattern", ISO_FLAG_TEXT, &pattern, "pre-tokenizer of a rank file whose name does not tell", 0, 0},
      {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 1, -1));
  if (args->help) return ISO_OK;
  iso_tokenizer *tokenizer;
  ISO_TRY(iso_tokenizer_open(args->words[0], pattern, &tokenizer));
  id_list list = {0};
  iso_string text = {0}, out = {0};
  iso_status status = ISO_OK;
  if (args->word_count == 1) {
    status = read_stdin(&text);
    if (status == ISO_OK && text.length) status = add_ids(&list, text.data);
  }
  for (int i = 1; i < args->word_count && status == ISO_OK; i++) status = add_ids(&list, args->argv[i]);
  if (status == ISO_OK && list.count) status = iso_decode(tokenizer, list.ids, list.count, &out);
  if (status == ISO_OK && json) {
    iso_string document = {0};
    iso_json_open(&document, NULL, '{');
    iso_json_put_text(&document, "text", out.data ? out.data : "");
    iso_json_shut(&document, '}');
    status = iso_json_print(&document);
  } else if (status == ISO_OK) {
    status = iso_text_print(&out);
  }
  free(list.ids);
  iso_string_fini(&text);
  iso_string_fini(&out);
  iso_tokenizer_close(&tokenizer);
  return status;
}

/* ---- check ---- */

static iso_status check_verb(iso_args *args) {
  bool json = false;
  const char *pattern = "";
  const iso_flag flags[] = {
      {"pattern", ISO_FLAG_TEXT, &pattern, "pre-tokenizer of a rank file whose name does not tell", 0, 0},
      {"json", ISO_FLAG_BOOL, &json, "one JSON document", 0, 0},
  };
  ISO_TRY(iso_args_parse(args, flags, ISO_COUNT(flags), 2, 2));
  if (args->help) return ISO_OK;
  iso_tokenizer *tokenizer;
  iso_vector_report report = {0};
  ISO_TRY(iso_tokenizer_open(args->words[0], pattern, &tokenizer));
  iso_status status = iso_tokenizer_check(tokenizer, args->words[1], json ? NULL : stdout, &report);
  iso_tokenizer_close(&tokenizer);
  if (status != ISO_OK && status != ISO_ERR_CHECK) return status;
  if (json) {
    iso_string out = {0};
    iso_json_open(&out, NULL, '{');
    iso_json_put_int(&out, "rows", report.rows);
    iso_json_put_int(&out, "matched", report.matched);
    iso_json_shut(&out, '}');
    ISO_TRY(iso_json_print(&out));
  } else {
    printf("%lld of %lld match\n", (long long)report.matched, (long long)report.rows);
  }
  if (status != ISO_OK || report.matched == report.rows) return status;
  return iso_fail(ISO_ERR_CHECK, "%s: %lld of %lld rows of %s do not match", args->words[0],
                  (long long)(report.rows - report.matched), (long long)report.rows, args->words[1]);
}

iso_status iso_verb_tokenizer(iso_args *args) {
  static const iso_verb table[] = {
      {"tokenizer train", iso_verb_tokenizer_train, "FILE ... --vocabulary N --out DIR",
       "learns a byte-level BPE vocabulary; the folder opens in Hugging Face too"},
      {"tokenizer encode", encode_verb, "TOKENIZER [FILE | --text TEXT]",
       "prints the ids of a text (standard input when none is named)"},
      {"tokenizer decode", decode_verb, "TOKENIZER [ID ...]",
       "prints the text of ids (standard input when none is given)"},
      {"tokenizer check", check_verb, "TOKENIZER VECTORS.jsonl", "compares with the ids that the reference gave"},
  };
  return iso_subverb_run(args, table, ISO_COUNT(table));
}
