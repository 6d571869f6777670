/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP server: what it answers, to whom, and that nothing that a client sends or leaves out stops it.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "train/vitals/vitals.h"

static iso_server *server;
static char url[256];
static int port;

static bool answer(void *context, const char *path, const char **type, iso_string *body) {
  static char large[1 << 20];
  (void)context;
  if (strcmp(path, "/large") == 0) {
    for (int i = 0; i < 8; i++) iso_string_append(body, large, sizeof large);
    return true;
  }
  if (strcmp(path, "/here") != 0) return false;
  *type = "text/plain";
  iso_string_printf(body, "found");
  return true;
}

static void open_at(const char *address) {
  assert_int_equal(iso_server_open(address, "test", answer, NULL, &server), ISO_OK);
  iso_server_url(server, "/here", url);
  port = atoi(strrchr(url, ':') + 1);
  assert_true(port > 0);
}

static int close_server(void **state) {
  (void)state;
  iso_server_close(&server);
  return 0;
}

static int connected(void) {
  const struct sockaddr_in to = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  const struct timeval limit = {.tv_sec = 60};
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  if (connect(fd, (const struct sockaddr *)&to, sizeof to) != 0) fail_msg("cannot connect to port %d", port);
  return fd;
}

/* All that comes back until the connection ends. */
static const char *ask(const char *request) {
  static char back[8192];
  size_t length = 0;
  const int fd = connected();
  assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
  for (ssize_t got; length < sizeof back - 1 && (got = recv(fd, back + length, sizeof back - 1 - length, 0)) > 0;)
    length += (size_t)got;
  back[length] = 0;
  close(fd);
  return back;
}

static const char *get(const char *path, const char *fields) {
  static char request[1024];
  snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nConnection: close\r\n%s\r\n", path, fields);
  return ask(request);
}

static void said(const char *back, const char *code) {
  if (strncmp(back, "HTTP/1.1 ", 9) != 0 || strncmp(back + 9, code, 3) != 0) fail_msg("wanted %s: %.300s", code, back);
}

