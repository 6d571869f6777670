/* SPDX-License-Identifier: Apache-2.0
 *
 * parse: the text form read back (print.c writes it, docs/ir.md has its grammar).
 *
 * Invariants
 *  1. Any bytes end in a graph that the verifier accepts or in one FORMAT error with line and column; time and memory
 * are linear in the text, which may have 16 MiB at most.
 *  2. What it accepts prints as the same graph again; '#' starts a comment that ends with its line.
 *  3. The contents of constants are not in the text: `content` is NULL.
 */
#include "graph/graph.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT ((size_t)16 << 20)

typedef struct token {
  const char *text;
  size_t length;
  char kind; /* 'w' word, 'n' end of line, 0 end of text, else the character itself */
  int line, column;
} token;

typedef struct parser {
  const char *at, *end, *where, *line_start;
  int line;
  token next; /* one token of look-ahead */
  iso_graph *graph;
  int *names; /* hash of tensor names: id + 1 */
  size_t slots;
  int phase;
  /* parameters' gradient names, resolved at the end */
  token *gradients;
  int gradient_capacity;
} parser;

static iso_status wrong(const parser *p, const token *at, const char *what) {
  return iso_fail(ISO_ERR_FORMAT, "%s:%d:%d: %s", p->where, at->line, at->column, what);
}

static bool word_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         (c != '\0' && strchr("_.:/%+-", c) != NULL);
}

/* Moves the look-ahead on and returns what it was. */
static token take(parser *p) {
  token had = p->next;
  while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\r')) p->at++;
  if (p->at < p->end && *p->at == '#') {
    while (p->at < p->end && *p->at != '\n') p->at++;
  }
  p->next = (token){.text = p->at, .line = p->line, .column = (int)(p->at - p->line_start) + 1};
  if (p->at == p->end) return had;
  if (*p->at == '\n') {
    p->next.kind = 'n';
    p->next.length = 1;
    p->at++;
    p->line++;
    p->line_start = p->at;
    return had;
  }
  const char *start = p->at;
  while (p->at < p->end && word_char(*p->at)) p->at++;
  p->next.kind = p->at > start ? 'w' : *start == '\0' || *start == 'w' || *start == 'n' ? '?' : *start;
  if (p->at == start) p->at++;
  p->next.length = (size_t)(p->at - start);
  return had;
}

static bool is_word(const token *t, const char *text) {
  return t->kind == 'w' && t->length == strlen(text) && memcmp(t->text, text, t->length) == 0;
}

static iso_status expect(parser *p, char kind, const char *what, token *out) {
  if (p->next.kind != kind) return wrong(p, &p->next, what);
  token had = take(p);
  if (out != NULL) *out = had;
  return ISO_OK;
}

static bool accept(parser *p, char kind) {
  if (p->next.kind != kind) return false;
  take(p);
  return true;
}

static iso_status end_of_line(parser *p) {
  if (p->next.kind == 0 || accept(p, 'n')) return ISO_OK;
  return wrong(p, &p->next, "the line should end here");
}

static iso_status whole_of(const parser *p, const token *t, int64_t *out) {
  int64_t value = 0;
  size_t i = t->length > 1 && t->text[0] == '-' ? 1 : 0;
  if (t->kind != 'w' || t->length - i > 15) return wrong(p, t, "a whole number of at most 15 digits is expected here");
  for (size_t d = i; d < t->length; d++) {
    if (t->text[d] < '0' || t->text[d] > '9') return wrong(p, t, "a whole number is expected here");
    value = value * 10 + (t->text[d] - '0');
  }
  *out = i > 0 ? -value : value;
  return ISO_OK;
}

static iso_status real_of(const parser *p, const token *t, double *out) {
  char text[40], *rest = NULL;
  if (t->kind != 'w' || t->length >= sizeof text || t->length == 0) return wrong(p, t, "a number is expected here");
  memcpy(text, t->text, t->length);
  text[t->length] = '\0';
  *out = strtod(text, &rest);
  if (strspn(text, "0123456789+-.e") != t->length || *rest != '\0' || !isfinite(*out)) {
    return wrong(p, t, "a finite decimal number is expected here");
  }
  return ISO_OK;
}

