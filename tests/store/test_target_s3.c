/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's copy in S3, over a service in memory: at each request in turn the network goes, before the request, after it,
 * or so that the request comes late, when a newer one was long answered. What was called there is there.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/mirror_fixture.h"

/* ---- the service ---- */

enum { OBJECTS = 128 };
typedef struct object {
  char key[160];
  char *data; /* heap; NULL: a free entry */
  size_t bytes;
} object;
static object objects[OBJECTS];

typedef enum fate { ANSWERED, NO_ANSWER, LOST, LATE } fate;
static struct {
  int calls;     /* so far */
  int at;        /* the request at which the network goes, for good; -1: none */
  fate how;      /* of that request; those that follow get no answer, or lose it */
  bool down;     /* gone */
  bool first;    /* what is late comes just before a newer request for the same name, else just after it */
  object held;   /* what is late */
  bool only_new; /* and its condition */
} network;

static object *find(const char *key) {
  for (int i = 0; i < OBJECTS; i++)
    if (objects[i].data && strcmp(objects[i].key, key) == 0) return &objects[i];
  return NULL;
}

static void drop(object *o) {
  if (o) free(o->data);
  if (o) *o = (object){0};
}

static void fill(object *to, const char *key, const void *data, size_t bytes) {
  *to = (object){.data = malloc(bytes + 1), .bytes = bytes};
  snprintf(to->key, sizeof to->key, "%s", key);
  if (bytes) memcpy(to->data, data, bytes);
}

/* false: the precondition failed. */
static bool put(const char *key, const void *data, size_t bytes, bool only_new) {
  object *to = find(key);
  if (to && only_new) return false;
  drop(to);
  for (to = objects; to->data; to++) assert_true(to < objects + OBJECTS - 1);
  fill(to, key, data, bytes);
  return true;
}

static void deliver(void) {
  if (network.held.data) put(network.held.key, network.held.data, network.held.bytes, network.only_new);
  drop(&network.held);
}

static const char *header(const iso_http_request *request, const char *name) {
  const size_t length = strlen(name);
  for (const char *const *line = request->headers; *line; line++)
    if (strncmp(*line, name, length) == 0 && (*line)[length] == ':') return *line + length + 2;
  return NULL;
}

/* %XX, as far as keys of this program have it. */
static void decode(const char *from, const char *end, char out[160]) {
  size_t n = 0;
  for (; *from && !strchr(end, *from) && n < 159; n++) {
    out[n] = *from++;
    if (out[n] != '%') continue;
    out[n] = (char)strtol((char[3]){from[0], from[1], 0}, NULL, 16);
    from += 2;
  }
  out[n] = 0;
}

static void refuse(iso_http_response *r, int status, const char *code) {
  r->status = status;
  iso_string_printf(&r->text, "<Error><Code>%s</Code><Message>m</Message></Error>", code);
}

static void answer_list(const char *url, iso_http_response *r) {
  char prefix[160];
  decode(strstr(url, "prefix=") + 7, "&", prefix);
  iso_string_printf(&r->text, "<ListBucketResult><IsTruncated>false</IsTruncated>");
  for (int i = 0; i < OBJECTS; i++)
    if (objects[i].data && strncmp(objects[i].key, prefix, strlen(prefix)) == 0)
      iso_string_printf(&r->text, "<Contents><Key>%s</Key><Size>%zu</Size><ETag>\"%08x\"</ETag></Contents>",
                        objects[i].key, objects[i].bytes, iso_crc32c(0, objects[i].data, objects[i].bytes));
  iso_string_printf(&r->text, "</ListBucketResult>");
}

static void answer_read(const iso_http_request *request, iso_http_response *r, const char *key) {
  const char *range = header(request, "range"), *match = header(request, "if-match");
  const object *o = find(key);
  if (!o) {
    refuse(r, 404, "NoSuchKey");
    return;
  }
  long first = 0, last = (long)o->bytes - 1;
  if (range) assert_int_equal(sscanf(range, "bytes=%ld-%ld", &first, &last), 2);
  snprintf(r->etag, sizeof r->etag, "\"%08x\"", iso_crc32c(0, o->data, o->bytes));
  if (match && strcmp(match, r->etag) != 0) {
    refuse(r, 412, "PreconditionFailed");
    return;
  }
  r->status = range ? 206 : 200;
  r->content_length = last - first + 1;
  if (request->method[0] == 'H') return;
  snprintf(r->content_range, sizeof r->content_range, "bytes %ld-%ld/%zu", first, last, o->bytes);
  if (request->body) {
    memcpy(request->body, o->data + first, (size_t)r->content_length);
    r->body_bytes = (size_t)r->content_length;
  } else {
    iso_string_append(&r->text, o->data + first, (size_t)r->content_length);
  }
}

static void answer(const iso_http_request *request, iso_http_response *r) {
  char key[160];
  const char *rest = strstr(request->url, "/bucket") + 7;
  decode(*rest == '/' ? rest + 1 : rest, "?", key);
  const bool late = network.held.data && !network.down && strcmp(key, network.held.key) == 0;
  r->status = 200;
  if (strcmp(request->method, "PUT") == 0) {
    if (late && network.first) deliver();
    if (!put(key, request->data, request->data_bytes, header(request, "if-none-match")))
      refuse(r, 412, "PreconditionFailed");
    if (late) deliver();
  } else if (request->method[0] == 'D') {
    drop(find(key));
    r->status = 204;
  } else if (strstr(request->url, "uploads=")) {
    iso_string_printf(&r->text, "<ListMultipartUploadsResult></ListMultipartUploadsResult>");
  } else if (strstr(request->url, "list-type=2")) {
    answer_list(request->url, r);
  } else if (request->method[0] == 'P') {
    refuse(r, 501, "NotImplemented"); /* deleting many at once: one by one then */
  } else {
    answer_read(request, r, key);
  }
}

