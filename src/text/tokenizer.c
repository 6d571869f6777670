/* SPDX-License-Identifier: Apache-2.0
 *
 * tokenizer.c: opening a tokenizer, and what is asked of it besides encoding.
 *
 * All file formats end as the same thing: a vocabulary, a table of merges, steps that cut text, added tokens; and for
 * SentencePiece's kind what that has beyond.
 *
 * Invariants
 *  1. After iso_tokenizer_open nothing changes until iso_tokenizer_close.
 *  2. The fingerprint covers all that decides ids, as values, not as file bytes: a file laid out otherwise with the
 *     same meaning has the same fingerprint.
 *  3. What iso_tokenizer_copy writes is what was opened: a file that changed since is refused.
 */
#include "text/text.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* ---- steps ---- */

iso_status iso_tokenizer_add_step(iso_tokenizer *tokenizer, const char *where, const char *name_or_regex) {
  if (tokenizer->step_count == ISO_SPLIT_STEPS)
    return iso_fail(ISO_ERR_UNSUPPORTED, "%s: more than %d pre-tokenizers", where, ISO_SPLIT_STEPS);
  iso_split_step step = {.splitter = iso_splitter_find(name_or_regex)};
  if (step.splitter == ISO_SPLIT_REGEX) {
    ISO_TRY(iso_regex_create(name_or_regex, where, &step.regex));
    step.pattern = strdup(name_or_regex);
    if (!step.pattern) {
      iso_regex_destroy(&step.regex);
      return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", where);
    }
  }
  tokenizer->steps[tokenizer->step_count++] = step;
  return ISO_OK;
}

/* ---- fingerprint ---- */

static void hash_number(iso_sha256 *hash, int64_t value) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)value >> 8 * i);
  iso_sha256_update(hash, bytes, sizeof bytes);
}

static void hash_text(iso_sha256 *hash, const char *text, size_t length) {
  hash_number(hash, (int64_t)length);
  iso_sha256_update(hash, text, length);
}

static int compare_ranks(const void *a, const void *b) {
  const iso_pair *x = *(const iso_pair *const *)a, *y = *(const iso_pair *const *)b;
  if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
  return x->key < y->key ? -1 : x->key > y->key; /* ranks repeat in rank files only */
}

/* Merges in order: left, right, result; with `ranks` the rank too, since equal ones merge by place. */
static iso_status hash_merges(iso_sha256 *hash, const iso_pairs *pairs, bool ranks) {
  const iso_pair **sorted = malloc((pairs->used + 1) * sizeof *sorted);
  if (!sorted) return iso_fail(ISO_ERR_MEMORY, "out of memory for a tokenizer's fingerprint");
  uint64_t count = 0;
  for (uint64_t i = 0; i < pairs->slot_count; i++)
    if (pairs->slots[i].key != UINT64_MAX) sorted[count++] = &pairs->slots[i];
  qsort(sorted, count, sizeof *sorted, compare_ranks);
  hash_number(hash, (int64_t)count);
  for (uint64_t i = 0; i < count; i++) {
    hash_number(hash, (int64_t)sorted[i]->key);
    hash_number(hash, sorted[i]->id);
    if (ranks) hash_number(hash, sorted[i]->rank);
  }
  free(sorted);
  return ISO_OK;
}

static void hash_added(iso_sha256 *hash, const iso_added_set *set) {
  hash_number(hash, (int64_t)set->count);
  for (size_t i = 0; i < set->count; i++) {
    const iso_added_token *token = &set->tokens[i];
    hash_number(hash, token->id);
    hash_number(hash, token->lstrip | token->rstrip << 1 | token->normalized << 2);
    hash_text(hash, token->content, token->length);
  }
}