/* `count` names; the one that the word spells. */
static int choice(const token *t, const char *(*name)(int), int count) {
  for (int i = 0; i < count; i++) {
    if (is_word(t, name(i))) return i;
  }
  return -1;
}

static const char *dtype_name(int i) {
  return iso_dtype_name((iso_dtype)i);
}
static const char *space_name(int i) {
  return iso_space_name((iso_space)i);
}
static const char *init_name(int i) {
  return iso_init_name((iso_init)i);
}
static const char *class_name(int i) {
  return iso_decay_class_name((iso_decay_class)i);
}

/* Slot of a name in the hash: where it is, or where it would go. */
static int *name_slot(const parser *p, const char *text, size_t length) {
  size_t at = iso_crc32c(0, text, length) & (p->slots - 1);
  for (; p->names[at] != 0; at = (at + 1) & (p->slots - 1)) {
    const char *name = p->graph->tensors[p->names[at] - 1].name;
    if (strlen(name) == length && memcmp(name, text, length) == 0) break;
  }
  return &p->names[at];
}

/* A name that is new, in the arena; keeps the numbers of later unnamed tensors above it. */
static iso_status new_name(parser *p, const token *t, const char **out) {
  if (t->kind != 'w' || t->length > 255) return wrong(p, t, "a name of at most 255 characters is expected here");
  if (is_word(t, "-")) return wrong(p, t, "a name is expected here");
  if (*name_slot(p, t->text, t->length) != 0) return wrong(p, t, "this name is taken");
  *out = iso_arena_printf(p->graph->arena, "%.*s", (int)t->length, t->text);
  if (t->text[0] == '%' && t->length <= 9 && strspn(*out + 1, "0123456789") == t->length - 1) {
    int number = atoi(*out + 1);
    if (number >= p->graph->next_number) p->graph->next_number = number + 1;
  }
  return ISO_OK;
}

static iso_status find_name(const parser *p, const token *t, iso_id *out) {
  int slot = t->kind == 'w' ? *name_slot(p, t->text, t->length) : 0;
  if (slot == 0) return wrong(p, t, "this tensor is not known here");
  *out = slot - 1;
  return ISO_OK;
}

/* type = dtype '[' whole { ',' whole } ']' */
static iso_status parse_type(parser *p, iso_tensor *out) {
  token t = {0};
  ISO_TRY(expect(p, 'w', "an element type is expected here", &t));
  int dtype = choice(&t, dtype_name, ISO_U8 + 1);
  if (dtype < 0) return wrong(p, &t, "unknown element type");
  out->dtype = (iso_dtype)dtype;
  ISO_TRY(expect(p, '[', "'[' is expected here", NULL));
  int64_t elements = 1;
  do {
    if (out->rank == ISO_MAX_RANK) return wrong(p, &p->next, "too many dimensions");
    int64_t size = 0;
    t = take(p);
    ISO_TRY(whole_of(p, &t, &size));
    if (size < 1 || size > ((int64_t)1 << 46) / elements) return wrong(p, &t, "this size is too small or too large");
    elements *= size;
    out->shape[out->rank++] = size;
  } while (accept(p, ','));
  return expect(p, ']', "',' or ']' is expected here", NULL);
}

static iso_id add_tensor(parser *p, const char *name, const iso_tensor *type, iso_space space, int64_t offset) {
  iso_graph *graph = p->graph;
  iso_id id = iso_graph_tensor(graph, name, type->dtype, type->rank, type->shape, space);
  graph->tensors[id].offset = offset;
  *name_slot(p, name, strlen(name)) = id + 1;
  if (!iso_space_is_flat(space) && space != ISO_SPACE_TRANSIENT) {
    int64_t end = (offset + iso_tensor_bytes(&graph->tensors[id]) + 63) / 64 * 64;
    if (end > graph->space_bytes[space]) graph->space_bytes[space] = end;
  }
  return id;
}

/* key '=' word */
static iso_status parse_setting(parser *p, const char *key, token *out) {
  token t = {0};
  ISO_TRY(expect(p, 'w', "a setting is expected here", &t));
  if (!is_word(&t, key)) {
    return iso_fail(ISO_ERR_FORMAT, "%s:%d:%d: '%s=' is expected here", p->where, t.line, t.column, key);
  }
  ISO_TRY(expect(p, '=', "'=' is expected here", NULL));
  return expect(p, 'w', "a value is expected here", out);
}

