# SPDX-License-Identifier: Apache-2.0
#
# Clients of the dashboard that mean no good: lines without end, methods that are none, paths out of it, answers that
# nobody takes, connections by the hundred. The run goes on beneath all of it, its memory stays bounded, it answers
# afterwards, and its bits are those of a run that nobody asked anything.
. "$ISO_ROOT/tests/cli/common.sh"

command -v python3 >/dev/null 2>&1 || { echo "skipped: there is no python3"; exit 77; }
slow="$tiny steps=1000000 batch.sequences=256" # not many steps pass meanwhile, which are then taken again
# shellcheck disable=SC2086
timeout -k 5 140 "$ISOTACH" train $slow run=live vitals.dashboard=127.0.0.1:0 >live.out 2>live.err &
pid=$!
until [ -s live/metrics.jsonl ] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
url=$(sed -n 's/^# dashboard: //p' live.out)
[ -n "$url" ] || { fail "no address: $(cat live.err)"; finish; }
owner=$(cut -d" " -f2 live/lock)
cat >attack.py <<'PYTHON'
import resource
import select
import socket
import sys
import time

port, owner = int(sys.argv[1]), sys.argv[2]
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
failures = []


def check(good, text):
    if not good:
        failures.append(text)


def connect(of="127.0.0.1"):
    one = socket.create_connection(("127.0.0.1", port), 60, (of, 0))
    one.settimeout(20)
    return one


def send(one, data):
    try:
        one.sendall(data)
    except OSError:  # it was refused before all of it was sent
        pass


def ask(data, of="127.0.0.1"):
    with connect(of) as one:
        send(one, data)
        back = b""
        try:
            while len(back) < 1 << 24:
                got = one.recv(1 << 16)
                if not got:
                    break
                back += got
        except OSError:
            pass
        return back


def get(path, wanted, extra=b""):
    back = b""
    for _ in range(600):  # while all places are taken a connection is closed at once
        back = ask(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + extra + b"\r\n")
        if back:
            break
        time.sleep(0.1)
    check(back.startswith(b"HTTP/1.1 " + wanted), f"{path[:60]}: wanted {wanted}: {back[:80]}")
    return back


def lines():
    with open("live/metrics.jsonl", "rb") as file:
        return file.read().count(b"\n")


def goes_on(after):
    """Steps are taken: a few more than there were."""
    before, end = lines(), time.monotonic() + 60
    while lines() < before + 3 and time.monotonic() < end:
        time.sleep(0.02)
    check(lines() >= before + 3, f"no step is taken after {after}")


def memory_mb():
    with open(f"/proc/{owner}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024


get(b"/data.json", b"200")
get(b"/program.json", b"200")
began_mb = memory_mb()

# requests that are none
for data in (b"\0" * 4096, b"\xff\xfe" * 500 + b"\r\n\r\n", b"GET", b"GET /\r\n", b"\r\n" * 2000, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n",
             b"GET /" + b"a" * 1000000 + b" HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost: " + b"h" * 300000 + b"\r\n\r\n", b"G" * 200000 + b" / HTTP/1.1\r\n\r\n",
             b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
             b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nffffffffffffffff\r\n"):
    with connect() as one:
        send(one, data)
        try:
            one.shutdown(socket.SHUT_WR)
        except OSError:  # it is closed already
            pass
        select.select([one], [], [], 0.3)
goes_on("requests that are none")

# methods, and a body that does not end
for method in (b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"CONNECT", b"BREW"):
    back = ask(method + b" /data.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc")
    check(back.startswith(b"HTTP/1.1 405"), f"{method}: {back[:60]}")
with connect() as one:
    send(one, b"POST /data.json HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(200):
        send(one, b"10000\r\n" + b"x" * 65536 + b"\r\n")

# paths: there are no files
for path in (b"/../../../../etc/passwd", b"/..%2f..%2fetc/passwd", b"//etc/passwd", b"/live/config.yaml", b"/config.yaml", b"/./data.json", b"/data.json/", b"/DATA.JSON"):
    back = get(path, b"404")
    check(b"root:" not in back and b"vocab_size" not in back, f"{path}: gives a file away")
for path in (b"/%00", b"/data.json%00.html", b"/%ff%fe", b"/%", b"/?" + b"a=b&" * 2000):
    ask(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
for host in (b"evil.example", b"[::1].evil.example", b"[::1", b"localhost.evil.example", b"localhost:80@evil.example", b"127.0.0.1:x"):
    back = ask(b"GET /data.json HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
    check(back.startswith(b"HTTP/1.1 403"), f"another site's name is let in: {host}: {back[:60]}")
goes_on("wrong methods and paths")

# answers that nobody takes, and requests that come byte by byte
# (more than there are places for: most are not even let in, so nothing here may wait)
waiting = []
requests = (b"GET /data.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20, b"GET /pro")
for i in range(200):
    one = socket.socket()
    one.setblocking(False)
    one.connect_ex(("127.0.0.1", port))
    send(one, requests[i % 2])
    waiting.append(one)
goes_on("200 connections that take nothing")
back = ask(b"GET /program.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", "127.0.0.2")
check(back.startswith(b"HTTP/1.1 200") or back.startswith(b"HTTP/1.1 503"), f"another address is locked out: {back[:60]}")
check(memory_mb() < began_mb + 96, f"memory grew from {began_mb:.0f} to {memory_mb():.0f} MB")
for i in range(20):
    for k, one in enumerate(waiting):
        send(one, b"x" if i or k % 2 else requests[0])
    time.sleep(0.01)
check(memory_mb() < began_mb + 96, f"memory grew from {began_mb:.0f} to {memory_mb():.0f} MB")
for one in waiting:
    one.close()
goes_on("slow clients")

# connections by the hundred, one after the other
for _ in range(300):
    connect().close()
goes_on("300 connections")
check(b'"latest": {"step": ' in get(b"/data.json", b"200"), "no numbers afterwards")
check(memory_mb() < began_mb + 96, f"memory grew from {began_mb:.0f} to {memory_mb():.0f} MB")
print("\n".join(failures))
sys.exit(1 if failures else 0)
PYTHON
port=${url%/}
python3 attack.py "${port##*:}" "$owner" >found 2>&1 || fail "$(cat found)"
kill -0 "$owner" 2>/dev/null || fail "the run is gone: $(cat live.err)"
kill -TERM "$owner"
wait "$pid"
[ $? -eq 75 ] || fail "the run did not end as asked: $(cat live.err)"
run 0 verify live

# the same bits as a run that nobody asked
steps=$(sed -n 's/.*"step": \([0-9]*\),.*/\1/p' live/status.json)
# shellcheck disable=SC2086
timeout -k 5 140 "$ISOTACH" train $slow run=alone stop_at="$steps" log.enabled=false >out 2>err || fail "alone: $(cat err)"
isotach digest live >a
isotach digest alone >b
same a b
finish
