/* SPDX-License-Identifier: Apache-2.0
 *
 * YAML as a plain tree with line and column, so that the one who reads a config can say where it is wrong. libfyaml
 * parses; nothing of it is visible outside this file.
 */
#include <libfyaml.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

enum { MAX_DEPTH = 32, MAX_BYTES = 128 << 10 /* libfyaml's time grows with the square of a mapping's keys */ };

typedef struct reader {
  iso_arena *arena;
  const char *where;
} reader;

static void place(struct fy_token *token, int *line, int *column) {
  const struct fy_mark *mark = token ? fy_token_start_mark(token) : NULL;
  *line = mark ? mark->line + 1 : 1;
  *column = mark ? mark->column + 1 : 1;
}

static iso_status convert(const reader *r, struct fy_node *node, int depth, iso_yaml *out);

static iso_status convert_mapping(const reader *r, struct fy_node *node, int depth, iso_yaml *out) {
  out->kind = ISO_YAML_MAPPING;
  const int count = fy_node_mapping_item_count(node);
  out->children = iso_arena_alloc(r->arena, sizeof *out->children * (size_t)(count + 1));
  void *previous = NULL;
  struct fy_node_pair *pair;
  while ((pair = fy_node_mapping_iterate(node, &previous))) {
    struct fy_node *key = fy_node_pair_key(pair);
    iso_yaml *child = iso_arena_alloc(r->arena, sizeof *child);
    struct fy_token *token = key ? fy_node_get_scalar_token(key) : NULL;
    place(token, &child->key_line, &child->key_column);
    size_t length = 0;
    const char *text = token ? fy_node_get_scalar(key, &length) : NULL;
    if (!text || memchr(text, 0, length))
      return iso_fail(ISO_ERR_CONFIG, "%s:%d:%d: a key must be a plain word", r->where, child->key_line,
                      child->key_column);
    child->key = iso_arena_printf(r->arena, "%.*s", (int)length, text);
    child->line = child->key_line;
    child->column = child->key_column;
    struct fy_node *value = fy_node_pair_value(pair);
    if (value) {
      ISO_TRY(convert(r, value, depth + 1, child));
    } else {
      child->text = "";
    }
    if (child->kind != ISO_YAML_SCALAR) {
      child->line = child->key_line;
      child->column = child->key_column;
    }
    for (int i = 0; i < out->count; i++)
      if (strcmp(out->children[i]->key, child->key) == 0)
        return iso_fail(ISO_ERR_CONFIG, "%s:%d:%d: key `%s` is given twice, first in line %d; remove one", r->where,
                        child->key_line, child->key_column, child->key, out->children[i]->key_line);
    out->children[out->count++] = child;
  }
  if (!out->line && out->count) {
    out->line = out->children[0]->line;
    out->column = out->children[0]->column;
  }
  return ISO_OK;
}

static iso_status convert_sequence(const reader *r, struct fy_node *node, int depth, iso_yaml *out) {
  out->kind = ISO_YAML_SEQUENCE;
  const int count = fy_node_sequence_item_count(node);
  out->children = iso_arena_alloc(r->arena, sizeof *out->children * (size_t)(count + 1));
  void *previous = NULL;
  struct fy_node *item;
  while ((item = fy_node_sequence_iterate(node, &previous))) {
    iso_yaml *child = iso_arena_alloc(r->arena, sizeof *child);
    ISO_TRY(convert(r, item, depth + 1, child));
    out->children[out->count++] = child;
  }
  if (out->count) {
    out->line = out->children[0]->line;
    out->column = out->children[0]->column;
  }
  return ISO_OK;
}

static iso_status convert(const reader *r, struct fy_node *node, int depth, iso_yaml *out) {
  if (depth > MAX_DEPTH) return iso_fail(ISO_ERR_CONFIG, "%s: nested deeper than %d levels", r->where, MAX_DEPTH);
  if (fy_node_is_mapping(node)) return convert_mapping(r, node, depth, out);
  if (fy_node_is_sequence(node)) return convert_sequence(r, node, depth, out);
  out->kind = ISO_YAML_SCALAR;
  struct fy_token *token = fy_node_get_scalar_token(node);
  place(token, &out->line, &out->column);
  if (fy_node_is_alias(node))
    return iso_fail(ISO_ERR_CONFIG, "%s:%d:%d: aliases are not supported; write the value out", r->where, out->line,
                    out->column);
  size_t length = 0;
  const char *text = fy_node_get_scalar(node, &length);
  if (text && memchr(text, 0, length))
    return iso_fail(ISO_ERR_CONFIG, "%s:%d:%d: a value holds a NUL byte", r->where, out->line, out->column);
  out->text = iso_arena_printf(r->arena, "%.*s", (int)length, text ? text : "");
  const enum fy_scalar_style style = token ? fy_token_scalar_style(token) : FYSS_PLAIN;
  out->quoted =
      style == FYSS_SINGLE_QUOTED || style == FYSS_DOUBLE_QUOTED || style == FYSS_LITERAL || style == FYSS_FOLDED;
  return ISO_OK;
}

