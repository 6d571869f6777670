/* SPDX-License-Identifier: Apache-2.0
 *
 * One request to S3, as often as it takes: the attempts, what to make of their answers, and the pauses between them.
 *
 * Each attempt is signed anew with credentials read anew, so renewed ones are picked up by a long run. What may pass is
 * tried again after growing pauses with jitter (the network, 408, 429, 5xx, answers cut short, bodies that were damaged
 * on their way), for a bounded time. What will not pass ends at once, with what S3 said and what to do.
 *
 * Invariants
 *  1. Every call ends: a request within its limit, all attempts within the time to give up plus what the bytes take at
 *     32 KiB/s.
 *  2. What is sent carries its CRC-32C, taken from the caller's buffer; the service checks it before the object exists.
 *  3. A body that goes out without TLS is covered by the signature too.
 */
#include "io/io.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

enum {
  ATTEMPT_S = 60,                 /* longest attempt, and more for many bytes: */
  ATTEMPT_BYTES_PER_S = 64 << 10, /* at this rate */
  GIVE_UP_BYTES_PER_S = 32 << 10, /* the same for all attempts together */
  TELL_FROM_ATTEMPT = 4           /* earlier ones are every day's business */
};

iso_s3_patience iso_s3_patience_now = {0, 0, 0.1, 20};
static _Thread_local double thread_give_up_s;

void iso_s3_patience_of_thread(double give_up_s) {
  thread_give_up_s = give_up_s;
}

static double seconds_of(const char *variable, double fallback) {
  const char *text = getenv(variable);
  char *end;
  double value = text ? strtod(text, &end) : 0;
  return text && end != text && *end == '\0' && value > 0 && value <= 86400 ? value : fallback;
}

double iso_s3_give_up_s(void) {
  double set = thread_give_up_s > 0 ? thread_give_up_s : iso_s3_patience_now.give_up_s;
  return set > 0 ? set : seconds_of("ISOTACH_S3_GIVE_UP_S", 300);
}

static double stall_s(void) {
  double set = iso_s3_patience_now.stall_s;
  return set > 0 ? set : seconds_of("ISOTACH_S3_STALL_S", 10);
}

/* ---- how many there were ---- */

static _Atomic int64_t requests, errors; /* of this process; nothing is ordered by them */

/* What the caller may well have asked for: not there, there already, changed, or in somebody's hands. */
static bool is_answer(int status) {
  return status < 400 || status == 404 || status == 409 || status == 412 || status == 416;
}

static void count_attempt(const iso_http_response *response) {
  const bool failed = !response->stopped && (!response->complete || !is_answer(response->status));
  atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed);
  if (failed) atomic_fetch_add_explicit(&errors, 1, memory_order_relaxed);
}

void iso_s3_counts_get(iso_s3_counts *counts) {
  counts->errors = atomic_load_explicit(&errors, memory_order_relaxed);
  counts->requests = atomic_load_explicit(&requests, memory_order_relaxed);
}

/* ---- one attempt ---- */

void iso_s3_job_begin(iso_s3_job *j, double patience_s) {
  j->began_s = iso_clock_s();
  j->deadline_s = j->began_s + patience_s + (double)(j->body_bytes + j->data_bytes) / GIVE_UP_BYTES_PER_S;
  j->pause_s = iso_s3_patience_now.first_pause_s;
  j->attempts = 0;
  j->paused_s = 0;
  if (!j->checksummed) return;
  const uint32_t crc = iso_crc32c(0, j->data, j->data_bytes);
  iso_s3_checksum_text(crc, j->checksum);
}

void iso_s3_checksum_text(uint32_t crc, char text[9]) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const uint64_t bits = (uint64_t)crc << 4; /* base64 of its four bytes, the highest first: 32 bits, 4 zeros, "==" */
  for (int i = 0; i < 6; i++) text[i] = digits[bits >> (30 - 6 * i) & 63];
  memcpy(text + 6, "==", 3);
}

/* What stands for the body in the signature: over TLS its CRC-32C, which is signed, is enough. */
static iso_status payload_hash(const iso_s3_job *j, const iso_s3_place *place, char hash[65]) {
  if (!j->sends || j->data_bytes == 0) {
    memcpy(hash, EMPTY_SHA256, sizeof EMPTY_SHA256);
  } else if (strncmp(place->url.data, "https:", 6) == 0) {
    snprintf(hash, 65, "UNSIGNED-PAYLOAD");
  } else {
    iso_sha256 *sha = iso_sha256_create();
    if (!sha) return iso_fail(ISO_ERR_MEMORY, "cannot %s '%s': out of memory", j->doing, j->path);
    iso_sha256_update(sha, j->data, j->data_bytes);
    iso_sha256_finish(&sha, hash);
  }
  return ISO_OK;
}

