# SPDX-License-Identifier: Apache-2.0
# What `evaluate` says about the held-out text is what the run itself said; several files add up.
. "$ISO_ROOT/tests/cli/common.sh"

number() { sed "s/.*\"$1\": \([-0-9.e]*\).*/\1/" "$2" | head -n 1; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && (a - b) / b < 2e-6 && (b - a) / b < 2e-6) }'; }

run 0 train "$tiny" run=run threads=2
awk 'BEGIN { RS = "" } (NR - 1) % 20 == 7 { printf "%s%s", (n++ ? "\n\n" : ""), $0 }' \
  "$ISO_ROOT/examples/tiny/plays.txt" >held.txt
run 0 evaluate run held.txt --dtype bfloat16 --json
wanted=$(sed -n 's/^ *"bits_per_byte": \([0-9.]*\),/\1/p' run/report.json)
near "$(number bits_per_byte out)" "$wanted" || fail "evaluate: $(number bits_per_byte out), the run: $wanted"
run 0 evaluate run held.txt --dtype bfloat16 --threads 1 --json
near "$(number bits_per_byte out)" "$wanted" || fail "on one thread: $(number bits_per_byte out)"

# Exported: the separator and window are no longer known, and said on the command line.
run 0 export run model
run 0 evaluate model held.txt --dtype bfloat16 --separator '\n\n' --sequence 61 --json
near "$(number bits_per_byte out)" "$wanted" || fail "evaluate the export: $(number bits_per_byte out), the run: $wanted"

# Two halves weigh as many bytes as they have.
head -n 40 held.txt >a.txt
tail -n 40 held.txt >b.txt
run 0 evaluate run a.txt b.txt
[ "$(wc -l <out)" -eq 4 ] || fail "two files: $(cat out)"
awk 'NR == 2 || NR == 3 { bits += $3 * $4; bytes += $4 } NR == 4 { exit !($4 == bytes && $3 * bytes - bits < 0.01 && bits - $3 * bytes < 0.01) }' out ||
  fail "two files do not add up: $(cat out)"

run 0 evaluate run held.txt --json
with_mask=$(number loss out)
run 0 evaluate run held.txt --no-mask --json
[ "$(number loss out)" != "$with_mask" ] || fail "--no-mask changes nothing"
run 0 evaluate run held.txt --no-eos --json
[ "$(number loss out)" != "$with_mask" ] || fail "--no-eos changes nothing"
: >empty.txt
refused 2 "empty.txt: is empty" evaluate run empty.txt --json
mkdir texts
cp a.txt empty.txt texts
refused 2 "texts/empty.txt: is empty" evaluate run texts --json

# The same documents in whatever holds them give the same numbers; what holds them is not scored.
ISOTACH_CACHE=$scratch/cache
export ISOTACH_CACHE
lines() {
  awk -v key="$1" 'BEGIN { RS = "" } { gsub(/"/, "\\\""); gsub(/\n/, "\\n"); printf "{\"id\": %d, \"%s\": \"%s\"}\n", NR, key, $0 }' \
    held.txt
}
numbers() { sed -e 's/"seconds": [-0-9.e+]*//g' -e 's/"file": "[^"]*"//g' "$1"; }
like_text() {
  run 0 evaluate run "$@" --json
  numbers out >other.numbers
  same other.numbers text.numbers
}
run 0 evaluate run held.txt --json
numbers out >text.numbers
lines text >held.jsonl
like_text held.jsonl
lines body >named.jsonl
like_text named.jsonl --field body
run 0 data build held.jsonl --tokenizer "$ISO_ROOT/examples/tiny/tokenizer" --out shards
like_text shards
if command -v gzip >/dev/null; then
  gzip -c held.jsonl >held.jsonl.gz
  like_text held.jsonl.gz
  gzip -c held.txt >held.txt.gz
  like_text held.txt.gz
