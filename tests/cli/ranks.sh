# SPDX-License-Identifier: Apache-2.0
# Ranks of one host: the same bits on 1, 2, 3 and 4 of them, also when their number changes at each resume; a rank that
# is killed or stopped is named by the others within parallel.timeout_s, no process stays, and the run goes on as after
# any kill.
. "$ISO_ROOT/tests/cli/common.sh"

# children PID: processes that it has started, in order.
children() { cat /proc/"$1"/task/*/children 2>/dev/null; }

# gone WHAT PIDS...: none of them is there any more.
gone() {
  what=$1
  shift
  for process; do
    kill -0 "$process" 2>/dev/null || continue
    fail "$what: process $process is still there: $(tr '\0' ' ' <"/proc/$process/cmdline")"
    kill -KILL "$process"
  done
}

# A little vocabulary's gradient is above clip_norm, the batch's sequences score different numbers of tokens.
set -- "$tiny" threads=1 steps=24 parallel.virtual_workers=4
for n in 1 2 3 4; do
  run 0 train "$@" --ranks $n run=r$n
  [ -s err ] && grep -v 'log' err && fail "$n ranks said $(cat err)"
  [ $n -eq 1 ] || grep -q "^# $n ranks of this host, 1 thread each" out || fail "$n ranks: the start does not say so"
  run 0 digest r$n
  mv out digest.$n
  same digest.1 digest.$n
  sed 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*"grad_norm": \([^,]*\),.*/\1 \2 \3/' r$n/metrics.jsonl >losses.$n
  same losses.1 losses.$n
done
awk '{ if ($3 > 0.25) acts++ } END { exit acts < 12 }' losses.1 || fail "clipping hardly acts: $(cat losses.1)"
[ "$(cut -d' ' -f2 losses.1 | sort -u | wc -l)" -gt 20 ] || fail "losses: $(cat losses.1)"

# Of 128 workers a bucket is more than half of this state, for any number of ranks, which the frames of the log show (of
# four workers it is a fifteenth). The same bits, also when the run is resumed.
many() {
  run 0 train "$tiny" threads=1 steps=4 optimizer.warmup_steps=1 parallel.virtual_workers=128 batch.sequences=128 \
    batch.micro=1 data.sequence=9 model.config.hidden_size=128 model.config.vocab_size=3000 \
    model.config.intermediate_size=352 model.config.num_hidden_layers=3 log.compress=off "$@"
}
for n in 1 2 3; do
  many --ranks $n run=many$n
  run 0 digest many$n
  mv out many.$n
  same many.1 many.$n
  frames=$(grep -ao ISOFRAM many$n/log/*.log | wc -l)
  [ "$frames" -eq 12 ] || fail "128 workers, $n ranks: the log of 4 steps has $frames frames, not two and a commit each"
done
many --ranks 3 run=mixed128 stop_at=2
many --ranks 2 run=mixed128
run 0 digest mixed128
same many.1 out

# Sums over a tree in which two children have changed places are other sums.
swapped=$ISO_BUILD/isotach-swap-children
timeout -k 5 100 "$swapped" train "$@" --ranks 4 run=swapped >out 2>err || fail "swapped: $(cat err)"
run 0 digest swapped
cmp -s digest.1 out && fail "a tree with swapped children gave the same bits"

# What ranks share out changes no bits. A rank that dies while it updates its part of the state that all share leaves
# none that is stored: the run goes on from the snapshot before.
for zero in 0 2 3; do
  run 0 train "$@" --ranks 3 run=zero$zero parallel.zero=$zero
  run 0 digest zero$zero
  same digest.1 out
done
for zero in 1 3; do
  dies=$ISO_BUILD/isotach-die-updating
  timeout -k 5 100 "$dies" train "$@" --ranks 2 run=dies$zero parallel.zero=$zero log.enabled=false checkpoint.snapshot_every=4 >out 2>err
  code=$?
  [ $code -eq 9 ] && grep -q 'rank 1 .* is gone' err || fail "died in its update: exit code $code, $(cat err)"
  run 0 verify dies$zero
  run 0 train "$@" --ranks 3 run=dies$zero parallel.zero=$zero log.enabled=false
  grep -q 'resuming after step 8 ' out || fail "died in the update of step 10: $(cat out)"
  run 0 digest dies$zero
  same digest.1 out
done

# Another number of ranks at each start: each replays the log of the one before. Two threads have the same bits.
run 0 train "$@" --ranks 4 run=mixed stop_at=7
run 0 train "$@" --ranks 3 run=mixed stop_at=13 threads=2 parallel.zero=0
run 0 train "$@" run=mixed stop_at=14
run 0 train "$@" --ranks 4 run=mixed stop_at=18 parallel.zero=3
run 0 train "$@" --ranks 2 run=mixed
run 0 digest mixed
same digest.1 out
run 0 verify mixed --replay
run 0 train "$@" --ranks 4 run=mixed
grep -q 'complete: step 24 of 24' out || fail "a complete run said $(tail -n 1 out)"

# `auto` is the ranks rounded up, and stays what it was.
run 0 train "$tiny" threads=1 steps=24 --ranks 3 run=auto stop_at=5
run 0 train "$tiny" threads=1 steps=24 run=auto stop_at=9
run 0 train "$tiny" threads=1 steps=24 --ranks 2 run=auto
run 0 digest auto
same digest.1 out

refused 2 'train: --ranks 5: more than the run'"'"'s 4 virtual workers (parallel.virtual_workers, fixed for its life), at most one rank each' \
  train "$@" --ranks 5 run=r4
refused 2 'train: --ranks must be from 1 to 256, not 0' train "$@" --ranks 0 run=r4
refused 3 "'SCRATCH/nowhere' does not exist; check the path" train "$@" --ranks 3 run=none data.sources.0.path=nowhere

# What all ranks find is said once, and is the verdict of all: a bad document, numbers that are not finite.
i=0
while [ $i -lt 400 ]; do
  echo "{\"text\": \"To be, or not to be, that is question $i: whether it is nobler in the mind to suffer\"}"
  i=$((i + 1))
done >bad.jsonl
echo '{"text": 7}' >>bad.jsonl
for ranks in 1 3; do
  run 4 train "$@" --ranks $ranks run=bad$ranks data.sources.0.path=bad.jsonl steps=400 optimizer.decay_steps=0
  grep 'error' err | sed "s/bad$ranks/bad/g" >bad.$ranks
  run 8 train "$@" --ranks $ranks run=big$ranks optimizer.lr=1000 optimizer.max_refused=2
  grep 'error' err | sed "s/big$ranks/big/g" >big.$ranks
done
same bad.1 bad.3
same big.1 big.3
[ "$(wc -l <bad.1)" -eq 1 ] && [ "$(wc -l <big.1)" -eq 1 ] || fail "said: $(cat bad.1 big.1)"

# Interrupted in all ways, one after the other in one run; its bits stay those of a run that never was.
options="threads=1 steps=1000000 optimizer.schedule=constant parallel.virtual_workers=4 parallel.timeout_s=2"

# begin RANKS: starts the run again, until it has taken a few steps; $processes are its ranks in order.
lines() { cat k/metrics.jsonl 2>/dev/null | wc -l; }
restarts=
begin() {
  before=$(lines)
  timeout -k 5 100 "$ISOTACH" train "$tiny" $options --ranks "$1" $restarts run=k >log 2>log.err &
  pid=$!
  for _ in $(seq 600); do
    [ "$(lines)" -ge $((before + 5)) ] && break
    sleep 0.05
  done
  keeper=$(children $pid)
  processes=$(children $keeper)
  [ "$(echo $processes | wc -w)" -eq "$1" ] || fail "not $1 ranks: $processes: $(cat log.err)"
}

# rank NUMBER: its process
rank() { echo $processes | cut -d' ' -f$(($1 + 1)); }

# ends WHAT CODE SECONDS: the run ends so, and leaves no process.
ends() {
  began=$(date +%s)
  wait $pid
  code=$?
  [ $code -eq "$2" ] || fail "$1: exit code $code, wanted $2: $(cat log.err)"
  [ $(($(date +%s) - began)) -le "$3" ] || fail "$1: took $(($(date +%s) - began)) s"
  gone "$1" $keeper $processes
}

# named WHAT PATTERN COUNT: so many ranks say so, each in one line, and nobody says another error.
named() {
  [ "$(grep -c "error: rank [0-9], .*: $2" log.err)" -eq "$3" ] || fail "$1: wanted $3 lines: $(cat log.err)"
  [ "$(grep -c 'error:' log.err)" -eq "$3" ] || fail "$1: wanted $3 errors: $(cat log.err)"
}

begin 4
victim=$(rank 2)
kill -KILL $victim
ends 'a killed rank' 9 10
named 'a killed rank' "rank 2 (host .*, process $victim) is gone" 3
grep -q '"verdict": "lost"' k/status.json && grep -q '"exit_code": 9' k/status.json || fail "status.json: $(cat k/status.json)"
run 0 verify k

begin 3
victim=$(rank 0)
kill -KILL $victim
ends 'rank 0 killed' 9 10
named 'rank 0 killed' "rank 0 (host .*, process $victim) is gone" 2
run 0 verify k

begin 4
victim=$(rank 1)
kill -STOP $victim
ends 'a stopped rank' 9 20
named 'a stopped rank' "rank 1 (host .*, process $victim) \(did nothing for 2 s\|is gone\)" 3 # gone: killed by its keeper
run 0 verify k

begin 2
victim=$(rank 0)
kill -STOP $victim
ends 'rank 0 stopped' 9 20
grep -q "rank 0 (process $victim) is stopped" log.err || fail "rank 0 stopped: $(cat log.err)"
run 0 verify k

begin 4
kill -KILL $keeper
wait $pid
for _ in $(seq 100); do
  alive=0
  for process in $processes; do kill -0 $process 2>/dev/null && alive=1; done
  [ $alive -eq 0 ] && break
  sleep 0.05
done
gone 'the process that looks after the ranks killed' $processes
run 0 verify k

# --restarts starts all again when one was lost, as often as it says, and says from which step.
restarts="--restarts 2"
begin 3
starts=1
for victim in 1 0; do
  kill -KILL "$(rank $victim)"
  starts=$((starts + 1))
  for _ in $(seq 600); do
    grep -q "^isotach: start $starts of at most 3: goes on behind step [0-9]*\$" log.err && break
    sleep 0.05
  done
  grep -q "^isotach: start $starts of at most 3: goes on behind step [0-9]*\$" log.err || fail "start $starts: $(cat log.err)"
  before=$(lines)
  for _ in $(seq 600); do
    [ "$(lines)" -ge $((before + 5)) ] && break
    sleep 0.05
  done
  processes=$(children $keeper)
done
kill -KILL "$(rank 2)"
ends 'the last start' 9 10
grep -q 'start 4' log.err && fail "started too often: $(cat log.err)"
run 0 verify k
begin 2
kill -TERM $pid
ends 'SIGTERM with --restarts' 75 20
restarts=

begin 3
kill -TERM $pid
ends SIGTERM 75 20
[ -s log.err ] && grep -q 'error' log.err && fail "SIGTERM: $(cat log.err)"
grep -q '"verdict": "stopped"' k/status.json || fail "status.json: $(cat k/status.json)"

stop=$(($(lines) + 10))
run 0 train "$tiny" $options --ranks 3 run=k stop_at=$stop
[ "$(lines)" -eq $stop ] || fail "metrics.jsonl has $(lines) lines, not $stop"
run 0 train "$tiny" $options run=single stop_at=$stop
run 0 digest single
mv out expected
run 0 digest k
same expected out
run 0 verify k --replay
finish