static void serve(const iso_http_request *request, iso_http_response *r) {
  const bool now = network.calls++ == network.at, is_put = strcmp(request->method, "PUT") == 0;
  *r = (iso_http_response){.content_length = -1, .complete = true};
  if (now) network.down = true;
  if (now && network.how == LATE && is_put) {
    char key[160];
    decode(strstr(request->url, "/bucket/") + 8, "?", key);
    fill(&network.held, key, request->data, request->data_bytes);
    network.only_new = header(request, "if-none-match");
  }
  if (!network.down || network.how == LOST) answer(request, r);
  if (!network.down) return;
  iso_string_fini(&r->text);
  *r = (iso_http_response){.content_length = -1};
  snprintf(r->cause, sizeof r->cause, "the connection was reset");
}

/* ---- a run that is copied there ---- */

static void begin(place *p, bool first) {
  iso_target_lock_release(&p->lock);
  iso_target_close(&p->target);
  for (int i = 0; i < OBJECTS; i++) drop(&objects[i]);
  drop(&network.held);
  network.calls = 0;
  network.at = -1;
  network.down = false;
  p->shared.mirrored = 0;
  assert_int_equal(iso_target_open("s3://bucket/runs/a", &p->target), ISO_OK);
  if (first) own(p);
  iso_s3_patience_of_thread(0.002);
}

/* The network goes at request `at`, with the fifth step, and comes back with the ninth. false: there is no such one. */
static bool goes_at(place *p, bool first, int at, fate how) {
  iso_mirror_work *work;
  iso_status status;
  begin(p, first);
  network.at = at;
  network.how = how;
  p->shared.durable = 5;
  assert_int_equal(iso_mirror_work_create(p->f.run, p->uuid, 1, p->target, p->lock, &p->shared, &work), ISO_OK);
  for (int tries = 0; tries < 4; tries++) {
    status = iso_mirror_pass(work, tries > 0);
    const int calls = network.calls;
    network.at = -1; /* while it is looked at what is there */
    network.down = false;
    assert_true(p->shared.mirrored == 0 || restored_reach(p) >= p->shared.mirrored);
    network.calls = calls;
    network.at = at;
    p->shared.durable = STEPS;
    if (status == ISO_OK && tries > 0) break;
  }
  assert_int_equal(status, ISO_OK);
  assert_int_equal(p->shared.mirrored, STEPS);
  const bool over = network.calls <= at;
  network.at = -1;
  deliver(); /* for a name that was not written again */
  assert_int_equal(verify(p), ISO_OK);
  assert_int_equal(restored_reach(p), STEPS);
  iso_mirror_work_destroy(&work);
  return !over;
}

static void test_the_network_goes_at_any_request(void **state) {
  static const fate fates[] = {NO_ANSWER, LOST, LATE, LATE};
  place *p = *state;
  for (size_t i = 0; i < ISO_COUNT(fates); i++) {
    network.first = i == 3;
    for (int first = 0; first < 2; first++) {
      int at = 0;
      while (goes_at(p, first, at, fates[i])) at++;
      assert_true(at > 25);
    }
  }
}

/* What is still to be had of a segment whose objects are those of an older build: they overlap. */
static void test_overlapping_objects(void **state) {
  place *p = *state;
  iso_mirror_work *work;
  const char *key = "runs/a/log/0001-00000-000000.log/0000000000000000";
  begin(p, false);
  p->shared.durable = 2;
  for (int i = 0; i < 2; i++) {
    assert_int_equal(iso_mirror_work_create(p->f.run, p->uuid, 1, p->target, p->lock, &p->shared, &work), ISO_OK);
    assert_int_equal(iso_mirror_pass(work, true), ISO_OK);
    iso_mirror_work_destroy(&work);
    p->shared.durable = STEPS;
  }
  object *two = find(key);
  assert_non_null(two);
  char path[300], *data;
  size_t bytes;
  snprintf(path, sizeof path, "%s/log/0001-00000-000000.log", p->f.run);
  assert_int_equal(iso_file_read(path, &data, &bytes), ISO_OK);
  assert_true(put(key, data, two->bytes + 20480, false)); /* a third step, which the next object holds too */
  free(data);
  assert_int_equal(verify(p), ISO_OK);
  assert_int_equal(restored_reach(p), STEPS);
}

static int setup_s3(void **state) {
  place *p = place_make(THREE_STEPS);
  fixture_write(&p->f, STEPS);
  iso_http_perform = serve;
  iso_s3_patience_now = (iso_s3_patience){5, 1, 0.0005, 0.002};
  setenv("AWS_ACCESS_KEY_ID", "A", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
  setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1", 1);
  *state = p;
  return 0;
}

static int teardown_s3(void **state) {
  place_destroy(*state);
  for (int i = 0; i < OBJECTS; i++) drop(&objects[i]);
  drop(&network.held);
  return 0;
}

/* No power is cut here. */
static int sync_nothing(int fd) {
  (void)fd;
  return 0;
}

static int setup_group(void **state) {
  iso_os.fsync = iso_os.fdatasync = sync_nothing;
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_the_network_goes_at_any_request, setup_s3, teardown_s3),
      cmocka_unit_test_setup_teardown(test_overlapping_objects, setup_s3, teardown_s3),
  };
  return cmocka_run_group_tests(tests, setup_group, NULL);
}
