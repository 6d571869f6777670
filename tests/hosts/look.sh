# SPDX-License-Identifier: Apache-2.0
# labels: long
# Ranks on two hosts (network namespaces): doctor compares them and measures the links between them; a trace has both, by
# one clock.
. "$ISO_ROOT/tests/hosts/common.sh"

set -- "$tiny" threads=1 parallel.virtual_workers=4
across 2 1 "$ISOTACH" doctor --quick "$@" run=here --steps-s 0 --json >out 2>err
code=$?
[ $code -le 1 ] || fail "doctor on two hosts: exit code $code, $(cat err)"
python3 - out <<'EOF' || fail "doctor on two hosts: $(cat out err)"
import json, sys
said = json.load(open(sys.argv[1]))
rows = {c["check"]: c for c in said["checks"]}
assert "3 ranks on 2 hosts by Open MPI" in rows["ranks"]["found"] and rows["ranks"]["verdict"] == "ok", rows["ranks"]
found = rows["links of ranks"]["found"]
assert "0-1 " in found and "0-2 (hosts) " in found and "1-2 (hosts) " in found, found
assert len(said["links"]) == 3 and all(l["latency_ns"] > 0 and l["gb_per_s"] > 0 for l in said["links"])
assert rows["clock skew"]["verdict"] == "ok", rows["clock skew"]
EOF

across 1 1 "$ISOTACH" train "$@" steps=40 run=two --trace 60s >out 2>err || fail "a trace of two hosts: $(cat err)"
python3 - two/trace-00000001.json <<'EOF' || fail "a trace of two hosts: $(cat err)"
import json, sys
trace = json.load(open(sys.argv[1]))
spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
steps = {r: {e["args"]["step"]: e for e in spans if e["name"] == "step" and e["pid"] == r} for r in (0, 1)}
assert set(steps[1]) == set(range(2, 41)), sorted(steps[1])
for step, e in steps[1].items():
    other = steps[0][step]
    assert e["ts"] < other["ts"] + other["dur"] and other["ts"] < e["ts"] + e["dur"], (e, other)
names = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
assert names == {0: "rank 0 on isohost-a", 1: "rank 1 on isohost-b"}, names
EOF
finish
