# SPDX-License-Identifier: Apache-2.0
# Ranks of one host: the same bits on 1, 2, 3 and 4 of them, also when their number changes at each resume; a rank that
# is killed or stopped is named by the others within parallel.timeout_s, no process stays, and the run goes on as after
# any kill.
. "$ISO_ROOT/tests/cli/common.sh"

# processes PID: those that it has started, and they.
children() { cat /proc/"$1"/task/*/children 2>/dev/null; }

# ranks PID: processes of the ranks that `timeout`, PID, has started by way of the process that looks after them.
ranks() { for keeper in $(children "$1"); do children "$keeper"; done; }

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

# Another number of ranks at each start: each replays the log of the one before. Two threads have the same bits.
run 0 train "$@" --ranks 4 run=mixed stop_at=7
run 0 train "$@" --ranks 3 run=mixed stop_at=13 threads=2
run 0 train "$@" run=mixed stop_at=14
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

refused 2 'train: --ranks 5 is more than the run'"'"'s 4 virtual workers (parallel.virtual_workers, fixed for its life): at most one rank each' \
  train "$@" --ranks 5 run=r4
refused 2 'train: --ranks must be at least 1, not 0' train "$@" --ranks 0 run=r4
refused 3 "$(isotach train "$@" run=none data.sources.0.path=nowhere 2>&1 | sed 's/^isotach: error: //')" \
  train "$@" --ranks 3 run=none data.sources.0.path=nowhere

# Long enough to be interrupted; `started` waits until the run has taken its first steps.
set -- "$tiny" threads=1 steps=1000000 optimizer.schedule=constant parallel.virtual_workers=4 parallel.timeout_s=2
begin() { # RUN
  run_folder=$1
  timeout -k 5 100 "$ISOTACH" train "$@" --ranks 4 >log 2>log.err &
  pid=$!
  for _ in $(seq 400); do
    [ "$(wc -l 2>/dev/null <"$run_folder/metrics.jsonl" || echo 0)" -ge 5 ] && break
    sleep 0.05
  done
  processes=$(ranks $pid)
  [ "$(echo $processes | wc -w)" -eq 4 ] || fail "not 4 ranks: $processes: $(cat log.err)"
}
