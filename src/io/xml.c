/* SPDX-License-Identifier: Apache-2.0
 *
 * The XML that S3 answers with: listings and errors. A small strict reader, not a general one.
 *
 * A document is walked once; each element that ends is reported with its path from the root ("ListBucketResult/
 * Contents/Key") and its text. Elements that we do not know are walked like the others and ignored by the callers.
 *
 * Invariants
 *  1. Nothing is read beyond the text; depth and path length are bounded; no recursion.
 *  2. Every element is closed by its name, and after the root only white space follows: a cut document is refused.
 *  3. Declarations (<!DOCTYPE, entities of one's own), comments and CDATA are refused: S3 sends none.
 */
#include "io/io.h"

#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 256, MAX_DEPTH = 8 };

typedef struct walker {
  const char *at, *end;
  char path[PATH_BYTES];
  size_t path_length;
  size_t starts[MAX_DEPTH]; /* where each open element's name begins in `path` */
  int depth;
  iso_string text; /* of the innermost open element */
  const char *cause;
} walker;

static bool bad(walker *w, const char *cause) {
  w->cause = cause;
  return false;
}

static bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static bool is_name(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == ':' || c == '_' ||
         c == '-' || c == '.';
}

/* ---- text ---- */

static void append_utf8(iso_string *out, unsigned long code) {
  char bytes[4];
  int count;
  if (code < 0x80) {
    bytes[0] = (char)code;
    count = 1;
  } else if (code < 0x800) {
    bytes[0] = (char)(0xC0 | code >> 6);
    count = 2;
  } else if (code < 0x10000) {
    bytes[0] = (char)(0xE0 | code >> 12);
    count = 3;
  } else {
    bytes[0] = (char)(0xF0 | code >> 18);
    count = 4;
  }
  for (int i = 1; i < count; i++) bytes[i] = (char)(0x80 | (code >> 6 * (count - 1 - i) & 0x3F));
  iso_string_append(out, bytes, (size_t)count);
}

/* At an '&': appends what the reference stands for. */
static bool reference(walker *w) {
  static const struct {
    const char *name;
    char is;
  } known[] = {{"amp;", '&'}, {"lt;", '<'}, {"gt;", '>'}, {"quot;", '"'}, {"apos;", '\''}};
  size_t left = (size_t)(w->end - w->at - 1);
  const char *name = w->at + 1;
  for (size_t i = 0; i < ISO_COUNT(known); i++) {
    size_t length = strlen(known[i].name);
    if (left < length || memcmp(name, known[i].name, length) != 0) continue;
    iso_string_append(&w->text, &known[i].is, 1);
    w->at += 1 + length;
    return true;
  }
  if (left < 1 || name[0] != '#') return bad(w, "an unknown entity");
  bool hex = left > 1 && name[1] == 'x';
  const char *digit = name + (hex ? 2 : 1), *first = digit;
  unsigned long code = 0;
  for (; digit < w->end && *digit != ';'; digit++) {
    char c = *digit;
    int value = c >= '0' && c <= '9'          ? c - '0'
                : hex && c >= 'a' && c <= 'f' ? c - 'a' + 10
                : hex && c >= 'A' && c <= 'F' ? c - 'A' + 10
                                              : -1;
    if (value < 0 || digit - first > 7) return bad(w, "a malformed character reference");
    code = code * (hex ? 16 : 10) + (unsigned long)value;
  }
  if (digit == w->end || digit == first || code == 0 || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
    return bad(w, "a malformed character reference");
  append_utf8(&w->text, code);
  w->at = digit + 1;
  return true;
}

/* Up to the next '<' or the end. Outside the root only white space may stand. */
static bool content(walker *w) {
  while (w->at < w->end && *w->at != '<') {
    const char *from = w->at;
    if (w->depth == 0) {
      if (!is_space(*w->at++)) return bad(w, "text outside the root element");
      continue;
    }
    while (w->at < w->end && *w->at != '<' && *w->at != '&') {
      if (*w->at == '\0') return bad(w, "a NUL character");
      w->at++;
    }
    iso_string_append(&w->text, from, (size_t)(w->at - from));
    if (w->at < w->end && *w->at == '&' && !reference(w)) return false;
  }
  return true;
}

/* ---- tags ---- */

static bool push(walker *w, const char *name, size_t length) {
  if (w->depth == MAX_DEPTH) return bad(w, "elements nested too deeply");
  if (w->path_length + length + 2 > PATH_BYTES) return bad(w, "an element name that is too long");
  if (w->depth > 0) w->path[w->path_length++] = '/';
  w->starts[w->depth++] = w->path_length;
  memcpy(w->path + w->path_length, name, length);
  w->path_length += length;
  w->path[w->path_length] = '\0';
  w->text.length = 0;
  return true;
}

static bool pop(walker *w, iso_xml_leaf *leaf, void *context) {
  iso_string_append(&w->text, "", 0); /* there is a NUL even when it is empty */
  if (iso_string_failed(&w->text)) return bad(w, "no memory for it");
  w->text.data[w->text.length] = '\0';
  const char *cause = leaf(context, w->path, w->text.data, w->text.length);
  if (cause) return bad(w, cause);
  w->path_length = w->starts[--w->depth];
  if (w->depth > 0) w->path_length--;
  w->path[w->path_length] = '\0';
  w->text.length = 0;
  return true;
}

/* Past the attributes to the end of a tag; *closed: it ended in "/>". */
static bool attributes(walker *w, bool *closed) {
  char quote = 0;
  for (; w->at < w->end; w->at++) {
    char c = *w->at;
    if (quote) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '<') {
      return bad(w, "a tag that does not end");
    } else if (c == '>') {
      *closed = w->at[-1] == '/';
      w->at++;
      return true;
    }
  }
  return bad(w, "a tag that does not end");
}

