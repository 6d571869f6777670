# SPDX-License-Identifier: Apache-2.0
#
# train --trace and isotach trace: the file is JSON that Perfetto's format describes, the sums are those of the steps,
# the bits are those of a run without it, and a damaged file is said to be one.
. "$ISO_ROOT/tests/cli/common.sh"

run 0 train "$tiny" run=plain steps=40
run 0 train "$tiny" run=traced steps=40 --trace 60s
file=traced/trace-00000001.json
[ -s $file ] || fail "no trace: $(cat err)"
grep -q "$file: steps 1 to 40" err || fail "the trace is not told of: $(cat err)"
isotach digest plain >a
isotach digest traced >b
same a b

# a run folder means its newest trace
cp $file traced/trace-00000000.json
run 0 trace traced
mv out newest
run 0 trace $file
same newest out
rm traced/trace-00000000.json
run 3 trace plain
grep -q "'plain' holds no trace-\*.json; record one with train --trace 10s" err || fail "no trace: $(cat err)"

# every line but the first and last is an object of its own; X events have ts and dur
python3 - $file <<'EOF' || fail "the trace is not what its format says"
import json, sys
trace = json.load(open(sys.argv[1]))
events = trace["traceEvents"]
spans = [e for e in events if e["ph"] == "X"]
assert {e["ph"] for e in events} == {"M", "X", "C"}, {e["ph"] for e in events}
assert all(e["dur"] >= 0 and e["ts"] >= 0 and e["pid"] == 0 for e in spans)
steps = [e for e in spans if e["name"] == "step"]
assert [e["args"]["step"] for e in steps] == list(range(1, 41))
assert trace["otherData"]["lost"] == 0 and trace["otherData"]["steps"] == 40
# spans of one track do not overlap unless one lies in the other, and instructions lie in the step they name
tracks = {}
for e in spans: tracks.setdefault(e["tid"], []).append(e)
assert 10 in tracks and 1 in tracks
bounds = {e["args"]["step"]: (e["ts"], e["ts"] + e["dur"]) for e in steps}
for tid, track in tracks.items():
    if tid < 10: continue
    track.sort(key=lambda e: e["ts"])
    for a, b in zip(track, track[1:]): assert a["ts"] + a["dur"] <= b["ts"] + 0.002, (a, b)
    for e in track:
        low, high = bounds[e["args"]["step"]]
        assert low - 0.002 <= e["ts"] and e["ts"] + e["dur"] <= high + 0.002, e
    assert any(e["name"] == "linear_cross_entropy" for e in track)
    assert any(e["args"].get("gflops", 0) > 0 and "[" in e["args"].get("shape", "") for e in track)
    assert any(e["cat"] == "update" for e in track)
# an instruction's FLOP are those of all its threads, and it takes as long as the slowest of them
compute = [t for tid, t in sorted(tracks.items()) if tid >= 10]
for same in zip(*compute):
    flop, slowest = same[0]["args"].get("flop", 0), max(e["dur"] for e in same) * 1e-6
    for e in same:
        assert e["name"] == same[0]["name"] and e["args"].get("flop", 0) == flop, same
        assert not flop or abs(e["args"]["gflops"] * slowest * 1e9 - flop) <= flop * 0.02 + 1e9 * slowest * 0.06 + 2e-9 * e["args"]["gflops"] * 1e9, (e, slowest)
EOF

run 0 trace $file
grep -q '^steps 1 to 40,' out || fail "no head: $(head -n 1 out)"
grep -q 'linear_cross_entropy\|adamw' out || fail "no ops: $(cat out)"
# the parts and the rest are the step; instructions and what lies between them are the computing
awk '/^(data wait|reduce wait|storage wait|compute|rest)  *[0-9]/ { sum += $(NF - 3) }
  /^compute  *[0-9]/ { compute = $(NF - 3) }
  /^step / { step = $(NF - 3) }
  /^critical path of a step: / { path = $6 }
  /^the other .* ms of computing lie between instructions: / { path += $3 }
  END { exit !(step > 0 && sum - step < 0.001 && step - sum < 0.001 && path - compute < 0.001 && compute - path < 0.001) }' out ||
  fail "the parts do not add up: $(cat out)"