static void hash_sentencepiece(iso_sha256 *hash, const iso_tokenizer *t) {
  const iso_sentencepiece *sp = t->sentencepiece;
  const int64_t switches[] = {sp->prefix,       sp->escape,   sp->trim,    sp->late,         sp->each_mark,
                              sp->fuse_unknown, sp->sentence, sp->unknown, sp->byte_fallback};
  hash_text(hash, "sentencepiece", 13);
  for (size_t i = 0; i < ISO_COUNT(switches); i++) hash_number(hash, switches[i]);
  for (int i = 0; i < 256; i++) hash_number(hash, sp->bytes[i]);
  hash_text(hash, sp->charsmap.bytes ? sp->charsmap.bytes : "", sp->charsmap.length);
  hash_added(hash, &sp->fixed);
}

static iso_status take_fingerprint(iso_tokenizer *t) {
  iso_sha256 *hash = iso_sha256_create();
  if (!hash) return ISO_ERR_MEMORY;
  hash_text(hash, "isotach tokenizer 1", 19);
  hash_number(hash, t->whole_first);
  hash_number(hash, t->nfc);
  hash_number(hash, t->step_count);
  for (int i = 0; i < t->step_count; i++) {
    hash_number(hash, t->steps[i].splitter);
    if (t->steps[i].pattern) hash_text(hash, t->steps[i].pattern, strlen(t->steps[i].pattern));
  }
  hash_number(hash, t->vocabulary.used);
  for (int64_t id = 0; id < t->vocabulary.count; id++) {
    const iso_token *token = &t->vocabulary.tokens[id];
    if (!token->present) continue;
    hash_number(hash, 2 * id + token->mapped);
    hash_text(hash, t->vocabulary.bytes.data + token->offset, token->length);
  }
  iso_status status = hash_merges(hash, &t->pairs, t->sentencepiece != NULL);
  hash_added(hash, &t->added);
  if (t->sentencepiece) hash_sentencepiece(hash, t);
  iso_sha256_finish(&hash, t->fingerprint);
  return status;
}

/* ---- end of text ---- */

static int64_t find_content(const iso_tokenizer *t, const char *content) {
  size_t length = strlen(content);
  for (size_t i = 0; i < t->added.count; i++)
    if (t->added.tokens[i].length == length && memcmp(t->added.tokens[i].content, content, length) == 0)
      return t->added.tokens[i].id;
  return iso_vocabulary_find(&t->vocabulary, content, length, true);
}

/* What tokenizer_config.json says: "eos_token" is a string or an object with "content". */
static iso_status eos_from_tokenizer_config(iso_tokenizer *t, const char *path, const iso_json *json) {
  const iso_json *item = iso_json_get(json, "eos_token");
  const char *content = NULL;
  if (cJSON_IsObject(item))
    ISO_TRY(iso_json_string(item, path, "content", NULL, &content));
  else
    ISO_TRY(iso_json_string(json, path, "eos_token", NULL, &content));
  if (!content) return ISO_OK;
  t->eos = find_content(t, content);
  if (t->eos >= 0) return ISO_OK;
  return iso_fail(ISO_ERR_MISMATCH, "%s: eos_token \"%s\" is not a token of '%s'", path, content, t->file);
}

/* What generation_config.json says: "eos_token_id" is a number or an array whose first counts. */
static iso_status eos_from_generation_config(iso_tokenizer *t, const char *path, const iso_json *json) {
  const iso_json *item = iso_json_get(json, "eos_token_id");
  if (cJSON_IsArray(item)) item = item->child;
  if (!item) return ISO_OK;
  size_t length;
  double id = cJSON_IsNumber(item) ? item->valuedouble : -1;
  if (!(id >= 0 && id < ISO_VOCABULARY_LIMIT) || !iso_tokenizer_bytes(t, (int64_t)id, &length))
    return iso_fail(ISO_ERR_MISMATCH, "%s: eos_token_id is not an id of '%s'", path, t->file);
  t->eos = (int64_t)id;
  t->config_eos = true;
  return ISO_OK;
}

