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
EOF

run 0 trace $file
grep -q '^steps 1 to 40,' out || fail "no head: $(head -n 1 out)"
grep -q 'linear_cross_entropy\|adamw' out || fail "no ops: $(cat out)"
run 0 trace $file --json
python3 - out $file <<'EOF' || fail "the sums are not those of the file: $(cat out)"
import json, sys
said, trace = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
steps = [e for e in spans if e["name"] == "step"]
assert abs(said["wall_s"]["mean"] - sum(e["dur"] for e in steps) / len(steps) * 1e-6) < 1e-9
total = sum(e["dur"] for e in spans if e["tid"] >= 10) * 1e-6 / len(steps)
assert abs(sum(op["thread_seconds_per_step"] for op in said["ops"]) - total) < 1e-4 * total
assert sum(op["critical_seconds_per_step"] for op in said["ops"]) <= total * 1.0001
waits = sorted(e["args"]["data_wait_s"] for e in steps)
assert abs(said["data_wait_s"]["p95"] - waits[37]) < 1e-12
EOF

# SIGUSR2 asks for one of a run under way
isotach train "$tiny" run=asked steps=100000 >out 2>err &
until [ -s asked/metrics.jsonl ]; do sleep 0.1; done
kill -USR2 "$(cut -d" " -f2 asked/lock)"
sleep 1
kill -TERM "$(cut -d" " -f2 asked/lock)"
wait
ls asked/trace-*.json >/dev/null 2>&1 || fail "SIGUSR2 left no trace: $(cat err)"

# what is no trace, or one that is cut
echo '{}' >other.json
refused 4 "other.json is no trace of isotach train --trace" trace other.json
head -n 50 $file >cut.json
refused 4 "cut.json ends before its last line: it is cut short; trace again" trace cut.json
run 3 trace nowhere.json
refused 2 "train: --trace soon is not a time; write seconds, as in --trace 10s" train "$tiny" run=x --trace soon
finish
