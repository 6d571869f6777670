/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a run config: the file becomes a tree, "key=value" overrides are set in the tree, the tree is read against
 * the key table. So a value from the command line goes the same way as one from the file. A node made by an override
 * has line 0: its paths are relative to the working directory, its errors say "command line".
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "train/vitals/vitals.h"

static const char *place(const iso_config *config, int line, int column) {
  if (line <= 0) return "command line";
  return iso_arena_printf(config->arena, "%s:%d:%d", config->source, line, column);
}

/* ---- overrides ---- */

static iso_yaml *find_child(const iso_yaml *node, const char *key, size_t length) {
  for (int i = 0; i < node->count; i++)
    if (node->children[i]->key && strlen(node->children[i]->key) == length &&
        strncmp(node->children[i]->key, key, length) == 0)
      return node->children[i];
  return NULL;
}

static void add_child(iso_arena *arena, iso_yaml *node, iso_yaml *child) {
  iso_yaml **grown = iso_arena_alloc(arena, sizeof *grown * (size_t)(node->count + 1));
  if (node->count) memcpy(grown, node->children, sizeof *grown * (size_t)node->count);
  grown[node->count++] = child;
  node->children = grown;
}

/* The member `key` of a mapping, or item `key` of a sequence (its length = a new one); made when missing. */
static iso_status step_into(iso_arena *arena, iso_yaml *node, const char *key, size_t length, const char *override,
                            iso_yaml **out) {
  if (node->kind == ISO_YAML_SEQUENCE) {
    char *end;
    const long index = strtol(key, &end, 10);
    if (end != key + length || index < 0 || index > node->count)
      return iso_fail(ISO_ERR_CONFIG, "command line: \"%s\": item %.*s of a list of %d; write its number from 0",
                      override, (int)length, key, node->count);
    if (index == node->count) add_child(arena, node, iso_arena_alloc(arena, sizeof(iso_yaml)));
    *out = node->children[index];
    return ISO_OK;
  }
  if (node->kind == ISO_YAML_SCALAR) {
    const iso_yaml scalar = *node;
    *node = (iso_yaml){.kind = ISO_YAML_MAPPING, .key = node->key};
    if (!scalar.key && scalar.text) { /* an item of data.sources written as a bare path */
      iso_yaml *path = iso_arena_alloc(arena, sizeof *path);
      *path = scalar;
      path->key = "path";
      add_child(arena, node, path);
    }
  }
  iso_yaml *child = find_child(node, key, length);
  if (!child) {
    child = iso_arena_alloc(arena, sizeof *child);
    child->key = iso_arena_printf(arena, "%.*s", (int)length, key);
    add_child(arena, node, child);
  }
  *out = child;
  return ISO_OK;
}

static iso_status apply_override(iso_arena *arena, iso_yaml *root, const char *override) {
  const char *equals = strchr(override, '=');
  if (!equals || equals == override)
    return iso_fail(ISO_ERR_USAGE, "command line: \"%s\" is neither a flag nor key=value", override);
  for (const char *at = equals; *at; at += iso_utf8_span(at, strlen(at))) /* else config.yaml could not hold it */
    if (!iso_utf8_span(at, strlen(at)))
      return iso_fail(ISO_ERR_CONFIG,
                      "command line: the value of `%.*s` is not UTF-8 at its byte %d; give another name",
                      (int)(equals - override), override, (int)(at - equals));
  iso_yaml *node = root;
  const char *key = override;
  while (key < equals) {
    size_t length = 0;
    while (key + length < equals && key[length] != '.') length++;
    if (length == 0) return iso_fail(ISO_ERR_CONFIG, "command line: \"%s\": empty word in the key", override);
    const bool starts_list =
        node->kind == ISO_YAML_SCALAR && node->key && strcmp(node->key, "sources") == 0 && node != root;
    if (starts_list) *node = (iso_yaml){.kind = ISO_YAML_SEQUENCE, .key = node->key};
    ISO_TRY(step_into(arena, node, key, length, override, &node));
    key += length + (key + length < equals);
  }
  const char *value = equals + 1;
  const size_t bytes = strlen(value);
  if (value[0] == '{' || (value[0] == '[' && value[bytes - 1] == ']')) { /* [::1]:8080 is no list */
    iso_yaml *parsed;
    ISO_TRY(iso_yaml_parse(arena, value, bytes, "command line", &parsed));
    parsed->key = node->key;
    parsed->line = 0;
    for (int i = 0; i < parsed->count; i++) parsed->children[i]->line = 0;
    *node = *parsed;
    return ISO_OK;
  }
  *node = (iso_yaml){.kind = ISO_YAML_SCALAR, .key = node->key, .text = iso_arena_strdup(arena, value)};
  return ISO_OK;
}

