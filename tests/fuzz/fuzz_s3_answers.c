/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as what a service answers: a page of a listing, an error, header lines. What is accepted must be usable:
 * keys and ETags that are not empty, and lengths within their fields. */
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void page(const char *text, size_t size) {
  iso_arena *arena = iso_arena_create();
  iso_s3_page found;
  if (iso_s3_page_init(&found, arena, text, size) == NULL) {
    if (found.more && (!found.next || !*found.next)) abort();
    for (size_t i = 0; i < found.count; i++) {
      const iso_s3_object *object = &found.objects[i];
      if (!object->key || !*object->key || !*object->etag || strlen(object->etag) > 95 || object->bytes < 0) abort();
    }
    iso_s3_page_fini(&found);
  }
  iso_arena_destroy(&arena);
}

static void headers(const char *text, size_t size) {
  iso_http_response response = {.content_length = -1};
  while (size > 0) {
    const char *end = memchr(text, '\n', size);
    size_t bytes = end ? (size_t)(end - text) + 1 : size;
    char *line = malloc(bytes); /* so that a byte too far is noticed */
    if (!line) abort();
    memcpy(line, text, bytes);
    iso_http_header_take(&response, line, bytes);
    free(line);
    text += bytes;
    size -= bytes;
  }
  if (strlen(response.etag) >= sizeof response.etag || response.content_length < -1) abort();
  char etag[96];
  if (iso_s3_etag(response.etag, strlen(response.etag), etag) && strchr(etag, '"')) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  iso_log_quiet(true);
  iso_s3_error error;
  char *copy = malloc(size ? size : 1);
  if (!copy) abort();
  memcpy(copy, data, size);
  page(copy, size);
  iso_s3_error_read(&error, copy, size);
  if (strlen(error.code) >= sizeof error.code) abort();
  headers(copy, size);
  free(copy);
  return 0;
}
