/* SPDX-License-Identifier: Apache-2.0
 *
 * tiktoken.c: rank files. A line is base64(bytes), a space, the rank in decimal; the rank is the id.
 *
 * The file holds neither its pre-tokenizer nor its special tokens: both are facts about published vocabularies, told
 * by the file's name (source: openai/tiktoken, tiktoken_ext/openai_public.py) or, since Llama 3's is called
 * tokenizer.model, by its SHA-256; or the caller names the pattern.
 *
 * Invariants
 *  1. Every line is exactly of that form, every id and every token stands once.
 *  2. Two neighbours merge when their bytes together are a token, lowest rank first; a piece that is a token is taken
 *     whole.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

typedef struct special_token {
  const char *content;
  int32_t id;
} special_token;

/* Contents that count up, the number between two texts. */
typedef struct special_run {
  const char *before, *after;
  int32_t number, id, count;
} special_run;

static const struct {
  const char *name; /* of the file */
  const char *sha;  /* of its bytes, for one that is called tokenizer.model; NULL: the name tells */
  const char *pattern;
  special_token special[16];
  special_run run;
} published[] = {
    {"gpt2", NULL, "gpt2", {{"<|endoftext|>", 50256}}, {0}},
    {"r50k_base", NULL, "gpt2", {{"<|endoftext|>", 50256}}, {0}},
    {"p50k_base", NULL, "gpt2", {{"<|endoftext|>", 50256}}, {0}},
    {"cl100k_base",
     NULL,
     "cl100k",
     {{"<|endoftext|>", 100257},
      {"<|fim_prefix|>", 100258},
      {"<|fim_middle|>", 100259},
      {"<|fim_suffix|>", 100260},
      {"<|endofprompt|>", 100276}},
     {0}},
    {"o200k_base", NULL, "o200k", {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}, {0}},
    /* 200018 has two names; it decodes to the one that counts up. */
    {"o200k_harmony",
     NULL,
     "o200k",
     {{"<|startoftext|>", 199998},
      {"<|endoftext|>", 199999},
      {"<|reserved_200000|>", 200000},
      {"<|reserved_200001|>", 200001},
      {"<|return|>", 200002},
      {"<|constrain|>", 200003},
      {"<|reserved_200004|>", 200004},
      {"<|channel|>", 200005},
      {"<|start|>", 200006},
      {"<|end|>", 200007},
      {"<|message|>", 200008},
      {"<|reserved_200009|>", 200009},
      {"<|reserved_200010|>", 200010},
      {"<|reserved_200011|>", 200011},
      {"<|call|>", 200012},
      {"<|endofprompt|>", 200018}},
     {"<|reserved_", "|>", 200013, 200013, 1075}},
    /* Llama 3, special tokens as released first; the names that version 3.1 gave three of them are read too. */
    {"llama3",
     "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
     "llama3",
     {{"<|begin_of_text|>", 128000},
      {"<|end_of_text|>", 128001},
      {"<|reserved_special_token_0|>", 128002},
      {"<|reserved_special_token_1|>", 128003},
      {"<|reserved_special_token_2|>", 128004},
      {"<|reserved_special_token_3|>", 128005},
      {"<|start_header_id|>", 128006},
      {"<|end_header_id|>", 128007},
      {"<|reserved_special_token_4|>", 128008},
      {"<|eot_id|>", 128009},
      {"<|finetune_right_pad_id|>", 128004},
      {"<|eom_id|>", 128008},
      {"<|python_tag|>", 128010}},
     {"<|reserved_special_token_", "|>", 5, 128010, 246}},
};

/* ---- base64 ---- */

static int sextet(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool iso_base64_decode(const char *text, size_t length, iso_string *out) {
  if (length % 4 != 0) return false;
  for (size_t i = 0; i < length; i += 4) {
    int padding = text[i + 3] != '=' ? 0 : text[i + 2] != '=' ? 1 : 2;
    if (padding && i + 4 != length) return false;
    uint32_t bits = 0;
    for (int k = 0; k < 4 - padding; k++) {
      int value = sextet(text[i + (size_t)k]);
      if (value < 0) return false;
      bits |= (uint32_t)value << (18 - 6 * k);
    }
    if (bits & ((1u << 8 * padding) - 1)) return false; /* bits beyond the last byte must be 0 */
    char bytes[3] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};
    iso_string_append(out, bytes, 3 - (size_t)padding);
  }
  return true;
}

/* ---- lines ---- */

