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
refused 2 'tokenizer train: --separator has an unknown escape' tokenizer train x --separator '\q' --vocabulary 300 --out y
finish
