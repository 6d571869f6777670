/* SPDX-License-Identifier: Apache-2.0
 *
 * A small HTTP server (libmicrohttpd) on a thread of its own, which runs where a core is idle and never before the
 * compute team.
 *
 * Invariants
 *  1. Only GET and HEAD; what is asked for is a path, never a file.
 *  2. On a loopback address a request must name its host by number or as localhost, so that no page of another site can
 *     read through a name that points here. On any other address each request must carry the token.
 *  3. Connections, their memory, their silence and the answers that they do not take are bounded; no one address
 *     can take all places; nothing that a client does stops the run.
 */
#include "train/vitals/vitals.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

enum { CONNECTIONS = 32, OF_ONE_ADDRESS = 24, SILENT_S = 15, CONNECTION_BYTES = 32 * 1024 };
enum { HELD_BYTES = 32 << 20 }; /* of answers that clients have not taken yet, beside one */

struct iso_server {
  int listen_fd;
  bool loopback;
  char token[33];
  struct MHD_Daemon *daemon;
  iso_server_answer *answer;
  void *context;
  size_t held; /* bytes of answers that are on their way; of the server's thread */
  char url[160];
};

/* ---- one request ---- */

static bool host_is_here(const char *host) {
  char name[64];
  unsigned char address[16];
  if (!host) return true; /* HTTP/1.0 */
  const bool bracket = host[0] == '[';
  const size_t length = bracket ? strcspn(host + 1, "]") : strcspn(host, ":");
  if (length >= sizeof name) return false;
  memcpy(name, host + bracket, length);
  name[length] = 0;
  const char *behind = host + length + (bracket ? 2 : 0); /* nothing but a port */
  if (bracket && host[1 + length] != ']') return false;
  if (*behind && (*behind != ':' || behind[1 + strspn(behind + 1, "0123456789")])) return false;
  return strcmp(name, "localhost") == 0 || inet_pton(AF_INET, name, address) == 1 ||
         inet_pton(AF_INET6, name, address) == 1;
}

/* Takes as long for any wrong one. */
static bool token_is(const iso_server *server, const char *given, size_t length) {
  unsigned difference = length != strlen(server->token);
  for (size_t i = 0; i < length && i < sizeof server->token; i++) difference |= (unsigned)(given[i] ^ server->token[i]);
  return difference == 0;
}