fi
cp held.jsonl as-it-is.txt # a text file by its name, and one because it is said
run 0 evaluate run as-it-is.txt --json
numbers out >raw.numbers
run 0 evaluate run held.jsonl --format text --json
numbers out >other.numbers
same other.numbers raw.numbers
cmp -s raw.numbers text.numbers && fail "--format text reads the documents of JSON lines"
rows=$ISO_ROOT/tests/data/datapath
run 0 evaluate run "$rows/required.jsonl" --json
numbers out >rows.numbers
run 0 evaluate run "$rows/required.parquet" --json
numbers out >column.numbers
same column.numbers rows.numbers

mkdir folder
cp held.jsonl folder/b.jsonl
head -n 3 held.jsonl >folder/a.jsonl
run 0 evaluate run folder
[ "$(wc -l <out)" -eq 4 ] && awk 'NR == 2 { a = $5; good = $6 == "folder/a.jsonl" } NR == 3 { exit !(good && $6 == "folder/b.jsonl" && $5 > a) }' out ||
  fail "a folder of JSON lines: $(cat out)"
cp held.txt folder/c.txt
run 2 evaluate run folder
grep -q 'several formats' err || fail "a folder of two formats: $(cat err)"
: >none.jsonl
refused 2 "none.jsonl: has no document" evaluate run none.jsonl --json
{ head -n 1 held.jsonl && echo broken; } >broken.jsonl
refused 4 "data: \"broken.jsonl\", document 1 (byte $(head -n 1 held.jsonl | wc -c | tr -d ' ') of the file): not a JSON object; correct it" \
  evaluate run broken.jsonl --json

# Bad held-out text is found before the first step; steps that were taken without a last evaluation get it later.
awk 'BEGIN { for (i = 0; i < 400; i++) printf "%shello world %d, some text to learn from, again and again", i ? "\n\n" : "", i }' >good.txt
awk 'BEGIN { RS = ""; ORS = "\n\n" } { print NR == 8 ? "bad \377 text" : $0 }' good.txt >bad.txt
own="steps=6 data.validation.every=20 data.validation.offset=7"
refused 4 "data: \"SCRATCH/bad.txt\", document 7 (byte 403 of the file): not valid UTF-8; correct it, or leave such documents out with data.on_bad: skip (in a run that has begun, with --accept)" \
  train "$tiny" run=bad data.sources.0.path=bad.txt $own
[ ! -e bad ] || fail "a refused run left a folder"
# Left out when asked for, which is said once, whatever part of the text each evaluation reads.
awk 'BEGIN { RS = ""; ORS = "\n\n" } { print NR == 8 || NR == 328 ? "bad \377 text" : $0 }' good.txt >worse.txt
run 0 train "$tiny" run=skipping data.sources.0.path=worse.txt $own data.on_bad=skip evaluate.every=1 evaluate.max_bytes=300
[ "$(grep -c '^evaluation at step' out)" -ge 6 ] || fail "evaluations: $(cat out)"
[ "$(grep -c 'worse.txt", document 7 (byte 403 of the file): not valid UTF-8; the document is left out' err)" -eq 1 ] &&
  [ "$(grep -c 'document 327 .*the document is left out' err)" -eq 1 ] || fail "bad held-out documents: $(cat err)"
run 0 train "$tiny" run=late data.sources.0.path=good.txt $own
sed 's/"done"/"failed"/' late/status.json >status && mv status late/status.json && rm late/report.json
run 0 train "$tiny" run=late data.sources.0.path=good.txt $own
grep -q 'evaluation at step 6' out && grep -q '"done"' late/status.json && [ -f late/report.json ] ||
  fail "the missing evaluation was not made up for: $(cat out)"
refused 2 'data: corpus too small: all 1 documents of "SCRATCH/good.txt" are held out by data.validation; set a separator that splits its files into documents' \
  train "$tiny" run=one data.sources.0.path=good.txt data.sources.0.separator= $own data.validation.offset=0
finish
