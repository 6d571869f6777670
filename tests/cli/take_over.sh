# SPDX-License-Identifier: Apache-2.0
# One process trains a run. A second is refused and told who the first is; one that was stopped, replaced with
# --take-over and then continued publishes nothing that counts, and ends by itself.
. "$ISO_ROOT/tests/cli/common.sh"

digest_of() { isotach digest "$1" 2>/dev/null; }
# lines RUN COUNT: waits until the run has taken that many steps.
lines() {
  for _ in $(seq 2000); do
    [ "$(cat "$1/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$2" ] && return
    sleep 0.02
  done
  fail "$1 takes no steps: $(cat old.err)"
}
# gone PID: waits until it has ended; its exit code is in `code`.
gone() {
  for _ in $(seq 2000); do kill -0 "$1" 2>/dev/null || break; sleep 0.02; done
  kill -9 "$1" 2>/dev/null && fail "it goes on"
  wait "$1"
  code=$?
}
steps_once() { [ "$(sed 's/^{"step": *\([0-9]*\).*/\1/' "$1/metrics.jsonl" | tr '\n' ' ')" = "$(seq -s ' ' "$2") " ]; }

set -- "$tiny" steps=1000000 optimizer.schedule=constant
for snapshots in 0 3; do
  for moment in 1 2 3; do # the new one is at work, stopped too, or still starting as the old one wakes up
    name=taken-$snapshots-$moment
    "$ISOTACH" train "$@" run=$name checkpoint.snapshot_every=$snapshots >old.out 2>old.err </dev/null &
    old=$!
    lines $name $((10 * moment))
    stop $old
    # Silent for less than a minute, it is not replaced; nor without being told to.
    run 6 train "$@" run=$name --take-over
    grep -q "process $old on host $(hostname)" err || fail "a run in use: $(cat err)"
    touch -d '2 minutes ago' $name/lock
    run 6 train "$@" run=$name
    grep -q "process $old on host $(hostname).*--take-over" err || fail "a silent owner: $(cat err)"
    touch -d '2 minutes ago' $name/lock
    rm -f new.out new.err
    "$ISOTACH" train "$@" run=$name checkpoint.snapshot_every=$snapshots --take-over >new.out 2>new.err </dev/null &
    new=$!
    for _ in $(seq 2000); do grep -q resuming new.out 2>/dev/null && break; sleep 0.02; done
    grep -q "taking over from process $old" new.err || fail "--take-over: $(cat new.err)"
    began=$(sed -n 's/^# resuming after step \([0-9]*\) .*/\1/p' new.out)
    [ "$moment" -eq 3 ] || lines $name $((began + 5))
    if [ "$moment" -eq 2 ]; then
      stop $new
      cp -r $name before
    fi
    kill -CONT $old
    gone $old
    [ "$code" -eq 6 ] || fail "$name: the one that was replaced ends with $code: $(cat old.err)"
    grep -q 'incarnation 2 has begun, so incarnation 1 must not write\|another one has taken the run over; this one ends' old.err || fail "$name: it does not say why: $(cat old.err)"
    if [ "$moment" -eq 2 ]; then
      rm -rf before/snapshots/*.tmp
      cmp -s before/status.json $name/status.json || fail "$name: status.json is now $(cat $name/status.json)"
      cmp -s before/metrics.jsonl $name/metrics.jsonl || fail "$name: metrics.jsonl was changed"
      kill -CONT $new
    fi
    # The new one still owns the folder, though the kernel's lock has gone with the old one.
    run 6 train "$@" run=$name stop_at=1
    grep -q "process $new on host" err || fail "$name: the new owner is not respected: $(cat err)"
    lines $name $((began + 10))
    kill -TERM $new
    gone $new
    [ "$code" -eq 75 ] || fail "$name: the new one ends with $code: $(cat new.err)"
    last=$(wc -l <$name/metrics.jsonl)
    steps_once $name "$last" || fail "$name: metrics.jsonl does not have each step once"
    grep -q '"incarnation": 2' $name/status.json || fail "$name: status.json: $(cat $name/status.json)"
    [ "$(sed -n 's/.*"durable_step": \([0-9]*\).*/\1/p' $name/status.json)" -eq "$last" ] || fail "$name: $(cat $name/status.json)"
    run 0 verify $name --replay
    rm -rf whole before
    run 0 train "$@" run=whole stop_at="$last" checkpoint.snapshot_every=0
    [ "$(digest_of $name)" = "$(digest_of whole)" ] || fail "$name ends with other bits"
    run 0 train "$@" run=$name stop_at=$((last + 3))
    grep -q 'taking over' err && fail "$name: a released lock is taken over: $(cat err)"
  done
done

# Taken over by one that has not begun yet: the old one ends all the same, before it says anything more.
"$ISOTACH" train "$@" run=named >old.out 2>old.err </dev/null &
old=$!
lines named 10
stop $old
echo "elsewhere.example 4711 0a0b-boot 99" >named/lock
cp -r named before
kill -CONT $old
gone $old
[ "$code" -eq 6 ] || fail "its lock names another one, and it ends with $code: $(cat old.err)"
grep -q 'another one has taken the run over; this one ends' old.err || fail "it does not say why: $(cat old.err)"
for file in status.json lock; do same before/$file named/$file; done
# Stopped between its look at the lock and the writing of a line, it may still write that one.
lines=$(wc -l <before/metrics.jsonl)
head -n "$lines" named/metrics.jsonl | cmp -s - before/metrics.jsonl || fail "lines of metrics.jsonl were changed"
[ "$(wc -l <named/metrics.jsonl)" -le $((lines + 1)) ] || fail "it took more steps: $(tail -n 3 named/metrics.jsonl)"
run 0 verify named

# The claim of another host: respected while it may live, taken over when the user says that it does not.
cp -r whole other
echo "elsewhere.example 4711 0a0b-boot 99" >other/lock
run 6 train "$@" run=other --take-over
grep -q 'process 4711 on host elsewhere.example' err || fail "another host: $(cat err)"
touch -d '5 minutes ago' other/lock
run 6 train "$@" run=other
grep -q 'process 4711 on host elsewhere.example.*--take-over' err || fail "another host: $(cat err)"
touch -d '5 minutes ago' other/lock
run 0 train "$@" run=other stop_at=$((last + 3)) --take-over
grep -q 'taking over from process 4711 on host elsewhere.example' err || fail "another host: $(cat err)"
run 0 verify other
finish
