# SPDX-License-Identifier: Apache-2.0
# checkpoint.target in another folder: what is durable is what is there. A run that is killed and whose folder is gone
# goes on from it with the same bits, one that goes back or is moved to another folder too; of two processes the second
# is refused. One thread: the bits are the same, and other tests run beside this one.
. "$ISO_ROOT/tests/cli/common.sh"

digest_of() { isotach digest "$1" 2>/dev/null; }
durable() { sed -n 's/.*"durable_step": \([0-9]*\).*/\1/p' "$1/target.json" 2>/dev/null; }
until_durable() { # until_durable RUN STEP
  tries=0
  until [ "$(durable "$1")" -ge "$2" ] 2>/dev/null || [ $tries -gt 2000 ]; do
    tries=$((tries + 1))
    sleep 0.02
  done
}
reach() { # the newest step in a target
  tries=0
  until isotach inspect log "$1" --json >reach.out 2>reach.err || [ $tries -gt 5 ]; do
    tries=$((tries + 1))
    cat reach.err >&2
  done
  sed -n 's/.*"newest_step": \([0-9]*\).*/\1/p' reach.out
}
settings="steps=120 checkpoint.snapshot_every=40"

# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=plain $settings
plain=$(digest_of plain)
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=a $settings checkpoint.target=target
[ "$(digest_of a)" = "$plain" ] || fail "a run with a target ends with $(digest_of a), not $plain"
grep -q '"durable_step": 120' a/status.json || fail "status.json: $(cat a/status.json)"
run 0 verify a --mirror
run 0 verify target # a folder target is a run folder
run 0 inspect log a
grep -q "^durable step 120; " out && grep -q "^durable is what is in .*/target" out || fail "inspect log: $(cat out)"

# Its folder is gone: nothing is trained again.
rm -rf a
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=a $settings checkpoint.target=target
grep -q "there was no run here; target '.*/target' holds it: restored" err || fail "a restore is not said: $(cat err)"
grep -q "complete: step 120 of 120" out || fail "a finished run: $(cat out)"
[ "$(digest_of a)" = "$plain" ] || fail "brought back: $(digest_of a), not $plain"
rm -rf a target

# Killed, and its folder gone: at least what it called durable is there.
settings="steps=120 checkpoint.snapshot_every=40 checkpoint.target=target"
# shellcheck disable=SC2086
"$ISOTACH" train "$tiny" threads=1 run=a $settings steps=100000 >o 2>e </dev/null &
pid=$!
until_durable a 60
# shellcheck disable=SC2086
run 6 train "$tiny" threads=1 run=b $settings
grep -q "run in use: '.*/target' is held by process $pid on host $(hostname)" err || fail "a second process: $(cat err)"
rmdir b 2>/dev/null
kill -9 $pid 2>/dev/null
wait $pid 2>/dev/null
shown=$(tail -n 1 a/metrics.jsonl | sed -n 's/.*"durable_step": \([0-9]*\).*/\1/p')
mv a gone
end=$(($(reach target) + 20)) # what is there may go beyond what was shown
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=a $settings steps=100000 stop_at=$end
grep -q "resuming after step" out || fail "it begins anew: $(cat out)"
[ "$(sed -n 's/^# resuming after step \([0-9]*\) .*/\1/p' out)" -ge "$shown" ] || fail "less than step $shown: $(cat out)"
run 0 train "$tiny" threads=1 run=whole steps=100000 stop_at=$end
[ "$(digest_of a)" = "$(digest_of whole)" ] || fail "killed and brought back: other bits after step $end"
rm -rf a gone target whole

# Stopped, moved to another folder, back to the first one, gone back on purpose.
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=a $settings stop_at=50
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=b $settings stop_at=90
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=a $settings
grep -q "resuming after step 90" out || fail "the first folder goes on where the second one was: $(cat out)"
[ "$(digest_of a)" = "$plain" ] || fail "by way of two folders: $(digest_of a), not $plain"
run 0 verify a --mirror
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=a $settings --from-step 100 stop_at=105
rm -rf a b
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=a $settings
grep -q "resuming after step 105" out || fail "gone back: $(cat out)"
[ "$(digest_of a)" = "$plain" ] || fail "gone back, and brought back: $(digest_of a), not $plain"

# Storage that takes nothing: training goes on, then it catches up with the next snapshot.
rm -rf a target
# shellcheck disable=SC2086
"$ISOTACH" train "$tiny" threads=1 run=a $settings steps=100000 log.max_wait_s=0.5 >o 2>e </dev/null &
pid=$!
until_durable a 20
mv target away && : >target
tries=0
until grep -q "its target has lacked step" e || [ $tries -gt 500 ]; do
  tries=$((tries + 1))
  sleep 0.02
done
grep -q "target '.*' cannot be written (.*); training goes on, durable is step" e || fail "an outage: $(cat e)"
grep -q "its target has lacked step .*; training goes on, durable is step .* until a snapshot is there" e ||
  fail "a target that is behind: $(cat e)"
rm target && mv away target
tries=0
until grep -q "its target has caught up" e || [ $tries -gt 800 ]; do
  tries=$((tries + 1))
  sleep 0.02
done
grep -q "its target has caught up, durable is step" e || fail "the end of it: $(cat e)"
kill -TERM $pid
wait $pid
code=$?
[ $code -eq 75 ] || fail "a run that is stopped ends with $code: $(cat e)"
step=$(sed -n 's/.*"step": \([0-9]*\).*/\1/p' a/status.json | head -n 1)
[ "$(durable a)" -eq "$step" ] || fail "stopped after step $step, durable is step $(durable a)"
rm -rf a
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=a $settings steps=100000 stop_at=$((step + 1))
grep -q "resuming after step $step " out || fail "after an outage: $(cat out) $(cat err)"

# log.when_slow: stop.
rm -rf a target
# shellcheck disable=SC2086
"$ISOTACH" train "$tiny" threads=1 run=a $settings steps=100000 log.max_wait_s=0.5 log.when_slow=stop >o 2>e </dev/null &
pid=$!
until_durable a 20
mv target away && : >target
wait $pid
code=$?
[ $code -eq 3 ] || fail "log.when_slow: stop ends with $code: $(cat e)"
grep -q "its target did not take step .* within log.max_wait_s" e || fail "and says: $(cat e)"
rm target && mv away target
# shellcheck disable=SC2086
run 0 train "$tiny" threads=1 run=a $settings steps=100000 stop_at=$(($(durable a) + 30))
run 0 verify a --mirror

# Places that are none.
run 2 train "$tiny" threads=1 run=a steps=40 checkpoint.target=a/snapshots
run 2 train "$tiny" threads=1 run=a steps=40 checkpoint.target=target checkpoint.mirror=target
finish
