/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects in S3: what a path means, and ranged reads that survive a bad network: a read goes on where it was cut.
 *
 * Invariants
 *  1. Every read asks for the ETag of the listing (If-Match) and checks the answer's: bytes of another version are
 * never returned.
 *  2. An answer is used only if it says which bytes it holds and those are the ones asked for.
 *  3. A listing is whole: all pages came, each is well-formed, no key came twice.
 */
#include "io/io.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

enum {
  LISTING_GIVE_UP_S = 60, /* somebody waits for it */
  EMPTY_PAGES = 32        /* of a listing, in a row: more are no listing */
};

/* ---- reading ---- */

/* What is wrong with the answer's account of itself, NULL if nothing. MISMATCH in *status: it is another version. */
static const char *check_range(const iso_blob_info *info, const iso_s3_job *j, const iso_http_response *response,
                               iso_status *status) {
  char etag[96];
  long long first, last, total;
  int end = 0;
  if (response->etag[0] && iso_s3_etag(response->etag, strlen(response->etag), etag) &&
      strcmp(etag, info->version) != 0)
    *status = ISO_ERR_MISMATCH;
  if (response->status == 200 && j->first == 0 && j->last == info->bytes - 1) return NULL; /* all of it */
  if (response->status == 200) return "the service ignores ranges";
  if (sscanf(response->content_range, "bytes %lld-%lld/%lld%n", &first, &last, &total, &end) != 3 ||
      response->content_range[end] != '\0')
    return "the answer does not say which bytes it holds";
  if (total != info->bytes) *status = ISO_ERR_MISMATCH;
  return first == j->first && last == j->last ? NULL : "the answer holds other bytes than those asked for";
}

static iso_status read_all(const iso_blob_info *info, iso_s3_job *j) {
  for (;;) {
    iso_http_response response;
    iso_status status = iso_s3_attempt(j, &response);
    iso_s3_verdict result = status == ISO_OK ? iso_s3_judge(j, &response, &status) : ISO_S3_OVER;
    const char *wrong = NULL;
    if (result != ISO_S3_OVER && response.body_bytes > 0) wrong = check_range(info, j, &response, &status);
    if (status == ISO_ERR_MISMATCH && result != ISO_S3_OVER)
      (void)iso_fail(status,
                     "'%s' changed while in use (it is another version); restore it, or start anew with what "
                     "it is now",
                     info->path);
    else if (wrong)
      status = iso_fail(ISO_ERR_IO, "cannot read '%s': %s; check AWS_ENDPOINT_URL", info->path, wrong);
    if (status == ISO_OK) { /* what came is good, even if the rest did not */
      if (response.body_bytes > 0) j->pause_s = iso_s3_patience_now.first_pause_s; /* it works, after a fashion */
      j->first += (int64_t)response.body_bytes;
      j->body += response.body_bytes;
      j->body_bytes -= response.body_bytes;
      if (result == ISO_S3_DONE && j->body_bytes > 0)
        snprintf(j->cause, sizeof j->cause, "the answer was %zu bytes short", j->body_bytes);
    }
    double wanted_s = response.retry_after_s;
    iso_http_response_fini(&response);
    if (status != ISO_OK || j->body_bytes == 0) return status;
    ISO_TRY(iso_s3_pause(j, wanted_s));
  }
}

iso_status iso_s3_read(const iso_blob_info *info, int64_t offset, int64_t length, char *buffer) {
  char bucket[64];
  const char *key;
  if (length == 0) return ISO_OK;
  ISO_TRY(iso_s3_path_split(info->path, bucket, &key));
  iso_s3_job j = {.path = info->path,
                  .bucket = bucket,
                  .key = key,
                  .doing = "read",
                  .method = "GET",
                  .query = "",
                  .etag = info->version};
  j.first = offset;
  j.last = offset + length - 1;
  j.body = buffer;
  j.body_bytes = (size_t)length;
  iso_s3_job_begin(&j, iso_s3_give_up_s());
  return read_all(info, &j);
}

/* ---- listing ---- */

static double listing_give_up_s(void) {
  double all = iso_s3_give_up_s();
  return all < LISTING_GIVE_UP_S ? all : LISTING_GIVE_UP_S;
}

