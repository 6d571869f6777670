/* SPDX-License-Identifier: Apache-2.0
 *
 * huggingface.c: tokenizer.json: its model, its added tokens, and the file as a whole. The parts of its pipeline are
 * read in huggingface_parts.c; whether a byte-level pre-tokenizer is among them decides how tokens are written.
 *
 * What is implemented is taken, what cannot change ids (truncation, padding, post-processor templates) is left aside,
 * and everything else is refused by its name. Layout: Hugging Face `tokenizers`, its serialization.
 *
 * Invariants
 *  1. No key, part or option is ignored because it is not known.
 *  2. Ids, merges and added tokens agree with each other and with what the reference would make of them; in particular
 *     the reference numbers an added token that the vocabulary lacks itself, so a file that says otherwise is refused.
 *  3. A "" prefix or suffix means the same as none.
 */
#include "text/text.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* ---- model ---- */

static void reset(iso_string *string) {
  if (string->data) string->length = 0;
}

static iso_status check_model(iso_huggingface *l, const iso_json *model) {
  const char *type, *prefix, *suffix;
  double dropout;
  ISO_TRY(iso_huggingface_type_of(l, model, "model", &type));
  if (strcmp(type, "BPE") != 0) return iso_huggingface_refuse(l, "model", type);
  ISO_TRY(iso_huggingface_only_keys(
      l, model, "model BPE",
      " type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
      "ignore_merges vocab merges "));
  ISO_TRY(iso_json_double(model, l->where, "dropout", 0, &dropout));
  ISO_TRY(iso_json_string(model, l->where, "unk_token", NULL, &l->unknown));
  ISO_TRY(iso_json_string(model, l->where, "continuing_subword_prefix", "", &prefix));
  ISO_TRY(iso_json_string(model, l->where, "end_of_word_suffix", "", &suffix));
  ISO_TRY(iso_json_bool(model, l->where, "fuse_unk", false, &l->fuse_unknown));
  ISO_TRY(iso_json_bool(model, l->where, "byte_fallback", false, &l->byte_fallback));
  ISO_TRY(iso_json_bool(model, l->where, "ignore_merges", false, &l->tokenizer->whole_first));
  if (dropout != 0) return iso_huggingface_refuse(l, "model BPE with option", "dropout");
  if (*prefix) return iso_huggingface_refuse(l, "model BPE with continuing_subword_prefix", prefix);
  if (*suffix) return iso_huggingface_refuse(l, "model BPE with end_of_word_suffix", suffix);
  return ISO_OK;
}

/* The bytes that a token as written in the file stands for, in `out`; false when it can stand for none. */
static bool token_bytes(const iso_huggingface *l, const char *text, size_t length, iso_string *out) {
  reset(out);
  iso_string_append(out, "", 0);
  if (!l->tokenizer->sentencepiece) return iso_byte_level_decode(text, length, out);
  iso_string_append(out, text, length);
  return true;
}

/* SentencePiece's shape: ids of bytes and of what is unknown. */
static iso_status find_fallbacks(iso_huggingface *l) {
  const iso_vocabulary *v = &l->tokenizer->vocabulary;
  iso_sentencepiece *sp = l->tokenizer->sentencepiece;
  for (int byte = 0; byte < 256 && sp->byte_fallback; byte++) {
    char name[8];
    snprintf(name, sizeof name, "<0x%02X>", byte);
    sp->bytes[byte] = iso_vocabulary_find(v, name, 6, true);
    if (sp->bytes[byte] < 0)
      return iso_fail(ISO_ERR_UNSUPPORTED, "%s: byte_fallback without the token %s is not supported", l->where, name);
  }
  if (l->unknown) {
    sp->unknown = iso_vocabulary_find(v, l->unknown, strlen(l->unknown), true);
    if (sp->unknown < 0)
      return iso_fail(ISO_ERR_FORMAT, "%s: the vocabulary lacks unk_token \"%s\"", l->where, l->unknown);
  }
  return ISO_OK;
}

static iso_status load_vocabulary(iso_huggingface *l, const iso_json *vocab) {
  if (!cJSON_IsObject(vocab)) return iso_fail(ISO_ERR_FORMAT, "%s: model has no object \"vocab\"", l->where);
  for (const iso_json *item = vocab->child; item; item = item->next) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < ISO_VOCABULARY_LIMIT) ||
        item->valuedouble != (double)(int64_t)item->valuedouble)
      return iso_fail(ISO_ERR_FORMAT, "%s: the id of token \"%s\" must be a whole number within 0..%d", l->where,
                      item->string, ISO_VOCABULARY_LIMIT - 1);
    size_t length = strlen(item->string);
    bool mapped = token_bytes(l, item->string, length, &l->left);
    if (iso_string_failed(&l->left)) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", l->where);
    ISO_TRY(iso_vocabulary_add(&l->tokenizer->vocabulary, l->where, (int64_t)item->valuedouble,
                               mapped ? l->left.data : item->string, mapped ? l->left.length : length, mapped));
  }
  return l->tokenizer->sentencepiece ? find_fallbacks(l) : ISO_OK;
}

