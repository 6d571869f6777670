#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The same documents as JSON lines, compressed, in Parquet and as token shards give the same bits; what is wrong with a
# source is said before the first step.
. "$(dirname "$0")/common.sh"

tiny="$ISO_ROOT/examples/tiny.yaml"
tokenizer="$ISO_ROOT/examples/tiny/tokenizer"
rows="$ISO_ROOT/tests/data/datapath"
ISOTACH_CACHE=$scratch/cache
export ISOTACH_CACHE

# 150 documents and 256 blocks wanted: each is a block, whatever it is stored as.
train() {
  name=$1
  path=$2
  run 0 train "$tiny" run="run-$name" data.sources.0.path="$path" data.sources.0.separator= data.validation.every=0 \
    data.validation.offset=0 steps=6 optimizer.warmup_steps=2
  run 0 digest "run-$name"
  mv out "$name.digest"
}

train lines "$rows/required.jsonl"
train column "$rows/required.parquet"
gzip -c "$rows/required.jsonl" >packed.jsonl.gz || exit 77
train packed packed.jsonl.gz
run 0 data build "$rows/required.jsonl" --tokenizer "$tokenizer" --out shards
train shards shards
for name in column packed shards; do
  cmp -s lines.digest $name.digest || fail "$name gives other bits than JSON lines"
done


# fails CODE PART WORDS...: fails with this code, and the last line of standard error has this part.
fails() {
  part=$2
  code_wanted=$1
  shift 2
  run "$code_wanted" "$@"
  tail -n 1 err | grep -qF "$part" || fail "isotach $*: said $(cat err), wanted $part"
}

# a run is refused before its folder exists
wrong() {
  fails "$1" "$2" train "$tiny" run=wrong data.validation.every=0 data.validation.offset=0 data.sources.0.separator= \
    data.sources.0.path="$3" $4
  [ ! -e wrong ] || fail "$3: a refused run left a folder"
}

cp -r shards damaged
printf '\377' | dd of=damaged/shard-00000.bin bs=1 seek=100 conv=notrunc 2>dd.err
wrong 5 'is damaged: the CRC-32C of its ids' damaged ''
head -c 200 shards/shard-00000.idx >damaged/shard-00000.idx
wrong 4 'it is damaged or cut' damaged ''
mv shards/shard-00000.bin away.bin
wrong 2 'an index or a description, but no token ids' shards ''
head -c 1000 packed.jsonl.gz >cut.jsonl.gz
wrong 4 cut.jsonl.gz cut.jsonl.gz ''
head -c 2000 "$rows/required.parquet" >cut.parquet
wrong 4 'no Parquet file, or is cut' cut.parquet ''
wrong 2 'no column "body"' "$rows/required.parquet" data.sources.0.field=body
wrong 2 'set token_type' away.bin ''
: >empty.jsonl
wrong 2 'holds no text' empty.jsonl ''

# A bad line: an error by default, with its place; left out when asked for.
printf 'broken\n' | cat "$rows/required.jsonl" - >bad.jsonl
fails 4 "document 150 (byte $(wc -c <"$rows/required.jsonl" | tr -d ' ') of the file): not a JSON object" train "$tiny" \
  run=bad data.validation.every=0 data.validation.offset=0 data.sources.0.separator= data.sources.0.path=bad.jsonl steps=60 \
  optimizer.warmup_steps=2
run 0 data info bad.jsonl --json
grep -q '"bad_documents": 1' out || fail "data info bad.jsonl: $(cat out)"
finish
