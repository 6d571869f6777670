#!/bin/sh
# labels: long
# SPDX-License-Identifier: Apache-2.0
#
# checkpoint.target: s3://... against moto, through a proxy that is slow and goes wrong: wrong checksums, 409, 412, 503,
# answers that are lost after success, stalls. What a run calls durable is there, whichever way it ends and whatever
# becomes of its folder; an outage ends nothing, and is caught up with; of two processes one owns the run. Needs python3
# and, once, a package index.
. "$(dirname "$0")/common.sh"
cd "$work" || exit 1
count() { proxy '{}' | sed "s/.*\"$1\": \([0-9]*\).*/\1/"; }
digest_of() { timeout -k 5 100 "$isotach" digest "$1" 2>/dev/null; }
durable() { sed -n 's/.*"durable_step": \([0-9]*\).*/\1/p' "$1/target.json" 2>/dev/null; }
shown() { tail -n 2 "$1/metrics.jsonl" | head -n 1 | sed -n 's/.*"durable_step": \([0-9]*\).*/\1/p'; }
resumed() { sed -n 's/^# resuming after step \([0-9]*\) .*/\1/p' "$1"; }
until_true() { # until_true COMMAND...: for two minutes
  tries=0
  until "$@" 2>/dev/null || [ $tries -gt 1200 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
}
has() { [ "$(durable "$1")" -ge "$2" ]; }
shows() { [ "$(shown "$1")" -ge "$2" ]; }
lines_of() { wc -l <"$1/metrics.jsonl"; }
took() { [ "$(lines_of "$1")" -ge "$2" ]; }
reach() { # the newest step in a target
  tries=0
  until "$isotach" inspect log "$1" --json >reach.out 2>reach.err || [ $tries -gt 5 ]; do
    tries=$((tries + 1))
    cat reach.err >&2
  done
  sed -n 's/.*"newest_step": \([0-9]*\).*/\1/p' reach.out
}
asleep() { # all threads of the process are stopped
  ! grep -h '^State:' /proc/"$1"/task/*/status | grep -qv 'T (stopped)'
}
plain_digest() { # of a run of so many steps in a folder of its own
  [ -d "plain$1" ] || "$isotach" train "$tiny" threads=1 run="plain$1" steps=100000 stop_at="$1" >/dev/null 2>&1 </dev/null
  digest_of "plain$1"
}

mkdir empty
export LIFE_S=1400
"$root/tests/s3/serve" start "$work/state" runs "$work/empty" >environment || exit 1
. ./environment
tiny=$root/examples/tiny.yaml
settings="threads=1 steps=100000 checkpoint.snapshot_every=50"

# ---- a good network ----

# shellcheck disable=SC2086
check "a run in S3" run 0 train "$tiny" run=a $settings stop_at=150 checkpoint.target=s3://runs/good
check "all of which is durable" has a 150
check "and there" run 0 verify a --mirror
rm -rf a
check "verify reads it from there" run 0 verify s3://runs/good
check "digest too" run 0 digest s3://runs/good@140
check "and finds the bits" test "$(cat out)" = "$(plain_digest 140)"
# shellcheck disable=SC2086
check "a fresh folder" run 0 train "$tiny" run=a $settings stop_at=150 checkpoint.target=s3://runs/good
check "has the same bits" test "$(digest_of a)" = "$(plain_digest 150)"
check "and nothing left to do" grep -q "complete: step 150" out

# ---- a bad one: killed twice, and the folder gone each time ----

export ISOTACH_S3_STALL_S=1
proxy '{"latency_ms": 2, "errors": 0.2, "stall_s": 3,
        "kinds": ["503", "500", "refuse", "reset", "truncate", "stall", "lost", "lost", "damage", "409", "412"]}' >/dev/null
before=0
for again in no yes; do
  # shellcheck disable=SC2086
  "$isotach" train "$tiny" run=b $settings checkpoint.target=s3://runs/bad/b >out.b 2>err.b </dev/null &
  pid=$!
  from=0
  if [ $again = yes ]; then # what is there may go beyond what was shown
    until_true grep -q "^# resuming after step" out.b
    from=$(resumed out.b)
  fi
  until_true shows b $((from + 60)) # of this start: durable, and said so
  kill -9 $pid 2>/dev/null
  wait $pid 2>/dev/null
  said=$(shown b)
  check "durable through a bad network to step $said" test "$said" -ge $((from + 60))
  [ $again = no ] || check "having gone on where it was: $before, $(resumed out.b)" test "$(resumed out.b)" -ge "$before"
  before=$said
  rm -rf b
done
proxy '{"errors": 0}' >/dev/null
end=$(($(reach s3://runs/bad/b) + 150))
proxy '{"errors": 0.2}' >/dev/null
# shellcheck disable=SC2086
check "goes on from the target" run 0 train "$tiny" run=b $settings stop_at=$end checkpoint.target=s3://runs/bad/b
check "aloud" grep -q "there was no run here; target 's3://runs/bad/b' holds it" err
check "behind step $before" test "$(resumed out)" -ge "$before"
check "to the bits of the run that was left alone" test "$(digest_of b)" = "$(plain_digest $end)"
check "and all is there" run 0 verify b --mirror
for kind in lost damage 409 412 503; do
  case $kind in 4*) errors=0.5 ;; *) errors=0.4 ;; esac # those meet only what must be new
  proxy "{\"errors\": $errors, \"kinds\": [\"$kind\"]}" >/dev/null
  # shellcheck disable=SC2086
  check "a run that meets $kind" run 0 train "$tiny" run=e-$kind $settings stop_at=100 checkpoint.target=s3://runs/e/$kind
  check "is durable" has e-$kind 100
  check "and there" run 0 verify e-$kind --mirror
  check "$kind was among the faults" test "$(count $kind)" -gt 0
done
proxy '{"errors": 0}' >/dev/null

# ---- an outage: said, trained on, caught up with; what is durable is there ----

# shellcheck disable=SC2086
"$isotach" train "$tiny" run=c $settings checkpoint.target=s3://runs/c log.max_wait_s=4 >out.c 2>err.c </dev/null &
pid=$!
until_true has c 50
proxy '{"errors": 1, "kinds": ["503"]}' >/dev/null
until_true grep -q "cannot be written" err.c
check "an outage is said" grep -q "target 's3://runs/c' cannot be written (.*HTTP 503.*); training goes on, durable is" err.c
check "and that durable stays" grep -q "its target has lacked step .*; training goes on, durable is step" err.c
until_true grep -q '"outage": "[^"]' c/target.json
said=$(durable c)
until_true took c $(($(lines_of c) + 100))
check "and the run goes on" kill -0 $pid
check "durable stays" test "$(durable c)" -eq "$said"
proxy '{"errors": 0}' >/dev/null
until_true grep -q "its target has caught up" err.c
until_true grep -q "is written again after" err.c # older parts of the log, too: the end has little to wait for
check "the end of it is said" grep -q "its target has caught up, durable is step" err.c
check "an outage is said once" test "$(grep -c 'cannot be written' err.c)" -eq 1
kill -TERM $pid
wait $pid
check "and it ends as ever" test $? -eq 75
step=$(sed -n 's/.*"step": \([0-9]*\).*/\1/p' c/status.json | head -n 1)
check "with its last step durable" test "$(durable c)" -eq "$step"
[ $failed -eq 0 ] || cat err.c c/target.json
rm -rf c
# shellcheck disable=SC2086
check "its folder gone" run 0 train "$tiny" run=c $settings stop_at=$((step + 10)) checkpoint.target=s3://runs/c
check "it goes on behind step $step" test "$(resumed out)" -eq "$step"
check "with the right bits" test "$(digest_of c)" = "$(plain_digest $((step + 10)))"

# ---- log.when_slow: wait; and a start during an outage ----

# shellcheck disable=SC2086
"$isotach" train "$tiny" run=w $settings checkpoint.target=s3://runs/w log.max_wait_s=2 log.when_slow=wait \
  >out.w 2>err.w </dev/null &
pid=$!
until_true has w 20
proxy '{"errors": 1, "kinds": ["503"]}' >/dev/null
until_true grep -q "waiting behind step" err.w
waits() { sed -n 's/.*waiting behind step \([0-9]*\) for its target.*/\1/p' err.w | tail -n 1; }
until_true grep -q "^{\"step\": $(waits)," w/metrics.jsonl
lines=$(lines_of w)
sleep 2
check "no step is taken meanwhile" test "$(lines_of w)" -eq "$lines"
check "it is said" grep -q "waiting behind step .* for its target, durable is step .* (log.when_slow: wait)" err.w
# shellcheck disable=SC2086
check "a start without an answer is refused" run 3 train "$tiny" run=x $settings checkpoint.target=s3://runs/x
kill -TERM $pid
wait $pid
check "a signal ends it" test $? -eq 75
proxy '{"errors": 0}' >/dev/null
step=$(sed -n 's/.*"step": \([0-9]*\).*/\1/p' w/status.json | head -n 1)
# shellcheck disable=SC2086
check "and the folder goes on" run 0 train "$tiny" run=w $settings stop_at=$((step + 10)) checkpoint.target=s3://runs/w
check "behind step $step" test "$(resumed out)" -eq "$step"
check "all of which is durable" has w $((step + 10))

# ---- two processes; and one that is stopped, replaced, and goes on ----

# shellcheck disable=SC2086
"$isotach" train "$tiny" run=t1 $settings checkpoint.target=s3://runs/t >out.t1 2>err.t1 </dev/null &
pid=$!
until_true has t1 50
# shellcheck disable=SC2086
check "a second process is refused" run 6 train "$tiny" run=t2 $settings checkpoint.target=s3://runs/t
check "by host and pid" grep -q "run in use: 's3://runs/t' is held by process $pid on host $(hostname)" err
# shellcheck disable=SC2086
check "with --take-over too" run 6 train "$tiny" run=t2 $settings checkpoint.target=s3://runs/t --take-over
check "while the first is alive" grep -q "it is alive; stop it first" err
kill -STOP $pid
until_true asleep $pid
said=$(shown t1)
end=$(($(reach s3://runs/t) + 100))
check "what is there can be looked at meanwhile" test $end -gt 100
# shellcheck disable=SC2086
check "one that is silent" run 0 train "$tiny" run=t2 $settings checkpoint.target=s3://runs/t stop_at=$end --take-over
check "is replaced aloud" grep -q "taking over from process $pid on host $(hostname), which is silent" err
check "behind step $said" test "$(resumed out)" -ge "$said"
kill -CONT $pid
wait $pid
check "and ends when it wakes" test $? -eq 6
check "saying why" grep -q "'s3://runs/t' was taken over by\|goes on elsewhere\|no longer counts" err.t1
check "nothing it wrote counts" run 0 verify t2 --mirror
check "the bits are right" test "$(digest_of t2)" = "$(plain_digest $end)"
rm -rf t2
# shellcheck disable=SC2086
check "also from there" run 0 train "$tiny" run=t2 $settings checkpoint.target=s3://runs/t stop_at=$((end + 10))
check "for good" test "$(digest_of t2)" = "$(plain_digest $((end + 10)))"
exit $failed
