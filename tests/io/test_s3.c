/* SPDX-License-Identifier: Apache-2.0
 *
 * Listing and reading objects over a transport of the test's own: a small service in memory whose answers go wrong as
 * the test says.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/io.h"
#include "io/scratch.h"

/* ---- the service ---- */

enum { OBJECT_BYTES = 1000, PAGE_KEYS = 2 };

typedef enum fault {
  NONE,
  NO_ANSWER,  /* connection refused */
  CUT,        /* half of the body, then a reset */
  SHORT,      /* half of the body, as if that were all */
  EMPTY_BODY, /* the headers and nothing more */
  STATUS,     /* `fault_status` */
  BAD_CERTIFICATE,
  WRONG_RANGE,
  NO_RANGE,
  IGNORES_RANGE,
  OTHER_ETAG,
  OTHER_SIZE,
  TOO_LONG,
  BAD_XML,
  SAME_PAGE,
  EMPTY_PAGE, /* nothing, and more to come */
} fault;

static const char *const keys[] = {"dir/a", "dir/b.txt", "dir/c d", "dir/sub/", "dir/sub/e.txt", "other"};
static char contents[OBJECT_BYTES];
static const char *etag;
static fault faults[64]; /* of each request in turn */
static int fault_status;
static const char *fault_text;
static int requests;
static char seen[64][512]; /* "METHOD URL range" */

static const char *header(const iso_http_request *request, const char *name) {
  size_t length = strlen(name);
  for (const char *const *line = request->headers; *line; line++)
    if (strncmp(*line, name, length) == 0 && (*line)[length] == ':') return *line + length + 2;
  return NULL;
}

static void answer_listing(const iso_http_request *request, iso_http_response *r, fault now) {
  const char *token = strstr(request->url, "continuation-token=");
  size_t at = token ? (size_t)atoi(token + strlen("continuation-token=")) : 0, sent = 0;
  r->status = 200;
  iso_string_printf(&r->text, "<ListBucketResult><EncodingType>url</EncodingType>");
  const char *prefix = strstr(request->url, "prefix=") + strlen("prefix=");
  for (; at < ISO_COUNT(keys) && sent < PAGE_KEYS && now != EMPTY_PAGE; at++) {
    bool below = strncmp(prefix, "dir%2F", 6) == 0 ? strncmp(keys[at], "dir/", 4) == 0 : *prefix == '\0';
    if (!below) continue;
    iso_string_printf(&r->text, "<Contents><Key>");
    iso_s3_encode(&r->text, keys[at], strlen(keys[at]), false);
    iso_string_printf(&r->text, "</Key><Size>%d</Size><ETag>\"%s\"</ETag></Contents>",
                      keys[at][strlen(keys[at]) - 1] == '/' ? 0 : OBJECT_BYTES, etag);
    sent++;
  }
  if (now == EMPTY_PAGE) at = 100 + (size_t)requests;
  bool more = at < ISO_COUNT(keys) || now == SAME_PAGE || now == EMPTY_PAGE;
  iso_string_printf(&r->text, "<IsTruncated>%s</IsTruncated>", more ? "true" : "false");
  if (more)
    iso_string_printf(&r->text, "<NextContinuationToken>%zu</NextContinuationToken>", now == SAME_PAGE ? 2 : at);
  if (now != BAD_XML) iso_string_printf(&r->text, "</ListBucketResult>");
}

static void answer_object(const iso_http_request *request, iso_http_response *r, fault now) {
  const char *range = header(request, "range"), *match = header(request, "if-match");
  long first = 0, last = OBJECT_BYTES - 1;
  char quoted[128];
  snprintf(quoted, sizeof quoted, "\"%s\"", now == OTHER_ETAG ? "other" : etag);
  snprintf(r->etag, sizeof r->etag, "%s", quoted);
  if (match && strcmp(match, quoted) != 0 && now != OTHER_ETAG) {
    r->status = 412;
    return;
  }
  bool exists = strstr(request->url, "/dir/a") || strstr(request->url, "/other");
  r->status = !exists ? 404 : range && now != IGNORES_RANGE ? 206 : 200;
  if (!exists) {
    if (request->method[0] == 'G') iso_string_printf(&r->text, "<Error><Code>NoSuchKey</Code></Error>");
    return;
  }
  if (range) assert_int_equal(sscanf(range, "bytes=%ld-%ld", &first, &last), 2);
  if (now == IGNORES_RANGE) first = 0;
  snprintf(r->content_range, sizeof r->content_range, "bytes %ld-%ld/%d", first + (now == WRONG_RANGE), last,
           OBJECT_BYTES + (now == OTHER_SIZE));
  if (now == NO_RANGE) r->content_range[0] = '\0';
  size_t bytes = (size_t)(last - first + 1);
  r->content_length = (int64_t)bytes;
  if (request->method[0] == 'H') return;
  if (now == CUT || now == SHORT) bytes /= 2;
  if (now == EMPTY_BODY) bytes = 0;
  if (now == CUT) {
    r->complete = false;
    snprintf(r->cause, sizeof r->cause, "the connection was reset");
  }
  if (request->body) {
    if (bytes > request->body_bytes) bytes = request->body_bytes;
    memcpy(request->body, contents + first, bytes);
    r->body_bytes = bytes;
  }
}

