# SPDX-License-Identifier: Apache-2.0
# SIGTERM finishes the step, leaves a snapshot and exits with 75; a second process is refused meanwhile; kill -9 loses
# nothing but the steps since the newest snapshot, and the run goes on to the same bits.
. "$ISO_ROOT/tests/cli/common.sh"

# started RUN: waits until the run has taken its first step.
started() {
  for _ in $(seq 200); do
    [ -s "$1/metrics.jsonl" ] && return
    sleep 0.05
  done
  fail "$1 did not start: $(cat log.err)"
}

# Long enough to be interrupted on any machine.
set -- "$tiny" threads=1 steps=1000000 optimizer.schedule=constant checkpoint.snapshot_every=25
timeout -k 5 100 "$ISOTACH" train "$@" run=a >log 2>log.err &
pid=$!
started a
run 6 train "$@" run=a
[ "$(wc -l <err)" -eq 1 ] && grep -q "run folder\|in use\|held\|lock" err || fail "a run in use: $(cat err)"
child=$(cat /proc/$pid/task/$pid/children)
kill -TERM $pid # timeout signals the run and then its group: it is one signal, however often it comes at once
kill -TERM $child 2>/dev/null
wait $pid
code=$?
[ $code -eq 75 ] || fail "SIGTERM: exit code $code: $(cat log.err)"
grep -q '"verdict": "stopped"' a/status.json || fail "status.json: $(cat a/status.json)"
run 0 verify a

timeout -k 5 100 "$ISOTACH" train "$@" run=b >log 2>log.err &
pid=$!
started b
while [ "$(wc -l <b/metrics.jsonl)" -lt 60 ]; do kill -0 $pid 2>/dev/null || break; sleep 0.02; done
kill -KILL $(cat /proc/$pid/task/$pid/children) # the run itself, not timeout
wait $pid
run 0 verify b
run 0 train "$@" run=b stop_at=200
run 0 train "$@" run=c stop_at=200
run 0 digest c
cp out expected
run 0 digest b
same out expected
finish
