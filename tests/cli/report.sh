# SPDX-License-Identifier: Apache-2.0
#
# report.html: each end of a run leaves one that says how it ended, a resume is in it, verify sees damage, and a page
# that cannot be written ends no run. What it holds: tests/vitals/test_report.c; how it looks: report_browser.sh.
. "$ISO_ROOT/tests/cli/common.sh"

verdict() { grep -q "\"run\": \"$1\", \"verdict\": \"$2\"" "$1/report.html" || fail "$1/report.html does not say $2: $(head -c 300 "$1/report.html")"; }

run 0 train "$tiny" run=r steps=40 stop_at=20
verdict r done
grep -q '"steps": 20, "steps_per_point": 1' r/report.html || fail "not 20 steps: $(grep '"steps_per_point"' r/report.html)"
run 0 train "$tiny" run=r steps=40
grep -q '"steps": 40, "steps_per_point": 1' r/report.html || fail "not 40 steps: $(grep '"steps_per_point"' r/report.html)"
grep -q '{"number": 2, "begins_after": 20, "ranks": 1, .*"steps": 20, "first": 21, "last": 40, ' r/report.html ||
  fail "the resume is not told: $(grep '"begins_after"' r/report.html)"
grep -q '"bits_per_byte": ' r/report.html || fail "report.json is not in the page"
[ "$(tail -n 1 r/report.html | grep -c '^<!-- crc32c:[0-9a-f]* -->$')" -eq 1 ] || fail "no CRC at the end"
run 0 verify r
sed -i 's/begins_after/begins_later/' r/report.html
run 1 verify r
grep -q '^report.html: it does not end in the CRC-32C of what it holds: cut or altered$' out || fail "verify said $(cat out)"

# going back takes steps again, which is said
run 0 train "$tiny" run=r steps=40 --from-step 20
grep -q '{"incarnation": 2, "begins_after": 20, "steps": 0, "steps_run_again": 20}' r/report.html || fail "not told: $(grep '"incarnation": 2' r/report.html)"

# terminal, report.json and page judge alike: the page has the report's members, and the line its numbers
sed -n '/^  "level": /,/^  "durable_steps_run_again"/p' r/report.json | sed 's/,*$//' >judged
[ "$(wc -l <judged)" -gt 20 ] || fail "report.json has no judgement"
while read -r line; do
  grep -qF "$line" r/report.html || fail "the page lacks: $line"
done <judged
times=$(sed -n 's/.*P99 of the steps is \([0-9.]*\) times.*/\1/p' out)
recorded=$(sed -n 's/.*"p99_over_median": \([0-9.]*\).*/\1/p' r/report.json)
awk -v a="$times" -v b="$recorded" 'BEGIN { exit !(a != "" && a - b < 0.0006 && b - a < 0.0006) }' ||
  fail "the line says $times times the median, report.json $recorded"

# A report that is made anew says what the first one did, but for what the new start measures itself; with starts.json
# gone, too, what only that knew is not in it, and nothing contradicts.
run 0 train "$tiny" run=anew steps=40 stop_at=20
run 0 train "$tiny" run=anew steps=40
cp anew/report.json first.json
rm anew/report.json
run 0 train "$tiny" run=anew steps=40
run 0 verify anew
cp anew/report.json second.json
rm anew/report.json anew/starts.json
run 0 train "$tiny" run=anew steps=40
grep -q 'starts.json lacks a start, shares of the whole time are not known' out || fail "it is not said: $(cat out)"
if grep -qE 'useful compute|where the rest went.*%' out; then fail "a share of what is not known: $(cat out)"; fi
run 0 verify anew
python3 - first.json second.json anew/report.json <<'END' || fail "a report made anew says something else"
import json, sys
first, second, bare = (json.load(open(path)) for path in sys.argv[1:])
for name in ("compile_s", "fusion", "crc32c"): [r.pop(name) for r in (first, second, bare)]
assert first == second, [name for name in first if first[name] != second.get(name)]
assert first["ranks"] and first["log"] and all(c["host"] for c in first["causes"] if c["cause"] != "restart")
assert set(first) - set(bare) == {"ranks", "log"} and not set(bare) - set(first), set(first) ^ set(bare)
assert all(c["host"] is None for c in bare["causes"]), bare["causes"]
for r in (first, bare):
    assert abs(r["tokens_per_s"] * r["train_seconds"] / r["tokens"] - 1) < 0.01, r