enum { HEADERS = 12 };

/* The headers that are signed, in the order of their names. `texts` holds what is made here. */
static size_t fill_headers(const iso_s3_job *j, const iso_s3_config *config, const iso_s3_place *place,
                           const char *hash, const char *when, char texts[2][128], iso_s3_header headers[HEADERS]) {
  size_t count = 0;
  headers[count++] = (iso_s3_header){"host", place->host.data};
  snprintf(texts[0], sizeof texts[0], "\"%s\"", j->etag ? j->etag : "");
  if (j->etag) headers[count++] = (iso_s3_header){"if-match", texts[0]};
  if (j->only_new) headers[count++] = (iso_s3_header){"if-none-match", "*"};
  snprintf(texts[1], sizeof texts[1], "bytes=%lld-%lld", (long long)j->first, (long long)j->last);
  if (j->first >= 0) headers[count++] = (iso_s3_header){"range", texts[1]};
  if (j->begins_upload) headers[count++] = (iso_s3_header){"x-amz-checksum-algorithm", "CRC32C"};
  if (j->checksummed) headers[count++] = (iso_s3_header){"x-amz-checksum-crc32c", j->checksum};
  if (j->wants_checksum) headers[count++] = (iso_s3_header){"x-amz-checksum-mode", "ENABLED"};
  headers[count++] = (iso_s3_header){"x-amz-content-sha256", hash};
  headers[count++] = (iso_s3_header){"x-amz-date", when};
  if (j->checksummed) headers[count++] = (iso_s3_header){"x-amz-sdk-checksum-algorithm", "CRC32C"};
  if (*config->token) headers[count++] = (iso_s3_header){"x-amz-security-token", config->token};
  return count;
}

static iso_status sign_and_perform(iso_s3_job *j, const iso_s3_config *config, iso_s3_place *place,
                                   iso_http_response *response) {
  iso_string lines[HEADERS + 2] = {{0}};
  iso_s3_header headers[HEADERS];
  const char *list[ISO_COUNT(lines) + 1] = {0};
  char when[32], texts[2][128], hash[65];
  time_t now = time(NULL);
  struct tm utc;
  gmtime_r(&now, &utc);
  strftime(when, sizeof when, "%Y%m%dT%H%M%SZ", &utc);
  ISO_TRY(payload_hash(j, place, hash));
  size_t count = fill_headers(j, config, place, hash, when, texts, headers);
  iso_s3_to_sign form = {j->method, place->path.data, j->query, headers, count, hash, config->region, when};
  for (size_t i = 0; i < count; i++) iso_string_printf(&lines[i], "%s: %s", headers[i].name, headers[i].value);
  iso_string_printf(&lines[count], "Authorization: ");
  iso_status status = iso_s3_sign(&form, config->access_key, config->secret_key, &lines[count]);
  count++;
  if (j->sends) iso_string_printf(&lines[count++], "Content-Type: application/octet-stream");
  if (*j->query) iso_string_printf(&place->url, "?%s", j->query);
  for (size_t i = 0; i < count; i++) {
    list[i] = lines[i].data;
    if (iso_string_failed(&lines[i]) || iso_string_failed(&place->url)) status = ISO_ERR_MEMORY;
  }
  const double left_s = j->deadline_s - iso_clock_s();
  const double limit_s = ATTEMPT_S + (double)(j->body_bytes + j->data_bytes) / ATTEMPT_BYTES_PER_S;
  const iso_http_request request = {.method = j->method,
                                    .url = place->url.data,
                                    .headers = list,
                                    .body = j->body,
                                    .body_bytes = j->body_bytes,
                                    .data = j->sends ? j->data : NULL,
                                    .data_bytes = j->data_bytes,
                                    .stall_s = j->slow_answer ? ATTEMPT_S : stall_s(),
                                    .limit_s = left_s < limit_s ? (left_s > 1 ? left_s : 1) : limit_s};
  j->attempts++;
  if (status == ISO_OK) {
    iso_http_perform(&request, response);
    count_attempt(response);
  }
  for (size_t i = 0; i < ISO_COUNT(lines); i++) iso_string_fini(&lines[i]);
  return status;
}

