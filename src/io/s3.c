/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects in S3: what a path means, and ranged reads that survive a bad network.
 *
 * Each attempt of a request is signed anew with credentials read anew, so renewed ones are picked up by a long run.
 * What may pass is tried again after growing pauses with jitter (the network, 408, 429, 5xx, answers cut short), for a
 * bounded time; a read goes on where it was cut. What will not pass ends at once, with what S3 said and what to do.
 *
 * Invariants
 *  1. Every read asks for the ETag of the listing (If-Match) and checks the answer's: bytes of another version are
 * never returned.
 *  2. An answer is used only if it says which bytes it holds and those are the ones asked for.
 *  3. Every call ends: a request within its limit, all attempts within the time to give up plus what the bytes take at
 *     32 KiB/s.
 *  4. A listing is whole: all pages came, each is well-formed, no key came twice.
 *
 * Uploads are not here yet; a PUT would be another caller of `attempt`.
 */
#include "io/io.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

enum {
  ATTEMPT_S = 60,                 /* longest attempt, and more for many bytes: */
  ATTEMPT_BYTES_PER_S = 64 << 10, /* at this rate */
  GIVE_UP_BYTES_PER_S = 32 << 10, /* the same for all attempts together */
  TELL_FROM_ATTEMPT = 4,          /* earlier ones are every day's business */
  LISTING_GIVE_UP_S = 60,         /* somebody waits for it */
  EMPTY_PAGES = 32                /* of a listing, in a row: more are no listing */
};

iso_s3_patience iso_s3_patience_now = {0, 0, 0.1, 20};

static double seconds_of(const char *variable, double fallback) {
  const char *text = getenv(variable);
  char *end;
  double value = text ? strtod(text, &end) : 0;
  return text && end != text && *end == '\0' && value > 0 && value <= 86400 ? value : fallback;
}

static double give_up_s(void) {
  double set = iso_s3_patience_now.give_up_s;
  return set > 0 ? set : seconds_of("ISOTACH_S3_GIVE_UP_S", 300);
}

static double stall_s(void) {
  double set = iso_s3_patience_now.stall_s;
  return set > 0 ? set : seconds_of("ISOTACH_S3_STALL_S", 10);
}

/* ---- one attempt ---- */

typedef struct job {
  const char *path; /* s3://..., for messages */
  const char *bucket, *key;
  const char *method;
  const char *query;   /* encoded and sorted, "" if none */
  const char *etag;    /* must still be this one; NULL: any */
  int64_t first, last; /* bytes asked for; first < 0: all */
  char *body;
  size_t body_bytes;
  /* state of the attempts */
  double began_s, deadline_s, pause_s;
  int attempts;
  char cause[320]; /* of the last failure */
} job;

static void job_begin(job *j, double patience_s) {
  j->began_s = iso_clock_s();
  j->deadline_s = j->began_s + patience_s + (double)j->body_bytes / GIVE_UP_BYTES_PER_S;
  j->pause_s = iso_s3_patience_now.first_pause_s;
  j->attempts = 0;
}

/* Signs and makes the request once. Failures of our own side only; the response tells the rest. */
static iso_status attempt(job *j, iso_http_response *response) {
  iso_s3_config config;
  iso_s3_place place = {0};
  iso_string lines[8] = {{0}}, authorization = {0};
  char when[32], range[64], etag[128];
  *response = (iso_http_response){0};
  ISO_TRY(iso_s3_config_init(&config));
  time_t now = time(NULL);
  struct tm utc;
  gmtime_r(&now, &utc);
  strftime(when, sizeof when, "%Y%m%dT%H%M%SZ", &utc);
  iso_status status = iso_s3_place_init(&place, &config, j->bucket, j->key);
  if (status == ISO_OK) {
    iso_s3_header headers[8]; /* in the order of their names */
    size_t count = 0;
    headers[count++] = (iso_s3_header){"host", place.host.data};
    snprintf(etag, sizeof etag, "\"%s\"", j->etag ? j->etag : "");
    if (j->etag) headers[count++] = (iso_s3_header){"if-match", etag};
    snprintf(range, sizeof range, "bytes=%lld-%lld", (long long)j->first, (long long)j->last);
    if (j->first >= 0) headers[count++] = (iso_s3_header){"range", range};
    headers[count++] = (iso_s3_header){"x-amz-content-sha256", EMPTY_SHA256};
    headers[count++] = (iso_s3_header){"x-amz-date", when};
    if (*config.token) headers[count++] = (iso_s3_header){"x-amz-security-token", config.token};
    iso_s3_to_sign form = {j->method, place.path.data, j->query, headers, count, EMPTY_SHA256, config.region, when};
    status = iso_s3_sign(&form, config.access_key, config.secret_key, &authorization);
    const char *list[ISO_COUNT(lines) + 1] = {0};
    for (size_t i = 0; i < count; i++) iso_string_printf(&lines[i], "%s: %s", headers[i].name, headers[i].value);
    iso_string_printf(&lines[count], "Authorization: %s", authorization.data ? authorization.data : "");
    if (*j->query) iso_string_printf(&place.url, "?%s", j->query);
    for (size_t i = 0; i <= count; i++) {
      list[i] = lines[i].data;
      if (iso_string_failed(&lines[i]) || iso_string_failed(&place.url)) status = ISO_ERR_MEMORY;
    }
    double left_s = j->deadline_s - iso_clock_s(), limit_s = ATTEMPT_S + (double)j->body_bytes / ATTEMPT_BYTES_PER_S;
    iso_http_request request = {j->method,
                                place.url.data,
                                list,
                                j->body,
                                j->body_bytes,
                                stall_s(),
                                left_s < limit_s ? (left_s > 1 ? left_s : 1) : limit_s};
    j->attempts++;
    if (status == ISO_OK) iso_http_perform(&request, response);
  }
  for (size_t i = 0; i < ISO_COUNT(lines); i++) iso_string_fini(&lines[i]);
  iso_string_fini(&authorization);
  iso_s3_place_fini(&place);
  iso_s3_config_fini(&config);
  return status;
}

