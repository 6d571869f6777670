# SPDX-License-Identifier: Apache-2.0
#
# tools/demo, with a text, a vocabulary and a model that are small: it leaves a run that verify finds whole, measures
# gzip and xz once, and mends a report.json into which its older forms wrote what these take.
. "$ISO_ROOT/tests/cli/common.sh"

command -v xz >/dev/null 2>&1 && command -v gzip >/dev/null 2>&1 || { echo "skipped: there is no gzip, or no xz"; exit 77; }
mkdir -p tools examples runs/demo/vocabulary
cp "$ISO_ROOT/tools/demo" tools/demo
cp "$ISO_ROOT/examples/tiny/plays.txt" runs/demo/kjv.txt
cp "$ISO_ROOT"/examples/tiny/tokenizer/* runs/demo/vocabulary/
sed -e 's#^run: .*#run: runs/demo#' -e 's#^steps: .*#steps: 5#' -e 's#path: tiny/tokenizer#path: ../runs/demo/vocabulary#' \
  -e 's#max_position_embeddings: .*#max_position_embeddings: 512#' -e 's#path: tiny/plays.txt#path: ../runs/demo/kjv.txt#' "$tiny" >examples/demo.yaml

demo() { sh tools/demo "$ISOTACH" >out 2>err </dev/null || fail "the demo ended with $?: $(tail -n 3 out err)"; }

# whole: verify finds nothing, and the last lines have a number in each place
whole() {
  run 0 verify runs/demo
  grep -q gzip runs/demo/report.json && fail "report.json holds what the demo wrote into it"
  [ "$(grep -Ec '^  "(gzip|xz)_(alone|given_train)": [0-9.]+,?$' runs/demo/compressors.json)" -eq 4 ] ||
    fail "compressors.json: $(cat runs/demo/compressors.json)"
}
told() {
  [ "$(tail -n 7 out | grep -Ec '^  (gzip|xz|this).* [0-9]+\.[0-9]{3}$')" -eq 5 ] || fail "it ends with: $(tail -n 7 out)"
}

demo
told
cp out first
whole
# again: nothing is made anew
cp runs/demo/report.json before.json
ls -i runs/demo/compressors.json >before
demo
told
whole
same runs/demo/report.json before.json
ls -i runs/demo/compressors.json | cmp -s - before || fail "gzip and xz are measured again"
# as older forms of the demo left it
rm runs/demo/compressors.json
sed -i 's/^  "bits_per_byte".*/&\n  "gzip_alone": 9.0,\n  "gzip_given_train": 9.0,\n  "xz_alone": 9.0,\n  "xz_given_train": 9.0,/' \
  runs/demo/report.json
run 1 verify runs/demo
demo
told
grep -q '9\.000$' out && fail "it tells the numbers that stood in report.json"
tail -n 7 first | head -n 5 >wanted
tail -n 7 out | head -n 5 >got
same got wanted
whole
finish
