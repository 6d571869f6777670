/* SPDX-License-Identifier: Apache-2.0
 *
 * The transport against a server of the test's own on the loopback interface: a thread that sends, per connection, the
 * bytes the test gives and ends as the test says.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "io/io.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef enum ending { KEEP, CLOSE, RESET, HOLD } ending;

static int listener;
static char url[64];
static const char *the_answer;
static ending ends;
static int connections, requests;
static char request_text[4096]; /* of the last request */
static pthread_t server;

static void serve_one(int fd) {
  char text[4096];
  size_t used = 0;
  for (;;) {
    ssize_t got = recv(fd, text + used, sizeof text - 1 - used, 0);
    if (got <= 0) break;
    used += (size_t)got;
    text[used] = '\0';
    if (!strstr(text, "\r\n\r\n")) continue;
    memcpy(request_text, text, used + 1);
    used = 0;
    requests++;
    for (size_t sent = 0, bytes = strlen(the_answer); sent < bytes;) {
      ssize_t put = send(fd, the_answer + sent, bytes - sent, MSG_NOSIGNAL);
      if (put <= 0) break;
      sent += (size_t)put;
    }
    if (ends == KEEP) continue;
    if (ends == HOLD) (void)!recv(fd, text, 1, 0); /* until the other side has had enough */
    if (ends == RESET) setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    break;
  }
  close(fd);
}

static void *serve(void *unused) {
  for (int fd; (fd = accept(listener, NULL, NULL)) >= 0;) {
    connections++;
    serve_one(fd);
  }
  return NULL;
}

static void server_begin(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  listener = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(listener, (struct sockaddr *)&address, length), 0);
  assert_int_equal(listen(listener, 8), 0);
  getsockname(listener, (struct sockaddr *)&address, &length);
  snprintf(url, sizeof url, "http://127.0.0.1:%d/b/../k%%20?x=1", ntohs(address.sin_port));
  connections = requests = 0;
  assert_int_equal(pthread_create(&server, NULL, serve, NULL), 0);
}

static void server_end(void) {
  shutdown(listener, SHUT_RDWR);
  pthread_join(server, NULL);
  close(listener);
}

static int setup(void **state) {
  iso_log_quiet(true);
  return setenv("no_proxy", "127.0.0.1", 1);
}

static char body[16];

/* In a thread of its own, whose end closes its connections. */
typedef struct call {
  const char *method;
  bool own_body;
  int times;
  iso_http_response response;
} call;

static void *call_run(void *argument) {
  call *c = argument;
  const char *headers[] = {"Host: the.host", "Range: bytes=0-9", NULL};
  for (int i = 0; i < c->times; i++) {
    if (i) iso_http_response_fini(&c->response);
    iso_http_request request = {.method = c->method,
                                .url = url,
                                .headers = headers,
                                .body = c->own_body ? body : NULL,
                                .body_bytes = 10,
                                .stall_s = 1,
                                .limit_s = 30};
    memset(body, 0, sizeof body);
    iso_http_perform(&request, &c->response);
  }
  return NULL;
}

static iso_http_response perform(const char *method, bool own_body, int times, const char *answer, ending end) {
  call c = {method, own_body, times, {0}};
  pthread_t thread;
  the_answer = answer;
  ends = end;
  server_begin();
  pthread_create(&thread, NULL, call_run, &c);
  pthread_join(thread, NULL);
  server_end();
  return c.response;
}

static const char whole[] = "HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nETag: \"e\"\r\n"
                            "Content-Range: bytes 0-9/20\r\n\r\n0123456789";

static void test_body(void **state) {
  iso_http_response r = perform("GET", true, 3, whole, KEEP);
  assert_true(r.complete);
  assert_int_equal(r.status, 206);
  assert_int_equal(r.body_bytes, 10);
  assert_memory_equal(body, "0123456789", 10);
  assert_string_equal(r.etag, "\"e\"");
  assert_string_equal(r.content_range, "bytes 0-9/20");
  assert_int_equal(connections, 1); /* used again */
  assert_int_equal(requests, 3);
  assert_memory_equal(request_text, "GET /b/../k%20?x=1 HTTP/1.1\r\n", 29);
  assert_non_null(strstr(request_text, "\r\nHost: the.host\r\n"));
  assert_null(strstr(request_text, "Accept-Encoding"));
  iso_http_response_fini(&r);
}

static void test_head_and_text(void **state) {
  iso_http_response r = perform("HEAD", false, 1, "HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n", KEEP);
  assert_true(r.complete);
  assert_int_equal(r.content_length, 12345);
  assert_memory_equal(request_text, "HEAD ", 5);
  r = perform("GET", true, 1, "HTTP/1.1 503 Slow Down\r\nRetry-After: 7\r\nContent-Length: 5\r\n\r\nsorry", KEEP);
  assert_true(r.complete);
  assert_int_equal(r.status, 503);
  assert_int_equal(r.body_bytes, 0);
  assert_string_equal(r.text.data, "sorry");
  assert_true(r.retry_after_s == 7);
  iso_http_response_fini(&r);
  r = perform("GET", false, 1, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
              KEEP);
  assert_true(r.complete);
  assert_string_equal(r.text.data, "abc");
  iso_http_response_fini(&r);
}

static void test_cut(void **state) {
  static const char half[] = "HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\n\r\n01234";
  for (ending end = CLOSE; end <= HOLD; end++) {
    iso_http_response r = perform("GET", true, 1, half, end);
    assert_false(r.complete);
    assert_false(r.hopeless);
    assert_true(r.cause[0]);
    if (end != RESET) { /* a reset may overtake what was sent */
      assert_int_equal(r.body_bytes, 5);
      assert_memory_equal(body, "01234", 5);
    }
  }
  iso_http_response r = perform("GET", false, 1, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", CLOSE);
  assert_false(r.complete);
  iso_http_response_fini(&r);
  r = perform("GET", true, 1, "HTTP/1.1 206 Partial", CLOSE);
  assert_false(r.complete && r.status == 206);
  iso_http_response_fini(&r);
  r = perform("GET", true, 1, "", CLOSE);
  assert_false(r.complete);
  assert_int_equal(r.status, 0);
}

static void test_too_long(void **state) {
  iso_http_response r =
      perform("GET", true, 1, "HTTP/1.1 206 Partial Content\r\nContent-Length: 11\r\n\r\n0123456789x", KEEP);
  assert_false(r.complete);
  assert_true(r.too_long && r.hopeless);
  assert_int_equal(body[10], 0);
}

static void test_redirection(void **state) {
  iso_http_response r =
      perform("GET", true, 1, "HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", KEEP);
  assert_true(r.complete);
  assert_int_equal(r.status, 301);
  assert_int_equal(requests, 1);
}

static void *stop_soon(void *unused) {
  usleep(50000);
  iso_http_stop(true);
  return NULL;
}

static void test_stop(void **state) {
  pthread_t thread;
  pthread_create(&thread, NULL, stop_soon, NULL);
  double began = iso_clock_s();
  iso_http_response r = perform("GET", true, 1, "", HOLD);
  pthread_join(thread, NULL);
  iso_http_stop(false);
  assert_true(r.stopped);
  assert_false(r.complete);
  assert_true(iso_clock_s() - began < 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_body),     cmocka_unit_test(test_head_and_text), cmocka_unit_test(test_cut),
      cmocka_unit_test(test_too_long), cmocka_unit_test(test_redirection),   cmocka_unit_test(test_stop),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
