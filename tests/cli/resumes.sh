# SPDX-License-Identifier: Apache-2.0
# Starts after starts: killed before their first step, with other settings of the log, and while an older snapshot is
# being deleted. The bits are those of a run in one go.
. "$ISO_ROOT/tests/cli/common.sh"

digest_of() { isotach digest "$1" 2>/dev/null; }
set -- "$tiny" steps=1000000 optimizer.schedule=constant
lines() {
  for _ in $(seq 500); do [ "$(cat "$1/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$2" ] && return; sleep 0.01; done
  fail "$1 takes no steps: $(cat log.err)"
}
# killed RUN STEPS KEYS...: goes on and is killed behind that many steps
killed() {
  name=$1
  steps=$2
  shift 2
  "$ISOTACH" train "$tiny" steps=1000000 optimizer.schedule=constant run="$name" "$@" >log 2>log.err </dev/null &
  pid=$!
  lines "$name" "$steps"
  kill -9 $pid
  wait $pid 2>/dev/null
  run 0 verify "$name"
}
# whole RUN STEP: it ends there, with the bits of one in one go and each step once
whole() {
  run 0 train "$tiny" steps=1000000 optimizer.schedule=constant run="$1" stop_at="$2"
  rm -rf good
  run 0 train "$tiny" steps=1000000 optimizer.schedule=constant run=good stop_at="$2" checkpoint.snapshot_every=0
  [ "$(digest_of "$1")" = "$(digest_of good)" ] || fail "$1 ends with other bits"
  [ "$(sed 's/^{"step": *\([0-9]*\).*/\1/' "$1/metrics.jsonl" | tr '\n' ' ')" = "$(seq -s ' ' "$2") " ] ||
    fail "$1: metrics.jsonl does not have each step once"
  run 0 verify "$1" --replay
}
newest() { # step that snapshots and log lead to
  isotach verify "$1" --json | sed 's/.*"log_last_step": \([0-9]*\).*/\1/'
}

# Two starts, one after the other, that are killed before they take a step; with and without a snapshot to go on from.
for snapshots in 0 6; do
  killed twice-$snapshots 20 checkpoint.snapshot_every=$snapshots
  reached=$(newest twice-$snapshots)
  for start in 2 3 4; do
    "$ISOTACH" train "$@" run=twice-$snapshots checkpoint.snapshot_every=$snapshots stop_at=1000000 >log 2>log.err </dev/null &
    pid=$!
    for _ in $(seq 1000); do [ -f twice-$snapshots/incarnations/000$start.json ] && break; sleep 0.002; done
    kill -9 $pid
    wait $pid 2>/dev/null
    run 0 verify twice-$snapshots
    [ "$(sed -n 's/.*"begins_after": \([0-9]*\).*/\1/p' twice-$snapshots/incarnations/000$start.json)" -ge "$reached" ] ||
      fail "start $start went back behind step $reached"
    now=$(newest twice-$snapshots)
    [ "$now" -ge "$reached" ] || fail "start $start: the log leads to $now, not $reached"
    reached=$now
  done
  whole twice-$snapshots $((reached + 10))
done

# The log on, off, on again, synced, waiting or not: each start may have its own, and each is killed.
for snapshots in 0 8; do
  name=policy-$snapshots
  killed $name 12 checkpoint.snapshot_every=$snapshots
  first=$(newest $name)
  killed $name $((first + 15)) checkpoint.snapshot_every=$snapshots log.enabled=false
  run 0 train "$@" run=$name checkpoint.snapshot_every=$snapshots stop_at=$((first + 1))
  at=$(newest $name)
  [ "$at" -ge "$first" ] || fail "$name: a start without a log loses steps that the log had ($at of $first)"
  for keys in log.durability=disk log.when_slow=wait log.compress=off "log.when_slow=stop log.durability=disk" log.compress=auto; do
    at=$(wc -l <$name/metrics.jsonl)
    killed $name $((at + 8)) checkpoint.snapshot_every=$snapshots $keys
  done
  whole $name $(($(wc -l <$name/metrics.jsonl) + 10))
done

# An older snapshot is half deleted: no fault, no loss, and it goes with the next ones.
run 0 train "$@" run=pruned stop_at=30 checkpoint.snapshot_every=10 checkpoint.keep_last=9
for half in manifest.json 'state-*'; do
  rm -rf half
  cp -r pruned half
  rm half/snapshots/step-00000010-0001/manifest.json
  [ "$half" = manifest.json ] || rm half/snapshots/step-00000010-0001/$half
  run 0 verify half
  whole half 40
  run 0 train "$@" run=half stop_at=45 checkpoint.keep_last=1
  [ "$(ls half/snapshots | wc -l)" -eq 1 ] || fail "what was half deleted stays: $(ls half/snapshots)"
done
finish