static bool may_ask(const iso_server *server, struct MHD_Connection *connection) {
  static const char bearer[] = "Bearer ", cookie_name[] = "isotach_token";
  if (server->loopback) return host_is_here(MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Host"));
  const char *header = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Authorization"), *argument = NULL;
  size_t length = 0; /* an argument may hold any bytes, a zero too */
  const char *cookie = MHD_lookup_connection_value(connection, MHD_COOKIE_KIND, cookie_name);
  if (header && strncasecmp(header, bearer, sizeof bearer - 1) == 0)
    return token_is(server, header + sizeof bearer - 1, strlen(header + sizeof bearer - 1));
  if (MHD_lookup_connection_value_n(connection, MHD_GET_ARGUMENT_KIND, "token", strlen("token"), &argument, &length) ==
          MHD_YES &&
      argument)
    return token_is(server, argument, length);
  return cookie && token_is(server, cookie, strlen(cookie));
}

static const char *const headers[][2] = {
    {"Cache-Control", "no-store"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src "
     "data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
};

/* An answer that is on its way: once it is gone, or its client is. */
typedef struct answer_held {
  iso_server *server;
  iso_string body;
} answer_held;

static void let_go(void *context) {
  answer_held *held = context;
  held->server->held -= held->body.length;
  iso_string_fini(&held->body);
  free(held);
}

static enum MHD_Result queue(const iso_server *server, struct MHD_Connection *connection, unsigned code,
                             const char *type, struct MHD_Response *response) {
  if (!response) return MHD_NO;
  (void)MHD_add_response_header(response, "Content-Type", type);
  for (size_t i = 0; i < ISO_COUNT(headers); i++) (void)MHD_add_response_header(response, headers[i][0], headers[i][1]);
  if (code == MHD_HTTP_METHOD_NOT_ALLOWED) (void)MHD_add_response_header(response, "Allow", "GET, HEAD");
  if (code == MHD_HTTP_SERVICE_UNAVAILABLE) (void)MHD_add_response_header(response, "Retry-After", "1");
  if (code == MHD_HTTP_OK && !server->loopback) { /* what the page asks for then needs no token in its address */
    char cookie[96];
    snprintf(cookie, sizeof cookie, "isotach_token=%s; HttpOnly; SameSite=Strict; Path=/", server->token);
    (void)MHD_add_response_header(response, "Set-Cookie", cookie);
  }
  const enum MHD_Result queued = MHD_queue_response(connection, code, response);
  MHD_destroy_response(response);
  return queued;
}

static enum MHD_Result say(const iso_server *server, struct MHD_Connection *connection, unsigned code,
                           const char *text) {
  return queue(server, connection, code, "text/plain; charset=utf-8",
               MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT));
}

/* Takes the body. */
static enum MHD_Result give(iso_server *server, struct MHD_Connection *connection, const char *type, iso_string *body) {
  answer_held *held = malloc(sizeof *held);
  if (!held) {
    iso_string_fini(body);
    return MHD_NO;
  }
  *held = (answer_held){server, *body};
  server->held += body->length;
  struct MHD_Response *response =
      MHD_create_response_from_buffer_with_free_callback_cls(body->length, body->data, let_go, held);
  if (!response) let_go(held);
  return queue(server, connection, MHD_HTTP_OK, type, response);
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *upload, size_t *upload_bytes,
                                  void **state) {
  static int seen;
  iso_server *server = context;
  (void)version;
  (void)upload;
  if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) /* what would come behind it is not waited for */
    return say(server, connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
  if (!*state) { /* the headers; what a client sends behind them is not read */
    *state = &seen;
    return MHD_YES;
  }
  if (*upload_bytes) {
    *upload_bytes = 0;
    return MHD_YES;
  }
  if (!may_ask(server, connection))
    return server->loopback ? say(server, connection, MHD_HTTP_FORBIDDEN, "the Host is not this machine\n")
                            : say(server, connection, MHD_HTTP_UNAUTHORIZED,
                                  "the token is missing or wrong; the run has printed the address with it\n");
  if (server->held > HELD_BYTES)
    return say(server, connection, MHD_HTTP_SERVICE_UNAVAILABLE, "other clients do not take their answers\n");
  iso_string body = {0};
  const char *type = "text/plain; charset=utf-8";
  if (server->answer(server->context, path, &type, &body) && !iso_string_failed(&body))
    return give(server, connection, type, &body);
  const bool failed = iso_string_failed(&body);
  iso_string_fini(&body);
  return failed ? say(server, connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "no memory\n")
                : say(server, connection, MHD_HTTP_NOT_FOUND, "there is nothing of that name\n");
}

/* ---- the server ---- */

/* By the server's thread, which does nothing before the first connection. */
static void on_connection(void *context, struct MHD_Connection *connection, void **state,
                          enum MHD_ConnectionNotificationCode code) {
  static _Thread_local bool settled;
  (void)context;
  (void)connection;
  (void)state;
  (void)code;
  if (!settled) iso_data_thread_settle();
  settled = true;
}

/* A socket that listens; -1 and errno. Fills loopback and url. */
static int listen_at(iso_server *server, const struct addrinfo *at) {
  char host[64] = "", port[8] = "";
  struct sockaddr_storage bound;
  socklen_t bytes = sizeof bound;
  const int on = 1, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, at->ai_addr, at->ai_addrlen) != 0 || listen(fd, CONNECTIONS) != 0 ||
      getsockname(fd, (struct sockaddr *)&bound, &bytes) != 0) {
    const int error = errno;
    (void)close(fd);
    errno = error;
    return -1;
  }
  (void)getnameinfo((struct sockaddr *)&bound, bytes, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
  server->loopback = strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
  snprintf(server->url, sizeof server->url, strchr(host, ':') ? "http://[%s]:%s" : "http://%s:%s", host, port);
  return fd;
}