static iso_status find_eos(iso_tokenizer *t, iso_arena *arena, const char *folder) {
  static const char *const usual[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
  typedef iso_status (*reader)(iso_tokenizer * t, const char *path, const iso_json *json);
  const struct {
    const char *name;
    reader read;
  } files[] = {{"tokenizer_config.json", eos_from_tokenizer_config},
               {"generation_config.json", eos_from_generation_config}};
  const int64_t own = t->eos; /* a tokenizer.model names one itself */
  t->eos = -1;
  for (size_t i = 0; folder && i < ISO_COUNT(files) && t->eos < 0; i++) {
    const char *path = iso_path_join(arena, folder, files[i].name);
    iso_json *json;
    if (!path) return ISO_ERR_MEMORY;
    if (!iso_path_exists(path)) continue;
    ISO_TRY(iso_json_read(path, &json));
    iso_status status = files[i].read(t, path, json);
    iso_json_destroy(&json);
    ISO_TRY(status);
  }
  if (t->eos < 0) t->eos = own;
  for (size_t i = 0; i < ISO_COUNT(usual) && t->eos < 0; i++) t->eos = find_content(t, usual[i]);
  return ISO_OK;
}

/* ---- opening ---- */

static bool has_ending(const char *name, const char *ending) {
  size_t n = strlen(name), e = strlen(ending);
  return n >= e && strcmp(name + n - e, ending) == 0;
}

static const char *const defining[] = {"tokenizer.json", "tokenizer.model"};

bool iso_tokenizer_is_in(const char *folder) {
  iso_arena *arena = iso_arena_create();
  char **names = NULL;
  size_t count = 0;
  bool found = false;
  if (arena && iso_path_is_folder(folder) && iso_path_list(arena, folder, &names, &count) != ISO_OK) count = 0;
  for (size_t i = 0; i < count; i++) {
    found |= has_ending(names[i], ".tiktoken");
    for (size_t k = 0; k < ISO_COUNT(defining); k++) found |= strcmp(names[i], defining[k]) == 0;
  }
  iso_arena_destroy(&arena);
  return found;
}

/* The file that defines the tokenizer at `path`; *folder is where its configs lie, NULL when there are none. */
static iso_status find_file(iso_arena *arena, const char *path, const char **file, const char **folder) {
  *file = path;
  *folder = NULL;
  if (!iso_path_is_folder(path)) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!has_ending(name, ".json") && strcmp(name, "tokenizer.model") != 0)
      return ISO_OK; /* a rank file: what lies beside it is not about it */
    *folder = slash ? iso_arena_printf(arena, "%.*s/", (int)(slash - path), path) : ".";
    return *folder ? ISO_OK : ISO_ERR_MEMORY;
  }
  *folder = path;
  for (size_t i = 0; i < ISO_COUNT(defining); i++) {
    *file = iso_path_join(arena, path, defining[i]);
    if (!*file) return ISO_ERR_MEMORY;
    if (iso_path_exists(*file)) return ISO_OK;
  }
  char **names;
  size_t count, found = 0;
  ISO_TRY(iso_path_list(arena, path, &names, &count));
  for (size_t i = 0; i < count; i++) {
    if (!has_ending(names[i], ".tiktoken")) continue;
    *file = iso_path_join(arena, path, names[i]);
    found++;
  }
  if (found == 0)
    return iso_fail(ISO_ERR_NOT_FOUND, "'%s' holds neither tokenizer.json nor tokenizer.model nor a *.tiktoken file",
                    path);
  if (found > 1) return iso_fail(ISO_ERR_CONFIG, "'%s' holds %zu *.tiktoken files: name one", path, found);
  return *file ? ISO_OK : ISO_ERR_MEMORY;
}

static iso_status hash_file(const char *bytes, size_t length, char hex[65]) {
  iso_sha256 *hash = iso_sha256_create();
  if (!hash) return ISO_ERR_MEMORY;
  iso_sha256_update(hash, bytes, length);
  iso_sha256_finish(&hash, hex);
  return ISO_OK;
}