/* ---- the tree against the table ---- */

/* Inputs named in the file stand relative to its folder; both become absolute. */
static const char *resolve_path(const iso_config *config, const char *path, int line) {
  if (!path[0] || path[0] == '/' || strstr(path, "://")) return path;
  char folder[PATH_MAX] = "";
  if (line > 0 && config->source) {
    const char *slash = strrchr(config->source, '/');
    if (slash) snprintf(folder, sizeof folder, "%.*s", (int)(slash - config->source), config->source);
    if (slash == config->source) snprintf(folder, sizeof folder, "/");
  }
  const char *joined = iso_path_join(config->arena, folder, path);
  char real[PATH_MAX];
  if (realpath(joined, real)) return iso_arena_strdup(config->arena, real);
  if (joined[0] == '/') return joined;
  if (!getcwd(real, sizeof real)) return joined;
  return iso_path_join(config->arena, real, joined);
}

static iso_status set_scalar(iso_config *config, const iso_key *key, void *base, const iso_yaml *node) {
  const char *where = place(config, node->line, node->column);
  if (node->kind != ISO_YAML_SCALAR)
    return iso_fail(ISO_ERR_CONFIG, "%s: `%s` must be a single value, not a %s", where, key->path,
                    node->kind == ISO_YAML_MAPPING ? "mapping" : "list");
  const bool text = key->type == ISO_KEY_STRING || key->type == ISO_KEY_PATH || key->type == ISO_KEY_CHOICE ||
                    key->type == ISO_KEY_FUSION;
  if (node->quoted && !text) return iso_fail(ISO_ERR_CONFIG, "%s: `%s` must not be in quotes", where, key->path);
  const char *value = node->text;
  if (key->type == ISO_KEY_PATH) value = resolve_path(config, value, node->line);
  return iso_key_set(key, base, config->arena, value, where);
}

static iso_status read_source(iso_config *config, const iso_yaml *node, iso_source_config *source) {
  for (size_t i = 0; i < iso_source_key_count; i++)
    ISO_TRY(iso_key_set(&iso_source_keys[i], source, config->arena, iso_source_keys[i].fallback, "default"));
  if (node->kind == ISO_YAML_SCALAR) return set_scalar(config, &iso_source_keys[0], source, node);
  if (node->kind != ISO_YAML_MAPPING)
    return iso_fail(ISO_ERR_CONFIG, "%s: an entry of `data.sources` must be a path or a mapping",
                    place(config, node->line, node->column));
  for (int i = 0; i < node->count; i++) {
    const iso_yaml *child = node->children[i];
    const iso_key *key = NULL;
    for (size_t k = 0; k < iso_source_key_count; k++)
      if (strcmp(iso_source_keys[k].path, child->key) == 0) key = &iso_source_keys[k];
    if (!key)
      return iso_fail(ISO_ERR_CONFIG,
                      "%s: unknown key `%s` of a source; known: path, format, weight, field, separator, parse_special, "
                      "token_type",
                      place(config, child->key_line, child->key_column), child->key);
    ISO_TRY(set_scalar(config, key, source, child));
  }
  return ISO_OK;
}

static iso_status read_sources(iso_config *config, const iso_yaml *node) {
  if (node->kind != ISO_YAML_SEQUENCE)
    return iso_fail(ISO_ERR_CONFIG, "%s: `data.sources` must be a list", place(config, node->line, node->column));
  if (node->count > ISO_MAX_SOURCES)
    return iso_fail(ISO_ERR_CONFIG, "%s: `data.sources` has %d entries; at most %d",
                    place(config, node->line, node->column), node->count, ISO_MAX_SOURCES);
  config->data.source_count = node->count;
  for (int i = 0; i < node->count; i++) ISO_TRY(read_source(config, node->children[i], &config->data.sources[i]));
  return ISO_OK;
}

static bool is_json_literal(const char *text) {
  if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0 || strcmp(text, "null") == 0) return true;
  char *end;
  if (!text[0] || (text[0] != '-' && (text[0] < '0' || text[0] > '9'))) return false;
  strtod(text, &end);
  return *end == 0 && !strpbrk(text, "xXpPnN");
}