iso_status iso_address_split(const char *text, const char *where, char host[64], char port[8]) {
  const char *colon = strrchr(text, ':');
  const bool bracket = text[0] == '[' && colon && colon > text + 1 && colon[-1] == ']';
  const size_t length = colon ? (size_t)(colon - text) - (bracket ? 2 : 0) : 0;
  char *end = NULL;
  const long number = colon && colon[1] >= '0' && colon[1] <= '9' ? strtol(colon + 1, &end, 10) : -1;
  if (!colon || length == 0 || length > 63 || number < 0 || number > 65535 || *end ||
      (!bracket && memchr(text, ':', (size_t)(colon - text))))
    return iso_fail(ISO_ERR_CONFIG, "%s: \"%s\" is no address; write one as 127.0.0.1:8080 or [::1]:8080", where, text);
  memcpy(host, text + bracket, length);
  host[length] = 0;
  snprintf(port, 8, "%ld", number);
  return ISO_OK;
}

static iso_status open_socket(iso_server *server, const char *address, const char *where) {
  const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
  struct addrinfo *found = NULL;
  char host[64], port[8];
  ISO_TRY(iso_address_split(address, where, host, port));
  const int error = getaddrinfo(host, port, &hints, &found);
  if (error) return iso_fail(ISO_ERR_CONFIG, "%s: cannot find the address %s: %s", where, address, gai_strerror(error));
  server->listen_fd = listen_at(server, found);
  const int cause = errno;
  freeaddrinfo(found);
  if (server->listen_fd >= 0) return ISO_OK;
  return iso_fail(cause == EADDRINUSE ? ISO_ERR_BUSY : ISO_ERR_IO,
                  "%s: cannot listen at %s: %s; choose another address", where, address, strerror(cause));
}

static iso_status start(iso_server *server, const char *where) {
  unsigned char bits[16];
  if (getrandom(bits, sizeof bits, 0) != sizeof bits) return iso_os_fail("make a token for", where);
  for (size_t i = 0; i < sizeof bits; i++) snprintf(server->token + 2 * i, 3, "%02x", bits[i]);
  sigset_t all, before;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the loop's: the server's thread inherits this */
  /* With poll, not epoll, of which 0.9.75 loses the end of a connection that comes along with half a request. */
  server->daemon = MHD_start_daemon(
      MHD_USE_POLL | MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, on_request, server, MHD_OPTION_LISTEN_SOCKET,
      server->listen_fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
      (unsigned)OF_ONE_ADDRESS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SILENT_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      (size_t)CONNECTION_BYTES, MHD_OPTION_NOTIFY_CONNECTION, on_connection, NULL, MHD_OPTION_END);
  (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (!server->daemon) return iso_fail(ISO_ERR_IO, "%s: the HTTP server does not start", where);
  server->listen_fd = -1; /* the daemon's now */
  return ISO_OK;
}

iso_status iso_server_listen(const char *address, const char *where, iso_server **out) {
  iso_server *server = calloc(1, sizeof *server);
  *out = server;
  if (!server) return iso_fail(ISO_ERR_MEMORY, "%s: no memory for the HTTP server", where);
  server->listen_fd = -1;
  const iso_status status = open_socket(server, address, where);
  if (status != ISO_OK) iso_server_close(out);
  return status;
}

iso_status iso_server_start(iso_server *server, const char *where, iso_server_answer *answer, void *context) {
  server->answer = answer, server->context = context;
  return start(server, where);
}

iso_status iso_server_open(const char *address, const char *where, iso_server_answer *answer, void *context,
                           iso_server **out) {
  ISO_TRY(iso_server_listen(address, where, out));
  const iso_status status = iso_server_start(*out, where, answer, context);
  if (status != ISO_OK) iso_server_close(out);
  return status;
}

void iso_server_close(iso_server **out) {
  iso_server *server = *out;
  if (!server) return;
  if (server->daemon) MHD_stop_daemon(server->daemon);
  if (server->listen_fd >= 0) (void)close(server->listen_fd);
  free(server);
  *out = NULL;
}

void iso_server_url(const iso_server *server, const char *path, char url[256]) {
  if (server->loopback)
    snprintf(url, 256, "%s%s", server->url, path);
  else
    snprintf(url, 256, "%s%s?token=%s", server->url, path, server->token);
}
