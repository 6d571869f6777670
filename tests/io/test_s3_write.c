/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing objects over a transport of the test's own: a service in memory that keeps objects and uploads, checks what
 * S3 checks, and whose answers go wrong as the test says.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/io.h"
#include "io/scratch.h"

#include <stdlib.h>

/* ---- the service ---- */

typedef enum fault {
  NONE,
  NO_ANSWER, /* the request does not arrive */
  LOST,      /* it arrives and is done; its answer does not come */
  S503,
  S409,
  S412,     /* although there is no such object */
  DAMAGED,  /* a bit of the body flips on the way */
  ALTERED,  /* the service stores other bytes than it was sent */
  COMPLAIN, /* 200, and an error in the body */
  DENY,
  STEALS, /* somebody else writes the object first */
} fault;

enum { OBJECTS = 8, BYTES = 1 << 15 };
static struct object {
  char key[64];
  char data[BYTES];
  size_t bytes;
  char checksum[16];
} objects[OBJECTS], parts[OBJECTS];
static int upload;  /* number of the upload that is open; 0: none */
static int uploads; /* begun */
static char upload_key[64];
static fault faults[64]; /* of each request in turn */
static int requests;
static char seen[64][512]; /* "METHOD URL" */
static char signed_headers[64][512];

static const char *header(const iso_http_request *request, const char *name) {
  size_t length = strlen(name);
  for (const char *const *line = request->headers; *line; line++)
    if (strncmp(*line, name, length) == 0 && (*line)[length] == ':') return *line + length + 2;
  return NULL;
}

static struct object *find(struct object *in, const char *key) {
  for (int i = 0; i < OBJECTS; i++)
    if (strcmp(in[i].key, key) == 0) return &in[i];
  return NULL;
}

static struct object *store(struct object *in, const char *key, const void *data, size_t bytes) {
  struct object *to = find(in, key) ? find(in, key) : find(in, "");
  assert_non_null(to);
  assert_true(bytes <= BYTES);
  snprintf(to->key, sizeof to->key, "%s", key);
  if (bytes) memcpy(to->data, data, bytes);
  to->bytes = bytes;
  iso_s3_checksum_text(iso_crc32c(0, to->data, bytes), to->checksum);
  return to;
}

static void refuse(iso_http_response *r, int status, const char *code) {
  r->status = status;
  if (*code) iso_string_printf(&r->text, "<Error><Code>%s</Code><Message>m</Message></Error>", code);
}

/* What S3 checks of a body before anything is stored. */
static bool content_fits(const iso_http_request *request, const char *data) {
  char hash[65], text[9];
  const char *said = header(request, "x-amz-checksum-crc32c"), *sha_said = header(request, "x-amz-content-sha256");
  iso_sha256 *sha = iso_sha256_create();
  iso_sha256_update(sha, data, request->data_bytes);
  iso_sha256_finish(&sha, hash);
  iso_s3_checksum_text(iso_crc32c(0, data, request->data_bytes), text);
  assert_non_null(sha_said);
  assert_non_null(header(request, "Content-Type"));
  return (!said || strcmp(said, text) == 0) && strcmp(sha_said, hash) == 0;
}

static void do_put(const iso_http_request *request, iso_http_response *r, const char *key, const char *data,
                   fault now) {
  const char *number = strstr(request->url, "partNumber=");
  assert_non_null(header(request, "x-amz-checksum-crc32c"));
  if (now == S412 || (header(request, "if-none-match") && find(objects, key))) {
    refuse(r, 412, "PreconditionFailed");
    return;
  }
  r->status = 200;
  if (number) {
    char name[16];
    if (!upload || atoi(strstr(request->url, "uploadId=id%2F") + 14) != upload) {
      refuse(r, 404, "NoSuchUpload");
      return;
    }
    snprintf(name, sizeof name, "%d", atoi(number + 11));
    snprintf(r->etag, sizeof r->etag, "\"part%s\"", name);
    store(parts, name, data, request->data_bytes);
  } else {
    struct object *to = store(objects, key, data, request->data_bytes);
    if (now == ALTERED) {
      to->data[0] ^= 1;
      iso_s3_checksum_text(iso_crc32c(0, to->data, to->bytes), to->checksum);
    }
    snprintf(r->checksum, sizeof r->checksum, "%s", to->checksum);
    snprintf(r->etag, sizeof r->etag, "\"e\"");
  }
}