grep -q '^the log wrote .* ms a step beside it, .*% of it hidden$' out || fail "no log: $(cat out)"
grep -q 'reductions' out && fail "reductions of one rank: $(cat out)"
run 0 trace $file --json
python3 - out $file <<'EOF' || fail "the sums are not those of the file: $(cat out)"
import json, sys
said, trace = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
steps = [e for e in spans if e["name"] == "step"]
assert abs(said["wall_s"]["mean"] - sum(e["args"]["wall_s"] for e in steps) / len(steps)) < 1e-9
assert all(e["args"]["wall_s"] <= e["dur"] * 1e-6 + 1e-8 for e in steps)
parts = ("data_wait_s", "reduce_wait_s", "storage_wait_s", "compute_s", "rest_s")
assert abs(sum(said[p]["mean"] for p in parts) - said["wall_s"]["mean"]) < 1e-6
total = sum(e["dur"] for e in spans if e["tid"] >= 10) * 1e-6 / len(steps)
assert abs(sum(op["thread_seconds_per_step"] for op in said["ops"]) - total) < 1e-4 * total
assert sum(op["critical_seconds_per_step"] for op in said["ops"]) <= total * 1.0001
waits = sorted(e["args"]["data_wait_s"] for e in steps)
assert abs(said["data_wait_s"]["p95"] - waits[37]) < 1e-12
# what is hidden is hidden of a step: one that waits longer than the work took takes nothing from others
for name, work, wait in (("storage_hidden", "log_write_s", "storage_wait_s"), ("data_hidden", "data_cpu_s", "data_wait_s")):
    all_s = sum(e["args"][work] for e in steps)
    hidden_s = sum(max(0, e["args"][work] - e["args"][wait]) for e in steps)
    assert all_s > 0 and abs(said[name] - hidden_s / all_s) < 1e-6, (name, said[name], hidden_s / all_s)
assert said["reduce_hidden"] is None and said["first_step"] == 1
EOF

# with ranks: each is a process, what goes on beside the steps are threads, and the bits are those without a trace
cat >schema.py <<'EOF'
# The Trace Event Format, as far as these files use it, strictly: JSON without NaN, and each event as its phase has it.
import json, sys

def never(word):
    raise ValueError(word)

def check(path):
    trace = json.load(open(path, encoding="utf-8"), parse_constant=never)
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"} and trace["displayTimeUnit"] in ("ms", "ns")
    named, used = set(), set()
    for e in trace["traceEvents"]:
        assert type(e["pid"]) is int and e["pid"] >= 0 and type(e["name"]) is str and type(e["args"]) is dict, e
        if e["ph"] == "X":
            assert set(e) == {"ph", "pid", "tid", "name", "cat", "ts", "dur", "args"}, e
            assert type(e["tid"]) is int and type(e["cat"]) is str, e
            assert all(type(e[k]) in (int, float) and e[k] >= 0 for k in ("ts", "dur")), e
            used.add((e["pid"], e["tid"]))
        elif e["ph"] == "C":
            assert type(e["ts"]) in (int, float) and e["ts"] >= 0 and e["args"], e
            assert all(type(v) in (int, float) for v in e["args"].values()), e
        elif e["ph"] == "M":
            assert e["name"] in ("process_name", "process_sort_index", "thread_name"), e
            if e["name"] == "thread_name": named.add((e["pid"], e["tid"]))
            if e["name"] != "process_sort_index": assert type(e["args"]["name"]) is str, e
        else:
            raise AssertionError(e)
    assert used <= named, used - named # each track has a name
    return trace

# The parts of each step, by rank and step: one after another, in the step, and each wait as long as the step says.
def parts(trace):
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == 1]
    steps = {(e["pid"], e["args"]["step"]): e for e in spans if e["name"] == "step"}
    found = {}
    for e in spans:
        if e["name"] != "step": found.setdefault((e["pid"], e["args"]["step"]), []).append(e)
    for key, step in steps.items():
        mine = sorted(found[key], key=lambda e: e["ts"])
        assert step["ts"] - 0.002 <= mine[0]["ts"] and mine[-1]["ts"] + mine[-1]["dur"] <= step["ts"] + step["dur"] + 0.002, step
        for a, b in zip(mine, mine[1:]): assert a["ts"] + a["dur"] <= b["ts"] + 0.002, (a, b)
        sums = {}
        for e in mine:
            assert e["cat"] == ("wait" if e["name"].endswith(" wait") else e["name"]), e
            sums[e["name"]] = sums.get(e["name"], 0) + e["dur"] * 1e-6
        # spans reach around what the parts of the budget time, so they are no shorter
        for name in ("reduce", "storage"):
            assert sums.get(name + " wait", 0) >= step["args"][name + "_wait_s"] - 1e-8, (name, sums, step)
        assert sums["compute"] >= step["args"]["compute_s"] - 1e-8, (sums, step)
        assert set(sums) <= {"left out", "data wait", "reduce wait", "storage wait", "compute", "account"}, sums
        # what is left out is no part of the step's time
        assert abs(step["dur"] * 1e-6 - sums.get("left out", 0) - step["args"]["wall_s"]) < 2e-5, (sums, step)
    return steps