static iso_status add_line(iso_tokenizer *t, int64_t number, const char *line, size_t length, iso_string *bytes) {
  const char *space = memchr(line, ' ', length);
  size_t encoded = space ? (size_t)(space - line) : 0, digits = space ? length - encoded - 1 : 0;
  if (bytes->data) bytes->length = 0;
  bool good = encoded > 0 && digits >= 1 && digits <= 9 && iso_base64_decode(line, encoded, bytes);
  int64_t rank = 0;
  for (size_t i = 0; good && i < digits; i++) {
    char c = space[1 + i];
    good = c >= '0' && c <= '9' && !(i == 0 && c == '0' && digits > 1);
    rank = 10 * rank + (c - '0');
  }
  if (iso_string_failed(bytes)) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", t->file);
  if (!good)
    return iso_fail(
        ISO_ERR_FORMAT,
        "%s: line %lld is not \"base64 rank\" (tokenizer.json, tokenizer.model and tiktoken rank files are read)",
        t->file, (long long)number);
  return iso_vocabulary_add(&t->vocabulary, t->file, rank, bytes->data, bytes->length, true);
}

static iso_status load_lines(iso_tokenizer *t, const char *text, size_t length) {
  iso_string bytes = {0};
  iso_status status = ISO_OK;
  int64_t number = 0;
  for (size_t at = 0; at < length && status == ISO_OK;) {
    const char *end = memchr(text + at, '\n', length - at);
    size_t stop = end ? (size_t)(end - text) : length;
    size_t line = stop - at;
    if (line > 0 && text[stop - 1] == '\r') line--;
    number++;
    if (line > 0) status = add_line(t, number, text + at, line, &bytes); /* tiktoken skips empty lines */
    at = stop + 1;
  }
  iso_string_fini(&bytes);
  if (status == ISO_OK && t->vocabulary.used == 0) status = iso_fail(ISO_ERR_FORMAT, "%s: no tokens", t->file);
  return status;
}

/* ---- special tokens and pattern ---- */

/* The file's name without folder and ending. */
static void base_name(const char *path, char *out, size_t capacity) {
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
  size_t length = dot ? (size_t)(dot - name) : strlen(name);
  snprintf(out, capacity, "%.*s", (int)(length < capacity ? length : capacity - 1), name);
}

static iso_status add_special(iso_tokenizer *t, const char *content, int32_t id) {
  size_t length = strlen(content);
  iso_added_token token = {.content = (char *)(uintptr_t)content, .length = length, .id = id, .special = true};
  bool second_name = id < t->vocabulary.count && t->vocabulary.tokens[id].present &&
                     !t->vocabulary.tokens[id].mapped; /* the first decodes */
  if (!second_name) ISO_TRY(iso_vocabulary_add(&t->vocabulary, t->file, id, content, length, false));
  return iso_added_add(&t->added, &token);
}

static iso_status add_specials(iso_tokenizer *t, const special_token *special, const special_run *run) {
  for (int32_t i = 0; i < run->count; i++) {
    char content[64];
    snprintf(content, sizeof content, "%s%d%s", run->before, run->number + i, run->after);
    ISO_TRY(add_special(t, content, run->id + i));
  }
  for (size_t i = 0; i < ISO_COUNT(published[0].special) && special[i].content; i++)
    ISO_TRY(add_special(t, special[i].content, special[i].id));
  return ISO_OK;
}

/* Place in `published`, -1: not there. */
static int find_published(const iso_tokenizer *t) {
  char name[64];
  base_name(t->file, name, sizeof name);
  for (size_t i = 0; i < ISO_COUNT(published); i++)
    if (published[i].sha ? strcmp(t->file_sha, published[i].sha) == 0 : strcmp(name, published[i].name) == 0)
      return (int)i;
  return -1;
}

iso_status iso_tiktoken_load(iso_tokenizer *tokenizer, const char *text, size_t length, const char *pattern) {
  const int known = find_published(tokenizer);
  const char *own = known >= 0 ? published[known].pattern : NULL;
  if (!own && !*pattern)
    return iso_fail(ISO_ERR_CONFIG,
                    "%s: a rank file does not say how text is split, and this one is not known by its name (gpt2, "
                    "r50k_base, p50k_base, cl100k_base, o200k_base, o200k_harmony) or content (Llama 3): give "
                    "tokenizer.pattern",
                    tokenizer->file);
  if (own && *pattern && (iso_splitter_find(pattern) != iso_splitter_find(own)))
    return iso_fail(ISO_ERR_CONFIG,
                    "%s: this rank file's pattern is %s, not the one given: leave tokenizer.pattern empty",
                    tokenizer->file, own);
  ISO_TRY(iso_tokenizer_add_step(tokenizer, tokenizer->file, own ? own : pattern));
  ISO_TRY(load_lines(tokenizer, text, length));
  iso_vocabulary_finish(&tokenizer->vocabulary);
  ISO_TRY(iso_pairs_from_ranks(&tokenizer->pairs, &tokenizer->vocabulary));
  if (known >= 0) ISO_TRY(add_specials(tokenizer, published[known].special, &published[known].run));
  tokenizer->whole_first = true;
  return iso_added_finish(&tokenizer->added, tokenizer);
}