/* ---- what to make of an answer ---- */

typedef enum verdict { DONE, AGAIN, OVER } verdict;

static const char *advice_for(int status, const iso_s3_error *error) {
  static const struct {
    const char *code, *advice;
  } known[] = {
      {"SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY"},
      {"InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID"},
      {"ExpiredToken", "renew the session token"},
      {"InvalidToken", "check AWS_SESSION_TOKEN"},
      {"RequestTimeTooSkewed", "set this machine's clock"},
      {"NoSuchBucket", "check the bucket's name and AWS_ENDPOINT_URL"},
      {"NoSuchKey", "check the key; a prefix ends in '/'"},
      {"AccessDenied", "this key may not read it, or it is not there and the key may not list"},
      {"InvalidObjectState", "it is archived; restore it first"},
      {"PermanentRedirect", "check AWS_REGION and AWS_ENDPOINT_URL"},
      {"AuthorizationHeaderMalformed", "check AWS_REGION"},
  };
  for (size_t i = 0; i < ISO_COUNT(known); i++)
    if (strcmp(error->code, known[i].code) == 0) return known[i].advice;
  if (status == 404) return "check the key; a prefix ends in '/'";
  return status == 401 || status == 403 ? "check the credentials and what they permit" : "check AWS_ENDPOINT_URL";
}

/* An answer that will be the same next time. */
static iso_status refused(const job *j, const iso_http_response *response) {
  iso_s3_error error;
  iso_s3_error_read(&error, response->text.data ? response->text.data : "", response->text.length);
  int status = response->status;
  const char *region = *error.region ? error.region : response->region;
  if (status == 412 || status == 416)
    return iso_fail(ISO_ERR_MISMATCH,
                    "'%s' changed while in use (its ETag is no longer %s); restore it, or start anew with what it is "
                    "now",
                    j->path, j->etag ? j->etag : "what it was");
  if (*region && (status == 301 || status == 307 || strcmp(error.code, "AuthorizationHeaderMalformed") == 0))
    return iso_fail(ISO_ERR_CONFIG, "the bucket of '%s' is in another region; set AWS_REGION=%s", j->path, region);
  bool gone = status == 404 && j->etag != NULL;
  return iso_fail(status == 404 ? ISO_ERR_NOT_FOUND : ISO_ERR_IO, "S3 refuses '%s': %s%s%s (HTTP %d); %s", j->path,
                  *error.code     ? error.code
                  : status == 404 ? "it does not exist"
                                  : "it does not say why",
                  *error.message ? ": " : "", error.message, status,
                  gone ? "it was there before; restore it" : advice_for(status, &error));
}

static bool may_pass(const iso_http_response *response) {
  if (!response->complete) return !response->hopeless;
  int status = response->status;
  if (status == 408 || status == 429 || (status >= 500 && status != 501 && status != 505)) return true;
  if (status < 400) return false;
  iso_s3_error error;
  iso_s3_error_read(&error, response->text.data ? response->text.data : "", response->text.length);
  return strcmp(error.code, "RequestTimeout") == 0 || strcmp(error.code, "SlowDown") == 0 ||
         strcmp(error.code, "InternalError") == 0;
}

