/* SPDX-License-Identifier: Apache-2.0
 *
 * huggingface.c: tokenizer.json, byte-level BPE.
 *
 * The file describes a pipeline (normalizer, pre-tokenizer, model, added tokens) of parts by name. What is implemented
 * is taken, what cannot change ids (truncation, padding, post-processor templates) is left aside, and everything else
 * is refused by its name. Layout: Hugging Face `tokenizers`, its serialization.
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

typedef struct loader {
  iso_tokenizer *tokenizer;
  const char *where; /* the file, for messages */
  iso_string left, right;
} loader;

static iso_status refuse(const loader *l, const char *what, const char *name) {
  return iso_fail(ISO_ERR_UNSUPPORTED, "%s: %s \"%s\" is not supported yet (byte-level BPE is)", l->where, what, name);
}

/* Refuses members that are not in `keys` (space-separated, each with a space before and after). */
static iso_status only_keys(const loader *l, const iso_json *object, const char *what, const char *keys) {
  if (!cJSON_IsObject(object)) return iso_fail(ISO_ERR_FORMAT, "%s: %s must be an object", l->where, what);
  for (const iso_json *item = object->child; item; item = item->next) {
    char key[64];
    snprintf(key, sizeof key, " %s ", item->string);
    if (strlen(item->string) >= sizeof key - 2 || strchr(item->string, ' ') || !strstr(keys, key))
      return iso_fail(ISO_ERR_UNSUPPORTED, "%s: %s has an option \"%s\" that is not known", l->where, what,
                      item->string);
  }
  return ISO_OK;
}

static iso_status type_of(const loader *l, const iso_json *object, const char *what, const char **type) {
  if (!cJSON_IsObject(object)) return iso_fail(ISO_ERR_FORMAT, "%s: %s must be an object", l->where, what);
  ISO_TRY(iso_json_string(object, l->where, "type", NULL, type));
  return *type ? ISO_OK : iso_fail(ISO_ERR_FORMAT, "%s: %s has no \"type\"", l->where, what);
}

/* ---- normalizer ---- */

static iso_status load_normalizer(loader *l, const iso_json *json) {
  const char *type;
  if (!json) return ISO_OK;
  ISO_TRY(type_of(l, json, "normalizer", &type));
  if (strcmp(type, "NFC") == 0) {
    l->tokenizer->nfc = true;
    return only_keys(l, json, "normalizer NFC", " type ");
  }
  if (strcmp(type, "Sequence") != 0) return refuse(l, "normalizer", type);
  ISO_TRY(only_keys(l, json, "normalizer Sequence", " type normalizers "));
  const iso_json *list = iso_json_get(json, "normalizers");
  if (!cJSON_IsArray(list)) return iso_fail(ISO_ERR_FORMAT, "%s: \"normalizers\" must be an array", l->where);
  for (const iso_json *item = list->child; item; item = item->next) ISO_TRY(load_normalizer(l, item));
  return ISO_OK;
}

/* ---- pre-tokenizer ---- */

static iso_status load_split(loader *l, const iso_json *json) {
  const char *regex, *behavior;
  bool invert;
  ISO_TRY(only_keys(l, json, "pre_tokenizer Split", " type pattern behavior invert "));
  const iso_json *pattern = iso_json_get(json, "pattern");
  ISO_TRY(only_keys(l, pattern, "the pattern of pre_tokenizer Split", " Regex String "));
  if (iso_json_get(pattern, "String")) return refuse(l, "pre_tokenizer Split with a pattern of kind", "String");
  ISO_TRY(iso_json_string(pattern, l->where, "Regex", NULL, &regex));
  ISO_TRY(iso_json_string(json, l->where, "behavior", "", &behavior));
  ISO_TRY(iso_json_bool(json, l->where, "invert", false, &invert));
  if (!regex) return iso_fail(ISO_ERR_FORMAT, "%s: pre_tokenizer Split has no \"Regex\"", l->where);
  /* Patterns of ours match every character, so removing what does not match is the same as isolating what does. */
  bool covers = iso_splitter_find(regex) != ISO_SPLIT_REGEX;
  bool same = covers && invert && strcmp(behavior, "Removed") == 0;
  if (strcmp(behavior, "Isolated") != 0 && !same) return refuse(l, "pre_tokenizer Split with behavior", behavior);
  if (invert && !same) return refuse(l, "pre_tokenizer Split with option", "invert");
  return iso_tokenizer_add_step(l->tokenizer, l->where, regex);
}

static iso_status add_digits(loader *l, const iso_json *json) {
  bool single;
  iso_tokenizer *t = l->tokenizer;
  ISO_TRY(only_keys(l, json, "pre_tokenizer Digits", " type individual_digits "));
  ISO_TRY(iso_json_bool(json, l->where, "individual_digits", false, &single));
  if (t->step_count == ISO_SPLIT_STEPS)
    return iso_fail(ISO_ERR_UNSUPPORTED, "%s: more than %d pre-tokenizers", l->where, ISO_SPLIT_STEPS);
  t->steps[t->step_count++] = (iso_split_step){.splitter = single ? ISO_SPLIT_DIGIT : ISO_SPLIT_DIGITS};
  return ISO_OK;
}