if __name__ == "__main__": parts(check(sys.argv[1]))
EOF
python3 schema.py $file || fail "the trace is not in its format"
set -- "$tiny" steps=40 threads=1 parallel.virtual_workers=4 checkpoint.snapshot_every=10
run 0 train "$@" run=plain2 --ranks 2
run 0 train "$@" run=ranks2 --ranks 2 --trace 60s
isotach digest plain2 >a
isotach digest ranks2 >b
same a b
[ -z "$(ls ranks2/*.part ranks2/*.tmp ranks2/*.next 2>/dev/null)" ] || fail "parts are left: $(ls ranks2)"
python3 - ranks2/trace-00000001.json <<'EOF' || fail "the trace of two ranks is not what it should be"
import sys
import schema
trace = schema.check(sys.argv[1])
spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
assert trace["otherData"]["ranks"] == 2 and {e["pid"] for e in spans} == {0, 1}
names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
assert names[0].startswith("rank 0 on ") and names[1].startswith("rank 1 on "), names
steps = {r: {e["args"]["step"]: e for e in spans if e["name"] == "step" and e["pid"] == r} for r in (0, 1)}
assert set(steps[0]) == set(range(1, 41)) and set(steps[1]) == set(range(2, 41)), (len(steps[0]), len(steps[1]))
for step, e in steps[1].items(): # one clock: what they call the same step is at the same time
    other = steps[0][step]
    assert e["ts"] < other["ts"] + other["dur"] and other["ts"] < e["ts"] + e["dur"], (e, other)
schema.parts(trace)
# with ranks others round, and each rank updates its part: nothing is counted twice
elements = 0
for rank in (0, 1):
    own = [e for e in spans if e["pid"] == rank and e["tid"] == 10 and e["args"]["step"] == 20]
    idle = [e for e in own if e["args"]["bytes"] == 0]
    assert all(e["args"]["flop"] == 0 and e["args"]["gflops"] == 0 for e in idle)
    assert {e["name"] for e in idle} == {"grad_round_part", "grad_squares"}, {e["name"] for e in idle}
    assert all(e["args"]["bytes"] == 0 for e in own if e["name"] == "grad_squares")
    # the last pass of two leaves adds one to the other: a FLOP for each element
    folded = [e["args"]["flop"] for e in own if e["name"] == "grad_round_part" and e["args"]["flop"]]
    passes = sum(e["name"] == "linear_cross_entropy" for e in own)
    assert passes > 1 and len(folded) * passes == sum(e["name"] == "grad_round_part" for e in own), (len(folded), passes)
    elements += sum(e["args"]["flop"] for e in own if e["name"] == "adamw") / 14
    if rank: assert abs(elements - sum(folded)) <= 2, (elements, sum(folded))
for rank in (0, 1):
    comm = [e for e in spans if e["pid"] == rank and e["tid"] == 2]
    assert {e["name"] for e in comm} == {"agree", "reduce", "gather"} and all(e["cat"] == "comm" for e in comm)
    assert all(e["args"]["bytes"] > 0 for e in comm if e["name"] != "agree")
    assert any(e["pid"] == rank and e["tid"] == 10 and e["args"].get("gflops", 0) > 0 for e in spans)
log = [e for e in spans if e["pid"] == 0 and e["tid"] == 3]
assert [e["args"]["number"] for e in log if e["name"] == "log step"] == list(range(1, len(log) + 1)) and len(log) > 20
assert any(e["tid"] == 4 and e["name"] == "snapshot" and e["args"]["bytes"] > 0 for e in spans)
EOF
run 0 trace ranks2/trace-00000001.json --rank 1
grep -q '^steps 2 to 40, 2 ranks, rank 1: 1 compute thread' out || fail "no head: $(head -n 1 out)"
grep -q 'the log wrote' out && fail "rank 1 has no log: $(cat out)"
run 0 trace ranks2/trace-00000001.json --rank 0
grep -q '^steps 1 to 40, 2 ranks, rank 0: 1 compute thread' out || fail "no head: $(head -n 1 out)"
grep -q '^reductions took .* ms a step beside it, .*% of it hidden' out || fail "no overlap of reductions: $(cat out)"
run 0 trace ranks2/trace-00000001.json --rank 1 --json
python3 - out <<'EOF' || fail "the sums of ranks: $(cat out)"
import json, sys
said = json.load(open(sys.argv[1]))
assert said["first_step"] == 2 and said["steps"] == 39
assert said["rank"] == 1 and said["ranks_of_the_run"] == 2 and [r["rank"] for r in said["ranks"]] == [0, 1]
assert sum(r["critical_steps"] for r in said["ranks"]) == 40
for r in said["ranks"]:
    assert r["storage_hidden"] is None if r["rank"] else 0 <= r["storage_hidden"] <= 1
    assert r["compute_s"]["p95"] > 0 and r["reduce_wait_s"]["p95"] > 0 and 0 <= r["reduce_hidden"] <= 1
    assert r["critical_path_s"] > 0 and r["reduce_s_per_step"] > 0