/* Size and ETag of one object. `missing`: there is none (ISO_OK then). */
static iso_status head(const char *path, const char *bucket, const char *key, iso_blob_info *info, bool *missing) {
  iso_s3_job j = {
      .path = path, .bucket = bucket, .key = key, .doing = "look at", .method = "HEAD", .query = "", .first = -1};
  iso_http_response response;
  *missing = false;
  iso_s3_job_begin(&j, listing_give_up_s());
  iso_status status;
  for (;;) { /* persist(), but for a 4xx: an answer to HEAD has no body that says why, one to GET has */
    status = iso_s3_attempt(&j, &response);
    if (status != ISO_OK) break;
    bool client = response.complete && response.status >= 400 && response.status < 500 && response.status != 429;
    *missing = client && response.status == 404 && j.method[0] == 'H';
    if (*missing) break;
    iso_s3_verdict result = ISO_S3_AGAIN;
    if (client && j.method[0] == 'H') {
      j.method = "GET";
      j.first = j.last = 0;
    } else {
      result = iso_s3_judge(&j, &response, &status);
      if (result != ISO_S3_AGAIN) break;
      status = iso_s3_pause(&j, response.retry_after_s);
    }
    if (status != ISO_OK) break;
    iso_http_response_fini(&response);
  }
  if (status == ISO_OK && !*missing) {
    info->bytes = response.content_length;
    if (j.method[0] != 'H')
      status = iso_fail(ISO_ERR_IO, "S3 answers HEAD and GET of '%s' differently; check AWS_ENDPOINT_URL", path);
    else if (info->bytes < 0 || !iso_s3_etag(response.etag, strlen(response.etag), info->version))
      status = iso_fail(ISO_ERR_IO, "S3 does not say size and ETag of '%s'; check AWS_ENDPOINT_URL", path);
  }
  iso_http_response_fini(&response);
  return status;
}

typedef struct listing {
  iso_arena *arena;
  const char *path, *bucket;
  const char *pattern;  /* keys must match it; NULL: all */
  iso_blob_info *blobs; /* heap while it grows */
  int64_t count, capacity;
} listing;

static iso_status listing_add(listing *list, const iso_s3_object *object) {
  size_t length = strlen(object->key);
  if (object->bytes == 0 && object->key[length - 1] == '/') return ISO_OK; /* what consoles make for a "folder" */
  if (list->pattern && fnmatch(list->pattern, object->key, FNM_PATHNAME | FNM_PERIOD) != 0) return ISO_OK;
  if (list->count == list->capacity) {
    int64_t capacity = list->capacity ? 2 * list->capacity : 256;
    iso_blob_info *grown = realloc(list->blobs, (size_t)capacity * sizeof *grown);
    if (!grown) return iso_fail(ISO_ERR_MEMORY, "cannot list '%s': out of memory", list->path);
    list->blobs = grown;
    list->capacity = capacity;
  }
  iso_blob_info *info = &list->blobs[list->count];
  *info = (iso_blob_info){.bytes = object->bytes};
  info->path = iso_arena_printf(list->arena, "s3://%s/%s", list->bucket, object->key);
  if (!info->path) return iso_fail(ISO_ERR_MEMORY, "cannot list '%s': out of memory", list->path);
  memcpy(info->version, object->etag, sizeof info->version);
  list->count++;
  return ISO_OK;
}

/* Gets one page. A page that is no listing may be the work of something between: it is asked for again. */
static iso_status page_get(iso_s3_job *j, iso_arena *arena, iso_s3_page *page) {
  for (;;) {
    iso_http_response response = {0};
    iso_status status = iso_s3_persist(j, &response);
    const char *wrong = NULL;
    if (status == ISO_OK)
      wrong = iso_s3_page_init(page, arena, response.text.data ? response.text.data : "", response.text.length);
    iso_http_response_fini(&response);
    if (status != ISO_OK || !wrong) return status;
    snprintf(j->cause, sizeof j->cause, "a listing that cannot be used: %s", wrong);
    ISO_TRY(iso_s3_pause(j, 0));
  }
}

/* The query of a page, its parameters sorted by name. */
static bool page_query(iso_string *query, const char *token, const char *prefix) {
  query->length = 0;
  if (token) {
    iso_string_printf(query, "continuation-token=");
    iso_s3_encode(query, token, strlen(token), false);
    iso_string_printf(query, "&");
  }
  iso_string_printf(query, "encoding-type=url&list-type=2&prefix=");
  iso_s3_encode(query, prefix, strlen(prefix), false);
  return !iso_string_failed(query);
}

