/* SPDX-License-Identifier: Apache-2.0
 *
 * One HTTP request, by libcurl. No retries, no knowledge of S3.
 *
 * Each thread keeps one libcurl handle, and with it its open connections: a request costs one round trip, and threads
 * share nothing. The handle goes with its thread.
 *
 * Invariants
 *  1. Every request ends: there are limits for connecting, for standing still and for the whole.
 *  2. Not more than asked for is written into the caller's buffer; what came is counted, also when the rest did not.
 *  3. Redirections are not followed (they would take the signature along), only http and https are spoken, and
 *     certificates are checked.
 */
#include "io/io.h"

#include <curl/curl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { CONNECT_S = 10, SLOW_BYTES_PER_S = 4096, TEXT_BYTES = 16 << 20 };

typedef struct transfer {
  const iso_http_request *request;
  iso_http_response *response;
  CURL *curl;
} transfer;

static pthread_once_t ready = PTHREAD_ONCE_INIT;
static pthread_key_t handles;
static _Thread_local CURL *handle;
static atomic_bool stopping;
static _Thread_local atomic_bool *stop_of_thread;

void iso_http_stop(bool on) {
  atomic_store(&stopping, on);
}

bool iso_http_stopping(void) {
  return atomic_load_explicit(stop_of_thread ? stop_of_thread : &stopping, memory_order_relaxed);
}

void iso_http_stop_by(atomic_bool *stop) {
  stop_of_thread = stop;
}

static void handle_end(void *curl) {
  curl_easy_cleanup(curl);
}

static void prepare(void) {
  (void)curl_global_init(CURL_GLOBAL_DEFAULT); /* a failure shows in curl_easy_init */
  (void)pthread_key_create(&handles, handle_end);
}

/* ---- headers ---- */

/* The value of the line if its name is `name`, without the white space around it. */
static bool value_of(const char *line, size_t bytes, const char *name, char *out, size_t capacity) {
  size_t length = strlen(name);
  if (bytes <= length || strncasecmp(line, name, length) != 0 || line[length] != ':') return false;
  line += length + 1;
  bytes -= length + 1;
  while (bytes > 0 && (*line == ' ' || *line == '\t')) line++, bytes--;
  while (bytes > 0 && (unsigned char)line[bytes - 1] <= ' ') bytes--;
  if (bytes >= capacity) return false;
  memcpy(out, line, bytes);
  out[bytes] = '\0';
  return true;
}

void iso_http_header_take(iso_http_response *response, const char *line, size_t bytes) {
  char text[32], *end;
  if (bytes >= 5 && memcmp(line, "HTTP/", 5) == 0) { /* what came before was of a 1xx */
    response->etag[0] = response->content_range[0] = response->region[0] = response->checksum[0] = '\0';
    response->content_length = -1;
    response->retry_after_s = 0;
    return;
  }
  (void)value_of(line, bytes, "etag", response->etag, sizeof response->etag);
  (void)value_of(line, bytes, "content-range", response->content_range, sizeof response->content_range);
  (void)value_of(line, bytes, "x-amz-bucket-region", response->region, sizeof response->region);
  (void)value_of(line, bytes, "x-amz-checksum-crc32c", response->checksum, sizeof response->checksum);
  if (value_of(line, bytes, "content-length", text, sizeof text)) {
    size_t digits = strspn(text, "0123456789");
    if (digits > 0 && digits <= 18 && text[digits] == '\0') response->content_length = strtoll(text, NULL, 10);
  }
  if (value_of(line, bytes, "retry-after", text, sizeof text)) {
    double wait = strtod(text, &end);
    if (end != text && *end == '\0' && wait > 0 && wait < 3600) response->retry_after_s = wait; /* dates: ignored */
  }
}

static size_t on_header(char *line, size_t size, size_t count, void *context) {
  transfer *t = context;
  iso_http_header_take(t->response, line, size * count);
  return size * count;
}

/* ---- body ---- */

