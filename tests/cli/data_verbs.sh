# SPDX-License-Identifier: Apache-2.0
# isotach data build, info, check: words, flags, exit codes, output.
. "$ISO_ROOT/tests/cli/common.sh"

tokenizer=$ISO_ROOT/examples/tiny/tokenizer
text=$ISO_ROOT/examples/tiny/plays.txt

run 0 data build "$text" --tokenizer "$tokenizer" --separator '\n\n' --out a --threads 1 --json
grep -q '"made": 1, "reused": 0' out || fail "build: $(cat out)"
run 0 data build "$text" --tokenizer "$tokenizer" --separator '\n\n' --out b --threads 3 --json
for file in a/*; do cmp -s "$file" "b/${file#a/}" || fail "$file differs from that of three threads"; done
run 0 data build "$text" --tokenizer "$tokenizer" --separator '\n\n' --out a --json
grep -q '"made": 0, "reused": 1' out || fail "build again: $(cat out)"
refused 5 "data build: 'a' holds shards of another build (not the same: documents 827 there and 1 here, separator \"\\n\\n\" there \
and \"\" here); give --out another folder, or remove that one" data build "$text" --tokenizer "$tokenizer" --out a
refused 2 "data build: --out is missing" data build "$text" --tokenizer "$tokenizer"
refused 2 "data build: --tokenizer is missing: the folder or file of a tokenizer" data build "$text" --out c
refused 2 'data build: --on-bad must be error or skip, not "ignore"' data build "$text" --out c \
  --tokenizer "$tokenizer" --on-bad ignore

# JSON lines are known by what stands in them where the name does not say.
printf '{"text": "one"}\n{"text": "two"}\n' >lines.json
for name in lines.data lines; do cp lines.json $name; done
gzip -k lines.json
for name in lines.json lines.json.gz lines.data lines; do
  run 0 data info $name --json
  grep -q '"format": "jsonl".*"documents": 2' out || fail "$name: $(cat out)"
done
run 4 data build lines.json --field body --tokenizer "$tokenizer" --out d
grep -q 'no field "body", only "text"; set --field; correct it' err || fail "another field: $(cat err)"

# A text that the vocabulary cannot represent is a bad document: told, or left out whole, however far in it is found.
run 0 tokenizer train "$text" --vocabulary 300 --out lacks
sed -i 's/"Z": 90/"no bytes": 90/' lacks/tokenizer.json
{
  printf '{"text": "good"}\n{"text": "'
  head -c 400000 /dev/zero | tr '\0' a
  printf 'Z"}\n{"text": "fine"}\n'
} >lack.jsonl
run 4 data build lack.jsonl --tokenizer lacks --out e
grep -q '"lack.jsonl", document 1 (byte [0-9]* of the file): cannot tokenize byte 0x5A at byte 400000' err || fail "lacking: $(cat err)"
run 0 data build lack.jsonl --tokenizer lacks --out e2 --on-bad skip
[ "$(wc -l <err)" -eq 1 ] || fail "skipped: $(cat err)"
grep -q '"documents": 2, .*"bad_documents": 1, "bad": \[1\]' e2/shard-00000.json || fail "record: $(cat e2/shard-00000.json)"
[ "$(stat -c %s e2/shard-00000.bin)" -eq $(($(sed 's/.*"tokens": \([0-9]*\), "documents".*/\1/' e2/shard-00000.json) * 2)) ] ||
  fail "ids of a document that was left out are in the shard"
run 0 data info lack.jsonl --tokenizer lacks
# No more warnings than the limit, and the error last.
for i in 1 2 3 4 5 6 7 8 9; do echo '{"t": 1}'; done >many.jsonl
run 4 data build many.jsonl --tokenizer "$tokenizer" --out f --on-bad skip --max-bad 3 --threads 1
[ "$(wc -l <err)" -eq 5 ] || fail "limit: $(cat err)"
tail -n 1 err | grep -q 'more than 3 bad documents' || fail "limit: $(cat err)"

# A config's sources, or paths: the same numbers.
run 0 data info "$tiny" --json
cp out config.json
run 0 data info "$text" --separator '\n\n' --tokenizer "$tokenizer" --json
cmp -s out config.json || fail "info of a config and of its path differ: $(diff out config.json)"
grep -q '"bytes_per_token": 2\.' out || fail "info: $(cat out)"
run 0 data info "$text" --separator '\n\n'
grep -q '^  documents  ' out || fail "info as text: $(cat out)"
run 0 data check "$tiny" --json
grep -q '"model_vocabulary": 512' out || fail "check: $(cat out)"
grep -q '"range": "full-width forms", "characters": 96, "kept": 96' out || fail "check: no coverage: $(cat out)"
run 2 data check "$tiny" --format text