/* A SentencePiece model: protobuf's lengths and types are control characters, which text has none of. */
static bool is_binary(const char *text, size_t length) {
  for (size_t i = 0; i < length && i < 64; i++) {
    uint8_t byte = (uint8_t)text[i];
    if (byte == 0x7F || (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r')) return true;
  }
  return false;
}

/* A rank file with the pattern given or, when none is, the one in tokenizer.pattern beside it. */
static iso_status load_ranks(iso_tokenizer *t, iso_arena *arena, const char *text, size_t length, const char *pattern) {
  const char *slash = strrchr(t->file, '/');
  const char *beside =
      iso_arena_printf(arena, "%.*stokenizer.pattern", slash ? (int)(slash - t->file + 1) : 0, t->file);
  if (!beside) return ISO_ERR_MEMORY;
  if (!*pattern && iso_path_exists(beside)) {
    char *stored;
    size_t bytes;
    ISO_TRY(iso_file_read(beside, &stored, &bytes));
    if (bytes > 0 && stored[bytes - 1] == '\n') stored[bytes - 1] = '\0'; /* an editor's */
    pattern = iso_arena_strdup(arena, stored);
    free(stored);
    if (!pattern) return ISO_ERR_MEMORY;
  }
  if (*pattern && !(t->pattern = strdup(pattern))) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", t->file);
  return iso_tiktoken_load(t, text, length, pattern);
}

static iso_status load_file(iso_tokenizer *t, iso_arena *arena, const char *text, size_t length, const char *pattern) {
  size_t first = strspn(text, " \t\r\n\xEF\xBB\xBF");
  t->is_json = has_ending(t->file, ".json") || text[first] == '{';
  bool sentencepiece = !t->is_json && is_binary(text, length);
  t->eos = -1;
  if (!t->is_json && !sentencepiece) return load_ranks(t, arena, text, length, pattern);
  if (*pattern)
    return iso_fail(ISO_ERR_CONFIG, "%s: %s holds its own pattern: leave tokenizer.pattern empty", t->file,
                    t->is_json ? "tokenizer.json" : "a SentencePiece model");
  return t->is_json ? iso_huggingface_load(t, text, length) : iso_sentencepiece_load(t, text, length);
}

static iso_status load(iso_tokenizer *t, iso_arena *arena, const char *path, const char *pattern) {
  const char *file, *folder;
  char *text;
  size_t length;
  ISO_TRY(find_file(arena, path, &file, &folder));
  t->path = strdup(path);
  t->file = strdup(file);
  if (!t->path || !t->file) return iso_fail(ISO_ERR_MEMORY, "%s: out of memory", path);
  ISO_TRY(iso_file_read(file, &text, &length));
  iso_status status = hash_file(text, length, t->file_sha);
  if (status == ISO_OK) status = load_file(t, arena, text, length, pattern);
  free(text);
  ISO_TRY(status);
  ISO_TRY(find_eos(t, arena, folder));
  if (!t->sentencepiece) iso_matcher_build(&t->matcher, &t->vocabulary, &t->pairs);
  return take_fingerprint(t);
}

iso_status iso_tokenizer_open(const char *path, const char *pattern, iso_tokenizer **out) {
  *out = NULL;
  iso_tokenizer *t = calloc(1, sizeof *t);
  iso_arena *arena = iso_arena_create();
  iso_status status =
      t && arena ? load(t, arena, path, pattern ? pattern : "") : iso_fail(ISO_ERR_MEMORY, "%s: out of memory", path);
  iso_arena_destroy(&arena);
  if (status != ISO_OK)
    iso_tokenizer_close(&t);
  else
    *out = t;
  return status;
}

void iso_tokenizer_close(iso_tokenizer **tokenizer) {
  if (!tokenizer || !*tokenizer) return;
  iso_tokenizer *t = *tokenizer;
  for (int i = 0; i < t->step_count; i++) {
    iso_regex_destroy(&t->steps[i].regex);
    free(t->steps[i].pattern);
  }
  iso_sentencepiece_destroy(&t->sentencepiece);
  iso_added_fini(&t->added);
  iso_pairs_fini(&t->pairs);
  iso_matcher_fini(&t->matcher);
  iso_vocabulary_fini(&t->vocabulary);
  free(t->path);
  free(t->pattern);
  free(t->file);
  free(t);
  *tokenizer = NULL;
}

/* ---- questions ---- */

int64_t iso_tokenizer_vocabulary(const iso_tokenizer *tokenizer) {
  return tokenizer->vocabulary.count;
}

int64_t iso_tokenizer_eos(const iso_tokenizer *tokenizer) {
  return tokenizer->eos;
}

const char *iso_tokenizer_fingerprint(const iso_tokenizer *tokenizer) {
  return tokenizer->fingerprint;
}

const char *iso_tokenizer_path(const iso_tokenizer *tokenizer) {
  return tokenizer->path;
}

const char *iso_tokenizer_bytes(const iso_tokenizer *tokenizer, int64_t id, size_t *length) {
  const iso_vocabulary *v = &tokenizer->vocabulary;
  *length = 0;
  if (id < 0 || id >= v->count || !v->tokens[id].present) return NULL;
  const iso_sentencepiece *sp = tokenizer->sentencepiece;
  if (sp) {
    *length = sp->shown[id].length;
    return sp->shown_bytes.data + sp->shown[id].offset;
  }
  *length = v->tokens[id].length;
  return v->bytes.data + v->tokens[id].offset;
}

/* ---- copying ---- */

static iso_status copy_file(const char *from, const char *to, const char *expected_sha) {
  char *bytes, hex[65];
  size_t length;
  ISO_TRY(iso_file_read(from, &bytes, &length));
  iso_status status = hash_file(bytes, length, hex);
  if (status == ISO_OK && expected_sha && strcmp(hex, expected_sha) != 0)
    status = iso_fail(ISO_ERR_MISMATCH, "%s: changed since it was opened", from);
  if (status == ISO_OK) status = iso_file_replace(to, bytes, length);
  free(bytes);
  return status;
}

/* What was told beside the file or by the caller, so that the folder opens as this tokenizer. */
static iso_status store_settings(const iso_tokenizer *t, iso_arena *arena, const char *folder) {
  const char *pattern = iso_path_join(arena, folder, "tokenizer.pattern");
  const char *config = iso_path_join(arena, folder, "generation_config.json");
  const char *eos = iso_arena_printf(arena, "{\"eos_token_id\": %lld}\n", (long long)t->eos);
  if (!pattern || !config || !eos) return ISO_ERR_MEMORY;
  if (t->config_eos) ISO_TRY(iso_file_replace(config, eos, strlen(eos)));
  return t->pattern ? iso_file_replace(pattern, t->pattern, strlen(t->pattern)) : ISO_OK;
}

iso_status iso_tokenizer_copy(const iso_tokenizer *tokenizer, const char *folder) {
  iso_arena *arena = iso_arena_create();
  if (!arena) return ISO_ERR_MEMORY;
  const char *slash = strrchr(tokenizer->file, '/');
  const char *own = slash ? slash + 1 : tokenizer->file;
  bool model = tokenizer->sentencepiece && !tokenizer->is_json;
  const char *name = tokenizer->is_json ? "tokenizer.json" : model ? "tokenizer.model" : own;
  bool has_config = tokenizer->is_json || strcmp(own, "tokenizer.model") == 0;
  const char *to = iso_path_join(arena, folder, name);
  iso_status status = to ? copy_file(tokenizer->file, to, tokenizer->file_sha) : ISO_ERR_MEMORY;
  if (status == ISO_OK && has_config) {
    const char *beside = iso_arena_printf(arena, "%.*stokenizer_config.json",
                                          slash ? (int)(slash - tokenizer->file + 1) : 0, tokenizer->file);
    to = iso_path_join(arena, folder, "tokenizer_config.json");
    if (!beside || !to)
      status = ISO_ERR_MEMORY;
    else if (iso_path_exists(beside))
      status = copy_file(beside, to, NULL);
  }
  if (status == ISO_OK) status = store_settings(tokenizer, arena, folder);
  iso_arena_destroy(&arena);
  return status;
}
