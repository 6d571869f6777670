# SPDX-License-Identifier: Apache-2.0
#
# Faults put into a run under way are said by the right name: a rank that is stopped again and again, a run that is
# squeezed to one processor. What comes next is said, too, though the sign is out already. (Slow storage, a slow source: tests/train/test_budget.c; memory, clocks: test_signs.c.)
# A verdict closes each run, also one that was killed in between.
. "$ISO_ROOT/tests/cli/common.sh"
export ISOTACH_WINDOW_S=1

# started RUN: its first step is taken.
started() {
  for _ in $(seq 600); do
    [ -s "$1/metrics.jsonl" ] && return
    sleep 0.05
  done
  fail "$1 did not start: $(cat err)"
}

# ended RUN PID: stops it in an orderly way.
ended() {
  kill -TERM "$(cut -d" " -f2 "$1/lock")"
  wait "$2"
  code=$?
  [ $code -eq 75 ] || fail "$1: exit code $code: $(cat err)"
}

# stands_still PID PATTERN: it stands still for 0.15 s, most of the time, until a breach is as in the pattern.
stands_still() {
  for _ in $(seq 300); do
    kill -STOP "$1"
    sleep 0.15
    kill -CONT "$1"
    grep -q "$2" jitter/breaches.jsonl 2>/dev/null && break
    sleep 0.1
  done
}

# One of two ranks, then the other.
timeout -k 5 140 "$ISOTACH" train "$tiny" run=jitter steps=1000000 threads=1 --ranks 2 >out 2>err &
pid=$!
started jitter
owner=$(cut -d" " -f2 jitter/lock)
launcher=$(cut -d" " -f4 "/proc/$owner/stat")
other=$(tr " " "\n" <"/proc/$launcher/task/$launcher/children" | grep -v "^$owner\$" | head -n 1)
stands_still "$other" '"sign": "allreduce_wait".*"rank": 1, .*"cause": "stopped"' # others on this machine may be said before
stands_still "$owner" '"event": "change", "sign": "allreduce_wait".*"rank": 0, .*"cause": "stopped"'
ended jitter $pid
grep -q '"sign": "allreduce_wait".*"rank": 1, .*"cause": "stopped"' jitter/breaches.jsonl ||
  fail "a rank that is stopped is not named: $(cat jitter/breaches.jsonl)"
[ "$(grep -c "sign allreduce_wait is out of bounds" err)" -eq 1 ] || fail "not said once: $(cat err)"
grep -q "sign allreduce_wait .*: rank [01] waits .*; rank 1, host .*, since step .*; cause: stopped" err ||
  fail "said otherwise: $(cat err)"
grep -q "sign allreduce_wait stays out of bounds, now by another rank or cause: rank [01] waits .*; rank 0, host .*; cause: stopped" err ||
  fail "the second rank is not said: $(cat err)"
grep -q "^# where the rest went: .*rank [0-9.]* s ([0-9.]*%, waiting for rank [01] on [^ ]" out ||
  fail "who is waited for is not named: $(cat out)"
python3 - jitter <<'END' || fail "what stands in jitter does not agree"
import json, sys
run = sys.argv[1]
lines = [json.loads(l) for l in open(run + "/breaches.jsonl")]
live = json.load(open(run + "/vitals.json"))
status = json.load(open(run + "/status.json"))
waits = [l for l in lines if l["sign"] == "allreduce_wait"]
assert [l["event"] for l in waits if l["event"] != "change"] == ["begin", "end"], waits
assert waits[-1]["event"] == "end" and waits[-1]["step"] == status["step"] and waits[-1]["seconds"] > 2
assert all(l["measure"] in ("mean", "std") for l in waits)
sign = live["signs"][1]
assert sign["out"] and sign["rank"] == waits[-1]["rank"] and sign["cause"] == waits[-1]["cause"], sign
assert live["step"] == status["step"] and live["durable_step"] == status["durable_step"], (live["step"], status)
assert live["log_behind"] == live["step"] - live["durable_step"]
cause = [c for c in json.load(open(run + "/report.json"))["causes"] if c["cause"] == "rank"][0]
assert cause["host"] and "waited for other ranks" in cause["detail"], cause
END
run 0 verify jitter

