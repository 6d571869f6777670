#!/bin/sh
# labels: long
# SPDX-License-Identifier: Apache-2.0
#
# checkpoint.mirror: s3://... against moto, which checks secrets, through a proxy that is slow and goes wrong: wrong
# checksums, 409, 412, 503, answers that are lost after success, stalls. A run that was killed and whose folder is gone
# goes on from there with the bits of one that was left alone; an outage ends nothing. Needs python3 and, once, a package
# index.
. "$(dirname "$0")/common.sh"
cd "$work" || exit 1
count() { proxy '{}' | sed "s/.*\"$1\": \([0-9]*\).*/\1/"; }
digest_of() { timeout -k 5 100 "$isotach" digest "$1" 2>/dev/null; }
mirrored() { sed -n 's/.*"mirrored_step": \([0-9]*\).*/\1/p' "$1/mirror.json" 2>/dev/null; }
until_mirrored() { # until_mirrored RUN STEP
  tries=0
  until [ "$(mirrored "$1")" -ge "$2" ] 2>/dev/null || [ $tries -gt 600 ]; do
    tries=$((tries + 1))
    sleep 0.1
  done
}

mkdir empty
export LIFE_S=1200
"$root/tests/s3/serve" start "$work/state" runs "$work/empty" >environment || exit 1
. ./environment
tiny=$root/examples/tiny.yaml
settings="steps=400 checkpoint.snapshot_every=50"

# shellcheck disable=SC2086
check "a run that is left alone" run 0 train "$tiny" run=plain $settings
plain=$(digest_of plain)

# ---- a good network ----

# shellcheck disable=SC2086
check "a run with a mirror" run 0 train "$tiny" run=a $settings checkpoint.mirror=s3://runs/good
check "which is complete" run 0 verify a --mirror
rm -rf a
# shellcheck disable=SC2086
check "and brings a finished run back" run 0 train "$tiny" run=a $settings checkpoint.mirror=s3://runs/good
check "with its bits" test "$(digest_of a)" = "$plain"

# ---- a bad one: killed twice, and the folder gone each time ----

export ISOTACH_S3_STALL_S=1
proxy '{"latency_ms": 2, "errors": 0.2, "stall_s": 3,
        "kinds": ["503", "500", "refuse", "reset", "truncate", "stall", "lost", "lost", "damage", "409", "412"]}' >/dev/null
for step in 60 220; do
  # shellcheck disable=SC2086
  "$isotach" train "$tiny" run=b $settings steps=400 stop_at=$((step + 100)) checkpoint.mirror=s3://runs/bad/b >out 2>err \
    </dev/null &
  pid=$!
  until_mirrored b $step
  kill -9 $pid 2>/dev/null
  wait $pid 2>/dev/null
  check "mirrored through a bad network to step $(mirrored b)" test "$(mirrored b)" -ge $step
  rm -rf b
done
# shellcheck disable=SC2086
check "goes on from the mirror" run 0 train "$tiny" run=b $settings checkpoint.mirror=s3://runs/bad/b
check "aloud" grep -q "there was no run here; mirror 's3://runs/bad/b' holds it" err
check "to the bits of the run that was left alone" test "$(digest_of b)" = "$plain"
check "and the mirror is complete" run 0 verify b --mirror
for kind in lost damage 409 412; do
  proxy "{\"errors\": 0.4, \"kinds\": [\"$kind\"]}" >/dev/null
  # shellcheck disable=SC2086
  check "writes that meet $kind" run 0 train "$tiny" run=e-$kind $settings stop_at=100 checkpoint.mirror=s3://runs/e/$kind
  check "leave a complete mirror" run 0 verify e-$kind --mirror
done
for kind in 503 lost damage 409 412; do
  check "with $kind among the faults" test "$(count $kind)" -gt 0
done

# ---- an outage ----

proxy '{"errors": 0}' >/dev/null
rm -rf c
# shellcheck disable=SC2086
"$isotach" train "$tiny" run=c $settings steps=100000 checkpoint.mirror=s3://runs/c >out 2>err </dev/null &
pid=$!
until_mirrored c 50
proxy '{"errors": 1, "kinds": ["503"]}' >/dev/null
tries=0
until grep -q "cannot be written" err || [ $tries -gt 400 ]; do
  tries=$((tries + 1))
  sleep 0.1
done
check "an outage is said" grep -q "mirror 's3://runs/c' cannot be written (.*HTTP 503.*); training goes on" err
check "and the run goes on" kill -0 $pid
proxy '{"errors": 0}' >/dev/null
tries=0
until grep -q "is written again" err || [ $tries -gt 600 ]; do
  tries=$((tries + 1))
  sleep 0.1
done
check "the end of it too" grep -q "mirror 's3://runs/c' is written again after" err
[ $failed -eq 0 ] || cat err c/mirror.json
check "once" test "$(grep -c 'cannot be written' err)" -eq 1
kill -TERM $pid
wait $pid
check "and ends as ever" test $? -eq 75

# ---- who may write ----

secret=$AWS_SECRET_ACCESS_KEY
export AWS_SECRET_ACCESS_KEY=wrong
# shellcheck disable=SC2086
check "a new run without an answer from its mirror is refused" run 3 train "$tiny" run=d $settings checkpoint.mirror=s3://runs/d
check "with the cause" grep -q "check AWS_SECRET_ACCESS_KEY" err
export AWS_SECRET_ACCESS_KEY="$secret"
exit $failed
