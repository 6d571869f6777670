/* SPDX-License-Identifier: Apache-2.0
 *
 * trainer.c: a vocabulary from texts, written as a Hugging Face tokenizer.
 *
 * Texts are cut as the encoder will cut them, equal pieces are counted once, learn.c finds the merges over the distinct
 * pieces. Ids: 0..255 the bytes, then the merges in the order learned, then the end-of-text token.
 *
 * Invariants
 *  1. The result is a function of the texts and options alone.
 *  2. Encoding a training text with the result merges exactly what was merged while learning.
 *  3. The end-of-text token's content is no learned token.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

/* Distinct pieces, by open addressing. */
typedef struct piece_table {
  iso_piece *pieces;
  size_t count, capacity;
  uint32_t *slots; /* index + 1; 0 empty */
  uint64_t slot_count;
} piece_table;

static uint64_t find_slot(const piece_table *table, const char *bytes, size_t length) {
  uint64_t mask = table->slot_count - 1, slot = iso_hash_bytes(bytes, length) & mask;
  while (table->slots[slot]) {
    const iso_piece *piece = &table->pieces[table->slots[slot] - 1];
    if (piece->length == length && memcmp(piece->bytes, bytes, length) == 0) break;
    slot = (slot + 1) & mask;
  }
  return slot;
}

static bool table_grow(piece_table *table) {
  if (table->count == table->capacity) {
    size_t capacity = table->capacity ? 2 * table->capacity : 1024;
    iso_piece *pieces = realloc(table->pieces, capacity * sizeof *pieces);
    if (!pieces || capacity >= UINT32_MAX) return false;
    table->pieces = pieces;
    table->capacity = capacity;
  }
  if (2 * (table->count + 1) <= table->slot_count) return true;
  uint64_t count = table->slot_count ? 2 * table->slot_count : 4096;
  uint32_t *slots = calloc(count, sizeof *slots);
  if (!slots) return false;
  free(table->slots);
  table->slots = slots;
  table->slot_count = count;
  for (size_t i = 0; i < table->count; i++)
    slots[find_slot(table, table->pieces[i].bytes, table->pieces[i].length)] = (uint32_t)(i + 1);
  return true;
}

static iso_status table_add(piece_table *table, const char *bytes, size_t length) {
  if (!table_grow(table)) return iso_fail(ISO_ERR_MEMORY, "out of memory for %zu distinct words", table->count);
  uint64_t slot = find_slot(table, bytes, length);
  if (table->slots[slot]) {
    table->pieces[table->slots[slot] - 1].count++;
    return ISO_OK;
  }
  table->pieces[table->count] = (iso_piece){bytes, length, 1};
  table->slots[slot] = (uint32_t)++table->count;
  return ISO_OK;
}

static iso_status count_pieces(piece_table *table, iso_splitter splitter, const char *text, size_t length) {
  for (size_t at = 0, stop; at < length; at = stop) {
    stop = iso_split_next(splitter, (const uint8_t *)text, at, length);
    ISO_TRY(table_add(table, text + at, stop - at));
  }
  return ISO_OK;
}

/* ---- writing ---- */

static void write_token(const iso_vocabulary *v, int32_t id, iso_string *out) {
  iso_byte_level_encode(v->bytes.data + v->tokens[id].offset, v->tokens[id].length, out);
}

