# SPDX-License-Identifier: Apache-2.0
# A vocabulary is learnt from the training part only, the same one each time, and takes text there and back.
. "$ISO_ROOT/tests/cli/common.sh"

corpus=$ISO_ROOT/examples/tiny/plays.txt
set -- "$corpus" --separator '\n\n' --validation-every 20 --validation-offset 7 --vocabulary 512
run 0 tokenizer train "$@" --out one
same one/tokenizer.json "$ISO_ROOT/examples/tiny/tokenizer/tokenizer.json"

# Held-out documents do not matter to it: with other ones in their place the vocabulary is the same.
awk 'BEGIN { RS = "" } { printf "%s%s", (NR > 1 ? "\n\n" : ""), ((NR - 1) % 20 == 7 ? "zqxj zqxj zqxj" : $0) }
  END { printf "\n" }' "$corpus" >other.txt
shift
run 0 tokenizer train other.txt "$@" --out two
same two/tokenizer.json one/tokenizer.json

run 0 tokenizer encode one "$corpus"
cp out ids
run 0 tokenizer decode one
isotach tokenizer decode one <ids >back
same back "$corpus"
run 0 tokenizer encode one --text 'To be, or not to be'
cp out ids
[ "$(isotach tokenizer decode one $(cat ids))" = 'To be, or not to be' ] || fail "decode: $(isotach tokenizer decode one <ids)"

printf 'too \377 bad' >bad.txt
run 4 tokenizer encode one bad.txt
[ "$(wc -l <err)" -eq 1 ] && grep -q '4' err || fail "bad UTF-8: $(cat err)"

# The same documents as JSON lines, compressed and in Parquet teach the same vocabulary: not a byte of what holds them
# is learnt.
ISOTACH_CACHE=$scratch/cache
export ISOTACH_CACHE
shift # a separator is of text
shift
lines() {
  awk -v key="$1" 'function put(text) {
      gsub(/"/, "\\\"", text); gsub(/\n/, "\\n", text)
      printf "{\"id\": %d, %s\"%s\"}\n", NR, key, text
    }
    BEGIN { RS = "" } NR > 1 { put(last) } { last = $0 } END { put(last "\n") }' "$corpus"
}
lines '"text": ' >plays.jsonl
run 0 tokenizer train plays.jsonl "$@" --out lines --json
same lines/tokenizer.json one/tokenizer.json
grep -q '"bad": 0' out || fail "JSON lines: $(cat out)"
lines '"pad": "no text", "meta": {"pad": "no text"}, "body": ' >named.jsonl
run 0 tokenizer train named.jsonl --field body "$@" --out named
same named/tokenizer.json one/tokenizer.json
mkdir mixed
cp "$corpus" mixed/a.txt
cp plays.jsonl mixed/b.jsonl
run 2 tokenizer train mixed "$@" --out never
grep -q 'several formats' err || fail "a folder of two formats: $(cat err)"
run 0 tokenizer train plays.jsonl --format text "$@" --out raw # asked for
cmp -s raw/tokenizer.json one/tokenizer.json && fail "--format text reads the documents of JSON lines"
if command -v gzip >/dev/null; then
  gzip -c plays.jsonl >plays.jsonl.gz
  run 0 tokenizer train plays.jsonl.gz "$@" --out packed
  same packed/tokenizer.json one/tokenizer.json
fi
rows=$ISO_ROOT/tests/data/datapath
run 0 tokenizer train "$rows/required.jsonl" --vocabulary 300 --out required-lines
run 0 tokenizer train "$rows/required.parquet" --vocabulary 300 --out required-column
same required-column/tokenizer.json required-lines/tokenizer.json

# What is no text is refused by name; a bad line is an error with its place, or left out when asked for.
run 0 data build "$rows/required.jsonl" --tokenizer one --out shards
refused 2 'data: "shards" holds token ids with a Megatron index, and text is wanted; name the text they were made from' \
  tokenizer train shards --vocabulary 300 --out never
printf '\0\1\2\3' >ids.bin
refused 2 'data: "ids.bin" holds token ids, and text is wanted; name the text they were made from' \
  tokenizer train ids.bin --vocabulary 300 --out never
[ ! -e never ] || fail "a refused training left a folder"
{ head -n 1 plays.jsonl && echo broken && tail -n +2 plays.jsonl; } >broken.jsonl
run 4 tokenizer train broken.jsonl --vocabulary 512 --out never
grep -q "\"broken.jsonl\", document 1 (byte $(head -n 1 plays.jsonl | wc -c | tr -d ' ') of the file): not a JSON object; correct it, or leave such documents out with --on-bad skip" err &&
  [ "$(wc -l <err)" -eq 1 ] || fail "a bad line: $(cat err)"
run 0 tokenizer train plays.jsonl --vocabulary 512 --out good
run 0 tokenizer train broken.jsonl --vocabulary 512 --on-bad skip --out skipped
same skipped/tokenizer.json good/tokenizer.json
grep -qx '1 bad documents left out' out && [ "$(wc -l <err)" -eq 1 ] || fail "--on-bad skip: $(cat out err)"
run 4 tokenizer train broken.jsonl --vocabulary 512 --on-bad skip --max-bad 0 --out never
refused 2 'tokenizer train: --on-bad must be error or skip, not "warn"' tokenizer train x --on-bad warn --vocabulary 300 --out y
refused 2 'tokenizer train: --separator has an unknown escape' tokenizer train x --separator '\q' --vocabulary 300 --out y

# What a vocabulary lacks is a difference in each row that needs it, and a finding of data check; neither stops there.
run 0 tokenizer train "$corpus" --vocabulary 300 --out lacks
sed 's/"Z": 90/"no bytes": 90/' lacks/tokenizer.json >changed.json && mv changed.json lacks/tokenizer.json
printf '%s\n' '{"text": "Z", "ids": [90]}' '{"bytes_b64": "YQ==", "ids": [300]}' '{"text": "a", "ids": [97]}' >vectors.jsonl
run 1 tokenizer check lacks vectors.jsonl
[ "$(tail -n 1 out)" = '1 of 3 match' ] && grep -q '^line 1 (.*cannot tokenize byte 0x5A' out &&
  grep -q '^line 2 (.*cannot decode id 300 at place 0' out || fail "check with a vocabulary that lacks bytes: $(cat out)"
[ "$(wc -l <err)" -eq 1 ] && grep -q '2 of 3 rows of vectors.jsonl do not match' err || fail "check: $(cat err)"
echo 'no last letter' >fine.txt
run 0 data check fine.txt --tokenizer lacks
grep -q 'ASCII: 94 of 95 kept' out || fail "data check with a vocabulary that lacks bytes: $(cat out)"
finish

echo '{"text": "a", "ids": [64.5]}' >half.jsonl
refused 4 'half.jsonl: line 1: an id is not a whole number' tokenizer check lacks half.jsonl