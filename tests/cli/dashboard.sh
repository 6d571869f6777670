# SPDX-License-Identifier: Apache-2.0
#
# vitals.dashboard: the page and its numbers are there while a run goes on, numbers move, elsewhere than on loopback a
# token is asked for, bits are those of a run without it, also while instructions are timed, and an address that is taken
# leaves no run folder behind. How it looks: dashboard_browser.sh; clients that mean no good: dashboard_hostile.sh.
. "$ISO_ROOT/tests/cli/common.sh"

command -v curl >/dev/null 2>&1 || { echo "skipped: there is no curl"; exit 77; }

# start ADDRESS: a run in the background; $url, $pid
start() {
  rm -rf live
  timeout -k 5 100 "$ISOTACH" train "$tiny" run=live steps=1000000 "vitals.dashboard=$1" >live.out 2>live.err &
  pid=$!
  until [ -s live/metrics.jsonl ] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
  url=$(sed -n 's/^# dashboard: //p' live.out)
  [ -n "$url" ] || { fail "no address: $(cat live.err)"; finish; }
}
stop() {
  kill -TERM "$(cut -d" " -f2 live/lock)"
  wait "$pid"
  code=$?
  [ "$code" -eq 75 ] || fail "the run ended with $code: $(cat live.err)"
}
code_of() { curl -sS -o other --max-time 30 -w '%{http_code}' "$@"; }
step() { curl -sS --fail --max-time 30 "$base/data.json" >data || fail "no data"; sed -n 's/^"latest": {"step": \([0-9]*\),.*/\1/p' data; }

start 127.0.0.1:0
base=${url%/}
[ "$(code_of "$url")" = 200 ] || fail "no page at $url"
grep -q '<title>live</title>' other || fail "the page is $(head -c 300 other)"
grep -Eq '\{\{|src=|@import|url\(' other && fail "the page loads something or is not filled in"
[ "$(code_of "$base/metrics")" = 200 ] || fail "no /metrics"
[ "$(code_of "$base/config.yaml")" = 404 ] || fail "files are served"
first=$(step)
tries=0
until [ "$(step)" -gt "${first:-0}" ]; do
  tries=$((tries + 1))
  [ "$tries" -lt 200 ] || { fail "step stays at $first"; break; }
  sleep 0.05
done
for text in '"run": "live"' '"points": {"step": \[1,' '"layers": \["embed_tokens", "layers.0", "layers.1", "norm"\]' '"name": "compute_s", "last": ' '"timeline": \[' '{"kind": "start", "step": 0, "at_step": 0, ' '"breaches": \['; do
  grep -q "$text" data || fail "no $text in the data: $(head -c 600 data)"
done

# signs and ranks, once somebody has looked
tries=0
until step >/dev/null && grep -q '"health": {"signs": \[' data && grep -q '{"rank": 0, "host": ".*", "steps": [0-9]*, "wall_s": {"now": [0-9.e-]*, "p50": ' data; do
  tries=$((tries + 1))
  [ "$tries" -lt 300 ] || { fail "no signs and ranks: $(grep -A3 '"health"' data | head -c 600)"; break; }
  sleep 0.1
done
for sign in data_load_latency allreduce_wait checkpoint_bandwidth flatness; do
  grep -q "{\"sign\": \"$sign\", \"value\": " data || fail "no sign $sign"
done

# the program as isotach inspect has it, and times of a step that get newer
curl -sS --fail "$base/program.json" >program || fail "no program"
isotach inspect program "$tiny" --json >inspected
wanted=$(sed -n 's/.*"instructions": \([0-9]*\),.*/\1/p' inspected)
[ "$(grep -c '^{"op": "' program)" = "$wanted" ] || fail "$(grep -c '^{"op": "' program) instructions, not $wanted"
grep -q '^{"op": "attention", "pass": "forward", "layer": "layers.1", .*"shape": \[122,64\], "space": "transient"' program || fail "no attention of layer 1"
grep -q '"what": "transient arena", "bytes": [1-9]' program || fail "no memory plan"
times_step() { curl -sS --fail "$base/times.json" | sed -n 's/^{"step": \([0-9]*\), "looks": [1-9][0-9]*, .*/\1/p'; }
newer() { # NUMBER: the step of the times, once it is above that
  for _ in $(seq 300); do
    found=$(times_step)
    [ "${found:-0}" -gt "$1" ] && { echo "$found"; return; }
    sleep 0.1
  done
}
at=$(newer 0)
[ -n "$at" ] || fail "no times"
[ -n "$(newer "${at:-0}")" ] || fail "times stay at step $at"

# a new run at an address that is taken makes no folder; one that is there says the same
mkdir here
for key in dashboard=127.0.0.1:${base##*:} metrics_port=${base##*:}; do
  for name in new here; do
    run 6 train "$tiny" run=$name steps=10 "vitals.$key"
    grep -q 'Address already in use' err || fail "not told: $(cat err)"
  done
  [ ! -e new ] || fail "vitals.$key: a folder is left: $(ls new)"
done
stop
[ "$(code_of "$base/" 2>/dev/null)" = 000 ] || fail "something answers behind the end"

start 0.0.0.0:0
token=${url##*token=}
base=$(echo "${url%%/\?*}" | sed 's/0\.0\.0\.0/127.0.0.1/')
[ "$(code_of "$base/")" = 401 ] || fail "no token is asked for"
[ "$(code_of "$base/data.json?token=0$token")" = 401 ] || fail "a wrong token is taken"
[ "$(code_of "$base/?token=$token%00x")" = 401 ] || fail "a token with a tail behind a zero is taken"
[ "$(code_of "$base/?token=$token")" = 200 ] || fail "the token that was printed is refused"
[ "$(code_of -H "Authorization: bearer $token" "$base/data.json")" = 200 ] || fail "the token is refused in a header"
[ "$(code_of -b "isotach_token=$token" "$base/data.json")" = 200 ] || fail "the cookie is refused"
stop

# looked at all the time, until some steps were timed; the same steps again without anybody
start 127.0.0.1:0
base=${url%/}
for _ in $(seq 600); do
  curl -sS --fail "$base/data.json" >data
  curl -sS --fail "$base/times.json" >times || break
  grep -q '"looks": [2-9]' times && break
  sleep 0.1
done
grep -q '"looks": [2-9]' times || fail "no steps were timed: $(cat live.err)"
stop
run 0 train "$tiny" run=without steps=1000000 stop_at="$(sed -n 's/.*"step": \([0-9]*\),.*/\1/p' live/status.json)"
isotach digest live >a
isotach digest without >b
same a b
for address in 8080 127.0.0.1: "127.0.0.1: 80" 127.0.0.1:+80 127.0.0.1:80x 127.0.0.1:65536 :80; do
  refused 2 "ROOT/examples/tiny.yaml: \`vitals.dashboard\`: \"$address\" is no address; write one as 127.0.0.1:8080 or [::1]:8080" \
    train "$tiny" run=x "vitals.dashboard=$address"
done
finish
