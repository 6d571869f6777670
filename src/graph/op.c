/* SPDX-License-Identifier: Apache-2.0
 *
 * op: the op table, the attribute table and the spaces at run time.
 *
 * Invariants
 *  1. Nothing here is written by hand that ops.def or attributes.def says already.
 *  2. Look-ups by text are exact: no prefixes, no case folding.
 */
#include "graph/graph.h"

#include <string.h>

enum {
  INPLACE = ISO_OP_FLAG_INPLACE,
  EFFECT = ISO_OP_FLAG_EFFECT,
  VIEW = ISO_OP_FLAG_VIEW,
  INPLACE1 = ISO_OP_FLAG_INPLACE1,
  WRITES0 = ISO_OP_FLAG_WRITES0,
  WRITES1 = ISO_OP_FLAG_WRITES0 << 1,
  WRITES2 = ISO_OP_FLAG_WRITES0 << 2,
  WRITES3 = ISO_OP_FLAG_WRITES0 << 3,
  WRITES4 = ISO_OP_FLAG_WRITES0 << 4
};

static const iso_op_info infos[ISO_OP_COUNT] = {
    [ISO_OP_NONE] = {"none", "", "", "", 0},
#define OP(NAME, text, inputs, outputs, attributes, flags) [ISO_OP_##NAME] = {text, inputs, outputs, attributes, flags},
#include "graph/ops.def"
#undef OP
};

static const struct {
  const char *text;
  char kind;
} attributes[ISO_ATTR_COUNT] = {
#define ATTRIBUTE(NAME, text, kind) [ISO_ATTR_##NAME] = {text, kind},
#include "graph/attributes.def"
#undef ATTRIBUTE
};

static const struct {
  const char *name;
  bool state, flat;
} spaces[ISO_SPACE_COUNT] = {
    [ISO_SPACE_TRANSIENT] = {"transient", false, false}, [ISO_SPACE_INPUT] = {"input", false, false},
    [ISO_SPACE_CONST] = {"const", false, false},         [ISO_SPACE_MASTER] = {"master", true, true},
    [ISO_SPACE_WEIGHT] = {"weight", true, true},         [ISO_SPACE_MOMENT1] = {"moment1", true, true},
    [ISO_SPACE_MOMENT2] = {"moment2", true, true},       [ISO_SPACE_GRAD] = {"grad", false, true},
    [ISO_SPACE_REDUCED] = {"reduced", true, true},       [ISO_SPACE_SQUARES] = {"squares", true, true},
    [ISO_SPACE_SCALAR] = {"scalar", true, true},         [ISO_SPACE_CACHE] = {"cache", true, false},
    [ISO_SPACE_OUTPUT] = {"output", false, false},
};

const char *iso_space_name(iso_space space) {
  return (unsigned)space < ISO_SPACE_COUNT ? spaces[space].name : "?";
}

bool iso_space_is_state(iso_space space) {
  return spaces[space].state;
}

bool iso_space_is_flat(iso_space space) {
  return spaces[space].flat;
}

const iso_op_info *iso_op_get(iso_op op) {
  return &infos[(unsigned)op < ISO_OP_COUNT ? op : ISO_OP_NONE];
}

iso_op iso_op_find(const char *text, size_t length) {
  for (int op = ISO_OP_NONE + 1; op < ISO_OP_COUNT; op++) {
    if (strlen(infos[op].text) == length && memcmp(infos[op].text, text, length) == 0) return (iso_op)op;
  }
  return ISO_OP_NONE;
}

const char *iso_attribute_text(iso_attribute attribute) {
  return attributes[attribute].text;
}

char iso_attribute_kind(iso_attribute attribute) {
  return attributes[attribute].kind;
}

int iso_attribute_find(const char *text, size_t length) {
  for (int key = 0; key < ISO_ATTR_COUNT; key++) {
    if (strlen(attributes[key].text) == length && memcmp(attributes[key].text, text, length) == 0) return key;
  }
  return -1;
}

int iso_op_input_count(iso_op op) {
  return (int)strlen(iso_op_get(op)->inputs);
}

int iso_op_output_count(iso_op op) {
  return (int)strlen(iso_op_get(op)->outputs);
}

static bool upper(char letter) {
  return letter >= 'A' && letter <= 'Z';
}

bool iso_op_input_optional(iso_op op, int index) {
  return upper(iso_op_get(op)->inputs[index]);
}

bool iso_op_output_optional(iso_op op, int index) {
  return upper(iso_op_get(op)->outputs[index]);
}

bool iso_op_has_attribute(iso_op op, iso_attribute key) {
  const char *list = iso_op_get(op)->attributes, *text = attributes[key].text;
  size_t length = strlen(text);
  for (const char *at = list; *at != '\0';) {
    size_t word = strcspn(at, " ");
    if (word == length && memcmp(at, text, length) == 0) return true;
    at += word;
    at += strspn(at, " ");
  }
  return false;
}