/* Bytes of a merge's half in `out` and its id. */
static iso_status find_half(const iso_huggingface *l, int64_t index, const char *text, size_t length, iso_string *out,
                            int32_t *id) {
  *id = token_bytes(l, text, length, out) && !iso_string_failed(out)
            ? iso_vocabulary_find(&l->tokenizer->vocabulary, out->data, out->length, true)
            : -1;
  const iso_sentencepiece *sp = l->tokenizer->sentencepiece;
  bool fallback = sp && *id >= 0 && *id == sp->unknown;
  for (int byte = 0; sp && sp->byte_fallback && byte < 256 && length == 6; byte++) fallback |= *id == sp->bytes[byte];
  if (fallback)
    return iso_fail(ISO_ERR_UNSUPPORTED, "%s: merge %lld of \"%.*s\", which stands for other text, is not supported",
                    l->where, (long long)index, (int)(length < 200 ? length : 200), text);
  if (*id >= 0) return ISO_OK;
  return iso_fail(ISO_ERR_FORMAT, "%s: merge %lld has a half \"%.*s\" that is no token of the vocabulary", l->where,
                  (long long)index, (int)(length < 200 ? length : 200), text);
}

static iso_status add_merge(iso_huggingface *l, int64_t index, const char *left, size_t left_length, const char *right,
                            size_t right_length) {
  int32_t a, b;
  ISO_TRY(find_half(l, index, left, left_length, &l->left, &a));
  ISO_TRY(find_half(l, index, right, right_length, &l->right, &b));
  iso_string_append(&l->left, l->right.data, l->right.length);
  if (iso_string_failed(&l->left)) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", l->where);
  int32_t id = iso_vocabulary_find(&l->tokenizer->vocabulary, l->left.data, l->left.length, true);
  if (id < 0)
    return iso_fail(ISO_ERR_FORMAT, "%s: merge %lld (ids %d and %d) makes a token that is not in the vocabulary",
                    l->where, (long long)index, a, b);
  if (!iso_pairs_add(&l->tokenizer->pairs, a, b, (int32_t)index, id))
    return iso_fail(ISO_ERR_FORMAT, "%s: merge %lld (ids %d and %d) stands there twice", l->where, (long long)index, a,
                    b);
  return ISO_OK;
}

/* "a b" or ["a", "b"]. */
static iso_status load_merges(iso_huggingface *l, const iso_json *merges) {
  if (!cJSON_IsArray(merges)) return iso_fail(ISO_ERR_FORMAT, "%s: model has no array \"merges\"", l->where);
  int64_t count = 0, index = 0;
  for (const iso_json *item = merges->child; item; item = item->next) count++;
  if (count > ISO_VOCABULARY_LIMIT)
    return iso_fail(ISO_ERR_FORMAT, "%s: %lld merges, more than %d", l->where, (long long)count, ISO_VOCABULARY_LIMIT);
  ISO_TRY(iso_pairs_reserve(&l->tokenizer->pairs, (uint64_t)count));
  for (const iso_json *item = merges->child; item; item = item->next, index++) {
    if (cJSON_IsString(item)) {
      const char *text = item->valuestring, *space = strchr(text, ' ');
      if (strncmp(text, "#version", 8) == 0) continue; /* a line of the old merges.txt */
      if (!space || strchr(space + 1, ' '))
        return iso_fail(ISO_ERR_FORMAT, "%s: merge %lld is not two tokens with one space between", l->where,
                        (long long)index);
      ISO_TRY(add_merge(l, index, text, (size_t)(space - text), space + 1, strlen(space + 1)));
      continue;
    }
    const iso_json *left = cJSON_IsArray(item) ? item->child : NULL, *right = left ? left->next : NULL;
    if (!right || right->next || !cJSON_IsString(left) || !cJSON_IsString(right))
      return iso_fail(ISO_ERR_FORMAT, "%s: merge %lld is neither \"a b\" nor [\"a\", \"b\"]", l->where,
                      (long long)index);
    ISO_TRY(add_merge(l, index, left->valuestring, strlen(left->valuestring), right->valuestring,
                      strlen(right->valuestring)));
  }
  return ISO_OK;
}

/* ---- added tokens ---- */

/* Finds or makes the vocabulary's entry. `next` is the id the reference would give a token that is new. */
static iso_status place_added(iso_huggingface *l, const iso_added_token *token, int64_t next) {
  iso_vocabulary *v = &l->tokenizer->vocabulary;
  bool mapped = token_bytes(l, token->content, token->length, &l->left);
  if (iso_string_failed(&l->left)) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", l->where);
  int32_t known = mapped ? iso_vocabulary_find(v, l->left.data, l->left.length, true)
                         : iso_vocabulary_find(v, token->content, token->length, false);
  if (known < 0) known = iso_vocabulary_find(v, token->content, token->length, false); /* added before as text */
  int64_t expected = known >= 0 ? known : next;
  if (token->id != expected)
    return iso_fail(
        ISO_ERR_FORMAT,
        "%s: added token \"%s\" has id %d, but %s %lld; the reference would use that one, so correct the file",
        l->where, token->content, token->id, known >= 0 ? "the vocabulary has it as" : "the next free id is",
        (long long)expected);
  if (known >= 0) return ISO_OK;
  return iso_vocabulary_add(v, l->where, token->id, token->content, token->length, false);
}