/* DONE: a complete 200 or 206. AGAIN: with the cause in the job. OVER: *status, logged. */
static verdict judge(job *j, const iso_http_response *response, iso_status *status) {
  if (response->stopped || iso_http_stopping()) {
    *status = ISO_STOPPED;
    return OVER;
  }
  bool success = response->status == 200 || response->status == 206;
  if (response->complete && success) return DONE;
  if (may_pass(response)) {
    if (!response->complete)
      snprintf(j->cause, sizeof j->cause, "%s", response->cause);
    else
      snprintf(j->cause, sizeof j->cause, "HTTP %d", response->status);
    return AGAIN;
  }
  if (!response->complete)
    *status = iso_fail(ISO_ERR_IO, "cannot read '%s': %s; check AWS_ENDPOINT_URL and AWS_CA_BUNDLE", j->path,
                       response->cause);
  else
    *status = refused(j, response);
  return OVER;
}

/* Waits before the next attempt. The error when there is no time for one. */
static iso_status pause_or_give_up(job *j, double wanted_s) {
  uint32_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits) bits = (uint32_t)j->attempts * 2654435761u;
  double pause_s = j->pause_s * (0.5 + 0.5 * bits / 4294967296.0), longest_s = iso_s3_patience_now.last_pause_s;
  j->pause_s = 2 * j->pause_s < longest_s ? 2 * j->pause_s : longest_s;
  if (wanted_s > pause_s) pause_s = wanted_s < longest_s ? wanted_s : longest_s; /* Retry-After */
  double now = iso_clock_s();
  if (now + pause_s >= j->deadline_s)
    return iso_fail(ISO_ERR_IO,
                    "cannot read '%s': given up after %d attempts in %.1f s, the last one: %s; check the "
                    "network and the service",
                    j->path, j->attempts, now - j->began_s, j->cause);
  if (j->attempts >= TELL_FROM_ATTEMPT)
    iso_note("'%s': attempt %d failed (%s); the next one in %.1f s, for %.0f s more", j->path, j->attempts, j->cause,
             pause_s, j->deadline_s - now);
  for (double until = now + pause_s; now < until && !iso_http_stopping(); now = iso_clock_s()) {
    double part = until - now < 0.05 ? until - now : 0.05;
    nanosleep(&(struct timespec){0, (long)(part * 1e9)}, NULL);
  }
  return iso_http_stopping() ? ISO_STOPPED : ISO_OK;
}

/* Attempts until a complete success, which is in `response` (to be ended by the caller in any case). */
static iso_status persist(job *j, iso_http_response *response) {
  for (;;) {
    ISO_TRY(attempt(j, response));
    iso_status status = ISO_OK;
    verdict result = judge(j, response, &status);
    if (result != AGAIN) return status;
    double wanted_s = response->retry_after_s;
    iso_http_response_fini(response);
    *response = (iso_http_response){0};
    ISO_TRY(pause_or_give_up(j, wanted_s));
  }
}

/* ---- reading ---- */

/* What is wrong with the answer's account of itself, NULL if nothing. MISMATCH in *status: it is another version. */
static const char *check_range(const iso_blob_info *info, const job *j, const iso_http_response *response,
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

static iso_status read_all(const iso_blob_info *info, job *j) {
  for (;;) {
    iso_http_response response;
    iso_status status = attempt(j, &response);
    verdict result = status == ISO_OK ? judge(j, &response, &status) : OVER;
    const char *wrong = NULL;
    if (result != OVER && response.body_bytes > 0) wrong = check_range(info, j, &response, &status);
    if (status == ISO_ERR_MISMATCH && result != OVER)
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
      if (result == DONE && j->body_bytes > 0)
        snprintf(j->cause, sizeof j->cause, "the answer was %zu bytes short", j->body_bytes);
    }
    double wanted_s = response.retry_after_s;
    iso_http_response_fini(&response);
    if (status != ISO_OK || j->body_bytes == 0) return status;
    ISO_TRY(pause_or_give_up(j, wanted_s));
  }
}

iso_status iso_s3_read(const iso_blob_info *info, int64_t offset, int64_t length, char *buffer) {
  char bucket[64];
  const char *key;
  if (length == 0) return ISO_OK;
  ISO_TRY(iso_s3_path_split(info->path, bucket, &key));
  job j = {.path = info->path, .bucket = bucket, .key = key, .method = "GET", .query = "", .etag = info->version};
  j.first = offset;
  j.last = offset + length - 1;
  j.body = buffer;
  j.body_bytes = (size_t)length;
  job_begin(&j, give_up_s());
  return read_all(info, &j);
}

/* ---- listing ---- */

