# SPDX-License-Identifier: Apache-2.0
# A SentencePiece model through a run's life: trained with, kept in the run and in its export, generated and evaluated
# with; and the verbs that only read it.
. "$ISO_ROOT/tests/cli/common.sh"

samples=$ISO_ROOT/tests/data/text/sentencepiece
run 0 tokenizer check "$samples/ties.model" "$samples/ties.jsonl"
echo "134 of 134 match" >expected
same out expected

mkdir tokenizer
cp "$samples/ties.model" tokenizer/tokenizer.model
printf 'the king  is here\n' >text
run 0 tokenizer encode tokenizer text
cp out ids
# shellcheck disable=SC2046
run 0 tokenizer decode tokenizer $(cat ids)
same out text

run 0 train "$tiny" run=r tokenizer.path=tokenizer model.config.vocab_size=900 steps=3 optimizer.warmup_steps=1
cmp -s r/tokenizer/tokenizer.model "$samples/ties.model" || fail "the run keeps another tokenizer.model"
run 0 export r exported
cmp -s exported/tokenizer.model "$samples/ties.model" || fail "the export holds another tokenizer.model"
grep -q '"eos_token_id":	2' exported/config.json || fail "the export's end of text: $(cat exported/config.json)"
run 0 generate exported "KING: the" --greedy --max-tokens 5
cp out from_export
run 0 generate r "KING: the" --greedy --max-tokens 5
same out from_export
run 0 evaluate exported text
run 0 verify r
finish
