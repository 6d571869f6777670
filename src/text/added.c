/* SPDX-License-Identifier: Apache-2.0
 *
 * added.c: finding added tokens (<|endoftext|> and the like) in text.
 *
 * Two tries, as the reference has it: tokens with normalized = false are looked for in the text as given, then the
 * others, their contents normalized too, in what normalization made of the rest. Matching is leftmost, then longest.
 *
 * Invariants
 *  1. Contents are not empty, unique, and at most ISO_ADDED_BYTES_LIMIT bytes, so that looking is linear in the text.
 *  2. Of two contents that become equal when normalized the first stands.
 */
#include "text/text.h"

#include <stdlib.h>
#include <string.h>

enum { ISO_ADDED_BYTES_LIMIT = 1024 };

struct iso_added_node {
  int32_t child, sibling; /* -1: none */
  int32_t token;          /* index of the token that ends here, -1: none */
  uint8_t byte;
};

iso_status iso_added_add(iso_added_set *set, const iso_added_token *token) {
  if (token->length == 0 || token->length > ISO_ADDED_BYTES_LIMIT)
    return iso_fail(ISO_ERR_FORMAT, "added token %d has %zu bytes (1 to %d are allowed)", token->id, token->length,
                    ISO_ADDED_BYTES_LIMIT);
  if ((set->count & (set->count - 1)) == 0) { /* the array is full at powers of two */
    size_t capacity = set->count ? 2 * set->count : 1;
    iso_added_token *tokens = realloc(set->tokens, capacity * sizeof *tokens);
    if (!tokens) return iso_fail(ISO_ERR_MEMORY, "out of memory for added tokens");
    set->tokens = tokens;
  }
  iso_added_token *copy = &set->tokens[set->count];
  *copy = *token;
  copy->content = malloc(token->length + 1);
  if (!copy->content) return iso_fail(ISO_ERR_MEMORY, "out of memory for added tokens");
  memcpy(copy->content, token->content, token->length);
  copy->content[token->length] = '\0';
  set->count++;
  return ISO_OK;
}

static int32_t find_child(const struct iso_added_node *nodes, int32_t node, uint8_t byte) {
  int32_t child = nodes[node].child;
  while (child >= 0 && nodes[child].byte != byte) child = nodes[child].sibling;
  return child;
}

/* A new node's index, -1 when memory is short. */
static int32_t new_node(iso_added_set *set, int which, uint8_t byte) {
  if (set->node_counts[which] == set->capacities[which]) {
    size_t capacity = set->capacities[which] ? 2 * set->capacities[which] : 64;
    struct iso_added_node *nodes = realloc(set->nodes[which], capacity * sizeof *nodes);
    if (!nodes) return -1;
    set->nodes[which] = nodes;
    set->capacities[which] = capacity;
  }
  int32_t index = (int32_t)set->node_counts[which]++;
  set->nodes[which][index] = (struct iso_added_node){.child = -1, .sibling = -1, .token = -1, .byte = byte};
  return index;
}

static bool insert(iso_added_set *set, int which, const char *content, size_t length, int32_t token) {
  if (set->node_counts[which] == 0 && new_node(set, which, 0) < 0) return false;
  int32_t node = 0;
  for (size_t i = 0; i < length; i++) {
    uint8_t byte = (uint8_t)content[i];
    int32_t child = find_child(set->nodes[which], node, byte);
    if (child < 0) {
      if ((child = new_node(set, which, byte)) < 0) return false;
      set->nodes[which][child].sibling = set->nodes[which][node].child;
      set->nodes[which][node].child = child;
    }
    node = child;
  }
  if (set->nodes[which][node].token < 0) set->nodes[which][node].token = token;
  set->first[which][(uint8_t)content[0]] = true;
  for (size_t i = 1; i < length; i++) {
    const uint8_t right = (uint8_t)content[i];
    set->inside[(uint8_t)content[i - 1]][right >> 6] |= 1ull << (right & 63);
  }
  if (length > 0) set->ends[(uint8_t)content[length - 1]] = true;
  if (length > 0 && set->tokens[token].rstrip) set->strips[(uint8_t)content[length - 1]] = true;
  return true;
}