static iso_status add_byte_level(loader *l, const iso_json *json) {
  bool prefix, regex;
  ISO_TRY(only_keys(l, json, "pre_tokenizer ByteLevel", " type add_prefix_space trim_offsets use_regex "));
  ISO_TRY(iso_json_bool(json, l->where, "add_prefix_space", true, &prefix));
  ISO_TRY(iso_json_bool(json, l->where, "use_regex", true, &regex));
  if (prefix) return refuse(l, "pre_tokenizer ByteLevel with option", "add_prefix_space");
  return regex ? iso_tokenizer_add_step(l->tokenizer, l->where, "gpt2") : ISO_OK;
}

/* One part; *byte_level becomes true at ByteLevel, which must be the last. */
static iso_status load_pre_tokenizer(loader *l, const iso_json *json, bool *byte_level) {
  const char *type;
  ISO_TRY(type_of(l, json, "pre_tokenizer", &type));
  if (*byte_level) return refuse(l, "a pre_tokenizer after ByteLevel:", type);
  if (strcmp(type, "Split") == 0) return load_split(l, json);
  if (strcmp(type, "Digits") == 0) return add_digits(l, json);
  if (strcmp(type, "ByteLevel") == 0) {
    *byte_level = true;
    return add_byte_level(l, json);
  }
  return refuse(l, "pre_tokenizer", type);
}

static iso_status load_pre_tokenizers(loader *l, const iso_json *json) {
  const char *type;
  bool byte_level = false;
  if (!json)
    return refuse(l, "a model without byte-level pre_tokenizer (SentencePiece style):", "pre_tokenizer is null");
  ISO_TRY(type_of(l, json, "pre_tokenizer", &type));
  if (strcmp(type, "Sequence") == 0) {
    ISO_TRY(only_keys(l, json, "pre_tokenizer Sequence", " type pretokenizers "));
    const iso_json *list = iso_json_get(json, "pretokenizers");
    if (!cJSON_IsArray(list)) return iso_fail(ISO_ERR_FORMAT, "%s: \"pretokenizers\" must be an array", l->where);
    for (const iso_json *item = list->child; item; item = item->next) ISO_TRY(load_pre_tokenizer(l, item, &byte_level));
  } else {
    ISO_TRY(load_pre_tokenizer(l, json, &byte_level));
  }
  if (!byte_level) return refuse(l, "a pre_tokenizer without ByteLevel at its end:", type);
  return ISO_OK;
}

/* ---- parts that do not change ids ---- */

/* Templates and offsets: they add nothing to text encoded without special tokens. */
static iso_status check_post_processor(const loader *l, const iso_json *json) {
  static const char *const known[] = {"ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing"};
  const char *type;
  if (!json) return ISO_OK;
  ISO_TRY(type_of(l, json, "post_processor", &type));
  for (size_t i = 0; i < ISO_COUNT(known); i++)
    if (strcmp(type, known[i]) == 0) return ISO_OK;
  const iso_json *list = iso_json_get(json, "processors");
  if (strcmp(type, "Sequence") != 0 || !cJSON_IsArray(list)) return refuse(l, "post_processor", type);
  for (const iso_json *item = list->child; item; item = item->next) ISO_TRY(check_post_processor(l, item));
  return ISO_OK;
}

static iso_status check_decoder(const loader *l, const iso_json *json) {
  const char *type;
  if (!json) return ISO_OK;
  ISO_TRY(type_of(l, json, "decoder", &type));
  if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "Fuse") == 0) return ISO_OK;
  const iso_json *list = iso_json_get(json, "decoders");
  if (strcmp(type, "Sequence") != 0 || !cJSON_IsArray(list)) return refuse(l, "decoder", type);
  for (const iso_json *item = list->child; item; item = item->next) ISO_TRY(check_decoder(l, item));
  return ISO_OK;
}

/* ---- model ---- */

static void reset(iso_string *string) {
  if (string->data) string->length = 0;
}

static iso_status check_model(loader *l, const iso_json *model) {
  const char *type, *unknown, *prefix, *suffix;
  bool fuse, fallback;
  double dropout;
  ISO_TRY(type_of(l, model, "model", &type));
  if (strcmp(type, "BPE") != 0) return refuse(l, "model", type);
  ISO_TRY(only_keys(l, model, "model BPE",
                    " type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback "
                    "ignore_merges vocab merges "));
  ISO_TRY(iso_json_double(model, l->where, "dropout", 0, &dropout));
  ISO_TRY(iso_json_string(model, l->where, "unk_token", NULL, &unknown));
  ISO_TRY(iso_json_string(model, l->where, "continuing_subword_prefix", "", &prefix));
  ISO_TRY(iso_json_string(model, l->where, "end_of_word_suffix", "", &suffix));
  ISO_TRY(iso_json_bool(model, l->where, "fuse_unk", false, &fuse));
  ISO_TRY(iso_json_bool(model, l->where, "byte_fallback", false, &fallback));
  ISO_TRY(iso_json_bool(model, l->where, "ignore_merges", false, &l->tokenizer->whole_first));
  if (dropout != 0) return refuse(l, "model BPE with option", "dropout");
  if (fallback) return refuse(l, "model BPE with option (SentencePiece style)", "byte_fallback");
  if (*prefix) return refuse(l, "model BPE with continuing_subword_prefix", prefix);
  if (*suffix) return refuse(l, "model BPE with end_of_word_suffix", suffix);
  return ISO_OK;
}