# Two compute threads on one processor.
if [ "$(nproc)" -gt 1 ]; then
  cpu=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
  timeout -k 5 140 "$ISOTACH" train "$tiny" run=squeeze steps=1000000 threads=2 >out 2>err &
  pid=$!
  started squeeze
  taskset -acp "$cpu" "$(cut -d" " -f2 squeeze/lock)" >/dev/null
  for _ in $(seq 600); do
    grep -q '"sign": "flatness"' squeeze/breaches.jsonl 2>/dev/null && break
    sleep 0.1
  done
  ended squeeze $pid
  line=$(grep '"event": "begin", "sign": "flatness"' squeeze/breaches.jsonl)
  case $line in
  *'"cause": "preempted"'*'it may use 1 processor'*) ;;
  *) fail "a squeeze is not named: $line" ;;
  esac
fi

# A run that is killed, and goes on: the verdict is of all of it.
"$ISOTACH" train "$tiny" run=killed steps=60 checkpoint.snapshot_every=20 log.enabled=false >out 2>err &
pid=$!
until [ "$(cat killed/metrics.jsonl 2>/dev/null | wc -l)" -ge 30 ]; do kill -0 $pid 2>/dev/null || break; done
kill -KILL $pid
wait $pid
run 0 train "$tiny" run=killed steps=60 checkpoint.snapshot_every=20 log.enabled=false
grep -q "^# \(not \)\{0,1\}level: P99 of the steps is .* of the time was useful compute, " out || fail "no verdict: $(cat out)"
grep -q "^# where the rest went: " out || fail "no causes: $(cat out)"
python3 - killed <<'EOF' || fail "the report does not add up"
import glob, json, sys
run = sys.argv[1]
lines = [json.loads(l) for l in open(run + "/metrics.jsonl")]
report = json.load(open(run + "/report.json"))
aside = [json.loads(l) for f in glob.glob(run + "/aside/metrics-*.jsonl") for l in open(f) if l.endswith("}\n")]
assert [l["step"] for l in lines] == list(range(1, 61))
assert report["steps_run_again"] == len(aside), (report["steps_run_again"], len(aside))
assert report["durable_steps_run_again"] == 0
starts = report["starts"]
assert sum(s["steps"] for s in starts) == 60 and sum(s["steps_run_again"] for s in starts) == len(aside)
assert starts[0]["begins_after"] == 0
parts = ["compute_s", "data_wait_s", "reduce_wait_s", "storage_wait_s", "other_s"]
for l in lines:
    assert abs(sum(l[p] for p in parts) + l["unaccounted_s"] - l["wall_s"]) < 1e-6 * l["wall_s"] + 1e-9, l
    assert 0 <= l["preempted_s"] <= l["compute_s"]
wall = sum(l["wall_s"] for l in lines)
assert abs(report["budget"]["wall_s"]["sum"] - wall) < 1e-6 * wall
assert 0 < report["effective_training_share"] < 1
assert report["open_steps"] == sum(abs(l["unaccounted_s"]) > 0.01 * l["wall_s"] for l in lines)
walls = sorted(l["wall_s"] for l in lines)
assert abs(report["flatness"]["p99_over_median"] - walls[59] / walls[29]) < 1e-6
first, last = sum(l["wall_s"] for l in lines[:6]), sum(l["wall_s"] for l in lines[-6:])
assert abs(report["flatness"]["last_over_first_tenth"] - first / last) < 1e-6
assert report["ranks"][0]["rank"] == 0 and report["ranks"][0]["wall_s"]["p50"] > 0
assert all(c["seconds"] > 0 for c in report["causes"])
live = json.load(open(run + "/vitals.json"))
assert live["step"] == 60 and len(live["ranks"]) == 1 and len(live["signs"]) == 4
assert live["durable_step"] == 60 and live["log_behind"] == 0 and live["eta_s"] == 0
assert lines[-1]["allreduce_wait"] is None and live["signs"][1]["value"] is None  # there is one rank
EOF
finish
