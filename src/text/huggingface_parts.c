/* SPDX-License-Identifier: Apache-2.0
 *
 * huggingface_parts.c: the pipeline of a tokenizer.json around its model: normalizer, pre-tokenizer, post-processor,
 * decoder, each a part with a type, or a sequence of parts.
 *
 * Two shapes are known. Byte-level: ByteLevel ends the pre-tokenizer, tokens are written in its alphabet.
 * SentencePiece: spaces become U+2581, by a Metaspace pre-tokenizer or by the normalizers Prepend and Replace, and
 * tokens are text.
 *
 * Invariants
 *  1. No part or option is ignored because it is not known.
 *  2. A SentencePiece-shaped file has one place where spaces are replaced, and decodes them back.
 */
#include "text/text.h"

#include <cjson/cJSON.h>
#include <string.h>

#define MARK "\xE2\x96\x81" /* U+2581 */

iso_status iso_huggingface_refuse(const iso_huggingface *l, const char *what, const char *name) {
  return iso_fail(ISO_ERR_UNSUPPORTED,
                  "%s: %s \"%s\" is not supported yet (BPE, byte-level or of SentencePiece's shape, is)", l->where,
                  what, name);
}

/* Refuses members that are not in `keys` (space-separated, each with a space before and after). */
iso_status iso_huggingface_only_keys(const iso_huggingface *l, const iso_json *object, const char *what,
                                     const char *keys) {
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

iso_status iso_huggingface_type_of(const iso_huggingface *l, const iso_json *object, const char *what,
                                   const char **type) {
  if (!cJSON_IsObject(object)) return iso_fail(ISO_ERR_FORMAT, "%s: %s must be an object", l->where, what);
  ISO_TRY(iso_json_string(object, l->where, "type", NULL, type));
  return *type ? ISO_OK : iso_fail(ISO_ERR_FORMAT, "%s: %s has no \"type\"", l->where, what);
}

/* ---- normalizer ---- */

/* Is `json` the replacement of " " by U+2581, or the other way round? */
static iso_status expect_replace(const iso_huggingface *l, const iso_json *json, const char *what, const char *from,
                                 const char *to) {
  const char *text, *content;
  ISO_TRY(iso_huggingface_only_keys(l, json, what, " type pattern content "));
  const iso_json *pattern = iso_json_get(json, "pattern");
  ISO_TRY(iso_huggingface_only_keys(l, pattern, "the pattern of Replace", " Regex String "));
  ISO_TRY(iso_json_string(pattern, l->where, "String", NULL, &text));
  ISO_TRY(iso_json_string(json, l->where, "content", "", &content));
  if (!text) return iso_huggingface_refuse(l, "a part Replace with a pattern of kind", "Regex");
  if (strcmp(text, from) != 0 || strcmp(content, to) != 0) return iso_huggingface_refuse(l, what, text);
  return ISO_OK;
}

static iso_status need_sentencepiece(iso_huggingface *l) {
  return l->tokenizer->sentencepiece ? ISO_OK : iso_sentencepiece_new(l->tokenizer);
}

static iso_status load_prepend(iso_huggingface *l, const iso_json *json) {
  const char *text;
  ISO_TRY(iso_huggingface_only_keys(l, json, "normalizer Prepend", " type prepend "));
  ISO_TRY(iso_json_string(json, l->where, "prepend", "", &text));
  ISO_TRY(need_sentencepiece(l));
  if (strcmp(text, MARK) != 0) return iso_huggingface_refuse(l, "normalizer Prepend of", text);
  if (l->tokenizer->sentencepiece->prefix != ISO_PREFIX_NONE)
    return iso_huggingface_refuse(l, "a second normalizer", "Prepend");
  l->tokenizer->sentencepiece->prefix = ISO_PREFIX_EVERY;
  return ISO_OK;
}

static iso_status load_replace(iso_huggingface *l, const iso_json *json) {
  ISO_TRY(expect_replace(l, json, "normalizer Replace of", " ", MARK));
  ISO_TRY(need_sentencepiece(l));
  l->tokenizer->sentencepiece->escape = true;
  return ISO_OK;
}

static iso_status load_normalizer(iso_huggingface *l, const iso_json *json) {
  const char *type;
  if (!json) return ISO_OK;
  ISO_TRY(iso_huggingface_type_of(l, json, "normalizer", &type));
  if (strcmp(type, "NFC") == 0) {
    l->tokenizer->nfc = true;
    return iso_huggingface_only_keys(l, json, "normalizer NFC", " type ");
  }
  if (strcmp(type, "Prepend") == 0) return load_prepend(l, json);
  if (strcmp(type, "Replace") == 0) return load_replace(l, json);
  if (strcmp(type, "Sequence") != 0) return iso_huggingface_refuse(l, "normalizer", type);
  ISO_TRY(iso_huggingface_only_keys(l, json, "normalizer Sequence", " type normalizers "));
  const iso_json *list = iso_json_get(json, "normalizers");
  if (!cJSON_IsArray(list)) return iso_fail(ISO_ERR_FORMAT, "%s: \"normalizers\" must be an array", l->where);
  for (const iso_json *item = list->child; item; item = item->next) ISO_TRY(load_normalizer(l, item));
  return ISO_OK;
}

/* ---- pre-tokenizer ---- */

static iso_status load_split(iso_huggingface *l, const iso_json *json) {
  const char *regex, *behavior;
  bool invert;
  ISO_TRY(iso_huggingface_only_keys(l, json, "pre_tokenizer Split", " type pattern behavior invert "));
  const iso_json *pattern = iso_json_get(json, "pattern");
  ISO_TRY(iso_huggingface_only_keys(l, pattern, "the pattern of pre_tokenizer Split", " Regex String "));
  if (iso_json_get(pattern, "String"))
    return iso_huggingface_refuse(l, "pre_tokenizer Split with a pattern of kind", "String");
  ISO_TRY(iso_json_string(pattern, l->where, "Regex", NULL, &regex));
  ISO_TRY(iso_json_string(json, l->where, "behavior", "", &behavior));
  ISO_TRY(iso_json_bool(json, l->where, "invert", false, &invert));
  if (!regex) return iso_fail(ISO_ERR_FORMAT, "%s: pre_tokenizer Split has no \"Regex\"", l->where);
  /* Patterns of ours match every character, so removing what does not match is the same as isolating what does. */
  bool covers = iso_splitter_find(regex) != ISO_SPLIT_REGEX;
  bool same = covers && invert && strcmp(behavior, "Removed") == 0;
  if (strcmp(behavior, "Isolated") != 0 && !same)
    return iso_huggingface_refuse(l, "pre_tokenizer Split with behavior", behavior);
  if (invert && !same) return iso_huggingface_refuse(l, "pre_tokenizer Split with option", "invert");
  return iso_tokenizer_add_step(l->tokenizer, l->where, regex);
}

static iso_status add_digits(iso_huggingface *l, const iso_json *json) {
  bool single;
  iso_tokenizer *t = l->tokenizer;
  ISO_TRY(iso_huggingface_only_keys(l, json, "pre_tokenizer Digits", " type individual_digits "));
  ISO_TRY(iso_json_bool(json, l->where, "individual_digits", false, &single));
  if (t->step_count == ISO_SPLIT_STEPS)
    return iso_fail(ISO_ERR_UNSUPPORTED, "%s: more than %d pre-tokenizers", l->where, ISO_SPLIT_STEPS);
  t->steps[t->step_count++] = (iso_split_step){.splitter = single ? ISO_SPLIT_DIGIT : ISO_SPLIT_DIGITS};
  return ISO_OK;
}

static iso_status add_byte_level(iso_huggingface *l, const iso_json *json) {
  bool prefix, regex;
  ISO_TRY(
      iso_huggingface_only_keys(l, json, "pre_tokenizer ByteLevel", " type add_prefix_space trim_offsets use_regex "));
  ISO_TRY(iso_json_bool(json, l->where, "add_prefix_space", true, &prefix));
  ISO_TRY(iso_json_bool(json, l->where, "use_regex", true, &regex));
  if (prefix) return iso_huggingface_refuse(l, "pre_tokenizer ByteLevel with option", "add_prefix_space");
  return regex ? iso_tokenizer_add_step(l->tokenizer, l->where, "gpt2") : ISO_OK;
}

/* One part; *byte_level becomes true at ByteLevel, which must be the last. */
static iso_status load_pre_tokenizer(iso_huggingface *l, const iso_json *json, bool *byte_level) {
  const char *type;
  ISO_TRY(iso_huggingface_type_of(l, json, "pre_tokenizer", &type));
  if (*byte_level) return iso_huggingface_refuse(l, "a pre_tokenizer after ByteLevel:", type);
  if (strcmp(type, "Split") == 0) return load_split(l, json);
  if (strcmp(type, "Digits") == 0) return add_digits(l, json);
  if (strcmp(type, "ByteLevel") == 0) {
    *byte_level = true;
    return add_byte_level(l, json);
  }
  return iso_huggingface_refuse(l, "pre_tokenizer", type);
}

static iso_status load_metaspace(iso_huggingface *l, const iso_json *json) {
  static const struct {
    const char *name;
    iso_prefix prefix;
  } schemes[] = {{"never", ISO_PREFIX_NONE}, {"first", ISO_PREFIX_START_UNLESS}, {"always", ISO_PREFIX_EVERY_UNLESS}};
  const char *replacement, *scheme;
  bool prefix;
  ISO_TRY(iso_huggingface_only_keys(l, json, "pre_tokenizer Metaspace",
                                    " type replacement prepend_scheme split add_prefix_space str_rep "));
  if (l->tokenizer->sentencepiece) return iso_huggingface_refuse(l, "beside a normalizer, pre_tokenizer", "Metaspace");
  ISO_TRY(iso_sentencepiece_new(l->tokenizer));
  iso_sentencepiece *sp = l->tokenizer->sentencepiece;
  ISO_TRY(iso_json_string(json, l->where, "replacement", "", &replacement));
  ISO_TRY(iso_json_string(json, l->where, "prepend_scheme", "always", &scheme));
  ISO_TRY(iso_json_bool(json, l->where, "add_prefix_space", strcmp(scheme, "never") != 0, &prefix));
  ISO_TRY(iso_json_bool(json, l->where, "split", true, &sp->each_mark));
  if (strcmp(replacement, MARK) != 0)
    return iso_huggingface_refuse(l, "pre_tokenizer Metaspace with replacement", replacement);
  if (!prefix && strcmp(scheme, "never") != 0)
    return iso_huggingface_refuse(l, "pre_tokenizer Metaspace without add_prefix_space, but with prepend_scheme",
                                  scheme);
  sp->late = sp->escape = true;
  for (size_t i = 0; i < ISO_COUNT(schemes); i++) {
    if (strcmp(scheme, schemes[i].name) != 0) continue;
    sp->prefix = schemes[i].prefix;
    return ISO_OK;
  }
  return iso_huggingface_refuse(l, "pre_tokenizer Metaspace with prepend_scheme", scheme);
}

/* Split at spaces, of which the normalizer leaves none: nothing happens. */
static bool splits_nothing(const iso_huggingface *l, const iso_json *json, const char *type) {
  const iso_sentencepiece *sp = l->tokenizer->sentencepiece;
  const iso_json *text = iso_json_get(iso_json_get(json, "pattern"), "String");
  return sp && sp->escape && strcmp(type, "Split") == 0 && cJSON_IsString(text) && strcmp(text->valuestring, " ") == 0;
}

/* SentencePiece's shape: *is tells. */
static iso_status load_sentencepiece_shape(iso_huggingface *l, const iso_json *json, const char *type, bool *is) {
  iso_sentencepiece *sp = l->tokenizer->sentencepiece;
  *is = true;
  if (type && strcmp(type, "Metaspace") == 0) return load_metaspace(l, json);
  *is = sp && (!type || splits_nothing(l, json, type));
  if (sp && !*is)
    return iso_huggingface_refuse(l, "beside the normalizers of SentencePiece's shape, pre_tokenizer", type);
  if (sp && !sp->escape) return iso_huggingface_refuse(l, "normalizer Prepend without", "Replace");
  return ISO_OK;
}

static iso_status load_pre_tokenizers(iso_huggingface *l, const iso_json *json) {
  const char *type = NULL;
  bool byte_level = false, sentencepiece;
  if (json) ISO_TRY(iso_huggingface_type_of(l, json, "pre_tokenizer", &type));
  ISO_TRY(load_sentencepiece_shape(l, json, type, &sentencepiece));
  if (sentencepiece) return ISO_OK;
  if (!json)
    return iso_huggingface_refuse(
        l, "a model without pre_tokenizer and without normalizer Replace:", "pre_tokenizer is null");
  if (strcmp(type, "Sequence") == 0) {
    ISO_TRY(iso_huggingface_only_keys(l, json, "pre_tokenizer Sequence", " type pretokenizers "));
    const iso_json *list = iso_json_get(json, "pretokenizers");
    if (!cJSON_IsArray(list)) return iso_fail(ISO_ERR_FORMAT, "%s: \"pretokenizers\" must be an array", l->where);
    for (const iso_json *item = list->child; item; item = item->next) ISO_TRY(load_pre_tokenizer(l, item, &byte_level));
  } else {
    ISO_TRY(load_pre_tokenizer(l, json, &byte_level));
  }
  if (!byte_level) return iso_huggingface_refuse(l, "a pre_tokenizer without ByteLevel at its end:", type);
  return ISO_OK;
}

/* ---- parts that do not change ids ---- */

/* Templates and offsets: they add nothing to text encoded without special tokens. */
static iso_status check_post_processor(const iso_huggingface *l, const iso_json *json) {
  static const char *const known[] = {"ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing"};
  const char *type;
  if (!json) return ISO_OK;
  ISO_TRY(iso_huggingface_type_of(l, json, "post_processor", &type));
  for (size_t i = 0; i < ISO_COUNT(known); i++)
    if (strcmp(type, known[i]) == 0) return ISO_OK;
  const iso_json *list = iso_json_get(json, "processors");
  if (strcmp(type, "Sequence") != 0 || !cJSON_IsArray(list)) return iso_huggingface_refuse(l, "post_processor", type);
  for (const iso_json *item = list->child; item; item = item->next) ISO_TRY(check_post_processor(l, item));
  return ISO_OK;
}

static iso_status check_decoder(const iso_huggingface *l, const iso_json *json) {
  const char *type;
  if (!json) return ISO_OK;
  ISO_TRY(iso_huggingface_type_of(l, json, "decoder", &type));
  if (strcmp(type, "ByteLevel") == 0 || strcmp(type, "Fuse") == 0) return ISO_OK;
  const iso_json *list = iso_json_get(json, "decoders");
  if (strcmp(type, "Sequence") != 0 || !cJSON_IsArray(list)) return iso_huggingface_refuse(l, "decoder", type);
  for (const iso_json *item = list->child; item; item = item->next) ISO_TRY(check_decoder(l, item));
  return ISO_OK;
}

/* SentencePiece's shape: U+2581 back to spaces, byte tokens to bytes, all joined, spaces stripped at the beginning. */
static iso_status load_decoder(iso_huggingface *l, const iso_json *json) {
  iso_sentencepiece *sp = l->tokenizer->sentencepiece;
  const char *type, *content;
  int64_t start, stop;
  const iso_json *list = iso_json_get(json, "decoders"), *item = list ? list->child : NULL;
  static const char *const order[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
  for (size_t i = 0; i < ISO_COUNT(order); i++) {
    bool needed = i == 0 || i == 2 || (i == 1 && sp->byte_fallback);
    type = "";
    if (item) ISO_TRY(iso_huggingface_type_of(l, item, "decoder", &type));
    if (strcmp(type, order[i]) != 0) {
      if (needed) return iso_huggingface_refuse(l, "a decoder that lacks, at its place, part", order[i]);
      continue;
    }
    if (i == 0) ISO_TRY(expect_replace(l, item, "decoder Replace of", MARK, " "));
    if (i == 3) {
      ISO_TRY(iso_json_string(item, l->where, "content", "", &content));
      ISO_TRY(iso_json_int(item, l->where, "start", 0, &start));
      ISO_TRY(iso_json_int(item, l->where, "stop", 0, &stop));
      if (strcmp(content, " ") != 0 || start < 0 || start > 8 || stop != 0)
        return iso_huggingface_refuse(l, "decoder Strip other than of leading spaces:", content);
      sp->strip = (int)start;
    }
    item = item->next;
  }
  if (!item) return ISO_OK;
  ISO_TRY(iso_huggingface_type_of(l, item, "decoder", &type));
  return iso_huggingface_refuse(l, "after decoder Fuse, decoder", type);
}

iso_status iso_huggingface_load_parts(iso_huggingface *l, const iso_json *json) {
  iso_tokenizer *t = l->tokenizer;
  ISO_TRY(load_normalizer(l, iso_json_get(json, "normalizer")));
  ISO_TRY(load_pre_tokenizers(l, iso_json_get(json, "pre_tokenizer")));
  ISO_TRY(check_post_processor(l, iso_json_get(json, "post_processor")));
  iso_sentencepiece *sp = t->sentencepiece;
  if (!sp) {
    if (l->byte_fallback) return iso_huggingface_refuse(l, "in a byte-level model, option", "byte_fallback");
    return check_decoder(l, iso_json_get(json, "decoder"));
  }
  if (t->nfc) return iso_huggingface_refuse(l, "in SentencePiece's shape, normalizer", "NFC");
  sp->byte_fallback = l->byte_fallback;
  sp->fuse_unknown = l->fuse_unknown;
  return load_decoder(l, iso_json_get(json, "decoder"));
}