static void do_delete_all(iso_http_response *r, const char *data, fault now) {
  for (int i = 0; i < OBJECTS; i++) {
    iso_string text = {0};
    iso_string_printf(&text, "<Object><Key>%s</Key></Object>",
                      strcmp(objects[i].key, "c&<") ? objects[i].key : "c&amp;&lt;");
    if (objects[i].key[0] && strstr(data, text.data)) memset(&objects[i], 0, sizeof objects[i]);
    iso_string_fini(&text);
  }
  iso_string_printf(&r->text, "<DeleteResult>%s</DeleteResult>",
                    now == COMPLAIN ? "<Error><Key>b</Key><Code>AccessDenied</Code></Error>" : "");
}

static void do_post(const iso_http_request *request, iso_http_response *r, const char *key, const char *data,
                    fault now) {
  r->status = 200;
  if (strstr(request->url, "?uploads=")) {
    assert_string_equal(header(request, "x-amz-checksum-algorithm"), "CRC32C");
    memset(parts, 0, sizeof parts);
    upload = ++uploads;
    snprintf(upload_key, sizeof upload_key, "%s", key);
    iso_string_printf(&r->text,
                      "<InitiateMultipartUploadResult><UploadId>id/%d</UploadId>"
                      "</InitiateMultipartUploadResult>",
                      upload);
    return;
  }
  if (strstr(request->url, "?delete=")) {
    do_delete_all(r, data, now);
  } else if (!upload || atoi(strstr(request->url, "uploadId=id%2F") + 14) != upload) {
    refuse(r, 404, "NoSuchUpload");
  } else if (header(request, "if-none-match") && find(objects, key)) {
    refuse(r, 412, "PreconditionFailed");
  } else if (now == COMPLAIN) {
    refuse(r, 200, "InternalError");
  } else {
    char whole[BYTES], text[128];
    size_t bytes = 0;
    for (int i = 1; i <= OBJECTS; i++) {
      char name[16];
      snprintf(name, sizeof name, "%d", i);
      const struct object *part = find(parts, name);
      if (!part) break;
      snprintf(text, sizeof text, "<ETag>&quot;part%d&quot;</ETag><ChecksumCRC32C>%s</ChecksumCRC32C>", i,
               part->checksum);
      assert_non_null(strstr(data, text));
      memcpy(whole + bytes, part->data, part->bytes);
      bytes += part->bytes;
    }
    store(objects, key, whole, bytes);
    upload = 0;
    iso_string_printf(&r->text, "<CompleteMultipartUploadResult><Key>x</Key></CompleteMultipartUploadResult>");
  }
}