iso_status iso_s3_attempt(iso_s3_job *j, iso_http_response *response) {
  iso_s3_config config;
  iso_s3_place place = {0};
  *response = (iso_http_response){0};
  ISO_TRY(iso_s3_config_init(&config));
  iso_status status = iso_s3_place_init(&place, &config, j->bucket, j->key);
  if (status == ISO_OK) status = sign_and_perform(j, &config, &place, response);
  iso_s3_place_fini(&place);
  iso_s3_config_fini(&config);
  return status;
}

/* ---- what to make of an answer ---- */

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
      {"AccessDenied", "this key may not do it, or it is not there and the key may not list"},
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
static iso_status refused(const iso_s3_job *j, const iso_http_response *response) {
  iso_s3_error error;
  iso_s3_error_read(&error, response->text.data ? response->text.data : "", response->text.length);
  int status = response->status;
  const char *region = *error.region ? error.region : response->region;
  if (j->etag && (status == 412 || status == 416))
    return iso_fail(ISO_ERR_MISMATCH,
                    "'%s' changed while in use (its ETag is no longer %s); restore it, or start anew with what it is "
                    "now",
                    j->path, j->etag);
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
         strcmp(error.code, "InternalError") == 0 || strcmp(error.code, "BadDigest") == 0 ||
         strcmp(error.code, "XAmzContentSHA256Mismatch") == 0 ||
         strcmp(error.code, "XAmzContentChecksumMismatch") == 0 || strcmp(error.code, "IncompleteBody") == 0 ||
         (status == 409 && strcmp(error.code, "OperationAborted") == 0);
}

static void name_cause(iso_s3_job *j, const iso_http_response *response) {
  iso_s3_error error;
  iso_s3_error_read(&error, response->text.data ? response->text.data : "", response->text.length);
  snprintf(j->cause, sizeof j->cause, "HTTP %d%s%s", response->status, *error.code ? " " : "", error.code);
}

iso_s3_verdict iso_s3_judge(iso_s3_job *j, const iso_http_response *response, iso_status *status) {
  if (response->stopped || iso_http_stopping()) {
    *status = ISO_STOPPED;
    return ISO_S3_OVER;
  }
  bool success = response->status == 200 || response->status == 206 || (response->status == 204 && j->method[0] == 'D');
  if (response->complete && success) return ISO_S3_DONE;
  if (may_pass(response)) {
    if (!response->complete)
      snprintf(j->cause, sizeof j->cause, "%s", response->cause);
    else
      name_cause(j, response);
    return ISO_S3_AGAIN;
  }
  if (!response->complete)
    *status = iso_fail(ISO_ERR_IO, "cannot %s '%s': %s; check AWS_ENDPOINT_URL and AWS_CA_BUNDLE", j->doing, j->path,
                       response->cause);
  else
    *status = refused(j, response);
  return ISO_S3_OVER;
}

/* Waits before the next attempt. The error when there is no time for one. */
iso_status iso_s3_pause(iso_s3_job *j, double wanted_s) {
  uint32_t bits = 0;
  if (getrandom(&bits, sizeof bits, 0) != sizeof bits) bits = (uint32_t)j->attempts * 2654435761u;
  double pause_s = j->pause_s * (0.5 + 0.5 * bits / 4294967296.0), longest_s = iso_s3_patience_now.last_pause_s;
  j->pause_s = 2 * j->pause_s < longest_s ? 2 * j->pause_s : longest_s;
  if (wanted_s > pause_s) pause_s = wanted_s < longest_s ? wanted_s : longest_s; /* Retry-After */
  double now = iso_clock_s();
  /* A thread of little patience gives up after so much waiting, however long its bytes may take to transfer. */
  const bool impatient = thread_give_up_s > 0 && j->paused_s + pause_s > thread_give_up_s;
  j->paused_s += pause_s;
  if (now + pause_s >= j->deadline_s || impatient)
    return iso_fail(ISO_ERR_IO,
                    "cannot %s '%s': given up after %d attempts in %.1f s, the last one: %s; check the "
                    "network and the service",
                    j->doing, j->path, j->attempts, now - j->began_s, j->cause);
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
iso_status iso_s3_persist(iso_s3_job *j, iso_http_response *response) {
  for (;;) {
    ISO_TRY(iso_s3_attempt(j, response));
    iso_status status = ISO_OK;
    iso_s3_verdict result = iso_s3_judge(j, response, &status);
    if (result != ISO_S3_AGAIN) return status;
    double wanted_s = response->retry_after_s;
    iso_http_response_fini(response);
    *response = (iso_http_response){0};
    ISO_TRY(iso_s3_pause(j, wanted_s));
  }
}