static iso_status list_pages(listing *list, const char *prefix) {
  iso_string query = {0}, token = {0};
  iso_status status = ISO_OK;
  int empty = 0; /* pages in a row */
  for (bool more = true; more && status == ISO_OK;) {
    iso_arena *arena = iso_arena_create();
    if (!arena || !page_query(&query, token.length ? token.data : NULL, prefix)) {
      iso_arena_destroy(&arena);
      status = iso_fail(ISO_ERR_MEMORY, "cannot list '%s': out of memory", list->path);
      break;
    }
    iso_s3_job j = {.path = list->path,
                    .doing = "list",
                    .bucket = list->bucket,
                    .key = "",
                    .method = "GET",
                    .query = query.data,
                    .first = -1};
    iso_s3_job_begin(&j, listing_give_up_s());
    iso_s3_page page = {0};
    status = page_get(&j, arena, &page);
    for (size_t i = 0; i < page.count && status == ISO_OK; i++) status = listing_add(list, &page.objects[i]);
    more = page.more;
    empty = page.count ? 0 : empty + 1;
    if (status == ISO_OK && more && empty == EMPTY_PAGES)
      status =
          iso_fail(ISO_ERR_FORMAT, "S3 lists '%s' without end: %d pages in a row hold nothing; check AWS_ENDPOINT_URL",
                   list->path, EMPTY_PAGES);
    if (status == ISO_OK && more && token.length && strcmp(token.data, page.next) == 0)
      status = iso_fail(ISO_ERR_FORMAT, "S3 lists '%s' without end: a page repeats itself", list->path);
    if (status == ISO_OK && more) {
      token.length = 0;
      iso_string_append(&token, page.next, strlen(page.next));
      if (iso_string_failed(&token)) status = ISO_ERR_MEMORY; /* logged already */
    }
    iso_s3_page_fini(&page);
    iso_arena_destroy(&arena);
  }
  iso_string_fini(&query);
  iso_string_fini(&token);
  return status;
}

static int by_path(const void *a, const void *b) {
  return strcmp(((const iso_blob_info *)a)->path, ((const iso_blob_info *)b)->path);
}

static iso_status list_below(listing *list, const char *prefix, bool none_too, iso_blob_info **blobs, int64_t *count) {
  iso_status status = list_pages(list, prefix);
  if (status == ISO_OK && list->count == 0 && !none_too)
    status = iso_fail(ISO_ERR_NOT_FOUND, "there is no object %s '%s'; check the path",
                      list->pattern ? "that matches" : "below", list->path);
  if (status == ISO_OK) {
    if (list->count) qsort(list->blobs, (size_t)list->count, sizeof *list->blobs, by_path);
    for (int64_t i = 1; i < list->count && status == ISO_OK; i++)
      if (strcmp(list->blobs[i - 1].path, list->blobs[i].path) == 0)
        status = iso_fail(ISO_ERR_FORMAT, "S3 lists '%s' twice; check AWS_ENDPOINT_URL", list->blobs[i].path);
  }
  if (status == ISO_OK) {
    *blobs = iso_arena_alloc(list->arena, (size_t)(list->count + 1) * sizeof **blobs);
    if (*blobs && list->count) memcpy(*blobs, list->blobs, (size_t)list->count * sizeof **blobs);
    *count = *blobs ? list->count : 0;
    if (!*blobs) status = iso_fail(ISO_ERR_MEMORY, "cannot list '%s': out of memory", list->path);
  }
  free(list->blobs);
  return status;
}

iso_status iso_s3_list(iso_arena *arena, const char *path, iso_blob_info **blobs, int64_t *count) {
  char bucket[64];
  const char *key;
  *blobs = NULL;
  *count = 0;
  ISO_TRY(iso_s3_path_split(path, bucket, &key));
  listing list = {.arena = arena, .path = path, .bucket = bucket};
  size_t length = strlen(key);
  if (length == 0 || key[length - 1] == '/') return list_below(&list, key, false, blobs, count);
  iso_blob_info info = {0};
  bool missing;
  ISO_TRY(head(path, bucket, key, &info, &missing));
  size_t fixed = strcspn(key, "*?[");
  if (missing && fixed < length) {
    char *prefix = iso_arena_printf(arena, "%.*s", (int)fixed, key);
    if (!prefix) return iso_fail(ISO_ERR_MEMORY, "cannot list '%s': out of memory", path);
    list.pattern = key;
    return list_below(&list, prefix, false, blobs, count);
  }
  if (missing) return iso_fail(ISO_ERR_NOT_FOUND, "'%s' does not exist; check the path (a prefix ends in '/')", path);
  info.path = iso_arena_strdup(arena, path);
  *blobs = iso_arena_alloc(arena, sizeof **blobs);
  if (!info.path || !*blobs) return iso_fail(ISO_ERR_MEMORY, "cannot list '%s': out of memory", path);
  **blobs = info;
  *count = 1;
  return ISO_OK;
}

iso_status iso_s3_list_all(iso_arena *arena, const char *path, iso_blob_info **blobs, int64_t *count) {
  char bucket[64];
  const char *key;
  *blobs = NULL;
  *count = 0;
  ISO_TRY(iso_s3_path_split(path, bucket, &key));
  listing list = {.arena = arena, .path = path, .bucket = bucket};
  return list_below(&list, key, true, blobs, count);
}

iso_status iso_s3_head(const char *path, iso_blob_info *info, bool *missing) {
  char bucket[64];
  const char *key;
  *info = (iso_blob_info){0};
  ISO_TRY(iso_s3_path_split(path, bucket, &key));
  return head(path, bucket, key, info, missing);
}