static void do_read(const iso_http_request *request, iso_http_response *r, const char *key) {
  if (strstr(request->url, "&uploads=")) {
    r->status = 200;
    iso_string_printf(&r->text, "<ListMultipartUploadsResult>");
    if (upload)
      iso_string_printf(&r->text, "<Upload><Key>%s</Key><UploadId>id/%d</UploadId></Upload>", upload_key, upload);
    iso_string_printf(&r->text, "</ListMultipartUploadsResult>");
    return;
  }
  const struct object *from = find(objects, key);
  const char *range = header(request, "range");
  long first = 0, last;
  if (!from) {
    refuse(r, 404, request->method[0] == 'G' ? "NoSuchKey" : "");
    return;
  }
  last = (long)from->bytes - 1;
  if (range) assert_int_equal(sscanf(range, "bytes=%ld-%ld", &first, &last), 2);
  r->status = range ? 206 : 200;
  snprintf(r->etag, sizeof r->etag, "\"e\"");
  r->content_length = last - first + 1;
  if (request->method[0] == 'H') return;
  snprintf(r->content_range, sizeof r->content_range, "bytes %ld-%ld/%zu", first, last, from->bytes);
  if (header(request, "x-amz-checksum-mode")) snprintf(r->checksum, sizeof r->checksum, "%s", from->checksum);
  if (request->body) {
    memcpy(request->body, from->data + first, (size_t)r->content_length);
    r->body_bytes = (size_t)r->content_length;
  } else {
    iso_string_append(&r->text, from->data + first, (size_t)r->content_length);
  }
}

static void do_delete(const iso_http_request *request, iso_http_response *r, const char *key) {
  r->status = 204;
  if (strstr(request->url, "uploadId=")) {
    if (!upload) refuse(r, 404, "NoSuchUpload");
    upload = 0;
  } else if (find(objects, key)) {
    memset(find(objects, key), 0, sizeof objects[0]);
  }
}

static void serve(const iso_http_request *request, iso_http_response *r) {
  const fault now = faults[requests];
  static char data[BYTES];
  char key[64];
  *r = (iso_http_response){.content_length = -1, .complete = true};
  snprintf(seen[requests], sizeof seen[0], "%s %s", request->method, request->url);
  snprintf(signed_headers[requests], sizeof signed_headers[0], "%s",
           strstr(header(request, "Authorization"), "Signed"));
  assert_true(++requests < 64);
  snprintf(key, sizeof key, "%s", strstr(request->url, "/bucket/") + 8);
  key[strcspn(key, "?")] = 0;
  assert_true(request->data_bytes <= BYTES);
  if (request->data_bytes) memcpy(data, request->data, request->data_bytes);
  if (now == DAMAGED) data[0] ^= 4;
  data[request->data_bytes < BYTES ? request->data_bytes : BYTES - 1] = 0;
  if (now == NO_ANSWER) {
    r->complete = false;
    snprintf(r->cause, sizeof r->cause, "connection refused");
  } else if (now == S503 || now == S409) {
    refuse(r, now == S503 ? 503 : 409, now == S503 ? "SlowDown" : "ConditionalRequestConflict");
  } else if (now == DENY) {
    refuse(r, 403, "AccessDenied");
  } else if (request->method[0] == 'P' && !content_fits(request, data)) {
    refuse(r, 400, "BadDigest");
  } else {
    if (now == STEALS) store(objects, key, "theirs", 6);
    if (strcmp(request->method, "PUT") == 0) do_put(request, r, key, data, now);
    if (strcmp(request->method, "POST") == 0) do_post(request, r, key, data, now);
    if (request->method[0] == 'G' || request->method[0] == 'H') do_read(request, r, key);
    if (request->method[0] == 'D') do_delete(request, r, key);
  }
  if (now == LOST) {
    iso_string_fini(&r->text);
    *r = (iso_http_response){.content_length = -1};
    snprintf(r->cause, sizeof r->cause, "the connection was reset");
  }
}

static void (*real_perform)(const iso_http_request *, iso_http_response *);

static void begin(void) {
  memset(faults, 0, sizeof faults);
  memset(objects, 0, sizeof objects);
  requests = upload = uploads = 0;
}