static iso_status load_added_token(iso_huggingface *l, const iso_json *json, int64_t *highest, int64_t model_tokens) {
  int64_t id;
  const char *content;
  bool single_word;
  iso_added_token token = {0};
  ISO_TRY(iso_huggingface_only_keys(l, json, "an added token",
                                    " id content single_word lstrip rstrip normalized special "));
  ISO_TRY(iso_json_int(json, l->where, "id", -1, &id));
  ISO_TRY(iso_json_string(json, l->where, "content", "", &content));
  ISO_TRY(iso_json_bool(json, l->where, "single_word", false, &single_word));
  ISO_TRY(iso_json_bool(json, l->where, "lstrip", false, &token.lstrip));
  ISO_TRY(iso_json_bool(json, l->where, "rstrip", false, &token.rstrip));
  ISO_TRY(iso_json_bool(json, l->where, "normalized", true, &token.normalized));
  ISO_TRY(iso_json_bool(json, l->where, "special", false, &token.special));
  if (id < 0 || id >= ISO_VOCABULARY_LIMIT)
    return iso_fail(ISO_ERR_FORMAT, "%s: added token \"%s\" has id %lld, outside 0..%d", l->where, content,
                    (long long)id, ISO_VOCABULARY_LIMIT - 1);
  if (single_word) return iso_huggingface_refuse(l, "an added token with option single_word:", content);
  if (!*content) return iso_fail(ISO_ERR_FORMAT, "%s: added token %lld is empty", l->where, (long long)id);
  token.id = (int32_t)id;
  token.content = (char *)(uintptr_t)content;
  token.length = strlen(content);
  for (size_t i = 0; i < l->tokenizer->added.count; i++)
    if (l->tokenizer->added.tokens[i].id == id) /* same content, same id: see place_added */
      return iso_fail(ISO_ERR_FORMAT, "%s: added token \"%s\" stands there twice", l->where, content);
  ISO_TRY(place_added(l, &token, *highest >= model_tokens ? *highest + 1 : model_tokens));
  if (id > *highest) *highest = id;
  return iso_added_add(&l->tokenizer->added, &token);
}

static iso_status load_added(iso_huggingface *l, const iso_json *list) {
  enum { LIMIT = 20000 };
  if (!list) return ISO_OK;
  if (!cJSON_IsArray(list)) return iso_fail(ISO_ERR_FORMAT, "%s: \"added_tokens\" must be an array", l->where);
  int64_t model_tokens = l->tokenizer->vocabulary.used, highest = -1;
  for (const iso_json *item = list->child; item; item = item->next) {
    if (l->tokenizer->added.count == LIMIT)
      return iso_fail(ISO_ERR_UNSUPPORTED, "%s: more than %d added tokens", l->where, LIMIT);
    ISO_TRY(load_added_token(l, item, &highest, model_tokens));
  }
  return ISO_OK;
}

/* ---- the file ---- */

static iso_status load(iso_huggingface *l, const iso_json *json) {
  const char *version;
  ISO_TRY(iso_huggingface_only_keys(
      l, json, "the tokenizer",
      " version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model "));
  ISO_TRY(iso_json_string(json, l->where, "version", "1.0", &version));
  if (strcmp(version, "1.0") != 0) return iso_huggingface_refuse(l, "version", version);
  const iso_json *model = iso_json_get(json, "model");
  if (!model) return iso_fail(ISO_ERR_FORMAT, "%s: no \"model\"", l->where);
  ISO_TRY(check_model(l, model));
  ISO_TRY(iso_huggingface_load_parts(l, json));
  ISO_TRY(load_vocabulary(l, iso_json_get(model, "vocab")));
  iso_vocabulary_finish(&l->tokenizer->vocabulary);
  ISO_TRY(load_merges(l, iso_json_get(model, "merges")));
  ISO_TRY(load_added(l, iso_json_get(json, "added_tokens")));
  if (l->tokenizer->sentencepiece) ISO_TRY(iso_sentencepiece_finish(l->tokenizer, ""));
  return iso_added_finish(&l->tokenizer->added, l->tokenizer);
}

iso_status iso_huggingface_load(iso_tokenizer *tokenizer, const char *text, size_t length) {
  iso_huggingface l = {.tokenizer = tokenizer, .where = tokenizer->file};
  iso_json *json;
  ISO_TRY(iso_json_parse(text, length, tokenizer->file, &json));
  iso_status status = load(&l, json);
  iso_json_destroy(&json);
  iso_string_fini(&l.left);
  iso_string_fini(&l.right);
  return status;
}
