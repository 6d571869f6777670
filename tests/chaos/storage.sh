# SPDX-License-Identifier: Apache-2.0
# Storage that is full, broken, or hangs while a run goes on, for each log.when_slow: nothing that is there is harmed, by
# default the run goes on while an older durable state exists, and it catches up when storage is well again.
. "$ISO_ROOT/tests/cli/common.sh"
case $(ldd "$ISOTACH") in *asan* | *tsan*) echo "no library goes before a sanitizer's own"; exit 77 ;; esac

digest_of() { isotach digest "$1" 2>/dev/null; }
count_lines() { cat "$1/metrics.jsonl" 2>/dev/null | wc -l; }
# lines RUN COUNT
lines() {
  for _ in $(seq 500); do [ "$(count_lines "$1")" -ge "$2" ] && return; sleep 0.02; done
  fail "$1 takes no steps: $(cat log.err)"
}
# said WORDS: waits until the run has said so
said() {
  for _ in $(seq 500); do grep -q "$1" log.err && return; sleep 0.02; done
  fail "it does not say \"$1\": $(cat log.err)"
}
# begin RUN PATH KEYS...: a run whose files below PATH are as the file control says
begin() {
  rm -f control
  name=$1
  part=$2
  shift 2
  ISO_FAULTY="$part:$scratch/control" LD_PRELOAD=$ISO_BUILD/faulty.so "$ISOTACH" train "$tiny" run="$name" steps=1000000 \
    optimizer.schedule=constant "$@" >log 2>log.err </dev/null &
  pid=$!
  lines "$name" 10
}
gone() {
  for _ in $(seq 500); do kill -0 $pid 2>/dev/null || break; sleep 0.02; done
  kill -9 $pid 2>/dev/null && fail "$1: it goes on: $(cat log.err)"
  wait $pid
  code=$?
}
# whole RUN: it is intact, goes on, and has the bits of a run on good storage
whole() {
  run 0 verify "$1"
  isotach verify "$1" --json >out
  last=$(($(sed 's/.*"durable_step": \([0-9]*\).*/\1/' out) + 5))
  run 0 train "$tiny" run="$1" steps=1000000 optimizer.schedule=constant stop_at=$last
  rm -rf good
  run 0 train "$tiny" run=good steps=1000000 optimizer.schedule=constant stop_at=$last checkpoint.snapshot_every=0
  [ "$(digest_of "$1")" = "$(digest_of good)" ] || fail "$1 ends with other bits"
  run 0 verify "$1" --replay
}

for how in enospc eio; do
  # Default: suspended, aloud; the run goes on, and a snapshot closes the gap when storage is well.
  begin default-$how /log/ log.max_wait_s=1
  echo $how >control
  said 'the log is suspended'
  at=$(count_lines default-$how)
  lines default-$how $((at + 20))
  kill -0 $pid || fail "$how ended the run: $(cat log.err)"
  rm control
  kill -USR1 $pid # a snapshot now; by itself it tries again every 20 s
  said 'the log is whole again'
  kill -TERM $pid
  gone default-$how
  [ $code -eq 75 ] || fail "default, $how: $code: $(cat log.err)"
  whole default-$how

  # All of the run's folder fails: no snapshot either; what was durable is there after a kill.
  begin all-$how /all-$how/ log.max_wait_s=1 checkpoint.snapshot_every=7
  echo $how >control
  said 'the log is suspended'
  sleep 0.3
  kill -0 $pid || fail "$how everywhere ended the run: $(cat log.err)"
  kill -9 $pid
  gone all-$how
  rm control
  whole all-$how

  # stop: it ends by itself, and can be resumed.
  begin stop-$how /log/ log.max_wait_s=1 log.when_slow=stop
  echo $how >control
  gone stop-$how
  [ $code -ne 0 ] && [ $code -ne 75 ] && [ $code -lt 100 ] || fail "stop, $how: $code"
  grep -q 'log.when_slow is stop' log.err || fail "stop, $how: $(cat log.err)"
  rm control
  whole stop-$how
done

# Storage that does not answer: suspended after log.max_wait_s, or waited for, or the end.
begin hang-default /log/ log.max_wait_s=0.5
echo hang >control
said 'storage is too slow'
at=$(count_lines hang-default)
lines hang-default $((at + 20))
rm control
kill -USR1 $pid
said 'the log is whole again'
kill -TERM $pid
gone hang-default
[ $code -eq 75 ] || fail "hang, default: $code: $(cat log.err)"
whole hang-default

begin hang-wait /log/ log.max_wait_s=0.5 log.when_slow=wait
echo hang >control
said "waiting for the log's storage"
at=$(count_lines hang-wait)
sleep 0.5
[ "$(count_lines hang-wait)" -le $((at + 2)) ] || fail "hang, wait: steps are taken"
rm control
lines hang-wait $((at + 20))
grep -q suspended log.err && fail "hang, wait: $(cat log.err)"
kill -TERM $pid
gone hang-wait
[ $code -eq 75 ] || fail "hang, wait: $code: $(cat log.err)"
whole hang-wait

begin hang-stop /log/ log.max_wait_s=0.5 log.when_slow=stop
echo hang >control
said 'log.when_slow is stop'
rm control
gone hang-stop
whole hang-stop

# A first signal waits for storage that hangs; a second ends the run at once, and nothing durable is lost.
begin signals /log/ log.max_wait_s=0.5 log.when_slow=wait
echo hang >control
sleep 0.1
kill -TERM $pid
sleep 0.3
kill -0 $pid || fail "the first signal did not wait for the step to be durable: $(cat log.err)"
kill -TERM $pid
gone signals
[ $code -eq 143 ] || fail "the second signal: $code: $(cat log.err)"
rm control
whole signals
finish