/* init=… std=… class=… [gradient=…] after a parameter's place */
static iso_status parse_parameter(parser *p, const char *name, const token *at, const iso_tensor *type,
                                  int64_t offset) {
  token init = {0}, std = {0}, class_token = {0};
  double init_std = 0;
  ISO_TRY(parse_setting(p, "init", &init));
  ISO_TRY(parse_setting(p, "std", &std));
  ISO_TRY(real_of(p, &std, &init_std));
  ISO_TRY(parse_setting(p, "class", &class_token));
  int how = choice(&init, init_name, ISO_INIT_COUNT), decay = choice(&class_token, class_name, ISO_DECAY_COUNT);
  if (how < 0) return wrong(p, &init, "unknown init");
  if (decay < 0) return wrong(p, &class_token, "unknown class");
  iso_graph *graph = p->graph;
  if (type->dtype != ISO_F32) return wrong(p, at, "a parameter is f32");
  if (offset != graph->flat_elements) return wrong(p, at, "parameters must follow each other without gaps");
  int64_t elements = 1;
  for (int i = 0; i < type->rank; i++) elements *= type->shape[i];
  if (elements > ((int64_t)1 << 46) - graph->flat_elements) return wrong(p, at, "the flat state is too large");
  iso_id id =
      iso_graph_parameter(graph, name, type->rank, type->shape, (iso_init)how, init_std, (iso_decay_class)decay);
  *name_slot(p, name, strlen(name)) = id + 1;
  if (graph->parameter_count > p->gradient_capacity) {
    int capacity = p->gradient_capacity == 0 ? 64 : p->gradient_capacity * 2;
    token *larger = iso_arena_alloc(graph->arena, (size_t)capacity * sizeof *larger);
    if (p->gradient_capacity > 0) memcpy(larger, p->gradients, (size_t)p->gradient_capacity * sizeof *larger);
    p->gradients = larger;
    p->gradient_capacity = capacity;
  }
  token *gradient = &p->gradients[graph->parameter_count - 1];
  *gradient = (token){0};
  return is_word(&p->next, "gradient") ? parse_setting(p, "gradient", gradient) : ISO_OK;
}

/* declaration = (space | "parameter") name type '@' whole [settings] */
static iso_status parse_declaration(parser *p, const token *kind) {
  token at = {0}, number = {0};
  const char *name = NULL;
  iso_tensor type = {0};
  int64_t offset = 0;
  bool parameter = is_word(kind, "parameter");
  int space = choice(kind, space_name, ISO_SPACE_COUNT);
  if (!parameter && (space < 0 || space == ISO_SPACE_TRANSIENT || space == ISO_SPACE_OUTPUT)) {
    return wrong(p, kind, "a declaration or a phase is expected here");
  }
  ISO_TRY(expect(p, 'w', "a name is expected here", &at));
  ISO_TRY(new_name(p, &at, &name));
  ISO_TRY(parse_type(p, &type));
  ISO_TRY(expect(p, '@', "'@' and the place are expected here", NULL));
  number = take(p);
  ISO_TRY(whole_of(p, &number, &offset));
  if (offset < 0) return wrong(p, &number, "a place is not negative");
  if (parameter) {
    ISO_TRY(parse_parameter(p, name, &at, &type, offset));
  } else {
    add_tensor(p, name, &type, (iso_space)space, offset);
  }
  return end_of_line(p);
}