static void serve(const iso_http_request *request, iso_http_response *r) {
  fault now = faults[requests];
  *r = (iso_http_response){.content_length = -1, .complete = true};
  const char *range = header(request, "range");
  snprintf(seen[requests], sizeof seen[0], "%s %s %s", request->method, request->url, range ? range : "");
  assert_true(++requests < 64);
  assert_non_null(header(request, "Authorization"));
  assert_true(request->limit_s > 0 && request->stall_s > 0);
  if (now == NO_ANSWER || now == BAD_CERTIFICATE) {
    r->complete = false;
    r->hopeless = now == BAD_CERTIFICATE;
    snprintf(r->cause, sizeof r->cause, "%s", now == NO_ANSWER ? "connection refused" : "the certificate has expired");
  } else if (now == STATUS) {
    r->status = fault_status;
    if (request->method[0] == 'G') iso_string_printf(&r->text, "%s", fault_text);
  } else if (now == TOO_LONG) {
    r->status = 206;
    r->complete = false;
    r->hopeless = r->too_long = true;
    snprintf(r->cause, sizeof r->cause, "more came than was asked for");
  } else if (strstr(request->url, "list-type=2")) {
    answer_listing(request, r, now);
  } else {
    answer_object(request, r, now);
  }
}

static iso_arena *arena;
static void (*real_perform)(const iso_http_request *, iso_http_response *);

