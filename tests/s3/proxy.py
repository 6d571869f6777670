#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""proxy.py: an HTTP proxy before one server that is slow and goes wrong as told.

Each request draws, from a seed and its number, whether and how it goes wrong:
  503       an answer of its own: SlowDown
  500       an answer of its own: InternalError
  refuse    a reset before any answer
  reset     a reset in the middle of the body
  truncate  an ordinary end in the middle of the body
  stall     half of the body, then nothing for --stall-s seconds, then an end
And if told so, for writes (other requests are left alone):
  lost      the request is done, and then a reset instead of its answer
  damage    a bit of the body flips on its way; with a checksum S3 refuses it (BadDigest), without one it is stored
  409, 412  an answer of its own to a conditional write: ConditionalRequestConflict, PreconditionFailed
GET /.proxy/stats answers with what was done so far, as JSON. POST /.proxy/set with a JSON object changes options.
"""
import argparse
import http.client
import json
import random
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KINDS = ["503", "500", "refuse", "reset", "truncate", "stall"]
WRITE_KINDS = ["lost", "damage", "409", "412"]
lock = threading.Lock()
stats = {"requests": 0, **{kind: 0 for kind in KINDS + WRITE_KINDS}}
options = None


def concerns(kind, method, headers):
    """Whether a kind of fault can happen to such a request."""
    if kind not in WRITE_KINDS:
        return True
    if kind in ("409", "412"):
        return headers.get("If-None-Match") is not None
    return method in ("PUT", "POST", "DELETE") if kind == "lost" else method == "PUT"


def draw(method, headers):
    """The fate of the next request: a kind, or None."""
    with lock:
        number = stats["requests"]
        stats["requests"] += 1
        dice = random.Random(f"{options.seed}/{number}")
        kinds = [kind for kind in options.kinds if concerns(kind, method, headers)]
        kind = dice.choice(kinds) if kinds and dice.random() < options.errors else None
        if kind:
            stats[kind] += 1
        return kind, dice.uniform(1 - options.jitter, 1 + options.jitter) * options.latency_ms / 1000


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120
    upstream = None

    def log_message(self, *args):
        pass

    def setup(self):
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().setup()

    def reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.wfile = open("/dev/null", "wb")
        self.connection.close()

    def own(self, status, body, kind="application/xml"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def control(self, body):
        if self.command == "POST":
            with lock:
                for name, value in json.loads(body).items():
                    setattr(options, name, value)
        with lock:
            self.own(200, json.dumps(stats).encode(), "application/json")

    def forward(self, body):
        for fresh in (False, True):  # a kept connection may have been closed meanwhile
            if self.upstream is None or fresh:
                self.upstream = http.client.HTTPConnection(options.to, timeout=60)
            try:
                self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in ("connection", "keep-alive"):
                        self.upstream.putheader(name, value)
                self.upstream.endheaders(body or None)
                answer = self.upstream.getresponse()
                return answer, answer.read()
            except (http.client.HTTPException, OSError):
                self.upstream.close()
                if fresh:
                    raise

    def send_body(self, body):
        if not options.bytes_per_s:
            self.wfile.write(body)
            return
        step = max(1, int(options.bytes_per_s / 50))
        for at in range(0, len(body), step):
            self.wfile.write(body[at : at + step])
            time.sleep(min(step, len(body) - at) / options.bytes_per_s)

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.startswith("/.proxy/"):
            return self.control(body)
        kind, wait = draw(self.command, self.headers)
        time.sleep(wait)
        if kind == "damage" and body:
            if self.headers.get("x-amz-checksum-crc32c"):
                return self.own(400, b"<Error><Code>BadDigest</Code><Message>as told</Message></Error>")
            body = bytes([body[0] ^ 1]) + body[1:]
        if kind in ("503", "500", "409", "412"):
            code = {"503": "SlowDown", "500": "InternalError", "409": "ConditionalRequestConflict"}
            code = code.get(kind, "PreconditionFailed")
            return self.own(int(kind), f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode())
        if kind == "refuse":
            return self.reset()
        answer, data = self.forward(body)
        if kind == "lost":
            return self.reset()
        if kind == "damage":
            kind = None
        self.send_response_only(answer.status, answer.reason)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "connection", "transfer-encoding", "keep-alive"):
                self.send_header(name, value)
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command == "HEAD":
            if kind:
                self.close_connection = True
            return
        self.send_body(data[: len(data) // 2] if kind else data)
        self.wfile.flush()
        if kind == "stall":
            time.sleep(options.stall_s)
        if kind == "reset":
            return self.reset()
        if kind:
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

    def handle(self):
        try:
            super().handle()
        except (ConnectionError, TimeoutError, ValueError):
            pass
        finally:
            if self.upstream:
                self.upstream.close()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", required=True, help="HOST:PORT of the server")
    parser.add_argument("--port", type=int, default=0, help="0: any")
    parser.add_argument("--port-file", help="where to write the port once it listens")
    parser.add_argument("--errors", type=float, default=0, help="share of requests that go wrong")
    parser.add_argument("--kinds", default=KINDS, type=lambda text: text.split(","))
    parser.add_argument("--latency-ms", type=float, default=0)
    parser.add_argument("--jitter", type=float, default=0, help="latency varies by this share")
    parser.add_argument("--bytes-per-s", type=float, default=0, help="of a connection; 0: no limit")
    parser.add_argument("--stall-s", type=float, default=20)
    parser.add_argument("--seed", default="0")
    options = parser.parse_args()
    if not set(options.kinds) <= set(KINDS + WRITE_KINDS):
        parser.error(f"kinds are {' '.join(KINDS + WRITE_KINDS)}")
    server = Server(("127.0.0.1", options.port), Handler)
    if options.port_file:
        with open(options.port_file, "w", encoding="ascii") as file:
            file.write(f"{server.server_address[1]}\n")
    server.serve_forever()


if __name__ == "__main__":
    main()