static double listing_give_up_s(void) {
  double all = give_up_s();
  return all < LISTING_GIVE_UP_S ? all : LISTING_GIVE_UP_S;
}

/* Size and ETag of one object. `missing`: there is none (ISO_OK then). */
static iso_status head(const char *path, const char *bucket, const char *key, iso_blob_info *info, bool *missing) {
  job j = {.path = path, .bucket = bucket, .key = key, .method = "HEAD", .query = "", .first = -1};
  iso_http_response response;
  *missing = false;
  job_begin(&j, listing_give_up_s());
  iso_status status;
  for (;;) { /* persist(), but for a 4xx: an answer to HEAD has no body that says why, one to GET has */
    status = attempt(&j, &response);
    if (status != ISO_OK) break;
    bool client = response.complete && response.status >= 400 && response.status < 500 && response.status != 429;
    *missing = client && response.status == 404 && j.method[0] == 'H';
    if (*missing) break;
    verdict result = AGAIN;
    if (client && j.method[0] == 'H') {
      j.method = "GET";
      j.first = j.last = 0;
    } else {
      result = judge(&j, &response, &status);
      if (result != AGAIN) break;
      status = pause_or_give_up(&j, response.retry_after_s);
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
static iso_status page_get(job *j, iso_arena *arena, iso_s3_page *page) {
  for (;;) {
    iso_http_response response = {0};
    iso_status status = persist(j, &response);
    const char *wrong = NULL;
    if (status == ISO_OK)
      wrong = iso_s3_page_init(page, arena, response.text.data ? response.text.data : "", response.text.length);
    iso_http_response_fini(&response);
    if (status != ISO_OK || !wrong) return status;
    snprintf(j->cause, sizeof j->cause, "a listing that cannot be used: %s", wrong);
    ISO_TRY(pause_or_give_up(j, 0));
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
    job j = {.path = list->path, .bucket = list->bucket, .key = "", .method = "GET", .query = query.data, .first = -1};
    job_begin(&j, listing_give_up_s());
    iso_s3_page page = {0};
    status = page_get(&j, arena, &page);
    for (size_t i = 0; i < page.count && status == ISO_OK; i++) status = listing_add(list, &page.objects[i]);
    more = page.more;
    empty = page.count ? 0 : empty + 1;
    if (status == ISO_OK && more && empty == EMPTY_PAGES)
      status = iso_fail(ISO_ERR_FORMAT, "S3 lists '%s' without end: %d pages in a row hold nothing; check AWS_ENDPOINT_URL",
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

static iso_status list_below(listing *list, const char *prefix, iso_blob_info **blobs, int64_t *count) {
  iso_status status = list_pages(list, prefix);
  if (status == ISO_OK && list->count == 0)
    status = iso_fail(ISO_ERR_NOT_FOUND, "there is no object %s '%s'; check the path",
                      list->pattern ? "that matches" : "below", list->path);
  if (status == ISO_OK) {
    qsort(list->blobs, (size_t)list->count, sizeof *list->blobs, by_path);
    for (int64_t i = 1; i < list->count && status == ISO_OK; i++)
      if (strcmp(list->blobs[i - 1].path, list->blobs[i].path) == 0)
        status = iso_fail(ISO_ERR_FORMAT, "S3 lists '%s' twice; check AWS_ENDPOINT_URL", list->blobs[i].path);
  }
  if (status == ISO_OK) {
    *blobs = iso_arena_alloc(list->arena, (size_t)list->count * sizeof **blobs);
    if (*blobs) memcpy(*blobs, list->blobs, (size_t)list->count * sizeof **blobs);
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
  if (length == 0 || key[length - 1] == '/') return list_below(&list, key, blobs, count);
  iso_blob_info info = {0};
  bool missing;
  ISO_TRY(head(path, bucket, key, &info, &missing));
  size_t fixed = strcspn(key, "*?[");
  if (missing && fixed < length) {
    char *prefix = iso_arena_printf(arena, "%.*s", (int)fixed, key);
    if (!prefix) return iso_fail(ISO_ERR_MEMORY, "cannot list '%s': out of memory", path);
    list.pattern = key;
    return list_below(&list, prefix, blobs, count);
  }
  if (missing) return iso_fail(ISO_ERR_NOT_FOUND, "'%s' does not exist; check the path (a prefix ends in '/')", path);
  info.path = iso_arena_strdup(arena, path);
  *blobs = iso_arena_alloc(arena, sizeof **blobs);
  if (!info.path || !*blobs) return iso_fail(ISO_ERR_MEMORY, "cannot list '%s': out of memory", path);
  **blobs = info;
  *count = 1;
  return ISO_OK;
}