static iso_status load_vocabulary(loader *l, const iso_json *vocab) {
  if (!cJSON_IsObject(vocab)) return iso_fail(ISO_ERR_FORMAT, "%s: model has no object \"vocab\"", l->where);
  for (const iso_json *item = vocab->child; item; item = item->next) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < ISO_VOCABULARY_LIMIT) ||
        item->valuedouble != (double)(int64_t)item->valuedouble)
      return iso_fail(ISO_ERR_FORMAT, "%s: the id of token \"%s\" must be a whole number within 0..%d", l->where,
                      item->string, ISO_VOCABULARY_LIMIT - 1);
    size_t length = strlen(item->string);
    reset(&l->left);
    bool mapped = iso_byte_level_decode(item->string, length, &l->left);
    if (iso_string_failed(&l->left)) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", l->where);
    ISO_TRY(iso_vocabulary_add(&l->tokenizer->vocabulary, l->where, (int64_t)item->valuedouble,
                               mapped ? l->left.data : item->string, mapped ? l->left.length : length, mapped));
  }
  return ISO_OK;
}

/* Bytes of a merge's half in `out` and its id. */
static iso_status find_half(const loader *l, int64_t index, const char *text, size_t length, iso_string *out,
                            int32_t *id) {
  reset(out);
  *id = iso_byte_level_decode(text, length, out) && !iso_string_failed(out)
            ? iso_vocabulary_find(&l->tokenizer->vocabulary, out->data ? out->data : "", out->length, true)
            : -1;
  if (*id >= 0) return ISO_OK;
  return iso_fail(ISO_ERR_FORMAT, "%s: merge %lld has a half \"%.*s\" that is no byte-level token of the vocabulary",
                  l->where, (long long)index, (int)(length < 200 ? length : 200), text);
}

static iso_status add_merge(loader *l, int64_t index, const char *left, size_t left_length, const char *right,
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
static iso_status load_merges(loader *l, const iso_json *merges) {
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
static iso_status place_added(loader *l, const iso_added_token *token, int64_t next) {
  iso_vocabulary *v = &l->tokenizer->vocabulary;
  reset(&l->left);
  bool mapped = iso_byte_level_decode(token->content, token->length, &l->left);
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

static iso_status load_added_token(loader *l, const iso_json *json, int64_t *highest, int64_t model_tokens) {
  int64_t id;
  const char *content;
  bool single_word;
  iso_added_token token = {0};
  ISO_TRY(only_keys(l, json, "an added token", " id content single_word lstrip rstrip normalized special "));
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
  if (single_word) return refuse(l, "an added token with option single_word:", content);
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

static iso_status load_added(loader *l, const iso_json *list) {
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

static iso_status load(loader *l, const iso_json *json) {
  const char *version;
  ISO_TRY(only_keys(l, json, "the tokenizer",
                    " version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model "));
  ISO_TRY(iso_json_string(json, l->where, "version", "1.0", &version));
  if (strcmp(version, "1.0") != 0) return refuse(l, "version", version);
  const iso_json *model = iso_json_get(json, "model");
  if (!model) return iso_fail(ISO_ERR_FORMAT, "%s: no \"model\"", l->where);
  ISO_TRY(check_model(l, model));
  ISO_TRY(load_normalizer(l, iso_json_get(json, "normalizer")));
  ISO_TRY(load_pre_tokenizers(l, iso_json_get(json, "pre_tokenizer")));
  ISO_TRY(check_post_processor(l, iso_json_get(json, "post_processor")));
  ISO_TRY(check_decoder(l, iso_json_get(json, "decoder")));
  ISO_TRY(load_vocabulary(l, iso_json_get(model, "vocab")));
  iso_vocabulary_finish(&l->tokenizer->vocabulary);
  ISO_TRY(load_merges(l, iso_json_get(model, "merges")));
  ISO_TRY(load_added(l, iso_json_get(json, "added_tokens")));
  return iso_added_finish(&l->tokenizer->added, l->tokenizer);
}

iso_status iso_huggingface_load(iso_tokenizer *tokenizer, const char *text, size_t length) {
  loader l = {.tokenizer = tokenizer, .where = tokenizer->file};
  iso_json *json;
  ISO_TRY(iso_json_parse(text, length, tokenizer->file, &json));
  iso_status status = load(&l, json);
  iso_json_destroy(&json);
  iso_string_fini(&l.left);
  iso_string_fini(&l.right);
  return status;
}