static int setup(void **state) {
  iso_log_quiet(true);
  arena = iso_arena_create();
  real_perform = iso_http_perform;
  iso_http_perform = serve;
  iso_s3_patience_now = (iso_s3_patience){5, 1, 0.0005, 0.002};
  memset(faults, 0, sizeof faults);
  requests = 0;
  etag = "v1";
  fault_text = "";
  for (int i = 0; i < OBJECT_BYTES; i++) contents[i] = (char)(i * 7 + i / 256);
  setenv("AWS_ACCESS_KEY_ID", "A", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
  setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1", 1);
  return 0;
}

static int teardown(void **state) {
  iso_arena_destroy(&arena);
  iso_http_perform = real_perform;
  iso_blob_interrupt(false);
  return 0;
}

static iso_blob *open_object(void) {
  iso_blob_info info = {.path = "s3://bucket/dir/a", .bytes = OBJECT_BYTES, .version = "v1"};
  iso_blob *blob;
  assert_int_equal(iso_blob_open(&info, &blob), ISO_OK);
  return blob;
}

/* Reads bytes 100 to 299 under the faults set; the buffer must hold them when that succeeds. */
static iso_status read_part(void) {
  char buffer[200];
  memset(buffer, 0, sizeof buffer);
  iso_blob *blob = open_object();
  iso_status status = iso_blob_read(blob, 100, 200, buffer);
  if (status == ISO_OK) assert_memory_equal(buffer, contents + 100, 200);
  iso_blob_close(&blob);
  return status;
}

/* ---- listing ---- */

static void assert_lists(const char *path, int count, const char *const *expected) {
  iso_blob_info *blobs;
  int64_t found;
  assert_int_equal(iso_blobs_list(arena, path, &blobs, &found), ISO_OK);
  assert_int_equal(found, count);
  for (int i = 0; i < count; i++) {
    assert_string_equal(blobs[i].path, expected[i]);
    assert_int_equal(blobs[i].bytes, OBJECT_BYTES);
    assert_string_equal(blobs[i].version, "v1");
  }
}

static void test_list(void **state) {
  assert_lists("s3://bucket/dir/a", 1, (const char *[]){"s3://bucket/dir/a"});
  assert_string_equal(seen[0], "HEAD http://127.0.0.1:1/bucket/dir/a ");
  static const char *const below[] = {"s3://bucket/dir/a", "s3://bucket/dir/b.txt", "s3://bucket/dir/c d",
                                      "s3://bucket/dir/sub/e.txt", "s3://bucket/other"};
  assert_lists("s3://bucket/dir/", 4, below); /* the folder's own marker is no object of text */
  assert_string_equal(seen[1], "GET http://127.0.0.1:1/bucket/?encoding-type=url&list-type=2&prefix=dir%2F ");
  assert_string_equal(seen[2], "GET http://127.0.0.1:1/bucket/?continuation-token=2&encoding-type=url&list-type=2&"
                               "prefix=dir%2F ");
  assert_lists("s3://bucket", 5, below);
  assert_lists("s3://bucket/dir/*.txt", 1, (const char *[]){"s3://bucket/dir/b.txt"});
  assert_lists("s3://bucket/dir/[a-b]*", 2, below);
}

static void test_list_errors(void **state) {
  iso_blob_info *blobs;
  int64_t count;
  assert_int_equal(iso_blobs_list(arena, "s3://bucket/none", &blobs, &count), ISO_ERR_NOT_FOUND);
  assert_non_null(strstr(iso_last_error(), "a prefix ends in '/'"));
  assert_int_equal(iso_blobs_list(arena, "s3://bucket/none/", &blobs, &count), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_blobs_list(arena, "s3://bucket/dir/*.none", &blobs, &count), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_blobs_list(arena, "s3://b/x", &blobs, &count), ISO_ERR_CONFIG);
  requests = 0;
  for (int i = 1; i < 8; i++) faults[i] = SAME_PAGE;
  assert_int_equal(iso_blobs_list(arena, "s3://bucket/dir/", &blobs, &count), ISO_ERR_FORMAT);
  assert_non_null(strstr(iso_last_error(), "without end"));
  requests = 0;
  for (int i = 0; i < 60; i++) faults[i] = EMPTY_PAGE;
  assert_int_equal(iso_blobs_list(arena, "s3://bucket/dir/", &blobs, &count), ISO_ERR_FORMAT);
  assert_non_null(strstr(iso_last_error(), "pages in a row hold nothing"));
  memset(faults, 0, sizeof faults);
  requests = 0;
  faults[0] = BAD_XML, faults[1] = NO_ANSWER, faults[2] = NONE, faults[3] = STATUS, faults[4] = NONE, faults[5] = NONE;
  fault_status = 503;
  assert_int_equal(iso_blobs_list(arena, "s3://bucket/dir/", &blobs, &count), ISO_OK);
  assert_int_equal(count, 4);
}

/* A wrong secret: HEAD says only 403, so the reason is asked for. */
static void test_refused_head(void **state) {
  iso_blob_info *blobs;
  int64_t count;
  faults[0] = faults[1] = STATUS;
  fault_status = 403;
  fault_text = "<Error><Code>SignatureDoesNotMatch</Code><Message>The signature is wrong.</Message></Error>";
  assert_int_equal(iso_blobs_list(arena, "s3://bucket/dir/a", &blobs, &count), ISO_ERR_IO);
  assert_string_equal(iso_last_error(),
                      "S3 refuses 's3://bucket/dir/a': SignatureDoesNotMatch: The signature is wrong. "
                      "(HTTP 403); check AWS_SECRET_ACCESS_KEY");
  assert_int_equal(requests, 2);
  requests = 0;
  faults[0] = NO_ANSWER, faults[1] = NONE;
  assert_int_equal(iso_blobs_list(arena, "s3://bucket/dir/a", &blobs, &count), ISO_OK);
  unsetenv("AWS_ACCESS_KEY_ID");
  requests = 0;
  assert_int_equal(iso_blobs_list(arena, "s3://bucket/dir/a", &blobs, &count), ISO_ERR_CONFIG);
  assert_int_equal(requests, 0); /* said before any request */
}

/* ---- reading ---- */

static void test_read(void **state) {
  assert_int_equal(read_part(), ISO_OK);
  assert_string_equal(seen[0], "GET http://127.0.0.1:1/bucket/dir/a bytes=100-299");
  char byte;
  iso_blob *blob = open_object();
  assert_int_equal(iso_blob_read(blob, OBJECT_BYTES, 0, &byte), ISO_OK);
  assert_int_equal(requests, 1);
  assert_int_equal(iso_blob_read(blob, OBJECT_BYTES, 1, &byte), ISO_ERR_INTERNAL);
  iso_blob_close(&blob);
}

static void test_goes_on_where_cut(void **state) {
  faults[0] = CUT, faults[1] = NO_ANSWER, faults[2] = SHORT, faults[3] = EMPTY_BODY;
  assert_int_equal(read_part(), ISO_OK);
  assert_int_equal(requests, 5);
  assert_non_null(strstr(seen[1], "bytes=200-299"));
  assert_non_null(strstr(seen[2], "bytes=200-299"));
  assert_non_null(strstr(seen[3], "bytes=250-299"));
  assert_non_null(strstr(seen[4], "bytes=250-299"));
}

static void test_passing_statuses(void **state) {
  static const int statuses[] = {408, 429, 500, 502, 503, 504, 520};
  for (size_t i = 0; i < ISO_COUNT(statuses); i++) {
    requests = 0;
    for (int k = 0; k < 6; k++) faults[k] = STATUS;
    fault_status = statuses[i];
    assert_int_equal(read_part(), ISO_OK);
    assert_int_equal(requests, 7);
  }
  requests = 0;
  fault_status = 400;
  fault_text = "<Error><Code>RequestTimeout</Code></Error>";
  assert_int_equal(read_part(), ISO_OK);
}

static void test_final_statuses(void **state) {
  static const struct {
    int status;
    const char *text;
    iso_status result;
    const char *says;
  } cases[] = {
      {400, "", ISO_ERR_IO, "HTTP 400"},
      {403, "<Error><Code>InvalidAccessKeyId</Code></Error>", ISO_ERR_IO, "check AWS_ACCESS_KEY_ID"},
      {403, "<Error><Code>ExpiredToken</Code></Error>", ISO_ERR_IO, "renew the session token"},
      {403, "not XML", ISO_ERR_IO, "check the credentials"},
      {404, "<Error><Code>NoSuchKey</Code></Error>", ISO_ERR_NOT_FOUND, "it was there before"},
      {412, "", ISO_ERR_MISMATCH, "changed while in use"},
      {416, "", ISO_ERR_MISMATCH, "changed while in use"},
      {301, "<Error><Code>PermanentRedirect</Code><Region>eu-west-3</Region></Error>", ISO_ERR_CONFIG,
       "set AWS_REGION=eu-west-3"},
      {501, "", ISO_ERR_IO, "HTTP 501"},
      {204, "", ISO_ERR_IO, "HTTP 204"},
  };
  for (size_t i = 0; i < ISO_COUNT(cases); i++) {
    requests = 0;
    faults[0] = STATUS;
    fault_status = cases[i].status;
    fault_text = cases[i].text;
    assert_int_equal(read_part(), cases[i].result);
    assert_int_equal(requests, 1);
    if (!strstr(iso_last_error(), cases[i].says)) fail_msg("'%s' is not in: %s", cases[i].says, iso_last_error());
    assert_non_null(strstr(iso_last_error(), "s3://bucket/dir/a"));
  }
}

/* What went wrong is an error, whatever became of it; what is not there, or has changed, is an answer. */
static void test_counts(void **state) {
  static const struct {
    fault kind;
    int status, requests, errors;
  } cases[] = {{NONE, 0, 1, 0},     {NO_ANSWER, 0, 2, 1}, {CUT, 0, 2, 1},      {STATUS, 503, 2, 1},
               {STATUS, 403, 1, 1}, {STATUS, 404, 1, 0},  {STATUS, 412, 1, 0}, {STATUS, 500, 2, 1}};
  for (size_t i = 0; i < ISO_COUNT(cases); i++) {
    iso_s3_counts before, after;
    requests = 0;
    faults[0] = cases[i].kind;
    fault_status = cases[i].status;
    iso_s3_counts_get(&before);
    (void)!read_part();
    iso_s3_counts_get(&after);
    assert_int_equal(after.requests - before.requests, cases[i].requests);
    assert_int_equal(after.errors - before.errors, cases[i].errors);
  }
}

static void test_other_version(void **state) {
  etag = "v2";
  assert_int_equal(read_part(), ISO_ERR_MISMATCH);
  assert_non_null(strstr(iso_last_error(), "no longer v1"));
  etag = "v1";
  static const fault others[] = {OTHER_ETAG, OTHER_SIZE};
  for (int i = 0; i < 2; i++) {
    requests = 0;
    faults[0] = others[i];
    assert_int_equal(read_part(), ISO_ERR_MISMATCH);
    assert_int_equal(requests, 1);
  }
}

static void test_answers_that_lie(void **state) {
  static const fault lies[] = {WRONG_RANGE, NO_RANGE, IGNORES_RANGE, TOO_LONG, BAD_CERTIFICATE};
  static const char *const says[] = {"other bytes", "does not say which", "ignores ranges", "more came",
                                     "certificate has expired"};
  for (size_t i = 0; i < ISO_COUNT(lies); i++) {
    requests = 0;
    faults[0] = lies[i];
    assert_int_equal(read_part(), ISO_ERR_IO);
    assert_int_equal(requests, 1);
    if (!strstr(iso_last_error(), says[i])) fail_msg("'%s' is not in: %s", says[i], iso_last_error());
  }
  requests = 0;
  faults[0] = IGNORES_RANGE; /* harmless when all is asked for */
  char buffer[OBJECT_BYTES];
  iso_blob *blob = open_object();
  assert_int_equal(iso_blob_read(blob, 0, OBJECT_BYTES, buffer), ISO_OK);
  assert_memory_equal(buffer, contents, OBJECT_BYTES);
  iso_blob_close(&blob);
}

static void test_gives_up(void **state) {
  iso_s3_patience_now = (iso_s3_patience){0.05, 1, 0.004, 0.01};
  for (int k = 0; k < 64; k++) faults[k] = NO_ANSWER;
  double began = iso_clock_s();
  assert_int_equal(read_part(), ISO_ERR_IO);
  assert_true(iso_clock_s() - began < 5);
  assert_true(requests >= 3);
  char expected[64];
  snprintf(expected, sizeof expected, "'s3://bucket/dir/a': given up after %d attempts", requests);
  assert_non_null(strstr(iso_last_error(), expected));
  assert_non_null(strstr(iso_last_error(), "connection refused"));
}

static void *interrupt_soon(void *unused) {
  usleep(30000);
  iso_blob_interrupt(true);
  return NULL;
}

static void test_interrupt(void **state) {
  pthread_t thread;
  iso_s3_patience_now = (iso_s3_patience){300, 1, 200, 200};
  faults[0] = NO_ANSWER;
  double began = iso_clock_s();
  assert_int_equal(pthread_create(&thread, NULL, interrupt_soon, NULL), 0);
  assert_int_equal(read_part(), ISO_STOPPED);
  pthread_join(thread, NULL);
  assert_true(iso_clock_s() - began < 20);
  assert_int_equal(requests, 1);
}

/* The real transport against a port where nobody listens, and a malformed one. */
static void test_real_transport(void **state) {
  iso_http_perform = real_perform;
  iso_s3_patience_now = (iso_s3_patience){0.05, 1, 0.01, 0.02};
  assert_int_equal(read_part(), ISO_ERR_IO);
  assert_non_null(strstr(iso_last_error(), "given up after"));
  setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:99999", 1);
  assert_int_equal(read_part(), ISO_ERR_IO);
  assert_non_null(strstr(iso_last_error(), "check AWS_ENDPOINT_URL"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_list, setup, teardown),
      cmocka_unit_test_setup_teardown(test_list_errors, setup, teardown),
      cmocka_unit_test_setup_teardown(test_refused_head, setup, teardown),
      cmocka_unit_test_setup_teardown(test_read, setup, teardown),
      cmocka_unit_test_setup_teardown(test_goes_on_where_cut, setup, teardown),
      cmocka_unit_test_setup_teardown(test_passing_statuses, setup, teardown),
      cmocka_unit_test_setup_teardown(test_final_statuses, setup, teardown),
      cmocka_unit_test_setup_teardown(test_counts, setup, teardown),
      cmocka_unit_test_setup_teardown(test_other_version, setup, teardown),
      cmocka_unit_test_setup_teardown(test_answers_that_lie, setup, teardown),
      cmocka_unit_test_setup_teardown(test_gives_up, setup, teardown),
      cmocka_unit_test_setup_teardown(test_interrupt, setup, teardown),
      cmocka_unit_test_setup_teardown(test_real_transport, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
