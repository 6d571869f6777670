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

# The model has 128 positions: by default what fits them, never more, and a refusal before anything is printed.
run 0 generate model "First Citizen:" --greedy --ids
[ "$(wc -w <out)" -gt 0 ] && [ "$(wc -w <out)" -lt 128 ] || fail "by default $(wc -w <out) tokens"
prompt_tokens=$(isotach tokenizer encode model --text "First Citizen:" | wc -w)
run 0 generate model "First Citizen:" --greedy --max-tokens $((128 - prompt_tokens))
refused 2 "generate: a prompt of $prompt_tokens tokens and $((129 - prompt_tokens)) more do not fit the 128 positions of 'model'; shorten the prompt or lower --max-tokens" \
  generate model "First Citizen:" --max-tokens $((129 - prompt_tokens))
run 2 generate model "$(cat "$ISO_ROOT/examples/tiny.yaml")"
[ ! -s out ] && [ "$(wc -l <err)" -eq 1 ] || fail "a long prompt: printed $(head -c 100 out), said $(cat err)"
run 0 generate model "" --max-tokens 5 # the beginning of a document
finish
