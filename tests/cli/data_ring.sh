# SPDX-License-Identifier: Apache-2.0
# Documents left out are listed once, whatever happens on the way; the trace is the same from any snapshot; the way in
# which batches are filled changes no bits; bench data reports.
. "$ISO_ROOT/tests/cli/common.sh"

# 160 documents, every tenth of them bad (from the third on), in two files.
for part in 0 1; do
  awk -v part=$part 'BEGIN { for (i = 0; i < 80; i++) {
    n = 80 * part + i
    printf "Speech %d:", n
    for (w = 0; w < n % 23 + 5; w++) printf " word%d", (n * 7 + w * 3) % 50
    printf "%s\n\n", n % 10 == 2 ? " @@" : "" } }' | sed 's/@@/\xff/' >"text$part.txt"
done
mkdir corpus && mv text0.txt text1.txt corpus
# A step of 976 tokens of this corpus of about 6,000: several epochs.
set -- "$tiny" threads=1 data.sources.0.path=corpus data.on_bad=skip data.validation.every=0

run 0 train "$@" run=whole
[ "$(wc -l <whole/skipped.jsonl)" -eq 16 ] || fail "skipped.jsonl has $(wc -l <whole/skipped.jsonl) lines"
grep -Eqx '\{"step": [0-9]+, "lane": [0-9]+, "source": 0, "path": "[^"]*corpus", "file": "[^"]*text[01].txt", "document": [0-9]+, "byte": [0-9]+, "cause": "not valid UTF-8", "crc32c": "[0-9a-f]{8}"\}' whole/skipped.jsonl ||
  fail "skipped.jsonl holds $(head -n 1 whole/skipped.jsonl)"
[ "$(grep -c 'leaves out document' err)" -eq 16 ] || fail "warnings: $(cat err)"
run 0 digest whole
cp out whole.digest
[ "$(grep -c '"starved": false' whole/metrics.jsonl)" -gt 20 ] || fail "metrics.jsonl says nothing of starving"
grep -q '"load_p95_ms": ' whole/report.json && grep -q '"starved_steps": ' whole/report.json || fail "report.json: $(cat whole/report.json)"

# Each starved step says where it waited, and so do the report and a line; on demand all of them are starved.
check_named() {
  starved=$(grep -c '"starved": true' "$1/metrics.jsonl")
  named=$(grep -Ec '"starved": true, .*"starved_stage": "(schedule|read|tokenize|pack)", "starved_source": "[^"]*corpus", "' "$1/metrics.jsonl")
  [ "$named" -eq "$starved" ] || fail "$1: of $starved starved steps $named name stage and source"
  grep -q "\"starved_steps\": $starved,$" "$1/report.json" || fail "report.json of $1 does not say $starved starved steps"
  [ "$starved" -eq 0 ] && return
  grep -Eq '"starved_stage": "[a-z]+", "starved_source": "[^"]*corpus",$' "$1/report.json" || fail "report.json of $1 does not say where"
  grep -Eq 'at: (schedule|read|tokenize|pack) of "[^"]*corpus"' err || fail "$1: $starved starved steps, but: $(cat err)"
}
run 0 train "$@" run=asked data.on_demand=true
check_named asked
[ "$starved" -eq 40 ] || fail "on demand $starved of 40 steps are starved"
grep -Eq 'warning: asked: 40 of 40 steps starved: .* the longest wait was [0-9.]+ ms, at: ' err || fail "on demand: $(cat err)"
run 0 train "$@" run=ahead
check_named ahead

# In parts.
for stop in 1 9 20 0; do run 0 train "$@" run=parts stop_at=$stop; done
same whole/skipped.jsonl parts/skipped.jsonl
run 0 digest parts
same out whole.digest

# Killed at any moment.
for delay in 0.05 0.1 0.15 0.2; do
  "$ISOTACH" train "$@" run=killed checkpoint.snapshot_every=3 >/dev/null 2>&1 &
  sleep $delay
  kill -9 $! 2>/dev/null
  wait $! 2>/dev/null
done
run 0 train "$@" run=killed
same whole/skipped.jsonl killed/skipped.jsonl
run 0 digest killed
same out whole.digest

# However batches are filled.
n=0
for how in data.on_demand=true data.prefetch=3 'data.threads=3 data.slots=8' 'data.threads=2 data.slots=2 data.prefetch=5'; do
  n=$((n + 1))
  # shellcheck disable=SC2086
  run 0 train "$@" run=how$n $how
  run 0 digest how$n
  same out whole.digest
  same whole/skipped.jsonl how$n/skipped.jsonl
done