static void to_json(const iso_yaml *node, iso_string *out) {
  if (node->kind == ISO_YAML_SCALAR) {
    if (!node->quoted && (!node->text[0] || strcmp(node->text, "~") == 0)) {
      iso_string_printf(out, "null");
    } else if (!node->quoted && is_json_literal(node->text)) {
      iso_string_printf(out, "%s", node->text);
    } else {
      iso_json_quote(out, node->text, strlen(node->text));
    }
    return;
  }
  const bool mapping = node->kind == ISO_YAML_MAPPING;
  iso_string_printf(out, mapping ? "{" : "[");
  for (int i = 0; i < node->count; i++) {
    if (i) iso_string_printf(out, ", ");
    if (mapping) {
      iso_json_quote(out, node->children[i]->key, strlen(node->children[i]->key));
      iso_string_printf(out, ": ");
    }
    to_json(node->children[i], out);
  }
  iso_string_printf(out, mapping ? "}" : "]");
}

static bool is_group(const char *path) {
  const size_t length = strlen(path);
  for (size_t i = 0; i < iso_key_count; i++)
    if (strncmp(iso_keys[i].path, path, length) == 0 && iso_keys[i].path[length] == '.') return true;
  return false;
}

static iso_status read_mapping(iso_config *config, const iso_yaml *node, const char *prefix) {
  for (int i = 0; i < node->count; i++) {
    const iso_yaml *child = node->children[i];
    const char *path = prefix[0] ? iso_arena_printf(config->arena, "%s.%s", prefix, child->key) : child->key;
    if (strcmp(path, "data.sources") == 0) {
      ISO_TRY(read_sources(config, child));
      continue;
    }
    if (strcmp(path, "model.config") == 0 && child->kind == ISO_YAML_MAPPING) {
      iso_string json = {0};
      to_json(child, &json);
      config->model.inline_json = iso_arena_strdup(config->arena, json.data);
      config->model.config = "";
      iso_string_fini(&json);
      continue;
    }
    const iso_key *key = NULL;
    for (size_t k = 0; k < iso_key_count && !key; k++)
      if (strcmp(iso_keys[k].path, path) == 0) key = &iso_keys[k];
    if (key) {
      ISO_TRY(set_scalar(config, key, config, child));
    } else if (is_group(path)) {
      if (child->kind != ISO_YAML_MAPPING)
        return iso_fail(ISO_ERR_CONFIG, "%s: `%s` must be a mapping of keys", place(config, child->line, child->column),
                        path);
      ISO_TRY(read_mapping(config, child, path));
    } else {
      return iso_fail(ISO_ERR_CONFIG, "%s: unknown key `%s`; the nearest is `%s`",
                      place(config, child->key_line, child->key_column), path, iso_key_nearest(path));
    }
  }
  return ISO_OK;
}

/* ---- what only together is right or wrong ---- */

static bool is_power_of_two(int64_t n) {
  return n > 0 && (n & (n - 1)) == 0;
}

static iso_status check_unsupported(const iso_config *config) {
  const char *file = config->source;
  if (strcmp(config->precision.reduce, "float32") != 0)
    return iso_fail(ISO_ERR_UNSUPPORTED, "%s: `precision.reduce: %s` is not in this version; use float32", file,
                    config->precision.reduce);
  if (config->vitals.dashboard[0]) {
    char host[64], port[8];
    ISO_TRY(iso_address_split(config->vitals.dashboard, iso_arena_printf(config->arena, "%s: `vitals.dashboard`", file),
                              host, port));
  }
  return ISO_OK;
}

