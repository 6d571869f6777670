# SPDX-License-Identifier: Apache-2.0
# The same prompt, options and seed give the same tokens, from the run folder and from its export, on one thread and two.
. "$ISO_ROOT/tests/cli/common.sh"

run 0 train "$tiny" run=run threads=2
run 0 export run model
run 0 generate run "First Citizen:" --max-tokens 40 --seed 3 --threads 1 --ids
cp out one
[ "$(wc -w <one)" -gt 0 ] || fail "nothing was generated"
run 0 generate run "First Citizen:" --max-tokens 40 --seed 3 --threads 2 --ids
same out one
run 0 generate model "First Citizen:" --max-tokens 40 --seed 3 --ids
same out one
run 0 generate run@40 "First Citizen:" --max-tokens 40 --seed 3 --ids
same out one
run 0 generate model "First Citizen:" --max-tokens 40 --seed 4 --ids
cmp -s out one && fail "another seed gave the same tokens"
run 0 generate model "First Citizen:" --max-tokens 40 --greedy --ids
cp out greedy
run 0 generate model "First Citizen:" --max-tokens 40 --temperature 0 --seed 9 --ids
same out greedy
run 0 generate model "First Citizen:" --max-tokens 40 --top-k 1 --ids
same out greedy

# Text: the prompt, then what the ids decode to.
run 0 generate model "First Citizen:" --max-tokens 40 --greedy
cp out text
{ printf 'First Citizen:' && isotach tokenizer decode model <greedy && echo; } >expected
same text expected
run 0 generate model "" --max-tokens 5 # the beginning of a document
finish