printf 'good\n\nb\377d\n\ngood' >bad.txt
run 1 data check bad.txt --separator '\n\n' --tokenizer "$tokenizer"
grep -q '^isotach: error: data check: 1 document is bad: "bad.txt", document 1 (byte 7 of the file): not valid UTF-8; '\
'correct it, or leave it out (data build: --on-bad skip; a run: data.on_bad: skip)$' err ||
  fail "check of a bad file: $(cat err)"
run 4 data build bad.txt --separator '\n\n' --tokenizer "$tokenizer" --out d
grep -q 'document 1 (byte 7 of the file): not valid UTF-8; correct it, or leave such documents out with --on-bad skip' err || fail "build of a bad file: $(cat err)"
run 0 data build bad.txt --separator '\n\n' --tokenizer "$tokenizer" --out e --on-bad skip --json
grep -q '"documents": 2, .*"bad": 1' out || fail "build with skip: $(cat out)"
grep -q '"bad": \[1\]' e/shard-00000.json || fail "the record does not list the bad document"
mkdir some
printf 'text' >some/a.txt
: >some/b.txt
run 4 data build some --tokenizer "$tokenizer" --out f
grep -q '"some/b.txt" (0 bytes) has no document, as 1 of the 2 files of "some"; take such files away, or leave them out with --on-bad skip' err || fail "build with an empty file: $(cat err)"
run 0 data build some --tokenizer "$tokenizer" --out f --on-bad skip
grep -q 'warning: .*"some/b.txt"' err || fail "build that skips an empty file: $(cat err)"
run 4 train "$tiny" run=empty data.sources="[{path: $scratch/some}]"
# Shards say nothing without their tokenizer.
for shards in b b/shard-00000.bin; do
  refused 2 'data: "b/shard-00000.bin" holds tokens: a tokenizer with an end-of-text token is needed to read it' data info $shards
done
# A build that was begun and not ended is no corpus; one that failed before its first shard does not bind its folder.
cp -r b unfinished
rm unfinished/shards.json
refused 2 'data: "unfinished" holds shards that are not complete (no shards.json); run the same isotach data build again, or take the folder away' data info unfinished --tokenizer "$tokenizer"
run 4 data build bad.txt --separator '\n\n' --tokenizer "$tokenizer" --out g
run 0 data build bad.txt --separator '\n\n' --tokenizer "$tokenizer" --out g --on-bad skip
run 3 data info nowhere.txt
run 0 data build bad.txt --separator '\n\n' --tokenizer "$tokenizer" --out g --on-bad skip
grep -q '^g: 1 shard (0 made, 1 there already), 2 documents, .* 0 MB/s$' out || fail "one shard: $(cat out)"
run 2 data
run 2 data nonsense

# What is found is named by file, document and byte, each cause once, in the order of the first document of each.
mkdir mix
printf '%s\n' '{"text":"good"}' '{"text":"cut' '{"text":"dup"}' '{"text":"dup"}' '{"text":1}' '{"text":"cut too' >mix/a.jsonl
printf '%s\n' '{"text":"b"}' nope '{"text":"dup"}' '{"text":"x","text":"y"}' >mix/b.jsonl
cut="the string that begins here does not end in this line (its line begins at byte 16)"
cat >wanted <<END
mix (jsonl, 2 files)
  documents   5, 14 bytes, 14 characters
  longest     4 bytes: "mix/a.jsonl", document 0 (byte 9 of the file)
  duplicates  2; the first: "mix/a.jsonl", document 3 (byte 53 of the file), repeats "mix/a.jsonl", document 2 (byte 38 of the file)
  bad         5, 4 causes
              2 documents: $cut; the first: "mix/a.jsonl", document 1 (byte 24 of the file)
              1 document: field "text" is a number, not a string (its line begins at byte 59); "mix/a.jsonl", document 4 (byte 67 of the file)
              1 document: not a JSON object; "mix/b.jsonl", document 7 (byte 13 of the file)
              and others, of 1 more cause
  suspicious  5: shorter than 32 bytes; the first: "mix/a.jsonl", document 0 (byte 9 of the file)
