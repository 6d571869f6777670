# SPDX-License-Identifier: Apache-2.0
#
# vitals.metrics_port: a run under way answers with its numbers, under the names of metrics.jsonl, and they go on; bits
# are those of a run without it; a port in use is said. The format: tests/vitals/test_exposition.c.
. "$ISO_ROOT/tests/cli/common.sh"

command -v curl >/dev/null 2>&1 || { echo "skipped: there is no curl"; exit 77; }

# start: a run in the background at a port that is free; $port, $pid
start() {
  for port in $(awk -v seed="$$" 'BEGIN { srand(seed); for (i = 0; i < 20; i++) print 20000 + int(12000 * rand()) }'); do
    timeout -k 5 100 "$ISOTACH" train "$tiny" run=live steps=1000000 vitals.metrics_port="$port" >live.out 2>live.err &
    pid=$!
    until [ -s live/metrics.jsonl ] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    kill -0 "$pid" 2>/dev/null && return
    grep -q 'Address already in use' live.err || break
  done
  fail "the run does not start: $(cat live.err)"
  finish
}
stop() {
  kill -TERM "$(cut -d" " -f2 live/lock)"
  wait "$pid"
  code=$?
  [ "$code" -eq 75 ] || fail "the run ended with $code: $(cat live.err)"
}
value() { sed -n "s/^isotach_$1 //p" page; }
scrape() { curl -sS --fail --max-time 30 "http://127.0.0.1:$port/metrics" >page || fail "no answer at port $port"; }

start
grep -q "^# metrics for Prometheus: http://127.0.0.1:$port/metrics$" live.out || fail "the address is not told: $(head -n 60 live.out)"
scrape
step=$(value step)
for name in $(head -n 1 live/metrics.jsonl | grep -o '"[a-z_0-9]*": ' | tr -d '": '); do
  case $name in time | crc32c | starved_* | breached) continue ;; esac
  grep -q "^# TYPE isotach_$name" page || fail "no isotach_$name"
done
tries=0
until [ "$(value step)" -gt "${step:-0}" ]; do
  tries=$((tries + 1))
  [ "$tries" -lt 200 ] || { fail "step stays at $step"; break; }
  sleep 0.05
  scrape
done
[ "$(value wall_s_count)" -le "$(value step)" ] || fail "more steps timed than taken"
grep -q '^isotach_run_info{run="live",uuid="' page || fail "no run_info"
type=$(curl -sS -o other -w '%{http_code} %{content_type}' "http://127.0.0.1:$port/metrics")
[ "$type" = "200 text/plain; version=0.0.4; charset=utf-8" ] || fail "the type is $type"
[ "$(curl -sS -o other -w '%{http_code}' "http://127.0.0.1:$port/")" = 404 ] || fail "/ is something"
run 6 train "$tiny" run=second vitals.metrics_port="$port"
grep -q "examples/tiny.yaml: \`vitals.metrics_port\`: cannot listen at 127.0.0.1:$port: Address already in use; choose another address$" err ||
  fail "a port in use: $(cat err)"
stop
curl -s --max-time 5 "http://127.0.0.1:$port/metrics" >/dev/null && fail "something answers behind the end"

# the same port again at once, and the same bits as without
run 0 train "$tiny" run=with steps=40 vitals.metrics_port="$port"
run 0 train "$tiny" run=without steps=40
isotach digest with >a
isotach digest without >b
same a b
finish