assert abs(bare["mfu"] * bare["peak_gflops"] / (first["mfu"] * first["peak_gflops"]) - 1) < 0.01
assert 0 < first["effective_training_share"] < 1 and all(0 <= c["share"] <= 1 for c in first["causes"])
# without the beginnings of starts the whole time is not known: no share is given that would be too high
assert bare["effective_training_share"] is None and all(c["share"] is None for c in bare["causes"])
END

# mfu is that by peak_gflops, whatever the peak was taken for when the steps were taken; that it was corrected is said.
cp -r anew corrected
sed -i 's/, "crc32c": "[0-9a-f]*"}$/}/' corrected/metrics.jsonl
sed -i '1,5s/"mfu": [0-9.e-]*/"mfu": 9/' corrected/metrics.jsonl
rm corrected/report.json
run 0 train "$tiny" run=corrected steps=40
python3 - anew/report.json corrected/report.json <<'END' || fail "the corrected peak is not told"
import json, sys
whole, corrected = (json.load(open(path)) for path in sys.argv[1:])
assert corrected["mfu"] == whole["mfu"] and corrected["peak_gflops"] == whole["peak_gflops"], corrected
assert corrected["first_peak_gflops"] < 0.9 * corrected["peak_gflops"]
END
said=$(sed -n 's/^# done: .* MFU \([0-9.]*\)%.*/\1/p' out)
recorded=$(sed -n 's/^  "mfu": \(.*\),$/\1/p' corrected/report.json)
awk -v a="$said" -v b="$recorded" 'BEGIN { exit !(a != "" && a - 100 * b < 0.06 && 100 * b - a < 0.06) }' ||
  fail "the last line says MFU $said%, report.json $recorded"

# What is not finite is null in report.json, which any JSON reader takes, with the last loss that was.
run 0 train "$tiny" run=infinite steps=40 threads=1 optimizer.lr=1000 optimizer.clip_norm=0 optimizer.max_refused=1000
python3 - infinite/report.json infinite/metrics.jsonl <<'END' || fail "report.json of what is not finite: $(head -n 22 infinite/report.json)"
import json, sys
def refuse(word): raise ValueError(word)
report = json.load(open(sys.argv[1]), parse_constant=refuse)
lines = [json.loads(line, parse_constant=refuse) for line in open(sys.argv[2])]
assert report["bits_per_byte"] is None and report["validation_loss"] is None and report["loss"] is None, report
known = [line["loss"] for line in lines if line["loss"] is not None]
assert lines[-1]["loss"] is None and abs(report["last_finite_loss"] / known[-1] - 1) < 1e-5
END
run 0 verify infinite

# stopped, and failed with a page of what there is
isotach train "$tiny" run=stopped steps=1000000 >out 2>err &
until [ -s stopped/metrics.jsonl ]; do sleep 0.05; done
kill -TERM "$(cut -d" " -f2 stopped/lock)"
wait $!
[ $? -eq 75 ] || fail "not stopped: $(cat err)"
verdict stopped stopped
run 8 train "$tiny" run=failed steps=40 optimizer.lr=1000 optimizer.max_refused=2 optimizer.clip_norm=0 optimizer.warmup_steps=0 precision.compute=float32 optimizer.beta1=0 optimizer.eps=1e-30
verdict failed failed
grep -q '"judged": {"steps": [0-9]*,' failed/report.html || fail "a failed run is not judged: $(grep '"judged"' failed/report.html)"

# one that cannot be written is said, and that is all
mkdir -p blocked/report.html/x
run 0 train "$tiny" run=blocked steps=40
grep -q 'warning: blocked: report.html is not written' err || fail "not told: $(cat err)"
finish