/* output = '-' | name [type ['@' space ':' whole]]   (the place lexes as one word "space:whole") */
static iso_status parse_output(parser *p, iso_id *out) {
  token at = {0}, place = {0};
  const char *name = NULL;
  iso_tensor type = {0};
  iso_space space = ISO_SPACE_TRANSIENT;
  int64_t offset = 0;
  *out = -1;
  ISO_TRY(expect(p, 'w', "an output is expected here", &at));
  if (is_word(&at, "-")) return ISO_OK;
  if (p->next.kind != 'w') { /* state, declared above */
    ISO_TRY(find_name(p, &at, out));
    if (iso_space_is_state(p->graph->tensors[*out].space)) return ISO_OK;
    return wrong(p, &at, "only state may be written again");
  }
  ISO_TRY(new_name(p, &at, &name));
  ISO_TRY(parse_type(p, &type));
  if (accept(p, '@')) {
    ISO_TRY(expect(p, 'w', "a place is expected here", &place));
    const char *colon = memchr(place.text, ':', place.length);
    token head = place, tail = place;
    if (colon == NULL) return wrong(p, &place, "a place is written space:offset");
    head.length = (size_t)(colon - place.text);
    tail.text = colon + 1;
    tail.length = place.length - head.length - 1;
    tail.column += (int)head.length + 1;
    int found = choice(&head, space_name, ISO_SPACE_COUNT);
    if (found != ISO_SPACE_OUTPUT && found != ISO_SPACE_GRAD) return wrong(p, &head, "only output and grad are made");
    space = (iso_space)found;
    ISO_TRY(whole_of(p, &tail, &offset));
    if (offset < 0) return wrong(p, &tail, "a place is not negative");
  }
  *out = add_tensor(p, name, &type, space, offset);
  return ISO_OK;
}

/* attributes = '{' key '=' number { ',' key '=' number } '}' */
static iso_status parse_attributes(parser *p, iso_node *node) {
  if (!accept(p, '{')) return ISO_OK;
  do {
    token key = {0}, value = {0};
    ISO_TRY(expect(p, 'w', "an attribute is expected here", &key));
    int which = iso_attribute_find(key.text, key.length);
    if (which < 0) return wrong(p, &key, "unknown attribute");
    if (node->has_attribute[which]) return wrong(p, &key, "this attribute stands twice");
    ISO_TRY(expect(p, '=', "'=' is expected here", NULL));
    value = take(p);
    if (iso_attribute_kind((iso_attribute)which) == 'i') {
      int64_t whole = 0;
      ISO_TRY(whole_of(p, &value, &whole));
      node->attributes[which] = (double)whole;
    } else {
      ISO_TRY(real_of(p, &value, &node->attributes[which]));
    }
    node->has_attribute[which] = true;
  } while (accept(p, ','));
  return expect(p, '}', "',' or '}' is expected here", NULL);
}

/* node = output { ',' output } '=' op [input { ',' input }] [attributes] */
static iso_status parse_node(parser *p) {
  iso_graph *graph = p->graph;
  iso_node node = {.phase = p->phase};
  token op = {0}, input = {0}, start = p->next;
  do {
    if (node.output_count == ISO_MAX_OUTPUTS) return wrong(p, &p->next, "too many outputs");
    ISO_TRY(parse_output(p, &node.outputs[node.output_count]));
    node.output_count++;
  } while (accept(p, ','));
  ISO_TRY(expect(p, '=', "',' or '=' is expected here", NULL));
  ISO_TRY(expect(p, 'w', "an op is expected here", &op));
  node.op = iso_op_find(op.text, op.length);
  if (node.op == ISO_OP_NONE) return wrong(p, &op, "unknown op");
  if (p->next.kind == 'w') {
    do {
      if (node.input_count == ISO_MAX_INPUTS) return wrong(p, &p->next, "too many inputs");
      iso_id *slot = &node.inputs[node.input_count++];
      *slot = -1;
      ISO_TRY(expect(p, 'w', "an input is expected here", &input));
      if (is_word(&input, "-")) continue;
      ISO_TRY(find_name(p, &input, slot));
      for (int i = 0; i < node.output_count; i++) {
        bool own = node.outputs[i] == *slot && !iso_space_is_state(graph->tensors[*slot].space);
        if (own) return wrong(p, &input, "a node cannot read what it makes");
      }
    } while (accept(p, ','));
  }
  ISO_TRY(parse_attributes(p, &node));
  iso_tensor inferred[ISO_MAX_OUTPUTS];
  char cause[320];
  if (!iso_shape_explain(graph, &node, inferred, cause, sizeof cause)) return wrong(p, &op, cause);
  for (int i = 0; i < node.output_count; i++) {
    if (node.outputs[i] < 0) continue;
    const iso_tensor *have = &graph->tensors[node.outputs[i]];
    if (have->rank != inferred[i].rank ||
        memcmp(have->shape, inferred[i].shape, sizeof(int64_t) * (size_t)have->rank) != 0) {
      return wrong(p, &start, "an output has another shape than the op gives");
    }
  }
  ISO_TRY(iso_graph_node_into(graph, &node));
  return end_of_line(p);
}