static void on_loopback(void **state) {
  (void)state;
  open_at("127.0.0.1:0");
  const char *back = get("/here", "Host: localhost\r\n");
  said(back, "200");
  assert_non_null(strstr(back, "\r\n\r\nfound"));
  assert_non_null(strstr(back, "default-src 'none'"));
  assert_null(strstr(back, "Set-Cookie"));
  said(get("/here", "Host: 127.0.0.1:80\r\n"), "200");
  said(get("/here", "Host: [::1]\r\n"), "200");
  said(get("/here", "Host: evil.example\r\n"), "403"); /* a name of another site that points here */
  said(get("/elsewhere", "Host: localhost\r\n"), "404");
  said(get("/../../etc/passwd", "Host: localhost\r\n"), "404");
  said(ask("POST /here HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"), "405");
  back = ask("HEAD /here HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  said(back, "200");
  assert_null(strstr(back, "found"));
}

static void elsewhere_a_token_is_asked_for(void **state) {
  (void)state;
  char fields[256], path[128];
  open_at("0.0.0.0:0");
  const char *token = strstr(url, "?token=");
  assert_non_null(token);
  token += 7;
  assert_int_equal(strlen(token), 32);
  said(get("/here", "Host: any.example\r\n"), "401");
  said(get("/here?token=", "Host: x\r\n"), "401");
  said(get("/here?token=00000000000000000000000000000000", "Host: x\r\n"), "401");
  snprintf(path, sizeof path, "/here?token=%.31s", token);
  said(get(path, "Host: x\r\n"), "401");
  snprintf(path, sizeof path, "/here?token=%s0", token);
  said(get(path, "Host: x\r\n"), "401");
  snprintf(path, sizeof path, "/here?token=%s", token);
  const char *back = get(path, "Host: any.example\r\n");
  said(back, "200");
  assert_non_null(strstr(back, "SameSite=Strict"));
  snprintf(fields, sizeof fields, "Host: x\r\nAuthorization: Bearer %s\r\n", token);
  said(get("/here", fields), "200");
  snprintf(fields, sizeof fields, "Host: x\r\nCookie: isotach_token=%s\r\n", token);
  said(get("/here", fields), "200");
}

/* Garbage, halves, a header without end, and more connections than there are: it answers afterwards. */
static void bad_clients(void **state) {
  (void)state;
  static const char *const requests[] = {"\r\n\r\n",
                                         "GET\r\n\r\n",
                                         "GET /here HTTP/9.9\r\n\r\n",
                                         "\x16\x03\x01\x02\r\n\r\n",
                                         "GET /%zz%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                                         "GET / HTTP/1.1\r\nHost\r\nConnection: close\r\n\r\n"};
  open_at("127.0.0.1:0");
  for (size_t i = 0; i < ISO_COUNT(requests); i++) {
    const int fd = connected();
    (void)!send(fd, requests[i], strlen(requests[i]), MSG_NOSIGNAL);
    close(fd);
  }
  char *large = malloc(200000);
  memset(large, 'a', 199999);
  memcpy(large, "GET /", 5);
  large[199999] = 0;
  int fd = connected();
  (void)!send(fd, large, 199999, MSG_NOSIGNAL);
  close(fd);
  free(large);
  int idle[64];
  for (size_t i = 0; i < ISO_COUNT(idle); i++) {
    idle[i] = connected();
    (void)!send(idle[i], "GET /he", 7, MSG_NOSIGNAL);
  }
  for (size_t i = 0; i < ISO_COUNT(idle); i++) close(idle[i]);
  const char *back = "";
  for (int tries = 0; tries < 1000 && !back[0]; tries++) { /* until it has seen that they are gone */
    back = get("/here", "Host: localhost\r\n");
    if (!back[0]) usleep(10000);
  }
  said(back, "200");
}

/* 23 clients, as many as one address may have and one less, ask for 8 MB each and take nothing: what is held for them
 * is bounded, and once they are gone others get theirs. */
static void answers_that_nobody_takes_are_bounded(void **state) {
  (void)state;
  static const char request[] = "GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n";
  open_at("127.0.0.1:0");
  int waiting[23], refused = 0, given = 0;
  for (size_t i = 0; i < ISO_COUNT(waiting); i++) {
    char first[13] = "";
    waiting[i] = connected();
    assert_int_equal(send(waiting[i], request, sizeof request - 1, MSG_NOSIGNAL), sizeof request - 1);
    assert_int_equal(recv(waiting[i], first, 12, MSG_WAITALL), 12);
    refused += strcmp(first, "HTTP/1.1 503") == 0;
    given += strcmp(first, "HTTP/1.1 200") == 0;
  }
  assert_int_equal(refused + given, (int)ISO_COUNT(waiting));
  assert_in_range(given, 4, 6); /* above 32 MB nobody else is given any */
  for (size_t i = 0; i < ISO_COUNT(waiting); i++) close(waiting[i]);
  const char *back = "";
  for (int tries = 0; tries < 1000 && strncmp(back, "HTTP/1.1 200", 12) != 0; tries++) {
    back = get("/here", "Host: localhost\r\n");
    usleep(10000);
  }
  said(back, "200");
}

/* A method that is none of ours is refused before what comes behind it is read. */
static void a_body_is_not_waited_for(void **state) {
  (void)state;
  open_at("127.0.0.1:0");
  static const char *const methods[] = {"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"};
  for (size_t i = 0; i < ISO_COUNT(methods); i++) {
    char request[128];
    snprintf(request, sizeof request, "%s /here HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
             methods[i]);
    said(ask(request), "405");
  }
}

static void an_address_in_use_is_said(void **state) {
  (void)state;
  char address[32];
  iso_server *second;
  iso_log_quiet(true);
  open_at("127.0.0.1:0");
  snprintf(address, sizeof address, "127.0.0.1:%d", port);
  assert_int_equal(iso_server_open(address, "x", answer, NULL, &second), ISO_ERR_BUSY);
  assert_null(second);
  assert_non_null(strstr(iso_last_error(), "Address already in use"));
}

static void addresses(void **state) {
  (void)state;
  static const char *const bad[] = {"",           "8080",         ":8080",           "127.0.0.1",
                                    "127.0.0.1:", "127.0.0.1:x",  "127.0.0.1:70000", "::1:8080",
                                    "[]:80",      "127.0.0.1:-1", "127.0.0.1:80 "};
  char host[64], number[8];
  iso_log_quiet(true);
  for (size_t i = 0; i < ISO_COUNT(bad); i++)
    if (iso_address_split(bad[i], "x", host, number) != ISO_ERR_CONFIG) fail_msg("\"%s\" is taken", bad[i]);
  assert_int_equal(iso_address_split("[::1]:8080", "x", host, number), ISO_OK);
  assert_string_equal(host, "::1");
  assert_int_equal(iso_address_split("localhost:0", "x", host, number), ISO_OK);
  assert_string_equal(host, "localhost");
  assert_string_equal(number, "0");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(on_loopback, close_server),
      cmocka_unit_test_teardown(elsewhere_a_token_is_asked_for, close_server),
      cmocka_unit_test_teardown(bad_clients, close_server),
      cmocka_unit_test_teardown(answers_that_nobody_takes_are_bounded, close_server),
      cmocka_unit_test_teardown(a_body_is_not_waited_for, close_server),
      cmocka_unit_test_teardown(an_address_in_use_is_said, close_server),
      cmocka_unit_test(addresses),
  };
  return cmocka_run_group_tests_name("server", tests, NULL, NULL);
}
