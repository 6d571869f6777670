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