/* The first error that libfyaml collected, as one line of ours. */
static iso_status syntax_error(struct fy_diag *diag, const char *where) {
  void *previous = NULL;
  const struct fy_diag_error *error = fy_diag_errors_iterate(diag, &previous);
  if (!error) return iso_fail(ISO_ERR_CONFIG, "%s: is not valid YAML", where);
  return iso_fail(ISO_ERR_CONFIG, "%s:%d:%d: is not valid YAML: %s", where, error->line > 0 ? error->line : 1,
                  error->column > 0 ? error->column : 1, error->msg ? error->msg : "syntax error");
}

/* libfyaml ends a text at a NUL and drops a scalar that is not UTF-8, both in silence. */
static iso_status check_bytes(const char *text, size_t length, const char *where) {
  if (length > MAX_BYTES)
    return iso_fail(ISO_ERR_CONFIG, "%s: has %zu bytes; a config has at most %d", where, length, (int)MAX_BYTES);
  int line = 1;
  size_t begin = 0; /* of the line */
  for (size_t at = 0; at < length;) {
    const int span = text[at] ? iso_utf8_span(text + at, length - at) : 0;
    if (span == 0)
      return iso_fail(ISO_ERR_CONFIG, "%s:%d:%zu: byte 0x%02X %s; save the file as UTF-8 text", where, line,
                      at - begin + 1, (unsigned)(unsigned char)text[at], text[at] ? "is not UTF-8" : "is no text");
    if (text[at] == '\n') {
      line++;
      begin = at + 1;
    }
    at += (size_t)span;
  }
  return ISO_OK;
}

iso_status iso_yaml_parse(iso_arena *arena, const char *text, size_t length, const char *where, iso_yaml **out) {
  *out = NULL;
  ISO_TRY(check_bytes(text, length, where));
  struct fy_diag_cfg diag_config;
  fy_diag_cfg_default(&diag_config);
  diag_config.fp = NULL;
  struct fy_diag *diag = fy_diag_create(&diag_config);
  if (!diag) return iso_fail(ISO_ERR_MEMORY, "%s: no memory to parse it", where);
  fy_diag_set_collect_errors(diag, true);
  const struct fy_parse_cfg config = {.flags = FYPCF_QUIET | FYPCF_COLLECT_DIAG, .diag = diag};
  iso_yaml *root = iso_arena_alloc(arena, sizeof *root);
  root->kind = ISO_YAML_MAPPING;
  root->line = root->column = 1;
  iso_status status = ISO_OK;
  struct fy_parser *parser = fy_parser_create(&config);
  struct fy_document *document = NULL;
  if (!parser || fy_parser_set_string(parser, length ? text : "\n", length ? length : 1) != 0) {
    status = iso_fail(ISO_ERR_MEMORY, "%s: no memory to parse it", where);
    goto cleanup;
  }
  document = fy_parse_load_document(parser);
  if (fy_parser_get_stream_error(parser)) {
    status = syntax_error(diag, where);
    goto cleanup;
  }
  struct fy_node *top = document ? fy_document_root(document) : NULL;
  const reader r = {arena, where};
  if (top) status = convert(&r, top, 0, root);
  if (status == ISO_OK && root->kind == ISO_YAML_SCALAR && root->text[0] == 0) root->kind = ISO_YAML_MAPPING;
  if (status == ISO_OK && document) {
    struct fy_document *second = fy_parse_load_document(parser);
    if (fy_parser_get_stream_error(parser)) {
      status = syntax_error(diag, where);
    } else if (second) {
      status = iso_fail(ISO_ERR_CONFIG, "%s: holds more than one YAML document; keep one", where);
    }
    if (second) fy_parse_document_destroy(parser, second);
  }
  if (status == ISO_OK) *out = root;
cleanup:
  if (document) fy_parse_document_destroy(parser, document);
  if (parser) fy_parser_destroy(parser);
  fy_diag_destroy(diag);
  return status;
}

iso_status iso_yaml_read(iso_arena *arena, const char *path, iso_yaml **out) {
  char *data;
  size_t bytes;
  *out = NULL;
  ISO_TRY(iso_file_read(path, &data, &bytes));
  const iso_status status = iso_yaml_parse(arena, data, bytes, path, out);
  free(data);
  return status;
}
