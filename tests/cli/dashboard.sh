# SPDX-License-Identifier: Apache-2.0
#
# vitals.dashboard: the page and its numbers are there while a run goes on, numbers move, elsewhere than on loopback a
# token is asked for, and bits are those of a run without it. How it looks: dashboard_browser.sh.
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
for text in '"run": "live"' '"points": {"step": \[1,' '"layers": \["embed_tokens", "layers.0", "layers.1", "norm"\]' '"name": "compute_s", "last": ' '"memory": "'; do
  grep -q "$text" data || fail "no $text in the data: $(head -c 600 data)"
done
stop
[ "$(code_of "$base/" 2>/dev/null)" = 000 ] || fail "something answers behind the end"

start 0.0.0.0:0
token=${url##*token=}
base=$(echo "${url%%/\?*}" | sed 's/0\.0\.0\.0/127.0.0.1/')
[ "$(code_of "$base/")" = 401 ] || fail "no token is asked for"
[ "$(code_of "$base/data.json?token=0$token")" = 401 ] || fail "a wrong token is taken"
[ "$(code_of "$base/?token=$token")" = 200 ] || fail "the token that was printed is refused"
[ "$(code_of -b "isotach_token=$token" "$base/data.json")" = 200 ] || fail "the cookie is refused"
stop

run 0 train "$tiny" run=with steps=60 vitals.dashboard=127.0.0.1:0
run 0 train "$tiny" run=without steps=60
isotach digest with >a
isotach digest without >b
same a b
refused 2 "ROOT/examples/tiny.yaml: \`vitals.dashboard\`: \"8080\" is no address; write one as 127.0.0.1:8080 or [::1]:8080" \
  train "$tiny" run=x vitals.dashboard=8080
finish
