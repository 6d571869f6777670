# SPDX-License-Identifier: Apache-2.0
# bench tokenizer: its JSON has what is promised and agrees with tokenizer encode; the ids do not depend on threads or
# on the tier; wrong flags are refused. How fast it is, is not tested.
. "$ISO_ROOT/tests/cli/common.sh"

tokenizer=$ISO_ROOT/tests/data/text/cl100k_base
i=0
while [ $i -lt 30000 ]; do
  echo "Line $i: it's the (same) words, 12345 \"again\"; and caf$(printf '\303\251') again...   "
  i=$((i + 1))
done >text # about 2 MB: three documents

value() { sed -n "s/.*\"$1\": \"\{0,1\}\([^,\"}]*\).*/\1/p" "$2"; }

run 0 bench tokenizer --tokenizer "$tokenizer" --input text --ids ids --json
[ -s err ] && fail "bench tokenizer said $(cat err)"
cp out one
for key in mb_per_s mb_per_cpu_s wall_s cpu_s tokens bytes documents bytes_per_token ids_crc32c; do
  [ -n "$(value $key one)" ] || fail "bench tokenizer --json has no $key: $(cat one)"
done
[ "$(value bytes one)" -eq "$(wc -c <text)" ] || fail "bytes: $(cat one)"
[ "$(value documents one)" -eq $(($(wc -c <text) / 262144 + 1)) ] || fail "documents: $(cat one)"
[ $((4 * $(value tokens one))) -eq "$(wc -c <ids)" ] || fail "the ids file has $(wc -c <ids) bytes: $(cat one)"

# One document: the ids are those of tokenizer encode.
head -n 2000 text >short
run 0 bench tokenizer --tokenizer "$tokenizer" --input short --ids ids
grep -q 'MB/s' out || fail "without --json: $(cat out)"
run 0 tokenizer encode "$tokenizer" short
od -An -v -t d4 -w4 ids | tr -d ' ' | tr '\n' ' ' | sed 's/ $//' >listed
tr -d '\n' <out >encoded
same listed encoded

for way in "--threads 2" "--threads 5"; do
  # shellcheck disable=SC2086
  run 0 bench tokenizer --tokenizer "$tokenizer" --input text --json $way
  [ "$(value ids_crc32c out)" = "$(value ids_crc32c one)" ] || fail "other ids with $way: $(cat out one)"
done
# What lies between separators are the documents, as a text source has them.
printf 'a b\n\nc d\n\n\n\ne' >parts
printf '\n\n\n\n' >nothing
run 0 bench tokenizer --tokenizer "$tokenizer" --input parts --separator "$(printf '\n\n-')" --json
[ "$(value documents out)" -eq 1 ] && [ "$(value bytes out)" -eq 13 ] || fail "no separator: $(cat out)"
two=$(printf '\n\n-')
run 0 bench tokenizer --tokenizer "$tokenizer" --input parts --separator "${two%-}" --json
[ "$(value documents out)" -eq 3 ] && [ "$(value bytes out)" -eq 7 ] || fail "between separators: $(cat out)"
run 0 bench tokenizer --tokenizer "$tokenizer" --input parts --separator '\n\n' --json
[ "$(value documents out)" -eq 3 ] || fail "with escapes: $(cat out)"
refused 2 'bench tokenizer: --separator has an unknown escape' \
  bench tokenizer --tokenizer "$tokenizer" --input parts --separator '\q'
refused 4 'bench tokenizer: nothing holds nothing but separators' \
  bench tokenizer --tokenizer "$tokenizer" --input nothing --separator "${two%-}"

ISOTACH_CPU=scalar isotach bench tokenizer --tokenizer "$tokenizer" --input text --json >out
[ "$(value ids_crc32c out)" = "$(value ids_crc32c one)" ] || fail "other ids on the scalar tier: $(cat out one)"

: >empty
refused 2 'bench tokenizer: give --tokenizer and --input' bench tokenizer --input text
refused 4 'bench tokenizer: empty is empty' bench tokenizer --tokenizer "$tokenizer" --input empty
finish