static iso_status check_config(const iso_config *config) {
  const char *file = config->source;
  const int64_t workers = config->parallel.virtual_workers < 0 ? 1 : config->parallel.virtual_workers;
  if (!config->run[0]) return iso_fail(ISO_ERR_CONFIG, "%s: `run` is empty; name a folder", file);
  if (strstr(config->run, "://"))
    return iso_fail(ISO_ERR_CONFIG,
                    "%s: `run` = %s is no folder; give a folder of this machine, and the other place as "
                    "`checkpoint.target` or `checkpoint.mirror`",
                    file, config->run);
  if (!is_power_of_two(workers))
    return iso_fail(ISO_ERR_CONFIG, "%s: `parallel.virtual_workers` = %lld is not a power of two", file,
                    (long long)workers);
  if (config->batch.sequences % workers)
    return iso_fail(ISO_ERR_CONFIG, "%s: `batch.sequences` = %lld is no multiple of the %lld virtual workers", file,
                    (long long)config->batch.sequences, (long long)workers);
  if (config->batch.micro && (config->batch.sequences / workers) % config->batch.micro)
    return iso_fail(ISO_ERR_CONFIG, "%s: `batch.micro` = %lld does not divide the %lld sequences of a worker", file,
                    (long long)config->batch.micro, (long long)(config->batch.sequences / workers));
  if (config->optimizer.beta1 >= 1 || config->optimizer.beta2 >= 1)
    return iso_fail(ISO_ERR_CONFIG, "%s: `optimizer.beta1` and `optimizer.beta2` must be below 1", file);
  if (config->optimizer.warmup_steps > config->steps)
    return iso_fail(ISO_ERR_CONFIG, "%s: `optimizer.warmup_steps` = %lld is more than `steps` = %lld", file,
                    (long long)config->optimizer.warmup_steps, (long long)config->steps);
  if (config->optimizer.warmup_steps + config->optimizer.decay_steps > config->steps)
    return iso_fail(ISO_ERR_CONFIG,
                    "%s: `optimizer.warmup_steps` + `optimizer.decay_steps` is more than `steps` = %lld", file,
                    (long long)config->steps);
  if (config->data.validation.every && config->data.validation.offset >= config->data.validation.every)
    return iso_fail(ISO_ERR_CONFIG, "%s: `data.validation.offset` = %lld must be below `every` = %lld", file,
                    (long long)config->data.validation.offset, (long long)config->data.validation.every);
  if (config->data.validation.every == 1)
    return iso_fail(ISO_ERR_CONFIG, "%s: `data.validation.every: 1` holds out everything; use 2 or more", file);
  if (config->data.validation.every && config->data.validation.path[0])
    return iso_fail(ISO_ERR_CONFIG, "%s: give `data.validation.every` or `data.validation.path`, not both", file);
  for (int i = 0; i < config->data.source_count; i++) {
    if (!config->data.sources[i].path[0])
      return iso_fail(ISO_ERR_CONFIG, "%s: `data.sources.%d.path` is missing", file, i);
    if (config->data.sources[i].weight <= 0)
      return iso_fail(ISO_ERR_CONFIG, "%s: `data.sources.%d.weight` must be above 0", file, i);
  }
  return check_unsupported(config);
}

iso_status iso_config_read(const char *path, const char *const *overrides, int override_count, iso_config *config) {
  memset(config, 0, sizeof *config);
  config->arena = iso_arena_create();
  if (!config->arena) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to read it", path);
  config->source = iso_arena_strdup(config->arena, path);
  iso_yaml *root = NULL;
  iso_status status = iso_yaml_read(config->arena, path, &root);
  if (status == ISO_OK && root->kind != ISO_YAML_MAPPING)
    status = iso_fail(ISO_ERR_CONFIG, "%s:%d:%d: a run config is a mapping of keys", path, root->line, root->column);
  for (size_t i = 0; i < iso_key_count && status == ISO_OK; i++)
    status = iso_key_set(&iso_keys[i], config, config->arena, iso_keys[i].fallback, "default");
  config->model.config = "";
  for (int i = 0; i < override_count && status == ISO_OK; i++)
    status = apply_override(config->arena, root, overrides[i]);
  if (status == ISO_OK) status = read_mapping(config, root, "");
  if (status == ISO_OK) status = check_config(config);
  if (status != ISO_OK) iso_config_fini(config);
  return status;
}

void iso_config_fini(iso_config *config) {
  iso_arena_destroy(&config->arena);
  memset(config, 0, sizeof *config);
}

int64_t iso_config_micro(const iso_config *config, int64_t workers) {
  if (config->batch.micro) return config->batch.micro;
  const int64_t share = config->batch.sequences / workers;
  for (int64_t micro = share; micro > 1; micro--)
    if (share % micro == 0 && micro * config->data.sequence <= 2048) return micro;
  return 1;
}

iso_dtype iso_config_compute(const iso_config *config) {
  return strcmp(config->precision.compute, "bfloat16") == 0 ? ISO_BF16 : ISO_F32;
}

iso_dtype iso_config_gradient(const iso_config *config) {
  if (strcmp(config->precision.gradient, "auto") == 0) return iso_config_compute(config);
  return strcmp(config->precision.gradient, "bfloat16") == 0 ? ISO_BF16 : ISO_F32;
}

iso_fusion_switches iso_config_fusion(const iso_config *config) {
  iso_fusion_switches switches = {0};
  if (iso_fusion_switches_read(config->fusion, "fusion", &switches) != ISO_OK) return (iso_fusion_switches){0};
  return switches; /* the words were read before, with the config */
}