# Padded: other bits, whole documents, resumable.
run 0 train "$@" run=padded data.pad=true
run 0 digest padded
cmp -s out whole.digest && fail "data.pad changed nothing"
cp out padded.digest
run 0 train "$@" run=padded2 data.pad=true stop_at=13
run 0 train "$@" run=padded2 data.pad=true
run 0 digest padded2
same out padded.digest
run 0 data trace padded --steps 5 --slot 3
[ "$(grep -c document out)" -eq 1 ] || fail "a padded sequence: $(cat out)"

# One document too many: the same step in one start and in several.
run 4 train "$@" run=much data.max_bad_documents=11
stopped=$(tail -n 1 much/metrics.jsonl | sed 's/{"step": \([0-9]*\),.*/\1/')
run 0 train "$@" run=much2 data.max_bad_documents=11 stop_at=2
run 4 train "$@" run=much2 data.max_bad_documents=11
[ "$(tail -n 1 much2/metrics.jsonl | sed 's/{"step": \([0-9]*\),.*/\1/')" = "$stopped" ] || fail "too many bad documents: stopped elsewhere"
run 0 train "$@" run=much # the limit raised: it goes on
run 0 digest much
same out whole.digest
same whole/skipped.jsonl much/skipped.jsonl

# The trace, from the beginning and from a snapshot.
run 0 data trace whole --steps 30:33
cp out trace.whole
grep -q '^step 33 slot 15$' out || fail "data trace: $(head -n 3 out)"
run 0 data trace parts --steps 30:33
same out trace.whole
run 0 data trace parts --steps 30 --slot 4 --json
grep -q '"from_snapshot": 20' out && grep -q '"byte_begin": ' out || fail "data trace --json: $(head -c 300 out)"
refused 2 'data trace: --steps "3:2" is no range; write A:B with 1 <= A <= B, or one step' data trace whole --steps 3:2
refused 2 'data trace: --slot 16: the batch has slots 0 to 15' data trace whole --steps 3 --slot 16
echo 'Speech 500: one more' >>corpus/text1.txt
run 5 data trace whole --steps 30:33
grep -q 'the corpus is not the one' err || fail "a changed corpus: $(cat err)"

# What each source gave stands in the report, of all starts.
sources="[{path: $scratch/corpus/text0.txt, separator: \"\\n\\n\", weight: 3}, {path: $scratch/corpus/text1.txt, separator: \"\\n\\n\", weight: 1}]"
run 0 train "$tiny" threads=1 data.on_bad=skip data.validation.every=0 run=mixed data.sources="$sources"
run 0 train "$tiny" threads=1 data.on_bad=skip data.validation.every=0 run=mixed2 data.sources="$sources" stop_at=7
run 0 train "$tiny" threads=1 data.on_bad=skip data.validation.every=0 run=mixed2 data.sources="$sources"
for name in mixed mixed2; do grep -A 2 '"sources": \[$' $name/report.json >$name.sources; done
same mixed.sources mixed2.sources
run 0 verify mixed
[ "$(wc -l <mixed.sources)" -eq 3 ] &&
  grep -Eq '"path": "[^"]*text0.txt", "weight": 0.750000, "share": 0.7[0-9]*, "text_bytes": [0-9]+}' mixed.sources &&
  grep -Eq '"path": "[^"]*text1.txt", "weight": 0.250000, "share": 0.2[0-9]*, "text_bytes": [0-9]+}' mixed.sources ||
  fail "what the sources gave: $(cat mixed/report.json)"

# The bench.
run 0 bench data "$tiny" threads=1 --steps 40 --json
for key in load_p95_ms starved_steps tokens_per_s prefilled_ratio; do
  grep -Eq "\"$key\": [0-9]" out || fail "bench data lacks $key: $(cat out)"
done
run 0 bench data "$tiny" threads=1 --steps 40 --on-demand --json
grep -q '"on_demand": true' out && grep -q '"starved_steps": 40' out || fail "bench data --on-demand: $(cat out)"
grep -Eq '"starved_stage": "(read|tokenize)", "starved_source": "[^"]*plays.txt"' out || fail "bench data --on-demand does not say where: $(cat out)"
run 0 bench data "$tiny" threads=1 --steps 40 --on-demand
grep -Eq '40 of 40 steps starved, the longest at: (read|tokenize) of .*plays.txt$' out || fail "bench data --on-demand: $(cat out)"
run 0 bench data "$tiny" --steps 40 --tokens-per-s 100000 --json
grep -q '"paced_tokens_per_s": 100000' out || fail "bench data --tokens-per-s: $(cat out)"
[ -e runs ] && fail "bench data wrote a run folder"
finish