EOF
run 2 trace ranks2/trace-00000001.json --rank 2

# each step waits for the snapshot of the one before it: at its gate, or before it begins
run 0 train "$tiny" run=snaps threads=1 steps=20 checkpoint.snapshot_every=1 evaluate.every=5 --trace 60s
python3 schema.py snaps/trace-00000001.json || fail "waits for snapshots are not told"
[ "$(grep -c '"name": "left out"' snaps/trace-00000001.json)" -ge 3 ] || fail "evaluations are not told of"

# SIGUSR2 asks for one of a run under way
timeout -k 5 100 "$ISOTACH" train "$tiny" run=asked steps=1000000 threads=1 --ranks 2 >out 2>err &
until [ -s asked/metrics.jsonl ]; do sleep 0.1; done
kill -USR2 "$(cut -d" " -f2 asked/lock)"
sleep 1
kill -TERM "$(cut -d" " -f2 asked/lock)"
wait
asked=$(ls asked/trace-*.json 2>/dev/null)
[ -n "$asked" ] || fail "SIGUSR2 left no trace: $(cat err)"
python3 schema.py "$asked" || fail "the trace that was asked for is not in its format"
[ -z "$(ls asked/*.part asked/*.tmp asked/*.next 2>/dev/null)" ] || fail "parts are left: $(ls asked)"

# one that cannot be written ends no run, leaves nothing behind, and is told of in one line
told() { # WHAT LINE, with * for numbers
  [ "$(cat code)" = 0 ] || fail "$1: exit code $(cat code): $(cat err)"
  [ "$(grep -c trace- err)" = 1 ] || fail "$1: said $(cat err)"
  case $(grep trace- err) in "isotach: error: "$2) ;; *) fail "$1: said $(cat err)" ;; esac
  same a c
  grep -q '^trace-' listed && fail "$1: left $(cat listed)"
}
isotach digest plain >a
(
  ulimit -f 3500 # kB or half of them: more than a snapshot takes, less than the trace
  timeout -k 5 100 "$ISOTACH" train "$tiny" run=large threads=1 log.enabled=false --trace 60s >out 2>err </dev/null
  echo $? >code
)
isotach digest large >c
ls large >listed
told "a trace that is too large" "cannot write 'large/trace-00000001.json.next': File too large"
mkdir full
cat >full.sh <<'EOF'
mount -t tmpfs -o size=2800k tmpfs full 2>/dev/null || exit 77
timeout -k 5 100 "$ISOTACH" train "$1" run=full/run threads=1 log.enabled=false --trace 0.001s >out 2>err </dev/null
echo $? >code
"$ISOTACH" digest full/run >c
ls full/run >listed
EOF
if unshare -rm sh full.sh "$tiny" 2>/dev/null; then
  told "a trace without room" "full/run/trace-00000001.json: no trace, training goes on: it takes up to *.* MB and is to leave room for two snapshots, of *.* MB, but *.* MB are free; free some space"
else
  echo "skipped in part: no small file system can be mounted here, so no trace is without room"
fi

# what a start that was killed left of its traces goes; what nobody but a user can have put there stays
run 0 train "$tiny" run=left steps=20 stop_at=10 threads=1
mkdir left/trace-00000003.json.next
ln -s nowhere left/trace-00000004.json.next
for name in trace-00000001.json.next trace-00000001.rank-1.part trace-00000001.rank-1.part.next; do echo cut >left/$name; done
echo whole >left/trace-00000002.json
run 0 train "$tiny" run=left steps=20 threads=1
ls left | grep '^trace-' >listed
printf 'trace-0000000%s\n' 2.json 3.json.next 4.json.next | cmp -s - listed || fail "of old traces there are $(cat listed)"

# what is no trace, or one that is cut
echo '{}' >other.json
refused 4 "other.json is no trace of isotach train --trace" trace other.json
head -n 50 $file >cut.json
refused 4 "cut.json ends before its last line: it is cut short; trace again" trace cut.json
run 3 trace nowhere.json
for time in soon "" 0x10s 1e-9s " 1s" "1s " +1s .s .5s 1. 1.s 1.2.3s 1,5s 0s 0.0 1m nans inf 1000000s; do
  refused 2 "train: --trace \"$time\" is not a time; write seconds, as in --trace 10s" train "$tiny" run=x --trace "$time"
done
finish