/* At a '<'. */
static bool tag(walker *w, iso_xml_leaf *leaf, void *context) {
  const char *name = ++w->at;
  if (w->at < w->end && (*w->at == '!' || *w->at == '?')) return bad(w, "a declaration or comment");
  bool closing = w->at < w->end && *w->at == '/';
  if (closing) name = ++w->at;
  while (w->at < w->end && is_name(*w->at)) w->at++;
  size_t length = (size_t)(w->at - name);
  if (length == 0) return bad(w, "a tag without a name");
  if (!closing) {
    bool closed = false;
    if (w->at < w->end && !is_space(*w->at) && *w->at != '>' && *w->at != '/') return bad(w, "a malformed tag");
    return push(w, name, length) && attributes(w, &closed) && (!closed || pop(w, leaf, context));
  }
  while (w->at < w->end && is_space(*w->at)) w->at++;
  if (w->at == w->end || *w->at != '>') return bad(w, "a tag that does not end");
  w->at++;
  if (w->depth == 0) return bad(w, "an end tag without a beginning");
  const char *open = w->path + w->starts[w->depth - 1];
  if (strlen(open) != length || memcmp(open, name, length) != 0) return bad(w, "an end tag of another element");
  return pop(w, leaf, context);
}

const char *iso_xml_walk(const char *text, size_t bytes, iso_xml_leaf *leaf, void *context) {
  walker w = {.at = text, .end = text + bytes};
  if (bytes >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) w.at += 3;
  if (w.end - w.at >= 5 && memcmp(w.at, "<?xml", 5) == 0) {
    const char *close = memmem(w.at, (size_t)(w.end - w.at), "?>", 2);
    w.at = close ? close + 2 : w.end;
  }
  bool root = false;
  while (!w.cause && content(&w) && w.at < w.end) {
    if (w.depth == 0 && root) {
      bad(&w, "more than one root element");
      break;
    }
    root = true;
    if (!tag(&w, leaf, context)) break;
  }
  if (!w.cause && (!root || w.depth > 0)) w.cause = "it ends early";
  iso_string_fini(&w.text);
  return w.cause;
}