static iso_status parse_head(parser *p, iso_arena *arena) {
  token word = {0}, name = {0}, compute = {0}, gradient = {0}, tokens = {0};
  int64_t rows = 0;
  while (accept(p, 'n')) {
  }
  ISO_TRY(expect(p, 'w', "'graph' is expected here", &word));
  if (!is_word(&word, "graph")) return wrong(p, &word, "'graph' is expected here");
  ISO_TRY(expect(p, 'w', "the graph's name is expected here", &name));
  if (name.length > 255) return wrong(p, &name, "a name of at most 255 characters is expected here");
  ISO_TRY(parse_setting(p, "compute", &compute));
  ISO_TRY(parse_setting(p, "gradient", &gradient));
  ISO_TRY(parse_setting(p, "tokens", &tokens));
  ISO_TRY(whole_of(p, &tokens, &rows));
  p->graph = iso_graph_new(arena, iso_arena_printf(arena, "%.*s", (int)name.length, name.text));
  if (p->graph == NULL) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for its graph", p->where);
  int types[2] = {choice(&compute, dtype_name, ISO_BF16 + 1), choice(&gradient, dtype_name, ISO_BF16 + 1)};
  if (types[0] < 0) return wrong(p, &compute, "f32 or bf16 is expected here");
  if (types[1] < 0) return wrong(p, &gradient, "f32 or bf16 is expected here");
  p->graph->compute = (iso_dtype)types[0];
  p->graph->gradient = (iso_dtype)types[1];
  p->graph->tokens = rows;
  return end_of_line(p);
}

static iso_status parse_lines(parser *p) {
  p->phase = -1;
  while (p->next.kind != 0) {
    if (accept(p, 'n')) continue;
    if (is_word(&p->next, "phase")) {
      take(p);
      token phase = take(p);
      int found = is_word(&phase, "micro") ? ISO_PHASE_MICRO : is_word(&phase, "update") ? ISO_PHASE_UPDATE : -1;
      if (found <= p->phase) return wrong(p, &phase, "'micro', then 'update' is expected here, each once");
      p->phase = found;
      ISO_TRY(end_of_line(p));
    } else if (p->phase < 0) {
      token kind = {0};
      ISO_TRY(expect(p, 'w', "a declaration or a phase is expected here", &kind));
      ISO_TRY(parse_declaration(p, &kind));
    } else {
      ISO_TRY(parse_node(p));
    }
  }
  for (int i = 0; i < p->graph->parameter_count; i++) {
    const token *t = &p->gradients[i];
    if (t->length > 0) ISO_TRY(find_name(p, t, &p->graph->parameters[i].gradient));
  }
  return ISO_OK;
}

iso_status iso_graph_parse(iso_arena *arena, const char *text, size_t length, const char *where, iso_graph **out) {
  parser p = {.at = text, .end = text + length, .where = where, .line_start = text, .line = 1, .slots = 64};
  *out = NULL;
  if (length > MAX_TEXT) return iso_fail(ISO_ERR_FORMAT, "%s: a graph's text has at most 16 MiB", where);
  while (p.slots < length / 4) p.slots *= 2; /* a tensor's first mention takes 8 characters: at most half full */
  p.names = calloc(p.slots, sizeof *p.names);
  if (p.names == NULL) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for its names", where);
  take(&p);
  iso_status status = parse_head(&p, arena);
  if (status == ISO_OK) status = parse_lines(&p);
  free(p.names);
  if (status != ISO_OK) return status;
  const char *cause = iso_graph_explain(p.graph, false);
  if (cause != NULL) return iso_fail(ISO_ERR_FORMAT, "%s: %s", where, cause);
  *out = p.graph;
  return ISO_OK;
}