END
run 0 data info mix
same out wanted
run 0 data info mix --threads 1
same out wanted
bad="\"bad_documents\": 5, \"bad_causes\": 4, \"bad\": \[{\"cause\": \"$cut\", \"documents\": 2, \"first\": {\"document\": 1, \"file\": \"mix/a.jsonl\", \"byte\": 24}}, "
run 0 data info mix --json
grep -q "$bad" out || fail "info, bad documents as JSON: $(cat out)"
grep -q '"duplicates": 2, "first_duplicate": {"document": 3, "file": "mix/a.jsonl", "byte": 53}, "duplicate_of": {"document": 2, ' out ||
  fail "info, duplicates as JSON: $(cat out)"
grep -q '"what": "shorter than 32 bytes", "documents": 5, "first": {"document": 0, "file": "mix/a.jsonl", "byte": 9}' out ||
  fail "info, suspicious documents as JSON: $(cat out)"
run 1 data check "$text" mix --tokenizer "$tokenizer"
grep -q "^bad               2 documents: $cut; the first: \"mix/a.jsonl\", document 1 (byte 24 of the file)\$" out ||
  fail "check: bad documents of the second source: $(cat out)"
grep -q "^isotach: error: data check: 5 documents are bad; the first: \"mix/a.jsonl\", document 1 (byte 24 of the file): $cut; correct them, " err ||
  fail "check of bad lines: $(cat err)"
run 1 data check "$text" mix --tokenizer "$tokenizer" --json
grep -q "\"bad_documents\": 5, \"bad_causes\": 4, \"sources\": \[{\"path\": \"$text\", \"bad_documents\": 0, \"bad_causes\": 0, \"bad\": \[\]}, {\"path\": \"mix\", $bad" out ||
  fail "check, bad documents as JSON: $(cat out)"
run 1 data check "$tiny" data.sources="[{path: $scratch/mix}]" --tokenizer "$tokenizer"
grep -q 'or leave them out (data.on_bad: skip)$' err || fail "check of a config with bad lines: $(cat err)"

# By paths the flag is advised, in a config the key.
rows=$ISO_ROOT/tests/data/datapath
run 2 data info "$rows/required.parquet" --field body
grep -q 'its columns of strings: .*; set --field$' err || fail "no such column, by path: $(cat err)"
run 2 data info "$tiny" data.sources="[{path: $rows/required.parquet, field: body}]"
grep -q "its columns of strings: .*; set the source's field\$" err || fail "no such column, in a config: $(cat err)"
run 4 data build "$tiny" data.sources="[{path: $scratch/lines.json, field: body}]" --tokenizer "$tokenizer" --out fielded
grep -q "no field \"body\", only \"text\"; set the source's field; correct it" err || fail "another field, in a config: $(cat err)"
run 4 tokenizer train lines.json --field body --vocabulary 300 --out learnt
grep -q 'no field "body", only "text"; set --field; correct it' err || fail "another field, train: $(cat err)"

# A run that stopped at a bad document takes on_bad: skip with --accept, and says so.
awk 'BEGIN { for (i = 0; i < 400; i++) printf "%s%s", i ? "\n\n" : "", i == 399 ? "bad \377 text" : "hello world, some text to learn from, " i }' >late.txt
set -- "$tiny" run=late threads=1 steps=40 checkpoint.snapshot_every=1 data.validation.every=0 data.validation.offset=0 \
  data.sources="[{path: $scratch/late.txt, separator: \"\\n\\n\"}]"
run 4 train "$@"
grep -q 'document 399 .*leave such documents out with data.on_bad: skip (in a run that has begun, with --accept)$' err ||
  fail "train on a bad document: $(cat err)"
[ -s late/metrics.jsonl ] || fail "the run stopped before its first step: $(cat err)"
last=$(tail -n 1 late/metrics.jsonl | sed 's/.*"step": *\([0-9]*\).*/\1/')
run 5 train "$@" data.on_bad=skip
run 0 train "$@" data.on_bad=skip --accept
# Steps before an accepted change are not told from the settings of now.
run 5 data trace late --steps 1
grep -q "steps up to $last of late were taken before its settings were changed (--accept)" err || fail "trace: $(cat err)"
run 0 data trace late --steps 40
refused 3 "'late.txt' is a file; name a run folder" data trace late.txt --steps 1

# Ids of a shard may make text that is no UTF-8.
for i in 1 2 3 4; do printf '\274\000\377\000\300\000\101\000'; done >odd.bin
run 0 data info odd.bin --token-type uint16 --tokenizer "$tokenizer" --json
grep -q '"documents": 1,' out || fail "data info of ids that are no text: $(cat out)"

[ $failures -eq 0 ]