iso_status iso_added_finish(iso_added_set *set, const iso_tokenizer *tokenizer) {
  iso_status status = ISO_OK;
  iso_string normal = {0};
  const iso_sentencepiece *sp = tokenizer->sentencepiece;
  for (size_t i = 0; i < set->count && status == ISO_OK; i++) {
    const iso_added_token *token = &set->tokens[i];
    bool changed = false;
    if (tokenizer->nfc && token->normalized) status = iso_nfc(token->content, token->length, &normal, &changed);
    if (sp && !sp->late && token->normalized) {
      if (normal.data) normal.length = 0;
      iso_sentencepiece_normalize(sp, token->content, token->length, ISO_TEXT_START, &normal);
      changed = true;
    }
    const char *content = changed ? normal.data : token->content;
    size_t length = changed ? normal.length : token->length;
    if (status == ISO_OK && !insert(set, token->normalized, content, length, (int32_t)i))
      status = iso_fail(ISO_ERR_MEMORY, "out of memory for added tokens");
  }
  iso_string_fini(&normal);
  return status;
}

const iso_added_token *iso_added_match(const iso_added_set *set, int which, const char *text, size_t at, size_t length,
                                       size_t *stop) {
  const struct iso_added_node *nodes = set->nodes[which];
  const iso_added_token *found = NULL;
  int32_t node = 0;
  if (!nodes || at >= length || !set->first[which][(uint8_t)text[at]]) return NULL;
  for (size_t i = at; i < length && (node = find_child(nodes, node, (uint8_t)text[i])) >= 0; i++) {
    if (nodes[node].token < 0) continue;
    found = &set->tokens[nodes[node].token];
    *stop = i + 1;
  }
  return found;
}

const iso_added_token *iso_added_next(const iso_added_set *set, int which, const char *text, size_t from, size_t length,
                                      size_t *start, size_t *stop) {
  if (!set->nodes[which]) return NULL;
  for (size_t at = from; at < length; at++) {
    if (!set->first[which][(uint8_t)text[at]]) continue;
    const iso_added_token *found = iso_added_match(set, which, text, at, length, stop);
    if (!found) continue;
    *start = at;
    return found;
  }
  return NULL;
}

/* ---- walking over a text ---- */

/* Start of the white space that ends text[from, at). */
static size_t space_before(const char *text, size_t from, size_t at) {
  const uint8_t *table = iso_unicode_table();
  while (at > from) {
    size_t previous = at - 1, bytes;
    while (previous > from && iso_utf8_continues((uint8_t)text[previous])) previous--;
    int class = table[iso_utf8_decode((const uint8_t *)text + previous, &bytes)] & ISO_CLASS_MASK;
    if (class != ISO_CLASS_SPACE && class != ISO_CLASS_NEWLINE) break;
    at = previous;
  }
  return at;
}

static size_t space_after(const char *text, size_t at, size_t length) {
  const uint8_t *table = iso_unicode_table();
  for (size_t bytes; at < length; at += bytes) {
    int class = table[iso_utf8_decode((const uint8_t *)text + at, &bytes)] & ISO_CLASS_MASK;
    if (class != ISO_CLASS_SPACE && class != ISO_CLASS_NEWLINE) break;
  }
  return at;
}

const iso_added_token *iso_added_walk_next(iso_added_walk *walk, size_t *start, size_t *stop) {
  size_t begin, end;
  const iso_added_token *token =
      iso_added_next(walk->set, walk->which, walk->text, walk->from, walk->length, &begin, &end);
  *start = walk->done;
  if (!token) {
    *stop = walk->done < walk->length ? walk->length : walk->done;
    return NULL;
  }
  walk->from = end;
  if (token->lstrip) begin = space_before(walk->text, walk->done < begin ? walk->done : begin, begin);
  if (token->rstrip) end = space_after(walk->text, end, walk->length);
  *stop = walk->done < begin ? begin : walk->done;
  walk->done = end;
  return token;
}

void iso_added_fini(iso_added_set *set) {
  for (size_t i = 0; i < set->count; i++) free(set->tokens[i].content);
  free(set->tokens);
  free(set->nodes[0]);
  free(set->nodes[1]);
  *set = (iso_added_set){0};
}