static int setup(void **state) {
  iso_log_quiet(true);
  real_perform = iso_http_perform;
  iso_http_perform = serve;
  iso_s3_patience_now = (iso_s3_patience){5, 1, 0.0005, 0.002};
  begin();
  setenv("AWS_ACCESS_KEY_ID", "A", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
  setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1", 1);
  return 0;
}

static int teardown(void **state) {
  iso_http_perform = real_perform;
  return 0;
}

static void assert_holds(const char *key, const char *text) {
  const struct object *object = find(objects, key);
  assert_non_null(object);
  assert_int_equal(object->bytes, strlen(text));
  assert_memory_equal(object->data, text, strlen(text));
}

/* ---- whole objects ---- */

static void test_checksum_text(void **state) {
  char text[9];
  iso_s3_checksum_text(0xE3069283, text); /* of "123456789" */
  assert_string_equal(text, "4waSgw==");
  iso_s3_checksum_text(0, text);
  assert_string_equal(text, "AAAAAA==");
}

static void test_put(void **state) {
  bool taken = true;
  assert_int_equal(iso_s3_put("s3://bucket/a", "123456789", 9, NULL), ISO_OK);
  assert_holds("a", "123456789");
  assert_string_equal(seen[0], "PUT http://127.0.0.1:1/bucket/a");
  assert_non_null(strstr(signed_headers[0], "SignedHeaders=host;x-amz-checksum-crc32c;x-amz-content-sha256;x-amz-date;"
                                            "x-amz-sdk-checksum-algorithm,"));
  assert_int_equal(iso_s3_put("s3://bucket/a", "", 0, NULL), ISO_OK); /* replaces */
  assert_holds("a", "");
  assert_int_equal(iso_s3_put("s3://bucket/b", "new", 3, &taken), ISO_OK);
  assert_false(taken);
  assert_non_null(strstr(signed_headers[2], "SignedHeaders=host;if-none-match;x-amz-checksum-crc32c;"));
  assert_int_equal(iso_s3_put("s3://bucket/b", "old", 3, &taken), ISO_OK);
  assert_true(taken);
  assert_int_equal(iso_s3_put("s3://bucket/b", "longer", 6, &taken), ISO_OK);
  assert_true(taken);
  assert_int_equal(iso_s3_put("s3://bucket/b", "new", 3, &taken), ISO_OK); /* ours, written before */
  assert_false(taken);
  assert_holds("b", "new");
  assert_int_equal(iso_s3_put("s3://B/b", "x", 1, NULL), ISO_ERR_CONFIG);
}

/* Whatever goes wrong on the way, a name asked for as new ends up with our bytes, or is somebody else's. */
static void test_put_faults(void **state) {
  static const fault passing[] = {NO_ANSWER, LOST, S503, S409, DAMAGED, S412};
  for (size_t i = 0; i < ISO_COUNT(passing); i++)
    for (size_t k = 0; k < ISO_COUNT(passing); k++) {
      bool taken = true;
      if (passing[i] == S412 && k > 2) continue; /* the next request only looks what is there */
      begin();
      faults[0] = passing[i], faults[1] = passing[k];
      assert_int_equal(iso_s3_put("s3://bucket/a", "mine", 4, &taken), ISO_OK);
      assert_false(taken);
      assert_holds("a", "mine");
    }
  begin();
  bool taken = false;
  faults[0] = NO_ANSWER, faults[1] = STEALS;
  assert_int_equal(iso_s3_put("s3://bucket/a", "mine", 4, &taken), ISO_OK);
  assert_true(taken);
  assert_holds("a", "theirs");
  begin();
  faults[0] = ALTERED;
  assert_int_equal(iso_s3_put("s3://bucket/a", "mine", 4, NULL), ISO_ERR_IO);
  assert_non_null(strstr(iso_last_error(), "stored other bytes"));
  begin();
  faults[0] = DENY;
  assert_int_equal(iso_s3_put("s3://bucket/a", "mine", 4, NULL), ISO_ERR_IO);
  assert_non_null(strstr(iso_last_error(), "AccessDenied"));
  assert_int_equal(requests, 1);
  begin();
  iso_s3_patience_now = (iso_s3_patience){0.01, 1, 0.005, 0.005};
  for (int i = 0; i < 64; i++) faults[i] = DAMAGED;
  assert_int_equal(iso_s3_put("s3://bucket/a", "mine", 4, NULL), ISO_ERR_IO);
  assert_non_null(strstr(iso_last_error(), "cannot write 's3://bucket/a': given up"));
  assert_non_null(strstr(iso_last_error(), "BadDigest"));
  assert_null(find(objects, "a"));
}

static void test_stop(void **state) {
  atomic_bool stop = true;
  iso_http_stop_by(&stop);
  assert_int_equal(iso_s3_put("s3://bucket/a", "mine", 4, NULL), ISO_STOPPED);
  stop = false;
  iso_http_stop(true); /* is not for this thread */
  assert_int_equal(iso_s3_put("s3://bucket/a", "mine", 4, NULL), ISO_OK);
  iso_http_stop_by(NULL);
  assert_int_equal(iso_s3_put("s3://bucket/a", "mine", 4, NULL), ISO_STOPPED);
  iso_http_stop(false);
}

static void test_get_and_delete(void **state) {
  char *data;
  size_t bytes;
  bool missing;
  store(objects, "a", "text", 4);
  faults[0] = S503, faults[1] = LOST;
  assert_int_equal(iso_s3_get("s3://bucket/a", 100, &data, &bytes, &missing), ISO_OK);
  assert_false(missing);
  assert_int_equal(bytes, 4);
  assert_string_equal(data, "text");
  free(data);
  assert_int_equal(iso_s3_get("s3://bucket/none", 100, &data, &bytes, &missing), ISO_OK);
  assert_true(missing);
  assert_null(data);
  faults[requests] = DENY;
  assert_int_equal(iso_s3_get("s3://bucket/a", 100, &data, &bytes, &missing), ISO_ERR_IO);
  iso_s3_patience_now.give_up_s = 0.01;
  find(objects, "a")->checksum[0] = '/'; /* rotten: the bytes are not those of its checksum */
  assert_int_equal(iso_s3_get("s3://bucket/a", 100, &data, &bytes, &missing), ISO_ERR_IO);
  assert_non_null(strstr(iso_last_error(), "its CRC-32C is not the one that S3 has"));
  requests = 0;
  faults[0] = LOST;
  iso_s3_patience_now.give_up_s = 5;
  assert_int_equal(iso_s3_delete("s3://bucket/a"), ISO_OK);
  assert_null(find(objects, "a"));
  assert_int_equal(iso_s3_delete("s3://bucket/a"), ISO_OK);
}

static void test_delete_all(void **state) {
  const char *const paths[] = {"s3://bucket/a", "s3://bucket/b", "s3://bucket/c&<", "s3://bucket/none"};
  static const fault cases[] = {NONE, S503, LOST, DAMAGED};
  for (size_t i = 0; i < ISO_COUNT(cases); i++) {
    begin();
    store(objects, "a", "1", 1);
    store(objects, "b", "2", 1);
    store(objects, "c&<", "3", 1);
    store(objects, "d", "4", 1);
    faults[0] = cases[i];
    assert_int_equal(iso_s3_delete_all(paths, 4), ISO_OK);
    assert_null(find(objects, "a"));
    assert_null(find(objects, "b"));
    if (cases[i] != DAMAGED) assert_null(find(objects, "c&<")); /* else one by one: these URLs are not decoded here */
    assert_non_null(find(objects, "d"));
    assert_true(requests <= (cases[i] == DAMAGED ? 5 : 2));
  }
  faults[requests] = COMPLAIN;
  assert_int_equal(iso_s3_delete_all(paths, 2), ISO_ERR_IO);
  assert_non_null(strstr(iso_last_error(), "AccessDenied"));
  assert_int_equal(iso_s3_delete_all(NULL, 0), ISO_OK);
}

/* ---- in parts ---- */

static iso_status upload_all(bool *taken) {
  iso_s3_upload *u;
  ISO_TRY(iso_s3_upload_begin("s3://bucket/a", &u));
  iso_status status = iso_s3_upload_part(u, "first ", 6);
  if (status == ISO_OK) status = iso_s3_upload_part(u, "second", 6);
  if (status == ISO_OK) return iso_s3_upload_complete(&u, taken);
  iso_s3_upload_abort(&u);
  return status;
}

static void test_upload(void **state) {
  bool taken = true;
  assert_int_equal(upload_all(&taken), ISO_OK);
  assert_false(taken);
  assert_holds("a", "first second");
  assert_string_equal(seen[0], "POST http://127.0.0.1:1/bucket/a?uploads=");
  assert_string_equal(seen[2], "PUT http://127.0.0.1:1/bucket/a?partNumber=2&uploadId=id%2F1");
  assert_string_equal(seen[3], "POST http://127.0.0.1:1/bucket/a?uploadId=id%2F1");
  assert_null(strstr(signed_headers[3], "checksum-crc32c")); /* there it would be the whole object's */
  assert_int_equal(upload_all(&taken), ISO_OK);              /* again: equal */
  assert_false(taken);
  assert_int_equal(upload, 0); /* aborted */
  store(objects, "a", "first sec0nd", 12);
  assert_int_equal(upload_all(&taken), ISO_OK);
  assert_true(taken);
  assert_holds("a", "first sec0nd");
  assert_int_equal(upload_all(NULL), ISO_OK); /* replaces */
  assert_holds("a", "first second");
}

/* Every fault at every request. */
static void test_upload_faults(void **state) {
  static const fault passing[] = {NO_ANSWER, LOST, S503, S409, DAMAGED, COMPLAIN};
  for (size_t i = 0; i < ISO_COUNT(passing); i++)
    for (int at = 0; at < 4; at++) {
      bool taken = true;
      begin();
      faults[at] = passing[i];
      if (passing[i] == DAMAGED && at == 0) continue; /* it has no body */
      if (passing[i] == S409 && at < 3) continue;     /* not said there */
      assert_int_equal(upload_all(&taken), ISO_OK);
      assert_false(taken);
      assert_holds("a", "first second");
    }
  for (int at = 0; at < 4; at++) {
    begin();
    faults[at] = DENY;
    assert_int_equal(upload_all(NULL), ISO_ERR_IO);
    assert_null(find(objects, "a"));
    assert_int_equal(upload, 0); /* none is left */
  }
}

static void test_uploads_abort(void **state) {
  iso_s3_upload *u;
  int64_t count;
  assert_int_equal(iso_s3_upload_begin("s3://bucket/run/a", &u), ISO_OK);
  assert_int_equal(iso_s3_uploads_abort("s3://bucket/other/", &count), ISO_OK);
  assert_int_equal(count, 0);
  assert_int_equal(iso_s3_uploads_abort("s3://bucket/run/", &count), ISO_OK);
  assert_int_equal(count, 1);
  assert_int_equal(upload, 0);
  assert_int_equal(iso_s3_upload_part(u, "x", 1), ISO_ERR_NOT_FOUND);
  assert_int_equal(iso_s3_upload_complete(&u, NULL), ISO_ERR_IO);
  assert_non_null(strstr(iso_last_error(), "its upload is gone"));
  assert_null(u);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_checksum_text),
      cmocka_unit_test_setup_teardown(test_put, setup, teardown),
      cmocka_unit_test_setup_teardown(test_put_faults, setup, teardown),
      cmocka_unit_test_setup_teardown(test_stop, setup, teardown),
      cmocka_unit_test_setup_teardown(test_get_and_delete, setup, teardown),
      cmocka_unit_test_setup_teardown(test_delete_all, setup, teardown),
      cmocka_unit_test_setup_teardown(test_upload, setup, teardown),
      cmocka_unit_test_setup_teardown(test_upload_faults, setup, teardown),
      cmocka_unit_test_setup_teardown(test_uploads_abort, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
