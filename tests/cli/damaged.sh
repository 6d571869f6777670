# SPDX-License-Identifier: Apache-2.0
# Damaged files under on_bad: skip: said at every start, listed once with the step that met them, the same after stops,
# kills and with ranks; counted against max_bad_documents; named by data info, check and build.
. "$ISO_ROOT/tests/cli/common.sh"
ISOTACH_CACHE=$scratch/cache
export ISOTACH_CACHE
tokenizer="$ISO_ROOT/examples/tiny/tokenizer"

# text FIRST END: documents.
text() {
  awk -v first="$1" -v end="$2" 'BEGIN { for (n = first; n < end; n++) {
    printf "Speech %d:", n
    for (w = 0; w < n % 23 + 5; w++) printf " word%d", (n * 7 + w * 3) % 50
    printf "\n\n" } }'
}
mkdir corpus
text 0 120 >corpus/a.txt
text 120 300 | gzip -n >whole.gz || exit 77
head -c $(($(wc -c <whole.gz) / 2)) whole.gz >corpus/b.txt.gz
: >corpus/c.txt

set -- "$tiny" threads=1 data.sources.0.path=corpus data.validation.every=0
run 4 train "$@" run=refused
grep -q "corpus/b.txt.gz' is truncated: it ends at byte [0-9]* within the gzip member that begins at byte 0; get it again" err ||
  fail "a truncated archive: $(cat err)"

run 0 train "$@" run=whole data.on_bad=skip
grep -Eq '^isotach: warning: data: "[^"]*corpus/b.txt.gz": the archive is truncated: it ends at byte [0-9]+ within the gzip member that begins at byte 0; [0-9]+ documents of it are kept, the rest is left out and counts as one bad document$' err ||
  fail "nothing was said at the start: $(cat err)"
grep -q 'warning: data: 1 of the 3 files of "[^"]*corpus" have no document; the first is "[^"]*corpus/c.txt" (0 bytes); each counts as one bad document' err ||
  fail "an empty file: $(cat err)"
[ "$(wc -l <whole/skipped.jsonl)" -eq 2 ] || fail "skipped.jsonl holds $(cat whole/skipped.jsonl)"
grep -Eq '"file": "[^"]*corpus/b.txt.gz", "document": [0-9]+, "byte": [0-9]+, "cause": "the archive is truncated: it ends at byte ' whole/skipped.jsonl ||
  fail "skipped.jsonl holds $(cat whole/skipped.jsonl)"
grep -q '"file": "[^"]*corpus/c.txt", "document": [0-9]*, "byte": 0, "cause": "the file (0 bytes) has no document"' whole/skipped.jsonl ||
  fail "skipped.jsonl holds $(cat whole/skipped.jsonl)"
run 0 digest whole
mv out whole.digest

for stop in 1 9 20 0; do run 0 train "$@" run=parts data.on_bad=skip stop_at=$stop; done
same whole/skipped.jsonl parts/skipped.jsonl
run 0 digest parts
same out whole.digest
for delay in 0.05 0.1 0.2; do
  "$ISOTACH" train "$@" run=killed data.on_bad=skip checkpoint.snapshot_every=3 data.threads=3 >/dev/null 2>&1 &
  sleep $delay
  kill -9 $! 2>/dev/null
  wait $! 2>/dev/null
done
ISOTACH_CACHE=$scratch/cache-anew
run 0 train "$@" run=killed data.on_bad=skip
ISOTACH_CACHE=$scratch/cache
same whole/skipped.jsonl killed/skipped.jsonl
run 0 digest killed
same out whole.digest
if isotach train "$@" --ranks 2 run=try steps=1 data.on_bad=skip optimizer.warmup_steps=0 >out 2>err; then
  run 0 train "$@" run=one data.on_bad=skip parallel.virtual_workers=2
  run 0 digest one
  mv out one.digest
  run 0 train "$@" --ranks 2 run=two data.on_bad=skip parallel.virtual_workers=2
  run 0 digest two
  same out one.digest
  same one/skipped.jsonl two/skipped.jsonl
fi
run 4 train "$@" run=few data.on_bad=skip data.max_bad_documents=1
grep -q '2 files are damaged, each counts as one bad document, and data.max_bad_documents is 1; the first is "[^"]*corpus/b.txt.gz"' err ||
  fail "too many: $(cat err)"

# What the archive held is not what the run began with.
cp -r whole restored
cp whole.gz corpus/b.txt.gz
run 5 train "$@" run=restored data.on_bad=skip
head -c $(($(wc -c <whole.gz) / 2)) whole.gz >corpus/b.txt.gz

# The verbs.
run 0 data info corpus --separator '\n\n'
grep -q '^  bad         2, 2 causes$' out && grep -q '1 document: the archive is truncated: it ends at byte' out &&
  grep -q '1 document: the file (0 bytes) has no document; "corpus/c.txt", document [0-9]* (byte 0 of the file)' out ||
  fail "info: $(cat out)"
run 1 data check corpus --separator '\n\n' --tokenizer "$tokenizer"
grep -q 'data check: 2 documents are bad' err || fail "check: $(cat err)"
run 4 data build corpus --separator '\n\n' --tokenizer "$tokenizer" --out built
run 0 data build corpus --separator '\n\n' --tokenizer "$tokenizer" --out built --on-bad skip --json
grep -q '"bad": 2' out || fail "build: $(cat out)"
grep -q '"bad": \[[0-9]*, [0-9]*\]' built/shard-00000.json || fail "the record: $(cat built/shard-00000.json)"
grep -q '"corpus/b.txt.gz", document [0-9]* (byte [0-9]* of what it unpacks to): the archive is truncated' err ||
  fail "build named nothing: $(cat err)"
# Without the damaged files: the same tokens.
mkdir sound
cp corpus/a.txt sound
gzip -dc corpus/b.txt.gz 2>dd.err | awk 'BEGIN { RS = "\n\n"; ORS = "\n\n" } { if (NR > 1) print held; held = $0 }' >sound/b.txt
run 0 data build sound --separator '\n\n' --tokenizer "$tokenizer" --out built2
same built/shard-00000.bin built2/shard-00000.bin
same built/shard-00000.idx built2/shard-00000.idx
run 4 tokenizer train corpus --separator '\n\n' --vocabulary 300 --out t
run 0 tokenizer train corpus --separator '\n\n' --vocabulary 300 --on-bad skip --out t
run 0 tokenizer train sound --separator '\n\n' --vocabulary 300 --out t2
same t/tokenizer.json t2/tokenizer.json

# A damaged shard beside a good one.
mkdir pair
cp built/shard-00000.bin pair/x.bin && cp built/shard-00000.idx pair/x.idx
cp built/shard-00000.bin pair/y.bin && head -c 100 built/shard-00000.idx >pair/y.idx
run 0 data info pair --tokenizer "$tokenizer"
grep -q '1 document: "pair/y.idx" has 100 bytes, which is not what an index of' out || fail "a damaged index: $(cat out)"
finish