static size_t on_body(char *data, size_t size, size_t count, void *context) {
  transfer *t = context;
  iso_http_response *response = t->response;
  size_t bytes = size * count;
  long status = 0;
  curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
  if (!t->request->body || (status != 200 && status != 206)) {
    response->too_long = bytes > TEXT_BYTES - response->text.length;
    if (response->too_long) return 0;
    iso_string_append(&response->text, data, bytes);
    return iso_string_failed(&response->text) ? 0 : bytes;
  }
  response->too_long = bytes > t->request->body_bytes - response->body_bytes;
  if (response->too_long) return 0;
  memcpy(t->request->body + response->body_bytes, data, bytes);
  response->body_bytes += bytes;
  return bytes;
}

static int on_progress(void *context, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up_now) {
  return iso_http_stopping();
}

/* ---- the request ---- */

/* Failures that another attempt will meet again. */
static bool hopeless(CURLcode code) {
  switch (code) {
  case CURLE_UNSUPPORTED_PROTOCOL:
  case CURLE_URL_MALFORMAT:
  case CURLE_NOT_BUILT_IN:
  case CURLE_PEER_FAILED_VERIFICATION:
  case CURLE_SSL_CACERT_BADFILE:
  case CURLE_SSL_ENGINE_NOTFOUND:
  case CURLE_WRITE_ERROR: /* too long, or no memory */
    return true;
  default:
    return false;
  }
}

static CURL *handle_of_thread(void) {
  pthread_once(&ready, prepare);
  if (!handle) {
    handle = curl_easy_init();
    if (handle && pthread_setspecific(handles, handle) != 0) {
      curl_easy_cleanup(handle);
      handle = NULL;
    }
  }
  return handle;
}

static void set_options(CURL *curl, transfer *t, struct curl_slist *headers, char *message) {
  const iso_http_request *request = t->request;
  curl_easy_reset(curl); /* keeps connections */
  curl_easy_setopt(curl, CURLOPT_URL, request->url);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message);
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L); /* keys may hold "..", and are signed as they are */
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, (long)SLOW_BYTES_PER_S);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, request->stall_s < 1 ? 1L : (long)request->stall_s);
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)(request->limit_s * 1000) + 1);
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L << 10);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, t);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, t);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
  const char *authorities = getenv("AWS_CA_BUNDLE"); /* for services with certificates of their own */
  if (authorities && *authorities) curl_easy_setopt(curl, CURLOPT_CAINFO, authorities);
  const bool sends = request->method[0] == 'P';
  if (strcmp(request->method, "HEAD") == 0) curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  if (sends) {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request->data_bytes ? request->data : "");
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->data_bytes);
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
  }
  if (sends || request->method[0] == 'D') curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request->method);
}

static void perform(const iso_http_request *request, iso_http_response *response) {
  char message[CURL_ERROR_SIZE] = "";
  *response = (iso_http_response){.content_length = -1};
  struct curl_slist *headers = NULL;
  CURL *curl = handle_of_thread();
  bool memory = curl != NULL;
  if (memory && request->method[0] == 'P') { /* a body goes out at once, without asking first */
    headers = curl_slist_append(headers, "Expect:");
    memory = headers != NULL;
  }
  for (const char *const *line = request->headers; memory && *line; line++) {
    struct curl_slist *longer = curl_slist_append(headers, *line);
    memory = longer != NULL;
    if (longer) headers = longer;
  }
  if (!memory) {
    snprintf(response->cause, sizeof response->cause, "out of memory");
    response->hopeless = true;
    curl_slist_free_all(headers);
    return;
  }
  transfer t = {request, response, curl};
  set_options(curl, &t, headers, message);
  CURLcode code = curl_easy_perform(curl);
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  response->status = (int)status;
  response->complete = code == CURLE_OK;
  response->stopped = code == CURLE_ABORTED_BY_CALLBACK;
  response->hopeless = hopeless(code);
  if (code != CURLE_OK)
    snprintf(response->cause, sizeof response->cause, "%.250s",
             response->too_long ? "more came than was asked for"
             : message[0]       ? message
                                : curl_easy_strerror(code));
  curl_slist_free_all(headers);
}

void (*iso_http_perform)(const iso_http_request *request, iso_http_response *response) = perform;

void iso_http_response_fini(iso_http_response *response) {
  iso_string_fini(&response->text);
}