static void write_pre_tokenizer(iso_splitter splitter, iso_string *out) {
  if (splitter == ISO_SPLIT_GPT2) {
    iso_string_printf(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                           "\"use_regex\": true}");
    return;
  }
  const char *regex = iso_splitter_regex(splitter);
  iso_string_printf(
      out, "{\"type\": \"Sequence\", \"pretokenizers\": [\n    {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
  iso_json_quote(out, regex, strlen(regex));
  iso_string_printf(out, "}, \"behavior\": \"Isolated\", \"invert\": false},\n    {\"type\": \"ByteLevel\", "
                         "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}]}");
}

static void write_model(const iso_vocabulary *v, const iso_merge *merges, size_t merge_count, iso_string *out) {
  iso_string token = {0};
  iso_string_printf(out, "{\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                         "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null,\n    \"fuse_unk\": false, "
                         "\"byte_fallback\": false, \"ignore_merges\": false,\n    \"vocab\": {");
  for (int64_t id = 0; id < v->count; id++) {
    if (token.data) token.length = 0;
    write_token(v, (int32_t)id, &token);
    iso_string_append(out, id ? ",\n      " : "\n      ", id ? 8 : 7);
    iso_json_quote(out, token.data, token.length);
    iso_string_printf(out, ": %lld", (long long)id);
  }
  iso_string_printf(out, "\n    },\n    \"merges\": [");
  for (size_t i = 0; i < merge_count; i++) {
    if (token.data) token.length = 0;
    write_token(v, merges[i].left, &token);
    iso_string_append(&token, " ", 1);
    write_token(v, merges[i].right, &token);
    iso_string_append(out, i ? ",\n      " : "\n      ", i ? 8 : 7);
    iso_json_quote(out, token.data, token.length);
  }
  iso_string_printf(out, "\n    ]\n  }");
  if (iso_string_failed(&token)) iso_string_fini(out);
  iso_string_fini(&token);
}

static void write_tokenizer(const iso_bpe_options *options, iso_splitter splitter, const iso_vocabulary *v,
                            const iso_merge *merges, size_t merge_count, iso_string *out) {
  iso_string_printf(out,
                    "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
                    "  \"added_tokens\": [\n    {\"id\": %lld, \"content\": ",
                    (long long)v->count);
  iso_json_quote(out, options->eos, strlen(options->eos));
  iso_string_printf(out, ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                         "\"special\": true}\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": ");
  write_pre_tokenizer(splitter, out);
  iso_string_printf(out, ",\n  \"post_processor\": null,\n  \"decoder\": {\"type\": \"ByteLevel\", "
                         "\"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true},\n  \"model\": ");
  write_model(v, merges, merge_count, out);
  iso_string_printf(out, "\n}\n");
}

static void write_config(const iso_bpe_options *options, iso_string *out) {
  iso_string_printf(out, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"eos_token\": ");
  iso_json_quote(out, options->eos, strlen(options->eos));
  iso_string_printf(out, ",\n  \"clean_up_tokenization_spaces\": false\n}\n");
}

static iso_status write_file(const char *folder, const char *name, const iso_string *text) {
  if (iso_string_failed(text) || !text->data) return iso_fail(ISO_ERR_MEMORY, "out of memory for %s", name);
  iso_arena *arena = iso_arena_create();
  if (!arena) return ISO_ERR_MEMORY;
  const char *path = iso_path_join(arena, folder, name);
  iso_status status = path ? iso_file_replace(path, text->data, text->length) : ISO_ERR_MEMORY;
  iso_arena_destroy(&arena);
  return status;
}

/* ---- training ---- */

/* `forbidden` gets the bytes a learned token of the end-of-text token's spelling would have. */
static iso_status check_options(const iso_bpe_options *options, iso_splitter *splitter, iso_string *forbidden) {
  if (options->vocabulary < 257 || options->vocabulary > ISO_VOCABULARY_LIMIT)
    return iso_fail(ISO_ERR_CONFIG, "a vocabulary of %lld ids cannot be trained: 257 (bytes and end of text) to %d can",
                    (long long)options->vocabulary, ISO_VOCABULARY_LIMIT);
  *splitter = options->pattern ? iso_splitter_find(options->pattern) : ISO_SPLIT_REGEX;
  if (*splitter == ISO_SPLIT_REGEX)
    return iso_fail(ISO_ERR_CONFIG, "unknown pattern \"%s\": use gpt2, cl100k, qwen2 or o200k",
                    options->pattern ? options->pattern : "");
  const char *eos = options->eos ? options->eos : "";
  size_t length = strlen(eos);
  iso_string_append(forbidden, "", 0);
  if (iso_utf8_valid_prefix(eos, length) == length && length > 0 && length <= 256) {
    if (!iso_byte_level_decode(eos, length, forbidden) && forbidden->data) forbidden->length = 0;
    if (iso_string_failed(forbidden)) return ISO_ERR_MEMORY;
    if (forbidden->length != 1) return ISO_OK;
  }
  return iso_fail(ISO_ERR_CONFIG, "end-of-text token \"%s\" must be 2 to 256 bytes of UTF-8", eos);
}

/* Counts the pieces of all texts; `repaired` holds those that were not UTF-8. */
static iso_status count_texts(piece_table *table, iso_splitter splitter, const char *const *texts,
                              const size_t *lengths, size_t count, iso_string *repaired) {
  size_t invalid = 0;
  for (size_t i = 0; i < count; i++) {
    if (iso_utf8_valid_prefix(texts[i], lengths[i]) == lengths[i]) {
      ISO_TRY(count_pieces(table, splitter, texts[i], lengths[i]));
      continue;
    }
    iso_utf8_replace(texts[i], lengths[i], &repaired[i]);
    if (iso_string_failed(&repaired[i])) return iso_fail(ISO_ERR_MEMORY, "out of memory for training texts");
    invalid++;
    ISO_TRY(count_pieces(table, splitter, repaired[i].data, repaired[i].length));
  }
  if (invalid > 0)
    iso_note("%zu of %zu training texts are not valid UTF-8: U+FFFD stands for broken bytes", invalid, count);
  return ISO_OK;
}

static iso_status learn_and_write(const iso_bpe_options *options, iso_splitter splitter, const piece_table *table,
                                  const iso_string *forbidden, const char *folder) {
  iso_vocabulary vocabulary = {0};
  iso_merge *merges = NULL;
  size_t merge_count = 0;
  iso_string text = {0}, config = {0};
  iso_status status = iso_bpe_learn(table->pieces, table->count, options->vocabulary - 1, forbidden->data,
                                    forbidden->length, &vocabulary, &merges, &merge_count);
  if (status == ISO_OK) {
    if (vocabulary.count + 1 < options->vocabulary)
      iso_note("the training text has no more pairs: the vocabulary has %lld ids, not %lld",
               (long long)vocabulary.count + 1, (long long)options->vocabulary);
    write_tokenizer(options, splitter, &vocabulary, merges, merge_count, &text);
    write_config(options, &config);
    status = iso_path_make(folder);
  }
  if (status == ISO_OK) status = write_file(folder, "tokenizer_config.json", &config);
  if (status == ISO_OK) status = write_file(folder, "tokenizer.json", &text);
  iso_string_fini(&text);
  iso_string_fini(&config);
  free(merges);
  iso_vocabulary_fini(&vocabulary);
  return status;
}

iso_status iso_bpe_train(const iso_bpe_options *options, const char *const *texts, const size_t *lengths, size_t count,
                         const char *folder) {
  piece_table table = {0};
  iso_splitter splitter = ISO_SPLIT_NONE;
  iso_string forbidden = {0};
  iso_string *repaired = calloc(count + 1, sizeof *repaired);
  iso_status status = repaired ? check_options(options, &splitter, &forbidden)
                               : iso_fail(ISO_ERR_MEMORY, "out of memory for %zu training texts", count);
  if (status == ISO_OK) status = count_texts(&table, splitter, texts, lengths, count, repaired);
  if (status == ISO_OK) status = learn_and_write(options, splitter, &table, &forbidden, folder);
  for (size_t i = 0; repaired && i < count; i++) iso_string_fini(&repaired[i]);
  free(repaired);
  free(table.pieces);
  free(table.slots);
  iso_string_fini(&forbidden);
  return status;
}
