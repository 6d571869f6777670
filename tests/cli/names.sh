# SPDX-License-Identifier: Apache-2.0
#
# docs/metrics.md has every name: a run with several sources and ranks, a mirror, a breach, a stop and a trace; each
# member of what it wrote stands there, in the section of its file.
. "$ISO_ROOT/tests/cli/common.sh"
export ISOTACH_WINDOW_S=0.05

sed 's#^tokenizer:.*#tokenizer: {path: '"$ISO_ROOT"'/examples/tiny/tokenizer}#
  s#^  sources:.*#  sources: [{path: '"$ISO_ROOT"'/examples/tiny/plays.txt, separator: "\\n\\n", weight: 2}, {path: more.txt, separator: "\\n\\n", weight: 1}]#' "$tiny" >run.yaml
cp "$ISO_ROOT/examples/tiny/plays.txt" more.txt
set -- run.yaml run=r steps=1000000 checkpoint.mirror=mirror parallel.virtual_workers=2 threads=1
timeout -k 5 140 "$ISOTACH" train "$@" --ranks 2 --trace 1s >out 2>err </dev/null &
pid=$!
until [ -s r/metrics.jsonl ]; do
  kill -0 $pid 2>/dev/null || break
  sleep 0.05
done
owner=$(cut -d" " -f2 r/lock)
for _ in $(seq 300); do # some steps are late, until a sign is out
  [ -s r/breaches.jsonl ] && [ -s r/vitals.json ] && ls r/trace-*.json >/dev/null 2>&1 && break
  stop "$owner"
  sleep 0.05
  kill -CONT "$owner"
  sleep 0.1
done
cp r/status.json running.json
kill -TERM "$owner"
wait $pid
code=$?
[ $code -eq 75 ] || fail "it is not stopped: exit code $code: $(cat err)"
step=$(sed -n 's/.*"step": \([0-9]*\),.*/\1/p' r/status.json)
run 0 train "$@" stop_at=$((step + 5))
isotach trace r/trace-*.json --json >trace.json || fail "no trace: $(cat err)"

python3 - "$ISO_ROOT/docs/metrics.md" <<'EOP' || fail "docs/metrics.md lacks names"
import glob, json, re, sys

page = open(sys.argv[1], encoding="utf-8").read()
sections = {part.split("\n", 1)[0].strip("`"): set(re.findall(r"`([a-z0-9_]+)`", part)) for part in page.split("\n## ")}
homes = {"metrics": ("metrics.jsonl",), "breaches": ("Signs",), "status": ("status.json",), "running": ("status.json",),
         "vitals": ("vitals.json", "Signs"), "report": ("report.json",), "starts": ("starts.json", "report.json"), "trace": ("Traces",), "trace --json": ("Traces",)}
budget = sections["The budget of a step"] # these may stand there alone

def names(value, where, out):
    if isinstance(value, list):
        for one in value: names(one, where, out)
    elif isinstance(value, dict):
        for key, member in value.items():
            if where.endswith(".fusion.rows"): # names of fusions: docs/ir.md
                names(member, where + ".*", out)
                continue
            out.setdefault(key, where)
            names(member, where + "." + key, out)

files = {"metrics": "r/metrics.jsonl", "breaches": "r/breaches.jsonl"}
per = {}
for name, path in files.items():
    for line in open(path, encoding="utf-8"): names(json.loads(line), name, per.setdefault(name, {}))
for name, path in {"report": "r/report.json", "starts": "r/starts.json", "vitals": "r/vitals.json", "status": "r/status.json",
                   "running": "running.json", "trace --json": "trace.json"}.items():
    names(json.load(open(path, encoding="utf-8")), name, per.setdefault(name, {}))
for e in json.load(open(glob.glob("r/trace-*.json")[0], encoding="utf-8"))["traceEvents"]:
    if e["name"] == "step" and e["ph"] == "X": names(e["args"], "trace", per.setdefault("trace", {}))
# what the run was made for is there
for name, wanted in {"metrics": ("wall_s", "breached"), "breaches": ("detail", "memory_bytes"), "vitals": ("machine", "signs"),
                     "report": ("sources", "packed_steps", "fusion", "causes", "starts"),
                     "status": ("mirrored_step", "exit_code"), "trace --json": ("critical_path_s", "rest_s"),
                     "trace": ("log_write_s",)}.items():
    for one in wanted: assert one in per[name], (name, one)
lacking = {}
for name, one in per.items():
    known = budget.union(*(sections.get(home, set()) for home in homes[name]))
    lacking.update((key, where) for key, where in one.items() if key not in known)
if lacking: sys.exit("not in docs/metrics.md: " + ", ".join(f"{key} ({where})" for key, where in sorted(lacking.items())))
EOP
finish
