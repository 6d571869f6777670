/* SPDX-License-Identifier: Apache-2.0
 *
 * What S3 says in XML: pages of listings (ListObjectsV2) and errors.
 *
 * Invariants
 *  1. A page is taken whole or not at all: an object without key, size or a usable ETag, or a page that does not say
 *     whether there is more, is refused.
 *  2. An ETag can stand in a header again: visible ASCII, no quotes, at most 95 characters.
 */
#include "io/io.h"

#include <stdlib.h>
#include <string.h>

/* ---- listings ---- */

typedef struct page_reader {
  iso_s3_page *page;
  iso_s3_object now;
  bool has_key, has_size, has_etag;
  size_t capacity;
} page_reader;

static bool hex_value(char c, int *value) {
  if (c >= '0' && c <= '9')
    *value = c - '0';
  else if (c >= 'a' && c <= 'f')
    *value = c - 'a' + 10;
  else if (c >= 'A' && c <= 'F')
    *value = c - 'A' + 10;
  else
    return false;
  return true;
}

/* In place: %XX and, as S3 encodes a space, '+'. */
static bool url_decode(char *text) {
  char *to = text;
  for (const char *from = text; *from; from++) {
    int high, low;
    if (*from == '+') {
      *to++ = ' ';
    } else if (*from != '%') {
      *to++ = *from;
    } else {
      if (!hex_value(from[1], &high) || !hex_value(from[2], &low) || (high == 0 && low == 0)) return false;
      *to++ = (char)(high << 4 | low);
      from += 2;
    }
  }
  *to = '\0';
  return true;
}

/* The ETag without its quotes; what If-Match can say again. */
bool iso_s3_etag(const char *text, size_t length, char out[96]) {
  while (length > 0 && (text[length - 1] == ' ' || text[length - 1] == '\t')) length--;
  if (length >= 2 && text[0] == '"' && text[length - 1] == '"') {
    text++;
    length -= 2;
  }
  if (length == 0 || length > 95) return false;
  for (size_t i = 0; i < length; i++)
    if (text[i] <= ' ' || text[i] > '~' || text[i] == '"') return false;
  memcpy(out, text, length);
  out[length] = '\0';
  return true;
}

static const char *object_end(page_reader *r) {
  iso_s3_page *page = r->page;
  if (!r->has_key || !r->has_size || !r->has_etag) return "an object without Key, Size or ETag";
  if (page->count == r->capacity) {
    size_t capacity = r->capacity ? 2 * r->capacity : 256;
    iso_s3_object *grown = realloc(page->objects, capacity * sizeof *grown);
    if (!grown) return "no memory for it";
    page->objects = grown;
    r->capacity = capacity;
  }
  page->objects[page->count++] = r->now;
  r->now.key = NULL;
  r->has_key = r->has_size = r->has_etag = false;
  return NULL;
}

static const char *copy(iso_arena *arena, const char *text, char **out) {
  *out = iso_arena_strdup(arena, text);
  return *out ? NULL : "no memory for it";
}

static const char *listing_leaf(void *context, const char *path, const char *text, size_t length) {
  page_reader *r = context;
  static const char root[] = "ListBucketResult";
  if (strncmp(path, root, sizeof root - 1) != 0) return "it is not a listing";
  const char *name = path + sizeof root - 1;
  if (*name == '\0') return NULL;
  if (strcmp(name, "/EncodingType") == 0) {
    r->page->url_encoded = strcmp(text, "url") == 0;
  } else if (strcmp(name, "/IsTruncated") == 0) {
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) return "IsTruncated is neither true nor false";
    r->page->more = text[0] == 't';
    r->page->complete = true;
  } else if (strcmp(name, "/NextContinuationToken") == 0) {
    return copy(r->page->arena, text, &r->page->next);
  } else if (strcmp(name, "/Contents/Key") == 0) {
    if (r->has_key || length == 0) return "an object with two keys or an empty one";
    r->has_key = true;
    return copy(r->page->arena, text, &r->now.key);
  } else if (strcmp(name, "/Contents/Size") == 0) {
    size_t digits = strspn(text, "0123456789");
    if (r->has_size || digits == 0 || digits > 18 || text[digits]) return "a size that is no number";
    r->now.bytes = strtoll(text, NULL, 10);
    r->has_size = true;
  } else if (strcmp(name, "/Contents/ETag") == 0) {
    if (r->has_etag || !iso_s3_etag(text, length, r->now.etag)) return "an ETag that cannot be used";
    r->has_etag = true;
  } else if (strcmp(name, "/Contents") == 0) {
    return object_end(r);
  }
  return NULL;
}

const char *iso_s3_page_init(iso_s3_page *page, iso_arena *arena, const char *text, size_t bytes) {
  *page = (iso_s3_page){.arena = arena};
  page_reader reader = {.page = page};
  const char *cause = iso_xml_walk(text, bytes, listing_leaf, &reader);
  if (!cause && !page->complete) cause = "it does not say whether it is complete";
  if (!cause && page->more && (!page->next || !*page->next)) cause = "it does not say how to go on";
  for (size_t i = 0; !cause && page->url_encoded && i < page->count; i++)
    if (!url_decode(page->objects[i].key)) cause = "a key that is encoded wrongly";
  if (cause) iso_s3_page_fini(page);
  return cause;
}

void iso_s3_page_fini(iso_s3_page *page) {
  free(page->objects);
  *page = (iso_s3_page){0};
}

/* ---- errors ---- */

static const char *error_leaf(void *context, const char *path, const char *text, size_t length) {
  (void)length;
  iso_s3_error *error = context;
  if (strcmp(path, "Error/Code") == 0) snprintf(error->code, sizeof error->code, "%s", text);
  if (strcmp(path, "Error/Message") == 0) snprintf(error->message, sizeof error->message, "%s", text);
  if (strcmp(path, "Error/Region") == 0) snprintf(error->region, sizeof error->region, "%s", text);
  return NULL;
}

void iso_s3_error_read(iso_s3_error *error, const char *text, size_t bytes) {
  *error = (iso_s3_error){0};
  if (iso_xml_walk(text, bytes, error_leaf, error) != NULL) *error = (iso_s3_error){0}; /* from something between */
}
